"""The key-value store against a dict: cache on and off, both engines, restarts, cold restores, held iterators."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule

from standfast.restore.fold import Fold, fold_for
from standfast.store import serde
from standfast.store.results import ValueAndTimestamp
from standfast.store.specs import KeyValueStore
from support.machines import (
    Change,
    StoreMachine,
    bounds,
    keys,
    machine_settings,
    maybe_values,
    pick,
    read_keys,
    timestamps,
    values,
)

pytestmark = pytest.mark.slow


class Table:
    """A key-value store by definition: key -> (value, timestamp)."""

    def __init__(self) -> None:
        self.rows: dict[bytes, tuple[bytes, int]] = {}
        self.changes: list[Change] = []

    def copy(self) -> Table:
        other = Table()
        other.rows = dict(self.rows)
        return other

    def put(self, key: bytes, value: bytes | None, timestamp: int) -> None:
        self.changes.append((key, value, timestamp))
        self.rows.pop(key, None)
        if value is not None:
            self.rows[key] = (value, timestamp)

    def items(self, low: bytes | None = None, high: bytes | None = None) -> list[tuple[bytes, bytes]]:
        return [
            (key, self.rows[key][0])
            for key in sorted(self.rows)
            if (low is None or key >= low) and (high is None or key <= high)
        ]


class KeyValueMachine(StoreMachine):
    specs = [
        KeyValueStore("rc", serde.bytes, serde.bytes),
        KeyValueStore("ru", serde.bytes, serde.bytes, caching=False),
        KeyValueStore("mc", serde.bytes, serde.bytes, engine="memory"),
        KeyValueStore("mu", serde.bytes, serde.bytes, engine="memory", caching=False),
        KeyValueStore("plain", serde.bytes, serde.bytes, timestamped=False),
        KeyValueStore("plainm", serde.bytes, serde.bytes, timestamped=False, caching=False, engine="memory"),
    ]
    groups = {"timestamped": ["rc", "ru", "mc", "mu"], "plain": ["plain", "plainm"]}

    def new_oracle(self, group: str) -> Table:
        return Table()

    def new_fold(self, name: str) -> Fold:
        return fold_for("keyvalue", timestamped=not name.startswith("plain"))

    def check_all(self) -> None:
        for group, oracle in self.oracles.items():
            self.same_both_ways(group, oracle.items(), "all")

    @rule(writes=st.lists(st.tuples(keys, maybe_values, timestamps), min_size=3, max_size=12))
    def put(self, writes: list[tuple[bytes, bytes | None, int]]) -> None:
        for group, oracle in self.oracles.items():
            for key, value, timestamp in writes:
                oracle.put(key, value, timestamp)
                for store in self.each(group):
                    store.put(key, value, timestamp)

    @rule(items=st.lists(st.tuples(keys, maybe_values), max_size=6), timestamp=timestamps)
    def put_all(self, items: list[tuple[bytes, bytes | None]], timestamp: int) -> None:
        for group, oracle in self.oracles.items():
            for key, value in items:
                oracle.put(key, value, timestamp)
            for store in self.each(group):
                store.put_all(iter(items), timestamp)

    @rule(drawn=read_keys, value=values, timestamp=timestamps)
    def put_if_absent(self, drawn: bytes | int, value: bytes, timestamp: int) -> None:
        for group, oracle in self.oracles.items():
            key = pick(drawn, oracle.rows)
            old = oracle.rows.get(key, (None,))[0]
            self.same(group, old, "put_if_absent", key, value, timestamp)
            if old is None:
                oracle.put(key, value, timestamp)

    @rule(drawn=read_keys)
    def delete(self, drawn: bytes | int) -> None:
        for group, oracle in self.oracles.items():
            key = pick(drawn, oracle.rows)
            old = oracle.rows.get(key, (None,))[0]
            self.same(group, old, "delete", key)
            oracle.put(key, None, 1_000_000)

    @rule(drawn=st.lists(read_keys, min_size=2, max_size=6))
    def get(self, drawn: list[bytes | int]) -> None:
        for group, oracle in self.oracles.items():
            for key in (pick(one, oracle.rows) for one in drawn):
                self.same(group, oracle.rows.get(key, (None,))[0], "get", key)
                if group == "timestamped":
                    row = oracle.rows.get(key)
                    self.same(group, row and ValueAndTimestamp(*row), "get_with_timestamp", key)

    @rule(ranges=st.lists(st.tuples(bounds, bounds), min_size=2, max_size=5))
    def range(self, ranges: list[tuple[bytes | int | None, bytes | int | None]]) -> None:
        for group, oracle in self.oracles.items():
            for drawn_low, drawn_high in ranges:
                low, high = pick(drawn_low, oracle.rows), pick(drawn_high, oracle.rows)
                self.same_both_ways(group, oracle.items(low, high), "range", low, high)

    @rule(drawn=st.lists(keys, min_size=2, max_size=5))
    def prefix_scan(self, drawn: list[bytes]) -> None:
        for group, oracle in self.oracles.items():
            for prefix in drawn:
                expected = [row for row in oracle.items() if row[0].startswith(prefix)]
                self.same_both_ways(group, expected, "prefix_scan", prefix)

    @rule(reverse=st.booleans())
    def hold_an_iterator(self, reverse: bool) -> None:
        for group, oracle in self.oracles.items():
            expected = oracle.items()
            self.hold(group, expected[::-1] if reverse else expected, "all", reverse=reverse)


TestKeyValueMachine = KeyValueMachine.TestCase
TestKeyValueMachine.settings = machine_settings(max_examples=16, steps=40)
