//! `gfarm-replicate --sim`: the plan and its streams at full size, in virtual time.
//!
//! ```text
//!   jobs ─> core::replica::Planner ──Start──> pull ──pace──> core::tcp over core::wan ──> bytes of a file
//!              ^          │                   ^  │                                          │
//!              │         most                 │  └ used                                     │
//!              │          v                lease v                                          │
//!              │      core::plan::Arbiter ─────────                                         │
//!              └──────────────────────────── ended <────────────────────────────────────────┘
//! ```
//!
//! Planner, arbiter and their rules are the metadata service's own ([`kuroshio_metad::rules`], with the configuration of
//! the live run). The services around them are threads and tasks on the wall clock and cannot run in virtual time; what nodes
//! do is modelled here, as `kuroshio-node` does it:
//!
//! - a heartbeat is answered when a lease of its node has changed, else after [`HEARTBEAT_MS`]; the next one follows at once
//!   and tells the serial that everything under way has; the control plane's network has no delay;
//! - a pull that has a rate connects (TCP and TLS, a round trip each) and asks; the source hears of a rate with the next
//!   request, half a round trip after it was told;
//! - everything under way has the new rate a round trip and [`AHEAD`] after that;
//! - a transfer has ended when its last byte is there.
//!
//! Not modelled: disks, the time of processors, the kernel's pacing of whole trains (segments leave one by one, each at its
//! time), request headers and TLS records (0.4 % of the payload).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::SystemTime;

use kuroshio_core::plan::{Arbiter, LeaseId, Route, RouteId};
use kuroshio_core::replica::{
    Change, DiskLimits, Ended, FragmentId, JobId, JobItem, NodeId, Planner, SiteId, Transfer, TransferId,
};
use kuroshio_core::sim::{FlowId, Network, Observer, StageId, TcpFlow};
use kuroshio_core::tcp::cc::Algorithm;
use kuroshio_core::tcp::{IpVersion, Pacing, Profile, ReceiverConfig, SenderConfig, Sizes};
use kuroshio_core::units::{BitRate, FrameBytes, PicoDuration, PicoTime, Ratio};
use kuroshio_core::wan::LinkConfig;
use kuroshio_core::wire::LineRate;
use kuroshio_lab::result::RunResult;
use kuroshio_metad::{HEARTBEAT_MS, rules};
use kuroshio_node::AHEAD;
use serde_json::json;

use super::setup::{Counts, FILES, MTU, ROUTES, Run, Size, check, pairs};
use crate::error::Failure;
use crate::verb::demo::share::Stamp;

/// Time between two looks at plan and network; bytes are counted in bins of it.
const STEP: PicoDuration = PicoDuration::from_ms(1);
/// Longest run in virtual time.
const LIMIT_S: u64 = 600;
/// The receivers' window: it limits nothing.
const WINDOW: u64 = 256 << 20;
/// Queue of a host's card, bytes, as in the topology file.
const PORT_QUEUE: FrameBytes = FrameBytes::new(64 << 20);
/// Priority of `fs rep` without `--priority`.
const PRIORITY: i32 = 10;

fn failed(e: impl std::fmt::Display) -> Failure {
    Failure::failed(format!("lab run gfarm-replicate --sim: {e}"))
}

/// A pair of nodes: its ways through the network, there and back.
struct Pair {
    route: usize,
    forward: Vec<StageId>,
    backward: Vec<StageId>,
    one_way: PicoDuration,
    /// When its heartbeat is answered at the latest.
    due: PicoTime,
}

/// A transfer as its destination carries it out.
struct Pull {
    pair: usize,
    bytes: u64,
    lease: LeaseId,
    /// The last grant: bit/s and serial.
    told: (u64, u64),
    /// What the heartbeat that waits has told of `used`.
    reported: u64,
    flow: Option<FlowId>,
    /// What the source sends at, bit/s.
    sends_bps: u64,
    /// Rates on their way to the source.
    coming: VecDeque<(PicoTime, BitRate)>,
    /// Serials, and from when on everything under way has them.
    settling: VecDeque<(PicoTime, u64)>,
    used: u64,
}

impl Pull {
    /// The newest serial that everything under way has.
    fn used(&mut self, now: PicoTime) -> u64 {
        while let Some((_, serial)) = self.settling.front().filter(|(at, _)| *at <= now).copied() {
            self.settling.pop_front();
            self.used = serial;
        }
        // Of one that has asked for nothing yet nothing is under way.
        if self.flow.is_some() {
            self.used
        } else {
            self.told.1
        }
    }
}

