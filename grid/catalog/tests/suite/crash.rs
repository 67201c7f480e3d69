//! What was acknowledged is there after kill -9, and was flushed before it was acknowledged.
//!
//! The catalog runs in a child process: this test binary again, with the test `child` alone and a job in its
//! environment. It prints a line for each answer.

use super::server::Server;
use kuroshio_catalog::*;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

const JOB: &str = "KUROSHIO_CATALOG_JOB";
const WHERE: &str = "KUROSHIO_CATALOG_WHERE";
const ROUND: &str = "KUROSHIO_CATALOG_ROUND";
const LOG: &str = "KUROSHIO_FLUSH_LOG";

/// Callers of the child that each wait for every answer.
const CALLERS: u32 = 6;

fn child_process(job: &str, place: &str, round: u32) -> Command {
    let mut c = Command::new(std::env::current_exe().unwrap());
    c.args([
        "--exact",
        "suite::crash::child",
        "--nocapture",
        "--test-threads",
        "1",
    ]);
    c.env(JOB, job).env(WHERE, place).env(ROUND, round.to_string());
    c.stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit());
    c
}

fn open(place: &str) -> Result<Arc<dyn Catalog>, CatalogError> {
    Ok(match place.strip_prefix("sqlite:") {
        Some(dir) => Arc::new(Sqlite::open(Path::new(dir), Options::default())?),
        None => Arc::new(Postgres::connect(place, Options::default())?),
    })
}

fn fragment(size: u64) -> NewFragment {
    NewFragment {
        index: 0,
        size,
        digest: Digest([7; 32]),
        nodes: vec!["n1".into()],
    }
}

/// The job of the child process. Without one there is nothing to do: the test is its entry, not a test.
#[test]
fn child() {
    let (Ok(job), Ok(place)) = (std::env::var(JOB), std::env::var(WHERE)) else {
        return;
    };
    let round: u32 = std::env::var(ROUND).unwrap().parse().unwrap();
    let catalog = open(&place).unwrap();
    match job.as_str() {
        "churn" => std::thread::scope(|s| {
            for caller in 0..CALLERS {
                let catalog = &*catalog;
                s.spawn(move || churn(catalog, round, caller));
            }
        }),
        "flush" => flush(&*catalog),
        other => panic!("job {other}"),
    }
}

/// One write, so that lines of several threads do not mix. A child whose parent is gone ends.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    if out
        .write_all(format!("{line}\n").as_bytes())
        .and_then(|()| out.flush())
        .is_err()
    {
        std::process::exit(1);
    }
}

/// Makes, writes, renames and removes files without end; says what was acknowledged.
fn churn(catalog: &dyn Catalog, round: u32, caller: u32) {
    let admin = Caller::admin();
    for n in 0u32.. {
        let name = format!("r{round}-c{caller}-{n}");
        let place = Place::path(&name);
        let size = u64::from(n) + 1;
        let draft = match catalog.call(&admin, Allocate {}) {
            Ok(d) => d,
            Err(_) => continue,
        };
        let put = PutFile {
            place: place.clone(),
            draft,
            mode: 0o644,
            umask: 0,
            fragments: vec![fragment(size)],
            exclusive: true,
            mtime: None,
        };
        if catalog.call(&admin, put).is_ok() {
            say(&format!("have {name} {size}"));
            let gone = format!("{name}-moved");
            // Whether a change whose answer is not heard took place is not known: it is announced first.
            if n % 3 == 1 {
                say(&format!("unsure {name}"));
                let rename = Rename {
                    from: place,
                    to: Place::path(&gone),
                    mode: RenameMode::NoReplace,
                };
                if catalog.call(&admin, rename).is_ok() {
                    say(&format!("have {gone} {size}"));
                    say(&format!("gone {name}"));
                }
            } else if n % 3 == 2 {
                say(&format!("unsure {name}"));
                if catalog.call(&admin, Unlink { place }).is_ok() {
                    say(&format!("gone {name}"));
                }
            }
        }
        let _ = catalog.call(&admin, Release { handle: draft.handle });
    }
}

