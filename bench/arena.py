"""The place where contenders are timed.

    outer process (bench/run)             owns the scratch folders and the CPU accounts
      unshare: network, PID, mounts       owns every process; loopback is the only interface
        inner process (bench/run again)   starts servers, times clients, checks results

Ending the namespace's first process ends every server and client in it, so the outer process
can remove the folders without asking who still runs. A repetition is:

    lock -> empty the targets -> read counters -> client -> read counters -> verify -> unlock

Wall time is the client's, from fork to exit. CPU is the client's plus that of the servers it
spoke to, user and system, from control groups where there are any and from /proc otherwise.
"""

import contextlib
import fcntl
import os
import resource
import select
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

# A server that does not listen by then is reported as not started, in seconds.
LISTEN_DEADLINE_S = 20.0
# A client that runs longer is ended and counted as failed, in seconds.
CLIENT_DEADLINE_S = 300.0
# A server's CPU counter that stands still this long has been charged all of a transfer.
SETTLED_S = 0.05
SETTLE_DEADLINE_S = 2.0
# How much of a log an error message quotes, in bytes.
QUOTED_LOG_BYTES = 600

PREFIX = "kuroshio-bench."


class BenchError(Exception):
    """Something the person who runs the bench can act on."""


@dataclass
class Paths:
    """Folders of one run. `tmpfs` and `disk` are ours alone and removed at the end."""

    tmpfs: Path
    disk: Path

    @property
    def src(self):
        return self.tmpfs / "src"

    @property
    def get(self):
        return self.tmpfs / "get"

    @property
    def put(self):
        return self.tmpfs / "put"

    @property
    def conf(self):
        return self.tmpfs / "conf"

    @property
    def logs(self):
        return self.tmpfs / "logs"

    def make(self):
        for folder in (self.tmpfs, self.disk):
            folder.mkdir(mode=0o755)
            folder.chmod(0o755)
        for folder in (self.src, self.get, self.put, self.conf, self.logs):
            folder.mkdir()
        # Some servers refuse to run as root and write uploads as another user.
        self.put.chmod(0o1777)

    def empty_targets(self):
        """Removes what an earlier repetition left where copies are written."""
        for folder in (self.get, self.put, self.disk):
            for entry in folder.iterdir():
                if entry.is_dir() and not entry.is_symlink():
                    shutil.rmtree(entry)
                else:
                    entry.unlink()
        # The disk starts a repetition with nothing left to write, whoever was before.
        subprocess.run(["sync", "-f", str(self.disk)], check=True)

    def remove(self):
        for folder in (self.tmpfs, self.disk):
            shutil.rmtree(folder, ignore_errors=True)


def left_behind(base):
    """What runs whose process is gone (ended by kill -9) left in the folder `base`."""
    for folder in Path(base).glob(PREFIX + "*"):
        pid = folder.name[len(PREFIX):]
        if pid.isdigit() and not Path("/proc", pid).exists():
            yield folder


def sweep(tmpfs_base, disk_base):
    for base in (tmpfs_base, disk_base):
        for folder in left_behind(base):
            shutil.rmtree(folder, ignore_errors=True)


# ---------------------------------------------------------------- CPU accounts


class CgroupAccounts:
    """One control group per server and one for the client; exact to the microsecond.

    Version 2 keeps `cpu.stat` in every group, controllers enabled or not; version 1 needs the
    `cpuacct` hierarchy.
    """

    def __init__(self, root, version):
        self.root = root
        self.version = version

    @classmethod
    def make(cls, name):
        """The first hierarchy that lets us make a group, or None."""
        own = {}
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            own[controllers] = path.lstrip("/")
        for base in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"):
            if Path(base, "cgroup.controllers").exists():
                made = cls._try(Path(base, own.get("", ""), name), 2, "cpu.stat")
                if made:
                    return made
        for controllers in ("cpuacct", "cpu,cpuacct", "cpuacct,cpu"):
            base = Path("/sys/fs/cgroup", controllers)
            if base.is_dir():
                made = cls._try(base / own.get(controllers, "") / name, 1, "cpuacct.usage_user")
                if made:
                    return made
        return None

    @classmethod
    def _try(cls, root, version, needed):
        try:
            for group in left_behind(root.parent):
                cls(group, version).remove()
            root.mkdir()
        except OSError:
            return None
        if (root / needed).exists():
            return cls(root, version)
        root.rmdir()
        return None

    def join(self, name):
        """Moves the calling process into the group `name`."""
        group = self.root / name
        group.mkdir(exist_ok=True)
        (group / "cgroup.procs").write_text("0")

    def usage(self, name, _session):
        """(user, system) seconds so far of everything that ran in the group."""
        group = self.root / name
        if not group.is_dir():
            return 0.0, 0.0
        if self.version == 2:
            stat = dict(line.split() for line in (group / "cpu.stat").read_text().splitlines())
            return int(stat["user_usec"]) / 1e6, int(stat["system_usec"]) / 1e6
        user = int((group / "cpuacct.usage_user").read_text())
        system = int((group / "cpuacct.usage_sys").read_text())
        return user / 1e9, system / 1e9

    def remove(self):
        for group in list(self.root.glob("*/")) + [self.root]:
            # A group is busy for a moment after its last process ended.
            for _ in range(100):
                try:
                    group.rmdir()
                    break
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(0.02)

    def describe(self):
        return f"control groups, version {self.version}"


