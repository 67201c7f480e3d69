//! Sends a schedule: sleeps until shortly before each departure, spins the rest, stamps, sends.
//!
//! Lateness is measured right before the system call against the schedule, so it is what the clock and the
//! machine's scheduler cost; what the kernel and the card add is not in it. A late frame leaves at once and
//! the next ones keep their times; with a `shift` limit, later frames are moved by a lateness beyond it instead,
//! so that no burst makes up for a stall.
//!
//! With gap frames (`fill`) the wire does the timing, as with PSPacer: it is kept full by PAUSE frames of time 0 whose length
//! is that of the gap, so that the distance of two frames is exact to the byte while the machine is late by less than
//! [`FILL_AHEAD_NS`].

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use kuroshio_clock::{Epoch, SPIN_NS, now_ns, sleep_until};
use kuroshio_core::meter::{Histogram, Summary};
use kuroshio_core::pace::{GapFiller, PaceError};
use kuroshio_core::traffic::{
    Departure, Entry, MAX_FRAME, Pattern, STAMP_BYTES, Schedule, Sizes, Stamp, Timing,
};
use kuroshio_core::units::{BitRate, FrameBytes, PicoDuration, PicoTime};
use kuroshio_core::wire::{
    ETHERNET_HEADER, FCS, FRAME_MIN, L1_OVERHEAD, LineRate, MacAddr, pad, pause_frame,
};
use serde_json::{Value, json};

use crate::error::GenError;
use crate::frame::{build, frame_overhead};
use crate::replay::Recording;
use crate::sys;

/// From the decision to begin to the first departure, ns.
const LEAD_NS: u64 = 2_000_000;
/// With gap frames, a frame is handed to the interface so long before its place on the wire: what the machine is late
/// by, up to that, is not seen there. The interface's queue has to hold as much (625 KB at 1 Gbps).
pub const FILL_AHEAD_NS: u64 = 5_000_000;
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
    /// The wire to be kept full, its longest gap frame, and a gap frame of that length without FCS.
    fill: Option<(LineRate, FrameBytes, Vec<u8>)>,
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
            fill: None,
        })
    }

    /// From now on the wire behind the interface, of this rate, is kept full: between two frames go gap frames (PAUSE of
    /// time 0), which the next switch drops at its input.
    ///
    /// # Errors
    /// A rate without a whole number of ps per byte, or an interface whose MTU is below 150.
    pub fn fill(&mut self, interface: &str, line: LineRate) -> Result<(), GenError> {
        let mtu = std::fs::read_to_string(format!("/sys/class/net/{interface}/mtu")).unwrap_or_default();
        let mtu: u64 = mtu.trim().parse().unwrap_or(1_500);
        let limit = FrameBytes::new((mtu + ETHERNET_HEADER + FCS).min(MAX_FRAME));
        GapFiller::new(line, limit)
            .map_err(|e| GenError::BadInput(format!("--fill {}: {e}", line.bit_rate())))?;
        let mut frame = vec![0; (limit.get() - FCS) as usize];
        let pause = pause_frame(MacAddr(self.from_mac), 0);
        // Destination, source, type, opcode; the time is 0, and so is the rest.
        frame
            .iter_mut()
            .zip(pause.iter().take(16))
            .for_each(|(to, from)| *to = *from);
        self.fill = Some((line, limit, frame));
        Ok(())
    }

    fn gap(&self, len: FrameBytes) -> io::Result<()> {
        let frame = self
            .fill
            .as_ref()
            .map(|(.., frame)| frame.as_slice())
            .unwrap_or_default();
        let len = usize::try_from(len.get() - FCS).unwrap_or(usize::MAX);
        rustix::net::send(
            &self.fd,
            frame.get(..len).unwrap_or(frame),
            rustix::net::SendFlags::empty(),
        )?;
        Ok(())
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
            fill: None,
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
    /// Gap frames sent between them.
    pub gap_frames: u64,
    /// Bytes of these, MAC header to FCS.
    pub gap_bytes: u64,
    /// Frames and gap frames that were late by more than [`FILL_AHEAD_NS`]: the wire ran empty before them.
    pub gaps_late: u64,
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
            "gap_frames": self.gap_frames,
            "gap_bytes": self.gap_bytes,
            "gaps_late": self.gaps_late,
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
    let mut filler = port.filler()?;
    for departure in schedule {
        let mut due_ns = epoch.mono_ns(departure.at);
        if let (Some(filler), Port::Raw(raw)) = (&mut filler, &*port) {
            match fill(raw, filler, &departure, &epoch, &mut report, stop)? {
                Some(at_ns) => due_ns = at_ns,
                None => {
                    report.interrupted = true;
                    break;
                }
            }
        }
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
        report.gaps_late += u64::from(filler.is_some() && late_ns > FILL_AHEAD_NS);
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

/// Sends the gap frames before a frame, each [`FILL_AHEAD_NS`] before its place on the wire; gives when the frame itself
/// is to be sent, or `None` when it was stopped.
fn fill(
    raw: &Raw,
    filler: &mut GapFiller,
    departure: &Departure,
    epoch: &Epoch,
    report: &mut SendReport,
    stop: &AtomicBool,
) -> Result<Option<u64>, GenError> {
    let bad = |e: PaceError| GenError::BadInput(format!("--fill: {e}"));
    let gaps = filler.before(departure.at, departure.len).map_err(bad)?;
    let own = pad(departure.len).get() + L1_OVERHEAD;
    let mut back = own + gaps.bytes().get() + gaps.frames() * L1_OVERHEAD;
    for len in gaps {
        let at_ns = ahead(epoch, filler.time_before_end(back));
        if !wait(at_ns, stop) {
            return Ok(None);
        }
        report.gaps_late += u64::from(now_ns().saturating_sub(at_ns) > FILL_AHEAD_NS);
        match raw.gap(len) {
            Ok(()) => {
                report.gap_frames += 1;
                report.gap_bytes += len.get();
            }
            Err(e) if is_full(&e) => report.not_sent += 1,
            Err(e) => return Err(explain(e, len.get())),
        }
        back -= len.get() + L1_OVERHEAD;
    }
    Ok(Some(ahead(epoch, filler.time_before_end(own))))
}

/// When what has its place on the wire at `at` is handed over: at the begin all that is due soon, at once.
fn ahead(epoch: &Epoch, at: PicoTime) -> u64 {
    let lead = PicoDuration::from_ns(FILL_AHEAD_NS);
    epoch.mono_ns(at.checked_sub(lead).unwrap_or(PicoTime::ZERO))
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
    fn filler(&self) -> Result<Option<GapFiller>, GenError> {
        let Port::Raw(raw) = self else { return Ok(None) };
        let Some((line, limit, _)) = &raw.fill else {
            return Ok(None);
        };
        let made = GapFiller::new(*line, *limit).map_err(|e| GenError::BadInput(format!("--fill: {e}")))?;
        Ok(Some(made))
    }

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
