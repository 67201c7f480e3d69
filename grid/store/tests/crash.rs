//! kill -9 at every step: what was acknowledged is there and right, and nothing that is there is wrong.
//!
//! The child is this test program again, told by the environment to do the work and where to die. It writes a
//! line to a file for each acknowledgement, after it.

mod common;

use common::*;
use kuroshio_store::{FsckState, Limits, ObjectId, Step, Store, Trace};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const DIR: &str = "KUROSHIO_TEST_SPOOL";
const KILL_AT: &str = "KUROSHIO_TEST_KILL_AT";
const SLOTS: &str = "KUROSHIO_TEST_SLOTS";
const LARGE: usize = (5 << 20) + 321;

fn die() -> ! {
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).expect("kill");
    loop {
        std::thread::park();
    }
}

/// Tells the parent that the store has acknowledged something.
fn acknowledge(dir: &Path, line: &str) {
    let mut log = std::fs::File::options()
        .append(true)
        .create(true)
        .open(dir.join("acknowledged"))
        .expect("open");
    log.write_all(format!("{line}\n").as_bytes()).expect("write");
}

fn small(n: u64) -> Vec<u8> {
    bytes(n, 100 + 3000 * n as usize)
}

/// The work: objects in one call and in ranges, deleted, and moved to quarantine.
fn work(dir: &Path, store: &Store) {
    for n in 1..=3 {
        store.put(id(n), &meta("/small"), &small(n), None).expect("put");
        acknowledge(dir, &format!("put {n}"));
    }
    let data = bytes(10, LARGE);
    let writer = store
        .begin(id(10), begin(Some(LARGE as u64), true))
        .expect("begin");
    for at in (0..LARGE).step_by(700_000).rev() {
        let end = (at + 700_000).min(LARGE);
        writer.write_at(at as u64, &data[at..end]).expect("write");
    }
    writer
        .finish(finish(LARGE as u64, Some(digest(&data))))
        .expect("finish");
    acknowledge(dir, "put 10");
    store.delete(id(2)).expect("delete");
    acknowledge(dir, "gone 2");
    store.quarantine(id(3), "a test").expect("quarantine");
    acknowledge(dir, "gone 3");
    store.put(id(3), &meta("/small"), &small(3), None).expect("put");
    acknowledge(dir, "put 3");
}

/// Not a test by itself: the child of the others.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let dir = Path::new(&dir);
    let spool = dir.join("spool");
    match std::env::var(KILL_AT).expect("set by the parent").as_str() {
        "never" => endless(dir, &open(&spool)),
        at => {
            let at: u64 = at.parse().expect("number");
            let steps = AtomicU64::new(0);
            let trace = Trace::new(move |_, _| {
                if steps.fetch_add(1, Ordering::SeqCst) + 1 == at {
                    die();
                }
            });
            let slots = std::env::var(SLOTS).expect("set").parse().expect("number");
            let limits = Limits {
                slots,
                ..Limits::default()
            };
            let store = Store::open_traced(&spool, limits, trace).expect("open");
            store.prepare().expect("slots");
            work(dir, &store);
        }
    }
}

/// Four threads put and delete until somebody kills the process.
fn endless(dir: &Path, store: &Store) {
    std::thread::scope(|s| {
        for t in 0..4u64 {
            s.spawn(move || {
                for n in 0.. {
                    let number = t * 1_000_000 + n;
                    let data = bytes(number, 10 + (n as usize * 7919) % 60_000);
                    store.put(id(number), &meta("/e"), &data, None).expect("put");
                    acknowledge(dir, &format!("put {number}"));
                    if n % 3 == 2 {
                        store.delete(id(number - 1)).expect("delete");
                        acknowledge(dir, &format!("gone {}", number - 1));
                    }
                }
            });
        }
    });
}

fn command(dir: &Path, kill_at: &str) -> Command {
    let mut c = Command::new(std::env::current_exe().expect("this program"));
    c.args(["--exact", "child", "--test-threads=1"])
        .env(DIR, dir)
        .env(KILL_AT, kill_at)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null());
    c
}

