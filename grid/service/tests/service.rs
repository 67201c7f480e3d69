//! The service in this process, on loopback addresses, spoken to by its own client and by raw sockets.

use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kuroshio_core::units::BitRate;
use kuroshio_service::report::CopyReport;
use kuroshio_service::{
    BetweenJob, DEFAULT_SCOPE, Endpoint, Identity, OwnLimit, Pacer, PlanKeeper, PullJob, PushJob, RemotePlan,
    RootPath, Route, ServeConfig, ServeSecurity, Service, ServiceError, copy_between, plan_change,
    plan_report, pull, push,
};
use kuroshio_transfer::{Options, Placement, Progress, Source, Summary, session_key};
use tempfile::TempDir;

const V4: &str = "127.0.0.1:0";
const V6: &str = "[::1]:0";

/// Waits for a state; a slow machine has time enough, a wrong program does not get there.
fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < deadline, "not within a minute: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A running service over a folder of its own.
struct Site {
    dir: TempDir,
    service: Service,
    identity: Option<Identity>,
}

impl Site {
    fn start(listen: &str, secure: bool, plan: Option<Arc<PlanKeeper>>) -> Self {
        let dir = tempfile::tempdir().expect("temp dir");
        let root = dir.path().join("root");
        fs::create_dir(&root).expect("root");
        let identity = secure.then(|| Identity::open(&dir.path().join("state")).expect("identity"));
        let security = match &identity {
            Some(identity) => ServeSecurity::Pinned(identity),
            None => ServeSecurity::Insecure { anywhere: false },
        };
        let listen = vec![listen.parse().expect("address")];
        let service = Service::start(ServeConfig {
            root,
            listen,
            security,
            plan,
        })
        .expect("started");
        Self {
            dir,
            service,
            identity,
        }
    }

    fn root(&self) -> std::path::PathBuf {
        self.dir.path().join("root")
    }

    fn address(&self) -> SocketAddr {
        *self.service.addresses().first().expect("listens")
    }

    fn endpoint(&self) -> Endpoint {
        self.endpoint_with(DEFAULT_SCOPE)
    }

    fn endpoint_with(&self, scope: &str) -> Endpoint {
        let address = self.address().to_string();
        match &self.identity {
            None => Endpoint::insecure(&address).expect("endpoint"),
            Some(identity) => {
                let token = identity.issue("test", scope, 3600).expect("token");
                Endpoint::from_ticket(&identity.ticket(&address, token).expect("ticket"))
            }
        }
    }
}

/// A small tree with the kinds that matter.
fn make_tree(at: &Path) {
    fs::create_dir_all(at.join("deep/empty")).expect("mkdir");
    for n in 0..40u32 {
        let bytes = (0..n * 997).map(|i| (i ^ n) as u8).collect::<Vec<_>>();
        fs::write(at.join(format!("deep/file{n}")), bytes).expect("write");
    }
    let large = (0..5_000_000u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect::<Vec<_>>();
    fs::write(at.join("large"), large).expect("write");
    fs::set_permissions(at.join("large"), fs::Permissions::from_mode(0o640)).expect("chmod");
    symlink("deep/file1", at.join("link")).expect("link");
    use std::os::unix::ffi::OsStrExt;
    fs::write(at.join(std::ffi::OsStr::from_bytes(b"not-utf8-\xff")), "x").expect("write");
}

/// Everything about a tree that a copy keeps, by relative path.
fn describe(at: &Path) -> Vec<(std::path::PathBuf, u32, i64, Vec<u8>)> {
    let mut found = Vec::new();
    let mut todo = vec![at.to_owned()];
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(&dir).expect("folder") {
            let path = entry.expect("entry").path();
            let meta = path.symlink_metadata().expect("metadata");
            let content = if meta.is_symlink() {
                fs::read_link(&path)
                    .expect("link")
                    .into_os_string()
                    .into_encoded_bytes()
            } else if meta.is_file() {
                fs::read(&path).expect("file")
            } else {
                todo.push(path.clone());
                Vec::new()
            };
            let name = path.strip_prefix(at).expect("below").to_owned();
            found.push((
                name,
                meta.mode(),
                meta.mtime_nsec() + meta.mtime() * 1_000_000_000,
                content,
            ));
        }
    }
    found.sort();
    assert!(found.len() > 40, "a tree: {}", found.len());
    found
}

