//! TCP over a wide-area path in the machine: one boot per phase.
//!
//! ```text
//! phase -> parameters (a text file) -> kernel/test/path.sh -> windows  (meter.c: bytes per 500 us behind the bottleneck)
//!                                                          -> samples  (stream.c: TCP_INFO every 100 ms)
//!                                                          -> counters (drops, the wire's frames, the processor)
//! ```
//!
//! A phase that has been run in the same folder with the same parameters is not run again: [`PASSED`] stands beside what it left.
//! With a dilation the machine is told of the slower path, and what it left is brought back to the path's time.
//!
//! The path has one sending and one receiving host, one wire and one link; what else a topology can ask for is refused.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use kuroshio_core::units::Ratio;
use kuroshio_testbed::Topology;
use serde_json::{Map, Value, json};

use super::tree::{self, Tree};
use super::{Dilation, Machine, Options, Pace, Ran, VmError, numbers, read, static_rate_bps};
use crate::check::Check;
use crate::experiment::{Experiment, Kind, Phase};
use crate::flow::{Sample, Sent};
use crate::trace::{Drops, Frame, Stream, Trace};

/// The file that says that a phase's machine has ended well.
const PASSED: &str = "passed";
/// Port of the first stream, as of the scripts.
const FIRST_PORT: u64 = 5_001;
/// Width of the meter's windows.
const BIN_NS: u64 = 500_000;
/// A frame of the MTU that the scripts use, MAC header to FCS.
const FRAME: u64 = 1_518;
const MTU: u32 = 1_500;
/// Wall seconds that a machine may take: for itself, and for a virtual second, which takes six on a core of its own.
const BOOT_S: u64 = 900;
const WALL_PER_VIRTUAL_S: u64 = 90;
const MAX_LIMIT_S: u64 = 86_400;
/// Longest phase in the machine's time, as of the scripts.
const MAX_MS: u64 = 15_000_000;
/// The test wire takes a whole number of ps per byte.
const PS_MBPS_PER_BYTE: u64 = 8_000_000;
/// A virtual second without so much idle time may be one in which the processor and not the path set the pace.
const LEAST_IDLE: f64 = 0.02;
/// Retransmissions within so much time count as one loss: a round trip of the path, as TCP_INFO is read.
const ROUND_MS: u64 = 100;

pub(super) fn run(
    e: &Experiment,
    machine: &Machine,
    tree: &Tree,
    o: &Options,
    say: &mut dyn FnMut(&str),
) -> Result<(Vec<Ran>, Vec<Check>), VmError> {
    let phases: Vec<&Phase> = e.phases.iter().filter(|p| p.vm.is_some()).collect();
    // All of them before the first is started.
    let texts = phases
        .iter()
        .map(|p| {
            parameters(machine, p, o.dilation).map_err(|m| VmError::Missing(format!("phase {}: {m}", p.name)))
        })
        .collect::<Result<Vec<_>, _>>()?;
    let mut all = Vec::new();
    for (number, (p, text)) in phases.iter().zip(&texts).enumerate() {
        let out = o.work.join(format!("{:02}", number + 1));
        say(&format!(
            "{}: {} for {} of virtual time, {} of {}",
            e.name,
            p.name,
            p.duration.text,
            number + 1,
            phases.len()
        ));
        all.push(phase(e, p, (text, o.dilation), tree, &out, say)?);
    }
    let own = vec![whole(&all), processor(&all)];
    Ok((all, own))
}

