// SPDX-License-Identifier: GPL-2.0-only
/* See psp_engine.h for the model. */
#include "psp_engine.h"

static u64 max_u64(u64 a, u64 b)
{
	return a > b ? a : b;
}

static u64 add_saturating(u64 a, u64 b)
{
	return a + b < a ? PSP_U64_MAX : a + b;
}

static u64 div_ceil(u64 n, u64 d)
{
	u64 rem, q = PSP_DIV_REM(n, d, &rem);

	return q + (rem != 0);
}

void psp_clock_init(struct psp_clock *clock, u64 rate_bps)
{
	clock->at_ps = 0;
	clock->rem = 0;
	clock->rate_bps = rate_bps;
}

void psp_clock_catch_up(struct psp_clock *clock, u64 now_ps)
{
	if (now_ps > clock->at_ps) {
		clock->at_ps = now_ps;
		clock->rem = 0;
	}
}

void psp_clock_advance(struct psp_clock *clock, u32 bytes)
{
	u64 n, q;

	if (!clock->rate_bps)
		return;
	if (bytes > PSP_FRAME_MAX)
		bytes = PSP_FRAME_MAX;
	/* 2^20 * 8 * 10^12 is 2^62.9, the remainder below 2^40. */
	n = (u64)bytes * PSP_PS_BITS_PER_BYTE + clock->rem;
	q = PSP_DIV_REM(n, clock->rate_bps, &clock->rem);
	clock->at_ps = add_saturating(clock->at_ps, q);
}

void psp_clock_set_rate(struct psp_clock *clock, u64 rate_bps)
{
	if (rate_bps == clock->rate_bps)
		return;
	if (clock->rem)
		clock->at_ps = add_saturating(clock->at_ps, 1);
	clock->rem = 0;
	clock->rate_bps = rate_bps;
}

u64 psp_depart(struct psp_clock *clock, u64 ready_ps, u32 frame_bytes)
{
	u64 start;

	psp_clock_catch_up(clock, ready_ps);
	start = clock->at_ps;
	psp_clock_advance(clock, frame_bytes);
	return start;
}

/* bytes in as few frames as possible, each taking overhead of them and at most limit of its own. */
static bool split(u64 bytes, u32 overhead, u32 limit, struct psp_gap *gap)
{
	gap->frames = 0;
	gap->size = 0;
	gap->larger = 0;
	if (limit < PSP_GAP_LIMIT_MIN)
		return false;
	if (!bytes)
		return true;
	bytes = max_u64(bytes, PSP_FRAME_MIN + overhead);
	gap->frames = div_ceil(bytes, (u64)limit + overhead);
	/* Two frames or more have more than half of limit + overhead each: at least 64 of their own. */
	gap->size = PSP_DIV_REM(bytes, gap->frames, &gap->larger) - overhead;
	return true;
}

bool psp_gap_plain(u32 frame_bytes, u64 target_bps, u64 max_bps, u32 limit_bytes, struct psp_gap *gap)
{
	if (!target_bps || max_bps > PSP_RATE_MAX || frame_bytes > PSP_FRAME_MAX)
		return false;
	if (target_bps >= max_bps)
		return split(0, 0, limit_bytes, gap);
	return split(div_ceil(frame_bytes * (max_bps - target_bps), target_bps), 0, limit_bytes, gap);
}

bool psp_gap_on_wire(u32 frame_bytes, u64 target_bps, u64 line_bps, u32 limit_bytes, struct psp_gap *gap)
{
	u64 share, own;

	if (!target_bps || line_bps > PSP_RATE_MAX || frame_bytes > PSP_FRAME_MAX)
		return false;
	if (frame_bytes < PSP_FRAME_MIN)
		frame_bytes = PSP_FRAME_MIN;
	share = div_ceil(frame_bytes * line_bps, target_bps);
	own = frame_bytes + PSP_L1_OVERHEAD;
	return split(share > own ? share - own : 0, PSP_L1_OVERHEAD, limit_bytes, gap);
}

u32 psp_smooth_wait(u32 wait_16us, u32 wait_us)
{
	if (wait_us > PSP_WAIT_MAX_US)
		wait_us = PSP_WAIT_MAX_US;
	return wait_16us - wait_16us / 16 + wait_us;
}

u32 psp_path_rtt(u32 srtt_us, u32 least_us, u32 wait_16us)
{
	u32 wait_us = wait_16us / 16;
	u32 path_us = srtt_us > wait_us ? srtt_us - wait_us : 0;

	if (least_us > srtt_us)
		least_us = srtt_us;
	return path_us > least_us ? path_us : least_us;
}

