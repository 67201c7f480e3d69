// SPDX-License-Identifier: GPL-2.0-only
/*
 * pspwire: two network devices, psw0 and psw1, joined by a wire that takes time. For tests alone.
 *
 *	start = max(end of the frame before, now)
 *	end   = start + (max(frame, 64) + 20) * ps_per_byte		frame: MAC header to FCS
 *
 * A frame that is handed to a device waits in its ring until its end; a full ring stops the queue, as a card's does.
 * start and end are computed when the frame is taken, so they are exact however late the timer is that delivers it;
 * the wire has a hole only where the ring ran empty. At the far side PAUSE frames are counted and dropped, as a
 * switch's input does; others arrive with their end as time stamp.
 *
 * Parameters: speed_mbps (10 to 800000, ps per byte a whole number), ring (frames, 8 to 4096), bql (byte queue
 * limits: the driver tells the kernel what it took and what has left, and the kernel stops the queue before the ring is
 * full), tell_ns (1000 to 10000000: a card tells of sent frames in groups, so far apart).
 * /sys/kernel/debug/pspwire/psw0/{log,stats,clear,hold,speed}: what left psw0. log: "start_ps frame_bytes" of each
 * frame but PAUSE, up to LOG_MAX. Any write to clear empties both. 1 in hold stops the queue as if the ring were
 * full, 0 lets it go: a test that wants frames to wait from the first one on fills the qdisc first. Mbit/s in speed:
 * the wire has that speed from now on, and the devices say that their link has changed, as after a negotiation.
 * Without a link none is told.
 */
#include <linux/debugfs.h>
#include <linux/etherdevice.h>
#include <linux/ethtool.h>
#include <linux/hrtimer.h>
#include <linux/module.h>
#include <linux/netdevice.h>
#include <linux/rtnetlink.h>
#include <linux/seq_file.h>
#include <linux/vmalloc.h>
#include <net/dst.h>

#define LOG_MAX BIT(19)
#define MAC_CONTROL 0x8808
#define FRAME_MIN 64u
#define L1_OVERHEAD 20u
#define MTU_MAX 9000

static unsigned int speed_mbps = 1000;
module_param(speed_mbps, uint, 0444);
MODULE_PARM_DESC(speed_mbps, "speed of the wire in Mbit/s with preamble and gap");
static unsigned int ring = 256;
module_param(ring, uint, 0444);
MODULE_PARM_DESC(ring, "frames that a device takes before its queue stops");
static bool bql;
module_param(bql, bool, 0444);
MODULE_PARM_DESC(bql, "byte queue limits");
static unsigned int tell_ns = 20000;
module_param(tell_ns, uint, 0444);
MODULE_PARM_DESC(tell_ns, "a card tells of sent frames in groups: nanoseconds between them");

struct stamp {
	u64 start_ps;
	u32 bytes;
};

struct side {
	struct net_device *dev;
	struct net_device *peer;
	struct dentry *folder;
	struct hrtimer timer;
	spinlock_t lock;		/* what follows */
	struct sk_buff **skbs;
	u64 *ends_ps;
	unsigned int head, used;
	u64 busy_until_ps;
	bool told;			/* the timer is set */
	bool held;			/* the queue is stopped from outside */
	struct stamp *log;
	u32 logged;
	u64 frames, bytes, pauses, pause_bytes, lost_stamps, stops, holes;
	u32 largest_pause;
};

static u64 epoch_ns, ps_per_byte;
static struct net_device *devices[2];
static struct dentry *root;

static u64 now_ps(void)
{
	return (ktime_get_ns() - epoch_ns) * 1000;
}

static bool is_pause(const struct sk_buff *skb)
{
	static const u8 address[ETH_ALEN] __aligned(2) = { 0x01, 0x80, 0xc2, 0x00, 0x00, 0x01 };
	const struct ethhdr *eth = (const struct ethhdr *)skb->data;

	return eth->h_proto == htons(MAC_CONTROL) && ether_addr_equal_unaligned(eth->h_dest, address);
}

