//! `kuroshio lab run rails-fps|plb-global`: experiments on rails and video, which are code.

use std::process::ExitCode;
use std::time::SystemTime;

use kuroshio_lab::experiment::Mode;
use kuroshio_lab::rails::{self, About, RailsError, Request};
use kuroshio_testbed::isolate;

use super::{RunArgs, print};
use crate::error::Failure;

/// The experiments, as `lab list` tells them.
pub(super) fn list(json: bool) -> Vec<serde_json::Value> {
    let mut all = Vec::new();
    for about in &rails::ALL {
        if json {
            all.push(serde_json::json!({
                "experiment": about.name, "title": about.title, "source": about.source, "modes": about.modes,
            }));
            continue;
        }
        let modes: Vec<_> = about.modes.iter().map(|m| m.option()).collect();
        print(&format!(
            "{}: {} ({}; {})",
            about.name,
            about.title,
            about.source,
            modes.join(", ")
        ));
    }
    all
}

fn mode(about: &About, args: &RunArgs) -> Mode {
    match (args.sim, args.vm, args.live) {
        (true, _, _) => Mode::Sim,
        (_, true, _) => Mode::Vm,
        (_, _, true) => Mode::Live,
        _ => about.modes.first().copied().unwrap_or(Mode::Live),
    }
}

/// Runs one.
pub(super) fn run(args: &RunArgs, about: &About) -> Result<ExitCode, Failure> {
    let name = about.name;
    if args.today || args.stack.is_some() || args.stall_emulator.is_some() {
        return Err(Failure::usage(format!(
            "lab run {name}: runs without --today, --stack and --stall-emulator"
        )));
    }
    let mode = mode(about, args);
    // The testbed lives in namespaces of its own.
    if about.needs_testbed(mode) && !isolate::is_inside() {
        let list: Vec<_> = std::env::args_os().skip(1).collect();
        let status = isolate::run(&list).map_err(|e| Failure::failed(format!("lab: {e}")))?;
        return Ok(ExitCode::from(
            status.code().and_then(|c| u8::try_from(c).ok()).unwrap_or(1),
        ));
    }
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let suffix = match mode {
        Mode::Live => String::new(),
        Mode::Sim => "-sim".into(),
        Mode::Vm => "-vm".into(),
    };
    let dir = args
        .out
        .join(format!("{name}{suffix}-{}", since.map_or(0, |d| d.as_secs())));
    let request = Request {
        mode,
        sets: args.sets.clone(),
        work: dir.join("vm"),
    };
    let made = rails::run(about, &request, &mut |line| eprintln!("{line}")).map_err(|e| {
        let text = format!("lab run {name}: {e}");
        match e {
            RailsError::Bad(_) => Failure::usage(text),
            RailsError::Failed(_) => Failure::failed(text),
        }
    })?;
    let page = made
        .write(&dir)
        .map_err(|m| Failure::failed(format!("{}: {m}", dir.display())))?;
    let r = &made.result;
    if args.json {
        let text = serde_json::to_string_pretty(r).map_err(|m| Failure::failed(m.to_string()))?;
        print(&text);
        return Ok(ExitCode::from(r.exit_code()));
    }
    print(&format!(
        "{} ({}, scale {}): {}",
        r.experiment, r.mode, r.scale, r.source
    ));
    for c in &r.checks {
        let word = if c.ok { "holds" } else { "FAILS" };
        print(&format!("  {word}  {}: {} [{}]", c.name, c.value, c.bound));
    }
    for c in &r.compared {
        print(&format!("  paper {} {}, ours {:.2}", c.name, c.paper, c.ours));
    }
    for note in &r.notes {
        print(&format!("  {note}"));
    }
    if r.disturbed {
        print(&format!("  DISTURBED: {}", r.disturbed_by));
    }
    print(&format!("  report: {}", page.display()));
    Ok(ExitCode::from(r.exit_code()))
}