/// What was acknowledged last for each object: there or gone.
fn acknowledged(dir: &Path) -> BTreeMap<u64, bool> {
    let text = std::fs::read_to_string(dir.join("acknowledged")).unwrap_or_default();
    let mut out = BTreeMap::new();
    for line in text.lines() {
        let (what, number) = line.split_once(' ').expect("a whole line");
        out.insert(number.parse().expect("number"), what == "put");
    }
    out
}

/// Opens the spool of a dead process and compares: acknowledged objects are there (or gone) and right, every
/// other one is right, and nothing waits. An object in `open` had a change under way.
fn compare(
    dir: &Path,
    content_of: impl Fn(u64) -> Vec<u8>,
    open_changes: impl Fn(u64) -> bool,
    at: &str,
) -> Store {
    let store = open(&dir.join("spool"));
    for (number, there) in acknowledged(dir) {
        let exists = store.exists(id(number)).expect("look");
        if there && !open_changes(number) {
            assert!(exists, "acknowledged object {number} is lost ({at})");
        }
        if !there && !open_changes(number) {
            assert!(!exists, "deleted object {number} came back ({at})");
        }
        if exists {
            assert_eq!(
                content(&store, id(number)),
                content_of(number),
                "object {number} ({at})"
            );
        }
    }
    let report = store
        .fsck(true, &mut |entry| {
            let fine = matches!(
                entry.state,
                FsckState::Right | FsckState::Partial { .. } | FsckState::Quarantined
            );
            assert!(fine, "{entry:?} ({at})");
        })
        .expect("fsck");
    let status = store.status().expect("status");
    assert_eq!(status.objects, report.right, "{at}");
    assert_eq!(
        report.partial,
        store.partials().expect("list").len() as u64,
        "{at}"
    );
    store
}

fn was_killed(status: ExitStatus) -> bool {
    use std::os::unix::process::ExitStatusExt;
    status.signal() == Some(9)
}

/// Kills the work at one step and compares; `None` when the work ends before it, otherwise whether there was
/// something to go on with.
fn kill_at(at: u64, slots: usize) -> Option<bool> {
    let dir = tempfile::tempdir().expect("folder");
    let mut child = command(dir.path(), &at.to_string());
    let status = child.env(SLOTS, slots.to_string()).status().expect("run");
    if status.success() {
        return None;
    }
    assert!(was_killed(status), "step {at}: {status}");
    let acked = acknowledged(dir.path());
    let content_of = |n: u64| if n == 10 { bytes(10, LARGE) } else { small(n) };
    // The change that was under way: 2 is deleted after 10, then 3 is moved, then put again.
    let under_way = |n: u64| match n {
        2 => acked.contains_key(&10) && acked.get(&2) == Some(&true),
        3 => acked.get(&2) == Some(&false),
        _ => false,
    };
    let store = compare(dir.path(), content_of, under_way, &format!("step {at}"));
    // The work can be done after all.
    let data = bytes(10, LARGE);
    let mut resumed = false;
    if !store.exists(id(10)).expect("look") {
        let writer = store
            .begin(id(10), begin(Some(LARGE as u64), true))
            .expect("begin");
        resumed = writer.written().bytes() > 0;
        for r in writer.missing().iter() {
            let part = &data[r.start as usize..r.end as usize];
            writer.write_at(r.start, part).expect("write");
        }
        writer
            .finish(finish(LARGE as u64, Some(digest(&data))))
            .expect("finish");
    }
    assert_eq!(content(&store, id(10)), data);
    Some(resumed)
}

#[test]
fn killed_at_every_step() {
    killed_with(0);
}

#[test]
fn killed_at_every_step_with_slots() {
    killed_with(8);
}

fn killed_with(slots: usize) {
    // Most of the time goes to flushes: several kills wait for them together.
    const LANES: u64 = 6;
    let lane = |first: u64| {
        let (mut kills, mut resumed, mut at) = (0u64, 0u64, first);
        while let Some(partial) = kill_at(at, slots) {
            kills += 1;
            resumed += u64::from(partial);
            at += LANES;
        }
        (kills, resumed)
    };
    let sums: Vec<(u64, u64)> = std::thread::scope(|s| {
        let lanes: Vec<_> = (1..=LANES).map(|first| s.spawn(move || lane(first))).collect();
        lanes.into_iter().map(|l| l.join().expect("a lane")).collect()
    });
    let kills: u64 = sums.iter().map(|(kills, _)| kills).sum();
    // Puts have 4 steps, the ranges 8 and their end 5, the resume file at least 1, removals 2, the move 2.
    assert!(kills >= 4 * 4 + 8 + 6 + 1 + 2 + 2, "only {kills} steps");
    assert!(
        sums.iter().any(|(_, resumed)| *resumed > 0),
        "no kill left anything to go on with"
    );
}

