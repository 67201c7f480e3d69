//! `lane-matrix` live: the kernel's TCP over a real tunnel between namespaces, MPTCP and plain TCP over the same emulated lanes.
//!
//! ```text
//!   cell -> testbed of three arms -> tunnel up -> all streams at once, or one after the other -> counts at their moments -> down
//! ```
//!
//! The three arms have lanes of their own, all alike, so that they may run at the same time: same machine, same minute. Where their
//! sum is too much for the machine ([`TOGETHER_MBPS`]) they take turns. Goodput is what the receiving program has read.

use std::time::Duration;

use kuroshio_clock::{now_ns, sleep_until};
use kuroshio_core::lane::Mode;
use kuroshio_testbed::{Change, Testbed};
use serde_json::{Value, json};

use super::bed::{self, ALONE, Arm, Ends, MPTCP, TUNNEL};
use super::cells::{self, Cell, DOWNLOAD_BYTES, Work};
use super::judged::{Goodputs, judge};
use super::stream::{Plan, Stream};
use super::{Asked, LaneRunError, Outcome};
use crate::live::lateness;
use crate::report::{Color, Plot, Series};

/// Counted, s; where the round trip is long, later: slow start takes longer there, on one path too.
const COUNTED_S: (u64, u64) = (10, 30);
const LONG_COUNTED_S: (u64, u64) = (30, 60);
/// A download that is not done by then, s, counts with what has come.
const DOWNLOAD_S: u64 = 30;
/// Sum of the lanes up to which the arms run at the same time.
const TOGETHER_MBPS: u64 = 100;
/// Between two readings of the counts.
const READ_EVERY: Duration = Duration::from_millis(250);
/// Between the start of the threads and that of the streams; of a download as in virtual time, where the tunnel has been up for so long.
const LEAD: Duration = Duration::from_millis(200);
const DOWNLOAD_LEAD: Duration = Duration::from_secs(2);
/// Of every host: windows for every lane here, nothing kept of an earlier connection.
const SYSCTL: &str = "\"net.ipv4.tcp_rmem\" = \"4096 131072 67108864\", \"net.ipv4.tcp_wmem\" = \"4096 65536 67108864\", \
                      \"net.ipv4.tcp_no_metrics_save\" = \"1\"";
/// Names of the streams: of the tunnel, MPTCP, either lane alone.
const NAMES: [&str; 4] = ["tunnel", "MPTCP", "lane 0 alone", "lane 1 alone"];

/// Runs every cell that is asked for.
pub(super) fn run(asked: &Asked, tell: &mut dyn FnMut(&str)) -> Result<Outcome, LaneRunError> {
    let realtime = bed::may_run_first();
    let mut outcome = Outcome::default();
    let (from, to) = COUNTED_S;
    let (long_from, long_to) = LONG_COUNTED_S;
    let bulk = cells::bulk(from, to, long_from, long_to);
    for cell in bulk.into_iter().chain(cells::mqvpn()) {
        if asked.wants(&cell.name()) {
            let value = run_cell(&cell, realtime, &mut outcome)?;
            tell(&format!("{}: {value}", cell.name()));
        }
    }
    outcome.settings = json!([
        { "name": "streams", "value": "one each, the kernel's TCP with CUBIC: through the tunnel, over MPTCP, and over either lane alone, at the same time on lanes of their own (one after the other where the lanes carry more than 100 Mbps)", "from": "issue; ours" },
        { "name": "lanes", "value": "bulk: 20 ms one-way on the first, queues of 100 ms; both directions alike; pacing at 99.5 %", "from": "ours" },
        { "name": "profiles", "value": "mqvpn's: netem's rates, delays, normal jitter (cut at 4 sigma, frames overtake), loss, queues of 1,000 frames", "from": "mp0rta/mqvpn benchmarks/bench_env_setup.sh and its report of 2026-06-18, section 3.3" },
        { "name": "ideal", "value": "sum of the capacities * 1372 / 1518: less the tunnel's and TCP's headers; of a lane that is cut while it is there", "from": "the wire format" },
        { "name": "MPTCP", "value": "two subflows by a signalled address, the kernel's default scheduler, tcp_rmem and tcp_wmem up to 64 MiB as everywhere here", "from": "Linux" },
        { "name": "mode", "value": "deskew with repair; inorder with repair for loss and cut", "from": "ours" },
        { "name": "counted", "value": format!("bulk: {from} s to {to} s, with 150 ms more {long_from} s to {long_to} s; profiles: a download of 20 MiB, its whole time, {DOWNLOAD_S} s at most"), "from": "ours; mqvpn (HTTP/3 with BBR there, TCP with CUBIC here)" },
        { "name": "tunnel's threads", "value": if realtime { "realtime = true" } else { "ordinary: this user may not set SCHED_FIFO" }, "from": "this machine" },
    ]);
    outcome.scale = "bulk: 20 to 55 Mbps in sum, for two shared cores; profiles: 1".into();
    Ok(outcome)
}

