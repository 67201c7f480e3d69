#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# In the guest: fuzz.sh BUILD MESSAGES LOADS. Random netlink messages (netlink.c) to psp while frames flow, then the module
# LOADS times in and out with a qdisc, classes and frames each time. Neither may leave memory behind.
set -eu
BUILD=$1
MESSAGES=$2
LOADS=$3
HERE=$(dirname "$0")
. "$HERE/lib.sh"
wire_up
insmod "$BUILD/psp.ko"
ip -n a neigh replace 10.0.0.2 lladdr 02:00:00:00:00:99 dev psw0 nud permanent

feeds=
feed_on() {
    for port in 80 81; do
        ip netns exec a "$BUILD/test/feed" 10.0.0.2 $port 1518 100000000 2>/dev/null &
        feeds="$feeds $!"
    done
}
feed_off() {
    for pid in $feeds; do kill "$pid" 2>/dev/null || true; done
    wait
    feeds=
}
trap feed_off EXIT

# KiB of objects, per-processor and mapped memory, without caches of files.
in_use() { awk '/^(SUnreclaim|Percpu|VmallocUsed):/ { sum += $2 } END { print sum }' /proc/meminfo; }
settled() { # settled BEFORE ALLOWED_KIB WHAT: memory comes back within bounds; what RCU frees takes a while
    tries=0
    while [ "$(in_use)" -gt $(($1 + $2)) ]; do
        tries=$((tries + 1))
        [ $tries -lt 300 ] || { fail "$3: $(($(in_use) - $1)) KiB more than before"; return; }
        echo 2 >/proc/sys/vm/drop_caches
        sleep 0.02
    done
    echo "fuzz: $3: $(($(in_use) - $1)) KiB more than before"
}
fuzz() { a "$BUILD/test/netlink" psw0 fuzz "$1" "$2" || fail "netlink fuzz, seed $1"; }

# Once for what is allocated for good.
feed_on
fuzz 1 $((MESSAGES / 8))
feed_off
tca qdisc del dev psw0 root 2>/dev/null || true
before=$(in_use)
for seed in 2 3 4 5; do
    feed_on
    fuzz $seed $((MESSAGES / 4))
    feed_off
    tca -s qdisc show dev psw0 >/run/show
    tca -s class show dev psw0 >>/run/show
done
tca qdisc del dev psw0 root 2>/dev/null || true
# A class left behind by each tenth message would be 400 bytes and its qdisc 640.
settled "$before" $((MESSAGES / 10)) "$MESSAGES messages"
# The qdisc works as before.
tca qdisc add dev psw0 root handle 1: psp default 1 pace gap
tca class add dev psw0 parent 1: classid 1:1 psp rate 100mbit
echo 1 >$WIRE/clear
a "$BUILD/test/feed" 10.0.0.2 9 1518 10
until_frames 10
tca qdisc del dev psw0 root

load() {
    tca qdisc add dev psw0 root handle 1: psp default 1 pace gap
    tca class add dev psw0 parent 1: classid 1:1 psp rate 100mbit
    tca class add dev psw0 parent 1: classid 1:2 psp mode 2
    echo 1 >$WIRE/clear
    a "$BUILD/test/feed" 10.0.0.2 9 1518 3
    until_frames 3
    refused "" rmmod psp
    tca qdisc del dev psw0 root
    rmmod psp
    insmod "$BUILD/psp.ko"
}
load
before=$(in_use)
count=0
while [ $count -lt "$LOADS" ]; do
    load
    count=$((count + 1))
done
# 4 KiB each would be a page of the module.
settled "$before" $((256 + LOADS * 2)) "$LOADS loads"
wire_down
rmmod psp
no_complaints
[ $failed = 0 ] && echo "fuzz: passed"
exit $failed
