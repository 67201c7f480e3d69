//! What the traffic generator takes from files and from the network.

use kuroshio_core::capacity::{Arrival, digest};
use kuroshio_core::traffic::{
    MAX_FRAME, MIN_FRAME, Pattern, Schedule, Sizes, Stamp, StreamTally, Timing, parse_list,
};
use kuroshio_core::units::{FrameBytes, Ratio};
use kuroshio_gen::{Recording, fuzz_lines};

use super::Input;

/// Bytes as a recording, and as the rest of one whose header is right: what is read can be scheduled.
pub(super) fn recording(data: &[u8]) {
    let pcap = [
        0x4d, 0x3c, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0,
    ];
    let section = [
        0x0a, 0x0d, 0x0d, 0x0a, 28, 0, 0, 0, 0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0, 255, 255, 255, 255, 255,
        255, 255, 255, 28, 0, 0, 0, 1, 0, 0, 0, 20, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 20, 0, 0, 0,
    ];
    let scale = Ratio::new(3, 7).expect("a ratio");
    for bytes in [data, &[&pcap[..], data].concat(), &[&section[..], data].concat()] {
        let Ok(recording) = Recording::parse(bytes, scale) else {
            continue;
        };
        assert_eq!(recording.entries.len(), recording.frames.len());
        let sizes = recording.entries.iter().map(|e| e.len.get());
        assert!(sizes.clone().all(|len| (MIN_FRAME..=MAX_FRAME).contains(&len)));
        play(recording.entries);
    }
}

/// A list that is read has a schedule whose times do not fall.
pub(super) fn list(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for text in [&*text, &format!("{text}us 64B\n1us,1518B")] {
        if let Ok(entries) = parse_list(text) {
            play(entries);
        }
    }
}

fn play(entries: Vec<kuroshio_core::traffic::Entry>) {
    let timing = Timing::List {
        entries: entries.into(),
        repeat: false,
    };
    let pattern = Pattern {
        timing,
        sizes: Sizes::Imix,
        streams: 3,
        seed: 1,
        time: None,
        frames: Some(1_000),
    };
    let schedule = Schedule::new(pattern).expect("what was read is valid");
    let mut last = None;
    for departure in schedule {
        assert!(last.is_none_or(|at| at <= departure.at) && departure.stream < 3);
        last = Some(departure.at);
    }
}

/// A payload as it came; then stamps of any content into a tally and a digest.
pub(super) fn stamp(data: &[u8]) {
    if let Some(stamp) = Stamp::from_payload(data) {
        assert_eq!(stamp.to_bytes(), data[..stamp.to_bytes().len()]);
    }
    let mut input = Input(data);
    let (mut tally, mut arrivals, mut taken) = (StreamTally::new(), Vec::new(), 0u64);
    while input.more() {
        let stamp = Stamp {
            run: input.byte() % 64,
            stream: input.below(1_024) as u16,
            sequence: input.number() as u32,
            sent_ns: input.number(),
        };
        assert_eq!(Stamp::from_payload(&stamp.to_bytes()), Some(stamp));
        let received_ns = input.number();
        tally.handle(&stamp, received_ns, input.below(9_019));
        arrivals.push(Arrival {
            number: u64::from(stamp.sequence),
            sent_ns: stamp.sent_ns,
            received_ns,
        });
        taken += 1;
    }
    let report = tally.report(None);
    assert_eq!(report.received + report.duplicates + report.old, taken);
    assert!(digest(&mut arrivals, FrameBytes::new(1_518)).received <= taken);
}

/// A line of either side of the control connection.
pub(super) fn control(data: &[u8]) {
    fuzz_lines(data);
    let digest = format!(
        "{{\"answer\":\"digest\",\"received\":{}}}",
        String::from_utf8_lossy(data)
    );
    fuzz_lines(digest.as_bytes());
}
