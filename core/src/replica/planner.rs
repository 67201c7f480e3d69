//! Replication planning: from jobs to transfers that run now, and how fast each may be.
//!
//! # Model
//!
//! A *job* is a list of items: a range of a fragment, the nodes that can give it (best first), and the node
//! that gets it. An item that runs is a *transfer*; it uses its route (site to site), the disk that it reads
//! and the disk that it writes. Rates are weighted max-min fair over all of these ([`fair_rates`]):
//!
//! - between jobs that share something, in proportion to their weights, however many transfers each has: the
//!   weight of a job is divided among its transfers of one route;
//! - what a slow disk leaves of a route goes to other transfers, and when these are too few, more are started.
//!
//! ```text
//!            slot at both nodes, and                    ended(Done)
//!   waiting -------------------------> running -----------------------------> done
//!      ^     room for `min_rate`, made   |  '--ended(Failed), last attempt--> failed
//!      |     for a job's first one on a  |
//!      |     route and for idle nodes    |
//!      '---------------------------------'  ended(Failed): the next source, after `retry_after`
//! ```
//!
//! Changes come in an order that keeps every sum within its capacity at each step: lowered rates, then new
//! transfers, then raised rates. The planner's rates are what transfers *ask* of the route's
//! [`Arbiter`](crate::plan::Arbiter) as their most; leases make sure of the sum when messages are late.
//!
//! # Order of calls
//!
//! Any event with a time that does not go back, then drain [`Planner::poll`], then sleep until
//! [`Planner::next_wakeup`]. Every [`Change::Start`] is answered once by [`Planner::ended`], unless
//! [`Change::Stop`] came first.

use super::fair::{Flow, ResourceId, fair_rates};
use super::jobs::{
    Change, DiskLimits, Ended, ItemId, JobId, JobItem, JobView, MAX_ITEMS, MAX_JOBS, MAX_RUNNING,
    PlannerConfig, PlannerError, Transfer, TransferId, check_weight,
};
use super::types::{NodeId, SiteId};
use crate::plan::Route;
use crate::units::{BitRate, PicoTime};
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

/// A job's weight is divided among its transfers in this many parts (the least number that 1 to 16 divide).
const WEIGHT_PARTS: u64 = 720_720;
/// Items of one destination that are tried when the sources of those before have no slot.
const LOOK_AHEAD: usize = 16;

#[derive(Debug)]
struct Job {
    weight: u32,
    items: Vec<JobItem>,
    attempts: BTreeMap<usize, u32>,
    /// Items that wait, by destination.
    waiting: BTreeMap<NodeId, VecDeque<usize>>,
    view: JobView,
    told: bool,
}

#[derive(Debug)]
struct Running {
    job: JobId,
    item: usize,
    source: NodeId,
    to: NodeId,
    route: (SiteId, SiteId),
    /// As told, in bit/s.
    rate_bps: u64,
}

#[derive(Clone, Copy, Debug)]
struct NodeInfo {
    site: SiteId,
    disk: DiskLimits,
}

/// Turns jobs into transfers; see the module's model.
#[derive(Debug)]
pub struct Planner {
    config: PlannerConfig,
    now: PicoTime,
    nodes: BTreeMap<NodeId, NodeInfo>,
    routes: BTreeMap<(SiteId, SiteId), Route>,
    jobs: BTreeMap<JobId, Job>,
    items: usize,
    running: BTreeMap<TransferId, Running>,
    resting: BTreeSet<(PicoTime, JobId, usize)>,
    next_transfer: u64,
    changes: VecDeque<Change>,
    dirty: bool,
}

impl Planner {
    /// A planner without jobs, at `now`.
    #[must_use]
    pub fn new(config: PlannerConfig, now: PicoTime) -> Self {
        Self {
            config,
            now,
            nodes: BTreeMap::new(),
            routes: BTreeMap::new(),
            jobs: BTreeMap::new(),
            items: 0,
            running: BTreeMap::new(),
            resting: BTreeSet::new(),
            next_transfer: 0,
            changes: VecDeque::new(),
            dirty: false,
        }
    }

    /// A node that can take part, and what its disk can do.
    ///
    /// # Errors
    /// [`PlannerError::TooMany`].
    pub fn set_node(&mut self, node: NodeId, site: SiteId, disk: DiskLimits) -> Result<(), PlannerError> {
        if self.nodes.len() >= super::MAX_NODES && !self.nodes.contains_key(&node) {
            return Err(PlannerError::TooMany("nodes"));
        }
        self.nodes.insert(node, NodeInfo { site, disk });
        self.dirty = true;
        Ok(())
    }

    /// A node that takes no part any more. What runs there ends by itself or fails.
    pub fn remove_node(&mut self, node: NodeId) {
        self.nodes.remove(&node);
        self.dirty = true;
    }

