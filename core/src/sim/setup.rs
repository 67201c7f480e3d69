//! What a network is made of: stages, ways, flows; refused when it does not fit.

use super::{
    flow::{End, Flow, FlowId, OnOffFlow, Tcp, TcpFlow},
    network::Network,
    source::Running,
    stage::{Kind, StageId},
};
use crate::{
    pace::PaceError,
    tcp::{Receiver, Sender},
    units::{FrameBytes, PicoDuration, Ratio},
    wan::{
        DrainConfig, DrainPort, Link, LinkConfig, PortWire, Rewrite, Shaper, ShaperConfig, WanChange,
        WanConfig, WanLink,
    },
    wire::LineRate,
};
use alloc::{boxed::Box, collections::VecDeque, vec::Vec};
use core::fmt;

/// Most stages of a network.
pub const STAGES_MAX: usize = 4_096;
/// Most flows of a network.
pub const FLOWS_MAX: usize = 4_096;
/// Most stages on a way.
pub const HOPS_MAX: usize = 256;

/// Why something cannot be part of a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SimError {
    /// More stages than [`STAGES_MAX`].
    TooManyStages,
    /// More flows than [`FLOWS_MAX`].
    TooManyFlows,
    /// A way without stages or with more than [`HOPS_MAX`].
    Way(usize),
    /// A stage that is not there.
    NoStage(StageId),
    /// A stage that is no port, or no shaper, where one is needed.
    WrongStage(StageId),
    /// A link that rewrites or damages frames.
    NeedsBytes,
    /// A flow that is not there or is no TCP connection.
    NoConnection(FlowId),
    /// A pace that cannot be kept.
    Pace(PaceError),
}

impl fmt::Display for SimError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SimError::TooManyStages => write!(f, "more than {STAGES_MAX} stages"),
            SimError::TooManyFlows => write!(f, "more than {FLOWS_MAX} flows"),
            SimError::Way(hops) => write!(f, "a way of {hops} stages: want 1 to {HOPS_MAX}"),
            SimError::NoStage(stage) => write!(f, "there is no stage {}", stage.0),
            SimError::WrongStage(stage) => write!(f, "stage {} is of another kind", stage.0),
            SimError::NeedsBytes => f.write_str(
                "simulated frames have no bytes: a link cannot rewrite or corrupt them (live runs can)",
            ),
            SimError::NoConnection(flow) => write!(f, "flow {} is no TCP connection", flow.0),
            SimError::Pace(why) => write!(f, "pace: {why}"),
        }
    }
}

impl core::error::Error for SimError {}

impl Network {
    fn add_stage(&mut self, stage: Kind) -> Result<StageId, SimError> {
        if self.stages.len() >= STAGES_MAX {
            return Err(SimError::TooManyStages);
        }
        self.stages.push(stage);
        // At most STAGES_MAX.
        Ok(StageId(self.stages.len() as u32 - 1))
    }

    /// Adds a port's wire with its queue.
    pub fn add_port(&mut self, line: LineRate, queue_limit: FrameBytes) -> Result<StageId, SimError> {
        self.add_stage(Kind::Port(PortWire::new(line, queue_limit)))
    }

    /// Adds a shaper on its wire.
    pub fn add_shaper(&mut self, config: ShaperConfig) -> Result<StageId, SimError> {
        self.add_stage(Kind::Shaper(Shaper::new(config)))
    }

    /// Adds a link with all that was asked of it. `seed` decides everything that is random. One that is plain
    /// becomes a [`Link`], which gives the same frames the same times and is quicker.
    ///
    /// # Errors
    /// [`SimError::NeedsBytes`]: simulated frames have none that could be rewritten or damaged.
    pub fn add_wan(&mut self, config: WanConfig, seed: u64) -> Result<StageId, SimError> {
        let plain = config.plain();
        if config == WanConfig::from(plain) {
            return self.add_link(plain, seed);
        }
        let touches = |rewrite: &[Rewrite], corrupt: Ratio| !rewrite.is_empty() || corrupt != Ratio::ZERO;
        let later = config.schedule.steps.iter().any(|(_, change)| match change {
            WanChange::Rewrite(list) => touches(list, Ratio::ZERO),
            WanChange::Corrupt(corruption) => touches(&[], corruption.ratio),
            _ => false,
        });
        if later || touches(&config.rewrite, config.corrupt.ratio) {
            return Err(SimError::NeedsBytes);
        }
        self.add_stage(Kind::Wan(Box::new(WanLink::new(config, seed))))
    }

