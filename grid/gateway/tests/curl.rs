//! The gateway as curl sees it: content, names, conditions, checksums, refusals.

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use common::grid::{bytes, put, read, wait_for};
use common::{Bed, Wanted};
use kuroshio_client::v1;

#[test]
fn content_goes_in_and_comes_out() {
    let bed = Bed::start(1, Wanted::default());
    let content = bytes(9_000_001, 1);
    let local = bed.file("local", &content).display().to_string();
    let url = bed.url("/f%20%C3%BC");
    let sent = bed.curl(&["-T", &local, &url]);
    assert_eq!(sent.status(), 201, "{sent:?}");
    let etag = sent.field("etag").expect("an etag").to_owned();
    let admin = bed.grid.admin();
    assert!(read(&admin, "/f ü").expect("read") == content);

    let got = bed.curl(&[&url]);
    assert_eq!((got.status(), got.field("etag")), (200, Some(etag.as_str())));
    assert!(got.body == content);
    let part = bed.curl(&["-r", "8999990-9000000", &url]);
    assert_eq!(part.status(), 206);
    assert_eq!(part.field("content-range"), Some("bytes 8999990-9000000/9000001"));
    assert!(part.body == content[8_999_990..]);
    assert_eq!(bed.curl(&["-r", "9000001-", &url]).status(), 416);
    let head = bed.curl(&["-I", &url]);
    assert_eq!(
        (head.status(), head.field("content-length")),
        (200, Some("9000001"))
    );
    assert_eq!(
        bed.curl(&["-I", &bed.url("/")]).field("content-type"),
        Some("httpd/unix-directory")
    );

    // New content takes the old one's place; what was there is gone with its tag.
    let changed = bed.curl(&["-X", "PUT", "--data-binary", "new", &url]);
    assert_eq!(changed.status(), 204);
    let none_match = format!("If-None-Match: {}", changed.field("etag").expect("an etag"));
    assert_eq!(bed.curl(&["-H", &none_match, &url]).status(), 304);
    let if_match = format!("If-Match: {etag}");
    assert_eq!(bed.curl(&["-H", &if_match, &url]).status(), 412);
    assert_eq!(bed.curl(&["-H", &if_match, "-T", &local, &url]).status(), 412);
    assert_eq!(
        bed.curl(&["-H", "If-None-Match: *", "-T", &local, &url]).status(),
        412
    );
    assert_eq!(bed.curl(&[&url]).body, b"new");
    // Without a length: chunks.
    let chunked = bed.curl(&[
        "-T",
        &local,
        "-H",
        "Transfer-Encoding: chunked",
        &bed.url("/chunked"),
    ]);
    assert_eq!(chunked.status(), 201, "{chunked:?}");
    assert!(read(&admin, "/chunked").expect("read") == content);
    let empty = bed.curl(&["-X", "PUT", "--data-binary", "", &bed.url("/empty")]);
    assert_eq!(
        (
            empty.status(),
            admin.stat(b"/empty", true).expect("there").size_bytes
        ),
        (201, 0)
    );
    assert_eq!(bed.curl(&[&bed.url("/empty")]).status(), 200);
}

