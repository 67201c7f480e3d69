//! The receiving end: reassembly, ACKs, the advertised window.
//!
//! ```text
//!   read            next                         right edge
//!    |---- unread ---|---gap--[block]---[block]----|
//!    |<------------------- window ---------------->|
//! ```
//!
//! The *effective window* is the parameter: the application's reading position plus the window is the right
//! edge, rounded down to the window scale (RFC 7323). It is at once the socket buffer's usable part; Linux
//! makes it three quarters of a doubled buffer, or a third of a buffer by the measure of paper 004, and the
//! caller states the result. The application reads at once, or at a rate.
//!
//! The window opens as Linux opens it (net/ipv4/tcp_input.c, `tcp_grow_window`; tcp_output.c,
//! `tcp_select_initial_window`): four segments at first (three above 1460 bytes, two above 4380; since 4.20
//! 65,535 bytes), two more for every segment that arrives in order, until it is the effective window; and as long as it grows,
//! every segment is acknowledged at once. So slow start doubles until about half a window has arrived, and
//! grows by a half per round trip from there.
//!
//! **Memory** ([`ReceiveMemory`], optional). What waits above a gap is held as whole buffers of the network
//! card, not as payload, and the window is what is left of the socket buffer (Linux 2.6.14:
//! `skb_set_owner_r`; `tcp_win_from_space` with `tcp_adv_win_scale` 2; `__tcp_select_window`):
//!
//! ```text
//!   space = 3/4 (buffer - held)         window = min(space, opened), its right edge never moves back
//!   opened grows while it is below both the window and the space (tcp_grow_window, check 1)
//!   held > buffer:  opened = 2 segments (tcp_clamp_window), and runs of bytes are copied into pages
//!                   (tcp_prune_queue, tcp_collapse); still over it: the segment is refused
//! ```
//!
//! So a long recovery at a large window closes the receiver's window although the application reads at
//! once. The kernel's last resort, throwing away what it has SACKed, is not modelled: the newest segment is
//! refused instead. Without it memory has no limit.
//!
//! ACKs (RFC 5681, section 4.2; Linux net/ipv4/tcp_input.c, `__tcp_ack_snd_check`): at once for the first
//! [`quick_acks`](super::Profile::quick_acks), for every second segment, and whenever something is missing
//! or a gap is filled; else after the ACK delay. SACK blocks: the newest first (RFC 2018, section 4).

use super::{
    profile::Profile,
    ranges::Ranges,
    segment::{Block, Kind, SACK_BLOCKS_MAX, SackBlocks, Segment},
};
use crate::units::{BitRate, PicoDuration, PicoTime};

/// Largest shift of the window field (RFC 7323).
const SCALE_MAX: u32 = 14;
/// Largest value of the window field.
const FIELD_MAX: u64 = 65_535;

/// Bytes of the first window (Linux `tcp_select_initial_window`).
fn first_window(profile: &Profile, mss: u32) -> u64 {
    if profile.wide_first_window {
        return FIELD_MAX;
    }
    let segments = match mss {
        4_381.. => 2,
        1_461.. => 3,
        _ => 4,
    };
    segments * u64::from(mss)
}

/// Payload that fits a page after `tcp_collapse` (i386: 4096 less `struct skb_shared_info` and headers), and
/// what that page is charged with: itself and `struct sk_buff`.
const PAGE_PAYLOAD: u64 = 3_700;
const PAGE_CHARGE: u64 = 4_096 + 176;

/// A socket's receive memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceiveMemory {
    /// The buffer, bytes of memory (Linux `sk_rcvbuf`).
    pub buffer: u64,
    /// What a full segment is charged with, bytes of memory (Linux `skb->truesize`).
    pub per_segment: u32,
}

impl ReceiveMemory {
    /// The window that a free part of the buffer is worth (`tcp_win_from_space`, `tcp_adv_win_scale` 2).
    fn window_of(free: u64) -> u64 {
        free - free / 4
    }
}

/// What a receiver is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceiverConfig {
    /// Its stack.
    pub profile: Profile,
    /// Effective window, bytes; at most 1 GiB (RFC 7323).
    pub window: u64,
    /// Payload rate at which the application reads; at once when `None`.
    pub read_rate: Option<BitRate>,
    /// Memory for what waits above a gap; without limit when `None`.
    pub memory: Option<ReceiveMemory>,
    /// Payload of a full segment, bytes.
    pub mss: u32,
}

/// What a receiver has seen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReceiverStats {
    /// Segments with payload.
    pub segments: u64,
    /// Those of them that held nothing new.
    pub duplicates: u64,
    /// Bytes in order.
    pub bytes: u64,
    /// ACKs sent.
    pub acks: u64,
    /// Times that the memory was full and its content was copied into pages.
    pub collapses: u64,
    /// Segments refused because even that was not enough.
    pub refused: u64,
}

