//! Datagrams that are due together, and how they leave: in one system call, neighbours of equal length as one superframe.
//!
//! ```text
//!     lengths   8972 8972 8972 4100 8972 8970 ...
//!     messages  [----- one ------]  [ 1 ][ 1 ]    UDP_SEGMENT: all of one length, the last may be shorter
//!     call      sendmmsg(one, two, three, ...)
//! ```
//!
//! The kernel (or the card) cuts a superframe into the same datagrams, so the far end cannot tell. Where a path cannot have
//! superframes the kernel says so once, and datagrams go one by one from then on.

use std::io;
use std::net::UdpSocket;

use kuroshio_core::video::MAX_DATAGRAM;

use crate::sys;

/// Datagrams that leave in one call, at most.
pub(crate) const MAX_TOGETHER: usize = 256;
/// Their bytes, at most.
const MAX_BYTES: usize = 512 << 10;
/// Segments of a superframe (`UDP_MAX_SEGMENTS` of Linux 4.18 and later).
const MAX_SEGMENTS: usize = 64;

/// A message of a call: datagrams of one length, of which the last may be shorter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    datagrams: usize,
    bytes: usize,
    /// Bytes of each, as `UDP_SEGMENT` wants it.
    segment: u16,
}

/// The messages of datagrams of these lengths.
fn runs(lengths: &[usize], superframes: bool) -> Vec<Run> {
    let mut all: Vec<Run> = Vec::new();
    let mut closed = true;
    for &len in lengths {
        let segment = u16::try_from(len).unwrap_or(u16::MAX);
        if let Some(run) = all.last_mut()
            && superframes
            && !closed
            && segment <= run.segment
            && run.datagrams < MAX_SEGMENTS
            && run.bytes + len <= MAX_DATAGRAM
        {
            run.datagrams += 1;
            run.bytes += len;
            closed = segment < run.segment;
            continue;
        }
        all.push(Run {
            datagrams: 1,
            bytes: len,
            segment,
        });
        closed = false;
    }
    all
}

/// What left.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Left {
    /// Datagrams that the kernel took.
    pub datagrams: u64,
    /// Their payload bytes.
    pub bytes: u64,
    /// Datagrams that it refused for want of buffers.
    pub refused: u64,
    /// System calls.
    pub calls: u64,
}

/// Datagrams on their way out.
#[derive(Debug)]
pub(crate) struct Burst {
    bytes: Vec<u8>,
    lengths: Vec<usize>,
    counted: usize,
    superframes: bool,
}

impl Burst {
    pub(crate) fn new() -> Self {
        Self {
            bytes: Vec::with_capacity(MAX_BYTES + MAX_DATAGRAM),
            lengths: Vec::with_capacity(MAX_TOGETHER),
            counted: 0,
            superframes: true,
        }
    }

