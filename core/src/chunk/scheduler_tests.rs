//! The scheduler against models: a byte map of every file, and streams of unequal speed in virtual time.

use super::*;
use crate::units::{BitRate, PicoDuration, PicoTime};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::ops::Range;
use proptest::prelude::*;

const KI: u64 = 1024;
const T0: PicoTime = PicoTime::ZERO;

fn small() -> Config {
    Config {
        chunk: 16 * KI,
        min_piece: 4 * KI,
        grain: KI,
        max_files: 100,
        max_unacked: 1000,
        max_ranges: 1000,
    }
}

fn scheduler(config: Config, streams: u32) -> Scheduler {
    let mut s = Scheduler::new(config).expect("valid sizes");
    for id in 0..streams {
        s.add_stream(StreamId(id)).expect("below the limit");
    }
    s
}

fn whole(len: u64) -> RangeSet {
    RangeSet::from_range(0..len)
}

fn piece(file: u32, generation: u16, range: Range<u64>) -> Option<Piece> {
    let len = u32::try_from(range.end - range.start).expect("fits");
    Some(Piece {
        file: FileId(file),
        generation,
        offset: range.start,
        len,
    })
}

#[test]
fn large_files_by_chunks_small_ones_whole_in_order() {
    let mut s = scheduler(small(), 2);
    s.add_file(FileId(7), 40 * KI, &whole(40 * KI)).expect("added");
    s.add_file(FileId(3), 100, &whole(100)).expect("added");
    s.add_file(FileId(5), 16 * KI + 1, &whole(16 * KI + 1))
        .expect("added");
    assert_eq!(s.add_file(FileId(9), 0, &whole(0)), Ok(true));
    let expected = [
        piece(7, 0, 0..16 * KI),
        piece(7, 0, 16 * KI..32 * KI),
        piece(7, 0, 32 * KI..40 * KI),
        piece(3, 0, 0..100),
        piece(5, 0, 0..16 * KI),
        piece(5, 0, 16 * KI..16 * KI + 1),
        None,
    ];
    for (i, want) in expected.into_iter().enumerate() {
        assert_eq!(s.next(StreamId(i as u32 % 2), T0), want);
    }
    assert_eq!(
        s.written(FileId(3), 0, 0, 100),
        Ok(Acked {
            bytes: 100,
            complete: true
        })
    );
    assert_eq!(
        s.written(FileId(3), 0, 0, 100),
        Ok(Acked {
            bytes: 0,
            complete: true
        })
    );
    // Several pieces and part of another in one acknowledgement.
    assert_eq!(
        s.written(FileId(7), 0, 0, 33 * KI),
        Ok(Acked {
            bytes: 33 * KI,
            complete: false
        })
    );
    assert_eq!(s.stats().on_streams, 7 * KI + 16 * KI + 1);
}

#[test]
fn only_wanted_ranges_widened_to_the_grain() {
    let mut s = scheduler(small(), 1);
    let wanted = RangeSet::try_from_ranges([1500..1600, 9 * KI..30 * KI]).expect("in order");
    s.add_file(FileId(1), 30 * KI - 5, &wanted)
        .expect_err("beyond the end");
    s.add_file(FileId(1), 30 * KI + 5, &wanted).expect("inside");
    let mut got = Vec::new();
    while let Some(p) = s.next(StreamId(0), T0) {
        got.push(p.range());
    }
    let k = |a: u64, b: u64| a * KI..b * KI;
    assert_eq!(
        got,
        [
            k(1, 2),
            k(9, 10),
            k(10, 12),
            k(12, 16),
            k(16, 24),
            k(24, 28),
            k(28, 30)
        ]
    );
}

