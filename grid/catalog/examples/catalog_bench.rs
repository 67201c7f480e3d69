//! Operations per second of a catalog, each durable when answered, and what a million files cost.
//!
//! ```text
//!   catalog_bench sqlite DIR [OPERATIONS [FILES]]      catalog_bench postgres URL [OPERATIONS [FILES]]
//!   catalog_bench sqlite /var/tmp/bench 20000 1000000
//! ```
//!
//! Prints JSON lines. DIR must be on a disk, be empty, and is left behind. `callers` wait for each answer before their next
//! operation; `flushes` counts the commits of changes.

use kuroshio_catalog::*;
use std::error::Error;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

/// Entries of the directory that is listed.
const LARGE_DIR: u64 = 100_000;
/// Files of every other directory.
const SMALL_DIR: u64 = 1000;
/// Changes under way while files are loaded.
const WINDOW: u64 = 512;

struct Bench {
    catalog: Arc<dyn Catalog>,
    admin: Caller,
    flushes: Arc<AtomicU64>,
}

type Answer<T> = Result<T, Box<dyn Error>>;

fn main() -> Answer<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (Some(kind), Some(place)) = (args.first(), args.get(1)) else {
        return Err("usage: catalog_bench sqlite DIR|postgres URL [OPERATIONS [FILES]]".into());
    };
    let number = |i: usize, default: u64| args.get(i).map_or(Ok(default), |a| a.parse());
    let (operations, files) = (number(2, 10_000)?, number(3, 0)?);
    let flushes = Arc::new(AtomicU64::new(0));
    let count = flushes.clone();
    let trace: Trace = Arc::new(move |e| {
        if matches!(e, TraceEvent::Durable { .. }) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    let options = Options {
        trace: Some(trace),
        ..Options::default()
    };
    let catalog: Arc<dyn Catalog> = match kind.as_str() {
        "sqlite" => Arc::new(Sqlite::open(Path::new(place), options)?),
        "postgres" => Arc::new(Postgres::connect(place, options)?),
        other => return Err(format!("back end '{other}': sqlite or postgres").into()),
    };
    if kind == "sqlite" {
        raw_flushes(Path::new(place))?;
    }
    let bench = Bench {
        catalog,
        admin: Caller::admin(),
        flushes,
    };
    bench.prepare()?;
    for callers in [1, 64] {
        bench.rates(callers, operations)?;
    }
    if files > 0 {
        bench.many(
            files,
            if kind == "sqlite" {
                Some(Path::new(place))
            } else {
                None
            },
        )?;
    }
    Ok(())
}

/// What the disk alone does: 24 KiB written over what is there, then flushed. The ceiling of one caller.
fn raw_flushes(dir: &Path) -> Answer<()> {
    use std::io::{Seek, SeekFrom, Write};
    const TIMES: u32 = 500;
    let path = dir.join("raw");
    let mut file = std::fs::File::create(&path)?;
    file.write_all(&[1; 1 << 20])?;
    file.sync_all()?;
    let begun = Instant::now();
    for i in 0..TIMES {
        file.seek(SeekFrom::Start(u64::from(i % 40) * 24 * 1024))?;
        file.write_all(&[i as u8; 24 * 1024])?;
        file.sync_data()?;
    }
    let rate = f64::from(TIMES) / begun.elapsed().as_secs_f64();
    println!("{{\"operation\":\"write 24 KiB and flush, no catalog\",\"per_s\":{rate:.0}}}");
    std::fs::remove_file(path)?;
    Ok(())
}

/// Resident memory of this process, bytes.
fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = |l: &str| {
        l.strip_prefix("VmRSS:")
            .and_then(|v| v.split_whitespace().next()?.parse::<u64>().ok())
    };
    status.lines().find_map(kib).unwrap_or(0) << 10
}

fn disk(dir: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return 0;
    };
    entries
        .flatten()
        .filter_map(|e| e.metadata().ok())
        .map(|m| m.len())
        .sum()
}

