//! The system calls without a safe wrapper: TAP ioctls, the packet socket and its shared ring.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Turns a `-1` of libc into the thread's `errno`.
fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// TCP segmentation of both IP versions, with checksums left to be made and CWR in the first segment
/// (`TUN_F_CSUM`, `TUN_F_TSO4`, `TUN_F_TSO6`, `TUN_F_TSO_ECN` of linux/if_tun.h; UDP segmentation is not among them).
const TUN_F_SUPERFRAMES: libc::c_ulong = 0x01 | 0x02 | 0x04 | 0x08;

/// Makes the open `/dev/net/tun` a TAP device called `name` in the calling thread's network
/// namespace, without packet information: single frames without any offload, or superframes behind a virtio-net header.
pub(crate) fn tap_attach(fd: BorrowedFd<'_>, name: &CStr, superframes: bool) -> io::Result<()> {
    // SAFETY: an all-zero `ifreq` is valid: integers, and unions of integers and arrays.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    copy_name(&mut request.ifr_name, name)?;
    let vnet = if superframes { libc::IFF_VNET_HDR } else { 0 };
    let flags = libc::IFF_TAP | libc::IFF_NO_PI | vnet;
    request.ifr_ifru.ifru_flags = i16::try_from(flags).unwrap_or(0);
    // SAFETY: TUNSETIFF reads and writes one `ifreq`, which lives through the call.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF, &raw mut request) })?;
    let offloads = if superframes { TUN_F_SUPERFRAMES } else { 0 };
    // SAFETY: TUNSETOFFLOAD takes a flag word by value.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETOFFLOAD, offloads) })?;
    Ok(())
}

fn copy_name(to: &mut [libc::c_char; libc::IFNAMSIZ], name: &CStr) -> io::Result<()> {
    let bytes = name.to_bytes_with_nul();
    if bytes.len() > to.len() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("interface name {name:?}: at most 15 bytes"),
        ));
    }
    for (slot, byte) in to.iter_mut().zip(bytes) {
        *slot = *byte as libc::c_char;
    }
    Ok(())
}

/// An `AF_PACKET` socket that receives nothing until it is bound, with version 2 of the ring,
/// software receive stamps and a virtio-net header before every frame, which tells a superframe's segments.
pub(crate) fn packet_socket() -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    let raw = check(unsafe {
        libc::socket(
            libc::AF_PACKET,
            libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK,
            0,
        )
    })?;
    // SAFETY: `raw` was just returned by socket(2) and is owned by nobody else.
    let fd = unsafe { OwnedFd::from_raw_fd(raw) };
    let version = libc::tpacket_versions::TPACKET_V2 as libc::c_int;
    set_option(&fd, libc::SOL_PACKET, libc::PACKET_VERSION, &version)?;
    set_option(&fd, libc::SOL_PACKET, libc::PACKET_VNET_HDR, &1)?;
    // SO_TIMESTAMPNS makes the stack stamp a frame when it enters, before it is steered to
    // another core; PACKET_TIMESTAMP puts that stamp into the ring.
    set_option(&fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &1)?;
    let source = libc::SOF_TIMESTAMPING_SOFTWARE as libc::c_int;
    set_option(&fd, libc::SOL_PACKET, libc::PACKET_TIMESTAMP, &source)?;
    Ok(fd)
}

/// Bytes of frames that an attached interface may bring before they are taken: 50 ms at 10 Gbps.
const CARD_BUFFER: libc::c_int = 64 << 20;

/// An `AF_PACKET` socket for single reads and writes with virtio-net headers, which does not see what the machine sends.
pub(crate) fn card_socket() -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    let raw = check(unsafe {
        libc::socket(
            libc::AF_PACKET,
            libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK,
            0,
        )
    })?;
    // SAFETY: `raw` was just returned by socket(2) and is owned by nobody else.
    let fd = unsafe { OwnedFd::from_raw_fd(raw) };
    set_option(&fd, libc::SOL_PACKET, libc::PACKET_VNET_HDR, &1)?;
    set_option(&fd, libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, &1)?;
    for (force, plain) in [
        (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF),
        (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF),
    ] {
        // Beyond the system's limit where that is allowed, else up to it.
        if set_option(&fd, libc::SOL_SOCKET, force, &CARD_BUFFER).is_err() {
            set_option(&fd, libc::SOL_SOCKET, plain, &CARD_BUFFER)?;
        }
    }
    Ok(fd)
}

/// linux/if_packet.h.
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;

