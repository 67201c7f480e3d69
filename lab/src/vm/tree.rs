//! The checkout with the machine's scripts, the programs that they need, and one run of them.

use std::env;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::VmError;

/// Names the checkout, for a command that was installed without one.
const SOURCE: &str = "KUROSHIO_SOURCE";
/// What a checkout must have.
const PARTS: [&str; 2] = ["kernel/test/run", "tests/vm/vm"];
/// Programs that the scripts start; `scripts/deps vm` installs them.
const PROGRAMS: [&str; 12] = [
    "qemu-system-x86_64",
    "busybox",
    "cpio",
    "modprobe",
    "zstd",
    "xz",
    "ip",
    "tc",
    "make",
    "cc",
    "python3",
    "timeout",
];
/// Where programs of the administrator are, which a user's PATH may not name.
const MORE_PATHS: [&str; 2] = ["/usr/sbin", "/sbin"];
/// How often the machine's progress is looked at, and how often it is told.
const LOOK: Duration = Duration::from_millis(200);
const TELL: Duration = Duration::from_secs(10);
/// Most of a file of messages that is told.
const MESSAGE_BYTES: usize = 600;

/// A checkout.
pub(super) struct Tree {
    root: PathBuf,
}

impl Tree {
    /// The checkout named in the environment, or the nearest one above the current folder or the program.
    pub(super) fn find() -> Result<Self, VmError> {
        if let Some(named) = env::var_os(SOURCE) {
            let root = PathBuf::from(named);
            return match whole(&root) {
                true => Ok(Self {
                    root: absolute(&root),
                }),
                false => Err(VmError::Missing(format!(
                    "{SOURCE}={}: no checkout of kuroshio: it has no {}",
                    root.display(),
                    PARTS.join(", ")
                ))),
            };
        }
        let starts = [env::current_dir().ok(), env::current_exe().ok()];
        starts
            .into_iter()
            .flatten()
            .find_map(|start| above(&start))
            .map(|root| Self { root })
            .ok_or_else(|| {
                VmError::Missing(format!(
                    "--vm needs the source tree (kernel/, tests/vm/), which is not part of the command: run it in a \
                     checkout, or name one in {SOURCE}"
                ))
            })
    }

    /// A file or folder of the checkout.
    pub(super) fn part(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// The release of the machine's kernel, which is fetched when it is not there.
    pub(super) fn release(&self) -> Result<String, VmError> {
        let vm = self.root.join("tests/vm/vm");
        let version = answer(
            Command::new(&vm).arg("version"),
            "no kernel for the virtual machine",
        )?;
        answer(
            Command::new(&vm).arg("fetch"),
            "no kernel for the virtual machine",
        )?;
        Ok(version)
    }

    /// As [`release`](Self::release), with the kernel's headers.
    pub(super) fn kernel(&self) -> Result<String, VmError> {
        let version = self.release()?;
        answer(
            Command::new(self.root.join("kernel/headers")).arg(&version),
            "no headers of the machine's kernel",
        )?;
        Ok(version)
    }

    /// Runs one test of `kernel/test/run` in the machine; its messages stay in `out`. Returns its exit code.
    pub(super) fn test(
        &self,
        what: &str,
        out: &Path,
        limit_s: u64,
        say: &mut dyn FnMut(&str),
    ) -> Result<i32, VmError> {
        let failed = |m: std::io::Error| VmError::Failed(format!("kernel/test/run {what}: {m}"));
        fs::create_dir_all(out).map_err(failed)?;
        let progress = out.join("progress");
        let mut child = Command::new(self.root.join("kernel/test/run"))
            .arg(what)
            .arg(absolute(out))
            .current_dir(&self.root)
            .env("KUROSHIO_VM_TIMEOUT", limit_s.to_string())
            .stdin(Stdio::null())
            .stdout(File::create(out.join("stdout.txt")).map_err(failed)?)
            .stderr(File::create(out.join("stderr.txt")).map_err(failed)?)
            .spawn()
            .map_err(failed)?;
        let (mut last, mut told) = (String::new(), Instant::now());
        loop {
            if let Some(status) = child.try_wait().map_err(failed)? {
                // A signal has no code.
                return Ok(status.code().unwrap_or(125));
            }
            thread::sleep(LOOK);
            if told.elapsed() >= TELL {
                told = Instant::now();
                let now = fs::read_to_string(&progress).unwrap_or_default();
                if now != last {
                    say(now.trim());
                    last = now;
                }
            }
        }
    }
}

/// What a test said when it left no results.
pub(super) fn problem(what: &str, out: &Path, code: i32) -> VmError {
    let mut said = String::new();
    for name in ["stderr.txt", "stdout.txt"] {
        let text = fs::read_to_string(out.join(name)).unwrap_or_default();
        let text = tail(text.trim());
        if !text.is_empty() {
            said = text.to_owned();
            break;
        }
    }
    let why = match code {
        124 => "was not done in its time",
        125 => "the machine did not start or fell over",
        _ => "failed",
    };
    VmError::Failed(format!("{what} {why} (exit code {code}): {said}"))
}

/// Refuses to go on without the programs that the scripts start.
pub(super) fn programs() -> Result<(), VmError> {
    let path = env::var_os("PATH").unwrap_or_default();
    let missing = missing(&path);
    match missing.is_empty() {
        true => Ok(()),
        false => Err(VmError::Missing(format!(
            "--vm needs {}: `scripts/deps vm` installs what is missing (Debian: qemu-system-x86 busybox-static cpio kmod \
             zstd xz-utils iproute2 make gcc-12 python3-minimal)",
            missing.join(", ")
        ))),
    }
}

fn missing(path: &OsStr) -> Vec<&'static str> {
    let folders: Vec<PathBuf> = env::split_paths(path)
        .chain(MORE_PATHS.iter().map(PathBuf::from))
        .collect();
    let gone = |name: &&&str| !folders.iter().any(|f| f.join(name).is_file());
    PROGRAMS.iter().filter(gone).copied().collect()
}

