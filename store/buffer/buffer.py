"""The write buffer: a task's record cache and uncommitted transaction in one, one per task.

    writer.put ─> rows     family -> key -> row | None      merged into the task's own reads
              └─> changes  store  -> log key -> change      written to the changelog by the commit; those of a HEADED
                                                            store are its rows, so that a put is one entry
    task.send ──> outputs  target -> records                written by the commit, too
    take      ──> taken    rows, changes and outputs of the commit under way, in one step; later writes are of the next
    settle    ──> recent   family -> key -> row | None      the rows of the last commits, as the database has them

    read          rows ──> taken ──> recent ──> database    the first that has the key
    put_back      taken stays, and the next `take` merges it under the rows that came since

    savepoint    begin ──> writes ──> release            they stay
                                └───> rollback           as if they had not been: rows, changes, their order, the size
      within     begin ──> begin ──> writes ──> ...      the innermost ends first; an outer rollback undoes all of it

There are two buffers with one behaviour: `WriteBuffer` (write_buffer.py), and the compiled one (twins.py).
`Buffer` is what both have in common. In each of them rows and changes enter in one place.

Rules of this file: nothing in the buffer has reached the log or the database yet; a commit writes the taken part
there, and a discard forgets the rest. Each write is wholly in one part or wholly in the next. It enters under `latch`,
or in one step of the interpreter while the buffer is `open`, as the compiled writer does. Since such a write also adds
to `size_bytes`, each adds in one step, without a call between reading and setting it. `settle` and `put_back` need no
latch, because a thread that keeps it may wait for the commit under way.

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
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from itertools import islice
from typing import Any, Protocol, TypeAlias

from sortedcontainers import SortedList

from standfast.store.arguments import INT64_MAX
from standfast.store.buffer.part import CommitPart, Rows, listed, logged, merged
from standfast.store.disk import DiskGuard
from standfast.store.engine import Row
from standfast.store.errors import Backpressure, DiskFull, InternalError, InvalidRequest
from standfast.store.value_timestamp import Change

BOUND_DEFAULT_BYTES = 10 << 20

# How a store's changes enter: not at all, each of them, the last of each key, or that as the rows themselves.
UNLOGGED, EACH, LATEST, HEADED = range(4)

Encode: TypeAlias = Callable[[Any], bytes]
Refuse: TypeAlias = Callable[[Exception | None], bytes]
Put: TypeAlias = Callable[[Any, Any, Any], None]
Check: TypeAlias = Callable[[bytes, bytes | None, int], None]
# What undoes a change: a call, or a mapping, a key and the former value; without a value the key goes.
Undo: TypeAlias = Callable[[], None] | tuple[Any, ...]


class Writer(Protocol):
    """Puts of one store into a buffer; one for each store.

    `check` is called where a write is over `most_bytes` (key and value), `least_ms` or the buffer's `stop_bytes`: it
    raises, or lets the write pass. Keys and values are bytes; of a subclass of bytes a copy enters, and any other type
    is a TypeError. `puts` and `deletes` count rows.
    """

    mode: int
    stamped: bool  # a row is the timestamp and the value, else the value
    most_bytes: int
    least_ms: int
    puts: int
    deletes: int

    def put(self, family: str, key: bytes, value: bytes | None, timestamp: int, /) -> None:
        """Set the value of a key, None: delete it, in one step; the changelog's key is the row's."""
        ...

    def put_all(self, family: str, pairs: Iterable[tuple[bytes, bytes | None]], timestamp: int, /) -> None:
        """`put` of several, in their order; if any of them is refused, none is set."""
        ...

    def enter(
        self, family: str, rows: dict[bytes, bytes | None], key: bytes, value: bytes | None, timestamp: int, /
    ) -> None:
        """The rows of one write, as they are, and its change, in one step. The caller has checked it."""
        ...


SLOTS = (
    "__weakref__", "_credit_bytes", "_disk", "_marks", "_recent_bytes", "_refuse_bytes", "bound_bytes", "in_savepoint",
    "indexes", "keep_bytes", "output_bytes", "outputs", "read_families", "recent", "taken",
)  # fmt: skip

NO_SLOTS: tuple[str, ...] = ()  # Buffer has the slots of its subclasses


class Buffer:
    """Rows, changes and outputs of one task since its last commit: all but the entry of a write."""

    __slots__ = NO_SLOTS

    rows: Rows
    changes: dict[str, dict[Any, Any]]  # those of a HEADED store are the dictionary of its family's rows itself
    delete_times: dict[str, dict[bytes, int]]  # of HEADED stores: of keys whose last change may have been a delete
    journal: list[Undo] | None  # what undoes each change since the outermost savepoint
    latch: threading.RLock
    size_bytes: int  # without the taken part
    stop_bytes: int
    open: bool  # whether a write of one step needs no latch

    @abstractmethod
    def writer(self, store: str, check: Check) -> Writer:
        """The writer of a store, of which a buffer has one."""

    @staticmethod
    @abstractmethod
    def encoder(serialize: Encode, refuse: Refuse, plain: bool) -> Encode:
        """A function for the bytes of a key or a value.

        `refuse` answers, or raises, where `serialize` raised an error, and for None, without an error. `plain`: the
        serde is that of bytes.
        """

    @staticmethod
    @abstractmethod
    def putter(writer: Writer, family: str, key: Encode, value: Encode, time: Callable[[Any], int]) -> Put:
        """`put` of a writer as a function of a key, a value or None, and a time, each by the function for it."""

    def __init__(self, bound_bytes: int = BOUND_DEFAULT_BYTES, disk: DiskGuard | None = None) -> None:
        # Held for one write, for as long as a savepoint is open, and by `take`. Reentrant: a signal handler may close
        # the task in the middle of a write.
        self.latch = threading.RLock()
        self.bound_bytes = bound_bytes
        self.taken: CommitPart | None = None
        self._disk: DiskGuard | None = None
        self._credit_bytes = 0  # the size up to which the guard lets the buffer grow
        self._refuse_bytes = self.stop_bytes = 2 * bound_bytes
        if disk is not None and disk.floor_bytes:
            # No credit yet: the first write asks the guard, so that a buffer that is never written claims nothing.
            self._disk, self.stop_bytes = disk, 0
            disk.watch(self)
        self.keep_bytes = 0  # the most for recent rows
        self.recent: Rows = {}
        self._recent_bytes = 0  # at most; a row that several commits wrote is counted with each
        self.read_families: set[str] = set()  # those of which a row was looked for in the database
        self._marks: list[tuple[int, int]] = []  # of each open savepoint: entries of the journal and size before it
        self.in_savepoint: bool  # while True, code that changes state of a record must also say how to undo it
        self.indexes: dict[str, SortedList[bytes]]
        self.outputs: dict[Any, list[Any]]  # records by target, which the task knows
        self.output_bytes: int  # of `size_bytes`
        self._forget_writes()

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

    def check_room(self, added_bytes: int, deletes: bool = False) -> None:
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
        stop_bytes = min(self._refuse_bytes, INT64_MAX if self._disk is None else self._credit_bytes)
        taken = self.taken
        self.stop_bytes = stop_bytes if taken is None else stop_bytes - taken.size_bytes  # writers add to `size_bytes`

    def place(self, store: str, family: str, mode: int) -> None:
        """Make room for the rows of a family, and for changes of its store. The caller has the latch.

        The rows of a HEADED store say its changes, as long as all of them lie in one family: the order of several
        families' rows only a list of changes has.
        """
        rows, changes = self.rows.get(family), self.changes.get(store)
        if rows is None:
            self.remember(self.rows, family)
            rows = self.rows[family] = {}
        if mode == HEADED and changes is None:
            for kept in (self.changes, self.delete_times):
                self.remember(kept, store)
            self.changes[store], self.delete_times[store] = rows, {}
        elif mode == HEADED and changes is not rows and store in self.delete_times:
            for kept in (self.changes, self.delete_times):
                self.remember(kept, store)
            self.changes[store] = listed(self.changes[store], self.delete_times.pop(store))
        elif mode != UNLOGGED and changes is None:
            self.remember(self.changes, store)
            self.changes[store] = {}

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
        return logged(self.changes, self.delete_times)

    def take(self) -> CommitPart:
        """Take all rows, changes and outputs for a commit, those of a refused one under the others.

        Every write is either wholly in the part or comes after it. Waits while another thread has a savepoint open;
        savepoints of this thread end. InternalError while a commit is under way.
        """
        with self.latch:
            if self.taken is not None and not self.taken.refused:
                raise InternalError("a commit took the buffer already, and has not ended")
            self.open = False  # from here on a compiled put waits for the latch
            try:
                part = CommitPart(self.rows, self.changes, self.delete_times)
                part.indexes, part.outputs = self.indexes, self.outputs
                part.output_bytes, part.size_bytes = self.output_bytes, self.size_bytes
                if self.taken is not None:
                    part = merged(self.taken, part)
                self.taken = part  # before the rows go: a reader looks here after it has looked there
                self._forget_writes()
                self._set_stop()
            finally:
                self.open = self.journal is None
        return part

    def put_back(self) -> None:
        """The commit under way changed nothing: the next `take` has its part, too."""
        if self.taken is not None:
            self.taken.refused = True

    def begin(self) -> None:
        """Open a savepoint, nested in the open one if there is one."""
        self.open = False  # writes must enter the journal, and other threads' writes wait
        if self.journal is None:
            self.journal = []
        self._marks.append((len(self.journal), self.size_bytes))
        self.in_savepoint = True

    def rollback(self) -> None:
        """Undo every change since the last `begin`, the latest first, and end that savepoint.

        InternalError if none is open.
        """
        journal, length, size_bytes = self._ended()
        self.indexes = {}
        for undo in reversed(journal[length:]):
            if not isinstance(undo, tuple):
                undo()
            elif len(undo) == 2:
                undo[0].pop(undo[1], None)
            else:
                undo[0][undo[1]] = undo[2]
        self.size_bytes = size_bytes
        del journal[length:]
        self._end_savepoint()

    def release(self) -> None:
        """End the last savepoint; its changes stay, for an outer one to undo. InternalError if none is open."""
        self._ended()
        self._end_savepoint()

    def remember(self, mapping: MutableMapping[Any, Any], key: object) -> None:
        """Save `mapping[key]`, or its absence, for a rollback to restore; call this before changing it.

        Does nothing while no savepoint is open. A key that is removed and then restored becomes the mapping's last.
        """
        if self.journal is not None:
            self.journal.append((mapping, key, mapping[key]) if key in mapping else (mapping, key))

    def on_rollback(self, undo: Callable[[], None]) -> None:
        """Have a rollback call `undo`, before it undoes earlier changes. Does nothing without a savepoint."""
        if self.journal is not None:
            self.journal.append(undo)

    def drop_family(self, family: str) -> None:
        """Forget buffered rows of an expired family; its changes are still logged."""
        self.rows.pop(family, None)
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
        self.open = False
        self.journal = None
        self._marks.clear()
        self.in_savepoint = False
        self.rows, self.changes, self.delete_times = {}, {}, {}
        self.indexes = {}
        self.outputs = {}
        self.size_bytes = self.output_bytes = 0
        self.open = True

    def _end_credit(self) -> None:
        # Credit counts as claimed room; a task that goes quiet after a commit must not keep it from the others.
        self._credit_bytes = 0
        self._set_stop()

    def _ended(self) -> tuple[list[Undo], int, int]:
        if self.journal is None:
            raise InternalError("no savepoint of the write buffer is open")
        length, size_bytes = self._marks.pop()
        self.in_savepoint = bool(self._marks)
        return self.journal, length, size_bytes

    def _end_savepoint(self) -> None:
        if not self._marks:
            self.journal = None
            self.open = True


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
