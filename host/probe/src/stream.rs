//! The threads that carry the data: one for each stream.
//!
//! A thread blocks in the kernel for at most [`BLOCK`], so that it sees the end of a test in time. Counters
//! are shared with the sampler; the data itself is a constant buffer.
//!
//! ```text
//! Running -> Draining (what has arrived is still read) -> Stopped
//! ```

use crate::cpu::Cpu;
use crate::error::ProbeError;
use crate::params::MAX_DATAGRAM_BYTES;
use crate::protocol::is_retry;
use crate::udp::{Stamp, Tally};
use kuroshio_clock::{now_ns, sleep_until};
use kuroshio_core::units::BitRate;
use kuroshio_sock::Framing;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create, sendfile};
use std::io::{self, Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Longest wait of a thread in the kernel.
pub(crate) const BLOCK: Duration = Duration::from_millis(100);
/// A UDP sender that is late by more gives the rest up instead of sending a burst, nanoseconds.
const MAX_DEBT_NS: u64 = 10_000_000;

/// Where the threads of a test stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Phase {
    Running = 0,
    Draining = 1,
    Stopped = 2,
}

/// A phase that all threads of a test see.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedPhase(Arc<AtomicU8>);

impl SharedPhase {
    pub(crate) fn set(&self, phase: Phase) {
        self.0.fetch_max(phase as u8, Ordering::Release);
    }

    fn is(&self, phase: Phase) -> bool {
        self.0.load(Ordering::Acquire) == phase as u8
    }
}

/// Bytes that senders may still take, in sum over all of them.
#[derive(Debug)]
pub(crate) struct Quota(AtomicU64);

impl Quota {
    pub(crate) fn new(bytes: u64) -> Self {
        Self(AtomicU64::new(bytes))
    }

    /// Takes up to `want` bytes.
    fn take(&self, want: u64) -> u64 {
        let taken = |left: u64| Some(left - left.min(want));
        let before = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, taken);
        before.unwrap_or(0).min(want)
    }

    fn give_back(&self, bytes: u64) {
        self.0.fetch_add(bytes, Ordering::AcqRel);
    }
}

/// What a stream's thread tells the sampler.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// Payload bytes sent or received.
    bytes: AtomicU64,
    /// Datagrams sent.
    sent: AtomicU64,
    /// What a UDP receiver has counted.
    tally: Mutex<Tally>,
    /// Why the thread ended early.
    failure: Mutex<Option<String>>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // A thread that panicked leaves whole numbers behind: they are still good.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Payload bytes so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    /// Datagrams sent so far.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Acquire)
    }

    /// What a UDP receiver has counted so far.
    pub(crate) fn tally(&self) -> Tally {
        *lock(&self.tally)
    }

    /// Why the thread ended early.
    pub(crate) fn failure(&self) -> Option<String> {
        lock(&self.failure).clone()
    }

    fn fail(&self, what: impl Into<String>) {
        lock(&self.failure).get_or_insert(what.into());
    }
}

/// The socket of a stream.
#[derive(Debug)]
pub(crate) enum DataSocket {
    Tcp(TcpStream),
    Udp(UdpSocket),
}

impl DataSocket {
    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        Ok(match self {
            Self::Tcp(s) => Self::Tcp(s.try_clone()?),
            Self::Udp(s) => Self::Udp(s.try_clone()?),
        })
    }

    pub(crate) fn tcp(&self) -> Option<&TcpStream> {
        match self {
            Self::Tcp(s) => Some(s),
            Self::Udp(_) => None,
        }
    }

    fn limit_blocking(&self) -> io::Result<()> {
        let (block, none) = (Some(BLOCK), None::<Duration>);
        match self {
            Self::Tcp(s) => s.set_read_timeout(block).and(s.set_write_timeout(block)),
            Self::Udp(s) => s.set_read_timeout(block).and(s.set_write_timeout(none)),
        }
    }
}