#[test]
fn bad_and_lost_go_first() {
    let mut s = scheduler(small(), 2);
    s.add_file(FileId(1), 160 * KI, &whole(160 * KI)).expect("added");
    for _ in 0..2 {
        s.next(StreamId(0), T0).expect("a piece");
        s.next(StreamId(1), T0).expect("a piece");
    }
    s.written(FileId(1), 0, 0, 16 * KI).expect("sent");
    // Written before, then found bad: grain by grain; stream 1 held 16..32 and 48..64.
    assert_eq!(s.bad(FileId(1), 0, 5000, 10), Ok(KI));
    assert_eq!(s.next(StreamId(0), T0), piece(1, 0, 4 * KI..5 * KI));
    assert_eq!(s.lose_stream(StreamId(1)), 32 * KI);
    assert_eq!(s.next(StreamId(1), T0), None, "a lost stream gets nothing");
    assert_eq!(s.next(StreamId(0), T0), piece(1, 0, 16 * KI..32 * KI));
    // A late acknowledgement from the lost stream: not sent again.
    assert_eq!(
        s.written(FileId(1), 0, 48 * KI, 16 * KI),
        Ok(Acked {
            bytes: 16 * KI,
            complete: false
        })
    );
    assert_eq!(s.next(StreamId(0), T0), piece(1, 0, 64 * KI..80 * KI));
    // Bad on arrival, still on its stream: taken off it and sent again, once.
    assert_eq!(s.bad(FileId(1), 0, 64 * KI, 16 * KI), Ok(16 * KI));
    assert_eq!(s.bad(FileId(1), 0, 64 * KI, 16 * KI), Ok(0));
    assert_eq!(s.next(StreamId(0), T0), piece(1, 0, 64 * KI..80 * KI));
}

/// Acknowledgements that end inside a grain are exact while the piece is on a stream; what is sent again
/// is whole grains, so that every piece is a subtree of the digest.
#[test]
fn parts_of_a_grain() {
    let mut s = scheduler(small(), 2);
    s.add_file(FileId(1), 3 * KI, &whole(3 * KI)).expect("added");
    s.next(StreamId(0), T0).expect("piece");
    assert_eq!(
        s.written(FileId(1), 0, 0, 1500),
        Ok(Acked {
            bytes: 1500,
            complete: false
        })
    );
    assert_eq!(s.lose_stream(StreamId(0)), 3 * KI - 1500);
    assert_eq!(s.stats().to_send, 2 * KI);
    assert_eq!(
        s.written(FileId(1), 0, 0, 2500),
        Ok(Acked {
            bytes: KI,
            complete: false
        })
    );
    assert_eq!(s.next(StreamId(1), T0), piece(1, 0, 2 * KI..3 * KI));
    for (at, end) in [(2048, 2050), (2600, 3072), (2050, 2600)] {
        assert_eq!(
            s.written(FileId(1), 0, at, end - at).map(|a| a.bytes),
            Ok(end - at)
        );
    }
    assert!(s.is_idle());
}

#[test]
fn a_changed_file_begins_again() {
    let mut s = scheduler(small(), 1);
    s.add_file(FileId(1), 64 * KI, &whole(64 * KI)).expect("added");
    s.next(StreamId(0), T0).expect("piece");
    s.next(StreamId(0), T0).expect("piece");
    s.bad(FileId(1), 0, 0, KI).expect("sent before");
    assert_eq!(s.restart_file(FileId(1), 10 * KI, &whole(10 * KI)), Ok(1));
    assert_eq!(
        s.stats(),
        Stats {
            to_send: 10 * KI,
            bad: KI,
            pieces: 2,
            files: 1,
            ..Stats::default()
        }
    );
    // What is said of the old generation changes nothing; one to come is an error.
    assert_eq!(s.written(FileId(1), 0, 0, 64 * KI), Ok(Acked::default()));
    assert_eq!(s.bad(FileId(1), 0, 0, 64 * KI), Ok(0));
    assert_eq!(
        s.written(FileId(1), 2, 0, 1),
        Err(ScheduleError::Generation(FileId(1)))
    );
    assert_eq!(s.next(StreamId(0), T0), piece(1, 1, 0..10 * KI));
    assert_eq!(
        s.written(FileId(1), 1, 0, 10 * KI),
        Ok(Acked {
            bytes: 10 * KI,
            complete: true
        })
    );
    assert!(s.is_idle());
}

