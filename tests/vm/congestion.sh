#!/bin/sh
# In the guest: the window of a TCP connection that loses named segments, under our BPF congestion control and then
# under the kernel's own module.
#
#   congestion.sh KUROSHIO HOLD CONTROL SECONDS RATE_MBPS ONE_WAY_DELAY_MS NTH...
#
# Path: two hosts of the testbed, a link with a queue that is never full. `kuroshio testbed tcp` reads the window once
# per 10 ms, `kuroshio probe` what the receiver offers once per 100 ms. Its control connection is flow 1, the data flow 2. tcp_bic gets the parameters of Linux 2.6.14, which
# bpf/bic.bpf.c has.
set -eu
kuroshio=$1 hold=$2 control=$3 seconds=$4 rate_mbps=$5 delay_ms=$6
shift 6
names=
for nth in "$@"; do names="${names:+$names, }flow 2 data $nth"; done
PATH=$PATH:/usr/sbin:/sbin
work=/run/congestion
mkdir -p /run/netns "$work"
server=

up() { # up LOSE
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
queue = "4MiB"
$1
END
    "$kuroshio" testbed up "$work/topology.toml" >/dev/null
    for thread in /proc/[0-9]*/task/[0-9]*; do
        if [ "$(cat "$thread/comm" 2>/dev/null)" = emulator ]; then chrt -f -p 1 "${thread##*/}"; fi
    done
    "$kuroshio" testbed exec right -- "$kuroshio" probe -s --listen 10.0.0.2 >"$work/server" 2>&1 &
    server=$!
    tries=0
    while ! "$kuroshio" testbed exec right -- ss -Hltn 'sport = :5201' | grep -q .; do
        tries=$((tries + 1))
        [ $tries -lt 1000 ] || { echo "congestion: the server does not listen" >&2; exit 1; }
        sleep 0.01
    done
}

down() {
    "$kuroshio" testbed stats --json >"$work/$1-stats.json"
    "$kuroshio" testbed down >/dev/null
    wait "$server" 2>/dev/null || true
}

probe() { # probe SECONDS
    "$kuroshio" testbed exec left -- "$kuroshio" probe -c 10.0.0.2 -C "$control" -t "$1s" -i 100ms --json
}

measure() { # measure NAME
    # The first run loads programs.
    up ""
    probe 1 >"$work/warm.json" || { cat "$work/warm.json" >&2; exit 1; }
    down warm
    up "lose = \"$names\"
[link.reverse]
lose = \"none\""
    "$kuroshio" testbed tcp left --interval 10ms --for "$((seconds + 2))s" >"$work/$1.csv" &
    sampler=$!
    probe "$seconds" >"$work/$1.json" || { cat "$work/$1.json" >&2; exit 1; }
    wait "$sampler"
    down "$1"
}

case "${CONGESTION_STEP:-}" in
bpf) measure bpf; exit 0 ;;
esac
CONGESTION_STEP=bpf "$hold" "$control" /bin/sh "$0" "$kuroshio" "$hold" "$control" "$seconds" "$rate_mbps" "$delay_ms" "$@"
parameters=
[ "$control" != bic ] || parameters="max_increment=32 initial_ssthresh=100"
# shellcheck disable=SC2086
modprobe -d "$KUROSHIO_VM_MODULES" "tcp_$control" $parameters
measure module
cp "$work"/bpf*.json "$work"/module*.json "$work"/*.csv /run/out/
