//! Content through the mount: partial writes, several handles, removed files, other mounts, lost nodes.

mod common;

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::time::{Duration, SystemTime};

use common::{TestGrid, as_user, bytes, holders, wait_for};
use kuroshio_client::{Cancel, Grid, PutOptions};
use kuroshio_mount::{Mount, MountError, Options};

fn read_by_client(grid: &Grid, path: &str) -> Vec<u8> {
    let mut out = Vec::new();
    grid.read_to(path.as_bytes(), &mut out, &Cancel::default())
        .expect("read");
    out
}

/// Nodes through TLS, as from another host.
fn far() -> Options {
    Options {
        allow_other: true,
        near: false,
        ..Options::default()
    }
}

#[test]
fn what_is_written_here_is_read_everywhere() {
    let grid = TestGrid::start(1);
    let (mount, admin) = (grid.mount(), grid.admin());
    for (n, len) in [0, 1, 4096, 1 << 20, (1 << 20) + 1, (9 << 20) + 7, 20_000_001]
        .into_iter()
        .enumerate()
    {
        let content = bytes(len, n as u64);
        let name = format!("f{n}");
        fs::write(mount.join(&name), &content).expect("written");
        assert!(
            read_by_client(&admin, &format!("/{name}")) == content,
            "{len} bytes by the client"
        );
        assert!(
            fs::read(mount.join(&name)).expect("read") == content,
            "{len} bytes by the mount"
        );
        let second = grid.mount_with(&grid.admin_ticket(), far());
        assert!(
            fs::read(second.join(&name)).expect("read") == content,
            "{len} bytes by another mount"
        );
        let again = bytes(len, n as u64 + 100);
        fs::write(second.join(&name), &again).expect("written");
        assert!(
            read_by_client(&admin, &format!("/{name}")) == again,
            "{len} bytes through TLS"
        );
        fs::write(second.join(&name), &content).expect("written");
        assert_eq!(fs::metadata(second.join(&name)).expect("there").len(), len as u64);
    }
}

#[test]
fn files_are_changed_in_part() {
    let grid = TestGrid::start(1);
    let (mount, admin) = (grid.mount(), grid.admin());
    let mut content = bytes(3_000_000, 1);
    fs::write(mount.join("f"), &content).expect("written");
    // In the middle, beyond the end with a hole, at the end.
    let file = OpenOptions::new()
        .write(true)
        .open(mount.join("f"))
        .expect("open");
    file.write_all_at(&bytes(70_000, 2), 1_500_001).expect("written");
    content[1_500_001..1_570_001].copy_from_slice(&bytes(70_000, 2));
    file.write_all_at(b"end", 3_100_000).expect("written");
    content.resize(3_100_000, 0);
    content.extend_from_slice(b"end");
    // Seen through this mount before it is published.
    assert!(fs::read(mount.join("f")).expect("read") == content);
    drop(file);
    assert!(read_by_client(&admin, "/f") == content);
    let mut file = OpenOptions::new()
        .append(true)
        .open(mount.join("f"))
        .expect("open");
    file.write_all(b" and more").expect("appended");
    content.extend_from_slice(b" and more");
    file.sync_all().expect("flushed");
    assert!(
        read_by_client(&admin, "/f") == content,
        "after fsync, before close"
    );
    file.write_all(b"!").expect("appended");
    content.push(b'!');
    drop(file);
    assert!(read_by_client(&admin, "/f") == content);
    // Cut off by name, by handle, and lengthened.
    nix::unistd::truncate(&mount.join("f"), 1_000_000).expect("cut");
    content.truncate(1_000_000);
    assert!(read_by_client(&admin, "/f") == content);
    let file = OpenOptions::new()
        .write(true)
        .open(mount.join("f"))
        .expect("open");
    file.set_len(10).expect("cut");
    file.set_len(20).expect("lengthened");
    assert_eq!(file.metadata().expect("there").len(), 20);
    drop(file);
    content.truncate(10);
    content.resize(20, 0);
    assert_eq!(read_by_client(&admin, "/f"), content);
    let file = OpenOptions::new()
        .write(true)
        .truncate(true)
        .open(mount.join("f"))
        .expect("open");
    assert_eq!(file.metadata().expect("there").len(), 0);
    drop(file);
    assert_eq!(read_by_client(&admin, "/f"), b"");
}

