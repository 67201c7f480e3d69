//! Frames and times of a recording: pcap (micro- or nanoseconds) or pcapng, in either byte order.
//!
//! ```text
//!   pcap    header of 24 | (seconds, parts, captured, whole) data | ...
//!   pcapng  (type, length) body (length) | ...: section 0x0a0d0d0a, interface 1, packet 6; others are skipped
//! ```
//!
//! Sources: the pcap and pcapng drafts of the IETF (draft-ietf-opsawg-pcap, -pcapng). A pcapng interface says
//! how fine its stamps are (`if_tsresol`: 10^-n or 2^-n s, microseconds without). Frames must be Ethernet; a frame
//! that was recorded earlier than the one before it leaves with that one.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use kuroshio_core::traffic::{Entry, MAX_ENTRIES, MAX_FRAME};
use kuroshio_core::units::{PicoDuration, Ratio};
use kuroshio_core::wire::frame_of_capture;

use crate::error::GenError;

/// Most bytes of a recording.
pub const MAX_RECORDING_BYTES: u64 = 256 << 20;
/// Most interfaces of a pcapng section.
const MAX_INTERFACES: usize = 1_024;
const ETHERNET: u32 = 1;

/// A recording in memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recording {
    /// Times between frames, and sizes with FCS.
    pub entries: Vec<Entry>,
    /// The frames without FCS; shorter than their size when they were cut.
    pub frames: Vec<Vec<u8>>,
}

impl Recording {
    /// Reads a file, with all times multiplied by `scale`.
    ///
    /// # Errors
    /// [`GenError::BadInput`]: what of the file is wrong, and where.
    pub fn open(path: &Path, scale: Ratio) -> Result<Self, GenError> {
        let bad = |what: String| GenError::BadInput(format!("{}: {what}", path.display()));
        let file = File::open(path).map_err(|e| bad(e.to_string()))?;
        let mut bytes = Vec::new();
        file.take(MAX_RECORDING_BYTES + 1)
            .read_to_end(&mut bytes)
            .map_err(|e| bad(e.to_string()))?;
        if bytes.len() as u64 > MAX_RECORDING_BYTES {
            return Err(bad("more than 256 MiB".to_owned()));
        }
        Self::parse(&bytes, scale).map_err(bad)
    }

    /// Reads a file's bytes.
    ///
    /// # Errors
    /// A sentence that says what is wrong.
    pub fn parse(bytes: &[u8], scale: Ratio) -> Result<Self, String> {
        let mut recording = Self::default();
        let mut stamps = Vec::new();
        let mut take = |at_ps: u128, whole: u32, data: &[u8]| recording.take(&mut stamps, at_ps, whole, data);
        match bytes.first_chunk::<4>() {
            Some([0x0a, 0x0d, 0x0d, 0x0a]) => pcapng(bytes, &mut take)?,
            Some(_) => pcap(bytes, &mut take)?,
            None => return Err("too short for pcap or pcapng".to_owned()),
        }
        recording.times(&stamps, scale)?;
        if recording.entries.is_empty() {
            return Err("there is no frame in it".to_owned());
        }
        Ok(recording)
    }

    fn take(&mut self, stamps: &mut Vec<u128>, at_ps: u128, whole: u32, data: &[u8]) -> Result<(), String> {
        let number = self.frames.len() + 1;
        if number > MAX_ENTRIES {
            return Err(format!("more than {MAX_ENTRIES} frames"));
        }
        let len = frame_of_capture(whole as usize);
        if len.get() > MAX_FRAME || data.len() > whole as usize {
            return Err(format!(
                "frame {number} has {len} with FCS: at most {MAX_FRAME}B (switch off segmentation offload when recording)"
            ));
        }
        stamps.push(at_ps);
        self.frames.push(data.to_vec());
        self.entries.push(Entry {
            gap: PicoDuration::ZERO,
            len,
        });
        Ok(())
    }

    /// Gaps from stamps: scaled from the first frame on, so that nothing adds up.
    fn times(&mut self, stamps: &[u128], scale: Ratio) -> Result<(), String> {
        let first = stamps.first().copied().unwrap_or(0);
        let mut last = 0u64;
        for (number, (entry, stamp)) in self.entries.iter_mut().zip(stamps).enumerate() {
            let since = stamp.saturating_sub(first);
            let scaled = since.checked_mul(u128::from(scale.num()));
            let scaled = scaled.map(|ps| ps / u128::from(scale.den()));
            let at = scaled
                .and_then(|ps| u64::try_from(ps).ok())
                .ok_or_else(|| format!("frame {}: more than 213 days behind the first", number + 1))?;
            entry.gap = PicoDuration::from_ps(at.saturating_sub(last));
            last = last.max(at);
        }
        Ok(())
    }
}

/// Takes a frame: its time in ps since 1970, its whole length, and what of it there is.
type Take<'a> = dyn FnMut(u128, u32, &[u8]) -> Result<(), String> + 'a;

#[derive(Clone, Copy)]
struct Order {
    big: bool,
}

