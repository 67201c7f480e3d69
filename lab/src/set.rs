//! Changing an experiment without changing its file: `KEY=VALUE` on its table, before it is read.
//!
//! | key | value |
//! |---|---|
//! | `link.NAME.FIELD` | `capacity`, `one_way_delay`, `queue`, `loss` of a link, as in the file |
//! | `port.HOST/PORT.FIELD` | `wire`, `mtu`, `queue` of a host's port |
//! | `flow.NAME.FIELD` | `congestion`, `window`, `start` of a flow, in every phase that has it |
//! | `shape.HOST/PORT.rate` | the shaper's rate at a port, in every phase that has one there |
//! | `sim.FIELD` | a field of `[sim]`, in every phase |
//! | `vm.load` | the one module, with its parameters, that the virtual machine loads |
//! | `duration` | length of every phase |
//! | `seed` | the first seed |
//!
//! Sweeps set any of them; a phase of a file sets links and ports for itself (`[phase.set]`), and a sweep goes
//! before it. A key that
//! names nothing in the experiment is refused: it would change nothing.

use toml::{Table, Value};

/// Fields of a link that can be set.
pub const LINK_FIELDS: [&str; 4] = ["capacity", "one_way_delay", "queue", "loss"];
/// Fields of a port that can be set.
pub const PORT_FIELDS: [&str; 3] = ["wire", "mtu", "queue"];
/// Fields of a flow that can be set.
pub const FLOW_FIELDS: [&str; 3] = ["congestion", "window", "start"];
/// Fields of `[sim]` that can be set.
pub const SIM_FIELDS: [&str; 10] = [
    "profile",
    "pace",
    "local_congestion",
    "send_buffer",
    "receive_buffer",
    "frame_memory",
    "cpu_per_frame",
    "reaction",
    "fast_alpha",
    "seeds",
];
/// Those of them that are numbers without a unit.
const SIM_NUMBERS: [&str; 2] = ["fast_alpha", "seeds"];

/// What can be set, for messages.
pub const KEYS: &str = "link.NAME.{capacity|one_way_delay|queue|loss}, port.HOST/PORT.{wire|mtu|queue}, \
                        flow.NAME.{congestion|window|start}, shape.HOST/PORT.rate, sim.FIELD, vm.load, duration, seed";

/// Sets a key of an experiment.
///
/// # Errors
/// When there is no such key, nothing of that name in the experiment, or a number is none.
pub fn experiment(e: &mut Table, key: &str, value: &str) -> Result<(), String> {
    match split(key) {
        ("seed", None) => {
            let seed = i64::from(number(key, value)?);
            part(e, "topology")?.insert("seed".into(), seed.into());
            Ok(())
        }
        ("duration", None) => {
            for p in phases(e) {
                p.insert("duration".into(), value.into());
            }
            Ok(())
        }
        ("sim", Some(("", field))) => sim(e, key, field, value),
        ("vm", Some(("", field))) => {
            known(key, field, &["load"])?;
            part(e, "vm")?.insert(field.into(), vec![Value::from(value)].into());
            Ok(())
        }
        ("flow", Some((name, field))) => {
            known(key, field, &FLOW_FIELDS)?;
            let mut found = false;
            for p in phases(e) {
                for f in named(p, "flow", name) {
                    f.insert(field.into(), value.into());
                    if field == "congestion" {
                        // What the file says of kernels and papers is about another congestion control.
                        f.remove("congestion_else");
                        f.remove("congestion_of_paper");
                    }
                    found = true;
                }
            }
            found_or(key, found, "flow", name)
        }
        ("shape", Some((port, field))) => {
            known(key, field, &["rate"])?;
            let mut found = false;
            for p in phases(e) {
                for s in list(p, "shape").filter(|s| s.get("port").and_then(Value::as_str) == Some(port)) {
                    s.remove("gap");
                    s.insert("rate".into(), value.into());
                    found = true;
                }
            }
            found_or(key, found, "shaper at", port)
        }
        ("link" | "port", Some(_)) => {
            topology(part(e, "topology")?, key, value)?;
            // Before what the phases say of it.
            for p in phases(e) {
                if let Some(own) = p.get_mut("set").and_then(Value::as_table_mut) {
                    own.remove(key);
                }
            }
            Ok(())
        }
        _ => Err(unknown(key)),
    }
}

