//! A grid with a gateway, in this process, and the tools that speak to it.
#![allow(dead_code)]

#[path = "../../../node/tests/common/mod.rs"]
pub mod grid;

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use kuroshio_gateway::{Gateway, GatewayConfig};
use kuroshio_metad::Timing;
use kuroshio_service::Ticket;

use grid::TestGrid;

/// What a test wants of its gateway beside the usual.
#[derive(Default)]
pub struct Wanted {
    /// Requests without a token are the administrator's.
    pub guest: bool,
    /// Internal networks that copies may reach.
    pub allow: &'static [&'static str],
    /// Certificates that copies trust.
    pub trust: Vec<PathBuf>,
}

pub struct Bed {
    // The gateway ends before its grid.
    pub gateway: Gateway,
    pub grid: TestGrid,
}

impl Bed {
    pub fn start(nodes: u32, wanted: Wanted) -> Self {
        let grid = TestGrid::start(nodes, Timing::default());
        let admin = grid.admin_ticket();
        let config = GatewayConfig {
            dir: grid.dir.path().join("gateway"),
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            names: vec!["127.0.0.1".into(), "localhost".into()],
            grid_address: admin.address().to_owned(),
            grid_pin: admin.pin(),
            guest: wanted.guest.then(|| admin.clone()),
            allow: wanted
                .allow
                .iter()
                .map(|net| net.parse().expect("network"))
                .collect(),
            trust: wanted.trust,
        };
        let gateway = Gateway::start(&config).expect("gateway");
        Self { gateway, grid }
    }

    pub fn url(&self, path: &str) -> String {
        format!("https://{}{path}", self.gateway.address())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.grid.dir.path().join(name)
    }

    pub fn file(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, content).expect("written");
        path
    }

    /// `curl` as the administrator.
    pub fn curl(&self, args: &[&str]) -> Answer {
        self.curl_as(&self.grid.admin_ticket(), args)
    }

    pub fn curl_as(&self, ticket: &Ticket, args: &[&str]) -> Answer {
        let header = format!("Authorization: Bearer {}\n", ticket.token());
        let header = self.file("header", header.as_bytes());
        let header = format!("@{}", header.display());
        self.curl_plain(&[&["-H", &header][..], args].concat())
    }

    /// `curl` without a token.
    pub fn curl_plain(&self, args: &[&str]) -> Answer {
        let certificate = self.gateway.certificate().display().to_string();
        let mut command = tool("curl");
        command.args([
            "-sS",
            "--path-as-is",
            "--max-time",
            "60",
            "--cacert",
            &certificate,
        ]);
        command.args(["-D", "-", "-o"]).arg(self.path("body"));
        command.args(args);
        let _ = fs::remove_file(self.path("body"));
        let output = command.output().expect("curl runs");
        Answer {
            head: String::from_utf8_lossy(&output.stdout).to_ascii_lowercase(),
            body: fs::read(self.path("body")).unwrap_or_default(),
            exit: output.status.code(),
            errors: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// The status of a request by `curl` as the administrator.
    pub fn status(&self, method: &str, path: &str, more: &[&str]) -> u16 {
        let url = self.url(path);
        self.curl(&[&["-X", method, &url][..], more].concat()).status()
    }
}

/// What curl got.
#[derive(Debug)]
pub struct Answer {
    /// Heads of all answers, lower case.
    pub head: String,
    pub body: Vec<u8>,
    pub exit: Option<i32>,
    pub errors: String,
}

impl Answer {
    /// Of the last answer; 0 when there was none.
    pub fn status(&self) -> u16 {
        let line = self.head.lines().rfind(|l| l.starts_with("http/"));
        let status = line.and_then(|l| l.split(' ').nth(1));
        status.and_then(|s| s.trim().parse().ok()).unwrap_or(0)
    }

    pub fn field(&self, name: &str) -> Option<&str> {
        self.head.lines().rev().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            (key == name).then_some(value.trim())
        })
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// A program that `scripts/deps test` installs.
pub fn tool(name: &str) -> Command {
    let mut command = Command::new(name);
    command.stdin(Stdio::null()).env("LC_ALL", "C");
    for proxy in [
        "http_proxy",
        "https_proxy",
        "all_proxy",
        "HTTPS_PROXY",
        "ALL_PROXY",
    ] {
        command.env_remove(proxy);
    }
    command
}

/// Runs a tool that must do its work; gives what it said.
pub fn run(command: &mut Command) -> String {
    let shown = format!("{:?}", command.get_program());
    let output: Output = command
        .output()
        .unwrap_or_else(|e| panic!("{shown}: {e}; `scripts/deps test` installs it"));
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        output.status.success(),
        "{shown} {:?}: {said}",
        command.get_args().collect::<Vec<_>>()
    );
    said
}

/// Files below a folder with their content, sorted.
pub fn tree(root: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder").flatten() {
            if entry.path().is_dir() {
                folders.push(entry.path());
            } else {
                let name = entry.path().strip_prefix(root).expect("below").to_owned();
                found.push((name, fs::read(entry.path()).expect("read")));
            }
        }
    }
    found.sort();
    found
}
