//! One side of a test while data flows: streams, sampler, pace.
//!
//! The session's own thread calls [`Run::tick`] every [`TICK_NS`]: it looks at every stream, renews the pace
//! of those that send, adds a point to the start-up curve, and closes a report interval when its time has
//! come. Counting begins anew at the end of the omitted time, which is time 0 of every report.

use crate::cpu::{Cpu, MachinePercent, MachineTicks};
use crate::error::ProbeError;
use crate::params::{Direction, Length, Pace, Params, Protocol};
use crate::results::{CpuPercent, StreamResult};
use crate::sample::{Extremes, Look, Looker, StreamSpan};
use crate::startup::{Curve, Point};
use crate::stream::{self, DataSocket, Phase, Quota, Shared, SharedPhase, Work};
use kuroshio_clock::now_ns;
use kuroshio_core::units::BitRate;
use kuroshio_sock::{
    Framing, TcpInfo, Trim, congestion, follow_window, is_ipv6, keep_pacing, set_notsent_lowat, tcp_info,
};
use std::sync::Arc;
use std::thread::JoinHandle;

/// Time between two looks at the streams, nanoseconds: also how often a pace is renewed.
pub const TICK_NS: u64 = 100_000_000;
/// Stream-intervals that are kept at most; later ones are printed and not kept.
pub const MAX_STREAM_INTERVALS: usize = 200_000;
/// Unsent bytes that a paced sender keeps in its socket: 20 ms of data, between these.
const LOWAT_BYTES: std::ops::RangeInclusive<u64> = (128 << 10)..=(4 << 20);
const LOWAT_NS: u128 = 20_000_000;
/// Longest wait for data that is still on its way after the end of a test by bytes, nanoseconds.
const DRAIN_NS: u64 = 2_000_000_000;

/// All streams over one report interval.
#[derive(Clone, Debug, PartialEq)]
pub struct Interval {
    /// Whether it counts for nothing.
    pub omitted: bool,
    /// The streams, in the order of their numbers.
    pub streams: Vec<StreamSpan>,
}

/// One stream at the end.
#[derive(Clone, Debug)]
pub struct StreamTotal {
    /// What is counted: the run less the omitted time.
    pub span: StreamSpan,
    /// What the numbers of the other side count too.
    pub result: StreamResult,
    /// Extremes of a TCP sender.
    pub extremes: Extremes,
    /// The connection at the end.
    pub info: Option<TcpInfo>,
    /// Congestion control in use.
    pub congestion: Option<String>,
    /// Why it ended early.
    pub failure: Option<String>,
}

/// One side at the end.
#[derive(Clone, Debug)]
pub struct RunReport {
    /// The report intervals.
    pub intervals: Vec<Interval>,
    /// The streams.
    pub streams: Vec<StreamTotal>,
    /// Bytes over time.
    pub curve: Curve,
    /// Processor time of this side.
    pub cpu: CpuPercent,
    /// The machine's, by kind.
    pub machine: Option<MachinePercent>,
}

/// A stream that was made and does not run yet.
#[derive(Debug)]
pub(crate) struct Made {
    pub id: u32,
    pub sends: bool,
    pub socket: DataSocket,
}

#[derive(Debug)]
struct Live {
    made: Made,
    shared: Arc<Shared>,
    work: Option<Work>,
    thread: Option<JoinHandle<Cpu>>,
    looker: Looker,
    pace: Option<BitRate>,
    trim: Trim,
    /// When a stream that follows its window looks at it again, nanoseconds of `CLOCK_MONOTONIC`.
    follow_ns: Option<u64>,
    /// The last look, the one at the begin of the interval, and the one at the begin of what counts.
    last: Look,
    interval: Look,
    zero: Look,
    extremes: Extremes,
}

/// One side of a running test.
#[derive(Debug)]
pub(crate) struct Run {
    streams: Vec<Live>,
    phase: SharedPhase,
    length: Length,
    protocol: Protocol,
    direction: Direction,
    interval_ns: u64,
    start_ns: u64,
    zero_ns: u64,
    omitting: bool,
    next_tick_ns: u64,
    next_report_ns: u64,
    kept: usize,
    intervals: Vec<Interval>,
    curve: Curve,
    cpu: Cpu,
    machine: MachineTicks,
}

