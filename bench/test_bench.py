#!/usr/bin/env python3
"""Tests of the bench itself, without peers: `python3 bench/test_bench.py`."""

import importlib.machinery
import importlib.util
import json
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import arena  # noqa: E402
import capture  # noqa: E402
import comparisons  # noqa: E402
import grid  # noqa: E402
import replicate  # noqa: E402
import table  # noqa: E402


def load_run():
    loader = importlib.machinery.SourceFileLoader("bench_run", str(HERE / "run"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("bench_run", loader))
    loader.exec_module(module)
    return module


run = load_run()


class Folder(unittest.TestCase):
    def setUp(self):
        held = tempfile.TemporaryDirectory()
        self.addCleanup(held.cleanup)
        self.folder = Path(held.name)


def captured(path, packets, port):
    """A capture with one TCP packet per (seconds, payload bytes), sent from `port`."""
    with open(path, "wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 96, 1))
        for stamp, length in packets:
            whole = 20 + 20 + length
            # The IP header cannot hold more; the packet's own length then counts.
            shown = whole if whole < 65536 else 0
            ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, shown, 0, 0, 64, 6, 0, b"\x7f\0\0\1", b"\x7f\0\0\1")
            tcp = struct.pack(">HHIIBBHHH", port, 9, 0, 0, 5 << 4, 16, 0, 0, 0)
            kept = (b"\0" * 14 + ip + tcp)[:96]
            file.write(struct.pack("<IIII", int(stamp), round(stamp % 1 * 1e6), len(kept), 14 + whole))
            file.write(kept)


class Capture(Folder):
    def evenness(self, packets):
        path = self.folder / "c.pcap"
        captured(path, packets, 80)
        return capture.evenness(path, 80, "src")

    def test_an_even_flow_has_no_variation(self):
        found = self.evenness([(n * 0.01 + (0.005 if n else 0.0), 500_000) for n in range(300)])
        self.assertAlmostEqual(found["mb_per_s"], 50.0, delta=0.01)
        self.assertEqual(found["variation_10ms"], 0.0)
        self.assertEqual(found["empty_10ms_share"], 0.0)

    def test_bursts_show_as_peak_and_empty_windows(self):
        found = self.evenness([(n * 0.1 + (0.005 if n else 0.0), 5_000_000) for n in range(31)])
        self.assertAlmostEqual(found["empty_10ms_share"], 0.9, delta=0.01)
        self.assertAlmostEqual(found["peak_10ms"], 10.0, delta=0.2)
        self.assertAlmostEqual(found["variation_10ms"], 3.0, delta=0.1)

    def test_other_ports_do_not_count(self):
        path = self.folder / "c.pcap"
        captured(path, [(0.0, 1000), (3.0, 1000)], 81)
        self.assertIsNone(capture.evenness(path, 80, "src"))


class Copies(Folder):
    def test_a_file_with_one_other_byte_differs(self):
        a, b = self.folder / "a", self.folder / "b"
        a.write_bytes(b"x" * 9999)
        b.write_bytes(b"x" * 9999)
        self.assertTrue(arena.same(a, b))
        b.write_bytes(b"x" * 9998 + b"y")
        self.assertFalse(arena.same(a, b))

    def test_a_tree_with_a_missing_file_differs(self):
        a, b = self.folder / "a", self.folder / "b"
        for top in (a, b):
            (top / "d").mkdir(parents=True)
            (top / "d/f").write_text("x")
        self.assertTrue(arena.same(a, b))
        (b / "d/f").unlink()
        self.assertFalse(arena.same(a, b))

    def test_a_client_that_fails_or_copies_wrongly_is_an_error(self):
        paths = arena.Paths(self.folder / "m", self.folder / "d")
        paths.make()
        like, out = paths.src / "big", paths.get / "big"
        like.write_bytes(b"abc")
        place = arena.Arena(paths, arena.ProcAccounts(), None)
        good = arena.Contender("cp", [["cp", str(like), str(out)]], (), out, like)
        self.assertNotIn("error", place.repeat(good, 3))
        wrong = arena.Contender("cp", [["cp", "/etc/hostname", str(out)]], (), out, like)
        self.assertIn("differs", place.repeat(wrong, 3)["error"])
        failing = arena.Contender("false", [["false"]], (), out, like)
        self.assertIn("exit code 1", place.repeat(failing, 3)["error"])
        absent = arena.Contender("none", [["no-such-program"]], (), out, like)
        self.assertIn("not installed", place.repeat(absent, 3)["error"])


class Waiting(unittest.TestCase):
    def test_a_process_that_runs_has_not_ended(self):
        process = subprocess.Popen(["sleep", "60"], start_new_session=True)
        try:
            self.assertFalse(arena.ended(process, 0.05))
        finally:
            arena.stop(process)
        self.assertIsNotNone(process.poll())

    def test_a_process_that_ends_is_seen(self):
        process = subprocess.Popen(["true"], start_new_session=True)
        try:
            self.assertTrue(arena.ended(process, 60.0))
        finally:
            arena.stop(process)


class Figures(Folder):
    def rows(self, *rates):
        return [{"mb_per_s": rate, "cpu_s_per_gb": 1.0} for rate in rates]

    def test_the_median_least_and_most(self):
        found = run.summarise(self.rows(5.0, 1.0, 3.0), True)
        self.assertEqual((found["median"], found["min"], found["max"]), (3.0, 1.0, 5.0))

    def test_one_failure_takes_our_row_and_not_a_peers(self):
        rows = self.rows(5.0, 1.0, 3.0)
        rows[0]["error"] = "differs"
        self.assertIsNone(run.summarise(rows, True))
        self.assertEqual(run.summarise(rows, False)["max"], 3.0)
        rows[1]["error"] = "differs"
        self.assertIsNone(run.summarise(rows, False))

    def test_the_speed_of_a_cipher(self):
        text = "+H:16384\n+F:25:AES-128-GCM:1769927111.11\n"
        self.assertAlmostEqual(comparisons.openssl_mb_per_s(text), 1769.927, places=3)

    def test_sizes_need_a_unit(self):
        self.assertEqual(run.parse_size("2Gi"), 2 << 30)
        for bad in ("2", "0Gi", "-1Gi", "2G", "Gi", ""):
            with self.assertRaises(run.argparse.ArgumentTypeError):
                run.parse_size(bad)

    def test_a_table_replaces_what_was_between_its_markers_only(self):
        row = {"median": 1310.72, "min": 1.0, "max": 2000.0, "cpu_s_per_gb": 0.5}
        (self.folder / "tree.json").write_text(json.dumps({
            "work": "2000 files of 64 KiB, get", "unit": "MB/s", "ours": row,
            "peers": {"rsync": row},
            "machine": {"cpu": "c", "cores": 2, "memory_gib": 1, "system": "s", "kernel": "k",
                        "disk": "d", "congestion_control": "cubic", "repetitions": 3,
                        "taken": "2003-11-17"},
        }))
        text = ("before\n<!-- figures tree -->\nold\n<!-- end tree -->\n"
                "<!-- figures other -->\nkept\n<!-- end other -->\n")
        filled = table.fill(text, self.folder)
        self.assertNotIn("old", filled)
        self.assertIn("before", filled)
        self.assertIn("kept", filled)
        self.assertIn("| **kuroshio** | 1,311 | 20,000 |", filled)
        self.assertEqual(table.fill(filled, self.folder), filled)

    def test_the_accuracy_of_a_rate_has_a_table_of_its_own(self):
        median = {"rate": 0.9991, "first_second": 0.95, "first_second_peak_100ms": 1.0,
                  "variation_10ms": 0.04, "burst_2ms_p99": 1.4, "burst_2ms_max": 2.0}
        (self.folder / "exact.json").write_text(json.dumps({
            "work": "w", "runs": 3, "cases": [{
                "target_bps": 50_000_000, "streams": 4, "median": median,
                "each": {"rate": [0.999, 0.99, 0.9991]}, "kernel_burst_2ms_p99": 1.39,
                "checks": [{"name": "rate", "ok": True}, {"name": "variation", "ok": False}],
                "lateness_p999_ns": [5_000, 7_000, 6_000], "machine_lost_frames": 0, "disturbed": [],
            }]}))
        filled = table.fill("<!-- figures exact -->\n<!-- end exact -->\n", self.folder)
        self.assertIn("| 50 Mbps, 4 | -0.090 % | -1.000 % | 0.950 |", filled)
        self.assertIn("**fails: variation**", filled)
        self.assertIn("7 us", filled)
        self.assertIn("0 of 3 runs", filled)

    def test_a_result_without_machine_is_refused(self):
        (self.folder / "tree.json").write_text('{"work": "w", "unit": "MB/s", "ours": null, "peers": {}}')
        with self.assertRaisesRegex(table.TableError, "machine"):
            table.fill("<!-- figures tree -->\n<!-- end tree -->\n", self.folder)


TOPOLOGY = """
[[host]]
name = "meta"
[[host.port]]
name = "ctl"
address = "10.9.0.1/24"
""" + "".join(f"""
[[host]]
name = "{side}-{name}"
[[host.port]]
name = "wan"
address = "10.{route}.{pair}.{number}/24"
[[host.port]]
name = "ctl"
address = "10.9.0.{control}/24"
""" for side, name, route, pair, number, control in (
    ("us", "a", 1, 1, 1, 2), ("us", "b", 1, 2, 1, 3), ("us", "c", 2, 1, 1, 4),
    ("jp", "a", 1, 1, 2, 5), ("jp", "b", 1, 2, 2, 6), ("jp", "c", 2, 1, 2, 7))) + """
[[link]]
name = "wide"
capacity = "80000000bps"
carries = ["10.1.1.0/24", "10.1.2.0/24"]
[[link]]
name = "narrow"
capacity = "8000000bps"
carries = ["10.2.1.0/24"]
"""


class Replicate(Folder):
    def network(self):
        path = self.folder / "topology.toml"
        path.write_text(TOPOLOGY)
        return replicate.Network(path)

    def test_a_rate_is_that_of_the_middle(self):
        # Slow at both ends, 100 bytes each half second between.
        samples = [(0, 0), (10, 100)] + [(10 + n / 2, 100 + 100 * n) for n in range(1, 9)] + [(30, 1000)]
        rate = replicate.share_of(samples)
        self.assertEqual((rate["bps"], rate["bytes"]), (1600, 600))
        with self.assertRaises(grid.Failed):
            replicate.share_of([(0, 0), (1, 1)])

    def test_files_are_those_of_the_experiment(self):
        network = self.network()
        self.assertEqual((network.pairs, network.sum_bps()), (["a", "b", "c"], 88_000_000))
        self.assertEqual([network.route_of(p) for p in network.pairs], ["wide", "wide", "narrow"])
        whole = 8_000_000 // 8 * 40 * 5948 // 6018
        self.assertEqual(network.file_bytes("c", 40), whole // 2)
        self.assertEqual(network.file_bytes("a", 40), 80_000_000 // 8 * 40 * 5948 // 6018 // 2 // 2)

    def test_nodes_see_each_other_over_the_routes(self):
        network = self.network()
        self.assertIn("10.1.2.2 jp-b\n", network.names("us-b"))
        self.assertIn("10.9.0.1 meta\n", network.names("us-b"))
        self.assertIn("10.9.0.6 jp-b\n", network.names("meta"))
        self.assertNotIn("10.1.", network.names("meta"))


if __name__ == "__main__":
    unittest.main()
