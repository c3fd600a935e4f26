"""One process of the demo: runs the board, serves its metrics, and writes how it is doing to a status file.

    python -m standfast.ops.demo.worker --folder D --name a --log ADDRESS --grace-ms N --retention-ms N --parent PID

    D/status-a.jsonl    one JSON object a line, several a second; times are the machine's monotonic milliseconds

Rules of this file: an ordinary application process; it ends on SIGTERM, and when the process that started it is gone.
It does not know who will be killed, or when.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any, get_args
from urllib.parse import quote

from standfast.ops.demo.board import LEASE_MS, BoardSettings, Tally, build_app
from standfast.ops.http.server import OpsServer
from standfast.replication.listeners import Listener
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.store.clock import Clock, SystemClock
from standfast.store.errors import Closed
from standfast.stream.app.app import App
from standfast.stream.session.session import Session
from standfast.stream.session.settings import Guarantee

TICK_S = 0.05
STATISTICS_EVERY_TICKS = 5


class Watcher(Listener):
    """Counts what the process's standbys and restores did, and notes when a task first restored and all ran."""

    def __init__(self, clock: Clock) -> None:
        self.standby_records = 0
        self.restored_records = 0
        self.restoring_ms = -1
        self.running_ms = -1
        self._clock = clock

    def on_standby_batch(
        self, task: TaskId, store: str, changelog: TopicPartition, position: int, records: int, end: int
    ) -> None:
        self.standby_records += records

    def on_batch_restored(
        self, task: TaskId, store: str, changelog: TopicPartition, position: int, records: int
    ) -> None:
        self.restored_records += records

    def on_state_changed(self, task: TaskId, role: str, state: str) -> None:
        if state == "restoring" and self.restoring_ms < 0:
            self.restoring_ms = self._clock.monotonic_ms()
        if state == "running":
            self.running_ms = self._clock.monotonic_ms()


class Reporter:
    """Writes the status file from a thread of its own until stopped."""

    def __init__(self, app: App, session: Session, tally: Tally, watcher: Watcher, path: Path, parent: int) -> None:
        self.address = ""
        self._app = app
        self._session = session
        self._tally = tally
        self._watcher = watcher
        self._path = path
        self._parent = parent
        self._statistics: dict[str, Any] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo-status", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def stop(self) -> None:
        """Write no more; the session may be closed once this returns."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        ticks = 0
        with self._path.open("a", encoding="utf-8", buffering=1) as file:
            while not self._stop.wait(TICK_S):
                if os.getppid() != self._parent:
                    self._app.stop()
                try:
                    if ticks % STATISTICS_EVERY_TICKS == 0:
                        self._statistics = statistics(self._app, self._session)
                    status = self._status()
                except Closed:
                    return  # the application was stopped and has closed its session
                ticks += 1
                file.write(json.dumps(status, separators=(",", ":")) + "\n")

    def _status(self) -> dict[str, Any]:
        watcher, tally = self._watcher, self._tally
        roles = Counter(
            "restoring" if task.state.value == "restoring" else task.role for task in self._session.all_tasks().values()
        )
        return {
            "at_ms": tally.clock.monotonic_ms(),
            "processed": tally.records,
            "first_ms": tally.first_ms,
            "resumed": sum(list(tally.resumed.values())),
            "standby_records": watcher.standby_records,
            "restored_records": watcher.restored_records,
            "restoring_ms": watcher.restoring_ms,
            "running_ms": watcher.running_ms,
            "active": roles["active"],
            "restoring": roles["restoring"],
            "standby": roles["standby"],
            "ready": self._session.ready,
            "metrics": self.address,
            **self._statistics,
        }


def statistics(app: App, session: Session) -> dict[str, Any]:
    """What the card tells of a process, from the session's own statistics and what the application left out."""
    now = session.statistics()
    stores = [store for task in now.tasks for store in task.stores]
    gate = now.counters.gate_wait_seconds
    return {
        "standby_lag": sum(store.lag for task in now.tasks if task.role == "standby" for store in task.stores),
        "late_dropped": sum(store.late_dropped for store in stores),
        "late_windows": app.drops.counts["late_window"],
        "handed_over": now.counters.handed_over_records,
        "segments_expired": sum(store.segments_expired for store in stores),
        "logged_records": sum(store.logged_records for store in stores),
        "gate_waits": sum(gate.counts),
        "gate_wait_ms": round(gate.total * 1_000),
        "promotions": now.counters.promotions["completed"],
        "commits": now.counters.commits["committed"],
    }


def main(argv: list[str] | None = None) -> int:
    """Run until SIGTERM; an error ends the process with its traceback on stderr."""
    parser = argparse.ArgumentParser(description="one process of `standfast demo`")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--log", required=True, help="address of the log")
    parser.add_argument("--prefix", default="", help="of every name in the log")
    parser.add_argument("--guarantee", choices=get_args(Guarantee), default="exactly_once")
    parser.add_argument("--lease-ms", type=int, default=LEASE_MS)
    parser.add_argument("--grace-ms", type=int, required=True)
    parser.add_argument("--retention-ms", type=int, required=True)
    parser.add_argument("--held", action="store_true", help="join the others only when a line comes on stdin")
    parser.add_argument("--parent", type=int, required=True, help="process id; the worker ends when it is gone")
    parser.add_argument("--port", type=int, default=0, help="of metrics and status; 0 takes a free one")
    given = parser.parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if given.held and not sys.stdin.readline():
        return 0  # whoever held it is gone
    clock = SystemClock()
    tally, watcher = Tally(clock=clock), Watcher(clock)
    settings = BoardSettings(given.grace_ms, given.retention_ms, given.guarantee, given.prefix, given.lease_ms)
    root = state_dir(given.folder, given.name)
    app = build_app(settings, tally, given.log, root, [watcher])
    session = app.open()
    path = status_path(given.folder, given.name)
    reporter = Reporter(app, session, tally, watcher, path, given.parent)
    server = OpsServer(session, port=given.port)
    try:
        reporter.address = server.address
        reporter.start()
        app.run()
    finally:
        reporter.stop()
        server.close()
    return 0


def log_address(folder: Path) -> str:
    """The embedded log of a demo folder."""
    return f"sqlite:///{quote(str(folder.absolute() / 'log.db'))}"


def state_dir(folder: Path, name: str) -> Path:
    """State directory of one process of the demo."""
    return folder / f"state-{name}"


def status_path(folder: Path, name: str) -> Path:
    """Status file of one process of the demo."""
    return folder / f"status-{name}.jsonl"


if __name__ == "__main__":
    raise SystemExit(main())