    /// The capacity from one site to another (frame level); `None`: no limit, as for pairs never told.
    pub fn set_route(&mut self, from: SiteId, to: SiteId, route: Option<Route>) {
        match route {
            Some(route) => self.routes.insert((from, to), route),
            None => self.routes.remove(&(from, to)),
        };
        self.dirty = true;
    }

    /// Adds a job. Its items are begun in their order, destination by destination.
    ///
    /// # Errors
    /// [`PlannerError::DuplicateJob`], [`PlannerError::BadItem`], [`PlannerError::BadWeight`],
    /// [`PlannerError::TooMany`].
    pub fn add_job(&mut self, id: JobId, weight: u32, items: Vec<JobItem>) -> Result<(), PlannerError> {
        if self.jobs.contains_key(&id) {
            return Err(PlannerError::DuplicateJob(id));
        }
        check_weight(weight)?;
        if self.jobs.len() >= MAX_JOBS {
            return Err(PlannerError::TooMany("jobs"));
        }
        if items.len() > MAX_ITEMS - self.items {
            return Err(PlannerError::TooMany("items"));
        }
        let mut waiting: BTreeMap<NodeId, VecDeque<usize>> = BTreeMap::new();
        let mut view = JobView::default();
        for (i, item) in items.iter().enumerate() {
            if item.range.is_empty() || item.sources.is_empty() || item.sources.contains(&item.to) {
                return Err(PlannerError::BadItem(ItemId(i)));
            }
            waiting.entry(item.to).or_default().push_back(i);
            view.waiting += 1;
            view.bytes = view.bytes.saturating_add(item.range.end - item.range.start);
        }
        self.items += items.len();
        let job = Job {
            weight,
            items,
            attempts: BTreeMap::new(),
            waiting,
            view,
            told: false,
        };
        self.jobs.insert(id, job);
        self.dirty = true;
        Ok(())
    }

    /// Changes a job's weight: its share of what it shares with other jobs.
    ///
    /// # Errors
    /// [`PlannerError::UnknownJob`], [`PlannerError::BadWeight`].
    pub fn set_weight(&mut self, id: JobId, weight: u32) -> Result<(), PlannerError> {
        check_weight(weight)?;
        let job = self.jobs.get_mut(&id).ok_or(PlannerError::UnknownJob(id))?;
        job.weight = weight;
        self.dirty = true;
        Ok(())
    }

    /// Ends a job, finished or not: what runs of it is stopped, and it is forgotten.
    ///
    /// # Errors
    /// [`PlannerError::UnknownJob`].
    pub fn cancel(&mut self, id: JobId) -> Result<JobView, PlannerError> {
        let job = self.jobs.remove(&id).ok_or(PlannerError::UnknownJob(id))?;
        self.items -= job.items.len();
        self.resting.retain(|(_, j, _)| *j != id);
        let stopped: Vec<TransferId> = self
            .running
            .iter()
            .filter_map(|(t, r)| (r.job == id).then_some(*t))
            .collect();
        for transfer in stopped {
            self.running.remove(&transfer);
            self.changes.push_back(Change::Stop(transfer));
        }
        self.dirty = true;
        Ok(job.view)
    }

    /// State of a job.
    #[must_use]
    pub fn view(&self, id: JobId) -> Option<JobView> {
        self.jobs.get(&id).map(|j| j.view)
    }

    /// A transfer has ended. Of one that was stopped: nothing happens.
    pub fn ended(&mut self, id: TransferId, how: Ended, now: PicoTime) {
        self.now = self.now.max(now);
        let Some(running) = self.running.remove(&id) else {
            return;
        };
        self.dirty = true;
        let Some(job) = self.jobs.get_mut(&running.job) else {
            return;
        };
        let Some(item) = job.items.get_mut(running.item) else {
            return;
        };
        job.view.running -= 1;
        if how == Ended::Done {
            job.view.done += 1;
            let bytes = item.range.end - item.range.start;
            job.view.done_bytes = job.view.done_bytes.saturating_add(bytes);
            return;
        }
        let attempts = job.attempts.entry(running.item).or_default();
        *attempts += 1;
        if *attempts >= self.config.max_attempts {
            job.view.failed += 1;
            return;
        }
        // The source that failed is asked last next time.
        if let Some(at) = item.sources.iter().position(|s| *s == running.source) {
            let source = item.sources.remove(at);
            item.sources.push(source);
        }
        job.view.waiting += 1;
        let at = self.now + self.config.retry_after;
        self.resting.insert((at, running.job, running.item));
    }

