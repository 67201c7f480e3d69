//! The same operations by gRPC.

mod common;

use std::pin::Pin;
use std::task::{Context, Poll};

use common::TestGrid;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use kuroshio_metad::Timing;
use kuroshio_proto::v1::grid_client::GridClient;
use kuroshio_proto::v1::{self, request, response};
use kuroshio_proto::{ALPN_GRPC, frame::MAX_FRAME_BYTES};
use kuroshio_service::dial_tls;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::{Code, Request};

/// A connection that was dialled with the pin.
struct Channel(SendRequest<Body>);

type Answered =
    Pin<Box<dyn Future<Output = Result<http::Response<hyper::body::Incoming>, hyper::Error>> + Send>>;

impl Service<http::Request<Body>> for Channel {
    type Response = http::Response<hyper::body::Incoming>;
    type Error = hyper::Error;
    type Future = Answered;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Answered {
        Box::pin(self.0.send_request(request))
    }
}

async fn client(grid: &TestGrid) -> GridClient<Channel> {
    let ticket = grid.admin_ticket();
    let stream = dial_tls(ticket.address(), ticket.pin(), ALPN_GRPC)
        .await
        .expect("dialled");
    let io = TokioIo::new(stream);
    let (send, connection) = http2::handshake(TokioExecutor::new(), io).await.expect("HTTP/2");
    tokio::spawn(connection);
    GridClient::with_origin(Channel(send), http::Uri::from_static("https://grid"))
}

fn with_token<T>(message: T, token: &str) -> Request<T> {
    let mut request = Request::new(message);
    let value = format!("Bearer {token}").parse().expect("header");
    request.metadata_mut().insert("authorization", value);
    request
}

#[test]
fn administration_works_by_grpc() {
    let grid = TestGrid::start(1, Timing::default());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("runtime");
    let ticket = grid.admin_ticket();
    runtime.block_on(async {
        let mut client = client(&grid).await;
        let status = client
            .status(with_token(v1::StatusRequest {}, ticket.token()))
            .await
            .expect("status");
        assert_eq!(status.get_ref().name, "test");
        let nodes = client
            .list_nodes(with_token(v1::ListNodesRequest {}, ticket.token()))
            .await
            .expect("nodes");
        assert_eq!(nodes.get_ref().nodes.len(), 1);
        let op = request::Op::MakeDir(v1::MakeDirRequest {
            path: b"/by-grpc".to_vec(),
            mode: 0o755,
            umask: 0,
        });
        let call = with_token(
            v1::Request {
                op: Some(op),
                context: None,
            },
            ticket.token(),
        );
        let answer = client.call(call).await.expect("answer").into_inner().result;
        assert!(matches!(answer, Some(response::Result::Attr(_))), "{answer:?}");

        let refused = client
            .status(Request::new(v1::StatusRequest {}))
            .await
            .expect_err("no token");
        assert_eq!(refused.code(), Code::Unauthenticated);
        let missing = v1::SetNodeRequest {
            name: "none".into(),
            state: "drain".into(),
        };
        let refused = client
            .set_node(with_token(missing, ticket.token()))
            .await
            .expect_err("no such node");
        assert_eq!(refused.code(), Code::NotFound);
        let op = request::Op::Symlink(v1::SymlinkRequest {
            target: vec![b'x'; MAX_FRAME_BYTES],
            path: b"/s".to_vec(),
        });
        let huge = with_token(
            v1::Request {
                op: Some(op),
                context: None,
            },
            ticket.token(),
        );
        let refused = client.call(huge).await.expect_err("too large");
        assert_eq!(refused.code(), Code::OutOfRange);
    });
    assert!(grid.admin().stat(b"/by-grpc", true).is_ok());
}
