"""Kuroshio's own command lines: the only place to change when a flag changes its name."""

from pathlib import Path

from arena import BenchError, Contender, Server

PORT = 7000
SECURE_PORT = 7001


class Ours:
    def __init__(self, binary, paths, streams):
        self.binary = str(binary)
        self.paths = paths
        self.streams = streams
        state = str(paths.conf / "state")
        # Keys, tickets and resume records of the bench stay out of the user's own folders.
        self.env = {
            "HOME": state,
            "XDG_CONFIG_HOME": state + "/config",
            "XDG_DATA_HOME": state + "/data",
            "XDG_STATE_HOME": state + "/state",
            "XDG_CACHE_HOME": state + "/cache",
        }
        Path(state).mkdir(exist_ok=True)

    def there(self):
        return Path(self.binary).exists()

    def server(self):
        return Server(
            "kuroshio",
            [self.binary, "serve", "--insecure", "--root", str(self.paths.tmpfs),
             "--listen", f"127.0.0.1:{PORT}"],
            PORT,
            self.env,
        )

    def secure_server(self):
        return Server(
            "kuroshio-tls",
            [self.binary, "serve", "--root", str(self.paths.tmpfs),
             "--listen", f"127.0.0.1:{SECURE_PORT}"],
            SECURE_PORT,
            self.env,
        )

    def trust(self, log_text):
        """(argv, standard input) that keep the ticket the secure server printed."""
        for word in log_text.split():
            if word.startswith("kuroshio1,"):
                return [self.binary, "trust", "add", "bench"], word + "\n"
        raise BenchError("the server printed no ticket")

    def remote(self, path, secure=False):
        inside = path.relative_to(self.paths.tmpfs)
        return f"bench:/{inside}" if secure else f"http://127.0.0.1:{PORT}/{inside}"

    def cp(self, source, target, digest, rate=None, secure=False):
        # -T: the destination is the copy's own name, a folder or not.
        argv = [self.binary, "cp", "-q", "-T"]
        if not secure:
            argv.append("--insecure")
        argv += ["--digest", digest]
        if self.streams:
            argv += ["--streams", str(self.streams)]
        if rate:
            argv += ["--rate", rate]
        return argv + [str(source), str(target)]

    def copy(self, way, name, digest, out_dir=None, rate=None, secure=False):
        """The contender that moves src/`name`: way "get" or "put"."""
        source = self.paths.src / name
        out_dir = out_dir or (self.paths.get if way == "get" else self.paths.put)
        out = out_dir / name
        if way == "get":
            argv = self.cp(self.remote(source, secure), out, digest, rate, secure)
        else:
            argv = self.cp(source, self.remote(out, secure), digest, rate, secure)
        return Contender(
            "kuroshio",
            [argv],
            ("kuroshio-tls" if secure else "kuroshio",),
            out,
            source,
            self.env,
            ours=True,
        )
