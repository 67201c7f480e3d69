//! Nobody in: wrong keys and tokens, other users' files, tricks with paths, foreign bytes.

mod common;

use common::{TestGrid, bytes, put, read};
use kuroshio_client::{ClientError, Grid, v1};
use kuroshio_metad::Timing;
use kuroshio_proto::frame::{self, FrameError, MAX_FRAME_BYTES};
use kuroshio_proto::v1::{ClientFrame, Hello, ServerFrame, client_frame, response};
use kuroshio_proto::{ALPN_FRAMES, Message};
use kuroshio_service::{Endpoint, ServiceError, Ticket, dial_tls};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn code<T>(result: Result<T, ClientError>) -> Option<v1::Code> {
    result.err().and_then(|e| e.code())
}

fn run<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("runtime").block_on(work)
}

/// A token with the service's own signature and these claims.
fn signed(grid: &TestGrid, change: impl FnOnce(&mut serde_json::Value)) -> String {
    let key = std::fs::read(grid.metad_dir().join("key.der")).expect("key");
    let kept = grid.admin_ticket();
    let body = kept.token().split('.').nth(1).expect("claims").to_owned();
    use base64::Engine as _;
    let body = base64::engine::general_purpose::URL_SAFE_NO_PAD
        .decode(body)
        .expect("base64");
    let mut claims = serde_json::from_slice(&body).expect("claims");
    change(&mut claims);
    let header = jsonwebtoken::Header::new(jsonwebtoken::Algorithm::ES256);
    let key = jsonwebtoken::EncodingKey::from_ec_der(&key);
    jsonwebtoken::encode(&header, &claims, &key).expect("signed")
}

fn with_token(grid: &TestGrid, token: String) -> Result<v1::StatusReply, ClientError> {
    let admin = grid.admin_ticket();
    let ticket = Ticket::new(admin.address(), admin.pin(), token).expect("ticket");
    Grid::connect(&ticket)?.status()
}

#[test]
fn keys_and_tokens_must_be_right() {
    let grid = TestGrid::start(0, Timing::default());
    let admin = grid.admin_ticket();
    let other = kuroshio_service::Pin::of_spki(b"another key");
    let wrong_pin = Ticket::new(admin.address(), other, admin.token().to_owned()).expect("ticket");
    let refused = Grid::connect(&wrong_pin).err();
    assert!(
        matches!(refused, Some(ClientError::Service(ServiceError::WrongPin { .. }))),
        "{refused:?}"
    );

    let same = signed(&grid, |_| ());
    assert!(
        with_token(&grid, same).is_ok(),
        "the way tokens are made here is right"
    );
    let refused = |change: &dyn Fn(&mut serde_json::Value)| {
        let answer = with_token(&grid, signed(&grid, change));
        assert_eq!(code(answer), Some(v1::Code::Unauthenticated));
    };
    refused(&|c| c["exp"] = 1_000_000_000.into());
    refused(&|c| c["aud"] = "another".into());
    refused(&|c| c["iss"] = "another".into());
    refused(&|c| c["sub"] = "a b".into());
    refused(&|c| {
        c.as_object_mut().expect("claims").remove("exp");
    });
    let mut altered = admin.token().to_owned();
    let last = altered.pop().expect("not empty");
    altered.push(if last == 'A' { 'Q' } else { 'A' });
    assert_eq!(code(with_token(&grid, altered)), Some(v1::Code::Unauthenticated));
}

