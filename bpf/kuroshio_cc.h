/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the congestion controls of this folder see of the kernel: the few members they touch, relocated when
 * the program is loaded (BPF CO-RE), so that one object fits kernels 6.4 and newer (links
 * of struct_ops, which end with the process that holds them).
 *
 * Windows are in segments, as in the kernel. Per-connection state lies in icsk_ca_priv (104 bytes).
 * Sources: include/net/tcp.h, include/linux/tcp.h, net/ipv4/tcp_cong.c (the functions named here).
 */
#ifndef KUROSHIO_CC_H
#define KUROSHIO_CC_H

#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>

typedef __u8 u8;
typedef __u32 u32;
typedef __s32 s32;
typedef __u64 u64;

#define RELOCATED __attribute__((preserve_access_index))

struct sock {
	int _opaque;
} RELOCATED;

struct inet_connection_sock {
	u8 icsk_ca_state : 5;
	u64 icsk_ca_priv[13];
} RELOCATED;

struct tcp_sock {
	u32 snd_cwnd;
	u32 snd_ssthresh;
	u32 snd_cwnd_cnt;
	u32 snd_cwnd_clamp;
	u32 max_packets_out;
	u32 prior_cwnd;
	u8 is_cwnd_limited : 1;
} RELOCATED;

struct ack_sample {
	u32 pkts_acked;
	s32 rtt_us;
	u32 in_flight;
} RELOCATED;

/* The members that are filled in; libbpf finds them by their names. */
struct tcp_congestion_ops {
	u32 (*ssthresh)(struct sock *sk);
	void (*cong_avoid)(struct sock *sk, u32 ack, u32 acked);
	void (*set_state)(struct sock *sk, u8 new_state);
	void (*pkts_acked)(struct sock *sk, const struct ack_sample *sample);
	u32 (*undo_cwnd)(struct sock *sk);
	char name[16];
	void (*init)(struct sock *sk);
};

/* enum tcp_ca_state: nothing is missing; retransmission time-out. */
#define TCP_CA_OPEN 0
#define TCP_CA_LOSS 4

extern u32 tcp_slow_start(struct tcp_sock *tp, u32 acked) __ksym;
extern void tcp_cong_avoid_ai(struct tcp_sock *tp, u32 w, u32 acked) __ksym;
extern u32 tcp_reno_undo_cwnd(struct sock *sk) __ksym;

static __always_inline struct tcp_sock *tcp_sk(struct sock *sk)
{
	return (struct tcp_sock *)sk;
}

static __always_inline void *ca_of(struct sock *sk)
{
	return ((struct inet_connection_sock *)sk)->icsk_ca_priv;
}

static __always_inline int ca_open(struct sock *sk)
{
	struct inet_connection_sock *icsk = (struct inet_connection_sock *)sk;

	return BPF_CORE_READ_BITFIELD(icsk, icsk_ca_state) == TCP_CA_OPEN;
}

static __always_inline u32 min_u32(u32 a, u32 b)
{
	return a < b ? a : b;
}

static __always_inline u32 max_u32(u32 a, u32 b)
{
	return a > b ? a : b;
}

static __always_inline int in_slow_start(const struct tcp_sock *tp)
{
	return tp->snd_cwnd < tp->snd_ssthresh;
}

/* RFC 2861 as the kernel has it: a window that was not used does not grow. */
static __always_inline int cwnd_limited(const struct tcp_sock *tp)
{
	if (BPF_CORE_READ_BITFIELD(tp, is_cwnd_limited))
		return 1;
	return in_slow_start(tp) && tp->snd_cwnd < 2 * tp->max_packets_out;
}

#endif
