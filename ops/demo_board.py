"""The demo's application: a delay board over flights, in the public names that any application uses.

    flights (tail -> JSON)  ──> aircraft   tail -> airport, flight, departed, flights     key-value
                            └─> delays     airport, hour -> flights, delay, worst         windows of one hour

Rules of this file: the application and nothing of processes or comparison. Delays are in minutes, times in
milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from standfast.replication.listeners import Listener
from standfast.store import serde
from standfast.store.clock import Clock, SystemClock
from standfast.store.keyvalue import KeyValueState
from standfast.store.specs import KeyValueStore, StoreSpec, WindowStore
from standfast.store.window import WindowState
from standfast.stream.app import App
from standfast.stream.processor import Context, Processor, SourceRecord

APP = "board"
TOPIC = "flights"
PARTITIONS = 4
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
# Short against the length of the data, so that segments expire on the way; the longest delay is under two days.
RETENTION_MS = {"sample": 7 * DAY_MS, "full": 60 * DAY_MS}
LEASE_MS = 1_200
COMMIT_INTERVAL_MS = 200


@dataclass(slots=True)
class Tally:
    """What this process has processed: records, and the monotonic time at which the first of them was done."""

    records: int = 0
    first_ms: int = -1
    clock: Clock = field(default_factory=SystemClock)

    def count(self) -> None:
        """One record was processed."""
        self.records += 1
        if self.first_ms < 0:
            self.first_ms = self.clock.monotonic_ms()


def stores(retention_ms: int) -> tuple[StoreSpec, ...]:
    """The stores of the board."""
    return (
        KeyValueStore("aircraft", key=serde.string, value=serde.json),
        WindowStore(
            "delays",
            key=serde.string,
            value=serde.json,
            window_size_ms=HOUR_MS,
            retention_ms=retention_ms,
            # A log deletes by wall clock, and these flights left in 2013: without this it would delete their
            # changes at its next round of care, while the store still keeps the rows by stream time.
            changelog={"retention.ms": "-1"},
        ),
    )


def build_app(log: str, state_dir: Path, retention_ms: int, tally: Tally, listeners: Iterable[Listener] = ()) -> App:
    """The application for one process."""
    app = App(
        APP,
        log=log,
        state_dir=state_dir,
        stores=stores(retention_ms),
        guarantee="exactly_once",
        standby_replicas=1,
        commit_interval_ms=COMMIT_INTERVAL_MS,
        lease_ms=LEASE_MS,
        listeners=listeners,
    )

    @app.source(TOPIC, key=serde.string, value=serde.json)
    class Board(Processor):
        """Keeps the board. A record's timestamp is the scheduled departure; records come as the flights left."""

        def init(self, context: Context) -> None:
            self.aircraft: KeyValueState[str, Any] = context.store("aircraft")
            self.delays: WindowState[str, Any] = context.store("delays")

        def process(self, record: SourceRecord) -> None:
            self._see(record)
            self._add(record)
            tally.count()

        def _see(self, record: SourceRecord) -> None:
            flight = record.value
            seen = self.aircraft.get(record.key)
            flights = 1 if seen is None else seen["flights"] + 1
            if seen is None or flight["departed"] >= seen["departed"]:
                seen = {"airport": flight["origin"], "flight": flight["flight"], "departed": flight["departed"]}
            self.aircraft.put(record.key, seen | {"flights": flights})

        def _add(self, record: SourceRecord) -> None:
            airport, delay = record.value["origin"], record.value["delay"]
            hour = record.timestamp // HOUR_MS * HOUR_MS
            row = self.delays.fetch(airport, hour)
            if row is None:
                row = {"flights": 0, "delay": 0, "worst": delay}
            changed = {
                "flights": row["flights"] + 1,
                "delay": row["delay"] + delay,
                "worst": max(row["worst"], delay),
            }
            self.delays.put(airport, changed, hour)

    return app
