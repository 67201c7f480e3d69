//! The functions and structures of `kernel/psp_engine.h`, and a safe scheduler around them.
//!
//! Layouts and names are the header's; its comments say what each does. The engine is GPL-2.0-only and linked into
//! tests alone.
//!
//! [`Wire`] owns the scheduler, its groups and classes at addresses that never move, so the lists of pointers that the
//! engine builds stay valid. Whoever uses it keeps the queues.

use std::ptr;

/// Cases of a property: `PROPTEST_CASES`, else what is usual.
pub fn cases(usual: u32) -> u32 {
    let asked = std::env::var("PROPTEST_CASES").ok();
    asked.and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// `struct psp_clock`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clock {
    /// Whole ps.
    pub at_ps: u64,
    /// In units of 1 / rate.
    pub rem: u64,
    /// Frame level.
    pub rate_bps: u64,
}

/// `struct psp_gap`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Gap {
    /// How many.
    pub frames: u64,
    /// Bytes of the smaller ones.
    pub size: u64,
    /// How many are one byte larger.
    pub larger: u64,
}

#[repr(C)]
struct Group {
    clock: Clock,
}

#[repr(C)]
struct Class {
    clock: Clock,
    group: *mut Group,
    number: u32,
    head_bytes: u32,
    lost_ps: u64,
    prev: *mut Class,
    next: *mut Class,
}

#[repr(C)]
struct Sched {
    wire_ps: u64,
    ps_per_byte: u64,
    slack_ps: u64,
    ahead_max_ps: u64,
    forgiven_ps: u64,
    gap_limit: u32,
    classes: u32,
    largest: u32,
    paced: *mut Class,
    unpaced: *mut Class,
}

#[repr(C)]
struct RawNext {
    what: u32,
    gap_bytes: u32,
    start_ps: u64,
    cls: *mut Class,
}

unsafe extern "C" {
    fn psp_clock_init(clock: *mut Clock, rate_bps: u64);
    fn psp_clock_set_rate(clock: *mut Clock, rate_bps: u64);
    fn psp_depart(clock: *mut Clock, ready_ps: u64, frame_bytes: u32) -> u64;
    fn psp_gap_plain(frame: u32, target_bps: u64, max_bps: u64, limit: u32, gap: *mut Gap) -> bool;
    fn psp_gap_on_wire(frame: u32, target_bps: u64, line_bps: u64, limit: u32, gap: *mut Gap) -> bool;
    fn psp_smooth_wait(wait_16us: u32, wait_us: u32) -> u32;
    fn psp_path_rtt(srtt_us: u32, least_us: u32, wait_16us: u32) -> u32;
    fn psp_dynamic_rate(cwnd_frames: u32, frame_bytes: u32, rtt_us: u32, max_bps: u64) -> u64;
    fn psp_init(sched: *mut Sched, ps_per_byte: u64, gap_limit_bytes: u32);
    fn psp_class_init(cls: *mut Class, number: u32, rate_bps: u64, group: *mut Group);
    fn psp_resync(sched: *mut Sched, now_ps: u64);
    fn psp_wake(sched: *mut Sched, cls: *mut Class, frame_bytes: u32);
    fn psp_sleep(sched: *mut Sched, cls: *mut Class);
    fn psp_next(sched: *mut Sched, next: *mut RawNext);
    fn psp_sent(sched: *mut Sched, cls: *mut Class, frame_bytes: u32, next_bytes: u32) -> u64;
    fn psp_gap_sent(sched: *mut Sched, gap_bytes: u32);
    fn psp_look_ahead(sched: *mut Sched, now_ps: u64, back_ps: *mut u64) -> u32;
    fn psp_ns_to_ps(ns: u64) -> u64;
    fn psp_rebase_due_ns(sched: *const Sched, passed_ns: u64) -> u64;
    fn psp_rebase(sched: *mut Sched, by_ps: u64);
    fn psp_clock_rebase(clock: *mut Clock, by_ps: u64);
}

impl Clock {
    /// A clock at 0.
    #[must_use]
    pub fn new(rate_bps: u64) -> Self {
        let mut clock = Clock {
            at_ps: 0,
            rem: 0,
            rate_bps: 0,
        };
        // SAFETY: a valid, exclusive pointer for the time of the call; the same below.
        unsafe { psp_clock_init(&mut clock, rate_bps) };
        clock
    }

    /// From here on.
    pub fn set_rate(&mut self, rate_bps: u64) {
        // SAFETY: as above.
        unsafe { psp_clock_set_rate(self, rate_bps) }
    }

    /// Places a frame; its start.
    pub fn depart(&mut self, ready_ps: u64, frame_bytes: u32) -> u64 {
        // SAFETY: as above.
        unsafe { psp_depart(self, ready_ps, frame_bytes) }
    }
}