#[test]
fn handles_of_one_file_share_what_was_written() {
    let grid = TestGrid::start(1);
    let (mount, admin) = (grid.mount(), grid.admin());
    let path = mount.join("f");
    let mut one = File::create_new(&path).expect("made");
    let mut two = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&path)
        .expect("open");
    one.write_all(b"hello world").expect("written");
    let mut seen = String::new();
    two.read_to_string(&mut seen).expect("read");
    assert_eq!(seen, "hello world");
    two.seek(SeekFrom::Start(6)).expect("sought");
    two.write_all(b"there").expect("written");
    drop(two);
    one.write_all(b"!").expect("written");
    drop(one);
    assert_eq!(fs::read(&path).expect("read"), b"hello there!");
    assert_eq!(read_by_client(&admin, "/f"), b"hello there!");
}

#[test]
fn a_removed_file_stays_for_who_has_it_open() {
    let grid = TestGrid::start(1);
    let (mount, admin) = (grid.mount(), grid.admin());
    let content = bytes(5_000_000, 3);
    fs::write(mount.join("old"), &content).expect("written");
    let old = File::open(mount.join("old")).expect("open");
    let mut new = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(mount.join("new"))
        .expect("made");
    fs::remove_file(mount.join("old")).expect("removed");
    fs::remove_file(mount.join("new")).expect("removed");
    assert_eq!(old.metadata().expect("there").nlink(), 0);
    new.write_all(b"nobody else sees this").expect("written");
    new.sync_all().expect("there is nothing to lose");
    let mut seen = String::new();
    new.rewind().expect("sought");
    new.read_to_string(&mut seen).expect("read");
    assert_eq!(seen, "nobody else sees this");
    new.set_permissions(fs::Permissions::from_mode(0o600))
        .expect("changed");
    assert_eq!(new.metadata().expect("there").mode() & 0o7777, 0o600);
    // The catalog gives up once a second what is open nowhere.
    std::thread::sleep(Duration::from_millis(2500));
    let mut seen = vec![0; content.len()];
    old.read_exact_at(&mut seen, 0).expect("read");
    assert!(seen == content);
    drop((old, new));
    assert_eq!(admin.list(b"/").count(), 0);
    assert_eq!(fs::read_dir(mount.path()).expect("listed").count(), 0);
}

#[test]
fn a_rename_over_an_open_file_leaves_it_whole() {
    let grid = TestGrid::start(1);
    let mount = grid.mount();
    let content = bytes(2_000_000, 4);
    fs::write(mount.join("f"), &content).expect("written");
    fs::write(mount.join("g"), b"new").expect("written");
    let open = File::open(mount.join("f")).expect("open");
    fs::rename(mount.join("g"), mount.join("f")).expect("renamed");
    assert_eq!(open.metadata().expect("there").nlink(), 0);
    let mut seen = vec![0; content.len()];
    open.read_exact_at(&mut seen, 0).expect("read");
    assert!(seen == content);
    assert_eq!(fs::read(mount.join("f")).expect("read"), b"new");
    assert!(fs::metadata(mount.join("g")).is_err());
}

#[test]
fn another_mount_sees_a_close_at_its_next_open() {
    let grid = TestGrid::start(1);
    let (one, two) = (grid.mount(), grid.mount());
    for round in 0..5u64 {
        let content = bytes(1_200_000 + round as usize, round);
        fs::write(one.join("f"), &content).expect("written");
        assert!(fs::read(two.join("f")).expect("read") == content, "round {round}");
    }
    // However soon: what the kernel has kept of the other mount's file is not the file.
    for round in 0..50usize {
        let content = bytes(10 + 37 * (round % 7), round as u64);
        fs::write(one.join("small"), &content).expect("written");
        let file = File::open(two.join("small")).expect("open");
        let mut seen = vec![0; 1000];
        let len = file.read_at(&mut seen, 0).expect("read");
        assert!(seen[..len] == content, "round {round}: {len} bytes");
        // Another file of the same name.
        fs::write(one.join("new"), b"new").expect("written");
        fs::rename(one.join("new"), one.join("small")).expect("renamed");
        assert_eq!(
            fs::read(two.join("small")).expect("read"),
            b"new",
            "round {round}"
        );
    }
    // Who has it open keeps what it has opened.
    let open = File::open(two.join("f")).expect("open");
    fs::write(one.join("f"), b"other").expect("written");
    let mut seen = vec![0; 1_200_004];
    open.read_exact_at(&mut seen, 0).expect("read");
    assert!(seen == bytes(1_200_004, 4));
    drop(open);
    assert_eq!(fs::read(two.join("f")).expect("read"), b"other");
}

