//! The data service: objects by HTTP.
//!
//! ```text
//!   GET, HEAD /.kuroshio/objects/INODE/GENERATION/FRAGMENT      Range -> 206; the whole -> 200
//!   PUT       the same    Content-Range: bytes A-B/TOTAL|*      -> 200 {"done":false} | {"done":true,"digest","mac"}
//! ```
//!
//! A part whose total is known and that leaves nothing missing makes the object durable before it is answered;
//! the answer has its digest and the node's receipt. A token of the grid for the object and the operation is
//! needed; every refusal is logged.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http_body_util::{BodyExt, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Method, Request, StatusCode};
use kuroshio_core::units::BitRate;
use kuroshio_proto::{PACE_HEADER, parse_object_path};
use kuroshio_service::body::{self, Answer};
use kuroshio_service::door::{self, Content, Door, Handler, ReadAt, Speaker, Version};
use kuroshio_service::{Claims, Operation, PacedSocket, RootPath, TokenError};
use kuroshio_store::{Meta, ObjectId, ObjectReader, StoreError, hex};
use tokio::sync::watch;

use crate::control::object_id;
use crate::drafts::{self, Part};
use crate::server::Shared;

/// Largest part, bytes.
pub const MAX_PART_BYTES: usize = 8 * 1024 * 1024;
/// Content up to this size is read at once.
const SMALL_BYTES: usize = 64 * 1024;
/// Longest time for a part to come.
const PART_LIMIT: Duration = Duration::from_secs(60);

/// A refusal.
pub struct Refusal(pub StatusCode, pub String);

impl Refusal {
    fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self(status, text.into())
    }

    /// What was asked cannot be.
    pub fn bad(text: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, text)
    }

    /// Something broke here.
    pub fn failed(text: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, text)
    }

    /// Not now.
    pub fn unavailable(text: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, text)
    }
}

impl From<TokenError> for Refusal {
    fn from(e: TokenError) -> Self {
        let status = match e {
            TokenError::Scope { .. } => StatusCode::FORBIDDEN,
            _ => StatusCode::UNAUTHORIZED,
        };
        Self(status, e.to_string())
    }
}

impl From<StoreError> for Refusal {
    fn from(e: StoreError) -> Self {
        let status = match e {
            StoreError::Invalid(_) | StoreError::Incomplete { .. } => StatusCode::BAD_REQUEST,
            StoreError::NotFound(_) => StatusCode::NOT_FOUND,
            StoreError::Exists(_)
            | StoreError::Busy(_)
            | StoreError::Closed(_)
            | StoreError::Digest { .. }
            | StoreError::Damaged { .. } => StatusCode::CONFLICT,
            StoreError::NoSpace { .. } => StatusCode::INSUFFICIENT_STORAGE,
            StoreError::Refused(_) | StoreError::TooMany(_) => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self(status, e.to_string())
    }
}

/// The data service.
pub struct Data {
    shared: Arc<Shared>,
}

struct Reading {
    reader: ObjectReader,
    /// Where it goes.
    socket: Option<PacedSocket>,
}

impl ReadAt for Reading {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        // The file has more than the content: what is sent ends with the content.
        let left = self.reader.size().saturating_sub(offset);
        let most = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let most = self.socket.as_ref().map_or(most, |s| s.allow(most));
        let into = buf.get_mut(..most).unwrap_or_default();
        self.reader
            .read_at(offset, into)
            .map_err(|e| io::Error::other(e.to_string()))
    }
}

impl Speaker for Data {
    async fn speak(self: Arc<Self>, door: Door, peer: SocketAddr, stop: watch::Receiver<bool>) {
        door::speak_http(self, door, peer, stop).await;
    }
}

impl Handler for Data {
    async fn answer(self: Arc<Self>, peer: SocketAddr, request: Request<Incoming>) -> Answer {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        match self.route(request).await {
            Ok(answer) => answer,
            Err(Refusal(status, text)) => {
                let code = status.as_u16();
                tracing::warn!(%peer, %method, path, status = code, "refused: {text}");
                let mut answer = body::text(status, &text);
                if status == StatusCode::UNAUTHORIZED {
                    let challenge = HeaderValue::from_static("Bearer realm=\"kuroshio\"");
                    answer.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
                }
                answer
            }
        }
    }
}

