//! Headers rewritten in passing, before the queue.
//!
//! | rewrite | what it does |
//! |---|---|
//! | [`Rewrite::PushTag`] | an 802.1Q tag behind the addresses; the frame is 4 bytes longer |
//! | [`Rewrite::PopTag`] | takes the outermost tag off; a frame without one passes unchanged |
//! | [`Rewrite::Mac`] | replaces source or destination MAC |
//! | [`Rewrite::Address`] | replaces an IP address, as source or destination, and keeps the checksums of IPv4, TCP, UDP and ICMPv6 right |
//!
//! Sources: IEEE 802.1Q; RFC 1624 (checksums); RFC 768 (a UDP checksum of 0 means none, a computed 0 is sent as
//! 0xffff); RFC 4443 (ICMPv6 covers the addresses, ICMP does not).

use super::{
    cargo::Cargo,
    header::{self, Network, TAG, TAG_BYTES, TYPE_AT, network, put, transport, update, word},
};
use crate::wire::{MacAddr, PROTOCOL_TCP, PROTOCOL_UDP};
use core::net::IpAddr;

/// Most rewrites of a link.
pub const MAX_REWRITES: usize = 32;
/// Largest VLAN number.
pub const MAX_VLAN: u16 = 4_094;

const PROTOCOL_ICMP_V6: u8 = 58;

/// One rewrite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rewrite {
    /// Adds a tag.
    PushTag {
        /// VLAN, 1 to [`MAX_VLAN`].
        vlan: u16,
        /// Priority (PCP), 0 to 7.
        priority: u8,
    },
    /// Removes the outermost tag.
    PopTag,
    /// Replaces MAC addresses.
    Mac {
        /// The source, when given.
        source: Option<MacAddr>,
        /// The destination, when given.
        destination: Option<MacAddr>,
    },
    /// Replaces an IP address by another of the same version.
    Address {
        /// What is there.
        from: IpAddr,
        /// What is put there.
        to: IpAddr,
    },
}

impl Rewrite {
    /// Does it to a frame; `false` when the frame is not one that it changes.
    pub fn apply(&self, cargo: &mut impl Cargo) -> bool {
        match *self {
            Rewrite::PushTag { vlan, priority } => push(cargo, vlan, priority),
            Rewrite::PopTag => pop(cargo),
            Rewrite::Mac { source, destination } => {
                let frame = cargo.bytes_mut();
                let to = destination.is_some_and(|mac| mac_at(frame, 0, mac));
                let from = source.is_some_and(|mac| mac_at(frame, 6, mac));
                to || from
            }
            Rewrite::Address { from, to } => address(cargo.bytes_mut(), from, to),
        }
    }
}

fn mac_at(frame: &mut [u8], at: usize, mac: MacAddr) -> bool {
    match frame.get_mut(at..).and_then(|f| f.first_chunk_mut()) {
        Some(place) => {
            *place = mac.0;
            true
        }
        None => false,
    }
}

fn push(cargo: &mut impl Cargo, vlan: u16, priority: u8) -> bool {
    let len = cargo.bytes().len();
    if len < TYPE_AT + 2 || !cargo.resize(len + TAG_BYTES) {
        return false;
    }
    let frame = cargo.bytes_mut();
    frame.copy_within(TYPE_AT..len, TYPE_AT + TAG_BYTES);
    put(frame, TYPE_AT, TAG);
    put(frame, TYPE_AT + 2, u16::from(priority & 7) << 13 | vlan & 0xfff);
    true
}

fn pop(cargo: &mut impl Cargo) -> bool {
    let len = cargo.bytes().len();
    let tagged = matches!(word(cargo.bytes(), TYPE_AT), Some(TAG | header::PROVIDER_TAG));
    if !tagged || len < TYPE_AT + TAG_BYTES + 2 {
        return false;
    }
    cargo.bytes_mut().copy_within(TYPE_AT + TAG_BYTES..len, TYPE_AT);
    cargo.resize(len - TAG_BYTES)
}

fn address(frame: &mut [u8], from: IpAddr, to: IpAddr) -> bool {
    let Some(found) = network(frame) else {
        return false;
    };
    match (found, from, to) {
        (Network::V4(at), IpAddr::V4(from), IpAddr::V4(to)) => {
            let places = [at + 12, at + 16];
            replace(frame, found, Some(at + 10), places, from.octets(), to.octets())
        }
        (Network::V6(at), IpAddr::V6(from), IpAddr::V6(to)) => {
            let places = [at + 8, at + 24];
            replace(frame, found, None, places, from.octets(), to.octets())
        }
        _ => false,
    }
}

fn replace<const N: usize>(
    frame: &mut [u8],
    found: Network,
    own: Option<usize>,
    places: [usize; 2],
    from: [u8; N],
    to: [u8; N],
) -> bool {
    let mut replaced = false;
    for at in places {
        let here = frame.get(at..).and_then(|f| f.first_chunk::<N>());
        if here != Some(&from) {
            continue;
        }
        let covering = checksum_of_transport(frame, found);
        for index in (0..N).step_by(2) {
            let (Some(old), Some(new)) = (word(&from, index), word(&to, index)) else {
                continue;
            };
            put(frame, at + index, new);
            if let Some(own) = own {
                update(frame, own, old, new);
            }
            if let Some((at, _)) = covering {
                update(frame, at, old, new);
            }
        }
        if let Some((at, true)) = covering
            && word(frame, at) == Some(0)
        {
            put(frame, at, 0xffff);
        }
        replaced = true;
    }
    replaced
}

/// Where the checksum is that covers the addresses too, and whether it is UDP's.
fn checksum_of_transport(frame: &[u8], found: Network) -> Option<(usize, bool)> {
    let (protocol, at) = transport(frame, found)?;
    match (protocol, found) {
        (PROTOCOL_TCP, _) => Some((at + 16, false)),
        (PROTOCOL_UDP, _) if word(frame, at + 6)? != 0 => Some((at + 6, true)),
        (PROTOCOL_ICMP_V6, Network::V6(_)) => Some((at + 2, false)),
        _ => None,
    }
}
