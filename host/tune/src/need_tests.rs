//! Hosts of given facts, and what they are told.

use super::*;
use proptest::prelude::*;

fn facts(pairs: &[(&str, &str)]) -> Facts {
    let parameter = |value: &str| Parameter {
        value: value.to_owned(),
        writable: true,
    };
    Facts {
        sysctls: pairs
            .iter()
            .map(|(n, v)| ((*n).to_owned(), parameter(v)))
            .collect(),
        link: None,
        memory_bytes: Some(64 << 30),
        page_bytes: 4096,
    }
}

fn request(rate_mbps: u32, rtt_ms: u64) -> Request {
    Request {
        rate: BitRate::from_mbps(rate_mbps),
        rtt: PicoDuration::from_ms(rtt_ms),
        streams: 1,
        mtu: None,
    }
}

fn item<'a>(need: &'a Need, name: &str) -> &'a Item {
    need.items.iter().find(|i| i.name == name).expect(name)
}

#[test]
fn a_host_as_it_comes_is_told_everything() {
    let facts = facts(&[
        ("net.ipv4.tcp_rmem", "4096 131072 6291456"),
        ("net.ipv4.tcp_wmem", "4096 16384 4194304"),
        ("net.ipv4.tcp_mem", "100000 133000 200000"),
        ("net.core.rmem_max", "212992"),
        ("net.core.netdev_max_backlog", "1000"),
        ("net.ipv4.tcp_congestion_control", "reno"),
        ("net.ipv4.tcp_available_congestion_control", "reno cubic bbr"),
        ("net.ipv4.tcp_sack", "1"),
        ("net.ipv4.tcp_timestamps", "0"),
    ]);
    let need = need(&request(10_000, 200), &facts);
    assert_eq!(need.window_bytes, 250_000_000);
    assert_eq!(
        (need.socket_buffer_bytes, need.stream_buffer_bytes),
        (750_000_000, 750_000_000)
    );
    let wanted = |name| item(&need, name).wanted.as_str();
    assert_eq!(wanted("net.ipv4.tcp_rmem"), "4096 131072 750000000");
    assert_eq!(wanted("net.ipv4.tcp_wmem"), "4096 16384 750000000");
    // 750 MB in pages of 4 KiB, and half as much above the pressure.
    assert_eq!(wanted("net.ipv4.tcp_mem"), "137328 183106 274659");
    assert_eq!(wanted("net.core.rmem_max"), "750000000");
    // 30 ms of 10 Gbps in frames of 1518 bytes.
    assert_eq!(wanted("net.core.netdev_max_backlog"), "24704");
    assert_eq!(wanted("net.ipv4.tcp_congestion_control"), "cubic");
    assert!(item(&need, "net.ipv4.tcp_sack").ok);
    let timestamps = item(&need, "net.ipv4.tcp_timestamps");
    assert!(!timestamps.ok && timestamps.change.is_some());
    assert_eq!(
        timestamps.command.as_deref(),
        Some("sysctl -w net.ipv4.tcp_timestamps=\"1\"")
    );
    // Not to be read here: told, not changed.
    let missing = item(&need, "net.core.wmem_max");
    assert!(!missing.ok && missing.change.is_none() && missing.command.is_some());
    assert!(need.notes.iter().any(|n| n.contains("no interface")));
}

#[test]
fn a_host_that_has_it_all_is_left_alone() {
    let mut facts = facts(&[
        ("net.ipv4.tcp_rmem", "4096 131072 750000000"),
        ("net.ipv4.tcp_wmem", "4096 16384 900000000"),
        ("net.ipv4.tcp_mem", "200000 183106 400000"),
        ("net.core.rmem_max", "750000000"),
        ("net.core.wmem_max", "750000001"),
        ("net.core.netdev_max_backlog", "24704"),
        ("net.ipv4.tcp_congestion_control", "bbr"),
    ]);
    for (name, wanted, _) in SWITCHES {
        let value = wanted.to_owned();
        facts.sysctls.insert(
            name.to_owned(),
            Parameter {
                value,
                writable: true,
            },
        );
    }
    facts.link = Some(LinkFacts {
        dev: "eth0".into(),
        mtu: Some(9000),
        txqueuelen: Some(9_900),
        qdisc: Some("fq".into()),
        offloads: vec![("tso".into(), true)],
    });
    let need = need(
        &Request {
            mtu: Some(1500),
            ..request(10_000, 200)
        },
        &facts,
    );
    let lacking: Vec<&Item> = need.items.iter().filter(|i| !i.ok).collect();
    assert!(lacking.is_empty(), "{lacking:?}");
    assert!(
        need.items
            .iter()
            .all(|i| i.change.is_none() && i.command.is_none())
    );
    assert_eq!(need.notes, Vec::<String>::new());
    // One byte less is not enough.
    let rmem = facts.sysctls.get_mut("net.ipv4.tcp_rmem").expect("there");
    rmem.value = "4096 131072 749999999".into();
    assert!(!item(&super::need(&request(10_000, 200), &facts), "net.ipv4.tcp_rmem").ok);
}

