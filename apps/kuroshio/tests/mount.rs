//! A grid mounted as a person does it: mount, kill -9 of the mount, umount. Needs to be root.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// Longest wait for a state.
const LIMIT: Duration = Duration::from_secs(60);

/// A grid and a mount point; both end with the test, whatever happens.
struct Bed {
    home: TempDir,
}

impl Drop for Bed {
    fn drop(&mut self) {
        while self.is_mounted() {
            if !self.run(&["umount", "--lazy", "mnt"]).status.success() {
                break;
            }
        }
        let _ = self.run(&["down", "--dir", "g"]);
    }
}

impl Bed {
    fn start() -> Self {
        let home = tempfile::tempdir_in("/var/tmp").expect("temp dir");
        let bed = Self { home };
        fs::create_dir(bed.mnt()).expect("mount point");
        bed.want(0, &["up", "--dir", "g"]);
        bed
    }

    fn mnt(&self) -> PathBuf {
        self.home.path().join("mnt")
    }

    fn run(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kuroshio"));
        command
            .args(args)
            .current_dir(self.home.path())
            .stdin(Stdio::null());
        command.env("XDG_CONFIG_HOME", self.home.path().join("config"));
        command.env("XDG_STATE_HOME", self.home.path().join("state"));
        command.env_remove("KUROSHIO_GRID").output().expect("started")
    }

    /// Runs and wants an exit code; gives what it said.
    fn want(&self, code: i32, args: &[&str]) -> String {
        let output = self.run(args);
        let out = String::from_utf8_lossy(&output.stdout).into_owned();
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{args:?}\n{out}\n{err}");
        if code == 0 { out } else { err }
    }

    /// Mounts; the mount's process.
    fn mount(&self) -> i32 {
        let said = self.want(0, &["mount", "g", "mnt", "--json"]);
        let told: Value = serde_json::from_str(&said).expect("one JSON object");
        assert_eq!(told["event"], "mounted");
        told["pid"]
            .as_i64()
            .and_then(|p| i32::try_from(p).ok())
            .expect("a process")
    }

    fn is_mounted(&self) -> bool {
        is_mounted(&self.mnt())
    }
}

fn is_mounted(dir: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let dir = dir.display().to_string();
    mounts.lines().any(|l| l.split(' ').nth(4) == Some(&dir))
}

fn wait_for(what: &str, mut reached: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !reached() {
        assert!(Instant::now() < deadline, "not reached in {LIMIT:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn kill(pid: i32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(pid).expect("a process");
    rustix::process::kill_process(pid, signal).expect("killed");
}

#[test]
fn a_killed_mount_loses_nothing_that_was_flushed() {
    let bed = Bed::start();
    let pid = bed.mount();
    let mnt = bed.mnt();
    fs::create_dir(mnt.join("d")).expect("made");
    let mut kept = Vec::new();
    for n in 0..20u8 {
        let content = vec![n; 1000 * usize::from(n) + 1];
        let mut file = File::create_new(mnt.join(format!("d/f{n}"))).expect("made");
        file.write_all(&content).expect("written");
        if n % 2 == 0 {
            file.sync_all().expect("flushed");
        }
        drop(file);
        kept.push(content);
    }
    let mut open = File::options()
        .append(true)
        .open(mnt.join("d/f19"))
        .expect("open");
    open.write_all(b"flushed").expect("written");
    open.sync_all().expect("flushed");
    kept[19].extend_from_slice(b"flushed");
    open.write_all(b"not flushed").expect("written");
    kill(pid, rustix::process::Signal::KILL);
    // The guard takes the dead mount away.
    wait_for("the mount is gone", || !bed.is_mounted());
    drop(open);
    let pid = bed.mount();
    for (n, content) in kept.iter().enumerate() {
        let found = fs::read(mnt.join(format!("d/f{n}"))).expect("read");
        assert!(
            found == *content,
            "file {n}: {} bytes, not {}",
            found.len(),
            content.len()
        );
    }
    // A mount that is in use is not unmounted but when that is asked for; SIGTERM does it.
    let open = File::open(mnt.join("d/f1")).expect("open");
    let said = bed.want(1, &["umount", "mnt"]);
    assert!(said.contains("--lazy"), "{said}");
    drop(open);
    kill(pid, rustix::process::Signal::TERM);
    wait_for("the mount is gone", || !bed.is_mounted());
    let said = bed.want(1, &["umount", "mnt"]);
    assert!(said.contains("nothing is mounted"), "{said}");
}

#[test]
fn bad_input_changes_nothing() {
    let bed = Bed::start();
    for (args, word) in [
        (&["mount", "g", "no-such-folder"][..], "no-such-folder"),
        (&["mount", "./none", "mnt"], "no grid"),
        (
            &["mount", "g", "mnt", "-o", "suid"],
            "allow_other, ro and rw are valid",
        ),
        (&["mount", "g", "mnt", "--cache", "5"], "ms, s, m or h"),
        (
            &["mount", "g", "mnt", "--drafts", "no-such-folder"],
            "no-such-folder",
        ),
        (&["mount", "g", "mnt", "--path", "no/slash"], "begin with a slash"),
    ] {
        let said = bed.want(2, args);
        assert!(said.contains(word), "{args:?}: {said}");
        assert!(!bed.is_mounted());
    }
    let said = bed.want(1, &["mount", "g", "mnt", "--path", "/none"]);
    assert!(said.contains("no such file"), "{said}");
    assert!(!bed.is_mounted());
    bed.want(0, &["mount", "g", "mnt", "-o", "ro"]);
    let refused = fs::write(bed.mnt().join("f"), b"x").err();
    assert_eq!(refused.and_then(|e| e.raw_os_error()), Some(30));
    bed.want(0, &["umount", "mnt"]);
    assert!(!bed.is_mounted());
}
