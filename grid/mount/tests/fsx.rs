//! An exerciser of one file: seeded operations against a model in memory.
//!
//! ```text
//!   read, write, append, truncate, lengthen, mapped read and write, fsync, close and open, another handle
//!          └──> file on the mount            └──> Vec<u8>      compared after each read and at each open
//! ```
//!
//! `KUROSHIO_FSX_S` sets the seconds (20 by default), `KUROSHIO_FSX_SEED` the seed, which a failure prints.

mod common;
mod map;

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use common::{TestGrid, bytes};
use map::Map;

/// Largest file of the exercise, bytes: more than a block of read-ahead and a part of an upload.
const MAX_BYTES: u64 = 10 << 20;
/// Operations kept to be printed when one is wrong.
const TOLD: usize = 30;

/// SplitMix64 (Steele, Lea, Flood 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    /// Mostly small, sometimes up to `n`.
    fn skewed(&mut self, n: u64) -> u64 {
        let shift = self.below(24);
        self.below((n >> shift).max(1))
    }
}

struct Exercise<'a> {
    path: &'a Path,
    file: File,
    model: Vec<u8>,
    random: Random,
    told: Vec<String>,
    operations: u64,
}

impl<'a> Exercise<'a> {
    fn begin(path: &'a Path, seed: u64) -> Self {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(path);
        Self {
            path,
            file: file.expect("made"),
            model: Vec::new(),
            random: Random(seed),
            told: Vec::new(),
            operations: 0,
        }
    }

    fn tell(&mut self, text: String) {
        if self.told.len() == TOLD {
            self.told.remove(0);
        }
        self.told.push(text);
    }

    fn size(&self) -> u64 {
        self.model.len() as u64
    }

    /// A range within the file, possibly empty.
    fn range(&mut self) -> (u64, usize) {
        let size = self.size();
        let offset = self.random.below(size + 1);
        let len = self.random.skewed(size - offset + 1);
        (offset, usize::try_from(len).expect("a length"))
    }

    fn compare(&self, offset: u64, found: &[u8]) {
        let from = usize::try_from(offset).expect("an offset");
        let expected = &self.model[from..from + found.len()];
        if found == expected {
            return;
        }
        let at = found.iter().zip(expected).position(|(a, b)| a != b).unwrap_or(0);
        panic!(
            "byte {} is {:#04x}, not {:#04x}, of {} read at {offset}; the file has {} bytes; last operations: {:#?}",
            offset + at as u64,
            found[at],
            expected[at],
            found.len(),
            self.size(),
            self.told
        );
    }

    fn fill(&mut self, len: usize) -> Vec<u8> {
        bytes(len, self.random.next())
    }

    fn put(&mut self, offset: u64, content: &[u8]) {
        let end = usize::try_from(offset).expect("an offset") + content.len();
        if self.model.len() < end {
            self.model.resize(end, 0);
        }
        self.model[end - content.len()..end].copy_from_slice(content);
    }

    fn step(&mut self) {
        self.operations += 1;
        match self.random.below(100) {
            0..=29 => self.read(),
            30..=59 => self.write(),
            60..=64 => self.append(),
            65..=70 => self.cut(),
            71..=74 => self.lengthen(),
            75..=82 => self.map_read(),
            83..=90 => self.map_write(),
            91..=93 => {
                self.tell("fsync".into());
                self.file.sync_all().expect("flushed");
            }
            94..=97 => self.reopen(),
            _ => self.other_handle(),
        }
        let size = self.file.metadata().expect("there").len();
        assert_eq!(size, self.size(), "the size; last operations: {:#?}", self.told);
    }

    fn read(&mut self) {
        let (offset, len) = self.range();
        self.tell(format!("read {offset} {len}"));
        let mut found = vec![0; len];
        self.file.read_exact_at(&mut found, offset).expect("read");
        self.compare(offset, &found);
    }

    fn write(&mut self) {
        // Sometimes beyond the end: what is between is zeros.
        let most = (self.size() + self.random.skewed(MAX_BYTES / 4)).min(MAX_BYTES - 1);
        let offset = self.random.below(most + 1);
        let len = self.random.skewed((MAX_BYTES - offset).min(3 << 20)) + 1;
        let content = self.fill(usize::try_from(len).expect("a length"));
        self.tell(format!("write {offset} {len}"));
        self.file.write_all_at(&content, offset).expect("written");
        self.put(offset, &content);
    }

    fn append(&mut self) {
        let len = self
            .random
            .skewed(MAX_BYTES.saturating_sub(self.size()).min(1 << 20));
        let content = self.fill(usize::try_from(len).expect("a length"));
        self.tell(format!("append {len}"));
        let mut file = OpenOptions::new().append(true).open(self.path).expect("open");
        std::io::Write::write_all(&mut file, &content).expect("appended");
        let end = self.size();
        self.put(end, &content);
    }

