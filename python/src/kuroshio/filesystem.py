"""`kuroshio://` for fsspec.

    kuroshio://HOST:PORT/path   at this gateway
    kuroshio:///path, /path     at the gateway of `url=` or $KUROSHIO_GATEWAY

What is written is gathered in a local temporary file and sent when it is closed: a file of the grid gets its content
in one step. Listings are not cached.
"""

from __future__ import annotations

import io
import os
import tempfile
from datetime import datetime, timezone
from typing import Any

from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem
from fsspec.utils import isfilelike, stringify_path

from kuroshio.client import Client, Entry

# What is written stays in memory up to this size, bytes.
_MEMORY_BYTES = 8 << 20


class KuroshioFileSystem(AbstractFileSystem):
    """Files of a grid.

    url, ticket, cafile: see `kuroshio.Client`
    auto_mkdir: writing makes the directories above [default: as most remote file systems of fsspec, yes]
    """

    protocol = "kuroshio"
    root_marker = "/"

    def __init__(
        self,
        url: str | None = None,
        ticket: str | None = None,
        cafile: str | None = None,
        auto_mkdir: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.client = Client(url, ticket, cafile)
        self.auto_mkdir = auto_mkdir

    # ---- paths

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(p) for p in path]
        path = stringify_path(path)
        if path.startswith("kuroshio://"):
            _, _, path = path.removeprefix("kuroshio://").partition("/")
        elif path.startswith("kuroshio::"):
            path = path.removeprefix("kuroshio::")
        return "/" + path.strip("/")

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, str]:
        authority = path.removeprefix("kuroshio://").partition("/")[0] if path.startswith("kuroshio://") else ""
        return {"url": f"https://{authority}"} if authority else {}

    @classmethod
    def _parent(cls, path: str) -> str:
        return cls._strip_protocol(path).rpartition("/")[0] or "/"

    @property
    def fsid(self) -> str:
        return f"kuroshio-{self.client.url}"

    # ---- names

    @staticmethod
    def _info(entry: Entry) -> dict[str, Any]:
        return {
            "name": entry.path,
            "size": entry.size_bytes,
            "type": "directory" if entry.is_dir else "file",
            "mtime": entry.modified_unix_s,
            "etag": entry.etag,
        }

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        return self._info(self.client.stat(self._strip_protocol(path)))

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        path = self._strip_protocol(path)
        try:
            entries = self.client.list(path)
        except NotADirectoryError:
            entries = [self.client.stat(path)]
        return [self._info(e) if detail else e.path for e in entries]

    def exists(self, path: str, **kwargs: Any) -> bool:
        return self.client.exists(self._strip_protocol(path))

    def created(self, path: str) -> datetime:
        """Of an object store's sense: when the content became what it is."""
        return self.modified(path)

    def modified(self, path: str) -> datetime:
        return datetime.fromtimestamp(self.info(path)["mtime"] or 0, tz=timezone.utc)

    def checksum(self, path: str) -> str:
        """BLAKE3 of the content, hexadecimal."""
        return self.client.checksum(self._strip_protocol(path))

    def ukey(self, path: str) -> str:
        return self.info(path)["etag"]

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        path = self._strip_protocol(path)
        if create_parents and self._parent(path) != "/":
            self.client.make_dir(self._parent(path), parents=True)
        self.client.make_dir(path)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        path = self._strip_protocol(path)
        if not exist_ok and self.exists(path):
            raise FileExistsError(path)
        if path != "/":
            self.client.make_dir(path, parents=True)

    def rmdir(self, path: str) -> None:
        path = self._strip_protocol(path)
        if not self.client.stat(path).is_dir:
            raise NotADirectoryError(path)
        self.client.remove(path)

    def rm_file(self, path: str) -> None:
        self.client.remove(self._strip_protocol(path))

    _rm = rm_file

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        if maxdepth is not None:
            super().rm(path, recursive=recursive, maxdepth=maxdepth)
            return
        for found in self.expand_path(path):
            self.client.remove(found, recursive=recursive)

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.isdir(path1):
            self.makedirs(path2, exist_ok=True)
            return
        self._make_parents(path2)
        self.client.copy(path1, path2)

    def mv_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        """Renames one file or directory."""
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        self._make_parents(path2)
        self.client.move(path1, path2)

    def mv(
        self, path1: Any, path2: Any, recursive: bool = False, maxdepth: int | None = None, **kwargs: Any
    ) -> None:
        """Renames a single file in one step; what is more than that is copied and removed."""
        single = isinstance(path1, str) and isinstance(path2, str) and not path2.endswith("/")
        if single and not _has_magic(path1) and self.isfile(path1) and not self.isdir(path2):
            if self._strip_protocol(path1) != self._strip_protocol(path2):
                self.mv_file(path1, path2)
            return
        super().mv(path1, path2, recursive=recursive, maxdepth=maxdepth, **kwargs)

    rename = mv

    def _make_parents(self, path: str) -> None:
        parent = self._parent(path)
        if self.auto_mkdir and parent != "/" and not self.exists(parent):
            self.client.make_dir(parent, parents=True)

    # ---- content

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        path = self._strip_protocol(path)
        start = start or 0
        if start < 0 or (end is not None and end < 0):
            size = self.info(path)["size"]
            start = max(0, size + start) if start < 0 else start
            end = size + end if end is not None and end < 0 else end
        return self.client.read(path, start, end)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        path = self._strip_protocol(path)
        self._make_parents(path)
        self.client.put(path, bytes(value), exclusive=mode == "create")

    def put_file(
        self, lpath: str, rpath: str, callback: Any = DEFAULT_CALLBACK, mode: str = "overwrite", **kwargs: Any
    ) -> None:
        if os.path.isdir(lpath):
            self.makedirs(rpath, exist_ok=True)
            return
        rpath = self._strip_protocol(rpath)
        self._make_parents(rpath)
        with open(lpath, "rb") as source:
            size = os.fstat(source.fileno()).st_size
            callback.set_size(size)
            self.client.put(rpath, source, exclusive=mode == "create")
            callback.absolute_update(size)

    def get_file(
        self, rpath: str, lpath: Any = None, callback: Any = DEFAULT_CALLBACK, outfile: Any = None, **kwargs: Any
    ) -> None:
        rpath = self._strip_protocol(rpath)
        if outfile is None and isfilelike(lpath):
            outfile = lpath
        if outfile is not None:
            callback.absolute_update(self.client.get(rpath, outfile))
            return
        info = self.info(rpath)
        if info["type"] == "directory":
            os.makedirs(lpath, exist_ok=True)
            return
        callback.set_size(info["size"])
        os.makedirs(os.path.dirname(os.path.abspath(lpath)), exist_ok=True)
        callback.absolute_update(self.client.get(rpath, lpath))

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        if mode == "rb":
            return KuroshioReader(self, path, mode, block_size or "default", cache_options=cache_options, **kwargs)
        if mode == "xb" and self.exists(path):
            raise FileExistsError(path)
        if mode in ("wb", "xb", "ab"):
            return KuroshioWriter(self, path, mode, autocommit)
        raise ValueError(f"mode {mode!r}: rb, wb, xb and ab are valid; content is never changed in place")

    # ---- where

    def where(self, path: str) -> dict[str, Any]:
        """See `kuroshio.Client.where`."""
        return self.client.where(self._strip_protocol(path))

    def local_path(self, path: str, fragment: int | None = None, folder: str | None = None) -> str:
        """See `kuroshio.Client.local_path`."""
        return os.fspath(self.client.local_path(self._strip_protocol(path), fragment, folder))


