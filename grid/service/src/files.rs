//! GET and HEAD of a file: whole or one range, with validators.
//!
//! `ETag` is made of device, inode, size and modification time in nanoseconds, so it changes when the
//! file does. A file that shrinks while it is sent ends the connection early: the length was promised.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};

use hyper::body::Bytes;
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Response, StatusCode};
use tokio::sync::mpsc;

use crate::body::{self, Answer, AnswerBody, ChannelBody};
use crate::path::{Root, RootPath};
use crate::range::{self, RangeOf};

/// Bytes read from a file at a time.
const PIECE_BYTES: usize = 256 * 1024;
/// Pieces that wait for the network: with [`PIECE_BYTES`], 1 MiB per request.
const PIECES: usize = 4;

/// What GET found.
struct Found {
    file: File,
    meta: Metadata,
}

/// Answers GET (or HEAD, `head_only`) of `path`.
pub async fn answer(
    root: std::sync::Arc<Root>,
    path: RootPath,
    headers: &HeaderMap,
    head_only: bool,
) -> Answer {
    let shown = path.to_string();
    let opened = tokio::task::spawn_blocking(move || open(&root, &path)).await;
    let found = match opened {
        Ok(Ok(found)) => found,
        Ok(Err(e)) => return failed(&shown, &e),
        Err(e) => return body::text(StatusCode::INTERNAL_SERVER_ERROR, &e.to_string()),
    };
    if found.meta.is_dir() {
        return body::text(
            StatusCode::FORBIDDEN,
            &format!("{shown}: a folder; GET reads files, `kuroshio cp` copies folders"),
        );
    }
    if !found.meta.is_file() {
        return body::text(StatusCode::FORBIDDEN, &format!("{shown}: not a regular file"));
    }
    let Found { file, meta } = found;
    let content = Content {
        size: meta.len(),
        etag: etag_of(&meta),
        modified_unix_s: u64::try_from(meta.mtime()).ok(),
        bytes: file,
    };
    send(content, headers, head_only)
}

/// What can be read at any place, from a thread that may wait.
pub trait ReadAt: Send + 'static {
    /// Reads at `offset`; 0 only at the end.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;
}

impl ReadAt for File {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(self, buf, offset)
    }
}

/// What GET sends: whole or one range, with validators.
pub struct Content<R> {
    /// The bytes.
    pub bytes: R,
    /// How many there are.
    pub size: u64,
    /// Names this version of the content, with its quotation marks.
    pub etag: String,
    /// When it was changed last, seconds since 1970.
    pub modified_unix_s: Option<u64>,
}

fn open(root: &Root, path: &RootPath) -> io::Result<Found> {
    let file = root.open_read(path)?;
    let meta = file.metadata()?;
    Ok(Found { file, meta })
}

fn failed(shown: &str, error: &io::Error) -> Answer {
    use rustix::io::Errno;
    let errno = Errno::from_io_error(error);
    let (status, why) = match errno {
        Some(Errno::NOENT | Errno::NOTDIR) => (StatusCode::NOT_FOUND, "no such file".to_owned()),
        Some(Errno::XDEV) => (
            StatusCode::FORBIDDEN,
            "leaves the served folder (a link out of it)".to_owned(),
        ),
        Some(Errno::ACCESS | Errno::PERM) => (StatusCode::FORBIDDEN, "no permission".to_owned()),
        Some(Errno::LOOP) => (StatusCode::FORBIDDEN, "too many symbolic links".to_owned()),
        Some(Errno::NAMETOOLONG) => (StatusCode::NOT_FOUND, "name too long".to_owned()),
        _ => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    };
    body::text(status, &format!("{shown}: {why}"))
}

