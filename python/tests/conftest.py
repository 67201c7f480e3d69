"""A grid and its gateway for the tests, ended with them whatever happens.

KUROSHIO_BIN is the command [default: what a build has left in the target folder].
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Longest wait for a service to start or end, seconds.
LIMIT_S = 60


def command() -> str:
    given = os.environ.get("KUROSHIO_BIN")
    target = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target")
    for candidate in [given] if given else [target / "debug/kuroshio", target / "release/kuroshio"]:
        if Path(candidate).exists():
            return str(candidate)
    raise RuntimeError("no `kuroshio`: set KUROSHIO_BIN, or build it (`cargo build -p kuroshio`)")


@pytest.fixture(scope="session")
def grid(tmp_path_factory):
    """Environment for a client of a grid of two nodes."""
    home = tmp_path_factory.mktemp("grid")
    environment = {**os.environ, "XDG_CONFIG_HOME": str(home / "config"), "XDG_STATE_HOME": str(home / "state")}
    environment.pop("KUROSHIO_GRID", None)

    def kuroshio(*args: str) -> str:
        done = subprocess.run(
            [command(), *args], cwd=home, env=environment, capture_output=True, text=True, timeout=2 * LIMIT_S
        )
        assert done.returncode == 0, f"{args}: {done.stderr}"
        return done.stdout

    gateway = sink = None
    try:
        kuroshio("up", "--dir", "g", "--nodes", "2")
        log = (home / "gateway.log").open("w")
        gateway = subprocess.Popen(
            [command(), "gateway", "--grid", "./g", "--listen", "127.0.0.1:0", "--state", "gw", "--json"],
            cwd=home,
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for line in gateway.stderr:
            log.write(line)
            if line.startswith("{"):
                listening = json.loads(line)
                break
        else:
            raise RuntimeError(f"the gateway did not start: see {log.name}")
        # What it goes on to say must not fill the pipe.
        sink = subprocess.Popen(["cat"], stdin=gateway.stderr, stdout=log)
        yield {
            "url": f"https://{listening['address']}",
            "ticket": str(home / "g/metad/admin.ticket"),
            "cafile": str(home / listening["certificate"]),
            "home": home,
            "kuroshio": kuroshio,
        }
    finally:
        if gateway is not None:
            gateway.send_signal(signal.SIGTERM)
            try:
                gateway.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                gateway.kill()
                gateway.wait()
            if sink is not None:
                sink.wait(LIMIT_S)
        kuroshio("down", "--dir", "g")
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session")
def access(grid):
    """Arguments of a client and of the file system."""
    return {name: grid[name] for name in ("url", "ticket", "cafile")}
