"""Azurite, Microsoft's emulator of Azure's blob service, over a folder of this machine.

    with blobs(find_azurite(say), tmp_path / "served") as server:
        server.address("prefix")          az://ACCOUNT/bucket/prefix?endpoint=http://127.0.0.1:PORT/ACCOUNT
        server.stop(); server.start()     an outage; start(OTHER) begins with another key

Rules of this file: no address is pinned. The server sends no telemetry and answers on loopback only. Azurite keeps
objects in memory for seconds, so it gets SIGTERM, upon which it writes them.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import hmac
import http.client
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from standfast.ops.shared.loopback import HOST, free_port
from standfast.ops.tools.fetch_tool import run_tool
from standfast.store.errors import Unavailable
from support.fetched import Say, Tool, digest_of, fetched
from support.node import node_and_npm
from support.server_process import start_server

AZURITE = "azurite@3.35.0"
AZURITE_INTEGRITY = "sha512-GzKmi+/5U0baNRjEEVtBMLpLuIKEJ0uSh0VWBzOI4qe4f5ziJyoZQmcTO7QhxZTF6+rphj7TZS3PtJY7uiiacA=="
AZURITE_DAY = "2025-10-15"  # the packages that it needs, as they were that day
ACCOUNT, CONTAINER = "tester", "bucket"


def _key(secret: str) -> dict[str, str]:
    return {"AZURE_STORAGE_ACCOUNT_KEY": base64.b64encode(secret.encode()).decode()}


CREDENTIALS, OTHER_CREDENTIALS = _key("a-secret-of-the-azure-tests"), _key("the-next-secret-of-these-tests")
START_S, STOP_S = 60.0, 20.0


class Blobs:
    """One server with one account; containers are made by `make`."""

    def __init__(self, tool: Tool, served: Path) -> None:
        served.mkdir(parents=True)
        self.port = free_port()
        self._command = [
            str(tool.program),
            str(tool.folder / "node_modules/azurite/dist/src/blob/main.js"),
            *("--blobHost", HOST, "--blobPort", str(self.port), "--location", str(served)),
            *("--silent", "--disableTelemetry", "--disableProductStyleUrl"),
        ]
        self._environment = tool.environment
        self._key = ""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def host(self) -> str:
        """Host and port."""
        return f"{HOST}:{self.port}"

    def address(self, prefix: str, *, host: str | None = None, bucket: str = CONTAINER) -> str:
        """The address of a prefix in a container; `host` is that of a proxy in front of the server."""
        return f"az://{ACCOUNT}/{bucket}/{prefix}?endpoint=http://{host or self.host}/{ACCOUNT}"

    def start(self, credentials: Mapping[str, str] = CREDENTIALS) -> None:
        """Start the server, and wait until it listens."""
        self._key = credentials["AZURE_STORAGE_ACCOUNT_KEY"]
        environment = {**os.environ, **self._environment, "AZURITE_ACCOUNTS": f"{ACCOUNT}:{self._key}"}
        self._process = start_server(self._command, self.port, START_S, environment)

    def stop(self) -> None:
        """End the server; its objects stay."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_S)
            finally:
                self._process.kill()
                self._process.wait()
                self._process = None

    def make(self, container: str = CONTAINER) -> None:
        """Make a container."""
        at = datetime.datetime.now(datetime.UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
        headers = {"x-ms-date": at, "x-ms-version": "2021-12-02"}
        path, empty = f"/{ACCOUNT}/{container}", "\n" * 12
        lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
        text = f"PUT{empty}{lines}/{ACCOUNT}{path}\nrestype:container"
        signature = base64.b64encode(hmac.digest(base64.b64decode(self._key), text.encode(), "sha256")).decode()
        headers["Authorization"] = f"SharedKey {ACCOUNT}:{signature}"
        connection = http.client.HTTPConnection(HOST, self.port, timeout=START_S)
        with contextlib.closing(connection):
            connection.request("PUT", f"{path}?restype=container", b"", headers)
            answer = connection.getresponse()
            said = answer.read().decode()
        assert answer.status == 201, f"making {container} was answered with {answer.status}: {said}"


@contextmanager
def blobs(tool: Tool, served: Path) -> Iterator[Blobs]:
    """Serve a container."""
    server = Blobs(tool, served)
    server.start()
    try:
        server.make()
        yield server
    finally:
        server.stop()


def find_azurite(say: Say) -> Tool:
    """Azurite, from its npm package, and the program `node`. Raises Unavailable."""
    node, npm, environment = node_and_npm()

    def make(folder: Path) -> Path:
        target = folder / "site"
        target.mkdir()
        flags = ["--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund", "--omit=dev"]
        command = [*npm, "install", *flags, f"--before={AZURITE_DAY}", "--prefix", target, AZURITE]
        run_tool("installing Azurite", command, cwd=folder, environment=environment)
        # npm compares each package with this digest, which it got beside the package, and notes it here.
        noted = json.loads((target / "node_modules/.package-lock.json").read_text(encoding="utf-8"))
        found = noted["packages"]["node_modules/azurite"]["integrity"]
        if found != AZURITE_INTEGRITY:
            raise Unavailable(f"{AZURITE} has the digest {found} and not {AZURITE_INTEGRITY}: it is another program")
        return target

    home = fetched("azurite", digest_of(AZURITE, AZURITE_DAY), say, make)
    return Tool(Path(node), home, environment)
