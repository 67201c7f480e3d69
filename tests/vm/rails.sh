#!/bin/sh
# Rails on a machine of two memory nodes (a guest of `tests/vm/vm`): binding is read back from /proc and numactl.
#
#   tests/vm/vm run --nodes 2 --real-time --module virtio_net tests/vm/rails.sh target/debug/kuroshio
#
# The guest has a card at node 0, one at node 1, and one whose node is -1. Prints what it finds; exit code 1 when
# something is not as it must be.
set -u
kuroshio=$1
failed=0
fail() { echo "rails: $1" >&2; failed=1; }
json() { python3 -c "import json,sys; d=json.load(sys.stdin); print($1)"; }

numactl -H
"$kuroshio" rail ls
"$kuroshio" rail ls --json >/run/ls.json || fail "rail ls"
[ "$(json '[n["node"] for n in d["machine"]["nodes"]]' </run/ls.json)" = "[0, 1]" ] || fail "nodes"
[ "$(json '[n["distances"] for n in d["machine"]["nodes"]]' </run/ls.json)" = "[[10, 20], [20, 10]]" ] || fail "distances"
[ "$(json 'sorted(str(c["node"]) for c in d["machine"]["cards"])' </run/ls.json)" = "['0', '1', 'None']" ] ||
    fail "cards: $(json '[(c["pci"], c["node"]) for c in d["machine"]["cards"]]' </run/ls.json)"

# Each rail in turn: threads, and memory where it is touched.
cat >/run/touch.py <<'END'
import re
data = bytearray(64 << 20)
for i in range(0, len(data), 4096):
    data[i] = 1
pages = {}
for line in open("/proc/self/numa_maps"):
    if " anon=" in line:
        for node, count in re.findall(r"\bN(\d+)=(\d+)", line):
            pages[node] = pages.get(node, 0) + int(count)
status = open("/proc/self/status").read()
allowed = re.search(r"Cpus_allowed_list:\s*(\S+)", status).group(1)
most = max(pages, key=pages.get)
print(allowed, most, 100 * pages[most] // sum(pages.values()))
END
for rail in 1 2 3; do
    node=$(json "[r['node'] for r in d['rails'] if r['number'] == $rail][0]" </run/ls.json)
    pus=$(json "' '.join(map(str, sorted([r['pus'] for r in d['rails'] if r['number'] == $rail][0])))" </run/ls.json)
    for placement in local other; do
        set -- $("$kuroshio" rail run "$rail" --placement $placement -- python3 /run/touch.py)
        echo "rail $rail $placement: processors $1, memory of node $2 ($3 %)"
        want=$node
        [ $placement = local ] || want=$((1 - node))
        [ "$2" = "$want" ] && [ "$3" -ge 95 ] || fail "rail $rail $placement: memory of node $2, $3 % instead of node $want"
        # Processors 0 and 1 are of node 0, 2 and 3 of node 1.
        case "$want$1" in 00* | 01* | 12* | 13*) ;; *) fail "rail $rail $placement: processors $1 for node $want" ;; esac
        case "$placement" in local)
            first=${pus%% *}
            case "$1" in "$first"*) ;; *) fail "rail $rail: processors $1 instead of $pus" ;; esac ;;
        esac
    done
done
"$kuroshio" rail run 1 -- numactl --show | grep -E '^(physcpubind|membind)'

# Interrupts of a real card go to the rail and come back.
card=$(json '[r["number"] for r in d["rails"] if r["card_node"] == 1][0]' </run/ls.json)
irqs=$(json '" ".join(str(i["irq"]) for c in d["machine"]["cards"] if c["node"] == 1 for i in c["interrupts"])' </run/ls.json)
[ -n "$irqs" ] || fail "the card at node 1 has no interrupts"
show() { for irq in $irqs; do cat "/proc/irq/$irq/smp_affinity_list"; done; }
before=$(show)
during=$("$kuroshio" rail run "$card" --interrupts --undo-file /run/undo.json -- \
    sh -c "for irq in $irqs; do cat /proc/irq/\$irq/smp_affinity_list; done")
echo "interrupts $irqs: before" $before "during" $during "after" $(show)
[ "$(show)" = "$before" ] || fail "interrupts were not brought back"
for pu in $during; do case $pu in 2 | 3) ;; *) fail "an interrupt of the card at node 1 went to $pu" ;; esac; done
[ ! -e /run/undo.json ] || fail "the undo file is left"

[ $failed = 0 ] && echo "rails: all as it must be"
exit $failed
