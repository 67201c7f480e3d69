//! Every fuzz target on its corpus and on seeded random input, on a stable compiler.

use kuroshio_tests::{fuzz, root};

/// Random inputs of each target, if `KUROSHIO_FUZZ_RUNS` does not say how many; the seed of the n-th is n.
const RUNS: u64 = 3000;
const MAX_BYTES: u64 = 400;

/// splitmix64 (Steele, Lea, Flood 2014).
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Small numbers often, so that operations meet each other; for the parser, bytes of quantities.
fn input(name: &str, seed: u64) -> Vec<u8> {
    const TEXT: &[u8] = b"0123456789.,-+/% eE_kKMGTPiBbpsmunh\xc2\xb5xit";
    let mut state = seed;
    let len = next(&mut state) % if name == "units" { 16 } else { MAX_BYTES };
    let mut byte = || {
        let r = next(&mut state);
        match name {
            "units" | "frame_list" if r & 0xf00 != 0 => TEXT[(r % TEXT.len() as u64) as usize],
            _ if r & 0x100 == 0 => (r % 8) as u8,
            _ => r as u8,
        }
    };
    (0..len).map(|_| byte()).collect()
}

fn smoke(name: &str) {
    let folder = root().join("fuzz/corpus").join(name);
    let mut found = 0;
    for entry in std::fs::read_dir(&folder).expect("a folder in the corpus") {
        let path = entry.expect("an entry").path();
        fuzz::run(name, &std::fs::read(&path).expect("a readable seed"));
        found += 1;
    }
    assert!(found > 0, "no seed in {}", folder.display());
    let runs = std::env::var("KUROSHIO_FUZZ_RUNS").map_or(RUNS, |n| n.parse().expect("a number"));
    for seed in 0..runs {
        let data = input(name, seed);
        let run = std::panic::catch_unwind(|| fuzz::run(name, &data));
        assert!(run.is_ok(), "target {name}, seed {seed}: {data:?}");
    }
}

#[test]
fn every_target_has_its_test_here() {
    let here = include_str!("fuzz_smoke.rs");
    for (name, _) in fuzz::TARGETS {
        assert!(here.contains(&format!("smoke(\"{name}\")")), "{name}");
        let bin = root().join("fuzz/fuzz_targets").join(format!("{name}.rs"));
        assert!(bin.exists(), "{} is missing", bin.display());
    }
}

#[test]
fn units() {
    smoke("units");
}

#[test]
fn frame_view() {
    smoke("frame_view");
}

#[test]
fn chunk_scheduler() {
    smoke("chunk_scheduler");
}

#[test]
fn digest_tree() {
    smoke("digest_tree");
}

#[test]
fn plan_arbiter() {
    smoke("plan_arbiter");
}

#[test]
fn messages() {
    smoke("messages");
}

#[test]
fn tickets() {
    smoke("tickets");
}

#[test]
fn topology() {
    smoke("topology");
}

#[test]
fn capacity_trace() {
    smoke("capacity_trace");
}

#[test]
fn delay_samples() {
    smoke("delay_samples");
}

#[test]
fn superframe() {
    smoke("superframe");
}

#[test]
fn recording() {
    smoke("recording");
}

#[test]
fn frame_list() {
    smoke("frame_list");
}

#[test]
fn stamp() {
    smoke("stamp");
}

#[test]
fn gen_control() {
    smoke("gen_control");
}

#[test]
fn meter_filter() {
    smoke("meter_filter");
}

#[test]
fn lane_datagram() {
    smoke("lane_datagram");
}

#[test]
fn lane_end() {
    smoke("lane_end");
}

#[test]
fn rtp_video() {
    smoke("rtp_video");
}

#[test]
fn y4m_header() {
    smoke("y4m_header");
}

#[test]
fn grid_frames() {
    smoke("grid_frames");
}

#[test]
fn grid_names() {
    smoke("grid_names");
}

#[test]
fn grid_snapshot() {
    smoke("grid_snapshot");
}
