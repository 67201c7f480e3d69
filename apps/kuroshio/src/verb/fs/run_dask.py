# Client of `kuroshio fs run --engine dask`: the plan on standard input, results as JSON lines on standard output.
# A task runs on the worker that is named as its node, or else on the workers of the node's host.
import json
import subprocess
import sys

from distributed import Client, as_completed


def work(argv):
    ran = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True)
    return ran.stdout.decode(errors="replace"), ran.stderr.decode(errors="replace"), ran.returncode


def workers_of(known, task):
    named = [address for address, w in known.items() if str(w.get("name")) == task["node"]]
    return named or [address for address, w in known.items() if w.get("host") == task["host"]]


plan = json.load(sys.stdin)
with Client(sys.argv[1], timeout=30) as client:
    try:
        known = client.scheduler_info(n_workers=-1)["workers"]
    except TypeError:  # before 2025
        known = client.scheduler_info()["workers"]
    futures = {}
    for task in plan:
        workers = workers_of(known, task)
        if not workers:
            sys.exit(f"no Dask worker is named {task['node']} or on {task['host']}")
        future = client.submit(work, task["argv"], workers=workers, allow_other_workers=False, pure=False)
        futures[future] = task["node"]
    for future in as_completed(futures):
        out, err, code = future.result()
        if not out and code:
            sys.exit(f"{futures[future]}: exit code {code}: {err.strip()}")
        sys.stderr.write(err)
        sys.stdout.write(out)
