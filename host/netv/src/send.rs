//! Sends pictures: one thread draws or reads them, one for each part paces its datagrams.
//!
//! ```text
//!     picture n is due at epoch + n / rate; its datagrams are spaced by `core::pace` over 95 % of a picture's time,
//!     so that a late wake-up is made good within the picture
//! ```
//!
//! The pacer counts frame-level bytes (payload, UDP, IP, Ethernet with FCS). A thread sleeps until a datagram's place
//! and sends what is due: how late they leave is measured and reported, the schedule itself is exact.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use kuroshio_clock::{Epoch, exact_sleep, now_ns, sleep_until};
use kuroshio_core::meter::Histogram;
use kuroshio_core::pace::ByteClockPacer;
use kuroshio_core::units::{BitRate, FrameBytes, PS_PER_SEC, PicoDuration, PicoTime};
use kuroshio_core::video::{Cursor, Geometry, Packetizer, rtp_timestamp};
use serde::Serialize;

use crate::PAYLOAD_TYPE;
use crate::error::NetvError;
use crate::source::Source;
use crate::sys;

/// Pictures between the source and a part's thread.
const AHEAD: usize = 2;
/// From the decision to begin to the first picture.
const LEAD_NS: u64 = 50_000_000;
/// Longest sleep between two looks at whether to stop, ns.
const NAP_NS: u64 = 100_000_000;
/// Headers below the payload, MAC header to FCS: Ethernet 18, UDP 8, IP 20 or 40.
const fn overhead(v6: bool) -> u64 {
    18 + 8 + if v6 { 40 } else { 20 }
}

/// Called in a part's thread before it sends: binds it to its rail.
pub type Prepare = Box<dyn FnOnce() -> Result<(), NetvError> + Send>;

/// Where a part goes.
pub struct PartTarget {
    /// The receiver.
    pub to: SocketAddr,
    /// Local address to leave from.
    pub from: Option<SocketAddr>,
    /// What its thread does first.
    pub prepare: Option<Prepare>,
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
#[derive(Debug, Clone, Serialize)]
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

/// When picture `number` is due.
fn due(number: u64, (n, d): (u32, u32)) -> PicoTime {
    let ps = u128::from(number) * u128::from(d) * u128::from(PS_PER_SEC) / u128::from(n.max(1));
    PicoTime::from_ps(u64::try_from(ps).unwrap_or(u64::MAX))
}

/// The rate that spreads `bytes` over 95 % of the time of a picture.
fn pace(bytes: u64, rate: (u32, u32)) -> Option<BitRate> {
    let period = due(1, rate).as_ps() / 100 * 95;
    BitRate::of(bytes, PicoDuration::from_ps(period.max(1)))
}

type Picture = (u64, Arc<Vec<u8>>);

/// Sends to the end of the source, or until it is stopped.
///
/// # Errors
/// A format that cannot be sent so, a socket that cannot be made, a datagram beyond the MTU, or the source's.
pub fn send(config: SendConfig, mut source: Source, stop: &Arc<AtomicBool>) -> Result<SendReport, NetvError> {
    let count = u32::try_from(config.parts.len()).unwrap_or(u32::MAX);
    let mut threads = Vec::new();
    let epoch = Epoch::at_ns(now_ns() + LEAD_NS);
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
        let part = PartSender {
            socket: connect(&target)?,
            to: target.to,
            prepare: target.prepare,
            packetizer,
            range,
            rate: config.rate,
            epoch,
            stop: Arc::clone(stop),
            lines: geometry.height(),
        };
        let (to_part, from_source) = sync_channel::<Picture>(AHEAD);
        let thread = std::thread::Builder::new().name(format!("part-{i}"));
        let handle = thread
            .spawn(move || part.run(&from_source))
            .map_err(NetvError::io("starting a thread"))?;
        threads.push((to_part, handle));
    }
    let (links, handles): (Vec<SyncSender<Picture>>, Vec<_>) = threads.into_iter().unzip();
    let fed = feed(&mut source, &links, config.pictures, epoch, config.rate, stop);
    drop(links);
    let mut parts = Vec::new();
    let (mut rate_fps, mut frame_rate_bps) = (f64::INFINITY, 0);
    for handle in handles {
        let joined = handle
            .join()
            .map_err(|_| NetvError::BadInput("a part's thread ended by itself".into()))?;
        let (sent, last_ns) = joined?;
        let lasted = last_ns.saturating_sub(epoch.start_ns());
        // The last datagram of a picture leaves when 95 % of its time are over.
        let periods = sent.pictures as f64 - 0.05;
        rate_fps = rate_fps.min(if lasted > 0 {
            periods * 1e9 / lasted as f64
        } else {
            0.0
        });
        let bps = BitRate::of(sent.frame_bytes, PicoDuration::from_ns(lasted)).map_or(0, BitRate::bps);
        frame_rate_bps += bps;
        parts.push(sent);
    }
    let (pictures, late_pictures) = fed?;
    Ok(SendReport {
        pictures,
        rate_asked_fps: f64::from(config.rate.0) / f64::from(config.rate.1),
        rate_fps: if rate_fps.is_finite() { rate_fps } else { 0.0 },
        frame_rate_bps,
        late_pictures,
        parts,
        interrupted: stop.load(Ordering::Relaxed),
    })
}

