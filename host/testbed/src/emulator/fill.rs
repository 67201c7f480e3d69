//! Shapers that fill their gaps with gap frames, as PSPacer does on a card.
//!
//! ```text
//! frame | 12 | gap frame | 20 | gap frame | 20 | frame        while a frame waits, to the byte
//! ```
//!
//! The frames' times are the shaper's either way. A host's port: the router behind it drops gap frames at its input, so that
//! they are counted is all that becomes of them. An attached device: they leave by it, one after the other as its wire
//! gets free, so the card's own clock keeps the distance where the machine is late.

use std::rc::Rc;

use kuroshio_core::pace::{GapPackets, gap_packets_in};
use kuroshio_core::units::FrameBytes;
use kuroshio_core::wire::{LineRate, MacAddr, pause_frame};

use super::pool::{Frame, Pool};
use super::stage::{Numbers, Stage};
use crate::topology::Topology;

/// One of them.
struct Fill {
    stage: usize,
    port: usize,
    line: LineRate,
    /// Largest gap frame.
    limit: FrameBytes,
    /// Of an attached device: the wire of its gap frames, and those that are to leave before the next frame.
    leaves: Option<(usize, Option<GapPackets>)>,
}

/// Bytes of a frame that its check sequence is not among.
const FCS: u64 = 4;

/// All of a network's.
pub(super) struct Fills(Vec<Fill>);

impl Fills {
    /// Those of a topology; `shapers` are the stages by port.
    pub fn new(topology: &Topology, shapers: &[Option<usize>]) -> Self {
        let numbers = Numbers::of(topology);
        let ports = topology.ports().zip(shapers).enumerate();
        let fills = ports.filter_map(|(port, ((host, p), stage))| {
            p.shaper.filter(|s| s.fill)?;
            Some(Fill {
                stage: (*stage)?,
                port,
                line: p.wire,
                limit: FrameBytes::new(u64::from(p.mtu_bytes) + 18),
                leaves: host.attached.as_ref().map(|_| (numbers.egress(port), None)),
            })
        });
        Self(fills.collect())
    }

    /// A frame of `len` bytes has left stage `number`: the port and the gap frames behind it that the router has dropped; none
    /// where no frame waits, or where they are still to leave.
    pub fn behind(
        &mut self,
        number: usize,
        stage: &mut Stage,
        len: FrameBytes,
    ) -> Option<(usize, GapPackets)> {
        let fill = self.0.iter_mut().find(|f| f.stage == number)?;
        let gap = stage.gap_behind(len, fill.line);
        let gaps = gap.and_then(|gap| gap_packets_in(gap, fill.limit).ok());
        if let Some((_, left)) = &mut fill.leaves {
            *left = gaps;
            return None;
        }
        Some((fill.port, gaps?))
    }

    /// A frame or a gap frame has left `stage`: the gap frame that is to leave behind it, with its wire and its port.
    pub fn next_at(&mut self, stage: usize, pool: &Rc<Pool>) -> Option<(usize, usize, FrameBytes, Frame)> {
        let own = |f: &&mut Fill| {
            let wire = f.leaves.as_ref().map(|(wire, _)| *wire);
            wire.is_some_and(|wire| stage == wire || stage == f.stage)
        };
        let fill = self.0.iter_mut().find(own)?;
        let (wire, left) = fill.leaves.as_mut()?;
        let len = left.as_mut()?.next()?;
        let bytes = usize::try_from(len.get().saturating_sub(FCS)).ok()?;
        let mut frame = pool.take(bytes)?;
        let head = pause_frame(MacAddr(crate::host::mac_of(fill.port)), 0);
        let (front, zeros) = frame
            .room()
            .get_mut(..bytes)?
            .split_at_mut_checked(head.len() - FCS as usize)?;
        front.copy_from_slice(head.get(..front.len())?);
        zeros.fill(0);
        frame.set_len(bytes);
        Some((*wire, fill.port, len, frame))
    }
}
