#!/usr/bin/env python3
"""Writes the tables of docs/benchmarks.md from bench/results/*.json.

    bench/table.py           rewrites what stands between the markers
    bench/table.py --check   says what would change, exit code 1 if anything would

A table stands between `<!-- figures NAME -->` and `<!-- end NAME -->`, where NAME.json is its
source. A marker whose file is not there keeps its table, so that one comparison can be taken
again alone.
"""

import argparse
import json
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
MARKED = re.compile(r"(<!-- figures ([a-z0-9-]+) -->\n)(.*?)(<!-- end \2 -->)", re.DOTALL)
SPREAD = (
    ("first_second_mb_per_s", "first second, MB/s"),
    ("peak_10ms", "peak of 10 ms / mean"),
    ("empty_10ms_share", "empty 10 ms"),
    ("variation_10ms", "variation of 10 ms"),
)


class TableError(Exception):
    """A file that cannot be used, with what is wrong in it."""


def load(path):
    try:
        result = json.loads(path.read_text())
        needed = ("work", "cases") if "cases" in result else ("work", "unit", "ours", "peers", "machine")
        for key in needed:
            if key not in result:
                raise TableError(f"{path}: `{key}` is missing")
        return result
    except (OSError, ValueError) as error:
        raise TableError(f"{path}: {error}") from error


def number(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}"


def file_size(work):
    """Bytes of one file where the work is a tree of equal files, for files/s."""
    found = re.match(r"\d+ files of (\d+) (B|KiB|MiB|GiB),", work)
    if not found:
        return None
    return int(found[1]) * {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}[found[2]]


def rows(result):
    """(name, row) with ours first, then rivals and limits, the fastest first."""
    found = []
    if result["ours"]:
        found.append(("**kuroshio**", result["ours"]))
    for kind, mark in (("peers", "{}"), ("limits", "*{}*")):
        entries = sorted(result.get(kind, {}).items(), key=lambda item: -item[1]["median"])
        found += [(mark.format(name), row) for name, row in entries]
    return found


def table(result):
    each = file_size(result["work"])
    entries = rows(result)
    spread = [(key, title) for key, title in SPREAD if any(key in row for _, row in entries)]
    head = ["", f"{result['unit']}, median", "least to most", "CPU s per GB"]
    if each:
        head.insert(2, "files/s")
    head += [title for _, title in spread]
    lines = [result["work"][0].upper() + result["work"][1:] + ".", "",
             "| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for name, row in entries:
        cells = [name.replace("|", "\\|"), number(row["median"]),
                 f"{number(row['min'])} to {number(row['max'])}", f"{row['cpu_s_per_gb']:.2f}"]
        if each:
            cells.insert(2, f"{row['median'] * 1e6 / each:,.0f}")
        cells += [str(row.get(key, "")) for key, _ in spread]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines + ["", machine(result["machine"])]) + "\n"


def accuracy(result):
    """The table of the example rate_testbed: one row per rate and number of streams."""
    head = ["target, streams", "error over 10 s", "worst run", "first second", "its peak of 100 ms",
            "variation of 10 ms", "2 ms p99 / mean", "2 ms peak / mean", "kernel's p99 / mean", "checks"]
    lines = [result["work"] + ".", "", "| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for case in result["cases"]:
        median, kernel = case["median"], case["kernel_burst_2ms_p99"]
        errors = [(rate - 1) * 100 for rate in case["each"]["rate"]]
        failed = [check["name"] for check in case["checks"] if not check["ok"]]
        cells = [f"{case['target_bps'] / 1e6:,.0f} Mbps, {case['streams']}",
                 f"{(median['rate'] - 1) * 100:+.3f} %", f"{max(errors, key=abs):+.3f} %",
                 f"{median['first_second']:.3f}", f"{median['first_second_peak_100ms']:.3f}",
                 f"{median['variation_10ms']:.3f}", f"{median['burst_2ms_p99']:.2f}",
                 f"{median['burst_2ms_max']:.2f}", f"{kernel:.2f}" if kernel else "",
                 "**fails: " + ", ".join(failed) + "**" if failed else "hold"]
        lines.append("| " + " | ".join(cells) + " |")
    late = max(late for case in result["cases"] for late in case["lateness_p999_ns"])
    marked = sum(len(case["disturbed"]) for case in result["cases"])
    lost = sum(case["machine_lost_frames"] for case in result["cases"])
    runs = result["runs"] * len(result["cases"])
    end = (f"Medians of {result['runs']}. The emulator's own lateness at p99.9 was {late / 1000:,.0f} us in the "
           f"worst run, the machine lost {lost} frames, and {marked} of {runs} runs were marked as disturbed.")
    return "\n".join(lines + ["", end]) + "\n"


def machine(told):
    return (
        f"{told['cores']} cores of {told['cpu']}, {told['memory_gib']} GiB, {told['system']}, "
        f"Linux {told['kernel']}, {told['disk']}, TCP {told['congestion_control']}; "
        f"medians of {told['repetitions']}, taken {told['taken']}."
    )


def fill(text, results):
    """The document with every table whose figures are in `results` made again."""

    def one(found):
        path = results / (found[2] + ".json")
        if not path.exists():
            return found[0]
        result = load(path)
        made = accuracy(result) if "cases" in result else table(result)
        return f"{found[1]}\n{made}\n{found[4]}"

    return MARKED.sub(one, text)


def main():
    parser = argparse.ArgumentParser(prog="bench/table.py", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--document", type=Path, default=HERE.parent / "docs/benchmarks.md")
    asked = parser.parse_args()
    try:
        before = asked.document.read_text()
        after = fill(before, asked.results)
    except (OSError, TableError) as error:
        print(f"bench/table.py: {error}", file=sys.stderr)
        return 2
    unmarked = {path.stem for path in asked.results.glob("*.json")} - {
        found[1] for found in MARKED.findall(before)
    }
    for name in sorted(unmarked):
        print(f"bench/table.py: {asked.document} has no place for {name}", file=sys.stderr)
    if asked.check:
        if before != after:
            print(f"{asked.document} differs from {asked.results}", file=sys.stderr)
        return 1 if before != after or unmarked else 0
    if before != after:
        asked.document.write_text(after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
