//! Third-party copies (WLCG HTTP-TPC): the gateway fetches from, or sends to, another server.
//!
//! ```text
//!   COPY /here   Source: https://there/x        pull    GET there ──> grid
//!   COPY /here   Destination: https://there/x   push    grid ──PUT──> there
//!                TransferHeaderNAME: VALUE      goes as NAME: VALUE to the other server
//!                Credential: none               (anything else is refused)
//!                Overwrite: F                   what is there stays
//!   <- 202, text/perf-marker-stream
//! ```
//!
//! What is pulled appears whole, durable and with the checksums that the other server has named, or not at all. What
//! is pushed carries its checksum. Which servers may be reached: see [`crate::address`].

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::{BodyExt, Empty};
use hyper::body::{Body, Bytes, Frame, SizeHint};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Response, StatusCode};
use kuroshio_client::v1;
use kuroshio_service::body::{Answer, AnswerBody, ChannelBody};
use tokio::time::timeout;

use crate::config::{GatewayConfig, GatewayError};
use crate::digest::{self, Algorithm};
use crate::files::{self, Opened};
use crate::handler::Shared;
use crate::headers::{self, shown};
use crate::marker::{self, Progress};
use crate::refusal::Refusal;
use crate::remote::{Dialled, Outgoing, Remote, Reply, Target, Way};
use crate::session::Session;
use crate::upload::{Expected, Upload};
use crate::{MAX_TRANSFER_HEADERS, REMOTE_SILENCE_S};

/// Lines of markers that wait for the client.
const MARKERS: usize = 4;
/// Pieces that wait for the other server.
const PIECES: usize = 4;
/// What is asked of a source.
const WANT_DIGEST: &str = "adler32;q=0.2, crc32c;q=0.3, md5;q=0.5, sha-256;q=0.8, blake3;q=1";
const WANT_REPR_DIGEST: &str = "adler=1, crc32c=2, md5=3, sha-256=8, blake3=10";
/// Fields that a client may not set for the other server: they belong to the connection.
const OWN_FIELDS: [&str; 8] = [
    "host",
    "content-length",
    "transfer-encoding",
    "connection",
    "expect",
    "upgrade",
    "te",
    "trailer",
];

/// Third-party copies of a gateway.
pub struct Copies(Remote);

impl Copies {
    /// As the configuration says.
    ///
    /// # Errors
    /// See [`Remote::new`].
    pub fn new(config: &GatewayConfig) -> Result<Self, GatewayError> {
        Remote::new(config).map(Self)
    }
}

/// Authority (if it is a URL) and path of a `Destination`.
pub fn split_url(text: &str) -> Option<(Option<&str>, &str)> {
    if text.starts_with('/') {
        return Some((None, text));
    }
    let rest = text
        .strip_prefix("https://")
        .or_else(|| text.strip_prefix("http://"))?;
    let at = rest.find('/').unwrap_or(rest.len());
    let (authority, path) = rest.split_at(at);
    Some((Some(authority), if path.is_empty() { "/" } else { path }))
}

/// Whether a COPY speaks of another server.
pub fn is_third_party(headers: &HeaderMap) -> bool {
    let elsewhere = |text: &str| match split_url(text) {
        Some((authority, _)) => authority.is_some() && authority != headers::text(headers, "host"),
        None => false,
    };
    headers.contains_key("source") || headers::text(headers, "destination").is_some_and(elsewhere)
}

/// Answers a COPY that speaks of another server.
pub async fn answer(
    shared: &Arc<Shared>,
    session: &Arc<Session>,
    path: Vec<u8>,
    request: &HeaderMap,
) -> Result<Answer, Refusal> {
    if let Some(other) = request.get_all("credential").iter().find(|v| *v != "none") {
        return Err(Refusal::bad(format!(
            "`Credential: {}`: only `none` is valid; give the other server's token as `TransferHeaderAuthorization`",
            String::from_utf8_lossy(other.as_bytes()).escape_debug()
        )));
    }
    let source = headers::text(request, "source");
    let destination = headers::text(request, "destination");
    let fields = transfer_fields(request)?;
    let place = shared.transfer()?;
    let progress = Arc::new(Progress::default());
    let (lines, body) = ChannelBody::pair(MARKERS, None);
    let (shared, session, counted) = (shared.clone(), session.clone(), progress.clone());
    let told = format!("{} of {}", shown(&path), session.user());
    match (source, destination) {
        (Some(source), None) => {
            let pull = Pull::new(&shared, &session, path, request, Target::read(source)?, fields).await?;
            tokio::spawn(async move {
                let ended = marker::run(lines, counted.clone(), pull.run(&shared, session, &counted)).await;
                tell("pull", source_of(&ended), &told);
                drop(place);
            });
        }
        (None, Some(destination)) => {
            let target = Target::read(destination)?;
            let push = Push::new(&shared, &session, path, request, target, fields).await?;
            tokio::spawn(async move {
                let ended = marker::run(lines, counted.clone(), push.run(&shared, &counted)).await;
                tell("push", source_of(&ended), &told);
                drop(place);
            });
        }
        _ => return Err(Refusal::bad("COPY needs one of `Source` and `Destination`")),
    }
    let mut answer = Response::new(body);
    *answer.status_mut() = StatusCode::ACCEPTED;
    headers::set(&mut answer, header::CONTENT_TYPE, "text/perf-marker-stream");
    Ok(answer)
}

