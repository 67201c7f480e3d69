//! Sends pictures: one thread draws or reads them, one for each part paces its datagrams.
//!
//! ```text
//!     source -> one channel for each part -> packetizer -> its place in the schedule ([`crate::schedule`]) -> burst -> socket
//! ```
//!
//! The places of a picture's datagrams fill 95 % of its time, so that a late wake-up is made good within the picture. A thread
//! sleeps until a datagram's place and sends it with all that are due in the next 50 us ([`crate::burst`]): how late they leave
//! is measured and reported, the schedule itself is exact.
//!
//! Held pictures ([`Source::Held`]) are drawn by each part's thread, once, after it was bound to its rail: its own memory, and
//! no thread beside it. What is measured then is sending alone, as in paper 002, figure 4.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use kuroshio_clock::{Epoch, exact_sleep, now_ns, sleep_until};
use kuroshio_core::meter::Histogram;
use kuroshio_core::units::{BitRate, PicoDuration, PicoTime};
use kuroshio_core::video::{Cursor, Geometry, Packetizer};
use serde::Serialize;

use crate::PAYLOAD_TYPE;
use crate::burst::Burst;
use crate::error::NetvError;
use crate::pattern::Pattern;
use crate::schedule::Schedule;
use crate::source::Source;
use crate::sys;

/// Pictures between the source and a part's thread.
const AHEAD: usize = 2;
/// From the decision to begin to the first picture.
const LEAD_NS: u64 = 50_000_000;
/// Longest sleep between two looks at whether to stop, ns.
const NAP_NS: u64 = 100_000_000;
/// Datagrams of so long a time leave together: a wake-up of its own for each would cost more than sending it.
const TOGETHER_NS: u64 = 50_000;

/// Called in a part's thread before it sends: binds it to its rail.
pub type Prepare = Box<dyn FnOnce() -> Result<(), NetvError> + Send>;
/// Called in a part's thread with its first held picture, to see where its memory is.
pub type Inspect = Box<dyn FnOnce(&[u8]) + Send>;

/// Where a part goes.
pub struct PartTarget {
    /// The receiver.
    pub to: SocketAddr,
    /// Local address to leave from.
    pub from: Option<SocketAddr>,
    /// What its thread does first.
    pub prepare: Option<Prepare>,
    /// Who looks at its held pictures.
    pub inspect: Option<Inspect>,
}

/// What to send.
pub struct SendConfig {
    /// Size and format.
    pub geometry: Geometry,
    /// Pictures per second, as a fraction.
    pub rate: (u32, u32),
    /// The parts, from the top.
    pub parts: Vec<PartTarget>,
    /// Bytes of a datagram's payload.
    pub datagram_bytes: usize,
    /// Pictures to send; without, to the end of the source.
    pub pictures: Option<u64>,
    /// Number that sources of the streams derive from.
    pub ssrc: u32,
}

/// What a part's thread did.
#[derive(Debug, Clone, Default, Serialize)]
pub struct PartSent {
    /// Where it went.
    pub to: String,
    /// Lines of the part.
    pub lines: u32,
    /// Whole pictures.
    pub pictures: u64,
    /// Datagrams that the kernel took.
    pub datagrams: u64,
    /// Their bytes, frame level.
    pub frame_bytes: u64,
    /// Datagrams that it refused for want of buffers.
    pub not_sent_datagrams: u64,
    /// System calls that sent them.
    pub calls: u64,
    /// Whether neighbours left as superframes (`UDP_SEGMENT`).
    pub superframes: bool,
    /// The rate of the pacer, frame level.
    pub pace_bps: u64,
    /// Lateness of departures against the schedule, ns.
    pub lateness_p50_ns: u64,
    /// The same, of one in a hundred.
    pub lateness_p99_ns: u64,
    /// The largest.
    pub lateness_max_ns: u64,
}

