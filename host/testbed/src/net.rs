//! An address with its prefix.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// An IP address in its subnet, `10.1.1.1/24` or `fd00:1::1/64`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Net {
    /// The address.
    pub ip: IpAddr,
    /// Bits of the subnet.
    pub prefix: u8,
}

impl Net {
    /// The address with all bits after the prefix zero.
    #[must_use]
    pub fn subnet(&self) -> Net {
        let ip = match self.ip {
            IpAddr::V4(ip) => {
                let mask = u32::MAX
                    .checked_shl(32 - u32::from(self.prefix.min(32)))
                    .unwrap_or(0);
                IpAddr::V4(Ipv4Addr::from_bits(ip.to_bits() & mask))
            }
            IpAddr::V6(ip) => {
                let mask = u128::MAX
                    .checked_shl(128 - u32::from(self.prefix.min(128)))
                    .unwrap_or(0);
                IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() & mask))
            }
        };
        Net {
            ip,
            prefix: self.prefix,
        }
    }

    /// Whether two addresses are in one subnet.
    #[must_use]
    pub fn same_subnet(&self, other: &Net) -> bool {
        self.subnet() == other.subnet()
    }
}

impl FromStr for Net {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is not an address with a prefix, such as 10.1.1.1/24 or fd00:1::1/64");
        let (ip, prefix) = text.split_once('/').ok_or_else(bad)?;
        let ip: IpAddr = ip.parse().map_err(|_| bad())?;
        let prefix: u8 = prefix.parse().map_err(|_| bad())?;
        let most = if ip.is_ipv4() { 32 } else { 128 };
        if prefix == 0 || prefix > most {
            return Err(format!("{text:?}: the prefix must be 1 to {most}"));
        }
        Ok(Net { ip, prefix })
    }
}

impl fmt::Display for Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> Net {
        text.parse().expect(text)
    }

    #[test]
    fn subnets() {
        assert_eq!(net("10.1.1.9/24").subnet(), net("10.1.1.0/24"));
        assert_eq!(net("10.1.1.9/32").subnet(), net("10.1.1.9/32"));
        assert_eq!(net("fd00:1::9/64").subnet(), net("fd00:1::/64"));
        assert!(net("10.1.1.1/24").same_subnet(&net("10.1.1.2/24")));
        assert!(!net("10.1.1.1/24").same_subnet(&net("10.1.2.2/24")));
        assert!(!net("10.1.1.1/24").same_subnet(&net("10.1.1.2/25")));
    }

    #[test]
    fn nonsense_is_refused_with_an_example() {
        for text in [
            "",
            "10.1.1.1",
            "10.1.1/24",
            "10.1.1.1/33",
            "10.1.1.1/0",
            "x/8",
            "::1/129",
        ] {
            let error = text.parse::<Net>().expect_err(text);
            assert!(error.contains("prefix"), "{text}: {error}");
        }
    }
}
