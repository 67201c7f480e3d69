//! The problem, its bound, a quick choice of paths and the exact rates of chosen paths.

use super::flow::Network;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

/// Rails of a problem.
pub const MAX_RAILS: usize = 32;
/// Cores of all rails together.
pub const MAX_CORES: usize = 128;
/// Lanes of a problem.
pub const MAX_LANES: usize = 32;
/// Streams of a problem.
pub const MAX_STREAMS: usize = 1024;

/// What one rail carries, bit/s at one level for all (frame level unless the caller says otherwise).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RailCapacity {
    /// The card.
    pub card_bps: u64,
    /// Each core that may drive it.
    pub cores_bps: Vec<u64>,
}

/// Rails, lanes and streams, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    rails: Vec<RailCapacity>,
    lanes_bps: Vec<u64>,
    demands_bps: Vec<u64>,
    /// Whether a rail can send by a lane.
    reach: Vec<Vec<bool>>,
    /// Rail of each core, and its number in the rail.
    cores: Vec<(usize, usize)>,
}

/// Why a problem is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProblemError {
    /// No rails, or more than [`MAX_RAILS`].
    Rails(usize),
    /// No cores, or more than [`MAX_CORES`].
    Cores(usize),
    /// No lanes, or more than [`MAX_LANES`].
    Lanes(usize),
    /// No streams, or more than [`MAX_STREAMS`].
    Streams(usize),
    /// The table of which rail reaches which lane has not a row for each rail and a column for each lane.
    Reach,
}

impl fmt::Display for ProblemError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProblemError::Rails(n) => write!(f, "{n} rails: from 1 to {MAX_RAILS} are valid"),
            ProblemError::Cores(n) => write!(f, "{n} cores: from 1 to {MAX_CORES} are valid"),
            ProblemError::Lanes(n) => write!(f, "{n} lanes: from 1 to {MAX_LANES} are valid"),
            ProblemError::Streams(n) => write!(f, "{n} streams: from 1 to {MAX_STREAMS} are valid"),
            ProblemError::Reach => {
                f.write_str("which rail reaches which lane: one row for each rail, one column for each lane")
            }
        }
    }
}

impl core::error::Error for ProblemError {}

/// Where a stream runs and leaves; `core` counts within the rail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Path {
    /// Index of the rail.
    pub rail: usize,
    /// Index of the core within the rail.
    pub core: usize,
    /// Index of the lane.
    pub lane: usize,
}

/// Paths and rates of all streams, in the order of the streams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    /// Path of each stream, `None` for one that is not sent.
    pub paths: Vec<Option<Path>>,
    /// Rate of each stream, bit/s.
    pub rates_bps: Vec<u64>,
    /// Their sum.
    pub total_bps: u64,
}

/// What an assignment breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Violation {
    /// Not one path and rate for each stream.
    Streams,
    /// A stream's path does not exist, or it has a rate without a path, or more than it asked for.
    Stream(usize),
    /// A card above its capacity.
    Card(usize),
    /// A core (rail, number) above its capacity.
    Core(usize, usize),
    /// A lane above its capacity.
    Lane(usize),
    /// The total is not the sum.
    Total,
}

impl Problem {
    /// Checks sizes. `demands_bps` is the most that each stream asks for; `reach[rail][lane]` tells which lanes a
    /// rail can use, `None` that every rail can use all.
    ///
    /// # Errors
    /// A size out of its range.
    pub fn new(
        rails: Vec<RailCapacity>,
        lanes_bps: Vec<u64>,
        demands_bps: Vec<u64>,
        reach: Option<Vec<Vec<bool>>>,
    ) -> Result<Self, ProblemError> {
        let in_range = |n: usize, max: usize| (1..=max).contains(&n);
        if !in_range(rails.len(), MAX_RAILS) {
            return Err(ProblemError::Rails(rails.len()));
        }
        let cores: Vec<(usize, usize)> = rails
            .iter()
            .enumerate()
            .flat_map(|(r, rail)| (0..rail.cores_bps.len()).map(move |c| (r, c)))
            .collect();
        if !in_range(cores.len(), MAX_CORES) {
            return Err(ProblemError::Cores(cores.len()));
        }
        if !in_range(lanes_bps.len(), MAX_LANES) {
            return Err(ProblemError::Lanes(lanes_bps.len()));
        }
        if !in_range(demands_bps.len(), MAX_STREAMS) {
            return Err(ProblemError::Streams(demands_bps.len()));
        }
        let reach = reach.unwrap_or_else(|| vec![vec![true; lanes_bps.len()]; rails.len()]);
        if reach.len() != rails.len() || reach.iter().any(|row| row.len() != lanes_bps.len()) {
            return Err(ProblemError::Reach);
        }
        Ok(Problem {
            rails,
            lanes_bps,
            demands_bps,
            reach,
            cores,
        })
    }

