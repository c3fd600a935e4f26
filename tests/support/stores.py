"""Fixtures and definitions for tests of one task's stores.

Rules of this file: real parts only; every task opened through the fixture is closed at the end of its test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from standfast.store import serde
from standfast.store.rocks.engine import RocksEngine
from standfast.store.rocks.opening import RocksShared
from standfast.store.specs import KeyValueStore, SessionStore, StoreSpec, VersionedStore, WindowStore
from standfast.store.task.commit_record import CommitRecord, Position
from standfast.store.task.task_stores import TaskStores

MINUTE_MS = 60_000
TEXT = serde.string
Open = Callable[..., TaskStores]


def keyvalue(name: str = "kv", **settings: Any) -> KeyValueStore:
    return KeyValueStore(name, TEXT, TEXT, **settings)


def window(name: str = "win", **settings: Any) -> WindowStore:
    # 2 minutes of retention make segments of one minute
    return WindowStore(name, TEXT, TEXT, window_size_ms=1_000, retention_ms=2 * MINUTE_MS, **settings)


def session(name: str = "ses", **settings: Any) -> SessionStore:
    return SessionStore(name, TEXT, TEXT, retention_ms=2 * MINUTE_MS, **settings)


def versioned(name: str = "ver", **settings: Any) -> VersionedStore:
    return VersionedStore(name, TEXT, TEXT, history_retention_ms=6_000, **settings)


@pytest.fixture(scope="session")
def rocks_shared() -> RocksShared:
    return RocksShared(16 << 20)


@pytest.fixture
def open_task(tmp_path: Path, rocks_shared: RocksShared) -> Iterator[Open]:
    opened: list[TaskStores] = []

    def open_one(*specs: StoreSpec, directory: Path | None = None, app: str = "app", **settings: Any) -> TaskStores:
        place = directory or tmp_path / "0_0"
        opened.append(TaskStores(place, app, "0_0", specs, rocks_shared, now_ms=lambda: 77, **settings))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


def at(offset: int, *names: str) -> CommitRecord:
    return CommitRecord(positions={name: Position(offset) for name in names or ("kv",)})


def rows_on_disk(directory: Path, shared: RocksShared) -> dict[str, list[tuple[bytes, bytes]]]:
    """Every row of a closed task's database."""
    engine = RocksEngine(directory, shared=shared)
    found = {}
    for family in sorted(engine.families()):
        with engine.scan(family) as scan:
            found[family] = list(scan)
    engine.close()
    return found