impl Data {
    /// A data service over a node's spool.
    pub fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    async fn route(self: Arc<Self>, request: Request<Incoming>) -> Result<Answer, Refusal> {
        let Some(joined) = self.shared.joined.get() else {
            return Err(Refusal::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "this node has not joined its grid yet",
            ));
        };
        let claims = door::bearer(&joined.verifier, request.headers())?;
        let path = RootPath::from_url(request.uri().path())
            .map_err(|e| Refusal::new(StatusCode::FORBIDDEN, e.to_string()))?;
        let operation = match *request.method() {
            Method::GET | Method::HEAD => Operation::Read,
            Method::PUT => Operation::Modify,
            _ => {
                return Err(Refusal::new(
                    StatusCode::METHOD_NOT_ALLOWED,
                    "objects are read by GET and HEAD and written by PUT",
                ));
            }
        };
        claims.allow(operation, path.as_bytes())?;
        let found = std::str::from_utf8(path.as_bytes())
            .ok()
            .and_then(parse_object_path);
        let Some((inode, generation, fragment)) = found else {
            return Err(Refusal::new(
                StatusCode::NOT_FOUND,
                "objects are /.kuroshio/objects/INODE/GENERATION/FRAGMENT",
            ));
        };
        let id =
            object_id(inode, generation, fragment).map_err(|e| Refusal::new(StatusCode::BAD_REQUEST, e))?;
        if operation == Operation::Modify {
            return self.put(request, id, claims).await;
        }
        self.set_pace(&request)?;
        let store = self.shared.store.clone();
        let head_only = request.method() == Method::HEAD;
        let opened = blocking(move || {
            let reader = store.read(id)?;
            let small = usize::try_from(reader.size()).is_ok_and(|n| n <= SMALL_BYTES);
            if head_only || !small {
                return Ok((reader, None));
            }
            // The thread that has opened it reads it as well: no other one has to be woken for that.
            let mut bytes = vec![0; usize::try_from(reader.size()).unwrap_or(0)];
            reader.read_at(0, &mut bytes)?;
            Ok((reader, Some(Bytes::from(bytes))))
        });
        let (reader, bytes) = opened.await?;
        let etag = format!("\"{}\"", hex(&reader.digest()));
        let (size, modified) = (reader.size(), reader.meta().modified_unix_ns / 1_000_000_000);
        let modified_unix_s = u64::try_from(modified).ok();
        if let Some(bytes) = bytes {
            let version = Version {
                size,
                etag,
                modified_unix_s,
            };
            return Ok(door::send_bytes(&version, request.headers(), bytes));
        }
        let content = Content {
            size,
            etag,
            modified_unix_s,
            bytes: Reading {
                reader,
                socket: request.extensions().get::<PacedSocket>().cloned(),
            },
        };
        Ok(door::send(content, request.headers(), head_only))
    }

    /// The pace that a reader asks for, and this node's congestion control.
    fn set_pace(&self, request: &Request<Incoming>) -> Result<(), Refusal> {
        let Some(socket) = request.extensions().get::<PacedSocket>() else {
            return Ok(());
        };
        let bad = |text: String| Refusal::new(StatusCode::BAD_REQUEST, text);
        if let Some(name) = &self.shared.congestion {
            let set = socket.set_congestion(name);
            set.map_err(|e| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, format!("{name}: {e}")))?;
        }
        let Some(pace) = request.headers().get(PACE_HEADER) else {
            return Ok(());
        };
        let bps = pace.to_str().ok().and_then(|t| t.parse::<u64>().ok());
        let Some(bps) = bps else {
            return Err(bad(format!(
                "{PACE_HEADER}: a number of bit/s is valid, 0 is no limit"
            )));
        };
        let set = socket.set_pacing(BitRate::new(bps));
        set.map_err(|e| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, format!("pace: {e}")))
    }

    async fn put(
        self: Arc<Self>,
        request: Request<Incoming>,
        id: ObjectId,
        claims: Claims,
    ) -> Result<Answer, Refusal> {
        let part = part_of(request.headers())?;
        let body = Limited::new(request.into_body(), MAX_PART_BYTES).collect();
        let whole = tokio::time::timeout(PART_LIMIT, body)
            .await
            .map_err(|_| Refusal::new(StatusCode::REQUEST_TIMEOUT, "the part did not come in time"))?
            .map_err(|e| Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, format!("part: {e}")))?;
        let bytes = whole.to_bytes();
        if bytes.len() as u64 != part.len {
            return Err(Refusal::new(
                StatusCode::BAD_REQUEST,
                format!("{} bytes came, Content-Range says {}", bytes.len(), part.len),
            ));
        }
        let shared = self.shared.clone();
        let from = move || {
            let (store, bytes) = (&shared.store, drafts::Bytes::Memory(&bytes));
            shared.drafts.write(store, id, &part, &bytes, &claims)
        };
        let Some(sealed) = blocking(from).await? else {
            return Ok(body::json(StatusCode::OK, &serde_json::json!({ "done": false })));
        };
        let mac = self.shared.receipt(&sealed);
        let answer = serde_json::json!({
            "done": true, "size_bytes": sealed.size, "digest": hex(&sealed.digest), "mac": mac,
        });
        Ok(body::json(StatusCode::CREATED, &answer))
    }
}

