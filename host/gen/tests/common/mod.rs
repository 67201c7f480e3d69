//! A harness for tests that need the testbed's namespaces: the test program runs itself again
//! inside them. Where neither root nor user namespaces are there, the run fails with the advice.

#![allow(dead_code, reason = "each test program uses a part")]

use std::ffi::OsString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Instant;

use kuroshio_testbed::{Testbed, Topology, isolate};

/// A named test.
pub type Test = (&'static str, fn());

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
