//! The data service for clients of this host: files are handed over (see `kuroshio_service::near`).
//!
//! A reader gets the object's own file, opened to be read: its first bytes are the content. A writer gives a file
//! with a part of it, or all; it is copied, verified and flushed as by HTTP.

use std::collections::HashMap;
use std::fs::File;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kuroshio_proto::parse_object_path;
use kuroshio_service::near::{self, Ask, Told};
use kuroshio_service::{Claims, Operation, Pin};
use kuroshio_store::{ObjectId, hex};

use crate::control::object_id;
use crate::data::Refusal;
use crate::drafts::{Bytes, Part};
use crate::server::Shared;

/// Clients at once; more are turned away and speak HTTP.
const MAX_CLIENTS: usize = 128;
/// A client that is silent for so long is let go.
const IDLE_LIMIT: Duration = Duration::from_secs(60);
/// Longest wait for connections to end when the node stops.
const STOP_LIMIT: Duration = Duration::from_secs(5);

/// The service for clients of this host, until it is stopped.
pub struct Near {
    pin: Pin,
    open: Arc<Open>,
    thread: Option<JoinHandle<()>>,
}

/// Connections that are open, to be ended with the node.
#[derive(Default)]
struct Open {
    streams: Mutex<(u64, HashMap<u64, UnixStream>)>,
    gone: Condvar,
}

impl Open {
    fn streams(&self) -> MutexGuard<'_, (u64, HashMap<u64, UnixStream>)> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a connection; none if there are too many.
    fn enter(&self, stream: &UnixStream) -> Option<u64> {
        let twin = stream.try_clone().ok()?;
        let mut streams = self.streams();
        if streams.1.len() >= MAX_CLIENTS {
            return None;
        }
        streams.0 += 1;
        let number = streams.0;
        streams.1.insert(number, twin);
        Some(number)
    }

    fn leave(&self, number: u64) {
        self.streams().1.remove(&number);
        self.gone.notify_all();
    }
}

impl Near {
    /// Begins to serve. Where that cannot be, clients of this host speak HTTP.
    pub fn start(shared: Arc<Shared>, pin: Pin) -> Option<Self> {
        let open = Arc::new(Open::default());
        let theirs = open.clone();
        let thread = near::listen(pin).and_then(|listener| {
            let work = move || accept(&shared, &listener, &theirs);
            std::thread::Builder::new().name("near".into()).spawn(work)
        });
        match thread {
            Ok(thread) => Some(Self {
                pin,
                open,
                thread: Some(thread),
            }),
            Err(e) => {
                tracing::warn!("clients of this host are served through TLS only: {e}");
                None
            }
        }
    }

    /// Ends all connections; the node was told to stop before.
    pub fn stop(mut self) {
        if let Some(thread) = self.thread.take() {
            // It looks at each client whether it is to stop.
            if near::connect(self.pin, STOP_LIMIT).is_ok() {
                let _ = thread.join();
            }
        }
        let mut streams = self.open.streams();
        for stream in streams.1.values() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        let deadline = Instant::now() + STOP_LIMIT;
        while !streams.1.is_empty() && Instant::now() < deadline {
            let waited = self.open.gone.wait_timeout(streams, STOP_LIMIT);
            streams = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

fn accept(shared: &Arc<Shared>, listener: &UnixListener, open: &Arc<Open>) {
    for stream in listener.incoming() {
        if shared.is_stopping() {
            return;
        }
        let Ok(stream) = stream else { continue };
        let Some(number) = open.enter(&stream) else {
            continue;
        };
        let (shared, theirs) = (shared.clone(), open.clone());
        let work = move || {
            serve(&shared, &stream);
            // The store is let go before the node hears that this has ended.
            drop(shared);
            theirs.leave(number);
        };
        if std::thread::Builder::new()
            .name("near".into())
            .spawn(work)
            .is_err()
        {
            open.leave(number);
        }
    }
}

fn serve(shared: &Arc<Shared>, stream: &UnixStream) {
    let limited = stream
        .set_read_timeout(Some(IDLE_LIMIT))
        .and_then(|()| stream.set_write_timeout(Some(IDLE_LIMIT)));
    if limited.is_err() {
        return;
    }
    // What is no message, and silence, end the connection.
    while let Ok(Some((ask, file))) = near::receive::<Ask>(stream) {
        let (told, file) = match answer(shared, ask, file) {
            Ok(answer) => answer,
            Err(Refusal(status, text)) => {
                let status = status.as_u16();
                tracing::warn!(status, "refused on this host: {text}");
                (Told::Refused { status, text }, None)
            }
        };
        let sent = near::send(stream, &told, file.as_ref().and_then(near::file_of));
        if sent.is_err() || shared.is_stopping() {
            return;
        }
    }
}

fn answer(shared: &Shared, ask: Ask, file: Option<OwnedFd>) -> Result<(Told, Option<File>), Refusal> {
    match ask {
        Ask::Read { token, path } => {
            let (id, _) = allowed(shared, &token, &path, Operation::Read)?;
            let reader = shared.store.read(id)?;
            let size_bytes = reader.size();
            let file = reader.file().try_clone();
            let file = file.map_err(|e| Refusal::bad(format!("object {id}: {e}")))?;
            Ok((Told::Read { size_bytes }, Some(file)))
        }
        Ask::Part {
            token,
            path,
            at_bytes,
            size_bytes,
            total_bytes,
        } => {
            let (id, claims) = allowed(shared, &token, &path, Operation::Modify)?;
            let part = Part {
                start: at_bytes,
                len: size_bytes,
                total: total_bytes,
            };
            let Some(file) = file.map(File::from) else {
                return Err(Refusal::bad("a write needs a file"));
            };
            check(&part, &file)?;
            let bytes = Bytes::File(&file);
            let sealed = shared.drafts.write(&shared.store, id, &part, &bytes, &claims)?;
            let told = sealed.map_or(Told::Taken {}, |sealed| Told::Written {
                digest: hex(&sealed.digest),
                mac: shared.receipt(&sealed),
            });
            Ok((told, None))
        }
    }
}

/// Whether a part is one, and its file has its bytes.
fn check(part: &Part, file: &File) -> Result<(), Refusal> {
    let end = part.start.checked_add(part.len);
    if part.len == 0 || end.is_none_or(|end| part.total.is_some_and(|total| end > total)) {
        return Err(Refusal::bad(format!(
            "{} bytes from {} on are no part of an object of {:?} bytes",
            part.len, part.start, part.total
        )));
    }
    let meta = file.metadata();
    let meta = meta.map_err(|e| Refusal::bad(format!("the file: {e}")))?;
    if !meta.is_file() || meta.len() < part.len {
        return Err(Refusal::bad(format!("not a file of {} bytes", part.len)));
    }
    Ok(())
}

/// The object of a right, and what the right says.
fn allowed(
    shared: &Shared,
    token: &str,
    path: &str,
    operation: Operation,
) -> Result<(ObjectId, Claims), Refusal> {
    let Some(joined) = shared.joined.get() else {
        return Err(Refusal::unavailable("this node has not joined its grid yet"));
    };
    let claims = joined.verifier.check(token)?;
    claims.allow(operation, path.as_bytes())?;
    let (inode, generation, fragment) = parse_object_path(path)
        .ok_or_else(|| Refusal::bad("objects are /.kuroshio/objects/INODE/GENERATION/FRAGMENT"))?;
    let id = object_id(inode, generation, fragment).map_err(Refusal::bad)?;
    Ok((id, claims))
}
