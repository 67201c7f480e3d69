//! The same experiment otherwise: today's congestion controls, or another TCP stack in the simulator.
//!
//! ```text
//! paper's phase --today--> cubic | bbr (live) | cubic-paced     same path and windows, without shapers
//!               --stack--> the same phases with that stack and the congestion control of the live run
//! ```
//!
//! A variant has no bounds of the paper's: its figures stand beside, in the same report.

use serde::Deserialize;

use crate::experiment::{Experiment, Kind, Mode, Phase, Rate};
use crate::measure;

/// `[today]` of an experiment file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Today {
    /// The phase whose path, flows and times are taken.
    pub phase: String,
    /// TCP-internal pacing of every flow in `cubic-paced`, frame level; where it is from stands in a setting.
    pub pacing: Rate,
}

impl Today {
    /// Refuses what cannot be run.
    ///
    /// # Errors
    /// What is wrong.
    pub fn validate(&self, e: &Experiment) -> Result<(), String> {
        let phase = e.phases.iter().find(|p| p.name == self.phase);
        match phase {
            None => Err(format!("no phase {:?}", self.phase)),
            Some(p) if p.flows.iter().all(|f| f.kind != Kind::Tcp) => {
                Err(format!("phase {:?} has no TCP flow", self.phase))
            }
            Some(_) => Ok(()),
        }
    }
}

/// The experiment with today's congestion controls on the identical path.
///
/// # Errors
/// When its file has no `[today]`.
pub fn today(e: &Experiment, mode: Mode) -> Result<Experiment, String> {
    let Some(today) = &e.today else {
        return Err(format!(
            "{} has no TCP to run otherwise (no [today] in its file)",
            e.name
        ));
    };
    let Some(base) = e.phases.iter().find(|p| p.name == today.phase) else {
        return Err(format!("no phase {:?}", today.phase));
    };
    let (from, to) = measure::looked_at(e, &base.name, base.duration.ns());
    let with = |name: &str, congestion: &str, pacing: Option<Rate>| {
        let mut p = Phase {
            name: name.into(),
            looked_at_ns: Some((from, to)),
            topology_toml: e.bare_topology(),
            shapes: Vec::new(),
            ..base.clone()
        };
        for f in p.flows.iter_mut().filter(|f| f.kind == Kind::Tcp) {
            f.congestion = Some(congestion.into());
            f.congestion_else = None;
            f.congestion_of_paper = None;
            f.pacing.clone_from(&pacing);
        }
        p.sim.profile = Some("modern".into());
        p
    };
    let mut phases = vec![with("cubic", "cubic", None)];
    if mode == Mode::Live {
        phases.push(with("bbr", "bbr", None));
    }
    phases.push(with("cubic-paced", "cubic", Some(today.pacing.clone())));
    let mut notes = e.notes.clone();
    notes.push(format!(
        "The path, flows and times of phase {:?}, without shapers, with today's congestion controls; cubic-paced has TCP-internal pacing at {} per flow.",
        base.name, today.pacing.text
    ));
    Ok(Experiment {
        phases,
        notes,
        checks: Vec::new(),
        variant: "today".into(),
        ..e.clone()
    })
}

/// The experiment with another TCP stack of the simulator and the congestion control of the live run.
pub fn with_stack(e: &Experiment, stack: &str) -> Experiment {
    let mut phases = e.phases.clone();
    for p in &mut phases {
        p.looked_at_ns = Some(measure::looked_at(e, &p.name, p.duration.ns()));
        p.sim.profile = Some(stack.into());
        for f in &mut p.flows {
            f.congestion_of_paper = None;
        }
    }
    Experiment {
        phases,
        checks: Vec::new(),
        variant: stack.into(),
        ..e.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::load;

    #[test]
    fn today_has_the_identical_path_and_times() {
        let e = load("gnet1-unshaped").expect("experiment");
        let t = today(&e, Mode::Live).expect("today");
        let names: Vec<_> = t.phases.iter().map(|p| p.name.as_str()).collect();
        assert_eq!(names, ["cubic", "bbr", "cubic-paced"]);
        for p in &t.phases {
            assert_eq!(p.topology_toml, e.phases[0].topology_toml);
            assert!(!p.topology_toml.contains("shape"));
            assert_eq!(p.looked_at_ns, Some((3_000_000_000, 10_000_000_000)));
        }
        assert!(t.phases[0].flows.iter().all(|f| f.pacing.is_none()));
        assert!(t.phases[2].flows.iter().all(|f| f.pacing.is_some()));
        assert!(t.checks.is_empty());
        let shaped = load("gnet1-shaped").expect("experiment");
        let unshaped = today(&shaped, Mode::Live).expect("today");
        assert!(shaped.phases[0].topology_toml.contains("shape"));
        assert!(!unshaped.phases[0].topology_toml.contains("shape"));
        let sim = today(&e, Mode::Sim).expect("today");
        assert!(sim.phases.iter().all(|p| p.name != "bbr"));
    }

    #[test]
    fn an_experiment_without_tcp_has_no_today() {
        let e = load("gnet1-collision").expect("experiment");
        assert!(
            today(&e, Mode::Live)
                .expect_err("no TCP")
                .contains("gnet1-collision")
        );
    }
}
