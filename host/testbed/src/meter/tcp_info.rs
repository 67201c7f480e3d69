//! TCP's own view of every connection in a network namespace, without touching the programs: `inet_diag`.
//!
//! ```text
//!  request   nlmsghdr (16) | inet_diag_req_v2 (56)   SOCK_DIAG_BY_FAMILY, dump, states, extension INET_DIAG_INFO
//!  answer    nlmsghdr (16) | inet_diag_msg (72) | attributes: INET_DIAG_INFO = struct tcp_info, INET_DIAG_CONG = name
//! ```
//!
//! Layouts: `linux/inet_diag.h`, `linux/tcp.h` (both part of the kernel's ABI: fields are only appended). A dump is one
//! request and a few answers per address family. Listening sockets and those in TIME-WAIT have no figures and are left out.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use kuroshio_clock::now_ns;
use netlink_sys::Socket;
use serde::Serialize;

/// Most connections of one sample; further ones are counted.
pub const MAX_SOCKETS: usize = 4_096;

/// `NETLINK_SOCK_DIAG`.
const PROTOCOL: isize = 4;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const REQUEST_DUMP: u16 = 0x301;
const INET_DIAG_INFO: u16 = 2;
const INET_DIAG_CONG: u16 = 4;
const NLMSG_HEADER: usize = 16;
const DIAG_MSG: usize = 72;
/// Every state but LISTEN (10) and TIME-WAIT (6) and NEW-SYN-RECV (12).
const STATES: u32 = 0x1ffe & !(1 << 10) & !(1 << 6) & !(1 << 12);
const RECEIVE_BYTES: usize = 1 << 16;

/// One connection at one moment. Times are the kernel's, rates those of `struct tcp_info` in bits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TcpSample {
    /// `CLOCK_MONOTONIC` at which the dump was asked for, ns.
    pub monotonic_ns: u64,
    /// Own address.
    pub source: SocketAddr,
    /// The other's address.
    pub destination: SocketAddr,
    /// State, as `ESTAB`.
    pub state: &'static str,
    /// Congestion control.
    pub congestion: String,
    /// Smoothed round-trip time, us.
    pub rtt_us: u32,
    /// Its variation, us.
    pub rtt_var_us: u32,
    /// Smallest round-trip time, us; `None` before the first.
    pub rtt_min_us: Option<u32>,
    /// Congestion window, segments.
    pub cwnd_segments: u32,
    /// Slow-start threshold, segments; `None` as long as there is none.
    pub ssthresh_segments: Option<u32>,
    /// Largest segment it sends, bytes of payload.
    pub mss_bytes: u32,
    /// Segments that are not acknowledged.
    pub unacked_segments: u32,
    /// Segments that it holds for lost now.
    pub lost_segments: u32,
    /// Segments sent again, since the start.
    pub retransmitted_segments: u32,
    /// Payload sent, retransmissions included, since the start.
    pub sent_payload_bytes: u64,
    /// Payload sent again, since the start.
    pub retransmitted_payload_bytes: u64,
    /// Payload acknowledged, since the start.
    pub acked_payload_bytes: u64,
    /// Payload received in order, since the start.
    pub received_payload_bytes: u64,
    /// Pacing rate, payload; `None` when there is none.
    pub pacing_rate_bps: Option<u64>,
    /// Delivery rate that it measured last, payload.
    pub delivery_rate_bps: u64,
}

impl TcpSample {
    /// The names of [`TcpSample::csv`]'s columns.
    pub const CSV_HEAD: &'static str = "at_ns,source,destination,state,congestion,rtt_us,rtt_var_us,rtt_min_us,\
        cwnd_segments,ssthresh_segments,mss_bytes,unacked_segments,lost_segments,retransmitted_segments,\
        sent_payload_bytes,retransmitted_payload_bytes,acked_payload_bytes,received_payload_bytes,pacing_rate_bps,\
        delivery_rate_bps";

