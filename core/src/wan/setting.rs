//! A link's parameters as text: the one form for topology files, schedules and changes while running.
//!
//! | key | value |
//! |---|---|
//! | `capacity` | `468Mbps` (frame level), `1Gbps l1` |
//! | `trace` | a mahimahi file |
//! | `one_way_delay` | `70.5ms` |
//! | `jitter` | `none`, `uniform 1ms` (half width), `normal 1ms` (sigma; cut at 4 sigma), `normal 1ms 2ms` (cut at 2 ms), `pareto 1ms 2.5` (scale, shape), `samples FILE` (drawn), `replay FILE` (in order) |
//! | `order` | `kept`, `free` |
//! | `queue` | `1MiB`, `1000 frames` |
//! | `aqm` | `drop-tail`, `codel`, `codel 5ms 100ms ecn` (target, interval), `red 50KiB 150KiB 10% ecn` (min, max, max_p), `red 50KiB 150KiB 10% weight 9` (the average's weight is 2^-9) |
//! | `loss` | `1e-6`, `gilbert 0.1% 25%` (good to bad, bad to good), `gilbert 0.1% 25% 0 50%` (loss in good, in bad), `every 1000` |
//! | `lose` | `none`, `flow 2 data 3, flow 1 syn 1` (kinds: any, data, ack, syn, fin) |
//! | `duplicate` | `0.1%` |
//! | `reorder` | `none`, `1% 5ms` (share, how far behind) |
//! | `corrupt` | `0`, `1e-6` (one bit), `1e-6 bits 3`, `1e-6 checksum-kept` |
//! | `rewrite` | `none`, `push-vlan 5`, `push-vlan 5 priority 3`, `pop-vlan`, `source-mac 02:00:00:00:00:01`, `destination-mac ...`, `address 10.0.0.1 10.9.0.1` (from, to); several with commas |
//! | `mtu` | `none`, `1400B` (IP packet) |
//! | `hold` | `10ms`: nothing starts for so long, as after a PAUSE; `0s` ends it |
//!
//! A file of samples has one time with a unit on each line.

use super::{
    codel::CoDel,
    config::{Aqm, Limit, Reorder, WanChange},
    corrupt::{Corruption, Damage, MAX_FLIPS},
    gate::{Level, MAX_CAPACITY, MIN_CAPACITY, Rate},
    jitter::{Jitter, MAX_DELAY, MAX_SAMPLES, MIN_SHAPE, Order},
    loss::Loss,
    named::{FrameKind, FrameName, MAX_NAMED},
    opportunity::Opportunities,
    red::{MAX_WEIGHT_LOG2, Red},
    rewrite::{MAX_REWRITES, MAX_VLAN, Rewrite},
};
use crate::{
    units::{BitRate, FrameBytes, PicoDuration, Ratio, parse_bytes},
    wire::MacAddr,
};
use alloc::{
    format,
    string::{String, ToString},
    sync::Arc,
    vec::Vec,
};
use core::{fmt, net::IpAddr, str::FromStr};

/// Largest queue of a link: bytes, or frames.
pub const MAX_QUEUE: u64 = 4 << 30;
/// Longest value of a setting, in bytes.
pub const MAX_VALUE: usize = 65_536;
/// Smallest MTU of a link: what IPv4 asks of every network (RFC 791).
pub const MIN_LINK_MTU: u64 = 68;

/// Keys with the values they take.
pub const SETTINGS: [(&str, &str); 15] = [
    (
        "capacity",
        "a rate from 8kbps to 100Gbps, such as 468Mbps or 1Gbps l1",
    ),
    ("trace", "a mahimahi file"),
    ("one_way_delay", "a time of at most 10s, such as 70.5ms"),
    (
        "jitter",
        "none, uniform HALF, normal SIGMA [LIMIT], pareto SCALE SHAPE, samples FILE or replay FILE, times at most 10s",
    ),
    ("order", "kept or free"),
    (
        "queue",
        "a size of at most 4GiB, such as 1MiB, or a number of frames, such as 1000 frames",
    ),
    (
        "aqm",
        "drop-tail, codel [TARGET INTERVAL] [ecn] or red MIN MAX MAX_P [weight LOG2] [ecn]",
    ),
    (
        "loss",
        "a ratio of at most 100%, gilbert P R [GOOD BAD] or every N",
    ),
    (
        "lose",
        "none or names such as flow 2 data 3 (any, data, ack, syn, fin), with commas",
    ),
    ("duplicate", "a ratio of at most 100%"),
    ("reorder", "none, or a ratio and a time, such as 1% 5ms"),
    (
        "corrupt",
        "a ratio, then nothing, bits N (1 to 64) or checksum-kept",
    ),
    (
        "rewrite",
        "none, push-vlan ID [priority P], pop-vlan, source-mac MAC, destination-mac MAC, address FROM TO, with commas",
    ),
    ("mtu", "none or a size from 68B, such as 1400B"),
    ("hold", "a time of at most 10s, such as 10ms"),
];

