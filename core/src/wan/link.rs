//! A link between routers.

use super::{
    loss::{Loss, Losses},
    medium::Capacity,
    serial::{Serial, stage},
};
use crate::{
    units::{BitRate, FrameBytes, PicoDuration, PicoTime, Ratio},
    wire::LineRate,
};

/// What a [`Link`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkConfig {
    /// Capacity at frame level.
    pub capacity: BitRate,
    /// The wire below it, when there is one: a frame takes its L1 time at least.
    pub wire: Option<LineRate>,
    /// One-way delay from the end of serialisation to arrival.
    pub one_way_delay: PicoDuration,
    /// Most bytes of frames that wait before the link (drop-tail).
    pub queue_limit: FrameBytes,
    /// Share of frames lost after the link, independently; 1 or more loses all.
    pub loss: Ratio,
}

/// One direction of a link: drop-tail queue, capacity, one-way delay, loss.
#[derive(Debug, Clone)]
pub struct Link<T> {
    serial: Serial<T, Capacity>,
}

stage!(Link);

impl<T> Link<T> {
    /// An idle link. `seed` decides which frames are lost.
    pub fn new(config: LinkConfig, seed: u64) -> Self {
        let LinkConfig {
            capacity,
            wire,
            one_way_delay,
            queue_limit,
            loss,
        } = config;
        let medium = Capacity::new(capacity, wire);
        Link {
            serial: Serial::new(
                medium,
                queue_limit,
                one_way_delay,
                Losses::new(Loss::Ratio(loss), seed),
            ),
        }
    }

    /// The capacity at frame level.
    pub fn capacity(&self) -> BitRate {
        self.serial.medium().clock.rate()
    }

    /// Changes the capacity for frames whose serialisation starts after `now`.
    pub fn set_capacity(&mut self, now: PicoTime, capacity: BitRate) {
        self.serial.medium_at(now).clock.set_rate(capacity);
    }

    /// Changes the one-way delay for frames whose serialisation starts after `now`.
    pub fn set_one_way_delay(&mut self, now: PicoTime, one_way_delay: PicoDuration) {
        self.serial.set_one_way_delay(now, one_way_delay);
    }

    /// Changes the loss for frames whose serialisation starts after `now`.
    pub fn set_loss(&mut self, now: PicoTime, loss: Ratio) {
        self.serial.set_loss(now, Loss::Ratio(loss));
    }

    /// Changes the queue's limit for frames that arrive after `now`; frames that wait stay.
    pub fn set_queue_limit(&mut self, now: PicoTime, queue_limit: FrameBytes) {
        self.serial.set_queue_limit(now, queue_limit);
    }
}
