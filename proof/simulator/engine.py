"""The durable engine of a simulated process: rows in memory, and in real files that its machine's disk keeps.

    CURRENT         MANIFEST-000005                                    a database is here
    MANIFEST-000005 [1, "aircraft"]  [2, "delays@0"]  [2]              families made and dropped, a line each: synced
    OPTIONS-000001  batch, batch, ...                                  rows, see row_log.py; synced by a flush
    SEAL            the product's own, of the MANIFEST
    000001.log      empty: where the product looks for a write-ahead log of RocksDB

An opening replays the rows and writes the files again, each row once, as RocksDB brings its log to table files: so a
torn last batch is dropped and what an opening found is synced. With damaged rows the files stay as they are. Families
are synced at once and rows are not: after a loss of power a family may be gone whose rows a lost write still had, and a
family that was made may be empty. That is so for RocksDB.

Rules of this file: it implements the port and no more; whatever the product reads of a folder is in these files, so
copies, renames, snapshots and damage need nothing special. Each call passes the process' `Calls`.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from simulator.disk import ROWS_FILE, SYNCED, SimDisk
from simulator.draws import Draws
from simulator.row_log import HEADER_BYTES, RANGE, BrokenLog, batches, encoded
from standfast.store.engine import DEFAULT_FAMILY, EngineStatistics, KeyRange, Rows
from standfast.store.errors import Closed, Corruption, Held, InvalidRequest, UnknownStore
from standfast.store.memory import MemoryEngine, MemoryScan
from standfast.store.names import few
from standfast.store.rocks.engine import RocksEngine
from standfast.store.rocks.opening import RocksShared
from standfast.store.rocks.seal import Sealer, check_seal

MANIFEST = "MANIFEST-000005"
EMPTY_LOG = "000001.log"
READER_MEMORY_BYTES = 8 << 20


class SimPrepared:
    """Rows of a later write; implements `standfast.store.engine.Prepared`."""

    def __init__(self, engine: SimEngine, rows: Mapping[str, Rows]) -> None:
        self._engine = engine
        self._rows: dict[str, dict[bytes, bytes | None]] | None = {name: dict(one) for name, one in rows.items()}
        self._of = [engine.number(family) for family in rows]
        self.counts = {family: len(changes) for family, changes in rows.items()}

    def write(self, rows: Mapping[str, Rows]) -> None:
        """Write them with these rows, once. Raises for a family that was dropped, or made again, meanwhile."""
        if self._rows is None:
            raise InvalidRequest("these rows were written: prepare others")
        if [self._engine.number(family) for family in self._rows] != self._of:
            raise UnknownStore(f"a family of {few(self._rows)} was dropped since its rows were prepared")
        both = {name: {**self._rows.get(name, {}), **rows.get(name, {})} for name in (*self._rows, *rows)}
        self._rows = None
        self._engine.write(both)


class SimEngine:
    """One task's rows; implements `standfast.store.engine.Engine`, and opens as RocksEngine does."""

    def __init__(
        self,
        path: Path,
        disk: SimDisk,
        *,
        read_only: bool = False,
        careful: bool = False,
        families: Collection[str] = (),
    ) -> None:
        self.path = path
        self._disk = disk
        self._read_only = read_only
        self._closed = False
        self._memory = MemoryEngine(f"the engine of {path}")
        self._ids = {DEFAULT_FAMILY: 0}  # a number is never used again in these files
        self._next_id = 1
        self._damaged: set[str] = set()
        self._handle = -1
        self._bytes = 0
        self._unsynced: set[str] = set()
        self._sealer: Sealer | None = None
        disk.run("engine.open", lambda: self._open(careful, sorted(families)))

    @property
    def durable(self) -> bool:
        """True: rows survive the process."""
        return True

    @property
    def damaged(self) -> frozenset[str]:
        """Families with damaged rows."""
        return frozenset(self._damaged)

    def families(self) -> frozenset[str]:
        """As of the port."""
        return self._memory.families()

    def number(self, family: str) -> int:
        """The family's number, which no later family of the same name has."""
        self._memory.flush(family)  # raises for an absent family, and after close
        return self._ids[family]

    def create_family(self, family: str) -> None:
        """As of the port. Families are synced at once, rows written before are not."""
        self._change("engine.create_family", lambda: self._create(family))

    def drop_family(self, family: str) -> None:
        """As of the port. Families are synced at once, rows written before are not."""
        self._change("engine.drop_family", lambda: self._drop(family))

    def get(self, family: str, key: bytes) -> bytes | None:
        """As of the port."""
        return self._disk.run("engine.get", lambda: self._sound(family).get(family, key))

    def get_many(self, family: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """As of the port."""
        return self._disk.run("engine.get", lambda: self._sound(family).get_many(family, keys))

    def scan(
        self, family: str, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> MemoryScan:
        """As of the port."""
        return self._disk.run("engine.scan", lambda: self._sound(family).scan(family, start, end, reverse=reverse))

    def write(self, rows: Mapping[str, Rows], ranges: Sequence[KeyRange] = ()) -> None:
        """As of the port."""
        self._change("engine.write", lambda: self._write(rows, ranges))

    def prepare(self, rows: Mapping[str, Rows]) -> SimPrepared:
        """As of the port."""
        self._check_writable()
        return SimPrepared(self, rows)

    def approximate_rows(self, family: str) -> int:
        """As of the port; exact."""
        return self._memory.approximate_rows(family)

    def restoring(self, on: bool) -> None:
        """As of the port."""
        self._check_writable()

    def ingest(self, family: str, files: Sequence[Path]) -> None:
        """As of the port. The rows are synced by the next flush, and not before."""
        self._change("engine.ingest", lambda: self._ingest(family, files))

    def flush(self, family: str | None = None) -> None:
        """As of the port. The flush of a family with new rows syncs all, since RocksDB syncs its log before it."""
        self._change("engine.flush", lambda: self._flush(family))

    def compact(self, family: str) -> None:
        """As of the port."""
        self._check_writable()
        self._memory.compact(family)

    def settle(self, wait_s: float) -> bool:
        """As of RocksEngine: no compaction is due."""
        self.flush()
        return True

    def checkpoint(self, directory: Path) -> None:
        """As of the port. The copy is synced, and so is all that was written before."""
        self._change("engine.checkpoint", lambda: self._checkpoint(Path(directory)))

    def statistics(self, family: str | None = None) -> EngineStatistics:
        """As of the port."""
        return self._memory.statistics(family)

    def stalled_ms(self) -> int:
        """0: there is no compaction to wait for."""
        return 0

    def families_of(self, file: str) -> frozenset[str]:
        """None: an error about damage names families."""
        return frozenset()

    def close(self) -> None:
        """As of the port. Rows that were not flushed stay so."""
        if not self._closed:
            self._disk.run("engine.close", self._close)

    def let_go(self) -> None:
        """Close the files: at the end of the process, too."""
        self._closed = True
        self._memory.close()
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)

    def look_again(self) -> None:
        """Find damage in the files, as reads do once the bytes are not in memory any more."""
        self._damaged = _read(self.path).damaged

    def _open(self, careful: bool, families: Collection[str]) -> None:
        if not careful:
            check_seal(self.path)
        found = _read(self.path) if (self.path / "CURRENT").exists() else None
        if found is not None and found.damaged and not careful:
            raise _damage(self.path, found.damaged)
        if self._read_only:
            if found is None:
                raise InvalidRequest(f"{self.path} holds no database: name a task's directory or a checkpoint")
            self._load(found)
        else:
            self._disk.refuse(f"opening {self.path}")
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock()
            try:
                self._begin(found or _Found({DEFAULT_FAMILY: 0}, 1, {}, set(), 0))
                for family in families:
                    self._create(family)
            except BaseException:
                self.let_go()
                raise
        self._disk.opened.append(self)

    def _lock(self) -> None:
        self._handle = os.open(self.path / ROWS_FILE, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.let_go()
            raise Held(f"opening {self.path}: another engine holds it: stop that one first") from None

    def _begin(self, found: _Found) -> None:
        self._load(found)
        if found.damaged:
            os.ftruncate(self._handle, found.whole)
        else:
            _write_files(self.path, found.ids, found.tables)
        self._bytes = os.fstat(self._handle).st_size
        self._sync()
        self._sealer = Sealer(self.path)

    def _load(self, found: _Found) -> None:
        self._ids, self._next_id, self._damaged = found.ids, found.next_id, found.damaged
        for family in found.ids:
            self._memory.create_family(family)
        self._memory.write(found.tables)

    def _tables(self) -> dict[str, Rows]:
        return {family: dict(self._memory.scan(family)) for family in self._ids}

    def _change(self, name: str, effect: Callable[[], None]) -> None:
        def change() -> None:
            self._check_writable()
            self._disk.refuse(f"{name} of {self.path}")
            effect()

        self._disk.run(name, change)

    def _check_writable(self) -> None:
        if self._closed:
            raise Closed(f"the engine of {self.path} was closed: open a new one")
        if self._read_only:
            raise InvalidRequest(f"the engine of {self.path} was opened read-only: open it as its owner to change it")

    def _sound(self, family: str) -> MemoryEngine:
        """The rows, for reads of this family. Raises Corruption for a damaged one."""
        if family in self._damaged:
            raise _damage(self.path, {family})
        return self._memory

    def _create(self, family: str) -> None:
        if family not in self._ids:
            self._memory.create_family(family)
            self._ids[family] = self._next_id
            self._note([self._next_id, family])
            self._next_id += 1

    def _drop(self, family: str) -> None:
        self._memory.drop_family(family)
        if family in self._ids:
            self._note([self._ids.pop(family)])
            self._damaged.discard(family)

    def _note(self, line: list[int | str]) -> None:
        with (self.path / MANIFEST).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        if self._sealer is not None:
            self._sealer.refresh()

    def _write(self, rows: Mapping[str, Rows], ranges: Sequence[KeyRange] = ()) -> None:
        self._memory.write(rows, ranges)  # raises before the first change
        batch = encoded(self._ids, rows, ranges)
        if batch:
            self._unsynced.update(rows, (one.family for one in ranges))
            self._bytes += os.write(self._handle, batch)

    def _ingest(self, family: str, files: Sequence[Path]) -> None:
        before = dict(self._memory.scan(family))
        if not files:
            return
        # Only RocksDB reads these files, and a file's deletes show in a database alone that has the rows.
        scratch = self.path / "ingest"
        reader = RocksEngine(scratch, shared=RocksShared(READER_MEMORY_BYTES))
        with closing(reader):
            reader.write({DEFAULT_FAMILY: before})
            reader.ingest(DEFAULT_FAMILY, files)
            after = dict(reader.scan(DEFAULT_FAMILY))
        shutil.rmtree(scratch)
        changed: dict[bytes, bytes | None] = {key: row for key, row in after.items() if before.get(key) != row}
        self._write({family: {**dict.fromkeys(before.keys() - after.keys()), **changed}})

    def _flush(self, family: str | None) -> None:
        self._memory.flush(family)
        if family is None or family in self._unsynced:
            self._sync()

    def _sync(self) -> None:
        self._unsynced.clear()
        (self.path / SYNCED).write_text(str(self._bytes), encoding="ascii")

    def _checkpoint(self, directory: Path) -> None:
        if directory.exists():
            raise InvalidRequest(f"checkpoint directory {directory} exists already: name a new one")
        if self._damaged:
            raise _damage(self.path, self._damaged)
        self._sync()
        directory.mkdir(parents=True)
        _write_files(directory, self._ids, self._tables())

    def _close(self) -> None:
        self.let_go()
        self._disk.opened.remove(self)


def opener(disks: Sequence[SimDisk]) -> Callable[..., SimEngine]:
    """What the product calls to open an engine: it opens those of folders on these disks."""

    def open_engine(
        path: Path,
        *,
        shared: RocksShared,
        read_only: bool = False,
        careful: bool = False,
        whole_wal: bool = False,  # damage is always found
        restoring: bool = False,
        families: Collection[str] = (),
    ) -> SimEngine:
        (disk,) = (one for one in disks if path.is_relative_to(one.root))
        return SimEngine(path, disk, read_only=read_only, careful=careful, families=families)

    return open_engine


def damage_somewhere(disk: SimDisk, draws: Draws, *question: str | int) -> Path | None:
    """Flip a bit of rows of a drawn family of a drawn database, or now and then of a header; None if it has none."""
    files = [path for path in sorted(disk.root.rglob(ROWS_FILE)) if path.stat().st_size]
    if not files:
        return None
    path = draws.choice(files, *question, "database")
    try:
        frames = [frame for batch in batches(path.read_bytes()) for frame in batch]
    except BrokenLog:
        frames = []
    if not frames:
        return None  # all of it is damaged, or was cut short
    family = draws.choice(sorted({frame.family for frame in frames}), *question, "family")
    frame = draws.choice([one for one in frames if one.family == family], *question, "frame")
    header = draws.below(8, *question, "header") == 0
    length = HEADER_BYTES if header else frame.end - frame.begin
    at = draws.below(length, *question, "byte")
    disk.damage(path, frame.begin + (at - HEADER_BYTES if header else at))
    return path


class _Found(NamedTuple):
    """What the files of a database hold; `whole` is where a torn batch begins."""

    ids: dict[str, int]
    next_id: int
    tables: dict[str, Rows]
    damaged: set[str]
    whole: int


def _read(path: Path) -> _Found:
    """Read the files of a database. Raises Corruption where they cannot even be read carefully."""
    try:
        lines = [json.loads(line) for line in (path / MANIFEST).read_bytes().splitlines()]
        raw = (path / ROWS_FILE).read_bytes()
        made = {number: name for number, *names in lines for name in names}
    except (OSError, ValueError, TypeError) as error:
        raise _damage(path, {DEFAULT_FAMILY}) from error
    dropped = {number for number, *names in lines if not names}
    names = {0: DEFAULT_FAMILY, **{number: name for number, name in made.items() if number not in dropped}}
    tables: dict[int, dict[bytes, bytes | None]] = {number: {} for number in names}
    damaged, whole = set[str](), 0
    try:
        for batch in batches(raw):
            for kind, number, data, *_ in batch:
                if number not in tables:
                    continue  # its family was dropped
                table = tables[number]
                if data is None:
                    damaged.add(names[number])
                elif kind == RANGE:
                    table.update(dict.fromkeys([key for key in table if data[0] <= key < data[1]]))
                else:
                    table.update(data)
            whole = batch[-1].end
    except BrokenLog as error:
        raise _damage(path, {DEFAULT_FAMILY}) from error
    rows: dict[str, Rows] = {
        names[number]: {key: row for key, row in table.items() if row is not None} for number, table in tables.items()
    }
    ids = {name: number for number, name in names.items()}
    return _Found(ids, max(made, default=0) + 1, rows, damaged, whole)


def _write_files(path: Path, ids: Mapping[str, int], tables: Mapping[str, Rows]) -> None:
    """Write a database of these rows, in the place of one that is there."""
    lines = [json.dumps([number, family]) + "\n" for family, number in ids.items() if number]
    (path / MANIFEST).write_text("".join(lines), encoding="utf-8")
    (path / ROWS_FILE).write_bytes(encoded(ids, tables))
    (path / EMPTY_LOG).touch()
    (path / "CURRENT").write_text(MANIFEST + "\n", encoding="ascii")


def _damage(path: Path, families: Iterable[str]) -> Corruption:
    names = sorted(families)
    found = Corruption(f"{path}: stored rows of {few(names)} are damaged: restore this task from its log")
    found.families, found.noted = frozenset(names), True  # each opening reads all
    return found
