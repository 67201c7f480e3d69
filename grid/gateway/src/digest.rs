//! Checksums of content: which a request asks for, which it promises, and their forms.
//!
//! | kind | `Digest` (RFC 3230) | `Repr-Digest` (RFC 9530) |
//! |---|---|---|
//! | Adler-32 | `adler32=03da0195` | `adler=:A9oBlQ==:` |
//! | CRC32C | `crc32c=4waSgw==` | `crc32c=:4waSgw==:` |
//! | MD5 | `md5=BASE64` | `md5=:BASE64:` |
//! | SHA-256 | `sha-256=BASE64` | `sha-256=:BASE64:` |
//! | BLAKE3 | `blake3=BASE64` | `blake3=:BASE64:` (not registered) |
//!
//! The catalog knows the BLAKE3 digest of a file of one fragment. For the others the file is read once, and the
//! result is kept in mind: content is never changed in place, so it stays right.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::header::HeaderMap;
use kuroshio_client::v1;
use md5::Digest as _;

use crate::refusal::Refusal;
use crate::{MAX_KEPT_DIGESTS, headers};

/// A kind of checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// RFC 1950.
    Adler32,
    /// RFC 9260, appendix A.
    Crc32c,
    /// RFC 1321.
    Md5,
    /// FIPS 180-4.
    Sha256,
    /// The grid's own.
    Blake3,
}

/// All, the strongest first.
const ALL: [Algorithm; 5] = [
    Algorithm::Blake3,
    Algorithm::Sha256,
    Algorithm::Md5,
    Algorithm::Crc32c,
    Algorithm::Adler32,
];

impl Algorithm {
    /// The name in `Digest`.
    fn legacy_name(self) -> &'static str {
        match self {
            Self::Adler32 => "adler32",
            Self::Crc32c => "crc32c",
            Self::Md5 => "md5",
            Self::Sha256 => "sha-256",
            Self::Blake3 => "blake3",
        }
    }

    /// The key in `Repr-Digest`.
    fn key(self) -> &'static str {
        match self {
            Self::Adler32 => "adler",
            _ => self.legacy_name(),
        }
    }

    fn of_name(name: &str) -> Option<Self> {
        let name = name.trim();
        let is =
            |a: &Algorithm| name.eq_ignore_ascii_case(a.legacy_name()) || name.eq_ignore_ascii_case(a.key());
        ALL.iter().copied().find(is)
    }

    fn len(self) -> usize {
        match self {
            Self::Adler32 | Self::Crc32c => 4,
            Self::Md5 => 16,
            Self::Sha256 | Self::Blake3 => 32,
        }
    }

    /// `Digest: ...` of this checksum.
    pub fn legacy(self, value: &[u8]) -> String {
        let text = match self {
            Self::Adler32 => value.iter().map(|b| format!("{b:02x}")).collect(),
            _ => STANDARD.encode(value),
        };
        format!("{}={text}", self.legacy_name())
    }

    /// `Repr-Digest: ...` of this checksum.
    pub fn structured(self, value: &[u8]) -> String {
        format!("{}=:{}:", self.key(), STANDARD.encode(value))
    }
}

/// A checksum that is being made.
pub enum Hasher {
    /// RFC 1950.
    Adler32(simd_adler32::Adler32),
    /// RFC 9260, appendix A.
    Crc32c(u32),
    /// RFC 1321.
    Md5(md5::Md5),
    /// FIPS 180-4.
    Sha256(sha2::Sha256),
    /// The grid's own.
    Blake3(Box<blake3::Hasher>),
}

