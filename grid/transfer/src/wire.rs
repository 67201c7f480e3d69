//! What travels: control messages and data frame headers, encoded and decoded defensively.
//!
//! # Control messages (Fwd and Rev)
//!
//! ```text
//!  0  length n: u32 of the message, 1 ..= MAX_MESSAGE, little-endian
//!  4  first 4 bytes of BLAKE3 of bytes 0..4
//!  8  first 8 bytes of BLAKE3 of the message
//! 16  n bytes: postcard of Fwd or Rev
//! ```
//!
//! The sums find a bit that was flipped on the way in clear text: a name, mode or time has no other check,
//! and a false length would wait for bytes that never come.
//!
//! # Data frame header, 64 bytes, little-endian
//!
//! ```text
//!  0  magic "KURO"      4  version u8   5  flags u8   6  generation u16
//!  8  file id u32      12  length u32 of the payload that follows
//! 16  offset u64
//! 24  digest 32 bytes (zero without a digest mode)
//! 56  checksum u64: first 8 bytes of BLAKE3 of bytes 0..56
//! ```

use crate::error::FileErrorKind;
use crate::limits::{MAX_CHUNK, MAX_DEPTH, MAX_ERROR_TEXT, MAX_MESSAGE, MAX_NAME, MAX_PATH, STATE_DIR};
use crate::options::{Options, SessionKey};
use serde::de::{self, DeserializeOwned, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::io::{self, Read};

/// Version of messages and headers.
pub const VERSION: u16 = 1;
/// Bytes of a frame header.
pub const HEADER_LEN: usize = 64;
const MAGIC: [u8; 4] = *b"KURO";
const FRAME_VERSION: u8 = 1;
/// Flag: the frame is a whole file and its source did not change while it was read.
pub const FLAG_STABLE: u8 = 1;

/// Bytes that travel as bytes (serde's `Vec<u8>` would go element by element).
#[derive(Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Bytes(pub Vec<u8>);

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b\"{}\"", self.0.escape_ascii())
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct V;
        impl Visitor<'_> for V {
            type Value = Bytes;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }
            fn visit_bytes<E: de::Error>(self, v: &[u8]) -> Result<Bytes, E> {
                Ok(Bytes(v.to_vec()))
            }
        }
        d.deserialize_bytes(V)
    }
}

/// What makes a source file the same file with the same content as before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Device number.
    pub dev: u64,
    /// Inode number.
    pub ino: u64,
    /// Size, bytes.
    pub size: u64,
    /// Modification time, seconds and nanoseconds since 1970.
    pub mtime: (i64, u32),
    /// Change time, seconds and nanoseconds since 1970.
    pub ctime: (i64, u32),
}

/// Content of a file, as announced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileMeta {
    /// Identity; its size is the file's.
    pub identity: Identity,
    /// Data extents (offset, length) of a sparse file; `None`: all of it is data.
    pub extents: Option<Vec<(u64, u64)>>,
    /// Digest of the whole file, only when existing files are compared by digest.
    pub digest: Option<[u8; 32]>,
}

/// Kind of an entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// Regular file.
    File(FileMeta),
    /// Directory.
    Dir,
    /// Symbolic link with its target, carried as it is.
    Symlink(Bytes),
    /// Another name of the file that was announced under this path.
    Hardlink(Bytes),
}

/// One name of the tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Number in this session, ascending.
    pub id: u32,
    /// Path relative to the destination; empty only for a single source that takes the destination's name.
    pub path: Bytes,
    /// Permission bits (07777).
    pub mode: u32,
    /// Modification time, seconds and nanoseconds since 1970.
    pub mtime: (i64, u32),
    /// What it is.
    pub kind: Kind,
}

/// A file of this session in one of its generations (0, then one more at each restart).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FileRef {
    /// Entry number.
    pub id: u32,
    /// Generation.
    pub generation: u16,
}

/// A part of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Which file.
    pub file: FileRef,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
}

/// What the receiver lacks of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Missing {
    /// All of its data.
    All,
    /// These ranges (start, end).
    Ranges(Vec<(u64, u64)>),
}

/// A file that failed, as told to the other side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Entry number.
    pub id: u32,
    /// Path relative to the destination.
    pub path: Bytes,
    /// Why.
    pub kind: FileErrorKind,
    /// System error number or 0.
    pub errno: i32,
    /// For people.
    pub text: String,
}

