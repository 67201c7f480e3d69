//! The sending end of a session.

use std::io::BufReader;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kuroshio_core::capacity::{Digest, Train};
use kuroshio_core::traffic::{Pattern, Schedule, Sizes, Timing};
use kuroshio_core::units::{BitRate, PicoDuration};
use kuroshio_core::wire::LineRate;

use crate::clock::{Clock, Common};
use crate::control::{Answer, Kind, LINE_LIMIT, MAX_ANSWER_BYTES, Request, VERSION, read_line, write_line};
use crate::error::GenError;
use crate::frame::frame_overhead;
use crate::receive::RunReport;
use crate::send::{Plan, Port, Raw, SendReport, mac, send};
use crate::sys::never_fragment;

/// Lateness beyond which the rest of a train is moved, ns: a burst that makes up for it would look like a
/// higher rate to a short queue.
const TRAIN_SHIFT_NS: u64 = 500_000;
/// How long a connection may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// A run's two sides.
#[derive(Debug, Clone)]
pub struct RunResult {
    /// What was sent.
    pub sent: SendReport,
    /// What arrived.
    pub received: RunReport,
}

/// A session with a receiver.
pub struct Session {
    reader: BufReader<TcpStream>,
    writer: TcpStream,
    port: Port,
    streams: u32,
    v6: bool,
    next_run: u8,
    common: Common,
}

impl Session {
    /// Connects to a receiver for runs of `streams` streams; with `raw`, an interface and the next hop's MAC
    /// address, frames go there by a packet socket.
    ///
    /// # Errors
    /// No connection, or a receiver that refuses.
    pub fn connect(to: SocketAddr, streams: u32, raw: Option<(&str, &str)>) -> Result<Self, GenError> {
        let what = || format!("connecting to {to}");
        let stream = TcpStream::connect_timeout(&to, CONNECT_LIMIT).map_err(GenError::io(what()))?;
        Self::over(stream, streams, raw)
    }

    /// The same over a connection that is there already.
    ///
    /// # Errors
    /// A receiver that refuses.
    pub fn over(stream: TcpStream, streams: u32, raw: Option<(&str, &str)>) -> Result<Self, GenError> {
        let prepare = || -> std::io::Result<(SocketAddr, SocketAddr, TcpStream)> {
            stream.set_nodelay(true)?;
            // A receiver waits for missing frames before it answers.
            stream.set_read_timeout(Some(LINE_LIMIT))?;
            stream.set_write_timeout(Some(LINE_LIMIT))?;
            Ok((stream.peer_addr()?, stream.local_addr()?, stream.try_clone()?))
        };
        let (peer, local, mut writer) = prepare().map_err(GenError::io("the connection"))?;
        let mut reader = BufReader::new(stream);
        let clock = Clock::here();
        let hello = Request::Hello {
            version: VERSION,
            streams,
            clock: clock.clone(),
        };
        write_line(&mut writer, &hello)?;
        let Answer::Welcome {
            udp_port,
            clock: other,
        } = answer(&mut reader)?
        else {
            return Err(GenError::Protocol("no welcome".to_owned()));
        };
        let socket = || -> std::io::Result<UdpSocket> {
            let socket = UdpSocket::bind((local.ip(), 0))?;
            never_fragment(&socket, local.is_ipv6())?;
            socket.connect((peer.ip(), udp_port))?;
            Ok(socket)
        };
        let socket = socket().map_err(GenError::io("a UDP socket to the receiver"))?;
        let port = match raw {
            None => Port::Udp(socket),
            Some((interface, to_mac)) => {
                let to_mac = mac(to_mac).ok_or_else(|| {
                    GenError::BadInput(format!(
                        "--mac {to_mac}: write six bytes, such as 02:00:00:00:00:01"
                    ))
                })?;
                Port::Raw(Box::new(Raw::new(interface, to_mac, &socket)?))
            }
        };
        Ok(Self {
            reader,
            writer,
            port,
            streams,
            v6: peer.is_ipv6(),
            next_run: 0,
            common: clock.common(&other),
        })
    }

    /// Keeps the wire behind the raw interface full with gap frames, see [`Raw::fill`].
    ///
    /// # Errors
    /// A session without a raw interface, and what [`Raw::fill`] gives.
    pub fn fill(&mut self, interface: &str, line: LineRate) -> Result<(), GenError> {
        match &mut self.port {
            Port::Raw(raw) => raw.fill(interface, line),
            Port::Udp(_) => Err(GenError::BadInput(
                "--fill: gap frames need a raw interface (--raw)".to_owned(),
            )),
        }
    }

    /// Whether one-way delays between the two ends mean anything.
    #[must_use]
    pub fn common_clock(&self) -> Common {
        self.common
    }

    /// Smallest frame that holds a stamp, bytes with FCS.
    #[must_use]
    pub fn smallest_frame(&self) -> u64 {
        frame_overhead(self.v6) + kuroshio_core::traffic::STAMP_BYTES as u64
    }