#[test]
fn a_reader_goes_on_at_another_replica() {
    let mut grid = TestGrid::start(2);
    let (mount, admin) = (grid.mount(), grid.admin());
    admin.set_copies(b"/", "2").expect("rule");
    let content = bytes(24_000_000, 5);
    fs::write(mount.join("f"), &content).expect("written");
    wait_for("two replicas", || holders(&admin, "/f").len() == 2);
    drop(mount);
    let mount = grid.mount_with(&grid.admin_ticket(), far());
    let mut file = File::open(mount.join("f")).expect("open");
    let mut seen = vec![0; 3_000_000];
    file.read_exact(&mut seen).expect("the beginning");
    // Whichever it reads from: one after the other, the other one is back by then.
    drop(grid.nodes[0].take());
    let mut middle = vec![0; 9_000_000];
    file.read_exact(&mut middle).expect("the middle");
    seen.append(&mut middle);
    grid.nodes[0] = Some(kuroshio_node::Node::start(&grid.node_dir(1)).expect("node"));
    wait_for("the node is back", || holders(&admin, "/f").len() == 2);
    drop(grid.nodes[1].take());
    file.read_to_end(&mut seen).expect("the end");
    assert!(seen == content);
}

#[test]
fn rights_are_those_of_the_opening() {
    let grid = TestGrid::start(1);
    let mount = grid.mount();
    let dir = mount.join("d");
    fs::create_dir(&dir).expect("made");
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).expect("mode");
    as_user(60_001, 60_002, &[60_003], || {
        // Made without the right to write, written twice with an fsync between.
        let mut file = OpenOptions::new();
        let mut file = std::os::unix::fs::OpenOptionsExt::mode(file.write(true).create_new(true), 0o400)
            .open(dir.join("f"))
            .expect("made");
        file.write_all(b"one").expect("written");
        file.sync_all().expect("flushed");
        file.write_all(b" two").expect("written");
        drop(file);
        assert_eq!(fs::read(dir.join("f")).expect("read"), b"one two");
        let refused = OpenOptions::new().write(true).open(dir.join("f")).err();
        assert_eq!(refused.and_then(|e| e.raw_os_error()), Some(libc::EACCES));
    });
    let made = fs::metadata(dir.join("f")).expect("there");
    assert_eq!(
        (made.uid(), made.gid(), made.mode() & 0o7777),
        (60_001, 60_002, 0o400)
    );
    // A stranger reads and writes nothing.
    as_user(60_004, 60_004, &[], || {
        assert_eq!(
            fs::read(dir.join("f")).err().and_then(|e| e.raw_os_error()),
            Some(libc::EACCES)
        );
        let removed = fs::remove_file(dir.join("f"));
        assert!(removed.is_ok(), "the directory is everybody's");
    });
    let admin = grid.admin();
    assert!(admin.stat(b"/d/f", false).is_err());
}

#[test]
fn a_private_mount_is_its_users() {
    let grid = TestGrid::start(1);
    grid.admin().make_dir(b"/pub", 0o777, 0).expect("made");
    let ticket = grid.user_ticket("alice", "storage.read:/pub storage.modify:/pub");
    // The whole grid is not hers.
    let dir = tempfile::tempdir_in("/var/tmp").expect("folder");
    assert!(matches!(
        Mount::start(&ticket, dir.path(), Options::default()),
        Err(MountError::Client(_))
    ));
    let refused = Options {
        path: b"/pub".to_vec(),
        allow_other: true,
        ..Options::default()
    };
    assert!(matches!(
        Mount::start(&ticket, dir.path(), refused),
        Err(MountError::Invalid(_))
    ));
    let options = Options {
        path: b"/pub".to_vec(),
        ..Options::default()
    };
    let mount = grid.mount_with(&ticket, options);
    fs::create_dir(mount.join("d")).expect("made");
    fs::write(mount.join("d/f"), b"mine").expect("written");
    assert_eq!(fs::read(mount.join("d/f")).expect("read"), b"mine");
    let attr = grid.admin().stat(b"/pub/d/f", true).expect("there");
    assert_eq!((attr.owner.as_str(), attr.group.as_str()), ("alice", "users"));
    // Shown as whoever mounted it.
    assert_eq!(
        fs::metadata(mount.join("d/f")).expect("there").uid(),
        nix::unistd::geteuid().as_raw()
    );
    assert!(as_user(60_001, 60_001, &[], || fs::read_dir(mount.path()).is_err()));
}

