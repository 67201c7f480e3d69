// SPDX-License-Identifier: GPL-2.0-only
/*
 * psp: a classful qdisc that paces by gap frames. The way of a frame:
 *
 *	psp_enqueue: filter -> class -> [GSO: one frame each] -> the class's qdisc; psp_wake if it was empty
 *	psp_dequeue: psp_next -> a frame of a class, or a gap frame (IEEE 802.3x PAUSE of time 0), or the timer
 *
 * All arithmetic is the engine's (psp_engine.c). Its time is CLOCK_MONOTONIC at moments when nothing waits, and bytes
 * handed to the device in between: a card's clock spaces its frames, this processor's does not matter. In timer pacing
 * it is CLOCK_MONOTONIC always.
 *
 * Locks. The root lock of the qdisc (sch_tree_lock for the control path) guards the engine, classes and their numbers:
 * enqueue, dequeue and reset run under it, and whatever they read is written under it. The tree of classes is changed
 * under the RTNL lock as well, so the control path may read it without. Filters are read under RCU (bh).
 */
#include <linux/etherdevice.h>
#include <linux/if_vlan.h>
#include <linux/module.h>
#include <linux/tcp.h>
#include <linux/version.h>
#include <net/netlink.h>
#include <net/tcp.h>
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 5, 0)
#include <net/gso.h>
#endif
#include "sch_psp.h"

LIST_HEAD(psp_all);

u64 psp_now_ps(const struct psp_data *q)
{
	return psp_ns_to_ps(ktime_get_ns() - q->epoch_ns);
}

/* MAC header to FCS, with the VLAN tag that the device may add. */
static u32 psp_frame_bytes(const struct sk_buff *skb)
{
	u32 bytes = skb->len + PSP_FCS + (skb_vlan_tag_present(skb) ? VLAN_HLEN : 0);

	return max(bytes, PSP_FRAME_MIN);
}

static void psp_rebase_class(struct psp_cl *cl, u64 by_ps)
{
	psp_clock_rebase(&cl->engine.clock, by_ps);
	psp_clock_rebase(&cl->group.clock, by_ps);
	cl->second_ps = cl->second_ps > by_ps ? cl->second_ps - by_ps : 0;
}

/* 2^64 ps are 213 days: now and then the epoch moves on. Returns what has then passed since it. */
static u64 psp_keep_time(struct psp_data *q, u64 passed_ns)
{
	u64 by_ns = psp_rebase_due_ns(&q->sched, passed_ns), by_ps;
	struct psp_cl *cl;
	unsigned int i;

	if (likely(!by_ns))
		return passed_ns;
	by_ps = psp_ns_to_ps(by_ns);
	q->epoch_ns += by_ns;
	psp_rebase(&q->sched, by_ps);
	psp_rebase_class(q->direct, by_ps);
	for (i = 0; i < q->classes.hashsize; i++)
		hlist_for_each_entry(cl, &q->classes.hash[i], common.hnode)
			psp_rebase_class(cl, by_ps);
	return passed_ns > by_ns ? passed_ns - by_ns : 0;
}

/* The wire was idle up to now. */
static void psp_catch_up(struct psp_data *q)
{
	psp_resync(&q->sched, psp_ns_to_ps(psp_keep_time(q, ktime_get_ns() - q->epoch_ns)));
}

static bool psp_nothing_waits(const struct psp_data *q)
{
	return !q->sched.paced && !q->sched.unpaced;
}

/* Shows the engine the head of a class that it does not know to wait. */
void psp_activate(struct Qdisc *sch, struct psp_cl *cl)
{
	struct psp_data *q = qdisc_priv(sch);
	struct sk_buff *skb;

	if (cl->engine.head_bytes || !cl->qdisc->q.qlen)
		return;
	skb = cl->qdisc->ops->peek(cl->qdisc);
	if (!skb) {
		q->stalled |= cl->qdisc->q.qlen != 0;
		return;
	}
	if (!q->gap || psp_nothing_waits(q))
		psp_catch_up(q);
	psp_wake(&q->sched, &cl->engine, psp_frame_bytes(skb));
}

/* The frame's class. NULL: it is to be dropped; an error: an action has taken it. *err is what enqueue returns then. */
static struct psp_cl *psp_classify(struct sk_buff *skb, struct Qdisc *sch, int *err)
{
	struct psp_data *q = qdisc_priv(sch);
	struct tcf_result res = {};
	struct tcf_proto *fl;
	struct psp_cl *cl;

