//! Senders and receivers of a phase: memory to memory, each in its host's network namespace.
//!
//! ```text
//! receiver: listen -> (clamp window) -> accept -> read and forget until the end
//! sender:   sleep until start -> connect with the flow's congestion control -> write until the end
//! ```
//!
//! All times are `CLOCK_MONOTONIC` nanoseconds. Both ends stop by themselves at the end of the phase.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use kuroshio_clock::{now_ns, sleep_until};
use kuroshio_sock::{ConnectOptions, TcpInfo, Trim};
use serde::Serialize;

use crate::cpu::Usage;
use crate::experiment::{Flow, Kind};
use crate::sockopt::set_window_clamp;

/// First port of the flows; the `i`-th flow of a phase uses this plus `i`.
pub(crate) const FIRST_PORT: u16 = 5001;
/// How often `TCP_INFO` is read, and the longest a blocked read or write lasts.
const SAMPLE_NS: u64 = 100_000_000;
/// How often the receiver sets its window bound again.
const CLAMP_NS: u64 = 5_000_000;
const BLOCK: Duration = Duration::from_millis(50);
const BUFFER: usize = 256 * 1024;
/// UDP bursts are written in pieces of this length, which the port's wire spreads.
const PIECE_NS: u64 = 1_000_000;
/// Frame bytes around a UDP datagram: Ethernet 14 + 4, IPv4 20, UDP 8.
const UDP_OVERHEAD: u64 = 46;

/// One reading of a sender's TCP.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Sample {
    /// From the start of the phase.
    pub t_ms: u64,
    /// Congestion window.
    pub cwnd_segments: u32,
    /// Smoothed round-trip time.
    pub rtt_us: u32,
    /// Segments sent again so far.
    pub retrans_segments: u32,
    /// Segments in flight.
    pub unacked_segments: u32,
    /// Time limited by the receiver's window so far.
    pub rwnd_limited_us: u64,
    /// Window the receiver advertises.
    pub peer_window_bytes: u32,
}

/// What a sender says when it ends.
#[derive(Debug, Clone, Default)]
pub struct Sent {
    /// Congestion control the kernel used; empty for UDP.
    pub congestion: String,
    /// Segments sent again.
    pub retrans_segments: u32,
    /// Payload of a full segment.
    pub mss_bytes: u32,
    /// Readings.
    pub samples: Vec<Sample>,
    /// Processor time of the sending thread.
    pub usage: Vec<Usage>,
}

/// What a receiver says when it ends.
#[derive(Debug, Clone, Default)]
pub struct Received {
    /// Payload bytes.
    pub bytes: u64,
    /// Processor time of the receiving thread.
    pub usage: Vec<Usage>,
}

impl Received {
    /// Reads the processor time when that is due.
    fn look(&mut self, times: Times, next_ns: &mut u64) {
        let now = now_ns();
        if now >= *next_ns || now >= times.end_ns {
            self.usage
                .extend(Usage::now(now.saturating_sub(times.zero_ns) / 1_000_000));
            *next_ns = now + SAMPLE_NS;
        }
    }
}

/// When a flow sends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    /// Start of the phase.
    pub zero_ns: u64,
    /// End of the phase.
    pub end_ns: u64,
}

fn due(e: &io::Error) -> bool {
    matches!(
        e.kind(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}

/// A bound receiver, ready before any sender starts.
pub(crate) enum Receiver {
    Tcp(TcpListener, Option<u64>),
    Udp(UdpSocket),
}

impl Receiver {
    /// Binds in the namespace of the calling thread.
    pub(crate) fn bind(flow: &Flow, index: usize) -> io::Result<Self> {
        let at = address(flow, index)?;
        Ok(match flow.kind {
            Kind::Tcp => {
                let listener = kuroshio_sock::listen(at)?;
                let window = flow.window.as_ref().map(|w| w.value);
                if let Some(w) = window {
                    set_window_clamp(&listener, w)?;
                }
                listener.set_nonblocking(true)?;
                Receiver::Tcp(listener, window)
            }
            Kind::UdpOnOff => Receiver::Udp(UdpSocket::bind(at)?),
        })
    }

    /// Reads and forgets until the end of the phase.
    pub(crate) fn run(self, times: Times) -> io::Result<Received> {
        let end_ns = times.end_ns;
        match self {
            Receiver::Tcp(listener, window) => match accept(&listener, end_ns)? {
                Some(stream) => read_all(stream, window, times),
                None => Ok(Received::default()),
            },
            Receiver::Udp(socket) => {
                socket.set_read_timeout(Some(BLOCK))?;
                let mut buffer = vec![0; 65536];
                let mut total = 0;
                while now_ns() < end_ns {
                    match socket.recv(&mut buffer) {
                        Ok(n) => total += n as u64,
                        Err(e) if due(&e) => {}
                        Err(e) => return Err(e),
                    }
                }
                Ok(Received {
                    bytes: total,
                    ..Received::default()
                })
            }
        }
    }
}

fn accept(listener: &TcpListener, end_ns: u64) -> io::Result<Option<TcpStream>> {
    while now_ns() < end_ns {
        match listener.accept() {
            Ok((stream, _)) => return Ok(Some(stream)),
            // The listener has no time limit of its own: look again shortly.
            Err(e) if due(&e) => {
                sleep_until(now_ns() + 1_000_000, 0);
            }
            Err(e) => return Err(e),
        }
    }
    Ok(None)
}

fn read_all(mut stream: TcpStream, window: Option<u64>, times: Times) -> io::Result<Received> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(BLOCK))?;
    let mut buffer = vec![0; BUFFER];
    let (mut received, mut clamped_ns, mut next_ns) = (Received::default(), 0, times.zero_ns);
    loop {
        let now = now_ns();
        received.look(times, &mut next_ns);
        if now >= times.end_ns {
            return Ok(received);
        }
        if let Some(w) = window.filter(|_| now - clamped_ns >= CLAMP_NS) {
            set_window_clamp(&stream, w)?;
            clamped_ns = now;
        }
        match stream.read(&mut buffer) {
            Ok(0) => return Ok(received),
            Ok(n) => received.bytes += n as u64,
            Err(e) if due(&e) => {}
            Err(e) if e.kind() == ErrorKind::ConnectionReset => return Ok(received),
            Err(e) => return Err(e),
        }
    }
}