#[test]
fn times_and_lists_are_kept() {
    let grid = TestGrid::start(1);
    let mount = grid.mount();
    let path = mount.join("f");
    let mut file = File::create_new(&path).expect("made");
    file.write_all(b"x").expect("written");
    let then = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    file.set_modified(then).expect("set");
    drop(file);
    assert_eq!(
        fs::metadata(&path).expect("there").modified().expect("time"),
        then
    );
    // More entries than one answer holds, each once, also while others go.
    for n in 0..1100 {
        fs::create_dir(mount.join(&format!("d{n}"))).expect("made");
    }
    let mut names = Vec::new();
    for entry in fs::read_dir(mount.path()).expect("listed") {
        let entry = entry.expect("entry");
        if names.len() == 500 {
            fs::remove_dir(mount.join("d1099")).expect("removed");
        }
        names.push(entry.file_name());
    }
    let listed = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), listed, "an entry came twice");
    assert!(listed >= 1100, "{listed}");
    assert_eq!(fs::read_dir(mount.path()).expect("listed").count(), 1100);
}

#[test]
fn the_metadata_service_may_be_started_anew() {
    let mut grid = TestGrid::start(1);
    let mount = grid.mount();
    let mut file = File::create_new(mount.join("f")).expect("made");
    file.write_all(b"before").expect("written");
    grid.metad = None;
    grid.start_metad();
    let admin = grid.admin();
    wait_for("the node is back", || {
        let nodes = admin.nodes().expect("nodes");
        nodes.iter().any(|n| n.state == "up" && n.joined)
    });
    file.write_all(b" and after").expect("written");
    file.sync_all().expect("published");
    drop(file);
    assert_eq!(read_by_client(&admin, "/f"), b"before and after");
    let options = PutOptions {
        exclusive: false,
        mode: 0o644,
        umask: 0,
        near_host: String::new(),
        mtime_ns: None,
    };
    let content = bytes(100, 9);
    admin
        .put(
            b"/f",
            &mut std::io::Cursor::new(&content),
            100,
            &options,
            &Cancel::default(),
        )
        .expect("put");
    assert_eq!(fs::read(mount.join("f")).expect("read"), content);
}

#[test]
fn processes_meet_at_fifos_and_sockets() {
    use std::os::unix::fs::FileTypeExt;
    use std::os::unix::net::{UnixListener, UnixStream};
    let grid = TestGrid::start(1);
    let mount = grid.mount();
    let fifo = mount.join("p");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).expect("made");
    let theirs = fifo.clone();
    let writer = std::thread::spawn(move || fs::write(theirs, b"through a pipe"));
    assert_eq!(fs::read(&fifo).expect("read"), b"through a pipe");
    writer.join().expect("ended").expect("written");
    assert_eq!(
        fs::metadata(&fifo).expect("there").len(),
        0,
        "nothing of it is kept"
    );
    let socket = mount.join("s");
    let listener = UnixListener::bind(&socket).expect("bound");
    assert!(fs::metadata(&socket).expect("there").file_type().is_socket());
    let mut there = UnixStream::connect(&socket).expect("connected");
    let (mut here, _) = listener.accept().expect("accepted");
    there.write_all(b"hello").expect("sent");
    let mut got = [0; 5];
    here.read_exact(&mut got).expect("received");
    assert_eq!(&got, b"hello");
    // Another mount sees what they are, and removes them.
    let second = grid.mount_with(&grid.admin_ticket(), far());
    assert!(
        fs::metadata(second.join("p"))
            .expect("there")
            .file_type()
            .is_fifo()
    );
    fs::remove_file(second.join("p")).expect("removed");
    fs::remove_file(second.join("s")).expect("removed");
    assert!(grid.admin().stat(b"/p", false).is_err());
}
