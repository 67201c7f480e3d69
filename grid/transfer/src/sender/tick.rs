//! Ten times a second: paces are renewed (those that follow the window four times a round trip), `TCP_INFO` is sampled, and what limits is judged.
//!
//! Of the time that the stream threads had since the last look, one share went into reading, one into
//! digests, one into sockets, one into waiting for work. The largest decides; a socket's time is told apart
//! by the kernel's own accounts (`tcpi_rwnd_limited`, `tcpi_busy_time`) and by whether a pace was set.

use super::Sender;
use crate::limits::TICK_MS;
use crate::progress::{Limiter, StreamSnapshot};
use crate::session::StreamRate;
use kuroshio_sock::{TcpInfo, tcp_info};
use std::collections::VecDeque;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// Looks over which rates are averaged: about one second.
const WINDOW: usize = 10;
/// Receiver's threads this busy, in 1/1000, mean that it holds the transfer back.
const RECEIVER_BUSY: u64 = 500;

struct Watched {
    route: u32,
    rate: Arc<StreamRate>,
    socket: Option<TcpStream>,
    alive: Arc<AtomicBool>,
    last: Option<TcpInfo>,
    /// When the window is to be looked at again; `None`: at the tick.
    follow: Option<Instant>,
}

/// See the module.
pub(super) struct Ticker {
    streams: Vec<Watched>,
    looked: Instant,
    /// (when, acknowledged bytes) of the last looks.
    acked: VecDeque<(Instant, u64)>,
    /// read, hash, write, idle nanoseconds at the last look.
    spent: [u64; 4],
}

impl Ticker {
    pub(super) fn new() -> Self {
        Self {
            streams: Vec::new(),
            looked: Instant::now(),
            acked: VecDeque::new(),
            spent: [0; 4],
        }
    }

    /// Watches a stream; the caller clears the flag when it ends.
    pub(super) fn add(
        &mut self,
        route: u32,
        rate: Arc<StreamRate>,
        socket: Option<&TcpStream>,
    ) -> Arc<AtomicBool> {
        let alive = Arc::new(AtomicBool::new(true));
        let socket = socket.and_then(|s| s.try_clone().ok());
        let rate_follows = rate.follows_window();
        self.streams.push(Watched {
            route,
            rate,
            socket,
            alive: Arc::clone(&alive),
            follow: rate_follows.then(Instant::now),
            last: None,
        });
        alive
    }

    /// How long the caller may wait before it ticks again.
    pub(super) fn patience(&self) -> Duration {
        let tick = Duration::from_millis(TICK_MS);
        let now = Instant::now();
        let alive = self.streams.iter().filter(|s| s.alive.load(Ordering::SeqCst));
        alive
            .filter_map(|s| s.follow)
            .map(|at| at.saturating_duration_since(now))
            .fold(tick, Duration::min)
    }

    /// Streams that follow their window are told the rate of this moment, when it is time.
    fn follow(&mut self) {
        let now = Instant::now();
        let due = |s: &&mut Watched| s.follow.is_some_and(|at| at <= now) && s.alive.load(Ordering::SeqCst);
        for s in self.streams.iter_mut().filter(due) {
            // What fails now is tried again.
            let after = s.rate.look().ok().flatten();
            s.follow = Some(now + after.unwrap_or(Duration::from_millis(TICK_MS)));
        }
    }

    /// Looks, when it is time.
    pub(super) fn tick(&mut self, tx: &Sender<'_>) {
        self.follow();
        if self.looked.elapsed() >= Duration::from_millis(TICK_MS) {
            self.looked = Instant::now();
            self.look(tx);
        }
    }

    /// Looks once more, so that the last counters are those of the end.
    pub(super) fn last(&mut self, tx: &Sender<'_>) {
        self.look(tx);
    }

    fn look(&mut self, tx: &Sender<'_>) {
        let (mut busy_us, mut rwnd_us, mut paced) = (0u64, 0u64, false);
        let mut shown = Vec::with_capacity(self.streams.len());
        for s in &mut self.streams {
            let alive = s.alive.load(Ordering::SeqCst);
            let rate = s.rate.get();
            let follows = s.follow.is_some();
            if alive && rate.is_some() && !follows {
                // Again, because the segment size may have changed; what fails now is tried at the next look.
                let _ = s.rate.apply();
            }
            let info = s
                .socket
                .as_ref()
                .filter(|_| alive)
                .and_then(|sock| tcp_info(sock).ok());
            if let Some(info) = info {
                let before = s.last.unwrap_or_default();
                busy_us += info.busy_us.saturating_sub(before.busy_us);
                rwnd_us += info.rwnd_limited_us.saturating_sub(before.rwnd_limited_us);
                paced |= (rate.is_some() || follows)
                    && info.pacing_rate_bytes_per_s >= info.max_pacing_rate_bytes_per_s;
                s.last = Some(info);
            }
            let rate_bps = rate.map_or(0, |r| r.bps());
            shown.push(StreamSnapshot {
                route: s.route,
                alive,
                rate_bps,
                tcp: s.last,
            });
        }
        let c = &tx.progress.counters;
        let now = [&c.read_ns, &c.hash_ns, &c.write_ns, &c.idle_ns].map(|n| n.load(Ordering::Relaxed));
        let [read, hash, write, idle] = std::array::from_fn(|i| {
            now.get(i)
                .copied()
                .unwrap_or(0)
                .saturating_sub(self.spent.get(i).copied().unwrap_or(0))
        });
        self.spent = now;
        let receiver_busy = c.receiver_busy_permille.load(Ordering::Relaxed) >= RECEIVER_BUSY;
        let limited_by = match () {
            () if read + hash + write + idle == 0 => Limiter::Unknown,
            () if idle >= read.max(hash).max(write) && receiver_busy => Limiter::ReceiverDisk,
            () if idle >= read.max(hash).max(write) => Limiter::Unknown,
            () if read >= hash.max(write) => Limiter::SenderDisk,
            () if hash >= write => Limiter::Cpu,
            () if paced => Limiter::NetworkPace,
            () if rwnd_us * 2 > busy_us && receiver_busy => Limiter::ReceiverDisk,
            () if busy_us > 0 && min_rtt_is_small(&shown) => Limiter::Cpu,
            () => Limiter::Window,
        };
        let acked = c.bytes_acknowledged.load(Ordering::Relaxed);
        self.acked.push_back((Instant::now(), acked));
        if self.acked.len() > WINDOW + 1 {
            self.acked.pop_front();
        }
        let mut live = tx.progress.live.lock().unwrap_or_else(PoisonError::into_inner);
        live.streams = shown;
        live.limited_by = limited_by;
        live.rate_bytes_per_s = self.rate();
    }

    /// Acknowledged bytes per second over the window.
    fn rate(&self) -> u64 {
        let (Some(first), Some(last)) = (self.acked.front(), self.acked.back()) else {
            return 0;
        };
        let us = last.0.duration_since(first.0).as_micros();
        let bytes = u128::from(last.1.saturating_sub(first.1));
        u64::try_from((bytes * 1_000_000).checked_div(us).unwrap_or(0)).unwrap_or(u64::MAX)
    }
}

/// Whether all streams stay within one host (round trips below 200 us, as on loopback): then a window is
/// never what is missing.
fn min_rtt_is_small(streams: &[StreamSnapshot]) -> bool {
    streams.iter().filter_map(|s| s.tcp).all(|t| t.min_rtt_us < 200)
}
