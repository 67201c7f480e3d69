//! Inter-frame-gap shapers of several streams on one port, under a ceiling in sum.
//!
//! ```text
//!   frame -> stream by filter -> its queue -> its gap ---\
//!   frame -> no filter: rest  -> queue --------------------> ceiling's gap -> wire -> departure
//! ```
//!
//! Each stream has the clock of an [`IfgShaper`] and so has the ceiling, which is the wire itself: with no
//! ceiling its gap is the wire's 12. A frame starts as soon as its stream's gap and the ceiling's gap
//! are over; of several that may start, the one that could first. So for every half-open window of T ps
//!
//! ```text
//!     bytes of a stream's frames that start in it   <=  stream's rate * T / 8 + one frame
//!     bytes of all frames that start in it          <=  ceiling * T / 8 + one frame
//! ```
//!
//! and without a ceiling the sum is at most that of the rates, and one frame of each stream. Frames that no filter
//! takes are held by the ceiling alone. Source: GNET-1 (paper 000), which shapes streams of a port apart.

use super::{Cargo, Departure, DropCause, Dropped, Stage, StageCounters};
use crate::{
    pace::{IfgShaper, Spacing},
    units::{FrameBytes, PicoTime, WireBytes},
    wire::{FlowKey, IFG_MIN, LineRate, PROTOCOL_TCP, PROTOCOL_UDP, pad},
};
use alloc::{collections::VecDeque, string::String, vec::Vec};
use core::{fmt, net::IpAddr, str::FromStr};

/// Most streams that are shaped apart on a port.
pub const MAX_SHAPED_STREAMS: usize = 64;

/// Which frames belong to a stream: all that is given must fit.
///
/// Text: `tcp` or `udp`, `src ADDRESS`, `dst ADDRESS`, `src port N`, `dst port N`, joined by blanks or `and`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StreamFilter {
    /// IP protocol number.
    pub protocol: Option<u8>,
    /// Sender's address.
    pub source: Option<IpAddr>,
    /// Receiver's address.
    pub destination: Option<IpAddr>,
    /// Sender's port.
    pub source_port: Option<u16>,
    /// Receiver's port.
    pub destination_port: Option<u16>,
}

impl StreamFilter {
    /// Whether a packet's stream is one of these.
    pub fn takes(&self, flow: &FlowKey) -> bool {
        self.protocol.is_none_or(|p| p == flow.protocol)
            && self.source.is_none_or(|a| a == flow.source)
            && self.destination.is_none_or(|a| a == flow.destination)
            && self.source_port.is_none_or(|p| p == flow.source_port)
            && self.destination_port.is_none_or(|p| p == flow.destination_port)
    }
}

/// A filter that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilterError {
    given: String,
}

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} is no stream: write tcp, udp, src ADDRESS, dst ADDRESS, src port N, dst port N, joined by and",
            self.given
        )
    }
}

impl core::error::Error for FilterError {}

impl FromStr for StreamFilter {
    type Err = FilterError;

    fn from_str(text: &str) -> Result<Self, FilterError> {
        let error = || FilterError {
            given: text.chars().take(80).collect(),
        };
        let mut filter = StreamFilter::default();
        let mut words = text.split_ascii_whitespace().filter(|w| *w != "and");
        let mut any = false;
        while let Some(word) = words.next() {
            any = true;
            let fresh = match word {
                "tcp" => filter.protocol.replace(PROTOCOL_TCP).is_none(),
                "udp" => filter.protocol.replace(PROTOCOL_UDP).is_none(),
                "src" | "dst" => {
                    let source = word == "src";
                    let next = words.next().ok_or_else(error)?;
                    if next == "port" {
                        let number = words.next().ok_or_else(error)?;
                        let digits = number.bytes().all(|b| b.is_ascii_digit());
                        let port = number.parse().ok().filter(|_| digits).ok_or_else(error)?;
                        let place = if source {
                            &mut filter.source_port
                        } else {
                            &mut filter.destination_port
                        };
                        place.replace(port).is_none()
                    } else {
                        let address = next.parse().map_err(|_| error())?;
                        let place = if source {
                            &mut filter.source
                        } else {
                            &mut filter.destination
                        };
                        place.replace(address).is_none()
                    }
                }
                _ => return Err(error()),
            };
            if !fresh {
                return Err(error());
            }
        }
        if any { Ok(filter) } else { Err(error()) }
    }
}

/// One stream's shaping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamShape {
    /// Which frames; the first filter that takes a frame has it.
    pub filter: StreamFilter,
    /// The gap after each.
    pub spacing: Spacing,
    /// Most bytes of frames that wait (drop-tail).
    pub queue_limit: FrameBytes,
}

/// What a [`StreamShaper`] is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamShaperConfig {
    /// L1 rate of the wire that it sends on.
    pub line: LineRate,
    /// The streams, at most [`MAX_SHAPED_STREAMS`]; more are taken for the rest.
    pub streams: Vec<StreamShape>,
    /// What holds all frames together: by rate, or the wire's gap of 12 without.
    pub ceiling: Option<Spacing>,
    /// Most bytes of frames of no stream that wait.
    pub rest_queue_limit: FrameBytes,
}

#[derive(Debug, Clone)]
struct Lane<T> {
    /// None for the rest.
    filter: Option<StreamFilter>,
    clock: Option<IfgShaper>,
    queue: VecDeque<(PicoTime, FrameBytes, T)>,
    queued: FrameBytes,
    limit: FrameBytes,
}

impl<T> Lane<T> {
    /// When its gap is over, to a whole ps.
    fn free_at(&self) -> PicoTime {
        self.clock.map_or(PicoTime::ZERO, |clock| clock.free_at())
    }
}

