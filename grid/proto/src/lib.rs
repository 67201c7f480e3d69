//! The control plane's schema (`proto/kuroshio/grid/v1/`) and the framing of the pipelined
//! connection.
//!
//! ```text
//!   TLS, ALPN kuroshio-grid/1:   [u32 length][ClientFrame]...  ──>      <──  [u32 length][ServerFrame]...
//!   TLS, ALPN h2:                gRPC, service kuroshio.grid.v1.Grid
//! ```

pub mod frame;
pub mod receipt;

/// Messages and the gRPC service, generated from the schema.
#[allow(missing_docs, clippy::all, clippy::pedantic)]
pub mod v1 {
    tonic::include_proto!("kuroshio.grid.v1");
}

pub use prost::Message;

/// ALPN name of the pipelined connection.
pub const ALPN_FRAMES: &[u8] = b"kuroshio-grid/1";
/// ALPN name of gRPC.
pub const ALPN_GRPC: &[u8] = b"h2";
/// Longest path in the namespace, bytes.
pub const MAX_PATH_BYTES: usize = 4096;
/// Longest name in a directory, bytes.
pub const MAX_NAME_BYTES: usize = 255;
/// Most entries in one answer of a listing: with the longest names and attributes they fit into one frame.
pub const MAX_LIST_ENTRIES: u32 = 1000;
/// Requests of one connection that may be on their way at once.
pub const MAX_IN_FLIGHT: usize = 1024;
/// Most copies of a file that may be asked for.
pub const MAX_COPIES: u32 = 64;

impl v1::Failure {
    /// A failure of this kind with a sentence for people.
    pub fn new(code: v1::Code, text: impl Into<String>) -> Self {
        Self {
            code: code.into(),
            text: text.into(),
        }
    }
}

impl std::fmt::Display for v1::Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<v1::Failure> for v1::response::Result {
    fn from(failure: v1::Failure) -> Self {
        Self::Failure(failure)
    }
}

/// Name of a code for logs and `--json`: `no_entry`, `exists`, ...
pub fn code_name(code: v1::Code) -> String {
    let name = code.as_str_name();
    name.strip_prefix("CODE_").unwrap_or(name).to_ascii_lowercase()
}

/// Path of an object at a node's data service: `/.kuroshio/objects/INODE/GENERATION/FRAGMENT`.
pub fn object_path(inode: u64, generation: u64, fragment: u32) -> String {
    format!("{OBJECTS_PREFIX}{inode}/{generation}/{fragment}")
}

/// Inode, generation and fragment of an object's path; only the form that [`object_path`] writes.
pub fn parse_object_path(path: &str) -> Option<(u64, u64, u32)> {
    let mut parts = path.strip_prefix(OBJECTS_PREFIX)?.split('/');
    let found = (
        parts.next()?.parse().ok()?,
        parts.next()?.parse().ok()?,
        parts.next()?.parse().ok()?,
    );
    (parts.next().is_none() && object_path(found.0, found.1, found.2) == path).then_some(found)
}

/// The audience of tokens for objects: so that a user's own token opens nothing at a node, and a right to an
/// object nothing at the metadata service.
pub fn objects_audience(issuer: &str) -> String {
    format!("{issuer}:objects")
}

/// Header of a GET at a node's data service: this connection sends at so many bit/s from this answer on, frame level; 0 is
/// as fast as it goes.
pub const PACE_HEADER: &str = "kuroshio-pace-bps";

/// What the paths of objects begin with.
pub const OBJECTS_PREFIX: &str = "/.kuroshio/objects/";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_objects_path_has_one_form() {
        assert_eq!(object_path(7, 3, 0), "/.kuroshio/objects/7/3/0");
        assert_eq!(parse_object_path("/.kuroshio/objects/7/3/0"), Some((7, 3, 0)));
        for bad in [
            "/.kuroshio/objects/7/3",
            "/.kuroshio/objects/7/3/0/1",
            "/.kuroshio/objects/07/3/0",
            "/.kuroshio/objects/+7/3/0",
            "/.kuroshio/objects/../3/0",
            "/.kuroshio/objects/7/3/4294967296",
            "/7/3/0",
        ] {
            assert_eq!(parse_object_path(bad), None, "{bad}");
        }
    }
}
