//! Topologies that are refused, with what the refusal says; and one of every feature.

use kuroshio_core::pace::Spacing;
use kuroshio_core::units::{BitRate, PicoDuration};
use kuroshio_testbed::Topology;

const GOOD: &str = r#"
name = "good"
seed = 7
[[router]]
name = "ra"
[[router]]
name = "rb"
[[host]]
name = "a"
sysctl = { "net.ipv4.tcp_sack" = "1" }
[[host.port]]
name = "p0"
mtu = "6000B"
wire = "200Mbps"
address = ["10.1.0.1/24", "fd00:1::1/64"]
router = "ra"
queue = "64MiB"
shape = "160Mbps"
shape_queue = "8MiB"
[[host]]
name = "b"
[[host.port]]
name = "p0"
mtu = "6000B"
address = ["10.1.0.2/24", "fd00:1::2/64"]
router = "rb"
[[link]]
name = "la"
between = ["ra", "rb"]
capacity = "468Mbps"
one_way_delay = "70.5ms"
queue = "1MiB"
loss = "0"
carries = ["10.1.0.0/24"]
[link.reverse]
capacity = "100Mbps"
[[link]]
name = "other"
between = ["ra", "rb"]
capacity = "1Gbps"
one_way_delay = "1ms"
"#;

#[test]
fn a_good_one_is_understood() {
    let t = Topology::from_toml(GOOD).expect("good");
    assert_eq!(t.port_names(), ["a/p0", "b/p0"]);
    assert_eq!(t.port_number("b/p0"), Some(1));
    assert_eq!(t.port_number("p0"), None, "two hosts have it");
    assert_eq!(
        t.link_names(),
        ["la:ra>rb", "la:rb>ra", "other:ra>rb", "other:rb>ra"]
    );
    assert_eq!(t.link_numbers("la"), [0, 1]);
    assert_eq!(t.link_numbers("la:rb>ra"), [1]);
    assert!(t.link_numbers("l").is_empty());
    let [there, back] = t.links[0].directions;
    assert_eq!(t.links[0].wan.each_ref().map(|w| w.plain()), [there, back]);
    assert_eq!(there.capacity, BitRate::from_mbps(468));
    assert_eq!(back.capacity, BitRate::from_mbps(100));
    assert_eq!(back.one_way_delay, PicoDuration::from_us(70_500));
    let shaper = t.hosts[0].ports[0].shaper.expect("shaped");
    assert_eq!(shaper.spacing, Spacing::Rate(BitRate::from_mbps(160)));
    assert!(t.hosts[1].ports[0].shaper.is_none());
}

