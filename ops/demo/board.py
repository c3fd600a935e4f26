"""The demo's application: a delay board over flights, in the public names that any application uses.

    flights (tail -> JSON) ─┬─> Board ──────> aircraft       tail -> airport, flight, departed
                            │     ├ STREAM_TIME, six hours:  aircraft not seen for a day are retired
                            │     └ WALL_CLOCK_TIME, half a second: the live board ──> board-live
                            └─> by origin ──> board-by-airport-repartition
                                                  │  airport, window -> flights, delay, worst
                                                  ├─> delays         one hour, on update
                                                  ├─> three-hours    three hours, every hour, on update
                                                  └─> final-delays   one hour, when it closes ──> hour-results

Rules of this file: the application and nothing of processes or comparison. Delays are in minutes, times in
milliseconds. Rows must not depend on when a task was opened again: `aircraft` holds the latest departure only, and each
time of the six-hour grid has one retirement.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from standfast.store import serde
from standfast.store.specs import KeyValueStore, StoreSpec, WindowStore
from standfast.store.types.keyvalue import KeyValueState
from standfast.stream.app.app import App
from standfast.stream.emit import ON_WINDOW_CLOSE
from standfast.stream.punctuation import STREAM_TIME, WALL_CLOCK_TIME
from standfast.stream.record import Record
from standfast.stream.task.groups import TaskGroup
from standfast.stream.task.settings import Guarantee
from standfast.stream.topology.processor import Context, Processor
from standfast.stream.windows import HoppingWindows, TumblingWindows

APP = "board"
TOPIC = "flights"
BY_AIRPORT = f"{APP}-by-airport-repartition"
LIVE = "board-live"
RESULTS = "hour-results"
PARTITIONS = 4
TASKS = 2 * PARTITIONS  # Board's, and those behind the repartition topic
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
VIEW_MS = 3 * HOUR_MS
RETIRE_AFTER_MS = DAY_MS
RETIRE_EVERY_MS = 6 * HOUR_MS
LIVE_EVERY_MS = 500
# Below a session's default of 1,500: the take-over waits for it.
LEASE_MS = 1_200
# Kafka Streams' default for exactly once.
COMMIT_INTERVAL_MS = 100
# Below the default of 30,000: once A has left for good, the demo waits until B has its tasks.
RESTART_GRACE_MS = 3_000


@dataclass(frozen=True, slots=True)
class BoardSettings:
    """Grace of windows after their end, and retention of stores, in milliseconds of stream time.

    `prefix` stands before every name that the log sees: topics, the group, transactional ids. `lease_ms` is wall time:
    the time for which a process that is gone still counts as live.
    """

    grace_ms: int
    retention_ms: int
    guarantee: Guarantee = "exactly_once"
    prefix: str = ""
    lease_ms: int = LEASE_MS

    @property
    def app(self) -> str:
        """The application, which is also the name of its group."""
        return self.named(APP)

    def named(self, name: str) -> str:
        """One of the names above, as the log sees it."""
        return f"{self.prefix}-{name}" if self.prefix else name


def stores(settings: BoardSettings) -> tuple[StoreSpec, ...]:
    """The stores of the board."""
    return (
        KeyValueStore("aircraft", key=serde.string, value=serde.json),
        *(
            WindowStore(
                name,
                key=serde.string,
                value=serde.msgpack,  # five rows change with each flight
                window_size_ms=size_ms,
                retention_ms=settings.retention_ms,
                # A log deletes by wall clock, and these flights left in 2013: without this it would delete their
                # changes at its next round of care, while the store still keeps the rows by stream time.
                changelog={"retention.ms": "-1"},
            )
            for name, size_ms in (("delays", HOUR_MS), ("three-hours", VIEW_MS), ("final-delays", HOUR_MS))
        ),
    )


def build_app(
    settings: BoardSettings, process: str = "", log: str | None = None, state_dir: str | Path | None = None
) -> App:
    """The application for one process, whose name its tags have; `log` and `state_dir` as App has them."""
    app = App(
        settings.app,
        log=log,
        state_dir=state_dir,
        stores=stores(settings),
        guarantee=settings.guarantee,
        standby_replicas=1,
        commit_interval_ms=COMMIT_INTERVAL_MS,
        lease_ms=settings.lease_ms,
        restart_grace_ms=RESTART_GRACE_MS,
        tags={"process": process},
    )
    _add_board(app, settings)
    _add_windows(app, settings)
    return app


def task_groups(settings: BoardSettings) -> dict[int, TaskGroup]:
    """The application's groups of tasks, for a caller that opens its state without running it."""
    topology = build_app(settings).topology()
    return {one.group: TaskGroup(PARTITIONS, one.specs, one.topics) for one in topology.groups}


