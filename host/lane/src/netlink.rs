//! The tunnel's interface: up, its MTU, its addresses.

use std::io;
use std::net::IpAddr;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

/// Sets an interface of the calling thread's namespace up with an MTU, and gives it addresses.
pub(crate) fn configure(index: u32, mtu: u32, addresses: &[(IpAddr, u8)]) -> io::Result<()> {
    set_mtu(index, mtu)?;
    for (ip, prefix) in addresses {
        let mut message = AddressMessage::default();
        message.header.family = match ip {
            IpAddr::V4(_) => AddressFamily::Inet,
            IpAddr::V6(_) => AddressFamily::Inet6,
        };
        message.header.prefix_len = *prefix;
        message.header.index = index;
        // The two ends' files say who has which address: nobody has to be asked for a second.
        message.header.flags = AddressHeaderFlags::Nodad;
        message.attributes = vec![AddressAttribute::Local(*ip), AddressAttribute::Address(*ip)];
        request(
            RouteNetlinkMessage::NewAddress(message),
            NLM_F_CREATE | NLM_F_REPLACE,
        )?;
    }
    Ok(())
}

/// Sets an interface up with an MTU, from which the kernel answers packets that are too large.
pub(crate) fn set_mtu(index: u32, mtu: u32) -> io::Result<()> {
    let mut link = LinkMessage::default();
    link.header.index = index;
    link.header.flags = LinkFlags::Up;
    link.header.change_mask = LinkFlags::Up;
    link.attributes = vec![LinkAttribute::Mtu(mtu)];
    request(RouteNetlinkMessage::SetLink(link), 0)
}

fn request(message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | NLM_F_ACK | flags;
    header.sequence_number = 1;
    let mut packet = NetlinkMessage::new(header, NetlinkPayload::from(message));
    packet.finalize();
    let mut bytes = vec![0; packet.buffer_len()];
    packet.serialize(&mut bytes);
    socket.send(&bytes, 0)?;
    let (answer, _) = socket.recv_from_full()?;
    let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&answer)
        .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, format!("netlink: {e}")))?;
    match answer.payload {
        NetlinkPayload::Error(error) if error.code.is_some() => Err(error.to_io()),
        _ => Ok(()),
    }
}
