//! What a host needs, item by item: the reason, what is there, what is wanted, the command.
//!
//! ```text
//! window          rate * RTT
//! socket buffer   3 * window (paper 004), shared by the streams
//! tcp_mem         the sum of all socket buffers, in pages, below the pressure mark
//! backlog         frames that arrive in 30 ms: a core's receive queue while the core is busy
//! txqueuelen      frames that leave in 12 ms (paper 001: 10,000 frames at 10 Gbps), 1,000 at least
//! ```

use crate::link::LinkFacts;
use crate::sysctl::{Sysctls, numbers};
use crate::window::{MAX_BUFFER_BYTES, bdp_bytes, buffer_bytes, least_streams};
use kuroshio_core::units::{BitRate, PicoDuration};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// MTU of jumbo frames that most equipment carries.
pub const JUMBO_MTU: u32 = 9000;
/// Ethernet header and check sequence around an IP packet, bytes.
const FRAME_EXTRA: u64 = 18;
/// A core's receive queue holds the frames of so long.
const BACKLOG_TIME: PicoDuration = PicoDuration::from_ms(30);
/// An interface's transmit queue holds the frames of so long.
const TXQUEUE_TIME: PicoDuration = PicoDuration::from_ms(12);
/// Bounds of both queues, frames.
const QUEUE_FRAMES: std::ops::RangeInclusive<u64> = 1_000..=300_000;

/// Congestion controls that fill a long fat path: their growth does not wait a round trip per segment.
const FAST_CONTROLS: [&str; 9] = [
    "cubic",
    "bbr",
    "bbr2",
    "bbr3",
    "htcp",
    "bic",
    "highspeed",
    "scalable",
    "illinois",
];

/// Switches of TCP and what they must be, with the reason.
const SWITCHES: [(&str, &str, &str); 6] = [
    (
        "net.ipv4.tcp_window_scaling",
        "1",
        "windows above 64 KiB (RFC 7323)",
    ),
    (
        "net.ipv4.tcp_timestamps",
        "1",
        "round-trip times of every segment, and sequence numbers that may wrap (RFC 7323)",
    ),
    (
        "net.ipv4.tcp_sack",
        "1",
        "one loss costs one segment, not a window (RFC 2018)",
    ),
    (
        "net.ipv4.tcp_moderate_rcvbuf",
        "1",
        "the receive buffer grows by itself up to tcp_rmem",
    ),
    (
        "net.ipv4.tcp_no_metrics_save",
        "1",
        "one bad connection does not limit the slow start of the next",
    ),
    (
        "net.ipv4.tcp_slow_start_after_idle",
        "0",
        "a pause of a second does not cost a start-up of seconds",
    ),
];

/// The parameters that this module may change; an undo file may name no others.
pub const SYSCTLS: [&str; 13] = [
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
    "net.ipv4.tcp_mem",
    "net.core.rmem_max",
    "net.core.wmem_max",
    "net.core.netdev_max_backlog",
    "net.ipv4.tcp_congestion_control",
    "net.ipv4.tcp_window_scaling",
    "net.ipv4.tcp_timestamps",
    "net.ipv4.tcp_sack",
    "net.ipv4.tcp_moderate_rcvbuf",
    "net.ipv4.tcp_no_metrics_save",
    "net.ipv4.tcp_slow_start_after_idle",
];

const AVAILABLE_CONTROLS: &str = "net.ipv4.tcp_available_congestion_control";

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Request {
    /// Frame-level rate of all streams.
    pub rate: BitRate,
    /// Round-trip time.
    pub rtt: PicoDuration,
    /// Streams that share it.
    pub streams: u32,
    /// MTU that the whole path carries, where that is known.
    pub mtu: Option<u32>,
}

/// A parameter's value and whether it may be changed here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// The value, words separated by single spaces.
    pub value: String,
    /// Whether this namespace may change it.
    pub writable: bool,
}

/// What was found on the host.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Parameters that could be read.
    pub sysctls: BTreeMap<String, Parameter>,
    /// The interface.
    pub link: Option<LinkFacts>,
    /// Memory, bytes.
    pub memory_bytes: Option<u64>,
    /// Size of a page, bytes.
    pub page_bytes: u64,
}

