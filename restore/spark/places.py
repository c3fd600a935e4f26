"""Where the stores that a job looks at lie, and opening one of them in a task.

    task       a task's directory or a checkpoint of it, local or in object storage
    manifest   a folder with a manifest (a rebuild, a snapshot): its files are taken into a scratch database

RocksDB needs real files, so what lies in object storage is fetched first: the files of one store, once on a machine for
all tasks of a run (`files.py`). What stores there are is told without that, by the file beside each task's database
(`standfast.store.task.definitions_file`); how far they are, by the database alone.

Rules of this file: reads only; a live owner's directory is refused by who lists places (its files would change under
the tasks). sha256 of every file of a manifest is checked before it is used.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from standfast.replication.offsets import TaskId
from standfast.restore.files.manifest import FILE_NAME, Manifest, parse_manifest
from standfast.restore.files.manifest_files import check_files
from standfast.restore.spark.files import files_of
from standfast.restore.spark.folder import Folder, below, shown_address
from standfast.restore.spark.task_files import open_fetched
from standfast.restore.verify.at_rest import MEMORY_BYTES, StoreAtRest, definitions_of, open_task, store_of, view
from standfast.restore.verify.take_in import link_files
from standfast.store.engine import DEFAULT_FAMILY, Engine
from standfast.store.errors import InvalidRequest
from standfast.store.rocks.engine import RocksEngine, RocksShared
from standfast.store.task.cut import CUT_KEY, Cut, Position, StoreTimes
from standfast.store.task.definitions_file import STORES_FILE, parse
from standfast.store.types.kinds import definition_spec

PlaceKind = Literal["task", "manifest"]
NO_TIMES = StoreTimes()
AT_ONCE = 16  # small files that are read side by side: each is a few answers of object storage


@dataclass(frozen=True, slots=True)
class Place:
    """One task's state. A folder's address is absolute: tasks of Spark run in folders of their own.

    `run`: whose tasks share what they fetch of it (see `files.py`); "" for nobody's.
    """

    app: str
    task: TaskId
    address: str
    kind: PlaceKind = "task"
    run: str = ""

    def __post_init__(self) -> None:
        """Here, and not in the task: that is where a relative path means what the user meant."""
        if "://" not in self.address:
            object.__setattr__(self, "address", str(Path(self.address).absolute()))

    @property
    def remote(self) -> bool:
        """Whether its files must be fetched."""
        return "://" in self.address and not self.address.startswith("file://")

    def __str__(self) -> str:
        """As it may be shown."""
        return shown_address(self.address)


@dataclass(frozen=True, slots=True)
class Described:
    """What is known of a store without its rows.

    `known`: position and times were read from the database (None: nothing was ever applied). `note` says why a database
    in object storage had to be opened for this.
    """

    definition: Mapping[str, Any]
    position: Position | None = None
    times: StoreTimes = NO_TIMES
    known: bool = True
    note: str = ""


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
def open_place(place: Place, store: str, definition: Mapping[str, Any] | None = None) -> Iterator[StoreAtRest]:
    """One store of a place. Raises UnknownStore, Corruption, or what opening a database raises.

    `definition`: what a plan took it for; InvalidRequest if the database has another.
    """
    if place.kind == "manifest":
        with _from_manifest(place) as at_rest:
            yield at_rest
        return
    with open_database(place, store) as engine:
        at_rest = store_of(engine, store, str(place))
        if definition is not None and dict(definition) != at_rest.definition:
            raise InvalidRequest(contradiction(place, {store: definition}, {store: at_rest.definition}))
        yield at_rest


@contextmanager
def open_database(place: Place, store: str | None) -> Iterator[RocksEngine]:
    """A task's database with the rows of one store (None: of none), and its record."""
    folder = Folder(place.address)
    if folder.local is not None:
        with open_task(folder.local) as engine:
            yield engine
        return
    with files_of(folder, place.run) as files, open_fetched(files, store) as engine:
        yield engine


def contradiction(place: Place, said: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """That the file of definitions and the database differ, and in what."""
    names = sorted(name for name in {*said, *found} if said.get(name) != found.get(name))
    return (
        f"{place}: its file {STORES_FILE} and its database have other definitions of {', '.join(names)} (file: "
        f"{[said.get(name) for name in names]}, database: {[found.get(name) for name in names]}): they are not of one "
        f"time; copy the task again as a whole, or remove the file {STORES_FILE}"
    )


@contextmanager
def _from_manifest(place: Place) -> Iterator[StoreAtRest]:
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
    """A scratch database of the files of one partition."""
    part = manifest.partition(number)
    scratch = Path(tempfile.mkdtemp(prefix="standfast-place-"))
    try:
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
    described = _of_manifest(manifest, number)
    spec = definition_spec(manifest.store, manifest.definition)
    opened = view(engine, spec, described.times)
    return StoreAtRest(opened, dict(manifest.definition), described.position, described.times)


def _of_manifest(manifest: Manifest, number: int) -> Described:
    part = manifest.partition(number)
    position = Position(part.end, -1, manifest.topic_id, manifest.made.at_ms)
    return Described(manifest.definition, position, StoreTimes(part.observed_ms, part.sequence))


def stores_of(places: Iterable[Place]) -> Iterator[tuple[Place, dict[str, Described]]]:
    """All stores of each place, without their rows.

    A manifest speaks for all its partitions and is read once. Of a task in object storage the file of definitions is
    read, and the database's own files only if there is none that can be used.
    """
    manifests: dict[str, Manifest] = {}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        # Iterators of `map` read ahead: the places are few and their answers small.
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


def _at_once(place: Place) -> dict[str, Described] | None:
    """Of a task in object storage, else None."""
    if place.kind != "task" or not place.remote:
        return None
    read = parse(Folder(place.address).read(STORES_FILE))
    if read.stores is not None:
        return {name: Described(definition, known=False) for name, definition in read.stores.items()}
    return _of_database(place, read.fault)


def _of_database(place: Place, note: str) -> dict[str, Described]:
    with open_database(place, None) as engine:
        raw = engine.get(DEFAULT_FAMILY, CUT_KEY)
        cut = Cut.decode(raw, str(place)) if raw is not None else Cut()
        return {
            name: Described(definition, cut.positions.get(name), cut.stores.get(name, StoreTimes()), note=note)
            for name, definition in definitions_of(engine, str(place)).items()
        }


def read_database(place: Place) -> dict[str, Described]:
    """As `stores_of` of one task, from its database. Raises InvalidRequest if the file beside it says anything else."""
    found = _of_database(place, "")
    said = parse(Folder(place.address).read(STORES_FILE)).stores if place.remote else None
    have = {name: one.definition for name, one in found.items()}
    if said is not None and said != have:
        raise InvalidRequest(contradiction(place, said, have))
    return found


def stores_in(place: Place) -> dict[str, Described]:
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