    /// What is to be done next, if anything is at `now`.
    pub fn poll(&mut self, now: PicoTime) -> Option<Change> {
        self.now = self.now.max(now);
        while let Some(&(at, job, item)) = self.resting.first().filter(|(at, ..)| *at <= self.now) {
            self.resting.remove(&(at, job, item));
            if let Some(job) = self.jobs.get_mut(&job)
                && let Some(to) = job.items.get(item).map(|i| i.to)
            {
                job.waiting.entry(to).or_default().push_back(item);
                self.dirty = true;
            }
        }
        if self.changes.is_empty() && self.dirty {
            self.dirty = false;
            self.plan();
        }
        self.changes.pop_front()
    }

    /// When to call [`poll`](Self::poll) again although nothing was told.
    #[must_use]
    pub fn next_wakeup(&self) -> Option<PicoTime> {
        self.resting.first().map(|(at, ..)| *at)
    }

    /// Begins what can be begun and gives everybody its rate.
    fn plan(&mut self) {
        let mut begun: Vec<TransferId> = Vec::new();
        let mut passed: BTreeSet<JobId> = BTreeSet::new();
        while self.running.len() < self.config.max_running.min(MAX_RUNNING) {
            let Some(job) = self.neediest(&passed) else { break };
            match self.startable(job) {
                Some((item, source)) => begun.extend(self.begin(job, item, source)),
                None => {
                    passed.insert(job);
                }
            }
        }
        self.tell_rates(&begun);
        for (&id, job) in &mut self.jobs {
            if !job.told && job.view.waiting == 0 && job.view.running == 0 {
                job.told = true;
                self.changes.push_back(Change::Finished(id));
            }
        }
    }

    /// The job with something waiting that has the fewest transfers for its weight.
    fn neediest(&self, passed: &BTreeSet<JobId>) -> Option<JobId> {
        let waits = |(id, job): &(&JobId, &Job)| !job.waiting.is_empty() && !passed.contains(id);
        let share = |(id, job): &(&JobId, &Job)| {
            // Transfers per weight, compared to one part in 720,720.
            (
                (job.view.running as u64) * WEIGHT_PARTS / u64::from(job.weight),
                **id,
            )
        };
        self.jobs
            .iter()
            .filter(waits)
            .min_by_key(share)
            .map(|(id, _)| *id)
    }

    /// An item of a job that can begin now, and its source.
    fn startable(&self, id: JobId) -> Option<(usize, NodeId)> {
        let job = self.jobs.get(&id)?;
        let writes = |n: NodeId| self.running.values().filter(|r| r.to == n).count();
        let reads = |n: NodeId| self.running.values().filter(|r| r.source == n).count();
        let left = self.left();
        for (&to, queue) in &job.waiting {
            let Some(target) = self.nodes.get(&to) else {
                continue;
            };
            if writes(to) >= self.config.max_per_node {
                continue;
            }
            for &item in queue.iter().take(LOOK_AHEAD) {
                for &source in &job.items.get(item)?.sources {
                    let Some(from) = self.nodes.get(&source) else {
                        continue;
                    };
                    let route = (from.site, target.site);
                    if reads(source) < self.config.max_per_node && self.worth(id, route, source, to, &left) {
                        return Some((item, source));
                    }
                }
            }
        }
        None
    }

    /// Whether another transfer is worth it: everything it uses has room; or those that run can make room, and
    /// the job has none on the route yet or both nodes are idle.
    fn worth(
        &self,
        job: JobId,
        route: (SiteId, SiteId),
        source: NodeId,
        to: NodeId,
        left: &BTreeMap<Resource, u64>,
    ) -> bool {
        let min = self.config.min_rate.bps();
        let uses = [
            Resource::Route(route),
            Resource::Read(source),
            Resource::Write(to),
        ];
        let room = |r: &Resource| left.get(r).is_none_or(|bps| *bps >= min);
        if uses.iter().all(room) {
            return true;
        }
        let has_none = !self.running.values().any(|r| r.job == job && r.route == route);
        let idle = !self.running.values().any(|r| r.source == source || r.to == to);
        (has_none || idle)
            && uses.iter().all(|r| {
                let shared = self.running.values().filter(|t| t.uses().contains(r)).count() as u64 + 1;
                self.capacity(*r).is_none_or(|bps| bps / shared >= min)
            })
    }

    fn capacity(&self, resource: Resource) -> Option<u64> {
        match resource {
            Resource::Route(route) => self.routes.get(&route).map(Route::usable_bps),
            Resource::Read(node) => self.nodes.get(&node)?.disk.read.map(BitRate::bps),
            Resource::Write(node) => self.nodes.get(&node)?.disk.write.map(BitRate::bps),
        }
    }

