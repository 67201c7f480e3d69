//! kill -9, cut, stall and corrupt: seeded faults on copies of a tree on a real disk.

use kuroshio_tests::soak::episode::{LAST, Planned};
use kuroshio_tests::soak::process::{PATIENCE, Stopped};
use kuroshio_tests::soak::proxy::{FlipOrder, Proxy, Way};
use kuroshio_tests::soak::rng::Rng;
use kuroshio_tests::soak::tree::Shape;
use kuroshio_tests::soak::{Config, Fault, Soak, Totals, run, state, tree};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// `TMPFS_MAGIC` of `linux/magic.h`.
const TMPFS: i64 = 0x0102_1994;

/// A folder on a real disk, removed with the test.
fn folder() -> TempDir {
    let dir = tempfile::Builder::new()
        .prefix("soak-")
        .tempdir_in(env!("CARGO_TARGET_TMPDIR"))
        .expect("folder");
    let kind = rustix::fs::statfs(dir.path()).expect("statfs").f_type;
    if kind as i64 == TMPFS {
        eprintln!("NOTE: {} is a tmpfs, not a disk", dir.path().display());
    }
    dir
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| {
        text.parse().unwrap_or_else(|e| panic!("{name}={text}: {e}"))
    })
}

fn check(config: &Config, totals: &Totals) {
    println!("seed {}: {totals}", config.seed);
    assert!(
        totals.problems.is_empty(),
        "seed {}:\n{}",
        config.seed,
        totals.problems.join("\n")
    );
    assert_eq!(totals.lost, 0);
    assert!(
        totals.hits() >= config.faults,
        "only {} faults hit",
        totals.hits()
    );
    assert!(totals.acknowledged > 0, "no file was ever durable before a fault");
}

#[test]
fn twenty_faults_lose_nothing() {
    let seed = number("KUROSHIO_SOAK_SEED", 7);
    println!("KUROSHIO_SOAK_SEED={seed}");
    let shape = Shape {
        files: 300,
        most: 1 << 20,
        large: 4,
        large_bytes: 8 << 20,
        sparse: 4,
    };
    let config = Config {
        faults: 20,
        per_copy: 8,
        shape,
        rates: &["300M", "600M"],
        seed,
    };
    let dir = folder();
    let totals = run(&config, dir.path()).expect("a soak");
    check(&config, &totals);
}

#[test]
#[ignore = "minutes: make soak"]
fn soak_of_a_hundred_faults() {
    let clock = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .expect("clock");
    let seed = number("KUROSHIO_SOAK_SEED", clock.as_secs());
    println!("KUROSHIO_SOAK_SEED={seed}");
    let shape = Shape {
        files: 300,
        most: 8 << 20,
        large: 8,
        large_bytes: 48 << 20,
        sparse: 8,
    };
    let faults = number("KUROSHIO_SOAK_FAULTS", 100);
    let config = Config {
        faults,
        per_copy: 8,
        shape,
        rates: &["600M", "1G", "2G"],
        seed,
    };
    let dir = folder();
    let totals = run(&config, dir.path()).expect("a soak");
    check(&config, &totals);
    assert!(totals.interrupted.overhead_permyriad() < 500, "{totals}");
}

#[test]
#[ignore = "minutes: make soak"]
fn soak_of_the_moment_behind_the_last_file() {
    let shape = Shape {
        files: 300,
        most: 64 << 10,
        large: 1,
        large_bytes: 4 << 20,
        sparse: 2,
    };
    let config = Config {
        faults: 24,
        per_copy: 1,
        shape,
        rates: &["1G"],
        seed: number("KUROSHIO_SOAK_SEED", 7),
    };
    let dir = folder();
    let mut soak = Soak::new(&config, dir.path()).expect("a soak");
    for n in 0..config.faults {
        let fault = [Fault::KillClient, Fault::KillService, Fault::Cut][n as usize % 3];
        let way = if n % 2 == 0 { Way::Up } else { Way::Down };
        let at = |_, rng: &mut Rng| {
            vec![Planned {
                position: LAST,
                delay: Duration::from_micros(rng.below(4000)),
                fault,
            }]
        };
        soak.copy(way, true, at).expect("a copy");
    }
    let totals = soak.totals;
    println!("{totals}");
    assert!(totals.problems.is_empty(), "{}", totals.problems.join("\n"));
    assert!(totals.hits() > 0, "no fault came in time");
    assert_eq!((totals.lost, totals.again), (0, 0), "{totals}");
}

