#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Instructions per frame, from what cost.sh left: cost.py DIR reads DIR/costs, prints a table, writes DIR/cost.json.

In the machine an instruction takes one nanosecond of virtual time, so busy_ns / frames is instructions per frame: sending
process, stack, qdisc, device. "Over pfifo" is the qdisc's share; with gap frames the device's work for them is in it.

Must hold: every qdisc was measured, and no processor was exhausted (busy below 90 % of the time), else a pacer did not pace.

Exit code: 0 all holds, 1 not, 2 bad input.
"""
import json
import pathlib
import sys

QDISCS = ("pfifo", "psp-unpaced", "psp-gap", "psp-timer", "fq", "tbf")


def read(path):
    rows = {}
    for line in path.read_text().splitlines():
        words = line.split()
        name, rate = words[0], int(words[1])
        v = {key: float(value) for key, value in zip(words[2::2], words[3::2])}
        row = rows.setdefault((rate, name), [])
        row.append({
            "instructions_per_frame": v["busy_ns"] / v["frames"],
            "wire_frames_per_frame": v["wire_frames"] / v["frames"],
            "busy_share": v["busy_ns"] / v["elapsed_ns"],
            "rate_mbps": v["frames"] * 1518 * 8e3 / v["elapsed_ns"],
        })
    return rows


def main():
    if len(sys.argv) != 2 or not (pathlib.Path(sys.argv[1]) / "costs").is_file():
        print(__doc__.splitlines()[0], file=sys.stderr)
        return 2
    folder = pathlib.Path(sys.argv[1])
    rows = read(folder / "costs")
    base = rows.get((0, "pfifo"))
    bad = [f"{name}: not measured" for name in QDISCS if not any(key[1] == name for key in rows)]
    if not base:
        print("FAILED: no pfifo to compare with")
        return 1
    base = sum(r["instructions_per_frame"] for r in base) / len(base)
    print("| qdisc | rate, Mbps | instructions per frame | over pfifo | runs | wire's frames per frame | busy |")
    print("|---|---|---|---|---|---|---|")
    told = []
    for (rate, name), runs in sorted(rows.items()):
        each = [r["instructions_per_frame"] for r in runs]
        mean = sum(each) / len(each)
        busy = max(r["busy_share"] for r in runs)
        print(f"| {name} | {rate / 1e6 if rate else '-'} | {mean:.0f} | {mean - base:+.0f} "
              f"| {' '.join(f'{e:.0f}' for e in each)} | {runs[0]['wire_frames_per_frame']:.2f} | {busy * 100:.0f} % |")
        told.append({"qdisc": name, "rate_bps": rate, "over_pfifo": mean - base, "runs": runs})
        if rate and busy >= 0.9:
            bad.append(f"{name} at {rate / 1e6} Mbps: the processor was busy {busy * 100:.0f} % of the time")
    (folder / "cost.json").write_text(json.dumps(told, indent=1) + "\n")
    for reason in bad:
        print(f"FAILED: {reason}")
    print("cost: " + ("failed" if bad else "passed"))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