	*err = NET_XMIT_SUCCESS | __NET_XMIT_BYPASS;
	if (TC_H_MAJ(skb->priority ^ sch->handle) == 0) {
		cl = psp_find(sch, skb->priority);
		if (cl && !cl->children)
			return cl;
	}
	fl = rcu_dereference_bh(q->filter_list);
	if (fl) {
		switch (tcf_classify(skb, NULL, fl, &res, false)) {
		case TC_ACT_CONSUMED:
			/* Such as a fragment that act_ct keeps: not ours any more. */
			*err = NET_XMIT_SUCCESS | __NET_XMIT_STOLEN;
			return ERR_PTR(-EINPROGRESS);
		case TC_ACT_QUEUED:
		case TC_ACT_STOLEN:
		case TC_ACT_TRAP:
			*err = NET_XMIT_SUCCESS | __NET_XMIT_STOLEN;
			fallthrough;
		case TC_ACT_SHOT:
		case TC_ACT_REDIRECT:
			return NULL;
		case TC_ACT_UNSPEC:
			break;
		default:
			cl = (struct psp_cl *)res.class;
			if (!cl)
				cl = psp_find(sch, res.classid);
			if (cl && !cl->children)
				return cl;
		}
	}
	cl = psp_find(sch, TC_H_MAKE(TC_H_MAJ(sch->handle), q->default_minor));
	return cl && !cl->children ? cl : q->direct;
}

static int psp_enqueue_one(struct sk_buff *skb, struct Qdisc *sch, struct psp_cl *cl, struct sk_buff **to_free)
{
	unsigned int len = qdisc_pkt_len(skb);
	int ret = qdisc_enqueue(skb, cl->qdisc, to_free);

	if (ret != NET_XMIT_SUCCESS) {
		if (net_xmit_drop_count(ret)) {
			qdisc_qstats_drop(sch);
			cl->qstats.drops++;
			cl->xstats.drop_queue++;
		}
		return ret;
	}
	sch->qstats.backlog += len;
	sch->q.qlen++;
	psp_activate(sch, cl);
	return NET_XMIT_SUCCESS;
}

/* A superframe becomes the frames that the wire carries, so that each has its own place. */
static int psp_enqueue_segments(struct sk_buff *skb, struct Qdisc *sch, struct psp_cl *cl, struct sk_buff **to_free)
{
	netdev_features_t features = netif_skb_features(skb);
	struct sk_buff *segs = skb_gso_segment(skb, features & ~NETIF_F_GSO_MASK);
	unsigned int len = 0, prev_len = qdisc_pkt_len(skb);
	struct sk_buff *seg, *nskb;
	int taken = 0;

	if (IS_ERR_OR_NULL(segs)) {
		cl->qstats.drops++;
		cl->xstats.drop_gso++;
		return qdisc_drop(skb, sch, to_free);
	}
	skb_list_walk_safe(segs, seg, nskb) {
		unsigned int seg_len = seg->len;

		skb_mark_not_on_list(seg);
		qdisc_skb_cb(seg)->pkt_len = seg_len;
		if (psp_enqueue_one(seg, sch, cl, to_free) == NET_XMIT_SUCCESS) {
			taken++;
			len += seg_len;
		}
	}
	/* Parents will count one frame of the old length. */
	if (taken)
		qdisc_tree_reduce_backlog(sch, 1 - taken, prev_len - len);
	consume_skb(skb);
	return taken ? NET_XMIT_SUCCESS : NET_XMIT_DROP;
}

static int psp_enqueue(struct sk_buff *skb, struct Qdisc *sch, struct sk_buff **to_free)
{
	struct psp_cl *cl;
	int err;

	cl = psp_classify(skb, sch, &err);
	if (IS_ERR(cl))
		return err;
	if (!cl) {
		if (err & __NET_XMIT_BYPASS)
			qdisc_qstats_drop(sch);
		__qdisc_drop(skb, to_free);
		return err;
	}
	if (skb_is_gso(skb))
		return psp_enqueue_segments(skb, sch, cl, to_free);
	return psp_enqueue_one(skb, sch, cl, to_free);
}

