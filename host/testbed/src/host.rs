//! A host: a network namespace with TAP devices as its cards.
//!
//! The namespace is made by a thread that configures it and ends; it lives on behind a file
//! descriptor, and under `/run/netns` for `ip netns exec NAME` inside the testbed.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use kuroshio_port::{Drops, Interface, Tap};
use netlink_packet_route::link::LinkAttribute;

use crate::netlink::Netlink;
use crate::topology::{Attached, Host, MAX_MTU, Mode, Port, Topology};
use crate::{isolate, sys, sysctl};

/// Frames that a host's card holds until the emulator takes them: 0.4 s at 1 Gbps, and the most that
/// current kernels allow (6.12.117 answers 32768 with `ERANGE`). The emulator takes them at once into
/// the port's queue, which is the one that counts.
const TAP_RING_FRAMES: u32 = 32_767;

/// A port's device in the emulator's hands.
pub(crate) enum Device {
    Tap(Tap),
    Interface(Interface),
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tap(tap) => tap.as_fd(),
            Self::Interface(card) => card.as_fd(),
        }
    }
}

/// A host that is up.
pub(crate) struct LiveHost {
    pub netns: Arc<OwnedFd>,
    pub netlink: Mutex<Netlink>,
    mount: Option<PathBuf>,
    /// Of an attached interface, what it lost.
    drops: Option<Mutex<Drops>>,
}

/// What the kernel counted at a host's card.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CardCounters {
    /// Frames that the host sent and that found the card's ring full: lost before the emulator.
    pub tx_dropped: u64,
    /// Frames that the host's receive queue refused: lost after the emulator.
    pub rx_dropped: u64,
}

/// The hardware address of the port with a given number in the topology.
pub(crate) fn mac_of(port: usize) -> [u8; 6] {
    let [.., high, low] = port.to_be_bytes();
    // Locally administered, unicast.
    [0x02, 0x6b, 0x75, 0x72, high, low]
}

/// Makes a host with all its ports. The TAPs come back in the order of `ports`.
pub(crate) fn up(
    topology: &Topology,
    host: &Host,
    ports: &[(usize, &Port)],
    rps_cores: &[usize],
) -> io::Result<(LiveHost, Vec<Device>, Vec<Tap>)> {
    std::thread::scope(|scope| {
        std::thread::Builder::new()
            .name(format!("netns-{}", host.name))
            .spawn_scoped(scope, || match host.attached {
                None => configure(topology, host, ports, rps_cores),
                Some(kind) => attach(topology, kind, ports),
            })?
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the configuring thread panicked")))
    })
    .map_err(|e| io::Error::new(e.kind(), format!("host {}: {e}", host.name)))
}

fn configure(
    topology: &Topology,
    host: &Host,
    ports: &[(usize, &Port)],
    rps_cores: &[usize],
) -> io::Result<(LiveHost, Vec<Device>, Vec<Tap>)> {
    sys::new_netns().map_err(|e| named("new network namespace", &e))?;
    let netns = File::open("/proc/thread-self/ns/net").map_err(|e| named("its namespace", &e))?;
    for (name, value) in sysctl::HOST {
        if sysctl::path(name).exists() {
            sysctl::set(name, value)?;
        }
    }
    // Receive processing leaves the emulator's core. Without the file (before Linux 6.9) the
    // devices' own masks would have to be set, which needs root.
    if !rps_cores.is_empty() && sysctl::path("net.core.rps_default_mask").exists() {
        sysctl::set("net.core.rps_default_mask", &sysctl::core_mask(rps_cores))?;
    }
    for (name, value) in &host.sysctl {
        sysctl::set(name, value)?;
    }
    let mut netlink = Netlink::open_here()?;
    let lo = netlink.index("lo")?;
    netlink
        .set_up(lo, Vec::new())
        .map_err(|e| named("interface lo", &e))?;
    let taps = ports
        .iter()
        .map(|(number, port)| {
            add_port(&mut netlink, topology, *number, port)
                .map(Device::Tap)
                .map_err(|e| named(&format!("port {}", port.name), &e))
        })
        .collect::<io::Result<Vec<Device>>>()?;
    let mirrors = topology
        .taps
        .iter()
        .filter(|t| topology.hosts.get(t.host) == Some(host));
    let mirrors = mirrors
        .map(|t| add_mirror(&mut netlink, &t.name).map_err(|e| named(&format!("tap {}", t.name), &e)))
        .collect::<io::Result<Vec<Tap>>>()?;
    let mount = publish(&host.name);
    let live = LiveHost {
        netns: Arc::new(netns.into()),
        netlink: Mutex::new(netlink),
        mount,
        drops: None,
    };
    Ok((live, taps, mirrors))
}