    /// One line; `at_ns` is the run's time.
    #[must_use]
    pub fn csv(&self, run_begin_monotonic_ns: u64) -> String {
        let or_empty = |value: Option<u64>| value.map(|v| v.to_string()).unwrap_or_default();
        let pacing = or_empty(self.pacing_rate_bps);
        format!(
            "{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{pacing},{}",
            self.monotonic_ns.saturating_sub(run_begin_monotonic_ns),
            self.source,
            self.destination,
            self.state,
            self.congestion,
            self.rtt_us,
            self.rtt_var_us,
            or_empty(self.rtt_min_us.map(u64::from)),
            self.cwnd_segments,
            or_empty(self.ssthresh_segments.map(u64::from)),
            self.mss_bytes,
            self.unacked_segments,
            self.lost_segments,
            self.retransmitted_segments,
            self.sent_payload_bytes,
            self.retransmitted_payload_bytes,
            self.acked_payload_bytes,
            self.received_payload_bytes,
            self.delivery_rate_bps
        )
    }
}

/// Asks the kernel for all connections of the network namespace in which it was made.
pub struct Sampler {
    socket: Socket,
    sequence: u32,
    buffer: Vec<u8>,
    left_out: u64,
}

impl Sampler {
    /// For the calling thread's network namespace.
    ///
    /// # Errors
    /// When the kernel has no `inet_diag`.
    pub fn open_here() -> io::Result<Self> {
        let mut socket = Socket::new(PROTOCOL)?;
        socket.bind_auto()?;
        socket.set_rx_buf_sz(1 << 20)?;
        Ok(Self {
            socket,
            sequence: 0,
            buffer: Vec::with_capacity(RECEIVE_BYTES),
            left_out: 0,
        })
    }

    /// Connections for which there was no room, of all samples.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Every TCP connection now, IPv4 and IPv6.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn sample(&mut self) -> io::Result<Vec<TcpSample>> {
        let mut samples = Vec::new();
        for family in [libc::AF_INET, libc::AF_INET6] {
            self.dump(family as u8, &mut samples)?;
        }
        Ok(samples)
    }

    fn dump(&mut self, family: u8, samples: &mut Vec<TcpSample>) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let at = now_ns();
        self.socket.send(&request(family, self.sequence), 0)?;
        loop {
            self.buffer.clear();
            self.buffer.reserve(RECEIVE_BYTES);
            self.socket.recv(&mut self.buffer, 0)?;
            for message in messages(&self.buffer) {
                match message.kind {
                    NLMSG_DONE if message.sequence == self.sequence => return Ok(()),
                    NLMSG_ERROR if message.sequence == self.sequence => {
                        let code = i32_at(message.body, 0).unwrap_or(0);
                        return match code {
                            0 => Ok(()),
                            // A kernel without IPv6.
                            code if -code == libc::ENOENT && family != libc::AF_INET as u8 => Ok(()),
                            code if -code == libc::ENOENT => Err(io::Error::new(
                                io::ErrorKind::Unsupported,
                                "this kernel tells nothing of TCP connections: load its module tcp_diag (modprobe tcp_diag)",
                            )),
                            code => Err(io::Error::from_raw_os_error(-code)),
                        };
                    }
                    SOCK_DIAG_BY_FAMILY if message.sequence == self.sequence => {
                        let Some(sample) = sample_of(message.body, at) else {
                            continue;
                        };
                        if samples.len() < MAX_SOCKETS {
                            samples.push(sample);
                        } else {
                            self.left_out += 1;
                        }
                    }
                    _ => {}
                }
            }
        }
    }
}

fn request(family: u8, sequence: u32) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(72);
    bytes.extend(72u32.to_ne_bytes());
    bytes.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes.extend(REQUEST_DUMP.to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend(0u32.to_ne_bytes());
    let extensions = 1u8 << (INET_DIAG_INFO - 1) | 1 << (INET_DIAG_CONG - 1);
    bytes.extend([family, libc::IPPROTO_TCP as u8, extensions, 0]);
    bytes.extend(STATES.to_ne_bytes());
    bytes.resize(72, 0);
    bytes
}

