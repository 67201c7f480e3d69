// SPDX-License-Identifier: GPL-2.0-only
/*
 * badgso DEV COUNT: hands COUNT superframes to DEV that cannot be cut: they are to be cut as TCP, and their IP header says
 * UDP.
 */
#include <arpa/inet.h>
#include <linux/if_packet.h>
#include <linux/virtio_net.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <netinet/ip.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define PAYLOAD 4000

struct superframe {
	struct virtio_net_hdr virtio;
	struct ether_header eth;
	struct iphdr ip;
	unsigned char tcp[20];
	char payload[PAYLOAD];
} __attribute__((packed));

int main(int argc, char **argv)
{
	static struct superframe f;
	struct sockaddr_ll to = { .sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_IP), .sll_halen = 6 };
	int fd, on = 1, i;

	if (argc != 3) {
		fprintf(stderr, "usage: badgso DEV COUNT\n");
		return 2;
	}
	to.sll_ifindex = if_nametoindex(argv[1]);
	fd = socket(AF_PACKET, SOCK_RAW, htons(ETH_P_IP));
	if (fd < 0 || !to.sll_ifindex || setsockopt(fd, SOL_PACKET, PACKET_VNET_HDR, &on, sizeof(on))) {
		perror("badgso");
		return 1;
	}
	f.virtio.flags = VIRTIO_NET_HDR_F_NEEDS_CSUM;
	f.virtio.gso_type = VIRTIO_NET_HDR_GSO_TCPV4;
	f.virtio.hdr_len = sizeof(f.eth) + sizeof(f.ip) + sizeof(f.tcp);
	f.virtio.gso_size = 1000;
	f.virtio.csum_start = sizeof(f.eth) + sizeof(f.ip);
	f.virtio.csum_offset = 16;
	memset(f.eth.ether_dhost, 2, 6);
	memset(f.eth.ether_shost, 4, 6);
	f.eth.ether_type = htons(ETH_P_IP);
	f.ip.version = 4;
	f.ip.ihl = 5;
	f.ip.ttl = 1;
	f.ip.protocol = IPPROTO_UDP;
	/* A TCP header of 20 bytes: kernels look before the qdisc does. */
	f.tcp[12] = 5 << 4;
	f.ip.tot_len = htons(sizeof(f) - sizeof(f.virtio) - sizeof(f.eth));
	for (i = 0; i < atoi(argv[2]); i++) {
		/* The qdisc drops it: that is what the sender may hear. */
		if (sendto(fd, &f, sizeof(f), 0, (struct sockaddr *)&to, sizeof(to)) < 0)
			perror("badgso: send");
	}
	return 0;
}
