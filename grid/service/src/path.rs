//! Paths below a served root: from percent-encoded URL or API form to whole components, and opening
//! them without ever leaving the root.
//!
//! A path is a list of components, any bytes but `/` and NUL. `.` and empty components fall away; `..`
//! is refused, encoded or not. Symbolic links are followed by the kernel under `RESOLVE_BENEATH`
//! (openat2(2)), so one that is absolute or climbs out is refused too.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;

use crate::error::ServiceError;

/// Longest path that is read, in bytes after decoding (`PATH_MAX`).
pub const MAX_PATH_BYTES: usize = 4096;
/// Times an open is tried again when the kernel saw a rename on the way (openat2: EAGAIN).
const OPEN_TRIES: usize = 8;

/// A path below a root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootPath {
    /// `/` and the components joined by `/`.
    bytes: Vec<u8>,
    /// Whether it was written with a slash at its end: a folder is meant.
    trailing_slash: bool,
    /// Whether it was written with `/.` at its end: what is in the folder is meant, without its name.
    contents: bool,
}

/// Why a path was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// It climbs out of the root.
    #[error("the path leaves the served folder: `..` is not allowed")]
    Escapes,
    /// It is not a path.
    #[error("not a path: {0}")]
    Malformed(&'static str),
}

impl RootPath {
    /// A path from raw bytes; it is taken relative to the root with or without a leading slash.
    pub fn from_bytes(raw: &[u8]) -> Result<Self, PathError> {
        if raw.len() > MAX_PATH_BYTES {
            return Err(PathError::Malformed("longer than 4096 bytes"));
        }
        if raw.contains(&0) {
            return Err(PathError::Malformed("it has a NUL byte"));
        }
        let mut bytes = Vec::with_capacity(raw.len() + 1);
        for component in raw.split(|b| *b == b'/') {
            match component {
                b"" | b"." => {}
                b".." => return Err(PathError::Escapes),
                name => {
                    bytes.push(b'/');
                    bytes.extend_from_slice(name);
                }
            }
        }
        if bytes.is_empty() {
            bytes.push(b'/');
        }
        let contents = raw == b"." || raw.ends_with(b"/.") || bytes == b"/";
        Ok(Self {
            bytes,
            trailing_slash: raw.ends_with(b"/"),
            contents,
        })
    }

    /// A path from its percent-encoded form (RFC 3986, section 2.1), without query.
    pub fn from_url(encoded: &str) -> Result<Self, PathError> {
        Self::from_bytes(&percent_decode(encoded)?)
    }

    /// Absolute form, `/` for the root itself.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Relative form, `.` for the root itself.
    pub fn relative(&self) -> &[u8] {
        match self.bytes.get(1..) {
            Some(rest) if !rest.is_empty() => rest,
            _ => b".",
        }
    }

    /// Whether it was written with a slash at its end.
    pub fn has_trailing_slash(&self) -> bool {
        self.trailing_slash
    }

    /// The name that a source takes at its destination: its last component; empty when its contents
    /// are meant.
    pub fn source_name(&self) -> &[u8] {
        if self.contents {
            return b"";
        }
        self.bytes.rsplit(|b| *b == b'/').next().unwrap_or_default()
    }

    /// The percent-encoded absolute form, with the `/` or `/.` at its end if it had one.
    pub fn to_url(&self) -> String {
        let mut url = percent_encode(&self.bytes);
        if self.bytes.len() > 1 {
            url.push_str(if self.contents {
                "/."
            } else if self.trailing_slash {
                "/"
            } else {
                ""
            });
        }
        url
    }
}

impl fmt::Display for RootPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.bytes))
    }
}

fn percent_decode(encoded: &str) -> Result<Vec<u8>, PathError> {
    let bad = PathError::Malformed("`%` is not followed by two hexadecimal digits");
    let mut bytes = Vec::with_capacity(encoded.len());
    let mut rest = encoded.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|b| char::from(b).to_digit(16));
        match (digit(), digit()) {
            (Some(high), Some(low)) => bytes.push((high * 16 + low) as u8),
            _ => return Err(bad),
        }
    }
    Ok(bytes)
}

