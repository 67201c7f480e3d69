// SPDX-License-Identifier: GPL-2.0-only
/*
 * Says to the kernel's "psp" what tc would not let pass.
 *
 *	netlink DEV qdisc|class add|change|replace|del HANDLE PARENT [NAME:FORM=VALUE]...
 *	netlink DEV fuzz SEED COUNT
 *
 * The first form sends one message and tells the answer. HANDLE and PARENT are 32-bit numbers (0x10001 is 1:1). NAME is
 * an attribute's name (default, pace, phy, mode, rate, used, why, wire, pad) or number, or "raw": bytes behind the
 * attributes; FORM u8, u16, u32, u64 or hex. "none" in place of attributes leaves TCA_OPTIONS out.
 *
 * The second sends COUNT messages from a seeded generator: options cut short, too long, nested where nothing nests, with
 * lengths that lie, unknown and doubled attributes, and some that are right, to a root qdisc 1: and classes 1:1 to 1:7.
 * One kind of message has exactly one fault: each of these has to be refused, and with a reason (extack).
 *
 * Exit code: 0 taken (fuzz: held), 2 refused by the kernel, 1 anything else (fuzz: a fault was taken, or no reason).
 */
#include <errno.h>
#include <linux/netlink.h>
#include <linux/pkt_sched.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "../psp_netlink.h"

#define ROOM 4096
#define HANDLE 0x10000u
/* Types 0 to 9 are psp's; some beyond, which it does not know. */
#define TYPES_TRIED 14

struct message {
	struct nlmsghdr n;
	struct tcmsg t;
	uint8_t room[ROOM];
};

struct answer {
	int error;		/* 0 or an errno */
	char reason[160];	/* extack's text, or empty */
};

static int netlink_fd, ifindex;
static uint32_t sequence;
static uint64_t state;

static void die(const char *what)
{
	perror(what);
	exit(1);
}

/* ---- messages ---- */

static void begin(struct message *m, int type, int flags, uint32_t handle, uint32_t parent)
{
	memset(m, 0, sizeof(*m));
	m->n.nlmsg_len = NLMSG_LENGTH(sizeof(m->t));
	m->n.nlmsg_type = type;
	m->n.nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK | flags;
	m->t.tcm_family = AF_UNSPEC;
	m->t.tcm_ifindex = ifindex;
	m->t.tcm_handle = handle;
	m->t.tcm_parent = parent;
}

static void *at_end(struct message *m)
{
	return (uint8_t *)m + NLMSG_ALIGN(m->n.nlmsg_len);
}

static void put_raw(struct message *m, const void *data, size_t len)
{
	if (NLMSG_ALIGN(m->n.nlmsg_len) + NLMSG_ALIGN(len) > sizeof(*m) - 64)
		return;
	memcpy(at_end(m), data, len);
	m->n.nlmsg_len = NLMSG_ALIGN(m->n.nlmsg_len) + len;
}

static struct nlattr *put(struct message *m, int type, const void *data, size_t len)
{
	struct nlattr *a = at_end(m);
	struct nlattr head = { .nla_len = NLA_HDRLEN + len, .nla_type = type };

	put_raw(m, &head, sizeof(head));
	put_raw(m, data, len);
	m->n.nlmsg_len = NLMSG_ALIGN(m->n.nlmsg_len);
	return a;
}

static struct nlattr *nest_begin(struct message *m, int type)
{
	return put(m, type, "", 0);
}

static void nest_end(struct message *m, struct nlattr *nest)
{
	nest->nla_len = (uint8_t *)at_end(m) - (uint8_t *)nest;
}

static void read_reason(const struct nlmsghdr *h, struct answer *answer)
{
	const uint8_t *at = (const uint8_t *)h + NLMSG_LENGTH(sizeof(struct nlmsgerr));
	const uint8_t *end = (const uint8_t *)h + h->nlmsg_len;

	while (at + NLA_HDRLEN <= end) {
		const struct nlattr *a = (const struct nlattr *)at;

		if (a->nla_len < NLA_HDRLEN || at + a->nla_len > end)
			return;
		if ((a->nla_type & NLA_TYPE_MASK) == NLMSGERR_ATTR_MSG)
			snprintf(answer->reason, sizeof(answer->reason), "%.*s", (int)(a->nla_len - NLA_HDRLEN),
				 (const char *)at + NLA_HDRLEN);
		at += NLA_ALIGN(a->nla_len);
	}
}

