//! What a frame is, read where it lies. Any bytes are taken; what is cut short or malformed is `None`.
//!
//! Sources: IEEE 802.3 and 802.1Q (tags), RFC 791, RFC 8200, RFC 9293, RFC 768.

use crate::units::PayloadBytes;
use core::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

/// Tags (802.1Q, 802.1ad) that are skipped before the type.
pub const VLAN_TAGS_MAX: usize = 2;
/// IPv6 extension headers that are skipped before the transport.
pub const EXTENSIONS_MAX: usize = 8;

/// EtherType of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// EtherType of IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86dd;
/// EtherType of MAC control, such as PAUSE.
pub const ETHERTYPE_MAC_CONTROL: u16 = 0x8808;
const ETHERTYPE_VLAN: u16 = 0x8100;
const ETHERTYPE_PROVIDER_VLAN: u16 = 0x88a8;

/// IP protocol number of TCP.
pub const PROTOCOL_TCP: u8 = 6;
/// IP protocol number of UDP.
pub const PROTOCOL_UDP: u8 = 17;

/// A MAC address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacAddr(pub [u8; 6]);

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// An Ethernet frame, with or without its FCS.
#[derive(Debug, Clone, Copy)]
pub struct FrameView<'a> {
    destination: MacAddr,
    source: MacAddr,
    ethertype: u16,
    payload: &'a [u8],
}

impl<'a> FrameView<'a> {
    /// Reads the header; tags are skipped, up to [`VLAN_TAGS_MAX`].
    pub fn new(frame: &'a [u8]) -> Option<Self> {
        let (destination, rest) = frame.split_first_chunk()?;
        let (source, mut rest) = rest.split_first_chunk()?;
        let mut ethertype = take_u16(&mut rest)?;
        for _ in 0..VLAN_TAGS_MAX {
            if ethertype != ETHERTYPE_VLAN && ethertype != ETHERTYPE_PROVIDER_VLAN {
                break;
            }
            take_u16(&mut rest)?;
            ethertype = take_u16(&mut rest)?;
        }
        let (destination, source) = (MacAddr(*destination), MacAddr(*source));
        Some(FrameView {
            destination,
            source,
            ethertype,
            payload: rest,
        })
    }

    /// Destination address.
    pub fn destination(&self) -> MacAddr {
        self.destination
    }

    /// Source address.
    pub fn source(&self) -> MacAddr {
        self.source
    }

    /// Type of the payload, behind the tags; a length when below 1536.
    pub fn ethertype(&self) -> u16 {
        self.ethertype
    }

    /// What follows the type: payload, padding and perhaps FCS.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// The IP packet in the frame.
    pub fn packet(&self) -> Option<Packet> {
        match self.ethertype {
            ETHERTYPE_IPV4 => ipv4(self.payload),
            ETHERTYPE_IPV6 => ipv6(self.payload),
            _ => None,
        }
    }
}

/// Which stream a packet belongs to, one direction of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowKey {
    /// IP protocol number of the transport.
    pub protocol: u8,
    /// Address of the sender.
    pub source: IpAddr,
    /// Address of the receiver.
    pub destination: IpAddr,
    /// Port of the sender; 0 without ports (other protocols, later fragments, cut short).
    pub source_port: u16,
    /// Port of the receiver; 0 likewise.
    pub destination_port: u16,
}

impl FlowKey {
    /// The other direction of the same stream.
    pub fn reversed(self) -> Self {
        FlowKey {
            protocol: self.protocol,
            source: self.destination,
            destination: self.source,
            source_port: self.destination_port,
            destination_port: self.source_port,
        }
    }
}

impl fmt::Display for FlowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.protocol {
            PROTOCOL_TCP => f.write_str("tcp ")?,
            PROTOCOL_UDP => f.write_str("udp ")?,
            other => write!(f, "ip{other} ")?,
        }
        let (from, to) = (self.source_port, self.destination_port);
        write!(f, "[{}]:{from} > [{}]:{to}", self.source, self.destination)
    }
}

/// Flags of a TCP header, low byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpFlags(pub u8);

impl TcpFlags {
    /// FIN.
    pub fn fin(self) -> bool {
        self.0 & 0x01 != 0
    }

    /// SYN.
    pub fn syn(self) -> bool {
        self.0 & 0x02 != 0
    }

    /// RST.
    pub fn rst(self) -> bool {
        self.0 & 0x04 != 0
    }

    /// ACK.
    pub fn ack(self) -> bool {
        self.0 & 0x10 != 0
    }
}

/// The TCP header's fields that tell first sending from retransmission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpHeader {
    /// Sequence number of the first payload byte.
    pub sequence: u32,
    /// Acknowledgement number.
    pub acknowledgement: u32,
    /// Flags.
    pub flags: TcpFlags,
    /// Window field, unscaled.
    pub window: u16,
}