impl Order {
    fn u16(self, bytes: &[u8], at: usize) -> Option<u16> {
        let field = *bytes.get(at..)?.first_chunk()?;
        Some(if self.big {
            u16::from_be_bytes(field)
        } else {
            u16::from_le_bytes(field)
        })
    }

    fn u32(self, bytes: &[u8], at: usize) -> Option<u32> {
        let field = *bytes.get(at..)?.first_chunk()?;
        Some(if self.big {
            u32::from_be_bytes(field)
        } else {
            u32::from_le_bytes(field)
        })
    }
}

fn pcap(bytes: &[u8], take: &mut Take<'_>) -> Result<(), String> {
    let magic = Order { big: true }.u32(bytes, 0);
    let (big, part_ps) = match magic {
        Some(0xa1b2_c3d4) => (true, 1_000_000),
        Some(0xa1b2_3c4d) => (true, 1_000),
        Some(0xd4c3_b2a1) => (false, 1_000_000),
        Some(0x4d3c_b2a1) => (false, 1_000),
        _ => return Err("neither pcap nor pcapng".to_owned()),
    };
    let order = Order { big };
    ethernet(order.u32(bytes, 20).ok_or("the header is cut")? & 0x0fff_ffff)?;
    let mut rest = bytes.get(24..).unwrap_or_default();
    while !rest.is_empty() {
        let field = |at| order.u32(rest, at).ok_or("a frame's header is cut");
        let (seconds, parts, held, whole) = (field(0)?, field(4)?, field(8)?, field(12)?);
        let end = (held as usize).saturating_add(16);
        let data = rest.get(16..end).ok_or("the last frame is cut")?;
        let at_ps = u128::from(seconds) * 1_000_000_000_000 + u128::from(parts) * part_ps;
        take(at_ps, whole, data)?;
        rest = rest.get(end..).unwrap_or_default();
    }
    Ok(())
}

fn ethernet(link_type: u32) -> Result<(), String> {
    if link_type == ETHERNET {
        Ok(())
    } else {
        Err(format!(
            "link type {link_type}: only Ethernet (1) can be replayed"
        ))
    }
}

/// How fine an interface's stamps are: `units` of them are a second.
struct Interface {
    link_type: u32,
    units: u128,
}

fn pcapng(bytes: &[u8], take: &mut Take<'_>) -> Result<(), String> {
    let mut order = Order { big: false };
    let mut interfaces: Vec<Interface> = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let section = rest.starts_with(&[0x0a, 0x0d, 0x0d, 0x0a]);
        if section {
            order.big = match rest.get(8..12) {
                Some([0x1a, 0x2b, 0x3c, 0x4d]) => true,
                Some([0x4d, 0x3c, 0x2b, 0x1a]) => false,
                _ => return Err("a section of unknown byte order".to_owned()),
            };
            interfaces.clear();
        }
        let kind = order.u32(rest, 0).ok_or("a block is cut")?;
        let len = order.u32(rest, 4).ok_or("a block is cut")? as usize;
        if len < 12 || !len.is_multiple_of(4) {
            return Err(format!("a block of {len} bytes"));
        }
        let body = rest.get(8..len - 4).ok_or("the last block is cut")?;
        match kind {
            1 => {
                if interfaces.len() == MAX_INTERFACES {
                    return Err(format!("more than {MAX_INTERFACES} interfaces"));
                }
                interfaces.push(interface(order, body)?);
            }
            6 => packet(order, body, &interfaces, take)?,
            _ => {}
        }
        rest = rest.get(len..).unwrap_or_default();
    }
    Ok(())
}

fn interface(order: Order, body: &[u8]) -> Result<Interface, String> {
    let link_type = order.u16(body, 0).ok_or("an interface is cut")?;
    let mut units = 1_000_000;
    let mut options = body.get(8..).unwrap_or_default();
    while let (Some(code), Some(len)) = (order.u16(options, 0), order.u16(options, 2)) {
        if code == 0 {
            break;
        }
        if code == 9
            && let Some(resolution) = options.get(4)
        {
            let power = u32::from(resolution & 0x7f);
            let base: u128 = if resolution & 0x80 == 0 { 10 } else { 2 };
            // Finer than what fits is finer than any clock.
            units = base
                .checked_pow(power)
                .filter(|u| *u <= 1 << 63)
                .ok_or_else(|| format!("stamps in units of {base}^-{power} s"))?;
        }
        let next = 4 + usize::from(len).next_multiple_of(4);
        options = options.get(next..).unwrap_or_default();
    }
    Ok(Interface {
        link_type: u32::from(link_type),
        units,
    })
}

