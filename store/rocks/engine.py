"""The durable engine: one RocksDB per task, one column family per store or segment.

    RocksEngine(path, shared=...)      one per task: rows, positions and the task's record in one database

Rules of this file: one of the four that import rocksdict; raw mode always (any other mode unpickles the bytes
that it reads); every error of the binding leaves as one of ours; this file moves and removes no file of the
directory. It must not know store types, logs or positions.

Facts about the binding, each held by a test:
- One live reference to a family keeps the directory's LOCK: `close()` ends scans and drops them all.
- `close()` of a handle fails as "Already borrowed" while another thread is inside a call on it, and flushes
  unless background work was cancelled first.
- More facts stand where they matter: scans in scan.py, files in files.py, errors in errors.py.
"""

from __future__ import annotations

import gc
import re
import threading
import weakref
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import repeat
from pathlib import Path

import rocksdict

from standfast.store import files
from standfast.store.engine import DEFAULT_FAMILY, EngineStatistics, KeyRange, Rows
from standfast.store.errors import Closed, Corruption, Held, InternalError, InvalidRequest, StandfastError, UnknownStore
from standfast.store.failpoint import reach
from standfast.store.log import as_event, logger
from standfast.store.process import forks
from standfast.store.process.tracebacks import clear_frames, is_foreign
from standfast.store.rocks.damage import DamageNotes, refuse_noted
from standfast.store.rocks.errors import STALLS_PROPERTY, damaged_file, stalled_ms, translate
from standfast.store.rocks.files import CONFIG_FILE, bound_info_log, link, refuse_foreign
from standfast.store.rocks.opening import (
    LEVEL0_FAMILIES_MAX,
    LEVEL0_FILES,
    RocksShared,
    list_families,
    opened,
    set_level0,
    set_level0_options,
)
from standfast.store.rocks.scan import RocksScan
from standfast.store.rocks.seal import Sealer, check_seal
from standfast.store.rocks.sst import ingest

# A batch of this many rows of one family is sorted first. Measured with batches of 1,000 rows and random keys: write,
# flush and compaction take 2.8 us a row instead of 3.2.
SORT_ROWS_MIN = 500
CLOSE_WAIT_S = 30.0
CLOSE_POLL_S = 0.001
SETTLE_POLL_S = 0.01
# Where this process itself holds the directory: a second, since on a busy machine a thread inside a call on a family
# may not get a processor for a tenth of one, or flush for longer.
OPEN_AGAIN = 50
OPEN_AGAIN_S = 0.02
COLLECT_AT = (0, 4, OPEN_AGAIN - 1)  # attempts: of a large heap each takes a second, in which no other thread runs
READ_ONLY_ATTEMPTS = 5
_TABLE_FILE = re.compile(r"^ (\d+):(\d+)\[", re.MULTILINE)
READS = frozenset({"reading", "scanning"})  # damage that such a call meets lies in the family that it names
_FAMILY_PROPERTIES = {
    "sst_bytes": "rocksdb.total-sst-files-size",
    "memtable_bytes": "rocksdb.cur-size-all-mem-tables",
    "keys_estimate": "rocksdb.estimate-num-keys",
    "pending_compaction_bytes": "rocksdb.estimate-pending-compaction-bytes",
}
_FAMILY_EXTRAS = ("num-files-at-level0", "mem-table-flush-pending", "compaction-pending", "estimate-table-readers-mem")
_DATABASE_PROPERTIES = (
    "block-cache-usage",
    "block-cache-pinned-usage",
    "block-cache-capacity",
    "num-running-flushes",
    "num-running-compactions",
    "background-errors",
    "actual-delayed-write-rate",
    "is-write-stopped",
)
# Properties of which one is above 0 while RocksDB flushes or compacts, or has to.
AT_WORK = ("mem-table-flush-pending", "compaction-pending", "num-running-flushes", "num-running-compactions")


