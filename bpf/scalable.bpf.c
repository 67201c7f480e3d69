// SPDX-License-Identifier: GPL-2.0-only
/*
 * Scalable TCP (T. Kelly, "Scalable TCP: Improving Performance in Highspeed Wide Area Networks", 2003):
 *
 *     per acknowledged segment   w += 0.01      (at least Reno's 1/w)
 *     per loss event             w -= w / 8
 *
 * As net/ipv4/tcp_scalable.c: one segment more for every min(w, 100) acknowledged ones.
 */
#include "kuroshio_cc.h"

#define AI_COUNT 100U
#define MD_SHIFT 3

SEC("struct_ops")
u32 BPF_PROG(scalable_ssthresh, struct sock *sk)
{
	u32 window = tcp_sk(sk)->snd_cwnd;

	return max_u32(window - (window >> MD_SHIFT), 2);
}

SEC("struct_ops")
void BPF_PROG(scalable_cong_avoid, struct sock *sk, u32 ack, u32 acked)
{
	struct tcp_sock *tp = tcp_sk(sk);

	if (!cwnd_limited(tp))
		return;
	if (in_slow_start(tp)) {
		acked = tcp_slow_start(tp, acked);
		if (!acked)
			return;
	}
	tcp_cong_avoid_ai(tp, min_u32(tp->snd_cwnd, AI_COUNT), acked);
}

SEC("struct_ops")
u32 BPF_PROG(scalable_undo_cwnd, struct sock *sk)
{
	return tcp_reno_undo_cwnd(sk);
}

SEC(".struct_ops.link")
struct tcp_congestion_ops scalable = {
	.ssthresh = (void *)scalable_ssthresh,
	.cong_avoid = (void *)scalable_cong_avoid,
	.undo_cwnd = (void *)scalable_undo_cwnd,
	.name = "scalable",
};

char _license[] SEC("license") = "GPL";