/// What was sent.
#[derive(Debug, Clone, Default, Serialize)]
pub struct SendReport {
    /// Pictures that left the source.
    pub pictures: u64,
    /// Pictures per second that were asked for.
    pub rate_asked_fps: f64,
    /// Pictures per second from when the first was due to the last departure, of the slowest part.
    pub rate_fps: f64,
    /// Frame-level rate of all parts in sum.
    pub frame_rate_bps: u64,
    /// Pictures that the source gave after they were due.
    pub late_pictures: u64,
    /// Each part.
    pub parts: Vec<PartSent>,
    /// Stopped before its end.
    pub interrupted: bool,
}

type Picture = (u64, Arc<Vec<u8>>);

/// What a part's thread did, when its first picture was due, and its last departure.
struct Sent {
    part: PartSent,
    first_ns: u64,
    last_ns: u64,
}

/// Where a part's pictures come from.
enum Pictures {
    /// Whole ones, from the thread of the source.
    Fed(Receiver<Picture>),
    /// The part's own, in turn, up to a number.
    Held(Vec<Arc<Vec<u8>>>, std::ops::Range<u64>),
}

impl Iterator for Pictures {
    type Item = Picture;

    fn next(&mut self) -> Option<Picture> {
        match self {
            Self::Fed(from) => from.recv().ok(),
            Self::Held(ring, numbers) => {
                let number = numbers.next()?;
                let at = usize::try_from(number % (ring.len().max(1) as u64)).ok()?;
                Some((number, Arc::clone(ring.get(at)?)))
            }
        }
    }
}

/// Sends to the end of the source, or until it is stopped.
///
/// # Errors
/// A format that cannot be sent so, a socket that cannot be made, a datagram beyond the MTU, or the source's.
pub fn send(config: SendConfig, mut source: Source, stop: &Arc<AtomicBool>) -> Result<SendReport, NetvError> {
    let count = u32::try_from(config.parts.len()).unwrap_or(u32::MAX);
    let (mut links, mut threads, mut dues) = (Vec::new(), Vec::new(), None);
    let epoch = Epoch::at_ns(now_ns() + LEAD_NS);
    let held = match &source {
        Source::Held(pictures) => Some((*pictures, config.pictures.unwrap_or(u64::MAX))),
        _ => None,
    };
    for (i, target) in config.parts.into_iter().enumerate() {
        let index = i as u32;
        let split = config.geometry.part(index, count);
        let (geometry, range) = split.map_err(|e| NetvError::BadInput(format!("--to: {e}")))?;
        let packetizer = Packetizer::new(
            geometry,
            config.datagram_bytes,
            PAYLOAD_TYPE,
            config.ssrc.wrapping_add(index),
            0,
        );
        let schedule = Schedule::new(&packetizer, config.rate, target.to.is_ipv6())?;
        dues.get_or_insert_with(|| schedule.clone());
        let part = PartSender {
            socket: connect(&target)?,
            to: target.to,
            prepare: target.prepare,
            inspect: target.inspect,
            packetizer,
            geometry,
            range,
            schedule,
            epoch,
            stop: Arc::clone(stop),
        };
        let (to_part, from_source) = sync_channel::<Picture>(AHEAD);
        let thread = std::thread::Builder::new().name(format!("part-{i}"));
        let handle = thread
            .spawn(move || part.run(from_source, held))
            .map_err(NetvError::io("starting a thread"))?;
        links.push(to_part);
        threads.push(handle);
    }
    let due = |number| {
        dues.as_ref()
            .map_or(PicoTime::ZERO, |schedule| schedule.due(number))
    };
    let fed = feed(&mut source, &links, config.pictures, epoch, due, stop);
    drop(links);
    let mut report = join(threads)?;
    let (pictures, late_pictures) = fed?;
    if held.is_none() {
        report.pictures = pictures;
    }
    report.late_pictures = late_pictures;
    report.rate_asked_fps = f64::from(config.rate.0) / f64::from(config.rate.1);
    report.interrupted = stop.load(Ordering::Relaxed);
    Ok(report)
}