fn run_cell(cell: &Cell, realtime: bool, outcome: &mut Outcome) -> Result<Value, LaneRunError> {
    let links: Vec<String> = cell.paths.iter().map(|p| cell.link_toml(p)).collect();
    let tb = bed::up(&bed::topology(&[TUNNEL, MPTCP, ALONE], &links, SYSCTL))?;
    let mptcp = subflows(&tb);
    let mode = match cell.mode {
        Mode::Deskew => "deskew",
        Mode::InOrder => "inorder",
        Mode::Mirror => "mirror",
    };
    let lines = format!(
        "mode = \"{mode}\"\nrepair = {}\nrealtime = {realtime}",
        cell.repair
    );
    let ends = Ends::up(&tb, &lines, &cell.paths.map(|p| p.mbps))?;
    tb.begin()?;
    let seen = measure(&tb, cell, mptcp.is_ok())?;
    let report = tb.report()?;
    let status = ends.status();
    let mut found = seen.goodputs(cell, mptcp.is_ok());
    let counters = tb.counters()?;
    let frames = |arm: Arm, lane: usize| {
        let name = format!("{}:r{}{lane}>r{}{lane}", arm.link(lane), arm.east, arm.west);
        counters.link(&name).map_or(0, |l| l.stage.departed.frames)
    };
    if let Err(why) = &mptcp {
        outcome.note(format!("MPTCP was not measured: {why}."));
    }
    for (name, value) in [
        (
            "mptcp_frames_of_lanes",
            json!([frames(MPTCP, 0), frames(MPTCP, 1)]),
        ),
        (
            "tunnel_frames_of_lanes",
            json!([frames(TUNNEL, 0), frames(TUNNEL, 1)]),
        ),
        ("tunnel", json!(status)),
        ("disturbed", json!(report.disturbed)),
        ("downloads_done", json!(seen.done)),
    ] {
        found.more.insert(name.into(), value);
    }
    ends.down()?;
    let (value, mut checks) = judge(cell, &found);
    outcome.checks.append(&mut checks);
    outcome.lateness.push(lateness(&cell.name(), &report, 0));
    outcome
        .disturbed
        .extend(report.disturbed.map(|why| format!("{}: {why}", cell.name())));
    outcome.measured.insert(cell.name(), value.clone());
    if let Work::Endless { .. } = cell.work {
        outcome.plots.push(seen.plot(cell, outcome.plots.len()));
    }
    Ok(value)
}

/// Lets MPTCP use the second lane: the west tells its second address.
fn subflows(tb: &Testbed) -> Result<(), String> {
    let second = MPTCP.address(1, true);
    for (host, args) in [
        (
            MPTCP.east,
            "mptcp limits set subflow 4 add_addr_accepted 4".to_owned(),
        ),
        (
            MPTCP.west,
            "mptcp limits set subflow 4 add_addr_accepted 4".to_owned(),
        ),
        (MPTCP.west, format!("mptcp endpoint add {second} dev p1 signal")),
    ] {
        let mut ip = tb.command(host, "ip").map_err(|e| e.to_string())?;
        let output = ip.args(args.split(' ')).output();
        let output = output.map_err(|e| format!("ip {args}: {e}"))?;
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr);
            return Err(format!("ip {args}: {}", why.trim()));
        }
    }
    Ok(())
}

/// The counts of the streams of [`NAMES`], as they were read.
struct Seen {
    /// Time from the start of the streams, s, and bytes of each.
    readings: Vec<(f64, [u64; 4])>,
    /// Of a download: bytes that came, and the time they took, ns.
    took: [(u64, u64); 4],
    done: [bool; 4],
}

fn plans(cell: &Cell, mptcp: bool) -> Vec<(usize, Plan)> {
    let bytes = (cell.work == Work::Download).then_some(DOWNLOAD_BYTES);
    let to = [
        (TUNNEL, "10.9.0.2".to_owned()),
        (MPTCP, MPTCP.address(0, true)),
        (ALONE, ALONE.address(0, true)),
        (ALONE, ALONE.address(1, true)),
    ];
    let all = to.into_iter().enumerate().filter(|(n, _)| mptcp || *n != 1);
    all.filter_map(|(n, (arm, address))| {
        let plan = Plan {
            name: NAMES[n],
            from: arm.east,
            to: arm.west,
            address: format!("{address}:{}", 5_001 + n).parse().ok()?,
            mptcp: n == 1,
            bytes,
        };
        Some((n, plan))
    })
    .collect()
}

fn measure(tb: &Testbed, cell: &Cell, mptcp: bool) -> Result<Seen, LaneRunError> {
    let mut seen = Seen {
        readings: Vec::new(),
        took: [(0, 0); 4],
        done: [false; 4],
    };
    let plans = plans(cell, mptcp);
    let together = cell.sum_bps() <= TOGETHER_MBPS * 1_000_000;
    let turns: Vec<&[(usize, Plan)]> = if together {
        vec![&plans]
    } else {
        plans.chunks(1).collect()
    };
    for turn in turns {
        let lead = match cell.work {
            Work::Endless { .. } => LEAD,
            Work::Download => DOWNLOAD_LEAD,
        };
        let zero_ns = now_ns() + lead.as_nanos() as u64;
        let mut streams = Vec::new();
        for (n, plan) in turn {
            streams.push((*n, Stream::start(tb, plan, zero_ns)?));
        }
        match cell.work {
            Work::Endless { to_s, cut_s, .. } => endless(tb, &streams, zero_ns, to_s, cut_s, &mut seen)?,
            Work::Download => download(&streams, zero_ns, &mut seen),
        }
        for (_, stream) in streams {
            stream.finish()?;
        }
    }
    Ok(seen)
}

