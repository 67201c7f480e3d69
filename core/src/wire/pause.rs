//! PAUSE frames: ask the other end of a wire to be silent, or, with time 0, fill a gap.
//!
//! ```text
//!   01:80:c2:00:00:01 | source 6 | 88 08 | 00 01 | time 2 | zeros 42 | FCS 4     64 bytes
//! ```
//!
//! The time is in quanta of 512 bit times. Source: IEEE 802.3 annex 31B; time 0 as a gap: PSPacer.

use super::{
    LineRate,
    view::{ETHERTYPE_MAC_CONTROL, FrameView, MacAddr},
};
use crate::units::{PicoDuration, WireBytes};

/// Where PAUSE frames go: a multicast address that bridges do not forward.
pub const PAUSE_DESTINATION: MacAddr = MacAddr([0x01, 0x80, 0xc2, 0x00, 0x00, 0x01]);
/// MAC control opcode of PAUSE.
pub const PAUSE_OPCODE: u16 = 0x0001;
/// Bytes of a PAUSE frame, FCS included.
pub const PAUSE_FRAME: usize = 64;
/// Bytes of wire time in a quantum: 512 bits.
pub const QUANTUM_BYTES: u64 = 64;

/// A PAUSE frame with its FCS; a device that adds the FCS itself takes the first 60 bytes.
pub fn pause_frame(source: MacAddr, quanta: u16) -> [u8; PAUSE_FRAME] {
    let mut frame = [0; PAUSE_FRAME];
    let fields = PAUSE_DESTINATION
        .0
        .into_iter()
        .chain(source.0)
        .chain(ETHERTYPE_MAC_CONTROL.to_be_bytes())
        .chain(PAUSE_OPCODE.to_be_bytes())
        .chain(quanta.to_be_bytes());
    frame
        .iter_mut()
        .zip(fields)
        .for_each(|(byte, field)| *byte = field);
    if let Some((body, fcs)) = frame.split_last_chunk_mut() {
        *fcs = frame_check_sequence(body);
    }
    frame
}

/// The time in quanta when the frame is a PAUSE frame, also 0.
pub fn pause_quanta(frame: &FrameView<'_>) -> Option<u16> {
    let (opcode, rest) = frame.payload().split_first_chunk()?;
    let (quanta, _) = rest.split_first_chunk()?;
    let is_pause = frame.ethertype() == ETHERTYPE_MAC_CONTROL && u16::from_be_bytes(*opcode) == PAUSE_OPCODE;
    is_pause.then(|| u16::from_be_bytes(*quanta))
}

/// How long a PAUSE of `quanta` holds a wire.
pub fn pause_time(quanta: u16, line: LineRate) -> PicoDuration {
    line.time_of(WireBytes::new(u64::from(quanta) * QUANTUM_BYTES))
}

/// The FCS of a frame's bytes from destination to padding, as sent (CRC-32, least significant bit first).
pub fn frame_check_sequence(bytes: &[u8]) -> [u8; 4] {
    let mut crc = u32::MAX;
    for &byte in bytes {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 {
                (crc >> 1) ^ 0xedb8_8320
            } else {
                crc >> 1
            };
        }
    }
    (!crc).to_le_bytes()
}
