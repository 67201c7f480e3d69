//! One copy of the tree, with faults on its way.

use super::process::{Attempt, Ended, Home, PATIENCE, Serve, Stopped};
use super::proxy::{Flip, FlipOrder, Proxy, Way};
use super::rng::Rng;
use super::state::{self, Part};
use super::tree::{self, Item, beneath};
use super::{Fault, Totals};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Data streams of a run.
const STREAMS: usize = 4;
/// How often the driver looks.
const LOOK: Duration = Duration::from_millis(1);
/// How long a fault that finds nothing to hit is tried again.
const TRY: Duration = Duration::from_millis(400);
/// Runs that may fail without a fault of ours before the copy is given up.
const MAX_STRANGE: u32 = 3;

/// Position behind the last file: links, folders and the last flush are still to come.
pub const LAST: u64 = u64::MAX;

/// A fault to come.
#[derive(Debug, Clone, Copy)]
pub struct Planned {
    /// Not before so many bytes have been sent in all runs of the copy; [`LAST`]: not before every file has
    /// been told as durable.
    pub position: u64,
    /// And so long after that (or after the start of the run).
    pub delay: Duration,
    /// What.
    pub fault: Fault,
}

/// A bit that was flipped in a part file.
struct DiskFlip {
    part: PathBuf,
    rel: Vec<u8>,
    piece: u64,
    at: u64,
    told: bool,
}

/// How a fault went.
#[derive(PartialEq, Eq)]
enum Hit {
    /// There was nothing to hit.
    No,
    /// It hit, and the run goes on.
    GoesOn,
    /// It hit, and the run may end.
    MayEnd,
}

/// See the module.
pub struct Episode<'a> {
    home: &'a Home,
    rng: Rng,
    totals: &'a mut Totals,
    way: Way,
    secure: bool,
    number: u64,
    source: &'a Path,
    items: BTreeMap<Vec<u8>, Item>,
    /// Content of each file: what it is, and what it was before the soak changed it.
    digests: HashMap<Vec<u8>, [u8; 32]>,
    earlier: HashMap<Vec<u8>, [u8; 32]>,
    shown: HashMap<String, Vec<u8>>,
    by_size: HashMap<u64, Vec<u8>>,
    minimum: u64,
    /// Regular files, each once.
    inodes: usize,
    dest: PathBuf,
    proxy: Proxy,
    serve: Serve,
    /// Files told as durable, with the digest if told.
    acknowledged: BTreeMap<Vec<u8>, Option<String>>,
    disk_flips: Vec<DiskFlip>,
    wire_flips: Vec<Flip>,
    /// First byte and length of each piece that was resent.
    resent: Vec<(u64, u64)>,
    changed_bytes: u64,
    failures: u64,
    /// Faults of this run.
    log: Vec<String>,
}

fn io(e: std::io::Error) -> String {
    e.to_string()
}

/// A path as the reports show it: UTF-8 as it is, other bytes as `\xNN`, a backslash doubled.
fn show(path: &[u8]) -> String {
    path.utf8_chunks().fold(String::new(), |mut out, chunk| {
        out.push_str(&chunk.valid().replace('\\', "\\\\"));
        chunk
            .invalid()
            .iter()
            .for_each(|b| out.push_str(&format!("\\x{b:02x}")));
        out
    })
}

fn hex(digest: &[u8]) -> String {
    digest.iter().map(|b| format!("{b:02x}")).collect()
}

