"""Object storage for tests: a folder of this machine, served over HTTP as S3 serves a bucket, and counted.

    with serving(folder) as bucket:
        bucket.address("state")     s3://key:secret@bucket/state?scheme=http&endpoint_override=127.0.0.1:PORT
        bucket.given["state/app/0_0/000012.sst"]     bytes served of it so far, over all reads

Rules of this file: only the requests by which pyarrow lists, reads and writes files; loopback only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from support.http_server import listening

BUCKET = "bucket"
WHEN = "2026-01-02T03:04:05.000Z"
HTTP_WHEN = "Fri, 02 Jan 2026 03:04:05 GMT"


@dataclass
class Bucket:
    """The served folder, and counts: bytes and reads of each file, bytes of listings, and requests in all."""

    folder: Path
    port: int = 0
    given: Counter[str] = field(default_factory=Counter)
    reads: Counter[str] = field(default_factory=Counter)
    listed: int = 0
    requests: int = 0

    def address(self, path: str) -> str:
        """The address of `path` in the folder."""
        return f"s3://key:secret@{BUCKET}/{path}?scheme=http&endpoint_override=127.0.0.1:{self.port}"

    @property
    def bytes(self) -> int:
        """All bytes served."""
        return self.listed + sum(self.given.values())

    def forget(self) -> None:
        """Count from zero."""
        self.given.clear()
        self.reads.clear()
        self.listed = self.requests = 0


@contextmanager
def serving(folder: Path) -> Iterator[Bucket]:
    """Serve a folder."""
    bucket = Bucket(folder)

    class Handler(_Handler):
        served = bucket

    with listening(Handler) as bucket.port:
        yield bucket


class _Handler(BaseHTTPRequestHandler):
    served: Bucket
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        path = self._path()
        if path.is_file():
            self._answer(200, b"", {"Content-Length": str(path.stat().st_size), **_about(path)})
        else:
            self._answer(404, b"")

    def do_GET(self) -> None:
        asked = parse_qs(urlsplit(self.path).query)
        if "list-type" in asked:
            self._list(asked)
            return
        path = self._path()
        if not path.is_file():
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        content, code, headers = path.read_bytes(), 200, _about(path)
        ranged = self.headers.get("Range", "")
        if ranged:
            first, _, last = ranged.removeprefix("bytes=").partition("-")
            begin, end = int(first), min(int(last or len(content)), len(content) - 1)
            headers["Content-Range"] = f"bytes {begin}-{end}/{len(content)}"
            content, code = content[begin : end + 1], 206
        name = self._name()
        self.served.given[name] += len(content)
        self.served.reads[name] += 1
        self._answer(code, content, headers)

    def do_PUT(self) -> None:
        path = self._path()
        path.parent.mkdir(parents=True, exist_ok=True)
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if not self._name().endswith("/"):
            path.write_bytes(content)
        self._answer(200, b"", {"ETag": '"1"'})

    def _list(self, asked: dict[str, list[str]]) -> None:
        prefix, limit = asked.get("prefix", [""])[0], int(asked.get("max-keys", ["1000"])[0])
        after = asked.get("continuation-token", [""])[0]
        root = self.served.folder
        names = sorted(str(one.relative_to(root)) for one in root.rglob("*") if one.is_file())
        found = [name for name in names if name.startswith(prefix) and name > after]
        shown, more = found[:limit], len(found) > limit
        parts = [f"<IsTruncated>{str(more).lower()}</IsTruncated><KeyCount>{len(shown)}</KeyCount>"]
        parts += [f"<NextContinuationToken>{escape(shown[-1])}</NextContinuationToken>"] if more else []
        parts += [
            f"<Contents><Key>{escape(name)}</Key><LastModified>{WHEN}</LastModified>"
            f"<Size>{(root / name).stat().st_size}</Size></Contents>"
            for name in shown
        ]
        content = f'<?xml version="1.0"?><ListBucketResult>{"".join(parts)}</ListBucketResult>'.encode()
        self.served.listed += len(content)
        self._answer(200, content, {"Content-Type": "application/xml"})

    def _name(self) -> str:
        return unquote(urlsplit(self.path).path).removeprefix(f"/{BUCKET}").lstrip("/")

    def _path(self) -> Path:
        return self.served.folder / self._name()

    def _answer(self, code: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.served.requests += 1
        self.send_response(code)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *_args: Any) -> None:
        """Log nothing."""


def _about(path: Path) -> dict[str, str]:
    return {"Last-Modified": HTTP_WHEN, "ETag": f'"{path.stat().st_mtime_ns}"'}
