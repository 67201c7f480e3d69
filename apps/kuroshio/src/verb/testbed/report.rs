//! Plots of what meters have kept, in the lab's report form: bandwidth, queue and one-way delay over the run's time.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use kuroshio_lab::report::{Color, Plot, Report, Series, Table, width_words};
use kuroshio_testbed::control::Client;
use serde_json::{Value, json};

use super::{asked, failed, pick, text};
use crate::error::Failure;
use crate::output::line;

/// Most windows of one series in a plot, empty ones among them.
const MAX_POINTS: u64 = 1 << 20;

/// Writes `report.html` and the PNG files.
pub fn write(
    meters: &[String],
    window: Option<&str>,
    out: &Path,
    which: &super::Which,
) -> Result<ExitCode, Failure> {
    let (place, mut client) = pick(which.name.as_deref())?;
    let mut report = Report {
        title: format!("Meters of testbed {}", place.name()),
        ..Report::default()
    };
    let mut totals = Table::new(
        "Windows in the plots",
        &[
            "meter",
            "windows of",
            "arrived, frames",
            "departed, frames",
            "dropped, frames",
        ],
    );
    for meter in meters {
        let (rows, width_ns, begin) = all_rows(&mut client, meter, window)?;
        if report.intro.is_empty() {
            report.intro.push(super::meter::head(&begin).line());
        }
        let sum = |name: &str| -> u64 {
            let own = rows.iter().filter(|r| r["stream"].is_null());
            own.filter_map(|r| r[name].as_u64()).sum()
        };
        let dropped: u64 = ["queue_full", "aqm", "too_big", "fault", "lost"]
            .iter()
            .map(|cause| sum(&format!("dropped_{cause}_frames")))
            .sum();
        totals = totals.row([
            meter.clone(),
            width_words(width_ns),
            sum("arrived_frames").to_string(),
            sum("departed_frames").to_string(),
            dropped.to_string(),
        ]);
        report.plots.extend(plots(meter, &rows, width_ns));
    }
    report.tables.push(totals);
    let file = report.write(out).map_err(failed)?;
    if which.json {
        line(&json!({ "report": file, "plots": report.plots.len() }).to_string())?;
    } else {
        line(&file.display().to_string())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Every window that a meter keeps, its width, and the begin of the run.
fn all_rows(
    client: &mut Client,
    meter: &str,
    window: Option<&str>,
) -> Result<(Vec<Value>, u64, Value), Failure> {
    let mut rows = Vec::new();
    let mut from = 0;
    loop {
        let request = json!({ "do": "meter-read", "name": meter, "window": window, "from": from });
        let mut answer = client.ask(&request).map_err(asked)?;
        let next = answer["next"].as_u64().unwrap_or(from);
        let width = answer["width_ns"].as_u64().unwrap_or(1);
        let Value::Array(mut found) = answer["rows"].take() else {
            return Ok((rows, width, answer["run_begin_monotonic_ns"].take()));
        };
        if found.is_empty() || next <= from {
            return Ok((rows, width, answer["run_begin_monotonic_ns"].take()));
        }
        rows.append(&mut found);
        from = next;
    }
}

fn plots(meter: &str, rows: &[Value], width_ns: u64) -> Vec<Plot> {
    let at = rows.first().map_or_else(String::new, |r| text(&r["at"]));
    let stem: String = meter.chars().map(|c| if c == '.' { '-' } else { c }).collect();
    let widths = width_words(width_ns);
    let mut bandwidth = Plot::new(
        format!("{stem}-bandwidth"),
        format!("{meter} at {at}: bandwidth, {widths}"),
    );
    bandwidth.series = series(rows, "departed_bytes", width_ns, 8e3 / width_ns as f64);
    let mut queue = Plot::new(
        format!("{stem}-queue"),
        format!("{meter} at {at}: deepest queue, {widths}"),
    );
    queue.y_label = "queue [KiB]".into();
    queue.series = series(rows, "queue_max_bytes", width_ns, 1.0 / 1024.0);
    queue.series.truncate(1);
    let mut delay = Plot::new(
        format!("{stem}-delay"),
        format!("{meter} at {at}: one-way delay, mean, {widths}"),
    );
    delay.y_label = "one-way delay [ms]".into();
    delay.series = series(rows, "one_way_delay_mean_ns", width_ns, 1e-6);
    vec![bandwidth, queue, delay]
}

/// A line for the sum and one for each stream. A window without a row is 0 but for delays, which then have no point.
fn series(rows: &[Value], name: &str, width_ns: u64, scale: f64) -> Vec<Series> {
    let mut lines: BTreeMap<Option<String>, BTreeMap<u64, f64>> = BTreeMap::new();
    for row in rows {
        let stream = row["stream"].as_str().map(str::to_owned);
        if let (Some(index), Some(value)) = (row["window"].as_u64(), row[name].as_f64()) {
            lines.entry(stream).or_default().insert(index, value * scale);
        }
    }
    let sparse = name.contains("delay");
    let point = |index: u64, y: f64| ((index as f64 + 0.5) * width_ns as f64 / 1e9, y);
    let line = |(n, (stream, values)): (usize, (Option<String>, BTreeMap<u64, f64>))| {
        let first = values.first_key_value().map_or(0, |(i, _)| *i);
        let last = values
            .last_key_value()
            .map_or(0, |(i, _)| *i)
            .min(first + MAX_POINTS);
        let points = if sparse {
            values.iter().map(|(i, y)| point(*i, *y)).collect()
        } else {
            (first..=last)
                .map(|i| point(i, values.get(&i).copied().unwrap_or(0.0)))
                .collect()
        };
        Series {
            color: match stream {
                None => Color::SUM,
                Some(_) => Color::stream(n),
            },
            name: stream.unwrap_or_else(|| "all".into()),
            width: 1,
            points,
        }
    };
    lines.into_iter().enumerate().map(line).collect()
}
