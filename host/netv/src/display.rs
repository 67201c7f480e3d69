//! A screen: each part of it holds the newest that has come.
//!
//! ```text
//!     part -> Joiner -> in time: held until its picture is shown
//!                   '-> late: put on the screen at once, below or above another picture's part
//! ```
//!
//! It knows no clock: the receiver gives it the kernel's stamps, the simulator virtual time.
//!
//! Order of calls: [`handle_part`](Display::handle_part) or a time passes, then [`poll`](Display::poll) until `None`, then sleep
//! until [`next_wakeup`](Display::next_wakeup).

use std::collections::BTreeMap;
use std::ops::Range;

use kuroshio_core::units::{PicoDuration, PicoTime};
use kuroshio_core::video::{FormatError, Geometry, JoinCounts, Joiner, Part, Shown};

/// What is shown.
pub struct Display {
    ranges: Vec<Range<usize>>,
    joiner: Joiner,
    /// Parts that wait to be shown.
    held: BTreeMap<(u32, usize), Vec<u8>>,
    picture: Vec<u8>,
    /// Jumps of stamps so far: the joiner forgot all.
    jumps: u64,
}

impl Display {
    /// A dark screen for pictures in `parts` parts, shown at most `wait` after their first one came.
    ///
    /// # Errors
    /// No such number of parts.
    pub fn new(geometry: Geometry, parts: u32, wait: PicoDuration) -> Result<Self, FormatError> {
        let ranges = (0..parts.max(1)).map(|i| geometry.part(i, parts).map(|(_, range)| range));
        let ranges = ranges.collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            joiner: Joiner::new(ranges.len(), wait),
            ranges,
            held: BTreeMap::new(),
            picture: vec![0; geometry.bytes()],
            jumps: 0,
        })
    }

    /// Takes a whole part of a picture, by its number from the top.
    pub fn handle_part(&mut self, index: usize, part: Part) {
        let late = !self.joiner.handle_part(part.last_at, index, part.timestamp);
        let jumps = self.joiner.counts().jumps;
        if jumps != self.jumps {
            self.jumps = jumps;
            self.held.clear();
        }
        if late {
            // Too late for its picture, but newer than what the screen shows there.
            self.put(index, &part.picture);
        } else {
            self.held.insert((part.timestamp, index), part.picture);
        }
    }

    fn put(&mut self, index: usize, part: &[u8]) {
        if let Some(place) = self
            .ranges
            .get(index)
            .and_then(|r| self.picture.get_mut(r.clone()))
            && place.len() == part.len()
        {
            place.copy_from_slice(part);
        }
    }

    /// Shows the next picture that is due by `now`.
    pub fn poll(&mut self, now: PicoTime) -> Option<Shown> {
        let shown = self.joiner.poll(now)?;
        for index in 0..self.ranges.len() {
            if let Some(part) = self.held.remove(&(shown.timestamp, index)) {
                self.put(index, &part);
            }
        }
        Some(shown)
    }

    /// When the oldest waiting picture is shown at the latest.
    pub fn next_wakeup(&self) -> Option<PicoTime> {
        self.joiner.next_wakeup()
    }

    /// What the screen shows: rows of pixel groups.
    pub fn picture(&self) -> &[u8] {
        &self.picture
    }

    /// What was shown so far.
    pub fn counts(&self) -> JoinCounts {
        self.joiner.counts()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pattern::{Pattern, pattern_number};
    use kuroshio_core::video::PixelFormat;

    /// The upper half comes at 10 ms a picture, the lower `behind` pictures later.
    fn numbers(behind: u64, wait: PicoDuration) -> (Vec<[Option<u16>; 2]>, JoinCounts) {
        let geometry = Geometry::new(64, 32, PixelFormat::Rgb8).expect("a size");
        let pattern = Pattern::new(geometry, 2);
        let mut display = Display::new(geometry, 2, wait).expect("two parts");
        let (mut whole, mut seen) = (Vec::new(), Vec::new());
        let mut give = |display: &mut Display, index: u32, number: u64, at: PicoTime| {
            pattern.draw(number, &mut whole);
            let (_, range) = geometry.part(index, 2).expect("a part");
            let part = Part {
                timestamp: number as u32 * 900,
                picture: whole[range].to_vec(),
                first_at: at,
                last_at: at,
            };
            display.handle_part(index as usize, part);
        };
        for step in 0..12u64 {
            let at = PicoTime::from_ms(10 * step);
            give(&mut display, 0, step, at);
            if let Some(number) = step.checked_sub(behind) {
                give(&mut display, 1, number, at);
            }
            while display.poll(at + PicoDuration::from_ms(5)).is_some() {
                let half = |index: u32| {
                    let (part, range) = geometry.part(index, 2).expect("a part");
                    pattern_number(part, &display.picture()[range])
                };
                seen.push([half(0), half(1)]);
            }
        }
        (seen, display.counts())
    }

    #[test]
    fn halves_of_one_time_are_whole() {
        let (seen, counts) = numbers(0, PicoDuration::from_ms(5));
        assert_eq!((counts.whole, counts.torn), (12, 0));
        let right: Vec<_> = (0..12).map(|n| [Some(n), Some(n)]).collect();
        assert_eq!(seen, right);
    }

    #[test]
    fn a_half_that_is_late_is_shown_beside_another_picture() {
        let (seen, counts) = numbers(4, PicoDuration::from_ms(5));
        assert_eq!((counts.whole, counts.torn, counts.late_parts), (0, 12, 8));
        assert_eq!(seen[11], [Some(11), Some(7)]);
    }

    #[test]
    fn one_who_waits_sees_them_whole() {
        // A longer wait than the halves are apart: they wait for each other.
        let (_, counts) = numbers(4, PicoDuration::from_ms(60));
        assert!(counts.whole > 0 && counts.late_parts == 0, "{counts:?}");
    }
}