impl<'a> Episode<'a> {
    /// Reads the source and starts service and proxy.
    ///
    /// # Errors
    /// What cannot be made, read or started.
    pub fn new(
        home: &'a Home,
        source: &'a Path,
        number: u64,
        way: Way,
        secure: bool,
        rng: &mut Rng,
        totals: &'a mut Totals,
    ) -> Result<Self, String> {
        let items = tree::walk(source).map_err(io)?;
        let (mut digests, mut by_size, mut seen, mut minimum) =
            (HashMap::new(), HashMap::new(), HashSet::new(), 0);
        for (rel, item) in items.iter().filter(|(_, i)| i.is_file()) {
            let path = beneath(source, rel);
            digests.insert(rel.clone(), tree::digest(&path).map_err(io)?);
            if item.links == 1 {
                by_size.insert(item.size, rel.clone());
            }
            if seen.insert(item.inode) {
                minimum += tree::data_bytes(&path, item.size).map_err(io)?;
            }
        }
        let dest = home.dir.join(format!("dest-{number}"));
        fs::create_dir(&dest).map_err(io)?;
        let serve = Serve::start(home, &serve_root(home, way, &dest), !secure)?;
        let proxy = Proxy::start(serve.address).map_err(io)?;
        if secure {
            home.trust("site", &serve.ticket(), proxy.address())?;
        }
        totals.copies += 1;
        Ok(Self {
            home,
            rng: Rng::new(rng.next()),
            totals,
            way,
            secure,
            number,
            source,
            shown: items.keys().map(|rel| (show(rel), rel.clone())).collect(),
            items,
            digests,
            earlier: HashMap::new(),
            by_size,
            minimum,
            inodes: seen.len(),
            dest,
            proxy,
            serve,
            acknowledged: BTreeMap::new(),
            disk_flips: Vec::new(),
            wire_flips: Vec::new(),
            resent: Vec::new(),
            changed_bytes: 0,
            failures: 0,
            log: Vec::new(),
        })
    }

    /// Bytes that must be sent.
    #[must_use]
    pub const fn minimum(&self) -> u64 {
        self.minimum
    }

    /// Its own numbers.
    pub const fn rng(&mut self) -> &mut Rng {
        &mut self.rng
    }

    fn problem(&mut self, text: &str) {
        let text = format!(
            "copy {} ({:?}, TLS {}): {text}",
            self.number, self.way, self.secure
        );
        eprintln!("PROBLEM {text}");
        self.totals.problems.push(text);
    }

    /// Runs the command again and again until it succeeds, with the faults on its way, and checks.
    ///
    /// # Errors
    /// The soak itself cannot go on.
    pub fn run(mut self, mut plan: VecDeque<Planned>, rates: &[&str]) -> Result<(), String> {
        let begin = self.proxy.bytes(self.way);
        let mut strange = 0;
        loop {
            let rate = rates.get(self.rng.index(rates.len())).copied().unwrap_or("1G");
            let mut attempt = self.start(rate)?;
            self.totals.attempts += 1;
            let may_end = self.drive(&mut attempt, &mut plan, begin)?;
            self.wait_for_end(&mut attempt);
            let ended = attempt.end();
            eprintln!(
                "  run {} at {rate}: {:.1} s, {:?}, {} bytes in all; {}",
                self.totals.attempts,
                ended.seconds,
                ended.status,
                self.proxy.bytes(self.way) - begin,
                self.log.join(", ")
            );
            let hit = !std::mem::take(&mut self.log).is_empty();
            self.learn(&ended);
            if let Some(complaint) = self.serve.complaint() {
                self.problem(&complaint);
                self.restart_service()?;
            }
            if ended.is_ok() && hit && self.dest.join(state::STATE).exists() {
                // Hit between the word to the user and the end of the state: another run finds all there.
                continue;
            }
            if ended.is_ok() {
                break;
            }
            self.failures += 1;
            let code = ended.status.and_then(|s| s.code());
            if !may_end || !matches!(code, Some(1) | None) {
                strange += 1;
                let text = format!(
                    "the run ended ({:?}) after {:.1} s without a reason: {}{}\n  service:{}",
                    ended.status,
                    ended.seconds,
                    ended.report,
                    ended.tail,
                    self.serve.tail()
                );
                self.problem(&text);
            }
            self.look_for_drops();
            self.check_acknowledged()?;
            if strange > MAX_STRANGE {
                return Err("runs fail again and again".into());
            }
        }
        let sent = self.proxy.bytes(self.way) - begin;
        self.check_end(sent)
    }

