//! Drawing of one plot, to SVG (inline in the page) and to PNG, by the same code.
//!
//! Layout, from the top: title, one or more rows of legend, the axes. Each line is reduced to at
//! most [`MAX_COLUMNS`] columns of (lowest, highest) before it is drawn.

use std::io;
use std::path::Path;
use std::sync::OnceLock;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::{FontStyle, register_font};

use super::{Plot, Series};

const WIDTH: u32 = 960;
const HEIGHT: u32 = 440;
/// Scale of the PNG against the SVG, for clear print.
const PNG_SCALE: u32 = 2;
const FONT: &str = "sans-serif";
const INK: RGBColor = RGBColor(28, 36, 48);
const GRID: RGBColor = RGBColor(226, 231, 239);
/// Columns a line is reduced to: about one per pixel of the SVG's axes.
pub const MAX_COLUMNS: usize = 880;

/// Registers the one font that both back ends measure text with; false when it cannot be read.
fn fonts() -> bool {
    static DONE: OnceLock<bool> = OnceLock::new();
    *DONE.get_or_init(|| {
        [FontStyle::Normal, FontStyle::Bold]
            .into_iter()
            .all(|style| register_font(FONT, style, epaint_default_fonts::UBUNTU_LIGHT).is_ok())
    })
}

fn failed(e: impl std::fmt::Display) -> io::Error {
    io::Error::other(format!("plot: {e}"))
}

/// The plot as an `<svg>` element.
pub(super) fn svg(p: &Plot) -> io::Result<String> {
    let mut text = String::new();
    draw(
        SVGBackend::with_string(&mut text, (WIDTH, HEIGHT)).into_drawing_area(),
        p,
        1,
    )?;
    // The name space is implied inside HTML, and the view box alone lets the page set the width.
    let text = text
        .replace(" xmlns=\"http://www.w3.org/2000/svg\"", "")
        .replacen(&format!("width=\"{WIDTH}\" height=\"{HEIGHT}\" "), "", 1);
    Ok(text)
}

/// The plot as a PNG file of twice the size.
pub(super) fn png(p: &Plot, path: &Path) -> io::Result<()> {
    let size = (WIDTH * PNG_SCALE, HEIGHT * PNG_SCALE);
    draw(BitMapBackend::new(path, size).into_drawing_area(), p, PNG_SCALE)
}

/// Reduces `points` (by rising x) to at most two per each of [`MAX_COLUMNS`] columns between `x0`
/// and `x1`: the lowest and the highest of the column, in the order they came. Points outside and
/// points that are not finite are left out.
pub fn decimate(points: &[(f64, f64)], x0: f64, x1: f64) -> Vec<(f64, f64)> {
    let inside = points
        .iter()
        .copied()
        .filter(|(x, y)| x.is_finite() && y.is_finite() && *x >= x0 && *x <= x1);
    if points.len() <= 2 * MAX_COLUMNS {
        return inside.collect();
    }
    let mut out = Vec::with_capacity(2 * MAX_COLUMNS);
    let mut column = usize::MAX;
    let mut low = (0.0, 0.0);
    let mut high = (0.0, 0.0);
    let mut flush = |low: (f64, f64), high: (f64, f64)| {
        if low.0 == high.0 {
            out.push(low);
        } else if low.0 < high.0 {
            out.extend([low, high]);
        } else {
            out.extend([high, low]);
        }
    };
    for (x, y) in inside {
        let share = if x1 > x0 { (x - x0) / (x1 - x0) } else { 0.0 };
        let c = ((share * MAX_COLUMNS as f64) as usize).min(MAX_COLUMNS - 1);
        if c != column {
            if column != usize::MAX {
                flush(low, high);
            }
            column = c;
            low = (x, y);
            high = (x, y);
        }
        if y < low.1 {
            low = (x, y);
        }
        if y > high.1 {
            high = (x, y);
        }
    }
    if column != usize::MAX {
        flush(low, high);
    }
    out
}

/// Lowest and highest of the finite values, widened to a non-empty range.
fn span(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (a, b) = values
        .filter(|v| v.is_finite())
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), v| {
            (a.min(v), b.max(v))
        });
    if a > b {
        (0.0, 1.0)
    } else if a == b {
        (a, a + 1.0)
    } else {
        (a, b)
    }
}

fn usable(range: Option<(f64, f64)>) -> Option<(f64, f64)> {
    range.filter(|(a, b)| a.is_finite() && b.is_finite() && a < b)
}

