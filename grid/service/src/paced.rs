//! The socket of a request, whose pace may be set while its answers are sent.
//!
//! Each request of a connection finds it in its extensions. A pace holds until the next one is set; ten times a second the
//! rate told to the kernel is trimmed so that the average becomes the one asked for ([`kuroshio_sock::keep_pacing`]).

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use kuroshio_core::units::BitRate;
use kuroshio_sock::{Trim, keep_pacing, set_congestion, set_pacing};

/// How often the kernel's rate is trimmed.
const TICK: Duration = Duration::from_millis(100);

struct Pace {
    rate: Option<BitRate>,
    trim: Trim,
    ticks: bool,
    congestion: Option<String>,
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
