//! What the meters answer, as JSON with the units in the names.
//!
//! A row is one window of one series. Rows come in the order of their windows' numbers, the sum (`stream` null) before
//! the streams; windows in which nothing happened have no row. `next` is the window from which to go on asking.

use kuroshio_core::meter::{Cause, Histogram, MeterSeries, Spread, Sum};
use kuroshio_core::units::PicoDuration;
use serde_json::{Map, Value, json};

use super::service::{Cost, Named, State};

/// Most rows of an answer.
const MAX_ROWS: usize = 2_048;

/// What the meters cost.
pub(crate) fn cost(cost: &Cost) -> Value {
    let per = |ns: u64, count: u64| ns.checked_div(count);
    json!({
        "frames": cost.frames,
        "events": cost.events,
        "missed_events": cost.missed_events,
        "emulator_ns_per_frame": per(cost.emulator_ns, cost.frames),
        "meters_thread_ns_per_event": per(cost.thread_ns, cost.events),
        "meters_thread_ns_per_frame": per(cost.thread_ns, cost.frames),
        "emulator_share_of_a_core_ppm": ppm(cost.emulator_ns, cost.wall_ns),
        "meters_thread_share_of_a_core_ppm": ppm(cost.thread_ns, cost.wall_ns),
        "metered_ns": cost.wall_ns,
    })
}

fn ppm(part: u64, whole: u64) -> Option<u64> {
    let ppm = (u128::from(part) * 1_000_000).checked_div(u128::from(whole))?;
    u64::try_from(ppm).ok()
}

/// A sum, the same names in a window and in a total.
fn sum(sum: &Sum, into: &mut Map<String, Value>) {
    let mut put = |name: &str, value: Value| into.insert(name.to_owned(), value);
    put("arrived_frames", json!(sum.arrived_frames));
    put("arrived_bytes", json!(sum.arrived_bytes));
    put("departed_frames", json!(sum.departed_frames));
    put("departed_bytes", json!(sum.departed_bytes));
    put("departed_payload_bytes", json!(sum.departed_payload_bytes));
    for (cause, frames) in Cause::ALL.iter().zip(sum.dropped_frames) {
        put(&format!("dropped_{}_frames", cause.name()), json!(frames));
    }
    put("queue_max_bytes", json!(sum.queue_max_bytes));
    put("queue_mean_bytes", json!(sum.queue_mean_bytes()));
    let ns = |ps: u64| (sum.delay_frames > 0).then_some(ps / 1_000);
    put("one_way_delay_min_ns", json!(ns(sum.delay_min_ps)));
    put(
        "one_way_delay_mean_ns",
        json!(sum.delay_mean_ps().map(|ps| ps / 1_000)),
    );
    put("one_way_delay_max_ns", json!(ns(sum.delay_max_ps)));
}

fn stream_name(series: &MeterSeries) -> Value {
    json!(series.stream.map(|s| s.to_string()))
}

fn row(named: &Named, series: &MeterSeries, width: PicoDuration, index: u64, window: &Sum) -> Value {
    let mut row = Map::new();
    row.insert("event".into(), json!("window"));
    row.insert("meter".into(), json!(named.spec.name));
    row.insert("at".into(), json!(named.spec.at));
    row.insert("stream".into(), stream_name(series));
    row.insert("window".into(), json!(index));
    row.insert(
        "start_ns".into(),
        json!(index.saturating_mul(width.as_ps()) / 1_000),
    );
    row.insert("width_ns".into(), json!(width.as_ns()));
    let bits = u128::from(window.departed_bytes) * 8 * 1_000_000_000_000;
    let rate = u64::try_from(bits / u128::from(width.as_ps().max(1))).unwrap_or(u64::MAX);
    row.insert("departed_rate_bps".into(), json!(rate));
    sum(window, &mut row);
    Value::Object(row)
}