    fn start(&self, rate: &str) -> Result<Attempt, String> {
        let copy = self.copy().display().to_string();
        let source = self.source.display().to_string();
        let at = |path: &str| {
            if self.secure {
                format!("site:{path}")
            } else {
                format!("http://{}{path}", self.proxy.address())
            }
        };
        let (from, to) = match self.way {
            Way::Up => (source, at("/in")),
            Way::Down => (at("/tree"), copy),
        };
        let streams = STREAMS.to_string();
        let mut args = vec!["--rate", rate, "--streams", &streams, "-T", &from, &to];
        if !self.secure {
            args.insert(0, "--insecure");
        }
        Attempt::start(self.home, &args)
    }

    fn copy(&self) -> PathBuf {
        self.dest.join("in")
    }

    fn restart_service(&mut self) -> Result<(), String> {
        self.serve = Serve::start(
            self.home,
            &serve_root(self.home, self.way, &self.dest),
            !self.secure,
        )?;
        self.proxy.set_target(self.serve.address);
        Ok(())
    }

    /// Injects what is due while the run lasts; says whether it may end by that.
    fn drive(
        &mut self,
        attempt: &mut Attempt,
        plan: &mut VecDeque<Planned>,
        begin: u64,
    ) -> Result<bool, String> {
        let mut may_end = false;
        let mut due: Option<Instant> = None;
        let mut cut = 0;
        let (mut last, mut moved) = (0, Instant::now());
        while attempt.is_running() {
            let sent = self.proxy.bytes(self.way) - begin;
            if sent != last {
                (last, moved) = (sent, Instant::now());
            }
            if moved.elapsed() > PATIENCE {
                self.problem(&format!("nothing moved for {} s", PATIENCE.as_secs()));
                return Ok(attempt.kill());
            }
            let reached = |at: u64| match at {
                LAST => self.acknowledged.len() + attempt.count("durable") >= self.inodes,
                at => sent >= at,
            };
            let Some(next) = plan.front().copied().filter(|p| reached(p.position)) else {
                std::thread::sleep(LOOK);
                continue;
            };
            let since = due.get_or_insert_with(|| if sent == 0 { attempt.begun } else { Instant::now() });
            let late = since.elapsed().saturating_sub(next.delay);
            if since.elapsed() < next.delay {
                std::thread::sleep(LOOK);
                continue;
            }
            match self.inject(next.fault, attempt)? {
                Hit::No if late < TRY => std::thread::sleep(LOOK * 10),
                hit => {
                    plan.pop_front();
                    due = None;
                    if hit != Hit::No {
                        *self.totals.faults.entry(next.fault).or_default() += 1;
                        let ms = attempt.begun.elapsed().as_millis();
                        self.log
                            .push(format!("{:?} at {sent} bytes, {ms} ms", next.fault));
                        cut += usize::from(matches!(next.fault, Fault::CutStream | Fault::FlipTls));
                        may_end |= hit == Hit::MayEnd || cut >= STREAMS;
                    }
                    if hit == Hit::MayEnd && !next.fault.is_flip_on_the_way() {
                        return Ok(true);
                    }
                }
            }
        }
        Ok(may_end)
    }

    fn wait_for_end(&mut self, attempt: &mut Attempt) {
        let begun = Instant::now();
        while attempt.is_running() {
            if begun.elapsed() > PATIENCE {
                self.problem(&format!(
                    "cp still runs {} s after its end was due",
                    PATIENCE.as_secs()
                ));
                // It is gone either way.
                let _ = attempt.kill();
            }
            std::thread::sleep(LOOK);
        }
    }

