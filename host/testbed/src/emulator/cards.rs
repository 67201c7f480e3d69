//! The machine's side of the ports: frames read from cards and written to them.
//!
//! ```text
//!  frame mode     one read, one frame: straight into the memory in which it crosses the network
//!  segment mode   one read, one superframe: each segment copied into memory of its own; written in groups
//! ```

use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use kuroshio_clock::{Epoch, now_ns};
use kuroshio_core::units::{FrameBytes, PicoTime};
use kuroshio_core::wan::{Cargo as _, Count};
use kuroshio_port::Tap;
use kuroshio_port::segment::{MAX_SUPERFRAME, Partial, Superframe, VNET_HEADER, Vnet};

use super::engine::{Engine, Exit, PortCounts};
use super::groups::Groups;
use super::lateness::Histogram;
use super::pool::Frame;
use crate::host::Device;
use crate::topology::Mode;

/// Frames read from one card before the others have their turn: a whole batch takes about 50 us.
const READ_BATCH: usize = 32;
/// When something is due, what is read before it is written: one frame; so many where it is late by [`BEHIND_NS`]
/// already, because a thread that does not keep up carries a quarter more that way.
const READ_WHEN_DUE: usize = 1;
const READ_WHEN_BEHIND: usize = 8;
const BEHIND_NS: u64 = 30_000;

struct Card {
    tap: Device,
    /// Segments that wait to leave, in segment mode.
    groups: Option<Groups>,
}

/// All cards of a thread.
pub(super) struct Cards {
    /// By port; none where it belongs to another thread.
    cards: Vec<Option<Card>>,
    pub epoch: Epoch,
    pub lateness: Histogram,
    /// The topology's taps, which all threads write to, and what this one wrote.
    mirrors: Arc<Vec<Tap>>,
    pub mirrored: Vec<[Count; 2]>,
    /// What is read when there is no memory for it, and superframes.
    room: Vec<u8>,
}

impl Exit for Cards {
    fn leave(&mut self, counts: &mut PortCounts, port: usize, at: PicoTime, len: FrameBytes, frame: Frame) {
        let Self {
            cards,
            epoch,
            lateness,
            ..
        } = self;
        let Some(Some(Card { tap, groups })) = cards.get_mut(port) else {
            return;
        };
        if let Some(groups) = groups {
            groups.push(at, len, frame, &mut writer(tap, counts, epoch, lateness));
            return;
        }
        lateness.record(now_ns().saturating_sub(epoch.mono_ns(at)));
        let mut count = Count::default();
        count.add(len);
        counts.written(write_frame(tap, frame.bytes()), count);
    }

    fn leave_gap(&mut self, port: usize, at: PicoTime, frame: &Frame) -> bool {
        let Some(Some(Card { tap, .. })) = self.cards.get(port) else {
            return false;
        };
        self.lateness
            .record(now_ns().saturating_sub(self.epoch.mono_ns(at)));
        write_frame(tap, frame.bytes())
    }

    fn mirror(&mut self, tap: usize, len: FrameBytes, frame: &Frame) {
        let whole = match frame.meta().partial {
            Some(_) => frame.copy(),
            None => None,
        };
        let taken = self.mirrors.get(tap).is_some_and(|tap| {
            let written = match whole {
                Some(mut copy) => tap.write(copy.bytes_mut()),
                None => tap.write(frame.bytes()),
            };
            written.unwrap_or(false)
        });
        if let Some(counts) = self.mirrored.get_mut(tap) {
            counts[usize::from(!taken)].add(len);
        }
    }
}

/// Writes a frame of frame mode; whether the card had room for it.
fn write_frame(tap: &Device, bytes: &[u8]) -> bool {
    let taken = match tap {
        Device::Tap(tap) => tap.write(bytes),
        Device::Interface(card) => {
            let header = Vnet::single(None).write();
            card.write_parts(&[IoSlice::new(&header), IoSlice::new(bytes)])
        }
    };
    taken.unwrap_or(false)
}

