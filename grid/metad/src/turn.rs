//! Whose turn the upkeep of the whole grid is.
//!
//! ```text
//!   other's ──its beat stands still for TAKE_AFTER──> ask for it ──granted──> ours ──renewed every RENEW_EVERY──┐
//!      ^──────── refused: somebody was first ─────────────┘            ^──────────────────────────────────────────┘
//!      └──────────── not renewed for HOLD_FOR (catalog away, process stopped) ─────────┘
//! ```
//!
//! Only differences of each service's own monotonic clock are used. A holder counts from *before* it asked to
//! renew, a taker from *after* it saw the beat; with `HOLD_FOR < TAKE_AFTER` two services lead together only if
//! one is stopped between its look at the clock and what it does then. What the leader does stays right even so
//! (jobs are not made twice, states are only set to what was seen); it would only be done twice.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use kuroshio_catalog::{TakeTurn, Turn};
use kuroshio_proto::v1::Failure;

use crate::server::Inner;

/// The name of the task in the catalog.
const TASK: &str = "upkeep";
/// How often the holder says that it lives: a durable write.
const RENEW_EVERY: Duration = Duration::from_secs(2);
/// How long a turn is held without being renewed.
const HOLD_FOR: Duration = Duration::from_secs(5);
/// A turn that stands still for so long is taken.
const TAKE_AFTER: Duration = Duration::from_secs(7);
/// How often the others look.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What one service knows of the turn.
#[derive(Default)]
pub struct Upkeep(Mutex<State>);

#[derive(Default)]
struct State {
    /// When it was asked last.
    asked: Option<Instant>,
    /// Until when it is ours.
    ours_until: Option<Instant>,
    /// Another's turn and since when its beat has stood there.
    theirs: Option<(Turn, Instant)>,
}

impl State {
    fn is_ours(&self, now: Instant) -> bool {
        self.ours_until.is_some_and(|until| now < until)
    }

    /// Whether it is time to ask, and for which beat that stands still.
    fn ask(&self, now: Instant) -> Option<Option<u64>> {
        let pause = if self.is_ours(now) {
            RENEW_EVERY
        } else {
            LOOK_EVERY
        };
        if self.asked.is_some_and(|at| now.duration_since(at) < pause) {
            return None;
        }
        let stale = self.theirs.as_ref();
        let stale = stale.filter(|(_, since)| now.duration_since(*since) >= TAKE_AFTER);
        Some(stale.map(|(turn, _)| turn.beat))
    }

    /// The answer to what was asked at `asked` and came at `now`.
    fn told(&mut self, me: &str, turn: Turn, asked: Instant, now: Instant) {
        if turn.holder == me {
            self.ours_until = Some(asked + HOLD_FOR);
            self.theirs = None;
            return;
        }
        self.ours_until = None;
        match &self.theirs {
            Some((known, _)) if *known == turn => {}
            _ => self.theirs = Some((turn, now)),
        }
    }
}

impl Inner {
    /// Whether this service does the upkeep of the whole grid now. One that is alone on its catalog always does.
    pub async fn leads(&self) -> Result<bool, Failure> {
        if !self.catalog.is_shared() {
            return Ok(true);
        }
        let state = || self.upkeep.0.lock().unwrap_or_else(PoisonError::into_inner);
        let asked = Instant::now();
        let ask = state().ask(asked);
        if let Some(stale) = ask {
            state().asked = Some(asked);
            let op = TakeTurn {
                task: TASK.into(),
                holder: self.worker.clone(),
                stale,
            };
            let turn = self.ask(&self.service(), op).await?;
            let (was, now) = (state().is_ours(asked), Instant::now());
            state().told(&self.worker, turn, asked, now);
            if !was && state().is_ours(now) {
                tracing::info!("this service does the grid's upkeep from now on");
            }
        }
        Ok(state().is_ours(Instant::now()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(holder: &str, beat: u64) -> Turn {
        Turn {
            holder: holder.into(),
            beat,
        }
    }

    #[test]
    fn a_turn_that_stands_still_is_asked_for_and_a_held_one_ends() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut state = State::default();
        assert_eq!(state.ask(at(0)), Some(None));
        state.asked = Some(at(0));
        state.told("me", turn("you", 4), at(0), at(10));
        assert_eq!(state.ask(at(500)), None, "not all the time");
        assert_eq!(state.ask(at(1000)), Some(None));
        state.told("me", turn("you", 5), at(1000), at(1010));
        assert_eq!(state.ask(at(8000)), Some(None), "its beat changed at 1010");
        assert_eq!(state.ask(at(8010)), Some(Some(5)));
        state.told("me", turn("me", 6), at(8010), at(8500));
        state.asked = Some(at(8010));
        assert!(state.is_ours(at(13_000)));
        assert!(!state.is_ours(at(13_010)), "counted from before it was asked");
        assert_eq!(state.ask(at(9_500)), None);
        assert_eq!(state.ask(at(10_010)), Some(None), "time to renew");
        state.told("me", turn("you", 7), at(10_010), at(10_020));
        assert!(!state.is_ours(at(10_020)));
    }

    #[test]
    fn a_holder_has_stopped_before_a_taker_begins() {
        assert!(HOLD_FOR + RENEW_EVERY <= TAKE_AFTER);
        assert!(RENEW_EVERY * 2 < HOLD_FOR);
    }
}
