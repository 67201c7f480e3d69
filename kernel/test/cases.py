#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Runs tables of commands: cases.py BUILD FILE.json...

A case has the form of the kernel's own tc-testing (tools/testing/selftests/tc-testing): setup, cmdUnderTest and
expExitCode (1: tc's plug-in refuses, 2: the kernel does), then verifyCmd, whose output has matchCount lines with
matchPattern, then teardown. Beyond that form:

    expOutput           what cmdUnderTest has to print, on stdout or stderr
    setup, teardown     the file's own where a case has none; "+" in a case's setup stands for the file's

A refused command without verifyCmd has to leave qdiscs, classes and filters as they were.

It runs in the namespace a. $TC is tc, $IP ip, $NETLINK speaks netlink, $DEV is the test wire, $DUMMY a device without speed.
Exit code: 0 all hold, 1 not, 2 bad input.
"""
import json
import pathlib
import re
import shlex
import subprocess
import sys

DEV, DUMMY = "psw0", "psd0"


def variables(build):
    return {
        "$TC": "tc", "$IP": "ip", "$DEV": DEV, "$DUMMY": DUMMY, "$NETLINK": f"{shlex.quote(build)}/test/netlink",
    }


class Runner:
    def __init__(self, build):
        self.names = variables(build)
        self.failures = 0

    def run(self, command, given=""):
        """Exit code and output of one command, no shell between."""
        words = shlex.split(re.sub(r"\$[A-Z]+", lambda m: self.names[m.group()], command))
        # No timeout: virtual time jumps while a file of the host is waited for. The machine has one.
        done = subprocess.run(words, input=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              check=False, text=True, errors="replace")
        return done.returncode, done.stdout

    def all_of(self, commands, what):
        for command in commands:
            code, said = self.run(command)
            if code:
                return f"{what}: {command}: exit code {code}: {said.strip()}"
        return None

    def state(self):
        """All that psp could have touched, by one process: starting it is what takes time."""
        shows = [("qdisc", DEV), ("class", DEV), ("filter", DEV), ("qdisc", DUMMY), ("qdisc", "lo")]
        code, said = self.run("$TC -batch -", "".join(f"{kind} show dev {dev}\n" for kind, dev in shows))
        assert code == 0, said
        return said

    def outcome(self, case):
        """What is wrong with a case that is set up, or None."""
        untouched = case["expExitCode"] != "0" and "verifyCmd" not in case
        before = self.state() if untouched else None
        code, said = self.run(case["cmdUnderTest"])
        if code != int(case["expExitCode"]):
            return f"exit code {code}, not {case['expExitCode']}: {said.strip()}"
        if not re.search(case.get("expOutput", ""), said, re.DOTALL):
            return f"says {said.strip()!r}, not {case['expOutput']!r}"
        if untouched:
            return None if self.state() == before else "a refused command changed something"
        _, shown = self.run(case["verifyCmd"])
        count = len(re.findall(case["matchPattern"], shown, re.MULTILINE))
        if count != int(case["matchCount"]):
            return f"{count} of {case['matchPattern']!r} in {shown.strip()!r}, not {case['matchCount']}"
        return None

    def case(self, case, setup, teardown):
        commands = [c for entry in case.get("setup", setup) for c in (setup if entry == "+" else [entry])]
        wrong = self.all_of(commands, "setup") or self.outcome(case)
        wrong = self.all_of(case.get("teardown", teardown), "teardown") or wrong
        if wrong:
            print(f"FAILED: {case['id']} {case['name']}: {wrong}")
            self.failures += 1


def main():
    if len(sys.argv) < 3:
        print(__doc__.splitlines()[0], file=sys.stderr)
        return 2
    runner = Runner(sys.argv[1])
    count = 0
    for path in sys.argv[2:]:
        table = json.loads(pathlib.Path(path).read_text())
        for case in table["cases"]:
            runner.case(case, table["setup"], table["teardown"])
            count += 1
    if not count:
        print("cases: no case in any file", file=sys.stderr)
        return 2
    print(f"cases: {count - runner.failures} of {count} hold")
    return 1 if runner.failures else 0


if __name__ == "__main__":
    sys.exit(main())
