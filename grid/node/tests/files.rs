//! Namespace, content, replicas and their repair through the client library.

mod common;

use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use common::{TestGrid, bytes, holders, put, read, wait_for};
use kuroshio_client::{Cancel, ClientError, Grid, v1};
use kuroshio_metad::Timing;
use kuroshio_service::near::{self, Ask, Told};

fn code(result: Result<impl Sized, ClientError>) -> Option<v1::Code> {
    result.err().and_then(|e| e.code())
}

#[test]
fn content_comes_back_whole() {
    let grid = TestGrid::start(1, Timing::default());
    let admin = grid.admin();
    admin.make_dir(b"/d", 0o755, 0).expect("made");
    for (n, len) in [0, 1, 1000, 1 << 20, (1 << 20) + 1, 9 << 20, 20_000_001]
        .into_iter()
        .enumerate()
    {
        let content = bytes(len, n as u64);
        let path = format!("/d/f{n}");
        let sent = put(&admin, &path, &content, 0o644).expect("put");
        assert_eq!(sent.attr.size_bytes, len as u64);
        assert_eq!(&sent.digest, blake3::hash(&content).as_bytes());
        assert!(read(&admin, &path).expect("read") == content, "{path}");
    }
    let names = admin
        .list(b"/d")
        .map(|e| e.expect("entry").name)
        .collect::<Vec<_>>();
    assert_eq!(names.len(), 7);
    // New content takes the place of the old one; the inode stays.
    let before = admin.stat(b"/d/f2", true).expect("there");
    put(&admin, "/d/f2", b"new", 0o644).expect("put again");
    let after = admin.stat(b"/d/f2", true).expect("there");
    assert_eq!(before.inode, after.inode);
    assert!(after.generation > before.generation);
    assert_eq!(read(&admin, "/d/f2").expect("read"), b"new");
}

#[test]
fn names_do_what_posix_says() {
    let grid = TestGrid::start(1, Timing::default());
    let g = grid.admin();
    put(&g, "/a", b"1", 0o644).expect("put");
    g.make_dir(b"/d", 0o755, 0).expect("made");
    assert_eq!(code(g.make_dir(b"/d", 0o755, 0)), Some(v1::Code::Exists));
    assert_eq!(code(g.make_dir(b"/x/y", 0o755, 0)), Some(v1::Code::NoEntry));
    assert_eq!(code(g.make_dir(b"/a/y", 0o755, 0)), Some(v1::Code::NotDirectory));
    g.rename(b"/a", b"/d/b", false).expect("renamed");
    assert_eq!(code(g.stat(b"/a", true)), Some(v1::Code::NoEntry));
    g.link(b"/d/b", b"/c").expect("linked");
    assert_eq!(g.stat(b"/c", true).expect("there").links, 2);
    g.symlink(b"d/b", b"/s").expect("made");
    assert_eq!(read(&g, "/s").expect("read through the link"), b"1");
    assert_eq!(g.read_link(b"/s").expect("target"), b"d/b");
    assert_eq!(code(g.remove(b"/d", true)), Some(v1::Code::NotEmpty));
    assert_eq!(code(g.remove(b"/d", false)), Some(v1::Code::IsDirectory));
    g.remove(b"/d/b", false).expect("removed");
    assert_eq!(read(&g, "/c").expect("the other name"), b"1");
    g.remove(b"/c", false).expect("removed");
    g.remove(b"/d", true).expect("removed");
    assert_eq!(code(read(&g, "/s").map(drop)), Some(v1::Code::NoEntry));
}

#[test]
fn many_requests_are_on_their_way_at_once() {
    let grid = TestGrid::start(1, Timing::default());
    let g = grid.admin();
    let make = |n: u32| {
        let path = format!("/d{n}").into_bytes();
        let op = v1::request::Op::MakeDir(v1::MakeDirRequest {
            path,
            mode: 0o755,
            umask: 0,
        });
        g.submit(op).expect("submitted")
    };
    let pending = (0..2000).map(make).collect::<Vec<_>>();
    for p in pending {
        p.wait().expect("made");
    }
    // More than one page of a listing.
    let mut names = g.list(b"/").map(|e| e.expect("entry").name).collect::<Vec<_>>();
    assert_eq!(names.len(), 2000);
    names.dedup();
    assert_eq!(names.len(), 2000);
}

fn timing(lost_after_s: u64) -> Timing {
    Timing {
        down_after_ms: 2500,
        lost_after_s,
        ..Timing::default()
    }
}