/// Frame bytes that arrive, by route and step.
#[derive(Default)]
struct Bins {
    route_of: Vec<usize>,
    bytes: Vec<Vec<u64>>,
}

impl Observer for Bins {
    fn arrived(&mut self, flow: FlowId, at: PicoTime, frame: FrameBytes, _payload: u32) {
        let route = self.route_of.get(flow.0 as usize).copied();
        let Some(bins) = route.and_then(|r| self.bytes.get_mut(r)) else {
            return;
        };
        let bin = usize::try_from(at.as_ps() / STEP.as_ps()).unwrap_or(usize::MAX);
        if bin < usize::try_from(LIMIT_S).unwrap_or(0) * 1_000 + 1 {
            bins.resize(bins.len().max(bin + 1), 0);
            bins[bin] += frame.get();
        }
    }
}

/// Everything that moves.
struct World {
    size: Size,
    sizes: Sizes,
    net: Network,
    links: Vec<StageId>,
    bins: Bins,
    pairs: Vec<Pair>,
    planner: Planner,
    arbiter: Arbiter,
    routes: Vec<(RouteId, Route)>,
    pulls: BTreeMap<TransferId, Pull>,
    whole: u64,
    finished: usize,
    /// Steps in which sources sent above what a route's plan gives out.
    above: u64,
}

impl World {
    fn new(size: Size) -> Result<Self, Failure> {
        let config = size.config();
        let headroom: Ratio = config.replication.headroom().map_err(failed)?;
        let mut planner = Planner::new(rules::planning(&config), PicoTime::ZERO);
        let mut arbiter = Arbiter::new(rules::leasing(1), PicoTime::ZERO).map_err(failed)?;
        let mut net = Network::new();
        let (mut routes, mut links, mut ways) = (Vec::new(), Vec::new(), Vec::new());
        for (r, (.., delay_us, _)) in ROUTES.iter().enumerate() {
            let capacity = BitRate::new(size.capacity_bps(r)).ok_or_else(|| failed("a route of nothing"))?;
            let route = Route { capacity, headroom };
            let (floor, streams) = rules::floors();
            routes.push((arbiter.add_route(route, floor, streams).map_err(failed)?, route));
            planner.set_route(us(r), jp(r), Some(route));
            let link = LinkConfig {
                capacity,
                wire: None,
                one_way_delay: PicoDuration::from_us(u64::from(*delay_us)),
                queue_limit: FrameBytes::new(size.queue_bytes(r)),
                loss: Ratio::ZERO,
            };
            let there = net.add_link(link, 1).map_err(failed)?;
            ways.push((there, net.add_link(link, 2).map_err(failed)?, link.one_way_delay));
            links.push(there);
        }
        let wire = LineRate::new(BitRate::new(size.wire_bps()).unwrap_or(BitRate::MIN));
        let mut list = Vec::new();
        for (p, (route, ..)) in pairs().enumerate() {
            let (there, back, one_way) = ways[route];
            let mut port = || net.add_port(wire, PORT_QUEUE).map_err(failed);
            list.push(Pair {
                route,
                forward: vec![port()?, there, port()?],
                backward: vec![port()?, back, port()?],
                one_way,
                due: PicoTime::ZERO,
            });
            for (node, site) in [(source(p), us(route)), (target(p), jp(route))] {
                let set = planner.set_node(node, site, DiskLimits::default());
                set.map_err(failed)?;
            }
        }
        Ok(Self {
            size,
            sizes: Sizes::of_mtu(MTU, IpVersion::V4).ok_or_else(|| failed("the MTU is too small"))?,
            net,
            links,
            bins: Bins {
                route_of: Vec::new(),
                bytes: vec![Vec::new(); ROUTES.len()],
            },
            pairs: list,
            planner,
            arbiter,
            routes,
            pulls: BTreeMap::new(),
            whole: 0,
            finished: 0,
            above: 0,
        })
    }

    /// A job for each file, as `fs rep -D` makes them; how many.
    fn add_jobs(&mut self) -> Result<usize, Failure> {
        let mut number = 0;
        for p in 0..self.pairs.len() {
            for _ in 0..FILES {
                self.add_job(number, p, self.size.file_bytes(self.pairs[p].route))?;
                number += 1;
            }
        }
        Ok(usize::try_from(number).unwrap_or(usize::MAX))
    }

    fn add_job(&mut self, number: u64, pair: usize, bytes: u64) -> Result<(), Failure> {
        let item = JobItem {
            fragment: FragmentId {
                inode: number,
                ..FragmentId::default()
            },
            range: 0..bytes,
            sources: vec![source(pair)],
            to: target(pair),
        };
        let weight = rules::weight_of(PRIORITY);
        self.planner
            .add_job(JobId(number), weight, vec![item])
            .map_err(failed)
    }

