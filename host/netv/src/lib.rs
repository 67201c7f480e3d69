//! NetV: uncompressed video, its parts as streams of their own (paper 002).
//!
//! ```text
//!     pattern, y4m, raw -> rows of pixel groups -> parts -> a thread each: paced RTP over UDP
//!     UDP -> a thread for each part: assembled -> aligned by stamps -> y4m, raw, PNG, figures
//! ```
//!
//! What is on the wire is RFC 4175: each part can be received by GStreamer or `FFmpeg` as a picture of its own ([`sdp`]).

mod burst;
mod convert;
mod display;
mod error;
mod pattern;
mod recv;
mod schedule;
mod sdp;
mod send;
mod source;
mod sys;
mod y4m;

pub use convert::{beside_png, planar_bytes, to_planar, to_rgb, to_wire, write_png};
pub use display::Display;
pub use error::NetvError;
pub use pattern::{Pattern, pattern_number};
pub use recv::PartReceived;
pub use recv::{Output, Receiver, RecvConfig, RecvReport};
pub use schedule::{Schedule, overhead_bytes};
pub use sdp::sdp;
pub use send::{Inspect, PartSent, PartTarget, Prepare, SendConfig, SendReport, send};
pub use source::{MAX_HELD, Source};
pub use y4m::{Header, MAX_HEADER, parse_header};

/// Payload type of the streams: the first dynamic one (RFC 3551).
pub const PAYLOAD_TYPE: u8 = 96;
