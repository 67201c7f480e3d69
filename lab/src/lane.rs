//! Experiments on lanes, in virtual time: `plb-deskew` and `lane-matrix`.
//!
//! They have no topology of routers and no kernel's TCP, so they are code and not a file: both ends of
//! [`kuroshio_core::lane`] over links of [`kuroshio_core::wan`], with clocks that differ. Parameters stand in [`settings`](LaneRun::settings)
//! with their source; what must hold in [`checks`](LaneRun::checks).

use kuroshio_core::{
    lane::{
        BundleConfig, ConfigError, Load, Mode,
        trial::{Bulk, FarClock, Pair, TrialLane, bulk_tcp, bulk_tcp_alone},
    },
    tcp::cc::Algorithm,
    units::{BitRate, PicoDuration, PicoTime, Ratio},
    wan::Jitter,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// What `kuroshio lab` knows besides the files: name and title.
pub const ALL: [(&str, &str); 2] = [
    (
        "plb-deskew",
        "Two 10 Gbps lanes, one with 20 us of delay and jitter, de-skewed",
    ),
    (
        "lane-matrix",
        "Bulk TCP over two lanes: share of the sum and of the best lane",
    ),
];

/// What must hold, and whether it does.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LaneCheck {
    /// What is looked at.
    pub name: String,
    /// What was found.
    pub value: String,
    /// What must hold.
    pub bound: String,
    /// Whether it does.
    pub ok: bool,
}

/// A run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LaneRun {
    /// Its name.
    pub experiment: String,
    /// One line about it.
    pub title: String,
    /// Paper, figure and section.
    pub source: String,
    /// Always `sim`: virtual time.
    pub mode: String,
    /// Scale of the rates.
    pub scale: String,
    /// What the paper printed.
    pub paper: Value,
    /// Parameters and where they are from.
    pub settings: Value,
    /// What was measured, units in names.
    pub measured: Value,
    /// What must hold.
    pub checks: Vec<LaneCheck>,
    /// Remarks.
    pub notes: Vec<String>,
}

/// Runs an experiment by its name; `None` for any other.
///
/// # Errors
/// A configuration that is out of its range: a mistake here.
pub fn run(name: &str, tell: &mut dyn FnMut(&str)) -> Option<Result<LaneRun, ConfigError>> {
    match name {
        "plb-deskew" => Some(plb_deskew()),
        "lane-matrix" => Some(lane_matrix(tell)),
        _ => None,
    }
}

#[derive(Debug, Clone)]
struct Stamped {
    entered: PicoTime,
}

/// Bytes of a packet of the de-skew run, without headers.
const PACKET_BYTES: u64 = 1_000;

impl Load for Stamped {
    fn len_bytes(&self) -> u64 {
        PACKET_BYTES
    }
}

const DESKEW_PACKETS: u64 = 300_000;
const DESKEW_GAP: PicoDuration = PicoDuration::from_ns(1_700);
const DESKEW_SETTLE: PicoTime = PicoTime::from_ms(200);

/// Delays of all packets that entered after the settling time, ps, sorted.
fn delays(mode: Mode, emulated: bool, deskewed_lanes: usize) -> Result<Vec<u64>, ConfigError> {
    let ten = BitRate::from_mbps(10_000);
    let plain = TrialLane::new(ten, PicoDuration::ZERO);
    let mut other = plain.clone();
    if emulated {
        other.path.one_way_delay = PicoDuration::from_us(20);
        other.path.jitter = Jitter::Normal {
            sigma: PicoDuration::from_ns(8_490),
            limit: PicoDuration::from_us(20),
        };
    }
    let mut config = BundleConfig::new(mode, &vec![ten; deskewed_lanes]);
    config.margin = PicoDuration::from_us(50);
    config.smoothing = PicoDuration::from_us(20);
    let clock = FarClock {
        offset: PicoDuration::from_secs(3),
        drift_ppb: 0,
    };
    let mut pair = Pair::new(&config, &[plain, other], clock, 7)?;
    let at = |n: u64| PicoTime::from_ms(10) + DESKEW_GAP.saturating_mul(n);
    let (mut now, mut next, mut all) = (PicoTime::ZERO, 0, Vec::new());
    let end = at(DESKEW_PACKETS) + PicoDuration::from_ms(500);
    while now < end {
        while next < DESKEW_PACKETS && at(next) <= now {
            pair.enter_near(now, Stamped { entered: now });
            next += 1;
        }
        pair.run(now);
        while let Some((left, delivery)) = pair.at_far.pop_front() {
            let entered = delivery.packet.entered;
            if entered >= DESKEW_SETTLE {
                all.push((left - entered).as_ps());
            }
        }
        let arrival = if next < DESKEW_PACKETS { at(next) } else { end };
        now = pair.next_wakeup().min(arrival).max(now);
    }
    all.sort_unstable();
    Ok(all)
}