#[test]
fn names_are_made_moved_copied_and_removed() {
    let bed = Bed::start(1, Wanted::default());
    let admin = bed.grid.admin();
    assert_eq!(bed.status("MKCOL", "/d/", &[]), 201);
    assert_eq!(bed.status("MKCOL", "/d", &[]), 405);
    assert_eq!(bed.status("MKCOL", "/no/d", &[]), 409);
    assert_eq!(bed.status("PUT", "/no/f", &["--data-binary", "x"]), 409);
    put(&admin, "/d/a", b"first", 0o644).expect("put");
    put(&admin, "/d/b", b"second", 0o644).expect("put");
    let to = |path: &str| format!("Destination: {}", bed.url(path));
    assert_eq!(bed.status("COPY", "/d/", &["-H", &to("/e/")]), 201);
    assert_eq!(read(&admin, "/e/b").expect("copied"), b"second");
    assert_eq!(
        bed.status("COPY", "/d/a", &["-H", &to("/e/b"), "-H", "Overwrite: F"]),
        412
    );
    let before = admin.stat(b"/e/b", true).expect("there").inode;
    assert_eq!(bed.status("COPY", "/d/a", &["-H", &to("/e/b")]), 204);
    assert_eq!(read(&admin, "/e/b").expect("there"), b"first");
    assert_eq!(
        admin.stat(b"/e/b", true).expect("there").inode,
        before,
        "the name was never away"
    );
    assert_eq!(bed.status("MOVE", "/d/b", &["-H", &to("/e/b")]), 204);
    assert_eq!(read(&admin, "/e/b").expect("there"), b"second");
    assert_eq!(
        bed.status("MOVE", "/e/b", &["-H", "Destination: https://elsewhere/b"]),
        502
    );
    assert_eq!(
        bed.status("MOVE", "/e", &["-H", &to("/d/a")]),
        204,
        "a directory over a file"
    );
    assert_eq!(read(&admin, "/d/a/b").expect("there"), b"second");

    let listing = bed.curl(&["-X", "PROPFIND", "-H", "Depth: 1", &bed.url("/d")]);
    assert_eq!(listing.status(), 207);
    let text = listing.text();
    assert!(text.contains("/d/a/") && text.contains("<D:collection"), "{text}");
    let found = bed.curl(&[&bed.url("/.kuroshio/where/d/a/b")]).text();
    let found: serde_json::Value = serde_json::from_str(&found).expect("JSON");
    assert_eq!(found["size_bytes"], 6);
    assert_eq!(found["fragments"][0]["replicas"][0]["node"], "node1");
    assert_eq!(bed.status("DELETE", "/d", &[]), 204);
    assert_eq!(bed.status("GET", "/d/a/b", &[]), 404);
    assert_eq!(bed.status("DELETE", "/d", &[]), 404);
}

#[test]
fn checksums_are_given_and_compared() {
    let bed = Bed::start(1, Wanted::default());
    let url = bed.url("/f");
    // Check values of "123456789"; see the unit test of `digest`.
    let good = "Digest: md5=JfnnlDI7RTiF9RgfG2JNCw==, adler32=091e01de";
    let sent = bed.curl(&["-X", "PUT", "-H", good, "--data-binary", "123456789", &url]);
    assert_eq!(sent.status(), 201, "{}", sent.text());
    let wanted = |field: &str| bed.curl(&["-I", "-H", field, &url]);
    assert_eq!(
        wanted("Want-Digest: adler32").field("digest"),
        Some("adler32=091e01de")
    );
    assert_eq!(
        wanted("Want-Repr-Digest: sha-256=5").field("repr-digest"),
        // Heads are read in lower case here.
        Some(
            "sha-256=:FeKw08M4keuw8e9gnsQZQgwg4yDOlMZfvIwzEkSOsiU=:"
                .to_ascii_lowercase()
                .as_str()
        )
    );
    assert_eq!(wanted("Want-Digest: unixsum").field("digest"), None);
    let blake3 = blake3::hash(b"123456789");
    use base64::Engine as _;
    let blake3 = base64::engine::general_purpose::STANDARD.encode(blake3.as_bytes());
    let field = format!("repr-digest: blake3=:{blake3}:");
    assert_eq!(
        bed.curl(&["-X", "PUT", "-H", &field, "--data-binary", "123456789", &url])
            .status(),
        204
    );
    for wrong in [
        "Digest: adler32=091e01df",
        "Content-MD5: JfnnlDI7RTiF9RgfG2JNCa==",
        "Repr-Digest: sha-256=:AAAA:",
    ] {
        let new = bed.url("/new");
        let refused = bed.curl(&["-X", "PUT", "-H", wrong, "--data-binary", "123456789", &new]);
        assert_eq!(refused.status(), 400, "{wrong}");
        assert_eq!(bed.status("GET", "/new", &[]), 404);
    }
}

#[test]
fn what_breaks_off_changes_nothing() {
    let bed = Bed::start(1, Wanted::default());
    let admin = bed.grid.admin();
    put(&admin, "/f", b"old", 0o644).expect("put");
    let content = bytes(30_000_000, 2);
    let local = bed.file("local", &content).display().to_string();
    // At 1 MB/s for two seconds.
    let url = bed.url("/f");
    let cut = bed.curl(&["--limit-rate", "1M", "--max-time", "2", "-T", &local, &url]);
    assert_eq!(cut.exit, Some(28), "{cut:?}");
    // The gateway gives up what it has; a later upload shows that it was not in the way.
    assert_eq!(read(&admin, "/f").expect("there"), b"old");
    assert_eq!(bed.curl(&["-T", &local, &url]).status(), 204);
    assert!(read(&admin, "/f").expect("there") == content);
}