/// What a command printed; its message when it fails.
fn answer(command: &mut Command, what: &str) -> Result<String, VmError> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|m| VmError::Missing(format!("{what}: {m}")))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(VmError::Missing(format!("{what}: {}", tail(said.trim()))))
}

/// The end of a text, from a line's begin where that is near.
fn tail(text: &str) -> &str {
    let mut from = text.len().saturating_sub(MESSAGE_BYTES);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    text.get(from..).unwrap_or(text)
}

fn whole(root: &Path) -> bool {
    PARTS.iter().all(|part| root.join(part).is_file())
}

fn above(start: &Path) -> Option<PathBuf> {
    start.ancestors().find(|folder| whole(folder)).map(Path::to_owned)
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkout_is_found_from_below_and_nowhere_else() {
        let dir = tempfile::tempdir().expect("folder");
        let deep = dir.path().join("a/b");
        fs::create_dir_all(&deep).expect("folders");
        assert_eq!(above(&deep), None);
        for part in PARTS {
            let file = dir.path().join("a").join(part);
            fs::create_dir_all(file.parent().expect("parent")).expect("folders");
            fs::write(file, "").expect("file");
        }
        assert_eq!(above(&deep), Some(dir.path().join("a")));
        assert_eq!(above(dir.path()), None);
    }

    #[test]
    fn what_is_missing_is_named() {
        let dir = tempfile::tempdir().expect("folder");
        // None of them is in the administrator's folders.
        let ours = ["qemu-system-x86_64", "cpio", "python3"];
        let before = missing(dir.path().as_os_str());
        for name in ours {
            assert!(before.contains(&name), "{name} of {before:?}");
            fs::write(dir.path().join(name), "").expect("file");
        }
        let after = missing(dir.path().as_os_str());
        assert!(ours.iter().all(|name| !after.contains(name)), "{after:?}");
    }

    #[test]
    fn a_command_that_fails_says_why() {
        let mut sh = Command::new("sh");
        let e = answer(
            sh.args(["-c", "echo 'apt knows none' >&2; exit 125"]),
            "no kernel",
        )
        .expect_err("it fails")
        .to_string();
        assert_eq!(e, "no kernel: apt knows none");
        let mut sh = Command::new("sh");
        assert_eq!(
            answer(sh.args(["-c", "echo 6.12"]), "no kernel").expect("it answers"),
            "6.12"
        );
    }

    #[test]
    fn a_long_message_is_cut_at_its_begin() {
        let text = format!("{}é the end", "é".repeat(MESSAGE_BYTES));
        assert!(tail(&text).ends_with("the end") && tail(&text).len() <= MESSAGE_BYTES);
        assert_eq!(tail("short"), "short");
    }
}
