//! Dynamic pacing (one window per round trip) of the kernel's own TCP, at a router whose queue is far below the
//! bandwidth-delay product.
//!
//! ```text
//! 5 Mbps, RTT 200 ms: 82 frames of 1518 bytes are on their way when the link is full; the queue holds 16 KiB, 10. A
//! frame takes 2.4 ms, so that a timer that is some milliseconds late on a busy machine is two frames late, no more.
//! not paced  a window leaves in bursts: slow start meets a full queue at a fraction of 165
//! dynamic    a window is spread over the round trip: slow start meets a full queue when the link is full
//! ```

mod common;

use std::io::{Read, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use common::{connect, two_hosts};
use kuroshio_sock::{TcpInfo, follow_window, set_congestion, tcp_info};
use kuroshio_testbed::Testbed;

/// Long enough for 30 round trips.
const TIME: Duration = Duration::from_secs(6);
const CAPACITY_BPS: u64 = 5_000_000;
const LINK: &str = "capacity = \"5Mbps\"\nqueue = \"16KiB\"\none_way_delay = \"100ms\"";

fn main() -> ExitCode {
    common::run(&[(
        "a_shallow_queue_is_met_when_the_link_is_full",
        a_shallow_queue_is_met_when_the_link_is_full,
    )])
}

/// What a connection did.
struct Outcome {
    /// Payload that arrived, of the link's capacity.
    share: f64,
    /// Segments in the largest window before a loss was known, a round trip after it.
    window_at_loss: u32,
    dropped: u64,
    /// Looks at the window.
    looks: u32,
}

/// Reno's answer to a loss is known: it halves.
fn flow(paced: bool) -> Outcome {
    let tb = Testbed::up(&two_hosts("", LINK)).expect("up");
    let (mut near, mut far) = connect(&tb, "10.0.0.2:7");
    set_congestion(&near, "reno").expect("reno");
    let watched = near.try_clone().expect("clone");
    let end = Instant::now() + TIME;
    let sender = std::thread::spawn(move || {
        let block = [7; 32 << 10];
        while Instant::now() < end && near.write_all(&block).is_ok() {}
    });
    let receiver = std::thread::spawn(move || {
        let (mut buf, mut bytes) = (vec![0; 64 << 10], 0u64);
        while Instant::now() < end {
            bytes += far.read(&mut buf).expect("data") as u64;
        }
        // What the sender is blocked on.
        drop(far);
        bytes
    });
    let (mut window_at_loss, mut looks, mut lost) = (0, 0, false);
    let mut next = Instant::now();
    while Instant::now() < end {
        let info: TcpInfo = tcp_info(&watched).expect("TCP_INFO");
        lost |= info.retrans_segments > 0 || info.lost_segments > 0;
        if !lost {
            window_at_loss = window_at_loss.max(info.cwnd_segments);
        }
        if paced && Instant::now() >= next {
            let (pacing, after) = follow_window(&watched, None).expect("paced");
            let told = tcp_info(&watched).expect("TCP_INFO").max_pacing_rate_bytes_per_s;
            assert_eq!(told, pacing.payload_bytes_per_s);
            next = Instant::now() + after;
            looks += 1;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let bytes = receiver.join().expect("receiver");
    sender.join().expect("sender");
    let counters = tb.counters().expect("counters");
    Outcome {
        share: bytes as f64 * 8.0 / TIME.as_secs_f64() / CAPACITY_BPS as f64,
        window_at_loss,
        dropped: counters.dropped_frames(),
        looks,
    }
}

fn a_shallow_queue_is_met_when_the_link_is_full() {
    let plain = flow(false);
    let dynamic = flow(true);
    for (name, o) in [("not paced", &plain), ("dynamic", &dynamic)] {
        println!(
            "{name}: {:.3} of the capacity as payload, window {} when a loss is known, {} frames dropped, {} looks",
            o.share, o.window_at_loss, o.dropped, o.looks
        );
    }
    assert!(plain.dropped > 0 && plain.looks == 0);
    // An even window meets the queue later than bursts do, and the link is used the better for it.
    assert!(dynamic.window_at_loss > plain.window_at_loss);
    assert!(dynamic.share > plain.share);
    // Four times a round trip of 200 ms in 6 s, more often before the first, and not all the time.
    assert!((60..=400).contains(&dynamic.looks));
}
