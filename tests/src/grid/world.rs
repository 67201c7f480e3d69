//! The grid of a soak: real processes at three places, on one PostgreSQL server.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use kuroshio_client::{Grid, v1};
use kuroshio_metad::{Config, Metad, Timing};
use kuroshio_node::NodeConfig;
use kuroshio_service::Ticket;

use crate::grid::net::{self, Net};
use crate::grid::server::Server;
use crate::soak::process::binary;

/// Longest wait for a state; only a hang lasts so long.
pub const PATIENCE: Duration = Duration::from_secs(180);
/// The place of the load.
pub const LOAD: usize = 2;
/// Size of the small disk.
const SMALL_DISK_BYTES: u64 = 192 << 20;
/// Where Debian's package puts it.
const FAKETIME: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";
/// A node that was silent for so long is lost, seconds.
const LOST_AFTER_S: u64 = 7;

/// A service of the grid.
pub struct Service {
    /// `a`, `b`, `n1` to `n4`.
    pub name: &'static str,
    /// Where it runs.
    pub place: usize,
    /// Its folder.
    pub dir: PathBuf,
    verb: &'static str,
    child: Option<Child>,
    /// The image of a disk of its own, for its spool.
    disk: Option<PathBuf>,
}

impl Service {
    /// Whether its process runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.as_mut().map(Child::try_wait), Some(Ok(None)))
    }

    /// SIGKILL; says whether it ran.
    pub fn kill(&mut self) -> bool {
        let ran = self.is_running();
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        ran
    }

    /// Its spool, as this process can reach it.
    #[must_use]
    pub fn spool(&self) -> PathBuf {
        let spool = self.dir.join("spool");
        match (&self.disk, &self.child) {
            // Mounted in a namespace of its own.
            (Some(_), Some(child)) => {
                let root = PathBuf::from(format!("/proc/{}/root", child.id()));
                root.join(spool.strip_prefix("/").unwrap_or(&spool))
            }
            _ => spool,
        }
    }

    /// Whether it has a small disk.
    #[must_use]
    pub fn has_small_disk(&self) -> bool {
        self.disk.is_some()
    }

    /// The file that holds the offset of its clock.
    #[must_use]
    pub fn clock(&self) -> PathBuf {
        self.dir.join("clock")
    }
}

/// All of it; gone when dropped.
pub struct World {
    /// Services, metadata services first.
    pub services: Vec<Service>,
    /// None where there are no namespaces: then nothing is cut.
    pub net: Option<Net>,
    /// Whether clocks can be moved.
    pub clocks: bool,
    /// The database's server.
    pub server: Server,
    /// What could not be had, in words.
    pub notes: Vec<String>,
    dir: PathBuf,
    binary: PathBuf,
}

impl Drop for World {
    fn drop(&mut self) {
        for service in &mut self.services {
            service.kill();
        }
    }
}

impl World {
    /// Starts the grid in an empty folder on a disk; all nodes have joined when this returns.
    ///
    /// # Errors
    /// What does not start, in words.
    pub fn start(dir: &Path) -> Result<Self, String> {
        let mut notes = Vec::new();
        let net = Net::new(3).map_err(|e| notes.push(format!("no cuts: {e}"))).ok();
        let clocks = Path::new(FAKETIME).exists();
        if !clocks {
            notes.push(format!("no clock jumps: {FAKETIME} is missing"));
        }
        let server = Server::start("on");
        let mut world = Self {
            services: Vec::new(),
            net,
            clocks,
            server,
            notes,
            dir: dir.to_owned(),
            binary: binary()?,
        };
        world.start_services()?;
        world.start_nodes()?;
        // Everything has two copies, one at each place.
        world.at_load(|| {
            let set = world.admin()?.set_copies(b"/", "2");
            set.map(drop).map_err(|e| e.to_string())
        })?;
        Ok(world)
    }

    fn address(&self, place: usize) -> IpAddr {
        match &self.net {
            Some(_) => Net::address(place),
            None => IpAddr::V4(Ipv4Addr::LOCALHOST),
        }
    }

