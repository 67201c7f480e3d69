//! A serial medium and what is on it: the bytes of a frame at each level, frames as views, PAUSE.
//!
//! ```text
//!  | preamble 8 | dst 6 | src 6 | type 2 | payload, padded to 46 | FCS 4 | gap 12 or more |
//!               |<------------------- frame, 64 or more -------------->|
//!  |<------------------------------------ L1: frame + 20 -------------------------------->|
//! ```
//!
//! Source: IEEE 802.3 clause 3 (frame), clause 4 (gap), annex 31B (PAUSE).

mod line;

pub use line::{
    ETHERNET_HEADER, FCS, FRAME_MIN, IFG_MIN, L1_OVERHEAD, LineRate, PREAMBLE, frame_of_capture, l1_bytes,
    pad,
};
