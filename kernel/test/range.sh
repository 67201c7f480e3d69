#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# In the guest: range.sh BUILD smoke|full. One flow of frames of 1518 bytes over a 1 Gbps wire, static pacing, target by
# target; beside it fq and tbf at two of the targets. Stamps of the wire go to /run/out/NAME.log, counters to NAME.txt;
# range.py says what they mean. Rates in bit/s at frame level.
set -eu
BUILD=$1
HERE=$(dirname "$0")
. "$HERE/lib.sh"
wire_up
insmod "$BUILD/psp.ko"
# For nobody: the far side drops it at once, which leaves this one processor to the sender.
ip -n a neigh replace 10.0.0.2 lladdr 02:00:00:00:00:99 dev psw0 nud permanent
# All frames of a run fit the sender's buffer and the queue.
echo 16777216 >/proc/sys/net/core/wmem_max
echo 16777216 >/proc/sys/net/core/wmem_default
ip -n a link set dev psw0 txqueuelen 10000

until_waiting() { # until_waiting NAME FRAMES: they are in the qdisc
    tries=0
    until [ "$(tca -s qdisc show dev psw0 | sed -n 's/^ backlog [^ ]* \([0-9]*\)p.*/\1/p' | sort -n | tail -n 1)" -ge "$2" ]; do
        tries=$((tries + 1))
        [ $tries -lt 500 ] || { fail "$1: fewer than $2 frames wait"; return; }
        sleep 0.02
    done
}

# With gap frames the wire is held until all frames wait: the flow is busy from the first to the last, and this one
# processor is the qdisc's while they go; it is asked for the outcome rarely for the same reason. Those that pace by clock
# would make good for the time they were held.
measure() { # measure NAME FRAMES HOLD: with the qdisc that is there
    echo "$1" >/run/out/progress
    echo 1 >$WIRE/clear
    echo "$3" >$WIRE/hold
    a "$BUILD/test/feed" 10.0.0.2 9 1518 "$2"
    [ "$3" = 0 ] || until_waiting "$1" "$2"
    echo 0 >$WIRE/hold
    until_frames "$2" 0.3
    cat $WIRE/log >"/run/out/$1.log"
    { cat $WIRE/stats; tca -s -d qdisc show dev psw0; tca -s class show dev psw0; } >"/run/out/$1.txt" 2>&1
    tca qdisc del dev psw0 root
}

psp() { # psp RATE_BPS FRAMES PACE
    tca qdisc add dev psw0 root handle 1: psp default 1 pace "$3"
    tca class add dev psw0 parent 1: classid 1:1 psp rate "$1bit"
    hold=0
    [ "$3" != gap ] || hold=1
    measure "psp-$3-$1" "$2" $hold
}

rm -f /run/out/*.log /run/out/*.txt
# The first frames load what is needed.
tca qdisc add dev psw0 root pfifo
measure warm 10 1
rm /run/out/warm.*
case "$2" in
smoke) psp 500000000 1000 gap ;;
full)
    # 8 kbps: 1.5 s from frame to frame.
    psp 8000 9 gap
    psp 100000 12 gap
    psp 1000000 100 gap
    psp 10000000 100 gap
    psp 100000000 1000 gap
    psp 250000000 2000 gap
    psp 500000000 2000 gap
    psp 750000000 2000 gap
    psp 900000000 2000 gap
    psp 930000000 2000 gap
    # 1518 of 1622 bytes: the bound of gap frames of 64 bytes; above it distances vary by 84 bytes.
    psp 935800000 2000 gap
    psp 960000000 2000 gap
    psp 500000000 2000 timer
    psp 100000000 1000 timer
    # fq and tbf count frames without FCS: their rates are lower by 1514/1518. tbf: a bucket of one frame and what it may
    # be late (here wake-ups p99 130 us, so 8 frames at 500 Mbps); fq as it is.
    for rate in 100000000 500000000; do
        theirs=$((rate * 1514 / 1518))
        tca qdisc add dev psw0 root fq maxrate "${theirs}bit" flow_limit 10000 limit 20000
        measure "fq-$rate" 1000 0
        tca qdisc add dev psw0 root tbf rate "${theirs}bit" burst 12112 limit 100000000
        measure "tbf-$rate" 1000 0
    done ;;
esac
wire_down
rmmod psp
no_complaints
exit $failed
