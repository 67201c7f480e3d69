//! Bodies of the fuzz targets: plain functions from bytes to nothing, which panic when something is wrong.
//!
//! `fuzz/` runs them under libFuzzer (nightly); `tests/tests/fuzz_smoke.rs` runs the same on a stable
//! compiler with the corpus of `fuzz/corpus/NAME/` and seeded random input. To add a target: write a
//! body here, name it in [`TARGETS`], add `fuzz/fuzz_targets/NAME.rs` and a `[[bin]]` in `fuzz/Cargo.toml`.

mod chunk;
mod grid;
mod lane;
mod meter;
mod peer;
mod plan;
mod testbed;
mod traffic;
mod units;
mod video;
mod wire;

/// A target's name (also of its folder in the corpus) and body.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: &[Target] = &[
    ("units", units::run),
    ("frame_view", wire::run),
    ("chunk_scheduler", chunk::run),
    ("digest_tree", chunk::digest),
    ("plan_arbiter", plan::run),
    ("messages", peer::messages),
    ("tickets", peer::tickets),
    ("topology", testbed::topology),
    ("capacity_trace", testbed::trace),
    ("delay_samples", testbed::samples),
    ("superframe", testbed::superframe),
    ("recording", traffic::recording),
    ("frame_list", traffic::list),
    ("stamp", traffic::stamp),
    ("gen_control", traffic::control),
    ("meter_filter", meter::run),
    ("lane_datagram", lane::datagram),
    ("lane_end", lane::end),
    ("rtp_video", video::rtp),
    ("y4m_header", video::y4m),
    ("grid_frames", grid::frames),
    ("grid_names", grid::names),
    ("grid_snapshot", grid::snapshot),
];

/// Runs the target called `name`.
///
/// # Panics
/// When there is no such target, or the target found something.
pub fn run(name: &str, data: &[u8]) {
    let (_, body) = TARGETS
        .iter()
        .find(|(n, _)| *n == name)
        .expect("a target of that name");
    body(data);
}

/// Numbers taken from the input, zeros after its end.
pub struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn more(&self) -> bool {
        !self.0.is_empty()
    }

    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    /// A number of up to eight bytes, the first of which says how many.
    fn number(&mut self) -> u64 {
        let bytes = self.byte() % 9;
        (0..bytes).fold(0, |n, _| n << 8 | u64::from(self.byte()))
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.number() % limit.max(1)
    }
}
