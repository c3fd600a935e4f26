"""Final results: each window once, when it closes, in order of end, then start, then key bytes.

    closed:<store>   among the task's progress numbers: the largest end whose results were given

They come before the record that closed them changes anything: its put may move the store's own clock and hide rows.
Progress is set before the first result goes on, and committed with the offsets, so that no window is given twice, nor
lost, across restarts and take-overs.

Rules of this file: the open windows are kept by `standfast.stream.open_windows`; rows are read through two functions of
the aggregation. Undone as a whole when the record that closed them fails and is skipped; a result that fails further
downstream is skipped by itself, as the policy there says. Semantics of Kafka Streams' EmitStrategy.onWindowClose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from standfast.replication.log import Headers
from standfast.store.buffer.buffer import Buffer
from standfast.stream import open_windows
from standfast.stream.open_windows import Entry, OpenWindows
from standfast.stream.record import Record
from standfast.stream.topology.processor import Context, Forward

# (end, rest, headers) -> the result; None if the window is gone
Read = Callable[[int, Any, Headers], Record | None]
# end -> every stored window that ends then or later, in any order
Scan = Callable[[int], Iterable[Entry]]


def closed_key(store: str) -> str:
    """The name of the progress number of a store's final results."""
    return f"closed:{store}"


class FinalResults:
    """Results of one aggregation on close. `stored`: the store may hold windows from before this opening."""

    __slots__ = ("_buffer", "_give", "_index", "_key", "_progress", "_read", "_scan", "next_end")

    def __init__(self, context: Context, store: str, buffer: Buffer, read: Read, scan: Scan, stored: bool) -> None:
        self._buffer = buffer
        self._give: Forward = context.give
        self._progress = context.progress
        self._key = closed_key(store)
        self._read = partial(context.read_result, read)
        self._scan = scan
        # The scan for stored windows waits until one of them may close.
        frontier = (self.closed_through + 1,) if stored else None
        self._index = OpenWindows(frontier, open_windows.LIMIT_ENTRIES)
        self.next_end = self._index.next_end

    @property
    def closed_through(self) -> int:
        """The largest end whose results were given; -1 before the first."""
        return self._progress.get(self._key, -1)

    def last_end(self) -> int | None:
        """The largest end of an open window; None if none is open. Reads the store where the index has not all."""
        index, closed = self._index, self.closed_through
        if index.frontier is None:
            return index.last_end
        return max((end for end, _ in self._scan(closed + 1) if end > closed), default=None)

    def add(self, end: int, rest: Any) -> None:
        """Note a window that was created."""
        if end > self.closed_through:  # else its result was given, before the grace was made longer
            self._index.add(end, rest)
            self.next_end = self._index.next_end

    def discard(self, end: int, rest: Any) -> None:
        """Note a window that was removed."""
        self._buffer.on_rollback(partial(self.add, end, rest))
        self._index.discard(end, rest)

    def give(self, through: int, headers: Headers) -> None:
        """Forward every window with end <= through; only needed once `next_end` is reached."""
        index, buffer = self._index, self._buffer
        if through > self.closed_through:
            buffer.remember(self._progress, self._key)
            self._progress[self._key] = through
        while True:
            due = index.take(through)
            # Registered before the first result goes on, because any of them may fail and roll the record back.
            buffer.on_rollback(partial(self._put_back, due))
            for end, rest in due:
                result = self._read(end, rest, headers)
                if result is not None:
                    self._give(result)
            if not index.needs_scan(through):
                break
            # One scan fills the index up to its limit; with more windows due than that the loop scans again.
            index.refill(self._scan(index.next_end))
        self.next_end = index.next_end

    def _put_back(self, due: list[Entry]) -> None:
        self._index.put_back(due)
        self.next_end = self._index.next_end