impl AsFd for DataSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(s) => s.as_fd(),
            Self::Udp(s) => s.as_fd(),
        }
    }
}

/// What a stream's thread does.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    /// Whether it sends.
    pub sends: bool,
    /// Bytes of one write or datagram.
    pub block: u32,
    /// Whether TCP sends from the page cache.
    pub zerocopy: bool,
    /// Whether UDP counters have 64 bits.
    pub wide_counters: bool,
    /// Frame-level rate of a UDP sender; `None` is as fast as it goes. TCP is paced by the kernel.
    pub udp_rate: Option<BitRate>,
    /// Whether datagrams travel in IPv6 packets.
    pub ipv6: bool,
    /// What all senders together may send.
    pub quota: Option<Arc<Quota>>,
}

/// Starts the thread of a stream; it gives its processor time at the end.
///
/// # Errors
/// A socket that is gone, a buffer that cannot be made, no thread.
pub(crate) fn start(
    socket: &DataSocket,
    work: Work,
    shared: Arc<Shared>,
    phase: SharedPhase,
) -> Result<JoinHandle<Cpu>, ProbeError> {
    let failed = ProbeError::io("starting a stream");
    socket.limit_blocking().map_err(&failed)?;
    let socket = socket.try_clone().map_err(&failed)?;
    let file = match &socket {
        DataSocket::Tcp(_) if work.sends && work.zerocopy => Some(page_cache(work.block).map_err(&failed)?),
        _ => None,
    };
    let body = move || {
        let done = match (&socket, work.sends) {
            (DataSocket::Tcp(s), true) => send_tcp(s, &work, file.as_ref(), &shared, &phase),
            (DataSocket::Tcp(s), false) => receive_tcp(s, &work, &shared, &phase),
            (DataSocket::Udp(s), true) => send_udp(s, &work, &shared, &phase),
            (DataSocket::Udp(s), false) => receive_udp(s, &work, &shared, &phase),
        };
        // A connection that breaks once the test is over is how the other side ends it.
        if let Err(e) = done
            && phase.is(Phase::Running)
        {
            shared.fail(e.to_string());
        }
        Cpu::of_this_thread()
    };
    std::thread::Builder::new()
        .name("probe-stream".into())
        .spawn(body)
        .map_err(failed)
}

/// A file in memory to send from.
fn page_cache(bytes: u32) -> io::Result<OwnedFd> {
    let file = memfd_create("kuroshio-probe", MemfdFlags::CLOEXEC)?;
    ftruncate(&file, u64::from(bytes))?;
    Ok(file)
}

fn send_tcp(
    mut socket: &TcpStream,
    work: &Work,
    file: Option<&OwnedFd>,
    shared: &Shared,
    phase: &SharedPhase,
) -> io::Result<()> {
    let buf = vec![0x4b; work.block as usize];
    while phase.is(Phase::Running) {
        let want = work
            .quota
            .as_ref()
            .map_or(buf.len() as u64, |quota| quota.take(buf.len() as u64));
        if want == 0 {
            return Ok(());
        }
        let part = buf.get(..want as usize).unwrap_or(&buf);
        let sent = match file {
            Some(file) => sendfile(socket, file, Some(&mut 0), part.len()).map_err(io::Error::from),
            None => socket.write(part),
        };
        let sent = match sent {
            Ok(n) => n as u64,
            Err(e) if is_retry(&e) => 0,
            Err(e) => return Err(e),
        };
        shared.bytes.fetch_add(sent, Ordering::AcqRel);
        if let Some(quota) = &work.quota {
            quota.give_back(want.saturating_sub(sent));
        }
    }
    Ok(())
}

