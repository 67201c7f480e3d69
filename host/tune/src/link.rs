//! An interface: MTU, transmit queue, queueing discipline and offloads.
//!
//! Reading and changing go through route netlink and the ethtool ioctl, in the calling process's network
//! namespace; `/sys/class/net` would show that of whoever mounted it.

use netlink_packet_core::{NLM_F_ACK, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use serde::Serialize;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// Longest name of an interface (`IFNAMSIZ` less the final NUL).
pub const MAX_NAME: usize = 15;

/// Offloads that a fast sender or receiver needs, and the command by which ethtool tells their state
/// (`include/uapi/linux/ethtool.h`).
const OFFLOADS: [(&str, u32); 6] = [
    ("rx", 0x14),
    ("tx", 0x16),
    ("sg", 0x18),
    ("tso", 0x1e),
    ("gso", 0x23),
    ("gro", 0x2b),
];

/// What is known of an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LinkFacts {
    /// Its name.
    pub dev: String,
    /// MTU, bytes.
    pub mtu: Option<u32>,
    /// Transmit queue, frames.
    pub txqueuelen: Option<u32>,
    /// Queueing discipline.
    pub qdisc: Option<String>,
    /// Offloads by ethtool's names; those that cannot be asked are left out.
    pub offloads: Vec<(String, bool)>,
}

/// Whether a text may be the name of an interface.
pub fn is_name(name: &str) -> bool {
    (1..=MAX_NAME).contains(&name.len())
        && name != "."
        && name != ".."
        && name
            .bytes()
            .all(|b| b.is_ascii_graphic() && b != b'/' && b != b':')
}

/// The interface of the default route, IPv4 before IPv6.
pub fn default_dev() -> Option<String> {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    default_dev_v4(&read("/proc/thread-self/net/route"))
        .or_else(|| default_dev_v6(&read("/proc/thread-self/net/ipv6_route")))
}

/// `Iface Destination Gateway Flags RefCnt Use Metric Mask ...`, hexadecimal.
fn default_dev_v4(table: &str) -> Option<String> {
    table.lines().skip(1).find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let default = words.get(1) == Some(&"00000000") && words.get(7) == Some(&"00000000");
        words.first().filter(|_| default).map(|dev| (*dev).to_owned())
    })
}

/// `destination length source length next-hop metric refs use flags dev`; `lo` holds the route of last resort.
fn default_dev_v6(table: &str) -> Option<String> {
    table.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let default =
            words.first().is_some_and(|d| d.bytes().all(|b| b == b'0')) && words.get(1) == Some(&"00");
        words
            .get(9)
            .filter(|dev| default && **dev != "lo")
            .map(|dev| (*dev).to_owned())
    })
}

/// Reads an interface.
///
/// # Errors
/// No interface of that name, or netlink's error.
pub fn read(dev: &str) -> io::Result<LinkFacts> {
    let link = get(dev)?;
    let mut facts = LinkFacts {
        dev: dev.to_owned(),
        ..LinkFacts::default()
    };
    for attribute in link.attributes {
        match attribute {
            LinkAttribute::Mtu(mtu) => facts.mtu = Some(mtu),
            LinkAttribute::TxQueueLen(frames) => facts.txqueuelen = Some(frames),
            LinkAttribute::Qdisc(name) => facts.qdisc = Some(name),
            _ => {}
        }
    }
    let socket = ioctl_socket()?;
    for (name, command) in OFFLOADS {
        if let Ok(on) = ethtool_value(&socket, dev, command) {
            facts.offloads.push((name.to_owned(), on != 0));
        }
    }
    Ok(facts)
}

/// Sets an interface's MTU, bytes.
///
/// # Errors
/// Netlink's: `EINVAL` for an MTU that the interface cannot have, `EPERM`.
pub fn set_mtu(dev: &str, mtu: u32) -> io::Result<()> {
    set(dev, LinkAttribute::Mtu(mtu))
}

/// Sets an interface's transmit queue, frames.
///
/// # Errors
/// Netlink's.
pub fn set_txqueuelen(dev: &str, frames: u32) -> io::Result<()> {
    set(dev, LinkAttribute::TxQueueLen(frames))
}

