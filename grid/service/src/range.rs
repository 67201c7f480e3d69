//! Single byte ranges of HTTP (RFC 9110, section 14).
//!
//! `bytes=A-B`, `bytes=A-`, `bytes=-N`. Several ranges, other units and broken syntax are ignored, as
//! the RFC allows: the whole file is sent.

/// What a `Range` header asks of a file of a known size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RangeOf {
    /// Everything: 200.
    Whole,
    /// `len` bytes (at least 1) from `start`: 206.
    Part {
        /// First byte.
        start: u64,
        /// How many.
        len: u64,
    },
    /// Nothing of the file: 416.
    Unsatisfiable,
}

/// Reads a `Range` header for a file of `size` bytes.
pub fn parse(header: Option<&str>, size: u64) -> RangeOf {
    let Some(spec) = header.and_then(|h| h.trim().strip_prefix("bytes=")) else {
        return RangeOf::Whole;
    };
    let Some((first, last)) = spec.trim().split_once('-') else {
        return RangeOf::Whole;
    };
    let number = |s: &str| {
        let digits = !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
        digits.then(|| s.parse::<u64>().unwrap_or(u64::MAX))
    };
    match (number(first), number(last)) {
        (None, Some(suffix)) if first.is_empty() => {
            let len = suffix.min(size);
            if len == 0 {
                RangeOf::Unsatisfiable
            } else {
                RangeOf::Part {
                    start: size - len,
                    len,
                }
            }
        }
        (Some(start), None) if last.is_empty() => part(start, u64::MAX, size),
        (Some(start), Some(end)) if start <= end => part(start, end, size),
        _ => RangeOf::Whole,
    }
}

fn part(start: u64, end: u64, size: u64) -> RangeOf {
    if start >= size {
        return RangeOf::Unsatisfiable;
    }
    RangeOf::Part {
        start,
        len: end.min(size - 1) - start + 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ranges_follow_the_rfc() {
        use RangeOf::{Part, Unsatisfiable, Whole};
        let table = [
            ("bytes=0-99", 1000, Part { start: 0, len: 100 }),
            ("bytes=990-2000", 1000, Part { start: 990, len: 10 }),
            ("bytes=5-", 10, Part { start: 5, len: 5 }),
            ("bytes=-3", 10, Part { start: 7, len: 3 }),
            ("bytes=-30", 10, Part { start: 0, len: 10 }),
            ("bytes=9-9", 10, Part { start: 9, len: 1 }),
            ("bytes=10-", 10, Unsatisfiable),
            ("bytes=-0", 10, Unsatisfiable),
            ("bytes=0-0", 0, Unsatisfiable),
            ("bytes=-5", 0, Unsatisfiable),
            ("bytes=99999999999999999999999-", 10, Unsatisfiable),
            ("bytes=5-4", 10, Whole),
            ("bytes=0-1,3-4", 10, Whole),
            ("bytes=-", 10, Whole),
            ("bytes=a-b", 10, Whole),
            ("bytes=+1-2", 10, Whole),
            ("lines=1-2", 10, Whole),
            ("", 10, Whole),
        ];
        for (header, size, expected) in table {
            assert_eq!(parse(Some(header), size), expected, "{header} of {size}");
        }
        assert_eq!(parse(None, 10), Whole);
    }

    proptest! {
        #[test]
        fn a_part_lies_inside(header in "bytes=[0-9]{0,21}-[0-9]{0,21}", size in any::<u64>()) {
            if let RangeOf::Part { start, len } = parse(Some(&header), size) {
                prop_assert!(len > 0 && start.checked_add(len).is_some_and(|end| end <= size));
            }
        }
    }
}
