//! Superframes taken apart and put together, with and without a gap.

use super::*;

const MSS: usize = 100;

/// A superframe of TCP with CWR, PSH, FIN and time stamps.
fn superframe(v6: bool, payload: usize) -> (Vnet, Vec<u8>) {
    let mut f = vec![2u8; 12];
    let tcp_len = 32 + payload;
    if v6 {
        f.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        f.extend(u16::try_from(tcp_len).expect("small").to_be_bytes());
        f.extend([6, 64]);
        f.extend([0xfd; 16]);
        f.extend([0xfe; 16]);
    } else {
        f.extend([0x08, 0x00, 0x45, 0]);
        f.extend(u16::try_from(20 + tcp_len).expect("small").to_be_bytes());
        f.extend([0xff, 0xfe, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    }
    let start = f.len();
    f.extend([0x12, 0x34, 0x00, 0x50]);
    f.extend((u32::MAX - 150).to_be_bytes());
    f.extend([0, 0, 0, 9, 8 << 4, CWR | 0x10 | PSH | FIN, 1, 0, 0, 0, 0, 0]);
    f.extend([1, 1, 8, 10, 0, 0, 0, 5, 0, 0, 0, 6]);
    f.extend((0..payload).map(|i| (i * 7 % 251) as u8));
    let partial = Partial {
        start: u16::try_from(start).expect("small"),
        offset: 16,
    };
    let vnet = Vnet {
        partial: Some(partial),
        gso: GSO_ECN | if v6 { GSO_TCP6 } else { GSO_TCP4 },
        mss: MSS as u16,
        header_len: 0,
    };
    (vnet, f)
}

fn segments(vnet: &Vnet, frame: &[u8]) -> Vec<Vec<u8>> {
    let superframe = Superframe::new(vnet, frame).expect("a superframe");
    (0..superframe.count())
        .map(|i| {
            let mut room = vec![0; 400];
            let len = superframe.write(i, &mut room);
            assert_eq!(len, superframe.len_of(i));
            room.truncate(len);
            room
        })
        .collect()
}

/// The checksum of a whole TCP segment, by the book: 0 when it is right.
fn tcp_error(frame: &[u8], layout: Layout) -> u16 {
    let addresses = if layout.v6 {
        layout.ip + 8..layout.ip + 40
    } else {
        layout.ip + 12..layout.ip + 20
    };
    let len = (frame.len() - layout.tcp) as u64;
    !fold(sum(&frame[addresses]) + 6 + len + sum(&frame[layout.tcp..]))
}

#[test]
fn every_segment_is_a_frame_of_its_own() {
    for v6 in [false, true] {
        let (vnet, frame) = superframe(v6, 250);
        let parts = segments(&vnet, &frame);
        assert_eq!(parts.len(), 3);
        let layout = Layout::of(&frame, usize::from(vnet.partial.expect("partial").start)).expect("layout");
        let mut payload = Vec::new();
        for (i, part) in parts.iter().enumerate() {
            let seen = kuroshio_core::wire::packet_of(part).expect("a packet");
            assert_eq!(seen.payload.get(), [100, 100, 50][i]);
            let flags = part[layout.tcp + 13];
            assert_eq!(flags, [CWR | 0x10, 0x10, 0x10 | PSH | FIN][i]);
            let sequence = double(part, layout.tcp + 4).expect("there");
            assert_eq!(sequence, (u32::MAX - 150).wrapping_add(100 * i as u32));
            if !v6 {
                assert_eq!(word(part, layout.ip + 4), Some(0xfffe_u16.wrapping_add(i as u16)));
                assert_eq!(fold(sum(&part[layout.ip..layout.tcp])), 0xffff, "header checksum");
            }
            let mut whole = part.clone();
            complete(&mut whole, vnet.partial.expect("partial"));
            assert_eq!(tcp_error(&whole, layout), 0);
            whole[layout.payload + 3] ^= 4;
            assert_ne!(tcp_error(&whole, layout), 0);
            payload.extend_from_slice(&part[layout.payload..]);
        }
        assert_eq!(payload, frame[layout.payload..]);
    }
}

#[test]
fn neighbours_join_into_what_was_sent_and_a_gap_stays() {
    for v6 in [false, true] {
        let (vnet, mut frame) = superframe(v6, 450);
        let partial = vnet.partial.expect("partial");
        let flags = usize::from(partial.start) + 13;
        frame[flags] &= !CWR;
        let parts = segments(&vnet, &frame);
        let mut run = Run::start(&parts[0], partial).expect("a run");
        assert!(!run.join(&parts[0], &parts[2], partial), "the second is missing");
        for next in &parts[1..] {
            assert!(run.join(&parts[0], next, partial));
        }
        assert!(run.ended() && run.count() == 5);
        let mut header = parts[0][..run.header_len()].to_vec();
        let out = run.finish(&mut header, &parts[4]);
        // The kernel's own header has lengths and checksums that were never set in ours.
        let layout = Layout::of(&frame, usize::from(partial.start)).expect("layout");
        let whole = frame.len();
        layout.lengths(&mut frame, whole);
        assert_eq!(header, frame[..run.header_len()]);
        assert_eq!((out.mss, out.partial), (100, Some(partial)));
        assert_eq!(Vnet::read(&out.write()), Some(out));
        // Another acknowledgement number, another window or an earlier time stamp is another superframe.
        for at in [8, 14, 24] {
            let mut other = parts[1].clone();
            other[usize::from(partial.start) + at] ^= 1;
            let mut run = Run::start(&parts[0], partial).expect("a run");
            assert!(!run.join(&parts[0], &other, partial), "byte {at}");
        }
        let flow = FlowBytes::of(&parts[0], partial);
        assert!(flow.is_some());
        assert_eq!(FlowBytes::find(&parts[1]), Ok(flow));
    }
}

#[test]
fn an_ip_packet_is_never_longer_than_its_length_field() {
    let (mut vnet, _) = superframe(false, 10);
    vnet.mss = 8_000;
    let (_, mut frame) = superframe(false, 65_000);
    frame.extend(vec![1; 9_000]);
    let flags = usize::from(vnet.partial.expect("partial").start) + 13;
    frame[flags] = 0x10;
    let superframe = Superframe::new(&vnet, &frame).expect("a superframe");
    let mut parts: Vec<Vec<u8>> = Vec::new();
    for i in 0..superframe.count() {
        let mut room = vec![0; 9_000];
        let len = superframe.write(i, &mut room);
        room.truncate(len);
        parts.push(room);
    }
    let partial = superframe.partial();
    let mut run = Run::start(&parts[0], partial).expect("a run");
    let joined = parts[1..]
        .iter()
        .take_while(|p| run.join(&parts[0], p, partial))
        .count();
    assert_eq!(joined + 1, 8, "8 * 8000 + 52 bytes is the most");
}

#[test]
fn any_bytes_are_survived() {
    let (vnet, frame) = superframe(true, 250);
    for end in 0..frame.len() {
        for mss in [0, 1, 100, u16::MAX] {
            let vnet = Vnet { mss, ..vnet };
            if let Some(part) = Superframe::new(&vnet, &frame[..end]) {
                let mut room = vec![0; 200];
                let _ = part.write(0, &mut room);
                let _ = part.write(part.count(), &mut room);
            }
        }
        let partial = vnet.partial.expect("partial");
        if let Some(mut run) = Run::start(&frame[..end], partial) {
            let _ = run.join(&frame[..end], &frame[..end.saturating_sub(1)], partial);
        }
        complete(&mut frame[..end].to_vec(), partial);
        assert!(Vnet::read(&frame[..end.min(9)]).is_none());
    }
    let far = Partial {
        start: u16::MAX,
        offset: u16::MAX,
    };
    complete(&mut frame.clone(), far);
    assert!(Run::start(&frame, far).is_none());
}
