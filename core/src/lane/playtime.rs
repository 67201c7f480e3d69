//! How long after its stamp a packet leaves: as long as the slowest lane takes, and a margin.
//!
//! ```text
//!   wanted = largest delay of the last 10 s, without the worst windows of 20 ms (a hundredth and two), + margin
//!   play-out(stamp) -> wanted   by 500 ppm of the time between stamps                                (slewed)
//! ```
//!
//! It is a function of the stamp, so that packets of lanes with other delays, which arrive in another order, keep their spacing. What is wanted
//! changes once a second at most, for stamps later than any that came.
//!
//! **What is left out.** A machine that stalls makes all that it holds late, and then delivers it at once: in one or two windows,
//! however long it stalled. What is late in no more windows than that moves nothing.
//!
//! **At once** it rises only where it must: while the first two seconds, or those of a lane, are being learned (at their end it is set to
//! what is wanted), and when packets came behind it in [`LATE_WINDOWS`] windows of one second, which is a step of a path and no
//! stall. Everything else is slewed, so that no move shows in the spacing of packets: 500 ppm is what adjtime(3) turns a clock by.
//! It stays within `hold_max` of the fastest lane's least delay.

use alloc::{collections::VecDeque, vec, vec::Vec};

/// A window, ns.
const WINDOW_NS: i64 = 20_000_000;
/// Windows that are kept: ten seconds.
const WINDOWS: i64 = 500;
/// Windows between two looks at what is wanted: a second.
const LOOK_EVERY: i64 = 50;
/// Windows that may be worse than what is wanted: one of so many, and two.
const ONE_OF: usize = 100;
/// With fewer windows all count.
const WINDOWS_LEAST: usize = 50;
/// How long everything is learned, ns.
pub const LEARN_NS: i64 = 2_000_000_000;
/// Windows of a second with late packets after which the play-out time rises at once.
pub const LATE_WINDOWS: usize = 3;
const LATE_WITHIN: i64 = 50;
/// Most that the play-out time is moved by, parts in 10^6 of the time that passes.
pub const SLEW_PPM: i64 = 500;

/// How it moves from a stamp on.
#[derive(Debug, Clone, Copy)]
struct Move {
    /// The stamp on our clock, ns.
    from_ns: i64,
    /// The play-out time there.
    begins_ns: i64,
    wanted_ns: i64,
}

impl Move {
    fn still(ns: i64) -> Self {
        Move {
            from_ns: 0,
            begins_ns: ns,
            wanted_ns: ns,
        }
    }

    fn at(&self, stamp_ns: i64) -> i64 {
        let most = stamp_ns.saturating_sub(self.from_ns).max(0) / (1_000_000 / SLEW_PPM);
        self.begins_ns + (self.wanted_ns - self.begins_ns).clamp(-most, most)
    }
}

/// The play-out time, ns above a stamp on our clock.
#[derive(Debug, Clone)]
pub struct PlayTime {
    hold_ns: i64,
    /// How it moves now, and how it did for stamps before that.
    moves: Option<[Move; 2]>,
    /// The latest stamp, on our clock.
    latest_ns: i64,
    began_ns: i64,
    learning: bool,
    /// When each lane was first heard.
    heard_ns: Vec<Option<i64>>,
    /// The window that is filled, and the largest delay in it.
    window: i64,
    largest: Option<i64>,
    /// Largest delays of the last windows with packets.
    kept: VecDeque<(i64, i64)>,
    /// The latest windows with late packets.
    late: [i64; LATE_WINDOWS],
}

/// A packet that came, and what the lanes are like.
#[derive(Debug, Clone, Copy)]
pub struct Came {
    /// Our clock, ns.
    pub now_ns: i64,
    pub lane: usize,
    /// Its stamp on our clock, up to the constant of all delays, ns.
    pub stamp_ns: i64,
    /// How long it took, up to that constant, ns.
    pub delay_ns: i64,
    /// Margin above the largest delay, ns.
    pub margin_ns: i64,
    /// Least delay of the fastest lane, ns.
    pub fastest_ns: i64,
}

