//! How the threads of one side of a session learn that it is over.

use crate::conn::Conn;
use crate::error::TransferError;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// First error wins; every socket of the session is shut down with it, so that blocked threads wake.
#[derive(Default)]
pub(crate) struct End {
    over: AtomicBool,
    error: Mutex<Option<TransferError>>,
    sockets: Mutex<Vec<TcpStream>>,
}

impl End {
    /// Whether the threads should leave.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// Registers a connection to be shut down at the end.
    pub(crate) fn watch(&self, conn: &Conn) {
        if let Some(socket) = conn.tcp().and_then(|t| t.try_clone().ok()) {
            let mut sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
            if self.is_over() {
                let _ = socket.shutdown(Shutdown::Both);
            }
            sockets.push(socket);
        }
    }

    /// Ends the session with an error, unless it is over already.
    pub(crate) fn fail(&self, error: TransferError) {
        let mut slot = self.error.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.over.swap(true, Ordering::SeqCst) {
            *slot = Some(error);
        }
        drop(slot);
        self.shut();
    }

    /// Ends the session well.
    pub(crate) fn finish(&self) {
        self.over.store(true, Ordering::SeqCst);
        self.shut();
    }

    fn shut(&self) {
        let sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        for socket in sockets.iter() {
            // A socket that is closed already needs no shutdown.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    /// The error that ended the session.
    pub(crate) fn take_error(&self) -> Option<TransferError> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
