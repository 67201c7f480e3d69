//! Sends a schedule: sleeps until shortly before each departure, spins the rest, stamps, sends.
//!
//! Lateness is measured right before the system call against the schedule, so it is what the clock and the
//! machine's scheduler cost; what the kernel and the card add is not in it. A late frame leaves at once and
//! the next ones keep their times; with a `shift` limit, later frames are moved by a lateness beyond it instead,
//! so that no burst makes up for a stall.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use kuroshio_clock::{Epoch, SPIN_NS, now_ns, sleep_until};
use kuroshio_core::meter::{Histogram, Summary};
use kuroshio_core::traffic::{
    Departure, Entry, MAX_FRAME, Pattern, STAMP_BYTES, Schedule, Sizes, Stamp, Timing,
};
use kuroshio_core::units::{BitRate, PicoDuration};
use kuroshio_core::wire::{FCS, FRAME_MIN};
use serde_json::{Value, json};

use crate::error::GenError;
use crate::frame::{build, frame_overhead};
use crate::replay::Recording;
use crate::sys;

/// From the decision to begin to the first departure, ns.
const LEAD_NS: u64 = 2_000_000;
/// Longest sleep between two looks at whether to stop, ns.
const NAP_NS: u64 = 100_000_000;

/// Where frames leave.
pub enum Port {
    /// A UDP socket that is connected to the receiver: no privilege.
    Udp(UdpSocket),
    /// Whole frames on an interface: root.
    Raw(Box<Raw>),
}

/// Frames that are built here and sent by a packet socket.
pub struct Raw {
    fd: OwnedFd,
    to_mac: [u8; 6],
    from_mac: [u8; 6],
    from: SocketAddr,
    to: SocketAddr,
    frame: Vec<u8>,
    /// Frames of a recording, sent as they are instead.
    recorded: Option<Vec<Vec<u8>>>,
}

impl Raw {
    /// Frames on `interface` to a MAC address; with `udp`, connected to the receiver, for the addresses.
    ///
    /// # Errors
    /// No such interface, not permitted, or no MAC address of its own.
    pub fn new(interface: &str, to_mac: [u8; 6], udp: &UdpSocket) -> Result<Self, GenError> {
        let here = |e: io::Error| GenError::BadInput(format!("--raw {interface}: {e}"));
        let fd = sys::packet_sender(interface).map_err(here)?;
        let text = std::fs::read_to_string(format!("/sys/class/net/{interface}/address")).ok();
        let from_mac = text.as_deref().and_then(mac).unwrap_or([2, 0, 0, 0, 0, 1]);
        Ok(Self {
            fd,
            to_mac,
            from_mac,
            from: udp.local_addr().map_err(GenError::io("the local address"))?,
            to: udp.peer_addr().map_err(GenError::io("the receiver's address"))?,
            frame: Vec::with_capacity(MAX_FRAME as usize),
            recorded: None,
        })
    }

    /// Recorded frames, sent byte by byte as they are.
    ///
    /// # Errors
    /// As [`Raw::new`].
    pub fn replay(interface: &str, recording: &Recording) -> Result<Self, GenError> {
        // The recording does not have the FCS, and may lack what pads a frame to 64.
        let full = |e: &Entry, f: &[u8]| {
            let len = e.len.get();
            f.len() as u64 + FCS == len || (len == FRAME_MIN && f.len() as u64 + FCS <= len)
        };
        let pairs = || recording.entries.iter().zip(&recording.frames);
        if let Some(number) = pairs().position(|(e, f)| !full(e, f) || f.len() < 14) {
            return Err(GenError::BadInput(format!(
                "frame {} was recorded in part only: record whole frames (tcpdump -s 0)",
                number + 1
            )));
        }
        let here = |e: io::Error| GenError::BadInput(format!("--raw {interface}: {e}"));
        let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
        Ok(Self {
            fd: sys::packet_sender(interface).map_err(here)?,
            to_mac: [0; 6],
            from_mac: [0; 6],
            from: nowhere,
            to: nowhere,
            frame: Vec::new(),
            recorded: Some(recording.frames.clone()),
        })
    }
}

/// A MAC address from `aa:bb:cc:dd:ee:ff`.
pub(crate) fn mac(text: &str) -> Option<[u8; 6]> {
    let mut out = [0; 6];
    let mut parts = text.trim().split(':');
    for byte in &mut out {
        let part = parts.next().filter(|p| p.len() == 2)?;
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    parts.next().is_none().then_some(out)
}

/// What was sent.
#[derive(Debug, Clone, Default)]
pub struct SendReport {
    /// Frames of each stream.
    pub streams: Vec<u64>,
    /// Frames of all.
    pub frames: u64,
    /// Their bytes, MAC header to FCS.
    pub frame_bytes: u64,
    /// Frames that the kernel refused for want of buffers: never on the wire, not counted above.
    pub not_sent: u64,
    /// How late departures were against the schedule, ns.
    pub lateness_ns: Summary,
    /// Times that the rest of the schedule was moved.
    pub shifts: u64,
    /// From the first departure to the last, ns.
    pub duration_ns: u64,
    /// Frame-level rate from the first departure to the last.
    pub rate: Option<BitRate>,
    /// Stopped before its end.
    pub interrupted: bool,
}

impl SendReport {
    /// As JSON, units in the names.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let late = &self.lateness_ns;
        json!({
            "frames": self.frames,
            "frame_bytes": self.frame_bytes,
            "not_sent_frames": self.not_sent,
            "duration_s": self.duration_ns as f64 / 1e9,
            "rate_bps": self.rate.map(BitRate::bps),
            "lateness_ns": {
                "p50": late.p50, "p99": late.p99, "p999": late.p999, "max": late.max, "mean": late.mean,
            },
            "shifts": self.shifts,
            "interrupted": self.interrupted,
        })
    }
}