impl Facts {
    /// Looks at this host.
    pub fn read(sysctls: &Sysctls, link: Option<LinkFacts>) -> Self {
        let mut found = BTreeMap::new();
        for name in SYSCTLS.iter().chain([&AVAILABLE_CONTROLS]) {
            if let Ok(value) = sysctls.read(name) {
                let writable = sysctls.is_writable(name);
                found.insert((*name).to_owned(), Parameter { value, writable });
            }
        }
        Self {
            sysctls: found,
            link,
            memory_bytes: memory_bytes(&std::fs::read_to_string("/proc/meminfo").unwrap_or_default()),
            page_bytes: u64::try_from(rustix::param::page_size()).unwrap_or(4096),
        }
    }

    fn value(&self, name: &str) -> Option<&str> {
        self.sysctls.get(name).map(|p| p.value.as_str())
    }
}

fn memory_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|l| l.strip_prefix("MemTotal:"))?;
    line.split_whitespace()
        .next()?
        .parse::<u64>()
        .ok()?
        .checked_mul(1024)
}

/// A change that can be made and taken back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Change {
    /// A kernel parameter.
    Sysctl {
        /// Its name.
        name: String,
        /// Its value.
        value: String,
    },
    /// An interface's MTU.
    Mtu {
        /// The interface.
        dev: String,
        /// Bytes.
        value: u32,
    },
    /// An interface's transmit queue.
    Txqueuelen {
        /// The interface.
        dev: String,
        /// Frames.
        value: u32,
    },
}

impl Change {
    /// The command that does the same.
    pub fn command(&self) -> String {
        match self {
            Self::Sysctl { name, value } => format!("sysctl -w {name}=\"{value}\""),
            Self::Mtu { dev, value } => format!("ip link set dev {dev} mtu {value}"),
            Self::Txqueuelen { dev, value } => format!("ip link set dev {dev} txqueuelen {value}"),
        }
    }
}

/// One thing that the host needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Item {
    /// The parameter, or what of the interface.
    pub name: String,
    /// What is there; `None` when it cannot be read here.
    pub current: Option<String>,
    /// What is needed.
    pub wanted: String,
    /// Whether what is there suffices.
    pub ok: bool,
    /// Why it is needed.
    pub reason: String,
    /// The command that sets it.
    pub command: Option<String>,
    /// What `--apply` does; `None` when it is all right, or not to be changed from here.
    #[serde(skip)]
    pub change: Option<Change>,
}

/// Everything that the host needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Need {
    /// Frame-level rate of all streams.
    pub rate_bps: u64,
    /// Round-trip time, microseconds.
    pub rtt_us: u64,
    /// Streams.
    pub streams: u32,
    /// Window of all streams together, bytes.
    pub window_bytes: u64,
    /// Socket buffers of all streams together, bytes.
    pub socket_buffer_bytes: u64,
    /// Buffer of one stream, bytes.
    pub stream_buffer_bytes: u64,
    /// The items.
    pub items: Vec<Item>,
    /// What cannot be had by setting parameters.
    pub notes: Vec<String>,
}

