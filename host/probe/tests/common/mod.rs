//! Servers of both kinds on loopback, ended with the test.

#![allow(dead_code, reason = "each test binary uses its part")]

use kuroshio_probe::{
    ClientConfig, Length, Limits, OnEvent, Params, ProbeError, Server, ServerEvent, TestReport, run_client,
};
use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// Only a hang lasts so long.
pub const LONG: Duration = Duration::from_secs(60);

/// A server of this crate.
pub struct Ours {
    pub address: SocketAddr,
    pub reports: Receiver<Result<TestReport, String>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Ours {
    pub fn start(at: &str, limits: Limits) -> Self {
        let (sender, reports) = channel();
        let sender = Mutex::new(sender);
        let on: OnEvent = Arc::new(move |event| {
            let told = match event {
                ServerEvent::Finished { report, .. } => Ok(report.clone()),
                ServerEvent::Failed { error, .. } => Err(error.to_string()),
                _ => return,
            };
            let _ = sender.lock().expect("sender").send(told);
        });
        let at = at.parse().expect("address");
        let server = Server::bind(&[at], limits, false, on).expect("bound");
        let (address, stop) = (server.addresses()[0], server.stopper());
        let thread = std::thread::spawn(move || server.serve().expect("served"));
        Self {
            address,
            reports,
            stop,
            thread: Some(thread),
        }
    }

    /// What the server says of its last test.
    pub fn report(&self) -> Result<TestReport, String> {
        self.reports.recv_timeout(LONG).expect("a report")
    }

    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A test of `ms` milliseconds.
pub fn config(address: SocketAddr, ms: u64, change: impl FnOnce(&mut Params)) -> ClientConfig {
    let mut config = ClientConfig::new(address.ip().to_string());
    config.port = address.port();
    config.interval = Duration::from_millis(200);
    config.params.length = Length::Time(ms * 1_000_000);
    // The system's own control is not the same everywhere.
    config.params.congestion = Some("cubic".into());
    change(&mut config.params);
    config
}

pub fn run(config: &ClientConfig) -> Result<TestReport, ProbeError> {
    run_client(config, &AtomicBool::new(false), &mut |_| ())
}

/// A port that was free a moment ago.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("address").port()
}

/// The real server, for one test.
pub struct Iperf3 {
    pub address: SocketAddr,
    child: Child,
    rest: Option<BufReader<std::process::ChildStdout>>,
}

impl Iperf3 {
    pub fn start(ip: &str) -> Self {
        // Another process may take the port in between: then once more.
        for _ in 0..10 {
            let port = free_port();
            let mut child = Command::new("iperf3")
                .args(["-s", "-1", "--forceflush", "-B", ip, "-p", &port.to_string()])
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .expect("iperf3 is installed (scripts/deps test)");
            let mut out = BufReader::new(child.stdout.take().expect("stdout"));
            let mut line = String::new();
            while out.read_line(&mut line).expect("read") > 0 && !line.contains("Server listening") {
                line.clear();
            }
            if line.contains("Server listening") {
                let ip: std::net::IpAddr = ip.parse().expect("address");
                return Self {
                    address: SocketAddr::new(ip, port),
                    child,
                    rest: Some(out),
                };
            }
            let _ = child.wait();
        }
        panic!("iperf3 -s does not start");
    }

    /// Everything it printed, once it has ended by itself after its one test.
    pub fn output(mut self) -> String {
        let mut text = String::new();
        let mut rest = self.rest.take().expect("output");
        rest.read_to_string(&mut text).expect("text");
        let status = self.child.wait().expect("ended");
        assert!(status.success(), "{status}: {text}");
        text
    }
}

impl Drop for Iperf3 {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The real client against one of our servers; its JSON.
pub fn iperf3_client(address: SocketAddr, args: &[&str]) -> serde_json::Value {
    let (ip, port) = (address.ip().to_string(), address.port().to_string());
    let out = Command::new("timeout")
        .args(["60", "iperf3", "-c", &ip, "-p", &port, "-J"])
        .args(args)
        .output()
        .expect("iperf3 is installed (scripts/deps test)");
    let text = String::from_utf8_lossy(&out.stdout);
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
}
