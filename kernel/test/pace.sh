#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# In the guest: pace.sh BUILD KUROSHIO. `kuroshio pace` with the back ends that a stock kernel has: the module psp (also one
# that somebody else has set up), sch_fq, TCP. Rates by the wire's stamps; `clear` and a kill -9 at any moment leave what was.
set -eu
BUILD=$1
KUROSHIO=$2
HERE=$(dirname "$0")
. "$HERE/lib.sh"
GROUPS_AT=/run/groups
mkdir -p $GROUPS_AT
mount -t cgroup2 none $GROUPS_AT
mkdir $GROUPS_AT/bulk
STATE=/run/pace.json
pace() { a "$KUROSHIO" pace --state-file $STATE "$@"; }
wire_up
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
look() { tca qdisc show dev psw0; tca class show dev psw0; tca filter show dev psw0; }

# The mean rate between the first and the last full frame, frame level, is the rate to PERMILLE.
rate_is() { # rate_is NAME RATE_BPS PERMILLE
    cp $WIRE/log "/run/out/pace-$1.log"
    awk -v name="$1" -v rate="$2" -v permille="$3" '
        $2 == 1518 { if (n++) sum += last; else first = $1; last = $2; end = $1 }
        END {
            if (n < 500) { print "FAILED: " name ": " n + 0 " full frames"; exit 1 }
            mean = sum * 8e12 / (end - first)
            printf "pace: %s: %d full frames, %.4f Mbps of %.4f\n", name, n, mean / 1e6, rate / 1e6
            if (mean > rate * (1 + permille / 1000) || mean < rate * (1 - permille / 1000)) {
                print "FAILED: " name ": the rate"
                exit 1
            }
        }' "/run/out/pace-$1.log" || failed=1
}

# A copy starts slowly, and ends when its last stream does. In between its windows of 10 ms are at the rate, to 2 % (82 frames
# at 100 Mbps), which is at least half of those that 3 MiB take; none is above it.
windows_are() { # windows_are NAME RATE_BPS
    cp $WIRE/log "/run/out/pace-$1.log"
    awk -v name="$1" -v rate="$2" '
        $2 == 1518 { if (!n++) first = $1; at = int(($1 - first) / 1e10); bits[at] += $2 * 8 }
        END {
            for (i in bits) { right += bits[i] > rate * 0.0098 && bits[i] < rate * 0.0102; above += bits[i] >= rate * 0.0102 }
            printf "pace: %s: %d full frames, %d of %d windows at %.0f Mbps, %d above\n", name, n, right, at + 1, rate / 1e6, above
            if (above || right * rate * 0.01 < 3 * 1048576 * 8 / 2) { print "FAILED: " name ": the rate"; exit 1 }
        }' "/run/out/pace-$1.log" || failed=1
}

refused "no qdisc psp" pace apply --backend psp --dev psw0 --rate 100M
[ -e $STATE ] && fail "a state file of nothing"
before=$(look)

# fq: each connection's own rate.
taken pace apply --backend fq --dev psw0 --to 10.0.0.0/24 --port 5201 --rate 100M
shows "qdisc fq 4b50: root" tca qdisc show dev psw0
echo 1 >$WIRE/clear
send 5201 8M
rate_is fq 100000000 20
echo "pace: $(tca -s qdisc show dev psw0 | tr -s ' \n' ' ')"
shows "(2 connections so far)" pace show --dev psw0
taken pace clear
[ "$(look)" = "$before" ] || fail "after fq: $(look), not $before"

# TCP itself.
taken pace apply --backend tcp --to 10.0.0.2 --port 5201 --rate 100M
echo 1 >$WIRE/clear
send 5201 2M
rate_is tcp 100000000 50
taken pace clear

insmod "$BUILD/psp.ko"
# psp is the best of them. Two connections to one destination share its class; another port is not paced.
shows "paced by psp at psw0" pace apply --dev psw0 --to 10.0.0.0/24 --port 5201 --rate 100M
shows "rate 100Mbit" tca class show dev psw0 classid 4b50:4b01
echo 1 >$WIRE/clear
send 5201 2M
rate_is psp 100000000 10
shows '"connections":null' pace show --dev psw0 --json
taken pace clear
[ "$(look)" = "$before" ] || fail "after psp: $(look), not $before"

# A control group by SO_PRIORITY: its processes' frames are in the class, others' are not.
taken pace apply --backend psp --dev psw0 --cgroup $GROUPS_AT/bulk --rate 50M
echo 1 >$WIRE/clear
a sh -c "echo \$\$ >$GROUPS_AT/bulk/cgroup.procs; exec iperf3 -c 10.0.0.2 -p 5202 -C cubic -n 1M" >/run/client.group 2>&1 ||
    fail "iperf3 in the group: $(cat /run/client.group)"
rate_is group 50000000 10
taken pace clear
[ "$(look)" = "$before" ] || fail "after a group: $(look), not $before"