u64 psp_dynamic_rate(u32 cwnd_frames, u32 frame_bytes, u32 rtt_us, u64 max_bps)
{
	u64 window = (u64)cwnd_frames * frame_bytes;
	u64 per_us, rem, rate;

	if (!window || !rtt_us)
		return max_bps;
	/* window * 8 * 10^6 / rtt without the product, which may exceed 64 bits. */
	per_us = PSP_DIV_REM(window, (u64)rtt_us, &rem);
	if (per_us > PSP_DIV(max_bps, 8000000ULL))
		return max_bps;
	rate = per_us * 8000000ULL + PSP_DIV(rem * 8000000ULL, (u64)rtt_us);
	if (rate < PSP_RATE_MIN)
		rate = PSP_RATE_MIN;
	return rate < max_bps ? rate : max_bps;
}

void psp_init(struct psp_sched *sched, u64 ps_per_byte, u32 gap_limit_bytes)
{
	sched->wire_ps = 0;
	sched->ps_per_byte = ps_per_byte;
	sched->slack_ps = 0;
	sched->ahead_max_ps = PSP_U64_MAX;
	sched->forgiven_ps = 0;
	sched->gap_limit = gap_limit_bytes < PSP_GAP_LIMIT_MIN ? PSP_GAP_LIMIT_MIN : gap_limit_bytes;
	sched->classes = 0;
	sched->largest = PSP_FRAME_MIN;
	sched->paced = NULL;
	sched->unpaced = NULL;
}

void psp_class_init(struct psp_class *cls, u32 number, u64 rate_bps, struct psp_group *group)
{
	psp_clock_init(&cls->clock, rate_bps);
	cls->group = group;
	cls->number = number;
	cls->head_bytes = 0;
	cls->lost_ps = 0;
	cls->prev = NULL;
	cls->next = NULL;
}

void psp_resync(struct psp_sched *sched, u64 now_ps)
{
	sched->wire_ps = max_u64(sched->wire_ps, now_ps);
}

/* A ring; new ones come last. */
static void link_class(struct psp_class **ring, struct psp_class *cls)
{
	struct psp_class *first = *ring;

	if (!first) {
		cls->prev = cls;
		cls->next = cls;
		*ring = cls;
		return;
	}
	cls->prev = first->prev;
	cls->next = first;
	first->prev->next = cls;
	first->prev = cls;
}

static void unlink_class(struct psp_class **ring, struct psp_class *cls)
{
	if (cls->next == cls)
		*ring = NULL;
	else if (*ring == cls)
		*ring = cls->next;
	cls->prev->next = cls->next;
	cls->next->prev = cls->prev;
	cls->prev = NULL;
	cls->next = NULL;
}

static void set_head(struct psp_sched *sched, struct psp_class *cls, u32 frame_bytes)
{
	if (frame_bytes > PSP_FRAME_MAX)
		frame_bytes = PSP_FRAME_MAX;
	if (frame_bytes > sched->largest)
		sched->largest = frame_bytes;
	cls->head_bytes = frame_bytes;
}

void psp_wake(struct psp_sched *sched, struct psp_class *cls, u32 frame_bytes)
{
	if (cls->head_bytes || !frame_bytes)
		return;
	set_head(sched, cls, frame_bytes);
	psp_clock_catch_up(&cls->clock, sched->wire_ps);
	link_class(psp_is_paced(cls) ? &sched->paced : &sched->unpaced, cls);
}

void psp_sleep(struct psp_sched *sched, struct psp_class *cls)
{
	if (!cls->head_bytes)
		return;
	cls->head_bytes = 0;
	unlink_class(psp_is_paced(cls) ? &sched->paced : &sched->unpaced, cls);
}

static u64 start_of(const struct psp_class *cls)
{
	return cls->group ? max_u64(cls->clock.at_ps, cls->group->clock.at_ps) : cls->clock.at_ps;
}

/*
 * Rates that fit the wire make a frame late by one frame of each other class and one unpaced one at most. Beyond that
 * the wire is overbooked, and what is behind gives up its place: else it would go unpaced as soon as others stop.
 */
static u64 latest_start(const struct psp_sched *sched)
{
	u64 frames = (u64)sched->classes + 2;
	u64 bound = frames * (psp_wire_bytes(sched->largest) + PSP_FRAME_MIN + PSP_L1_OVERHEAD) * sched->ps_per_byte;

	bound += sched->slack_ps;
	return sched->wire_ps > bound ? sched->wire_ps - bound : 0;
}

static bool before(const struct psp_class *a, u64 a_start, const struct psp_class *b, u64 b_start)
{
	if (a_start != b_start)
		return a_start < b_start;
	if (a->clock.at_ps != b->clock.at_ps)
		return a->clock.at_ps < b->clock.at_ps;
	return a->number < b->number;
}

static void give_up(struct psp_class *cls, u64 floor_ps)
{
	u64 start = start_of(cls);

	if (start >= floor_ps)
		return;
	cls->lost_ps = add_saturating(cls->lost_ps, floor_ps - start);
	psp_clock_catch_up(&cls->clock, floor_ps);
	if (cls->group)
		psp_clock_catch_up(&cls->group->clock, floor_ps);
}