/// Makes an interface take frames for all addresses as long as the socket lives.
pub(crate) fn promiscuous(fd: &OwnedFd, index: libc::c_int) -> io::Result<()> {
    let request = libc::packet_mreq {
        mr_ifindex: index,
        mr_type: libc::PACKET_MR_PROMISC as libc::c_ushort,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    set_option(fd, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request)
}

/// Whether an interface joins frames that arrive, by software (GRO) and by the card (LRO).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReceiveOffload {
    pub gro: bool,
    pub lro: bool,
}

impl ReceiveOffload {
    pub const OFF: Self = Self {
        gro: false,
        lro: false,
    };
}

/// linux/ethtool.h: get and set GRO, and the flags of which one is LRO.
const ETHTOOL_GGRO: u32 = 0x2b;
const ETHTOOL_SGRO: u32 = 0x2c;
const ETHTOOL_GFLAGS: u32 = 0x25;
const ETHTOOL_SFLAGS: u32 = 0x26;
const ETH_FLAG_LRO: u32 = 1 << 15;

/// linux/ethtool.h, `struct ethtool_value`.
#[repr(C)]
struct EthtoolValue {
    cmd: u32,
    data: u32,
}

fn ethtool(fd: &OwnedFd, name: &str, cmd: u32, data: u32) -> io::Result<u32> {
    let c_name = CString::new(name).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut value = EthtoolValue { cmd, data };
    // SAFETY: an all-zero `ifreq` is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    copy_name(&mut request.ifr_name, &c_name)?;
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    // SAFETY: SIOCETHTOOL reads the `ifreq` and, for these commands, reads or writes the two words of the value that
    // it points to; both live through the call.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request) })?;
    Ok(value.data)
}

/// What an interface joins now.
pub(crate) fn receive_offload(fd: &OwnedFd, name: &str) -> io::Result<ReceiveOffload> {
    Ok(ReceiveOffload {
        gro: ethtool(fd, name, ETHTOOL_GGRO, 0)? != 0,
        lro: ethtool(fd, name, ETHTOOL_GFLAGS, 0)? & ETH_FLAG_LRO != 0,
    })
}

/// Sets what an interface joins, where it is not so already.
pub(crate) fn set_receive_offload(fd: &OwnedFd, name: &str, want: ReceiveOffload) -> io::Result<()> {
    let now = receive_offload(fd, name)?;
    if now.gro != want.gro {
        ethtool(fd, name, ETHTOOL_SGRO, u32::from(want.gro))?;
    }
    if now.lro != want.lro {
        let flags = ethtool(fd, name, ETHTOOL_GFLAGS, 0)? & !ETH_FLAG_LRO;
        let lro = if want.lro { ETH_FLAG_LRO } else { 0 };
        ethtool(fd, name, ETHTOOL_SFLAGS, flags | lro)?;
    }
    Ok(())
}

fn set_option<T>(fd: &OwnedFd, level: i32, name: i32, value: &T) -> io::Result<()> {
    // SAFETY: the kernel reads `size_of::<T>()` bytes of `value`, which is borrowed for the call.
    check(unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            name,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    })?;
    Ok(())
}

/// The index of an interface of the calling thread's network namespace.
pub(crate) fn interface_index(name: &str) -> io::Result<libc::c_int> {
    let c_name = CString::new(name).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: `c_name` is a C string that lives through the call.
    let index = unsafe { libc::if_nametoindex(c_name.as_ptr()) };
    if index == 0 {
        return Err(io::Error::last_os_error());
    }
    libc::c_int::try_from(index).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Binds a packet socket to one interface, all protocols: from now on frames enter the ring.
pub(crate) fn packet_bind(fd: &OwnedFd, index: libc::c_int) -> io::Result<()> {
    // SAFETY: an all-zero `sockaddr_ll` is valid.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as libc::c_ushort;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = index;
    // SAFETY: `address` is a `sockaddr_ll` of the stated size and lives through the call.
    check(unsafe {
        libc::bind(
            fd.as_raw_fd(),
            (&raw const address).cast(),
            size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        )
    })?;
    Ok(())
}

/// Frames that matched and frames that found the ring full, since the last call.
pub(crate) fn packet_statistics(fd: &OwnedFd) -> io::Result<(u64, u64)> {
    // SAFETY: an all-zero `tpacket_stats` is valid.
    let mut stats: libc::tpacket_stats = unsafe { std::mem::zeroed() };
    let mut size = size_of::<libc::tpacket_stats>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `size` bytes to `stats`, both live through the call.
    check(unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_STATISTICS,
            (&raw mut stats).cast(),
            &raw mut size,
        )
    })?;
    Ok((u64::from(stats.tp_packets), u64::from(stats.tp_drops)))
}

/// One slot of a ring, as the kernel filled it.
pub(crate) struct Slot<'a> {
    /// Length of the frame without check sequence, bytes.
    pub len: usize,
    /// `CLOCK_REALTIME` of the stamp, ns.
    pub real_ns: u64,
    /// Whether this host sent it.
    pub outgoing: bool,
    /// The first bytes of the frame.
    pub snap: &'a [u8],
    /// The virtio-net header before it.
    pub vnet: &'a [u8],
}