fn packet(order: Order, body: &[u8], interfaces: &[Interface], take: &mut Take<'_>) -> Result<(), String> {
    let field = |at| order.u32(body, at).ok_or("a frame's header is cut");
    let (number, high, low, held, whole) = (field(0)?, field(4)?, field(8)?, field(12)?, field(16)?);
    let interface = interfaces
        .get(number as usize)
        .ok_or_else(|| format!("a frame of interface {number}, which was not described"))?;
    ethernet(interface.link_type)?;
    let data = body
        .get(20..)
        .and_then(|d| d.get(..held as usize))
        .ok_or("a frame is cut")?;
    // Below 2^64 stamps times 10^12 fits u128.
    let stamp = u128::from(high) << 32 | u128::from(low);
    take(stamp * 1_000_000_000_000 / interface.units, whole, data)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pcap_file(big: bool, nanos: bool, frames: &[(u32, u32, usize)]) -> Vec<u8> {
        let word = |v: u32| if big { v.to_be_bytes() } else { v.to_le_bytes() };
        let mut out = Vec::new();
        out.extend(word(if nanos { 0xa1b2_3c4d } else { 0xa1b2_c3d4 }));
        for v in [0x0004_0002, 0, 0, 65_535, 1] {
            out.extend(word(v));
        }
        for (seconds, parts, len) in frames {
            for v in [*seconds, *parts, *len as u32, *len as u32] {
                out.extend(word(v));
            }
            out.extend(vec![7; *len]);
        }
        out
    }

    fn block(kind: u32, body: &[u8]) -> Vec<u8> {
        let len = (12 + body.len()) as u32;
        [&kind.to_le_bytes(), &len.to_le_bytes(), body, &len.to_le_bytes()].concat()
    }

    fn pcapng_file(resolution: Option<u8>, stamps: &[u64]) -> Vec<u8> {
        let mut section = 0x1a2b_3c4du32.to_le_bytes().to_vec();
        section.extend([1, 0, 0, 0]);
        section.extend([0xff; 8]);
        let mut interface = vec![1, 0, 0, 0, 0, 0, 0, 0];
        if let Some(r) = resolution {
            interface.extend([9, 0, 1, 0, r, 0, 0, 0, 0, 0, 0, 0]);
        }
        let mut out = [
            block(0x0a0d_0d0a, &section),
            block(1, &interface),
            block(5, &[1; 4]),
        ]
        .concat();
        for stamp in stamps {
            let mut body = vec![0; 4];
            body.extend(((stamp >> 32) as u32).to_le_bytes());
            body.extend((*stamp as u32).to_le_bytes());
            body.extend([64, 0, 0, 0, 0xea, 5, 0, 0]);
            body.extend([3; 64]);
            out.extend(block(6, &body));
        }
        out
    }

    fn gaps(bytes: &[u8], scale: &str) -> Vec<u64> {
        let recording = Recording::parse(bytes, scale.parse().expect("a ratio")).expect("a recording");
        recording.entries.iter().map(|e| e.gap.as_ns()).collect()
    }

    #[test]
    fn both_kinds_in_both_orders() {
        for big in [true, false] {
            let file = pcap_file(big, false, &[(5, 10, 60), (5, 25, 1_514), (6, 25, 20)]);
            let recording = Recording::parse(&file, Ratio::ONE).expect("a recording");
            let got: Vec<_> = recording
                .entries
                .iter()
                .map(|e| (e.gap.as_ns(), e.len.get()))
                .collect();
            assert_eq!(got, [(0, 64), (15_000, 1_518), (1_000_000_000, 64)]);
            assert_eq!(
                gaps(&pcap_file(big, true, &[(5, 10, 60), (5, 25, 60)]), "1"),
                [0, 15]
            );
        }
        assert_eq!(gaps(&pcapng_file(None, &[100, 103]), "1"), [0, 3_000]);
        assert_eq!(
            gaps(&pcapng_file(Some(9), &[1 << 33, (1 << 33) + 77]), "1"),
            [0, 77]
        );
        // 2^-10 s.
        assert_eq!(gaps(&pcapng_file(Some(0x8a), &[0, 512]), "1"), [0, 500_000_000]);
        let cut = Recording::parse(&pcapng_file(None, &[1]), Ratio::ONE).expect("a recording");
        assert_eq!((cut.entries[0].len.get(), cut.frames[0].len()), (1_518, 64));
    }

    #[test]
    fn times_are_scaled_from_the_first_and_do_not_fall() {
        let file = pcap_file(
            false,
            true,
            &[(1, 0, 60), (1, 100, 60), (1, 50, 60), (1, 131, 60)],
        );
        assert_eq!(gaps(&file, "1"), [0, 100, 0, 31]);
        assert_eq!(gaps(&file, "1/10"), [0, 10, 0, 3]);
    }

    #[test]
    fn what_is_wrong_is_said() {
        let error = |bytes: &[u8]| Recording::parse(bytes, Ratio::ONE).expect_err("wrong");
        let good = pcap_file(false, true, &[(1, 0, 60)]);
        assert!(error(&good[..50]).contains("cut"));
        assert!(error(&good[..24]).contains("no frame"));
        assert!(error(b"<html>").contains("neither pcap"));
        assert!(error(&pcap_file(false, true, &[(1, 0, 9_015)])).contains("frame 1 has 9019B"));
        let mut wifi = good;
        wifi[20] = 105;
        assert!(error(&wifi).contains("only Ethernet"));
    }
}
