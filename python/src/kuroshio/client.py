"""Client of a grid's gateway: WebDAV (RFC 4918) over one kept connection per thread.

    Client ──https, Authorization: Bearer TOKEN──> gateway ──> metadata service, nodes

Content that is sent is published whole and durable, or not at all. Content that is read whole was compared by the
gateway with the digest that the catalog knows; the length is compared here.

Errors are Python's own: FileNotFoundError, FileExistsError, PermissionError, NotADirectoryError and so on, with the
gateway's sentence.
"""

from __future__ import annotations

import base64
import errno
import http.client
import io
import json
import os
import ssl
import tempfile
import threading
import time
import urllib.parse
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import BinaryIO, Iterator

# Bytes that are read and written at a time.
PIECE_BYTES = 1 << 20
# Longest silence of the gateway, seconds; it flushes content before it answers.
SILENCE_S = 150.0
# A request that found the gateway busy (503) is sent again so often, and after so long, seconds.
BUSY_TRIES = 5
BUSY_PAUSE_S = 1.0

_PROPERTIES = (
    b'<?xml version="1.0" encoding="utf-8"?><D:propfind xmlns:D="DAV:"><D:prop><D:resourcetype/>'
    b"<D:getcontentlength/><D:getlastmodified/><D:getetag/></D:prop></D:propfind>"
)
_DAV = "{DAV:}"


@dataclass(frozen=True)
class Entry:
    """What lies at a path."""

    path: str
    is_dir: bool
    size_bytes: int
    # Seconds since 1970.
    modified_unix_s: float | None
    # Names this version of the content.
    etag: str | None


def read_token(ticket: str | os.PathLike[str]) -> str:
    """The token of a ticket: the ticket's line itself, or a file that holds it."""
    text = os.fspath(ticket)
    if not text.startswith("kuroshio1,"):
        text = Path(text).read_text(encoding="utf-8")
    parts = text.strip().split(",")
    if len(parts) != 4 or parts[0] != "kuroshio1":
        raise ValueError("not a ticket: one line `kuroshio1,HOST:PORT,sha256//PIN,TOKEN` is valid")
    return parts[3]