    fn start_services(&mut self) -> Result<(), String> {
        let config = Config {
            name: "soak".into(),
            listen: SocketAddr::new(self.address(0), 0),
            advertise: None,
            database: Some(self.server.database("soak")),
            timing: Timing {
                down_after_ms: 4_000,
                lost_after_s: LOST_AFTER_S,
                ..Timing::default()
            },
            replication: kuroshio_metad::Replication::default(),
            routes: Vec::new(),
        };
        let dir = self.dir.join("a");
        config.save(&dir).map_err(|e| e.to_string())?;
        self.add("a", 0, dir.clone(), "metad", None)?;
        self.wait("the first service", |w| Ok(w.kept("a")?.is_some()))?;
        let beside = self.dir.join("b");
        kuroshio_metad::beside(&dir, &beside).map_err(|e| e.to_string())?;
        let config = Config {
            listen: SocketAddr::new(self.address(1), 0),
            ..config
        };
        config.save(&beside).map_err(|e| e.to_string())?;
        self.add("b", 1, beside, "metad", None)?;
        self.wait("two services that know of each other", |w| {
            let knows = |t: Option<Ticket>| t.is_some_and(|t| t.addresses().contains('+'));
            Ok(knows(w.kept("a")?) && knows(w.kept("b")?))
        })
    }

    fn start_nodes(&mut self) -> Result<(), String> {
        let disk = self
            .small_disk()
            .map_err(|e| self.notes.push(format!("no full disk: {e}")))
            .ok();
        for (n, name) in ["n1", "n2", "n3", "n4"].into_iter().enumerate() {
            let place = n / 2;
            let dir = self.dir.join(name);
            let wanted = v1::IssueTicketRequest {
                user: name.into(),
                for_node: true,
                ..Default::default()
            };
            let ticket = self.at_load(|| self.admin()?.issue_ticket(wanted).map_err(|e| e.to_string()))?;
            let site = ["tokyo", "tsukuba"].get(place).copied().unwrap_or_default();
            let config = NodeConfig::new(site, SocketAddr::new(self.address(place), 0));
            config.save(&dir, &ticket).map_err(|e| e.to_string())?;
            let disk = disk.clone().filter(|_| name == "n4");
            self.add(name, place, dir, "stored", disk)?;
        }
        self.wait("all nodes joined", World::all_joined)
    }

    /// A file with an ext4 of its own, if this process may mount it.
    fn small_disk(&self) -> Result<PathBuf, String> {
        let image = self.dir.join("disk.img");
        let file = File::create(&image).map_err(|e| e.to_string())?;
        file.set_len(SMALL_DISK_BYTES).map_err(|e| e.to_string())?;
        let run = |program: &str, args: &[&str]| {
            let out = Command::new(program).args(args).output();
            match out {
                Ok(out) if out.status.success() => Ok(()),
                Ok(out) => Err(String::from_utf8_lossy(&out.stderr).trim().to_owned()),
                Err(e) => Err(format!("{program}: {e}")),
            }
        };
        let image_text = image.to_string_lossy().into_owned();
        run("/usr/sbin/mkfs.ext4", &["-q", "-F", &image_text])?;
        let mount = "mount -o loop \"$1\" \"$2\"";
        let place = self.dir.join("probe");
        fs::create_dir(&place).map_err(|e| e.to_string())?;
        run(
            "unshare",
            &[
                "--mount",
                "sh",
                "-c",
                mount,
                "sh",
                &image_text,
                &place.to_string_lossy(),
            ],
        )?;
        Ok(image)
    }

    fn add(
        &mut self,
        name: &'static str,
        place: usize,
        dir: PathBuf,
        verb: &'static str,
        disk: Option<PathBuf>,
    ) -> Result<(), String> {
        fs::write(dir.join("clock"), "+0\n").map_err(|e| e.to_string())?;
        self.services.push(Service {
            name,
            place,
            dir,
            verb,
            child: None,
            disk,
        });
        self.start_service(self.services.len() - 1)
    }

