//! The loop of a tunnel: one thread that reads whatever is there, lets [`Bundle`] decide, writes, and sleeps until the next thing
//! is due.
//!
//! ```text
//!   sockets -> open -> Bundle -> device        device -> Bundle -> seal -> sockets
//!   then ppoll(device, sockets, event) until the bundle's or the handshake's next moment
//! ```
//!
//! Play-out and pacing are as exact as the kernel wakes the thread: the timer slack is set to a nanosecond, with `realtime` the thread goes
//! before all ordinary ones, and a pacer makes up for what it woke late ([`crate::late`]). When a datagram arrived is the kernel's word
//! (`SO_TIMESTAMPNS`), so that a late thread does not look like a slow lane.

use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use kuroshio_core::{
    lane::{Body, Bundle, Datagram, ecn, wire},
    units::{PicoDuration, PicoTime},
};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::OwnedFd;

use crate::{
    Device, LaneError, TunnelConfig, TunnelKind,
    config::inner_mtu,
    control::{self, Control, Question},
    key,
    late::Lateness,
    messages, netlink,
    seal::{Opened, Seal},
    status::TunnelStatus,
    sys,
    udp::LaneSocket,
};

/// Superframes that are read from the device before the rest has its turn.
const READS: usize = 16;
/// Memory that is kept for packets to come: as much as the play-out buffer may hold.
const KEEP_FREED_BYTES: i32 = 64 << 20;
/// A stamp that is older is none: the time of day was set.
const STAMP_AGE_MAX_NS: u64 = 1_000_000_000;
/// Longest sleep.
const SLEEP_MAX: Duration = Duration::from_millis(250);

type Asked = (Question, mpsc::SyncSender<String>);

fn unix_ns() -> u64 {
    let day = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(day.as_nanos()).unwrap_or(u64::MAX)
}

/// Ends a tunnel from another thread.
#[derive(Debug, Clone)]
pub struct Stop {
    flag: Arc<AtomicBool>,
    event: Arc<OwnedFd>,
    path: PathBuf,
}

impl Stop {
    /// Asks the tunnel to end.
    pub fn stop(&self) {
        self.flag.store(true, Ordering::Release);
        self.wake();
        Control::wake(&self.path);
    }

    fn wake(&self) {
        // A counter that is full wakes as well.
        let _ = rustix::io::write(&*self.event, &1u64.to_ne_bytes());
    }
}

/// A tunnel that is up.
pub struct Tunnel {
    config: TunnelConfig,
    device: Device,
    sockets: Vec<LaneSocket>,
    names: Vec<(String, u32)>,
    mtu: u32,
    seal: Seal,
    bundle: Bundle<Vec<u8>>,
    start: Instant,
    stop: Stop,
    control: Option<Control>,
    asked: mpsc::Receiver<Asked>,
    asker: mpsc::SyncSender<Asked>,
    inbox: messages::Inbox,
    /// When the next thing was due as the thread went to sleep.
    due: Option<PicoTime>,
    late: Lateness,
    inside: Vec<u8>,
    packets: Vec<Vec<u8>>,
    /// What had something to be read when the thread woke: only that is read.
    ready: Ready,
}

/// Descriptors that have something to be read.
struct Ready {
    device: bool,
    lanes: Vec<bool>,
}

