//! Hosts, lanes and a tunnel of a live run.
//!
//! ```text
//!   east of an arm ==lane 0== west of it        an arm: two hosts with two lanes of their own, all alike; one emulator
//!                  ==lane 1==
//! ```

use std::fmt::Write as _;
use std::io;
use std::path::Path as FsPath;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kuroshio_lane::{LaneError, Stop, Tunnel, TunnelConfig, control, key, status::TunnelStatus};
use kuroshio_testbed::{Testbed, Topology};

use super::LaneRunError;

/// How long a tunnel may take until both ends use every lane.
const PATIENCE: Duration = Duration::from_secs(20);

/// Two hosts with lanes between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Arm {
    pub(super) east: &'static str,
    pub(super) west: &'static str,
    /// Third number of its addresses' network, and first letter of its links.
    number: u8,
}

/// The hosts of the tunnel.
pub(super) const TUNNEL: Arm = Arm {
    east: "te",
    west: "tw",
    number: 1,
};
/// The hosts of MPTCP.
pub(super) const MPTCP: Arm = Arm {
    east: "me",
    west: "mw",
    number: 2,
};
/// The hosts of plain TCP.
pub(super) const ALONE: Arm = Arm {
    east: "ae",
    west: "aw",
    number: 3,
};

impl Arm {
    /// The address of a lane's end.
    pub(super) fn address(self, lane: usize, west: bool) -> String {
        format!("10.{}.{lane}.{}", self.number, if west { 2 } else { 1 })
    }

    /// The name of a lane's link.
    pub(super) fn link(self, lane: usize) -> String {
        format!("{}{lane}", self.east)
    }
}

/// The topology of these arms, all with lanes of these lines; `sysctl` is every host's.
pub(super) fn topology(arms: &[Arm], links: &[String], sysctl: &str) -> String {
    let mut text = String::from("name = \"lanes\"\n");
    for arm in arms {
        for (lane, _) in links.iter().enumerate() {
            for end in [arm.east, arm.west] {
                // Writing to a string does not fail, here and below.
                let _ = write!(text, "[[router]]\nname = \"r{end}{lane}\"\n");
            }
        }
        for (end, west) in [(arm.east, false), (arm.west, true)] {
            let _ = write!(text, "[[host]]\nname = \"{end}\"\nsysctl = {{ {sysctl} }}\n");
            for (lane, _) in links.iter().enumerate() {
                let address = arm.address(lane, west);
                let _ = write!(
                    text,
                    "[[host.port]]\nname = \"p{lane}\"\naddress = [\"{address}/24\"]\nrouter = \"r{end}{lane}\"\n"
                );
            }
        }
        for (lane, lines) in links.iter().enumerate() {
            let (name, east, west) = (arm.link(lane), arm.east, arm.west);
            let _ = write!(
                text,
                "[[link]]\nname = \"{name}\"\nbetween = [\"r{east}{lane}\", \"r{west}{lane}\"]\n{lines}\n"
            );
        }
    }
    text
}

/// A testbed of that topology.
pub(super) fn up(text: &str) -> Result<Testbed, LaneRunError> {
    let topology = Topology::from_toml(text).map_err(|e| LaneRunError::Other(e.to_string()))?;
    Ok(Testbed::up(&topology)?)
}

/// Whether this process may have a thread run before all ordinary ones.
pub(crate) fn may_run_first() -> bool {
    let tried = std::thread::spawn(|| kuroshio_clock::fifo_lowest().is_ok());
    tried.join().unwrap_or(false)
}

struct End {
    stop: Stop,
    thread: JoinHandle<io::Result<Result<(), LaneError>>>,
    config: TunnelConfig,
}

/// Both ends of a tunnel between the hosts of [`TUNNEL`]: 10.9.0.1 in the east, 10.9.0.2 in the west. Dropping it ends it.
pub(super) struct Ends {
    ends: Vec<End>,
    _folder: tempfile::TempDir,
}

