//! Which TCP it is: everything in which the papers' kernel and today's differ.
//!
//! | | `linux-2.6.14` | `modern` |
//! |---|---|---|
//! | initial window | RFC 3390 as the kernel reads it: 2 above 1460, 3 above 1095, else 4 | 10 (RFC 6928) |
//! | window counts | ACKs | segments |
//! | losses found by | forward acknowledgement, three segments | a later transmission that arrived (RACK, RFC 8985) |
//! | window in recovery | rate halving, one segment down for every second ACK, never above flight + 1 | proportional (PRR, RFC 6937) |
//! | after recovery | as low as flight left it, then slow start to the threshold | the threshold |
//! | CUBIC leaves slow start by | loss | HyStart |
//! | BIC's `max_increment` | 32 (`linux-2.6.14.2`: 16) | 32 |
//! | full interface queue | local congestion: window reduced, try again on the next ACK | not reached: two superframes per socket (TSQ) |
//!
//! `linux-2.6.14.2` is `linux-2.6.14` with the one change that its second stable update made to TCP, "tcp: BIC
//! max increment too large" (ChangeLog-2.6.14.2): paper 001 names that kernel.
//!
//! Sources: Linux 2.6.14 net/ipv4/tcp_input.c (`tcp_fastretrans_alert`, `tcp_cwnd_down`,
//! `tcp_moderate_cwnd`, `tcp_mark_head_lost`, `tcp_enter_loss`, `tcp_init_cwnd`), tcp_output.c
//! (`tcp_transmit_skb`), tcp.h; Linux 6.x the same files and tcp_recovery.c.

use crate::units::PicoDuration;

/// What the window counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counting {
    /// Every ACK of new data is one.
    PerAck,
    /// Every segment acknowledged is one.
    PerSegment,
}

/// How losses are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detection {
    /// Forward acknowledgement: what lies three segments below the highest SACK.
    Fack,
    /// What was sent before something that arrived, once three segments are SACKed.
    Rack,
}

/// How the window comes down in recovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduction {
    /// Rate halving with moderation to what is in flight.
    RateHalving,
    /// Proportional rate reduction with its slow-start bound.
    Prr,
}

/// A TCP stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Profile {
    /// Its name in files and results.
    pub name: &'static str,
    /// What the window counts.
    pub counting: Counting,
    /// How losses are found.
    pub detection: Detection,
    /// How the window comes down.
    pub reduction: Reduction,
    /// BIC's most segments a round trip, delayed ACKs allowed for (net/ipv4/tcp_bic.c, `max_increment`).
    /// `modern` has that of `bpf/bic.bpf.c`, which the live testbed loads.
    pub bic_max_increment: u32,
    /// Whether CUBIC uses HyStart.
    pub hystart: bool,
    /// Initial window whatever the segment's size; by [`Profile::initial_window`] when `None`.
    pub initial_segments: Option<u32>,
    /// Whether the receiver's first window is what the unscaled field holds (Linux 4.20, commit a337531b942b,
    /// `tcp_select_initial_window`) instead of four segments.
    pub wide_first_window: bool,
    /// RTO before any sample (RFC 1122: 3 s; RFC 6298: 1 s).
    pub rto_initial: PicoDuration,
    /// Least variance term of the RTO.
    pub rto_floor: PicoDuration,
    /// How long an ACK may wait for a second segment (Linux `TCP_DELACK_MIN`).
    pub ack_delay: PicoDuration,
    /// ACKs at the start that do not wait (Linux `TCP_MAX_QUICKACKS`).
    pub quick_acks: u32,
    /// Most bytes of one socket in its host's interface queue (TSQ); no limit when `None`.
    pub local_limit: Option<u64>,
}

impl Profile {
    /// Paper 001's kernel to the digit.
    pub const LINUX_2_6_14_2: Profile = Profile {
        name: "linux-2.6.14.2",
        bic_max_increment: 16,
        ..Profile::LINUX_2_6_14
    };

    /// The kernel of the papers (001: 2.6.14.2; 000 and 003: 2.4, whose sender differs little).
    pub const LINUX_2_6_14: Profile = Profile {
        name: "linux-2.6.14",
        counting: Counting::PerAck,
        detection: Detection::Fack,
        reduction: Reduction::RateHalving,
        bic_max_increment: 32,
        hystart: false,
        initial_segments: None,
        wide_first_window: false,
        rto_initial: PicoDuration::from_secs(3),
        rto_floor: PicoDuration::from_ms(200),
        ack_delay: PicoDuration::from_ms(40),
        quick_acks: 16,
        local_limit: None,
    };

    /// Today's kernel.
    pub const MODERN: Profile = Profile {
        name: "modern",
        counting: Counting::PerSegment,
        detection: Detection::Rack,
        reduction: Reduction::Prr,
        bic_max_increment: 32,
        hystart: true,
        initial_segments: Some(10),
        wide_first_window: true,
        rto_initial: PicoDuration::from_secs(1),
        rto_floor: PicoDuration::from_ms(200),
        ack_delay: PicoDuration::from_ms(40),
        quick_acks: 16,
        local_limit: Some(2 * 65_536),
    };

    /// Every profile.
    pub const ALL: [Profile; 3] = [Profile::LINUX_2_6_14, Profile::LINUX_2_6_14_2, Profile::MODERN];

    /// The profile of that name.
    pub fn named(name: &str) -> Option<Profile> {
        Profile::ALL.into_iter().find(|profile| profile.name == name)
    }

    /// The initial window in segments (Linux 2.6.14 `tcp_init_cwnd`).
    pub fn initial_window(&self, mss: u32) -> u32 {
        self.initial_segments.unwrap_or(match mss {
            1_461.. => 2,
            1_096.. => 3,
            _ => 4,
        })
    }
}