/// Waits for the threads of all parts, and says what they did together; `pictures` are those that all have sent.
fn join(threads: Vec<JoinHandle<Result<Sent, NetvError>>>) -> Result<SendReport, NetvError> {
    let (mut report, mut rate_fps) = (SendReport::default(), f64::INFINITY);
    for thread in threads {
        let joined = thread
            .join()
            .map_err(|_| NetvError::BadInput("a part's thread ended by itself".into()))?;
        let Sent {
            part,
            first_ns,
            last_ns,
        } = joined?;
        let lasted = last_ns.saturating_sub(first_ns);
        // The last datagram of a picture leaves when 95 % of its time are over.
        let periods = part.pictures as f64 - 0.05;
        rate_fps = rate_fps.min(if lasted > 0 {
            periods.max(0.0) * 1e9 / lasted as f64
        } else {
            0.0
        });
        let bps = BitRate::of(part.frame_bytes, PicoDuration::from_ns(lasted)).map_or(0, BitRate::bps);
        report.frame_rate_bps += bps;
        report.parts.push(part);
    }
    report.pictures = report.parts.iter().map(|p| p.pictures).min().unwrap_or(0);
    report.rate_fps = if rate_fps.is_finite() { rate_fps } else { 0.0 };
    Ok(report)
}

/// Hands pictures to all parts; returns how many, and how many came after they were due.
fn feed(
    source: &mut Source,
    links: &[SyncSender<Picture>],
    limit: Option<u64>,
    epoch: Epoch,
    due: impl Fn(u64) -> PicoTime,
    stop: &AtomicBool,
) -> Result<(u64, u64), NetvError> {
    let (mut number, mut late) = (0, 0);
    while limit.is_none_or(|l| number < l) && !stop.load(Ordering::Relaxed) {
        let mut picture = Vec::new();
        if !source.next(number, &mut picture)? {
            break;
        }
        late += u64::from(now_ns() > epoch.mono_ns(due(number)));
        let picture = Arc::new(picture);
        // A part that ended with an error has closed its end; its thread tells why.
        if links
            .iter()
            .any(|l| l.send((number, Arc::clone(&picture))).is_err())
        {
            break;
        }
        number += 1;
    }
    Ok((number, late))
}

fn connect(target: &PartTarget) -> Result<UdpSocket, NetvError> {
    let v6 = target.to.is_ipv6();
    let any: SocketAddr = if v6 {
        ([0u16; 8], 0).into()
    } else {
        ([0, 0, 0, 0], 0).into()
    };
    let from = target.from.unwrap_or(any);
    let what = format!("a socket from {from} to {}", target.to);
    let socket = UdpSocket::bind(from).map_err(NetvError::io(what.clone()))?;
    socket.connect(target.to).map_err(NetvError::io(what.clone()))?;
    sys::never_fragment(&socket, v6).map_err(NetvError::io(what))?;
    Ok(socket)
}

struct PartSender {
    socket: UdpSocket,
    to: SocketAddr,
    prepare: Option<Prepare>,
    inspect: Option<Inspect>,
    packetizer: Packetizer,
    geometry: Geometry,
    range: std::ops::Range<usize>,
    schedule: Schedule,
    epoch: Epoch,
    stop: Arc<AtomicBool>,
}

impl PartSender {
    /// What this part sends of each picture, in memory of this thread where pictures are held.
    fn pictures(&mut self, fed: Receiver<Picture>, held: Option<(usize, u64)>) -> Pictures {
        let Some((count, limit)) = held else {
            return Pictures::Fed(fed);
        };
        let pattern = Pattern::new(self.geometry, 1);
        let draw = |number: u64| {
            let mut picture = Vec::new();
            pattern.draw(number, &mut picture);
            Arc::new(picture)
        };
        let ring: Vec<Arc<Vec<u8>>> = (0..count as u64).map(draw).collect();
        if let (Some(inspect), Some(first)) = (self.inspect.take(), ring.first()) {
            inspect(first);
        }
        self.range = 0..self.geometry.bytes();
        // Drawing took its time: the first picture is due when it was done.
        self.epoch = Epoch::at_ns(self.epoch.start_ns().max(now_ns()));
        Pictures::Held(ring, 0..limit)
    }

