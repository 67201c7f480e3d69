//! Rates of a file system that is mounted: one process that waits for each call.
//!
//! `cargo run --release -p kuroshio-mount --example mount_rate -- DIR [FILES] [MiB]` prints one JSON object a line: create
//! (and close) of empty files, stat, create + write 4 KiB, open + read 4 KiB, unlink in calls per second; writing
//! (until close has returned, and with fsync) and reading in order in 1 MiB calls, MB/s. Reading is through a cache
//! that `POSIX_FADV_DONTNEED` has emptied, as far as the file system heeds it.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

const SMALL: usize = 4096;
const PIECE: usize = 1 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args_os().skip(1);
    let dir = PathBuf::from(args.next().ok_or("which folder?")?).join(format!("rate-{}", std::process::id()));
    let mut number = |default: usize| -> Result<usize, Box<dyn std::error::Error>> {
        match args.next() {
            None => Ok(default),
            Some(text) => Ok(text.to_str().ok_or("not a number")?.parse()?),
        }
    };
    let (files, mib) = (number(1000)?, number(512)?);
    fs::create_dir(&dir)?;
    let done = small(&dir, files).and_then(|()| large(&dir, mib));
    fs::remove_dir_all(&dir)?;
    Ok(done?)
}

fn each(what: &str, files: usize, mut call: impl FnMut(usize) -> std::io::Result<()>) -> std::io::Result<()> {
    let begin = Instant::now();
    for n in 0..files {
        call(n)?;
    }
    let s = begin.elapsed().as_secs_f64();
    println!(
        r#"{{"what":"{what}","calls":{files},"per_s":{:.0},"us":{:.0}}}"#,
        files as f64 / s,
        s * 1e6 / files as f64
    );
    Ok(())
}

fn small(dir: &Path, files: usize) -> std::io::Result<()> {
    let empty = |n: usize| dir.join(format!("e{n}"));
    let full = |n: usize| dir.join(format!("f{n}"));
    let content = [7; SMALL];
    each("create", files, |n| File::create_new(empty(n)).map(drop))?;
    each("stat", files, |n| fs::metadata(empty(n)).map(drop))?;
    each("create + write 4 KiB", files, |n| {
        File::create_new(full(n))?.write_all(&content)
    })?;
    let mut into = [0; SMALL];
    each("open + read 4 KiB", files, |n| {
        File::open(full(n))?.read_exact(&mut into)
    })?;
    each("unlink", files, |n| fs::remove_file(empty(n)))?;
    each("unlink of 4 KiB", files, |n| fs::remove_file(full(n)))
}

fn mb_per_s(what: &str, mib: usize, begin: Instant) {
    let s = begin.elapsed().as_secs_f64();
    let rate = (mib * PIECE) as f64 / s / 1e6;
    println!(r#"{{"what":"{what}","mib":{mib},"mb_per_s":{rate:.0}}}"#);
}

fn large(dir: &Path, mib: usize) -> std::io::Result<()> {
    // No piece is as another.
    let mut content = vec![0; PIECE];
    blake3::Hasher::new().finalize_xof().fill(&mut content);
    let path = dir.join("large");
    for sync in [false, true] {
        let begin = Instant::now();
        let mut file = File::create(&path)?;
        for n in 0..mib {
            content[..8].copy_from_slice(&n.to_le_bytes());
            file.write_all(&content)?;
        }
        if sync {
            file.sync_all()?;
        }
        drop(file);
        mb_per_s(
            if sync {
                "write, fsync, close"
            } else {
                "write, close"
            },
            mib,
            begin,
        );
    }
    let mut file = File::open(&path)?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    let begin = Instant::now();
    for _ in 0..mib {
        file.read_exact(&mut content)?;
    }
    mb_per_s("read", mib, begin);
    Ok(())
}
