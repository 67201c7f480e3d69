//! TCP sockets with congestion control, pacing rate, buffers, time-outs and `TCP_INFO`.
//!
//! # Levels of a rate
//!
//! A plan's rate is *frame level*: bytes from the MAC header to the FCS. The kernel of a host without
//! the `fq` qdisc paces inside TCP (`tcp_update_skb_after_send` in `net/ipv4/tcp_output.c`): a segment
//! train of `len` bytes moves the next departure by `len / rate`, where `len` counts the TCP payload
//! only, because headers are pushed onto the clone that leaves. So the rate given to
//! `SO_MAX_PACING_RATE` is
//!
//! ```text
//! payload_rate = frame_rate * mss / (mss + options + TCP 20 + IP 20|40 + MAC 14 + FCS 4)
//! ```
//!
//! with `mss` the payload of a full segment (`tcpi_snd_mss`) and `options` 12 when timestamps are on.
//! [`Framing`] holds these numbers; [`keep_pacing`] is the one place that converts.
//!
//! The kernel's pacing falls short when its timer is late, and partial segments carry more header than the
//! formula; a [`Trim`] of at most 1 % holds the average at the rate. [`set_pacing`] is the formula alone.
//!
//! It begins with a connection's eleventh data segment; [`opening`] is for those before it.
//!
//! [`follow_window`] is dynamic pacing (one window per round trip) for a socket that no qdisc paces.
//!
//! # Time-outs
//!
//! A cut network is noticed in bounded time: [`USER_TIMEOUT_MS`] for data that is not acknowledged
//! (`TCP_USER_TIMEOUT`), and keep-alive probes with the same bound for an idle connection.

mod connect;
mod framing;
mod info;
mod opening;
mod opt;
mod trim;

pub use connect::{ConnectError, ConnectOptions, connect, listen};
pub use framing::{Framing, Pacing};
pub use info::{TcpInfo, tcp_info};
pub use opening::{OpeningStep, UNPACED_SEGMENTS, opening};
pub use opt::{
    Buffers, KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_PROBES, MAX_CONGESTION_NAME, USER_TIMEOUT_MS,
    buffers, congestion, follow_window, is_ipv6, keep_pacing, set_buffers, set_congestion, set_cork,
    set_keepalive, set_mss, set_nodelay, set_notsent_lowat, set_pacing, set_udp_segment, set_user_timeout,
};
pub use trim::{LIMIT_DIVISOR, REPAY_NS, Sent, Trim};