#[test]
fn a_rule_makes_replicas_and_a_lost_node_is_repaired() {
    let mut grid = TestGrid::start(3, timing(3));
    let g = grid.admin();
    let content = bytes(3_000_000, 5);
    g.set_copies(b"/", "2").expect("rule");
    put(&g, "/f", &content, 0o644).expect("put");
    wait_for("two replicas", || holders(&g, "/f").len() == 2);
    let held = holders(&g, "/f");
    let gone = held.first().expect("a holder").clone();
    let n = gone
        .strip_prefix("node")
        .and_then(|n| n.parse::<usize>().ok())
        .expect("number");
    drop(grid.nodes[n - 1].take());
    wait_for("two replicas on nodes that are there", || {
        let now = holders(&g, "/f");
        now.len() == 2 && !now.contains(&gone)
    });
    assert!(read(&g, "/f").expect("read") == content);
    // The node comes back with its disk: what it has is verified and counts again.
    grid.nodes[n - 1] = Some(kuroshio_node::Node::start(&grid.node_dir(n as u32)).expect("node"));
    wait_for("the old replica counts", || holders(&g, "/f").contains(&gone));
}

#[test]
fn replicas_are_made_on_request_and_a_drained_node_is_emptied() {
    let grid = TestGrid::start(3, Timing::default());
    let g = grid.admin();
    put(&g, "/f", &bytes(2_000_000, 6), 0o644).expect("put");
    let first = holders(&g, "/f").pop().expect("one");
    let jobs = g.replicate(b"/f", 2, Vec::new()).expect("jobs");
    assert_eq!(jobs.len(), 1);
    let id = jobs[0].job;
    wait_for("job done", || {
        let job = g.jobs(&[id], false).expect("jobs").pop().expect("the job");
        assert_ne!(job.state, "failed", "{}", job.error);
        job.state == "done"
    });
    assert_eq!(holders(&g, "/f").len(), 2);
    assert!(
        g.replicate(b"/f", 2, Vec::new())
            .expect("nothing to do")
            .is_empty()
    );
    assert_eq!(code(g.replicate(b"/f", 4, Vec::new())), Some(v1::Code::NoNode));
    g.set_copies(b"/f", "2").expect("rule");
    g.set_node(&first, "drain").expect("drained");
    wait_for("the drained node is empty", || {
        let now = holders(&g, "/f");
        now.len() == 2 && !now.contains(&first)
    });
    let n = first
        .strip_prefix("node")
        .and_then(|n| n.parse::<u32>().ok())
        .expect("number");
    wait_for("its bytes are gone", || {
        common::object_files(&grid.node_dir(n)).is_empty()
    });
}

/// The node names an address where nobody listens: what arrives has gone as a file.
#[test]
fn on_one_host_content_goes_as_files() {
    let mut grid = TestGrid::start(0, Timing::default());
    let config = kuroshio_node::NodeConfig {
        advertise: Some("127.0.0.1:1".into()),
        ..common::node_at("")
    };
    grid.add_node(1, config);
    grid.wait_for_nodes(1);
    let far = grid.admin();
    let near = Grid::connect(&grid.admin_ticket()).expect("connected");
    assert!(
        put(&far, "/f", b"x", 0o644).is_err(),
        "by the network it cannot be reached"
    );
    let mib = 1 << 20;
    for len in [
        1,
        4096,
        300_000,
        mib,
        mib + 1,
        9 * mib,
        9 * mib + 1,
        17 * mib,
        40_000_001,
    ] {
        let content = bytes(len, len as u64);
        let sent = put(&near, "/f", &content, 0o644).expect("put");
        assert_eq!(&sent.digest, blake3::hash(&content).as_bytes());
        let mut out = Vec::new();
        let got = near.read_to(b"/f", &mut out, &Cancel::default()).expect("read");
        assert!(out == content, "{len} bytes");
        assert_eq!((got.digest, got.failovers), (sent.digest, 0));
        assert!(read(&far, "/f").is_err());
    }
    // Former contents may still be there.
    for file in common::object_files(&grid.node_dir(1)) {
        let mut object = std::fs::read(&file).expect("read");
        object[0] ^= 1;
        std::fs::write(&file, object).expect("written");
    }
    let read = read(&near, "/f");
    assert!(matches!(read, Err(ClientError::Digest(_))), "{read:?}");
}

