//! A ticket: all that a client needs to speak to a service, on one line without blanks:
//!
//! ```text
//! kuroshio1,HOST:PORT,sha256//BASE64=,TOKEN
//! ```
//!
//! `HOST` is a name, an IPv4 address, or an IPv6 address in brackets. Services beside each other that share one
//! key have their addresses joined by `+`: `HOST:PORT+HOST:PORT`, at most [`MAX_ADDRESSES`]. It is a secret: it
//! goes from standard output to standard input, never through argv.

use std::fmt;
use std::str::FromStr;

use crate::pin::Pin;
use crate::token::MAX_TOKEN_BYTES;

/// Longest ticket that is read.
pub const MAX_TICKET_BYTES: usize = 8192;
/// Most addresses of one ticket.
pub const MAX_ADDRESSES: usize = 16;
/// Longest host name (RFC 1035).
const MAX_HOST_BYTES: usize = 253;
const MAGIC: &str = "kuroshio1";

/// Why a line is not a ticket.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "not a ticket: {0}; a ticket is one line `kuroshio1,HOST:PORT,sha256//PIN,TOKEN`, as `kuroshio serve` prints it"
)]
pub struct TicketError(String);

/// Addresses, pin and token of a service.
#[derive(Clone, PartialEq, Eq)]
pub struct Ticket {
    addresses: String,
    pin: Pin,
    token: String,
}

impl Ticket {
    /// A ticket from its parts; all are checked. `addresses` is one, or several joined by `+`.
    pub fn new(addresses: &str, pin: Pin, token: String) -> Result<Self, TicketError> {
        check_addresses(addresses).map_err(TicketError)?;
        if token.len() > MAX_TOKEN_BYTES {
            return Err(TicketError(format!(
                "its token is longer than {MAX_TOKEN_BYTES} bytes"
            )));
        }
        let parts = token.split('.').collect::<Vec<_>>();
        let is_word =
            |p: &&str| !p.is_empty() && p.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b));
        if parts.len() != 3 || !parts.iter().all(is_word) {
            return Err(TicketError(
                "its token is not three base64url words joined by dots".into(),
            ));
        }
        Ok(Self {
            addresses: addresses.to_owned(),
            pin,
            token,
        })
    }

    /// `HOST:PORT`, the first if there are several.
    pub fn address(&self) -> &str {
        self.addresses.split('+').next().unwrap_or_default()
    }

    /// All addresses, joined by `+`.
    pub fn addresses(&self) -> &str {
        &self.addresses
    }

    /// The service's key.
    pub fn pin(&self) -> Pin {
        self.pin
    }

    /// The secret token.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// The ticket as one line, secret included.
    pub fn to_line(&self) -> String {
        format!("{MAGIC},{},{},{}", self.addresses, self.pin, self.token)
    }
}

/// Never shows the token: a ticket may reach a log.
impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ticket({}, {}, token hidden)", self.addresses, self.pin)
    }
}

impl FromStr for Ticket {
    type Err = TicketError;

    fn from_str(line: &str) -> Result<Self, TicketError> {
        let line = line.trim();
        if line.len() > MAX_TICKET_BYTES {
            return Err(TicketError(format!("longer than {MAX_TICKET_BYTES} bytes")));
        }
        let parts = line.split(',').collect::<Vec<_>>();
        let [magic, address, pin, token] = parts.as_slice() else {
            return Err(TicketError(format!(
                "{} parts between commas instead of 4",
                parts.len()
            )));
        };
        if *magic != MAGIC {
            return Err(TicketError(format!("it does not begin with `{MAGIC}`")));
        }
        Self::new(address, pin.parse().map_err(TicketError)?, (*token).to_owned())
    }
}

/// Checks one address, or several joined by `+`; none twice, at most [`MAX_ADDRESSES`].
pub fn check_addresses(addresses: &str) -> Result<(), String> {
    let all = addresses.split('+').collect::<Vec<_>>();
    if all.len() > MAX_ADDRESSES {
        return Err(format!(
            "{} addresses; at most {MAX_ADDRESSES} are valid",
            all.len()
        ));
    }
    for (i, address) in all.iter().enumerate() {
        check_address(address)?;
        if all.iter().take(i).any(|earlier| earlier == address) {
            return Err(format!("the address {address} stands there twice"));
        }
    }
    Ok(())
}