static struct answer ask(struct message *m)
{
	static uint8_t reply[32768] __attribute__((aligned(8)));
	struct answer answer = { 0 };
	struct nlmsghdr *h = (struct nlmsghdr *)reply;
	ssize_t len;

	m->n.nlmsg_seq = ++sequence;
	/* A length that lies is sent with as many bytes as it names, 16 at least: less is no message. */
	len = m->n.nlmsg_len < 16 ? 16 : m->n.nlmsg_len;
	if (send(netlink_fd, m, len, 0) < 0)
		die("netlink: send");
	do {
		len = recv(netlink_fd, reply, sizeof(reply), 0);
		if (len < (ssize_t)NLMSG_LENGTH(sizeof(struct nlmsgerr)))
			die("netlink: recv");
	} while (h->nlmsg_seq != sequence || h->nlmsg_type != NLMSG_ERROR);
	answer.error = -((struct nlmsgerr *)NLMSG_DATA(h))->error;
	if (h->nlmsg_flags & NLM_F_ACK_TLVS)
		read_reason(h, &answer);
	return answer;
}

static void open_netlink(const char *dev)
{
	int on = 1;

	ifindex = if_nametoindex(dev);
	if (!ifindex)
		die(dev);
	netlink_fd = socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE);
	if (netlink_fd < 0 || setsockopt(netlink_fd, SOL_NETLINK, NETLINK_EXT_ACK, &on, sizeof(on)) ||
	    setsockopt(netlink_fd, SOL_NETLINK, NETLINK_CAP_ACK, &on, sizeof(on)))
		die("netlink");
}

/* ---- one message ---- */

static int attribute_type(const char *name)
{
	static const char *const names[] = { "", "default", "pace", "phy", "mode", "rate", "used", "why", "wire", "pad" };
	size_t i;

	for (i = 1; i < sizeof(names) / sizeof(names[0]); i++)
		if (!strcmp(name, names[i]))
			return i;
	return strtol(name, NULL, 0);
}

static int put_text(struct message *m, char *text)
{
	char *form = strchr(text, ':'), *value = form ? strchr(form, '=') : NULL;
	uint8_t bytes[256];
	uint64_t number;
	size_t len = 0;

	if (!value)
		return -1;
	*form++ = 0;
	*value++ = 0;
	number = strtoull(value, NULL, 0);
	if (!strcmp(form, "hex")) {
		for (; value[0] && value[1] && len < sizeof(bytes); value += 2)
			sscanf(value, "%2hhx", &bytes[len++]);
	} else if (form[0] == 'u') {
		len = atoi(form + 1) / 8;
		if (len != 1 && len != 2 && len != 4 && len != 8)
			return -1;
		/* Little-endian machines alone. */
		memcpy(bytes, &number, len);
	} else {
		return -1;
	}
	if (!strcmp(text, "raw"))
		put_raw(m, bytes, len);
	else
		put(m, attribute_type(text), bytes, len);
	return 0;
}

static int one(int argc, char **argv)
{
	static const struct { const char *word; int is_new, flags; } verbs[] = {
		{ "add", 1, NLM_F_CREATE | NLM_F_EXCL }, { "change", 1, 0 },
		{ "replace", 1, NLM_F_CREATE | NLM_F_REPLACE }, { "del", 0, 0 },
	};
	bool class = argc > 0 && !strcmp(argv[0], "class");
	struct answer answer;
	struct message m;
	size_t v = 0;
	int i;

	if (argc < 4)
		return 1;
	while (v < 4 && strcmp(argv[1], verbs[v].word))
		v++;
	if (v == 4)
		return 1;
	begin(&m, class ? (verbs[v].is_new ? RTM_NEWTCLASS : RTM_DELTCLASS) :
			  (verbs[v].is_new ? RTM_NEWQDISC : RTM_DELQDISC),
	      verbs[v].flags, strtoul(argv[2], NULL, 0), strtoul(argv[3], NULL, 0));
	put(&m, TCA_KIND, "psp", 4);
	if (argc < 5 || strcmp(argv[4], "none")) {
		struct nlattr *nest = nest_begin(&m, TCA_OPTIONS);

		for (i = 4; i < argc; i++)
			if (put_text(&m, argv[i]))
				return 1;
		nest->nla_len = (uint8_t *)&m + m.n.nlmsg_len - (uint8_t *)nest;
	}
	answer = ask(&m);
	if (answer.error)
		printf("refused: %s: %s\n", strerror(answer.error), answer.reason[0] ? answer.reason : "(no reason)");
	return answer.error ? 2 : 0;
}

/* ---- many ---- */

