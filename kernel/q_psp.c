// SPDX-License-Identifier: GPL-2.0-only
/*
 * tc's side of the qdisc "psp": options to netlink attributes and back. tc loads it from TC_LIB_DIR as q_psp.so.
 *
 * iproute2 installs no headers: the structure that tc looks for (PSP_UTIL) and the functions of tc that are used are
 * declared here, as they have been from 4.20 to 6.1 at least.
 */
#include <linux/pkt_sched.h>
#include <linux/rtnetlink.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "psp_netlink.h"

/* tc's own. */
struct qdisc_util {
	struct qdisc_util *next;
	const char *id;
	int (*parse_qopt)(struct qdisc_util *qu, int argc, char **argv, struct nlmsghdr *n, const char *dev);
	int (*print_qopt)(struct qdisc_util *qu, FILE *f, struct rtattr *opt);
	int (*print_xstats)(struct qdisc_util *qu, FILE *f, struct rtattr *xstats);
	int (*parse_copt)(struct qdisc_util *qu, int argc, char **argv, struct nlmsghdr *n, const char *dev);
	int (*print_copt)(struct qdisc_util *qu, FILE *f, struct rtattr *opt);
	int (*has_block)(struct qdisc_util *qu, struct nlmsghdr *n, struct rtattr *opt, bool *has);
};
enum output_type { PRINT_FP = 1, PRINT_JSON = 2, PRINT_ANY = 4 };
enum color_attr { COLOR_NONE = 6 };
extern int show_details;
bool is_json_context(void);
int addattr_l(struct nlmsghdr *n, int maxlen, int type, const void *data, int alen);
struct rtattr *addattr_nest(struct nlmsghdr *n, int maxlen, int type);
int addattr_nest_end(struct nlmsghdr *n, struct rtattr *nest);
int parse_rtattr_flags(struct rtattr *tb[], int max, struct rtattr *rta, int len, unsigned short flags);
int print_color_string(enum output_type t, enum color_attr color, const char *key, const char *fmt, const char *value);
int print_color_uint(enum output_type t, enum color_attr color, const char *key, const char *fmt, unsigned int value);
int print_color_u64(enum output_type t, enum color_attr color, const char *key, const char *fmt, uint64_t value);

/* tc's buffer for options. */
#define MAX_MSG 1024
/* A minor number has 16 bits. */
#define MINOR_MAX 0xffffUL

static void print_text(const char *key, const char *fmt, const char *value)
{
	print_color_string(PRINT_ANY, COLOR_NONE, key, fmt, value);
}

static void print_number(const char *key, const char *fmt, uint64_t value)
{
	print_color_u64(PRINT_ANY, COLOR_NONE, key, fmt, value);
}

static const char *const pace_names[__PSP_PACE_MAX] = { "auto", "gap", "timer" };
static const char *const why_texts[__PSP_WHY_MAX] = {
	"", "no Ethernet", "not the root qdisc", "virtual device", "speed unknown", "device sends PAUSE", "MTU below 150",
	"device does not block",
};

static void explain_qdisc(void)
{
	fprintf(stderr,
		"Usage: ... psp [ default MINOR ] [ pace auto|gap|timer ] [ phy RATE ]\n"
		"MINOR   class (hexadecimal) for what no filter knows; without, it is sent unpaced\n"
		"pace    gap: PAUSE frames of time 0 fill the wire; timer; auto (the default)\n"
		"phy     speed of the wire, 10mbit to 800gbit; without, the device's\n"
		"Example: tc qdisc add dev eth0 root handle 1: psp default 2\n");
}

static void explain_class(void)
{
	fprintf(stderr,
		"Usage: ... psp [ rate RATE ] [ mode 0|1|2 ]\n"
		"RATE    8kbit to the device's, MAC header to FCS; with mode 2 a bound\n"
		"mode    0: not paced, 1: static (with a rate the default), 2: dynamic, cwnd * packet / RTT\n"
		"A class with children is a group: its rate is their ceiling.\n"
		"Example: tc class add dev eth0 parent 1: classid 1:1 psp rate 500mbit\n");
}