#[test]
fn a_replica_that_is_damaged_is_not_given_out_as_whole() {
    let bed = Bed::start(1, Wanted::default());
    let content = bytes(2_000_000, 3);
    put(&bed.grid.admin(), "/f", &content, 0o644).expect("put");
    let object = common::grid::object_files(&bed.grid.node_dir(1));
    let object = object.first().expect("an object");
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .open(object)
        .expect("opened");
    file.write_all(b"rot").expect("written");
    drop(file);
    let got = bed.curl(&[&bed.url("/f")]);
    assert_ne!(got.exit, Some(0), "curl must see that it is not whole");
    assert!(got.body.len() < content.len());
}

#[test]
fn nobody_gets_in() {
    let bed = Bed::start(1, Wanted::default());
    let admin = bed.grid.admin();
    put(&admin, "/mine", b"secret", 0o600).expect("put");
    let url = bed.url("/mine");
    let without = bed.curl_plain(&[&url]);
    assert_eq!(without.status(), 401);
    assert!(
        without.head.contains("www-authenticate: bearer") && without.head.contains("www-authenticate: basic")
    );
    let ticket = bed.grid.user_ticket("alice", "");
    assert_eq!(bed.curl_as(&ticket, &[&url]).status(), 403);
    assert_eq!(
        bed.curl_as(&ticket, &["-X", "PUT", "--data-binary", "x", &bed.url("/alice")])
            .status(),
        403
    );
    assert_eq!(bed.curl_as(&ticket, &["-X", "DELETE", &url]).status(), 403);
    let lock = "<D:lockinfo xmlns:D='DAV:'><D:lockscope><D:exclusive/></D:lockscope><D:locktype><D:write/></D:locktype>\
                </D:lockinfo>";
    for path in ["/", "/mine", "/new"] {
        let refused = bed.curl_as(&ticket, &["-X", "LOCK", "-d", lock, &bed.url(path)]);
        assert_eq!(refused.status(), 403, "LOCK {path}: {}", refused.text());
    }
    let reader = bed.grid.user_ticket("alice", "storage.read:/pub");
    assert_eq!(bed.curl_as(&reader, &[&bed.url("/mine")]).status(), 403);
    // As a password, and broken in several ways.
    let user = format!("anybody:{}", bed.grid.admin_ticket().token());
    assert_eq!(bed.curl_plain(&["-u", &user, &url]).body, b"secret");
    assert_eq!(bed.curl_plain(&["-u", "anybody:no", &url]).status(), 401);
    let mut altered = bed.grid.admin_ticket().token().to_owned();
    let last = altered.pop().expect("not empty");
    altered.push(if last == 'A' { 'Q' } else { 'A' });
    let header = format!("Authorization: Bearer {altered}");
    assert_eq!(bed.curl_plain(&["-H", &header, &url]).status(), 401);
    for path in [
        "/../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/a%2f..%2fmine",
        "/mine%00",
    ] {
        let status = bed.curl(&[&bed.url(path)]).status();
        assert!((400..=404).contains(&status), "{path}: {status}");
    }
    // What a lock's token is shows PROPFIND to everybody: it must not help others.
    let locked = bed.curl(&["-X", "LOCK", "-d", lock, &url]);
    assert_eq!(locked.status(), 200, "{}", locked.text());
    let token = format!("Lock-Token: {}", locked.field("lock-token").expect("a token"));
    let unlock = bed.curl_as(&ticket, &["-X", "UNLOCK", "-H", &token, &url]);
    assert_eq!(unlock.status(), 403);
    assert_eq!(bed.status("PUT", "/mine", &["--data-binary", "x"]), 423);
    assert_eq!(bed.status("UNLOCK", "/mine", &["-H", &token]), 204);
    assert_eq!(read(&admin, "/mine").expect("there"), b"secret");
    let left = admin
        .list(b"/")
        .map(|e| e.expect("entry").name)
        .collect::<Vec<_>>();
    assert_eq!(left, [b"mine"]);
}

