//! Network namespaces on one bridge, which vanish with the process that made them.
//!
//! Each namespace is held by a process that ends when its input does. Needs root.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr};
use std::process::{Child, Command, Stdio};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// A namespace; gone when this is dropped.
struct Space(Child);

impl Space {
    fn new() -> Result<Self, String> {
        let mut child = Command::new("unshare")
            .args(["--net", "sh", "-c", "echo ready; read line"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|e| format!("unshare: {e}"))?;
        let mut line = String::new();
        let told = child
            .stdout
            .take()
            .map(|out| BufReader::new(out).read_line(&mut line));
        let space = Self(child);
        match told {
            Some(Ok(_)) if line.trim() == "ready" => Ok(space),
            _ => Err("no network namespace can be made (root is needed)".into()),
        }
    }

    fn path(&self) -> String {
        format!("/proc/{}/ns/net", self.0.id())
    }

    /// Runs `ip` in it.
    fn ip(&self, args: &str) -> Result<(), String> {
        let out = Command::new("nsenter")
            .arg(format!("--net={}", self.path()))
            .arg("ip")
            .args(args.split(' '))
            .output()
            .map_err(|e| format!("nsenter: {e}"))?;
        if out.status.success() {
            return Ok(());
        }
        Err(format!(
            "ip {args}: {}",
            String::from_utf8_lossy(&out.stderr).trim()
        ))
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Places on one bridge.
pub struct Net {
    hub: Space,
    places: Vec<Space>,
}

impl Net {
    /// So many places, at 10.66.0.1 and so on.
    ///
    /// # Errors
    /// Not root, or a kernel without bridges.
    pub fn new(places: usize) -> Result<Self, String> {
        let hub = Space::new()?;
        hub.ip("link add dev br0 type bridge")?;
        hub.ip("link set dev br0 up")?;
        let mut net = Self {
            hub,
            places: Vec::new(),
        };
        for n in 0..places {
            let space = Space::new()?;
            let pid = space.0.id();
            net.hub
                .ip(&format!("link add dev v{n} type veth peer name e0 netns {pid}"))?;
            net.hub.ip(&format!("link set dev v{n} master br0 up"))?;
            space.ip(&format!("addr add {}/24 dev e0", Self::address(n)))?;
            space.ip("link set dev e0 up")?;
            space.ip("link set dev lo up")?;
            net.places.push(space);
        }
        Ok(net)
    }

    /// A place's address.
    #[must_use]
    pub fn address(place: usize) -> IpAddr {
        let last = u8::try_from(place + 1).unwrap_or(u8::MAX);
        IpAddr::V4(Ipv4Addr::new(10, 66, 0, last))
    }

    /// What a command is to begin with to run at a place.
    #[must_use]
    pub fn prefix(&self, place: usize) -> Vec<String> {
        let path = self.places.get(place).map(Space::path).unwrap_or_default();
        vec!["nsenter".to_owned(), format!("--net={path}")]
    }

    /// Cuts a place from all others, or joins it again.
    ///
    /// # Errors
    /// The kernel's words.
    pub fn cut(&self, place: usize, cut: bool) -> Result<(), String> {
        let state = if cut { "down" } else { "up" };
        self.hub.ip(&format!("link set dev v{place} {state}"))
    }

    /// What [`enter`] needs for a place.
    ///
    /// # Errors
    /// The namespace is gone.
    pub fn door(&self, place: usize) -> Result<File, String> {
        let path = self.prefix(place).pop().unwrap_or_default();
        let path = path.trim_start_matches("--net=").to_owned();
        File::open(&path).map_err(|e| format!("{path}: {e}"))
    }
}

/// Moves this thread, and those that it starts from now on, to a place.
///
/// # Errors
/// The kernel's words.
pub fn enter(door: &File) -> Result<(), String> {
    move_into_link_name_space(std::os::fd::AsFd::as_fd(door), Some(LinkNameSpaceType::Network))
        .map_err(|e| format!("cannot enter a network namespace: {e}"))
}
