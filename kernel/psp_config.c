// SPDX-License-Identifier: GPL-2.0-only
/*
 * Options of the qdisc "psp": which pacing, on a wire of which speed.
 *
 *	gap	root qdisc of an Ethernet device of known speed whose MTU is 150 at least
 *	timer	everything else
 *	auto	gap where that can be and the device is hardware that sends no PAUSE frames of its own; else timer
 *
 * Speed, MTU and address of a device change while it is used, and a link that comes up late has told no speed before:
 * the plan is made again then. `gap` that cannot be is refused where it is asked for; where it cannot be any more, the
 * timer paces, and says why.
 */
#include <linux/etherdevice.h>
#include <linux/ethtool.h>
#include <linux/if_arp.h>
#include <linux/rtnetlink.h>
#include <net/netlink.h>
#include "sch_psp.h"

#define PSP_MAC_CONTROL 0x8808
#define PSP_OPCODE_PAUSE 1
/* A frame of the MTU: MAC header and FCS. */
#define PSP_MTU_TO_FRAME (ETH_HLEN + PSP_FCS)

#define PSP_TOLD "psp: used, why, wire and pad are told by the kernel, not set"

static const struct nla_policy psp_policy[TCA_PSP_MAX + 1] = {
	[TCA_PSP_DEFAULT]	= { .type = NLA_U32 },
	[TCA_PSP_PACE]		= { .type = NLA_U8 },
	[TCA_PSP_PHY]		= { .type = NLA_U64 },
	[TCA_PSP_MODE]		= { .type = NLA_U8 },
	[TCA_PSP_RATE]		= { .type = NLA_U64 },
	[TCA_PSP_USED]		= { .type = NLA_REJECT, .reject_message = PSP_TOLD },
	[TCA_PSP_WHY]		= { .type = NLA_REJECT, .reject_message = PSP_TOLD },
	[TCA_PSP_WIRE]		= { .type = NLA_REJECT, .reject_message = PSP_TOLD },
	[TCA_PSP_PAD]		= { .type = NLA_REJECT, .reject_message = PSP_TOLD },
};

/*
 * Strict: an unknown attribute, a wrong length or bytes left over are refused. Only the flag NLA_F_NESTED on
 * TCA_OPTIONS is not asked for: tc 6.1 does not set it.
 */
int psp_parse(struct nlattr *tb[TCA_PSP_MAX + 1], const struct nlattr *opt, struct netlink_ext_ack *extack)
{
	return __nla_parse(tb, TCA_PSP_MAX, nla_data(opt), nla_len(opt), psp_policy,
			   NL_VALIDATE_STRICT & ~NL_VALIDATE_NESTED, extack);
}

/* What is asked for and what follows from it. */
struct psp_plan {
	u32 default_minor;
	enum psp_pace pace;
	u64 phy_bps;
	u64 wire_bps;
	bool gap;
	enum psp_why why;
	u32 gap_limit;
};

/* ps per byte; 0 where that is no whole number or out of range. */
static u64 psp_ps_per_byte(u64 bps)
{
	u64 rem, ps;

	if (!bps)
		return 0;
	ps = div64_u64_rem(PSP_PS_BITS_PER_BYTE, bps, &rem);
	return !rem && ps >= PSP_PS_PER_BYTE_MIN && ps <= PSP_PS_PER_BYTE_MAX ? ps : 0;
}

static u64 psp_device_bps(struct net_device *dev)
{
	struct ethtool_link_ksettings settings;

	if (__ethtool_get_link_ksettings(dev, &settings) < 0)
		return 0;
	if (settings.base.speed == (u32)SPEED_UNKNOWN || !settings.base.speed)
		return 0;
	return (u64)settings.base.speed * 1000000ULL;
}

