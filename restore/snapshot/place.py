"""Snapshots of a storage as places that jobs read: `ADDRESS/0_3/12-4711`, or `ADDRESS/latest`, the newest of all tasks.

    driver    manifest ──> definitions, positions, observed times: the plan of a job, without a file of the database
    task      files, each with its sha256 ──> a folder of its own ──> the database, read-only

Rules of this file: reads only. A task of a job downloads the whole snapshot that it reads, on its own machine, and
removes it at its end. The storage is opened with the environment's credentials there, too.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from standfast.restore.addresses import shown_address
from standfast.restore.snapshot.catalogue import listed, missing, present, read_own
from standfast.restore.snapshot.fetch import fetch
from standfast.restore.snapshot.names import LATEST, SnapshotName, join_address, parse_name, split_address
from standfast.restore.snapshot.opening import open_existing
from standfast.restore.snapshot.planning import ListedSnapshot, newest
from standfast.store import files
from standfast.store.engine import Engine
from standfast.store.errors import BadConfig, Corruption, InvalidRequest
from standfast.store.names import few
from standfast.store.rocks.open_engine import open_engine
from standfast.store.rocks.opening import RocksShared

if TYPE_CHECKING:
    from standfast.restore.snapshot.manifest import Snapshot
    from standfast.restore.snapshot.storage import Storage

MEMORY_BYTES = 64 << 20


def names_snapshot(text: str) -> bool:
    """Whether an address names snapshots of a storage; a folder that exists under it is that folder."""
    return split_address(text) is not None and not Path(text).is_dir()


def find_snapshots(text: str, app: str | None) -> list[tuple[str, Snapshot]]:
    """The snapshots that `ADDRESS/NAME` names, each with its own address.

    Raises InvalidRequest for an absent one or without an application, Corruption for one that is not whole.
    """
    found = split_address(text)
    if found is None:
        raise InvalidRequest(
            f"{shown_address(text)} names no snapshot: give ADDRESS/TASK/EPOCH-POSITION, or ADDRESS/latest"
        )
    if app is None:
        raise InvalidRequest(
            f"whose snapshots are in {shown_address(found[0])}? name the application (--app, option app)"
        )
    storage = open_existing(found[0], app)
    if found[1] != LATEST:
        snapshot = read_own(storage, parse_name(found[1]))
        faults = missing(snapshot.files, present(storage, snapshot.contents))
        if faults:
            raise Corruption(f"snapshot {snapshot.name} in {storage.where} is not whole: {'; '.join(faults[:3])}")
        return [(text, snapshot)]
    # Broken ones are left out, so that the newest of a task is one that can be read.
    by_task: dict[str, list[ListedSnapshot]] = {}
    snapshots = listed(storage)
    for kept in snapshots.whole:
        by_task.setdefault(kept.snapshot.task, []).append(kept)
    if not by_task:
        raise InvalidRequest(f"{storage.where} has no whole snapshot: `standfast snapshot list` shows all")
    # A job over the others would answer for a part of the application as if it were all of it.
    if lacking := sorted(snapshots.tasks - by_task.keys()):
        raise Corruption(
            f"{storage.where} has no whole snapshot of task {few(lacking)}: `standfast snapshot list` says why; "
            "name the snapshots of the others, or make new ones"
        )
    return [(join_address(found[0], str(one.name)), one) for one in map(newest, by_task.values())]


def manifest_at(text: str, app: str) -> Snapshot:
    """The manifest of `ADDRESS/NAME`."""
    storage, name = _named(text, app)
    return read_own(storage, name)


@contextmanager
def fetched(text: str, app: str) -> Iterator[Path]:
    """The snapshot's files in a folder named as its task, removed at the end. Raises Corruption for a damaged file."""
    storage, name = _named(text, app)
    snapshot = read_own(storage, name)
    scratch = Path(tempfile.mkdtemp(prefix="standfast-snapshot-"))
    try:
        target = scratch / snapshot.task
        fetch(storage, snapshot, target, RocksShared(MEMORY_BYTES))
        yield target
    finally:
        files.clear(scratch)


@contextmanager
def open_snapshot(text: str, app: str) -> Iterator[Engine]:
    """The snapshot's database, read-only, of files that are fetched for it."""
    with (
        fetched(text, app) as directory,
        closing(open_engine(directory, shared=RocksShared(MEMORY_BYTES), read_only=True)) as engine,
    ):
        yield engine


def _named(text: str, app: str) -> tuple[Storage, SnapshotName]:
    found = split_address(text)
    if found is None or found[1] == LATEST:
        raise BadConfig([f"{shown_address(text)} is not the address of one snapshot"])
    return open_existing(found[0], app), parse_name(found[1])
