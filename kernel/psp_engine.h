/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * PSPacer's engine: when the next frame may start, and how large the gap before it is. Plain C, no kernel headers.
 *
 *	free' = start + frame * 8 * 10^12 / rate	exact: a remainder in units of 1 / rate is carried
 *	start = max(free, ready)			of a class; with a ceiling, max(that, free of the group)
 *
 * The wire is a clock of bytes: each frame handed to the device moves it by (max(frame, 64) + 20) * ps_per_byte
 * (preamble 8, gap 12), each gap frame as well. A frame may leave once the wire has reached its start; until then
 * gap frames fill the wire, or, in timer pacing, it stays idle. What is late because another frame held the wire
 * keeps its place in the schedule; what is idle earns no credit.
 *
 * Who is next, at the wire's time:
 *
 *	1. of the waiting paced classes whose start has come, the one with the earliest start;
 *	   of equal starts the earlier by the class's own clock, then the lower number
 *	2. else an unpaced frame, classes in turn: a paced one is then late by this one frame at most
 *	3. else a gap frame of ceil((earliest start - wire) / ps_per_byte) bytes of wire, 84 at least
 *
 * Where the exact gap is below 84 bytes (above 935.9 Mbps for frames of 1518 bytes at 1 Gbps) a frame follows a gap of
 * 84 or none: the mean rate is kept, distances vary by 84 bytes.
 *
 * Time is picoseconds since an epoch of the caller (2^64 ps are 213 days: psp_rebase), a frame is counted from MAC
 * header to FCS, a rate is bit/s at that level. The same arithmetic as core/src/pace in Rust; both are checked on
 * core/vectors. The caller serialises all calls on one struct psp_sched.
 *
 * Source: PSPacer (Takano et al., "gap packets"), slides of the project's paper 001; that a window's round trip is
 * counted without the time in the own queue: PSPacer 2, estimate_target_rate.
 */
#ifndef PSP_ENGINE_H
#define PSP_ENGINE_H

#include "psp_types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Picoseconds of a byte at 1 bit/s. */
#define PSP_PS_BITS_PER_BYTE 8000000000000ULL
/* Rates, in bit/s. */
#define PSP_RATE_MIN 8000ULL
#define PSP_RATE_MAX 800000000000ULL
/* Bytes: FCS; smallest frame; preamble and smallest gap; smallest limit of a gap frame. */
#define PSP_FCS 4u
#define PSP_FRAME_MIN 64u
#define PSP_L1_OVERHEAD 20u
#define PSP_GAP_LIMIT_MIN 168u
/* Largest frame that is counted (larger ones count as this), so that no product exceeds 64 bits. */
#define PSP_FRAME_MAX 1048576u
/* The wire's speed in ps per byte: 800 Gbps to 10 Mbps. */
#define PSP_PS_PER_BYTE_MIN 10ULL
#define PSP_PS_PER_BYTE_MAX 800000ULL
/*
 * A wire whose clock is faster than the caller's (crystals differ by 100 ppm at most) runs ahead of it for ever: it is
 * forgiven half of ahead_max_ps in so many ps, 0.5 % where that is 100 ms.
 */
#define PSP_FORGIVE_PS 10000000000000ULL
/* A time beyond this should be rebased: 53 days. What stays then, so that clocks that lag keep their distance: 1 h. */
#define PSP_REBASE_AT_PS 0x4000000000000000ULL
#define PSP_REBASE_KEEP_NS 3600000000000ULL

/* Stands at at_ps + rem / rate_bps, rem < rate_bps. A rate of 0 takes no time. */
struct psp_clock {
	u64 at_ps;
	u64 rem;
	u64 rate_bps;
};

void psp_clock_init(struct psp_clock *clock, u64 rate_bps);
/* Moves on to now_ps when it stands before it. */
void psp_clock_catch_up(struct psp_clock *clock, u64 now_ps);
/* Moves on by the time of bytes. Saturates. */
void psp_clock_advance(struct psp_clock *clock, u32 bytes);
/* From here on; a fraction of a ps is rounded up, so that the change makes nothing earlier. */
void psp_clock_set_rate(struct psp_clock *clock, u64 rate_bps);
/* Places a frame that is ready at ready_ps; returns its start. */
u64 psp_depart(struct psp_clock *clock, u64 ready_ps, u32 frame_bytes);

/* The gap after a frame as gap frames: `larger` of size + 1, the others of size. */
struct psp_gap {
	u64 frames;
	u64 size;
	u64 larger;
};

/* ceil(frame * (max / target - 1)) in frames of at most limit: the paper's formula. False: out of range. */
bool psp_gap_plain(u32 frame_bytes, u64 target_bps, u64 max_bps, u32 limit_bytes, struct psp_gap *gap);
/* Frame, gap frames and their 20 bytes each take ceil(frame * line / target) of the wire. False: out of range. */
bool psp_gap_on_wire(u32 frame_bytes, u64 target_bps, u64 line_bps, u32 limit_bytes, struct psp_gap *gap);

/*
 * The time that frames wait in this host before the wire, in 1/16 us: smoothed by 1/16, as PSPacer does it. wait_us is
 * counted as PSP_WAIT_MAX_US at most.
 */
