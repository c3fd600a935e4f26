"""A bucket of a real server that is compatible with S3, on loopback, over a folder of this machine.

    with buckets(find_s3_server(say), tmp_path / "served") as server:
        server.address("prefix")          s3://bucket/prefix?endpoint=http://127.0.0.1:PORT&region=us-east-1
        server.folder                     the bucket's objects, as files
        server.stop(); server.start()     an outage; start(OTHER) begins with other credentials
        server.ask("PUT", "versioning")   a request that sets the bucket up, signed

Rules of this file: no import of a test's library, since proof/benchmarks imports it, too. The server's process ends
with the block. Its credentials are set in the environment by the caller.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import hashlib
import hmac
import http.client
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from standfast.ops.tools.fetch_tool import run_tool
from support.fetched import ONE_PROCESSOR, QUICK, Say, Tool, digest_of, ensure_go, fetched
from support.server_process import start_server

VERSITYGW, VERSION = "github.com/versity/versitygw", "v1.8.0"
SOURCE = Path(__file__).parent / "programs/servers/gateway.go"
BUCKET, REGION = "bucket", "us-east-1"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": "a-secret-of-tests"}
OTHER_CREDENTIALS = {"AWS_ACCESS_KEY_ID": "tester-2", "AWS_SECRET_ACCESS_KEY": "the-next-secret-of-tests"}
START_S = 30.0


class Buckets:
    """One server; `folder` holds the objects of its only bucket, `versions` the former ones of a versioned bucket."""

    def __init__(self, program: Path, served: Path, *, versioned: bool = False) -> None:
        self.folder = served / BUCKET
        self.folder.mkdir(parents=True)
        self.versions = served.parent / f"versions-of-{served.name}"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        listening = ["--region", REGION, "--port", f"127.0.0.1:{self.port}", "--quiet"]
        if versioned:
            # Facts about objects are attributes of their files: beside them in a folder, the mark of a removed object
            # would stay with the next one of that key.
            storing = ["posix", "--versioning-dir", str(_made(self.versions))]
        else:
            storing = ["posix", "--sidecar", str(_made(served.parent / f"meta-of-{served.name}"))]
        self._program = str(program)
        self._options = [*listening, *storing, str(served)]
        self._credentials: Mapping[str, str] = CREDENTIALS
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def host(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self.port}"

    def address(self, prefix: str, *, host: str | None = None) -> str:
        """The address of a prefix in the bucket; `host` is that of a proxy in front of the server."""
        return f"s3://{BUCKET}/{prefix}?endpoint=http://{host or self.host}&region={REGION}"

    def start(self, credentials: Mapping[str, str] = CREDENTIALS) -> None:
        """Start the server, and wait until it listens."""
        self._credentials = credentials
        access, secret = credentials["AWS_ACCESS_KEY_ID"], credentials["AWS_SECRET_ACCESS_KEY"]
        command = [self._program, "--access", access, "--secret", secret, *self._options]
        self._process = start_server(command, self.port, START_S)

    def stop(self) -> None:
        """End the server; its objects stay."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def ask(self, method: str, query: str, body: str) -> None:
        """Send a request about the bucket itself, such as ("PUT", "versioning"), signed with the server's own key."""
        content = body.encode()
        headers = _signed(self._credentials, method, self.host, f"/{BUCKET}", f"{query}=", content)
        headers["Content-MD5"] = base64.b64encode(hashlib.md5(content, usedforsecurity=False).digest()).decode()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=START_S)
        with contextlib.closing(connection):
            connection.request(method, f"/{BUCKET}?{query}=", content, headers)
            answer = connection.getresponse()
            text = answer.read().decode()
        assert answer.status == 200, f"{method} {query} was answered with {answer.status}: {text}"


@contextmanager
def buckets(tool: Tool, served: Path, *, versioned: bool = False) -> Iterator[Buckets]:
    """Serve a bucket."""
    server = Buckets(tool.program, served, versioned=versioned)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def find_s3_server(say: Say) -> Tool:
    """A server of buckets over a folder, compiled: an S3 gateway that really refuses a second object under a key."""

    def make(folder: Path) -> Path:
        target = folder / "site"
        target.mkdir()
        environment = {"GOTOOLCHAIN": "local", "GOBIN": str(target)}
        command = [ensure_go(folder), "install", f"{VERSITYGW}/cmd/versitygw@{VERSION}"]
        run_tool("making versitygw", command, cwd=folder, environment=environment)
        return target

    home = fetched("versitygw", digest_of(VERSITYGW, VERSION), say, make, by="go")
    return Tool(home / "versitygw", home, {})


def find_quick_s3_server(say: Say) -> Tool:
    """The same gateway for tests: its parts that serve a folder, compiled without optimization and by one processor.

    Its packages and their versions are those of `find_s3_server`, in half of the processor time.
    """
    source = SOURCE.read_text(encoding="utf-8")

    def make(folder: Path) -> Path:
        go, work, target = ensure_go(folder), folder / "work", folder / "site"
        for one in (work, target):
            one.mkdir()
        (work / "main.go").write_text(source, encoding="utf-8")
        environment = {"GOTOOLCHAIN": "local", "GOFLAGS": "-mod=mod", **ONE_PROCESSOR}
        for command in (
            [go, "mod", "init", "gateway"],
            [go, "mod", "edit", f"-require={VERSITYGW}@{VERSION}"],
            [go, "build", *QUICK, "-o", target / "versitygw", "."],
        ):
            run_tool("making versitygw", command, cwd=work, environment=environment)
        return target

    home = fetched("versitygw", digest_of(VERSITYGW, VERSION, source, *QUICK), say, make, by="go")
    return Tool(home / "versitygw", home, {})


def _signed(
    credentials: Mapping[str, str], method: str, host: str, path: str, query: str, content: bytes
) -> dict[str, str]:
    """Headers of a request that is signed as AWS's signature version 4 says."""
    at = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
    scope = f"{at[:8]}/{REGION}/s3/aws4_request"
    digest = hashlib.sha256(content).hexdigest()
    headers = {"host": host, "x-amz-content-sha256": digest, "x-amz-date": at}
    names = ";".join(headers)
    lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
    request = f"{method}\n{path}\n{query}\n{lines}\n{names}\n{digest}"
    text = f"AWS4-HMAC-SHA256\n{at}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
    key = f"AWS4{credentials['AWS_SECRET_ACCESS_KEY']}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.new(key, text.encode(), "sha256").hexdigest()
    access = f"{credentials['AWS_ACCESS_KEY_ID']}/{scope}"
    return headers | {
        "Authorization": f"AWS4-HMAC-SHA256 Credential={access}, SignedHeaders={names}, Signature={signature}"
    }


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder
