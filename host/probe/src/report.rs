//! A finished test: iperf3's JSON shape, and what Kuroshio adds under the member `kuroshio`.
//!
//! Members outside of `kuroshio` have iperf3's names and meanings: `bits_per_second` is payload, `bytes` of a
//! sender are what was written into its socket. Rates under `kuroshio` name their level.

use crate::advice::{self, KernelLimits};
use crate::params::{Direction, Length, Pace, Params, Protocol};
use crate::results::{Results, StreamResult};
use crate::run::{Interval, Made, RunReport, StreamTotal};
use crate::sample::{StreamSpan, rate_bps};
use crate::startup::FullRate;
use kuroshio_core::units::BitRate;
use kuroshio_sock::{Buffers, TcpInfo};
use kuroshio_tune::sysctl::Sysctls;
use serde::Serialize;
use serde_json::{Value, json};
use std::net::SocketAddr;

/// Intervals that one side tells the other at most.
const MAX_TOLD_INTERVALS: usize = 5_000;

/// Which side a report is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The one that asked.
    Client,
    /// The one that was asked.
    Server,
}

/// The ends of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The stream's number.
    pub id: u32,
    /// This side's address.
    pub local: SocketAddr,
    /// The other side's.
    pub remote: SocketAddr,
}

impl Connection {
    pub(crate) fn of(made: &Made) -> Option<Self> {
        let socket = socket2::SockRef::from(&made.socket);
        Some(Self {
            id: made.id,
            local: socket.local_addr().ok()?.as_socket()?,
            remote: socket.peer_addr().ok()?.as_socket()?,
        })
    }
}

/// A test that came to its end.
#[derive(Clone, Debug)]
pub struct TestReport {
    /// Which side this is.
    pub role: Role,
    /// The other side, as it was named.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Its address.
    pub peer_address: SocketAddr,
    /// The test's cookie.
    pub cookie: String,
    /// When the data began, seconds since 1970.
    pub started_unix_s: u64,
    /// The test.
    pub params: Params,
    /// Frame-level rate of all streams that was asked for here.
    pub rate: Option<BitRate>,
    /// Time between two reports, seconds.
    pub interval_s: f64,
    /// The streams' ends.
    pub connections: Vec<Connection>,
    /// Socket buffers of the first stream when it was made.
    pub granted: Option<Buffers>,
    /// The control connection at the end.
    pub control: TcpInfo,
    /// What this side measured.
    pub run: RunReport,
    /// What the other side told.
    pub peer: Results,
    /// Length of the path, metres.
    pub distance_m: Option<u64>,
    /// Whether it was stopped early.
    pub interrupted: bool,
}

/// One direction of a test in sum, both sides.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sum {
    /// Payload bytes sent.
    pub sent_bytes: u64,
    /// Payload bytes received.
    pub received_bytes: u64,
    /// Time over which the sender counted, seconds.
    pub sent_s: f64,
    /// Time over which the receiver counted.
    pub received_s: f64,
    /// Segments sent again, where the sender knows.
    pub retransmits: Option<u64>,
    /// Datagrams lost.
    pub lost: u64,
    /// Datagrams expected.
    pub packets: u64,
    /// Mean jitter of the streams, seconds.
    pub jitter_s: f64,
    /// Frame-level rate that this side measured, bit/s.
    pub frame_rate_bps: f64,
}

impl Sum {
    /// Payload received per second, bit/s.
    pub fn goodput_bps(&self) -> f64 {
        rate_bps(self.received_bytes, self.received_s)
    }
}

impl RunReport {
    /// What is told to the other side.
    pub(crate) fn results(&self, with_extension: bool) -> Results {
        let sends = self.streams.iter().any(|s| s.span.sends);
        let known = self.streams.iter().any(|s| s.result.retransmits.is_some());
        Results {
            cpu: self.cpu,
            sender_has_retransmits: sends.then_some(known),
            congestion: self.streams.iter().find_map(|s| s.congestion.clone()),
            streams: self.streams.iter().map(|s| s.result).collect(),
            extension: with_extension.then(|| self.extension()),
        }
    }

