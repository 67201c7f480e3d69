//! Rows of pixel groups, as on the wire, to and from planes; to RGB for a snapshot.
//!
//! A group is a list of samples in the order of RFC 4175, section 4.3, each of a plane and a place within the
//! group's part of that plane; 10-bit samples follow each other without gaps, the highest bit first.

use std::io;
use std::path::Path;

use kuroshio_core::video::{Geometry, PixelFormat, Sampling};

/// A sample of a group: plane, and column and row within the group's samples of that plane.
type Sample = (usize, u32, u32);

/// Samples of a group in their order.
fn order(format: PixelFormat) -> Vec<Sample> {
    let pixels = |planes: [usize; 3]| {
        let each = (0..format.group_pixels()).flat_map(move |x| planes.map(|plane| (plane, x, 0)));
        each.collect()
    };
    match format.sampling() {
        Sampling::Rgb => pixels([0, 1, 2]),
        Sampling::Yuv444 => pixels([1, 0, 2]),
        Sampling::Yuv422 => vec![(1, 0, 0), (0, 0, 0), (2, 0, 0), (0, 1, 0)],
        Sampling::Yuv420 => vec![(0, 0, 0), (0, 1, 0), (0, 0, 1), (0, 1, 1), (1, 0, 0), (2, 0, 0)],
    }
}

/// Columns and rows of a plane's samples in a group.
fn step(format: PixelFormat, plane: usize) -> (u32, u32) {
    let (columns, rows) = (format.group_pixels(), format.group_lines());
    match format.sampling() {
        Sampling::Yuv422 if plane > 0 => (columns / 2, rows),
        Sampling::Yuv420 if plane > 0 => (columns / 2, rows / 2),
        _ => (columns, rows),
    }
}

/// Where each plane begins and how long its lines are, in samples; and the samples of all.
fn layout(geometry: Geometry) -> ([usize; 3], [usize; 3], usize) {
    let format = geometry.format();
    let groups = (geometry.width() / format.group_pixels()) as usize;
    let (mut starts, mut strides, mut at) = ([0; 3], [0; 3], 0);
    for plane in 0..3 {
        let (columns, rows) = step(format, plane);
        strides[plane] = groups * columns as usize;
        starts[plane] = at;
        at += strides[plane] * (geometry.rows() * rows) as usize;
    }
    (starts, strides, at)
}

fn sample_bytes(format: PixelFormat) -> usize {
    if format.bits() > 8 { 2 } else { 1 }
}

/// Bytes of a picture in planes: one byte for a sample of 8 bits, two for 10.
#[must_use]
pub fn planar_bytes(geometry: Geometry) -> usize {
    layout(geometry).2 * sample_bytes(geometry.format())
}

/// Writes samples of a group, 8 or 10 bits each.
fn pack(bits: u32, samples: impl Iterator<Item = u16>, out: &mut Vec<u8>) {
    if bits == 8 {
        out.extend(samples.map(|s| s as u8));
        return;
    }
    let (mut held, mut count) = (0u32, 0);
    for sample in samples {
        held = held << bits | u32::from(sample) & ((1 << bits) - 1);
        count += bits;
        while count >= 8 {
            count -= 8;
            out.push((held >> count) as u8);
            held &= (1 << count) - 1;
        }
    }
}

/// Reads samples of a group.
fn unpack(bits: u32, group: &[u8], mut each: impl FnMut(usize, u16)) {
    if bits == 8 {
        group.iter().enumerate().for_each(|(i, b)| each(i, u16::from(*b)));
        return;
    }
    let (mut held, mut count, mut index) = (0u32, 0, 0);
    for byte in group {
        held = held << 8 | u32::from(*byte);
        count += 8;
        if count >= bits {
            count -= bits;
            each(index, (held >> count) as u16);
            index += 1;
            held &= (1 << count) - 1;
        }
    }
}

/// One group of equal samples in each plane.
pub(crate) fn solid(format: PixelFormat, planes: [u16; 3]) -> Vec<u8> {
    let mut out = Vec::new();
    pack(
        format.bits(),
        order(format).into_iter().map(|(plane, _, _)| planes[plane]),
        &mut out,
    );
    out
}

/// Planes into rows of groups, replacing what `wire` held. Missing samples are 0.
pub fn to_wire(geometry: Geometry, planar: &[u8], wire: &mut Vec<u8>) {
    let format = geometry.format();
    let (order, (starts, strides, _)) = (order(format), layout(geometry));
    let steps = [step(format, 0), step(format, 1), step(format, 2)];
    let wide = sample_bytes(format) == 2;
    wire.clear();
    for row in 0..geometry.rows() {
        for group in 0..geometry.width() / format.group_pixels() {
            let samples = order.iter().map(|&(plane, x, y)| {
                let (columns, rows) = steps[plane];
                let at = starts[plane]
                    + (row * rows + y) as usize * strides[plane]
                    + (group * columns + x) as usize;
                let byte = |i: usize| planar.get(i).copied().unwrap_or(0);
                if wide {
                    u16::from_le_bytes([byte(2 * at), byte(2 * at + 1)])
                } else {
                    u16::from(byte(at))
                }
            });
            pack(format.bits(), samples, wire);
        }
    }
}

