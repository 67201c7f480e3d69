//! The vectors of `core/vectors/`, whose README defines them.

use kuroshio_core::{
    pace::{ByteClockPacer, IfgShaper, Spacing, gap_packets, gap_packets_on_wire, ifg_bytes},
    units::{BitRate, FrameBytes, PicoDuration, PicoTime, Ratio, WireBytes},
    wan::{Link, LinkConfig, Stage},
    wire::LineRate,
};
use std::collections::BTreeMap;

/// A file's lines behind its header, each with its number and its fields.
fn rows<const N: usize>(text: &'static str, header: &str) -> Vec<(usize, [&'static str; N])> {
    let mut lines = text.lines().enumerate();
    assert_eq!(lines.next().map(|(_, line)| line), Some(header));
    let rows: Vec<_> = lines
        .map(|(index, line)| {
            let fields: Vec<_> = line.split(',').collect();
            (
                index + 1,
                fields
                    .try_into()
                    .unwrap_or_else(|f| panic!("line {}: {f:?}", index + 1)),
            )
        })
        .collect();
    assert!(rows.len() > 50, "vectors are missing");
    rows
}

/// Lines of one case, in order.
fn cases<const N: usize>(rows: Vec<(usize, [&'static str; N])>) -> Vec<Vec<(usize, [&'static str; N])>> {
    let mut cases: BTreeMap<u64, Vec<_>> = BTreeMap::new();
    for row in rows {
        cases.entry(number(row.1[0])).or_default().push(row);
    }
    cases.into_values().collect()
}

fn number(field: &str) -> u64 {
    field.parse().unwrap_or_else(|e| panic!("{field:?}: {e}"))
}

fn rate(field: &str) -> BitRate {
    BitRate::from_bps(number(field)).unwrap_or_else(|e| panic!("{e}"))
}

fn line(field: &str) -> LineRate {
    LineRate::new(rate(field))
}

fn frame(field: &str) -> FrameBytes {
    FrameBytes::new(number(field))
}

fn time(field: &str) -> PicoTime {
    PicoTime::from_ps(number(field))
}

#[test]
fn pacer() {
    let text = include_str!("../vectors/pacer.csv");
    for case in cases::<5>(rows(text, "case,rate_bps,now_ps,frame_bytes,start_ps")) {
        let mut pacer = ByteClockPacer::new(rate(case[0].1[1])).expect("a rate in range");
        for (at, [_, _, now, len, start]) in case {
            assert_eq!(
                pacer.depart(time(now), frame(len)).start,
                time(start),
                "line {at}"
            );
        }
    }
}

#[test]
fn ifg() {
    let text = include_str!("../vectors/ifg.csv");
    for (at, [wire, bps, len, gap]) in rows(text, "line_l1_bps,rate_bps,frame_bytes,gap_bytes") {
        let expected = WireBytes::new(number(gap));
        assert_eq!(
            ifg_bytes(frame(len), rate(bps), line(wire)),
            expected,
            "line {at}"
        );
    }
}

#[test]
fn shaper() {
    let text = include_str!("../vectors/shaper.csv");
    let header = "case,line_l1_bps,spacing,value,now_ps,frame_bytes,start_ps,end_ps";
    for case in cases::<8>(rows(text, header)) {
        let [_, wire, kind, value, ..] = case[0].1;
        let spacing = match kind {
            "rate_bps" => Spacing::Rate(rate(value)),
            "gap_bytes" => Spacing::Gap(WireBytes::new(number(value))),
            other => panic!("{other:?} is no spacing"),
        };
        let mut shaper = IfgShaper::new(line(wire), spacing);
        for (at, [_, _, _, _, now, len, start, end]) in case {
            let slot = shaper.depart(time(now), frame(len));
            assert_eq!((slot.start, slot.end), (time(start), time(end)), "line {at}");
        }
    }
}

#[test]
fn gap() {
    let text = include_str!("../vectors/gap.csv");
    let header = "kind,frame_bytes,target_bps,max_bps,limit_bytes,gap_frames,gap_frame_bytes,largest_bytes,\
                  smallest_bytes";
    for (at, [kind, len, target, max, limit, frames, bytes, largest, smallest]) in rows(text, header) {
        let gaps = match kind {
            "plain" => gap_packets(frame(len), rate(target), rate(max), frame(limit)),
            "on_wire" => gap_packets_on_wire(frame(len), rate(target), line(max), frame(limit)),
            other => panic!("{other:?} is no kind"),
        };
        let gaps = gaps.unwrap_or_else(|e| panic!("line {at}: {e}"));
        assert_eq!(
            (gaps.frames(), gaps.bytes()),
            (number(frames), frame(bytes)),
            "line {at}"
        );
        // The sizes fall by one byte at most, so the ends of the sequence tell all.
        let (first, last) = (gaps.clone().next(), gaps.last());
        assert_eq!(first.unwrap_or_default(), frame(largest), "line {at}");
        assert_eq!(last.unwrap_or_default(), frame(smallest), "line {at}");
    }
}

#[test]
fn link() {
    let text = include_str!("../vectors/link.csv");
    let header = "case,capacity_bps,wire_l1_bps,one_way_delay_ps,queue_bytes,event,now_ps,value,depart_ps";
    for case in cases::<9>(rows(text, header)) {
        let [_, capacity, wire, delay, queue, ..] = case[0].1;
        let config = LinkConfig {
            capacity: rate(capacity),
            wire: BitRate::new(number(wire)).map(LineRate::new),
            one_way_delay: PicoDuration::from_ps(number(delay)),
            queue_limit: frame(queue),
            loss: Ratio::ZERO,
        };
        let mut link = Link::new(config, 0);
        let mut expected = Vec::new();
        for (at, [_, _, _, _, _, event, now, value, depart]) in case {
            match event {
                "capacity_bps" => link.set_capacity(time(now), rate(value)),
                "frame_bytes" => {
                    let taken = link.handle_frame(time(now), frame(value), at);
                    assert_eq!(taken.is_err(), depart == "drop", "line {at}");
                    if taken.is_ok() {
                        expected.push((at, time(depart)));
                    }
                }
                other => panic!("{other:?} is no event"),
            }
        }
        let departures = std::iter::from_fn(|| link.poll(PicoTime::MAX)).map(|d| (d.token, d.at));
        assert_eq!(departures.collect::<Vec<_>>(), expected);
    }
}
