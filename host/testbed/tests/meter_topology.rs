//! Meters in the topology file: what is taken, and what is refused with its place.

use kuroshio_testbed::Topology;
use kuroshio_testbed::meter::{Direction, MAX_METERS};

const NETWORK: &str = r#"
name = "two"
[[router]]
name = "a"
[[router]]
name = "b"
[[host]]
name = "x"
[[host.port]]
name = "p0"
address = "10.0.0.1/24"
router = "a"
shape = "100Mbps"
[[host]]
name = "y"
[[host.port]]
name = "p0"
address = "10.0.0.2/24"
router = "b"
[[link]]
name = "l"
between = ["a", "b"]
capacity = "100Mbps"
one_way_delay = "1ms"
"#;

fn with(meters: &str) -> Result<Topology, String> {
    Topology::from_toml(&format!("{NETWORK}{meters}")).map_err(|e| e.to_string())
}

#[test]
fn meters_are_read() {
    let topology = with(
        r#"
        [[meter]]
        name = "one"
        at = "x/p0"
        direction = "shaped"
        filter = "tcp and (port 80 or port 443)"
        windows = ["500us", "1min"]
        keep = 5
        streams = 3
        [[meter]]
        name = "two"
        at = "l:b>a"
        "#,
    )
    .expect("a topology");
    let [one, two] = &topology.meters[..] else {
        panic!("{:?}", topology.meters)
    };
    assert_eq!(one.direction, Some(Direction::Shaped));
    assert_eq!((one.keep, one.streams, one.windows.len()), (Some(5), Some(3), 2));
    assert_eq!((two.at.as_str(), two.filter.as_str()), ("l:b>a", ""));
}

#[test]
fn what_is_wrong_is_refused_with_its_place() {
    for (meter, words) in [
        ("at = \"x/p0\"", "name"),
        ("name = \"m\"\nat = \"z/p0\"", "x/p0, y/p0, l:a>b, l:b>a"),
        ("name = \"m\"\nat = \"p0\"", "x/p0"),
        ("name = \"m\"\nat = \"l\"", "l:a>b"),
        (
            "name = \"m\"\nat = \"l:a>b\"\ndirection = \"sent\"",
            "link:from>to",
        ),
        ("name = \"m\"\nat = \"y/p0\"\ndirection = \"shaped\"", "no shaper"),
        ("name = \"m\"\nat = \"x/p0\"\ndirection = \"out\"", "received"),
        (
            "name = \"m\"\nat = \"x/p0\"\nfilter = \"tcp und udp\"",
            "character 5",
        ),
        ("name = \"m\"\nat = \"x/p0\"\nwindows = [\"1us\"]", "500us"),
        ("name = \"m\"\nat = \"x/p0\"\nwindows = [\"5\"]", "unit"),
        ("name = \"m\"\nat = \"x/p0\"\nkeep = 0", "65536"),
        ("name = \"m\"\nat = \"x/p0\"\nstreams = 65", "64"),
        ("name = \"m\"\nat = \"x/p0\"\nwidth = \"1s\"", "width"),
        ("name = \"a b\"\nat = \"x/p0\"", "letters"),
        (
            "name = \"m\"\nat = \"x/p0\"\n[[meter]]\nname = \"m\"\nat = \"y/p0\"",
            "twice",
        ),
    ] {
        let error = with(&format!("[[meter]]\n{meter}\n")).expect_err(meter);
        assert!(error.contains(words), "{meter}: {error}");
    }
    let many: String = (0..=MAX_METERS)
        .map(|n| format!("[[meter]]\nname = \"m{n}\"\nat = \"x/p0\"\n"))
        .collect();
    assert!(with(&many).expect_err("too many").contains("at most 64"));
}
