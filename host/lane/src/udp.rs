//! A lane's socket: UDP, bound and connected, never fragmented, with the traffic class of every datagram.
//!
//! Connected, so that the kernel turns away what comes from any other address before it costs anything.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use socket2::{Domain, Protocol, Socket, Type};

use crate::{
    LaneError,
    config::LaneToml,
    messages::{Outbox, UDP_GRO},
    sys,
};

/// Asked for each socket buffer.
const BUFFER_BYTES: usize = 4 << 20;
/// Datagrams that wait at most before they are sent.
const WAITING_MAX: usize = 256;

/// linux/in.h, in6.h: `IP_PMTUDISC_DO`, `IP_MTU`, `IPV6_MTU`.
const PMTUDISC_DO: i32 = 2;
const IP_MTU: i32 = 14;
const IPV6_MTU: i32 = 24;

/// The socket and what waits for it.
#[derive(Debug)]
pub(crate) struct LaneSocket {
    socket: Socket,
    v6: bool,
    out: Outbox,
    /// Whether neighbours go as one message; until the system refuses one.
    segments: bool,
    /// Datagrams that the system did not take.
    pub(crate) refused: u64,
}

impl LaneSocket {
    pub(crate) fn open(lane: &LaneToml) -> Result<Self, LaneError> {
        let v6 = lane.remote.is_ipv6();
        let failed = |what: &str| LaneError::io(format!("lane {}: {what}", lane.name));
        let domain = if v6 { Domain::IPV6 } else { Domain::IPV4 };
        let socket =
            Socket::new(domain, Type::DGRAM, Some(Protocol::UDP)).map_err(failed("opening a socket"))?;
        if v6 {
            socket.set_only_v6(true).map_err(failed("IPV6_V6ONLY"))?;
        }
        if let Some(interface) = &lane.interface {
            socket
                .bind_device(Some(interface.as_bytes()))
                .map_err(failed(&format!("binding to interface {interface}")))?;
        }
        // As much as the system allows.
        let _ = socket.set_recv_buffer_size(BUFFER_BYTES);
        let _ = socket.set_send_buffer_size(BUFFER_BYTES);
        for (level, option, value) in options(v6) {
            sys::set_option(socket.as_fd(), level, option, value).map_err(failed("socket option"))?;
        }
        // Without stamps the time of reading counts, without the second every datagram comes alone: both work.
        let _ = sys::set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1);
        let _ = sys::set_option(socket.as_fd(), libc::SOL_UDP, UDP_GRO, 1);
        socket.set_nonblocking(true).map_err(failed("non-blocking"))?;
        socket
            .bind(&lane.local.into())
            .map_err(failed(&format!("binding to {}", lane.local)))?;
        socket
            .connect(&lane.remote.into())
            .map_err(failed(&format!("connecting to {}", lane.remote)))?;
        Ok(Self {
            socket,
            v6,
            out: Outbox::default(),
            segments: true,
            refused: 0,
        })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Where the next datagram is to be appended; [`LaneSocket::end`] ends it.
    pub(crate) fn room(&mut self) -> &mut Vec<u8> {
        self.out.room()
    }

    /// What was appended is a datagram of that class. `true` when it is time to send what waits.
    pub(crate) fn end(&mut self, class: u8) -> bool {
        self.out.end(class) >= WAITING_MAX
    }

    /// Sends all that waits. Says whether one was too large for the path. What the system does not take is lost, as on any
    /// path, and counted.
    pub(crate) fn flush(&mut self) -> io::Result<bool> {
        let (mut from, mut too_large) = (0, false);
        let mut result = Ok(());
        while from < self.out.len() {
            match self.out.send(self.socket.as_fd(), self.v6, from, self.segments) {
                Ok(sent) => from += sent.max(1),
                // Not cut up for this path, or one of them too large: once more, one by one.
                Err(e)
                    if self.segments
                        && matches!(
                            e.raw_os_error(),
                            Some(libc::EINVAL | libc::EIO | libc::EMSGSIZE | libc::EOPNOTSUPP)
                        ) =>
                {
                    self.segments = e.raw_os_error() == Some(libc::EMSGSIZE);
                    from += self.one_by_one(from, &mut too_large, &mut result);
                }
                Err(e) => {
                    from += 1;
                    self.note(e, &mut too_large, &mut result);
                }
            }
        }
        self.out.clear();
        result.map(|()| too_large)
    }