/// The receiver of a connection.
#[derive(Debug, Clone)]
pub struct Receiver {
    config: ReceiverConfig,
    scale: u32,
    next: u64,
    above: Ranges,
    /// Memory charged for what is above a gap, and its payload.
    held: u64,
    held_payload: u64,
    /// Starts of the blocks that grew last, newest first.
    recent: [Option<u64>; SACK_BLOCKS_MAX],
    /// Stamp to echo: that of the earliest segment not yet answered (RFC 7323, section 4.3).
    echo: PicoTime,
    last_ack: u64,
    edge: u64,
    /// How far the window has opened (Linux `rcv_ssthresh`).
    opened: u64,
    unanswered: u32,
    quick: u32,
    due: Option<PicoTime>,
    answer_syn: bool,
    /// When the application began to read what it reads now, and the position then.
    reading: (PicoTime, u64),
    stats: ReceiverStats,
}

impl Receiver {
    /// A receiver that waits for a connection.
    pub fn new(config: ReceiverConfig) -> Self {
        let mut scale = 0;
        while scale < SCALE_MAX && FIELD_MAX << scale < config.window {
            scale += 1;
        }
        Receiver {
            config,
            scale,
            next: 0,
            above: Ranges::new(),
            held: 0,
            held_payload: 0,
            recent: [None; SACK_BLOCKS_MAX],
            echo: PicoTime::ZERO,
            last_ack: 0,
            edge: 0,
            opened: first_window(&config.profile, config.mss).min(config.window),
            unanswered: 0,
            quick: config.profile.quick_acks,
            due: None,
            answer_syn: false,
            reading: (PicoTime::ZERO, 0),
            stats: ReceiverStats::default(),
        }
    }

    /// Gives the effective window another size, as a receive buffer that the kernel tunes while data come. A
    /// smaller one takes nothing back that was offered; a larger one than the receiver was made with is that.
    pub fn set_window(&mut self, window: u64) {
        let largest = FIELD_MAX << self.scale;
        self.config.window = window.min(largest);
    }

    /// A segment has arrived.
    #[inline]
    pub fn handle_segment(&mut self, now: PicoTime, segment: &Segment) {
        match segment.kind {
            Kind::Syn => {
                self.answer_syn = true;
                self.echo = segment.stamp;
                self.due = Some(now);
            }
            Kind::Data => self.handle_data(now, segment),
            Kind::SynAck | Kind::Ack => {}
        }
    }

    #[inline]
    fn handle_data(&mut self, now: PicoTime, segment: &Segment) {
        self.stats.segments += 1;
        let (seq, end) = (segment.seq, segment.end());
        if seq <= self.last_ack && end > self.last_ack {
            self.echo = segment.stamp;
        }
        self.read(now);
        let mut at_once = true;
        if end <= self.next {
            self.stats.duplicates += 1;
        } else if seq <= self.next {
            let had_gap = !self.above.is_empty();
            self.next = end;
            if had_gap {
                self.join();
                if self.config.memory.is_some() {
                    self.release();
                }
            }
            let grows = self.opened < self.config.window.min(self.space());
            if grows {
                let more = self.opened + 2 * u64::from(self.config.mss);
                self.opened = more.min(self.config.window);
            }
            at_once = had_gap || grows || self.quick > 0 || self.enough(segment.len);
        } else {
            self.keep(seq, end);
        }
        self.stats.bytes = self.next;
        if at_once {
            self.due = Some(now);
        } else {
            let latest = now + self.config.profile.ack_delay;
            self.due = Some(self.due.map_or(latest, |due| due.min(latest)));
        }
    }

    /// Whether two full segments wait for their ACK.
    #[inline]
    fn enough(&mut self, len: u32) -> bool {
        self.unanswered = self.unanswered.saturating_add(len);
        self.unanswered > self.config.mss
    }

    /// Moves on over blocks that are in order now.
    fn join(&mut self) {
        while let Some((start, end)) = self.above.first()
            && start <= self.next
        {
            self.next = self.next.max(end);
            self.above.forget_below(self.next);
        }
    }

    /// The window that the free memory is worth.
    #[inline]
    fn space(&self) -> u64 {
        self.config.memory.map_or(u64::MAX, |memory| {
            ReceiveMemory::window_of(memory.buffer.saturating_sub(self.held))
        })
    }

    /// Makes room for a segment above a gap; says whether there is any.
    fn make_room(&mut self) -> bool {
        let Some(memory) = self.config.memory else {
            return true;
        };
        if self.held <= memory.buffer {
            return true;
        }
        self.quick = 0;
        self.opened = self.opened.min(2 * u64::from(self.config.mss));
        self.stats.collapses += 1;
        let pages: u64 = self
            .above
            .iter()
            .map(|(start, end)| (end - start).div_ceil(PAGE_PAYLOAD))
            .sum();
        self.held = self.held.min(pages.saturating_mul(PAGE_CHARGE));
        self.held <= memory.buffer
    }

