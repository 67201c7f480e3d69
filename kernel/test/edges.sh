#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# In the guest: edges.sh BUILD. The rare ways of a frame: actions that take it, superframes that cannot be cut or of which
# a part finds room, leaf qdiscs that hold, double or throw away, psp below another qdisc, changes while frames wait, a
# device that changes its MTU, its speed or its link.
# Counts have to be right at every end: what a parent believes to wait below it is there.
set -eu
BUILD=$1
HERE=$(dirname "$0")
. "$HERE/lib.sh"
wire_up
insmod "$BUILD/psp.ko"
ip -n a neigh replace 10.0.0.2 lladdr 02:00:00:00:00:99 dev psw0 nud permanent
feed() { a "$BUILD/test/feed" 10.0.0.2 "$@"; }
hold() { echo "$1" >$WIRE/hold; }
waiting() { tca -s qdisc show dev psw0 | awk -v kind="qdisc $1 " 'index($0, kind) == 1 { on = 1 } on && /backlog/ { print $3; exit }'; }
waits() { # waits KIND COUNTp: so much waits in the qdisc KIND HANDLE
    found=$(waiting "$1")
    [ "$found" = "$2" ] || fail "$3: $found waits in $1, not $2"
}
until_empty() { # until_empty WHAT: nothing waits anywhere
    tries=0
    until [ -z "$(tca -s qdisc show dev psw0 | grep backlog | grep -v 'backlog 0b 0p')" ] && grep -q '^ring_used 0' $WIRE/stats; do
        tries=$((tries + 1))
        [ $tries -lt 400 ] || { fail "$1: something waits for ever: $(tca -s qdisc show dev psw0 | grep backlog)"; return; }
        sleep 0.02
    done
}
wire_has() { # wire_has COUNT WHAT
    until_empty "$2"
    [ "$(stat frames)" = "$1" ] || fail "$2: $(stat frames) frames on the wire, not $1"
}
clear() { echo 1 >$WIRE/clear; }
tca -s class show dev psw0 >/dev/null
feed 9 64 1

# A class that is not paced any more does not wait for the timer that was set for it: 1.5 s.
tca qdisc add dev psw0 root handle 1: psp default 1 pace timer
tca class add dev psw0 parent 1: classid 1:1 psp rate 8kbit
until_empty "before"
clear
feed 9 1518 2
until_frames 1
tca class change dev psw0 classid 1:1 psp mode 0
until_frames 2
awk 'NR == 1 { first = $1 } NR == 2 && $1 - first > 1e12 { print ($1 - first) / 1e12 " s"; exit 1 }' $WIRE/log ||
    fail "a class waits for a timer that it does not need"
# And what waits for the timer goes on when gap frames take over.
tca class change dev psw0 classid 1:1 psp rate 1mbit
clear
feed 9 1518 3
until_frames 1
tca qdisc change dev psw0 root psp pace gap
until_frames 3
tca qdisc del dev psw0 root

# Leaf qdiscs of every temper: what goes in comes out, and nothing is left in the count.
tca qdisc add dev psw0 root handle 1: psp default 1 pace gap
tca class add dev psw0 parent 1: classid 1:1 psp rate 500mbit
for leaf in pfifo_fast "pfifo limit 100" fq_codel sfq "tbf rate 100mbit burst 20000 limit 100000" "netem delay 5ms" fq \
    "prio" "psp pace timer" codel; do
    # shellcheck disable=SC2086
    taken tca qdisc replace dev psw0 parent 1:1 handle 10: $leaf
    clear
    feed 9 1518 12
    wire_has 12 "$leaf"
    clear
    feed 9 1518 2 6
    wire_has 12 "$leaf, superframes"
    tca qdisc del dev psw0 parent 1:1
