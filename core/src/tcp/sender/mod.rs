//! The sending end.
//!
//! ```text
//!                     loss found                       all of it acknowledged
//!   Open <-> Disorder ----------> Recovery ------------------------------------> Open
//!     |  local queue full             |  RTO
//!     +----------------> Cwr          +----------> Loss -----------------------> Open
//! ```
//!
//! What may be sent, in this order: a lost segment, else the next one, while
//! `in flight < cwnd`, the receiver's window and the send buffer have room, the host's CPU is free, the
//! interface queue has not refused, and the pacer lets it.
//!
//! The states are those of Linux (`tcp_ca_state`); see [`Profile`](super::Profile) for what differs between
//! the stacks, and `recovery` for the rules.

mod config;
mod recovery;

pub use config::{Cut, LocalCongestion, Pacing, SenderConfig, SenderStats};

use super::{
    cc::{Acked, Any, CongestionControl},
    profile::Detection,
    rtt::RttEstimator,
    scoreboard::Scoreboard,
    segment::{Kind, Segment},
    window::Window,
};
use crate::{
    pace::{ByteClockPacer, PaceError, window_rate},
    units::{BitRate, PicoDuration, PicoTime},
};

/// Largest congestion window, segments.
const CWND_MAX: u32 = 1 << 22;
/// Most attempts to connect (Linux `tcp_syn_retries`, 5 at 2.6.14).
const SYN_ATTEMPTS: u32 = 6;

/// What a sender is doing (Linux `tcp_ca_state` and before).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Before its start, or given up.
    Closed,
    /// Waiting for the answer to its SYN.
    Connecting,
    /// Nothing is missing.
    Open,
    /// Something is missing, it may only be late.
    Disorder,
    /// The window comes down after local congestion.
    Cwr,
    /// Something is lost and sent again.
    Recovery,
    /// Everything was lost, and is sent again from slow start.
    Loss,
}

/// The sender of a connection.
#[derive(Debug, Clone)]
pub struct Sender {
    config: SenderConfig,
    control: Any,
    window: Window,
    rtt: RttEstimator,
    board: Scoreboard,
    state: State,
    /// Recovery ends when everything below it is acknowledged.
    high_seq: u64,
    /// PRR: window before, segments delivered and sent since (RFC 6937).
    prior_cwnd: u32,
    delivered_in_recovery: u32,
    sent_in_recovery: u32,
    /// Right edge of the receiver's window, bytes.
    edge: u64,
    most_in_flight: u32,
    timer: Option<PicoTime>,
    syns: u32,
    /// The CPU, or its reaction, is busy until then.
    busy_to: PicoTime,
    /// The interface queue refused: until the next ACK, or then.
    refused_to: Option<PicoTime>,
    pacer: Option<ByteClockPacer>,
    wakeup: Option<PicoTime>,
    random: u64,
    stats: SenderStats,
    cuts: u64,
    last_cut: Option<Cut>,
}

impl Sender {
    /// A sender that connects at its start.
    pub fn new(config: SenderConfig) -> Self {
        let profile = config.profile;
        let initial = profile.initial_window(config.sizes.mss);
        let pacer = match config.pacing {
            Pacing::None => None,
            Pacing::Rate(rate) => ByteClockPacer::new(rate).ok(),
            // Until the first RTT is known nothing is sent that could be paced.
            Pacing::Window => ByteClockPacer::new(BitRate::from_mbps(1)).ok(),
        };
        Sender {
            control: Any::new(config.algorithm, &profile, config.fast_alpha),
            window: Window::new(initial, CWND_MAX, profile.counting),
            rtt: RttEstimator::new(profile.rto_initial, profile.rto_floor),
            board: Scoreboard::default(),
            state: State::Closed,
            high_seq: 0,
            prior_cwnd: 0,
            delivered_in_recovery: 0,
            sent_in_recovery: 0,
            edge: 0,
            most_in_flight: 0,
            timer: Some(config.start),
            syns: 0,
            busy_to: PicoTime::ZERO,
            refused_to: None,
            pacer,
            wakeup: None,
            random: config.seed,
            stats: SenderStats::default(),
            cuts: 0,
            last_cut: None,
            config,
        }
    }

