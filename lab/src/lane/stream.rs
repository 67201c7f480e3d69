//! One stream of a live cell: a sender and a receiver, memory to memory, each in its host's network namespace.
//!
//! ```text
//! receiver: listen -> accept -> read and count until the end        main thread: reads the count at its moments
//! sender:   connect (CUBIC) -> write until the end
//! ```
//!
//! The end is a flag, or a number of bytes. TCP or MPTCP: the socket's protocol is all that differs.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;

use kuroshio_clock::{now_ns, sleep_until};
use kuroshio_testbed::Testbed;
use socket2::{Domain, Protocol, Socket, Type};

use super::LaneRunError;

/// How long a connection may take to be made, and a receiver to be bound.
const PATIENCE: Duration = Duration::from_secs(20);
/// Longest that a blocked read or write lasts before the flag is looked at.
const BLOCK: Duration = Duration::from_millis(50);
const BUFFER: usize = 256 << 10;

/// What a stream is.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    /// Name in messages.
    pub(super) name: &'static str,
    pub(super) from: &'static str,
    pub(super) to: &'static str,
    pub(super) address: SocketAddr,
    pub(super) mptcp: bool,
    /// The whole transfer; without it the stream has no end.
    pub(super) bytes: Option<u64>,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    begun_ns: AtomicU64,
    done_ns: AtomicU64,
    bytes: AtomicU64,
}

type Handle = JoinHandle<io::Result<io::Result<()>>>;

/// A running stream. Dropping it ends it.
pub(super) struct Stream {
    plan: Plan,
    shared: Arc<Shared>,
    threads: Vec<Handle>,
}

impl Stream {
    /// Binds the receiver, and has the sender begin at a moment of `CLOCK_MONOTONIC`, ns.
    pub(super) fn start(tb: &Testbed, plan: &Plan, at_ns: u64) -> Result<Self, LaneRunError> {
        let shared = Arc::new(Shared::default());
        let mut stream = Self {
            plan: plan.clone(),
            shared: Arc::clone(&shared),
            threads: Vec::new(),
        };
        let (tell, ready) = channel();
        let (its, state) = (plan.clone(), Arc::clone(&shared));
        stream.threads.push(tb.in_host(plan.to, move || {
            let listener = listen(&its)?;
            // The other end waits for it, or has given up.
            let _ = tell.send(());
            receive(&listener, &its, &state)
        })?);
        if ready.recv_timeout(PATIENCE).is_err() {
            stream.finish()?;
            return Err(LaneRunError::Stream(plan.name, ErrorKind::TimedOut.into()));
        }
        let its = plan.clone();
        stream.threads.push(tb.in_host(plan.from, move || {
            sleep_until(at_ns, 0);
            send(&its, &shared)
        })?);
        Ok(stream)
    }

    /// Payload bytes received so far.
    pub(super) fn bytes(&self) -> u64 {
        self.shared.bytes.load(Ordering::Acquire)
    }

    /// When the sender began, and when all bytes had come, ns.
    pub(super) fn times_ns(&self) -> (u64, Option<u64>) {
        let done = self.shared.done_ns.load(Ordering::Acquire);
        (
            self.shared.begun_ns.load(Ordering::Acquire),
            Some(done).filter(|ns| *ns > 0),
        )
    }

    /// Ends it, and says what went wrong with it.
    pub(super) fn finish(mut self) -> Result<(), LaneRunError> {
        self.shared.stop.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            let result = match thread.join() {
                Ok(result) => result.and_then(|inner| inner),
                Err(_) => Err(io::Error::other("its thread panicked")),
            };
            result.map_err(|e| LaneRunError::Stream(self.plan.name, e))?;
        }
        Ok(())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
    }
}

fn socket(plan: &Plan) -> io::Result<Socket> {
    let protocol = if plan.mptcp {
        Protocol::MPTCP
    } else {
        Protocol::TCP
    };
    Socket::new(Domain::for_address(plan.address), Type::STREAM, Some(protocol))
}

fn listen(plan: &Plan) -> io::Result<TcpListener> {
    let socket = socket(plan)?;
    // On every address: MPTCP's second subflow comes to the other one.
    let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), plan.address.port());
    socket.set_reuse_address(true)?;
    socket.bind(&any.into())?;
    socket.listen(1)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

fn due(e: &io::Error) -> bool {
    matches!(
        e.kind(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}

fn receive(listener: &TcpListener, plan: &Plan, shared: &Shared) -> io::Result<()> {
    let mut stream = loop {
        match listener.accept() {
            Ok((stream, _)) => break stream,
            Err(e) if due(&e) => {
                if shared.stop.load(Ordering::Acquire) {
                    return Ok(());
                }
                // The listener has no time limit of its own: look again shortly.
                sleep_until(now_ns() + 1_000_000, 0);
            }
            Err(e) => return Err(e),
        }
    };
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(BLOCK))?;
    let mut buffer = vec![0; BUFFER];
    let mut total = 0u64;
    while !shared.stop.load(Ordering::Acquire) {
        match stream.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(n) => {
                total += n as u64;
                shared.bytes.store(total, Ordering::Release);
                if plan.bytes.is_some_and(|all| total >= all) {
                    shared.done_ns.store(now_ns(), Ordering::Release);
                    return Ok(());
                }
            }
            Err(e) if due(&e) => {}
            Err(e) if e.kind() == ErrorKind::ConnectionReset => return Ok(()),
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn send(plan: &Plan, shared: &Shared) -> io::Result<()> {
    let socket = socket(plan)?;
    kuroshio_sock::set_congestion(&socket, "cubic")?;
    shared.begun_ns.store(now_ns(), Ordering::Release);
    socket.connect_timeout(&plan.address.into(), PATIENCE)?;
    let mut stream = TcpStream::from(socket);
    stream.set_write_timeout(Some(BLOCK))?;
    let buffer = vec![0; BUFFER];
    let mut left = plan.bytes.unwrap_or(u64::MAX);
    while !shared.stop.load(Ordering::Acquire) {
        if left == 0 {
            // The receiver has not everything yet; the end of the stream tells it nothing.
            sleep_until(now_ns() + 1_000_000, 0);
            continue;
        }
        let part = usize::try_from(left).map_or(BUFFER, |left| left.min(BUFFER));
        match stream.write(&buffer[..part]) {
            Ok(n) => left -= n as u64,
            Err(e) if due(&e) => {}
            // The receiver has what it wants.
            Err(e) if matches!(e.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => return Ok(()),
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
