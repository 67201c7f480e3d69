#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# In the guest: figures.sh BUILD. What psp says it sent beside what the wire saw, class by class (each class has its own
# size of frame), and a device with byte queue limits. Everything goes to /run/out/figures; figures.py says what it means.
set -eu
BUILD=$1
HERE=$(dirname "$0")
. "$HERE/lib.sh"
OUT=/run/out/figures
rm -rf $OUT
mkdir -p $OUT
insmod "$BUILD/psp.ko"
for_nobody() { # for_nobody [PARAMETER=VALUE]: a wire whose far side drops at once; all frames of a run fit the queue
    wire_up "$@"
    ip -n a neigh replace 10.0.0.2 lladdr 02:00:00:00:00:99 dev psw0 nud permanent
    ip -n a link set dev psw0 txqueuelen 10000
}
for_nobody
# All frames of a run fit the sender's buffer.
echo 16777216 >/proc/sys/net/core/wmem_max
echo 16777216 >/proc/sys/net/core/wmem_default
# What is started later is in memory: reading it from the host would let time jump.
tca -s -d -j qdisc show dev psw0 >/dev/null
a "$BUILD/test/feed" 10.0.0.2 9 64 1

filter() { tca filter add dev psw0 parent 1: protocol ip pref "$1" u32 match ip dport "$1" 0xffff classid "$2"; }
feed() { a "$BUILD/test/feed" 10.0.0.2 "$@"; }
until_empty() {
    tries=0
    until tca -s qdisc show dev psw0 | grep -m 1 backlog | grep -q 'backlog 0b 0p' && grep -q '^ring_used 0' $WIRE/stats; do
        tries=$((tries + 1))
        [ $tries -lt 500 ] || { fail "something waits for ever"; return; }
        sleep 0.05
    done
}
keep() { # keep NAME: what both sides say
    cat $WIRE/log >"$OUT/$1.log"
    cat $WIRE/stats >"$OUT/$1.wire"
    tca -s class show dev psw0 >"$OUT/$1.class"
    tca -s -d -j qdisc show dev psw0 >"$OUT/$1.qdisc.json"
    tca -s -d qdisc show dev psw0 >"$OUT/$1.qdisc"
    a sh -c 'cd /sys/class/net/psw0/queues/tx-0/byte_queue_limits && grep . inflight limit' >"$OUT/$1.bql"
}

# A paced class, an unpaced one, a group of two, and what no filter knows.
tca qdisc add dev psw0 root handle 1: psp pace gap
tca class add dev psw0 parent 1: classid 1:1 psp rate 10mbit
tca class add dev psw0 parent 1: classid 1:2 psp mode 0
tca class add dev psw0 parent 1: classid 1:3 psp rate 200mbit
tca class add dev psw0 parent 1:3 classid 1:31 psp rate 100mbit
tca class add dev psw0 parent 1:3 classid 1:32 psp mode 0
filter 80 1:1
filter 81 1:2
filter 82 1:31
filter 83 1:32
until_empty
echo 1 >$WIRE/clear
echo 1 >$WIRE/hold
feed 80 1518 1000
feed 81 700 150
feed 82 1000 120
feed 83 400 110
feed 84 300 50
echo 0 >$WIRE/hold
until_frames 1430 0.2
until_empty
keep classes
tca qdisc del dev psw0 root
wire_down

# Byte queue limits: their first frames find a limit of 0, so the wire has holes until it has grown.
for_nobody bql=1
tca qdisc add dev psw0 root handle 1: psp default 1 pace gap
tca class add dev psw0 parent 1: classid 1:1 psp rate 500mbit
until_empty
echo 1 >$WIRE/clear
echo 1 >$WIRE/hold
feed 9 1518 3000
echo 0 >$WIRE/hold
until_frames 3000 0.1
until_empty
keep bql
tca qdisc del dev psw0 root
wire_down
rmmod psp
no_complaints
exit $failed