/*
 * A rate in bit/s: a decimal number and bit, kbit, mbit, gbit, tbit, bps, kbps ... (bps are bytes, as everywhere in
 * tc), or Ki, Mi, Gi of these. tc's own get_rate64 counts in bytes per second: 8 kbit is exact there, 8.001 is not.
 */
static const char *rate_prefix(const char *unit, uint64_t *scale)
{
	static const char letters[] = "kmgt";
	const char *at = *unit ? strchr(letters, *unit | 0x20) : NULL;
	uint64_t base = 1000;
	int power;

	*scale = 1;
	if (!at)
		return unit;
	unit++;
	if (*unit == 'i' || *unit == 'I') {
		base = 1024;
		unit++;
	}
	for (power = at - letters; power >= 0; power--)
		*scale *= base;
	return unit;
}

static int read_rate(const char *text, uint64_t *bps)
{
	const char *at = text, *unit;
	uint64_t whole = 0, fraction = 0, divisor = 1, scale;

	if (*at < '0' || *at > '9')
		return -1;
	for (; *at >= '0' && *at <= '9'; at++) {
		if (whole > 1000000000000ULL)
			return -1;
		whole = whole * 10 + (*at - '0');
	}
	if (*at == '.') {
		for (at++; *at >= '0' && *at <= '9'; at++) {
			if (divisor > 100000000ULL)
				return -1;
			fraction = fraction * 10 + (*at - '0');
			divisor *= 10;
		}
	}
	unit = rate_prefix(at, &scale);
	if (!strcasecmp(unit, "bps"))
		scale *= 8;
	else if (strcasecmp(unit, "bit"))
		return -1;
	if (whole && scale > UINT64_MAX / 2 / whole)
		return -1;
	if ((__uint128_t)fraction * scale % divisor)
		return -1;
	*bps = whole * scale + (uint64_t)((__uint128_t)fraction * scale / divisor);
	return 0;
}

static int read_minor(const char *text, uint32_t *minor)
{
	char *end;
	unsigned long value = strtoul(text, &end, 16);

	if (*text == ':')
		return read_minor(text + 1, minor);
	if (!*text || *text == '-' || *text == '+' || *end || value > MINOR_MAX)
		return -1;
	*minor = value;
	return 0;
}

static int read_word(const char *text, const char *const *words, int n)
{
	int i;

	for (i = 0; i < n; i++)
		if (!strcmp(text, words[i]))
			return i;
	return -1;
}

static int refuse(const char *option, const char *value, const char *valid)
{
	if (value)
		fprintf(stderr, "psp: %s %s: %s\n", option, value, valid);
	else
		fprintf(stderr, "psp: %s: a value is missing: %s\n", option, valid);
	return -1;
}

#define VALID_RATE "a number and its unit is valid, such as 8kbit, 500mbit or 1.5gbit"

/* One option of the qdisc; value may be NULL. */
static int qdisc_option(const char *option, const char *value, struct nlmsghdr *n)
{
	uint32_t minor;
	uint64_t bps;
	int word;

	if (!strcmp(option, "default")) {
		if (!value || read_minor(value, &minor))
			return refuse(option, value, "a minor number in hexadecimal, 0 to ffff, is valid");
		return addattr_l(n, MAX_MSG, TCA_PSP_DEFAULT, &minor, sizeof(minor));
	}
	if (!strcmp(option, "pace")) {
		word = value ? read_word(value, pace_names, __PSP_PACE_MAX) : -1;
		if (word < 0)
			return refuse(option, value, "auto, gap or timer is valid");
		return addattr_l(n, MAX_MSG, TCA_PSP_PACE, &(uint8_t){ word }, 1);
	}
	if (!strcmp(option, "phy")) {
		if (!value || read_rate(value, &bps))
			return refuse(option, value, VALID_RATE);
		return addattr_l(n, MAX_MSG, TCA_PSP_PHY, &bps, sizeof(bps));
	}
	if (strcmp(option, "help"))
		fprintf(stderr, "psp: what is \"%s\"?\n", option);
	explain_qdisc();
	return -1;
}

