//! Durable objects per second: `put_rate DIR [SECONDS]` puts and reads 4 KiB objects with 1, 4 and 16 threads in a
//! spool in DIR (made and left there), and prints one line each.

use kuroshio_store::{Limits, Meta, ObjectId, Store};
use std::error::Error;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

fn id(inode: u64) -> ObjectId {
    ObjectId {
        inode,
        generation: 1,
        fragment: 0,
    }
}

/// Operations and their time, over threads that take numbers in turn until the time is over.
fn run(threads: u64, time: Duration, op: impl Fn(u64) -> bool + Sync) -> (u64, f64) {
    let (next, begun) = (AtomicU64::new(0), Instant::now());
    std::thread::scope(|s| {
        for _ in 0..threads {
            s.spawn(|| while begun.elapsed() < time && op(next.fetch_add(1, Ordering::Relaxed)) {});
        }
    });
    (next.into_inner(), begun.elapsed().as_secs_f64())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args_os().skip(1);
    let dir = PathBuf::from(args.next().ok_or("usage: put_rate DIR [SECONDS]")?);
    let seconds = match args.next() {
        Some(text) => text.to_str().ok_or("SECONDS is no number")?.parse()?,
        None => 3,
    };
    let time = Duration::from_secs(seconds);
    let limits = Limits {
        slots: 128,
        ..Limits::default()
    };
    let store = Store::open(&dir, limits)?;
    let (meta, content) = (Meta::default(), [7u8; 4096]);
    for threads in [1u64, 4, 16] {
        let first = threads << 40;
        let before = store.status()?.flushes;
        let (puts, took) = run(threads, time, |n| {
            store.put(id(first + n), &meta, &content, None).is_ok()
        });
        let flushes = store.status()?.flushes - before;
        println!(
            "put 4KiB, {threads:2} threads: {:8.0} per second, {puts} objects in {flushes} flushes",
            puts as f64 / took
        );
        let (reads, took) = run(threads, time, |n| {
            let mut buf = [0; 4096];
            let read = store
                .read(id(first + n % puts.max(1)))
                .and_then(|r| r.read_at(0, &mut buf));
            read.is_ok_and(|got| got == buf.len())
        });
        println!(
            "open and read 4KiB, {threads:2} threads: {:8.0} per second",
            reads as f64 / took
        );
    }
    Ok(())
}
