/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What passes between tc and the module, within TCA_OPTIONS of kind "psp". All integers in host order, rates in bit/s
 * at frame level (MAC header to FCS).
 */
#ifndef PSP_NETLINK_H
#define PSP_NETLINK_H

#include <linux/types.h>

enum {
	TCA_PSP_UNSPEC,
	TCA_PSP_DEFAULT,	/* u32: minor number of the class for what no filter knows; 0: none, unpaced */
	TCA_PSP_PACE,		/* u8: enum psp_pace */
	TCA_PSP_PHY,		/* u64: the wire's speed, bit/s with preamble and gap; 0: ask the device */
	TCA_PSP_MODE,		/* u8: enum psp_mode, of a class */
	TCA_PSP_RATE,		/* u64: of a class */
	TCA_PSP_USED,		/* u8, dump: pacing in use, enum psp_pace without auto */
	TCA_PSP_WHY,		/* u8, dump: why not gap frames, enum psp_why */
	TCA_PSP_WIRE,		/* u64, dump: speed in use; 0: unknown */
	TCA_PSP_PAD,
	__TCA_PSP_MAX,
};

#define TCA_PSP_MAX (__TCA_PSP_MAX - 1)

enum psp_pace {
	PSP_PACE_AUTO,
	PSP_PACE_GAP,
	PSP_PACE_TIMER,
	__PSP_PACE_MAX,
};

enum psp_mode {
	PSP_MODE_NONE,
	PSP_MODE_STATIC,
	PSP_MODE_DYNAMIC,
	__PSP_MODE_MAX,
};

enum psp_why {
	PSP_WHY_ASKED,		/* as asked for */
	PSP_WHY_NOT_ETHERNET,
	PSP_WHY_NOT_ROOT,	/* other qdiscs share the wire */
	PSP_WHY_VIRTUAL,	/* a device without hardware never blocks */
	PSP_WHY_NO_SPEED,	/* the device tells none */
	PSP_WHY_PAUSE,		/* the device sends PAUSE frames of its own */
	PSP_WHY_MTU,		/* too small for gap frames */
	PSP_WHY_RUNAWAY,	/* gap frames ran ahead of time: the device did not block */
	__PSP_WHY_MAX,
};

/* Statistics of a class; of the qdisc itself the sums and what follows `lost_ps`. */
struct psp_xstats {
	__u64 frames;		/* sent */
	__u64 bytes;		/* of them, MAC header to FCS */
	__u64 gap_frames;	/* sent while this class was waited for */
	__u64 gap_bytes;	/* of them, MAC header to FCS */
	__u64 drop_queue;	/* frames that the class's qdisc refused */
	__u64 drop_gso;		/* superframes that could not be segmented */
	__u64 achieved_bps;	/* over the last whole second, or the last frame where those are rarer */
	__u64 rate_bps;		/* in force now; dynamic classes change it; 0: none */
	__u64 lost_ps;		/* place given up because the wire was overbooked */
	__u64 direct_frames;	/* qdisc: sent unpaced because no class was there for them */
	__u64 runaways;		/* qdisc: times that gap frames were given up for the timer */
	__u64 gap_failures;	/* qdisc: gap frames for which there was no memory */
	__u64 ahead_ns;		/* qdisc: the wire is filled so far beyond now */
	__u64 skew_ns;		/* qdisc: gap frames: the wire's clock gained so much on this machine's */
};

#endif
