//! Experiments are whole and cited; checks hold and fail on the right sides of their bounds.

use crate::check::{Check, CheckSpec};
use crate::experiment::{Experiment, Level, load, load_with, names, parse};
use crate::trace::{Cut, Drops, Frame, Stream, Trace, peak_in_any_window, quantile};

const MS: u64 = 1_000_000;

fn spec(text: &str) -> CheckSpec {
    toml::from_str(&format!("name = \"n\"\nbound = \"b\"\n{text}")).expect("check")
}

/// Frames of `frame` bytes every `every_ns` from zero for `total_ns`.
fn steady(phase: &str, frame: u32, every_ns: u64, total_ns: u64) -> Trace {
    let frames = (0..total_ns.div_ceil(every_ns))
        .map(|i| Frame {
            t_ns: (i * every_ns) as i64,
            frame,
            payload: frame - 70,
        })
        .collect();
    Trace {
        phase: phase.into(),
        duration_ns: total_ns,
        streams: vec![Stream {
            name: "s".into(),
            frames,
        }],
        ..Trace::default()
    }
}

fn eval(c: &CheckSpec, t: &[Trace]) -> Check {
    c.validate().expect("valid");
    c.evaluate(t)
}

#[test]
fn every_experiment_is_whole_and_cited() {
    assert_eq!(
        names().collect::<Vec<_>>(),
        [
            "gnet1-collision",
            "gnet1-unshaped",
            "gnet1-shaped",
            "gfarm-burst",
            "gfarm-ifg",
            "psp-bic",
            "psp-range",
            "cross-500",
            "sc2003",
            "lfn-window",
            "lfn-startup",
            "lfn-cpu",
            "lfn-pause",
            "lfn-real",
            "psp-slow-start",
            "pfldnet",
            "psp-controls",
            "psp-sync"
        ]
    );
    for name in names() {
        let e = load(name).expect(name);
        assert!(
            ["00", "PFLDnet"].iter().any(|p| e.source.paper.starts_with(p))
                && ["fig.", "table", "none, the text"]
                    .iter()
                    .any(|f| e.source.figure.starts_with(f)),
            "{name}"
        );
        assert!(!e.source.section.is_empty() && !e.figures.is_empty(), "{name}");
        assert!(e.checks.len() >= 2, "{name}");
        assert!(e.settings.len() >= 5, "{name}");
        for s in &e.settings {
            assert!(s.from.len() > 8, "{name}: {} has no source", s.name);
        }
        for p in &e.phases {
            kuroshio_testbed::Topology::from_toml(&p.topology_toml).unwrap_or_else(|m| panic!("{name}: {m}"));
            for f in &p.flows {
                assert!(
                    p.topology_toml.contains(&f.address.to_string()),
                    "{name}: {}",
                    f.address
                );
            }
        }
    }
}

#[test]
fn a_phase_can_be_another_experiment() {
    let e = load("gnet1-unshaped").expect("experiment");
    let shaped = load("gnet1-shaped").expect("experiment");
    assert_eq!(e.phases[1].topology_toml, shaped.phases[0].topology_toml);
    assert!(e.phases[1].topology_toml.contains("shape = \"250Mbps\""));
    assert!(!e.phases[0].topology_toml.contains("shape"));
}

#[test]
fn wrong_files_say_what_is_wrong() {
    let text = include_str!("../gfarm-ifg.toml");
    parse("gfarm-ifg", text).expect("whole");
    for (from, to, says) in [
        ("name = \"gfarm-ifg\"", "name = \"other\"", "other"),
        ("duration = \"27s\"", "duration = \"27\"", "unit"),
        ("duration = \"27s\"", "duration = \"0s\"", "15000 s"),
        ("wide = \"10s\"", "wide = \"10.001s\"", "multiple"),
        ("phase = \"gap\"", "phase = \"gone\"", "gone"),
        ("port = \"node1/eth0\"", "port = \"node9/eth0\"", "node9/eth0"),
        ("port = \"node1/eth0\"", "port = \"node1\"", "HOST/PORT"),
        ("congestion = \"highspeed\"", "", "congestion"),
        ("kind = \"mean\"", "kind = \"means\"", "means"),
        ("at_most = 0", "", "at_most"),
    ] {
        assert!(text.contains(from), "{from}");
        let e = parse("gfarm-ifg", &text.replace(from, to)).expect_err(to);
        assert!(e.to_string().contains(says), "{to}: {e}");
    }
    assert!(
        load("gnet2")
            .expect_err("unknown")
            .to_string()
            .contains("gnet1-shaped")
    );
}

