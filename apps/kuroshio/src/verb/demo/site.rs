//! A service in one of the demo's hosts, and the client that speaks to it: the everyday commands, run as
//! processes of their own in the hosts' networks.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use kuroshio_service::api::PlanReport;
use kuroshio_testbed::Testbed;

use crate::error::Failure;

/// Port on which every service of the demo listens.
pub const PORT: u16 = 7400;
/// A service that has not printed its ticket, or not got its plan ready, by then has failed.
const START_DEADLINE: Duration = Duration::from_secs(20);

/// A process that is ended when this goes.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Files and programs of one run.
pub struct Places {
    /// This program.
    pub program: PathBuf,
    /// The client's configuration folder: its trust store.
    pub config: PathBuf,
    /// Parent of the services' state folders.
    pub state: PathBuf,
}

/// A data service that is up.
pub struct Site {
    _process: Running,
}

impl Places {
    /// One of our own commands, in a host, with the client's configuration.
    pub fn command(&self, net: &Testbed, host: &str) -> Result<Command, Failure> {
        let mut command = net
            .command(host, &self.program)
            .map_err(|e| Failure::failed(e.to_string()))?;
        command.env("XDG_CONFIG_HOME", &self.config);
        Ok(command)
    }

    /// Runs one of our commands to its end, `input` on its standard input, and returns its output.
    pub fn run(&self, net: &Testbed, host: &str, args: &[&str], input: &str) -> Result<String, Failure> {
        let mut child = self
            .command(net, host)?
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| Failure::failed(format!("{}: {e}", args.join(" "))))?;
        if let Some(mut stdin) = child.stdin.take() {
            // A command that does not read its input says so by its exit code.
            let _ = stdin.write_all(input.as_bytes());
        }
        let output = child
            .wait_with_output()
            .map_err(|e| Failure::failed(e.to_string()))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(Failure::failed(format!(
            "kuroshio {}: {}",
            args.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        )))
    }

    /// Waits until the service of `host` gives out all of its plan: one that has just started waits for leases
    /// of an earlier life to end, and the runs are to show the routes.
    pub fn await_plan(&self, net: &Testbed, host: &str) -> Result<(), Failure> {
        let deadline = Instant::now() + START_DEADLINE;
        loop {
            let answer = self.run(net, host, &["plan", "show", host, "--json"], "")?;
            let plan: PlanReport =
                serde_json::from_str(&answer).map_err(|e| Failure::failed(format!("plan of {host}: {e}")))?;
            if plan.ready {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(Failure::failed(format!("the plan of {host} does not get ready")));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Starts a service for `root` in `host` and makes the client trust it under the host's name, reached at
    /// `address`.
    pub fn serve(
        &self,
        net: &Testbed,
        host: &str,
        root: &Path,
        address: &str,
        plan: Option<&Path>,
    ) -> Result<Site, Failure> {
        let mut command = self.command(net, host)?;
        command
            .arg("serve")
            .arg("--root")
            .arg(root)
            .arg("--state")
            .arg(self.state.join(host));
        command.args([
            "--listen",
            &format!("0.0.0.0:{PORT}"),
            "--advertise",
            &format!("{address}:{PORT}"),
        ]);
        if let Some(plan) = plan {
            command.arg("--plan").arg(plan);
        }
        let log = std::fs::File::create(self.state.join(format!("{host}.log")))
            .map_err(|e| Failure::failed(format!("log of {host}: {e}")))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .map_err(|e| Failure::failed(format!("kuroshio serve in {host}: {e}")))?;
        let mut process = Running(child);
        let ticket = process.0.stdout.take().and_then(first_line).ok_or_else(|| {
            let log = std::fs::read_to_string(self.state.join(format!("{host}.log"))).unwrap_or_default();
            Failure::failed(format!("kuroshio serve in {host} gave no ticket: {}", log.trim()))
        })?;
        self.run(net, host, &["trust", "add", host], &(ticket + "\n"))?;
        Ok(Site { _process: process })
    }
}

/// The first line of a process's output, if it comes before [`START_DEADLINE`].
fn first_line(out: ChildStdout) -> Option<String> {
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || {
        let mut lines = BufReader::new(out).lines();
        let _ = send.send(lines.next());
        // The rest is read away: a service must not block on its output.
        lines.for_each(drop);
    });
    receive.recv_timeout(START_DEADLINE).ok()??.ok()
}
