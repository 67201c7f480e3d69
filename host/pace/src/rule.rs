//! What is paced at which rate: the first rule that a connection's far end matches is its own.
//!
//! ```toml
//! [[rule]]
//! to = "192.0.2.0/24"            # IPv4 or IPv6; without it: everywhere
//! port = 2811                    # of the far end; without it: every port
//! rate = "500M"                  # frame level (MAC header to FCS)
//! mode = "dynamic"               # cwnd * frame / RTT, `rate` is the bound; without it: static
//!
//! [[rule]]
//! cgroup = "/sys/fs/cgroup/bulk" # the processes of a control group (version 2) and those below
//! rate = "1G"
//! ```

use crate::PaceError;
use kuroshio_core::units::BitRate;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// Rules at a time: what the BPF program's map holds.
pub const MAX_RULES: usize = 64;
/// Largest file of rules that is read, bytes.
pub const MAX_TOML_BYTES: u64 = 1 << 20;
/// Slowest rate, bit/s: that of `psp`.
pub const RATE_MIN_BPS: u64 = 8_000;
/// Fastest rate, bit/s: that of `psp`. `fq` and `tcp` end below, see [`crate::Backend::rate_max_bps`].
pub const RATE_MAX_BPS: u64 = 800_000_000_000;

/// Addresses with the same first bits. IPv4 and IPv4-mapped IPv6 are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Prefix {
    address: IpAddr,
    bits: u8,
}

impl Prefix {
    /// The address, with zeros after the prefix.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Its length, bits.
    pub fn bits(&self) -> u8 {
        self.bits
    }

    /// Address and mask as 128 bits, IPv4 as `::ffff:a.b.c.d`.
    pub(crate) fn mapped(&self) -> (u128, u128) {
        let (address, bits) = match self.address {
            IpAddr::V4(v4) => (v4.to_ipv6_mapped().to_bits(), u32::from(self.bits) + 96),
            IpAddr::V6(v6) => (v6.to_bits(), u32::from(self.bits)),
        };
        (address, mask128(bits))
    }
}

fn mask128(bits: u32) -> u128 {
    u128::MAX.checked_shl(128 - bits.min(128)).unwrap_or(0)
}

impl FromStr for Prefix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = |why: &str| {
            format!(
                "`{}`: {why}; an address or a prefix such as 192.0.2.7, 192.0.2.0/24 or 2001:db8::/32 is valid",
                text.chars().take(64).collect::<String>()
            )
        };
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| bad("not an IP address"))?;
        let most: u8 = if address.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            None => most,
            Some(bits) if bits.bytes().all(|b| b.is_ascii_digit()) => match bits.parse() {
                Ok(bits) if bits <= most => bits,
                _ => return Err(bad("the prefix is too long")),
            },
            Some(_) => return Err(bad("the prefix's length is no number")),
        };
        let prefix = Self { address, bits };
        let (all, mask) = prefix.mapped();
        if all & !mask != 0 {
            return Err(bad("there are bits after the prefix"));
        }
        Ok(match address {
            // What the kernel calls IPv4, whatever it was written as.
            IpAddr::V6(v6) if bits >= 96 => match v6.to_ipv4_mapped() {
                Some(v4) => Self {
                    address: v4.into(),
                    bits: bits - 96,
                },
                None => prefix,
            },
            _ => prefix,
        })
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

impl TryFrom<String> for Prefix {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Prefix> for String {
    fn from(prefix: Prefix) -> Self {
        prefix.to_string()
    }
}

/// How a rule's rate is meant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The rate.
    #[default]
    Static,
    /// cwnd * frame / RTT of each connection; the rate is the bound.
    Dynamic,
}

/// Who is paced at which rate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Where to; `None` is everywhere.
    pub to: Option<Prefix>,
    /// Port of the far end; `None` is every port.
    pub port: Option<u16>,
    /// Control group of the processes; `None` is every process.
    pub cgroup: Option<PathBuf>,
    /// Frame level, bit/s.
    pub rate_bps: u64,
    /// How the rate is meant.
    #[serde(default)]
    pub mode: Mode,
}