#[test]
fn drops_are_counted_where_the_check_says() {
    let t = |routers, shapers| {
        [Trace {
            phase: "p".into(),
            drops: Drops {
                routers,
                shapers,
                ..Drops::default()
            },
            ..Trace::default()
        }]
    };
    let some = spec("kind = 'drops'\nphase = 'p'\nplace = 'routers'\nat_least = 1");
    assert!(!eval(&some, &t(0, 5)).ok);
    assert!(eval(&some, &t(1, 0)).ok);
    let none = spec("kind = 'drops'\nphase = 'p'\nplace = 'everywhere'\nat_most = 0");
    assert!(eval(&none, &t(0, 0)).ok);
    assert!(!eval(&none, &t(0, 1)).ok);
    assert!(!eval(&none, &t(1, 0)).ok);
    assert!(!eval(&none, &[]).ok, "no data is no success");
}

#[test]
fn means_hold_on_both_sides() {
    // 1000 bytes every 16 us are 500 Mbps.
    let t = [steady("p", 1000, 16_000, 1000 * MS)];
    let mean = |low: f64, high: f64| {
        spec(&format!(
            "kind = 'mean'\nphase = 'p'\nlevel = 'frame'\nfrom = '100ms'\nto = '900ms'\nat_least_mbps = {low:?}\nat_most_mbps = {high:?}"
        ))
    };
    assert!(eval(&mean(499.9, 500.1), &t).ok);
    assert!(!eval(&mean(500.1, 600.0), &t).ok);
    assert!(!eval(&mean(400.0, 499.9), &t).ok);
    assert_eq!(eval(&mean(0.0, 900.0), &t).value, "500.000 Mbps");
    let goodput = spec(
        "kind = 'mean'\nphase = 'p'\nlevel = 'goodput'\nfrom = '0s'\nto = '1s'\nat_least_mbps = 464.9\nat_most_mbps = 465.1",
    );
    assert!(eval(&goodput, &t).ok);
    let silent = [Trace {
        phase: "p".into(),
        ..Trace::default()
    }];
    assert!(!eval(&mean(0.0, 900.0), &silent).ok, "no data is no success");
}

#[test]
fn shares_compare_two_phases() {
    let c = spec(
        "kind = 'mean-share'\nphase = 'a'\nof = 'b'\nlevel = 'frame'\nfrom = '0s'\nto = '1s'\nat_most = 0.3333",
    );
    let b = || steady("b", 1000, 16_000, 1000 * MS);
    assert!(eval(&c, &[steady("a", 1000, 64_000, 1000 * MS), b()]).ok);
    assert!(!eval(&c, &[steady("a", 1000, 40_000, 1000 * MS), b()]).ok);
    assert!(
        !eval(&c, &[steady("a", 1000, 64_000, 1000 * MS)]).ok,
        "no reference is no success"
    );
    assert!(
        !eval(
            &c,
            &[
                Trace {
                    phase: "a".into(),
                    ..Trace::default()
                },
                b()
            ]
        )
        .ok
    );
}

#[test]
fn windows_in_range_need_their_share() {
    let c = spec(
        "kind = 'windows-in-range'\nphase = 'p'\nlevel = 'frame'\nwidth = '10ms'\nfrom = '0s'\nto = '1s'\nlow_mbps = 499.0\nhigh_mbps = 501.0\nshare = 0.95",
    );
    let mut t = steady("p", 1000, 16_000, 1000 * MS);
    assert!(eval(&c, std::slice::from_ref(&t)).ok);
    // Silence in five of a hundred windows is allowed, in six not.
    t.streams[0].frames.retain(|f| f.t_ns >= 50 * MS as i64);
    assert!(eval(&c, std::slice::from_ref(&t)).ok);
    t.streams[0].frames.retain(|f| f.t_ns >= 60 * MS as i64);
    assert!(!eval(&c, std::slice::from_ref(&t)).ok);
}

