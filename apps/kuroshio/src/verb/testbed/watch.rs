//! `kuroshio testbed watch`: a table of links, ports and meters that is drawn again and again.
//!
//! Rates are differences of the testbed's own counters over its own time. On a terminal the table stays in its place and
//! `q` or Ctrl-C ends it; into a file or pipe it is plain text, one table after the other.

use std::fmt::Write as _;
use std::io::{IsTerminal as _, Read as _, Write as _};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kuroshio_core::units::PicoDuration;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use serde_json::{Value, json};

use super::{asked, failed, pick, text};
use crate::error::Failure;
use crate::output::line;

const EXAMPLE: &str = "\
Example:
  kuroshio testbed watch --interval 500ms
";

const INTERVALS: (PicoDuration, PicoDuration) = (PicoDuration::from_ms(50), PicoDuration::from_secs(3_600));

#[derive(clap::Args)]
#[command(after_help = EXAMPLE)]
pub struct Args {
    /// Distance of two tables, 50ms to 1h
    #[arg(long, value_name = "TIME", default_value = "500ms")]
    interval: PicoDuration,
    /// End after so many tables
    #[arg(long)]
    count: Option<u64>,
    #[command(flatten)]
    which: super::Which,
}

/// The terminal with keys that come at once and are not shown; as it was when dropped.
struct Keys(Termios);

impl Keys {
    fn take() -> Option<Self> {
        let before = tcgetattr(std::io::stdin()).ok()?;
        let mut now = before.clone();
        now.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
        tcsetattr(std::io::stdin(), OptionalActions::Now, &now).ok()?;
        Some(Self(before))
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &self.0);
    }
}

pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    if args.interval < INTERVALS.0 || args.interval > INTERVALS.1 {
        let problem = format!("testbed watch: --interval {}: 50ms to 1h", args.interval);
        return Err(Failure::usage(problem));
    }
    let (place, mut client) = pick(args.which.name.as_deref())?;
    let status = client.ask(&json!({ "do": "status" })).map_err(asked)?;
    let stop = Arc::new(AtomicBool::new(false));
    let theirs = Arc::clone(&stop);
    crate::signal::on_stop(move || theirs.store(true, Ordering::Relaxed))?;
    let on_terminal = std::io::stdout().is_terminal() && !args.which.json;
    let _keys = (on_terminal && std::io::stdin().is_terminal()).then(|| watch_keys(&stop));
    let mut before: Option<Value> = None;
    let mut shown = 0u64;
    let mut next = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        let stats = client.ask(&json!({ "do": "stats" })).map_err(asked)?;
        let meters = client.ask(&json!({ "do": "meter-ls" })).map_err(asked)?;
        let now = json!({ "stats": stats, "meters": meters });
        if let Some(before) = &before {
            let rows = rows(before, &now, &status);
            if args.which.json {
                line(&json!({ "event": "watch", "at_ns": now["stats"]["at_ns"], "rows": rows }).to_string())?;
            } else {
                draw(&table(place.name(), &now, &rows), on_terminal)?;
            }
            shown += 1;
            if args.count.is_some_and(|count| shown >= count) {
                break;
            }
        }
        before = Some(now);
        next = (next + args.interval.to_std()).max(Instant::now());
        while !stop.load(Ordering::Relaxed) && Instant::now() < next {
            std::thread::sleep(Duration::from_millis(20).min(next - Instant::now().min(next)));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Ends at `q`.
fn watch_keys(stop: &Arc<AtomicBool>) -> Option<Keys> {
    let keys = Keys::take()?;
    let stop = Arc::clone(stop);
    let read = move || {
        let mut key = [0u8; 1];
        while std::io::stdin().read(&mut key).is_ok_and(|n| n > 0) {
            if key == *b"q" {
                stop.store(true, Ordering::Relaxed);
                return;
            }
        }
    };
    std::thread::Builder::new().name("keys".into()).spawn(read).ok()?;
    Some(keys)
}

fn draw(table: &str, on_terminal: bool) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    let drawn = if on_terminal {
        // Home, then each line is ended by clearing its rest, and at last what is below.
        let text = table.replace('\n', "\x1b[K\n");
        write!(out, "\x1b[H{text}\x1b[J")
    } else {
        writeln!(out, "{table}")
    };
    drawn
        .and_then(|()| out.flush())
        .map_err(|e| failed(format!("standard output: {e}")))
}

/// What stood at a place in the earlier answer.
fn same<'a>(all: &'a Value, key: &str, name: &Value) -> &'a Value {
    all.as_array()
        .and_then(|all| all.iter().find(|v| v[key] == *name))
        .unwrap_or(&Value::Null)
}

/// Bits per second of a counter of bytes.
fn rate_bps(now: &Value, before: &Value, ns: u64) -> u64 {
    let bytes = now
        .as_u64()
        .unwrap_or(0)
        .saturating_sub(before.as_u64().unwrap_or(0));
    let bps = u128::from(bytes) * 8_000_000_000 / u128::from(ns.max(1));
    u64::try_from(bps).unwrap_or(u64::MAX)
}

const CAUSES: [&str; 4] = ["queue_full", "aqm_dropped", "too_big", "lost"];