static void note(struct side *s, const struct sk_buff *skb, u32 bytes, u64 start_ps)
{
	if (is_pause(skb)) {
		s->pauses++;
		s->pause_bytes += bytes;
		s->largest_pause = max(s->largest_pause, bytes);
		return;
	}
	s->frames++;
	s->bytes += bytes;
	if (s->logged == LOG_MAX) {
		s->lost_stamps++;
		return;
	}
	s->log[s->logged].start_ps = start_ps;
	s->log[s->logged++].bytes = bytes;
}

static netdev_tx_t wire_xmit(struct sk_buff *skb, struct net_device *dev)
{
	struct side *s = netdev_priv(dev);
	u32 bytes = max(skb->len + ETH_FCS_LEN, FRAME_MIN);
	u64 now = now_ps(), start;
	unsigned int slot;

	spin_lock_bh(&s->lock);
	if (s->used == ring || s->held) {
		netif_stop_queue(dev);
		spin_unlock_bh(&s->lock);
		return NETDEV_TX_BUSY;
	}
	start = max(s->busy_until_ps, now);
	s->holes += now > s->busy_until_ps;
	s->busy_until_ps = start + (bytes + L1_OVERHEAD) * ps_per_byte;
	note(s, skb, bytes, start);
	slot = (s->head + s->used++) % ring;
	s->skbs[slot] = skb;
	s->ends_ps[slot] = s->busy_until_ps;
	if (bql)
		netdev_sent_queue(dev, skb->len);
	if (s->used == ring) {
		s->stops++;
		netif_stop_queue(dev);
	}
	if (!s->told) {
		s->told = true;
		hrtimer_start(&s->timer, ns_to_ktime(tell_ns), HRTIMER_MODE_REL_SOFT);
	}
	spin_unlock_bh(&s->lock);
	return NETDEV_TX_OK;
}

static void deliver(struct side *s, struct sk_buff *skb, u64 end_ps)
{
	struct net_device *peer = s->peer;

	dev_sw_netstats_tx_add(s->dev, 1, skb->len);
	if (is_pause(skb) || !netif_running(peer)) {
		consume_skb(skb);
		return;
	}
	skb_orphan(skb);
	skb_dst_drop(skb);
	skb->tstamp = ns_to_ktime(epoch_ns + div64_u64(end_ps, 1000));
	skb->protocol = eth_type_trans(skb, peer);
	dev_sw_netstats_rx_add(peer, skb->len + ETH_HLEN);
	netif_rx(skb);
}

static enum hrtimer_restart wire_timer(struct hrtimer *timer)
{
	struct side *s = container_of(timer, struct side, timer);
	u64 now = now_ps(), wait_ns = 0;
	unsigned int sent = 0, sent_bytes = 0;

	for (;;) {
		struct sk_buff *skb = NULL;
		u64 end = 0;

		spin_lock(&s->lock);
		if (s->used && s->ends_ps[s->head] <= now) {
			skb = s->skbs[s->head];
			end = s->ends_ps[s->head];
			s->head = (s->head + 1) % ring;
			s->used--;
		} else if (s->used) {
			wait_ns = max_t(u64, div64_u64(s->ends_ps[s->head] - now + 999, 1000), tell_ns);
		} else {
			s->told = false;
		}
		if (!skb && s->used < ring && !s->held && netif_queue_stopped(s->dev) && netif_running(s->dev))
			netif_wake_queue(s->dev);
		spin_unlock(&s->lock);
		if (!skb)
			break;
		sent++;
		sent_bytes += skb->len;
		deliver(s, skb, end);
	}
	if (bql && sent)
		netdev_completed_queue(s->dev, sent, sent_bytes);
	if (!wait_ns)
		return HRTIMER_NORESTART;
	hrtimer_forward_now(timer, ns_to_ktime(wait_ns));
	return HRTIMER_RESTART;
}

static int wire_open(struct net_device *dev)
{
	struct side *s = netdev_priv(dev);

	netif_start_queue(dev);
	if (netif_running(s->peer)) {
		netif_carrier_on(dev);
		netif_carrier_on(s->peer);
	}
	return 0;
}

static int wire_stop(struct net_device *dev)
{
	struct side *s = netdev_priv(dev);

	netif_stop_queue(dev);
	netif_carrier_off(dev);
	netif_carrier_off(s->peer);
	hrtimer_cancel(&s->timer);
	spin_lock_bh(&s->lock);
	for (; s->used; s->used--) {
		kfree_skb(s->skbs[s->head]);
		s->head = (s->head + 1) % ring;
	}
	s->told = false;
	netdev_reset_queue(dev);
	spin_unlock_bh(&s->lock);
	return 0;
}