class _Family:
    """Both handles of one family: `rows` reads and maintains it, `column` addresses it in a batch."""

    __slots__ = ("column", "rows")

    def __init__(self, rows: rocksdict.Rdict, column: rocksdict.ColumnFamily) -> None:
        self.rows = rows
        self.column = column


class RocksPrepared:
    """A filled WriteBatch; implements `standfast.store.engine.Prepared`."""

    def __init__(self, engine: RocksEngine, batch: rocksdict.WriteBatch, counts: Mapping[str, int]) -> None:
        self._engine = engine
        self._batch = batch
        self.counts = counts

    def write(self, rows: Mapping[str, Rows]) -> None:
        """Write the batch together with these rows."""
        self._engine._write(self._engine._batch(rows, batch=self._batch))


_closing: weakref.WeakSet[RocksEngine] = weakref.WeakSet()  # engines whose close began and has not ended


class RocksEngine:
    """One task's RocksDB; implements `standfast.store.engine.Engine`.

    `path` is created if absent, unless `read_only`. A read-only engine reads the database as of its opening, takes no
    lock, leaves the directory untouched and works beside a live owner.

    The opening creates absent `families`: each `create_family` rewrites the settings of all families, so creating many
    of them one by one costs the square of their number (400: 24 s of processor instead of 0.3).
    `whole_wal`: a damaged byte in the write-ahead log is Corruption; otherwise the database opens as it was before that
    byte. A log that ends within its last record (a loss of power) is no damage either way.
    `restoring` opens as after `restoring(True)`, without its cost: no compaction begins before `restoring(False)`.
    `careful` opens a damaged database, so that its sound families can be read and the others dropped. A missing or
    short file is an error of the read that needs it, compaction is off, and RocksDB passes over damage in the
    write-ahead log, so check that first (`standfast.store.rocks.wal`).
    Raises Held (another process or engine has it), Corruption, InvalidRequest (not ours) or Unavailable.
    """

    def __init__(
        self,
        path: Path,
        *,
        shared: RocksShared,
        read_only: bool = False,
        careful: bool = False,
        whole_wal: bool = False,
        restoring: bool = False,
        families: Collection[str] = (),
    ) -> None:
        self._path = Path(path)
        self._read_only = read_only
        self._options = shared.options(read_only=read_only, careful=careful, whole_wal=whole_wal)
        self._lock = threading.Lock()  # guards the family map's replacement, the scan set and closing
        self._scans: weakref.WeakSet[RocksScan] = weakref.WeakSet()
        self._families: dict[str, _Family] = {}  # replaced, never changed in place: readers need no lock
        self._getters: dict[str, Callable[..., bytes | list[bytes | None] | None]] = {}
        self._scratch: Path | None = None
        self._left: dict[str, _Family] = {}  # in the child of a fork, the families of the parent
        self._restoring = False
        self._closed = False
        self._to_close: list[Callable[[], None]] = []  # the steps that a close in progress still has to run
        self._sealer: Sealer | None = None
        self._notes = DamageNotes(self._path)
        forks.dies_in_child(self)
        if read_only or careful:
            self._notes.close()
        self._unflushed = True  # whether the write-ahead log may hold rows that no table file has
        # Both checks before the open: RocksDB then removes files that a cut MANIFEST does not know.
        refuse_foreign(self._path)
        if not careful:
            check_seal(self._path)
        if read_only:
            self._scratch, self._db = _open_read_only(self._path, self._options)
        else:
            self._options.create_missing_column_families(bool(families))
            self._restoring = restoring and self._few_families(families)
            self._db = self._open_writable(families)
        try:
            names = list_families(self._scratch or self._path, self._options)
            self._set_families({name: self._handle(name) for name in names})
        except Exception as error:
            self.close()
            raise translate(error, f"opening {self._path}") from error
        if not read_only:
            self._sealer = Sealer(self._path)
        if not (read_only or careful):
            try:
                refuse_noted(self._path, self.families_of)
            except BaseException:
                self.close()
                raise

    def _few_families(self, added: Collection[str]) -> bool:
        try:
            names = list_families(self._path, self._options) if (self._path / "CURRENT").exists() else []
        except Exception as error:
            raise translate(error, f"opening {self._path}") from error
        return len({*names, *added}) <= LEVEL0_FAMILIES_MAX

    def _open_writable(self, families: Collection[str]) -> rocksdict.Rdict:
        """Open with files of level 0 as for a restore or not: a later change costs 2 ms a family."""
        set_level0_options(self._options, LEVEL0_FILES[self._restoring])
        try:
            access = rocksdict.AccessType.read_write()
            return _open(self._path, self._options, access, f"opening {self._path}", families)
        finally:
            set_level0_options(self._options, LEVEL0_FILES[False])  # of families that are created later

    @property
    def durable(self) -> bool:
        """True: rows survive the process."""
        return True

    def families(self) -> frozenset[str]:
        """Names of the families that exist, `default` included."""
        self._check_open()
        return frozenset(self._families)

    def create_family(self, family: str) -> None:
        """Create an empty family; an existing one stays as it is."""
        self._check_writable()
        with self._lock:
            if family in self._families or self._closed:
                return self._check_open()
            try:
                self._db.create_column_family(family, self._options)
                self._set_families({**self._families, family: self._handle(family)})
                if self._restoring:
                    set_level0(self._families[family].rows, LEVEL0_FILES[True])
                bound_info_log(self._path)
            except Exception as error:
                raise translate(error, f"creating family {family!r} in {self._path}", self._path) from error

    def drop_family(self, family: str) -> None:
        """Remove a family; RocksDB deletes its files at once, or with the last open scan on it."""
        self._check_writable()
        if family == DEFAULT_FAMILY:
            raise InvalidRequest(
                f"family {DEFAULT_FAMILY!r} of {self._path} holds the task's record: it cannot be dropped"
            )
        with self._lock:
            self._check_open()
            if family not in self._families:
                return
            try:
                self._db.drop_column_family(family)
            except Exception as error:
                raise translate(error, f"dropping family {family!r} of {self._path}") from error
            self._set_families({name: kept for name, kept in self._families.items() if name != family})

    def get(self, family: str, key: bytes) -> bytes | None:
        """The value, or None. Raises UnknownStore for an absent family."""
        try:
            return self._getters[family](key)  # type: ignore[return-value]
        except Exception as error:
            raise self._error(error, family, "reading") from error

    def get_many(self, family: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values in the order of `keys`."""
        try:
            # The binding takes several keys only as a list.
            return self._getters[family](list(keys))  # type: ignore[return-value]
        except Exception as error:
            raise self._error(error, family, "reading") from error

    def scan(
        self, family: str, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> RocksScan:
        """Rows with start <= key < end in key order, None meaning open; empty if start >= end."""
        rows = self._held(family, "scanning")
        try:
            return self._begun(rows, family, start, end, reverse)
        except BaseException as error:
            # An exception of a signal handler, too: its frames hold the iterator, which keeps the directory's LOCK.
            # Not by `letting_go`, which would cost a fifth of a short scan.
            clear_frames(error)
            raise

    def _begun(
        self, rows: rocksdict.Rdict, family: str, start: bytes | None, end: bytes | None, reverse: bool
    ) -> RocksScan:
        where = f"scanning {family!r} of {self._path}"
        if start is not None and end is not None and start >= end:
            scan = RocksScan(None, None, where)
        else:
            try:
                iterator, options = _place(rows, start, end, reverse)
            except Exception as error:
                raise self._error(error, family, "scanning") from error
            scan = RocksScan(
                iterator, options, where, start=start, end=end, reverse=reverse, on_damage=self._notes.note
            )
        with self._lock:
            # A close since the first line has not seen this scan, which would keep the directory's LOCK.
            if self._closed:
                scan.close()
                self._check_open()
            self._scans.add(scan)
        return scan

    def write(self, rows: Mapping[str, Rows], ranges: Sequence[KeyRange] = ()) -> None:
        """Apply range deletions, then rows, as one WriteBatch through the WAL.

        Holds the interpreter for about 1 us a row. Raises UnknownStore and changes nothing if a family is absent.
        """
        self._write(self._batch(rows, ranges))

    def prepare(self, rows: Mapping[str, Rows]) -> RocksPrepared:
        """Fill the WriteBatch of these rows; a quarter of the time of `write`. Raises as `write`."""
        return RocksPrepared(self, self._batch(rows), {family: len(changes) for family, changes in rows.items()})

    def _batch(
        self, rows: Mapping[str, Rows], ranges: Sequence[KeyRange] = (), batch: rocksdict.WriteBatch | None = None
    ) -> rocksdict.WriteBatch:
        """The batch with range deletions and rows added to it."""
        self._check_writable()
        families = self._families
        for family in (*rows, *(item.family for item in ranges)):
            if family not in families:
                raise self._error(KeyError(family), family, "writing")
        batch = rocksdict.WriteBatch(raw_mode=True) if batch is None else batch
        family = DEFAULT_FAMILY
        try:
            for item in ranges:
                if item.start < item.end:  # RocksDB stops all writes after a range that ends before it starts
                    batch.delete_range(item.start, item.end, families[item.family].column)
            for family, changes in rows.items():
                _fill(batch, changes, families[family].column)
            return batch
        except Exception as error:
            raise self._error(error, family, "writing") from error
        finally:
            del families  # see _error: a kept traceback keeps this frame, too

    def _write(self, batch: rocksdict.WriteBatch) -> None:
        try:
            if len(batch):
                self._unflushed = True  # before the write, which may fail with its rows in the log
                self._db.write(batch)
                if self._sealer is not None:
                    self._sealer.refresh()
                reach("engine.written")
        except Exception as error:
            raise self._error(error, DEFAULT_FAMILY, "writing") from error

    def approximate_rows(self, family: str) -> int:
        """RocksDB's estimate: overwritten and deleted keys may count until they are compacted."""
        return self._property(family, self._held(family, "measuring"), "rocksdb.estimate-num-keys")

    def restoring(self, on: bool) -> None:
        """Say whether a restore runs, which reads no rows: compaction then begins later. Ends with the engine, too."""
        self._check_writable()
        if on == self._restoring or (on and len(self._families) > LEVEL0_FAMILIES_MAX):
            return
        self._restoring = on
        family = DEFAULT_FAMILY
        try:
            for family in self._families.keys() - {DEFAULT_FAMILY}:  # the default family has only a few rows
                set_level0(self._held(family, "setting options of"), LEVEL0_FILES[on])
        except Exception as error:
            raise self._error(error, family, "setting options of") from error

    def ingest(self, family: str, files: Sequence[Path]) -> None:
        """Ingest sorted files unchanged, over the rows that exist; a later file wins over an earlier one."""
        self._check_writable()
        held = self._held(family, "ingesting into")
        try:
            ingest(held, files)
        except Exception as error:
            raise self._error(error, family, "ingesting into") from error

    def flush(self, family: str | None = None) -> None:
        """Move memtables to files, so that a reopen has no log to replay and their rows are durable."""
        self._check_writable()
        self._flush(tuple(self._families) if family is None else (family,))
        self._unflushed = self._unflushed and family is not None

    def _flush(self, families: tuple[str, ...]) -> None:
        # Names alone: an error's traceback keeps this frame, and with open families in it the directory stays locked.
        name = DEFAULT_FAMILY
        try:
            for name in families:
                self._held(name, "flushing").flush()
            bound_info_log(self._path)
        except Exception as error:
            raise self._error(error, name, "flushing") from error

    def settle(self, wait_s: float) -> bool:
        """Flush, and let due compactions run, for at most `wait_s` seconds: an open of the files then finds none due.

        Returns whether none is left.
        """
        self.flush()
        waited = threading.Event()
        for _ in range(max(int(wait_s / SETTLE_POLL_S), 1)):
            properties = self.statistics().properties
            if properties["background-errors"] > 0:  # such as of a full disk: the compaction does not run again
                return False
            if not any(properties[name] for name in AT_WORK):
                return True
            waited.wait(SETTLE_POLL_S)
        return False

    def compact(self, family: str) -> None:
        """Bring a family's files into normal shape."""
        self._check_writable()
        held = self._held(family, "compacting")
        try:
            held.compact_range(None, None)
            held.flush()  # the binding drops errors of a compaction; a flush after it raises them
        except Exception as error:
            raise self._error(error, family, "compacting") from error

    def checkpoint(self, directory: Path) -> None:
        """Write an openable copy to `directory`, which must not exist. Files are linked where the disk allows.

        Any thread may call this beside the owner's writes: the copy is of one moment.
        """
        self._check_writable()
        directory = Path(directory)
        if directory.exists():
            raise InvalidRequest(f"checkpoint directory {directory} exists already: name a new one")
        # With a dirty memtable the copy itself would hold the interpreter for 150 ms and more. It says nothing to the
        # seal: the owner may write meanwhile.
        self._flush(tuple(self._families))
        try:
            files.make_folder(directory.parent, mode=0o777, parents=True, exist_ok=True)
            rocksdict.Checkpoint(self._db).create_checkpoint(str(directory))
            # Not RocksDB's file, so the checkpoint lacks it.
            files.copy(self._path / CONFIG_FILE, directory / CONFIG_FILE)
        except Exception as error:
            raise self._error(error, DEFAULT_FAMILY, f"writing a checkpoint to {directory}") from error

    def statistics(self, family: str | None = None) -> EngineStatistics:
        """Sizes of one family, or of all; `properties` has RocksDB's figures of files, cache and stalls."""
        self._check_open()
        names = sorted(self._families) if family is None else [family]
        totals = dict.fromkeys(_FAMILY_PROPERTIES, 0)
        properties: dict[str, int] = dict.fromkeys(_FAMILY_EXTRAS, 0)
        for name in names:
            rows = self._held(name, "measuring")
            for field, property_name in _FAMILY_PROPERTIES.items():
                totals[field] += self._property(name, rows, property_name)
            for extra in _FAMILY_EXTRAS:
                properties[extra] += self._property(name, rows, f"rocksdb.{extra}")
        default = self._held(DEFAULT_FAMILY, "measuring")
        for extra in _DATABASE_PROPERTIES:
            properties[extra] = self._property(DEFAULT_FAMILY, default, f"rocksdb.{extra}")
        return EngineStatistics(**totals, families=len(names), properties=properties)

    def stalled_ms(self) -> int:
        """Milliseconds for which RocksDB held writes back since the opening; flushes or compaction were behind."""
        rows = self._held(DEFAULT_FAMILY, "measuring")
        try:
            return stalled_ms(rows.property_value(STALLS_PROPERTY) or "")
        except Exception as error:
            raise self._error(error, DEFAULT_FAMILY, "measuring") from error

    def close(self) -> None:
        """End scans, stop background work and release the directory. Unflushed rows stay in its WAL.

        After an interruption, such as by a signal handler, the next call goes on from there.
        """
        with self._lock:
            if self._closed and not self._to_close:
                return
            if not self._closed:
                _closing.add(self)
                self._to_close = [held.rows.close for held in self._families.values()] + [self._db.close]
                if not self._read_only:
                    # First, or closing a handle flushes its memtable, whose rows the WAL has anyway.
                    self._to_close.insert(0, lambda: self._db.cancel_all_background(True))
                self._closed = True
                self._notes.close()
            self._set_families({})
            scans = list(self._scans)
            self._scans.clear()
        for scan in scans:
            scan.end(Closed(f"the engine of {self._path} was closed during the scan"))
        failure = None
        try:
            for step in list(self._to_close):  # each step, even after a failed one: one open handle keeps the LOCK
                try:
                    _tolerate_shutdown(step)
                except Exception as error:  # noqa: BLE001 - raised below, after all steps
                    failure = failure or translate(error, f"closing {self._path}")
            self._to_close = []
            _closing.discard(self)
        finally:
            if self._scratch is not None:
                files.clear(self._scratch)
        if self._sealer is not None:
            self._sealer.write(log=self._unflushed)
        if isinstance(failure, Corruption):
            # Not raised: a compaction or flush met it, writes have raised it since then, and the directory is closed.
            logger.warning("%s", failure, extra=as_event("database_unclosed"))
        elif failure is not None:
            raise failure

    def forked(self) -> None:
        """As in `forks.Owned`: the handles stay as they are, and have no destructor any more."""
        forks.end_without_libraries()
        self._closed, self._to_close, self._lock = True, [], threading.Lock()
        self._left, self._families, self._getters = self._families, {}, {}
        for scan in list(self._scans):
            scan.forked()

    def _set_families(self, families: dict[str, _Family]) -> None:
        self._families = families
        self._getters = {name: held.rows.get for name, held in families.items()}

    def _handle(self, family: str) -> _Family:
        return _Family(self._db.get_column_family(family), self._db.get_column_family_handle(family))

    def _held(self, family: str, action: str) -> rocksdict.Rdict:
        held = self._families.get(family)
        if held is None:
            raise self._error(KeyError(family), family, action)
        return held.rows

    def _property(self, family: str, rows: rocksdict.Rdict, name: str) -> int:
        try:
            value = rows.property_int_value(name)
        except Exception as error:
            raise self._error(error, family, "measuring") from error
        return -1 if value is None else value

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"the engine of {self._path} was closed: open a new one")

    def _check_writable(self) -> None:
        self._check_open()
        if self._read_only:
            raise InvalidRequest(f"the engine of {self._path} was opened read-only: open it as its owner to change it")

    def _error(self, error: Exception, family: str, action: str) -> StandfastError:
        """Our error for one of the binding's; works out afterwards whether the engine or the family was at fault."""
        # A caller that keeps the error keeps its traceback, whose frames would keep handles, and so the LOCK.
        clear_frames(error)
        if is_foreign(error):
            raise error
        if self._closed:
            return Closed(f"the engine of {self._path} was closed: open a new one")
        if family not in self._families:
            known = ", ".join(sorted(self._families)[:10])
            return UnknownStore(f"no family {family!r} in {self._path}: it has {known}")
        found = translate(error, f"{action} {family!r} of {self._path}", self._path)
        if isinstance(found, Corruption):
            found.families = self._blamed(str(error), family if action in READS else None)
            self._notes.note(found)
        return found

    def _blamed(self, text: str, read: str | None) -> frozenset[str]:
        """The families of the damaged file; a write also fails for damage that a compaction met in another family."""
        if read is not None:
            return frozenset((read,))
        file = damaged_file(text)
        return frozenset() if file is None else self.families_of(file)

    def table_files(self, family: str) -> dict[str, int]:
        """Names and bytes of a family's table files, as the MANIFEST lists them; the files may be absent."""
        try:
            listed = self._held(family, "listing").property_value("rocksdb.sstables") or ""
        except Exception as error:
            raise self._error(error, family, "listing") from error
        return {f"{int(number):06}.sst": int(size) for number, size in _TABLE_FILE.findall(listed)}

    def families_of(self, file: str) -> frozenset[str]:
        """The families that have a table file of this number, as the database knows its files."""
        line = re.compile(rf"^ {file}:", re.MULTILINE)
        return frozenset(
            name
            for name, held in self._families.items()
            if line.search(held.rows.property_value("rocksdb.sstables") or "")
        )


