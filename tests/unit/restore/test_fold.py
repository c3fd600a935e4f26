"""The fold of a changelog: every kind at its boundaries, against plain brute force, and against the stores themselves.

Rules of this file: records are (timestamp, key, value) in the order of their offsets; one hour is 3,600,000 ms.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from standfast.replication.log import Record
from standfast.restore.digest import LogicalRow, digest_rows
from standfast.restore.fold import (
    Fold,
    LatestFold,
    Version,
    VersionsFold,
    fold_for,
)
from standfast.store import serde, session_key, window_key
from standfast.store.buffer.rows import StoreRows
from standfast.store.buffer.write_buffer import WriteBuffer
from standfast.store.errors import Corruption, InternalError, InvalidRequest
from standfast.store.memory import MemoryEngine
from standfast.store.results import VALID_TO_UNDEFINED
from standfast.store.specs import KeyValueStore, SessionStore, StoreSpec, VersionedStore, WindowStore
from standfast.store.types.kinds import open_store

Change = tuple[int, bytes, bytes | None]


def log_of(*changes: Change) -> list[Record]:
    """Records at offsets 0, 2, 4, ...: logs have gaps."""
    return [Record(2 * number, timestamp, key, value) for number, (timestamp, key, value) in enumerate(changes)]


def rows_of(fold: Fold, *changes: Change, observed_ms: int = -1) -> set[LogicalRow]:
    fold.add(log_of(*changes))
    rows = list(fold.rows(observed_ms))
    assert len(set(rows)) == len(rows)
    return set(rows)


def versions_of(records: list[Record]) -> dict[bytes, list[Version]]:
    fold = VersionsFold(1_000)
    fold.add(records)
    return dict(fold.versions())


def test_last_record_of_a_key_wins_and_a_tombstone_removes() -> None:
    fold = fold_for("keyvalue")
    rows = rows_of(fold, (5, b"a", b"1"), (4, b"b", b"2"), (3, b"a", b"3"), (6, b"b", None), (1, b"c", b""))
    assert rows == {(b"a", 3, b"3"), (b"c", 1, b"")}
    assert set(fold_for("keyvalue").rows()) == set()


@pytest.mark.parametrize(("timestamped", "timestamp"), [(True, 3), (False, -1)])
def test_timestamp_is_the_records_or_none_where_the_store_keeps_none(timestamped: bool, timestamp: int) -> None:
    assert rows_of(fold_for("keyvalue", timestamped=timestamped), (3, b"a", b"1")) == {(b"a", timestamp, b"1")}


@pytest.mark.parametrize(("start", "visible"), [(900, False), (901, True), (902, True), (1_000, True)])
def test_window_row_hides_once_its_start_is_past_retention(start: int, visible: bool) -> None:
    key, newest = window_key.pack(b"k", start, 0), window_key.pack(b"z", 1_000, 0)
    rows = rows_of(fold_for("window", retention_ms=100), (7, key, b"v"), (8, newest, b"w"))
    assert rows == {(newest, 8, b"w")} | ({(key, 7, b"v")} if visible else set())


@pytest.mark.parametrize(("end", "visible"), [(900, False), (901, True)])
def test_session_row_hides_once_its_end_is_past_retention(end: int, visible: bool) -> None:
    key, newest = session_key.pack(b"k", 10, end), session_key.pack(b"z", 0, 1_000)
    rows = rows_of(fold_for("session", retention_ms=100), (7, key, b"v"), (8, newest, b"w"))
    assert rows == {(newest, -1, b"w")} | ({(key, -1, b"v")} if visible else set())


def test_tombstone_moves_the_observed_time() -> None:
    old, newest = window_key.pack(b"k", 900, 0), window_key.pack(b"k", 1_000, 0)
    assert rows_of(fold_for("window", retention_ms=100), (7, old, b"v"), (8, newest, None)) == set()


@pytest.mark.parametrize(("observed_ms", "visible"), [(-1, True), (999, True), (1_000, False)])
def test_observed_time_of_the_store_hides_rows_too(observed_ms: int, visible: bool) -> None:
    key = window_key.pack(b"k", 900, 0)
    rows = rows_of(fold_for("window", retention_ms=100), (7, key, b"v"), observed_ms=observed_ms)
    assert bool(rows) is visible


def test_duplicates_of_a_window_are_rows_of_their_own() -> None:
    one, two = window_key.pack(b"k", 5, 1), window_key.pack(b"k", 5, 2)
    rows = rows_of(fold_for("window", retention_ms=100), (7, one, b"v"), (8, two, b"v"))
    assert rows == {(one, 7, b"v"), (two, 8, b"v")}


def test_each_version_is_valid_until_the_next_one() -> None:
    records = log_of((10, b"k", b"a"), (30, b"k", b"c"), (20, b"k", b"b"), (20, b"k", b"B"), (40, b"k", None))
    assert versions_of(records) == {
        b"k": [
            Version(10, 20, b"a"),
            Version(20, 30, b"B"),
            Version(30, 40, b"c"),
            Version(40, VALID_TO_UNDEFINED, None),
        ]
    }
    rows = rows_of(VersionsFold(1_000), *((one.timestamp, b"k", one.value) for one in records))
    assert rows == {(b"k", 10, b"a"), (b"k", 20, b"B"), (b"k", 30, b"c")}


@pytest.mark.parametrize(("valid_to", "kept"), [(899, False), (900, False), (901, True)])
def test_version_is_kept_while_it_was_valid_within_the_history(valid_to: int, kept: bool) -> None:
    changes: list[Change] = [(5, b"k", b"a"), (valid_to, b"k", b"b"), (1_000, b"z", b"z")]
    rows = rows_of(fold_for("versioned", retention_ms=100), *changes)
    assert ((b"k", 5, b"a") in rows) is kept
    assert (b"k", valid_to, b"b") in rows  # the latest version stays, however old


@pytest.mark.parametrize(("timestamp", "accepted"), [(899, False), (900, True), (901, True)])
def test_put_older_than_the_history_of_its_moment_is_refused(timestamp: int, accepted: bool) -> None:
    fold = VersionsFold(100)
    rows = rows_of(fold, (1_000, b"z", b"z"), (timestamp, b"k", b"a"))
    assert ((b"k", timestamp, b"a") in rows) is accepted
    assert fold.refused == (0 if accepted else 1)


def test_refusal_depends_on_the_time_observed_at_that_moment() -> None:
    early = rows_of(VersionsFold(100), (500, b"k", b"a"), (1_000, b"z", b"z"))
    late = rows_of(VersionsFold(100), (1_000, b"z", b"z"), (500, b"k", b"a"))
    assert (b"k", 500, b"a") in early
    assert (b"k", 500, b"a") not in late


def test_late_tombstone_ends_the_version_before_it() -> None:
    """A restore by batch instead of record by record brings such a deleted version back."""
    records = log_of((10, b"k", b"a"), (30, b"k", b"c"), (20, b"k", None))
    versions = versions_of(records)[b"k"]
    assert versions == [Version(10, 20, b"a"), Version(20, 30, None), Version(30, VALID_TO_UNDEFINED, b"c")]


def test_key_that_is_no_window_key_is_damage_and_changes_nothing() -> None:
    fold = fold_for("window", retention_ms=100)
    with pytest.raises(Corruption):
        fold.add(log_of((1, b"short", b"v")))
    assert (set(fold.rows()), fold.position) == (set(), 0)


def test_batch_that_was_folded_already_is_our_bug() -> None:
    fold = fold_for("keyvalue")
    fold.add(log_of((1, b"k", b"v"), (1, b"k", b"w")))
    assert fold.position == 3
    fold.add([])
    with pytest.raises(InternalError, match="position is 3"):
        fold.add([Record(2, 1, b"k", b"x")])
    fold.add([Record(3, 1, b"k", b"x")])


@pytest.mark.parametrize(
    ("kind", "retention_ms"), [("table", None), ("window", None), ("session", None), ("versioned", None)]
)
def test_fold_that_cannot_be_is_refused(kind: str, retention_ms: int | None) -> None:
    with pytest.raises(InvalidRequest, match=kind):
        fold_for(kind, retention_ms=retention_ms)


def test_retention_without_a_time_per_row_is_our_bug() -> None:
    with pytest.raises(InternalError):
        LatestFold(retention_ms=5)


TIMES = st.integers(0, 400)
KEYS = st.sampled_from([b"", b"a", b"ab", b"b"])
VALUES = st.none() | st.sampled_from([b"", b"x", b"y"])
CHANGES = st.lists(st.tuples(TIMES, KEYS, VALUES), max_size=40)


def brute_versions(changes: Sequence[Change], retention_ms: int) -> set[LogicalRow]:
    history: dict[tuple[bytes, int], bytes | None] = {}
    observed = -1
    for timestamp, key, value in changes:
        if timestamp >= observed - retention_ms:
            observed = max(observed, timestamp)
            history[key, timestamp] = value
    rows = set()
    for (key, valid_from), value in history.items():
        later = [other for name, other in history if name == key and other > valid_from]
        if value is not None and (not later or min(later) > observed - retention_ms):
            rows.add((key, valid_from, value))
    return rows


@given(CHANGES, st.integers(1, 300))
def test_versions_fold_equals_brute_force(changes: list[Change], retention_ms: int) -> None:
    assert rows_of(VersionsFold(retention_ms), *changes) == brute_versions(changes, retention_ms)


def store_rows(spec: StoreSpec, records: list[Record], batch: int) -> tuple[list[LogicalRow], int]:
    """Rows of a real store on the memory engine after it restored these records; and its observed time."""
    engine = MemoryEngine()
    rows = StoreRows(spec.name, engine, WriteBuffer(), now_ms=lambda: 0)
    engine.create_family(spec.name)
    store = open_store(spec, rows)
    for start in range(0, len(records), batch):
        restored = store.restore(records[start : start + batch])
        for family in restored:
            engine.create_family(family)
        engine.write(restored)
    return list(store.logical_rows()), rows.observed_ms


RETENTION_MS = 120_000  # the smallest at which segments have their least length
LATE = st.tuples(st.integers(0, 10), st.integers(0, 59_999)).map(lambda pair: pair[0] * 60_000 + pair[1])
BYTES_SERDE = serde.bytes


@pytest.mark.parametrize(
    "spec",
    [
        KeyValueStore("store", BYTES_SERDE, BYTES_SERDE),
        KeyValueStore("store", BYTES_SERDE, BYTES_SERDE, timestamped=False),
        WindowStore("store", BYTES_SERDE, BYTES_SERDE, window_size_ms=10, retention_ms=RETENTION_MS),
        SessionStore("store", BYTES_SERDE, BYTES_SERDE, retention_ms=RETENTION_MS),
        VersionedStore("store", BYTES_SERDE, BYTES_SERDE, history_retention_ms=RETENTION_MS),
    ],
    ids=lambda spec: f"{spec.kind}-{spec.timestamped}",
)
@settings(max_examples=settings().max_examples // 3)
@given(changes=st.lists(st.tuples(LATE, KEYS, VALUES, LATE), max_size=40), batch=st.integers(1, 40))
def test_fold_equals_what_the_store_restores(
    spec: StoreSpec, changes: list[tuple[int, bytes, bytes | None, int]], batch: int
) -> None:
    records = []
    for number, (timestamp, key, value, other) in enumerate(changes):
        first, last = sorted((timestamp, other))
        row_key = {
            "window": window_key.pack(key, first, 0),
            "session": session_key.pack(key, first, last),
        }.get(spec.kind, key)
        records.append(Record(number, timestamp, row_key, value))
    fold = fold_for(
        spec.kind, timestamped=spec.timestamped, retention_ms=None if spec.kind == "keyvalue" else RETENTION_MS
    )
    for start in range(0, len(records), batch):
        fold.add(records[start : start + batch])
    rows, observed_ms = store_rows(spec, records, batch)
    assert sorted(fold.rows(observed_ms)) == sorted(rows)
    assert digest_rows(fold.rows(observed_ms)) == digest_rows(rows)
