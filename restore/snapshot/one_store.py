"""Rows of one store of a task from a snapshot: for a store that is lost while its neighbours are good.

    snapshot ── downloaded aside, opened read-only ──> rows of the store ──> new sorted files ── ingested under the mark
                                                              with the snapshot's position; the rest of the log replays

RocksDB takes no file of another database, so the snapshot's own files are never ingested. Reading the rows checks the
checksum of every block, so a snapshot of a damaged database gives none.

Rules of this file: it writes only below `scratch`, and into the given stores by one ingest for each store. A crash on
the way leaves the store marked or without a position, and it is restored again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from standfast.restore.snapshot.catalogue import read_snapshot, to_try
from standfast.restore.snapshot.checkpoint import read_cut
from standfast.restore.snapshot.fetch import Step, fetch, warn_of_pass
from standfast.restore.snapshot.manifest import Snapshot
from standfast.restore.snapshot.names import SnapshotName
from standfast.restore.snapshot.planning import Judged
from standfast.store import files
from standfast.store.engine import Engine
from standfast.store.errors import Corruption, InvalidRequest
from standfast.store.failpoint import reach
from standfast.store.rocks.open_engine import open_engine
from standfast.store.rocks.opening import RocksShared
from standfast.store.rocks.sst import Batch, write_batches
from standfast.store.task.commit_record import Position, StoreTimes
from standfast.store.task.task_stores import TaskStores
from standfast.store.types.segments import store_of_family

if TYPE_CHECKING:
    from standfast.restore.snapshot.storage import Storage

ROWS_FOLDER = "rows"
BATCH_ROWS = 1_000


@dataclass(frozen=True, slots=True)
class StoreFiles:
    """New files (family, path) with the rows of a store, and its position and times in the snapshot."""

    files: tuple[tuple[str, Path], ...]
    position: Position
    times: StoreTimes


@dataclass(slots=True)
class Refilled:
    """Stores that were refilled, each with its snapshot; `passed_over` says why of each snapshot that was of no use."""

    stores: dict[str, SnapshotName] = field(default_factory=dict)
    passed_over: dict[SnapshotName, str] = field(default_factory=dict)
    bytes: int = 0


def refill(
    storage: Storage,
    stores: TaskStores,
    lost: Collection[str],
    scratch: Path,
    shared: RocksShared,
    *,
    judge: Callable[[Snapshot, str], Judged],
    step: Step = lambda snapshot, count: None,
) -> Refilled:
    """Fill empty stores of a task with their rows of the newest snapshot that `judge` accepts for each of them.

    Raises Unavailable if the storage does not answer, damages reads, or the disk is full; errors of an ingest poison
    the task.
    """
    done, left = Refilled(), set(lost)
    for name in to_try(storage, stores.task):
        if not left:
            break
        try:
            snapshot = read_snapshot(storage, name)
            judged = {store: judge(snapshot, store) for store in sorted(left)}
            fit = [store for store, one in judged.items() if not one.reason]
            if not fit:
                reason = "; ".join(sorted({one.reason for one in judged.values()}))
                _pass_over(done, storage, name, stores.task, reason)
                continue
            fetch(storage, snapshot, scratch, shared, step)
            # All rows are read before the first is taken: a damaged block must not leave half a store.
            found = read_rows(scratch, fit, scratch / ROWS_FOLDER, shared)
            done.bytes += snapshot.bytes
        except (Corruption, InvalidRequest) as error:
            _pass_over(done, storage, name, stores.task, str(error))
            files.clear(scratch)
            continue
        except BaseException:
            files.clear(scratch)
            raise
        try:
            for store, rows in found.items():
                reach("snapshot.rows")
                # Of the cut as it is now: an ingest before this one has added its own position.
                cut = replace(stores.cut, positions={**stores.cut.positions, store: rows.position})
                stores.ingest(store, rows.files, rows.times, cut)
                done.stores[store] = name
                left.discard(store)
        finally:
            files.clear(scratch)
    if left and done.passed_over:
        storage.check_reads()
    return done


def read_rows(directory: Path, wanted: Collection[str], target: Path, shared: RocksShared) -> dict[str, StoreFiles]:
    """Write the rows of these stores of a checkpoint as new sorted files below `target`.

    Raises Corruption for a damaged block and for a store without a position.
    """
    record = read_cut(directory, shared).record
    files.make_folder(target)
    found = {}
    with closing(open_engine(directory, shared=shared, read_only=True)) as engine:
        families = sorted(engine.families())
        for number, store in enumerate(sorted(wanted)):
            position = record.positions.get(store)
            if position is None:
                raise Corruption(f"{directory} has no position of store {store!r}, though its manifest names one")
            written = []
            for place, family in enumerate(one for one in families if store_of_family(one) == store):
                path = target / f"{number}-{place}.sst"
                if _write(engine, family, path):
                    written.append((family, path))
            found[store] = StoreFiles(tuple(written), position, record.stores.get(store, StoreTimes()))
    return found


def _write(engine: Engine, family: str, path: Path) -> bool:
    """Write the rows of a family as one file; False if it has none, since an empty file is an error."""
    with engine.scan(family) as scan:
        batches = _batches(iter(scan))
        first = next(batches, None)
        if first is None:
            return False
        write_batches(path, chain([first], batches))
    return True


def _batches(rows: Iterator[tuple[bytes, bytes]]) -> Iterator[Batch]:
    keys: list[bytes] = []
    values: list[bytes | None] = []
    for key, value in rows:
        keys.append(key)
        values.append(value)
        if len(keys) == BATCH_ROWS:
            yield keys, values
            keys, values = [], []
    if keys:
        yield keys, values


def _pass_over(done: Refilled, storage: Storage, name: SnapshotName, task: str, reason: str) -> None:
    done.passed_over[name] = reason
    warn_of_pass(storage, task, name, reason)
