"""Snapshots of tasks whose instance does not run, and restores into a state directory that no instance has open.

Rules of this file: the caller owns the state directory, by its lock. A directory with a broken seal is no base for a
snapshot: the next opening of the task mends it first.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from standfast.restore.snapshot.checkpoint import describe
from standfast.restore.snapshot.fetch import Restored, Step, restore_task
from standfast.restore.snapshot.manifest import SnapshotFile
from standfast.restore.snapshot.names import SnapshotName
from standfast.restore.snapshot.planning import judge_names
from standfast.restore.snapshot.policy import GRACE_DEFAULT_MS
from standfast.restore.snapshot.storage import Storage
from standfast.restore.snapshot.upload import Created, upload
from standfast.store import files
from standfast.store.clock import Clock
from standfast.store.errors import Unavailable
from standfast.store.file_errors import told
from standfast.store.log import as_event, logger
from standfast.store.rocks.damage import check_noted
from standfast.store.rocks.engine import RocksEngine
from standfast.store.rocks.files import copy_closed
from standfast.store.rocks.opening import RocksShared
from standfast.store.rocks.seal import check_seal
from standfast.store.rocks.wal import refuse_damaged_wal, wal_files
from standfast.store.task.state_dir import StateDir

MEMORY_BYTES = 8 << 20
SETTLE_MEMORY_BYTES = 64 << 20  # with less the log's rows make many small files, and so a compaction of all
SETTLE_WAIT_S = 60.0


def disk_tasks(state: StateDir) -> list[str]:
    """Tasks with a database in a state directory."""
    return [task for task in state.tasks() if (state.task_path(task) / "CURRENT").is_file()]


def create(
    storage: Storage,
    state: StateDir,
    task: str,
    *,
    clock: Clock,
    grace_ms: int = GRACE_DEFAULT_MS,
    step: Callable[[SnapshotFile], None] = lambda file: None,
) -> Created:
    """Store a snapshot of a closed task. Raises Corruption for a damaged directory."""
    source, copy = state.task_path(task), state.copying_path(task)
    # Damage must not be stored as a snapshot: the task's own opening finds and mends it.
    check_seal(source)
    refuse_damaged_wal(source, every_byte=True)
    check_noted(source)
    try:
        copy_closed(source, copy)
        try:
            _settle(copy)
        except Unavailable as error:  # no space: links need none, and each restore replays the log instead
            logger.warning("the snapshot of task %s keeps its write-ahead log: %s", task, error,
                           extra=as_event("snapshot_unsettled", task=task))  # fmt: skip
            files.remove_tree(copy)
            copy_closed(source, copy)
        return create_of_copy(
            storage, copy, state.app, task, state.instance_id, clock=clock, grace_ms=grace_ms, step=step
        )
    finally:
        files.clear(copy)


def _settle(copy: Path) -> None:
    """Bring rows of the copy's write-ahead log to files, and let compaction that is due run, for a minute at most.

    Else each restore does both again (8 MB of log: 0.1 s, and it opens the files twice). The directory itself stays as
    it is: its next opening does its own. Raises Unavailable if the disk is full.
    """
    with told("copying the write-ahead log", copy):
        for log in wal_files(copy):  # a link until here, and RocksDB may cut unwritten space off its end
            content = log.read_bytes()
            files.remove(log)
            files.write(log, content)
    with closing(RocksEngine(copy, shared=RocksShared(SETTLE_MEMORY_BYTES))) as engine:
        engine.settle(SETTLE_WAIT_S)


def create_of_copy(
    storage: Storage,
    copy: Path,
    app: str,
    task: str,
    instance: str,
    *,
    clock: Clock,
    grace_ms: int = GRACE_DEFAULT_MS,
    step: Callable[[SnapshotFile], None] = lambda file: None,
) -> Created:
    """Store a snapshot of a checkpoint that no process has open, such as a sidecar's copy of a task."""
    snapshot = describe(
        copy,
        app=app,
        task=task,
        epoch=None,
        instance=instance,
        at_ms=clock.wall_ms(),
        shared=RocksShared(MEMORY_BYTES),
        hashes={},
    )
    return upload(storage, snapshot, copy, clock=clock, grace_ms=grace_ms, step=step)


def restore(
    storage: Storage,
    state: StateDir,
    task: str,
    *,
    wanted: SnapshotName | None = None,
    step: Step = lambda snapshot, count: None,
) -> Restored:
    """Put the newest snapshot of a task, or the one `wanted`, in the place of its missing directory.

    The log is not asked: the next opening compares the positions with it, as those of any local state.
    """
    shared = RocksShared(MEMORY_BYTES)
    target, scratch = state.task_path(task), state.copying_path(task)
    return restore_task(
        storage,
        task,
        target,
        scratch,
        shared,
        judge=lambda one: judge_names(one, state.app, task),
        wanted=wanted,
        step=step,
    )
