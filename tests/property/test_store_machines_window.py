"""The window store against a dict: boundaries of segments and retention, late rows, duplicates, strict hiding."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule

from standfast.restore.fold import Fold, fold_for
from standfast.store import serde
from standfast.store.results import ValueAndTimestamp, Windowed
from standfast.store.specs import WindowStore
from support.machines import (
    Change,
    StoreMachine,
    bounds,
    keys,
    machine_settings,
    maybe_values,
    moment_ms,
    moments,
    pick,
    read_keys,
    timestamps,
)

SIZE_MS = 10_000
RETENTION_MS = 150_000
INTERVAL_MS = 75_000  # half the retention, as it is above a minute
TIME_MAX = 2**63 - 1
Row = tuple[bytes, int, int]
Moment = tuple[str, int, int]

pytestmark = pytest.mark.slow


def row_key(key: bytes, start: int, sequence: int) -> bytes:
    return key + start.to_bytes(8, "big") + sequence.to_bytes(4, "big")


class Windows:
    """A window store by definition: (key, start, sequence) -> (value, timestamp), and rows that stream time hides."""

    def __init__(self, *, duplicates: bool) -> None:
        self.rows: dict[Row, tuple[bytes, int]] = {}
        self.duplicates = duplicates
        self.sequence = 0
        self.observed_ms = -1
        self.late = 0
        self.changes: list[Change] = []

    def copy(self) -> Windows:
        other = Windows(duplicates=self.duplicates)
        other.rows = dict(self.rows)
        other.sequence, other.observed_ms = self.sequence, self.observed_ms
        return other

    def put(self, key: bytes, value: bytes | None, start: int, timestamp: int) -> None:
        if self.duplicates and value is None:
            return
        observed_ms = max(self.observed_ms, start)
        if start // INTERVAL_MS < (observed_ms - RETENTION_MS) // INTERVAL_MS:
            self.late += 1
            return
        self.observed_ms = observed_ms
        self.sequence += self.duplicates
        row = (key, start, self.sequence if self.duplicates else 0)
        self.changes.append((row_key(*row), value, timestamp))
        self.rows.pop(row, None)
        if value is not None:
            self.rows[row] = (value, timestamp)

    def keys(self) -> list[bytes]:
        return [key for key, _, _ in self.rows]

    def found(
        self, low: bytes | None = None, high: bytes | None = None, time_from: int = 0, time_to: int = TIME_MAX
    ) -> list[tuple[Windowed[bytes], bytes]]:
        """Visible rows in raw order of key, start, sequence."""
        return [
            (Windowed(key, start, start + SIZE_MS), self.rows[key, start, sequence][0])
            for key, start, sequence in sorted(self.rows, key=lambda row: row_key(*row))
            if start > self.observed_ms - RETENTION_MS
            and time_from <= start <= time_to
            and (low is None or key >= low)
            and (high is None or key <= high)
        ]


def spec(name: str, **settings: object) -> WindowStore:
    return WindowStore(name, serde.bytes, serde.bytes, window_size_ms=SIZE_MS, retention_ms=RETENTION_MS, **settings)  # type: ignore[arg-type]


class WindowMachine(StoreMachine):
    specs = [
        spec("rc"),
        spec("ru", caching=False),
        spec("mc", engine="memory"),
        spec("mu", engine="memory", caching=False),
        spec("dr", retain_duplicates=True),
        spec("dm", retain_duplicates=True, engine="memory", caching=False, timestamped=False),
    ]
    groups = {"single": ["rc", "ru", "mc", "mu"], "duplicates": ["dr", "dm"]}

    def new_oracle(self, group: str) -> Windows:
        return Windows(duplicates=group == "duplicates")

    def new_fold(self, name: str) -> Fold:
        return fold_for("window", timestamped=name != "dm", retention_ms=RETENTION_MS)

    def check_all(self) -> None:
        for group, oracle in self.oracles.items():
            self.same_both_ways(group, oracle.found(), "all")
            self.same_time(group, oracle.observed_ms)
            assert {store.rows.sequence for store in self.each(group)} == {oracle.sequence}

    def at(self, moment: Moment) -> int:
        return moment_ms(moment, self.oracles["single"].observed_ms, RETENTION_MS, INTERVAL_MS)

    @rule(writes=st.lists(st.tuples(keys, maybe_values, moments, timestamps), min_size=3, max_size=12))
    def put(self, writes: list[tuple[bytes, bytes | None, Moment, int]]) -> None:
        for key, value, moment, timestamp in writes:
            start = self.at(moment)
            for group, oracle in self.oracles.items():
                late = oracle.late
                oracle.put(key, value, start, timestamp)
                for store in self.each(group):
                    counted = store.rows.counters.late_dropped
                    store.put(key, value, start, timestamp)
                    assert store.rows.counters.late_dropped - counted == oracle.late - late

    @rule(windows=st.lists(st.tuples(keys, moments), min_size=1, max_size=6))
    def fetch(self, windows: list[tuple[bytes, Moment]]) -> None:
        oracle = self.oracles["single"]
        known = [(key, start) for key, start, _ in oracle.rows]
        for key, start in [(key, self.at(moment)) for key, moment in windows] + known:
            visible = start > oracle.observed_ms - RETENTION_MS
            row = oracle.rows.get((key, start, 0)) if visible else None
            self.same("single", row and row[0], "fetch", key, start)
            self.same("single", row and ValueAndTimestamp(*row), "fetch_with_timestamp", key, start)

    @rule(ranges=st.lists(st.tuples(read_keys, moments, moments), min_size=2, max_size=5))
    def fetch_range(self, ranges: list[tuple[bytes | int, Moment, Moment]]) -> None:
        for group, oracle in self.oracles.items():
            for drawn, time_from, time_to in ranges:
                key, first, last = pick(drawn, oracle.keys()), self.at(time_from), self.at(time_to)
                for high in (last, TIME_MAX):
                    expected = [(window.start, value) for window, value in oracle.found(key, key, first, high)]
                    self.same_both_ways(group, expected, "fetch_range", key, first, high)

    @rule(ranges=st.lists(st.tuples(bounds, bounds, moments, moments), min_size=2, max_size=5))
    def fetch_key_range(self, ranges: list[tuple[bytes | int | None, bytes | int | None, Moment, Moment]]) -> None:
        for group, oracle in self.oracles.items():
            for drawn_low, drawn_high, time_from, time_to in ranges:
                low, high = pick(drawn_low, oracle.keys()), pick(drawn_high, oracle.keys())
                for first, last in ((self.at(time_from), self.at(time_to)), (0, self.at(time_to))):
                    expected = oracle.found(low, high, first, last)
                    self.same_both_ways(group, expected, "fetch_key_range", low, high, first, last)

    @rule(time_from=moments, time_to=moments)
    def fetch_all(self, time_from: Moment, time_to: Moment) -> None:
        first, last = self.at(time_from), self.at(time_to)
        for group, oracle in self.oracles.items():
            self.same_both_ways(group, oracle.found(None, None, first, last), "fetch_all", first, last)

    @rule()
    def hold_an_iterator(self) -> None:
        for group, oracle in self.oracles.items():
            self.hold(group, oracle.found(), "all")


TestWindowMachine = WindowMachine.TestCase
TestWindowMachine.settings = machine_settings(max_examples=16, steps=40)
