//! Queueing disciplines, classes and filters by route netlink: the messages that `tc` sends for the same, and no more.
//!
//! ```text
//! nlmsghdr 16 | tcmsg 20: family, index, handle, parent, info | TCA_KIND | TCA_OPTIONS { ... }
//! ```
//!
//! Sources: `include/uapi/linux/{rtnetlink,pkt_sched,pkt_cls}.h`; for `psp` `kernel/psp_netlink.h`. What the kernel
//! says in words (extack) becomes part of the error.

use crate::rule::{Mode, Rule};
use netlink_packet_core::{
    DefaultNla, NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REQUEST, NetlinkHeader,
    NetlinkMessage, NetlinkPayload, NlasIterator,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteMessage};
use netlink_packet_route::tc::{
    TcAttribute, TcFilterU32Option, TcHandle, TcMessage, TcOption, TcU32Key, TcU32Selector,
    TcU32SelectorFlags,
};
use netlink_packet_route::{AddressFamily, route::RouteType};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use std::io;
use std::net::IpAddr;

/// Parent of a root qdisc (`TC_H_ROOT`).
pub(crate) const ROOT: u32 = u32::MAX;
/// Ethertypes that a filter names.
pub(crate) const ETH_IP: u16 = 0x0800;
pub(crate) const ETH_IPV6: u16 = 0x86dd;
/// Members of `TCA_OPTIONS` of `psp` (`kernel/psp_netlink.h`).
const TCA_PSP_MODE: u16 = 4;
const TCA_PSP_RATE: u16 = 5;
/// Netlink's error message, end of a dump, and the attribute with the kernel's words.
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const RTM_NEWROUTE: u16 = 24;
const RTM_NEWQDISC: u16 = 36;
const NLMSGERR_ATTR_MSG: u16 = 1;
/// Header of a message, and of one about traffic control, bytes.
const HEADER: usize = 16;
const TCMSG: usize = 20;
/// `TCA_KIND` (`rtnetlink.h`).
const TCA_KIND: u16 = 1;
/// `RTA_OIF` (`rtnetlink.h`), and the bytes of an `rtmsg`.
const RTA_OIF: u16 = 4;
const RTMSG: usize = 12;

/// A qdisc as a dump shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Qdisc {
    /// Interface.
    pub index: i32,
    /// Name.
    pub kind: String,
    /// Number; 0 is what the kernel put there itself.
    pub handle: u32,
    /// Where it hangs.
    pub parent: u32,
}

/// The words of a filter: which packets go to a class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Filter {
    /// Ethertype, [`ETH_IP`] or [`ETH_IPV6`].
    pub protocol: u16,
    /// (mask, value, offset from the IP header).
    pub keys: Vec<(u32, u32, i32)>,
}

/// The filters of a rule: one for each family that its prefix reaches. A port is where it is without IP options and
/// extension headers, as in `tc`'s `match ip dport`.
pub(crate) fn filters(rule: &Rule) -> Vec<Filter> {
    let (to, mask) = rule.mapped();
    let mapped = 0xffff_u128 << 32;
    let mut out = Vec::new();
    if (to ^ mapped) & mask & !u128::from(u32::MAX) == 0 {
        let mut keys = words(&[to as u32], &[mask as u32], 16);
        keys.extend(rule.port.map(|port| (0xffff, u32::from(port), 20)));
        out.push(Filter::new(ETH_IP, keys));
    }
    if rule.to.is_none_or(|prefix| prefix.address().is_ipv6()) {
        let split = |x: u128| [96, 64, 32, 0].map(|shift| (x >> shift) as u32);
        let mut keys = words(&split(to), &split(mask), 24);
        keys.extend(rule.port.map(|port| (0xffff, u32::from(port), 40)));
        out.push(Filter::new(ETH_IPV6, keys));
    }
    out
}

/// The words of an address that its mask looks at.
fn words(value: &[u32], mask: &[u32], from: i32) -> Vec<(u32, u32, i32)> {
    let pairs = mask.iter().zip(value).zip((from..).step_by(4));
    pairs
        .filter(|((mask, _), _)| **mask != 0)
        .map(|((mask, value), offset)| (*mask, value & mask, offset))
        .collect()
}