fn phase(
    e: &Experiment,
    p: &Phase,
    (parameters, dilation): (&str, Dilation),
    tree: &Tree,
    out: &Path,
    say: &mut dyn FnMut(&str),
) -> Result<Ran, VmError> {
    let failed = |m: std::io::Error| VmError::Failed(format!("{}: {m}", out.display()));
    std::fs::create_dir_all(out).map_err(failed)?;
    let there = std::fs::read_to_string(out.join("parameters")).is_ok_and(|t| t == parameters);
    if there && out.join(PASSED).is_file() {
        say(&format!(
            "{}: {}: {} has it already",
            e.name,
            p.name,
            out.display()
        ));
    } else {
        // Not to be taken for another's.
        let _ = std::fs::remove_file(out.join(PASSED));
        std::fs::write(out.join("parameters"), parameters).map_err(failed)?;
        let seconds = dilation.time(p.duration.ns()).div_ceil(1_000_000_000);
        let limit_s = (BOOT_S + seconds * WALL_PER_VIRTUAL_S).min(MAX_LIMIT_S);
        let code = tree.test("path", out, limit_s, &mut |now| {
            say(&format!("{}: {}: {now} of {seconds} s", e.name, p.name));
        })?;
        if code != 0 {
            return Err(tree::problem("kernel/test/run path", out, code));
        }
        std::fs::write(out.join(PASSED), "").map_err(failed)?;
    }
    let bad = |name: &'static str| move |m: String| VmError::Failed(format!("{}: {m}", name));
    let samples = samples(&read(&out.join("samples"))?, dilation, p.flows.len()).map_err(bad("samples"))?;
    let windows = windows(
        &read(&out.join("windows"))?,
        (samples.zero_ns, dilation),
        p.duration.ns(),
        p.flows.len(),
    )
    .map_err(bad("windows"))?;
    let counters = counters(&read(&out.join("counters"))?).map_err(bad("counters"))?;
    Ok(ran(p, samples, windows, &counters))
}

/// What the scripts are told of a phase.
fn parameters(machine: &Machine, p: &Phase, dilation: Dilation) -> Result<String, String> {
    let topology = Topology::from_toml(&p.topology_toml).map_err(|m| m.to_string())?;
    let [link] = topology.links.as_slice() else {
        return Err("vm: want one link".into());
    };
    let Some(first) = p.flows.first() else {
        return Err("vm: want a flow".into());
    };
    let same = |f: &crate::experiment::Flow| f.from == first.from && f.to == first.to && f.kind == Kind::Tcp;
    if !p.flows.iter().all(same) {
        return Err("vm: want TCP flows from one host to one other".into());
    }
    let port = topology
        .ports()
        .find(|(host, _)| host.name == first.from)
        .map(|(_, port)| port)
        .ok_or("vm: the sending host has no port")?;
    let [there, back] = &link.directions;
    if port.mtu_bytes != MTU || link.directions.iter().any(|d| d.loss != Ratio::ZERO) {
        return Err(format!("vm: want an MTU of {MTU} bytes and a link without loss"));
    }
    if port.router != link.between[0] {
        return Err("vm: want the sending host at the link's first router".into());
    }
    let mut t = String::new();
    let mut line = |name: &str, value: u64| {
        let _ = writeln!(t, "{name} {value}");
    };
    let rtt_us = there.one_way_delay.as_us() + back.one_way_delay.as_us();
    let rate_bps = static_rate_bps(p).unwrap_or(0);
    line("wire_mbps", wire_mbps(port.wire.bit_rate().bps(), dilation)?);
    line(
        "capacity_bps",
        dilation.rate("the capacity", there.capacity.bps(), 1)?,
    );
    line("rtt_us", dilation.time(rtt_us));
    line("queue_bytes", there.queue_limit.get());
    line("port_frames", port.queue.get() / FRAME);
    line("duration_ms", duration_ms(p, dilation)?);
    line("rate_bps", dilation.rate("the shaper's rate", rate_bps, 1)?);
    line("dilation", dilation.time(1));
    for module in &machine.load {
        let _ = writeln!(t, "load {module}");
    }
    for f in &p.flows {
        let name = f.congestion.as_deref().unwrap_or_default();
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            return Err(format!("vm: flow {:?}: congestion {name:?}", f.name));
        }
        let pace = match &p.vm {
            Some(s) if !s.unpaced.contains(&f.name) => s.pace,
            _ => Pace::None,
        };
        let pace = match pace {
            Pace::None => "none",
            Pace::Static => "static",
            Pace::Dynamic => "dynamic",
        };
        let start_ms = dilation.time(f.start.ns()) / 1_000_000;
        let _ = writeln!(t, "stream {name} {start_ms} {pace}");
    }
    Ok(t)
}

