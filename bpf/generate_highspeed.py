#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Makes highspeed_table.h as the program of RFC 3649, appendix B, makes its table.

    b(w) = (0.1 - 0.5) * (log w - log 38) / (log 83000 - log 38) + 0.5
    a(w) = w^2 * 2 b(w) / ((2 - b(w)) * w^1.2 * 12.8)          (p(w) = 1 / (12.8 w^1.2))

A row stands where a(w) has grown by one since the row before; below 38 segments a = 1 and b = 0.5 (Reno).

    bpf/generate_highspeed.py > bpf/highspeed_table.h
"""

import math

LOW, HIGH, TOP = 38, 83_000, 100_000


def rows():
    yield LOW, 128
    last = 1.0
    for w in range(LOW, TOP):
        b = (0.1 - 0.5) * (math.log(w) - math.log(LOW)) / (math.log(HIGH) - math.log(LOW)) + 0.5
        a = w**2 * 2 * b / ((2 - b) * w**1.2 * 12.8)
        if a > last + 1:
            yield w, int(b * 256)
            last = a


def main():
    table = list(rows())
    print("/* SPDX-License-Identifier: GPL-2.0-only */")
    print("/* Made by generate_highspeed.py: window up to which a(w) is the row's number + 1, and b(w) * 256. */")
    print(f"#define HIGHSPEED_ROWS {len(table)}")
    print("/* A power of two, so that a masked index is within it; the rest is never looked at. */")
    print("#define HIGHSPEED_SLOTS 128")
    print("static const struct {\n\tu32 window;\n\tu32 decrease_256;\n} highspeed_rows[HIGHSPEED_SLOTS] = {")
    for window, decrease in table:
        print(f"\t{{ {window}, {decrease} }},")
    print("};")


if __name__ == "__main__":
    main()
