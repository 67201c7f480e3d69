//! The network of the soak: a TCP proxy on loopback that counts, cuts, stalls and flips.
//!
//! Its buffers are small, so that what is under way when it cuts is what a short network would hold.

use super::rng::Rng;
use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Socket buffer on either side of the proxy, bytes.
const BUFFER: usize = 128 << 10;
/// A connection that has carried so much is a data stream, bytes.
const DATA: u64 = 256 << 10;
/// Flips on one connection are at least so far apart that no two are in one chunk, bytes.
const APART: u64 = (1 << 20) + (256 << 10);

/// A direction through the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Client to server.
    Up,
    /// Server to client.
    Down,
}

/// What to flip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlipOrder {
    /// Direction.
    pub way: Way,
    /// A data stream, or a control connection (known by its upgrade request, in clear text only).
    pub data: bool,
}

/// A flip that was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flip {
    /// The byte as it came.
    pub before: u8,
    /// The byte as it went on.
    pub after: u8,
    /// The data frame in whose payload it is, in clear text; none in a header, on a control connection and
    /// under TLS.
    pub frame: Option<Frame>,
}

/// A data frame: a 64-byte header ("KURO" at 0, file u32 at 8, length u32 at 12, offset u64 at 16), payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Frame {
    /// Number of the file.
    pub file: u32,
    /// First byte.
    pub offset: u64,
    /// Bytes of the payload.
    pub len: u64,
}

/// Follows the frames of one direction of a data stream.
#[derive(Debug, Default)]
enum Frames {
    /// The HTTP head, and how much of its end (CR LF CR LF) has been seen.
    #[default]
    Start,
    Http(usize),
    Header(Vec<u8>),
    Payload(Frame, u64),
    /// Not frames.
    Other,
}

impl Frames {
    /// Takes one byte; the frame in whose payload it is.
    fn byte(&mut self, byte: u8) -> Option<Frame> {
        const END: &[u8; 4] = b"\r\n\r\n";
        match self {
            Self::Start => {
                *self = if b"GH".contains(&byte) {
                    Self::Http(0)
                } else {
                    Self::Other
                }
            }
            Self::Http(seen) => {
                *seen = if END.get(*seen) == Some(&byte) {
                    *seen + 1
                } else {
                    usize::from(byte == b'\r')
                };
                if *seen == END.len() {
                    *self = Self::Header(Vec::new());
                }
            }
            Self::Header(head) => {
                head.push(byte);
                if head.len() == 64 {
                    *self = Self::payload(head).unwrap_or(Self::Other);
                }
            }
            Self::Payload(frame, left) => {
                let frame = *frame;
                *left -= 1;
                if *left == 0 {
                    *self = Self::Header(Vec::new());
                }
                return Some(frame);
            }
            Self::Other => {}
        }
        None
    }

    fn payload(head: &[u8]) -> Option<Self> {
        let four = |at: usize| head.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes);
        let len = u64::from(four(12)?);
        let offset = u64::from_le_bytes(head.get(16..24)?.try_into().ok()?);
        let frame = Frame {
            file: four(8)?,
            offset,
            len,
        };
        (head.starts_with(b"KURO") && len > 0).then_some(Self::Payload(frame, len))
    }

    /// Takes a chunk; the frame in whose payload byte `at` is.
    fn chunk(&mut self, chunk: &[u8], at: usize) -> Option<Frame> {
        let mut found = None;
        let mut n = 0;
        while let Some(rest) = chunk.get(n..).filter(|r| !r.is_empty()) {
            // Payloads in one step.
            let (step, frame) = match self {
                Self::Payload(frame, left) if *left > 1 => {
                    let step = rest.len().min(usize::try_from(*left - 1).unwrap_or(usize::MAX));
                    *left -= step as u64;
                    (step, Some(*frame))
                }
                Self::Other => (rest.len(), None),
                _ => (1, rest.first().and_then(|b| self.byte(*b))),
            };
            if (n..n + step).contains(&at) {
                found = frame;
            }
            n += step;
        }
        found
    }
}

#[derive(Default)]
struct Counts {
    bytes: AtomicU64,
    flipped_at: AtomicU64,
    frames: Mutex<Frames>,
}

