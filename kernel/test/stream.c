// SPDX-License-Identifier: GPL-2.0-only
/*
 * TCP streams from memory to nowhere, cheap in instructions: in virtual time each one is a nanosecond of the processor.
 *
 *	stream sink PORT COUNT READY		listens on COUNT ports from PORT on, makes the file READY, then throws away
 *						what comes (not copied), until it is killed
 *	stream send ADDRESS PORT MS DILATION OUT CONGESTION:START_MS...
 *						one stream per argument, to PORT, PORT + 1, ..., until MS after zero
 *
 * DILATION (1 to 100): so many seconds of the machine are one of the path; MS and START_MS are the machine's.
 * zero is a multiple of BIN_NS * DILATION of CLOCK_MONOTONIC, so that the meter's windows begin with it. OUT: "zero_ns N",
 * then what TCP_INFO says every SAMPLE_MS * DILATION: "PORT t_ms cwnd_segments rtt_us retrans_segments unacked_segments mss_bytes".
 * Exit code: 0 sent, 1 failed, 2 bad input.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define STREAMS_MAX 64
#define SAMPLE_MS 100
#define MS_MAX 15000000L
#define BIN_NS 500000ULL
#define DILATION_MAX 100L
#define CHUNK (1 << 20)
/* The sink is woken for this much: a reader woken for each frame costs more than TCP itself. */
#define LOW_WATER (64 << 10)

static char *scrap;
/* How often a second of the path's time goes into one of the machine's; samples and windows are so much longer. */
static long dilation = 1;

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ULL + t.tv_nsec;
}

static int fail(const char *what)
{
	fprintf(stderr, "stream: %s: %s\n", what, strerror(errno));
	return 1;
}

static long number(const char *text, long least, long most)
{
	char *end;
	long value = strtol(text, &end, 10);

	if (!*text || *end || value < least || value > most) {
		fprintf(stderr, "stream: %s: %ld to %ld is valid\n", text, least, most);
		exit(2);
	}
	return value;
}

static int sink(long port, long count, const char *ready)
{
	struct pollfd all[STREAMS_MAX] = { 0 };
	int listening[STREAMS_MAX], low = LOW_WATER, fd;
	long i;

	for (i = 0; i < count; i++) {
		struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(port + i) };

		fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
		if (fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof(at)) || listen(fd, 1))
			return fail("listen");
		all[i] = (struct pollfd){ .fd = fd, .events = POLLIN };
		listening[i] = 1;
	}
	fd = open(ready, O_CREAT | O_WRONLY, 0644);
	if (fd < 0)
		return fail(ready);
	close(fd);
	for (;;) {
		if (poll(all, count, -1) < 0)
			return fail("poll");
		for (i = 0; i < count; i++) {
			if (!all[i].revents)
				continue;
			if (listening[i]) {
				fd = accept4(all[i].fd, NULL, NULL, SOCK_NONBLOCK);
				if (fd < 0)
					continue;
				if (setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof(low)))
					return fail("SO_RCVLOWAT");
				close(all[i].fd);
				all[i].fd = fd;
				listening[i] = 0;
			} else if (recv(all[i].fd, scrap, CHUNK, MSG_TRUNC) == 0) {
				/* The other end is done. */
				close(all[i].fd);
				all[i].fd = -1;
			}
		}
	}
}

struct stream {
	char congestion[16];
	uint64_t start_ns;
	int fd;
};

static struct stream streams[STREAMS_MAX];

static int start(struct stream *s, const struct sockaddr_in *to)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	if (fd < 0)
		return fail("socket");
	if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, s->congestion, strlen(s->congestion)))
		return fail(s->congestion);
	if (connect(fd, (const struct sockaddr *)to, sizeof(*to)))
		return fail("connect");
	if (fcntl(fd, F_SETFL, O_NONBLOCK))
		return fail("O_NONBLOCK");
	s->fd = fd;
	return 0;
}

static int sample(FILE *out, const struct stream *s, long port, uint64_t t_ns)
{
	struct tcp_info info;
	socklen_t len = sizeof(info);

	memset(&info, 0, sizeof(info));
	if (getsockopt(s->fd, IPPROTO_TCP, TCP_INFO, &info, &len))
		return fail("TCP_INFO");
	fprintf(out, "%ld %llu %u %u %u %u %u\n", port, (unsigned long long)(t_ns / 1000000), info.tcpi_snd_cwnd,
		info.tcpi_rtt, info.tcpi_total_retrans, info.tcpi_unacked, info.tcpi_snd_mss);
	return 0;
}