#[test]
fn peers_that_lie_are_refused() {
    let mut s = scheduler(small(), 1);
    s.add_file(FileId(1), 64 * KI, &whole(64 * KI)).expect("added");
    let f = FileId(1);
    assert_eq!(
        s.written(f, 0, 0, 1),
        Err(ScheduleError::NotSent { file: f, offset: 0 })
    );
    s.next(StreamId(0), T0).expect("piece");
    assert_eq!(
        s.written(f, 0, 0, 20 * KI),
        Err(ScheduleError::NotSent {
            file: f,
            offset: 16 * KI
        })
    );
    let out = ScheduleError::OutOfFile {
        file: f,
        offset: u64::MAX,
        len: 2,
        file_len: 64 * KI,
    };
    assert_eq!(s.written(f, 0, u64::MAX, 2), Err(out));
    assert_eq!(s.bad(f, 0, u64::MAX, 2), Err(out));
    assert_eq!(
        s.written(FileId(2), 0, 0, 1),
        Err(ScheduleError::UnknownFile(FileId(2)))
    );
    assert_eq!(s.add_file(f, 1, &whole(1)), Err(ScheduleError::DuplicateFile(f)));
}

#[test]
fn limits_hold() {
    let mut s = scheduler(
        Config {
            max_files: 2,
            max_unacked: 3,
            max_ranges: 4,
            ..small()
        },
        1,
    );
    let comb =
        |n: u64| RangeSet::try_from_ranges((0..n).map(|i| i * 2 * KI..i * 2 * KI + KI)).expect("in order");
    assert_eq!(
        s.add_file(FileId(1), 64 * KI, &comb(5)),
        Err(ScheduleError::Full("ranges"))
    );
    s.add_file(FileId(1), 64 * KI, &comb(4)).expect("at the limit");
    s.add_file(FileId(2), 1, &whole(1))
        .expect("whole files count no range");
    assert_eq!(
        s.add_file(FileId(3), 1, &whole(1)),
        Err(ScheduleError::Full("files"))
    );
    assert_eq!(
        s.bad(FileId(1), 0, 63 * KI, 1),
        Err(ScheduleError::Full("ranges"))
    );
    for _ in 0..3 {
        assert!(s.next(StreamId(0), T0).is_some());
    }
    assert_eq!(s.next(StreamId(0), T0), None, "three pieces are not acknowledged");
    s.written(FileId(1), 0, 0, KI).expect("sent");
    assert!(s.next(StreamId(0), T0).is_some());
    s.finish_file(FileId(1));
    s.finish_file(FileId(2));
    assert_eq!(s.ranges_held(), 0);
    assert_eq!(s.stats().on_streams + s.stats().to_send, 0);
    for bad in [
        Config {
            chunk: 3 * KI,
            ..small()
        },
        Config {
            grain: 512,
            ..small()
        },
        Config {
            min_piece: 512,
            ..small()
        },
        Config {
            min_piece: 32 * KI,
            ..small()
        },
        Config {
            chunk: 2 * MAX_CHUNK_BYTES,
            ..small()
        },
    ] {
        assert!(
            matches!(Scheduler::new(bad), Err(ScheduleError::BadConfig)),
            "{bad:?}"
        );
    }
    let mut s = scheduler(small(), 1024);
    assert_eq!(s.add_stream(StreamId(5000)), Err(ScheduleError::Full("streams")));
    assert_eq!(s.add_stream(StreamId(1)), Ok(()));
}

/// Counts the work, not the time: a million files are added, sent and finished with a queue that never
/// holds more than the files do.
#[test]
fn a_million_files() {
    let mut s = scheduler(
        Config {
            max_files: 1 << 20,
            ..Config::default()
        },
        4,
    );
    let n = 1_000_000;
    for id in 0..n {
        s.add_file(FileId(id), 1000, &whole(1000))
            .expect("below the limit");
    }
    s.close();
    for id in 0..n {
        let p = s
            .next(StreamId(id % 4), PicoTime::from_us(u64::from(id)))
            .expect("a piece");
        assert_eq!((p.file, p.len), (FileId(id), 1000));
        assert!(s.written(p.file, 0, 0, 1000).expect("sent").complete);
        s.finish_file(p.file);
    }
    assert!(s.is_idle());
    assert_eq!(s.stats().files, 0);
}

