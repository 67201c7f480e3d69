//! Two metadata services beside each other on one PostgreSQL server: known to each other, one killed under load,
//! the database restarted under load.

#[path = "../../../grid/catalog/tests/suite/server.rs"]
#[allow(dead_code)]
mod server;

use std::io::Cursor;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kuroshio_client::{Cancel, ClientError, Grid, PutOptions, v1};
use kuroshio_metad::{Config, Metad, Timing};
use kuroshio_node::NodeConfig;
use kuroshio_service::Ticket;
use server::Server;
use tempfile::TempDir;

/// Longest wait for a state.
const LIMIT: Duration = Duration::from_secs(60);
const WRITERS: u64 = 4;
const READERS: u64 = 2;

/// A process that ends with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Bed {
    // Services end before the database, and that before the folder.
    services: Vec<Option<Process>>,
    _nodes: Vec<Process>,
    server: Server,
    home: TempDir,
}

impl Bed {
    fn start(nodes: u32) -> Self {
        let home = tempfile::tempdir().expect("temp dir");
        let server = Server::start("on");
        let database = server.database("grid");
        let config = |listen| Config {
            name: "pair".into(),
            listen,
            advertise: None,
            database: Some(database.clone()),
            timing: Timing {
                down_after_ms: 3000,
                ..Timing::default()
            },
            replication: kuroshio_metad::Replication::default(),
            routes: Vec::new(),
        };
        config(SocketAddr::from(([127, 0, 0, 1], 0)))
            .save(&home.path().join("a"))
            .expect("configuration");
        let mut bed = Self {
            services: vec![None, None],
            _nodes: Vec::new(),
            server,
            home,
        };
        bed.start_service(0);
        bed.wait_for("the first service", |bed| bed.kept("a").is_some());
        let out = bed.run(&["init", "--dir", "b", "--beside", "a", "--listen", "127.0.0.1:0"]);
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        bed.start_service(1);
        bed.wait_for("two services that know of each other", |bed| {
            let knows = |dir: &str| {
                bed.kept(dir)
                    .is_some_and(|t| t.addresses().split('+').count() == 2)
            };
            knows("a") && knows("b")
        });
        let admin = bed.admin();
        for n in 1..=nodes {
            let dir = bed.path(&format!("n{n}"));
            let ticket = admin
                .issue_ticket(v1::IssueTicketRequest {
                    user: format!("n{n}"),
                    for_node: true,
                    ..Default::default()
                })
                .expect("node ticket");
            let config = NodeConfig::new("", SocketAddr::from(([127, 0, 0, 1], 0)));
            config.save(&dir, &ticket).expect("node configuration");
            let node = bed.spawn(&["stored", "--dir", &dir.to_string_lossy()]);
            bed._nodes.push(node);
        }
        bed.wait_for_nodes(nodes as usize);
        bed
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kuroshio"));
        command.args(args).current_dir(self.home.path());
        command
            .env("XDG_CONFIG_HOME", self.path("config"))
            .env_remove("KUROSHIO_GRID");
        command.stdin(Stdio::null());
        command
    }

    fn run(&self, args: &[&str]) -> std::process::Output {
        self.command(args).output().expect("started")
    }