/// Why a setting is refused: the key, and what is wrong and would be valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingError {
    /// The key.
    pub key: String,
    /// What is wrong, and what would be valid.
    pub problem: String,
}

impl fmt::Display for SettingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.problem)
    }
}

impl core::error::Error for SettingError {}

/// Gives the text of a file that a value names, or why it cannot.
pub type Files<'a> = &'a mut dyn FnMut(&str) -> Result<String, String>;

/// Reads a setting.
///
/// # Errors
/// An unknown key, or a value that the key does not take.
pub fn setting(key: &str, value: &str, files: Files<'_>) -> Result<WanChange, SettingError> {
    let refused = |problem: String| SettingError {
        key: key.to_string(),
        problem,
    };
    let Some((_, valid)) = SETTINGS.iter().find(|(name, _)| *name == key) else {
        let names: Vec<&str> = SETTINGS.iter().map(|(name, _)| *name).collect();
        return Err(refused(format!("no such setting, but {}", names.join(", "))));
    };
    if value.len() > MAX_VALUE {
        return Err(refused(format!(
            "a value of {} bytes: at most {MAX_VALUE}",
            value.len()
        )));
    }
    read(key, value, files).map_err(|wrong| {
        let shown: String = value.chars().take(60).collect();
        refused(match wrong {
            Wrong::Form => format!("{shown:?}: {valid}"),
            Wrong::Because(why) => format!("{shown:?}: {why}; {valid}"),
        })
    })
}

/// What is wrong with a value.
enum Wrong {
    Form,
    Because(String),
}

type Read<T> = Result<T, Wrong>;

fn read(key: &str, value: &str, files: Files<'_>) -> Read<WanChange> {
    let words: Vec<&str> = value.split_whitespace().collect();
    let words = words.as_slice();
    Ok(match (key, words) {
        ("capacity", [rate]) => WanChange::Rate(Rate::Capacity(capacity(rate)?, Level::Frame)),
        ("capacity", [rate, "l1"]) => WanChange::Rate(Rate::Capacity(capacity(rate)?, Level::L1)),
        ("trace", [_, ..]) => {
            let text = files(value.trim()).map_err(Wrong::Because)?;
            let trace = Opportunities::parse(&text).map_err(|e| Wrong::Because(e.to_string()))?;
            WanChange::Rate(Rate::Trace(Arc::new(trace)))
        }
        ("one_way_delay", [time]) => WanChange::OneWayDelay(delay(time)?),
        ("hold", [time]) => WanChange::Hold(delay(time)?),
        ("jitter", words) => WanChange::Jitter(jitter(value, words, files)?),
        ("order", ["kept"]) => WanChange::Order(Order::Kept),
        ("order", ["free"]) => WanChange::Order(Order::Free),
        ("queue", [count, "frames" | "frame"]) => {
            WanChange::Queue(Limit::Frames(whole(count, 0, MAX_QUEUE)?))
        }
        ("queue", [size]) => WanChange::Queue(Limit::Bytes(bytes(size, 0, MAX_QUEUE)?)),
        ("aqm", words) => WanChange::Aqm(aqm(words)?),
        ("loss", words) => WanChange::Loss(loss(words)?),
        ("lose", words) => WanChange::Lose(names(value, words)?),
        ("duplicate", [share]) => WanChange::Duplicate(ratio(share)?),
        ("reorder", ["none" | "0"]) => WanChange::Reorder(Reorder::NONE),
        ("reorder", [share, extra]) => WanChange::Reorder(Reorder {
            ratio: ratio(share)?,
            extra: delay(extra)?,
        }),
        ("corrupt", words) => WanChange::Corrupt(corrupt(words)?),
        ("rewrite", words) => WanChange::Rewrite(rewrites(value, words)?),
        ("mtu", ["none"]) => WanChange::Mtu(None),
        ("mtu", [size]) => WanChange::Mtu(Some(bytes(size, MIN_LINK_MTU, 65_535)?.get())),
        _ => return Err(Wrong::Form),
    })
}

fn parse<T: FromStr<Err: fmt::Display>>(text: &str) -> Read<T> {
    text.parse().map_err(|e: T::Err| Wrong::Because(e.to_string()))
}

