//! Interrupts and queues of a card onto chosen processing units, and back.
//!
//! | file | set to |
//! |---|---|
//! | `/proc/irq/N/smp_affinity_list` | one interrupt processing unit each, in turn |
//! | `/sys/class/net/IF/queues/rx-N/rps_cpus` | the stack's processing units |
//! | `/sys/class/net/IF/queues/tx-N/xps_cpus` | the stack's processing units |
//!
//! What was there before is written to an undo file, flushed, before the first change; the end of a [`Steering`]
//! restores it and removes the file. After a kill, [`undo`] does.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::RailError;
use crate::machine::Machine;
use crate::rails::Rail;
use crate::sysfs::Roots;

/// Longest undo file that is read, bytes.
const MAX_UNDO_BYTES: u64 = 4 << 20;

/// One file and what was in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Change {
    file: PathBuf,
    before: String,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Undo {
    boot: String,
    changes: Vec<Change>,
}

/// Interrupts and queues that were moved; they are moved back when this ends.
#[derive(Debug)]
pub struct Steering {
    undo: Undo,
    undo_file: PathBuf,
    roots: Roots,
    /// Files that could not be changed, and why.
    pub refused: Vec<String>,
    /// How many were changed.
    pub changed: usize,
}

impl Steering {
    /// Moves the interrupts of a rail's card to `interrupts` and its queues' work to `stack`.
    ///
    /// # Errors
    /// The undo file exists already (of a run that was killed: `rail undo` first) or cannot be written; then
    /// nothing was changed.
    pub fn begin(
        roots: &Roots,
        machine: &Machine,
        rail: &Rail,
        interrupts: &[u32],
        stack: &[u32],
        undo_file: &Path,
    ) -> Result<Self, RailError> {
        let wanted = wanted(roots, machine, rail, interrupts, stack);
        let mut undo = Undo {
            boot: boot(roots),
            changes: Vec::new(),
        };
        let mut refused = Vec::new();
        let mut todo = Vec::new();
        for (file, value) in wanted {
            match fs::read_to_string(&file) {
                Ok(before) => {
                    let before = before.trim().to_owned();
                    undo.changes.push(Change {
                        file: file.clone(),
                        before,
                    });
                    todo.push((file, value));
                }
                Err(e) => refused.push(format!("{}: {e}", file.display())),
            }
        }
        save(&undo, undo_file)?;
        let mut steering = Self {
            undo,
            undo_file: undo_file.to_owned(),
            roots: roots.clone(),
            refused,
            changed: 0,
        };
        for (file, value) in todo {
            match fs::write(&file, &value) {
                Ok(()) => steering.changed += 1,
                Err(e) => steering
                    .refused
                    .push(format!("{} = {value}: {e}", file.display())),
            }
        }
        Ok(steering)
    }

    /// Moves all back. Returns what could not be, and why; the undo file then stays.
    pub fn end(mut self) -> Vec<String> {
        self.restore()
    }

    fn restore(&mut self) -> Vec<String> {
        let changes = std::mem::take(&mut self.undo.changes);
        if changes.is_empty() {
            return Vec::new();
        }
        let failed = restore(&self.roots, &changes);
        if failed.is_empty() {
            let _ = fs::remove_file(&self.undo_file);
        }
        failed
    }
}

impl Drop for Steering {
    fn drop(&mut self) {
        let _ = self.restore();
    }
}

/// Moves back what a killed run left. Returns how many files were restored, and what could not be.
///
/// # Errors
/// No undo file, one that is none, or one of another boot: then nothing was changed.
pub fn undo(roots: &Roots, undo_file: &Path) -> Result<(usize, Vec<String>), RailError> {
    let what = undo_file.display().to_string();
    let bad = |why: &dyn std::fmt::Display| RailError::BadInput(format!("{what}: {why}"));
    let length = fs::metadata(undo_file).map_err(|e| bad(&e))?.len();
    if length > MAX_UNDO_BYTES {
        return Err(bad(&"too long for an undo file of kuroshio rail"));
    }
    let text = fs::read_to_string(undo_file).map_err(|e| bad(&e))?;
    let undo: Undo =
        serde_json::from_str(&text).map_err(|e| bad(&format!("not an undo file of kuroshio rail: {e}")))?;
    if undo.boot != boot(roots) {
        return Err(bad(&"of another boot: there is nothing to bring back; remove it"));
    }
    if let Some(change) = undo.changes.iter().find(|c| !is_ours(roots, &c.file)) {
        return Err(bad(&format!(
            "names {}, which kuroshio rail never changes",
            change.file.display()
        )));
    }
    let failed = restore(roots, &undo.changes);
    if failed.is_empty() {
        fs::remove_file(undo_file).map_err(RailError::io(what))?;
    }
    Ok((undo.changes.len() - failed.len(), failed))
}