/* From TCP's stamp in its frames (CLOCK_MONOTONIC) to the frame's start on the wire, which is now. */
static u32 psp_waited_us(const struct psp_data *q, const struct sk_buff *skb)
{
	u64 start_ns = q->epoch_ns + div64_u64(q->sched.wire_ps, 1000);
	u64 sent_ns = ktime_to_ns(skb->tstamp);

	if (!sent_ns || sent_ns >= start_ns)
		return 0;
	return min_t(u64, div64_u64(start_ns - sent_ns, NSEC_PER_USEC), PSP_WAIT_MAX_US);
}

/*
 * packet_size * cwnd / RTT of the frame's own connection, up to the class's bound or the wire's speed. The round trip
 * is that of the path, without the time in this class and in the device's ring.
 */
static u64 psp_rate_of(const struct psp_data *q, struct psp_cl *cl, const struct sk_buff *skb)
{
	u64 most = cl->rate_bps ? cl->rate_bps : q->wire_bps ? q->wire_bps : PSP_RATE_MAX;
	const struct sock *sk = skb->sk;
	const struct tcp_sock *tp;
	u32 packet, least;

	/* Time-wait and request sockets are smaller and have no cwnd. The frame holds its socket (sk_wmem_alloc). */
	if (!sk || !sk_fullsock(sk) || !sk_is_tcp(sk))
		return most;
	tp = tcp_sk(sk);
	packet = READ_ONCE(tp->mss_cache) + PSP_FCS + (skb_vlan_tag_present(skb) ? VLAN_HLEN : 0);
	if (skb_transport_header_was_set(skb))
		packet += skb_transport_offset(skb) + READ_ONCE(tp->tcp_header_len);
	cl->wait_16us = psp_smooth_wait(cl->wait_16us, psp_waited_us(q, skb));
	/* ~0U: no sample yet. */
	least = tcp_min_rtt(tp);
	return psp_dynamic_rate(READ_ONCE(tp->snd_cwnd), packet,
				psp_path_rtt(READ_ONCE(tp->srtt_us) >> 3, least, cl->wait_16us), most);
}

static void psp_count_frame(struct psp_cl *cl, u32 bytes, u64 at_ps)
{
	struct psp_xstats *x = &cl->xstats;
	u64 passed = at_ps - cl->second_ps;

	if (x->frames && passed >= 1000000000000ULL) {
		/* bytes * 8 * 10^12 / passed, in steps that fit 64 bits. */
		x->achieved_bps = mul_u64_u64_div_u64(cl->second_bytes, PSP_PS_BITS_PER_BYTE, passed);
		cl->second_bytes = 0;
		cl->second_ps = at_ps;
	} else if (!x->frames) {
		cl->second_ps = at_ps;
	}
	cl->second_bytes += bytes;
	x->frames++;
	x->bytes += bytes;
}

/* The frame that the engine chose, or NULL where the class's qdisc does not give it. */
static struct sk_buff *psp_send(struct Qdisc *sch, struct psp_cl *cl)
{
	struct psp_data *q = qdisc_priv(sch);
	struct sk_buff *skb = qdisc_dequeue_peeked(cl->qdisc);
	struct sk_buff *next;
	u32 bytes;

	if (!skb) {
		psp_sleep(&q->sched, &cl->engine);
		q->stalled |= cl->qdisc->q.qlen != 0;
		return NULL;
	}
	bytes = psp_frame_bytes(skb);
	next = cl->qdisc->q.qlen ? cl->qdisc->ops->peek(cl->qdisc) : NULL;
	q->stalled |= !next && cl->qdisc->q.qlen;
	if (cl->mode == PSP_MODE_DYNAMIC)
		psp_clock_set_rate(&cl->engine.clock, psp_rate_of(q, cl, skb));
	psp_count_frame(cl, bytes, q->sched.wire_ps);
	psp_sent(&q->sched, &cl->engine, bytes, next ? psp_frame_bytes(next) : 0);
	q->xstats.frames++;
	q->xstats.bytes += bytes;
	if (cl == q->direct)
		q->xstats.direct_frames++;
	/* One hardware queue: between several a card keeps no order. */
	if (q->gap)
		skb_set_queue_mapping(skb, 0);
	bstats_update(&cl->bstats, skb);
	qdisc_bstats_update(sch, skb);
	qdisc_qstats_backlog_dec(sch, skb);
	sch->q.qlen--;
	return skb;
}