    /// Sends what waits from `from` on without putting neighbours together, and says how many that were.
    fn one_by_one(&mut self, from: usize, too_large: &mut bool, result: &mut io::Result<()>) -> usize {
        let mut at = from;
        while at < self.out.len() {
            match self.out.send(self.socket.as_fd(), self.v6, at, false) {
                Ok(sent) => at += sent.max(1),
                Err(e) => {
                    at += 1;
                    self.note(e, too_large, result);
                }
            }
        }
        at - from
    }

    /// The first of the rest was not taken.
    fn note(&mut self, e: io::Error, too_large: &mut bool, result: &mut io::Result<()>) {
        self.refused += 1;
        match e.raw_os_error() {
            Some(libc::EMSGSIZE) => *too_large = true,
            Some(
                libc::EAGAIN
                | libc::EINTR
                | libc::ENOBUFS
                | libc::ECONNREFUSED
                | libc::EHOSTUNREACH
                | libc::ENETUNREACH
                | libc::ENETDOWN
                | libc::EPERM,
            ) => {}
            _ => *result = Err(e),
        }
    }

    /// What the system knows of the path's MTU, bytes of IP packet.
    pub(crate) fn path_mtu(&self) -> io::Result<u32> {
        let (level, option) = if self.v6 {
            (libc::IPPROTO_IPV6, IPV6_MTU)
        } else {
            (libc::IPPROTO_IP, IP_MTU)
        };
        let mtu = sys::get_option(self.socket.as_fd(), level, option)?;
        Ok(u32::try_from(mtu).unwrap_or(0))
    }
}

fn options(v6: bool) -> [(i32, i32, i32); 2] {
    if v6 {
        [
            (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, PMTUDISC_DO),
            (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1),
        ]
    } else {
        [
            (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, PMTUDISC_DO),
            (libc::IPPROTO_IP, libc::IP_RECVTOS, 1),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{TunnelConfig, messages::Inbox};

    /// Lanes of a configuration between two ports of loopback that were free a moment ago.
    fn loopback(ip: &str) -> [LaneSocket; 2] {
        let free = || {
            let socket = std::net::UdpSocket::bind((ip, 0)).expect("loopback");
            socket.local_addr().expect("its address")
        };
        let (a, b) = (free(), free());
        [(a, b), (b, a)].map(|(local, remote)| {
            let text = format!(
                "name = \"t\"\nkey = \"k\"\npeer = \"AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\"\n[[lane]]\nname = \"l\"\nlocal = \"{local}\"\nremote = \"{remote}\"\ncapacity = \"1Gbps\""
            );
            let config = TunnelConfig::from_toml(&text, std::path::Path::new(".")).expect("configuration");
            LaneSocket::open(&config.lanes[0]).expect("a socket")
        })
    }

    #[test]
    fn datagrams_keep_their_class_and_their_bounds() {
        for ip in ["127.0.0.1", "::1"] {
            let [mut a, b] = loopback(ip);
            let one = (0..150u8).map(|n| (vec![n; usize::from(n) * 9 + 1], n.wrapping_mul(7)));
            // Those of one length and class go as one message, and come so.
            let alike = (0..150u8).map(|n| (vec![n; 1_400], 4));
            let sent: Vec<(Vec<u8>, u8)> = one.chain(alike).collect();
            for (bytes, class) in &sent {
                a.room().extend_from_slice(bytes);
                if a.end(*class) {
                    assert!(!a.flush().expect("sent"));
                }
            }
            assert!(!a.flush().expect("sent"));
            let (mut inbox, mut got) = (Inbox::new(), Vec::new());
            let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
            while got.len() < sent.len() {
                assert!(
                    std::time::Instant::now() < end,
                    "{} of {} arrived",
                    got.len(),
                    sent.len()
                );
                inbox.receive(b.fd()).expect("received");
                got.extend(inbox.datagrams().map(|d| (d.bytes.to_vec(), d.class)));
            }
            assert!(got == sent, "{ip}: other datagrams");
            // What no path carries in one piece is not sent in pieces.
            a.room().resize(65_530, 0);
            a.end(0);
            assert!(a.flush().expect("refused"), "{ip}");
            assert!(b.path_mtu().expect("an MTU") >= 1_280);
        }
    }
}
