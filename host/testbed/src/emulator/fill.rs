//! Shapers that fill their gaps with gap frames, as PSPacer does on a card.
//!
//! ```text
//! frame | 12 | gap frame | 20 | gap frame | 20 | frame        while a frame waits, to the byte
//! ```
//!
//! The frames' times are the shaper's either way; the router behind it drops gap frames at its input, so that they are
//! counted is all that becomes of them.

use kuroshio_core::pace::{GapPackets, gap_packets_in};
use kuroshio_core::units::FrameBytes;
use kuroshio_core::wire::LineRate;

use super::stage::Stage;
use crate::topology::Topology;

/// One of them.
struct Fill {
    stage: usize,
    port: usize,
    line: LineRate,
    /// Largest gap frame.
    limit: FrameBytes,
}

/// All of a network's.
pub(super) struct Fills(Vec<Fill>);

impl Fills {
    /// Those of a topology; `shapers` are the stages by port.
    pub fn new(topology: &Topology, shapers: &[Option<usize>]) -> Self {
        let ports = topology.ports().zip(shapers).enumerate();
        let fills = ports.filter_map(|(port, ((_, p), stage))| {
            p.shaper.filter(|s| s.fill)?;
            Some(Fill {
                stage: (*stage)?,
                port,
                line: p.wire,
                limit: FrameBytes::new(u64::from(p.mtu_bytes) + 18),
            })
        });
        Self(fills.collect())
    }

    /// The port and the gap frames behind a frame of `len` bytes that has left stage `number`; none where no frame waits.
    pub fn behind(&self, number: usize, stage: &mut Stage, len: FrameBytes) -> Option<(usize, GapPackets)> {
        let fill = self.0.iter().find(|f| f.stage == number)?;
        let gap = stage.gap_behind(len, fill.line)?;
        Some((fill.port, gap_packets_in(gap, fill.limit).ok()?))
    }
}