#[test]
fn bad_input_is_refused_with_a_sentence() {
    let bed = Bed::start(1, Wanted::default());
    put(&bed.grid.admin(), "/f", b"x", 0o644).expect("put");
    let url = bed.url("/f");
    let deep = format!("{}{}", "<a>".repeat(5000), "</a>".repeat(5000));
    let long = "x".repeat(70_000);
    let (deep, long) = (
        bed.file("deep", deep.as_bytes()),
        bed.file("long", long.as_bytes()),
    );
    let (deep, long) = (format!("@{}", deep.display()), format!("@{}", long.display()));
    let name = format!("/{}", "n".repeat(300));
    let table: [(&str, &str, &[&str], u16); 10] = [
        ("PATCH", "/f", &["-d", "x"], 405),
        ("TRACE", "/f", &[], 405),
        ("PUT", "/f", &["-H", "Content-Range: bytes 0-0/2", "-d", "x"], 400),
        ("PROPFIND", "/f", &["-H", "Depth: infinity"], 403),
        ("PROPFIND", "/f", &["-H", "Depth: 0", "--data-binary", &deep], 400),
        ("PROPFIND", "/f", &["-H", "Depth: 0", "--data-binary", &long], 413),
        ("PROPFIND", "/f", &["-H", "Depth: 0", "-d", "<broken"], 400),
        ("COPY", "/f", &[], 400),
        ("GET", "/", &[], 405),
        ("PUT", &name, &["-d", "x"], 414),
    ];
    for (method, path, more, status) in table {
        let answer = bed.curl(&[&["-X", method, &bed.url(path)][..], more].concat());
        assert_eq!(
            answer.status(),
            status,
            "{method} {path} {more:?}: {}",
            answer.text()
        );
        assert!(answer.text().len() > 5, "{method} {path}: no sentence");
    }
    // Bytes that are no TLS, and a client that says nothing, hold nobody up.
    for garbage in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &[0xff; 5000],
        b"\x16\x03\x01\xff\xff\x01",
    ] {
        let mut socket = TcpStream::connect(bed.gateway.address()).expect("connected");
        socket
            .set_read_timeout(Some(Duration::from_secs(20)))
            .expect("set");
        let _ = socket.write_all(garbage);
        let _ = socket.read(&mut [0; 100]);
    }
    assert_eq!(bed.curl(&[&url]).body, b"x");
}

#[test]
fn properties_and_locks_stay_where_they_belong() {
    let bed = Bed::start(1, Wanted::default());
    let admin = bed.grid.admin();
    put(&admin, "/f", b"x", 0o644).expect("put");
    let url = bed.url("/f");
    let patch = "<D:propertyupdate xmlns:D='DAV:' xmlns:x='urn:x'><D:set><D:prop><x:color>blue</x:color></D:prop></D:set>\
                 </D:propertyupdate>";
    assert_eq!(bed.curl(&["-X", "PROPPATCH", "-d", patch, &url]).status(), 207);
    put(&admin, "/f", b"other content", 0o644).expect("put");
    admin.rename(b"/f", b"/g", false).expect("renamed");
    let ask = "<D:propfind xmlns:D='DAV:' xmlns:x='urn:x'><D:prop><x:color/></D:prop></D:propfind>";
    let found = bed
        .curl(&["-X", "PROPFIND", "-H", "Depth: 0", "-d", ask, &bed.url("/g")])
        .text();
    assert!(found.contains("blue"), "{found}");
    let to = format!("Destination: {}", bed.url("/h"));
    assert_eq!(bed.status("COPY", "/g", &["-H", &to]), 201);
    let found = bed
        .curl(&["-X", "PROPFIND", "-H", "Depth: 0", "-d", ask, &bed.url("/h")])
        .text();
    assert!(found.contains("blue"), "{found}");
}

