"""What fsspec's suite does not ask: atomic content, errors, where, whole files in several threads."""

import hashlib
import os
import pickle
import threading

import fsspec
import pytest

from kuroshio import Client, KuroshioFileSystem


@pytest.fixture
def fs(access):
    fs = KuroshioFileSystem(**access, skip_instance_cache=True)
    fs.makedirs("/t")
    yield fs
    fs.rm("/t", recursive=True)


@pytest.fixture
def client(fs):
    return fs.client


def test_urls_name_the_gateway(access):
    address = access["url"].removeprefix("https://")
    with fsspec.open(f"kuroshio://{address}/u/f.txt", "w", ticket=access["ticket"], cafile=access["cafile"]) as f:
        f.write("tere ü")
    fs, path = fsspec.core.url_to_fs(f"kuroshio://{address}/u/f.txt", ticket=access["ticket"], cafile=access["cafile"])
    assert path == "/u/f.txt" and fs.cat(path) == "tere ü".encode()
    fs.rm("/u", recursive=True)


def test_content_is_ranged_and_checked(fs):
    content = os.urandom(7_000_001)
    fs.pipe_file("/t/f", content)
    assert fs.size("/t/f") == len(content)
    assert fs.cat_file("/t/f", -10) == content[-10:]
    assert fs.cat_file("/t/f", 5, 12) == content[5:12]
    assert fs.cat_file("/t/f", 5, -1) == content[5:-1]
    assert fs.cat_file("/t/f", len(content), None) == b""
    with fs.open("/t/f", block_size=1 << 20) as f:
        f.seek(6_000_000)
        assert f.read(500) == content[6_000_000:6_000_500]
        f.seek(0)
        assert hashlib.md5(f.read()).hexdigest() == fs.client.checksum("/t/f", "md5")
    with pytest.raises(ValueError):
        fs.client.checksum("/t/f", "crc7")


def test_content_comes_whole_or_not_at_all(fs):
    fs.pipe_file("/t/f", b"old")
    with pytest.raises(RuntimeError), fs.open("/t/f", "wb") as f:
        f.write(b"new")
        raise RuntimeError
    assert fs.cat("/t/f") == b"old"
    left = fs.open("/t/f", "wb")
    left.write(b"new")
    del left
    assert fs.cat("/t/f") == b"old"
    with fs.transaction:
        with fs.open("/t/f", "wb") as f:
            f.write(b"new")
        assert fs.cat("/t/f") == b"old"
    assert fs.cat("/t/f") == b"new"
    with fs.open("/t/f", "ab") as f:
        f.write(b"er")
    assert fs.cat("/t/f") == b"newer"


def test_errors_are_pythons_own(fs, access, grid):
    with pytest.raises(FileNotFoundError):
        fs.info("/t/no")
    with pytest.raises(FileNotFoundError):
        fs.cat("/t/no")
    fs.makedirs("/t/d/e")
    with pytest.raises(FileExistsError):
        fs.mkdir("/t/d")
    with pytest.raises(OSError, match="."):
        fs.rmdir("/t/d")
    assert fs.isdir("/t/d/e")
    with pytest.raises(IsADirectoryError):
        fs.cat("/t/d")
    strict = KuroshioFileSystem(**access, auto_mkdir=False, skip_instance_cache=True)
    with pytest.raises(FileNotFoundError):
        strict.pipe_file("/t/no/f", b"x")
    alice = grid["kuroshio"]("fs", "--grid", "./g", "ticket", "alice").strip()
    other = KuroshioFileSystem(**{**access, "ticket": alice}, skip_instance_cache=True)
    with pytest.raises(PermissionError):
        other.pipe_file("/t/f", b"x")
    with pytest.raises(ValueError, match="not a ticket"):
        Client(access["url"], ticket="kuroshio1,x")
    with pytest.raises(ValueError, match="https"):
        Client("http://localhost:1")


def test_a_move_is_one_step(fs):
    fs.pipe({"/t/a": b"a", "/t/b": b"b"})
    fs.mv("/t/a", "/t/b")
    assert fs.cat("/t/b") == b"a" and not fs.exists("/t/a")
    fs.mkdir("/t/d")
    fs.mv("/t/b", "/t/d/")
    assert fs.cat("/t/d/b") == b"a" and not fs.exists("/t/b")
    fs.mv("/t/d", "/t/e", recursive=True)
    assert fs.find("/t") == ["/t/e/b"]


def test_where_and_local_path(client, tmp_path):
    client.put("/t/f", b"content")
    found = client.where("/t/f")
    assert found["size_bytes"] == 7 and found["fragments"][0]["blake3"] == client.checksum("/t/f")
    nodes = client.nodes("/t/f")
    assert nodes and nodes == client.nodes("/t/f", 0) and set(nodes) <= {"node1", "node2"}
    for fragment in (None, 0):
        local = client.local_path("/t/f", fragment, tmp_path)
        assert local.read_bytes() == b"content"
        assert client.local_path("/t/f", fragment, tmp_path) == local
    client.put("/t/f", b"other")
    assert client.local_path("/t/f", None, tmp_path).read_bytes() == b"other"
    with pytest.raises(IndexError):
        client.local_path("/t/f", 1, tmp_path)
    assert sorted(p.suffix for p in tmp_path.iterdir()) == [".0", ".f", ".f"]


def test_names_are_bytes(client):
    for name in ["a b", "ü", "%41", "#?", "a;b&c", "'\"<"]:
        client.put(f"/t/{name}", name.encode())
        assert client.read(f"/t/{name}") == name.encode()
    assert len(client.list("/t")) == 6


def test_many_threads_and_pickles(fs):
    other = pickle.loads(pickle.dumps(fs))
    wrong = []

    def work(n):
        try:
            for m in range(5):
                path = f"/t/{n}-{m}"
                fs.pipe_file(path, str(n).encode())
                if other.cat_file(path) != str(n).encode():
                    wrong.append(path)
        except Exception as e:
            wrong.append(e)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and len(fs.ls("/t")) == 40
