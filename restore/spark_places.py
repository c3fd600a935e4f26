"""Where the stores that a job looks at lie, and opening one of them in a task.

    task       a task's directory or a checkpoint of it, local or in object storage
    manifest   a folder with a manifest (a rebuild, a snapshot): its files are taken into a scratch database

What lies in object storage is copied to a scratch folder first, since RocksDB needs real files.

Rules of this file: reads only; a live owner's directory is refused by who lists places (its files would change under
the tasks). sha256 of every file of a manifest is checked before it is used.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from standfast.replication.offsets import TaskId
from standfast.restore.at_rest import MEMORY_BYTES, StoreAtRest, definitions_of, open_task, store_of, view
from standfast.restore.manifest import FILE_NAME, Manifest, parse_manifest
from standfast.restore.manifest_files import check_files
from standfast.restore.spark_folder import Folder, below
from standfast.restore.take_in import link_files
from standfast.store.cut import Position, StoreTimes
from standfast.store.engine import Engine
from standfast.store.errors import InvalidRequest
from standfast.store.kinds import definition_spec
from standfast.store.memory import MemoryEngine
from standfast.store.rocks import RocksEngine, RocksShared

PlaceKind = Literal["task", "manifest"]


@dataclass(frozen=True, slots=True)
class Place:
    """One task's state. A folder's address is absolute: tasks of Spark run in folders of their own."""

    app: str
    task: TaskId
    address: str
    kind: PlaceKind = "task"

    def __post_init__(self) -> None:
        """Here, and not in the task: that is where a relative path means what the user meant."""
        if "://" not in self.address:
            object.__setattr__(self, "address", str(Path(self.address).absolute()))


@contextmanager
def local_copy(address: str) -> Iterator[Path]:
    """The folder as a local one; a copy if it is elsewhere, removed at the end."""
    folder = Folder(address)
    if folder.local is not None:
        yield folder.local
        return
    scratch = Path(tempfile.mkdtemp(prefix="standfast-place-"))
    try:
        for one in folder.list():
            folder.fetch(one.name, scratch / one.name)
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def open_place(place: Place, store: str) -> Iterator[StoreAtRest]:
    """One store of a place. Raises UnknownStore, Corruption, or what opening a database raises."""
    if place.kind == "manifest":
        with _from_manifest(place) as at_rest:
            yield at_rest
        return
    with local_copy(place.address) as path, open_task(path) as engine:
        yield store_of(engine, store, place.address)


@contextmanager
def _from_manifest(place: Place) -> Iterator[StoreAtRest]:
    folder, number = Folder(place.address), place.task.partition
    manifest = manifest_of(folder)
    scratch = Path(tempfile.mkdtemp(prefix="standfast-place-"))
    try:
        part = manifest.partition(number)
        source = folder.local
        if source is None:
            source = scratch / "fetched"
            for file in part.files:
                folder.fetch(file.name, source / file.name)
        check_files(source, part.files)
        engine = RocksEngine(scratch / "rows", shared=RocksShared(MEMORY_BYTES))
        try:
            by_family: dict[str, list[Path]] = {}
            for family, path in link_files(source, part.files, scratch / "linked"):
                by_family.setdefault(family, []).append(path)
            for family, paths in by_family.items():
                engine.create_family(family)
                engine.ingest(family, paths)
            yield _manifest_store(manifest, number, engine)
        finally:
            engine.close()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _manifest_store(manifest: Manifest, number: int, engine: Engine) -> StoreAtRest:
    part = manifest.partition(number)
    times = StoreTimes(part.observed_ms, part.sequence)
    spec = definition_spec(manifest.store, manifest.definition)
    position = Position(part.end, -1, manifest.topic_id, manifest.made.at_ms)
    return StoreAtRest(view(engine, spec, times), dict(manifest.definition), position, times)


def stores_of(places: Iterable[Place]) -> Iterator[tuple[Place, dict[str, StoreAtRest]]]:
    """All stores of each place, for what their records say; their rows cannot be read any more.

    A manifest speaks for all its partitions and is read once.
    """
    manifests: dict[str, Manifest] = {}
    for place in places:
        if place.kind == "task":
            with local_copy(place.address) as path, open_task(path) as engine:
                found = {name: store_of(engine, name, place.address) for name in definitions_of(engine, place.address)}
            yield place, found
            continue
        if place.address not in manifests:
            manifests[place.address] = manifest_of(Folder(place.address))
        manifest = manifests[place.address]
        yield place, {manifest.store: _manifest_store(manifest, place.task.partition, MemoryEngine())}


def stores_in(place: Place) -> dict[str, StoreAtRest]:
    """As `stores_of`, of one place."""
    ((_, found),) = stores_of([place])
    return found


def manifest_of(folder: Folder) -> Manifest:
    """The manifest of a folder. Raises InvalidRequest if there is none or it is newer, Corruption if it is damaged."""
    raw = folder.read(FILE_NAME)
    if raw is None:
        raise InvalidRequest(f"{folder} has no {FILE_NAME}: it is no such folder, or its making was cut short")
    return _parsed(raw, f"{folder}/{FILE_NAME}")


@lru_cache(maxsize=2)
def _parsed(raw: bytes, where: str) -> Manifest:
    """Each task of a process needs the same one, and it grows with the number of partitions."""
    return parse_manifest(raw, where)


def manifest_places(address: str) -> list[Place]:
    """The partitions of a folder with a manifest."""
    folder = Folder(address)
    manifest = manifest_of(folder)
    return [Place(manifest.app, TaskId(0, one.partition), folder.address, "manifest") for one in manifest.partitions]


def remote_places(address: str, app: str | None) -> list[Place]:
    """Tasks below <address>/<app>/<task>, or of the application that <address> names. Raises InvalidRequest."""
    found: dict[str, list[Place]] = {}
    folder = Folder(address)
    for one in folder.list():
        parts = one.name.split("/")
        if parts[-1] != "CURRENT" or len(parts) < 2:
            continue
        name = parts[-3] if len(parts) > 2 else address.partition("?")[0].rstrip("/").rpartition("/")[2]
        where = below(address, "/".join(parts[:-1]))
        found.setdefault(name, []).append(Place(name, TaskId.parse(parts[-2]), where))
    if app is None and len(found) == 1:
        app = next(iter(found))
    if app is None or app not in found:
        have = ", ".join(sorted(found)) or "none"
        raise InvalidRequest(f"{folder} holds no tasks of application {app!r}: it has {have}; name one with --app")
    return sorted(found[app], key=lambda place: place.task)