/* Pages of a file in memory: nothing is copied. */
static int push(int fd, int pages)
{
	off_t at = 0;

	if (sendfile(fd, pages, &at, CHUNK) < 0 && errno != EAGAIN && errno != EINTR)
		return fail("send");
	return 0;
}

static int send_all(const char *address, long port, long ms, const char *path, int count)
{
	struct sockaddr_in to = { .sin_family = AF_INET };
	struct pollfd all[STREAMS_MAX];
	uint64_t zero, end, next, now;
	int pages = memfd_create("stream", 0), i, n;
	FILE *out = fopen(path, "w");

	if (inet_pton(AF_INET, address, &to.sin_addr) != 1) {
		fprintf(stderr, "stream: %s: an IPv4 address is valid\n", address);
		return 2;
	}
	if (!out || pages < 0)
		return fail(path);
	for (i = 0; i < CHUNK; i += 4096)
		if (write(pages, scrap, 4096) != 4096)
			return fail("memory");
	zero = (now_ns() / (BIN_NS * dilation) + 4) * BIN_NS * dilation;
	end = zero + ms * 1000000ULL;
	next = zero;
	fprintf(out, "zero_ns %llu\n", (unsigned long long)zero);
	while (now_ns() < zero)
		;
	for (now = zero; now < end; now = now_ns()) {
		uint64_t until = end;

		if (now >= next) {
			for (i = 0; i < count; i++)
				if (streams[i].fd >= 0 && sample(out, &streams[i], port + i, now - zero))
					return 1;
			next += SAMPLE_MS * 1000000ULL * dilation;
		}
		until = next < until ? next : until;
		for (i = 0; i < count; i++) {
			struct stream *s = &streams[i];

			to.sin_port = htons(port + i);
			if (s->fd < 0 && now >= zero + s->start_ns && start(s, &to))
				return 1;
			if (s->fd < 0 && zero + s->start_ns < until)
				until = zero + s->start_ns;
			all[i] = (struct pollfd){ .fd = s->fd, .events = POLLOUT };
		}
		now = now_ns();
		n = poll(all, count, until > now ? (until - now + 999999) / 1000000 : 0);
		if (n < 0 && errno != EINTR)
			return fail("poll");
		for (i = 0; i < count; i++)
			if (n > 0 && all[i].revents && push(all[i].fd, pages))
				return 1;
	}
	for (i = 0; i < count; i++)
		if (streams[i].fd >= 0 && sample(out, &streams[i], port + i, now - zero))
			return 1;
	return fclose(out) ? fail(path) : 0;
}

int main(int argc, char **argv)
{
	int i;

	scrap = mmap(NULL, CHUNK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (scrap == MAP_FAILED || mlockall(MCL_CURRENT | MCL_FUTURE))
		return fail("memory");
	if (argc == 5 && !strcmp(argv[1], "sink"))
		return sink(number(argv[2], 1, 65000), number(argv[3], 1, STREAMS_MAX), argv[4]);
	if (argc < 8 || strcmp(argv[1], "send") || argc - 7 > STREAMS_MAX) {
		fprintf(stderr, "usage: stream sink PORT COUNT READY | "
			"stream send ADDRESS PORT MS DILATION OUT CONGESTION:START_MS... (%d at most)\n", STREAMS_MAX);
		return 2;
	}
	dilation = number(argv[5], 1, DILATION_MAX);
	for (i = 7; i < argc; i++) {
		struct stream *s = &streams[i - 7];
		char *colon = strchr(argv[i], ':');

		if (!colon || colon == argv[i] || (size_t)(colon - argv[i]) >= sizeof(s->congestion)) {
			fprintf(stderr, "stream: %s: CONGESTION:START_MS is valid\n", argv[i]);
			return 2;
		}
		memcpy(s->congestion, argv[i], colon - argv[i]);
		s->start_ns = number(colon + 1, 0, MS_MAX) * 1000000ULL;
		s->fd = -1;
	}
	return send_all(argv[2], number(argv[3], 1, 65000), number(argv[4], 1, MS_MAX), argv[6], argc - 7);
}
