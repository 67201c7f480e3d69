//! What travels on a lane.
//!
//! All numbers are big-endian. The **outside** is in clear and is what the seal's nonce is made of; the **inside** is sealed.
//!
//! ```text
//!  outside, 16 bytes                                   inside
//!  0        1      2 3   4          8                  16       17      18          24        32
//!  | kind 4 | lane |  0  | session  | number on lane | kind   | flags | number 48 | stamp 64 | packet ...        | seal 16
//! ```
//!
//! The number on the lane counts every datagram that this end sends on that lane from 0; nonce = lane * 2^56 + number, so no
//! nonce is used twice by a key. Kinds of the outside: 1 and 2 are the handshake's messages, 4 a sealed datagram.
//!
//! | inside kind | number | stamp, ns of the sender's clock | then |
//! |---|---|---|---|
//! | 1 data | of the packet in the bundle | of its entry | the packet; flag 1: sent again, 2: the second copy of a mirror, 4: quick |
//! | 2 probe | next packet's | of sending | id 32, lanes in use 16 |
//! | 3 answer | 0 | of the probe that is answered | id 32, ns of the answering clock 64 |
//! | 4 report | 0 | of sending | lanes 8, asked 8, lanes x (lane 8, end of numbers 64, arrived 64, least delay 64 signed), asked x number 48 |
//! | 5 train | 0 | of sending | id 32, place 16, datagrams 16, filled up with zeros |
//! | 6 trained | 0 | 0 | id 32, arrived 16, first to last arrival by their slope in ns 64 |
//!
//! So a packet has [`OVERHEAD_BYTES`] around it inside UDP.

use super::config::LANES_MAX;
use alloc::vec::Vec;
use core::fmt;

/// Bytes of the outside.
pub const OUTSIDE_BYTES: usize = 16;
/// Bytes before the packet in the inside.
pub const INSIDE_BYTES: usize = 16;
/// Bytes of the seal (Poly1305 or GCM).
pub const SEAL_BYTES: usize = 16;
/// Bytes around a packet in UDP's payload.
pub const OVERHEAD_BYTES: usize = OUTSIDE_BYTES + INSIDE_BYTES + SEAL_BYTES;
/// Most numbers that a report asks for.
pub const ASKED_MAX: usize = 64;
/// Numbers of packets end here; at 10^8 packets a second that is 32 days.
pub const NUMBER_END: u64 = 1 << 48;
/// Numbers on a lane end here: the session has to be renewed before.
pub const LANE_NUMBER_END: u64 = 1 << 56;
/// The outside's kind of a sealed datagram.
pub const KIND_SEALED: u8 = 4;

const LANE_REPORT_BYTES: usize = 25;
/// Fields of a train's datagram.
const TRAIN_BYTES: usize = 8;

/// What a lane's receiver tells its sender.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LaneReport {
    /// The lane.
    pub lane: u8,
    /// All numbers below have arrived on it or can no longer be on their way.
    pub end: u64,
    /// How many of them arrived.
    pub arrived: u64,
    /// Least delay of late, up to a constant that all lanes share, ns; `i64::MAX` when none is known.
    pub least_delay_ns: i64,
}

/// What a receiver tells.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// One for each lane.
    pub lanes: Vec<LaneReport>,
    /// Packets that are missing and to be sent again.
    pub asked: Vec<u64>,
}

/// The inside of a datagram.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body<T> {
    /// A packet.
    Data {
        /// Its number in the bundle.
        number: u64,
        /// When it entered, ns of the sender's clock.
        stamp_ns: u64,
        /// Whether it was sent before.
        again: bool,
        /// Whether it is the second copy of a mirror.
        copy: bool,
        /// Whether it leaves as soon as it is its turn, without a wait for its play-out time.
        quick: bool,
        /// It.
        packet: T,
    },
    /// Asks whether the lane is there.
    Probe {
        /// Counts.
        id: u32,
        /// When it was sent, ns of the sender's clock.
        sent_ns: u64,
        /// The number of the next packet: all below it were sent on some lane before.
        next: u64,
        /// Bit n: lane n is in use by the sender.
        in_use: u16,
    },
    /// Answers a probe on its lane.
    Answer {
        /// Of the probe.
        id: u32,
        /// Of the probe.
        sent_ns: u64,
        /// When it was answered, ns of the answering clock.
        answered_ns: u64,
    },
    /// One of a train, which measures the lane's capacity.
    Train {
        /// Counts trains.
        id: u32,
        /// Its place, from 0.
        index: u16,
        /// Datagrams of the train.
        count: u16,
        /// When it was sent, ns of the sender's clock.
        sent_ns: u64,
        /// Bytes behind the head, these fields counted.
        bytes: u16,
    },
    /// Tells how a train arrived.
    Trained {
        /// Of the train.
        id: u32,
        /// Datagrams that arrived.
        received: u16,
        /// From the first one's arrival to the last one's, ns.
        span_ns: u64,
    },
    /// Tells how the lanes do and what is missing.
    Report(Report),
}