fn receive_tcp(mut socket: &TcpStream, work: &Work, shared: &Shared, phase: &SharedPhase) -> io::Result<()> {
    let mut buf = vec![0u8; work.block as usize];
    while !phase.is(Phase::Stopped) {
        match socket.read(&mut buf) {
            Ok(0) if phase.is(Phase::Running) => {
                shared.fail("the other side closed it before the end");
                return Ok(());
            }
            Ok(0) => return Ok(()),
            Ok(n) => {
                shared.bytes.fetch_add(n as u64, Ordering::AcqRel);
            }
            // Nothing came in the longest wait of a thread: what was on its way has arrived.
            Err(e) if is_retry(&e) && phase.is(Phase::Draining) => return Ok(()),
            Err(e) if is_retry(&e) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Sends each datagram when its time has come: datagram n at `n * frame bits / rate`. Late ones follow at
/// once, but nothing is made up for a delay beyond [`MAX_DEBT_NS`].
fn send_udp(socket: &UdpSocket, work: &Work, shared: &Shared, phase: &SharedPhase) -> io::Result<()> {
    let mut buf = vec![0x4b; work.block as usize];
    let framing = Framing::of_datagram(work.block, work.ipv6);
    let frame_bits = framing.map_or(0, |f| 8 * u128::from(f.frame.get()));
    let (mut origin, mut frames) = (now_ns(), 0u64);
    let mut number = 0u64;
    while phase.is(Phase::Running) {
        if let Some(rate) = work.udp_rate {
            let after_ns = u128::from(frames) * frame_bits * 1_000_000_000 / u128::from(rate.bps());
            let due = origin.saturating_add(u64::try_from(after_ns).unwrap_or(u64::MAX));
            let now = now_ns();
            if due > now {
                // In short steps, so that the end of the test is seen at any rate.
                sleep_until(due.min(now + BLOCK.as_nanos() as u64), 0);
                continue;
            }
            if now - due > MAX_DEBT_NS {
                (origin, frames) = (now, 0);
            }
        }
        let want = match &work.quota {
            Some(quota) => quota.take(u64::from(work.block)),
            None => u64::from(work.block),
        };
        // The last datagram is a whole one, even if less was left.
        if want == 0 {
            return Ok(());
        }
        number += 1;
        let sent_us = now_ns() / 1_000;
        Stamp { sent_us, number }.write(work.wide_counters, &mut buf);
        match socket.send(&buf) {
            Ok(n) => {
                shared.bytes.fetch_add(n as u64, Ordering::AcqRel);
                shared.sent.store(number, Ordering::Release);
                frames += 1;
            }
            // A full queue of the interface: the datagram never left, so its number is used again.
            Err(e) if is_retry(&e) || e.raw_os_error() == Some(libc::ENOBUFS) => {
                number -= 1;
                if let Some(quota) = &work.quota {
                    quota.give_back(want);
                }
            }
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn receive_udp(socket: &UdpSocket, work: &Work, shared: &Shared, phase: &SharedPhase) -> io::Result<()> {
    let mut buf = vec![0u8; MAX_DATAGRAM_BYTES as usize + 1];
    while !phase.is(Phase::Stopped) {
        match socket.recv(&mut buf) {
            Ok(n) => {
                if let Some(stamp) = Stamp::read(work.wide_counters, buf.get(..n).unwrap_or_default()) {
                    lock(&shared.tally).take(stamp, n as u64, now_ns() / 1_000);
                    shared.bytes.fetch_add(n as u64, Ordering::AcqRel);
                }
            }
            Err(e) if is_retry(&e) && phase.is(Phase::Draining) => return Ok(()),
            Err(e) if is_retry(&e) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_is_given_out_once() {
        let quota = Quota::new(250);
        assert_eq!(
            [quota.take(100), quota.take(100), quota.take(100)],
            [100, 100, 50]
        );
        assert_eq!(quota.take(100), 0);
        quota.give_back(30);
        assert_eq!(quota.take(100), 30);
    }

    #[test]
    fn a_phase_only_goes_on() {
        let phase = SharedPhase::default();
        assert!(phase.is(Phase::Running));
        phase.set(Phase::Stopped);
        phase.set(Phase::Draining);
        assert!(phase.is(Phase::Stopped));
    }
}
