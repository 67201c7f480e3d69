//! One request: who asks, what for, and the answer. Every refusal is logged.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use dav_server::body::BodyType;
use dav_server::{DavHandler, DavMethod, DavMethodSet};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, Request, StatusCode};
use kuroshio_client::v1;
use kuroshio_service::Operation;
use kuroshio_service::body::{self, Answer, AnswerBody};
use kuroshio_service::door::{self, Door, Handler, Speaker};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, Sleep};

use crate::copies::{self, Copies};
use crate::dav::{GridFs, Purpose};
use crate::digest::{self, Digests};
use crate::headers::{self, grid_path, plain};
use crate::locks::Locks;
use crate::refusal::Refusal;
use crate::session::{Session, Sessions};
use crate::upload::Expected;
use crate::{BODY_SILENCE_S, MAX_TRANSFERS, MAX_XML_BYTES, MAX_XML_ELEMENTS, api, files};

/// What requests share.
pub struct Shared {
    /// Who may.
    pub sessions: Sessions,
    /// Locks of this gateway's clients.
    pub locks: Locks,
    /// Checksums that were made.
    pub digests: Digests,
    /// Other servers.
    pub copies: Copies,
    transfers: Arc<Semaphore>,
}

impl Shared {
    /// What requests share, before the first.
    pub fn new(sessions: Sessions, copies: Copies) -> Self {
        Self {
            sessions,
            locks: Locks::default(),
            digests: Digests::default(),
            copies,
            transfers: Arc::new(Semaphore::new(MAX_TRANSFERS)),
        }
    }

    /// A place for one more content on its way.
    pub fn transfer(&self) -> Result<OwnedSemaphorePermit, Refusal> {
        let place = self.transfers.clone().try_acquire_owned();
        place.map_err(|_| Refusal::busy(format!("{MAX_TRANSFERS} contents are on their way: try again")))
    }
}

impl Speaker for Shared {
    async fn speak(self: Arc<Self>, door: Door, peer: SocketAddr, stop: watch::Receiver<bool>) {
        door::speak_http(self, door, peer, stop).await;
    }
}

impl Handler for Shared {
    async fn answer(self: Arc<Self>, peer: SocketAddr, request: Request<Incoming>) -> Answer {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        match self.route(request).await {
            Ok(answer) => answer,
            Err(Refusal { status, text }) => {
                let code = status.as_u16();
                if matches!(code, 404 | 405 | 409 | 412 | 423) {
                    tracing::info!(%peer, %method, path, status = code, "refused: {text}");
                } else {
                    tracing::warn!(%peer, %method, path, status = code, "refused: {text}");
                }
                refused(status, &text)
            }
        }
    }
}

