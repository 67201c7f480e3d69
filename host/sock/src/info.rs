//! `TCP_INFO`, in units with names.

use crate::framing::Framing;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// `TCPI_OPT_TIMESTAMPS` of `include/uapi/linux/tcp.h`.
const OPT_TIMESTAMPS: u8 = 1;

/// A snapshot of a connection (`struct tcp_info`, `include/uapi/linux/tcp.h`).
///
/// Fields that the running kernel does not fill are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpInfo {
    /// TCP state number (`TCP_ESTABLISHED` is 1).
    pub state: u8,
    /// Whether the timestamp option is in use, so that a segment carries 12 more header bytes.
    pub timestamps: bool,
    /// Payload bytes of a full segment that this side sends.
    pub snd_mss: u32,
    /// Payload bytes of the segments that this side receives, as estimated by the kernel.
    pub rcv_mss: u32,
    /// Smoothed round-trip time, microseconds.
    pub rtt_us: u32,
    /// Variation of the round-trip time, microseconds.
    pub rtt_var_us: u32,
    /// Least round-trip time seen, microseconds.
    pub min_rtt_us: u32,
    /// Congestion window, segments.
    pub cwnd_segments: u32,
    /// Slow-start threshold, segments.
    pub ssthresh_segments: u32,
    /// Segments in flight.
    pub unacked_segments: u32,
    /// Segments sent again since the connection began.
    pub retrans_segments: u32,
    /// Segments seen as lost now.
    pub lost_segments: u32,
    /// Payload bytes acknowledged by the other side.
    pub bytes_acked: u64,
    /// Payload bytes sent, those sent again included.
    pub bytes_sent: u64,
    /// Payload bytes sent again.
    pub bytes_retrans: u64,
    /// Segments with payload that were sent, those sent again included, modulo 2^32.
    pub data_segments_sent: u32,
    /// Payload bytes received.
    pub bytes_received: u64,
    /// Segments with payload that were received, modulo 2^32.
    pub data_segments_received: u32,
    /// Round-trip time as the receiving side estimates it, microseconds.
    pub rcv_rtt_us: u32,
    /// Path MTU, bytes from the IP header on.
    pub path_mtu_bytes: u32,
    /// Payload bytes written by the application and not sent yet.
    pub notsent_bytes: u32,
    /// Time with data to send or in flight, microseconds.
    pub busy_us: u64,
    /// Part of it limited by the receiver's window, microseconds.
    pub rwnd_limited_us: u64,
    /// Part of it limited by the send buffer, microseconds.
    pub sndbuf_limited_us: u64,
    /// Latest rate of delivery, payload bytes per second.
    pub delivery_rate_bytes_per_s: u64,
    /// Present pacing rate, payload bytes per second (`u64::MAX`: none).
    pub pacing_rate_bytes_per_s: u64,
    /// Limit given by `SO_MAX_PACING_RATE`, payload bytes per second (`u64::MAX`: none).
    pub max_pacing_rate_bytes_per_s: u64,
    /// Window that the other side advertises, bytes.
    pub peer_window_bytes: u32,
}

impl TcpInfo {
    /// Framing of the full segments this side sends; `None` before the connection has a segment size.
    pub fn framing(&self, ipv6: bool) -> Option<Framing> {
        Framing::new(self.snd_mss, self.timestamps, ipv6)
    }

    /// Payload bytes that have reached the wire for the first time.
    pub fn bytes_first_sent(&self) -> u64 {
        self.bytes_sent.saturating_sub(self.bytes_retrans)
    }
}

/// Reads `TCP_INFO` of a TCP socket.
///
/// # Errors
/// What `getsockopt` gives, for example `ENOPROTOOPT`/`EOPNOTSUPP` when the descriptor is no TCP socket.
pub fn tcp_info(socket: &impl AsFd) -> io::Result<TcpInfo> {
    // SAFETY: `tcp_info` is plain old data; all-zero bytes are a valid value of it.
    let mut raw: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut len = libc::socklen_t::try_from(size_of::<libc::tcp_info>()).unwrap_or(0);
    // SAFETY: the pointer is to `len` writable bytes that live over the call; the kernel writes at most
    // `len` bytes, and fields beyond what it wrote keep their zeros.
    let ret = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut raw).cast(),
            &raw mut len,
        )
    };
    if ret != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(TcpInfo {
        state: raw.tcpi_state,
        timestamps: raw.tcpi_options & OPT_TIMESTAMPS != 0,
        snd_mss: raw.tcpi_snd_mss,
        rcv_mss: raw.tcpi_rcv_mss,
        rtt_us: raw.tcpi_rtt,
        rtt_var_us: raw.tcpi_rttvar,
        min_rtt_us: raw.tcpi_min_rtt,
        cwnd_segments: raw.tcpi_snd_cwnd,
        ssthresh_segments: raw.tcpi_snd_ssthresh,
        unacked_segments: raw.tcpi_unacked,
        retrans_segments: raw.tcpi_total_retrans,
        lost_segments: raw.tcpi_lost,
        bytes_acked: raw.tcpi_bytes_acked,
        bytes_sent: raw.tcpi_bytes_sent,
        bytes_retrans: raw.tcpi_bytes_retrans,
        data_segments_sent: raw.tcpi_data_segs_out,
        bytes_received: raw.tcpi_bytes_received,
        data_segments_received: raw.tcpi_data_segs_in,
        rcv_rtt_us: raw.tcpi_rcv_rtt,
        path_mtu_bytes: raw.tcpi_pmtu,
        notsent_bytes: raw.tcpi_notsent_bytes,
        busy_us: raw.tcpi_busy_time,
        rwnd_limited_us: raw.tcpi_rwnd_limited,
        sndbuf_limited_us: raw.tcpi_sndbuf_limited,
        delivery_rate_bytes_per_s: raw.tcpi_delivery_rate,
        pacing_rate_bytes_per_s: raw.tcpi_pacing_rate,
        max_pacing_rate_bytes_per_s: raw.tcpi_max_pacing_rate,
        peer_window_bytes: raw.tcpi_snd_wnd,
    })
}
