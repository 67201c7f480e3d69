//! Copies SRC to DST over TCP on loopback, both ends in this process, and prints what it took.
//!
//! `move SRC DST [streams] [blake3|none] [frame rate in bit/s, 0 for none]`

use kuroshio_core::units::BitRate;
use kuroshio_sock::{ConnectOptions, connect, listen, set_congestion};
use kuroshio_transfer::{
    Conn, DataConn, DigestMode, Event, Options, Progress, ReceiveJob, SendJob, SessionConns, Source,
    StreamRate, receive, send, session_key,
};
use std::error::Error;
use std::fs::File;
use std::net::TcpStream;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Instant;

fn pair(options: &ConnectOptions) -> Result<(TcpStream, TcpStream), Box<dyn Error + Send + Sync>> {
    let listener = listen("127.0.0.1:0".parse()?)?;
    let near = connect(listener.local_addr()?, options)?;
    let (far, _) = listener.accept()?;
    if let Some(name) = &options.congestion {
        set_congestion(&far, name)?;
    }
    Ok((near, far))
}

/// User and system seconds of this process so far.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after = stat.rsplit(')').next().unwrap_or_default();
    after
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|t| t.parse::<f64>().ok())
        .sum::<f64>()
        / 100.0
}

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let args: Vec<_> = std::env::args_os().collect();
    let [_, src, dst, rest @ ..] = args.as_slice() else {
        return Err("move SRC DST [streams] [blake3|none] [bit/s]".into());
    };
    let text = |i: usize| rest.get(i).and_then(|s| s.to_str());
    let streams: usize = text(0).unwrap_or("2").parse()?;
    let digest = if text(1) == Some("none") {
        DigestMode::None
    } else {
        DigestMode::Blake3
    };
    let bps: u64 = text(2).unwrap_or("0").parse()?;
    let rate = BitRate::from_bps(bps / streams as u64).ok();
    let (src, dst) = (Path::new(src).canonicalize()?, std::path::absolute(dst)?);
    let name = src
        .file_name()
        .ok_or("the source has no name")?
        .as_bytes()
        .to_vec();
    let base = File::open(src.parent().ok_or("the source has no folder")?)?.into();
    let root = File::open(dst.parent().ok_or("the destination has no folder")?)?.into();
    let dest = dst
        .file_name()
        .ok_or("the destination has no name")?
        .as_bytes()
        .to_vec();

    let (begun, cpu) = (Instant::now(), cpu_seconds());
    let tcp = ConnectOptions {
        congestion: Some("cubic".into()),
        ..ConnectOptions::default()
    };
    let ((f1, f2), (r1, r2)) = (pair(&tcp)?, pair(&tcp)?);
    let (mut near, mut far) = (Vec::new(), Vec::new());
    for _ in 0..streams {
        let (a, b) = pair(&tcp)?;
        near.push(DataConn {
            conn: Conn::plain(a),
            route: 0,
            rate: StreamRate::new(rate),
        });
        far.push(DataConn::unpaced(Conn::plain(b)));
    }
    let sender = SessionConns::new(Conn::plain(f1), Conn::plain(r1), near);
    let receiver = SessionConns::new(Conn::plain(f2), Conn::plain(r2), far);
    let receiving =
        std::thread::spawn(move || receive(receiver, ReceiveJob { root, dest }, &Progress::new()));
    let options = Options {
        digest,
        ..Options::default()
    };
    let key = session_key(dst.as_os_str().as_bytes(), src.as_os_str().as_bytes());
    let progress = Progress::with_events(|e| {
        if matches!(
            e,
            Event::Failed(_) | Event::StreamLost { .. } | Event::Resent { .. }
        ) {
            eprintln!("{e:?}");
        }
    });
    let path = name.clone();
    let sent = send(
        sender,
        SendJob {
            sources: vec![Source { base, path, name }],
            options,
            key,
        },
        &progress,
    )?;
    let received = receiving.join().map_err(|_| "the receiver ended abnormally")??;
    let (seconds, cpu) = (begun.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    let bytes = sent.bytes as f64;
    println!(
        "{} files, {:.1} MB in {seconds:.3} s: {:.0} MB/s, {:.0} files/s, cpu {:.2} s/GB, verified {}, failed {}",
        sent.files,
        bytes / 1e6,
        bytes / 1e6 / seconds,
        sent.files as f64 / seconds,
        cpu / (bytes / 1e9),
        received.files_verified,
        sent.files_failed,
    );
    Ok(())
}
