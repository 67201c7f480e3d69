//! The grid as the file system of the WebDAV library, for one request.
//!
//! What differs from a local file system:
//!
//! - New content is an [`Upload`]: it appears by `flush`, which the library calls when the body is whole.
//! - COPY and MOVE over a file: the library removes the destination first. That is put off, and the new file
//!   takes its place in one step.
//! - The first error of the grid is kept, so that the client gets its sentence and not only a number.

use std::collections::VecDeque;
use std::fmt;
use std::io::SeekFrom;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dav_server::davpath::DavPath;
use dav_server::fs::{
    DavDirEntry, DavFile, DavFileSystem, DavMetaData, DavProp, FsError, FsFuture, FsResult, FsStream,
    OpenOptions, ReadDirMeta,
};
use futures_util::stream;
use hyper::StatusCode;
use hyper::body::{Buf, Bytes};
use kuroshio_client::{ClientError, Grid, v1};
use tokio::sync::mpsc;

use crate::files::Opened;
use crate::headers::{plain, tag_of};
use crate::props;
use crate::refusal::Refusal;
use crate::session::Session;
use crate::upload::{Expected, Upload};

/// Permission bits of a new directory.
const DIRECTORY_MODE: u32 = 0o755;
/// Pieces that wait between reading and writing of a copy.
const COPY_QUEUE: usize = 4;

/// What the request is about, as far as the file system must know.
#[derive(Debug, Clone, Default)]
pub struct Purpose {
    /// Where COPY and MOVE go.
    pub destination: Option<Vec<u8>>,
    /// LOCK: a name that is not there becomes an empty file at once.
    pub lock: bool,
    /// COPY: symbolic links are left out, so that it ends.
    pub copy: bool,
    /// What a PUT promises of its content.
    pub expected: Expected,
}

/// The file system of one request.
#[derive(Clone)]
pub struct GridFs {
    session: Arc<Session>,
    purpose: Arc<Purpose>,
    /// The destination's removal was put off.
    put_off: Arc<AtomicBool>,
    first_error: Arc<Mutex<Option<Refusal>>>,
    /// Properties of the path that was asked for last: a PROPFIND asks for each by itself.
    last_props: Arc<Mutex<Option<Props>>>,
}

/// A path and its properties.
type Props = (Vec<u8>, Vec<DavProp>);

impl GridFs {
    /// The file system that `session` sees.
    pub fn new(session: Arc<Session>, purpose: Purpose) -> Self {
        Self {
            session,
            purpose: Arc::new(purpose),
            put_off: Arc::default(),
            first_error: Arc::default(),
            last_props: Arc::default(),
        }
    }