    /// What the running transfers, at their fair rates, leave of everything that has a limit.
    fn left(&self) -> BTreeMap<Resource, u64> {
        let mut left: BTreeMap<Resource, u64> = BTreeMap::new();
        let routes = self.routes.keys().map(|r| Resource::Route(*r));
        let disks = self
            .nodes
            .keys()
            .flat_map(|n| [Resource::Read(*n), Resource::Write(*n)]);
        for resource in routes.chain(disks) {
            left.extend(self.capacity(resource).map(|bps| (resource, bps)));
        }
        for (running, rate) in self.running.values().zip(self.rates()) {
            for resource in running.uses() {
                if let Some(bps) = left.get_mut(&resource) {
                    *bps = bps.saturating_sub(rate);
                }
            }
        }
        left
    }

    /// The fair rates of the running transfers, in the order of their numbers, in bit/s.
    fn rates(&self) -> Vec<u64> {
        let mut places: BTreeMap<Resource, usize> = BTreeMap::new();
        let mut capacities = Vec::new();
        let mut on_route: BTreeMap<(JobId, (SiteId, SiteId)), u64> = BTreeMap::new();
        for running in self.running.values() {
            *on_route.entry((running.job, running.route)).or_default() += 1;
            for resource in running.uses() {
                if let Some(bps) = self.capacity(resource)
                    && !places.contains_key(&resource)
                {
                    places.insert(resource, capacities.len());
                    capacities.push(bps);
                }
            }
        }
        let streams = u64::from(self.config.max_streams.max(1));
        let max_bps = self.config.stream_max.map(|m| m.bps().saturating_mul(streams));
        let flow = |running: &Running| {
            let weight = self.jobs.get(&running.job).map_or(1, |j| u64::from(j.weight));
            let among = on_route.get(&(running.job, running.route)).copied().unwrap_or(1);
            let places = running.uses().into_iter().filter_map(|r| places.get(&r));
            Flow {
                weight: (weight * WEIGHT_PARTS / among).max(1),
                max_bps,
                uses: places.map(|p| ResourceId(*p)).collect(),
            }
        };
        let flows: Vec<Flow> = self.running.values().map(flow).collect();
        fair_rates(&capacities, &flows)
    }

    /// Makes an item a transfer.
    fn begin(&mut self, id: JobId, item: usize, source: NodeId) -> Option<TransferId> {
        let job = self.jobs.get_mut(&id)?;
        let to = job.items.get(item)?.to;
        let queue = job.waiting.get_mut(&to)?;
        let at = queue.iter().position(|i| *i == item)?;
        queue.remove(at);
        if queue.is_empty() {
            job.waiting.remove(&to);
        }
        job.view.waiting -= 1;
        job.view.running += 1;
        let route = (self.nodes.get(&source)?.site, self.nodes.get(&to)?.site);
        let transfer = TransferId(self.next_transfer);
        self.next_transfer += 1;
        let running = Running {
            job: id,
            item,
            source,
            to,
            route,
            rate_bps: 0,
        };
        self.running.insert(transfer, running);
        Some(transfer)
    }

    /// Tells lowered rates, then new transfers, then raised rates.
    fn tell_rates(&mut self, begun: &[TransferId]) {
        let rates = self.rates();
        let mut raised = Vec::new();
        let mut starts = Vec::new();
        for ((&id, running), rate) in self.running.iter_mut().zip(rates) {
            let old = core::mem::replace(&mut running.rate_bps, rate);
            if begun.contains(&id) {
                starts.push((id, rate));
            } else if rate < old {
                self.changes.push_back(Change::Rate(id, BitRate::new(rate)));
            } else if rate > old {
                raised.push(Change::Rate(id, BitRate::new(rate)));
            }
        }
        for (id, rate) in starts {
            let start = self.start_of(id, rate);
            self.changes.extend(start);
            if rate == 0 {
                self.changes.push_back(Change::Rate(id, None));
            }
        }
        self.changes.extend(raised);
    }

    fn start_of(&self, id: TransferId, rate_bps: u64) -> Option<Change> {
        let running = self.running.get(&id)?;
        let item = self.jobs.get(&running.job)?.items.get(running.item)?;
        let rate = BitRate::new(rate_bps).unwrap_or(BitRate::MIN);
        let streams = self.config.stream_max.map_or(1, |m| rate.bps().div_ceil(m.bps()));
        let most = u64::from(self.config.max_streams.max(1));
        Some(Change::Start(Transfer {
            id,
            job: running.job,
            item: ItemId(running.item),
            fragment: item.fragment,
            range: item.range.clone(),
            source: running.source,
            to: running.to,
            route: running.route,
            streams: u32::try_from(streams.clamp(1, most)).unwrap_or(1),
            rate,
        }))
    }
}

/// What a transfer uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Resource {
    Route((SiteId, SiteId)),
    Read(NodeId),
    Write(NodeId),
}

impl Running {
    fn uses(&self) -> [Resource; 3] {
        [
            Resource::Route(self.route),
            Resource::Read(self.source),
            Resource::Write(self.to),
        ]
    }
}
