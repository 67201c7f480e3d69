//! Another server, over TLS: dialled only where [`may_reach`] allows it.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::address::{Network, may_reach};
use crate::config::{GatewayConfig, GatewayError};
use crate::refusal::Refusal;
use crate::{CONTINUE_LIMIT_S, MAX_REDIRECTS, REMOTE_LIMIT_S};

/// The certificates that Debian and its like keep.
const SYSTEM_TRUST: &str = "/etc/ssl/certs/ca-certificates.crt";
/// Port of https.
const HTTPS_PORT: u16 = 443;

/// Dials other servers.
pub struct Remote {
    tls: TlsConnector,
    allow: Vec<Network>,
}

/// A server that is named by a URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    host: String,
    port: u16,
    /// For `Host`.
    authority: String,
    path: String,
}

impl Target {
    /// Reads a URL; `https` alone is valid.
    pub fn read(text: &str) -> Result<Self, Refusal> {
        let bad = |why: &str| Refusal::bad(format!("`{}`: {why}", text.escape_debug()));
        let uri = text.parse::<Uri>().map_err(|e| bad(&e.to_string()))?;
        if uri.scheme_str() != Some("https") {
            return Err(bad("only https://HOST[:PORT]/PATH is valid"));
        }
        let authority = uri.authority().ok_or_else(|| bad("it has no host"))?;
        if authority.as_str().contains('@') {
            return Err(bad("a user in it; send `TransferHeaderAuthorization`"));
        }
        let host = authority.host();
        let port = match authority.as_str().strip_prefix(host) {
            Some("") => Some(HTTPS_PORT),
            Some(rest) => rest
                .strip_prefix(':')
                .and_then(|p| p.parse().ok())
                .filter(|p| *p > 0),
            None => None,
        };
        let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
        Ok(Self {
            host: bare.unwrap_or(host).to_owned(),
            port: port.ok_or_else(|| bad("its port is not one of 1 to 65535"))?,
            authority: authority.as_str().to_owned(),
            path: uri.path_and_query().map_or("/", |p| p.as_str()).to_owned(),
        })
    }

    /// Where a redirect leads from here.
    fn follow(&self, location: &str) -> Result<Self, Refusal> {
        if location.starts_with('/') && !location.starts_with("//") {
            return Ok(Self {
                path: location.to_owned(),
                ..self.clone()
            });
        }
        Self::read(location)
    }
}

/// A connection that ends when it is dropped.
pub struct Dialled {
    sender: SendRequest<Box<dyn Outgoing>>,
    /// Who was reached.
    pub peer: SocketAddr,
    target: Target,
    task: JoinHandle<()>,
}

impl Drop for Dialled {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Bodies that are sent.
pub trait Outgoing: Body<Data = Bytes, Error = io::Error> + Send + Unpin {}
impl<B: Body<Data = Bytes, Error = io::Error> + Send + Unpin> Outgoing for B {}

/// What came of a request.
pub enum Reply {
    /// An answer; the connection must live as long as its body is read.
    Answer(Box<Response<Incoming>>, Dialled),
    /// Look there.
    Elsewhere(Target),
}

impl Remote {
    /// As the configuration says.
    ///
    /// # Errors
    /// A file of certificates that cannot be read or has none.
    pub fn new(config: &GatewayConfig) -> Result<Self, GatewayError> {
        let mut roots = RootCertStore::empty();
        if Path::new(SYSTEM_TRUST).exists() {
            add(&mut roots, Path::new(SYSTEM_TRUST))?;
        }
        for file in &config.trust {
            if add(&mut roots, file)? == 0 {
                let text = format!("{}: no certificate in PEM form in it", file.display());
                return Err(GatewayError::Invalid(text));
            }
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| GatewayError::Machine(format!("cannot set up TLS: {e}")))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self {
            tls: TlsConnector::from(Arc::new(tls)),
            allow: config.allow.clone(),
        })
    }

    /// Connects to `target`, if it may be reached.
    pub async fn dial(&self, target: &Target) -> Result<Dialled, Refusal> {
        let limit = Duration::from_secs(REMOTE_LIMIT_S);
        let dialled = timeout(limit, self.dial_unbounded(target)).await;
        dialled.unwrap_or_else(|_| Err(failed(target, "cannot connect", "no answer in time")))
    }

