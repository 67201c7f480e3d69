//! What the administrator asks of a node: to compare its spool with the catalog, both ways, and to try its disk.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Instant, UNIX_EPOCH};

use kuroshio_client::{Cancel, ClientError, Grid, v1};
use kuroshio_store::{ObjectId, ObjectReader, StoreError};

use crate::control::object_id;
use crate::scrub::name_of;
use crate::server::Shared;

/// Objects that are told of at once.
const PAGE: usize = 1000;
/// Most bytes of paths in one message: it has to stay well below 1 MiB.
const PAGE_PATH_BYTES: usize = 256 << 10;
/// File of the disk bench.
const BENCH: &str = "bench.tmp";
/// Bytes written or read at once.
const BLOCK_BYTES: usize = 4 << 20;

/// Tells what is here, and finds what the catalog believes to be here and is not.
pub fn run(
    shared: &Shared,
    grid: &Grid,
    look: &v1::Look,
    cancel: &Cancel,
    done: &mut v1::OrderDoneRequest,
) -> Result<(), String> {
    if look.settle {
        return settle(shared, grid, cancel, done);
    }
    tell(shared, grid, look, cancel, done)?;
    let mut after = None;
    loop {
        stop(cancel)?;
        let asked = v1::InventoryRequest {
            believed: true,
            after: after.take(),
            ..v1::InventoryRequest::default()
        };
        let believed = grid.inventory(asked).map_err(text)?.believed;
        let Some(last) = believed.last().cloned() else {
            return Ok(());
        };
        let mut gone = Vec::new();
        for name in believed {
            if !is_here(shared, &name)? {
                gone.push(name);
            }
        }
        if !gone.is_empty() {
            done.lost += gone.len() as u64;
            grid.damaged(gone).map_err(text)?;
        }
        after = Some(last);
    }
}

fn text(e: ClientError) -> String {
    e.to_string()
}

fn stop(cancel: &Cancel) -> Result<(), String> {
    if cancel.is_stopped() {
        return Err("called off".into());
    }
    Ok(())
}

/// Whether an object that the catalog believes in is here, by its size and the digest that it was stored with.
fn is_here(shared: &Shared, name: &v1::ObjectName) -> Result<bool, String> {
    let id = object_id(name.inode, name.generation, name.fragment)?;
    match shared.store.read(id) {
        Ok(reader) => Ok(reader.size() == name.size_bytes && reader.digest()[..] == name.digest[..]),
        Err(StoreError::NotFound(_) | StoreError::Damaged { .. }) => Ok(false),
        Err(e) => Err(e.to_string()),
    }
}

/// Goes through the spool and tells the catalog of every object that is right.
fn tell(
    shared: &Shared,
    grid: &Grid,
    look: &v1::Look,
    cancel: &Cancel,
    done: &mut v1::OrderDoneRequest,
) -> Result<(), String> {
    let mut cursor = None;
    loop {
        stop(cancel)?;
        let (page, next) = shared.store.list(cursor, PAGE).map_err(|e| e.to_string())?;
        let mut told = Told {
            grid,
            look,
            done: &mut *done,
        };
        let (mut objects, mut paths) = (Vec::with_capacity(page.len()), 0);
        for listed in page {
            if let Some(object) = kept(shared, listed.id, look)? {
                paths += object.file.as_ref().map_or(0, |f| f.path.len());
                objects.push(object);
            }
            if paths > PAGE_PATH_BYTES {
                told.page(std::mem::take(&mut objects))?;
                paths = 0;
            }
            stop(cancel)?;
        }
        told.page(objects)?;
        if next.is_none() {
            return Ok(());
        }
        cursor = next;
    }
}

/// What was told so far.
struct Told<'a> {
    grid: &'a Grid,
    look: &'a v1::Look,
    done: &'a mut v1::OrderDoneRequest,
}

impl Told<'_> {
    fn page(&mut self, objects: Vec<v1::ObjectName>) -> Result<(), String> {
        if objects.is_empty() {
            return Ok(());
        }
        self.done.objects += objects.len() as u64;
        let asked = v1::InventoryRequest {
            objects,
            adopt: true,
            rebuild: self.look.rebuild,
            ..v1::InventoryRequest::default()
        };
        let reply = self.grid.inventory(asked).map_err(text)?;
        self.done.adopted += reply.adopted;
        self.done.unknown += reply.unknown.len() as u64;
        Ok(())
    }
}