/// Checks `HOST:PORT`: a name, an IPv4 address or a bracketed IPv6 address, and a port of 1..=65535.
pub fn check_address(address: &str) -> Result<(), String> {
    let valid = "an address is HOST:PORT, 192.0.2.1:PORT or [2001:db8::1]:PORT";
    let Some((host, port)) = address.rsplit_once(':') else {
        return Err(format!("`{address}` has no port: {valid}"));
    };
    if port.parse::<u16>().ok().filter(|p| *p > 0).is_none() || !port.bytes().all(|b| b.is_ascii_digit()) {
        return Err(format!("`{port}` is not a port (1 to 65535): {valid}"));
    }
    if let Some(v6) = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')) {
        // A scope (`%eth0`) may follow a link-local address.
        let bare = v6.split_once('%').map_or(v6, |(a, _)| a);
        return match bare.parse::<std::net::Ipv6Addr>() {
            Ok(_) if v6.bytes().all(|b| b.is_ascii_graphic() && b != b',') => Ok(()),
            _ => Err(format!("`{v6}` is not an IPv6 address: {valid}")),
        };
    }
    let is_name = |h: &str| {
        h.bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b))
    };
    if host.is_empty() || host.len() > MAX_HOST_BYTES || !is_name(host) {
        return Err(format!("`{host}` is not a host: {valid}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bad_tickets_say_why() {
        let pin = Pin::of_spki(b"k");
        let table = [
            ("".to_owned(), "1 parts"),
            (format!("kuroshio2,h:1,{pin},a.b.c"), "does not begin"),
            (format!("kuroshio1,h,{pin},a.b.c"), "no port"),
            (format!("kuroshio1,h:0,{pin},a.b.c"), "not a port"),
            (format!("kuroshio1,h:+1,{pin},a.b.c"), "not a port"),
            (format!("kuroshio1,h:65536,{pin},a.b.c"), "not a port"),
            (format!("kuroshio1,:1,{pin},a.b.c"), "not a host"),
            (format!("kuroshio1,h h:1,{pin},a.b.c"), "not a host"),
            (format!("kuroshio1,[::g]:1,{pin},a.b.c"), "not an IPv6"),
            ("kuroshio1,h:1,md5//x,a.b.c".to_owned(), "sha256//"),
            ("kuroshio1,h:1,sha256//AAAA,a.b.c".to_owned(), "3 bytes"),
            (format!("kuroshio1,h:1+,{pin},a.b.c"), "no port"),
            (format!("kuroshio1,h:1+g:2+h:1,{pin},a.b.c"), "twice"),
            (
                format!("kuroshio1,h:1{},{pin},a.b.c", "+h:2".repeat(16)),
                "at most 16",
            ),
            (format!("kuroshio1,h:1,{pin},abc"), "three base64url words"),
            (format!("kuroshio1,h:1,{pin},a..c"), "three base64url words"),
            (
                format!("kuroshio1,h:1,{pin},a.b.{}", "c".repeat(MAX_TOKEN_BYTES)),
                "longer than",
            ),
        ];
        for (line, why) in table {
            let error = line.parse::<Ticket>().expect_err(&line).to_string();
            assert!(error.contains(why), "{line}: {error}");
        }
    }

    #[test]
    fn a_ticket_may_have_several_addresses() {
        let line = format!("kuroshio1,h:1+[::1]:2+192.0.2.1:3,{},a.b.c", Pin::of_spki(b"k"));
        let ticket: Ticket = line.parse().expect("good");
        assert_eq!(ticket.address(), "h:1");
        assert_eq!(ticket.addresses(), "h:1+[::1]:2+192.0.2.1:3");
        assert_eq!(ticket.to_line(), line);
    }

    #[test]
    fn debug_hides_the_token() {
        let ticket = Ticket::new("h:1", Pin::of_spki(b"k"), "aaa.bbb.secret".into()).expect("good");
        assert!(!format!("{ticket:?}").contains("secret"));
    }

    proptest! {
        #[test]
        fn any_line_is_read_without_panic(line in ".{0,300}") {
            if let Ok(ticket) = line.parse::<Ticket>() {
                prop_assert_eq!(ticket.to_line(), line.trim());
            }
        }

        #[test]
        fn a_ticket_survives_its_line(
            host in prop_oneof![
                "[a-z0-9][a-z0-9.-]{0,40}",
                any::<std::net::Ipv4Addr>().prop_map(|a| a.to_string()),
                any::<std::net::Ipv6Addr>().prop_map(|a| format!("[{a}]")),
            ],
            port in 1u16..,
            key in any::<[u8; 32]>(),
            token in "[A-Za-z0-9_-]{1,40}\\.[A-Za-z0-9_-]{1,40}\\.[A-Za-z0-9_-]{1,40}",
        ) {
            let ticket = Ticket::new(&format!("{host}:{port}"), Pin::of_spki(&key), token).expect("valid parts");
            prop_assert_eq!(ticket.to_line().parse::<Ticket>(), Ok(ticket));
        }
    }
}
