"""One process of the demo: runs the board, serves its metrics, and reports its progress to the demo.

    python -m standfast.ops.demo.worker STATE_DIR     a child of the demo (`standfast.store.process.child`)

    demo ── {"log": ..., "port": ..., "settings": ...}, then anything else to stop ──> worker
    demo <── {"at_ms": ..., "status": a status document}, several times a second ── worker

Rules of this file: an ordinary application process; it ends on SIGTERM, and with the process that started it. It does
not know which process will be killed, or when. All times are the machine's monotonic milliseconds.
"""

from __future__ import annotations

import json
import logging
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

from standfast.ops.demo.board import BoardSettings, Tally, build_app
from standfast.ops.observe.status import status_document
from standfast.ops.shared.extras import can_serve
from standfast.store.errors import Closed
from standfast.store.process.child import json_line
from standfast.store.process.parent import Parent
from standfast.stream.app.app import App
from standfast.stream.session.session import Session

TICK_MS = 100


def report(app: App, session: Session, tally: Tally, parent: Parent) -> None:
    """Report progress to the demo until the session closes; any order now stops the application."""
    try:
        while True:
            now = {
                "at_ms": tally.clock.monotonic_ms(),
                "processed": tally.processed,
                "metrics": session.http_address or "",
                "status": status_document(session.statistics()),
                # After the status, so that each task that runs by it has its times. Copies: other threads add to them.
                "times": {task: dict(times) for task, times in list(tally.times.items())},
            }
            parent.tell(json_line(now))
            if parent.orders(TICK_MS):
                app.stop()
    except Closed:
        return  # the application was stopped and has closed its session
    except BaseException:
        app.stop()  # the demo would wait for a report in vain
        raise


def main(state: Path) -> int:
    """Run until it is stopped; an error ends the process with its traceback on stderr."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    parent, tally = Parent(), Tally()
    order, *more = map(json.loads, parent.orders(None))
    if more or "settings" not in order:
        return 0  # it is stopped before it began
    # The server is in an extra, and the demo runs without it.
    port = order["port"] if can_serve() else None
    app = build_app(BoardSettings(**order["settings"]), tally, order["log"], state, port)
    with ThreadPoolExecutor(1) as pool:
        reporter = pool.submit(report, app, app.open(), tally, parent)
        app.run()
        reporter.result()  # its error, if it failed
    return 0


def log_address(folder: Path) -> str:
    """The embedded log of a demo folder."""
    return f"sqlite:///{quote(str(folder.absolute() / 'log.db'))}"


def state_dir(folder: Path, name: str) -> Path:
    """State directory of one process of the demo."""
    return folder / f"state-{name}"


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
