// SPDX-License-Identifier: GPL-2.0-only
/*
 * feed ADDRESS PORT FRAME_BYTES COUNT [SEGMENTS]: sends COUNT datagrams that become Ethernet frames of FRAME_BYTES (MAC
 * header to FCS, 64 to 1518), as fast as the socket's buffer takes them: its queue is never empty, and nothing is dropped.
 * With SEGMENTS (1 to 40) as COUNT superframes of so many datagrams each (UDP_SEGMENT).
 */
#include <arpa/inet.h>
#include <netinet/udp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

/* Ethernet 14, IPv4 20, UDP 8, FCS 4. */
#define HEADERS 46

int main(int argc, char **argv)
{
	static char payload[40 * 1518];
	struct sockaddr_in to = { .sin_family = AF_INET };
	long frame, count, segments, i;
	int fd, size;

	if (argc < 5 || argc > 6 || inet_pton(AF_INET, argv[1], &to.sin_addr) != 1) {
		fprintf(stderr, "usage: feed ADDRESS PORT FRAME_BYTES COUNT [SEGMENTS]\n");
		return 2;
	}
	to.sin_port = htons(atoi(argv[2]));
	frame = atol(argv[3]);
	count = atol(argv[4]);
	segments = argc == 6 ? atol(argv[5]) : 1;
	if (frame < 64 || frame > 1518 || count < 1 || segments < 1 || segments > 40) {
		fprintf(stderr, "feed: FRAME_BYTES is 64 to 1518, COUNT 1 or more, SEGMENTS 1 to 40\n");
		return 2;
	}
	fd = socket(AF_INET, SOCK_DGRAM, 0);
	if (fd < 0) {
		perror("feed");
		return 1;
	}
	size = frame - HEADERS;
	if (segments > 1 && setsockopt(fd, IPPROTO_UDP, UDP_SEGMENT, &size, sizeof(size)) < 0) {
		perror("feed: UDP_SEGMENT");
		return 1;
	}
	for (i = 0; i < count; i++) {
		/* Not connected: nobody listens, and that is no error. */
		if (sendto(fd, payload, size * segments, 0, (struct sockaddr *)&to, sizeof(to)) < 0) {
			perror("feed: send");
			return 1;
		}
	}
	return 0;
}
