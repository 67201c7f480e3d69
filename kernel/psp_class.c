// SPDX-License-Identifier: GPL-2.0-only
/*
 * Classes of the qdisc "psp".
 *
 *	1:		the qdisc
 *	1:1		a class: mode 0 (not paced), 1 (static), 2 (dynamic: cwnd * packet / RTT); with its own qdisc
 *	1:1 - 1:11	with children it is a group: its rate is their ceiling, its qdisc is gone until they are
 *
 * One level of groups. Frames of a group's children count on both clocks.
 */
#include <linux/module.h>
#include <net/netlink.h>
#include "sch_psp.h"

struct psp_cl *psp_find(struct Qdisc *sch, u32 classid)
{
	struct psp_data *q = qdisc_priv(sch);
	struct Qdisc_class_common *common = qdisc_class_find(&q->classes, classid);

	return common ? container_of(common, struct psp_cl, common) : NULL;
}

struct psp_cl *psp_class_new(struct Qdisc *sch, u32 classid, struct netlink_ext_ack *extack)
{
	struct psp_cl *cl = kzalloc(sizeof(*cl), GFP_KERNEL);

	if (!cl)
		return ERR_PTR(-ENOMEM);
	cl->qdisc = qdisc_create_dflt(sch->dev_queue, &pfifo_qdisc_ops, classid, extack);
	if (!cl->qdisc) {
		kfree(cl);
		return ERR_PTR(-ENOMEM);
	}
	cl->common.classid = classid;
	gnet_stats_basic_sync_init(&cl->bstats);
	psp_class_init(&cl->engine, TC_H_MIN(classid), 0, NULL);
	psp_clock_init(&cl->group.clock, 0);
	return cl;
}

void psp_class_free(struct psp_cl *cl)
{
	gen_kill_estimator(&cl->rate_est);
	if (cl->qdisc)
		qdisc_put(cl->qdisc);
	kfree(cl);
}

/* What a request asks for; an error with its reason where that cannot be. */
struct psp_wish {
	enum psp_mode mode;
	u64 rate_bps;
};

static int psp_read_wish(struct Qdisc *sch, struct nlattr *opt, struct psp_wish *wish, struct netlink_ext_ack *extack)
{
	struct psp_data *q = qdisc_priv(sch);
	struct nlattr *tb[TCA_PSP_MAX + 1];
	int err;

	if (!opt) {
		NL_SET_ERR_MSG(extack, "psp: a class needs a rate or a mode");
		return -EINVAL;
	}
	err = psp_parse(tb, opt, extack);
	if (err)
		return err;
	if (tb[TCA_PSP_DEFAULT] || tb[TCA_PSP_PACE] || tb[TCA_PSP_PHY]) {
		NL_SET_ERR_MSG(extack, "psp: default, pace and phy belong to the qdisc, not to a class");
		return -EINVAL;
	}
	if (!tb[TCA_PSP_RATE] && !tb[TCA_PSP_MODE]) {
		NL_SET_ERR_MSG(extack, "psp: a class needs a rate or a mode");
		return -EINVAL;
	}
	wish->mode = tb[TCA_PSP_MODE] ? nla_get_u8(tb[TCA_PSP_MODE]) : PSP_MODE_STATIC;
	wish->rate_bps = tb[TCA_PSP_RATE] ? nla_get_u64(tb[TCA_PSP_RATE]) : 0;
	if (wish->mode >= __PSP_MODE_MAX) {
		NL_SET_ERR_MSG_ATTR(extack, tb[TCA_PSP_MODE], "psp: mode is 0 (none), 1 (static) or 2 (dynamic)");
		return -EINVAL;
	}
	if (wish->mode == PSP_MODE_NONE && tb[TCA_PSP_RATE]) {
		NL_SET_ERR_MSG_ATTR(extack, tb[TCA_PSP_RATE], "psp: mode 0 is not paced and takes no rate");
		return -EINVAL;
	}
	if (wish->mode == PSP_MODE_STATIC && !tb[TCA_PSP_RATE]) {
		NL_SET_ERR_MSG_ATTR(extack, tb[TCA_PSP_MODE], "psp: mode 1 needs a rate");
		return -EINVAL;
	}
	if (tb[TCA_PSP_RATE] && (wish->rate_bps < PSP_RATE_MIN || wish->rate_bps > PSP_RATE_MAX)) {
		NL_SET_ERR_MSG_ATTR(extack, tb[TCA_PSP_RATE], "psp: a rate is 8kbit to 800gbit");
		return -EINVAL;
	}
	if (q->wire_bps && wish->rate_bps > q->wire_bps) {
		NL_SET_ERR_MSG_ATTR(extack, tb[TCA_PSP_RATE], "psp: the rate is above the device's");
		return -EINVAL;
	}
	return 0;
}

