//! Streams that join a running session, and other reasons to look up.

use crate::session::DataConn;
use std::sync::mpsc::{Receiver, Sender};

/// Why a session's main loop wakes.
pub(crate) enum Wake {
    /// A data stream joins.
    Stream(DataConn),
    /// No further stream will join.
    NoMoreStreams,
    /// Something may be finished.
    Look,
}

/// Hands the caller's streams on to the main loop. The thread ends when the caller drops its end of the
/// channel, or with the first stream after the session is over.
pub(crate) fn forward(data: Receiver<DataConn>, wake: Sender<Wake>) {
    // Streams that are there already need no thread to come in.
    loop {
        match data.try_recv() {
            Ok(conn) => {
                let _ = wake.send(Wake::Stream(conn));
            }
            Err(std::sync::mpsc::TryRecvError::Disconnected) => {
                let _ = wake.send(Wake::NoMoreStreams);
                return;
            }
            Err(std::sync::mpsc::TryRecvError::Empty) => break,
        }
    }
    std::thread::spawn(move || {
        while let Ok(conn) = data.recv() {
            if wake.send(Wake::Stream(conn)).is_err() {
                return;
            }
        }
        let _ = wake.send(Wake::NoMoreStreams);
    });
}