impl Run {
    /// Makes everything but the threads. `quota` bounds what this side's senders send in sum. Counting begins
    /// here, so that it is to be called before the other side may send.
    ///
    /// # Errors
    /// A socket that is gone.
    pub(crate) fn prepare(
        made: Vec<Made>,
        params: &Params,
        interval_ns: u64,
        quota: Option<u64>,
    ) -> Result<Self, ProbeError> {
        let quota = quota.map(|bytes| Arc::new(Quota::new(bytes)));
        let streams = made.into_iter().map(|made| live(made, params, quota.clone()));
        Ok(Self {
            streams: streams.collect::<Result<_, _>>()?,
            phase: SharedPhase::default(),
            length: params.length,
            protocol: params.protocol,
            direction: params.direction,
            interval_ns,
            start_ns: 0,
            zero_ns: u64::from(params.omit_s) * 1_000_000_000,
            omitting: params.omit_s > 0,
            next_tick_ns: 0,
            next_report_ns: 0,
            kept: 0,
            intervals: Vec::new(),
            curve: Curve::default(),
            cpu: Cpu::default(),
            machine: MachineTicks::default(),
        })
    }

    /// Starts the threads and the time.
    ///
    /// # Errors
    /// A socket that is gone, a thread that cannot be made.
    pub(crate) fn start(&mut self) -> Result<(), ProbeError> {
        (self.cpu, self.machine) = (Cpu::of_this_thread(), MachineTicks::now());
        self.start_ns = now_ns();
        self.zero_ns += self.start_ns;
        self.next_tick_ns = self.start_ns + TICK_NS;
        self.next_report_ns = self.start_ns + self.interval_ns;
        for live in &mut self.streams {
            live.last.at_ns = self.start_ns;
            (live.interval, live.zero) = (live.last, live.last);
        }
        self.push_point(self.start_ns);
        for live in &mut self.streams {
            let Some(work) = live.work.take() else { continue };
            let shared = Arc::clone(&live.shared);
            live.thread = Some(stream::start(
                &live.made.socket,
                work,
                shared,
                self.phase.clone(),
            )?);
        }
        Ok(())
    }

    /// When [`Run::tick`] is due, nanoseconds of `CLOCK_MONOTONIC`.
    pub(crate) fn next_tick_ns(&self) -> u64 {
        let omit = if self.omitting { self.zero_ns } else { u64::MAX };
        let follow = self.streams.iter().filter_map(|live| live.follow_ns).min();
        let look = self.next_tick_ns.min(follow.unwrap_or(u64::MAX));
        look.min(self.next_report_ns).min(omit)
    }

    /// When a timed test ends, nanoseconds of `CLOCK_MONOTONIC`.
    pub(crate) fn end_ns(&self) -> u64 {
        match self.length {
            Length::Time(ns) => self.zero_ns.saturating_add(ns),
            Length::Bytes(_) => u64::MAX,
        }
    }

    /// When the data began, nanoseconds of `CLOCK_MONOTONIC`.
    pub(crate) fn start_ns(&self) -> u64 {
        self.start_ns
    }

    /// Looks at the streams; gives the interval that ended, if one did.
    pub(crate) fn tick(&mut self) -> Option<Interval> {
        let now = now_ns();
        self.follow(now);
        let omit_ends = self.omitting && now >= self.zero_ns;
        if now < self.next_tick_ns && now < self.next_report_ns && !omit_ends {
            return None;
        }
        self.look();
        self.push_point(now);
        while self.next_tick_ns <= now {
            self.next_tick_ns += TICK_NS;
        }
        if omit_ends {
            return self.end_of_omission();
        }
        if now < self.next_report_ns {
            return None;
        }
        while self.next_report_ns <= now {
            self.next_report_ns += self.interval_ns;
        }
        Some(self.close_interval(self.omitting))
    }

    /// Streams that follow their window are told the rate of this moment, when it is time.
    fn follow(&mut self, now: u64) {
        for live in &mut self.streams {
            let Some(socket) = live
                .made
                .socket
                .tcp()
                .filter(|_| live.follow_ns.is_some_and(|at| at <= now))
            else {
                continue;
            };
            // A connection that is gone needs no pace.
            let after =
                follow_window(socket, live.pace).map_or(TICK_NS, |(_, after)| after.as_nanos() as u64);
            live.follow_ns = Some(now + after);
        }
    }

    /// Counting begins anew; the rest of the omitted time is an interval of its own.
    fn end_of_omission(&mut self) -> Option<Interval> {
        let begun = self.streams.first().map_or(0, |live| live.interval.at_ns);
        let rest = self.zero_ns.saturating_sub(begun) > self.interval_ns / 100;
        let interval = rest.then(|| self.close_interval(true));
        self.omitting = false;
        // What counts begins when it was looked at.
        self.zero_ns = self.streams.first().map_or(self.zero_ns, |live| live.last.at_ns);
        for live in &mut self.streams {
            (live.interval, live.zero) = (live.last, live.last);
            live.extremes = Extremes::default();
        }
        self.next_report_ns = self.zero_ns + self.interval_ns;
        interval
    }