    fn inject(&mut self, fault: Fault, attempt: &mut Attempt) -> Result<Hit, String> {
        let ends = |hit: bool| if hit { Hit::MayEnd } else { Hit::No };
        let goes_on = |hit: bool| if hit { Hit::GoesOn } else { Hit::No };
        Ok(match fault {
            Fault::KillClient => ends(attempt.kill()),
            Fault::KillService => {
                self.kill_service()?;
                self.wait_for_end(attempt);
                self.restart_service()?;
                Hit::MayEnd
            }
            Fault::Cut => ends(self.proxy.cut_all() > 0),
            Fault::CutStream => goes_on(self.proxy.cut_one(self.way, &mut self.rng)),
            Fault::Stall | Fault::StallCut => {
                if self.proxy.links() == 0 {
                    return Ok(Hit::No);
                }
                self.proxy.stall(true);
                std::thread::sleep(Duration::from_millis(100 + self.rng.below(600)));
                let cut = fault == Fault::StallCut && self.proxy.cut_all() > 0;
                self.proxy.stall(false);
                if fault == Fault::Stall {
                    Hit::GoesOn
                } else {
                    ends(cut)
                }
            }
            Fault::FlipWire | Fault::FlipTls | Fault::FlipControl => self.flip_wire(fault, attempt),
            Fault::FlipDisk => goes_on(self.flip_disk(attempt)),
            Fault::FlipAtRest => self.flip_at_rest(attempt)?,
            Fault::Change => goes_on(self.change(attempt)?),
        })
    }

    fn kill_service(&mut self) -> Result<(), String> {
        if self.serve.kill() {
            Ok(())
        } else {
            Err(format!("serve ended by itself:{}", self.serve.tail()))
        }
    }

    fn flip_wire(&mut self, fault: Fault, attempt: &mut Attempt) -> Hit {
        let before = self.proxy.flips().len();
        self.proxy.order_flip(
            FlipOrder {
                way: self.way,
                data: fault != Fault::FlipControl,
            },
            &mut self.rng,
        );
        let begun = Instant::now();
        while self.proxy.flips().len() == before && attempt.is_running() && begun.elapsed() < TRY {
            std::thread::sleep(LOOK);
        }
        if self.proxy.recall_flip() {
            return Hit::No;
        }
        let Some(flip) = self.proxy.flips().last().copied().filter(|f| f.before != f.after) else {
            self.problem("the proxy's flip changed nothing");
            return Hit::No;
        };
        if fault == Fault::FlipWire {
            self.wire_flips.push(flip);
        }
        // A frame header that is wrong ends the session.
        if fault == Fault::FlipWire && flip.frame.is_some() {
            Hit::GoesOn
        } else {
            Hit::MayEnd
        }
    }

    fn receiver(&self, attempt: &Attempt) -> u32 {
        match self.way {
            Way::Up => self.serve.pid(),
            Way::Down => attempt.pid(),
        }
    }

    /// A part file that belongs to a file that the soak has not touched.
    fn choose(&mut self, fits: impl Fn(&Part, &Item) -> bool) -> Option<(Part, Vec<u8>)> {
        let mut parts: Vec<(Part, Vec<u8>)> = Vec::new();
        for part in state::parts(&self.dest) {
            if let Some(rel) = part.there.and_then(|size| self.by_size.get(&size))
                && let Some(item) = self.items.get(rel)
                && !self.earlier.contains_key(rel)
                && !part.pieces.is_empty()
                && part.dropped.is_empty()
                && !self.disk_flips.iter().any(|f| f.rel == *rel)
                && fits(&part, item)
            {
                parts.push((part, rel.clone()));
            }
        }
        parts.get(self.rng.index(parts.len())).cloned()
    }

    fn flip_part(&mut self, part: &Part, rel: Vec<u8>) -> bool {
        let nth = self.rng.index(part.pieces.len());
        let Some((&piece, &len)) = part.pieces.iter().nth(nth) else {
            return false;
        };
        let at = piece + self.rng.below(len);
        match part.flip(at, self.rng.below(8)) {
            Ok((before, after)) if before != after => {
                self.disk_flips.push(DiskFlip {
                    part: part.path.clone(),
                    rel,
                    piece,
                    at,
                    told: false,
                });
                true
            }
            _ => false,
        }
    }

    /// In a file that still misses something while the receiver stands still: it cannot have been compared.
    fn flip_disk(&mut self, attempt: &Attempt) -> bool {
        let Some(_stopped) = Stopped::new(self.receiver(attempt)) else {
            return false;
        };
        let chosen = self
            .choose(|part, item| part.bytes() < item.size && item.allocated >= item.size && !part.verified);
        chosen.is_some_and(|(part, rel)| self.flip_part(&part, rel))
    }

