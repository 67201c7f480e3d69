//! The paper's figures beside ours.
//!
//! ```text
//! off = (ours - paper) / paper
//! ```
//!
//! A figure of an experiment file may name the measured one that stands beside it. A distance of more than
//! [`FAR`] needs a reason, which stands in the same file.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::experiment::Figure;

/// Relative distance from which a reason is asked for.
pub const FAR: f64 = 0.15;

/// Which measured figure stands beside a printed one.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Ours {
    /// Phase of the experiment.
    pub phase: String,
    /// Name of the measured figure in `run.json`, unit in its name: `mean_sum_frame_mbps`.
    pub figure: String,
    /// The printed number, in the same unit.
    pub paper: f64,
    /// Why ours is far from it, where it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A printed figure and the measured one.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
pub struct Compared {
    /// What was measured.
    pub name: String,
    /// Phase.
    pub phase: String,
    /// Name of the measured figure; its unit is in the name.
    pub figure: String,
    /// Printed.
    pub paper: f64,
    /// Measured.
    pub ours: f64,
    /// `(ours - paper) / paper`; ours itself where the paper printed zero.
    pub off: f64,
    /// Why it is far, where it is farther than [`FAR`].
    pub reason: Option<String>,
}

impl Compared {
    /// Whether a reason is asked for.
    pub fn is_far(&self) -> bool {
        self.off.abs() > FAR
    }
}

/// The printed figures of an experiment that name a measured one, beside it. Those of phases that were not
/// run are left out.
pub fn beside(figures: &[Figure], measured: &Map<String, Value>) -> Vec<Compared> {
    figures
        .iter()
        .filter_map(|f| {
            let want = f.ours.as_ref()?;
            let ours = measured.get(&want.phase)?.get(&want.figure)?.as_f64()?;
            let off = if want.paper == 0.0 {
                ours
            } else {
                (ours - want.paper) / want.paper
            };
            let far = off.abs() > FAR;
            Some(Compared {
                name: f.name.clone(),
                phase: want.phase.clone(),
                figure: want.figure.clone(),
                paper: want.paper,
                ours,
                off,
                reason: want.reason.clone().filter(|_| far),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn figure(paper: f64, reason: Option<&str>) -> Figure {
        Figure {
            name: "rate".into(),
            value: "as printed".into(),
            ours: Some(Ours {
                phase: "a".into(),
                figure: "mean_mbps".into(),
                paper,
                reason: reason.map(Into::into),
            }),
        }
    }

    #[test]
    fn a_reason_stands_where_the_distance_asks_for_one() {
        let measured = json!({ "a": { "mean_mbps": 120.0 } });
        let measured = measured.as_object().expect("object");
        let of = |paper, reason| beside(&[figure(paper, reason)], measured);
        let near = of(110.0, Some("why"));
        assert!(!near[0].is_far() && near[0].reason.is_none());
        let far = of(100.0, Some("why"));
        assert!((far[0].off - 0.2).abs() < 1e-12 && far[0].is_far());
        assert_eq!(far[0].reason.as_deref(), Some("why"));
        assert!(of(100.0, None)[0].reason.is_none());
        assert_eq!(of(0.0, None)[0].off, 120.0);
    }

    #[test]
    fn a_phase_that_was_not_run_has_no_row() {
        let measured = json!({ "b": { "mean_mbps": 120.0 } });
        assert!(beside(&[figure(1.0, None)], measured.as_object().expect("object")).is_empty());
    }
}
