//! The header of YUV4MPEG2 (mjpegtools' yuv4mpeg(5)), which ffplay, mpv, `FFmpeg` and `GStreamer` read and write.
//!
//! ```text
//!     YUV4MPEG2 W1920 H1080 F30:1 Ip A1:1 C422\n
//!     FRAME\n  planes Y, Cb, Cr; 10 bits in two bytes, low one first
//! ```

use kuroshio_core::video::{Geometry, PixelFormat};

use crate::error::NetvError;

/// Longest header line that is read, bytes.
pub const MAX_HEADER: usize = 1_024;
const MAGIC: &str = "YUV4MPEG2";

/// What a header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Size and format.
    pub geometry: Geometry,
    /// Pictures per second, as a fraction.
    pub rate: (u32, u32),
}

/// Reads a header line, without its line feed.
///
/// # Errors
/// Not such a line, or a kind of picture that is not carried.
pub fn parse_header(line: &[u8]) -> Result<Header, NetvError> {
    let bad = |why: String| NetvError::BadInput(format!("y4m header: {why}"));
    let text = std::str::from_utf8(line).map_err(|_| bad("not text".into()))?;
    let mut words = text.split(' ');
    if words.next() != Some(MAGIC) || line.len() > MAX_HEADER {
        return Err(bad(format!(
            "a line of up to {MAX_HEADER} bytes that begins with {MAGIC} is valid"
        )));
    }
    let (mut width, mut height, mut rate, mut format) = (None, None, None, PixelFormat::Yuv420b8);
    for word in words.filter(|w| !w.is_empty()) {
        let (kind, value) = word.split_at(word.chars().next().map_or(0, char::len_utf8));
        match kind {
            "W" => width = value.parse().ok(),
            "H" => height = value.parse().ok(),
            "F" => {
                let parts = value
                    .split_once(':')
                    .and_then(|(n, d)| Some((n.parse().ok()?, d.parse().ok()?)));
                rate = parts.filter(|(n, d): &(u32, u32)| *n > 0 && *d > 0);
            }
            "I" if !["p", "?"].contains(&value) => {
                return Err(bad(format!(
                    "{word}: interlaced video is not carried; Ip is valid"
                )));
            }
            "C" => {
                format = match value {
                    "420" | "420jpeg" | "420mpeg2" | "420paldv" => PixelFormat::Yuv420b8,
                    "422" => PixelFormat::Yuv422b8,
                    "422p10" => PixelFormat::Yuv422b10,
                    "444" => PixelFormat::Yuv444b8,
                    "444p10" => PixelFormat::Yuv444b10,
                    _ => {
                        return Err(bad(format!(
                            "{word}: C420, C422, C422p10, C444 or C444p10 is valid"
                        )));
                    }
                }
            }
            _ => {}
        }
    }
    let (Some(width), Some(height), Some(rate)) = (width, height, rate) else {
        return Err(bad(
            "W, H and F with numbers above zero are needed, such as W1920 H1080 F30:1".into(),
        ));
    };
    let geometry = Geometry::new(width, height, format).map_err(|e| bad(e.to_string()))?;
    Ok(Header { geometry, rate })
}

impl Header {
    /// The header line with its line feed; `None` for RGB, which y4m does not have.
    #[must_use]
    pub fn line(&self) -> Option<String> {
        let chroma = match self.geometry.format() {
            PixelFormat::Yuv420b8 => "420jpeg",
            PixelFormat::Yuv422b8 => "422",
            PixelFormat::Yuv422b10 => "422p10 XYSCSS=422P10",
            PixelFormat::Yuv444b8 => "444",
            PixelFormat::Yuv444b10 => "444p10 XYSCSS=444P10",
            PixelFormat::Rgb8 | PixelFormat::Rgb10 => return None,
        };
        let (w, h, (n, d)) = (self.geometry.width(), self.geometry.height(), self.rate);
        Some(format!("{MAGIC} W{w} H{h} F{n}:{d} Ip A1:1 C{chroma}\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn headers_are_read_and_refused() {
        let header =
            parse_header(b"YUV4MPEG2 W720 H576 F25:1 Ip A59:54 C420jpeg XYSCSS=420JPEG").expect("a header");
        assert_eq!((header.geometry.width(), header.rate), (720, (25, 1)));
        assert_eq!(header.geometry.format(), PixelFormat::Yuv420b8);
        for bad in [
            "",
            "YUV4MPEG",
            "YUV4MPEG2 W2 H2",
            "YUV4MPEG2 W2 H2 F0:1",
            "YUV4MPEG2 W2 H2 F25",
            "YUV4MPEG2 W3 H2 F25:1 C420",
            "YUV4MPEG2 W2 H2 F25:1 It",
            "YUV4MPEG2 W2 H2 F25:1 Cmono",
            "YUV4MPEG2 W99999 H2 F25:1",
            "YUV4MPEG2 W-2 H2 F25:1",
        ] {
            let error = parse_header(bad.as_bytes()).expect_err(bad);
            assert!(error.is_bad_input(), "{bad}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_line_is_read_or_refused_and_ours_come_back(
            bytes in proptest::collection::vec(any::<u8>(), 0..200), tail in "[ WHFCI0-9:a-z\u{e9}]{0,40}",
            w in 1u32..500, h in 1u32..500, f in proptest::sample::select(PixelFormat::ALL.to_vec()), n in 1u32..=240_000, d in 1u32..2000,
        ) {
            let _ = parse_header(&bytes);
            let _ = parse_header(format!("YUV4MPEG2 W4 H4 F1:1 {tail}").as_bytes());
            let header = Header { geometry: Geometry::new(4 * w, 2 * h, f).expect("a size"), rate: (n, d) };
            if let Some(line) = header.line() {
                prop_assert_eq!(parse_header(line.trim_end().as_bytes()).expect("ours"), header);
            }
        }
    }
}
