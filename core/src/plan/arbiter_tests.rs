//! The arbiter against holders on a network that delays and loses messages, in virtual time.

use super::*;
use crate::units::{BitRate, PicoDuration, PicoTime, Ratio};
use alloc::vec::Vec;
use proptest::prelude::*;

const FLOOR: u64 = 1_000;
const PLACES: u32 = 8;
const CONFIG: Config = Config {
    ttl: PicoDuration::from_ms(2000),
    guard: PicoDuration::from_ms(20),
    linger: PicoDuration::from_secs(10),
    instance: 7,
};

fn bps(rate: u64) -> BitRate {
    BitRate::from_bps(rate).expect("above zero")
}

fn route(capacity: u64) -> Route {
    Route {
        capacity: bps(capacity),
        headroom: Ratio::new(1, 100).expect("ratio"),
    }
}

fn ms(t: u64) -> PicoTime {
    PicoTime::from_ms(t)
}

/// An arbiter of one route that has waited its first time to live.
fn ready(capacity: u64) -> (Arbiter, RouteId, u64) {
    let mut a = Arbiter::new(CONFIG, ms(0)).expect("config");
    let r = a
        .add_route(route(capacity), bps(FLOOR), PLACES)
        .expect("floors fit");
    assert_eq!(a.next_wakeup(), Some(ms(2020)));
    a.tick(ms(2020));
    assert!(a.is_ready());
    (a, r, 2020)
}

#[test]
fn what_a_lease_gives_up_goes_to_others_once_it_is_known() {
    let (mut a, r, t) = ready(1_000_000);
    let one = a.acquire(r, BitRate::MAX, ms(t)).expect("place");
    let two = a.acquire(r, BitRate::MAX, ms(t)).expect("place");
    assert_eq!(two.rate.bps(), FLOOR);
    a.set_max(one.id, bps(100_000), ms(t)).expect("known");
    let low = a.renew(one.id, one.serial, ms(t)).expect("renewed");
    assert_eq!(low.rate, bps(100_000));
    let waits = a.renew(two.id, two.serial, ms(t)).expect("renewed");
    assert_eq!(waits.rate.bps(), FLOOR, "the old rate may be in use");
    a.renew(one.id, low.serial, ms(t)).expect("it knows");
    let has = a.renew(two.id, waits.serial, ms(t)).expect("renewed");
    assert_eq!(has.rate.bps(), 990_000 - 100_000 - 6 * FLOOR);
    a.release(one.id, ms(t)).expect("known");
    assert_eq!(
        a.set_max(one.id, bps(1), ms(t)),
        Err(PlanError::UnknownLease(one.id))
    );
}

#[test]
fn a_lease_that_shrinks_counts_until_it_is_known() {
    let (mut a, r, t) = ready(1_000_000);
    let usable = 990_000;
    let one = a.acquire(r, BitRate::MAX, ms(t)).expect("place");
    assert_eq!(one.rate.bps(), usable - 7 * FLOOR);
    assert_eq!(a.poll(), None);
    let two = a.acquire(r, BitRate::MAX, ms(t)).expect("place");
    assert_eq!(two.rate.bps(), FLOOR, "no room yet");
    let fair = (usable - 6 * FLOOR) / 2;
    assert_eq!(
        a.poll(),
        Some(LeaseChanged {
            id: one.id,
            rate: bps(fair),
            lapsed: false
        })
    );
    assert_eq!(a.poll(), None);
    // The first is told, but may not have heard it.
    let told = a.renew(one.id, one.serial, ms(t + 1)).expect("lease");
    assert_eq!((told.rate.bps(), told.serial), (fair, one.serial + 1));
    assert_eq!(
        a.renew(two.id, two.serial, ms(t + 2)).expect("lease").rate.bps(),
        FLOOR
    );
    assert_eq!(
        a.renew(one.id, one.serial, ms(t + 3)).expect("lease").rate.bps(),
        fair
    );
    assert_eq!(
        a.renew(two.id, two.serial, ms(t + 4)).expect("lease").rate.bps(),
        FLOOR
    );
    // It shows that it knows: the second may rise.
    a.renew(one.id, told.serial, ms(t + 5)).expect("lease");
    assert_eq!(
        a.poll(),
        Some(LeaseChanged {
            id: two.id,
            rate: bps(fair),
            lapsed: false
        })
    );
    assert_eq!(
        a.renew(two.id, two.serial, ms(t + 6)).expect("lease").rate.bps(),
        fair
    );
    assert_eq!(a.route(r).expect("route").charged_bps, usable);
}

