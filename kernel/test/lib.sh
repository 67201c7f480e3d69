# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=sh
# In the guest: two namespaces a and b, joined by the test wire. Sourced by the tests; BUILD is the folder of the modules.
PATH=$PATH:/usr/sbin:/sbin
export TC_LIB_DIR="$BUILD"
WIRE=/sys/kernel/debug/pspwire/psw0
failed=0

fail() { echo "FAILED: $*"; failed=1; }

wire_up() { # wire_up [PARAMETER=VALUE...] of pspwire
    mountpoint -q /sys/kernel/debug || mount -t debugfs debugfs /sys/kernel/debug
    insmod "$BUILD/test/pspwire.ko" "$@"
    mkdir -p /run/netns
    for side in 0 1; do
        host=$(echo ab | cut -c $((side + 1)))
        ip netns add "$host"
        ip netns exec "$host" sh -c 'echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6
            echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6'
        ip link set dev "psw$side" netns "$host"
        ip -n "$host" link set dev lo up
        ip -n "$host" link set dev "psw$side" address "02:00:00:00:00:0$side"
        ip -n "$host" address add "10.0.0.$((side + 1))/24" dev "psw$side"
    done
    ip -n a link set dev psw0 up
    ip -n b link set dev psw1 up
    # Nobody asks for neighbours: nothing but the test's frames is on the wire.
    ip -n a neigh replace 10.0.0.2 lladdr 02:00:00:00:00:01 dev psw0 nud permanent
    ip -n b neigh replace 10.0.0.1 lladdr 02:00:00:00:00:00 dev psw1 nud permanent
}

wire_down() {
    ip netns del a
    ip netns del b
    # The devices come back from a namespace when its last user has gone.
    tries=0
    until [ -e /sys/class/net/psw0 ] && [ -e /sys/class/net/psw1 ]; do
        tries=$((tries + 1))
        [ $tries -lt 1000 ] || { fail "the wire's devices do not come back"; break; }
        sleep 0.01
    done
    rmmod pspwire
}

a() { ip netns exec a "$@"; }
tca() { tc -n a "$@"; }
stat() { sed -n "s/^$1 //p" $WIRE/stats; }

until_frames() { # until_frames COUNT [SECONDS]: they have been on the wire; asks every so often, 12,000 times at most
    tries=0
    while [ "$(stat frames)" -lt "$1" ]; do
        tries=$((tries + 1))
        if [ $tries -ge 12000 ] || { [ -n "${2:-}" ] && [ $tries -ge 400 ]; }; then
            fail "$(stat frames) of $1 frames on the wire"
            return
        fi
        sleep "${2:-0.01}"
    done
}

refused() { # refused TEXT COMMAND...: fails, and says TEXT
    text=$1
    shift
    if said=$("$@" 2>&1); then fail "taken: $*"; return; fi
    case "$said" in *"$text"*) ;; *) fail "$*: says '$said', not '$text'" ;; esac
}

taken() { # taken COMMAND...
    said=$("$@" 2>&1) || fail "refused: $*: $said"
}

shows() { # shows TEXT COMMAND...
    text=$1
    shift
    said=$("$@" 2>&1) || { fail "$*: $said"; return; }
    case "$said" in *"$text"*) ;; *) fail "$*: shows '$said', not '$text'" ;; esac
}

no_complaints() { # the kernel's log has no warning, oops or lockup
    if dmesg | grep -E 'WARNING|BUG:|Oops|lockup|refcount|stack-protector|general protection|Call Trace|use-after-free|leak' >/run/complaints; then
        fail "the kernel complains: $(head -n 5 /run/complaints)"
    fi
}