struct Message<'a> {
    kind: u16,
    sequence: u32,
    body: &'a [u8],
}

/// The netlink messages of a datagram; what is cut short ends them.
fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let len = u32_at(bytes, 0)? as usize;
        let message = Message {
            kind: u16_at(bytes, 4)?,
            sequence: u32_at(bytes, 8)?,
            body: bytes.get(NLMSG_HEADER..len)?,
        };
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or(&[]);
        Some(message)
    })
}

/// The attributes of an answer.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let len = usize::from(u16_at(bytes, 0)?);
        let attribute = (u16_at(bytes, 2)?, bytes.get(4..len)?);
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or(&[]);
        Some(attribute)
    })
}

fn sample_of(body: &[u8], at: u64) -> Option<TcpSample> {
    let (family, state) = (*body.first()?, *body.get(1)?);
    let port = |at: usize| Some(u16::from_be_bytes(*body.get(at..)?.first_chunk()?));
    let address = |at: usize| -> Option<IpAddr> {
        let bytes = body.get(at..at + 16)?;
        Some(if i32::from(family) == libc::AF_INET {
            IpAddr::V4(Ipv4Addr::from(*bytes.first_chunk::<4>()?))
        } else {
            IpAddr::V6(Ipv6Addr::from(*bytes.first_chunk::<16>()?))
        })
    };
    let (source, destination) = (
        SocketAddr::new(address(8)?, port(4)?),
        SocketAddr::new(address(24)?, port(6)?),
    );
    let (mut info, mut congestion) = (None, String::new());
    for (kind, value) in attributes(body.get(DIAG_MSG..)?) {
        match kind {
            INET_DIAG_INFO => info = Some(value),
            INET_DIAG_CONG => {
                let text = value.split(|b| *b == 0).next().unwrap_or(&[]);
                congestion = String::from_utf8_lossy(text).into_owned();
            }
            _ => {}
        }
    }
    // A field behind the end of an older kernel's structure is 0.
    let info = info?;
    let word = |at: usize| u32_at(info, at).unwrap_or(0);
    let long = |at: usize| u64_at(info, at).unwrap_or(0);
    let pacing = long(104);
    Some(TcpSample {
        monotonic_ns: at,
        source,
        destination,
        state: state_name(state),
        congestion,
        rtt_us: word(68),
        rtt_var_us: word(72),
        rtt_min_us: Some(word(148)).filter(|us| *us != u32::MAX),
        cwnd_segments: word(80),
        ssthresh_segments: Some(word(76)).filter(|n| *n < 0x7fff_ffff),
        mss_bytes: word(16),
        unacked_segments: word(24),
        lost_segments: word(32),
        retransmitted_segments: word(100),
        sent_payload_bytes: long(200),
        retransmitted_payload_bytes: long(208),
        acked_payload_bytes: long(120),
        received_payload_bytes: long(128),
        pacing_rate_bps: (pacing != u64::MAX && pacing != 0).then(|| pacing.saturating_mul(8)),
        delivery_rate_bps: long(160).saturating_mul(8),
    })
}

/// Names of the states, as ss(8) has them.
fn state_name(state: u8) -> &'static str {
    const NAMES: [&str; 12] = [
        "UNKNOWN",
        "ESTAB",
        "SYN-SENT",
        "SYN-RECV",
        "FIN-WAIT-1",
        "FIN-WAIT-2",
        "TIME-WAIT",
        "CLOSE",
        "CLOSE-WAIT",
        "LAST-ACK",
        "LISTEN",
        "CLOSING",
    ];
    NAMES.get(usize::from(state)).copied().unwrap_or("UNKNOWN")
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|b| u16::from_ne_bytes(*b))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|b| u32::from_ne_bytes(*b))
}

