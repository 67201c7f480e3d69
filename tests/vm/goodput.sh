#!/bin/sh
# In the guest: TCP goodput over the kernel's own emulation and over ours, on the same path.
#
#   goodput.sh KUROSHIO SECONDS RATE_MBPS ONE_WAY_DELAY_MS QUEUE_BYTES
#
#   kernel:    left --veth-- a --veth-- b --veth-- right      veth: no rate, one frame each (no superframes)
#              a: tbf (rate, queue) towards b; b: netem (delay) towards right; the same the other way
#   kuroshio:  left --10 Gbps-- a --link-- b --10 Gbps-- right
#
# Rate and queue count frames with check sequence (1518 bytes); the kernel's qdiscs see 1514, so tbf gets an
# overhead of 4 and a limit that holds as many frames. tbf's bucket: what it may be late, 200 us (wake-ups here: p99
# 130 us), 2 frames at least; it is filled by idleness only and adds nothing to the mean rate.
# iperf3, one stream of cubic; hosts' kernel parameters as the testbed sets them. Results: /run/out/NAME.json and the
# counters beside them.
set -eu
kuroshio=$1 seconds=$2 rate_mbps=$3 delay_ms=$4 queue_bytes=$5
PATH=$PATH:/usr/sbin:/sbin
mkdir -p /run/netns
work=/run/goodput
mkdir -p "$work"
server=

until_listening() { # until_listening COMMAND...: runs it where the server is to listen
    tries=0
    while ! "$@" ss -Hltn 'sport = :5201' | grep -q .; do
        tries=$((tries + 1))
        [ $tries -lt 1000 ] || { echo "goodput: iperf3 does not listen" >&2; exit 1; }
        sleep 0.01
    done
}

measure() { # measure NAME LEFT-COMMAND RIGHT-COMMAND
    $3 iperf3 -s >"$work/server" 2>&1 &
    server=$!
    # shellcheck disable=SC2086
    until_listening $3
    # The first run loads programs and finds neighbours.
    $2 iperf3 -c 10.0.0.2 -C cubic -t 1 >"$work/warm" 2>&1 || { cat "$work/warm" >&2; exit 1; }
    $2 iperf3 -c 10.0.0.2 -C cubic -t "$seconds" -J >"$work/$1.json" || { cat "$work/$1.json" >&2; exit 1; }
    kill "$server" 2>/dev/null || true
    wait "$server" 2>/dev/null || true
}

kernel_path() {
    echo 30000 >/proc/sys/net/core/netdev_max_backlog
    for host in left a b right; do
        ip netns add $host
        ip -n $host link set dev lo up
        ip netns exec $host sh -c 'echo "4096 131072 1073741824" >/proc/sys/net/ipv4/tcp_rmem
            echo "4096 65536 1073741824" >/proc/sys/net/ipv4/tcp_wmem
            echo 1 >/proc/sys/net/ipv4/tcp_no_metrics_save'
    done
    for host in a b; do ip netns exec $host sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward'; done
    wire left 10.0.0.1/32 a 10.1.0.1/32
    wire a 10.1.0.2/32 b 10.1.0.3/32
    wire b 10.1.0.4/32 right 10.0.0.2/32
    ip -n left route add default dev to-a
    ip -n right route add default dev to-b
    ip -n a route add 10.0.0.1 dev to-left
    ip -n a route add default dev to-b
    ip -n b route add 10.0.0.2 dev to-right
    ip -n b route add default dev to-a
    limit=$((queue_bytes * 1514 / 1518))
    bucket=$((rate_mbps * 200 / 8))
    [ $bucket -ge 3036 ] || bucket=3036
    for way in "a to-b" "b to-a"; do
        # shellcheck disable=SC2086
        shaped ${way% *} ${way#* }
    done
    for way in "b to-right" "a to-left"; do
        tc -n "${way% *}" qdisc add dev "${way#* }" root netem delay "${delay_ms}ms" limit 1000000
    done
}

wire() { # wire HOST ADDRESS HOST ADDRESS
    ip link add "to-$3" netns "$1" gso_max_segs 1 type veth peer name "to-$1" netns "$3" gso_max_segs 1
    ip -n "$1" address add "$2" dev "to-$3"
    ip -n "$3" address add "$4" dev "to-$1"
    ip -n "$1" link set dev "to-$3" gso_max_segs 1 up
    ip -n "$3" link set dev "to-$1" gso_max_segs 1 up
    # Everybody is behind this wire: neighbours answer for all.
    ip netns exec "$1" sh -c "echo 1 >/proc/sys/net/ipv4/conf/to-$3/proxy_arp"
    ip netns exec "$3" sh -c "echo 1 >/proc/sys/net/ipv4/conf/to-$1/proxy_arp"
}

shaped() { # shaped HOST DEVICE
    tc -n "$1" qdisc add dev "$2" root tbf rate "${rate_mbps}mbit" overhead 4 burst "$bucket" limit "$limit"
}

our_path() {
    cat >"$work/topology.toml" <<END
name = "vm"
[[router]]
name = "a"
[[router]]
name = "b"
[[host]]
name = "left"
[[host.port]]
name = "p0"
wire = "10Gbps"
address = ["10.0.0.1/24"]
router = "a"
[[host]]
name = "right"
[[host.port]]
name = "p0"
wire = "10Gbps"
address = ["10.0.0.2/24"]
router = "b"
[[link]]
name = "wan"
between = ["a", "b"]
capacity = "${rate_mbps}Mbps"
one_way_delay = "${delay_ms}ms"
queue = "${queue_bytes}B"
END
    "$kuroshio" testbed up "$work/topology.toml" >/dev/null
    # The qdiscs run in the kernel, before every program; so the emulator's thread does.
    for thread in /proc/[0-9]*/task/[0-9]*; do
        if [ "$(cat "$thread/comm" 2>/dev/null)" = emulator ]; then chrt -f -p 1 "${thread##*/}" && found=1; fi
    done
    [ -n "${found:-}" ] || { echo "goodput: no thread called emulator" >&2; exit 1; }
}

kernel_path
measure kernel "ip netns exec left" "ip netns exec right"
{
    for way in "a to-b" "b to-right" "b to-a" "a to-left"; do tc -n "${way% *}" -s qdisc show dev "${way#* }"; done
    ip -n right -s link show dev to-b
} >"$work/kernel.txt"
our_path
measure kuroshio "$kuroshio testbed exec left --" "$kuroshio testbed exec right --"
"$kuroshio" testbed stats --json >"$work/stats.json"
"$kuroshio" testbed status --json >"$work/status.json"
"$kuroshio" testbed down >/dev/null
cp "$work"/*.json "$work"/kernel.txt /run/out/