impl Ends {
    /// `lines` stand before the lanes in both ends' files; one capacity for each lane.
    pub(super) fn up(tb: &Testbed, lines: &str, capacities_mbps: &[u32]) -> Result<Self, LaneRunError> {
        let folder = tempfile::tempdir().map_err(LaneRunError::from)?;
        let names = [TUNNEL.east, TUNNEL.west];
        let mut public = Vec::new();
        for name in names {
            public.push(key::generate(&folder.path().join(format!("{name}.key")))?);
        }
        let mut ends = Self {
            ends: Vec::new(),
            _folder: folder,
        };
        for (west, name) in names.into_iter().enumerate() {
            let peer = &public[1 - west];
            let mut text = format!(
                "name = \"sea0\"\naddress = [\"10.9.0.{}/30\"]\nkey = \"{name}.key\"\npeer = \"{peer}\"\ncontrol = \"{name}.sock\"\n{lines}\n",
                west + 1
            );
            for (lane, mbps) in capacities_mbps.iter().enumerate() {
                let (own, other) = (TUNNEL.address(lane, west == 1), TUNNEL.address(lane, west == 0));
                let _ = write!(
                    text,
                    "[[lane]]\nname = \"l{lane}\"\nlocal = \"{own}:7000\"\nremote = \"{other}:7000\"\ncapacity = \"{mbps}Mbps\"\n"
                );
            }
            let end = end(tb, name, &text, ends._folder.path())?;
            ends.ends.push(end);
        }
        ends.wait()?;
        Ok(ends)
    }

    fn wait(&self) -> Result<(), LaneRunError> {
        let end = Instant::now() + PATIENCE;
        loop {
            let status = self.status();
            let lanes = status.iter().flat_map(|s| &s.lanes);
            let open = status.len() == self.ends.len() && status.iter().all(|s| s.open);
            // A lane that the rule leaves out from the start is there as well.
            if open && lanes.clone().all(|l| l.state != "new" && l.state != "dead") {
                return Ok(());
            }
            if Instant::now() > end {
                let states: Vec<&str> = lanes.map(|l| l.state.as_str()).collect();
                return Err(LaneRunError::Other(format!(
                    "the tunnel is not up after {} s: lanes {}",
                    PATIENCE.as_secs(),
                    states.join(", ")
                )));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// What both ends tell, east first; less when one does not answer.
    pub(super) fn status(&self) -> Vec<TunnelStatus> {
        let asked = self
            .ends
            .iter()
            .map(|e| control::ask(&e.config.control, "status"));
        asked.filter_map(Result::ok).collect()
    }

    /// Ends both, and says what went wrong with one.
    pub(super) fn down(mut self) -> Result<(), LaneRunError> {
        for end in self.ends.drain(..) {
            end.stop.stop();
            match end.thread.join() {
                Ok(result) => result.map_err(LaneRunError::from)??,
                Err(_) => return Err(LaneRunError::Other("a tunnel's thread panicked".into())),
            }
        }
        Ok(())
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        for end in self.ends.drain(..) {
            end.stop.stop();
            // Its socket's file goes with it; what went wrong is told by `down`.
            let _ = end.thread.join();
        }
    }
}

fn end(tb: &Testbed, host: &str, text: &str, folder: &FsPath) -> Result<End, LaneRunError> {
    let config = TunnelConfig::from_toml(text, folder)?;
    let (tell, up) = channel();
    let its = config.clone();
    let thread = tb.in_host(host, move || {
        let tunnel = Tunnel::up(its)?;
        // The other end waits for it, or has given up.
        let _ = tell.send(tunnel.stop_handle());
        tunnel.run()
    })?;
    match up.recv_timeout(PATIENCE) {
        Ok(stop) => Ok(End { stop, thread, config }),
        Err(_) => match thread.join() {
            Ok(Ok(Err(e))) => Err(e.into()),
            Ok(Err(e)) => Err(e.into()),
            _ => Err(LaneRunError::Other(format!("no tunnel in host {host}"))),
        },
    }
}
