//! Congestion controls: how the window grows and what a loss leaves of it.
//!
//! | name | source | response function (window of W segments at loss ratio p) |
//! |---|---|---|
//! | `reno` | RFC 5681 | W = 1.22 / p^0.5 |
//! | `bic` | Xu, Harfoush, Rhee, INFOCOM 2004; Linux 2.6.14 net/ipv4/tcp_bic.c | see the file |
//! | `cubic` | RFC 9438; Linux net/ipv4/tcp_cubic.c | W = (C (3+b) / (4 (1-b)))^(1/4) (RTT/p)^(3/4) |
//! | `highspeed` | RFC 3649 | W = 0.12 / p^0.835 |
//! | `htcp` | Leith, Shorten, PFLDnet 2004; Linux net/ipv4/tcp_htcp.c | by the time since the last loss |
//! | `scalable` | Kelly, CCR 2003; Linux net/ipv4/tcp_scalable.c | W = 0.08 / p |
//! | `fast` | Jin, Wei, Low, INFOCOM 2004 | alpha segments kept in queues, whatever p |
//!
//! Integers only, in the fixed point of the kernel's modules. A control is asked
//!
//! - `measured` on every ACK of new data,
//! - `increase` on those of them at which the window was the limit and no recovery is on,
//! - `threshold` when a loss or local congestion reduces the window,
//! - `timed_out` after an RTO.

mod bic;
mod cubic;
mod fast;
mod highspeed;
mod htcp;
mod hystart;
mod reno;
mod scalable;

pub use bic::Bic;
pub use cubic::{Cubic, cube_root};
pub use fast::{FAST_ALPHA, Fast};
pub use highspeed::{HighSpeed, decrease_256ths, increase_segments};
pub use htcp::Htcp;
pub use reno::Reno;
pub use scalable::Scalable;

use super::{profile::Profile, window::Window};
use crate::units::{PicoDuration, PicoTime};
use core::fmt;
use core::str::FromStr;

/// An ACK of new data, as a congestion control sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Acked {
    /// Now.
    pub now: PicoTime,
    /// Segments that it acknowledges for the first time, cumulatively.
    pub segments: u32,
    /// Segment number up to which everything is acknowledged.
    pub acked_to: u64,
    /// Segment number up to which everything has been sent.
    pub sent_to: u64,
    /// The RTT that it measures.
    pub rtt: Option<PicoDuration>,
    /// The least RTT so far.
    pub least_rtt: Option<PicoDuration>,
    /// The smoothed RTT.
    pub smoothed_rtt: Option<PicoDuration>,
    /// Whether nothing is missing (Linux `TCP_CA_Open`).
    pub open: bool,
}

/// How a window grows and shrinks.
pub trait CongestionControl {
    /// The connection is open.
    fn init(&mut self, _window: &mut Window) {}

    /// New data was acknowledged.
    fn measured(&mut self, _window: &mut Window, _acked: &Acked) {}

    /// New data was acknowledged, the window was full and nothing forbids its growth.
    fn increase(&mut self, window: &mut Window, acked: &Acked);

    /// The window after a loss, segments, 2 at least.
    fn threshold(&mut self, window: &Window, now: PicoTime) -> u32;

    /// Everything in flight is taken for lost.
    fn timed_out(&mut self) {}

    /// The window that it searches for after a loss, segments; `None` when it searches for none.
    fn target(&self) -> Option<u32> {
        None
    }

    /// The least window of rate halving for a threshold (Linux `min_cwnd`).
    fn least(&self, ssthresh: u32) -> u32 {
        ssthresh / 2
    }
}

/// A name of a congestion control.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// RFC 5681.
    Reno,
    /// Binary increase.
    Bic,
    /// RFC 9438.
    Cubic,
    /// RFC 3649.
    HighSpeed,
    /// Leith and Shorten.
    Htcp,
    /// Kelly.
    Scalable,
    /// Jin, Wei and Low.
    Fast,
}

impl Algorithm {
    /// Every one.
    pub const ALL: [Algorithm; 7] = [
        Algorithm::Reno,
        Algorithm::Bic,
        Algorithm::Cubic,
        Algorithm::HighSpeed,
        Algorithm::Htcp,
        Algorithm::Scalable,
        Algorithm::Fast,
    ];

    /// Its name, as Linux has it.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Reno => "reno",
            Algorithm::Bic => "bic",
            Algorithm::Cubic => "cubic",
            Algorithm::HighSpeed => "highspeed",
            Algorithm::Htcp => "htcp",
            Algorithm::Scalable => "scalable",
            Algorithm::Fast => "fast",
        }
    }
}

/// A name that no congestion control has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnknownAlgorithm;

impl fmt::Display for UnknownAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no such congestion control: there are")?;
        for (i, algorithm) in Algorithm::ALL.into_iter().enumerate() {
            let comma = if i == 0 { " " } else { ", " };
            write!(f, "{comma}{}", algorithm.name())?;
        }
        Ok(())
    }
}

impl core::error::Error for UnknownAlgorithm {}

impl FromStr for Algorithm {
    type Err = UnknownAlgorithm;

    fn from_str(name: &str) -> Result<Self, UnknownAlgorithm> {
        Algorithm::ALL
            .into_iter()
            .find(|algorithm| algorithm.name().eq_ignore_ascii_case(name))
            .ok_or(UnknownAlgorithm)
    }
}

/// Any of the congestion controls.
#[derive(Debug, Clone)]
pub(super) enum Any {
    Reno(Reno),
    Bic(Bic),
    Cubic(Cubic),
    HighSpeed(HighSpeed),
    Htcp(Htcp),
    Scalable(Scalable),
    Fast(Fast),
}

macro_rules! each {
    ($self:expr, $cc:ident => $call:expr) => {
        match $self {
            Any::Reno($cc) => $call,
            Any::Bic($cc) => $call,
            Any::Cubic($cc) => $call,
            Any::HighSpeed($cc) => $call,
            Any::Htcp($cc) => $call,
            Any::Scalable($cc) => $call,
            Any::Fast($cc) => $call,
        }
    };
}

impl Any {
    pub fn new(algorithm: Algorithm, profile: &Profile, fast_alpha: u32) -> Self {
        match algorithm {
            Algorithm::Reno => Any::Reno(Reno),
            Algorithm::Bic => Any::Bic(Bic::new(profile.bic_max_increment)),
            Algorithm::Cubic => Any::Cubic(Cubic::new(profile.hystart)),
            Algorithm::HighSpeed => Any::HighSpeed(HighSpeed::new()),
            Algorithm::Htcp => Any::Htcp(Htcp::new()),
            Algorithm::Scalable => Any::Scalable(Scalable),
            Algorithm::Fast => Any::Fast(Fast::new(fast_alpha)),
        }
    }
}

impl CongestionControl for Any {
    fn init(&mut self, window: &mut Window) {
        each!(self, cc => cc.init(window));
    }

    #[inline]
    fn measured(&mut self, window: &mut Window, acked: &Acked) {
        each!(self, cc => cc.measured(window, acked));
    }

    #[inline]
    fn increase(&mut self, window: &mut Window, acked: &Acked) {
        each!(self, cc => cc.increase(window, acked));
    }

    fn threshold(&mut self, window: &Window, now: PicoTime) -> u32 {
        each!(self, cc => cc.threshold(window, now))
    }

    fn timed_out(&mut self) {
        each!(self, cc => cc.timed_out());
    }

    fn target(&self) -> Option<u32> {
        each!(self, cc => cc.target())
    }

    fn least(&self, ssthresh: u32) -> u32 {
        each!(self, cc => cc.least(ssthresh))
    }
}