/// Answers GET (or HEAD, `head_only`) of `content` as the request's `headers` want it.
pub fn send<R: ReadAt>(content: Content<R>, headers: &HeaderMap, head_only: bool) -> Answer {
    let Content {
        bytes,
        size,
        etag,
        modified_unix_s,
    } = content;
    let version = Version {
        size,
        etag,
        modified_unix_s,
    };
    send_from(&version, headers, head_only, move |start, len, pieces| {
        read_pieces(&bytes, start, len, pieces);
    })
}

/// One version of a content, for validators.
#[derive(Debug, Clone)]
pub struct Version {
    /// How many bytes it has.
    pub size: u64,
    /// Names it, with its quotation marks.
    pub etag: String,
    /// When it was changed last, seconds since 1970.
    pub modified_unix_s: Option<u64>,
}

/// Where the pieces of a body go in.
pub type Pieces = mpsc::Sender<io::Result<Bytes>>;

/// As [`send`], for content that `feed` gives: `feed(start, len, pieces)` runs in a thread that may wait.
pub fn send_from(
    version: &Version,
    headers: &HeaderMap,
    head_only: bool,
    feed: impl FnOnce(u64, u64, &Pieces) + Send + 'static,
) -> Answer {
    let (status, start, len) = match wanted(version, headers) {
        Ok(wanted) => wanted,
        Err(answer) => return *answer,
    };
    let (tx, stream) = ChannelBody::pair(PIECES, Some(len));
    if !head_only {
        tokio::task::spawn_blocking(move || feed(start, len, &tx));
    }
    sent(stream, version, (status, start, len))
}

/// As [`send`], for content that is here whole: `bytes` are all of it.
pub fn send_bytes(version: &Version, headers: &HeaderMap, bytes: Bytes) -> Answer {
    let (status, start, len) = match wanted(version, headers) {
        Ok(wanted) => wanted,
        Err(answer) => return *answer,
    };
    let at = |n: u64| usize::try_from(n).unwrap_or(usize::MAX).min(bytes.len());
    let part = bytes.slice(at(start)..at(start.saturating_add(len)));
    sent(body::fixed(part), version, (status, start, len))
}

/// What a request wants of a content: status, first byte, how many; or the answer that it gets instead.
fn wanted(version: &Version, headers: &HeaderMap) -> Result<(StatusCode, u64, u64), Box<Answer>> {
    let Version {
        size,
        ref etag,
        modified_unix_s,
    } = *version;
    let get = |name: header::HeaderName| headers.get(name).and_then(|v| v.to_str().ok());
    if get(header::IF_NONE_MATCH).is_some_and(|tags| matches_tag(tags, etag)) {
        let answer = with_validators(body::empty(StatusCode::NOT_MODIFIED), etag, modified_unix_s);
        return Err(Box::new(answer));
    }
    // A range of another version of the file is of no use: then the whole file is sent.
    let same_version = get(header::IF_RANGE).is_none_or(|tag| tag.trim() == etag);
    let wanted = if same_version {
        range::parse(get(header::RANGE), size)
    } else {
        RangeOf::Whole
    };
    match wanted {
        RangeOf::Whole => Ok((StatusCode::OK, 0, size)),
        RangeOf::Part { start, len } => Ok((StatusCode::PARTIAL_CONTENT, start, len)),
        RangeOf::Unsatisfiable => {
            let text = format!("the file has {size} bytes; no byte of the range exists");
            let mut answer = body::text(StatusCode::RANGE_NOT_SATISFIABLE, &text);
            set(&mut answer, header::CONTENT_RANGE, &format!("bytes */{size}"));
            Err(Box::new(answer))
        }
    }
}

/// The answer that carries `len` bytes from `start`.
fn sent(bytes: AnswerBody, version: &Version, (status, start, len): (StatusCode, u64, u64)) -> Answer {
    let size = version.size;
    let mut answer = Response::new(bytes);
    *answer.status_mut() = status;
    set(&mut answer, header::CONTENT_LENGTH, &len.to_string());
    set(&mut answer, header::CONTENT_TYPE, "application/octet-stream");
    if status == StatusCode::PARTIAL_CONTENT {
        set(
            &mut answer,
            header::CONTENT_RANGE,
            &format!("bytes {start}-{}/{size}", start + len - 1),
        );
    }
    with_validators(answer, &version.etag, version.modified_unix_s)
}