class Client:
    """A grid as one user sees it.

    url: `https://HOST:PORT` of the gateway [default: $KUROSHIO_GATEWAY]
    ticket: a ticket's line, or the file that holds it [default: $KUROSHIO_TICKET]; none where the gateway has guests
    cafile: the gateway's `cert.pem`, if no public authority has signed it [default: $KUROSHIO_CA]

    May be used from many threads, and pickled: connections are made anew, the ticket's line goes along.
    """

    def __init__(
        self,
        url: str | None = None,
        ticket: str | os.PathLike[str] | None = None,
        cafile: str | os.PathLike[str] | None = None,
    ) -> None:
        url = url or os.environ.get("KUROSHIO_GATEWAY")
        if not url:
            raise ValueError("no gateway: give url='https://HOST:PORT', or set KUROSHIO_GATEWAY")
        parts = urllib.parse.urlsplit(url)
        if parts.scheme != "https" or not parts.hostname or parts.path.strip("/"):
            raise ValueError(f"{url!r} is not a gateway: https://HOST:PORT is valid")
        self.url = f"https://{parts.netloc}"
        self._host, self._port = parts.hostname, parts.port or 443
        ticket = ticket if ticket is not None else os.environ.get("KUROSHIO_TICKET")
        self._token = read_token(ticket) if ticket else None
        self._ca = os.fspath(cafile) if cafile else os.environ.get("KUROSHIO_CA")
        self._tls = ssl.create_default_context(cafile=self._ca)
        self._kept = threading.local()

    def __getstate__(self) -> dict:
        return {"url": self.url, "token": self._token, "ca": self._ca}

    def __setstate__(self, state: dict) -> None:
        Client.__init__(self, state["url"], ticket="", cafile=state["ca"])
        self._token = state["token"]

    # ---- requests

    def _connection(self, fresh: bool) -> http.client.HTTPSConnection:
        connection = getattr(self._kept, "connection", None)
        if connection is None or fresh:
            if connection is not None:
                connection.close()
            connection = http.client.HTTPSConnection(
                self._host, self._port, timeout=SILENCE_S, context=self._tls
            )
            self._kept.connection = connection
        return connection

    def _request(
        self,
        method: str,
        path: str,
        headers: dict[str, str] | None = None,
        body: bytes | BinaryIO | None = None,
    ) -> http.client.HTTPResponse:
        """Sends a request; refusals become exceptions. The answer's body must be read to its end."""
        fields = dict(headers or {})
        if self._token:
            fields["Authorization"] = f"Bearer {self._token}"
        start = body.tell() if body is not None and not isinstance(body, bytes) else 0
        for attempt in range(BUSY_TRIES):
            kept = getattr(self._kept, "connection", None) is not None
            try:
                answer = self._send(method, path, fields, body, fresh=False)
            except (http.client.BadStatusLine, http.client.ResponseNotReady, ConnectionError, ssl.SSLError):
                # The gateway closes connections that were idle: then, and only then, once more.
                if not kept:
                    raise
                _rewind(body, start)
                answer = self._send(method, path, fields, body, fresh=True)
            if answer.status != 503 or attempt + 1 == BUSY_TRIES:
                break
            answer.read()
            _rewind(body, start)
            time.sleep(BUSY_PAUSE_S)
        if answer.status >= 400:
            raise _error(answer.status, answer.read(4096).decode("utf-8", "replace").strip(), path, self._kept)
        return answer

    def _send(
        self, method: str, path: str, fields: dict[str, str], body: bytes | BinaryIO | None, fresh: bool
    ) -> http.client.HTTPResponse:
        connection = self._connection(fresh)
        try:
            try:
                connection.request(method, quote(path), body=body, headers=fields)
            except (BrokenPipeError, ConnectionResetError, ssl.SSLError):
                # The gateway may have refused before all of the body came: then its answer says why.
                if connection.sock is None:
                    raise
            return connection.getresponse()
        except BaseException:
            # What state it is in nobody knows.
            connection.close()
            self._kept.connection = None
            raise

    def _done(self, method: str, path: str, headers: dict[str, str] | None = None, body: bytes | None = None) -> None:
        self._request(method, path, headers, body).read()

    # ---- names

    def stat(self, path: str) -> Entry:
        """What lies at `path` (links are followed)."""
        return next(self._propfind(path, "0"))

    def list(self, path: str) -> list[Entry]:
        """The entries of a directory, sorted by name."""
        found = list(self._propfind(path, "1"))
        if not found or not found[0].is_dir:
            raise NotADirectoryError(errno.ENOTDIR, "not a directory", path)
        return sorted(found[1:], key=lambda e: e.path)

    def _propfind(self, path: str, depth: str) -> Iterator[Entry]:
        answer = self._request("PROPFIND", path, {"Depth": depth, "Content-Type": "application/xml"}, _PROPERTIES)
        for response in ElementTree.fromstring(answer.read()).iter(f"{_DAV}response"):
            yield _entry(response)

    def exists(self, path: str) -> bool:
        """Whether anything lies at `path`."""
        try:
            self.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def make_dir(self, path: str, parents: bool = False) -> None:
        """Makes a directory; with `parents` also those above it, and then it may be there."""
        if not parents:
            return self._done("MKCOL", path)
        above = ""
        for name in plain(path).strip("/").split("/"):
            above = f"{above}/{name}"
            try:
                self._done("MKCOL", above)
            except FileExistsError:
                if not self.stat(above).is_dir:
                    raise
        return None

    def remove(self, path: str, recursive: bool = False) -> None:
        """Removes a file, an empty directory or (`recursive`) all below it."""
        self._done("DELETE", path, None if recursive else {"Depth": "0"})

    def move(self, source: str, destination: str, overwrite: bool = True) -> None:
        """Renames; a file takes the place of another one in one step."""
        self._done("MOVE", source, self._to(destination, overwrite))

    def copy(self, source: str, destination: str, overwrite: bool = True) -> None:
        """Copies inside the grid."""
        self._done("COPY", source, self._to(destination, overwrite))

    def _to(self, destination: str, overwrite: bool) -> dict[str, str]:
        return {"Destination": self.url + quote(destination), "Overwrite": "T" if overwrite else "F"}

    # ---- content

    def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        """Bytes `start` to `end` (exclusive; none is the end of the file)."""
        if end is not None and end <= start:
            return b""
        sink = io.BytesIO()
        self._read_into(sink, path, start, end)
        return sink.getvalue()

    def get(self, path: str, to: BinaryIO | str | os.PathLike[str]) -> int:
        """Fetches a file whole, into a stream or a local path (which appears whole or not at all); its size."""
        if not isinstance(to, (str, os.PathLike)):
            return self._read_into(to, path, 0, None)
        target = Path(to)
        handle, aside = tempfile.mkstemp(prefix=f".{target.name[:100]}.", suffix=".part", dir=target.parent)
        try:
            with os.fdopen(handle, "wb") as sink:
                size = self._read_into(sink, path, 0, None)
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(aside, 0o666 & ~umask)
            os.replace(aside, target)
        except BaseException:
            os.unlink(aside)
            raise
        return size

    def _read_into(self, sink: BinaryIO, path: str, start: int, end: int | None) -> int:
        headers = {}
        if start > 0 or end is not None:
            headers["Range"] = f"bytes={start}-{'' if end is None else end - 1}"
        try:
            answer = self._request("GET", path, headers)
        except _NoSuchRange:
            return 0
        size = 0
        try:
            while piece := answer.read(PIECE_BYTES):
                sink.write(piece)
                size += len(piece)
        except http.client.IncompleteRead as e:
            raise OSError(errno.EIO, f"the gateway broke off after {size} bytes", path) from e
        if answer.length:
            raise OSError(errno.EIO, f"the gateway broke off after {size} bytes, {answer.length} are missing", path)
        return size

    def put(self, path: str, content: bytes | BinaryIO, exclusive: bool = False) -> Entry:
        """Gives `path` this content; it is durable when this returns. `exclusive`: it must not be there yet.

        A stream must be able to seek; what stands from its position on is sent.
        """
        headers = {"If-None-Match": "*"} if exclusive else {}
        if isinstance(content, bytes):
            size = len(content)
        else:
            start = content.tell()
            content.seek(0, os.SEEK_END)
            size = content.tell() - start
            content.seek(start)
        headers["Content-Length"] = str(size)
        headers["Content-Type"] = "application/octet-stream"
        answer = self._request("PUT", path, headers, content)
        answer.read()
        return Entry(plain(path), False, size, time.time(), answer.headers.get("ETag"))

    def checksum(self, path: str, kind: str = "blake3") -> str:
        """A checksum as hexadecimal digits: blake3, sha-256, md5, crc32c or adler."""
        answer = self._request("HEAD", path, {"Want-Repr-Digest": f"{kind}=10"})
        answer.read()
        name, _, value = (answer.headers.get("Repr-Digest") or "").partition("=:")
        if name != kind:
            raise ValueError(f"{kind!r}: the gateway knows blake3, sha-256, md5, crc32c and adler")
        return base64.b64decode(value.rstrip(":")).hex()

    # ---- where

    def where(self, path: str) -> dict:
        """Size, rule and replicas of each fragment: `fragments[n].replicas[m].node`, `.site`, `.host`, `.up`."""
        return json.loads(self._request("GET", "/.kuroshio/where" + plain(path)).read())

    def nodes(self, path: str, fragment: int | None = None) -> list[str]:
        """Nodes that are up and hold a valid replica of all of `path`, or of one fragment; most useful first."""
        fragments = self._fragments(path, fragment)
        held = [
            {r["node"] for r in f["replicas"] if r["up"] and r["state"] == "valid"} for f in fragments
        ]
        first = [r["node"] for f in fragments[:1] for r in f["replicas"]]
        return [node for node in first if all(node in nodes for nodes in held)]

    def _fragments(self, path: str, fragment: int | None) -> list[dict]:
        fragments = self.where(path)["fragments"]
        if fragment is None:
            return fragments
        if not 0 <= fragment < len(fragments):
            raise IndexError(f"{path}: fragment {fragment} of {len(fragments)}")
        return [fragments[fragment]]

    def local_path(
        self, path: str, fragment: int | None = None, folder: str | os.PathLike[str] | None = None
    ) -> Path:
        """A local file with the content of `path`, or of one fragment: fetched into `folder` unless it is there.

        The file's name has the content's digest or tag, so that another version of the content is another file.
        [default folder: $KUROSHIO_CACHE, else `kuroshio-UID` among the temporary files]
        """
        folder = Path(folder or os.environ.get("KUROSHIO_CACHE") or _default_cache())
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        name = plain(path).rsplit("/", 1)[-1][-100:]
        if fragment is None:
            tag = (self.stat(path).etag or "").strip('"')
            target = folder / f"{tag}.{name}"
            if not target.exists():
                self.get(path, target)
            return target
        found = self._fragments(path, fragment)[0]
        target = folder / f"{found['blake3']}.{name}.{fragment}"
        if target.exists():
            return target
        handle, aside = tempfile.mkstemp(prefix=".part.", dir=folder)
        try:
            with os.fdopen(handle, "wb") as sink:
                begin = found["offset_bytes"]
                size = self._read_into(sink, path, begin, begin + found["size_bytes"]) if found["size_bytes"] else 0
            if size != found["size_bytes"]:
                raise OSError(errno.EIO, f"{size} bytes of {found['size_bytes']}", path)
            os.replace(aside, target)
        except BaseException:
            os.unlink(aside)
            raise
        return target

    def close(self) -> None:
        """Ends this thread's connection."""
        connection = getattr(self._kept, "connection", None)
        if connection is not None:
            connection.close()
            self._kept.connection = None


