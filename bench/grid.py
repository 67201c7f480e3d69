#!/usr/bin/env python3
"""Operations per second of a grid by its client library and through FUSE, against Gfarm by its own, on this machine in one session.

    bench/grid.py                                   everything, three rounds
    bench/grid.py --files 200 --large 64MiB -n 1    a quick look
    bench/grid.py --only ours-sqlite,gfarm-journal

Contenders, in turn in every round:

    ours-sqlite, ours-postgres      `kuroshio metad` on its embedded catalog or on PostgreSQL, one node; each operation is
                                    flushed before it is acknowledged. One caller that waits; 64 callers, a thread each; and
                                    one thread that has 64 requests on their way ("x64 piped").
    gfarm-journal, gfarm-default    gfmd with `metadb_replication` and its journal (an operation is flushed), and as it
                                    comes (queued, not durable); gfsd; one caller that waits.

Each of them but ours-postgres is measured through FUSE too (`kuroshio mount`, gfarm2fs), by one program that waits for each
call; between writing and reading the file system is mounted anew, so that nothing is read from the kernel's cache.

Needs root: it works in mount, network and PID namespaces of its own; /etc, /var and /root are overlays there, so Gfarm's
set-up changes nothing outside, and nothing outlives the run. Installs what is missing from Debian. The folder (--dir)
must be on a disk: on tmpfs a flush costs nothing. Everything stays
there until the end: some five times the large file in each round. Writes bench/results/grid.json and prints a table.

Exit code: 0 done; 1 something failed; 2 it could not be run as asked.
"""

import argparse
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
CONTENDERS = ("ours-sqlite", "ours-postgres", "gfarm-journal", "gfarm-default")
# What one round of small files does: create, stat, rename, list, unlink; write, read, unlink.
SMALL_FILES = "csrduwRu"
# Operations of which the unlink of the files with content is not shown apart.
NAMES = {"c": "create", "s": "stat", "r": "rename", "d": "list entries", "u": "unlink", "w": "create+write 4KiB",
         "R": "open+read 4KiB", "W": "sequential write", "S": "sequential read"}
# The same through FUSE: before and after it is mounted anew.
FUSE_SMALL, FUSE_LARGE = ("cuw", "Ru"), ("W", "S")
# What one request does, and so can be piped.
PIPED = "csu"
PACKAGES = ("gfmd", "gfsd", "gfarm-client", "gfarm2fs", "libgfarm-dev", "postgresql", "gcc", "libc6-dev")
NEEDED = ("/usr/sbin/gfmd", "/usr/bin/gfarm2fs", "/usr/sbin/gfsd", "/usr/bin/gfls", "/usr/include/gfarm/gfarm.h", "/usr/bin/psql", "/usr/bin/gcc")
MANY = 64
# What stands in place of the callers in rows that were measured through FUSE.
FUSE = "fuse"
START_LIMIT_S = 60.0
# gfmd writes what it has queued into its database before it ends.
END_LIMIT_S = 300.0
COMMAND_LIMIT_S = 1800.0
HOST, ADDRESS = "gf.bench", "10.77.0.1"
SYSTEMCTL = """#!/bin/sh
# There is no systemd in here: the two services that Gfarm's set-up starts.
[ "$1" = -q ] && shift
case "$1 $2" in
"start gfarm-pgsql"*|"restart gfarm-pgsql"*)
  exec setpriv --reuid postgres --regid postgres --init-groups {pg}/bin/pg_ctl start -D /var/gfarm-pgsql \\
    -o "-p 10602" -w -s -l /var/gfarm-pgsql/logfile ;;
"start gfmd"*|"restart gfmd"*) exec /usr/sbin/gfmd -P /run/gfmd.pid -f /etc/gfmd.conf ;;
esac
exit 0
"""


class Failed(Exception):
    """Something the person who runs the bench can act on."""


