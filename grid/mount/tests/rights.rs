//! Who may: acting for another user, rights by number, access lists, extended attributes, nodes of this host.

mod common;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use common::{TestGrid, as_user};
use kuroshio_client::v1::{self, Code, request::Op, response::Result as Answer};
use kuroshio_client::{ClientError, Grid};
use kuroshio_service::Pin;
use kuroshio_service::near::{self, Ask, Told};

fn context(inode: u64, actor: Option<(&str, &[&str])>) -> v1::Context {
    v1::Context {
        inode,
        to_inode: 0,
        actor: actor.map(|(user, groups)| v1::Actor {
            user: user.into(),
            groups: groups.iter().map(|g| (*g).to_owned()).collect(),
        }),
    }
}

fn code(result: Result<Answer, ClientError>) -> Option<Code> {
    result.err().and_then(|e| e.code())
}

fn stat(path: &[u8]) -> Op {
    Op::Stat(v1::PathRequest {
        path: path.to_vec(),
        no_follow: true,
        near_host: String::new(),
    })
}

fn open(read: bool, write: bool, execute: bool) -> Op {
    Op::OpenFile(v1::OpenFileRequest {
        path: Vec::new(),
        read,
        write,
        execute,
        near_host: String::new(),
    })
}

fn opened(grid: &Grid, op: Op, context: v1::Context) -> v1::OpenFileReply {
    match grid.call_in(op, context) {
        Ok(Answer::OpenFile(reply)) => reply,
        other => panic!("{other:?}"),
    }
}

#[test]
fn only_the_administrator_acts_for_others() {
    let grid = TestGrid::start(1);
    let (admin, alice) = (
        grid.admin(),
        Grid::connect(&grid.user_ticket("alice", "")).expect("connected"),
    );
    for actor in [("admin", &["admin"][..]), ("bob", &["users"]), ("", &["admin"])] {
        assert_eq!(
            code(alice.call_in(stat(b""), context(1, Some(actor)))),
            Some(Code::Permission)
        );
    }
    assert!(
        admin
            .call_in(stat(b""), context(1, Some(("bob", &["users"]))))
            .is_ok()
    );
    for bad in [("a b", &["users"][..]), ("bob", &["a/b"])] {
        assert_eq!(
            code(admin.call_in(stat(b""), context(1, Some(bad)))),
            Some(Code::Invalid)
        );
    }
    // Who acts for bob is not the administrator meanwhile.
    admin.make_dir(b"/d", 0o700, 0).expect("made");
    let bob = || Some(("bob", &["users"][..]));
    assert_eq!(
        code(admin.call_in(stat(b"/d/x"), context(0, bob()))),
        Some(Code::Access)
    );
    let ticket = Op::IssueTicket(v1::IssueTicketRequest {
        user: "bob".into(),
        ..Default::default()
    });
    assert_eq!(
        code(admin.call_in(ticket, context(0, bob()))),
        Some(Code::Permission)
    );
    // From an inode goes one name.
    for bad in [&b"a/b"[..], b"..", b".", b"a\0b"] {
        assert_eq!(
            code(admin.call_in(stat(bad), context(1, None))),
            Some(Code::Invalid),
            "{bad:?}"
        );
    }
    assert_eq!(
        code(admin.call_in(stat(&[b'n'; 256]), context(1, None))),
        Some(Code::NameTooLong)
    );
}