class ProcAccounts:
    """Without control groups: the kernel's counters per process, exact to a tick (10 ms)."""

    root = None

    def join(self, name):
        pass

    def usage(self, name, session):
        if name == "client":
            used = resource.getrusage(resource.RUSAGE_CHILDREN)
            return used.ru_utime, used.ru_stime
        tick = os.sysconf("SC_CLK_TCK")
        user = system = 0
        for entry in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                fields = entry.read_text().rpartition(")")[2].split()
                if int(fields[3]) == session:
                    user += int(fields[11]) + int(fields[13])
                    system += int(fields[12]) + int(fields[14])
        return user / tick, system / tick

    def remove(self):
        pass

    def describe(self):
        return "/proc and getrusage, to 10 ms"


def machine_cpu():
    """(busy, stolen) CPU seconds of the whole machine since boot."""
    fields = [int(x) for x in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields
    tick = os.sysconf("SC_CLK_TCK")
    return (user + nice + system + irq + softirq) / tick, steal / tick


# ---------------------------------------------------------------- servers and clients


@dataclass
class Server:
    """A peer's daemon. `port` is where it must listen before a client is started.

    One that remembers folders which we empty behind its back is started `fresh` each time.
    """

    name: str
    argv: list
    port: int
    env: dict = field(default_factory=dict)
    fresh: bool = False


@dataclass
class Contender:
    """One program in a comparison: what is timed and what must be there afterwards.

    `steps` run one after the other inside the timed part. `out` is compared with `like`, byte for
    byte; both None where nothing is copied. `bytes` replaces the comparison's own number, and
    `reading` gets the output of the steps and returns MB/s instead of bytes over seconds.
    A `limit` is not a rival: it shows what the machine allows, and is listed apart.
    """

    name: str
    steps: list
    servers: tuple = ()
    out: Path = None
    like: Path = None
    env: dict = field(default_factory=dict)
    bytes: int = None
    reading: object = None
    ours: bool = False
    limit: bool = False


class Arena:
    """Runs inside the namespace: starts servers once, times contenders."""

    def __init__(self, paths, accounts, lock_path):
        self.paths = paths
        self.accounts = accounts
        self.lock_path = lock_path
        self.running = {}
        self.refused = {}

    def start(self, server):
        """Starts a server unless it runs. Raises BenchError when it does not listen."""
        if server.name in self.refused:
            raise BenchError(self.refused[server.name])
        if server.name in self.running:
            if self.running[server.name].poll() is not None:
                raise BenchError(f"{server.name} ended during the comparison")
            if not server.fresh:
                return
            stop(self.running.pop(server.name))
        try:
            self.running[server.name] = self._spawn(server)
        except BenchError as error:
            self.refused[server.name] = str(error)
            raise

    def _spawn(self, server):
        if shutil.which(server.argv[0]) is None:
            raise BenchError(f"{server.argv[0]} is not installed")
        log_path = self.paths.logs / (server.name + ".log")
        with open(log_path, "wb") as log:
            process = subprocess.Popen(
                server.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **server.env},
                cwd=self.paths.conf,
                start_new_session=True,
                preexec_fn=lambda: self.accounts.join(server.name),
            )
        deadline = time.monotonic() + LISTEN_DEADLINE_S
        while not listening(server.port):
            if process.poll() is not None or time.monotonic() > deadline:
                stop(process)
                raise BenchError(
                    f"{server.name} does not listen on port {server.port}: {tail(log_path)}"
                )
            time.sleep(0.02)
        return process

    def stop_servers(self):
        for process in self.running.values():
            stop(process)
        self.running.clear()

    def _usage(self, names):
        user = system = 0.0
        for name in names:
            process = self.running.get(name)
            used = self.accounts.usage(name, process.pid if process else None)
            user += used[0]
            system += used[1]
        return user, system

    def _settled_usage(self, names):
        """Usage once the servers have finished with the transfer that just ended."""
        deadline = time.monotonic() + SETTLE_DEADLINE_S
        last = self._usage(names)
        while time.monotonic() < deadline:
            time.sleep(SETTLED_S)
            now = self._usage(names)
            if sum(now) - sum(last) < 0.001:
                return now
            last = now
        return last

    @contextlib.contextmanager
    def locked(self):
        """Keeps timed parts of several benches on one machine apart."""
        if not self.lock_path:
            yield
            return
        with open(self.lock_path, "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def repeat(self, contender, work_bytes):
        """One repetition: a dict of what was measured, `error` set when it does not count."""
        with self.locked():
            self.paths.empty_targets()
            return self.timed(contender, contender.bytes or work_bytes)

    def timed(self, contender, copied_bytes):
        names = ("client",) + tuple(contender.servers)
        log_path = self.paths.logs / "client.log"
        before, busy_before = self._usage(names), machine_cpu()
        begin = time.monotonic()
        error = None
        with open(log_path, "wb") as log:
            for argv in contender.steps:
                error = self._step(argv, contender, log, begin + CLIENT_DEADLINE_S)
                if error:
                    break
        seconds = time.monotonic() - begin
        busy_after = machine_cpu()
        after = self._settled_usage(names)
        user, system = after[0] - before[0], after[1] - before[1]
        busy = busy_after[0] - busy_before[0]
        row = {
            "contender": contender.name,
            "seconds": round(seconds, 4),
            "mb_per_s": round(copied_bytes / 1e6 / seconds, 1),
            "user_s": round(user, 4),
            "system_s": round(system, 4),
            "cpu_s_per_gb": round((user + system) / (copied_bytes / 1e9), 3),
            "foreign_cpu_s": round(max(0.0, busy - user - system), 2),
            "steal_s": round(busy_after[1] - busy_before[1], 2),
        }
        if error:
            row["error"] = f"{error}: {tail(log_path)}"
        elif contender.reading:
            row["mb_per_s"] = round(contender.reading(log_path.read_text()), 1)
            row["cpu_s_per_gb"] = round(1e3 / row["mb_per_s"], 3)
        elif contender.out is not None and not same(contender.like, contender.out):
            row["error"] = f"{contender.out.name} differs from the source"
        return row

    def _step(self, argv, contender, log, deadline):
        if shutil.which(argv[0]) is None:
            return f"{argv[0]} is not installed"
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **contender.env},
            cwd=self.paths.conf,
            start_new_session=True,
            preexec_fn=lambda: self.accounts.join("client"),
        )
        try:
            if not ended(process, deadline - time.monotonic()):
                return f"not done after {CLIENT_DEADLINE_S:.0f} s"
            code = process.wait()
        finally:
            stop(process)
        return f"exit code {code}" if code else None


