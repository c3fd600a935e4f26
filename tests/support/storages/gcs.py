"""fake-gcs-server, an emulator of Google Cloud Storage, over a folder of this machine, behind a translator.

    with gcs_buckets(find_gcs_server(say), tmp_path / "served") as server:
        server.address("prefix")          gs://bucket/prefix?endpoint=http://127.0.0.1:PORT
        server.account(path)              writes the key file of a service account that the server knows
        server.stop(); server.start()     an outage; the objects stay

The emulator lists, reads and removes by Google's XML interface, by which obstore speaks, but writes by the JSON
interface alone. The translator writes for it: the emulator decides whether an object is new (`ifGenerationMatch`). It
joins the parts of large uploads, and compares the signature of each request's token, which the emulator does not.

Rules of this file: no address is pinned; loopback only. The translator answers as Google documents it, so a difference
between the document and the real service shows in no test.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import json
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.etree import ElementTree

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from standfast.ops.shared.loopback import HOST, free_port
from standfast.ops.tools.fetch_tool import run_tool
from support.fetched import ONE_PROCESSOR, QUICK, Say, Tool, digest_of, ensure_go, fetched
from support.http_server import listening
from support.server_process import start_server

FAKE_GCS = "github.com/fsouza/fake-gcs-server@v1.56.1"
BUCKET, ACCOUNT = "bucket", "tester@tests.example"
START_S, WITHIN_S = 60.0, 60.0
HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "host"})


class GcsBuckets:
    """One server behind its translator; buckets are made by `make`."""

    def __init__(self, tool: Tool, served: Path) -> None:
        served.mkdir(parents=True)
        self.port = 0  # the translator's
        self.behind = free_port()
        self._key = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
        self._command = [
            str(tool.program),
            *("-scheme", "http", "-host", HOST, "-port", str(self.behind), "-public-host", f"{HOST}:{self.behind}"),
            *("-backend", "filesystem", "-filesystem-root", str(served), "-log-level", "error"),
        ]
        self._process: subprocess.Popen[bytes] | None = None
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.lock = threading.Lock()

    @property
    def host(self) -> str:
        """Host and port."""
        return f"{HOST}:{self.port}"

    def address(self, prefix: str, *, host: str | None = None, bucket: str = BUCKET) -> str:
        """The address of a prefix in a bucket; `host` is that of a proxy in front of the server."""
        return f"gs://{bucket}/{prefix}?endpoint=http://{host or self.host}"

    def start(self) -> None:
        """Start the server, and wait until it listens."""
        self._process = start_server(self._command, self.behind, START_S)

    def stop(self) -> None:
        """End the server; its objects stay, and uploads in parts that were under way do not."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        with self.lock:
            self.uploads.clear()

    def make(self, bucket: str = BUCKET) -> None:
        """Make a bucket."""
        body = json.dumps({"name": bucket}).encode()
        status, said, _ = self.ask("POST", "/storage/v1/b?project=tests", body, {"Content-Type": "application/json"})
        assert status == 200, f"making {bucket} was answered with {status}: {said!r}"

    def account(self, path: Path, *, known: bool = True) -> Path:
        """Write the key file of a service account; `known` False: with another key than the server's."""
        key = self._key if known else rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
        text = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ).decode()
        shape = {"type": "service_account", "client_email": ACCOUNT, "private_key": text, "private_key_id": "1"}
        path.write_text(json.dumps(shape), encoding="utf-8")
        return path

    def ask(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str]
    ) -> tuple[int, bytes, list[tuple[str, str]]]:
        """A request to the emulator itself. Raises OSError while it is stopped."""
        connection = http.client.HTTPConnection(HOST, self.behind, timeout=WITHIN_S)
        with contextlib.closing(connection):
            connection.request(method, path, body, dict(headers))
            answer = connection.getresponse()
            return answer.status, answer.read(), answer.getheaders()

    def knows(self, authorization: str) -> bool:
        """Whether a request's token is signed by the account's key."""
        scheme, _, token = authorization.partition(" ")
        signed, _, signature = token.rpartition(".")
        if scheme != "Bearer" or signed.count(".") != 1:
            return False
        try:
            self._key.public_key().verify(
                base64.urlsafe_b64decode(signature + "=="), signed.encode(), padding.PKCS1v15(), hashes.SHA256()
            )
        except (InvalidSignature, ValueError):
            return False
        claims = json.loads(base64.urlsafe_b64decode(signed.partition(".")[2] + "=="))
        return bool(claims["iss"] == ACCOUNT and claims["exp"] > time.time())


@contextmanager
def gcs_buckets(tool: Tool, served: Path) -> Iterator[GcsBuckets]:
    """Serve a bucket."""
    server = GcsBuckets(tool, served)

    class Handler(_Translator):
        buckets = server

    with listening(Handler) as server.port:
        server.start()
        try:
            server.make()
            yield server
        finally:
            server.stop()