impl Filter {
    fn new(protocol: u16, mut keys: Vec<(u32, u32, i32)>) -> Self {
        if keys.is_empty() {
            // Every packet: a key that looks at nothing.
            keys.push((0, 0, 0));
        }
        Self { protocol, keys }
    }
}

fn message(index: i32, handle: u32, parent: u32, info: u32, kind: &str, options: Vec<TcOption>) -> TcMessage {
    let mut message = TcMessage::with_index(index);
    message.header.handle = TcHandle::from(handle);
    message.header.parent = TcHandle::from(parent);
    message.header.info = info;
    if !kind.is_empty() {
        message.attributes.push(TcAttribute::Kind(kind.to_owned()));
        message.attributes.push(TcAttribute::Options(options));
    }
    message
}

/// A root qdisc without options.
fn qdisc(index: i32, kind: &str, handle: u32) -> TcMessage {
    message(index, handle, ROOT, 0, kind, Vec::new())
}

/// A class of `psp`.
fn class(index: i32, parent: u32, classid: u32, rate_bps: u64, mode: Mode) -> TcMessage {
    let mode: u8 = match mode {
        Mode::Static => 1,
        Mode::Dynamic => 2,
    };
    let other = |kind, bytes| TcOption::Other(DefaultNla::new(kind, bytes));
    let options = vec![
        other(TCA_PSP_MODE, vec![mode]),
        other(TCA_PSP_RATE, rate_bps.to_ne_bytes().to_vec()),
    ];
    message(index, classid, parent, 0, "psp", options)
}

/// Preference and protocol of a filter, as `tcm_info` has them.
fn filter_info(preference: u16, protocol: u16) -> u32 {
    u32::from(preference) << 16 | u32::from(protocol.to_be())
}

fn u32_filter(index: i32, parent: u32, preference: u16, classid: u32, filter: &Filter) -> TcMessage {
    let mut selector = TcU32Selector::default();
    selector.flags = TcU32SelectorFlags::Terminal;
    for (mask, value, offset) in &filter.keys {
        let mut key = TcU32Key::default();
        (key.mask, key.val, key.off) = (*mask, *value, *offset);
        selector.keys.push(key);
    }
    selector.nkeys = u8::try_from(selector.keys.len()).unwrap_or(u8::MAX);
    let options = vec![
        TcOption::U32(TcFilterU32Option::ClassId(TcHandle::from(classid))),
        TcOption::U32(TcFilterU32Option::Selector(selector)),
    ];
    let info = filter_info(preference, filter.protocol);
    message(index, 0, parent, info, "u32", options)
}

fn encode(message: RouteNetlinkMessage, flags: u16, sequence: u32) -> Vec<u8> {
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | flags;
    header.sequence_number = sequence;
    let mut packet = NetlinkMessage::new(header, NetlinkPayload::from(message));
    packet.finalize();
    let mut bytes = vec![0; packet.buffer_len()];
    packet.serialize(&mut bytes);
    bytes
}

/// A route netlink socket in the calling thread's network namespace.
pub(crate) struct Tc {
    socket: Socket,
    sequence: u32,
}

