//! A report: one self-contained HTML file and one PNG per plot.
//!
//! ```text
//! Report { title, intro, verdicts, tables, plots, notes }
//!     |-- html::page ----> DIR/report.html   (tables; plots as inline SVG; no script, no link outside)
//!     '-- plot::png -----> DIR/PLOT.png      (same drawing through the bitmap back end)
//! ```
//!
//! A plot has the papers' form: time in seconds to the right, bandwidth in Mbps upwards, one colour
//! per stream, the sum in dark blue at the narrow window and in light blue at the wide one
//! ([`Plot::bandwidth`]). Long series are reduced to the lowest and highest value per pixel column,
//! so that peaks stay and the file stays small.

mod html;
mod plot;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

pub use plot::{MAX_COLUMNS, decimate};

/// Most plots one report takes.
pub const MAX_PLOTS: usize = 64;
/// Most bytes of pictures that one report takes.
pub const MAX_PICTURE_BYTES: usize = 64 << 20;

/// A report to be written with [`Report::write`].
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Heading and page title.
    pub title: String,
    /// Paragraphs under the heading, plain text.
    pub intro: Vec<String>,
    /// What must hold and whether it did; shown first.
    pub verdicts: Vec<Verdict>,
    /// Tables, in order.
    pub tables: Vec<Table>,
    /// Plots, in order.
    pub plots: Vec<Plot>,
    /// Pictures made before, in order, behind the plots.
    pub pictures: Vec<Picture>,
    /// Closing remarks, plain text, as a list.
    pub notes: Vec<String>,
}

/// One statement that held or did not.
#[derive(Debug, Clone)]
pub struct Verdict {
    /// What was checked.
    pub name: String,
    /// The bound, with its unit.
    pub bound: String,
    /// The measured value, with its unit.
    pub value: String,
    /// Whether the value keeps the bound.
    pub ok: bool,
}

/// A PNG that is laid into the page.
#[derive(Debug, Clone)]
pub struct Picture {
    /// Heading; empty for none.
    pub title: String,
    /// Text under it; empty for none.
    pub caption: String,
    /// The file's bytes.
    pub png: Vec<u8>,
}

/// How a column is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// A table of words and numbers.
#[derive(Debug, Clone, Default)]
pub struct Table {
    /// Caption above the table.
    pub title: String,
    /// Heading (with the unit) and setting of each column.
    pub columns: Vec<(String, Align)>,
    /// Cells, one vector per row. Short rows are filled with empty cells, long ones cut.
    pub rows: Vec<Vec<String>>,
    /// Remark under the table; empty for none.
    pub remark: String,
    /// Whether the table stands after the plots instead of before them.
    pub after_plots: bool,
}

impl Table {
    /// A table whose first column holds words and whose others hold numbers.
    pub fn new(title: impl Into<String>, columns: &[&str]) -> Self {
        let columns = columns
            .iter()
            .enumerate()
            .map(|(i, c)| ((*c).to_owned(), if i == 0 { Align::Left } else { Align::Right }))
            .collect();
        Self {
            title: title.into(),
            columns,
            rows: Vec::new(),
            remark: String::new(),
            after_plots: false,
        }
    }

    /// The same table with one more row.
    #[must_use]
    pub fn row<S: Into<String>>(mut self, cells: impl IntoIterator<Item = S>) -> Self {
        self.rows.push(cells.into_iter().map(Into::into).collect());
        self
    }
}

/// An sRGB colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Color(pub u8, pub u8, pub u8);

impl Color {
    /// The sum of all streams at the narrow window, as in the papers.
    pub const SUM: Color = Color(24, 44, 120);
    /// The sum of all streams at the wide window, as in the papers.
    pub const MEAN: Color = Color(60, 170, 235);
    /// A bound or a capacity.
    pub const BOUND: Color = Color(150, 150, 150);
    const STREAMS: [Color; 8] = [
        Color(222, 160, 0),
        Color(214, 60, 140),
        Color(30, 150, 90),
        Color(205, 80, 40),
        Color(120, 85, 190),
        Color(90, 150, 40),
        Color(0, 140, 150),
        Color(150, 110, 80),
    ];

    /// The colour of the `i`-th stream; the palette of eight repeats.
    pub fn stream(i: usize) -> Color {
        Self::STREAMS[i % Self::STREAMS.len()]
    }
}

/// One line of a plot.
#[derive(Debug, Clone)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// Line colour.
    pub color: Color,
    /// Line width in pixels.
    pub width: u32,
    /// Points by rising x. Points that are not finite are left out.
    pub points: Vec<(f64, f64)>,
}

impl Series {
    /// Bandwidth in Mbps from the bytes counted in consecutive windows of `window_ns`, the first of
    /// which begins at `start_ns`. Each point stands at the middle of its window.
    pub fn mbps(
        name: impl Into<String>,
        color: Color,
        width: u32,
        start_ns: i64,
        window_ns: u64,
        bytes: &[u64],
    ) -> Self {
        let w = window_ns.max(1) as f64;
        let points = bytes
            .iter()
            .enumerate()
            .map(|(i, b)| {
                (
                    (start_ns as f64 + (i as f64 + 0.5) * w) / 1e9,
                    *b as f64 * 8.0 / w * 1e3,
                )
            })
            .collect();
        Self {
            name: name.into(),
            color,
            width,
            points,
        }
    }

