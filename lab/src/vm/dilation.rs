//! Time dilation: a path that is too fast for the one virtual processor, slower and longer in the machine.
//!
//! ```text
//! in the machine:  rate / K,  delay * K,  duration * K;   bytes (queues, windows, frames) as they are
//! in the result:   rate * K,  time / K
//! ```
//!
//! So the bandwidth-delay product, the queue, the number of frames and all that congestion control does per round trip
//! are the path's, and the processor has `K` times as much time for each frame. What the machine's kernel counts in its own time
//! does not scale; [`UNSCALED`] names it.
//!
//! Source: Gupta, Yocum, McNett, Snoeren, Vahdat, Voelker, "To Infinity and Beyond: Time-Warped Network Emulation",
//! NSDI 2006. There the guest's clock is slowed down; here the path is, which is the same seen from inside, but for the
//! kernel's own times.

use std::fmt;
use std::str::FromStr;

use serde_json::{Map, Value, json};

/// Largest dilation: beyond it the kernel's own times are no longer small beside a round trip's.
pub const MAX_DILATION: u64 = 100;

/// What a dilated run must say.
pub const UNSCALED: &str = "the tick (4 ms), delayed ACKs (40 ms), the first retransmission timeout (1 s), the millisecond of \
                            TCP Small Queues and of superframes, and whatever a congestion control counts in seconds (CUBIC, \
                            H-TCP, BBR) are the machine's own; the least retransmission timeout is scaled";

/// How many seconds of the machine are one of the path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dilation(u64);

impl Default for Dilation {
    fn default() -> Self {
        Self(1)
    }
}

impl FromStr for Dilation {
    type Err = String;

    /// From a whole number, 1 to [`MAX_DILATION`].
    fn from_str(text: &str) -> Result<Self, String> {
        text.parse()
            .ok()
            .filter(|k| (1..=MAX_DILATION).contains(k))
            .map(Self)
            .ok_or_else(|| format!("{text:?}: want a whole number from 1 to {MAX_DILATION}"))
    }
}

impl fmt::Display for Dilation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Dilation {
    /// Whether the machine's time is not the path's.
    pub fn is_on(self) -> bool {
        self.0 > 1
    }

    /// A time of the path in the machine. Saturates.
    pub(super) fn time(self, of_path: u64) -> u64 {
        of_path.saturating_mul(self.0)
    }

    /// A time of the machine on the path.
    pub(super) fn back(self, of_machine: u64) -> u64 {
        of_machine / self.0
    }

    /// A rate of the path in the machine, in the unit that must come out whole.
    ///
    /// # Errors
    /// When it is no whole number of `unit_bps`.
    pub(super) fn rate(self, what: &str, of_path_bps: u64, unit_bps: u64) -> Result<u64, String> {
        let step = unit_bps.saturating_mul(self.0);
        match of_path_bps % step {
            0 => Ok(of_path_bps / self.0),
            _ => Err(format!(
                "vm: {what} of {of_path_bps} bit/s: want a multiple of {step} bit/s{}",
                if self.is_on() { ", for the dilation" } else { "" }
            )),
        }
    }

    /// The figures of a phase as the machine has seen them.
    pub(super) fn raw(self, figures: &Map<String, Value>) -> Value {
        let number = |name: &str| figures.get(name).and_then(Value::as_f64).unwrap_or(0.0);
        let k = self.0 as f64;
        json!({
            "dilation": self.0,
            "from_s": number("from_s") * k,
            "to_s": number("to_s") * k,
            "mean_sum_frame_mbps": number("mean_sum_frame_mbps") / k,
            "mean_sum_goodput_mbps": number("mean_sum_goodput_mbps") / k,
        })
    }

    /// What the result says of it.
    pub(super) fn note(self) -> String {
        format!(
            "Dilated {self} times (Gupta et al., NSDI 2006): rates divided and times multiplied by {self} in the machine, \
             bytes as they are; rates and times of this result are the path's, the machine's own are under \
             \"in_the_machine\". What does not scale: {UNSCALED}."
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back_is_the_same() {
        let k: Dilation = "5".parse().expect("dilation");
        assert!(k.is_on() && !Dilation::default().is_on());
        assert_eq!(k.rate("wire", 1_000_000_000, 1_000_000), Ok(200_000_000));
        assert_eq!((k.time(100_000), k.back(500_000)), (500_000, 100_000));
        assert_eq!(k.time(u64::MAX), u64::MAX);
        let figures = json!({ "mean_sum_frame_mbps": 450.0, "to_s": 60.0 });
        let raw = k.raw(figures.as_object().expect("object"));
        assert_eq!(raw["mean_sum_frame_mbps"].as_f64(), Some(90.0));
        assert_eq!(raw["to_s"].as_f64(), Some(300.0));
    }

    #[test]
    fn what_is_no_dilation_is_refused() {
        for text in ["0", "101", "2.5", "-1", "", "five", "99999999999999999999"] {
            let e = text.parse::<Dilation>().expect_err(text);
            assert!(e.contains("1 to 100"), "{text}: {e}");
        }
        let k: Dilation = "3".parse().expect("dilation");
        let e = k
            .rate("the wire", 1_000_000_000, 1_000_000)
            .expect_err("1000 / 3");
        assert!(e.contains("the wire") && e.contains("3000000 bit/s"), "{e}");
    }
}
