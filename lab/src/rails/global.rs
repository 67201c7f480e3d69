//! `plb-global`: what both modes have in common (002, figures 7 and 8).
//!
//! ```text
//!                       upper half \             / lane 1, 50 ms \             / upper \
//!   de-skewed:                       tunnel ----                   ---- tunnel           screen
//!                       lower half /             \ lane 2, 200 ms /            \ lower /
//!
//!   without:            upper half --------------- lane 1, 50 ms --------------- upper \
//!                       lower half --------------- lane 2, 200 ms -------------- lower / screen
//! ```
//!
//! The screen shows a picture half of its time after its first half came, with what it has then: a display that does not align.

use std::time::Duration;

use kuroshio_core::meter::Histogram;
use kuroshio_core::units::{BitRate, PicoDuration};
use kuroshio_core::video::{Geometry, JoinCounts, PixelFormat};
use kuroshio_netv::{beside_png, pattern_number};
use serde_json::{Value, json};

use super::{About, Made, RailsError, Request, check, empty, failed, set, setting, size_within, time_within};
use crate::check::Check;
use crate::experiment::Mode;
use crate::page::words;
use crate::report::{Picture, Table};

/// Pictures per second (002, section IV).
pub(super) const RATE: (u32, u32) = (30, 1);
/// One-way delays; their difference is the paper's (002, section IV).
pub(super) const DELAYS_MS: [u64; 2] = [50, 200];
/// A lane at full size (002, section III).
const LANE: BitRate = BitRate::from_mbps(10_000);
const FULL: (u32, u32) = (3_840, 2_160);
/// Frame level MTU of the lanes.
pub(super) const MTU: usize = 9_000;
/// What the tunnel puts around an IPv4 packet: IP 20, UDP 8, its own 48.
pub(super) const TUNNEL_BYTES: usize = 76;
/// IPv4 and UDP below a datagram.
pub(super) const BELOW_BYTES: usize = 28;
/// Halves of a de-skewed picture may be so far apart.
const APART_US: f64 = 100.0;
/// Largest width of a picture in the report.
const SHOWN_WIDTH: u32 = 960;

/// What is run.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub geometry: Geometry,
    /// Pictures that are sent.
    pub pictures: u64,
    pub time: Duration,
    pub lane: BitRate,
}

impl Settings {
    /// `size` is what is sent without a word of `--set`.
    pub(super) fn of(request: &Request, size: (u32, u32)) -> Result<Self, RailsError> {
        let usual = Geometry::new(size.0, size.1, PixelFormat::Rgb8).map_err(|e| failed("the size")(&e))?;
        let geometry = set(request, "size", "64x32 to 7680x4320", size_within)?.unwrap_or(usual);
        let time = set(request, "time", "1s to 600s", |t| time_within(t, 1_000, 600_000))?;
        let time = time.unwrap_or(Duration::from_secs(60));
        let full = u64::from(FULL.0) * u64::from(FULL.1);
        let pixels = u64::from(geometry.width()) * u64::from(geometry.height());
        let lane_bps = u128::from(LANE.bps()) * u128::from(pixels) / u128::from(full);
        Ok(Self {
            geometry,
            pictures: u64::try_from(time.as_millis() * u128::from(RATE.0) / 1_000).unwrap_or(u64::MAX),
            time,
            lane: BitRate::new(lane_bps as u64).unwrap_or(BitRate::MIN),
        })
    }

    /// Half of a picture's time.
    pub(super) fn wait() -> PicoDuration {
        PicoDuration::from_ns(500_000_000 * u64::from(RATE.1) / u64::from(RATE.0))
    }

    fn scale(&self) -> String {
        let pixels = |(w, h): (u32, u32)| f64::from(w) * f64::from(h);
        let times = pixels(FULL) / pixels((self.geometry.width(), self.geometry.height()));
        if (times - 1.0).abs() < 1e-9 {
            "1".into()
        } else {
            format!("1/{times:.3} in pixels and rates")
        }
    }

    fn rows(&self) -> Vec<Value> {
        let g = self.geometry;
        vec![
            setting(
                "picture",
                format!(
                    "{}x{}, RGB in 24 bits, 30 per second, a pattern that moves sideways",
                    g.width(),
                    g.height()
                ),
                "002, section IV; 6 Gbps at full size (section I)",
            ),
            setting(
                "time",
                format!("{:?}, {} pictures", self.time, self.pictures),
                "figures.md",
            ),
            setting("parts", "upper and lower half", "002, section II"),
            setting(
                "lanes",
                format!("two of {}", self.lane),
                "002, section III: 10 Gbps; in the scale of the picture",
            ),
            setting("difference of delay", "150 ms", "002, section IV"),
            setting(
                "delays",
                "50 and 200 ms one-way, no loss, no jitter",
                "ours: only the difference is printed",
            ),
            setting("MTU", format!("{MTU} bytes of IP packet"), "ours"),
            setting(
                "screen",
                "a picture is shown half of its time after its first half came",
                "ours: a display that does not align",
            ),
            setting(
                "without de-skew",
                "each half takes a lane of its own",
                "002, section IV: simply transferred using the two lanes",
            ),
            setting(
                "alignment",
                "from the half that was whole first to the other, of whole pictures",
                "ours",
            ),
        ]
    }
}

