#!/usr/bin/env python3
"""Replication over the emulated Pacific: `kuroshio fs rep` with its rate plan against Gfarm's `gfrep -j`.

    bench/replicate.py                                 ours, then gfrep with CUBIC
    bench/replicate.py --only gfrep --topology FILE    Gfarm alone, in the network that a run of ours has left
    bench/replicate.py --congestion bbr -j 4

Ours is `kuroshio lab run gfarm-replicate`; the topology file that it leaves makes the same network again for Gfarm: gfmd on
the host of the metadata service, a gfsd on each of the ten nodes, the control plane in the network without delay, content
over the three routes. Each American node has the same files as ours; then for each of the five pairs one `gfrep -j N` at once. Rates
are of frames that left the routes, from 20 % to 80 % of their bytes.

Needs root; /etc, /var and /root are overlays inside, nothing outlives the run. Installs what is missing from Debian. The
folder (--dir) must be on a disk. Writes bench/results/replicate.json and prints a table.

Exit code: 0 done; 1 something failed; 2 it could not be run as asked.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import grid  # noqa: E402
from grid import Failed, parse_count, run, wait  # noqa: E402

EXPERIMENT = "gfarm-replicate"
CONTENDERS = ("ours", "gfrep")
# As `setup.rs` of the experiment: payload of a frame at MTU 6000, and files of a node.
PAYLOAD_BYTES, FRAME_BYTES = 5948, 6018
FILES = 2
LOOK_EVERY_S = 0.5
# Bytes from here to there count, as in the experiment.
FIRST, LAST = 0.2, 0.8


def share_of(samples):
    """Seconds, bytes and bit/s between 20 % and 80 % of the bytes of (seconds, bytes so far)."""
    whole = samples[-1][1] - samples[0][1]
    inner = [s for s in samples if FIRST * whole <= s[1] - samples[0][1] <= LAST * whole]
    if len(inner) < 2 or inner[-1][0] <= inner[0][0]:
        raise Failed(f"{len(samples)} looks at the network are too few to tell a rate")
    (begin_s, begin), (end_s, end) = inner[0], inner[-1]
    return {"seconds": end_s - begin_s, "bytes": end - begin, "bps": (end - begin) * 8 / (end_s - begin_s)}


class Network:
    """A topology file, and what of it is asked here."""

    def __init__(self, path):
        self.path = path
        text = tomllib.loads(path.read_text())
        self.routes = {link["name"]: link for link in text["link"]}
        self.hosts = {h["name"]: {p["name"]: p["address"].split("/")[0] for p in h["port"]} for h in text["host"]}
        self.pairs = [name.split("-", 1)[1] for name in self.hosts if name.startswith("us-")]

    def capacity_bps(self, route):
        return int(self.routes[route]["capacity"].removesuffix("bps"))

    def sum_bps(self):
        return sum(map(self.capacity_bps, self.routes))

    def route_of(self, pair):
        subnet = self.hosts[f"us-{pair}"]["wan"].rsplit(".", 1)[0]
        return next(n for n, link in self.routes.items() if f"{subnet}.0/24" in link["carries"])

    def file_bytes(self, pair, fill_s):
        """As the experiment: a node's part of its route's payload, in FILES files."""
        route = self.route_of(pair)
        sharing = sum(self.route_of(p) == route for p in self.pairs)
        return self.capacity_bps(route) // 8 * fill_s * PAYLOAD_BYTES // FRAME_BYTES // sharing // FILES

    def names(self, host):
        """/etc/hosts of a host: nodes see each other over the routes, the metadata host sees all without delay."""
        port = "ctl" if host == "meta" else "wan"
        lines = ["127.0.0.1 localhost", f"{self.hosts['meta']['ctl']} meta"]
        return "\n".join(lines + [f"{a[port]} {h}" for h, a in self.hosts.items() if h != "meta"]) + "\n"


class Gfarm:
    """Gfarm in the hosts of a testbed."""

    def __init__(self, args, where, network):
        self.binary, self.where, self.network, self.args = args.binaries / "kuroshio", where, network, args

    def command(self, host, *command):
        """A command in a host, with that host's names."""
        enter = f"mount --bind {self.where}/hosts.{host} /etc/hosts && exec \"$@\""
        return [self.binary, "testbed", "exec", host, "--", "unshare", "--mount", "sh", "-c", enter, "sh", *command]

    def do(self, host, *command):
        return run(self.command(host, *map(str, command)))

    def start(self):
        for host in self.network.hosts:
            (self.where / f"hosts.{host}").write_text(self.network.names(host))
        run([self.binary, "testbed", "up", self.network.path])
        self.do("meta", sys.executable, HERE / "replicate.py", "--service", self.where)
        nodes = [h for h in self.network.hosts if h != "meta"]
        for host in nodes:
            # By the route: the sysctl takes only what the first namespace allows to everybody.
            address = self.network.hosts[host]["wan"]
            subnet = address.rsplit(".", 1)[0] + ".0/24"
            self.do(host, "ip", "route", "change", subnet, "dev", "wan", "proto", "kernel", "scope", "link", "src", address,
                    "congctl", self.args.congestion)
            spool = self.where / f"spool.{host}"
            run(["install", "-d", "-o", "_gfarmfs", "-m", "0700", spool])
            self.do("meta", "gfhost", "-c", "-a", "x86_64-linux", "-p", "600", "-n", "2", host)
            self.do(host, "/usr/sbin/gfsd", "-P", f"/run/gfsd.{host}.pid", "-f", "/etc/gfarm2.conf", "-h", host, "-r", spool)
        wait("every gfsd is up", lambda: len(self.do("meta", "gfsched", "-w").split()) == len(nodes))

    def put(self):
        """Every American node's files."""
        whole = 0
        for pair in self.network.pairs:
            self.do("meta", "gfmkdir", "-p", f"/{pair}")
            for n in range(FILES):
                local = self.where / "content"
                size = self.network.file_bytes(pair, self.args.fill)
                with open(local, "wb") as out:
                    out.write(os.urandom(size))
                self.do("meta", "gfreg", "-h", f"us-{pair}", local, f"/{pair}/f{n}")
                whole += size
        return whole

    def stats(self):
        return json.loads(run([self.binary, "testbed", "stats", "--json"]))

    def look(self):
        """Bytes that have left each route towards Japan."""
        there = {link["link"]: link for link in self.stats()["links"]}
        return {r: there[f"{r}:us-gw>jp-gw"]["departed"]["bytes"] for r in self.network.routes}

    def replicate(self):
        """One `gfrep -j` for each pair, at once."""
        commands = []
        for pair in self.network.pairs:
            for side in ("us", "jp"):
                (self.where / f"{side}.{pair}").write_text(f"{side}-{pair}\n")
            commands.append(self.command("meta", "gfrep", "-q", "-h", f"{self.where}/us.{pair}", "-H",
                                         f"{self.where}/jp.{pair}", "-N", "1", "-j", str(self.args.j), f"/{pair}"))
        begun = time.monotonic()
        running = [subprocess.Popen(c, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for c in commands]
        samples = [(0.0, self.look())]
        try:
            while any(p.poll() is None for p in running) and samples[-1][0] < self.args.limit:
                time.sleep(LOOK_EVERY_S)
                looked = self.look()
                samples.append((time.monotonic() - begun, looked))
        finally:
            ended = [p.poll() for p in running]
            for p in running:
                p.kill()
                p.wait()
        failed = [p.stderr.read().strip() for p, code in zip(running, ended) if code]
        if failed:
            raise Failed(f"gfrep: {failed[0]}")
        return samples, all(code == 0 for code in ended)

    def measure(self):
        self.start()
        try:
            payload = self.put()
            before = self.stats()["dropped_frames"]
            samples, whole = self.replicate()
            after = self.stats()
        finally:
            subprocess.run([self.binary, "testbed", "down"], capture_output=True, check=False, timeout=60)
        rate = share_of([(s, sum(b.values())) for s, b in samples])
        routes = []
        for name in self.network.routes:
            link = next(link for link in after["links"] if link["link"] == f"{name}:us-gw>jp-gw")
            routes.append({"route": name, "dropped_frames": link["queue_full"]["frames"],
                           "queued_max_bytes": link["queued_max_bytes"],
                           "frame_bytes": samples[-1][1][name] - samples[0][1][name]})
        seconds = samples[-1][0]
        return {"contender": f"gfrep -j {self.args.j}, {self.args.congestion}", "frame_bps": rate["bps"],
                "share_of_capacity": rate["bps"] / self.network.sum_bps(), "seconds": seconds, "complete": whole,
                "payload_bytes": payload, "goodput_bps": payload * 8 / seconds if whole else None,
                "dropped_frames": after["dropped_frames"] - before, "machine_lost_frames": after["machine_lost_frames"],
                "routes": routes}


def ours(args, where):
    """The experiment itself; what it measured and the network that it left."""
    out = where / "ours"
    command = [args.binaries / "kuroshio", "lab", "run", EXPERIMENT, "--json", "--out", out]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=grid.COMMAND_LIMIT_S)
    # A check that fails, or a disturbed run, is a result too.
    if done.returncode not in (0, 1, 3) or not done.stdout.startswith("{"):
        raise Failed(f"kuroshio lab run {EXPERIMENT}: exit code {done.returncode}\n{done.stderr[-1600:]}")
    result = json.loads(done.stdout)
    measured = result["measured"]["replication"]
    row = {"contender": "fs rep", "complete": measured["files_replicated"] == measured["files"],
           "disturbed_by": result["disturbed_by"],
           **{k: measured[k] for k in ("frame_bps", "share_of_capacity", "seconds", "payload_bytes", "goodput_bps",
                                       "dropped_frames", "machine_lost_frames", "routes")}}
    return row, next(out.glob(f"{EXPERIMENT}-*/topology.toml"))


