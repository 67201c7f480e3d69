//! Memory that is a file.
//!
//! Invariants: `at` and `len` are what one successful `mmap` gave, and it is unmapped once, when the value goes. The
//! file is not made shorter while it is mapped (the exerciser has one thread and holds no map over another
//! operation), so no access is beyond its end.

use std::fs::File;

use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};

/// A file's first `len` bytes as shared memory.
pub struct Map {
    at: *mut std::ffi::c_void,
    len: usize,
}

impl Map {
    pub fn new(file: &File, len: usize, writable: bool) -> Self {
        let mut protection = ProtFlags::READ;
        if writable {
            protection |= ProtFlags::WRITE;
        }
        // SAFETY: the kernel chooses the address, so nothing else is there.
        let at = unsafe { mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, file, 0) };
        Self {
            at: at.expect("mapped"),
            len,
        }
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `at` begins `len` readable bytes until this value goes.
        unsafe { std::slice::from_raw_parts(self.at.cast(), self.len) }
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `bytes`; the caller asked for a writable map.
        unsafe { std::slice::from_raw_parts_mut(self.at.cast(), self.len) }
    }

    pub fn sync(&self) {
        // SAFETY: the range is the map's own.
        unsafe { msync(self.at, self.len, MsyncFlags::SYNC) }.expect("synced");
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the range is the map's own, and no slice outlives it.
        let _ = unsafe { munmap(self.at, self.len) };
    }
}
