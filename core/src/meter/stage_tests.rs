use super::*;
use crate::units::{PicoDuration, PicoTime};
use crate::wire::{FlowKey, LineRate};
use alloc::{format, string::ToString, vec, vec::Vec};
use proptest::prelude::*;

fn key(text: &str, ports: (u16, u16)) -> StreamKey {
    let mut words = text.split(' ');
    let mut next = || words.next().expect("a word");
    let protocol = match next() {
        "tcp" => 6,
        "udp" => 17,
        _ => 1,
    };
    let source: core::net::IpAddr = next().parse().expect("address");
    let destination = next().parse().expect("address");
    StreamKey {
        vlan: None,
        ethertype: if source.is_ipv4() { 0x0800 } else { 0x86dd },
        flow: Some(FlowKey {
            protocol,
            source,
            destination,
            source_port: ports.0,
            destination_port: ports.1,
        }),
    }
}

#[test]
fn filters_take_what_they_say() {
    let tcp = key("tcp 10.0.1.7 10.0.2.9", (40_000, 5_001));
    let udp = key("udp 10.0.2.9 10.0.1.7", (53, 40_000));
    let six = key("tcp fd00:1::1 fd00:1::2", (1, 2));
    let ping = key("icmp 10.0.1.7 10.0.2.9", (0, 0));
    let tagged = StreamKey { vlan: Some(5), ..tcp };
    let arp = StreamKey {
        vlan: None,
        ethertype: 0x0806,
        flow: None,
    };
    let all = [tcp, udp, six, ping, tagged, arp];
    for (text, taken) in [
        ("", "tuspga"),
        ("tcp", "tsg"),
        ("tcp and dst port 5001 and src 10.0.1.0/24", "tg"),
        ("port 40000", "tug"),
        ("dst port 40000", "u"),
        ("src net 10.0.1.7/32", "tpg"),
        ("net 0.0.0.0/0", "tupg"),
        ("host fd00:1::2", "s"),
        ("ip6 or arp", "sa"),
        ("not ip", "sa"),
        ("! ( tcp || udp ) && ip", "p"),
        ("!(tcp||udp)&&ip", "p"),
        ("vlan", "g"),
        ("vlan 5 and tcp", "g"),
        ("vlan 6", ""),
        ("proto 17", "u"),
        ("ether proto 0x0806", "a"),
        ("portrange 5000-5002", "tg"),
        ("icmp or tcp and udp", "p"),
        ("not not tcp", "tsg"),
        ("src port 0", ""),
    ] {
        let filter: Filter = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
        for (key, letter) in all.iter().zip("tuspga".chars()) {
            assert_eq!(filter.takes(key), taken.contains(letter), "{text}: {key}");
        }
        assert_eq!(filter.to_string(), text);
    }
}

#[test]
fn a_bad_filter_says_where() {
    for (text, at, words) in [
        ("tcq", 0, "tcp"),
        ("tcp and", 7, "a term"),
        ("tcp udp", 4, "and, or or the end"),
        ("tcp and dst port 70000", 17, "0 to 65535"),
        ("src 10.0.1.0/33", 4, "0 to 32 bits"),
        ("host 10.0.1.0/24", 5, "say net"),
        ("net 10.0.1.0", 4, "10.0.1.0/24"),
        ("(tcp", 4, "a )"),
        ("(tcp udp", 5, "and, or or )"),
        ("portrange 9-3", 10, "5001-5010"),
        ("vlan 4096", 5, "0 to 4095"),
        ("ether tcp", 6, "proto"),
        ("src", 3, "host, net"),
        ("src prt 5", 4, "host, net, port"),
        ("\u{fc}ber", 0, "a term"),
        (")", 0, "a term"),
    ] {
        let error = text.parse::<Filter>().expect_err(text);
        assert_eq!(error.at, at, "{text}: {error}");
        assert!(error.to_string().contains(words), "{text}: {error}");
    }
    let deep = format!("{}tcp{}", "(".repeat(33), ")".repeat(33));
    assert!(
        deep.parse::<Filter>()
            .expect_err("deep")
            .problem
            .contains("deeper than 32")
    );
    let long = format!("tcp{}", " or tcp".repeat(64));
    assert!(long.parse::<Filter>().expect_err("long").problem.contains("128"));
    let fits = format!("tcp{}", " or tcp".repeat(63));
    assert!(fits.parse::<Filter>().is_ok());
    assert!(
        "x".repeat(1_025)
            .parse::<Filter>()
            .expect_err("bytes")
            .problem
            .contains("1024")
    );
}

