//! Operations of the chunk scheduler and the digest tree, as a peer could cause them in any order.

use super::Input;
use kuroshio_core::chunk::{
    Config, DigestTree, FileId, RangeSet, Scheduler, StreamId, SubtreeHasher, piece_digest,
};
use kuroshio_core::units::PicoTime;

const FILES: u64 = 4;
const STREAMS: u64 = 4;

fn wanted(input: &mut Input, len: u64) -> RangeSet {
    let mut set = RangeSet::new();
    for _ in 0..input.byte() % 5 {
        let start = input.below(len.saturating_add(1));
        let end = input.below(len.saturating_add(1));
        set.insert(start..end);
    }
    if input.byte().is_multiple_of(2) {
        RangeSet::from_range(0..len)
    } else {
        set
    }
}

/// Any operations, also of files that are not there and ranges out of them: no panic, the sums stay right,
/// every piece is a subtree of the digest, and at the end all comes out.
pub(super) fn run(data: &[u8]) {
    let mut input = Input(data);
    let config = Config {
        chunk: 64 << 10,
        min_piece: 8 << 10,
        grain: 1 << 10,
        max_files: 3,
        max_unacked: 50,
        max_ranges: 40,
    };
    let mut s = Scheduler::new(config).expect("valid sizes");
    let mut now = PicoTime::ZERO;
    let mut lens = [0u64; FILES as usize];
    let mut live = 0;
    while input.more() {
        let file = FileId(u32::try_from(input.below(FILES)).expect("small"));
        let stream = StreamId(u32::try_from(input.below(STREAMS)).expect("small"));
        let place = &mut lens[file.0 as usize];
        match input.byte() % 10 {
            0 => {
                let len = input.number();
                let wanted = wanted(&mut input, len);
                if s.add_file(file, len, &wanted).is_ok() {
                    *place = len;
                    live += 1;
                }
            }
            1 => {
                let len = input.below(1 << 40);
                if s.restart_file(file, len, &wanted(&mut input, len)).is_ok() {
                    *place = len;
                }
            }
            2 => {
                live -= usize::from(s.generation(file).is_some());
                s.finish_file(file);
            }
            3 => drop(s.add_stream(stream)),
            4 => {
                let held = s.stats().on_streams;
                let bytes = s.lose_stream(stream);
                assert!(bytes <= held && s.stats().on_streams == held - bytes);
            }
            5 => drop(s.written(file, u16::from(input.byte() % 3), input.number(), input.number())),
            6 => drop(s.bad(file, u16::from(input.byte() % 3), input.number(), input.number())),
            7 if input.byte() == 0 => s.close(),
            _ => {
                now = PicoTime::from_ps(now.as_ps().saturating_add(input.number()));
                if let Some(p) = s.next(stream, now) {
                    let len = lens[p.file.0 as usize];
                    assert!(
                        SubtreeHasher::new(len, p.offset, u64::from(p.len)).is_ok(),
                        "{p:?} of {len}"
                    );
                }
            }
        }
        let stats = s.stats();
        assert_eq!(stats.files, live);
        assert_eq!(s.is_idle(), stats.to_send == 0 && stats.on_streams == 0);
    }
    for file in 0..FILES {
        s.finish_file(FileId(file as u32));
    }
    let stats = s.stats();
    assert_eq!((stats.files, stats.to_send, stats.on_streams), (0, 0, 0));
}

/// Pieces of a small file in any order, with wrong ones among them: the root is the plain hash or not there.
pub(super) fn digest(data: &[u8]) {
    let mut input = Input(data);
    let len = input.below(40_000);
    let bytes: Vec<u8> = (0..len).map(|i| ((i * 31) >> 5) as u8).collect();
    let mut tree = DigestTree::new(len);
    while input.more() {
        let size = 1024 << (input.byte() % 7);
        let offset = input.below(64) * size;
        let end = if input.byte() < 200 {
            (offset + size).min(len)
        } else {
            input.number()
        };
        let piece = bytes
            .get(offset as usize..)
            .and_then(|b| b.get(..end.checked_sub(offset)? as usize));
        match piece.map(|p| piece_digest(len, offset, p)) {
            Some(Ok(digest)) => {
                let before = tree.covered().bytes();
                tree.insert(offset, end - offset, digest)
                    .expect("a piece with its own digest");
                assert!(tree.covered().bytes() >= before);
            }
            _ => assert!(tree.insert(offset, end.wrapping_sub(offset), [0; 32]).is_err()),
        }
    }
    let whole = tree.covered().bytes() == len;
    assert_eq!(tree.root(), whole.then(|| piece_root(&bytes)));
}

fn piece_root(bytes: &[u8]) -> [u8; 32] {
    let len = bytes.len() as u64;
    if len == 0 {
        kuroshio_core::chunk::EMPTY_ROOT
    } else {
        piece_digest(len, 0, bytes).expect("the whole")
    }
}
