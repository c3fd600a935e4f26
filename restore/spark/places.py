"""Places of the stores that a job reads, and the opening of one of them in a task.

    task       a task's directory or a checkpoint of it, local or in object storage
    manifest   a folder with a manifest (a rebuild): its files are ingested into a scratch database
    snapshot   a snapshot of a task in a storage, `ADDRESS/0_3/12-4711`: its files are fetched and opened

An address that is read as a table (`places_at`) leads to places:

    /var/lib/delays          state directory: the application in it (by `app` if there are several)
    /var/lib/delays/board    all tasks of an application
    .../board/0_3            one task
    a folder with a manifest (rebuilt, snapshot, written by Spark), or the same of all these in object storage

RocksDB needs real files, so files in object storage are fetched first: those of one store, once on a machine for all
tasks of a run (`files.py`). The list of stores needs no fetch, since a file beside each task's database has their
definitions (`standfast.store.task.definitions_file`); their positions are in the database alone.

Rules of this file: reads only; the listing of places refuses a live owner's directory (its files would change under the
tasks). sha256 of every file of a manifest is checked before its use.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from standfast.replication.offsets import TaskId
from standfast.restore.addresses import shown_address
from standfast.restore.files.manifest import FILE_NAME, Manifest, parse_manifest
from standfast.restore.files.manifest_files import check_files
from standfast.restore.snapshot.manifest import Snapshot
from standfast.restore.snapshot.place import (
    find_snapshots,
    manifest_at,
    names_snapshot,
    open_snapshot,
)
from standfast.restore.spark.files import files_of
from standfast.restore.spark.folder import Folder, below
from standfast.restore.spark.task_files import open_fetched
from standfast.restore.verify.at_rest import (
    MEMORY_BYTES,
    StoreAtRest,
    definitions_of,
    find_tasks,
    open_task,
    store_of,
    view,
)
from standfast.restore.verify.import_tasks import link_files
from standfast.store.engine import Engine
from standfast.store.errors import Held, InvalidRequest, UnknownStore
from standfast.store.names import few
from standfast.store.rocks.engine import RocksEngine
from standfast.store.rocks.opening import RocksShared
from standfast.store.task.commit_record import Position, StoreTimes, read_record
from standfast.store.task.definitions_file import STORES_FILE, parse
from standfast.store.types.kinds import definition_spec

PlaceKind = Literal["task", "manifest", "snapshot"]
NO_TIMES = StoreTimes()
AT_ONCE = 16  # small files read side by side: each takes a few answers of object storage


@dataclass(frozen=True, slots=True)
class TaskPlace:
    """One task's state. A folder's address is absolute: tasks of Spark run in folders of their own.

    `run`: the run whose tasks share its fetched files (see `files.py`); "" for no sharing.
    """

    app: str
    task: TaskId
    address: str
    kind: PlaceKind = "task"
    run: str = ""

    def __post_init__(self) -> None:
        """Make the path absolute here, not in the task: only here it is relative to the user's folder."""
        if "://" not in self.address:
            object.__setattr__(self, "address", str(Path(self.address).absolute()))

    @property
    def remote(self) -> bool:
        """Whether its files must be fetched; a snapshot's are fetched by the task that opens it."""
        return self.kind != "snapshot" and "://" in self.address and not self.address.startswith("file://")

    def __str__(self) -> str:
        """The address without login and options."""
        return shown_address(self.address)


@dataclass(frozen=True, slots=True)
class Described:
    """A store's definition, position and times, without its rows.

    `known`: position and times were read from the database (position None: no record was ever applied). `note`: why a
    database in object storage had to be opened for this.
    """

    definition: Mapping[str, Any]
    position: Position | None = None
    times: StoreTimes = NO_TIMES
    known: bool = True
    note: str = ""


class StorePlaces(NamedTuple):
    """A store and the places that hold it."""

    name: str
    definition: Mapping[str, Any]
    places: tuple[TaskPlace, ...]


@contextmanager
def local_copy(address: str) -> Iterator[Path]:
    """The folder as a local one; for object storage a copy, removed at the end."""
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
def open_place(place: TaskPlace, store: str, definition: Mapping[str, Any] | None = None) -> Iterator[StoreAtRest]:
    """One store of a place. Raises UnknownStore, Corruption, or the errors of opening a database.

    `definition`: the plan's definition of the store; InvalidRequest if the database has another.
    """
    if place.kind == "manifest":
        with _from_manifest(place) as at_rest:
            yield at_rest
        return
    with open_database(place, store) as engine:
        at_rest = store_of(engine, store, str(place))
        # A plan may be from the file beside the database, but the database decides.
        if definition is not None and dict(definition) != at_rest.definition:
            raise InvalidRequest(contradiction(place, {store: definition}, {store: at_rest.definition}))
        yield at_rest


@contextmanager
def open_database(place: TaskPlace, store: str | None) -> Iterator[Engine]:
    """A task's database with its commit record, and the rows of one store (None: of none)."""
    if place.kind == "snapshot":
        with open_snapshot(place.address, place.app) as engine:
            yield engine
        return
    folder = Folder(place.address)
    if folder.local is not None:
        with open_task(folder.local) as engine:
            yield engine
        return
    with files_of(folder, place.run) as files, open_fetched(files, store) as engine:
        yield engine