#[test]
fn the_key_of_any_bytes() {
    let mut frame = vec![0u8; 12];
    frame.extend([0x81, 0x00, 0x60, 0x05, 0x08, 0x06, 0, 1]);
    let (key, payload) = StreamKey::of(&frame);
    assert_eq!(
        (key.vlan, key.ethertype, key.flow, payload),
        (Some(5), 0x0806, None, 0)
    );
    for end in 0..frame.len() {
        let (cut, _) = StreamKey::of(&frame[..end]);
        assert!(cut.flow.is_none());
    }
    assert_eq!(key.to_string(), "vlan 5 ethertype 0x0806");
}

fn departed(at: u64, entered: u64, bytes: u32) -> Event {
    Event {
        at: PicoTime::from_ps(at),
        what: What::Departed,
        frame_bytes: bytes,
        payload_bytes: bytes - 58,
        entered: Some(PicoTime::from_ps(entered)),
        queued_bytes: 0,
    }
}

#[test]
fn distances_delay_and_jitter_are_exact() {
    let line: LineRate = "1Gbps".parse().expect("rate");
    let mut spread = Spread::new(Some(line));
    // 1518 bytes and 8 of preamble at 8 ns a byte; a gap of 12, then one of 100.
    let frame = 1_526 * 8_000;
    let ends = [frame, 2 * frame + 96_000, 3 * frame + 96_000 + 800_000];
    for (end, delay) in ends.into_iter().zip([7_000_000, 7_016_000, 7_000_000]) {
        spread.add(&departed(end + 100_000_000, end + 100_000_000 - delay, 1_518));
    }
    let (gap, end) = (spread.gap_ps().summary(), spread.end_to_end_ps().summary());
    assert_eq!((gap.count, gap.min, gap.max), (2, 96_000, 800_000));
    assert_eq!((end.min, end.max), (frame + 96_000, frame + 800_000));
    assert_eq!(spread.start_to_start_ps().summary(), end);
    // J = 0 + 16000/16 = 1000, then 1000 + (16000 - 1000)/16 = 1937.5.
    assert_eq!(spread.jitter_ps(), 1_937);
    assert_eq!(spread.delay_ps().max(), Some(7_016_000));
    // Without a wire only ends are known.
    let mut bare = Spread::new(None);
    ends.into_iter()
        .for_each(|end| bare.add(&departed(end, 0, 1_518)));
    assert_eq!((bare.gap_ps().count(), bare.end_to_end_ps().count()), (0, 2));
}

fn config(filter: &str, widths: &[u64], keep: usize, streams: usize) -> MeterConfig {
    MeterConfig {
        filter: filter.parse().expect(filter),
        widths: widths.iter().map(|us| PicoDuration::from_us(*us)).collect(),
        keep,
        streams,
    }
}

#[test]
fn limits_of_a_meter() {
    for (bad, words) in [
        (config("", &[], 1, 0), "1 to 8"),
        (config("", &[1_000; 9], 1, 0), "1 to 8"),
        (config("", &[499], 1, 0), "500us to 3600s"),
        (config("", &[3_600_000_001], 1, 0), "500us to 3600s"),
        (config("", &[500], 0, 0), "1 to 65536"),
        (config("", &[500], 65_537, 0), "1 to 65536"),
        (config("", &[500], 1, 65), "0 to 64"),
    ] {
        let error = bad.check().expect_err(words);
        assert!(error.contains(words), "{error}");
    }
    let largest = config("", &[500; 8], 65_536, 64);
    assert_eq!(largest.check(), Ok(()));
    assert_eq!(largest.windows(), 65 * 8 * 65_536);
}

#[test]
fn streams_beyond_the_room_are_in_the_sum_alone() {
    let mut meter = StageMeter::new(config("tcp", &[500], 8, 2), None);
    let keys: Vec<StreamKey> = (1..=3).map(|p| key("tcp 10.0.0.1 10.0.0.2", (p, 80))).collect();
    let udp = key("udp 10.0.0.1 10.0.0.2", (1, 80));
    for (number, key) in (0u32..).zip(&keys) {
        meter.add(number, || Some(*key), &departed(1_000, 0, 100));
        // The key is asked for once.
        meter.add(number, || panic!("asked again"), &departed(2_000, 0, 100));
    }
    meter.add(3, || Some(udp), &departed(1_000, 0, 100));
    meter.add(4, || None, &departed(1_000, 0, 100));
    let lost = Event {
        what: What::Vanished(Cause::Lost),
        ..departed(5_000, 0, 100)
    };
    // A lost frame belongs to its stream.
    meter.add(1, || panic!("asked again"), &lost);
    let total = |n: usize| meter.series()[n].windows[0].total().departed_frames;
    assert_eq!(meter.series().len(), 3);
    assert_eq!([total(0), total(1), total(2)], [6, 2, 2]);
    assert_eq!((meter.unlisted(), meter.unassigned(), meter.events()), (2, 1, 7));
    let dropped = |n: usize| meter.series()[n].windows[0].total().dropped_frames;
    let [none, one] = [[0; 5], [0, 0, 0, 0, 1]];
    assert_eq!([dropped(0), dropped(1), dropped(2)], [one, none, one]);
    let mut all = StageMeter::new(config("", &[500], 8, 0), None);
    all.add(u32::MAX, || None, &lost);
    assert_eq!(all.series()[0].windows[0].total().dropped_frames, one);
}

