//! One network, one thread and four: the same frames, at the same picoseconds.

use std::fmt::Write as _;

use kuroshio_core::units::FrameBytes;

use super::engine::{Exit, PortCounts};
use super::pool::Frame;
use super::*;

/// Eight routers in a row with two hosts each; `middle` is said of the fourth link.
fn row(threads: usize, middle: &str) -> Topology {
    let mut text = format!("name = \"row\"\nseed = 5\nthreads = {threads}\n");
    for r in 0..8 {
        let _ = writeln!(text, "[[router]]\nname = \"r{r}\"");
    }
    for h in 0..16 {
        let more = match h {
            3 => "shape = \"300Mbps\"",
            6 => "drain = \"200Mbps\"\npause_high = \"64KiB\"\npause_low = \"16KiB\"",
            _ => "",
        };
        let _ = writeln!(
            text,
            "[[host]]\nname = \"h{h}\"\n[[host.port]]\nname = \"p\"\naddress = \"10.0.0.{}/24\"\nrouter = \"r{}\"\n{more}",
            h + 1,
            h / 2
        );
    }
    for l in 0..7 {
        let more = match l {
            1 => "loss = \"2%\"\nduplicate = \"3%\"\nreorder = \"5% 1ms\"\ncorrupt = \"2%\"",
            2 => "aqm = \"codel 1ms 10ms\"\ncapacity = \"60Mbps\"",
            3 => middle,
            4 => "[[link.schedule]]\nat = \"5ms\"\none_way_delay = \"250us\"\ncapacity = \"70Mbps\"",
            5 => "queue = \"40 frames\"\nloss = \"every 7\"",
            _ => "queue = \"20KiB\"",
        };
        let capacity = if l == 2 { "" } else { "capacity = \"200Mbps\"" };
        let delay = 300 + 100 * l;
        let _ = writeln!(
            text,
            "[[link]]\nname = \"l{l}\"\nbetween = [\"r{l}\", \"r{}\"]\n{capacity}\none_way_delay = \"{delay}us\"\n{more}",
            l + 1
        );
    }
    Topology::from_toml(&text).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

/// A frame that a host sends: when, from where, its bytes.
#[derive(Clone)]
struct Sent {
    at: PicoTime,
    port: usize,
    bytes: Vec<u8>,
}

/// Frames of all sizes between all hosts at times that collide often; many at one and the same instant.
fn load(count: u64) -> Vec<Sent> {
    let mut random = 77u64;
    let mut next = move |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) % below
    };
    let mut all: Vec<Sent> = (0..count)
        .map(|id| {
            let port = next(16) as usize;
            let to = (port + 1 + next(15) as usize) % 16;
            let mut bytes = crate::host::mac_of(to).to_vec();
            bytes.extend(crate::host::mac_of(port));
            bytes.extend([0x88, 0xb5]);
            bytes.extend(id.to_be_bytes());
            bytes.resize(60 + next(1400) as usize, id as u8);
            let at = PicoTime::from_ps(next(2_000) * 10_000_000);
            Sent { at, port, bytes }
        })
        .collect();
    all.sort_by_key(|s| s.at);
    all
}

/// What arrived: when, at which port, what.
type Arrival = (PicoTime, usize, Vec<u8>);

#[derive(Default)]
struct Arrived(Vec<Arrival>);

impl Exit for Arrived {
    fn leave(&mut self, counts: &mut PortCounts, port: usize, at: PicoTime, len: FrameBytes, frame: Frame) {
        let mut count = Count::default();
        count.add(len);
        counts.written(true, count);
        self.0.push((at, port, frame.bytes().to_vec()));
    }
}

const END: PicoTime = PicoTime::from_ps(1_000_000_000_000);

/// One thread's life in virtual time: it goes on as far as promises and its own arrivals allow.
fn live(engine: &mut Engine, sent: &[Sent]) -> Arrived {
    let mut arrived = Arrived::default();
    let mut sent = sent.iter().peekable();
    loop {
        let safe = engine.receive();
        let next = sent.peek().map_or(END, |s| s.at);
        let limit = safe.min(next);
        while engine.step(limit, &mut arrived) {}
        if limit == next
            && let Some(s) = sent.next()
        {
            let mut frame = engine.room(s.bytes.len()).expect("memory");
            frame.room()[..s.bytes.len()].copy_from_slice(&s.bytes);
            frame.set_len(s.bytes.len());
            engine.ingress(s.at, s.port, frame);
        }
        engine.publish(limit);
        if limit == END && safe >= END {
            return arrived;
        }
        std::thread::yield_now();
    }
}

