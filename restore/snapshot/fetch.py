"""Restores a task's directory from a snapshot: files, checks, one rename.

    scratch (new) ──> marker ──> files, in parallel, each with its sha256 ──> database opens, its cut is the manifest's
            ──> renamed to the task's directory, which must hold no database

A damaged or missing file, or a database with another cut, makes the snapshot unusable, and the next older one is tried.
The files are opened whole as the task's database. They cannot be ingested into another: RocksDB takes only files that
were written for that.

Rules of this file: the task's directory appears whole, by a rename, or not at all. It never replaces a database.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, wait
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from standfast.restore.snapshot.catalogue import missing, present, read_snapshot, to_try
from standfast.restore.snapshot.checkpoint import cut_of, read_cut
from standfast.restore.snapshot.manifest import Snapshot, SnapshotFile
from standfast.restore.snapshot.names import SnapshotName, file_key
from standfast.restore.snapshot.planning import Judged
from standfast.store import files
from standfast.store.errors import Corruption, InvalidRequest, Unavailable
from standfast.store.failpoint import reach
from standfast.store.file_errors import told
from standfast.store.log import as_event, logger
from standfast.store.process.interrupts import Flag
from standfast.store.rocks.opening import RocksShared
from standfast.store.task.state_dir import write_marker

if TYPE_CHECKING:
    from standfast.restore.snapshot.storage import Storage  # imports the library of the extra

DOWNLOADS_AT_ONCE = 8
_DATABASE = ("CURRENT", "MANIFEST-*", "*.sst", "*.log", "*.blob")


# Called with the snapshot and the bytes of each part that has arrived; its errors end the download.
Step = Callable[[Snapshot, int], None]


@dataclass(slots=True)
class Restored:
    """The outcome: the snapshot taken, None if none was usable; `passed_over` says why of each newer one."""

    snapshot: Snapshot | None = None
    tail: int = 0
    passed_over: dict[SnapshotName, str] = field(default_factory=dict)


def holds_database(directory: Path) -> bool:
    """Whether a task's directory has any file of a database, damaged or not."""
    return any(next(directory.glob(pattern), None) is not None for pattern in _DATABASE)


def restore_task(
    storage: Storage,
    task: str,
    target: Path,
    scratch: Path,
    shared: RocksShared,
    *,
    judge: Callable[[Snapshot], Judged],
    wanted: SnapshotName | None = None,
    step: Step = lambda snapshot, count: None,
) -> Restored:
    """Put the newest usable snapshot of a task, or the one `wanted`, at `target`; `scratch` is used on the way.

    Raises InvalidRequest if `target` holds a database, Unavailable if the storage does not answer, or damages reads.
    """
    if holds_database(target):
        raise InvalidRequest(f"{target} holds a database: a snapshot never replaces one; move the directory away first")

    def take(snapshot: Snapshot) -> None:
        try:
            fetch(storage, snapshot, scratch, shared, step)
            place(scratch, target)
        finally:
            files.clear(scratch)

    done = _first_usable(storage, task, judge, wanted, take, partial(warn_of_pass, storage, task))
    if done.snapshot is None and done.passed_over:
        storage.check_reads()  # of a storage that damages all reads nothing is known, not even that none fits
    return done


def warn_of_pass(storage: Storage, task: str, name: SnapshotName, reason: str) -> None:
    """Warn that a restore passes a snapshot over."""
    logger.warning(
        "snapshot %s of %s is passed over: %s",
        name,
        storage.where,
        reason,
        extra=as_event("snapshot_passed_over", snapshot=str(name), task=task),
    )


def find_usable(
    storage: Storage, task: str, *, judge: Callable[[Snapshot], Judged], wanted: SnapshotName | None = None
) -> Restored:
    """The snapshot that `restore_task` would take, by manifests and sizes of files alone: no file is read or written.

    Raises Unavailable if the storage does not answer.
    """

    def take(snapshot: Snapshot) -> None:
        faults = missing(snapshot.files, present(storage, snapshot.contents))
        if faults:
            raise Corruption("; ".join(faults[:3]))

    return _first_usable(storage, task, judge, wanted, take, lambda name, reason: None)


def _first_usable(
    storage: Storage,
    task: str,
    judge: Callable[[Snapshot], Judged],
    wanted: SnapshotName | None,
    take: Callable[[Snapshot], None],
    pass_over: Callable[[SnapshotName, str], None],
) -> Restored:
    """The newest snapshot that `judge` accepts and for which `take` raises neither Corruption nor InvalidRequest."""
    done = Restored()
    for name in to_try(storage, task) if wanted is None else [wanted]:
        try:
            snapshot = read_snapshot(storage, name)
            judged = judge(snapshot)
            if not judged.reason:
                take(snapshot)
                done.snapshot, done.tail = snapshot, judged.tail
                return done
            reason = judged.reason
        except (Corruption, InvalidRequest) as error:
            reason = str(error)
        done.passed_over[name] = reason
        pass_over(name, reason)
    return done


def fetch(
    storage: Storage,
    snapshot: Snapshot,
    scratch: Path,
    shared: RocksShared,
    step: Step = lambda snapshot, count: None,
    *,
    app: str | None = None,
) -> None:
    """Download a snapshot to a new directory and check it. Raises Corruption if it is damaged.

    The directory is marked as a task's of `app`, None: of the snapshot's own application.
    """
    files.clear(scratch)
    with told("restoring a snapshot", scratch):
        # The marker first, as for any task's directory: a database without one is refused as foreign.
        files.make_folder(scratch, parents=True)
        write_marker(scratch, app or snapshot.app, snapshot.task)

    step(snapshot, 0)
    over = Flag()

    def arrived(count: int) -> None:
        if over.is_set():
            raise Unavailable(f"the download of snapshot {snapshot.name} was broken off")
        step(snapshot, count)

    def download(file: SnapshotFile) -> None:
        storage.download(file_key(file.sha256), scratch / file.name, file.bytes, file.sha256, arrived)
        reach("snapshot.download")

    with storage.threads.pool(DOWNLOADS_AT_ONCE, "standfast-snapshot") as pool:
        running = [pool.submit(download, file) for file in snapshot.files]
        try:
            for future in wait(running, return_when=FIRST_EXCEPTION).done:
                future.result()
        except BaseException:
            # The first damaged file decides, or an interrupt: those under way end with their next part.
            over.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    # Opened once before it counts: files may be whole and yet no database, if they were damaged when they were stored.
    found = read_cut(scratch, shared)
    topics = {name: at.topic for name, at in snapshot.cut.positions.items()}
    cut = cut_of(found.record, topics, int(snapshot.task.rpartition("_")[2]))
    if cut != snapshot.cut:
        raise Corruption(f"the database of snapshot {snapshot.name} is not at the point that its manifest says")
    if found.record.task not in ("", snapshot.task):
        raise Corruption(f"the database of snapshot {snapshot.name} is that of task {found.record.task}")
    files.sync_folder(scratch)
    reach("snapshot.fetched")


def place(scratch: Path, target: Path) -> None:
    """Make a restored directory the task's own."""
    with told("putting a restored snapshot in place", target):
        if target.exists():  # a marker, and logs for people: an opening that was cut short leaves them
            files.remove_tree(target)
        files.rename(scratch, target)
        files.sync_folder(target.parent)
    reach("snapshot.placed")
