"""The peers: Debian packages, servers, and the command line that each does its best with."""

import os
import pwd
import shutil
import subprocess
from pathlib import Path

from arena import BenchError, Contender, Server

PACKAGES = (
    "b3sum",
    "globus-gass-copy-progs",
    "globus-gridftp-server-progs",
    "iperf3",
    "iproute2",
    "openssl",
    "rclone",
    "rsync",
    "tcpdump",
    "xrootd-client",
    "xrootd-server",
)

GRIDFTP_PORT = 7010
XROOTD_PORT = 7011
RCLONE_HTTP_PORT = 7012
RCLONE_HTTPS_PORT = 7013
RCLONE_SFTP_PORT = 7014
RCLONE_WEBDAV_PORT = 7015
RSYNC_PORT = 7016
IPERF_PORT = 7017

# Makes package scripts start no daemon while the peers are installed: those would listen on
# every interface. Removed again afterwards; one that is there already is left alone.
POLICY = Path("/usr/sbin/policy-rc.d")


def missing_packages():
    missing = []
    for package in PACKAGES:
        asked = subprocess.run(
            ["dpkg-query", "-W", "-f", "${Status}", package], capture_output=True, text=True
        )
        if "install ok installed" not in asked.stdout:
            missing.append(package)
    return missing


def install(packages):
    apt = ["apt-get", "-o", "DPkg::Lock::Timeout=300", "-y", "--no-install-recommends"]
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    ours = not POLICY.exists()
    if ours:
        POLICY.write_text("#!/bin/sh\nexit 101\n")
        POLICY.chmod(0o755)
    try:
        if subprocess.run([*apt, "install", *packages], env=env).returncode == 0:
            return
        subprocess.run([*apt, "update"], env=env)
        if subprocess.run([*apt, "install", *packages], env=env).returncode != 0:
            raise BenchError(f"apt-get could not install {' '.join(packages)}; see its output above")
    finally:
        if ours:
            POLICY.unlink(missing_ok=True)


def versions():
    found = {}
    for package in PACKAGES:
        asked = subprocess.run(
            ["dpkg-query", "-W", "-f", "${Version}", package], capture_output=True, text=True
        )
        found[package] = asked.stdout.strip() or None
    return found


def as_user(name, group):
    """argv prefix that gives up root, for the servers that insist on it."""
    return ["setpriv", "--reuid", name, "--regid", group, "--clear-groups"]


def user_exists(name):
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


