// SPDX-License-Identifier: GPL-2.0-only
/*
 * cost ADDRESS PORT FRAME_BYTES COUNT <STATS: instructions per frame of everything that sends COUNT datagrams, in a machine
 * of one processor where an instruction takes a nanosecond.
 *
 *	spin:  a process of the lowest priority (SCHED_IDLE) counts; the processor is never idle
 *	quiet: t0 .. t1 nothing else happens:	a count takes r = (t1 - t0) / (c1 - c0) ns, ticks of the clock included
 *	run:   t1 .. t2 frames are sent and go:	busy = (t2 - t1) - r * (c2 - c1)
 *
 * What is not the spinner's is the work: the sending process, the stack, the qdisc, the device and its interrupts, the far
 * side that drops the frame, and a look at STATS (pspwire's, not to be seen by name in another namespace) every LOOK_NS,
 * until it says "frames COUNT". Prints
 * "frames N busy_ns N elapsed_ns N looks N". Exit code: 0, 1 failed, 2 bad input.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define QUIET_NS 200000000L
#define LOOK_NS 50000000L
#define LOOKS_MAX 4000
/* Ethernet 14, IPv4 20, UDP 8, FCS 4. */
#define HEADERS 46

static volatile uint64_t *spins;

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ULL + t.tv_nsec;
}

static void pause_ns(long ns)
{
	struct timespec t = { 0, ns };

	nanosleep(&t, NULL);
}

static int fail(const char *what)
{
	fprintf(stderr, "cost: %s: %s\n", what, strerror(errno));
	return 1;
}

static long frames_sent(int fd)
{
	char text[512];
	ssize_t n = pread(fd, text, sizeof(text) - 1, 0);

	if (n <= 0)
		return -1;
	text[n] = 0;
	return strncmp(text, "frames ", 7) ? -1 : atol(text + 7);
}

static pid_t spin(void)
{
	struct sched_param lowest = { 0 };
	pid_t pid = fork();

	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (sched_setscheduler(0, SCHED_IDLE, &lowest))
		_exit(1);
	for (;;)
		++*spins;
}

static int measure(int socket_fd, const struct sockaddr_in *to, long frame, long count, int stats)
{
	static char payload[1518];
	uint64_t t0, t1, t2, c0, c1, c2;
	long i, looks = 0, sent;
	double each;

	/* The spinner runs, and what is read is in memory. */
	pause_ns(QUIET_NS / 4);
	frames_sent(stats);
	t0 = now_ns();
	c0 = *spins;
	pause_ns(QUIET_NS);
	t1 = now_ns();
	c1 = *spins;
	if (c1 == c0) {
		fprintf(stderr, "cost: the counter stands still\n");
		return 1;
	}
	for (i = 0; i < count; i++)
		if (sendto(socket_fd, payload, frame - HEADERS, 0, (const struct sockaddr *)to, sizeof(*to)) < 0)
			return fail("send");
	while ((sent = frames_sent(stats)) < count && looks < LOOKS_MAX) {
		pause_ns(LOOK_NS);
		looks++;
	}
	t2 = now_ns();
	c2 = *spins;
	if (sent < count) {
		fprintf(stderr, "cost: %ld of %ld frames were sent\n", sent, count);
		return 1;
	}
	each = (double)(t1 - t0) / (c1 - c0);
	printf("frames %ld busy_ns %.0f elapsed_ns %llu looks %ld\n", count, (t2 - t1) - each * (c2 - c1),
	       (unsigned long long)(t2 - t1), looks);
	return 0;
}

int main(int argc, char **argv)
{
	struct sockaddr_in to = { .sin_family = AF_INET };
	int fd, code;
	long frame, count;
	pid_t child;

	if (argc != 5 || inet_pton(AF_INET, argv[1], &to.sin_addr) != 1) {
		fprintf(stderr, "usage: cost ADDRESS PORT FRAME_BYTES COUNT <STATS\n");
		return 2;
	}
	to.sin_port = htons(atoi(argv[2]));
	frame = atol(argv[3]);
	count = atol(argv[4]);
	if (frame < 64 || frame > 1518 || count < 1) {
		fprintf(stderr, "cost: FRAME_BYTES is 64 to 1518, COUNT 1 or more\n");
		return 2;
	}
	fd = socket(AF_INET, SOCK_DGRAM, 0);
	spins = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (fd < 0 || spins == MAP_FAILED)
		return fail("socket");
	child = spin();
	if (child < 0)
		return fail("fork");
	code = measure(fd, &to, frame, count, STDIN_FILENO);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	return code;
}