impl Tc {
    pub(crate) fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        // The kernel's words, and not our own message again; without them the error's number has to do.
        let _ = socket.set_ext_ack(true).and(socket.set_cap_ack(true));
        Ok(Self { socket, sequence: 0 })
    }

    /// The root qdisc of an interface.
    pub(crate) fn root(&mut self, index: i32) -> io::Result<Option<Qdisc>> {
        let ask = RouteNetlinkMessage::GetQueueDiscipline(TcMessage::with_index(index));
        let answers = self.request(ask, NLM_F_DUMP)?;
        let all = answers.iter().filter(|(kind, _)| *kind == RTM_NEWQDISC);
        let all: Vec<Qdisc> = all.filter_map(|(_, body)| parse_qdisc(body)).collect();
        Ok(all.into_iter().find(|q| q.index == index && q.parent == ROOT))
    }

    /// Puts a qdisc at the root of an interface, which must have the kernel's own there.
    pub(crate) fn add_root(&mut self, index: i32, kind: &str, handle: u32) -> io::Result<()> {
        let message = RouteNetlinkMessage::NewQueueDiscipline(qdisc(index, kind, handle));
        self.change(message, NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Takes the root qdisc of an interface away: the kernel's own comes back.
    pub(crate) fn delete_root(&mut self, index: i32, handle: u32) -> io::Result<()> {
        let message = message(index, handle, ROOT, 0, "", Vec::new());
        self.change(RouteNetlinkMessage::DelQueueDiscipline(message), 0)
    }

    pub(crate) fn add_class(&mut self, index: i32, parent: u32, classid: u32, rule: &Rule) -> io::Result<()> {
        let message = class(index, parent, classid, rule.rate_bps, rule.mode);
        self.change(
            RouteNetlinkMessage::NewTrafficClass(message),
            NLM_F_CREATE | NLM_F_EXCL,
        )
    }

    pub(crate) fn delete_class(&mut self, index: i32, classid: u32) -> io::Result<()> {
        let message = message(index, classid, 0, 0, "", Vec::new());
        self.change(RouteNetlinkMessage::DelTrafficClass(message), 0)
    }

    /// Whether there is a class.
    pub(crate) fn has_class(&mut self, index: i32, classid: u32) -> io::Result<bool> {
        Ok(self.classes(index)?.contains(&classid))
    }

    /// The numbers of an interface's classes.
    pub(crate) fn classes(&mut self, index: i32) -> io::Result<Vec<u32>> {
        let ask = RouteNetlinkMessage::GetTrafficClass(TcMessage::with_index(index));
        let answers = self.request(ask, NLM_F_DUMP)?;
        Ok(answers
            .iter()
            .filter_map(|(_, body)| parse_qdisc(body))
            .filter(|c| c.index == index)
            .map(|c| c.handle)
            .collect())
    }

    pub(crate) fn add_filter(
        &mut self,
        index: i32,
        parent: u32,
        preference: u16,
        classid: u32,
        filter: &Filter,
    ) -> io::Result<()> {
        let message = u32_filter(index, parent, preference, classid, filter);
        self.change(
            RouteNetlinkMessage::NewTrafficFilter(message),
            NLM_F_CREATE | NLM_F_EXCL,
        )
    }

    /// Takes the filters of one preference away.
    pub(crate) fn delete_filter(
        &mut self,
        index: i32,
        parent: u32,
        preference: u16,
        protocol: u16,
    ) -> io::Result<()> {
        let info = filter_info(preference, protocol);
        let message = message(index, 0, parent, info, "", Vec::new());
        self.change(RouteNetlinkMessage::DelTrafficFilter(message), 0)
    }

    /// The interface by which packets to an address leave.
    pub(crate) fn way_to(&mut self, to: IpAddr) -> io::Result<Option<u32>> {
        let mut ask = RouteMessage::default();
        let (family, bits, address) = match to.to_canonical() {
            IpAddr::V4(v4) => (AddressFamily::Inet, 32, RouteAddress::Inet(v4)),
            IpAddr::V6(v6) => (AddressFamily::Inet6, 128, RouteAddress::Inet6(v6)),
        };
        ask.header.address_family = family;
        ask.header.destination_prefix_length = bits;
        ask.header.kind = RouteType::Unspec;
        ask.attributes.push(RouteAttribute::Destination(address));
        let answers = self.request(RouteNetlinkMessage::GetRoute(ask), 0)?;
        let route = answers.iter().find(|(kind, _)| *kind == RTM_NEWROUTE);
        Ok(route
            .and_then(|(_, body)| attribute(body.get(RTMSG..)?, RTA_OIF))
            .and_then(|value| value.first_chunk().copied())
            .map(u32::from_ne_bytes))
    }

    fn change(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.request(message, NLM_F_ACK | flags).map(drop)
    }

    /// Sends a request; gives the answers (type and body) up to the acknowledgement or the end of the dump.
    fn request(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<Vec<(u16, Vec<u8>)>> {
        self.sequence += 1;
        self.socket.send(&encode(message, flags, self.sequence), 0)?;
        let mut out = Vec::new();
        loop {
            let (datagram, _) = self.socket.recv_from_full()?;
            let many = flags & NLM_F_DUMP != 0;
            for answer in answers(&datagram)? {
                if answer.sequence != self.sequence {
                    continue;
                }
                match answer.kind {
                    NLMSG_ERROR => return error_of(answer.body).map(|()| out),
                    NLMSG_DONE => return Ok(out),
                    kind => out.push((kind, answer.body.to_vec())),
                }
                // An acknowledgement was asked for, or this is the one answer.
                if !many && flags & NLM_F_ACK == 0 {
                    return Ok(out);
                }
            }
        }
    }
}

struct Answer<'a> {
    kind: u16,
    sequence: u32,
    body: &'a [u8],
}

fn invalid() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "netlink: an answer that is cut short")
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_ne_bytes)
}

