"""The programs that `make bench BENCHES=scale` starts: an application with workers, and the bare function beside it.

    python -m bench.scale_program '{"step": "scale", "workers": 2, ...}'    counts, until an order comes
    python -m bench.scale_program '{"step": "turns", ...}'                  calls the function, and ends

Rules of this file: started as a `ChildProcess`, except by the application itself, which runs it again in each worker.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

from bench.step import Step
from standfast.ops.bench.step import address_of
from standfast.store import serde
from standfast.store.clock import SystemClock, measured_ns
from standfast.store.process.child import json_line
from standfast.store.process.parent import CHANNEL_VARIABLE, Parent
from standfast.store.specs import WindowStore
from standfast.stream.app.app import App
from standfast.stream.windows import TumblingWindows

WINDOW_MS = 60_000
COMMIT_INTERVAL_MS = 100


def turn(turns: int) -> bool:
    """Pure Python work for one record; True."""
    total = 0
    for number in range(turns):
        total += number
    return total >= 0


def pace_ns(turns: int, calls: int) -> float:
    """Nanoseconds of one call of `turn`."""
    before = measured_ns()
    for _ in range(calls):
        turn(turns)
    return (measured_ns() - before) / calls


def application(step: Step) -> App:
    """Counts records per key and window, with `step.turns` turns in front of each."""
    store = WindowStore("counts", serde.bytes, serde.int64, window_size_ms=WINDOW_MS, retention_ms=10 * WINDOW_MS)
    app = App(
        step.app,
        log=address_of(step),
        state_dir=Path(step.folder) / f"{step.step}-{step.run}" / "state",
        stores=[store],
        commit_interval_ms=COMMIT_INTERVAL_MS,
        memory_bytes=step.memory_bytes,
    )
    stream = app.stream(step.source, key=serde.bytes, value=serde.bytes).filter(lambda key, value: turn(step.turns))
    stream.group_by_key().window(TumblingWindows(WINDOW_MS)).count("counts")
    return app


def main(arguments: list[str]) -> int:
    """Run the program of the step."""
    step = Step(**json.loads(arguments[0]))
    if step.step == "scale":
        app = application(step)
        if CHANNEL_VARIABLE not in os.environ:  # the supervisor, or an application of one process
            parent = Parent()
            threading.Thread(target=_stop_by_order, args=(parent, app), daemon=True).start()
        app.run(workers=step.workers)
        return 0
    parent, clock = Parent(), SystemClock()
    parent.tell(json_line({"ready": True}))
    parent.orders(None)
    begin_ms = clock.monotonic_ms()
    for _ in range(step.records):
        turn(step.turns)
    parent.tell(json_line({"begin_ms": begin_ms, "end_ms": clock.monotonic_ms()}))
    return 0


def _stop_by_order(parent: Parent, app: App) -> None:
    parent.orders(None)
    app.stop()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