impl Hasher {
    /// Of nothing yet.
    pub fn new(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::Adler32 => Self::Adler32(simd_adler32::Adler32::new()),
            Algorithm::Crc32c => Self::Crc32c(0),
            Algorithm::Md5 => Self::Md5(md5::Md5::new()),
            Algorithm::Sha256 => Self::Sha256(sha2::Sha256::new()),
            Algorithm::Blake3 => Self::Blake3(Box::default()),
        }
    }

    /// Goes on with these bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Adler32(h) => h.write(bytes),
            Self::Crc32c(sum) => *sum = crc32c::crc32c_append(*sum, bytes),
            Self::Md5(h) => h.update(bytes),
            Self::Sha256(h) => h.update(bytes),
            Self::Blake3(h) => {
                h.update(bytes);
            }
        }
    }

    /// The checksum, most significant byte first.
    pub fn finish(self) -> Vec<u8> {
        match self {
            Self::Adler32(h) => h.finish().to_be_bytes().to_vec(),
            Self::Crc32c(sum) => sum.to_be_bytes().to_vec(),
            Self::Md5(h) => h.finalize().to_vec(),
            Self::Sha256(h) => h.finalize().to_vec(),
            Self::Blake3(h) => h.finalize().as_bytes().to_vec(),
        }
    }
}

/// What a request asks for: the kind it likes best, for each of the two fields.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wanted {
    /// By `Want-Digest`.
    pub legacy: Option<Algorithm>,
    /// By `Want-Repr-Digest`.
    pub structured: Option<Algorithm>,
}

impl Wanted {
    /// As the fields say; kinds that are not known are passed over.
    pub fn of(headers: &HeaderMap) -> Self {
        // `adler32;q=0.5, md5`: a quality of 1 if none is named.
        let legacy = best(headers::text(headers, "want-digest"), |entry| {
            let (name, quality) = entry.split_once(";q=").unwrap_or((entry, "1"));
            Some((name, quality.trim().parse::<f32>().ok()?))
        });
        // `sha-256=10, md5=1`: 0 to 10.
        let structured = best(headers::text(headers, "want-repr-digest"), |entry| {
            let (name, weight) = entry.split_once('=')?;
            Some((name, weight.trim().parse::<f32>().ok()?))
        });
        Self { legacy, structured }
    }
}

/// The known kind with the greatest weight above 0; of equals the first.
fn best<'a>(field: Option<&'a str>, read: impl Fn(&'a str) -> Option<(&'a str, f32)>) -> Option<Algorithm> {
    let mut found: Option<(Algorithm, f32)> = None;
    for entry in field.unwrap_or_default().split(',') {
        let Some((name, weight)) = read(entry.trim()) else {
            continue;
        };
        let Some(algorithm) = Algorithm::of_name(name) else {
            continue;
        };
        if weight > found.map_or(0.0, |f| f.1) {
            found = Some((algorithm, weight));
        }
    }
    found.map(|f| f.0)
}

/// The checksums that a message gives for its content: `Digest`, `Repr-Digest`, `Content-MD5`. Kinds that are
/// not known are passed over.
///
/// # Errors
/// One of a known kind that cannot be read.
pub fn promised(headers: &HeaderMap) -> Result<Vec<(Algorithm, Vec<u8>)>, Refusal> {
    let mut found = Vec::new();
    for field in ["digest", "repr-digest"] {
        for entry in headers::text(headers, field).unwrap_or_default().split(',') {
            let Some((name, value)) = entry.trim().split_once('=') else {
                continue;
            };
            if let Some(algorithm) = Algorithm::of_name(name) {
                let value = read_value(algorithm, value.trim());
                found.push((
                    algorithm,
                    value.ok_or_else(|| {
                        Refusal::bad(format!(
                            "`{field}: {}`: not a checksum of this kind",
                            entry.trim()
                        ))
                    })?,
                ));
            }
        }
    }
    if let Some(text) = headers::text(headers, "content-md5") {
        let value = read_value(Algorithm::Md5, text);
        found.push((
            Algorithm::Md5,
            value.ok_or_else(|| Refusal::bad("`content-md5` is not the base64 form of an MD5"))?,
        ));
    }
    Ok(found)
}

fn read_value(algorithm: Algorithm, text: &str) -> Option<Vec<u8>> {
    let structured = text.strip_prefix(':').and_then(|t| t.strip_suffix(':'));
    if structured.is_none() && algorithm == Algorithm::Adler32 && text.len() <= 8 {
        let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_hexdigit());
        return digits
            .then(|| u32::from_str_radix(text, 16).ok())
            .flatten()
            .map(|sum| sum.to_be_bytes().to_vec());
    }
    let value = STANDARD.decode(structured.unwrap_or(text)).ok()?;
    (value.len() == algorithm.len()).then_some(value)
}

