//! Packets that know when they entered, and their way through a pair of ends.
#![allow(dead_code)]

use kuroshio_core::{
    lane::{Load, trial::Pair},
    units::{PicoDuration, PicoTime},
};

/// A packet of the test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    pub id: u64,
    pub entered: PicoTime,
    bytes: u64,
}

impl Packet {
    pub fn new(id: u64, entered: PicoTime, bytes: u64) -> Self {
        Packet { id, entered, bytes }
    }
}

impl Load for Packet {
    fn len_bytes(&self) -> u64 {
        self.bytes
    }

    /// So are the small ones of a test.
    fn is_acknowledgement(&self) -> bool {
        self.bytes < 100
    }
}

/// A packet that left, by the true clock.
pub struct Left {
    pub id: u64,
    pub entered: PicoTime,
    pub left: PicoTime,
    pub late: bool,
}

/// What came out.
pub struct Run {
    pub delivered: Vec<Left>,
    pub end: PicoTime,
}

/// Sends packets of `bytes` at the moments of `at`, and runs until everything must be out.
pub fn drive(pair: &mut Pair<Packet>, packets: u64, at: impl Fn(u64) -> PicoTime, bytes: u64) -> Run {
    drive_sizes(pair, packets, at, |_| bytes)
}

/// The same with packets of several sizes.
pub fn drive_sizes(
    pair: &mut Pair<Packet>,
    packets: u64,
    at: impl Fn(u64) -> PicoTime,
    bytes: impl Fn(u64) -> u64,
) -> Run {
    let mut delivered = Vec::new();
    let (mut now, mut next) = (PicoTime::ZERO, 0);
    let end = at(packets) + PicoDuration::from_secs(1);
    while now < end {
        while next < packets && at(next) <= now {
            pair.enter_near(now, Packet::new(next, now, bytes(next)));
            next += 1;
        }
        pair.run(now);
        while let Some((left, delivery)) = pair.at_far.pop_front() {
            let Packet { id, entered, .. } = delivery.packet;
            delivered.push(Left {
                id,
                entered,
                left,
                late: delivery.late,
            });
        }
        let arrival = if next < packets { at(next) } else { end };
        now = pair.next_wakeup().min(arrival).max(now);
    }
    Run { delivered, end }
}