fn wanted(
    roots: &Roots,
    machine: &Machine,
    rail: &Rail,
    interrupts: &[u32],
    stack: &[u32],
) -> Vec<(PathBuf, String)> {
    let card = machine.cards.iter().find(|c| Some(&c.pci) == rail.card.as_ref());
    let mut out = Vec::new();
    let Some(card) = card else { return out };
    for (irq, pu) in card.interrupts.iter().zip(interrupts.iter().cycle()) {
        out.push((roots.irq_file(irq.irq), pu.to_string()));
    }
    let mask = mask(stack);
    for interface in &card.interfaces {
        let (rx, tx) = interface.queues.unwrap_or((0, 0));
        let folder = roots.queue_folder(&interface.name);
        out.extend((0..rx).map(|n| (folder.join(format!("rx-{n}")).join("rps_cpus"), mask.clone())));
        out.extend((0..tx).map(|n| (folder.join(format!("tx-{n}")).join("xps_cpus"), mask.clone())));
    }
    out
}

/// The kernel's text of a set of processing units: words of 32 bits in hexadecimal, the highest first.
fn mask(pus: &[u32]) -> String {
    let words = pus.iter().max().map_or(1, |m| m / 32 + 1);
    let word = |w: u32| {
        pus.iter()
            .filter(|p| **p / 32 == w)
            .fold(0u32, |bits, p| bits | 1 << (p % 32))
    };
    let text: Vec<String> = (0..words).rev().map(|w| format!("{:08x}", word(w))).collect();
    text.join(",")
}

/// Whether a path is one of those in the table above.
fn is_ours(roots: &Roots, file: &Path) -> bool {
    let part = |p: &Path| -> Option<Vec<String>> {
        p.iter()
            .map(|s| s.to_str().filter(|s| *s != "..").map(str::to_owned))
            .collect()
    };
    let irq = file.strip_prefix(roots.proc.join("irq")).ok().and_then(part);
    let net = file.strip_prefix(roots.sys.join("class/net")).ok().and_then(part);
    match (irq.as_deref(), net.as_deref()) {
        (Some([number, name]), _) => number.parse::<u32>().is_ok() && name == "smp_affinity_list",
        (_, Some([_, queues, queue, name])) => {
            let number = queue.strip_prefix("rx-").or_else(|| queue.strip_prefix("tx-"));
            let numbered = number.is_some_and(|n| n.parse::<u32>().is_ok());
            queues == "queues" && numbered && (name == "rps_cpus" || name == "xps_cpus")
        }
        _ => false,
    }
}

fn restore(roots: &Roots, changes: &[Change]) -> Vec<String> {
    let each = changes
        .iter()
        .filter(|c| is_ours(roots, &c.file))
        .filter_map(|c| {
            // What is as it was (a refused change, too) is left alone.
            let now = fs::read_to_string(&c.file).ok()?;
            if now.trim() == c.before {
                return None;
            }
            fs::write(&c.file, &c.before)
                .err()
                .map(|e| format!("{} = {}: {e}", c.file.display(), c.before))
        });
    each.collect()
}

fn boot(roots: &Roots) -> String {
    let text = fs::read_to_string(roots.proc.join("sys/kernel/random/boot_id"));
    text.map(|t| t.trim().to_owned()).unwrap_or_default()
}

