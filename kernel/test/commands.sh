#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# In the guest: the paper's commands unchanged, and a table of valid and invalid ones.
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

# The qdisc's options.
refused "a minor number in hexadecimal" tca qdisc add dev psw0 root handle 1: psp default
refused "a minor number in hexadecimal" tca qdisc add dev psw0 root handle 1: psp default 10000
refused "a minor number in hexadecimal" tca qdisc add dev psw0 root handle 1: psp default -1
refused "auto, gap or timer is valid" tca qdisc add dev psw0 root handle 1: psp pace clock
refused "number and its unit" tca qdisc add dev psw0 root handle 1: psp phy 1000000000
refused "whole number of ps per byte" tca qdisc add dev psw0 root handle 1: psp phy 56gbit
refused "whole number of ps per byte" tca qdisc add dev psw0 root handle 1: psp phy 1mbit
refused "whole number of ps per byte" tca qdisc add dev psw0 root handle 1: psp phy 1600gbit
refused "what is" tca qdisc add dev psw0 root handle 1: psp rate 1mbit
refused "Ethernet" tca qdisc add dev lo root handle 1: psp pace gap
taken tca qdisc add dev lo root handle 1: psp
shows "timer: no Ethernet" tca qdisc show dev lo
taken tca qdisc del dev lo root
taken tca qdisc add dev psw0 root handle 1: prio
refused "root qdisc" tca qdisc add dev psw0 parent 1:1 handle 2: psp pace gap
taken tca qdisc add dev psw0 parent 1:1 handle 2: psp
shows "timer: not the root qdisc" tca qdisc show dev psw0
taken tca qdisc del dev psw0 root
taken tca qdisc add dev psw0 root handle 1: psp
refused "auto, gap or timer is valid" tca qdisc change dev psw0 root psp pace 9
refused "Exclusivity" tca qdisc add dev psw0 root handle 1: psp

# Classes.
new() { tca class add dev psw0 parent 1: classid "$@"; }
refused "needs a rate or a mode" new 1:1 psp
refused "8kbit to 800gbit" new 1:1 psp rate 0bit
refused "8kbit to 800gbit" new 1:1 psp rate 7999bit
refused "8kbit to 800gbit" new 1:1 psp rate 801gbit
refused "above the device's" new 1:1 psp rate 1001mbit
refused "number and its unit" new 1:1 psp rate 500
refused "number and its unit" new 1:1 psp rate fast
refused "number and its unit" new 1:1 psp rate -1mbit
refused "number and its unit" new 1:1 psp rate 99999999999999999999gbit
refused "number and its unit" new 1:1 psp rate 1.0001bit
refused "a value is missing" new 1:1 psp rate
refused "0 (not paced), 1 (static) or 2 (dynamic)" new 1:1 psp mode 3
refused "mode 1 needs a rate" new 1:1 psp mode 1
refused "takes no rate" new 1:1 psp mode 0 rate 1mbit
refused "" new 2:1 psp rate 1mbit
refused "no such parent" tca class add dev psw0 parent 1:7 classid 1:1 psp rate 1mbit
shows "" tca class show dev psw0
[ -z "$(tca class show dev psw0)" ] || fail "a refused class is there"
taken new 1:1 psp rate 8kbit
taken new 1:2 psp rate 1gbit
taken new 1:3 psp mode 2
taken new 1:4 psp rate 0.5mbit
shows "rate 500Kbit" tca class show dev psw0 classid 1:4
taken new 1:5 psp rate 125kbps
shows "rate 1Mbit" tca class show dev psw0 classid 1:5
taken new 1:6 psp rate 999999937bit
shows "rate 999999937bit" tca class show dev psw0 classid 1:6
refused "File exists" new 1:1 psp rate 1mbit
# Groups.
taken tca class add dev psw0 parent 1:2 classid 1:21 psp rate 1mbit
taken tca class add dev psw0 parent 1:2 classid 1:22 psp mode 0
refused "one level" tca class add dev psw0 parent 1:21 classid 1:211 psp rate 1mbit
refused "static rate" tca class add dev psw0 parent 1:3 classid 1:31 psp rate 1mbit
refused "has children" tca class del dev psw0 classid 1:2
refused "their ceiling" tca class change dev psw0 classid 1:2 psp mode 2
refused "is a group" tca qdisc add dev psw0 parent 1:2 handle 50: pfifo
refused "keeps its parent" tca class change dev psw0 parent 1:1 classid 1:21 psp rate 1mbit
taken tca class del dev psw0 classid 1:21
taken tca class del dev psw0 classid 1:22
taken tca qdisc add dev psw0 parent 1:2 handle 50: pfifo
taken tca class del dev psw0 classid 1:2
# As many as there may be.
there=$(tca class show dev psw0 | wc -l)
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
