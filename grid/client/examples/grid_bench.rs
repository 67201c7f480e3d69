//! Operations per second of a grid, by the client library; each is durable when it is acknowledged.
//!
//! ```text
//!   grid_bench GRID/metad/admin.ticket /bench 1000 csrdu          one caller that waits for each answer
//!   grid_bench GRID/metad/admin.ticket /bench 1000 csrdu 64       64 callers, a thread each
//!   grid_bench GRID/metad/admin.ticket /bench 1000 csu 64 piped   one thread that has 64 requests on their way
//!   grid_bench GRID/metad/admin.ticket /bench 1GiB WS             one file of that size
//! ```
//!
//! Operations, in the order of their letters, on files `DIR/f0000000` and so on: `c` create an empty file, `s` stat
//! (nothing is cached here), `r` rename there and back (two operations), `d` list the directory with attributes (one
//! operation is an entry), `u` unlink, `w` create and write 4 KiB, `R` open and read 4 KiB whole and verified,
//! `m` make a directory, `x` remove it, `W` write and `S` read one file of the given size (operations are bytes).
//! Prints one JSON object for each. Piped are operations of one request: `c`, `s`, `u`.

use std::collections::VecDeque;
use std::error::Error;
use std::io::{Cursor, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use kuroshio_client::v1::{self, request::Op};
use kuroshio_client::{Cancel, ClientError, Grid, Pending, PutOptions};
use kuroshio_service::{Ticket, private};

type Answer<T> = Result<T, Box<dyn Error>>;

/// Bytes of a small file.
const SMALL: usize = 4096;
/// Most callers.
const MAX_CALLERS: u64 = 1024;

fn main() -> Answer<()> {
    let args = std::env::args().skip(1).collect::<Vec<_>>();
    let [ticket, dir, count, letters, rest @ ..] = args.as_slice() else {
        return Err("usage: grid_bench TICKET-FILE DIR COUNT|SIZE LETTERS [CALLERS [piped]]".into());
    };
    let piped = match rest.get(1).map(String::as_str) {
        None => false,
        Some("piped") => true,
        Some(other) => return Err(format!("`{other}`: piped is valid").into()),
    };
    let callers = rest.first().map_or(Ok(1), |c| c.parse::<u64>())?;
    if !(1..=MAX_CALLERS).contains(&callers) {
        return Err(format!("{callers} callers: 1 to {MAX_CALLERS} are valid").into());
    }
    let bytes = private::read(Path::new(ticket), 64 * 1024)?.ok_or("no such ticket file")?;
    let ticket: Ticket = String::from_utf8(bytes)?.trim().parse()?;
    let grid = Grid::connect(&ticket)?;
    match grid.make_dir(dir.as_bytes(), 0o755, 0) {
        Ok(_) => {}
        Err(e) if e.code() == Some(kuroshio_client::v1::Code::Exists) => {}
        Err(e) => return Err(e.into()),
    }
    for letter in letters.chars() {
        let (done, seconds) = if piped {
            run_piped(&grid, dir, count.parse()?, letter, callers)?
        } else {
            run(&grid, dir, count, letter, callers)?
        };
        let callers = if piped {
            format!("\"{callers} piped\"")
        } else {
            callers.to_string()
        };
        println!(
            "{{\"operation\":\"{letter}\",\"callers\":{callers},\"operations\":{done},\"seconds\":{seconds:.6},\
             \"per_second\":{:.1}}}",
            done as f64 / seconds
        );
    }
    Ok(())
}

/// Runs one kind of operation: how many were done, in how many seconds.
fn run(grid: &Grid, dir: &str, count: &str, letter: char, callers: u64) -> Answer<(u64, f64)> {
    let begun = Instant::now();
    let done = match letter {
        'W' | 'S' => {
            let size = bytes_of(count)?;
            if letter == 'W' {
                write_large(grid, dir, size)?;
            } else {
                let mut sink = Sink;
                grid.read_to(format!("{dir}/large").as_bytes(), &mut sink, &Cancel::default())?;
            }
            size
        }
        'd' => {
            let mut entries = 0;
            for entry in grid.list(dir.as_bytes()) {
                entry?;
                entries += 1;
            }
            entries
        }
        letter => {
            let count: u64 = count.parse()?;
            let next = AtomicU64::new(0);
            let work = || -> Result<u64, ClientError> {
                let mut done = 0;
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= count {
                        return Ok(done);
                    }
                    done += one(grid, dir, letter, n)?;
                }
            };
            let results = std::thread::scope(|s| {
                let threads = (0..callers).map(|_| s.spawn(work)).collect::<Vec<_>>();
                let joined = threads.into_iter().map(|t| t.join());
                joined.collect::<Vec<_>>()
            });
            let mut done = 0;
            for result in results {
                done += result.map_err(|_| "a caller panicked")??;
            }
            done
        }
    };
    Ok((done, begun.elapsed().as_secs_f64()))
}