fn percent_encode(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for byte in bytes {
        if byte.is_ascii_alphanumeric() || b"/-._~".contains(byte) {
            out.push(char::from(*byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// A served folder.
pub struct Root {
    fd: OwnedFd,
    path: PathBuf,
}

impl Root {
    /// Opens the folder at `path`.
    pub fn open(path: &Path) -> Result<Self, ServiceError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let failed = |e: io::Error| ServiceError::file("cannot serve", path, e);
        let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| failed(e.into()))?;
        Ok(Self {
            fd,
            path: std::fs::canonicalize(path).map_err(failed)?,
        })
    }

    /// Where it is, for people.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Another descriptor of the root.
    pub fn duplicate(&self) -> Result<OwnedFd, ServiceError> {
        self.fd
            .try_clone()
            .map_err(|e| ServiceError::file("cannot use", &self.path, e))
    }

    /// Opens what lies at `path` for reading, never outside the root.
    pub fn open_read(&self, path: &RootPath) -> io::Result<File> {
        // NONBLOCK: opening a FIFO must not wait for its writer.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        for _ in 0..OPEN_TRIES {
            match openat2(&self.fd, path.relative(), flags, Mode::empty(), resolve) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
                Ok(fd) => return Ok(File::from(fd)),
            }
        }
        Err(Errno::AGAIN.into())
    }
}

impl AsFd for Root {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn paths_are_whole_components() {
        let table: &[(&str, &str)] = &[
            ("/", "/"),
            ("", "/"),
            ("/a/b", "/a/b"),
            ("//a/./b/", "/a/b"),
            ("/a%20b%ff", "/a b\u{fffd}"),
            ("/a%2Fb", "/a/b"),
            ("/...", "/..."),
        ];
        for (url, path) in table {
            assert_eq!(RootPath::from_url(url).expect(url).to_string(), *path, "{url}");
        }
        for url in [
            "/..",
            "/a/../b",
            "/%2e%2e/etc",
            "/%2E./x",
            "/a/%2e%2e",
            "..",
            "/a%2f..%2fb",
        ] {
            assert_eq!(RootPath::from_url(url), Err(PathError::Escapes), "{url}");
        }
        for url in ["/%", "/%4", "/%zz", "/%+1", "/a%00b", &"/x".repeat(3000)] {
            assert!(
                matches!(RootPath::from_url(url), Err(PathError::Malformed(_))),
                "{url}"
            );
        }
    }

    #[test]
    fn nothing_outside_the_root_opens() {
        let dir = tempfile::tempdir().expect("temp dir");
        let root_dir = dir.path().join("root");
        std::fs::create_dir_all(root_dir.join("sub")).expect("mkdir");
        std::fs::write(dir.path().join("secret"), "s").expect("write");
        std::fs::write(root_dir.join("file"), "f").expect("write");
        let link = |to: &str, name: &str| std::os::unix::fs::symlink(to, root_dir.join(name)).expect("link");
        link("/etc/passwd", "absolute");
        link("../secret", "climb");
        link("sub/../file", "inside");
        link("..", "up");
        let root = Root::open(&root_dir).expect("root");
        let open = |p: &str| root.open_read(&RootPath::from_bytes(p.as_bytes()).expect(p));
        assert!(open("file").is_ok() && open("inside").is_ok() && open("/").is_ok());
        for path in ["absolute", "climb", "up/secret", "up"] {
            let error = open(path).expect_err(path);
            assert_eq!(
                error.raw_os_error(),
                Some(Errno::XDEV.raw_os_error()),
                "{path}: {error}"
            );
        }
        assert_eq!(open("none").expect_err("none").kind(), io::ErrorKind::NotFound);
    }

    proptest! {
        #[test]
        fn any_name_survives_its_url(raw in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(path) = RootPath::from_bytes(&raw) {
                prop_assert!(!path.as_bytes().split(|b| *b == b'/').any(|c| c == b".."));
                let again = RootPath::from_url(&path.to_url()).expect("own form");
                prop_assert_eq!(again.as_bytes(), path.as_bytes());
                prop_assert_eq!(again.source_name(), path.source_name());
            }
        }

        #[test]
        fn any_url_is_read_without_panic(url in "[/.%0-9a-fA-F ]{0,60}") {
            if let Ok(path) = RootPath::from_url(&url) {
                prop_assert!(!path.as_bytes().split(|b| *b == b'/').any(|c| c == b".."));
            }
        }
    }
}