static bool psp_sends_pause(struct net_device *dev)
{
	struct ethtool_pauseparam pause = { .cmd = ETHTOOL_GPAUSEPARAM };
	const struct ethtool_ops *ops = dev->ethtool_ops;

	if (!ops->get_pauseparam || !netif_device_present(dev))
		return false;
	/* As ethtool itself asks: the device may sleep. */
	if (ops->begin && ops->begin(dev) < 0)
		return false;
	ops->get_pauseparam(dev, &pause);
	if (ops->complete)
		ops->complete(dev);
	return pause.tx_pause;
}

/* Why gap frames cannot serve, or, for `auto`, should not. */
static enum psp_why psp_why_not_gap(struct Qdisc *sch, const struct psp_plan *plan)
{
	struct net_device *dev = qdisc_dev(sch);

	if (sch->parent != TC_H_ROOT)
		return PSP_WHY_NOT_ROOT;
	if (dev->type != ARPHRD_ETHER)
		return PSP_WHY_NOT_ETHERNET;
	if (!plan->wire_bps)
		return PSP_WHY_NO_SPEED;
	if (dev->mtu + PSP_MTU_TO_FRAME < PSP_GAP_LIMIT_MIN)
		return PSP_WHY_MTU;
	if (plan->pace == PSP_PACE_AUTO && !dev->dev.parent)
		return PSP_WHY_VIRTUAL;
	if (plan->pace == PSP_PACE_AUTO && psp_sends_pause(dev))
		return PSP_WHY_PAUSE;
	return PSP_WHY_ASKED;
}

static int psp_refuse_gap(enum psp_why why, struct netlink_ext_ack *extack)
{
	switch (why) {
	case PSP_WHY_NOT_ROOT:
		NL_SET_ERR_MSG(extack, "psp: gap frames need the whole device: psp as its root qdisc, or pace timer");
		break;
	case PSP_WHY_NOT_ETHERNET:
		NL_SET_ERR_MSG(extack, "psp: gap frames are Ethernet's: pace timer for this device");
		break;
	case PSP_WHY_NO_SPEED:
		NL_SET_ERR_MSG(extack, "psp: the device tells no useful speed: give one (phy 1gbit), or pace timer");
		break;
	default:
		NL_SET_ERR_MSG(extack, "psp: gap frames need an MTU of 150 at least: pace timer for this device");
	}
	return -EOPNOTSUPP;
}

static int psp_read_options(struct Qdisc *sch, struct nlattr *opt, struct psp_plan *plan,
			    struct netlink_ext_ack *extack)
{
	struct nlattr *tb[TCA_PSP_MAX + 1];
	int err;

	if (!opt)
		return 0;
	err = psp_parse(tb, opt, extack);
	if (err)
		return err;
	if (tb[TCA_PSP_RATE] || tb[TCA_PSP_MODE]) {
		NL_SET_ERR_MSG(extack, "psp: rate and mode belong to classes, not to the qdisc");
		return -EINVAL;
	}
	if (tb[TCA_PSP_DEFAULT])
		plan->default_minor = nla_get_u32(tb[TCA_PSP_DEFAULT]);
	if (plan->default_minor > TC_H_MIN_MASK) {
		NL_SET_ERR_MSG_ATTR(extack, tb[TCA_PSP_DEFAULT], "psp: default is a minor number up to ffff");
		return -EINVAL;
	}
	if (tb[TCA_PSP_PACE])
		plan->pace = nla_get_u8(tb[TCA_PSP_PACE]);
	if (plan->pace >= __PSP_PACE_MAX) {
		NL_SET_ERR_MSG_ATTR(extack, tb[TCA_PSP_PACE], "psp: pace is auto, gap or timer");
		return -EINVAL;
	}
	if (tb[TCA_PSP_PHY])
		plan->phy_bps = nla_get_u64(tb[TCA_PSP_PHY]);
	if (plan->phy_bps && !psp_ps_per_byte(plan->phy_bps)) {
		NL_SET_ERR_MSG_ATTR(extack, tb[TCA_PSP_PHY],
				    "psp: phy is 10mbit to 800gbit with a whole number of ps per byte");
		return -EINVAL;
	}
	return 0;
}