// ---- tail ------------------------------------------------------------------------------------------

/// Runs streams to the end; each asks when its piece is carried, at `rate_mbps` of its number at that time.
/// Returns the times in ps at which each finished its last piece, and the sizes of all pieces.
fn run_streams(s: &mut Scheduler, streams: u32, rate_mbps: impl Fn(u32, u64) -> u64) -> (Vec<u64>, Vec<u32>) {
    let mut free: BTreeSet<(u64, u32)> = (0..streams).map(|i| (0, i)).collect();
    let mut end = alloc::vec![0u64; streams as usize];
    let mut sizes = Vec::new();
    while let Some((now, id)) = free.pop_first() {
        if s.is_idle() {
            break;
        }
        match s.next(StreamId(id), PicoTime::from_ps(now)) {
            Some(p) => {
                let done = now + u64::from(p.len) * 8_000_000 / rate_mbps(id, now);
                s.written(p.file, p.generation, p.offset, u64::from(p.len))
                    .expect("sent");
                end[id as usize] = done;
                sizes.push(p.len);
                free.insert((done, id));
            }
            None => {
                free.insert((now + RECHECK.as_ps(), id));
            }
        }
    }
    (end, sizes)
}

fn spread(end: &[u64]) -> u64 {
    end.iter().max().expect("streams") - end.iter().min().expect("streams")
}

#[test]
fn unequal_streams_finish_together() {
    for (rates, file_mib) in [
        (&[100, 200, 1000][..], 512u64),
        (&[100, 200, 1000], 300),
        (&[50, 800], 200),
        (&[300; 5], 100),
        (&[1, 1000], 256),
    ] {
        let mut s = scheduler(Config::default(), rates.len() as u32);
        let len = file_mib << 20;
        s.add_file(FileId(0), len, &whole(len)).expect("added");
        s.close();
        let (end, sizes) = run_streams(&mut s, rates.len() as u32, |id, _| rates[id as usize]);
        assert!(s.is_idle(), "{rates:?}: {:?}", s.stats());
        let least_on_slowest = (64 * KI) * 8_000_000 / rates.iter().min().expect("rates");
        // A rate measured on the first pieces comes late for a stream far slower than its chunk allows.
        if rates.iter().max().expect("rates") / rates.iter().min().expect("rates") <= 16 {
            assert!(spread(&end) < least_on_slowest, "{rates:?}: {end:?}");
            let ideal = len * 8_000_000 / rates.iter().sum::<u64>();
            let last = *end.iter().max().expect("streams");
            assert!(last < ideal + least_on_slowest, "{last} ps instead of {ideal}");
        }
        assert!(sizes.iter().filter(|l| **l < 4 << 20).count() < 60 * rates.len());
    }
}

#[test]
fn streams_that_begin_slowly_carry_their_share_later() {
    // As leases do: a thousandth of the rate for the first quarter of a second.
    let rate = |_, now: u64| if now < 250_000_000_000 { 1 } else { 400 };
    let (streams, len) = (5, 1024u64 << 20);
    let mut s = scheduler(
        Config {
            chunk: 1 << 20,
            ..Config::default()
        },
        streams,
    );
    s.add_file(FileId(0), len, &whole(len)).expect("added");
    s.close();
    let (end, _) = run_streams(&mut s, streams, rate);
    let ideal = len * 8_000_000 / (u64::from(streams) * 400);
    // The first piece of each is carried at the low rate to its end.
    let first = (1 << 20) * 8_000_000;
    let last = *end.iter().max().expect("streams");
    assert!(last < ideal + first + ideal / 20, "{last} ps instead of {ideal}");
    assert!(spread(&end) < ideal / 20, "{end:?}");
}

