//! A harness for tests that need the testbed's namespaces: the test program runs itself again
//! inside them. Where neither root nor user namespaces are there, the run fails with the advice.

#![allow(dead_code, reason = "each test program uses a part")]

use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use kuroshio_testbed::{Testbed, Topology, isolate};

/// A named test.
pub type Test = (&'static str, fn());

/// How long anything may take to happen before a test gives up.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Runs the tests that the arguments name (all without), inside the testbed's namespaces.
pub fn run(tests: &[Test]) -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    if args.iter().any(|a| a == "--list") {
        for (name, _) in tests {
            println!("{name}: test");
        }
        return ExitCode::SUCCESS;
    }
    if !isolate::is_inside() {
        return match isolate::run(&args) {
            Ok(status) if status.success() => ExitCode::SUCCESS,
            Ok(status) => {
                eprintln!("inside: {status}");
                ExitCode::FAILURE
            }
            Err(e) => {
                eprintln!("{e}");
                ExitCode::FAILURE
            }
        };
    }
    let filters: Vec<&str> = args
        .iter()
        .filter_map(|a| a.to_str())
        .filter(|a| !a.starts_with("--"))
        .collect();
    let mut failed = 0;
    for (name, test) in tests {
        if !filters.is_empty() && !filters.iter().any(|f| name.contains(f)) {
            continue;
        }
        let start = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(test));
        let word = if outcome.is_ok() { "ok" } else { "FAILED" };
        println!("test {name} ... {word} ({:.1} s)", start.elapsed().as_secs_f64());
        failed += u32::from(outcome.is_err());
    }
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Two hosts, `east` (10.0.0.1, fd00::1) and `west` (10.0.0.2, fd00::2), over the link `sea`
/// whose lines are given; `port` are more lines of the east's port.
pub fn two_hosts(port: &str, link: &str) -> Topology {
    let text = format!(
        r#"
name = "two"
[[router]]
name = "a"
[[router]]
name = "b"
[[host]]
name = "east"
[[host.port]]
name = "e0"
address = ["10.0.0.1/24", "fd00::1/64"]
router = "a"
{port}
[[host]]
name = "west"
[[host.port]]
name = "w0"
address = ["10.0.0.2/24", "fd00::2/64"]
router = "b"
[[link]]
name = "sea"
between = ["a", "b"]
{link}
"#
    );
    Topology::from_toml(&text).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

/// Runs a closure in a host and waits for what it gives.
pub fn in_host<T: Send + 'static>(tb: &Testbed, host: &str, run: impl FnOnce() -> T + Send + 'static) -> T {
    spawn(tb, host, run)
        .join()
        .expect("the thread in the host")
        .expect("entering the host")
}

/// Runs a closure in a host.
pub fn spawn<T: Send + 'static>(
    tb: &Testbed,
    host: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> std::thread::JoinHandle<std::io::Result<T>> {
    tb.in_host(host, run).expect("a thread in the host")
}

/// Waits until `done` or fails, naming what was waited for.
pub fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < end, "waited {PATIENCE:?} for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A TCP connection from east to west: the stream in each.
pub fn connect(tb: &Testbed, to: &'static str) -> (TcpStream, TcpStream) {
    let listener = in_host(tb, "west", move || TcpListener::bind(to).expect("listen"));
    let address: SocketAddr = to.parse().expect("address");
    let stream = in_host(tb, "east", move || {
        TcpStream::connect_timeout(&address, PATIENCE).expect("connect")
    });
    let (accepted, _) = listener.accept().expect("accept");
    for s in [&stream, &accepted] {
        s.set_nodelay(true).expect("nodelay");
        s.set_read_timeout(Some(PATIENCE)).expect("timeout");
        s.set_write_timeout(Some(PATIENCE)).expect("timeout");
    }
    (stream, accepted)
}

/// Sends `bytes` of a pattern through a connection and checks what arrives. Returns the seconds.
pub fn transfer(mut from: TcpStream, mut to: TcpStream, bytes: usize) -> f64 {
    let start = Instant::now();
    let sender = std::thread::spawn(move || {
        let data = pattern(bytes);
        from.write_all(&data).expect("send");
    });
    let mut got = Vec::with_capacity(bytes);
    to.read_to_end(&mut got).expect("receive");
    sender.join().expect("sender");
    assert!(
        got == pattern(bytes),
        "{} bytes arrived, or changed ones",
        got.len()
    );
    start.elapsed().as_secs_f64()
}

/// Bytes in which no two neighbouring kilobytes are the same.
pub fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i ^ (i >> 8) ^ (i >> 16)) as u8).collect()
}
