//! What is done to a grid, and how it is taken back.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::grid::world::World;
use crate::soak::rng::Rng;

/// A fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// SIGKILL for a metadata service.
    KillService,
    /// SIGKILL for both, one right after the other.
    KillServices,
    /// SIGKILL for a node.
    KillNode,
    /// The database's server ends as in a crash and is started again.
    Database,
    /// A site's link goes down.
    Cut,
    /// A node's disk is full.
    FullDisk,
    /// The clock of a service or node jumps, up to a day either way.
    Clock,
    /// A node is killed and its spool removed.
    LoseDisk,
    /// A bit of an object in a spool flips.
    BitRot,
}

/// Weights of the faults that take no bytes away.
const GENTLE: &[(Fault, u64)] = &[
    (Fault::KillService, 28),
    (Fault::KillServices, 4),
    (Fault::KillNode, 26),
    (Fault::Database, 12),
    (Fault::Cut, 14),
    (Fault::FullDisk, 8),
    (Fault::Clock, 8),
];

/// A fault that may overlap with any other.
pub fn gentle(rng: &mut Rng) -> Fault {
    let sum = GENTLE.iter().map(|(_, w)| w).sum();
    let mut at = rng.below(sum);
    for (fault, weight) in GENTLE {
        if at < *weight {
            return *fault;
        }
        at -= weight;
    }
    Fault::KillService
}

/// What is to be taken back.
#[derive(Default)]
pub struct Wounds {
    cut: Vec<usize>,
    fillers: Vec<PathBuf>,
    clocks: Vec<PathBuf>,
}

/// Bytes of a fill at once: the last ones byte for byte would take for ever.
const FILL_BYTES: [usize; 2] = [1 << 20, 4096];

/// Writes a file until the disk is full.
///
/// # Errors
/// Anything but a full disk.
pub fn fill(path: &Path) -> io::Result<u64> {
    let mut file = File::create(path)?;
    let mut written = 0;
    for block in FILL_BYTES {
        let bytes = vec![1; block];
        loop {
            match file.write_all(&bytes).and_then(|()| file.sync_data()) {
                Ok(()) => written += block as u64,
                Err(e) if e.kind() == io::ErrorKind::StorageFull => break,
                Err(e) => return Err(e),
            }
        }
    }
    Ok(written)
}

/// Flips a bit of a file's first `len` bytes; again, and it is as before.
///
/// # Errors
/// The file's.
pub fn flip(path: &Path, at: u64, bit: u8) -> io::Result<()> {
    let mut file = OpenOptions::new().read(true).write(true).open(path)?;
    flip_in(&mut file, at, bit)
}

/// Flips a bit of an open file: of this one, whatever stands at its path by now.
///
/// # Errors
/// Of the file.
pub fn flip_in(file: &mut File, at: u64, bit: u8) -> io::Result<()> {
    let mut byte = [0];
    file.seek(SeekFrom::Start(at))?;
    file.read_exact(&mut byte)?;
    byte[0] ^= 1 << (bit % 8);
    file.seek(SeekFrom::Start(at))?;
    file.write_all(&byte)?;
    file.sync_all()
}

/// Objects in a spool, sorted.
#[must_use]
pub fn objects(spool: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for bucket in fs::read_dir(spool.join("objects"))
        .into_iter()
        .flatten()
        .flatten()
    {
        for object in fs::read_dir(bucket.path()).into_iter().flatten().flatten() {
            found.push(object.path());
        }
    }
    found.sort();
    found
}

