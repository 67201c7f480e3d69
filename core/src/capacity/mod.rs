//! The usable capacity of a path: the highest rate that neither loses frames nor makes a queue grow.
//!
//! ```text
//!   Search::step -> Train (rate, frames) -> sent with even gaps -> Arrival ... -> Digest -> Search::handle
//! ```
//!
//! A train of frames at rate R through a link with A to spare leaves the one-way delay as it is while R <= A;
//! above, every second of the train adds `R / A - 1` seconds of queue. So the slope of the one-way delay against
//! the time of sending tells on which side of A a rate is, whatever the offset of the two clocks, and losses
//! tell the same where the queue is short (paper 003, section 3.3: the narrowest link is known only from a
//! flow that is stable in milliseconds; pathload, Jain and Dovrolis, SIGCOMM 2002, for the trend).
//!
//! An overloaded link sends at its capacity, so the rate at which a train *arrives* (its dispersion) says where to
//! look next. It is no result by itself: beside other traffic it is above A.
//!
//! Order of calls: [`Search::step`], wait as its train says, send it, [`digest`] what arrived, [`Search::handle`];
//! until `step` gives a [`Verdict`].

mod digest;
mod search;

pub use digest::{Arrival, Digest, GROUPS, digest};
pub use search::{
    CapacityConfig, CapacityError, MAX_TRAIN_FRAMES, MAX_TRAINS, MIN_TRAIN_FRAMES, Outcome, Search, Step,
    TREND_PPM, Train, Verdict,
};
