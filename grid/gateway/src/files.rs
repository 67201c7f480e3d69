//! GET and HEAD: ranges, validators and checksums.

use std::io;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use hyper::body::Bytes;
use hyper::header::{self, HeaderMap, HeaderName};
use hyper::{Response, StatusCode};
use kuroshio_client::{Cancel, v1};
use kuroshio_service::body::{self, Answer};
use kuroshio_service::door::{self, Pieces, Version};
use tokio::runtime::Handle;

use crate::digest::{Algorithm, Hasher, Wanted};
use crate::handler::Shared;
use crate::headers::{self, set, shown, tag_of};
use crate::refusal::Refusal;
use crate::session::Session;

/// What clients name collections by.
const DIRECTORY_TYPE: &str = "httpd/unix-directory";

/// A file that is open for reading; dropping it closes it.
pub struct Opened {
    session: Arc<Session>,
    /// Its path.
    pub path: Vec<u8>,
    /// The right to read it, and where.
    pub grant: v1::ReadGrant,
}

impl Opened {
    /// Opens `path`.
    pub async fn open(session: &Arc<Session>, path: Vec<u8>) -> Result<Self, Refusal> {
        let wanted = path.clone();
        let grant = session.ask(move |grid| grid.open(&wanted)).await?;
        let session = session.clone();
        Ok(Self { session, path, grant })
    }

    /// Attributes when it was opened.
    pub fn attr(&self) -> Result<&v1::Attr, Refusal> {
        let missing = || Refusal::new(StatusCode::BAD_GATEWAY, "a right to read without attributes");
        self.grant.attr.as_ref().ok_or_else(missing)
    }

    /// Reads a part of it into `pieces`; ends when nobody takes them. For a thread that may wait.
    pub fn read(&self, start: u64, len: u64, pieces: &Pieces) {
        let mut sink = |piece: &[u8]| {
            if piece.is_empty() {
                return Ok(());
            }
            let given = pieces.blocking_send(Ok(Bytes::copy_from_slice(piece)));
            given.map_err(|_| io::ErrorKind::BrokenPipe.into())
        };
        let grid = self.session.grid();
        let read = grid.read_range(
            &self.path,
            &self.grant,
            (start, len),
            &mut sink,
            &Cancel::default(),
        );
        if let Err(e) = read
            && !pieces.is_closed()
        {
            tracing::warn!(
                user = self.session.user(),
                path = shown(&self.path),
                "broken off: {e}"
            );
            let _ = pieces.blocking_send(Err(io::Error::other(e.to_string())));
        }
    }

    /// A checksum of all of it, by reading it. For a thread that may wait.
    fn hash(&self, algorithm: Algorithm) -> Result<Vec<u8>, Refusal> {
        let mut hasher = Hasher::new(algorithm);
        let mut sink = |piece: &[u8]| {
            hasher.update(piece);
            Ok(())
        };
        let size = self.attr()?.size_bytes;
        let grid = self.session.grid();
        grid.read_range(&self.path, &self.grant, (0, size), &mut sink, &Cancel::default())?;
        Ok(hasher.finish())
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        let (session, grant) = (self.session.clone(), std::mem::take(&mut self.grant));
        // Closing may wait for the queue; the end of the session says the same.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn_blocking(move || session.grid().close(&grant));
        }
    }
}

/// Answers GET, or HEAD (`head_only`).
pub async fn answer(
    shared: &Arc<Shared>,
    session: &Arc<Session>,
    path: Vec<u8>,
    request: &HeaderMap,
    head_only: bool,
) -> Result<Answer, Refusal> {
    let looked_at = path.clone();
    let attr = session.ask(move |grid| grid.stat(&looked_at, true)).await?;
    if attr.kind == v1::Kind::Directory as i32 {
        return directory(&path, &attr, head_only);
    }
    let wanted = Wanted::of(request);
    if head_only && wanted == Wanted::default() {
        let version = version_of(&attr);
        if let Some(answer) = precondition(&version, request)? {
            return Ok(answer);
        }
        return Ok(door::send_from(&version, request, true, |_, _, _| ()));
    }
    let place = shared.transfer()?;
    let opened = Opened::open(session, path).await?;
    let version = version_of(opened.attr()?);
    if let Some(answer) = precondition(&version, request)? {
        return Ok(answer);
    }
    let opened = Arc::new(opened);
    let mut fields = Vec::new();
    if let Some(algorithm) = wanted.legacy {
        let value = digest(shared, &opened, algorithm).await?;
        fields.push(("digest", algorithm.legacy(&value)));
    }
    if let Some(algorithm) = wanted.structured {
        let value = digest(shared, &opened, algorithm).await?;
        fields.push(("repr-digest", algorithm.structured(&value)));
    }
    let mut answer = door::send_from(&version, request, head_only, move |start, len, pieces| {
        opened.read(start, len, pieces);
        drop(place);
    });
    for (name, value) in fields {
        set(&mut answer, HeaderName::from_static(name), &value);
    }
    Ok(answer)
}

