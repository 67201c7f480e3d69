//! Replication traffic: which transfers run, from where, over how many streams, how fast.
//!
//! ```text
//!   jobs ──items──> Planner ──Start──> order to the destination node ──> it pulls, piece by piece
//!                     │  ^                                                   │
//!                 rate│  └─────────────── ended ─────────────────────────────┤
//!                     v                                                      │
//!                  Arbiter of the routes ──lease──> pace in each heartbeat's answer
//!                                      <──renewed with the serial in use──── heartbeat
//! ```
//!
//! The planner's rate is the most that a transfer asks of its route; the arbiter's lease is what it gets now. A pull
//! without a lease asks its source for nothing, so the floor is 1 bit/s. A transfer that was called off keeps its charge until
//! its lease has run out, one that has ended gives it back at once.
//!
//! Beside other metadata services the routes are shared by the catalog: a service plans a route only with the part of
//! its row that it holds a lease of (`ways`).

mod ways;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kuroshio_catalog as cat;
use kuroshio_core::plan::{Arbiter, Config as Leasing, LeaseId};
use kuroshio_core::replica::{
    Change, Ended, JobId, JobItem, NodeId, Planner, PlannerConfig, SiteId, Transfer, TransferId, split,
};
use kuroshio_core::units::{BitRate, PicoDuration, PicoTime, Ratio};
use kuroshio_proto::{object_path, v1};
use tokio::sync::{Notify, oneshot, watch};

use self::ways::{Way, hold, release};
use crate::config::Config;
use crate::node::Known;
use crate::place::{Names, fragment_id};
use crate::server::Inner;

/// How long a rate holds without another heartbeat.
const TTL: Duration = Duration::from_secs(3);
/// Drift of clocks over [`TTL`].
const GUARD: Duration = Duration::from_millis(30);
/// How long a lease that ran out keeps its place.
const LINGER: Duration = Duration::from_secs(1);
/// Rate of a transfer without a lease, bit/s: it sends nothing.
const FLOOR_BPS: u64 = 1;
/// No further transfer begins where less than this is left, bit/s.
const LEAST_BPS: u64 = 100_000;
/// Times that an item is tried, each time at the next source.
const ATTEMPTS: u32 = 4;
/// Rest of an item that failed.
const RETRY: Duration = Duration::from_millis(500);
/// Sources of one object at once.
const SOURCES: usize = 4;
/// How often it is looked whether nodes are there and routes are held.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// How a job's traffic ended.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    /// The new copy is whole, verified and durable.
    Done,
    /// It is not; `suspects` gave bytes that are not what the catalog knows, or may have.
    Failed {
        /// Why.
        why: String,
        /// Nodes whose copies are to be looked at.
        suspects: Vec<String>,
    },
}

/// One object for one node.
pub struct Wanted {
    /// The job's number.
    pub job: u64,
    /// What.
    pub fragment: cat::Fragment,
    /// Where to.
    pub destination: String,
    /// Nodes with a copy, best first, and whether each is as near as the first.
    pub sources: Vec<(String, bool)>,
    /// Share relative to other jobs, from 1.
    pub weight: u32,
    /// What the node keeps of the file beside the copy.
    pub file: v1::FileFacts,
}

struct Work {
    wanted: Wanted,
    done_bytes: u64,
    complete: bool,
    why: String,
    used: BTreeSet<String>,
    ways: BTreeSet<(SiteId, SiteId)>,
    ended: Option<oneshot::Sender<End>>,
}

struct Leased {
    id: LeaseId,
    /// Serials that the node was told begin here: they rise over leases that were forgotten.
    base: u64,
}

struct Run {
    job: u64,
    order: u64,
    bytes: u64,
    to: String,
    source: String,
    way: (SiteId, SiteId),
    lease: Option<Leased>,
    /// By the planner; `None`: no limit.
    rate: Option<BitRate>,
    told: v1::Pace,
}

struct State {
    planner: Planner,
    arbiter: Arbiter,
    names: Names,
    /// Address and pin of nodes' data services.
    places: HashMap<String, (String, String)>,
    ways: BTreeMap<(SiteId, SiteId), Way>,
    jobs: BTreeMap<u64, Work>,
    running: BTreeMap<TransferId, Run>,
}

/// All transfers of this service.
pub struct Traffic {
    state: Mutex<State>,
    epoch: Instant,
    wake: Notify,
    headroom: Ratio,
    split_bytes: u64,
}

