//! `plb-deskew`: the delay of packets over two lanes, one of which delays and jitters, with de-skew and without.
//!
//! In virtual time at the paper's size: two 10 Gbps lanes, and the delay to the picosecond. Live over namespaces, each packet with
//! the sender's time in it: at the paper's 20 us, which a thread's wake-up hides, and at a hundred times that.

use kuroshio_core::{
    lane::{
        BundleConfig, ConfigError, Load, Mode,
        trial::{FarClock, Pair, TrialLane},
    },
    units::{BitRate, PicoDuration, PicoTime},
    wan::Jitter,
};
use serde_json::{Map, Value, json};

use super::Outcome;
use crate::check::Check;

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

/// What the paper printed.
pub(super) fn paper() -> Value {
    json!([{ "name": "difference to the run without emulation", "value": "approximately 10 ns" }])
}

/// Runs it in virtual time.
pub(super) fn sim() -> Result<Outcome, ConfigError> {
    let with = delays(Mode::Deskew, true, 2)?;
    let without = delays(Mode::Deskew, false, 2)?;
    let raw = delays(Mode::InOrder, true, 2)?;
    let all =
        (DESKEW_PACKETS - (DESKEW_SETTLE.as_ps() - 10_000_000_000).div_ceil(DESKEW_GAP.as_ps())) as usize;
    let variation = variation_ns(&with).unwrap_or(f64::MAX);
    let jitter = variation_ns(&raw).unwrap_or(0.0);
    let mut measured = Map::new();
    for (name, delays) in [
        ("deskewed", &with),
        ("deskewed_without_emulation", &without),
        ("in_order", &raw),
    ] {
        measured.insert(name.into(), spread(delays));
    }
    Ok(Outcome {
        scale: "1".into(),
        settings: json!([
            { "name": "lanes", "value": "two, 10 Gbps", "from": "002" },
            { "name": "delay", "value": "20 us on one", "from": "002" },
            { "name": "jitter", "value": "normal, sigma 8.49 us (10 us half width at half maximum), cut at 20 us, order kept", "from": "002; figures.md" },
            { "name": "load", "value": "1,000-byte packets every 1.7 us", "from": "ours: the paper does not say" },
            { "name": "margin, smoothing", "value": "50 us, 20 us", "from": "ours: above the jitter's width" },
            { "name": "clocks", "value": "3 s apart, no drift", "from": "ours" },
            { "name": "counted", "value": "packets that enter after 200 ms", "from": "ours" },
        ]),
        measured,
        checks: vec![
            Check {
                name: "delay variation after de-skew".into(),
                value: format!("{variation} ns"),
                bound: "at most 2 ns: the stamp's resolution at either end".into(),
                ok: variation <= 2.0,
            },
            Check {
                name: "packets".into(),
                value: with.len().to_string(),
                bound: format!("{all}: every one"),
                ok: with.len() == all,
            },
            Check {
                name: "the jitter is there".into(),
                value: format!("{jitter} ns without de-skew"),
                bound: "10 us at least".into(),
                ok: jitter >= 10_000.0,
            },
        ],
        notes: vec!["Virtual time; for real packets see --live.".into()],
        ..Outcome::default()
    })
}