class KuroshioReader(AbstractBufferedFile):
    """A file that is read in blocks."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        return self.fs.client.read(self.path, start, end)


class KuroshioWriter(io.IOBase):
    """A file that gets new content when it is closed, or when its transaction ends.

    If the `with` block that writes it ends by an exception, nothing is sent.
    """

    def __init__(self, fs: KuroshioFileSystem, path: str, mode: str, autocommit: bool) -> None:
        self.fs, self.path, self.mode, self.autocommit = fs, path, mode, autocommit
        self._spool = tempfile.SpooledTemporaryFile(max_size=_MEMORY_BYTES)
        if mode == "ab" and fs.exists(path):
            fs.client.get(path, self._spool)

    @property
    def name(self) -> str:
        return self.path

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def tell(self) -> int:
        return self._spool.tell()

    def write(self, data: Any) -> int:
        if self.closed:
            raise ValueError("I/O operation on closed file.")
        return self._spool.write(data)

    def flush(self, force: bool = False) -> None:
        """Nothing is sent before the end."""

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        if self.autocommit:
            self.commit()

    def commit(self) -> None:
        """Sends the content."""
        with self._spool:
            self._spool.seek(0)
            self.fs._make_parents(self.path)
            self.fs.client.put(self.path, self._spool, exclusive=self.mode == "xb")

    def discard(self) -> None:
        """Gives the content up."""
        super().close()
        self._spool.close()

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        if kind is not None and self.autocommit:
            self.discard()
        else:
            self.close()

    def __del__(self) -> None:
        # Without an end nothing is sent.
        self._spool.close()


def _has_magic(path: str) -> bool:
    return any(c in path for c in "*?[")