    /// Sends what the source gives.
    fn run(mut self, fed: Receiver<Picture>, held: Option<(usize, u64)>) -> Result<Sent, NetvError> {
        if let Some(prepare) = self.prepare.take() {
            prepare()?;
        }
        exact_sleep().map_err(NetvError::io("the timer slack of a thread"))?;
        let mut sent = PartSent {
            to: self.to.to_string(),
            lines: self.geometry.height(),
            pace_bps: self.schedule.pace().bps(),
            ..PartSent::default()
        };
        let mut out = Outgoing::new(self.schedule.overhead_bytes());
        let pictures = self.pictures(fed, held);
        let first_ns = self.epoch.start_ns();
        for (number, picture) in pictures {
            let part = picture.get(self.range.clone()).unwrap_or_default();
            if !self.send_picture(number, part, &mut out, &mut sent)? {
                break;
            }
            sent.pictures += 1;
        }
        let summary = out.lateness.summary();
        (sent.lateness_p50_ns, sent.lateness_p99_ns) = (summary.p50, summary.p99);
        sent.lateness_max_ns = summary.max;
        sent.superframes = out.burst.superframes();
        Ok(Sent {
            part: sent,
            first_ns,
            last_ns: out.last_ns.max(first_ns),
        })
    }

    /// Sends this part of one picture, each datagram at its place; `false` when it was stopped.
    fn send_picture(
        &mut self,
        number: u64,
        part: &[u8],
        out: &mut Outgoing,
        sent: &mut PartSent,
    ) -> Result<bool, NetvError> {
        let (mut cursor, stamp) = (Cursor::default(), self.schedule.stamp(number));
        loop {
            let len = self.packetizer.append(&mut cursor, stamp, part, out.burst.room());
            if len == 0 {
                break;
            }
            let slot_ns = self.epoch.mono_ns(self.schedule.place(number, len));
            if slot_ns > out.horizon_ns || out.burst.is_full() {
                self.flush(out, sent)?;
            }
            if out.burst.is_empty() {
                if !wait(slot_ns, &self.stop) {
                    return Ok(false);
                }
                out.horizon_ns = now_ns().max(slot_ns) + TOGETHER_NS;
            }
            out.burst.add(len);
            out.slots_ns.push(slot_ns);
        }
        self.flush(out, sent)?;
        Ok(true)
    }

    /// Sends what is gathered and counts it.
    fn flush(&self, out: &mut Outgoing, sent: &mut PartSent) -> Result<(), NetvError> {
        if out.burst.is_empty() {
            return Ok(());
        }
        let now = now_ns();
        let failed = |(len, e): (usize, std::io::Error)| match e.raw_os_error() {
            Some(libc::EMSGSIZE) => NetvError::BadInput(format!(
                "--mtu: datagrams of {len} bytes do not fit the path to {}",
                self.to
            )),
            _ => NetvError::io(format!("sending to {}", self.to))(e),
        };
        let left = out.burst.flush(&self.socket).map_err(failed)?;
        for slot_ns in out.slots_ns.drain(..) {
            out.lateness.record(now.saturating_sub(slot_ns));
        }
        out.last_ns = now;
        sent.datagrams += left.datagrams;
        sent.frame_bytes += left.bytes + left.datagrams * out.overhead;
        sent.not_sent_datagrams += left.refused;
        sent.calls += left.calls;
        Ok(())
    }
}

/// What a part's thread gathers, and what it knows of what left.
struct Outgoing {
    burst: Burst,
    /// Place in the schedule of each gathered datagram.
    slots_ns: Vec<u64>,
    /// Up to when datagrams leave with those gathered.
    horizon_ns: u64,
    lateness: Histogram,
    overhead: u64,
    last_ns: u64,
}

impl Outgoing {
    fn new(overhead: u64) -> Self {
        Self {
            burst: Burst::new(),
            slots_ns: Vec::new(),
            horizon_ns: 0,
            lateness: Histogram::new(),
            overhead,
            last_ns: 0,
        }
    }
}

/// Sleeps until a time; `false` when it was stopped.
fn wait(due_ns: u64, stop: &AtomicBool) -> bool {
    loop {
        if stop.load(Ordering::Relaxed) {
            return false;
        }
        let now = now_ns();
        if due_ns <= now.saturating_add(NAP_NS) {
            sleep_until(due_ns, 0);
            return true;
        }
        sleep_until(now + NAP_NS, 0);
    }
}