    /// What one Kuroshio tells another beside iperf3's results.
    fn extension(&self) -> Value {
        let streams: Vec<Value> = self
            .streams
            .iter()
            .map(|s| {
                json!({
                    "id": s.span.id, "sends": s.span.sends, "bytes": s.span.bytes,
                    "frame_bytes": s.span.frame_bytes, "seconds": s.span.seconds(),
                    "out_of_order": s.span.out_of_order, "extremes": extremes(s),
                })
            })
            .collect();
        let told = self.intervals.iter().take(MAX_TOLD_INTERVALS);
        json!({
            "version": 1,
            "software": software(),
            "machine_cpu_percent": self.machine,
            "kernel_limits": KernelLimits::read(&Sysctls::system()),
            "streams": streams,
            "intervals": told.map(own_interval).collect::<Vec<_>>(),
        })
    }
}

fn software() -> String {
    concat!("kuroshio ", env!("CARGO_PKG_VERSION")).to_owned()
}

fn extremes(total: &StreamTotal) -> Option<Value> {
    (total.span.sends && total.info.is_some())
        .then(|| serde_json::to_value(total.extremes).unwrap_or(Value::Null))
}

/// An interval's sum at frame level.
fn own_interval(interval: &Interval) -> Value {
    let first = interval.streams.first().copied().unwrap_or_default();
    let sum = |get: fn(&StreamSpan) -> u64| interval.streams.iter().map(get).sum::<u64>();
    let senders = || interval.streams.iter().filter(|s| s.sends && s.rtt_us > 0);
    let count = u64::try_from(senders().count()).unwrap_or(0);
    let rtt = senders()
        .map(|s| u64::from(s.rtt_us))
        .sum::<u64>()
        .checked_div(count);
    json!({
        "start": first.start_s,
        "end": first.end_s,
        "omitted": interval.omitted,
        "goodput_bps": rate_bps(sum(|s| s.bytes), first.seconds()),
        "arrived_bytes": sum(|s| s.arrived_bytes),
        "frame_bytes": sum(|s| s.frame_bytes),
        "frame_rate_bps": rate_bps(sum(|s| s.frame_bytes), first.seconds()),
        "retransmits": sum(|s| s.retransmits),
        "snd_cwnd_bytes": senders().map(|s| s.cwnd_bytes).sum::<u64>(),
        "mean_rtt_us": rtt,
    })
}

/// iperf3's top-level members in its order.
#[derive(Debug, Serialize)]
struct Shape {
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<String>,
    start: Value,
    intervals: Vec<Value>,
    end: Value,
    kuroshio: Value,
}

impl TestReport {
    /// One direction in sum; `sends` is from this side's view.
    pub fn sum(&self, sends: bool) -> Sum {
        let mut sum = Sum::default();
        let mut known = false;
        let mut retransmits = 0;
        let these: Vec<&StreamTotal> = self
            .run
            .streams
            .iter()
            .filter(|s| s.span.sends == sends)
            .collect();
        for total in &these {
            let far = self.peer.stream(total.span.id).copied().unwrap_or_default();
            let (sender, receiver) = if sends {
                (&total.result, &far)
            } else {
                (&far, &total.result)
            };
            let far_s = far_seconds(&far, total.span.seconds());
            let (sent_s, received_s) = if sends {
                (total.span.seconds(), far_s)
            } else {
                (far_s, total.span.seconds())
            };
            sum.sent_bytes += sender.bytes;
            sum.received_bytes += receiver.bytes;
            sum.sent_s = sum.sent_s.max(sent_s);
            sum.received_s = sum.received_s.max(received_s);
            known |= sender.retransmits.is_some();
            retransmits += sender.retransmits.unwrap_or(0);
            sum.lost += receiver.errors.saturating_sub(receiver.omitted_errors);
            sum.packets += receiver.packets.saturating_sub(receiver.omitted_packets);
            sum.jitter_s += receiver.jitter_s / these.len() as f64;
            sum.frame_rate_bps += total.span.frame_rate_bps();
        }
        sum.retransmits = known.then_some(retransmits);
        sum
    }