fn dropped(stage: &Value) -> u64 {
    let causes = CAUSES.iter().filter_map(|c| stage[*c]["frames"].as_u64());
    causes.sum::<u64>() + stage["fault_dropped"].as_u64().unwrap_or(0)
}

/// The lines of the table: links, ports, meters.
fn rows(before: &Value, now: &Value, status: &Value) -> Vec<Value> {
    let (old, new) = (&before["stats"], &now["stats"]);
    let at = |v: &Value| v["at_ns"].as_u64().unwrap_or(0);
    let ns = at(new).saturating_sub(at(old));
    let mut rows = Vec::new();
    let mut stage = |kind: &str, name: String, stage: &Value, then: &Value, capacity: &Value| {
        rows.push(json!({
            "kind": kind,
            "name": name,
            "arrived_rate_bps": rate_bps(&stage["arrived"]["bytes"], &then["arrived"]["bytes"], ns),
            "departed_rate_bps": rate_bps(&stage["departed"]["bytes"], &then["departed"]["bytes"], ns),
            "capacity_bps": capacity,
            "queued_bytes": stage["queued_bytes"],
            "queued_max_bytes": stage["queued_max_bytes"],
            "dropped_frames": dropped(stage),
            "newly_dropped_frames": dropped(stage).saturating_sub(dropped(then)),
        }));
    };
    for link in new["links"].as_array().into_iter().flatten() {
        let then = same(&old["links"], "link", &link["link"]);
        let capacity = &same(&status["links"], "link", &link["link"])["capacity_bps"];
        stage("link", text(&link["link"]), link, then, capacity);
    }
    for port in new["ports"].as_array().into_iter().flatten() {
        let then = same(&old["ports"], "port", &port["port"]);
        for (part, direction) in [("wire", "sent"), ("egress", "received")] {
            let name = format!("{} {direction}", text(&port["port"]));
            stage("port", name, &port[part], &then[part], &Value::Null);
        }
    }
    let (old, new) = (&before["meters"], &now["meters"]);
    let ns = at(new).saturating_sub(at(old));
    for meter in new["meters"].as_array().into_iter().flatten() {
        let then = same(&old["meters"], "meter", &meter["meter"]);
        for series in meter["series"].as_array().into_iter().flatten() {
            let then = same(&then["series"], "stream", &series["stream"]);
            let stream = series["stream"].as_str().unwrap_or("all");
            let spread = &series["spread"];
            rows.push(json!({
                "kind": "meter",
                "name": format!("{}: {stream}", text(&meter["meter"])),
                "arrived_rate_bps": rate_bps(&series["arrived_bytes"], &then["arrived_bytes"], ns),
                "departed_rate_bps": rate_bps(&series["departed_bytes"], &then["departed_bytes"], ns),
                "queued_max_bytes": series["queue_max_bytes"],
                "one_way_delay_p50_ns": spread["one_way_delay_ns"]["p50"],
                "one_way_delay_p99_ns": spread["one_way_delay_ns"]["p99"],
                "jitter_rfc3550_ns": spread["jitter_rfc3550_ns"],
            }));
        }
    }
    rows
}

fn table(name: &str, now: &Value, rows: &[Value]) -> String {
    let mut all = String::new();
    let seconds = now["stats"]["at_ns"].as_f64().unwrap_or(0.0) / 1e9;
    let _ = writeln!(all, "testbed {name}, {seconds:.3} s of its run; q ends");
    let _ = writeln!(
        all,
        "{:<44} {:>10} {:>10} {:>6} {:>10} {:>10} {:>9} {:>7} {:>10} {:>10}",
        "", "in Mbps", "out Mbps", "util", "queue KiB", "most KiB", "dropped", "new", "delay p50", "p99 ms"
    );
    let mbps = |v: &Value| {
        v.as_f64()
            .map_or(String::new(), |bps| format!("{:.3}", bps / 1e6))
    };
    let kib = |v: &Value| v.as_f64().map_or(String::new(), |b| format!("{:.1}", b / 1024.0));
    let ms = |v: &Value| v.as_f64().map_or(String::new(), |ns| format!("{:.3}", ns / 1e6));
    let count = |v: &Value| v.as_u64().map_or(String::new(), |n| n.to_string());
    for row in rows {
        let used = row["departed_rate_bps"]
            .as_f64()
            .zip(row["capacity_bps"].as_f64());
        let used = used.map_or(String::new(), |(rate, capacity)| {
            format!("{:.1}%", 100.0 * rate / capacity.max(1.0))
        });
        let _ = writeln!(
            all,
            "{:<44} {:>10} {:>10} {:>6} {:>10} {:>10} {:>9} {:>7} {:>10} {:>10}",
            text(&row["name"]),
            mbps(&row["arrived_rate_bps"]),
            mbps(&row["departed_rate_bps"]),
            used,
            kib(&row["queued_bytes"]),
            kib(&row["queued_max_bytes"]),
            count(&row["dropped_frames"]),
            count(&row["newly_dropped_frames"]),
            ms(&row["one_way_delay_p50_ns"]),
            ms(&row["one_way_delay_p99_ns"]),
        );
    }
    if now["meters"]["meters"].as_array().is_some_and(|m| !m.is_empty()) {
        let _ = writeln!(all, "{}", super::meter::cost_line(&now["meters"]["cost"]));
    }
    all
}
