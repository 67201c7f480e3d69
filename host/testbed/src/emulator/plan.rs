//! Which thread owns what: the network is cut at links, and only where a cut changes nothing.
//!
//! ```text
//!  thread A: router a, its ports, the links that leave it      thread B: router b, ...
//!     wire -> link a>b (queue, wire) --- in flight for D -------> egress, next link
//!                                   ^ handed over at least `ahead` = D/2 before it arrives
//! ```
//!
//! **Why the result is that of one thread.** (1) Every stage belongs to one thread. (2) A frame that starts to cross a cut
//! link at s arrives at s + D or later, so when A has done everything up to T and handed over all that arrives by
//! T + ahead, nothing else can arrive in B by then: A promises T + ahead. (3) B does an event of time t only when all
//! promises are t at least; until then it waits. (4) B does its events in the order (time, number of the stage), in which
//! a frame that was handed over stands under the number of its link: the order of a single thread. A thread that is
//! held up makes the others late, never wrong.
//!
//! A link is cut only when its delay is [`MIN_CUT`] at least at all times of its schedule, and has no jitter and keeps order;
//! routers that other links join go to one thread, and so do the switches of one domain. What a change on a cut link may do is in [`Plan::refuses`].

use kuroshio_core::units::PicoDuration;
use kuroshio_core::wan::{Jitter, Order, WanChange, WanConfig};

use super::stage::{Numbers, drain_stages, shaper_stages};
use crate::topology::Topology;

/// Smallest delay of a link between two threads: twice what a hand-over is given.
pub(super) const MIN_CUT: PicoDuration = PicoDuration::from_us(200);

/// Who owns what.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// Threads.
    pub threads: usize,
    /// The thread of every stage.
    pub stages: Vec<usize>,
    /// The thread of every port.
    pub ports: Vec<usize>,
    /// By stage: how long before its arrival a frame is handed over, for links between threads.
    pub ahead: Vec<Option<PicoDuration>>,
    /// By stage: the thread that a link between threads leads to.
    pub leads_to: Vec<usize>,
}

impl Plan {
    /// Spreads a network over as many threads as were asked for, or as can be.
    pub fn of(topology: &Topology) -> Self {
        let routers = topology.routers.len();
        let mut part: Vec<usize> = (0..routers).collect();
        for link in &topology.links {
            let switched = topology.is_switch(link.between[0]);
            if switched || link.wan.iter().any(|w| ahead_of(w).is_none()) || topology.threads == 1 {
                let [a, b] = link.between.map(|r| part.get(r).copied().unwrap_or(0));
                for p in part.iter_mut().filter(|p| **p == b) {
                    *p = a;
                }
            }
        }
        let (router, threads) = spread(topology, &part);
        let at = |r: usize| router.get(r).copied().unwrap_or(0);
        let numbers = Numbers::of(topology);
        let drains = drain_stages(topology);
        let shapers = shaper_stages(topology);
        let all = 2 * numbers.ports + numbers.links + shapers.iter().chain(&drains).flatten().count();
        let mut plan = Self {
            threads,
            stages: vec![0; all],
            ports: topology.ports().map(|(_, p)| at(p.router)).collect(),
            ahead: vec![None; all],
            leads_to: vec![0; all],
        };
        for (port, &thread) in plan.ports.iter().enumerate() {
            let own = [numbers.own_wire(port), numbers.egress(port)];
            let more = [shapers.get(port), drains.get(port)];
            for stage in own
                .into_iter()
                .chain(more.into_iter().flatten().copied().flatten())
            {
                plan.stages[stage] = thread;
            }
        }
        for (index, link) in topology.links.iter().enumerate() {
            let [a, b] = link.between.map(at);
            for (direction, (from, to)) in [(a, b), (b, a)].into_iter().enumerate() {
                let stage = numbers.link(2 * index + direction);
                plan.stages[stage] = from;
                plan.leads_to[stage] = to;
                if from != to {
                    plan.ahead[stage] = ahead_of(&link.wan[direction]);
                }
            }
        }
        plan
    }

    /// Whether a change of a stage would break the promise of a link between threads: why.
    pub fn refuses(&self, stage: usize, change: &WanChange) -> Option<String> {
        let ahead = self.ahead.get(stage).copied().flatten()?;
        match change {
            WanChange::OneWayDelay(delay) if *delay < ahead => Some(format!(
                "one_way_delay {delay}: this link joins two threads of the emulator: at least {ahead}, or one thread"
            )),
            WanChange::Jitter(jitter) if *jitter != Jitter::None => {
                Some("jitter: this link joins two threads of the emulator: only with one thread".into())
            }
            WanChange::Order(Order::Free) => {
                Some("order: this link joins two threads of the emulator: only with one thread".into())
            }
            _ => None,
        }
    }
}

/// How long before its arrival a frame of a link is known, when the link may be cut: half of its shortest delay.
fn ahead_of(link: &WanConfig) -> Option<PicoDuration> {
    let steps = link.schedule.steps.iter().map(|(_, change)| change);
    let mut shortest = link.one_way_delay;
    for change in steps {
        match change {
            WanChange::OneWayDelay(delay) => shortest = shortest.min(*delay),
            WanChange::Jitter(jitter) if *jitter != Jitter::None => return None,
            WanChange::Order(Order::Free) => return None,
            _ => {}
        }
    }
    let plain = link.jitter == Jitter::None && link.order == Order::Kept;
    (plain && shortest >= MIN_CUT).then(|| PicoDuration::from_ps(shortest.as_ps() / 2))
}

/// Gives parts to threads, the heaviest first, each to the thread with the least so far: the thread of every router.
fn spread(topology: &Topology, part: &[usize]) -> (Vec<usize>, usize) {
    let mut weight = vec![0usize; part.len()];
    let mut add = |router: usize| {
        if let Some(w) = part.get(router).and_then(|p| weight.get_mut(*p)) {
            *w += 1;
        }
    };
    topology.ports().for_each(|(_, p)| add(p.router));
    topology.links.iter().flat_map(|l| l.between).for_each(&mut add);
    let mut parts: Vec<usize> = (0..part.len()).filter(|p| part.contains(p)).collect();
    parts.sort_by_key(|p| (std::cmp::Reverse(weight[*p]), *p));
    let threads = topology.threads.min(parts.len()).max(1);
    let mut load = vec![0usize; threads];
    let mut thread_of = vec![0usize; part.len()];
    for p in parts {
        let least = (0..threads).min_by_key(|t| load[*t]).unwrap_or(0);
        load[least] += weight[p];
        thread_of[p] = least;
    }
    (part.iter().map(|p| thread_of[*p]).collect(), threads)
}
