//! Applying and undoing on a tree of files; the kernel's own is changed in a namespace by the command's tests.

use super::*;
use crate::need::Item;
use tempfile::TempDir;

struct Host {
    dir: TempDir,
}

impl Host {
    fn new(values: &[(&str, &str)]) -> Self {
        let host = Self {
            dir: tempfile::tempdir().expect("folder"),
        };
        host.put("kernel.random.boot_id", "boot-one");
        for (name, value) in values {
            host.put(name, value);
        }
        host
    }

    fn put(&self, name: &str, value: &str) {
        let path = self.dir.path().join("sys").join(name.replace('.', "/"));
        std::fs::create_dir_all(path.parent().expect("parent")).expect("mkdir");
        std::fs::write(path, value).expect("write");
    }

    fn sysctls(&self) -> Sysctls {
        Sysctls::at(&self.dir.path().join("sys"))
    }

    fn undo_file(&self) -> PathBuf {
        self.dir.path().join("state/undo.json")
    }

    fn get(&self, name: &str) -> String {
        self.sysctls().read(name).expect(name)
    }
}

fn wants(changes: &[(&str, &str)]) -> Need {
    let item = |(name, value): &(&str, &str)| Item {
        name: (*name).to_owned(),
        current: None,
        wanted: (*value).to_owned(),
        ok: false,
        reason: String::new(),
        command: None,
        change: Some(Change::Sysctl {
            name: (*name).to_owned(),
            value: (*value).to_owned(),
        }),
    };
    Need {
        rate_bps: 1,
        rtt_us: 1,
        streams: 1,
        window_bytes: 1,
        socket_buffer_bytes: 3,
        stream_buffer_bytes: 3,
        items: changes.iter().map(item).collect(),
        notes: Vec::new(),
    }
}

const RMEM: &str = "net.ipv4.tcp_rmem";
const SACK: &str = "net.ipv4.tcp_sack";

#[test]
fn what_was_applied_is_undone_even_after_a_second_time() {
    let host = Host::new(&[(RMEM, "1\t2\t3\n"), (SACK, "0\n")]);
    let (tree, file) = (host.sysctls(), host.undo_file());
    let done = apply(&wants(&[(RMEM, "1 2 30")]), &tree, &file).expect("applied");
    assert_eq!(
        done,
        [Outcome {
            command: "sysctl -w net.ipv4.tcp_rmem=\"1 2 30\"".into(),
            error: None
        }]
    );
    assert_eq!(host.get(RMEM), "1 2 30");
    apply(&wants(&[(RMEM, "1 2 300"), (SACK, "1")]), &tree, &file).expect("applied");
    assert_eq!((host.get(RMEM), host.get(SACK)), ("1 2 300".into(), "1".into()));
    let undone = undo(&tree, &file).expect("undone");
    assert_eq!(undone.len(), 2);
    assert_eq!((host.get(RMEM), host.get(SACK)), ("1 2 3".into(), "0".into()));
    assert!(!file.exists());
    let again = undo(&tree, &file).expect_err("nothing left");
    assert!(again.to_string().contains("no such file"), "{again}");
    assert_eq!(apply(&wants(&[]), &tree, &file).expect("nothing"), []);
    assert!(!file.exists());
}

#[test]
fn without_an_undo_file_nothing_is_changed() {
    let host = Host::new(&[(RMEM, "1 2 3")]);
    std::fs::write(host.dir.path().join("state"), "a file where the folder should be").expect("write");
    let e = apply(&wants(&[(RMEM, "1 2 30")]), &host.sysctls(), &host.undo_file()).expect_err("no folder");
    assert!(matches!(e, TuneError::Io { .. }), "{e}");
    assert_eq!(host.get(RMEM), "1 2 3");
}

#[test]
fn what_cannot_be_read_is_not_changed_and_what_cannot_be_restored_stays_in_the_file() {
    let host = Host::new(&[(RMEM, "1 2 3"), (SACK, "0")]);
    let (tree, file) = (host.sysctls(), host.undo_file());
    let missing = "net.ipv4.tcp_wmem";
    let done = apply(&wants(&[(missing, "9"), (RMEM, "4"), (SACK, "1")]), &tree, &file).expect("applied");
    let failed: Vec<&str> = done
        .iter()
        .filter(|o| o.error.is_some())
        .map(|o| o.command.as_str())
        .collect();
    assert_eq!(failed, ["sysctl -w net.ipv4.tcp_wmem=\"9\""]);
    assert_eq!(host.get(RMEM), "4");
    // One of the two goes away before the undo.
    std::fs::remove_file(host.dir.path().join("sys/net/ipv4/tcp_sack")).expect("removed");
    let undone = undo(&tree, &file).expect("partly");
    assert_eq!(undone.iter().filter(|o| o.error.is_some()).count(), 1);
    assert_eq!(host.get(RMEM), "1 2 3");
    host.put(SACK, "1");
    assert_eq!(undo(&tree, &file).expect("the rest").len(), 1);
    assert_eq!(host.get(SACK), "0");
    assert!(!file.exists());
}

#[test]
fn files_of_another_boot_namespace_or_hand_are_refused() {
    let host = Host::new(&[(RMEM, "1 2 3")]);
    let (tree, file) = (host.sysctls(), host.undo_file());
    apply(&wants(&[(RMEM, "4")]), &tree, &file).expect("applied");
    let good = std::fs::read_to_string(&file).expect("text");
    let net = std::fs::read_link("/proc/self/ns/net").expect("namespace");
    let net = net.to_string_lossy().into_owned();
    let long = "1".repeat(257);
    let cases: &[(&str, &str, &str)] = &[
        ("boot-one", "boot-two", "before this boot"),
        (net.as_str(), "net:[1]", "another network namespace"),
        ("\"version\": 1", "\"version\": 2", "version 2"),
        ("net.ipv4.tcp_rmem", "kernel.core_pattern", "none of tune's"),
        ("1 2 3", "|/bin/sh", "none of tune's"),
        ("1 2 3", &long, "none of tune's"),
        ("\"before\"", "\"after\"", "not an undo file"),
        ("{", "", "not an undo file"),
    ];
    for (from, to, why) in cases {
        assert!(good.contains(from), "{from} in {good}");
        std::fs::write(&file, good.replace(from, to)).expect("write");
        for e in [
            undo(&tree, &file).expect_err(to),
            apply(&wants(&[(RMEM, "5")]), &tree, &file).expect_err(to),
        ] {
            assert!(e.to_string().contains(why), "{to}: {e}");
        }
        assert_eq!(host.get(RMEM), "4", "{to}");
    }
    std::fs::write(&file, vec![b' '; 1 << 21]).expect("write");
    undo(&tree, &file).expect_err("too large");
}
