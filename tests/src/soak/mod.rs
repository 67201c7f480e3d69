//! Faults on a running copy, from a seed.
//!
//! ```text
//!   cp ----> proxy (counts, cuts, stalls, flips) ----> serve          one episode: one copy of the tree,
//!    ^ kill -9                                           ^ kill -9     push or pull, TLS or clear text,
//!    source file changed under it        bit flipped in a part file    with several faults on its way
//! ```
//!
//! After every fault that ends a run the same command is run again, at last to its end. Then the copy must
//! equal the source (content, modes, times, links, holes), nothing else may be there, and every file that was
//! told as durable must have been there, and right, after every fault.
//!
//! **What counts as sent**: all bytes that reached the proxy in the data's direction, with all their framing.
//! **The minimum**: the bytes of the tree that are not holes, each inode once. **Deliberate**: pieces that are
//! sent again because the soak corrupted them (as `resent` says) and the old content of files that it changed;
//! these are counted apart. The rest beyond the minimum is the price of the faults.

pub mod episode;
pub mod process;
pub mod proxy;
pub mod rng;
pub mod state;
pub mod tree;

use episode::{Episode, LAST, Planned};
use process::Home;
use proxy::Way;
use rng::Rng;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tree::Shape;

/// What is done to a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// SIGKILL for `cp`.
    KillClient,
    /// SIGKILL for `serve`.
    KillService,
    /// All connections cut.
    Cut,
    /// One data stream cut: the others go on.
    CutStream,
    /// Nothing passes for a while.
    Stall,
    /// Nothing passes for a while, then all connections are cut.
    StallCut,
    /// A bit flipped in a data stream, in clear text: its digest tells.
    FlipWire,
    /// A bit flipped in a data stream under TLS, which ends that stream.
    FlipTls,
    /// A bit flipped in a control connection, in clear text.
    FlipControl,
    /// A bit flipped in a journalled piece of a part file that is not complete.
    FlipDisk,
    /// The receiver killed and a bit flipped in what it left.
    FlipAtRest,
    /// A source file written to while it is sent.
    Change,
}

impl Fault {
    const fn is_flip_on_the_way(self) -> bool {
        matches!(self, Self::FlipWire | Self::FlipTls | Self::FlipControl)
    }
}

/// Weights of the faults of a copy under TLS.
const SECURE: &[(Fault, u64)] = &[
    (Fault::KillClient, 24),
    (Fault::KillService, 22),
    (Fault::Cut, 14),
    (Fault::CutStream, 8),
    (Fault::Stall, 4),
    (Fault::StallCut, 6),
    (Fault::FlipTls, 6),
    (Fault::FlipDisk, 6),
    (Fault::FlipAtRest, 6),
    (Fault::Change, 4),
];
/// Weights of the faults of a copy in clear text: none that ends it, so that each flip must be reported.
const CLEAR: &[(Fault, u64)] = &[(Fault::FlipWire, 70), (Fault::FlipDisk, 30)];

/// A soak.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// Faults that must hit.
    pub faults: u64,
    /// Faults planned for one copy.
    pub per_copy: u64,
    /// The tree.
    pub shape: Shape,
    /// Rates of the runs, in turn by chance; as `--rate` takes them.
    pub rates: &'static [&'static str],
    /// The seed.
    pub seed: u64,
}

/// What was sent for some copies; see the module.
#[derive(Debug, Default, Clone, Copy)]
pub struct Bytes {
    /// What had to be sent.
    pub minimum: u64,
    /// What was sent.
    pub sent: u64,
    /// What was sent again because the soak corrupted or changed it.
    pub deliberate: u64,
}

impl Bytes {
    /// Bytes that were sent beyond what had to be.
    #[must_use]
    pub const fn overhead(&self) -> u64 {
        self.sent.saturating_sub(self.minimum + self.deliberate)
    }

    /// The same in hundredths of a percent of the minimum.
    #[must_use]
    pub fn overhead_permyriad(&self) -> u64 {
        self.overhead() * 10_000 / self.minimum.max(1)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (over, percent) = (self.overhead(), self.overhead_permyriad());
        let Self {
            minimum,
            sent,
            deliberate,
        } = self;
        write!(
            f,
            "minimum {minimum} bytes, sent {sent}, of which deliberate {deliberate}, overhead {over} = {}.{:02} %",
            percent / 100,
            percent % 100
        )
    }
}

/// What happened.
#[derive(Debug, Default)]
pub struct Totals {
    /// Faults that hit.
    pub faults: BTreeMap<Fault, u64>,
    /// Copies.
    pub copies: u64,
    /// Runs of `cp`.
    pub attempts: u64,
    /// Regular files that were compared at the end of the copies.
    pub files: u64,
    /// Bytes of the copies of which a run was ended by a fault.
    pub interrupted: Bytes,
    /// Bytes of the others.
    pub whole: Bytes,
    /// Runs that a fault ended.
    pub ended: u64,
    /// Files looked at after a fault because they had been told as durable.
    pub acknowledged: u64,
    /// Those that were not there, or wrong.
    pub lost: u64,
    /// Files that were told as durable in two runs of one copy.
    pub again: u64,
    /// Pieces sent again because they were wrong at the destination.
    pub resent: u64,
    /// Files begun again because their source changed.
    pub restarted: u64,
    /// Data streams that broke while the others went on.
    pub streams_lost: u64,
    /// Everything that must not be.
    pub problems: Vec<String>,
}

