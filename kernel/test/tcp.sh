#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# In the guest: tcp.sh BUILD. TCP's superframes (GSO) leave as single frames on the schedule, with gap frames and with the
# timer; a group's ceiling holds over two flows on the wire; a dynamic class follows cwnd and RTT.
set -eu
BUILD=$1
HERE=$(dirname "$0")
. "$HERE/lib.sh"
wire_up
insmod "$BUILD/psp.ko"
servers=
trap 'for pid in $servers; do kill "$pid" 2>/dev/null || true; done' EXIT
for port in 5201 5202; do
    ip netns exec b iperf3 -s -p $port >/run/server.$port 2>&1 &
    servers="$servers $!"
    tries=0
    until ip netns exec b ss -Hltn "sport = :$port" | grep -q . || [ $tries -ge 1000 ]; do
        tries=$((tries + 1))
        sleep 0.01
    done
done
send() { a iperf3 -c 10.0.0.2 -p "$1" -C cubic -n "$2" >/run/client."$1" 2>&1 || fail "iperf3: $(cat /run/client."$1")"; }
filter() { tca filter add dev psw0 parent 1: protocol ip pref "$1" u32 match ip dport "$1" 0xffff classid "$2"; }

# Windows of 40 frames from the first on: any 40 frames in a row take their time at the rate, the last one's start.
in_bounds() { # in_bounds NAME RATE_BPS FRAMES_OF_SLACK
    cp $WIRE/log "/run/out/$1.log"
    awk -v name="$1" -v rate="$2" -v slack="$3" '
        $2 > 1518 { print "FAILED: " name ": a frame of " $2 " bytes"; bad = 1; exit 1 }
        { sum += $2; start[NR] = $1; upto[NR] = sum - $2; full += $2 == 1518 }
        END {
            if (bad) exit 1
            if (full < 500) { print "FAILED: " name ": " full + 0 " full frames"; exit 1 }
            low = 0
            for (i = 1; i <= NR; i++) {
                level = upto[i] - (start[i] - start[1]) / 1e12 * rate / 8
                if (level < low) low = level
                if (level - low > worst) worst = level - low
            }
            printf "tcp: %s: %d frames, %.3f Mbps, at most %.0f bytes above rate * T + the last frame\n", name, NR,
                upto[NR] * 8e6 / (start[NR] - start[1]), worst
            if (worst > slack * 1518 + 2) { print "FAILED: " name ": windows hold more"; exit 1 }
        }' "/run/out/$1.log" || failed=1
}

tca qdisc add dev psw0 root handle 1: psp default 1 pace gap
tca class add dev psw0 parent 1: classid 1:1 psp rate 100mbit
echo 1 >$WIRE/clear
send 5201 2M
in_bounds gap-100mbit 100000000 0
shows "drops queue 0 gso 0" tca -s class show dev psw0 classid 1:1
tca qdisc change dev psw0 root psp pace timer
echo 1 >$WIRE/clear
send 5201 2M
# A wake-up that is late is made good: the bound is what the schedule may lag, 200 us (2,500 bytes) and three frames.
in_bounds timer-100mbit 100000000 5
[ "$(stat pause_frames)" = 0 ] || fail "$(stat pause_frames) PAUSE frames with the timer"
tca qdisc del dev psw0 root

# Two flows that want 150 Mbps each in a group of 200.
tca qdisc add dev psw0 root handle 1: psp pace gap
tca class add dev psw0 parent 1: classid 1:1 psp rate 200mbit
tca class add dev psw0 parent 1:1 classid 1:11 psp rate 150mbit
tca class add dev psw0 parent 1:1 classid 1:12 psp rate 150mbit
filter 5201 1:11
filter 5202 1:12
echo 1 >$WIRE/clear
send 5201 2M &
one=$!
send 5202 2M
wait $one
in_bounds group-200mbit 200000000 2
tca qdisc del dev psw0 root

# 20 frames per round trip of 20 ms are 12.1 Mbps.
tc -n b qdisc add dev psw1 root netem delay 20ms limit 10000
ip -n a route replace 10.0.0.0/24 dev psw0 src 10.0.0.1 cwnd lock 20
# A connection takes the route's bound on cwnd from what the last one there has left behind.
ip -n a tcp_metrics flush all
send 5201 100K
tca qdisc add dev psw0 root handle 1: psp default 1 pace gap
tca class add dev psw0 parent 1: classid 1:1 psp mode 2
echo 1 >$WIRE/clear
send 5201 1M
in_bounds dynamic 12200000 20
# The middle half of the full frames; TCP's RTT is the path's 20 ms and what waits in the host, 10 ms at most.
awk '$2 == 1518 { start[++n] = $1 }
    END {
        from = int(n / 4); to = int(3 * n / 4)
        rate = (to - from) * 1518 * 8e6 / (start[to] - start[from])
        printf "tcp: dynamic: %.3f Mbps, which is 20 frames in %.2f ms\n", rate, 20 * 1518 * 8e-3 / rate
        exit !(rate <= 20 * 1518 * 8 / 20e3 && rate >= 20 * 1518 * 8 / 30e3)
    }' /run/out/dynamic.log || fail "dynamic rate"
tca qdisc del dev psw0 root

for pid in $servers; do kill "$pid"; done
wait
servers=
wire_down
rmmod psp
no_complaints
[ $failed = 0 ] && echo "tcp: passed"
exit $failed