/// Hands pictures to all parts; returns how many, and how many came after they were due.
fn feed(
    source: &mut Source,
    links: &[SyncSender<Picture>],
    limit: Option<u64>,
    epoch: Epoch,
    rate: (u32, u32),
    stop: &AtomicBool,
) -> Result<(u64, u64), NetvError> {
    let (mut number, mut late) = (0, 0);
    while limit.is_none_or(|l| number < l) && !stop.load(Ordering::Relaxed) {
        let mut picture = Vec::new();
        if !source.next(number, &mut picture)? {
            break;
        }
        late += u64::from(now_ns() > epoch.mono_ns(due(number, rate)));
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
    packetizer: Packetizer,
    range: std::ops::Range<usize>,
    rate: (u32, u32),
    epoch: Epoch,
    stop: Arc<AtomicBool>,
    lines: u32,
}

impl PartSender {
    /// Sends what the source gives. Returns also the last departure, ns.
    fn run(mut self, from_source: &Receiver<Picture>) -> Result<(PartSent, u64), NetvError> {
        if let Some(prepare) = self.prepare.take() {
            prepare()?;
        }
        exact_sleep().map_err(NetvError::io("the timer slack of a thread"))?;
        let overhead = overhead(self.to.is_ipv6());
        let (count, bytes) = self.packetizer.per_picture();
        let pace = pace(bytes + count * overhead, self.rate);
        let pace = pace.ok_or_else(|| NetvError::BadInput("--fps: too slow to pace".into()))?;
        let mut pacer =
            ByteClockPacer::new(pace).map_err(|e| NetvError::BadInput(format!("--fps, --size: {e}")))?;
        let mut sent = PartSent {
            to: self.to.to_string(),
            lines: self.lines,
            pace_bps: pace.bps(),
            ..PartSent::default()
        };
        let (mut lateness, mut datagram) = (Histogram::new(), Vec::new());
        let mut last_ns = self.epoch.start_ns();
        for (number, picture) in from_source {
            let part = picture.get(self.range.clone()).unwrap_or_default();
            let stamp = rtp_timestamp(number, self.rate.0, self.rate.1);
            let (mut cursor, ready) = (Cursor::default(), due(number, self.rate));
            while self.packetizer.next(&mut cursor, stamp, part, &mut datagram) {
                let len = datagram.len() as u64 + overhead;
                let slot_ns = self
                    .epoch
                    .mono_ns(pacer.depart(ready, FrameBytes::new(len)).start);
                if !wait(slot_ns, &self.stop) {
                    break;
                }
                let now = now_ns();
                lateness.record(now.saturating_sub(slot_ns));
                if self.push(&datagram)? {
                    sent.datagrams += 1;
                    sent.frame_bytes += len;
                } else {
                    sent.not_sent_datagrams += 1;
                }
                last_ns = now;
            }
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            sent.pictures += 1;
        }
        let summary = lateness.summary();
        (sent.lateness_p50_ns, sent.lateness_p99_ns) = (summary.p50, summary.p99);
        sent.lateness_max_ns = summary.max;
        Ok((sent, last_ns))
    }

    /// Sends one datagram; `false` when the kernel had no room.
    fn push(&self, datagram: &[u8]) -> Result<bool, NetvError> {
        loop {
            let Err(e) = self.socket.send(datagram) else {
                return Ok(true);
            };
            match (e.kind(), e.raw_os_error()) {
                // An ICMP error of an earlier datagram, which is told once; and signals.
                (io::ErrorKind::ConnectionRefused | io::ErrorKind::Interrupted, _) => {}
                (_, Some(libc::ENOBUFS | libc::EAGAIN)) => return Ok(false),
                (_, Some(libc::EMSGSIZE)) => {
                    return Err(NetvError::BadInput(format!(
                        "--mtu: datagrams of {} bytes do not fit the path to {}",
                        datagram.len(),
                        self.to
                    )));
                }
                _ => return Err(NetvError::io(format!("sending to {}", self.to))(e)),
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_are_due_exactly() {
        assert_eq!(due(30_000, (30_000, 1_001)), PicoTime::from_secs(1_001));
        assert_eq!(due(1, (30, 1)).as_ps(), 33_333_333_333);
        assert_eq!(due(0, (0, 1)), PicoTime::ZERO);
    }

    #[test]
    fn a_picture_fills_95_percent_of_its_time() {
        let rate = pace(1_000_000, (25, 1)).expect("a rate");
        assert_eq!(rate.bps(), 1_000_000 * 8 * 25 * 100 / 95);
    }
}