fn folder(path: &Path) -> std::os::fd::OwnedFd {
    fs::File::open(path).expect("folder").into()
}

fn routes(streams: u32, rate: Option<BitRate>) -> Vec<Route> {
    vec![Route {
        via: None,
        streams,
        rate,
    }]
}

fn path(text: &str) -> RootPath {
    RootPath::from_bytes(text.as_bytes()).expect("path")
}

fn push_job(from: &Path, name: &str, to: &str, rate: Option<BitRate>) -> PushJob {
    PushJob {
        sources: vec![Source {
            base: folder(from),
            path: name.into(),
            name: name.into(),
        }],
        destination: path(to),
        options: Options {
            placement: Placement::Auto,
            ..Options::default()
        },
        key: session_key(to.as_bytes(), name.as_bytes()),
        routes: routes(3, rate),
        congestion: None,
    }
}

fn push_tree(to: &Endpoint, from: &Path, dest: &str) -> Result<Summary, ServiceError> {
    push(
        to,
        push_job(from, "tree", dest, None),
        &Progress::new(),
        &OwnLimit,
    )
}

fn pull_tree(from: &Endpoint, source: &str, to: &Path) -> Result<Summary, ServiceError> {
    let job = PullJob {
        sources: vec![path(source)],
        root: folder(to),
        destination: b"got".to_vec(),
        options: Options::default(),
        key: session_key(b"got", source.as_bytes()),
        routes: routes(3, None),
        congestion: None,
    };
    pull(from, job, &Progress::new())
}