/// As [`run`], in one thread that has `window` requests on their way and takes the answers in order.
fn run_piped(grid: &Grid, dir: &str, count: u64, letter: char, window: u64) -> Answer<(u64, f64)> {
    let begun = Instant::now();
    let mut under_way = VecDeque::new();
    for n in 0..count {
        if under_way.len() as u64 >= window {
            take_one(&mut under_way)?;
        }
        under_way.push_back(grid.submit(request(letter, format!("{dir}/f{n:07}").into_bytes())?)?);
    }
    while !under_way.is_empty() {
        take_one(&mut under_way)?;
    }
    Ok((count, begun.elapsed().as_secs_f64()))
}

/// Waits for the oldest request; a refusal is an error.
fn take_one(under_way: &mut VecDeque<Pending>) -> Result<(), ClientError> {
    under_way.pop_front().map_or(Ok(()), |p| p.wait().map(drop))
}

/// An operation that is one request.
fn request(letter: char, path: Vec<u8>) -> Answer<Op> {
    Ok(match letter {
        'c' => Op::MakeFile(v1::MakeFileRequest {
            path,
            mode: 0o644,
            ..v1::MakeFileRequest::default()
        }),
        's' => Op::Stat(v1::PathRequest {
            path,
            no_follow: true,
            ..v1::PathRequest::default()
        }),
        'u' => Op::Remove(v1::RemoveRequest {
            path,
            directory: false,
        }),
        other => return Err(format!("operation `{other}` is not piped: c, s and u are valid").into()),
    })
}

/// One operation; how many it counts for.
fn one(grid: &Grid, dir: &str, letter: char, n: u64) -> Result<u64, ClientError> {
    let path = format!("{dir}/f{n:07}").into_bytes();
    match letter {
        'c' => drop(grid.make_file(&path, 0o644, 0)?),
        'w' => put(grid, &path, &[b'x'; SMALL])?,
        's' => drop(grid.stat(&path, false)?),
        'u' => grid.remove(&path, false)?,
        'm' => drop(grid.make_dir(&path, 0o755, 0)?),
        'x' => grid.remove(&path, true)?,
        'r' => {
            let other = format!("{dir}/g{n:07}").into_bytes();
            grid.rename(&path, &other, false)?;
            grid.rename(&other, &path, false)?;
            return Ok(2);
        }
        'R' => {
            let mut out = Vec::with_capacity(SMALL);
            grid.read_to(&path, &mut out, &Cancel::default())?;
            if out.len() != SMALL {
                return Err(ClientError::Invalid(format!("{} bytes were read", out.len())));
            }
        }
        other => return Err(ClientError::Invalid(format!("operation `{other}` is not known"))),
    }
    Ok(1)
}

fn options() -> PutOptions {
    PutOptions {
        exclusive: true,
        mode: 0o644,
        umask: 0,
        near_host: String::new(),
        mtime_ns: None,
    }
}

fn put(grid: &Grid, path: &[u8], content: &[u8]) -> Result<(), ClientError> {
    let source = &mut Cursor::new(content);
    grid.put(path, source, content.len() as u64, &options(), &Cancel::default())
        .map(drop)
}

fn write_large(grid: &Grid, dir: &str, size: u64) -> Result<(), ClientError> {
    let path = format!("{dir}/large").into_bytes();
    let mut source = Pattern { at: 0, size };
    let options = PutOptions {
        exclusive: false,
        ..options()
    };
    grid.put(&path, &mut source, size, &options, &Cancel::default())
        .map(drop)
}

/// `1GiB`, `64MiB`.
fn bytes_of(text: &str) -> Answer<u64> {
    let units = [("GiB", 1u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    let found = units
        .iter()
        .find_map(|(unit, each)| Some((text.strip_suffix(unit)?, *each)));
    let (number, each) = found.ok_or("a size needs KiB, MiB or GiB")?;
    Ok(number.parse::<u64>()?.checked_mul(each).ok_or("too large")?)
}

/// Content that costs nothing to make.
struct Pattern {
    at: u64,
    size: u64,
}

impl Read for Pattern {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let left = usize::try_from(self.size - self.at).unwrap_or(usize::MAX);
        let n = buf.len().min(left);
        buf[..n].fill(self.at as u8);
        self.at += n as u64;
        Ok(n)
    }
}

impl Seek for Pattern {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        match to {
            SeekFrom::Start(at) if at <= self.size => self.at = at,
            _ => return Err(std::io::ErrorKind::Unsupported.into()),
        }
        Ok(self.at)
    }
}

/// Takes everything.
struct Sink;

impl Write for Sink {
    fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        Ok(buf.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
