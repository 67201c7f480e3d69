//! Pixel formats as on the wire, and the geometry of pictures and parts.
//!
//! | sampling | bits | bytes of a group | its pixels | order |
//! |---|---|---|---|---|
//! | RGB, 4:4:4 | 8 | 3 | 1 | R G B; Cb Y Cr |
//! | RGB, 4:4:4 | 10 | 15 | 4 | the same, packed |
//! | 4:2:2 | 8 | 4 | 2 | Cb Y Cr Y |
//! | 4:2:2 | 10 | 5 | 2 | the same, packed |
//! | 4:2:0 | 8 | 6 | 2 by 2 | Y00 Y01 Y10 Y11 Cb Cr |
//!
//! Source: RFC 4175, table 1 and section 4.3.

use alloc::string::String;
use core::{fmt, ops::Range, str::FromStr};

/// Widest picture, pixels.
pub const MAX_WIDTH: u32 = 7_680;
/// Highest picture, lines.
pub const MAX_HEIGHT: u32 = 4_320;
/// Parts of a picture.
pub const MAX_PARTS: u32 = 16;

/// Which samples a pixel has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Sampling {
    /// Red, green, blue.
    Rgb,
    /// Luma and both chroma of every pixel.
    Yuv444,
    /// Chroma of every second pixel of a line.
    Yuv422,
    /// Chroma of every second pixel of every second line.
    Yuv420,
}

/// Samples of a pixel and their bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "each is its sampling and its bits")]
pub enum PixelFormat {
    Rgb8,
    Rgb10,
    Yuv444b8,
    Yuv444b10,
    Yuv422b8,
    Yuv422b10,
    Yuv420b8,
}

impl PixelFormat {
    /// All formats.
    pub const ALL: [PixelFormat; 7] = [
        PixelFormat::Rgb8,
        PixelFormat::Rgb10,
        PixelFormat::Yuv444b8,
        PixelFormat::Yuv444b10,
        PixelFormat::Yuv422b8,
        PixelFormat::Yuv422b10,
        PixelFormat::Yuv420b8,
    ];

    /// The name that [`FromStr`] reads.
    pub const fn name(self) -> &'static str {
        match self {
            PixelFormat::Rgb8 => "rgb8",
            PixelFormat::Rgb10 => "rgb10",
            PixelFormat::Yuv444b8 => "yuv444-8",
            PixelFormat::Yuv444b10 => "yuv444-10",
            PixelFormat::Yuv422b8 => "yuv422-8",
            PixelFormat::Yuv422b10 => "yuv422-10",
            PixelFormat::Yuv420b8 => "yuv420-8",
        }
    }

    /// Which samples a pixel has.
    pub const fn sampling(self) -> Sampling {
        match self {
            PixelFormat::Rgb8 | PixelFormat::Rgb10 => Sampling::Rgb,
            PixelFormat::Yuv444b8 | PixelFormat::Yuv444b10 => Sampling::Yuv444,
            PixelFormat::Yuv422b8 | PixelFormat::Yuv422b10 => Sampling::Yuv422,
            PixelFormat::Yuv420b8 => Sampling::Yuv420,
        }
    }

    /// Bits of a sample: 8 or 10.
    pub const fn bits(self) -> u32 {
        match self {
            PixelFormat::Rgb10 | PixelFormat::Yuv444b10 | PixelFormat::Yuv422b10 => 10,
            _ => 8,
        }
    }

    /// Bytes of a pixel group.
    pub const fn group_bytes(self) -> u32 {
        match self {
            PixelFormat::Rgb8 | PixelFormat::Yuv444b8 => 3,
            PixelFormat::Rgb10 | PixelFormat::Yuv444b10 => 15,
            PixelFormat::Yuv422b8 => 4,
            PixelFormat::Yuv422b10 => 5,
            PixelFormat::Yuv420b8 => 6,
        }
    }

    /// Pixels of a group along a line.
    pub const fn group_pixels(self) -> u32 {
        match self {
            PixelFormat::Rgb8 | PixelFormat::Yuv444b8 => 1,
            PixelFormat::Rgb10 | PixelFormat::Yuv444b10 => 4,
            _ => 2,
        }
    }

    /// Lines that a group spans.
    pub const fn group_lines(self) -> u32 {
        match self {
            PixelFormat::Yuv420b8 => 2,
            _ => 1,
        }
    }
}

