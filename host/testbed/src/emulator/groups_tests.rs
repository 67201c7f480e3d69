//! Which segments leave together, and when.

use super::*;
use crate::emulator::pool::{Meta, Pool};
use kuroshio_port::segment::Partial;
use std::rc::Rc;

const QUANTUM: PicoDuration = PicoDuration::from_us(64);
const PARTIAL: Partial = Partial {
    start: 34,
    offset: 16,
};

/// A TCP segment of a flow, with its number, flags and payload length.
fn segment(pool: &Rc<Pool>, flow: u8, number: u32, flags: u8, payload: usize) -> Frame {
    let mut f = vec![2u8; 12];
    f.extend([0x08, 0x00, 0x45, 0]);
    f.extend(u16::try_from(40 + payload).expect("small").to_be_bytes());
    f.extend((number as u16).to_be_bytes());
    f.extend([0x40, 0, 64, 6, 0, 0, 10, 0, 0, flow, 10, 0, 0, 2, 0, 9, 0, 80]);
    f.extend((number * 1000).to_be_bytes());
    f.extend([0, 0, 0, 9, 5 << 4, flags, 1, 0, 0, 0, 0, 0]);
    f.resize(f.len() + payload, 7);
    let mut frame = pool.take(f.len()).expect("memory");
    frame.room()[..f.len()].copy_from_slice(&f);
    frame.set_len(f.len());
    frame.set_meta(Meta {
        partial: Some(PARTIAL),
        ..Meta::default()
    });
    frame
}

/// When each was written (us), how many frames it was and how many bytes followed the virtio-net header.
type Written = Vec<(u64, u64, usize)>;

fn note(written: &mut Written) -> impl FnMut(PicoTime, Count, &[IoSlice<'_>]) {
    |due, count, parts| {
        let bytes: usize = parts.iter().skip(1).map(|p| p.len()).sum();
        written.push((due.as_ns() / 1000, count.frames, bytes));
    }
}

fn at(us: u64) -> PicoTime {
    PicoTime::ZERO + PicoDuration::from_us(us)
}

#[test]
fn what_departs_in_a_quantum_leaves_at_its_end_and_no_more() {
    let pool = Pool::new(0, 1 << 24);
    let mut groups = Groups::new(QUANTUM);
    let mut written = Written::new();
    let len = FrameBytes::new(1058);
    for i in 0..20 {
        let frame = segment(&pool, 1, i, 0x10, 1000);
        groups.push(at(10 + 8 * u64::from(i)), len, frame, &mut note(&mut written));
    }
    assert_eq!(groups.held().frames, 4);
    assert_eq!(groups.next_ps(), at(202).as_ps());
    groups.flush(at(201), &mut note(&mut written));
    assert_eq!(groups.held().frames, 4, "not yet");
    groups.flush(at(202), &mut note(&mut written));
    let header = 54;
    assert_eq!(
        written,
        [
            (74, 8, header + 8000),
            (138, 8, header + 8000),
            (202, 4, header + 4000)
        ]
    );
    assert_eq!(groups.held(), Count::default());
}

#[test]
fn a_gap_and_an_end_part_groups_and_flows_do_not() {
    let pool = Pool::new(0, 1 << 24);
    let mut groups = Groups::new(QUANTUM);
    let mut written = Written::new();
    let len = FrameBytes::new(1058);
    let mut go = |t: u64, flow, number, flags, payload, written: &mut Written| {
        groups.push(
            at(t),
            len,
            segment(&pool, flow, number, flags, payload),
            &mut note(written),
        );
        groups.held().frames
    };
    go(0, 1, 0, 0x10, 1000, &mut written);
    go(1, 2, 0, 0x10, 1000, &mut written);
    go(2, 1, 1, 0x10, 1000, &mut written);
    // The third of flow 1 is missing.
    assert_eq!(go(3, 1, 3, 0x10, 1000, &mut written), 2);
    assert_eq!(written, [(3, 2, 2054)]);
    // PSH ends a group at once.
    assert_eq!(go(4, 1, 4, 0x18, 1000, &mut written), 1);
    assert_eq!(written[1], (4, 2, 2054));
    // So does a shorter segment, and an acknowledgement is not held at all, but goes behind its flow's group.
    assert_eq!(go(5, 2, 1, 0x10, 500, &mut written), 0);
    assert_eq!(written[2], (5, 2, 1554));
    assert_eq!(go(6, 2, 2, 0x10, 1000, &mut written), 1);
    assert_eq!(go(7, 2, 3, 0x10, 0, &mut written), 0);
    assert_eq!(written[3..], [(6 + 1, 1, 1054), (7, 1, 54)]);
}

#[test]
fn a_frame_with_a_whole_checksum_is_never_joined() {
    let pool = Pool::new(0, 1 << 24);
    let mut groups = Groups::new(QUANTUM);
    let mut written = Written::new();
    for i in 0..3 {
        let mut frame = segment(&pool, 1, i, 0x10, 1000);
        if i == 1 {
            // Who changes a byte makes the checksum first.
            frame.bytes_mut()[60] ^= 1;
        }
        groups.push(
            at(u64::from(i)),
            FrameBytes::new(1058),
            frame,
            &mut note(&mut written),
        );
    }
    groups.flush(at(100), &mut note(&mut written));
    // The one in front of it goes first.
    assert_eq!(written, [(1, 1, 1054), (1, 1, 1054), (66, 1, 1054)]);
}
