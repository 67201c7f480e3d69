//! Requests that nobody should send, at the real ports: odd operations with a good token, broken HTTP with a good
//! right. Both services go on, nothing changes, nothing of others is told.

mod common;

use common::{TestGrid, bytes, put, read};
use kuroshio_client::{ClientError, Grid, v1, v1::request::Op};
use kuroshio_metad::Timing;
use kuroshio_service::{Endpoint, dial_tls, door};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// A source of numbers (SplitMix64).
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of[(self.next() % of.len() as u64) as usize].clone()
    }

    fn number(&mut self) -> u64 {
        let odd = [0, 1, 7, 255, 1 << 31, 1 << 32, 1 << 62, 1 << 63, u64::MAX];
        self.pick(&odd)
    }

    fn small(&mut self) -> u32 {
        self.number() as u32
    }

    fn path(&mut self) -> Vec<u8> {
        let odd: [&[u8]; 16] = [
            b"/theirs/secret",
            b"/theirs",
            b"/",
            b"",
            b"..",
            b"/..",
            b"/theirs/../theirs/secret",
            b"//theirs//secret/",
            b"/theirs/secret/x",
            b"/theirs/\xff\xfe",
            b"/theirs/new",
            b"/\0",
            b"relative",
            b"/theirs/link",
            b"/no/such/dir",
            b"/theirs/.",
        ];
        self.pick(&odd).to_vec()
    }

    fn text(&mut self) -> String {
        let odd = [
            "",
            "admin",
            "node1",
            "bob",
            "a b",
            "../x",
            "\0",
            "x=1,y=2",
            "0",
            "-1",
            "99999999999",
            "site=1",
            "storage.read:/",
            "kuroshio.admin",
        ];
        let long = "x".repeat(5000);
        if self.next().is_multiple_of(16) {
            long
        } else {
            self.pick(&odd).to_owned()
        }
    }
}

/// Any operation with odd contents.
fn odd_request(rng: &mut Rng) -> Op {
    let path = rng.path();
    let object = (rng.number(), rng.number());
    match rng.next() % 30 {
        0 => Op::MakeDir(v1::MakeDirRequest {
            path,
            mode: rng.small(),
            umask: rng.small(),
        }),
        1 => Op::Remove(v1::RemoveRequest {
            path,
            directory: rng.next().is_multiple_of(2),
        }),
        2 => Op::Rename(v1::RenameRequest {
            from: path,
            to: rng.path(),
            no_replace: false,
        }),
        3 => Op::Link(v1::LinkRequest {
            existing: path,
            path: rng.path(),
        }),
        4 => Op::Symlink(v1::SymlinkRequest {
            target: rng.path(),
            path,
        }),
        5 => Op::SetAttr(v1::SetAttrRequest {
            path,
            mode: Some(rng.small()),
            owner: Some(rng.text()),
            group: Some(rng.text()),
            atime_ns: Some(rng.number() as i64),
            mtime_ns: Some(i64::MIN),
        }),
        6 => Op::Create(v1::CreateRequest {
            path,
            size_hint_bytes: rng.number(),
            near_host: rng.text(),
            avoid: vec![rng.text()],
            ..Default::default()
        }),
        7 => Op::Commit(v1::CommitRequest {
            path,
            inode: object.0,
            generation: object.1,
            new_file: rng.next().is_multiple_of(2),
            size_bytes: rng.number(),
            digest: vec![1; (rng.next() % 40) as usize],
            token: rng.text(),
            receipts: vec![v1::Receipt {
                node: rng.text(),
                mac: vec![0; 32],
            }],
            ..Default::default()
        }),
        8 => Op::Abandon(v1::AbandonRequest {
            inode: object.0,
            generation: object.1,
            token: rng.text(),
        }),
        9 => Op::Open(v1::PathRequest {
            path,
            ..Default::default()
        }),
        10 => Op::Where(v1::PathRequest {
            path,
            near_host: rng.text(),
            ..Default::default()
        }),
        11 => Op::SetCopies(v1::SetCopiesRequest {
            path,
            copies: rng.text(),
        }),
        12 => Op::Replicate(v1::ReplicateRequest {
            path,
            copies: rng.small(),
            nodes: vec![rng.text()],
            ..Default::default()
        }),
        13 => Op::SetNode(v1::SetNodeRequest {
            name: rng.text(),
            state: rng.pick(&["up", "lost", "x"]).into(),
        }),
        14 => Op::ListJobs(v1::ListJobsRequest {
            jobs: vec![rng.number(), rng.number()],
            open_only: false,
        }),
        15 => Op::CancelJob(v1::CancelJobRequest { job: rng.number() }),
        16 => Op::IssueTicket(v1::IssueTicketRequest {
            user: rng.text(),
            groups: vec![rng.text()],
            scope: rng.text(),
            valid_s: rng.number(),
            for_node: rng.next().is_multiple_of(2),
        }),
        17 => Op::Join(v1::JoinRequest {
            site: rng.text(),
            address: rng.text(),
            pin: rng.text(),
            ..Default::default()
        }),
        18 => Op::Heartbeat(v1::HeartbeatRequest {
            capacity_bytes: rng.number(),
            ..Default::default()
        }),
        19 => Op::OrderDone(v1::OrderDoneRequest {
            order: rng.number(),
            ok: true,
            ..Default::default()
        }),
        20 => Op::Close(v1::CloseRequest { handle: rng.number() }),
        21 => Op::Inventory(v1::InventoryRequest {
            objects: vec![
                v1::ObjectName {
                    inode: object.0,
                    generation: object.1,
                    fragment: rng.small(),
                    ..Default::default()
                };
                3
            ],
            ..Default::default()
        }),
        22 => Op::GetQuota(v1::QuotaRequest {
            user: rng.text(),
            group: rng.text(),
            path,
        }),
        23 => Op::SetQuota(v1::SetQuotaRequest {
            whose: Some(v1::QuotaRequest {
                user: rng.text(),
                ..Default::default()
            }),
            max_files: Some(rng.number()),
            max_bytes: Some(rng.number()),
        }),
        24 => Op::GetAcl(v1::AclRequest {
            path,
            defaults: rng.next().is_multiple_of(2),
            entries: Vec::new(),
        }),
        25 => Op::SetAcl(v1::AclRequest {
            path,
            defaults: false,
            entries: vec![
                v1::AclEntry {
                    tag: rng.small() as i32,
                    name: rng.text(),
                    bits: rng.small()
                };
                2
            ],
        }),
        26 => Op::GetXattr(v1::XattrRequest {
            path,
            name: rng.text().into_bytes(),
            ..Default::default()
        }),
        27 => Op::SetXattr(v1::XattrRequest {
            path,
            name: rng.text().into_bytes(),
            value: vec![0; 70_000],
            create: true,
            replace: rng.next().is_multiple_of(2),
        }),
        28 => Op::Check(v1::CheckRequest { limit: rng.small() }),
        _ => Op::List(v1::ListRequest {
            path,
            after: rng.path(),
            limit: rng.small(),
        }),
    }
}