#[test]
fn windows_near_mean_see_one_late_window() {
    let c = spec(
        "kind = 'windows-near-mean'\nphase = 'p'\nlevel = 'goodput'\nwidth = '16ms'\nfrom = '0s'\nto = '1600ms'\nwithin = 0.025",
    );
    // The gap of 36,000 bytes: one frame of 9018 bytes every 360.208 us.
    let mut t = steady("p", 9018, 360_208, 1600 * MS);
    let good = eval(&c, std::slice::from_ref(&t));
    assert!(good.ok, "{good:?}");
    // A stall of 5 ms: what was due leaves together at its end.
    for f in &mut t.streams[0].frames {
        if (797 * MS as i64..802 * MS as i64).contains(&f.t_ns) {
            f.t_ns = 802 * MS as i64;
        }
    }
    let bad = eval(&c, &[t]);
    assert!(!bad.ok, "{bad:?}");
    assert!(bad.value.contains("2 of 100 windows"), "{bad:?}");
}

#[test]
fn peaks_are_measured_against_the_mean() {
    let c = spec(
        "kind = 'window-peak'\nphase = 'p'\nlevel = 'frame'\nwidth = '10ms'\nfrom = '0s'\nto = '1s'\ntimes_mean = 4.0",
    );
    let mut t = steady("p", 1000, 16_000, 1000 * MS);
    assert!(!eval(&c, std::slice::from_ref(&t)).ok);
    // All of each 200 ms in its first 40 ms.
    for f in &mut t.streams[0].frames {
        let round = f.t_ns / 200_000_000 * 200_000_000;
        f.t_ns = round + (f.t_ns - round) / 5;
    }
    let c = eval(&c, &[t]);
    assert!(c.ok, "{c:?}");
}

#[test]
fn scheduled_peak_holds_on_both_sides() {
    let c = spec("kind = 'scheduled-peak'\nphase = 'p'\nwidth = '2ms'\nat_most_bytes = 128036");
    let t = |b| {
        [Trace {
            phase: "p".into(),
            scheduled_peaks: vec![(2 * MS, b)],
            ..Trace::default()
        }]
    };
    assert!(eval(&c, &t(128_036)).ok);
    assert!(!eval(&c, &t(128_037)).ok);
    assert!(!eval(&c, &t(0)).ok, "no data is no success");
    assert!(
        !eval(
            &c,
            &[Trace {
                phase: "p".into(),
                ..Trace::default()
            }]
        )
        .ok
    );
}

#[test]
fn checks_that_cannot_fail_are_refused() {
    for text in [
        "kind = 'drops'\nphase = 'p'\nplace = 'routers'",
        "kind = 'drops'\nphase = 'p'\nplace = 'routers'\nat_least = 0",
        "kind = 'mean'\nphase = 'p'\nlevel = 'frame'\nfrom = '0s'\nto = '1s'",
        "kind = 'mean'\nphase = 'p'\nlevel = 'frame'\nfrom = '1s'\nto = '1s'\nat_most_mbps = 1.0",
        "kind = 'window-peak'\nphase = 'p'\nlevel = 'frame'\nwidth = '2s'\nfrom = '0s'\nto = '1s'\ntimes_mean = 4.0",
    ] {
        assert!(spec(text).validate().is_err(), "{text}");
    }
}

#[test]
fn windows_count_whole_windows_only() {
    let t = steady("p", 1000, 16_000, 1000 * MS);
    let w = t.windows(0, Level::Frame, 300 * MS, 100 * MS, 1000 * MS);
    assert_eq!(w, [18_750_000, 18_750_000, 18_750_000]);
    assert_eq!(t.windows(0, Level::Frame, 400 * MS, 100 * MS, 1000 * MS).len(), 2);
    assert_eq!(t.windows(7, Level::Frame, 400 * MS, 0, 1000 * MS), [0, 0]);
}

#[test]
fn peak_takes_the_worst_half_open_window() {
    let events = [(0, 10), (999, 20), (1000, 40), (1999, 5), (5000, 50)];
    assert_eq!(peak_in_any_window(&events, 1000), 60);
    assert_eq!(peak_in_any_window(&events, 1001), 70);
    assert_eq!(peak_in_any_window(&[], 1000), 0);
}

#[test]
fn quantile_is_the_nearest_rank() {
    let v: Vec<i64> = (1..=1000).collect();
    assert_eq!(
        [
            quantile(&v, 0.5),
            quantile(&v, 0.99),
            quantile(&v, 0.999),
            quantile(&v, 1.0)
        ],
        [500, 990, 999, 1000]
    );
    assert_eq!(quantile(&[], 0.5), 0);
}

