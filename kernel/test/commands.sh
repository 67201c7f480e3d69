#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# In the guest: the paper's commands unchanged, tables of valid and invalid ones (qdisc.json, class.json), 256 classes.
set -eu
BUILD=$1
HERE=$(dirname "$0")
. "$HERE/lib.sh"
wire_up
insmod "$BUILD/psp.ko"

# The paper's own, but for the device.
taken tca qdisc add dev psw0 root handle 1: psp default 2
taken tca class add dev psw0 parent 1: classid 1:1 psp rate 500mbit
taken tca class add dev psw0 parent 1: classid 1:2 psp mode 0
taken tca qdisc add dev psw0 parent 1:1 handle 10: pfifo
taken tca qdisc add dev psw0 parent 1:2 handle 20: pfifo
taken tca filter add dev psw0 parent 1: protocol ip pref 1 u32 match ip dport 80 0xffff classid 1:1
shows "default 2 pace auto (timer: virtual device)" tca qdisc show dev psw0
shows "parent 1:1 limit" tca qdisc show dev psw0
shows "class psp 1:1 root leaf 10: mode 1 rate 500Mbit" tca class show dev psw0
shows "class psp 1:2 root leaf 20: mode 0" tca class show dev psw0
# Filters lead where they should.
a "$BUILD/test/feed" 10.0.0.2 80 1518 3
a "$BUILD/test/feed" 10.0.0.2 81 1518 5
until_frames 8
shows "frames 3 bytes 4554 gap-frames 0 gap-bytes 0 drops queue 0" tca -s class show dev psw0 classid 1:1
shows "frames 5 bytes 7590 gap-frames 0 gap-bytes 0 drops queue 0" tca -s class show dev psw0 classid 1:2
shows '"pace":"auto","pace_used":"timer","reason":"virtual device"' tca -j qdisc show dev psw0
shows "wire 1Gbit" tca -d qdisc show dev psw0
tca -s -j qdisc show dev psw0 | python3 -m json.tool >/dev/null || fail "qdisc show -s -j is no JSON"
# tc 6.1 shows classes as text, whatever is asked for; later ones as JSON.
case "$(tca -s -j class show dev psw0)" in
'['*) tca -s -j class show dev psw0 | python3 -m json.tool >/dev/null || fail "class show -s -j is no JSON" ;;
esac
# Change, replace, delete.
taken tca qdisc change dev psw0 root psp pace gap
shows "pace gap" tca qdisc show dev psw0
taken tca class change dev psw0 classid 1:1 psp rate 100mbit
shows "mode 1 rate 100Mbit" tca class show dev psw0 classid 1:1
taken tca class replace dev psw0 parent 1: classid 1:1 psp mode 2
shows "mode 2" tca class show dev psw0 classid 1:1
taken tca class change dev psw0 classid 1:1 psp mode 2 rate 250mbit
shows "mode 2 bound 250Mbit" tca class show dev psw0 classid 1:1
refused "filters lead to the class" tca class del dev psw0 classid 1:1
taken tca filter del dev psw0 parent 1: pref 1
taken tca class del dev psw0 classid 1:1
refused "" tca class change dev psw0 classid 1:1 psp rate 1mbit
taken tca qdisc replace dev psw0 root handle 2: psp default 0x10 pace timer phy 10gbit
shows "default 10 pace timer phy 10Gbit" tca qdisc show dev psw0
taken tca qdisc del dev psw0 root

# The tables of valid and invalid commands.
ip -n a link add psd0 type dummy
a python3 -I "$HERE/cases.py" "$BUILD" "$HERE/qdisc.json" "$HERE/class.json" || failed=1
ip -n a link del psd0

# As many as there may be.
new() { tca class add dev psw0 parent 1: classid "$@"; }
taken tca qdisc add dev psw0 root handle 1: psp
there=0
i=256
while [ "$there" -lt 256 ]; do
    printf 'class add dev psw0 parent 1: classid 1:%x psp rate 1mbit\n' $i
    i=$((i + 1))
    there=$((there + 1))
done >/run/many
taken tca -batch /run/many
[ "$(tca class show dev psw0 | wc -l)" = 256 ] || fail "$(tca class show dev psw0 | wc -l) classes"
refused "256 classes at most" new 1:ffff psp rate 1mbit
taken tca qdisc del dev psw0 root

wire_down
rmmod psp
no_complaints
[ $failed = 0 ] && echo "commands: passed"
exit $failed
