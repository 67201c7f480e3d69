// SPDX-License-Identifier: GPL-2.0-only
/*
 * feed ADDRESS PORT FRAME_BYTES COUNT: sends COUNT datagrams that become Ethernet frames of FRAME_BYTES (MAC header to
 * FCS, 64 to 1518), as fast as the socket's buffer takes them: its queue is never empty, and nothing is dropped.
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

/* Ethernet 14, IPv4 20, UDP 8, FCS 4. */
#define HEADERS 46

int main(int argc, char **argv)
{
	static char payload[1518];
	struct sockaddr_in to = { .sin_family = AF_INET };
	long frame, count, i;
	int fd;

	if (argc != 5 || inet_pton(AF_INET, argv[1], &to.sin_addr) != 1) {
		fprintf(stderr, "usage: feed ADDRESS PORT FRAME_BYTES COUNT\n");
		return 2;
	}
	to.sin_port = htons(atoi(argv[2]));
	frame = atol(argv[3]);
	count = atol(argv[4]);
	if (frame < 64 || frame > 1518 || count < 1) {
		fprintf(stderr, "feed: FRAME_BYTES is 64 to 1518, COUNT 1 or more\n");
		return 2;
	}
	fd = socket(AF_INET, SOCK_DGRAM, 0);
	if (fd < 0) {
		perror("feed");
		return 1;
	}
	for (i = 0; i < count; i++) {
		/* Not connected: nobody listens, and that is no error. */
		if (sendto(fd, payload, frame - HEADERS, 0, (struct sockaddr *)&to, sizeof(to)) < 0) {
			perror("feed: send");
			return 1;
		}
	}
	return 0;
}