class Peers:
    """Servers and contenders over one set of folders. All servers serve `paths.tmpfs`."""

    def __init__(self, paths):
        self.paths = paths

    # ------------------------------------------------------------ servers

    def servers(self):
        root = str(self.paths.tmpfs)
        found = [
            self._gridftp(),
            self._xrootd(),
            self._rclone("http", "http", RCLONE_HTTP_PORT),
            self._rclone("https", "http", RCLONE_HTTPS_PORT,
                         "--cert", root + "/conf/cert.pem", "--key", root + "/conf/key.pem"),
            self._rclone("webdav", "webdav", RCLONE_WEBDAV_PORT),
            self._rclone("sftp", "sftp", RCLONE_SFTP_PORT),
            self._rsync(),
            Server("iperf3", ["iperf3", "-s", "-B", "127.0.0.1", "-p", str(IPERF_PORT)], IPERF_PORT),
        ]
        return {server.name: server for server in found}

    def _gridftp(self):
        argv = [*as_user("nobody", "nogroup"), "globus-gridftp-server", "-s", "-aa",
                "-p", str(GRIDFTP_PORT),
                "-control-interface", "127.0.0.1", "-data-interface", "127.0.0.1"]
        return Server("gridftp", argv, GRIDFTP_PORT, {"HOME": "/tmp"})

    def _xrootd(self):
        """No digest of a source is kept between repetitions: the server may not write in src."""
        home = self.paths.conf / "xrootd"
        home.mkdir(exist_ok=True)
        config = self.paths.conf / "xrootd.cfg"
        config.write_text(
            "all.export /\n"
            f"oss.localroot {self.paths.tmpfs}\n"
            f"xrd.port {XROOTD_PORT}\n"
            f"all.adminpath {home}\n"
            f"all.pidpath {home}\n"
            "xrootd.chksum max 8 adler32 crc32c\n"
        )
        prefix = []
        if user_exists("xrootd"):
            shutil.chown(home, "xrootd", "xrootd")
            prefix = as_user("xrootd", "xrootd")
        argv = [*prefix, "xrootd", "-c", str(config), "-n", "bench"]
        return Server("xrootd", argv, XROOTD_PORT, {"HOME": str(home)})

    def _rclone(self, name, protocol, port, *flags):
        argv = ["rclone", "serve", protocol, "--addr", f"127.0.0.1:{port}", *flags,
                str(self.paths.tmpfs)]
        env = {"RCLONE_CONFIG": "/dev/null", "HOME": str(self.paths.conf)}
        if protocol == "sftp":
            env.update({"RCLONE_USER": "bench", "RCLONE_PASS": "bench"})
        return Server(f"rclone-{name}", argv, port, env, fresh=True)

    def _rsync(self):
        config = self.paths.conf / "rsyncd.conf"
        config.write_text(
            f"use chroot = no\nuid = root\ngid = root\naddress = 127.0.0.1\nport = {RSYNC_PORT}\n"
            f"[all]\npath = {self.paths.tmpfs}\nread only = no\n"
        )
        return Server(
            "rsync", ["rsync", "--daemon", "--no-detach", f"--config={config}"], RSYNC_PORT
        )

    # ------------------------------------------------------------ contenders

    def _made(self, name, server, argv, out, source, sync=False, env=None):
        steps = [argv]
        if sync:
            steps.append(["sync", "-d", str(out)])
        return Contender(name, steps, (server,), out, source, env or {})

    def _ends(self, way, name, out_dir):
        source = self.paths.src / name
        out_dir = out_dir or (self.paths.get if way == "get" else self.paths.put)
        return source, out_dir / name

    def _inside(self, path):
        return str(path.relative_to(self.paths.tmpfs))

    def gridftp_list(self, way, name, files, *flags):
        """A tree by a list of its files: with `-r` its digests fail on folders."""
        source, out = self._ends(way, name, None)
        base = f"ftp://127.0.0.1:{GRIDFTP_PORT}"
        near, far = ("", base) if way == "put" else (base, "")
        listed = self.paths.conf / f"gridftp-{way}.list"
        listed.write_text("".join(
            f"{near or 'file://'}{source}/{file} {far or 'file://'}{out}/{file}\n" for file in files
        ))
        argv = ["globus-url-copy", "-cd", *flags, "-f", str(listed)]
        shown = " ".join(["globus-url-copy", "-f LIST", *flags])
        return self._made(shown, "gridftp", argv, out, source)

    def gridftp(self, way, name, *flags, tree=False, out_dir=None, sync=False, label=None):
        source, out = self._ends(way, name, out_dir)
        slash = "/" if tree else ""
        base = f"ftp://127.0.0.1:{GRIDFTP_PORT}"
        if way == "get":
            ends = [f"{base}{source}{slash}", f"file://{out}{slash}"]
        else:
            ends = [f"file://{source}{slash}", f"{base}{out}{slash}"]
        if tree:
            flags = ("-r", "-cd", *flags)
        argv = ["globus-url-copy", *flags, *ends]
        shown = label or " ".join(["globus-url-copy", *flags])
        return self._made(shown, "gridftp", argv, out, source, sync)

    def xrdcp(self, way, name, *flags, tree=False, out_dir=None, sync=False, label=None):
        source, out = self._ends(way, name, out_dir)
        base = f"root://127.0.0.1:{XROOTD_PORT}//"
        # A tree is put below an existing folder, a file gets its own name.
        target = out.parent if tree else out
        if way == "get":
            ends = [base + self._inside(source), str(target)]
        else:
            ends = [str(source), base + self._inside(target)]
        if tree:
            flags = ("-r", *flags)
        argv = ["xrdcp", "-f", "-N", *flags, *ends]
        env = {"XRD_CONNECTIONRETRY": "1", "XRD_LOGLEVEL": "Error"}
        shown = label or " ".join(["xrdcp", *flags])
        return self._made(shown, "xrootd", argv, out, source, sync, env)

    def rclone(self, way, name, kind, *flags, tree=False, out_dir=None, sync=False, label=None):
        """`kind` is http, https, webdav or sftp."""
        source, out = self._ends(way, name, out_dir)
        remote, server, env = {
            "http": (":http:", "rclone-http",
                     {"RCLONE_HTTP_URL": f"http://127.0.0.1:{RCLONE_HTTP_PORT}"}),
            "https": (":http:", "rclone-https",
                      {"RCLONE_HTTP_URL": f"https://127.0.0.1:{RCLONE_HTTPS_PORT}",
                       "RCLONE_NO_CHECK_CERTIFICATE": "true"}),
            "webdav": (":webdav:", "rclone-webdav",
                       {"RCLONE_WEBDAV_URL": f"http://127.0.0.1:{RCLONE_WEBDAV_PORT}"}),
            "sftp": (":sftp:", "rclone-sftp",
                     {"RCLONE_SFTP_HOST": "127.0.0.1", "RCLONE_SFTP_PORT": str(RCLONE_SFTP_PORT),
                      "RCLONE_SFTP_USER": "bench", "RCLONE_SFTP_PASS": self._obscured()}),
        }[kind]
        if way == "get":
            ends = [remote + self._inside(source), str(out)]
        else:
            ends = [str(source), remote + self._inside(out)]
        argv = ["rclone", "copy" if tree else "copyto", "--ignore-times", *flags, *ends]
        env = {**env, "RCLONE_CONFIG": "/dev/null", "HOME": str(self.paths.conf)}
        shown = label or " ".join(["rclone", kind, *flags])
        return self._made(shown, server, argv, out, source, sync, env)

    def _obscured(self):
        """The form in which rclone takes a password: reversible, and nothing secret here."""
        if shutil.which("rclone") is None:
            return ""
        asked = subprocess.run(["rclone", "obscure", "bench"], capture_output=True, text=True)
        return asked.stdout.strip()

    def rsync(self, way, name, *flags, tree=False, out_dir=None, sync=False, label=None):
        source, out = self._ends(way, name, out_dir)
        base = f"rsync://127.0.0.1:{RSYNC_PORT}/all/"
        slash = "/" if tree else ""
        if way == "get":
            ends = [base + self._inside(source) + slash, str(out) + slash]
        else:
            ends = [str(source) + slash, base + self._inside(out) + slash]
        if tree:
            flags = ("-a", *flags)
        argv = ["rsync", *flags, *ends]
        shown = label or " ".join(["rsync", *flags])
        return self._made(shown, "rsync", argv, out, source, sync)

    def iperf3(self, *flags, length=None, label=None):
        argv = ["iperf3", "-c", "127.0.0.1", "-p", str(IPERF_PORT), *flags]
        if length:
            argv += ["-n", str(length)]
        return Contender(label or "iperf3", [argv], ("iperf3",), bytes=length)

    def certificate(self):
        """A throw-away certificate for the servers that speak TLS."""
        conf = self.paths.conf
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
             "-subj", "/CN=127.0.0.1", "-keyout", str(conf / "key.pem"),
             "-out", str(conf / "cert.pem")],
            check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