/// Everything that arrived, in the order of time and port, the stages' counters, and the threads.
fn run(topology: &Topology, sent: &[Sent]) -> (Vec<Arrival>, Vec<StageCounters>, usize) {
    let plan = Arc::new(Plan::of(topology));
    let exchange = Arc::new(Exchange::new(&plan));
    let mut all = Vec::new();
    let mut counters = vec![StageCounters::default(); plan.stages.len()];
    let parts: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..plan.threads)
            .map(|own| {
                let (plan, exchange) = (Arc::clone(&plan), Arc::clone(&exchange));
                scope.spawn(move || {
                    let own_sent: Vec<Sent> = sent
                        .iter()
                        .filter(|s| plan.ports[s.port] == own)
                        .cloned()
                        .collect();
                    let mut engine = Engine::new(topology, &plan, &exchange, own);
                    let arrived = live(&mut engine, &own_sent);
                    let stages = 0..plan.stages.len();
                    let counters: Vec<_> = stages.map(|s| engine.stage_counters(s)).collect();
                    (own, arrived, counters, engine.handed())
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().expect("a thread")).collect()
    });
    let mut handed = [0, 0];
    for (own, arrived, part, counts) in parts {
        all.extend(arrived.0);
        for (stage, owner) in plan.stages.iter().enumerate() {
            if *owner == own {
                counters[stage] = part[stage];
            }
        }
        handed = [handed[0] + counts[0], handed[1] + counts[1]];
    }
    assert_eq!(handed[0], handed[1], "between threads nothing is lost");
    assert_eq!(plan.threads > 1, handed[0] > 0);
    all.sort();
    (all, counters, plan.threads)
}

#[test]
fn four_threads_and_one_give_the_same_to_the_picosecond() {
    let sent = load(30_000);
    let (one, counted, threads) = run(&row(1, ""), &sent);
    assert_eq!(threads, 1);
    for _ in 0..3 {
        let (four, counters, threads) = run(&row(4, ""), &sent);
        assert_eq!(threads, 4);
        assert_eq!(four.len(), one.len());
        let first = four.iter().zip(&one).position(|(a, b)| a != b);
        assert_eq!(first, None, "the first that differs");
        assert_eq!(counters, counted);
    }
    // Conserved, and everything that the network has was used.
    let links = &counted[32..46];
    for stage in &counted {
        let out = stage.departed.frames + stage.dropped().frames + stage.held.frames;
        assert_eq!(stage.arrived.frames + stage.duplicated.frames, out);
        assert_eq!(stage.held.frames, 0);
    }
    let total = |f: fn(&StageCounters) -> u64| links.iter().map(f).sum::<u64>();
    assert!(total(|s| s.queue_full.frames) > 0 && total(|s| s.aqm_dropped.frames) > 0);
    assert!(total(|s| s.lost.frames) > 0 && total(|s| s.corrupted) > 0 && total(|s| s.reordered) > 0);
    let dropped: u64 = counted.iter().map(|s| s.dropped().frames).sum();
    let duplicated: u64 = counted.iter().map(|s| s.duplicated.frames).sum();
    assert_eq!(30_000 + duplicated, one.len() as u64 + dropped);
}

#[test]
fn a_network_is_cut_only_where_a_delay_allows_it() {
    assert_eq!(
        Plan::of(&row(16, "")).threads,
        8,
        "a thread for each router at most"
    );
    for middle in [
        "jitter = \"uniform 10us\"",
        "order = \"free\"",
        "[[link.schedule]]\nat = \"1s\"\njitter = \"uniform 1us\"",
    ] {
        let topology = row(16, middle);
        let plan = Plan::of(&topology);
        assert_eq!(plan.threads, 7, "{middle}");
        // Routers 3 and 4 are together: ports 6 to 9.
        assert!(plan.ports[6..10].iter().all(|p| *p == plan.ports[6]));
    }
    let topology = row(4, "");
    let plan = Plan::of(&topology);
    let numbers = Numbers::of(&topology);
    let cut = (0..14)
        .map(|l| numbers.link(l))
        .find(|s| plan.ahead[*s].is_some())
        .expect("one");
    let short = kuroshio_core::wan::WanChange::OneWayDelay(PicoDuration::from_us(1));
    assert!(plan.refuses(cut, &short).is_some());
    assert!(Plan::of(&row(1, "")).refuses(cut, &short).is_none());
}