    async fn dial_unbounded(&self, target: &Target) -> Result<Dialled, Refusal> {
        let found = tokio::net::lookup_host((target.host.as_str(), target.port)).await;
        let found = found.map_err(|e| failed(target, "cannot find the host", e))?;
        let (mut socket, mut last) = (None, "the name has no address".to_owned());
        for address in found {
            if !may_reach(address.ip(), &self.allow) {
                last = format!("{} is an internal address", address.ip());
                continue;
            }
            match TcpStream::connect(address).await {
                Ok(connected) => {
                    socket = Some(connected);
                    break;
                }
                Err(e) => last = e.to_string(),
            }
        }
        let socket = socket.ok_or_else(|| {
            if last.ends_with("internal address") {
                let text = format!(
                    "{}: {last}, which third-party copies may not reach",
                    target.authority
                );
                Refusal::new(StatusCode::FORBIDDEN, text)
            } else {
                failed(target, "cannot connect", last)
            }
        })?;
        let peer = socket
            .peer_addr()
            .map_err(|e| failed(target, "cannot connect", e))?;
        let name = ServerName::try_from(target.host.clone())
            .map_err(|e| Refusal::bad(format!("`{}`: {e}", target.host)))?;
        let stream = self.tls.connect(name, socket).await;
        let stream = stream.map_err(|e| failed(target, "TLS handshake failed", e))?;
        let shaken = http1::handshake(TokioIo::new(stream)).await;
        let (sender, connection) = shaken.map_err(|e| failed(target, "cannot speak HTTP", e))?;
        let task = tokio::spawn(async move {
            // Its end is seen where its answer is waited for.
            let _ = connection.await;
        });
        Ok(Dialled {
            sender,
            peer,
            target: target.clone(),
            task,
        })
    }
}

impl Dialled {
    /// Asks, with these fields; refusals of the other server are errors with its status.
    pub async fn ask(
        self,
        method: Method,
        fields: &HeaderMap,
        body: Box<dyn Outgoing>,
    ) -> Result<Reply, Refusal> {
        let mut request = Request::new(body);
        *request.method_mut() = method;
        self.send(request, fields).await
    }

    /// As [`Dialled::ask`], with a body that waits for the other server's `100 Continue` (RFC 9110, 10.1.1): who
    /// refuses, or sends elsewhere, does so before the content, not in the middle of it. One that does not know the
    /// field is given the content after [`CONTINUE_LIMIT_S`].
    pub async fn offer(
        self,
        method: Method,
        fields: &HeaderMap,
        body: Box<dyn Outgoing>,
    ) -> Result<Reply, Refusal> {
        let told = Arc::new(Notify::new());
        let wait = told.clone();
        let body = Offered {
            wait: Some(Box::pin(async move {
                // Either way the body goes.
                let _ = timeout(Duration::from_secs(CONTINUE_LIMIT_S), wait.notified()).await;
            })),
            body,
        };
        let mut request = Request::new(Box::new(body) as Box<dyn Outgoing>);
        *request.method_mut() = method;
        hyper::ext::on_informational(&mut request, move |said| {
            if said.status() == StatusCode::CONTINUE {
                told.notify_one();
            }
        });
        let mut fields = fields.clone();
        fields.insert(header::EXPECT, HeaderValue::from_static("100-continue"));
        self.send(request, &fields).await
    }

