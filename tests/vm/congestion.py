#!/usr/bin/env python3
"""BIC, HighSpeed and Scalable: the kernel's module, our BPF program and the simulator lose the same segments.

    tests/vm/congestion.py [--kuroshio PROGRAM] [--hold PROGRAM] [--window PROGRAM] [--out DIR] [--control NAME]...

Module and BPF run in the guest (congestion.sh), the simulator here (lab/examples/window.rs). Leaves
DIR/congestion.json (every trace) and DIR/congestion.md; exit code 1 when one is out of the tolerance.
"""
import argparse
import csv
import itertools
import json
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CONTROLS = ("bic", "highspeed", "scalable")

# Chosen before the first run. 200 Mbps and 100 ms: 1647 segments fit on the path, so that the windows looked at
# (up to about 1100) have no queue. Losses: one in the first slow start, one and two seconds of data later.
SECONDS = 10
RATE_MBPS = 200
RTT_MS = 100
LOST = (500, 20_000, 45_000)
MSS = 1448
# The threshold that a loss sets, and the mean growth from it in the round trips after the recovery, which takes one,
# against the module's.
THRESHOLD_TOLERANCE = 0.05
GROWTH_TOLERANCE = 0.10
GROWTH_RTTS = 15
LEAST_RTTS = 5
# A window that falls by this share was cut; the recovery is over after so many round trips.
CUT = 0.05
RECOVERY_RTTS = 3
# A window that stays for so many samples is all that the receiver opens for now.
PLATEAU = 3
TIMEOUT_S = 3600


def cuts(trace):
    """Where a loss has begun to cut the window: it is CUT below the largest of the round trip before."""
    found = []
    for n, (at, window, threshold) in enumerate(trace):
        recent = [row[1] for row in trace[:n] if row[0] >= at - RTT_MS]
        if threshold is None or not recent or window >= max(recent) * (1 - CUT):
            continue
        if not found or at > trace[found[-1]][0] + RECOVERY_RTTS * RTT_MS:
            found.append(n)
    return found


