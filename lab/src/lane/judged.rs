//! What a cell's figures say: its JSON and its checks, the same in virtual time and live.

use serde_json::{Map, Value, json};

use super::cells::{Cell, INSIDE, OUTSIDE, Work};
use crate::check::Check;

/// Goodputs of a cell, payload, bit/s.
#[derive(Debug, Clone, Default)]
pub(super) struct Goodputs {
    /// Over the bundle.
    pub(super) bundle_bps: u64,
    /// Over the bundle, from the start of the stream.
    pub(super) whole_bps: u64,
    /// Over each lane alone, without a tunnel.
    pub(super) alone_bps: [u64; 2],
    /// Of MPTCP over the same lanes, without a tunnel.
    pub(super) mptcp_bps: Option<u64>,
    /// More figures.
    pub(super) more: Map<String, Value>,
}

/// What remains of a goodput when every segment carries the tunnel's header.
pub(super) fn less_header(bps: u64) -> u64 {
    (u128::from(bps) * u128::from(INSIDE.0 * OUTSIDE.1) / u128::from(OUTSIDE.0 * INSIDE.1)) as u64
}

/// The sum of the lanes less the tunnel's and TCP's headers, bit/s; a lane that is cut counts while it is there.
pub(super) fn ideal_bps(cell: &Cell) -> u64 {
    let mut sum = cell.sum_bps();
    if let Work::Endless {
        from_s,
        to_s,
        cut_s: Some((cut, restored)),
    } = cell.work
    {
        sum -= cell.paths[1].rate().bps() * (restored - cut) / (to_s - from_s).max(1);
    }
    sum * INSIDE.0 / INSIDE.1
}

/// The cell's figures and checks.
pub(super) fn judge(cell: &Cell, found: &Goodputs) -> (Value, Vec<Check>) {
    let best = found.alone_bps.into_iter().max().unwrap_or(0).max(1);
    let best_less_header = less_header(best).max(1);
    let ideal = ideal_bps(cell).max(1);
    let share = |part: u64, of: u64| (part as f64 / of as f64 * 1e4).round() / 1e4;
    let mbps = |bps: u64| (bps as f64 / 1e4).round() / 1e2;
    let mut value = json!({
        "delay": cell.delay, "capacity": cell.capacity, "event": cell.event,
        "mode": format!("{:?}", cell.mode).to_lowercase(), "repair": cell.repair,
        "rates_mbps": cell.paths.map(|p| p.mbps), "one_way_delays_ms": cell.paths.map(|p| p.one_way_delay_ms),
        "jitter_sigma_ms": cell.paths.map(|p| p.jitter_ms), "loss_ppm": cell.paths.map(|p| p.loss_ppm),
        "goodput_mbps": mbps(found.bundle_bps), "whole_goodput_mbps": mbps(found.whole_bps),
        "alone_goodput_mbps": found.alone_bps.map(mbps), "best_alone_goodput_mbps": mbps(best),
        "mptcp_goodput_mbps": found.mptcp_bps.map(mbps),
        "share_of_sum": share(found.bundle_bps, ideal), "share_of_best": share(found.bundle_bps, best),
        "share_of_best_less_header": share(found.bundle_bps, best_less_header),
        "mptcp_share_of_sum": found.mptcp_bps.map(|m| share(less_header(m), ideal)),
    });
    if let (Some([best, without, with]), Some(map)) = (cell.published, value.as_object_mut()) {
        let published = json!({ "best_path_mbps": best, "bundled_mbps": without, "bundled_with_reorder_buffer_mbps": with });
        map.insert("mqvpn_published".into(), published);
    }
    if let Some(map) = value.as_object_mut() {
        map.extend(found.more.clone());
    }
    (value, checks(cell, found, best_less_header, ideal))
}

fn checks(cell: &Cell, found: &Goodputs, best_less_header: u64, ideal: u64) -> Vec<Check> {
    let name = cell.name();
    let bundle = found.bundle_bps;
    let ratio = |of: u64| format!("{:.3}", bundle as f64 / of.max(1) as f64);
    let mut checks = vec![Check {
        name: format!("{name}: not below the best lane less the header"),
        value: ratio(best_less_header),
        bound: "1 or more".into(),
        ok: bundle >= best_less_header,
    }];
    if let Some(least) = cell.least {
        checks.push(Check {
            name: format!("{name}: share of the sum less the header"),
            value: ratio(ideal),
            bound: format!("{:.2} or more", least as f64 / 1e3),
            ok: bundle * 1_000 >= ideal * least,
        });
    }
    if let Some(mptcp) = found.mptcp_bps {
        let mptcp = less_header(mptcp);
        let even = cell.is_even();
        checks.push(Check {
            name: format!("{name}: beside MPTCP less the header"),
            value: ratio(mptcp),
            bound: if even { "1 or more" } else { "above 1" }.into(),
            ok: if even { bundle >= mptcp } else { bundle > mptcp },
        });
    }
    checks
}

#[cfg(test)]
mod tests {
    use super::super::cells;
    use super::*;

    #[test]
    fn shares_are_of_what_the_lanes_carry() {
        let cells = cells::bulk(30, 90, 30, 90);
        let sum = 40_000_000 * 1_372 / 1_518;
        assert_eq!(ideal_bps(&cells[0]), sum);
        let cut = cells.iter().find(|c| c.event.contains("cut")).expect("a cell");
        // 20 of 40 Mbps are there for two thirds of the time.
        assert_eq!(ideal_bps(cut), (40_000_000 - 20_000_000 / 3) * 1_372 / 1_518);
        let found = Goodputs {
            bundle_bps: sum,
            alone_bps: [19_000_000, 18_000_000],
            mptcp_bps: Some(sum),
            ..Goodputs::default()
        };
        let (value, checks) = judge(&cells[0], &found);
        assert_eq!(value["share_of_sum"], 1.0);
        assert!(checks.len() == 3 && checks.iter().all(|c| c.ok), "{checks:?}");
        // Slower than the best lane, and than MPTCP.
        let found = Goodputs {
            bundle_bps: 17_000_000,
            mptcp_bps: Some(18_000_000),
            ..found
        };
        let (_, checks) = judge(&cells[0], &found);
        assert!(checks.iter().all(|c| !c.ok), "{checks:?}");
        // Unequal lanes: above, not beside.
        let equal = less_header(18_000_000);
        let found = Goodputs {
            bundle_bps: equal,
            ..found
        };
        let (_, checks) = judge(&cells[1], &found);
        assert!(!checks[2].ok, "{checks:?}");
    }
}