fn source_of(ended: &Result<(), Refusal>) -> Option<&str> {
    ended.as_ref().err().map(|r| r.text.as_str())
}

fn tell(what: &str, error: Option<&str>, told: &str) {
    match error {
        None => tracing::info!("third-party {what}: {told}"),
        Some(why) => tracing::warn!("third-party {what} failed: {told}: {why}"),
    }
}

/// The fields for the other server.
fn transfer_fields(request: &HeaderMap) -> Result<HeaderMap, Refusal> {
    let mut fields = HeaderMap::new();
    for (name, value) in request {
        // Names are lower case here.
        let Some(name) = name.as_str().strip_prefix("transferheader") else {
            continue;
        };
        let name = name
            .parse::<HeaderName>()
            .map_err(|_| Refusal::bad("`TransferHeader` without a field's name behind it"))?;
        if OWN_FIELDS.contains(&name.as_str()) {
            return Err(Refusal::bad(format!(
                "`TransferHeader{name}`: this field is the gateway's own"
            )));
        }
        fields.append(name, value.clone());
        if fields.len() > MAX_TRANSFER_HEADERS {
            return Err(Refusal::bad(format!(
                "more than {MAX_TRANSFER_HEADERS} `TransferHeader` fields"
            )));
        }
    }
    Ok(fields)
}

fn wants_overwrite(request: &HeaderMap) -> bool {
    !headers::text(request, "overwrite").is_some_and(|o| o.eq_ignore_ascii_case("f"))
}

/// From another server into the grid.
struct Pull {
    path: Vec<u8>,
    way: Way,
    first: Dialled,
    exclusive: bool,
    must_verify: bool,
}

impl Pull {
    async fn new(
        shared: &Shared,
        session: &Arc<Session>,
        path: Vec<u8>,
        request: &HeaderMap,
        target: Target,
        mut fields: HeaderMap,
    ) -> Result<Self, Refusal> {
        if shared.locks.is_locked(&path) {
            return Err(Refusal::new(StatusCode::LOCKED, "the destination is locked"));
        }
        let exclusive = !wants_overwrite(request);
        let looked_at = path.clone();
        match session.ask(move |grid| grid.stat(&looked_at, true)).await {
            Ok(_) if exclusive => {
                return Err(Refusal::new(
                    StatusCode::PRECONDITION_FAILED,
                    "`Overwrite: F`, and it is there",
                ));
            }
            Ok(attr) if attr.kind != v1::Kind::File as i32 => {
                return Err(Refusal::new(
                    StatusCode::CONFLICT,
                    "the destination is not a file",
                ));
            }
            Err(e) if e.code() != Some(v1::Code::NoEntry) => return Err(e.into()),
            _ => {}
        }
        fields.insert("want-digest", HeaderValue::from_static(WANT_DIGEST));
        fields.insert("want-repr-digest", HeaderValue::from_static(WANT_REPR_DIGEST));
        let first = shared.copies.0.dial(&target).await?;
        Ok(Self {
            path,
            way: Way::new(target, fields),
            first,
            exclusive,
            must_verify: headers::text(request, "requirechecksumverification")
                .is_some_and(|v| v.eq_ignore_ascii_case("true")),
        })
    }

    async fn run(self, shared: &Shared, session: Arc<Session>, progress: &Progress) -> Result<(), Refusal> {
        let Self {
            path,
            mut way,
            first,
            exclusive,
            must_verify,
        } = self;
        let mut dialled = first;
        // The connection lives as long as the body is read.
        let (answer, _connection) = loop {
            progress.begin(dialled.peer);
            let nothing: Box<dyn Outgoing> = Box::new(Empty::<Bytes>::new().map_err(|never| match never {}));
            match dialled.ask(Method::GET, &way.fields, nothing).await? {
                Reply::Answer(answer, connection) => break (*answer, connection),
                Reply::Elsewhere(next) => way.step(next)?,
            }
            dialled = shared.copies.0.dial(&way.target).await?;
        };
        if answer.status() != StatusCode::OK {
            let text = format!("the source answered {} where 200 was due", answer.status());
            return Err(Refusal::new(StatusCode::BAD_GATEWAY, text));
        }
        let digests = digest::promised(answer.headers())?;
        if must_verify && digests.is_empty() {
            return Err(Refusal::bad(
                "`RequireChecksumVerification: true`, and the source names no checksum that is known here",
            ));
        }
        let mut body = answer.into_body();
        let expected = Expected {
            size: body.size_hint().exact(),
            digests,
        };
        let mut upload = Upload::start(session, path, expected, exclusive);
        let silence = Duration::from_secs(REMOTE_SILENCE_S);
        while let Some(frame) = timeout(silence, body.frame()).await.map_err(|_| silent())? {
            let frame = frame
                .map_err(|e| Refusal::new(StatusCode::BAD_GATEWAY, format!("the source broke off: {e}")))?;
            if let Ok(bytes) = frame.into_data() {
                progress.add(bytes.len());
                if upload.write(bytes).await.is_err() {
                    break;
                }
            }
        }
        upload.finish().await.map(drop)
    }
}

