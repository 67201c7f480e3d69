//! Captures of several ports at once, drained by one thread.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use kuroshio_core::wire::FlowKey;
use kuroshio_port::{Capture, Direction};

/// How often the rings are emptied: each holds a third of a second of the fastest traffic.
const DRAIN_EVERY: Duration = Duration::from_millis(10);

/// One frame that passed a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// The kernel's stamp, `CLOCK_MONOTONIC`, ns. [`crate::Testbed::epoch`] maps it to the run.
    pub t_ns: u64,
    /// Frame-level bytes.
    pub frame_len: u32,
    /// Bytes after the transport header.
    pub payload_len: u32,
    /// Index into [`Captured::flows`], `u32::MAX` for what is not IP.
    pub flow: u32,
    /// Index of the port, as the capture was asked for.
    pub port: u16,
    /// Sent or received by the host.
    pub direction: Direction,
}

/// What a set of captures saw.
#[derive(Debug, Clone, Default)]
pub struct Captured {
    /// The frames: of each port in order, ports mixed.
    pub records: Vec<Record>,
    /// The flows.
    pub flows: Vec<FlowKey>,
    /// Frames that the captures missed because a ring was full. Not zero: the figures are wrong.
    pub missed: u64,
}

impl Captured {
    /// The flow of a record.
    #[must_use]
    pub fn flow(&self, record: &Record) -> Option<&FlowKey> {
        self.flows.get(usize::try_from(record.flow).ok()?)
    }
}

/// Running captures. Dropping them ends them.
#[derive(Debug)]
pub struct CaptureSet {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<io::Result<Captured>>>,
}

impl CaptureSet {
    pub(crate) fn start(captures: Vec<Capture>) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let theirs = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("capture".into())
            .spawn(move || drain(captures, &theirs))?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }

    /// Ends the captures and returns what they saw.
    ///
    /// # Errors
    /// When the kernel's statistics could not be read.
    pub fn stop(mut self) -> io::Result<Captured> {
        self.finish()
            .unwrap_or_else(|| Err(io::Error::other("the capture has no thread")))
    }

    fn finish(&mut self) -> Option<io::Result<Captured>> {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take()?;
        Some(
            thread
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("the capture's thread panicked"))),
        )
    }
}

impl Drop for CaptureSet {
    fn drop(&mut self) {
        let _ = self.finish();
    }
}

fn drain(mut captures: Vec<Capture>, stop: &AtomicBool) -> io::Result<Captured> {
    let mut captured = Captured::default();
    let mut numbers: HashMap<FlowKey, u32> = HashMap::new();
    loop {
        // Read before draining: what came before the end is taken.
        let last = stop.load(Ordering::Relaxed);
        for (port, capture) in (0u16..).zip(captures.iter_mut()) {
            let Captured { records, flows, .. } = &mut captured;
            capture.drain(|stamped| {
                let flow = stamped.seen.flow.map_or(u32::MAX, |key| {
                    *numbers.entry(key).or_insert_with(|| {
                        flows.push(key);
                        u32::try_from(flows.len() - 1).unwrap_or(u32::MAX)
                    })
                });
                records.push(Record {
                    t_ns: stamped.t_ns,
                    frame_len: stamped.frame_len,
                    payload_len: stamped.seen.payload_len,
                    flow,
                    port,
                    direction: stamped.direction,
                });
            });
        }
        if last {
            break;
        }
        std::thread::sleep(DRAIN_EVERY);
    }
    for capture in &mut captures {
        captured.missed += capture.stats()?.dropped;
    }
    Ok(captured)
}