def _add_board(app: App, settings: BoardSettings) -> None:
    @app.sink(settings.named(LIVE), key=serde.string, value=serde.json)
    @app.source(settings.named(TOPIC), key=serde.string, value=serde.json)
    class Board(Processor):
        """Position of every aircraft. A record's timestamp is the scheduled departure; they come as the flights
        left."""

        stores = ("aircraft",)

        def init(self, context: Context) -> None:
            self.context = context
            self.aircraft: KeyValueState[str, Any] = context.store("aircraft")
            # Kept with every commit, so that a take-over goes on counting where the last commit was. They only grow.
            self.counts = context.progress
            for name in ("flights", "appeared", "retired", "retired_for"):
                self.counts.setdefault(name, 0)
            context.schedule(RETIRE_EVERY_MS, STREAM_TIME, self.retire)
            context.schedule(LIVE_EVERY_MS, WALL_CLOCK_TIME, self.publish)

        def process(self, record: Record) -> None:
            flight = record.value
            seen = self.aircraft.get(record.key)
            if seen is None or flight["departed"] >= seen["departed"]:
                row = {"airport": flight["origin"], "flight": flight["flight"], "departed": flight["departed"]}
                self.aircraft.put(record.key, row)
            self.counts["appeared"] += seen is None
            self.counts["flights"] += 1

        def retire(self, now_ms: int) -> None:
            """Delete aircraft that did not leave within the last day, once in each six hours of stream time."""
            # A task that was opened again fires at its first record, whatever the grid: see `punctuation.first_due`.
            if self.counts["retired_for"] == now_ms // RETIRE_EVERY_MS:
                return
            self.counts["retired_for"] = now_ms // RETIRE_EVERY_MS
            with self.aircraft.all() as rows:
                gone = [tail for tail, seen in rows if seen["departed"] < now_ms - RETIRE_AFTER_MS]
            for tail in gone:
                self.aircraft.delete(tail)
            self.counts["retired"] += len(gone)

        def publish(self, now_ms: int) -> None:
            """Publish this task's part of the live board."""
            flights, appeared, retired = (self.counts[name] for name in ("flights", "appeared", "retired"))
            at_ms = self.context.stream_time_ms
            live = {"flights": flights, "aircraft": appeared - retired, "retired": retired, "at": at_ms}
            self.context.forward(Record(self.context.task_id, live, now_ms))


def _add_windows(app: App, settings: BoardSettings) -> None:
    by_airport = (
        app.stream(settings.named(TOPIC), key=serde.string, value=serde.json)
        .map(lambda _tail, flight: (flight["origin"], flight["delay"]), key=serde.string, value=serde.int64)
        .repartition("by-airport")
        .group_by_key()
    )
    hours = TumblingWindows(HOUR_MS, settings.grace_ms)
    view = HoppingWindows(VIEW_MS, HOUR_MS, settings.grace_ms)
    by_airport.window(hours).aggregate(no_flights, add_delay, "delays")
    by_airport.window(view).aggregate(no_flights, add_delay, "three-hours")
    by_airport.window(hours).aggregate(no_flights, add_delay, "final-delays", emit=ON_WINDOW_CLOSE).to(
        settings.named(RESULTS), value=serde.json
    )


def no_flights() -> dict[str, int]:
    """A window before its first flight; the worst delay is not known then."""
    return {"flights": 0, "delay": 0}


def add_delay(_airport: str, delay: int, row: dict[str, int]) -> dict[str, int]:
    """A window with one more flight."""
    return {
        "flights": row["flights"] + 1,
        "delay": row["delay"] + delay,
        "worst": max(row.get("worst", delay), delay),
    }