/// The receive ring of a packet socket, shared with the kernel.
///
/// Invariant: `base` maps `slots * slot_bytes` bytes, readable and writable, until drop; slot `i`
/// begins at `i * slot_bytes`; only this value reads the slots and hands them back.
pub(crate) struct Ring {
    base: *mut u8,
    slots: usize,
    slot_bytes: usize,
    next: usize,
}

// SAFETY: the mapping is owned by this value alone and the kernel does not care which thread
// reads it.
unsafe impl Send for Ring {}

impl Ring {
    /// Asks the kernel for a ring of `slots` slots of `slot_bytes` (power of two, at most a block)
    /// and maps it.
    pub(crate) fn map(fd: &OwnedFd, slots: usize, slot_bytes: usize) -> io::Result<Self> {
        const BLOCK: usize = 1 << 16;
        let blocks = (slots * slot_bytes).div_ceil(BLOCK);
        let slots = blocks * (BLOCK / slot_bytes);
        let request = libc::tpacket_req {
            tp_block_size: BLOCK as u32,
            tp_block_nr: blocks as u32,
            tp_frame_size: slot_bytes as u32,
            tp_frame_nr: slots as u32,
        };
        set_option(fd, libc::SOL_PACKET, libc::PACKET_RX_RING, &request)?;
        // SAFETY: a fresh shared mapping of the socket's ring, of the size just agreed on.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                slots * slot_bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                fd.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            base: base.cast(),
            slots,
            slot_bytes,
            next: 0,
        })
    }

    /// Calls `f` on the next filled slot and hands it back to the kernel. `None` when no slot is
    /// filled.
    pub(crate) fn next<R>(&mut self, f: impl FnOnce(Slot<'_>) -> R) -> Option<R> {
        use std::sync::atomic::{AtomicU32, Ordering};
        // SAFETY: `next < slots`, so the slot lies within the mapping; the status word is the
        // first field of `tpacket2_hdr`, aligned to 4 because slots are aligned to 256, and is
        // accessed atomically because the kernel writes it.
        let status = unsafe { &*self.base.add(self.next * self.slot_bytes).cast::<AtomicU32>() };
        if status.load(Ordering::Acquire) & libc::TP_STATUS_USER == 0 {
            return None;
        }
        // SAFETY: the slot is ours (TP_STATUS_USER, read with Acquire) until its status is reset
        // below; the kernel wrote a whole `tpacket2_hdr` at its start.
        let header = unsafe {
            self.base
                .add(self.next * self.slot_bytes)
                .cast::<libc::tpacket2_hdr>()
                .read()
        };
        let start = usize::from(header.tp_mac).min(self.slot_bytes);
        let len = (header.tp_snaplen as usize).min(self.slot_bytes - start);
        // SAFETY: `start + len <= slot_bytes`, inside the slot that is ours; the slice ends
        // before the status is reset.
        let snap =
            unsafe { std::slice::from_raw_parts(self.base.add(self.next * self.slot_bytes + start), len) };
        let before = start.saturating_sub(crate::segment::VNET_HEADER);
        // SAFETY: `before <= start <= slot_bytes`, inside the slot that is ours; the kernel wrote the virtio-net header
        // there (PACKET_VNET_HDR), and the slice ends before the status is reset.
        let vnet = unsafe {
            std::slice::from_raw_parts(
                self.base.add(self.next * self.slot_bytes + before),
                start - before,
            )
        };
        // SAFETY: the kernel writes a `sockaddr_ll` right after the header, aligned to 16 bytes
        // (TPACKET_ALIGN), within the 256 bytes of a slot.
        let address = unsafe {
            self.base
                .add(self.next * self.slot_bytes + TPACKET2_ALIGNED)
                .cast::<libc::sockaddr_ll>()
                .read()
        };
        let result = f(Slot {
            len: header.tp_len as usize,
            real_ns: u64::from(header.tp_sec) * 1_000_000_000 + u64::from(header.tp_nsec),
            outgoing: address.sll_pkttype == libc::PACKET_OUTGOING,
            snap,
            vnet,
        });
        status.store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.next = (self.next + 1) % self.slots;
        Some(result)
    }
}

/// Where the socket address begins in a slot: the header rounded up to 16 bytes.
const TPACKET2_ALIGNED: usize = size_of::<libc::tpacket2_hdr>().next_multiple_of(16);

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: `base` is the mapping of exactly this size made in `map`, unmapped once.
        unsafe { libc::munmap(self.base.cast(), self.slots * self.slot_bytes) };
    }
}