/* PAUSE of time 0, zeros up to a frame of the MTU: cut to size for each gap. */
static struct sk_buff *psp_build_gap(struct net_device *dev, u32 frame_bytes)
{
	static const u8 pause_address[ETH_ALEN] = { 0x01, 0x80, 0xc2, 0x00, 0x00, 0x01 };
	u32 len = frame_bytes - PSP_FCS;
	struct sk_buff *skb = alloc_skb(len, GFP_KERNEL);
	struct ethhdr *eth;
	__be16 *control;

	if (!skb)
		return NULL;
	eth = skb_put_zero(skb, len);
	ether_addr_copy(eth->h_dest, pause_address);
	ether_addr_copy(eth->h_source, dev->dev_addr);
	eth->h_proto = htons(PSP_MAC_CONTROL);
	control = (__be16 *)(eth + 1);
	control[0] = htons(PSP_OPCODE_PAUSE);
	skb->dev = dev;
	skb->protocol = htons(PSP_MAC_CONTROL);
	skb->priority = TC_PRIO_CONTROL;
	skb->ip_summed = CHECKSUM_NONE;
	skb_reset_mac_header(skb);
	skb_set_network_header(skb, ETH_HLEN);
	return skb;
}

static void psp_apply(struct Qdisc *sch, const struct psp_plan *plan, struct sk_buff **gap_skb)
{
	struct psp_data *q = qdisc_priv(sch);
	u64 ps_per_byte = psp_ps_per_byte(plan->wire_bps);
	u64 ring_ps;

	/* Timer pacing of a device without a speed: as if its wire were the fastest. */
	if (!ps_per_byte)
		ps_per_byte = PSP_PS_PER_BYTE_MIN;
	ring_ps = PSP_RING_MAX * psp_wire_bytes(plan->gap_limit) * ps_per_byte;
	sch_tree_lock(sch);
	/* With the timer the wire was idle up to now. */
	if (plan->gap && !q->gap)
		psp_resync(&q->sched, psp_now_ps(q));
	q->default_minor = plan->default_minor;
	q->pace = plan->pace;
	q->phy_bps = plan->phy_bps;
	q->wire_bps = plan->wire_bps;
	q->why = plan->why;
	q->gap = plan->gap;
	q->sched.ps_per_byte = ps_per_byte;
	q->sched.slack_ps = plan->gap ? 0 : PSP_TIMER_SLACK_PS;
	q->sched.gap_limit = plan->gap_limit;
	q->sched.ahead_max_ps = max(PSP_AHEAD_MIN_PS, ring_ps);
	if (plan->gap) {
		q->sched.forgiven_ps = psp_now_ps(q);
		swap(q->gap_skb, *gap_skb);
	}
	sch_tree_unlock(sch);
}

/* What follows from what is asked for and from the device as it is now. */
static void psp_make_plan(struct Qdisc *sch, struct psp_plan *plan)
{
	struct net_device *dev = qdisc_dev(sch);

	plan->wire_bps = plan->phy_bps ? plan->phy_bps : psp_device_bps(dev);
	if (!psp_ps_per_byte(plan->wire_bps))
		plan->wire_bps = 0;
	plan->gap_limit = max_t(u32, min_t(u32, dev->mtu, PSP_GAP_MTU_MAX) + PSP_MTU_TO_FRAME, PSP_GAP_LIMIT_MIN);
	plan->why = plan->pace == PSP_PACE_TIMER ? PSP_WHY_ASKED : psp_why_not_gap(sch, plan);
	plan->gap = plan->pace != PSP_PACE_TIMER && plan->why == PSP_WHY_ASKED;
}