/// What goes with a schedule.
pub(crate) struct Plan {
    /// Number of the run.
    pub run: u8,
    /// Number of streams.
    pub streams: u32,
    /// Lateness beyond which the rest is moved, ns.
    pub shift_ns: Option<u64>,
    /// Whether frames carry IPv6.
    pub payload_v6: bool,
}

/// Sends a schedule to its end, or until it is stopped.
pub(crate) fn send(
    port: &mut Port,
    schedule: impl Iterator<Item = Departure>,
    plan: &Plan,
    stop: &AtomicBool,
) -> Result<SendReport, GenError> {
    let mut report = SendReport {
        streams: vec![0; plan.streams as usize],
        ..SendReport::default()
    };
    let mut lateness = Histogram::new();
    let mut payload = vec![0u8; MAX_FRAME as usize];
    let overhead = frame_overhead(plan.payload_v6);
    let mut epoch = Epoch::at_ns(now_ns() + LEAD_NS);
    let (mut first_ns, mut last_ns, mut last_len) = (None, 0, 0);
    for departure in schedule {
        let due_ns = epoch.mono_ns(departure.at);
        if !wait(due_ns, stop) {
            report.interrupted = true;
            break;
        }
        let Some(count) = report.streams.get_mut(departure.stream as usize) else {
            continue;
        };
        let now = now_ns();
        let stamp = Stamp {
            run: plan.run,
            stream: departure.stream as u16,
            sequence: *count as u32,
            sent_ns: sys::tai_ns(),
        };
        if let Some(place) = payload.first_chunk_mut::<STAMP_BYTES>() {
            *place = stamp.to_bytes();
        }
        let len = departure.len.get().saturating_sub(overhead) as usize;
        let late_ns = now.saturating_sub(due_ns);
        lateness.record(late_ns);
        if plan.shift_ns.is_some_and(|limit| late_ns > limit) {
            epoch = Epoch::at_ns(epoch.start_ns() + late_ns);
            report.shifts += 1;
        }
        match port.send(payload.get(..len).unwrap_or_default(), departure.entry) {
            Ok(()) => {
                *count += 1;
                report.frames += 1;
                report.frame_bytes += departure.len.get();
                first_ns.get_or_insert(now);
                (last_ns, last_len) = (now, departure.len.get());
            }
            Err(e) if is_full(&e) => report.not_sent += 1,
            Err(e) => return Err(explain(e, departure.len.get())),
        }
    }
    report.lateness_ns = lateness.summary();
    report.duration_ns = last_ns.saturating_sub(first_ns.unwrap_or(last_ns));
    let bytes = report.frame_bytes.saturating_sub(last_len);
    report.rate = BitRate::of(bytes, PicoDuration::from_ns(report.duration_ns));
    Ok(report)
}

/// Sends the frames of a recording as they are, at its times.
///
/// # Errors
/// What sending gives.
pub fn replay_raw(raw: Raw, recording: Recording, stop: &AtomicBool) -> Result<SendReport, GenError> {
    let pattern = Pattern {
        timing: Timing::List {
            entries: recording.entries.into(),
            repeat: false,
        },
        sizes: Sizes::Imix,
        streams: 1,
        seed: 0,
        time: None,
        frames: None,
    };
    let schedule = Schedule::new(pattern).map_err(|e| GenError::BadInput(e.to_string()))?;
    let plan = Plan {
        run: 0,
        streams: 1,
        shift_ns: None,
        payload_v6: false,
    };
    send(&mut Port::Raw(Box::new(raw)), schedule, &plan, stop)
}

/// Waits until a time; `false` when it was stopped.
fn wait(due_ns: u64, stop: &AtomicBool) -> bool {
    loop {
        if stop.load(Ordering::Relaxed) {
            return false;
        }
        let now = now_ns();
        if due_ns <= now.saturating_add(NAP_NS) {
            sleep_until(due_ns, SPIN_NS);
            return true;
        }
        sleep_until(now + NAP_NS, 0);
    }
}

fn is_full(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::ENOBUFS | libc::EAGAIN))
}

fn explain(e: io::Error, len: u64) -> GenError {
    if e.raw_os_error() == Some(libc::EMSGSIZE) {
        return GenError::BadInput(format!(
            "frames of {len}B do not fit the path's MTU: a frame has 18 bytes more than its IP packet"
        ));
    }
    GenError::io("sending a frame")(e)
}

impl Port {
    fn send(&mut self, payload: &[u8], entry: usize) -> io::Result<()> {
        match self {
            Port::Udp(socket) => loop {
                match socket.send(payload) {
                    Ok(_) => return Ok(()),
                    // An ICMP error of an earlier frame, which is told once; and signals.
                    Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {}
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) => return Err(e),
                }
            },
            Port::Raw(raw) => {
                let frame = match &raw.recorded {
                    Some(frames) => frames.get(entry).map_or(&[] as &[u8], Vec::as_slice),
                    None => {
                        build(
                            raw.to_mac,
                            raw.from_mac,
                            raw.from,
                            raw.to,
                            payload,
                            &mut raw.frame,
                        );
                        &raw.frame
                    }
                };
                rustix::net::send(&raw.fd, frame, rustix::net::SendFlags::empty())?;
                Ok(())
            }
        }
    }
}