impl Rule {
    /// Checks what a person wrote.
    ///
    /// # Errors
    /// A sentence: what, and what would be valid.
    pub fn check(&self) -> Result<(), String> {
        if !(RATE_MIN_BPS..=RATE_MAX_BPS).contains(&self.rate_bps) {
            return Err(format!("rate of {} bit/s: 8kbps to 800G is valid", self.rate_bps));
        }
        if self.port == Some(0) {
            return Err("port 0: 1 to 65535 is valid".into());
        }
        if let Some(path) = self.cgroup.as_ref().filter(|p| !p.is_absolute()) {
            return Err(format!(
                "cgroup `{}`: an absolute path is valid, such as /sys/fs/cgroup/bulk",
                path.display()
            ));
        }
        Ok(())
    }

    /// Address and mask that the far end must match, as 128 bits.
    pub(crate) fn mapped(&self) -> (u128, u128) {
        self.to.map_or((0, 0), |prefix| prefix.mapped())
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.to {
            Some(prefix) => write!(f, "to {prefix}")?,
            None => f.write_str("to everywhere")?,
        }
        if let Some(port) = self.port {
            write!(f, " port {port}")?;
        }
        if let Some(cgroup) = &self.cgroup {
            write!(f, " from {}", cgroup.display())?;
        }
        let rate = BitRate::new(self.rate_bps).map_or_else(|| "0".to_owned(), |r| r.to_string());
        match self.mode {
            Mode::Static => write!(f, ": {rate}"),
            Mode::Dynamic => write!(f, ": cwnd / RTT, {rate} at most"),
        }
    }
}

/// A rule as a person writes it in a file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    to: Option<String>,
    port: Option<u16>,
    cgroup: Option<PathBuf>,
    rate: String,
    #[serde(default)]
    mode: Mode,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    rule: Vec<Written>,
}

/// Rules from the text of a file.
///
/// # Errors
/// [`PaceError::BadInput`]: the line or the rule, and what would be valid.
pub fn rules_from_toml(text: &str) -> Result<Vec<Rule>, PaceError> {
    let file: File = toml::from_str(text).map_err(|e| PaceError::BadInput(e.to_string()))?;
    let mut rules = Vec::new();
    for (i, written) in file.rule.into_iter().enumerate() {
        let bad = |why: String| PaceError::BadInput(format!("rule {}: {why}", i + 1));
        let rate: BitRate = written.rate.parse().map_err(|e| bad(format!("rate: {e}")))?;
        let to = written.to.map(|text| text.parse()).transpose();
        let rule = Rule {
            to: to.map_err(|e: String| bad(format!("to {e}")))?,
            port: written.port,
            cgroup: written.cgroup,
            rate_bps: rate.bps(),
            mode: written.mode,
        };
        rule.check().map_err(bad)?;
        rules.push(rule);
    }
    check_all(&rules)?;
    Ok(rules)
}

/// Checks a list of rules.
///
/// # Errors
/// [`PaceError::BadInput`].
pub(crate) fn check_all(rules: &[Rule]) -> Result<(), PaceError> {
    if rules.is_empty() || rules.len() > MAX_RULES {
        return Err(PaceError::BadInput(format!(
            "{} rules: 1 to {MAX_RULES} are valid",
            rules.len()
        )));
    }
    for (i, rule) in rules.iter().enumerate() {
        rule.check()
            .map_err(|why| PaceError::BadInput(format!("rule {}: {why}", i + 1)))?;
    }
    Ok(())
}