/// Messages from sender to receiver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fwd {
    /// First message.
    Hello {
        /// [`VERSION`].
        version: u16,
        /// Finds state of an earlier run.
        key: SessionKey,
        /// How.
        options: Options,
        /// Number of sources.
        sources: u32,
    },
    /// Names of the tree, parents before children.
    Entries(Vec<Entry>),
    /// The source changed: begin again with what it is now.
    Changed {
        /// The generation that begins.
        file: FileRef,
        /// Permission bits.
        mode: u32,
        /// Content as it is now.
        meta: FileMeta,
    },
    /// All wanted pieces of these files were sent and the sources did not change meanwhile.
    FileDone(Vec<FileRef>),
    /// These files will not come.
    Failed(Vec<Failure>),
    /// No more entries.
    End {
        /// How many entries there were.
        entries: u32,
    },
    /// The sender gives up.
    Abort(String),
    /// The sender has read `Finished` and its user knows: what a resume would need may go.
    Bye,
}

/// Messages from receiver to sender.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Rev {
    /// Answer to `Hello`.
    Welcome {
        /// [`VERSION`].
        version: u16,
    },
    /// Files that shall be sent, with what is missing.
    Want(Vec<(FileRef, Missing)>),
    /// Files that are at the destination already.
    Have(Vec<u32>),
    /// Pieces that were written and journalled.
    Written(Vec<Part>),
    /// Pieces with a wrong digest: to be sent again.
    Bad(Vec<Part>),
    /// Files that are published and flushed, with their digest.
    Durable(Vec<(u32, Option<[u8; 32]>)>),
    /// Entries that failed at the destination.
    Failed(Vec<Failure>),
    /// Share of time, in 1/1000, that the receiver's threads spent writing, verifying and flushing.
    Limits {
        /// 0..=1000.
        disk_permille: u32,
    },
    /// Everything is done.
    Finished {
        /// Directories, links made.
        others: u64,
        /// Files verified by digest.
        verified: u64,
        /// Bytes found from an earlier run.
        resumed: u64,
    },
    /// The receiver gives up or refuses.
    Abort(String),
}

/// Bytes before a message.
const MESSAGE_HEAD: usize = 16;

/// The first bytes of BLAKE3.
fn sum<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let digest = blake3::hash(bytes);
    std::array::from_fn(|i| digest.as_bytes().get(i).copied().unwrap_or_default())
}

/// The head of a message of `len` bytes.
fn message_head(len: u32, message: &[u8]) -> [u8; MESSAGE_HEAD] {
    let len = len.to_le_bytes();
    let (of_len, of_message) = (sum::<4>(&len), sum::<8>(message));
    let mut bytes = len.iter().chain(&of_len).chain(&of_message);
    std::array::from_fn(|_| bytes.next().copied().unwrap_or_default())
}

/// Encodes a message with its head.
///
/// # Errors
/// A message beyond [`MAX_MESSAGE`] (`InvalidInput`).
pub fn encode(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut buf = postcard::to_extend(message, vec![0u8; MESSAGE_HEAD])
        .map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, format!("message: {e}")))?;
    if let Some((head, message)) = buf.split_first_chunk_mut::<MESSAGE_HEAD>() {
        *head = match u32::try_from(message.len()) {
            Ok(len) if message.len() <= MAX_MESSAGE => message_head(len, message),
            _ => {
                let text = format!("message of {} bytes: at most {MAX_MESSAGE}", message.len());
                return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
            }
        };
    }
    Ok(buf)
}

/// Reads one message. `Ok(None)` at a clean end of the stream between messages.
///
/// # Errors
/// `InvalidData` for a length out of bounds, a wrong checksum or bytes that are no message; `UnexpectedEof`
/// inside a message; what the stream gives.
pub fn read_message<T: DeserializeOwned>(
    from: &mut impl Read,
    scratch: &mut Vec<u8>,
) -> io::Result<Option<T>> {
    let mut head = [0u8; MESSAGE_HEAD];
    let first = loop {
        match from.read(&mut head) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            other => break other?,
        }
    };
    if first == 0 {
        return Ok(None);
    }
    if let Some(rest) = head.get_mut(first..) {
        from.read_exact(rest)?;
    }
    let len = head.first_chunk().copied().map_or(0, u32::from_le_bytes);
    if head.get(4..8) != Some(sum::<4>(&len.to_le_bytes()).as_slice()) {
        return Err(invalid("length of a control message has a wrong checksum".into()));
    }
    let bytes = usize::try_from(len).unwrap_or(usize::MAX);
    if bytes == 0 || bytes > MAX_MESSAGE {
        return Err(invalid(format!(
            "control message of {len} bytes: 1 to {MAX_MESSAGE} are valid"
        )));
    }
    scratch.clear();
    scratch.resize(bytes, 0);
    from.read_exact(scratch)?;
    if head != message_head(len, scratch) {
        return Err(invalid(format!(
            "control message of {len} bytes has a wrong checksum"
        )));
    }
    let (message, rest) = postcard::take_from_bytes::<T>(scratch)
        .map_err(|e| invalid(format!("control message of {len} bytes does not decode: {e}")))?;
    if !rest.is_empty() {
        return Err(invalid(format!(
            "control message has {} bytes too many",
            rest.len()
        )));
    }
    Ok(Some(message))
}

