"""Checkpoints of a small task, for tests of snapshots.

Rules of this file: a real database below the given folder, opened and closed by each call.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import standfast as sf
from standfast.restore.snapshot.checkpoint import describe
from standfast.restore.snapshot.manifest import Snapshot
from standfast.store.rocks.opening import RocksShared
from standfast.store.task.commit_record import Position
from standfast.store.task.task_stores import TaskStores

STORE = sf.KeyValueStore("kv", sf.serde.string, sf.serde.string)


def checkpoint(
    folder: Path, rows: Sequence[str], *, epoch: int = 1, topic_id: str = "t", link: Path | None = None
) -> tuple[Snapshot, Path]:
    """A snapshot of task 0_0 of application "app" with these rows, and its checkpoint; earlier rows stay in files."""
    shared, target = RocksShared(4 << 20), folder / "checkpoint"
    shutil.rmtree(target, ignore_errors=True)
    with closing(TaskStores(folder / "0_0", "app", "0_0", [STORE], shared, now_ms=lambda: 0)) as stores:
        store: Any = stores.store("kv")
        for row in rows:
            store.put(row, row * 1_000)
        positions = {"kv": Position(len(rows), topic_id=topic_id)}
        stores.commit(replace(stores.cut, positions=positions, epoch=epoch))
        stores.checkpoint(target)
    if link is not None:
        (target / "000999.sst").symlink_to(link)
    made = describe(
        target,
        app="app",
        task="0_0",
        epoch=epoch,
        instance="me",
        at_ms=0,
        shared=shared,
        hashes={},
    )
    return made, target
