//! The bytes of a snapshot: `proto/kuroshio/grid/v1/snapshot.proto`.
//!
//! ```text
//!   [u32 length][begin] [u32 length][inode | name | xattr | bound]... [u32 length][end: count, MAC]
//! ```
//!
//! The MAC is over all bytes before the last record, with a key that only metadata services of this grid have: what a node or
//! a user has made up is not believed.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Read, Write};

use kuroshio_catalog::{self as cat, DumpRow};
use kuroshio_proto::frame::{self, MAX_FRAME_BYTES};
use kuroshio_proto::v1::{self, snapshot_record::Record};
use kuroshio_proto::{MAX_NAME_BYTES, Message};
use ring::{digest, hmac};

use crate::convert;

/// Version of the form.
const VERSION: u32 = 1;
/// Inodes of a snapshot at most: they are in memory when it is read, about 300 bytes each.
pub const MAX_INODES: u64 = 5_000_000;
/// Names and extended attributes of an inode at most, together.
const MAX_OF_ONE: usize = 70_000;
/// Bounds of quotas at most.
const MAX_BOUNDS: usize = 1_000_000;
/// Directories from the root to a name at most.
const MAX_DEPTH: usize = 2_048;

/// Writes a snapshot.
pub struct Writer<W> {
    out: W,
    key: hmac::Key,
    mac: hmac::Context,
    /// Of what does not change from one moment to the next.
    body: digest::Context,
    records: u64,
    inodes: u64,
    bounds: usize,
}

impl<W: Write> Writer<W> {
    pub fn new(out: W, key: hmac::Key) -> Self {
        Self {
            out,
            mac: hmac::Context::with_key(&key),
            key,
            body: digest::Context::new(&digest::SHA256),
            records: 0,
            inodes: 0,
            bounds: 0,
        }
    }

    /// Begins again; what was written is to be cut off by the caller.
    pub fn reset(&mut self) -> &mut W {
        self.mac = hmac::Context::with_key(&self.key);
        self.body = digest::Context::new(&digest::SHA256);
        (self.records, self.inodes, self.bounds) = (0, 0, 0);
        &mut self.out
    }

    /// A row of the catalog.
    pub fn row(&mut self, row: DumpRow) -> Result<(), String> {
        let record = match row {
            DumpRow::Begin { next, taken } => Record::Begin(v1::SnapshotBegin {
                version: VERSION,
                taken_ns: taken.0,
                next,
            }),
            DumpRow::Inode(inode) => {
                self.inodes += 1;
                if self.inodes > MAX_INODES {
                    return Err(format!("more than {MAX_INODES} inodes"));
                }
                let entries = |acl: &Option<cat::Acl>| acl.as_ref().map(convert::acl).unwrap_or_default();
                Record::Inode(v1::SnapshotInode {
                    acl: entries(&inode.acl),
                    default_acl: entries(&inode.default_acl),
                    attr: Some(convert::attr(inode.attr)),
                    target: inode.target.unwrap_or_default(),
                })
            }
            DumpRow::Name { parent, name, ino } => Record::Name(v1::SnapshotName {
                parent: parent.0,
                name,
                inode: ino.0,
            }),
            DumpRow::Xattr { ino, name, value } => Record::Xattr(v1::SnapshotXattr {
                inode: ino.0,
                name,
                value,
            }),
            DumpRow::Bound {
                kind,
                name,
                max_files,
                max_bytes,
            } => {
                self.bounds += 1;
                if self.bounds > MAX_BOUNDS {
                    return Err(format!("more than {MAX_BOUNDS} bounds of quotas"));
                }
                let mut bound = v1::SnapshotBound {
                    max_files,
                    max_bytes,
                    ..v1::SnapshotBound::default()
                };
                match kind {
                    cat::QuotaKind::User => bound.user = name,
                    cat::QuotaKind::Group => bound.group = name,
                    cat::QuotaKind::Dir => bound.directory = name.parse().unwrap_or_default(),
                }
                Record::Bound(bound)
            }
        };
        let bytes = encode(record)?;
        if self.records > 0 {
            self.body.update(&bytes);
        }
        self.mac.update(&bytes);
        self.records += 1;
        self.out.write_all(&bytes).map_err(|e| e.to_string())
    }