class _Translator(BaseHTTPRequestHandler):
    buckets: GcsBuckets
    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if not self.buckets.knows(self.headers.get("Authorization", "")):
            self._refuse(403, "AccessDenied")
            return
        parts = urlsplit(self.path)
        bucket, _, name = parts.path.lstrip("/").partition("/")
        asked = parse_qs(parts.query, keep_blank_values=True)
        try:
            if self.buckets.ask("GET", f"/storage/v1/b/{bucket}", b"", {})[0] == 404:
                self._refuse(404, "NoSuchBucket")
            elif self.command in ("GET", "HEAD") or (self.command == "DELETE" and "uploadId" not in asked):
                self._pass(body)
            elif "uploads" in asked or "uploadId" in asked:
                self._in_parts(bucket, name, asked, body)
            else:
                self._write(bucket, name, body)
        except OSError:
            self.close_connection = True  # the client sees a broken connection, as without a translator

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer

    def _pass(self, body: bytes) -> None:
        headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP_BY_HOP}
        status, said, given = self.buckets.ask(self.command, self.path, body, headers)
        if status == 404:
            self._refuse(404, "NoSuchKey")
        else:
            self._send(status, given, said)

    def _write(self, bucket: str, name: str, body: bytes) -> None:
        """An object, whole. Google's condition that it is new is the emulator's, by its own name."""
        query = f"uploadType=media&name={quote(unquote(name), safe='')}"
        if (generation := self.headers.get("x-goog-if-generation-match")) is not None:
            query += f"&ifGenerationMatch={generation}"
        headers = {"Content-Type": self.headers.get("Content-Type", "application/octet-stream")}
        status, said, _ = self.buckets.ask("POST", f"/upload/storage/v1/b/{bucket}/o?{query}", body, headers)
        if status == 200:
            self._send(200, [("ETag", f'"{json.loads(said)["generation"]}"')], b"")
        else:
            self._refuse(status, "PreconditionFailed" if status == 412 else "InternalError")

    def _in_parts(self, bucket: str, name: str, asked: dict[str, list[str]], body: bytes) -> None:
        """An upload in parts: begun, a part, completed or broken off."""
        uploads, lock = self.buckets.uploads, self.buckets.lock
        if "uploads" in asked:
            begun = uuid.uuid4().hex
            with lock:
                uploads[begun] = {}
            text = f"<Bucket>{bucket}</Bucket><Key>{name}</Key><UploadId>{begun}</UploadId>"
            self._send_xml(f"<InitiateMultipartUploadResult>{text}</InitiateMultipartUploadResult>")
            return
        upload = asked["uploadId"][0]
        with lock:
            held = uploads.get(upload)
        if held is None:
            self._refuse(404, "NoSuchUpload")
        elif self.command == "PUT":
            with lock:
                held[int(asked["partNumber"][0])] = body
            self._send(200, [("ETag", _tag(body))], b"")
        elif self.command == "DELETE":
            with lock:
                uploads.pop(upload, None)
            self._send(204, [], b"")
        else:
            named = [
                (int(one.findtext("PartNumber", "0")), one.findtext("ETag")) for one in ElementTree.fromstring(body)
            ]
            with lock:
                good = named and all(number in held and _tag(held[number]) == tag for number, tag in named)
                whole = b"".join(held[number] for number, _ in named) if good else b""
            if not good:
                self._refuse(400, "InvalidPart")
                return
            self._complete(bucket, name, upload, whole)

    def _complete(self, bucket: str, name: str, upload: str, whole: bytes) -> None:
        query = f"uploadType=media&name={quote(unquote(name), safe='')}"
        headers = {"Content-Type": "application/octet-stream"}
        status, said, _ = self.buckets.ask("POST", f"/upload/storage/v1/b/{bucket}/o?{query}", whole, headers)
        if status != 200:
            self._refuse(status, "InternalError")
            return
        with self.buckets.lock:
            self.buckets.uploads.pop(upload, None)
        text = f'<Bucket>{bucket}</Bucket><Key>{name}</Key><ETag>"{json.loads(said)["generation"]}"</ETag>'
        self._send_xml(f"<CompleteMultipartUploadResult>{text}</CompleteMultipartUploadResult>")

    def _refuse(self, status: int, code: str) -> None:
        text = f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{code}</Code><Message>.</Message></Error>".encode()
        self._send(status, [("Content-Type", "application/xml; charset=UTF-8")], text)

    def _send_xml(self, text: str) -> None:
        content = f"<?xml version='1.0' encoding='UTF-8'?>{text}".encode()
        self._send(200, [("Content-Type", "application/xml; charset=UTF-8")], content)

    def _send(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        length = next((value for name, value in headers if name.lower() == "content-length"), str(len(body)))
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in HOP_BY_HOP:
                self.send_header(name, value)
        # The answer to HEAD has the length of a body that does not follow.
        self.send_header("Content-Length", length if self.command == "HEAD" else str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *_args: object) -> None:
        """Log nothing."""


def _tag(content: bytes) -> str:
    return f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"'


def find_gcs_server(say: Say) -> Tool:
    """The emulator, compiled. Raises Unavailable."""

    def make(folder: Path) -> Path:
        target = folder / "site"
        target.mkdir()
        environment = {"GOTOOLCHAIN": "local", "GOBIN": str(target), **ONE_PROCESSOR}
        command = [ensure_go(folder), "install", *QUICK, FAKE_GCS]
        run_tool("making fake-gcs-server", command, cwd=folder, environment=environment)
        return target

    home = fetched("fake-gcs-server", digest_of(FAKE_GCS, *QUICK), say, make, by="go")
    return Tool(home / "fake-gcs-server", home, {})