/// The paper's formula; `None` where it is out of range.
#[must_use]
pub fn gap_plain(frame_bytes: u32, target_bps: u64, max_bps: u64, limit_bytes: u32) -> Option<Gap> {
    let mut gap = Gap::default();
    // SAFETY: a valid, exclusive pointer for the time of the call.
    unsafe { psp_gap_plain(frame_bytes, target_bps, max_bps, limit_bytes, &mut gap) }.then_some(gap)
}

/// The gap of a frame-level rate on a wire; `None` where it is out of range.
#[must_use]
pub fn gap_on_wire(frame_bytes: u32, target_bps: u64, line_bps: u64, limit_bytes: u32) -> Option<Gap> {
    let mut gap = Gap::default();
    // SAFETY: a valid, exclusive pointer for the time of the call.
    unsafe { psp_gap_on_wire(frame_bytes, target_bps, line_bps, limit_bytes, &mut gap) }.then_some(gap)
}

/// cwnd frames per round trip, in bit/s.
#[must_use]
pub fn dynamic_rate(cwnd_frames: u32, frame_bytes: u32, rtt_us: u32, max_bps: u64) -> u64 {
    // SAFETY: numbers only.
    unsafe { psp_dynamic_rate(cwnd_frames, frame_bytes, rtt_us, max_bps) }
}

/// Time in the own host in 1/16 us, smoothed by 1/16 with one more.
#[must_use]
pub fn smooth_wait(wait_16us: u32, wait_us: u32) -> u32 {
    // SAFETY: numbers only.
    unsafe { psp_smooth_wait(wait_16us, wait_us) }
}

/// The round trip without the time in the own host.
#[must_use]
pub fn path_rtt(srtt_us: u32, least_us: u32, wait_16us: u32) -> u32 {
    // SAFETY: numbers only.
    unsafe { psp_path_rtt(srtt_us, least_us, wait_16us) }
}

/// What the wire does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Nothing waits.
    Idle,
    /// The head of this class, placed at `start_ps`.
    Frame {
        /// Index of the class.
        class: usize,
        /// Its place in the schedule.
        start_ps: u64,
    },
    /// A gap frame of `bytes`, before `class`, which is placed at `start_ps`.
    Gap {
        /// Index of the class.
        class: usize,
        /// MAC header to FCS.
        bytes: u32,
        /// The class's place in the schedule.
        start_ps: u64,
    },
}

/// How far gap frames have filled the wire beyond now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ahead {
    /// No more than a ring holds.
    InTime,
    /// The wire's clock is faster; the caller's epoch moves back by so many ps.
    Skewed(u64),
    /// The device does not block; as above.
    Runaway(u64),
}

/// Nanoseconds as picoseconds; saturates.
#[must_use]
pub fn ns_to_ps(ns: u64) -> u64 {
    // SAFETY: numbers only.
    unsafe { psp_ns_to_ps(ns) }
}

/// A scheduler with its groups and classes.
pub struct Wire {
    sched: *mut Sched,
    groups: Vec<*mut Group>,
    classes: Vec<*mut Class>,
}

impl Wire {
    /// A wire at time 0. `gap_limit_bytes`: the largest gap frame.
    #[must_use]
    pub fn new(ps_per_byte: u64, gap_limit_bytes: u32) -> Self {
        let sched = Box::into_raw(Box::new(Sched {
            wire_ps: 0,
            ps_per_byte: 0,
            slack_ps: 0,
            ahead_max_ps: 0,
            forgiven_ps: 0,
            gap_limit: 0,
            classes: 0,
            largest: 0,
            paced: ptr::null_mut(),
            unpaced: ptr::null_mut(),
        }));
        // SAFETY: the allocation lives until `drop`; the same holds for every pointer below.
        unsafe { psp_init(sched, ps_per_byte, gap_limit_bytes) };
        Wire {
            sched,
            groups: Vec::new(),
            classes: Vec::new(),
        }
    }

    /// Adds a ceiling; its index.
    pub fn group(&mut self, rate_bps: u64) -> usize {
        let clock = Clock::new(rate_bps);
        self.groups.push(Box::into_raw(Box::new(Group { clock })));
        self.groups.len() - 1
    }

    /// Adds a class (rate 0: unpaced); its index, which is its number.
    pub fn class(&mut self, rate_bps: u64, group: Option<usize>) -> usize {
        let index = self.classes.len();
        let class = Box::into_raw(Box::new(Class {
            clock: Clock::new(rate_bps),
            group: ptr::null_mut(),
            number: 0,
            head_bytes: 0,
            lost_ps: 0,
            prev: ptr::null_mut(),
            next: ptr::null_mut(),
        }));
        let group = group.map_or(ptr::null_mut(), |g| self.groups[g]);
        // SAFETY: as in `new`.
        unsafe {
            psp_class_init(class, index as u32, rate_bps, group);
            (*self.sched).classes += u32::from(rate_bps > 0 || !group.is_null());
        }
        self.classes.push(class);
        index
    }

