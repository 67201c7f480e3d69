// SPDX-License-Identifier: GPL-2.0-only
/*
 * Paces the TCP connections of a cgroup, from their first data on, by the options of their own sockets.
 *
 *	connection established --> first rule that its far end matches --> SO_MAX_PACING_RATE, or SO_PRIORITY (a class)
 *	each round trip        --> the rate again: the segment size and, with a dynamic rule, cwnd / RTT have changed
 *	kuroshio_back          --> every socket that was touched gets back what it had (run once, when all is taken off)
 *
 * A rule's rate is frame level (MAC header to FCS). The kernel counts payload in SO_MAX_PACING_RATE: TCP gives each segment
 * its departure time by that (tcp_update_skb_after_send, net/ipv4/tcp_output.c), which its own timer or sch_fq keeps. So
 *
 *	told = rate / 8 * mss / (mss + TCP header + IP header + 18)
 *
 * A dynamic rule: rate = min(rule, frame * cwnd / RTT) (paper 001). An application's own lower rate stays in force.
 * Only the network namespace of `scope` is touched, whichever processes the cgroup holds.
 */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_core_read.h>

#define RELOCATED __attribute__((preserve_access_index))
#define MAX_RULES 64
#define SOL_SOCKET 1
#define SO_PRIORITY 12
#define SO_MAX_PACING_RATE 47
#define AF_INET 2
#define AF_INET6 10
/* MAC header and FCS. */
#define MAC_AND_FCS 18
#define UNLIMITED 0xffffffffU

/* The layouts of rule, scope and before are those of host/pace/src/program.rs. */
struct rule {
	__u32 address[4];	/* network order; IPv4 as ::ffff:a.b.c.d */
	__u32 mask[4];
	__u64 rate_bps;		/* 0: none */
	__u64 connections;	/* that it was applied to */
	__u32 priority;		/* class; 0: none */
	__u16 port;		/* of the far end; 0: any */
	__u8 dynamic;
	__u8 unused;
};

struct scope {
	__u64 netns_cookie;
	__u32 rules;
	__u32 unused;
};

/* What a socket had. */
struct before {
	__u64 max_pacing_rate;
	__u32 priority;
	__u32 rule;		/* number + 1; 0: not seen before */
	__u64 told;		/* the last rate that was set here; 0: none */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_RULES);
	__type(key, __u32);
	__type(value, struct rule);
} rules SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scope);
} scope SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct before);
} sockets SEC(".maps");

/* What is read of the kernel's structures, found by name when the program is loaded. */
struct sock_common {
	unsigned short skc_family;
} RELOCATED;

struct sock {
	unsigned long sk_max_pacing_rate;
	__u32 sk_priority;
} RELOCATED;

struct tcp_sock {
	__u16 tcp_header_len;
	__u32 mss_cache;
	__u32 snd_cwnd;
	__u32 srtt_us;
} RELOCATED;

struct bpf_iter__tcp {
	struct sock_common *sk_common;
} RELOCATED;

/* The far end in the form of a rule; returns the bytes of the IP header that its packets have. */
static __always_inline __u32 far_end(struct bpf_sock_ops *ops, __u32 address[4])
{
	if (ops->family == AF_INET6) {
		address[0] = ops->remote_ip6[0];
		address[1] = ops->remote_ip6[1];
		address[2] = ops->remote_ip6[2];
		address[3] = ops->remote_ip6[3];
		return !address[0] && !address[1] && address[2] == bpf_htonl(0xffff) ? 20 : 40;
	}
	address[0] = 0;
	address[1] = 0;
	address[2] = bpf_htonl(0xffff);
	address[3] = ops->remote_ip4;
	return 20;
}

static __always_inline int matches(const struct rule *rule, const __u32 address[4], __u16 port)
{
	if (rule->port && rule->port != port)
		return 0;
	return !(((address[0] ^ rule->address[0]) & rule->mask[0]) | ((address[1] ^ rule->address[1]) & rule->mask[1]) |
		 ((address[2] ^ rule->address[2]) & rule->mask[2]) | ((address[3] ^ rule->address[3]) & rule->mask[3]));
}

/* The number of the first rule that matches, + 1; 0: none. */
static __always_inline __u32 rule_for(struct bpf_sock_ops *ops, __u32 count, const __u32 address[4])
{
	__u16 port = bpf_ntohl(ops->remote_port);
	__u32 i;

	for (i = 0; i < MAX_RULES; i++) {
		__u32 key = i;
		struct rule *rule;

		if (i >= count)
			return 0;
		rule = bpf_map_lookup_elem(&rules, &key);
		if (rule && matches(rule, address, port))
			return i + 1;
	}
	return 0;
}

