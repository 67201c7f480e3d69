//! What a test is: the parameters that the client sends to the server.

use crate::error::ProbeError;
use crate::json::{flag, number, number_to, text};
use kuroshio_core::units::BitRate;
use kuroshio_sock::MAX_CONGESTION_NAME;
use serde_json::{Value, json};

/// Streams of one test and direction at most (as iperf3).
pub const MAX_STREAMS: u32 = 128;
/// Omitted seconds at the begin at most (as iperf3).
pub const MAX_OMIT_S: u32 = 600;
/// Longest timed test, seconds: a day (as iperf3).
pub const MAX_TIME_S: u64 = 86_400;
/// Largest block of one write or read, bytes (as iperf3).
pub const MAX_BLOCK_BYTES: u32 = 1 << 20;
/// Largest UDP payload over IPv4, bytes: 65,535 less both headers.
pub const MAX_DATAGRAM_BYTES: u32 = 65_507;
/// Least UDP payload, bytes: the header with a 64-bit counter.
pub const MIN_DATAGRAM_BYTES: u32 = 16;
/// Largest socket buffer that may be asked for, bytes: half of what the kernel's `int` holds, as it doubles.
pub const MAX_WINDOW_BYTES: u32 = 1 << 30;
/// Segment sizes that Linux takes (`TCP_MAXSEG`), bytes.
pub const MSS_BYTES: std::ops::RangeInclusive<u32> = 88..=32_767;
/// Block of a TCP test that names none, bytes (as iperf3).
pub const DEFAULT_BLOCK_BYTES: u32 = 128 << 10;
/// Datagram of a test that names none and whose path is not known, bytes (as iperf3).
pub const DEFAULT_DATAGRAM_BYTES: u32 = 1460;
/// Longest title, bytes.
const MAX_TITLE: usize = 256;

/// What carries the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// Who sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The client.
    Forward,
    /// The server.
    Reverse,
    /// Both, each on streams of its own.
    Both,
}

/// When the client ends the test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// After this time, nanoseconds, not counting what is omitted.
    Time(u64),
    /// After so many bytes of payload, sent or, in a reverse test, received.
    Bytes(u64),
}

/// The pace of one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// As fast as it goes.
    None,
    /// Frame level.
    Frame(BitRate),
    /// Payload, as iperf3 counts.
    Goodput(BitRate),
}

/// The parameters of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Params {
    /// TCP or UDP.
    pub protocol: Protocol,
    /// Who sends.
    pub direction: Direction,
    /// Streams of each direction.
    pub streams: u32,
    /// Seconds at the begin that count for nothing.
    pub omit_s: u32,
    /// The end.
    pub length: Length,
    /// Bytes of one write or datagram; `None` for the default.
    pub block_bytes: Option<u32>,
    /// Socket buffers; `None` for autotuning.
    pub window_bytes: Option<u32>,
    /// Segment size; `None` for the path's.
    pub mss_bytes: Option<u32>,
    /// Congestion control; `None` for the system's.
    pub congestion: Option<String>,
    /// Pace of each stream.
    pub pace: Pace,
    /// Whether a TCP stream sends one window per round trip, with its pace as the bound (dynamic pacing).
    pub follow_window: bool,
    /// Whether small segments leave at once.
    pub nodelay: bool,
    /// Whether a TCP sender sends from the page cache (`sendfile`).
    pub zerocopy: bool,
    /// Whether UDP counters have 64 bits.
    pub wide_counters: bool,
    /// Title for the output.
    pub title: Option<String>,
    /// Whether the client understands the member `kuroshio` of the results.
    pub extension: bool,
}

impl Params {
    /// The number of streams of a test.
    pub fn all_streams(&self) -> u32 {
        match self.direction {
            Direction::Both => self.streams * 2,
            Direction::Forward | Direction::Reverse => self.streams,
        }
    }

    /// Which of the streams, in the order in which they are made, the client sends on: with both directions
    /// its own come first.
    pub fn client_sends(&self, index: u32) -> bool {
        match self.direction {
            Direction::Forward => true,
            Direction::Reverse => false,
            Direction::Both => index < self.streams,
        }
    }

    /// Bytes of one write.
    pub fn block(&self) -> u32 {
        self.block_bytes.unwrap_or(match self.protocol {
            Protocol::Tcp => DEFAULT_BLOCK_BYTES,
            Protocol::Udp => DEFAULT_DATAGRAM_BYTES,
        })
    }

    /// The JSON object that iperf3's server reads. `goodput_bps` is the pace of a stream as payload, for a
    /// server that knows no frame level.
    pub fn to_json(&self, goodput_bps: Option<u64>) -> Value {
        let (time_s, bytes) = match self.length {
            Length::Time(ns) => (ns.div_ceil(1_000_000_000), 0),
            Length::Bytes(bytes) => (0, bytes),
        };
        let mut object = json!({
            "omit": self.omit_s,
            "time": time_s,
            "num": bytes,
            "blockcount": 0,
            "parallel": self.streams,
            "len": self.block(),
            "client_version": crate::IPERF_VERSION,
            "kuroshio": {"version": 1},
        });
        let mut set = |key: &str, value: Value| object[key] = value;
        match self.protocol {
            Protocol::Tcp => set("tcp", true.into()),
            Protocol::Udp => {
                set("udp", true.into());
                set("udp_counters_64bit", self.wide_counters.into());
            }
        }
        match self.direction {
            Direction::Forward => {}
            Direction::Reverse => set("reverse", true.into()),
            Direction::Both => set("bidirectional", true.into()),
        }
        for (key, value) in [("window", self.window_bytes), ("MSS", self.mss_bytes)] {
            if let Some(value) = value {
                set(key, value.into());
            }
        }
        for (key, value) in [("nodelay", self.nodelay), ("zerocopy", self.zerocopy)] {
            if value {
                set(key, true.into());
            }
        }
        for (key, value) in [("congestion", &self.congestion), ("title", &self.title)] {
            if let Some(value) = value {
                set(key, value.clone().into());
            }
        }
        if let Some(bps) = goodput_bps {
            let key = match self.protocol {
                Protocol::Tcp => "fqrate",
                Protocol::Udp => "bandwidth",
            };
            set(key, bps.into());
        }
        if let Pace::Frame(rate) = self.pace {
            object["kuroshio"]["stream_rate_bps"] = rate.bps().into();
        }
        if self.follow_window {
            object["kuroshio"]["follow_window"] = true.into();
        }
        object
    }

