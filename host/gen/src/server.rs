//! The receiver: a few senders at once, each on a control connection and a UDP socket of its own.
//!
//! Nobody is asked who he is, so it listens on loopback unless told otherwise. It sends no datagram, and takes
//! only those that come from the address of the control connection.

use std::io::{self, BufReader};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use kuroshio_core::traffic::MAX_STREAMS;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::clock::Clock;
use crate::control::{Answer, Kind, LINE_LIMIT, MAX_REQUEST_BYTES, Request, VERSION, read_line, write_line};
use crate::error::GenError;
use crate::receive::{Run, RunReport};
use crate::sys::{Batch, receive_buffer, stamp_receives};

/// The port of the control connection, unless another is named.
pub const GEN_PORT: u16 = 5210;
/// Most senders at once; more are refused.
pub const MAX_SESSIONS: u32 = 4;
/// Receive buffer that is asked for.
const BUFFER_BYTES: i32 = 64 << 20;
/// Silence after the end of a run that ends the wait for missing frames.
const QUIET: Duration = Duration::from_millis(500);
/// Longest wait for missing frames that keep coming.
const LONGEST_TAIL: Duration = Duration::from_secs(30);
/// Longest run.
const LONGEST_RUN: Duration = Duration::from_secs(24 * 3600);

fn wait_ms(ms: i64) -> Timespec {
    Timespec {
        tv_sec: ms / 1_000,
        tv_nsec: ms % 1_000 * 1_000_000,
    }
}

/// Told after every run: the sender's address and the figures.
pub type OnReport = Arc<dyn Fn(SocketAddr, &RunReport) + Send + Sync>;

/// A receiver that listens.
pub struct Server {
    listener: TcpListener,
    stop: Arc<AtomicBool>,
    sessions: Arc<AtomicU32>,
    one_off: bool,
    on: OnReport,
}

impl Server {
    /// Listens; with `one_off` for a single sender.
    ///
    /// # Errors
    /// An address that cannot be had.
    pub fn bind(address: SocketAddr, one_off: bool, on: OnReport) -> Result<Self, GenError> {
        let listen = || -> io::Result<TcpListener> {
            let listener = TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        };
        Ok(Self {
            listener: listen().map_err(GenError::io(format!("listening on {address}")))?,
            stop: Arc::default(),
            sessions: Arc::default(),
            one_off,
            on,
        })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// The system's.
    pub fn address(&self) -> Result<SocketAddr, GenError> {
        self.listener
            .local_addr()
            .map_err(GenError::io("the own address"))
    }

    /// Set to true, this ends [`Server::serve`] within a tenth of a second.
    #[must_use]
    pub fn stopper(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.stop)
    }

    /// Serves until it is stopped, or with `one_off` until one sender has gone.
    ///
    /// # Errors
    /// When waiting for connections fails; with `one_off`, what ended the session.
    pub fn serve(&self) -> Result<(), GenError> {
        while !self.stop.load(Ordering::Acquire) {
            let mut fds = [PollFd::new(&self.listener, PollFlags::IN)];
            match poll(&mut fds, Some(&wait_ms(100))) {
                Ok(0) | Err(rustix::io::Errno::INTR) => continue,
                Ok(_) => {}
                Err(e) => return Err(GenError::io("waiting for senders")(e.into())),
            }
            let Ok((stream, _)) = self.listener.accept() else {
                continue;
            };
            if self.one_off {
                return serve_control(stream, &self.stop, &*self.on);
            }
            self.spawn(stream);
        }
        Ok(())
    }

    fn spawn(&self, stream: TcpStream) {
        let more = |n: u32| (n < MAX_SESSIONS).then_some(n + 1);
        if self
            .sessions
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, more)
            .is_err()
        {
            return refuse(stream, &format!("{MAX_SESSIONS} senders are there already"));
        }
        let (stop, sessions, on) = (self.stopper(), Arc::clone(&self.sessions), Arc::clone(&self.on));
        let body = move || {
            if let Err(e) = serve_control(stream, &stop, &*on) {
                eprintln!("kuroshio gen: a sender's session: {e}");
            }
            sessions.fetch_sub(1, Ordering::AcqRel);
        };
        // Without a thread the connection is closed.
        if std::thread::Builder::new()
            .name("gen-session".into())
            .spawn(body)
            .is_err()
        {
            self.sessions.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// Tells a sender that it is not served, and why.
pub fn refuse(mut stream: TcpStream, why: &str) {
    let error = why.to_owned();
    // The sender may be gone, and is not waited for.
    let _ = stream.set_write_timeout(Some(Duration::from_secs(1)));
    let _ = write_line(&mut stream, &Answer::Refused { error });
}

/// Serves one sender on a connection that was accepted.
///
/// # Errors
/// What ended the session before its end.
pub fn serve_control(
    stream: TcpStream,
    stop: &AtomicBool,
    on: &(dyn Fn(SocketAddr, &RunReport) + Send + Sync),
) -> Result<(), GenError> {
    let prepared = |stream: &TcpStream| -> io::Result<(SocketAddr, IpAddr)> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(LINE_LIMIT))?;
        stream.set_write_timeout(Some(LINE_LIMIT))?;
        Ok((stream.peer_addr()?, stream.local_addr()?.ip()))
    };
    let (peer, local) = prepared(&stream).map_err(GenError::io("a sender's connection"))?;
    let writer = stream
        .try_clone()
        .map_err(GenError::io("a sender's connection"))?;
    let mut serving = Serving {
        peer,
        local,
        reader: BufReader::with_capacity(16 << 10, stream),
        writer,
        clock: Clock::here(),
        dropped: 0,
        stop,
        on,
    };
    serving.all().inspect_err(|e| {
        let error = e.to_string();
        // The connection may be gone.
        let _ = write_line(&mut serving.writer, &Answer::Refused { error });
    })
}

