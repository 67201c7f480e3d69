//! Both ends and their lanes in virtual time: what tests, `plb-deskew` and `lane-matrix` run.
//!
//! ```text
//!   near end --- lane 0: WanLink ---> far end        each end has a clock of its own: the far one's is
//!      ^    \--- lane 1: WanLink --/     |              far = offset + near * (1 + drift_ppb / 10^9)
//!      +------- WanLinks back -----------+
//! ```
//!
//! [`Pair`] is the bundle; [`bulk_tcp`] runs one stream of [`core::tcp`](crate::tcp) over a bundle, or over one of its lanes alone
//! without the tunnel, for comparison.

use super::{Bundle, BundleConfig, ConfigError, Datagram, Delivery, Load, wire::INSIDE_BYTES};
use crate::{
    tcp::{
        IpVersion, Kind, Profile, Receiver, ReceiverConfig, Segment, Sender, SenderConfig, Sizes,
        cc::Algorithm,
    },
    units::{BitRate, FrameBytes, PicoDuration, PicoTime, Ratio},
    wan::{Cargo, Level, Limit, Loss, Rate, Stage, WanChange, WanConfig, WanLink},
};
use alloc::{collections::VecDeque, vec::Vec};

/// Receive window of the stream: above what the lanes and queues of a trial hold, and small enough that its scale (2^8) leaves the
/// first window of four segments as it is. The simulated TCP has no probe of a window of 0.
const WINDOW_BYTES: u64 = 16 << 20;
/// Bytes of a frame around an IP packet.
const FRAME_AROUND: u64 = 18;

/// The far end's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct FarClock {
    /// What it shows at the start.
    pub offset: PicoDuration,
    /// How much faster it runs, parts in 10^9, above -10^9.
    pub drift_ppb: i64,
}

impl FarClock {
    /// What it shows.
    pub fn at(self, near: PicoTime) -> PicoTime {
        let ps = i128::from(near.as_ps());
        let ps = ps + ps * i128::from(self.drift_ppb) / 1_000_000_000 + i128::from(self.offset.as_ps());
        PicoTime::from_ps(u64::try_from(ps.max(0)).unwrap_or(u64::MAX))
    }

    /// The first moment at which it shows `far` or more.
    pub fn when(self, far: PicoTime) -> PicoTime {
        if far == PicoTime::MAX {
            return far;
        }
        let since = i128::from(far.as_ps()) - i128::from(self.offset.as_ps());
        let rate = 1_000_000_000 + i128::from(self.drift_ppb);
        let ps = (since * 1_000_000_000).div_euclid(rate.max(1));
        let mut near = PicoTime::from_ps(u64::try_from(ps.max(0)).unwrap_or(u64::MAX));
        while self.at(near) < far && near < PicoTime::MAX {
            near += PicoDuration::from_ps(1);
        }
        near
    }
}

/// One lane, both ways alike.
#[derive(Debug, Clone)]
pub struct TrialLane {
    /// The path of either direction.
    pub path: WanConfig,
}

impl TrialLane {
    /// A lane of a capacity (frame level) and one-way delay that queues 100 ms.
    pub fn new(capacity: BitRate, one_way_delay: PicoDuration) -> Self {
        let queue = capacity.bytes_in(PicoDuration::from_ms(100)).max(64 * 1_518);
        TrialLane {
            path: WanConfig {
                rate: Rate::Capacity(capacity, Level::Frame),
                one_way_delay,
                queue: Limit::Bytes(FrameBytes::new(queue)),
                ..plain(capacity)
            },
        }
    }

    /// The same with independent loss.
    pub fn losing(mut self, loss: Ratio) -> Self {
        self.path.loss = Loss::Ratio(loss);
        self
    }

    /// The same, cut from one moment to another.
    pub fn cut(mut self, from: PicoDuration, to: PicoDuration) -> Self {
        let whole = self.path.loss;
        self.path.schedule.steps = alloc::vec![
            (from, WanChange::Loss(Loss::Ratio(Ratio::ONE))),
            (to, WanChange::Loss(whole)),
        ];
        self
    }
}

