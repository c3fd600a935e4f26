"""State directories at rest: reads of a task's files without its owner.

Rules of this file: it opens read-only and changes nothing, so a live owner may keep running; rows that the owner has
written since the files were opened are missing, and rows still in its write buffer always are. Store definitions come
from the task's record; an application's own serdes are unknown here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from standfast.ops.observe.reads import StorePart
from standfast.restore.verify.at_rest import MEMORY_BYTES, TaskAtRest, definitions_of, rows_of, tasks_of
from standfast.store import serde as serdes
from standfast.store.engine import DEFAULT_FAMILY
from standfast.store.errors import InvalidRequest, NotReady, UnknownStore
from standfast.store.names import few
from standfast.store.rocks.engine import RocksEngine
from standfast.store.rocks.opening import RocksShared
from standfast.store.task.commit_record import INGESTING_KEY, StoreTimes, decode_ingesting, read_record
from standfast.store.task.state_dir import check_marker
from standfast.store.task.task_stores import AnyStore
from standfast.store.types.kinds import definition_spec, open_store
from standfast.store.types.segments import store_of_family
from standfast.stream.stream_time import CLOCK_KEY
from standfast.stream.watermarks import PROGRESS_PREFIX


def kept_source_topic(directory: Path, app: str, store: str) -> str | None:
    """The source topic that serves as a store's changelog, by the definitions in a state directory.

    None if the store has a changelog of its own, or the directory holds nothing (yet) of the application or the store.
    """
    path = directory / app
    with open_tasks(tasks_of(app, path)) as opened:
        topics = (one.definitions[store].get("source_topic") for one in opened if store in one.definitions)
        return next(topics, None)


class OfflineStores:
    """The stores of one task, open read-only."""

    def __init__(self, task: TaskAtRest, engine: RocksEngine) -> None:
        where = str(task.path)
        # Imported files are durable at once and the position is not: such a store may hold rows of any offset.
        self.ingesting = frozenset(decode_ingesting(engine.get(DEFAULT_FAMILY, INGESTING_KEY), where))
        self.task = task
        self.engine = engine
        self.cut = read_record(engine, where)
        self.definitions = definitions_of(engine, where)

    def part(self, name: str) -> StorePart:
        """A store, for reading. Raises UnknownStore, InvalidRequest for one in memory, NotReady during an import."""
        definition = self.definitions.get(name)
        if definition is None:
            known = few(sorted(self.definitions)) or "none"
            raise UnknownStore(f"task {self.task.task} in {self.task.path} has no store {name!r}: it has {known}")
        if definition["engine"] == "memory":
            raise InvalidRequest(f"store {name!r} is kept in memory and has no files: ask the live instance")
        if name in self.ingesting:
            raise NotReady(
                f"store {name!r} in {self.task.path} has an unfinished import: its position does not fit its rows; "
                "wait for the restore, or start the application again, which restores it"
            )
        key, value = serdes.by_name(definition["key"]), serdes.by_name(definition["value"])
        spec = definition_spec(name, definition)
        rows = rows_of(self.engine, name, self.cut.stores.get(name, StoreTimes()))
        return StorePart(self.task.task.partition, spec, rows, "offline", 0, key, value)

    def store(self, name: str) -> AnyStore:
        """A store, for reading; raises as `part`. Serdes of the application's own are replaced by bytes."""
        part = self.part(name)
        return open_store(part.spec, part.rows)

    def has_rows(self, name: str) -> bool:
        """Whether a store has at least one row."""
        for family in self.engine.families():
            if store_of_family(family) == name:
                with self.engine.scan(family) as scan:
                    if next(iter(scan), None) is not None:
                        return True
        return False

    def custom_serdes(self, name: str) -> list[str]:
        """Serdes of a store that are unknown here, so that its rows are shown in hex."""
        definition = self.definitions[name]
        return [definition[part] for part in ("key", "value") if serdes.by_name(definition[part]) is None]

    def document(self) -> dict[str, Any]:
        """The task in the form of a status document, as far as its files go."""
        return {
            "task": str(self.task.task),
            "partition": self.task.task.partition,
            "role": "offline",
            "state": "closed" if self.task.owner_pid is None else "owned",
            "epoch": self.cut.epoch,
            "error": "",
            "sources": dict(self.cut.sources),
            "stream_times": dict(self.cut.stream_times),
            "stream_time_ms": self.cut.stream_times.get(CLOCK_KEY),
            "stream_time_waits_for": None,  # is known where the task is processed
            "watermark_ms": self.cut.progress.get(PROGRESS_PREFIX + CLOCK_KEY),
            "watermark_waits_for": None,
            "stores": [self._store(name) for name in sorted(self.definitions)],
        }

    def _store(self, name: str) -> dict[str, Any]:
        position = self.cut.positions.get(name)
        families = [family for family in self.engine.families() if store_of_family(family) == name]
        sizes = [self.engine.statistics(family) for family in families]
        return {
            "store": name,
            "kind": self.definitions[name]["kind"],
            "partition": self.task.task.partition,
            "position": None if position is None else position.offset,
            "position_at_ms": None if position is None else position.at_ms,
            "observed_ms": self.cut.stores.get(name, StoreTimes()).observed_ms,
            "sst_bytes": sum(size.sst_bytes for size in sizes),
            "keys_estimate": sum(size.keys_estimate for size in sizes),
            "segments": len(families),
            "definition": self.definitions[name],
        }


@contextmanager
def open_tasks(tasks: list[TaskAtRest]) -> Iterator[list[OfflineStores]]:
    """Open the tasks' databases read-only; they are closed with the context."""
    shared = RocksShared(MEMORY_BYTES)
    engines: list[RocksEngine] = []
    try:
        opened = []
        for task in tasks:
            check_marker(task.path, task.app, str(task.task))  # RocksDB would open a directory of any other program
            # Read-only takes no lock of RocksDB, so a live owner goes on.
            engine = RocksEngine(task.path, shared=shared, read_only=True)
            engines.append(engine)
            opened.append(OfflineStores(task, engine))
        yield opened
    finally:
        for engine in engines:
            engine.close()
