//! kill -9, cut, fill, jump, lose and corrupt: seeded faults on a running grid, on a real disk.

use kuroshio_client::Cancel;
use kuroshio_tests::grid::fault::{Fault, Wounds, flip, objects};
use kuroshio_tests::grid::load::{get, is_version, put};
use kuroshio_tests::grid::soak::{Config, Totals, run};
use kuroshio_tests::grid::world::World;
use kuroshio_tests::soak::rng::Rng;
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A folder on the build's disk, removed with the test.
fn folder() -> TempDir {
    let made = tempfile::Builder::new()
        .prefix("grid-soak-")
        .tempdir_in(env!("CARGO_TARGET_TMPDIR"));
    made.expect("folder")
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
    assert!(totals.sum() >= config.faults, "only {} faults hit", totals.sum());
    assert!(totals.acknowledged > 0 && totals.replicas > 0);
}

#[test]
fn eight_faults_lose_nothing() {
    let config = Config {
        faults: 8,
        per_episode: 4,
        seed: number("KUROSHIO_SOAK_SEED", 5),
    };
    println!("KUROSHIO_SOAK_SEED={}", config.seed);
    let dir = folder();
    check(&config, &run(&config, dir.path()).expect("a soak"));
}

#[test]
#[ignore = "half an hour: make soak"]
fn soak_of_two_hundred_faults_on_a_grid() {
    let clock = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .expect("clock");
    let config = Config {
        faults: number("KUROSHIO_SOAK_FAULTS", 200),
        per_episode: 5,
        seed: number("KUROSHIO_SOAK_SEED", clock.as_secs()),
    };
    println!("KUROSHIO_SOAK_SEED={}", config.seed);
    let dir = folder();
    check(&config, &run(&config, dir.path()).expect("a soak"));
}

