//! Messages byte by byte: those of `tc` of iproute2 6.1 for the same commands (the words beside each), as strace shows
//! them, and those of `kernel/psp_netlink.h`.

use super::*;

fn rule(to: Option<&str>, port: Option<u16>) -> Rule {
    Rule {
        to: to.map(|text| text.parse().expect("prefix")),
        port,
        cgroup: None,
        rate_bps: 500_000_000,
        mode: Mode::Static,
    }
}

/// Header of a message, and of one about traffic control on interface 1.
fn head(len: u32, kind: u16, flags: u16, handle: u32, parent: u32, info: u32) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend(len.to_ne_bytes());
    out.extend(kind.to_ne_bytes());
    out.extend(flags.to_ne_bytes());
    out.extend([7, 0, 0, 0, 0, 0, 0, 0]);
    out.extend([0, 0, 0, 0, 1, 0, 0, 0]);
    for word in [handle, parent, info] {
        out.extend(word.to_ne_bytes());
    }
    out
}

fn added(message: RouteNetlinkMessage) -> Vec<u8> {
    encode(message, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL, 7)
}

#[test]
fn a_root_qdisc_is_what_tc_sends() {
    // tc qdisc add dev lo root handle 4b50: fq
    let mut expected = head(48, 0x24, 0x605, 0x4b50_0000, u32::MAX, 0);
    expected.extend(b"\x07\x00\x01\x00fq\0\0\x04\x00\x02\x00");
    let message = qdisc(1, "fq", 0x4b50_0000);
    assert_eq!(added(RouteNetlinkMessage::NewQueueDiscipline(message)), expected);
    // tc qdisc del dev lo root handle 4b50:
    let message = message_of_delete(0x4b50_0000);
    let bytes = encode(RouteNetlinkMessage::DelQueueDiscipline(message), NLM_F_ACK, 7);
    assert_eq!(bytes, head(36, 0x25, 0x5, 0x4b50_0000, u32::MAX, 0));
}

fn message_of_delete(handle: u32) -> TcMessage {
    message(1, handle, ROOT, 0, "", Vec::new())
}

#[test]
fn a_class_of_psp_is_what_its_header_says() {
    // TCA_PSP_MODE u8 = 4, TCA_PSP_RATE u64 = 5
    let mut expected = head(68, 0x28, 0x605, 0x4b50_4b01, 0x4b50_0000, 0);
    expected.extend(b"\x08\x00\x01\x00psp\0\x18\x00\x02\x00");
    expected.extend([5, 0, 4, 0, 2, 0, 0, 0]);
    expected.extend([12, 0, 5, 0]);
    expected.extend(500_000_000_u64.to_ne_bytes());
    let message = class(1, 0x4b50_0000, 0x4b50_4b01, 500_000_000, Mode::Dynamic);
    assert_eq!(added(RouteNetlinkMessage::NewTrafficClass(message)), expected);
}

