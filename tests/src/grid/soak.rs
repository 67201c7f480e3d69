//! Episodes: load, faults, healing, and the comparison of everything.
//!
//! A line is printed for each fault when it hits, for each episode the time of its parts and of the repair; at the end the
//! distribution of repairs.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kuroshio_client::{Cancel, Grid};

use crate::grid::fault::{Fault, Wounds, flip_in, gentle, objects};
use crate::grid::load::{Load, Version, get, is_version};
use crate::grid::world::World;
use crate::soak::rng::Rng;

/// Threads of the load.
const THREADS: u64 = 4;
/// Longest pause between two faults of an episode, milliseconds.
const PAUSE_MS: u64 = 900;

/// A soak.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// Faults that must hit.
    pub faults: u64,
    /// Faults of one episode at most.
    pub per_episode: u64,
    /// The seed.
    pub seed: u64,
}

/// What came of a soak.
#[derive(Debug, Default, Clone)]
pub struct Totals {
    /// Faults that hit, by kind.
    pub hits: BTreeMap<Fault, u64>,
    /// Episodes.
    pub episodes: u64,
    /// Operations that were acknowledged.
    pub acknowledged: u64,
    /// Operations that failed while there were faults.
    pub failed: u64,
    /// Files that were compared after episodes.
    pub files: u64,
    /// Replicas that were read whole after episodes.
    pub replicas: u64,
    /// From the end of healing until every file had its copies again.
    pub settled: Vec<Duration>,
    /// From the loss of a disk until every file had its copies again; `LOST_AFTER` is in it.
    pub repaired: Vec<Duration>,
    /// What was wrong.
    pub problems: Vec<String>,
    /// What could not be injected.
    pub notes: Vec<String>,
}

impl Totals {
    /// All faults that hit.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.hits.values().sum()
    }
}

/// Median, 99th percentile (the nearest rank) and the longest.
#[must_use]
pub fn distribution(times: &[Duration]) -> String {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    let rank = |percent: usize| {
        let n = (sorted.len() * percent).div_ceil(100).max(1);
        sorted.get(n - 1).map(Duration::as_secs_f64)
    };
    match (rank(50), rank(99), rank(100)) {
        (Some(median), Some(p99), Some(most)) => {
            let n = sorted.len();
            format!("median {median:.1} s, p99 {p99:.1} s, longest {most:.1} s of {n}")
        }
        _ => "none".into(),
    }
}

/// How long the parts of an episode take.
struct Watch {
    begun: Instant,
    part: Instant,
    told: Vec<String>,
}

impl Watch {
    fn start() -> Self {
        let now = Instant::now();
        Self {
            begun: now,
            part: now,
            told: Vec::new(),
        }
    }

    /// A part has ended.
    fn part(&mut self, name: &str) {
        self.told
            .push(format!("{name} {:.1}", self.part.elapsed().as_secs_f64()));
        self.part = Instant::now();
    }

    fn story(&self) -> String {
        format!(
            "{:.1} s ({})",
            self.begun.elapsed().as_secs_f64(),
            self.told.join(", ")
        )
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} faults in {} episodes: {:?}",
            self.sum(),
            self.episodes,
            self.hits
        )?;
        writeln!(
            f,
            "operations: {} acknowledged, {} failed; compared: {} files, {} replicas",
            self.acknowledged, self.failed, self.files, self.replicas
        )?;
        writeln!(
            f,
            "repaired to ncopy after healing: {}",
            distribution(&self.settled)
        )?;
        writeln!(
            f,
            "copies whole again after a lost disk: {}",
            distribution(&self.repaired)
        )?;
        for note in &self.notes {
            writeln!(f, "NOTE: {note}")?;
        }
        write!(f, "problems: {}", self.problems.len())
    }
}

/// Runs episodes in an empty folder on a disk until enough faults have hit, or something is wrong.
///
/// # Errors
/// The grid does not start or does not come back, in words.
pub fn run(config: &Config, dir: &Path) -> Result<Totals, String> {
    let mut world = World::start(dir)?;
    let mut totals = Totals {
        notes: world.notes.clone(),
        ..Totals::default()
    };
    let mut rng = Rng::new(config.seed);
    let load = Load::start(&world.ticket()?, world.door()?.as_ref(), THREADS, config.seed);
    while totals.sum() < config.faults && totals.problems.is_empty() {
        let story = episode(config, &mut world, &load, &mut rng, &mut totals);
        totals.episodes += 1;
        let (acknowledged, failed) = load.counts();
        (totals.acknowledged, totals.failed) = (acknowledged, failed);
        let story = match story {
            Ok(story) => story,
            Err(e) => return Err(format!("seed {}: {e}{}", config.seed, world.tails())),
        };
        println!("episode {} ({} faults): {story}", totals.episodes, totals.sum());
        for (name, line) in world.panics() {
            totals.problems.push(format!("{name} panicked: {line}"));
        }
        if !totals.problems.is_empty() {
            totals.problems.push(format!("episode: {story}{}", world.tails()));
        }
    }
    Ok(totals)
}