#[test]
fn or_until_it_has_run_out() {
    let (mut a, r, t) = ready(1_000_000);
    let one = a.acquire(r, BitRate::MAX, ms(t)).expect("place");
    let two = a.acquire(r, BitRate::MAX, ms(t)).expect("place");
    // The first is told the lower rate at once and never heard of again.
    a.renew(one.id, one.serial, ms(t + 1000)).expect("lease");
    while a.poll().is_some() {}
    let two = a.renew(two.id, two.serial, ms(t + 1500)).expect("lease");
    assert_eq!(two.rate.bps(), FLOOR);
    assert_eq!(a.next_wakeup(), Some(ms(t + 2020)), "the first grant runs out");
    a.tick(ms(t + 2020));
    assert_eq!(a.poll().map(|c| (c.id, c.rate.bps())), Some((two.id, 492_000)));
    let two = a.renew(two.id, two.serial, ms(t + 2100)).expect("lease");
    // Then the second grant too: the lease lapses and keeps its floor.
    a.tick(ms(t + 3020));
    assert_eq!(
        a.poll().map(|c| (c.id, c.lapsed, c.rate.bps())),
        Some((one.id, true, FLOOR))
    );
    assert_eq!(
        a.renew(two.id, two.serial, ms(t + 3100))
            .expect("lease")
            .rate
            .bps(),
        990_000 - 7 * FLOOR
    );
    // It comes back: what is left is its floor, until the other has come down again.
    assert_eq!(a.renew(one.id, 0, ms(t + 3200)).expect("lease").rate.bps(), FLOOR);
    // Forgotten at last.
    a.tick(ms(t + 30_000));
    assert_eq!(
        a.renew(one.id, 0, ms(t + 30_000)),
        Err(PlanError::UnknownLease(one.id))
    );
    assert_eq!(a.route(r).expect("route").leases, []);
    assert_eq!(a.next_wakeup(), None);
}

#[test]
fn a_new_arbiter_waits() {
    let mut a = Arbiter::new(CONFIG, ms(500)).expect("config");
    let r = a
        .add_route(route(1_000_000), bps(FLOOR), PLACES)
        .expect("floors fit");
    let g = a.acquire(r, bps(5 * FLOOR), ms(600)).expect("place");
    assert_eq!((g.rate.bps(), g.floor.bps()), (FLOOR, FLOOR));
    let g = a.renew(g.id, g.serial, ms(2519)).expect("lease");
    assert_eq!(g.rate.bps(), FLOOR);
    a.tick(ms(2520));
    assert_eq!(
        a.poll(),
        Some(LeaseChanged {
            id: g.id,
            rate: bps(5 * FLOOR),
            lapsed: false
        })
    );
    let old = LeaseId {
        instance: 6,
        number: g.id.number,
    };
    assert_eq!(a.renew(old, 0, ms(2600)), Err(PlanError::UnknownLease(old)));
    assert_eq!(a.renew(g.id, 9, ms(2600)), Err(PlanError::UnknownSerial(g.id)));
}

#[test]
fn a_capacity_that_falls_is_announced_to_all_at_once() {
    let (mut a, r, t) = ready(1_000_000);
    let grants: Vec<Grant> = (0..4)
        .map(|_| a.acquire(r, bps(100_000), ms(t)).expect("place"))
        .collect();
    assert!(
        grants.iter().all(|g| g.rate.bps() == 100_000),
        "all fit: {grants:?}"
    );
    a.set_capacity(r, bps(200_000), ms(t + 10)).expect("floors fit");
    let told: Vec<LeaseChanged> = core::iter::from_fn(|| a.poll()).collect();
    assert_eq!(told.len(), 4);
    assert_eq!(
        told.iter().map(|c| c.rate.bps()).sum::<u64>(),
        198_000 - 4 * FLOOR
    );
    assert!(matches!(a.acquire(r, bps(100_000), ms(t + 11)), Ok(Grant { rate, .. }) if rate.bps() == FLOOR));
    let too_low = a.set_capacity(r, bps(8_000), ms(t + 12));
    assert!(
        matches!(
            too_low,
            Err(PlanError::FloorsExceedCapacity {
                usable_bps: 7_920,
                ..
            })
        ),
        "{too_low:?}"
    );
    assert_eq!(a.route(r).expect("route").route.capacity.bps(), 200_000);
}

#[test]
fn limits_hold() {
    let (mut a, r, t) = ready(1_000_000);
    for _ in 0..PLACES {
        a.acquire(r, BitRate::MAX, ms(t)).expect("place");
    }
    assert_eq!(
        a.acquire(r, BitRate::MAX, ms(t)),
        Err(PlanError::TooManyStreams(r))
    );
    assert_eq!(
        a.acquire(RouteId(1), BitRate::MAX, ms(t)),
        Err(PlanError::UnknownRoute(RouteId(1)))
    );
    assert!(matches!(
        a.add_route(route(1000), bps(1), 1025),
        Err(PlanError::BadConfig(_))
    ));
    assert!(matches!(
        a.add_route(route(1000), bps(1), 0),
        Err(PlanError::BadConfig(_))
    ));
    let zero = Config {
        ttl: PicoDuration::ZERO,
        ..CONFIG
    };
    assert!(matches!(Arbiter::new(zero, ms(0)), Err(PlanError::BadConfig(_))));
}

