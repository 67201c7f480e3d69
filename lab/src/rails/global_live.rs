//! `plb-global --live`: `netv` through two ends of a `lane` tunnel over the testbed, then with each half on its own lane.
//!
//! ```text
//!   host "yokosuka"                    emulator                     host "sandiego"
//!   send -> TUN -> Tunnel -> north 50 ms, south 200 ms -> Tunnel -> TUN -> Receiver
//! ```
//!
//! Stamps are those of the receiving host's kernel.

use std::fs;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kuroshio_core::video::{Geometry, JoinCounts};
use kuroshio_lane::{LaneError, Stop, Tunnel, TunnelConfig, control, key, status::TunnelStatus};
use kuroshio_netv::{
    NetvError, Output, PartTarget, Pattern, Prepare, Receiver, RecvConfig, RecvReport, SendConfig,
    SendReport, Source, send,
};
use kuroshio_testbed::{EmulatorReport, Testbed, Topology};
use serde_json::{Value, json};

use super::global::{Apart, BELOW_BYTES, DELAYS_MS, MTU, RATE, Seen, Settings, TUNNEL_BYTES, result};
use super::{About, Made, RailsError, Request, check, failed, setting};
use crate::experiment::Mode;
use crate::lane::may_run_first;
use crate::live;

/// A sixteenth of 4K: what two shared cores carry with an emulator, two tunnels and both ends of the video on them.
const SIZE: (u32, u32) = (960, 540);
/// Play-out time beyond the slow lane's delay: longer than this machine stops.
const MARGIN: &str = "20ms";
/// How long anything may take to be ready.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long lanes are measured before the video begins.
const SETTLE: Duration = Duration::from_secs(2);
/// A screen that shows nothing for so long is done.
const IDLE: Duration = Duration::from_secs(3);
/// Ports of the halves.
const PORTS: [u16; 2] = [5_004, 5_006];

fn topology(settings: &Settings) -> Result<Topology, RailsError> {
    // 100 ms of a lane, and some frames at small sizes.
    let queue = (settings.lane.bps() / 80).max(200_000);
    let mut text = String::from("name = \"plb-global\"\n");
    for router in ["na", "nb", "sa", "sb"] {
        text += &format!("[[router]]\nname = \"{router}\"\n");
    }
    for (host, own, north, south) in [("yokosuka", 1, "na", "sa"), ("sandiego", 2, "nb", "sb")] {
        text += &format!("[[host]]\nname = \"{host}\"\n");
        for (port, net, router) in [("p0", 0, north), ("p1", 1, south)] {
            text += &format!(
                "[[host.port]]\nname = \"{port}\"\naddress = [\"10.0.{net}.{own}/24\"]\nrouter = \"{router}\"\nmtu = \"{MTU}B\"\n\
                 wire = \"10Gbps\"\n"
            );
        }
    }
    for (link, between, delay) in [
        ("north", ["na", "nb"], DELAYS_MS[0]),
        ("south", ["sa", "sb"], DELAYS_MS[1]),
    ] {
        text += &format!(
            "[[link]]\nname = \"{link}\"\nbetween = {between:?}\ncapacity = \"{}\"\none_way_delay = \"{delay}ms\"\nqueue = \"{queue}B\"\n",
            settings.lane
        );
    }
    Topology::from_toml(&text).map_err(|e| failed("the topology")(&e))
}

/// A private folder for the tunnel's keys and control sockets, gone with this.
struct Folder(PathBuf);