    async fn send(
        mut self,
        mut request: Request<Box<dyn Outgoing>>,
        fields: &HeaderMap,
    ) -> Result<Reply, Refusal> {
        let path = self.target.path.parse::<Uri>();
        *request.uri_mut() = path.map_err(|e| Refusal::bad(format!("`{}`: {e}", self.target.path)))?;
        *request.headers_mut() = fields.clone();
        let host = HeaderValue::from_str(&self.target.authority);
        let host = host.map_err(|e| Refusal::bad(format!("`{}`: {e}", self.target.authority)))?;
        request.headers_mut().insert(header::HOST, host);
        let answer = self.sender.send_request(request).await;
        let answer = answer.map_err(|e| failed(&self.target, "no answer", e))?;
        let status = answer.status();
        if status.is_redirection() {
            let to = answer
                .headers()
                .get(header::LOCATION)
                .and_then(|v| v.to_str().ok());
            let to = to.ok_or_else(|| failed(&self.target, "a redirect without location", status))?;
            return Ok(Reply::Elsewhere(self.target.follow(to)?));
        }
        if !status.is_success() {
            return Err(failed(&self.target, "the other server refused", status));
        }
        Ok(Reply::Answer(Box::new(answer), self))
    }
}

/// A body that goes when it is waited for.
struct Offered {
    wait: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    body: Box<dyn Outgoing>,
}

impl Body for Offered {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if let Some(wait) = &mut self.wait {
            std::task::ready!(wait.as_mut().poll(cx));
            self.wait = None;
        }
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Follows redirects: how often, and with which fields.
pub struct Way {
    /// Where to go now.
    pub target: Target,
    /// What to send there.
    pub fields: HeaderMap,
    steps: usize,
}

impl Way {
    /// To `target`, with these fields.
    pub fn new(target: Target, fields: HeaderMap) -> Self {
        Self {
            target,
            fields,
            steps: 0,
        }
    }

    /// Goes on to `next`; a secret for one server is not told to another.
    pub fn step(&mut self, next: Target) -> Result<(), Refusal> {
        self.steps += 1;
        if self.steps > MAX_REDIRECTS {
            return Err(failed(
                &next,
                "given up",
                format!("more than {MAX_REDIRECTS} redirects"),
            ));
        }
        if next.authority != self.target.authority {
            self.fields.remove(header::AUTHORIZATION);
            self.fields.remove(header::COOKIE);
        }
        self.target = next;
        Ok(())
    }
}

fn failed(target: &Target, what: &str, why: impl ToString) -> Refusal {
    let text = format!("{}: {what}: {}", target.authority, why.to_string());
    Refusal::new(StatusCode::BAD_GATEWAY, text)
}

/// Adds the certificates of a file; says how many.
fn add(roots: &mut RootCertStore, file: &Path) -> Result<usize, GatewayError> {
    let unreadable = |e: &dyn std::fmt::Display| GatewayError::Invalid(format!("{}: {e}", file.display()));
    let mut added = 0;
    for certificate in CertificateDer::pem_file_iter(file).map_err(|e| unreadable(&e))? {
        let certificate = certificate.map_err(|e| unreadable(&e))?;
        // Of a system's hundreds some may be of a kind that is not understood.
        added += usize::from(roots.add(certificate).is_ok());
    }
    Ok(added)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_https_is_a_target() {
        let target = Target::read("https://[::1]:8443/a%20b?x=1").expect("a target");
        assert_eq!((target.host.as_str(), target.port), ("::1", 8443));
        assert_eq!(target.path, "/a%20b?x=1");
        assert_eq!(Target::read("https://h").expect("a target").path, "/");
        for bad in [
            "http://h/x",
            "https:///x",
            "file:///etc/passwd",
            "/x",
            "",
            "https://u:p@h/x",
            "https://h:99999/",
            "gopher://h/",
        ] {
            assert!(Target::read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn secrets_stay_with_their_server() {
        let mut fields = HeaderMap::new();
        fields.insert(header::AUTHORIZATION, HeaderValue::from_static("Bearer x"));
        let target = Target::read("https://a/x").expect("a target");
        let mut way = Way::new(target.clone(), fields);
        way.step(target.follow("/y").expect("same server"))
            .expect("one step");
        assert!(way.fields.contains_key(header::AUTHORIZATION));
        way.step(target.follow("https://b/y").expect("another"))
            .expect("a step");
        assert!(!way.fields.contains_key(header::AUTHORIZATION));
        assert!(target.follow("//b/y").is_err() && target.follow("http://a/y").is_err());
        let ended = (0..MAX_REDIRECTS)
            .map(|_| way.step(target.clone()))
            .any(|s| s.is_err());
        assert!(ended);
    }
}