done
# One that doubles each frame, from inside its enqueue.
taken tca qdisc replace dev psw0 parent 1:1 handle 10: netem duplicate 100%
clear
feed 9 1518 12
wire_has 24 "netem duplicate"
tca qdisc del dev psw0 parent 1:1
# One that shows nothing until it is told to: its frames are lost with it, no others.
taken tca qdisc replace dev psw0 parent 1:1 handle 10: plug
clear
feed 9 1518 5
waits "psp 1:" 5p "plug"
tca qdisc del dev psw0 parent 1:1
waits "psp 1:" 0p "plug gone"
feed 9 1518 3
wire_has 3 "after plug"

# Superframes below another qdisc: three segments find room, and both believe in three.
tca qdisc del dev psw0 root
tca qdisc add dev psw0 root handle 1: prio
tca qdisc add dev psw0 parent 1:3 handle 2: psp default 1
tca class add dev psw0 parent 2: classid 2:1 psp rate 100mbit
tca qdisc add dev psw0 parent 2:1 handle 3: pfifo limit 3
# All bands lead there.
tca filter add dev psw0 parent 1: protocol ip pref 1 u32 match u32 0 0 classid 1:3
clear
hold 1
feed 9 1518 1 10
waits "prio 1:" 3p "superframe"
shows "drops queue 7 gso 0" tca -s class show dev psw0 classid 2:1
# Leaf and class go with what waits in them.
tca qdisc replace dev psw0 parent 2:1 handle 4: pfifo limit 3
waits "psp 2:" 0p "leaf replaced"
waits "prio 1:" 0p "leaf replaced"
feed 9 1518 1 2
hold 0
wire_has 2 "leaf replaced"
tca qdisc del dev psw0 root

# A superframe that cannot be cut is dropped, and said so.
tca qdisc add dev psw0 root handle 1: psp default 1 pace gap
tca class add dev psw0 parent 1: classid 1:1 psp rate 500mbit
clear
a "$BUILD/test/badgso" psw0 3 2>/run/badgso
shows "drops queue 0 gso 3" tca -s class show dev psw0 classid 1:1
shows "dropped 3" tca -s qdisc show dev psw0
wire_has 0 "superframes that cannot be cut"
[ "$failed" = 0 ] || cat /run/badgso

# Actions: one that drops, one that keeps the frame (fragments, until the last has come), one that sends it elsewhere.
tca filter add dev psw0 parent 1: protocol ip pref 1 u32 match ip dport 80 0xffff action drop
clear
feed 80 1518 4
feed 81 1518 2
wire_has 2 "action drop"
tca filter del dev psw0 parent 1: pref 1
if tca filter add dev psw0 parent 1: protocol ip pref 1 matchall action ct zone 7 2>/run/ct; then
    clear
    # Fragments of 2,300 bytes: act_ct holds the first, and shows the whole with the second.
    a bash -c 'head -c 2300 /dev/zero >/dev/udp/10.0.0.2/9'
    wire_has 1 "action ct, whole"
    [ "$(cut -d ' ' -f 2 $WIRE/log)" = 2346 ] || fail "action ct: $(cat $WIRE/log)"
    tca filter del dev psw0 parent 1: pref 1
else
    # Kernels that bind it to ingress and clsact alone cannot hand over such a frame.
    echo "edges: no action ct here: $(head -n 1 /run/ct)"
fi
ip -n a link add psd0 type dummy
ip -n a link set dev psd0 up
taken tca filter add dev psw0 parent 1: protocol ip pref 1 u32 match ip dport 80 0xffff action mirred egress redirect dev psd0
clear
feed 80 1518 4
feed 81 1518 2
wire_has 2 "action redirect"
tca filter del dev psw0 parent 1: pref 1
ip -n a link del psd0

# What becomes a group drops what waits in it; the last child leaves a class that works.
clear
hold 1
feed 9 1518 8
tca class add dev psw0 parent 1:1 classid 1:11 psp rate 100mbit
waits "psp 1:" 0p "a group"
hold 0
wire_has 0 "a group"
tca class del dev psw0 classid 1:11
clear
feed 9 1518 5
wire_has 5 "a class again"
tca qdisc del dev psw0 root

