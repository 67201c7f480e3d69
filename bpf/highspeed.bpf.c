// SPDX-License-Identifier: GPL-2.0-only
/*
 * HighSpeed TCP (RFC 3649):
 *
 *     per round trip    w += a(w)
 *     per loss event    w -= b(w) * w
 *
 * The table (RFC 3649, appendix B, made by generate_highspeed.py from the RFC's formulas) holds for each
 * a = 1, 2, ... the largest window with that increase, and its b in 1/256.
 */
#include "kuroshio_cc.h"
#include "highspeed_table.h"

/* Rows of the table that one ACK may move. */
#define STEPS 8

struct highspeed {
	/* Row of the table that the window is in. */
	u32 row;
};

_Static_assert(sizeof(struct highspeed) <= 104, "icsk_ca_priv");

static __always_inline u32 window_of(u32 row)
{
	u64 at = row & (HIGHSPEED_SLOTS - 1);

	/* Keeps the compiler from moving the mask away from its use, where the verifier looks for it. */
	asm volatile("" : "+r"(at));
	return highspeed_rows[at & (HIGHSPEED_SLOTS - 1)].window;
}

SEC("struct_ops")
void BPF_PROG(highspeed_init, struct sock *sk)
{
	struct highspeed *ca = ca_of(sk);

	ca->row = 0;
}

SEC("struct_ops")
void BPF_PROG(highspeed_cong_avoid, struct sock *sk, u32 ack, u32 acked)
{
	struct highspeed *ca = ca_of(sk);
	struct tcp_sock *tp = tcp_sk(sk);
	u32 row;
	int i;

	if (!cwnd_limited(tp))
		return;
	if (in_slow_start(tp)) {
		tcp_slow_start(tp, acked);
		return;
	}
	/*
	 * Finds the row again, a few steps per ACK: the window grows by less than a row in a round trip, and
	 * after a loss the right row is reached within nine ACKs at the most.
	 */
	row = min_u32(ca->row, HIGHSPEED_ROWS - 1);
	for (i = 0; i < STEPS; i++)
		if (row < HIGHSPEED_ROWS - 1 && tp->snd_cwnd > window_of(row))
			row++;
	for (i = 0; i < STEPS; i++)
		if (row > 0 && tp->snd_cwnd <= window_of(row - 1))
			row--;
	ca->row = row;
	if (tp->snd_cwnd < tp->snd_cwnd_clamp) {
		/* a(w) = row + 1 segments for each w acknowledged ones. */
		tp->snd_cwnd_cnt += row + 1;
		if (tp->snd_cwnd_cnt >= tp->snd_cwnd) {
			tp->snd_cwnd_cnt -= tp->snd_cwnd;
			tp->snd_cwnd += 1;
		}
	}
}

SEC("struct_ops")
u32 BPF_PROG(highspeed_ssthresh, struct sock *sk)
{
	struct highspeed *ca = ca_of(sk);
	u32 window = tcp_sk(sk)->snd_cwnd;
	u64 less = (u64)window * highspeed_rows[ca->row & (HIGHSPEED_SLOTS - 1)].decrease_256;

	return max_u32(window - (u32)(less >> 8), 2);
}

SEC("struct_ops")
u32 BPF_PROG(highspeed_undo_cwnd, struct sock *sk)
{
	return tcp_reno_undo_cwnd(sk);
}

SEC(".struct_ops.link")
struct tcp_congestion_ops highspeed = {
	.init = (void *)highspeed_init,
	.ssthresh = (void *)highspeed_ssthresh,
	.cong_avoid = (void *)highspeed_cong_avoid,
	.undo_cwnd = (void *)highspeed_undo_cwnd,
	.name = "highspeed",
};

char _license[] SEC("license") = "GPL";