/// After files were made anew of what nobody knew: what is still of no file goes to quarantine, where it stays, and the
/// spool is not held any more.
fn settle(
    shared: &Shared,
    grid: &Grid,
    cancel: &Cancel,
    done: &mut v1::OrderDoneRequest,
) -> Result<(), String> {
    let mut cursor = None;
    loop {
        stop(cancel)?;
        let (page, next) = shared.store.list(cursor, PAGE).map_err(|e| e.to_string())?;
        let objects: Vec<v1::ObjectName> = page.iter().map(|listed| name_of(listed.id)).collect();
        if !objects.is_empty() {
            let asked = v1::InventoryRequest {
                objects,
                ..v1::InventoryRequest::default()
            };
            for name in grid.inventory(asked).map_err(text)?.unknown {
                let id = object_id(name.inode, name.generation, name.fragment)?;
                if !shared.memory.is_forgotten(id.generation) {
                    continue;
                }
                let why = "of no file that the catalog knows after it was rebuilt";
                match shared.store.quarantine(id, why) {
                    Ok(_) => done.unknown += 1,
                    Err(StoreError::NotFound(_)) => {}
                    Err(e) => return Err(e.to_string()),
                }
            }
        }
        if next.is_none() {
            break;
        }
        cursor = next;
    }
    shared.memory.settled();
    Ok(())
}

/// An object with its size and digest; `None` if it has gone or is damaged.
fn kept(shared: &Shared, id: ObjectId, look: &v1::Look) -> Result<Option<v1::ObjectName>, String> {
    if look.deep {
        let damage = match shared.store.verify(id) {
            Ok(damage) => damage,
            Err(StoreError::NotFound(_)) => return Ok(None),
            Err(e) => return Err(e.to_string()),
        };
        if let Some(damage) = damage {
            let moved = shared.store.quarantine(id, &damage.what);
            tracing::warn!(object = %id, moved = moved.is_ok(), "damaged: {}", damage.what);
            return Ok(None);
        }
    }
    match shared.store.read(id) {
        Ok(reader) => Ok(Some(v1::ObjectName {
            size_bytes: reader.size(),
            digest: reader.digest().to_vec(),
            // What was written since the catalog lost its memory may be about to be published.
            file: (look.rebuild && (look.all || shared.memory.is_forgotten(id.generation)))
                .then(|| facts(&reader)),
            ..name_of(id)
        })),
        Err(StoreError::NotFound(_) | StoreError::Damaged { .. }) => Ok(None),
        Err(e) => Err(e.to_string()),
    }
}

fn facts(reader: &ObjectReader) -> v1::FileFacts {
    let meta = reader.meta();
    let written = reader.file().metadata().and_then(|m| m.modified());
    let since = written.map(|at| at.duration_since(UNIX_EPOCH).unwrap_or_default());
    let kept_ns = since.map_or(0, |d| i64::try_from(d.as_nanos()).unwrap_or(i64::MAX));
    v1::FileFacts {
        kept_ns,
        path: meta.name_hint.clone(),
        owner: meta.owner.clone(),
        group: meta.group.clone(),
        mode: meta.mode,
        fragments: meta.fragments,
        mtime_ns: meta.modified_unix_ns,
    }
}

/// Writes a file beside the spool, flushes it, reads it back from the disk: bit/s of writing and of reading.
pub fn bench(shared: &Shared, bytes: u64, cancel: &Cancel) -> Result<(u64, u64), String> {
    let free = shared.store.status().map_err(|e| e.to_string())?.free_bytes;
    if bytes > free / 2 {
        return Err(format!(
            "{bytes} bytes are more than half of the {free} that are free"
        ));
    }
    let path = shared.dir.join(BENCH);
    let rates = bench_file(&path, bytes, cancel);
    // A file that was never made need not go.
    let _ = std::fs::remove_file(&path);
    rates.map_err(|e| format!("{}: {e}", path.display()))
}

fn bench_file(path: &Path, bytes: u64, cancel: &Cancel) -> io::Result<(u64, u64)> {
    let make = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path);
    let mut file = make?;
    let mut block = vec![0u8; BLOCK_BYTES];
    // Nothing that a file system could make smaller.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for word in block.chunks_exact_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes());
    }
    let begun = Instant::now();
    let mut left = bytes;
    while left > 0 {
        if cancel.is_stopped() {
            return Err(io::Error::other("called off"));
        }
        let some = left.min(BLOCK_BYTES as u64);
        file.write_all(block.get(..some as usize).unwrap_or_default())?;
        left -= some;
    }
    file.sync_all()?;
    let write_bps = rate(bytes, begun);
    // What is in memory already would be read from there.
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    let mut file = File::open(path)?;
    let begun = Instant::now();
    loop {
        if cancel.is_stopped() {
            return Err(io::Error::other("called off"));
        }
        if file.read(&mut block)? == 0 {
            break;
        }
    }
    Ok((write_bps, rate(bytes, begun)))
}

fn rate(bytes: u64, begun: Instant) -> u64 {
    let ns = begun.elapsed().as_nanos().max(1);
    u64::try_from(u128::from(bytes) * 8_000_000_000 / ns).unwrap_or(u64::MAX)
}