#[test]
fn files_of_others_stay_theirs() {
    let grid = TestGrid::start(1, Timing::default());
    grid.open_dir("/pub");
    let (alice, bob) = (grid.user("alice"), grid.user("bob"));
    put(&alice, "/pub/secret", &bytes(5000, 1), 0o600).expect("put");
    assert_eq!(code(read(&bob, "/pub/secret")), Some(v1::Code::Access));
    assert_eq!(
        code(put(&bob, "/pub/secret", b"x", 0o600)),
        Some(v1::Code::Access)
    );
    assert_eq!(code(put(&bob, "/mine", b"x", 0o600)), Some(v1::Code::Access));
    let chown = v1::SetAttrRequest {
        path: b"/pub/secret".to_vec(),
        mode: Some(0o666),
        ..Default::default()
    };
    assert_eq!(code(bob.set_attr(chown)), Some(v1::Code::Permission));
    assert_eq!(
        code(bob.issue_ticket(v1::IssueTicketRequest::default())),
        Some(v1::Code::Permission)
    );
    assert_eq!(code(bob.set_node("node1", "lost")), Some(v1::Code::Permission));
    assert_eq!(
        code(bob.heartbeat(v1::HeartbeatRequest::default())),
        Some(v1::Code::Permission)
    );

    // At the node: bob's own token opens nothing, and his right to one object nothing else.
    put(&bob, "/pub/bobs", b"bob", 0o600).expect("put");
    let right = bob.open(b"/pub/bobs").expect("open").fragments[0].places[0].clone();
    let theirs = alice.open(b"/pub/secret").expect("open").fragments[0].places[0].clone();
    let status = |token: &str, path: &str| {
        let pin = right.pin.parse().expect("pin");
        let endpoint = Endpoint::pinned(&right.address, pin, token.to_owned()).expect("endpoint");
        let mut http = endpoint.dial(None, None).expect("dialled");
        match http.get_range(path, 0, 1, &mut |_| Ok(())) {
            Ok(()) => 206,
            Err(ServiceError::Refused { status, .. }) => status,
            Err(e) => panic!("{e}"),
        }
    };
    assert_eq!(status(&right.token, &right.path), 206);
    assert_eq!(status(&right.token, &theirs.path), 403);
    let own = grid.user_ticket("bob", "storage.read:/ storage.modify:/");
    assert_eq!(status(own.token(), &theirs.path), 401);
    assert_eq!(status(grid.admin_ticket().token(), &theirs.path), 401);
    for trick in [
        format!("{}/../../../{}", right.path, theirs.path),
        format!("{}/%2e%2e/%2e%2e/%2e%2e{}", right.path, theirs.path),
        right.path.replace("objects", "objects/../objects"),
        "/.kuroshio/objects/../../etc/passwd".to_owned(),
        "/etc/passwd".to_owned(),
    ] {
        assert_eq!(status(&right.token, &trick), 403, "{trick}");
    }
    // A right to read does not write, and is no identity at the metadata service.
    let pin = right.pin.parse().expect("pin");
    let endpoint = Endpoint::pinned(&right.address, pin, right.token.clone()).expect("endpoint");
    let written = endpoint
        .dial(None, None)
        .expect("dialled")
        .put_part::<serde_json::Value>(&right.path, "", 0, b"x", Some(1));
    assert!(matches!(written, Err(ServiceError::Refused { status: 403, .. })));
    assert_eq!(
        code(with_token(&grid, right.token.clone())),
        Some(v1::Code::Unauthenticated)
    );
}

#[test]
fn content_is_published_only_with_a_nodes_word() {
    let grid = TestGrid::start(1, Timing::default());
    grid.open_dir("/pub");
    let (alice, bob) = (grid.user("alice"), grid.user("bob"));
    let wanted = |path: &[u8]| v1::CreateRequest {
        path: path.to_vec(),
        ..Default::default()
    };
    let grant = alice.create(wanted(b"/pub/f")).expect("grant");
    let token = grant.places[0].token.clone();
    let commit = v1::CommitRequest {
        path: b"/pub/f".to_vec(),
        inode: grant.inode,
        generation: grant.generation,
        new_file: true,
        size_bytes: 5,
        digest: vec![7; 32],
        receipts: vec![v1::Receipt {
            node: "node1".into(),
            mac: vec![0; 32],
        }],
        token,
        ..Default::default()
    };
    assert_eq!(
        code(alice.commit(commit.clone())),
        Some(v1::Code::Invalid),
        "a made-up receipt"
    );
    let none = v1::CommitRequest {
        receipts: Vec::new(),
        ..commit.clone()
    };
    assert_eq!(code(alice.commit(none)), Some(v1::Code::Invalid), "no receipt");
    assert_eq!(
        code(bob.commit(commit.clone())),
        Some(v1::Code::Access),
        "another user's right"
    );
    let other = v1::CommitRequest {
        generation: grant.generation + 1,
        ..commit
    };
    assert_eq!(
        code(alice.commit(other)),
        Some(v1::Code::Access),
        "another content"
    );
    assert_eq!(code(alice.stat(b"/pub/f", true)), Some(v1::Code::NoEntry));
}

