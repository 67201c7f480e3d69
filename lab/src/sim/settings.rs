//! What the simulator needs to know beyond the topology: `[sim]` of an experiment, `[phase.sim]` of a
//! phase, which goes before it field by field.

use kuroshio_core::tcp::{LocalCongestion, Profile, ReceiveMemory};
use serde::Deserialize;

use crate::experiment::{Bytes, Rate, Span};

/// Most seeds of one experiment.
pub const MAX_SEEDS: u32 = 1_000;
/// Most memory of one frame.
const FRAME_MEMORY_MAX: u32 = 1 << 20;

/// Narrowest and widest windows that are kept instead of frames.
const MIN_RECORD_NS: u64 = 1_000_000;
const MAX_RECORD_NS: u64 = 1_000_000_000;

/// How a sender's host spaces its frames.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pace {
    /// It does not.
    #[default]
    None,
    /// The interface sends one window per round trip, evenly (dynamic pacing of paper 001).
    InterfaceWindow,
    /// TCP itself sends one window per round trip, evenly.
    TcpWindow,
}

/// What a full interface queue does to the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Local {
    /// Reduces it, as Linux does.
    Reduce,
    /// Nothing (Web100's WAD_IFQ).
    Ignore,
}

impl From<Local> for LocalCongestion {
    fn from(local: Local) -> Self {
        match local {
            Local::Reduce => LocalCongestion::Reduce,
            Local::Ignore => LocalCongestion::Ignore,
        }
    }
}

/// Parameters of the simulator. All have defaults.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// TCP stack, `linux-2.6.14` (the default), `linux-2.6.14.2` or `modern`.
    #[serde(default)]
    pub profile: Option<String>,
    /// Spacing at the senders.
    #[serde(default)]
    pub pace: Option<Pace>,
    /// What a full interface queue does.
    #[serde(default)]
    pub local_congestion: Option<Local>,
    /// Usable part of the send buffer; without limit by default.
    #[serde(default)]
    pub send_buffer: Option<Bytes>,
    /// Receive buffer in the kernel's terms. Alone: a third of it is the effective window (paper 004). With
    /// `frame_memory`: bytes of memory, of which what waits above a gap takes that for every frame.
    #[serde(default)]
    pub receive_buffer: Option<Bytes>,
    /// Memory that a full frame takes in the receive buffer (Linux `truesize`).
    #[serde(default)]
    pub frame_memory: Option<Bytes>,
    /// CPU time of a sender for every data frame.
    #[serde(default)]
    pub cpu_per_frame: Option<Span>,
    /// CPU time of a sender for every ACK.
    #[serde(default)]
    pub cpu_per_ack: Option<Span>,
    /// Payload rate at which the receiving application reads; at once by default.
    #[serde(default)]
    pub read_rate: Option<Rate>,
    /// Keep the bytes of windows of this width instead of every frame: for long or fast runs.
    #[serde(default)]
    pub record: Option<Span>,
    /// Longest random time before a sender reacts to an ACK.
    #[serde(default)]
    pub reaction: Option<Span>,
    /// Segments that FAST keeps in queues.
    #[serde(default)]
    pub fast_alpha: Option<u32>,
    /// How many seeds are run; figures and checks are those of the median run.
    #[serde(default)]
    pub seeds: Option<u32>,
}

impl Settings {
    /// These, and where they say nothing, those.
    #[must_use]
    pub fn or(&self, below: &Settings) -> Settings {
        let (a, b) = (self.clone(), below.clone());
        Settings {
            profile: a.profile.or(b.profile),
            pace: a.pace.or(b.pace),
            local_congestion: a.local_congestion.or(b.local_congestion),
            send_buffer: a.send_buffer.or(b.send_buffer),
            receive_buffer: a.receive_buffer.or(b.receive_buffer),
            frame_memory: a.frame_memory.or(b.frame_memory),
            cpu_per_frame: a.cpu_per_frame.or(b.cpu_per_frame),
            cpu_per_ack: a.cpu_per_ack.or(b.cpu_per_ack),
            read_rate: a.read_rate.or(b.read_rate),
            record: a.record.or(b.record),
            reaction: a.reaction.or(b.reaction),
            fast_alpha: a.fast_alpha.or(b.fast_alpha),
            seeds: a.seeds.or(b.seeds),
        }
    }

    /// The stack.
    ///
    /// # Errors
    /// When there is none of that name: the message lists those there are.
    pub fn stack(&self) -> Result<Profile, String> {
        let Some(name) = &self.profile else {
            return Ok(Profile::LINUX_2_6_14);
        };
        Profile::named(name).ok_or_else(|| {
            let known: Vec<_> = Profile::ALL.iter().map(|p| p.name).collect();
            format!("no TCP stack {name:?}: there are {}", known.join(", "))
        })
    }

    /// The receivers' memory, when what waits in it is counted.
    ///
    /// # Errors
    /// When a frame takes no memory, more than 1 MiB, or memory of no buffer.
    pub fn receive_memory(&self) -> Result<Option<ReceiveMemory>, String> {
        let (buffer, frame) = match (&self.receive_buffer, &self.frame_memory) {
            (_, None) => return Ok(None),
            (Some(buffer), Some(frame)) => (buffer, frame),
            (None, Some(_)) => return Err("frame_memory wants receive_buffer".into()),
        };
        let per_segment = u32::try_from(frame.value)
            .ok()
            .filter(|bytes| (1..=FRAME_MEMORY_MAX).contains(bytes))
            .ok_or_else(|| format!("frame_memory {}: want 1B to 1MiB", frame.text))?;
        Ok(Some(ReceiveMemory {
            buffer: buffer.value,
            per_segment,
        }))
    }

    /// Refuses what cannot be run.
    ///
    /// # Errors
    /// What is wrong and what would be valid.
    pub fn validate(&self) -> Result<(), String> {
        self.stack()?;
        if let Some(record) = &self.record
            && !(MIN_RECORD_NS..=MAX_RECORD_NS).contains(&record.ns())
        {
            return Err(format!("record {:?}: want 1ms to 1s", record.text));
        }
        self.receive_memory()?;
        match self.seeds {
            Some(0) => Err("want 1 seed or more".into()),
            Some(n) if n > MAX_SEEDS => Err(format!("{n} seeds: at most {MAX_SEEDS}")),
            _ => Ok(()),
        }
    }
}
