//! An interface that exists already, as a port: a packet socket that takes what arrives and sends.
//!
//! ```text
//!  wire -> interface -> packet socket, promiscuous -> Interface::read      (what the machine itself sends is not taken)
//!  wire <- interface <- packet socket              <- Interface::write_parts
//! ```
//!
//! Before every frame stands a virtio-net header ([`crate::segment::Vnet`]): a checksum that the machine left to its card,
//! and a superframe, can be told and made whole. Receive offload (GRO, LRO) joins frames of the wire, so it is turned off
//! while the interface is attached, and set again as it was when this value is dropped; promiscuous mode ends with
//! the socket. A process that is killed leaves receive offload off. A VLAN tag that the kernel takes out of a frame is
//! not seen.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::{sys, tap::written};

/// An attached interface.
#[derive(Debug)]
pub struct Interface {
    fd: OwnedFd,
    name: String,
    was: sys::ReceiveOffload,
}

impl Interface {
    /// Attaches an interface of the calling thread's network namespace.
    ///
    /// # Errors
    /// `EPERM` without `CAP_NET_RAW` and `CAP_NET_ADMIN`, `ENODEV` when there is no such interface; also when its receive
    /// offload cannot be turned off.
    pub fn attach_here(name: &str) -> io::Result<Self> {
        let fd = sys::card_socket()?;
        let index = sys::interface_index(name)?;
        let was = sys::receive_offload(&fd, name)?;
        sys::set_receive_offload(&fd, name, sys::ReceiveOffload::OFF)?;
        // From here on, dropping sets it back.
        let card = Self {
            fd,
            name: name.to_owned(),
            was,
        };
        sys::promiscuous(&card.fd, index)?;
        sys::packet_bind(&card.fd, index)?;
        Ok(card)
    }

    /// Takes the next frame, behind its virtio-net header, into `buf`; `None` when there is none.
    ///
    /// # Errors
    /// The kernel's error, `ENETDOWN` once when the interface goes down.
    pub fn read(&self, buf: &mut [u8]) -> io::Result<Option<usize>> {
        match rustix::io::read(&self.fd, buf) {
            Ok(n) => Ok(Some(n)),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Sends a frame in parts, its virtio-net header first. `false` when the kernel had no room for it.
    ///
    /// # Errors
    /// The kernel's error, `EMSGSIZE` for more than the interface's MTU.
    pub fn write_parts(&self, parts: &[io::IoSlice<'_>]) -> io::Result<bool> {
        written(rustix::io::writev(&self.fd, parts))
    }

    /// Another handle of the socket, for [`Drops::so_far`].
    ///
    /// # Errors
    /// When there are too many descriptors.
    pub fn drops(&self) -> io::Result<Drops> {
        Ok(Drops {
            fd: self.fd.try_clone()?,
            sum: 0,
        })
    }
}

impl AsFd for Interface {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Interface {
    fn drop(&mut self) {
        let _ = sys::set_receive_offload(&self.fd, &self.name, self.was);
    }
}

/// Whether an interface of the calling thread's network namespace joins frames that arrive: by software (GRO), by the card
/// (LRO).
///
/// # Errors
/// `ENODEV` when there is no such interface, `EPERM` without `CAP_NET_RAW`.
pub fn joins_arrivals(name: &str) -> io::Result<[bool; 2]> {
    let now = sys::receive_offload(&sys::card_socket()?, name)?;
    Ok([now.gro, now.lro])
}

/// Sets what [`joins_arrivals`] tells, where it is not so already.
///
/// # Errors
/// As [`joins_arrivals`]; `EPERM` without `CAP_NET_ADMIN`, `EOPNOTSUPP` for what the card cannot do.
pub fn set_joins_arrivals(name: &str, [gro, lro]: [bool; 2]) -> io::Result<()> {
    sys::set_receive_offload(&sys::card_socket()?, name, sys::ReceiveOffload { gro, lro })
}

/// Frames that an attached interface brought and that nobody took in time.
#[derive(Debug)]
pub struct Drops {
    fd: OwnedFd,
    sum: u64,
}

impl Drops {
    /// How many there were.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn so_far(&mut self) -> io::Result<u64> {
        self.sum += sys::packet_statistics(&self.fd)?.1;
        Ok(self.sum)
    }
}