/// What is kept beside the content: what the right to write says of the file.
pub fn meta_of(claims: &Claims) -> Meta {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now_ns = i64::try_from(now.as_nanos()).unwrap_or(i64::MAX);
    let file = claims.file.clone().unwrap_or_default();
    Meta {
        owner: if file.owner.is_empty() {
            claims.sub.clone()
        } else {
            file.owner
        },
        group: file.group,
        name_hint: file.path,
        mode: file.mode,
        fragments: file.fragments,
        modified_unix_ns: file.mtime_ns.unwrap_or(now_ns),
    }
}

/// Reads `Content-Range: bytes A-B/TOTAL`, `bytes A-B/*`, or a body without it, which is whole.
fn part_of(headers: &HeaderMap) -> Result<Part, Refusal> {
    let bad = |why: &str| {
        Refusal::new(
            StatusCode::BAD_REQUEST,
            format!("{why}; the form is `Content-Range: bytes A-B/TOTAL` or `bytes A-B/*`"),
        )
    };
    let number = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        digits.then(|| text.parse::<u64>().ok()).flatten()
    };
    let Some(range) = headers.get(header::CONTENT_RANGE) else {
        let length = headers.get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok());
        let Some(len) = length.and_then(number) else {
            return Err(Refusal::new(
                StatusCode::LENGTH_REQUIRED,
                "a part needs its Content-Length",
            ));
        };
        return Ok(Part {
            start: 0,
            len,
            total: Some(len),
        });
    };
    let text = range.to_str().ok().and_then(|r| r.strip_prefix("bytes "));
    let parts = text.and_then(|t| t.split_once('/'));
    let Some((range, total)) = parts else {
        return Err(bad("not a range"));
    };
    let Some((first, last)) = range.split_once('-') else {
        return Err(bad("not a range"));
    };
    let (Some(start), Some(end)) = (number(first), number(last)) else {
        return Err(bad("not numbers"));
    };
    let total = match total {
        "*" => None,
        total => Some(number(total).ok_or_else(|| bad("the total is not a number"))?),
    };
    let len = end
        .checked_sub(start)
        .and_then(|n| n.checked_add(1))
        .ok_or_else(|| bad("the range ends before it begins"))?;
    if total.is_some_and(|t| end >= t) {
        return Err(bad("the range ends beyond the total"));
    }
    if len > MAX_PART_BYTES as u64 {
        let text = format!("a part of {len} bytes; at most {MAX_PART_BYTES} are valid");
        return Err(Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, text));
    }
    Ok(Part { start, len, total })
}

/// Runs what waits for the disk in a thread that may.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|e| Err(Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, e.to_string())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(range: &str) -> Result<Part, u16> {
        let mut headers = HeaderMap::new();
        if let Ok(value) = HeaderValue::from_str(range) {
            headers.insert(header::CONTENT_RANGE, value);
        }
        part_of(&headers).map_err(|Refusal(status, _)| status.as_u16())
    }

    #[test]
    fn parts_are_what_they_say() {
        let good = |start, len, total| Ok(Part { start, len, total });
        assert_eq!(part("bytes 0-9/10"), good(0, 10, Some(10)));
        assert_eq!(part("bytes 5-9/*"), good(5, 5, None));
        for bad in [
            "bytes 9-5/10",
            "bytes 0-10/10",
            "bytes -5/10",
            "bytes a-b/c",
            "lines 0-1/2",
            "bytes 0-9",
            "",
        ] {
            assert_eq!(part(bad), Err(400), "{bad}");
        }
        assert_eq!(part("bytes 0-18446744073709551615/*"), Err(400));
        assert_eq!(part("bytes 0-8388608/*"), Err(413));
        let mut headers = HeaderMap::new();
        assert!(part_of(&headers).is_err());
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from_static("7"));
        assert!(part_of(&headers).is_ok_and(|p| p.is_whole()));
    }
}
