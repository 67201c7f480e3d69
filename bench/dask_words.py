#!/usr/bin/env python3
"""A word count over the fragments of a file, on a real Dask cluster with one worker for each node.

    python3 bench/dask_words.py target/debug/kuroshio [--nodes 3] [--megabytes 64]

Needs PyPI's dask and distributed in this Python. Starts a grid, a scheduler and a worker named as each node, puts a file in
fragments, counts its words with `fs run --engine dask`, and compares with `wc`. Prints one JSON object: words, and how many
bytes of input were local and how many came from other nodes.
"""
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def main():
    args = argparse.ArgumentParser()
    args.add_argument("kuroshio")
    args.add_argument("--nodes", type=int, default=3)
    args.add_argument("--megabytes", type=int, default=64)
    args = args.parse_args()
    kuroshio = os.path.abspath(args.kuroshio)
    with tempfile.TemporaryDirectory() as home:
        os.environ.update(XDG_CONFIG_HOME=f"{home}/config", XDG_STATE_HOME=f"{home}/state")
        os.environ.pop("KUROSHIO_GRID", None)
        started = []
        run = lambda *a: subprocess.run([kuroshio, *a], check=True, capture_output=True, text=True).stdout
        try:
            run("up", "--dir", f"{home}/g", "--nodes", str(args.nodes))
            lines = random.Random(7)
            with open(f"{home}/words", "w") as f:
                size = 0
                while size < args.megabytes * 1_000_000:
                    size += f.write(" ".join(f"w{lines.randrange(10**6)}" for _ in range(lines.randrange(30))) + "\n")
            run("fs", "put", "--fragments", str(2 * args.nodes), "--lines", f"{home}/words", "/words")
            scheduler = f"{home}/scheduler.json"
            dask = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--scheduler-file", scheduler]
            quiet = dict(stdout=subprocess.DEVNULL, stderr=open(f"{home}/dask.log", "a"))
            started.append(subprocess.Popen([*dask, "--port", "0", "--dashboard-address", ":0", "--host", "127.0.0.1"], **quiet))
            for n in range(1, args.nodes + 1):
                worker = [sys.executable, "-m", "distributed.cli.dask_worker", "--scheduler-file", scheduler, "--no-dashboard"]
                worker += ["--name", f"node{n}", "--nthreads", "1", "--nworkers", "1", "--local-directory", f"{home}/w{n}"]
                started.append(subprocess.Popen(worker, **quiet))
            wait(scheduler, args.nodes)
            address = json.loads(Path(scheduler).read_text())["address"]
            begun = time.monotonic()
            out = run("fs", "--json", "run", "--per-fragment", "--engine", "dask", "--scheduler", address,
                      "--python", sys.executable, "/words", "--", "wc", "-w")
            seconds = time.monotonic() - begun
            ran = json.loads(out)
            words = sum(int(r["stdout"]) for r in ran["runs"])
            expected = int(subprocess.check_output(["wc", "-w", f"{home}/words"]).split()[0])
            print(json.dumps({
                "words": words, "expected": expected, "runs": len(ran["runs"]), "workers": args.nodes,
                "local_bytes": ran["local_bytes"], "remote_bytes": ran["remote_bytes"], "seconds": round(seconds, 2),
                "by_node": {r["node"]: sum(1 for s in ran["runs"] if s["node"] == r["node"]) for r in ran["runs"]},
            }))
            return 0 if words == expected and ran["remote_bytes"] == 0 else 1
        except subprocess.CalledProcessError as e:
            print(e.cmd, e.stderr, file=sys.stderr)
            return 1
        finally:
            for p in reversed(started):
                p.terminate()
            for p in started:
                p.wait()
            subprocess.run([kuroshio, "down", "--dir", f"{home}/g"], capture_output=True)


def wait(scheduler, count):
    from distributed import Client
    deadline = time.monotonic() + 120
    while not Path(scheduler).exists() or not Path(scheduler).read_text():
        if time.monotonic() > deadline:
            sys.exit("no scheduler within 120 s")
        time.sleep(0.1)
    with Client(scheduler_file=scheduler, timeout=60) as client:
        client.wait_for_workers(count, timeout=120)


sys.exit(main())