/// Sets a key of a topology: of a link or a port.
///
/// # Errors
/// When there is no such key or nothing of that name in the topology.
pub fn topology(t: &mut Table, key: &str, value: &str) -> Result<(), String> {
    match split(key) {
        ("link", Some((name, field))) => {
            known(key, field, &LINK_FIELDS)?;
            let mut found = false;
            for l in named(t, "link", name) {
                l.insert(field.into(), value.into());
                found = true;
            }
            found_or(key, found, "link", name)
        }
        ("port", Some((name, field))) => {
            known(key, field, &PORT_FIELDS)?;
            let (host, port) = name
                .split_once('/')
                .ok_or_else(|| format!("{key}: want port.HOST/PORT.FIELD"))?;
            let mut found = false;
            for h in named(t, "host", host) {
                for p in named(h, "port", port) {
                    p.insert(field.into(), value.into());
                    found = true;
                }
            }
            found_or(key, found, "port", name)
        }
        _ => Err(unknown(key)),
    }
}

/// `kind.name.field`; the name is empty in `kind.field`.
fn split(key: &str) -> (&str, Option<(&str, &str)>) {
    let Some((kind, rest)) = key.split_once('.') else {
        return (key, None);
    };
    (kind, Some(rest.rsplit_once('.').unwrap_or(("", rest))))
}

fn sim(e: &mut Table, key: &str, field: &str, value: &str) -> Result<(), String> {
    known(key, field, &SIM_FIELDS)?;
    let value: Value = match SIM_NUMBERS.contains(&field) {
        true => i64::from(number(key, value)?).into(),
        false => value.into(),
    };
    for p in phases(e) {
        let table = p.entry("sim").or_insert_with(|| Table::new().into());
        let table = table.as_table_mut().ok_or("sim: want a table")?;
        table.insert(field.into(), value.clone());
    }
    Ok(())
}

fn unknown(key: &str) -> String {
    format!("no key {key:?}: there are {KEYS}")
}

fn known(key: &str, field: &str, fields: &[&str]) -> Result<(), String> {
    match fields.contains(&field) {
        true => Ok(()),
        false => Err(format!(
            "{key}: no field {field:?}, there are {}",
            fields.join(", ")
        )),
    }
}

fn found_or(key: &str, found: bool, what: &str, name: &str) -> Result<(), String> {
    match found {
        true => Ok(()),
        false => Err(format!("{key}: the experiment has no {what} {name:?}")),
    }
}

fn number(key: &str, value: &str) -> Result<u32, String> {
    value
        .parse()
        .map_err(|_| format!("{key}: {value:?} is no number from 0 to {}", u32::MAX))
}

fn part<'a>(table: &'a mut Table, name: &str) -> Result<&'a mut Table, String> {
    table
        .get_mut(name)
        .and_then(Value::as_table_mut)
        .ok_or_else(|| format!("the experiment has no [{name}]"))
}

/// Every phase, those that a sweep stands for too.
fn phases(e: &mut Table) -> Vec<&mut Table> {
    let mut found = Vec::new();
    for (key, value) in e.iter_mut() {
        let tables = value.as_array_mut().into_iter().flatten();
        let tables = tables.filter_map(Value::as_table_mut);
        match key.as_str() {
            "phase" => found.extend(tables),
            "sweep" => found.extend(tables.filter_map(|s| s.get_mut("phase").and_then(Value::as_table_mut))),
            _ => {}
        }
    }
    found
}

/// The tables of a list.
fn list<'a>(table: &'a mut Table, name: &str) -> impl Iterator<Item = &'a mut Table> + use<'a> {
    table
        .get_mut(name)
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
        .filter_map(Value::as_table_mut)
}

/// Those of a list's tables that have a name.
fn named<'a>(table: &'a mut Table, what: &str, name: &str) -> impl Iterator<Item = &'a mut Table> + use<'a> {
    let name = name.to_owned();
    list(table, what).filter(move |t| t.get("name").and_then(Value::as_str) == Some(name.as_str()))
}
