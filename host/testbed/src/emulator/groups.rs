//! Segments that leave a port: neighbours leave together, as a card with receive offload would hand them up.
//!
//! ```text
//!  segment at t -> its flow's group (opened at t0)
//!                    | t >= t0 + quantum, or it does not follow          -> the group is written, the segment opens one
//!                    | PSH, FIN, shorter than the others, 64 KiB         -> written with it at t
//!                    | nothing comes until t0 + quantum                  -> written then
//!  anything else (ACK, UDP, whole checksum): its flow's group is written first, then it, at once
//! ```
//!
//! So a group holds what departed within one quantum and no more, no segment is written before its exact departure, and
//! none later than a quantum after it. Which segments are together follows from exact times alone. Order is kept within a
//! flow, not between flows.

use std::io::IoSlice;

use kuroshio_core::units::{FrameBytes, PicoDuration, PicoTime};
use kuroshio_core::wan::Count;
use kuroshio_port::segment::{FlowBytes, Run, Vnet};

use super::pool::Frame;

/// Groups of one port that are open at one time; one more, and the oldest is written.
const MAX_OPEN: usize = 16;

/// Longest header of a TCP segment: MAC with two tags, IPv6 with extensions, TCP with options.
const MAX_HEADER: usize = 256;

struct Group {
    opened: PicoTime,
    flow: FlowBytes,
    run: Run,
    frames: Vec<Frame>,
    count: Count,
}

/// The open groups of one port.
pub(super) struct Groups {
    quantum: PicoDuration,
    /// In the order in which they were opened.
    open: Vec<Group>,
    spare: Vec<Vec<Frame>>,
}

/// What is to be written: when it was due, what it counts as, and its parts.
pub(super) trait Writer {
    fn write(&mut self, due: PicoTime, count: Count, parts: &[IoSlice<'_>]);
}

impl<F: FnMut(PicoTime, Count, &[IoSlice<'_>])> Writer for F {
    fn write(&mut self, due: PicoTime, count: Count, parts: &[IoSlice<'_>]) {
        self(due, count, parts);
    }
}

impl Groups {
    pub fn new(quantum: PicoDuration) -> Self {
        Self {
            quantum,
            open: Vec::with_capacity(MAX_OPEN),
            spare: Vec::new(),
        }
    }

    /// When the next group is due, ps of the run.
    pub fn next_ps(&self) -> u64 {
        self.open
            .first()
            .map_or(u64::MAX, |g| (g.opened + self.quantum).as_ps())
    }

    /// Segments in open groups.
    pub fn held(&self) -> Count {
        let mut held = Count::default();
        for group in &self.open {
            held.frames += group.count.frames;
            held.bytes += group.count.bytes;
        }
        held
    }

    /// Writes the groups whose quantum is over.
    pub fn flush(&mut self, now: PicoTime, out: &mut impl Writer) {
        while self.next_ps() <= now.as_ps() {
            let due = PicoTime::from_ps(self.next_ps());
            self.close(0, due, out);
        }
    }

    /// A frame of `len` leaves at `at`.
    pub fn push(&mut self, at: PicoTime, len: FrameBytes, frame: Frame, out: &mut impl Writer) {
        self.flush(at, out);
        let partial = frame.meta().partial;
        let flow = match partial {
            Some(partial) => FlowBytes::of(frame.bytes(), partial),
            None => self.make_way(at, frame.bytes(), out),
        };
        let mut count = Count::default();
        count.add(len);
        if let (Some(flow), Some(partial)) = (flow, partial) {
            let place = self.open.iter().position(|g| g.flow == flow);
            if let Some(place) = place {
                let group = &mut self.open[place];
                let first = group.frames.first().map_or(&[][..], Frame::bytes);
                if group.run.join(first, frame.bytes(), partial) {
                    group.count.add(len);
                    group.frames.push(frame);
                    if group.run.ended() {
                        self.close(place, at, out);
                    }
                    return;
                }
                self.close(place, at, out);
            }
            if let Some(run) = Run::start(frame.bytes(), partial).filter(|r| !r.ended()) {
                if self.open.len() == MAX_OPEN {
                    self.close(0, at, out);
                }
                let mut frames = self.spare.pop().unwrap_or_default();
                frames.push(frame);
                self.open.push(Group {
                    opened: at,
                    flow,
                    run,
                    frames,
                    count,
                });
                return;
            }
        }
        let header = Vnet::single(partial).write();
        out.write(at, count, &[IoSlice::new(&header), IoSlice::new(frame.bytes())]);
    }

    /// Writes the group of a frame's flow before a frame that cannot join it; every group when the flow cannot be told.
    fn make_way(&mut self, at: PicoTime, frame: &[u8], out: &mut impl Writer) -> Option<FlowBytes> {
        if self.open.is_empty() {
            return None;
        }
        match FlowBytes::find(frame) {
            Ok(flow) => {
                let place = self.open.iter().position(|g| Some(g.flow) == flow);
                if let Some(place) = place {
                    self.close(place, at, out);
                }
            }
            Err(_) => {
                while !self.open.is_empty() {
                    self.close(0, at, out);
                }
            }
        }
        None
    }

    fn close(&mut self, place: usize, due: PicoTime, out: &mut impl Writer) {
        let mut group = self.open.remove(place);
        let len = group.run.header_len();
        let mut header = [0; MAX_HEADER];
        let first = group.frames.first().map_or(&[][..], Frame::bytes);
        let last = group.frames.last().map_or(&[][..], Frame::bytes);
        match (header.get_mut(..len), first.get(..len)) {
            (Some(header), Some(from)) if group.frames.len() > 1 => {
                header.copy_from_slice(from);
                let vnet = group.run.finish(header, last).write();
                let mut parts = Vec::with_capacity(group.frames.len() + 2);
                parts.extend([IoSlice::new(&vnet), IoSlice::new(header)]);
                parts.extend(
                    group
                        .frames
                        .iter()
                        .map(|f| IoSlice::new(f.bytes().get(len..).unwrap_or(&[]))),
                );
                out.write(due, group.count, &parts);
            }
            _ => {
                // One alone, or headers longer than any that can be: each as it is.
                for frame in &group.frames {
                    let vnet = Vnet::single(frame.meta().partial).write();
                    let mut count = Count::default();
                    count.add(kuroshio_core::wire::frame_of_capture(frame.bytes().len()));
                    out.write(due, count, &[IoSlice::new(&vnet), IoSlice::new(frame.bytes())]);
                }
            }
        }
        group.frames.clear();
        self.spare.push(group.frames);
    }
}

#[cfg(test)]
#[path = "groups_tests.rs"]
mod tests;