fn save(undo: &Undo, file: &Path) -> Result<(), RailError> {
    let what = file.display().to_string();
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder).map_err(RailError::io(folder.display().to_string()))?;
    }
    let text = serde_json::to_vec(undo).map_err(|e| RailError::BadInput(e.to_string()))?;
    let made = fs::OpenOptions::new().write(true).create_new(true).open(file);
    let mut out = match made {
        Ok(out) => out,
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {
            return Err(RailError::BadInput(format!(
                "{what} is there already, of a run that goes on or was killed: run `kuroshio rail undo` first"
            )));
        }
        Err(e) => return Err(RailError::io(what)(e)),
    };
    out.write_all(&text)
        .and_then(|()| out.sync_all())
        .map_err(RailError::io(what))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{Card, Interface, Interrupt};
    use crate::rails::rails;

    fn put(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
        fs::write(path, text).expect("a file");
    }

    fn get(path: &Path) -> String {
        fs::read_to_string(path).expect("a file").trim().to_owned()
    }

    #[test]
    fn masks_are_the_kernel_s() {
        assert_eq!(mask(&[0, 3]), "00000009");
        assert_eq!(mask(&[33, 1]), "00000002,00000002");
        assert_eq!(mask(&[]), "00000000");
    }

    #[test]
    fn interrupts_and_queues_go_and_come_back() {
        let here = tempfile::tempdir().expect("a folder");
        let roots = Roots {
            sys: here.path().join("sys"),
            proc: here.path().join("proc"),
        };
        let queue = roots.queue_folder("eth7").join("rx-0/rps_cpus");
        for irq in [40, 41, 42] {
            put(&roots.irq_file(irq), "0-7\n");
        }
        put(&queue, "00\n");
        put(&roots.proc.join("sys/kernel/random/boot_id"), "one\n");
        let interrupts = [40, 41, 42].map(|irq| Interrupt {
            irq,
            ..Interrupt::default()
        });
        let interface = Interface {
            name: "eth7".into(),
            queues: Some((1, 1)),
            ..Interface::default()
        };
        let card = Card {
            pci: "0000:03:00.0".into(),
            node: Some(0),
            interfaces: vec![interface],
            interrupts: interrupts.to_vec(),
            ..Card::default()
        };
        let core = |core| crate::machine::Core {
            core,
            pus: vec![core],
            ..Default::default()
        };
        let machine = Machine {
            nodes: vec![crate::machine::Node {
                cores: vec![4, 5],
                ..Default::default()
            }],
            cores: vec![core(4), core(5)],
            cards: vec![card],
            ..Machine::default()
        };
        let rail = rails(&machine).remove(0);
        let file = here.path().join("state/undo.json");
        let begin = || Steering::begin(&roots, &machine, &rail, &[4, 5], &[5], &file);
        let steering = begin().expect("steering");
        assert_eq!(
            (get(&roots.irq_file(41)), get(&roots.irq_file(42)), get(&queue)),
            ("5".into(), "4".into(), "00000020".into())
        );
        // The queue tx-0 has no file here.
        assert_eq!((steering.changed, steering.refused.len()), (4, 1));
        assert!(begin().is_err(), "a second run would forget what was before");
        assert_eq!(steering.end(), Vec::<String>::new());
        assert_eq!(
            (get(&roots.irq_file(41)), get(&queue), file.exists()),
            ("0-7".into(), "00".into(), false)
        );
        // A run that is killed leaves its undo file.
        std::mem::forget(begin().expect("steering"));
        assert_eq!(get(&roots.irq_file(40)), "4");
        assert_eq!(undo(&roots, &file).expect("an undo file"), (4, vec![]));
        assert_eq!((get(&roots.irq_file(40)), file.exists()), ("0-7".into(), false));
    }

    #[test]
    fn an_undo_file_names_nothing_else() {
        let here = tempfile::tempdir().expect("a folder");
        let roots = Roots {
            sys: here.path().join("sys"),
            proc: here.path().join("proc"),
        };
        let (victim, file) = (here.path().join("passwd"), here.path().join("undo.json"));
        put(&victim, "mine");
        for path in [
            victim.clone(),
            roots.proc.join("irq/../../passwd"),
            roots.sys.join("class/net/a/b/../../../../passwd"),
        ] {
            let change = Change {
                file: path,
                before: "theirs".into(),
            };
            put(
                &file,
                &serde_json::to_string(&Undo {
                    boot: String::new(),
                    changes: vec![change],
                })
                .expect("json"),
            );
            assert!(undo(&roots, &file).expect_err("refused").is_bad_input());
        }
        assert_eq!(get(&victim), "mine");
        put(&file, "{}");
        assert!(undo(&roots, &file).is_err());
        put(&file, "{\"boot\":\"other\",\"changes\":[]}");
        assert!(
            undo(&roots, &file)
                .expect_err("refused")
                .to_string()
                .contains("another boot")
        );
    }
}
