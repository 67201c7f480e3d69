//! A grid in this process: a metadata service on SQLite and nodes, on loopback, in a temporary folder.
#![allow(dead_code)]

use std::io::Cursor;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kuroshio_catalog::{Options, Sqlite};
use kuroshio_client::{Cancel, ClientError, Grid, PutOptions, Sent, v1};
use kuroshio_metad::{Config, Metad, Timing};
use kuroshio_node::{Node, NodeConfig};
use kuroshio_service::Ticket;
use tempfile::TempDir;

/// Longest wait for a state.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Silence after which a node is down where a test does not ask for less, milliseconds.
const PATIENT_MS: u64 = 60_000;

pub struct TestGrid {
    // Nodes end before the service, the service before its folder goes.
    pub nodes: Vec<Option<Node>>,
    pub metad: Option<Metad>,
    pub dir: TempDir,
}

impl TestGrid {
    pub fn start(nodes: u32, timing: Timing) -> Self {
        let site = |_| node_at("");
        Self::with(|c| c.timing = timing, (0..nodes).map(site).collect())
    }

    /// With another configuration of the service, and nodes with theirs.
    pub fn with(change: impl FnOnce(&mut Config), nodes: Vec<NodeConfig>) -> Self {
        let dir = tempfile::tempdir().expect("temp dir");
        let mut config = Config {
            name: "test".into(),
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            advertise: None,
            database: None,
            timing: Timing::default(),
            replication: kuroshio_metad::Replication::default(),
            routes: Vec::new(),
        };
        change(&mut config);
        // A busy machine may be silent for longer than a service's default: nodes are lost where a test says so.
        if config.timing.down_after_ms == Timing::default().down_after_ms {
            config.timing.down_after_ms = PATIENT_MS;
        }
        config.save(&dir.path().join("metad")).expect("configuration");
        let mut grid = Self {
            nodes: Vec::new(),
            metad: None,
            dir,
        };
        grid.start_metad();
        let count = nodes.len();
        for (n, node) in (1..).zip(nodes) {
            grid.add_node(n, node);
        }
        grid.wait_for_nodes(count);
        grid
    }

    pub fn metad_dir(&self) -> PathBuf {
        self.dir.path().join("metad")
    }

    pub fn node_dir(&self, n: u32) -> PathBuf {
        self.dir.path().join(format!("node{n}"))
    }

    pub fn start_metad(&mut self) {
        let catalog = Sqlite::open(&self.metad_dir().join("catalog"), Options::default()).expect("catalog");
        self.metad = Some(Metad::start(&self.metad_dir(), Arc::new(catalog)).expect("metad"));
    }

    pub fn add_node(&mut self, n: u32, config: NodeConfig) {
        let ticket = self
            .admin()
            .issue_ticket(v1::IssueTicketRequest {
                user: format!("node{n}"),
                for_node: true,
                ..Default::default()
            })
            .expect("node ticket");
        config
            .save(&self.node_dir(n), &ticket)
            .expect("node configuration");
        let node = Node::start(&self.node_dir(n)).expect("node");
        self.nodes.push(Some(node));
    }

    pub fn wait_for_nodes(&self, up: usize) {
        let admin = self.admin();
        wait_for("nodes up", || {
            let nodes = admin.nodes().expect("nodes");
            nodes.iter().filter(|n| n.state == "up" && n.joined).count() >= up
        });
    }

    pub fn admin_ticket(&self) -> Ticket {
        Metad::kept_admin_ticket(&self.metad_dir())
            .expect("readable")
            .expect("kept")
    }

    /// Content goes through the network: all nodes here are on one host.
    pub fn admin(&self) -> Grid {
        let grid = Grid::connect(&self.admin_ticket()).expect("connected");
        grid.use_near(false);
        grid
    }

    pub fn user_ticket(&self, name: &str, scope: &str) -> Ticket {
        self.admin()
            .issue_ticket(v1::IssueTicketRequest {
                user: name.into(),
                groups: vec!["users".into()],
                scope: scope.into(),
                ..Default::default()
            })
            .expect("ticket")
    }

    pub fn user(&self, name: &str) -> Grid {
        let grid = Grid::connect(&self.user_ticket(name, "")).expect("connected");
        grid.use_near(false);
        grid
    }

    /// A directory at the root that everybody may write.
    pub fn open_dir(&self, path: &str) {
        let admin = self.admin();
        admin.make_dir(path.as_bytes(), 0o777, 0).expect("directory");
    }
}

/// A node's configuration.
pub fn node_at(site: &str) -> NodeConfig {
    NodeConfig::new(site, SocketAddr::from(([127, 0, 0, 1], 0)))
}

pub fn put(grid: &Grid, path: &str, content: &[u8], mode: u32) -> Result<Sent, ClientError> {
    let options = PutOptions {
        exclusive: false,
        mode,
        umask: 0,
        near_host: String::new(),
        mtime_ns: None,
    };
    let hint = content.len() as u64;
    grid.put(
        path.as_bytes(),
        &mut Cursor::new(content),
        hint,
        &options,
        &Cancel::default(),
    )
}

pub fn read(grid: &Grid, path: &str) -> Result<Vec<u8>, ClientError> {
    let mut out = Vec::new();
    grid.read_to(path.as_bytes(), &mut out, &Cancel::default())?;
    Ok(out)
}

/// Bytes that no part of repeats.
pub fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut out = vec![0; len];
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    blake3::Hasher::new_keyed(&key).finalize_xof().fill(&mut out);
    out
}

pub fn wait_for(what: &str, mut reached: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !reached() {
        assert!(Instant::now() < deadline, "not reached in {LIMIT:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
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

/// Number of a node of this name.
pub fn number(name: &str) -> u32 {
    name.strip_prefix("node")
        .and_then(|n| n.parse().ok())
        .expect("a node's number")
}

/// Turns a bit in the middle of a node's only object.
pub fn damage(dir: &Path) {
    use std::os::unix::fs::FileExt;
    let file = object_files(dir).pop().expect("an object");
    let open = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(&file)
        .expect("opened");
    let at = open.metadata().expect("there").len() / 2;
    let mut byte = [0];
    open.read_exact_at(&mut byte, at).expect("read");
    open.write_all_at(&[byte[0] ^ 1], at).expect("written");
}

/// The only file of an object in a node's spool.
pub fn object_files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![dir.join("spool/objects")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            if entry.path().is_dir() {
                folders.push(entry.path());
            } else {
                found.push(entry.path());
            }
        }
    }
    found
}
