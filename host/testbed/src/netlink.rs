//! Configuring a namespace's devices: a netlink socket and the few requests that the testbed makes.
//!
//! The socket belongs to the namespace in which it was opened, whichever thread uses it later.

use std::io;
use std::net::IpAddr;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage, Stats64};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

/// A route netlink socket.
pub(crate) struct Netlink {
    socket: Socket,
    sequence: u32,
}

impl Netlink {
    /// Opens a socket in the calling thread's network namespace.
    pub(crate) fn open_here() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self { socket, sequence: 0 })
    }

    /// The index of an interface.
    pub(crate) fn index(&mut self, name: &str) -> io::Result<u32> {
        Ok(self.link(name)?.header.index)
    }

    /// The kernel's counters of an interface.
    pub(crate) fn stats(&mut self, name: &str) -> io::Result<Stats64> {
        self.link(name)?
            .attributes
            .into_iter()
            .find_map(|a| match a {
                LinkAttribute::Stats64(stats) => Some(stats),
                _ => None,
            })
            .ok_or_else(|| invalid(format!("interface {name}: no counters in the answer")))
    }

    fn link(&mut self, name: &str) -> io::Result<LinkMessage> {
        let mut ask = LinkMessage::default();
        ask.attributes.push(LinkAttribute::IfName(name.to_owned()));
        match self.request(RouteNetlinkMessage::GetLink(ask), 0)? {
            Some(RouteNetlinkMessage::NewLink(link)) => Ok(link),
            _ => Err(invalid(format!("interface {name}: no answer"))),
        }
    }

    /// Sets an interface up, with some attributes.
    pub(crate) fn set_up(&mut self, index: u32, attributes: Vec<LinkAttribute>) -> io::Result<()> {
        let mut link = LinkMessage::default();
        link.header.index = index;
        link.header.flags = LinkFlags::Up;
        link.header.change_mask = LinkFlags::Up;
        link.attributes = attributes;
        self.request(RouteNetlinkMessage::SetLink(link), NLM_F_ACK)?;
        Ok(())
    }

    /// Changes attributes of an interface that is down.
    pub(crate) fn change(&mut self, index: u32, attributes: Vec<LinkAttribute>) -> io::Result<()> {
        let mut link = LinkMessage::default();
        link.header.index = index;
        link.attributes = attributes;
        self.request(RouteNetlinkMessage::SetLink(link), NLM_F_ACK)?;
        Ok(())
    }

    /// Gives an interface an address.
    pub(crate) fn add_address(&mut self, index: u32, ip: IpAddr, prefix: u8) -> io::Result<()> {
        let mut address = AddressMessage::default();
        address.header.family = family(ip);
        address.header.prefix_len = prefix;
        address.header.index = index;
        address.attributes = vec![AddressAttribute::Local(ip), AddressAttribute::Address(ip)];
        let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE;
        self.request(RouteNetlinkMessage::NewAddress(address), flags)?;
        Ok(())
    }

    /// Tells an interface for good which hardware address has an IP address.
    pub(crate) fn add_neighbour(&mut self, index: u32, ip: IpAddr, mac: [u8; 6]) -> io::Result<()> {
        let mut entry = NeighbourMessage::default();
        entry.header.family = family(ip);
        entry.header.ifindex = index;
        entry.header.state = NeighbourState::Permanent;
        let destination = match ip {
            IpAddr::V4(ip) => NeighbourAddress::Inet(ip),
            IpAddr::V6(ip) => NeighbourAddress::Inet6(ip),
        };
        entry.attributes = vec![
            NeighbourAttribute::Destination(destination),
            NeighbourAttribute::LinkLayerAddress(mac.to_vec()),
        ];
        let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE;
        self.request(RouteNetlinkMessage::NewNeighbour(entry), flags)?;
        Ok(())
    }

    /// Sends a request and returns the answer's message, or `None` for a bare acknowledgement.
    fn request(
        &mut self,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> io::Result<Option<RouteNetlinkMessage>> {
        self.sequence += 1;
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let mut packet = NetlinkMessage::new(header, NetlinkPayload::from(message));
        packet.finalize();
        let mut bytes = vec![0; packet.buffer_len()];
        packet.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        loop {
            let (answer, _) = self.socket.recv_from_full()?;
            let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&answer)
                .map_err(|e| invalid(format!("netlink: {e}")))?;
            if answer.header.sequence_number != self.sequence {
                continue;
            }
            return match answer.payload {
                NetlinkPayload::Error(error) if error.code.is_some() => Err(error.to_io()),
                NetlinkPayload::InnerMessage(inner) => Ok(Some(inner)),
                _ => Ok(None),
            };
        }
    }
}

fn family(ip: IpAddr) -> AddressFamily {
    match ip {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    }
}

fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}