static void wire_stats(struct net_device *dev, struct rtnl_link_stats64 *stats)
{
	dev_fetch_sw_netstats(stats, dev->tstats);
}

static int wire_init(struct net_device *dev)
{
	dev->tstats = netdev_alloc_pcpu_stats(struct pcpu_sw_netstats);
	return dev->tstats ? 0 : -ENOMEM;
}

static void wire_uninit(struct net_device *dev)
{
	free_percpu(dev->tstats);
}

static const struct net_device_ops wire_ops = {
	.ndo_init		= wire_init,
	.ndo_uninit		= wire_uninit,
	.ndo_open		= wire_open,
	.ndo_stop		= wire_stop,
	.ndo_start_xmit		= wire_xmit,
	.ndo_get_stats64	= wire_stats,
	.ndo_set_mac_address	= eth_mac_addr,
	.ndo_validate_addr	= eth_validate_addr,
};

static int wire_settings(struct net_device *dev, struct ethtool_link_ksettings *settings)
{
	settings->base.speed = netif_carrier_ok(dev) ? speed_mbps : SPEED_UNKNOWN;
	settings->base.duplex = DUPLEX_FULL;
	settings->base.autoneg = AUTONEG_DISABLE;
	return 0;
}

static const struct ethtool_ops wire_ethtool = {
	.get_link		= ethtool_op_get_link,
	.get_link_ksettings	= wire_settings,
};