    /// Where the next datagram is written: behind what is there.
    pub(crate) fn room(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Counts the datagram of `len` bytes that was written last.
    pub(crate) fn add(&mut self, len: usize) {
        self.lengths.push(len);
        self.counted += len;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lengths.is_empty()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.lengths.len() >= MAX_TOGETHER || self.counted >= MAX_BYTES
    }

    /// Whether neighbours leave as superframes.
    pub(crate) fn superframes(&self) -> bool {
        self.superframes
    }

    /// Sends what is counted; what was written behind it stays.
    ///
    /// # Errors
    /// What the kernel says, with the length of the datagram; `EMSGSIZE` for one beyond the path's MTU.
    pub(crate) fn flush(&mut self, socket: &UdpSocket) -> Result<Left, (usize, io::Error)> {
        let (mut left, mut from, mut done) = (Left::default(), 0, 0);
        while done < self.lengths.len() {
            let runs = runs(&self.lengths[done..], self.superframes);
            let mut at = from;
            let messages = runs.iter().map(|run| {
                let bytes = self.bytes.get(at..at + run.bytes).unwrap_or_default();
                at += run.bytes;
                (bytes, (run.datagrams > 1).then_some(run.segment))
            });
            let messages: Vec<_> = messages.collect();
            left.calls += 1;
            let sent = sys::send_many(socket, &messages);
            let mut pass = |run: &Run, took: bool| {
                from += run.bytes;
                done += run.datagrams;
                if took {
                    left.datagrams += run.datagrams as u64;
                    left.bytes += run.bytes as u64;
                } else {
                    left.refused += run.datagrams as u64;
                }
            };
            let (e, run) = match (sent, runs.first()) {
                (Ok(count), _) => {
                    runs.iter().take(count).for_each(|run| pass(run, true));
                    continue;
                }
                (Err(e), Some(run)) => (e, run),
                (Err(_), None) => break,
            };
            match (e.kind(), e.raw_os_error()) {
                // An ICMP error of an earlier datagram, which is told once; and signals.
                (io::ErrorKind::ConnectionRefused | io::ErrorKind::Interrupted, _) => {}
                (_, Some(libc::ENOBUFS | libc::EAGAIN)) => pass(run, false),
                (
                    _,
                    Some(libc::EINVAL | libc::EIO | libc::EMSGSIZE | libc::ENOPROTOOPT | libc::EOPNOTSUPP),
                ) if run.datagrams > 1 => {
                    self.superframes = false;
                }
                _ => return Err((usize::from(run.segment), e)),
            }
        }
        self.bytes.drain(..from);
        self.lengths.clear();
        self.counted = 0;
        Ok(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(lengths: &[usize], superframes: bool) -> Vec<(usize, usize, u16)> {
        let each = runs(lengths, superframes);
        each.iter().map(|r| (r.datagrams, r.bytes, r.segment)).collect()
    }

    #[test]
    fn neighbours_of_one_length_go_together() {
        assert_eq!(shape(&[], true), []);
        assert_eq!(
            shape(&[5, 5, 3, 5, 6, 6], true),
            [(3, 13, 5), (1, 5, 5), (2, 12, 6)]
        );
        // What follows a shorter one begins anew, even where it is as short.
        assert_eq!(shape(&[5, 3, 3], true), [(2, 8, 5), (1, 3, 3)]);
        assert_eq!(shape(&[5, 5], false), [(1, 5, 5), (1, 5, 5)]);
        assert_eq!(shape(&[9_000; 9], true), [(7, 63_000, 9_000), (2, 18_000, 9_000)]);
        assert_eq!(shape(&[100; 65], true), [(64, 6_400, 100), (1, 100, 100)]);
    }

    #[test]
    fn each_datagram_arrives_as_it_was_written() {
        let to = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let from = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        from.connect(to.local_addr().expect("an address"))
            .expect("connected");
        to.set_read_timeout(Some(std::time::Duration::from_secs(10)))
            .expect("a timeout");
        let mut burst = Burst::new();
        for superframes in [true, false] {
            burst.superframes = superframes;
            let lengths = [700, 700, 700, 20, 700, 701, 1];
            for (i, len) in lengths.iter().enumerate() {
                burst.room().extend(std::iter::repeat_n(i as u8, *len));
                burst.add(*len);
            }
            burst.room().extend([99; 3]);
            let left = burst.flush(&from).expect("sent");
            assert_eq!((left.datagrams, left.bytes, left.refused), (7, 3_522, 0));
            assert_eq!(burst.superframes(), superframes);
            let mut bytes = [0; 2_000];
            for (i, len) in lengths.iter().enumerate() {
                let got = to.recv(&mut bytes).expect("a datagram");
                assert_eq!((got, bytes[0], bytes[got - 1]), (*len, i as u8, i as u8));
            }
            assert_eq!((burst.is_empty(), burst.room().clone()), (true, vec![99; 3]));
            burst.room().clear();
        }
    }
}
