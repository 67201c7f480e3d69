#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# In the guest: path.sh BUILD. TCP streams over a wide-area path, paced by psp or not. /run/out/parameters says which:
#
#   wire_mbps N          the sender's wire (pspwire)        capacity_bps N    of the bottleneck, frame level
#   rtt_us N             delay of both ways together        queue_bytes N     of the bottleneck, drop-tail, frame level
#   port_frames N        the sender's interface queue       duration_ms N
#   rate_bps N           of the static class; 0: none       load MODULE [PARAMETER=VALUE]...
#   dilation K           a second of the path is K of the machine: all above is the machine's already
#   stream CONGESTION START_MS none|static|dynamic          one line each, to ports 5001, 5002, ...
#
#   a: TCP -> psp or pfifo -> psw0 == wire ==> psw1 -> ifb0: tbf (rate, queue) -> b: TCP
#      TCP <---------------------------- psw1 <- netem (delay) <----------------- ACKs
#
# The delay of both ways stands on the way back, where frames are fewer: a sender knows their sum alone. tbf counts frames
# without FCS: it gets an overhead of 4 and a limit that holds as many frames. Its bucket is what it may be late, 200 us.
# Socket buffers of 64 MiB bound nothing: windows are TCP's own.
#
# Dilation K makes K times as long what a card, a bucket or a socket counts in time: the card's interrupts, what tbf may be late, the
# least retransmission timeout (by the route). The kernel's own times stay: the tick (4 ms), delayed ACKs (40 ms), the
# first timeout (1 s), the millisecond of TCP Small Queues and of superframes.
#
# Leaves in /run/out: windows (meter.c), samples (stream.c), counters ("name value"), qdiscs.txt; progress while it runs.
set -eu
BUILD=$1
HERE=$(dirname "$0")
. "$HERE/lib.sh"
P=/run/out/parameters
value() { sed -n "s/^$1 //p" $P; }
duration_ms=$(value duration_ms)
rate_bps=$(value rate_bps)
capacity_bps=$(value capacity_bps)
streams=$(sed -n 's/^stream \([^ ]*\) \([^ ]*\) .*/\1:\2/p' $P)
count=$(echo "$streams" | wc -l)
dilation=$(value dilation)
dilation=${dilation:-1}

# From memory: a page that comes from a file of the host lets time jump.
cp "$BUILD/test/stream" "$BUILD/test/meter" "$BUILD/test/idle" /run/
sed -n 's/^load //p' $P | while read -r module; do
    # shellcheck disable=SC2086
    modprobe -d "$KUROSHIO_VM_MODULES" $module || exit 2
done
wire_up speed_mbps="$(value wire_mbps)" bql=1 tell_ns=$((20000 * dilation))
insmod "$BUILD/psp.ko"
echo 30000 >/proc/sys/net/core/netdev_max_backlog
for host in a b; do
    ip netns exec $host sh -c 'echo 1 >/proc/sys/net/ipv4/tcp_no_metrics_save
        echo "4096 67108864 67108864" >/proc/sys/net/ipv4/tcp_rmem
        echo "4096 65536 67108864" >/proc/sys/net/ipv4/tcp_wmem'
done

ip -n a route replace 10.0.0.0/24 dev psw0 src 10.0.0.1 rto_min $((200 * dilation))ms
ip -n b link add ifb0 type ifb
ip -n b link set dev ifb0 up
bucket=$((capacity_bps / 8 * 200 * dilation / 1000000))
[ $bucket -ge 3036 ] || bucket=3036
tc -n b qdisc add dev ifb0 root tbf rate "${capacity_bps}bit" overhead 4 burst $bucket \
    limit $(($(value queue_bytes) * 1514 / 1518))
tc -n b qdisc add dev psw1 clsact
tc -n b filter add dev psw1 ingress protocol all matchall action mirred egress redirect dev ifb0
tc -n b qdisc add dev psw1 root netem delay "$(value rtt_us)us" limit 1000000

frames=$(value port_frames)
ip -n a link set dev psw0 txqueuelen "$frames"
if grep -q '^stream .* \(static\|dynamic\)$' $P; then
    # Class ffff: what is not paced. A class's own queue is a pfifo of the device's length.
    tca qdisc add dev psw0 root handle 1: psp default ffff pace gap
    tca class add dev psw0 parent 1: classid 1:ffff psp mode 0
    number=0
    sed -n 's/^stream [^ ]* [^ ]* //p' $P >/run/paces
    while read -r pace; do
        number=$((number + 1))
        minor=$(printf %x $number)
        case "$pace" in
        static) tca class add dev psw0 parent 1: classid "1:$minor" psp rate "${rate_bps}bit" ;;
        dynamic) tca class add dev psw0 parent 1: classid "1:$minor" psp mode 2 ;;
        *) continue ;;
        esac
        tca filter add dev psw0 parent 1: protocol ip pref 1 u32 match ip dport $((5000 + number)) 0xffff classid "1:$minor"
    done </run/paces
else
    tca qdisc add dev psw0 root pfifo limit "$frames"
fi

ip netns exec b /run/meter ifb0 5001 "$dilation" /run/windows &
meter=$!
ip netns exec b /run/stream sink 5001 "$count" /run/ready &
sink=$!
tries=0
until [ -e /run/ready ] || [ $tries -ge 1000 ]; do
    tries=$((tries + 1))
    sleep 0.01
done
echo 1 >$WIRE/clear
trap 'kill $sink 2>/dev/null || true' EXIT
# Beside each other, so that the idle time is the sender's.
cat >/run/send <<'END'
/run/idle /run/seconds /run/out/progress &
idle=$!
/run/stream send "$@" || exit 1
kill -TERM $idle
wait $idle
END
# shellcheck disable=SC2086
a /bin/sh /run/send 10.0.0.2 5001 "$duration_ms" "$dilation" /run/samples $streams || fail "the sender"
tc -n b -s qdisc show dev ifb0 >/run/bottleneck
tca -s qdisc show dev psw0 >/run/port
{
    cat /run/bottleneck /run/port
    tca -s class show dev psw0
    tc -n b -s qdisc show dev psw1
} >/run/out/qdiscs.txt
kill -TERM $meter
wait $meter || fail "the meter"
# The root comes first.
dropped() { sed -n 's/.*(dropped \([0-9]*\),.*/\1/p' "$1" | head -n 1; }
{
    echo "dropped_router_frames $(dropped /run/bottleneck)"
    echo "dropped_port_frames $(dropped /run/port)"
    sed 's/^/wire_/' $WIRE/stats
    # The last second may be a short one.
    awk '{ elapsed += $1; idle += $2 }
        $1 > 5e8 { share = int(1000 * $2 / $1); if (n++ == 0 || share < least) least = share }
        END {
            printf "elapsed_cs %.0f\nidle_cs %.0f\n", elapsed / 1e7, idle / 1e7
            print "processor_least_idle_permille " least + 0
        }' /run/seconds
} >/run/out/counters
cp /run/windows /run/samples /run/out/
kill $sink
wait || true
no_complaints
[ $failed = 0 ] && echo "path: done"
exit $failed