fn wire_mbps(bps: u64, dilation: Dilation) -> Result<u64, String> {
    let mbps = dilation.rate("the wire", bps, 1_000_000)? / 1_000_000;
    match PS_MBPS_PER_BYTE.is_multiple_of(mbps) {
        true => Ok(mbps),
        false => Err(format!(
            "vm: a wire of {mbps} Mbps in the machine: want a whole number of ps per byte, such as 1000, 500, 250 or 200"
        )),
    }
}

fn duration_ms(p: &Phase, dilation: Dilation) -> Result<u64, String> {
    let ms = dilation.time(p.duration.ns()) / 1_000_000;
    match ms <= MAX_MS {
        true => Ok(ms),
        false => Err(format!("vm: {ms} ms in the machine: at most {MAX_MS}")),
    }
}

/// What stream.c wrote: `zero_ns N`, then lines of numbers.
struct Samples {
    zero_ns: u64,
    sent: Vec<Sent>,
}

fn samples(text: &str, dilation: Dilation, flows: usize) -> Result<Samples, String> {
    let mut lines = text.lines();
    let zero_ns = lines
        .next()
        .and_then(|l| l.strip_prefix("zero_ns ")?.parse().ok())
        .ok_or("line 1: want \"zero_ns N\"")?;
    let mut sent = vec![Sent::default(); flows];
    for (n, line) in lines.enumerate() {
        let wrong = || format!("line {}: {line:?}", n + 2);
        let values = numbers(line).ok_or_else(wrong)?;
        let [port, t_ms, cwnd, rtt, retrans, unacked, mss] = values.as_slice() else {
            return Err(wrong());
        };
        let index = port.checked_sub(FIRST_PORT).and_then(|i| usize::try_from(i).ok());
        let s = index.and_then(|i| sent.get_mut(i)).ok_or_else(wrong)?;
        let small = |v: &u64| u32::try_from(*v).unwrap_or(u32::MAX);
        s.mss_bytes = small(mss);
        s.retrans_segments = small(retrans);
        s.samples.push(Sample {
            t_ms: dilation.back(*t_ms),
            cwnd_segments: small(cwnd),
            rtt_us: small(&dilation.back(*rtt)),
            retrans_segments: small(retrans),
            unacked_segments: small(unacked),
            rwnd_limited_us: 0,
            peer_window_bytes: 0,
        });
    }
    match sent.iter().all(|s| !s.samples.is_empty()) {
        true => Ok(Samples { zero_ns, sent }),
        false => Err("a stream has none".into()),
    }
}

/// What meter.c wrote, from zero on, and the frames that it missed.
struct Windows {
    frames: Vec<Vec<Frame>>,
    lost: u64,
}