impl FromStr for PixelFormat {
    type Err = FormatError;

    fn from_str(text: &str) -> Result<Self, FormatError> {
        let found = Self::ALL.into_iter().find(|f| f.name() == text);
        found.ok_or_else(|| FormatError::Name(text.chars().take(40).collect()))
    }
}

impl fmt::Display for PixelFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a picture cannot be of this kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FormatError {
    /// No such format.
    Name(String),
    /// Out of range.
    Size(u32, u32),
    /// Not a whole number of pixel groups.
    Groups(u32, u32, PixelFormat),
    /// No parts, more than [`MAX_PARTS`], or more than the picture has rows of groups.
    Parts(u32),
}

impl fmt::Display for FormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FormatError::Name(name) => {
                write!(f, "format {name:?}: one of")?;
                PixelFormat::ALL.iter().try_for_each(|p| write!(f, " {p}"))?;
                f.write_str(" is valid")
            }
            FormatError::Size(w, h) => {
                write!(f, "size {w}x{h}: from 1x1 to {MAX_WIDTH}x{MAX_HEIGHT} is valid")
            }
            FormatError::Groups(w, h, p) => write!(
                f,
                "size {w}x{h}: {p} needs a width that is a multiple of {} and a height of {}",
                p.group_pixels(),
                p.group_lines()
            ),
            FormatError::Parts(n) => write!(
                f,
                "{n} parts: from 1 to {MAX_PARTS}, and no more than the picture has lines, are valid"
            ),
        }
    }
}

impl core::error::Error for FormatError {}

/// Size and format of a picture, checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    width: u32,
    height: u32,
    format: PixelFormat,
}

impl Geometry {
    /// A picture of `width` by `height` pixels.
    ///
    /// # Errors
    /// A size out of range or not a whole number of pixel groups.
    pub fn new(width: u32, height: u32, format: PixelFormat) -> Result<Self, FormatError> {
        if !(1..=MAX_WIDTH).contains(&width) || !(1..=MAX_HEIGHT).contains(&height) {
            return Err(FormatError::Size(width, height));
        }
        if !width.is_multiple_of(format.group_pixels()) || !height.is_multiple_of(format.group_lines()) {
            return Err(FormatError::Groups(width, height, format));
        }
        Ok(Geometry {
            width,
            height,
            format,
        })
    }

    /// Pixels of a line.
    pub const fn width(self) -> u32 {
        self.width
    }

    /// Lines.
    pub const fn height(self) -> u32 {
        self.height
    }

    /// The format.
    pub const fn format(self) -> PixelFormat {
        self.format
    }

    /// Rows of pixel groups.
    pub const fn rows(self) -> u32 {
        self.height / self.format.group_lines()
    }

    /// Bytes of a row of groups.
    pub const fn row_bytes(self) -> usize {
        (self.width / self.format.group_pixels() * self.format.group_bytes()) as usize
    }

    /// Bytes of the picture.
    pub const fn bytes(self) -> usize {
        self.row_bytes() * self.rows() as usize
    }

    /// Part `index` of `parts` as a picture of its own, and where its bytes are in the whole. Rows are divided
    /// evenly: part i has rows `i * rows / parts` to `(i + 1) * rows / parts`.
    ///
    /// # Errors
    /// No such part.
    pub fn part(self, index: u32, parts: u32) -> Result<(Geometry, Range<usize>), FormatError> {
        if !(1..=MAX_PARTS.min(self.rows())).contains(&parts) || index >= parts {
            return Err(FormatError::Parts(parts));
        }
        let edge = |i: u32| i * self.rows() / parts;
        let (from, to) = (edge(index), edge(index + 1));
        let part = Geometry {
            height: (to - from) * self.format.group_lines(),
            ..self
        };
        let at = |row: u32| row as usize * self.row_bytes();
        Ok((part, at(from)..at(to)))
    }
}
