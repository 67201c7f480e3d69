//! Socket options, one function each.

use crate::framing::Pacing;
use crate::info::tcp_info;
use crate::trim::{Sent, Trim};
use kuroshio_clock::now_ns;
use kuroshio_core::pace::{look_again_after, window_rate};
use kuroshio_core::units::{BitRate, FrameBytes, PicoDuration};
use socket2::{SockRef, TcpKeepalive};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

/// Data that is not acknowledged for so long ends the connection with `ETIMEDOUT`, milliseconds.
pub const USER_TIMEOUT_MS: u32 = 30_000;
/// An idle connection is probed after so many seconds.
pub const KEEPALIVE_IDLE_S: u32 = 15;
/// Seconds between probes.
pub const KEEPALIVE_INTERVAL_S: u32 = 5;
/// Probes without an answer until the connection ends: 15 s + 3 * 5 s = 30 s in all.
pub const KEEPALIVE_PROBES: u32 = 3;
/// Longest name of a congestion control (`TCP_CA_NAME_MAX` less the final NUL).
pub const MAX_CONGESTION_NAME: usize = 15;

/// Sets the congestion control of one socket by name, for example `cubic`.
///
/// # Errors
/// `InvalidInput` for an empty name or one beyond [`MAX_CONGESTION_NAME`] bytes; `NotFound` with the name
/// when the kernel has none of it; `PermissionDenied` when it may not be used without privilege.
pub fn set_congestion(socket: &impl AsFd, name: &str) -> io::Result<()> {
    if name.is_empty() || name.len() > MAX_CONGESTION_NAME || name.bytes().any(|b| b == 0) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!(
                "congestion control {name:?}: a name has 1 to {MAX_CONGESTION_NAME} bytes, for example cubic"
            ),
        ));
    }
    SockRef::from(socket)
        .set_tcp_congestion(name.as_bytes())
        .map_err(|e| {
            let why =
                format!("congestion control {name:?}: {e} (see net.ipv4.tcp_available_congestion_control)");
            io::Error::new(e.kind(), why)
        })
}

/// Name of the congestion control of a socket.
///
/// # Errors
/// What `getsockopt` gives.
pub fn congestion(socket: &impl AsFd) -> io::Result<String> {
    let raw = SockRef::from(socket).tcp_congestion()?;
    let end = raw.iter().position(|&b| b == 0).unwrap_or(raw.len());
    Ok(String::from_utf8_lossy(raw.get(..end).unwrap_or_default()).into_owned())
}

/// Sets the pace of a socket from a rate at *frame level*, or takes the limit off with `None`.
///
/// The conversion uses the segment size of this moment: call it again when `tcpi_snd_mss` changes
/// (for example after path MTU discovery). The connection must be established.
///
/// # Errors
/// `NotConnected` when the socket has no segment size yet; what `getsockopt`/`setsockopt` give.
pub fn set_pacing(socket: &impl AsFd, frame_level: Option<BitRate>) -> io::Result<Pacing> {
    keep_pacing(socket, frame_level, &mut Trim::default())
}

/// As [`set_pacing`], for a pace that is renewed regularly (ten times a second): the rate told to the
/// kernel is trimmed so that the average becomes the one asked for; see [`Trim`].
///
/// # Errors
/// As [`set_pacing`].
pub fn keep_pacing(socket: &impl AsFd, frame_level: Option<BitRate>, trim: &mut Trim) -> io::Result<Pacing> {
    let pacing = match frame_level {
        None => {
            *trim = Trim::default();
            Pacing {
                payload_bytes_per_s: u64::MAX,
                framing: None,
            }
        }
        Some(rate) => {
            let info = tcp_info(socket)?;
            let sent = Sent::of(&info, now_ns());
            let framing = info.framing(is_ipv6(socket)?).ok_or_else(|| {
                io::Error::new(
                    io::ErrorKind::NotConnected,
                    "pacing rate: the connection has no segment size yet",
                )
            })?;
            Pacing {
                payload_bytes_per_s: framing.payload_bytes_per_s(trim.next(rate, framing, sent)),
                framing: Some(framing),
            }
        }
    };
    set_max_pacing_rate(socket, pacing.payload_bytes_per_s)?;
    Ok(pacing)
}

/// Sets the pace of a socket to one window per round trip, `bound` at most (frame level), and says when to look
/// again: dynamic pacing where no qdisc does it; see [`kuroshio_core::pace::window_rate`].
///
/// Before the first round trip the bound holds; without one, nothing does. TCP's own pace, 1.2 windows per round
/// trip (2 in slow start), stays in force above it.
///
/// # Errors
/// As [`set_pacing`].
pub fn follow_window(socket: &impl AsFd, bound: Option<BitRate>) -> io::Result<(Pacing, Duration)> {
    let info = tcp_info(socket)?;
    let rtt = PicoDuration::from_us(u64::from(info.rtt_us));
    let framing = info.framing(is_ipv6(socket)?).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::NotConnected,
            "dynamic pacing: the connection has no segment size yet",
        )
    })?;
    let frame = FrameBytes::new(u64::from(framing.frame.get()));
    let rate = window_rate(frame, info.cwnd_segments, rtt, bound);
    let pacing = Pacing {
        payload_bytes_per_s: rate.map_or(u64::MAX, |rate| framing.payload_bytes_per_s(rate)),
        framing: rate.map(|_| framing),
    };
    set_max_pacing_rate(socket, pacing.payload_bytes_per_s)?;
    Ok((pacing, look_again_after(rtt).to_std()))
}