/// What the child said last of each name: its size, or that it is gone. Names that it was about to change
/// are left out.
#[derive(Default)]
struct Heard {
    names: BTreeMap<String, Option<u64>>,
    lines: u32,
}

impl Heard {
    fn line(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["have", name, size] => drop(self.names.insert(name.into(), Some(size.parse().unwrap()))),
            ["gone", name] => drop(self.names.insert(name.into(), None)),
            ["unsure", name] => drop(self.names.remove(name)),
            // The test harness of the child speaks too.
            _ => return,
        }
        self.lines += 1;
    }

    fn check(&self, catalog: &dyn Catalog) {
        let admin = Caller::admin();
        for (name, size) in &self.names {
            let got = catalog.call(
                &admin,
                Where {
                    place: Place::path(name),
                },
            );
            match (size, got) {
                (Some(size), Ok(layout)) => {
                    assert_eq!(layout.attr.size, *size, "{name}");
                    assert_eq!(layout.fragments[0].replicas.len(), 1, "{name}");
                }
                (None, Err(e)) => assert_eq!(e.kind(), ErrorKind::NotFound, "{name}"),
                (Some(_), Err(e)) => panic!("{name} was acknowledged and is lost: {e}"),
                (None, Ok(_)) => panic!("{name}: its removal was acknowledged, and it is there"),
            }
        }
        let found = catalog.call(&admin, CheckInvariants { limit: 10 }).unwrap();
        assert!(found.is_empty(), "{}", String::from_utf8_lossy(&found[0]));
    }
}

struct Kill(Child);

impl Drop for Kill {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn prepare(place: &str) {
    let catalog = open(place).unwrap();
    let admin = Caller::admin();
    catalog
        .call(
            &admin,
            PutSite {
                site: Site {
                    name: "s".into(),
                    note: String::new(),
                },
            },
        )
        .unwrap();
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
    catalog.call(&admin, PutNode { node }).unwrap();
}

/// Kills the child after so many answers, and reads all that it said.
fn kill_after(place: &str, round: u32, answers: u32, heard: &mut Heard) {
    let mut running = Kill(child_process("churn", place, round).spawn().unwrap());
    let mut lines = BufReader::new(running.0.stdout.take().unwrap());
    let from = heard.lines;
    let mut line = String::new();
    while heard.lines - from < answers && lines.read_line(&mut line).unwrap() > 0 {
        heard.line(line.trim_end());
        line.clear();
    }
    running.0.kill().unwrap();
    // What was written to the pipe before the kill was acknowledged before it; a torn last line was not.
    while lines.read_line(&mut line).unwrap() > 0 {
        if line.ends_with('\n') {
            heard.line(line.trim_end());
        }
        line.clear();
    }
    assert!(heard.lines - from >= answers, "the child ended by itself");
}

#[test]
fn sqlite_keeps_what_it_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let place = format!("sqlite:{}", dir.path().display());
    prepare(&place);
    let mut heard = Heard::default();
    // Rounds end at different points of batches and checkpoints.
    for round in 0..12 {
        kill_after(&place, round, 20 + round * 37, &mut heard);
        heard.check(&*open(&place).unwrap());
    }
}

#[test]
fn postgres_keeps_what_it_acknowledged() {
    let mut server = Server::start("on");
    let place = server.database("crash");
    prepare(&place);
    let mut heard = Heard::default();
    for round in 0..4 {
        kill_after(&place, round, 20 + round * 37, &mut heard);
        heard.check(&*open(&place).unwrap());
    }
    // The server itself crashes under a catalog that is open; the catalog goes on when it is back.
    let mut running = Kill(child_process("churn", &place, 99).spawn().unwrap());
    let mut lines = BufReader::new(running.0.stdout.take().unwrap());
    let mut line = String::new();
    for crash in 0..3 {
        let from = heard.lines;
        while heard.lines - from < 60 + crash {
            assert!(lines.read_line(&mut line).unwrap() > 0, "the child ended");
            heard.line(line.trim_end());
            line.clear();
        }
        server.crash_and_restart();
    }
    running.0.kill().unwrap();
    while lines.read_line(&mut line).unwrap() > 0 {
        if line.ends_with('\n') {
            heard.line(line.trim_end());
        }
        line.clear();
    }
    heard.check(&*open(&place).unwrap());
}