static void psp_count_paced(struct psp_data *q)
{
	struct psp_cl *cl;
	unsigned int i;

	q->sched.classes = 0;
	for (i = 0; i < q->classes.hashsize; i++)
		hlist_for_each_entry(cl, &q->classes.hash[i], common.hnode)
			q->sched.classes += !cl->children && psp_is_paced(&cl->engine);
}

/* Under the tree lock. A dynamic class starts at its bound and follows its first frame. */
static void psp_grant(struct Qdisc *sch, struct psp_cl *cl, const struct psp_wish *wish)
{
	struct psp_data *q = qdisc_priv(sch);
	u64 rate_bps = wish->rate_bps;

	if (wish->mode == PSP_MODE_DYNAMIC && !rate_bps)
		rate_bps = q->wire_bps ? q->wire_bps : PSP_RATE_MAX;
	psp_sleep(&q->sched, &cl->engine);
	cl->mode = wish->mode;
	cl->rate_bps = wish->rate_bps;
	psp_clock_set_rate(&cl->engine.clock, rate_bps);
	if (cl->children)
		psp_clock_set_rate(&cl->group.clock, wish->rate_bps);
	psp_count_paced(q);
	if (cl->qdisc)
		psp_activate(sch, cl);
}

static int psp_change_class(struct Qdisc *sch, struct psp_cl *cl, u32 parentid, struct nlattr **tca,
			    const struct psp_wish *wish, struct netlink_ext_ack *extack)
{
	u32 own = cl->parent ? cl->parent->common.classid : sch->handle;
	int err;

	if (parentid && parentid != own && !(parentid == TC_H_ROOT && !cl->parent)) {
		NL_SET_ERR_MSG(extack, "psp: a class keeps its parent: delete it and add it there");
		return -EINVAL;
	}
	if (cl->children && wish->mode != PSP_MODE_STATIC) {
		NL_SET_ERR_MSG(extack, "psp: the class has children: its rate is their ceiling, mode 1");
		return -EINVAL;
	}
	if (tca[TCA_RATE]) {
		err = gen_replace_estimator(&cl->bstats, NULL, &cl->rate_est, NULL, true, tca[TCA_RATE]);
		if (err) {
			NL_SET_ERR_MSG(extack, "psp: the estimator cannot be set");
			return err;
		}
	}
	sch_tree_lock(sch);
	psp_grant(sch, cl, wish);
	sch_tree_unlock(sch);
	/* A class that is not paced any more does not wait for the timer that was set for it. */
	psp_run(sch);
	return 0;
}

/* The class that parentid names, or NULL for the qdisc itself. */
static struct psp_cl *psp_parent(struct Qdisc *sch, u32 parentid, struct netlink_ext_ack *extack)
{
	struct psp_cl *parent;

	if (parentid == TC_H_ROOT || parentid == sch->handle)
		return NULL;
	parent = psp_find(sch, parentid);
	if (!parent) {
		NL_SET_ERR_MSG(extack, "psp: there is no such parent class");
		return ERR_PTR(-ENOENT);
	}
	if (parent->parent) {
		NL_SET_ERR_MSG(extack, "psp: groups have one level: the parent has a parent");
		return ERR_PTR(-EINVAL);
	}
	if (parent->mode != PSP_MODE_STATIC) {
		NL_SET_ERR_MSG(extack, "psp: the parent needs a static rate, the ceiling of its children");
		return ERR_PTR(-EINVAL);
	}
	if (!parent->children && parent->filters) {
		NL_SET_ERR_MSG(extack, "psp: filters lead to the parent: remove them before it becomes a group");
		return ERR_PTR(-EBUSY);
	}
	return parent;
}

/* Under the tree lock: a class becomes a group; what waited in it is dropped. Returns its qdisc, to be put. */
static struct Qdisc *psp_join(struct Qdisc *sch, struct psp_cl *parent, struct psp_cl *cl)
{
	struct psp_data *q = qdisc_priv(sch);
	struct Qdisc *old = parent->qdisc;

	cl->parent = parent;
	cl->engine.group = &parent->group;
	if (parent->children++)
		return NULL;
	psp_sleep(&q->sched, &parent->engine);
	psp_clock_set_rate(&parent->group.clock, parent->rate_bps);
	psp_clock_catch_up(&parent->group.clock, parent->engine.clock.at_ps);
	qdisc_purge_queue(old);
	parent->qdisc = NULL;
	return old;
}

