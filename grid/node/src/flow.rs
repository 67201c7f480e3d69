//! How fast a pull may ask, and its end.
//!
//! A pull asks its source for pieces; each request carries the rate at which it is to be sent. So a request is the
//! use of a lease: what was asked for before a new rate came is on its way at the old one, and a pull asks for nothing that would not be
//! here before its lease ends. `used` is what the arbiter needs to know: the newest rate that everything under
//! way has.

use std::collections::BTreeMap;
use std::net::{Shutdown, TcpStream};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kuroshio_client::{Cancel, v1};

/// How often a pull that waits looks whether it is called off.
const LOOK_EVERY: Duration = Duration::from_millis(100);

struct State {
    /// All streams together, frame level; `None`: no limit.
    rate_bps: Option<u64>,
    serial: u64,
    until: Option<Instant>,
    /// Requests under way by serial.
    under_way: BTreeMap<u64, usize>,
    sockets: Vec<TcpStream>,
}

/// A pull from outside.
pub struct Flow {
    /// Bytes moved, and whether it was called off.
    pub cancel: Cancel,
    streams: u64,
    state: Mutex<State>,
    changed: Condvar,
}

/// The right to ask for something.
pub struct Ask {
    /// Rate of the stream that asks, frame level; 0: no limit.
    pub rate_bps: u64,
    /// Which grant it is of; to be given back by [`Flow::here`].
    pub serial: u64,
}

fn limits(rate_bps: u64, ttl_ms: u64, sent: Instant) -> (Option<u64>, Option<Instant>) {
    match ttl_ms {
        0 => ((rate_bps > 0).then_some(rate_bps), None),
        ms => (Some(rate_bps), Some(sent + Duration::from_millis(ms))),
    }
}

impl Flow {
    /// Of an order that answered a heartbeat sent at `sent`.
    pub fn new(order: &v1::Order, sent: Instant) -> Self {
        let none = v1::Pull::default();
        let pull = match &order.what {
            Some(v1::order::What::Pull(pull)) => pull,
            _ => &none,
        };
        let (rate_bps, until) = limits(pull.rate_bps, pull.ttl_ms, sent);
        Self {
            cancel: Cancel::default(),
            streams: u64::from(pull.streams.max(1)),
            state: Mutex::new(State {
                rate_bps,
                serial: pull.serial,
                until,
                under_way: BTreeMap::new(),
                sockets: Vec::new(),
            }),
            changed: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new rate, from an answer to a heartbeat sent at `sent`.
    pub fn set(&self, pace: &v1::Pace, sent: Instant) {
        let mut state = self.state();
        if pace.serial < state.serial {
            return;
        }
        state.serial = pace.serial;
        (state.rate_bps, state.until) = limits(pace.rate_bps, pace.ttl_ms, sent);
        self.changed.notify_all();
    }

    /// The newest serial that everything under way has.
    pub fn used(&self) -> u64 {
        let state = self.state();
        state.under_way.keys().next().copied().unwrap_or(state.serial)
    }

    /// Calls it off; reads that wait end.
    pub fn stop(&self) {
        self.cancel.stop();
        for socket in self.state().sockets.drain(..) {
            // It may have ended by itself.
            let _ = socket.shutdown(Shutdown::Both);
        }
        self.changed.notify_all();
    }

    /// A socket that [`Self::stop`] ends.
    pub fn watch(&self, socket: TcpStream) {
        if self.cancel.is_stopped() {
            let _ = socket.shutdown(Shutdown::Both);
        } else {
            self.state().sockets.push(socket);
        }
    }

    /// The rate of one stream now, bit/s at frame level; `None`: no limit.
    pub fn stream_bps(&self) -> Option<u64> {
        self.state().rate_bps.map(|r| r / self.streams)
    }

    /// The right to ask for what is here `drain` after it was asked for at the rate of now; waits for at most
    /// `patience` when there is none. `None`: not now.
    pub fn ask(&self, bytes: u64, rtt: Duration, patience: Duration) -> Option<Ask> {
        let deadline = Instant::now() + patience;
        let mut state = self.state();
        loop {
            if self.cancel.is_stopped() {
                return None;
            }
            let rate_bps = state.rate_bps.map(|r| r / self.streams);
            let drain = match rate_bps {
                None => Duration::ZERO,
                Some(bps) => rtt + Duration::from_millis(bytes.saturating_mul(8000) / bps.max(1)),
            };
            let now = Instant::now();
            let in_time = state.until.is_none_or(|until| now + drain < until);
            if rate_bps != Some(0) && in_time {
                let serial = state.serial;
                *state.under_way.entry(serial).or_default() += 1;
                let rate_bps = rate_bps.unwrap_or(0);
                return Some(Ask { rate_bps, serial });
            }
            if now >= deadline {
                return None;
            }
            let wait = LOOK_EVERY.min(deadline - now);
            let waited = self.changed.wait_timeout(state, wait);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// What was asked for with a grant of this serial is here, or will never be.
    pub fn here(&self, serial: u64) {
        let mut state = self.state();
        if let Some(count) = state.under_way.get_mut(&serial) {
            *count -= 1;
            if *count == 0 {
                state.under_way.remove(&serial);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(100);

    fn flow(rate_bps: u64, ttl_ms: u64, streams: u32, sent: Instant) -> Flow {
        let pull = v1::Pull {
            rate_bps,
            ttl_ms,
            streams,
            serial: 5,
            ..v1::Pull::default()
        };
        let order = v1::Order {
            what: Some(v1::order::What::Pull(pull)),
            ..v1::Order::default()
        };
        Flow::new(&order, sent)
    }

    #[test]
    fn nothing_is_asked_for_that_comes_after_the_lease() {
        let now = Instant::now();
        let flow = flow(8_000_000, 60_000, 2, now);
        assert_eq!(flow.stream_bps(), Some(4_000_000));
        // 0.5 MB/s for each stream: 25 MB take 50 s, 30 MB too long.
        let ask = flow.ask(25_000_000, RTT, Duration::ZERO).expect("in time");
        assert_eq!((ask.rate_bps, ask.serial), (4_000_000, 5));
        assert!(flow.ask(30_000_000, RTT, Duration::ZERO).is_none());
        let past = now.checked_sub(Duration::from_secs(61)).unwrap_or(now);
        let pace = |serial, rate_bps, ttl_ms| v1::Pace {
            order: 1,
            rate_bps,
            serial,
            ttl_ms,
        };
        flow.set(&pace(6, 8_000_000, 60_000), past);
        assert!(flow.ask(1, RTT, Duration::ZERO).is_none(), "it has ended");
        flow.set(&pace(7, 0, 60_000), now);
        assert!(flow.ask(1, RTT, Duration::ZERO).is_none(), "not at all");
        flow.set(&pace(6, 8_000_000, 60_000), now);
        assert!(
            flow.ask(1, RTT, Duration::ZERO).is_none(),
            "an older one does not count"
        );
        assert_eq!(flow.used(), 5, "what was asked for first is still under way");
        flow.here(5);
        assert_eq!(flow.used(), 7);
        flow.set(&pace(8, 0, 0), now);
        assert_eq!(
            flow.ask(u64::MAX, RTT, Duration::ZERO).map(|a| a.rate_bps),
            Some(0)
        );
    }

    #[test]
    fn a_stopped_flow_asks_for_nothing_and_wakes_who_waits() {
        let flow = flow(0, 60_000, 1, Instant::now());
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| flow.ask(1, RTT, Duration::from_secs(60)).is_none());
            flow.stop();
            assert!(waits.join().expect("ends"));
        });
    }
}
