//! How a transfer is shown: bars on a terminal, a line each second elsewhere, JSON lines on request.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{HumanBytes, ProgressBar, ProgressDrawTarget, ProgressStyle};
use kuroshio_service::report::{EventReport, ProgressReport};

use crate::output;

/// How often a terminal is drawn.
pub const DRAW_EVERY: Duration = Duration::from_millis(200);
/// How often a line is written elsewhere.
const LINE_EVERY: Duration = Duration::from_secs(1);
/// Width of the bar, characters.
const BAR: &str = "{bar:32} {percent:>3}% {wide_msg}";

enum Mode {
    Quiet,
    Bar(ProgressBar),
    Lines,
    Json,
}

/// The display of one transfer.
pub struct Display {
    mode: Mode,
    last: Option<Instant>,
    finished: bool,
}

impl Display {
    /// Chooses the form: `json`, else `quiet`, else by what standard error is.
    pub fn new(json: bool, quiet: bool) -> Self {
        let mode = if json {
            Mode::Json
        } else if quiet {
            Mode::Quiet
        } else if std::io::stderr().is_terminal() {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            if let Ok(style) = ProgressStyle::with_template(BAR) {
                bar.set_style(style);
            }
            Mode::Bar(bar)
        } else {
            Mode::Lines
        };
        Self {
            mode,
            last: None,
            finished: false,
        }
    }

    /// Shows where it stands, if it is time and not the end.
    pub fn update(&mut self, report: &ProgressReport) {
        if self.finished {
            return;
        }
        if let Mode::Bar(bar) = &self.mode {
            bar.set_length(report.bytes_scheduled.max(1));
            bar.set_position(report.bytes_durable);
            bar.set_message(sentence(report));
            return;
        }
        let now = Instant::now();
        let last = *self.last.get_or_insert(now);
        if now.duration_since(last) >= LINE_EVERY {
            self.last = Some(now);
            self.line(report);
        }
    }

    fn line(&self, report: &ProgressReport) {
        match &self.mode {
            Mode::Lines => eprintln!("{}", sentence(report)),
            Mode::Json => {
                eprintln!("{}", serde_json::json!({ "progress": report }));
            }
            Mode::Quiet | Mode::Bar(_) => {}
        }
    }

    /// Tells what happened to one file.
    pub fn event(&self, event: &EventReport) {
        // Files that went well are counted, not told to people; a program may rely on each one that is durable.
        let fine = matches!(event.event.as_str(), "durable" | "skipped");
        if fine && (event.event == "skipped" || !matches!(self.mode, Mode::Json)) {
            return;
        }
        let text = || {
            let path = event.path.as_deref().unwrap_or_default();
            let (sep, text) = match &event.text {
                Some(text) if path.is_empty() => ("", text.clone()),
                Some(text) => (": ", text.clone()),
                None => (": ", format!("{} bytes", event.bytes.unwrap_or_default())),
            };
            format!("{}: {path}{sep}{text}", event.event.replace('_', " "))
        };
        match &self.mode {
            Mode::Json => eprintln!("{}", serde_json::json!({ "event": event })),
            // The answer of a dry run, not a notice beside it.
            _ if event.event == "would_send" => drop(output::line(&text())),
            Mode::Bar(bar) => bar.println(text()),
            Mode::Lines => eprintln!("{}", text()),
            Mode::Quiet => {}
        }
    }

    /// Shows the end.
    pub fn finish(&mut self, report: &ProgressReport) {
        self.finished = true;
        match &self.mode {
            Mode::Bar(bar) => {
                bar.set_length(report.bytes_scheduled.max(1));
                bar.set_position(report.bytes_durable);
                bar.finish_and_clear();
            }
            _ => self.line(report),
        }
    }
}

fn sentence(r: &ProgressReport) -> String {
    let more = if r.walk_done { "" } else { "+" };
    let eta = r
        .eta_seconds
        .map_or_else(|| "--".to_owned(), |s| format!("{}:{:02}", s / 60, s % 60));
    let resent = if r.retransmissions > 0 {
        format!(", resent {} segments", r.retransmissions)
    } else {
        String::new()
    };
    format!(
        "scheduled {}{more}, on the wire {}, acknowledged {}, durable {} ({} of {}{more} files), {} goodput, eta {eta}, \
         limited by {}{resent}",
        HumanBytes(r.bytes_scheduled),
        HumanBytes(r.bytes_on_wire),
        HumanBytes(r.bytes_acknowledged),
        HumanBytes(r.bytes_durable),
        r.files_durable + r.files_skipped,
        r.files_scheduled,
        rate(r.goodput_bps),
        r.limited_by,
    )
}

/// A rate for people, with three digits: `812 Mbit/s`.
pub fn rate(bps: u64) -> String {
    let value = bps as f64;
    let (scaled, unit) = match bps {
        1_000_000_000.. => (value / 1e9, "Gbit/s"),
        1_000_000.. => (value / 1e6, "Mbit/s"),
        1_000.. => (value / 1e3, "kbit/s"),
        _ => (value, "bit/s"),
    };
    let digits = if scaled < 10.0 {
        2
    } else if scaled < 100.0 {
        1
    } else {
        0
    };
    format!("{scaled:.digits$} {unit}")
}