fn address(flow: &Flow, index: usize) -> io::Result<SocketAddr> {
    let port = u16::try_from(index)
        .ok()
        .and_then(|i| FIRST_PORT.checked_add(i))
        .ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, "too many flows"))?;
    Ok(SocketAddr::new(flow.address, port))
}

/// Sends one flow in the namespace of the calling thread, from its start to the end of the phase.
pub(crate) fn send(flow: &Flow, index: usize, times: Times) -> io::Result<Sent> {
    let to = address(flow, index)?;
    sleep_until(times.zero_ns.saturating_add(flow.start.ns()), 0);
    match flow.kind {
        Kind::Tcp => send_tcp(flow, to, times),
        Kind::UdpOnOff => send_udp(flow, to, times),
    }
}

fn send_tcp(flow: &Flow, to: SocketAddr, times: Times) -> io::Result<Sent> {
    let options = ConnectOptions {
        congestion: flow.congestion.clone(),
        ..ConnectOptions::default()
    };
    let mut stream = kuroshio_sock::connect(to, &options)?;
    // Full segments only, as a sender without segmentation offload sends: with it, the rest of a
    // window that is no whole number of segments would leave as one short segment per round trip.
    kuroshio_sock::set_cork(&stream, true)?;
    stream.set_write_timeout(Some(BLOCK))?;
    let mut sent = Sent {
        congestion: kuroshio_sock::congestion(&stream)?,
        ..Sent::default()
    };
    let buffer = vec![0; BUFFER];
    let mut next_ns = times.zero_ns;
    let mut trim = Trim::default();
    loop {
        let now = now_ns();
        if now >= next_ns || now >= times.end_ns {
            if let Some(rate) = &flow.pacing {
                kuroshio_sock::keep_pacing(&stream, Some(rate.value), &mut trim)?;
            }
            let info = kuroshio_sock::tcp_info(&stream)?;
            sent.samples.push(sample(&info, now - times.zero_ns));
            sent.retrans_segments = info.retrans_segments;
            sent.mss_bytes = info.snd_mss;
            sent.usage
                .extend(Usage::now(now.saturating_sub(times.zero_ns) / 1_000_000));
            next_ns = now + SAMPLE_NS;
        }
        if now >= times.end_ns {
            return Ok(sent);
        }
        match stream.write(&buffer) {
            Ok(_) => {}
            Err(e) if due(&e) => {}
            Err(e) => return Err(e),
        }
    }
}

fn sample(i: &TcpInfo, t_ns: u64) -> Sample {
    Sample {
        t_ms: t_ns / 1_000_000,
        cwnd_segments: i.cwnd_segments,
        rtt_us: i.rtt_us,
        retrans_segments: i.retrans_segments,
        unacked_segments: i.unacked_segments,
        rwnd_limited_us: i.rwnd_limited_us,
        peer_window_bytes: i.peer_window_bytes,
    }
}

fn send_udp(flow: &Flow, to: SocketAddr, times: Times) -> io::Result<Sent> {
    let (Some(rate), Some(size), Some(on), Some(off)) = (&flow.rate, &flow.datagram, &flow.on, &flow.off)
    else {
        return Err(io::Error::new(
            ErrorKind::InvalidInput,
            "flow without rate, datagram, on, off",
        ));
    };
    let local: SocketAddr = if to.is_ipv4() {
        ([0; 4], 0).into()
    } else {
        ([0u16; 8], 0).into()
    };
    let socket = UdpSocket::bind(local)?;
    socket.connect(to)?;
    socket.set_write_timeout(Some(BLOCK))?;
    let datagram = vec![0; usize::try_from(size.value).unwrap_or(0).clamp(1, 9000)];
    let frame_bits = u128::from((size.value + UDP_OVERHEAD) * 8);
    let period = on.ns().saturating_add(off.ns()).max(1);
    let start = times.zero_ns.saturating_add(flow.start.ns());
    let mut frames = 0u128;
    let mut piece = start;
    while piece < times.end_ns {
        let into = piece - start;
        // Time spent sending so far, up to the end of this piece.
        let sending = into / period * on.ns() + (into % period + PIECE_NS).min(on.ns());
        let due_frames = u128::from(sending) * u128::from(rate.value.bps()) / 1_000_000_000 / frame_bits;
        while frames < due_frames {
            match socket.send(&datagram) {
                Ok(_) => frames += 1,
                Err(e) if due(&e) || e.kind() == ErrorKind::ConnectionRefused => {}
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => {}
                Err(e) => return Err(e),
            }
            if now_ns() >= times.end_ns {
                break;
            }
        }
        piece += PIECE_NS;
        sleep_until(piece, 0);
    }
    Ok(Sent::default())
}
