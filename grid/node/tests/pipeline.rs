//! One connection to the metadata service and many callers: each gets its own answer, whoever reads it.

mod common;

use common::TestGrid;
use kuroshio_client::v1::request::Op;
use kuroshio_client::v1::response::Result as Answer;
use kuroshio_client::{Grid, Pending, v1};
use kuroshio_metad::Timing;

/// More requests than may be on their way at once.
const MANY: usize = 2500;
const FILES: usize = 40;
const CALLERS: usize = 12;
const ROUNDS: usize = 150;

fn path(n: usize) -> Vec<u8> {
    format!("/f{}", n % FILES).into_bytes()
}

/// Makes the files: their inodes.
fn files(grid: &Grid) -> Vec<u64> {
    let made = (0..FILES).map(|n| grid.make_file(&path(n), 0o644, 0).expect("made").inode);
    made.collect()
}

fn ask(grid: &Grid, n: usize) -> Pending {
    let op = Op::Stat(v1::PathRequest {
        path: path(n),
        ..Default::default()
    });
    grid.submit(op).expect("submitted")
}

fn inode(pending: Pending) -> u64 {
    match pending.wait().expect("answered") {
        Answer::Attr(attr) => attr.inode,
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_caller_gets_its_own_answer() {
    let bed = TestGrid::start(0, Timing::default());
    let grid = bed.admin();
    let inodes = files(&grid);
    std::thread::scope(|s| {
        for caller in 0..CALLERS {
            let (grid, inodes) = (&grid, &inodes);
            s.spawn(move || {
                for round in 0..ROUNDS {
                    let first = caller * 7 + round;
                    // One at a time, several in the other order, and some that nobody waits for.
                    assert_eq!(inode(ask(grid, first)), inodes[first % FILES]);
                    let mut several = (first..first + 5).map(|n| (n, ask(grid, n))).collect::<Vec<_>>();
                    drop(several.remove(round % 5));
                    for (n, pending) in several.into_iter().rev() {
                        assert_eq!(inode(pending), inodes[n % FILES]);
                    }
                    if round % 50 == 0 {
                        let name = format!("/d{caller}-{round}");
                        grid.make_dir(name.as_bytes(), 0o755, 0).expect("made");
                    }
                }
            });
        }
    });
}

#[test]
fn more_may_be_asked_than_may_be_on_their_way() {
    let bed = TestGrid::start(0, Timing::default());
    let grid = bed.admin();
    let inodes = files(&grid);
    let asked = (0..MANY).map(|n| (n, ask(&grid, n))).collect::<Vec<_>>();
    for (n, pending) in asked.into_iter().rev() {
        assert_eq!(inode(pending), inodes[n % FILES], "{n}");
    }
}

#[test]
fn a_change_is_not_sent_on_a_connection_that_ended_while_nobody_waited() {
    let mut bed = TestGrid::start(0, Timing::default());
    let grid = bed.admin();
    grid.make_dir(b"/before", 0o755, 0).expect("made");
    bed.metad.take().expect("runs").stop();
    bed.start_metad();
    // Sent on the old connection it would be lost, and not be asked again.
    grid.make_dir(b"/after", 0o755, 0).expect("made");
    assert!(grid.stat(b"/before", true).is_ok() && grid.stat(b"/after", true).is_ok());
}