fn windows(
    text: &str,
    (zero_ns, dilation): (u64, Dilation),
    duration_ns: u64,
    flows: usize,
) -> Result<Windows, String> {
    let mut lines = text.lines();
    let lost = lines
        .next()
        .and_then(|l| l.strip_prefix("lost_frames ")?.parse().ok())
        .ok_or("line 1: want \"lost_frames N\"")?;
    let mut frames = vec![Vec::new(); flows];
    for (n, line) in lines.enumerate() {
        let wrong = || format!("line {}: {line:?}", n + 2);
        let values = numbers(line).ok_or_else(wrong)?;
        let [port, start_ns, _, bytes, payload] = values.as_slice() else {
            return Err(wrong());
        };
        let index = port.checked_sub(FIRST_PORT).and_then(|i| usize::try_from(i).ok());
        let list = index.and_then(|i| frames.get_mut(i)).ok_or_else(wrong)?;
        let since_zero = start_ns.checked_sub(zero_ns).map(|t| dilation.back(t));
        let Some(t_ns) = since_zero.filter(|t| *t < duration_ns) else {
            continue;
        };
        let small = |v: &u64| u32::try_from(*v).unwrap_or(u32::MAX);
        list.push(Frame {
            t_ns: i64::try_from(t_ns).unwrap_or(i64::MAX),
            frame: small(bytes),
            payload: small(payload),
        });
    }
    match frames.iter().all(|list| !list.is_empty()) {
        true => Ok(Windows { frames, lost }),
        false => Err("nothing of a stream came to the meter".into()),
    }
}

fn counters(text: &str) -> Result<BTreeMap<String, u64>, String> {
    text.lines()
        .map(|line| {
            let (name, value) = line.split_once(' ').ok_or(line)?;
            Ok((name.to_owned(), value.parse().map_err(|_| line)?))
        })
        .collect::<Result<_, &str>>()
        .map_err(|line| format!("want \"name value\", not {line:?}"))
}

fn ran(p: &Phase, samples: Samples, windows: Windows, counters: &BTreeMap<String, u64>) -> Ran {
    let counter = |name: &str| counters.get(name).copied().unwrap_or(0);
    let mut sent = samples.sent;
    for (s, f) in sent.iter_mut().zip(&p.flows) {
        s.congestion = f.congestion.clone().unwrap_or_default();
    }
    let streams = p.flows.iter().zip(windows.frames);
    let trace = Trace {
        phase: p.name.clone(),
        duration_ns: p.duration.ns(),
        streams: streams
            .map(|(f, frames)| Stream {
                name: f.name.clone(),
                frames,
            })
            .collect(),
        drops: Drops {
            routers: counter("dropped_router_frames"),
            ports: counter("dropped_port_frames"),
            ..Drops::default()
        },
        bin_ns: BIN_NS,
        ..Trace::default()
    };
    let (elapsed, idle) = (counter("elapsed_cs"), counter("idle_cs"));
    let mut m = Map::new();
    m.insert("wire_frames".into(), json!(counter("wire_frames")));
    m.insert("gap_frames".into(), json!(counter("wire_pause_frames")));
    m.insert(
        "processor_busy_share".into(),
        json!(1.0 - idle as f64 / elapsed.max(1) as f64),
    );
    m.insert(
        "processor_least_idle_share_of_a_second".into(),
        json!(counter("processor_least_idle_permille") as f64 / 1e3),
    );
    m.insert("meter_lost_frames".into(), json!(windows.lost));
    if sent.len() > 1 {
        m.insert("losses_together".into(), together(&sent));
    }
    Ran {
        trace,
        sent,
        figures: m,
    }
}

/// How many streams lose together. A loss of a stream is a round trip in which it sends again and had not in the one before;
/// an event is a row of neighbouring round trips in which some stream loses, for the queue may be full across their border.
fn together(sent: &[Sent]) -> Value {
    let mut rounds: BTreeMap<u64, BTreeSet<usize>> = BTreeMap::new();
    for (stream, s) in sent.iter().enumerate() {
        let mut last_round = None;
        for pair in s.samples.windows(2) {
            let [before, after] = pair else { continue };
            let round = after.t_ms / ROUND_MS;
            if after.retrans_segments == before.retrans_segments {
                continue;
            }
            // A recovery lasts several rounds: it is one loss.
            if last_round.is_none_or(|last| round > last + 1) {
                rounds.entry(round).or_default().insert(stream);
            }
            last_round = Some(round);
        }
    }
    let losses: usize = rounds.values().map(BTreeSet::len).sum();
    let mut events: Vec<BTreeSet<usize>> = Vec::new();
    let mut last = None;
    for (round, streams) in rounds {
        match events.last_mut() {
            Some(event) if last == round.checked_sub(1) => event.extend(streams),
            _ => events.push(streams),
        }
        last = Some(round);
    }
    let sizes = || events.iter().map(BTreeSet::len);
    json!({
        "streams": sent.len(),
        "losses_of_streams": losses,
        "events": events.len(),
        "streams_per_event_mean": sizes().sum::<usize>() as f64 / events.len().max(1) as f64,
        "streams_per_event_most": sizes().max().unwrap_or(0),
        "events_of_one_stream": sizes().filter(|n| *n == 1).count(),
    })
}