#[test]
fn odd_requests_change_nothing_and_tell_nothing() {
    let grid = TestGrid::start(1, Timing::default());
    let admin = grid.admin();
    admin.make_dir(b"/theirs", 0o700, 0).expect("made");
    let secret = bytes(3000, 1);
    put(&admin, "/theirs/secret", &secret, 0o600).expect("put");
    admin.symlink(b"/theirs/secret", b"/theirs/link").expect("made");
    let before = admin.stat(b"/theirs/secret", true).expect("there");
    let names = |g: &Grid, path: &[u8]| {
        let listed = g.list(path).collect::<Result<Vec<_>, _>>().expect("listed");
        listed.into_iter().map(|e| e.name).collect::<Vec<_>>()
    };
    let (root, theirs) = (names(&admin, b"/"), names(&admin, b"/theirs"));
    let bob = grid.user("bob");
    let mut rng = Rng(11);
    let mut refused = 0;
    for turn in 0..3000 {
        let op = odd_request(&mut rng);
        let shown = format!("{op:?}").chars().take(200).collect::<String>();
        match bob.call(op) {
            Ok(answer) => {
                let text = format!("{answer:?}");
                assert!(
                    !text.contains("WriteGrant") && !text.contains("ReadGrant"),
                    "{turn}: {shown}: {text}"
                );
            }
            Err(ClientError::Failed(f)) => {
                refused += 1;
                assert!(f.code() != v1::Code::Internal, "{turn}: {shown}: {f}");
                assert!(f.text.len() < 8192, "{turn}: {shown}");
            }
            Err(e) => panic!("{turn}: {shown}: {e}"),
        }
    }
    assert!(refused > 2000, "{refused}");
    assert_eq!(admin.stat(b"/theirs/secret", true).expect("there"), before);
    assert_eq!((names(&admin, b"/"), names(&admin, b"/theirs")), (root, theirs));
    assert!(read(&admin, "/theirs/secret").expect("read") == secret);
    let nodes = admin.nodes().expect("nodes");
    assert!(nodes.len() == 1 && nodes[0].state == "up");
    let findings = admin.check(0).expect("checked");
    assert!(findings.is_empty(), "{findings:?}");
}

/// Longest wait for the end of an answer that may never come: a request that promises more than it sends.
const ANSWER: std::time::Duration = std::time::Duration::from_secs(2);

