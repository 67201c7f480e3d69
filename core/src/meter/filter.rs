//! Which streams a meter or a capture takes: an expression in the manner of pcap-filter(7).
//!
//! ```text
//! or      := and (("or" | "||") and)*
//! and     := not (("and" | "&&") not)*
//! not     := ("not" | "!")* ("(" or ")" | term)
//! term    := "ip" | "ip6" | "arp" | "tcp" | "udp" | "icmp" | "icmp6" | "proto" 0..255 | "ether proto" 0..65535
//!          | "vlan" [0..4095]
//!          | [side] ("host" ADDRESS | "net" ADDRESS/BITS | "port" 0..65535 | "portrange" LOW-HIGH)
//!          | side ADDRESS["/"BITS]
//! side    := "src" | "dst"
//! ```
//!
//! `tcp and dst port 5001 and src 10.0.1.0/24`. Without a side either of both is enough. Words are in small letters;
//! `not` binds closest, then `and`, then `or`. `vlan` means the outermost tag and, unlike in libpcap, does not move
//! what follows: `vlan 5 and tcp` and `tcp and vlan 5` are the same. An expression of nothing takes everything.
//!
//! A filter looks at what a stream's frames have in common ([`StreamKey`]), so it is asked once per stream. It is
//! kept in postfix order and run on a stack of bits: no recursion, and nothing that an expression could exhaust.

use super::StreamKey;
use crate::wire::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, PROTOCOL_TCP, PROTOCOL_UDP};
use alloc::{string::String, string::ToString, vec::Vec};
use core::{fmt, net::IpAddr, str::FromStr};

/// Most bytes of an expression.
pub const FILTER_BYTES_MAX: usize = 1_024;
/// Most terms, `and`, `or` and `not` of an expression together.
pub const FILTER_STEPS_MAX: usize = 128;
/// Deepest nesting of parentheses and `not`.
pub const FILTER_DEPTH_MAX: usize = 32;

const ETHERTYPE_ARP: u16 = 0x0806;
const PROTOCOL_ICMP: u8 = 1;
const PROTOCOL_ICMPV6: u8 = 58;
const WORDS: &str = "ip, ip6, arp, tcp, udp, icmp, icmp6, proto N, ether proto N, vlan [N], [src|dst] host A, net A/BITS, \
                     port N, portrange LOW-HIGH, not or (";

/// Why an expression is refused, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilterError {
    /// Byte of the expression at which it goes wrong, from 0.
    pub at: usize,
    /// What is there and what would be valid.
    pub problem: String,
}

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "filter, at character {}: {}", self.at + 1, self.problem)
    }
}

impl core::error::Error for FilterError {}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Either,
    Source,
    Destination,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    EtherType(u16),
    Protocol(u8),
    Vlan(Option<u16>),
    Net(Side, IpAddr, u8),
    Ports(Side, u16, u16),
    Not,
    And,
    Or,
}

/// A checked expression. The default takes everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    text: String,
    steps: Vec<Step>,
}

impl Filter {
    /// Whether the streams of a key are taken.
    pub fn takes(&self, key: &StreamKey) -> bool {
        // A bit per operand, the newest lowest: there are FILTER_STEPS_MAX = 128 at most.
        let mut stack: u128 = 0;
        for step in &self.steps {
            let (top, second) = (stack & 1, (stack >> 1) & 1);
            stack = match *step {
                Step::Not => stack ^ 1,
                Step::And => (stack >> 2) << 1 | (top & second),
                Step::Or => (stack >> 2) << 1 | (top | second),
                term => stack << 1 | u128::from(holds(term, key)),
            };
        }
        self.steps.is_empty() || stack & 1 == 1
    }

    /// Whether it takes everything.
    pub fn is_all(&self) -> bool {
        self.steps.is_empty()
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn holds(term: Step, key: &StreamKey) -> bool {
    let sides = |side: Side, source: bool, destination: bool| match side {
        Side::Either => source || destination,
        Side::Source => source,
        Side::Destination => destination,
    };
    match (term, key.flow) {
        (Step::EtherType(wanted), _) => key.ethertype == wanted,
        (Step::Vlan(wanted), _) => match wanted {
            Some(wanted) => key.vlan == Some(wanted),
            None => key.vlan.is_some(),
        },
        (Step::Protocol(wanted), Some(flow)) => flow.protocol == wanted,
        (Step::Net(side, net, bits), Some(flow)) => sides(
            side,
            within(flow.source, net, bits),
            within(flow.destination, net, bits),
        ),
        (Step::Ports(side, low, high), Some(flow)) => {
            let has_ports = flow.protocol == PROTOCOL_TCP || flow.protocol == PROTOCOL_UDP;
            let in_range = |port: u16| (low..=high).contains(&port);
            has_ports && sides(side, in_range(flow.source_port), in_range(flow.destination_port))
        }
        _ => false,
    }
}

fn within(ip: IpAddr, net: IpAddr, bits: u8) -> bool {
    match (ip, net) {
        (IpAddr::V4(ip), IpAddr::V4(net)) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits.min(32))).unwrap_or(0);
            (ip.to_bits() ^ net.to_bits()) & mask == 0
        }
        (IpAddr::V6(ip), IpAddr::V6(net)) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(bits.min(128))).unwrap_or(0);
            (ip.to_bits() ^ net.to_bits()) & mask == 0
        }
        _ => false,
    }
}