#[test]
fn experiments_hold_in_virtual_time() {
    for name in ["gnet1-collision", "gnet1-shaped", "gfarm-burst", "gfarm-ifg"] {
        let e = load(name).expect(name);
        let run = crate::sim::run(&e, &mut |_| {}).expect(name);
        assert_eq!(run.result.mode, "sim");
        assert!(run.result.checks.len() > 2, "{name}");
        for c in &run.result.checks {
            assert!(c.ok, "{name}: {}: {} [{}]", c.name, c.value, c.bound);
        }
        for (t, sent) in run.traces.iter().zip(&run.sent) {
            assert_eq!(t.streams.len(), sent.len(), "{name}");
            assert!(t.streams.iter().all(|s| !s.frames.is_empty()), "{name}");
        }
    }
}

#[test]
fn two_streams_collide_in_virtual_time() {
    let text = include_str!("../gnet1-unshaped.toml").replace("seeds = 20", "seeds = 1");
    let e = parse("gnet1-unshaped", &text).expect("whole");
    let run = crate::sim::run(&e, &mut |_| {}).expect("a run");
    for c in &run.result.checks {
        assert!(c.ok, "{}: {} [{}]", c.name, c.value, c.bound);
    }
}

#[test]
fn a_paced_rate_is_from_first_to_last_frame() {
    // 1000 bytes every 16 us are 500 Mbps, however long the phase is.
    let t = [steady("p", 1000, 16_000, 1000 * MS)];
    let paced = |mbps: f64| {
        spec(&format!(
            "kind = 'paced-rate'\nphase = 'p'\nmbps = {mbps:?}\nwithin = 0.001"
        ))
    };
    assert!(eval(&paced(500.0), &t).ok);
    assert!(eval(&paced(500.4), &t).ok);
    assert!(!eval(&paced(501.0), &t).ok);
    assert!(!eval(&paced(499.0), &t).ok);
    assert!(
        !eval(&paced(500.0), &[steady("p", 1000, 16_000, 16_000)]).ok,
        "one frame has no rate"
    );
    assert!(paced(0.0).validate().is_err());
}

#[test]
fn a_frame_out_of_its_place_fails() {
    let c = spec("kind = 'place'\nphase = 'p'\nwithin_bytes = 1.0");
    let with = |place_error_bytes| {
        [Trace {
            place_error_bytes,
            ..steady("p", 1000, 16_000, 1000 * MS)
        }]
    };
    assert!(eval(&c, &with(Some((0.0, 0.99)))).ok);
    assert!(!eval(&c, &with(Some((0.0, 1.0)))).ok, "a byte late");
    assert!(!eval(&c, &with(Some((-1.0, 0.0)))).ok, "a byte early");
    assert!(!eval(&c, &with(None)).ok, "no stamps are no success");
    assert!(
        spec("kind = 'place'\nphase = 'p'\nwithin_bytes = 0.0")
            .validate()
            .is_err()
    );
}

#[test]
fn means_end_with_a_phase_that_was_made_shorter() {
    let t = [steady("p", 1000, 16_000, 500 * MS)];
    let mean =
        spec("kind = 'mean'\nphase = 'p'\nlevel = 'frame'\nfrom = '0s'\nto = '1s'\nat_least_mbps = 499.0");
    assert!(eval(&mean, &t).ok, "{}", eval(&mean, &t).value);
}

#[test]
fn wrong_machines_say_what_is_wrong() {
    let text = include_str!("../psp-bic.toml");
    parse("psp-bic", text).expect("whole");
    for (from, to, says) in [
        ("[\"sim\", \"vm\"]", "[\"sim\"]", "among the modes"),
        ("[vm]\nrun = \"path\"\nload", "[vm]\nload", "run"),
        ("run = \"path\"", "run = \"walk\"", "walk"),
        ("[\"tcp_bic initial", "[\"tcp_bic; initial", "MODULE"),
        ("vm = { pace = \"none\" }", "vm = { pace = \"static\" }", "shaper"),
        (
            "vm = { pace = \"none\" }",
            "vm = { pace = \"none\", unpaced = [\"other\"] }",
            "no flow \"other\"",
        ),
    ] {
        assert!(text.contains(from), "{from}");
        let e = parse("psp-bic", &text.replace(from, to)).expect_err(to);
        assert!(e.to_string().contains(says), "{to}: {e}");
    }
    let e = parse(
        "gfarm-ifg",
        &include_str!("../gfarm-ifg.toml").replace("scale = ", "modes = [\"vm\"]\nscale = "),
    )
    .expect_err("no machine");
    assert!(e.to_string().contains("[vm]"), "{e}");
}