impl Totals {
    /// Faults in all.
    #[must_use]
    pub fn hits(&self) -> u64 {
        self.faults.values().sum()
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds: Vec<_> = self.faults.iter().map(|(k, n)| format!("{k:?} {n}")).collect();
        write!(
            f,
            "soak: {} faults ({}), {} copies in {} attempts, {} files compared; interrupted copies: {}, {} per run \
             that a fault ended ({}); others: {}; {} durable files looked at after a fault, lost {}, sent again {}; \
             {} pieces resent, {} files restarted, {} streams lost, {} problems",
            self.hits(),
            kinds.join(", "),
            self.copies,
            self.attempts,
            self.files,
            self.interrupted,
            self.interrupted.overhead() / self.ended.max(1),
            self.ended,
            self.whole,
            self.acknowledged,
            self.lost,
            self.again,
            self.resent,
            self.restarted,
            self.streams_lost,
            self.problems.len()
        )
    }
}

fn choose(weights: &[(Fault, u64)], rng: &mut Rng) -> Fault {
    let mut at = rng.below(weights.iter().map(|(_, w)| w).sum());
    for &(fault, weight) in weights {
        match at.checked_sub(weight) {
            None => return fault,
            Some(rest) => at = rest,
        }
    }
    Fault::KillClient
}

/// Faults in the order of the bytes at which they come; some just at the start or the end of a run.
fn plan(n: u64, secure: bool, minimum: u64, rng: &mut Rng) -> Vec<Planned> {
    let mut out: Vec<_> = (0..n)
        .map(|_| {
            let mut fault = choose(if secure { SECURE } else { CLEAR }, rng);
            let (position, delay_ms) = match rng.below(10) {
                0 => (0, rng.below(200)),
                1 if secure => (minimum, rng.below(250)),
                2 if secure => {
                    fault = [Fault::KillClient, Fault::KillService, Fault::Cut][rng.index(3)];
                    (LAST, rng.below(30))
                }
                _ => (rng.below(minimum), rng.below(4)),
            };
            Planned {
                position,
                delay: Duration::from_millis(delay_ms),
                fault,
            }
        })
        .collect();
    out.sort_by_key(|p| p.position);
    out
}

/// A tree on disk, the command, and what has happened so far.
pub struct Soak<'a> {
    config: &'a Config,
    source: PathBuf,
    home: Home,
    rng: Rng,
    /// What happened.
    pub totals: Totals,
}

impl<'a> Soak<'a> {
    /// Makes the tree. `dir` is on a real disk, empty, and removed by the caller.
    ///
    /// # Errors
    /// The tree cannot be made or the command cannot be built.
    pub fn new(config: &'a Config, dir: &Path) -> Result<Self, String> {
        let mut rng = Rng::new(config.seed);
        let source = dir.join("tree");
        tree::make(&source, config.shape, rng.next()).map_err(|e| format!("{}: {e}", source.display()))?;
        let home = Home {
            binary: process::binary()?,
            dir: dir.to_path_buf(),
        };
        Ok(Self {
            config,
            source,
            home,
            rng,
            totals: Totals::default(),
        })
    }

    /// One copy with the faults that `plan` makes for a number of bytes.
    ///
    /// # Errors
    /// The soak itself cannot go on.
    pub fn copy(
        &mut self,
        way: Way,
        secure: bool,
        plan: impl FnOnce(u64, &mut Rng) -> Vec<Planned>,
    ) -> Result<(), String> {
        let before = self.totals.hits();
        let begun = Instant::now();
        let number = self.totals.copies;
        let mut episode = Episode::new(
            &self.home,
            &self.source,
            number,
            way,
            secure,
            &mut self.rng,
            &mut self.totals,
        )?;
        let faults = plan(episode.minimum(), episode.rng());
        let planned = faults.len();
        episode.run(faults.into(), self.config.rates)?;
        eprintln!(
            "copy {number} ({}, {}): {} of {planned} faults hit, {} s; {}",
            if way == Way::Up { "push" } else { "pull" },
            if secure { "TLS" } else { "clear text" },
            self.totals.hits() - before,
            begun.elapsed().as_secs(),
            self.totals,
        );
        Ok(())
    }
}

/// Copies the tree with faults until enough have hit: push and pull under TLS and in clear text.
///
/// # Errors
/// The soak itself could not run; what it found is in [`Totals::problems`].
pub fn run(config: &Config, dir: &Path) -> Result<Totals, String> {
    let mut soak = Soak::new(config, dir)?;
    let mut fruitless = 0;
    while soak.totals.hits() < config.faults && fruitless < 5 {
        let before = soak.totals.hits();
        let secure = soak.totals.copies % 3 != 2;
        let way = if soak.totals.copies % 2 == 0 {
            Way::Up
        } else {
            Way::Down
        };
        let wanted = (config.faults - before).min(config.per_copy);
        soak.copy(way, secure, |minimum, rng| plan(wanted, secure, minimum, rng))?;
        fruitless = if soak.totals.hits() == before {
            fruitless + 1
        } else {
            0
        };
    }
    Ok(soak.totals)
}
