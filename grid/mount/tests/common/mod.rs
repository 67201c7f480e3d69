//! A grid in this process, mounted. Everything goes with the test, also when it fails.
#![allow(dead_code)]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kuroshio_catalog::{Options as CatalogOptions, Sqlite};
use kuroshio_client::{Grid, v1};
use kuroshio_metad::{Config, Metad, Timing};
use kuroshio_mount::{Mount, Options};
use kuroshio_node::{Node, NodeConfig};
use kuroshio_service::Ticket;
use tempfile::TempDir;

/// Longest wait for a state.
pub const LIMIT: Duration = Duration::from_secs(60);

/// A metadata service and nodes on loopback.
pub struct TestGrid {
    // Nodes end before the service, the service before its folder goes.
    pub nodes: Vec<Option<Node>>,
    pub metad: Option<Metad>,
    pub dir: TempDir,
}

impl TestGrid {
    pub fn start(nodes: u32) -> Self {
        let dir = tempfile::tempdir_in("/var/tmp").expect("temp dir");
        let config = Config {
            name: "test".into(),
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            advertise: None,
            database: None,
            // A busy machine may be silent for longer than the default.
            timing: Timing {
                down_after_ms: 60_000,
                ..Timing::default()
            },
            replication: kuroshio_metad::Replication::default(),
            routes: Vec::new(),
        };
        config.save(&dir.path().join("metad")).expect("configuration");
        let mut grid = Self {
            nodes: Vec::new(),
            metad: None,
            dir,
        };
        grid.start_metad();
        for n in 1..=nodes {
            grid.add_node(n);
        }
        let admin = grid.admin();
        wait_for("nodes up", || {
            let known = admin.nodes().expect("nodes");
            known.iter().filter(|n| n.state == "up" && n.joined).count() >= nodes as usize
        });
        grid
    }

    pub fn metad_dir(&self) -> PathBuf {
        self.dir.path().join("metad")
    }

    pub fn node_dir(&self, n: u32) -> PathBuf {
        self.dir.path().join(format!("node{n}"))
    }

    pub fn start_metad(&mut self) {
        let path = self.metad_dir().join("catalog");
        let catalog = Sqlite::open(&path, CatalogOptions::default()).expect("catalog");
        self.metad = Some(Metad::start(&self.metad_dir(), Arc::new(catalog)).expect("metad"));
    }

    fn add_node(&mut self, n: u32) {
        let ticket = self.admin().issue_ticket(v1::IssueTicketRequest {
            user: format!("node{n}"),
            for_node: true,
            ..Default::default()
        });
        let config = NodeConfig::new("", SocketAddr::from(([127, 0, 0, 1], 0)));
        config
            .save(&self.node_dir(n), &ticket.expect("node ticket"))
            .expect("node configuration");
        self.nodes
            .push(Some(Node::start(&self.node_dir(n)).expect("node")));
    }

    pub fn admin_ticket(&self) -> Ticket {
        let kept = Metad::kept_admin_ticket(&self.metad_dir());
        kept.expect("readable").expect("kept")
    }

    pub fn admin(&self) -> Grid {
        Grid::connect(&self.admin_ticket()).expect("connected")
    }

    pub fn user_ticket(&self, name: &str, scope: &str) -> Ticket {
        let wanted = v1::IssueTicketRequest {
            user: name.into(),
            groups: vec!["users".into()],
            scope: scope.into(),
            ..Default::default()
        };
        self.admin().issue_ticket(wanted).expect("ticket")
    }

    /// Mounts the grid for all users.
    pub fn mount(&self) -> Mounted {
        let options = Options {
            allow_other: true,
            ..Options::default()
        };
        self.mount_with(&self.admin_ticket(), options)
    }

    pub fn mount_with(&self, ticket: &Ticket, options: Options) -> Mounted {
        let dir = tempfile::tempdir_in("/var/tmp").expect("mount point");
        use std::os::unix::fs::PermissionsExt;
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(dir.path(), open).expect("mode");
        let mount = Mount::start(ticket, dir.path(), options).expect("mounted");
        Mounted {
            mount: Some(mount),
            dir,
        }
    }
}

/// A mounted grid.
pub struct Mounted {
    mount: Option<Mount>,
    dir: TempDir,
}

impl Mounted {
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // What failed may have files open still.
            let _ = kuroshio_mount::unmount(self.dir.path(), true);
        }
        if let Some(mount) = self.mount.take() {
            let done = mount.unmount();
            assert!(
                std::thread::panicking() || done.is_ok(),
                "unmounted: {:?}",
                done.err()
            );
        }
    }
}

pub fn wait_for(what: &str, mut reached: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !reached() {
        assert!(Instant::now() < deadline, "not reached in {LIMIT:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Bytes that no part of repeats.
pub fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut out = vec![0; len];
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    blake3::Hasher::new_keyed(&key).finalize_xof().fill(&mut out);
    out
}

/// Nodes with a valid replica of a file's first fragment.
pub fn holders(grid: &Grid, path: &str) -> Vec<String> {
    let found = grid.locate(path.as_bytes()).expect("located");
    let places = found
        .fragments
        .first()
        .map(|f| f.places.clone())
        .unwrap_or_default();
    let valid = places.into_iter().filter(|p| p.state == "valid" && p.up);
    valid.map(|p| p.node).collect()
}

/// Runs `work` with the credentials of another user, in a thread of its own.
pub fn as_user<T: Send>(uid: u32, gid: u32, groups: &[u32], work: impl FnOnce() -> T + Send) -> T {
    use rustix::process::{Gid, Uid};
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let groups = groups.iter().map(|g| Gid::from_raw(*g)).collect::<Vec<_>>();
            let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
            rustix::thread::set_thread_groups(&groups).expect("groups");
            rustix::thread::set_thread_res_gid(gid, gid, gid).expect("gid");
            rustix::thread::set_thread_res_uid(uid, uid, uid).expect("uid");
            work()
        });
        match thread.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}
