//! A test pattern that shows a torn picture: colour bars that move sideways, so that parts of different times
//! do not meet at their edge, and in each part a strip of blocks that spells the number of the picture.
//!
//! ```text
//!     +---------------------------+
//!     |#_##_#__ ... number        |  part 0
//!     |  |   |   |   |   |   |    |  bars, one step of 1/64 of the width per picture
//!     +---------------------------+
//!     |#_##_#__ ... number        |  part 1
//! ```
//!
//! Bars: white, yellow, cyan, green, magenta, red, blue, black at 75 % (SMPTE EG 1), in RGB or BT.709.

use kuroshio_core::video::{Geometry, Sampling};

use crate::convert::solid;

/// Blocks of the strip: bits of the picture's number, the lowest first.
const BITS: usize = 16;
/// Rows of the strip, at most a quarter of a part.
const STRIP_ROWS: usize = 16;
const RGB: [[u16; 3]; 8] = [
    [191, 191, 191],
    [191, 191, 0],
    [0, 191, 191],
    [0, 191, 0],
    [191, 0, 191],
    [191, 0, 0],
    [0, 0, 191],
    [0, 0, 0],
];
const YCBCR: [[u16; 3]; 8] = [
    [180, 128, 128],
    [168, 44, 136],
    [145, 147, 44],
    [133, 63, 52],
    [63, 193, 204],
    [51, 109, 212],
    [28, 212, 120],
    [16, 128, 128],
];

/// Makes pictures.
pub struct Pattern {
    geometry: Geometry,
    parts: u32,
    /// Two widths of bars: a picture's rows begin somewhere in the first.
    bars: Vec<u8>,
    dark: Vec<u8>,
    light: Vec<u8>,
}

fn colour(geometry: Geometry, bar: usize) -> Vec<u8> {
    let scale = if geometry.format().bits() == 10 { 4 } else { 1 };
    let table = if geometry.format().sampling() == Sampling::Rgb {
        RGB
    } else {
        YCBCR
    };
    solid(geometry.format(), table[bar % 8].map(|v| v * scale))
}

fn groups(geometry: Geometry) -> usize {
    (geometry.width() / geometry.format().group_pixels()) as usize
}

fn strip_rows(part: Geometry) -> usize {
    STRIP_ROWS.min((part.rows() as usize).div_ceil(4))
}

/// Groups from block `bit` of the strip to its end.
fn block(geometry: Geometry, bit: usize) -> std::ops::Range<usize> {
    let all = groups(geometry);
    bit * all / BITS..(bit + 1) * all / BITS
}

impl Pattern {
    /// Pictures of `geometry` that will be sent in `parts` parts.
    #[must_use]
    pub fn new(geometry: Geometry, parts: u32) -> Self {
        let all = groups(geometry);
        let row: Vec<u8> = (0..all).flat_map(|g| colour(geometry, g * 8 / all)).collect();
        Self {
            geometry,
            parts,
            bars: row.repeat(2),
            dark: colour(geometry, 7),
            light: colour(geometry, 0),
        }
    }

    /// Draws picture `number`, replacing what `out` held.
    pub fn draw(&self, number: u64, out: &mut Vec<u8>) {
        let (geometry, all) = (self.geometry, groups(self.geometry));
        let group = geometry.format().group_bytes() as usize;
        let shift = (number % 64) as usize * all / 64 * group;
        let row = self
            .bars
            .get(shift..shift + geometry.row_bytes())
            .unwrap_or_default();
        out.clear();
        out.reserve(geometry.bytes());
        for _ in 0..geometry.rows() {
            out.extend_from_slice(row);
        }
        let mut strip = Vec::with_capacity(geometry.row_bytes());
        for bit in 0..BITS {
            let colour = if number >> bit & 1 == 1 {
                &self.light
            } else {
                &self.dark
            };
            block(geometry, bit).for_each(|_| strip.extend_from_slice(colour));
        }
        for part in 0..self.parts {
            let Ok((part, range)) = geometry.part(part, self.parts) else {
                continue;
            };
            for row in 0..strip_rows(part) {
                let at = range.start + row * geometry.row_bytes();
                out[at..at + strip.len()].copy_from_slice(&strip);
            }
        }
    }
}

/// The number that a part of a pattern spells, modulo 2^16; `None` when it is not of a pattern.
#[must_use]
pub fn pattern_number(part: Geometry, picture: &[u8]) -> Option<u16> {
    let (dark, light) = (colour(part, 7), colour(part, 0));
    let group = part.format().group_bytes() as usize;
    let mut number = 0;
    for bit in 0..BITS {
        let at = block(part, bit).start * group;
        let here = picture.get(at..at + group)?;
        match (here == dark, here == light) {
            (true, _) => {}
            (_, true) => number |= 1 << bit,
            _ => return None,
        }
    }
    Some(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kuroshio_core::video::PixelFormat;

    #[test]
    fn each_part_spells_its_number() {
        for format in PixelFormat::ALL {
            let geometry = Geometry::new(320, 180, format).expect("a size");
            let pattern = Pattern::new(geometry, 3);
            let mut picture = Vec::new();
            for number in [0, 1, 0xabcd] {
                pattern.draw(number, &mut picture);
                assert_eq!(picture.len(), geometry.bytes());
                for part in 0..3 {
                    let (part, range) = geometry.part(part, 3).expect("a part");
                    assert_eq!(
                        pattern_number(part, &picture[range]),
                        Some(number as u16),
                        "{format}"
                    );
                }
            }
            assert_eq!(pattern_number(geometry, &vec![77; geometry.bytes()]), None);
        }
    }

    #[test]
    fn edges_move() {
        let geometry = Geometry::new(640, 90, PixelFormat::Rgb8).expect("a size");
        let (pattern, mut a, mut b) = (Pattern::new(geometry, 1), Vec::new(), Vec::new());
        pattern.draw(4, &mut a);
        pattern.draw(5, &mut b);
        let last = geometry.bytes() - geometry.row_bytes();
        assert_eq!(a[last + 30..], b[last..geometry.bytes() - 30]);
        assert_ne!(a[last..], b[last..]);
    }
}
