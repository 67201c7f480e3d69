//! A PostgreSQL server for tests: Debian's packages, a folder that vanishes, a Unix socket in it, an
//! unprivileged user. A shell holds it: when the test process ends, even by a signal, the shell's input ends,
//! and it stops the server and removes the folder.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

const START_TIMEOUT: Duration = Duration::from_secs(60);

pub struct Server {
    dir: PathBuf,
    port: u16,
    bin: PathBuf,
    /// Its input is the server's life.
    _keeper: Child,
}

/// The newest server that Debian's packages have installed.
fn binaries() -> PathBuf {
    let mut found: Vec<PathBuf> = std::fs::read_dir("/usr/lib/postgresql")
        .map(|d| {
            d.flatten()
                .map(|e| e.path().join("bin"))
                .filter(|b| b.join("initdb").exists())
                .collect()
        })
        .unwrap_or_default();
    found.sort();
    found
        .pop()
        .expect("no PostgreSQL server in /usr/lib/postgresql: run scripts/deps test")
}

fn as_root() -> bool {
    // SAFETY: geteuid has no preconditions and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// A command as an unprivileged user: the server refuses to run as root.
fn unprivileged(program: &Path) -> Command {
    if !as_root() {
        return Command::new(program);
    }
    let mut c = Command::new("setpriv");
    c.args(["--reuid", "postgres", "--regid", "postgres", "--clear-groups"])
        .arg(program);
    c
}

fn run(mut c: Command) {
    let out = c.output().unwrap_or_else(|e| panic!("{c:?}: {e}"));
    assert!(
        out.status.success(),
        "{c:?}: {}",
        String::from_utf8_lossy(&out.stderr)
    );
}

impl Server {
    /// The server that all tests of this process share.
    pub fn shared() -> &'static Server {
        static SERVER: OnceLock<Server> = OnceLock::new();
        // Nothing of this process's tests crashes it, and the group commit has a trace of its own.
        SERVER.get_or_init(|| Server::start("off"))
    }

    /// A new server; `fsync` as the server's option.
    pub fn start(fsync: &str) -> Server {
        Self::start_with(fsync, 5432, |_| String::new())
    }

    /// As [`start`](Self::start), with further options, which may need files in the server's folder.
    pub fn start_with(fsync: &str, port: u16, prepare: impl FnOnce(&Path) -> String) -> Server {
        let bin = binaries();
        let dir = tempfile::Builder::new()
            .prefix("kuroshio-pg")
            .tempdir()
            .unwrap()
            .keep();
        let more = prepare(&dir);
        if as_root() {
            let mut chown = Command::new("chown");
            chown.args(["-R", "postgres:postgres"]).arg(&dir);
            run(chown);
        }
        let data = dir.join("data");
        let mut init = unprivileged(&bin.join("initdb"));
        init.args([
            "-A",
            "trust",
            "-U",
            "grid",
            "--locale=C",
            "-E",
            "UTF8",
            "--no-sync",
            "-D",
        ])
        .arg(&data);
        init.current_dir("/");
        run(init);
        let keeper = Self::keep(&bin, &dir, &format!("-c fsync={fsync} -c port={port} {more}"));
        let server = Server {
            dir,
            port,
            bin,
            _keeper: keeper,
        };
        server.wait();
        server
    }

    fn keep(bin: &Path, dir: &Path, options: &str) -> Child {
        let user = if as_root() {
            "setpriv --reuid postgres --regid postgres --clear-groups"
        } else {
            ""
        };
        // Whoever runs on the folder in the end is stopped: a test may have started the server again.
        let script = format!(
            "trap '' INT TERM; {user} {postgres} -D {dir}/data -c listen_addresses= \
             -c unix_socket_directories={dir} -c max_connections=300 -c deadlock_timeout=100ms {options} \
             >{dir}/log 2>&1 </dev/null & read line; server=$(head -n 1 {dir}/data/postmaster.pid); \
             kill -QUIT $server; while kill -0 $server 2>/dev/null; do sleep 0.05; done; rm -rf {dir}",
            postgres = bin.join("postgres").display(),
            dir = dir.display(),
        );
        Command::new("sh")
            .args(["-c", &script])
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("sh")
    }

    fn wait(&self) {
        let end = Instant::now() + START_TIMEOUT;
        while postgres::Client::connect(&self.url("postgres"), postgres::NoTls).is_err() {
            let log = || std::fs::read_to_string(self.dir.join("log")).unwrap_or_default();
            assert!(Instant::now() < end, "the server does not answer:\n{}", log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// How to reach a database.
    pub fn url(&self, database: &str) -> String {
        let (dir, port) = (self.dir.display(), self.port);
        format!("host={dir} port={port} user=grid dbname={database}")
    }

    /// Makes an empty database.
    pub fn database(&self, name: &str) -> String {
        let mut client = postgres::Client::connect(&self.url("postgres"), postgres::NoTls).unwrap();
        client.batch_execute(&format!("CREATE DATABASE {name}")).unwrap();
        self.url(name)
    }

    /// Ends the server at once, as a crash would, and starts it again.
    pub fn crash_and_restart(&mut self) {
        let pid = std::fs::read_to_string(self.dir.join("data/postmaster.pid")).unwrap();
        let pid: i32 = pid.lines().next().unwrap().parse().unwrap();
        // SAFETY: a signal to the server that this test started; its pid is in its own folder.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGQUIT) }, 0);
        let mut start = unprivileged(&self.bin.join("pg_ctl"));
        let options = format!(
            "-c listen_addresses= -c unix_socket_directories={}",
            self.dir.display()
        );
        start
            .args(["start", "-w", "-s", "-D"])
            .arg(self.dir.join("data"))
            .arg("-l")
            .arg(self.dir.join("log2"));
        start
            .args(["-o", &options])
            .current_dir("/")
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let end = Instant::now() + START_TIMEOUT;
        while !start.status().unwrap().success() {
            assert!(Instant::now() < end, "the server does not start again");
            std::thread::sleep(Duration::from_millis(50));
        }
        self.wait();
    }
}