def run(command, limit=COMMAND_LIMIT_S, **more):
    """Runs a command and gives its output; its own words when it fails."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False, **more)
    if done.returncode:
        words = done.stderr.strip() or done.stdout.strip()
        words = words if len(words) < 1600 else f"{words[:1000]}\n...\n{words[-500:]}"
        raise Failed(f"{' '.join(map(str, command))[:200]}: exit code {done.returncode}\n{words}")
    return done.stdout


def wait(what, reached, limit=START_LIMIT_S):
    end = time.monotonic() + limit
    while not reached():
        if time.monotonic() > end:
            raise Failed(f"not within {limit:.0f} s: {what}")
        time.sleep(0.05)


def succeeds(command, **more):
    try:
        return subprocess.run(command, capture_output=True, check=False, timeout=10, **more).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def is_mounted(folder):
    return any(line.split()[1] == str(folder) for line in Path("/proc/self/mounts").read_text().splitlines())


class Mounted:
    """A file system at a folder, as long as the block lasts."""

    def __init__(self, contender, folder):
        self.contender, self.folder = contender, folder

    def __enter__(self):
        self.folder.mkdir(exist_ok=True)
        run(self.contender.mount_command(self.folder))
        wait(f"{self.folder} is mounted", lambda: is_mounted(self.folder))

    def __exit__(self, *_):
        run(["umount", self.folder])
        wait(f"{self.folder} is not mounted", lambda: not is_mounted(self.folder))


def postgres_folder():
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        raise Failed("no PostgreSQL server in /usr/lib/postgresql")
    return found[-1].parent.parent


class Ours:
    """A grid of one metadata service and one node."""

    def __init__(self, where, binaries, postgres, turn):
        # Removed at the end of the whole: for minutes after many files were removed ext4 without a journal makes new ones slowly.
        self.dir = where / f"ours-{'postgres' if postgres else 'sqlite'}-{turn}"
        self.binary = binaries / "kuroshio"
        self.bench = binaries / "examples" / "grid_bench"
        self.postgres = postgres
        self.processes = []

    def start(self):
        self.dir.mkdir()
        metad, node = self.dir / "metad", self.dir / "n1"
        init = [self.binary, "init", "--dir", metad, "--name", "bench", "--listen", "127.0.0.1:0"]
        if self.postgres:
            init += ["--database", f"host={self.start_database()} user=postgres dbname=postgres"]
        run(init)
        self.spawn([self.binary, "metad", "--dir", metad])
        fs = [self.binary, "fs", "--grid", metad]
        wait("the metadata service answers", lambda: succeeds(fs + ["status"]))
        ticket = run(fs + ["ticket", "--node", "n1"])
        run([self.binary, "join", "--dir", node, "--listen", "127.0.0.1:0"], input=ticket)
        self.spawn([self.binary, "stored", "--dir", node])

        def is_up():
            nodes = json.loads(run(fs + ["node", "ls", "--json"]))["nodes"]
            return any(n["state"] == "up" and n["heard_ms_ago"] < 3000 for n in nodes)

        wait("the node has joined", is_up)
        self.ticket = metad / "admin.ticket"

    def start_database(self):
        data, socket = self.dir / "pg", self.dir / "socket"
        for folder in (data, socket):
            folder.mkdir()
            shutil.chown(folder, "postgres", "postgres")
        as_postgres = ["setpriv", "--reuid", "postgres", "--regid", "postgres", "--init-groups"]
        binaries = postgres_folder() / "bin"
        run([*as_postgres, binaries / "initdb", "-A", "trust", "-U", "postgres", "--locale=C", "-E", "UTF8", "-D", data],
            cwd="/")
        self.spawn([*as_postgres, binaries / "postgres", "-D", data, "-c", "listen_addresses=", "-c",
                    f"unix_socket_directories={socket}", "-c", "max_connections=100"])
        wait("PostgreSQL answers", lambda: succeeds(["psql", "-h", socket, "-U", "postgres", "-c", "SELECT 1"]))
        return socket

    def spawn(self, command):
        log = open(self.dir / "log", "ab")
        self.processes.append(subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd="/"))

    def measure(self, folder, count, letters, callers, *more):
        out = run([self.bench, self.ticket, folder, str(count), letters, str(callers), *more])
        return [json.loads(line) for line in out.splitlines()]

    def measure_piped(self, folder, count):
        return self.measure(folder, count, PIPED, MANY, "piped")

    callers = (1, MANY)

    def mount_command(self, folder):
        return [self.binary, "mount", self.dir / "metad", folder]

    def size(self, size_bytes):
        return f"{size_bytes >> 20}MiB"

    def stop(self):
        for process in reversed(self.processes):
            process.send_signal(signal.SIGINT if "postgres" in str(process.args) else signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class Gfarm:
    """gfmd with its PostgreSQL, one gfsd; set up once, restarted with the journal or without."""

    callers = (1,)
    ready = False

    def __init__(self, where, journal):
        self.where = where / "gfarm"
        self.journal = journal

    def set_up(self):
        """Once, in this mount namespace: the service, a node, the program that measures."""
        self.set_up_service()
        run(["config-gfsd", "-h", HOST, "-l", ADDRESS, "-N", str(self.where / "spool")])
        if not succeeds(["gfhost", HOST]):
            run(["gfhost", "-c", "-a", "x86_64-linux", "-p", "600", "-n", "2", HOST])
        run(["gcc", "-O2", "-o", self.where / "tools" / "gfarm_ops", HERE / "gfarm_ops.c", "-lgfarm"])
        run(["gfmkdir", "-p", "/bench"])
        Gfarm.ready = True

    def set_up_service(self):
        """PostgreSQL, keys and gfmd, which runs then."""
        self.where.mkdir(exist_ok=True)
        tools = self.where / "tools"
        tools.mkdir()
        stub = tools / "systemctl"
        stub.write_text(SYSTEMCTL.format(pg=postgres_folder()))
        stub.chmod(0o755)
        os.environ["PATH"] = f"{tools}:{os.environ['PATH']}"
        if Path("/usr/bin/systemctl").exists():
            run(["mount", "--bind", stub, "/usr/bin/systemctl"])
        with open("/etc/hosts", "a", encoding="ascii") as hosts:
            hosts.write(f"{ADDRESS} {HOST}\n")
        # PostgreSQL 15 refuses `password_encryption = true`.
        script = Path("/usr/share/gfarm/config/config-gfarm.postgresql")
        patched = tools / "config-gfarm.postgresql"
        text = script.read_text().replace("password_encryption = true", "password_encryption = md5")
        patched.write_text(text)
        run(["mount", "--bind", patched, script])
        run(["config-gfarm", "-A", "root", "-a", "sharedsecret", "-d", "sha1", "-h", HOST, "-b", "postgresql",
             "-P", str(postgres_folder()), "-U", "postgres"], limit=120)
        run(["gfkey", "-f", "-p", "31536000"])
        # With its journal gfmd speaks to itself as this user.
        home = Path("/var/lib/gfarmmd")
        run(["useradd", "--system", "--home-dir", home, "--create-home", "_gfarmmd"])
        shutil.copy(Path.home() / ".gfarm_shared_key", home)
        shutil.chown(home / ".gfarm_shared_key", "_gfarmmd")
        if not Path("/run/gfmd.pid").exists():
            self.start_gfmd()
        wait("gfmd answers", lambda: succeeds(["gfls", "/"]))

    def configure(self):
        conf = Path("/etc/gfmd.conf")
        lines = [line for line in conf.read_text().splitlines() if not line.startswith("metadb_replication")]
        journal = Path("/var/gfarm-metadata/journal")
        journal.mkdir(parents=True, exist_ok=True)
        # gfmd ends before its database has all of the journal. What is left of it contradicts what gfmd has done without the
        # journal since, and gfmd would abort over it ("duplicate key"): the database as it is counts.
        for file in journal.iterdir():
            file.unlink()
        lines.append(f"metadb_replication {'enable' if self.journal else 'disable'}")
        conf.write_text("\n".join(lines) + "\n")

    def start_gfmd(self):
        run(["/usr/sbin/gfmd", "-P", "/run/gfmd.pid", "-f", "/etc/gfmd.conf"])

    def kill(self, name):
        for number in self.running(name):
            try:
                os.kill(number, signal.SIGTERM)
            except ProcessLookupError:
                pass
        wait(f"{name} has ended", lambda: not self.running(name), END_LIMIT_S)

    @staticmethod
    def running(name):
        """Process numbers; one that has ended and was not waited for does not count."""
        found = []
        for entry in Path("/proc").glob("[0-9]*/stat"):
            try:
                comm, rest = entry.read_text().split("(", 1)[1].rsplit(") ", 1)
            except (OSError, IndexError, ValueError):
                continue
            if comm == name and rest[0] not in "ZX":
                found.append(int(entry.parent.name))
        return found

    def start(self):
        if not Gfarm.ready:
            self.set_up()
        self.kill("gfsd")
        self.kill("gfmd")
        self.configure()
        self.start_gfmd()
        wait("gfmd answers", lambda: succeeds(["gfls", "/"]))
        run(["/usr/sbin/gfsd", "-P", "/run/gfsd.pid", "-f", "/etc/gfarm2.conf", "-h", HOST, "-l", ADDRESS, "-r",
             str(self.where / "spool")])
        wait("gfsd is up", lambda: succeeds(["gfsched", "-w"]))

    def measure(self, folder, count, letters, _callers):
        subprocess.run(["gfmkdir", "-p", folder], capture_output=True, check=False, timeout=60)
        out = run([self.where / "tools" / "gfarm_ops", folder, str(count), letters])
        return [json.loads(line) for line in out.splitlines()]

    def mount_command(self, folder):
        return ["gfarm2fs", folder]

    def size(self, size_bytes):
        return size_bytes

    def stop(self):
        self.kill("gfsd")
        self.kill("gfmd")


def parse_size(text):
    found = re.fullmatch(r"([1-9][0-9]*)(MiB|GiB)", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text}: say a size with its unit, such as 256MiB or 1GiB")
    return int(found[1]) << (20 if found[2] == "MiB" else 30)


def parse_count(text):
    if not re.fullmatch(r"[1-9][0-9]{0,5}", text):
        raise argparse.ArgumentTypeError(f"{text}: say a number from 1 to 999999")
    return int(text)


def parse_only(text):
    names = text.split(",")
    unknown = [n for n in names if n not in CONTENDERS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]}: {', '.join(CONTENDERS)} are valid")
    return names


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=parse_count, default=2000, help="small files of each measurement, 2000")
    parser.add_argument("--large", type=parse_size, default=1 << 30, help="the large file, 1GiB")
    parser.add_argument("-n", "--rounds", type=parse_count, default=3)
    parser.add_argument("--only", type=parse_only, default=list(CONTENDERS), metavar="NAME,NAME")
    parser.add_argument("--dir", type=Path, default=ROOT / "target", help="a folder on a disk, target/")
    parser.add_argument("--binaries", type=Path, default=ROOT / "target" / "release",
                        help="where kuroshio and examples/grid_bench are, target/release")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "grid.json")
    parser.add_argument("--inner", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def check(args):
    if os.geteuid() != 0:
        raise Failed("this needs root, for namespaces and for Gfarm")
    ours = any(n.startswith("ours") for n in args.only)
    for name in ("kuroshio", "examples/grid_bench", "examples/mount_rate")[0 if ours else 2:]:
        if not (args.binaries / name).exists():
            raise Failed(f"{args.binaries / name} is missing: make build; cargo build --release -p kuroshio-client "
                         "-p kuroshio-mount --example grid_bench --example mount_rate")
    args.dir.mkdir(parents=True, exist_ok=True)
    kind = run(["stat", "-f", "-c", "%T", args.dir]).strip()
    if kind in ("tmpfs", "ramfs", "overlayfs"):
        raise Failed(f"{args.dir} is on {kind}: name a folder on a disk with --dir")
    if any(n.startswith("gfarm") for n in args.only):
        install()


def install():
    """Gfarm from Debian, unless it is here."""
    if not all(Path(p).exists() for p in NEEDED):
        run(["apt-get", "update", "-q"])
        run(["apt-get", "install", "-q", "-y", "--no-install-recommends", *PACKAGES],
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})


def passable(where):
    """PostgreSQL and gfsd run as users of their own, who have to get there."""
    os.chmod(where, 0o711)
    closed = [p for p in Path(where).resolve().parents if not p.stat().st_mode & 0o001]
    if closed:
        raise Failed(f"{closed[0]}: other users cannot pass it; name another folder with --dir")


def cover(where, gfarm):
    """/etc, /var, /root and /run of this mount namespace are overlays from now on: nothing outside is changed."""
    for place in ("etc", "var", "root"):
        upper, work = where / f"{place}.upper", where / f"{place}.work"
        upper.mkdir()
        work.mkdir()
        run(["mount", "-t", "overlay", "overlay", "-o", f"lowerdir=/{place},upperdir={upper},workdir={work}", f"/{place}"])
    run(["mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", "/run"])
    if gfarm:
        sockets = Path("/run/postgresql")
        sockets.mkdir()
        shutil.chown(sockets, "postgres", "postgres")
    os.environ["XDG_CONFIG_HOME"] = str(where / "config")
    # Gfarm's key is root's.
    os.environ["HOME"] = "/root"


def inside(args):
    """First process of the namespaces: loopback, overlays, then the rounds."""
    where = args.inner
    run(["ip", "link", "set", "dev", "lo", "up"])
    run(["ip", "addr", "add", f"{ADDRESS}/32", "dev", "lo"])
    cover(where, any(n.startswith("gfarm") for n in args.only))
    results = []
    try:
        for turn in range(args.rounds):
            first = turn % len(args.only)
            for name in args.only[first:] + args.only[:first]:
                results += one_round(args, where, name, turn)
    finally:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps({"files": args.files, "large_bytes": args.large, "results": results}, indent=1) + "\n")
    table(results)


def one_round(args, where, name, turn):
    kind, variant = name.split("-")
    contender = Ours(where, args.binaries, variant == "postgres", turn) if kind == "ours" else Gfarm(where, variant == "journal")
    rows = []
    try:
        contender.start()
        for callers in contender.callers:
            folder = f"/bench/r{turn}{variant}c{callers}" if kind == "gfarm" else f"/r{turn}c{callers}"
            measured = contender.measure(folder, args.files, SMALL_FILES, callers)
            # The second unlink is of files with content: shown as the first.
            rows += measured[:-1]
            print(f"round {turn + 1} {name}, {callers} callers: " +
                  ", ".join(f"{NAMES[m['operation']]} {m['per_second']:.0f}/s" for m in measured[:-1]), flush=True)
        if kind == "ours":
            rows += told_piped(contender.measure_piped(f"/r{turn}piped", args.files), turn, name)
        large = contender.measure("/bench" if kind == "gfarm" else "/large", contender.size(args.large), "WS", 1)
        rows += large
        print(f"round {turn + 1} {name}: " +
              ", ".join(f"{NAMES[m['operation']]} {m['per_second'] / 1e6:.0f} MB/s" for m in large), flush=True)
        if variant != "postgres":
            rows += through_fuse(args, where, contender, f"round {turn + 1} {name}")
    finally:
        contender.stop()
    return [{"contender": name, "round": turn + 1, **row} for row in rows]


def told_piped(rows, turn, name):
    print(f"round {turn + 1} {name}, {MANY} requests of one thread: " +
          ", ".join(f"{NAMES[m['operation']]} {m['per_second']:.0f}/s" for m in rows), flush=True)
    return rows


def through_fuse(args, where, contender, title):
    """The same files by system calls; the rows say so."""
    mount = where / "mnt"
    # Gfarm's root is not the bench's.
    folder = mount / ("bench" if isinstance(contender, Gfarm) else "") / f"fuse{time.monotonic_ns()}"
    rows = []
    for letters, count in ((FUSE_SMALL, str(args.files)), (FUSE_LARGE, f"{args.large >> 20}MiB")):
        for part in letters:
            with Mounted(contender, mount):
                out = run([args.binaries / "examples" / "mount_rate", folder, count, part])
            rows += [json.loads(line) for line in out.splitlines()]
    # The second unlink is of files with content: shown as the first.
    del rows[4]
    told = ", ".join(f"{NAMES[m['operation']]} {m['per_second'] / scale(m['operation']):.0f}" for m in rows)
    print(f"{title}, FUSE: {told}", flush=True)
    return [{**row, "callers": FUSE} for row in rows]


def scale(letter):
    return 1e6 if letter in "WS" else 1


def table(results):
    """Medians over the rounds."""
    columns = []
    for row in results:
        column = (row["contender"], row["callers"])
        if column not in columns:
            columns.append(column)
    columns.sort(key=lambda c: (CONTENDERS.index(c[0]), str(c[1])))
    way = {1: "", FUSE: " FUSE"}
    print(f"\n{'median':<20}" + "".join(f"{name + way.get(callers, f' x{callers}'):>25}" for name, callers in columns))
    for letter, title in NAMES.items():
        cells = ""
        for name, callers in columns:
            values = [r["per_second"] for r in results
                      if (r["contender"], r["callers"], r["operation"]) == (name, callers, letter)]
            cells += f"{statistics.median(values) / scale(letter):>25.0f}" if values else f"{'-':>25}"
        print(f"{title + (' MB/s' if letter in 'WS' else ' /s'):<20}{cells}")


def main():
    args = arguments()
    try:
        if args.inner:
            inside(args)
            return 0
        check(args)
        with tempfile.TemporaryDirectory(prefix="grid-bench-", dir=args.dir) as where:
            passable(where)
            command = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc",
                       sys.executable, str(HERE / "grid.py"), *sys.argv[1:], "--inner", where]
            return subprocess.run(command, check=False).returncode
    except Failed as e:
        print(f"bench/grid.py: {e}", file=sys.stderr)
        return 1 if args.inner else 2


if __name__ == "__main__":
    sys.exit(main())
