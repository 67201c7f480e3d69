//! Datagrams of one stream back into pictures.
//!
//! A picture is done when every pixel group of it has come, in any order, however often. [`MAX_PENDING`] pictures
//! are under way at once; a new one beyond that gives up the oldest, and what still comes of it is counted late.
//! Memory is bounded by that number of pictures and their maps, whatever comes.

use super::format::Geometry;
use super::rtp::{Packet, PacketError};
use crate::units::PicoTime;
use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

/// Pictures of a stream under way at once.
pub const MAX_PENDING: usize = 4;
/// Stamps of pictures that are over, kept to know what comes late.
const REMEMBERED: usize = 16;

/// A whole picture of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// RTP time stamp.
    pub timestamp: u32,
    /// Rows of pixel groups.
    pub picture: Vec<u8>,
    /// When its first datagram came.
    pub first_at: PicoTime,
    /// When the datagram came that made it whole.
    pub last_at: PicoTime,
}

/// What a stream has seen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AssemblerCounts {
    /// Datagrams that were taken.
    pub datagrams: u64,
    /// Datagrams that were refused.
    pub refused: u64,
    /// Datagrams of pictures that were over.
    pub late: u64,
    /// Datagrams that brought nothing new.
    pub duplicate: u64,
    /// Whole pictures.
    pub pictures: u64,
    /// Pictures that were given up with something missing.
    pub incomplete: u64,
    /// Changes of the source.
    pub sources: u64,
}

struct Pending {
    timestamp: u32,
    picture: Vec<u8>,
    /// One bit for each pixel group.
    seen: Vec<u64>,
    missing: usize,
    first_at: PicoTime,
}

/// Puts one stream together.
pub struct Assembler {
    geometry: Geometry,
    payload_type: u8,
    ssrc: Option<u32>,
    pending: VecDeque<Pending>,
    over: VecDeque<u32>,
    spare: Vec<Vec<u8>>,
    counts: AssemblerCounts,
}

impl Assembler {
    /// A stream of pictures of `geometry`.
    pub fn new(geometry: Geometry, payload_type: u8) -> Self {
        Assembler {
            geometry,
            payload_type,
            ssrc: None,
            pending: VecDeque::new(),
            over: VecDeque::new(),
            spare: Vec::new(),
            counts: AssemblerCounts::default(),
        }
    }

    /// What was seen so far.
    pub fn counts(&self) -> AssemblerCounts {
        self.counts
    }

    /// Gives back the memory of a picture that is not needed any more.
    pub fn recycle(&mut self, picture: Vec<u8>) {
        if self.spare.len() < MAX_PENDING && picture.len() == self.geometry.bytes() {
            self.spare.push(picture);
        }
    }

    /// Takes a datagram; gives the picture that it made whole.
    ///
    /// # Errors
    /// Why it was refused; nothing of it was taken then.
    pub fn handle(&mut self, now: PicoTime, datagram: &[u8]) -> Result<Option<Part>, PacketError> {
        let done = self.take(now, datagram);
        match done {
            Ok(_) => self.counts.datagrams += 1,
            Err(_) => self.counts.refused += 1,
        }
        done
    }

    fn take(&mut self, now: PicoTime, datagram: &[u8]) -> Result<Option<Part>, PacketError> {
        let packet = Packet::parse(datagram)?;
        if packet.payload_type != self.payload_type {
            return Err(PacketError::PayloadType);
        }
        for segment in packet.segments() {
            self.place(
                segment.line,
                segment.offset,
                segment.data.len(),
                segment.second_field,
            )?;
        }
        if self.ssrc != Some(packet.ssrc) {
            self.counts.sources += u64::from(self.ssrc.is_some());
            self.ssrc = Some(packet.ssrc);
            while self.give_up() {}
            self.over.clear();
        }
        if self.over.contains(&packet.timestamp) {
            self.counts.late += 1;
            return Ok(None);
        }
        let at = self.find(packet.timestamp, now);
        let group = self.geometry.format().group_bytes() as usize;
        let mut fresh = 0;
        for segment in packet.segments() {
            let Ok(start) = self.place(segment.line, segment.offset, segment.data.len(), false) else {
                continue;
            };
            let Some(pending) = self.pending.get_mut(at) else {
                continue;
            };
            let new = mark(&mut pending.seen, start / group, segment.data.len() / group);
            if new > 0 {
                pending.picture[start..start + segment.data.len()].copy_from_slice(segment.data);
            }
            pending.missing = pending.missing.saturating_sub(new);
            fresh += new;
        }
        self.counts.duplicate += u64::from(fresh == 0);
        if self.pending.get(at).is_none_or(|p| p.missing > 0) {
            return Ok(None);
        }
        let done = self.pending.remove(at);
        Ok(done.map(|pending| {
            self.remember(pending.timestamp);
            self.counts.pictures += 1;
            Part {
                timestamp: pending.timestamp,
                picture: pending.picture,
                first_at: pending.first_at,
                last_at: now,
            }
        }))
    }

    /// Where a segment's bytes go.
    fn place(&self, line: u16, offset: u16, bytes: usize, second_field: bool) -> Result<usize, PacketError> {
        if second_field {
            return Err(PacketError::Interlaced);
        }
        let (geometry, format) = (self.geometry, self.geometry.format());
        let (line, offset) = (u32::from(line), u32::from(offset));
        let group = format.group_bytes() as usize;
        let whole = line.is_multiple_of(format.group_lines())
            && offset.is_multiple_of(format.group_pixels())
            && bytes.is_multiple_of(group);
        let start = (offset / format.group_pixels()) as usize * group;
        if !whole || line >= geometry.height() || start + bytes > geometry.row_bytes() {
            return Err(PacketError::Place);
        }
        Ok((line / format.group_lines()) as usize * geometry.row_bytes() + start)
    }

    /// The place of a picture among those under way, made when it is new.
    fn find(&mut self, timestamp: u32, now: PicoTime) -> usize {
        if let Some(at) = self.pending.iter().position(|p| p.timestamp == timestamp) {
            return at;
        }
        if self.pending.len() == MAX_PENDING {
            self.give_up();
        }
        let groups = self.geometry.bytes() / self.geometry.format().group_bytes() as usize;
        self.pending.push_back(Pending {
            timestamp,
            // What is old in a spare picture is overwritten before the picture is whole.
            picture: self.spare.pop().unwrap_or_else(|| vec![0; self.geometry.bytes()]),
            seen: vec![0; groups.div_ceil(64)],
            missing: groups,
            first_at: now,
        });
        self.pending.len() - 1
    }

    fn give_up(&mut self) -> bool {
        let Some(old) = self.pending.pop_front() else {
            return false;
        };
        self.counts.incomplete += 1;
        self.remember(old.timestamp);
        self.recycle(old.picture);
        true
    }

    fn remember(&mut self, timestamp: u32) {
        if self.over.len() == REMEMBERED {
            self.over.pop_front();
        }
        self.over.push_back(timestamp);
    }
}

/// Sets `count` bits from `start` on and returns how many were not set before.
fn mark(bits: &mut [u64], start: usize, count: usize) -> usize {
    let (mut at, end, mut new) = (start, start + count, 0);
    while at < end {
        let (word, bit) = (at / 64, at % 64);
        let run = (64 - bit).min(end - at);
        let mask = (u64::MAX >> (64 - run)) << bit;
        if let Some(word) = bits.get_mut(word) {
            new += (mask & !*word).count_ones() as usize;
            *word |= mask;
        }
        at += run;
    }
    new
}