#[test]
fn checks_are_for_the_modes_that_they_say() {
    use crate::experiment::Mode;
    let both = spec("kind = 'drops'\nphase = 'p'\nplace = 'routers'\nat_least = 1");
    let one = spec("mode = 'sim'\nkind = 'drops'\nphase = 'p'\nplace = 'routers'\nat_least = 1");
    assert!(both.is_for(Mode::Live) && both.is_for(Mode::Sim));
    assert!(one.is_for(Mode::Sim) && !one.is_for(Mode::Live) && !one.is_for(Mode::Vm));
}

#[test]
fn wrong_parameters_of_the_simulator_say_what_is_wrong() {
    let text = include_str!("../gnet1-unshaped.toml");
    for (from, to, says) in [
        (
            "profile = \"linux-2.6.14\"",
            "profile = \"bsd\"",
            "linux-2.6.14, linux-2.6.14.2, modern",
        ),
        (
            "local_congestion = \"ignore\"",
            "local_congestion = \"maybe\"",
            "maybe",
        ),
        ("reaction = \"24.288us\"", "reaction = \"24\"", "unit"),
        ("seeds = 20", "seeds = 0", "1 seed"),
        ("seeds = 20", "seeds = 5000", "1000"),
    ] {
        assert!(text.contains(from), "{from}");
        let e = parse("gnet1-unshaped", &text.replace(from, to)).expect_err(to);
        assert!(e.to_string().contains(says), "{to}: {e}");
    }
    // A congestion control that the simulator lacks is told by the run.
    let text = include_str!("../gnet1-shaped.toml").replace("congestion = \"reno\"", "congestion = \"bbr\"");
    let e = parse("gnet1-shaped", &text).expect("whole");
    let problem = crate::sim::run(&e, &mut |_| {}).expect_err("bbr").to_string();
    assert!(problem.contains("bbr") && problem.contains("cubic"), "{problem}");
}

fn cut(t_ms: u64, target_segments: u32, in_slow_start: bool) -> Cut {
    Cut {
        stream: "s".into(),
        t_ms,
        cwnd_segments: target_segments,
        ssthresh_segments: target_segments / 2,
        target_segments,
        in_slow_start,
        timeout: false,
    }
}

#[test]
fn cuts_are_counted_and_targets_compared() {
    let with = |cuts: &[Cut]| {
        [Trace {
            cuts: cuts.to_vec(),
            ..steady("p", 1_518, MS, 10 * MS)
        }]
    };
    let again = "kind = 'cuts'\nphase = 'p'\nin_later_slow_start = true";
    let (some, none) = (
        spec(&format!("{again}\nat_least = 1")),
        spec(&format!("{again}\nat_most = 0")),
    );
    // The first cut, which ends the first slow start, does not count.
    let first = with(&[cut(1, 5_000, true), cut(2, 4_900, false)]);
    let second = with(&[cut(1, 5_000, true), cut(2, 3_000, true)]);
    assert!(!eval(&some, &first).ok && eval(&none, &first).ok);
    assert!(eval(&some, &second).ok && !eval(&none, &second).ok);
    // A phase in which nothing arrived shows nothing.
    let silent = [Trace {
        phase: "p".into(),
        ..Trace::default()
    }];
    assert!(!eval(&none, &silent).ok);

    let kept = spec("kind = 'target-kept'\nphase = 'p'\nat_least = 0.8");
    let fell = spec("kind = 'target-kept'\nphase = 'p'\nat_most = 0.8");
    assert!(eval(&kept, &first).ok && !eval(&fell, &first).ok);
    assert!(!eval(&kept, &second).ok && eval(&fell, &second).ok);
    assert!(!eval(&fell, &with(&[])).ok, "no cut, nothing to compare");
    let unbound = spec("kind = 'target-kept'\nphase = 'p'");
    assert!(unbound.validate().is_err());
}

