//! The search for the usable capacity in virtual time, over emulated links of many kinds.

use kuroshio_core::capacity::{
    Arrival, CapacityConfig, CapacityError, Digest, MAX_TRAINS, Outcome, Search, Step, Train, Verdict, digest,
};
use kuroshio_core::traffic::{Pattern, Schedule, Sizes, Timing};
use kuroshio_core::units::{BitRate, FrameBytes, PicoDuration, PicoTime, Ratio};
use kuroshio_core::wan::{Jitter, Limit, LinkConfig, Stage as _, WanConfig, WanLink};

fn mbps(rate: u32) -> BitRate {
    BitRate::from_mbps(rate)
}

fn link(capacity: BitRate, queue: u64) -> WanConfig {
    LinkConfig {
        capacity,
        wire: None,
        one_way_delay: PicoDuration::from_ms(50),
        queue_limit: FrameBytes::new(queue),
        loss: Ratio::ZERO,
    }
    .into()
}

/// A frame in the link: its number and time of sending in a train, or of other traffic.
type Token = u64;
const OTHERS: Token = u64::MAX;

/// A path whose time goes on from train to train.
struct Path {
    /// The sender stops for this long before every so many frames, and makes up for it where it may.
    stall: Option<(u64, PicoDuration)>,
    link: WanLink<Token>,
    now: PicoTime,
    /// Times of the other traffic from the begin of the run.
    others: Option<std::iter::Peekable<Schedule>>,
}

impl Path {
    fn new(config: WanConfig, others: Option<Timing>) -> Self {
        let schedule = |timing| {
            let pattern = Pattern {
                timing,
                sizes: Sizes::Fixed(FrameBytes::new(1_000)),
                streams: 1,
                seed: 3,
                time: Some(PicoDuration::from_secs(100_000)),
                frames: None,
            };
            Schedule::new(pattern).expect("a pattern").peekable()
        };
        Self {
            stall: None,
            link: WanLink::new(config, 5),
            now: PicoTime::ZERO,
            others: others.map(schedule),
        }
    }

    /// Other traffic up to a time.
    fn others_until(&mut self, until: PicoTime) {
        while let Some(frame) = self.others.as_mut().and_then(|o| o.next_if(|d| d.at <= until)) {
            let _ = self.link.handle_frame(frame.at, frame.len, OTHERS);
        }
    }

    fn collect(&mut self, until: PicoTime, sent: &[u64], arrivals: &mut Vec<Arrival>) {
        while let Some(departure) = self.link.poll(until) {
            if departure.token != OTHERS {
                arrivals.push(Arrival {
                    number: departure.token,
                    sent_ns: sent[departure.token as usize],
                    received_ns: departure.at.as_ns() + 123_456_789,
                });
            }
        }
    }

    fn send(&mut self, train: &Train) -> Digest {
        let start = self.now + train.wait;
        let schedule = Schedule::new(Pattern {
            timing: Timing::Rate(train.rate),
            sizes: Sizes::Fixed(train.len),
            streams: 1,
            seed: 0,
            time: None,
            frames: Some(train.frames),
        })
        .expect("a train");
        let (mut sent, mut arrivals) = (Vec::new(), Vec::new());
        let mut moved = PicoDuration::ZERO;
        for (number, departure) in (0u64..).zip(schedule) {
            let mut at = start + (departure.at - PicoTime::ZERO) + moved;
            match self.stall {
                Some((every, time)) if number % every == every / 2 => {
                    at = at.max(self.now + time);
                    if train.even {
                        moved += time;
                    }
                }
                _ => at = at.max(self.now),
            }
            self.others_until(at);
            sent.push(at.as_ns());
            let _ = self.link.handle_frame(at, train.len, number);
            self.collect(at, &sent, &mut arrivals);
            self.now = at;
        }
        // Until everything of the train has arrived.
        while arrivals.len() < sent.len() {
            let Some(at) = self.link.next_wakeup() else { break };
            self.others_until(at);
            self.collect(at, &sent, &mut arrivals);
            self.now = self.now.max(at);
            let silent = PicoTime::from_ns(sent.last().copied().unwrap_or(0)) + PicoDuration::from_secs(200);
            if self.now > silent || (self.others.is_some() && self.quiet(&arrivals)) {
                break;
            }
        }
        digest(&mut arrivals, train.len)
    }

