#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Statistics of psp beside the wire's stamps: figures.py DIR reads what figures.sh left in DIR.

Each class sent frames of one size, so the wire's log says what each one sent. Must hold:

    per class   frames and bytes are the wire's; "Sent" counts them without FCS; nothing waits
    qdisc       its sums are the wire's, gap frames and their bytes as well, and the classes' in sum
    rate        `achieved` of the paced class is what the stamps of the same second say, to 1 ppm
    -j          is JSON, has the keys below and no others, and says what the text says
    BQL         nothing is in flight at the end, and behind the first frames each start is within one byte of its place

Exit code: 0 all holds, 1 not, 2 bad input.
"""
import json
import pathlib
import re
import sys

FCS = 4
PS_PER_BYTE = 8000
PS_BITS = 8 * 10**12
SECOND_PS = 10**12
SIZES = {"1:1": 1518, "1:2": 700, "1:31": 1000, "1:32": 400, "direct": 300}
RATE_BPS = 10_000_000
# With byte queue limits: frames until their limit has grown.
WARM_FRAMES = 500
KEYS = {
    "kind", "handle", "root", "refcnt", "options", "bytes", "packets", "drops", "overlimits", "requeues", "backlog", "qlen",
    "frames", "frame_bytes", "gap_frames", "gap_bytes", "drop_queue", "drop_gso", "achieved_bps", "rate_in_force_bps", "lost_us",
    "direct_frames", "runaways", "gap_failures", "ahead_us", "skew_us",
}
OPTIONS = {"default", "pace", "pace_used", "wire_bps"}
bad = 0


def check(holds, what):
    global bad
    if not holds:
        print(f"FAILED: figures: {what}")
        bad += 1


def same(name, got, due):
    check(got == due, f"{name}: {got}, not {due}")


def stamps(path):
    return [tuple(map(int, line.split())) for line in path.read_text().splitlines()]


def counters(text):
    """Numbers behind words: "gap-frames 12" -> gap-frames: 12."""
    return {name: int(value) for name, value in re.findall(r"([a-z_-]+) ([0-9]+)(?:bit|us)?\b", text)}


def once(pairs):
    """An object of JSON; a key that comes twice would hide a value."""
    keys = [key for key, _ in pairs]
    check(len(keys) == len(set(keys)), f"-j: a key comes twice: {sorted(k for k in keys if keys.count(k) > 1)}")
    return dict(pairs)


def class_parts(text):
    return {part.split()[0]: part for part in text.split("class psp ")[1:]}


def achieved(log, size):
    """Bit/s of the first whole second of the frames of a size; later ones had no second of their own."""
    starts = [start for start, bytes_ in log if bytes_ == size]
    for n, start in enumerate(starts):
        if start - starts[0] >= SECOND_PS:
            return n * size * PS_BITS // (start - starts[0])
    return 0


def classes(folder):
    log = stamps(folder / "classes.log")
    wire = counters((folder / "classes.wire").read_text())
    parts = class_parts((folder / "classes.class").read_text())
    same("classes", set(parts), {"1:1", "1:2", "1:3", "1:31", "1:32"})
    sums = {"gap-frames": 0, "gap-bytes": 0}
    for name, size in SIZES.items():
        count = sum(bytes_ == size for _, bytes_ in log)
        check(count > 0, f"no frame of {name} on the wire")
        if name == "direct":
            continue
        own = counters(parts[name])
        same(f"{name} frames", own["frames"], count)
        # The last "bytes" of a class is psp's; "Sent" has its own.
        same(f"{name} bytes", int(re.search(r"frames \d+ bytes (\d+)", parts[name])[1]), count * size)
        same(f"{name} sent", re.search(r"Sent (\d+) bytes (\d+) pkt", parts[name]).groups(),
             (str(count * (size - FCS)), str(count)))
        check("backlog 0b 0p" in parts[name] and "dropped 0" in parts[name], f"{name}: {parts[name]}")
        for key in sums:
            sums[key] += own[key]
    first = counters(parts["1:1"])
    same("rate in force", first["in-force"], RATE_BPS)
    due = achieved(log, SIZES["1:1"])
    check(due > 0 and abs(first["achieved"] - due) * 1_000_000 <= due, f"achieved {first['achieved']}, the wire says {due}")
    check(abs(due - RATE_BPS) * 1000 <= RATE_BPS, f"the wire says {due} bit/s of {RATE_BPS}")

    (qdisc,) = [q for q in json.loads((folder / "classes.qdisc.json").read_text(), object_pairs_hook=once) if q["kind"] == "psp"]
    same("keys of -j", set(qdisc), KEYS)
    same("options of -j", set(qdisc["options"]), OPTIONS)
    same("options", qdisc["options"], {"default": 0, "pace": "gap", "pace_used": "gap", "wire_bps": 10**9})
    same("frames", qdisc["frames"], wire["frames"])
    same("frames in the log", len(log), wire["frames"])
    same("gap frames", qdisc["gap_frames"], wire["pause_frames"])
    same("gap bytes", qdisc["gap_bytes"], wire["pause_bytes"])
    same("gap frames of the classes", sums, {"gap-frames": wire["pause_frames"], "gap-bytes": wire["pause_bytes"]})
    same("direct frames", qdisc["direct_frames"], sum(bytes_ == SIZES["direct"] for _, bytes_ in log))
    for key in ("drops", "backlog", "qlen", "drop_queue", "drop_gso", "runaways", "gap_failures"):
        same(key, qdisc[key], 0)
    text = (folder / "classes.qdisc").read_text()
    shown = counters(text)
    for key in ("frames", "gap_frames", "gap_bytes"):
        same(f"{key} as text", shown[key.replace("_", "-")], qdisc[key])
    same("bytes", qdisc["frame_bytes"], wire["bytes"])
    same("bytes as text", int(re.search(r"frames \d+ bytes (\d+)", text)[1]), wire["bytes"])
    print(f"figures: {wire['frames']} frames, {wire['pause_frames']} gap frames of {wire['pause_bytes']} bytes: psp and wire agree;"
          f" achieved {first['achieved']} bit/s, the wire {due}")


def bql(folder):
    starts = [start for start, _ in stamps(folder / "bql.log")]
    same("frames", len(starts), 3000)
    limits = dict(line.split(":") for line in (folder / "bql.bql").read_text().split())
    same("in flight", int(limits["inflight"]), 0)
    check(int(limits["limit"]) > 0, f"a limit of {limits['limit']}: byte queue limits are not at work")
    warm = starts[WARM_FRAMES:]
    errors = [(s - warm[0]) / PS_PER_BYTE - n * 3036 for n, s in enumerate(warm)]
    check(min(errors) > -1 and max(errors) < 1, f"starts {min(errors)} to {max(errors)} bytes off behind frame {WARM_FRAMES}")
    holes = counters((folder / "bql.wire").read_text())["holes"]
    late = (starts[WARM_FRAMES] - starts[0]) / PS_PER_BYTE - WARM_FRAMES * 3036
    print(f"figures: byte queue limits of {limits['limit']} bytes: {holes} holes, {late:.0f} bytes of wire, before frame {WARM_FRAMES}")


def main():
    if len(sys.argv) != 2 or not pathlib.Path(sys.argv[1], "classes.log").exists():
        print(__doc__.splitlines()[0], file=sys.stderr)
        return 2
    folder = pathlib.Path(sys.argv[1])
    classes(folder)
    bql(folder)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
