#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""What the wire's stamps say: range.py DIR reads DIR/QDISC[-PACE]-RATE_BPS.log, prints a table, writes DIR/range.json.

A frame n of one busy flow belongs at  first + n * 1518 * 8 / rate.  Its error is how many bytes of the wire (8000 ps
each) it started behind that. Distances are from start to start.

Must hold for psp with gap frames: rate within 0.1 % by first to last start; in any window at most rate * T + one frame;
no hole in the wire; each start within one byte of its place up to 935.8 Mbps, within a gap frame of 84 bytes and one
byte above. Within 0.1 % also for psp with the timer. fq and tbf are shown for comparison.

Exit code: 0 all holds, 1 not, 2 bad input.
"""
import json
import pathlib
import sys

FRAME = 1518
PS_PER_BYTE = 8000
PS_BITS = 8 * 10**12
# Rates above have gaps below 84 bytes: 1518/1622 of the wire.
EXACT_BPS = 935_880_000


def quantile(ordered, share):
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def excess_bytes(starts, rate):
    """The most by which any window holds more than rate * T, in bytes: one frame at most."""
    # Bytes that started before i, less what the rate allows up to i: the largest rise from a window's begin to its end.
    worst, low = 0, None
    for n, start in enumerate(starts):
        level = n * FRAME * PS_BITS - rate * (start - starts[0])
        low = level if low is None else min(low, level)
        worst = max(worst, level + FRAME * PS_BITS - low)
    return worst / PS_BITS


def figures(path):
    kind, rate = path.stem.rsplit("-", 1)
    rate = int(rate)
    lines = [line.split() for line in path.read_text().splitlines()]
    starts = [int(line[0]) for line in lines if int(line[1]) == FRAME]
    if len(starts) != len(lines) or len(starts) < 2:
        raise ValueError(f"{path}: {len(lines)} frames, {len(starts)} of {FRAME} bytes")
    counters = dict(line.split()[:2] for line in path.with_suffix(".txt").read_text().splitlines()[:8])
    # Ticks of 1/rate ps: exact integers.
    errors = [(s - starts[0]) * rate - n * FRAME * PS_BITS for n, s in enumerate(starts)]
    errors = [e / rate / PS_PER_BYTE for e in errors]
    gaps = sorted((b - a) / PS_PER_BYTE for a, b in zip(starts, starts[1:]))
    measured = (len(starts) - 1) * FRAME * PS_BITS / (starts[-1] - starts[0])
    return {
        "qdisc": kind, "rate_bps": rate, "frames": len(starts), "measured_bps": measured,
        "rate_error_percent": (measured / rate - 1) * 100,
        "window_excess_bytes": excess_bytes(starts, rate),
        "start_error_min_bytes": min(errors), "start_error_max_bytes": max(errors),
        "distance_expected_bytes": FRAME * PS_BITS / rate / PS_PER_BYTE,
        "distance_bytes": {name: quantile(gaps, share) for name, share in
                           [("min", 0), ("p01", 0.01), ("p50", 0.5), ("p99", 0.99), ("max", 1)]},
        "holes": int(counters["holes"]), "pause_frames": int(counters["pause_frames"]),
    }


def failures(f):
    if not f["qdisc"].startswith("psp"):
        return
    if abs(f["rate_error_percent"]) > 0.1:
        yield "rate off by more than 0.1 %"
    if f["qdisc"] != "psp-gap":
        return
    # A start is a whole number of ps and of bytes of the wire: less than a byte of rounding.
    if f["window_excess_bytes"] > FRAME + (1 if f["rate_bps"] <= EXACT_BPS else 85):
        yield "a window holds more than rate * T + one frame"
    allowed = 1 if f["rate_bps"] <= EXACT_BPS else 85
    if f["start_error_min_bytes"] < -0.001 or f["start_error_max_bytes"] >= allowed:
        yield f"a start is not within {allowed} bytes of its place"
    # One hole: the start.
    if f["holes"] > 1:
        yield f"the wire ran empty {f['holes']} times"


def main():
    if len(sys.argv) != 2:
        print(__doc__.splitlines()[0], file=sys.stderr)
        return 2
    folder = pathlib.Path(sys.argv[1])
    runs = [figures(path) for path in folder.glob("*.log") if "-" in path.stem]
    if not runs:
        print(f"range: no stamps in {folder}", file=sys.stderr)
        return 2
    runs.sort(key=lambda f: (f["qdisc"], f["rate_bps"]))
    head = ("qdisc", "target Mbps", "measured", "error %", "excess B", "start error B", "distance B", "p01", "p50", "p99", "max")
    print("{:10} {:>11} {:>11} {:>8} {:>8} {:>15} {:>12} {:>9} {:>9} {:>9} {:>9}".format(*head))
    bad = 0
    for f in runs:
        d = f["distance_bytes"]
        print(f"{f['qdisc']:10} {f['rate_bps'] / 1e6:11.3f} {f['measured_bps'] / 1e6:11.5f} "
              f"{f['rate_error_percent']:8.4f} {f['window_excess_bytes']:8.1f} "
              f"{f['start_error_min_bytes']:6.2f} {f['start_error_max_bytes']:8.2f} {f['distance_expected_bytes']:12.1f} "
              f"{d['p01']:9.1f} {d['p50']:9.1f} {d['p99']:9.1f} {d['max']:9.1f}")
        for reason in failures(f):
            print(f"FAILED: {f['qdisc']} {f['rate_bps']}: {reason}")
            bad += 1
    (folder / "range.json").write_text(json.dumps(runs, indent=1) + "\n")
    print("range: " + ("passed" if not bad else "failed"))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