    fn close_interval(&mut self, omitted: bool) -> Interval {
        // Omitted intervals count from the begin of the data, as iperf3's do.
        let zero_ns = if omitted { self.start_ns } else { self.zero_ns };
        let spans = self.streams.iter_mut().map(|live| {
            let from = std::mem::replace(&mut live.interval, live.last);
            StreamSpan::between(live.made.id, live.made.sends, &from, &live.last, zero_ns)
        });
        let interval = Interval {
            omitted,
            streams: spans.collect(),
        };
        if self.kept + interval.streams.len() <= MAX_STREAM_INTERVALS {
            self.kept += interval.streams.len();
            self.intervals.push(interval.clone());
        }
        interval
    }

    fn look(&mut self) {
        for live in &mut self.streams {
            live.last = live.looker.look(&live.made.socket, &live.shared);
            if let Some(info) = live.last.info.as_ref().filter(|_| live.made.sends) {
                live.extremes.take(info);
            }
            let keeps = live.pace.filter(|_| live.follow_ns.is_none());
            if let (Some(rate), Some(socket)) = (keeps, live.made.socket.tcp()) {
                // A connection that is gone needs no pace.
                let _ = keep_pacing(socket, Some(rate), &mut live.trim);
            }
        }
    }

    fn push_point(&mut self, at_ns: u64) {
        let sends = self.streams.iter().any(|live| live.made.sends);
        let bytes = self.streams.iter().filter(|live| live.made.sends == sends);
        self.curve.push(Point {
            at_ns: at_ns - self.start_ns,
            bytes: bytes.map(|live| live.last.arrived).sum(),
        });
    }

    /// Payload bytes of what counts, on the streams on which this side sends or receives.
    pub(crate) fn counted_bytes(&self, sends: bool) -> u64 {
        let these = self.streams.iter().filter(|live| live.made.sends == sends);
        these
            .map(|live| live.shared.bytes().saturating_sub(live.zero.bytes))
            .sum()
    }

    /// Payload bytes of the whole run.
    pub(crate) fn all_bytes(&self) -> u64 {
        self.streams.iter().map(|live| live.shared.bytes()).sum()
    }

    /// Whether the client's end has come: the time is over, or the bytes have gone and, with TCP, were all
    /// acknowledged.
    pub(crate) fn is_complete(&self) -> bool {
        match self.length {
            Length::Time(_) => !self.omitting && now_ns() >= self.end_ns(),
            Length::Bytes(bytes) => {
                let received = self.direction != Direction::Forward && self.counted_bytes(false) >= bytes;
                let sent = self.direction != Direction::Reverse && self.counted_bytes(true) >= bytes;
                received || sent && self.is_acknowledged()
            }
        }
    }

    fn is_acknowledged(&self) -> bool {
        let mut senders = self.streams.iter().filter(|live| live.made.sends);
        self.protocol == Protocol::Udp
            || senders.all(|live| {
                let info = live.made.socket.tcp().and_then(|s| tcp_info(s).ok());
                info.is_none_or(|i| i.notsent_bytes == 0 && i.unacked_segments == 0)
            })
    }

    /// The first stream that broke.
    pub(crate) fn failure(&self) -> Option<ProbeError> {
        self.streams.iter().find_map(|live| {
            let what = live.shared.failure()?;
            let id = live.made.id;
            Some(ProbeError::Stream { id, what })
        })
    }

    /// Takes the last look. Senders end; receivers go on reading, so that the other side can finish what it is
    /// writing, but it counts for nothing any more.
    pub(crate) fn halt(&mut self) {
        self.look();
        self.phase.set(Phase::Draining);
        self.last_point();
    }

    /// As [`Run::halt`], after reading what has arrived or still arrives within 2 s. What was counted later
    /// belongs to the moment of the call.
    pub(crate) fn drain_and_halt(&mut self) {
        let ended_ns = now_ns();
        self.phase.set(Phase::Draining);
        let unfinished =
            |live: &Live| !live.made.sends && live.thread.as_ref().is_some_and(|t| !t.is_finished());
        while self.streams.iter().any(unfinished) && now_ns() < ended_ns + DRAIN_NS {
            kuroshio_clock::sleep_until(now_ns() + 1_000_000, 0);
        }
        self.phase.set(Phase::Stopped);
        self.look();
        for live in &mut self.streams {
            live.last.at_ns = ended_ns;
        }
        self.last_point();
    }

    fn last_point(&mut self) {
        if let Some(at_ns) = self.streams.first().map(|live| live.last.at_ns) {
            self.push_point(at_ns.max(self.start_ns));
        }
        if self.omitting {
            // Ended before anything counted.
            for live in &mut self.streams {
                live.zero = live.last;
            }
            self.zero_ns = self.streams.first().map_or(self.zero_ns, |l| l.last.at_ns);
        }
    }

