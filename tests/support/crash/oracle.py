"""The content of a store according to its changelog, in plain loops, and the store's differences from it.

    plain_fold      rows (key, timestamp, value) and largest time of a changelog up to some offset
    differences     the committed rows of a store against that
    read_back       the same through the store's public reads
    wrong_rows      never written rows of a store that may have lost some

A record without a key, which no changelog has, moves only the largest time: see `crash_stores`.

Rules of this file: the expected rows share nothing with the library's own fold; that one and its digest are compared
beside it. Answers are lists of sentences, empty if nothing differs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from standfast.replication.log import Record
from standfast.restore.digest import digest_rows
from standfast.restore.fold import fold_for
from standfast.store.specs import SessionStore, StoreSpec, VersionedStore, WindowStore
from standfast.store.task.task_stores import AnyStore

Row = tuple[bytes, int, bytes]
TIME_MAX = 2**62


@dataclass
class Expected:
    """Logical rows of a changelog, and the largest time in it (-1: none)."""

    rows: set[Row]
    observed_ms: int = -1


def plain_fold(spec: StoreSpec, records: Iterable[Record]) -> Expected:
    if isinstance(spec, VersionedStore):
        return plain_versions(spec.history_retention_ms, records)
    kept: dict[bytes, tuple[int, bytes]] = {}
    observed_ms = -1
    for record in records:
        if record.key is None:
            observed_ms = max(observed_ms, record.timestamp)
            continue
        kept.pop(record.key, None)
        if record.value is not None:
            kept[record.key] = (record.timestamp if spec.timestamped else -1, record.value)
        observed_ms = max(observed_ms, row_time(spec, record.key))
    if isinstance(spec, (WindowStore, SessionStore)):
        kept = {key: row for key, row in kept.items() if row_time(spec, key) > observed_ms - spec.retention_ms}
    return Expected({(key, *row) for key, row in kept.items()}, observed_ms)


def row_time(spec: StoreSpec, key: bytes) -> int:
    if isinstance(spec, WindowStore):
        return int.from_bytes(key[-12:-4], "big")
    return int.from_bytes(key[-16:-8], "big") if isinstance(spec, SessionStore) else -1


def plain_versions(retention_ms: int, records: Iterable[Record]) -> Expected:
    kept: dict[bytes, dict[int, bytes | None]] = {}
    observed_ms = -1
    for record in records:
        if record.key is None:
            observed_ms = max(observed_ms, record.timestamp)
            continue
        if record.timestamp >= observed_ms - retention_ms:
            kept.setdefault(record.key, {})[record.timestamp] = record.value
        observed_ms = max(observed_ms, record.timestamp)
    rows = set()
    for key, versions in kept.items():
        starts = sorted(versions)
        for start, end in zip(starts, [*starts[1:], None], strict=True):
            value = versions[start]
            if value is not None and (end is None or end > observed_ms - retention_ms):
                rows.add((key, start, value))
    return Expected(rows, observed_ms)


def differences(store: AnyStore, log: list[Record], where: str) -> list[str]:
    """Differences of a store's committed rows and observed stream time from the log."""
    return row_differences(store, log, where) + library_differences(store, log, where)


def row_differences(store: AnyStore, log: list[Record], where: str) -> list[str]:
    """As `differences`, by the plain loops only."""
    expected = plain_fold(store.spec, log)
    rows = list(store.logical_rows())
    problems = []
    if len(rows) != len(set(rows)):
        problems.append(f"{where}: a row comes twice")
    missing, extra = sorted(expected.rows - set(rows)), sorted(set(rows) - expected.rows)
    if missing or extra:
        problems.append(f"{where}: {len(missing)} rows missing {missing[:2]}, {len(extra)} extra {extra[:2]}")
    if store.rows.observed_ms != expected.observed_ms:
        problems.append(f"{where}: observed {store.rows.observed_ms}, the log says {expected.observed_ms}")
    return problems