    /// Its configuration.
    pub fn config(&self) -> &SenderConfig {
        &self.config
    }

    /// Sends at `rate` (frame level) from the end of the segment sent last, as a socket whose `SO_MAX_PACING_RATE` is changed.
    ///
    /// # Errors
    /// A rate beyond the pacer's range; the one before stays.
    pub fn set_pace(&mut self, rate: BitRate) -> Result<(), PaceError> {
        match &mut self.pacer {
            Some(pacer) => pacer.set_rate(rate)?,
            None => self.pacer = Some(ByteClockPacer::new(rate)?),
        }
        self.config.pacing = Pacing::Rate(rate);
        Ok(())
    }

    /// What it is doing.
    pub fn state(&self) -> State {
        self.state
    }

    /// Its congestion window.
    pub fn window(&self) -> &Window {
        &self.window
    }

    /// Its round-trip time.
    pub fn rtt(&self) -> &RttEstimator {
        &self.rtt
    }

    /// Segments that it takes to be on the way.
    pub fn in_flight(&self) -> u32 {
        self.board.in_flight()
    }

    /// Payload acknowledged, bytes.
    pub fn acknowledged(&self) -> u64 {
        self.bytes_at(self.board.una())
    }

    /// Bytes between what is acknowledged and the receiver's right edge.
    pub fn peer_window(&self) -> u64 {
        self.edge.saturating_sub(self.acknowledged())
    }

    /// What was done so far.
    pub fn stats(&self) -> SenderStats {
        self.stats
    }

    /// How often the window was cut, and the latest cut.
    pub fn cuts(&self) -> (u64, Option<Cut>) {
        (self.cuts, self.last_cut)
    }

    /// Whether a finite source is sent and acknowledged.
    pub fn finished(&self) -> bool {
        self.config
            .source_bytes
            .is_some_and(|bytes| self.board.una() >= self.segments_of(bytes))
    }

    /// The rate of one window per round trip at frame level: `frame * cwnd / RTT` (paper 001, dynamic
    /// pacing), of the smoothed RTT without the time `waiting` that frames spend in the sender's own
    /// interface. `None` before the first RTT, and when nothing is left of it.
    pub fn window_rate(&self, waiting: PicoDuration) -> Option<BitRate> {
        let frame = self.config.sizes.full_frame();
        let rtt = self.rtt.smoothed()?.as_ps().checked_sub(waiting.as_ps())?;
        window_rate(frame, self.window.cwnd, PicoDuration::from_ps(rtt), None)
    }

    fn segments_of(&self, bytes: u64) -> u64 {
        bytes.div_ceil(u64::from(self.config.sizes.mss))
    }

    /// The first byte of a segment.
    fn bytes_at(&self, segment: u64) -> u64 {
        let at = segment * u64::from(self.config.sizes.mss);
        self.config.source_bytes.map_or(at, |bytes| at.min(bytes))
    }

    /// A segment has arrived.
    #[inline]
    pub fn handle_segment(&mut self, now: PicoTime, segment: &Segment) {
        match segment.kind {
            Kind::SynAck if self.state == State::Connecting => {
                self.state = State::Open;
                self.edge = u64::from(segment.window);
                self.rtt.sample(now - segment.echo);
                self.control.init(&mut self.window);
                self.timer = None;
                self.react(now);
            }
            Kind::Ack if !matches!(self.state, State::Closed | State::Connecting) => {
                self.handle_ack(now, segment);
                self.react(now);
            }
            _ => {}
        }
    }

    /// The time that the host takes to react to an arrival: drawn anew for each.
    #[inline]
    fn react(&mut self, now: PicoTime) {
        let mut ready = self.busy_to.max(now) + self.config.cpu_per_ack;
        let most = self.config.reaction_max.as_ps();
        if most > 0 {
            let drawn = u128::from(crate::sim::split_mix(&mut self.random));
            // Below `most`, a u64. Delays do not add up: they do not limit the rate.
            let delay = PicoDuration::from_ps(((drawn * u128::from(most)) >> 64) as u64);
            ready = ready.max(now + delay);
        }
        self.busy_to = ready;
    }

