//! A catalog that has lost its memory: nothing goes that it does not know, and `fsck` makes files of it again.

mod common;

use std::fs::{self, FileTimes};
use std::path::Path;
use std::time::Duration;

use common::{TestGrid, bytes, holders, object_files, put, read, wait_for};
use kuroshio_client::{Cancel, Grid, PutOptions, v1};
use kuroshio_metad::Timing;
use kuroshio_service::Endpoint;

const NODES: u32 = 3;

fn start() -> TestGrid {
    let grid = TestGrid::start(NODES, Timing::default());
    grid.admin().set_copies(b"/", "2").expect("rule");
    grid
}

fn settled(g: &Grid) -> bool {
    let status = g.status().expect("status");
    status.below_copies == 0 && status.jobs_active == 0
}

/// As if all objects had been written a day earlier: what nobody knows is removed when a node joins.
fn age(grid: &TestGrid) {
    let day = Duration::from_secs(86_400);
    for n in 1..=NODES {
        for object in object_files(&grid.node_dir(n)) {
            let file = fs::File::options().write(true).open(object).expect("opened");
            let written = file.metadata().and_then(|m| m.modified()).expect("time");
            let times = FileTimes::new().set_modified(written - day);
            file.set_times(times).expect("times");
        }
    }
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("folder");
    for entry in fs::read_dir(from).expect("listed").flatten() {
        fs::copy(entry.path(), to.join(entry.file_name())).expect("copied");
    }
}

/// Ends the service, changes the folder of its catalog, and starts it again.
fn with_catalog(grid: &mut TestGrid, change: impl FnOnce(&Path)) {
    grid.metad.take().expect("it runs").stop();
    change(&grid.metad_dir().join("catalog"));
    grid.start_metad();
    grid.wait_for_nodes(NODES as usize);
}

fn objects(grid: &TestGrid) -> usize {
    (1..=NODES).map(|n| object_files(&grid.node_dir(n)).len()).sum()
}

fn fsck(g: &Grid) -> v1::SpoolsReply {
    let reply = g.spools(v1::SpoolsRequest::default()).expect("compared");
    assert!(reply.nodes.iter().all(|n| n.ok), "{reply:?}");
    assert!(!reply.more);
    reply
}