/* The first of gap frames that fill the wire up to start_ps in equal parts. */
static u32 gap_before(const struct psp_sched *sched, u64 start_ps)
{
	u64 bytes = div_ceil(start_ps - sched->wire_ps, sched->ps_per_byte);
	u64 frames;

	bytes = max_u64(bytes, PSP_FRAME_MIN + PSP_L1_OVERHEAD);
	frames = div_ceil(bytes, sched->gap_limit + PSP_L1_OVERHEAD);
	return (u32)div_ceil(bytes, frames) - PSP_L1_OVERHEAD;
}

void psp_next(struct psp_sched *sched, struct psp_next *next)
{
	struct psp_class *best = NULL, *cls = sched->paced;
	u64 floor_ps = latest_start(sched);
	u64 best_start = 0;

	if (cls) {
		do {
			u64 start;

			give_up(cls, floor_ps);
			start = start_of(cls);
			if (!best || before(cls, start, best, best_start)) {
				best = cls;
				best_start = start;
			}
			cls = cls->next;
		} while (cls != sched->paced);
	}
	next->gap_bytes = 0;
	next->start_ps = best_start;
	next->cls = best;
	if (best && best_start <= sched->wire_ps) {
		next->what = PSP_FRAME;
	} else if (sched->unpaced) {
		next->what = PSP_FRAME;
		next->cls = sched->unpaced;
		next->start_ps = sched->wire_ps;
	} else if (best) {
		next->what = PSP_GAP;
		next->gap_bytes = gap_before(sched, best_start);
	} else {
		next->what = PSP_IDLE;
	}
}

u64 psp_sent(struct psp_sched *sched, struct psp_class *cls, u32 frame_bytes, u32 next_bytes)
{
	u32 bytes = frame_bytes < PSP_FRAME_MIN ? PSP_FRAME_MIN : frame_bytes;
	u64 start = start_of(cls);

	if (psp_is_paced(cls)) {
		psp_depart(&cls->clock, start, bytes);
		if (cls->group)
			psp_depart(&cls->group->clock, start, bytes);
	} else {
		start = sched->wire_ps;
		if (cls->head_bytes)
			sched->unpaced = cls->next;
	}
	sched->wire_ps = add_saturating(sched->wire_ps, psp_wire_bytes(bytes) * sched->ps_per_byte);
	if (!next_bytes) {
		psp_sleep(sched, cls);
		return start;
	}
	if (!cls->head_bytes)
		link_class(psp_is_paced(cls) ? &sched->paced : &sched->unpaced, cls);
	set_head(sched, cls, next_bytes);
	return start;
}

void psp_gap_sent(struct psp_sched *sched, u32 gap_bytes)
{
	sched->wire_ps = add_saturating(sched->wire_ps, psp_wire_bytes(gap_bytes) * sched->ps_per_byte);
}

enum psp_ahead psp_look_ahead(struct psp_sched *sched, u64 now_ps, u64 *back_ps)
{
	u64 ahead_ps = sched->wire_ps > now_ps ? sched->wire_ps - now_ps : 0;

	*back_ps = 0;
	if (ahead_ps <= sched->ahead_max_ps)
		return PSP_IN_TIME;
	if (now_ps < add_saturating(sched->forgiven_ps, PSP_FORGIVE_PS)) {
		*back_ps = ahead_ps;
		return PSP_RUNAWAY;
	}
	*back_ps = ahead_ps - sched->ahead_max_ps / 2;
	sched->forgiven_ps = now_ps + *back_ps;
	return PSP_SKEWED;
}

u64 psp_ns_to_ps(u64 ns)
{
	return ns > PSP_DIV(PSP_U64_MAX, 1000ULL) ? PSP_U64_MAX : ns * 1000;
}

u64 psp_rebase_due_ns(const struct psp_sched *sched, u64 passed_ns)
{
	if (sched->wire_ps < PSP_REBASE_AT_PS && passed_ns < PSP_DIV(PSP_REBASE_AT_PS, 1000ULL))
		return 0;
	return max_u64(PSP_DIV(sched->wire_ps, 1000ULL), passed_ns) - PSP_REBASE_KEEP_NS;
}

void psp_clock_rebase(struct psp_clock *clock, u64 by_ps)
{
	if (clock->at_ps < by_ps) {
		clock->at_ps = 0;
		clock->rem = 0;
	} else {
		clock->at_ps -= by_ps;
	}
}

void psp_rebase(struct psp_sched *sched, u64 by_ps)
{
	sched->wire_ps = sched->wire_ps > by_ps ? sched->wire_ps - by_ps : 0;
	sched->forgiven_ps = sched->forgiven_ps > by_ps ? sched->forgiven_ps - by_ps : 0;
}
