#!/bin/sh
# Tests of the machine itself: tests/vm/check.sh (about a minute; needs what `scripts/deps vm` installs).
set -u
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd -P)
work=$(mktemp -d "${TMPDIR:-/tmp}/kuroshio-vm-check.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM HUP
failed=0
fail() { echo "vm check: $1" >&2; failed=1; }
TMPDIR=$work
export TMPDIR

refused() { # refused WORDS...: exit code 2, a reason, nothing printed, nothing started
    "$here/vm" "$@" >"$work/stdout" 2>"$work/stderr"
    code=$?
    [ $code = 2 ] || fail "vm $*: exit code $code instead of 2"
    grep -q '^vm: ' "$work/stderr" || fail "vm $*: no reason"
    [ ! -s "$work/stdout" ] || fail "vm $*: printed something"
}

refused
refused bake
refused run
refused run --memory 12 "$here/check.sh"
refused run --timeout soon "$here/check.sh"
refused run --timeout
refused run --module 'a;b' "$here/check.sh"
refused run --bogus "$here/check.sh"
refused run "$work/nothing"

cat >"$work/guest.sh" <<'END'
printf '%s|' "$@"
echo
echo "to stderr" >&2
echo left >/run/out/file
touch "$HOST_FOLDER/written" 2>/dev/null && echo writable
# Virtual time: a second asleep is a second, whatever the host does meanwhile. While a program is read from the host's
# disk the machine waits in the host's time: so `sleep` is in memory first, and the clock is read without a program.
sleep 0
read -r before _ </proc/uptime
sleep 5
read -r after _ </proc/uptime
echo "slept $(($(echo "$after" | tr -d .) - $(echo "$before" | tr -d .)))"
grep -c '^sch_netem ' /proc/modules
exit 7
END
{ echo "HOST_FOLDER='$work'"; cat "$work/guest.sh"; } >"$work/script"
# shellcheck disable=SC2016
"$here/vm" run --module sch_netem --out "$work/out" "$work/script" 'a b' "it's" '$(x)' >"$work/stdout" 2>"$work/stderr"
code=$?
[ $code = 7 ] || fail "exit code $code instead of the script's 7"
sed -n 1p "$work/stdout" | grep -qxF "a b|it's|\$(x)|" || fail "arguments: $(sed -n 1p "$work/stdout")"
grep -qx "to stderr" "$work/stderr" || fail "stderr is lost"
[ "$(cat "$work/out/file")" = left ] || fail "the file in --out is not there"
[ ! -e "$work/written" ] || fail "the guest wrote to the host"
grep -Eqx 'slept 50[0-9]' "$work/stdout" || fail "5 s asleep: $(grep slept "$work/stdout") hundredths"
[ "$(tail -n 1 "$work/stdout")" = 1 ] || fail "sch_netem is not loaded"

echo 'while :; do :; done' >"$work/script"
"$here/vm" run --timeout 5 "$work/script" >"$work/stdout" 2>"$work/stderr"
code=$?
[ $code = 124 ] || fail "out of time: exit code $code instead of 124"

echo 'exit 0' >"$work/script"
"$here/vm" run --module no_such_module "$work/script" >/dev/null 2>"$work/stderr"
code=$?
[ $code = 2 ] || fail "a module that is not there: exit code $code instead of 2"
for left in "$work"/kuroshio-vm.*; do
    [ ! -e "$left" ] || fail "left behind: $left"
done
[ $failed = 0 ] && echo "vm check: all hold"
exit $failed