static int psp_add_class(struct Qdisc *sch, u32 classid, u32 parentid, struct nlattr **tca,
			 const struct psp_wish *wish, unsigned long *arg, struct netlink_ext_ack *extack)
{
	struct psp_cl *parent = psp_parent(sch, parentid, extack);
	struct psp_data *q = qdisc_priv(sch);
	struct Qdisc *old = NULL;
	struct psp_cl *cl;
	int err;

	if (IS_ERR(parent))
		return PTR_ERR(parent);
	if (TC_H_MAJ(classid ^ sch->handle) || !TC_H_MIN(classid)) {
		NL_SET_ERR_MSG(extack, "psp: classid is the qdisc's handle and a minor number from 1 to ffff");
		return -EINVAL;
	}
	if (q->classes_n >= PSP_CLASSES_MAX) {
		NL_SET_ERR_MSG(extack, "psp: 256 classes at most");
		return -ENOSPC;
	}
	cl = psp_class_new(sch, classid, extack);
	if (IS_ERR(cl))
		return PTR_ERR(cl);
	if (tca[TCA_RATE]) {
		err = gen_new_estimator(&cl->bstats, NULL, &cl->rate_est, NULL, true, tca[TCA_RATE]);
		if (err) {
			NL_SET_ERR_MSG(extack, "psp: the estimator cannot be set");
			psp_class_free(cl);
			return err;
		}
	}
	sch_tree_lock(sch);
	if (parent)
		old = psp_join(sch, parent, cl);
	qdisc_class_hash_insert(&q->classes, &cl->common);
	q->classes_n++;
	psp_grant(sch, cl, wish);
	sch_tree_unlock(sch);
	if (old)
		qdisc_put(old);
	if (cl->qdisc != &noop_qdisc)
		qdisc_hash_add(cl->qdisc, true);
	qdisc_class_hash_grow(sch, &q->classes);
	*arg = (unsigned long)cl;
	return 0;
}

static int psp_change_or_add(struct Qdisc *sch, u32 classid, u32 parentid, struct nlattr **tca, unsigned long *arg,
			     struct netlink_ext_ack *extack)
{
	struct psp_cl *cl = (struct psp_cl *)*arg;
	struct psp_wish wish;
	int err = psp_read_wish(sch, tca[TCA_OPTIONS], &wish, extack);

	if (err)
		return err;
	if (cl)
		return psp_change_class(sch, cl, parentid, tca, &wish, extack);
	return psp_add_class(sch, classid, parentid, tca, &wish, arg, extack);
}

static int psp_delete_class(struct Qdisc *sch, unsigned long arg, struct netlink_ext_ack *extack)
{
	struct psp_cl *cl = (struct psp_cl *)arg, *parent = cl->parent;
	struct psp_data *q = qdisc_priv(sch);
	struct Qdisc *again = NULL;

	if (cl->children) {
		NL_SET_ERR_MSG(extack, "psp: the class has children");
		return -EBUSY;
	}
	if (cl->filters) {
		NL_SET_ERR_MSG(extack, "psp: filters lead to the class");
		return -EBUSY;
	}
	if (parent && parent->children == 1) {
		again = qdisc_create_dflt(sch->dev_queue, &pfifo_qdisc_ops, parent->common.classid, extack);
		if (!again)
			return -ENOMEM;
	}
	sch_tree_lock(sch);
	psp_sleep(&q->sched, &cl->engine);
	qdisc_purge_queue(cl->qdisc);
	qdisc_class_hash_remove(&q->classes, &cl->common);
	q->classes_n--;
	if (parent) {
		parent->children--;
		if (again) {
			parent->qdisc = again;
			psp_clock_catch_up(&parent->engine.clock, parent->group.clock.at_ps);
		}
	}
	psp_count_paced(q);
	sch_tree_unlock(sch);
	if (again)
		qdisc_hash_add(again, true);
	psp_class_free(cl);
	return 0;
}

static int psp_graft(struct Qdisc *sch, unsigned long arg, struct Qdisc *new, struct Qdisc **old,
		     struct netlink_ext_ack *extack)
{
	struct psp_cl *cl = (struct psp_cl *)arg;

	if (!cl->qdisc) {
		NL_SET_ERR_MSG(extack, "psp: the class is a group: its children have qdiscs");
		return -EINVAL;
	}
	if (!new) {
		new = qdisc_create_dflt(sch->dev_queue, &pfifo_qdisc_ops, cl->common.classid, extack);
		if (!new)
			return -ENOBUFS;
	}
	/* Empties the old one, which puts the class to sleep (psp_qlen_notify). */
	*old = qdisc_replace(sch, new, &cl->qdisc);
	/* The new one has frames already where it was another class's before. */
	sch_tree_lock(sch);
	psp_activate(sch, cl);
	sch_tree_unlock(sch);
	psp_run(sch);
	return 0;
}

static struct Qdisc *psp_leaf(struct Qdisc *sch, unsigned long arg)
{
	return ((struct psp_cl *)arg)->qdisc;
}

