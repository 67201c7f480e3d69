//! A TCP sender and receiver for the simulator: the algorithms of TCP without its bytes.
//!
//! ```text
//!            Sender                                            Receiver
//!   source -> send buffer -> cwnd, window -> Segment  ....>  reassembly -> application (drain rate)
//!      ^                     ^                                   |
//!      |  pacing, CPU, local queue                               | delayed ACK, SACK blocks, window
//!      +---- Scoreboard <- RTT, losses <- Segment (ACK)  <....---+
//! ```
//!
//! A connection carries data one way. A [`Segment`] holds what the algorithms read (sequence, length, ACK,
//! SACK blocks, window, time stamps) and knows the size of the frame that it stands for. Sequence numbers
//! are 64 bits and count bytes from 0; they do not wrap.
//!
//! Both ends are state machines without clock. Calls, in order, at any `now` that does not go back:
//!
//! 1. `handle_segment(now, &segment)` for what arrived, and on the sender `handle_local_drop(now, &segment)`
//!    when the interface queue refused what it had just given;
//! 2. `poll_transmit(now)` until it is `None`;
//! 3. sleep until `next_wakeup()` or the next arrival.
//!
//! Two [`Profile`]s say which TCP it is: `linux-2.6.14`, the papers' kernel, and `modern`. Congestion
//! control is one of [`cc::Algorithm`], each in its own file with its source.
//!
//! What is left out, and where it could matter: reordering (no stage of the simulator reorders, so the
//! undo of spurious recoveries and RACK's reordering timer are absent), the closing of a connection, ECN,
//! tail loss probes (sources here do not pause), automatic tuning of buffers (the window is stated).

pub mod cc;
mod profile;
mod ranges;
mod receiver;
mod rtt;
mod scoreboard;
mod segment;
mod sender;
mod window;

pub use profile::{Counting, Detection, Profile, Reduction};
pub use ranges::Ranges;
pub use receiver::{ReceiveMemory, Receiver, ReceiverConfig, ReceiverStats};
pub use rtt::RttEstimator;
pub use segment::{Block, IpVersion, Kind, SACK_BLOCKS_MAX, SackBlocks, Segment, Sizes};
pub use sender::{Cut, LocalCongestion, Pacing, Sender, SenderConfig, SenderStats, State};
pub use window::Window;
