// SPDX-License-Identifier: GPL-2.0-only
/*
 * meter DEVICE PORT DILATION OUT: TCP's frames that leave or enter a device, by the kernel's stamps, in windows of BIN_NS *
 * DILATION (1 to 100: how many seconds of the machine are one of the path).
 *
 *	kernel -> ring of blocks (TPACKET_V3, the first SNAP bytes of each frame) -> windows, by port -> OUT on SIGTERM
 *
 * Ports PORT to PORT + 63 (destination) count. OUT: "lost_frames N" (what the ring could not take), then per window that is
 * not empty "PORT start_ns frames frame_bytes payload_bytes"; start_ns is CLOCK_MONOTONIC, frames count from MAC header to
 * FCS. At most WINDOWS_MAX windows (2 h): what is later counts as lost.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define PORTS 64
#define BIN_NS 500000ULL
#define WINDOWS_MAX 14400000ULL
#define WINDOWS_STEP 65536ULL
/* Ethernet, IPv4 and TCP with their options. */
#define SNAP 134
#define BLOCK (1 << 18)
#define BLOCKS 64
#define RETIRE_MS 100
#define FCS 4

struct window {
	uint32_t frames, bytes, payload;
};

static struct window *windows[PORTS];
static uint64_t room[PORTS], first_bin, bin_ns, lost;
static int64_t real_minus_monotonic;
static volatile sig_atomic_t ended;

static void end(int signal)
{
	(void)signal;
	ended = 1;
}

static int fail(const char *what)
{
	fprintf(stderr, "meter: %s: %s\n", what, strerror(errno));
	return 1;
}

static int64_t clock_ns(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static struct window *window_of(unsigned int port, uint64_t bin)
{
	if (bin < first_bin || bin - first_bin >= WINDOWS_MAX)
		return NULL;
	bin -= first_bin;
	if (bin >= room[port]) {
		uint64_t more = (bin / WINDOWS_STEP + 1) * WINDOWS_STEP;
		struct window *grown = realloc(windows[port], more * sizeof(*grown));

		if (!grown)
			return NULL;
		memset(grown + room[port], 0, (more - room[port]) * sizeof(*grown));
		windows[port] = grown;
		room[port] = more;
	}
	return &windows[port][bin];
}

static void count(const struct tpacket3_hdr *h, long base)
{
	const uint8_t *f = (const uint8_t *)h + h->tp_mac;
	unsigned int ip, tcp, port, total;
	struct window *w;
	uint64_t at;

	if (h->tp_snaplen < 54 || f[12] != 8 || f[13] != 0 || f[14] >> 4 != 4 || f[23] != 6)
		return;
	ip = (f[14] & 15) * 4;
	if (ip < 20 || 14 + ip + 20 > h->tp_snaplen)
		return;
	total = f[16] << 8 | f[17];
	port = (f[14 + ip + 2] << 8 | f[14 + ip + 3]) - base;
	tcp = (f[14 + ip + 12] >> 4) * 4;
	if (port >= PORTS)
		return;
	at = h->tp_sec * 1000000000ULL + h->tp_nsec - real_minus_monotonic;
	w = window_of(port, at / bin_ns);
	if (!w) {
		lost++;
		return;
	}
	w->frames++;
	w->bytes += (h->tp_len < ETH_ZLEN ? ETH_ZLEN : h->tp_len) + FCS;
	w->payload += total > ip + tcp ? total - ip - tcp : 0;
}

static int tell(const char *path, int fd, long base)
{
	struct tpacket_stats_v3 stats = { 0 };
	socklen_t len = sizeof(stats);
	FILE *out = fopen(path, "w");
	unsigned int port;
	uint64_t i;

	if (!out || getsockopt(fd, SOL_PACKET, PACKET_STATISTICS, &stats, &len))
		return fail(path);
	fprintf(out, "lost_frames %llu\n", (unsigned long long)(lost + stats.tp_drops));
	for (port = 0; port < PORTS; port++) {
		for (i = 0; i < room[port]; i++) {
			const struct window *w = &windows[port][i];

			if (w->frames)
				fprintf(out, "%ld %llu %u %u %u\n", base + port,
					(unsigned long long)((first_bin + i) * bin_ns), w->frames, w->bytes, w->payload);
		}
	}
	return fclose(out) ? fail(path) : 0;
}

static int open_ring(const char *device, uint8_t **ring)
{
	struct sock_filter snap[] = { { BPF_RET | BPF_K, 0, 0, SNAP } };
	struct sock_fprog program = { 1, snap };
	struct tpacket_req3 request = { .tp_block_size = BLOCK, .tp_block_nr = BLOCKS, .tp_frame_size = 2048,
					.tp_frame_nr = BLOCK / 2048 * BLOCKS, .tp_retire_blk_tov = RETIRE_MS };
	struct sockaddr_ll at = { .sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL) };
	int version = TPACKET_V3, fd = socket(AF_PACKET, SOCK_RAW, 0);

	at.sll_ifindex = if_nametoindex(device);
	if (!at.sll_ifindex || fd < 0 ||
	    setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)) ||
	    setsockopt(fd, SOL_PACKET, PACKET_VERSION, &version, sizeof(version)) ||
	    setsockopt(fd, SOL_PACKET, PACKET_RX_RING, &request, sizeof(request)))
		return -1;
	*ring = mmap(NULL, (size_t)BLOCK * BLOCKS, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_LOCKED, fd, 0);
	if (*ring == MAP_FAILED || bind(fd, (struct sockaddr *)&at, sizeof(at)))
		return -1;
	return fd;
}

int main(int argc, char **argv)
{
	struct sigaction act = { .sa_handler = end };
	unsigned int block = 0, i;
	uint8_t *ring;
	long base, dilation;
	int fd;

	base = argc == 5 ? atol(argv[2]) : 0;
	dilation = argc == 5 ? atol(argv[3]) : 0;
	if (base < 1 || base > 65000 || dilation < 1 || dilation > 100) {
		fprintf(stderr, "usage: meter DEVICE PORT DILATION OUT\n");
		return 2;
	}
	fd = open_ring(argv[1], &ring);
	if (fd < 0)
		return fail(argv[1]);
	sigaction(SIGTERM, &act, NULL);
	real_minus_monotonic = clock_ns(CLOCK_REALTIME) - clock_ns(CLOCK_MONOTONIC);
	bin_ns = BIN_NS * dilation;
	first_bin = clock_ns(CLOCK_MONOTONIC) / bin_ns;
	for (;;) {
		struct tpacket_block_desc *b = (void *)(ring + (size_t)block * BLOCK);
		struct pollfd one = { .fd = fd, .events = POLLIN };
		struct tpacket3_hdr *h;

		if (!(__atomic_load_n(&b->hdr.bh1.block_status, __ATOMIC_ACQUIRE) & TP_STATUS_USER)) {
			/* The last block is retired before the end is told. */
			if (ended && poll(&one, 1, 3 * RETIRE_MS) <= 0)
				return tell(argv[4], fd, base);
			if (!ended)
				poll(&one, 1, 10 * RETIRE_MS);
			continue;
		}
		h = (void *)((uint8_t *)b + b->hdr.bh1.offset_to_first_pkt);
		for (i = 0; i < b->hdr.bh1.num_pkts; i++) {
			count(h, base);
			h = (void *)((uint8_t *)h + h->tp_next_offset);
		}
		__atomic_store_n(&b->hdr.bh1.block_status, TP_STATUS_KERNEL, __ATOMIC_RELEASE);
		block = (block + 1) % BLOCKS;
	}
}