#[test]
fn paths_stay_in_the_token() {
    let grid = TestGrid::start(1, Timing::default());
    let admin = grid.admin();
    admin.make_dir(b"/in", 0o777, 0).expect("made");
    admin.make_dir(b"/out", 0o777, 0).expect("made");
    put(&admin, "/out/f", b"secret", 0o666).expect("put");
    put(&admin, "/in/f", b"open", 0o666).expect("put");
    admin.symlink(b"/out", b"/in/way").expect("made");
    admin.symlink(b"/out/none", b"/in/dangling").expect("made");
    let ticket = grid.user_ticket("carol", "storage.read:/in storage.modify:/in");
    let carol = Grid::connect(&ticket).expect("connected");
    assert_eq!(read(&carol, "/in/f").expect("read"), b"open");
    put(&carol, "/in/new", b"x", 0o644).expect("put");
    for path in ["/out/f", "/in/way/f", "/in/way", "/infinite"] {
        assert_eq!(code(read(&carol, path)), Some(v1::Code::Access), "{path}");
        assert_eq!(
            code(put(&carol, path, b"x", 0o644)),
            Some(v1::Code::Access),
            "{path}"
        );
    }
    assert_eq!(
        code(put(&carol, "/in/dangling", b"x", 0o644)),
        Some(v1::Code::Access)
    );
    for path in ["/in/../out/f", "/..", "in/f", "", "/in/\0"] {
        assert_eq!(code(read(&carol, path)), Some(v1::Code::Invalid), "{path}");
    }
    let long = format!("/in/{}", "x".repeat(256));
    assert_eq!(code(read(&carol, &long)), Some(v1::Code::NameTooLong));
}

/// Sends bytes after a good hello (or none); what the service said until it closed.
fn talk(grid: &TestGrid, hello: bool, bytes: &[u8]) -> Vec<ServerFrame> {
    let ticket = grid.admin_ticket();
    run(async {
        let stream = dial_tls(ticket.address(), ticket.pin(), ALPN_FRAMES)
            .await
            .expect("dialled");
        let (mut from, mut to) = tokio::io::split(stream);
        if hello {
            let hello = ClientFrame {
                number: 0,
                body: Some(client_frame::Body::Hello(Hello {
                    token: ticket.token().to_owned(),
                })),
            };
            frame::write(&mut to, &hello).await.expect("sent");
        }
        let _ = to.write_all(bytes).await;
        let _ = to.flush().await;
        let _ = to.shutdown().await;
        let mut all = Vec::new();
        // A peer that is cut off may see a reset in place of an end.
        let _ = from.read_to_end(&mut all).await;
        let mut rest = all.as_slice();
        let mut frames = Vec::new();
        while let Ok(Some(frame)) = frame::read::<ServerFrame>(&mut rest).await {
            frames.push(frame);
        }
        frames
    })
}

fn refusal(frames: &[ServerFrame]) -> Option<v1::Code> {
    match frames.last()?.response.as_ref()?.result.as_ref()? {
        response::Result::Failure(f) => Some(f.code()),
        _ => None,
    }
}

#[test]
fn oversized_and_malformed_messages_are_refused() {
    let grid = TestGrid::start(0, Timing::default());
    let huge = (MAX_FRAME_BYTES as u32 + 1).to_be_bytes();
    assert_eq!(refusal(&talk(&grid, true, &huge)), Some(v1::Code::Invalid));
    assert_eq!(refusal(&talk(&grid, false, &huge)), Some(v1::Code::Invalid));
    assert_eq!(
        refusal(&talk(&grid, true, &[0, 0, 0, 2, 0xff, 0xff])),
        Some(v1::Code::Invalid)
    );
    let mut early = Vec::new();
    frame::append(&mut early, &ClientFrame::default()).expect("fits");
    assert_eq!(
        refusal(&talk(&grid, false, &early)),
        Some(v1::Code::Unauthenticated)
    );
    // A request without an operation is answered, and the connection goes on.
    let mut twice = early.clone();
    twice.extend_from_slice(&early);
    let answers = talk(&grid, true, &twice);
    assert_eq!(answers.len(), 2);
    assert_eq!(refusal(&answers), Some(v1::Code::Invalid));
    // Foreign bytes, as frames and as they are.
    for seed in 0..100 {
        let noise = bytes(1 + (seed as usize * 7) % 300, seed);
        let mut framed = (noise.len() as u32).to_be_bytes().to_vec();
        framed.extend_from_slice(&noise);
        talk(&grid, seed % 2 == 0, &framed);
        talk(&grid, true, &noise);
    }
    assert!(grid.admin().status().is_ok(), "the service still answers");
}

#[test]
fn frames_have_a_limit_on_this_side_too() {
    let long = ClientFrame {
        number: 1,
        body: Some(client_frame::Body::Hello(Hello {
            token: "x".repeat(MAX_FRAME_BYTES),
        })),
    };
    assert!(long.encoded_len() > MAX_FRAME_BYTES);
    let mut out = Vec::new();
    assert!(matches!(
        frame::append(&mut out, &long),
        Err(FrameError::TooLarge(_))
    ));
}