    /// Starts a service that does not run.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start_service(&mut self, n: usize) -> Result<(), String> {
        let (net, binary, clocks) = (&self.net, &self.binary, self.clocks);
        let service = self.services.get_mut(n).ok_or("no such service")?;
        if service.is_running() {
            return Ok(());
        }
        // It ends with this thread, and so with the soak, even if that is killed.
        let mut words = ["setpriv", "--pdeathsig", "KILL"].map(str::to_owned).to_vec();
        if let Some(net) = net {
            words.extend(net.prefix(service.place));
        }
        let dir = service.dir.to_string_lossy().into_owned();
        if let Some(disk) = &service.disk {
            // The spool lies on the disk; the mount goes with the process.
            let script = "mkdir -p \"$2/spool\" && mount -o loop \"$1\" \"$2/spool\" && rm -rf \"$2/spool/lost+found\" && \
                          shift 2 && exec \"$@\"";
            words.extend(["unshare", "--mount", "sh", "-c", script, "sh"].map(str::to_owned));
            words.extend([disk.to_string_lossy().into_owned(), dir.clone()]);
        }
        if clocks {
            words.extend(["env".to_owned(), format!("LD_PRELOAD={FAKETIME}")]);
            words.push(format!("FAKETIME_TIMESTAMP_FILE={}", service.clock().display()));
            words.extend(
                [
                    "FAKETIME_NO_CACHE=1",
                    "FAKETIME_DONT_FAKE_MONOTONIC=1",
                    "DONT_FAKE_MONOTONIC=1",
                    "NO_FAKE_STAT=1",
                ]
                .map(str::to_owned),
            );
        }
        words.push(binary.to_string_lossy().into_owned());
        words.extend([service.verb.to_owned(), "--dir".to_owned(), dir]);
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(service.dir.join("log"))
            .map_err(|e| e.to_string())?;
        let (program, args) = words.split_first().ok_or("nothing to run")?;
        let child = Command::new(program)
            .args(args)
            .current_dir("/")
            .env("KUROSHIO_LOG", "info")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .map_err(|e| format!("{program}: {e}"))?;
        service.child = Some(child);
        Ok(())
    }

    /// The service of this name.
    #[must_use]
    pub fn find(&self, name: &str) -> usize {
        let found = self.services.iter().position(|s| s.name == name);
        found.unwrap_or_default()
    }

    fn kept(&self, name: &str) -> Result<Option<Ticket>, String> {
        Metad::kept_admin_ticket(&self.dir.join(name)).map_err(|e| e.to_string())
    }

    /// The administrator's ticket, with both services.
    ///
    /// # Errors
    /// There is none.
    pub fn ticket(&self) -> Result<Ticket, String> {
        let mut all = Vec::new();
        for name in ["a", "b"] {
            all.extend(self.kept(name)?);
        }
        // A service that has just begun names itself alone.
        all.sort_by_key(|t| std::cmp::Reverse(t.addresses().len()));
        all.into_iter()
            .next()
            .ok_or_else(|| "no ticket was kept".to_owned())
    }

    /// A connection of the administrator; in [`Self::at_load`].
    ///
    /// # Errors
    /// No service answers.
    pub fn admin(&self) -> Result<Grid, String> {
        Grid::connect(&self.ticket()?).map_err(|e| e.to_string())
    }

    /// The way into the load's place.
    ///
    /// # Errors
    /// The namespace is gone.
    pub fn door(&self) -> Result<Option<File>, String> {
        self.net.as_ref().map(|net| net.door(LOAD)).transpose()
    }

    /// Runs `work` at the load's place.
    ///
    /// # Errors
    /// Those of `work`.
    pub fn at_load<T: Send>(&self, work: impl FnOnce() -> Result<T, String> + Send) -> Result<T, String> {
        let door = self.door()?;
        std::thread::scope(|s| {
            let run = s.spawn(move || {
                if let Some(door) = &door {
                    net::enter(door)?;
                }
                work()
            });
            run.join().unwrap_or_else(|_| Err("a thread panicked".into()))
        })
    }

    /// Whether all nodes are there.
    ///
    /// # Errors
    /// No service answers.
    pub fn all_joined(&self) -> Result<bool, String> {
        let nodes = self.at_load(|| self.admin()?.nodes().map_err(|e| e.to_string()))?;
        Ok(nodes.iter().filter(|n| n.joined && n.state == "up").count() == 4)
    }

    /// Waits for a state; errors on the way are those of services that come.
    ///
    /// # Errors
    /// It is not reached.
    pub fn wait(&self, what: &str, reached: impl Fn(&Self) -> Result<bool, String>) -> Result<(), String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let now = reached(self);
            if now == Ok(true) {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!(
                    "not reached in {PATIENCE:?}: {what} ({now:?}){}",
                    self.tails()
                ));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The services' last words.
    #[must_use]
    pub fn tails(&self) -> String {
        let mut out = String::new();
        for service in &self.services {
            let log = fs::read_to_string(service.dir.join("log")).unwrap_or_default();
            let lines = log.lines().collect::<Vec<_>>();
            for line in lines.iter().skip(lines.len().saturating_sub(8)) {
                out += &format!("\n    {}: {line}", service.name);
            }
        }
        out
    }

    /// Panics that the services have told of.
    #[must_use]
    pub fn panics(&self) -> BTreeMap<&'static str, String> {
        let mut found = BTreeMap::new();
        for service in &self.services {
            let log = fs::read_to_string(service.dir.join("log")).unwrap_or_default();
            if let Some(line) = log.lines().find(|l| l.contains("panicked")) {
                found.insert(service.name, line.to_owned());
            }
        }
        found
    }
}