impl Tunnel {
    /// Makes the interface, sockets and control socket, in the calling thread's network namespace.
    ///
    /// # Errors
    /// What of it cannot be; what was made is gone then.
    pub fn up(config: TunnelConfig) -> Result<Self, LaneError> {
        let seal = Seal::new(key::load(&config.key)?, config.peer)?;
        let bundle = Bundle::new(&config.bundle).map_err(|e| LaneError::Bad(e.to_string()))?;
        let sockets = config.lanes.iter().map(LaneSocket::open);
        let sockets = sockets.collect::<Result<Vec<_>, _>>()?;
        let control = Control::listen(&config.control)?;
        let device = Device::open_here(&config.name, config.kind)?;
        let mtu = config.mtu();
        netlink::configure(device.index(), mtu, &config.addresses)
            .map_err(LaneError::io(format!("configuring {}", config.name)))?;
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| LaneError::io("eventfd")(e.into()))?;
        let (asker, asked) = mpsc::sync_channel(1);
        Ok(Self {
            names: config.lanes.iter().map(|l| (l.name.clone(), l.mtu)).collect(),
            stop: Stop {
                flag: Arc::new(AtomicBool::new(false)),
                event: Arc::new(event),
                path: control.path().to_owned(),
            },
            device,
            sockets,
            mtu,
            seal,
            bundle,
            start: Instant::now(),
            control: Some(control),
            asked,
            asker,
            inbox: messages::Inbox::new(),
            due: None,
            late: Lateness::default(),
            inside: Vec::new(),
            packets: Vec::new(),
            ready: Ready {
                device: true,
                lanes: vec![true; config.lanes.len()],
            },
            config,
        })
    }

    /// A handle that ends it.
    #[must_use]
    pub fn stop_handle(&self) -> Stop {
        self.stop.clone()
    }

    /// Carries packets until it is stopped.
    ///
    /// # Errors
    /// When the device or a socket fails for good.
    pub fn run(mut self) -> Result<(), LaneError> {
        sys::exact_timers();
        sys::keep_freed(KEEP_FREED_BYTES);
        let server = self.control.take().map(|control| {
            let (asker, stop) = (self.asker.clone(), self.stop.clone());
            std::thread::spawn(move || {
                let ask = |question| {
                    let (to, answer) = mpsc::sync_channel(1);
                    let sent = asker.try_send((question, to));
                    stop.wake();
                    let answer = sent
                        .ok()
                        .and_then(|()| answer.recv_timeout(control::PATIENCE).ok());
                    answer.unwrap_or_else(|| control::error("the tunnel does not answer"))
                };
                control.serve(ask, || stop.flag.load(Ordering::Acquire));
            })
        });
        let result = self.turns();
        self.stop.stop();
        if let Some(server) = server {
            // It was woken and ends with its file removed.
            let _ = server.join();
        }
        result
    }

    fn turns(&mut self) -> Result<(), LaneError> {
        if self.config.realtime {
            // Here, so that the control socket's thread does not inherit it.
            let failed = LaneError::io("realtime = true (it needs CAP_SYS_NICE)");
            kuroshio_clock::fifo_lowest().map_err(failed)?;
        }
        while !self.stop.flag.load(Ordering::Acquire) {
            self.handshake()?;
            for lane in 0..self.sockets.len() {
                if self.ready.lanes[lane] {
                    self.receive(lane)?;
                }
            }
            if self.seal.take_renewed_peer() {
                // The peer has begun anew at number 0, and so does this end.
                self.bundle = Bundle::new(&self.config.bundle).map_err(|e| LaneError::Bad(e.to_string()))?;
            }
            if self.ready.device {
                self.read_device()?;
            }
            if self.seal.is_open() {
                self.send()?;
            }
            self.deliver()?;
            while let Ok((question, to)) = self.asked.try_recv() {
                // One who no longer waits gets nothing.
                let _ = to.try_send(self.answer(&question));
            }
            self.sleep()?;
        }
        Ok(())
    }

    fn now(&self) -> PicoTime {
        PicoTime::from_ns(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn handshake(&mut self) -> Result<(), LaneError> {
        let Some(message) = self.seal.poll(self.start.elapsed(), unix_ns())? else {
            return Ok(());
        };
        for lane in 0..self.sockets.len() {
            self.post(lane, &message)?;
        }
        Ok(())
    }

    fn receive(&mut self, lane: usize) -> Result<(), LaneError> {
        loop {
            let got = self.inbox.receive(self.sockets[lane].fd());
            let got = got.map_err(LaneError::io(format!("lane {}", self.config.lanes[lane].name)))?;
            // In this order: when the thread stalls between the two, a datagram seems to come later than it did, as from any stall. The
            // other way round it would come before it was sent, and the least delay of a lane is what the clocks are fitted to.
            let unix_ns = unix_ns();
            let now = self.now();
            let mut answers = Vec::new();
            for datagram in self.inbox.datagrams() {
                let since = Duration::from_nanos(now.as_ns());
                match self
                    .seal
                    .open(since, lane as u8, datagram.bytes, &mut self.inside)
                {
                    Opened::Inside(number) => {
                        let Ok(mut body) = wire::read_inside(&self.inside) else {
                            continue;
                        };
                        if let (Body::Data { packet, .. }, TunnelKind::Tun) = (&mut body, self.config.kind)
                            && !ecn::decapsulate(packet, datagram.class)
                        {
                            continue;
                        }
                        let ago = datagram
                            .taken_unix_ns
                            .and_then(|at| unix_ns.checked_sub(at))
                            // A step of the clock is no delay.
                            .filter(|ago| *ago < STAMP_AGE_MAX_NS)
                            .unwrap_or(0);
                        self.bundle.handle_arrival(
                            now,
                            now - PicoDuration::from_ns(ago),
                            Datagram {
                                lane: lane as u8,
                                lane_number: number,
                                body,
                            },
                        );
                    }
                    Opened::Answer(answer) => answers.push(answer),
                    Opened::Nothing => {}
                }
            }
            for answer in answers {
                self.post(lane, &answer)?;
            }
            if got < messages::BATCH {
                return Ok(());
            }
        }
    }

    fn read_device(&mut self) -> Result<(), LaneError> {
        let now = self.now();
        let bundle = &mut self.bundle;
        for _ in 0..READS {
            let more = self.device.read(|packet| {
                // What the full queue refuses is lost, as on any interface, and counted.
                bundle.handle_packet(now, packet.to_vec());
            });
            if !more.map_err(LaneError::io(format!("interface {}", self.config.name)))? {
                break;
            }
        }
        Ok(())
    }

    fn send(&mut self) -> Result<(), LaneError> {
        let now = self.now();
        if let Some(due) = self.due.filter(|due| *due <= now) {
            self.late.note(now, due);
            self.bundle.set_lateness(self.late.longest());
            self.due = None;
        }
        while let Some(datagram) = self.bundle.poll_datagram(now) {
            let lane = usize::from(datagram.lane);
            let class = match (&datagram.body, self.config.kind) {
                (Body::Data { packet, .. }, TunnelKind::Tun) => ecn::class_of(packet),
                _ => 0,
            };
            self.inside.clear();
            wire::write_inside(&mut self.inside, &datagram.body);
            let socket = &mut self.sockets[lane];
            let number = datagram.lane_number;
            if self.seal.seal(datagram.lane, number, &self.inside, socket.room()) && socket.end(class) {
                self.flush(lane)?;
            }
        }
        for lane in 0..self.sockets.len() {
            self.flush(lane)?;
        }
        Ok(())
    }

    /// Sends a handshake's message.
    fn post(&mut self, lane: usize, message: &[u8]) -> Result<(), LaneError> {
        self.sockets[lane].room().extend_from_slice(message);
        self.sockets[lane].end(0);
        self.flush(lane)
    }

    fn flush(&mut self, lane: usize) -> Result<(), LaneError> {
        let failed = LaneError::io(format!("lane {}", self.config.lanes[lane].name));
        if self.sockets[lane].flush().map_err(failed)? {
            self.narrow(lane);
        }
        Ok(())
    }

    /// A lane's path has become narrower: the interface's MTU follows, and the kernel tells whoever sends more.
    fn narrow(&mut self, lane: usize) {
        let Ok(path) = self.sockets[lane].path_mtu() else {
            return;
        };
        self.names[lane].1 = self.names[lane].1.min(path);
        let lanes = self.config.lanes.iter().zip(&self.names);
        let mtu = lanes.map(|(lane, (_, mtu))| inner_mtu(self.config.kind, lane.remote, *mtu));
        let mtu = mtu.min().unwrap_or(self.mtu);
        // Below 576 bytes it is no path of ours, but somebody's lie.
        if (576..self.mtu).contains(&mtu) && netlink::set_mtu(self.device.index(), mtu).is_ok() {
            self.mtu = mtu;
        }
    }

    fn deliver(&mut self) -> Result<(), LaneError> {
        let now = self.now();
        while let Some(delivery) = self.bundle.poll_packet(now) {
            self.packets.push(delivery.packet);
        }
        let result = self.device.write(&self.packets);
        self.packets.clear();
        result.map_err(LaneError::io(format!("interface {}", self.config.name)))
    }

    fn answer(&mut self, question: &Question) -> String {
        let set = match question {
            Question::Status => None,
            Question::Drop(lane) => Some((lane, true)),
            Question::Add(lane) => Some((lane, false)),
        };
        if let Some((name, dropped)) = set {
            let Some(lane) = self.names.iter().position(|(n, _)| n == name) else {
                let names: Vec<&str> = self.names.iter().map(|(n, _)| n.as_str()).collect();
                return control::error(&format!("no lane {name:?}: there are {}", names.join(", ")));
            };
            self.bundle.set_dropped(lane, dropped);
        }
        let bundle = self.bundle.status(self.now());
        let status = TunnelStatus::new(
            &self.config.name,
            &self.names,
            self.mtu,
            self.seal.is_open(),
            &bundle,
            &self.seal.counters,
            &self.late,
        );
        serde_json::to_string(&status).unwrap_or_else(|e| control::error(&e.to_string()))
    }

    fn sleep(&mut self) -> Result<(), LaneError> {
        let now = self.now();
        let since = Duration::from_nanos(now.as_ns());
        let mut wait = SLEEP_MAX;
        if self.seal.is_open() {
            let next = self.bundle.next_wakeup(now);
            self.due = Some(next.max(now));
            wait = wait.min(Duration::from_nanos((next - now).as_ns_ceil()));
        }
        if let Some(at) = self.seal.next_wakeup() {
            wait = wait.min(at.saturating_sub(since));
        }
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: i64::from(wait.subsec_nanos()),
        };
        let mut fds = vec![
            PollFd::new(&self.device, PollFlags::IN),
            PollFd::from_borrowed_fd(self.stop.event.as_fd(), PollFlags::IN),
        ];
        let sockets = self.sockets.iter();
        fds.extend(sockets.map(|s| PollFd::from_borrowed_fd(s.fd(), PollFlags::IN)));
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(LaneError::io("poll")(io::Error::from(e))),
        }
        // An error that waits is fetched by reading, too.
        let mut ready = fds.iter().map(|fd| !fd.revents().is_empty());
        self.ready.device = ready.next().unwrap_or(true);
        if ready.next().unwrap_or(true) {
            let mut counter = [0; 8];
            // Empty is well.
            let _ = rustix::io::read(&*self.stop.event, &mut counter);
        }
        for (lane, ready) in self.ready.lanes.iter_mut().zip(ready) {
            *lane = ready;
        }
        Ok(())
    }
}