    /// The first error that was more than a missing name.
    pub fn error(&self) -> Option<Refusal> {
        self.first_error
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    fn fail(&self, e: impl Into<Refusal>) -> FsError {
        fail(&self.first_error, e)
    }

    async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Grid) -> Result<T, ClientError> + Send + 'static,
    ) -> FsResult<T> {
        self.session.ask(question).await.map_err(|e| self.fail(e))
    }

    async fn stat(&self, path: &DavPath, follow: bool) -> FsResult<Box<dyn DavMetaData>> {
        let path = plain(path.as_bytes());
        let attr = self.ask(move |grid| grid.stat(&path, follow)).await?;
        Ok(Box::new(Meta(attr)))
    }

    async fn open_file(&self, path: &DavPath, options: OpenOptions) -> FsResult<Box<dyn DavFile>> {
        if !options.write || options.append {
            return Err(FsError::NotImplemented);
        }
        let collection = path.is_collection();
        let path = plain(path.as_bytes());
        let parent = parent_of(&path);
        let folder = self.ask(move |grid| grid.stat(&parent, true)).await?;
        if folder.kind != v1::Kind::Directory as i32 || collection {
            return Err(FsError::NotFound);
        }
        let mut file = GridFile {
            upload: Some(Upload::start(
                self.session.clone(),
                path,
                self.purpose.expected.clone(),
                options.create_new || self.purpose.lock,
            )),
            attr: None,
            first_error: self.first_error.clone(),
        };
        if self.purpose.lock {
            file.finish().await?;
        }
        Ok(Box::new(file))
    }

    async fn copy_file(&self, from: &DavPath, to: &DavPath) -> FsResult<()> {
        let (from, to) = (plain(from.as_bytes()), plain(to.as_bytes()));
        let opened = Opened::open(&self.session, from.clone()).await;
        let opened = opened.map_err(|e| self.fail(e))?;
        let size = opened.attr().map_err(|e| self.fail(e))?.size_bytes;
        let expected = Expected {
            size: Some(size),
            digests: Vec::new(),
        };
        let mut upload = Upload::start(self.session.clone(), to.clone(), expected, false);
        let (tx, mut pieces) = mpsc::channel(COPY_QUEUE);
        tokio::task::spawn_blocking(move || opened.read(0, size, &tx));
        while let Some(piece) = pieces.recv().await {
            let Ok(piece) = piece else {
                // Giving the upload up says that the content broke off.
                drop(upload);
                return Err(self.fail(Refusal::new(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "the source could not be read to its end: nothing was changed",
                )));
            };
            if upload.write(piece).await.is_err() {
                break;
            }
        }
        upload.finish().await.map_err(|e| self.fail(e))?;
        self.ask(move |grid| props::copy(grid, &from, &to)).await
    }

    async fn rename_name(&self, from: &DavPath, to: &DavPath) -> FsResult<()> {
        let (from, to) = (plain(from.as_bytes()), plain(to.as_bytes()));
        let put_off = self.put_off.swap(false, Ordering::Relaxed);
        self.ask(move |grid| match grid.rename(&from, &to, false) {
            // Of another kind: only then must the destination go first.
            Err(e) if put_off && is_other_kind(&e) => {
                grid.remove(&to, false)?;
                grid.rename(&from, &to, false)
            }
            done => done,
        })
        .await
    }

    async fn make_dir(&self, path: &DavPath) -> FsResult<()> {
        let path = plain(path.as_bytes());
        let put_off = self.is_destination(&path) && self.put_off.swap(false, Ordering::Relaxed);
        self.ask(move |grid| {
            if put_off {
                grid.remove(&path, false)?;
            }
            grid.make_dir(&path, DIRECTORY_MODE, 0).map(drop)
        })
        .await
    }

    fn is_destination(&self, path: &[u8]) -> bool {
        self.purpose.destination.as_deref() == Some(path)
    }

    async fn remove(&self, path: &DavPath, directory: bool) -> FsResult<()> {
        let path = plain(path.as_bytes());
        if !directory && self.is_destination(&path) {
            self.put_off.store(true, Ordering::Relaxed);
            return Ok(());
        }
        self.ask(move |grid| grid.remove(&path, directory)).await
    }

    async fn list(&self, path: &DavPath, meta: ReadDirMeta) -> FsResult<FsStream<Box<dyn DavDirEntry>>> {
        let mut listing = Listing {
            fs: self.clone(),
            path: plain(path.as_bytes()),
            after: Vec::new(),
            ended: false,
            entries: VecDeque::new(),
            follow: meta == ReadDirMeta::Data,
        };
        listing.fill().await?;
        Ok(Box::pin(stream::unfold(listing, Listing::step)))
    }

    async fn properties(&self, path: &DavPath) -> FsResult<Vec<DavProp>> {
        let path = plain(path.as_bytes());
        if let Some((last, props)) = &*self.last_props.lock().unwrap_or_else(PoisonError::into_inner)
            && *last == path
        {
            return Ok(props.clone());
        }
        let asked = path.clone();
        let props = self.ask(move |grid| props::all(grid, &asked)).await?;
        *self.last_props.lock().unwrap_or_else(PoisonError::into_inner) = Some((path, props.clone()));
        Ok(props)
    }
}

fn fail(first_error: &Mutex<Option<Refusal>>, e: impl Into<Refusal>) -> FsError {
    let refusal = e.into();
    let error = match refusal.status {
        StatusCode::NOT_FOUND => return FsError::NotFound,
        StatusCode::CONFLICT => FsError::Exists,
        StatusCode::FORBIDDEN => FsError::Forbidden,
        StatusCode::INSUFFICIENT_STORAGE => FsError::InsufficientStorage,
        StatusCode::LOOP_DETECTED => FsError::LoopDetected,
        StatusCode::URI_TOO_LONG => FsError::PathTooLong,
        StatusCode::PAYLOAD_TOO_LARGE => FsError::TooLarge,
        StatusCode::NOT_IMPLEMENTED => FsError::NotImplemented,
        _ => FsError::GeneralFailure,
    };
    first_error
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .get_or_insert(refusal);
    error
}

fn is_other_kind(e: &ClientError) -> bool {
    use v1::Code;
    matches!(
        e.code(),
        Some(Code::NotDirectory | Code::IsDirectory | Code::Exists)
    )
}

fn parent_of(path: &[u8]) -> Vec<u8> {
    match path.iter().rposition(|b| *b == b'/') {
        None | Some(0) => b"/".to_vec(),
        Some(at) => path.get(..at).unwrap_or_default().to_vec(),
    }
}

impl DavFileSystem for GridFs {
    fn open<'a>(&'a self, path: &'a DavPath, options: OpenOptions) -> FsFuture<'a, Box<dyn DavFile>> {
        Box::pin(self.open_file(path, options))
    }

