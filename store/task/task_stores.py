"""All stores of one task: one database, one write buffer, one cut.

    commit        buffered rows + cut  ── one WriteBatch ──>  RocksDB         (memory stores beside it)
    apply         restored rows + cut  ── one WriteBatch ──>  RocksDB
    ingest        mark ──> sorted files, family by family ──> cut without mark      found marked: restored again
                                 └── refused: FilesRefused, the mark stays, other files of the same records follow
    forget        opened carefully: record without the store ──> its families dropped      its neighbours stay

Rules of this file: every write carries its own cut. It knows nothing of logs: positions and offsets are the caller's
numbers. A failed write poisons the task until it is opened again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakSet

from standfast.store import files
from standfast.store.buffer.buffer import BOUND_DEFAULT_BYTES, Buffer
from standfast.store.buffer.part import CommitPart
from standfast.store.buffer.rows import RowLimits, StoreRows
from standfast.store.buffer.twins import buffer_type
from standfast.store.clock import measured_ns
from standfast.store.disk import DiskGuard
from standfast.store.engine import DEFAULT_FAMILY, Engine, EngineStatistics, KeyRange, Prepared
from standfast.store.errors import Closed, Corruption, InvalidRequest, StandfastError, UnknownStore
from standfast.store.failpoint import reach
from standfast.store.file_errors import NoRoom, told
from standfast.store.memory import MemoryEngine
from standfast.store.names import few
from standfast.store.rocks.open_engine import open_engine
from standfast.store.rocks.opening import RocksShared
from standfast.store.rocks.wal import refuse_damaged_wal
from standfast.store.specs import StoreSpec, as_stored, definition_changes
from standfast.store.task import definitions_file
from standfast.store.task.changed_stores import (
    copy_interrupted,
    gone_stores,
    refuse_changed,
    refuse_last_copies,
    tell_emptied,
)
from standfast.store.task.commit_record import (
    CUT_KEY,
    INGESTING_KEY,
    STORES_KEY,
    CommitRecord,
    StoreTimes,
    Unwritten,
    decode_ingesting,
    decode_record,
    encode_copying,
    encode_definitions,
    encode_ingesting,
    read_record,
)
from standfast.store.task.heads import SegmentHeads
from standfast.store.task.ingested import FilesRefused, ingest_files
from standfast.store.task.state_dir import check_marker, write_marker
from standfast.store.types.kinds import open_store
from standfast.store.types.segments import store_of_family
from standfast.store.types.typed import FamilyRows, LoggedRecord, TypedStore

AnyStore = TypedStore[Any, Any, Any]

# So many new families cost less by another opening that creates all (measured: 30 ms) than one by one (6 ms each).
OPENED_AGAIN_FOR = 8
PREPARED_ROWS_MIN = 100  # fewer rows take less time than it takes to prepare them apart


class TaskStores:
    """Stores of one task, for any thread; one commit at a time."""

    def __init__(
        self,
        directory: Path,
        app: str,
        task: str,
        specs: Sequence[StoreSpec],
        shared: RocksShared,
        *,
        now_ms: Callable[[], int],
        buffer_bytes: int = BOUND_DEFAULT_BYTES,
        disk: DiskGuard | None = None,
        limits: RowLimits | None = None,
        careful: bool = False,
        whole_wal: bool | None = None,
        detached: bool = False,
        restoring: bool = False,
    ) -> None:
        """`careful` is for looking at a damaged database and for `forget`, as for RocksEngine; it changes nothing else.

        `whole_wal` as for RocksEngine; None means: if a store has no log from which its last rows could be read again.
        `detached`: empty stores in memory, for a directory that cannot be opened; its files are not read.
        `restoring`: opened as after `restoring(True)`.
        """
        if detached:
            specs = tuple(replace(spec, engine="memory") for spec in specs)
        self.directory = directory
        self.app = app
        self.task = task
        self.specs = {spec.name: spec for spec in specs}
        self._heads = SegmentHeads(specs)
        self.buffer = buffer_type()(buffer_bytes, disk)
        self._disk = disk
        self.poisoned: BaseException | None = None
        self.damaged: Corruption | None = None
        self.closed = False
        self.unwritten: Unwritten | None = None
        self._careful = careful
        self._whole_wal = bool(self.unlogged) if whole_wal is None else whole_wal
        self._opens_restoring = restoring
        self.interrupted: frozenset[str] = frozenset()  # stores that a crash left with a part of an import, emptied
        self.copying: dict[str, str] = {}  # stores whose copy a crash interrupted, with the source folder
        self._stored: Mapping[str, Any] = {}
        self.decode_ns = 0  # time spent on turning records into rows
        self._staged: FamilyRows = {}  # rows of changelog records, not written yet
        self._staged_before: dict[str, StoreTimes] | None = None  # the stores' times before the staged rows
        self._refused: set[str] = set()  # stores that may have a part of files that were refused; they stay marked
        self._views: WeakSet[StoreRows] = WeakSet()  # views of committed rows that readers have
        self._times_before: list[list[tuple[StoreRows, int, int]]] = []  # one list for each open savepoint
        self._now_ms = now_ms
        self._taken_times: dict[str, StoreTimes] = {}  # the stores' times with the rows that the buffer's `taken` has
        # Held by `commit` and `close`. Reentrant, for a signal handler that closes the task in the middle of a commit.
        self._writing = threading.RLock()
        self.limits = limits or RowLimits()
        self.memory = MemoryEngine()
        self.engine: Engine = MemoryEngine() if detached else self._open_engine(app, shared)
        try:
            self.cut = self._load()
            self._create_families(app, shared)
            own = self.specs.values()  # with the form of keys that the stored definitions say
            self.stores: dict[str, AnyStore] = {one.name: self._open_store(one, self.buffer) for one in own}
        except BaseException:
            self.engine.close()
            raise

    @property
    def unlogged(self) -> frozenset[str]:
        """Stores on disk whose rows no log has."""
        return frozenset(name for name, spec in self.specs.items() if spec.engine == "rocksdb" and not spec.logging)

    def store(self, asked: str | StoreSpec) -> Any:
        """A store by its name or its definition; InvalidRequest for a definition that differs from the declared one."""
        if isinstance(asked, StoreSpec):
            found = self.store(asked.name)
            if asked is not found.spec:  # an equal definition is fine, also one that only lacks its source topic
                given, declared = asked.declaration(), found.spec.declaration()
                changes = definition_changes(given, {setting: declared.get(setting) for setting in given})
                if changes:
                    raise InvalidRequest(
                        f"task {self.task}: store {asked.name!r} was declared with another definition "
                        f"({'; '.join(changes)}): ask with that definition, or by its name"
                    )
            return found
        try:
            return self.stores[asked]
        except (KeyError, TypeError):  # an argument of another type than text may have no hash
            raise UnknownStore(
                f"task {self.task} has no store {asked!r:.100}: it declares {few(sorted(self.stores)) or 'none'}"
            ) from None

    def bind_clock(self, now_ms: Callable[[], int]) -> None:
        """Take default timestamps from `now_ms` (the record in hand) from now on."""
        self._now_ms = now_ms
        for store in self.stores.values():
            store.rows.now_ms = now_ms

    def committed_view(self, name: str) -> Any:
        """A read-only view of a store's committed rows; other threads may use it. Closed with the task."""
        self.store(name)
        view = self._open_store(self.specs[name], type(self.buffer)(0), read_only=True)
        self._views.add(view.rows)
        return view

    def take(self) -> CommitPart:
        """Take all uncommitted writes for `commit`, with the times of the stores that are theirs, in one step."""
        with self.buffer.latch:
            part = self.buffer.take()
            self._taken_times = self._times()
            return part

    def prepare(self) -> Prepared | None:
        """Do of the `commit` of the taken rows what changes nothing, while its owner waits; any thread.

        None: there is no such part.
        """
        self._check_usable()
        part = self.buffer.taken
        if part is None:
            return None
        rows = {family: rows for family, rows in part.rows.items() if not self._in_memory(family)}
        # A commit makes new families and drops expired ones, neither of which may happen before the log has it.
        if sum(map(len, rows.values())) < PREPARED_ROWS_MIN or not rows.keys() <= self.engine.families():
            return None
        return None if self._expired(self._taken_times) else self.engine.prepare(rows)

    def commit(self, cut: CommitRecord, prepared: Prepared | None = None) -> None:
        """Write the taken rows and their times together with `cut`, then forget them and drop expired segments.

        Takes the rows itself, if `take` did not; `prepared` is of `prepare`. A close on another thread waits for the
        end.
        """
        with self._writing:
            # Before the check: a close on this very thread, by a signal handler, forgets them, and the cut must not be
            # written without its rows.
            part = self.buffer.taken
            self._check_usable()
            rows = (part or self.take()).rows
            times = self._taken_times
            # Before the write, so that rows of a segment that is about to go make no family for it.
            expired = self._expired(times)
            for families in expired.values():
                for family in families:
                    rows.pop(family, None)
                    self.buffer.drop_family(family)
            self._write(rows, cut, times, None if expired else prepared)
            self.buffer.settle()
            self._drop(expired, times)  # after the cut, whose stream time makes them dead

    def carry(self, unwritten: Unwritten) -> None:
        """Write rows that an earlier opening could not write although the log had their commit."""
        families = {family: dict(rows) for family, rows in unwritten.rows.items()}
        for name in unwritten.times:
            self.stores[name].rows.observe(unwritten.times[name].observed_ms)
            self.stores[name].rows.sequence = max(self.stores[name].rows.sequence, unwritten.times[name].sequence)
        self.buffer.forget_recent()
        self._write(families, self.cut, self._times())

    def keep_unwritten(self, rows: FamilyRows) -> None:
        """Keep those of the rows of a commit that are of unlogged stores for the next opening's `carry`.

        The log has the commit, and no database has these rows. `rows` are the taken ones: a close has emptied the
        buffer since.
        """
        unlogged, times = self.unlogged, self._taken_times
        kept = {family: dict(changes) for family, changes in rows.items() if store_of_family(family) in unlogged}
        if kept:
            self.unwritten = Unwritten(kept, {name: times[name] for name in unlogged})

    def stage(self, name: str, records: Sequence[LoggedRecord]) -> int:
        """Turn changelog records of a store into rows, which the next `apply` writes; returns the number of all staged.

        A few records at a time are best, while they are in the processor's cache. An error drops all staged rows.
        """
        self._check_usable()
        if self._staged_before is None:
            self._staged_before = self._times()
        started_ns = measured_ns()
        try:
            self.store(name).restore(records, self._staged)
        except BaseException:
            self.unstage()
            raise
        self.decode_ns += measured_ns() - started_ns
        return self.staged_rows

    @property
    def staged_rows(self) -> int:
        """Number of staged rows."""
        return sum(map(len, self._staged.values()))

    def unstage(self) -> None:
        """Drop the staged rows: the stores are again as they were last written."""
        if self._staged_before is not None:
            self._set_times(self._staged_before)
        self._staged, self._staged_before = {}, None

    def apply(self, records: Mapping[str, Sequence[LoggedRecord]], cut: CommitRecord) -> int:
        """Write the staged rows and those of these changelog records, together with `cut`; returns their number."""
        self._check_usable()
        for name, batch in records.items():
            self.stage(name, batch)
        rows = self._staged
        self._staged, self._staged_before = {}, None
        times = self._times()
        expired = self._expired(times)
        for families in expired.values():
            for family in families:
                rows.pop(family, None)
        self.buffer.forget_recent()
        self._write(rows, cut, times)
        self._drop(expired, times)
        return sum(map(len, rows.values()))

    def ingest(
        self,
        name: str,
        files: Sequence[tuple[str, Path]],
        times: StoreTimes,
        cut: CommitRecord,
        lookups: Sequence[tuple[str, bytes]] | None = None,
    ) -> None:
        """Ingest sorted files (family, path) into a store in this order, then write `cut`.

        `times` are the store's after their last record. Files of an expired segment stay where they are. After a crash
        on the way the store must be restored again. Raises InvalidRequest for a store in memory.

        `lookups` are for files of another writer than RocksDB's: keys (family, key) of live rows, whose newest version
        is in the files; the first one that went in is looked up. Raises FilesRefused if RocksDB does not take files, or
        does not find that row: nothing moves, and other files of the same records may be ingested next.
        """
        self._check_usable()
        store = self.store(name)
        if self.specs[name].engine == "memory":
            raise InvalidRequest(
                f"store {name!r} of task {self.task} is in memory and cannot import files: apply records"
            )
        before = self._times()[name]
        store.rows.observe(times.observed_ms)
        store.rows.sequence = max(store.rows.sequence, times.sequence)
        by_family: dict[str, list[Path]] = {}
        for family, path in files:
            if store.takes_family(family):
                by_family.setdefault(family, []).append(path)
        if self._staged_before is not None:  # staged rows of other stores are not written here, nor may their times be
            self._staged_before[name] = self._times()[name]
        now = dict(self._staged_before or self._times())
        cut = replace(cut, stores=now, heads=self._heads.after(self.cut, cut, by_family, now))
        self.buffer.forget_recent()
        others = self._refused - {name}
        try:
            with self._poisoning():
                if by_family:
                    # Ingested files are durable at once, rows only with their WAL: the flush puts the mark before them.
                    mark = encode_ingesting(*sorted(others | {name}))
                    self.engine.write({DEFAULT_FAMILY: {INGESTING_KEY: mark}})
                    self.engine.flush(DEFAULT_FAMILY)
                    reach("ingest.marked")
                ingest_files(self.engine, f"task {self.task}, store {name!r}", by_family, lookups)
                record = replace(cut, task=self.task).encode()
                mark_left = encode_ingesting(*sorted(others)) if others else None
                self.engine.write({DEFAULT_FAMILY: {CUT_KEY: record, INGESTING_KEY: mark_left}})
                reach("ingest.positioned")
        except FilesRefused:
            self._refused.add(name)
            store.rows.observed_ms, store.rows.sequence = before
            if self._staged_before is not None:
                self._staged_before[name] = before
            raise
        self._refused.discard(name)
        self.cut = cut
        # At the times of the cut: staged rows that make others dead are not written yet, and may never be.
        self._drop(self._expired(cut.stores), cut.stores)

    def unreadable(self, name: str, records: Sequence[LoggedRecord]) -> LoggedRecord | None:
        """The first of these changelog records that this store can never have written; None if they are all sound."""
        before, counters = self._times(), self.store(name).rows.counters
        skipped = counters.skipped  # the failed attempt has counted these records already
        try:
            for record in () if self.damaged is not None else records:
                try:
                    self.store(name).restore([record])
                except Corruption:
                    return record
        finally:
            counters.skipped = skipped
            self._set_times(before)
        return None

    def observe(self, name: str, timestamp_ms: int) -> None:
        """Adopt an observed stream time from the log; a discard does not undo it."""
        store = self.stores.get(name)
        if store is not None and timestamp_ms > store.rows.observed_ms:
            store.rows.observe(timestamp_ms)
            times = self.cut.stores.get(name, StoreTimes())
            self.cut = replace(self.cut, stores={**self.cut.stores, name: times._replace(observed_ms=timestamp_ms)})

    def savepoint(self) -> None:
        """Open a savepoint; `rollback` returns to the last one, `release` ends it. Other threads' writes wait for that:
        a rollback would undo them, too."""
        self.buffer.latch.acquire()
        self.buffer.begin()
        self._times_before.append(
            [(store.rows, store.rows.observed_ms, store.rows.sequence) for store in self.stores.values()]
        )

    def rollback(self) -> None:
        """Undo all writes since `savepoint`: rows, changes, observed stream times, sequence numbers.

        Nothing is left to undo once another thread has closed the stores.
        """
        try:
            if self.closed:
                return
            self.buffer.rollback()
            for rows, observed_ms, sequence in self._times_before.pop():
                rows.observed_ms, rows.sequence = observed_ms, sequence
        finally:
            self.buffer.latch.release()

    def release(self) -> None:
        """Keep the writes since `savepoint` and end it."""
        try:
            if not self.closed:
                self.buffer.release()
                self._times_before.pop()
        finally:
            self.buffer.latch.release()

    def discard(self) -> None:
        """Forget all writes that are neither committed nor taken by a commit under way. Ends savepoints."""
        with self.buffer.latch:
            for _ in self._times_before:  # of this very thread, since it has the latch
                self.buffer.latch.release()
            taken = self.buffer.taken
            self.buffer.discard()
            self._times_before.clear()
            self._set_times(self.cut.stores if taken is None or taken.refused else self._taken_times)

    def has_rows(self, name: str) -> bool:
        """Whether the store holds at least one committed row. Raises Corruption, which names the store."""
        store = self.store(name)
        return store.rows.has_rows(store.families())  # type: ignore[no-any-return]

    def forget(self, names: Collection[str], copying: Mapping[str, str]) -> None:
        """Remove stores from the record and drop their rows; the others keep rows and positions. Then close this.

        `copying` are stores whose rows will be copied back, each with its source folder. After a crash the next opening
        drops the remaining rows, or copies again.
        """
        cut = replace(
            self.cut,
            positions={name: at for name, at in self.cut.positions.items() if name not in names},
            stores={name: times for name, times in self.cut.stores.items() if name not in names or name in copying},
        )
        kept = {name: definition for name, definition in self._stored.items() if name not in names}
        self._record(cut, kept, copying)
        reach("stores.forgotten")
        for family in self.engine.families():
            if family != DEFAULT_FAMILY and store_of_family(family) in names:
                self.engine.drop_family(family)
        self.cut, self._stored = cut, kept

    def take_back(self, names: Collection[str]) -> None:
        """Enter stores into the record again after their rows were copied, and end the mark of the copy."""
        kept = {**self._stored, **{name: self.specs[name].placed_definition() for name in names}}
        self._record(self.cut, kept)
        self._stored = kept
        self.engine.flush()

    def statistics(self, name: str) -> EngineStatistics:
        """Sizes of one store."""
        engine = self._engine_of(name)
        return EngineStatistics.total(engine.statistics(family) for family in self.store(name).families())

    def stalled_ms(self) -> int:
        """Milliseconds for which the database, one for all stores of a task, held writes back since its opening."""
        return self.engine.stalled_ms()

    def checkpoint(self, directory: Path) -> None:
        """Write an openable copy of all committed rows, without stores in memory, to a new directory."""
        self._check_usable()
        if not self.engine.durable:
            raise InvalidRequest(f"task {self.task} has no files to copy: its stores are in memory")
        self.engine.checkpoint(directory)
        definitions_file.keep(directory, {name: spec.placed_definition() for name, spec in self.specs.items()})

    def restoring(self, on: bool) -> None:
        """Say whether a restore runs, before any reader: see `Engine.restoring`. A reopened task starts with False."""
        if not self.closed and self.poisoned is None:
            self.engine.restoring(on)

    def flush(self) -> None:
        """Move memtables to files, so that the next open has no WAL to replay."""
        self.engine.flush()

    def fence(self, why: str) -> None:
        """Make reads and writes of the stores raise Fenced, since another instance has the task."""
        for rows in [*(store.rows for store in self.stores.values()), *self._views]:
            rows.fence(why)

    def close(self) -> None:
        """Close iterators and the database, and forget buffered rows. A second call completes an interrupted one."""
        with self._writing:  # a commit of another thread is whole or has not begun
            self._close()

    def forked(self) -> None:
        """As in `forks.Owned`; called by its task."""
        self.closed, self._writing = True, threading.RLock()
        for store in self.stores.values():
            store.rows.end()

    def _close(self) -> None:
        self.closed = True
        with ExitStack() as last:  # each step, even after a failed one: an open engine keeps the directory's lock
            last.callback(self.memory.close)
            last.callback(self.engine.close)
            last.callback(self.buffer.leave_disk)
            last.callback(self.buffer.clear)
            for store in self.stores.values():
                last.callback(store.rows.close)

    def _open_engine(self, app: str, shared: RocksShared, families: Collection[str] = ()) -> Engine:
        made = (self.directory / "CURRENT").exists()  # by stores that were on disk then: `_load` decides about them
        if not made and all(spec.engine == "memory" for spec in self.specs.values()):
            return MemoryEngine()
        with told(f"opening task {self.task}", self.directory):
            check_marker(self.directory, app, self.task)
            files.make_folder(self.directory, parents=True, exist_ok=True)
            write_marker(self.directory, app, self.task)
        if self._whole_wal and not self._careful:
            refuse_damaged_wal(self.directory, every_byte=False)
        return open_engine(
            self.directory,
            shared=shared,
            careful=self._careful,
            whole_wal=self._whole_wal,
            restoring=self._opens_restoring,
            families=families,
        )

    def _create_families(self, app: str, shared: RocksShared) -> None:
        """Create the absent families of stores that have exactly one."""
        wanted = [spec.name for spec in self.specs.values() if spec.traits.times is None]
        absent = [name for name in wanted if name not in self._engine_of(name).families()]
        durable = [name for name in absent if self._engine_of(name).durable]
        if len(durable) >= OPENED_AGAIN_FOR:  # after `_load`, so that a refusal has changed nothing
            self.engine.close()
            self.engine = self._open_engine(app, shared, durable)
        for name in absent:
            self._engine_of(name).create_family(name)

    def _load(self) -> CommitRecord:
        where = str(self.directory)
        # Any damage of the record is reported for the default family, which no restore of a store can mend.
        try:
            raw_stores = self.engine.get(DEFAULT_FAMILY, STORES_KEY)
            cut = read_record(self.engine, where)
            self._stored = stored = decode_record(raw_stores, where) if raw_stores is not None else {}
            marked = decode_ingesting(self.engine.get(DEFAULT_FAMILY, INGESTING_KEY), where)
            if cut.task not in ("", self.task):
                raise Corruption(f"{where}: its record is that of task {cut.task}: files of that task were copied here")
            cut = replace(cut, task="")
        except Corruption as damage:
            damage.families = frozenset((DEFAULT_FAMILY,))
            raise
        self.specs = as_stored(self.specs, stored, looks=self._careful)
        declared = {name: spec.placed_definition() for name, spec in self.specs.items()}
        refuse_changed(self.directory, stored, declared)
        refuse_last_copies(self.engine, self.directory, self.task, stored, declared)
        self.copying = {name: folder for name, folder in marked.items() if folder and name in self.specs}
        if self._careful:
            return cut
        if self.copying:
            raise copy_interrupted(where, self.copying)
        unsure = marked.keys()
        tell_emptied(self.task, unsure, stored.keys() - declared.keys())
        gone = gone_stores(stored, declared) | unsure
        self.interrupted = frozenset(unsure & declared.keys())
        # Without its position a store is restored from the beginning.
        cut = replace(
            cut,
            positions={name: at for name, at in cut.positions.items() if name not in gone},
            stores={name: times for name, times in cut.stores.items() if name not in gone},
        )
        kept = {name: definition for name, definition in stored.items() if name not in gone}
        own = sorted(self.engine.families() - {DEFAULT_FAMILY})
        dead = [family for family in own if store_of_family(family) not in kept]
        # A store leaves the record before its rows are dropped and enters it again after that, so that at every crash
        # the rows of a store in the record are its own.
        if (dead and kept != stored) or unsure:
            self._record(cut, kept, {})
        for family in dead:
            self.engine.drop_family(family)
        if dead or unsure or declared != stored:
            self._record(cut, declared)
        elif self.engine.durable:  # an earlier version wrote no file, and a crash leaves none
            definitions_file.keep(self.directory, declared)
        return cut

    def _record(
        self, cut: CommitRecord, definitions: Mapping[str, Any], copying: Mapping[str, str] | None = None
    ) -> None:
        record = {
            CUT_KEY: replace(cut, task=self.task).encode(),
            STORES_KEY: encode_definitions(definitions),
            INGESTING_KEY: encode_copying(copying) if copying else None,
        }
        if self.engine.durable:
            definitions_file.forget_other(self.directory, definitions)
        self.engine.write({DEFAULT_FAMILY: record})
        if copying is not None:  # rows are dropped next: a drop survives a loss of power, a write only after a flush
            self.engine.flush(DEFAULT_FAMILY)
        if self.engine.durable:
            definitions_file.keep(self.directory, definitions)

    def _open_store(self, spec: StoreSpec, buffer: Buffer, *, read_only: bool = False) -> AnyStore:
        times = self.cut.stores.get(spec.name, StoreTimes())
        rows = StoreRows(
            name=spec.name,
            engine=self._engine_of(spec.name),
            buffer=buffer,
            now_ms=self._now_ms,
            on_damage=self._note_damage,
            caching=spec.caching,
            logging=spec.logging and not spec.from_source,
            read_only=read_only,
            limits=self.limits,
            observed_ms=times.observed_ms,
            sequence=times.sequence,
        )
        return open_store(spec, rows, spec.changelog_of(self.app))

    def _note_damage(self, damage: Corruption) -> None:
        # Any reader may find damage first; the session that drives the task then restores the named stores.
        if self.damaged is not None:
            damage.families |= self.damaged.families
            damage.noted = damage.noted and self.damaged.noted
        self.damaged = damage

    def _engine_of(self, name: str) -> Engine:
        return self.memory if self.specs[name].engine == "memory" else self.engine

    def _in_memory(self, family: str) -> bool:
        return self.specs[store_of_family(family)].engine == "memory"

    def _write(
        self, rows: FamilyRows, cut: CommitRecord, times: dict[str, StoreTimes], prepared: Prepared | None = None
    ) -> None:
        cut = replace(cut, stores=times, heads=self._heads.after(self.cut, cut, rows, times))
        kept: FamilyRows = {DEFAULT_FAMILY: {CUT_KEY: replace(cut, task=self.task).encode()}}
        volatile: FamilyRows = {}
        for family, family_rows in rows.items():
            (volatile if self._in_memory(family) else kept)[family] = family_rows
        with self._poisoning():
            self._make_families(kept, volatile)
            reach("stores.families")
            # First: it may fail, and memory has no undo.
            if prepared is not None and {**prepared.counts, DEFAULT_FAMILY: 1} == {
                family: len(family_rows) for family, family_rows in kept.items()
            }:
                prepared.write({DEFAULT_FAMILY: kept[DEFAULT_FAMILY]})
            else:
                self.engine.write(kept)
            self.memory.write(volatile)
        self.cut = cut

    def _times(self) -> dict[str, StoreTimes]:
        return {name: StoreTimes(store.rows.observed_ms, store.rows.sequence) for name, store in self.stores.items()}

    def _set_times(self, times: Mapping[str, StoreTimes]) -> None:
        for name, store in self.stores.items():
            store.rows.observed_ms, store.rows.sequence = times.get(name, StoreTimes())

    def _make_families(self, kept: FamilyRows, volatile: FamilyRows) -> None:
        for engine, rows in ((self.engine, kept), (self.memory, volatile)):
            for family in sorted(rows.keys() - engine.families()):
                engine.create_family(family)

    def _expired(self, times: Mapping[str, StoreTimes]) -> dict[str, list[str]]:
        # At the times of the cut: after a crash the rows of a segment that only later writes make dead are live.
        found = {name: store.expired_families(times[name].observed_ms) for name, store in self.stores.items()}
        return {name: families for name, families in found.items() if families}

    def _drop(self, expired: Mapping[str, Sequence[str]], times: Mapping[str, StoreTimes]) -> None:
        with self._poisoning():
            for name, families in expired.items():
                engine = self._engine_of(name)
                for family in families:
                    engine.drop_family(family)
                    reach("stores.dropped")
                self.stores[name].forget_families(families)
            for name, store in self.stores.items():
                ranges: list[KeyRange] = store.expired_ranges(times[name].observed_ms)
                if ranges:
                    self.buffer.forget_recent()
                    self._engine_of(name).write({}, ranges)

    @contextmanager
    def _poisoning(self) -> Iterator[None]:
        try:
            yield
        except FilesRefused:  # before the position and after the mark: rows of other files may follow
            raise
        except BaseException as error:  # a signal handler's, too: the write may have happened or not
            self.poisoned = error
            if isinstance(error, NoRoom) and self._disk is not None:
                self._disk.room.refused(error)
            raise

    def _check_usable(self) -> None:
        if self.closed:
            raise Closed(f"task {self.task} is closed")
        if self.poisoned is not None:
            raise StateUnusable(self.task, self.poisoned)


class StateUnusable(Closed):
    """An earlier write failed; the task must be opened again before it may write."""

    def __init__(self, task: str, cause: BaseException) -> None:
        kind = type(cause).__name__ if not isinstance(cause, StandfastError) else "an earlier failure"
        super().__init__(f"task {task} failed to write ({kind}: {cause}) and takes no more writes: reopen it")
