"""Stores at rest: one store of a task that no process writes to, read-only, with its definition, position and times.

    task directory or checkpoint    standfast's marker, a RocksDB      position and times from the commit record

    find_tasks(DIR)    <state_dir>            -> the application in it (by name if there are several)
                       <state_dir>/<app>      -> all its tasks
                       <state_dir>/<app>/0_3  -> that task

Rules of this file: it changes no file of the directory. It serves jobs that read one store of one partition; tasks of a
live instance are in `standfast.stream`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from standfast.replication.offsets import TaskId
from standfast.replication.shapes import Shape, read
from standfast.store.buffer.rows import StoreRows
from standfast.store.buffer.write_buffer import WriteBuffer
from standfast.store.engine import DEFAULT_FAMILY, Engine
from standfast.store.errors import InvalidRequest, UnknownStore
from standfast.store.names import few
from standfast.store.rocks.open_engine import open_engine
from standfast.store.rocks.opening import RocksShared
from standfast.store.specs import StoreSpec
from standfast.store.task.commit_record import (
    STORES_KEY,
    Position,
    StoreTimes,
    decode_record,
    read_record,
)
from standfast.store.task.state_dir import MARKER, find_app, owner_pid
from standfast.store.task.task_stores import AnyStore
from standfast.store.types.kinds import definition_spec, open_store

MEMORY_BYTES = 64 << 20  # block cache of all opened tasks together


class Marker(Shape, frozen=True, forbid_unknown_fields=False):  # a later version may add fields
    """The owner of a directory: an application, and a task unless it is the application's own directory."""

    app: str
    task: str | None = None


@dataclass(frozen=True, slots=True)
class StoreAtRest:
    """A store without a writer. `position` is None if no record was ever applied."""

    store: AnyStore
    definition: dict[str, Any]
    position: Position | None
    times: StoreTimes

    @property
    def spec(self) -> StoreSpec:
        """The declared store; serdes of the application's own are replaced by bytes."""
        spec: StoreSpec = self.store.spec
        return spec


def read_marker(directory: Path) -> Marker | None:
    """The marker of a directory, of any format; None if it has none. Raises InvalidRequest for a damaged one."""
    try:
        return read((directory / MARKER).read_bytes(), Marker)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"{directory / MARKER} is not readable ({error}): restore it") from error


@dataclass(frozen=True, slots=True)
class TaskAtRest:
    """The directory of one task."""

    app: str
    task: TaskId
    path: Path

    @property
    def owner_pid(self) -> int | None:
        """The live process that owns the directory, or None."""
        return owner_pid(self.path.parent)


def find_tasks(directory: Path, app: str | None) -> list[TaskAtRest]:
    """Tasks in a directory of any of the three levels. Raises InvalidRequest if it holds none."""
    marked = read_marker(directory)
    if marked is not None and marked.task is not None:
        return [_task(marked.app, directory)]
    path = directory if marked is not None and app in (None, marked.app) else find_app(directory, app)
    found = read_marker(path)
    if found is None:
        raise InvalidRequest(f"{path} is not a state directory of standfast (it has no {MARKER} marker)")
    tasks = tasks_of(found.app, path)
    if not tasks:
        raise InvalidRequest(f"{path} holds no task: no partition was ever assigned here, or all stores are in memory")
    return tasks


def tasks_of(app: str, path: Path) -> list[TaskAtRest]:
    """Tasks in an application's directory; empty if the directory is absent."""
    if not path.is_dir():
        return []
    tasks = [_task(app, child) for child in path.iterdir() if (child / MARKER).is_file()]
    return sorted(tasks, key=lambda task: task.task)


def _task(app: str, path: Path) -> TaskAtRest:
    try:
        return TaskAtRest(app, TaskId.parse(path.name), path)
    except ValueError as error:
        raise InvalidRequest(f"{path} does not have the name of a task, such as 0_3: rename it back") from error


def definitions_of(engine: Engine, where: str) -> dict[str, Any]:
    """Definitions of a task's stores, by name, from its commit record."""
    raw = engine.get(DEFAULT_FAMILY, STORES_KEY)
    return {} if raw is None else decode_record(raw, where)


def store_of(engine: Engine, name: str, where: str) -> StoreAtRest:
    """A store of an open task. Raises UnknownStore."""
    definitions = definitions_of(engine, where)
    if name not in definitions:
        known = few(sorted(definitions)) or "none"
        raise UnknownStore(f"{where} has no store {name!r}: it has {known}")
    cut = read_record(engine, where)
    times = cut.stores.get(name, StoreTimes())
    spec = definition_spec(name, definitions[name])
    return StoreAtRest(view(engine, spec, times), definitions[name], cut.positions.get(name), times)


def view(engine: Engine, spec: StoreSpec, times: StoreTimes) -> AnyStore:
    """A read-only store over the rows of an engine."""
    return open_store(spec, rows_of(engine, spec.name, times))


def rows_of(engine: Engine, name: str, times: StoreTimes) -> StoreRows:
    """The committed rows of a store, read-only; retention hides rows by the store's own observed time, not a clock."""
    return StoreRows(
        name=name,
        engine=engine,
        buffer=WriteBuffer(0),  # committed rows only
        now_ms=lambda: 0,  # reads at rest ask no clock
        read_only=True,
        observed_ms=times.observed_ms,
        sequence=times.sequence,
    )


@contextmanager
def open_task(path: Path) -> Iterator[Engine]:
    """Open a task directory or checkpoint read-only."""
    engine = open_engine(path, shared=RocksShared(MEMORY_BYTES), read_only=True)
    try:
        yield engine
    finally:
        engine.close()