#[test]
fn a_number_gives_no_right() {
    let grid = TestGrid::start(1);
    let (admin, alice) = (
        grid.admin(),
        Grid::connect(&grid.user_ticket("alice", "")).expect("connected"),
    );
    admin.make_dir(b"/secret", 0o700, 0).expect("made");
    admin.make_dir(b"/pub", 0o777, 0).expect("made");
    let mount = grid.mount();
    fs::write(mount.join("secret/f"), b"secret").expect("written");
    fs::set_permissions(mount.join("secret/f"), fs::Permissions::from_mode(0o666)).expect("mode");
    let ino = admin.stat(b"/secret/f", false).expect("there").inode;
    for op in [
        stat(b""),
        open(true, false, false),
        open(false, true, false),
        open(false, false, true),
    ] {
        assert_eq!(code(alice.call_in(op, context(ino, None))), Some(Code::Access));
    }
    // A right to write is its owner's, on its connection, until it is given back.
    let own = opened(&admin, open(false, true, false), context(ino, None)).write_handle;
    let grant = |write_handle| {
        Op::WriteGrant(v1::WriteGrantRequest {
            write_handle,
            size_hint_bytes: 1,
            near_host: String::new(),
            avoid: Vec::new(),
        })
    };
    assert!(admin.call_in(grant(own), context(ino, None)).is_ok());
    assert_eq!(
        code(alice.call_in(grant(own), context(ino, None))),
        Some(Code::Stale)
    );
    assert_eq!(
        code(admin.call_in(grant(own), context(ino, Some(("bob", &["users"]))))),
        Some(Code::Stale)
    );
    let end = Op::EndWrite(v1::EndWriteRequest { write_handle: own });
    admin.call_in(end, v1::Context::default()).expect("given back");
    assert_eq!(
        code(admin.call_in(grant(own), context(ino, None))),
        Some(Code::Stale)
    );
    // A ticket for a part of the namespace stays in it.
    let narrow = grid.user_ticket("alice", "storage.read:/pub storage.modify:/pub");
    let narrow = Grid::connect(&narrow).expect("connected");
    let public = admin.stat(b"/pub", false).expect("there").inode;
    assert!(narrow.call_in(stat(b""), context(public, None)).is_ok());
    assert_eq!(
        code(narrow.call_in(stat(b""), context(1, None))),
        Some(Code::Access)
    );
    assert_eq!(
        code(narrow.call_in(stat(b"secret"), context(1, None))),
        Some(Code::Access)
    );
    let make = |name: &[u8]| {
        Op::MakeDir(v1::MakeDirRequest {
            path: name.to_vec(),
            mode: 0o755,
            umask: 0,
        })
    };
    assert!(narrow.call_in(make(b"d"), context(public, None)).is_ok());
    assert_eq!(
        code(narrow.call_in(make(b"d"), context(1, None))),
        Some(Code::Access)
    );
}