fn nothing_is_wrong(g: &Grid) {
    let found = g.check(0).expect("checked");
    let found: Vec<_> = found.iter().map(|f| String::from_utf8_lossy(f)).collect();
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn files_come_back_by_name_after_the_catalog_was_deleted() {
    let mut grid = start();
    let g = grid.admin();
    g.make_dir(b"/people", 0o755, 0).expect("made");
    g.make_dir("/people/ann é".as_bytes(), 0o777, 0).expect("made");
    let ann = grid.user("ann");
    let (small, large) = (bytes(700, 1), bytes(3_000_000, 2));
    put(&ann, "/people/ann é/small", &small, 0o640).expect("put");
    put(&ann, "/people/ann é/large", &large, 0o600).expect("put");
    // New content of a file that is there; a rename; a later file of the former name.
    put(&g, "/people/over", &bytes(10, 3), 0o644).expect("put");
    put(&g, "/people/over", &bytes(20, 4), 0o644).expect("put");
    put(&g, "/before", &bytes(30, 5), 0o644).expect("put");
    put(&g, "/copied", &bytes(60, 8), 0o644).expect("put");
    wait_for("two copies of all", || settled(&g));
    g.rename(b"/before", b"/after", false).expect("renamed");
    put(&g, "/before", &bytes(40, 6), 0o644).expect("put");
    // The copy that is made after the rename knows the name.
    g.rename(b"/copied", b"/people/renamed", false).expect("renamed");
    g.set_copies(b"/people/renamed", "3").expect("rule");
    let path = grid.dir.path().join("local");
    fs::write(&path, &large).expect("written");
    let options = PutOptions {
        exclusive: false,
        mode: 0o644,
        umask: 0o022,
        near_host: String::new(),
        mtime_ns: Some(1_000_000_007),
    };
    let parts = [0..1_000_000, 1_000_000..1_000_001, 1_000_001..3_000_000];
    g.put_fragments(b"/parts", &path, &parts, &options, &Cancel::default())
        .expect("put");
    wait_for("two copies of all", || settled(&g));
    // What was overwritten is removed by its nodes.
    wait_for("nothing but what files have", || {
        objects(&grid) == 2 * (2 + 1 + 2 + 3) + 3
    });
    let inode = |path: &str| g.stat(path.as_bytes(), true).expect("there").inode;
    let (was_small, was_after) = (inode("/people/ann é/small"), inode("/after"));
    let held = objects(&grid);
    drop(g);

    age(&grid);
    with_catalog(&mut grid, |catalog| {
        fs::remove_dir_all(catalog).expect("deleted");
    });
    let g = grid.admin();
    let reply = fsck(&g);
    assert_eq!(
        (reply.rebuilt, reply.unnamed, reply.renewed, reply.left),
        (6, 1, 0, 0),
        "{reply:?}"
    );
    assert!(reply.nodes.iter().all(|n| !n.held && n.unknown == 0));
    assert_eq!(objects(&grid), held, "nothing was removed");

    assert!(read(&g, "/people/ann é/small").expect("read") == small);
    assert!(read(&g, "/people/ann é/large").expect("read") == large);
    assert!(read(&g, "/parts").expect("read") == large);
    assert_eq!(read(&g, "/people/over").expect("read"), bytes(20, 4));
    assert_eq!(
        read(&g, "/before").expect("read"),
        bytes(40, 6),
        "the later file of the name"
    );
    assert_eq!(read(&g, "/people/renamed").expect("read"), bytes(60, 8));
    assert_eq!(holders(&g, "/people/renamed").len(), 3);
    let aside = format!("/lost+found/{was_after}");
    assert_eq!(
        read(&g, &aside).expect("read"),
        bytes(30, 5),
        "its stored name is another's by now"
    );
    let attr = g.stat("/people/ann é/small".as_bytes(), true).expect("there");
    assert_eq!(
        (attr.inode, attr.owner.as_str(), attr.group.as_str()),
        (was_small, "ann", "users")
    );
    assert_eq!((attr.mode, attr.copies.as_str()), (0o640, "2"));
    let parts = g.stat(b"/parts", true).expect("there");
    assert_eq!(
        (parts.fragments, parts.mtime_ns, parts.mode),
        (3, 1_000_000_007, 0o644)
    );
    assert_eq!(
        g.stat(b"/people", true).expect("there").mode,
        0o700,
        "for nobody else"
    );
    nothing_is_wrong(&g);
    // Numbers that objects bear are not given out again.
    put(&g, "/new", &bytes(50, 7), 0o644).expect("put");
    assert!(inode_of(&g, "/new") > was_after);
    // It is held no more: a second comparison finds nothing.
    let again = fsck(&g);
    assert_eq!((again.rebuilt, again.unnamed, again.gone), (0, 0, 0), "{again:?}");
}

/// What only the catalog knows.
fn furnish(grid: &TestGrid, g: &Grid) {
    g.make_dir(b"/people", 0o751, 0).expect("made");
    g.make_dir(b"/people/ann", 0o700, 0).expect("made");
    let owned = v1::SetAttrRequest {
        path: b"/people/ann".to_vec(),
        owner: Some("ann".into()),
        group: Some("physics".into()),
        mode: Some(0o2750),
        ..v1::SetAttrRequest::default()
    };
    g.set_attr(owned).expect("given away");
    let entry = |tag: v1::AclTag, name: &str, bits| v1::AclEntry {
        tag: tag.into(),
        name: name.into(),
        bits,
    };
    let list = |bits| {
        vec![
            entry(v1::AclTag::Owner, "", 7),
            entry(v1::AclTag::User, "eve", bits),
            entry(v1::AclTag::GroupOwner, "", 5),
            entry(v1::AclTag::Mask, "", 7),
            entry(v1::AclTag::Other, "", 0),
        ]
    };
    g.set_acl(b"/people/ann", false, list(5)).expect("access");
    g.set_acl(b"/people/ann", true, list(4)).expect("default");
    g.set_copies(b"/people/ann", "3").expect("rule");
    let xattr = |path: &str| v1::XattrRequest {
        path: path.into(),
        name: b"user.k".to_vec(),
        value: vec![0, 255],
        ..v1::XattrRequest::default()
    };
    g.set_xattr(xattr("/people")).expect("attribute");
    g.make_dir(b"/bound", 0o755, 0).expect("made");
    let bounds = |whose: v1::QuotaRequest, bytes| v1::SetQuotaRequest {
        whose: Some(whose),
        max_files: Some(50),
        max_bytes: Some(bytes),
    };
    let dir = v1::QuotaRequest {
        path: b"/bound".to_vec(),
        ..v1::QuotaRequest::default()
    };
    let user = v1::QuotaRequest {
        user: "ann".into(),
        ..v1::QuotaRequest::default()
    };
    g.set_quota(bounds(dir, 10_000)).expect("quota");
    g.set_quota(bounds(user, 20_000)).expect("quota");
    put(g, "/bound/f", &bytes(300, 20), 0o644).expect("put");
    put(&grid.user("ann"), "/people/ann/one", &bytes(400, 21), 0o4755).expect("put");
    g.set_xattr(xattr("/people/ann/one")).expect("attribute");
    g.set_copies(b"/people/ann/one", "here=3").expect("rule");
    g.link(b"/people/ann/one", b"/two").expect("linked");
    g.symlink(b"../nowhere", b"/people/link").expect("linked");
    g.link(b"/people/link", b"/link2").expect("linked");
    g.make_file(b"/empty", 0o604, 0).expect("made");
    for (path, special) in [("/fifo", v1::Special::Fifo), ("/socket", v1::Special::Socket)] {
        let made = v1::MakeFileRequest {
            path: path.into(),
            mode: 0o620,
            special: special.into(),
            ..v1::MakeFileRequest::default()
        };
        g.call(v1::request::Op::MakeFile(made)).expect("made");
    }
    put(g, "/was", &bytes(500, 22), 0o644).expect("put");
    put(g, "/later", &bytes(600, 23), 0o644).expect("put");
    put(g, "/removed", &bytes(700, 24), 0o644).expect("put");
    wait_for("all copies", || settled(g));
    g.rename(b"/was", b"/is", false).expect("renamed");
    let chmod = v1::SetAttrRequest {
        path: b"/is".to_vec(),
        mode: Some(0o600),
        ..v1::SetAttrRequest::default()
    };
    g.set_attr(chmod).expect("mode");
}

/// All that a user sees of a path, without numbers and times of change.
fn seen(g: &Grid, path: &str) -> String {
    let a = g
        .stat(path.as_bytes(), false)
        .unwrap_or_else(|e| panic!("{path}: {e}"));
    let mut text = format!(
        "{path} {:?} {:o} {}:{} links {} size {} mtime {} acl {}",
        a.kind(),
        a.mode,
        a.owner,
        a.group,
        a.links,
        a.size_bytes,
        a.mtime_ns,
        a.acl
    );
    if a.kind() == v1::Kind::Symlink {
        // The rule that it has of its directory means nothing.
        let target = g.read_link(path.as_bytes()).expect("a link");
        return format!("{text} to {}", String::from_utf8_lossy(&target));
    }
    text.push_str(&format!(" copies {}", a.copies));
    for default_list in [false, true] {
        if let Ok(list) = g.acl(path.as_bytes(), default_list) {
            text.push_str(&format!(" {list:?}"));
        }
    }
    for name in g.xattrs(path.as_bytes()).expect("names") {
        let value = g.xattr(path.as_bytes(), &name).expect("value");
        text.push_str(&format!(" {}={value:?}", String::from_utf8_lossy(&name)));
    }
    text
}

const FURNISHED: [&str; 13] = [
    "/",
    "/people",
    "/people/ann",
    "/people/ann/one",
    "/two",
    "/people/link",
    "/link2",
    "/empty",
    "/fifo",
    "/socket",
    "/is",
    "/bound",
    "/bound/f",
];

/// Files, bytes and bounds of a directory and a user.
fn quotas(g: &Grid) -> Vec<(u64, u64, Option<u64>, Option<u64>)> {
    let dir = v1::QuotaRequest {
        path: b"/bound".to_vec(),
        ..v1::QuotaRequest::default()
    };
    let user = v1::QuotaRequest {
        user: "ann".into(),
        ..v1::QuotaRequest::default()
    };
    let of = |whose| {
        let found = g.quota(whose).expect("quota");
        (found.files, found.bytes, found.max_files, found.max_bytes)
    };
    vec![of(dir), of(user)]
}

fn snapshot(g: &Grid) -> v1::SnapshotTaken {
    let asked = v1::SpoolsRequest {
        snapshot: true,
        ..v1::SpoolsRequest::default()
    };
    g.spools(asked).expect("taken").snapshot.expect("told")
}

#[test]
fn a_snapshot_gives_back_what_no_object_knows() {
    let mut grid = start();
    let g = grid.admin();
    furnish(&grid, &g);
    assert_eq!(snapshot(&g).path, b"/.kuroshio/catalog.0");
    assert_eq!(snapshot(&g).path, b"/.kuroshio/catalog.1", "in turn");
    let kept = g.stat(b"/.kuroshio", true).expect("there");
    assert_eq!(
        (kept.mode, kept.owner.as_str(), kept.copies.as_str()),
        (0o700, "admin", "3")
    );
    let before: Vec<String> = FURNISHED.iter().map(|p| seen(&g, p)).collect();
    let bounds = quotas(&g);
    let inode = inode_of(&g, "/two");
    // After it: another content, one that is new, one that is removed.
    put(&g, "/later", &bytes(601, 25), 0o640).expect("put");
    put(&g, "/people/new", &bytes(602, 26), 0o644).expect("put");
    g.remove(b"/removed", false).expect("removed");
    wait_for("all copies", || settled(&g));
    wait_for("nothing but what files have", || {
        objects(&grid) == 2 * 4 + 3 + 2 * 3
    });
    drop(g);

    age(&grid);
    with_catalog(&mut grid, |catalog| {
        fs::remove_dir_all(catalog).expect("deleted");
    });
    let g = grid.admin();
    let asked = v1::SpoolsRequest {
        snapshot: true,
        ..v1::SpoolsRequest::default()
    };
    assert!(g.spools(asked).is_err(), "an empty catalog takes none");
    let reply = fsck(&g);
    assert_eq!(
        (reply.rebuilt, reply.unnamed, reply.renewed),
        (5, 0, 0),
        "{reply:?}"
    );
    assert_eq!((reply.directories, reply.names), (3, 1 + 2 + 1 + 2), "{reply:?}");
    assert_eq!(
        (reply.missing, reply.missing_paths.clone()),
        (1, vec![b"/removed".to_vec()])
    );
    assert!(reply.snapshot_ns > 0 && reply.gone == 0);
    assert_eq!(reply.reasons.len(), 1, "the older snapshot: {reply:?}");
    let after: Vec<String> = FURNISHED.iter().map(|p| seen(&g, p)).collect();
    assert_eq!(after, before);
    assert_eq!(quotas(&g), bounds);
    assert_eq!(
        (inode_of(&g, "/two"), inode_of(&g, "/people/ann/one")),
        (inode, inode)
    );
    assert_eq!(read(&g, "/two").expect("read"), bytes(400, 21));
    assert_eq!(read(&g, "/later").expect("read"), bytes(601, 25));
    assert_eq!(
        g.stat(b"/later", true).expect("there").mode,
        0o644,
        "what is there keeps its mode"
    );
    assert_eq!(read(&g, "/people/new").expect("read"), bytes(602, 26));
    assert!(g.stat(b"/removed", true).is_err());
    wait_for("all copies", || settled(&g));
    nothing_is_wrong(&g);
    let again = fsck(&g);
    assert_eq!(
        (again.rebuilt, again.directories, again.snapshot_ns),
        (0, 0, 0),
        "{again:?}"
    );
    assert_eq!(snapshot(&g).path, b"/.kuroshio/catalog.0");
}

#[test]
fn a_snapshot_that_somebody_made_up_is_not_believed() {
    let mut grid = start();
    let g = grid.admin();
    put(&g, "/f", &bytes(100, 1), 0o600).expect("put");
    g.make_dir(b"/d", 0o755, 0).expect("made");
    let taken = snapshot(&g);
    let true_one = read(&g, &String::from_utf8(taken.path.clone()).expect("text")).expect("read");
    wait_for("all copies", || settled(&g));
    // The administrator's name on a content that no service wrote: later than the true one.
    let mut forged = true_one;
    let at = forged.len() / 2;
    forged[at] ^= 1;
    put(&g, "/.kuroshio/catalog.1", &forged, 0o600).expect("put");
    wait_for("all copies", || settled(&g));
    drop(g);
    age(&grid);
    with_catalog(&mut grid, |catalog| {
        fs::remove_dir_all(catalog).expect("deleted");
    });
    let g = grid.admin();
    let reply = fsck(&g);
    assert_eq!(
        (reply.rebuilt, reply.directories),
        (1, 1),
        "the one before it is read: {reply:?}"
    );
    assert!(reply.snapshot_ns > 0);
    assert!(reply.reasons.iter().any(|r| r.contains("snapshot")), "{reply:?}");
    assert_eq!(g.stat(b"/d", true).expect("there").mode, 0o755);
    nothing_is_wrong(&g);
}

fn inode_of(g: &Grid, path: &str) -> u64 {
    g.stat(path.as_bytes(), true).expect("there").inode
}

#[test]
fn an_older_catalog_learns_what_came_after_it() {
    let mut grid = start();
    let g = grid.admin();
    for n in 0..4 {
        put(&g, &format!("/f{n}"), &bytes(100, n), 0o644).expect("put");
    }
    wait_for("two copies of all", || settled(&g));
    drop(g);
    let backup = grid.dir.path().join("backup");
    with_catalog(&mut grid, |catalog| copy_folder(catalog, &backup));
    let g = grid.admin();
    // New; with another content; without a copy any more when the backup is back.
    g.make_dir(b"/d", 0o755, 0).expect("made");
    put(&g, "/d/new", &bytes(200, 10), 0o644).expect("put");
    put(&g, "/f0", &bytes(300, 11), 0o644).expect("put");
    g.remove(b"/f1", false).expect("removed");
    wait_for("two copies of all", || settled(&g));
    wait_for("nothing but what files have", || objects(&grid) == 2 * 4);
    drop(g);

    age(&grid);
    with_catalog(&mut grid, |catalog| {
        fs::remove_dir_all(catalog).expect("deleted");
        copy_folder(&backup, catalog);
    });
    let g = grid.admin();
    let reply = fsck(&g);
    assert_eq!(
        (reply.rebuilt, reply.unnamed, reply.renewed, reply.left),
        (1, 0, 1, 0),
        "{reply:?}"
    );
    assert_eq!((reply.gone, reply.gone_paths), (1, vec![b"/f1".to_vec()]));
    assert_eq!(read(&g, "/d/new").expect("read"), bytes(200, 10));
    assert_eq!(read(&g, "/f0").expect("read"), bytes(300, 11));
    for n in 2..4 {
        assert_eq!(read(&g, &format!("/f{n}")).expect("read"), bytes(100, n));
    }
    assert_eq!(holders(&g, "/f0").len(), 2);
    g.remove(b"/f1", false).expect("removed");
    wait_for("two copies of all", || settled(&g));
    nothing_is_wrong(&g);
}

#[test]
fn what_was_not_published_is_no_file_while_the_catalog_remembers() {
    let grid = start();
    let g = grid.admin();
    put(&g, "/f", &bytes(100, 1), 0o644).expect("put");
    wait_for("two copies of all", || settled(&g));
    // An object that a writer has given up.
    let wanted = v1::CreateRequest {
        path: b"/given-up".to_vec(),
        ..v1::CreateRequest::default()
    };
    let grant = g.create(wanted).expect("grant");
    let place = &grant.places[0];
    let content = bytes(400, 2);
    let pin = place.pin.parse().expect("a pin");
    let node = Endpoint::pinned(&place.address, pin, place.token.clone()).expect("endpoint");
    let mut http = node.dial(None, None).expect("dialled");
    let total = Some(content.len() as u64);
    let stored: serde_json::Value = http
        .put_part(&place.path, "", 0, &content, total)
        .expect("written");
    assert_eq!(stored["done"], true);
    let before = objects(&grid);
    let reply = fsck(&g);
    assert_eq!((reply.rebuilt, reply.unnamed), (0, 0), "{reply:?}");
    assert_eq!(reply.nodes.iter().map(|n| n.unknown).sum::<u64>(), 1);
    assert_eq!(objects(&grid), before);
    // Unless it is asked for.
    let all = v1::SpoolsRequest {
        rebuild: true,
        ..v1::SpoolsRequest::default()
    };
    let reply = g.spools(all).expect("compared");
    assert_eq!(reply.rebuilt, 1, "{reply:?}");
    assert_eq!(read(&g, "/given-up").expect("read"), content);
    nothing_is_wrong(&g);
}
