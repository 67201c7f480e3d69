//! A picture into datagrams.
//!
//! Datagrams are filled with whole pixel groups up to a limit; one that reaches the end of a row goes on with
//! the next while another segment header and group fit. The last of a picture has the marker bit.

use super::format::Geometry;
use super::rtp::{EXTENDED, MAX_SEGMENTS, RTP_HEADER, SEGMENT_HEADER};
use alloc::vec::Vec;

/// Smallest limit of a datagram (UDP payload): headers and a few groups of any format.
pub const MIN_DATAGRAM: usize = 128;
/// Largest: what UDP over IPv4 carries.
pub const MAX_DATAGRAM: usize = 65_507;

/// Makes the datagrams of one stream. For each picture: a [`Cursor`], then [`next`](Self::next) until it says
/// `false`.
#[derive(Debug, Clone)]
pub struct Packetizer {
    geometry: Geometry,
    limit: usize,
    payload_type: u8,
    ssrc: u32,
    sequence: u32,
}

/// How far a picture has been sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cursor {
    row: u32,
    /// Bytes of the row that are done.
    byte: usize,
}

impl Packetizer {
    /// A stream of pictures of `geometry` in datagrams (UDP payload) of at most `limit` bytes, brought into
    /// [`MIN_DATAGRAM`] to [`MAX_DATAGRAM`]; `payload_type` keeps its low seven bits.
    pub fn new(geometry: Geometry, limit: usize, payload_type: u8, ssrc: u32, sequence: u32) -> Self {
        Packetizer {
            geometry,
            limit: limit.clamp(MIN_DATAGRAM, MAX_DATAGRAM),
            payload_type: payload_type & 0x7f,
            ssrc,
            sequence,
        }
    }

    /// Pieces of lines of the next datagram: how many, and their bytes; `None` at the end of the picture.
    fn plan(&self, mut at: Cursor) -> Option<(usize, usize, Cursor)> {
        let (row_bytes, rows) = (self.geometry.row_bytes(), self.geometry.rows());
        let group = self.geometry.format().group_bytes() as usize;
        let (mut segments, mut data) = (0, 0);
        while at.row < rows && segments < MAX_SEGMENTS {
            let used = RTP_HEADER + EXTENDED + (segments + 1) * SEGMENT_HEADER + data;
            let room = self.limit.saturating_sub(used) / group * group;
            // A length is 16 bits wide.
            let room = room.min(usize::from(u16::MAX) / group * group);
            let take = room.min(row_bytes - at.byte);
            if take == 0 {
                break;
            }
            segments += 1;
            data += take;
            at.byte += take;
            if at.byte == row_bytes {
                at = Cursor {
                    row: at.row + 1,
                    byte: 0,
                };
            }
        }
        (segments > 0).then_some((segments, data, at))
    }

    /// Datagrams of a picture, and their bytes (UDP payload) in sum.
    pub fn per_picture(&self) -> (u64, u64) {
        let (mut count, mut bytes, mut at) = (0, 0, Cursor::default());
        while let Some((segments, data, next)) = self.plan(at) {
            count += 1;
            bytes += (RTP_HEADER + EXTENDED + segments * SEGMENT_HEADER + data) as u64;
            at = next;
        }
        (count, bytes)
    }

    /// Writes the next datagram of `picture` to `out`, replacing what it held; `false` (and nothing written) when
    /// the picture is done, or is shorter than its geometry says.
    pub fn next(&mut self, at: &mut Cursor, timestamp: u32, picture: &[u8], out: &mut Vec<u8>) -> bool {
        out.clear();
        self.append(at, timestamp, picture, out) > 0
    }

    /// As [`next`](Self::next), behind what `out` holds; returns the bytes of the datagram, 0 at the end of the picture.
    pub fn append(&mut self, at: &mut Cursor, timestamp: u32, picture: &[u8], out: &mut Vec<u8>) -> usize {
        let (row_bytes, begin) = (self.geometry.row_bytes(), out.len());
        let Some((segments, _, after)) = self.plan(*at).filter(|_| picture.len() >= self.geometry.bytes())
        else {
            return 0;
        };
        let marker = u8::from(after.row == self.geometry.rows()) << 7;
        let [high1, high0, low1, low0] = self.sequence.to_be_bytes();
        out.extend([0x80, marker | self.payload_type, low1, low0]);
        out.extend(timestamp.to_be_bytes());
        out.extend(self.ssrc.to_be_bytes());
        out.extend([high1, high0]);
        let format = self.geometry.format();
        let pieces = || {
            let mut from = *at;
            (0..segments).map(move |_| {
                let to = if from.row == after.row {
                    after.byte
                } else {
                    row_bytes
                };
                let piece = (from, to - from.byte);
                from = Cursor {
                    row: from.row + 1,
                    byte: 0,
                };
                piece
            })
        };
        for (i, (from, length)) in pieces().enumerate() {
            // Rows, pixels and lengths are below 2^15, 2^15 and 2^16 (MAX_WIDTH, MAX_HEIGHT, `plan`).
            let line = (from.row * format.group_lines()) as u16;
            let pixel = (from.byte / format.group_bytes() as usize) as u32 * format.group_pixels();
            let more = u16::from(i + 1 < segments) << 15;
            out.extend((length as u16).to_be_bytes());
            out.extend(line.to_be_bytes());
            out.extend((pixel as u16 | more).to_be_bytes());
        }
        for (from, length) in pieces() {
            let start = from.row as usize * row_bytes + from.byte;
            out.extend_from_slice(&picture[start..start + length]);
        }
        self.sequence = self.sequence.wrapping_add(1);
        *at = after;
        out.len() - begin
    }
}