fn directory(path: &[u8], attr: &v1::Attr, head_only: bool) -> Result<Answer, Refusal> {
    if !head_only {
        let text = format!("{}: a directory: PROPFIND lists it, GET reads files", shown(path));
        return Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, text));
    }
    let mut answer = body::empty(StatusCode::OK);
    set(&mut answer, header::CONTENT_TYPE, DIRECTORY_TYPE);
    set(&mut answer, header::ETAG, &format!("\"{}\"", tag_of(attr)));
    Ok(answer)
}

/// A checksum of what is open: known, or made now and kept.
pub async fn digest(
    shared: &Arc<Shared>,
    opened: &Arc<Opened>,
    algorithm: Algorithm,
) -> Result<Vec<u8>, Refusal> {
    if let Some(known) = shared.digests.known(&opened.grant, algorithm) {
        return Ok(known);
    }
    let reading = opened.clone();
    let made = tokio::task::spawn_blocking(move || reading.hash(algorithm)).await;
    let made = made.map_err(|e| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, e.to_string()))??;
    shared.digests.keep(opened.attr()?, algorithm, made.clone());
    Ok(made)
}

fn version_of(attr: &v1::Attr) -> Version {
    Version {
        size: attr.size_bytes,
        etag: format!("\"{}\"", tag_of(attr)),
        modified_unix_s: u64::try_from(attr.mtime_ns / 1_000_000_000).ok(),
    }
}

/// What the conditions of a request say before anything is sent (RFC 9110, section 13.2.2); those with
/// `If-None-Match` and `If-Range` are looked at where the content is sent.
fn precondition(version: &Version, request: &HeaderMap) -> Result<Option<Answer>, Refusal> {
    let failed = |text: &str| Err(Refusal::new(StatusCode::PRECONDITION_FAILED, text));
    let date = |name: &str| headers::text(request, name).and_then(|t| httpdate::parse_http_date(t).ok());
    let modified = version
        .modified_unix_s
        .map(|s| UNIX_EPOCH + Duration::from_secs(s));
    if let Some(tags) = headers::text(request, "if-match") {
        // Strong comparison: a weak tag is the same as none.
        if !tags
            .split(',')
            .map(str::trim)
            .any(|t| t == "*" || t == version.etag)
        {
            return failed("`If-Match`: the file has other content");
        }
    } else if let (Some(limit), Some(modified)) = (date("if-unmodified-since"), modified)
        && modified > limit
    {
        return failed("`If-Unmodified-Since`: the file was changed after that");
    }
    if headers::text(request, "if-none-match").is_none()
        && let (Some(since), Some(modified)) = (date("if-modified-since"), modified)
        && modified <= since
    {
        let mut answer: Response<_> = body::empty(StatusCode::NOT_MODIFIED);
        set(&mut answer, header::ETAG, &version.etag);
        return Ok(Some(answer));
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(fields: &[(&'static str, &str)]) -> u16 {
        let version = Version {
            size: 1,
            etag: "\"a-1\"".into(),
            modified_unix_s: Some(784_111_777),
        };
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.insert(*name, value.parse().expect("a value"));
        }
        match precondition(&version, &headers) {
            Ok(None) => 200,
            Ok(Some(answer)) => answer.status().as_u16(),
            Err(refusal) => refusal.status.as_u16(),
        }
    }

    #[test]
    fn conditions_follow_the_rfc() {
        const THEN: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
        const BEFORE: &str = "Sun, 06 Nov 1994 08:49:36 GMT";
        assert_eq!(status(&[]), 200);
        assert_eq!(status(&[("if-match", "\"a-1\"")]), 200);
        assert_eq!(status(&[("if-match", "\"b-1\"")]), 412);
        assert_eq!(status(&[("if-match", "W/\"a-1\"")]), 412);
        assert_eq!(status(&[("if-match", "\"c\", \"a-1\"")]), 200);
        assert_eq!(status(&[("if-match", "*")]), 200);
        assert_eq!(status(&[("if-modified-since", THEN)]), 304);
        assert_eq!(status(&[("if-modified-since", BEFORE)]), 200);
        assert_eq!(
            status(&[("if-modified-since", THEN), ("if-none-match", "\"x\"")]),
            200
        );
        assert_eq!(status(&[("if-unmodified-since", THEN)]), 200);
        assert_eq!(status(&[("if-unmodified-since", BEFORE)]), 412);
        assert_eq!(
            status(&[("if-unmodified-since", BEFORE), ("if-match", "\"a-1\"")]),
            200
        );
        assert_eq!(status(&[("if-modified-since", "rubbish")]), 200);
    }
}
