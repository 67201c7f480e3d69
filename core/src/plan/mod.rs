//! The rate plan: how the capacity of a route is shared among its streams, and how the shares are leased.
//!
//! # Model
//!
//! A *route* has a capacity (frame level), of which `usable = capacity * (1 - headroom)` is given out. Each
//! stream on it may be limited by itself (`max`, its port's wire). [`max_min`] shares `usable`: no stream
//! gets more than its `max`, and none can get more without another, that has no more, getting less.
//!
//! The streams run on other hosts than the [`Arbiter`], and a message to them may be late or lost. So a
//! share is *leased*: the holder may send at the rate of a [`Grant`] for the time to live `ttl`, counted from the
//! moment it **sent** the request; then it falls to the route's `floor`. The arbiter counts from when it answers, and
//! `guard` longer (for the drift of clocks), so it never believes a lease ended before the holder does.
//!
//! What a lease may use at this moment is its *charge*, at all times
//!
//! ```text
//!     sum of charges + floor * (max_streams - leases)  <=  usable
//! ```
//!
//! - a lease in force is charged the largest rate that its holder may be using, and at least the floor;
//! - a rate that was lowered is charged at the old rate until the holder has shown that it knows the new
//!   one (it renews with the new grant's `serial`), or until the old grant has run out;
//! - so a rate is raised only as far as others have really come down ("room");
//! - a lease that ran out is charged the floor for `linger`, then forgotten; a holder that long without a
//!   lease must have stopped or is one of the streams that `max_streams` has to allow for;
//! - a stream without a lease yet is covered by the floors of the places not taken.
//!
//! The one exception: when the capacity itself falls, the sum may exceed it until the holders have renewed,
//! at most for `ttl + guard`. Nothing is raised meanwhile.
//!
//! # States of a lease
//!
//! ```text
//!            acquire
//!               |  rate = min(target, floor + room)
//!               v                 target falls            renew(serial of the lower grant)
//!           [ settled ] ------------------------> [ lowered ] -----------> [ settled ]
//!            |  ^    charge = rate         renew:  charge = old rate
//!            |  '-- room: renew raises it          until known or run out
//!            |
//!            | ttl + guard without renewal           renew (rate as at acquire)
//!            '----------------------> [ lapsed ] ----------------------------> [ settled ]
//!                                  charge = floor
//!                                       | linger, or release (from any state)
//!                                       v
//!                                    forgotten
//! ```
//!
//! # A new arbiter
//!
//! It knows nothing of the grants of the one before it. For `ttl + guard` it grants the floor only; by then every
//! old grant has run out. The floors it gives meanwhile were reserved by the old one. Leases carry the arbiter's
//! `instance`, so an old one is not mistaken for one of its own.
//!
//! # Order of calls
//!
//! Any of `acquire`, `renew`, `release`, `set_capacity`, `tick` with a time that does not go back, then drain
//! [`Arbiter::poll`], then sleep until [`Arbiter::next_wakeup`] at the latest. [`LeaseChanged`] says that a renewal
//! would now give another rate: a waiting request is then answered by `renew` with the serial it brought.
//! Holders use the grant with the highest serial, at once.

mod arbiter;
#[cfg(test)]
mod arbiter_tests;
mod lease;
mod share;

pub use arbiter::{Arbiter, Config, MAX_ROUTES, MAX_STREAMS_PER_ROUTE, RouteView};
pub use lease::{Grant, LeaseChanged, LeaseId, LeaseView, PlanError, RouteId};
pub use share::{Demand, RatePlan, Route, max_min};
