"""The write buffer: a task's record cache and uncommitted transaction in one, one per task.

    store.put ──> rows     family -> key -> row | None      merged into the task's own reads
              └─> changes  store  -> log key -> change      written to the changelog by the commit; those of a `headed`
                                                            store are its rows, so that a put is one entry
    task.send ──> outputs  target -> records                written by the commit, too
    take      ──> taken    rows, changes and outputs of the commit under way, in one step; later writes are of the next
    settle    ──> recent   family -> key -> row | None      the rows of the last commits, as the database has them

    read          rows ──> taken ──> recent ──> database    the first that has the key
    put_back      taken stays, and the next `take` merges it under the rows that came since

    savepoint    begin ──> writes ──> release            they stay
                                └───> rollback           as if they had not been: rows, changes, their order, the size
      within     begin ──> begin ──> writes ──> ...      the innermost ends first; an outer rollback undoes all of it

Rules of this file: nothing in the buffer has reached the log or the database yet; a commit writes the taken part
there, and a discard forgets the rest. Each write is wholly in one part or wholly in the next. It enters under `latch`,
or by way of `hot`, whose rows are entries of one step, and which `take` empties first: compiled code looks and enters
in one step of the interpreter, and Python looks again after the entry. Since such a write also adds to `size_bytes`,
each adds in one step, without a call between reading and setting it. `settle` and `put_back` need no latch, because a
thread that keeps it may wait for the commit under way.

The buffer is bounded in bytes, the taken part included: at `bound_bytes` it is `full` (the loop commits after the
current record), at twice the bound a write is refused as Backpressure and changes nothing. With a disk guard the buffer
holds no more than the guard has granted; beyond that, and at the floor, a write raises DiskFull and changes nothing. A
writer compares with `stop_bytes`, the lower of both bounds, and calls `check_room` only past it. Savepoints cost one
comparison per write while none is open. Recent rows are those of families that are read, up to `keep_bytes`, which an
application's loop sets: its aggregations read a row for each record, and a look-up in the database costs as much as the
rest of their work.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

from sortedcontainers import SortedList

from standfast.store.disk import DiskGuard
from standfast.store.engine import Row
from standfast.store.errors import Backpressure, DiskFull, InternalError, InvalidRequest
from standfast.store.value_timestamp import TIMESTAMP_BYTES, Change, RowChanges, unpack

# CPython's approximate cost of the dictionary entries and object headers of one buffered row and of one change.
ROW_OVERHEAD_BYTES = 100
CHANGE_OVERHEAD_BYTES = 100
ENTRY_BYTES = ROW_OVERHEAD_BYTES + CHANGE_OVERHEAD_BYTES
ENTRY_OVERHEAD_BYTES = ENTRY_BYTES + TIMESTAMP_BYTES
BOUND_DEFAULT_BYTES = 10 << 20


_ABSENT = object()

Rows = dict[str, dict[bytes, bytes | None]]


class Part:
    """The rows, changes and outputs that one commit took from the buffer; no write enters them any more."""

    __slots__ = ("changes", "delete_times", "indexes", "output_bytes", "outputs", "refused", "rows", "size_bytes")

    def __init__(self, buffer: WriteBuffer) -> None:
        self.rows, self.changes, self.delete_times = buffer.rows, buffer.changes, buffer.delete_times
        self.indexes = buffer.indexes
        self.outputs, self.output_bytes, self.size_bytes = buffer.outputs, buffer.output_bytes, buffer.size_bytes
        self.refused = False  # its commit changed nothing, and the next one takes it again

    def logged(self) -> dict[str, Sequence[Change]]:
        """Changes by store, in the order in which their keys were first written."""
        return _logged(self.changes, self.delete_times)


class WriteBuffer:
    """Rows, changes and outputs of one task since its last commit."""

    __slots__ = (
        "__weakref__", "_credit_bytes", "_disk", "_journal", "_marks", "_recent_bytes", "_refuse_bytes",
        "bound_bytes", "changes", "delete_times", "hot", "in_savepoint", "indexes", "keep_bytes", "latch",
        "output_bytes", "outputs", "read_families", "recent", "rows", "size_bytes", "stop_bytes", "taken",
    )  # fmt: skip

    def __init__(self, bound_bytes: int = BOUND_DEFAULT_BYTES, disk: DiskGuard | None = None) -> None:
        # Held for one write, for as long as a savepoint is open, and by `take`. Reentrant: a signal handler may close
        # the task in the middle of a write.
        self.latch = threading.RLock()
        self.bound_bytes = bound_bytes
        self.size_bytes = 0  # without the taken part
        self.taken: Part | None = None
        self._disk: DiskGuard | None = None
        self._credit_bytes = 0  # the size up to which the guard lets the buffer grow
        self._refuse_bytes = self.stop_bytes = 2 * bound_bytes
        if disk is not None and disk.floor_bytes:
            # No credit yet: the first write asks the guard, so that a buffer that is never written claims nothing.
            self._disk, self.stop_bytes = disk, 0
            disk.watch(self)
        self.rows: Rows = {}
        # A store with `delete_times` is headed: its changes are the dictionary of its family's rows itself.
        self.changes: dict[str, dict[Any, Any]] = {}
        self.delete_times: dict[str, dict[bytes, int]] = {}  # of keys whose last change may have been a delete
        self.hot: Rows = {}  # rows of headed stores; empty while a savepoint is open
        self.outputs: dict[Any, list[Any]] = {}  # records by target, which the task knows
        self.output_bytes = 0  # of `size_bytes`
        self.keep_bytes = 0  # the most for recent rows
        self.recent: Rows = {}
        self._recent_bytes = 0  # at most; a row that several commits wrote is counted with each
        self.read_families: set[str] = set()  # those of which a row was looked for in the database
        self.indexes: dict[str, SortedList[bytes]] = {}
        self._journal: list[Callable[[], None]] | None = None  # how to undo each change since the outermost savepoint
        self._marks: list[tuple[int, int]] = []  # of each open savepoint: entries of the journal and size before it
        self.in_savepoint = False  # while True, code that changes state of a record must also say how to undo it

    @property
    def full(self) -> bool:
        """Whether a commit should follow the current record."""
        return self.held_bytes >= self.bound_bytes

    @property
    def held_bytes(self) -> int:
        """Bytes of everything that is not committed, the part of a commit under way included."""
        taken = self.taken
        return self.size_bytes if taken is None else self.size_bytes + taken.size_bytes

    @property
    def empty(self) -> bool:
        """Whether all writes are committed."""
        return not (self.rows or self.changes or self.outputs or self.taken is not None)

    @property
    def refuse_bytes(self) -> int:
        """The hard bound."""
        return self._refuse_bytes

    @refuse_bytes.setter
    def refuse_bytes(self, limit: int) -> None:
        if limit != self._refuse_bytes:
            self._refuse_bytes = limit
            self._set_stop()

    def check_room(self, added_bytes: int, *, deletes: bool = False) -> None:
        """Raise Backpressure if `added_bytes` more would pass the hard bound; an empty buffer takes any one write.

        Raises DiskFull if the disk has no space for them; `deletes` may go on below the floor, since they make room.
        """
        held_bytes = self.held_bytes
        size = held_bytes + added_bytes
        # An empty buffer is exempt: otherwise a value near the limit could never be written, however often one commits.
        if held_bytes and size > self._refuse_bytes:
            raise Backpressure(
                f"write buffer holds {held_bytes} bytes and would pass its hard bound of {self._refuse_bytes} "
                f"bytes with {added_bytes} more: commit, then write again, or raise cache_max_bytes"
            )
        disk = self._disk
        if disk is None or size <= self._credit_bytes:
            return
        try:
            self._credit_bytes = held_bytes + disk.grant(added_bytes)
        except DiskFull:
            if not deletes:
                raise
            disk.check_reserve(size, "a delete")
            return  # the delete gets no credit: the next put would use it
        self._set_stop()

    def makes_room(self, added_bytes: int) -> bool:
        """Whether `added_bytes` more may be written; asks the guard for credit, and raises nothing."""
        try:
            self.check_room(added_bytes)
        except (Backpressure, DiskFull):
            return False
        return self.size_bytes + added_bytes <= self.stop_bytes

    def check_open(self) -> None:
        """Raise DiskFull while the guard refuses new writes."""
        if self._disk is not None and self._disk.full:
            raise DiskFull(self._disk.full)

    def check_commit(self) -> None:
        """Raise DiskFull unless the disk has room for a commit of the buffered bytes; InvalidRequest in a savepoint.

        The caller holds the latch, so an open savepoint is its own.
        """
        if self.in_savepoint:
            raise InvalidRequest(
                "a savepoint is open, and its rollback could not undo a commit: end the savepoint first"
            )
        if self._disk is not None:
            self._disk.check_reserve(self.held_bytes, f"a commit of {self.held_bytes} bytes")

    @property
    def claim_bytes(self) -> int:
        """See Borrower."""
        return max(self.held_bytes, self._credit_bytes)

    def revoke(self) -> None:
        """See Borrower. Any thread may call it."""
        self._credit_bytes = 0
        self.stop_bytes = -1  # below any size: the next write asks the guard, also into an empty buffer

    def leave_disk(self) -> None:
        """Stop asking the guard: the task ends, or its caller makes sure of the room itself."""
        disk, self._disk = self._disk, None
        if disk is not None:
            disk.forget(self)
        self._set_stop()

    def _set_stop(self) -> None:
        stop_bytes = self._refuse_bytes if self._disk is None else min(self._refuse_bytes, self._credit_bytes)
        taken = self.taken
        self.stop_bytes = stop_bytes if taken is None else stop_bytes - taken.size_bytes  # writers add to `size_bytes`

    def put(self, family: str, key: bytes, row: bytes | None) -> None:
        """Buffer one row; None deletes."""
        rows = self.rows.get(family)
        if rows is None:
            rows = self._new_rows(family)
        if self._journal is not None:
            self._journal.append(partial(self._undo_row, family, key, rows.get(key, _ABSENT)))
        old = rows.get(key, rows)
        if old is rows:
            added = ROW_OVERHEAD_BYTES + len(key) + (len(row) if row is not None else 0)
        else:
            added = (len(row) if row is not None else 0) - (len(old) if isinstance(old, bytes) else 0)
        self.size_bytes += added
        rows[key] = row

    def log(self, store: str, key: bytes, value: bytes | None, timestamp: int, *, latest_only: bool) -> None:
        """Buffer one change; with `latest_only` a key changed several times before the commit is logged once."""
        changes = self.changes.get(store)
        if changes is None:
            self.remember(self.changes, store)
            changes = self.changes[store] = {}
        slot: object = key if latest_only else len(changes)
        if self._journal is not None:
            self.remember(changes, slot)
        replaced = changes.get(slot)
        added = len(value) if value is not None else 0
        if replaced is None:
            added += CHANGE_OVERHEAD_BYTES + len(key)
        elif replaced[1] is not None:
            added -= len(replaced[1])
        changes[slot] = (key, value, timestamp, ())
        self.size_bytes += added

    def write(
        self, family: str, key: bytes, row: bytes | None, store: str, value: bytes | None, timestamp: int
    ) -> None:
        """`put` and `log` of the latest change only, in one step: the path of most puts of a cached, logged store.

        Row and change have the same key, so one look-up shows whether both replace earlier ones.
        """
        try:
            rows, changes = self.rows[family], self.changes[store]
        except KeyError:
            self.enter(family, {key: row}, store, key, value, timestamp, latest_only=True)
            return
        if self._journal is not None:
            self._journal.append(partial(self._undo_row, family, key, rows.get(key, _ABSENT)))
            self.remember(changes, key)
        change = changes.get(key)  # None beside a row that `enter_again` has entered first
        if key in rows and change is not None:
            old = rows[key]
            added = 0 if old is None else -len(old) - len(change[1] or b"")
        else:
            added = ENTRY_BYTES + 2 * len(key)
        rows[key] = row
        changes[key] = (key, value, timestamp, ())
        if row is not None and value is not None:
            added += len(row) + len(value)
        self.size_bytes += added

    def write_each(
        self, family: str, key: bytes, row: bytes | None, store: str, value: bytes | None, timestamp: int
    ) -> None:
        """`put` and `log` of every change, in one step."""
        self.enter(family, {key: row}, store, key, value, timestamp, latest_only=False)

    def enter(
        self,
        family: str,
        entered: Mapping[bytes, bytes | None],
        store: str,
        key: bytes,
        value: bytes | None,
        timestamp: int,
        *,
        latest_only: bool,
    ) -> None:
        """Rows and the change of one write, in one step: an exception of a signal handler leaves both or neither."""
        rows, changes = self.rows.get(family), self.changes.get(store)
        if rows is None:
            rows = self._new_rows(family)
        if changes is None:
            self.remember(self.changes, store)
            changes = self.changes[store] = {}
        slot: object = key if latest_only else len(changes)
        if self._journal is not None:
            self._journal += [partial(self._undo_row, family, one, rows.get(one, _ABSENT)) for one in entered]
            self.remember(changes, slot)
        replaced, added = changes.get(slot), 0
        for one, row in entered.items():
            old = rows.get(one, rows)
            added += (ROW_OVERHEAD_BYTES + len(one) if old is rows else -len(old or b"")) + len(row or b"")
        added += CHANGE_OVERHEAD_BYTES + len(key) if replaced is None else -len(replaced[1] or b"")
        added += len(value or b"")
        # No call from here on: a call is followed by a look for signals.
        rows |= entered
        changes[slot] = (key, value, timestamp, ())
        self.size_bytes += added

    def write_unlogged(
        self, family: str, key: bytes, row: bytes | None, store: str, value: bytes | None, timestamp: int
    ) -> None:
        """`put`."""
        self.put(family, key, row)

    def write_headed(
        self, family: str, key: bytes, row: bytes | None, store: str, value: bytes | None, timestamp: int
    ) -> None:
        """`write` into a store whose rows are timestamp and value: the row says its change, as long as all of them lie
        in one family.

        Only a delete has its timestamp beside it.
        """
        rows = self.hot.get(family)
        if rows is None:
            rows = self._headed_rows(family, store)
            if rows is None:
                self.write(family, key, row, store, value, timestamp)
                return
            if self._journal is not None:
                self._journal.append(partial(self._undo_row, family, key, rows.get(key, _ABSENT)))
        size = 0 if row is None else 2 * len(row) - TIMESTAMP_BYTES
        if key in rows:
            old = rows[key]
            if old is not None:
                size -= 2 * len(old) - TIMESTAMP_BYTES
        else:
            size += ENTRY_BYTES + 2 * len(key)
        if row is None:  # its time first, without which a delete cannot be logged
            self.remember(self.delete_times[store], key)
            self.delete_times[store][key] = timestamp
        self.size_bytes += size
        rows[key] = row

    def write_all(self, family: str, pairs: Sequence[tuple[bytes, bytes]], prefix: bytes) -> None:
        """`write_headed` for several pairs, each row being the prefix and the value: a third of their time."""
        rows = self.hot.get(family)
        if rows is None:
            for key, value in pairs:
                self.write_headed(family, key, prefix + value, family, value, 0)
            return
        added = 0
        for key, value in pairs:
            if key not in rows:
                added += ENTRY_OVERHEAD_BYTES + 2 * (len(key) + len(value))
            else:
                old = rows[key]
                added += TIMESTAMP_BYTES + 2 * len(value) - (0 if old is None else 2 * len(old) - TIMESTAMP_BYTES)
            rows[key] = prefix + value
        self.size_bytes += added

    def taken_rows(self, family: str) -> dict[bytes, bytes | None] | None:
        """Rows of a family in the taken part; None if there are none."""
        taken = self.taken
        return None if taken is None else taken.rows.get(family)

    def pending(
        self, family: str, start: bytes | None, end: bytes | None, *, reverse: bool
    ) -> list[tuple[bytes, bytes | None]]:
        """Buffered rows with start <= key < end in order; a copy, so that later writes do not disturb a scan."""
        with self.latch:
            rows = self.rows.get(family)
            found = _within(rows, self.indexes, family, start, end, reverse) if rows else []
            taken, rows = self.taken, self.taken_rows(family)
            if taken is None or not rows:
                return found
            older = _within(rows, taken.indexes, family, start, end, reverse)
        return sorted({**dict(older), **dict(found)}.items(), reverse=reverse) if found else older

    def take_changes(self) -> dict[str, Sequence[Change]]:
        """Changes by store, in the order in which their keys were first written, without those of a taken part."""
        return _logged(self.changes, self.delete_times)

    def take(self) -> Part:
        """Take all rows, changes and outputs for a commit, those of a refused one under the others.

        Every write is either wholly in the part or comes after it. Waits while another thread has a savepoint open;
        savepoints of this thread end. InternalError while a commit is under way.
        """
        with self.latch:
            hot, self.hot = self.hot, {}  # before anything else: by it puts enter without the latch
            # Copies, each made in one step of the interpreter: a put of Python may have looked at `hot` before, and
            # enters the old dictionary, but then it looks again.
            for family, rows in list(hot.items()):
                self.rows[family] = own = rows.copy()
                for store in self.delete_times:
                    if self.changes[store] is rows:
                        self.changes[store] = own
            part = Part(self)
            if self.taken is not None:
                if not self.taken.refused:
                    raise InternalError("a commit took the buffer already, and has not ended")
                part = _merged(self.taken, part)
            self.taken = part  # before the rows go: a reader looks here after it has looked there
            self._forget_writes()
            self._set_stop()
        return part

    def put_back(self) -> None:
        """The commit under way changed nothing: the next `take` has its part, too."""
        if self.taken is not None:
            self.taken.refused = True

    def begin(self) -> None:
        """Open a savepoint, nested in the open one if there is one."""
        if self._journal is None:
            self._journal = []
            self.hot = {}  # writes must enter the journal
        self._marks.append((len(self._journal), self.size_bytes))
        self.in_savepoint = True

    def rollback(self) -> None:
        """Undo every change since the last `begin`, the latest first, and end that savepoint.

        InternalError if none is open.
        """
        journal, length, size_bytes = self._ended()
        self._journal = None  # undoing a change must not enter the journal as a change
        for undo in reversed(journal[length:]):
            undo()
        self.size_bytes = size_bytes
        if self._marks:
            del journal[length:]
            self._journal = journal

    def release(self) -> None:
        """End the last savepoint; its changes stay, for an outer one to undo. InternalError if none is open."""
        self._ended()
        if not self._marks:
            self._journal = None

    def remember(self, mapping: MutableMapping[Any, Any], key: object) -> None:
        """Save `mapping[key]`, or its absence, for a rollback to restore; call this before changing it.

        Does nothing while no savepoint is open. A key that is removed and then restored becomes the mapping's last.
        """
        if self._journal is not None:
            self._journal.append(partial(_restore, mapping, key, mapping.get(key, _ABSENT)))

    def on_rollback(self, undo: Callable[[], None]) -> None:
        """Have a rollback call `undo`, before it undoes earlier changes. Does nothing without a savepoint."""
        if self._journal is not None:
            self._journal.append(undo)

    def drop_family(self, family: str) -> None:
        """Forget buffered rows of an expired family; its changes are still logged."""
        self.rows.pop(family, None)
        self.hot.pop(family, None)
        self.recent.pop(family, None)
        self.read_families.discard(family)
        self.indexes.pop(family, None)

    def settle(self) -> None:
        """Forget the taken part, once a commit has written it to log and database: its rows stay for reads."""
        part = self.taken
        if part is None:  # a signal handler has closed the task
            return
        recent, size_bytes = self.recent, self._recent_bytes + part.size_bytes
        rows = {family: rows for family, rows in part.rows.items() if family in self.read_families}
        if size_bytes > self.keep_bytes:
            recent, size_bytes = {}, part.size_bytes
        if size_bytes <= self.keep_bytes:
            for family, written in rows.items():
                recent.setdefault(family, written).update(written)
        self.recent, self._recent_bytes = recent, size_bytes
        self.taken = None  # after that: a reader that finds no row here looks there
        self._end_credit()

    def forget_recent(self) -> None:
        """Forget the rows of the last commits: the database changes beside the buffer."""
        self.recent, self._recent_bytes = {}, 0

    def discard(self) -> None:
        """Forget the writes that no commit under way has taken. Open savepoints end."""
        if self.taken is not None and self.taken.refused:
            self.taken = None
        self._forget_writes()
        self.forget_recent()
        self._end_credit()

    def clear(self) -> None:
        """Forget everything, the part of a commit under way included. Needs no latch: the task is not used any more."""
        self.taken = None
        self.discard()

    def _forget_writes(self) -> None:
        self._journal = None
        self._marks.clear()
        self.in_savepoint = False
        self.hot = {}
        self.rows = {}
        self.changes = {}
        self.delete_times = {}
        self.indexes = {}
        self.outputs = {}
        self.size_bytes = self.output_bytes = 0

    def _end_credit(self) -> None:
        # Credit counts as claimed room; a task that goes quiet after a commit must not keep it from the others.
        self._credit_bytes = 0
        self._set_stop()

    def _new_rows(self, family: str) -> dict[bytes, bytes | None]:
        self.on_rollback(partial(self.drop_family, family))
        rows: dict[bytes, bytes | None] = {}
        self.rows[family] = rows
        return rows

    def _headed_rows(self, family: str, store: str) -> dict[bytes, bytes | None] | None:
        """The rows of a family as the changes of its store; None once these are of several families, whose order only
        a list of changes has.
        """
        changes, rows = self.changes.get(store), self.rows.get(family)
        if changes is None:
            if rows is None:
                rows = self._new_rows(family)
            for kept in (self.changes, self.delete_times):
                self.remember(kept, store)
            self.changes[store], self.delete_times[store] = rows, {}
        elif rows is None or changes is not rows:
            if store in self.delete_times:
                self._list_changes(store)
            return None
        if self._journal is None:
            self.hot[family] = rows
        return rows

    def _list_changes(self, store: str) -> None:
        """Let a headed store have changes beside its rows from now on."""
        rows = self.changes[store]
        for kept in (self.changes, self.delete_times):
            self.remember(kept, store)
        self.changes[store] = {change[0]: change for change in RowChanges(rows, self.delete_times.pop(store))}
        self.hot = {family: hot for family, hot in self.hot.items() if hot is not rows}

    def _undo_row(self, family: str, key: bytes, old: Any) -> None:
        rows = self.rows[family]
        if old is not _ABSENT:
            rows[key] = old
            return
        del rows[key]
        index = self.indexes.get(family)
        if index is not None:
            index.discard(key)

    def _ended(self) -> tuple[list[Callable[[], None]], int, int]:
        if self._journal is None:
            raise InternalError("no savepoint of the write buffer is open")
        length, size_bytes = self._marks.pop()
        self.in_savepoint = bool(self._marks)
        return self._journal, length, size_bytes


def _logged(changes: Mapping[str, Mapping[Any, Any]], delete_times: Mapping[str, Any]) -> dict[str, Sequence[Change]]:
    return {
        store: RowChanges(changed, delete_times[store]) if store in delete_times else list(changed.values())
        for store, changed in changes.items()
    }


def _within(
    rows: dict[bytes, bytes | None],
    indexes: dict[str, SortedList[bytes]],
    family: str,
    start: bytes | None,
    end: bytes | None,
    reverse: bool,
) -> list[tuple[bytes, bytes | None]]:
    # Keys are sorted only by a scan; a dict keeps insertion order, so the keys added since the last scan are its
    # tail. Puts therefore pay nothing for the order. A compiled put may enter between any two steps.
    index = indexes.get(family)
    if index is None:
        index = indexes[family] = SortedList(list(rows))
    while len(index) < len(rows):
        newest = reversed(rows)
        try:
            index.update(list(islice(newest, len(rows) - len(index))))
        except RuntimeError:  # another key has come since
            continue
        break
    keys = index.irange(start, end, inclusive=(True, False), reverse=reverse)
    return [(key, rows[key]) for key in keys]


def _merged(older: Part, newer: Part) -> Part:
    """Both parts as one: the newer row of a key counts, in the order of first writes."""
    both = WriteBuffer()
    for part in (older, newer):
        for listed in [name for name in part.changes if name in both.delete_times and name not in part.delete_times]:
            both._list_changes(listed)  # before its rows of one family only get company
        for family, rows in part.rows.items():
            store = next((name for name in part.delete_times if part.changes[name] is rows), None)
            for key, row in rows.items():
                if store is None:
                    both.put(family, key, row)
                    continue
                timestamp, value = (part.delete_times[store][key], None) if row is None else unpack(row)
                both.write_headed(family, key, row, store, value, timestamp)
        for store, changes in part.changes.items():
            for slot, (key, value, timestamp, _) in () if store in part.delete_times else changes.items():
                both.log(store, key, value, timestamp, latest_only=isinstance(slot, bytes))
        for target, records in part.outputs.items():
            both.outputs.setdefault(target, []).extend(records)
    both.output_bytes = older.output_bytes + newer.output_bytes
    both.size_bytes += both.output_bytes
    return Part(both)


def _restore(mapping: MutableMapping[Any, Any], key: object, old: object) -> None:
    if old is _ABSENT:
        mapping.pop(key, None)
    else:
        mapping[key] = old


def merge_pending(stored: Iterator[Row], pending: list[tuple[bytes, bytes | None]], *, reverse: bool) -> Iterator[Row]:
    """Stored rows overlaid with buffered ones (a None hides the stored row); both inputs have the same order."""
    position, count = 0, len(pending)
    for key, row in stored:
        while position < count and (pending[position][0] > key if reverse else pending[position][0] < key):
            buffered_key, buffered = pending[position]
            position += 1
            if buffered is not None:
                yield buffered_key, buffered
        if position < count and pending[position][0] == key:
            buffered = pending[position][1]
            position += 1
            if buffered is not None:
                yield key, buffered
            continue
        yield key, row
    for buffered_key, buffered in pending[position:]:
        if buffered is not None:
            yield buffered_key, buffered