    /// Reads what a client sent, and refuses what means nothing or is beyond the limits of this module.
    ///
    /// # Errors
    /// [`ProbeError::Protocol`] for what is wrong, [`ProbeError::Limit`] for what is too much.
    pub fn from_json(object: &Value) -> Result<Self, ProbeError> {
        let protocol = match (flag(object, "tcp"), flag(object, "udp")) {
            (_, false) if flag(object, "sctp") => {
                return Err(ProbeError::Protocol("SCTP is not spoken here".into()));
            }
            (_, false) => Protocol::Tcp,
            (false, true) => Protocol::Udp,
            (true, true) => return Err(ProbeError::Protocol("both tcp and udp".into())),
        };
        let direction = match (flag(object, "reverse"), flag(object, "bidirectional")) {
            (false, false) => Direction::Forward,
            (true, false) => Direction::Reverse,
            (false, true) => Direction::Both,
            (true, true) => return Err(ProbeError::Protocol("both reverse and bidirectional".into())),
        };
        let block = block(object, protocol)?;
        let small = |key, limit: u32| -> Result<u32, ProbeError> {
            Ok(u32::try_from(number_to(object, key, u64::from(limit))?).unwrap_or(limit))
        };
        let some = |n: u32| (n > 0).then_some(n);
        let mss_bytes = some(small("MSS", *MSS_BYTES.end())?);
        if mss_bytes.is_some_and(|mss| !MSS_BYTES.contains(&mss)) {
            return Err(ProbeError::Limit(format!("MSS below {}", MSS_BYTES.start())));
        }
        Ok(Self {
            protocol,
            direction,
            streams: small("parallel", MAX_STREAMS)?.max(1),
            omit_s: small("omit", MAX_OMIT_S)?,
            length: length(object, block.unwrap_or(DEFAULT_BLOCK_BYTES))?,
            block_bytes: block,
            window_bytes: some(small("window", MAX_WINDOW_BYTES)?),
            mss_bytes,
            congestion: text(object, "congestion", MAX_CONGESTION_NAME)?.filter(|name| !name.is_empty()),
            pace: pace(object, protocol)?,
            follow_window: protocol == Protocol::Tcp
                && object
                    .get("kuroshio")
                    .is_some_and(|own| flag(own, "follow_window")),
            nodelay: flag(object, "nodelay"),
            zerocopy: flag(object, "zerocopy") && protocol == Protocol::Tcp,
            wide_counters: flag(object, "udp_counters_64bit"),
            title: text(object, "title", MAX_TITLE).ok().flatten(),
            extension: object.get("kuroshio").is_some_and(Value::is_object),
        })
    }
}

fn block(object: &Value, protocol: Protocol) -> Result<Option<u32>, ProbeError> {
    let limit = match protocol {
        Protocol::Tcp => MAX_BLOCK_BYTES,
        Protocol::Udp => MAX_DATAGRAM_BYTES,
    };
    let bytes = number_to(object, "len", u64::from(limit))?;
    if protocol == Protocol::Udp && bytes > 0 && bytes < u64::from(MIN_DATAGRAM_BYTES) {
        return Err(ProbeError::Limit(format!(
            "len {bytes}, at least {MIN_DATAGRAM_BYTES}"
        )));
    }
    Ok(u32::try_from(bytes).ok().filter(|b| *b > 0))
}

/// iperf3 names one of time, bytes and blocks and writes 0 for the others.
fn length(object: &Value, block: u32) -> Result<Length, ProbeError> {
    let time_s = number_to(object, "time", MAX_TIME_S)?;
    let bytes = number(object, "num")?;
    let blocks = number(object, "blockcount")?;
    if time_s > 0 {
        return Ok(Length::Time(time_s * 1_000_000_000));
    }
    let bytes = bytes.max(blocks.saturating_mul(u64::from(block)));
    if bytes == 0 {
        // iperf3 -t 0: until the client ends it; the server's own limit holds.
        return Ok(Length::Time(MAX_TIME_S * 1_000_000_000));
    }
    Ok(Length::Bytes(bytes))
}

/// Kuroshio's frame-level rate, or the lower of iperf3's two, which count payload.
fn pace(object: &Value, protocol: Protocol) -> Result<Pace, ProbeError> {
    if let Some(own) = object.get("kuroshio")
        && let Some(rate) = BitRate::new(number(own, "stream_rate_bps")?)
    {
        return Ok(Pace::Frame(rate));
    }
    let keys: &[&str] = match protocol {
        Protocol::Tcp => &["bandwidth", "fqrate"],
        Protocol::Udp => &["bandwidth"],
    };
    let mut least = None;
    for key in keys {
        if let Some(rate) = BitRate::new(number(object, key)?) {
            least = Some(least.map_or(rate, |l: BitRate| l.min(rate)));
        }
    }
    Ok(least.map_or(Pace::None, Pace::Goodput))
}

#[cfg(test)]
#[path = "params_tests.rs"]
mod tests;
