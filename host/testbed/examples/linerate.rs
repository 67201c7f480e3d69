//! Prints what the emulator can do on this machine: CUBIC through 10 ms one-way.
//!
//! `cargo run --release -p kuroshio-testbed --example linerate [SECONDS] [RATE]`

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use kuroshio_testbed::{Testbed, Topology, isolate};

type Failure = Box<dyn std::error::Error>;

fn topology(rate: &str) -> String {
    format!(
        r#"
name = "linerate"
[[host]]
name = "east"
[[host.port]]
name = "e0"
address = ["10.0.0.1/24", "fd00::1/64"]
router = "a"
wire = "10Gbps"
[[host]]
name = "west"
[[host.port]]
name = "w0"
address = ["10.0.0.2/24", "fd00::2/64"]
router = "b"
wire = "10Gbps"
[[router]]
name = "a"
[[router]]
name = "b"
[[link]]
name = "sea"
between = ["a", "b"]
capacity = "{rate}"
one_way_delay = "10ms"
queue = "8MiB"
"#
    )
}

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    let result = if isolate::is_inside() {
        inside()
    } else {
        match isolate::run(&args) {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("inside: {status}").into()),
            Err(e) => Err(e.into()),
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("linerate: {e}");
            ExitCode::FAILURE
        }
    }
}

fn inside() -> Result<(), Failure> {
    let mut args = std::env::args().skip(1);
    let seconds: u64 = args.next().map_or(Ok(5), |a| a.parse())?;
    let rate = args.next().unwrap_or_else(|| "900Mbps".to_owned());
    let testbed = Testbed::up(&Topology::from_toml(&topology(&rate))?)?;
    testbed.begin()?;
    let capture = testbed.capture(&["west/w0"])?;
    let receiver = testbed.in_host("west", receive)?;
    let sender = testbed.in_host("east", move || send(Duration::from_secs(seconds)))?;
    sender.join().map_err(|_| "sender panicked")???;
    let bytes = receiver.join().map_err(|_| "receiver panicked")???;
    let captured = capture.stop()?;
    let incoming: Vec<_> = captured
        .records
        .iter()
        .filter(|r| r.direction == kuroshio_port::Direction::In)
        .collect();
    let (Some(first), Some(last)) = (incoming.first(), incoming.last()) else {
        return Err("nothing was captured".into());
    };
    let from = first.t_ns + (last.t_ns - first.t_ns) / 5;
    let until = last.t_ns - (last.t_ns - first.t_ns) / 5;
    let middle = incoming.iter().filter(|r| (from..until).contains(&r.t_ns));
    let (frames, sum) = middle.fold((0u64, 0u64), |(n, b), r| (n + 1, b + u64::from(r.frame_len)));
    let time_s = (until - from) as f64 / 1e9;
    println!(
        "{bytes} bytes; middle 60 %: {:.2} Mbps frame level, {:.0} frames/s; capture missed {}",
        sum as f64 * 8.0 / time_s / 1e6,
        frames as f64 / time_s,
        captured.missed
    );
    let counters = testbed.counters()?;
    println!(
        "dropped in the network {}, by the machine {}",
        counters.dropped_frames(),
        counters.machine_lost()
    );
    if std::env::var_os("VERBOSE").is_some() {
        println!("{counters:#?}");
    }
    println!("{}", testbed.down()?);
    Ok(())
}

fn receive() -> std::io::Result<u64> {
    let listener = TcpListener::bind("10.0.0.2:5000")?;
    let (mut stream, _) = listener.accept()?;
    let mut buffer = vec![0; 1 << 18];
    let mut bytes = 0;
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(bytes),
            n => bytes += n as u64,
        }
    }
}

fn send(time: Duration) -> std::io::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(5);
    let mut stream = loop {
        match TcpStream::connect("10.0.0.2:5000") {
            Ok(stream) => break stream,
            Err(e) if Instant::now() > deadline => return Err(e),
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    rustix::net::sockopt::set_tcp_congestion(&stream, "cubic")?;
    let buffer = vec![0; 1 << 18];
    let end = Instant::now() + time;
    while Instant::now() < end {
        stream.write_all(&buffer)?;
    }
    Ok(())
}