/// Third-party copies between two grids, both ways, by curl.
#[test]
fn copies_go_between_two_grids() {
    const LOOPBACK: &[&str] = &["127.0.0.0/8"];
    let there = Bed::start(1, Wanted::default());
    let here = Bed::start(
        1,
        Wanted {
            allow: LOOPBACK,
            trust: vec![there.gateway.certificate().clone()],
            ..Wanted::default()
        },
    );
    let content = bytes(20_000_000, 4);
    put(&there.grid.admin(), "/far", &content, 0o644).expect("put");
    let token = format!(
        "TransferHeaderAuthorization: Bearer {}",
        there.grid.admin_ticket().token()
    );
    let source = format!("Source: {}", there.url("/far"));
    let pull = |path: &str, more: &[&str]| {
        let url = here.url(path);
        let args = [
            "-X",
            "COPY",
            &url,
            "-H",
            &source,
            "-H",
            &token,
            "-H",
            "Credential: none",
        ];
        here.curl(&[&args[..], more].concat())
    };
    let pulled = pull("/near", &["-H", "RequireChecksumVerification: true"]);
    assert_eq!(pulled.status(), 202, "{}", pulled.text());
    assert_eq!(pulled.field("content-type"), Some("text/perf-marker-stream"));
    let said = pulled.text();
    assert!(
        said.ends_with("success: Created\n") && said.contains("Stripe Bytes Transferred: 20000000"),
        "{said}"
    );
    assert!(read(&here.grid.admin(), "/near").expect("there") == content);
    assert_eq!(pull("/near", &["-H", "Overwrite: F"]).status(), 412);
    assert_eq!(pull("/near", &["-H", "Credential: oidc"]).status(), 400);

    let destination = format!("Destination: {}", there.url("/back"));
    let pushed = here.curl(&["-X", "COPY", &here.url("/near"), "-H", &destination, "-H", &token]);
    assert_eq!(pushed.status(), 202, "{}", pushed.text());
    assert!(pushed.text().ends_with("success: Created\n"), "{}", pushed.text());
    assert!(read(&there.grid.admin(), "/back").expect("there") == content);
    // Refused before the content goes, so that the refusal is heard each time and not only a broken connection.
    for _ in 0..20 {
        let again = here.curl(&[
            "-X",
            "COPY",
            &here.url("/near"),
            "-H",
            &destination,
            "-H",
            &token,
            "-H",
            "Overwrite: F",
        ]);
        let said = again.text();
        assert!(said.starts_with("failure: ") && said.contains("412"), "{said}");
    }

    // What fails leaves nothing: no right there, no such file, a server that is not trusted.
    let missing = format!("Source: {}", there.url("/missing"));
    let failed = here.curl(&["-X", "COPY", &here.url("/x"), "-H", &missing, "-H", &token]);
    assert!(
        failed.text().contains("failure: ") && failed.text().contains("404"),
        "{}",
        failed.text()
    );
    let failed = here.curl(&["-X", "COPY", &here.url("/x"), "-H", &source]);
    assert!(
        failed.text().contains("failure: ") && failed.text().contains("401"),
        "{}",
        failed.text()
    );
    let own = format!("Source: {}", here.url("/near"));
    let failed = here.curl(&["-X", "COPY", &here.url("/x"), "-H", &own, "-H", &token]);
    assert_eq!(
        failed.status(),
        502,
        "a certificate that is not trusted: {}",
        failed.text()
    );
    // Neither here nor where the configuration allows nothing internal.
    let inside = there.curl(&["-X", "COPY", &there.url("/x"), "-H", &source, "-H", &token]);
    assert_eq!(inside.status(), 403, "{}", inside.text());
    let meta = here.curl(&[
        "-X",
        "COPY",
        &here.url("/x"),
        "-H",
        "Source: https://169.254.169.254/latest",
    ]);
    assert_eq!(meta.status(), 403, "{}", meta.text());
    let plain = here.curl(&["-X", "COPY", &here.url("/x"), "-H", "Source: http://127.0.0.1/x"]);
    assert_eq!(plain.status(), 400, "{}", plain.text());
    assert_eq!(here.status("GET", "/x", &[]), 404);
}

/// A client that goes away has given its copy up.
#[test]
fn a_copy_ends_with_its_client() {
    let there = Bed::start(1, Wanted::default());
    let here = Bed::start(
        1,
        Wanted {
            allow: &["127.0.0.0/8"],
            trust: vec![there.gateway.certificate().clone()],
            ..Wanted::default()
        },
    );
    // A server that accepts and says nothing, as a source.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
    let port = silent.local_addr().expect("address").port();
    let source = format!("Source: https://127.0.0.1:{port}/x");
    let left = here.curl(&["--max-time", "2", "-X", "COPY", &here.url("/x"), "-H", &source]);
    assert_eq!(left.exit, Some(28), "{left:?}");
    wait_for("a gateway that answers", || here.status("GET", "/", &[]) == 405);
    let admin = here.grid.admin();
    let gone = admin.stat(b"/x", true).err().and_then(|e| e.code());
    assert_eq!(gone, Some(v1::Code::NoEntry));
    drop(there);
}
