//! The same operations by gRPC, for administration and other languages.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;

use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use kuroshio_proto::frame::MAX_FRAME_BYTES;
use kuroshio_proto::v1::grid_server::{Grid, GridServer};
use kuroshio_proto::v1::{self, Code, Failure, request::Op, response::Result as Answer};
use kuroshio_service::door::Door;
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use crate::door::{self, Session};
use crate::server::Inner;

/// Requests of one connection at once.
const MAX_STREAMS: u32 = 64;
/// Largest header list, bytes.
const MAX_HEADER_BYTES: u32 = 16 * 1024;
/// Longest silence before a peer is asked whether it is there.
const KEEP_ALIVE: std::time::Duration = std::time::Duration::from_secs(20);

/// Speaks gRPC on a connection.
pub async fn speak(inner: Arc<Inner>, door: Door, peer: SocketAddr, mut stop: watch::Receiver<bool>) {
    let service = GridServer::new(Rpc { inner, peer }).max_decoding_message_size(MAX_FRAME_BYTES);
    let connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEADER_BYTES)
        .keep_alive_interval(KEEP_ALIVE)
        .serve_connection(TokioIo::new(door), TowerToHyperService::new(service));
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        _ = stop.changed() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(e) = ended {
        tracing::warn!(%peer, "connection ended: {e}");
    }
}

struct Rpc {
    inner: Arc<Inner>,
    peer: SocketAddr,
}

impl Rpc {
    async fn run<T>(&self, request: Request<T>, op: impl FnOnce(T) -> Option<Op>) -> Result<Answer, Status> {
        let whole = |message: T| v1::Request {
            op: op(message),
            context: None,
        };
        self.run_whole(request, whole).await
    }

    async fn run_whole<T>(
        &self,
        request: Request<T>,
        whole: impl FnOnce(T) -> v1::Request,
    ) -> Result<Answer, Status> {
        let header = request.metadata().get("authorization");
        let token = header
            .and_then(|v| v.to_str().ok())
            .and_then(|v| v.split_once(' '))
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
            .map(|(_, token)| token.trim().to_owned())
            .unwrap_or_default();
        let who = self.inner.who(&token).map_err(|e| {
            tracing::warn!(peer = %self.peer, "refused: {e}");
            status(&e)
        })?;
        let session = Session::new(who, self.peer);
        let answer = door::answer(&self.inner, &session, whole(request.into_inner())).await;
        session.end(&self.inner).await;
        Ok(answer)
    }
}

fn status(failure: &Failure) -> Status {
    let text = failure.text.clone();
    match failure.code() {
        Code::NoEntry => Status::not_found(text),
        Code::Exists => Status::already_exists(text),
        Code::Access | Code::Permission => Status::permission_denied(text),
        Code::Unauthenticated => Status::unauthenticated(text),
        Code::Invalid | Code::NameTooLong => Status::invalid_argument(text),
        Code::Unavailable | Code::Busy => Status::unavailable(text),
        Code::Internal => Status::internal(text),
        _ => Status::failed_precondition(text),
    }
}

macro_rules! typed {
    ($answer:expr, $kind:ident) => {
        match $answer {
            Answer::$kind(reply) => Ok(Response::new(reply)),
            Answer::Failure(failure) => Err(status(&failure)),
            _ => Err(Status::internal("an answer of another kind")),
        }
    };
}

#[tonic::async_trait]
impl Grid for Rpc {
    async fn call(&self, request: Request<v1::Request>) -> Result<Response<v1::Response>, Status> {
        let result = self.run_whole(request, |r| r).await?;
        Ok(Response::new(v1::Response { result: Some(result) }))
    }

    async fn status(&self, request: Request<v1::StatusRequest>) -> Result<Response<v1::StatusReply>, Status> {
        typed!(self.run(request, |r| Some(Op::Status(r))).await?, Status)
    }

    async fn list_nodes(
        &self,
        request: Request<v1::ListNodesRequest>,
    ) -> Result<Response<v1::NodesReply>, Status> {
        typed!(self.run(request, |r| Some(Op::ListNodes(r))).await?, Nodes)
    }

    async fn set_node(
        &self,
        request: Request<v1::SetNodeRequest>,
    ) -> Result<Response<v1::NodesReply>, Status> {
        typed!(self.run(request, |r| Some(Op::SetNode(r))).await?, Nodes)
    }

    async fn list_jobs(
        &self,
        request: Request<v1::ListJobsRequest>,
    ) -> Result<Response<v1::JobsReply>, Status> {
        typed!(self.run(request, |r| Some(Op::ListJobs(r))).await?, Jobs)
    }

    async fn cancel_job(
        &self,
        request: Request<v1::CancelJobRequest>,
    ) -> Result<Response<v1::JobsReply>, Status> {
        typed!(self.run(request, |r| Some(Op::CancelJob(r))).await?, Jobs)
    }

    async fn issue_ticket(
        &self,
        request: Request<v1::IssueTicketRequest>,
    ) -> Result<Response<v1::TicketReply>, Status> {
        typed!(self.run(request, |r| Some(Op::IssueTicket(r))).await?, Ticket)
    }
}
