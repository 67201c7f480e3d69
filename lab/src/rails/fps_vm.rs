//! `rails-fps --vm`: the same rows on two memory nodes that this machine may not have.
//!
//! ```text
//!   tests/vm/vm --nodes 2 -> tests/vm/rails-fps.sh -> `lab run rails-fps --live` in the machine -> run.json -> here
//! ```
//!
//! Its processors are emulated, so pictures per second say nothing there: what is held to the paper's table is where threads ran,
//! on which node their pictures are, and the kernel's own count of pages that were taken from another node than the taker's.

use std::path::Path;

use kuroshio_core::video::Geometry;
use kuroshio_rail::Condition;
use serde_json::Value;

use super::fps::{RowRun, Sample, Settings, figures};
use super::{About, Made, RailsError, Request, check, setting};
use crate::check::Check;
use crate::result::RunResult;
use crate::vm::{Nodes, on_nodes};

/// Picture, time, runs and pictures in memory, where nobody says otherwise: what emulated processors do in seconds.
const SIZE: &str = "480x270";
const TIME: &str = "500ms";
const RUNS: &str = "1";
const HELD: &str = "16";
/// Wall seconds for the machine.
const LIMIT_S: u64 = 600;
const PAGE_BYTES: usize = 4_096;

pub(super) fn run(about: &About, request: &Request, say: &mut dyn FnMut(&str)) -> Result<Made, RailsError> {
    let mut request = request.clone();
    for (key, value) in [("size", SIZE), ("time", TIME), ("runs", RUNS), ("held", HELD)] {
        if !request.sets.iter().any(|(k, _)| k == key) {
            request.sets.push((key.into(), value.into()));
        }
    }
    let settings = Settings::of(&request)?;
    let program =
        std::env::current_exe().map_err(|e| RailsError::Failed(format!("the program's own path: {e}")))?;
    let mut words = vec![program.display().to_string()];
    for (key, value) in &request.sets {
        words.extend(["--set".to_owned(), format!("{key}={value}")]);
    }
    let machine = on_nodes(
        &Nodes {
            script: "tests/vm/rails-fps.sh",
            words: &words,
            modules: &["virtio_net"],
            out: &request.work,
            limit_s: LIMIT_S,
        },
        say,
    )?;
    let inside = read(&request.work.join("run.json"))?;
    let mut made = figures(about, &settings, &inside, "vm")?;
    made.result
        .checks
        .extend(counters(&inside, settings.geometry, settings.held));
    made.result.versions.kernel = format!("{} (virtual machine)", machine.kernel);
    if let Value::Array(rows) = &mut made.result.settings {
        rows.push(setting(
            "machine",
            "two memory nodes of two processors and a card each, distance 20, emulated instruction by instruction",
            "ours: figure 2 of the paper, without its costs",
        ));
    }
    made.result.notes.push(
        "Emulated processors: pictures per second are no measure, and remote memory costs nothing.".into(),
    );
    Ok(made)
}

/// The rows that the run in the machine left.
fn read(path: &Path) -> Result<Vec<RowRun>, RailsError> {
    let bad = |m: String| RailsError::Failed(format!("{}: {m}", path.display()));
    let inside = RunResult::read(path).map_err(|e| bad(e.to_string()))?;
    let row = |(name, of): (&String, &Value)| -> Result<RowRun, serde_json::Error> {
        let field = |key: &str| of.get(key).cloned().unwrap_or_default();
        let samples: Vec<Sample> = serde_json::from_value(field("runs"))?;
        let row = kuroshio_rail::Row {
            condition: serde_json::from_value(Value::String(name.clone()))?,
            rails: serde_json::from_value(field("rails"))?,
            same_as: serde_json::from_value(field("same_as"))?,
        };
        Ok(RowRun { row, samples })
    };
    let rows = inside.measured.iter().map(row).collect::<Result<Vec<_>, _>>();
    rows.map_err(|e| bad(e.to_string()))
}