/// An `InvalidData` error.
pub fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// Header of a data frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// [`FLAG_STABLE`].
    pub flags: u8,
    /// Which part of which file.
    pub part: Part,
    /// Digest of the piece; zeros without a digest mode.
    pub digest: [u8; 32],
}

impl Header {
    /// The header's bytes.
    pub fn to_bytes(self) -> [u8; HEADER_LEN] {
        let mut out = [0u8; HEADER_LEN];
        let fields: [&[u8]; 8] = [
            &MAGIC,
            &[FRAME_VERSION, self.flags],
            &self.part.file.generation.to_le_bytes(),
            &self.part.file.id.to_le_bytes(),
            &self.part.len.to_le_bytes(),
            &self.part.offset.to_le_bytes(),
            &self.digest,
            &[],
        ];
        for (to, from) in out.iter_mut().zip(fields.iter().flat_map(|f| f.iter())) {
            *to = *from;
        }
        let sum = checksum(&out);
        if let Some(tail) = out.last_chunk_mut::<8>() {
            *tail = sum;
        }
        out
    }

    /// Reads a header.
    ///
    /// # Errors
    /// A sentence on what is wrong: magic, version, checksum, length beyond [`MAX_CHUNK`], unknown flags.
    pub fn from_bytes(bytes: &[u8; HEADER_LEN]) -> Result<Self, String> {
        let field = |at: usize, len: usize| bytes.get(at..at + len).unwrap_or_default();
        let u16_at = |at| u16::from_le_bytes(field(at, 2).try_into().unwrap_or_default());
        let u32_at = |at| u32::from_le_bytes(field(at, 4).try_into().unwrap_or_default());
        let u64_at = |at| u64::from_le_bytes(field(at, 8).try_into().unwrap_or_default());
        if field(0, 4) != MAGIC {
            return Err(format!(
                "data frame begins with {:02x?}, not with \"KURO\"",
                field(0, 4)
            ));
        }
        if field(56, 8) != checksum(bytes) {
            return Err("data frame header has a wrong checksum".into());
        }
        let [version, flags] = [4, 5].map(|i| bytes.get(i).copied().unwrap_or_default());
        if version != FRAME_VERSION || flags & !FLAG_STABLE != 0 {
            return Err(format!(
                "data frame of version {version}, flags {flags:#x}: version 1, flags 0 or 1 are valid"
            ));
        }
        let part = Part {
            file: FileRef {
                generation: u16_at(6),
                id: u32_at(8),
            },
            len: u32_at(12),
            offset: u64_at(16),
        };
        if part.len == 0 || part.len > MAX_CHUNK || part.offset.checked_add(u64::from(part.len)).is_none() {
            return Err(format!(
                "data frame of {} bytes at {}: 1 to {MAX_CHUNK} are valid",
                part.len, part.offset
            ));
        }
        Ok(Self {
            flags,
            part,
            digest: field(24, 32).try_into().unwrap_or_default(),
        })
    }
}

fn checksum(bytes: &[u8; HEADER_LEN]) -> [u8; 8] {
    sum(bytes.get(..56).unwrap_or_default())
}

/// Checks a relative path from a peer.
///
/// # Errors
/// A sentence on what is wrong.
pub fn check_path(path: &[u8]) -> Result<(), String> {
    let bad = |why: &str| Err(format!("path \"{}\": {why}", path.escape_ascii()));
    if path.len() > MAX_PATH {
        return Err(format!("path of {} bytes: at most {MAX_PATH}", path.len()));
    }
    if path.contains(&0) {
        return bad("it holds a NUL byte");
    }
    let mut depth = 0usize;
    for component in path.split(|&b| b == b'/') {
        depth += 1;
        match component {
            b"" => return bad("it is absolute or has an empty component"),
            b"." | b".." => return bad("it has a . or .. component"),
            name if name.len() > MAX_NAME => return bad("a component is longer than 255 bytes"),
            name if name == STATE_DIR.as_bytes() => return bad("this name is kept for partial state"),
            _ => {}
        }
    }
    if depth > MAX_DEPTH {
        bad("it is nested too deeply")
    } else {
        Ok(())
    }
}