static int class_option(const char *option, const char *value, struct nlmsghdr *n)
{
	static const char *const modes[__PSP_MODE_MAX] = { "0", "1", "2" };
	uint64_t bps;
	int word;

	if (!strcmp(option, "rate")) {
		if (!value || read_rate(value, &bps))
			return refuse(option, value, VALID_RATE);
		return addattr_l(n, MAX_MSG, TCA_PSP_RATE, &bps, sizeof(bps));
	}
	if (!strcmp(option, "mode")) {
		word = value ? read_word(value, modes, __PSP_MODE_MAX) : -1;
		if (word < 0)
			return refuse(option, value, "0 (not paced), 1 (static) or 2 (dynamic) is valid");
		return addattr_l(n, MAX_MSG, TCA_PSP_MODE, &(uint8_t){ word }, 1);
	}
	if (strcmp(option, "help"))
		fprintf(stderr, "psp: what is \"%s\"?\n", option);
	explain_class();
	return -1;
}

/* Options come in pairs; one that comes twice is a mistake. */
static int parse(int argc, char **argv, struct nlmsghdr *n,
		 int (*option)(const char *option, const char *value, struct nlmsghdr *n))
{
	struct rtattr *nest = addattr_nest(n, MAX_MSG, TCA_OPTIONS);
	int i, before;

	for (i = 0; i < argc; i += 2) {
		for (before = 0; before < i; before += 2)
			if (!strcmp(argv[before], argv[i]))
				return refuse(argv[i], i + 1 < argc ? argv[i + 1] : "", "once is valid");
		if (option(argv[i], i + 1 < argc ? argv[i + 1] : NULL, n))
			return -1;
	}
	addattr_nest_end(n, nest);
	return 0;
}

static int parse_qdisc(struct qdisc_util *qu, int argc, char **argv, struct nlmsghdr *n, const char *dev)
{
	(void)qu;
	(void)dev;
	return parse(argc, argv, n, qdisc_option);
}

static int parse_class(struct qdisc_util *qu, int argc, char **argv, struct nlmsghdr *n, const char *dev)
{
	(void)qu;
	(void)dev;
	return parse(argc, argv, n, class_option);
}

/* An attribute's value, 0 where it is missing or short. */
static uint64_t value_of(const struct rtattr *rta, size_t size)
{
	uint64_t v64 = 0;
	uint32_t v32 = 0;
	uint8_t v8 = 0;

	if (!rta || RTA_PAYLOAD(rta) < size)
		return 0;
	if (size == 8)
		memcpy(&v64, RTA_DATA(rta), 8);
	else if (size == 4)
		memcpy(&v32, RTA_DATA(rta), 4);
	else
		memcpy(&v8, RTA_DATA(rta), 1);
	return v64 | v32 | v8;
}

/* A rate that was asked for, to the bit: tc's own way of writing would round it. */
static void print_rate(const char *key, const char *before, uint64_t bps)
{
	static const char *const units[] = { "bit", "Kbit", "Mbit", "Gbit", "Tbit" };
	uint64_t shown = bps;
	char text[64];
	int unit = 0;

	while (shown && shown % 1000 == 0 && unit < 4) {
		shown /= 1000;
		unit++;
	}
	snprintf(text, sizeof(text), "%s%llu%s ", before, (unsigned long long)shown, units[unit]);
	print_color_string(PRINT_FP, COLOR_NONE, NULL, "%s", text);
	print_color_u64(PRINT_JSON, COLOR_NONE, key, NULL, bps);
}