def service(where):
    """In the metadata host: PostgreSQL and gfmd."""
    grid.HOST = "meta"
    grid.ADDRESS = next(line.split()[0] for line in Path("/etc/hosts").read_text().splitlines() if line.endswith(" meta"))
    grid.Gfarm(where, False).set_up_service()


def inside(args):
    """First process of the namespaces."""
    where = args.inner
    grid.cover(where, True)
    row = Gfarm(args, where, Network(args.topology)).measure()
    (where / "gfrep.json").write_text(json.dumps(row))


def gfrep(args, where, topology):
    grid.passable(where)
    command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable,
               HERE / "replicate.py", "--inner", where, "--topology", topology, "-j", str(args.j), "--congestion",
               args.congestion, "--fill", str(args.fill), "--limit", str(args.limit), "--binaries", args.binaries]
    if subprocess.run(command, check=False).returncode:
        raise Failed("gfrep was not measured")
    return json.loads((where / "gfrep.json").read_text())


def table(rows):
    print(f"{'':<24}{'Mbps':>8}{'of routes':>11}{'dropped':>9}{'seconds':>9}  complete")
    for r in rows:
        print(f"{r['contender']:<24}{r['frame_bps'] / 1e6:>8.1f}{r['share_of_capacity'] * 100:>10.1f}%"
              f"{r['dropped_frames']:>9}{r['seconds']:>9.1f}  {'yes' if r['complete'] else 'no'}"
              + (f"  DISTURBED: {r['disturbed_by']}" if r.get("disturbed_by") else ""))