fn plain(capacity: BitRate) -> WanConfig {
    crate::wan::LinkConfig {
        capacity,
        wire: None,
        one_way_delay: PicoDuration::ZERO,
        queue_limit: FrameBytes::ZERO,
        loss: Ratio::ZERO,
    }
    .into()
}

/// A datagram on a lane.
#[derive(Debug, Clone)]
struct Carried<T>(T);

impl<T: Clone> Cargo for Carried<T> {
    fn copy(&self) -> Option<Self> {
        Some(self.clone())
    }
}

/// Two ends and their lanes.
#[derive(Debug)]
pub struct Pair<T> {
    /// The end whose clock is the run's.
    pub near: Bundle<T>,
    /// The other end.
    pub far: Bundle<T>,
    clock: FarClock,
    forward: Vec<WanLink<Carried<Datagram<T>>>>,
    backward: Vec<WanLink<Carried<Datagram<T>>>>,
    overheads: Vec<u64>,
    /// Packets that left at the far end, with the run's time.
    pub at_far: VecDeque<(PicoTime, Delivery<T>)>,
    /// Packets that left at the near end.
    pub at_near: VecDeque<(PicoTime, Delivery<T>)>,
    next: [PicoTime; 2],
}

impl<T: Load> Pair<T> {
    /// Both ends of one configuration over these lanes; `seed` decides what the lanes do at random.
    ///
    /// # Errors
    /// A value that is out of its range.
    pub fn new(
        config: &BundleConfig,
        lanes: &[TrialLane],
        clock: FarClock,
        seed: u64,
    ) -> Result<Self, ConfigError> {
        let links = |salt: u64| {
            let links = lanes.iter().enumerate();
            links
                .map(|(i, lane)| {
                    WanLink::new(
                        lane.path.clone(),
                        seed ^ (i as u64 * 2 + salt).wrapping_mul(0x9e37_79b9),
                    )
                })
                .collect()
        };
        Ok(Pair {
            near: Bundle::new(config)?,
            far: Bundle::new(config)?,
            clock,
            forward: links(1),
            backward: links(2),
            overheads: config.lanes.iter().map(|lane| lane.overhead_bytes).collect(),
            at_far: VecDeque::new(),
            at_near: VecDeque::new(),
            next: [PicoTime::ZERO; 2],
        })
    }

    /// A packet enters at the near end.
    pub fn enter_near(&mut self, now: PicoTime, packet: T) -> bool {
        self.next[0] = now;
        self.near.handle_packet(now, packet)
    }

    /// A packet enters at the far end.
    pub fn enter_far(&mut self, now: PicoTime, packet: T) -> bool {
        self.next[1] = now;
        self.far.handle_packet(self.clock.at(now), packet)
    }

    /// What the far end's clock shows.
    pub fn far_time(&self, now: PicoTime) -> PicoTime {
        self.clock.at(now)
    }

    /// Does what is due by `now`.
    pub fn run(&mut self, now: PicoTime) {
        let far_now = self.clock.at(now);
        for lane in &mut self.forward {
            while let Some(departure) = lane.poll(now) {
                self.far.handle_datagram(far_now, departure.token.0);
                self.next[1] = now;
            }
        }
        for lane in &mut self.backward {
            while let Some(departure) = lane.poll(now) {
                self.near.handle_datagram(now, departure.token.0);
                self.next[0] = now;
            }
        }
        if self.next[0] <= now {
            drain(&mut self.near, &mut self.forward, &self.overheads, now, now);
            while let Some(delivery) = self.near.poll_packet(now) {
                self.at_near.push_back((now, delivery));
            }
            self.next[0] = self.near.next_wakeup(now);
        }
        if self.next[1] <= now {
            drain(&mut self.far, &mut self.backward, &self.overheads, far_now, now);
            while let Some(delivery) = self.far.poll_packet(far_now) {
                self.at_far.push_back((now, delivery));
            }
            self.next[1] = self.clock.when(self.far.next_wakeup(far_now));
        }
    }