    /// In any piece that a killed receiver left.
    fn flip_at_rest(&mut self, attempt: &mut Attempt) -> Result<Hit, String> {
        if self.choose(|_, _| true).is_none() {
            return Ok(Hit::No);
        }
        match self.way {
            Way::Up => {
                self.kill_service()?;
                self.wait_for_end(attempt);
            }
            Way::Down if !attempt.kill() => return Ok(Hit::No),
            Way::Down => {}
        }
        let chosen = self.choose(|_, _| true);
        if !chosen.is_some_and(|(part, rel)| self.flip_part(&part, rel)) {
            *self
                .totals
                .faults
                .entry(if self.way == Way::Up {
                    Fault::KillService
                } else {
                    Fault::KillClient
                })
                .or_default() += 1;
        }
        if self.way == Way::Up {
            self.restart_service()?;
        }
        Ok(Hit::MayEnd)
    }

    /// Writes to a source of which the receiver, standing still, misses something: the sender cannot have
    /// looked at it for the last time.
    fn change(&mut self, attempt: &Attempt) -> Result<bool, String> {
        let Some(_stopped) = Stopped::new(self.receiver(attempt)) else {
            return Ok(false);
        };
        let chosen = self
            .choose(|part, item| part.bytes() < item.size && item.allocated >= item.size && !part.verified);
        let Some((part, rel)) = chosen else {
            return Ok(false);
        };
        let path = beneath(self.source, &rel);
        let file = fs::OpenOptions::new().write(true).open(&path).map_err(io)?;
        let mut bytes = vec![0u8; 4096];
        self.rng.fill(&mut bytes);
        let size = part.there.unwrap_or(0);
        let at = self.rng.below(size.saturating_sub(bytes.len() as u64));
        file.write_all_at(&bytes, at).map_err(io)?;
        if self.rng.chance(1, 3) {
            // Longer than any other, so that sizes stay apart.
            let longest = self.by_size.keys().max().copied().unwrap_or(0);
            file.write_all_at(&bytes, longest.max(size) + 1).map_err(io)?;
        }
        drop(file);
        self.changed_bytes += part.bytes();
        let digest = tree::digest(&path).map_err(io)?;
        if let Some(old) = self.digests.insert(rel.clone(), digest) {
            self.earlier.insert(rel, old);
        }
        Ok(true)
    }

    /// The name in the tree of a path in an event.
    fn name(&self, shown: &str) -> Option<&Vec<u8>> {
        let inner = shown.split_once('/').map(|(_, rest)| rest);
        inner
            .and_then(|rest| self.shown.get(rest))
            .or_else(|| self.shown.get(shown))
    }

    /// Takes in what a run told.
    fn learn(&mut self, ended: &Ended) {
        if let Some(complaint) = &ended.complaint {
            self.problem(&format!("{complaint}{}", ended.tail));
        }
        for told in &ended.events {
            let name = self.name(&told.path).cloned();
            match (told.event.as_str(), name) {
                ("durable", Some(rel)) => {
                    let again = self.acknowledged.insert(rel, told.blake3.clone()).is_some();
                    self.totals.again += u64::from(again);
                }
                ("resent", Some(rel)) => {
                    self.resent.push((told.offset, told.bytes));
                    let end = told.offset + told.bytes;
                    let mut ours = false;
                    for flip in self.disk_flips.iter_mut().filter(|f| f.rel == rel) {
                        let hit = (told.offset..end).contains(&flip.at);
                        flip.told |= hit;
                        ours |= hit;
                    }
                    // In clear text it may be a flip on the way.
                    if self.secure && !ours {
                        let size = self.items.get(&rel).map_or(0, |i| i.size);
                        let at = told.offset;
                        let name = show(&rel);
                        self.problem(&format!(
                            "[{at}, {end}) of {name} ({size} bytes) was wrong without a flip"
                        ));
                    }
                }
                ("restarted", Some(_)) => self.totals.restarted += 1,
                ("stream_lost", _) => self.totals.streams_lost += 1,
                (event, None) => {
                    self.problem(&format!("`{event}` of `{}`, which is not in the tree", told.path))
                }
                (event, Some(rel)) => self.problem(&format!("`{event}` of {}{}", show(&rel), ended.tail)),
            }
        }
    }