#[test]
fn a_stopped_stream_is_not_waited_for() {
    let mut s = scheduler(Config::default(), 2);
    let rates = [1000, 10].map(BitRate::from_mbps);
    // Each carries a file, so that its rate is known.
    for (id, rate) in (0..).zip(rates) {
        s.add_file(FileId(id), 4 << 20, &whole(4 << 20)).expect("added");
        let p = s.next(StreamId(id), T0).expect("a piece");
        assert_eq!(u64::from(p.len), 4 << 20);
        assert_eq!(s.next(StreamId(id), T0 + rate.time_for(4 << 20)), None);
    }
    let mut now = T0 + rates[1].time_for(4 << 20);
    s.add_file(FileId(2), 5 << 20, &whole(5 << 20)).expect("added");
    s.close();
    // The fast one takes most of it and never comes back.
    assert!(s.next(StreamId(0), now).is_some());
    let until = now + PicoDuration::from_secs(60);
    let mut declined = false;
    loop {
        match s.next(StreamId(1), now) {
            Some(p) => now += rates[1].time_for(u64::from(p.len)),
            None => {
                declined = true;
                now += RECHECK;
            }
        }
        if s.stats().to_send == 0 {
            break;
        }
        assert!(now < until, "left lying: {:?}", s.stats());
    }
    assert!(
        declined,
        "the slow stream leaves the rest to the fast one at first"
    );
}

// ---- every byte ------------------------------------------------------------------------------------

#[derive(Clone, Debug)]
enum Op {
    Next(u32),
    Ack { pick: usize, part: (u64, u64) },
    Bad { file: u32, at: u64, len: u64 },
    Lose(u32),
    Restart { file: u32, len: u64 },
    Close,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (0u32..4).prop_map(Op::Next),
        6 => (any::<usize>(), (0u64..4, 0u64..4)).prop_map(|(pick, part)| Op::Ack { pick, part }),
        2 => (0u32..4, 0u64..70_000, 0u64..9000).prop_map(|(file, at, len)| Op::Bad { file, at, len }),
        1 => (0u32..4).prop_map(Op::Lose),
        1 => (0u32..4, 0u64..70_000).prop_map(|(file, len)| Op::Restart { file, len }),
        1 => Just(Op::Close),
    ]
}

/// The receiver as it would be: which bytes of the current generation it has, and what is on the way.
#[derive(Default)]
struct Receiver {
    len: BTreeMap<u32, (u16, u64)>,
    have: BTreeMap<u32, RangeSet>,
    on_the_way: Vec<(Piece, u32)>,
}