    /// The rails.
    pub fn rails(&self) -> &[RailCapacity] {
        &self.rails
    }

    /// What each lane carries, bit/s.
    pub fn lanes_bps(&self) -> &[u64] {
        &self.lanes_bps
    }

    /// The most that each stream asks for, bit/s.
    pub fn demands_bps(&self) -> &[u64] {
        &self.demands_bps
    }

    /// Every path there is, by rail, core and lane.
    pub fn paths(&self) -> impl Iterator<Item = Path> + '_ {
        self.cores.iter().flat_map(move |&(rail, core)| {
            (0..self.lanes_bps.len())
                .filter(move |&lane| self.reach[rail][lane])
                .map(move |lane| Path { rail, core, lane })
        })
    }

    /// Whether a path exists.
    pub fn has(&self, path: Path) -> bool {
        let core = self
            .rails
            .get(path.rail)
            .is_some_and(|r| path.core < r.cores_bps.len());
        core && self.reach[path.rail].get(path.lane) == Some(&true)
    }

    fn core_node(&self, path: Path) -> usize {
        let before: usize = self.rails[..path.rail].iter().map(|r| r.cores_bps.len()).sum();
        2 + self.rails.len() + before + path.core
    }

    fn lane_node(&self, lane: usize) -> usize {
        2 + self.rails.len() + self.cores.len() + lane
    }

    /// Source 0, sink 1, then rails, cores and lanes, with their capacities; nothing between cores and lanes.
    fn network(&self) -> Network {
        let mut net = Network::new(2 + self.rails.len() + self.cores.len() + self.lanes_bps.len());
        for (r, rail) in self.rails.iter().enumerate() {
            net.edge(0, 2 + r, rail.card_bps);
        }
        for &(rail, core) in &self.cores {
            let path = Path { rail, core, lane: 0 };
            net.edge(2 + rail, self.core_node(path), self.rails[rail].cores_bps[core]);
        }
        for (lane, &bps) in self.lanes_bps.iter().enumerate() {
            net.edge(self.lane_node(lane), 1, bps);
        }
        net
    }

    /// Tests an assignment against every capacity.
    ///
    /// # Errors
    /// The first thing that is broken.
    pub fn check(&self, a: &Assignment) -> Result<(), Violation> {
        if a.paths.len() != self.demands_bps.len() || a.rates_bps.len() != self.demands_bps.len() {
            return Err(Violation::Streams);
        }
        let (mut cards, mut lanes) = (vec![0u128; self.rails.len()], vec![0u128; self.lanes_bps.len()]);
        let mut cores: Vec<Vec<u128>> = self.rails.iter().map(|r| vec![0; r.cores_bps.len()]).collect();
        let mut total = 0u128;
        for (s, (path, &bps)) in a.paths.iter().zip(&a.rates_bps).enumerate() {
            let Some(path) = path else {
                if bps != 0 {
                    return Err(Violation::Stream(s));
                }
                continue;
            };
            if !self.has(*path) || bps > self.demands_bps[s] {
                return Err(Violation::Stream(s));
            }
            cards[path.rail] += u128::from(bps);
            cores[path.rail][path.core] += u128::from(bps);
            lanes[path.lane] += u128::from(bps);
            total += u128::from(bps);
        }
        for (r, rail) in self.rails.iter().enumerate() {
            if cards[r] > u128::from(rail.card_bps) {
                return Err(Violation::Card(r));
            }
            let over = rail
                .cores_bps
                .iter()
                .zip(&cores[r])
                .position(|(&cap, &sum)| sum > u128::from(cap));
            if let Some(core) = over {
                return Err(Violation::Core(r, core));
            }
        }
        let over = self
            .lanes_bps
            .iter()
            .zip(&lanes)
            .position(|(&cap, &sum)| sum > u128::from(cap));
        match over {
            Some(lane) => Err(Violation::Lane(lane)),
            None if total != u128::from(a.total_bps) => Err(Violation::Total),
            None => Ok(()),
        }
    }
}

