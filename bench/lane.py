#!/usr/bin/env python3
"""Throughput of a tunnel between two namespaces: plain veth, kuroshio lane, wireguard-go.

    bench/lane.py --binary target/release/kuroshio      every contender in turn, three rounds
    bench/lane.py --profile                             and where the time of our two processes goes (perf)

One TCP stream (iperf3, CUBIC) over one veth pair of 1,500 bytes MTU. Our tunnel has one lane, stated faster than it can be, so that
its pacer never waits; every end of a tunnel is one thread here (wireguard-go: as many as it likes). CPU is that of both ends' processes.
On a shared machine the processes get less than a core: what one core of its own at each end would carry is 16 Gbit / (CPU s per GB), printed beside.
The order of contenders turns with every round; figures are medians. Needs root, iproute2, iperf3, and for the peer wireguard-go and
openssl (Debian packages; a missing peer is named, not replaced). All programs run in network, mount and PID namespaces
of their own and end with them.

Exit code: 0 done; 1 ours failed; 2 it could not be run as asked.
"""

import argparse
import errno
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

INSIDE = "KUROSHIO_BENCH_LANE_INSIDE"
PATIENCE_S = 20.0
TICKS = os.sysconf("SC_CLK_TCK")
# Profiled symbols that are printed of each end.
TOP = 12


class Failed(Exception):
    """Something that a contender needs did not happen."""


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def inside(netns, *words):
    return ["ip", "netns", "exec", netns, *words]


def wait_for(what, done, processes=()):
    end = time.monotonic() + PATIENCE_S
    while not done():
        for process in processes:
            if process.poll() is not None:
                raise Failed(f"{what}: {' '.join(map(str, process.args))} ended with {process.returncode}")
        if time.monotonic() > end:
            raise Failed(f"{what}: not within {PATIENCE_S:.0f} s")
        time.sleep(0.02)


def make_hosts():
    """Hosts e and w with a veth pair between them, 10.0.0.1 and 10.0.0.2."""
    for name in "ew":
        ip("netns", "add", name)
    ip("link", "add", "v-e", "netns", "e", "type", "veth", "peer", "name", "v-w", "netns", "w")
    for name, mine in (("e", "10.0.0.1"), ("w", "10.0.0.2")):
        ip("-n", name, "link", "set", "lo", "up")
        ip("-n", name, "addr", "add", f"{mine}/30", "dev", f"v-{name}")
        ip("-n", name, "link", "set", f"v-{name}", "up")


