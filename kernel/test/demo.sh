#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# In the guest: demo.sh BUILD KUROSHIO. The demo's paced run where psp is loaded: classes of psp keep the rates of its streams,
# nothing is dropped, every file arrives whole, and no class outlives it. A fiftieth of the network, files of 64 MiB in all.
set -eu
BUILD=$1
KUROSHIO=$2
. "$(dirname "$0")/lib.sh"
insmod "$BUILD/psp.ko"
mkdir -p /run/data /run/netns
for n in 1 2 3 4 5 6 7 8; do head -c 8388608 /dev/urandom >"/run/data/$n"; done
cd /run
status=0
"$KUROSHIO" demo --data /run/data --scale 1/50 --runs paced --json --out /run/demo >/run/out/demo.json 2>/run/out/demo.err || status=$?
cat /run/out/demo.err
# A rate below its bound, or a disturbed machine, is for the demo's own figures: the guest's clock is not the wall's.
[ $status = 0 ] || [ $status = 1 ] || [ $status = 3 ] || fail "demo: exit code $status"
grep -q '"paced_by": *"[^"]*psp' /run/out/demo.json || fail "no class of psp kept a rate"
for right in '"dropped_frames": *0[,}]' '"files": *8[,}]' '"files_verified": *8[,}]'; do
    grep -q "$right" /run/out/demo.json || fail "the demo does not say $right"
done
rmmod psp || fail "psp is in use when the demo is over"
no_complaints
exit $failed
