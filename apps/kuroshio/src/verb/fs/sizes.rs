//! Sizes, times and modes in text.

use kuroshio_client::v1;
use kuroshio_core::units::parse_bytes;

use crate::error::Failure;

/// Reads a size with its unit.
pub fn parse(text: &str) -> Result<u64, Failure> {
    parse_bytes(text).map_err(|e| Failure::usage(format!("{text}: {e}")))
}

/// Reads permission bits, octal.
pub fn mode(text: &str) -> Result<u32, Failure> {
    let bits = u32::from_str_radix(text, 8).ok().filter(|m| *m <= 0o7777);
    bits.ok_or_else(|| Failure::usage(format!("mode `{text}`: 0 to 7777, octal, are valid")))
}

/// Reads `7d`, `24h`, `90min`, `30s`; in seconds.
pub fn seconds(text: &str) -> Result<u64, Failure> {
    let at = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    let each = match unit {
        "s" => Some(1),
        "min" => Some(60),
        "h" => Some(3600),
        "d" => Some(86_400),
        _ => None,
    };
    let total = number
        .parse::<u64>()
        .ok()
        .zip(each)
        .and_then(|(n, each)| n.checked_mul(each));
    total.filter(|s| *s > 0).ok_or_else(|| {
        Failure::usage(format!(
            "time `{text}`: a number with s, min, h or d is valid, for example 30d"
        ))
    })
}

/// `drwxr-xr-x`.
pub fn mode_text(attr: &v1::Attr) -> String {
    let kind = match attr.kind() {
        v1::Kind::Directory => 'd',
        v1::Kind::Symlink => 'l',
        v1::Kind::Fifo => 'p',
        v1::Kind::Socket => 's',
        _ => '-',
    };
    let mut text = String::from(kind);
    for shift in [6u32, 3, 0] {
        let bits = attr.mode >> shift;
        let special = attr.mode & (0o1000 << (shift / 3)) != 0;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (special, bits & 1 != 0, shift) {
            (false, true, _) => 'x',
            (false, false, _) => '-',
            (true, true, 0) => 't',
            (true, false, 0) => 'T',
            (true, true, _) => 's',
            (true, false, _) => 'S',
        });
    }
    if attr.acl {
        text.push('+');
    }
    text
}

/// `2026-11-22 07:15:03` in UTC. The calendar: days in eras of 400 Gregorian years that begin on 1 March.
pub fn time_text(unix_ns: i64) -> String {
    let seconds = unix_ns.div_euclid(1_000_000_000);
    let (days, second) = (seconds.div_euclid(86_400) + 719_468, seconds.rem_euclid(86_400));
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 {
        march_month + 3
    } else {
        march_month - 9
    };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    let (h, m, s) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02} {h:02}:{m:02}:{s:02}")
}

/// Hexadecimal form.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_utc() {
        // From `date -u -d @N`.
        for (s, text) in [
            (0, "1970-01-01 00:00:00"),
            (951_827_696, "2000-02-29 12:34:56"),
            (4_107_542_400, "2100-03-01 00:00:00"),
            (-1, "1969-12-31 23:59:59"),
        ] {
            assert_eq!(time_text(s * 1_000_000_000), text);
        }
    }

    #[test]
    fn units_are_needed() {
        assert_eq!(seconds("2h").ok(), Some(7200));
        for bad in ["2", "h", "0s", "1w", "-1s", "99999999999999999999d"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
        assert_eq!(mode("1777").ok(), Some(0o1777));
        assert!(mode("8").is_err() && mode("17777").is_err());
    }

    #[test]
    fn modes_read_as_ls_prints_them() {
        let attr = |kind: v1::Kind, mode| v1::Attr {
            kind: kind.into(),
            mode,
            ..v1::Attr::default()
        };
        assert_eq!(mode_text(&attr(v1::Kind::Directory, 0o1777)), "drwxrwxrwt");
        assert_eq!(mode_text(&attr(v1::Kind::File, 0o4640)), "-rwSr-----");
        assert_eq!(mode_text(&attr(v1::Kind::Symlink, 0o2751)), "lrwxr-s--x");
    }
}