    fn read_dir<'a>(
        &'a self,
        path: &'a DavPath,
        meta: ReadDirMeta,
    ) -> FsFuture<'a, FsStream<Box<dyn DavDirEntry>>> {
        Box::pin(self.list(path, meta))
    }

    fn metadata<'a>(&'a self, path: &'a DavPath) -> FsFuture<'a, Box<dyn DavMetaData>> {
        Box::pin(self.stat(path, true))
    }

    fn symlink_metadata<'a>(&'a self, path: &'a DavPath) -> FsFuture<'a, Box<dyn DavMetaData>> {
        Box::pin(self.stat(path, false))
    }

    fn create_dir<'a>(&'a self, path: &'a DavPath) -> FsFuture<'a, ()> {
        Box::pin(self.make_dir(path))
    }

    fn remove_dir<'a>(&'a self, path: &'a DavPath) -> FsFuture<'a, ()> {
        Box::pin(self.remove(path, true))
    }

    fn remove_file<'a>(&'a self, path: &'a DavPath) -> FsFuture<'a, ()> {
        Box::pin(self.remove(path, false))
    }

    fn rename<'a>(&'a self, from: &'a DavPath, to: &'a DavPath) -> FsFuture<'a, ()> {
        Box::pin(self.rename_name(from, to))
    }

    fn copy<'a>(&'a self, from: &'a DavPath, to: &'a DavPath) -> FsFuture<'a, ()> {
        Box::pin(self.copy_file(from, to))
    }

    fn have_props<'a>(
        &'a self,
        _path: &'a DavPath,
    ) -> std::pin::Pin<Box<dyn Future<Output = bool> + Send + 'a>> {
        Box::pin(std::future::ready(true))
    }

    fn patch_props<'a>(
        &'a self,
        path: &'a DavPath,
        patch: Vec<(bool, DavProp)>,
    ) -> FsFuture<'a, Vec<(StatusCode, DavProp)>> {
        Box::pin(async move {
            let path = plain(path.as_bytes());
            let changes = patch.clone();
            self.ask(move |grid| props::patch(grid, &path, &changes)).await?;
            let named = |(_, prop): (bool, DavProp)| (StatusCode::OK, DavProp { xml: None, ..prop });
            Ok(patch.into_iter().map(named).collect())
        })
    }

    fn get_props<'a>(&'a self, path: &'a DavPath, do_content: bool) -> FsFuture<'a, Vec<DavProp>> {
        Box::pin(async move {
            let mut props = self.properties(path).await?;
            if !do_content {
                props.iter_mut().for_each(|prop| prop.xml = None);
            }
            Ok(props)
        })
    }

    fn get_prop<'a>(&'a self, path: &'a DavPath, prop: DavProp) -> FsFuture<'a, Vec<u8>> {
        Box::pin(async move {
            let props = self.properties(path).await?;
            let same = |p: &DavProp| p.name == prop.name && p.namespace == prop.namespace;
            let found = props.into_iter().find(same);
            found.and_then(|p| p.xml).ok_or(FsError::NotFound)
        })
    }

    fn get_quota(&'_ self) -> FsFuture<'_, (u64, Option<u64>)> {
        Box::pin(async move {
            let status = self.ask(Grid::status).await?;
            Ok((status.bytes, Some(status.bytes.saturating_add(status.free_bytes))))
        })
    }
}

/// A directory that is read page by page.
struct Listing {
    fs: GridFs,
    path: Vec<u8>,
    after: Vec<u8>,
    ended: bool,
    entries: VecDeque<v1::Entry>,
    follow: bool,
}

impl Listing {
    async fn fill(&mut self) -> FsResult<()> {
        let (path, after) = (self.path.clone(), self.after.clone());
        let page = self.fs.ask(move |grid| grid.list_page(&path, after)).await?;
        self.ended = page.next.is_empty();
        self.after = page.next;
        self.entries = page.entries.into();
        Ok(())
    }

    async fn step(mut self) -> Option<(FsResult<Box<dyn DavDirEntry>>, Self)> {
        loop {
            if let Some(entry) = self.entries.pop_front() {
                let attr = entry.attr.unwrap_or_default();
                let link = attr.kind == v1::Kind::Symlink as i32;
                let special = attr.kind == v1::Kind::Fifo as i32 || attr.kind == v1::Kind::Socket as i32;
                if (link || special) && self.fs.purpose.copy {
                    continue;
                }
                let entry = DirEntry {
                    fs: self.fs.clone(),
                    path: join(&self.path, &entry.name),
                    name: entry.name,
                    attr,
                    follow: link && self.follow,
                };
                return Some((Ok(Box::new(entry)), self));
            }
            if self.ended {
                return None;
            }
            if let Err(e) = self.fill().await {
                self.ended = true;
                return Some((Err(e), self));
            }
        }
    }
}