static int print_qdisc(struct qdisc_util *qu, FILE *f, struct rtattr *opt)
{
	struct rtattr *tb[TCA_PSP_MAX + 1];
	uint64_t pace, used, why, phy, wire;

	(void)qu;
	(void)f;
	if (!opt)
		return 0;
	parse_rtattr_flags(tb, TCA_PSP_MAX, RTA_DATA(opt), RTA_PAYLOAD(opt), NLA_F_NESTED);
	pace = value_of(tb[TCA_PSP_PACE], 1);
	used = value_of(tb[TCA_PSP_USED], 1);
	why = value_of(tb[TCA_PSP_WHY], 1);
	phy = value_of(tb[TCA_PSP_PHY], 8);
	wire = value_of(tb[TCA_PSP_WIRE], 8);
	print_color_uint(PRINT_FP, COLOR_NONE, NULL, "default %x ", value_of(tb[TCA_PSP_DEFAULT], 4));
	print_color_uint(PRINT_JSON, COLOR_NONE, "default", NULL, value_of(tb[TCA_PSP_DEFAULT], 4));
	if (pace < __PSP_PACE_MAX)
		print_text("pace", "pace %s ", pace_names[pace]);
	if (used < __PSP_PACE_MAX && (used != pace || is_json_context()))
		print_text("pace_used", "(%s", pace_names[used]);
	if (why && why < __PSP_WHY_MAX)
		print_text("reason", ": %s", why_texts[why]);
	if (used != pace)
		print_color_string(PRINT_FP, COLOR_NONE, NULL, "%s", ") ");
	if (phy)
		print_rate("phy_bps", "phy ", phy);
	if (show_details || is_json_context())
		print_rate("wire_bps", "wire ", wire);
	return 0;
}

static int print_class(struct qdisc_util *qu, FILE *f, struct rtattr *opt)
{
	struct rtattr *tb[TCA_PSP_MAX + 1];
	uint64_t mode;

	(void)qu;
	(void)f;
	if (!opt)
		return 0;
	parse_rtattr_flags(tb, TCA_PSP_MAX, RTA_DATA(opt), RTA_PAYLOAD(opt), NLA_F_NESTED);
	mode = value_of(tb[TCA_PSP_MODE], 1);
	print_number("mode", "mode %llu ", mode);
	if (tb[TCA_PSP_RATE])
		print_rate("rate_bps", mode == PSP_MODE_DYNAMIC ? "bound " : "rate ", value_of(tb[TCA_PSP_RATE], 8));
	return 0;
}

static void print_sums(const struct psp_xstats *x)
{
	print_number("frames", "  frames %llu", x->frames);
	/* tc's own "bytes" stands in the same object. */
	print_number("frame_bytes", " bytes %llu", x->bytes);
	print_number("gap_frames", " gap-frames %llu", x->gap_frames);
	print_number("gap_bytes", " gap-bytes %llu", x->gap_bytes);
}

/* Of a class, or of the qdisc: both come in one structure (see psp_netlink.h). */
static int print_xstats(struct qdisc_util *qu, FILE *f, struct rtattr *xstats)
{
	struct psp_xstats x = { 0 };
	size_t len;

	(void)qu;
	(void)f;
	if (!xstats)
		return 0;
	len = RTA_PAYLOAD(xstats);
	memcpy(&x, RTA_DATA(xstats), len < sizeof(x) ? len : sizeof(x));
	print_sums(&x);
	print_number("drop_queue", " drops queue %llu", x.drop_queue);
	print_number("drop_gso", " gso %llu", x.drop_gso);
	if (x.achieved_bps || x.rate_bps || x.lost_ps || is_json_context()) {
		print_color_string(PRINT_FP, COLOR_NONE, NULL, "%s", "\n ");
		print_number("achieved_bps", " achieved %llubit", x.achieved_bps);
		print_number("rate_in_force_bps", " in-force %llubit", x.rate_bps);
		print_number("lost_us", " lost %lluus", x.lost_ps / 1000000);
	}
	if (x.direct_frames || x.runaways || x.gap_failures || x.ahead_ns || x.skew_ns || is_json_context()) {
		print_number("direct_frames", " direct %llu", x.direct_frames);
		print_number("runaways", " runaways %llu", x.runaways);
		print_number("gap_failures", " gap-failures %llu", x.gap_failures);
		print_number("ahead_us", " ahead %lluus", x.ahead_ns / 1000);
		print_number("skew_us", " skew %lluus", x.skew_ns / 1000);
	}
	return 0;
}

#define PSP_UTIL psp_qdisc_util
struct qdisc_util PSP_UTIL = {
	.id		= "psp",
	.parse_qopt	= parse_qdisc,
	.print_qopt	= print_qdisc,
	.print_xstats	= print_xstats,
	.parse_copt	= parse_class,
	.print_copt	= print_class,
};