/// What is replaced in the good one, by what, and words that the error must have.
const BAD: [(&str, &str, &[&str]); 34] = [
    ("name = \"good\"", "name = ", &["line 2"]),
    (
        "name = \"good\"",
        "name = \"bad name\"",
        &["topology name", "letters"],
    ),
    ("seed = 7", "sead = 7", &["sead", "seed"]),
    ("mtu = \"6000B\"", "mtu = 6000", &["mtu", "string"]),
    (
        "mtu = \"6000B\"",
        "mtu = \"6000\"",
        &["host \"a\", port \"p0\": mtu"],
    ),
    ("mtu = \"6000B\"", "mtu = \"100B\"", &["mtu", "1280B to 9216B"]),
    ("mtu = \"6000B\"", "mtu = \"9217B\"", &["9216B"]),
    (
        "mtu = \"6000B\"",
        "mtu = \"1500B\"",
        &["one mtu", "1500B and 6000B"],
    ),
    ("mtu = \"6000B\"", "speed = \"1Gbps\"", &["speed"]),
    ("wire = \"200Mbps\"", "wire = \"200\"", &["wire"]),
    ("wire = \"200Mbps\"", "wire = \"0bps\"", &["wire"]),
    ("wire = \"200Mbps\"", "wire = \"1Tbps\"", &["wire", "100Gbps"]),
    (
        "wire = \"200Mbps\"",
        "wire = \"100Mbps\"",
        &["shape", "more than the wire"],
    ),
    ("\"10.1.0.1/24\", ", "\"10.1.0.1\", ", &["address", "10.1.1.1/24"]),
    (
        "\"10.1.0.1/24\", ",
        "\"10.1.0.0/24\", ",
        &["address", "10.1.0.0/24"],
    ),
    ("\"10.1.0.1/24\", ", "\"10.1.0.2/24\", ", &["10.1.0.2", "also"]),
    ("router = \"ra\"", "router = \"rc\"", &["router", "rc", "ra, rb"]),
    ("queue = \"64MiB\"", "queue = \"64M\"", &["queue"]),
    ("queue = \"64MiB\"", "queue = \"5GiB\"", &["queue", "4GiB"]),
    (
        "shape = \"160Mbps\"",
        "shape = \"160Mbps\"\ngap = \"12B\"",
        &["shape and gap"],
    ),
    (
        "shape = \"160Mbps\"",
        "gap = \"frames\"",
        &["gap", "shape = RATE"],
    ),
    ("shape = \"160Mbps\"", "", &["shape_queue", "neither"]),
    (
        "name = \"p0\"\nmtu = \"6000B\"\nwire",
        "name = \"lo\"\nmtu = \"6000B\"\nwire",
        &["loopback"],
    ),
    (
        "name = \"p0\"\nmtu = \"6000B\"\nwire",
        "name = \"a-very-long-name\"\nmtu = \"6000B\"\nwire",
        &["15"],
    ),
    ("name = \"b\"", "name = \"a\"", &["host \"a\"", "twice"]),
    ("name = \"rb\"", "name = \"ra\"", &["router \"ra\"", "twice"]),
    (
        "between = [\"ra\", \"rb\"]\ncapacity = \"468Mbps\"",
        "between = [\"ra\", \"ra\"]\ncapacity = \"468Mbps\"",
        &["between", "different"],
    ),
    (
        "one_way_delay = \"70.5ms\"",
        "one_way_delay = \"70.5\"",
        &["link \"la\": one_way_delay"],
    ),
    ("one_way_delay = \"70.5ms\"", "one_way_delay = \"11s\"", &["10s"]),
    ("one_way_delay = \"70.5ms\"", "delay = \"70ms\"", &["delay"]),
    ("loss = \"0\"", "loss = \"101%\"", &["loss", "100%"]),
    ("carries = [\"10.1.0.0/24\"]", "", &["equally short", "carries"]),
    (
        "sysctl = { \"net.ipv4.tcp_sack\"",
        "sysctl = { \"kernel.panic\"",
        &["sysctl", "net.ipv4.tcp_sack"],
    ),
    (
        "[link.reverse]\ncapacity",
        "[link.reverse]\ncapacitor",
        &["capacitor"],
    ),
];

#[test]
fn bad_ones_are_refused_with_place_and_remedy() {
    for (from, to, words) in BAD {
        assert!(GOOD.contains(from), "{from:?} is not in the good one");
        let text = GOOD.replacen(from, to, 1);
        let error = Topology::from_toml(&text).expect_err(to).to_string();
        for word in words {
            assert!(error.contains(word), "{to:?}: {word:?} is not in: {error}");
        }
    }
}

#[test]
fn limits_are_kept() {
    assert!(Topology::from_toml(&" ".repeat(kuroshio_testbed::MAX_TEXT + 1)).is_err());
    let none = Topology::from_toml("name = \"x\"")
        .expect_err("no hosts")
        .to_string();
    assert!(none.contains("[[host]]"), "{none}");
    let mut many = String::from("name = \"x\"\n[[router]]\nname = \"r\"\n[[host]]\nname = \"h\"\n");
    for n in 0..=kuroshio_testbed::MAX_PORTS {
        many += &format!("[[host.port]]\nname = \"p{n}\"\naddress = \"10.0.{n}.1/24\"\nrouter = \"r\"\n");
    }
    let error = Topology::from_toml(&many).expect_err("65 ports").to_string();
    assert!(error.contains("at most 64"), "{error}");
}

