//! Where a topology comes from: this machine, a file in hwloc's XML, or a synthetic description.

use std::path::PathBuf;
use std::str::FromStr;

use crate::error::RailError;
use crate::machine::MAX_PUS;

/// Longest XML file that is read, bytes.
pub const MAX_XML_BYTES: u64 = 16 << 20;
/// Longest synthetic description, bytes.
pub const MAX_SYNTHETIC_BYTES: usize = 1_024;

/// A source of a topology.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The machine this runs on.
    Here,
    /// A file that `lstopo FILE.xml` wrote.
    Xml(PathBuf),
    /// What such a file holds.
    Text(String),
    /// hwloc's synthetic description, such as `pack:2 [numa] core:4 pu:2`.
    Synthetic(String),
}

impl FromStr for Source {
    type Err = RailError;

    /// `synthetic:DESCRIPTION`, or a path.
    fn from_str(text: &str) -> Result<Self, RailError> {
        let Some(description) = text.strip_prefix("synthetic:") else {
            if text.is_empty() {
                return Err(RailError::BadInput(
                    "--topology: write FILE.xml or synthetic:DESCRIPTION, such as \"synthetic:pack:2 [numa] core:4 pu:2\"".into(),
                ));
            }
            return Ok(Self::Xml(text.into()));
        };
        check_synthetic(description)?;
        Ok(Self::Synthetic(description.to_owned()))
    }
}

/// hwloc allocates what a description asks for, so its size is bounded before: the product of the numbers of each
/// level, outside of brackets and parentheses.
fn check_synthetic(description: &str) -> Result<(), RailError> {
    let bad = |why: &str| {
        RailError::BadInput(format!(
            "--topology synthetic:{description:.60}: {why}; valid is, for example, \"synthetic:pack:2 [numa] core:4 pu:2\""
        ))
    };
    if description.len() > MAX_SYNTHETIC_BYTES {
        return Err(bad("longer than 1024 bytes"));
    }
    if !description.bytes().all(|b| (b' '..=b'~').contains(&b)) {
        return Err(bad("not printable ASCII"));
    }
    let mut depth = 0u32;
    let mut outside = String::new();
    for c in description.chars() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.checked_sub(1).ok_or_else(|| bad("a bracket too many"))?,
            c if depth == 0 => outside.push(c),
            _ => {}
        }
    }
    let mut all = 1u64;
    for word in outside.split_whitespace() {
        let number = word.rsplit(':').next().unwrap_or_default();
        let count: u64 = number
            .parse()
            .map_err(|_| bad("a level without a whole number"))?;
        all = all.saturating_mul(count);
    }
    if depth != 0 || !(1..=MAX_PUS as u64).contains(&all) {
        return Err(bad("from 1 to 4096 processing units are valid"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_told_apart_and_bounded() {
        assert_eq!(
            "a.xml".parse::<Source>().expect("a path"),
            Source::Xml("a.xml".into())
        );
        for good in [
            "pack:2 [numa] core:4 pu:2",
            "numa:2(memory=1GB) core:2 pu:1",
            "2 2 1",
        ] {
            assert!(format!("synthetic:{good}").parse::<Source>().is_ok(), "{good}");
        }
        for bad in [
            "pack:70000 core:70000 pu:2",
            "core",
            "core:2 ]",
            "[core:2",
            "core:0 pu:1",
            "core:-1",
            "\u{e9}:1",
        ] {
            let error = format!("synthetic:{bad}").parse::<Source>().expect_err(bad);
            assert!(
                error.is_bad_input() && error.to_string().contains("valid"),
                "{bad}: {error}"
            );
        }
        assert!(
            format!("synthetic:{}", "a".repeat(2000))
                .parse::<Source>()
                .is_err()
        );
    }
}