def contradiction(place: TaskPlace, said: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """The message for a file of definitions that differs from the database."""
    names = sorted(name for name in {*said, *found} if said.get(name) != found.get(name))
    return (
        f"{place}: its file {STORES_FILE} and its database have different definitions of {few(names)} (file: "
        f"{[said.get(name) for name in names]}, database: {[found.get(name) for name in names]}): they were copied "
        f"at different times; copy the task again as a whole, or remove the file {STORES_FILE}"
    )


@contextmanager
def _from_manifest(place: TaskPlace) -> Iterator[StoreAtRest]:
    folder, number = Folder(place.address), place.task.partition
    manifest = manifest_of(folder)
    part = manifest.partition(number)
    names = [file.name for file in part.files]
    if folder.local is not None:
        with _taken_in(manifest, number, folder.local) as at_rest:
            yield at_rest
        return
    with files_of(folder, place.run, names) as files:
        files.take(names)
        with _taken_in(manifest, number, files.path) as at_rest:
            yield at_rest


@contextmanager
def _taken_in(manifest: Manifest, number: int, source: Path) -> Iterator[StoreAtRest]:
    """A scratch database with the files of one partition."""
    part = manifest.partition(number)
    scratch = Path(tempfile.mkdtemp(prefix="standfast-place-"))
    try:
        check_files(source, part.files)  # an ingest checks no block checksums
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
    described = _of_manifest(manifest, number)
    spec = definition_spec(manifest.store, manifest.definition)
    opened = view(engine, spec, described.times)
    return StoreAtRest(opened, dict(manifest.definition), described.position, described.times)


def _of_manifest(manifest: Manifest, number: int) -> Described:
    part = manifest.partition(number)
    position = Position(part.end, -1, manifest.topic_id, manifest.made.at_ms)
    return Described(manifest.definition, position, StoreTimes(part.observed_ms, part.sequence))


def stores_of(places: Iterable[TaskPlace]) -> Iterator[tuple[TaskPlace, dict[str, Described]]]:
    """All stores of each place, without their rows.

    A manifest covers all its partitions and is read once. For a task in object storage the file of definitions is read,
    and the database's own files only if that file is missing or damaged.
    """
    manifests: dict[str, Manifest] = {}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        # `map` reads all places ahead, which is harmless: they are few and their answers small.
        for place, found in pool.map(lambda one: (one, _at_once(one)), places):
            if found is not None:
                yield place, found
                continue
            if place.kind == "task":
                yield place, _of_database(place, "")
                continue
            if place.address not in manifests:
                manifests[place.address] = manifest_of(Folder(place.address))
            manifest = manifests[place.address]
            yield place, {manifest.store: _of_manifest(manifest, place.task.partition)}


def _at_once(place: TaskPlace) -> dict[str, Described] | None:
    """The stores of a snapshot, or of a task in object storage; None for any other place."""
    if place.kind == "snapshot":
        return _of_snapshot(manifest_at(place.address, place.app))
    if place.kind != "task" or not place.remote:
        return None
    read = parse(Folder(place.address).read(STORES_FILE))
    # Positions are not in this file, since it does not change with a commit: `settle.py` reads them by a job.
    if read.stores is not None:
        return {name: Described(definition, known=False) for name, definition in read.stores.items()}
    return _of_database(place, read.fault)


def _of_snapshot(snapshot: Snapshot) -> dict[str, Described]:
    """The stores as the manifest has them; a fetched database is compared with it, so that both are of one cut."""
    found = {}
    for name, definition in snapshot.stores.items():
        at = snapshot.cut.positions.get(name)
        position = None if at is None else Position(
            at.offset, at.leader_epoch, at.topic_id, at.at_ms, tag=at.tag, marker=at.marker
        )  # fmt: skip
        found[name] = Described(definition, position, StoreTimes(snapshot.cut.observed.get(name, NO_TIMES.observed_ms)))
    return found


def _of_database(place: TaskPlace, note: str) -> dict[str, Described]:
    with open_database(place, None) as engine:
        cut = read_record(engine, str(place))
        return {
            name: Described(definition, cut.positions.get(name), cut.stores.get(name, StoreTimes()), note=note)
            for name, definition in definitions_of(engine, str(place)).items()
        }


def read_database(place: TaskPlace) -> dict[str, Described]:
    """Like `stores_of` for one task, from its database. Raises InvalidRequest if the file beside it differs."""
    found = _of_database(place, "")
    said = parse(Folder(place.address).read(STORES_FILE)).stores if place.remote else None
    have = {name: one.definition for name, one in found.items()}
    if said is not None and said != have:
        raise InvalidRequest(contradiction(place, said, have))
    return found


def stores_in(place: TaskPlace) -> dict[str, Described]:
    """Like `stores_of`, for one place."""
    ((_, found),) = stores_of([place])
    return found


def manifest_of(folder: Folder) -> Manifest:
    """The manifest of a folder. Raises InvalidRequest for a missing or newer one, Corruption for a damaged one."""
    raw = folder.read(FILE_NAME)
    if raw is None:
        raise InvalidRequest(f"{folder} has no {FILE_NAME}: standfast did not make it, or its making was interrupted")
    return _parsed(raw, f"{folder}/{FILE_NAME}")


@lru_cache(maxsize=2)
def _parsed(raw: bytes, where: str) -> Manifest:
    """Parse once per process: all its tasks need the same manifest, which grows with the number of partitions."""
    # Parsed once per partition, 200 partitions of 16 files took the driver 9.5 s.
    return parse_manifest(raw, where)


def manifest_places(address: str) -> list[TaskPlace]:
    """The places of the partitions in a folder with a manifest."""
    folder = Folder(address)
    manifest = manifest_of(folder)
    return [
        TaskPlace(manifest.app, TaskId(0, one.partition), folder.address, "manifest") for one in manifest.partitions
    ]


def storage_places(text: str, app: str | None) -> list[TaskPlace]:
    """The places of the snapshots that `ADDRESS/NAME` or `ADDRESS/latest` names."""
    return [
        TaskPlace(one.app, TaskId.parse(one.task), address, "snapshot")
        for address, one in sorted(find_snapshots(text, app), key=lambda found: TaskId.parse(found[1].task))
    ]


def remote_places(address: str, app: str | None) -> list[TaskPlace]:
    """Tasks below <address>/<app>/<task>, or of the application that <address> names. Raises InvalidRequest."""
    found: dict[str, list[TaskPlace]] = {}
    folder = Folder(address)
    for one in folder.list():
        parts = one.name.split("/")
        # Object storage has no folders: a database shows by its file CURRENT.
        if parts[-1] != "CURRENT" or len(parts) < 2:
            continue
        # The address may name the state directory, or the application in it.
        name = parts[-3] if len(parts) > 2 else address.partition("?")[0].rstrip("/").rpartition("/")[2]
        where = below(address, "/".join(parts[:-1]))
        found.setdefault(name, []).append(TaskPlace(name, TaskId.parse(parts[-2]), where))
    if app is None and len(found) == 1:
        app = next(iter(found))
    if app is None or app not in found:
        have = few(sorted(found)) or "none"
        raise InvalidRequest(f"{folder} holds no tasks of application {app!r}: it has {have}; name one with --app")
    return sorted(found[app], key=lambda place: place.task)


def places_at(address: str, app: str | None) -> list[TaskPlace]:
    """Tasks at an address, or the snapshots that it names. Raises InvalidRequest for none, Held if an owner runs."""
    folder = Folder(address)
    if folder.read(FILE_NAME) is not None:
        return manifest_places(address)
    if names_snapshot(address):
        return storage_places(address, app)
    if folder.local is None:
        return remote_places(address, app)
    root = folder.local
    if not root.is_dir():
        raise InvalidRequest(f"{root} does not exist: name a state directory, or a folder with a manifest")
    tasks = find_tasks(root, app)
    owner = tasks[0].owner_pid
    if owner is not None:
        raise Held(
            f"{tasks[0].path.parent} is owned by pid {owner}, which is running: its files would change under Spark's "
            "tasks; stop it, or read a checkpoint, a rebuilt folder or the changelog"
        )
    return [TaskPlace(one.app, one.task, str(one.path)) for one in tasks]


def find_store(address: str, app: str | None, name: str | None) -> StorePlaces:
    """One store and its places; `name` may be None if only one store exists. Raises UnknownStore."""
    places = places_at(address, app)
    if places[0].kind == "manifest":
        manifest = manifest_of(Folder(address))
        if name not in (None, manifest.store):
            raise UnknownStore(f"{shown_address(address)} has no store {name!r}: it has {manifest.store}")
        return StorePlaces(manifest.store, manifest.definition, tuple(places))
    found: dict[str, tuple[Mapping[str, Any], set[int]]] = {}
    for group in {place.task.group: place for place in reversed(places)}.values():  # all tasks of a group have the same
        for store, at_rest in stores_in(group).items():
            found.setdefault(store, (at_rest.definition, set()))[1].add(group.task.group)
    if name is None and len(found) == 1:
        name = next(iter(found))
    if name is None or name not in found:
        known = few(sorted(found)) or "none"
        what = f"has no store {name!r}: it has" if name is not None else "has several stores, name one of storeName:"
        raise UnknownStore(f"{shown_address(address)} {what} {known}")
    definition, groups = found[name]
    if definition.get("engine") == "memory":
        raise InvalidRequest(f"store {name!r} is kept in memory and has no files: read its changelog")
    return StorePlaces(name, definition, tuple(place for place in places if place.task.group in groups))


def chosen(places: Sequence[TaskPlace], partitions: Sequence[int] | None) -> list[TaskPlace]:
    """The places of these partitions. Raises InvalidRequest for a partition without a place."""
    held = {place.task.partition for place in places}
    missing = [number for number in partitions or () if number not in held]
    if missing:
        raise InvalidRequest(f"there are partitions {few(sorted(held))}, not {few(missing)}")
    return [place for place in places if partitions is None or place.task.partition in partitions]