/// What a host of these facts needs.
pub fn need(request: &Request, facts: &Facts) -> Need {
    let window = bdp_bytes(request.rate, request.rtt);
    let buffers = buffer_bytes(window);
    let streams = u64::from(request.streams.max(1));
    let each = buffers.div_ceil(streams).min(MAX_BUFFER_BYTES);
    let mut notes = Vec::new();
    let least = least_streams(window);
    if least > streams {
        notes.push(format!(
            "one connection cannot hold this window (window scale 14, buffer below 2 GiB): use {least} streams or more"
        ));
    }
    let mut items = buffer_items(each, facts);
    items.push(tcp_mem(buffers, facts, &mut notes));
    let mtu = request
        .mtu
        .or(facts.link.as_ref().and_then(|l| l.mtu))
        .unwrap_or(1500);
    let frames = |time: PicoDuration| {
        let frame = u64::from(mtu) + FRAME_EXTRA;
        request
            .rate
            .bytes_in(time)
            .div_ceil(frame)
            .clamp(*QUEUE_FRAMES.start(), *QUEUE_FRAMES.end())
    };
    let backlog = frames(BACKLOG_TIME);
    items.push(at_least(
        "net.core.netdev_max_backlog",
        backlog,
        format!("a core's receive queue holds the frames of 30 ms at MTU {mtu}, while the core is busy"),
        facts,
    ));
    for (name, wanted, reason) in SWITCHES {
        let ok = facts.value(name) == Some(wanted);
        items.push(sysctl_item(name, wanted.to_owned(), ok, reason.to_owned(), facts));
    }
    items.push(congestion(facts));
    match &facts.link {
        Some(link) => items.extend(link_items(link, request, frames(TXQUEUE_TIME))),
        None => notes.push(
            "no interface was named and there is no default route: queue, MTU and offloads are not looked at"
                .into(),
        ),
    }
    Need {
        rate_bps: request.rate.bps(),
        rtt_us: request.rtt.as_us(),
        streams: request.streams,
        window_bytes: window,
        socket_buffer_bytes: buffers,
        stream_buffer_bytes: each,
        items,
        notes,
    }
}

fn sysctl_item(name: &str, wanted: String, ok: bool, reason: String, facts: &Facts) -> Item {
    let parameter = facts.sysctls.get(name);
    let change = Change::Sysctl {
        name: name.to_owned(),
        value: wanted.clone(),
    };
    let reason = match parameter {
        Some(p) if !ok && !p.writable => {
            format!("{reason}; to be set in the initial network namespace, by root")
        }
        None => format!("{reason}; not to be seen in this network namespace"),
        Some(_) => reason,
    };
    Item {
        name: name.to_owned(),
        current: parameter.map(|p| p.value.clone()),
        command: (!ok).then(|| change.command()),
        change: parameter.filter(|p| !ok && p.writable).map(|_| change),
        wanted,
        ok,
        reason,
    }
}

fn at_least(name: &str, wanted: u64, reason: String, facts: &Facts) -> Item {
    let now = facts
        .value(name)
        .and_then(numbers)
        .and_then(|n| n.first().copied());
    let ok = now.is_some_and(|n| n >= wanted);
    sysctl_item(name, wanted.to_string(), ok, reason, facts)
}

fn buffer_items(each: u64, facts: &Facts) -> Vec<Item> {
    let mut items = Vec::new();
    for (name, end, default) in [
        ("net.ipv4.tcp_rmem", "receiver", [4096, 131_072]),
        ("net.ipv4.tcp_wmem", "sender", [4096, 16_384]),
    ] {
        let now = facts.value(name).and_then(numbers).filter(|n| n.len() == 3);
        let first = now.as_ref().map_or(default, |n| [n[0], n[1]]);
        let ok = now.as_ref().is_some_and(|n| n[2] >= each);
        let max = now.map_or(each, |n| n[2].max(each));
        let reason = format!(
            "autotuning of a {end} goes to three times the window of a stream: Linux offers (buffer - used) / 2"
        );
        items.push(sysctl_item(
            name,
            format!("{} {} {max}", first[0], first[1]),
            ok,
            reason,
            facts,
        ));
    }
    for name in ["net.core.rmem_max", "net.core.wmem_max"] {
        let reason =
            "programs that set their socket buffers themselves (-w, SO_RCVBUF) may go as far".to_owned();
        items.push(at_least(name, each, reason, facts));
    }
    items
}

fn tcp_mem(buffers: u64, facts: &Facts, notes: &mut Vec<String>) -> Item {
    const NAME: &str = "net.ipv4.tcp_mem";
    let pages = buffers.div_ceil(facts.page_bytes.max(1));
    let now = facts.value(NAME).and_then(numbers).filter(|n| n.len() == 3);
    let ok = now.as_ref().is_some_and(|n| n[1] >= pages);
    let now = now.unwrap_or_else(|| vec![0; 3]);
    let pressure = now[1].max(pages);
    let wanted = format!(
        "{} {pressure} {}",
        now[0].max(pages / 4 * 3),
        now[2].max(pressure.saturating_add(pressure / 2))
    );
    let reason =
        "pages of all TCP buffers together; above the second number no buffer grows any more".to_owned();
    let mut item = sysctl_item(NAME, wanted, ok, reason, facts);
    if facts.memory_bytes.is_some_and(|memory| buffers > memory / 2) {
        notes.push(format!(
            "the buffers ({buffers} bytes) are more than half of this host's memory: net.ipv4.tcp_mem is left alone"
        ));
        (item.change, item.command) = (None, None);
    }
    item
}