    /// Adds a receiver's card that drains at a rate of its own, behind the port `before`, which obeys its PAUSE
    /// frames when they have crossed the wire.
    pub fn add_drain(&mut self, config: DrainConfig, before: StageId) -> Result<StageId, SimError> {
        match self.stages.get(before.index()) {
            Some(Kind::Port(_)) => {}
            Some(_) => return Err(SimError::WrongStage(before)),
            None => return Err(SimError::NoStage(before)),
        }
        let drain = self.add_stage(Kind::Drain(Box::new(DrainPort::new(config))))?;
        self.drains.push((drain, before));
        Ok(drain)
    }

    /// Adds one direction of a link. `seed` decides which frames its loss ratio takes.
    pub fn add_link(&mut self, config: LinkConfig, seed: u64) -> Result<StageId, SimError> {
        self.add_stage(Kind::Link(Link::new(config, seed)))
    }

    fn check_way(&self, way: &[StageId]) -> Result<(), SimError> {
        if way.is_empty() || way.len() > HOPS_MAX {
            return Err(SimError::Way(way.len()));
        }
        match way.iter().find(|stage| stage.index() >= self.stages.len()) {
            Some(stage) => Err(SimError::NoStage(*stage)),
            None => Ok(()),
        }
    }

    fn add_flow(&mut self, flow: Flow) -> Result<FlowId, SimError> {
        if self.flows.len() >= FLOWS_MAX {
            return Err(SimError::TooManyFlows);
        }
        self.flows.push(flow);
        // At most FLOWS_MAX.
        Ok(FlowId(self.flows.len() as u32 - 1))
    }

    /// Adds a TCP connection.
    pub fn add_tcp(&mut self, flow: TcpFlow) -> Result<FlowId, SimError> {
        self.check_way(&flow.forward)?;
        self.check_way(&flow.backward)?;
        let tcp = Tcp {
            sizes: flow.sender.sizes,
            inbox: VecDeque::new(),
            has_cpu: flow.sender.cpu_per_frame.max(flow.sender.cpu_per_ack) > PicoDuration::ZERO,
            local_bytes: 0,
            local_limit: flow.sender.profile.local_limit.unwrap_or(u64::MAX),
            window_paced: false,
            queue_time: None,
            sender: Sender::new(flow.sender),
            receiver: Receiver::new(flow.receiver),
        };
        self.add_flow(Flow {
            end: End::Tcp(Box::new(tcp)),
            forward: flow.forward,
            backward: flow.backward,
        })
    }

    /// Adds frames by the clock.
    pub fn add_on_off(&mut self, flow: OnOffFlow) -> Result<FlowId, SimError> {
        self.check_way(&flow.forward)?;
        self.add_flow(Flow {
            end: End::OnOff(Running::new(flow.source)),
            forward: flow.forward,
            backward: Vec::new(),
        })
    }

    /// Lets the shaper at a connection's interface follow its window: one window per round trip (dynamic
    /// pacing of paper 001), set anew for every frame that comes to it or leaves it. What counts as round trip
    /// is the smoothed RTT less the time that frames wait in this interface (PSPacer's sch_psp.c,
    /// `estimate_target_rate`): else a queue here would keep the rate down and so keep itself.
    pub fn pace_by_window(&mut self, flow: FlowId) -> Result<(), SimError> {
        let Some(Flow {
            end: End::Tcp(tcp),
            forward,
            ..
        }) = self.flows.get_mut(flow.index())
        else {
            return Err(SimError::NoConnection(flow));
        };
        let first = forward.first().copied().unwrap_or(StageId(u32::MAX));
        match self.stages.get(first.index()) {
            Some(Kind::Shaper(_)) => {
                tcp.window_paced = true;
                Ok(())
            }
            _ => Err(SimError::WrongStage(first)),
        }
    }
}
