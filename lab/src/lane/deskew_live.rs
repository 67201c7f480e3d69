//! `plb-deskew` live: UDP packets through a tunnel between namespaces, each with the time of its sending.
//!
//! ```text
//!   delay = time after recv - time before send       one clock (CLOCK_MONOTONIC): both hosts are on this machine
//! ```
//!
//! The delay has the wake-ups of four threads in it (sender, emulator, tunnel, receiver): at the paper's 20 us they are
//! most of it, so that the run without emulation stands beside it, and a run at a hundred times the delay and jitter.

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kuroshio_clock::{now_ns, sleep_until};
use serde_json::{Map, Value, json};

use super::bed::{self, Ends, TUNNEL};
use super::{LaneRunError, Outcome};
use crate::check::Check;
use crate::live::lateness;
use crate::report::{Color, Plot, Series};
use crate::trace::quantile;

const TO: &str = "10.9.0.2:6000";
const PACKET_BYTES: usize = 1_000;
const EVERY_NS: u64 = 1_000_000;
const PACKETS: u64 = 12_000;
/// Packets that are not counted at the start: the tunnel learns the lanes' delays for two seconds, and a second is to spare.
const SETTLE: u64 = 3_000;
const LANE_MBPS: u32 = 100;
/// How long the receiver waits for the last packets.
const TAIL: Duration = Duration::from_millis(500);
/// Most classes of the plotted distribution.
const PLOT_POINTS: usize = 200;

struct Phase {
    name: &'static str,
    mode: &'static str,
    /// Delay and jitter of the second lane in lines of a topology; the first has neither.
    second: &'static str,
    margin: &'static str,
}

const PAPER: &str =
    "one_way_delay = \"20us\"\njitter = \"normal 8490ns 20us\"\ncapacity = \"100Mbps\"\nqueue = \"100kB\"\n";
const HUNDRED: &str =
    "one_way_delay = \"2ms\"\njitter = \"normal 849us 2ms\"\ncapacity = \"100Mbps\"\nqueue = \"100kB\"\n";
const PLAIN: &str = "capacity = \"100Mbps\"\none_way_delay = \"0us\"\nqueue = \"100kB\"\n";

const PHASES: [Phase; 5] = [
    Phase {
        name: "deskewed",
        mode: "deskew",
        second: PAPER,
        margin: "2ms",
    },
    Phase {
        name: "deskewed_without_emulation",
        mode: "deskew",
        second: PLAIN,
        margin: "2ms",
    },
    Phase {
        name: "in_order",
        mode: "inorder",
        second: PAPER,
        margin: "2ms",
    },
    Phase {
        name: "deskewed_x100",
        mode: "deskew",
        second: HUNDRED,
        margin: "5ms",
    },
    Phase {
        name: "in_order_x100",
        mode: "inorder",
        second: HUNDRED,
        margin: "5ms",
    },
];

/// Runs it.
pub(super) fn run(tell: &mut dyn FnMut(&str)) -> Result<Outcome, LaneRunError> {
    let realtime = bed::may_run_first();
    let mut outcome = Outcome {
        scale: "1/100 of the rate (100 Mbps lanes, 8 Mbps of load); delay and jitter 1, and 100".into(),
        settings: json!([
            { "name": "lanes", "value": "two, 100 Mbps", "from": "ours: two shared cores" },
            { "name": "delay, jitter", "value": "20 us on one, normal, sigma 8.49 us, cut at 20 us, order kept; x100: 2 ms, 849 us, 2 ms", "from": "002; figures.md" },
            { "name": "load", "value": "UDP, 1,000 bytes of payload each 1 ms, 12,000 packets, the last 9,000 counted (the play-out time is learned in the first two seconds)", "from": "ours: the paper does not say" },
            { "name": "margin", "value": "2 ms; x100: 5 ms", "from": "the tunnel's default; above the jitter's width" },
            { "name": "tunnel's threads", "value": if realtime { "realtime = true" } else { "ordinary: this user may not set SCHED_FIFO" }, "from": "this machine" },
        ]),
        ..Outcome::default()
    };
    let mut widths = Map::new();
    for phase in &PHASES {
        let (value, points) = run_phase(phase, realtime, &mut outcome)?;
        tell(&format!("{}: {value}", phase.name));
        widths.insert(phase.name.into(), value["p95_less_p05_us"].clone());
        let mut plot = Plot::new(format!("bandwidth-{}", phase.name), phase.name);
        plot.x_label = "delay [ms]".into();
        plot.y_label = "share of the packets up to it".into();
        plot.series.push(Series {
            name: phase.name.into(),
            color: Color::SUM,
            width: 2,
            points,
        });
        outcome.plots.push(plot);
        outcome.measured.insert(phase.name.into(), value);
    }
    let width = |name: &str| widths.get(name).and_then(Value::as_f64).unwrap_or(f64::MAX);
    let (with, without) = (width("deskewed_x100"), width("in_order_x100"));
    outcome.checks.push(Check {
        name: "de-skew takes the jitter away (x100)".into(),
        value: format!("{with:.0} us with, {without:.0} us in order"),
        bound: "width from 5 % to 95 % of the packets at most half of that in order".into(),
        ok: with * 2.0 <= without,
    });
    Ok(outcome)
}