    /// Waits for the threads and puts everything together. Gives the interval that the end cut short, too.
    pub(crate) fn report(mut self) -> (RunReport, Option<Interval>) {
        self.phase.set(Phase::Stopped);
        let last_ns = self.streams.first().map_or(self.start_ns, |live| live.last.at_ns);
        let wall_us = last_ns.saturating_sub(self.start_ns) / 1_000;
        let begun = self.streams.first().map_or(0, |live| live.interval.at_ns);
        let ended = self.streams.first().map_or(0, |live| live.last.at_ns);
        let rest = !self.omitting && ended.saturating_sub(begun) > self.interval_ns / 100;
        let last = rest.then(|| self.close_interval(false));
        let mut cpu = Cpu::of_this_thread().since(self.cpu);
        for live in &mut self.streams {
            if let Some(used) = live.thread.take().and_then(|thread| thread.join().ok()) {
                cpu += used;
            }
        }
        let percent = |us: u64| 100.0 * us as f64 / wall_us.max(1) as f64;
        let streams = self.streams.iter().map(|live| self.total(live)).collect();
        let report = RunReport {
            cpu: CpuPercent {
                total: percent(cpu.user_us + cpu.system_us),
                user: percent(cpu.user_us),
                system: percent(cpu.system_us),
            },
            machine: MachineTicks::now().since(self.machine),
            streams,
            intervals: std::mem::take(&mut self.intervals),
            curve: std::mem::take(&mut self.curve),
        };
        (report, last)
    }

    fn total(&self, live: &Live) -> StreamTotal {
        let (id, sends) = (live.made.id, live.made.sends);
        let span = StreamSpan::between(id, sends, &live.zero, &live.last, self.zero_ns);
        let tcp = live.made.socket.tcp();
        StreamTotal {
            result: StreamResult {
                id,
                bytes: span.bytes,
                retransmits: (sends && tcp.is_some()).then_some(span.retransmits),
                jitter_s: live.last.jitter_s,
                errors: live.last.lost,
                omitted_errors: live.zero.lost,
                packets: live.last.highest,
                omitted_packets: live.zero.highest,
                start_s: 0.0,
                end_s: span.end_s,
            },
            span,
            extremes: live.extremes,
            info: live.last.info,
            congestion: tcp.and_then(|s| congestion(s).ok()),
            failure: live.shared.failure(),
        }
    }
}

impl Drop for Run {
    /// No thread outlives its test.
    fn drop(&mut self) {
        self.phase.set(Phase::Stopped);
        for live in &mut self.streams {
            if let Some(thread) = live.thread.take() {
                let _ = thread.join();
            }
        }
    }
}

fn live(made: Made, params: &Params, quota: Option<Arc<Quota>>) -> Result<Live, ProbeError> {
    let ipv6 = is_ipv6(&made.socket).map_err(ProbeError::io("a stream's address"))?;
    let datagram = match params.protocol {
        Protocol::Udp => Framing::of_datagram(params.block(), ipv6),
        Protocol::Tcp => None,
    };
    let framing = match made.socket.tcp() {
        Some(socket) => tcp_info(socket).ok().and_then(|info| info.framing(ipv6)),
        None => datagram,
    };
    let pace = match params.pace {
        Pace::None => None,
        Pace::Frame(rate) => Some(rate),
        Pace::Goodput(rate) => framing.map(|f| f.frame_level(rate)),
    }
    .filter(|_| made.sends);
    let mut trim = Trim::default();
    let follows = params.follow_window && made.sends && made.socket.tcp().is_some();
    if let (Some(rate), Some(socket)) = (pace, made.socket.tcp()) {
        keep_pacing(socket, Some(rate), &mut trim).map_err(ProbeError::io("pacing rate"))?;
        let bytes = u128::from(rate.bps()) * LOWAT_NS / 8_000_000_000;
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let lowat = bytes.clamp(*LOWAT_BYTES.start(), *LOWAT_BYTES.end());
        set_notsent_lowat(socket, u32::try_from(lowat).unwrap_or(u32::MAX))
            .map_err(ProbeError::io("TCP_NOTSENT_LOWAT"))?;
    }
    let shared = Arc::new(Shared::default());
    let work = Work {
        sends: made.sends,
        block: params.block(),
        zerocopy: params.zerocopy,
        wide_counters: params.wide_counters,
        udp_rate: pace.filter(|_| params.protocol == Protocol::Udp),
        ipv6,
        quota: quota.filter(|_| made.sends),
    };
    let mut looker = Looker::new(made.sends, ipv6, datagram);
    let first = looker.look(&made.socket, &shared);
    Ok(Live {
        looker,
        made,
        shared,
        work: Some(work),
        thread: None,
        pace,
        trim,
        follow_ns: follows.then(now_ns),
        last: first,
        interval: first,
        zero: first,
        extremes: Extremes::default(),
    })
}