/*
 * Under the root lock: the class's qdisc became empty by itself. May be told more than once, and of a qdisc that is the
 * class's no more, or whose class is gone.
 */
static void psp_qlen_notify(struct Qdisc *sch, unsigned long arg)
{
	struct psp_data *q = qdisc_priv(sch);
	/* The direct class has no number by which psp_search could find it. */
	struct psp_cl *cl = arg ? (struct psp_cl *)arg : q->direct;

	if (!cl->qdisc || !cl->qdisc->q.qlen)
		psp_sleep(&q->sched, &cl->engine);
}

static unsigned long psp_search(struct Qdisc *sch, u32 classid)
{
	return (unsigned long)psp_find(sch, classid);
}

static struct tcf_block *psp_block(struct Qdisc *sch, unsigned long arg, struct netlink_ext_ack *extack)
{
	struct psp_data *q = qdisc_priv(sch);

	if (arg) {
		NL_SET_ERR_MSG(extack, "psp: filters are the qdisc's: parent is its handle");
		return NULL;
	}
	return q->block;
}

static unsigned long psp_bind(struct Qdisc *sch, unsigned long parent, u32 classid)
{
	struct psp_cl *cl = psp_find(sch, classid);

	if (cl)
		cl->filters++;
	return (unsigned long)cl;
}

static void psp_unbind(struct Qdisc *sch, unsigned long arg)
{
	((struct psp_cl *)arg)->filters--;
}

static void psp_walk(struct Qdisc *sch, struct qdisc_walker *walker)
{
	struct psp_data *q = qdisc_priv(sch);
	struct psp_cl *cl;
	unsigned int i;

	if (walker->stop)
		return;
	for (i = 0; i < q->classes.hashsize; i++) {
		hlist_for_each_entry(cl, &q->classes.hash[i], common.hnode) {
			if (walker->count < walker->skip) {
				walker->count++;
				continue;
			}
			if (walker->fn(sch, (unsigned long)cl, walker) < 0) {
				walker->stop = 1;
				return;
			}
			/* Not before: what did not fit is asked for again. */
			walker->count++;
		}
	}
}

static int psp_dump_class(struct Qdisc *sch, unsigned long arg, struct sk_buff *skb, struct tcmsg *tcm)
{
	struct psp_cl *cl = (struct psp_cl *)arg;
	struct nlattr *nest;

	tcm->tcm_parent = cl->parent ? cl->parent->common.classid : TC_H_ROOT;
	tcm->tcm_handle = cl->common.classid;
	if (cl->qdisc)
		tcm->tcm_info = cl->qdisc->handle;
	nest = nla_nest_start_noflag(skb, TCA_OPTIONS);
	if (!nest)
		return -EMSGSIZE;
	if (nla_put_u8(skb, TCA_PSP_MODE, cl->mode) ||
	    (cl->rate_bps && nla_put_u64_64bit(skb, TCA_PSP_RATE, cl->rate_bps, TCA_PSP_PAD))) {
		nla_nest_cancel(skb, nest);
		return -EMSGSIZE;
	}
	return nla_nest_end(skb, nest);
}

static int psp_dump_class_stats(struct Qdisc *sch, unsigned long arg, struct gnet_dump *d)
{
	struct psp_cl *cl = (struct psp_cl *)arg;
	struct gnet_stats_queue queue;
	struct psp_xstats x;
	u32 qlen = 0;

	sch_tree_lock(sch);
	x = cl->xstats;
	x.rate_bps = psp_rate_in_force(cl);
	x.lost_ps = cl->engine.lost_ps;
	queue = cl->qstats;
	if (cl->qdisc) {
		qlen = cl->qdisc->q.qlen;
		queue.backlog = cl->qdisc->qstats.backlog;
	}
	sch_tree_unlock(sch);
	if (gnet_stats_copy_basic(d, NULL, &cl->bstats, true) < 0 ||
	    gnet_stats_copy_rate_est(d, &cl->rate_est) < 0 ||
	    gnet_stats_copy_queue(d, NULL, &queue, qlen) < 0)
		return -1;
	return gnet_stats_copy_app(d, &x, sizeof(x));
}

const struct Qdisc_class_ops psp_class_ops = {
	.graft		= psp_graft,
	.leaf		= psp_leaf,
	.qlen_notify	= psp_qlen_notify,
	.find		= psp_search,
	.change		= psp_change_or_add,
	.delete		= psp_delete_class,
	.walk		= psp_walk,
	.tcf_block	= psp_block,
	.bind_tcf	= psp_bind,
	.unbind_tcf	= psp_unbind,
	.dump		= psp_dump_class,
	.dump_stats	= psp_dump_class_stats,
};