    /// Whether this side sends in the direction that the summary is about: a client's own, where there are two.
    pub fn sends(&self) -> bool {
        match (self.role, self.params.direction) {
            (Role::Client, Direction::Forward | Direction::Both) | (Role::Server, Direction::Reverse) => true,
            (Role::Client, Direction::Reverse) | (Role::Server, Direction::Forward | Direction::Both) => {
                false
            }
        }
    }

    /// Least round-trip time, microseconds: the senders', or the control connection's.
    pub fn min_rtt_us(&self) -> u64 {
        let infos = self.run.streams.iter().filter(|s| s.span.sends);
        let least = infos
            .filter_map(|s| s.info.map(|i| i.min_rtt_us))
            .filter(|rtt| (1..u32::MAX).contains(rtt))
            .min();
        u64::from(least.unwrap_or(self.control.min_rtt_us))
    }

    /// The time to the full rate, of TCP.
    pub fn full_rate(&self) -> Option<FullRate> {
        self.run.curve.full_rate(self.min_rtt_us().saturating_mul(1_000))
    }

    /// The window that the path needs at the rate asked for, or else at the rate reached.
    pub fn window_advice(&self) -> Option<advice::WindowAdvice> {
        let reached = self.sum(self.sends()).frame_rate_bps as u64;
        let rate = self.rate.or_else(|| BitRate::new(reached))?;
        let limits = KernelLimits::read(&Sysctls::system());
        Some(advice::window(
            rate,
            self.min_rtt_us(),
            self.params.streams,
            &limits,
        ))
    }

    /// What the frame size costs; `None` with UDP.
    pub fn mtu_advice(&self) -> Option<advice::MtuAdvice> {
        let goodput_bps = self.sum(self.sends()).goodput_bps();
        let ipv6 = is_ipv6(self.peer_address);
        let info = self.run.streams.iter().find_map(|s| s.info)?;
        advice::mtu(info.path_mtu_bytes, info.framing(ipv6)?, ipv6, goodput_bps)
    }

    /// The land-speed metric, Tb*m/s; `None` without a distance.
    pub fn land_speed_tbm_per_s(&self) -> Option<u64> {
        let goodput_bps = self.sum(self.sends()).goodput_bps() as u64;
        Some(advice::land_speed_tbm_per_s(goodput_bps, self.distance_m?))
    }