/// Progress of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Payload bytes.
    pub bytes: u64,
    /// Given now, frame level; 0: nothing, or no limit.
    pub rate_bps: u64,
    /// Transfers that run.
    pub transfers: u32,
}

impl Traffic {
    /// Nothing moves yet. `instance` differs from start to start.
    pub fn new(config: &Config, instance: u64) -> Self {
        let replication = &config.replication;
        let planner = PlannerConfig {
            max_running: config.timing.transfers as usize,
            stream_max: replication.stream_max(),
            max_streams: replication.streams,
            min_rate: BitRate::new(LEAST_BPS).unwrap_or(BitRate::MIN),
            max_attempts: ATTEMPTS,
            retry_after: PicoDuration::from_std(RETRY),
            ..PlannerConfig::default()
        };
        let leasing = Leasing {
            ttl: PicoDuration::from_std(TTL),
            guard: PicoDuration::from_std(GUARD),
            linger: PicoDuration::from_std(LINGER),
            instance,
        };
        let arbiter = Arbiter::new(leasing, PicoTime::ZERO);
        Self {
            state: Mutex::new(State {
                planner: Planner::new(planner, PicoTime::ZERO),
                // Refused only for a time to live of zero.
                arbiter: arbiter.unwrap_or_else(|e| unreachable!("{e}")),
                names: Names::default(),
                places: HashMap::new(),
                ways: BTreeMap::new(),
                jobs: BTreeMap::new(),
                running: BTreeMap::new(),
            }),
            epoch: Instant::now(),
            wake: Notify::new(),
            headroom: replication.headroom().unwrap_or(Ratio::ZERO),
            split_bytes: replication.split_bytes().unwrap_or(u64::MAX),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> PicoTime {
        PicoTime::ZERO + PicoDuration::from_std(self.epoch.elapsed())
    }

    /// Begins to move an object between `nodes`, over `routes` as the catalog has them now. The receiver hears how it
    /// ended.
    ///
    /// # Errors
    /// What the planner says.
    pub fn add(
        &self,
        wanted: Wanted,
        nodes: &[Known],
        routes: &[cat::Route],
    ) -> Result<oneshot::Receiver<End>, String> {
        // A pair of sites that is not known to be a route has no limit.
        self.know(routes);
        let mut state = self.state();
        let state = &mut *state;
        for known in nodes {
            let (id, site) = (
                state.names.node(&known.node.name),
                state.names.site(&known.node.site),
            );
            let set = state.planner.set_node(id, site, known.disk);
            set.map_err(|e| e.to_string())?;
            let place = (known.node.address.clone(), known.node.pin.clone());
            state.places.insert(known.node.name.clone(), place);
        }
        let items = self.items(state, &wanted);
        let site_of = |name: &str| {
            nodes
                .iter()
                .find(|n| n.node.name == name)
                .map(|n| n.node.site.as_str())
        };
        let mut ways = BTreeSet::new();
        if let Some(to) = site_of(&wanted.destination) {
            let to = state.names.site(to);
            for from in wanted.sources.iter().filter_map(|(s, _)| site_of(s)) {
                ways.insert((state.names.site(from), to));
            }
        }
        let id = JobId(wanted.job);
        state
            .planner
            .add_job(id, wanted.weight, items)
            .map_err(|e| e.to_string())?;
        let (ended, ends) = oneshot::channel();
        let work = Work {
            wanted,
            done_bytes: 0,
            complete: false,
            why: String::new(),
            used: BTreeSet::new(),
            ways,
            ended: Some(ended),
        };
        state.jobs.insert(id.0, work);
        self.wake.notify_one();
        Ok(ends)
    }

    /// The parts of an object: one, or one for each of several equally near sources.
    fn items(&self, state: &mut State, wanted: &Wanted) -> Vec<JobItem> {
        let to = state.names.node(&wanted.destination);
        let all: Vec<NodeId> = wanted.sources.iter().map(|(s, _)| state.names.node(s)).collect();
        let near: Vec<(NodeId, u64)> = wanted
            .sources
            .iter()
            .zip(&all)
            .filter(|((_, near), _)| *near)
            .map(|(_, id)| (*id, 1))
            .take(SOURCES)
            .collect();
        let fragment = fragment_id(wanted.fragment.object);
        let item = |range, first: NodeId| JobItem {
            fragment,
            range,
            sources: std::iter::once(first)
                .chain(all.iter().copied().filter(|s| *s != first))
                .collect(),
            to,
        };
        let size = wanted.fragment.size;
        let parts = split(size, self.split_bytes, &near);
        match all.first() {
            Some(first) if parts.len() < 2 => vec![item(0..size, *first)],
            _ => parts.into_iter().map(|p| item(p.range, p.node)).collect(),
        }
    }

    /// Ends a job's traffic: what runs is called off. Nobody hears of it.
    pub fn cancel(&self, job: u64) {
        let mut state = self.state();
        state.jobs.remove(&job);
        // A job that is not known has ended.
        let _ = state.planner.cancel(JobId(job));
        self.wake.notify_one();
    }

    /// How far a job is.
    pub fn progress(&self, inner: &Inner, job: u64) -> Progress {
        let state = self.state();
        let runs = state.running.values().filter(|r| r.job == job);
        let mut progress = Progress {
            bytes: state.jobs.get(&job).map_or(0, |w| w.done_bytes),
            ..Progress::default()
        };
        for run in runs {
            progress.bytes += inner.registry.order_bytes(run.order).min(run.bytes);
            progress.rate_bps = progress.rate_bps.saturating_add(run.told.rate_bps);
            progress.transfers += 1;
        }
        progress
    }

    /// What the routes' transfers are given: bit/s at frame level and how many, by sites.
    pub fn granted(&self) -> HashMap<(String, String), (u64, u64)> {
        let state = self.state();
        let mut out = HashMap::new();
        for run in state.running.values() {
            let name = |site| state.names.site_name(site).to_owned();
            let sum: &mut (u64, u64) = out.entry((name(run.way.0), name(run.way.1))).or_default();
            sum.0 = sum.0.saturating_add(run.told.rate_bps);
            sum.1 += 1;
        }
        out
    }

    /// How fast a node's pulls may be from now on; and whether that is news to it.
    pub fn paces(&self, node: &str, orders: &[v1::OrderProgress]) -> (Vec<v1::Pace>, bool) {
        let now = self.now();
        let mut state = self.state();
        let State {
            arbiter,
            running,
            ways,
            ..
        } = &mut *state;
        let mut news = false;
        let mut paces = Vec::new();
        for run in running.values_mut().filter(|r| r.to == node) {
            let used = orders.iter().find(|o| o.order == run.order).map(|o| o.serial);
            let pace = run.pace(arbiter, ways, used, now);
            news |= pace != run.told;
            run.told = pace;
            paces.push(pace);
        }
        drop(state);
        if news {
            // Others may have more now.
            self.wake.notify_one();
        }
        (paces, news)
    }

    /// A transfer has ended; `None`: its node has begun anew or is gone.
    fn over(&self, transfer: TransferId, done: Option<&v1::OrderDoneRequest>) {
        let now = self.now();
        let mut state = self.state();
        let Some(run) = state.running.remove(&transfer) else {
            return;
        };
        if let (Some(lease), Some(_)) = (&run.lease, done) {
            // Its bytes have arrived or are given up: nothing is under way.
            let _ = state.arbiter.release(lease.id, now);
        }
        let ok = done.is_some_and(|d| d.ok);
        let Some(work) = state.jobs.get_mut(&run.job) else {
            return;
        };
        work.used.insert(run.source.clone());
        match done {
            Some(d) if d.ok => {
                work.done_bytes += run.bytes;
                work.complete |= d.complete;
            }
            Some(d) => work.why = format!("node {}: {}", run.to, d.text),
            None => work.why = format!("node {} has gone or begun anew", run.to),
        }
        if done.is_some_and(|d| d.damaged) {
            // All of it is given up by the node.
            let _ = state.planner.cancel(JobId(run.job));
            state.finish(run.job, true);
        } else {
            state
                .planner
                .ended(transfer, if ok { Ended::Done } else { Ended::Failed }, now);
        }
        drop(state);
        self.wake.notify_one();
    }
}

impl State {
    /// Tells whoever waits for a job how its traffic ended.
    fn finish(&mut self, job: u64, damaged: bool) {
        let Some(mut work) = self.jobs.remove(&job) else {
            return;
        };
        let end = if work.complete && !damaged {
            End::Done
        } else {
            if work.why.is_empty() {
                work.why = "a part that was there has gone again".into();
            }
            End::Failed {
                why: work.why,
                suspects: if damaged {
                    work.used.into_iter().collect()
                } else {
                    Vec::new()
                },
            }
        };
        if let Some(ended) = work.ended.take() {
            // Whoever waited may have given up.
            let _ = ended.send(end);
        }
    }
}

impl Run {
    /// What its node is told now. `used`: the serial of everything that it has under way, if it said.
    fn pace(
        &mut self,
        arbiter: &mut Arbiter,
        ways: &BTreeMap<(SiteId, SiteId), Way>,
        used: Option<u64>,
        now: PicoTime,
    ) -> v1::Pace {
        let Some(lease) = &mut self.lease else {
            let rate_bps = self.rate.map_or(0, BitRate::bps);
            let serial = self.told.serial + u64::from(rate_bps != self.told.rate_bps);
            return v1::Pace {
                rate_bps,
                serial,
                ..self.told
            };
        };
        let used = used.map_or(0, |s| s.saturating_sub(lease.base));
        let mut grant = arbiter.renew(lease.id, used, now);
        if grant.is_err()
            && let Some(way) = ways.get(&self.way)
        {
            // It ran out long ago: another one.
            grant = arbiter.acquire(way.id, self.rate.unwrap_or(BitRate::MAX), now);
            if let Ok(grant) = &grant {
                lease.id = grant.id;
                lease.base = self.told.serial + 1;
            }
        }
        let Ok(grant) = grant else {
            return v1::Pace {
                rate_bps: 0,
                ..self.told
            };
        };
        let rate_bps = if grant.rate.bps() <= FLOOR_BPS {
            0
        } else {
            grant.rate.bps()
        };
        v1::Pace {
            order: self.order,
            rate_bps,
            serial: lease.base + grant.serial,
            ttl_ms: u64::try_from(TTL.as_millis()).unwrap_or(u64::MAX),
        }
    }
}

/// Carries out what is decided, until `stop` says so.
pub async fn run(inner: Arc<Inner>, mut stop: watch::Receiver<bool>) {
    let mut looked = Instant::now();
    loop {
        let traffic = &inner.traffic;
        let sleep = traffic.until_wakeup().min(LOOK_EVERY);
        tokio::select! {
            () = tokio::time::sleep(sleep) => {}
            () = traffic.wake.notified() => {}
            _ = stop.changed() => break,
        }
        if looked.elapsed() >= LOOK_EVERY {
            looked = Instant::now();
            traffic.watch(&inner);
            if let Err(e) = hold(&inner).await {
                tracing::warn!("routes: {e}");
            }
        }
        pump(&inner);
    }
    release(&inner).await;
}

impl Traffic {
    fn until_wakeup(&self) -> Duration {
        let state = self.state();
        let next = [state.planner.next_wakeup(), state.arbiter.next_wakeup()];
        drop(state);
        let now = self.now();
        let left = next
            .into_iter()
            .flatten()
            .map(|t| t.checked_since(now).map_or(Duration::ZERO, PicoDuration::to_std));
        left.min().unwrap_or(LOOK_EVERY)
    }

    /// Transfers to nodes that do not answer any more have ended.
    fn watch(&self, inner: &Inner) {
        let gone: Vec<(TransferId, u64)> = {
            let state = self.state();
            let gone = state
                .running
                .iter()
                // One that speaks to another service by now has forgotten its orders.
                .filter(|(_, r)| !inner.registry.is_here(&r.to));
            gone.map(|(t, r)| (*t, r.order)).collect()
        };
        for (transfer, order) in gone {
            inner.registry.cancel(order);
            self.over(transfer, None);
        }
    }
}

/// Takes what the planner and the arbiter have decided to the nodes.
fn pump(inner: &Arc<Inner>) {
    let traffic = &inner.traffic;
    loop {
        let now = traffic.now();
        let mut state = traffic.state();
        let Some(change) = state.planner.poll(now) else {
            break;
        };
        match change {
            Change::Start(transfer) => {
                drop(state);
                start(inner, &transfer);
            }
            Change::Rate(id, rate) => {
                let State { arbiter, running, .. } = &mut *state;
                let Some(run) = running.get_mut(&id) else { continue };
                run.rate = limit(rate);
                if let Some(lease) = &run.lease {
                    // A lease that was forgotten is taken anew with this rate.
                    let _ = arbiter.set_max(lease.id, run.rate.unwrap_or(BitRate::MAX), now);
                } else {
                    inner.registry.nudge(&run.to);
                }
            }
            Change::Stop(id) => {
                if let Some(run) = state.running.remove(&id) {
                    inner.registry.cancel(run.order);
                }
            }
            Change::Finished(job) => {
                // Forgotten by the planner too.
                let _ = state.planner.cancel(job);
                state.finish(job.0, false);
            }
        }
    }
    let now = traffic.now();
    let mut state = traffic.state();
    state.arbiter.tick(now);
    let mut told: BTreeSet<String> = BTreeSet::new();
    while let Some(changed) = state.arbiter.poll() {
        let holder = |r: &&Run| r.lease.as_ref().is_some_and(|l| l.id == changed.id);
        told.extend(state.running.values().find(holder).map(|r| r.to.clone()));
    }
    for node in told {
        inner.registry.nudge(&node);
    }
}

/// The planner's rates as limits: a pause is the least there is, and the largest number is none.
fn limit(rate: Option<BitRate>) -> Option<BitRate> {
    let rate = rate.unwrap_or(BitRate::MIN);
    (rate.bps() < u64::MAX).then_some(rate)
}

/// Gives a transfer to its node.
fn start(inner: &Arc<Inner>, t: &Transfer) {
    let traffic = &inner.traffic;
    match order(inner, t) {
        Ok(ended) => {
            let (inner, id) = (inner.clone(), t.id);
            tokio::spawn(async move {
                let done = ended.await.ok();
                inner.traffic.over(id, done.as_ref());
            });
        }
        Err(why) => {
            let now = traffic.now();
            let mut state = traffic.state();
            if let Some(work) = state.jobs.get_mut(&t.job.0) {
                work.why = why;
            }
            state.planner.ended(t.id, Ended::Failed, now);
        }
    }
}

fn order(inner: &Arc<Inner>, t: &Transfer) -> Result<crate::registry::Ended, String> {
    let traffic = &inner.traffic;
    let now = traffic.now();
    let mut state = traffic.state();
    let state = &mut *state;
    let to = state.names.node_name(t.to).to_owned();
    let source = state.names.node_name(t.source).to_owned();
    let Some(work) = state.jobs.get(&t.job.0) else {
        return Err("the job has ended".into());
    };
    let Some((address, pin)) = state.places.get(&source).cloned() else {
        return Err(format!("node {source} is not known"));
    };
    let object = work.wanted.fragment.object;
    let path = object_path(object.ino.0, object.generation.0, object.fragment);
    let token = inner
        .grant(&to, &format!("storage.read:{path}"))
        .map_err(|e| e.text)?;
    let rate = limit(Some(t.rate));
    let lease = match state.ways.get(&t.route) {
        None => None,
        Some(way) => {
            let grant = state.arbiter.acquire(way.id, rate.unwrap_or(BitRate::MAX), now);
            let id = grant.map_err(|e| e.to_string())?.id;
            Some(Leased { id, base: 1 })
        }
    };
    let from = v1::Place {
        node: source.clone(),
        address,
        pin,
        path,
        token,
        up: true,
        state: "valid".into(),
    };
    let mut run = Run {
        job: t.job.0,
        order: 0,
        bytes: t.range.end - t.range.start,
        to: to.clone(),
        source,
        way: t.route,
        lease,
        rate,
        told: v1::Pace::default(),
    };
    run.told = run.pace(&mut state.arbiter, &state.ways, None, now);
    let order = pull_of(&work.wanted, t, from, &run.told);
    let Some((number, ended)) = inner.registry.order(&to, order) else {
        if let Some(lease) = &run.lease {
            let _ = state.arbiter.release(lease.id, now);
        }
        return Err(format!("node {to} is not there"));
    };
    run.order = number;
    run.told.order = number;
    state.running.insert(t.id, run);
    Ok(ended)
}

/// The order to fetch a transfer's part from a place.
fn pull_of(wanted: &Wanted, t: &Transfer, from: v1::Place, pace: &v1::Pace) -> v1::Order {
    let object = wanted.fragment.object;
    let pull = v1::Pull {
        size_bytes: wanted.fragment.size,
        digest: wanted.fragment.digest.0.to_vec(),
        sources: vec![from],
        rate_bps: pace.rate_bps,
        file: Some(wanted.file.clone()),
        serial: pace.serial,
        ttl_ms: pace.ttl_ms,
        start: t.range.start,
        end: t.range.end,
        streams: t.streams,
        ..v1::Pull::default()
    };
    v1::Order {
        order: 0,
        inode: object.ino.0,
        generation: object.generation.0,
        fragment: object.fragment,
        what: Some(v1::order::What::Pull(pull)),
    }
}

/// A job's share from its priority: as many parts as it is above the lowest, 1 to 1000.
pub fn weight_of(priority: i32) -> u32 {
    u32::try_from(priority.saturating_add(1))
        .unwrap_or(1)
        .clamp(1, 1000)
}
