//! Many settings of one experiment in a few lines: a phase with holes, and the values that fill them.
//!
//! ```text
//! [[sweep]]
//! name = "{ip} {mtu} {rtt}"                        name of each phase
//! axis = [ [ { ip = "v4", to = "10.0.0.2" }, { ip = "v6", to = "fd00::2" } ],
//!          [ { mtu = "1500B" }, { mtu = "9198B" } ],
//!          [ { rtt = "100ms", way = "50ms" }, ... ] ]
//! [sweep.phase]                                    as [[phase]], without a name
//! duration = "20s"
//! ```
//!
//! One phase stands for every way to take one entry of each axis, the last axis running first. In every text of the
//! phase and of `[topology]`, `{key}` is replaced by the value of that key; a key that no entry has is refused. What
//! becomes an empty text so is left out of its table. Checks name the phases that result, or select them by key.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::experiment::Phase;

/// Most phases of an experiment, sweeps included.
pub const MAX_PHASES: usize = 256;
/// Most axes of a sweep.
pub const MAX_AXES: usize = 8;

/// Keys and their values.
pub type Vars = BTreeMap<String, String>;

/// A phase with holes.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sweep {
    /// Name of each phase.
    pub name: String,
    /// What fills the holes.
    pub axis: Vec<Vec<Vars>>,
    /// The phase.
    pub phase: toml::Table,
}

impl Sweep {
    /// The phases that it stands for, each with its values.
    ///
    /// # Errors
    /// Too many or no phases, a key that has two values or none, a phase that is none.
    pub fn phases(&self) -> Result<Vec<Phase>, String> {
        let place = format!("sweep {:?}", self.name);
        if self.axis.is_empty() || self.axis.len() > MAX_AXES {
            return Err(format!("{place}: {} axes, want 1 to {MAX_AXES}", self.axis.len()));
        }
        let mut all = vec![Vars::new()];
        for axis in &self.axis {
            if axis.is_empty() || all.len() * axis.len() > MAX_PHASES {
                return Err(format!("{place}: want 1 to {MAX_PHASES} phases"));
            }
            let mut longer = Vec::new();
            for (vars, entry) in all.iter().flat_map(|v| axis.iter().map(move |e| (v, e))) {
                if let Some(key) = entry.keys().find(|key| vars.contains_key(*key)) {
                    return Err(format!("{place}: two axes have the key {key:?}"));
                }
                let both = vars.iter().chain(entry);
                longer.push(both.map(|(k, v)| (k.clone(), v.clone())).collect());
            }
            all = longer;
        }
        let phase = |vars| self.phase(vars).map_err(|m| format!("{place}: {m}"));
        all.into_iter().map(phase).collect()
    }

    fn phase(&self, vars: Vars) -> Result<Phase, String> {
        let mut table = self.phase.clone();
        fill(&mut table, &vars)?;
        let name = filled(&self.name, &vars)?;
        if table.insert("name".into(), name.into()).is_some() {
            return Err("its phase has a name of its own".into());
        }
        let mut phase: Phase = table.try_into().map_err(|m: toml::de::Error| m.to_string())?;
        phase.vars = vars;
        Ok(phase)
    }
}

/// Fills every hole of a table.
///
/// # Errors
/// A key without a value.
pub fn fill(table: &mut toml::Table, vars: &Vars) -> Result<(), String> {
    let mut emptied = Vec::new();
    for (key, value) in table.iter_mut() {
        let was_empty = value.as_str() == Some("");
        fill_value(value, vars)?;
        if value.as_str() == Some("") && !was_empty {
            emptied.push(key.clone());
        }
    }
    for key in emptied {
        table.remove(&key);
    }
    Ok(())
}

fn fill_value(value: &mut toml::Value, vars: &Vars) -> Result<(), String> {
    match value {
        toml::Value::String(text) => {
            *text = filled(text, vars)?;
            Ok(())
        }
        toml::Value::Array(list) => list.iter_mut().try_for_each(|v| fill_value(v, vars)),
        toml::Value::Table(table) => fill(table, vars),
        _ => Ok(()),
    }
}

/// A text with its holes filled.
fn filled(text: &str, vars: &Vars) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, hole)) = rest.split_once('{') {
        let Some((key, after)) = hole.split_once('}') else {
            return Err(format!("{text:?}: a hole that does not end: want {{key}}"));
        };
        let Some(value) = vars.get(key) else {
            let known: Vec<&str> = vars.keys().map(String::as_str).collect();
            return Err(format!(
                "{text:?}: no value for {key:?}: there are {}",
                known.join(", ")
            ));
        };
        out.push_str(before);
        out.push_str(value);
        rest = after;
    }
    out.push_str(rest);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sweep(axis: &str) -> Result<Vec<Phase>, String> {
        let text = format!(
            "name = '{{mtu}} {{rtt}}'\naxis = {axis}\n[phase]\nduration = '{{rtt}}'\n[phase.sim]\nprofile = '{{kind}}'\n"
        );
        toml::from_str::<Sweep>(&text)
            .map_err(|m| m.to_string())?
            .phases()
    }

    #[test]
    fn every_entry_of_an_axis_meets_every_entry_of_the_others() {
        let axis = "[[{mtu = '1500B', kind = ''}, {mtu = '9198B', kind = 'modern'}], [{rtt = '1s'}, {rtt = '2s'}, {rtt = '3s'}]]";
        let phases = sweep(axis).expect("phases");
        let names: Vec<&str> = phases.iter().map(|p| p.name.as_str()).collect();
        let wanted = [
            "1500B 1s", "1500B 2s", "1500B 3s", "9198B 1s", "9198B 2s", "9198B 3s",
        ];
        assert_eq!(names, wanted);
        assert_eq!(phases[5].duration.ns(), 3_000_000_000);
        assert_eq!(phases[5].vars["mtu"], "9198B");
        // What becomes empty is left out.
        assert_eq!(phases[0].sim.profile, None);
        assert_eq!(phases[5].sim.profile.as_deref(), Some("modern"));
    }

    #[test]
    fn wrong_sweeps_say_what_is_wrong() {
        let entry = "{mtu = '1', rtt = '1s', kind = ''}";
        for (axis, says) in [
            ("[]".to_owned(), "axes"),
            ("[[]]".to_owned(), "phases"),
            (format!("[[{entry}], [{{rtt = '2s'}}]]"), "two axes"),
            ("[[{mtu = '1', kind = ''}]]".to_owned(), "no value for \"rtt\""),
            ("[[{mtu = '1', rtt = '1', kind = ''}]]".to_owned(), "unit"),
            (format!("[[{}]]", vec![entry; MAX_PHASES + 1].join(", ")), "256"),
        ] {
            let problem = sweep(&axis).expect_err(&axis);
            assert!(problem.contains(says), "{axis}: {problem}");
        }
        assert!(
            filled("{open", &Vars::new())
                .expect_err("open")
                .contains("does not end")
        );
    }
}
