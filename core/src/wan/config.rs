//! What a [`WanLink`](super::WanLink) is, and what of it can be changed.

use super::{
    MAX_DELAY,
    codel::CoDel,
    corrupt::Corruption,
    gate::{Level, Rate},
    jitter::{Jitter, Order},
    link::LinkConfig,
    loss::Loss,
    named::FrameName,
    red::Red,
    rewrite::Rewrite,
};
use crate::{
    units::{BitRate, FrameBytes, PicoDuration, Ratio},
    wire::LineRate,
};
use alloc::vec::Vec;

/// How much may wait before a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// So many bytes of frames.
    Bytes(FrameBytes),
    /// So many frames.
    Frames(u64),
}

/// How a queue refuses frames before it is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Aqm {
    /// Not at all.
    #[default]
    DropTail,
    /// By its average length, at the arrival.
    Red(Red),
    /// By the time that frames waited, at the start of serialisation.
    CoDel(CoDel),
}

/// Frames that fall behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reorder {
    /// Share of the frames.
    pub ratio: Ratio,
    /// How much later than their turn they arrive; others do not wait for them.
    pub extra: PicoDuration,
}

impl Reorder {
    /// No frame.
    pub const NONE: Reorder = Reorder {
        ratio: Ratio::ZERO,
        extra: PicoDuration::ZERO,
    };
}

/// One direction of a link with everything that can be asked of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WanConfig {
    /// Its capacity or trace.
    pub rate: Rate,
    /// The wire below it, when there is one: at frame level a frame takes its L1 time at least.
    pub wire: Option<LineRate>,
    /// One-way delay from the end of serialisation to arrival.
    pub one_way_delay: PicoDuration,
    /// How the delay varies.
    pub jitter: Jitter,
    /// Whether frames may overtake.
    pub order: Order,
    /// Most that waits.
    pub queue: Limit,
    /// What else refuses frames.
    pub aqm: Aqm,
    /// Loss behind the wire.
    pub loss: Loss,
    /// Frames that are lost by name.
    pub lose: Vec<FrameName>,
    /// Share of the frames that arrive twice, the copy right behind the first.
    pub duplicate: Ratio,
    /// Frames that fall behind.
    pub reorder: Reorder,
    /// Frames that are damaged.
    pub corrupt: Corruption,
    /// Rewriting, in this order, before the queue.
    pub rewrite: Vec<Rewrite>,
    /// Largest IP packet in bytes, behind the rewriting; larger ones are dropped and counted.
    pub mtu: Option<u64>,
    /// Changes over time.
    pub schedule: Schedule,
}

impl From<LinkConfig> for WanConfig {
    fn from(link: LinkConfig) -> Self {
        WanConfig {
            rate: Rate::Capacity(link.capacity, Level::Frame),
            wire: link.wire,
            one_way_delay: link.one_way_delay.min(MAX_DELAY),
            jitter: Jitter::None,
            order: Order::Kept,
            queue: Limit::Bytes(link.queue_limit),
            aqm: Aqm::DropTail,
            loss: Loss::Ratio(link.loss),
            lose: Vec::new(),
            duplicate: Ratio::ZERO,
            reorder: Reorder::NONE,
            corrupt: Corruption::NONE,
            rewrite: Vec::new(),
            mtu: None,
            schedule: Schedule::default(),
        }
    }
}

impl WanConfig {
    /// What of it a plain [`Link`](super::Link) can be: mean capacity, delay, queue (a frame as 1518 bytes) and ratio
    /// of loss (none for other models).
    pub fn plain(&self) -> LinkConfig {
        LinkConfig {
            capacity: self.rate.mean(),
            wire: self.wire,
            one_way_delay: self.one_way_delay,
            queue_limit: match self.queue {
                Limit::Bytes(bytes) => bytes,
                Limit::Frames(frames) => FrameBytes::new(frames.saturating_mul(1_518)),
            },
            loss: match self.loss {
                Loss::Ratio(ratio) => ratio,
                _ => Ratio::ZERO,
            },
        }
    }
}

/// A change of one parameter. It holds for frames whose serialisation starts after it, or, for queue,
/// names, rewriting and MTU, that arrive after it. No change loses a frame: who waits stays, who is on the way arrives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WanChange {
    /// Capacity or trace.
    Rate(Rate),
    /// One-way delay.
    OneWayDelay(PicoDuration),
    /// Jitter.
    Jitter(Jitter),
    /// Order.
    Order(Order),
    /// Queue limit.
    Queue(Limit),
    /// Queue discipline; it starts afresh.
    Aqm(Aqm),
    /// Loss; the model starts afresh.
    Loss(Loss),
    /// Frames lost by name.
    Lose(Vec<FrameName>),
    /// Duplication.
    Duplicate(Ratio),
    /// Reordering.
    Reorder(Reorder),
    /// Corruption.
    Corrupt(Corruption),
    /// Rewriting.
    Rewrite(Vec<Rewrite>),
    /// MTU.
    Mtu(Option<u64>),
    /// Nothing starts for this long, as after a received PAUSE; 0 ends it.
    Hold(PicoDuration),
}

impl WanChange {
    /// Writes the change into a description. A hold is no part of it.
    pub fn describe(self, config: &mut WanConfig) {
        match self {
            WanChange::Rate(rate) => config.rate = rate,
            WanChange::OneWayDelay(delay) => config.one_way_delay = delay,
            WanChange::Jitter(jitter) => config.jitter = jitter,
            WanChange::Order(order) => config.order = order,
            WanChange::Queue(limit) => config.queue = limit,
            WanChange::Aqm(aqm) => config.aqm = aqm,
            WanChange::Loss(loss) => config.loss = loss,
            WanChange::Lose(names) => config.lose = names,
            WanChange::Duplicate(ratio) => config.duplicate = ratio,
            WanChange::Reorder(reorder) => config.reorder = reorder,
            WanChange::Corrupt(corruption) => config.corrupt = corruption,
            WanChange::Rewrite(rewrites) => config.rewrite = rewrites,
            WanChange::Mtu(mtu) => config.mtu = mtu,
            WanChange::Hold(_) => {}
        }
    }
}

/// What a [`WanLink`](super::WanLink) is set to now, after changes and steps of its schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WanValues {
    /// Its capacity, or the mean of its trace.
    pub rate: BitRate,
    /// Which bytes the capacity counts.
    pub level: Level,
    /// One-way delay.
    pub one_way_delay: PicoDuration,
    /// Most that waits.
    pub queue: Limit,
    /// Loss behind the wire.
    pub loss: Loss,
    /// Largest IP packet, bytes.
    pub mtu: Option<u64>,
}

/// Most steps of a schedule.
pub const MAX_STEPS: usize = 1 << 16;

/// Changes at times from the start of the run, once or again after every period.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Schedule {
    /// The changes, by the time at which they happen; at one time, in this order.
    pub steps: Vec<(PicoDuration, WanChange)>,
    /// After how long they come again; `None` for once. Steps at or behind the period never happen.
    pub repeat: Option<PicoDuration>,
}