    /// Corruption that the receiver noticed in a run that was killed before it could tell.
    fn look_for_drops(&mut self) {
        let parts = state::parts(&self.dest);
        for flip in self.disk_flips.iter_mut().filter(|f| !f.told) {
            flip.told = parts
                .iter()
                .any(|p| p.path == flip.part && p.dropped.contains(&flip.piece));
        }
    }

    /// Everything that was told as durable is there and right.
    fn check_acknowledged(&mut self) -> Result<(), String> {
        let mut lost = Vec::new();
        for (rel, told) in &self.acknowledged {
            let there = tree::digest(&beneath(&self.copy(), rel)).ok();
            let right = there.is_some()
                && (there.as_ref() == self.digests.get(rel) || there.as_ref() == self.earlier.get(rel))
                && told
                    .as_ref()
                    .is_none_or(|hash| there.is_some_and(|d| hex(&d) == *hash));
            if !right {
                let what = if there.is_some() { "wrong" } else { "missing" };
                lost.push(format!("durable and {what}: {}", show(rel)));
            }
        }
        self.totals.acknowledged += self.acknowledged.len() as u64;
        self.totals.lost += lost.len() as u64;
        lost.iter().for_each(|text| self.problem(text));
        Ok(())
    }

    /// Each frame in which a bit was flipped was resent; two flips in one frame are one wrong piece.
    fn check_wire_flips(&mut self) {
        let frames: BTreeSet<_> = self.wire_flips.iter().filter_map(|f| f.frame).collect();
        let mut resent = self.resent.clone();
        let mut silent = Vec::new();
        for frame in frames {
            match resent
                .iter()
                .position(|&piece| piece == (frame.offset, frame.len))
            {
                Some(at) => drop(resent.swap_remove(at)),
                None => silent.push(frame),
            }
        }
        // A session that was ended by a wrong header drops what was under way without a word on each.
        if !silent.is_empty() && self.failures == 0 {
            self.problem(&format!(
                "frames with a flipped bit that nobody reported: {silent:?}, resent {:?}",
                self.resent
            ));
        }
    }

    fn check_end(mut self, sent: u64) -> Result<(), String> {
        let now = tree::walk(self.source).map_err(io)?;
        let different = tree::differences(&now, &self.digests, &self.copy()).map_err(io)?;
        different.iter().for_each(|text| self.problem(text));
        let beside: BTreeSet<_> = fs::read_dir(&self.dest)
            .map_err(io)?
            .flatten()
            .map(|e| e.file_name())
            .collect();
        if beside.iter().any(|name| name != "in") {
            self.problem(&format!("left beside the copy: {beside:?}"));
        }
        let untold: Vec<_> = self
            .disk_flips
            .iter()
            .filter(|f| !f.told)
            .map(|f| (show(&f.rel), f.at))
            .collect();
        if !untold.is_empty() {
            self.problem(&format!("flips in part files that nobody reported: {untold:?}"));
        }
        self.check_wire_flips();
        self.totals.files += now.values().filter(|i| i.is_file()).count() as u64;
        let bytes = if self.failures > 0 {
            &mut self.totals.interrupted
        } else {
            &mut self.totals.whole
        };
        bytes.minimum += self.minimum;
        bytes.sent += sent;
        bytes.deliberate += self.resent.iter().map(|(_, len)| len).sum::<u64>() + self.changed_bytes;
        self.totals.ended += self.failures;
        self.totals.resent += self.resent.len() as u64;
        fs::remove_dir_all(&self.dest).map_err(io)
    }
}

/// Push: the destination. Pull: the folder that holds the tree.
fn serve_root(home: &Home, way: Way, dest: &Path) -> String {
    let root = if way == Way::Up { dest } else { &home.dir };
    root.display().to_string()
}
