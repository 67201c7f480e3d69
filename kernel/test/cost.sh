#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# In the guest: cost.sh BUILD. Instructions per frame of 1518 bytes through each qdisc to the test wire of 1 Gbps, by cost.c:
# sending process, stack, qdisc, device. The device's share is the same for a frame of any qdisc; a gap frame costs the
# device as much as another. Leaves "NAME RATE_BPS frames N busy_ns N elapsed_ns N looks N wire_frames N" in
# /run/out/costs; cost.py makes the table.
set -eu
BUILD=$1
HERE=$(dirname "$0")
. "$HERE/lib.sh"
cp "$BUILD/test/cost" /run/cost
wire_up
insmod "$BUILD/psp.ko"
# The far side drops at once.
ip -n a neigh replace 10.0.0.2 lladdr 02:00:00:00:00:99 dev psw0 nud permanent
ip -n a link set dev psw0 txqueuelen 10000
COUNT=2000
rm -f /run/costs

measure() { # measure NAME RATE_BPS: the qdisc that is there
    echo 1 >$WIRE/clear
    said=$(a /run/cost 10.0.0.2 9 1518 $COUNT <$WIRE/stats) || { fail "$1 $2"; tca qdisc del dev psw0 root; return; }
    [ "$1" = warm ] || echo "$1 $2 $said wire_frames $(($(stat frames) + $(stat pause_frames)))" >>/run/costs
    tca qdisc del dev psw0 root
}
psp() { # psp NAME RATE_BPS PACE
    tca qdisc add dev psw0 root handle 1: psp default 1 pace "$3"
    case "$2" in
    0) tca class add dev psw0 parent 1: classid 1:1 psp mode 0 ;;
    *) tca class add dev psw0 parent 1: classid 1:1 psp rate "$2bit" ;;
    esac
    measure "$1" "$2"
}

tca qdisc add dev psw0 root pfifo
measure warm 0
# Twice, so that what differs from run to run is seen.
for round in 1 2; do
    echo "round $round" >/run/out/progress
    tca qdisc add dev psw0 root pfifo
    measure pfifo 0
    psp psp-unpaced 0 gap
    for rate in 100000000 500000000; do
        # fq and tbf count frames without FCS.
        theirs=$((rate * 1514 / 1518))
        psp psp-gap $rate gap
        psp psp-timer $rate timer
        tca qdisc add dev psw0 root fq maxrate "${theirs}bit" flow_limit 10000 limit 20000
        measure fq $rate
        tca qdisc add dev psw0 root tbf rate "${theirs}bit" burst 12112 limit 100000000
        measure tbf $rate
    done
done
cp /run/costs /run/out/costs
wire_down
rmmod psp
no_complaints
exit $failed