/// Reads `len` bytes from `start` into the body; ends when the client is gone.
fn read_pieces(file: &impl ReadAt, start: u64, len: u64, tx: &Pieces) {
    let end = start + len;
    let mut at = start;
    while at < end {
        let want = usize::try_from(end - at).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
        let mut piece = vec![0; want];
        let result = match file.read_at(&mut piece, at) {
            Ok(0) => Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the file shrank while it was sent",
            )),
            Ok(n) => {
                piece.truncate(n);
                at += n as u64;
                Ok(Bytes::from(piece))
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => Err(e),
        };
        let failed = result.is_err();
        if tx.blocking_send(result).is_err() || failed {
            return;
        }
    }
}

fn etag_of(meta: &Metadata) -> String {
    let (s, ns) = (meta.mtime(), meta.mtime_nsec());
    format!(
        "\"{:x}-{:x}-{:x}-{s:x}.{ns:x}\"",
        meta.dev(),
        meta.ino(),
        meta.len()
    )
}

/// Whether an `If-None-Match` list names `etag` (weak comparison, RFC 9110, section 8.8.3.2).
fn matches_tag(list: &str, etag: &str) -> bool {
    list.split(',')
        .map(str::trim)
        .any(|tag| tag == "*" || tag.strip_prefix("W/").unwrap_or(tag) == etag)
}

fn with_validators(mut answer: Answer, etag: &str, modified_unix_s: Option<u64>) -> Answer {
    set(&mut answer, header::ACCEPT_RANGES, "bytes");
    set(&mut answer, header::ETAG, etag);
    if let Some(seconds) = modified_unix_s {
        set(&mut answer, header::LAST_MODIFIED, &http_date(seconds));
    }
    answer
}

fn set(answer: &mut Answer, name: header::HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        answer.headers_mut().insert(name, value);
    }
}

/// IMF-fixdate (RFC 9110, section 5.6.7) of seconds since 1970. The calendar: days are counted in eras
/// of 400 Gregorian years (146,097 days) that begin on 1 March, so that the leap day comes last.
fn http_date(unix_s: u64) -> String {
    const WEEKDAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] = [
        "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec", "Jan", "Feb",
    ];
    let (days, second) = (unix_s / 86_400, unix_s % 86_400);
    // 719,468 days lie between 1 March of year 0 and 1 January 1970.
    let since_era0 = days + 719_468;
    let (era, day_of_era) = (since_era0 / 146_097, since_era0 % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let year = era * 400 + year_of_era + u64::from(month >= 10);
    let weekday = WEEKDAYS.get((days % 7) as usize).copied().unwrap_or("Thu");
    let month = MONTHS.get(month as usize).copied().unwrap_or("Jan");
    let (h, m, s) = (second / 3600, second / 60 % 60, second % 60);
    format!("{weekday}, {day:02} {month} {year:04} {h:02}:{m:02}:{s:02} GMT")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_imf_fixdate() {
        // From `date -u -d @N`.
        let table = [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (951_827_696, "Tue, 29 Feb 2000 12:34:56 GMT"),
            (1_763_683_199, "Thu, 20 Nov 2025 23:59:59 GMT"),
            (4_107_542_399, "Sun, 28 Feb 2100 23:59:59 GMT"),
            (4_107_542_400, "Mon, 01 Mar 2100 00:00:00 GMT"),
        ];
        for (unix_s, text) in table {
            assert_eq!(http_date(unix_s), text);
        }
    }

    #[test]
    fn tags_match_in_lists() {
        assert!(matches_tag("\"a\", W/\"b\"", "\"b\"") && matches_tag("*", "\"b\""));
        assert!(!matches_tag("\"a\", \"c\"", "\"b\""));
    }
}