impl Bench {
    fn prepare(&self) -> Answer<()> {
        self.catalog.call(
            &self.admin,
            PutSite {
                site: Site {
                    name: "s".into(),
                    note: String::new(),
                },
            },
        )?;
        let node = Node {
            name: "n1".into(),
            site: "s".into(),
            address: "n1.invalid:1".into(),
            pin: String::new(),
            state: NodeState::Up,
            capacity_bytes: 0,
            free_bytes: 0,
            load_milli: 0,
            heartbeat: Timestamp(0),
            since: Timestamp(0),
        };
        Ok(self.catalog.call(&self.admin, PutNode { node })?)
    }

    /// One phase: `total` operations by so many callers.
    fn phase<O: Operation>(
        &self,
        name: &str,
        callers: u64,
        total: u64,
        op: impl Fn(u64) -> O + Sync,
    ) -> Answer<()> {
        let flushes = self.flushes.load(Ordering::Relaxed);
        let begun = Instant::now();
        let each = total / callers;
        std::thread::scope(|s| {
            let threads: Vec<_> = (0..callers)
                .map(|c| {
                    let op = &op;
                    s.spawn(move || -> Result<(), CatalogError> {
                        for n in c * each..(c + 1) * each {
                            self.catalog.call(&self.admin, op(n))?;
                        }
                        Ok(())
                    })
                })
                .collect();
            threads.into_iter().try_for_each(|t| {
                t.join()
                    .map_err(|_| "a caller panicked")?
                    .map_err(Box::<dyn Error>::from)
            })
        })?;
        let seconds = begun.elapsed().as_secs_f64();
        let done = each * callers;
        println!(
            "{{\"operation\":\"{name}\",\"callers\":{callers},\"operations\":{done},\"per_s\":{:.0},\"flushes\":{}}}",
            done as f64 / seconds,
            self.flushes.load(Ordering::Relaxed) - flushes,
        );
        Ok(())
    }

    fn rates(&self, callers: u64, total: u64) -> Answer<()> {
        let dir = format!("/c{callers}");
        let make = MakeDir {
            place: Place::path(&dir),
            mode: 0o755,
            umask: 0,
        };
        self.catalog.call(&self.admin, make)?;
        let name = |n: u64| Place::path(format!("{dir}/f{n}"));
        self.phase("create", callers, total, |n| Create {
            place: name(n),
            mode: 0o644,
            umask: 0,
            exclusive: true,
            open: false,
        })?;
        self.phase("stat", callers, total * 4, |n| Stat {
            place: name(n % (total / callers * callers).max(1)),
            follow: true,
        })?;
        self.phase("list 100", callers, total / 10, |n| ReadDir {
            place: Place::path(&dir),
            after: Some(format!("f{n}").into_bytes()),
            limit: 100,
            attrs: true,
        })?;
        let moved = |n: u64| Place::path(format!("{dir}/g{n}"));
        self.phase("rename", callers, total, |n| Rename {
            from: name(n),
            to: moved(n),
            mode: RenameMode::Replace,
        })?;
        self.phase("unlink", callers, total, |n| Unlink { place: moved(n) })?;
        let begun = Instant::now();
        let mut gone = 0;
        loop {
            let now = self.catalog.call(
                &self.admin,
                Reap {
                    limit: 1000,
                    ttl_ms: 60_000,
                },
            )?;
            gone += now;
            if gone > 0 && now == 0 {
                break;
            }
        }
        let rate = gone as f64 / begun.elapsed().as_secs_f64();
        println!("{{\"operation\":\"reap\",\"contents\":{gone},\"per_s\":{rate:.0}}}");
        Ok(())
    }