/// Reads the counts until the end, and cuts the second lane of every arm in between.
fn endless(
    tb: &Testbed,
    streams: &[(usize, Stream)],
    zero_ns: u64,
    to_s: u64,
    cut_s: Option<(u64, u64)>,
    seen: &mut Seen,
) -> Result<(), LaneRunError> {
    let step_ns = READ_EVERY.as_nanos() as u64;
    for step in 0..=to_s * 1_000_000_000 / step_ns {
        let since_ns = step * step_ns;
        sleep_until(zero_ns + since_ns, 0);
        let mut bytes = [0; 4];
        for (n, stream) in streams {
            bytes[*n] = stream.bytes();
        }
        // The moment of the reading, which may be late.
        seen.readings
            .push((now_ns().saturating_sub(zero_ns) as f64 / 1e9, bytes));
        for arm in [TUNNEL, MPTCP, ALONE] {
            match cut_s {
                Some((cut, _)) if since_ns == cut * 1_000_000_000 => tb.apply(&Change::Cut(arm.link(1)))?,
                Some((_, back)) if since_ns == back * 1_000_000_000 => {
                    tb.apply(&Change::Restore(arm.link(1)))?;
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// Waits until all have their bytes, or the time is over.
fn download(streams: &[(usize, Stream)], zero_ns: u64, seen: &mut Seen) {
    let end_ns = zero_ns + DOWNLOAD_S * 1_000_000_000;
    let mut next_ns = zero_ns;
    loop {
        let now = now_ns();
        let open = streams.iter().any(|(_, s)| s.times_ns().1.is_none());
        if !open || now >= end_ns {
            break;
        }
        next_ns += READ_EVERY.as_nanos() as u64 / 10;
        sleep_until(next_ns, 0);
    }
    let now = now_ns();
    for (n, stream) in streams {
        let (begun, done) = stream.times_ns();
        seen.done[*n] = done.is_some();
        let bytes = if done.is_some() {
            DOWNLOAD_BYTES
        } else {
            stream.bytes()
        };
        seen.took[*n] = (bytes, done.unwrap_or(now).saturating_sub(begun));
    }
}

impl Seen {
    /// Goodput of a stream, bit/s, of the counted time and of the whole.
    fn bps(&self, cell: &Cell, stream: usize) -> (u64, u64) {
        let rate = |bytes: u64, s: f64| (bytes as f64 * 8.0 / s.max(1e-9)) as u64;
        match cell.work {
            Work::Download => {
                let (bytes, ns) = self.took[stream];
                let bps = rate(bytes, ns as f64 / 1e9);
                (bps, bps)
            }
            Work::Endless { from_s, .. } => {
                let from = self.readings.iter().find(|(s, _)| *s >= from_s as f64);
                let (Some((s0, first)), Some((s1, last))) = (from, self.readings.last()) else {
                    return (0, 0);
                };
                let counted = rate(last[stream] - first[stream], s1 - s0);
                (counted, rate(last[stream], *s1))
            }
        }
    }

    fn goodputs(&self, cell: &Cell, mptcp: bool) -> Goodputs {
        let (bundle_bps, whole_bps) = self.bps(cell, 0);
        Goodputs {
            bundle_bps,
            whole_bps,
            alone_bps: [self.bps(cell, 2).0, self.bps(cell, 3).0],
            mptcp_bps: mptcp.then(|| self.bps(cell, 1).0),
            ..Goodputs::default()
        }
    }

    /// Goodput of all streams in windows of a second.
    fn plot(&self, cell: &Cell, number: usize) -> Plot {
        let mut plot = Plot::new(format!("bandwidth-{number:02}"), cell.name());
        plot.y_label = "goodput [Mbps]".into();
        let per = (1_000 / READ_EVERY.as_millis()) as usize;
        let marks: Vec<&(f64, [u64; 4])> = self.readings.iter().step_by(per).collect();
        for (stream, name) in NAMES.into_iter().enumerate() {
            let points = marks.windows(2).map(|pair| {
                let [(s0, a), (s1, b)] = [pair[0], pair[1]];
                let mbps = (b[stream] - a[stream]) as f64 * 8.0 / (s1 - s0).max(1e-9) / 1e6;
                ((s0 + s1) / 2.0, mbps)
            });
            plot.series.push(Series {
                name: name.into(),
                color: if stream == 0 {
                    Color::SUM
                } else {
                    Color::stream(stream - 1)
                },
                width: if stream == 0 { 2 } else { 1 },
                points: points.collect(),
            });
        }
        plot
    }
}
