//! Memory of frames: taken from a free list, returned when a frame is dropped, whoever drops it.
//!
//! Three sizes, so that acknowledgements do not occupy the memory of jumbo frames. Memory is
//! touched when it is made, and much of it is made before the run.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use kuroshio_core::units::{FrameBytes, PicoTime};
use kuroshio_core::wan::{Cargo, Gone};
use kuroshio_port::segment::{Partial, complete};

use crate::meter::Tag;

/// Bytes of a frame's memory, by size.
const SIZES: [usize; 3] = [256, 2048, 9344];

/// Most memory of all frames of a testbed: 10 Gbps over 400 ms, both ways, and the queues.
pub const MAX_POOL_BYTES: usize = 4 << 30;

/// What is known of a frame since it came in.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Meta {
    /// Number of its path.
    pub path: u16,
    /// Stages of the path that it has passed.
    pub hop: u16,
    /// Number of the port it came from.
    pub from: u16,
    /// Transport ports, when a trace is running.
    pub src_port: u16,
    pub dst_port: u16,
    /// Bytes after the transport header, when a trace is running.
    pub payload: u16,
    /// A checksum that is still to be made (segment mode). Whoever changes the frame makes it first.
    pub partial: Option<Partial>,
    /// For the meters.
    pub tag: Tag,
}

/// The memory of a frame.
pub(super) struct Inner {
    /// The thread to whose pool it belongs.
    home: usize,
    meta: Meta,
    len: usize,
    data: Box<[u8]>,
}

/// A frame in its memory. Dropping it gives the memory back.
pub(super) struct Frame {
    inner: Option<Inner>,
    pool: Rc<Pool>,
}

impl std::fmt::Debug for Frame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Frame({} bytes)", self.bytes().len())
    }
}

impl Frame {
    pub fn bytes(&self) -> &[u8] {
        self.inner
            .as_ref()
            .and_then(|i| i.data.get(..i.len))
            .unwrap_or(&[])
    }

    /// The frame to be changed, with all of its checksums made: a change can then be noticed.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.complete();
        self.inner
            .as_mut()
            .and_then(|i| i.data.get_mut(..i.len))
            .unwrap_or(&mut [])
    }

    /// Makes the checksum that was left to be made.
    fn complete(&mut self) {
        if let Some(Inner { meta, len, data, .. }) = &mut self.inner
            && let Some(partial) = meta.partial.take()
        {
            complete(data.get_mut(..*len).unwrap_or(&mut []), partial);
        }
    }

    /// All the memory, to be filled; [`Frame::set_len`] then says how far.
    pub fn room(&mut self) -> &mut [u8] {
        self.inner.as_mut().map_or(&mut [], |i| &mut i.data)
    }

    pub fn set_len(&mut self, len: usize) {
        if let Some(inner) = &mut self.inner {
            inner.len = len.min(inner.data.len());
        }
    }

    pub fn meta(&self) -> Meta {
        self.inner.as_ref().map_or(Meta::default(), |i| i.meta)
    }

    pub fn set_meta(&mut self, meta: Meta) {
        if let Some(inner) = &mut self.inner {
            inner.meta = meta;
        }
    }
}

impl Frame {
    /// The memory without the frame around it, to be handed to another thread.
    pub fn detach(mut self) -> Option<Inner> {
        self.inner.take()
    }
}

impl Cargo for Frame {
    fn bytes(&self) -> &[u8] {
        Frame::bytes(self)
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        Frame::bytes_mut(self)
    }

    fn resize(&mut self, len: usize) -> bool {
        self.complete();
        if self.inner.as_ref().is_some_and(|i| len <= i.data.len()) {
            self.set_len(len);
            return true;
        }
        let Some(mut larger) = self.pool.take(len) else {
            return false;
        };
        larger.fill(self, len);
        *self = larger;
        true
    }

    fn copy(&self) -> Option<Self> {
        let mut copy = self.pool.take(self.bytes().len())?;
        copy.fill(self, self.bytes().len());
        Some(copy)
    }

    fn gone(self, at: PicoTime, len: FrameBytes, how: Gone) {
        if let Some(gone) = self.pool.gone.borrow_mut().as_mut() {
            let tag = self.meta().tag;
            gone.push(Lost { at, len, how, tag });
        }
    }
}

/// A frame that a link had taken and lost.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lost {
    pub at: PicoTime,
    pub len: FrameBytes,
    pub how: Gone,
    pub tag: Tag,
}

impl Frame {
    /// Takes over what another frame holds, with a length of its own that is not shorter.
    fn fill(&mut self, from: &Frame, len: usize) {
        self.set_len(len);
        self.set_meta(from.meta());
        if let Some(front) = self.room().get_mut(..from.bytes().len()) {
            front.copy_from_slice(from.bytes());
        }
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.take() {
            self.pool.give_back(inner);
        }
    }
}