def _place(
    rows: rocksdict.Rdict, start: bytes | None, end: bytes | None, reverse: bool
) -> tuple[rocksdict.RdictIter, rocksdict.ReadOptions]:
    """An iterator at the first row of the range, and its read options, which must live as long."""
    options = rocksdict.ReadOptions()
    if end is not None and not reverse:
        options.set_iterate_upper_bound(end)
    iterator = rows.iter(options)
    if not reverse:
        iterator.seek(start or b"")
    elif end is None:
        iterator.seek_to_last()
    else:
        iterator.seek_for_prev(end)
    return iterator, options


def _fill(batch: rocksdict.WriteBatch, changes: Rows, column: rocksdict.ColumnFamily) -> None:
    # In key order a memtable takes each row beside its neighbour: of 10,000 rows each takes 0.75 us instead of 1.4.
    keys = sorted(changes) if len(changes) >= SORT_ROWS_MIN else list(changes)
    values = map(changes.__getitem__, keys)
    put, delete = batch.put, batch.delete
    if None not in changes.values():
        deque(map(put, keys, values, repeat(column)), maxlen=0)  # the same loop in C
        return
    for key, value in zip(keys, values, strict=True):
        if value is None:
            delete(key, column)
        else:
            put(key, value, column)


def _open(
    path: Path,
    options: rocksdict.Options,
    access: rocksdict.AccessType,
    where: str,
    added: Collection[str] = (),
) -> rocksdict.Rdict:
    """Open with full options for every existing family, and for those to be `added`.

    A family left out of the open would lose cache and filter.
    """
    attempt = -1
    while True:
        try:
            return opened(path, options, access, where, added)
        except Held as held:
            if not held.by_us or attempt == OPEN_AGAIN:
                raise
        if attempt >= 0:
            # For a call of another thread, which ends once that thread gets the interpreter.
            threading.Event().wait(OPEN_AGAIN_S)
        attempt += 1
        # A signal handler interrupted a close, or an opening, whose handle then waits for the cycle collector.
        for engine in list(_closing):
            if engine._path == path:
                engine.close()
        if attempt in COLLECT_AT:
            gc.collect()