/// Shapers of several streams on one wire.
#[derive(Debug, Clone)]
pub struct StreamShaper<T> {
    now: PicoTime,
    wire: IfgShaper,
    /// The streams in their order, then the rest.
    lanes: Vec<Lane<T>>,
    flight: VecDeque<(PicoTime, FrameBytes, T)>,
    counters: StageCounters,
}

impl<T> StreamShaper<T> {
    /// Idle shapers.
    pub fn new(config: StreamShaperConfig) -> Self {
        let lane = |filter, clock, limit| Lane {
            filter,
            clock,
            queue: VecDeque::new(),
            queued: FrameBytes::ZERO,
            limit,
        };
        let line = config.line;
        let streams = config.streams.into_iter().take(MAX_SHAPED_STREAMS);
        let mut lanes: Vec<_> = streams
            .map(|s| {
                let clock = IfgShaper::new(line, s.spacing);
                lane(Some(s.filter), Some(clock), s.queue_limit)
            })
            .collect();
        lanes.push(lane(None, None, config.rest_queue_limit));
        let ceiling = config.ceiling.unwrap_or(Spacing::Gap(WireBytes::new(IFG_MIN)));
        StreamShaper {
            now: PicoTime::ZERO,
            wire: IfgShaper::new(line, ceiling),
            lanes,
            flight: VecDeque::new(),
            counters: StageCounters::default(),
        }
    }

    /// Changes the ceiling for frames that start after `now`.
    pub fn set_ceiling(&mut self, now: PicoTime, spacing: Spacing) {
        self.serve(now);
        self.wire.set_spacing(spacing);
    }

    /// Changes a stream's spacing, by its number, for frames that start after `now`; `false` when there is none.
    pub fn set_spacing(&mut self, now: PicoTime, stream: usize, spacing: Spacing) -> bool {
        self.serve(now);
        let clock = self.lanes.get_mut(stream).and_then(|lane| lane.clock.as_mut());
        clock.map(|clock| clock.set_spacing(spacing)).is_some()
    }

    /// The lane whose first frame starts next, and when.
    fn candidate(&self) -> Option<(usize, PicoTime)> {
        let heads = self.lanes.iter().enumerate().filter_map(|(number, lane)| {
            let (arrived, ..) = lane.queue.front()?;
            Some((lane.free_at().max(*arrived), number))
        });
        // The one that could start first; of several, the first stream.
        let (ready, number) = heads.min()?;
        Some((number, ready.max(self.wire.free_at())))
    }

    /// Starts every frame whose turn comes by `now`; returns `now`, never going back.
    fn serve(&mut self, now: PicoTime) -> PicoTime {
        self.now = self.now.max(now);
        while let Some((number, start)) = self.candidate() {
            if start > self.now {
                break;
            }
            let Some(lane) = self.lanes.get_mut(number) else {
                break;
            };
            let Some((_, len, token)) = lane.queue.pop_front() else {
                break;
            };
            lane.queued -= len;
            self.counters.queued -= len;
            self.start(number, start, len, token);
        }
        self.now
    }

    fn start(&mut self, number: usize, start: PicoTime, len: FrameBytes, token: T) {
        if let Some(clock) = self.lanes.get_mut(number).and_then(|lane| lane.clock.as_mut()) {
            clock.depart(start, len);
        }
        let slot = self.wire.depart(start, len);
        self.flight.push_back((slot.end, len, token));
    }
}

impl<T: Cargo> StreamShaper<T> {
    fn lane_of(&self, token: &T) -> usize {
        let rest = self.lanes.len() - 1;
        let Some(packet) = token.packet() else { return rest };
        let takes = |lane: &Lane<T>| lane.filter.is_some_and(|f| f.takes(&packet.flow));
        self.lanes.iter().position(takes).unwrap_or(rest)
    }
}

impl<T: Cargo> Stage<T> for StreamShaper<T> {
    fn handle_frame(&mut self, now: PicoTime, len: FrameBytes, token: T) -> Result<(), Dropped<T>> {
        let len = pad(len);
        let now = self.serve(now);
        self.counters.arrived.add(len);
        let number = self.lane_of(&token);
        let wire_free = self.wire.free_at() <= now;
        let dropped = |token| Dropped {
            cause: DropCause::QueueFull,
            token,
        };
        let Some(lane) = self.lanes.get_mut(number) else {
            return Err(dropped(token));
        };
        // Behind `serve`, no other frame may start now.
        if wire_free && lane.queue.is_empty() && lane.free_at() <= now {
            self.counters.held.add(len);
            self.start(number, now, len, token);
            return Ok(());
        }
        let queued = lane.queued + len;
        if queued > lane.limit {
            self.counters.queue_full.add(len);
            return Err(dropped(token));
        }
        lane.queued = queued;
        lane.queue.push_back((now, len, token));
        self.counters.held.add(len);
        self.counters.queued += len;
        self.counters.queued_max = self.counters.queued_max.max(self.counters.queued);
        Ok(())
    }

    fn poll(&mut self, now: PicoTime) -> Option<Departure<T>> {
        let now = self.serve(now);
        if self.flight.front()?.0 > now {
            return None;
        }
        let (at, len, token) = self.flight.pop_front()?;
        self.counters.held.remove(len);
        self.counters.departed.add(len);
        Some(Departure { at, len, token })
    }

    fn next_wakeup(&self) -> Option<PicoTime> {
        if let Some((at, ..)) = self.flight.front() {
            return Some(*at);
        }
        let (number, start) = self.candidate()?;
        let (_, len, _) = self.lanes.get(number)?.queue.front()?;
        let mut wire = self.wire;
        Some(wire.depart(start, *len).end)
    }

    fn counters(&self) -> StageCounters {
        self.counters
    }
}
