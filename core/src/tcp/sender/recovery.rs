//! What an ACK does to the window and the state.
//!
//! Linux 2.6.14 (`tcp_ack`, `tcp_fastretrans_alert`): the window grows before the state is looked at, by
//! what the state was; rate halving. Linux today (`tcp_ack`, `tcp_cong_control`): after, by what the state
//! is; PRR (RFC 6937, section 3.1: conservative, and the slow start bound while an ACK makes progress).

use super::{Cut, Sender, State};
use crate::{
    tcp::{
        cc::{Acked, CongestionControl},
        profile::{Detection, Reduction},
    },
    units::PicoTime,
};

/// Segments that must arrive after a gap before it counts as a loss (RFC 5681, section 3.2).
const DUPLICATES: u64 = 3;
/// Segments that moderation lets above what is in flight (Linux `tcp_max_burst`).
const MAX_BURST: u32 = 3;

impl Sender {
    /// Steers window and state by an ACK that delivered `delivered` segments, of which `in_flight` were on
    /// the way before.
    #[inline]
    pub(super) fn steer(&mut self, acked: &Acked, delivered: u32, in_flight: u32, dubious: bool) {
        match self.config.profile.reduction {
            Reduction::RateHalving => {
                self.grow(acked, in_flight);
                if dubious {
                    self.alert(acked, delivered);
                }
            }
            Reduction::Prr => {
                if dubious {
                    self.alert(acked, delivered);
                }
                self.grow(acked, in_flight);
            }
        }
    }

    /// Lets the congestion control grow the window, where state and use of the window allow it.
    #[inline]
    fn grow(&mut self, acked: &Acked, in_flight: u32) {
        let may = matches!(self.state, State::Open | State::Disorder | State::Loss);
        if acked.segments == 0 || !may {
            return;
        }
        let limited = match self.config.profile.reduction {
            Reduction::RateHalving => in_flight >= self.window.cwnd,
            // In slow start a window is used when half of it is (`tcp_is_cwnd_limited`).
            Reduction::Prr => {
                in_flight >= self.window.cwnd
                    || (self.window.in_slow_start()
                        && self.window.cwnd < self.most_in_flight.saturating_mul(2))
            }
        };
        if limited {
            self.control.increase(&mut self.window, acked);
        }
    }

    fn alert(&mut self, acked: &Acked, delivered: u32) {
        self.leave();
        let lost = self.find_losses();
        match self.state {
            State::Loss => self.moderate(),
            State::Recovery => self.reduce(delivered, acked.segments > 0 && lost == 0),
            _ if self.time_to_recover() => {
                self.enter_recovery(acked.now);
                let lost = lost + self.find_losses();
                self.reduce(delivered, acked.segments > 0 && lost == 0);
            }
            State::Cwr => self.reduce(delivered, acked.segments > 0),
            _ => {
                let disorder = self.board.sacked_out() > 0 || self.board.resent_out() > 0;
                self.state = if disorder { State::Disorder } else { State::Open };
                self.moderate();
            }
        }
    }

    /// Leaves a state whose cause is acknowledged.
    fn leave(&mut self) {
        let una = self.board.una();
        let over = match self.state {
            State::Recovery | State::Loss => una >= self.high_seq,
            // Held until something above it is acknowledged.
            State::Cwr => una > self.high_seq,
            _ => false,
        };
        if !over {
            return;
        }
        match (self.state, self.config.profile.reduction) {
            (State::Loss, _) => {}
            (_, Reduction::RateHalving) => {
                self.window.cwnd = self.window.cwnd.min(self.window.ssthresh);
            }
            (_, Reduction::Prr) => self.window.cwnd = self.window.ssthresh,
        }
        self.window.counter = 0;
        self.most_in_flight = self.board.in_flight();
        self.state = State::Open;
    }

    /// Marks what is lost; returns how many segments that is.
    fn find_losses(&mut self) -> u32 {
        let recovering = matches!(self.state, State::Recovery | State::Loss);
        match self.config.profile.detection {
            Detection::Fack if self.state == State::Recovery => {
                let lost = self.board.mark_resent();
                let below = self.board.una() + self.board.forward().saturating_sub(DUPLICATES).max(1);
                lost + self.board.mark_below(below.min(self.high_seq))
            }
            Detection::Rack if recovering || u64::from(self.board.sacked_out()) >= DUPLICATES => {
                self.board.mark_older()
            }
            // FACK looks for lost retransmissions in Recovery alone (`tcp_sacktag_write_queue`): in Loss it is
            // for the next timeout to find them.
            _ => {
                self.board.trim_order();
                0
            }
        }
    }

