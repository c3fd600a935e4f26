"""A process to be killed: an application that reads files that grow, by a source of its own.

    input-0, input-1 ──> Lines (2 partitions, position: byte offset) ──> Total: running sum per key ──> out

    stdout    ready     every task is here, running or standing by
    exit      0 after SIGTERM; any other end but the kill is a failure (the reason is on stderr)

Besides the failpoints of the library, a `strike` (place, times) of the settings ends the process (kill):

    collect   in the source's own thread, before it collects
    total     in the processor, something written and not forwarded

Rules of this file: processing of a record depends on the record and the state only. A line is "key number time".
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # started by path

import standfast as sf
from standfast.replication.listeners import Listener
from standfast.replication.offsets import TaskId
from support.crash.options import use

PARTITIONS = 2
LIFE_MAX_S = 90  # an orphan ends by itself


class Strike:
    """The place where the application's own code ends the process."""

    def __init__(self, place: str, times: int) -> None:
        self.place = place
        self.times = times

    def reach(self, place: str) -> None:
        if place == self.place:
            self.times -= 1
            if self.times == 0:
                os.kill(os.getpid(), signal.SIGKILL)


class Lines(sf.Source):
    """The lines of a file that grows; the position is that behind a line."""

    def __init__(self, folder: str, strike: Strike) -> None:
        self.folder = folder
        self.strike = strike

    def run(self, context: sf.SourceContext) -> None:
        with (Path(self.folder) / f"input-{context.partition}").open("rb") as file:
            while not context.cancelled:
                file.seek(context.position)
                line = file.readline()
                if not line.endswith(b"\n"):  # nothing, or a line that is being written
                    context.wait(0.01)
                    continue
                key, number, stamp = line.decode().split()
                self.strike.reach("collect")
                context.collect(sf.Record(key, int(number), int(stamp)), context.position + len(line))


class Teller(Listener):
    """Reports that every task is here."""

    def __init__(self) -> None:
        self.here: set[TaskId] = set()

    def on_state_changed(self, task: TaskId, role: str, state: str) -> None:
        if state in ("running", "standby") and task not in self.here:
            self.here.add(task)
            if len(self.here) == PARTITIONS:
                print("ready", flush=True)


def make_app(settings: dict[str, Any], strike: Strike, listener: Listener | None = None) -> sf.App:
    """The application of every process of a run, the looking one included."""

    class Total(sf.Processor):
        stores = ("totals",)

        def init(self, context: sf.Context) -> None:
            self.context = context
            self.totals = context.store("totals")

        def process(self, record: sf.Record) -> None:
            count, total = self.totals.get(record.key) or (0, 0)
            row = [count + 1, total + record.value]
            self.totals.put(record.key, row, record.timestamp)
            strike.reach("total")
            self.context.forward(sf.Record(record.key, row, record.timestamp))

    app = sf.App(
        settings["app"],
        log=settings["log"],
        state_dir=settings["state_dir"],
        stores=[sf.KeyValueStore("totals", sf.serde.string, sf.serde.json, logging=settings["logged"])],
        guarantee=settings["guarantee"],
        standby_replicas=settings["standbys"],
        lease_ms=1_000,
        restart_grace_ms=0,  # the next life may have another directory
        commit_interval_ms=settings["commit_interval_ms"],
        memory_bytes=32 << 20,
        restart=sf.FixedDelay(attempts=3, delay_ms=50),
        listeners=[] if listener is None else [listener],
    )
    lines = app.stream(Lines(settings["folder"], strike), name="lines", partitions=PARTITIONS, value=sf.serde.int64)
    lines.process(Total).to(
        settings["out"], key=sf.serde.string, value=sf.serde.json, partitioner=lambda key, _value, _count: int(key[1])
    )
    return app


def main() -> None:
    settings = json.loads(sys.argv[1])
    signal.alarm(LIFE_MAX_S)
    make_app(settings, Strike(*settings["strike"]), Teller()).run()


if __name__ == "__main__":
    use()
    main()