#[test]
fn flips_in_control_messages_are_noticed() {
    let shape = Shape {
        files: 300,
        most: 16 << 10,
        large: 1,
        large_bytes: 1 << 20,
        sparse: 2,
    };
    let config = Config {
        faults: 8,
        per_copy: 1,
        shape,
        rates: &["1G"],
        seed: number("KUROSHIO_SOAK_SEED", 7),
    };
    let dir = folder();
    let mut soak = Soak::new(&config, dir.path()).expect("a soak");
    for n in 0..config.faults {
        let way = if n % 2 == 0 { Way::Up } else { Way::Down };
        let plan = |_, _: &mut Rng| {
            vec![Planned {
                position: 0,
                delay: Duration::ZERO,
                fault: Fault::FlipControl,
            }]
        };
        if let Err(text) = soak.copy(way, false, plan) {
            soak.totals.problems.push(text);
        }
    }
    let totals = soak.totals;
    println!("{totals}");
    assert!(totals.problems.is_empty(), "{}", totals.problems.join("\n"));
    assert!(totals.hits() > 0, "no flip came in time");
}

/// What arrives when `sent` goes through a proxy with an order to flip.
fn through(sent: &[u8], order: Option<FlipOrder>) -> (Vec<u8>, usize) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let proxy = Proxy::start(listener.local_addr().expect("address")).expect("proxy");
    let mut client = TcpStream::connect(proxy.address()).expect("connect");
    let (mut server, _) = listener.accept().expect("accept");
    if let Some(order) = order {
        proxy.order_flip(order, &mut Rng::new(1));
    }
    let mut got = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            client.write_all(sent).expect("sent");
            client.shutdown(std::net::Shutdown::Write).expect("shut");
        });
        server.read_to_end(&mut got).expect("read");
    });
    assert_eq!(proxy.bytes(Way::Up), sent.len() as u64);
    (got, proxy.flips().len())
}

#[test]
fn the_proxy_flips_one_bit_and_only_when_told() {
    let mut sent = vec![0u8; 3 << 20];
    Rng::new(2).fill(&mut sent);
    let (got, flips) = through(&sent, None);
    assert!(got == sent && flips == 0);
    let (got, flips) = through(
        &sent,
        Some(FlipOrder {
            way: Way::Up,
            data: true,
        }),
    );
    let bits: u32 = got.iter().zip(&sent).map(|(a, b)| (a ^ b).count_ones()).sum();
    assert_eq!((got.len(), bits, flips), (sent.len(), 1, 1));
    let (got, flips) = through(
        &sent,
        Some(FlipOrder {
            way: Way::Down,
            data: true,
        }),
    );
    assert!(got == sent && flips == 0);
}

#[test]
fn the_proxy_cuts() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let proxy = Proxy::start(listener.local_addr().expect("address")).expect("proxy");
    let mut client = TcpStream::connect(proxy.address()).expect("connect");
    let (mut server, _) = listener.accept().expect("accept");
    client.write_all(b"x").expect("sent");
    server.read_exact(&mut [0u8]).expect("read");
    assert_eq!(proxy.cut_all(), 1);
    let mut rest = Vec::new();
    // A reset or an end: nothing more comes in either case.
    let _ = server.read_to_end(&mut rest);
    let _ = client.read_to_end(&mut rest);
    assert!(rest.is_empty());
    let again = TcpStream::connect(proxy.address()).expect("the proxy still listens");
    drop((listener.accept().expect("accept"), again));
}

#[test]
fn a_stopped_process_stands_still_until_it_goes_on() {
    let mut child = std::process::Command::new("sleep")
        .arg("1000")
        .spawn()
        .expect("sleep");
    let state = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).expect("stat");
        stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next())
    };
    let stopped = Stopped::new(child.id()).expect("stopped");
    let (during, begun) = (state(), Instant::now());
    drop(stopped);
    while state() == Some('T') && begun.elapsed() < PATIENCE {
        std::thread::yield_now();
    }
    let after = state();
    child.kill().and_then(|()| child.wait()).expect("ended");
    assert_eq!(during, Some('T'));
    assert_ne!(after, Some('T'));
}