    /// Gives back the memory of what is in order now.
    fn release(&mut self) {
        let payload: u64 = self.above.iter().map(|(start, end)| end - start).sum();
        let share = u128::from(self.held) * u128::from(payload);
        // At most `held`: what is left is part of what was there.
        self.held = (share / u128::from(self.held_payload.max(1))) as u64;
        self.held_payload = payload;
    }

    /// Keeps a segment above a gap.
    fn keep(&mut self, seq: u64, end: u64) {
        if !self.make_room() {
            self.stats.refused += 1;
            return;
        }
        let mut fresh = 0;
        self.above.insert(seq, end, |from, to| fresh += to - from);
        if fresh == 0 {
            self.stats.duplicates += 1;
        } else if let Some(memory) = self.config.memory {
            self.held += u64::from(memory.per_segment);
            self.held_payload += fresh;
        }
        let Some((start, _)) = self.above.range_of(seq) else {
            return;
        };
        // Blocks are named by any number that they hold: they may have grown together since.
        let above = &self.above;
        let mut kept = [Some(start); SACK_BLOCKS_MAX];
        let others = self
            .recent
            .into_iter()
            .flatten()
            .filter_map(|number| above.range_of(number))
            .map(|range| range.0)
            .filter(|other| *other != start);
        let mut places = kept.iter_mut().skip(1);
        let mut last = Some(start);
        for other in others {
            if last == Some(other) {
                continue;
            }
            last = Some(other);
            if let Some(place) = places.next() {
                *place = Some(other);
            }
        }
        for place in places {
            *place = None;
        }
        self.recent = kept;
    }

    /// How far the application has read.
    #[inline]
    fn read(&mut self, now: PicoTime) -> u64 {
        let Some(rate) = self.config.read_rate else {
            self.reading = (now, self.next);
            return self.next;
        };
        let (since, from) = self.reading;
        let position = from.saturating_add(rate.bytes_in(now - since));
        if position >= self.next {
            // It waits for data: idle time earns nothing.
            self.reading = (now, self.next);
            return self.next;
        }
        position
    }

    /// The right edge of the window, which never moves back.
    #[inline]
    fn window(&mut self, now: PicoTime) -> u32 {
        let right = self.read(now) + self.opened.min(self.space());
        let room = right.max(self.edge).saturating_sub(self.next);
        let field = (room >> self.scale).min(FIELD_MAX) << self.scale;
        self.edge = self.next + field;
        // Below 2^30.
        field as u32
    }

    /// The next ACK to be sent.
    #[inline]
    pub fn poll_transmit(&mut self, now: PicoTime) -> Option<Segment> {
        if self.due.is_none_or(|due| due > now) {
            return None;
        }
        self.due = None;
        self.unanswered = 0;
        self.stats.acks += 1;
        if self.answer_syn {
            self.answer_syn = false;
            let mut answer = Segment::bare(Kind::SynAck, now);
            answer.echo = self.echo;
            // The window of a SYN is not scaled.
            answer.window = self.opened.min(FIELD_MAX) as u32;
            self.edge = u64::from(answer.window);
            return Some(answer);
        }
        self.quick = self.quick.saturating_sub(1);
        let mut answer = Segment::bare(Kind::Ack, now);
        answer.ack = self.next;
        answer.window = self.window(now);
        answer.echo = self.echo;
        if !self.above.is_empty() {
            answer.sack = self.blocks();
        }
        self.last_ack = self.next;
        self.update_later(now);
        Some(answer)
    }

    fn blocks(&self) -> SackBlocks {
        let mut blocks = SackBlocks::NONE;
        for number in self.recent.into_iter().flatten() {
            if let Some((start, end)) = self.above.range_of(number) {
                blocks.push(self.next, Block { start, end });
            }
        }
        blocks
    }

    /// A closed window opens again with an ACK of its own: when half of it or two segments are free
    /// (RFC 1122, section 4.2.3.3).
    #[inline]
    fn update_later(&mut self, now: PicoTime) {
        let Some(rate) = self.config.read_rate else {
            return;
        };
        let least = (2 * u64::from(self.config.mss)).min(self.opened / 2);
        if self.edge - self.next < least {
            let wanted = self.next + least;
            let position = self.read(now);
            let missing = wanted.saturating_sub(position + self.opened).max(1);
            let wait = rate.time_for(missing).max(PicoDuration::from_us(1));
            self.due = Some(now + wait);
        }
    }

    /// When an ACK is due.
    #[inline]
    pub fn next_wakeup(&self) -> Option<PicoTime> {
        self.due
    }

    /// What was seen so far.
    pub fn stats(&self) -> ReceiverStats {
        self.stats
    }
}