    fn spawn(&self, args: &[&str]) -> Process {
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.path("log"))
            .expect("log");
        let mut command = self.command(args);
        command.stdout(Stdio::null()).stderr(log);
        Process(command.spawn().expect("started"))
    }

    fn start_service(&mut self, n: usize) {
        let service = self.spawn(&["metad", "--dir", ["a", "b"][n]]);
        self.services[n] = Some(service);
    }

    fn kept(&self, dir: &str) -> Option<Ticket> {
        Metad::kept_admin_ticket(&self.path(dir)).ok().flatten()
    }

    fn ticket(&self) -> Ticket {
        self.kept("a").expect("kept")
    }

    fn admin(&self) -> Grid {
        Grid::connect(&self.ticket()).expect("connected")
    }

    fn wait_for(&self, what: &str, mut reached: impl FnMut(&Self) -> bool) {
        let deadline = Instant::now() + LIMIT;
        while !reached(self) {
            let log = std::fs::read_to_string(self.path("log")).unwrap_or_default();
            let tail = log.lines().rev().take(20).collect::<Vec<_>>().join("\n");
            assert!(
                Instant::now() < deadline,
                "not reached in {LIMIT:?}: {what}\n{tail}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Each service by itself knows all nodes as joined, whichever they speak to.
    fn wait_for_nodes(&self, count: usize) {
        for dir in ["a", "b"] {
            let Some(ticket) = self
                .kept(dir)
                .filter(|_| self.services[usize::from(dir == "b")].is_some())
            else {
                continue;
            };
            let alone =
                Ticket::new(ticket.address(), ticket.pin(), ticket.token().to_owned()).expect("ticket");
            self.wait_for("all nodes known to each service", |_| {
                let nodes = Grid::connect(&alone).and_then(|g| g.nodes());
                nodes.is_ok_and(|n| n.iter().filter(|n| n.joined && n.state == "up").count() == count)
            });
        }
    }
}

fn content(seed: u64) -> Vec<u8> {
    let mut out = vec![0; 20_000];
    blake3::Hasher::new()
        .update(&seed.to_le_bytes())
        .finalize_xof()
        .fill(&mut out);
    out
}

fn put(grid: &Grid, path: &str, content: &[u8]) -> Result<(), ClientError> {
    let options = PutOptions {
        exclusive: false,
        mode: 0o644,
        umask: 0,
        near_host: String::new(),
        mtime_ns: None,
    };
    let hint = content.len() as u64;
    let source = &mut Cursor::new(content);
    grid.put(path.as_bytes(), source, hint, &options, &Cancel::default())
        .map(drop)
}

fn get(grid: &Grid, path: &str) -> Result<Vec<u8>, ClientError> {
    let mut out = Vec::new();
    grid.read_to(path.as_bytes(), &mut out, &Cancel::default())?;
    Ok(out)
}

/// What the callers have done.
#[derive(Default)]
struct Load {
    stop: AtomicBool,
    puts: AtomicU64,
    gets: AtomicU64,
    /// Files that were acknowledged, by the seed of their content.
    acknowledged: Mutex<Vec<u64>>,
    errors: Mutex<Vec<String>>,
    /// The longest that one call took, nanoseconds.
    longest_ns: AtomicU64,
}

impl Load {
    fn timed<T>(&self, what: &str, call: impl FnOnce() -> Result<T, ClientError>) -> Option<T> {
        let begun = Instant::now();
        let result = call();
        let took = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.longest_ns.fetch_max(took, Ordering::Relaxed);
        result
            .map_err(|e| self.errors.lock().expect("lock").push(format!("{what}: {e}")))
            .ok()
    }

    fn write(&self, grid: &Grid, writer: u64) {
        let mut n = writer * 1_000_000;
        while !self.stop.load(Ordering::Relaxed) {
            n += 1;
            let bytes = content(n);
            if self
                .timed("put", || put(grid, &format!("/f{n}"), &bytes))
                .is_some()
            {
                self.acknowledged.lock().expect("lock").push(n);
                self.puts.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn read(&self, grid: &Grid, reader: u64) {
        let mut turn = reader;
        while !self.stop.load(Ordering::Relaxed) {
            let pick = {
                let all = self.acknowledged.lock().expect("lock");
                turn = turn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                all.get((turn >> 33) as usize % all.len().max(1)).copied()
            };
            let Some(n) = pick else {
                std::thread::yield_now();
                continue;
            };
            if let Some(got) = self.timed("get", || get(grid, &format!("/f{n}"))) {
                assert!(got == content(n), "/f{n} has another content");
                self.gets.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// The longest call since this was asked last.
    fn longest(&self) -> Duration {
        Duration::from_nanos(self.longest_ns.swap(0, Ordering::Relaxed))
    }

    /// Until every kind of call was done so many times more.
    fn goes_on(&self, bed: &Bed, more: u64) {
        let (puts, gets) = (
            self.puts.load(Ordering::Relaxed),
            self.gets.load(Ordering::Relaxed),
        );
        bed.wait_for("the load goes on", |_| {
            self.puts.load(Ordering::Relaxed) >= puts + more
                && self.gets.load(Ordering::Relaxed) >= gets + more
        });
    }
}

#[test]
fn a_service_and_its_database_go_under_load() {
    let mut bed = Bed::start(3);
    bed.admin().set_copies(b"/", "2").expect("two copies");
    let load = Arc::new(Load::default());
    let grids = (0..WRITERS + READERS)
        .map(|_| Arc::new(bed.admin()))
        .collect::<Vec<_>>();
    let threads = (0..WRITERS + READERS)
        .zip(&grids)
        .map(|(i, grid)| {
            let (load, grid) = (load.clone(), grid.clone());
            std::thread::spawn(move || {
                if i < WRITERS {
                    load.write(&grid, i);
                } else {
                    load.read(&grid, i);
                }
            })
        })
        .collect::<Vec<_>>();
    load.goes_on(&bed, 30);
    let undisturbed = load.longest();

    // kill -9 of the service that a writer speaks to.
    let victim = usize::from(bed.kept("b").is_some_and(|t| t.address() == grids[0].address()));
    let mut process = bed.services[victim].take().expect("runs");
    process.0.kill().expect("killed");
    process.0.wait().expect("ended");
    load.goes_on(&bed, 60);
    let killed = load.longest();
    let left = bed.kept(["b", "a"][victim]).expect("kept").address().to_owned();
    assert!(grids.iter().any(|g| g.address() == left));
    assert!(grids[0].address() == left, "the writer went to the other service");
    bed.wait_for_nodes(3);
    bed.start_service(victim);
    bed.wait_for_nodes(3);

    // The database ends as in a crash and comes back; both services stay.
    load.goes_on(&bed, 10);
    let _ = load.longest();
    bed.server.crash_and_restart();
    load.goes_on(&bed, 60);
    let restarted = load.longest();

    load.stop.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().expect("no wrong content");
    }
    let errors = load.errors.lock().expect("lock").clone();
    let acknowledged = load.acknowledged.lock().expect("lock").clone();
    println!(
        "longest call: undisturbed {undisturbed:?}, service killed {killed:?}, database restarted {restarted:?}; \
         {} puts acknowledged, {} gets, {} errors",
        acknowledged.len(),
        load.gets.load(Ordering::Relaxed),
        errors.len()
    );
    assert!(errors.is_empty(), "{errors:#?}");
    let admin = bed.admin();
    for n in &acknowledged {
        let got = get(&admin, &format!("/f{n}")).unwrap_or_else(|e| panic!("/f{n} is lost: {e}"));
        assert!(got == content(*n), "/f{n}");
    }
    bed.wait_for("two copies of everything", |_| {
        admin.status().is_ok_and(|s| s.below_copies == 0)
    });
    let findings = admin.check(0).expect("checked");
    let findings = findings
        .iter()
        .map(|f| String::from_utf8_lossy(f))
        .collect::<Vec<_>>();
    assert!(findings.is_empty(), "{findings:#?}");
}

#[test]
fn services_beside_each_other_need_a_database_and_no_password_in_argv() {
    let home = tempfile::tempdir().expect("temp dir");
    let run = |args: &[&str]| {
        let out = Command::new(env!("CARGO_BIN_EXE_kuroshio"))
            .args(args)
            .current_dir(home.path())
            .output()
            .expect("started");
        (
            out.status.code(),
            String::from_utf8_lossy(&out.stderr).into_owned(),
        )
    };
    assert_eq!(run(&["init", "--dir", "a"]).0, Some(0));
    let (code, text) = run(&[
        "init",
        "--dir",
        "b",
        "--beside",
        "a",
        "--listen",
        "127.0.0.1:7500",
    ]);
    assert!(code == Some(2) && text.contains("database"), "{text}");
    let (code, text) = run(&["init", "--dir", "b", "--beside", "nowhere"]);
    assert!(code == Some(2) && text.contains("nowhere"), "{text}");
    let (code, text) = run(&["init", "--dir", "b", "--database", "postgres://u:secret@h/d"]);
    assert!(
        code == Some(2) && text.contains("metad.toml") && !text.contains("secret"),
        "{text}"
    );
    assert!(!home.path().join("b").exists(), "nothing was made");
    assert_eq!(
        run(&["init", "--dir", "c", "--database", "host=/nowhere user=u"]).0,
        Some(0)
    );
    let (code, text) = run(&["metad", "--dir", "c"]);
    assert!(code == Some(1) && text.contains("cannot be reached"), "{text}");
}