    /// Ends it. The answer is the writer, how many inodes there are, and a digest of all but the time.
    pub fn end(mut self) -> Result<(W, u64, [u8; 32]), String> {
        let end = v1::SnapshotEnd {
            records: self.records,
            mac: self.mac.sign().as_ref().to_vec(),
        };
        let bytes = encode(Record::End(end))?;
        let written = self.out.write_all(&bytes).and_then(|()| self.out.flush());
        written.map_err(|e| e.to_string())?;
        let mut body = [0; 32];
        body.copy_from_slice(self.body.finish().as_ref());
        Ok((self.out, self.inodes, body))
    }
}

fn encode(record: Record) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let record = v1::SnapshotRecord { record: Some(record) };
    frame::append(&mut bytes, &record).map_err(|e| e.to_string())?;
    Ok(bytes)
}

/// An inode of a snapshot.
#[derive(Debug, Default, PartialEq)]
pub struct Kept {
    pub inode: v1::SnapshotInode,
    /// Directory and name of each of its names.
    pub names: Vec<(u64, Vec<u8>)>,
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Kept {
    pub fn attr(&self) -> v1::Attr {
        self.inode.attr.clone().unwrap_or_default()
    }

    pub fn kind(&self) -> v1::Kind {
        self.inode
            .attr
            .as_ref()
            .map_or(v1::Kind::Unspecified, v1::Attr::kind)
    }
}

/// A snapshot that was read.
#[derive(Debug, Default, PartialEq)]
pub struct Snapshot {
    pub taken_ns: i64,
    /// No number from this one on was given out then.
    pub next: u64,
    pub inodes: HashMap<u64, Kept>,
    pub bounds: Vec<v1::SnapshotBound>,
}

impl Snapshot {
    /// Reads one, to its end; its MAC is right when this returns it.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub fn read(from: &mut impl Read, key: &hmac::Key) -> Result<Self, String> {
        let mut read = Self::default();
        let mut mac = hmac::Context::with_key(key);
        let mut records = 0;
        loop {
            let bytes = one(from).map_err(|e| format!("it cannot be read: {e}"))?;
            let record = v1::SnapshotRecord::decode(bytes.get(4..).unwrap_or_default());
            let record = record.map_err(|e| format!("record {records}: {e}"))?.record;
            if let Some(Record::End(end)) = &record {
                let tag = mac.sign();
                // Nobody can try again and again here: how long the comparison takes tells nothing.
                let right = tag.as_ref() == end.mac;
                return if right && end.records == records {
                    Ok(read)
                } else {
                    Err("it was not written by a metadata service with this grid's keys".into())
                };
            }
            mac.update(&bytes);
            read.take(record, records)?;
            records += 1;
        }
    }

    fn take(&mut self, record: Option<Record>, number: u64) -> Result<(), String> {
        let odd = |what: &str| Err(format!("record {number}: {what}"));
        match (record, number) {
            (Some(Record::Begin(begin)), 0) if begin.version == VERSION => {
                (self.taken_ns, self.next) = (begin.taken_ns, begin.next);
            }
            (Some(Record::Begin(begin)), 0) => {
                return odd(&format!("version {}; {VERSION} is known", begin.version));
            }
            (_, 0) => return odd("not the beginning of a snapshot"),
            (Some(Record::Inode(inode)), _) => {
                let number = inode.attr.as_ref().map_or(0, |a| a.inode);
                if self.inodes.len() as u64 >= MAX_INODES {
                    return odd("too many inodes");
                }
                self.inodes.entry(number).or_default().inode = inode;
            }
            (Some(Record::Name(name)), _) => {
                if name.name.is_empty() || name.name.len() > MAX_NAME_BYTES || name.name.contains(&b'/') {
                    return odd("not a name");
                }
                let Some(kept) = self.inodes.get_mut(&name.inode) else {
                    return odd("a name of nothing");
                };
                if kept.names.len() >= MAX_OF_ONE {
                    return odd("too many names of one file");
                }
                kept.names.push((name.parent, name.name));
            }
            (Some(Record::Xattr(xattr)), _) => {
                let Some(kept) = self.inodes.get_mut(&xattr.inode) else {
                    return odd("an attribute of nothing");
                };
                if kept.xattrs.len() >= MAX_OF_ONE {
                    return odd("too many attributes of one file");
                }
                kept.xattrs.push((xattr.name, xattr.value));
            }
            (Some(Record::Bound(bound)), _) => {
                if self.bounds.len() >= MAX_BOUNDS {
                    return odd("too many bounds");
                }
                self.bounds.push(bound);
            }
            (Some(Record::Begin(_) | Record::End(_)) | None, _) => return odd("not known"),
        }
        Ok(())
    }