impl PlayTime {
    /// Nothing known; at most `hold_ns` above the fastest lane.
    pub fn new(lanes: usize, hold_ns: i64) -> Self {
        PlayTime {
            hold_ns,
            moves: None,
            latest_ns: i64::MIN,
            began_ns: 0,
            learning: true,
            heard_ns: vec![None; lanes],
            window: 0,
            largest: None,
            kept: VecDeque::new(),
            late: [i64::MIN; LATE_WINDOWS],
        }
    }

    /// It, for a stamp on our clock, once a delay is known.
    #[inline]
    pub fn at(&self, stamp_ns: i64) -> Option<i64> {
        let [now, before] = self.moves.as_ref()?;
        let held = if stamp_ns < now.from_ns { before } else { now };
        Some(held.at(stamp_ns))
    }

    /// It, for the latest stamp.
    pub fn get(&self) -> Option<i64> {
        self.at(self.latest_ns)
    }

    /// Sets it, because other lanes are in use: what was seen before says nothing.
    pub fn set(&mut self, now_ns: i64, ns: i64) {
        self.moves = Some([Move::still(ns); 2]);
        self.began_ns = now_ns;
        self.kept.clear();
    }

    /// A packet has come.
    pub fn note(&mut self, came: Came) {
        let Came { now_ns, delay_ns, .. } = came;
        let want = self.bounded(delay_ns.saturating_add(came.margin_ns), came);
        if self.moves.is_none() {
            self.set(now_ns, want);
            self.window = now_ns.div_euclid(WINDOW_NS);
        }
        self.latest_ns = self.latest_ns.max(came.stamp_ns);
        self.turn(came);
        let play = self.at(came.stamp_ns).unwrap_or(want);
        self.largest = Some(self.largest.map_or(delay_ns, |l| l.max(delay_ns)));
        let heard = self.heard_ns.get_mut(came.lane).map(|h| *h.get_or_insert(now_ns));
        let is_new = self.learning || heard.is_some_and(|at| now_ns - at < LEARN_NS);
        let near = delay_ns.saturating_add(came.margin_ns / 2) > play;
        if near && want > play && (is_new || (delay_ns > play && self.is_step())) {
            self.moves = Some([Move::still(want); 2]);
        }
    }

    fn bounded(&self, ns: i64, came: Came) -> i64 {
        ns.min(came.fastest_ns.saturating_add(self.hold_ns))
    }

    /// A packet came late in this window: whether others did in enough of the last ones.
    fn is_step(&mut self) -> bool {
        if self.late[0] != self.window {
            self.late.rotate_right(1);
            self.late[0] = self.window;
        }
        let oldest = self.late[LATE_WINDOWS - 1];
        oldest > self.window - LATE_WITHIN
    }

    /// Ends windows that are over, and once a second looks at what is wanted.
    fn turn(&mut self, came: Came) {
        let window = came.now_ns.div_euclid(WINDOW_NS);
        if window <= self.window {
            return;
        }
        if let Some(largest) = self.largest.take() {
            self.kept.push_back((self.window, largest));
        }
        let second = window.div_euclid(LOOK_EVERY) != self.window.div_euclid(LOOK_EVERY);
        self.window = window;
        while self.kept.front().is_some_and(|(w, _)| *w <= window - WINDOWS) {
            self.kept.pop_front();
        }
        let since = came.now_ns - self.began_ns;
        let learned = self.learning && since >= LEARN_NS;
        if !(learned || (second && !self.learning)) {
            return;
        }
        let (Some(usual), Some([moving, _])) = (self.usual(), self.moves) else {
            return;
        };
        let want = self.bounded(usual.saturating_add(came.margin_ns), came);
        if learned {
            self.learning = false;
            self.moves = Some([Move::still(want); 2]);
            return;
        }
        // Within half the margin nothing is gained.
        let low = want - came.margin_ns / 2 > moving.wanted_ns;
        let high = since >= WINDOWS * WINDOW_NS && want + came.margin_ns / 2 < moving.wanted_ns;
        if low || high {
            let next = Move {
                from_ns: self.latest_ns,
                begins_ns: moving.at(self.latest_ns),
                wanted_ns: want,
            };
            self.moves = Some([next, moving]);
        }
    }