static struct sk_buff *psp_gap_frame(struct Qdisc *sch, struct psp_cl *cl, u32 bytes)
{
	struct psp_data *q = qdisc_priv(sch);
	struct sk_buff *skb = skb_clone(q->gap_skb, GFP_ATOMIC);

	if (!skb) {
		q->xstats.gap_failures++;
		qdisc_watchdog_schedule_ns(&q->watchdog, ktime_get_ns() + PSP_RETRY_NS);
		return NULL;
	}
	skb_trim(skb, bytes - PSP_FCS);
	skb_set_queue_mapping(skb, 0);
	qdisc_skb_cb(skb)->pkt_len = skb->len;
	psp_gap_sent(&q->sched, bytes);
	cl->xstats.gap_frames++;
	cl->xstats.gap_bytes += bytes;
	q->xstats.gap_frames++;
	q->xstats.gap_bytes += bytes;
	return skb;
}

/* A device that takes gap frames faster than its wire could carry them does not block: they space nothing. */
static void psp_guard(struct Qdisc *sch)
{
	struct psp_data *q = qdisc_priv(sch);
	enum psp_ahead ahead;
	u64 back_ps, back_ns;

	ahead = psp_look_ahead(&q->sched, psp_now_ps(q), &back_ps);
	if (likely(ahead == PSP_IN_TIME))
		return;
	back_ns = div64_u64(back_ps, 1000);
	q->epoch_ns -= back_ns;
	if (ahead == PSP_SKEWED) {
		q->xstats.skew_ns += back_ns;
		return;
	}
	q->gap = false;
	q->why = PSP_WHY_RUNAWAY;
	q->xstats.runaways++;
	q->sched.slack_ps = PSP_TIMER_SLACK_PS;
	net_info_ratelimited("psp: %s takes gap frames faster than its wire: pacing by timer\n",
			     qdisc_dev(sch)->name);
}

/* Classes whose qdisc held its frames back may show one now. */
static void psp_look_again(struct Qdisc *sch)
{
	struct psp_data *q = qdisc_priv(sch);
	struct psp_cl *cl;
	unsigned int i;

	q->stalled = false;
	for (i = 0; i < q->classes.hashsize; i++)
		hlist_for_each_entry(cl, &q->classes.hash[i], common.hnode)
			if (cl->qdisc)
				psp_activate(sch, cl);
}

static struct sk_buff *psp_dequeue(struct Qdisc *sch)
{
	struct psp_data *q = qdisc_priv(sch);
	struct psp_next next;
	struct sk_buff *skb;
	struct psp_cl *cl;

	/* A busy wire may never be caught up with. */
	psp_keep_time(q, 0);
	if (unlikely(q->stalled))
		psp_look_again(sch);
	/* Each turn without a frame puts a class to sleep or leaves gap pacing. */
	for (;;) {
		if (!q->gap)
			psp_catch_up(q);
		psp_next(&q->sched, &next);
		if (next.what == PSP_IDLE)
			return NULL;
		cl = container_of(next.cls, struct psp_cl, engine);
		if (next.what == PSP_FRAME) {
			skb = psp_send(sch, cl);
			if (skb)
				return skb;
			continue;
		}
		if (q->gap) {
			psp_guard(sch);
			if (!q->gap)
				continue;
			return psp_gap_frame(sch, cl, next.gap_bytes);
		}
		qdisc_qstats_overlimit(sch);
		cl->qstats.overlimits++;
		qdisc_watchdog_schedule_ns(&q->watchdog, q->epoch_ns + div64_u64(next.start_ps + 999, 1000));
		return NULL;
	}
}

static void psp_reset(struct Qdisc *sch)
{
	struct psp_data *q = qdisc_priv(sch);
	struct psp_cl *cl;
	unsigned int i;

	for (i = 0; i < q->classes.hashsize; i++) {
		hlist_for_each_entry(cl, &q->classes.hash[i], common.hnode) {
			psp_sleep(&q->sched, &cl->engine);
			if (cl->qdisc)
				qdisc_reset(cl->qdisc);
		}
	}
	if (q->direct) {
		psp_sleep(&q->sched, &q->direct->engine);
		qdisc_reset(q->direct->qdisc);
	}
	q->stalled = false;
	qdisc_watchdog_cancel(&q->watchdog);
}