impl Receiver {
    fn ack(&mut self, s: &mut Scheduler, index: usize, range: Range<u64>) -> Result<(), TestCaseError> {
        let (p, _) = self.on_the_way[index];
        let (generation, _) = self.len[&p.file.0];
        let acked = s.written(p.file, p.generation, range.start, range.end - range.start);
        let acked = acked.map_err(|e| TestCaseError::fail(alloc::format!("{e}")))?;
        if p.generation == generation {
            let new = self.have.get_mut(&p.file.0).expect("known").insert(range);
            prop_assert_eq!(acked.bytes, new);
        } else {
            prop_assert_eq!(acked.bytes, 0);
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    /// After any sequence of sends, acknowledgements (partial, late, twice, of old generations), bad
    /// ranges, lost streams and restarts: what is left comes, every wanted byte is acknowledged once, and the
    /// counters agree with a byte map.
    #[test]
    fn every_byte_arrives(
        files in prop::collection::vec((0u64..70_000, prop::collection::vec((0u64..70_000, 0u64..20_000), 0..4)), 4),
        ops in prop::collection::vec(op(), 0..120),
    ) {
        let mut s = scheduler(small(), 4);
        let mut r = Receiver::default();
        for (id, (len, have)) in files.iter().enumerate() {
            let id = id as u32;
            let mut there = RangeSet::new();
            for (at, n) in have {
                there.insert((*at).min(*len)..(at + n).min(*len));
            }
            // What the receiver wants, as the scheduler widens it.
            let there = there.missing(*len).widened(KI, *len).missing(*len);
            r.len.insert(id, (0, *len));
            prop_assert_eq!(s.add_file(FileId(id), *len, &there.missing(*len)), Ok(there.bytes() == *len));
            r.have.insert(id, there);
        }
        let mut now = T0;
        for op in ops {
            now += PicoDuration::from_us(700);
            match op {
                Op::Next(id) => if let Some(p) = s.next(StreamId(id), now) {
                    let (generation, len) = r.len[&p.file.0];
                    prop_assert_eq!(p.generation, generation);
                    prop_assert!(p.len > 0 && p.range().end <= len && u64::from(p.len) <= small().chunk);
                    prop_assert!(SubtreeHasher::new(len, p.offset, u64::from(p.len)).is_ok(), "{:?} of {}", p, len);
                    r.on_the_way.push((p, id));
                },
                Op::Ack { pick, part } => if !r.on_the_way.is_empty() {
                    let index = pick % r.on_the_way.len();
                    let p = r.on_the_way[index].0.range();
                    // Whole grains, so that nothing is widened and the counts are exact.
                    let quarter = (p.end - p.start).div_ceil(4).next_multiple_of(KI);
                    let (a, b) = (part.0.min(part.1), part.0.max(part.1) + 1);
                    let range = (p.start + a * quarter).min(p.end)..(p.start + b * quarter).min(p.end);
                    r.ack(&mut s, index, range.clone())?;
                    if range == p {
                        r.on_the_way.swap_remove(index);
                    }
                },
                Op::Bad { file, at, len } => {
                    let (generation, file_len) = r.len[&file];
                    let (at, end) = (at.min(file_len), (at + len).min(file_len));
                    s.bad(FileId(file), generation, at, end - at).expect("inside the file");
                    let whole_grains = RangeSet::from_range(at..end).widened(KI, file_len);
                    r.have.get_mut(&file).expect("known").subtract(&whole_grains);
                }
                Op::Lose(id) => {
                    s.lose_stream(StreamId(id));
                    s.add_stream(StreamId(id)).expect("a new one");
                    // What it carried may still be acknowledged late: half of it is.
                    let mut keep = false;
                    r.on_the_way.retain(|(_, on)| *on != id || { keep = !keep; keep });
                }
                Op::Restart { file, len } => {
                    let generation = s.restart_file(FileId(file), len, &whole(len)).expect("known");
                    r.len.insert(file, (generation, len));
                    r.have.insert(file, RangeSet::new());
                }
                Op::Close => s.close(),
            }
            let missing: u64 = r.have.iter().map(|(id, have)| r.len[id].1 - have.bytes()).sum();
            prop_assert_eq!(s.stats().to_send + s.stats().on_streams, missing);
        }
        // Drain: all streams take turns, everything on the way is acknowledged, in any order.
        for turn in 0u32..10_000 {
            now += RECHECK;
            if let Some(p) = s.next(StreamId(turn % 4), now) {
                r.on_the_way.push((p, turn % 4));
            }
            if turn % 3 == 0 && !r.on_the_way.is_empty() {
                let index = turn as usize % r.on_the_way.len();
                let range = r.on_the_way[index].0.range();
                r.ack(&mut s, index, range)?;
                r.on_the_way.swap_remove(index);
            }
            if s.is_idle() {
                break;
            }
        }
        prop_assert!(s.is_idle(), "{:?}", s.stats());
        for (id, have) in &r.have {
            let (generation, len) = r.len[id];
            prop_assert_eq!(have.bytes(), len);
            prop_assert_eq!(s.written(FileId(*id), generation, 0, len), Ok(Acked { bytes: 0, complete: true }));
            s.finish_file(FileId(*id));
        }
        prop_assert_eq!(s.ranges_held(), 0);
    }
}