fn congestion(facts: &Facts) -> Item {
    const NAME: &str = "net.ipv4.tcp_congestion_control";
    let now = facts.value(NAME).unwrap_or_default();
    let ok = FAST_CONTROLS.contains(&now);
    let has = |name: &str| {
        let all = facts.value(AVAILABLE_CONTROLS).unwrap_or("cubic");
        all.split(' ').any(|n| n == name)
    };
    let best = ["cubic", "htcp", "bbr"]
        .into_iter()
        .find(|n| has(n))
        .unwrap_or("cubic");
    let wanted = if ok { now } else { best };
    let reason = "one that grows faster than a segment per round trip; paced, cubic does".to_owned();
    sysctl_item(NAME, wanted.to_owned(), ok, reason, facts)
}

fn link_items(link: &LinkFacts, request: &Request, txqueuelen: u64) -> Vec<Item> {
    let dev = &link.dev;
    let item =
        |what: &str, current: Option<String>, wanted: String, ok, reason: &str, command: Option<String>| {
            Item {
                name: format!("{dev} {what}"),
                current,
                wanted,
                ok,
                reason: reason.to_owned(),
                command: command.filter(|_| !ok),
                change: None,
            }
        };
    let frames = u32::try_from(txqueuelen).unwrap_or(u32::MAX);
    let ok = link.txqueuelen.is_some_and(|n| n >= frames);
    let change = Change::Txqueuelen {
        dev: dev.clone(),
        value: frames,
    };
    let mut queue = item(
        "txqueuelen",
        link.txqueuelen.map(|n| n.to_string()),
        frames.to_string(),
        ok,
        "a window's burst waits in the interface's queue; one that overflows is a loss to TCP",
        Some(change.command()),
    );
    queue.change = (!ok).then_some(change);
    let wanted = request.mtu.unwrap_or(JUMBO_MTU);
    let ok = link.mtu.is_some_and(|mtu| mtu >= wanted);
    let change = Change::Mtu {
        dev: dev.clone(),
        value: wanted,
    };
    let reason = if request.mtu.is_some() {
        "the path's, as you say: fewer frames, each costs processor time (paper 004)"
    } else {
        "fewer frames, each costs processor time (paper 004); only if the whole path carries it, so it is applied \
         with --mtu alone"
    };
    let mut mtu = item(
        "mtu",
        link.mtu.map(|n| n.to_string()),
        wanted.to_string(),
        ok,
        reason,
        Some(change.command()),
    );
    mtu.change = (!ok && request.mtu.is_some()).then_some(change);
    let off: Vec<&str> = link
        .offloads
        .iter()
        .filter(|(_, on)| !on)
        .map(|(n, _)| n.as_str())
        .collect();
    let all: Vec<String> = link
        .offloads
        .iter()
        .map(|(name, on)| format!("{name} {}", if *on { "on" } else { "off" }))
        .collect();
    let offloads = item(
        "offloads",
        (!all.is_empty()).then(|| all.join(", ")),
        "rx, tx, sg, tso, gso, gro on".into(),
        off.is_empty() && !all.is_empty(),
        "checksums and segmentation by the card: the processor sees 64 KiB at a time",
        Some(format!("ethtool -K {dev} rx on tx on sg on tso on gso on gro on")),
    );
    let paced = link.qdisc.as_deref().is_some_and(|q| q == "fq" || q == "mq");
    let qdisc = item(
        "qdisc",
        link.qdisc.clone(),
        "fq".into(),
        paced,
        "spaces the frames of each paced socket (with mq: on each of its queues); without it TCP paces by its own timer",
        Some(format!("tc qdisc replace dev {dev} root fq")),
    );
    vec![queue, mtu, offloads, qdisc]
}

#[cfg(test)]
#[path = "need_tests.rs"]
mod tests;
