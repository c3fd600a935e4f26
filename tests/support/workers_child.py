"""An application with worker processes and an HTTP server of its supervisor, which a test steers by lines.

    python workers_child.py JSON     log, state_dir, app, workers, and any setting of App; policy: of its snapshots
    standard input                   move TASK WORKER, pause, resume; to the supervisor alone
    standard error                   "moved", "paused", ... once a line was carried out

It counts the records of each key in `counts`. A record of key HOLD keeps the interpreter of its worker for as many
milliseconds as its value says.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
from typing import Any

import standfast as sf
from standfast.replication.offsets import TaskId
from standfast.store.process.parent import CHANNEL_VARIABLE

LIFE_MAX_S = 900  # an orphan ends by itself
HOLD = "hold"


def passes(key: str | None, value: bytes) -> bool:
    """Whether the record is counted; one of HOLD keeps the interpreter."""
    if key == HOLD:
        ctypes.PyDLL(None).usleep(int(value) * 1_000)
    return key != HOLD


def application(given: dict[str, Any]) -> sf.App:
    """The application; `given` as in the head of this file."""
    settings = {name: value for name, value in given.items() if name not in ("app", "policy")}
    if "policy" in given:
        settings["snapshots"] = sf.SnapshotPolicy(**given["policy"])
    stores = [sf.KeyValueStore("counts", sf.serde.string, sf.serde.int64)]
    app = sf.App(given["app"], stores=stores, **settings)
    app.stream(f"{given['app']}-in", key=sf.serde.string, value=sf.serde.bytes).filter(passes).group_by_key().count(
        "counts"
    )
    return app


def obey(app: sf.App) -> None:
    """Carry out the lines of the test."""
    for line in sys.stdin:
        words = line.split()
        if words[0] == "move":
            assert app.supervisor is not None
            app.supervisor.pool.move(TaskId.parse(words[1]), int(words[2]))
        elif words[0] == "pause":
            app.pause()
        else:
            app.resume()
        print("carried out:", line.strip(), file=sys.stderr, flush=True)


def main() -> None:
    """Run until SIGTERM."""
    signal.alarm(LIFE_MAX_S)
    app = application(json.loads(sys.argv[1]))
    if CHANNEL_VARIABLE not in os.environ:  # the supervisor
        threading.Thread(target=obey, args=(app,), daemon=True).start()
    app.run()


if __name__ == "__main__":
    main()
