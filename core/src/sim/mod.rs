//! Virtual time: one event queue that runs TCP, pacing and the emulated network together.
//!
//! ```text
//!   Sender --> [port | shaper] --> link --> ... --> port --> Receiver
//!      ^                                                        |
//!      +------ port <-- ... <-- link <-- [port | shaper] <------+     ACKs
//! ```
//!
//! A [`Network`] is stages of [`core::wan`](crate::wan) (the same that run live) and flows, each with its
//! way there and back. Every stage, sender, receiver and source has one place in the queue, which holds
//! the moment at which it next has something to do; the earliest comes first, and of several at the same
//! picosecond the one with the lowest number: senders, receivers and sources in the order of the flows,
//! then stages in the order in which they were added. So a run is a function of its parameters and seeds.
//!
//! **Conservation.** At every moment, frames and bytes emitted = delivered + dropped + held
//! ([`Network::totals`]), and the same holds for every stage.
//!
//! An [`Observer`] sees frames enter stages and arrive; [`Meter`] is one that fills
//! [`core::meter`](crate::meter) windows.

mod flow;
mod network;
mod observer;
mod queue;
mod random;
mod source;
mod stage;

pub use flow::{FlowId, OnOffFlow, TcpFlow};
pub use network::{FLOWS_MAX, HOPS_MAX, Network, PauseRule, STAGES_MAX, SimError, Totals};
pub use observer::{Meter, Observer, Silent};
pub use queue::EventQueue;
pub use random::{Random, split_mix};
pub use source::OnOff;
pub use stage::StageId;