/* What is to be told to the socket, bytes per second; 0 when nothing can be said yet. */
static __always_inline __u64 rate_for(const struct rule *rule, struct tcp_sock *tp, __u32 ip)
{
	__u64 mss = tp->mss_cache, frame = mss + tp->tcp_header_len + ip + MAC_AND_FCS;
	__u64 rate_bps = rule->rate_bps;
	__u64 told;

	if (!mss || mss > 65535)
		return 0;
	/* srtt_us is in eighths of a microsecond: frame * 8 bits * cwnd / (srtt / 8 us). */
	if (rule->dynamic && tp->srtt_us) {
		__u64 window_bps = frame * 8 * tp->snd_cwnd * 8000000 / tp->srtt_us;

		if (window_bps < rate_bps)
			rate_bps = window_bps;
	}
	told = (rate_bps * mss + 4 * frame) / (8 * frame);
	if (!told)
		told = 1;
	return told < UNLIMITED ? told : UNLIMITED - 1;
}

/* 1 when a rule is for this connection. */
static __always_inline int pace(struct bpf_sock_ops *ops, int fresh)
{
	struct bpf_sock *sk = ops->sk;
	__u32 zero = 0, address[4], ip, key;
	struct before *before;
	struct tcp_sock *tp;
	struct scope *s;
	struct rule *rule;
	__u64 told;

	s = bpf_map_lookup_elem(&scope, &zero);
	if (!sk || !s || bpf_get_netns_cookie(ops) != s->netns_cookie)
		return 0;
	ip = far_end(ops, address);
	before = bpf_sk_storage_get(&sockets, sk, 0, 0);
	if (!before) {
		__u32 number = fresh ? rule_for(ops, s->rules, address) : 0;

		if (!number)
			return 0;
		before = bpf_sk_storage_get(&sockets, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
		tp = bpf_skc_to_tcp_sock(sk);
		if (!before || !tp)
			return 0;
		before->max_pacing_rate = ((struct sock *)tp)->sk_max_pacing_rate;
		before->priority = ((struct sock *)tp)->sk_priority;
		before->rule = number;
	}
	key = before->rule - 1;
	rule = bpf_map_lookup_elem(&rules, &key);
	tp = bpf_skc_to_tcp_sock(sk);
	if (!rule || !tp)
		return 0;
	if (fresh) {
		__sync_fetch_and_add(&rule->connections, 1);
		if (rule->priority) {
			int class = rule->priority;

			bpf_setsockopt(ops, SOL_SOCKET, SO_PRIORITY, &class, sizeof(class));
		}
	}
	if (!rule->rate_bps)
		return 1;
	told = rate_for(rule, tp, ip);
	if (told && told != before->told) {
		__u64 now = ((struct sock *)tp)->sk_max_pacing_rate;
		__u32 value = told;

		/* Set by the application since: that is what it has, and ours holds only below it. */
		if (before->told && now != before->told)
			before->max_pacing_rate = now;
		if (told > before->max_pacing_rate)
			value = told = before->max_pacing_rate;
		if (told != now && !bpf_setsockopt(ops, SOL_SOCKET, SO_MAX_PACING_RATE, &value, sizeof(value)))
			before->told = told;
	}
	return 1;
}

SEC("sockops")
int kuroshio_pace(struct bpf_sock_ops *ops)
{
	switch (ops->op) {
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
		if (pace(ops, 1))
			bpf_sock_ops_cb_flags_set(ops, ops->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_RTT_CB_FLAG);
		break;
	case BPF_SOCK_OPS_RTT_CB:
		pace(ops, 0);
		break;
	}
	return 1;
}

SEC("iter/tcp")
int kuroshio_back(struct bpf_iter__tcp *ctx)
{
	struct sock_common *skc = ctx->sk_common;
	struct before *before;
	struct tcp_sock *tp;
	struct sock *sk;
	__u32 rate;
	int class;

	if (!skc)
		return 0;
	tp = bpf_skc_to_tcp_sock(skc);
	if (!tp)
		return 0;
	sk = (struct sock *)tp;
	before = bpf_sk_storage_get(&sockets, sk, 0, 0);
	if (!before)
		return 0;
	if (before->told && sk->sk_max_pacing_rate == before->told) {
		rate = before->max_pacing_rate < UNLIMITED ? before->max_pacing_rate : UNLIMITED;
		bpf_setsockopt(tp, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof(rate));
	}
	class = before->priority;
	if (sk->sk_priority != before->priority)
		bpf_setsockopt(tp, SOL_SOCKET, SO_PRIORITY, &class, sizeof(class));
	bpf_sk_storage_delete(&sockets, sk);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