    /// Runs until so many jobs have ended; when.
    fn run(&mut self, jobs: usize, from: PicoTime) -> Result<PicoTime, Failure> {
        let mut now = from;
        while self.finished < jobs {
            if now > PicoTime::ZERO + PicoDuration::from_secs(LIMIT_S) {
                return Err(failed(format!("not ended in {LIMIT_S} s of virtual time")));
            }
            now = self.step(now)?;
        }
        Ok(now)
    }

    /// Decides and tells at `now`, then lets the network run; until when.
    fn step(&mut self, now: PicoTime) -> Result<PicoTime, Failure> {
        let nudged = self.plan(now)?;
        self.beat(&nudged, now)?;
        self.paces(now)?;
        self.look();
        let next = now + STEP;
        self.net.run_until(next, &mut self.bins);
        self.arrivals(next);
        Ok(next)
    }

    /// Carries out what planner and arbiter have decided; the pairs whose heartbeats are answered now.
    fn plan(&mut self, now: PicoTime) -> Result<BTreeSet<usize>, Failure> {
        let mut nudged = BTreeSet::new();
        while let Some(change) = self.planner.poll(now) {
            match change {
                Change::Start(transfer) => {
                    nudged.insert(self.start(&transfer, now)?);
                }
                Change::Rate(id, rate) => {
                    if let Some(pull) = self.pulls.get(&id) {
                        let most = rate.unwrap_or(BitRate::MIN);
                        self.arbiter.set_max(pull.lease, most, now).map_err(failed)?;
                    }
                }
                Change::Stop(id) => return Err(failed(format!("transfer {} was called off", id.0))),
                Change::Finished(job) => {
                    self.finished += 1;
                    self.planner.cancel(job).map_err(failed)?;
                }
            }
        }
        self.arbiter.tick(now);
        while let Some(changed) = self.arbiter.poll() {
            let of = self.pulls.values().find(|p| p.lease == changed.id);
            nudged.extend(of.map(|p| p.pair));
        }
        Ok(nudged)
    }

    fn start(&mut self, t: &Transfer, now: PicoTime) -> Result<usize, Failure> {
        let pair = (t.to.0 / 2) as usize;
        let route = self.pairs.get(pair).map_or(0, |p| p.route);
        let grant = self
            .arbiter
            .acquire(self.routes[route].0, t.rate, now)
            .map_err(failed)?;
        let pull = Pull {
            pair,
            bytes: t.range.end - t.range.start,
            lease: grant.id,
            told: (0, 0),
            reported: 0,
            flow: None,
            sends_bps: 0,
            coming: VecDeque::new(),
            settling: VecDeque::new(),
            used: 0,
        };
        self.pulls.insert(t.id, pull);
        Ok(pair)
    }

    /// Answers heartbeats that are due or of which a lease has changed.
    fn beat(&mut self, nudged: &BTreeSet<usize>, now: PicoTime) -> Result<(), Failure> {
        for pair in 0..self.pairs.len() {
            if self.pairs[pair].due > now && !nudged.contains(&pair) {
                continue;
            }
            // By what the heartbeat that waited has told; the next ones follow at once while there is news.
            self.renew(pair, now)?;
            loop {
                for pull in self.pulls.values_mut().filter(|p| p.pair == pair) {
                    pull.reported = pull.used(now);
                }
                if !self.renew(pair, now)? {
                    break;
                }
            }
            self.pairs[pair].due = now + PicoDuration::from_ms(HEARTBEAT_MS);
        }
        Ok(())
    }

    /// Renews the leases of a pair's pulls; whether one of them has another rate.
    fn renew(&mut self, pair: usize, now: PicoTime) -> Result<bool, Failure> {
        let mut news = false;
        let ids: Vec<TransferId> = self
            .pulls
            .iter()
            .filter(|(_, p)| p.pair == pair)
            .map(|(t, _)| *t)
            .collect();
        for id in ids {
            let Some(pull) = self.pulls.get_mut(&id) else {
                continue;
            };
            let grant = self
                .arbiter
                .renew(pull.lease, pull.reported, now)
                .map_err(failed)?;
            let told = (grant.rate.bps(), grant.serial);
            if std::mem::replace(&mut pull.told, told) == told {
                continue;
            }
            news = true;
            if grant.rate.bps() > rules::FLOOR_BPS {
                self.tell(id, grant.rate, now)?;
            } else if pull.flow.is_some() {
                return Err(failed("a transfer under way fell to its floor"));
            }
        }
        Ok(news)
    }