#define PSP_WAIT_MAX_US 10000000u
u32 psp_smooth_wait(u32 wait_16us, u32 wait_us);
/*
 * The round trip without that wait, for the rate of a window: max(srtt - wait, min(least, srtt)). What waits here is no
 * part of the path, and a rate that counts it can never make it shorter. least_us: the shortest one measured, 0: none.
 */
u32 psp_path_rtt(u32 srtt_us, u32 least_us, u32 wait_16us);

/* Bit/s of cwnd frames per round trip, within [PSP_RATE_MIN, max_bps]; max_bps where there is no sample yet (0). */
u64 psp_dynamic_rate(u32 cwnd_frames, u32 frame_bytes, u32 rtt_us, u64 max_bps);

/* A ceiling of the classes that point to it. */
struct psp_group {
	struct psp_clock clock;
};

/* A class: a clock and the frame at the head of its queue. */
struct psp_class {
	struct psp_clock clock;		/* rate 0: no rate of its own */
	struct psp_group *group;	/* or none */
	u32 number;			/* decides ties */
	u32 head_bytes;			/* frame at the head; 0: none waits */
	u64 lost_ps;			/* given up because the wire was overbooked */
	struct psp_class *prev, *next;	/* those that wait */
};

struct psp_sched {
	u64 wire_ps;			/* up to here the wire is filled */
	u64 ps_per_byte;
	u64 slack_ps;			/* timer pacing: so late a wake-up is made good; 0 with gap frames */
	u64 ahead_max_ps;		/* gap frames: the wire may be filled so far beyond now */
	u64 forgiven_ps;		/* when it was last found further ahead: taken for a faster clock */
	u32 gap_limit;			/* largest gap frame */
	u32 classes;			/* paced ones there are, waiting or not: the caller's count */
	u32 largest;			/* frame seen, for the bound on lateness */
	struct psp_class *paced;
	struct psp_class *unpaced;	/* the next in turn */
};

enum psp_what {
	PSP_IDLE,	/* nothing waits */
	PSP_FRAME,	/* the head of cls */
	PSP_GAP,	/* a gap frame of gap_bytes, or idle until start_ps; cls is waited for */
};

struct psp_next {
	enum psp_what what;
	u32 gap_bytes;
	u64 start_ps;
	struct psp_class *cls;
};

void psp_init(struct psp_sched *sched, u64 ps_per_byte, u32 gap_limit_bytes);
void psp_class_init(struct psp_class *cls, u32 number, u64 rate_bps, struct psp_group *group);
/* The wire was idle up to now_ps: before the first frame after a pause, and at each call in timer pacing. */
void psp_resync(struct psp_sched *sched, u64 now_ps);
/* A frame is at the head of a class that was empty. */
void psp_wake(struct psp_sched *sched, struct psp_class *cls, u32 frame_bytes);
/* The class has nothing to send (any more): before it is emptied, changed from paced to unpaced, or removed. */
void psp_sleep(struct psp_sched *sched, struct psp_class *cls);
/* Who is next. Changes nothing but the place of classes that lost theirs. */
void psp_next(struct psp_sched *sched, struct psp_next *next);
/*
 * The head of cls, of frame_bytes, goes to the device; next_bytes is the frame behind it, 0 if there is none. Returns
 * its start. The class may have been put to sleep since psp_next.
 */
u64 psp_sent(struct psp_sched *sched, struct psp_class *cls, u32 frame_bytes, u32 next_bytes);
/* A gap frame goes to the device. */
void psp_gap_sent(struct psp_sched *sched, u32 gap_bytes);

enum psp_ahead {
	PSP_IN_TIME,	/* no more is under way than a ring holds */
	PSP_SKEWED,	/* more, for the first time in PSP_FORGIVE_PS: a faster clock */
	PSP_RUNAWAY,	/* more, and soon: the device takes gap frames without their taking time */
};

/* Before a gap frame. Unless in time the caller's epoch has to move back by *back_ps, so that now comes nearer. */
enum psp_ahead psp_look_ahead(struct psp_sched *sched, u64 now_ps, u64 *back_ps);
/*
 * By how many ns the epoch should move on when passed_ns have passed since it: 0 while neither they nor the wire's time
 * are near the end of what ps can count. The wire's time alone stands still while nothing is sent.
 */
u64 psp_rebase_due_ns(const struct psp_sched *sched, u64 passed_ns);
/* Saturates after 213 days. */
u64 psp_ns_to_ps(u64 ns);
/* Takes by_ps off the time of the wire and of a clock; the caller does so for every clock. */
void psp_rebase(struct psp_sched *sched, u64 by_ps);
void psp_clock_rebase(struct psp_clock *clock, u64 by_ps);

/* True when the class has to wait for a clock. */
static inline bool psp_is_paced(const struct psp_class *cls)
{
	return cls->clock.rate_bps || cls->group;
}

/* Bytes of the wire that a frame takes. */
static inline u32 psp_wire_bytes(u32 frame_bytes)
{
	return (frame_bytes < PSP_FRAME_MIN ? PSP_FRAME_MIN : frame_bytes) + PSP_L1_OVERHEAD;
}

#ifdef __cplusplus
}
#endif

#endif
