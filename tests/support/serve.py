"""A real sidecar process for tests, with clients of its RESP server and its control API.

    sidecars.start("a", workers=1) -> Sidecar    process of its own on a state directory, an embedded log shared by all

Rules of this file: real processes and sockets; each started process is ended, by its own process id.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

START_S = 30.0
KEYVALUE = {"name": "kv", "kind": "keyvalue"}
FOUR: list[dict[str, Any]] = [
    KEYVALUE,
    {"name": "win", "kind": "window", "window_size_ms": 60_000, "retention_ms": 3_600_000},
    {"name": "ses", "kind": "session", "retention_ms": 3_600_000},
    {"name": "ver", "kind": "versioned", "history_retention_ms": 3_600_000},
]


class Sidecar:
    """One `standfast serve`."""

    def __init__(self, root: Path, name: str, log: str, settings: dict[str, Any], app: str = "app") -> None:
        self.root = root
        self.app = app
        self.state_dir = root / name
        self.run_dir = self.state_dir / app / "run"
        self.log_path = root / f"{name}.err"
        given = {"app.name": app, "app.log": log, "app.state_dir": str(self.state_dir), **settings}
        self.command = [sys.executable, "-P", "-m", "standfast.ops.cli", "serve"]
        for key, value in given.items():
            self.command += ["--set", f"{key}={value}"]
        self.process: subprocess.Popen[bytes] | None = None
        self.http: httpx.Client | None = None
        self.info: dict[str, Any] = {}

    def start(
        self,
        environment: dict[str, str] | None = None,
        timeout_s: float = START_S,
        *,
        stdin: int = subprocess.DEVNULL,
        stdout: int | None = None,
    ) -> Sidecar:
        """Start it and wait until it accepts calls; `stdin` and `stdout` as of Popen."""
        (self.run_dir / "INFO.json").unlink(missing_ok=True)
        if self.http is not None:
            self.http.close()
        with self.log_path.open("ab") as errors:
            self.process = subprocess.Popen(
                self.command,
                stderr=errors,
                stdin=stdin,
                stdout=stdout,
                env={**os.environ, **(environment or {})},
            )
        wait_for(self._is_up, timeout_s, self.told)
        self.info = json.loads((self.run_dir / "INFO.json").read_text())
        self.http = httpx.Client(
            # Certificates, which no test's HTTP address needs, would take 25 ms of processor time to load.
            base_url=self.info["http"],
            timeout=30,
            trust_env=False,
            verify=self.info["http"].startswith("https"),
        )
        return self

    def _is_up(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"it ended with {self.process.returncode}: {self.told()}"
        return (self.run_dir / "INFO.json").exists()

    def told(self) -> str:
        """Its standard error so far."""
        return self.log_path.read_text(errors="replace")[-4_000:]

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def call(self, method: str, path: str, body: Any = None, status: int = 200) -> dict[str, Any]:
        """One call of the control API; returns its document."""
        assert self.http is not None
        answer = self.http.request(method, path, **({} if body is None else {"json": body}))
        assert answer.status_code == status, f"{method} {path}: {answer.status_code} {answer.text}\n{self.told()}"
        found: dict[str, Any] = answer.json()
        return found

    def declare(self, stores: list[dict[str, Any]] | None = None, partitions: int = 2) -> None:
        self.call("PUT", "/v1/stores", {"partitions": partitions, "stores": stores or [KEYVALUE]})

    def assign(
        self, generation: int, active: tuple[int, ...] = (), standby: tuple[int, ...] = (), **more: Any
    ) -> dict[str, Any]:
        tasks = [{"partition": one, "role": "active"} for one in active]
        tasks += [{"partition": one, "role": "standby"} for one in standby]
        return self.call("PUT", "/v1/assignment", {"generation": generation, "tasks": tasks, **more})

    def wait_ready(self, wait_ms: int = 30_000) -> dict[str, Any]:
        found = self.call("GET", f"/v1/ready?wait={wait_ms}")
        assert found["ready"], f"{found}\n{self.told()}"
        return found

    def worker_pids(self) -> list[int]:
        return [one["pid"] for one in self.call("GET", "/v1/status")["workers"] if one["pid"] is not None]

    def stop(self, number: signal.Signals = signal.SIGTERM, timeout_s: float = 30) -> int:
        """End it; returns its exit code."""
        assert self.process is not None
        if self.http is not None:
            self.http.close()
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(timeout_s)

    def kill(self) -> None:
        """SIGKILL, and wait."""
        self.stop(signal.SIGKILL)


class Sidecars:
    """All sidecars of a test."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.log = f"sqlite:///{root}/log"
        self.all: list[Sidecar] = []

    def make(self, name: str = "a", log: str | None = None, app: str = "app", **settings: Any) -> Sidecar:
        """A sidecar that is not started. Settings with __ for the point: serve__workers=2."""
        given = {key.replace("__", "."): value for key, value in settings.items()}
        made = Sidecar(self.root, name, log or self.log, given, app)
        self.all.append(made)
        return made

    def start(self, name: str = "a", log: str | None = None, app: str = "app", **settings: Any) -> Sidecar:
        """A started sidecar that accepts calls."""
        return self.make(name, log, app, **settings).start()

    def close(self) -> None:
        for sidecar in self.all:
            if sidecar.process is not None and sidecar.process.poll() is None:
                sidecar.kill()
            elif sidecar.http is not None:
                sidecar.http.close()


def wait_for(condition: Any, timeout_s: float = 20.0, told: Any = None) -> None:
    """Poll until the condition holds."""
    deadline = time.monotonic() + timeout_s
    while True:
        began = time.thread_time()
        if condition():
            return
        assert time.monotonic() < deadline, f"waited for {timeout_s} s. {told() if told else ''}"
        # A condition that reads a whole log leaves the processor to the processes that it waits for.
        time.sleep(max(0.01, 2 * (time.thread_time() - began)))


@pytest.fixture
def sidecars(tmp_path: Path) -> Iterator[Sidecars]:
    """Starts sidecars over one embedded log; those still running at the end are killed."""
    made = Sidecars(tmp_path)
    yield made
    made.close()