    /// Puts files with a fragment and a replica each, then measures.
    fn many(&self, files: u64, dir: Option<&Path>) -> Answer<()> {
        let (memory_before, disk_before) = (memory(), dir.map_or(0, disk));
        let begun = Instant::now();
        let window = Arc::new((Mutex::new((0u64, 0u64)), Condvar::new()));
        let mut parent = Ino::ROOT;
        for n in 0..files {
            if n == 0 || (n >= LARGE_DIR && n % SMALL_DIR == 0) {
                let make = MakeDir {
                    place: Place::path(format!("/d{n}")),
                    mode: 0o755,
                    umask: 0,
                };
                parent = self.catalog.call(&self.admin, make)?.ino;
            }
            let (count, changed) = &*window;
            let mut under_way = count.lock().map_err(|_| "poisoned")?;
            while under_way.0 >= WINDOW {
                under_way = changed.wait(under_way).map_err(|_| "poisoned")?;
            }
            under_way.0 += 1;
            drop(under_way);
            self.put(parent, n, window.clone())?;
        }
        let (count, changed) = &*window;
        let mut under_way = count.lock().map_err(|_| "poisoned")?;
        while under_way.0 > 0 {
            under_way = changed.wait(under_way).map_err(|_| "poisoned")?;
        }
        if under_way.1 > 0 {
            return Err(format!("{} files were refused", under_way.1).into());
        }
        let seconds = begun.elapsed().as_secs_f64();
        println!(
            "{{\"files\":{files},\"seconds\":{seconds:.1},\"per_s\":{:.0},\"bytes_per_file\":{:.0},\"disk_bytes\":{},\
             \"memory_bytes\":{},\"memory_grown_bytes\":{}}}",
            files as f64 / seconds,
            (dir.map_or(0, disk) - disk_before) as f64 / files as f64,
            dir.map_or(0, disk),
            memory(),
            memory().saturating_sub(memory_before),
        );
        for attrs in [false, true] {
            self.list("/d0", attrs)?;
        }
        self.phase("stat among all", 1, 20_000, |n| {
            let n = n * 7919 % LARGE_DIR.min(files);
            Stat {
                place: Place::path(format!("/d0/f{n}")),
                follow: true,
            }
        })?;
        self.phase("create among all", 1, 5000, |n| Create {
            place: Place::path(format!("/d0/new{n}")),
            mode: 0o644,
            umask: 0,
            exclusive: true,
            open: false,
        })?;
        let begun = Instant::now();
        let found = self.catalog.call(&self.admin, CheckInvariants { limit: 10 })?;
        let seconds = begun.elapsed().as_secs_f64();
        println!(
            "{{\"operation\":\"check\",\"findings\":{},\"seconds\":{seconds:.1}}}",
            found.len()
        );
        Ok(())
    }

    fn put(&self, parent: Ino, n: u64, window: Arc<(Mutex<(u64, u64)>, Condvar)>) -> Answer<()> {
        let draft = self.catalog.call(&self.admin, Allocate {})?;
        let nodes = vec!["n1".to_owned()];
        let put = PutFile {
            place: Place::at(parent, format!("f{n}")),
            draft,
            mode: 0o644,
            umask: 0,
            fragments: vec![NewFragment {
                index: 0,
                size: 4096,
                digest: Digest([n as u8; 32]),
                nodes,
            }],
            exclusive: true,
            mtime: None,
        };
        let (catalog, handle) = (self.catalog.clone(), draft.handle);
        self.catalog.begin(&self.admin, put, move |answer| {
            catalog.begin(&Caller::admin(), Release { handle }, drop);
            if let Ok(mut under_way) = window.0.lock() {
                under_way.0 -= 1;
                under_way.1 += u64::from(answer.is_err());
            }
            window.1.notify_one();
        });
        Ok(())
    }

    fn list(&self, path: &str, attrs: bool) -> Answer<()> {
        let begun = Instant::now();
        let (mut entries, mut after) = (0, None);
        loop {
            let page = self.catalog.call(
                &self.admin,
                ReadDir {
                    place: Place::path(path),
                    after,
                    limit: 1000,
                    attrs,
                },
            )?;
            entries += page.entries.len();
            after = page.entries.last().map(|e| e.name.clone());
            if !page.more {
                break;
            }
        }
        let ms = begun.elapsed().as_secs_f64() * 1000.0;
        println!(
            "{{\"operation\":\"list directory\",\"attrs\":{attrs},\"entries\":{entries},\"ms\":{ms:.0}}}"
        );
        Ok(())
    }
}
