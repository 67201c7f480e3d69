"""The input of the comparisons: one big file and one tree of small ones, random bytes."""

import os
import shutil
import subprocess

BIG = "big"
TREE = "tree"
PACED = "paced"
BLOCK_BYTES = 4 << 20
FILES_PER_FOLDER = 100


def random_file(path, length):
    with open(path, "wb") as file:
        left = length
        while left:
            left -= file.write(os.urandom(min(left, BLOCK_BYTES)))


def make_big(paths, length):
    path = paths.src / BIG
    if not path.exists():
        random_file(path, length)


def make_paced(paths, length):
    path = paths.src / PACED
    if not path.exists():
        random_file(path, length)


def tree_files(files):
    """The names of the tree's files, below its top."""
    return [f"d{number // FILES_PER_FOLDER:03}/f{number:05}" for number in range(files)]


def make_tree(paths, files, length):
    top = paths.src / TREE
    if top.exists():
        return
    top.mkdir()
    for name in tree_files(files):
        (top / name).parent.mkdir(exist_ok=True)
        random_file(top / name, length)


def check_space(folder, needed):
    """None, or why `needed` bytes do not fit under `folder`."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        return f"{folder} has {free / 1e9:.1f} GB free, {needed / 1e9:.1f} GB are needed"
    return None


def file_system(folder):
    """The type of the file system that holds `folder`, such as ext4."""
    asked = subprocess.run(["findmnt", "-n", "-o", "FSTYPE", "-T", str(folder)],
                           capture_output=True, text=True)
    # Where mounts are stacked, the last line is the one on top.
    return (asked.stdout.split() or ["unknown"])[-1]