    /// When something will be due.
    pub fn next_wakeup(&self) -> PicoTime {
        let links = self.forward.iter().chain(&self.backward);
        let links = links.filter_map(Stage::next_wakeup).min();
        let ends = self.next[0].min(self.next[1]);
        links.map_or(ends, |at| at.min(ends))
    }
}

/// Puts what an end sends on its lanes.
fn drain<T: Load>(
    end: &mut Bundle<T>,
    lanes: &mut [WanLink<Carried<Datagram<T>>>],
    overheads: &[u64],
    local: PicoTime,
    now: PicoTime,
) {
    while let Some(datagram) = end.poll_datagram(local) {
        let index = usize::from(datagram.lane);
        let (Some(lane), Some(overhead)) = (lanes.get_mut(index), overheads.get(index)) else {
            continue;
        };
        let bytes = datagram.body.len_bytes(T::len_bytes) - INSIDE_BYTES as u64 + overhead;
        // A datagram that the lane's queue refuses is lost, as on any path.
        let _ = lane.handle_frame(now, FrameBytes::new(bytes), Carried(datagram));
    }
}

/// A segment of the simulated TCP as a packet.
#[derive(Debug, Clone, Copy)]
pub struct Token {
    segment: Segment,
    bytes: u32,
}

impl Load for Token {
    fn len_bytes(&self) -> u64 {
        u64::from(self.bytes)
    }

    fn is_acknowledgement(&self) -> bool {
        self.segment.kind == Kind::Ack && self.segment.len == 0
    }
}

/// A stream of bulk TCP.
#[derive(Debug, Clone, Copy)]
pub struct Bulk {
    /// Its congestion control.
    pub algorithm: Algorithm,
    /// MTU that it sees, bytes of IP packet.
    pub mtu_bytes: u32,
    /// When it begins to send.
    pub start: PicoTime,
    /// Goodput is counted from here
    pub from: PicoTime,
    /// to here, where the run ends.
    pub to: PicoTime,
    /// The run ends when so many bytes have come, and goodput is counted to that moment.
    pub bytes: Option<u64>,
}

/// What a run of bulk TCP gave.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BulkResult {
    /// Payload delivered in order in the counted time, bit/s.
    pub goodput_bps: u64,
    /// The same over the whole run.
    pub whole_goodput_bps: u64,
    /// Times that TCP cut its window.
    pub cuts: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// When the run ended.
    pub ended: PicoTime,
}

/// The way of TCP's packets.
trait Way {
    fn forward(&mut self, now: PicoTime, token: Token);
    fn back(&mut self, now: PicoTime, token: Token);
    fn run(&mut self, now: PicoTime);
    fn next(&self) -> PicoTime;
    fn arrived(&mut self) -> Option<Segment>;
    fn came_back(&mut self) -> Option<Segment>;
}

impl Way for Pair<Token> {
    fn forward(&mut self, now: PicoTime, token: Token) {
        self.enter_near(now, token);
    }
    fn back(&mut self, now: PicoTime, token: Token) {
        self.enter_far(now, token);
    }
    fn run(&mut self, now: PicoTime) {
        Pair::run(self, now);
    }
    fn next(&self) -> PicoTime {
        self.next_wakeup()
    }
    fn arrived(&mut self) -> Option<Segment> {
        self.at_far.pop_front().map(|(_, d)| d.packet.segment)
    }
    fn came_back(&mut self) -> Option<Segment> {
        self.at_near.pop_front().map(|(_, d)| d.packet.segment)
    }
}

/// One lane alone, without a tunnel.
struct Alone {
    links: [WanLink<Carried<Token>>; 2],
    out: [VecDeque<Segment>; 2],
}

impl Alone {
    fn enter(&mut self, way: usize, now: PicoTime, token: Token) {
        let frame = FrameBytes::new(u64::from(token.bytes) + FRAME_AROUND);
        // What the queue refuses is lost.
        let _ = self.links[way].handle_frame(now, frame, Carried(token));
    }
}