/// Checks the target of a symbolic link from a peer (it is stored, never followed out of the root).
///
/// # Errors
/// A sentence on what is wrong.
pub fn check_target(target: &[u8]) -> Result<(), String> {
    if target.is_empty() || target.len() >= MAX_PATH || target.contains(&0) {
        return Err(format!(
            "symbolic link target of {} bytes: 1 to 4095 bytes without NUL are valid",
            target.len()
        ));
    }
    Ok(())
}

/// Cuts a peer's error text to a length that may be kept.
pub fn bounded_text(mut text: String) -> String {
    if text.len() > MAX_ERROR_TEXT {
        let mut end = MAX_ERROR_TEXT;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header() -> Header {
        let file = FileRef {
            id: 0x0102_0304,
            generation: 7,
        };
        Header {
            flags: FLAG_STABLE,
            part: Part {
                file,
                offset: 1 << 40,
                len: 4096,
            },
            digest: [9; 32],
        }
    }

    #[test]
    fn header_keeps_its_fields_and_notices_any_flipped_bit() {
        let bytes = header().to_bytes();
        assert_eq!(Header::from_bytes(&bytes), Ok(header()));
        for bit in 0..HEADER_LEN * 8 {
            let mut bad = bytes;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::from_bytes(&bad).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn paths() {
        for good in [&b"a"[..], b"a/b", b"\xff\xfe/x", b"..a", b"...", b"a b"] {
            assert_eq!(check_path(good), Ok(()), "{good:?}");
        }
        for bad in [
            &b""[..],
            b"/a",
            b"a/",
            b"a//b",
            b"..",
            b"a/../b",
            b".",
            b"a\0b",
            b".kuroshio-partial/x",
        ] {
            assert!(check_path(bad).is_err(), "{bad:?}");
        }
        assert!(check_path(&[b'a'; 256]).is_err());
        assert!(check_path(&b"a/".repeat(600)[..1199]).is_err());
    }

    #[test]
    fn message_beyond_the_limit_is_refused_on_both_sides() {
        assert!(encode(&Fwd::Abort("x".repeat(MAX_MESSAGE + 1))).is_err());
        let bytes = message_head(u32::try_from(MAX_MESSAGE).expect("fits") + 1, &[]);
        let got = read_message::<Fwd>(&mut &bytes[..], &mut Vec::new()).expect_err("too long");
        assert!(got.to_string().contains("are valid"), "{got}");
    }

    proptest! {
        #[test]
        fn messages_come_back(path in proptest::collection::vec(any::<u8>(), 0..64), id: u32, size: u64, len: u32) {
            let file = FileRef { id, generation: 3 };
            let identity = Identity { size, mtime: (-5, 9), ..Identity::default() };
            let meta = FileMeta { identity, extents: Some(vec![(0, size)]), digest: Some([7; 32]) };
            let entry = Entry { id, path: Bytes(path), mode: 0o644, mtime: (-1, 2), kind: Kind::File(meta) };
            let fwd = Fwd::Entries(vec![entry]);
            let bytes = encode(&fwd).expect("encodes");
            prop_assert_eq!(read_message::<Fwd>(&mut &bytes[..], &mut Vec::new()).expect("decodes"), Some(fwd));
            let rev = Rev::Written(vec![Part { file, offset: size, len }]);
            let bytes = encode(&rev).expect("encodes");
            prop_assert_eq!(read_message::<Rev>(&mut &bytes[..], &mut Vec::new()).expect("decodes"), Some(rev));
        }

        #[test]
        fn a_flipped_bit_is_found(bit in 0usize..8, at: proptest::sample::Index) {
            let mut bytes = encode(&Fwd::Abort("a name, a mode, a time".into())).expect("encodes");
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            let got = read_message::<Fwd>(&mut &bytes[..], &mut Vec::new()).expect_err("flipped");
            prop_assert_eq!(got.kind(), io::ErrorKind::InvalidData);
        }

        #[test]
        fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
            let mut framed = message_head(u32::try_from(bytes.len()).expect("short"), &bytes).to_vec();
            framed.extend(&bytes);
            let _ = read_message::<Fwd>(&mut &framed[..], &mut Vec::new());
            let _ = read_message::<Rev>(&mut &framed[..], &mut Vec::new());
            let _ = read_message::<Fwd>(&mut &bytes[..], &mut Vec::new());
            let _ = check_path(&bytes);
            if let Some(head) = bytes.first_chunk::<HEADER_LEN>() {
                prop_assert!(Header::from_bytes(head).is_err());
            }
        }
    }
}