static int log_show(struct seq_file *file, void *unused)
{
	struct side *s = file->private;
	u32 i, n = READ_ONCE(s->logged);

	for (i = 0; i < n; i++)
		seq_printf(file, "%llu %u\n", s->log[i].start_ps, s->log[i].bytes);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(log);

static int stats_show(struct seq_file *file, void *unused)
{
	struct side *s = file->private;

	spin_lock_bh(&s->lock);
	seq_printf(file, "frames %llu\nbytes %llu\npause_frames %llu\npause_bytes %llu\nlost_stamps %llu\n",
		   s->frames, s->bytes, s->pauses, s->pause_bytes, s->lost_stamps);
	seq_printf(file, "queue_stops %llu\nholes %llu\nring_used %u\nlargest_pause %u\n",
		   s->stops, s->holes, s->used, s->largest_pause);
	spin_unlock_bh(&s->lock);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(stats);

static ssize_t clear_write(struct file *file, const char __user *text, size_t len, loff_t *at)
{
	struct side *s = file->private_data;

	spin_lock_bh(&s->lock);
	s->logged = 0;
	s->frames = 0;
	s->bytes = 0;
	s->pauses = 0;
	s->pause_bytes = 0;
	s->largest_pause = 0;
	s->lost_stamps = 0;
	s->stops = 0;
	s->holes = 0;
	spin_unlock_bh(&s->lock);
	return len;
}

static ssize_t hold_write(struct file *file, const char __user *text, size_t len, loff_t *at)
{
	struct side *s = file->private_data;
	bool held;
	int err = kstrtobool_from_user(text, len, &held);

	if (err)
		return err;
	spin_lock_bh(&s->lock);
	s->held = held;
	if (held)
		netif_stop_queue(s->dev);
	else if (s->used < ring && netif_running(s->dev))
		netif_wake_queue(s->dev);
	spin_unlock_bh(&s->lock);
	return len;
}

static const struct file_operations hold_fops = {
	.owner	= THIS_MODULE,
	.open	= simple_open,
	.write	= hold_write,
};

static bool speed_is_valid(unsigned int mbps)
{
	return mbps >= 10 && mbps <= 800000 && 8000000 % mbps == 0;
}

static ssize_t speed_write(struct file *file, const char __user *text, size_t len, loff_t *at)
{
	unsigned int mbps;
	int err = kstrtouint_from_user(text, len, 10, &mbps);
	int i;

	if (err)
		return err;
	if (!speed_is_valid(mbps))
		return -EINVAL;
	speed_mbps = mbps;
	ps_per_byte = 8000000 / mbps;
	for (i = 0; i < 2; i++) {
		if (!netif_carrier_ok(devices[i]))
			continue;
		netif_carrier_off(devices[i]);
		netif_carrier_on(devices[i]);
	}
	return len;
}

static const struct file_operations speed_fops = {
	.owner	= THIS_MODULE,
	.open	= simple_open,
	.write	= speed_write,
};

static const struct file_operations clear_fops = {
	.owner	= THIS_MODULE,
	.open	= simple_open,
	.write	= clear_write,
};

static void wire_free(struct net_device *dev)
{
	struct side *s = netdev_priv(dev);

	vfree(s->log);
	kvfree(s->skbs);
	kvfree(s->ends_ps);
	free_netdev(dev);
}

static struct net_device *wire_new(const char *name)
{
	struct net_device *dev = alloc_etherdev(sizeof(struct side));
	struct side *s;

	if (!dev)
		return NULL;
	s = netdev_priv(dev);
	s->dev = dev;
	spin_lock_init(&s->lock);
	hrtimer_init(&s->timer, CLOCK_MONOTONIC, HRTIMER_MODE_REL_SOFT);
	s->timer.function = wire_timer;
	s->skbs = kvcalloc(ring, sizeof(*s->skbs), GFP_KERNEL);
	s->ends_ps = kvcalloc(ring, sizeof(*s->ends_ps), GFP_KERNEL);
	s->log = vzalloc(array_size(LOG_MAX, sizeof(*s->log)));
	strscpy(dev->name, name, sizeof(dev->name));
	dev->netdev_ops = &wire_ops;
	dev->ethtool_ops = &wire_ethtool;
	dev->max_mtu = MTU_MAX;
	dev->features = NETIF_F_SG | NETIF_F_HW_CSUM | NETIF_F_HIGHDMA;
	dev->hw_features = dev->features;
	dev->priv_flags |= IFF_LIVE_ADDR_CHANGE;
	eth_hw_addr_random(dev);
	if (!s->skbs || !s->ends_ps || !s->log) {
		wire_free(dev);
		return NULL;
	}
	return dev;
}

static void add_files(struct net_device *dev)
{
	struct side *s = netdev_priv(dev);

	s->folder = debugfs_create_dir(dev->name, root);
	debugfs_create_file("log", 0400, s->folder, s, &log_fops);
	debugfs_create_file("stats", 0400, s->folder, s, &stats_fops);
	debugfs_create_file("hold", 0200, s->folder, s, &hold_fops);
	debugfs_create_file("clear", 0200, s->folder, s, &clear_fops);
	debugfs_create_file("speed", 0200, s->folder, s, &speed_fops);
}

static int __init wire_module_init(void)
{
	int err = -ENOMEM;

	if (!speed_is_valid(speed_mbps) || ring < 8 || ring > 4096 || tell_ns < 1000 || tell_ns > 10000000) {
		pr_err("pspwire: speed_mbps is 10 to 800000 and divides 8000000, ring is 8 to 4096, tell_ns 1000 to 10000000\n");
		return -EINVAL;
	}
	ps_per_byte = 8000000 / speed_mbps;
	epoch_ns = ktime_get_ns();
	devices[0] = wire_new("psw0");
	devices[1] = wire_new("psw1");
	if (!devices[0] || !devices[1])
		goto free;
	((struct side *)netdev_priv(devices[0]))->peer = devices[1];
	((struct side *)netdev_priv(devices[1]))->peer = devices[0];
	err = register_netdev(devices[0]);
	if (err)
		goto free;
	err = register_netdev(devices[1]);
	if (err) {
		unregister_netdev(devices[0]);
		goto free;
	}
	netif_carrier_off(devices[0]);
	netif_carrier_off(devices[1]);
	root = debugfs_create_dir("pspwire", NULL);
	add_files(devices[0]);
	add_files(devices[1]);
	return 0;
free:
	if (devices[0])
		wire_free(devices[0]);
	if (devices[1])
		wire_free(devices[1]);
	return err;
}

static void __exit wire_module_exit(void)
{
	debugfs_remove_recursive(root);
	unregister_netdev(devices[0]);
	unregister_netdev(devices[1]);
	wire_free(devices[0]);
	wire_free(devices[1]);
}

module_init(wire_module_init)
module_exit(wire_module_exit)
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Two Ethernet devices and a wire that takes time, for the tests of psp");