    #[inline]
    fn handle_ack(&mut self, now: PicoTime, segment: &Segment) {
        let to = self.segments_of(segment.ack);
        if to < self.board.una() || to > self.board.nxt() {
            return;
        }
        self.refused_to = None;
        let in_flight = self.board.in_flight();
        let edge = segment.ack + u64::from(segment.window);
        let opened = edge > self.edge;
        self.edge = self.edge.max(edge);
        let advance = self.board.acknowledge(to);
        let mut sacked = 0;
        if !segment.sack.is_empty() {
            let mss = u64::from(self.config.sizes.mss);
            for block in segment.sack.above(segment.ack) {
                sacked += self.board.sack(block.start / mss, block.end.div_ceil(mss));
            }
        }
        let mut measured = None;
        if advance.segments > 0 {
            let rtt = now - segment.echo;
            self.rtt.sample(rtt);
            measured = Some(rtt);
            self.stats.acked_segments += u64::from(advance.segments);
        }
        let acked = Acked {
            now,
            segments: advance.segments,
            acked_to: self.board.una(),
            sent_to: self.board.nxt(),
            rtt: measured,
            least_rtt: self.rtt.least(),
            smoothed_rtt: self.rtt.smoothed(),
            open: self.state == State::Open && sacked == 0,
        };
        if advance.segments > 0 {
            self.control.measured(&mut self.window, &acked);
        }
        let dubious = sacked > 0 || self.state != State::Open || (advance.segments == 0 && !opened);
        self.steer(&acked, advance.fresh + sacked, in_flight, dubious);
        self.stats.cwnd_max = self.stats.cwnd_max.max(self.window.cwnd);
        if advance.segments > 0 {
            self.arm(now);
        }
    }

    /// Starts the retransmission timer anew, or stops it when nothing is on the way.
    #[inline]
    fn arm(&mut self, now: PicoTime) {
        self.timer = (self.board.outstanding() > 0).then(|| now + self.rtt.rto());
    }

    /// Works off a timer that has expired.
    fn expire(&mut self, now: PicoTime) -> Option<Segment> {
        match self.state {
            State::Closed | State::Connecting => {
                self.syns += 1;
                if self.syns > SYN_ATTEMPTS {
                    self.state = State::Closed;
                    self.timer = None;
                    return None;
                }
                self.state = State::Connecting;
                self.timer = Some(now + self.rtt.rto());
                self.rtt.back_off();
                self.stats.sent_segments += 1;
                Some(Segment::bare(Kind::Syn, now))
            }
            _ => {
                self.enter_loss(now);
                None
            }
        }
    }

    /// Works off the retransmission timer alone, for a host that cannot take a segment now.
    pub fn handle_timer(&mut self, now: PicoTime) {
        let open = !matches!(self.state, State::Closed | State::Connecting);
        if open && self.timer.is_some_and(|at| at <= now) {
            self.enter_loss(now);
        }
    }

    /// Until when its CPU, or its reaction, is busy.
    pub fn busy_to(&self) -> PicoTime {
        self.busy_to
    }

    /// When the timer expires.
    pub fn next_timer(&self) -> Option<PicoTime> {
        self.timer
    }

    /// The next segment to be sent now, if there is one.
    #[inline]
    pub fn poll_transmit(&mut self, now: PicoTime) -> Option<Segment> {
        self.wakeup = None;
        if self.timer.is_some_and(|at| at <= now)
            && let Some(segment) = self.expire(now)
        {
            return Some(segment);
        }
        if matches!(self.state, State::Closed | State::Connecting) || self.waits(now) {
            return None;
        }
        if self.board.in_flight() >= self.window.cwnd {
            return None;
        }
        let again = self.board.has_pending();
        if !again && !self.next_fits() {
            return None;
        }
        if self.paced(now) {
            return None;
        }
        let number = match again {
            true => self.board.resend(),
            false => None,
        };
        let (number, again) = match number {
            Some(number) => (number, true),
            // What was pending has arrived meanwhile.
            None if !self.next_fits() => return None,
            None => (self.board.send_next(self.remembers()), false),
        };
        Some(self.segment(now, number, again))
    }

