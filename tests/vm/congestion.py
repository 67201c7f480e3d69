#!/usr/bin/env python3
"""BIC, HighSpeed and Scalable: the kernel's module, our BPF program and the simulator lose the same segments.

    tests/vm/congestion.py [--kuroshio PROGRAM] [--hold PROGRAM] [--window PROGRAM] [--out DIR] [--control NAME]...

Module and BPF run in the guest (congestion.sh), the simulator here (lab/examples/window.rs). Leaves
DIR/congestion.json (every trace) and DIR/congestion.md; exit code 1 when one is out of the tolerance.
"""
import argparse
import json
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CONTROLS = ("bic", "highspeed", "scalable")

# Chosen before the first run. 200 Mbps and 100 ms: 1647 segments fit on the path, so that the windows looked at
# (up to about 1100) have no queue and one sample is one RTT. Losses: one in the first slow start, one and two
# seconds of data later.
SECONDS = 10
RATE_MBPS = 200
RTT_MS = 100
LOST = (500, 20_000, 45_000)
MSS = 1448
# The window at the end of each recovery, and the mean growth in the 15 round trips after it, against the module's.
# Samples are 100 ms apart and not in phase with the recovery: one RTT of growth is up to 5 % of the window.
VALLEY_TOLERANCE = 0.05
GROWTH_TOLERANCE = 0.10
GROWTH_SAMPLES = 15
# A window that is lower than the sample before by this share was cut; the recovery is over this much later.
CUT = 0.05
RECOVERY_SAMPLES = 4
TIMEOUT_S = 3600


def events(trace):
    """Per loss: sampled window before, at the end of recovery, growth per sample after."""
    found = []
    at = 1
    while at < len(trace):
        if trace[at] < trace[at - 1] * (1 - CUT):
            span = trace[at : at + RECOVERY_SAMPLES]
            low = at + span.index(min(span))
            later = trace[low + 1 : low + 1 + GROWTH_SAMPLES]
            # A run that ends, or the next loss, ends the look at the growth.
            grown = [b for a, b in zip([trace[low]] + later, later) if b >= a * (1 - CUT)]
            growth = (grown[-1] - trace[low]) / len(grown) if len(grown) >= 5 else None
            found.append({"before": trace[at - 1], "after": trace[low], "growth_per_rtt": growth})
            at = low + 1
        at += 1
    return found


def probe_trace(file):
    """Windows in segments from a report of `kuroshio probe`."""
    report = json.loads(file.read_text())
    return [round(i["streams"][0]["snd_cwnd"] / MSS) for i in report["intervals"]]


def run(control, args):
    """One boot and one simulation: traces by kind."""
    folder = args.out / control
    folder.mkdir(parents=True, exist_ok=True)
    path = [str(SECONDS), str(RATE_MBPS), str(RTT_MS // 2), *map(str, LOST)]
    command = [str(HERE / "vm"), "run", "--out", str(folder), "--timeout", str(TIMEOUT_S), "--module", "tun"]
    command += [str(HERE / "congestion.sh"), str(args.kuroshio), str(args.hold), control, *path]
    subprocess.run(command, check=True)
    simulated = subprocess.run([str(args.window), control, *path], check=True, capture_output=True, text=True)
    traces = {kind: probe_trace(folder / f"{kind}.json") for kind in ("module", "bpf")}
    traces["simulator"] = json.loads(simulated.stdout)["cwnd_segments"]
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
                ok = abs(s["after"] / e["after"] - 1) <= VALLEY_TOLERANCE
                if e["growth_per_rtt"] and s["growth_per_rtt"]:
                    ok = ok and abs(s["growth_per_rtt"] / e["growth_per_rtt"] - 1) <= GROWTH_TOLERANCE
            rows.append({"kind": kind, "loss": n + 1, "seen": s, "ok": ok})
    result["rows"] = rows
    result["ok"] = all(r["ok"] for r in rows) and bool(expected) and set(result["lost_frames"].values()) == {len(LOST)}


def table(results):
    """Markdown."""
    out = [
        "| control | loss | of | window before | after recovery | growth per RTT | within |",
        "|---|---|---|---|---|---|---|",
    ]
    for result in results:
        for r in sorted(result["rows"], key=lambda r: r["loss"]):
            s = r["seen"] or {"before": "-", "after": "-", "growth_per_rtt": None}
            growth = "-" if s["growth_per_rtt"] is None else f"{s['growth_per_rtt']:.2f}"
            word = "yes" if r["ok"] else "NO"
            out.append(
                f"| {result['control']} | {r['loss']} | {r['kind']} | {s['before']} | {s['after']} | {growth} | {word} |"
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
