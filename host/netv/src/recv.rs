//! Receives pictures: a thread for each part assembles it, one aligns and shows them.
//!
//! What is shown is a screen: each part of it holds the newest that has come. A picture with all parts of one stamp is
//! whole; one that was shown with parts of different stamps is torn. Times are the kernel's receive stamps.

use std::io::Write;
use std::net::{SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver as Channel, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use kuroshio_core::meter::Histogram;
use kuroshio_core::units::{PicoDuration, PicoTime};
use kuroshio_core::video::{Assembler, AssemblerCounts, Geometry, JoinCounts, Part, Shown};
use serde::Serialize;

use crate::PAYLOAD_TYPE;
use crate::convert::{to_planar, write_png};
use crate::display::Display;
use crate::error::NetvError;
use crate::send::Prepare;
use crate::sys::{Batch, real_ns, receive_buffer, receive_superframes, stamp_receives};
use crate::y4m::Header;

/// Receive buffer that is asked for, bytes.
const BUFFER: i32 = 32 << 20;
/// Longest wait for a datagram between two looks at whether to stop.
const NAP: Duration = Duration::from_millis(50);
/// Whole parts between the threads.
const QUEUE: usize = 8;

/// What to do with shown pictures.
#[derive(Default)]
pub struct Output {
    /// y4m (YUV) or raw rows of groups (RGB) of every shown picture.
    pub video: Option<Box<dyn Write + Send>>,
    /// A PNG file of one shown picture.
    pub snapshot: Option<PathBuf>,
    /// Which one, from 0; the last without.
    pub snapshot_at: Option<u64>,
}

/// What to receive.
pub struct RecvConfig {
    /// Size and format of the whole picture.
    pub geometry: Geometry,
    /// Pictures per second, as a fraction, for the header of y4m.
    pub rate: (u32, u32),
    /// Where each part comes, from the top, and what its thread does first.
    pub listen: Vec<(SocketAddr, Option<Prepare>)>,
    /// Longest wait for the other parts of a picture.
    pub wait: PicoDuration,
    /// End after so many shown pictures.
    pub pictures: Option<u64>,
    /// End after so long.
    pub time: Option<Duration>,
    /// End when nothing was shown for so long after the first picture.
    pub idle: Option<Duration>,
    /// What to do with them.
    pub output: Output,
}

/// A part's figures.
#[derive(Debug, Clone, Default, Serialize)]
pub struct PartReceived {
    /// Where it came.
    pub listen: String,
    /// Datagrams that were taken, and those refused, late and repeated.
    pub datagrams: u64,
    /// Not of this stream.
    pub refused_datagrams: u64,
    /// Of pictures that were over.
    pub late_datagrams: u64,
    /// That brought nothing new.
    pub repeated_datagrams: u64,
    /// Whole parts.
    pub whole: u64,
    /// Given up with something missing.
    pub incomplete: u64,
}

/// What was received.
#[derive(Debug, Clone, Default, Serialize)]
pub struct RecvReport {
    /// Pictures that were shown.
    pub shown: u64,
    /// With all parts of one stamp.
    pub whole: u64,
    /// With parts of different stamps, or old ones.
    pub torn: u64,
    /// Parts that came when their picture had been shown.
    pub late_parts: u64,
    /// Pictures per second, from the first shown to the last.
    pub rate_fps: f64,
    /// Alignment of a whole picture's parts: from the first that was whole to the last, us, the median.
    pub alignment_p50_us: f64,
    /// The same, of one in a hundred.
    pub alignment_p99_us: f64,
    /// The largest.
    pub alignment_max_us: f64,
    /// Each part.
    pub parts: Vec<PartReceived>,
    /// Stopped from outside.
    pub interrupted: bool,
}

enum Event {
    Part(usize, Part),
    Failed(NetvError),
}

/// A receiver whose sockets are bound.
pub struct Receiver {
    config: RecvConfig,
    sockets: Vec<UdpSocket>,
    parts: Vec<Geometry>,
}

impl Receiver {
    /// Binds the sockets.
    ///
    /// # Errors
    /// A format that cannot be divided so, or an address that cannot be bound.
    pub fn bind(config: RecvConfig) -> Result<Self, NetvError> {
        let count = u32::try_from(config.listen.len()).unwrap_or(u32::MAX);
        let parts = (0..count.max(1)).map(|i| config.geometry.part(i, count).map(|(part, _)| part));
        let parts = parts
            .collect::<Result<Vec<_>, _>>()
            .map_err(|e| NetvError::BadInput(format!("--listen: {e}")))?;
        let mut sockets = Vec::new();
        for (address, _) in &config.listen {
            let what = format!("--listen {address}");
            let socket = UdpSocket::bind(address).map_err(|e| NetvError::BadInput(format!("{what}: {e}")))?;
            receive_buffer(&socket, BUFFER).map_err(NetvError::io(what.clone()))?;
            stamp_receives(&socket).map_err(NetvError::io(what.clone()))?;
            receive_superframes(&socket);
            socket.set_read_timeout(Some(NAP)).map_err(NetvError::io(what))?;
            sockets.push(socket);
        }
        Ok(Self {
            config,
            sockets,
            parts,
        })
    }

    /// The addresses that were bound.
    ///
    /// # Errors
    /// What the system says.
    pub fn addresses(&self) -> Result<Vec<SocketAddr>, NetvError> {
        let each = self.sockets.iter().map(UdpSocket::local_addr);
        each.collect::<Result<_, _>>()
            .map_err(NetvError::io("the bound addresses"))
    }

    /// Receives until its end, or until it is stopped.
    ///
    /// # Errors
    /// What sockets or outputs give.
    pub fn run(self, stop: &Arc<AtomicBool>) -> Result<RecvReport, NetvError> {
        let Self {
            mut config,
            sockets,
            parts,
        } = self;
        let count = u32::try_from(parts.len()).unwrap_or(u32::MAX);
        let done = Arc::new(AtomicBool::new(false));
        // The kernel's stamps count from 1970, a run's time counts picoseconds of it: it begins a second ago.
        let zero_ns = real_ns().saturating_sub(1_000_000_000);
        let (to_screen, events) = sync_channel(QUEUE * sockets.len());
        let mut threads = Vec::new();
        for (i, (socket, (_, prepare))) in sockets
            .into_iter()
            .zip(std::mem::take(&mut config.listen))
            .enumerate()
        {
            let geometry = parts[i];
            let (to_screen, done) = (to_screen.clone(), Arc::clone(&done));
            let thread = std::thread::Builder::new().name(format!("part-{i}"));
            let work = move || assemble(i, &socket, geometry, prepare, zero_ns, &to_screen, &done);
            threads.push(thread.spawn(work).map_err(NetvError::io("starting a thread"))?);
        }
        drop(to_screen);
        let mut screen = Screen::new(config, count, zero_ns)?;
        let shown = screen.run(&events, stop);
        done.store(true, Ordering::Relaxed);
        // A thread that waits for room in the queue finds it closed.
        drop(events);
        let reports = threads
            .into_iter()
            .map(JoinHandle::join)
            .map(Result::unwrap_or_default);
        let mut report = screen.report(stop.load(Ordering::Relaxed));
        report.parts = reports.collect();
        shown.map(|()| report)
    }
}

/// The thread of a part.
fn assemble(
    index: usize,
    socket: &UdpSocket,
    geometry: Geometry,
    prepare: Option<Prepare>,
    zero_ns: u64,
    to_screen: &SyncSender<Event>,
    done: &AtomicBool,
) -> PartReceived {
    let mut assembler = Assembler::new(geometry, PAYLOAD_TYPE);
    let prepared = prepare.map_or(Ok(()), |prepare| prepare());
    let mut failed = prepared.err();
    let mut batch = Batch::new();
    while failed.is_none() && !done.load(Ordering::Relaxed) {
        let mut whole = Vec::new();
        let took = batch.receive(socket, |bytes, stamp_ns| {
            // Refused datagrams are counted by the assembler.
            if let Ok(Some(part)) =
                assembler.handle(PicoTime::from_ns(stamp_ns.saturating_sub(zero_ns)), bytes)
            {
                whole.push(part);
            }
        });
        if let Err(e) = took {
            failed = Some(NetvError::io("receiving video")(e));
        }
        if whole
            .into_iter()
            .any(|part| to_screen.send(Event::Part(index, part)).is_err())
        {
            break;
        }
    }
    if let Some(failed) = failed {
        let _ = to_screen.send(Event::Failed(failed));
    }
    let AssemblerCounts {
        datagrams,
        refused,
        late,
        duplicate,
        pictures,
        incomplete,
        ..
    } = assembler.counts();
    PartReceived {
        listen: socket.local_addr().map(|a| a.to_string()).unwrap_or_default(),
        datagrams,
        refused_datagrams: refused,
        late_datagrams: late,
        repeated_datagrams: duplicate,
        whole: pictures,
        incomplete,
    }
}

struct Screen {
    config: RecvConfig,
    display: Display,
    spread: Histogram,
    shown: u64,
    /// Zero of the run's time, `CLOCK_REALTIME`, ns.
    zero_ns: u64,
    first_ns: Option<u64>,
    last_ns: u64,
}

impl Screen {
    fn new(config: RecvConfig, parts: u32, zero_ns: u64) -> Result<Self, NetvError> {
        let display = Display::new(config.geometry, parts, config.wait);
        let mut screen = Self {
            display: display.map_err(|e| NetvError::BadInput(format!("--listen: {e}")))?,
            spread: Histogram::new(),
            shown: 0,
            zero_ns,
            first_ns: None,
            last_ns: 0,
            config,
        };
        let header = Header {
            geometry: screen.config.geometry,
            rate: screen.config.rate,
        };
        if let (Some(out), Some(line)) = (&mut screen.config.output.video, header.line()) {
            out.write_all(line.as_bytes())
                .map_err(NetvError::io("writing video"))?;
        }
        Ok(screen)
    }

    fn run(&mut self, events: &Channel<Event>, stop: &AtomicBool) -> Result<(), NetvError> {
        let start_ns = real_ns();
        let mut came_ns = start_ns;
        while !stop.load(Ordering::Relaxed) && self.config.pictures.is_none_or(|n| self.shown < n) {
            let now = real_ns();
            let over = |limit: Option<Duration>, since: u64| {
                limit.is_some_and(|l| u128::from(now.saturating_sub(since)) >= l.as_nanos())
            };
            if over(self.config.time, start_ns)
                || (self.first_ns.is_some() && over(self.config.idle, came_ns))
            {
                break;
            }
            let next = self.display.next_wakeup().map_or(NAP, |at| {
                Duration::from_nanos((at.as_ns_ceil() + self.zero_ns).saturating_sub(now))
            });
            match events.recv_timeout(next.min(NAP)) {
                Ok(Event::Part(index, part)) => {
                    came_ns = now;
                    self.display.handle_part(index, part);
                }
                Ok(Event::Failed(e)) => return Err(e),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.show()?;
        }
        if self.config.output.snapshot_at.is_none() && self.shown > 0 {
            self.snapshot()?;
        }
        if let Some(out) = &mut self.config.output.video {
            out.flush().map_err(NetvError::io("writing video"))?;
        }
        Ok(())
    }

    fn show(&mut self) -> Result<(), NetvError> {
        while self.config.pictures.is_none_or(|n| self.shown < n) {
            let now_ns = real_ns();
            let now = PicoTime::from_ns(now_ns.saturating_sub(self.zero_ns));
            let Some(shown) = self.display.poll(now) else {
                return Ok(());
            };
            self.count(&shown, now_ns);
            self.write()?;
            if self.config.output.snapshot_at == Some(self.shown - 1) {
                self.snapshot()?;
            }
        }
        Ok(())
    }

    fn count(&mut self, shown: &Shown, now_ns: u64) {
        if !shown.is_torn() {
            self.spread.record(shown.spread.as_ns());
        }
        self.shown += 1;
        self.first_ns.get_or_insert(now_ns);
        self.last_ns = now_ns;
    }

    fn write(&mut self) -> Result<(), NetvError> {
        let header = Header {
            geometry: self.config.geometry,
            rate: self.config.rate,
        };
        let Some(out) = &mut self.config.output.video else {
            return Ok(());
        };
        let written = if header.line().is_some() {
            out.write_all(b"FRAME\n")
                .and_then(|()| out.write_all(&to_planar(self.config.geometry, self.display.picture())))
        } else {
            out.write_all(self.display.picture())
        };
        written.map_err(NetvError::io("writing video"))
    }

    fn snapshot(&self) -> Result<(), NetvError> {
        let Some(path) = &self.config.output.snapshot else {
            return Ok(());
        };
        let what = format!("--snapshot {}", path.display());
        write_png(self.config.geometry, self.display.picture(), path).map_err(NetvError::io(what))
    }

    fn report(&self, interrupted: bool) -> RecvReport {
        let JoinCounts {
            whole,
            torn,
            late_parts,
            ..
        } = self.display.counts();
        let lasted = self.last_ns.saturating_sub(self.first_ns.unwrap_or(self.last_ns));
        let spread = self.spread.summary();
        let us = |ns: u64| ns as f64 / 1e3;
        RecvReport {
            shown: self.shown,
            whole,
            torn,
            late_parts,
            rate_fps: if lasted > 0 {
                (self.shown - 1) as f64 * 1e9 / lasted as f64
            } else {
                0.0
            },
            alignment_p50_us: us(spread.p50),
            alignment_p99_us: us(spread.p99),
            alignment_max_us: us(spread.max),
            parts: Vec::new(),
            interrupted,
        }
    }
}
