// SPDX-License-Identifier: GPL-2.0-only
/*
 * BIC TCP (Xu, Harfoush, Rhee: "Binary Increase Congestion Control for Fast Long-Distance Networks",
 * INFOCOM 2004) with the parameters of Linux 2.6.14, net/ipv4/tcp_bic.c:
 *
 *     below the last maximum    a quarter of the way to it per round trip, at most max_increment
 *     near it                   one segment in smooth_part / 4 round trips
 *     beyond it                 slowly first (the search of a new maximum), then max_increment
 *     loss                      w *= beta / 1024; a maximum lower than the one before is lowered further
 *
 * "cnt" is how many acknowledged segments the window grows by one for.
 */
#include "kuroshio_cc.h"

#define BETA_SCALE 1024U
/* The division of the binary search. */
#define SEARCH 4U
#define ACK_RATIO_SHIFT 4
#define HZ_32_NS (1000000000ULL / 32)

#define LOW_WINDOW 14U
#define MAX_INCREMENT 32U
#define BETA 819U
#define SMOOTH_PART 20U
#define INITIAL_SSTHRESH 100U

struct bic {
	u32 cnt;
	u32 last_max_cwnd;
	u32 last_cwnd;
	/* Segments per ACK in 1/16, smoothed. */
	u32 delayed_ack;
	u64 last_ns;
};

_Static_assert(sizeof(struct bic) <= 104, "icsk_ca_priv");

static __always_inline void forget(struct bic *ca)
{
	ca->cnt = 0;
	ca->last_max_cwnd = 0;
	ca->last_cwnd = 0;
	ca->last_ns = 0;
	ca->delayed_ack = 2 << ACK_RATIO_SHIFT;
}

static __always_inline u32 growth(const struct bic *ca, u32 cwnd)
{
	u32 beyond, away;

	if (cwnd < ca->last_max_cwnd) {
		away = (ca->last_max_cwnd - cwnd) / SEARCH;
		if (away > MAX_INCREMENT)
			return cwnd / MAX_INCREMENT;
		return away <= 1 ? cwnd * SMOOTH_PART / SEARCH : cwnd / away;
	}
	beyond = cwnd - ca->last_max_cwnd;
	if (beyond < SEARCH)
		return cwnd * SMOOTH_PART / SEARCH;
	if (beyond < MAX_INCREMENT * (SEARCH - 1))
		return cwnd * (SEARCH - 1) / beyond;
	return cwnd / MAX_INCREMENT;
}

static __always_inline void update(struct bic *ca, u32 cwnd)
{
	u64 now = bpf_ktime_get_ns();

	if (ca->last_cwnd == cwnd && now - ca->last_ns <= HZ_32_NS)
		return;
	ca->last_cwnd = cwnd;
	ca->last_ns = now;
	if (cwnd <= LOW_WINDOW) {
		ca->cnt = cwnd;
		return;
	}
	ca->cnt = growth(ca, cwnd);
	/* Before the first loss there is no maximum to search for: at least 5 % per round trip. */
	if (ca->last_max_cwnd == 0)
		ca->cnt = min_u32(ca->cnt, 20);
	ca->cnt = (ca->cnt << ACK_RATIO_SHIFT) / max_u32(ca->delayed_ack, 1);
	ca->cnt = max_u32(ca->cnt, 1);
}

SEC("struct_ops")
void BPF_PROG(bic_init, struct sock *sk)
{
	forget(ca_of(sk));
	tcp_sk(sk)->snd_ssthresh = INITIAL_SSTHRESH;
}

SEC("struct_ops")
void BPF_PROG(bic_cong_avoid, struct sock *sk, u32 ack, u32 acked)
{
	struct bic *ca = ca_of(sk);
	struct tcp_sock *tp = tcp_sk(sk);

	if (!cwnd_limited(tp))
		return;
	if (in_slow_start(tp)) {
		acked = tcp_slow_start(tp, acked);
		if (!acked)
			return;
	}
	update(ca, tp->snd_cwnd);
	tcp_cong_avoid_ai(tp, max_u32(ca->cnt, 1), acked);
}

SEC("struct_ops")
u32 BPF_PROG(bic_ssthresh, struct sock *sk)
{
	struct bic *ca = ca_of(sk);
	u32 cwnd = tcp_sk(sk)->snd_cwnd;

	if (cwnd < ca->last_max_cwnd)
		/* Fast convergence: leaves room to the stream that has just come. */
		ca->last_max_cwnd = (u32)((u64)cwnd * (BETA_SCALE + BETA) / (2 * BETA_SCALE));
	else
		ca->last_max_cwnd = cwnd;
	if (cwnd <= LOW_WINDOW)
		return max_u32(cwnd >> 1, 2);
	return max_u32((u32)((u64)cwnd * BETA / BETA_SCALE), 2);
}

SEC("struct_ops")
void BPF_PROG(bic_set_state, struct sock *sk, u8 new_state)
{
	if (new_state == TCP_CA_LOSS)
		forget(ca_of(sk));
}

SEC("struct_ops")
void BPF_PROG(bic_pkts_acked, struct sock *sk, const struct ack_sample *sample)
{
	struct bic *ca = ca_of(sk);

	/* An ACK that ends a recovery covers a whole window: it says nothing about delayed ACKs. */
	if (!ca_open(sk))
		return;
	ca->delayed_ack += sample->pkts_acked - (ca->delayed_ack >> ACK_RATIO_SHIFT);
}

SEC("struct_ops")
u32 BPF_PROG(bic_undo_cwnd, struct sock *sk)
{
	return tcp_reno_undo_cwnd(sk);
}

SEC(".struct_ops.link")
struct tcp_congestion_ops bic = {
	.init = (void *)bic_init,
	.ssthresh = (void *)bic_ssthresh,
	.cong_avoid = (void *)bic_cong_avoid,
	.set_state = (void *)bic_set_state,
	.pkts_acked = (void *)bic_pkts_acked,
	.undo_cwnd = (void *)bic_undo_cwnd,
	.name = "bic",
};

char _license[] SEC("license") = "GPL";