/// The messages of a datagram.
fn answers(datagram: &[u8]) -> io::Result<Vec<Answer<'_>>> {
    let mut out = Vec::new();
    let mut rest = datagram;
    while rest.len() >= HEADER {
        let len = word(rest, 0).map_or(0, |len| len as usize);
        let message = rest
            .get(..len)
            .filter(|m| m.len() >= HEADER)
            .ok_or_else(invalid)?;
        let kind = message.get(4..).and_then(|b| b.first_chunk().copied());
        out.push(Answer {
            kind: kind.map_or(0, u16::from_ne_bytes),
            sequence: word(message, 8).unwrap_or(0),
            body: message.get(HEADER..).unwrap_or_default(),
        });
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(out)
}

/// `nlmsgerr`: a code (0 is an acknowledgement), the header of our message, and attributes.
fn error_of(body: &[u8]) -> io::Result<()> {
    let code = word(body, 0).ok_or_else(invalid)?.cast_signed();
    if code == 0 {
        return Ok(());
    }
    let error = io::Error::from_raw_os_error(code.saturating_neg());
    let words = body
        .get(4 + HEADER..)
        .and_then(|a| attribute(a, NLMSGERR_ATTR_MSG));
    Err(match words {
        Some(words) => {
            let words = String::from_utf8_lossy(&words);
            io::Error::new(error.kind(), Refused::new(&error, words.trim_end_matches('\0')))
        }
        None => error,
    })
}

/// A kernel's refusal with its words and its number.
#[derive(Debug)]
pub(crate) struct Refused {
    text: String,
    code: Option<i32>,
}

impl Refused {
    fn new(error: &io::Error, words: &str) -> Self {
        Self {
            text: format!("{words} ({error})"),
            code: error.raw_os_error(),
        }
    }
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Refused {}

/// The system's number of an error of this module.
pub(crate) fn code(e: &io::Error) -> Option<i32> {
    e.raw_os_error()
        .or_else(|| e.get_ref()?.downcast_ref::<Refused>()?.code)
}

fn attribute(bytes: &[u8], kind: u16) -> Option<Vec<u8>> {
    NlasIterator::new(bytes)
        .filter_map(Result::ok)
        .find(|nla| nla.kind() == kind)
        .map(|nla| nla.value().to_vec())
}

/// What all messages about traffic control have: interface, handle, parent, kind.
fn parse_qdisc(body: &[u8]) -> Option<Qdisc> {
    let kind = attribute(body.get(TCMSG..)?, TCA_KIND)?;
    Some(Qdisc {
        index: word(body, 4)?.cast_signed(),
        handle: word(body, 8)?,
        parent: word(body, 12)?,
        kind: String::from_utf8_lossy(&kind).trim_end_matches('\0').to_owned(),
    })
}

#[cfg(test)]
#[path = "tc_tests.rs"]
mod tests;