# A leaf of two classes outlives the first of them. When it is emptied then, that class is told, which is gone: what waits
# in no class must not be taken for it.
to() { tca filter "$1" dev psw0 parent 1: protocol ip pref 1 u32 match ip dport 80 0xffff classid "$2"; }
tca qdisc add dev psw0 root handle 1: psp pace gap
tca class add dev psw0 parent 1: classid 1:1 psp rate 100mbit
tca class add dev psw0 parent 1: classid 1:2 psp rate 100mbit
tca qdisc add dev psw0 parent 1:1 handle 10: pfifo limit 100
if tca qdisc replace dev psw0 parent 1:2 handle 10: pfifo 2>/run/twice; then
    clear
    hold 1
    to add 1:1
    feed 80 1518 5
    tca filter del dev psw0 parent 1: pref 1
    feed 9 1518 4
    waits "psp 1:" 9p "a leaf of two classes"
    tca class del dev psw0 classid 1:1
    waits "psp 1:" 4p "the first of its classes is gone"
    to add 1:2
    feed 80 1518 3
    tca qdisc del dev psw0 parent 1:2
    waits "psp 1:" 4p "the second has another leaf"
    hold 0
    wire_has 4 "a leaf of two classes"
else
    echo "edges: no leaf of two classes here: $(head -n 1 /run/twice)"
fi
tca qdisc del dev psw0 root

# Gap frames follow the device: the distances of a class of 10 Mbps are right to the byte before and after.
spaced() { # spaced COUNT PS_OFF WHAT: frames of 1518 bytes, 1,214,400,000 ps from start to start
    clear
    feed 9 1518 "$1"
    wire_has "$1" "$3"
    awk -v off="$2" 'NR > 1 { d = $1 - last - 1214400000; if (d > off || d < -off) { print d " ps off"; bad = 1 } } { last = $1 }
        END { exit bad }' $WIRE/log || fail "$3: the distances"
}
becomes() { # becomes TEXT: of the qdisc, soon
    tries=0
    until tca -d qdisc show dev psw0 | grep -qF "$1"; do
        tries=$((tries + 1))
        [ $tries -lt 300 ] || { fail "$(tca -d qdisc show dev psw0), not $1"; return; }
        sleep 0.02
    done
}
tca qdisc add dev psw0 root handle 1: psp default 1 pace gap
tca class add dev psw0 parent 1: classid 1:1 psp rate 10mbit
spaced 10 8000 "1 Gbps"
[ "$(stat largest_pause)" -gt 1000 ] || fail "$(stat largest_pause) bytes is the largest gap frame of an MTU of 1500"
clear
feed 9 600 20
until_frames 2
ip -n a link set dev psw0 mtu 600
until_empty "another MTU"
clear
feed 9 600 10
wire_has 10 "an MTU of 600"
# Of equal parts of each gap.
{ [ "$(stat largest_pause)" -le 618 ] && [ "$(stat largest_pause)" -gt 500 ]; } ||
    fail "$(stat largest_pause) bytes is the largest gap frame of an MTU of 600"
ip -n a link set dev psw0 mtu 1500
echo 100 >$WIRE/speed
becomes "wire 100Mbit"
spaced 10 80000 "100 Mbps"
echo 1000 >$WIRE/speed
becomes "wire 1Gbit"
spaced 10 8000 "1 Gbps again"
ip -n b link set dev psw1 down
becomes "pace gap (timer: speed unknown)"
ip -n b link set dev psw1 up
becomes "pace gap wire 1Gbit"
ip -n a neigh replace 10.0.0.2 lladdr 02:00:00:00:00:99 dev psw0 nud permanent
spaced 10 8000 "a link that came back"
# An MTU too small for gap frames: the timer, until it is larger again.
ip -n a link set dev psw0 mtu 149
becomes "pace gap (timer: MTU below 150)"
ip -n a link set dev psw0 mtu 1500
becomes "pace gap wire 1Gbit"
tca qdisc del dev psw0 root

wire_down
rmmod psp
no_complaints
[ $failed = 0 ] && echo "edges: passed"
exit $failed
