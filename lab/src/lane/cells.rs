//! The cells of `lane-matrix`: what the lanes are, and what is asked of them.
//!
//! **Bulk**: one endless stream over two lanes, three ratios of capacity and four differences of delay, loss on one, one cut and restored.
//! **mqvpn**: the 16 profiles that mqvpn publishes, a download of 20 MiB each. Their parameters are those of its repository
//! (mp0rta/mqvpn, `benchmarks/bench_env_setup.sh`, and section 3.3 of its report of 2026-06-18), both directions alike, as there.

use kuroshio_core::{
    lane::{BundleConfig, Mode, trial::TrialLane},
    units::{BitRate, FrameBytes, PicoDuration, Ratio},
    wan::{Jitter, Limit, Order},
};

/// Payload and frame of a segment in the tunnel at an MTU of 1,424 on 1,500-byte paths.
pub(super) const INSIDE: (u64, u64) = (1_372, 1_518);
/// Payload and frame of a segment outside of it.
pub(super) const OUTSIDE: (u64, u64) = (1_448, 1_518);
/// MTU inside of the tunnel, and outside.
pub(super) const MTU_BYTES: (u32, u32) = (1_424, 1_500);
/// What is downloaded in a profile of mqvpn.
pub(super) const DOWNLOAD_BYTES: u64 = 20 << 20;
/// Frames that a path of those profiles queues: netem's default. (netem counts those in flight as well.)
const NETEM_FRAMES: u64 = 1_000;
/// Deviations from the mean delay, in sigmas, beyond which a value is drawn again; netem's table of the normal distribution
/// ends there as well.
const SIGMAS: u64 = 4;

/// One lane, both directions alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Path {
    pub(super) mbps: u32,
    pub(super) one_way_delay_ms: u64,
    /// Standard deviation of the delay; frames overtake.
    pub(super) jitter_ms: u64,
    pub(super) loss_ppm: u64,
}

impl Path {
    const fn new(mbps: u32, one_way_delay_ms: u64) -> Self {
        Path {
            mbps,
            one_way_delay_ms,
            jitter_ms: 0,
            loss_ppm: 0,
        }
    }

    const fn with(mbps: u32, one_way_delay_ms: u64, jitter_ms: u64, loss_ppm: u64) -> Self {
        Path {
            mbps,
            one_way_delay_ms,
            jitter_ms,
            loss_ppm,
        }
    }

    pub(super) fn rate(&self) -> BitRate {
        BitRate::from_mbps(self.mbps)
    }
}

/// What flows over the lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    /// An endless stream, counted between two moments, s.
    Endless {
        from_s: u64,
        to_s: u64,
        /// The second lane is cut between these moments, s.
        cut_s: Option<(u64, u64)>,
    },
    /// A download of [`DOWNLOAD_BYTES`].
    Download,
}

/// A cell.
#[derive(Debug, Clone)]
pub(super) struct Cell {
    /// `1:1`, `4:1`, `10:1`, or `mqvpn`.
    pub(super) capacity: &'static str,
    /// Difference of the delays, or the profile's name.
    pub(super) delay: &'static str,
    pub(super) event: &'static str,
    pub(super) mode: Mode,
    pub(super) repair: bool,
    pub(super) paths: [Path; 2],
    pub(super) work: Work,
    /// Least share of the sum, thousandths.
    pub(super) least: Option<u64>,
    /// Published goodput, Mbps: best path alone, bundled without reorder buffer, with it.
    pub(super) published: Option<[Option<f64>; 3]>,
}

impl Cell {
    pub(super) fn name(&self) -> String {
        match self.event {
            "none" => format!("{}, {}", self.capacity, self.delay),
            event => format!("{}, {}, {event}", self.capacity, self.delay),
        }
    }

    /// Whether the lanes are alike.
    pub(super) fn is_even(&self) -> bool {
        let [a, b] = self.paths;
        (a.mbps, a.one_way_delay_ms) == (b.mbps, b.one_way_delay_ms)
    }

    /// Whether a lane loses or varies at random.
    pub(super) fn is_random(&self) -> bool {
        self.paths.iter().any(|p| p.loss_ppm > 0 || p.jitter_ms > 0)
    }

