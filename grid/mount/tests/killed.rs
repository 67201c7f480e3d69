//! kill -9 of a mount's process: what was flushed is there, and nothing is left mounted.
//!
//! The mount runs in a child: this test program, started anew for the test `child`.

mod common;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use common::{TestGrid, bytes, wait_for};
use kuroshio_client::{Cancel, ClientError};
use kuroshio_mount::{Mount, Options, guard, unmount};

/// Names the mount point for the child; its ticket comes through standard input.
const DIR: &str = "KUROSHIO_TEST_MOUNT";

#[test]
#[ignore = "the child of another test"]
fn child() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("a ticket");
    let ticket = line.trim().parse().expect("a ticket");
    let options = Options {
        allow_other: true,
        ..Options::default()
    };
    let mount = Mount::start(&ticket, Path::new(&dir), options).expect("mounted");
    println!("\nmounted");
    mount.wait().expect("unmounted in order");
}

/// A child that goes with the test. Its output stays open: it writes there how its test has ended.
struct Killed(Child, Option<BufReader<ChildStdout>>);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A mount in a process of its own.
fn mount(grid: &TestGrid, dir: &Path) -> Killed {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command
        .args(["child", "--exact", "--ignored", "--nocapture"])
        .env(DIR, dir);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut child = Killed(command.spawn().expect("started"), None);
    let line = grid.admin_ticket().to_line();
    writeln!(child.0.stdin.take().expect("its input"), "{line}").expect("the ticket given");
    let mut told = BufReader::new(child.0.stdout.take().expect("its output"));
    let mounted = told
        .by_ref()
        .lines()
        .map_while(Result::ok)
        .any(|l| l == "mounted");
    assert!(mounted, "the child has ended");
    child.1 = Some(told);
    child
}

/// The mount point goes, whatever happens.
struct Place(tempfile::TempDir);

impl Drop for Place {
    fn drop(&mut self) {
        while is_mounted(self.0.path()) && unmount(self.0.path(), true).is_ok() {}
    }
}

fn is_mounted(dir: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
    let dir = dir.display().to_string();
    mounts.lines().any(|l| l.split(' ').nth(4) == Some(&dir))
}

#[test]
fn what_was_flushed_survives_the_mount() {
    let grid = TestGrid::start(1);
    let place = Place(tempfile::tempdir_in("/var/tmp").expect("mount point"));
    let dir = place.0.path();
    for round in 0..3u64 {
        let mut child = mount(&grid, dir);
        let (gone, alive) = std::io::pipe().expect("pipe");
        let theirs = dir.to_owned();
        let guard = std::thread::spawn(move || guard(&theirs, gone));
        let name = |n: u64| format!("r{round}-{n}");
        let content = |n: u64| bytes((n * n * 5_000 + n) as usize, round * 100 + n);
        for n in 0..12 {
            let mut file = File::create_new(dir.join(name(n))).expect("made");
            file.write_all(&content(n)).expect("written");
            if n % 2 == 0 {
                file.sync_all().expect("flushed");
            }
        }
        // Open, flushed, and written again since.
        let mut open = File::options()
            .append(true)
            .open(dir.join(name(11)))
            .expect("open");
        open.write_all(b"flushed").expect("written");
        open.sync_all().expect("flushed");
        open.write_all(b"not flushed").expect("written");
        let made = File::create_new(dir.join(name(12))).expect("made");
        child.0.kill().expect("killed");
        child.0.wait().expect("ended");
        // As the end of the process would do.
        drop(alive);
        guard.join().expect("no panic").expect("unmounted");
        drop((open, made));
        wait_for("nothing is mounted", || !is_mounted(dir));
        let admin = grid.admin();
        let read = |n: u64| {
            let mut out = Vec::new();
            let path = format!("/{}", name(n));
            let done = admin.read_to(path.as_bytes(), &mut out, &Cancel::default());
            done.map(|_| out)
        };
        for n in 0..11 {
            assert!(read(n).expect("read") == content(n), "file {n} of round {round}");
        }
        let last = [content(11), b"flushed".to_vec()].concat();
        assert!(read(11).expect("read") == last, "the file that was open");
        assert_eq!(read(12).expect("its name is durable"), b"");
        assert!(matches!(read(13), Err(ClientError::Failed(_))));
    }
}

#[test]
fn a_living_mount_is_left_alone() {
    let grid = TestGrid::start(1);
    let place = Place(tempfile::tempdir_in("/var/tmp").expect("mount point"));
    let child = mount(&grid, place.0.path());
    // The pipe ends, the mount does not.
    guard(place.0.path(), std::io::empty()).expect("nothing to do");
    assert!(is_mounted(place.0.path()));
    guard(place.0.path(), b"x".as_slice()).expect("it was unmounted in order, says who held the pipe");
    assert!(is_mounted(place.0.path()));
    assert!(fs::read_dir(place.0.path()).is_ok());
    // Not while it is in use, but lazily.
    let open = File::open(place.0.path()).expect("open");
    let refused = unmount(place.0.path(), false).err();
    assert_eq!(refused.and_then(|e| e.raw_os_error()), Some(libc::EBUSY));
    drop(open);
    unmount(place.0.path(), false).expect("unmounted");
    assert!(!is_mounted(place.0.path()));
    let mut child = child;
    assert!(child.0.wait().expect("ended").success());
}

/// A mount that somebody has unmounted leaves alone what is mounted there before it has noticed.
#[test]
fn what_is_mounted_since_stays() {
    let grid = TestGrid::start(1);
    let dir = tempfile::tempdir_in("/var/tmp").expect("mount point");
    let start = || {
        let options = Options {
            allow_other: true,
            ..Options::default()
        };
        Mount::start(&grid.admin_ticket(), dir.path(), options).expect("mounted")
    };
    let first = start();
    unmount(dir.path(), false).expect("unmounted by somebody");
    let second = start();
    first.wait().expect("it ends");
    fs::write(dir.path().join("f"), b"x").expect("written");
    assert!(grid.admin().stat(b"/f", true).is_ok());
    second.unmount().expect("unmounted");
}