/// A phase's figures, and its distribution.
fn run_phase(
    phase: &Phase,
    realtime: bool,
    outcome: &mut Outcome,
) -> Result<(Value, Vec<(f64, f64)>), LaneRunError> {
    let links = [PLAIN.to_owned(), phase.second.to_owned()];
    let tb = bed::up(&bed::topology(
        &[TUNNEL],
        &links,
        "\"net.ipv4.tcp_no_metrics_save\" = \"1\"",
    ))?;
    let lines = format!(
        "mode = \"{}\"\nmargin = \"{}\"\nrealtime = {realtime}",
        phase.mode, phase.margin
    );
    let ends = Ends::up(&tb, &lines, &[LANE_MBPS; 2])?;
    tb.begin()?;
    let stop = Arc::new(AtomicBool::new(false));
    let (tell, ready) = std::sync::mpsc::channel();
    let its = Arc::clone(&stop);
    let receiver = tb.in_host(TUNNEL.west, move || {
        let socket = UdpSocket::bind(TO)?;
        // The other end waits for it, or has given up.
        let _ = tell.send(());
        receive(&socket, &its)
    })?;
    let bound = ready.recv_timeout(Duration::from_secs(10));
    let sender = tb.in_host(TUNNEL.east, send)?;
    let sent = join(sender)?;
    std::thread::sleep(TAIL);
    stop.store(true, Ordering::Release);
    let delays = join(receiver)?;
    bound.map_err(|_| LaneRunError::Other("no receiver in the west".into()))?;
    let report = tb.report()?;
    let status = ends.status();
    ends.down()?;
    let (value, points) = figures(sent, delays, &status, phase, outcome);
    outcome.lateness.push(lateness(phase.name, &report, 0));
    outcome
        .disturbed
        .extend(report.disturbed.map(|why| format!("{}: {why}", phase.name)));
    Ok((value, points))
}

fn join<T>(thread: std::thread::JoinHandle<std::io::Result<std::io::Result<T>>>) -> Result<T, LaneRunError> {
    match thread.join() {
        Ok(result) => Ok(result.and_then(|inner| inner)?),
        Err(_) => Err(LaneRunError::Other("a thread panicked".into())),
    }
}

fn figures(
    sent: u64,
    delays: Vec<(u64, u64)>,
    status: &[kuroshio_lane::status::TunnelStatus],
    phase: &Phase,
    outcome: &mut Outcome,
) -> (Value, Vec<(f64, f64)>) {
    let ordered = delays.windows(2).all(|pair| pair[0].0 < pair[1].0);
    let came = delays.len() as u64;
    outcome.checks.push(Check {
        name: format!("{}: packets", phase.name),
        value: format!(
            "{came} of {sent}, {}",
            if ordered { "in order" } else { "OUT OF ORDER" }
        ),
        bound: "every one, in order".into(),
        ok: came == sent && ordered,
    });
    let counted = delays.into_iter().filter(|(number, _)| *number >= SETTLE);
    let mut ns: Vec<i64> = counted
        .map(|(_, ns)| i64::try_from(ns).unwrap_or(i64::MAX))
        .collect();
    ns.sort_unstable();
    let us = |share: f64| quantile(&ns, share) as f64 / 1e3;
    let points = (0..=PLOT_POINTS).map(|n| {
        let share = n as f64 / PLOT_POINTS as f64;
        (us(share) / 1e3, share)
    });
    let value = json!({
        "packets": ns.len(),
        "delay_p05_us": us(0.05), "delay_p50_us": us(0.5), "delay_p95_us": us(0.95), "delay_p99_us": us(0.99),
        "delay_min_us": us(0.0), "delay_max_us": us(1.0),
        "p99_less_p50_us": us(0.99) - us(0.5), "p95_less_p05_us": us(0.95) - us(0.05),
        "tunnel": status,
    });
    (value, points.collect())
}

/// Sends the packets and says how many.
fn send() -> std::io::Result<u64> {
    let socket = UdpSocket::bind("10.9.0.1:0")?;
    socket.connect(TO)?;
    let zero = now_ns() + 50_000_000;
    let mut packet = [0; PACKET_BYTES];
    let mut sent = 0;
    for number in 0..PACKETS {
        sleep_until(zero + number * EVERY_NS, 0);
        packet[..8].copy_from_slice(&number.to_be_bytes());
        packet[8..16].copy_from_slice(&now_ns().to_be_bytes());
        sent += u64::from(socket.send(&packet).is_ok());
    }
    Ok(sent)
}

/// Number and delay in ns of what comes, until told to stop.
fn receive(socket: &UdpSocket, stop: &AtomicBool) -> std::io::Result<Vec<(u64, u64)>> {
    socket.set_read_timeout(Some(Duration::from_millis(50)))?;
    let mut all = Vec::with_capacity(PACKETS as usize);
    let mut packet = [0; PACKET_BYTES];
    while !stop.load(Ordering::Acquire) {
        match socket.recv(&mut packet) {
            Ok(len) if len == PACKET_BYTES => {
                let now = now_ns();
                let word = |at: usize| {
                    packet[at..at + 8]
                        .iter()
                        .fold(0u64, |word, byte| word << 8 | u64::from(*byte))
                };
                all.push((word(0), now.saturating_sub(word(8))));
            }
            Ok(_) => {}
            Err(e)
                if matches!(
                    e.kind(),
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                ) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(all)
}