// ---- the order of flush and answer, as the kernel is asked -----------------------------------------------

/// Notes writes to the log of SQLite and flushes of it in a file, in the order in which they return.
const SHIM: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>
static int is_wal(int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n < 4) return 0;
    path[n] = 0;
    return !strcmp(path + n - 4, "-wal");
}
static ssize_t (*real_write)(int, const void *, size_t);
static void note(const char *what, int fd) {
    static int log = -1;
    if (!is_wal(fd)) return;
    if (log < 0) log = open(getenv("KUROSHIO_FLUSH_LOG"), O_WRONLY | O_APPEND);
    if (!real_write) real_write = (ssize_t (*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
    if (real_write(log, what, strlen(what)) < 0) abort();
}
ssize_t write(int fd, const void *b, size_t n) {
    if (!real_write) real_write = (ssize_t (*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
    ssize_t r = real_write(fd, b, n);
    note("W\n", fd);
    return r;
}
ssize_t pwrite64(int fd, const void *b, size_t n, off_t o) {
    ssize_t (*real)(int, const void *, size_t, off_t) = (ssize_t (*)(int, const void *, size_t, off_t))dlsym(RTLD_NEXT, "pwrite64");
    ssize_t r = real(fd, b, n, o);
    note("W\n", fd);
    return r;
}
ssize_t pwrite(int fd, const void *b, size_t n, off_t o) { return pwrite64(fd, b, n, o); }
int fdatasync(int fd) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    int r = real(fd);
    note(r ? "E\n" : "F\n", fd);
    return r;
}
int fsync(int fd) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    int r = real(fd);
    note(r ? "E\n" : "F\n", fd);
    return r;
}
"#;

/// The child: one caller; notes each answer in the file of the shim.
fn flush(catalog: &dyn Catalog) {
    let mut log = std::fs::File::options()
        .append(true)
        .open(std::env::var_os(LOG).unwrap())
        .unwrap();
    let admin = Caller::admin();
    for n in 0..200 {
        let place = Place::path(format!("f{n}"));
        let create = Create {
            place: place.clone(),
            mode: 0o644,
            umask: 0,
            exclusive: true,
            open: false,
        };
        catalog.call(&admin, create).unwrap();
        log.write_all(b"A\n").unwrap();
        catalog.call(&admin, Unlink { place }).unwrap();
        log.write_all(b"A\n").unwrap();
    }
}

#[test]
fn sqlite_flushes_its_log_before_it_answers() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("shim.c");
    let shim = dir.path().join("shim.so");
    let log = dir.path().join("log");
    std::fs::write(&source, SHIM).unwrap();
    std::fs::write(&log, "").unwrap();
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-w", "-o"])
        .arg(&shim)
        .arg(&source)
        .arg("-ldl")
        .status();
    assert!(built.expect("cc: run scripts/deps build").success());
    let place = format!("sqlite:{}", dir.path().join("catalog").display());
    let mut run = child_process("flush", &place, 0);
    run.env("LD_PRELOAD", &shim).env(LOG, &log);
    assert!(run.output().unwrap().status.success());
    let log = std::fs::read_to_string(&log).unwrap();
    // Between two answers: at least one write to the log, and after the last of them a flush.
    let (mut written, mut flushed, mut answers) = (false, false, 0);
    for (i, line) in log.lines().enumerate() {
        match line {
            "W" => (written, flushed) = (true, false),
            "F" => flushed = true,
            "A" => {
                assert!(
                    written && flushed,
                    "line {i}: answered without a flush after the last write"
                );
                (written, flushed) = (false, false);
                answers += 1;
            }
            other => panic!("line {i}: {other}"),
        }
    }
    assert_eq!(answers, 400);
}