/// Closed windows of one width from a number on. An error names the widths there are.
pub(crate) fn rows(
    state: &State,
    named: &Named,
    width: Option<PicoDuration>,
    from: u64,
) -> Result<Value, String> {
    let widths = &named.spec.config.widths;
    let narrowest = widths.iter().min().copied();
    let wanted = width.or(narrowest);
    let Some((n, width)) = widths.iter().enumerate().find(|(_, w)| Some(**w) == wanted) else {
        let names: Vec<String> = widths.iter().map(ToString::to_string).collect();
        return Err(format!("no windows of that width, but {}", names.join(", ")));
    };
    let mut found: Vec<(u64, usize, Sum)> = Vec::new();
    let mut next = u64::MAX;
    let mut kept_from = 0;
    for (number, series) in named.meter.series().iter().enumerate() {
        let Some(windows) = series.windows.get(n) else {
            continue;
        };
        next = next.min(windows.next_index());
        kept_from = kept_from.max(windows.kept_from());
        let rows = windows.closed(from).take(MAX_ROWS + 1);
        found.extend(rows.map(|(index, sum)| (index, number, *sum)));
    }
    found.sort_by_key(|(index, number, _)| (*index, *number));
    if found.len() > MAX_ROWS {
        // Whole windows only: the last one may lack streams.
        let cut = found.get(MAX_ROWS).map_or(0, |(index, ..)| *index);
        let whole = found.partition_point(|(index, ..)| *index < cut);
        if whole > 0 {
            found.truncate(whole);
            next = cut;
        }
    }
    let rows: Vec<Value> = found
        .iter()
        .filter(|(index, ..)| *index < next)
        .filter_map(|(index, number, sum)| {
            let series = named.meter.series().get(*number)?;
            Some(row(named, series, *width, *index, sum))
        })
        .collect();
    Ok(json!({
        "rows": rows,
        "next": next.max(from),
        "kept_from": kept_from,
        "width_ns": width.as_ns(),
        "missed_events": state.cost().missed_events,
    }))
}

fn spread(spread: &Spread) -> Value {
    let summary = |h: &Histogram| {
        let s = h.summary();
        if s.count == 0 {
            return Value::Null;
        }
        json!({
            "count": s.count,
            "min": s.min / 1_000,
            "mean": s.mean / 1_000,
            "p50": s.p50 / 1_000,
            "p99": s.p99 / 1_000,
            "p999": s.p999 / 1_000,
            "max": s.max / 1_000,
        })
    };
    json!({
        "end_to_end_ns": summary(spread.end_to_end_ps()),
        "start_to_start_ns": summary(spread.start_to_start_ps()),
        "gap_ns": summary(spread.gap_ps()),
        "one_way_delay_ns": summary(spread.delay_ps()),
        "jitter_rfc3550_ns": spread.jitter_ps() / 1_000,
    })
}

/// A meter with its totals.
pub(crate) fn meter(named: &Named) -> Value {
    let series = named.meter.series().iter().map(|s| {
        let mut value = Map::new();
        value.insert("stream".into(), stream_name(s));
        if let Some(windows) = s.windows.first() {
            sum(&windows.total(), &mut value);
            value.insert("late_events".into(), json!(windows.late()));
        }
        value.insert("spread".into(), spread(&s.spread));
        Value::Object(value)
    });
    let config = &named.spec.config;
    json!({
        "event": "meter",
        "meter": named.spec.name,
        "at": named.spec.at,
        "filter": config.filter.to_string(),
        "windows_ns": config.widths.iter().map(|w| w.as_ns()).collect::<Vec<_>>(),
        "keep": config.keep,
        "streams": config.streams,
        "since_ns": named.since.as_ns(),
        "unlisted_events": named.meter.unlisted(),
        "unassigned_events": named.meter.unassigned(),
        "series": series.collect::<Vec<_>>(),
    })
}

/// The buckets of one of a meter's histograms; the sum's, or a stream's by its name.
pub(crate) fn histogram(named: &Named, of: &str, stream: Option<&str>) -> Result<Value, String> {
    let wanted = |s: &&MeterSeries| match (stream, s.stream) {
        (None, None) => true,
        (Some(name), Some(key)) => key.to_string() == name,
        _ => false,
    };
    let all = named.meter.series();
    let series = all.iter().find(wanted).ok_or_else(|| {
        let names: Vec<String> = all.iter().filter_map(|s| Some(s.stream?.to_string())).collect();
        format!("no stream {:?}, but {}", stream.unwrap_or(""), names.join(", "))
    })?;
    let histogram = match of {
        "gap" => series.spread.gap_ps(),
        "start" => series.spread.start_to_start_ps(),
        "end" => series.spread.end_to_end_ps(),
        "delay" => series.spread.delay_ps(),
        _ => return Err(format!("histogram of {of:?}: gap, start, end or delay")),
    };
    let buckets: Vec<Value> = histogram
        .buckets()
        .map(|(low, high, count)| json!({ "from_ps": low, "to_ps": high, "frames": count }))
        .collect();
    Ok(json!({
        "event": "histogram",
        "meter": named.spec.name,
        "at": named.spec.at,
        "stream": stream,
        "of": of,
        "buckets": buckets,
    }))
}