#[test]
fn the_journal_is_read_from_outside() {
    let dir = folder();
    let session = dir.path().join(".kuroshio-partial/00");
    std::fs::create_dir_all(&session).expect("mkdir");
    let mut journal = Vec::new();
    for (kind, key, offset, len) in [
        (1u8, 0u8, 0u64, 1u32),
        (2, 7, 0, 100),
        (2, 7, 100, 50),
        (3, 7, 0, 100),
        (2, 8, 0, 9),
        (5, 8, 0, 0),
    ] {
        let mut record = [0u8; 72];
        record[0] = kind;
        record[4..8].copy_from_slice(&len.to_le_bytes());
        record[8..24].fill(key);
        record[24..32].copy_from_slice(&offset.to_le_bytes());
        journal.extend_from_slice(&record);
    }
    std::fs::write(session.join("journal"), [&journal[..], b"torn"].concat()).expect("write");
    std::fs::write(session.join("07".repeat(16)), [0; 150]).expect("write");
    let parts = state::parts(dir.path());
    let seen: Vec<_> = parts
        .iter()
        .map(|p| (p.there, p.bytes(), p.dropped.len(), p.verified))
        .collect();
    assert_eq!(seen, [(Some(150), 50, 1, false), (None, 9, 0, true)]);
}

fn small_tree(at: &Path) {
    let shape = Shape {
        files: 40,
        most: 1 << 16,
        large: 1,
        large_bytes: 1 << 20,
        sparse: 2,
    };
    tree::make(at, shape, 3).expect("tree");
}

#[test]
fn the_comparison_sees_each_difference() {
    use std::os::unix::fs::PermissionsExt;
    let dir = folder();
    let source = dir.path().join("tree");
    small_tree(&source);
    let items = tree::walk(&source).expect("walk");
    let files = items.iter().filter(|(_, i)| i.is_file());
    let digests = files
        .map(|(n, _)| {
            (
                n.clone(),
                tree::digest(&tree::beneath(&source, n)).expect("digest"),
            )
        })
        .collect();
    let copy = dir.path().join("copy");
    let differ = |change: &dyn Fn()| {
        let _ = std::fs::remove_dir_all(&copy);
        let done = std::process::Command::new("cp")
            .arg("-a")
            .arg(&source)
            .arg(&copy)
            .status()
            .expect("cp");
        assert!(done.success());
        change();
        tree::differences(&items, &digests, &copy)
            .expect("compared")
            .join("; ")
    };
    assert_eq!(differ(&|| ()), "");
    let alone = |least: u64| {
        let (name, _) = items
            .iter()
            .find(|(_, i)| i.is_file() && i.links == 1 && i.size > least && i.allocated >= i.size)
            .expect("a file");
        tree::beneath(&copy, name)
    };
    let path = || alone(100);
    assert!(differ(&|| std::fs::remove_file(path()).expect("remove")).contains("missing"));
    assert!(differ(&|| std::fs::write(copy.join("more"), "x").expect("write")).contains("only in the copy"));
    let mode = || std::fs::set_permissions(path(), std::fs::Permissions::from_mode(0o611)).expect("chmod");
    assert!(differ(&mode).contains("mode"));
    let flip = || {
        let part = state::Part {
            path: path(),
            ..state::Part::default()
        };
        let times = std::fs::metadata(path()).expect("stat").modified().expect("time");
        let (before, after) = part.flip(50, 3).expect("flip");
        assert_eq!(before ^ after, 8);
        std::fs::File::open(path())
            .expect("open")
            .set_modified(times)
            .expect("time");
    };
    let text = differ(&flip);
    assert!(text.contains("other content") && !text.contains("time"), "{text}");
    let linked = items
        .iter()
        .find(|(_, i)| i.is_file() && i.links > 1)
        .expect("a hard link")
        .0;
    let part_link = || {
        let path = tree::beneath(&copy, linked);
        let bytes = std::fs::read(&path).expect("read");
        std::fs::remove_file(&path).expect("remove");
        std::fs::write(&path, bytes).expect("write");
    };
    assert!(differ(&part_link).contains("hard links differ"));
}