#[test]
fn killed_in_the_middle_of_four_writers() {
    for round in 0..6 {
        let dir = tempfile::tempdir().expect("folder");
        let mut child = command(dir.path(), "never").spawn().expect("run");
        let deadline = Instant::now() + Duration::from_secs(120);
        let enough = 40 + 37 * round;
        while acknowledged_lines(dir.path()) < enough {
            assert!(Instant::now() < deadline, "the child does not get on");
            assert!(child.try_wait().expect("child").is_none(), "the child ended");
            std::thread::yield_now();
        }
        child.kill().expect("kill");
        assert!(was_killed(child.wait().expect("child")));
        let acked = acknowledged(dir.path());
        let content_of = |number: u64| {
            let n = number % 1_000_000;
            bytes(number, 10 + (n as usize * 7919) % 60_000)
        };
        // One deletion per thread may be under way: of an object whose successor is the thread's newest.
        let under_way = |number: u64| {
            let newest = acked.range(..(number / 1_000_000 + 1) * 1_000_000).next_back();
            newest.is_some_and(|(last, _)| *last == number + 1) && number % 1_000_000 % 3 == 1
        };
        compare(dir.path(), content_of, under_way, &format!("round {round}"));
    }
}

fn acknowledged_lines(dir: &Path) -> usize {
    std::fs::read(dir.join("acknowledged")).map_or(0, |b| b.iter().filter(|c| **c == b'\n').count())
}

/// What a power cut leaves: the name of a sealed object, and not all of its content.
#[test]
fn a_sealed_object_counts_only_when_it_is_whole() {
    let dir = tempfile::tempdir().expect("folder");
    let store = open(dir.path());
    let (good, zeros, short, known) = (id(1), id(2), id(3), id(4));
    for id in [good, zeros, short, known] {
        store
            .put(id, &meta("/a"), &bytes(id.inode, 50_000), None)
            .expect("put");
    }
    drop(store);
    let sealed = |id: ObjectId| dir.path().join(format!("incoming/{id}.sealed"));
    for id in [good, zeros, short] {
        std::fs::rename(file_of(dir.path(), id), sealed(id)).expect("move back");
    }
    std::fs::copy(file_of(dir.path(), known), sealed(known)).expect("copy");
    flip(&sealed(zeros), 20_000);
    let file = std::fs::File::options()
        .write(true)
        .open(sealed(short))
        .expect("open");
    file.set_len(4096).expect("cut");
    let store = open(dir.path());
    assert_eq!(store.recovered().published, [good]);
    assert_eq!(store.recovered().discarded, 3);
    assert!(names(dir.path(), "incoming").is_empty());
    assert_eq!(content(&store, good), bytes(1, 50_000));
    assert_eq!(content(&store, known), bytes(4, 50_000));
    assert!(!store.exists(zeros).expect("look") && !store.exists(short).expect("look"));
}

