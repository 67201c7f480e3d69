//! The answer of a third-party copy: performance markers while it runs, then how it ended.
//!
//! ```text
//!   Perf Marker
//!       Timestamp: 1537788010
//!       Stripe Index: 0
//!       Stripe Bytes Transferred: 238745
//!       Total Stripe Count: 1
//!       RemoteConnections: tcp:129.93.3.4:1234
//!   End
//!   success: Created
//! ```
//!
//! WLCG HTTP-TPC, "Performance Markers". Who no longer listens to them has given the copy up.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::body::Bytes;
use kuroshio_service::door::Pieces;
use kuroshio_service::now_unix_s;
use tokio::time::{Instant, interval_at};

use crate::refusal::Refusal;
use crate::{MARKER_S, REMOTE_SILENCE_S};

/// How far a copy is.
#[derive(Default)]
pub struct Progress {
    bytes: AtomicU64,
    remote: Mutex<Option<SocketAddr>>,
}

impl Progress {
    /// Counts bytes that were moved.
    pub fn add(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Begins anew, with this server.
    pub fn begin(&self, remote: SocketAddr) {
        self.bytes.store(0, Ordering::Relaxed);
        *self.remote.lock().unwrap_or_else(PoisonError::into_inner) = Some(remote);
    }

    fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    fn marker(&self, now_unix_s: u64) -> String {
        let remote = *self.remote.lock().unwrap_or_else(PoisonError::into_inner);
        let remote = remote.map_or_else(String::new, |r| format!("    RemoteConnections: tcp:{r}\n"));
        format!(
            "Perf Marker\n    Timestamp: {now_unix_s}\n    Stripe Index: 0\n    Stripe Bytes Transferred: {}\n    \
             Total Stripe Count: 1\n{remote}End\n",
            self.bytes()
        )
    }
}

/// Does `work` and tells `lines` of it; gives it up when nobody listens or nothing moves.
pub async fn run(
    lines: Pieces,
    progress: Arc<Progress>,
    work: impl Future<Output = Result<(), Refusal>>,
) -> Result<(), Refusal> {
    let mut work = std::pin::pin!(work);
    let every = Duration::from_secs(MARKER_S);
    let mut ticks = interval_at(Instant::now() + every, every);
    let mut moved = (progress.bytes(), Instant::now());
    let ended = loop {
        tokio::select! {
            ended = &mut work => break ended,
            () = lines.closed() => break Err(Refusal::bad("given up: the client has gone")),
            _ = ticks.tick() => {
                if progress.bytes() != moved.0 {
                    moved = (progress.bytes(), Instant::now());
                } else if moved.1.elapsed() > Duration::from_secs(REMOTE_SILENCE_S) {
                    break Err(Refusal::busy(format!("nothing moved for {REMOTE_SILENCE_S} s")));
                }
                if lines.send(Ok(Bytes::from(progress.marker(now_unix_s())))).await.is_err() {
                    break Err(Refusal::bad("given up: the client has gone"));
                }
            }
        }
    };
    let last = match &ended {
        Ok(()) => format!("{}success: Created\n", progress.marker(now_unix_s())),
        Err(refusal) => format!("failure: {}\n", refusal.text.replace(['\r', '\n'], " ")),
    };
    let _ = lines.send(Ok(Bytes::from(last))).await;
    ended
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::mpsc;

    fn runtime() -> tokio::runtime::Runtime {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("runtime")
    }

    async fn all(mut lines: mpsc::Receiver<std::io::Result<Bytes>>) -> String {
        let mut text = String::new();
        while let Some(line) = lines.recv().await {
            text.push_str(&String::from_utf8_lossy(&line.expect("a line")));
        }
        text
    }

    #[test]
    fn the_last_line_says_how_it_ended() {
        runtime().block_on(async {
            let progress = Arc::new(Progress::default());
            progress.begin(SocketAddr::from(([192, 0, 2, 1], 443)));
            progress.add(7);
            let (tx, rx) = mpsc::channel(4);
            run(tx, progress.clone(), async { Ok(()) }).await.expect("done");
            let text = all(rx).await;
            assert!(
                text.contains("Stripe Bytes Transferred: 7\n") && text.contains("tcp:192.0.2.1:443\n"),
                "{text}"
            );
            assert!(text.ends_with("End\nsuccess: Created\n"), "{text}");
            let (tx, rx) = mpsc::channel(4);
            let failed = run(tx, progress, async { Err(Refusal::bad("one\ntwo")) }).await;
            assert!(failed.is_err());
            assert_eq!(all(rx).await, "failure: one two\n");
        });
    }

    #[test]
    fn a_client_that_goes_ends_the_copy() {
        runtime().block_on(async {
            let (tx, rx) = mpsc::channel(4);
            drop(rx);
            let ended = run(tx, Arc::default(), std::future::pending()).await;
            assert!(ended.is_err_and(|r| r.text.contains("gone")));
        });
    }
}