def parse_only(text):
    names = text.split(",")
    unknown = [n for n in names if n not in CONTENDERS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]}: {', '.join(CONTENDERS)} are valid")
    return names


def parse_name(text):
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,14}", text):
        raise argparse.ArgumentTypeError(f"{text}: say the name of a congestion control, such as cubic")
    return text


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=parse_only, default=list(CONTENDERS), metavar="NAME,NAME")
    parser.add_argument("-j", type=parse_count, default=FILES, metavar="N", help=f"threads of each gfrep, {FILES}: its files")
    parser.add_argument("--congestion", type=parse_name, default="cubic", help="TCP of Gfarm's hosts, cubic")
    parser.add_argument("--fill", type=parse_count, default=40, help="seconds that Gfarm's files fill the routes, 40 as ours")
    parser.add_argument("--limit", type=parse_count, default=900, help="longest gfrep, seconds, 900")
    parser.add_argument("--topology", type=Path, help="network of an earlier run, for --only gfrep")
    parser.add_argument("--dir", type=Path, default=grid.ROOT / "target", help="a folder on a disk, target/")
    parser.add_argument("--binaries", type=Path, default=grid.ROOT / "target" / "release", help="where kuroshio is")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "replicate.json")
    parser.add_argument("--inner", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--service", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def check(args):
    if os.geteuid() != 0:
        raise Failed("this needs root, for namespaces and for Gfarm")
    if not (args.binaries / "kuroshio").exists():
        raise Failed(f"{args.binaries / 'kuroshio'} is missing: make build")
    if "ours" not in args.only and not args.topology:
        raise Failed("--only gfrep needs --topology FILE: the network that a run of ours has left in its folder")
    if args.topology and not args.topology.is_file():
        raise Failed(f"{args.topology}: no such file")
    if "gfrep" in args.only:
        grid.install()


def compare(args):
    args.dir.mkdir(parents=True, exist_ok=True)
    rows, topology = [], args.topology
    with tempfile.TemporaryDirectory(prefix="replicate-bench-", dir=args.dir) as where:
        if "ours" in args.only:
            row, topology = ours(args, Path(where))
            rows.append(row)
            table(rows)
        if "gfrep" in args.only:
            rows.append(gfrep(args, Path(where), topology))
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps({"routes_bps": Network(topology).sum_bps(), "results": rows}, indent=1) + "\n")
    table(rows)


def main():
    args = arguments()
    step, code = (lambda: service(args.service)) if args.service else (lambda: inside(args)), 1
    try:
        if not (args.service or args.inner):
            code = 2
            check(args)
            step, code = (lambda: compare(args)), 1
        step()
    except Failed as e:
        print(f"bench/replicate.py: {e}", file=sys.stderr)
        return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