fn spread(delays: &[u64]) -> Value {
    let at = |share: usize| delays.get((delays.len() * share / 1_000).min(delays.len().saturating_sub(1)));
    let ns = |ps: Option<&u64>| ps.map(|ps| *ps as f64 / 1e3);
    json!({
        "packets": delays.len(),
        "delay_p50_ns": ns(at(500)),
        "delay_p99_ns": ns(at(990)),
        "delay_min_ns": ns(delays.first()),
        "delay_max_ns": ns(delays.last()),
        "variation_ns": variation_ns(delays),
    })
}

fn variation_ns(delays: &[u64]) -> Option<f64> {
    Some((delays.last()? - delays.first()?) as f64 / 1e3)
}

fn plb_deskew() -> Result<LaneRun, ConfigError> {
    let with = delays(Mode::Deskew, true, 2)?;
    let without = delays(Mode::Deskew, false, 2)?;
    let raw = delays(Mode::InOrder, true, 2)?;
    let all =
        (DESKEW_PACKETS - (DESKEW_SETTLE.as_ps() - 10_000_000_000).div_ceil(DESKEW_GAP.as_ps())) as usize;
    let variation = variation_ns(&with).unwrap_or(f64::MAX);
    let jitter = variation_ns(&raw).unwrap_or(0.0);
    Ok(LaneRun {
        experiment: ALL[0].0.into(),
        title: ALL[0].1.into(),
        source: "002 MultiRail and MultiLane, section III".into(),
        mode: "sim".into(),
        scale: "1".into(),
        paper: json!({ "difference_to_without_emulation_ns": "approximately 10" }),
        settings: json!([
            { "name": "lanes", "value": "two, 10 Gbps", "from": "002" },
            { "name": "delay", "value": "20 us on one", "from": "002" },
            { "name": "jitter", "value": "normal, sigma 8.49 us (10 us half width at half maximum), cut at 20 us, order kept", "from": "002; figures.md" },
            { "name": "load", "value": "1,000-byte packets every 1.7 us", "from": "ours: the paper does not say" },
            { "name": "margin, smoothing", "value": "50 us, 20 us", "from": "ours: above the jitter's width" },
            { "name": "clocks", "value": "3 s apart, no drift", "from": "ours" },
            { "name": "counted", "value": "packets that enter after 200 ms", "from": "ours" },
        ]),
        measured: json!({ "deskewed": spread(&with), "deskewed_without_emulation": spread(&without), "in_order": spread(&raw) }),
        checks: vec![
            LaneCheck {
                name: "delay variation after de-skew".into(),
                value: format!("{variation} ns"),
                bound: "at most 2 ns: the stamp's resolution at either end".into(),
                ok: variation <= 2.0,
            },
            LaneCheck {
                name: "packets".into(),
                value: with.len().to_string(),
                bound: format!("{all}: every one"),
                ok: with.len() == all,
            },
            LaneCheck {
                name: "the jitter is there".into(),
                value: format!("{jitter} ns without de-skew"),
                bound: "10 us at least".into(),
                ok: jitter >= 10_000.0,
            },
        ],
        notes: vec!["Virtual time. The live run is not in this version.".into()],
    })
}

/// Payload and frame of a segment in the tunnel at an MTU of 1,424 on 1,500-byte paths, and outside.
const INSIDE: (u64, u64) = (1_372, 1_518);
const OUTSIDE: (u64, u64) = (1_448, 1_518);

struct Cell {
    delay: &'static str,
    capacity: &'static str,
    event: &'static str,
    mode: Mode,
    rates_mbps: [u32; 2],
    delays_ms: [u64; 2],
    /// Least share of the sum, thousandths.
    least: Option<u64>,
}

impl Cell {
    fn lanes(&self) -> Vec<TrialLane> {
        let both = self.rates_mbps.iter().zip(self.delays_ms);
        let mut lanes: Vec<TrialLane> = both
            .map(|(rate, delay)| TrialLane::new(BitRate::from_mbps(*rate), PicoDuration::from_ms(delay)))
            .collect();
        if let Some(last) = lanes.pop() {
            lanes.push(match self.event {
                "loss 0.1 % on one" => last.losing(Ratio::new(1, 1_000).unwrap_or(Ratio::ZERO)),
                "one cut 40 s to 60 s" => last.cut(PicoDuration::from_secs(40), PicoDuration::from_secs(60)),
                _ => last,
            });
        }
        lanes
    }
}

fn cells() -> Vec<Cell> {
    let mut cells = Vec::new();
    for (capacity, rates_mbps, least) in [
        ("1:1", [20, 20], 950),
        ("4:1", [40, 10], 950),
        ("10:1", [50, 5], 900),
    ] {
        for (delay, slow_ms) in [("equal", 20), ("2x", 40), ("4x", 80), ("150 ms more", 170)] {
            cells.push(Cell {
                delay,
                capacity,
                event: "none",
                mode: Mode::Deskew,
                rates_mbps,
                delays_ms: [20, slow_ms],
                least: Some(least),
            });
        }
    }
    for event in ["loss 0.1 % on one", "one cut 40 s to 60 s"] {
        cells.push(Cell {
            delay: "equal",
            capacity: "1:1",
            event,
            mode: Mode::InOrder,
            rates_mbps: [20, 20],
            delays_ms: [20, 20],
            least: None,
        });
    }
    cells
}