/// The free lists.
pub(super) struct Pool {
    number: usize,
    /// Memory of other threads' pools that is to go home.
    strays: RefCell<Vec<Inner>>,
    /// Frames that links lost, when the meters ask for them.
    gone: RefCell<Option<Vec<Lost>>>,
    free: [RefCell<Vec<Inner>>; 3],
    made: Cell<usize>,
    limit: usize,
}

impl Pool {
    pub fn new(number: usize, limit: usize) -> Rc<Self> {
        Rc::new(Self {
            number,
            strays: RefCell::default(),
            gone: RefCell::default(),
            free: Default::default(),
            made: Cell::new(0),
            limit,
        })
    }

    /// Makes memory for `count` frames of up to `len` bytes ahead, as far as the limit goes.
    pub fn prepare(&self, len: usize, count: usize) {
        let Some(size) = size_for(len) else { return };
        let made: Vec<Inner> = (0..count).map_while(|_| self.make(size)).collect();
        self.free[size].borrow_mut().extend(made);
    }

    /// Memory for a frame of up to `len` bytes, or `None` above the limit.
    pub fn take(self: &Rc<Self>, len: usize) -> Option<Frame> {
        let size = size_for(len)?;
        let recycled = self.free[size].borrow_mut().pop();
        let inner = match recycled {
            Some(inner) => Inner {
                meta: Meta::default(),
                ..inner
            },
            None => self.make(size)?,
        };
        Some(Frame {
            inner: Some(inner),
            pool: Rc::clone(self),
        })
    }

    fn make(&self, size: usize) -> Option<Inner> {
        let bytes = SIZES[size];
        if self.made.get() + bytes > self.limit {
            return None;
        }
        self.made.set(self.made.get() + bytes);
        Some(Inner {
            home: self.number,
            meta: Meta::default(),
            len: 0,
            // Not zero: zeroed memory would be mapped at its first use, in the run.
            data: vec![1; bytes].into_boxed_slice(),
        })
    }

    /// A frame in memory of any thread's pool.
    pub fn adopt(self: &Rc<Self>, inner: Inner) -> Frame {
        Frame {
            inner: Some(inner),
            pool: Rc::clone(self),
        }
    }

    /// From now on what links lose is kept until it is asked for, or no longer.
    pub fn keep_lost(&self, keep: bool) {
        self.gone.replace(keep.then(Vec::new));
    }

    /// What links have lost since this was last asked.
    pub fn lost(&self, each: impl FnMut(Lost)) {
        if let Some(gone) = self.gone.borrow_mut().as_mut() {
            gone.drain(..).for_each(each);
        }
    }

    /// Passes on memory of other threads, with the thread that it belongs to.
    pub fn strays(&self, mut each: impl FnMut(usize, Inner)) {
        for inner in self.strays.borrow_mut().drain(..) {
            each(inner.home, inner);
        }
    }

    /// Takes memory back.
    pub fn give_back(&self, inner: Inner) {
        if inner.home != self.number {
            self.strays.borrow_mut().push(inner);
            return;
        }
        if let Some(size) = size_for(inner.data.len()) {
            self.free[size].borrow_mut().push(inner);
        }
    }
}

fn size_for(len: usize) -> Option<usize> {
    SIZES.iter().position(|&s| len <= s)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_comes_back_and_the_limit_holds() {
        let pool = Pool::new(0, 2048 * 2);
        let a = pool.take(1518).expect("first");
        let b = pool.take(1518).expect("second");
        assert!(pool.take(1518).is_none());
        assert!(pool.take(60).is_none());
        drop(a);
        let mut c = pool.take(300).expect("returned");
        c.set_len(5);
        assert_eq!(c.bytes().len(), 5);
        drop((b, c));
        assert_eq!(pool.made.get(), 4096);
        assert!(pool.take(10_000).is_none(), "no frame is that long");
    }

    #[test]
    fn a_frame_grows_into_larger_memory_and_is_copied() {
        let pool = Pool::new(0, 1 << 20);
        let mut frame = pool.take(256).expect("small");
        frame.set_len(256);
        frame.bytes_mut().copy_from_slice(&[9; 256]);
        frame.set_meta(Meta {
            path: 3,
            ..Meta::default()
        });
        assert!(frame.resize(260));
        assert_eq!((frame.bytes().len(), frame.meta().path), (260, 3));
        assert_eq!(frame.bytes()[..256], [9; 256]);
        assert!(frame.resize(4));
        let copy = frame.copy().expect("memory");
        assert_eq!((copy.bytes(), copy.meta().path), (&[9; 4][..], 3));
        assert!(!frame.resize(10_000));
    }
}