    /// Who paces, in words.
    pub fn pacing(&self) -> &'static str {
        let ours = self.run.streams.iter().any(|s| s.span.sends);
        match (self.params.pace, self.params.protocol) {
            (_, Protocol::Tcp) if self.params.follow_window && ours => {
                "kernel, inside TCP (SO_MAX_PACING_RATE), one window per round trip"
            }
            (Pace::None, _) if !self.params.follow_window => "none",
            (_, _) if !ours && self.params.follow_window && self.peer.extension.is_none() => {
                "the other side's, which is iperf3 and follows no window"
            }
            (_, _) if !ours => "the other side's",
            (_, Protocol::Tcp) => "kernel, inside TCP (SO_MAX_PACING_RATE), average trimmed",
            (_, Protocol::Udp) => "user space, one timer per datagram",
        }
    }

    /// The whole report as one JSON object.
    ///
    /// # Errors
    /// None that a report can cause; the serializer's type has one.
    pub fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string(&Shape {
            title: self.params.title.clone(),
            start: self.start(),
            intervals: self.run.intervals.iter().map(|i| self.interval(i)).collect(),
            end: self.end(),
            kuroshio: self.own(),
        })
    }

    fn start(&self) -> Value {
        let p = &self.params;
        let connected: Vec<Value> = self
            .connections
            .iter()
            .map(|c| {
                json!({
                    "socket": c.id, "local_host": c.local.ip().to_string(), "local_port": c.local.port(),
                    "remote_host": c.remote.ip().to_string(), "remote_port": c.remote.port(),
                })
            })
            .collect();
        let (duration, bytes) = match p.length {
            Length::Time(ns) => (ns as f64 / 1e9, 0),
            Length::Bytes(bytes) => (0.0, bytes),
        };
        let mss = self
            .run
            .streams
            .iter()
            .find_map(|s| s.info)
            .map_or(0, |i| i.snd_mss);
        let peer = match self.role {
            Role::Client => "connecting_to",
            Role::Server => "accepted_connection",
        };
        json!({
            "connected": connected,
            "version": software(),
            "system_info": system_info(),
            "timestamp": {"timesecs": self.started_unix_s},
            peer: {"host": self.host, "port": self.port},
            "cookie": self.cookie,
            "tcp_mss_default": mss,
            "target_bitrate": 0,
            "fq_rate": 0,
            "sock_bufsize": p.window_bytes.unwrap_or(0),
            "sndbuf_actual": self.granted.map_or(0, |b| b.send_bytes),
            "rcvbuf_actual": self.granted.map_or(0, |b| b.receive_bytes),
            "test_start": {
                "protocol": match p.protocol { Protocol::Tcp => "TCP", Protocol::Udp => "UDP" },
                "num_streams": p.streams,
                "blksize": p.block(),
                "omit": p.omit_s,
                "duration": duration,
                "bytes": bytes,
                "blocks": 0,
                "reverse": u8::from(p.direction == Direction::Reverse),
                "bidir": u8::from(p.direction == Direction::Both),
                "tos": 0,
                "target_bitrate": 0,
                "fqrate": 0,
            },
        })
    }

    fn interval(&self, interval: &Interval) -> Value {
        let tcp = self.params.protocol == Protocol::Tcp;
        let streams: Vec<Value> = interval
            .streams
            .iter()
            .map(|span| span_json(span, tcp, interval.omitted))
            .collect();
        let mut object = json!({"streams": streams});
        let mut directions = vec![("sum", self.sends())];
        if self.params.direction == Direction::Both {
            directions.push(("sum_bidir_reverse", !self.sends()));
        }
        for (name, sends) in directions {
            object[name] = span_sum(&interval.streams, sends, tcp, interval.omitted);
        }
        object["kuroshio"] = own_interval(interval);
        object
    }

    fn end(&self) -> Value {
        let streams: Vec<Value> = self.run.streams.iter().map(|s| self.stream_end(s)).collect();
        let cpu = (&self.run.cpu, &self.peer.cpu);
        let mut object = json!({
            "streams": streams,
            "cpu_utilization_percent": {
                "host_total": cpu.0.total, "host_user": cpu.0.user, "host_system": cpu.0.system,
                "remote_total": cpu.1.total, "remote_user": cpu.1.user, "remote_system": cpu.1.system,
            },
        });
        let mut directions = vec![("", self.sends())];
        if self.params.direction == Direction::Both {
            directions.push(("_bidir_reverse", !self.sends()));
        }
        for (suffix, sends) in directions {
            let sum = self.sum(sends);
            object[format!("sum_sent{suffix}")] = self.sum_end(&sum, true, sends);
            object[format!("sum_received{suffix}")] = self.sum_end(&sum, false, sends);
            if self.params.protocol == Protocol::Udp && suffix.is_empty() {
                object["sum"] = self.sum_end(&sum, false, sends);
            }
        }
        let ours = self.run.streams.iter().find_map(|s| s.congestion.clone());
        let (sender, receiver) = if self.sends() {
            (ours, self.peer.congestion.clone())
        } else {
            (self.peer.congestion.clone(), ours)
        };
        for (name, value) in [
            ("sender_tcp_congestion", sender),
            ("receiver_tcp_congestion", receiver),
        ] {
            if let Some(value) = value.filter(|_| self.params.protocol == Protocol::Tcp) {
                object[name] = value.into();
            }
        }
        object
    }

    fn stream_end(&self, total: &StreamTotal) -> Value {
        let far = self.peer.stream(total.span.id).copied().unwrap_or_default();
        let sends = total.span.sends;
        let near_s = total.span.seconds();
        let far_s = far_seconds(&far, near_s);
        let (sent, sent_s, received, received_s) = if sends {
            (&total.result, near_s, &far, far_s)
        } else {
            (&far, far_s, &total.result, near_s)
        };
        let side = |result: &StreamResult, seconds: f64| {
            json!({
                "socket": total.span.id, "start": 0, "end": seconds, "seconds": seconds, "bytes": result.bytes,
                "bits_per_second": rate_bps(result.bytes, seconds), "sender": sends,
            })
        };
        if self.params.protocol == Protocol::Udp {
            let mut udp = side(received, received_s);
            add_datagrams(&mut udp, received);
            udp["out_of_order"] = total.span.out_of_order.into();
            return json!({ "udp": udp });
        }
        let mut sender = side(sent, sent_s);
        if let Some(n) = sent.retransmits {
            sender["retransmits"] = n.into();
        }
        if sends {
            let e = &total.extremes;
            sender["max_snd_cwnd"] = e.max_cwnd_bytes.into();
            sender["max_snd_wnd"] = e.max_peer_window_bytes.into();
            sender["max_rtt"] = e.max_rtt_us.into();
            sender["min_rtt"] = e.min_rtt_us.into();
            sender["mean_rtt"] = e.mean_rtt_us.into();
        }
        json!({"sender": sender, "receiver": side(received, received_s)})
    }

    fn sum_end(&self, sum: &Sum, sent: bool, sends: bool) -> Value {
        let (bytes, seconds) = if sent {
            (sum.sent_bytes, sum.sent_s)
        } else {
            (sum.received_bytes, sum.received_s)
        };
        let mut object = json!({
            "start": 0, "end": seconds, "seconds": seconds, "bytes": bytes,
            "bits_per_second": rate_bps(bytes, seconds), "sender": sends,
        });
        if let Some(n) = sum.retransmits.filter(|_| sent) {
            object["retransmits"] = n.into();
        }
        if self.params.protocol == Protocol::Udp {
            object["jitter_ms"] = (sum.jitter_s * 1e3).into();
            object["lost_packets"] = sum.lost.into();
            object["packets"] = sum.packets.into();
            object["lost_percent"] = percent(sum.lost, sum.packets).into();
        }
        object
    }

    /// What only Kuroshio says.
    fn own(&self) -> Value {
        let sum = self.sum(self.sends());
        let mut startup = self.full_rate().map_or_else(
            || json!({}),
            |full| serde_json::to_value(full).unwrap_or_else(|_| json!({})),
        );
        let points = self.run.curve.points().iter();
        startup["curve"] = points
            .map(|p| json!({"at_s": p.at_ns as f64 / 1e9, "arrived_bytes": p.bytes}))
            .collect();
        let streams: Vec<Value> = self
            .run
            .streams
            .iter()
            .map(|s| {
                json!({
                    "id": s.span.id, "sends": s.span.sends, "frame_bytes": s.span.frame_bytes,
                    "frame_rate_bps": s.span.frame_rate_bps(), "extremes": extremes(s),
                    "limited_by": limited_by(s), "failure": s.failure,
                })
            })
            .collect();
        json!({
            "version": 1,
            "interrupted": self.interrupted,
            "rate_level": "frame: Ethernet MAC header to FCS; goodput: payload",
            "target_rate_bps": self.rate.map(BitRate::bps),
            "pacing": self.pacing(),
            "frame_rate_bps": sum.frame_rate_bps,
            "goodput_bps": sum.goodput_bps(),
            "min_rtt_us": self.min_rtt_us(),
            "startup": startup,
            "streams": streams,
            "window_advice": self.window_advice(),
            "mtu_advice": self.mtu_advice(),
            "distance_m": self.distance_m,
            "land_speed_tbm_per_s": self.land_speed_tbm_per_s(),
            "machine_cpu_percent": self.run.machine,
            "kernel_limits": KernelLimits::read(&Sysctls::system()),
            "remote": self.peer.extension,
        })
    }
}

