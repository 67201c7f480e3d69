//! Bodies of the service's answers.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use hyper::body::{Body, Bytes, Frame, SizeHint};
use hyper::{Response, StatusCode, header};
use serde::Serialize;
use tokio::sync::mpsc;

/// What every answer carries.
pub type AnswerBody = UnsyncBoxBody<Bytes, io::Error>;
/// An answer.
pub type Answer = Response<AnswerBody>;

/// A body whose pieces come from a thread.
pub struct ChannelBody {
    rx: mpsc::Receiver<io::Result<Bytes>>,
    exact: Option<u64>,
}

impl ChannelBody {
    /// A body and where its pieces go in; `exact` is its length when known. At most `depth` pieces wait.
    pub fn pair(depth: usize, exact: Option<u64>) -> (mpsc::Sender<io::Result<Bytes>>, AnswerBody) {
        let (tx, rx) = mpsc::channel(depth);
        (tx, Self { rx, exact }.boxed_unsync())
    }
}

impl Body for ChannelBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        self.rx
            .poll_recv(cx)
            .map(|piece| piece.map(|p| p.map(Frame::data)))
    }

    fn size_hint(&self) -> SizeHint {
        self.exact.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

/// A body that is here whole.
pub(crate) fn fixed(bytes: impl Into<Bytes>) -> AnswerBody {
    Full::new(bytes.into())
        .map_err(|never| match never {})
        .boxed_unsync()
}

/// An answer without body.
pub fn empty(status: StatusCode) -> Answer {
    let mut answer = Response::new(fixed(""));
    *answer.status_mut() = status;
    answer
}

/// An answer of one line of text.
pub fn text(status: StatusCode, line: &str) -> Answer {
    let mut answer = Response::new(fixed(format!("{line}\n")));
    *answer.status_mut() = status;
    answer.headers_mut().insert(
        header::CONTENT_TYPE,
        header::HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    answer
}

/// An answer of one JSON object.
pub fn json(status: StatusCode, value: &impl Serialize) -> Answer {
    match serde_json::to_vec(value) {
        Ok(mut bytes) => {
            bytes.push(b'\n');
            let mut answer = Response::new(fixed(bytes));
            *answer.status_mut() = status;
            answer.headers_mut().insert(
                header::CONTENT_TYPE,
                header::HeaderValue::from_static("application/json"),
            );
            answer
        }
        Err(e) => text(StatusCode::INTERNAL_SERVER_ERROR, &e.to_string()),
    }
}
