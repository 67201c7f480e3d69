//! Which stream goes by which rail and lane.
//!
//! A **rail** is a card with the cores that drive it, a **lane** a network path. A stream runs on one core of
//! one rail and leaves by one lane; its rate may be any up to what it asks for:
//!
//! ```text
//!     maximise   sum of rate[s]
//!     such that  rate[s] <= demand[s],                           each s on one path (rail, core, lane) or none
//!                sum of rates on a core <= what the core carries
//!                sum of rates on a rail <= what its card carries
//!                sum of rates on a lane <= what the lane carries
//! ```
//!
//! The connection of rails and lanes of different rates is the future work of paper 002. Choosing paths is hard
//! (with one path it is a knapsack); rates for chosen paths are not: they are a flow from cards over cores to
//! lanes, which [`rates`] finds exactly in whole bit/s. [`bound`] is the same flow with streams that may be
//! divided at will: no choice is above it. [`greedy`] chooses quickly and often reaches the bound, which proves
//! it best; what chooses exactly where it does not stands above this crate.

mod assign;
mod flow;

pub use assign::{Assignment, Path, Violation, bound, greedy, rates};
pub use assign::{MAX_CORES, MAX_LANES, MAX_RAILS, MAX_STREAMS, Problem, ProblemError, RailCapacity};

#[cfg(test)]
mod tests;