fn i32_at(bytes: &[u8], at: usize) -> Option<i32> {
    bytes.get(at..)?.first_chunk().map(|b| i32::from_ne_bytes(*b))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|b| u64::from_ne_bytes(*b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::mem::offset_of;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn the_offsets_are_those_of_the_structure() {
        for (ours, theirs) in [
            (68, offset_of!(libc::tcp_info, tcpi_rtt)),
            (72, offset_of!(libc::tcp_info, tcpi_rttvar)),
            (148, offset_of!(libc::tcp_info, tcpi_min_rtt)),
            (80, offset_of!(libc::tcp_info, tcpi_snd_cwnd)),
            (76, offset_of!(libc::tcp_info, tcpi_snd_ssthresh)),
            (16, offset_of!(libc::tcp_info, tcpi_snd_mss)),
            (24, offset_of!(libc::tcp_info, tcpi_unacked)),
            (32, offset_of!(libc::tcp_info, tcpi_lost)),
            (100, offset_of!(libc::tcp_info, tcpi_total_retrans)),
            (104, offset_of!(libc::tcp_info, tcpi_pacing_rate)),
            (120, offset_of!(libc::tcp_info, tcpi_bytes_acked)),
            (128, offset_of!(libc::tcp_info, tcpi_bytes_received)),
            (160, offset_of!(libc::tcp_info, tcpi_delivery_rate)),
            (200, offset_of!(libc::tcp_info, tcpi_bytes_sent)),
            (208, offset_of!(libc::tcp_info, tcpi_bytes_retrans)),
        ] {
            assert_eq!(ours, theirs);
        }
    }

    #[test]
    fn own_connections_are_seen_in_both_versions() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else {
                // A machine without IPv6 on loopback.
                assert!(address.starts_with('['), "{address}");
                continue;
            };
            let to = listener.local_addr().expect("address");
            let mut client = TcpStream::connect(to).expect("connect");
            let (mut server, _) = listener.accept().expect("accept");
            client.write_all(&[7; 1_000]).expect("write");
            let mut all = [0; 1_000];
            server.read_exact(&mut all).expect("read");
            let mut sampler = Sampler::open_here().expect("inet_diag");
            let samples = sampler.sample().expect("dump");
            let from = client.local_addr().expect("address");
            let sent = samples.iter().find(|s| (s.source, s.destination) == (from, to));
            let received = samples.iter().find(|s| (s.source, s.destination) == (to, from));
            let (sent, received) = (sent.expect("the client"), received.expect("the server"));
            assert_eq!(sent.state, "ESTAB");
            assert_eq!(sent.sent_payload_bytes, 1_000);
            assert_eq!(received.received_payload_bytes, 1_000);
            assert!(sent.cwnd_segments > 0 && sent.mss_bytes > 500, "{sent:?}");
            assert!(!sent.congestion.is_empty());
            let (columns, fields) = (TcpSample::CSV_HEAD, sent.csv(0));
            assert_eq!(columns.split(',').count(), fields.split(',').count());
        }
    }

    #[test]
    fn answers_cut_short_are_no_samples() {
        let mut body = vec![0u8; DIAG_MSG];
        body[0] = libc::AF_INET as u8;
        body[1] = 1;
        body.extend(60u16.to_ne_bytes());
        body.extend(INET_DIAG_INFO.to_ne_bytes());
        body.extend([0xff; 56]);
        assert!(sample_of(&body, 0).is_some_and(|s| s.rtt_us == 0 && s.mss_bytes == u32::MAX));
        for end in 0..body.len() {
            assert_eq!(sample_of(&body[..end], 0), None, "{end}");
        }
        assert_eq!(messages(&[1, 0, 0, 0]).count(), 0);
        assert_eq!(messages(&[0; 16]).count(), 0);
    }
}
