//! What a frame of test traffic carries at the begin of its UDP payload.
//!
//! ```text
//!   0        2                 4          8                    16         18
//!   | magic  | run, stream     | sequence | transmit time, ns  | checksum |
//!   | "Ku"   | 6 and 10 bits   | u32      | u64, CLOCK_TAI     | CRC-16   |     all big-endian
//! ```
//!
//! 18 bytes, because that is what the smallest frame of IPv4 and UDP holds: 64 - 18 (Ethernet) - 20 - 8. The
//! sequence is that of the stream and goes round at 2^32; the receiver continues it. The run tells frames of
//! one run from those of an earlier one that are late; it goes round at 64. The check is CRC-16/IBM-3740
//! (polynomial 0x1021, from 0xffff) over the bytes before it.

/// Bytes of a stamp.
pub const STAMP_BYTES: usize = 18;

const MAGIC: [u8; 2] = *b"Ku";
const STREAM_BITS: u32 = 10;

/// A stamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// Number of the run, 0 to 63.
    pub run: u8,
    /// Number of the stream, 0 to 1023.
    pub stream: u16,
    /// Number of the frame in its stream, the last 32 bits.
    pub sequence: u32,
    /// When it was sent, ns of the sender's `CLOCK_TAI`.
    pub sent_ns: u64,
}

impl Stamp {
    /// As bytes. Bits of run and stream beyond their range are not sent.
    pub fn to_bytes(self) -> [u8; STAMP_BYTES] {
        let place = u16::from(self.run) << STREAM_BITS | self.stream & ((1 << STREAM_BITS) - 1);
        let mut bytes = [0; STAMP_BYTES];
        let fields = MAGIC
            .into_iter()
            .chain(place.to_be_bytes())
            .chain(self.sequence.to_be_bytes())
            .chain(self.sent_ns.to_be_bytes());
        for (to, from) in bytes.iter_mut().zip(fields) {
            *to = from;
        }
        let sum = crc16(bytes.get(..16).unwrap_or(&[])).to_be_bytes();
        for (to, from) in bytes.iter_mut().skip(16).zip(sum) {
            *to = from;
        }
        bytes
    }

    /// From the begin of a payload; `None` when there is no whole stamp.
    pub fn from_payload(payload: &[u8]) -> Option<Self> {
        let (stamp, _) = payload.split_first_chunk::<STAMP_BYTES>()?;
        let (body, sum) = stamp.split_last_chunk::<2>()?;
        let (magic, rest) = body.split_first_chunk::<2>()?;
        if *magic != MAGIC || crc16(body) != u16::from_be_bytes(*sum) {
            return None;
        }
        let (place, rest) = rest.split_first_chunk::<2>()?;
        let (sequence, rest) = rest.split_first_chunk::<4>()?;
        let (sent_ns, _) = rest.split_first_chunk::<8>()?;
        let place = u16::from_be_bytes(*place);
        Some(Stamp {
            run: (place >> STREAM_BITS) as u8,
            stream: place & ((1 << STREAM_BITS) - 1),
            sequence: u32::from_be_bytes(*sequence),
            sent_ns: u64::from_be_bytes(*sent_ns),
        })
    }
}

fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0xffff, |crc, byte| {
        (0..8).fold(crc ^ u16::from(*byte) << 8, |crc, _| {
            let shifted = crc << 1;
            if crc & 0x8000 != 0 {
                shifted ^ 0x1021
            } else {
                shifted
            }
        })
    })
}
