//! What a testbed answers, as JSON with the units in the names.

use kuroshio_core::wan::{Count, Level, Limit, Loss, StageCounters};
use serde_json::{Value, json};

use crate::counters::{Counters, LinkCounters};
use crate::testbed::{EmulatorReport, Testbed};
use crate::topology::Mode;

pub(super) fn count(c: Count) -> Value {
    json!({ "frames": c.frames, "bytes": c.bytes.get() })
}

fn stage(s: &StageCounters) -> Value {
    json!({
        "arrived": count(s.arrived),
        "departed": count(s.departed),
        "queue_full": count(s.queue_full),
        "aqm_dropped": count(s.aqm_dropped),
        "too_big": count(s.too_big),
        "lost": count(s.lost),
        "duplicated": count(s.duplicated),
        "held": count(s.held),
        "queued_bytes": s.queued.get(),
        "queued_max_bytes": s.queued_max.get(),
        "marked": s.marked,
        "corrupted": s.corrupted,
        "reordered": s.reordered,
        "not_copied": s.not_copied,
    })
}

/// The departure quantum of segment mode.
fn quantum_ns(mode: Mode) -> Option<u64> {
    match mode {
        Mode::Frame => None,
        Mode::Segment { quantum } => Some(quantum.as_ns()),
    }
}

/// Every counter.
pub(super) fn stats(c: &Counters, mode: Mode) -> Value {
    let links = c.links.iter().map(|l| {
        let mut value = stage(&l.stage);
        value["link"] = json!(l.name);
        value["fault_dropped"] = json!(l.fault_dropped);
        value["fault_corrupted"] = json!(l.corrupted);
        value
    });
    let shapers = c.shapers.iter().map(|s| {
        let mut value = stage(&s.stage);
        value["port"] = json!(s.name);
        value
    });
    let ports = c.ports.iter().map(|p| {
        json!({
            "port": p.name,
            "sent": count(p.sent),
            "unrouted": count(p.unrouted),
            "no_memory": count(p.no_memory),
            "pauses_received": p.pauses_received.frames,
            "gaps_received": p.gaps_received.frames,
            "gaps_sent": count(p.gaps_sent),
            "pauses_sent": p.pauses_sent,
            "delivered": count(p.delivered),
            "not_taken": count(p.not_taken),
            "grouped": count(p.grouped),
            "card_tx_dropped": p.card.tx_dropped,
            "card_rx_dropped": p.card.rx_dropped,
            "wire": stage(&p.wire),
            "egress": stage(&p.egress),
            "drain": p.drain.as_ref().map(stage),
        })
    });
    json!({
        "mode": mode.name(),
        "at_ns": c.at.as_ns(),
        "dropped_frames": c.dropped_frames(),
        "machine_lost_frames": c.machine_lost(),
        "held_frames": c.held_frames(),
        "taps": c.taps.iter().map(|t| json!({
            "tap": t.name, "shown": count(t.shown), "not_shown": count(t.not_shown),
        })).collect::<Vec<_>>(),
        "flooded": count(c.flooded),
        "not_flooded": count(c.not_flooded),
        "links": links.collect::<Vec<_>>(),
        "shapers": shapers.collect::<Vec<_>>(),
        "ports": ports.collect::<Vec<_>>(),
    })
}

pub(super) fn report(r: &EmulatorReport) -> Value {
    let l = &r.lateness;
    json!({
        "lateness_ns": { "p50": l.p50_ns, "p99": l.p99_ns, "p999": l.p999_ns, "max": l.max_ns },
        "mode": r.mode.name(),
        "frames": l.frames,
        "not_taken": r.not_taken,
        "machine_lost": r.machine_lost,
        "disturbed": r.disturbed,
    })
}

/// What a link is set to now.
fn link(l: &LinkCounters) -> Value {
    let Some(v) = l.values else {
        return json!({ "link": l.name });
    };
    let loss = match v.loss {
        Loss::Ratio(ratio) => ratio.to_string(),
        Loss::Gilbert { p, r, good, bad } => format!("gilbert {p} {r} {good} {bad}"),
        Loss::Every(n) => format!("every {n}"),
    };
    let (bytes, frames) = match v.queue {
        Limit::Bytes(bytes) => (Some(bytes.get()), None),
        Limit::Frames(frames) => (None, Some(frames)),
    };
    json!({
        "link": l.name,
        "capacity_bps": v.rate.bps(),
        "capacity_level": if v.level == Level::L1 { "l1" } else { "frame" },
        "one_way_delay_ns": v.one_way_delay.as_ns(),
        "queue_bytes": bytes,
        "queue_frames": frames,
        "loss": loss,
        "mtu_bytes": v.mtu,
        "cut": l.cut,
    })
}

/// What runs; the links' values are those of this moment.
pub(super) fn status(testbed: &Testbed) -> Result<Value, crate::TestbedError> {
    let topology = testbed.topology();
    let descriptors = testbed.descriptors();
    let hosts = topology.hosts.iter().zip(descriptors).map(|(host, fd)| {
        let ports = host.ports.iter().map(|p| {
            json!({
                "port": p.name,
                "addresses": p.addresses.iter().map(ToString::to_string).collect::<Vec<_>>(),
                "mtu_bytes": p.mtu_bytes,
                "wire_l1_bps": p.wire.bit_rate().bps(),
            })
        });
        json!({ "host": host.name, "netns_fd": fd, "ports": ports.collect::<Vec<_>>() })
    });
    let counters = testbed.counters()?;
    let links = counters.links.iter().map(link);
    let (meters, meters_cost) = {
        let state = testbed.meters().lock();
        let names: Vec<String> = state.meters.keys().cloned().collect();
        (names, crate::meter::cost(&state.cost()))
    };
    Ok(json!({
        "topology": topology.name,
        "seed": topology.seed,
        "mode": topology.mode.name(),
        "threads": testbed.threads(),
        "quantum_ns": quantum_ns(topology.mode),
        "at_ns": testbed.epoch().pico_now().as_ns(),
        "hosts": hosts.collect::<Vec<_>>(),
        "links": links.collect::<Vec<_>>(),
        "report": report(&testbed.report()?),
        "run_begin_monotonic_ns": testbed.epoch().start_ns(),
        "meters": meters,
        "meters_cost": meters_cost,
    }))
}
