"""Helpers for tests of the bulk restore: sessions that load in bulk, driven by hand, and digests of their stores.

Rules of this file: real workers, real logs. Workers run in real time, so waits use the machine's clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import standfast as sf
from standfast.restore.digest import Digest, digest_rows
from standfast.restore.replay.bulk import BulkLoader
from standfast.restore.replay.bulk_plan import BulkSettings
from standfast.store.rocks.opening import RocksShared
from standfast.store.specs import StoreSpec
from standfast.store.task.task_stores import TaskStores

PATIENCE_S = 60.0
BULK: dict[str, Any] = {"restore_workers": 2, "bulk_restore_records": 1}
BATCHES: dict[str, Any] = {"restore_workers": 0}


@pytest.fixture
def open_stores(tmp_path: Path) -> Iterator[Callable[..., TaskStores]]:
    """Opens the stores of one task, in one directory unless another is named."""
    shared = RocksShared(32 << 20)
    opened: list[TaskStores] = []

    def open_(*specs: StoreSpec, directory: str = "0_0") -> TaskStores:
        opened.append(TaskStores(tmp_path / directory, "app", "0_0", specs, shared, now_ms=lambda: 0))
        return opened[-1]

    yield open_
    for stores in opened:
        stores.close()


@pytest.fixture
def many_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small ranges and a tiny budget, so that a few hundred records make several runs."""
    _tiny(monkeypatch, spills_max=0)


@pytest.fixture
def many_spills(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `many_runs`, but rows leave memory several times before they become a run."""
    _tiny(monkeypatch, spills_max=3)


def _tiny(monkeypatch: pytest.MonkeyPatch, **how: Any) -> None:
    real = BulkLoader.__init__

    def small(self: BulkLoader, log: Any, settings: BulkSettings, *wake: Any) -> None:
        tiny = replace(settings, memory_bytes=6_000, fetch_records=50, warm_records=1, **how)
        real(self, log, tiny if settings.workers else settings, *wake)

    monkeypatch.setattr(BulkLoader, "__init__", small)


def drive(session: sf.Session) -> None:
    """Poll until the gate is open."""
    deadline = time.monotonic() + PATIENCE_S
    while session.missing():
        assert time.monotonic() < deadline, session.missing()
        if not session.poll_once():
            time.sleep(0.002)


def loader(session: sf.Session) -> BulkLoader:
    """The bulk loader of a session."""
    found = session._instance.readiness.restorer.bulk
    assert found is not None
    return found


def digests(session: sf.Session, partitions: Iterable[int] = (0,)) -> dict[tuple[str, int], Digest]:
    """Digest of each store and partition."""
    return {
        (name, partition): digest_rows(store.logical_rows())
        for partition in partitions
        for name, store in session.task(partition).stores.stores.items()
    }