/// Whether an address is reached by IPv6 packets.
fn is_ipv6(address: SocketAddr) -> bool {
    matches!(address, SocketAddr::V6(a) if a.ip().to_ipv4_mapped().is_none())
}

/// The time over which the other side counted; ours where it says none or nonsense.
fn far_seconds(far: &StreamResult, near_s: f64) -> f64 {
    let seconds = far.end_s - far.start_s;
    if seconds > 0.0 && seconds < 1e6 {
        seconds
    } else {
        near_s
    }
}

fn percent(part: u64, whole: u64) -> f64 {
    if whole > 0 {
        100.0 * part as f64 / whole as f64
    } else {
        0.0
    }
}

fn add_datagrams(object: &mut Value, result: &StreamResult) {
    let lost = result.errors.saturating_sub(result.omitted_errors);
    let packets = result.packets.saturating_sub(result.omitted_packets);
    object["jitter_ms"] = (result.jitter_s * 1e3).into();
    object["lost_packets"] = lost.into();
    object["packets"] = packets.into();
    object["lost_percent"] = percent(lost, packets).into();
}

/// What kept a TCP sender back, in parts of the time in which it had something to send.
fn limited_by(total: &StreamTotal) -> Option<Value> {
    let info = total.info.filter(|_| total.span.sends)?;
    Some(json!({
        "busy_s": info.busy_us as f64 / 1e6,
        "receiver_window_percent": percent(info.rwnd_limited_us, info.busy_us),
        "send_buffer_percent": percent(info.sndbuf_limited_us, info.busy_us),
    }))
}

