//! RTP with the payload of RFC 4175, read from any bytes.
//!
//! ```text
//!  0                   1                   2                   3
//! |V=2|P|X|  CC   |M|     PT      |        sequence (low)         |   RTP, RFC 3550
//! |                        time stamp, 90 kHz                     |
//! |                             SSRC                              |
//! |        sequence (high)        |            length             |   RFC 4175
//! |F|         line                |C|          offset             |   repeated while C is set
//! |                       pixel groups ...                        |
//! ```

use core::fmt;

/// Bytes of RTP's fixed header.
pub(super) const RTP_HEADER: usize = 12;
/// Bytes of the extended sequence number.
pub(super) const EXTENDED: usize = 2;
/// Bytes of a segment's header.
pub(super) const SEGMENT_HEADER: usize = 6;
/// Segments that a packet may have: more would be of pictures narrower than their headers.
pub(super) const MAX_SEGMENTS: usize = 64;

/// Why bytes are not such a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PacketError {
    /// Ends within a header, or before the data that its headers announce.
    Short,
    /// Not version 2 of RTP.
    Version,
    /// More padding than bytes.
    Padding,
    /// More than 64 segments.
    Segments,
    /// A segment that is not whole pixel groups within the picture.
    Place,
    /// Another payload type than expected.
    PayloadType,
    /// A field of interlaced video, which is not supported.
    Interlaced,
}

impl fmt::Display for PacketError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PacketError::Short => "the datagram ends too early",
            PacketError::Version => "not RTP version 2",
            PacketError::Padding => "more padding than bytes",
            PacketError::Segments => "more than 64 segments of lines",
            PacketError::Place => "a segment is not whole pixel groups within the picture",
            PacketError::PayloadType => "another payload type",
            PacketError::Interlaced => "interlaced video is not supported",
        })
    }
}

impl core::error::Error for PacketError {}

/// A piece of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment<'a> {
    /// Line, from 0 at the top of the stream's picture.
    pub line: u16,
    /// First pixel.
    pub offset: u16,
    /// Second field of interlaced video.
    pub second_field: bool,
    /// Pixel groups.
    pub data: &'a [u8],
}

/// A packet that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Payload type, 96 to 127 for video of this kind.
    pub payload_type: u8,
    /// Whether it is the last of its picture.
    pub marker: bool,
    /// Extended sequence number.
    pub sequence: u32,
    /// Time of the picture, 90 kHz.
    pub timestamp: u32,
    /// Source.
    pub ssrc: u32,
    headers: &'a [u8],
    data: &'a [u8],
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|b| u16::from_be_bytes(*b))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|b| u32::from_be_bytes(*b))
}

impl<'a> Packet<'a> {
    /// Reads a datagram. Header extensions and contributing sources are skipped.
    ///
    /// # Errors
    /// Anything that is not whole.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, PacketError> {
        let (&[first, second, ..], true) = (bytes, bytes.len() >= RTP_HEADER) else {
            return Err(PacketError::Short);
        };
        if first >> 6 != 2 {
            return Err(PacketError::Version);
        }
        let mut end = bytes.len();
        if first & 0x20 != 0 {
            let padding = usize::from(*bytes.last().ok_or(PacketError::Short)?);
            end = end
                .checked_sub(padding)
                .filter(|_| padding > 0)
                .ok_or(PacketError::Padding)?;
        }
        let mut at = RTP_HEADER + 4 * usize::from(first & 0x0f);
        if first & 0x10 != 0 {
            at += 4 + 4 * usize::from(u16_at(bytes, at + 2).ok_or(PacketError::Short)?);
        }
        let body = bytes.get(at..end).ok_or(PacketError::Short)?;
        let high = u16_at(body, 0).ok_or(PacketError::Short)?;
        let low = u16_at(bytes, 2).ok_or(PacketError::Short)?;
        let mut headers = EXTENDED;
        let mut total = 0;
        loop {
            if headers == EXTENDED + MAX_SEGMENTS * SEGMENT_HEADER {
                return Err(PacketError::Segments);
            }
            total += usize::from(u16_at(body, headers).ok_or(PacketError::Short)?);
            let offset = u16_at(body, headers + 4).ok_or(PacketError::Short)?;
            headers += SEGMENT_HEADER;
            if offset & 0x8000 == 0 {
                break;
            }
        }
        let (headers, data) = body.split_at(headers);
        Ok(Packet {
            payload_type: second & 0x7f,
            marker: second & 0x80 != 0,
            sequence: u32::from(high) << 16 | u32::from(low),
            timestamp: u32_at(bytes, 4).ok_or(PacketError::Short)?,
            ssrc: u32_at(bytes, 8).ok_or(PacketError::Short)?,
            headers: headers.get(EXTENDED..).unwrap_or_default(),
            data: data.get(..total).ok_or(PacketError::Short)?,
        })
    }

    /// Its pieces of lines, in order.
    pub fn segments(&self) -> impl Iterator<Item = Segment<'a>> {
        let mut data = self.data;
        self.headers
            .chunks_exact(SEGMENT_HEADER)
            .filter_map(move |header| {
                let length = usize::from(u16_at(header, 0)?);
                let (line, offset) = (u16_at(header, 2)?, u16_at(header, 4)?);
                // `parse` has summed these lengths.
                let (mine, rest) = data.split_at_checked(length)?;
                data = rest;
                Some(Segment {
                    line: line & 0x7fff,
                    offset: offset & 0x7fff,
                    second_field: line & 0x8000 != 0,
                    data: mine,
                })
            })
    }
}