    /// A horizontal line at `y` from `x0` to `x1`.
    pub fn level(name: impl Into<String>, y: f64, x0: f64, x1: f64) -> Self {
        Self {
            name: name.into(),
            color: Color::BOUND,
            width: 1,
            points: vec![(x0, y), (x1, y)],
        }
    }
}

/// A plot: lines over one pair of axes.
#[derive(Debug, Clone, Default)]
pub struct Plot {
    /// Stem of the PNG file: ASCII letters, digits, `-` and `_`.
    pub name: String,
    /// Heading of the plot.
    pub title: String,
    /// Text under the plot; empty for none.
    pub caption: String,
    /// Legend of the x axis with its unit.
    pub x_label: String,
    /// Legend of the y axis with its unit.
    pub y_label: String,
    /// Ends of the x axis; from the data when absent.
    pub x_range: Option<(f64, f64)>,
    /// Ends of the y axis; from zero to a little above the data when absent.
    pub y_range: Option<(f64, f64)>,
    /// Lines, the first drawn lowest.
    pub series: Vec<Series>,
}

/// The bytes of one stream in consecutive windows that begin at time zero.
#[derive(Debug, Clone, Copy)]
pub struct StreamWindows<'a> {
    /// Name in the legend.
    pub name: &'a str,
    /// Bytes per window of the narrow width.
    pub bytes: &'a [u64],
}

impl Plot {
    /// A plot with the papers' axes, without lines.
    pub fn new(name: impl Into<String>, title: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            title: title.into(),
            x_label: "time [s]".into(),
            y_label: "bandwidth [Mbps]".into(),
            ..Self::default()
        }
    }

    /// The papers' figure: every stream and the sum (dark blue) at `narrow_ns`, the sum (light blue)
    /// averaged over `wide_ns`. `wide_ns` is rounded down to a whole number of narrow windows.
    pub fn bandwidth(
        name: impl Into<String>,
        title: impl Into<String>,
        narrow_ns: u64,
        wide_ns: u64,
        streams: &[StreamWindows<'_>],
    ) -> Self {
        let mut plot = Self::new(name, title);
        let len = streams.iter().map(|s| s.bytes.len()).max().unwrap_or(0);
        let mut sum = vec![0u64; len];
        for s in streams {
            for (t, b) in sum.iter_mut().zip(s.bytes) {
                *t = t.saturating_add(*b);
            }
        }
        let per = usize::try_from(wide_ns / narrow_ns.max(1))
            .unwrap_or(usize::MAX)
            .max(1);
        let wide: Vec<u64> = sum.chunks_exact(per).map(|c| c.iter().sum()).collect();
        let (n, w) = (width_words(narrow_ns), width_words(wide_ns));
        plot.series.push(Series::mbps(
            format!("sum, {n}"),
            Color::SUM,
            1,
            0,
            narrow_ns,
            &sum,
        ));
        if streams.len() > 1 {
            for (i, s) in streams.iter().enumerate() {
                let color = Color::stream(i);
                plot.series
                    .push(Series::mbps(s.name, color, 1, 0, narrow_ns, s.bytes));
            }
        }
        if per > 1 {
            let wide_ns = narrow_ns.saturating_mul(per as u64);
            plot.series.push(Series::mbps(
                format!("sum, {w}"),
                Color::MEAN,
                2,
                0,
                wide_ns,
                &wide,
            ));
        }
        plot
    }
}

/// A window width in words: `2 ms`, `500 us`, `10 s`.
pub fn width_words(ns: u64) -> String {
    for (unit, name) in [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")] {
        if ns >= unit && ns.is_multiple_of(unit) {
            return format!("{} {name}", ns / unit);
        }
    }
    format!("{ns} ns")
}

impl Report {
    /// Writes `report.html` and one `PLOT.png` per plot into `dir`, which is made when missing.
    /// Returns the path of the HTML file.
    ///
    /// # Errors
    /// When a file cannot be written, a plot's name is not a plain file stem, or there are more than
    /// [`MAX_PLOTS`] plots.
    pub fn write(&self, dir: &Path) -> io::Result<PathBuf> {
        if self.plots.len() > MAX_PLOTS {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("report of {} plots: at most {MAX_PLOTS}", self.plots.len()),
            ));
        }
        let pictures: usize = self.pictures.iter().map(|p| p.png.len()).sum();
        if pictures > MAX_PICTURE_BYTES {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("report with {pictures} bytes of pictures: at most {MAX_PICTURE_BYTES}"),
            ));
        }
        fs::create_dir_all(dir)?;
        for p in &self.plots {
            if p.name.is_empty()
                || !p
                    .name
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
            {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    format!("plot name {:?}: want letters, digits, '-' and '_'", p.name),
                ));
            }
            plot::png(p, &dir.join(format!("{}.png", p.name)))?;
        }
        let path = dir.join("report.html");
        let tmp = dir.join(".report.html.part");
        fs::write(&tmp, html::page(self)?)?;
        fs::rename(&tmp, &path)?;
        Ok(path)
    }
}

#[cfg(test)]
mod tests;