def _open_read_only(path: Path, options: rocksdict.Options) -> tuple[Path, rocksdict.Rdict]:
    """Open through a scratch directory of links, since every open writes into its directory."""
    if not (path / "CURRENT").exists():
        raise InvalidRequest(f"{path} holds no database: name a task's directory or a checkpoint")
    import tempfile  # for reads of closed stores alone

    where = f"opening {path} read-only"
    attempt = 1
    while True:
        scratch = Path(tempfile.mkdtemp(prefix="standfast-read-"))
        try:
            link(path, scratch)
            return scratch, _open(scratch, options, rocksdict.AccessType.read_only(False), where)
        except (StandfastError, OSError) as error:
            files.clear(scratch)
            # A live owner may remove a file between listing and opening; the next attempt finds its successor.
            if attempt >= READ_ONLY_ATTEMPTS or "No such file" not in str(error):
                raise translate(error, where) from error
            attempt += 1


def _tolerate_shutdown(action: Callable[[], None]) -> None:
    """Run a step of closing: ignore errors of cancelled background work, and let calls of other threads end first."""
    waited = threading.Event()
    for _ in range(int(CLOSE_WAIT_S / CLOSE_POLL_S)):
        try:
            action()
        except rocksdict.DbClosedError:
            pass
        except RuntimeError as error:
            if "borrowed" not in str(error):
                raise
            waited.wait(CLOSE_POLL_S)
            continue
        except Exception as error:
            if "Shutdown in progress" not in str(error):
                raise
        return
    raise InternalError(f"a call on the engine did not end within {CLOSE_WAIT_S:.0f} s of its closing")
