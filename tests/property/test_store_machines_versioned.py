"""The versioned store against a dict of dicts: out of order, equal times, tombstones, every boundary, history."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule

from standfast.restore.fold import Fold, fold_for
from standfast.store import serde
from standfast.store.results import PUT_NOT_VALID, VALID_TO_UNDEFINED, VersionedRecord
from standfast.store.specs import VersionedStore
from support.machines import Change, StoreMachine, machine_settings, maybe_values, moment_ms, moments

RETENTION_MS = 6_000
INTERVAL_MS = 2_000  # a third of a history of up to a minute, at least two seconds
Moment = tuple[str, int, int]

# Few keys, so that histories grow long; a key that begins with another, and bytes that look like a segment's id.
keys = st.sampled_from([b"", b"a", b"a\x00", b"\xff", b"\x00\x00\x00\x00\x00\x00\x00\x01a", b"\xff" * 8])

pytestmark = pytest.mark.slow


class Versions:
    """A versioned store by definition: key -> {valid_from: value or None}, and the reach of its history."""

    def __init__(self) -> None:
        self.versions: dict[bytes, dict[int, bytes | None]] = {}
        self.observed_ms = -1
        self.late = 0
        self.changes: list[Change] = []

    def copy(self) -> Versions:
        other = Versions()
        other.versions = {key: dict(versions) for key, versions in self.versions.items()}
        other.observed_ms = self.observed_ms
        return other

    def valid_to(self, key: bytes, valid_from: int) -> int:
        later = [stamp for stamp in self.versions.get(key, {}) if stamp > valid_from]
        return min(later) if later else VALID_TO_UNDEFINED

    def put(self, key: bytes, value: bytes | None, timestamp: int) -> int:
        if timestamp < self.observed_ms - RETENTION_MS:
            self.late += 1
            return PUT_NOT_VALID
        self.observed_ms = max(self.observed_ms, timestamp)
        self.changes.append((key, value, timestamp))
        self.versions.setdefault(key, {})[timestamp] = value
        return self.valid_to(key, timestamp)

    def record(self, key: bytes, valid_from: int) -> VersionedRecord[bytes] | None:
        value = self.versions[key][valid_from]
        return None if value is None else VersionedRecord(value, valid_from, self.valid_to(key, valid_from))

    def get(self, key: bytes, as_of: int | None = None) -> VersionedRecord[bytes] | None:
        """The version valid at a time. The latest never expires; an ended version is visible only within retention."""
        begun = [stamp for stamp in self.versions.get(key, {}) if as_of is None or stamp <= as_of]
        found = self.record(key, max(begun)) if begun else None
        if found is None or found.valid_to == VALID_TO_UNDEFINED:
            return found
        assert as_of is not None
        return found if as_of >= self.observed_ms - RETENTION_MS else None

    def range(self, key: bytes, time_from: int, time_to: int) -> list[VersionedRecord[bytes]]:
        """Every version that `get` would return for some time of the range, newest first."""
        times = {time_from, max(time_from, self.observed_ms - RETENTION_MS), *self.versions.get(key, {})}
        found = {self.get(key, time) for time in times if time_from <= time <= time_to}
        return sorted((record for record in found if record), key=lambda record: -record.valid_from)


def spec(name: str, **settings: object) -> VersionedStore:
    return VersionedStore(name, serde.bytes, serde.bytes, history_retention_ms=RETENTION_MS, **settings)  # type: ignore[arg-type]


class VersionedMachine(StoreMachine):
    specs = [spec("ru"), spec("mu", engine="memory")]  # never cached: each version is logged
    groups = {"versions": ["ru", "mu"]}
    compactable = False  # each version counts; min.compaction.lag.ms keeps compaction away from the history

    def new_oracle(self, group: str) -> Versions:
        return Versions()

    def new_fold(self, name: str) -> Fold:
        return fold_for("versioned", retention_ms=RETENTION_MS)

    @property
    def oracle(self) -> Versions:
        return self.oracles["versions"]  # type: ignore[no-any-return]

    def times_of(self, key: bytes) -> list[int]:
        """Every boundary of a key: one before, at, and one after each valid-from, and the edge of history."""
        edge = self.oracle.observed_ms - RETENTION_MS
        stamps = {*self.oracle.versions.get(key, {}), edge}
        return sorted({max(stamp + off, 0) for stamp in stamps for off in (-1, 0, 1)})

    def check_all(self) -> None:
        self.same_time("versions", self.oracle.observed_ms)
        for key in self.oracle.versions:
            self.check_key(key)

    @rule(key=keys)
    def check_key(self, key: bytes) -> None:
        self.same("versions", self.oracle.get(key), "get", key)
        for as_of in self.times_of(key):
            self.same("versions", self.oracle.get(key, as_of), "get", key, as_of=as_of)
            self.same("versions", self.oracle.range(key, 0, as_of), "range", key, 0, as_of)
        expected = self.oracle.range(key, 0, 2**60)
        self.same("versions", expected, "range", key, 0, 2**60)

    def at(self, moment: Moment) -> int:
        return moment_ms(moment, self.oracle.observed_ms, RETENTION_MS, INTERVAL_MS)

    @rule(key=keys, writes=st.lists(st.tuples(maybe_values, moments), min_size=3, max_size=10))
    def put(self, key: bytes, writes: list[tuple[bytes | None, Moment]]) -> None:
        for value, moment in writes:
            timestamp, late = self.at(moment), self.oracle.late
            valid_to = self.oracle.put(key, value, timestamp)
            for store in self.each("versions"):
                counted = store.rows.counters.late_dropped
                assert store.put(key, value, timestamp) == valid_to
                assert store.rows.counters.late_dropped - counted == self.oracle.late - late
        self.check_key(key)

    @rule(key=keys, number=st.integers(0, 20), off=st.integers(-1, 1), value=maybe_values)
    def put_beside_a_version(self, key: bytes, number: int, off: int, value: bytes | None) -> None:
        stamps = sorted(self.oracle.versions.get(key, {0: None}))
        timestamp = max(stamps[number % len(stamps)] + off, 0)
        valid_to = self.oracle.put(key, value, timestamp)
        self.same("versions", valid_to, "put", key, value, timestamp)
        self.check_key(key)

    @rule(key=keys, moment=moments)
    def delete(self, key: bytes, moment: Moment) -> None:
        timestamp = self.at(moment)
        old = self.oracle.get(key, timestamp)
        expected = None if self.oracle.put(key, None, timestamp) == PUT_NOT_VALID else old
        self.same("versions", expected, "delete", key, timestamp)
        self.check_key(key)

    @rule(key=keys, moments=st.lists(st.tuples(moments, moments), min_size=2, max_size=5))
    def range(self, key: bytes, moments: list[tuple[Moment, Moment]]) -> None:
        edges = [(first, last) for first in self.times_of(key) for last in self.times_of(key)]
        for first, last in [*((self.at(first), self.at(last)) for first, last in moments), *edges[:40]]:
            expected = self.oracle.range(key, first, last)
            self.same("versions", expected, "range", key, first, last)
            self.same("versions", expected[::-1], "range", key, first, last, ascending=True)


TestVersionedMachine = VersionedMachine.TestCase
TestVersionedMachine.settings = machine_settings(max_examples=16, steps=50)