/// Whether a far end matches, as the BPF program and the filters decide it.
#[cfg(test)]
pub(crate) fn matches(rule: &Rule, address: IpAddr, port: u16) -> bool {
    let (to, mask) = rule.mapped();
    let address = match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    (address.to_bits() ^ to) & mask == 0 && rule.port.is_none_or(|p| p == port)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(to: &str) -> Rule {
        Rule {
            to: Some(to.parse().expect("prefix")),
            port: None,
            cgroup: None,
            rate_bps: 1_000_000,
            mode: Mode::Static,
        }
    }

    #[test]
    fn prefixes_are_read_and_wrong_ones_refused() {
        for (text, shown) in [
            ("192.0.2.7", "192.0.2.7/32"),
            ("192.0.2.0/24", "192.0.2.0/24"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("2001:db8::/32", "2001:db8::/32"),
            ("::1", "::1/128"),
            ("::/0", "::/0"),
            ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
        ] {
            let prefix: Prefix = text.parse().expect(text);
            assert_eq!(prefix.to_string(), shown);
        }
        for (text, why) in [
            ("192.0.2.1/24", "bits after"),
            ("192.0.2.0/33", "too long"),
            ("2001:db8::/129", "too long"),
            ("2001:db8::1/64", "bits after"),
            ("192.0.2.0/", "too long"),
            ("192.0.2.0/+8", "no number"),
            ("host", "not an IP"),
            ("", "not an IP"),
        ] {
            let e = text.parse::<Prefix>().expect_err(text);
            assert!(e.contains(why) && e.contains("is valid"), "{text}: {e}");
        }
    }

    #[test]
    fn a_far_end_is_matched_in_either_family() {
        let cases = [
            ("10.0.0.0/8", "10.255.0.1", true),
            ("10.0.0.0/8", "11.0.0.1", false),
            ("10.0.0.0/8", "::ffff:10.0.0.1", true),
            ("10.0.0.0/8", "::a00:1", false),
            ("2001:db8::/33", "2001:db8:7fff::1", true),
            ("2001:db8::/33", "2001:db8:8000::1", false),
            ("::/0", "10.0.0.1", true),
            ("0.0.0.0/0", "2001:db8::1", false),
        ];
        for (to, address, expected) in cases {
            assert_eq!(
                matches(&rule(to), address.parse().expect("address"), 1),
                expected,
                "{to} {address}"
            );
        }
        let mut one = rule("::/0");
        one.port = Some(80);
        assert!(matches(&one, "::1".parse().expect("address"), 80));
        assert!(!matches(&one, "::1".parse().expect("address"), 81));
    }

    #[test]
    fn a_file_of_rules_is_read_and_a_wrong_one_refused() {
        let text = "[[rule]]\nto = \"192.0.2.0/24\"\nport = 2811\nrate = \"500M\"\n\
                    [[rule]]\ncgroup = \"/sys/fs/cgroup/bulk\"\nrate = \"1G\"\nmode = \"dynamic\"\n";
        let rules = rules_from_toml(text).expect("rules");
        assert_eq!(rules[0].to_string(), "to 192.0.2.0/24 port 2811: 500Mbps");
        assert_eq!(
            rules[1].to_string(),
            "to everywhere from /sys/fs/cgroup/bulk: cwnd / RTT, 1Gbps at most"
        );
        for (text, why) in [
            ("", "rule"),
            ("rule = []", "1 to 64"),
            ("[[rule]]\nrate = \"500\"", "rule 1: rate"),
            ("[[rule]]\nrate = \"1kbps\"", "8kbps to 800G"),
            ("[[rule]]\nrate = \"900G\"", "8kbps to 800G"),
            ("[[rule]]\nrate = 500", "string"),
            ("[[rule]]\nrate = \"1M\"\nport = 0", "1 to 65535"),
            ("[[rule]]\nrate = \"1M\"\nport = 65536", "65536"),
            ("[[rule]]\nrate = \"1M\"\ncgroup = \"bulk\"", "absolute"),
            ("[[rule]]\nrate = \"1M\"\nto = \"x\"", "not an IP"),
            ("[[rule]]\nrate = \"1M\"\nmode = \"fast\"", "fast"),
            ("[[rule]]\nrate = \"1M\"\nspeed = 1", "speed"),
        ] {
            let e = rules_from_toml(text).expect_err(text).to_string();
            assert!(e.contains(why), "{text}: {e}");
        }
        let many = "[[rule]]\nrate = \"1M\"\n".repeat(MAX_RULES + 1);
        assert!(rules_from_toml(&many).is_err());
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_panic(text in ".{0,80}") {
            let _ = text.parse::<Prefix>();
            let _ = rules_from_toml(&text);
        }
    }
}