fn span_json(span: &StreamSpan, tcp: bool, omitted: bool) -> Value {
    let mut object = json!({
        "socket": span.id, "start": span.start_s, "end": span.end_s, "seconds": span.seconds(),
        "bytes": span.bytes, "bits_per_second": span.goodput_bps(), "omitted": omitted, "sender": span.sends,
    });
    match (tcp, span.sends) {
        (true, true) => {
            object["retransmits"] = span.retransmits.into();
            object["snd_cwnd"] = span.cwnd_bytes.into();
            object["snd_wnd"] = span.peer_window_bytes.into();
            object["rtt"] = span.rtt_us.into();
            object["rttvar"] = span.rtt_var_us.into();
            object["pmtu"] = span.path_mtu_bytes.into();
        }
        (true, false) => {}
        (false, true) => object["packets"] = span.datagrams.into(),
        (false, false) => {
            object["jitter_ms"] = (span.jitter_s * 1e3).into();
            object["lost_packets"] = span.lost.into();
            object["packets"] = span.expected.into();
            object["lost_percent"] = percent(span.lost, span.expected).into();
        }
    }
    object
}

fn span_sum(spans: &[StreamSpan], sends: bool, tcp: bool, omitted: bool) -> Value {
    let these = || spans.iter().filter(|s| s.sends == sends);
    let Some(first) = these().next() else {
        return Value::Null;
    };
    let mut all = StreamSpan {
        sends,
        start_s: first.start_s,
        end_s: first.end_s,
        ..StreamSpan::default()
    };
    for s in these() {
        all.bytes += s.bytes;
        all.retransmits += s.retransmits;
        all.datagrams += s.datagrams;
        all.expected += s.expected;
        all.lost += s.lost;
        all.jitter_s += s.jitter_s / these().count() as f64;
    }
    let mut object = span_json(&all, tcp, omitted);
    if let Some(members) = object.as_object_mut() {
        for name in ["socket", "snd_cwnd", "snd_wnd", "rtt", "rttvar", "pmtu"] {
            members.remove(name);
        }
    }
    object
}

/// Kernel and machine, as `uname -a` begins.
fn system_info() -> String {
    let read = |name: &str| {
        let text = std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap_or_default();
        text.trim().to_owned()
    };
    format!(
        "{} {} {} {} {}",
        read("ostype"),
        read("hostname"),
        read("osrelease"),
        read("version"),
        std::env::consts::ARCH
    )
}
