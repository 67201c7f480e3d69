//! Where pictures come from: the pattern, or a file or pipe of y4m or raw rows of groups.

use std::io::{BufRead, Read};

use kuroshio_core::video::Geometry;

use crate::convert::{planar_bytes, to_wire};
use crate::error::NetvError;
use crate::pattern::Pattern;
use crate::y4m::{Header, MAX_HEADER, parse_header};

/// Most pictures that are held.
pub const MAX_HELD: usize = 64;

/// A source of pictures.
pub enum Source {
    /// Drawn here, without end.
    Pattern(Pattern),
    /// So many pictures of the pattern (1 to [`MAX_HELD`]), drawn by each part's thread before it sends, then sent in turn.
    Held(usize),
    /// y4m.
    Y4m {
        /// After the header.
        from: Box<dyn BufRead + Send>,
        /// What the header says.
        header: Header,
        /// Planes of a picture.
        planar: Vec<u8>,
    },
    /// Rows of pixel groups as the wire has them: rgb24, uyvy422, UYVP.
    Raw {
        /// From the first picture on.
        from: Box<dyn BufRead + Send>,
        /// Size and format.
        geometry: Geometry,
    },
}

/// A line without its line feed; `None` at the end of the file.
fn line(from: &mut dyn BufRead) -> Result<Option<Vec<u8>>, NetvError> {
    let mut line = Vec::new();
    let read = from.take(MAX_HEADER as u64 + 1).read_until(b'\n', &mut line);
    read.map_err(NetvError::io("reading video"))?;
    if line.is_empty() {
        return Ok(None);
    }
    if line.pop() != Some(b'\n') {
        return Err(NetvError::BadInput(format!(
            "y4m: a line of more than {MAX_HEADER} bytes, or one that ends too early"
        )));
    }
    Ok(Some(line))
}

impl Source {
    /// y4m from a file or pipe.
    ///
    /// # Errors
    /// A header that is none.
    pub fn y4m(mut from: Box<dyn BufRead + Send>) -> Result<Self, NetvError> {
        let first =
            line(&mut *from)?.ok_or_else(|| NetvError::BadInput("y4m: the source is empty".into()))?;
        let header = parse_header(&first)?;
        Ok(Self::Y4m {
            from,
            header,
            planar: vec![0; planar_bytes(header.geometry)],
        })
    }

    /// Reads or draws picture `number`, replacing what `out` held; `false` at the end. Held pictures are not had here.
    ///
    /// # Errors
    /// A picture that ends too early, or what reading gives.
    pub fn next(&mut self, number: u64, out: &mut Vec<u8>) -> Result<bool, NetvError> {
        match self {
            Self::Pattern(pattern) => pattern.draw(number, out),
            Self::Held(_) => return Ok(false),
            Self::Y4m { from, header, planar } => {
                let Some(start) = line(&mut **from)? else {
                    return Ok(false);
                };
                if start != b"FRAME" && !start.starts_with(b"FRAME ") {
                    return Err(NetvError::BadInput(format!(
                        "y4m: picture {number} does not begin with FRAME"
                    )));
                }
                from.read_exact(planar)
                    .map_err(NetvError::io(format!("y4m: picture {number}")))?;
                to_wire(header.geometry, planar, out);
            }
            Self::Raw { from, geometry } => {
                if from
                    .fill_buf()
                    .map_err(NetvError::io("reading video"))?
                    .is_empty()
                {
                    return Ok(false);
                }
                out.resize(geometry.bytes(), 0);
                from.read_exact(out)
                    .map_err(NetvError::io(format!("raw video: picture {number}")))?;
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn y4m_is_read_to_its_end() {
        let bytes = b"YUV4MPEG2 W2 H1 F10:1 C422\nFRAME\n\x01\x02\x03\x04FRAME Ip\n\x05\x06\x07\x08".to_vec();
        let mut source = Source::y4m(Box::new(std::io::Cursor::new(bytes))).expect("a header");
        let mut out = Vec::new();
        assert!(source.next(0, &mut out).expect("a picture"));
        assert_eq!(out, [3, 1, 4, 2]);
        assert!(source.next(1, &mut out).expect("a picture"));
        assert_eq!(out, [7, 5, 8, 6]);
        assert!(!source.next(2, &mut out).expect("the end"));
    }

    #[test]
    fn broken_video_is_refused() {
        let next = |text: &[u8]| {
            let mut source = Source::y4m(Box::new(std::io::Cursor::new(text.to_vec())))?;
            source.next(0, &mut Vec::new())
        };
        let head = b"YUV4MPEG2 W2 H1 F10:1 C422\n".to_vec();
        assert!(next(b"").is_err());
        assert!(next(&[head.clone(), b"FRAME\n\x01".to_vec()].concat()).is_err());
        assert!(next(&[head.clone(), b"FRAMES\n\x01\x02\x03\x04".to_vec()].concat()).is_err());
        assert!(next(&[head, vec![b'F'; 5000]].concat()).is_err());
    }
}