impl Way for Alone {
    fn forward(&mut self, now: PicoTime, token: Token) {
        self.enter(0, now, token);
    }
    fn back(&mut self, now: PicoTime, token: Token) {
        self.enter(1, now, token);
    }
    fn run(&mut self, now: PicoTime) {
        for (link, out) in self.links.iter_mut().zip(&mut self.out) {
            while let Some(departure) = link.poll(now) {
                out.push_back(departure.token.0.segment);
            }
        }
    }
    fn next(&self) -> PicoTime {
        let times = self.links.iter().filter_map(Stage::next_wakeup);
        times.min().unwrap_or(PicoTime::MAX)
    }
    fn arrived(&mut self) -> Option<Segment> {
        self.out[0].pop_front()
    }
    fn came_back(&mut self) -> Option<Segment> {
        self.out[1].pop_front()
    }
}

/// Runs one stream over a bundle.
///
/// # Errors
/// A value of the configuration that is out of its range.
pub fn bulk_tcp(
    config: &BundleConfig,
    lanes: &[TrialLane],
    clock: FarClock,
    seed: u64,
    bulk: Bulk,
) -> Result<(BulkResult, Pair<Token>), ConfigError> {
    let mut pair = Pair::new(config, lanes, clock, seed)?;
    let result = run(&mut pair, bulk);
    Ok((result, pair))
}

/// Runs one stream over a lane alone, without a tunnel.
pub fn bulk_tcp_alone(lane: &TrialLane, seed: u64, bulk: Bulk) -> BulkResult {
    let link = |salt: u64| WanLink::new(lane.path.clone(), seed ^ salt);
    let mut alone = Alone {
        links: [link(1), link(2)],
        out: [VecDeque::new(), VecDeque::new()],
    };
    run(&mut alone, bulk)
}

fn run(way: &mut impl Way, bulk: Bulk) -> BulkResult {
    let Some(sizes) = Sizes::of_mtu(bulk.mtu_bytes, IpVersion::V4) else {
        return BulkResult::default();
    };
    let profile = Profile::MODERN;
    let mut sender = Sender::new(SenderConfig::new(profile, bulk.algorithm, sizes));
    let mut receiver = Receiver::new(ReceiverConfig {
        profile,
        window: WINDOW_BYTES,
        read_rate: None,
        memory: None,
        mss: sizes.mss,
    });
    let token = |segment: Segment| Token {
        segment,
        bytes: (sizes.frame(&segment).get() - FRAME_AROUND) as u32,
    };
    let (mut now, mut at_from) = (PicoTime::ZERO, None);
    let mut to = bulk.to;
    while now <= bulk.to {
        if bulk.bytes.is_some_and(|bytes| receiver.stats().bytes >= bytes) {
            to = now;
            break;
        }
        if now >= bulk.from {
            at_from.get_or_insert(receiver.stats().bytes);
        }
        way.run(now);
        while let Some(segment) = way.arrived() {
            receiver.handle_segment(now, &segment);
            while let Some(ack) = receiver.poll_transmit(now) {
                way.back(now, token(ack));
            }
        }
        while let Some(ack) = receiver.poll_transmit(now) {
            way.back(now, token(ack));
        }
        while let Some(ack) = way.came_back() {
            sender.handle_segment(now, &ack);
        }
        let mut sending = Some(bulk.start);
        if now >= bulk.start {
            while let Some(segment) = sender.poll_transmit(now) {
                way.forward(now, token(segment));
            }
            sending = sender.next_wakeup();
        }
        let times = [sending, receiver.next_wakeup()];
        let next = times.into_iter().flatten().fold(way.next(), PicoTime::min);
        // What was just put on the way is done at this same moment.
        now = next.max(now);
        if next == PicoTime::MAX {
            break;
        }
    }
    let bytes = receiver.stats().bytes;
    let rate = |bytes: u64, time: PicoDuration| BitRate::of(bytes, time).map_or(0, BitRate::bps);
    BulkResult {
        goodput_bps: rate(bytes - at_from.unwrap_or(bytes), to - bulk.from),
        whole_goodput_bps: rate(bytes, to - bulk.start),
        cuts: sender.cuts().0,
        timeouts: sender.stats().timeouts,
        ended: to,
    }
}