fn join(folder: &[u8], name: &[u8]) -> Vec<u8> {
    let folder = folder.strip_suffix(b"/").unwrap_or(folder);
    [folder, b"/", name].concat()
}

struct DirEntry {
    fs: GridFs,
    path: Vec<u8>,
    name: Vec<u8>,
    attr: v1::Attr,
    /// A symbolic link: what it points to is meant.
    follow: bool,
}

impl DavDirEntry for DirEntry {
    fn name(&self) -> Vec<u8> {
        self.name.clone()
    }

    fn metadata(&'_ self) -> FsFuture<'_, Box<dyn DavMetaData>> {
        Box::pin(async move {
            let attr = if self.follow {
                let path = self.path.clone();
                self.fs.ask(move |grid| grid.stat(&path, true)).await?
            } else {
                self.attr.clone()
            };
            let meta: Box<dyn DavMetaData> = Box::new(Meta(attr));
            Ok(meta)
        })
    }
}

/// Attributes as the library wants them.
#[derive(Debug, Clone)]
struct Meta(v1::Attr);

fn time(unix_ns: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_nanos(u64::try_from(unix_ns).unwrap_or(0))
}

impl DavMetaData for Meta {
    fn len(&self) -> u64 {
        self.0.size_bytes
    }

    fn modified(&self) -> FsResult<SystemTime> {
        Ok(time(self.0.mtime_ns))
    }

    fn accessed(&self) -> FsResult<SystemTime> {
        Ok(time(self.0.atime_ns))
    }

    fn status_changed(&self) -> FsResult<SystemTime> {
        Ok(time(self.0.ctime_ns))
    }

    fn is_dir(&self) -> bool {
        self.0.kind == v1::Kind::Directory as i32
    }

    fn is_symlink(&self) -> bool {
        self.0.kind == v1::Kind::Symlink as i32
    }

    fn is_file(&self) -> bool {
        self.0.kind == v1::Kind::File as i32
    }

    fn executable(&self) -> FsResult<bool> {
        Ok(self.0.mode & 0o111 != 0)
    }

    fn etag(&self) -> Option<String> {
        Some(tag_of(&self.0))
    }
}

/// A file that gets new content.
struct GridFile {
    upload: Option<Upload>,
    attr: Option<v1::Attr>,
    first_error: Arc<Mutex<Option<Refusal>>>,
}

impl GridFile {
    /// Publishes what was written.
    async fn finish(&mut self) -> FsResult<()> {
        let Some(upload) = self.upload.take() else {
            return Err(FsError::GeneralFailure);
        };
        match upload.finish().await {
            Ok(sent) => {
                self.attr = Some(sent.attr);
                Ok(())
            }
            Err(refusal) => Err(fail(&self.first_error, refusal)),
        }
    }

    async fn write(&mut self, bytes: Bytes) -> FsResult<()> {
        let upload = self.upload.as_mut().ok_or(FsError::GeneralFailure)?;
        if upload.write(bytes).await.is_ok() {
            return Ok(());
        }
        // The other end has failed and knows why.
        self.finish().await.and(Err(FsError::GeneralFailure))
    }
}

impl fmt::Debug for GridFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GridFile").finish_non_exhaustive()
    }
}

impl DavFile for GridFile {
    fn metadata(&'_ mut self) -> FsFuture<'_, Box<dyn DavMetaData>> {
        let meta = self
            .attr
            .clone()
            .map(|attr| Box::new(Meta(attr)) as Box<dyn DavMetaData>);
        Box::pin(std::future::ready(meta.ok_or(FsError::NotImplemented)))
    }

    fn write_buf(&'_ mut self, mut buf: Box<dyn Buf + Send>) -> FsFuture<'_, ()> {
        let bytes = buf.copy_to_bytes(buf.remaining());
        Box::pin(self.write(bytes))
    }

    fn write_bytes(&'_ mut self, buf: Bytes) -> FsFuture<'_, ()> {
        Box::pin(self.write(buf))
    }

    fn read_bytes(&'_ mut self, _count: usize) -> FsFuture<'_, Bytes> {
        Box::pin(std::future::ready(Err(FsError::NotImplemented)))
    }

    fn seek(&'_ mut self, _pos: SeekFrom) -> FsFuture<'_, u64> {
        Box::pin(std::future::ready(Err(FsError::NotImplemented)))
    }

    fn flush(&'_ mut self) -> FsFuture<'_, ()> {
        Box::pin(self.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_have_parents_and_children() {
        assert_eq!(parent_of(b"/a/b"), b"/a");
        assert_eq!(parent_of(b"/a"), b"/");
        assert_eq!(parent_of(b"/"), b"/");
        assert_eq!(join(b"/", b"x"), b"/x");
        assert_eq!(join(b"/a", b"x"), b"/a/x");
    }
}