/// Whether packets of this socket are IPv6; a v4-mapped peer counts as IPv4.
///
/// # Errors
/// What `getpeername` gives, for example for a socket that is not connected.
pub fn is_ipv6(socket: &impl AsFd) -> io::Result<bool> {
    let peer = SockRef::from(socket).peer_addr()?;
    Ok(peer
        .as_socket_ipv6()
        .is_some_and(|a| a.ip().to_ipv4_mapped().is_none()))
}

fn set_max_pacing_rate(socket: &impl AsFd, payload_bytes_per_s: u64) -> io::Result<()> {
    let len = libc::socklen_t::try_from(size_of::<u64>()).unwrap_or(0);
    // SAFETY: the pointer is to `len` readable bytes of a u64 that lives over the call; the kernel takes
    // `unsigned long` when `optlen` has its size (sk_setsockopt, net/core/sock.c), which is 8 here.
    let ret = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MAX_PACING_RATE,
            (&raw const payload_bytes_per_s).cast(),
            len,
        )
    };
    if ret == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Bytes that may wait unsent before the socket stops being writable (`TCP_NOTSENT_LOWAT`).
///
/// # Errors
/// What `setsockopt` gives.
pub fn set_notsent_lowat(socket: &impl AsFd, bytes: u32) -> io::Result<()> {
    SockRef::from(socket).set_tcp_notsent_lowat(bytes)
}

/// Holds partial frames back (`TCP_CORK`) or lets them go.
///
/// # Errors
/// What `setsockopt` gives.
pub fn set_cork(socket: &impl AsFd, cork: bool) -> io::Result<()> {
    SockRef::from(socket).set_tcp_cork(cork)
}

/// Sends small segments at once (`TCP_NODELAY`).
///
/// # Errors
/// What `setsockopt` gives.
pub fn set_nodelay(socket: &impl AsFd, nodelay: bool) -> io::Result<()> {
    SockRef::from(socket).set_tcp_nodelay(nodelay)
}

/// Ends the connection when data stays unacknowledged for `ms` milliseconds (`TCP_USER_TIMEOUT`, RFC 5482).
///
/// # Errors
/// What `setsockopt` gives.
pub fn set_user_timeout(socket: &impl AsFd, ms: u32) -> io::Result<()> {
    SockRef::from(socket).set_tcp_user_timeout(Some(Duration::from_millis(u64::from(ms))))
}

/// Probes an idle connection with the periods of this module, so that a peer that is gone is noticed.
///
/// # Errors
/// What `setsockopt` gives.
pub fn set_keepalive(socket: &impl AsFd) -> io::Result<()> {
    let params = TcpKeepalive::new()
        .with_time(Duration::from_secs(u64::from(KEEPALIVE_IDLE_S)))
        .with_interval(Duration::from_secs(u64::from(KEEPALIVE_INTERVAL_S)))
        .with_retries(KEEPALIVE_PROBES);
    SockRef::from(socket).set_tcp_keepalive(&params)
}

/// What the kernel made of a wish for socket buffers, as `getsockopt` shows it: twice the bytes it granted,
/// because its own book-keeping is counted too (socket(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffers {
    /// `SO_SNDBUF`, bytes.
    pub send_bytes: usize,
    /// `SO_RCVBUF`, bytes.
    pub receive_bytes: usize,
}

/// Reads the socket buffers.
///
/// # Errors
/// What `getsockopt` gives.
pub fn buffers(socket: &impl AsFd) -> io::Result<Buffers> {
    let socket = SockRef::from(socket);
    Ok(Buffers {
        send_bytes: socket.send_buffer_size()?,
        receive_bytes: socket.recv_buffer_size()?,
    })
}

/// Fixes the socket buffers of both directions, which ends their autotuning. With the privilege
/// (`CAP_NET_ADMIN`) beyond `net.core.wmem_max` and `rmem_max`; else the kernel cuts the wish to these
/// without an error, so compare what comes back.
///
/// # Errors
/// What `setsockopt` and `getsockopt` give.
pub fn set_buffers(socket: &impl AsFd, bytes: u32) -> io::Result<Buffers> {
    let wish = i32::try_from(bytes).unwrap_or(i32::MAX);
    for (force, plain) in [
        (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF),
        (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF),
    ] {
        set_int(socket, libc::SOL_SOCKET, force, wish)
            .or_else(|_| set_int(socket, libc::SOL_SOCKET, plain, wish))?;
    }
    buffers(socket)
}

/// Lets one `send` carry many datagrams of `payload_bytes` each (`UDP_SEGMENT`, udp(7), Linux 4.18).
///
/// # Errors
/// What `setsockopt` gives.
pub fn set_udp_segment(socket: &impl AsFd, payload_bytes: u16) -> io::Result<()> {
    set_int(
        socket,
        libc::SOL_UDP,
        libc::UDP_SEGMENT,
        libc::c_int::from(payload_bytes),
    )
}

fn set_int(
    socket: &impl AsFd,
    level: libc::c_int,
    option: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let len = libc::socklen_t::try_from(size_of::<libc::c_int>()).unwrap_or(0);
    // SAFETY: the pointer is to `len` readable bytes of an int that lives over the call; every option used
    // here takes an int (socket(7), udp(7)).
    let ret = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            len,
        )
    };
    if ret == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Bounds the segment size of both directions (`TCP_MAXSEG`), header options counted. To be set before the
/// connection is made: it goes into the handshake.
///
/// # Errors
/// What `setsockopt` gives; Linux takes 88 to 32,767 bytes.
pub fn set_mss(socket: &impl AsFd, bytes: u32) -> io::Result<()> {
    SockRef::from(socket).set_tcp_mss(bytes)
}