/*
 * What waits for a timer may go by other rules now. Under the RTNL lock. Not qdisc_root_sleeping: that of a device that
 * is down may be freed before its turn comes.
 */
void psp_run(const struct Qdisc *sch)
{
	__netif_schedule(qdisc_root(sch));
}

static int psp_change(struct Qdisc *sch, struct nlattr *opt, struct netlink_ext_ack *extack)
{
	int err = psp_configure(sch, opt, extack);

	if (!err)
		psp_run(sch);
	return err;
}

/* Where this fails the kernel calls psp_destroy. */
static int psp_init_qdisc(struct Qdisc *sch, struct nlattr *opt, struct netlink_ext_ack *extack)
{
	struct psp_data *q = qdisc_priv(sch);
	int err;

	qdisc_watchdog_init(&q->watchdog, sch);
	INIT_LIST_HEAD(&q->all);
	q->epoch_ns = ktime_get_ns();
	psp_init(&q->sched, PSP_PS_PER_BYTE_MIN, PSP_GAP_LIMIT_MIN);
	err = tcf_block_get(&q->block, &q->filter_list, sch, extack);
	if (err)
		return err;
	err = qdisc_class_hash_init(&q->classes);
	if (err)
		return err;
	q->direct = psp_class_new(sch, TC_H_MAKE(TC_H_MAJ(sch->handle), 0), extack);
	if (IS_ERR(q->direct)) {
		err = PTR_ERR(q->direct);
		q->direct = NULL;
		return err;
	}
	err = psp_configure(sch, opt, extack);
	if (err)
		return err;
	list_add(&q->all, &psp_all);
	return 0;
}

static void psp_destroy(struct Qdisc *sch)
{
	struct psp_data *q = qdisc_priv(sch);
	struct hlist_node *next;
	struct psp_cl *cl;
	unsigned int i;

	list_del(&q->all);
	qdisc_watchdog_cancel(&q->watchdog);
	/* Filters hold classes: they go first. */
	tcf_block_put(q->block);
	for (i = 0; i < q->classes.hashsize; i++) {
		hlist_for_each_entry_safe(cl, next, &q->classes.hash[i], common.hnode) {
			qdisc_class_hash_remove(&q->classes, &cl->common);
			psp_class_free(cl);
		}
	}
	qdisc_class_hash_destroy(&q->classes);
	if (q->direct)
		psp_class_free(q->direct);
	kfree_skb(q->gap_skb);
}

static int psp_dump_stats(struct Qdisc *sch, struct gnet_dump *d)
{
	struct psp_data *q = qdisc_priv(sch);
	struct psp_xstats x;
	u64 now_ps;

	sch_tree_lock(sch);
	x = q->xstats;
	now_ps = psp_now_ps(q);
	x.ahead_ns = q->sched.wire_ps > now_ps ? div64_u64(q->sched.wire_ps - now_ps, 1000) : 0;
	sch_tree_unlock(sch);
	return gnet_stats_copy_app(d, &x, sizeof(x));
}

static struct Qdisc_ops psp_ops __read_mostly = {
	.cl_ops		= &psp_class_ops,
	.id		= "psp",
	.priv_size	= sizeof(struct psp_data),
	.enqueue	= psp_enqueue,
	.dequeue	= psp_dequeue,
	.peek		= qdisc_peek_dequeued,
	.init		= psp_init_qdisc,
	.reset		= psp_reset,
	.destroy	= psp_destroy,
	.change		= psp_change,
	.dump		= psp_dump,
	.dump_stats	= psp_dump_stats,
	.owner		= THIS_MODULE,
};

static int __init psp_module_init(void)
{
	int err = register_netdevice_notifier(&psp_device_notifier);

	if (err)
		return err;
	err = register_qdisc(&psp_ops);
	if (err)
		unregister_netdevice_notifier(&psp_device_notifier);
	return err;
}

static void __exit psp_module_exit(void)
{
	unregister_qdisc(&psp_ops);
	unregister_netdevice_notifier(&psp_device_notifier);
}

module_init(psp_module_init)
module_exit(psp_module_exit)
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("PSPacer: pacing by gap frames");
MODULE_ALIAS("sch_psp");
#ifdef MODULE_ALIAS_NET_SCH
MODULE_ALIAS_NET_SCH("psp");
#endif