/// Checksums that were made or are known.
#[derive(Default)]
pub struct Digests(Mutex<HashMap<Key, Vec<u8>>>);

/// Inode, generation and kind.
type Key = (u64, u64, Algorithm);

impl Digests {
    /// The checksum of what `grant` opened, if it is known.
    pub fn known(&self, grant: &v1::ReadGrant, algorithm: Algorithm) -> Option<Vec<u8>> {
        let attr = grant.attr.as_ref()?;
        match (grant.fragments.as_slice(), algorithm) {
            (_, algorithm) if attr.size_bytes == 0 => Some(Hasher::new(algorithm).finish()),
            ([one], Algorithm::Blake3) => Some(one.digest.clone()),
            _ => {
                let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                kept.get(&(attr.inode, attr.generation, algorithm)).cloned()
            }
        }
    }

    /// Keeps a checksum that was made; forgets all when there are too many.
    pub fn keep(&self, attr: &v1::Attr, algorithm: Algorithm, value: Vec<u8>) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= MAX_KEPT_DIGESTS {
            kept.clear();
        }
        kept.insert((attr.inode, attr.generation, algorithm), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn headers(fields: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.insert(*name, value.parse().expect("a value"));
        }
        headers
    }

    #[test]
    fn checksums_have_their_known_values() {
        // The check values of "123456789": RFC 1950 (zlib), RFC 9260, md5sum, sha256sum, b3sum.
        let table = [
            (Algorithm::Adler32, "adler32=091e01de"),
            (Algorithm::Crc32c, "crc32c=4waSgw=="),
            (Algorithm::Md5, "md5=JfnnlDI7RTiF9RgfG2JNCw=="),
            (
                Algorithm::Sha256,
                "sha-256=FeKw08M4keuw8e9gnsQZQgwg4yDOlMZfvIwzEkSOsiU=",
            ),
        ];
        for (algorithm, text) in table {
            let mut hasher = Hasher::new(algorithm);
            hasher.update(b"1234");
            hasher.update(b"56789");
            let value = hasher.finish();
            assert_eq!(algorithm.legacy(&value), text);
            let both = [("digest", text), ("repr-digest", &algorithm.structured(&value))];
            let read = promised(&headers(&both)).expect("read");
            assert_eq!(read, vec![(algorithm, value.clone()), (algorithm, value)]);
        }
    }

    #[test]
    fn the_kind_liked_best_is_taken() {
        let table = [
            ("adler32", Some(Algorithm::Adler32)),
            ("md5;q=0.3, ADLER32;q=0.7", Some(Algorithm::Adler32)),
            ("unixsum, md5;q=0.1", Some(Algorithm::Md5)),
            ("md5;q=0", None),
            ("md5;q=x", None),
            ("", None),
        ];
        for (field, algorithm) in table {
            assert_eq!(
                Wanted::of(&headers(&[("want-digest", field)])).legacy,
                algorithm,
                "{field}"
            );
        }
        let wanted = Wanted::of(&headers(&[("want-repr-digest", "md5=2, sha-256=9, sha-512=10")]));
        assert_eq!(wanted.structured, Some(Algorithm::Sha256));
    }

    #[test]
    fn broken_promises_are_refused() {
        for (field, value) in [
            ("digest", "adler32=xyz"),
            ("digest", "adler32=123456789"),
            ("digest", "md5=AAAA"),
            ("repr-digest", "sha-256=:AAAA:"),
            ("content-md5", "no"),
        ] {
            assert!(promised(&headers(&[(field, value)])).is_err(), "{field}: {value}");
        }
        let unknown = promised(&headers(&[("digest", "id-sha=abc")]));
        assert_eq!(unknown.expect("passed over"), vec![]);
    }

    proptest! {
        #[test]
        fn any_field_is_read_without_panic(text in "[ -~]{0,80}") {
            let fields = headers(&[("digest", text.as_str()), ("want-digest", &text), ("want-repr-digest", &text)]);
            let _ = promised(&fields);
            let _ = Wanted::of(&fields);
        }
    }
}
