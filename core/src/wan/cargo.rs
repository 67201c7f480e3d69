//! What a link needs of a frame.
//!
//! Most stages move a token and never look at it. Marking, corruption, rewriting, duplication and frames
//! lost by name do: they work on [`Cargo`]. A live frame gives its bytes and all of it works by itself; a
//! simulated segment has none and answers [`packet`](Cargo::packet), [`mark`](Cargo::mark) and
//! [`copy`](Cargo::copy) instead.

use super::ecn::{self, Mark};
use crate::units::{FrameBytes, PicoTime};
use crate::wire::{Packet, packet_of};
use alloc::vec::Vec;

/// A frame, or what stands for one.
pub trait Cargo: Sized {
    /// The frame, MAC header first, without FCS; empty when there is only a token.
    fn bytes(&self) -> &[u8] {
        &[]
    }

    /// The same, to be changed.
    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut []
    }

    /// Makes the frame `len` bytes long, keeping what is in front; new bytes at the end are anything.
    /// `false`, and no change, when that cannot be done.
    fn resize(&mut self, len: usize) -> bool {
        let _ = len;
        false
    }

    /// Another frame of the same content; `None` when that cannot be had.
    fn copy(&self) -> Option<Self> {
        None
    }

    /// The IP packet in the frame.
    fn packet(&self) -> Option<Packet> {
        packet_of(self.bytes())
    }

    /// Marks the packet as one that has met congestion.
    fn mark(&mut self) -> Mark {
        ecn::mark(self.bytes_mut())
    }

    /// The link had taken this frame of `len` and lost it at `at`: the last that is heard of it.
    fn gone(self, at: PicoTime, len: FrameBytes, how: Gone) {
        let _ = (at, len, how);
    }
}

/// How a frame is lost that a link had taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gone {
    /// By the loss model or by name, where it would have arrived.
    Lost,
    /// By the discipline (CoDel), where it would have been serialised.
    Aqm,
}

impl Cargo for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self
    }

    fn resize(&mut self, len: usize) -> bool {
        Vec::resize(self, len, 0);
        true
    }

    fn copy(&self) -> Option<Self> {
        Some(self.clone())
    }
}

macro_rules! numbers {
    ($($number:ty),*) => {
        $(impl Cargo for $number {
            fn copy(&self) -> Option<Self> {
                Some(*self)
            }
        })*
    };
}

numbers!(u32, u64, usize, ());