fn draw<B: DrawingBackend>(root: DrawingArea<B, Shift>, p: &Plot, scale: u32) -> io::Result<()> {
    if !fonts() {
        return Err(failed("the built-in font cannot be read"));
    }
    root.fill(&WHITE).map_err(failed)?;
    let (x0, x1) =
        usable(p.x_range).unwrap_or_else(|| span(p.series.iter().flat_map(|s| s.points.iter().map(|q| q.0))));
    let lines: Vec<(&Series, Vec<(f64, f64)>)> = p
        .series
        .iter()
        .map(|s| (s, decimate(&s.points, x0, x1)))
        .collect();
    let (y0, y1) = usable(p.y_range).unwrap_or_else(|| {
        let (a, b) = span(lines.iter().flat_map(|(_, q)| q.iter().map(|q| q.1)));
        (a.min(0.0), b + 0.06 * (b - a.min(0.0)))
    });

    let title = (FONT, 17 * scale).into_font().style(FontStyle::Bold).color(&INK);
    root.draw_text(&p.title, &title, ((14 * scale) as i32, (12 * scale) as i32))
        .map_err(failed)?;
    let rows = legend(&root, p, scale)?;
    let (_, body) = root.split_vertically(((40 + 20 * rows) * scale) as i32);
    let label = (FONT, 13 * scale).into_font().color(&INK);
    let mut chart = ChartBuilder::on(&body)
        .margin_right(22 * scale)
        .margin_left(6 * scale)
        .margin_bottom(4 * scale)
        .x_label_area_size(42 * scale)
        .y_label_area_size(64 * scale)
        .build_cartesian_2d(x0..x1, y0..y1)
        .map_err(failed)?;
    chart
        .configure_mesh()
        .x_desc(&p.x_label)
        .y_desc(&p.y_label)
        .axis_desc_style(label.clone())
        .label_style(label)
        .axis_style(ShapeStyle::from(&INK).stroke_width(scale))
        .bold_line_style(ShapeStyle::from(&GRID).stroke_width(scale))
        .light_line_style(TRANSPARENT)
        .x_labels(11)
        .y_labels(8)
        .x_label_formatter(&|v| tick(*v))
        .y_label_formatter(&|v| tick(*v))
        .draw()
        .map_err(failed)?;
    for (s, points) in lines {
        let style =
            ShapeStyle::from(&RGBColor(s.color.0, s.color.1, s.color.2)).stroke_width(s.width.max(1) * scale);
        if scale == 1 {
            chart
                .draw_series(LineSeries::new(points, style))
                .map_err(failed)?;
        } else {
            // The bitmap back end mitres the joints of a wide line, so that a sharp peak would leave
            // the axes: one element per segment has no joint.
            chart
                .draw_series(points.windows(2).map(|w| PathElement::new(w.to_vec(), style)))
                .map_err(failed)?;
        }
    }
    root.present().map_err(failed)
}

/// A tick's number without superfluous zeros.
fn tick(v: f64) -> String {
    let t = format!("{v:.3}");
    let t = t.trim_end_matches('0').trim_end_matches('.');
    if t == "-0" { "0".into() } else { t.into() }
}

/// Draws swatches and names under the title, in as many rows as they need; returns the rows.
fn legend<B: DrawingBackend>(root: &DrawingArea<B, Shift>, p: &Plot, scale: u32) -> io::Result<u32> {
    let font = (FONT, 13 * scale).into_font().color(&INK);
    let s = scale as i32;
    let (mut x, mut row) = (14 * s, 0i32);
    for line in &p.series {
        let (w, _) = root.estimate_text_size(&line.name, &font).map_err(failed)?;
        // The page's own font is a little wider than the built-in one.
        let w = (w as i32) * 23 / 20 + 46 * s;
        if x > 14 * s && x + w > (WIDTH as i32 - 10) * s {
            x = 14 * s;
            row += 1;
        }
        let y = (38 + 20 * row) * s;
        let color = RGBColor(line.color.0, line.color.1, line.color.2);
        root.draw(&Rectangle::new(
            [(x, y + 4 * s), (x + 22 * s, y + 8 * s)],
            ShapeStyle::from(&color).filled(),
        ))
        .map_err(failed)?;
        root.draw_text(&line.name, &font, (x + 28 * s, y))
            .map_err(failed)?;
        x += w;
    }
    Ok(u32::try_from(row).unwrap_or(0) + 1)
}
