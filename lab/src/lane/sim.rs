//! `lane-matrix` in virtual time: both ends of [`kuroshio_core::lane`] and the simulator's TCP over emulated lanes.

use kuroshio_core::{
    lane::{
        ConfigError,
        trial::{Bulk, BulkResult, FarClock, bulk_tcp, bulk_tcp_alone},
    },
    tcp::cc::Algorithm,
    units::{PicoDuration, PicoTime},
};
use serde_json::json;

use super::cells::{self, Cell, DOWNLOAD_BYTES, MTU_BYTES, Work};
use super::judged::{Goodputs, judge};
use super::{Asked, Outcome};

/// Counted, s: slow start at a round trip of 340 ms takes half a minute on one path too.
const COUNTED_S: (u64, u64) = (30, 90);
/// A download begins when the tunnel has been up for so long, and is given up after so long, s.
const DOWNLOAD_S: (u64, u64) = (2, 122);

/// Runs of a cell whose lanes lose or vary at random.
const SEEDS: u64 = 5;
const CLOCK: FarClock = FarClock {
    offset: PicoDuration::from_secs(7),
    drift_ppb: 15_000,
};

/// Runs every cell that is asked for.
pub(super) fn run(asked: &Asked, tell: &mut dyn FnMut(&str)) -> Result<Outcome, ConfigError> {
    let (from, to) = COUNTED_S;
    let mut outcome = Outcome::default();
    let cells = cells::bulk(from, to, from, to).into_iter().chain(cells::mqvpn());
    for cell in cells.filter(|cell| asked.wants(&cell.name())) {
        let (value, mut checks) = judge(&cell, &goodputs(&cell)?);
        tell(&format!("{}: {value}", cell.name()));
        outcome.measured.insert(cell.name(), value);
        outcome.checks.append(&mut checks);
    }
    outcome.settings = json!([
        { "name": "stream", "value": "one, CUBIC, the simulator's modern stack", "from": "today's kernels" },
        { "name": "lanes", "value": "bulk: 20 ms one-way on the first, queues of 100 ms; both directions alike; pacing at 99.5 %", "from": "ours" },
        { "name": "profiles", "value": "mqvpn's: netem's rates, delays, normal jitter (cut at 4 sigma, frames overtake), loss, queues of 1,000 frames", "from": "mp0rta/mqvpn benchmarks/bench_env_setup.sh and its report of 2026-06-18, section 3.3" },
        { "name": "ideal", "value": "sum of the capacities * 1372 / 1518: less the tunnel's and TCP's headers; of a lane that is cut while it is there", "from": "the wire format" },
        { "name": "best lane alone", "value": "the same stream without tunnel, measured, MTU 1500", "from": "ours" },
        { "name": "mode", "value": "deskew with repair; inorder with repair for loss and cut", "from": "ours" },
        { "name": "counted", "value": format!("bulk: {from} s to {to} s; profiles: a download of 20 MiB that begins 2 s after the tunnel, its whole time"), "from": "ours; mqvpn (HTTP/3 with BBR there, TCP with CUBIC here)" },
        { "name": "runs", "value": format!("{SEEDS} with other seeds where a lane loses or varies, of which the middle one counts, for the bundle and for each lane alone"), "from": "ours" },
        { "name": "clocks", "value": "7 s apart, 15 ppm of drift", "from": "ours" },
    ]);
    outcome.scale = "bulk: 20 to 55 Mbps in sum; profiles: 1".into();
    outcome.notes = vec![
        "Virtual time; MPTCP is measured live only (--live): mptcp_share_of_sum is null.".into(),
        "The simulator's TCP has no RACK reordering timer and no undo of a recovery that was not needed: a lane alone that reorders gives it far \
         less than a kernel gets, so that with jitter the share of the best lane says little. The published figure of the best path stands \
         beside it."
            .into(),
    ];
    Ok(outcome)
}

/// Of the runs with each seed the one in the middle.
fn median<T>(
    cell: &Cell,
    run: impl Fn(u64) -> Result<(BulkResult, T), ConfigError>,
) -> Result<(BulkResult, T), ConfigError> {
    let seeds = if cell.is_random() { SEEDS } else { 1 };
    let mut runs: Vec<_> = (1..=seeds).map(run).collect::<Result<_, _>>()?;
    runs.sort_by_key(|(result, _)| result.goodput_bps);
    Ok(runs.swap_remove(runs.len() / 2))
}

fn goodputs(cell: &Cell) -> Result<Goodputs, ConfigError> {
    let lanes = cell.trial();
    let s = PicoTime::from_secs;
    let bulk = |mtu_bytes| match cell.work {
        Work::Endless { from_s, to_s, .. } => Bulk {
            algorithm: Algorithm::Cubic,
            mtu_bytes,
            start: PicoTime::ZERO,
            from: s(from_s),
            to: s(to_s),
            bytes: None,
        },
        Work::Download => Bulk {
            algorithm: Algorithm::Cubic,
            mtu_bytes,
            start: s(DOWNLOAD_S.0),
            from: s(DOWNLOAD_S.0),
            to: s(DOWNLOAD_S.1),
            bytes: Some(DOWNLOAD_BYTES),
        },
    };
    let (result, pair) = median(cell, |seed| {
        bulk_tcp(&cell.bundle(), &lanes, CLOCK, seed, bulk(MTU_BYTES.0))
    })?;
    let mut alone_bps = [0; 2];
    for (bps, lane) in alone_bps.iter_mut().zip(&lanes) {
        let alone = |seed| Ok((bulk_tcp_alone(lane, seed, bulk(MTU_BYTES.1)), ()));
        *bps = median(cell, alone)?.0.goodput_bps;
    }
    let status = pair.near.status(result.ended);
    let states: Vec<&str> = status.lanes.iter().map(|l| l.state.name()).collect();
    let mut found = Goodputs {
        bundle_bps: result.goodput_bps,
        whole_bps: result.whole_goodput_bps,
        alone_bps,
        mptcp_bps: None,
        ..Goodputs::default()
    };
    for (name, value) in [
        ("window_cuts", json!(result.cuts)),
        ("timeouts", json!(result.timeouts)),
        ("repaired", json!(status.out.repaired)),
        ("lane_states_at_end", json!(states)),
    ] {
        found.more.insert(name.into(), value);
    }
    Ok(found)
}