fn capacity(text: &str) -> Read<BitRate> {
    let rate: BitRate = parse(text)?;
    if (MIN_CAPACITY..=MAX_CAPACITY).contains(&rate) {
        Ok(rate)
    } else {
        Err(Wrong::Form)
    }
}

fn delay(text: &str) -> Read<PicoDuration> {
    let time: PicoDuration = parse(text)?;
    if time <= MAX_DELAY {
        Ok(time)
    } else {
        Err(Wrong::Form)
    }
}

fn ratio(text: &str) -> Read<Ratio> {
    let ratio: Ratio = parse(text)?;
    if ratio <= Ratio::ONE {
        Ok(ratio)
    } else {
        Err(Wrong::Form)
    }
}

fn bytes(text: &str, least: u64, most: u64) -> Read<FrameBytes> {
    let size = parse_bytes(text).map_err(|e| Wrong::Because(e.to_string()))?;
    if (least..=most).contains(&size) {
        Ok(FrameBytes::new(size))
    } else {
        Err(Wrong::Form)
    }
}

fn whole(text: &str, least: u64, most: u64) -> Read<u64> {
    match text.parse() {
        Ok(number) if (least..=most).contains(&number) => Ok(number),
        _ => Err(Wrong::Form),
    }
}

fn jitter(value: &str, words: &[&str], files: Files<'_>) -> Read<Jitter> {
    Ok(match words {
        ["none" | "0s"] => Jitter::None,
        ["uniform", half] => Jitter::Uniform(delay(half)?),
        ["normal", sigma] => {
            let sigma = delay(sigma)?;
            let limit = sigma.saturating_mul(4).min(MAX_DELAY);
            Jitter::Normal { sigma, limit }
        }
        ["normal", sigma, limit] => {
            let (sigma, limit) = (delay(sigma)?, delay(limit)?);
            if limit.saturating_mul(1_000) < sigma {
                return Err(Wrong::Because("the limit is below a thousandth of sigma".into()));
            }
            Jitter::Normal { sigma, limit }
        }
        ["pareto", scale, shape] => {
            let (scale, shape) = (delay(scale)?, parse::<Ratio>(shape)?);
            if shape < MIN_SHAPE {
                return Err(Wrong::Because("a shape below 1".into()));
            }
            Jitter::Pareto { scale, shape }
        }
        [how @ ("samples" | "replay"), _, ..] => {
            let name = value.trim_start().get(how.len()..).unwrap_or_default().trim();
            Jitter::Samples {
                list: samples(&files(name).map_err(Wrong::Because)?)?,
                in_order: *how == "replay",
            }
        }
        _ => return Err(Wrong::Form),
    })
}

fn samples(text: &str) -> Read<Arc<[PicoDuration]>> {
    let mut list = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()) {
        let place = |problem: &str| Wrong::Because(format!("line {}: {problem}", index + 1));
        if list.len() == MAX_SAMPLES {
            return Err(place("more than 1048576 samples"));
        }
        match delay(line) {
            Ok(time) => list.push(time),
            Err(Wrong::Because(why)) => return Err(place(&why)),
            Err(Wrong::Form) => return Err(place("a time of more than 10s")),
        }
    }
    if list.is_empty() {
        return Err(Wrong::Because("no sample in the file".into()));
    }
    Ok(list.into())
}

fn aqm(words: &[&str]) -> Read<Aqm> {
    let (words, ecn) = match words {
        [front @ .., "ecn"] => (front, true),
        all => (all, false),
    };
    Ok(match words {
        ["drop-tail"] if !ecn => Aqm::DropTail,
        ["codel"] => Aqm::CoDel(CoDel {
            ecn,
            ..CoDel::RFC_8289
        }),
        ["codel", target, interval] => {
            let (target, interval) = (delay(target)?, delay(interval)?);
            if interval == PicoDuration::ZERO {
                return Err(Wrong::Because("an interval of no time".into()));
            }
            Aqm::CoDel(CoDel {
                target,
                interval,
                ecn,
            })
        }
        ["red", min, max, max_p] => Aqm::Red(red(min, max, max_p, "9", ecn)?),
        ["red", min, max, max_p, "weight", weight] => Aqm::Red(red(min, max, max_p, weight, ecn)?),
        _ => return Err(Wrong::Form),
    })
}

