//! A script in a machine of two memory nodes, on the wall clock (`tests/vm/vm --nodes 2 --real-time`).

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};

use super::VmError;
use super::tree::{Tree, problem, programs};

/// What runs there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Nodes<'a> {
    /// The script, from the checkout's root.
    pub script: &'a str,
    /// Its arguments.
    pub words: &'a [String],
    /// Modules that are loaded before.
    pub modules: &'a [&'a str],
    /// Folder for what it leaves in its `/run/out`, and for its messages.
    pub out: &'a Path,
    /// Wall seconds that it may take.
    pub limit_s: u64,
}

/// A machine that has run.
#[derive(Debug, Clone)]
pub(crate) struct Ran {
    /// Release of its kernel.
    pub kernel: String,
}

/// Runs a script to its end.
///
/// # Errors
/// Something that it needs is missing; or it ended with an exit code that is not 0.
pub(crate) fn on_nodes(nodes: &Nodes<'_>, say: &mut dyn FnMut(&str)) -> Result<Ran, VmError> {
    let tree = Tree::find()?;
    programs()?;
    let script = tree.part(nodes.script);
    if !script.is_file() {
        return Err(VmError::Missing(format!(
            "{}: the checkout has no such script",
            script.display()
        )));
    }
    let kernel = tree.release()?;
    let failed = |m: std::io::Error| VmError::Failed(format!("tests/vm/vm: {m}"));
    fs::create_dir_all(nodes.out).map_err(failed)?;
    say(&format!(
        "{} in a virtual machine of two memory nodes (Linux {kernel})",
        nodes.script
    ));
    let mut command = Command::new(tree.part("tests/vm/vm"));
    command.args([
        "run",
        "--nodes",
        "2",
        "--real-time",
        // An emulated timer is late on a busy machine, and the kernel would give it up.
        "--append",
        "no_timer_check",
        "--timeout",
        &nodes.limit_s.to_string(),
        "--out",
    ]);
    command.arg(std::path::absolute(nodes.out).map_err(failed)?);
    for module in nodes.modules {
        command.args(["--module", module]);
    }
    let status = command
        .arg(script)
        .args(nodes.words)
        .current_dir(tree.part(""))
        .stdin(Stdio::null())
        .stdout(File::create(nodes.out.join("stdout.txt")).map_err(failed)?)
        .stderr(File::create(nodes.out.join("stderr.txt")).map_err(failed)?)
        .status()
        .map_err(failed)?;
    match status.code() {
        Some(0) => Ok(Ran { kernel }),
        // A signal has no code.
        code => Err(problem(nodes.script, nodes.out, code.unwrap_or(125))),
    }
}
