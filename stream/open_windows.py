"""The open windows, by the time at which they close: an index of bounded size over rows of a store.

    entries     (end, rest)        rest distinguishes windows of one end: the raw key, or (start, raw key) of a session
    frontier    (end, rest)        every open window below it is in the index; from there on only the store knows
                                   None: the index has them all

    add, add, add ... over the limit     the later half is dropped, the frontier moves down to the first of it
    take(through)                        all indexed windows that end by then, in order
    needs_scan(through)                  windows beyond the frontier end by then: `refill` from a scan of the store

So one scan serves as many windows as the limit allows, and none is needed while the index has room.

Rules of this file: pure; it knows no store. An entry whose row is gone is harmless; a row without an entry below the
frontier would be lost.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush, nsmallest
from typing import Any, TypeAlias

LIMIT_ENTRIES = 100_000
NEVER = 2**63
_STALE_MAX = 64

Entry: TypeAlias = tuple[int, Any]
Frontier: TypeAlias = tuple[int] | Entry


class OpenWindows:
    """The open windows; `frontier` (end,) begins with an index that knows no window from that end on."""

    __slots__ = ("_count", "_ends", "_groups", "_limit", "frontier", "next_end")

    def __init__(self, frontier: Frontier | None = None, limit: int = LIMIT_ENTRIES) -> None:
        self.frontier = frontier
        self.next_end = NEVER if frontier is None else frontier[0]  # nothing can be due before
        self._limit = limit
        self._groups: dict[int, set[Any]] = {}
        self._ends: list[int] = []  # a heap; `discard` leaves ends without a group, since a heap removes only its first
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, end: int, rest: Any) -> None:
        """Add a window that was created; a window that is indexed, or lies beyond the frontier, changes nothing."""
        if self.frontier is not None and (end, rest) >= self.frontier:
            return
        group = self._groups.get(end)
        if group is None:
            group = self._groups[end] = set()
            heappush(self._ends, end)
            if end < self.next_end:
                self.next_end = end
        before = len(group)
        group.add(rest)
        self._count += len(group) - before
        if self._count > self._limit:
            self._release()

    def discard(self, end: int, rest: Any) -> None:
        """Drop a window that was removed; an absent one is fine."""
        group = self._groups.get(end)
        if group is None or rest not in group:
            return
        group.remove(rest)
        self._count -= 1
        if not group:
            del self._groups[end]
            # Rebuilt only when stale ends outnumber the others, so that a discard stays cheap.
            if len(self._ends) > 2 * len(self._groups) + _STALE_MAX:
                self._ends = list(self._groups)
                heapify(self._ends)

    def take(self, through: int) -> list[Entry]:
        """Remove and return every entry with end <= through, in order."""
        ends, taken = self._ends, list[Entry]()
        while ends and ends[0] <= through:
            end = heappop(ends)
            group = self._groups.pop(end, None)
            if group is not None:
                taken += [(end, rest) for rest in sorted(group)]
        self._count -= len(taken)
        self._find_next()
        return taken

    def put_back(self, entries: Iterable[Entry]) -> None:
        """Undo `take`."""
        for end, rest in entries:
            self.add(end, rest)

    @property
    def last_end(self) -> int | None:
        """The largest end in the index, None if it is empty; with a frontier the store may know a later one."""
        return max(self._groups, default=None)

    def needs_scan(self, through: int) -> bool:
        """Whether windows that only the store knows may end by `through`."""
        return self.frontier is not None and self.frontier[0] <= through

    def refill(self, entries: Iterable[Entry]) -> None:
        """Add the first of all entries from the frontier on, given in any order, and move the frontier behind them.

        Entries below the frontier are ignored.
        """
        frontier = self.frontier
        if frontier is None:
            return
        room = max(self._limit - self._count, 1)
        # One more than fits: the first entry that does not fit is the new frontier.
        first = nsmallest(room + 1, (entry for entry in entries if entry >= frontier))
        self.frontier = first[room] if len(first) > room else None
        for end, rest in first[:room]:
            group = self._groups.get(end)
            if group is None:
                group = self._groups[end] = set()
                heappush(self._ends, end)
            group.add(rest)
        self._count = sum(map(len, self._groups.values()))
        self._find_next()

    def _release(self) -> None:
        # Half, not one entry, because this sorts the whole index.
        keep = max(self._limit // 2, 1)
        kept: dict[int, set[Any]] = {}
        for end in sorted(self._groups):
            group = self._groups[end]
            if len(group) <= keep:
                kept[end] = group
                keep -= len(group)
                continue
            ordered = sorted(group)
            if keep:
                kept[end] = set(ordered[:keep])
            self.frontier = (end, ordered[keep])
            break
        self._groups = kept
        self._count = sum(map(len, kept.values()))
        self._ends = sorted(kept)  # sorted is a heap
        self._find_next()

    def _find_next(self) -> None:
        while self._ends and self._ends[0] not in self._groups:
            heappop(self._ends)
        first = self._ends[0] if self._ends else NEVER
        self.next_end = first if self.frontier is None else min(first, self.frontier[0])
