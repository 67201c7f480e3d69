//! What is read from a client, and what is refused.

use super::*;
use crate::protocol::{COOKIE_BYTES, Cookie, State, parse_json};
use crate::results::{Results, StreamResult};
use proptest::prelude::*;

fn read(text: &str) -> Result<Params, String> {
    let object = parse_json(text.as_bytes()).map_err(|e| e.to_string())?;
    Params::from_json(&object).map_err(|e| e.to_string())
}

/// What iperf 3.12 sends for `iperf3 -c HOST -P 2 -R -O 1 -t 5 -C cubic`.
const IPERF: &str = r#"{"tcp":true,"omit":1,"time":5,"num":0,"blockcount":0,"parallel":2,"reverse":true,
    "len":131072,"pacing_timer":1000,"congestion":"cubic","client_version":"3.12"}"#;

#[test]
fn iperf3_s_parameters_are_understood() {
    let p = read(IPERF).expect("parameters");
    assert_eq!((p.protocol, p.direction), (Protocol::Tcp, Direction::Reverse));
    assert_eq!((p.streams, p.omit_s, p.block()), (2, 1, 131_072));
    assert_eq!(p.length, Length::Time(5_000_000_000));
    assert_eq!(p.congestion.as_deref(), Some("cubic"));
    assert_eq!(p.pace, Pace::None);
    assert!(!p.extension);
    let udp =
        read(r#"{"udp":true,"time":0,"num":1e6,"len":1448,"bandwidth":1048576,"udp_counters_64bit":1}"#)
            .expect("parameters");
    assert_eq!(
        (udp.protocol, udp.length),
        (Protocol::Udp, Length::Bytes(1_000_000))
    );
    assert!(udp.wide_counters);
    assert_eq!(
        udp.pace,
        Pace::Goodput(BitRate::from_bps(1_048_576).expect("rate"))
    );
    let both = read(r#"{"bandwidth":900,"fqrate":800}"#).expect("parameters");
    assert_eq!(both.pace, Pace::Goodput(BitRate::from_bps(800).expect("rate")));
    let blocks = read(r#"{"blockcount":3,"len":1000}"#).expect("parameters");
    assert_eq!(blocks.length, Length::Bytes(3000));
    let own = read(r#"{"fqrate":800,"kuroshio":{"stream_rate_bps":900}}"#).expect("parameters");
    assert_eq!(own.pace, Pace::Frame(BitRate::from_bps(900).expect("rate")));
}

#[test]
fn what_means_nothing_or_is_too_much_is_refused() {
    let table = [
        ("", "JSON"),
        ("[]", "not an object"),
        ("7", "not an object"),
        (r#"{"tcp":true,"udp":true}"#, "both tcp and udp"),
        (r#"{"sctp":true}"#, "SCTP"),
        (r#"{"reverse":true,"bidirectional":true}"#, "both reverse"),
        (r#"{"parallel":129}"#, "parallel 129, at most 128"),
        (r#"{"parallel":-1}"#, "parallel: -1 is not a whole number"),
        (r#"{"parallel":1.5}"#, "parallel: 1.5 is not"),
        (r#"{"parallel":"2"}"#, "parallel: \"2\" is not"),
        (r#"{"omit":601}"#, "omit 601, at most 600"),
        (r#"{"time":86401}"#, "time 86401, at most 86400"),
        (r#"{"num":1e30}"#, "num: "),
        (r#"{"len":1048577}"#, "len 1048577, at most 1048576"),
        (r#"{"udp":true,"len":65508}"#, "len 65508, at most 65507"),
        (r#"{"udp":true,"len":15}"#, "len 15, at least 16"),
        (r#"{"window":1073741825}"#, "window 1073741825"),
        (r#"{"MSS":87}"#, "MSS below 88"),
        (r#"{"MSS":32768}"#, "MSS 32768"),
        (
            r#"{"congestion":"a name that is too long"}"#,
            "congestion: not a text",
        ),
        (r#"{"congestion":"a\u0000b"}"#, "congestion: not a text"),
        (r#"{"congestion":7}"#, "congestion: not a text"),
        (r#"{"kuroshio":{"stream_rate_bps":-1}}"#, "stream_rate_bps: -1"),
    ];
    for (text, why) in table {
        let e = read(text).expect_err(text);
        assert!(e.contains(why), "{text}: {e}");
    }
    let deep = format!("{}{}", "{\"a\":".repeat(100_000), "}".repeat(100_000));
    assert!(read(&deep).is_err());
}

#[test]
fn states_are_the_bytes_of_iperf_api_h() {
    let known: Vec<u8> = (0..=255).filter(|b| State::from_byte(*b).is_some()).collect();
    assert_eq!(known, [1, 2, 4, 9, 10, 11, 12, 13, 14, 15, 16, 254, 255]);
    for byte in known {
        assert_eq!(State::from_byte(byte).map(State::to_byte), Some(byte));
    }
    assert_eq!(State::AccessDenied.to_byte(), 255);
}

#[test]
fn cookies_are_random_and_checked() {
    let (a, b) = (Cookie::random().expect("a"), Cookie::random().expect("b"));
    assert_ne!(a, b);
    assert_eq!(Cookie::from_bytes(*a.as_bytes()), Some(a));
    assert_eq!(a.text().len(), COOKIE_BYTES - 1);
    assert_eq!(Cookie::from_bytes([b'a'; COOKIE_BYTES]), None);
    assert_eq!(Cookie::from_bytes([0; COOKIE_BYTES]), None);
}

fn any_params() -> impl Strategy<Value = Params> {
    let length = prop_oneof![
        (1..MAX_TIME_S).prop_map(|s| Length::Time(s * 1_000_000_000)),
        (1..u64::MAX).prop_map(Length::Bytes),
    ];
    let direction = prop_oneof![
        Just(Direction::Forward),
        Just(Direction::Reverse),
        Just(Direction::Both)
    ];
    let pace = prop_oneof![
        Just(Pace::None),
        (1..u64::MAX).prop_map(|bps| Pace::Frame(BitRate::new(bps).unwrap_or(BitRate::MIN)))
    ];
    let numbers = (
        1..=MAX_STREAMS,
        0..=MAX_OMIT_S,
        16..=65_507u32,
        1..=1u32 << 30,
        88..=32_767u32,
    );
    (any::<[bool; 6]>(), direction, length, pace, numbers).prop_map(|(flags, direction, length, pace, n)| {
        let [udp, nodelay, zerocopy, wide, some, follow] = flags;
        Params {
            protocol: if udp { Protocol::Udp } else { Protocol::Tcp },
            direction,
            streams: n.0,
            omit_s: n.1,
            length,
            block_bytes: Some(n.2),
            window_bytes: some.then_some(n.3),
            mss_bytes: some.then_some(n.4),
            congestion: some.then(|| "cubic".to_owned()),
            pace,
            follow_window: follow && !udp,
            nodelay,
            zerocopy: zerocopy && !udp,
            wide_counters: wide && udp,
            title: some.then(|| "a title".to_owned()),
            extension: true,
        }
    })
}

/// JSON of the members that either side reads, with values of any kind.
fn any_object() -> impl Strategy<Value = Value> {
    const KEYS: [&str; 24] = [
        "tcp",
        "udp",
        "sctp",
        "omit",
        "time",
        "num",
        "blockcount",
        "parallel",
        "reverse",
        "bidirectional",
        "len",
        "window",
        "MSS",
        "congestion",
        "bandwidth",
        "fqrate",
        "kuroshio",
        "title",
        "cpu_util_total",
        "sender_has_retransmits",
        "streams",
        "id",
        "bytes",
        "retransmits",
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        (0..300u64).prop_map(Value::from),
        ".{0,20}".prop_map(Value::from),
    ];
    let value = leaf.prop_recursive(3, 24, 6, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::vec((0..KEYS.len(), inner), 0..4)
                .prop_map(|v| v.into_iter().map(|(k, v)| (KEYS[k].to_owned(), v)).collect()),
        ]
    });
    proptest::collection::vec((0..KEYS.len(), value), 0..8)
        .prop_map(|v| v.into_iter().map(|(k, v)| (KEYS[k].to_owned(), v)).collect())
}

proptest! {
    #[test]
    fn parameters_are_read_back(p in any_params()) {
        prop_assert_eq!(Params::from_json(&p.to_json((p.pace != Pace::None).then_some(1000))).expect("own parameters"), p);
    }

    #[test]
    fn no_object_makes_a_parser_panic(object in any_object()) {
        if let Ok(p) = Params::from_json(&object) {
            prop_assert!(p.all_streams() <= 2 * MAX_STREAMS && p.block() <= MAX_BLOCK_BYTES);
        }
        if let Ok(r) = Results::from_json(&object) {
            prop_assert!(r.cpu.total.is_finite());
        }
    }

    #[test]
    fn no_bytes_make_the_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(object) = parse_json(&bytes) {
            let _ = Params::from_json(&object);
        }
    }

    #[test]
    fn results_are_read_back(
        ids in proptest::collection::vec((1..300u32, 0..1u64 << 53, proptest::option::of(0..1u64 << 40)), 0..9),
        sender in any::<Option<bool>>(),
    ) {
        let results = Results {
            sender_has_retransmits: sender,
            congestion: Some("bbr".to_owned()),
            streams: ids
                .into_iter()
                .map(|(id, bytes, retransmits)| StreamResult { id, bytes, retransmits, ..StreamResult::default() })
                .collect(),
            ..Results::default()
        };
        prop_assert_eq!(Results::from_json(&results.to_json()).expect("own results"), results);
    }
}