/// One episode; what happened in it, in words.
fn episode(
    config: &Config,
    world: &mut World,
    load: &Load,
    rng: &mut Rng,
    totals: &mut Totals,
) -> Result<String, String> {
    let mut story = Vec::new();
    let mut wounds = Wounds::default();
    let mut lost_at = None;
    let mut watch = Watch::start();
    load.go_on();
    let (before, _) = load.counts();
    world.wait("the load does something", |_| Ok(load.counts().0 > before + 20))?;
    watch.part("load");
    let harsh = match rng.below(4) {
        0 => Some(Fault::LoseDisk),
        1 => Some(Fault::BitRot),
        _ => None,
    };
    if let Some(fault) = harsh {
        load.pause();
        world.wait("two copies of everything", settled)?;
        let done = if fault == Fault::BitRot {
            rot(world, load, rng, totals)?
        } else {
            lost_at = Some(Instant::now());
            wounds.inflict(world, fault, rng)?
        };
        hit(totals, fault, done, &mut story);
        load.go_on();
        watch.part("bytes taken away");
    }
    for _ in 0..=rng.below(config.per_episode.max(1)) {
        std::thread::sleep(Duration::from_millis(rng.below(PAUSE_MS)));
        let fault = gentle(rng);
        let done = wounds.inflict(world, fault, rng)?;
        hit(totals, fault, done, &mut story);
    }
    std::thread::sleep(Duration::from_millis(rng.below(PAUSE_MS)));
    watch.part("faults");
    wounds.heal(world)?;
    let healed = Instant::now();
    watch.part("healing");
    world.wait("all nodes joined", World::all_joined)?;
    watch.part("nodes joined");
    load.pause();
    watch.part("load paused");
    world.wait("two copies of everything", settled)?;
    let settled_s = healed.elapsed();
    totals.settled.push(settled_s);
    let repaired = lost_at.map(|at| at.elapsed());
    totals.repaired.extend(repaired);
    watch.part("copies");
    totals.problems.extend(load.problems());
    compare(world, load, totals)?;
    watch.part("compared");
    story.push(format!(
        "repaired to ncopy {:.1} s after healing",
        settled_s.as_secs_f64()
    ));
    if let Some(repaired) = repaired {
        story.push(format!(
            "{:.1} s after the loss of a disk",
            repaired.as_secs_f64()
        ));
    }
    Ok(format!("{}; took {}", story.join("; "), watch.story()))
}

fn hit(totals: &mut Totals, fault: Fault, done: Option<String>, story: &mut Vec<String>) {
    if let Some(text) = done {
        *totals.hits.entry(fault).or_default() += 1;
        println!("fault {}: {text}", totals.sum());
        story.push(text);
    }
}

/// Whether every file has the copies that it should, on nodes that are there, and nothing is under way.
fn settled(world: &World) -> Result<bool, String> {
    world.at_load(|| {
        let status = world.admin()?.status().map_err(|e| e.to_string())?;
        Ok(status.below_copies == 0 && status.jobs_active == 0 && status.nodes_up == 4)
    })
}