impl Wounds {
    /// Does it; says what was done, or nothing if it cannot be done now.
    ///
    /// # Errors
    /// What went wrong with the injector itself.
    pub fn inflict(
        &mut self,
        world: &mut World,
        fault: Fault,
        rng: &mut Rng,
    ) -> Result<Option<String>, String> {
        match fault {
            Fault::KillService => Ok(kill(world, ["a", "b"][rng.index(2)])),
            Fault::KillServices => {
                let both = [kill(world, "a"), kill(world, "b")];
                Ok(both.iter().any(Option::is_some).then(|| "killed a and b".into()))
            }
            Fault::KillNode => Ok(kill(world, ["n1", "n2", "n3", "n4"][rng.index(4)])),
            Fault::Database => {
                world.server.crash_and_restart();
                Ok(Some("database crashed and restarted".into()))
            }
            Fault::Cut => self.cut(world, rng.index(2)),
            Fault::FullDisk => self.full_disk(world),
            Fault::Clock => self.clock(world, rng),
            Fault::LoseDisk => {
                let name = ["n1", "n2", "n3"][rng.index(3)];
                let n = world.find(name);
                let Some(service) = world.services.get_mut(n) else {
                    return Ok(None);
                };
                service.kill();
                let spool = service.spool();
                fs::remove_dir_all(&spool).map_err(|e| format!("{}: {e}", spool.display()))?;
                Ok(Some(format!("{name} lost its disk")))
            }
            // The soak does it itself: it looks for it at once.
            Fault::BitRot => Ok(None),
        }
    }

    fn cut(&mut self, world: &World, place: usize) -> Result<Option<String>, String> {
        let Some(net) = world.net.as_ref().filter(|_| !self.cut.contains(&place)) else {
            return Ok(None);
        };
        net.cut(place, true)?;
        self.cut.push(place);
        Ok(Some(format!("site {place} cut off")))
    }

    fn full_disk(&mut self, world: &mut World) -> Result<Option<String>, String> {
        let Some(node) = world.services.iter_mut().find(|s| s.has_small_disk()) else {
            return Ok(None);
        };
        // A process that has begun but not mounted yet has the folder below.
        if !node.is_running() || !node.spool().join("SPOOL").exists() {
            return Ok(None);
        }
        let filler = node.spool().join("filler");
        match fill(&filler) {
            Ok(bytes) => {
                self.fillers.push(filler);
                Ok(Some(format!("disk of n4 full with {bytes} bytes")))
            }
            Err(e) => Err(format!("{}: {e}", filler.display())),
        }
    }

    fn clock(&mut self, world: &World, rng: &mut Rng) -> Result<Option<String>, String> {
        if !world.clocks {
            return Ok(None);
        }
        let Some(service) = world.services.get(rng.index(world.services.len())) else {
            return Ok(None);
        };
        let seconds = rng.below(2 * 86_400);
        let offset = i64::try_from(seconds).unwrap_or_default() - 86_400;
        set_clock(&service.clock(), offset)?;
        self.clocks.push(service.clock());
        Ok(Some(format!("clock of {} jumped by {offset} s", service.name)))
    }

    /// Takes everything back: links up, disks free, clocks right, all services started.
    ///
    /// # Errors
    /// A service that does not start, or the kernel's words.
    pub fn heal(&mut self, world: &mut World) -> Result<(), String> {
        for place in self.cut.drain(..) {
            if let Some(net) = &world.net {
                net.cut(place, false)?;
            }
        }
        for clock in self.clocks.drain(..) {
            set_clock(&clock, 0)?;
        }
        for n in 0..world.services.len() {
            world.start_service(n)?;
        }
        let small = world.services.iter().find(|s| s.has_small_disk());
        if let Some(node) = small.filter(|_| !self.fillers.is_empty()) {
            // The node may have been started anew since: its spool is then mounted anew.
            let (spool, now) = (node.spool(), std::time::Instant::now());
            while !spool.join("SPOOL").exists() && now.elapsed() < crate::grid::world::PATIENCE {
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            let filler = spool.join("filler");
            if filler.exists() {
                fs::remove_file(&filler).map_err(|e| format!("{}: {e}", filler.display()))?;
            }
        }
        self.fillers.clear();
        Ok(())
    }
}

/// Writes a clock's offset as libfaketime reads it; in one step.
fn set_clock(path: &Path, seconds: i64) -> Result<(), String> {
    let aside = path.with_extension("new");
    fs::write(&aside, format!("{seconds:+}\n"))
        .and_then(|()| fs::rename(&aside, path))
        .map_err(|e| format!("{}: {e}", path.display()))
}

fn kill(world: &mut World, name: &str) -> Option<String> {
    let n = world.find(name);
    let killed = world.services.get_mut(n)?.kill();
    killed.then(|| format!("killed {name}"))
}