    fn time_to_recover(&self) -> bool {
        let forward = match self.config.profile.detection {
            Detection::Fack => self.board.forward() > DUPLICATES,
            Detection::Rack => false,
        };
        forward || self.board.lost_out() > 0
    }

    fn enter_recovery(&mut self, now: PicoTime) {
        self.stats.recoveries += 1;
        self.high_seq = self.board.nxt();
        if self.state != State::Cwr {
            self.begin_reduction(now);
        }
        self.window.counter = 0;
        self.state = State::Recovery;
    }

    fn begin_reduction(&mut self, now: PicoTime) {
        self.prior_cwnd = self.window.cwnd;
        self.delivered_in_recovery = 0;
        self.sent_in_recovery = 0;
        self.cut(now, false);
    }

    /// Asks the congestion control what is left of the window, and notes it.
    fn cut(&mut self, now: PicoTime, timeout: bool) {
        let (cwnd, in_slow_start) = (self.window.cwnd, self.window.in_slow_start());
        self.window.ssthresh = self.control.threshold(&self.window, now);
        self.cuts += 1;
        self.last_cut = Some(Cut {
            at: now,
            cwnd,
            ssthresh: self.window.ssthresh,
            target: self.control.target().unwrap_or(cwnd),
            in_slow_start,
            timeout,
        });
    }

    /// The interface queue is full.
    pub(super) fn enter_cwr(&mut self, now: PicoTime) {
        if !matches!(self.state, State::Open | State::Disorder) {
            return;
        }
        self.stats.local_reductions += 1;
        self.begin_reduction(now);
        if self.config.profile.reduction == Reduction::RateHalving {
            self.window.cwnd = self.window.cwnd.min(self.board.in_flight() + 1);
        }
        self.window.counter = 0;
        self.high_seq = self.board.nxt();
        self.state = State::Cwr;
    }

    /// The retransmission timer has expired (Linux `tcp_enter_loss`).
    pub(super) fn enter_loss(&mut self, now: PicoTime) {
        self.stats.timeouts += 1;
        let settled =
            matches!(self.state, State::Open | State::Disorder) || self.board.una() >= self.high_seq;
        if settled {
            self.cut(now, true);
        }
        self.control.timed_out();
        self.window.cwnd = 1;
        self.window.counter = 0;
        self.most_in_flight = 1;
        self.board.lose_all();
        self.high_seq = self.board.nxt();
        self.state = State::Loss;
        self.rtt.back_off();
        self.refused_to = None;
        self.arm(now);
    }

    /// One step of the reduction for an ACK.
    fn reduce(&mut self, delivered: u32, progress: bool) {
        match self.config.profile.reduction {
            Reduction::RateHalving => self.rate_halve(),
            Reduction::Prr => self.proportional(delivered, progress),
        }
    }

    /// One segment down for every second ACK, to the least window, and never more than one above what is
    /// in flight (Linux 2.6.14 `tcp_cwnd_down`).
    fn rate_halve(&mut self) {
        let due = self.window.counter + 1;
        self.window.counter = due & 1;
        let down = due >> 1;
        if down > 0 && self.window.cwnd > self.control.least(self.window.ssthresh) {
            self.window.cwnd -= down.min(self.window.cwnd - 1);
        }
        self.window.cwnd = self.window.cwnd.min(self.board.in_flight() + 1);
    }

    /// RFC 6937; Linux `tcp_cwnd_reduction`, which takes the slow start bound for an ACK that makes `progress`
    /// (acknowledges cumulatively and shows no new loss) and else conserves packets.
    fn proportional(&mut self, delivered: u32, progress: bool) {
        if delivered == 0 || self.prior_cwnd == 0 {
            return;
        }
        self.delivered_in_recovery += delivered;
        let (flight, threshold) = (self.board.in_flight(), self.window.ssthresh);
        let send = match threshold.checked_sub(flight) {
            None => {
                let share = u64::from(threshold) * u64::from(self.delivered_in_recovery);
                let share = share.div_ceil(u64::from(self.prior_cwnd));
                share.saturating_sub(u64::from(self.sent_in_recovery))
            }
            Some(room) => {
                let behind = self.delivered_in_recovery.saturating_sub(self.sent_in_recovery);
                let more = behind.max(delivered) + u32::from(progress);
                u64::from(more.min(room))
            }
        };
        let least = u32::from(self.sent_in_recovery == 0);
        // Bounded by the windows, which are u32.
        self.window.cwnd = flight + (send as u32).max(least);
    }

    /// Keeps a window that is not used from becoming a burst (Linux 2.6.14 `tcp_moderate_cwnd`).
    fn moderate(&mut self) {
        if self.config.profile.reduction == Reduction::RateHalving {
            self.window.cwnd = self.window.cwnd.min(self.board.in_flight() + MAX_BURST);
        }
    }
}