    /// A pull hears of its rate: connects, or asks for the next pieces at it.
    fn tell(&mut self, id: TransferId, rate: BitRate, now: PicoTime) -> Result<(), Failure> {
        let Some(pull) = self.pulls.get_mut(&id) else {
            return Ok(());
        };
        let pair = &self.pairs[pull.pair];
        let rtt = pair.one_way.saturating_mul(2);
        if pull.flow.is_some() {
            pull.coming.push_back((now + pair.one_way, rate));
            pull.settling
                .push_back((now + rtt + PicoDuration::from_std(AHEAD), pull.told.1));
            return Ok(());
        }
        let sender = SenderConfig {
            // Its own handshake takes one of the two and a half round trips until the first byte leaves.
            start: now + rtt + pair.one_way,
            source_bytes: Some(pull.bytes),
            pacing: Pacing::Rate(rate),
            seed: id.0,
            ..SenderConfig::new(Profile::MODERN, Algorithm::Cubic, self.sizes)
        };
        let receiver = ReceiverConfig {
            profile: Profile::MODERN,
            window: WINDOW,
            read_rate: None,
            memory: None,
            mss: self.sizes.mss,
        };
        let flow = TcpFlow {
            sender,
            receiver,
            forward: pair.forward.clone(),
            backward: pair.backward.clone(),
        };
        pull.flow = Some(self.net.add_tcp(flow).map_err(failed)?);
        pull.sends_bps = rate.bps();
        pull.used = pull.told.1;
        self.bins.route_of.push(pair.route);
        Ok(())
    }

    /// Sources hear of rates.
    fn paces(&mut self, now: PicoTime) -> Result<(), Failure> {
        for pull in self.pulls.values_mut() {
            while let Some((_, rate)) = pull.coming.front().filter(|(at, _)| *at <= now).copied() {
                pull.coming.pop_front();
                if let Some(flow) = pull.flow {
                    self.net.set_pace(flow, rate).map_err(failed)?;
                    pull.sends_bps = rate.bps();
                }
            }
        }
        Ok(())
    }

    /// Counts steps in which the sources of a route send at more than its plan gives out.
    fn look(&mut self) {
        for (r, (_, route)) in self.routes.iter().enumerate() {
            let mine = self.pulls.values().filter(|p| self.pairs[p.pair].route == r);
            let sum: u64 = mine.map(|p| p.sends_bps).sum();
            self.above += u64::from(sum > route.usable_bps());
        }
    }

    /// Ends the transfers whose last byte is there.
    fn arrivals(&mut self, now: PicoTime) {
        let there = |pull: &Pull| {
            let receiver = pull.flow.and_then(|f| self.net.receiver(f));
            receiver.is_some_and(|r| r.stats().bytes >= pull.bytes)
        };
        let ended: Vec<TransferId> = self
            .pulls
            .iter()
            .filter(|(_, p)| there(p))
            .map(|(t, _)| *t)
            .collect();
        for id in ended {
            if let Some(pull) = self.pulls.remove(&id) {
                // One that ran out meanwhile gives nothing back.
                let _ = self.arbiter.release(pull.lease, now);
                self.planner.ended(id, Ended::Done, now);
                self.whole += 1;
            }
        }
    }

    /// Frames that arrived, a stamp for each step, by route.
    fn stamps(&self) -> Vec<Vec<Stamp>> {
        let stamp = |(n, bytes): (usize, &u64)| Stamp {
            at_ns: (n as u64 + 1) * STEP.as_ns(),
            frame_bytes: *bytes,
        };
        let of_route = |bins: &Vec<u64>| {
            bins.iter()
                .enumerate()
                .filter(|(_, b)| **b > 0)
                .map(stamp)
                .collect()
        };
        self.bins.bytes.iter().map(of_route).collect()
    }
}

const fn node(pair: usize, side: u32) -> NodeId {
    // A handful of pairs.
    NodeId(pair as u32 * 2 + side)
}

const fn source(pair: usize) -> NodeId {
    node(pair, 1)
}

const fn target(pair: usize) -> NodeId {
    node(pair, 0)
}

const fn us(route: usize) -> SiteId {
    SiteId(route as u32 * 2)
}

const fn jp(route: usize) -> SiteId {
    SiteId(route as u32 * 2 + 1)
}