#[test]
fn keys_change_what_they_name_and_nothing_else() {
    let with = |key: &str, value: &str| load_with("pfldnet", &[(key.into(), value.into())]);
    let e = with("link.ocean.one_way_delay", "7ms").expect("a key");
    assert!(e.phases.iter().all(|p| p.topology_toml.contains("7ms")));
    let e = with("flow.stream.window", "1MiB").expect("a key");
    assert!(
        e.phases
            .iter()
            .flat_map(|p| &p.flows)
            .all(|f| f.window.as_ref().is_some_and(|w| w.value == 1 << 20))
    );
    let e = with("sim.fast_alpha", "20").expect("a key");
    assert!(e.phases.iter().all(|p| p.sim.fast_alpha == Some(20)));
    let e = with("duration", "3s").expect("a key");
    assert!(e.phases.iter().all(|p| p.duration.ns() == 3_000 * MS));
    let e = load_with("sc2003", &[("duration".into(), "77s".into())]).expect("a key");
    assert!(
        e.phases.iter().all(|p| p.duration.ns() == 77_000 * MS),
        "phases of a sweep"
    );
    let e = with("port.pc/eth0.mtu", "9000B").expect("a key");
    assert!(e.phases.iter().all(|p| p.topology_toml.contains("9000B")));
    let key = ("shape.pc/eth0.rate".to_owned(), "100Mbps".to_owned());
    let e = load_with("psp-bic", &[key]).expect("a key");
    let shaped = |name: &str| {
        let p = e.phases.iter().find(|p| p.name == name).expect(name);
        p.topology_toml.contains("shape = \"100Mbps\"")
    };
    assert!(shaped("static") && !shaped("none"));
    let key = ("vm.load".to_owned(), "tcp_bic max_increment=6".to_owned());
    let e = load_with("psp-bic", &[key]).expect("a key");
    assert_eq!(e.vm.expect("[vm]").load, ["tcp_bic max_increment=6"]);
    let e = with("seed", "77").expect("a key");
    assert!(e.phases.iter().all(|p| p.topology_toml.contains("seed = 77")));
    // A phase's own queue, and a sweep's before it.
    let count = |e: &Experiment, queue: &str| {
        e.phases
            .iter()
            .filter(|p| p.topology_toml.contains(queue))
            .count()
    };
    let e = load("pfldnet").expect("it");
    assert_eq!((count(&e, "\"64KiB\""), count(&e, "\"512KiB\"")), (4, 4));
    let e = with("link.ocean.queue", "99KiB").expect("a key");
    assert_eq!(count(&e, "\"99KiB\""), e.phases.len());
    for (key, value, says) in [
        ("link.nowhere.queue", "1MB", "no link"),
        ("link.ocean.colour", "1MB", "capacity, one_way_delay, queue, loss"),
        ("flow.other.window", "1MB", "no flow"),
        ("vm.load", "tcp_bic", "no [vm]"),
        ("shape.pc/eth9.rate", "1Mbps", "no shaper at"),
        ("shape.pc/eth0.gap", "1B", "there are rate"),
        ("port.pc.mtu", "9000B", "HOST/PORT"),
        ("sim.seeds", "many", "no number"),
        ("sim.seeds", "0", "1 seed or more"),
        ("sim.profile", "linux-9", "linux-2.6.14.2"),
        ("sim.frame_memory", "5", "unit"),
        ("colour", "red", "link.NAME"),
    ] {
        let problem = with(key, value).expect_err(key).to_string();
        assert!(problem.contains(says), "{key}: {problem}");
    }
}

#[test]
fn a_sweep_is_drawn_as_rate_by_buffer() {
    let e = load("lfn-window").expect("experiment");
    assert!(e.phases.len() > 70 && e.phases.len() <= crate::sweep::MAX_PHASES);
    let traces: Vec<Trace> = e
        .phases
        .iter()
        .map(|p| {
            let mut t = steady(&p.name, 1_000, 10_000_000, p.duration.ns());
            t.vars.clone_from(&p.vars);
            t
        })
        .collect();
    let plots = crate::page::knees(&e, &traces);
    assert_eq!(plots.len(), 2, "IPv4 and IPv6");
    for p in &plots {
        let names: Vec<&str> = p.series.iter().map(|s| s.name.as_str()).collect();
        assert_eq!(names, ["100 ms", "200 ms", "300 ms", "400 ms"]);
        for s in &p.series {
            assert_eq!(s.points.len(), 7);
            assert!(s.points.is_sorted_by(|a, b| a.0 < b.0));
        }
    }
    let dir = tempfile::tempdir().expect("folder");
    let report = crate::report::Report {
        plots,
        ..Default::default()
    };
    report.write(dir.path()).expect("a page");
    assert!(dir.path().join("knee-2.png").is_file());
}
