//! The requests about meters.

use kuroshio_core::units::PicoDuration;
use serde_json::{Value, json};

use crate::meter::{self, Named, State};
use crate::testbed::Testbed;

/// What a request of a meter gives.
type Answer = Result<Value, String>;

/// Every meter with its totals, and what they cost.
pub(super) fn list(testbed: &Testbed) -> Value {
    let state = testbed.meters().lock();
    json!({
        "at_ns": state.mark.as_ns(),
        "run_begin_monotonic_ns": testbed.epoch().start_ns(),
        "meters": state.meters.values().map(meter::described).collect::<Vec<_>>(),
        "cost": meter::cost(&state.cost()),
    })
}

/// Closed windows from a number on.
pub(super) fn read(testbed: &Testbed, name: Option<&str>, window: Option<&str>, from: u64) -> Answer {
    let width = window
        .map(str::parse::<PicoDuration>)
        .transpose()
        .map_err(|e| format!("window: {e}"))?;
    let state = testbed.meters().lock();
    let mut answer = meter::rows(&state, named(&state, name)?, width, from)?;
    answer["run_begin_monotonic_ns"] = json!(testbed.epoch().start_ns());
    answer["at_ns"] = json!(state.mark.as_ns());
    Ok(answer)
}

/// The buckets of a histogram.
pub(super) fn histogram(testbed: &Testbed, name: Option<&str>, of: &str, stream: Option<&str>) -> Answer {
    let state = testbed.meters().lock();
    meter::histogram(named(&state, name)?, of, stream)
}

fn named<'a>(state: &'a State, name: Option<&str>) -> Result<&'a Named, String> {
    let name = name.ok_or("the name of a meter is missing")?;
    state.meters.get(name).ok_or_else(|| {
        let known: Vec<&str> = state.meters.keys().map(String::as_str).collect();
        format!("no meter {name:?}, but {}", known.join(", "))
    })
}