class _NoSuchRange(Exception):
    """416: the file ends before the range begins."""


def _error(status: int, text: str, path: str, kept: threading.local) -> Exception:
    # A refusal may leave a body unsent: the connection is of no more use.
    connection = getattr(kept, "connection", None)
    if connection is not None:
        connection.close()
        kept.connection = None
    if status == 416:
        return _NoSuchRange()
    text = text or f"status {status}"
    codes = {
        400: errno.EINVAL,
        401: errno.EACCES,
        403: errno.EACCES,
        404: errno.ENOENT,
        405: errno.EEXIST if text.startswith("MKCOL") else errno.EISDIR,
        409: errno.ENOTEMPTY if text.startswith("DELETE") or "not empty" in text else errno.ENOENT,
        412: errno.EEXIST,
        414: errno.ENAMETOOLONG,
        423: errno.EBUSY,
        507: errno.ENOSPC,
        508: errno.ELOOP,
    }
    return OSError(codes.get(status, errno.EIO), text, path)


def _rewind(body: bytes | BinaryIO | None, start: int) -> None:
    if body is not None and not isinstance(body, bytes):
        body.seek(start)


def _default_cache() -> str:
    return os.path.join(tempfile.gettempdir(), f"kuroshio-{os.getuid()}")


def plain(path: str) -> str:
    """A path with one slash at its beginning and none at its end."""
    return "/" + path.strip("/")


def quote(path: str) -> str:
    """A path for a request; names are UTF-8."""
    return urllib.parse.quote("/" + path.lstrip("/"), safe="/", errors="surrogateescape")


def _entry(response: ElementTree.Element) -> Entry:
    href = response.findtext(f"{_DAV}href") or "/"
    path = urllib.parse.unquote(urllib.parse.urlsplit(href).path, errors="surrogateescape")
    found: dict[str, ElementTree.Element] = {}
    for propstat in response.iter(f"{_DAV}propstat"):
        if " 200 " in (propstat.findtext(f"{_DAV}status") or ""):
            for prop in propstat.iter(f"{_DAV}prop"):
                found.update({child.tag.removeprefix(_DAV): child for child in prop})
    text = {name: element.text for name, element in found.items()}
    is_dir = "resourcetype" in found and found["resourcetype"].find(f"{_DAV}collection") is not None
    modified = text.get("getlastmodified")
    return Entry(
        path=plain(path),
        is_dir=is_dir,
        size_bytes=0 if is_dir else int(text.get("getcontentlength") or 0),
        modified_unix_s=parsedate_to_datetime(modified).timestamp() if modified else None,
        etag=text.get("getetag"),
    )
