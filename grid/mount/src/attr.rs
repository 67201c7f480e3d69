//! Attributes as the kernel wants them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, INodeNo, TimeOrNow};
use kuroshio_client::v1;

use crate::ids::Ids;

/// What `stat` tells as the best size of a read or write, bytes.
const BLOCK_BYTES: u32 = 1024 * 1024;

/// A time of the catalog.
pub fn system_time(ns: i64) -> SystemTime {
    let away = Duration::from_nanos(ns.unsigned_abs());
    let time = if ns < 0 {
        UNIX_EPOCH.checked_sub(away)
    } else {
        UNIX_EPOCH.checked_add(away)
    };
    time.unwrap_or(UNIX_EPOCH)
}

/// Nanoseconds since 1970, held to the catalog's range.
pub fn nanoseconds(time: SystemTime) -> i64 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(d) => i64::try_from(d.as_nanos()).unwrap_or(i64::MAX),
        Err(e) => i64::try_from(e.duration().as_nanos()).map_or(i64::MIN, |n| -n),
    }
}

/// Now, nanoseconds since 1970.
pub fn now_ns() -> i64 {
    nanoseconds(SystemTime::now())
}

/// A time to set as `(now, at)` of a request.
pub fn time_to_set(time: Option<TimeOrNow>) -> (bool, Option<i64>) {
    match time {
        None => (false, None),
        Some(TimeOrNow::Now) => (true, None),
        Some(TimeOrNow::SpecificTime(t)) => (false, Some(given(t))),
    }
}

/// A time of the kernel's. Before 1970 fuser 0.18 takes the nanoseconds away from the second that they are to be
/// added to (its issue is mended after 0.18.0; the case `utimens/given` fails when this is not right any more).
fn given(time: SystemTime) -> i64 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(_) => nanoseconds(time),
        Err(e) => {
            let away = e.duration();
            let whole = nanoseconds(UNIX_EPOCH - Duration::from_secs(away.as_secs()));
            whole.saturating_add(away.subsec_nanos().into())
        }
    }
}

/// What an inode is.
pub fn kind(kind: v1::Kind) -> FileType {
    match kind {
        v1::Kind::Directory => FileType::Directory,
        v1::Kind::Symlink => FileType::Symlink,
        v1::Kind::Fifo => FileType::NamedPipe,
        v1::Kind::Socket => FileType::Socket,
        v1::Kind::File | v1::Kind::Unspecified => FileType::RegularFile,
    }
}

/// Attributes of the catalog with the inode number that the kernel knows.
pub fn file_attr(a: &v1::Attr, ino: INodeNo, ids: &Ids) -> FileAttr {
    let ctime = system_time(a.ctime_ns);
    FileAttr {
        ino,
        size: a.size_bytes,
        blocks: a.size_bytes.div_ceil(512),
        atime: system_time(a.atime_ns),
        mtime: system_time(a.mtime_ns),
        ctime,
        crtime: ctime,
        kind: kind(a.kind()),
        perm: (a.mode & 0o7777) as u16,
        nlink: u32::try_from(a.links).unwrap_or(u32::MAX),
        uid: ids.uid(&a.owner),
        gid: ids.gid(&a.group),
        rdev: 0,
        blksize: BLOCK_BYTES,
        flags: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_come_back() {
        for ns in [
            0,
            1,
            -1,
            1_700_000_000_123_456_789,
            -5_000_000_001,
            i64::MAX,
            i64::MIN + 1,
        ] {
            assert_eq!(nanoseconds(system_time(ns)), ns);
        }
    }
}
