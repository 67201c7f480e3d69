//! What the video receiver takes from the network and the sender from files.

use kuroshio_core::units::{PicoDuration, PicoTime};
use kuroshio_core::video::{Assembler, Cursor, Geometry, Joiner, Packet, Packetizer, PixelFormat};
use kuroshio_netv::{PAYLOAD_TYPE, parse_header};

use super::Input;

/// Bytes as a datagram; then datagrams of a picture with changes from the input, in its order, to an assembler and a
/// joiner: a picture that is whole is of the right size, and every stamp is shown once.
pub(super) fn rtp(data: &[u8]) {
    if let Ok(packet) = Packet::parse(data) {
        assert!(packet.segments().map(|s| s.data.len()).sum::<usize>() <= data.len());
    }
    let mut input = Input(data);
    let format = PixelFormat::ALL[usize::from(input.byte()) % PixelFormat::ALL.len()];
    let geometry = Geometry::new(16, 8, format).expect("a size");
    let picture = vec![input.byte(); geometry.bytes()];
    let mut packetizer = Packetizer::new(geometry, 128 + usize::from(input.byte()), PAYLOAD_TYPE, 1, 0);
    let (mut assembler, mut joiner) = (
        Assembler::new(geometry, PAYLOAD_TYPE),
        Joiner::new(1, PicoDuration::ZERO),
    );
    let (mut datagram, mut shown) = (Vec::new(), Vec::new());
    while input.more() {
        let (mut cursor, stamp) = (Cursor::default(), input.number() as u32);
        while packetizer.next(&mut cursor, stamp, &picture, &mut datagram) {
            for _ in 0..input.byte() % 3 {
                let at = input.below(datagram.len() as u64) as usize;
                datagram[at] ^= input.byte();
            }
            let Ok(Some(part)) = assembler.handle(PicoTime::ZERO, &datagram) else {
                continue;
            };
            assert_eq!(part.picture.len(), geometry.bytes());
            joiner.handle_part(PicoTime::ZERO, 0, part.timestamp);
            while let Some(s) = joiner.poll(PicoTime::ZERO) {
                assert!(!s.is_torn());
                shown.push(s.timestamp);
            }
        }
    }
    let counts = joiner.counts();
    assert_eq!(counts.whole, shown.len() as u64);
}

/// A header line of y4m, as it came and after a good begin: what is read is written and read again to the same.
pub(super) fn y4m(data: &[u8]) {
    let longer = [b"YUV4MPEG2 W16 H8 F25:1 ", data].concat();
    for line in [data, &longer] {
        let Ok(header) = parse_header(line) else { continue };
        if let Some(text) = header.line() {
            assert_eq!(parse_header(text.trim_end().as_bytes()).expect("ours"), header);
        }
    }
}