/// Flips a bit in a spool, looks for it as a user would, and takes it back unless the grid has dealt with it.
fn rot(world: &World, load: &Load, rng: &mut Rng, totals: &mut Totals) -> Result<Option<String>, String> {
    let all: Vec<(&'static str, PathBuf)> = world
        .services
        .iter()
        .flat_map(|s| objects(&s.spool()).into_iter().map(move |o| (s.name, o)))
        .collect();
    let Some((node, object)) = all.get(rng.index(all.len())) else {
        return Ok(None);
    };
    let len = object.metadata().map_err(|e| e.to_string())?.len();
    // The content comes first, 32 bytes and more of trailer behind it.
    let at = rng.below(len / 2);
    let failed = |e: std::io::Error| format!("{}: {e}", object.display());
    let file = File::options().read(true).write(true).open(object);
    let mut file = file.map_err(failed)?;
    flip_in(&mut file, at, 3).map_err(failed)?;
    let names: Vec<(String, Version)> = certain(load);
    let (wrong, bad_reads) = world.at_load(|| {
        let grid = world.admin()?;
        let mut wrong = Vec::new();
        let mut bad = Vec::new();
        for (name, version) in &names {
            let checked = grid.check_replicas(name.as_bytes(), &Cancel::default());
            for replica in checked.into_iter().flatten().filter(|r| r.problem.is_some()) {
                wrong.push((name.clone(), replica.node));
            }
            // A damaged replica may fail a read; it must never give other bytes.
            if let Ok(read) = get(&grid, name)
                && !is_version(read.as_ref(), *version)
            {
                bad.push(name.clone());
            }
        }
        Ok((wrong, bad))
    })?;
    for name in bad_reads {
        totals
            .problems
            .push(format!("{name}: a damaged replica was read as good"));
    }
    // An object of a content that is on its way out is nobody's any more.
    let found = wrong.iter().any(|(_, n)| n == node);
    let elsewhere = wrong.iter().filter(|(_, n)| n != node).count();
    if elsewhere > 0 {
        totals
            .problems
            .push(format!("replicas are wrong where no bit was flipped: {wrong:?}"));
    }
    // It may be in quarantine by now, and a good copy in its place: that one stays as it is.
    flip_in(&mut file, at, 3).map_err(failed)?;
    Ok(found.then(|| format!("a bit of {} on {node} flipped and was found", object.display())))
}

/// Names that stand for one thing.
fn certain(load: &Load) -> Vec<(String, Version)> {
    let model = load.model().into_iter();
    model
        .filter_map(|(name, versions)| match versions.as_slice() {
            [one] if one.is_some() => Some((name, *one)),
            _ => None,
        })
        .collect()
}

/// Compares everything with what was acknowledged; see [`crate::grid`].
fn compare(world: &World, load: &Load, totals: &mut Totals) -> Result<(), String> {
    let model = load.model();
    let (problems, found, files, replicas) = world.at_load(|| {
        let grid = world.admin()?;
        let mut problems = Vec::new();
        let mut found = Vec::new();
        let (mut files, mut replicas) = (0, 0);
        for (name, versions) in &model {
            let read = match get(&grid, name) {
                Ok(read) => read,
                Err(e) => {
                    problems.push(format!("{name} (one of {versions:?}) cannot be read: {e}"));
                    continue;
                }
            };
            match versions.iter().find(|v| is_version(read.as_ref(), **v)) {
                Some(version) => found.push((name.clone(), *version)),
                None => problems.push(format!(
                    "{name} should be one of {versions:?}, but is {:?} bytes of something else",
                    read.as_ref().map(Vec::len)
                )),
            }
            files += u64::from(read.is_some());
            if read.is_some_and(|r| !r.is_empty()) {
                replicas += check(&grid, name, &mut problems)?;
            }
        }
        for entry in grid.list(b"/") {
            let entry = entry.map_err(|e| e.to_string())?;
            let name = format!("/{}", String::from_utf8_lossy(&entry.name));
            if !model.contains_key(&name) {
                problems.push(format!("{name} is there and was never put"));
            }
        }
        let findings = grid.check(0).map_err(|e| e.to_string())?;
        problems.extend(
            findings
                .iter()
                .map(|f| format!("catalog: {}", String::from_utf8_lossy(f))),
        );
        Ok((problems, found, files, replicas))
    })?;
    for (name, version) in found {
        load.found(&name, version);
    }
    totals.problems.extend(problems);
    totals.files += files;
    totals.replicas += replicas;
    Ok(())
}

/// All replicas of a file: how many are right.
fn check(grid: &Grid, name: &str, problems: &mut Vec<String>) -> Result<u64, String> {
    let checked = grid
        .check_replicas(name.as_bytes(), &Cancel::default())
        .map_err(|e| e.to_string())?;
    let mut right = 0;
    for replica in &checked {
        match &replica.problem {
            None => right += 1,
            Some(problem) => problems.push(format!("{name} on {}: {problem}", replica.node)),
        }
    }
    if right < 2 {
        problems.push(format!("{name} has {right} good replicas of 2"));
    }
    Ok(right)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_the_nearest() {
        let times: Vec<Duration> = (1..=200).rev().map(Duration::from_secs).collect();
        assert_eq!(
            distribution(&times),
            "median 100.0 s, p99 198.0 s, longest 200.0 s of 200"
        );
        assert_eq!(
            distribution(&[Duration::from_secs(3)]),
            "median 3.0 s, p99 3.0 s, longest 3.0 s of 1"
        );
        assert_eq!(distribution(&[]), "none");
    }
}