static uint64_t random64(void)
{
	/* xorshift64*, Vigna 2014. */
	state ^= state >> 12;
	state ^= state << 25;
	state ^= state >> 27;
	return state * 0x2545f4914f6cdd1dULL;
}

static uint32_t below(uint32_t n)
{
	return (random64() >> 32) % n;
}

static uint64_t odd_number(void)
{
	static const uint64_t odd[] = {
		0, 1, 2, 3, 255, 7999, 8000, 65535, 65536, 10000000, 500000000, 1000000000, 1000000001, 56000000000,
		800000000000, 800000000001, 0x7fffffff, 0xffffffff, INT64_MAX, UINT64_MAX,
	};

	return below(4) ? odd[below(sizeof(odd) / sizeof(odd[0]))] : random64() >> below(64);
}

static void put_right(struct message *m, bool class)
{
	uint64_t rate = 8000 + below(1000) * 900000ULL;
	uint8_t byte = below(3);
	uint32_t minor = below(8);

	if (class) {
		put(m, TCA_PSP_MODE, &byte, 1);
		if (byte)
			put(m, TCA_PSP_RATE, &rate, 8);
		return;
	}
	put(m, TCA_PSP_PACE, &byte, 1);
	put(m, TCA_PSP_DEFAULT, &minor, 4);
}

static void put_anything(struct message *m, int depth)
{
	int count = below(6);

	while (count--) {
		uint64_t data[4] = { odd_number(), random64(), odd_number(), random64() };
		static const uint8_t lengths[] = { 0, 1, 1, 2, 4, 4, 5, 7, 8, 8, 8, 9, 16, 31 };
		int type = below(8) ? below(TYPES_TRIED) : (int)(random64() & 0xffff);

		if (!below(10))
			type |= below(2) ? NLA_F_NESTED : NLA_F_NET_BYTEORDER;
		if (depth && !below(6)) {
			struct nlattr *nest = nest_begin(m, type);

			put_anything(m, depth - 1);
			nest_end(m, nest);
		} else {
			put(m, type, data, lengths[below(sizeof(lengths))]);
		}
	}
}

/* Lies about lengths, flips bytes, cuts the message or lengthens it, all behind the kind. */
static void spoil(struct message *m, const struct nlattr *options)
{
	uint8_t *from = (uint8_t *)options, *end = (uint8_t *)m + m->n.nlmsg_len;
	uint8_t junk[64];
	size_t i;

	switch (below(5)) {
	case 0:
		((struct nlattr *)options)->nla_len = below(2) ? below(64) : random64();
		break;
	case 1:
		if (end - from > (long)NLA_HDRLEN)
			from[NLA_HDRLEN + below(end - from - NLA_HDRLEN)] = random64();
		break;
	case 2:
		m->n.nlmsg_len -= below(end - from + 1);
		break;
	case 3:
		for (i = 0; i < sizeof(junk); i++)
			junk[i] = random64();
		put_raw(m, junk, below(sizeof(junk)));
		break;
	default:
		if (end - from > (long)(2 * NLA_HDRLEN))
			((struct nlattr *)(from + NLA_HDRLEN))->nla_len = below(2) ? below(12) : random64();
	}
}

/* Exactly one fault, in an otherwise right message. */
static void put_fault(struct message *m, bool class)
{
	static const uint64_t bad_rates[] = { 0, 1, 7999, 800000000001, UINT64_MAX };
	static const uint64_t bad_phys[] = { 1, 9999999, 56000000000, 1600000000000, UINT64_MAX };
	static const uint64_t sizes[] = { 0, 4, 1, 8, 1, 8 };
	uint64_t number, rate = 1000000;
	uint8_t byte;
	int type;

	switch (below(6)) {
	case 0:		/* told, not set */
		number = 0;
		put(m, TCA_PSP_USED + below(4), &number, 1 + 7 * below(2));
		break;
	case 1:		/* unknown */
		number = odd_number();
		put(m, TCA_PSP_MAX + 1 + below(200), &number, 8);
		break;
	case 2:		/* of a wrong length */
		type = class ? TCA_PSP_MODE + below(2) : TCA_PSP_DEFAULT + below(3);
		number = 1;
		put(m, type, &number, sizes[type] == 8 ? below(8) : sizes[type] + 1 + below(3));
		break;
	case 3:		/* the other's */
		number = 1;
		type = class ? TCA_PSP_DEFAULT + below(3) : TCA_PSP_MODE + below(2);
		put(m, type, &number, sizes[type]);
		break;
	case 4:		/* out of range */
		if (class)
			put(m, TCA_PSP_RATE, &bad_rates[below(5)], 8);
		else
			put(m, TCA_PSP_PHY, &bad_phys[below(5)], 8);
		return;
	default:
		byte = 3 + below(253);
		put(m, class ? TCA_PSP_MODE : TCA_PSP_PACE, &byte, 1);
	}
	/* What makes the rest right. */
	if (class)
		put(m, TCA_PSP_RATE, &rate, 8);
}

