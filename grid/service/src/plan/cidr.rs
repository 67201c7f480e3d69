//! Networks as a plan names them: an address and the length of its prefix.

use std::net::IpAddr;
use std::str::FromStr;

/// Addresses with a common prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cidr {
    bits: u128,
    /// Length of the prefix, bits.
    pub(super) len: u32,
    width: u32,
}

impl Cidr {
    /// Whether an address has the prefix.
    pub(super) fn contains(&self, address: IpAddr) -> bool {
        let (bits, width) = bits_of(address);
        width == self.width && (self.len == 0 || (bits ^ self.bits) >> (width - self.len) == 0)
    }
}

fn bits_of(address: IpAddr) -> (u128, u32) {
    match address.to_canonical() {
        IpAddr::V4(v4) => (u128::from(v4.to_bits()), 32),
        IpAddr::V6(v6) => (v6.to_bits(), 128),
    }
}

impl FromStr for Cidr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid =
            || format!("`{text}` is not a CIDR: 192.0.2.0/24, 2001:db8::/32 or one address are valid");
        let (address, len) = match text.split_once('/') {
            Some((address, len)) => (address, Some(len)),
            None => (text, None),
        };
        let (bits, width) = bits_of(address.parse().map_err(|_| invalid())?);
        let len = match len {
            None => width,
            Some(len) => len
                .parse::<u32>()
                .ok()
                .filter(|l| *l <= width)
                .ok_or_else(invalid)?,
        };
        // The bits of the host part: the lowest `width - len`.
        let beyond = bits & u128::MAX.checked_shr(128 - (width - len)).unwrap_or(0);
        if beyond != 0 {
            return Err(format!("`{text}` has bits set beyond its prefix of {len}"));
        }
        Ok(Self { bits, len, width })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cidrs_match() {
        let table = [
            ("10.1.0.0/16", "10.1.255.1", true),
            ("10.1.0.0/16", "10.2.0.1", false),
            ("0.0.0.0/0", "1.2.3.4", true),
            ("0.0.0.0/0", "::1", false),
            ("::/0", "2001:db8::1", true),
            ("2001:db8::/32", "2001:db8:1::", true),
            ("2001:db8::/32", "2001:db9::", false),
            ("192.0.2.1", "192.0.2.1", true),
            ("192.0.2.1", "192.0.2.2", false),
            ("::1", "::1", true),
            ("::1/128", "::2", false),
            ("10.1.0.0/16", "::ffff:10.1.2.3", true),
        ];
        for (cidr, address, contains) in table {
            let parsed = cidr.parse::<Cidr>().expect(cidr);
            assert_eq!(
                parsed.contains(address.parse().expect(address)),
                contains,
                "{cidr} {address}"
            );
        }
        for bad in [
            "",
            "10.1.0.0/33",
            "10.1.2.0/16",
            "x/8",
            "::/129",
            "10.0.0.0/-1",
            "1.2.3.4/0",
        ] {
            assert!(bad.parse::<Cidr>().is_err(), "{bad}");
        }
    }
}