    /// The path of a name; none if it does not hang on the root.
    pub fn path(&self, name: &(u64, Vec<u8>)) -> Option<Vec<u8>> {
        let mut names = vec![name.1.as_slice()];
        let mut dir = name.0;
        while dir != cat::Ino::ROOT.0 {
            if names.len() > MAX_DEPTH {
                return None;
            }
            let (above, name) = self.inodes.get(&dir)?.names.first()?;
            names.push(name);
            dir = *above;
        }
        let mut path = Vec::new();
        for name in names.into_iter().rev() {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        Some(path)
    }

    /// All paths of an inode, sorted.
    pub fn paths(&self, kept: &Kept) -> Vec<Vec<u8>> {
        let mut paths: Vec<_> = kept.names.iter().filter_map(|n| self.path(n)).collect();
        paths.sort();
        paths
    }

    /// Directories below the root by depth, the highest first, each with its path.
    pub fn directories(&self) -> BTreeMap<usize, Vec<(Vec<u8>, u64)>> {
        let mut levels: BTreeMap<usize, Vec<_>> = BTreeMap::new();
        let dirs = self
            .inodes
            .iter()
            .filter(|(_, k)| k.kind() == v1::Kind::Directory);
        for (ino, kept) in dirs {
            if let Some(path) = kept.names.first().and_then(|n| self.path(n)) {
                let depth = path.iter().filter(|b| **b == b'/').count();
                levels.entry(depth).or_default().push((path, *ino));
            }
        }
        levels
    }
}

/// Reads these records as if they were signed right, and asks for all paths; how many inodes there are. For fuzzing.
///
/// # Errors
/// As [`Snapshot::read`].
#[doc(hidden)]
pub fn try_records(records: &[u8]) -> Result<usize, String> {
    let key = hmac::Key::new(hmac::HMAC_SHA256, &[7; 32]);
    let (mut left, mut count) = (records, 0);
    while let Some((_, used)) = frame::split::<v1::SnapshotRecord>(left).map_err(|e| e.to_string())? {
        left = left.get(used..).unwrap_or_default();
        count += 1;
    }
    let body = records.get(..records.len() - left.len()).unwrap_or_default();
    let end = encode(Record::End(v1::SnapshotEnd {
        records: count,
        mac: hmac::sign(&key, body).as_ref().to_vec(),
    }))?;
    let read = Snapshot::read(&mut [body, &end].concat().as_slice(), &key)?;
    for kept in read.inodes.values() {
        read.paths(kept);
    }
    read.directories();
    Ok(read.inodes.len())
}

/// The bytes of the next record with its length.
fn one(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; 4];
    from.read_exact(&mut bytes)?;
    let len = bytes.iter().fold(0usize, |n, b| n << 8 | usize::from(*b));
    if len > MAX_FRAME_BYTES {
        return Err(io::Error::other(format!("a record of {len} bytes")));
    }
    let got = from.take(len as u64).read_to_end(&mut bytes)?;
    if got < len {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cat::{Acl, AclEntry, AclTag, CopyRule, DumpedInode, Generation, Ino, Kind, QuotaKind, Timestamp};

    fn key(byte: u8) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &[byte; 32])
    }

    fn inode(ino: u64, kind: Kind, acl: Option<Acl>) -> DumpRow {
        let attr = cat::Attr {
            ino: Ino(ino),
            kind,
            mode: 0o2750,
            owner: "ann".into(),
            group: "physics".into(),
            links: 1,
            size: 5,
            generation: Generation(ino + 1),
            version: 1,
            fragments: 1,
            atime: Timestamp(-1),
            mtime: Timestamp(2),
            ctime: Timestamp(3),
            btime: Timestamp(4),
            copies: CopyRule::Count(2),
            acl: acl.is_some(),
        };
        DumpRow::Inode(Box::new(DumpedInode {
            attr,
            parent: Ino::ROOT,
            default_acl: acl.clone(),
            acl,
            target: None,
        }))
    }

    fn name(parent: u64, name: &str, ino: u64) -> DumpRow {
        DumpRow::Name {
            parent: Ino(parent),
            name: name.into(),
            ino: Ino(ino),
        }
    }

    fn rows(taken: i64) -> Vec<DumpRow> {
        let entry = |tag, bits| AclEntry { tag, bits };
        let acl = Acl::new(vec![
            entry(AclTag::UserObj, 7),
            entry(AclTag::User("eve".into()), 5),
            entry(AclTag::GroupObj, 5),
            entry(AclTag::Mask, 5),
            entry(AclTag::Other, 0),
        ]);
        vec![
            DumpRow::Begin {
                next: 99,
                taken: Timestamp(taken),
            },
            inode(1, Kind::Dir, None),
            inode(20, Kind::Dir, Some(acl.expect("a list"))),
            inode(30, Kind::File, None),
            name(1, "d é", 20),
            name(1, "far", 30),
            name(20, "near", 30),
            DumpRow::Xattr {
                ino: Ino(30),
                name: b"user.k".to_vec(),
                value: vec![0, 255],
            },
            DumpRow::Bound {
                kind: QuotaKind::Dir,
                name: "20".into(),
                max_files: Some(7),
                max_bytes: None,
            },
        ]
    }

    fn written(rows: Vec<DumpRow>) -> (Vec<u8>, [u8; 32]) {
        let mut writer = Writer::new(Vec::new(), key(1));
        for row in rows {
            writer.row(row).expect("written");
        }
        let (bytes, _, body) = writer.end().expect("ended");
        (bytes, body)
    }

    #[test]
    fn what_is_written_is_read() {
        let (bytes, body) = written(rows(5));
        let read = Snapshot::read(&mut bytes.as_slice(), &key(1)).expect("read");
        assert_eq!((read.taken_ns, read.next, read.inodes.len()), (5, 99, 3));
        let file = &read.inodes[&30];
        assert_eq!(read.paths(file), ["/d é/near".as_bytes(), b"/far"]);
        assert_eq!(file.xattrs, [(b"user.k".to_vec(), vec![0, 255])]);
        let dir = &read.inodes[&20];
        assert_eq!((dir.inode.acl.len(), dir.inode.default_acl.len()), (5, 5));
        assert_eq!((dir.attr().mode, dir.attr().copies.as_str()), (0o2750, "2"));
        assert_eq!(read.directories()[&1], [("/d é".as_bytes().to_vec(), 20)]);
        assert_eq!(
            (read.bounds[0].directory, read.bounds[0].max_files),
            (20, Some(7))
        );
        // Of another moment, but nothing has changed; then something has.
        assert_eq!(written(rows(6)).1, body);
        let mut more = rows(6);
        more.push(name(1, "new", 30));
        assert_ne!(written(more).1, body);
    }

    #[test]
    fn what_is_not_right_in_every_bit_is_refused() {
        let (good, _) = written(rows(5));
        assert!(
            Snapshot::read(&mut good.as_slice(), &key(2)).is_err(),
            "another key"
        );
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1 << (at % 8);
            assert!(Snapshot::read(&mut bad.as_slice(), &key(1)).is_err(), "byte {at}");
            assert!(Snapshot::read(&mut &good[..at], &key(1)).is_err(), "cut at {at}");
        }
        for wrong in [name(1, "a/b", 30), name(1, "", 30), name(1, "x", 31)] {
            let mut rows = rows(5);
            rows.push(wrong);
            assert!(Snapshot::read(&mut written(rows).0.as_slice(), &key(1)).is_err());
        }
    }

    #[test]
    fn directories_in_a_ring_have_no_path() {
        let mut ring = rows(5);
        ring.splice(4..7, [name(21, "a", 20), name(20, "b", 30)]);
        ring.insert(3, inode(21, Kind::Dir, None));
        ring.push(name(20, "c", 21));
        let read = Snapshot::read(&mut written(ring).0.as_slice(), &key(1)).expect("read");
        assert!(read.paths(&read.inodes[&30]).is_empty() && read.directories().is_empty());
    }
}