    fn remembers(&self) -> bool {
        self.config.profile.detection == Detection::Rack
    }

    /// Whether CPU or interface queue have to be waited for.
    #[inline]
    fn waits(&mut self, now: PicoTime) -> bool {
        if let Some(until) = self.refused_to {
            if until > now {
                self.wakeup = (until != PicoTime::MAX).then_some(until);
                return true;
            }
            self.refused_to = None;
        }
        if self.busy_to > now {
            self.wakeup = Some(self.busy_to);
            return true;
        }
        false
    }

    /// Whether the next segment is there and has room.
    #[inline]
    fn next_fits(&self) -> bool {
        let (next, mss) = (self.board.nxt(), u64::from(self.config.sizes.mss));
        let start = next * mss;
        let mut end = start + mss;
        if let Some(bytes) = self.config.source_bytes {
            if start >= bytes {
                return false;
            }
            end = end.min(bytes);
        }
        let buffered = end - self.board.una() * mss;
        end <= self.edge && buffered <= self.config.send_buffer
    }

    /// Whether the pacer has to be waited for; takes the place when not.
    #[inline]
    fn paced(&mut self, now: PicoTime) -> bool {
        let Some(pacer) = &mut self.pacer else {
            return false;
        };
        if pacer.free_at() > now {
            self.wakeup = Some(pacer.free_at());
            return true;
        }
        false
    }

    fn segment(&mut self, now: PicoTime, number: u64, again: bool) -> Segment {
        let (seq, end) = (self.bytes_at(number), self.bytes_at(number + 1));
        let mut segment = Segment::bare(Kind::Data, now);
        segment.seq = seq;
        // At most one MSS, a u32.
        segment.len = (end - seq) as u32;
        self.stats.sent_segments += 1;
        self.stats.resent_segments += u64::from(again);
        self.sent_in_recovery += 1;
        self.most_in_flight = self.most_in_flight.max(self.board.in_flight());
        if self.config.pacing == Pacing::Window
            && let Some(rate) = self.window_rate(PicoDuration::ZERO)
            && let Some(pacer) = &mut self.pacer
        {
            // A rate that cannot be paced keeps the last one.
            let _ = pacer.set_rate(rate);
        }
        if let Some(pacer) = &mut self.pacer {
            pacer.depart(now, self.config.sizes.frame(&segment));
        }
        if self.config.cpu_per_frame > PicoDuration::ZERO {
            self.busy_to = self.busy_to.max(now) + self.config.cpu_per_frame;
        }
        // The first segment sent again has all its time again (Linux `tcp_xmit_retransmit_queue`).
        if self.timer.is_none() || (again && number == self.board.una()) {
            self.arm(now);
        }
        segment
    }

    /// The interface queue refused the segment that `poll_transmit` has just returned: it was not sent.
    ///
    /// Linux 2.6.14 (`tcp_transmit_skb`, `tcp_write_xmit`) reduces the window as after a mark of congestion
    /// and tries again on the next ACK; Web100's `WAD_IFQ` leaves the window alone.
    pub fn handle_local_drop(&mut self, now: PicoTime, segment: &Segment) {
        if segment.kind != Kind::Data {
            return;
        }
        self.stats.sent_segments -= 1;
        self.stats.local_drops += 1;
        let number = segment.seq / u64::from(self.config.sizes.mss);
        if number + 1 == self.board.nxt() && self.board.is_first_transmission(number) {
            self.board.take_back();
        } else {
            self.stats.resent_segments -= 1;
            self.board.take_back_resent(number);
        }
        if self.board.outstanding() == 0 {
            self.timer = None;
        }
        self.refused_to = Some(match self.board.in_flight() {
            0 => now + self.rtt.rto(),
            _ => PicoTime::MAX,
        });
        if self.config.local_congestion == LocalCongestion::Reduce {
            self.enter_cwr(now);
        }
    }

    /// When it will next have something to do, if nothing arrives: asked after `poll_transmit` was `None`.
    #[inline]
    pub fn next_wakeup(&self) -> Option<PicoTime> {
        match (self.timer, self.wakeup) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }
}
