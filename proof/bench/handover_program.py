"""The program that `make bench BENCHES=handover` starts: one instance of an application, with or without workers.

    python -m bench.handover_program '{"step": "handover", "workers": 2, "run": 0, ...}'

    orders     "move 0_3 1": the task goes to worker 1;  "stop"
    answers    {"task": "0_3", "pause_ms": 80, "kind": "planned"} for each pause that standfast reports
    files      seen-RUN-PID in the folder of the step: "task milliseconds" for each processed record, monotonic

Rules of this file: started as a `ChildProcess`, except by the application itself, which runs it again in each worker.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from pathlib import Path

from bench.step import Step
from standfast.ops.bench.step import STORE, address_of, bench_store
from standfast.replication.offsets import TaskId
from standfast.store import serde
from standfast.store.clock import SystemClock
from standfast.store.log import logger
from standfast.store.process.child import json_line
from standfast.store.process.parent import CHANNEL_VARIABLE, Parent
from standfast.stream.app.app import App
from standfast.stream.record import Record
from standfast.stream.topology.processor import Context, Processor

SEEN = "seen-"  # begin of the names of the files of processed records


class Pauses(logging.Handler):
    """Answers with each pause that the application reports."""

    def __init__(self, parent: Parent) -> None:
        super().__init__()
        self._parent = parent

    def emit(self, record: logging.LogRecord) -> None:
        """As in `logging.Handler`."""
        found = vars(record)
        if found.get("event") == "task_arrived":
            answer = {"task": str(found["task"]), "pause_ms": found["pause_ms"], "kind": found["kind"]}
            self._parent.tell(json_line(answer))


def application(step: Step) -> App:
    """Keeps each record, and notes when it was processed."""
    app = App(
        step.app,
        log=address_of(step),
        state_dir=Path(step.folder) / f"handover-{step.run}",
        stores=[bench_store()],
        standby_replicas=0 if step.workers else 1,
        memory_bytes=step.memory_bytes,
    )
    clock = SystemClock()
    seen = os.open(Path(step.folder) / f"{SEEN}{step.run}-{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    @app.source(step.source, key=serde.bytes, value=serde.bytes)
    class Keep(Processor):
        """Keeps each record."""

        def init(self, context: Context) -> None:
            self.context, self.store = context, context.store(STORE)

        def process(self, record: Record) -> None:
            self.store.put(record.key, record.value)
            os.write(seen, b"%d %d\n" % (self.context.partition, clock.monotonic_ms()))

    return app


def main(arguments: list[str]) -> int:
    """Run the application of the step until it is stopped."""
    step = Step(**json.loads(arguments[0]))
    app = application(step)
    if CHANNEL_VARIABLE not in os.environ:  # the supervisor, or an application of one process
        parent = Parent()
        logger.addHandler(Pauses(parent))
        logger.setLevel(logging.INFO)
        threading.Thread(target=_obey, args=(parent, app), daemon=True).start()
    app.run(workers=step.workers or 1)
    return 0


def _obey(parent: Parent, app: App) -> None:
    while True:
        for line in parent.orders(None):
            words = line.decode().split()
            if words[0] == "stop":
                app.stop()
                return
            assert app.supervisor is not None, "tasks move between workers"
            app.supervisor.pool.move(TaskId.parse(words[1]), int(words[2]))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
