//! Licence expressions (SPDX 2.3, annex D) against a list of what is allowed.
//!
//! ```text
//! any  = all ( "OR" | "/" all )*
//! all  = unit ( "AND" unit )*
//! unit = "(" any ")" | id [ "WITH" exception ]
//! ```

/// Licences that a dependency may have.
pub const ALLOWED: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "OFL-1.1",
    "Ubuntu-font-1.0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Whether the expression can be satisfied with allowed licences only. An expression that cannot be read is not.
#[must_use]
pub fn is_allowed(expression: &str) -> bool {
    let spaced = expression
        .replace('(', " ( ")
        .replace(')', " ) ")
        .replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut at = 0;
    let ok = any(&words, &mut at);
    ok == Some(true) && at == words.len()
}

fn any(words: &[&str], at: &mut usize) -> Option<bool> {
    let mut ok = all(words, at)?;
    while words.get(*at) == Some(&"OR") {
        *at += 1;
        ok |= all(words, at)?;
    }
    Some(ok)
}

fn all(words: &[&str], at: &mut usize) -> Option<bool> {
    let mut ok = unit(words, at)?;
    while words.get(*at) == Some(&"AND") {
        *at += 1;
        ok &= unit(words, at)?;
    }
    Some(ok)
}

fn unit(words: &[&str], at: &mut usize) -> Option<bool> {
    let word = *words.get(*at)?;
    *at += 1;
    if word == "(" {
        let ok = any(words, at)?;
        let closed = words.get(*at) == Some(&")");
        *at += 1;
        return closed.then_some(ok);
    }
    if ["OR", "AND", "WITH", ")"].contains(&word) {
        return None;
    }
    if words.get(*at) == Some(&"WITH") {
        let exception = *words.get(*at + 1)?;
        *at += 2;
        return Some(ALLOWED.contains(&format!("{word} WITH {exception}").as_str()));
    }
    Some(ALLOWED.contains(&word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions() {
        for good in [
            "MIT",
            "MIT/Apache-2.0",
            "GPL-3.0-only OR MIT",
            "(MIT OR GPL-2.0-only) AND Unicode-3.0",
            "CC0-1.0 OR Apache-2.0 OR Apache-2.0 WITH LLVM-exception",
        ] {
            assert!(is_allowed(good), "{good}");
        }
        for bad in [
            "",
            "GPL-3.0-only",
            "MIT AND GPL-3.0-only",
            "MIT OR",
            "MIT Apache-2.0",
            "(MIT",
            "MIT)",
            "GPL-2.0-only WITH LLVM-exception",
            "MIT AND (GPL-2.0-only OR AGPL-3.0)",
        ] {
            assert!(!is_allowed(bad), "{bad}");
        }
    }
}