/// Rows of groups into planes.
#[must_use]
pub fn to_planar(geometry: Geometry, wire: &[u8]) -> Vec<u8> {
    let format = geometry.format();
    let (order, (starts, strides, _)) = (order(format), layout(geometry));
    let steps = [step(format, 0), step(format, 1), step(format, 2)];
    let wide = sample_bytes(format) == 2;
    let mut planar = vec![0; planar_bytes(geometry)];
    let group_bytes = format.group_bytes() as usize;
    for (row, line) in wire
        .chunks_exact(geometry.row_bytes())
        .take(geometry.rows() as usize)
        .enumerate()
    {
        for (group, bytes) in line.chunks_exact(group_bytes).enumerate() {
            unpack(format.bits(), bytes, |i, sample| {
                let Some(&(plane, x, y)) = order.get(i) else {
                    return;
                };
                let (columns, rows) = steps[plane];
                let at = starts[plane]
                    + (row * rows as usize + y as usize) * strides[plane]
                    + group * columns as usize
                    + x as usize;
                if wide {
                    planar[2 * at..2 * at + 2].copy_from_slice(&sample.to_le_bytes());
                } else {
                    planar[at] = sample as u8;
                }
            });
        }
    }
    planar
}

/// Rows of groups into red, green, blue of 8 bits. Luma and chroma as BT.709 with limited range.
#[must_use]
pub fn to_rgb(geometry: Geometry, wire: &[u8]) -> Vec<u8> {
    let format = geometry.format();
    let planar = to_planar(geometry, wire);
    let (starts, strides, _) = layout(geometry);
    let (cx, cy) = match format.sampling() {
        Sampling::Yuv422 => (2, 1),
        Sampling::Yuv420 => (2, 2),
        Sampling::Rgb | Sampling::Yuv444 => (1, 1),
    };
    let wide = sample_bytes(format) == 2;
    let sample = |plane: usize, x: usize, y: usize| -> i32 {
        let at = starts[plane] + y * strides[plane] + x;
        if wide {
            i32::from(u16::from_le_bytes([planar[2 * at], planar[2 * at + 1]]) >> 2)
        } else {
            i32::from(planar[at])
        }
    };
    let (width, height) = (geometry.width() as usize, geometry.height() as usize);
    let mut out = Vec::with_capacity(3 * width * height);
    for y in 0..height {
        for x in 0..width {
            let [a, b, c] = [
                sample(0, x, y),
                sample(1, x / cx, y / cy),
                sample(2, x / cx, y / cy),
            ];
            if format.sampling() == Sampling::Rgb {
                out.extend([a as u8, b as u8, c as u8]);
                continue;
            }
            // BT.709, limited range, in 1/65536: R = 1.1644 (Y-16) + 1.7927 (Cr-128), ...
            let (luma, cb, cr) = (76_309 * (a - 16), b - 128, c - 128);
            let clamp = |v: i32| ((v + 32_768) >> 16).clamp(0, 255) as u8;
            out.extend([
                clamp(luma + 117_489 * cr),
                clamp(luma - 13_975 * cb - 34_925 * cr),
                clamp(luma + 138_438 * cb),
            ]);
        }
    }
    out
}

/// Writes a picture as a PNG file.
///
/// # Errors
/// What the file system says.
pub fn write_png(geometry: Geometry, wire: &[u8], path: &Path) -> io::Result<()> {
    let file = io::BufWriter::new(std::fs::File::create(path)?);
    let mut encoder = png::Encoder::new(file, geometry.width(), geometry.height());
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header().map_err(io::Error::other)?;
    writer
        .write_image_data(&to_rgb(geometry, wire))
        .map_err(io::Error::other)
}