const FROM: PicoTime = PicoTime::from_secs(30);
const TO: PicoTime = PicoTime::from_secs(90);

fn lane_matrix(tell: &mut dyn FnMut(&str)) -> Result<LaneRun, ConfigError> {
    let (mut measured, mut checks) = (Vec::new(), Vec::new());
    for cell in cells() {
        let (value, mut of_cell) = run_cell(&cell)?;
        tell(&value.to_string());
        measured.push(value);
        checks.append(&mut of_cell);
    }
    Ok(LaneRun {
        experiment: ALL[1].0.into(),
        title: ALL[1].1.into(),
        source: "002 MultiRail and MultiLane; mptcp #168".into(),
        mode: "sim".into(),
        scale: "20 to 55 Mbps of capacity in sum".into(),
        paper: Value::Null,
        settings: json!([
            { "name": "stream", "value": "one, CUBIC, the simulator's modern stack, endless", "from": "today's kernels" },
            { "name": "lanes", "value": "20 ms one-way on the first, queues of 100 ms, pacing at 99 %", "from": "ours" },
            { "name": "ideal", "value": "sum of the capacities * 1372 / 1518: less the tunnel's and TCP's headers", "from": "the wire format" },
            { "name": "best lane alone", "value": "the same stream without tunnel, measured, MTU 1500", "from": "ours" },
            { "name": "mode", "value": "deskew; inorder with repair for loss and cut", "from": "ours" },
            { "name": "counted", "value": "30 s to 90 s; the whole run beside it", "from": "ours: slow start at 340 ms takes half a minute on one path too" },
            { "name": "clocks", "value": "7 s apart, 15 ppm of drift", "from": "ours" },
        ]),
        measured: Value::Array(measured),
        checks,
        notes: vec![
            "Virtual time. MPTCP and live cells are not in this version: mptcp_share_of_sum is null.".into(),
        ],
    })
}

fn run_cell(cell: &Cell) -> Result<(Value, Vec<LaneCheck>), ConfigError> {
    let lanes = cell.lanes();
    let rates = cell.rates_mbps.map(BitRate::from_mbps);
    let bulk = |mtu_bytes| Bulk {
        algorithm: Algorithm::Cubic,
        mtu_bytes,
        from: FROM,
        to: TO,
    };
    let clock = FarClock {
        offset: PicoDuration::from_secs(7),
        drift_ppb: 15_000,
    };
    let config = BundleConfig::new(cell.mode, &rates);
    let (result, pair) = bulk_tcp(&config, &lanes, clock, 1, bulk(1_424))?;
    let alone = lanes
        .iter()
        .map(|lane| bulk_tcp_alone(lane, 1, bulk(1_500)).goodput_bps);
    let best = alone.max().unwrap_or(0).max(1);
    let sum: u64 = rates.iter().map(|r| r.bps()).sum();
    let ideal = sum * INSIDE.0 / INSIDE.1;
    let share = |of: u64| result.goodput_bps as f64 / of as f64;
    let best_less_header = best * INSIDE.0 * OUTSIDE.1 / (OUTSIDE.0 * INSIDE.1);
    let states: Vec<&str> = pair
        .near
        .status(TO)
        .lanes
        .iter()
        .map(|l| l.state.name())
        .collect();
    let value = json!({
        "delay": cell.delay, "capacity": cell.capacity, "event": cell.event,
        "mode": format!("{:?}", cell.mode).to_lowercase(),
        "rates_mbps": cell.rates_mbps, "one_way_delays_ms": cell.delays_ms,
        "goodput_mbps": result.goodput_bps as f64 / 1e6,
        "whole_goodput_mbps": result.whole_goodput_bps as f64 / 1e6,
        "best_alone_goodput_mbps": best as f64 / 1e6,
        "share_of_sum": share(ideal), "share_of_best": share(best),
        "share_of_best_less_header": share(best_less_header.max(1)),
        "mptcp_share_of_sum": null,
        "window_cuts": result.cuts, "timeouts": result.timeouts, "lane_states_at_end": states,
    });
    let name = format!("{}, {}, {}", cell.capacity, cell.delay, cell.event);
    let mut checks = vec![LaneCheck {
        name: format!("{name}: not below the best lane less the header"),
        value: format!("{:.3}", share(best_less_header.max(1))),
        bound: "1 or more".into(),
        ok: result.goodput_bps >= best_less_header,
    }];
    if let Some(least) = cell.least {
        checks.push(LaneCheck {
            name: format!("{name}: share of the sum less the header"),
            value: format!("{:.3}", share(ideal)),
            bound: format!("{:.2} or more", least as f64 / 1e3),
            ok: result.goodput_bps * 1_000 >= ideal * least,
        });
    }
    Ok((value, checks))
}