/// An IP packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    /// Its stream.
    pub flow: FlowKey,
    /// Its TCP header, when it is TCP and has one.
    pub tcp: Option<TcpHeader>,
    /// Bytes behind the transport's header by the IP length field, so padding and a capture's cut do not
    /// count; behind the IP header for other protocols.
    pub payload: PayloadBytes,
}

/// Reads a frame's packet at once: `FrameView::new(frame)?.packet()`.
pub fn packet_of(frame: &[u8]) -> Option<Packet> {
    FrameView::new(frame)?.packet()
}

fn take_u16(bytes: &mut &[u8]) -> Option<u16> {
    let (head, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(u16::from_be_bytes(*head))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|b| u16::from_be_bytes(*b))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|b| u32::from_be_bytes(*b))
}

fn ipv4(bytes: &[u8]) -> Option<Packet> {
    let first = *bytes.first()?;
    let header = usize::from(first & 0x0f) * 4;
    if first >> 4 != 4 || header < 20 {
        return None;
    }
    let total = match u16_at(bytes, 2)? {
        // Left open by cards that cut large packets: then the bytes at hand are the packet.
        0 => bytes.len(),
        total => usize::from(total),
    };
    let later_fragment = u16_at(bytes, 6)? & 0x1fff != 0;
    let protocol = *bytes.get(9)?;
    let source = IpAddr::V4(Ipv4Addr::from_bits(u32_at(bytes, 12)?));
    let destination = IpAddr::V4(Ipv4Addr::from_bits(u32_at(bytes, 16)?));
    let inside = total.checked_sub(header)?;
    let transport = if later_fragment { None } else { bytes.get(header..) };
    Some(packet(protocol, source, destination, transport, inside))
}

fn ipv6(bytes: &[u8]) -> Option<Packet> {
    if bytes.first()? >> 4 != 6 {
        return None;
    }
    let mut next = *bytes.get(6)?;
    let source = IpAddr::V6(Ipv6Addr::from(*bytes.get(8..)?.first_chunk::<16>()?));
    let destination = IpAddr::V6(Ipv6Addr::from(*bytes.get(24..)?.first_chunk::<16>()?));
    let mut rest = bytes.get(40..)?;
    let mut inside = match u16_at(bytes, 4)? {
        0 => rest.len(),
        length => usize::from(length),
    };
    let mut later_fragment = false;
    for _ in 0..EXTENSIONS_MAX {
        let length = match next {
            // Hop-by-hop options, routing, destination options.
            0 | 43 | 60 => (usize::from(*rest.get(1)?) + 1) * 8,
            44 => {
                later_fragment = u16_at(rest, 2)? >> 3 != 0;
                8
            }
            // Authentication header.
            51 => (usize::from(*rest.get(1)?) + 2) * 4,
            _ => break,
        };
        next = *rest.first()?;
        rest = rest.get(length..)?;
        inside = inside.checked_sub(length)?;
        if later_fragment {
            break;
        }
    }
    Some(packet(
        next,
        source,
        destination,
        (!later_fragment).then_some(rest),
        inside,
    ))
}

/// `inside`: bytes behind the IP header and its extensions, by the length field.
fn packet(
    protocol: u8,
    source: IpAddr,
    destination: IpAddr,
    transport: Option<&[u8]>,
    inside: usize,
) -> Packet {
    let ports = transport
        .filter(|_| protocol == PROTOCOL_TCP || protocol == PROTOCOL_UDP)
        .and_then(|t| Some((u16_at(t, 0)?, u16_at(t, 2)?)));
    let (source_port, destination_port) = ports.unwrap_or((0, 0));
    let flow = FlowKey {
        protocol,
        source,
        destination,
        source_port,
        destination_port,
    };
    let (tcp, header) = match (protocol, transport) {
        (PROTOCOL_TCP, Some(transport)) => match tcp(transport).filter(|(_, header)| *header <= inside) {
            Some((tcp, header)) => (Some(tcp), header),
            None => (None, 0),
        },
        (PROTOCOL_UDP, Some(_)) => (None, 8),
        _ => (None, 0),
    };
    Packet {
        flow,
        tcp,
        payload: PayloadBytes::new(inside.saturating_sub(header) as u64),
    }
}

/// The header's fields and its length in bytes.
fn tcp(bytes: &[u8]) -> Option<(TcpHeader, usize)> {
    let length = usize::from(bytes.get(12)? >> 4) * 4;
    if length < 20 {
        return None;
    }
    let header = TcpHeader {
        sequence: u32_at(bytes, 4)?,
        acknowledgement: u32_at(bytes, 8)?,
        flags: TcpFlags(*bytes.get(13)?),
        window: u16_at(bytes, 14)?,
    };
    Some((header, length))
}
