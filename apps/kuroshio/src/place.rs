//! Where a command reads or writes: a local path, `NAME:/path` at a trusted service, or
//! `http://HOST:PORT/path` at an insecure one.
//!
//! As with scp, a colon before the first slash makes a service's name; `./a:b` is a local file.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use kuroshio_service::{Endpoint, RootPath, ServiceError, TrustStore};

use crate::error::Failure;

/// One side of a copy.
pub enum Place {
    /// A path here.
    Local(PathBuf),
    /// A path at a service.
    Remote {
        /// The service.
        endpoint: Endpoint,
        /// The path below its root.
        path: RootPath,
    },
}

/// Reads one place.
pub fn parse(text: &OsStr, insecure: bool) -> Result<Place, Failure> {
    let bytes = text.as_bytes();
    if bytes.is_empty() {
        return Err(Failure::usage(
            "an empty path: use a path, NAME:/path or http://HOST:PORT/path",
        ));
    }
    if let Some(rest) = bytes.strip_prefix(b"http://") {
        return http(rest, insecure);
    }
    if bytes.starts_with(b"https://") {
        return Err(Failure::usage(format!(
            "{}: a service with TLS is named by its ticket: `kuroshio trust add NAME`, then NAME:/path",
            text.display()
        )));
    }
    let colon = bytes
        .iter()
        .position(|b| *b == b':' || *b == b'/')
        .filter(|at| bytes.get(*at) == Some(&b':'));
    let Some(colon) = colon else {
        return Ok(Place::Local(PathBuf::from(text)));
    };
    let (name, path) = bytes.split_at(colon);
    let name = std::str::from_utf8(name)
        .map_err(|_| Failure::usage(format!("{}: the service's name is not UTF-8", text.display())))?;
    let path = RootPath::from_bytes(path.get(1..).unwrap_or_default())
        .map_err(|e| Failure::usage(format!("{}: {e}", text.display())))?;
    Ok(Place::Remote {
        endpoint: trusted(name)?,
        path,
    })
}

/// The service trusted as `name`.
pub fn trusted(name: &str) -> Result<Endpoint, Failure> {
    let store = TrustStore::open(&TrustStore::default_path()?)?;
    Ok(Endpoint::from_ticket(store.get(name)?))
}

/// A service by name, or by `http://HOST:PORT` when insecure is allowed.
pub fn service(name: &str, insecure: bool) -> Result<Endpoint, Failure> {
    if name.starts_with("http://") {
        return match parse(OsStr::new(name), insecure)? {
            Place::Remote { endpoint, .. } => Ok(endpoint),
            Place::Local(_) => Err(Failure::usage(format!("{name}: not a service"))),
        };
    }
    trusted(name)
}

fn http(rest: &[u8], insecure: bool) -> Result<Place, Failure> {
    let invalid = |why: &str| {
        let shown = String::from_utf8_lossy(rest);
        Failure::usage(format!(
            "http://{shown}: {why}; the form is http://HOST:PORT/path"
        ))
    };
    if !insecure {
        return Err(invalid(
            "clear text and no token: add --insecure if that is meant",
        ));
    }
    let rest =
        std::str::from_utf8(rest).map_err(|_| invalid("not a URL (percent-encode bytes beyond ASCII)"))?;
    let (address, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let endpoint = Endpoint::insecure(address).map_err(|e: ServiceError| invalid(&e.to_string()))?;
    let path = RootPath::from_url(path).map_err(|e| invalid(&e.to_string()))?;
    Ok(Place::Remote { endpoint, path })
}