/// What a screen saw.
#[derive(Debug, Clone, Default)]
pub(super) struct Seen {
    pub counts: JoinCounts,
    /// Of whole pictures.
    pub apart: Apart,
    /// What it showed last.
    pub picture: Vec<u8>,
    /// Figures of the mode.
    pub more: Value,
}

/// From the half that was whole first to the other.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Apart {
    pub p50_us: f64,
    pub p99_us: f64,
    pub max_us: f64,
}

impl Apart {
    /// Of values in ns.
    pub(super) fn of(spread: &Histogram) -> Self {
        let summary = spread.summary();
        let us = |ns: u64| ns as f64 / 1e3;
        Self {
            p50_us: us(summary.p50),
            p99_us: us(summary.p99),
            max_us: us(summary.max),
        }
    }
}

impl Seen {
    fn shown(&self) -> u64 {
        self.counts.whole + self.counts.torn
    }

    /// The numbers that the halves of the last picture spell.
    fn numbers(&self, geometry: Geometry) -> [Option<u16>; 2] {
        [0, 1].map(|half| {
            let (part, range) = geometry.part(half, 2).ok()?;
            pattern_number(part, self.picture.get(range)?)
        })
    }

    fn json(&self, geometry: Geometry) -> Value {
        let whole = self.counts.whole > 0;
        let apart = |us: f64| whole.then_some(us);
        json!({
            "shown_pictures": self.shown(),
            "whole_pictures": self.counts.whole,
            "torn_pictures": self.counts.torn,
            "late_parts": self.counts.late_parts,
            "halves_apart_p50_us": apart(self.apart.p50_us),
            "halves_apart_p99_us": apart(self.apart.p99_us),
            "halves_apart_max_us": apart(self.apart.max_us),
            "last_picture_spells": self.numbers(geometry),
            "more": self.more,
        })
    }
}

/// Both runs as a result.
pub(super) fn result(
    about: &About,
    mode: Mode,
    settings: &Settings,
    mut more: Vec<Value>,
    with: &Seen,
    without: &Seen,
) -> Result<Made, RailsError> {
    let name = if mode == Mode::Sim { "sim" } else { "live" };
    let mut result = empty(about, name, &settings.scale());
    result.paper = json!([
        { "name": "with de-skew", "value": "the halves are aligned (photograph, left)" },
        { "name": "without", "value": "misaligned because of the delay difference (photograph, right)" },
    ]);
    let mut rows = settings.rows();
    rows.append(&mut more);
    result.settings = Value::Array(rows);
    result
        .measured
        .insert("deskewed".into(), with.json(settings.geometry));
    result
        .measured
        .insert("without".into(), without.json(settings.geometry));
    result.checks = checks(mode, settings, with, without);
    let every = settings.geometry.width().div_ceil(SHOWN_WIDTH);
    let png = beside_png(settings.geometry, &[&with.picture, &without.picture], every);
    let picture = Picture {
        title: "Received video streams".into(),
        caption: "The last picture that each screen showed: with de-skew on the left, without on the right (compare 002, fig. 8). \
                  The strips spell the picture's number; the bars move by 1/64 of the width from picture to picture."
            .into(),
        png: png.map_err(|e| failed("the picture")(&e))?,
    };
    let tables = vec![table(with, without, settings.geometry)];
    Ok(Made {
        result,
        tables,
        pictures: vec![("plb-global".into(), picture)],
    })
}