    /// Nothing of the train for three seconds, as a live receiver gives up.
    fn quiet(&self, arrivals: &[Arrival]) -> bool {
        let last = arrivals.iter().rev().take(1).map(|a| a.received_ns).max();
        last.is_some_and(|ns| self.now.as_ns() > ns + 3_000_000_000)
    }
}

fn search(config: CapacityConfig, path: &mut Path) -> Verdict {
    let mut search = Search::new(config).expect("a search");
    loop {
        match search.step() {
            Step::Train(train) => search.handle(&path.send(&train)),
            Step::Done(verdict) => return verdict,
        }
    }
}

/// Parts per million by which what was found is off.
fn off_ppm(verdict: &Verdict, truth: BitRate) -> u64 {
    assert_eq!(verdict.outcome, Outcome::Found, "{verdict:?}");
    let found = verdict.clear.expect("a clear rate").bps();
    u64::try_from(u128::from(found.abs_diff(truth.bps())) * 1_000_000 / u128::from(truth.bps())).expect("ppm")
}

fn standard(frame: u64) -> CapacityConfig {
    CapacityConfig::new(FrameBytes::new(frame), mbps(1), mbps(10_000))
}

#[test]
fn many_capacities_and_queues() {
    for (capacity, frame) in [
        (10, 1_518),
        (45, 1_518),
        (100, 64),
        (468, 1_518),
        (500, 9_018),
        (1_000, 1_518),
        (2_340, 9_018),
        (2_400, 9_018),
        (9_500, 9_018),
    ] {
        // One frame, a few, a tenth of a second, a second: bufferbloat.
        let second = u64::from(capacity) * 125_000;
        for queue in [frame, 4 * frame, second / 10, second] {
            let truth = mbps(capacity);
            let verdict = search(standard(frame), &mut Path::new(link(truth, queue), None));
            let off = off_ppm(&verdict, truth);
            assert!(
                off <= 3_000,
                "{capacity} Mbps, queue {queue} bytes: {off} ppm off, {verdict:?}"
            );
            assert!(
                verdict.trains <= 30,
                "{capacity} Mbps, queue {queue}: {verdict:?}"
            );
        }
    }
}

#[test]
fn a_frame_s_wire_time_counts() {
    // Frames of 64 on a gigabit: 84 bytes of the wire each, so 761.9 Mbps at frame level.
    let mut config = link(mbps(1_000), 100_000);
    config.wire = Some(kuroshio_core::wire::LineRate::GIGABIT);
    let verdict = search(standard(64), &mut Path::new(config, None));
    assert!(off_ppm(&verdict, BitRate::from_bps(761_904_761).expect("a rate")) <= 3_000);
}

#[test]
fn jitter_does_not_mislead() {
    for (capacity, jitter_us) in [(10, 2_000), (100, 1_000), (2_340, 300), (9_500, 100)] {
        let frame = if capacity > 1_000 { 9_018 } else { 1_518 };
        let mut config = link(mbps(capacity), 1 << 22);
        config.jitter = Jitter::Uniform(PicoDuration::from_us(jitter_us));
        let verdict = search(standard(frame), &mut Path::new(config, None));
        let off = off_ppm(&verdict, mbps(capacity));
        assert!(off <= 5_000, "{capacity} Mbps: {off} ppm off, {verdict:?}");
    }
}

#[test]
fn other_traffic_leaves_the_rest() {
    // An even stream beside the trains: what it leaves.
    for (capacity, others) in [(100, 20), (1_000, 700), (2_340, 800)] {
        let frame = if capacity > 1_000 { 9_018 } else { 1_518 };
        let mut path = Path::new(link(mbps(capacity), 1 << 22), Some(Timing::Rate(mbps(others))));
        let verdict = search(standard(frame), &mut path);
        let off = off_ppm(&verdict, mbps(capacity - others));
        assert!(
            off <= 5_000,
            "{capacity} - {others} Mbps: {off} ppm off, {verdict:?}"
        );
    }
}

#[test]
fn losses_of_another_cause_are_told_apart_when_they_are_tolerated() {
    let mut config = link(mbps(100), 1 << 20);
    config.loss = kuroshio_core::wan::Loss::Ratio("1e-3".parse().expect("a ratio"));
    let verdict = search(standard(1_518), &mut Path::new(config.clone(), None));
    assert_eq!(verdict.outcome, Outcome::LossElsewhere, "{verdict:?}");
    let mut tolerant = standard(1_518);
    tolerant.tolerated_loss_ppm = 5_000;
    let verdict = search(tolerant, &mut Path::new(config, None));
    assert!(off_ppm(&verdict, mbps(100)) <= 6_000, "{verdict:?}");
}

#[test]
fn beyond_the_ends_is_said() {
    let verdict = search(standard(9_018), &mut Path::new(link(mbps(20_000), 1 << 20), None));
    assert_eq!(
        (verdict.outcome, verdict.clear),
        (Outcome::AtLeast, Some(mbps(10_000)))
    );
    let mut path = Path::new(link(BitRate::from_bps(500_000).expect("a rate"), 1 << 20), None);
    let verdict = search(standard(1_518), &mut path);
    assert_eq!((verdict.outcome, verdict.clear), (Outcome::NoClearRate, None));
}

#[test]
fn a_sender_that_stalls_finds_the_capacity_by_dispersion() {
    for (capacity, frame, every) in [(100, 1_518, 50), (2_340, 9_018, 400)] {
        let mut path = Path::new(link(mbps(capacity), 1 << 20), None);
        path.stall = Some((every, PicoDuration::from_ms(2)));
        let verdict = search(standard(frame), &mut path);
        assert_eq!(verdict.outcome, Outcome::Dispersion, "{verdict:?}");
        let found = verdict.dispersion.map_or(0, BitRate::bps);
        let truth = mbps(capacity).bps();
        assert!(
            found.abs_diff(truth) <= truth / 200,
            "{capacity} Mbps: {verdict:?}"
        );
    }
}

#[test]
fn a_frame_queue_counts_too() {
    let mut config = link(mbps(622), 0);
    config.queue = Limit::Frames(10);
    let verdict = search(standard(1_518), &mut Path::new(config, None));
    assert!(off_ppm(&verdict, mbps(622)) <= 3_000, "{verdict:?}");
}

#[test]
fn a_path_that_contradicts_itself_ends_the_search() {
    let mut search = Search::new(standard(1_518)).expect("a search");
    let (mut turn, mut trains) = (0u64, 0);
    let verdict = loop {
        match search.step() {
            Step::Done(verdict) => break verdict,
            Step::Train(train) => {
                trains += 1;
                assert!(trains <= MAX_TRAINS, "no end");
                // A pseudo-random half of the trains is congested, whatever their rate.
                turn = turn
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                search.handle(&Digest {
                    received: train.frames,
                    sent_rate: Some(train.rate),
                    received_rate: Some(train.rate),
                    busy_rate: Some(train.rate),
                    slope_ppm: if turn >> 63 == 0 { 0 } else { 20_000 },
                    slope_error_ppm: 0,
                    rise_ns: 0,
                });
            }
        }
    };
    assert!(verdict.trains > 0 && verdict.trains <= MAX_TRAINS);
}

#[test]
fn a_digest_survives_any_stamps() {
    let at = |number, sent_ns, received_ns| Arrival {
        number,
        sent_ns,
        received_ns,
    };
    let mut wild: Vec<Arrival> = (0..1_000u64)
        .map(|n| {
            at(
                n % 700,
                n.wrapping_mul(0x9e37_79b9_7f4a_7c15),
                n.wrapping_mul(0xd134_2543_de82_ef95),
            )
        })
        .collect();
    assert_eq!(digest(&mut wild, FrameBytes::new(1_518)).received, 700);
    assert_eq!(digest(&mut Vec::new(), FrameBytes::new(1_518)), Digest::default());
    let mut even: Vec<Arrival> = (0..1_000u64).map(|n| at(n, n * 1_000, n * 1_010 + 77)).collect();
    let even = digest(&mut even, FrameBytes::new(125));
    assert_eq!((even.slope_ppm, even.slope_error_ppm), (10_000, 0));
    assert_eq!(even.sent_rate, Some(mbps(1_000)));
    assert_eq!(even.received_rate.map(BitRate::bps), Some(990_099_009));
}

#[test]
fn bad_searches_are_refused() {
    let error = |change: fn(&mut CapacityConfig)| {
        let mut config = standard(1_518);
        change(&mut config);
        Search::new(config).err()
    };
    assert_eq!(error(|_| {}), None);
    assert_eq!(error(|c| c.min = mbps(20_000)), Some(CapacityError::Rates));
    assert_eq!(error(|c| c.resolution_ppm = 499), Some(CapacityError::Resolution));
    assert_eq!(
        error(|c| c.frame = FrameBytes::new(63)),
        Some(CapacityError::Frame)
    );
    assert_eq!(
        error(|c| c.train_time = PicoDuration::ZERO),
        Some(CapacityError::Time)
    );
}