// ---- holders on a bad network ----------------------------------------------------------------------

#[derive(Clone, Debug, Default)]
struct Holder {
    /// The grant in use and when it ends for the holder; none before the first.
    grant: Option<(Grant, u64)>,
    /// Answers on the way: (arrival, when the request was sent, answer).
    answers: Vec<(u64, u64, Grant)>,
    max: u64,
    active: bool,
}

impl Holder {
    /// What it sends at, in bit/s.
    fn uses(&self, now: u64) -> u64 {
        let Some((g, until)) = self.grant.filter(|_| self.active) else {
            return 0;
        };
        let gone = until + CONFIG.linger.as_ms();
        match now {
            _ if now < until => g.rate.bps(),
            _ if now < gone => g.floor.bps(),
            _ => 0,
        }
    }

    fn deliver(&mut self, now: u64) {
        let ttl = CONFIG.ttl.as_ms();
        self.answers.sort_by_key(|a| a.0);
        while let Some(&(_, sent, g)) = self.answers.first().filter(|a| a.0 <= now) {
            self.answers.remove(0);
            let newer = |(old, _): (Grant, u64)| {
                old.id.instance < g.id.instance
                    || (old.id == g.id && old.serial <= g.serial)
                    || (old.id.instance == g.id.instance && old.id.number < g.id.number)
            };
            if sent + ttl > now && self.grant.is_none_or(newer) {
                let until = match self.grant {
                    Some((old, until)) if old.id == g.id && old.serial == g.serial => until.max(sent + ttl),
                    _ => sent + ttl,
                };
                self.grant = Some((g, until));
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Op {
    /// Holder asks (acquires or renews); the request takes `there` ms and the answer `back` (none: lost).
    Ask {
        holder: usize,
        max: u64,
        there: u64,
        back: Option<u64>,
    },
    Release {
        holder: usize,
        heard: bool,
    },
    Capacity(u64),
    Restart,
    Wait(u64),
}

fn op() -> impl Strategy<Value = Op> {
    let ask = (
        0usize..6,
        500u64..600_000,
        0u64..60,
        prop::option::weighted(0.8, 0u64..1500),
    );
    prop_oneof![
        12 => ask.prop_map(|(holder, max, there, back)| Op::Ask { holder, max, there, back }),
        1 => (0usize..6, any::<bool>()).prop_map(|(holder, heard)| Op::Release { holder, heard }),
        1 => (10_000u64..2_000_000).prop_map(Op::Capacity),
        1 => Just(Op::Restart),
        8 => (0u64..900).prop_map(Op::Wait),
        1 => (2000u64..13_000).prop_map(Op::Wait),
    ]
}

struct World {
    arbiter: Arbiter,
    route: RouteId,
    capacity: u64,
    /// When the capacity was what, for the exception of a fall.
    history: Vec<(u64, u64)>,
    holders: Vec<Holder>,
    now: u64,
}

impl World {
    fn new() -> Self {
        let mut arbiter = Arbiter::new(CONFIG, ms(0)).expect("config");
        let route_id = arbiter
            .add_route(route(1_000_000), bps(FLOOR), PLACES)
            .expect("floors fit");
        let holders = alloc::vec![Holder { active: true, ..Holder::default() }; 6];
        Self {
            arbiter,
            route: route_id,
            capacity: 1_000_000,
            history: alloc::vec![(0, 1_000_000)],
            holders,
            now: 0,
        }
    }

    /// What the route may carry now: after a fall the old capacity until every grant has run out.
    fn bound(&self) -> u64 {
        let since = self.now.saturating_sub((CONFIG.ttl + CONFIG.guard).as_ms());
        let last_before = self.history.iter().rposition(|(t, _)| *t <= since).unwrap_or(0);
        let most = self.history[last_before..]
            .iter()
            .map(|(_, c)| *c)
            .max()
            .expect("not empty");
        route(most).usable_bps()
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let used: u64 = self.holders.iter().map(|h| h.uses(self.now)).sum();
        let sending = self.holders.iter().filter(|h| h.uses(self.now) > 0).count() as u64;
        let reserved = (u64::from(PLACES) - sending) * FLOOR;
        let bound = self.bound();
        prop_assert!(
            used + reserved <= bound,
            "{} + {} > {} at {} ms",
            used,
            reserved,
            bound,
            self.now
        );
        Ok(())
    }

    fn wait(&mut self, time: u64) -> Result<(), TestCaseError> {
        // Every moment at which something arrives is looked at.
        let end = self.now + time;
        loop {
            let arrivals = self.holders.iter().flat_map(|h| h.answers.iter().map(|a| a.0));
            let wakes = self.arbiter.next_wakeup().map(PicoTime::as_ms);
            let next = arrivals
                .chain(wakes)
                .filter(|t| *t > self.now)
                .min()
                .unwrap_or(end)
                .min(end);
            self.now = next;
            self.arbiter.tick(ms(self.now));
            for h in &mut self.holders {
                h.deliver(self.now);
            }
            self.check()?;
            if self.now == end {
                return Ok(());
            }
        }
    }

    fn ask(&mut self, holder: usize, max: u64, there: u64, back: Option<u64>) -> Result<(), TestCaseError> {
        let sent = self.now;
        // What the request says is what the holder knew when it was sent.
        let known = self.holders[holder]
            .grant
            .filter(|(_, until)| sent < until + CONFIG.linger.as_ms());
        self.wait(there)?;
        let now = ms(self.now);
        let renewed = known.and_then(|(g, _)| self.arbiter.renew(g.id, g.serial, now).ok());
        let answer = match renewed {
            Some(g) => g,
            None => {
                self.holders[holder].max = max;
                let floor_only = self.arbiter.acquire(self.route, bps(max), now);
                let Ok(g) = floor_only else { return Ok(()) };
                // A lost answer to an acquisition leaves a lease without a holder; it lapses.
                g
            }
        };
        if let Some(back) = back {
            self.holders[holder].answers.push((self.now + back, sent, answer));
            self.holders[holder].active = true;
        }
        self.check()
    }

    fn run(&mut self, op: Op) -> Result<(), TestCaseError> {
        match op {
            Op::Ask {
                holder,
                max,
                there,
                back,
            } => self.ask(holder, max, there, back)?,
            Op::Release { holder, heard } => {
                let h = &mut self.holders[holder];
                h.active = false;
                h.answers.clear();
                if let Some((g, _)) = h.grant.take()
                    && heard
                {
                    let _ = self.arbiter.release(g.id, ms(self.now));
                }
            }
            Op::Capacity(c) => {
                self.arbiter
                    .set_capacity(self.route, bps(c), ms(self.now))
                    .expect("floors fit");
                self.capacity = c;
                self.history.push((self.now, c));
            }
            Op::Restart => {
                let instance = self.arbiter.route(self.route).map_or(0, |_| self.now) + 8;
                self.arbiter = Arbiter::new(Config { instance, ..CONFIG }, ms(self.now)).expect("config");
                self.route = self
                    .arbiter
                    .add_route(route(self.capacity), bps(FLOOR), PLACES)
                    .expect("floors fit");
            }
            Op::Wait(time) => self.wait(time)?,
        }
        self.check()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    /// Whatever is delayed, lost, restarted or changed: the holders never send more than the route carries
    /// (after a fall: than before, for a time to live). Once all messages arrive again, everyone has its
    /// max-min share, and the shares use all of the route.
    #[test]
    fn never_above_and_in_the_end_fair(ops in prop::collection::vec(op(), 1..80)) {
        let mut w = World::new();
        for op in ops {
            w.run(op)?;
        }
        // Leases that nobody holds are forgotten; then four rounds of renewals without loss.
        let quiet = (CONFIG.linger + CONFIG.ttl + CONFIG.guard).as_ms() + 1;
        w.wait(quiet)?;
        for h in &mut w.holders {
            h.answers.clear();
        }
        for _ in 0..4 {
            for i in 0..w.holders.len() {
                let max = w.holders[i].max.max(500);
                w.ask(i, max, 1, Some(1))?;
            }
            w.wait(10)?;
        }
        let view = w.arbiter.route(w.route).expect("route");
        // A lease that can use less than the floor is counted at the floor.
        let demand = |l: &LeaseView| Demand { max: Some(l.max.max(bps(FLOOR))), weight: 1 };
        let demands: Vec<Demand> = view.leases.iter().map(demand).collect();
        prop_assert_eq!(demands.len(), w.holders.len());
        let usable = route(w.capacity).usable_bps() - (u64::from(PLACES) - demands.len() as u64) * FLOOR;
        let shares = max_min(usable, &demands);
        let fair: Vec<u64> = shares.iter().zip(&view.leases).map(|(r, l)| l.max.bps().min(*r)).collect();
        let granted: Vec<u64> = view.leases.iter().map(|l| l.rate.bps()).collect();
        prop_assert_eq!(&granted, &fair);
        let used: u64 = w.holders.iter().map(|h| h.uses(w.now)).sum();
        prop_assert_eq!(used, fair.iter().sum::<u64>());
        prop_assert!(shares.iter().all(|r| *r >= FLOOR));
    }
}