struct Link {
    client: TcpStream,
    server: TcpStream,
    up: Counts,
    down: Counts,
    /// A control connection that has been upgraded.
    control: AtomicBool,
    /// Directions that have ended.
    ended: AtomicU64,
}

impl Link {
    const fn counts(&self, way: Way) -> &Counts {
        match way {
            Way::Up => &self.up,
            Way::Down => &self.down,
        }
    }

    fn cut(&self) {
        for socket in [&self.client, &self.server] {
            // What is in the buffers is lost, and the other side learns it by a reset. Both may be gone already.
            let _ = rustix::net::sockopt::set_socket_linger(socket, Some(Duration::ZERO));
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

struct Shared {
    target: Mutex<SocketAddr>,
    links: Mutex<HashMap<u64, Arc<Link>>>,
    up: AtomicU64,
    down: AtomicU64,
    stalled: AtomicBool,
    closed: AtomicBool,
    order: Mutex<Option<(FlipOrder, Rng)>>,
    flips: Mutex<Vec<Flip>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A running proxy; ended when dropped.
pub struct Proxy {
    shared: Arc<Shared>,
    address: SocketAddr,
}

impl Proxy {
    /// Listens on loopback and connects to `target`.
    ///
    /// # Errors
    /// What the sockets give.
    pub fn start(target: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        rustix::net::sockopt::set_socket_recv_buffer_size(&listener, BUFFER)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            target: Mutex::new(target),
            links: Mutex::default(),
            up: AtomicU64::new(0),
            down: AtomicU64::new(0),
            stalled: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            order: Mutex::default(),
            flips: Mutex::default(),
        });
        let of = Arc::clone(&shared);
        std::thread::spawn(move || accept(&of, &listener));
        Ok(Self { shared, address })
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Connects to another server from now on.
    pub fn set_target(&self, target: SocketAddr) {
        *lock(&self.shared.target) = target;
    }

    /// Bytes that came to it in a direction since its start.
    #[must_use]
    pub fn bytes(&self, way: Way) -> u64 {
        match way {
            Way::Up => self.shared.up.load(Ordering::SeqCst),
            Way::Down => self.shared.down.load(Ordering::SeqCst),
        }
    }

    /// Connections now.
    #[must_use]
    pub fn links(&self) -> usize {
        lock(&self.shared.links).len()
    }

    /// Cuts all connections; says how many.
    #[must_use]
    pub fn cut_all(&self) -> usize {
        let links: Vec<_> = lock(&self.shared.links).values().cloned().collect();
        links.iter().for_each(|l| l.cut());
        links.len()
    }

    /// Cuts one data stream; says whether there was one.
    #[must_use]
    pub fn cut_one(&self, way: Way, rng: &mut Rng) -> bool {
        let mut links: Vec<_> = lock(&self.shared.links)
            .iter()
            .map(|(n, l)| (*n, Arc::clone(l)))
            .collect();
        links.retain(|(_, l)| l.counts(way).bytes.load(Ordering::SeqCst) > DATA);
        links.sort_by_key(|(n, _)| *n);
        let chosen = links.get(rng.index(links.len()));
        chosen.inspect(|(_, l)| l.cut()).is_some()
    }

    /// Lets nothing through, or lets all go on.
    pub fn stall(&self, on: bool) {
        self.shared.stalled.store(on, Ordering::SeqCst);
    }

    /// Flips one bit in what passes next; see [`Proxy::flips`].
    pub fn order_flip(&self, order: FlipOrder, rng: &mut Rng) {
        *lock(&self.shared.order) = Some((order, Rng::new(rng.next())));
    }

    /// Takes back a flip that has not happened; says whether there was one.
    pub fn recall_flip(&self) -> bool {
        lock(&self.shared.order).take().is_some()
    }

    /// Flips so far.
    #[must_use]
    pub fn flips(&self) -> Vec<Flip> {
        lock(&self.shared.flips).clone()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::SeqCst);
        self.stall(false);
        let _ = self.cut_all();
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.address);
    }
}

fn accept(shared: &Arc<Shared>, listener: &TcpListener) {
    let mut number = 0u64;
    for client in listener.incoming() {
        if shared.closed.load(Ordering::SeqCst) {
            return;
        }
        let target = *lock(&shared.target);
        // A server that is gone: the client sees its connection close.
        let (Ok(client), Ok(server)) = (client, TcpStream::connect(target)) else {
            continue;
        };
        number += 1;
        if let Err(e) = link(shared, number, client, server) {
            eprintln!("proxy: {e}");
        }
    }
}

fn link(shared: &Arc<Shared>, number: u64, client: TcpStream, server: TcpStream) -> io::Result<()> {
    rustix::net::sockopt::set_socket_recv_buffer_size(&server, BUFFER)?;
    for socket in [&client, &server] {
        rustix::net::sockopt::set_socket_send_buffer_size(socket, BUFFER)?;
        socket.set_nodelay(true)?;
    }
    let link = Arc::new(Link {
        client,
        server,
        up: Counts::default(),
        down: Counts::default(),
        control: AtomicBool::new(false),
        ended: AtomicU64::new(0),
    });
    lock(&shared.links).insert(number, Arc::clone(&link));
    for way in [Way::Up, Way::Down] {
        let (shared, link) = (Arc::clone(shared), Arc::clone(&link));
        std::thread::spawn(move || {
            if pump(&shared, &link, way).is_err() {
                link.cut();
            }
            if link.ended.fetch_add(1, Ordering::SeqCst) == 1 {
                lock(&shared.links).remove(&number);
            }
        });
    }
    Ok(())
}

fn pump(shared: &Shared, link: &Link, way: Way) -> io::Result<()> {
    let (mut from, mut to) = match way {
        Way::Up => (&link.client, &link.server),
        Way::Down => (&link.server, &link.client),
    };
    let total = match way {
        Way::Up => &shared.up,
        Way::Down => &shared.down,
    };
    let counts = link.counts(way);
    let mut buf = vec![0u8; 64 << 10];
    loop {
        let n = from.read(&mut buf)?;
        if n == 0 {
            let _ = to.shutdown(Shutdown::Write);
            return Ok(());
        }
        total.fetch_add(n as u64, Ordering::SeqCst);
        while shared.stalled.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let chunk = buf.get_mut(..n).unwrap_or_default();
        flip(shared, link, way, chunk);
        counts.bytes.fetch_add(n as u64, Ordering::SeqCst);
        let asks = |slot: &[u8]| chunk.windows(slot.len()).any(|w| w == slot);
        if way == Way::Up
            && !link.control.load(Ordering::SeqCst)
            && (asks(b"/fwd HTTP/1.1") || asks(b"/rev HTTP/1.1"))
        {
            link.control.store(true, Ordering::SeqCst);
        }
        to.write_all(chunk)?;
    }
}

/// Carries out an order if it fits this chunk.
fn flip(shared: &Shared, link: &Link, way: Way, chunk: &mut [u8]) {
    let counts = link.counts(way);
    let mut order = lock(&shared.order);
    let Some((what, rng)) = order.as_mut() else {
        lock(&counts.frames).chunk(chunk, 0);
        return;
    };
    let at = rng.index(chunk.len());
    let bit = rng.below(8);
    let frame = lock(&counts.frames).chunk(chunk, at);
    let (passed, last) = (
        counts.bytes.load(Ordering::SeqCst),
        counts.flipped_at.load(Ordering::SeqCst),
    );
    let control = link.control.load(Ordering::SeqCst);
    let fits = what.way == way
        && if what.data {
            passed > DATA && (last == 0 || passed > last + APART)
        } else {
            // What the upgrade itself takes is left alone: its answer comes first.
            control && passed > 0 && !chunk.starts_with(b"HTTP/1.1 101")
        };
    let Some(byte) = chunk.get_mut(at).filter(|_| fits) else {
        return;
    };
    let before = *byte;
    *byte ^= 1 << bit;
    let after = *byte;
    counts.flipped_at.store(passed.max(1), Ordering::SeqCst);
    lock(&shared.flips).push(Flip { before, after, frame });
    *order = None;
}
