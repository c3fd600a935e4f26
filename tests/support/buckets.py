"""A bucket of a real server that is compatible with S3, on loopback, over a folder of this machine.

    with buckets(s3_server, tmp_path / "served") as server:
        server.address("prefix")          s3://bucket/prefix?endpoint=http://127.0.0.1:PORT&region=us-east-1
        server.folder                     the bucket's objects, as files
        server.stop(); server.start()     an outage

Rules of this file: the server's process ends with the block. Its credentials are set in the environment by the caller.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.clients import Tool

BUCKET, REGION = "bucket", "us-east-1"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": "a-secret-of-tests"}
START_S = 30.0


class Buckets:
    """One server; `folder` holds the objects of its only bucket."""

    def __init__(self, program: Path, served: Path) -> None:
        self.folder = served / BUCKET
        self.folder.mkdir(parents=True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self._command = [
            str(program),
            "--access",
            CREDENTIALS["AWS_ACCESS_KEY_ID"],
            "--secret",
            CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
            "--region",
            REGION,
            "--port",
            f"127.0.0.1:{self.port}",
            "--quiet",
            "posix",
            "--sidecar",
            str(_made(served.parent / f"meta-of-{served.name}")),
            str(served),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def address(self, prefix: str) -> str:
        """The address of a prefix in the bucket."""
        return f"s3://{BUCKET}/{prefix}?endpoint=http://127.0.0.1:{self.port}&region={REGION}"

    def start(self) -> None:
        """Start the server, and wait until it listens."""
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + START_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            assert self._process.poll() is None, f"the server ended with {self._process.returncode}"
            assert time.monotonic() < deadline, f"the server does not listen after {START_S} s"
            time.sleep(0.05)

    def stop(self) -> None:
        """End the server; its objects stay."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextmanager
def buckets(tool: Tool, served: Path) -> Iterator[Buckets]:
    """Serve a bucket."""
    server = Buckets(tool.program, served)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder
