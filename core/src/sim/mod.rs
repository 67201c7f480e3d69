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
//! **Conservation.** At every moment, frames and bytes emitted + duplicated = delivered + dropped + held
//! ([`Network::totals`]), and the same holds for every stage.
//!
//! **Links** are all that [`WanLink`](crate::wan::WanLink) is, but for rewriting and corruption, which need bytes. A
//! simulated segment is not capable of ECN: what would be marked is dropped.
//!
//! **PAUSE.** A receiver's card that drains slower than its wire ([`Network::add_drain`]) asks for a pause; the port
//! before it obeys when the PAUSE frame has crossed. At one instant an obeyed PAUSE comes before everything else.
//!
//! An [`Observer`] sees frames enter stages and arrive; [`Meter`] is one that fills
//! [`core::meter`](crate::meter) windows.

mod flow;
mod network;
mod observer;
mod queue;
mod random;
mod setup;
mod source;
mod stage;

pub use flow::{FlowId, OnOffFlow, TcpFlow};
pub use network::{Network, Totals};
pub use observer::{Meter, Observer, Silent};
pub use queue::EventQueue;
pub use random::{Random, split_mix};
pub use setup::{FLOWS_MAX, HOPS_MAX, STAGES_MAX, SimError};
pub use source::OnOff;
pub use stage::StageId;