    pub(super) fn sum_bps(&self) -> u64 {
        self.paths.iter().map(|p| p.rate().bps()).sum()
    }

    /// One end of the bundle.
    pub(super) fn bundle(&self) -> BundleConfig {
        let mut config = BundleConfig::new(self.mode, &self.paths.map(|p| p.rate()));
        config.repair = self.repair;
        config
    }

    /// Bytes that a lane's path queues.
    pub(super) fn queue(&self, path: &Path) -> Queue {
        match self.work {
            Work::Endless { .. } => {
                Queue::Bytes(path.rate().bytes_in(PicoDuration::from_ms(100)).max(64 * 1_518))
            }
            Work::Download => Queue::Frames(NETEM_FRAMES),
        }
    }

    /// The lanes of the simulator.
    pub(super) fn trial(&self) -> Vec<TrialLane> {
        let lanes = self.paths.iter().enumerate().map(|(index, path)| {
            let mut lane = TrialLane::new(path.rate(), PicoDuration::from_ms(path.one_way_delay_ms));
            lane.path.queue = match self.queue(path) {
                Queue::Bytes(bytes) => Limit::Bytes(FrameBytes::new(bytes)),
                Queue::Frames(frames) => Limit::Frames(frames),
            };
            if path.jitter_ms > 0 {
                lane.path.jitter = Jitter::Normal {
                    sigma: PicoDuration::from_ms(path.jitter_ms),
                    limit: PicoDuration::from_ms(path.jitter_ms * SIGMAS),
                };
                lane.path.order = Order::Free;
            }
            let lane = lane.losing(Ratio::new(path.loss_ppm, 1_000_000).unwrap_or(Ratio::ZERO));
            match self.work {
                Work::Endless {
                    cut_s: Some((from, to)),
                    ..
                } if index == 1 => lane.cut(PicoDuration::from_secs(from), PicoDuration::from_secs(to)),
                _ => lane,
            }
        });
        lanes.collect()
    }

    /// The lines of a lane's link in a topology.
    pub(super) fn link_toml(&self, path: &Path) -> String {
        let queue = match self.queue(path) {
            Queue::Bytes(bytes) => format!("{bytes}B"),
            Queue::Frames(frames) => format!("{frames} frames"),
        };
        let mut text = format!(
            "capacity = \"{}Mbps\"\none_way_delay = \"{}ms\"\nqueue = \"{queue}\"\n",
            path.mbps, path.one_way_delay_ms
        );
        if path.jitter_ms > 0 {
            text += &format!(
                "jitter = \"normal {}ms {}ms\"\norder = \"free\"\n",
                path.jitter_ms,
                path.jitter_ms * SIGMAS
            );
        }
        if path.loss_ppm > 0 {
            text += &format!("loss = \"{}e-6\"\n", path.loss_ppm);
        }
        text
    }
}

/// A path's queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Queue {
    Bytes(u64),
    Frames(u64),
}

/// The bulk table. Counted from `from_s`, and later where the round trip is long: slow start takes longer there, on one path too.
pub(super) fn bulk(from_s: u64, to_s: u64, long_from_s: u64, long_to_s: u64) -> Vec<Cell> {
    let mut cells = Vec::new();
    for (capacity, rates_mbps, least) in [
        ("1:1", [20, 20], 950),
        ("4:1", [40, 10], 950),
        ("10:1", [50, 5], 900),
    ] {
        for (delay, slow_ms) in [("equal", 20), ("2x", 40), ("4x", 80), ("150 ms more", 170)] {
            let (from_s, to_s) = if slow_ms > 100 {
                (long_from_s, long_to_s)
            } else {
                (from_s, to_s)
            };
            cells.push(Cell {
                delay,
                capacity,
                event: "none",
                mode: Mode::Deskew,
                repair: true,
                paths: [Path::new(rates_mbps[0], 20), Path::new(rates_mbps[1], slow_ms)],
                work: Work::Endless {
                    from_s,
                    to_s,
                    cut_s: None,
                },
                least: Some(least),
                published: None,
            });
        }
    }
    let third = (to_s - from_s) / 3;
    for (event, loss_ppm, cut_s) in [
        ("loss 0.1 % on one", 1_000, None),
        (
            "one cut for a third",
            0,
            Some((from_s + third, from_s + 2 * third)),
        ),
    ] {
        cells.push(Cell {
            delay: "equal",
            capacity: "1:1",
            event,
            mode: Mode::InOrder,
            repair: true,
            paths: [Path::new(20, 20), Path::with(20, 20, 0, loss_ppm)],
            work: Work::Endless { from_s, to_s, cut_s },
            least: None,
            published: None,
        });
    }
    cells
}