/// Runs the plan and its streams at a size.
pub fn run(size: Size) -> Result<RunResult, Failure> {
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let started_unix_s = since_epoch.map_or(0, |d| d.as_secs());
    let mut world = World::new(size)?;
    let jobs = world.add_jobs()?;
    let ended = world.run(jobs, PicoTime::ZERO)?;
    let (all, mut routes) = size.shares(&world.stamps())?;
    for (route, link) in routes.iter_mut().zip(&world.links) {
        let stage = world.net.counters(*link).unwrap_or_default();
        route["queued_max_bytes"] = json!(stage.queued_max.get());
        route["dropped_frames"] = json!(stage.dropped().frames);
    }
    let totals = world.net.totals();
    let dropped = totals.dropped.frames;
    let kept = totals.emitted.frames + totals.duplicated.frames
        == totals.delivered.frames + totals.dropped.frames + totals.held.frames;
    let seconds = ended.as_ms() as f64 / 1e3;
    let measured = json!({
        "frame_bps": all.rate_bps, "share_of_capacity": all.of_capacity, "routes": routes, "dropped_frames": dropped,
        "seconds": seconds, "files": world.whole, "frames_emitted": totals.emitted.frames,
        "steps_above_plan": world.above,
    });
    Ok(size.result(Run {
        mode: "sim",
        started_unix_s,
        disturbed_by: String::new(),
        tcp: "CUBIC of the profile `modern`, paced by the segment",
        measured,
        counts: Counts {
            of_capacity: all.of_capacity,
            dropped,
            whole: world.whole,
        },
        further: vec![
            check(
                "the plan is kept",
                format!("{} ms above it", world.above),
                "the sources of a route never send at more than its capacity less the headroom in sum, looked at each ms",
                world.above == 0,
            ),
            check(
                "frames conserved",
                format!("{} frames emitted", totals.emitted.frames),
                "emitted + duplicated = delivered + dropped + held",
                kept && totals.emitted.frames > 0,
            ),
        ],
        notes: vec![
            "Planner, arbiter and their rules are the metadata service's own code; nodes are modelled: heartbeats, the way of a \
             rate to its source, what is under way. The services themselves run on the wall clock only."
                .into(),
            "No disks, no processors' time, no headers of requests and TLS records.".into(),
        ],
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Quick to simulate, with queues as long as those of the whole in time.
    const SMALL: Size = Size {
        divisor: 20,
        fill_s: 12,
    };

    #[test]
    fn the_plan_fills_the_routes_without_a_drop() {
        let result = run(SMALL).expect("runs");
        for c in &result.checks {
            assert!(c.ok, "{}: {} [{}]", c.name, c.value, c.bound);
        }
    }

    /// Half of what the plan gives: the look notices.
    #[test]
    fn senders_above_their_plan_are_noticed() {
        let mut world = World::new(SMALL).expect("a network");
        for (_, route) in &mut world.routes {
            route.headroom = Ratio::new(1, 2).expect("a ratio");
        }
        let jobs = world.add_jobs().expect("jobs");
        world.run(jobs, PicoTime::ZERO).expect("ends");
        assert!(world.above > 0);
    }

    /// Who comes later gets its part only when those before have come down, and they take it again when it has gone.
    #[test]
    fn a_route_is_never_above_its_plan_while_jobs_come_and_go() {
        const CHICAGO: usize = 3;
        let mut world = World::new(SMALL).expect("a network");
        let whole = SMALL.file_bytes(1) * 2;
        world.add_job(0, CHICAGO, whole).expect("a job");
        let mut now = PicoTime::ZERO;
        while now < PicoTime::from_ms(7_000) {
            now = world.step(now).expect("runs");
        }
        let sends = |world: &World| world.pulls.values().map(|p| p.sends_bps).collect::<Vec<_>>();
        let usable = world.routes[1].1.usable_bps();
        let one = sends(&world);
        assert!(one.len() == 1 && one[0] > usable - 2_000, "{one:?} of {usable}");
        world.add_job(1, CHICAGO, whole / 8).expect("a job");
        while now < PicoTime::from_ms(10_000) {
            now = world.step(now).expect("runs");
        }
        let two = sends(&world);
        assert!(
            two.len() == 2 && two.iter().all(|bps| bps.abs_diff(usable / 2) < 2_000),
            "{two:?}"
        );
        let mut last = Vec::new();
        while world.finished < 2 {
            last = Some(sends(&world)).filter(|s| !s.is_empty()).unwrap_or(last);
            now = world.step(now).expect("runs");
        }
        assert!(last.len() == 1 && last[0] > usable - 2_000, "{last:?}");
        assert_eq!(
            (world.above, world.net.totals().dropped.frames, world.whole),
            (0, 0, 2)
        );
    }
}
