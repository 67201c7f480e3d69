//! Streams on rails and lanes, exactly where that is small.
//!
//! ```text
//!     greedy choice == bound of the divisible flow?  -> it is the best (method "bound")
//!     small?  -> mixed integer programme: n[class, path] whole streams of each class of equal demand,
//!                f[class, path] <= demand * n their rate; rows for cards, cores, lanes and classes  ("milp")
//!     else    -> the greedy choice ("greedy"), with the bound beside it
//! ```
//!
//! Equal streams are one class, so that the search does not try their permutations. The programme only chooses
//! paths; rates are then found exactly in whole bit/s (`kuroshio_core::rail::rates`).

use std::time::Duration;

use kuroshio_core::rail::{Assignment, Path, Problem, bound, greedy, rates};
use microlp::{ComparisonOp, OptimizationDirection};
use serde::Serialize;

/// Whole variables that a programme may have.
const MAX_WHOLE: usize = 240;
/// Longest search.
const MAX_TIME: Duration = Duration::from_secs(5);

/// How an assignment was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Method {
    /// It reaches what no assignment can exceed.
    Bound,
    /// A mixed integer programme was solved to its end.
    Milp,
    /// Quick and good; not proven best.
    Greedy,
}

/// An assignment of streams.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Solution {
    /// How it was found.
    pub method: Method,
    /// Whether it is proven that no other has a larger sum.
    pub proven: bool,
    /// The sum, bit/s.
    pub total_bps: u64,
    /// What no assignment can exceed, bit/s.
    pub bound_bps: u64,
    /// For each stream: rail, core (index within the rail) and lane, counted from 0; `None`: not sent.
    #[serde(serialize_with = "paths")]
    pub streams: Assignment,
}

fn paths<S: serde::Serializer>(a: &Assignment, s: S) -> Result<S::Ok, S::Error> {
    s.collect_seq(
        a.paths
            .iter()
            .zip(&a.rates_bps)
            .map(|(path, rate_bps)| match path {
                Some(p) => {
                    serde_json::json!({"rail": p.rail, "core": p.core, "lane": p.lane, "rate_bps": rate_bps})
                }
                None => serde_json::json!({"rail": null, "core": null, "lane": null, "rate_bps": rate_bps}),
            }),
    )
}

/// Finds an assignment.
#[must_use]
pub fn solve(problem: &Problem) -> Solution {
    let bound_bps = bound(problem);
    let of = |method, streams: Assignment| Solution {
        method,
        proven: method != Method::Greedy,
        total_bps: streams.total_bps,
        bound_bps,
        streams,
    };
    let quick = greedy(problem);
    if quick.total_bps == bound_bps {
        return of(Method::Bound, quick);
    }
    match programme(problem) {
        // Its numbers are floats: it is never taken for less than what is there.
        Some(best) if best.total_bps >= quick.total_bps => of(Method::Milp, best),
        _ => of(Method::Greedy, quick),
    }
}

/// Equal demands, the largest first, and their streams.
fn classes(problem: &Problem) -> Vec<(u64, Vec<usize>)> {
    let mut classes: Vec<(u64, Vec<usize>)> = Vec::new();
    for (stream, &demand) in problem.demands_bps().iter().enumerate() {
        match classes.iter_mut().find(|(d, _)| *d == demand) {
            Some((_, streams)) => streams.push(stream),
            None => classes.push((demand, vec![stream])),
        }
    }
    classes.sort_by_key(|(demand, _)| std::cmp::Reverse(*demand));
    classes
}

/// Solves the programme; `None` when it is too large or was not solved to its end.
fn programme(problem: &Problem) -> Option<Assignment> {
    let paths: Vec<Path> = problem.paths().collect();
    let classes = classes(problem);
    let largest = *problem.demands_bps().iter().max()?;
    if largest == 0 || paths.len() * classes.len() > MAX_WHOLE {
        return None;
    }
    // In units of the largest demand, so that coefficients are near 1.
    let unit = |bps: u64| bps as f64 / largest as f64;
    let mut lp = microlp::Problem::new(OptimizationDirection::Maximize);
    lp.set_time_limit(MAX_TIME);
    let mut whole = Vec::new();
    let mut flow = Vec::new();
    for (demand, streams) in &classes {
        let count = i32::try_from(streams.len()).ok()?;
        for path in &paths {
            let n = lp.add_integer_var(0.0, (0, count));
            let f = lp.add_var(1.0, (0.0, f64::INFINITY));
            lp.add_constraint([(f, 1.0), (n, -unit(*demand))], ComparisonOp::Le, 0.0);
            whole.push(n);
            flow.push((*path, f));
        }
        let mine = whole[whole.len() - paths.len()..].iter().map(|n| (*n, 1.0));
        lp.add_constraint(mine.collect::<Vec<_>>(), ComparisonOp::Le, f64::from(count));
    }
    let mut row = |on: &dyn Fn(&Path) -> bool, capacity: u64| {
        let terms: Vec<_> = flow
            .iter()
            .filter(|(p, _)| on(p))
            .map(|(_, f)| (*f, 1.0))
            .collect();
        if !terms.is_empty() {
            lp.add_constraint(terms, ComparisonOp::Le, unit(capacity));
        }
    };
    for (r, rail) in problem.rails().iter().enumerate() {
        row(&|p| p.rail == r, rail.card_bps);
        for (c, &capacity) in rail.cores_bps.iter().enumerate() {
            row(&|p| p.rail == r && p.core == c, capacity);
        }
    }
    for (l, &capacity) in problem.lanes_bps().iter().enumerate() {
        row(&|p| p.lane == l, capacity);
    }
    let solution = lp.solve().ok()?;
    let solution = solution.into_solution().ok()?;
    let mut chosen = vec![None; problem.demands_bps().len()];
    for (k, (_, streams)) in classes.iter().enumerate() {
        let mut streams = streams.iter();
        for (path, n) in paths.iter().zip(&whole[k * paths.len()..]) {
            let count = solution.var_value(*n).round() as usize;
            for &stream in streams.by_ref().take(count) {
                chosen[stream] = Some(*path);
            }
        }
    }
    Some(rates(problem, &chosen))
}