/// Until `reached`; fails after a while.
fn wait(what: &str, mut reached: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !reached() {
        assert!(Instant::now() < deadline, "not reached: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn each_fault_does_what_it_says() {
    let dir = folder();
    let mut world = World::start(dir.path()).expect("a grid");
    let mut rng = Rng::new(1);
    let mut wounds = Wounds::default();
    println!("{:?}", world.notes);
    let node = world.find("n1");
    world
        .at_load(|| put(&world.admin()?, "/f", 7).map_err(|e| e.to_string()))
        .expect("put");

    // Kills.
    assert!(world.services[node].is_running() && world.services[node].kill());
    assert!(!world.services[node].is_running() && !world.services[node].kill());
    for (fault, names) in [(Fault::KillServices, ["a", "b"].as_slice())] {
        let done = wounds.inflict(&mut world, fault, &mut rng).expect("done");
        assert!(done.is_some());
        for name in names {
            let n = world.find(name);
            assert!(!world.services[n].is_running(), "{name}");
        }
    }
    assert!(
        world.at_load(|| world.admin().map(drop)).is_err(),
        "nobody answers"
    );
    wounds.heal(&mut world).expect("healed");
    world.wait("all nodes", World::all_joined).expect("all nodes");

    // The database's server is another process afterwards.
    let url = world.server.url("postgres");
    let started = || -> Option<std::time::SystemTime> {
        let mut client = postgres::Client::connect(&url, postgres::NoTls).ok()?;
        client
            .query_one("SELECT pg_postmaster_start_time()", &[])
            .ok()?
            .try_get(0)
            .ok()
    };
    let before = started().expect("answers");
    wounds
        .inflict(&mut world, Fault::Database, &mut rng)
        .expect("done");
    assert!(started().expect("answers") > before);

    cut(&mut world, &mut wounds, &mut rng);
    full(&mut world, &mut wounds, &mut rng);
    clock(&mut world, &mut wounds, &mut rng);
    rot(&world);

    // A lost disk: the spool is gone, and the replicas with it are made anew.
    world.wait("all nodes", World::all_joined).expect("all nodes");
    let done = wounds
        .inflict(&mut world, Fault::LoseDisk, &mut rng)
        .expect("done");
    let gone = world
        .services
        .iter()
        .filter(|s| s.name.starts_with('n') && !s.spool().exists())
        .count();
    assert!(done.is_some() && gone == 1, "{done:?}");
    wounds.heal(&mut world).expect("healed");
    world.wait("all nodes", World::all_joined).expect("all nodes");
    let read = world.at_load(|| get(&world.admin()?, "/f").map_err(|e| e.to_string()));
    assert!(is_version(read.expect("read").as_ref(), Some(7)));
}

fn cut(world: &mut World, wounds: &mut Wounds, rng: &mut Rng) {
    if world.net.is_none() {
        return;
    }
    let tickets: Vec<_> = ["a", "b"]
        .iter()
        .map(|n| {
            let kept = kuroshio_metad::Metad::kept_admin_ticket(&dir_of(world, n)).expect("read");
            kept.expect("kept").address().to_owned()
        })
        .collect();
    let reached = |world: &World| {
        let limit = Duration::from_millis(800);
        let dial =
            |a: &String| std::net::TcpStream::connect_timeout(&a.parse().expect("address"), limit).is_ok();
        let found = world.at_load(|| Ok(tickets.iter().filter(|a| dial(a)).count()));
        found.expect("dialled")
    };
    assert_eq!(reached(world), 2);
    let done = wounds.inflict(world, Fault::Cut, rng).expect("done");
    assert!(done.is_some());
    assert_eq!(reached(world), 1, "one site is cut off");
    wounds.heal(world).expect("healed");
    wait("the site is back", || reached(world) == 2);
}

fn dir_of(world: &World, name: &str) -> std::path::PathBuf {
    world.services[world.find(name)].dir.clone()
}

fn full(world: &mut World, wounds: &mut Wounds, rng: &mut Rng) {
    let node = world.find("n4");
    if !world.services[node].has_small_disk() {
        return;
    }
    let spool = world.services[node].spool();
    wait("the spool is mounted", || spool.join("SPOOL").exists());
    let done = wounds.inflict(world, Fault::FullDisk, rng).expect("done");
    assert!(done.is_some());
    let free = || {
        let s = rustix::fs::statvfs(&spool).expect("statvfs");
        s.f_bavail * s.f_frsize
    };
    assert!(free() < 4096, "{} bytes are free", free());
    wounds.heal(world).expect("healed");
    assert!(free() > 1 << 20);
}

fn clock(world: &mut World, wounds: &mut Wounds, rng: &mut Rng) {
    if !world.clocks {
        return;
    }
    let done = wounds
        .inflict(world, Fault::Clock, rng)
        .expect("done")
        .expect("done");
    let jumped: Vec<_> = world
        .services
        .iter()
        .filter(|s| std::fs::read_to_string(s.clock()).expect("clock").trim() != "+0")
        .collect();
    assert_eq!(jumped.len(), 1, "{done}");
    // What a process with this clock sees.
    let library = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";
    let out = Command::new("date")
        .arg("+%s")
        .env("LD_PRELOAD", library)
        .env("FAKETIME_TIMESTAMP_FILE", jumped[0].clock())
        .output()
        .expect("date");
    let seen: i64 = String::from_utf8_lossy(&out.stdout)
        .trim()
        .parse()
        .expect("number");
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .expect("clock");
    let offset = seen - i64::try_from(now.as_secs()).expect("small");
    let told: i64 = done
        .split(' ')
        .rev()
        .nth(1)
        .expect("offset")
        .parse()
        .expect("number");
    assert!((offset - told).abs() <= 5, "{done}: {offset}");
    wounds.heal(world).expect("healed");
}

fn rot(world: &World) {
    let problems = || {
        world
            .at_load(|| {
                let checked = world.admin()?.check_replicas(b"/f", &Cancel::default());
                let checked = checked.map_err(|e| e.to_string())?;
                Ok(checked.iter().filter(|r| r.problem.is_some()).count())
            })
            .expect("checked")
    };
    world
        .wait("two copies", |w| {
            w.at_load(|| Ok(w.admin()?.status().map_err(|e| e.to_string())?.below_copies == 0))
        })
        .expect("two copies");
    assert_eq!(problems(), 0);
    let object = world
        .services
        .iter()
        .find_map(|s| objects(&s.spool()).into_iter().next())
        .expect("an object");
    let before = std::fs::read(&object).expect("read");
    flip(&object, 5, 2).expect("flipped");
    let after = std::fs::read(&object).expect("read");
    let differs: Vec<usize> = (0..before.len()).filter(|i| before[*i] != after[*i]).collect();
    assert_eq!(differs, [5]);
    assert_eq!((before[5] ^ after[5]).count_ones(), 1);
    assert_eq!(problems(), 1);
    flip(&object, 5, 2).expect("flipped");
    assert!(std::fs::read(&object).expect("read") == before);
}
