//! Faults of a link on demand: frames lost, bits flipped, the link cut.

/// How a frame is damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Damage {
    /// One bit of the payload is flipped: TCP's checksum notices and the segment is sent again.
    Bit,
    /// Two words of the payload are changed so that the checksum stays right: only a digest of
    /// the data notices.
    ChecksumKept,
}

/// What is to be done to the frames of one direction of a link.
#[derive(Debug, Default)]
pub(super) struct Faults {
    pub cut: bool,
    pub drop_next: u64,
    pub corrupt_next: Option<(u64, Damage)>,
    pub corrupt_every: Option<(u64, Damage)>,
    since_corrupt: u64,
    pub dropped: u64,
    pub corrupted: u64,
}

impl Faults {
    /// Whether the frame that arrives at the link is to be lost.
    pub fn loses(&mut self) -> bool {
        if self.cut {
            self.dropped += 1;
            return true;
        }
        if self.drop_next > 0 {
            self.drop_next -= 1;
            self.dropped += 1;
            return true;
        }
        false
    }

    /// Whether frames that leave may be damaged.
    pub fn damages(&self) -> bool {
        self.corrupt_next.is_some() || self.corrupt_every.is_some()
    }

    /// Damages the frame that leaves the link if it is its turn. Frames without payload are let
    /// pass and not counted.
    pub fn damage(&mut self, frame: &mut [u8]) {
        if !self.damages() {
            return;
        }
        let payload = kuroshio_port::look(frame, frame.len()).payload_len as usize;
        let start = frame.len().saturating_sub(payload);
        let Some(payload) = frame.get_mut(start..).filter(|p| p.len() >= 8) else {
            return;
        };
        let Some(kind) = self.turn() else { return };
        match kind {
            Damage::Bit => flip(payload),
            Damage::ChecksumKept => keep_checksum(payload, start),
        }
        self.corrupted += 1;
    }

    fn turn(&mut self) -> Option<Damage> {
        if let Some((count, kind)) = self.corrupt_next {
            self.corrupt_next = (count > 1).then(|| (count - 1, kind));
            return Some(kind);
        }
        let (every, kind) = self.corrupt_every?;
        self.since_corrupt += 1;
        if self.since_corrupt < every {
            return None;
        }
        self.since_corrupt = 0;
        Some(kind)
    }
}

fn flip(payload: &mut [u8]) {
    let middle = payload.len() / 2;
    if let Some(byte) = payload.get_mut(middle) {
        *byte ^= 0x10;
    }
}

/// Adds one to a 16-bit word and takes one from the next, in the ones' complement arithmetic of
/// the checksum (RFC 1071). Words are aligned to the start of the IP header, which is at an even
/// offset of the frame.
fn keep_checksum(payload: &mut [u8], offset: usize) {
    let middle = payload.len() / 2;
    let at = (middle - 2) + (offset + middle) % 2;
    let mut change = |at: usize, plus: bool| {
        let Some(word) = payload.get_mut(at..at + 2) else {
            return;
        };
        let value = u16::from_be_bytes([word[0], word[1]]);
        let value = match (plus, value) {
            (true, 0xffff) => 1,
            (true, v) => v + 1,
            (false, 0) => 0xfffe,
            (false, v) => v - 1,
        };
        word.copy_from_slice(&value.to_be_bytes());
    };
    change(at, true);
    change(at + 2, false);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checksum(bytes: &[u8]) -> u32 {
        let sum: u32 = bytes
            .chunks(2)
            .map(|w| u32::from(w[0]) << 8 | u32::from(*w.get(1).unwrap_or(&0)))
            .sum();
        let folded = (sum & 0xffff) + (sum >> 16);
        ((folded & 0xffff) + (folded >> 16)) % 0xffff
    }

    #[test]
    fn the_checksum_stays_and_the_bytes_do_not() {
        for fill in [0u8, 0xff, 0x5a] {
            for start in [66usize, 67] {
                for len in [8usize, 9, 100, 1448] {
                    let mut frame = vec![fill; start + len];
                    let before = checksum(&frame);
                    keep_checksum(&mut frame[start..], start);
                    assert_ne!(frame, vec![fill; start + len]);
                    assert_eq!(checksum(&frame), before, "{fill} {start} {len}");
                    assert!(frame[..start].iter().all(|b| *b == fill));
                }
            }
        }
    }

    #[test]
    fn loses_what_it_is_told_and_no_more() {
        let mut faults = Faults {
            drop_next: 2,
            ..Faults::default()
        };
        let lost: Vec<bool> = (0..4).map(|_| faults.loses()).collect();
        assert_eq!(lost, [true, true, false, false]);
        faults.cut = true;
        assert!(faults.loses());
        assert_eq!(faults.dropped, 3);
    }

    #[test]
    fn damages_every_nth_frame_with_payload() {
        let mut faults = Faults {
            corrupt_every: Some((3, Damage::Bit)),
            ..Faults::default()
        };
        let mut damaged = 0;
        for _ in 0..9 {
            let mut frame = vec![0u8; 100];
            faults.damage(&mut frame);
            damaged += u64::from(frame.iter().any(|b| *b != 0));
        }
        assert_eq!((damaged, faults.corrupted), (3, 3));
        let mut tiny = vec![0u8; 14];
        faults.corrupt_next = Some((1, Damage::Bit));
        faults.damage(&mut tiny);
        assert_eq!(tiny, vec![0u8; 14]);
        assert_eq!(faults.corrupted, 3);
    }
}