/// What a power cut leaves of small objects: a slot with an object in its first pages, one that fills it, one whose bytes did not all
/// get there, one that nothing was put into.
#[test]
fn an_object_in_a_slot_counts_only_when_it_is_whole() {
    let dir = tempfile::tempdir().expect("folder");
    let store = open(dir.path());
    let ids = [id(1), id(2), id(3), id(4), id(5)];
    for id in ids {
        let content = bytes(id.inode, 5_000);
        store.put(id, &meta("/a"), &content, None).expect("put");
    }
    drop(store);
    let slot = |n: u64| dir.path().join(format!("incoming/slot.{n}"));
    // As the store lays it out: content, zeros, and the trailer at the slot's end.
    let in_slot = |object: &[u8], slot_bytes: usize| {
        let (content, trailer) = object.split_at(5_000);
        let mut all = content.to_vec();
        all.resize(slot_bytes - trailer.len(), 0);
        all.extend_from_slice(trailer);
        all
    };
    let [good, full, torn, known, plain] = ids.map(|id| file_of(dir.path(), id));
    let object = std::fs::read(&good).expect("read");
    std::fs::write(slot(1), in_slot(&object, 16 << 10)).expect("written");
    std::fs::remove_file(good).expect("removed");
    let object = std::fs::read(&full).expect("read");
    std::fs::write(slot(2), in_slot(&object, 8 << 10)).expect("written");
    std::fs::remove_file(full).expect("removed");
    let mut object = std::fs::read(&torn).expect("read");
    object[1000] ^= 1;
    std::fs::write(slot(3), in_slot(&object, 16 << 10)).expect("written");
    std::fs::remove_file(torn).expect("removed");
    let object = std::fs::read(&known).expect("read");
    std::fs::write(slot(4), in_slot(&object, 16 << 10)).expect("written");
    std::fs::rename(plain, slot(5)).expect("moved back");
    std::fs::write(slot(6), vec![0; 16 << 10]).expect("written");
    std::fs::write(slot(7), vec![0; 100]).expect("written");
    std::fs::write(slot(8), vec![]).expect("written");
    let mut cut = in_slot(&object, 16 << 10);
    // Only its first page got there, and so not the trailer.
    cut[4096..].fill(0);
    std::fs::write(slot(9), cut).expect("written");
    let store = open(dir.path());
    assert_eq!(store.recovered().published, [id(1), id(2), id(5)]);
    assert_eq!(
        store.recovered().discarded,
        2,
        "the torn one, and the one that is known"
    );
    assert!(names(dir.path(), "incoming").is_empty());
    for id in [id(1), id(2), id(4), id(5)] {
        assert_eq!(content(&store, id), bytes(id.inode, 5_000));
    }
    assert!(!store.exists(id(3)).expect("look"));
}

/// A store leaves no slots behind, and finds none wrong while it works.
#[test]
fn slots_go_with_their_store() {
    let dir = tempfile::tempdir().expect("folder");
    let limits = Limits {
        slots: 4,
        ..Limits::default()
    };
    let store = Store::open(dir.path(), limits).expect("open");
    store.prepare().expect("slots");
    assert_eq!(names(dir.path(), "incoming").len(), 4);
    for n in 1..=3 {
        store.put(id(n), &meta("/a"), &small(n), None).expect("put");
        assert_eq!(content(&store, id(n)), small(n));
    }
    let mut odd = Vec::new();
    let report = store.fsck(true, &mut |entry| {
        if !matches!(entry.state, FsckState::Right) {
            odd.push(format!("{entry:?}"));
        }
    });
    assert_eq!(report.expect("fsck").right, 3);
    assert!(odd.is_empty(), "{odd:?}");
    store.delete(id(2)).expect("deleted");
    drop(store);
    assert!(names(dir.path(), "incoming").is_empty());
    let store = open(dir.path());
    assert!(!store.exists(id(2)).expect("look") && store.exists(id(3)).expect("look"));
}

/// Every step that is named is reached by the work above, so that none is left out of the kills.
#[test]
fn the_work_reaches_every_step() {
    let dir = tempfile::tempdir().expect("folder");
    let seen = std::sync::Arc::new(std::sync::Mutex::new(std::collections::HashSet::new()));
    let hear = std::sync::Arc::clone(&seen);
    let trace = Trace::new(move |step, _| {
        hear.lock().expect("steps").insert(step);
    });
    let store = Store::open_traced(&dir.path().join("spool"), Limits::default(), trace).expect("open");
    work(dir.path(), &store);
    let seen = seen.lock().expect("steps");
    for step in [
        Step::Created,
        Step::Written,
        Step::Recorded,
        Step::Verified,
        Step::Trailer,
        Step::Sealed,
        Step::Flushed,
        Step::Named,
        Step::Unlinked,
        Step::Removed,
        Step::Moved,
        Step::Quarantined,
    ] {
        assert!(seen.contains(&step), "{step:?}");
    }
}