    /// The largest delay of the windows that are kept, without the worst of them.
    fn usual(&self) -> Option<i64> {
        let mut all: Vec<i64> = self.kept.iter().map(|(_, largest)| *largest).collect();
        let worst = if all.len() < WINDOWS_LEAST {
            0
        } else {
            2 + all.len() / ONE_OF
        };
        let place = all.len().checked_sub(1 + worst)?;
        Some(*all.select_nth_unstable(place).1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_000_000;
    /// Notes a packet each ms from one moment to another, ms, and says how the play-out time moved: least, most, largest step.
    fn run(play: &mut PlayTime, from_ms: i64, to_ms: i64, delay: impl Fn(i64) -> i64) -> (i64, i64, i64) {
        let (mut least, mut most, mut step) = (i64::MAX, i64::MIN, 0);
        for at in from_ms..to_ms {
            let before = play.get();
            play.note(Came {
                now_ns: at * MS + delay(at),
                lane: 0,
                stamp_ns: at * MS,
                delay_ns: delay(at),
                margin_ns: 2 * MS,
                fastest_ns: 20 * MS,
            });
            let now = play.get().expect("a delay is known");
            (least, most) = (least.min(now), most.max(now));
            step = step.max((now - before.unwrap_or(now)).abs());
        }
        (least, most, step)
    }

    #[test]
    fn a_stall_moves_nothing_and_a_stall_while_learning_is_forgotten() {
        let mut play = PlayTime::new(1, 1_000 * MS);
        let stalled = |every: i64| move |at: i64| 20 * MS + if at % every < 2 { 30 * MS } else { 0 };
        run(&mut play, 0, 2_500, stalled(1_500));
        let (least, most, _) = run(&mut play, 2_500, 30_000, stalled(3_000));
        assert_eq!((least, most), (22 * MS, 22 * MS));
    }

    #[test]
    fn a_step_is_followed_at_once_up_and_slowly_down() {
        let mut play = PlayTime::new(1, 1_000 * MS);
        run(&mut play, 0, 5_000, |_| 20 * MS);
        // Within two windows and a bit.
        run(&mut play, 5_000, 5_060, |_| 35 * MS);
        assert_eq!(play.get(), Some(37 * MS));
        let (least, most, _) = run(&mut play, 5_060, 20_000, |_| 35 * MS);
        assert_eq!((least, most), (37 * MS, 37 * MS));
        let (_, _, step) = run(&mut play, 20_000, 70_000, |_| 20 * MS);
        // 500 ppm of a millisecond, and for an earlier stamp it is what it was.
        assert_eq!(play.at(4_000 * MS).map(|ns| ns >= 22 * MS), Some(true));
        assert_eq!(step, 500);
        assert_eq!(play.get(), Some(22 * MS));
    }

    #[test]
    fn what_is_still_in_time_moves_it_slowly() {
        let mut play = PlayTime::new(1, 1_000 * MS);
        run(&mut play, 0, 5_000, |_| 20 * MS);
        let (_, most, step) = run(&mut play, 5_000, 15_000, |_| 21_500_000);
        assert_eq!((most, step), (23_500_000, 500));
    }

    #[test]
    fn it_stays_within_its_bound() {
        let mut play = PlayTime::new(1, 100 * MS);
        let (_, most, _) = run(&mut play, 0, 5_000, |at| at * MS);
        assert_eq!(most, 120 * MS);
    }
}