/// Sends raw bytes and returns all that comes back.
fn raw(address: SocketAddr, request: &str) -> String {
    let mut socket = TcpStream::connect(address).expect("connected");
    socket.write_all(request.as_bytes()).expect("sent");
    let mut answer = Vec::new();
    // A reset after the answer is as good as an end.
    let _ = socket.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

fn http(address: SocketAddr, method: &str, path: &str, more: &str) -> (u16, String, String) {
    let answer = raw(
        address,
        &format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{more}\r\n"),
    );
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(0);
    (status, head.to_ascii_lowercase(), body.to_owned())
}

#[test]
fn files_are_read_whole_and_in_ranges() {
    for listen in [V4, V6] {
        let site = Site::start(listen, false, None);
        fs::write(site.root().join("a b"), "0123456789").expect("write");
        fs::create_dir(site.root().join("dir")).expect("mkdir");
        let at = site.address();
        let (status, head, body) = http(at, "GET", "/a%20b", "");
        assert_eq!((status, body.as_str()), (200, "0123456789"));
        assert!(
            head.contains("accept-ranges: bytes") && head.contains("content-length: 10"),
            "{head}"
        );
        let etag = head
            .lines()
            .find_map(|l| l.strip_prefix("etag: "))
            .expect("etag")
            .to_owned();
        let (status, head, body) = http(at, "HEAD", "/a%20b", "");
        assert_eq!((status, body.as_str()), (200, ""));
        assert!(
            head.contains("content-length: 10") && head.contains("last-modified: "),
            "{head}"
        );
        let (status, head, body) = http(at, "GET", "/a%20b", "Range: bytes=2-4\r\n");
        assert_eq!((status, body.as_str()), (206, "234"));
        assert!(head.contains("content-range: bytes 2-4/10"), "{head}");
        let (status, _, body) = http(at, "GET", "/a%20b", "Range: bytes=-3\r\n");
        assert_eq!((status, body.as_str()), (206, "789"));
        let (status, head, _) = http(at, "GET", "/a%20b", "Range: bytes=10-\r\n");
        assert!(
            status == 416 && head.contains("content-range: bytes */10"),
            "{head}"
        );
        let (status, _, body) = http(at, "GET", "/a%20b", "Range: bytes=1-2\r\nIf-Range: \"other\"\r\n");
        assert_eq!((status, body.len()), (200, 10));
        assert_eq!(
            http(at, "GET", "/a%20b", &format!("If-None-Match: {etag}\r\n")).0,
            304
        );
        assert_eq!(http(at, "GET", "/none", "").0, 404);
        assert_eq!(http(at, "GET", "/dir", "").0, 403);
        assert_eq!(http(at, "DELETE", "/a%20b", "").0, 405);
        assert_eq!(http(at, "GET", "/.kuroshio/none", "").0, 404);
        assert_eq!(http(at, "GET", "/a%2", "").0, 400);
    }
}

#[test]
fn nothing_outside_the_root_is_read() {
    let site = Site::start(V4, false, None);
    fs::write(site.dir.path().join("secret"), "secret").expect("write");
    symlink("/etc/passwd", site.root().join("absolute")).expect("link");
    symlink("../secret", site.root().join("climb")).expect("link");
    symlink("..", site.root().join("up")).expect("link");
    let paths = [
        "/../secret",
        "/%2e%2e/secret",
        "/%2E%2e%2fsecret",
        "/x/../../secret",
        "/absolute",
        "/climb",
        "/up/secret",
    ];
    for path in paths {
        let (status, _, body) = http(site.address(), "GET", path, "");
        assert_eq!(status, 403, "{path}: {body}");
        assert!(
            !body.contains("secret\n") || body.contains("leaves"),
            "{path}: {body}"
        );
        assert_ne!(body.trim(), "secret", "{path}");
    }
    let endpoint = site.endpoint();
    let here = tempfile::tempdir().expect("temp dir");
    for path in ["/up/secret", "/none"] {
        let error = pull_tree(&endpoint, path, here.path()).expect_err(path);
        assert!(
            matches!(
                error,
                ServiceError::Refused {
                    status: 403 | 404,
                    ..
                }
            ),
            "{path}: {error}"
        );
    }
    // A destination that leaves by a link is not followed either.
    make_tree(&here.path().join("tree"));
    let result = push_tree(&endpoint, here.path(), "/up/new");
    assert!(!matches!(&result, Ok(s) if s.is_complete()), "{result:?}");
    assert!(!site.dir.path().join("new").exists());
}

#[test]
fn trees_go_there_and_back_and_between() {
    for (listen, secure) in [(V4, true), (V6, true), (V4, false)] {
        let (one, two) = (
            Site::start(listen, secure, None),
            Site::start(listen, secure, None),
        );
        let here = tempfile::tempdir().expect("temp dir");
        make_tree(&here.path().join("tree"));
        let expected = describe(&here.path().join("tree"));
        let summary = push_tree(&one.endpoint(), here.path(), "/in").expect("pushed");
        assert!(
            summary.is_complete() && summary.files_verified == summary.files && summary.files == 42,
            "{summary:?}"
        );
        assert_eq!(describe(&one.root().join("in")), expected);
        let job = BetweenJob {
            sources: vec![path("/in")],
            destination: path("/copy"),
            options: Options::default(),
            key: session_key(b"copy", b"in"),
            routes: routes(2, None),
            congestion: None,
        };
        let mut done: Option<CopyReport> = None;
        copy_between(&one.endpoint(), &two.endpoint(), job, |line| match line {
            kuroshio_service::api::CopyLine::Done(report) => done = Some(report),
            kuroshio_service::api::CopyLine::Error(text) => panic!("{text}"),
            _ => {}
        })
        .expect("copied");
        assert!(done.is_some_and(|d| d.complete && d.files_verified == 42));
        assert_eq!(describe(&two.root().join("copy")), expected);
        let summary = pull_tree(&two.endpoint(), "/copy", here.path()).expect("pulled");
        assert!(summary.is_complete(), "{summary:?}");
        assert_eq!(describe(&here.path().join("got")), expected);
    }
}

#[test]
fn wrong_tokens_and_pins_are_refused_in_words() {
    let (site, other) = (Site::start(V4, true, None), Site::start(V4, true, None));
    let here = tempfile::tempdir().expect("temp dir");
    make_tree(&here.path().join("tree"));
    let (mine, theirs) = (
        site.identity.as_ref().expect("key"),
        other.identity.as_ref().expect("key"),
    );
    let at = site.address().to_string();
    let push_with = |pin, token| {
        push_tree(
            &Endpoint::pinned(&at, pin, token).expect("endpoint"),
            here.path(),
            "/in",
        )
    };
    let token = |identity: &Identity, scope| identity.issue("test", scope, 60).expect("token");

    let error = push_with(theirs.pin(), token(mine, DEFAULT_SCOPE)).expect_err("wrong pin");
    let ServiceError::WrongPin { pinned, found, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!((*pinned, *found), (theirs.pin(), mine.pin()));
    assert!(error.to_string().contains(&mine.pin().to_string()), "{error}");

    let error = push_with(mine.pin(), token(theirs, DEFAULT_SCOPE)).expect_err("wrong token");
    assert!(
        matches!(&error, ServiceError::Refused { status: 401, text, .. } if text.contains("wrong token")),
        "{error}"
    );

    let expired = mine.issue("test", DEFAULT_SCOPE, 0).expect("token");
    wait_for("the token's end", || mine.verifier().check(&expired).is_err());
    let error = push_with(mine.pin(), expired).expect_err("expired");
    assert!(
        matches!(&error, ServiceError::Refused { status: 401, text, .. } if text.contains("expired")),
        "{error}"
    );

    for scope in ["storage.read:/", "storage.modify:/elsewhere", "kuroshio.plan"] {
        let error = push_with(mine.pin(), token(mine, scope)).expect_err(scope);
        assert!(
            matches!(error, ServiceError::Refused { status: 403, .. }),
            "{scope}: {error}"
        );
    }
    assert!(
        push_with(mine.pin(), token(mine, "storage.modify:/in"))
            .expect("allowed")
            .is_complete()
    );
    let read_only = site.endpoint_with("storage.read:/in/deep");
    assert!(
        pull_tree(&read_only, "/in/deep", here.path())
            .expect("allowed")
            .is_complete()
    );
    assert!(matches!(
        pull_tree(&read_only, "/in", here.path()),
        Err(ServiceError::Refused { status: 403, .. })
    ));
}

#[test]
fn an_open_service_keeps_to_loopback() {
    let dir = tempfile::tempdir().expect("temp dir");
    let start = |anywhere| {
        Service::start(ServeConfig {
            root: dir.path().to_owned(),
            listen: vec!["0.0.0.0:0".parse().expect("address")],
            security: ServeSecurity::Insecure { anywhere },
            plan: None,
        })
    };
    let error = start(false).err().expect("refused");
    assert!(
        error.is_bad_input() && error.to_string().contains("--insecure-anywhere"),
        "{error}"
    );
    assert!(start(true).is_ok());
}

#[test]
fn garbage_and_silence_end_and_leave_the_service_alone() {
    for secure in [false, true] {
        let site = Site::start(V4, secure, None);
        let mut garbage = Vec::new();
        let mut state = 1u64;
        for _ in 0..20_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            garbage.push((state >> 33) as u8);
        }
        let starts: [&[u8]; 5] = [
            b"",
            b"GET / HTTP/1.1\r\n\0",
            b"\x16\x03\x01",
            b"PRI * HTTP/2.0\r\n\r\n",
            b"GET ",
        ];
        for start in starts {
            let mut socket = TcpStream::connect(site.address()).expect("connected");
            // The service may have hung up in the middle.
            let _ = socket.write_all(start).and_then(|()| socket.write_all(&garbage));
            let _ = socket.shutdown(std::net::Shutdown::Write);
            let mut answer = Vec::new();
            let _ = socket.read_to_end(&mut answer);
            assert!(!answer.starts_with(b"HTTP/1.1 2"), "{start:?}");
        }
        // One that says nothing and one that never ends its header are both cut off.
        let silent = TcpStream::connect(site.address()).expect("connected");
        let mut slow = TcpStream::connect(site.address()).expect("connected");
        slow.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nX: ").expect("sent");
        for mut socket in [silent, slow] {
            socket
                .set_read_timeout(Some(Duration::from_secs(60)))
                .expect("time-out");
            let mut answer = Vec::new();
            match socket.read_to_end(&mut answer) {
                Ok(_) => {}
                Err(e) => assert_eq!(e.kind(), std::io::ErrorKind::ConnectionReset, "still open: {e}"),
            }
        }
        let here = tempfile::tempdir().expect("temp dir");
        make_tree(&here.path().join("tree"));
        assert!(
            push_tree(&site.endpoint(), here.path(), "/in")
                .expect("still serves")
                .is_complete()
        );
    }
}

fn plan(capacity: &str) -> Arc<PlanKeeper> {
    let text = format!(
        "ttl = \"600ms\"\n[[route]]\nname = \"loop\"\ncapacity = \"{capacity}\"\nheadroom = \"2%\"\n\
         to = [\"127.0.0.0/8\", \"::1\"]\nfloor = \"600kbps\"\nmax_streams = 12\n"
    );
    PlanKeeper::from_toml(&text).expect("plan")
}

#[test]
fn two_hosts_stay_below_the_capacity_in_sum() {
    let site = Site::start(V4, true, Some(plan("200Mbps")));
    let endpoint = site.endpoint();
    let (one, two) = (
        RemotePlan::open(&endpoint).expect("plan"),
        RemotePlan::open(&endpoint).expect("plan"),
    );
    let to: IpAddr = "127.0.0.9".parse().expect("address");
    let bps = |paced: &[kuroshio_service::Paced]| {
        paced
            .iter()
            .map(|p| p.rate.get().expect("limited").bps())
            .sum::<u64>()
    };
    let mut streams = Vec::new();
    for n in 0..6u64 {
        let host = if n % 2 == 0 { &one } else { &two };
        streams.push(host.pace(to, None).expect("lease"));
        let deadline = Instant::now() + Duration::from_millis(300);
        while Instant::now() < deadline {
            assert!(bps(&streams) <= 200_000_000, "{} bit/s", bps(&streams));
            std::thread::yield_now();
        }
    }
    // 196 Mbit/s are usable; six free places keep their floors; a share is rounded down to whole bits.
    let usable = |capacity: u64| capacity * 98 / 100 - 6 * 600_000;
    wait_for("all of the capacity", || bps(&streams) > usable(200_000_000) - 6);
    let loop_route = || plan_report(&endpoint).expect("plan").routes.remove(0);
    assert_eq!(
        (loop_route().streams, loop_route().granted_bps),
        (6, bps(&streams))
    );
    plan_change(&endpoint, "loop", BitRate::from_mbps(100)).expect("changed");
    wait_for("the lower rates", || bps(&streams) <= 98_000_000);
    wait_for("all of the lower capacity", || {
        bps(&streams) > usable(100_000_000) - 6
    });
    streams.truncate(1);
    wait_for("given back", || loop_route().streams == 1);
    wait_for("the rest for the last", || bps(&streams) > 85_000_000);
    drop(site);
    wait_for("the floor", || bps(&streams) == 600_000);
    let error = plan_change(&endpoint, "loop", BitRate::from_mbps(100)).expect_err("gone");
    assert!(matches!(error, ServiceError::Peer { .. }), "{error}");
}

#[test]
fn a_new_capacity_reaches_running_streams() {
    // A service that sends takes its leases in process; one that is pushed to from another host gives them.
    let site = Site::start(V4, false, Some(plan("40Mbps")));
    let receiver = Site::start(V6, false, None);
    let here = tempfile::tempdir().expect("temp dir");
    fs::create_dir(here.path().join("tree")).expect("mkdir");
    fs::File::create(here.path().join("tree/big"))
        .and_then(|f| f.set_len(1 << 30))
        .expect("sparse");
    // Dense, so that its bytes are sent.
    let block = vec![7u8; 1 << 20];
    let mut big = fs::File::create(here.path().join("tree/big")).expect("file");
    for _ in 0..64 {
        big.write_all(&block).expect("write");
    }
    let endpoint = site.endpoint();
    let remote = RemotePlan::open(&endpoint).expect("plan");
    let progress = Arc::new(Progress::new());
    let (running, to) = (progress.clone(), receiver.endpoint());
    let source = here.path().to_owned();
    let pushing =
        std::thread::spawn(move || push(&to, push_job(&source, "tree", "/in", None), &running, &remote));
    let rates = || {
        let snapshot = progress.snapshot();
        (
            snapshot.streams.len(),
            snapshot.streams.iter().map(|s| s.rate_bps).sum::<u64>(),
        )
    };
    // 39.2 Mbit/s less the floors of nine free places, in three.
    wait_for("the plan's rates", || {
        rates().0 == 3 && (33_700_000..=33_800_000).contains(&rates().1)
    });
    plan_change(&endpoint, "loop", BitRate::from_mbps(20)).expect("changed");
    wait_for("the lower rates", || {
        (14_100_000..=14_200_000).contains(&rates().1)
    });
    plan_change(&endpoint, "loop", BitRate::from_mbps(10_000)).expect("changed");
    let summary = pushing.join().expect("thread").expect("pushed");
    assert!(summary.is_complete() && summary.bytes == 64 << 20, "{summary:?}");
    let error = plan_change(&endpoint, "none", BitRate::from_mbps(20)).expect_err("unknown");
    assert!(error.to_string().contains("loop"), "{error}");
}

#[test]
fn a_service_that_stops_ends_its_sessions_and_they_resume() {
    let site = Site::start(V4, true, None);
    let here = tempfile::tempdir().expect("temp dir");
    make_tree(&here.path().join("tree"));
    let endpoint = site.endpoint();
    let progress = Arc::new(Progress::new());
    let (running, to, from) = (progress.clone(), endpoint.clone(), here.path().to_owned());
    let slow = BitRate::from_mbps(8);
    let pushing = std::thread::spawn(move || {
        push(
            &to,
            push_job(&from, "tree", "/in", Some(slow)),
            &running,
            &OwnLimit,
        )
    });
    wait_for("some bytes", || {
        progress.snapshot().bytes_acknowledged > 1_000_000
    });
    let Site {
        dir,
        service,
        identity,
    } = site;
    service.stop();
    assert!(pushing.join().expect("thread").is_err());
    let identity = identity.expect("identity");
    let service = Service::start(ServeConfig {
        root: dir.path().join("root"),
        listen: vec![V4.parse().expect("address")],
        security: ServeSecurity::Pinned(&identity),
        plan: None,
    })
    .expect("started again");
    let site = Site {
        dir,
        service,
        identity: Some(identity),
    };
    let summary = push_tree(&site.endpoint(), here.path(), "/in").expect("resumed");
    assert!(summary.is_complete(), "{summary:?}");
    assert!(
        summary.bytes_sent < summary.bytes,
        "all was sent again: {summary:?}"
    );
    assert_eq!(
        describe(&site.root().join("in")),
        describe(&here.path().join("tree"))
    );
}