    fn begin(&mut self, kind: Kind) -> Result<u8, GenError> {
        let run = self.next_run;
        self.next_run = (run + 1) % 64;
        write_line(&mut self.writer, &Request::Begin { run, kind })?;
        match answer(&mut self.reader)? {
            Answer::Ready => Ok(run),
            _ => Err(GenError::Protocol("not ready".to_owned())),
        }
    }

    fn check_sizes(&self, pattern: &Pattern) -> Result<(), GenError> {
        let least = match (&pattern.timing, pattern.sizes) {
            (Timing::List { entries, .. }, _) => entries.iter().map(|e| e.len.get()).min().unwrap_or(0),
            (_, Sizes::Fixed(len) | Sizes::Range(len, _)) => len.get(),
            (_, Sizes::Imix) => 64,
        };
        let smallest = self.smallest_frame();
        if least < smallest {
            return Err(GenError::BadInput(format!(
                "frames of {least}B: with {} the smallest that holds a stamp has {smallest}B",
                if self.v6 { "IPv6" } else { "IPv4" }
            )));
        }
        Ok(())
    }

    /// Sends a pattern and asks what arrived. When `stop` becomes true it ends early, with results.
    ///
    /// # Errors
    /// A pattern that is not valid, or what sending or the receiver gives.
    pub fn run(&mut self, pattern: Pattern, stop: &AtomicBool) -> Result<RunResult, GenError> {
        self.check_sizes(&pattern)?;
        let schedule = Schedule::new(pattern).map_err(|e| GenError::BadInput(e.to_string()))?;
        let run = self.begin(Kind::Report)?;
        let plan = Plan {
            run,
            streams: self.streams,
            shift_ns: None,
            payload_v6: self.v6,
        };
        let sent = send(&mut self.port, schedule, &plan, stop)?;
        let counts = sent.streams.clone();
        write_line(&mut self.writer, &Request::End { sent: counts })?;
        match answer(&mut self.reader)? {
            Answer::Report(received) => Ok(RunResult {
                sent,
                received: *received,
            }),
            _ => Err(GenError::Protocol("no report".to_owned())),
        }
    }

    /// Sends a train and asks for its digest, with the frames that the receiving machine lost.
    pub(crate) fn train(
        &mut self,
        train: &Train,
        stop: &AtomicBool,
    ) -> Result<(SendReport, Digest, u64), GenError> {
        let pattern = Pattern {
            timing: Timing::Rate(train.rate),
            sizes: Sizes::Fixed(train.len),
            streams: 1,
            seed: 0,
            time: None,
            frames: Some(train.frames),
        };
        self.check_sizes(&pattern)?;
        let schedule = Schedule::new(pattern).map_err(|e| GenError::BadInput(e.to_string()))?;
        if !pause(train.wait, stop) {
            return Err(GenError::Interrupted);
        }
        let kind = Kind::Digest {
            frame_bytes: train.len.get(),
        };
        let run = self.begin(kind)?;
        let plan = Plan {
            run,
            streams: 1,
            shift_ns: train.even.then_some(TRAIN_SHIFT_NS),
            payload_v6: self.v6,
        };
        let sent = send(&mut self.port, schedule, &plan, stop)?;
        if sent.interrupted {
            return Err(GenError::Interrupted);
        }
        let counts = sent.streams.clone();
        write_line(&mut self.writer, &Request::End { sent: counts })?;
        let Answer::Digest(d) = answer(&mut self.reader)? else {
            return Err(GenError::Protocol("no digest".to_owned()));
        };
        let digest = Digest {
            received: d.received,
            sent_rate: BitRate::new(d.sent_rate_bps),
            received_rate: BitRate::new(d.received_rate_bps),
            busy_rate: BitRate::new(d.busy_rate_bps),
            slope_ppm: d.slope_ppm,
            slope_error_ppm: d.slope_error_ppm,
            rise_ns: d.rise_ns,
        };
        Ok((sent, digest, d.receiver_dropped))
    }
}

/// Waits; `false` when it was stopped.
fn pause(time: PicoDuration, stop: &AtomicBool) -> bool {
    let until = kuroshio_clock::now_ns() + time.as_ns();
    while kuroshio_clock::now_ns() < until {
        if stop.load(Ordering::Relaxed) {
            return false;
        }
        let nap = (kuroshio_clock::now_ns() + 50_000_000).min(until);
        kuroshio_clock::sleep_until(nap, 0);
    }
    true
}

fn answer(reader: &mut BufReader<TcpStream>) -> Result<Answer, GenError> {
    match read_line(reader, MAX_ANSWER_BYTES)? {
        Some(Answer::Refused { error }) => Err(GenError::Refused(error)),
        Some(answer) => Ok(answer),
        None => Err(GenError::Protocol(
            "the receiver closed the connection".to_owned(),
        )),
    }
}