struct Serving<'a> {
    peer: SocketAddr,
    local: IpAddr,
    reader: BufReader<TcpStream>,
    writer: TcpStream,
    clock: Clock,
    dropped: u32,
    stop: &'a AtomicBool,
    on: &'a (dyn Fn(SocketAddr, &RunReport) + Send + Sync),
}

impl Serving<'_> {
    fn request(&mut self) -> Result<Option<Request>, GenError> {
        read_line(&mut self.reader, MAX_REQUEST_BYTES)
    }

    fn all(&mut self) -> Result<(), GenError> {
        let streams = match self.request()? {
            Some(Request::Hello { version, streams, .. }) => {
                if version != VERSION || !(1..=MAX_STREAMS).contains(&streams) {
                    return Err(GenError::Protocol(format!(
                        "version {version} with {streams} streams: version {VERSION} with 1 to {MAX_STREAMS}"
                    )));
                }
                streams
            }
            Some(_) => return Err(GenError::Protocol("no hello".to_owned())),
            None => return Ok(()),
        };
        let socket = self.socket().map_err(GenError::io("a UDP socket"))?;
        let udp_port = socket.local_addr().map_err(GenError::io("a UDP socket"))?.port();
        let clock = self.clock.clone();
        write_line(&mut self.writer, &Answer::Welcome { udp_port, clock })?;
        let mut batch = Batch::new();
        loop {
            match self.request()? {
                None => return Ok(()),
                Some(Request::Begin { run, kind }) => {
                    // The clock may have been stepped, or told its seconds, since.
                    self.clock = Clock::here();
                    let peer = self.peer.ip().to_canonical();
                    let mut run = Run::new(run, kind, streams, peer, &self.clock, self.dropped);
                    write_line(&mut self.writer, &Answer::Ready)?;
                    let sent = self.receive(&mut run, &socket, &mut batch)?;
                    self.dropped = run.dropped();
                    self.answer(&mut run, kind, &sent)?;
                }
                Some(_) => return Err(GenError::Protocol("a run that was not begun".to_owned())),
            }
        }
    }

    fn socket(&self) -> io::Result<UdpSocket> {
        let socket = UdpSocket::bind((self.local, 0))?;
        socket.set_nonblocking(true)?;
        stamp_receives(&socket)?;
        receive_buffer(&socket, BUFFER_BYTES)?;
        Ok(socket)
    }

    /// Takes frames until the sender says that it is at its end, then until all are there or silence.
    fn receive(
        &mut self,
        run: &mut Run,
        socket: &UdpSocket,
        batch: &mut Batch,
    ) -> Result<Vec<u64>, GenError> {
        let begun = Instant::now();
        let mut sent: Option<(Vec<u64>, Instant)> = None;
        let mut last = Instant::now();
        loop {
            while run.drain(socket, batch)? > 0 {
                last = Instant::now();
            }
            if self.stop.load(Ordering::Relaxed) {
                return Err(GenError::Interrupted);
            }
            if let Some((counts, ended)) = &sent {
                let all = counts.iter().fold(0u64, |a, b| a.saturating_add(*b));
                let quiet = last.max(*ended).elapsed() >= QUIET || ended.elapsed() >= LONGEST_TAIL;
                if run.received >= all || quiet {
                    return Ok(sent.map(|(counts, _)| counts).unwrap_or_default());
                }
            } else if begun.elapsed() >= LONGEST_RUN {
                return Err(GenError::Protocol("a run of more than a day".to_owned()));
            }
            let talks = self.wait(socket, sent.is_none())?;
            if talks {
                match self.request()? {
                    Some(Request::End { sent: counts }) => sent = Some((counts, Instant::now())),
                    Some(_) => return Err(GenError::Protocol("a run that was not ended".to_owned())),
                    None => return Err(GenError::Protocol("the sender is gone".to_owned())),
                }
            }
        }
    }

    /// Until a frame is there, or the sender talks (then true), or a tenth of a second.
    fn wait(&self, socket: &UdpSocket, listen: bool) -> Result<bool, GenError> {
        if listen && !self.reader.buffer().is_empty() {
            return Ok(true);
        }
        let control = self.reader.get_ref();
        let events = if listen { PollFlags::IN } else { PollFlags::empty() };
        let mut fds = [
            PollFd::new(socket, PollFlags::IN),
            PollFd::from_borrowed_fd(std::os::fd::AsFd::as_fd(control), events),
        ];
        match poll(&mut fds, Some(&wait_ms(100))) {
            Ok(_) => Ok(listen && fds.get(1).is_some_and(|fd| !fd.revents().is_empty())),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(e) => Err(GenError::io("waiting for frames")(e.into())),
        }
    }

    fn answer(&mut self, run: &mut Run, kind: Kind, sent: &[u64]) -> Result<(), GenError> {
        let answer = match kind {
            Kind::Digest { frame_bytes } => Answer::Digest(run.digest(frame_bytes)),
            Kind::Report => {
                let report = run.report(sent);
                (self.on)(self.peer, &report);
                Answer::Report(Box::new(report))
            }
        };
        write_line(&mut self.writer, &answer)
    }
}