fn red(min: &str, max: &str, max_p: &str, weight: &str, ecn: bool) -> Read<Red> {
    let (min, max) = (bytes(min, 0, MAX_QUEUE)?, bytes(max, 1, MAX_QUEUE)?);
    if min >= max {
        return Err(Wrong::Because("MIN must be below MAX".into()));
    }
    Ok(Red {
        min,
        max,
        max_p: ratio(max_p)?,
        weight_log2: whole(weight, 0, u64::from(MAX_WEIGHT_LOG2))? as u32,
        mean_frame: FrameBytes::new(1_000),
        ecn,
    })
}

fn loss(words: &[&str]) -> Read<Loss> {
    Ok(match words {
        [share] => Loss::Ratio(ratio(share)?),
        ["every", every] => Loss::Every(whole(every, 0, u64::MAX)?),
        ["gilbert", p, r] => Loss::Gilbert {
            p: ratio(p)?,
            r: ratio(r)?,
            good: Ratio::ZERO,
            bad: Ratio::ONE,
        },
        ["gilbert", p, r, good, bad] => Loss::Gilbert {
            p: ratio(p)?,
            r: ratio(r)?,
            good: ratio(good)?,
            bad: ratio(bad)?,
        },
        _ => return Err(Wrong::Form),
    })
}

fn names(value: &str, words: &[&str]) -> Read<Vec<FrameName>> {
    if words == ["none"] {
        return Ok(Vec::new());
    }
    let names: Vec<FrameName> = value.split(',').map(name).collect::<Read<_>>()?;
    if names.len() > MAX_NAMED {
        return Err(Wrong::Because(format!(
            "{} names: at most {MAX_NAMED}",
            names.len()
        )));
    }
    Ok(names)
}

fn name(text: &str) -> Read<FrameName> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let ["flow", flow, kind, nth] = words.as_slice() else {
        return Err(Wrong::Form);
    };
    let kind = match *kind {
        "any" => FrameKind::Any,
        "data" => FrameKind::Data,
        "ack" => FrameKind::Ack,
        "syn" => FrameKind::Syn,
        "fin" => FrameKind::Fin,
        _ => return Err(Wrong::Form),
    };
    Ok(FrameName {
        flow: whole(flow, 1, u64::from(u32::MAX))? as u32,
        kind,
        nth: whole(nth, 1, u64::MAX)?,
    })
}

fn corrupt(words: &[&str]) -> Read<Corruption> {
    let (share, damage) = match words {
        [share] => (share, Damage::Bits(1)),
        [share, "bits", count] => (share, Damage::Bits(whole(count, 1, u64::from(MAX_FLIPS))? as u32)),
        [share, "checksum-kept"] => (share, Damage::ChecksumKept),
        _ => return Err(Wrong::Form),
    };
    let ratio = ratio(share)?;
    Ok(Corruption { ratio, damage })
}

fn rewrites(value: &str, words: &[&str]) -> Read<Vec<Rewrite>> {
    if words == ["none"] {
        return Ok(Vec::new());
    }
    let rewrites: Vec<Rewrite> = value.split(',').map(rewrite).collect::<Read<_>>()?;
    if rewrites.len() > MAX_REWRITES {
        return Err(Wrong::Because(format!(
            "{}: at most {MAX_REWRITES}",
            rewrites.len()
        )));
    }
    Ok(rewrites)
}

fn rewrite(text: &str) -> Read<Rewrite> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let tag = |vlan: &str, priority: &str| {
        Ok(Rewrite::PushTag {
            vlan: whole(vlan, 1, u64::from(MAX_VLAN))? as u16,
            priority: whole(priority, 0, 7)? as u8,
        })
    };
    Ok(match words.as_slice() {
        ["push-vlan", vlan] => tag(vlan, "0")?,
        ["push-vlan", vlan, "priority", priority] => tag(vlan, priority)?,
        ["pop-vlan"] => Rewrite::PopTag,
        ["source-mac", text] => Rewrite::Mac {
            source: Some(mac(text)?),
            destination: None,
        },
        ["destination-mac", text] => Rewrite::Mac {
            source: None,
            destination: Some(mac(text)?),
        },
        ["address", from, to] => {
            let (from, to): (IpAddr, IpAddr) = (parse(from)?, parse(to)?);
            if from.is_ipv4() != to.is_ipv4() {
                return Err(Wrong::Because("two versions of IP".into()));
            }
            Rewrite::Address { from, to }
        }
        _ => return Err(Wrong::Form),
    })
}

fn mac(text: &str) -> Read<MacAddr> {
    let parts: Vec<u8> = text
        .split(':')
        .map(|part| u8::from_str_radix(part, 16).ok().filter(|_| part.len() == 2))
        .collect::<Option<_>>()
        .ok_or(Wrong::Form)?;
    parts.try_into().map(MacAddr).map_err(|_| Wrong::Form)
}