struct tally {
	uint64_t taken, refused, explained, faults;
};

static struct answer set_up(struct message *m)
{
	begin(m, RTM_NEWQDISC, NLM_F_CREATE | NLM_F_REPLACE, HANDLE, TC_H_ROOT);
	put(m, TCA_KIND, "psp", 4);
	return ask(m);
}

/* One message. Returns -1 where a fault was not refused as it should be. */
static int one_of_many(struct tally *tally)
{
	static const int flags[] = { 0, NLM_F_CREATE, NLM_F_CREATE | NLM_F_EXCL, NLM_F_CREATE | NLM_F_REPLACE };
	uint32_t parents[] = { HANDLE, HANDLE, HANDLE, HANDLE | (1 + below(3)), TC_H_ROOT, 0, random64() };
	uint32_t dice = below(100), parent = parents[below(7)], handle = HANDLE | (1 + below(7));
	bool class = dice < 60, fault = dice % 5 == 0;
	struct answer answer;
	struct message m;

	if (dice >= 95) {
		begin(&m, class || dice < 99 ? RTM_DELTCLASS : RTM_DELQDISC, 0, dice < 99 ? handle : HANDLE,
		      dice < 99 ? 0 : TC_H_ROOT);
	} else {
		struct nlattr *nest;

		if (fault)
			parent = class ? HANDLE : TC_H_ROOT;
		begin(&m, class ? RTM_NEWTCLASS : RTM_NEWQDISC,
		      class && fault ? NLM_F_CREATE | NLM_F_REPLACE : class ? flags[below(4)] : 0,
		      class ? handle : HANDLE, class ? parent : TC_H_ROOT);
		put(&m, TCA_KIND, "psp", 4);
		nest = nest_begin(&m, TCA_OPTIONS | (below(2) ? NLA_F_NESTED : 0));
		if (fault)
			put_fault(&m, class);
		else if (below(3))
			put_right(&m, class);
		else
			put_anything(&m, 3);
		nest_end(&m, nest);
		if (!fault && !below(3))
			spoil(&m, nest);
	}
	answer = ask(&m);
	tally->taken += !answer.error;
	tally->refused += !!answer.error;
	tally->explained += answer.error && answer.reason[0];
	/* A qdisc that is gone comes back. */
	if (dice == 99 && !answer.error && set_up(&m).error)
		return -1;
	if (dice >= 95 || !fault)
		return 0;
	tally->faults++;
	if (answer.error && answer.reason[0])
		return 0;
	fprintf(stderr, "netlink: a fault in a %s's options was %s\n", class ? "class" : "qdisc",
		answer.error ? "refused without a reason" : "taken");
	return -1;
}

static int fuzz(uint64_t seed, uint64_t count)
{
	struct tally tally = { 0 };
	struct answer answer;
	struct message m;
	uint64_t i;
	int bad = 0;

	state = seed ? seed : 1;
	answer = set_up(&m);
	if (answer.error) {
		fprintf(stderr, "netlink: no qdisc: %s\n", answer.reason);
		return 1;
	}
	for (i = 0; i < count && bad < 10; i++)
		bad += one_of_many(&tally) < 0;
	printf("fuzz: seed %llu: %llu messages: %llu taken, %llu refused, %llu of these with a reason; %llu of one fault each\n",
	       (unsigned long long)seed, (unsigned long long)i, (unsigned long long)tally.taken,
	       (unsigned long long)tally.refused, (unsigned long long)tally.explained, (unsigned long long)tally.faults);
	return bad ? 1 : 0;
}

int main(int argc, char **argv)
{
	int code;

	if (argc >= 3)
		open_netlink(argv[1]);
	if (argc == 5 && !strcmp(argv[2], "fuzz"))
		return fuzz(strtoull(argv[3], NULL, 0), strtoull(argv[4], NULL, 0));
	code = argc >= 6 ? one(argc - 2, argv + 2) : 1;
	if (code == 1)
		fprintf(stderr, "usage: netlink DEV qdisc|class add|change|replace|del HANDLE PARENT [NAME:FORM=VALUE]...\n"
			"       netlink DEV fuzz SEED COUNT\n");
	return code;
}