#[test]
fn the_interface_is_changed_where_that_cannot_cut_it_off() {
    let mut facts = facts(&[]);
    facts.link = Some(LinkFacts {
        dev: "eth0".into(),
        mtu: Some(1500),
        txqueuelen: Some(1000),
        qdisc: Some("pfifo_fast".into()),
        offloads: vec![("tso".into(), false), ("gro".into(), true)],
    });
    let told = need(&request(10_000, 200), &facts);
    let queue = item(&told, "eth0 txqueuelen");
    assert_eq!(
        queue.command.as_deref(),
        Some("ip link set dev eth0 txqueuelen 9882")
    );
    assert!(queue.change.is_some());
    let mtu = item(&told, "eth0 mtu");
    assert_eq!((mtu.wanted.as_str(), mtu.change.is_some()), ("9000", false));
    assert!(
        item(&told, "eth0 offloads")
            .command
            .as_deref()
            .is_some_and(|c| c.starts_with("ethtool -K eth0"))
    );
    assert!(!item(&told, "eth0 qdisc").ok);
    let told = need(
        &Request {
            mtu: Some(9000),
            ..request(10_000, 200)
        },
        &facts,
    );
    let mtu = item(&told, "eth0 mtu");
    assert_eq!(
        mtu.change,
        Some(Change::Mtu {
            dev: "eth0".into(),
            value: 9000
        })
    );
}

#[test]
fn too_much_for_one_connection_or_for_the_memory_is_said() {
    let mut facts = facts(&[("net.ipv4.tcp_mem", "1 2 3")]);
    let told = need(&request(100_000, 200), &facts);
    assert_eq!(told.stream_buffer_bytes, MAX_BUFFER_BYTES);
    assert!(
        told.notes.iter().any(|n| n.contains("use 4 streams")),
        "{:?}",
        told.notes
    );
    let told = need(
        &Request {
            streams: 4,
            ..request(100_000, 200)
        },
        &facts,
    );
    assert_eq!(told.stream_buffer_bytes, 1_875_000_000);
    assert!(
        !told.notes.iter().any(|n| n.contains("streams")),
        "{:?}",
        told.notes
    );
    assert!(item(&told, "net.ipv4.tcp_mem").change.is_some());
    facts.memory_bytes = Some(8 << 30);
    let told = need(
        &Request {
            streams: 4,
            ..request(100_000, 200)
        },
        &facts,
    );
    assert!(item(&told, "net.ipv4.tcp_mem").change.is_none());
    assert!(
        told.notes.iter().any(|n| n.contains("memory")),
        "{:?}",
        told.notes
    );
}

#[test]
fn what_is_read_only_here_is_told_and_not_changed() {
    let mut facts = facts(&[("net.core.rmem_max", "1000")]);
    facts
        .sysctls
        .get_mut("net.core.rmem_max")
        .expect("there")
        .writable = false;
    let told = need(&request(10_000, 200), &facts);
    let rmem = item(&told, "net.core.rmem_max");
    assert!(!rmem.ok && rmem.change.is_none() && rmem.reason.contains("initial network namespace"));
}

#[test]
fn the_machine_s_memory_is_read() {
    assert_eq!(
        memory_bytes("MemTotal:       24576 kB\nMemFree: 1 kB\n"),
        Some(24576 << 10)
    );
    assert_eq!(memory_bytes("MemTotal: x kB\n"), None);
    assert_eq!(memory_bytes(""), None);
}

proptest! {
    #[test]
    fn no_value_makes_it_panic_and_every_change_is_undoable(
        values in proptest::collection::vec("[0-9a-z ]{0,30}", SYSCTLS.len()),
        bps in 1..u64::MAX,
        ps: u64,
        streams in 0..1000u32,
    ) {
        let pairs: Vec<(&str, &str)> = SYSCTLS.iter().copied().zip(values.iter().map(String::as_str)).collect();
        let request = Request {
            rate: BitRate::new(bps).expect("a rate"),
            rtt: PicoDuration::from_ps(ps),
            streams,
            mtu: None,
        };
        for item in need(&request, &facts(&pairs)).items {
            prop_assert!(item.ok == item.change.is_none() || item.name == "net.ipv4.tcp_mem", "{:?}", item);
            if let Some(Change::Sysctl { name, .. }) = item.change {
                prop_assert!(SYSCTLS.contains(&name.as_str()));
            }
        }
    }
}