fn figure(r: &Ran, name: &str) -> f64 {
    r.figures.get(name).and_then(Value::as_f64).unwrap_or(0.0)
}

/// The check on the meter.
fn whole(all: &[Ran]) -> Check {
    let lost: f64 = all.iter().map(|r| figure(r, "meter_lost_frames")).sum();
    Check {
        name: "meter whole".into(),
        bound: "no frame missed by the meter".into(),
        value: format!("{lost} frames"),
        ok: !all.is_empty() && lost == 0.0,
    }
}

/// The check on the virtual processor, which is slower than the machines of the paper in no phase that has idle time.
fn processor(all: &[Ran]) -> Check {
    let least = all
        .iter()
        .map(|r| figure(r, "processor_least_idle_share_of_a_second"))
        .fold(f64::INFINITY, f64::min);
    Check {
        name: "virtual processor in time".into(),
        bound: format!("at least {:.0} % idle in every second", LEAST_IDLE * 100.0),
        value: format!("{:.1} % in the busiest second", least * 100.0),
        ok: !all.is_empty() && least >= LEAST_IDLE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment;

    #[test]
    fn a_phase_becomes_the_scripts_parameters() {
        let e = experiment::load("psp-bic").expect("experiment");
        let machine = e.vm.as_ref().expect("[vm]");
        let with = |name: &str, dilation: &str| {
            let p = e.phases.iter().find(|p| p.name == name).expect(name);
            parameters(machine, p, dilation.parse().expect("dilation"))
        };
        let of = |name: &str| with(name, "1").expect("parameters");
        let wanted = "wire_mbps 1000\ncapacity_bps 500000000\nrtt_us 100000\nqueue_bytes 1000000\nport_frames 10000\n\
                      duration_ms 60000\nrate_bps 500000000\ndilation 1\nload tcp_bic initial_ssthresh=100 max_increment=32\n\
                      stream bic 0 static\n";
        assert_eq!(of("static"), wanted);
        assert!(of("none").contains("rate_bps 0\n") && of("none").ends_with("stream bic 0 none\n"));
        assert!(of("dynamic").ends_with("stream bic 0 dynamic\n"));
        // Rates and times change, bytes do not.
        let slower = "wire_mbps 200\ncapacity_bps 100000000\nrtt_us 500000\nqueue_bytes 1000000\nport_frames 10000\n\
                      duration_ms 300000\nrate_bps 100000000\ndilation 5\n";
        let five = with("static", "5").expect("parameters");
        assert!(five.starts_with(slower), "{five}");
        for (dilation, says) in [("3", "the wire"), ("16", "a multiple of 16000000 bit/s")] {
            let e = with("static", dilation).expect_err(dilation);
            assert!(e.contains(says), "{dilation}: {e}");
        }
    }

    #[test]
    fn samples_are_read_and_what_is_none_is_refused() {
        let text =
            "zero_ns 5\n5001 0 10 100000 0 3 1448\n5002 0 10 0 0 3 1448\n5001 100 20 100500 2 9 1448\n";
        let one = Dilation::default();
        let s = samples(text, one, 2).expect("samples");
        assert_eq!(
            (s.zero_ns, s.sent[0].samples.len(), s.sent[1].samples.len()),
            (5, 2, 1)
        );
        assert_eq!(s.sent[0].retrans_segments, 2);
        assert_eq!(s.sent[0].samples[1].rtt_us, 100_500);
        let s = samples(text, "5".parse().expect("dilation"), 2).expect("samples");
        assert_eq!(
            (s.sent[0].samples[1].t_ms, s.sent[0].samples[1].rtt_us),
            (20, 20_100)
        );
        for (text, says) in [
            ("", "zero_ns"),
            ("zero_ns 5\n", "none"),
            ("zero_ns 5\n5001 0 10 1 0 3\n", "line 2"),
            ("zero_ns 5\n5009 0 10 1 0 3 1448\n", "line 2"),
            ("zero_ns 5\n5001 0 ten 1 0 3 1448\n", "line 2"),
        ] {
            let e = samples(text, one, 1).err().expect(text);
            assert!(e.contains(says), "{text}: {e}");
        }
    }

    #[test]
    fn windows_count_from_zero_to_the_end() {
        let text =
            "lost_frames 3\n5001 500000 1 1518 1448\n5001 1000000 2 3036 2896\n5001 2000000 1 1518 1448\n";
        let one = Dilation::default();
        let w = windows(text, (1_000_000, one), 1_000_000, 1).expect("windows");
        assert_eq!(w.lost, 3);
        let seen: Vec<_> = w.frames[0].iter().map(|f| (f.t_ns, f.frame)).collect();
        assert_eq!(seen, [(0, 3036)]);
        let two = "2".parse().expect("dilation");
        let w = windows(text, (1_000_000, two), 1_000_000, 1).expect("windows");
        let seen: Vec<_> = w.frames[0].iter().map(|f| (f.t_ns, f.frame)).collect();
        assert_eq!(seen, [(0, 3036), (500_000, 1518)]);
        for (text, says) in [
            ("5001 0 1 1 1\n", "lost_frames"),
            ("lost_frames 0\n", "nothing"),
            ("lost_frames 0\n5001 0 1 1\n", "line 2"),
            ("lost_frames 0\n4000 0 1 1 1\n", "line 2"),
        ] {
            let e = windows(text, (0, one), 1, 1).err().expect(text);
            assert!(e.contains(says), "{text}: {e}");
        }
    }

    fn losing(at: &[(u64, u32)]) -> Sent {
        let samples = at.iter().map(|(t_ms, retrans)| Sample {
            t_ms: *t_ms,
            cwnd_segments: 1,
            rtt_us: 1,
            retrans_segments: *retrans,
            unacked_segments: 0,
            rwnd_limited_us: 0,
            peer_window_bytes: 0,
        });
        Sent {
            samples: samples.collect(),
            ..Sent::default()
        }
    }

    #[test]
    fn losses_of_one_event_are_counted_together() {
        // The first two lose in neighbouring rounds and go on recovering; the third loses later, alone.
        let a = losing(&[(0, 0), (100, 5), (200, 9), (300, 9), (900, 9)]);
        let b = losing(&[(0, 0), (100, 0), (200, 1), (300, 1), (900, 1)]);
        let c = losing(&[(0, 0), (100, 0), (200, 0), (300, 0), (900, 2)]);
        let v = together(&[a, b, c]);
        assert_eq!(
            (v["losses_of_streams"].as_u64(), v["events"].as_u64()),
            (Some(3), Some(2))
        );
        assert_eq!(v["streams_per_event_most"].as_u64(), Some(2));
        assert_eq!(v["streams_per_event_mean"].as_f64(), Some(1.5));
    }

    #[test]
    fn counters_are_names_and_numbers() {
        let c = counters("a 1\nb_c 22\n").expect("counters");
        assert_eq!((c["a"], c["b_c"]), (1, 22));
        assert!(counters("a one\n").is_err() && counters("a\n").is_err());
    }
}