def listening(port):
    """Whether a TCP socket of this network namespace listens on `port`; connects to nothing."""
    wanted = f":{port:04X}"
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[1].endswith(wanted) and fields[3] == "0A":
                    return True
    return False


def ended(process, patience_s):
    """Waits for the end of a process without polling: `wait(timeout)` looks every 50 ms only."""
    handle = os.pidfd_open(process.pid)
    try:
        return bool(select.select([handle], [], [], max(0.0, patience_s))[0])
    finally:
        os.close(handle)


def stop(process):
    """Ends a process and what it started in its session, politely, then surely."""
    for signum, patience_s in ((signal.SIGTERM, 3.0), (signal.SIGKILL, 3.0)):
        if process.poll() is not None:
            break
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signum)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=patience_s)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def same(like, out):
    """Whether the copy equals the source, byte for byte, trees by their whole content."""
    if like.is_dir():
        argv = ["diff", "-rq", "--no-dereference", str(like), str(out)]
    else:
        argv = ["cmp", "-s", str(like), str(out)]
    return subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


def tail(path):
    with contextlib.suppress(OSError):
        text = path.read_bytes()[-QUOTED_LOG_BYTES:].decode(errors="replace")
        shown = "".join(c if c.isprintable() else " " for c in text)
        return " ".join(shown.split()) or "no output"
    return "no output"
