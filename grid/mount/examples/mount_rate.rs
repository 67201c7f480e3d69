//! Operations per second of a file system that is mounted: one process that waits for each call.
//!
//! ```text
//!   mount_rate DIR 1000 cuw            so many small files
//!   mount_rate DIR 512MiB WS           one file of that size
//! ```
//!
//! The letters are those of `grid/client/examples/grid_bench.rs`: `c` create an empty file, `s` stat, `u` unlink, `w` create
//! and write 4 KiB, `R` open and read 4 KiB, on files `DIR/f0000000` and so on; `W` writes and `S` reads one file of the given
//! size in calls of 1 MiB (operations are bytes), `F` writes it with an `fsync` at the end. An operation ends with its `close`.
//! Before `S` the file's pages are to be forgotten (`POSIX_FADV_DONTNEED`), as far as the file system heeds that; who wants to be
//! sure mounts anew. Prints one JSON object for each letter.

use std::error::Error;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Bytes of a small file.
const SMALL: usize = 4096;
/// Bytes of one call on the large file.
const PIECE: usize = 1 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let args = std::env::args().skip(1).collect::<Vec<_>>();
    let [dir, count, letters] = args.as_slice() else {
        return Err("usage: mount_rate DIR COUNT|SIZE LETTERS".into());
    };
    let dir = PathBuf::from(dir);
    fs::create_dir_all(&dir)?;
    for letter in letters.chars() {
        let begin = Instant::now();
        let done = match letter {
            'W' | 'F' => write_large(&dir, bytes_of(count)?, letter == 'F')?,
            'S' => read_large(&dir)?,
            _ => small(&dir, count.parse()?, letter)?,
        };
        let seconds = begin.elapsed().as_secs_f64();
        println!(
            "{{\"operation\":\"{letter}\",\"callers\":1,\"operations\":{done},\"seconds\":{seconds:.6},\
             \"per_second\":{:.1}}}",
            done as f64 / seconds
        );
    }
    Ok(())
}

/// `1GiB`, `64MiB`.
fn bytes_of(text: &str) -> Result<u64, Box<dyn Error>> {
    let units = [("GiB", 1u64 << 30), ("MiB", 1 << 20)];
    let found = units
        .iter()
        .find_map(|(unit, each)| Some((text.strip_suffix(unit)?, *each)));
    let (number, each) = found.ok_or("a size needs MiB or GiB")?;
    Ok(number.parse::<u64>()?.checked_mul(each).ok_or("too large")?)
}

fn small(dir: &Path, count: u64, letter: char) -> io::Result<u64> {
    let content = [b'x'; SMALL];
    for n in 0..count {
        let path = dir.join(format!("f{n:07}"));
        match letter {
            'c' => drop(File::create_new(path)?),
            's' => {
                fs::symlink_metadata(path)?;
            }
            'u' => fs::remove_file(path)?,
            'w' => File::create_new(path)?.write_all(&content)?,
            'R' => File::open(path)?.read_exact(&mut [0; SMALL])?,
            other => return Err(io::Error::other(format!("operation `{other}` is not known"))),
        }
    }
    Ok(count)
}

fn write_large(dir: &Path, size: u64, sync: bool) -> io::Result<u64> {
    let mut content = vec![b'x'; PIECE];
    let mut file = File::create(dir.join("large"))?;
    for n in 0..size / PIECE as u64 {
        // No piece is as another.
        if let Some(first) = content.first_chunk_mut::<8>() {
            *first = n.to_le_bytes();
        }
        file.write_all(&content)?;
    }
    if sync {
        file.sync_all()?;
    }
    // What `close` says is lost in a drop.
    nix::unistd::close(file)?;
    Ok(size)
}

fn read_large(dir: &Path) -> io::Result<u64> {
    let mut file = File::open(dir.join("large"))?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    let mut content = vec![0; PIECE];
    let mut bytes = 0;
    loop {
        match file.read(&mut content)? {
            0 => return Ok(bytes),
            n => bytes += n as u64,
        }
    }
}