def library_differences(store: AnyStore, log: list[Record], where: str) -> list[str]:
    """As `differences`, by the library's own fold and digest."""
    spec = store.spec
    retention_ms = getattr(spec, "history_retention_ms", getattr(spec, "retention_ms", None))
    fold = fold_for(spec.kind, timestamped=spec.timestamped, retention_ms=retention_ms)
    fold.add(log)
    wanted, found = digest_rows(fold.rows()), digest_rows(store.logical_rows())
    return [] if wanted == found else [f"{where}: digest of the log {wanted.hex()}, of the rows {found.hex()}"]


def late_rows(store: AnyStore, records: list[Record], where: str) -> list[str]:
    """As `row_differences`, for a store that does not know its largest time: it may also show rows past retention."""
    missing = plain_fold(store.spec, records).rows - set(store.logical_rows())
    told = f"{where}: {len(missing)} rows missing {sorted(missing)[:2]}, observed {store.rows.observed_ms}"
    return [told] * bool(missing) + wrong_rows(store, records, where)


def recent_differences(store: AnyStore, records: list[Record], where: str) -> list[str]:
    """As `row_differences`, for a versioned store whose clock may have come from an instance that was ahead.

    Versions past retention may be missing then: the newest version of a key stays, unless it was put late.
    """
    horizon_ms = store.rows.observed_ms - store.spec.history_retention_ms
    missing = sorted(plain_fold(store.spec, records).rows - set(store.logical_rows()))
    recent = [row for row in missing if row[1] >= horizon_ms]
    told = f"{where}: {len(recent)} rows missing {recent[:2]}, observed {store.rows.observed_ms}"
    return [told] * bool(recent) + wrong_rows(store, records, where)


def wrong_rows(store: AnyStore, records: list[Record], where: str) -> list[str]:
    """Rows that were never written: rows may be missing, or be those of an earlier time."""
    spec = store.spec
    if isinstance(spec, VersionedStore):
        possible = {(one.key, one.timestamp, one.value) for one in records}
    else:
        possible = {(one.key, one.timestamp if spec.timestamped else -1, one.value) for one in records}
    wrong = sorted(set(store.logical_rows()) - possible)
    return [f"{where}: {len(wrong)} rows that were never written {wrong[:2]}"] if wrong else []


def read_differences(store: AnyStore, log: list[Record], where: str) -> list[str]:
    """Differences of a user's reads from a store (string keys) from the log; the order is that of the raw keys."""
    rows = sorted(plain_fold(store.spec, log).rows)
    expected = [written(store.spec, key, timestamp, value) for key, timestamp, value in rows]
    found = read_back(store, sorted({row[0] for row in expected}))
    return (
        [] if found == expected else [f"{where}: {len(found)} rows read, {len(expected)} expected, or in other order"]
    )


def written(spec: StoreSpec, key: bytes, timestamp: int, value: bytes) -> tuple[Any, ...]:
    decoded = spec.value.deserialize(value)
    if isinstance(spec, WindowStore):
        return key[:-12].decode(), row_time(spec, key), decoded
    if isinstance(spec, SessionStore):
        return key[:-16].decode(), int.from_bytes(key[-8:], "big"), row_time(spec, key), decoded
    return (key.decode(), timestamp, decoded) if isinstance(spec, VersionedStore) else (key.decode(), decoded)


def read_back(store: AnyStore, keys: list[str]) -> list[tuple[Any, ...]]:
    reads: Any = store
    if isinstance(store.spec, VersionedStore):
        return [
            (key, version.valid_from, version.value)
            for key in keys
            for version in reads.range(key, 0, TIME_MAX, ascending=True)
        ]
    if isinstance(store.spec, WindowStore):
        return [(window.key, window.start, value) for window, value in reads.all()]
    if isinstance(store.spec, SessionStore):
        return [(window.key, window.start, window.end, value) for window, value in reads.all()]
    return list(reads.all())