#[test]
fn a_window_closes_when_the_mark_passes_its_end() {
    let mut windows = RollingWindows::new(PicoDuration::from_ps(10), 2);
    let ends = |w: &RollingWindows| {
        w.closed(0)
            .map(|(i, s)| (i, s.departed_frames))
            .collect::<Vec<_>>()
    };
    for at in [19, 3, 25, 9, 10] {
        windows.add(&departed(at, 0, 100));
    }
    windows.close_until(PicoTime::from_ps(9));
    assert_eq!(ends(&windows), []);
    windows.close_until(PicoTime::from_ps(10));
    assert_eq!(ends(&windows), [(0, 2)]);
    windows.close_until(PicoTime::from_ps(39));
    assert_eq!(ends(&windows), [(1, 2), (2, 1)]);
    assert_eq!(windows.discarded().departed_frames, 2);
    assert_eq!((windows.kept_from(), windows.next_index()), (1, 3));
    windows.add(&departed(5, 0, 100));
    assert_eq!(windows.late(), 1);
    assert_eq!(windows.total().departed_frames, 6);
    assert_eq!(windows.closed(2).count(), 1);
}

fn event() -> impl Strategy<Value = Event> {
    let what = prop_oneof![
        Just(What::Arrived),
        (0usize..5).prop_map(|n| What::Refused(Cause::ALL[n])),
        (0usize..5).prop_map(|n| What::Vanished(Cause::ALL[n])),
        Just(What::Departed),
    ];
    (0u64..5_000, what, 64u32..9_000, 0u64..9_000, 0u64..100_000).prop_map(|(at, what, len, back, queued)| {
        Event {
            at: PicoTime::from_ps(at + 10_000),
            what,
            frame_bytes: len,
            payload_bytes: len - 60,
            entered: (back > 100).then(|| PicoTime::from_ps(at + 10_000 - back)),
            queued_bytes: queued,
        }
    })
}

proptest! {
    /// In any order above the mark, of any width, with any memory: nothing is lost and nothing is counted twice.
    #[test]
    fn the_windows_sum_up_to_the_counters(
        mut events in prop::collection::vec(event(), 1..200),
        width in 1u64..3_000, keep in 1usize..9, step in 1usize..20, disorder in 0usize..12,
    ) {
        events.sort_by_key(|e| e.at);
        let mut shuffled = events.clone();
        // Not older than the mark: it follows the oldest event that is still to come.
        for at in 0..shuffled.len() {
            let other = (at + disorder).min(shuffled.len() - 1);
            shuffled.swap(at, other);
        }
        let mut windows = RollingWindows::new(PicoDuration::from_ps(width), keep);
        let mut seen = Vec::new();
        for (n, event) in shuffled.iter().enumerate() {
            windows.add(event);
            if n % step == 0 && let Some(mark) = shuffled[n + 1..].iter().map(|e| e.at).min() {
                windows.close_until(mark);
                let from = seen.last().map_or(0, |(i, _): &(u64, Sum)| i + 1);
                seen.extend(windows.closed(from).map(|(i, s)| (i, *s)));
            }
        }
        let mut expected = Sum::default();
        events.iter().for_each(|e| expected.add(e));
        prop_assert_eq!(windows.late(), 0);
        prop_assert_eq!(windows.total(), expected);
        // Each closed window is the sum of its own events.
        for (index, sum) in seen {
            let mut own = Sum::default();
            events.iter().filter(|e| e.at.as_ps() / width == index).for_each(|e| own.add(e));
            prop_assert_eq!(sum, own, "window {}", index);
        }
        windows.close_until(PicoTime::MAX);
        prop_assert_eq!(windows.closed(0).count().min(keep), windows.closed(0).count());
        prop_assert_eq!(windows.total(), expected);
    }

    #[test]
    fn any_text_is_a_filter_or_an_error(text in "([a-z]{2,4}|[()!/.0-9 &|]| and | or | not | src | port | tcp ){0,40}") {
        if let Err(e) = text.parse::<Filter>() {
            prop_assert!(e.at <= text.len());
        }
    }
}