fn silent() -> Refusal {
    Refusal::new(
        StatusCode::BAD_GATEWAY,
        format!("the source was silent for {REMOTE_SILENCE_S} s"),
    )
}

/// From the grid to another server.
struct Push {
    opened: Arc<Opened>,
    way: Way,
    first: Dialled,
}

impl Push {
    async fn new(
        shared: &Arc<Shared>,
        session: &Arc<Session>,
        path: Vec<u8>,
        request: &HeaderMap,
        target: Target,
        mut fields: HeaderMap,
    ) -> Result<Self, Refusal> {
        let opened = Arc::new(Opened::open(session, path).await?);
        if !wants_overwrite(request) {
            fields.insert(header::IF_NONE_MATCH, HeaderValue::from_static("*"));
        }
        // Known without reading, of a file of one fragment: the other end may compare it.
        if shared.digests.known(&opened.grant, Algorithm::Blake3).is_some() {
            let value = files::digest(shared, &opened, Algorithm::Blake3).await?;
            let text = HeaderValue::from_str(&Algorithm::Blake3.structured(&value));
            fields.insert("repr-digest", text.map_err(|e| Refusal::bad(e.to_string()))?);
        }
        let first = shared.copies.0.dial(&target).await?;
        Ok(Self {
            opened,
            way: Way::new(target, fields),
            first,
        })
    }

    async fn run(self, shared: &Shared, progress: &Arc<Progress>) -> Result<(), Refusal> {
        let Self {
            opened,
            mut way,
            first,
        } = self;
        let size = opened.attr()?.size_bytes;
        let mut dialled = first;
        loop {
            progress.begin(dialled.peer);
            let (pieces, body) = ChannelBody::pair(PIECES, Some(size));
            let reading = opened.clone();
            tokio::task::spawn_blocking(move || reading.read(0, size, &pieces));
            let body = Counted {
                body,
                progress: progress.clone(),
            };
            match dialled.offer(Method::PUT, &way.fields, Box::new(body)).await? {
                Reply::Answer(..) => return Ok(()),
                Reply::Elsewhere(next) => way.step(next)?,
            }
            dialled = shared.copies.0.dial(&way.target).await?;
        }
    }
}

/// A body that tells how much of it has gone.
struct Counted {
    body: AnswerBody,
    progress: Arc<Progress>,
}

impl Body for Counted {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &frame {
            self.progress.add(frame.data_ref().map_or(0, Bytes::len));
        }
        frame
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(fields: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, value.parse().expect("a value"));
        }
        headers
    }

    #[test]
    fn other_servers_are_told_from_this_one() {
        let host = ("host", "h:1");
        assert!(is_third_party(&headers(&[host, ("source", "https://o/x")])));
        assert!(is_third_party(&headers(&[host, ("destination", "https://o/x")])));
        assert!(is_third_party(&headers(&[
            host,
            ("destination", "https://h:2/x")
        ])));
        assert!(!is_third_party(&headers(&[
            host,
            ("destination", "https://h:1/x")
        ])));
        assert!(!is_third_party(&headers(&[host, ("destination", "/x")])));
        assert!(!is_third_party(&headers(&[host])));
    }

    #[test]
    fn fields_go_on_but_for_those_of_the_connection() {
        let given = headers(&[
            ("transferheaderauthorization", "Bearer x"),
            ("transferheaderx-tag", "1"),
            ("authorization", "Bearer mine"),
        ]);
        let fields = transfer_fields(&given).expect("good");
        assert_eq!(fields.get("authorization").expect("there"), "Bearer x");
        assert_eq!(
            (fields.get("x-tag").expect("there"), fields.len()),
            (&HeaderValue::from_static("1"), 2)
        );
        for bad in [
            "transferheaderhost",
            "transferheadercontent-length",
            "transferheader",
        ] {
            assert!(transfer_fields(&headers(&[(bad, "x")])).is_err(), "{bad}");
        }
        let many = vec![("transferheaderx", "1"); MAX_TRANSFER_HEADERS + 1];
        assert!(transfer_fields(&headers(&many)).is_err());
    }
}