#[test]
fn access_lists_and_attributes_go_through_the_mount() {
    let grid = TestGrid::start(1);
    let mount = grid.mount();
    let dir = mount.join("d");
    fs::create_dir(&dir).expect("made");
    fs::write(dir.join("f"), b"content").expect("written");
    fs::set_permissions(dir.join("f"), fs::Permissions::from_mode(0o600)).expect("mode");
    let entry = |tag: u16, bits: u16, id: u32| {
        [&tag.to_le_bytes()[..], &bits.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let none = u32::MAX;
    let list = [
        &2u32.to_le_bytes()[..],
        &entry(1, 6, none),
        &entry(2, 4, 60_001),
        &entry(4, 0, none),
        &entry(16, 4, none),
        &entry(32, 0, none),
    ]
    .concat();
    assert!(as_user(60_001, 60_001, &[], || fs::read(dir.join("f")).is_err()));
    set(&dir.join("f"), "system.posix_acl_access", &list).expect("set");
    assert_eq!(
        get(&dir.join("f"), "system.posix_acl_access").as_deref(),
        Some(&list[..])
    );
    assert!(as_user(60_001, 60_001, &[], || fs::read(dir.join("f"))
        .expect("read")
        == b"content"));
    assert!(as_user(60_002, 60_002, &[], || fs::read(dir.join("f")).is_err()));
    assert!(as_user(60_001, 60_001, &[], || OpenOptions::new()
        .write(true)
        .open(dir.join("f"))
        .is_err()));
    // The mode shows the mask, at once.
    assert_eq!(
        fs::metadata(dir.join("f")).expect("there").permissions().mode() & 0o777,
        0o640
    );
    // What is made in a directory begins with its default list.
    set(&dir, "system.posix_acl_default", &list).expect("set");
    File::create_new(dir.join("g")).expect("made");
    assert!(get(&dir.join("g"), "system.posix_acl_access").is_some());
    rustix::fs::removexattr(dir.join("f"), "system.posix_acl_access").expect("removed");
    assert_eq!(get(&dir.join("f"), "system.posix_acl_access"), None);
    assert!(as_user(60_001, 60_001, &[], || fs::read(dir.join("f")).is_err()));
    for (name, value) in [("user.one", &b"1"[..]), ("user.two", &[7; 5000])] {
        set(&dir.join("f"), name, value).expect("set");
        assert_eq!(get(&dir.join("f"), name).as_deref(), Some(value));
    }
    let mut names = vec![0; 1000];
    let len = rustix::fs::listxattr(dir.join("f"), &mut names).expect("listed");
    assert_eq!(&names[..len], b"user.one\0user.two\0");
    rustix::fs::removexattr(dir.join("f"), "user.one").expect("removed");
    assert_eq!(get(&dir.join("f"), "user.one"), None);
    let refused = as_user(60_002, 60_002, &[], || set(&dir.join("f"), "user.x", b"x"));
    assert_eq!(refused, Err(rustix::io::Errno::ACCESS));
    let refused = set(&dir.join("f"), "system.other", b"x");
    assert_eq!(refused, Err(rustix::io::Errno::OPNOTSUPP));
}

fn set(path: &std::path::Path, name: &str, value: &[u8]) -> Result<(), rustix::io::Errno> {
    rustix::fs::setxattr(path, name, value, rustix::fs::XattrFlags::empty())
}

fn get(path: &std::path::Path, name: &str) -> Option<Vec<u8>> {
    let mut value = vec![0; 10_000];
    let len = rustix::fs::getxattr(path, name, &mut value).ok()?;
    value.truncate(len);
    Some(value)
}

#[test]
fn nodes_of_this_host_want_the_same_rights() {
    let grid = TestGrid::start(1);
    let (mount, admin) = (grid.mount(), grid.admin());
    fs::write(mount.join("f"), b"content").expect("written");
    let found = admin.open(b"/f").expect("open");
    let place = found
        .fragments
        .first()
        .and_then(|f| f.places.first())
        .expect("a place");
    let pin = place.pin.parse::<Pin>().expect("a pin");
    let stream = near::connect(pin, Duration::from_secs(5)).expect("connected");
    let read = |token: &str, path: &str| Ask::Read {
        token: token.into(),
        path: path.into(),
    };
    let (told, file) = near::ask(&stream, &read(&place.token, &place.path), None).expect("answered");
    assert_eq!(told, Told::Read { size_bytes: 7 });
    let file = File::from(file.expect("a file"));
    // It can be read, not written.
    use std::os::unix::fs::FileExt;
    let mut seen = [0; 7];
    file.read_exact_at(&mut seen, 0).expect("read");
    assert_eq!(&seen, b"content");
    assert!(file.write_at(b"x", 0).is_err());
    let user = grid.admin_ticket();
    let other = "/.kuroshio/objects/1/1/0";
    let draft = tempfile::tempfile().expect("file");
    draft.write_all_at(b"other", 0).expect("written");
    let write = |token: &str, path: &str, size_bytes| Ask::Part {
        token: token.into(),
        path: path.into(),
        at_bytes: 0,
        size_bytes,
        total_bytes: Some(size_bytes),
    };
    let asks = [
        (read("", &place.path), 401),
        (read(user.token(), &place.path), 401),
        (read(&place.token, other), 403),
        (read(&place.token, "/etc/passwd"), 403),
        (write(&place.token, &place.path, 5), 403),
    ];
    for (ask, expected) in asks {
        let (told, file) = near::ask(&stream, &ask, near::file_of(&draft)).expect("answered");
        assert!(
            matches!(told, Told::Refused { status, .. } if status == expected),
            "{ask:?}: {told:?}"
        );
        assert!(file.is_none());
    }
    admin.close(&found);
}
