//! `kuroshio pace`: rates per destination or process on this host.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use kuroshio_core::units::BitRate;
use kuroshio_pace::{
    Applied, MAX_TOML_BYTES, Mode, PaceError, Presence, Request, Rule, Shown, Wish, apply, clear,
    clear_left_behind, default_path, find, rules_from_toml, show,
};

use crate::error::{EXIT_FAILED, Failure};
use crate::output;

const EXAMPLE: &str = "\
Example (as root):
  kuroshio pace apply --to 192.0.2.0/24 --port 2811 --rate 500M
  kuroshio pace apply --cgroup /sys/fs/cgroup/bulk --rate 1G --mode dynamic
  kuroshio pace apply --config rules.toml --backend psp --dev eth0
  kuroshio pace show --json
  kuroshio pace clear
Rates are frame level (MAC header to FCS). What paces and what it cannot do is printed; docs/pace.md.
Exit codes: 0 done, 1 failed, 2 bad input, or the back end that was asked for is not there.";

/// Arguments of `kuroshio pace`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLE)]
pub struct Args {
    #[command(subcommand)]
    what: What,
    /// Where what was changed is kept [default: /run/kuroshio/pace-NETNS.json, without root below $XDG_RUNTIME_DIR]
    #[arg(long, value_name = "FILE", global = true)]
    state_file: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long, global = true)]
    json: bool,
}

#[derive(clap::Subcommand)]
enum What {
    /// Put rates in force: one rule by flags, or those of a file
    #[command(after_help = EXAMPLE)]
    Apply(Apply),
    /// Show what is in force, and what this host has
    #[command(after_help = EXAMPLE)]
    Show {
        /// Interface whose qdisc is looked at [default: that of the default route]
        #[arg(long, value_name = "NAME")]
        dev: Option<String>,
    },
    /// Take everything back that `apply` changed, and what copies that were killed have left
    #[command(after_help = EXAMPLE)]
    Clear,
}