#[test]
fn two_ports_of_a_host_in_one_subnet_are_refused() {
    let text = "name = \"x\"\n[[router]]\nname = \"r\"\n[[host]]\nname = \"h\"\n\
        [[host.port]]\nname = \"p\"\naddress = \"10.0.0.1/24\"\nrouter = \"r\"\n\
        [[host.port]]\nname = \"q\"\naddress = \"10.0.0.2/24\"\nrouter = \"r\"\n";
    let error = Topology::from_toml(text).expect_err("one subnet").to_string();
    assert!(error.contains("per subnet"), "{error}");
}

#[test]
fn routers_without_a_way_are_refused() {
    let text = "name = \"x\"\n[[router]]\nname = \"r\"\n[[router]]\nname = \"s\"\n\
        [[host]]\nname = \"h\"\n[[host.port]]\nname = \"p\"\naddress = \"10.0.0.1/24\"\nrouter = \"r\"\n\
        [[host]]\nname = \"i\"\n[[host.port]]\nname = \"p\"\naddress = \"10.0.0.2/24\"\nrouter = \"s\"\n";
    let error = Topology::from_toml(text).expect_err("no link").to_string();
    assert!(error.contains("no links join"), "{error}");
}

#[test]
fn switches_and_routers_are_kept_apart() {
    let text = |node: &str, link: &str| {
        format!(
            "name = \"x\"\n[[switch]]\nname = \"s\"\n[[switch]]\nname = \"t\"\n[[router]]\nname = \"r\"\n\
             [[host]]\nname = \"h\"\n[[host.port]]\nname = \"p\"\naddress = \"10.0.0.1/24\"\n{node}\n\
             [[link]]\nname = \"l\"\ncapacity = \"1Gbps\"\none_way_delay = \"1ms\"\n{link}\n"
        )
    };
    let good = Topology::from_toml(&text("switch = \"s\"", "between = [\"s\", \"t\"]")).expect("good");
    assert_eq!([0, 1, 2].map(|r| good.is_switch(r)), [false, true, true]);
    for (node, link, say) in [
        (
            "switch = \"s\"",
            "between = [\"s\", \"r\"]",
            "between a router and a switch",
        ),
        (
            "switch = \"r\"",
            "between = [\"s\", \"t\"]",
            "no switch \"r\", but s, t",
        ),
        (
            "router = \"s\"",
            "between = [\"s\", \"t\"]",
            "no router \"s\", but r",
        ),
        ("", "between = [\"s\", \"t\"]", "at a router or at a switch"),
        (
            "switch = \"s\"",
            "between = [\"s\", \"t\"]\ncarries = [\"10.0.0.0/24\"]",
            "leave carries out",
        ),
    ] {
        let error = Topology::from_toml(&text(node, link)).expect_err(say).to_string();
        assert!(error.contains(say), "{error}");
    }
}

#[test]
fn modes_and_threads_have_limits() {
    let head = |line: &str| format!("name = \"x\"\n{line}\n[[host]]\nname = \"h\"\n");
    let segment = Topology::from_toml(&head("mode = \"segment\"")).expect("good");
    assert_eq!(segment.mode.name(), "segment");
    assert_eq!(
        Topology::from_toml(&head("threads = 4")).expect("good").threads,
        4
    );
    for (line, say) in [
        ("mode = \"burst\"", "frame or segment"),
        ("quantum = \"50us\"", "segment mode only"),
        ("mode = \"segment\"\nquantum = \"101us\"", "50us to 100us"),
        ("mode = \"segment\"\nquantum = \"60\"", "unit"),
        ("threads = 0", "1 to 16"),
        ("threads = 17", "1 to 16"),
    ] {
        let error = Topology::from_toml(&head(line)).expect_err(say).to_string();
        assert!(error.contains(say), "{line}: {error}");
    }
}