/// Writes parts to a card and counts.
fn writer<'a>(
    tap: &'a Device,
    counts: &'a mut PortCounts,
    epoch: &'a Epoch,
    lateness: &'a mut Histogram,
) -> impl FnMut(PicoTime, Count, &[IoSlice<'_>]) + 'a {
    |due, count, parts| {
        lateness.record(now_ns().saturating_sub(epoch.mono_ns(due)));
        let taken = match tap {
            Device::Tap(tap) => tap.write_parts(parts),
            Device::Interface(card) => card.write_parts(parts),
        };
        counts.written(taken.unwrap_or(false), count);
    }
}

impl Cards {
    pub fn new(taps: Vec<Option<Device>>, mirrors: Arc<Vec<Tap>>, mode: Mode, epoch: Epoch) -> Self {
        let card = |tap| Card {
            tap,
            groups: match mode {
                Mode::Frame => None,
                Mode::Segment { quantum } => Some(Groups::new(quantum)),
            },
        };
        let cards = taps.into_iter().map(|tap| tap.map(card));
        Self {
            cards: cards.collect(),
            mirrored: vec![Default::default(); mirrors.len()],
            mirrors,
            epoch,
            lateness: Histogram::new(),
            room: vec![0; VNET_HEADER + MAX_SUPERFRAME],
        }
    }

    /// The cards' ports and descriptors.
    pub fn descriptors(taps: &[Option<Device>]) -> Vec<(usize, i32)> {
        let taps = taps.iter().enumerate();
        taps.filter_map(|(port, t)| Some((port, t.as_ref()?.as_fd().as_raw_fd())))
            .collect()
    }

    /// Ports of the network, this thread's and others.
    pub fn count(&self) -> usize {
        self.cards.len()
    }

    /// When the next group of segments is due, ps of the run.
    pub fn next_ps(&self) -> u64 {
        let groups = self.cards.iter().flatten().filter_map(|c| c.groups.as_ref());
        groups.map(Groups::next_ps).min().unwrap_or(u64::MAX)
    }

    /// Writes the groups that are due.
    pub fn flush(&mut self, now: PicoTime, counts: &mut [PortCounts]) {
        let Self {
            cards,
            epoch,
            lateness,
            ..
        } = self;
        for (card, counts) in cards.iter_mut().zip(counts) {
            let Some(Card { tap, groups }) = card else {
                continue;
            };
            if let Some(groups) = groups.as_mut().filter(|g| g.next_ps() <= now.as_ps()) {
                groups.flush(now, &mut writer(tap, counts, epoch, lateness));
            }
        }
    }

    /// Segments that wait for the end of their quantum.
    pub fn grouped(&self, port: usize) -> Count {
        let groups = self.cards.get(port).and_then(|c| c.as_ref()?.groups.as_ref());
        groups.map_or(Count::default(), Groups::held)
    }

    /// Takes what a host has sent; `true` when all of it was taken.
    pub fn read(&mut self, port: usize, engine: &mut Engine) -> bool {
        let Self {
            cards, epoch, room, ..
        } = self;
        let Some(Some(Card { tap, groups })) = cards.get(port) else {
            return true;
        };
        for n in 0..READ_BATCH {
            if n >= READ_WHEN_DUE {
                let late_ps = epoch.pico_now().as_ps().checked_sub(engine.next_ps());
                if late_ps.is_some_and(|late| n >= READ_WHEN_BEHIND || late < BEHIND_NS * 1000) {
                    return false;
                }
            }
            // An error means that the interface is down: nothing comes from it.
            let read = match (tap, groups) {
                (Device::Tap(tap), None) => read_frame(tap, room, epoch, port, engine),
                (device, groups) => read_segments(device, room, groups.is_none(), epoch, port, engine),
            };
            if read.is_none() {
                return true;
            }
        }
        false
    }
}

/// Reads one frame; `None` when there is none.
fn read_frame(tap: &Tap, spare: &mut [u8], epoch: &Epoch, port: usize, engine: &mut Engine) -> Option<()> {
    let Some(mut frame) = engine.room_for(port) else {
        let len = tap.read(spare).ok()??;
        engine.no_memory(port, len);
        return Some(());
    };
    let len = tap.read(frame.room()).ok()??;
    frame.set_len(len);
    engine.ingress(epoch.pico_now(), port, frame);
    Some(())
}

/// Reads one superframe or frame behind its virtio-net header; `None` when there is none. `whole` makes the checksums.
fn read_segments(
    device: &Device,
    room: &mut [u8],
    whole: bool,
    epoch: &Epoch,
    port: usize,
    engine: &mut Engine,
) -> Option<()> {
    let len = match device {
        Device::Tap(tap) => tap.read(room),
        Device::Interface(card) => card.read(room),
    };
    let len = len.ok()??;
    let at = epoch.pico_now();
    let (Some(vnet), Some(bytes)) = (Vnet::read(room), room.get(VNET_HEADER..len)) else {
        return Some(());
    };
    if let Some(superframe) = Superframe::new(&vnet, bytes) {
        let partial = Some(superframe.partial());
        for index in 0..superframe.count() {
            let len = superframe.len_of(index);
            let fill = |room: &mut [u8]| superframe.write(index, room);
            enter(engine, at, port, (len, partial, whole), fill);
        }
    } else {
        enter(engine, at, port, (bytes.len(), vnet.partial, whole), |room| {
            let part = room.get_mut(..bytes.len());
            part.map_or(0, |p| {
                p.copy_from_slice(bytes);
                p.len()
            })
        });
    }
    Some(())
}

/// Gives the engine one frame that `fill` writes: its length, its checksum, and whether that is to be made.
fn enter(
    engine: &mut Engine,
    at: PicoTime,
    port: usize,
    (len, partial, whole): (usize, Option<Partial>, bool),
    fill: impl FnOnce(&mut [u8]) -> usize,
) {
    let Some(mut frame) = engine.room(len) else {
        engine.no_memory(port, len);
        return;
    };
    let len = fill(frame.room());
    frame.set_len(len);
    frame.set_meta(super::pool::Meta {
        partial,
        ..frame.meta()
    });
    if whole {
        // Whoever may change the frame finds its checksum made.
        let _ = frame.bytes_mut();
    }
    engine.ingress(at, port, frame);
}
