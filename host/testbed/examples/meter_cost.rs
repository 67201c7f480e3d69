//! What the meters alone take, ns per event, without a testbed: reading a frame's stream, and counting an event in a meter
//! of one to eight widths, for all frames and for 16 streams apart.
//!
//! `cargo run --release -p kuroshio-testbed --example meter_cost [-- --json]`

use std::hint::black_box;
use std::time::Instant;

use kuroshio_core::meter::{Event, Filter, MeterConfig, StageMeter, StreamKey, What};
use kuroshio_core::units::{PicoDuration, PicoTime};

const EVENTS: u64 = 1_000_000;
const STREAMS: u32 = 16;
/// The median of so many.
const RUNS: usize = 5;

/// A TCP segment of a stream.
fn frame(stream: u32) -> Vec<u8> {
    let mut frame = vec![0u8; 12];
    frame.extend([
        0x08, 0x00, 0x45, 0, 0x05, 0xdc, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 1, 1, 10, 0, 1, 2,
    ]);
    frame.extend((40_000 + stream as u16).to_be_bytes());
    frame.extend(5_201u16.to_be_bytes());
    frame.extend([0; 8]);
    frame.extend([0x80, 0x10, 0, 0, 0, 0, 0, 0]);
    frame.resize(1_514, 0);
    frame
}

/// ns per event, the median of [`RUNS`].
fn median_ns(mut run: impl FnMut()) -> u64 {
    let mut all: Vec<u64> = (0..RUNS)
        .map(|_| {
            let begin = Instant::now();
            run();
            begin.elapsed().as_nanos() as u64 / EVENTS
        })
        .collect();
    all.sort_unstable();
    all[RUNS / 2]
}

fn reading() -> u64 {
    let frames: Vec<Vec<u8>> = (0..STREAMS).map(frame).collect();
    median_ns(|| {
        for n in 0..EVENTS as usize {
            black_box(StreamKey::of(black_box(&frames[n % frames.len()])));
        }
    })
}

fn counting(widths: u64, streams: usize) -> u64 {
    let keys: Vec<StreamKey> = (0..STREAMS).map(|s| StreamKey::of(&frame(s)).0).collect();
    let filter: Filter = "tcp and dst port 5201".parse().unwrap_or_default();
    let config = MeterConfig {
        filter,
        widths: (0..widths).map(|n| PicoDuration::from_us(500 << n)).collect(),
        keep: 1_000,
        streams,
    };
    median_ns(|| {
        let mut meter = StageMeter::new(config.clone(), None);
        for n in 0..EVENTS {
            let at = PicoTime::from_ns(n * 12_304);
            let event = Event {
                at,
                what: if n % 2 == 0 { What::Arrived } else { What::Departed },
                frame_bytes: 1_518,
                payload_bytes: 1_448,
                entered: Some(PicoTime::from_ps(
                    at.as_ps().saturating_sub(5_000_000_000 + n % 977),
                )),
                queued_bytes: n % 65_536,
            };
            let stream = (n / 2) as u32 % STREAMS;
            meter.add(stream, || keys.get(stream as usize).copied(), &event);
            if n % 64 == 0 {
                meter.close_until(at);
            }
        }
        black_box(meter.events());
    })
}

fn main() {
    let json = std::env::args().any(|a| a == "--json");
    let read = reading();
    let mut lines = vec![("read_stream".to_owned(), read)];
    for widths in [1, 2, 8] {
        for streams in [0, 16] {
            lines.push((
                format!("count_{widths}_widths_{streams}_streams"),
                counting(widths, streams),
            ));
        }
    }
    if json {
        let fields: Vec<String> = lines
            .iter()
            .map(|(name, ns)| format!("\"{name}_ns\":{ns}"))
            .collect();
        println!("{{{}}}", fields.join(","));
    } else {
        for (name, ns) in lines {
            println!("{name}: {ns} ns per event");
        }
    }
}