/// What must hold on two nodes with a card each.
fn counters(runs: &[RowRun], geometry: Geometry, held: usize) -> Vec<Check> {
    let of = |condition: Condition| runs.iter().find(|r| r.row.condition == condition);
    let pages = |condition| of(condition).map(|r| r.samples.iter().map(|s| s.other_node_pages).sum::<u64>());
    let samples = runs.first().map_or(0, |r| r.samples.len());
    let pictures = (samples * held * geometry.bytes() / PAGE_BYTES) as u64;
    let two = |(r, name): (&RowRun, Condition)| {
        let [one, other] = &r.row.rails;
        let crossed = [one, other]
            .into_iter()
            .filter(|p| p.card_node != Some(p.core_node))
            .count();
        let away = [one, other]
            .into_iter()
            .filter(|p| p.card_node != Some(p.memory_node))
            .count();
        let want = match name {
            Condition::A => (0, 0),
            Condition::B => (2, 0),
            Condition::C | Condition::D => (1, 1),
        };
        r.row.condition == name
            && r.row.same_as.is_none()
            && (crossed, away) == want
            && one.card != other.card
    };
    let names = [Condition::A, Condition::B, Condition::C, Condition::D];
    let right = runs.iter().zip(names).filter(|pair| two(*pair)).count();
    let told = |pages: Option<u64>| pages.map_or("not counted".to_owned(), |n| format!("{n} pages"));
    let (a, b) = (pages(Condition::A), pages(Condition::B));
    vec![
        check(
            "four placements as in the paper's table, over two cards",
            "cores crossed 0, 2, 1, 1; memory away from the card 0, 0, 1, 1",
            format!("{right} of 4"),
            right == 4 && runs.len() == 4,
        ),
        check(
            "B takes its pictures' memory from the other node",
            format!("{pictures} pages or more: all pictures"),
            told(b),
            b.is_some_and(|n| n >= pictures && pictures > 0),
        ),
        check(
            "A takes none of them from there",
            format!("fewer than {} pages: a tenth of the pictures", pictures / 10),
            told(a),
            a.is_some_and(|n| n < pictures / 10),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rails::fps::tests::two_nodes;
    use kuroshio_core::video::PixelFormat;

    fn rows(pages: [u64; 4]) -> Vec<RowRun> {
        let mut rows = two_nodes([1.0; 4]);
        for (run, pages) in rows.iter_mut().zip(pages) {
            run.samples[0].other_node_pages = pages;
            for (node, place) in run.row.rails.iter_mut().enumerate() {
                (place.card, place.card_node) = (Some(format!("card {node}")), Some(node as u32));
            }
        }
        rows
    }

    #[test]
    fn counters_tell_the_rows_apart() {
        // 16 pictures of 480x270 in 24 bits are 1,518 pages.
        let geometry = Geometry::new(480, 270, PixelFormat::Rgb8).expect("a size");
        let held = |rows: &[RowRun]| {
            counters(rows, geometry, 16)
                .iter()
                .map(|c| c.ok)
                .collect::<Vec<_>>()
        };
        assert_eq!(held(&rows([100, 1_600, 0, 0])), [true, true, true]);
        assert_eq!(held(&rows([100, 1_500, 0, 0])), [true, false, true]);
        assert_eq!(held(&rows([160, 1_600, 0, 0])), [true, true, false]);
        let mut same = rows([0, 1_600, 0, 0]);
        same[3].row.same_as = Some(Condition::C);
        assert_eq!(held(&same), [false, true, true]);
        let mut one_card = rows([0, 1_600, 0, 0]);
        one_card[0].row.rails[1].card_node = Some(0);
        assert_eq!(held(&one_card), [false, true, true]);
        assert_eq!(held(&[]), [false, false, false]);
    }

    #[test]
    fn a_result_that_is_none_is_refused() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("run.json");
        assert!(read(&path).is_err());
        std::fs::write(&path, "{}").expect("a file");
        assert!(read(&path).is_err());
    }
}
