//! Shared by the tests of the store.
#![allow(dead_code, reason = "every test file uses its own part")]

use kuroshio_store::{Begin, Digest, Finish, Holes, Limits, Meta, ObjectId, Store};
use std::path::Path;

pub fn id(inode: u64) -> ObjectId {
    ObjectId {
        inode,
        generation: 1,
        fragment: 0,
    }
}

/// Bytes that differ with the seed and have no period of a power of two.
pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        })
        .collect()
}

pub fn digest(content: &[u8]) -> Digest {
    *blake3::hash(content).as_bytes()
}

pub fn meta(name: &str) -> Meta {
    Meta {
        owner: "ann".into(),
        group: "physics".into(),
        name_hint: name.as_bytes().to_vec(),
        mode: 0o640,
        fragments: 1,
        modified_unix_ns: 1_700_000_000_000_000_001,
    }
}

pub fn begin(size: Option<u64>, resume: bool) -> Begin {
    Begin {
        meta: meta("/data/run"),
        size,
        resume,
    }
}

pub fn finish(size: u64, digest: Option<Digest>) -> Finish {
    Finish {
        size,
        digest,
        holes: Holes::Refuse,
    }
}

pub fn open(dir: &Path) -> Store {
    Store::open(dir, Limits::default()).expect("the spool opens")
}

/// The whole content of an object.
pub fn content(store: &Store, id: ObjectId) -> Vec<u8> {
    let reader = store.read(id).expect("the object is there");
    let mut buf = vec![0; usize::try_from(reader.size()).expect("fits")];
    assert_eq!(reader.read_at(0, &mut buf).expect("read"), buf.len());
    buf
}

/// Names in a folder of the spool.
pub fn names(dir: &Path, folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir(dir.join(folder)).expect("folder");
    let mut names: Vec<String> = entries
        .map(|e| e.expect("entry").file_name().into_string().expect("text"))
        .collect();
    names.sort();
    names
}

/// The file of an object.
pub fn file_of(dir: &Path, id: ObjectId) -> std::path::PathBuf {
    dir.join(format!("objects/{:02x}/{id}", id.bucket()))
}

/// Flips one bit of a file.
pub fn flip(path: &Path, at: u64) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .expect("open");
    let mut one = [0];
    file.read_exact_at(&mut one, at).expect("read");
    one[0] ^= 4;
    file.write_all_at(&one, at).expect("write");
}