fn get(dev: &str) -> io::Result<LinkMessage> {
    let mut ask = LinkMessage::default();
    ask.attributes.push(LinkAttribute::IfName(dev.to_owned()));
    match request(RouteNetlinkMessage::GetLink(ask), 0)? {
        Some(RouteNetlinkMessage::NewLink(link)) => Ok(link),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("interface {dev}: no answer"),
        )),
    }
}

fn set(dev: &str, attribute: LinkAttribute) -> io::Result<()> {
    let mut link = LinkMessage::default();
    link.header.index = get(dev)?.header.index;
    link.attributes = vec![attribute];
    request(RouteNetlinkMessage::SetLink(link), NLM_F_ACK).map(drop)
}

fn request(message: RouteNetlinkMessage, flags: u16) -> io::Result<Option<RouteNetlinkMessage>> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | flags;
    header.sequence_number = 1;
    let mut packet = NetlinkMessage::new(header, NetlinkPayload::from(message));
    packet.finalize();
    let mut bytes = vec![0; packet.buffer_len()];
    packet.serialize(&mut bytes);
    socket.send(&bytes, 0)?;
    let (answer, _) = socket.recv_from_full()?;
    let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&answer)
        .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, format!("netlink: {e}")))?;
    match answer.payload {
        NetlinkPayload::Error(error) if error.code.is_some() => Err(error.to_io()),
        NetlinkPayload::InnerMessage(inner) => Ok(Some(inner)),
        _ => Ok(None),
    }
}

fn ioctl_socket() -> io::Result<OwnedFd> {
    Ok(socket_with(
        AddressFamily::INET,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    )?)
}

/// `struct ethtool_value` (`include/uapi/linux/ethtool.h`).
#[repr(C)]
struct EthtoolValue {
    cmd: u32,
    data: u32,
}

fn ethtool_value(socket: &OwnedFd, dev: &str, command: u32) -> io::Result<u32> {
    if !is_name(dev) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut value = EthtoolValue {
        cmd: command,
        data: 0,
    };
    // SAFETY: `ifreq` is plain old data; all-zero bytes are a valid value of it.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // `is_name` bounds the name, so that a NUL is left behind it.
    for (to, from) in request.ifr_name.iter_mut().zip(dev.bytes()) {
        *to = from.cast_signed() as libc::c_char;
    }
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    // SAFETY: the request is a whole `ifreq` whose data points to a whole `ethtool_value`; both live over the
    // call, and every command of `OFFLOADS` reads and writes exactly that structure.
    let ret = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) };
    if ret != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(value.data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_route_s_interface_is_found() {
        let v4 = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n\
                  eth1\t0000A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\n\
                  eth0\t00000000\t0100A8C0\t0003\t0\t0\t0\t00000000\n";
        assert_eq!(default_dev_v4(v4).as_deref(), Some("eth0"));
        assert_eq!(default_dev_v4("Iface\n"), None);
        let zeros = "0".repeat(32);
        let v6 = format!("{zeros} 00 {zeros} 00 {zeros} ffffffff 1 0 00200200       lo\n");
        assert_eq!(default_dev_v6(&v6), None);
        let v6 = format!("{v6}{zeros} 00 {zeros} 00 fe80 400 1 0 3    ens3\n");
        assert_eq!(default_dev_v6(&v6).as_deref(), Some("ens3"));
        assert_eq!(default_dev_v6("x\n\n"), None);
    }

    #[test]
    fn names_are_checked() {
        for (name, fits) in [
            ("eth0", true),
            ("br-lan.7", true),
            ("", false),
            ("..", false),
            ("a/b", false),
        ] {
            assert_eq!(is_name(name), fits, "{name}");
        }
        assert!(!is_name("a234567890123456"));
    }

    #[test]
    fn loopback_is_read_and_others_are_not() {
        let lo = read("lo").expect("loopback");
        assert!(lo.mtu.is_some_and(|mtu| mtu >= 1280), "{lo:?}");
        assert!(lo.qdisc.is_some() && lo.txqueuelen.is_some(), "{lo:?}");
        assert!(read("no-such-dev").is_err());
    }
}