/// A datagram.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Datagram<T> {
    /// Its lane.
    pub lane: u8,
    /// Its number on the lane.
    pub lane_number: u64,
    /// The rest.
    pub body: Body<T>,
}

impl<T> Body<T> {
    /// Bytes of the inside, of a packet that is `packet_bytes` long.
    pub fn len_bytes(&self, packet_bytes: impl FnOnce(&T) -> u64) -> u64 {
        INSIDE_BYTES as u64
            + match self {
                Body::Data { packet, .. } => packet_bytes(packet),
                Body::Probe { .. } => 6,
                Body::Answer { .. } => 12,
                Body::Train { bytes, .. } => u64::from(*bytes).max(TRAIN_BYTES as u64),
                Body::Trained { .. } => 14,
                Body::Report(report) => {
                    2 + (report.lanes.len() * LANE_REPORT_BYTES + 6 * report.asked.len()) as u64
                }
            }
    }
}

/// Why bytes are no inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WireError {
    /// Fewer bytes than its kind has.
    Short,
    /// More bytes than its kind has.
    Long,
    /// No such kind.
    Kind(u8),
    /// Flags that its kind has not.
    Flags(u8),
    /// A lane or a count beyond its limit.
    Count(u8),
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WireError::Short => f.write_str("the datagram is too short for its kind"),
            WireError::Long => f.write_str("the datagram is too long for its kind"),
            WireError::Kind(kind) => write!(f, "datagram of kind {kind}: 1 to 6 are known"),
            WireError::Flags(flags) => write!(f, "flags {flags:#x} of a datagram"),
            WireError::Count(count) => write!(f, "a lane or count of {count} in a report"),
        }
    }
}

impl core::error::Error for WireError {}

/// Writes the outside. The number is cut to 56 bits by the caller's bound, [`LANE_NUMBER_END`].
pub fn write_outside(out: &mut Vec<u8>, lane: u8, session: u32, lane_number: u64) {
    out.extend_from_slice(&[KIND_SEALED, lane, 0, 0]);
    out.extend_from_slice(&session.to_be_bytes());
    out.extend_from_slice(&lane_number.to_be_bytes());
}

/// Lane, session and number of a sealed datagram; `None` for anything else.
pub fn read_outside(bytes: &[u8]) -> Option<(u8, u32, u64)> {
    let mut input = Input(bytes);
    let (kind, lane, zero) = (input.u8().ok()?, input.u8().ok()?, input.number(2).ok()?);
    let session = input.number(4).ok()? as u32;
    let number = input.number(8).ok()?;
    let valid = kind == KIND_SEALED
        && usize::from(lane) < LANES_MAX
        && zero == 0
        && number < LANE_NUMBER_END
        && input.0.len() >= INSIDE_BYTES + SEAL_BYTES;
    valid.then_some((lane, session, number))
}

/// The nonce of a datagram's seal.
pub fn nonce(lane: u8, lane_number: u64) -> u64 {
    u64::from(lane) << 56 | lane_number & (LANE_NUMBER_END - 1)
}

/// Appends what every inside begins with.
fn write_head(out: &mut Vec<u8>, kind: u8, flags: u8, number: u64, stamp_ns: u64) {
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&number.to_be_bytes()[2..]);
    out.extend_from_slice(&stamp_ns.to_be_bytes());
}

/// Appends the inside of a datagram.
pub fn write_inside(out: &mut Vec<u8>, body: &Body<Vec<u8>>) {
    match body {
        Body::Data {
            number,
            stamp_ns,
            again,
            copy,
            quick,
            packet,
        } => {
            let flags = u8::from(*again) | u8::from(*copy) << 1 | u8::from(*quick) << 2;
            write_head(out, 1, flags, *number, *stamp_ns);
            out.extend_from_slice(packet);
        }
        Body::Probe {
            id,
            sent_ns,
            next,
            in_use,
        } => {
            write_head(out, 2, 0, *next, *sent_ns);
            out.extend_from_slice(&id.to_be_bytes());
            out.extend_from_slice(&in_use.to_be_bytes());
        }
        Body::Answer {
            id,
            sent_ns,
            answered_ns,
        } => {
            write_head(out, 3, 0, 0, *sent_ns);
            out.extend_from_slice(&id.to_be_bytes());
            out.extend_from_slice(&answered_ns.to_be_bytes());
        }
        Body::Train {
            id,
            index,
            count,
            sent_ns,
            bytes,
        } => {
            write_head(out, 5, 0, 0, *sent_ns);
            out.extend_from_slice(&id.to_be_bytes());
            out.extend_from_slice(&index.to_be_bytes());
            out.extend_from_slice(&count.to_be_bytes());
            let filled = out.len() + usize::from(*bytes).saturating_sub(TRAIN_BYTES);
            out.resize(filled, 0);
        }
        Body::Trained {
            id,
            received,
            span_ns,
        } => {
            write_head(out, 6, 0, 0, 0);
            out.extend_from_slice(&id.to_be_bytes());
            out.extend_from_slice(&received.to_be_bytes());
            out.extend_from_slice(&span_ns.to_be_bytes());
        }
        Body::Report(report) => write_report(out, report),
    }
}