impl FromStr for Filter {
    type Err = FilterError;

    fn from_str(text: &str) -> Result<Self, FilterError> {
        if text.len() > FILTER_BYTES_MAX {
            return Err(FilterError {
                at: FILTER_BYTES_MAX,
                problem: alloc::format!("longer than {FILTER_BYTES_MAX} bytes"),
            });
        }
        let mut parser = Parser {
            tokens: tokens(text),
            next: 0,
            end: text.len(),
            depth: 0,
            steps: Vec::new(),
        };
        if !parser.tokens.is_empty() {
            parser.or()?;
            if let Some((at, word)) = parser.peek() {
                return Err(fail(
                    at,
                    alloc::format!("{word:?}: and, or or the end is expected"),
                ));
            }
        }
        Ok(Filter {
            text: text.trim().to_string(),
            steps: parser.steps,
        })
    }
}

fn fail(at: usize, problem: String) -> FilterError {
    FilterError { at, problem }
}

/// The words of an expression with their places: parentheses and `!` alone, runs of `|` and of `&`, and what stands
/// between those and white space.
fn tokens(text: &str) -> Vec<(usize, &str)> {
    #[derive(PartialEq, Clone, Copy)]
    enum Class {
        Space,
        Alone,
        Bar,
        And,
        Word,
    }
    let class = |c: char| match c {
        '(' | ')' | '!' => Class::Alone,
        '|' => Class::Bar,
        '&' => Class::And,
        c if c.is_whitespace() => Class::Space,
        _ => Class::Word,
    };
    let mut found = Vec::new();
    let (mut start, mut last) = (0, Class::Space);
    for (at, class) in text
        .char_indices()
        .map(|(at, c)| (at, class(c)))
        .chain([(text.len(), Class::Space)])
    {
        if class != last || class == Class::Alone {
            if last != Class::Space {
                found.push((start, text.get(start..at).unwrap_or("")));
            }
            (start, last) = (at, class);
        }
    }
    found
}

