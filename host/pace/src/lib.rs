//! Rates per destination or process on a host, through the best pacing that its kernel has.
//!
//! ```text
//! Request (rules) + Found (what the kernel has) -> choose() -> Backend, and why not a better one
//!        |
//!        +-> apply(): state file first, each step written down before it is made -> clear(): back, latest first
//! ```
//!
//! | back end | what paces | to | whose rate |
//! |---|---|---|---|
//! | `psp` | the qdisc of `kernel/`, by gap frames or its timer | the byte (gap frames) | the class: all connections of a rule in sum |
//! | `fq` | `sch_fq`, told by `SO_MAX_PACING_RATE` | a timer's wake-up | each connection's own |
//! | `tcp` | TCP's own timer, told by `SO_MAX_PACING_RATE` | about 1 ms of data | each connection's own |
//!
//! Destinations reach `psp` by `u32` filters, which see every packet; a process group (cgroup) and everything of
//! `fq` and `tcp` goes by a BPF program (`bpf/pace.bpf.c`) that sets the options of TCP sockets as they connect.
//! A back end that was asked for and is not there is an error; none is silently replaced. A program that paces its own
//! streams gets classes of psp that go with it ([`Temporary`]).

mod apply;
mod backend;
mod program;
mod rule;
mod state;
mod sys;
mod tc;
mod temporary;

pub use apply::{Applied, InForce, Request, Shown, apply, clear, show};
pub use backend::{Backend, Choice, Found, Presence, Wish, active, choose, find};
pub use rule::{MAX_RULES, MAX_TOML_BYTES, Mode, Prefix, RATE_MAX_BPS, RATE_MIN_BPS, Rule, rules_from_toml};
pub use state::{StateError, Step, default_path};
pub use temporary::{Own, Temporary, clear_left_behind};

/// Why rates could not be put in force, shown or taken back.
#[derive(Debug, thiserror::Error)]
pub enum PaceError {
    /// Bad input: what, where, what would be valid. Nothing was changed.
    #[error("{0}")]
    BadInput(String),
    /// The state file.
    #[error(transparent)]
    State(#[from] StateError),
    /// The kernel refused a step; what had been done was taken back, or `left` says what was not.
    #[error("{what}: {source}{}", left_text(.left))]
    Step {
        /// The step.
        what: String,
        /// What the kernel said.
        source: std::io::Error,
        /// Steps that could not be undone.
        left: Vec<String>,
    },
}

fn left_text(left: &[String]) -> String {
    if left.is_empty() {
        String::new()
    } else {
        format!("; left behind, and named in the state file: {}", left.join(", "))
    }
}

impl PaceError {
    /// Whether the input is to blame.
    pub fn is_bad_input(&self) -> bool {
        match self {
            Self::BadInput(_) => true,
            Self::State(e) => e.is_bad_input(),
            Self::Step { .. } => false,
        }
    }
}
