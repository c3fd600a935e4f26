"""The worker processes of the demo, seen from the process that starts them.

    start ──> status() (the last line of the status file) ──> kill() or stop()

Rules of this file: it signals only processes that it started, by their id, and leaves none behind. A worker that ends
on its own is an error that carries the tail of its log.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from standfast.ops.demo.board import BoardSettings
from standfast.ops.demo.worker import status_path
from standfast.store.clock import Clock
from standfast.store.errors import StandfastError, Unavailable

STOP_MS_MAX = 15_000
LOG_TAIL_LINES = 15
POLL_MS = 10


@dataclass(frozen=True, slots=True)
class Status:
    """One line of a status file; times are monotonic milliseconds, -1 where it has not happened."""

    at_ms: int = -1
    processed: int = 0
    first_ms: int = -1
    resumed: int = 0
    standby_records: int = 0
    restored_records: int = 0
    restoring_ms: int = -1
    running_ms: int = -1
    active: int = 0
    restoring: int = 0
    standby: int = 0
    ready: bool = False
    metrics: str = ""
    standby_lag: int = 0
    late_dropped: int = 0
    late_windows: int = 0
    handed_over: int = 0
    segments_expired: int = 0
    logged_records: int = 0
    gate_waits: int = 0
    gate_wait_ms: int = 0
    promotions: int = 0
    commits: int = 0


class Worker:
    """One worker process. A `held` one gets ready and joins the others only at `release`."""

    def __init__(
        self,
        folder: Path,
        name: str,
        log: str,
        settings: BoardSettings,
        clock: Clock,
        port: int = 0,
        *,
        held: bool = False,
    ) -> None:
        self.name = name
        self._clock = clock
        self._status = Status()
        self._read_to = 0
        self._path = status_path(folder, name)
        self._path.unlink(missing_ok=True)
        self._log_path = folder / f"worker-{name}.log"
        command = [sys.executable, "-m", "standfast.ops.demo.worker", "--folder", str(folder), "--name", name]
        command += ["--log", log, "--guarantee", settings.guarantee, "--prefix", settings.prefix]
        command += ["--lease-ms", str(settings.lease_ms)]
        command += ["--grace-ms", str(settings.grace_ms), "--retention-ms", str(settings.retention_ms)]
        command += ["--held"] * held
        command += ["--parent", str(os.getpid()), "--port", str(port)]
        with self._log_path.open("wb") as told:
            # A session of its own: Ctrl-C reaches the demo alone, which then stops its workers in order.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE if held else subprocess.DEVNULL,
                stdout=told,
                stderr=told,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def release(self) -> None:
        """Let a held process go on."""
        self._close_stdin(b"go\n")

    def status(self) -> Status:
        """The newest status. Raises Unavailable with the tail of its log if the process has ended."""
        if self._process.poll() is not None:
            raise Unavailable(
                f"worker {self.name.upper()} (pid {self.pid}) ended on its own with exit code "
                f"{self._process.returncode}; the end of {self._log_path}:\n{self._log_tail()}"
            )
        return self._newest()

    def kill(self) -> int:
        """SIGKILL; returns the monotonic time just before, in milliseconds, once the process is gone."""
        at_ms = self._clock.monotonic_ms()
        self._process.kill()
        self._process.wait()
        self._newest()
        return at_ms

    @property
    def last(self) -> Status:
        """The newest status read, also of a process that has ended."""
        return self._status

    def stop(self) -> None:
        """SIGTERM and wait for a clean end. Raises StandfastError if it is not clean or takes too long."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        code = self.wait()
        if code != 0:
            raise Unavailable(
                f"worker {self.name.upper()} (pid {self.pid}) stopped with exit code {code}; the end of "
                f"{self._log_path}:\n{self._log_tail()}"
            )

    def wait(self) -> int:
        """Wait for the process to end; returns its exit code. Raises Unavailable if it takes too long."""
        self._close_stdin()
        try:
            return self._process.wait(STOP_MS_MAX / 1_000)
        except subprocess.TimeoutExpired:
            raise Unavailable(
                f"worker {self.name.upper()} (pid {self.pid}) did not stop within {STOP_MS_MAX} ms; the end of "
                f"{self._log_path}:\n{self._log_tail()}"
            ) from None

    def abandon(self) -> None:
        """Make sure that the process is gone, cleanly if it can be; never raises for how it ended."""
        if self._process.poll() is not None:
            return
        try:
            self.stop()
        except StandfastError:
            self._process.kill()
            self._process.wait()

    def _close_stdin(self, last_words: bytes = b"") -> None:
        stdin, self._process.stdin = self._process.stdin, None
        if stdin is None:
            return
        try:
            with stdin:
                stdin.write(last_words)
        except BrokenPipeError:
            pass  # it is gone: its status or its end tells why

    def _newest(self) -> Status:
        if not self._path.exists():
            return self._status
        with self._path.open("rb") as file:
            file.seek(self._read_to)
            text = file.read()
        # The last line may be half written, now or for ever if its writer was killed.
        whole = text[: text.rfind(b"\n") + 1]
        self._read_to += len(whole)
        if whole:
            fields: dict[str, Any] = json.loads(whole.splitlines()[-1])
            self._status = Status(**fields)
        return self._status

    def _log_tail(self) -> str:
        lines = self._log_path.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-LOG_TAIL_LINES:]) or "(it wrote nothing)"