def events(trace):
    """Per loss, of rows (ms, window, threshold): the largest window of the round trip before, the threshold, the
    growth from it per round trip."""
    found, begins = [], cuts(trace)
    for n, at in enumerate(begins):
        begun, _, threshold = trace[at]
        # The run's end, and the next loss, end the look at the growth.
        last = trace[begins[n + 1] - 1][0] - RTT_MS if n + 1 < len(begins) else trace[-1][0]
        rtts = min(GROWTH_RTTS, (last - begun) // RTT_MS - 1)
        growth = None
        if rtts >= LEAST_RTTS:
            until = begun + (1 + rtts) * RTT_MS
            growth = (max(row for row in trace if row[0] <= until)[1] - threshold) / rtts
        before = max(row[1] for row in trace[:at] if row[0] >= begun - RTT_MS)
        found.append({"before": before, "threshold": threshold, "growth_per_rtt": growth})
    return found


def sampled(file):
    """Rows (ms, window, threshold) of the connection that sent most, from `kuroshio testbed tcp`."""
    connections = {}
    with file.open() as lines:
        for row in csv.DictReader(line for line in lines if not line.startswith("#")):
            connections.setdefault(row["source"], []).append(row)
    connections = {k: [r for r in rows if r["state"] == "ESTAB"] for k, rows in connections.items()}
    data = max(filter(None, connections.values()), key=lambda rows: int(rows[-1]["sent_payload_bytes"]))
    number = lambda text: int(text) if text else None
    return [(int(r["at_ns"]) // 10**6, int(r["cwnd_segments"]), number(r["ssthresh_segments"])) for r in data]


def opened(file):
    """How far the receiver opens its window, bytes per 100 ms, from what `kuroshio probe` saw offered: where it still
    grows, the size at which it will stop."""
    seen = [i["streams"][0]["snd_wnd"] for i in json.loads(file.read_text())["intervals"]]
    seen = list(itertools.accumulate(seen, max))
    limits = []
    for n in range(len(seen)):
        stays = (m for m in range(n, len(seen)) if seen[m : m + PLATEAU] == [seen[m]] * PLATEAU)
        limits.append(seen[next(stays, len(seen) - 1)])
    return limits


def run(control, args):
    """One boot and one simulation: traces by kind."""
    folder = args.out / control
    folder.mkdir(parents=True, exist_ok=True)
    path = [str(SECONDS), str(RATE_MBPS), str(RTT_MS // 2), *map(str, LOST)]
    command = [str(HERE / "vm"), "run", "--out", str(folder), "--timeout", str(TIMEOUT_S)]
    command += ["--module", "tun", "--module", "tcp_diag"]
    command += [str(HERE / "congestion.sh"), str(args.kuroshio), str(args.hold), control, *path]
    subprocess.run(command, check=True)
    traces = {kind: sampled(folder / f"{kind}.csv") for kind in ("module", "bpf")}
    windows = ",".join(map(str, opened(folder / "module.json")))
    command = [str(args.window), control, *path[:3], windows, *path[3:]]
    simulated = subprocess.run(command, check=True, capture_output=True, text=True)
    traces["simulator"] = json.loads(simulated.stdout)["ms_cwnd_ssthresh"]
    lost = {
        kind: json.loads((folder / f"{kind}-stats.json").read_text())["links"][0]["lost"]["frames"]
        for kind in ("module", "bpf")
    }
    return {"control": control, "traces": traces, "lost_frames": lost}


def judge(result):
    """Rows of the comparison with the module; adds `ok`."""
    expected = events(result["traces"]["module"])
    rows = []
    for kind in ("module", "bpf", "simulator"):
        seen = events(result["traces"][kind])
        for n in range(max(len(expected), len(seen))):
            e = expected[n] if n < len(expected) else None
            s = seen[n] if n < len(seen) else None
            ok = e is not None and s is not None
            if ok:
                ok = abs(s["threshold"] / e["threshold"] - 1) <= THRESHOLD_TOLERANCE
                if e["growth_per_rtt"] and s["growth_per_rtt"]:
                    ok = ok and abs(s["growth_per_rtt"] / e["growth_per_rtt"] - 1) <= GROWTH_TOLERANCE
            rows.append({"kind": kind, "loss": n + 1, "seen": s, "ok": ok})
    result["rows"] = rows
    result["ok"] = all(r["ok"] for r in rows) and bool(expected) and set(result["lost_frames"].values()) == {len(LOST)}


def table(results):
    """Markdown."""
    out = [
        "| control | loss | of | window before | threshold set | growth per RTT | within |",
        "|---|---|---|---|---|---|---|",
    ]
    for result in results:
        for r in sorted(result["rows"], key=lambda r: r["loss"]):
            s = r["seen"] or {"before": "-", "threshold": "-", "growth_per_rtt": None}
            growth = "-" if s["growth_per_rtt"] is None else f"{s['growth_per_rtt']:.2f}"
            word = "yes" if r["ok"] else "NO"
            out.append(
                f"| {result['control']} | {r['loss']} | {r['kind']} | {s['before']} | {s['threshold']} | {growth} | {word} |"
            )
    return "\n".join(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kuroshio", type=pathlib.Path, default=ROOT / "target/release/kuroshio")
    parser.add_argument("--hold", type=pathlib.Path, default=ROOT / "target/debug/examples/hold")
    parser.add_argument("--window", type=pathlib.Path, default=ROOT / "target/debug/examples/window")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "bench/results/vm")
    parser.add_argument("--control", action="append", choices=CONTROLS)
    args = parser.parse_args()
    for name in ("kuroshio", "hold", "window"):
        program = getattr(args, name).resolve()
        if not program.is_file():
            parser.error(f"--{name}: {program}: no such program (make vm-check builds it)")
        setattr(args, name, program)
    results = []
    for control in args.control or CONTROLS:
        results.append(run(control, args))
        judge(results[-1])
    (args.out / "congestion.json").write_text(json.dumps(results) + "\n")
    (args.out / "congestion.md").write_text(table(results) + "\n")
    print(table(results))
    return 0 if all(r["ok"] for r in results) else 1


if __name__ == "__main__":
    sys.exit(main())
