/* SPDX-License-Identifier: GPL-2.0-only */
/* The qdisc "psp": what its data path (sch_psp.c), its classes (psp_class.c) and its options (psp_config.c) share. */
#ifndef SCH_PSP_H
#define SCH_PSP_H

#include <linux/netdevice.h>
#include <linux/skbuff.h>
#include <net/gen_stats.h>
#include <net/pkt_cls.h>
#include <net/pkt_sched.h>
#include <net/sch_generic.h>
#include "psp_engine.h"
#include "psp_netlink.h"

/* Limits. psp_next looks at each waiting class. */
#define PSP_CLASSES_MAX 256
/* Gap frames may fill the wire so far beyond real time; a card holds what its ring holds: 4096 frames. */
#define PSP_AHEAD_MIN_PS 100000000000ULL
#define PSP_RING_MAX 4096ULL
/* Largest MTU that gap frames make use of. */
#define PSP_GAP_MTU_MAX 9000u
/* Timer pacing: a wake-up so late is made good, at the wire's speed; what is later has lost its place. */
#define PSP_TIMER_SLACK_PS 200000000ULL
/* Until memory is tried again. */
#define PSP_RETRY_NS NSEC_PER_MSEC

struct psp_cl {
	struct Qdisc_class_common common;
	struct psp_class engine;
	struct psp_group group;		/* the ceiling, while the class has children */
	struct psp_cl *parent;
	u32 children;
	u32 filters;
	enum psp_mode mode;
	u64 rate_bps;			/* static: the rate; dynamic: its bound; 0: none */
	struct Qdisc *qdisc;		/* none while the class has children */

	struct gnet_stats_basic_sync bstats;
	struct gnet_stats_queue qstats;
	struct net_rate_estimator __rcu *rate_est;
	struct psp_xstats xstats;
	u64 second_ps;			/* start of the second that achieved_bps counts */
	u64 second_bytes;
	u32 wait_16us;			/* dynamic: from TCP to the wire, smoothed */
};

struct psp_data {
	struct psp_sched sched;
	u64 epoch_ns;			/* CLOCK_MONOTONIC where the engine's time is 0 */
	bool gap;			/* gap frames, else timer */
	bool stalled;			/* a class has frames that its qdisc would not show */
	struct sk_buff *gap_skb;	/* a PAUSE frame of the largest size; each gap is a clone, cut to size */
	struct qdisc_watchdog watchdog;
	struct list_head all;		/* in psp_all, once it is configured */

	struct psp_cl *direct;		/* for what belongs to no class */
	struct Qdisc_class_hash classes;
	u32 classes_n;
	struct tcf_proto __rcu *filter_list;
	struct tcf_block *block;

	u32 default_minor;
	enum psp_pace pace;		/* as asked for */
	enum psp_why why;		/* `gap` and this change under the root lock alone, by psp_guard too */
	u64 phy_bps;			/* as given; 0: ask the device */
	u64 wire_bps;			/* in use; 0: unknown */
	struct psp_xstats xstats;
};

/* sch_psp.c */
u64 psp_now_ps(const struct psp_data *q);
void psp_activate(struct Qdisc *sch, struct psp_cl *cl);
void psp_run(const struct Qdisc *sch);
/* Every qdisc of this kind, under the RTNL lock. */
extern struct list_head psp_all;

/* psp_class.c */
extern const struct Qdisc_class_ops psp_class_ops;
struct psp_cl *psp_find(struct Qdisc *sch, u32 classid);
struct psp_cl *psp_class_new(struct Qdisc *sch, u32 classid, struct netlink_ext_ack *extack);
void psp_class_free(struct psp_cl *cl);

/* psp_config.c */
extern struct notifier_block psp_device_notifier;
int psp_parse(struct nlattr *tb[TCA_PSP_MAX + 1], const struct nlattr *opt, struct netlink_ext_ack *extack);
int psp_configure(struct Qdisc *sch, struct nlattr *opt, struct netlink_ext_ack *extack);
int psp_dump(struct Qdisc *sch, struct sk_buff *skb);

static inline u64 psp_rate_in_force(const struct psp_cl *cl)
{
	return cl->children ? cl->group.clock.rate_bps : cl->engine.clock.rate_bps;
}

#endif