impl Folder {
    fn make() -> io::Result<Self> {
        let path = std::env::temp_dir().join(format!("kuroshio-plb-global-{}", std::process::id()));
        fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// One end of the tunnel.
struct End {
    stop: Stop,
    thread: Option<JoinHandle<io::Result<Result<(), LaneError>>>>,
    control: PathBuf,
}

impl End {
    fn up(tb: &Testbed, host: &str, config: TunnelConfig) -> Result<Self, RailsError> {
        let control = config.control.clone();
        let (tell, told) = std::sync::mpsc::channel();
        let thread = tb.in_host(host, move || {
            let tunnel = Tunnel::up(config)?;
            // Who started it waits, or has given up.
            let _ = tell.send(tunnel.stop_handle());
            tunnel.run()
        });
        let thread = thread.map_err(|e| failed(host)(&e))?;
        match told.recv_timeout(PATIENCE) {
            Ok(stop) => Ok(Self {
                stop,
                thread: Some(thread),
                control,
            }),
            Err(_) => Err(ended(host, thread)),
        }
    }

    fn status(&self) -> Result<TunnelStatus, RailsError> {
        control::ask(&self.control, "status").map_err(|e| failed("the tunnel")(&e))
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.stop.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Why a thread that should go on has ended.
fn ended<T>(what: &str, thread: JoinHandle<io::Result<Result<T, LaneError>>>) -> RailsError {
    match thread.join() {
        Ok(Ok(Err(e))) => failed(what)(&e),
        Ok(Err(e)) => failed(what)(&e),
        _ => RailsError::Failed(format!("{what}: not ready within {PATIENCE:?}")),
    }
}

/// Both ends, up and measured.
fn tunnel(tb: &Testbed, folder: &Path, settings: &Settings, first: bool) -> Result<[End; 2], RailsError> {
    let mut public = Vec::new();
    for host in ["yokosuka", "sandiego"] {
        public.push(key::generate(&folder.join(format!("{host}.key"))).map_err(|e| failed("a key")(&e))?);
    }
    let config = |own: usize, host: &str| {
        let (lane, other) = (settings.lane, 3 - own);
        let mut text = format!(
            "name = \"plb0\"\naddress = [\"10.9.0.{own}/24\"]\nkey = \"{host}.key\"\npeer = \"{}\"\ncontrol = \"{host}.sock\"\n\
             mode = \"deskew\"\nmargin = \"{MARGIN}\"\nguard = false\nrealtime = {first}\n",
            public[2 - own]
        );
        for (net, name) in ["north", "south"].into_iter().enumerate() {
            text += &format!(
                "[[lane]]\nname = \"{name}\"\nlocal = \"10.0.{net}.{own}:7000\"\nremote = \"10.0.{net}.{other}:7000\"\n\
                 capacity = \"{lane}\"\nmtu = {MTU}\n"
            );
        }
        TunnelConfig::from_toml(&text, folder).map_err(|e| failed("the tunnel's file")(&e))
    };
    let near = End::up(tb, "yokosuka", config(1, "yokosuka")?)?;
    let ends = [near, End::up(tb, "sandiego", config(2, "sandiego")?)?];
    let deadline = Instant::now() + PATIENCE;
    let ready = |s: &TunnelStatus| s.lanes.iter().all(|l| l.state == "used" && l.rtt_us.is_some());
    loop {
        if ready(&ends[0].status()?) && ready(&ends[1].status()?) {
            break;
        }
        if Instant::now() > deadline {
            return Err(RailsError::Failed(format!(
                "the lanes: not in use within {PATIENCE:?}"
            )));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(SETTLE);
    Ok(ends)
}

/// Keeps the last picture that was written, whole.
#[derive(Clone)]
struct Last(Arc<Mutex<Vec<u8>>>);

impl Write for Last {
    fn write(&mut self, picture: &[u8]) -> io::Result<usize> {
        if let Ok(mut last) = self.0.lock() {
            last.clear();
            last.extend_from_slice(picture);
        }
        Ok(picture.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Sends the video from one host to these addresses of the other and says what the screen saw.
fn video(
    tb: &Testbed,
    settings: &Settings,
    to: [SocketAddr; 2],
    first: bool,
) -> Result<(Seen, SendReport), RailsError> {
    let last = Last(Arc::default());
    let out = last.clone();
    let (geometry, pictures, time) = (settings.geometry, settings.pictures, settings.time);
    let bound = tb.in_host("sandiego", move || {
        Receiver::bind(RecvConfig {
            geometry,
            rate: RATE,
            listen: to.into_iter().map(|to| (to, None)).collect(),
            wait: Settings::wait(),
            pictures: Some(pictures),
            time: Some(time + PATIENCE),
            idle: Some(IDLE),
            output: Output {
                video: Some(Box::new(out)),
                ..Output::default()
            },
        })
    });
    let receiver = joined("sandiego", bound.map_err(|e| failed("sandiego")(&e))?)?;
    let never = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&never);
    let receiving = std::thread::spawn(move || Ok(receiver.run(&flag)));
    let sending = tb.in_host("yokosuka", move || {
        send(sent(geometry, pictures, to, first), source(geometry), &never)
    });
    let report = joined("yokosuka", sending.map_err(|e| failed("yokosuka")(&e))?)?;
    let received: RecvReport = joined("sandiego", receiving)?;
    let picture = last.0.lock().map(|p| p.clone()).unwrap_or_default();
    let seen = Seen {
        counts: JoinCounts {
            whole: received.whole,
            torn: received.torn,
            late_parts: received.late_parts,
            ..JoinCounts::default()
        },
        apart: Apart {
            p50_us: received.alignment_p50_us,
            p99_us: received.alignment_p99_us,
            max_us: received.alignment_max_us,
        },
        picture,
        more: json!({ "received": received, "sent": report }),
    };
    Ok((seen, report))
}

fn source(geometry: Geometry) -> Source {
    Source::Pattern(Pattern::new(geometry, 2))
}

/// Before all ordinary threads, where that is allowed: else each half leaves when the machine comes to it.
fn prepare(first: bool) -> Option<Prepare> {
    let run: Prepare = Box::new(|| {
        kuroshio_clock::fifo_lowest().map_err(|source| NetvError::Io {
            what: "SCHED_FIFO".into(),
            source,
        })
    });
    first.then_some(run)
}

fn sent(geometry: Geometry, pictures: u64, to: [SocketAddr; 2], first: bool) -> SendConfig {
    let part = |to| PartTarget {
        to,
        from: None,
        prepare: prepare(first),
        inspect: None,
    };
    SendConfig {
        geometry,
        rate: RATE,
        parts: to.into_iter().map(part).collect(),
        datagram_bytes: MTU - TUNNEL_BYTES - BELOW_BYTES,
        pictures: Some(pictures),
        ssrc: 1,
    }
}

/// What a thread gave.
fn joined<T, E: std::fmt::Display>(
    what: &str,
    thread: JoinHandle<io::Result<Result<T, E>>>,
) -> Result<T, RailsError> {
    match thread.join() {
        Ok(Ok(Ok(value))) => Ok(value),
        Ok(Ok(Err(e))) => Err(failed(what)(&e)),
        Ok(Err(e)) => Err(failed(what)(&e)),
        Err(_) => Err(RailsError::Failed(format!("{what}: its thread ended by itself"))),
    }
}

fn addresses(each: [&str; 2]) -> Result<[SocketAddr; 2], RailsError> {
    let at = |i: usize| {
        format!("{}:{}", each[i], PORTS[i])
            .parse()
            .map_err(|e| failed("an address")(&e))
    };
    Ok([at(0)?, at(1)?])
}

pub(super) fn run(about: &About, request: &Request, say: &mut dyn FnMut(&str)) -> Result<Made, RailsError> {
    let settings = Settings::of(request, SIZE)?;
    let folder = Folder::make().map_err(|e| failed("a folder for keys")(&e))?;
    let tb = Testbed::up(&topology(&settings)?).map_err(|e| failed("the testbed")(&e))?;
    let first = may_run_first();
    let ends = tunnel(&tb, &folder.0, &settings, first)?;
    let begin = |tb: &Testbed| tb.begin().map_err(|e| failed("the testbed")(&e));
    let report = |tb: &Testbed| tb.report().map_err(|e| failed("the testbed")(&e));
    say(&format!("{}: de-skewed for {:?}", about.name, settings.time));
    begin(&tb)?;
    let (mut with, _) = video(&tb, &settings, addresses(["10.9.0.2"; 2])?, first)?;
    let de_skewed = report(&tb)?;
    let status = [ends[0].status()?, ends[1].status()?];
    drop(ends);
    say(&format!(
        "{}: without de-skew for {:?}",
        about.name, settings.time
    ));
    begin(&tb)?;
    let (without, _) = video(&tb, &settings, addresses(["10.0.0.2", "10.0.1.2"])?, first)?;
    let second = report(&tb)?;
    drop(tb);
    if let Value::Object(more) = &mut with.more {
        more.insert("tunnel".into(), json!({ "near": status[0], "far": status[1] }));
    }
    let threads = if first {
        "before all ordinary ones (SCHED_FIFO, priority 1): both ends of the tunnel, and those that send the halves"
    } else {
        "ordinary: this user may not set SCHED_FIFO"
    };
    let more = vec![
        setting("threads", threads, "this machine"),
        setting(
            "tunnel",
            format!("mode deskew, margin {MARGIN}, no guard (the video is not TCP)"),
            "ours: a margin longer than this machine stops",
        ),
        setting(
            "begin",
            format!("the video begins {SETTLE:?} after the lanes are in use"),
            "ours",
        ),
        setting(
            "size",
            "a sixteenth of 4K in pixels and rates",
            "ours: what two shared cores carry",
        ),
    ];
    let mut made = result(about, Mode::Live, &settings, more, &with, &without)?;
    instrument(&mut made, [("deskewed", &de_skewed), ("without", &second)]);
    made.result.seed = 0;
    Ok(made)
}

/// The emulator's own figures, and whether the machine disturbed it.
fn instrument(made: &mut Made, phases: [(&str, &EmulatorReport); 2]) {
    let r = &mut made.result;
    r.instrument.lateness = phases
        .map(|(name, report)| live::lateness(name, report, 0))
        .to_vec();
    let lost = phases[1].1.machine_lost;
    r.checks.push(check(
        "instrument whole",
        "0 frames lost by the machine",
        lost.to_string(),
        lost == 0,
    ));
    let why =
        |(name, report): (&str, &EmulatorReport)| report.disturbed.as_ref().map(|d| format!("{name}: {d}"));
    let disturbed: Vec<String> = phases.into_iter().filter_map(why).collect();
    r.disturbed = !disturbed.is_empty();
    r.disturbed_by = disturbed.join("; ");
}