/// Goodput that mqvpn publishes, Mbps (sections 4.1.A to C of its report: under its default scheduler).
type Published = [Option<f64>; 3];

const fn all(best: f64, without: f64, with: f64) -> Published {
    [Some(best), Some(without), Some(with)]
}

/// The profiles of mqvpn. De-skewed, since their delays differ; with repair, as the guide says for TCP.
pub(super) fn mqvpn() -> Vec<Cell> {
    let even = |path: Path| [path, path];
    let beside = |path: Path| [Path::new(50, 20), path];
    let profiles: [(&str, [Path; 2], Published); 16] = [
        ("baseline", even(Path::new(50, 20)), all(40.6, 73.9, 58.0)),
        ("rtt_40", beside(Path::new(50, 40)), all(40.5, 0.85, 49.0)),
        ("rtt_70", beside(Path::new(50, 70)), all(40.6, 1.25, 36.5)),
        ("rtt_120", beside(Path::new(50, 120)), all(40.7, 7.05, 28.2)),
        ("rtt_320", beside(Path::new(50, 320)), all(40.3, 40.1, 35.7)),
        ("jit_5", even(Path::with(50, 20, 5, 0)), all(38.8, 3.4, 61.4)),
        ("jit_20", even(Path::with(50, 20, 20, 0)), all(17.4, 0.9, 37.6)),
        (
            "loss_05",
            even(Path::with(50, 20, 0, 5_000)),
            all(32.2, 70.7, 52.7),
        ),
        (
            "loss_2",
            even(Path::with(50, 20, 0, 20_000)),
            all(16.3, 29.0, 24.5),
        ),
        ("bw_4to1", beside(Path::new(12, 20)), all(40.6, 15.6, 26.1)),
        (
            "bw_10to1",
            [Path::new(100, 20), Path::new(10, 20)],
            all(74.2, 13.3, 21.0),
        ),
        (
            "fiber_lte",
            [Path::new(300, 8), Path::with(30, 40, 8, 5_000)],
            all(212.4, 4.9, 77.3),
        ),
        (
            "dual_lte",
            [Path::with(40, 30, 5, 5_000), Path::with(25, 45, 8, 5_000)],
            all(29.6, 0.9, 21.8),
        ),
        (
            "lte_starlink",
            [Path::with(40, 35, 8, 0), Path::with(100, 50, 25, 10_000)],
            [Some(29.6), None, Some(17.1)],
        ),
        (
            "lte_geo",
            [Path::new(40, 35), Path::with(20, 320, 20, 5_000)],
            all(31.7, 31.1, 27.3),
        ),
        (
            "congested",
            [Path::with(20, 50, 20, 20_000), Path::with(15, 60, 25, 20_000)],
            [Some(6.4), None, Some(5.7)],
        ),
    ];
    let cell = |(name, paths, published): (&'static str, [Path; 2], Published)| Cell {
        capacity: "mqvpn",
        delay: name,
        event: "none",
        mode: Mode::Deskew,
        repair: true,
        paths,
        work: Work::Download,
        least: None,
        published: Some(published),
    };
    profiles.into_iter().map(cell).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cell_is_there_once_and_can_be() {
        let all: Vec<Cell> = bulk(30, 90, 30, 90).into_iter().chain(mqvpn()).collect();
        assert_eq!(all.len(), 12 + 2 + 16);
        let mut names: Vec<String> = all.iter().map(Cell::name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all.len());
        for cell in &all {
            cell.bundle().check().expect("a configuration");
        }
    }
}