def cpu_s(pid):
    """Processor time of a process so far, seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def answers(address):
    """Whether the host of that address, seen from e, refuses a connection to a closed port."""
    ask = f"import socket, sys; s = socket.socket(); s.settimeout(0.5); sys.exit(s.connect_ex(({address!r}, 9)) != {errno.ECONNREFUSED})"
    return subprocess.run(inside("e", sys.executable, "-c", ask)).returncode == 0


class Veth:
    name = "veth"
    address = "10.0.0.2"

    def __init__(self, args, folder):
        self.processes = []

    def close(self):
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class Lane(Veth):
    name = "kuroshio lane"
    address = "10.9.0.2"

    def __init__(self, args, folder):
        super().__init__(args, folder)
        public = {}
        for end in "ew":
            made = subprocess.run(
                [args.binary, "lane", "key", folder / f"{end}.key"], check=True, capture_output=True, text=True
            )
            public[end] = made.stdout.split()[-1]
        for end, other, own, far in (("e", "w", 1, 2), ("w", "e", 2, 1)):
            (folder / f"{end}.toml").write_text(
                f'name = "k{end}"\naddress = ["10.9.0.{own}/30"]\nkey = "{end}.key"\npeer = "{public[other]}"\n'
                f'mode = "{args.mode}"\nrepair = false\nguard = false\nmargin = "1ms"\ncontrol = "{end}.sock"\n'
                f'[[lane]]\nname = "one"\nlocal = "10.0.0.{own}:7000"\nremote = "10.0.0.{far}:7000"\ncapacity = "40Gbps"\n'
            )
            up = inside(end, args.binary, "lane", "up", folder / f"{end}.toml")
            self.processes.append(subprocess.Popen(up, stdout=subprocess.DEVNULL))
        wait_for("the tunnel", lambda: answers(self.address), self.processes)


class WireguardGo(Veth):
    name = "wireguard-go"
    address = "10.8.0.2"

    def __init__(self, args, folder):
        super().__init__(args, folder)
        for program in ("wireguard-go", "openssl"):
            if not shutil.which(program):
                raise Failed(f"{program} is not installed")
        keys = {end: self.key(folder / f"wg-{end}.pem") for end in "ew"}
        for end, other, own, far in (("e", "w", 1, 2), ("w", "e", 2, 1)):
            name = f"wg-{end}"
            go = inside(end, "wireguard-go", "-f", name)
            self.processes.append(
                subprocess.Popen(go, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            )
            path = Path(f"/var/run/wireguard/{name}.sock")
            wait_for(f"{path}", path.exists, self.processes)
            self.configure(
                path,
                f"set=1\nprivate_key={keys[end][0]}\nlisten_port=51820\npublic_key={keys[other][1]}\n"
                f"endpoint=10.0.0.{far}:51820\nallowed_ip=10.8.0.0/30\n\n",
            )
            ip("-n", end, "addr", "add", f"10.8.0.{own}/30", "dev", name)
            ip("-n", end, "link", "set", name, "up")
        wait_for("wireguard-go", lambda: answers(self.address), self.processes)

    @staticmethod
    def key(path):
        """A private and a public key, in hexadecimal digits."""
        subprocess.run(["openssl", "genpkey", "-algorithm", "X25519", "-out", path], check=True)
        private, public = (
            subprocess.run(
                ["openssl", "pkey", "-in", path, "-outform", "DER", *more], check=True, capture_output=True
            ).stdout[-32:]
            for more in ([], ["-pubout"])
        )
        return private.hex(), public.hex()

    @staticmethod
    def configure(path, text):
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(5)
            client.connect(str(path))
            client.sendall(text.encode())
            answer = client.recv(4096).decode()
            if "errno=0" not in answer:
                raise Failed(f"wireguard-go says {answer!r}")


CONTENDERS = (Veth, Lane, WireguardGo)


def iperf(address, seconds, profiled=()):
    """Received bit/s of one stream, and what `profiled` did meanwhile."""
    server = subprocess.Popen(inside("w", "iperf3", "-s", "-1"), stdout=subprocess.DEVNULL)
    try:
        asked = ["ss", "-Hltn", "sport", "=", ":5201"]
        listens = lambda: subprocess.run(inside("w", *asked), capture_output=True, text=True).stdout.strip()
        wait_for("iperf3", listens, [server])
        recorders = [
            subprocess.Popen(
                ["perf", "record", "-q", "-e", "cpu-clock", "-F", "499", "-p", str(pid), "-o", path,
                 "--", "sleep", str(seconds)],
                stderr=subprocess.DEVNULL,
            )
            for pid, path in profiled
        ]
        client = inside("e", "iperf3", "-J", "-C", "cubic", "-t", str(seconds), "-O", "1", "-c", address)
        done = subprocess.run(client, capture_output=True, text=True, timeout=seconds + 30)
        for recorder in recorders:
            recorder.wait(10)
        result = json.loads(done.stdout)
        if "error" in result:
            raise Failed(f"iperf3: {result['error']}")
        return result["end"]["sum_received"]
    finally:
        server.kill()
        server.wait()


def profile(path):
    """The heaviest symbols of a recording: per cent of its samples, symbol, object."""
    report = ["perf", "report", "-i", path, "--stdio", "--sort", "symbol,dso", "-g", "none", "-q"]
    text = subprocess.run(report, capture_output=True, text=True).stdout
    lines = [line.split(None, 1) for line in text.splitlines() if "%" in line]
    return [{"percent": float(share.rstrip("%")), "symbol": " ".join(rest.split())} for share, rest in lines[:TOP]]


def tunnel_pids(contender):
    """The tunnel's own processes: `ip netns exec` replaces itself by them."""
    return [process.pid for process in contender.processes]


