//! A TAP device: the card of a host that is a network namespace.
//!
//! ```text
//! host's TCP -> TAP transmit ring -> Tap::read -> emulator -> Tap::write -> receive -> host's TCP
//! ```
//!
//! Single frames, no virtio-net header, no offloads: what is read is what a wire would carry,
//! with its checksums, but without the check sequence. Or superframes ([`Tap::open_super_here`]): behind the
//! virtio-net header of [`crate::segment`] stands one frame or many segments. Reads and writes never block.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};

use crate::sys;

/// The longest name of an interface, bytes (`IFNAMSIZ` less the end).
pub const MAX_NAME: usize = 15;

/// An open TAP device. It disappears when this value is dropped.
#[derive(Debug)]
pub struct Tap {
    fd: OwnedFd,
    name: String,
}

impl Tap {
    /// Makes a TAP device called `name` in the calling thread's network namespace. The open file
    /// may be used from any namespace afterwards.
    ///
    /// # Errors
    /// `InvalidInput` for a name that no interface can have; `NotFound` without `/dev/net/tun`;
    /// `EPERM` without `CAP_NET_ADMIN` in the namespace; `EBUSY` when the name is taken.
    pub fn open_here(name: &str) -> io::Result<Self> {
        Self::open(name, false)
    }

    /// The same for superframes: TCP segmentation and checksums are left to the reader, and every frame that is read
    /// or written has a virtio-net header ([`crate::segment::Vnet`]).
    ///
    /// # Errors
    /// As [`Tap::open_here`].
    pub fn open_super_here(name: &str) -> io::Result<Self> {
        Self::open(name, true)
    }

    fn open(name: &str, superframes: bool) -> io::Result<Self> {
        if name.is_empty() || name.len() > MAX_NAME {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("interface name {name:?}: 1 to {MAX_NAME} bytes"),
            ));
        }
        let c_name = CString::new(name)
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "interface name with a zero byte"))?;
        let fd = rustix::fs::open(
            "/dev/net/tun",
            OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .map_err(|e| {
            io::Error::new(
                io::Error::from(e).kind(),
                format!("/dev/net/tun: {e} (the kernel needs CONFIG_TUN and the device node)"),
            )
        })?;
        sys::tap_attach(fd.as_fd(), &c_name, superframes)?;
        Ok(Self {
            fd,
            name: name.to_owned(),
        })
    }

    /// The interface's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Takes the next frame that the host sent into `buf` and returns its length without check
    /// sequence, or `None` when there is none. A frame longer than `buf` is cut.
    ///
    /// # Errors
    /// The kernel's error, `EIO` when the interface is down.
    pub fn read(&self, buf: &mut [u8]) -> io::Result<Option<usize>> {
        match rustix::io::read(&self.fd, buf) {
            Ok(n) => Ok(Some(n)),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Gives a frame (without check sequence) to the host. `false` when the kernel had no room
    /// for it and it is lost.
    ///
    /// # Errors
    /// The kernel's error, `EIO` when the interface is down, `EINVAL` for less than a header.
    pub fn write(&self, frame: &[u8]) -> io::Result<bool> {
        written(rustix::io::write(&self.fd, frame))
    }

    /// The same of a frame in parts, its virtio-net header first.
    ///
    /// # Errors
    /// As [`Tap::write`]; `EINVAL` also for more than 1024 parts.
    pub fn write_parts(&self, parts: &[io::IoSlice<'_>]) -> io::Result<bool> {
        written(rustix::io::writev(&self.fd, parts))
    }
}

pub(crate) fn written(result: rustix::io::Result<usize>) -> io::Result<bool> {
    match result {
        Ok(_) => Ok(true),
        Err(
            rustix::io::Errno::AGAIN
            | rustix::io::Errno::NOBUFS
            | rustix::io::Errno::NOMEM
            | rustix::io::Errno::INTR,
        ) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_before_the_kernel_sees_them() {
        for name in ["", "sixteen-bytes-ab", "zero\0byte"] {
            let error = Tap::open_here(name).expect_err(name);
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{name:?}");
        }
    }
}