# Somebody else's psp gets classes and filters, and keeps what it had.
tca qdisc add dev psw0 root handle 7: psp default 1
tca class add dev psw0 parent 7: classid 7:1 psp rate 900mbit
theirs=$(look)
taken pace apply --dev psw0 --to 10.0.0.0/24 --port 5201 --rate 100M
shows "7:4b01" tca class show dev psw0
echo 1 >$WIRE/clear
send 5201 2M
rate_is theirs 100000000 10
taken pace clear
[ "$(look)" = "$theirs" ] || fail "theirs: $(look), not $theirs"
# A rate above the device's: the kernel's words, and nothing is left.
refused "above the device" pace apply --dev psw0 --to 10.0.0.0/24 --rate 100G
[ "$(look)" = "$theirs" ] || fail "refused, theirs: $(look), not $theirs"
[ -e $STATE ] && fail "a state file of what was refused"

# Killed at flushes of the state file, of which each step has two: before it is there, and before the step is made.
for root in theirs ours; do
    [ $root = theirs ] || tca qdisc del dev psw0 root
    clean=$(look)
    at=1
    while :; do
        if a strace -f -o /dev/null -e inject=fsync:signal=KILL:when=$at "$KUROSHIO" pace --state-file $STATE apply --dev psw0 \
            --backend psp --to 10.0.0.0/24 --rate 100M >/run/killed 2>&1; then
            break
        fi
        if [ -e $STATE ]; then taken pace clear; fi
        [ "$(look)" = "$clean" ] || fail "killed at flush $at: $(look), not $clean"
        at=$((at + 3))
        [ $at -lt 40 ] || { fail "it never ends"; break; }
    done
    echo "pace: killed at each third flush below the ${at}th ($root)"
    [ $at -gt 3 ] || fail "killed $at times only: $(cat /run/killed)"
    taken pace clear
    [ "$(look)" = "$clean" ] || fail "after $root: $(look), not $clean"
done

# `kuroshio cp` makes a class for its own streams where psp is loaded: not at an interface with the kernel's own qdisc before
# (bare), and at somebody's psp (theirs). It goes with the copy, and after a kill -9 with the next one, or with `pace clear`.
export XDG_STATE_HOME=/run/state XDG_CONFIG_HOME=/run/config
mkdir -p /run/in
head -c 3M /dev/urandom >/run/data
ip netns exec b "$KUROSHIO" serve --insecure --insecure-anywhere --root /run/in --listen 10.0.0.2:7420 >/run/serve 2>&1 &
servers="$servers $!"
tries=0
until ip netns exec b ss -Hltn "sport = :7420" | grep -q . || [ $tries -ge 200 ]; do
    tries=$((tries + 1))
    sleep 0.05
done
[ $tries -lt 200 ] || { fail "no service: $(cat /run/serve)"; exit 1; }
copy() { # copy RATE NAME
    a "$KUROSHIO" cp --json -q --insecure --streams 2 --congestion cubic --rate "$1" /run/data "http://10.0.0.2:7420/$2"
}
own() { ls /run/kuroshio/pace-*-own-*.json 2>/dev/null; }
for root in bare theirs; do
    if [ $root = theirs ]; then
        tca qdisc add dev psw0 root handle 7: psp default 1
        tca class add dev psw0 parent 7: classid 7:1 psp rate 900mbit
    fi
    clean=$(look)
    echo 1 >$WIRE/clear
    shows "psp at psw0, in a class of their own" copy 100M "copy-$root"
    cmp /run/data "/run/in/copy-$root" || fail "copy-$root: not what was sent"
    windows_are "cp-$root" 100000000
    [ "$(look)" = "$clean" ] || fail "after cp, $root: $(look), not $clean"
    for by in cp clear; do
        copy 500kbps "slow-$root-$by" >/run/slow 2>&1 &
        slow=$!
        tries=0
        # Its frames are in its class.
        until tca -s class show dev psw0 | grep -A 6 "rate 500Kbit" | grep -Eq " frames [0-9]{2,} " || [ $tries -ge 200 ]; do
            tries=$((tries + 1))
            sleep 0.05
        done
        [ $tries -lt 200 ] || fail "slow-$root-$by: $(tca -s class show dev psw0), it said $(cat /run/slow)"
        # The last of them is the copy, below the shell and ip, which became it.
        pkill -9 -P $slow || kill -9 $slow
        wait $slow || true
        [ "$(own)" ] || fail "killed, $root: no state file; it said $(cat /run/slow)"
        [ "$(look)" = "$clean" ] && fail "killed, $root: the class went by itself"
        if [ $by = cp ]; then
            copy 100M "next-$root" >/run/next 2>&1 || fail "the next copy: $(cat /run/next)"
        else
            taken a "$KUROSHIO" pace clear
        fi
        [ -z "$(own)" ] || fail "$by, $root: $(own) is left"
        [ "$(look)" = "$clean" ] || fail "$by, $root: $(look), not $clean"
    done
done
echo "pace: cp made classes of its own and took them back, also after kill -9"

for pid in $servers; do kill "$pid"; done
wait
servers=
wire_down
rmmod psp
no_complaints
[ $failed = 0 ] && echo "pace: passed"
exit $failed