#[test]
fn filters_are_what_tc_sends() {
    // tc filter add dev lo parent 4b50: protocol ip pref 19201 u32 match ip dst 192.0.2.0/24 match ip dport 2811 0xffff
    //     classid 4b50:4b01
    let v4 = filters(&rule(Some("192.0.2.0/24"), Some(2811)));
    let mut expected = head(108, 0x2c, 0x605, 0, 0x4b50_0000, 1_258_356_744);
    expected.extend(b"\x08\x00\x01\x00u32\0\x40\x00\x02\x00");
    expected.extend(
        b"\x08\x00\x01\x00\x01\x4b\x50\x4b\x34\x00\x05\x00\x01\x00\x02\x00\x00\x00\x00\x00\x00\x00\x00\x00",
    );
    expected.extend(
        b"\x00\x00\x00\x00\xff\xff\xff\x00\xc0\x00\x02\x00\x10\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff",
    );
    expected.extend(b"\x00\x00\x0a\xfb\x14\x00\x00\x00\x00\x00\x00\x00");
    assert_eq!(v4.len(), 1);
    let message = u32_filter(1, 0x4b50_0000, 19201, 0x4b50_4b01, &v4[0]);
    assert_eq!(added(RouteNetlinkMessage::NewTrafficFilter(message)), expected);
    // The same with protocol ipv6 pref 19202, match ip6 dst 2001:db8::/33 and match ip6 dport 2811 0xffff
    let v6 = filters(&rule(Some("2001:db8::/33"), Some(2811)));
    let mut expected = head(124, 0x2c, 0x605, 0, 0x4b50_0000, 1_258_478_982);
    expected.extend(b"\x08\x00\x01\x00u32\0\x50\x00\x02\x00");
    expected.extend(
        b"\x08\x00\x01\x00\x01\x4b\x50\x4b\x44\x00\x05\x00\x01\x00\x03\x00\x00\x00\x00\x00\x00\x00\x00\x00",
    );
    expected.extend(
        b"\x00\x00\x00\x00\xff\xff\xff\xff\x20\x01\x0d\xb8\x18\x00\x00\x00\x00\x00\x00\x00\x80\x00\x00\x00",
    );
    expected.extend(
        b"\x00\x00\x00\x00\x1c\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\x00\x00\x0a\xfb\x28\x00\x00\x00",
    );
    expected.extend(b"\x00\x00\x00\x00");
    assert_eq!(v6.len(), 1);
    let message = u32_filter(1, 0x4b50_0000, 19202, 0x4b50_4b01, &v6[0]);
    assert_eq!(added(RouteNetlinkMessage::NewTrafficFilter(message)), expected);
    // tc filter del dev lo parent 4b50: protocol ip pref 19201
    let message = super::message(1, 0, 0x4b50_0000, filter_info(19201, ETH_IP), "", Vec::new());
    let bytes = encode(RouteNetlinkMessage::DelTrafficFilter(message), NLM_F_ACK, 7);
    assert_eq!(bytes, head(36, 0x2d, 0x5, 0, 0x4b50_0000, 1_258_356_744));
}

#[test]
fn a_rule_without_a_prefix_takes_both_families() {
    let both = filters(&rule(None, None));
    assert_eq!(
        both.iter().map(|f| f.protocol).collect::<Vec<_>>(),
        [ETH_IP, ETH_IPV6]
    );
    assert!(both.iter().all(|f| f.keys == [(0, 0, 0)]), "{both:?}");
    let port = filters(&rule(None, Some(80)));
    assert_eq!(port[0].keys, [(0xffff, 80, 20)]);
    assert_eq!(port[1].keys, [(0xffff, 80, 40)]);
    // IPv4 lies within ::/0, and not within 2000::/3.
    assert_eq!(filters(&rule(Some("::/0"), None)).len(), 2);
    assert_eq!(filters(&rule(Some("2000::/3"), None)).len(), 1);
    assert_eq!(filters(&rule(Some("0.0.0.0/0"), None)).len(), 1);
}

#[test]
fn the_kernel_s_words_are_read() {
    // -2, our header, NLMSGERR_ATTR_MSG.
    let mut body = (-2i32).to_ne_bytes().to_vec();
    body.extend([0; HEADER]);
    body.extend([14, 0, 1, 0]);
    body.extend(b"no such x\0\0\0");
    let e = error_of(&body).expect_err("an error");
    assert_eq!(code(&e), Some(libc::ENOENT));
    assert!(e.to_string().starts_with("no such x (No such file"), "{e}");
    let e = error_of(&body[..20]).expect_err("without words");
    assert_eq!(code(&e), Some(libc::ENOENT));
    assert!(error_of(&[0; 20]).is_ok());
    assert!(error_of(&[1]).is_err());
}

#[test]
fn a_dump_is_read_and_a_cut_one_refused() {
    let mut one = head(48, 0x24, 2, 0x4b50_0000, u32::MAX, 2);
    one.extend(b"\x08\x00\x01\x00fq\0\0\x04\x00\x02\x00");
    let mut bytes = one.clone();
    bytes.extend(&one);
    let both = answers(&bytes).expect("whole");
    assert_eq!(both.len(), 2);
    let qdisc = parse_qdisc(both[1].body).expect("a qdisc");
    assert_eq!((qdisc.index, qdisc.handle, qdisc.parent), (1, 0x4b50_0000, ROOT));
    assert_eq!(qdisc.kind, "fq");
    for len in 0..bytes.len() {
        // No length makes it panic; one within a message is an error.
        let cut = answers(&bytes[..len]);
        assert!(cut.is_ok() == (len < 16 || (48..64).contains(&len)), "{len}");
    }
    assert_eq!(parse_qdisc(&both[0].body[..10]), None);
}