struct Parser<'a> {
    tokens: Vec<(usize, &'a str)>,
    next: usize,
    end: usize,
    depth: usize,
    steps: Vec<Step>,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<(usize, &'a str)> {
        self.tokens.get(self.next).copied()
    }

    fn take(&mut self, wanted: &str) -> Result<(usize, &'a str), FilterError> {
        let found = self
            .peek()
            .ok_or_else(|| fail(self.end, alloc::format!("the end: {wanted} is expected")))?;
        self.next += 1;
        Ok(found)
    }

    fn take_if(&mut self, words: &[&str]) -> bool {
        let meets = self.peek().is_some_and(|(_, word)| words.contains(&word));
        self.next += usize::from(meets);
        meets
    }

    fn push(&mut self, step: Step) -> Result<(), FilterError> {
        if self.steps.len() >= FILTER_STEPS_MAX {
            let at = self.peek().map_or(self.end, |(at, _)| at);
            return Err(fail(
                at,
                alloc::format!("more than {FILTER_STEPS_MAX} terms and operators"),
            ));
        }
        self.steps.push(step);
        Ok(())
    }

    fn or(&mut self) -> Result<(), FilterError> {
        self.and()?;
        while self.take_if(&["or", "||"]) {
            self.and()?;
            self.push(Step::Or)?;
        }
        Ok(())
    }

    fn and(&mut self) -> Result<(), FilterError> {
        self.not()?;
        while self.take_if(&["and", "&&"]) {
            self.not()?;
            self.push(Step::And)?;
        }
        Ok(())
    }

    fn not(&mut self) -> Result<(), FilterError> {
        let mut negations = 0;
        while self.take_if(&["not", "!"]) {
            negations += 1;
        }
        if self.take_if(&["("]) {
            self.depth += 1;
            if self.depth > FILTER_DEPTH_MAX {
                let at = self.peek().map_or(self.end, |(at, _)| at);
                return Err(fail(at, alloc::format!("nested deeper than {FILTER_DEPTH_MAX}")));
            }
            self.or()?;
            let (at, word) = self.take("a )")?;
            if word != ")" {
                return Err(fail(at, alloc::format!("{word:?}: and, or or ) is expected")));
            }
            self.depth -= 1;
        } else {
            let term = self.term()?;
            self.push(term)?;
        }
        for _ in 0..negations {
            self.push(Step::Not)?;
        }
        Ok(())
    }

    fn term(&mut self) -> Result<Step, FilterError> {
        let (at, word) = self.take("a term")?;
        Ok(match word {
            "ip" => Step::EtherType(ETHERTYPE_IPV4),
            "ip6" => Step::EtherType(ETHERTYPE_IPV6),
            "arp" => Step::EtherType(ETHERTYPE_ARP),
            "tcp" => Step::Protocol(PROTOCOL_TCP),
            "udp" => Step::Protocol(PROTOCOL_UDP),
            "icmp" => Step::Protocol(PROTOCOL_ICMP),
            "icmp6" => Step::Protocol(PROTOCOL_ICMPV6),
            "proto" => Step::Protocol(self.number("an IP protocol, 0 to 255", u8::MAX.into())? as u8),
            "ether" => {
                let (at, word) = self.take("proto")?;
                if word != "proto" {
                    return Err(fail(at, alloc::format!("{word:?}: proto is expected")));
                }
                Step::EtherType(self.number("an EtherType, 0 to 65535", u16::MAX.into())? as u16)
            }
            "vlan" => {
                let numbered = self
                    .peek()
                    .is_some_and(|(_, w)| w.starts_with(|c: char| c.is_ascii_digit()));
                let tag = numbered.then(|| self.number("a VLAN, 0 to 4095", 0x0fff));
                Step::Vlan(tag.transpose()?.map(|n| n as u16))
            }
            "src" => self.of_side(Side::Source)?,
            "dst" => self.of_side(Side::Destination)?,
            "host" | "net" | "port" | "portrange" => self.detail(Side::Either, word)?,
            _ => return Err(fail(at, alloc::format!("{word:?}: a term is one of {WORDS}"))),
        })
    }

    fn of_side(&mut self, side: Side) -> Result<Step, FilterError> {
        let (at, word) = self.take("host, net, port, portrange or an address")?;
        match word {
            "host" | "net" | "port" | "portrange" => self.detail(side, word),
            _ if word.starts_with(|c: char| c.is_ascii_hexdigit() || c == ':') => address(at, word, side),
            _ => Err(fail(
                at,
                alloc::format!("{word:?}: host, net, port, portrange or an address is expected"),
            )),
        }
    }

    fn detail(&mut self, side: Side, kind: &str) -> Result<Step, FilterError> {
        match kind {
            "port" => {
                let port = self.number("a port, 0 to 65535", u16::MAX.into())? as u16;
                Ok(Step::Ports(side, port, port))
            }
            "portrange" => {
                let (at, word) = self.take("two ports, such as 5001-5010")?;
                let pair = word
                    .split_once('-')
                    .and_then(|(low, high)| Some((low.parse().ok()?, high.parse().ok()?)))
                    .filter(|(low, high): &(u16, u16)| low <= high);
                let (low, high) = pair.ok_or_else(|| {
                    fail(
                        at,
                        alloc::format!("{word:?}: two ports are expected, such as 5001-5010"),
                    )
                })?;
                Ok(Step::Ports(side, low, high))
            }
            _ => {
                let (at, word) = self.take("an address")?;
                match (kind, word.contains('/')) {
                    ("host", true) => Err(fail(at, alloc::format!("{word:?}: a host has no /BITS: say net"))),
                    ("net", false) => Err(fail(
                        at,
                        alloc::format!("{word:?}: a net needs its bits, such as 10.0.1.0/24"),
                    )),
                    _ => address(at, word, side),
                }
            }
        }
    }

    fn number(&mut self, what: &str, most: u32) -> Result<u32, FilterError> {
        let (at, word) = self.take(what)?;
        let value = match word.strip_prefix("0x") {
            Some(digits) => u32::from_str_radix(digits, 16).ok(),
            None => word.parse().ok(),
        };
        value
            .filter(|value| *value <= most)
            .ok_or_else(|| fail(at, alloc::format!("{word:?}: {what} is expected")))
    }
}

fn address(at: usize, word: &str, side: Side) -> Result<Step, FilterError> {
    let bad = |problem: &str| fail(at, alloc::format!("{word:?}: {problem}"));
    let (ip, bits) = match word.split_once('/') {
        Some((ip, bits)) => (ip, Some(bits)),
        None => (word, None),
    };
    let ip: IpAddr = ip
        .parse()
        .map_err(|_| bad("an address is expected, such as 10.0.1.2, fd00:1::2 or 10.0.1.0/24"))?;
    let most = if ip.is_ipv4() { 32 } else { 128 };
    let bits = match bits {
        Some(bits) => bits.parse().ok().filter(|bits| *bits <= most).ok_or_else(|| {
            bad(if most == 32 {
                "0 to 32 bits"
            } else {
                "0 to 128 bits"
            })
        })?,
        None => most,
    };
    Ok(Step::Net(side, ip, bits))
}