    /// Up to where the wire is filled, in ps.
    #[must_use]
    pub fn wire_ps(&self) -> u64 {
        // SAFETY: as in `new`.
        unsafe { (*self.sched).wire_ps }
    }

    /// What a class gave up because the wire was overbooked, in ps.
    #[must_use]
    pub fn lost_ps(&self, class: usize) -> u64 {
        // SAFETY: as in `new`.
        unsafe { (*self.classes[class]).lost_ps }
    }

    /// Timer pacing: how late a wake-up may be and be made good, in ps.
    pub fn set_slack_ps(&mut self, slack_ps: u64) {
        // SAFETY: as in `new`.
        unsafe { (*self.sched).slack_ps = slack_ps }
    }

    /// The wire was idle up to `now_ps`.
    pub fn resync(&mut self, now_ps: u64) {
        // SAFETY: as in `new`.
        unsafe { psp_resync(self.sched, now_ps) }
    }

    /// A frame came to the head of an empty class.
    pub fn wake(&mut self, class: usize, frame_bytes: u32) {
        // SAFETY: as in `new`.
        unsafe { psp_wake(self.sched, self.classes[class], frame_bytes) }
    }

    /// The class is emptied.
    pub fn sleep(&mut self, class: usize) {
        // SAFETY: as in `new`.
        unsafe { psp_sleep(self.sched, self.classes[class]) }
    }

    /// Who is next.
    #[must_use]
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Next {
        let mut raw = RawNext {
            what: 0,
            gap_bytes: 0,
            start_ps: 0,
            cls: ptr::null_mut(),
        };
        // SAFETY: as in `new`.
        unsafe { psp_next(self.sched, &mut raw) };
        if raw.what == 0 {
            return Next::Idle;
        }
        let class = self.classes.iter().position(|c| *c == raw.cls);
        let class = class.expect("a class of this wire");
        let start_ps = raw.start_ps;
        match raw.what {
            1 => Next::Frame { class, start_ps },
            2 => Next::Gap {
                class,
                bytes: raw.gap_bytes,
                start_ps,
            },
            other => panic!("enum psp_what has no {other}"),
        }
    }

    /// The head of `class`, of `frame_bytes`, goes out; `next_bytes` is behind it. Its place in the schedule.
    pub fn sent(&mut self, class: usize, frame_bytes: u32, next_bytes: u32) -> u64 {
        // SAFETY: as in `new`.
        unsafe { psp_sent(self.sched, self.classes[class], frame_bytes, next_bytes) }
    }

    /// A gap frame goes out.
    pub fn gap_sent(&mut self, gap_bytes: u32) {
        // SAFETY: as in `new`.
        unsafe { psp_gap_sent(self.sched, gap_bytes) }
    }

    /// How far beyond now gap frames may fill the wire.
    pub fn set_ahead_max_ps(&mut self, ahead_max_ps: u64) {
        // SAFETY: as in `new`.
        unsafe { (*self.sched).ahead_max_ps = ahead_max_ps }
    }

    /// Before a gap frame.
    pub fn look_ahead(&mut self, now_ps: u64) -> Ahead {
        let mut back_ps = u64::MAX;
        // SAFETY: as in `new`; `back_ps` lives through the call.
        match unsafe { psp_look_ahead(self.sched, now_ps, &mut back_ps) } {
            0 => {
                assert_eq!(back_ps, 0, "in time moves nothing");
                Ahead::InTime
            }
            1 => Ahead::Skewed(back_ps),
            2 => Ahead::Runaway(back_ps),
            other => panic!("enum psp_ahead has no {other}"),
        }
    }

    /// By how many ns the epoch should move on, `passed_ns` after it; 0: not at all.
    #[must_use]
    pub fn rebase_due_ns(&self, passed_ns: u64) -> u64 {
        // SAFETY: as in `new`.
        unsafe { psp_rebase_due_ns(self.sched, passed_ns) }
    }

    /// Moves the epoch on by `by_ps`.
    pub fn rebase(&mut self, by_ps: u64) {
        // SAFETY: as in `new`.
        unsafe {
            psp_rebase(self.sched, by_ps);
            for class in &self.classes {
                psp_clock_rebase(&mut (**class).clock, by_ps);
            }
            for group in &self.groups {
                psp_clock_rebase(&mut (**group).clock, by_ps);
            }
        }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        // SAFETY: each came from `Box::into_raw` and is freed once; nothing else points to them any more.
        unsafe {
            drop(Box::from_raw(self.sched));
            self.classes.iter().for_each(|c| drop(Box::from_raw(*c)));
            self.groups.iter().for_each(|g| drop(Box::from_raw(*g)));
        }
    }
}