fn refused(status: StatusCode, text: &str) -> Answer {
    let mut answer = body::text(status, text);
    let fields = answer.headers_mut();
    if status == StatusCode::UNAUTHORIZED {
        fields.append(
            header::WWW_AUTHENTICATE,
            HeaderValue::from_static("Bearer realm=\"kuroshio\""),
        );
        fields.append(
            header::WWW_AUTHENTICATE,
            HeaderValue::from_static("Basic realm=\"kuroshio\", charset=\"UTF-8\""),
        );
    }
    if status == StatusCode::SERVICE_UNAVAILABLE {
        fields.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    answer
}

impl Shared {
    async fn route(self: Arc<Self>, request: Request<Incoming>) -> Result<Answer, Refusal> {
        let session = self.sessions.of(request.headers()).await?;
        let path = grid_path(request.uri().path())?;
        let method = request.method().clone();
        if let Some(rest) = path.strip_prefix(api::PREFIX) {
            return api::answer(&session, &method, rest).await;
        }
        match method.as_str() {
            "GET" | "HEAD" => {
                let head_only = method == Method::HEAD;
                files::answer(&self, &session, path, request.headers(), head_only).await
            }
            "COPY" if copies::is_third_party(request.headers()) => {
                copies::answer(&self, &session, path, request.headers()).await
            }
            "PUT" => self.put(&session, request).await,
            "OPTIONS" | "PROPFIND" | "PROPPATCH" | "MKCOL" | "DELETE" | "COPY" | "MOVE" | "LOCK"
            | "UNLOCK" => self.dav(&session, path, request).await,
            _ => Err(Refusal::new(
                StatusCode::METHOD_NOT_ALLOWED,
                format!(
                    "{method}: use GET, HEAD, PUT, DELETE, OPTIONS, PROPFIND, PROPPATCH, MKCOL, COPY, MOVE, LOCK or \
                     UNLOCK"
                ),
            )),
        }
    }

    async fn put(&self, session: &Arc<Session>, request: Request<Incoming>) -> Result<Answer, Refusal> {
        let _place = self.transfer()?;
        let (parts, body) = request.into_parts();
        if parts.headers.contains_key(header::CONTENT_RANGE) {
            return Err(Refusal::bad(
                "`Content-Range`: content is never changed in place; PUT the whole of it",
            ));
        }
        let expected = Expected {
            size: body.size_hint().exact(),
            digests: digest::promised(&parts.headers)?,
        };
        let purpose = Purpose {
            expected,
            ..Purpose::default()
        };
        self.hand_over(session, purpose, parts, Patient::new(body)).await
    }

    /// Everything else of WebDAV: bodies are small, and looked at before the library reads them.
    async fn dav(
        &self,
        session: &Arc<Session>,
        path: Vec<u8>,
        request: Request<Incoming>,
    ) -> Result<Answer, Refusal> {
        let (parts, body) = request.into_parts();
        let collected = Limited::new(body, MAX_XML_BYTES).collect();
        let limit = Duration::from_secs(BODY_SILENCE_S);
        let collected = tokio::time::timeout(limit, collected)
            .await
            .map_err(|_| Refusal::new(StatusCode::REQUEST_TIMEOUT, "the body did not come in time"))?;
        let bytes = collected
            .map_err(|e| match e.downcast_ref::<LengthLimitError>() {
                Some(_) => Refusal::new(
                    StatusCode::PAYLOAD_TOO_LARGE,
                    format!("a body beyond {MAX_XML_BYTES} bytes"),
                ),
                None => Refusal::bad(format!("the body broke off: {e}")),
            })?
            .to_bytes();
        check_xml(&bytes)?;
        let mut purpose = Purpose::default();
        let mut _place = None;
        match parts.method.as_str() {
            "PROPFIND" => check_depth(&parts.headers)?,
            "COPY" | "MOVE" => {
                purpose.destination = Some(destination(&parts)?);
                purpose.copy = parts.method.as_str() == "COPY";
                _place = Some(self.transfer()?);
            }
            "LOCK" => {
                self.may_lock(session, &path).await?;
                purpose.lock = true;
            }
            "UNLOCK" => self.may_unlock(session, &parts.headers)?,
            _ => {}
        }
        self.hand_over(session, purpose, parts, Full::new(bytes)).await
    }

    /// Lets the library answer; what the grid refused gets its sentence.
    async fn hand_over<B>(
        &self,
        session: &Arc<Session>,
        purpose: Purpose,
        mut parts: Parts,
        body: B,
    ) -> Result<Answer, Refusal>
    where
        B: Body<Data = Bytes> + Send,
        B::Error: std::error::Error + Send + Sync + 'static,
    {
        // With these a client could widen a PROPFIND, or promise another length.
        parts.headers.remove("x-litmus");
        parts.headers.remove("x-expected-entity-length");
        let method = parts.method.clone();
        let fs = GridFs::new(session.clone(), purpose);
        let mut methods = DavMethodSet::all();
        methods.remove(DavMethod::Patch);
        methods.remove(DavMethod::Report);
        let handler = DavHandler::builder()
            .filesystem(Box::new(fs.clone()))
            .locksystem(Box::new(self.locks.clone()))
            .principal(session.user())
            .methods(methods)
            .hide_symlinks(false)
            .build_handler();
        let answer = handler.handle(Request::from_parts(parts, body)).await;
        let status = answer.status();
        // The library answers some failures of DELETE as if the method were not there.
        let vague =
            status.is_server_error() || status == StatusCode::METHOD_NOT_ALLOWED && method == Method::DELETE;
        if let Some(refusal) = fs.error()
            && (vague || status == refusal.status)
        {
            return Err(refusal);
        }
        if status.is_client_error() || status.is_server_error() {
            let why = status.canonical_reason().unwrap_or("refused");
            return Err(Refusal::new(status, format!("{method}: {why}")));
        }
        // With its length where that is known: some clients take an empty body in chunks for a broken one.
        let mut answer = answer.map(|body| match body.inner {
            BodyType::Empty => whole(Bytes::new()),
            BodyType::Bytes(bytes) => whole(bytes.unwrap_or_default()),
            BodyType::AsyncStream(_) => body.boxed_unsync(),
        });
        if method == Method::OPTIONS {
            let fields = answer.headers_mut();
            fields.insert("dav", HeaderValue::from_static("1,2"));
        }
        Ok(answer)
    }

    /// Only who may write something may keep others from it.
    async fn may_lock(&self, session: &Arc<Session>, path: &[u8]) -> Result<(), Refusal> {
        let allowed = session.claims.allow(Operation::Modify, path);
        allowed.map_err(|e| Refusal::new(StatusCode::FORBIDDEN, e.to_string()))?;
        let wanted = path.to_vec();
        let looked_at = session.ask(move |grid| grid.stat(&wanted, true)).await;
        let attr = match looked_at {
            Ok(attr) => attr,
            // Making it is what is tried next.
            Err(e) if e.code() == Some(v1::Code::NoEntry) => return Ok(()),
            Err(e) => return Err(e.into()),
        };
        if attr.kind == v1::Kind::Directory as i32 {
            return may_write(session, &attr);
        }
        let path = path.to_vec();
        let right = session.ask(move |grid| {
            let grant = grid.create(v1::CreateRequest {
                path,
                ..Default::default()
            })?;
            let token = grant.places.first().map(|p| p.token.clone()).unwrap_or_default();
            grid.abandon(grant.inode, grant.generation, &token)
        });
        Ok(right.await?)
    }

    /// Tokens of locks are no secret (PROPFIND shows them): the lock's owner alone ends it.
    fn may_unlock(&self, session: &Session, headers: &HeaderMap) -> Result<(), Refusal> {
        let token = headers::text(headers, "lock-token").unwrap_or_default();
        let token = token.trim_start_matches('<').trim_end_matches('>');
        match self.locks.owner(token) {
            Some(owner) if owner != session.user() => {
                Err(Refusal::new(StatusCode::FORBIDDEN, "another user's lock"))
            }
            _ => Ok(()),
        }
    }
}

fn whole(bytes: Bytes) -> AnswerBody {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}

/// Whether the mode of a directory lets a user write; the metadata service decides about everything else.
fn may_write(session: &Session, attr: &v1::Attr) -> Result<(), Refusal> {
    let claims = &session.claims;
    let in_group =
        claims.groups.contains(&attr.group) || claims.groups.is_empty() && claims.sub == attr.group;
    let bit = match (claims.sub == attr.owner, in_group) {
        (true, _) => 0o200,
        (false, true) => 0o020,
        (false, false) => 0o002,
    };
    if claims.allow(Operation::Admin, b"").is_ok() || attr.mode & bit != 0 {
        return Ok(());
    }
    Err(Refusal::new(
        StatusCode::FORBIDDEN,
        "a directory that you may not write cannot be locked by you",
    ))
}

/// A PROPFIND of everything below is not answered (RFC 4918, section 9.1, allows that).
fn check_depth(headers: &HeaderMap) -> Result<(), Refusal> {
    match headers::text(headers, "depth") {
        Some("0" | "1") => Ok(()),
        _ => Err(Refusal::new(
            StatusCode::FORBIDDEN,
            "<?xml version=\"1.0\" encoding=\"utf-8\"?><D:error xmlns:D=\"DAV:\"><D:propfind-finite-depth/></D:error>\n\
             <!-- send `Depth: 0` or `Depth: 1` -->",
        )),
    }
}

/// Where COPY and MOVE go: here.
fn destination(parts: &Parts) -> Result<Vec<u8>, Refusal> {
    let text = headers::text(&parts.headers, "destination")
        .ok_or_else(|| Refusal::bad("COPY and MOVE need a `Destination`"))?;
    let (authority, path) = copies::split_url(text)
        .ok_or_else(|| Refusal::bad(format!("`Destination: {text}`: neither a URL nor a path")))?;
    let here = headers::text(&parts.headers, "host");
    if authority.is_some() && authority != here {
        return Err(Refusal::new(
            StatusCode::BAD_GATEWAY,
            "MOVE to another server: COPY it there, then DELETE it here",
        ));
    }
    grid_path(path).map(|p| plain(&p))
}

/// What reads XML goes down into each element: so their number is bounded before. Entities are not needed.
fn check_xml(bytes: &[u8]) -> Result<(), Refusal> {
    let mut elements = 0;
    let mut rest = bytes;
    while let Some(at) = rest.iter().position(|b| *b == b'<') {
        rest = rest.get(at + 1..).unwrap_or_default();
        if rest.starts_with(b"!DOCTYPE") || rest.starts_with(b"!ENTITY") {
            return Err(Refusal::bad("a document type has no place in this body"));
        }
        if !rest.starts_with(b"/") {
            elements += 1;
        }
    }
    // In UTF-16 the same text has other bytes; RFC 4918 wants it read, nobody sends it.
    if bytes.contains(&0) {
        return Err(Refusal::bad("a body in UTF-8 is valid"));
    }
    if elements > MAX_XML_ELEMENTS {
        return Err(Refusal::bad(format!(
            "{elements} elements; at most {MAX_XML_ELEMENTS} are read"
        )));
    }
    Ok(())
}

/// A body whose sender may not be silent for long.
struct Patient {
    body: Incoming,
    silence: Pin<Box<Sleep>>,
}

impl Patient {
    fn new(body: Incoming) -> Self {
        Self {
            body,
            silence: Box::pin(tokio::time::sleep(Duration::from_secs(BODY_SILENCE_S))),
        }
    }
}

impl Body for Patient {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(frame) => {
                let next = Instant::now() + Duration::from_secs(BODY_SILENCE_S);
                self.silence.as_mut().reset(next);
                Poll::Ready(frame.map(|f| f.map_err(io::Error::other)))
            }
            Poll::Pending => self
                .silence
                .as_mut()
                .poll(cx)
                .map(|()| Some(Err(io::ErrorKind::TimedOut.into()))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_bounded_before_they_are_read() {
        let good = b"<?xml version='1.0'?><D:propfind xmlns:D='DAV:'><D:allprop/></D:propfind>";
        assert!(check_xml(good).is_ok() && check_xml(b"").is_ok() && check_xml(b"\xff<").is_ok());
        let deep = b"<a>".repeat(MAX_XML_ELEMENTS + 1);
        assert!(check_xml(&deep).is_err());
        assert!(check_xml(&deep[3..]).is_ok());
        assert!(check_xml(b"<!DOCTYPE a [<!ENTITY b 'c'>]><a/>").is_err());
        assert!(check_xml(b"<\0a\0>\0").is_err());
    }

    #[test]
    fn everything_below_is_not_listed_at_once() {
        let depth = |value: Option<&str>| {
            let mut headers = HeaderMap::new();
            if let Some(value) = value {
                headers.insert("depth", value.parse().expect("a value"));
            }
            check_depth(&headers).is_ok()
        };
        assert!(depth(Some("0")) && depth(Some("1")));
        assert!(!depth(None) && !depth(Some("infinity")) && !depth(Some("2")));
    }

    #[test]
    fn destinations_are_here() {
        let to = |value: &str| {
            let request = Request::builder()
                .header("host", "h:1")
                .header("destination", value)
                .body(());
            let (parts, ()) = request.expect("a request").into_parts();
            destination(&parts).map_err(|r| r.status.as_u16())
        };
        assert_eq!(to("https://h:1/a%20b/"), Ok(b"/a b".to_vec()));
        assert_eq!(to("/x"), Ok(b"/x".to_vec()));
        assert_eq!(to("https://other/a"), Err(502));
        assert_eq!(to("rubbish"), Err(400));
    }
}
