//! The socket of a request, whose pace may be set while its answers are sent.
//!
//! Each request of a connection finds it in its extensions. A pace holds until the next one is set; ten times a second the
//! rate told to the kernel is trimmed so that the average becomes the one asked for ([`kuroshio_sock::keep_pacing`]).
//! The kernel does not pace a connection's first segments; [`PacedSocket::allow`] does, for who gives an answer's bytes.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use kuroshio_core::units::BitRate;
use kuroshio_sock::{Trim, keep_pacing, opening, set_congestion, set_pacing};

/// How often the kernel's rate is trimmed.
const TICK: Duration = Duration::from_millis(100);

struct Pace {
    rate: Option<BitRate>,
    trim: Trim,
    ticks: bool,
    congestion: Option<String>,
    /// When the next segment of the connection's opening may be given; `None` once the kernel paces.
    opening: Option<Instant>,
}

struct Held {
    socket: OwnedFd,
    pace: Mutex<Pace>,
}

/// A request's socket. Clones are one.
#[derive(Clone)]
pub struct PacedSocket(Arc<Held>);

impl PacedSocket {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        let pace = Pace {
            rate: None,
            trim: Trim::default(),
            ticks: false,
            congestion: None,
            opening: Some(Instant::now()),
        };
        Self(Arc::new(Held {
            socket,
            pace: Mutex::new(pace),
        }))
    }

    /// Sends at `rate` (frame level) from now on; `None`: as fast as it goes. Called in a runtime's context.
    ///
    /// # Errors
    /// What the socket says.
    pub fn set_pacing(&self, rate: Option<BitRate>) -> io::Result<()> {
        let mut pace = self.0.pace();
        if pace.rate == rate {
            return Ok(());
        }
        pace.rate = rate;
        pace.trim = Trim::default();
        set_pacing(&self.0.socket, rate)?;
        if !pace.ticks && rate.is_some() {
            pace.ticks = true;
            tokio::spawn(tick(Arc::downgrade(&self.0)));
        }
        Ok(())
    }

    /// How many of `most` bytes may be given to the connection now. Of one that is paced and has only begun a segment's worth,
    /// after the time of the one before: called in a thread that may wait.
    pub fn allow(&self, most: usize) -> usize {
        let (rate, at) = {
            let pace = self.0.pace();
            match (pace.rate, pace.opening) {
                (Some(rate), Some(at)) => (rate, at),
                _ => return most,
            }
        };
        std::thread::sleep(at.saturating_duration_since(Instant::now()));
        // A connection that has ended is noticed by who writes to it.
        let step = opening(&self.0.socket, rate).ok().flatten();
        self.0.pace().opening = step.map(|s| Instant::now() + s.time);
        step.map_or(most, |s| most.min(usize::try_from(s.bytes.get()).unwrap_or(most)))
    }

    /// Sends with this congestion control from now on.
    ///
    /// # Errors
    /// What the socket says, for example of a name that the kernel does not know.
    pub fn set_congestion(&self, name: &str) -> io::Result<()> {
        let mut pace = self.0.pace();
        if pace.congestion.as_deref() != Some(name) {
            set_congestion(&self.0.socket, name)?;
            pace.congestion = Some(name.to_owned());
        }
        Ok(())
    }
}

impl Held {
    fn pace(&self) -> MutexGuard<'_, Pace> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Trims until the connection has gone.
async fn tick(socket: Weak<Held>) {
    loop {
        tokio::time::sleep(TICK).await;
        let Some(held) = socket.upgrade() else { return };
        let mut pace = held.pace();
        let Some(rate) = pace.rate else {
            pace.ticks = false;
            return;
        };
        if keep_pacing(&held.socket, Some(rate), &mut pace.trim).is_err() {
            // The connection has ended.
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    /// A connection's opening is given segment by segment, none before its time; then everything at once.
    #[tokio::test]
    async fn a_paced_connection_opens_in_single_segments() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback");
        let mut near = TcpStream::connect(listener.local_addr().expect("bound")).expect("listens");
        let (mut far, _) = listener.accept().expect("connected");
        // The window stays open.
        std::thread::spawn(move || std::io::copy(&mut far, &mut std::io::sink()));
        let most = 8 << 20;
        let socket = PacedSocket::new(near.try_clone().expect("a descriptor").into());
        assert_eq!(socket.allow(most), most, "without a pace nothing is held");
        let rate = BitRate::from_mbps(500);
        socket.set_pacing(Some(rate)).expect("connected");
        let begun = Instant::now();
        let mut bytes = 0;
        let mut steps = 0;
        loop {
            let some = socket.allow(most);
            if some == most {
                break;
            }
            steps += 1;
            bytes += some as u64;
            assert!(steps <= kuroshio_sock::UNPACED_SEGMENTS, "{steps} steps");
            near.write_all(&vec![1; some]).expect("room in the buffers");
        }
        assert!(steps > 1, "{steps} steps");
        let due = Duration::from_nanos(bytes * 8_000_000_000 / rate.bps());
        assert!(begun.elapsed() >= due, "{bytes} bytes in {:?}", begun.elapsed());
        assert_eq!(socket.allow(most), most);
        assert_eq!(socket.allow(100), 100, "never more than is asked for");
    }
}