/// What must hold.
fn checks(mode: Mode, settings: &Settings, with: &Seen, without: &Seen) -> Vec<Check> {
    // In virtual time nothing disturbs: the largest counts. On a machine one in a hundred may suffer from its wake-ups.
    let (of, apart) = match mode {
        Mode::Sim => ("the largest", with.apart.max_us),
        _ => ("99 of 100", with.apart.p99_us),
    };
    let spelled = with.numbers(settings.geometry);
    let apart_now = without.numbers(settings.geometry);
    let behind = apart_now[0]
        .zip(apart_now[1])
        .map(|(upper, lower)| upper.wrapping_sub(lower));
    vec![
        check(
            "de-skewed: torn pictures",
            format!("0 in {:?}", settings.time),
            with.counts.torn.to_string(),
            with.counts.torn == 0,
        ),
        check(
            "de-skewed: whole pictures",
            format!("{}: every one", settings.pictures),
            with.counts.whole.to_string(),
            with.counts.whole == settings.pictures,
        ),
        check(
            "de-skewed: halves apart",
            format!("at most {APART_US} us ({of})"),
            format!("{apart:.1} us"),
            with.counts.whole > 0 && apart <= APART_US,
        ),
        check(
            "de-skewed: the last picture's halves spell one number",
            "the same in both",
            format!("{spelled:?}"),
            spelled[0].is_some() && spelled[0] == spelled[1],
        ),
        check(
            "without: torn pictures",
            "every one that is shown",
            format!("{} of {}", without.counts.torn, without.shown()),
            without.counts.torn > 0 && without.counts.whole == 0,
        ),
        check(
            "without: the lower half is behind",
            "4 or 5 pictures: 150 ms at 30 per second",
            behind.map_or("not to be read".into(), |n| format!("{n} pictures")),
            behind.is_some_and(|n| (4..=5).contains(&n)),
        ),
    ]
}

fn table(with: &Seen, without: &Seen, geometry: Geometry) -> Table {
    let mut t = words(
        "Measured",
        &[
            "",
            "shown",
            "whole",
            "torn",
            "halves apart, p50 / p99 / largest [us]",
            "last picture spells",
        ],
    );
    for (name, seen) in [("de-skewed", with), ("without", without)] {
        let apart = match seen.counts.whole {
            0 => "never whole".to_owned(),
            _ => format!(
                "{:.1} / {:.1} / {:.1}",
                seen.apart.p50_us, seen.apart.p99_us, seen.apart.max_us
            ),
        };
        let numbers = seen
            .numbers(geometry)
            .map(|n| n.map_or("?".into(), |n| n.to_string()));
        t = t.row([
            name.to_owned(),
            seen.shown().to_string(),
            seen.counts.whole.to_string(),
            seen.counts.torn.to_string(),
            apart,
            numbers.join(" over "),
        ]);
    }
    t
}

#[cfg(test)]
mod tests {
    use super::*;
    use kuroshio_netv::Pattern;

    fn seen(settings: &Settings, numbers: [u64; 2], whole: u64, torn: u64) -> Seen {
        let pattern = Pattern::new(settings.geometry, 2);
        let mut picture = Vec::new();
        pattern.draw(numbers[0], &mut picture);
        let (_, lower) = settings.geometry.part(1, 2).expect("a half");
        let mut other = Vec::new();
        pattern.draw(numbers[1], &mut other);
        picture[lower.clone()].copy_from_slice(&other[lower]);
        Seen {
            counts: JoinCounts {
                whole,
                torn,
                ..JoinCounts::default()
            },
            apart: Apart {
                p50_us: 1.0,
                p99_us: 99.0,
                max_us: 300.0,
            },
            picture,
            more: Value::Null,
        }
    }

    fn settings() -> Settings {
        let sets = vec![("size".into(), "64x32".into()), ("time".into(), "10s".into())];
        let request = Request {
            mode: Mode::Sim,
            sets,
            work: std::path::PathBuf::new(),
        };
        Settings::of(&request, FULL).expect("settings")
    }

    #[test]
    fn lanes_are_in_the_scale_of_the_picture() {
        let settings = settings();
        assert_eq!(
            (settings.pictures, settings.scale()),
            (300, "1/4050.000 in pixels and rates".to_owned())
        );
        // 10 Gbps over 4050.
        assert_eq!(settings.lane.bps(), 2_469_135);
    }

    #[test]
    fn each_check_can_fail() {
        let settings = settings();
        let failing = |mode, with: Seen, without: Seen| -> Vec<usize> {
            let checks = checks(mode, &settings, &with, &without);
            checks
                .iter()
                .enumerate()
                .filter(|(_, c)| !c.ok)
                .map(|(i, _)| i)
                .collect()
        };
        let good = || seen(&settings, [299, 299], 300, 0);
        let torn = || seen(&settings, [299, 295], 0, 300);
        assert_eq!(failing(Mode::Live, good(), torn()), [0usize; 0]);
        // Halves 300 us apart, once: virtual time has no excuse.
        assert_eq!(failing(Mode::Sim, good(), torn()), [2]);
        assert_eq!(
            failing(Mode::Live, seen(&settings, [299, 298], 299, 1), torn()),
            [0, 1, 3]
        );
        assert_eq!(failing(Mode::Live, good(), good()), [4, 5]);
        let nothing = || Seen::default();
        assert_eq!(failing(Mode::Live, nothing(), nothing()), [1, 2, 3, 4, 5]);
    }
}