/// Parts of files that one host hands over, in any order; and what is no part, or nobody's right.
#[test]
fn parts_are_taken_as_files() {
    let grid = TestGrid::start(1, Timing::default());
    let g = grid.admin();
    let grant = g.create(v1::CreateRequest {
        path: b"/f".to_vec(),
        ..v1::CreateRequest::default()
    });
    let place = grant.expect("grant").places.remove(0);
    let pin = place.pin.parse().expect("a pin");
    let node = near::connect(pin, Duration::from_secs(10)).expect("a node of this host");
    let content = bytes(12_000_000, 3);
    let hand = |token: &str, range: Range<u64>, of: u64, total_bytes: Option<u64>| {
        let file = tempfile::tempfile().expect("file");
        let part = content.get(range.start as usize..range.end.min(of) as usize);
        file.write_all_at(part.unwrap_or_default(), 0).expect("written");
        let ask = Ask::Part {
            token: token.to_owned(),
            path: place.path.clone(),
            at_bytes: range.start,
            size_bytes: range.end - range.start,
            total_bytes,
        };
        near::ask(&node, &ask, near::file_of(&file)).expect("answered").0
    };
    let (all, size) = (content.len() as u64, Some(content.len() as u64));
    let refused = |told: Told, wanted: u16| match told {
        Told::Refused { status, .. } => assert_eq!(status, wanted),
        told => panic!("{told:?}"),
    };
    // It hears what it needs to check rights a moment after it counts as up.
    wait_for("the node has joined", || {
        !matches!(
            hand("nobody's", 0..10, all, None),
            Told::Refused { status: 503, .. }
        )
    });
    refused(hand("nobody's", 0..10, all, None), 401);
    // Nothing; more than the whole; more than the file has; beyond all numbers.
    refused(hand(&place.token, 10..10, all, None), 400);
    refused(hand(&place.token, 10..all, all, Some(all - 1)), 400);
    refused(hand(&place.token, 0..10, 9, None), 400);
    refused(hand(&place.token, u64::MAX - 1..u64::MAX, 9, None), 400);
    let none = Ask::Part {
        token: place.token.clone(),
        path: place.path.clone(),
        at_bytes: 0,
        size_bytes: 1,
        total_bytes: None,
    };
    refused(near::ask(&node, &none, None).expect("answered").0, 400);
    // The last one is not the end while the first is missing.
    let third = 8_000_000..all;
    assert_eq!(hand(&place.token, third.clone(), all, None), Told::Taken {});
    assert_eq!(hand(&place.token, 0..1_000_001, all, None), Told::Taken {});
    assert_eq!(hand(&place.token, third, all, size), Told::Taken {});
    let told = hand(&place.token, 1_000_001..8_000_000, all, size);
    let digest = blake3::hash(&content).to_hex().to_string();
    assert!(
        matches!(&told, Told::Written { digest: found, .. } if *found == digest),
        "{told:?}"
    );
}

/// Stops a node when so many bytes have come.
struct Cut<'a> {
    out: Vec<u8>,
    at: usize,
    node: &'a mut Option<kuroshio_node::Node>,
}

impl std::io::Write for Cut<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.out.extend_from_slice(bytes);
        if self.out.len() >= self.at {
            drop(self.node.take());
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_reader_goes_on_at_another_replica() {
    let mut grid = TestGrid::start(2, timing(600));
    let g: Grid = grid.admin();
    let content = bytes(40_000_000, 7);
    put(&g, "/f", &content, 0o644).expect("put");
    for job in g.replicate(b"/f", 2, Vec::new()).expect("jobs") {
        wait_for("replica", || {
            g.jobs(&[job.job], false).expect("jobs")[0].state == "done"
        });
    }
    // The first place of the grant is read from.
    let first = holders(&g, "/f").first().expect("a holder").clone();
    let n = first
        .strip_prefix("node")
        .and_then(|n| n.parse::<usize>().ok())
        .expect("number");
    let mut cut = Cut {
        out: Vec::new(),
        at: 10_000_000,
        node: &mut grid.nodes[n - 1],
    };
    let got = g.read_to(b"/f", &mut cut, &Cancel::default()).expect("read");
    assert!(cut.out == content);
    assert_eq!(got.failovers, 1);
    assert_eq!(got.nodes.len(), 2);
    assert!(grid.nodes[n - 1].is_none());
}

#[test]
fn a_restarted_service_knows_all_that_it_acknowledged() {
    let mut grid = TestGrid::start(1, Timing::default());
    let g = grid.admin();
    for n in 0..20 {
        put(&g, &format!("/f{n}"), &bytes(1000 + n, n as u64), 0o644).expect("put");
    }
    grid.metad = None;
    grid.start_metad();
    // The same client goes on; the node joins again by itself.
    grid.wait_for_nodes(1);
    for n in 0..20 {
        assert!(read(&g, &format!("/f{n}")).expect("read") == bytes(1000 + n, n as u64));
    }
    put(&g, "/after", b"x", 0o644).expect("put");
}
