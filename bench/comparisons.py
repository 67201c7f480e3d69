"""The comparisons as data: who takes part in what, and on which input.

A peer stands in a verified comparison when it compares a digest of what it read with one of what
arrived; the others stand in a comparison of their own, against ours with `--digest none`.
rsync always computes its digest, so it stands in both.
"""

import re
from dataclasses import dataclass, field

import inputs
from arena import Contender

# What peers are asked to hold in the comparison of rates, in payload MB/s and as they write it.
PACED_MB_PER_S = 50
PACED_SECONDS = 10
OPENSSL_BLOCK_BYTES = 16384
IPERF_BYTES = 8 << 30


@dataclass
class Comparison:
    """`bytes` is what a contender moves; `prepare` makes the input and needs nothing else."""

    name: str
    group: str
    work: str
    bytes: int
    prepare: object
    contenders: list
    # Port of each contender's data and the end it is sent from, where the flow is captured.
    captured: dict = field(default_factory=dict)


def amount(length):
    """A length with its unit, binary as it was asked for."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if length % size == 0 and length >= size:
            return f"{length // size} {unit}"
    return f"{length} B"


class Plan:
    def __init__(self, paths, peers, ours, asked):
        self.paths, self.peers, self.ours, self.asked = paths, peers, ours, asked

    def all(self):
        made = []
        for way in ("get", "put"):
            made += [self.movers(way, False), self.movers(way, True)]
            made += [self.tree(way, False), self.tree(way, True)]
        made += [self.disk(False), self.disk(True), self.tls("get"), self.tls("put")]
        made += [self.rate(), self.profile()]
        return made

    # ------------------------------------------------------------ inputs

    def _big(self):
        return lambda: inputs.make_big(self.paths, self.asked.size)

    def _tree(self):
        return lambda: inputs.make_tree(self.paths, self.asked.files, self.asked.file_size)

    def _work(self, what, way, rest):
        return f"{what}, {way}, loopback, {rest}"

    # ------------------------------------------------------------ one file

    def movers(self, way, verified):
        p, big = self.peers, inputs.BIG
        if verified:
            rivals = [
                p.rsync(way, big, "-W", "--inplace"),
                p.gridftp(way, big, "-p", "4", "-verify-checksum"),
                p.xrdcp(way, big, "-C", "adler32"),
                p.rclone(way, big, "sftp"),
            ]
        else:
            rivals = [
                p.gridftp(way, big),
                p.gridftp(way, big, "-p", "4"),
                p.gridftp(way, big, "-p", "4", "-fast"),
                p.xrdcp(way, big),
                p.xrdcp(way, big, "-S", "4"),
                p.rsync(way, big, "-W", "--inplace"),
                p.rsync(way, big, "-W", "--inplace", "--checksum-choice=none"),
                p.rclone(way, big, "webdav"),
            ]
            if way == "get":
                rivals += [
                    p.rclone(way, big, "http"),
                    p.rclone(way, big, "http", "--multi-thread-streams", "1"),
                ]
        kind = "verified" if verified else "nodigest"
        rest = "tmpfs to tmpfs, " + ("digest checked at both ends" if verified else "no digest")
        return Comparison(
            f"movers-{kind}-{way}", "movers",
            self._work(f"one file of {amount(self.asked.size)}", way, rest),
            self.asked.size, self._big(),
            [self.ours.copy(way, big, "blake3" if verified else "none"), *rivals],
        )

    # ------------------------------------------------------------ many files

    def tree(self, way, verified):
        p, tree = self.peers, inputs.TREE
        if verified:
            rivals = [
                p.rsync(way, tree, tree=True),
                p.rsync(way, tree, "-W", "--inplace", tree=True),
                p.gridftp_list(way, tree, inputs.tree_files(self.asked.files),
                               "-cc", "4", "-pp", "-verify-checksum"),
                p.rclone(way, tree, "sftp", "--transfers", "4", tree=True),
            ]
            if way == "get":
                # The other way it waits 100 ms and more for the digest of each file.
                rivals.append(p.xrdcp(way, tree, "--parallel", "4", "-C", "adler32", tree=True))
        else:
            rivals = [
                p.rsync(way, tree, tree=True),
                p.gridftp(way, tree, "-cc", "4", "-pp", tree=True),
                p.xrdcp(way, tree, "--parallel", "4", tree=True),
            ]
            # WebDAV asks so much about every file that a tree takes minutes.
            if way == "get":
                rivals.append(p.rclone(way, tree, "http", "--transfers", "16", tree=True))
            else:
                rivals.append(p.rclone(way, tree, "sftp", "--transfers", "4",
                                       "--ignore-checksum", tree=True))
        kind = "verified" if verified else "nodigest"
        rest = "tmpfs to tmpfs, " + ("digest checked at both ends" if verified else "no digest")
        what = f"{self.asked.files} files of {amount(self.asked.file_size)}"
        return Comparison(
            f"tree-{kind}-{way}", "tree", self._work(what, way, rest),
            self.asked.files * self.asked.file_size, self._tree(),
            [self.ours.copy(way, tree, "blake3" if verified else "none"), *rivals],
        )

    # ------------------------------------------------------------ a real disk

    def disk(self, verified):
        """Peers that do not flush are followed by `sync -d`, which is timed with them."""
        p, big, way = self.peers, inputs.BIG, "get"
        to = {"out_dir": self.paths.disk}
        if verified:
            rivals = [
                p.rsync(way, big, "-W", "--inplace", "--fsync", **to),
                p.rsync(way, big, "-W", "--inplace", **to, sync=True,
                        label="rsync -W --inplace; sync -d"),
                p.xrdcp(way, big, "-C", "adler32", **to, sync=True,
                        label="xrdcp -C adler32; sync -d"),
                p.gridftp(way, big, "-p", "4", "-verify-checksum", **to, sync=True,
                          label="globus-url-copy -p 4 -verify-checksum; sync -d"),
            ]
        else:
            rivals = [
                p.rsync(way, big, "-W", "--inplace", "--fsync", **to),
                p.xrdcp(way, big, **to, sync=True, label="xrdcp; sync -d"),
                p.gridftp(way, big, "-p", "4", **to, sync=True,
                          label="globus-url-copy -p 4; sync -d"),
                p.rclone(way, big, "http", **to, sync=True, label="rclone http; sync -d"),
            ]
        kind = "verified" if verified else "nodigest"
        rest = "tmpfs to a disk, flushed, " + (
            "digest checked at both ends" if verified else "no digest")
        return Comparison(
            f"disk-fsync-{kind}", "disk",
            self._work(f"one file of {amount(self.asked.size)}", way, rest),
            self.asked.size, self._big(),
            [self.ours.copy(way, big, "blake3" if verified else "none", self.paths.disk), *rivals],
        )

    # ------------------------------------------------------------ TLS

    def tls(self, way):
        p, big = self.peers, inputs.BIG
        rivals = [p.rclone(way, big, "sftp")]
        if way == "get":
            rivals.append(p.rclone(way, big, "https"))
        rivals += [
            self.cipher("aes-128-gcm"),
            self.cipher("aes-256-gcm"),
            self.cipher("chacha20-poly1305"),
        ]
        return Comparison(
            f"tls-{way}", "tls",
            self._work(f"one file of {amount(self.asked.size)}", way,
                       "tmpfs to tmpfs, encrypted, digest checked at both ends by ours; "
                       "openssl is one cipher on one core, one end only"),
            self.asked.size, self._big(),
            [self.ours.copy(way, big, "blake3", secure=True), *rivals],
        )

    def cipher(self, name):
        argv = ["openssl", "speed", "-mr", "-seconds", "1", "-bytes", str(OPENSSL_BLOCK_BYTES),
                "-evp", name]
        return Contender(f"openssl speed {name}", [argv], reading=openssl_mb_per_s,
                         limit=True)

    # ------------------------------------------------------------ a rate

    def rate(self):
        p, name = self.peers, inputs.PACED
        mbps = f"{PACED_MB_PER_S * 8}M"
        bits = PACED_MB_PER_S * 8
        length = PACED_MB_PER_S * PACED_SECONDS * 1000 * 1000
        # rclone counts binary units: 47.68 MiB/s are 50 MB/s.
        mib = f"{PACED_MB_PER_S * 1e6 / (1 << 20):.2f}M"
        fq = p.iperf3("--fq-rate", mbps, length=length, label=f"iperf3 --fq-rate {mbps}")
        contenders = [
            self.ours.copy("get", name, "none", rate=mbps),
            p.rsync("get", name, "-W", f"--bwlimit={PACED_MB_PER_S}MB"),
            p.xrdcp("get", name, "--xrate", str(PACED_MB_PER_S * 1000000)),
            p.rclone("get", name, "http", "--multi-thread-streams", "1", "--bwlimit", mib),
            fq,
        ]
        ports = {"kuroshio": "src", "rsync": "src", "xrootd": "src", "rclone-http": "src",
                 "iperf3": "dst"}
        return Comparison(
            "rate", "rate",
            f"{length // 1000000} MB asked to flow at {PACED_MB_PER_S} MB/s ({bits} Mbit/s), get, "
            "loopback, no digest; payload after the first second, from a capture",
            length, lambda: inputs.make_paced(self.paths, length),
            contenders, ports,
        )

    # ------------------------------------------------------------ what is left

    def profile(self):
        p, big, source = self.peers, inputs.BIG, self.paths.src / inputs.BIG
        out = self.paths.get / big
        disk = self.paths.disk / big
        contenders = [
            self.ours.copy("get", big, "none"),
            Contender("cp, tmpfs to tmpfs", [["cp", str(source), str(out)]], (), out, source),
            p.iperf3(length=IPERF_BYTES, label="iperf3, memory to nowhere"),
            p.iperf3("-F", str(source), length=self.asked.size, label="iperf3, reading the file"),
            Contender("b3sum, one core", [["b3sum", "--num-threads", "1", str(source)]]),
            Contender("b3sum, all cores", [["b3sum", str(source)]]),
            Contender("sha1sum", [["sha1sum", str(source)]]),
            Contender("md5sum", [["md5sum", str(source)]]),
            Contender("dd to the disk, conv=fsync",
                      [["dd", f"if={source}", f"of={disk}", "bs=1M", "conv=fsync"]], (), disk, source),
        ]
        for contender in contenders[1:]:
            contender.limit = True
        return Comparison(
            "profile", "profile",
            f"{amount(self.asked.size)}: floors and ceilings of what a copy is made of; "
            "ours is the get without a digest",
            self.asked.size, self._big(), contenders,
        )


def openssl_mb_per_s(text):
    """MB/s from `openssl speed -mr`: the last field of its F line, in bytes per second."""
    found = re.search(r"^\+F:.*:([0-9.]+)$", text, re.MULTILINE)
    return float(found.group(1)) / 1e6 if found else float("nan")
