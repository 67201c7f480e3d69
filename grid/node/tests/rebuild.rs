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
