"""A consistent scan over one live RocksDB iterator.

Rules of this file: it gets an iterator that has been placed, and imports nothing of rocksdict: only
`standfast.store.rocks.engine` does. Three facts of the binding shape it, each held by the contract suite:
- `items()` ends silently at a damaged block; so this file steps the iterator and checks its `status()` at the end.
- The iterator points into the bytes of its upper bound, which only its read options keep alive; without them it
  stops at random. So the scan keeps them.
- Backwards, the iterator ignores its lower bound; so the scan compares each key.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Protocol

from standfast.store.closing import Closing
from standfast.store.engine import Row
from standfast.store.errors import Closed, Corruption, StandfastError
from standfast.store.process import forks
from standfast.store.process.tracebacks import clear_frames
from standfast.store.rocks.errors import translate

SCAN_ROWS_FIRST = 16  # most scans are short; a long one soon reads in full chunks
SCAN_ROWS_MAX = 256


class Cursor(Protocol):
    """The part of the binding's iterator that a scan needs. `key()` is None past the last row."""

    def key(self) -> bytes | None: ...

    def value(self) -> bytes: ...

    def next(self) -> None: ...

    def prev(self) -> None: ...

    def status(self) -> None: ...


class RocksScan(Closing):
    """A consistent scan over one live iterator; see `standfast.store.engine.RowScan`.

    It reads rows in chunks. `close()` and `end()` empty the chunk, so that no row is served after them.
    """

    __slots__ = (
        "__weakref__", "_ahead", "_chunk", "_chunk_rows", "_end", "_failure", "_iterator", "_lock", "_on_damage",
        "_options", "_reverse", "_start", "_where",
    )  # fmt: skip

    def __init__(
        self,
        iterator: Cursor | None,
        options: object,
        where: str,
        *,
        start: bytes | None = None,
        end: bytes | None = None,
        reverse: bool = False,
        on_damage: Callable[[Corruption], None] = lambda damage: None,
    ) -> None:
        """`iterator` stands at the first row; None is an empty range. `options` are its ReadOptions.

        `on_damage` must not keep the directory open.
        """
        self._iterator = iterator
        self._options = options
        self._where = where
        self._start = start or b""
        self._end = end
        self._reverse = reverse
        self._on_damage = on_damage
        self._lock = threading.Lock()  # a close from another thread waits for the chunk being read
        self._chunk: list[Row] = []
        self._ahead: Iterator[Row] = iter(self._chunk)
        self._chunk_rows = SCAN_ROWS_FIRST
        self._failure: StandfastError | None = None

    def __iter__(self) -> Iterator[Row]:
        while True:
            yield from self._ahead
            if not self._refill():
                return

    def __next__(self) -> Row:
        while True:
            for row in self._ahead:
                return row
            if not self._refill():
                raise StopIteration

    def close(self) -> None:
        """Release the iterator. A later next() raises Closed."""
        self.end(Closed(f"the scan was closed ({self._where}): begin a new one"))

    def end(self, failure: StandfastError) -> None:
        """Release the iterator; every later next() raises `failure`."""
        with self._lock:
            self._failure = self._failure or failure
            self._release()

    def forked(self) -> None:
        """As in `forks.Owned`; called by its engine."""
        forks.keep_for_good(self._iterator)
        self._lock = threading.Lock()
        self.close()

    def _release(self) -> None:
        self._chunk.clear()
        self._iterator = None  # before its options, which keep the bytes of its bound
        self._options = None

    def _refill(self) -> bool:
        """Read the next chunk; False at the true end of the range. A damaged block raises Corruption, every time."""
        with self._lock:
            if self._failure is not None:
                raise self._failure
            if self._iterator is None:
                return False
            chunk: list[Row] = []
            try:
                if self._reverse:
                    chunk, more = _drain_back(self._iterator, self._chunk_rows, self._start, self._end)
                else:
                    chunk, more = _drain(self._iterator, self._chunk_rows)
                if not more:
                    self._iterator.status()
            except BaseException as error:
                clear_frames(error)  # the frames hold the iterator, and it holds the directory
                if not isinstance(error, Exception):
                    raise
                self._failure = translate(error, self._where)
                self._release()
                if isinstance(self._failure, Corruption):
                    self._on_damage(self._failure)
                if not chunk:
                    raise self._failure from error
                more = True  # the rows before the damage are good; the call for the next row raises
            if not more:
                self._release()
            self._chunk, self._ahead = chunk, iter(chunk)
            self._chunk_rows = min(self._chunk_rows * 4, SCAN_ROWS_MAX)
            return bool(chunk)


def _drain(iterator: Cursor, rows_max: int) -> tuple[list[Row], bool]:
    """Up to `rows_max` rows forwards, and whether more may follow; the iterator itself stops at the end bound."""
    key, value, step = iterator.key, iterator.value, iterator.next
    chunk: list[Row] = []
    append = chunk.append
    for _ in range(rows_max):
        found = key()
        if found is None:
            return chunk, False
        append((found, value()))
        step()
    return chunk, True


def _drain_back(iterator: Cursor, rows_max: int, start: bytes, end: bytes | None) -> tuple[list[Row], bool]:
    """As `_drain`, backwards: skips the excluded end, and stops below the start (the iterator would not)."""
    key, value, step = iterator.key, iterator.value, iterator.prev
    chunk: list[Row] = []
    for _ in range(rows_max):
        found = key()
        if found is not None and found == end:
            step()
            found = key()
        if found is None or found < start:
            return chunk, False
        chunk.append((found, value()))
        step()
    return chunk, True