    fn cut(&mut self) {
        let size = self.size();
        let len = self.random.below(size + 1);
        self.tell(format!("truncate {len}"));
        if self.random.below(2) == 0 {
            self.file.set_len(len).expect("cut");
        } else {
            let len = i64::try_from(len).expect("a length");
            nix::unistd::truncate(self.path, len).expect("cut");
        }
        self.model.truncate(usize::try_from(len).expect("a length"));
    }

    fn lengthen(&mut self) {
        let len = (self.size() + self.random.skewed(MAX_BYTES)).min(MAX_BYTES);
        self.tell(format!("lengthen {len}"));
        self.file.set_len(len).expect("lengthened");
        self.model.resize(usize::try_from(len).expect("a length"), 0);
    }

    fn map_read(&mut self) {
        let (offset, len) = self.range();
        if len == 0 {
            return;
        }
        self.tell(format!("map and read {offset} {len}"));
        let map = Map::new(&self.file, self.model.len(), false);
        let from = usize::try_from(offset).expect("an offset");
        let found = map.bytes()[from..from + len].to_vec();
        self.compare(offset, &found);
    }

    fn map_write(&mut self) {
        let (offset, len) = self.range();
        if len == 0 {
            return;
        }
        let content = self.fill(len);
        let sync = self.random.below(2) == 0;
        self.tell(format!("map and write {offset} {len}, msync {sync}"));
        let mut map = Map::new(&self.file, self.model.len(), true);
        let from = usize::try_from(offset).expect("an offset");
        map.bytes_mut()[from..from + len].copy_from_slice(&content);
        if sync {
            map.sync();
        }
        drop(map);
        self.put(offset, &content);
    }

    fn reopen(&mut self) {
        self.tell("close, open".into());
        self.file.sync_data().expect("flushed");
        let file = OpenOptions::new().read(true).write(true).open(self.path);
        // The new one first: the state stays the same one.
        if self.random.below(2) == 0 {
            self.file = file.expect("open");
        } else {
            drop(file);
            self.file = File::open("/dev/null").expect("open");
            let file = OpenOptions::new().read(true).write(true).open(self.path);
            self.file = file.expect("open");
        }
        self.compare_all();
    }

    fn compare_all(&mut self) {
        let found = std::fs::read(self.path).expect("read");
        assert_eq!(
            found.len(),
            self.model.len(),
            "the size; last operations: {:#?}",
            self.told
        );
        self.compare(0, &found);
    }

    fn other_handle(&mut self) {
        let (offset, len) = self.range();
        let content = self.fill(len);
        self.tell(format!("write {offset} {len} by another handle"));
        let other = OpenOptions::new().write(true).open(self.path).expect("open");
        other.write_all_at(&content, offset).expect("written");
        self.put(offset, &content);
        drop(other);
        self.read();
    }
}

fn seed() -> u64 {
    let given = std::env::var("KUROSHIO_FSX_SEED")
        .ok()
        .and_then(|s| s.parse().ok());
    given.unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(1, |d| d.as_nanos() as u64)
    })
}

fn exercise(limit: Duration) {
    let grid = TestGrid::start(1);
    let mount = grid.mount();
    let end = Instant::now() + limit;
    let mut seed = seed();
    let (mut operations, mut files) = (0, 0);
    while Instant::now() < end {
        println!("KUROSHIO_FSX_SEED={seed}");
        let path = mount.join(&format!("f{files}"));
        let mut file = Exercise::begin(&path, seed);
        while file.operations < 2000 && Instant::now() < end {
            file.step();
        }
        drop(std::mem::replace(
            &mut file.file,
            File::open("/dev/null").expect("open"),
        ));
        file.compare_all();
        // What was published is what was written.
        let other = grid.mount();
        let found = std::fs::read(other.join(&format!("f{files}"))).expect("read");
        assert!(found == file.model, "another mount sees other bytes; seed {seed}");
        std::fs::remove_file(&path).expect("removed");
        operations += file.operations;
        files += 1;
        seed = seed.wrapping_add(1);
    }
    println!("{operations} operations on {files} files");
    assert!(operations > 0);
}

fn seconds(default: u64) -> Duration {
    let given = std::env::var("KUROSHIO_FSX_S").ok().and_then(|s| s.parse().ok());
    Duration::from_secs(given.unwrap_or(default))
}

#[test]
fn one_file_behaves_as_memory_does() {
    exercise(seconds(20));
}

#[test]
#[ignore = "an hour"]
fn soak_one_file_behaves_as_memory_does() {
    exercise(seconds(3600));
}