/// The largest sum if streams could be divided over paths at will: no assignment is above it.
pub fn bound(problem: &Problem) -> u64 {
    let mut net = problem.network();
    for path in problem.paths() {
        net.edge(problem.core_node(path), problem.lane_node(path.lane), u64::MAX);
    }
    let asked = problem
        .demands_bps
        .iter()
        .fold(0u64, |sum, &d| sum.saturating_add(d));
    net.run(0, 1).min(asked)
}

/// The rates of the largest sum for chosen paths, exactly. A path that does not exist counts as none.
pub fn rates(problem: &Problem, paths: &[Option<Path>]) -> Assignment {
    let mut net = problem.network();
    let mut paths: Vec<Option<Path>> = paths.to_vec();
    paths.resize(problem.demands_bps.len(), None);
    for (path, &demand) in paths.iter_mut().zip(&problem.demands_bps) {
        match path.filter(|p| problem.has(*p)) {
            Some(p) => net.edge(problem.core_node(p), problem.lane_node(p.lane), demand),
            None => *path = None,
        }
    }
    let total_bps = net.run(0, 1);
    // Streams of the same core and lane share that flow in their order.
    let mut given: Vec<(Path, u64)> = Vec::new();
    let rates_bps = paths.iter().zip(&problem.demands_bps).map(|(path, &demand)| {
        let Some(path) = *path else { return 0 };
        let at = given.iter().position(|(p, _)| *p == path).unwrap_or_else(|| {
            let flow = net.flow(problem.core_node(path), problem.lane_node(path.lane));
            given.push((path, flow));
            given.len() - 1
        });
        let rate = given[at].1.min(demand);
        given[at].1 -= rate;
        rate
    });
    let rates_bps: Vec<u64> = rates_bps.collect();
    Assignment {
        paths,
        rates_bps,
        total_bps,
    }
}

/// A quick choice: the largest stream first, on the path with the most room; then exact rates.
pub fn greedy(problem: &Problem) -> Assignment {
    let mut cards: Vec<u64> = problem.rails.iter().map(|r| r.card_bps).collect();
    let mut cores: Vec<Vec<u64>> = problem.rails.iter().map(|r| r.cores_bps.clone()).collect();
    let mut lanes = problem.lanes_bps.clone();
    let mut order: Vec<usize> = (0..problem.demands_bps.len()).collect();
    order.sort_by_key(|&s| core::cmp::Reverse(problem.demands_bps[s]));
    let mut paths = vec![None; problem.demands_bps.len()];
    for s in order {
        let demand = problem.demands_bps[s];
        let room = |p: &Path| cards[p.rail].min(cores[p.rail][p.core]).min(lanes[p.lane]);
        // Where it fits, the least room; else the most.
        let best = problem.paths().max_by_key(|p| {
            let room = room(p);
            (room.min(demand), core::cmp::Reverse(room), core::cmp::Reverse(*p))
        });
        let Some(path) = best.filter(|p| room(p) > 0) else {
            continue;
        };
        let rate = room(&path).min(demand);
        cards[path.rail] -= rate;
        cores[path.rail][path.core] -= rate;
        lanes[path.lane] -= rate;
        paths[s] = Some(path);
    }
    rates(problem, &paths)
}
