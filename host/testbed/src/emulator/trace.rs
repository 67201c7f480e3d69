//! A record of frames by their scheduled times, in memory that is made before.

use kuroshio_core::units::PicoTime;

/// Where a frame was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Point {
    /// It arrives at the shaper of a port (by number).
    ShaperIn(u16),
    /// It arrives at a direction of a link (by number), before its queue.
    LinkIn(u16),
    /// It has crossed a direction of a link.
    LinkOut(u16),
    /// It arrives at the router's queue before a port's wire (by the port's number).
    EgressIn(u16),
    /// It arrives at a card that drains at a rate of its own (by the port's number).
    CardIn(u16),
    /// It has left for the port's host.
    PortOut(u16),
    /// It arrives at the host's own wire (by the port's number), before the card's queue.
    PortIn(u16),
}

/// What happened to it there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fate {
    /// It goes on.
    Passed,
    /// The queue was full.
    QueueFull,
    /// The queue's discipline refused it at its arrival.
    Refused,
    /// Its packet was larger than the link's MTU.
    TooBig,
    /// A fault was asked for.
    Fault,
}

/// One frame at one point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceRecord {
    /// The exact, scheduled time.
    pub at: PicoTime,
    /// Where.
    pub point: Point,
    /// Whether it went on.
    pub fate: Fate,
    /// Frame-level bytes.
    pub frame_len: u32,
    /// Bytes after the transport header.
    pub payload_len: u16,
    /// Number of the port it came from.
    pub from_port: u16,
    /// Transport source port, 0 for none.
    pub src_port: u16,
    /// Transport destination port, 0 for none.
    pub dst_port: u16,
}

/// The records of a trace, in the order of their times at each point.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trace {
    /// The records.
    pub records: Vec<TraceRecord>,
    /// Records that found no room.
    pub lost: u64,
}

impl Trace {
    pub(crate) fn with_room(records: usize) -> Self {
        let mut trace = Self {
            records: Vec::with_capacity(records),
            lost: 0,
        };
        // Touch the memory now rather than in the run.
        let blank = TraceRecord {
            at: PicoTime::MAX,
            point: Point::PortIn(u16::MAX),
            fate: Fate::Fault,
            frame_len: u32::MAX,
            payload_len: u16::MAX,
            from_port: u16::MAX,
            src_port: u16::MAX,
            dst_port: u16::MAX,
        };
        trace.records.resize(records, blank);
        trace.records.clear();
        trace
    }

    pub(super) fn push(&mut self, record: TraceRecord) {
        if self.records.len() < self.records.capacity() {
            self.records.push(record);
        } else {
            self.lost += 1;
        }
    }
}