fn write_report(out: &mut Vec<u8>, report: &Report) {
    write_head(out, 4, 0, 0, 0);
    let lanes = report.lanes.len().min(LANES_MAX);
    let asked = report.asked.len().min(ASKED_MAX);
    out.extend_from_slice(&[lanes as u8, asked as u8]);
    for lane in report.lanes.iter().take(lanes) {
        out.push(lane.lane);
        out.extend_from_slice(&lane.end.to_be_bytes());
        out.extend_from_slice(&lane.arrived.to_be_bytes());
        out.extend_from_slice(&lane.least_delay_ns.to_be_bytes());
    }
    for number in report.asked.iter().take(asked) {
        out.extend_from_slice(&number.to_be_bytes()[2..]);
    }
}

/// Reads the inside of a datagram.
///
/// # Errors
/// What is wrong with it; any bytes are allowed.
pub fn read_inside(bytes: &[u8]) -> Result<Body<Vec<u8>>, WireError> {
    let mut input = Input(bytes);
    let (kind, flags) = (input.u8()?, input.u8()?);
    let (number, stamp_ns) = (input.number(6)?, input.number(8)?);
    if flags & !(if kind == 1 { 7 } else { 0 }) != 0 {
        return Err(WireError::Flags(flags));
    }
    let body = match kind {
        1 => Body::Data {
            number,
            stamp_ns,
            again: flags & 1 != 0,
            copy: flags & 2 != 0,
            quick: flags & 4 != 0,
            packet: core::mem::take(&mut input.0).to_vec(),
        },
        2 => Body::Probe {
            id: input.number(4)? as u32,
            sent_ns: stamp_ns,
            next: number,
            in_use: input.number(2)? as u16,
        },
        3 => Body::Answer {
            id: input.number(4)? as u32,
            sent_ns: stamp_ns,
            answered_ns: input.number(8)?,
        },
        4 => Body::Report(input.report()?),
        5 => {
            // A datagram has at most 65,535 bytes.
            let bytes = input.0.len().min(usize::from(u16::MAX)) as u16;
            let body = Body::Train {
                id: input.number(4)? as u32,
                index: input.number(2)? as u16,
                count: input.number(2)? as u16,
                sent_ns: stamp_ns,
                bytes,
            };
            input.0 = &[];
            body
        }
        6 => Body::Trained {
            id: input.number(4)? as u32,
            received: input.number(2)? as u16,
            span_ns: input.number(8)?,
        },
        other => return Err(WireError::Kind(other)),
    };
    if input.0.is_empty() {
        Ok(body)
    } else {
        Err(WireError::Long)
    }
}

/// What is left to read.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn u8(&mut self) -> Result<u8, WireError> {
        Ok(self.number(1)? as u8)
    }

    /// A number of up to eight bytes.
    fn number(&mut self, bytes: usize) -> Result<u64, WireError> {
        let (number, rest) = self.0.split_at_checked(bytes).ok_or(WireError::Short)?;
        self.0 = rest;
        Ok(number.iter().fold(0, |n, b| n << 8 | u64::from(*b)))
    }

    fn report(&mut self) -> Result<Report, WireError> {
        let (lanes, asked) = (self.u8()?, self.u8()?);
        if usize::from(lanes) > LANES_MAX || usize::from(asked) > ASKED_MAX {
            return Err(WireError::Count(lanes.max(asked)));
        }
        let mut report = Report::default();
        for _ in 0..lanes {
            let lane = self.u8()?;
            if usize::from(lane) >= LANES_MAX {
                return Err(WireError::Count(lane));
            }
            report.lanes.push(LaneReport {
                lane,
                end: self.number(8)?,
                arrived: self.number(8)?,
                least_delay_ns: self.number(8)? as i64,
            });
        }
        for _ in 0..asked {
            report.asked.push(self.number(6)?);
        }
        Ok(report)
    }
}