#[derive(clap::Args)]
struct Apply {
    /// What paces: auto (the best that is there), psp, fq, tcp; one that is named and not there is an error
    #[arg(long, default_value = "auto", value_name = "NAME")]
    backend: String,
    /// Interface for psp and fq [default: that of the default route]
    #[arg(long, value_name = "NAME")]
    dev: Option<String>,
    /// Destination: an address or a prefix, IPv4 or IPv6 [default: everywhere]
    #[arg(long, value_name = "PREFIX")]
    to: Option<String>,
    /// Port of the far end [default: every port]
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// Processes of a control group (version 2), and of those below it
    #[arg(long, value_name = "FOLDER")]
    cgroup: Option<PathBuf>,
    /// Frame-level rate, for example 500M
    #[arg(long, value_name = "RATE", required_unless_present = "config")]
    rate: Option<String>,
    /// static: the rate; dynamic: cwnd * frame / RTT, the rate is the bound
    #[arg(long, value_enum, default_value = "static", value_name = "MODE")]
    mode: ModeFlag,
    /// Rules from a TOML file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["to", "port", "cgroup", "rate", "mode"])]
    config: Option<PathBuf>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum ModeFlag {
    Static,
    Dynamic,
}

impl From<PaceError> for Failure {
    fn from(e: PaceError) -> Self {
        if e.is_bad_input() {
            Self::usage(format!("pace: {e}"))
        } else {
            Self::failed(format!("pace: {e}"))
        }
    }
}

/// Runs the verb.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    let json = args.json;
    let named = args.state_file.is_some();
    let path = match args.state_file {
        Some(path) => path,
        None => default_path().ok_or_else(|| {
            Failure::usage("no place for the state file: give --state-file FILE, or set XDG_RUNTIME_DIR")
        })?,
    };
    match args.what {
        What::Apply(wanted) => put(wanted, &path, json),
        What::Show { dev } => look(dev, &path, json),
        What::Clear => {
            let mut steps = match named {
                true => Vec::new(),
                false => clear_left_behind()?,
            };
            match clear(&path) {
                Ok(mut own) => steps.append(&mut own),
                Err(_) if !steps.is_empty() && !path.exists() => {}
                Err(e) => return Err(e.into()),
            }
            if json {
                output::line(&serde_json::json!({ "cleared": steps }).to_string())?;
            } else if steps.is_empty() {
                output::line("nothing was in force")?;
            }
            for step in steps.iter().filter(|_| !json) {
                output::line(&format!("gone: {step}"))?;
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn rules(wanted: &Apply) -> Result<Vec<Rule>, Failure> {
    if let Some(path) = &wanted.config {
        let bad = |why: String| Failure::usage(format!("--config {}: {why}", path.display()));
        let file = std::fs::File::open(path).map_err(|e| bad(e.to_string()))?;
        let mut text = String::new();
        file.take(MAX_TOML_BYTES + 1)
            .read_to_string(&mut text)
            .map_err(|e| bad(e.to_string()))?;
        if text.len() as u64 > MAX_TOML_BYTES {
            return Err(bad(format!("at most {MAX_TOML_BYTES} bytes are valid")));
        }
        return rules_from_toml(&text).map_err(|e| bad(e.to_string()));
    }
    let text = wanted.rate.as_deref().unwrap_or_default();
    let rate: BitRate = text.parse().map_err(|e| Failure::usage(format!("--rate: {e}")))?;
    let to = wanted.to.as_deref().map(str::parse).transpose();
    let rule = Rule {
        to: to.map_err(|e: String| Failure::usage(format!("--to {e}")))?,
        port: wanted.port,
        cgroup: wanted.cgroup.clone(),
        rate_bps: rate.bps(),
        mode: match wanted.mode {
            ModeFlag::Static => Mode::Static,
            ModeFlag::Dynamic => Mode::Dynamic,
        },
    };
    rule.check().map_err(|e| Failure::usage(format!("pace: {e}")))?;
    Ok(vec![rule])
}

fn put(wanted: Apply, path: &Path, json: bool) -> Result<ExitCode, Failure> {
    let wish: Wish = wanted
        .backend
        .parse()
        .map_err(|e| Failure::usage(format!("--backend {e}")))?;
    let rules = rules(&wanted)?;
    let request = Request {
        wish,
        dev: wanted.dev,
        rules,
    };
    let done = apply(&request, path, &mut |_, _| {})?;
    if json {
        output::line(&serde_json::to_string(&done).map_err(|e| Failure::failed(e.to_string()))?)?;
    } else {
        show_applied(&done)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn show_applied(done: &Applied) -> Result<(), Failure> {
    let backend = done.choice.backend;
    let at = done
        .dev
        .as_ref()
        .map_or_else(String::new, |dev| format!(" at {dev}"));
    output::line(&format!("paced by {backend}{at}: {}", backend.does()))?;
    for (other, why) in &done.choice.passed_over {
        output::line(&format!("  not {other}: {why}"))?;
    }
    for rule in &done.rules {
        output::line(&format!("rule {rule}"))?;
    }
    for what in &done.cannot {
        output::line(&format!("note {what}"))?;
    }
    output::line("in force until `kuroshio pace clear` or a reboot")
}

fn look(dev: Option<String>, path: &Path, json: bool) -> Result<ExitCode, Failure> {
    let named = dev.is_some();
    let dev = dev.or_else(kuroshio_tune::link::default_dev);
    let found = match find(dev.as_deref()) {
        Err(e) if named => return Err(e.into()),
        Err(_) => find(None)?,
        Ok(found) => found,
    };
    let shown = show(path)?;
    if json {
        let object = serde_json::json!({ "in_force": shown, "host": found });
        output::line(&object.to_string())?;
    } else {
        match &shown {
            None => output::line("nothing is in force")?,
            Some(shown) => show_shown(shown)?,
        }
        let root = match (&found.dev, &found.root) {
            (Some(dev), Some(root)) => format!("at {dev}, whose root qdisc is {root}"),
            (Some(dev), None) => format!("at {dev}, which has no qdisc"),
            (None, _) => "without an interface".to_owned(),
        };
        output::line(&format!("this host {root}:"))?;
        for (name, presence) in [("psp", &found.psp), ("fq", &found.fq), ("tcp", &found.tcp)] {
            let text = match presence {
                Presence::Ready => "ready".to_owned(),
                Presence::Missing(why) => format!("not there: {why}"),
            };
            output::line(&format!("  {name}: {text}"))?;
        }
    }
    let broken = shown.is_some_and(|s| !s.whole || !s.lost.is_empty());
    Ok(if broken {
        ExitCode::from(EXIT_FAILED)
    } else {
        ExitCode::SUCCESS
    })
}

fn show_shown(shown: &Shown) -> Result<(), Failure> {
    let backend = shown.backend;
    output::line(&format!("paced by {backend}: {}", backend.does()))?;
    for one in &shown.rules {
        let told = match one.connections {
            Some(n) => format!(" ({n} connections so far)"),
            None => String::new(),
        };
        output::line(&format!("rule {}{told}", one.rule))?;
    }
    for what in &shown.cannot {
        output::line(&format!("note {what}"))?;
    }
    if !shown.whole {
        output::line(
            "HALF MADE: the process was killed on its way; `kuroshio pace clear` takes back what it made",
        )?;
    }
    for step in &shown.lost {
        output::line(&format!(
            "LOST: {step} is not there any more; `kuroshio pace clear`, then apply again"
        ))?;
    }
    Ok(())
}
