//! Corruption that changes the frame.
//!
//! Bits behind the MAC header are flipped, each a different one, so that the frame still arrives where it was
//! sent and its end has to notice. A port that checks the FCS would discard such a frame; a TAP device has no FCS, and
//! the IP, TCP or UDP checksum notices in its place. `ChecksumKept` changes two words of the payload so that not even
//! those do: only a digest of the data finds it.

use super::{
    cargo::Cargo,
    header::{put, word},
    random::{Chance, Random},
};
use crate::{units::Ratio, wire::ETHERNET_HEADER};

/// Most bits that are flipped in one frame.
pub const MAX_FLIPS: u32 = 64;

/// How a frame is damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Damage {
    /// So many different bits behind the MAC header are flipped, 1 to [`MAX_FLIPS`].
    Bits(u32),
    /// Two words of the payload change and the Internet checksum stays right (RFC 1071).
    ChecksumKept,
}

/// Which frames are damaged, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Corruption {
    /// Share of the frames.
    pub ratio: Ratio,
    /// What is done to them.
    pub damage: Damage,
}

impl Corruption {
    /// No frame.
    pub const NONE: Corruption = Corruption {
        ratio: Ratio::ZERO,
        damage: Damage::Bits(1),
    };
}

#[derive(Debug, Clone)]
pub(super) struct Corrupter {
    chance: Chance,
    damage: Damage,
    random: Random,
}

impl Corrupter {
    pub fn new(seed: u64) -> Self {
        Corrupter {
            chance: Chance::new(Random::of(seed, 5)),
            damage: Damage::Bits(1),
            random: Random::of(seed, 6),
        }
    }

    pub fn set(&mut self, corruption: Corruption) {
        self.chance.set(corruption.ratio);
        self.damage = corruption.damage;
    }

    #[inline]
    pub fn draw(&mut self) -> bool {
        self.chance.draw()
    }

    /// Damages a frame; `false` when there is nothing in it that could be.
    pub fn damage(&mut self, cargo: &mut impl Cargo) -> bool {
        match self.damage {
            Damage::Bits(count) => flip(cargo.bytes_mut(), count, &mut self.random),
            Damage::ChecksumKept => {
                let payload = cargo.packet().map_or(0, |p| p.payload.get());
                keep_checksum(cargo.bytes_mut(), payload)
            }
        }
    }
}

/// Flips different bits: a set of `count` out of `all` is drawn by Floyd's method (Bentley, CACM 1987).
fn flip(frame: &mut [u8], count: u32, random: &mut Random) -> bool {
    let Some(body) = frame.get_mut(ETHERNET_HEADER as usize..) else {
        return false;
    };
    let all = body.len() as u64 * 8;
    let count = u64::from(count.min(MAX_FLIPS)).min(all);
    let mut chosen = [u64::MAX; MAX_FLIPS as usize];
    for (slot, last) in (all - count..all).enumerate() {
        let bit = random.below(last + 1);
        let bit = if chosen.iter().take(slot).any(|c| *c == bit) {
            last
        } else {
            bit
        };
        if let Some(place) = chosen.get_mut(slot) {
            *place = bit;
        }
        if let Some(byte) = body.get_mut((bit / 8) as usize) {
            *byte ^= 1 << (bit % 8);
        }
    }
    count > 0
}

/// Adds one to a 16-bit word in the middle of the payload and takes one from the next, in the ones'
/// complement arithmetic of the checksum. The IP header is at an even offset, so words are too.
fn keep_checksum(frame: &mut [u8], payload: u64) -> bool {
    let Ok(payload) = usize::try_from(payload) else {
        return false;
    };
    if payload < 8 || payload > frame.len() {
        return false;
    }
    let middle = frame.len() - payload + payload / 2;
    let at = (middle - 2) & !1;
    let (Some(one), Some(two)) = (word(frame, at), word(frame, at + 2)) else {
        return false;
    };
    put(frame, at, if one == 0xffff { 1 } else { one + 1 });
    put(frame, at + 2, if two == 0 { 0xfffe } else { two - 1 });
    true
}
