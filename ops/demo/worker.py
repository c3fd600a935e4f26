"""One process of the demo: runs the board, serves its metrics, and reports its progress to the demo.

    python -m standfast.ops.demo.worker STATE_DIR     a child of the demo (`standfast.store.process.child`)

    demo ── Open, then anything else to stop ──> worker
    demo <── {"at_ms": ..., "status": a status document}, several times a second ── worker

Rules of this file: an ordinary application process; it ends on SIGTERM, and with the process that started it. It does
not know which process will be killed, or when. All times are the machine's monotonic milliseconds.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from standfast.ops.demo.board import BoardSettings, Tally, build_app
from standfast.ops.http.server import OpsServer
from standfast.ops.observe.status import status_document
from standfast.ops.shared.extras import can_serve
from standfast.replication.listeners import Listener
from standfast.replication.offsets import TaskId
from standfast.store.clock import Clock, SystemClock
from standfast.store.errors import Closed
from standfast.store.process.child import json_line
from standfast.store.process.parent import Parent
from standfast.stream.app.app import App
from standfast.stream.session.session import Session

TICK_MS = 100


@dataclass(frozen=True, slots=True)
class Open:
    """The first order: run the application. `log` is an address, `port` that of metrics, 0 for a free one."""

    log: str
    port: int
    settings: BoardSettings


def open_line(order: Open) -> bytes:
    """The order as a line."""
    return json_line(asdict(order))


class Watcher(Listener):
    """Notes when a task first restored, and when the last one ran."""

    def __init__(self, clock: Clock) -> None:
        self.restoring_ms = self.running_ms = -1
        self._clock = clock

    def on_state_changed(self, task: TaskId, role: str, state: str) -> None:
        if state == "restoring" and self.restoring_ms < 0:
            self.restoring_ms = self._clock.monotonic_ms()
        if state == "running":
            self.running_ms = self._clock.monotonic_ms()


def report(app: App, session: Session, tally: Tally, watcher: Watcher, metrics: str, parent: Parent) -> None:
    """Report progress to the demo until the session closes; any order now stops the application."""
    try:
        while True:
            told: dict[str, Any] = {
                "at_ms": tally.clock.monotonic_ms(),
                "processed": tally.records,
                "first_ms": tally.first_ms,
                # A copy: the application's thread adds tasks meanwhile.
                "resumed": sum(list(tally.resumed.values())),
                "restoring_ms": watcher.restoring_ms,
                "running_ms": watcher.running_ms,
                "metrics": metrics,
                # The session counts all of it anyway.
                "status": status_document(session.statistics()),
            }
            parent.tell(json_line(told))
            if parent.orders(TICK_MS):
                app.stop()
    except Closed:
        return  # the application was stopped and has closed its session


def main(state: Path) -> int:
    """Run until it is stopped; an error ends the process with its traceback on stderr."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    parent = Parent()
    order, *more = map(json.loads, parent.orders(None))
    if more or "settings" not in order:
        return 0  # it is stopped before it began
    clock = SystemClock()
    tally, watcher = Tally(clock=clock), Watcher(clock)
    app = build_app(BoardSettings(**order["settings"]), tally, order["log"], state, [watcher])
    session = app.open()
    # The server is in an extra, and the demo runs without it.
    server = OpsServer(session, port=order["port"]) if can_serve() else None
    metrics = "" if server is None else server.address
    reporter = threading.Thread(target=report, args=(app, session, tally, watcher, metrics, parent))
    try:
        reporter.start()
        app.run()
    finally:
        if server is not None:
            server.close()
        reporter.join()
    return 0


def log_address(folder: Path) -> str:
    """The embedded log of a demo folder."""
    return f"sqlite:///{quote(str(folder.absolute() / 'log.db'))}"


def state_dir(folder: Path, name: str) -> Path:
    """State directory of one process of the demo."""
    return folder / f"state-{name}"


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
