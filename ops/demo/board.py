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

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from standfast.replication.listeners import Listener
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.store import serde
from standfast.store.clock import Clock, SystemClock
from standfast.store.specs import KeyValueStore, StoreSpec, WindowStore
from standfast.store.types.keyvalue import KeyValueState
from standfast.stream.app.app import App
from standfast.stream.emit import ON_WINDOW_CLOSE
from standfast.stream.punctuation import STREAM_TIME, WALL_CLOCK_TIME
from standfast.stream.record import Record
from standfast.stream.task.groups import TaskGroup, all_specs
from standfast.stream.task.settings import Guarantee
from standfast.stream.topology.processor import Context, Processor
from standfast.stream.windows import HoppingWindows, TumblingWindows

APP = "board"
TOPIC = "flights"
BY_AIRPORT = f"{APP}-by-airport-repartition"
LIVE = "board-live"
RESULTS = "hour-results"
PARTITIONS = 4
BOARD_TASKS = frozenset(f"0_{part}" for part in range(PARTITIONS))
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
# Below the default of 30,000: once C has left for good, the demo waits for the copies that replace those of C.
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


@dataclass(slots=True)
class Tally(Listener):
    """Progress of this process: the number of its records, and monotonic times by task.

    `times` has those of the task's last opening as active here: `restoring`, `running`, `first` (its first flight),
    `committed` (its last commit) and `closed`, as far as they have come.
    """

    processed: int = 0
    times: dict[str, dict[str, int]] = field(default_factory=dict)
    clock: Clock = field(default_factory=SystemClock)

    def count(self, task: str) -> None:
        """Count one processed record."""
        self.processed += 1
        times = self.times.setdefault(task, {})
        if "first" not in times:
            times["first"] = self.clock.monotonic_ms()

    def on_commit(self, task: TaskId, sources: Mapping[TopicPartition, int]) -> None:
        """Note the time; see Listener."""
        self.times.setdefault(str(task), {})["committed"] = self.clock.monotonic_ms()

    def on_state_changed(self, task: TaskId, role: str, state: str) -> None:
        """Note the time; see Listener."""
        if role == "active":
            if state == "restoring":
                self.times[str(task)] = {}
            self.times.setdefault(str(task), {})[state] = self.clock.monotonic_ms()


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
    settings: BoardSettings,
    tally: Tally,
    log: str | None = None,
    state_dir: Path | None = None,
    http_port: int | None = None,
) -> App:
    """The application for one process; `log`, `state_dir` and `http_port` as App has them."""
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
        http_port=http_port,
        listeners=[tally],
    )
    _add_board(app, settings, tally)
    _add_windows(app, settings)
    return app


def task_groups(settings: BoardSettings) -> dict[int, TaskGroup]:
    """The application's groups of tasks, for a caller that opens its state without running it."""
    topology = build_app(settings, Tally()).topology()
    return {one.group: TaskGroup(PARTITIONS, one.specs, one.topics) for one in topology.groups}


def topics(settings: BoardSettings) -> tuple[str, ...]:
    """Every topic that the demo makes in a log."""
    specs = all_specs(task_groups(settings))
    changelogs = sorted(spec.changelog_of(settings.app) for spec in specs if spec.logging)
    return (*map(settings.named, (TOPIC, LIVE, RESULTS, BY_AIRPORT)), *changelogs)


def _add_board(app: App, settings: BoardSettings, tally: Tally) -> None:
    @app.sink(settings.named(LIVE), key=serde.string, value=serde.json)
    @app.source(settings.named(TOPIC), key=serde.string, value=serde.json)
    class Board(Processor):
        """Position of every aircraft. A record's timestamp is the scheduled departure; they come as the flights
        left."""

        stores = ("aircraft",)

        def init(self, context: Context) -> None:
            self.context = context
            self.aircraft: KeyValueState[str, Any] = context.store("aircraft")
            # Kept with every commit, so that a take-over goes on counting where the last commit was.
            self.counts = context.progress
            for name in ("flights", "retired", "retired_for"):
                self.counts.setdefault(name, 0)
            # Departure times, so that retiring need not scan the store: an index of it, built again in each process.
            with self.aircraft.all() as rows:
                self.departed = {tail: seen["departed"] for tail, seen in rows}
            self.latest = Latest()
            context.schedule(RETIRE_EVERY_MS, STREAM_TIME, self.retire)
            context.schedule(LIVE_EVERY_MS, WALL_CLOCK_TIME, self.publish)

        def process(self, record: Record) -> None:
            flight = record.value
            seen = self.aircraft.get(record.key)
            if seen is None or flight["departed"] >= seen["departed"]:
                seen = {"airport": flight["origin"], "flight": flight["flight"], "departed": flight["departed"]}
                self.aircraft.put(record.key, seen)
                self.departed[record.key] = flight["departed"]
            self.counts["flights"] += 1
            self.latest.add(record.timestamp, flight)
            tally.count(self.context.task_id)

        def retire(self, now_ms: int) -> None:
            """Delete aircraft that did not leave within the last day, once in each six hours of stream time."""
            # A task that was opened again fires at its first record, whatever the grid: see `punctuation.first_due`.
            if self.counts["retired_for"] == now_ms // RETIRE_EVERY_MS:
                return
            self.counts["retired_for"] = now_ms // RETIRE_EVERY_MS
            gone = [tail for tail, departed in self.departed.items() if departed < now_ms - RETIRE_AFTER_MS]
            for tail in gone:
                self.aircraft.delete(tail)
                del self.departed[tail]
            self.counts["retired"] += len(gone)

        def publish(self, now_ms: int) -> None:
            """Publish this task's part of the live board."""
            live = {
                "flights": self.counts["flights"],
                "aircraft": len(self.departed),
                "retired": self.counts["retired"],
                "at": self.context.stream_time_ms,
                "worst": self.latest.worst(),
            }
            self.context.forward(Record(self.context.task_id, live, now_ms))


class Latest:
    """The worst delay of the last hours, for the live board only: it starts empty in each process."""

    def __init__(self) -> None:
        self._worst: dict[int, dict[str, Any]] = {}  # hour -> its worst flight
        self._newest = 0

    def add(self, scheduled_ms: int, flight: dict[str, Any]) -> None:
        """Add a flight that left."""
        hour = scheduled_ms // HOUR_MS
        known = self._worst.get(hour)
        if known is None or flight["delay"] > known["delay"]:
            self._worst[hour] = {name: flight[name] for name in ("delay", "flight", "origin")}
        if hour > self._newest:
            # Only the hours that the board shows are kept.
            self._newest = hour
            self._worst = {at: one for at, one in self._worst.items() if at > hour - VIEW_MS // HOUR_MS}

    def worst(self) -> dict[str, Any] | None:
        """Delay, flight and origin of the latest flight of all; None before the first."""
        return max(self._worst.values(), key=lambda one: one["delay"], default=None)


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
