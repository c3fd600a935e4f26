"""The key-value store against a dict: cache on and off, both engines, restarts, cold restores, held iterators."""

from __future__ import annotations

import pytest
from fix_machines import Change, StoreMachine, keys, machine_settings, maybe_values, timestamps, values
from hypothesis import strategies as st
from hypothesis.stateful import rule

from standfast.restore.fold import Fold, fold_for
from standfast.store import serde
from standfast.store.results import ValueAndTimestamp
from standfast.store.specs import KeyValueStore

bounds = st.none() | keys

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
            self.same(group, oracle.items(), "all")

    @rule(writes=st.lists(st.tuples(keys, maybe_values, timestamps), min_size=1, max_size=8))
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

    @rule(key=keys, value=values, timestamp=timestamps)
    def put_if_absent(self, key: bytes, value: bytes, timestamp: int) -> None:
        for group, oracle in self.oracles.items():
            old = oracle.rows.get(key, (None,))[0]
            self.same(group, old, "put_if_absent", key, value, timestamp)
            if old is None:
                oracle.put(key, value, timestamp)

    @rule(key=keys)
    def delete(self, key: bytes) -> None:
        for group, oracle in self.oracles.items():
            old = oracle.rows.get(key, (None,))[0]
            self.same(group, old, "delete", key)
            oracle.put(key, None, 1_000_000)

    @rule(some=st.lists(keys, max_size=6))
    def get(self, some: list[bytes]) -> None:
        for key in some:
            for group, oracle in self.oracles.items():
                self.same(group, oracle.rows.get(key, (None,))[0], "get", key)
            row = self.oracles["timestamped"].rows.get(key)
            expected = None if row is None else ValueAndTimestamp(*row)
            self.same("timestamped", expected, "get_with_timestamp", key)

    @rule(low=bounds, high=bounds, reverse=st.booleans())
    def range(self, low: bytes | None, high: bytes | None, reverse: bool) -> None:
        for group, oracle in self.oracles.items():
            expected = oracle.items(low, high)
            expected = expected[::-1] if reverse else expected
            self.same(group, expected, "range", low, high, reverse=reverse)

    @rule(prefix=keys, reverse=st.booleans())
    def prefix_scan(self, prefix: bytes, reverse: bool) -> None:
        for group, oracle in self.oracles.items():
            expected = [row for row in oracle.items() if row[0].startswith(prefix)]
            expected = expected[::-1] if reverse else expected
            self.same(group, expected, "prefix_scan", prefix, reverse=reverse)

    @rule(reverse=st.booleans())
    def hold_an_iterator(self, reverse: bool) -> None:
        for group, oracle in self.oracles.items():
            expected = oracle.items()
            self.hold(group, expected[::-1] if reverse else expected, "all", reverse=reverse)


TestKeyValueMachine = KeyValueMachine.TestCase
TestKeyValueMachine.settings = machine_settings(max_examples=40, steps=40)
