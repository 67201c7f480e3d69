#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# In the guest: churn.sh BUILD. While frames flow, classes, leaf qdiscs, filters, options, the qdisc and the modules come
# and go; nothing may be left over and the kernel may not complain.
set -eu
BUILD=$1
HERE=$(dirname "$0")
. "$HERE/lib.sh"
# Started with the kernel's memory checks (see run): poison and red zones, and a warning is the end.
grep -q slub_debug /proc/cmdline || fail "without the kernel's memory checks"
echo 1 >/proc/sys/kernel/panic_on_oops
wire_up
insmod "$BUILD/psp.ko"

feeds=
feed_on() {
    for port in 80 81 82; do
        # Not by a function: the process to end is this one, not a shell around it.
        ip netns exec a "$BUILD/test/feed" 10.0.0.2 $port 1518 100000000 2>/run/feed.$port &
        feeds="$feeds $!"
    done
}
feed_off() {
    for pid in $feeds; do kill "$pid" 2>/dev/null || true; done
    wait
    feeds=
}
trap feed_off EXIT

filter() { tca filter add dev psw0 parent 1: protocol ip pref "$1" u32 match ip dport "$1" 0xffff classid "$2"; }
set_up() { # set_up PACE
    tca qdisc add dev psw0 root handle 1: psp default 2 pace "$1"
    tca class add dev psw0 parent 1: classid 1:1 psp rate 300mbit
    tca class add dev psw0 parent 1: classid 1:2 psp mode 0
    tca class add dev psw0 parent 1:1 classid 1:11 psp rate 200mbit
    tca class add dev psw0 parent 1:1 classid 1:12 psp mode 2
    filter 80 1:11
    filter 81 1:12
}
step=0
moving() { # some more frames reach the wire; progress is in /run/out
    step=$((step + 1))
    echo "step $step: $(stat frames) frames" >>/run/out/churn.txt
    until_frames $(($(stat frames) + 20))
}

rm -f /run/out/churn.txt
set_up gap
feed_on
for round in 1 2 3; do
    moving
    tca class change dev psw0 classid 1:11 psp rate "${round}0mbit"
    tca class change dev psw0 classid 1:1 psp rate "$((round * 50))mbit"
    tca qdisc replace dev psw0 parent 1:11 handle 11: fq_codel
    moving
    tca qdisc replace dev psw0 parent 1:11 handle 111: pfifo limit 5
    tca class change dev psw0 classid 1:12 psp rate 10mbit
    tca class change dev psw0 classid 1:12 psp mode 0
    moving
    tca qdisc change dev psw0 root psp pace timer
    moving
    tca qdisc change dev psw0 root psp pace gap
    tca filter del dev psw0 parent 1: pref 81
    tca class del dev psw0 classid 1:12
    moving
    tca class add dev psw0 parent 1:1 classid 1:12 psp rate 20mbit
    filter 81 1:12
    tca qdisc replace dev psw0 parent 1:12 handle 12: tbf rate 5mbit burst 3036 limit 30000
    moving
    tca qdisc del dev psw0 parent 1:12
    refused "" rmmod psp
    tca -s class show dev psw0 >/run/classes
    # The whole qdisc, with what waits in it.
    tca qdisc del dev psw0 root
    set_up gap
done
# A device goes down and comes back with frames in its ring.
for round in 1 2 3; do
    moving
    ip -n a link set dev psw0 down
    ip -n a link set dev psw0 up
    ip -n a neigh replace 10.0.0.2 lladdr 02:00:00:00:00:01 dev psw0 nud permanent
    # Without a route for a moment the senders gave up.
    feed_off
    feed_on
done
moving
feed_off
tca qdisc del dev psw0 root
for round in 1 2 3 4 5; do
    rmmod psp
    insmod "$BUILD/psp.ko"
done
# A device that never blocks: the guard ends gap pacing when it runs ahead. So the wire is slower than this machine makes gap frames
# (12,100 ns each with the kernel's checks; 121,440 ns on a wire of 100 Mbps, but 12,144 on one of a gigabit).
ip link add psv0 type dummy
ip link set dev psv0 up
tc qdisc add dev psv0 root handle 1: psp default 1 pace gap phy 100mbit
tc class add dev psv0 parent 1: classid 1:1 psp rate 8kbit
ip address add 10.9.0.1/24 dev psv0
"$BUILD/test/feed" 10.9.0.2 9 1518 3
tries=0
until tc qdisc show dev psv0 | grep -q "device does not block" || [ $tries -ge 3000 ]; do
    tries=$((tries + 1))
    sleep 0.01
done
shows "pace gap (timer: device does not block)" tc qdisc show dev psv0
shows "runaways 1" tc -s qdisc show dev psv0
ip link del psv0
wire_down
rmmod psp
no_complaints
[ $failed = 0 ] && echo "churn: passed"
exit $failed
