// SPDX-License-Identifier: GPL-2.0-only
/*
 * idle OUT PROGRESS: keeps the virtual processor busy while nothing else wants it, and tells how much that was.
 *
 * A processor that halts costs the emulator far more than one that goes on: two of its threads take turns at every
 * sleep and wake-up, and a path has tens of them per frame. So a process of the lowest priority (SCHED_IDLE) takes what
 * is left, in blocks of SPIN instructions that do nothing, which the emulator passes in no time of its own. Everything
 * else runs when it would have run: an interrupt interrupts, a process that wakes takes the processor.
 *
 *	idle time = blocks * SPIN instructions * 1 ns		exact, as an instruction takes a nanosecond of virtual time
 *
 * Each second: a line "elapsed_ns idle_ns" in OUT, and the seconds so far in PROGRESS. On SIGTERM it ends with a last
 * line.
 * Exit code: 0, 1 failed, 2 bad input.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SECOND_NS 1000000000ULL
/* One block: NOPS that do nothing, the count and the jump. The emulator translates 512 instructions at once at most. */
#define NOPS 500
#define SPIN (NOPS + 2ULL)
#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

static volatile sig_atomic_t ended;

static void end(int signal)
{
	(void)signal;
	ended = 1;
}

static int fail(const char *what)
{
	fprintf(stderr, "idle: %s: %s\n", what, strerror(errno));
	return 1;
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * SECOND_NS + t.tv_nsec;
}

static pid_t spin(uint64_t *blocks)
{
	struct sched_param lowest = { 0 };
	pid_t parent = getpid(), pid = fork();

	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent || sched_setscheduler(0, SCHED_IDLE, &lowest))
		_exit(1);
	/* Within one page, or it would be two blocks. */
	__asm__ volatile(".p2align 10\n"
			 "1:	.rept " TEXT(NOPS) "\n"
			 "	nop\n"
			 "	.endr\n"
			 "	incq (%0)\n"
			 "	jmp 1b\n" : : "r"(blocks) : "memory");
	__builtin_unreachable();
}

int main(int argc, char **argv)
{
	struct sigaction act = { .sa_handler = end };
	uint64_t *blocks, zero, t0, t1, c0, c1, second = 0;
	FILE *out;
	pid_t child;

	if (argc != 3) {
		fprintf(stderr, "usage: idle OUT PROGRESS\n");
		return 2;
	}
	blocks = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	out = fopen(argv[1], "w");
	if (!out || blocks == MAP_FAILED || mlockall(MCL_CURRENT | MCL_FUTURE))
		return fail(argv[1]);
	sigaction(SIGTERM, &act, NULL);
	child = spin(blocks);
	if (child < 0)
		return fail("fork");
	zero = t0 = now_ns();
	c0 = __atomic_load_n(blocks, __ATOMIC_RELAXED);
	while (!ended) {
		uint64_t next = zero + ++second * SECOND_NS;
		struct timespec until = { next / SECOND_NS, next % SECOND_NS };
		FILE *progress;

		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
		t1 = now_ns();
		c1 = __atomic_load_n(blocks, __ATOMIC_RELAXED);
		fprintf(out, "%llu %llu\n", (unsigned long long)(t1 - t0), (unsigned long long)((c1 - c0) * SPIN));
		t0 = t1;
		c0 = c1;
		progress = ended ? NULL : fopen(argv[2], "w");
		if (progress) {
			fprintf(progress, "%llu s\n", (unsigned long long)second);
			fclose(progress);
		}
	}
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	return fclose(out) ? fail(argv[1]) : 0;
}