def once(kind, args, folder):
    contender = kind(args, folder)
    try:
        pids = tunnel_pids(contender)
        before = sum(map(cpu_s, pids))
        received = iperf(contender.address, args.seconds)
        cpu = sum(map(cpu_s, pids)) - before
        run = {
            "goodput_gbps": received["bits_per_second"] / 1e9,
            "tunnel_cpu_s_per_gb": cpu / (received["bytes"] / 1e9) if pids else None,
        }
        if args.profile and kind is Lane:
            paths = [(pid, folder / f"perf-{end}.data") for pid, end in zip(pids, "ew")]
            iperf(contender.address, args.seconds, paths)
            run["profile"] = {
                end: profile(path) for (_, path), end in zip(paths, ("sending end", "receiving end"))
            }
        return run
    finally:
        contender.close()


def measure(args):
    make_hosts()
    found = {kind.name: [] for kind in CONTENDERS}
    missing = {}
    for number in range(args.rounds):
        for place in range(len(CONTENDERS)):
            kind = CONTENDERS[(place + number) % len(CONTENDERS)]
            if kind.name in missing or (args.only and args.only not in kind.name):
                continue
            with tempfile.TemporaryDirectory() as folder:
                try:
                    run = once(kind, args, Path(folder))
                except (Failed, subprocess.CalledProcessError, OSError) as problem:
                    if kind is Lane:
                        raise
                    missing[kind.name] = str(problem)
                    continue
            found[kind.name].append(run)
            print(f"{kind.name}: {run['goodput_gbps']:.2f} Gbps", file=sys.stderr)
    result = {"stream": "one TCP stream, CUBIC, MTU 1500", "seconds": args.seconds, "missing": missing}
    for name, runs in found.items():
        if runs:
            cpu = [run["tunnel_cpu_s_per_gb"] for run in runs if run["tunnel_cpu_s_per_gb"] is not None]
            result[name] = {
                "goodput_gbps": statistics.median(run["goodput_gbps"] for run in runs),
                "tunnel_cpu_s_per_gb": statistics.median(cpu) if cpu else None,
                # Half of the time is of either end, if they cost the same.
                "per_core_gbps": 16 / statistics.median(cpu) if cpu else None,
                "runs": runs,
            }
    return result


def show(result):
    for name, entry in result.items():
        if not isinstance(entry, dict) or "runs" not in entry:
            continue
        cpu = entry["tunnel_cpu_s_per_gb"]
        cpu = "" if cpu is None else f", {cpu:.2f} s of CPU per GB in both ends ({entry['per_core_gbps']:.2f} Gbps by a core at each)"
        print(f"{name}: {entry['goodput_gbps']:.2f} Gbps{cpu} (median of {len(entry['runs'])})")
        for end, lines in entry["runs"][-1].get("profile", {}).items():
            print(f"  {end}:")
            for line in lines:
                print(f"    {line['percent']:5.1f} %  {line['symbol']}")
    for name, why in result["missing"].items():
        print(f"{name}: not measured: {why}")


def enter():
    """Runs this program again in namespaces of its own."""
    words = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    os.execvpe(words[0], [*words, sys.executable, *sys.argv], {**os.environ, INSIDE: "1"})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, default=Path("target/release/kuroshio"))
    parser.add_argument("--seconds", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mode", choices=("inorder", "deskew"), default="inorder")
    parser.add_argument("--only", help="only contenders with this in their name")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    args.binary = args.binary.resolve()
    problems = [f"{p} is not installed" for p in ("ip", "iperf3", "unshare", "ss") if not shutil.which(p)]
    if os.geteuid() != 0:
        problems.append("needs root")
    if not args.binary.is_file():
        problems.append(f"--binary {args.binary}: no such file; cargo build --release -p kuroshio makes it")
    if not 1 <= args.seconds <= 600 or not 1 <= args.rounds <= 100:
        problems.append("--seconds: 1 to 600; --rounds: 1 to 100")
    if args.profile and not shutil.which("perf"):
        problems.append("--profile needs perf (linux-perf)")
    if problems:
        print("bench/lane.py: " + "; ".join(problems), file=sys.stderr)
        return 2
    if INSIDE not in os.environ:
        enter()
    for folder in ("/run/netns", "/var/run/wireguard"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], check=True)
    try:
        result = measure(args)
    except (Failed, subprocess.CalledProcessError, OSError) as problem:
        print(f"bench/lane.py: {problem}", file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps(result, indent=2))
    else:
        show(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
