//! Which addresses a third-party copy may reach.
//!
//! A gateway that fetches what a stranger names could be made to speak to services that only it can reach
//! (server-side request forgery). So an address must be *global*: the special-purpose registries of IANA (RFC 6890)
//! list what is not. The rule is applied to the address that is dialled, after the name was resolved, and again at
//! each redirect. Networks that the configuration names are allowed all the same.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// Addresses with a common prefix, as `192.0.2.0/24`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    prefix_bits: u32,
}

impl Network {
    /// Whether an address has the prefix.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(net), IpAddr::V4(a)) => {
                self.prefix_bits == 0 || (net.to_bits() ^ a.to_bits()) >> (32 - self.prefix_bits) == 0
            }
            (IpAddr::V6(net), IpAddr::V6(a)) => {
                self.prefix_bits == 0 || (net.to_bits() ^ a.to_bits()) >> (128 - self.prefix_bits) == 0
            }
            _ => false,
        }
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = || format!("`{text}` is not a network: 10.1.0.0/16, fd00::/8 or one address are valid");
        let (address, bits) = text.split_once('/').map_or((text, None), |(a, b)| (a, Some(b)));
        let address = address.parse::<IpAddr>().map_err(|_| invalid())?;
        let width = if address.is_ipv4() { 32 } else { 128 };
        let prefix_bits = match bits {
            None => width,
            Some(bits) => bits.parse().ok().filter(|b| *b <= width).ok_or_else(invalid)?,
        };
        Ok(Self { address, prefix_bits })
    }
}

/// The networks that are not global (IPv4).
const INTERNAL_V4: [(Ipv4Addr, u32); 15] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8),
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    (Ipv4Addr::new(127, 0, 0, 0), 8),
    (Ipv4Addr::new(169, 254, 0, 0), 16),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    (Ipv4Addr::new(192, 0, 0, 0), 24),
    (Ipv4Addr::new(192, 0, 2, 0), 24),
    (Ipv4Addr::new(192, 88, 99, 0), 24),
    (Ipv4Addr::new(192, 168, 0, 0), 16),
    (Ipv4Addr::new(198, 18, 0, 0), 15),
    (Ipv4Addr::new(198, 51, 100, 0), 24),
    (Ipv4Addr::new(203, 0, 113, 0), 24),
    (Ipv4Addr::new(224, 0, 0, 0), 4),
    (Ipv4Addr::new(240, 0, 0, 0), 4),
];

/// Of IPv6 only 2000::/3 is given out as global; these parts of it are not.
const INTERNAL_V6: [(Ipv6Addr, u32); 3] = [
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23),
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32),
    // 6to4: an IPv4 address inside, which would need a look of its own.
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16),
];

/// Whether an address is reachable from everywhere.
pub fn is_global(address: IpAddr) -> bool {
    let within = |address: IpAddr, net: IpAddr, prefix_bits: u32| {
        let net = Network {
            address: net,
            prefix_bits,
        };
        net.contains(address)
    };
    match address.to_canonical() {
        IpAddr::V4(a) => !INTERNAL_V4
            .iter()
            .any(|(net, bits)| within(a.into(), (*net).into(), *bits)),
        IpAddr::V6(a) => {
            let given_out = a.segments()[0] & 0xe000 == 0x2000;
            given_out
                && !INTERNAL_V6
                    .iter()
                    .any(|(net, bits)| within(a.into(), (*net).into(), *bits))
        }
    }
}

/// Whether a third-party copy may reach an address.
pub fn may_reach(address: IpAddr, allow: &[Network]) -> bool {
    is_global(address) || allow.iter().any(|net| net.contains(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn internal_addresses_are_known() {
        for internal in [
            "127.0.0.1",
            "127.255.255.254",
            "10.0.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "224.0.0.1",
            "255.255.255.255",
            "::1",
            "::",
            "fe80::1",
            "fd00::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "2001:db8::1",
        ] {
            assert!(!is_global(internal.parse().expect(internal)), "{internal}");
        }
        for global in [
            "1.1.1.1",
            "172.15.0.1",
            "172.32.0.1",
            "192.0.3.1",
            "2606:4700::1111",
            "::ffff:1.1.1.1",
        ] {
            assert!(is_global(global.parse().expect(global)), "{global}");
        }
    }

    #[test]
    fn networks_are_read_and_allow() {
        let allow = ["127.0.0.0/8".parse().expect("network")];
        assert!(may_reach("127.0.0.1".parse().expect("address"), &allow));
        assert!(!may_reach("::1".parse().expect("address"), &allow));
        assert!(!may_reach("10.0.0.1".parse().expect("address"), &allow));
        let all = ["0.0.0.0/0".parse().expect("network")];
        assert!(may_reach("10.0.0.1".parse().expect("address"), &all));
        for bad in [
            "",
            "x",
            "10.0.0.0/33",
            "10.0.0.0/-1",
            "10.0.0/8",
            "::/129",
            "1.2.3.4/",
        ] {
            assert!(bad.parse::<Network>().is_err(), "{bad}");
        }
    }
}