/// A device of the network from which the testbed was started: attached, or made there and set up.
fn attach(
    topology: &Topology,
    kind: Attached,
    ports: &[(usize, &Port)],
) -> io::Result<(LiveHost, Vec<Device>, Vec<Tap>)> {
    let netns = isolate::outer_net()?;
    sys::enter_netns(netns.as_raw_fd()).map_err(|e| named("the machine's network", &e))?;
    let mut netlink = Netlink::open_here()?;
    let mut devices = Vec::new();
    let mut drops = None;
    for (_, port) in ports {
        let name = &port.name;
        let place = |e| named(name, &e);
        devices.push(match kind {
            Attached::Interface => {
                let card = Interface::attach_here(name).map_err(place)?;
                drops = Some(Mutex::new(card.drops()?));
                Device::Interface(card)
            }
            Attached::Tap => {
                let tap = open_tap(topology, name).map_err(place)?;
                let index = netlink.index(name).map_err(place)?;
                let mtu = LinkAttribute::Mtu(port.mtu_bytes);
                let ring = LinkAttribute::TxQueueLen(TAP_RING_FRAMES);
                netlink.change(index, vec![mtu, ring]).map_err(place)?;
                netlink.set_up(index, Vec::new()).map_err(place)?;
                Device::Tap(tap)
            }
        });
    }
    let live = LiveHost {
        netns: Arc::new(netns),
        netlink: Mutex::new(netlink),
        mount: None,
        drops,
    };
    Ok((live, devices, Vec::new()))
}

/// A device that shows what passes elsewhere; the host takes no part in it.
fn add_mirror(netlink: &mut Netlink, name: &str) -> io::Result<Tap> {
    // For devices made from here on: this one must not speak.
    if sysctl::path("net.ipv6.conf.default.disable_ipv6").exists() {
        sysctl::set("net.ipv6.conf.default.disable_ipv6", "1")?;
    }
    let tap = Tap::open_here(name)?;
    let index = netlink.index(name)?;
    // What it shows is of any size.
    netlink.change(index, vec![LinkAttribute::Mtu(MAX_MTU as u32)])?;
    netlink.set_up(index, Vec::new())?;
    Ok(tap)
}

fn open_tap(topology: &Topology, name: &str) -> io::Result<Tap> {
    match topology.mode {
        Mode::Frame => Tap::open_here(name),
        Mode::Segment { .. } => Tap::open_super_here(name),
    }
}

fn add_port(netlink: &mut Netlink, topology: &Topology, number: usize, port: &Port) -> io::Result<Tap> {
    let tap = open_tap(topology, &port.name)?;
    let index = netlink.index(&port.name)?;
    netlink.change(
        index,
        vec![
            LinkAttribute::Address(mac_of(number).to_vec()),
            LinkAttribute::Mtu(port.mtu_bytes),
            LinkAttribute::TxQueueLen(TAP_RING_FRAMES),
        ],
    )?;
    // The path's minimum segment is the card's own: no other route is known to the host.
    netlink.set_up(index, Vec::new())?;
    for net in &port.addresses {
        netlink
            .add_address(index, net.ip, net.prefix)
            .map_err(|e| named(&format!("address {net}"), &e))?;
    }
    for (other, mac) in topology.neighbours(number) {
        netlink
            .add_neighbour(index, other, mac_of(mac))
            .map_err(|e| named(&format!("neighbour {other}"), &e))?;
    }
    Ok(tap)
}

/// Shows the calling thread's namespace under `/run/netns`, where that is possible.
fn publish(name: &str) -> Option<PathBuf> {
    let dir = Path::new("/run/netns");
    if !dir.is_dir() {
        return None;
    }
    let path = dir.join(name);
    File::create(&path).ok()?;
    rustix::mount::mount_bind("/proc/thread-self/ns/net", &path).ok()?;
    Some(path)
}

fn named(what: &str, e: &io::Error) -> io::Error {
    io::Error::new(e.kind(), format!("{what}: {e}"))
}

impl LiveHost {
    /// What the kernel counted at a card.
    pub(crate) fn card(&self, port: &str) -> io::Result<CardCounters> {
        if let Some(drops) = &self.drops {
            let broken = |_| io::Error::other("a thread panicked while it read an interface's counters");
            return Ok(CardCounters {
                tx_dropped: drops.lock().map_err(broken)?.so_far()?,
                rx_dropped: 0,
            });
        }
        let mut netlink = self
            .netlink
            .lock()
            .map_err(|_| io::Error::other("a thread panicked while it held the netlink socket"))?;
        let stats = netlink.stats(port)?;
        Ok(CardCounters {
            tx_dropped: stats.tx_dropped,
            rx_dropped: stats.rx_dropped,
        })
    }

    /// Moves the calling thread into this host.
    pub(crate) fn enter(&self) -> io::Result<()> {
        sys::enter_netns(self.netns.as_raw_fd())
    }
}

impl Drop for LiveHost {
    fn drop(&mut self) {
        if let Some(path) = &self.mount {
            let _ = rustix::mount::unmount(path, rustix::mount::UnmountFlags::DETACH);
            let _ = std::fs::remove_file(path);
        }
    }
}
