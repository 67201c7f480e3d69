//! The writing half of a control connection: any thread posts, one thread coalesces and writes.
//!
//! Posting never blocks on the network, so that no reader of a control connection ever waits for the other
//! direction (two peers that both wait for the other to read would stand still). What waits is bounded by
//! [`MAX_WAITING`] items: a peer that does not read ends the session.

use crate::conn::Conn;
use crate::limits::MAX_BATCH;
use crate::wire::{Fwd, Rev, encode};
use serde::Serialize;
use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Messages that may wait for the network.
const MAX_WAITING: usize = 1 << 20;
/// A posted message waits so long for others to share its packet.
const COALESCE: Duration = Duration::from_micros(500);

/// Messages that can be joined with the one before.
pub(crate) trait Coalesce: Serialize + Sized {
    /// Joins `next` into `self`, or gives it back.
    fn join(&mut self, next: Self) -> Result<(), Self>;
}

fn append<T>(to: &mut Vec<T>, mut from: Vec<T>) -> Result<(), Vec<T>> {
    if to.len() + from.len() > MAX_BATCH {
        return Err(from);
    }
    to.append(&mut from);
    Ok(())
}

impl Coalesce for Fwd {
    fn join(&mut self, next: Self) -> Result<(), Self> {
        match (self, next) {
            (Self::FileDone(a), Self::FileDone(b)) => append(a, b).map_err(Self::FileDone),
            (_, next) => Err(next),
        }
    }
}

impl Coalesce for Rev {
    fn join(&mut self, next: Self) -> Result<(), Self> {
        match (self, next) {
            (Self::Have(a), Self::Have(b)) => append(a, b).map_err(Self::Have),
            (Self::Written(a), Self::Written(b)) => append(a, b).map_err(Self::Written),
            (Self::Bad(a), Self::Bad(b)) => append(a, b).map_err(Self::Bad),
            (Self::Durable(a), Self::Durable(b)) => append(a, b).map_err(Self::Durable),
            (_, next) => Err(next),
        }
    }
}

struct State<M> {
    waiting: VecDeque<M>,
    writing: bool,
    closed: bool,
    broken: Option<String>,
}

/// See the module.
pub(crate) struct Outbox<M> {
    state: Mutex<State<M>>,
    changed: Condvar,
}

impl<M: Coalesce> Outbox<M> {
    pub(crate) fn new() -> Self {
        let state = State {
            waiting: VecDeque::new(),
            writing: false,
            closed: false,
            broken: None,
        };
        Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<M>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a message.
    pub(crate) fn post(&self, message: M) {
        let mut s = self.lock();
        let was_empty = s.waiting.is_empty();
        let rest = match s.waiting.back_mut() {
            Some(last) => last.join(message).err(),
            None => Some(message),
        };
        if let Some(message) = rest {
            if s.waiting.len() >= MAX_WAITING {
                s.broken
                    .get_or_insert_with(|| "the other side does not read its control connection".into());
            } else {
                s.waiting.push_back(message);
            }
        }
        drop(s);
        if was_empty {
            self.changed.notify_all();
        }
    }

    /// Ends the writer once all that was posted is written.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// Writes until closed; returns the connection's end.
    ///
    /// # Errors
    /// What the connection gives; the overflow of the queue.
    pub(crate) fn run(&self, conn: &mut Conn) -> io::Result<()> {
        let done = self.write_all(conn);
        let mut s = self.lock();
        s.writing = false;
        if let Err(e) = &done {
            s.broken.get_or_insert_with(|| e.to_string());
        }
        s.waiting.clear();
        self.changed.notify_all();
        done
    }

    fn write_all(&self, conn: &mut Conn) -> io::Result<()> {
        let mut buf = Vec::new();
        loop {
            let mut s = self.lock();
            s.writing = false;
            while s.waiting.is_empty() && !s.closed {
                s = self.changed.wait(s).unwrap_or_else(PoisonError::into_inner);
            }
            if !s.closed {
                drop(s);
                std::thread::sleep(COALESCE);
                s = self.lock();
            }
            if let Some(why) = &s.broken {
                return Err(io::Error::other(why.clone()));
            }
            if s.waiting.is_empty() && s.closed {
                return conn.flush();
            }
            let batch = std::mem::take(&mut s.waiting);
            s.writing = true;
            drop(s);
            buf.clear();
            for message in &batch {
                buf.extend_from_slice(&encode(message)?);
            }
            conn.write_all(&buf)?;
            conn.flush()?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{FileRef, Part, read_message};
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn posts_arrive_in_order_and_joined() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
        let out = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
        let (mut from, _) = listener.accept().expect("accept");
        let outbox = Outbox::<Rev>::new();
        let part = |i| Part {
            file: FileRef { id: i, generation: 0 },
            offset: 0,
            len: 1,
        };
        for i in 0..3000 {
            outbox.post(Rev::Written(vec![part(i)]));
        }
        outbox.post(Rev::Have(vec![7]));
        outbox.close();
        std::thread::scope(|s| {
            s.spawn(|| {
                let mut conn = Conn::plain(out);
                outbox.run(&mut conn).expect("written");
                conn.finish().expect("finished");
            });
            let (mut ids, mut messages, mut scratch) = (Vec::new(), 0, Vec::new());
            while let Some(m) = read_message::<Rev>(&mut from, &mut scratch).expect("a message") {
                messages += 1;
                match m {
                    Rev::Written(parts) => ids.extend(parts.iter().map(|p| p.file.id)),
                    Rev::Have(ids) => assert_eq!(ids, [7]),
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!(ids, (0..3000).collect::<Vec<_>>());
            assert_eq!(messages, 4);
        });
    }
}