/// Pictures of one size beside each other as the bytes of a PNG, each `every`-th pixel of each `every`-th line, on white.
///
/// # Errors
/// What the encoder says: no picture, or one wider than a PNG may be.
pub fn beside_png(geometry: Geometry, pictures: &[&[u8]], every: u32) -> io::Result<Vec<u8>> {
    let every = every.max(1) as usize;
    let (width, height) = (geometry.width() as usize, geometry.height() as usize);
    let (columns, rows) = (width.div_ceil(every), height.div_ceil(every));
    // A fiftieth of a picture between two.
    let gap = columns.div_ceil(50);
    let wide = (columns + gap) * pictures.len().max(1) - gap;
    let mut all = vec![255; 3 * wide * rows];
    for (n, picture) in pictures.iter().enumerate() {
        let rgb = to_rgb(geometry, picture);
        for row in 0..rows {
            for column in 0..columns {
                let from = 3 * (row * every * width + column * every);
                let to = 3 * (row * wide + n * (columns + gap) + column);
                if let (Some(from), Some(to)) = (rgb.get(from..from + 3), all.get_mut(to..to + 3)) {
                    to.copy_from_slice(from);
                }
            }
        }
    }
    let mut bytes = Vec::new();
    let size = |n: usize| u32::try_from(n).map_err(io::Error::other);
    let mut encoder = png::Encoder::new(&mut bytes, size(wide)?, size(rows)?);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header().map_err(io::Error::other)?;
    writer.write_image_data(&all).map_err(io::Error::other)?;
    writer.finish().map_err(io::Error::other)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn groups_are_the_rfc_s() {
        let wire = |format, planar: &[u8]| {
            let mut out = Vec::new();
            let lines = if format == PixelFormat::Yuv420b8 { 2 } else { 1 };
            to_wire(Geometry::new(2, lines, format).expect("a size"), planar, &mut out);
            out
        };
        assert_eq!(wire(PixelFormat::Yuv422b8, &[1, 2, 3, 4]), [3, 1, 4, 2]);
        assert_eq!(
            wire(PixelFormat::Yuv420b8, &[1, 2, 3, 4, 5, 6]),
            [1, 2, 3, 4, 5, 6]
        );
        assert_eq!(wire(PixelFormat::Rgb8, &[1, 2, 3, 4, 5, 6]), [1, 3, 5, 2, 4, 6]);
        // Cb 0x3ff, Y 0, Cr 0x3ff, Y 1: 1111111111 0000000000 1111111111 0000000001.
        assert_eq!(
            wire(PixelFormat::Yuv422b10, &[0, 0, 1, 0, 0xff, 3, 0xff, 3]),
            [0xff, 0xc0, 0x0f, 0xfc, 0x01]
        );
    }

    #[test]
    fn pictures_stand_beside_each_other() {
        let geometry = Geometry::new(100, 2, PixelFormat::Rgb8).expect("a size");
        let (a, b) = (vec![10; geometry.bytes()], vec![20; geometry.bytes()]);
        let bytes = beside_png(geometry, &[&a, &b], 2).expect("a picture");
        let mut reader = png::Decoder::new(std::io::Cursor::new(bytes))
            .read_info()
            .expect("a PNG");
        let mut out = vec![0; reader.output_buffer_size()];
        let info = reader.next_frame(&mut out).expect("a picture");
        assert_eq!((info.width, info.height), (50 + 1 + 50, 1));
        let shades: Vec<u8> = out.chunks(3).map(|pixel| pixel[0]).collect();
        assert_eq!(shades, [[10; 50].as_slice(), &[255], &[20; 50]].concat());
    }

    #[test]
    fn colours_are_right() {
        let rgb = |format, planes| {
            to_rgb(
                Geometry::new(4, 2, format).expect("a size"),
                &solid(format, planes).repeat(8),
            )[..3]
                .to_vec()
        };
        assert_eq!(rgb(PixelFormat::Rgb8, [10, 20, 30]), [10, 20, 30]);
        assert_eq!(rgb(PixelFormat::Yuv422b8, [235, 128, 128]), [255, 255, 255]);
        assert_eq!(rgb(PixelFormat::Yuv444b8, [16, 128, 128]), [0, 0, 0]);
        // BT.709 red is Y 63, Cb 102, Cr 240.
        let red = rgb(PixelFormat::Yuv422b10, [63 * 4, 102 * 4, 240 * 4]);
        assert!(red[0] >= 253 && red[1] <= 2 && red[2] <= 2, "{red:?}");
    }

    proptest! {
        #[test]
        fn planes_come_back(
            format in proptest::sample::select(PixelFormat::ALL.to_vec()), w in 1u32..20, h in 1u32..10, seed: u64,
        ) {
            let geometry = Geometry::new(4 * w, 2 * h, format).expect("a size");
            let mut state = seed;
            let mut next = || { state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1); (state >> 40) as u16 };
            let planar: Vec<u8> = if format.bits() == 8 {
                (0..planar_bytes(geometry)).map(|_| next() as u8).collect()
            } else {
                (0..planar_bytes(geometry) / 2).flat_map(|_| (next() & 0x3ff).to_le_bytes()).collect()
            };
            let mut wire = Vec::new();
            to_wire(geometry, &planar, &mut wire);
            prop_assert_eq!(wire.len(), geometry.bytes());
            prop_assert_eq!(to_planar(geometry, &wire), planar);
        }
    }
}