/// Sends bytes to the data service, and then the end if it shall come; what it said until it closed.
fn say(place: &v1::Place, bytes: &[u8], end: bool) -> String {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("runtime").block_on(async {
        let pin = place.pin.parse().expect("pin");
        let stream = dial_tls(&place.address, pin, door::ALPN_HTTP)
            .await
            .expect("dialled");
        let (mut from, mut to) = tokio::io::split(stream);
        let _ = to.write_all(bytes).await;
        let _ = to.flush().await;
        if end {
            let _ = to.shutdown().await;
        }
        let mut all = Vec::new();
        // A peer that is cut off may see a reset in place of an end.
        let _ = tokio::time::timeout(ANSWER, from.read_to_end(&mut all)).await;
        String::from_utf8_lossy(&all).into_owned()
    })
}

#[test]
fn broken_http_is_refused_and_the_node_goes_on() {
    let grid = TestGrid::start(1, Timing::default());
    grid.open_dir("/pub");
    let alice = grid.user("alice");
    let content = bytes(100_000, 2);
    put(&alice, "/pub/f", &content, 0o600).expect("put");
    let place = alice.open(b"/pub/f").expect("open").fragments[0].places[0].clone();
    let (path, token) = (&place.path, &place.token);
    let auth = format!("Host: x\r\nAuthorization: Bearer {token}\r\n");
    let good = say(
        &place,
        format!("GET {path} HTTP/1.1\r\n{auth}Range: bytes=0-9\r\nConnection: close\r\n\r\n").as_bytes(),
        false,
    );
    assert!(
        good.starts_with("HTTP/1.1 206"),
        "the way requests are made here is right: {good}"
    );
    let long = "x".repeat(200_000);
    let requests = [
        format!("GET {path} HTTP/1.1\r\n{auth}X: {long}\r\n\r\n"),
        format!("GET {path}{long} HTTP/1.1\r\n{auth}\r\n"),
        format!("GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {long}\r\n\r\n"),
        format!("PUT {path} HTTP/1.1\r\n{auth}Content-Length: 18446744073709551615\r\n\r\n"),
        format!("PUT {path} HTTP/1.1\r\n{auth}Content-Length: -1\r\n\r\nx"),
        format!("PUT {path} HTTP/1.1\r\n{auth}Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nzz\r\n"),
        format!("DELETE {path} HTTP/1.1\r\n{auth}\r\n"),
        format!("POST {path} HTTP/1.1\r\n{auth}\r\n"),
        format!("GET {path} HTTP/9.9\r\n{auth}\r\n"),
        "GET / HTTP/1.1\r\n\r\n".to_owned(),
        "\r\n\r\n\r\n".to_owned(),
        format!("GET http://elsewhere{path} HTTP/1.1\r\n\r\n"),
    ];
    for request in &requests {
        let answer = say(&place, request.as_bytes(), false);
        assert!(
            !answer.starts_with("HTTP/1.1 2"),
            "{}: {answer}",
            &request[..40.min(request.len())]
        );
    }
    for range in [
        "bytes=5-1",
        "bytes=-0",
        "bytes=999999-",
        "bytes=18446744073709551615-18446744073709551616",
        "lines=1-2",
        "bytes=a-b",
    ] {
        let request = format!("GET {path} HTTP/1.1\r\n{auth}Range: {range}\r\nConnection: close\r\n\r\n");
        let answer = say(&place, request.as_bytes(), false);
        let status = answer.get(9..12).unwrap_or_default().to_owned();
        // A range that is not one is no range (RFC 9110, 14.2).
        assert!(
            ["200", "400", "416"].contains(&status.as_str()),
            "{range}: {answer:.200}"
        );
    }
    for seed in 0..100 {
        let noise = bytes(1 + (seed as usize * 37) % 3000, seed);
        let answer = say(&place, &noise, true);
        assert!(!answer.starts_with("HTTP/1.1 2"), "seed {seed}");
        let cut =
            format!("PUT {path} HTTP/1.1\r\n{auth}Content-Range: bytes 0-9/10\r\nContent-Length: 10\r\n\r\n");
        let cut = &cut.as_bytes()[..cut.len() - (seed as usize % 40)];
        assert!(!say(&place, cut, true).starts_with("HTTP/1.1 2"), "seed {seed}");
    }
    assert!(read(&alice, "/pub/f").expect("read") == content);
    let pin = place.pin.parse().expect("pin");
    let http = Endpoint::pinned(&place.address, pin, "no.such.right".into()).expect("endpoint");
    assert!(
        http.dial(None, None)
            .expect("dialled")
            .get_range(path, 0, 1, &mut |_| Ok(()))
            .is_err()
    );
}