/* At creation and at each change: nothing is changed where anything is refused. */
int psp_configure(struct Qdisc *sch, struct nlattr *opt, struct netlink_ext_ack *extack)
{
	struct psp_data *q = qdisc_priv(sch);
	struct psp_plan plan = {
		.default_minor = q->default_minor,
		.pace = q->pace,
		.phy_bps = q->phy_bps,
	};
	struct sk_buff *gap_skb = NULL;
	int err;

	err = psp_read_options(sch, opt, &plan, extack);
	if (err)
		return err;
	psp_make_plan(sch, &plan);
	if (plan.pace == PSP_PACE_GAP && !plan.gap)
		return psp_refuse_gap(plan.why, extack);
	if (plan.gap) {
		gap_skb = psp_build_gap(qdisc_dev(sch), plan.gap_limit);
		if (!gap_skb)
			return -ENOMEM;
	}
	psp_apply(sch, &plan, &gap_skb);
	kfree_skb(gap_skb);
	return 0;
}

/* The device is another one than before. */
static void psp_follow(struct Qdisc *sch)
{
	struct psp_data *q = qdisc_priv(sch);
	struct psp_plan plan = {
		.default_minor = q->default_minor,
		.pace = q->pace,
		.phy_bps = q->phy_bps,
	};
	struct sk_buff *gap_skb = NULL;

	psp_make_plan(sch, &plan);
	/* It did not block, and its speed is no other now. */
	if (plan.gap && q->why == PSP_WHY_RUNAWAY && plan.wire_bps == q->wire_bps) {
		plan.gap = false;
		plan.why = PSP_WHY_RUNAWAY;
	}
	/* Without memory the timer paces: the old gap frames may be too large for the device. */
	if (plan.gap) {
		gap_skb = psp_build_gap(qdisc_dev(sch), plan.gap_limit);
		plan.gap = gap_skb;
	}
	psp_apply(sch, &plan, &gap_skb);
	kfree_skb(gap_skb);
	psp_run(sch);
}

/* Called under the RTNL lock, as everything that changes psp_all. */
static int psp_device_event(struct notifier_block *block, unsigned long event, void *info)
{
	struct net_device *dev = netdev_notifier_info_to_dev(info);
	struct psp_data *q;

	switch (event) {
	case NETDEV_UP:
	case NETDEV_CHANGE:
	case NETDEV_CHANGEMTU:
	case NETDEV_CHANGEADDR:
		list_for_each_entry(q, &psp_all, all)
			if (qdisc_dev(q->watchdog.qdisc) == dev)
				psp_follow(q->watchdog.qdisc);
	}
	return NOTIFY_DONE;
}

struct notifier_block psp_device_notifier = {
	.notifier_call = psp_device_event,
};

int psp_dump(struct Qdisc *sch, struct sk_buff *skb)
{
	struct psp_data *q = qdisc_priv(sch);
	enum psp_why why;
	struct nlattr *nest;
	bool gap;

	/* psp_guard may change both at any time. */
	sch_tree_lock(sch);
	gap = q->gap;
	why = q->why;
	sch_tree_unlock(sch);
	nest = nla_nest_start_noflag(skb, TCA_OPTIONS);
	if (!nest)
		return -EMSGSIZE;
	if (nla_put_u32(skb, TCA_PSP_DEFAULT, q->default_minor) ||
	    nla_put_u8(skb, TCA_PSP_PACE, q->pace) ||
	    (q->phy_bps && nla_put_u64_64bit(skb, TCA_PSP_PHY, q->phy_bps, TCA_PSP_PAD)) ||
	    nla_put_u8(skb, TCA_PSP_USED, gap ? PSP_PACE_GAP : PSP_PACE_TIMER) ||
	    nla_put_u8(skb, TCA_PSP_WHY, why) ||
	    nla_put_u64_64bit(skb, TCA_PSP_WIRE, q->wire_bps, TCA_PSP_PAD)) {
		nla_nest_cancel(skb, nest);
		return -EMSGSIZE;
	}
	return nla_nest_end(skb, nest);
}
