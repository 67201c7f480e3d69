#!/usr/bin/env python3
"""Writes the test vectors beside this file, from the definitions in README.md.

It shares no code with the crate: time is an exact fraction of picoseconds here, and the order of events
is worked out one by one. The same seed gives the same files.
"""

import csv
import random
from fractions import Fraction
from math import ceil, floor
from pathlib import Path

HERE = Path(__file__).parent
BITS = 8 * 10**12  # picosecond-bits per byte-second
SIZES = [64, 65, 66, 594, 1434, 1514, 1518, 6018, 9018]


def write(name, header, rows):
    with open(HERE / name, "w", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(header)
        out.writerows(rows)


def arrivals(rng, frames, busy_ps):
    """Times and sizes: bursts, steady stretches and pauses around a time of busy_ps per frame."""
    now, mode = 0, 0
    for _ in range(frames):
        if rng.random() < 0.15:
            mode = rng.randrange(3)
        now += [0, rng.randrange(2 * busy_ps), rng.randrange(8 * busy_ps)][mode]
        yield now, rng.choice(SIZES)


def pacer():
    rates = [8_000, 8_001, 999_999, 250_000_000, 930_000_007, 7_777_777_777, 100_000_000_000,
             799_999_999_999, 800_000_000_000]
    rows = []
    for case, rate in enumerate(rates):
        free = Fraction(0)
        for now, size in arrivals(random.Random(case), 40, 1518 * BITS // rate):
            start = max(free, Fraction(now))
            rows.append([case, rate, now, size, floor(start)])
            free = start + Fraction(size * BITS, rate)
    write("pacer.csv", ["case", "rate_bps", "now_ps", "frame_bytes", "start_ps"], rows)


def gap_bytes(size, rate, line):
    size = max(size, 64)
    return max(12, ceil(Fraction(size) * (Fraction(line, rate) - 1) - 8))


def ifg():
    lines = {10**9: [8_000, 10**6, 234_000_001, 250_000_000, 333_333_333, 500_000_000, 750_000_000,
                     800_000_000, 930_000_000, 950_000_000, 986_996_098, 10**9, 2 * 10**9],
             10**10: [10**9, 2_340_000_000, 9_870_000_000], 468_000_000: [160_000_000, 400_000_007],
             8 * 10**11: [8_000, 799_999_999_999]}
    rows = [[line, rate, size, gap_bytes(size, rate, line)]
            for line, rates in lines.items() for rate in rates for size in [1, *SIZES]]
    write("ifg.csv", ["line_l1_bps", "rate_bps", "frame_bytes", "gap_bytes"], rows)


def shaper():
    cases = [(10**9, "rate_bps", 250_000_000), (10**9, "rate_bps", 500_000_000), (10**9, "rate_bps", 950_000_000),
             (10**9, "gap_bytes", 12), (10**9, "gap_bytes", 36_000), (10**10, "rate_bps", 2_340_000_000),
             (468_000_000, "rate_bps", 160_000_000), (7_777_777_777, "rate_bps", 5_432_109_876)]
    rows = []
    for case, (line, kind, value) in enumerate(cases):
        byte = Fraction(BITS, line)
        free = Fraction(0)
        for now, size in arrivals(random.Random(100 + case), 40, 1518 * 2 * BITS // line):
            start = max(free, Fraction(now))
            end = start + (8 + max(size, 64)) * byte
            gap = gap_bytes(size, value, line) if kind == "rate_bps" else max(12, value)
            free = end + gap * byte
            rows.append([case, line, kind, value, now, size, floor(start), floor(end)])
    write("shaper.csv", ["case", "line_l1_bps", "spacing", "value", "now_ps", "frame_bytes", "start_ps", "end_ps"],
          rows)


def split(total, overhead, limit):
    if total <= 0:
        return []
    total = max(total, 64 + overhead)
    frames = ceil(Fraction(total, limit + overhead))
    small, larger = divmod(total, frames)
    return [small + 1 - overhead] * larger + [small - overhead] * (frames - larger)


def gap():
    rows = []
    for size in [64, 1500, 1518, 9018]:
        for target in [8_000, 10**6, 100_000_001, 500_000_000, 900_000_000, 935_881_627, 990_000_000, 10**9]:
            for limit in [168, 1518, 9018]:
                line = 10**9
                plain = split(ceil(Fraction(size) * (Fraction(line, target) - 1)), 0, limit)
                wire = split(ceil(Fraction(size * line, target)) - size - 20, 20, limit)
                for kind, frames in [("plain", plain), ("on_wire", wire)]:
                    rows.append([kind, size, target, line, limit, len(frames), sum(frames),
                                 max(frames, default=0), min(frames, default=0)])
    write("gap.csv", ["kind", "frame_bytes", "target_bps", "max_bps", "limit_bytes", "gap_frames",
                      "gap_frame_bytes", "largest_bytes", "smallest_bytes"], rows)


class Link:
    """Events one by one, in exact time."""

    def __init__(self, capacity, wire, delay, limit):
        self.capacity, self.wire, self.delay, self.limit = capacity, wire, delay, limit
        self.free, self.last, self.queue, self.departures = Fraction(0), 0, [], {}

    def start(self, at, number, size):
        time = Fraction(size * BITS, self.capacity)
        if self.wire:
            time = max(time, Fraction(ceil(Fraction((size + 20) * BITS, self.wire))))
        self.free = at + time
        self.last = max(self.last, floor(self.free) + self.delay)
        self.departures[number] = self.last

    def serve(self, now):
        while self.queue and floor(self.free) <= now:
            self.start(self.free, *self.queue.pop(0))

    def arrive(self, now, number, size):
        self.serve(now)
        size = max(size, 64)
        if not self.queue and floor(self.free) <= now:
            self.start(max(self.free, Fraction(now)), number, size)
        elif sum(s for _, s in self.queue) + size <= self.limit:
            self.queue.append((number, size))
        else:
            self.departures[number] = "drop"

    def set_capacity(self, now, capacity):
        self.serve(now)
        if capacity != self.capacity:
            self.free, self.capacity = Fraction(ceil(self.free)), capacity


def link():
    cases = [(468_000_000, 10**9, 70_500_000_000, 20_000), (500_000_000, 0, 100_000_000_000, 9_018),
             (999_999_937, 10**9, 0, 64_000), (2_340_000_000, 10**10, 1, 30_000), (8_001, 0, 5, 1_518),
             (1_000_000_000, 7_777_777_777, 12_345, 12_036), (799_999_999_999, 800_000_000_000, 10**9, 100_000)]
    rows = []
    for case, (capacity, wire, delay, limit) in enumerate(cases):
        rng = random.Random(200 + case)
        model = Link(capacity, wire, delay, limit)
        events = []
        for now, size in arrivals(rng, 60, 3000 * BITS // capacity // 2):
            if case % 2 == 1 and rng.random() < 0.08:
                to = rng.randrange(capacity // 3, capacity)
                model.set_capacity(now, to)
                events.append(["capacity_bps", now, to, None])
            model.arrive(now, len(events), size)
            events.append(["frame_bytes", now, size, len(events)])
        model.serve(10**30)
        for event, now, value, number in events:
            result = "" if number is None else model.departures[number]
            rows.append([case, capacity, wire, delay, limit, event, now, value, result])
    write("link.csv", ["case", "capacity_bps", "wire_l1_bps", "one_way_delay_ps", "queue_bytes", "event", "now_ps",
                       "value", "depart_ps"], rows)


if __name__ == "__main__":
    pacer()
    ifg()
    shaper()
    gap()
    link()
