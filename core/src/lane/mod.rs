//! Many paths as one: packets of a tunnel go over several *lanes* and come out as if there were one of constant delay.
//!
//! ```text
//!   handle_packet -> queue -> stamp, number -> lane 1 (pacer) --- datagrams ---> \
//!                       \       in proportion  lane 2 (pacer) ------------------> play-out -> poll_packet
//!                        store <------------- missing numbers, by report -------- /  order, spacing, constant delay
//! ```
//!
//! The model is packet-based lane bundling (paper 002; Kobayashi et al., APCC 2008): the sending end stamps every packet
//! at its entry, the receiving end holds it until
//!
//! ```text
//!   play-out = stamp, on the receiver's clock + delay of the slowest lane + margin
//! ```
//!
//! so that the delay is constant and the spacing of the entry is kept; it is followed slowly (`playtime.rs`). The receiver's clock is fitted to the stamps
//! ([`StampClock`]): no synchronised clocks are needed.
//!
//! | [`Mode`] | a packet leaves |
//! |---|---|
//! | `Deskew` | at its play-out time; with `repair` acknowledgements as soon as it is their turn |
//! | `InOrder` | as soon as all before it have left or are given up |
//! | `Mirror` | as `InOrder`, and every packet takes two lanes: the first copy wins (as in SMPTE ST 2022-7) |
//!
//! **Loss.** Each lane keeps its order, so a number that every lane in use has passed is lost (RFC 1990, section 4.1,
//! the least of the lanes' highest numbers); where a lane was seen to reorder, its spread of delay is waited for. With
//! `repair` the receiver asks for it and the sender, which keeps what it sent for a while, sends it again.
//!
//! **Capacity.** Stated, or measured by trains of datagrams where it is not ([`LaneConfig::measured`]).
//!
//! **Health.** Every lane is probed. One without an answer for 2.25 of its round trips is out, so within 3 of them after
//! a cut; three answers bring it back. **A bundle is never slower than its best lane**: a lane that would make it so, by its
//! delay or loss, is not used, and [`LaneStatus::state`] says why.
//!
//! A [`Bundle`] is one end. Calls, in order, at any `now` of this end's own clock that does not go back:
//!
//! 1. `handle_packet(now, packet)` for what enters the tunnel, `handle_datagram(now, datagram)` for what arrived on a lane;
//! 2. `poll_datagram(now)` and `poll_packet(now)` until both are `None`;
//! 3. sleep until `next_wakeup()` or the next arrival.
//!
//! **Bounds.** [`LANES_MAX`] lanes; the entry queue holds `queue_time`, or half a round trip, at the sum of the rates; the store and the play-out
//! buffer hold `hold_bytes` each and [`HELD_PACKETS_MAX`] packets; a packet waits `hold_max` at most in the play-out; repeats are told
//! apart over [`SEEN_PACKETS`] numbers; [`MISSING_MAX`] numbers are asked for at a time. What goes beyond is counted.

mod ack;
mod arrivals;
mod bundle;
mod clock;
mod config;
pub mod ecn;
mod health;
mod incoming;
mod lane_out;
mod outgoing;
mod playout;
mod playtime;
mod seen;
mod status;
mod train;
pub mod trial;
pub mod wire;

pub use bundle::Bundle;
pub use clock::{StampClock, Trend};
pub use config::{BundleConfig, ConfigError, LANES_MAX, LaneConfig, LatePolicy, Mode};
pub use incoming::MISSING_MAX;
pub use outgoing::MADE_UP_MAX;
pub use playout::{Delivery, HELD_PACKETS_MAX};
pub use seen::{Novelty, SEEN_PACKETS, Seen};
pub use status::{BundleStatus, InCounters, LaneState, LaneStatus, OutCounters};
pub use train::START as CAPACITY_START;
pub use wire::{Body, Datagram, LaneReport, Report};

/// A packet of the tunnel, or what stands for one.
pub trait Load: Clone {
    /// Its bytes, as the tunnel carries them.
    fn len_bytes(&self) -> u64;

    /// Whether it only acknowledges: nobody measures how long it took, so that it need not take as long as others.
    fn is_acknowledgement(&self) -> bool {
        false
    }
}

impl Load for alloc::vec::Vec<u8> {
    fn len_bytes(&self) -> u64 {
        self.len() as u64
    }

    fn is_acknowledgement(&self) -> bool {
        ack::is_acknowledgement(self)
    }
}
