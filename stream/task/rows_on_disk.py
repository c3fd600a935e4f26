"""Closed tasks of an instance's state directory, and how many records their rows lack: the lags of placement.

    directories ── opened read-only, once each ──> positions ──┐
    changelogs ── ends, every ENDS_MS ─────────────────────────┴──> lag of each closed task

An opening takes some 10 to 50 ms. So a look reads for a bounded time, later ones a directory every READ_MS. A directory
is read again only after its task was open here, since nothing else writes to it.

Rules of this file: it changes no file, and never opens a directory that the caller has open. A directory that cannot be
read is reported in the log and counts as none: placement then treats its task as one without rows here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from standfast.replication.log import LogReader
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.store.clock import Clock, real_clock
from standfast.store.errors import StandfastError, UnknownStore
from standfast.store.log import as_event, logger
from standfast.store.rocks.open_engine import open_engine
from standfast.store.rocks.opening import RocksShared
from standfast.store.specs import StoreSpec
from standfast.store.task.commit_record import Position, read_record
from standfast.store.task.state_dir import StateDir, check_marker

ENDS_MS = 30_000
READ_MS = 500
NO_POSITION = Position(0)
TASK_NAME = re.compile(r"[0-9]{1,9}_[0-9]{1,9}")
Positions = Mapping[str, Position]


class RowsOnDisk:
    """The closed tasks of one state directory. `stores_of` gives the stores of a group, none of an unknown one."""

    def __init__(
        self,
        state_dir: StateDir,
        reader: LogReader,
        stores_of: Callable[[int], Sequence[StoreSpec]],
        shared: RocksShared,
        *,
        clock: Clock,
        opening: Callable[[Path], AbstractContextManager[None]],
    ) -> None:
        self._state_dir = state_dir
        self._reader = reader
        self._stores_of = stores_of
        self._shared = shared
        self._clock = clock
        self._opening = opening  # announces an opening to the lease
        self._real_clock = real_clock()  # bounds work, whatever the clock of the session is
        self._open: frozenset[TaskId] | None = None
        self._waiting: list[TaskId] = []
        self._positions: dict[TaskId, Positions] = {}  # empty: unreadable
        self._lags: dict[TaskId, int] = {}
        self._ends_ms = self._read_ms = 0

    def look(self, open_here: Collection[TaskId], budget_ms: int = 0) -> Mapping[TaskId, int]:
        """Records that the rows of each closed task lack, of the tasks read so far.

        Reads directories for about `budget_ms`; without it one, unless the last was read a moment ago.
        Raises Unavailable.
        """
        now_ms = self._clock.monotonic_ms()
        opened = frozenset(open_here)
        if opened != self._open:
            self._list(opened)
        read = 0
        if self._waiting and (budget_ms or now_ms >= self._read_ms):
            read = self._read(budget_ms)
            self._read_ms = now_ms + READ_MS
        # Not after each directory: every new lag is a report that the leader decides by.
        if self._positions and ((read and not self._waiting) or now_ms >= self._ends_ms):
            self._measure()
            self._ends_ms = now_ms + ENDS_MS
        return self._lags

    def _list(self, opened: frozenset[TaskId]) -> None:
        """List the directories again: tasks were opened or closed here, or it is the first look."""
        # A person may keep a copy beside a directory, by another name.
        found = {TaskId.parse(name) for name in self._state_dir.tasks() if TASK_NAME.fullmatch(name)}
        closed = {task for task in found - opened if any(spec.logging for spec in self._stores_of(task.group))}
        self._positions = {task: one for task, one in self._positions.items() if task in closed}
        self._lags = {task: lag for task, lag in self._lags.items() if task in closed}
        self._waiting = sorted(closed - self._positions.keys(), reverse=True)
        self._open = opened

    def _read(self, budget_ms: int) -> int:
        """Read positions of further tasks; returns how many."""
        until_ms, count = self._real_clock.monotonic_ms() + budget_ms, 0
        while self._waiting and (not count or self._real_clock.monotonic_ms() < until_ms):
            task = self._waiting.pop()
            self._positions[task] = self._position(task)
            count += 1
        return count

    def _position(self, task: TaskId) -> Positions:
        path = self._state_dir.task_path(str(task))
        try:
            check_marker(path, self._state_dir.app, str(task))
            with self._opening(path):
                engine = open_engine(path, shared=self._shared, read_only=True)
                try:
                    return read_record(engine, str(path)).positions
                finally:
                    engine.close()
        except StandfastError as error:
            logger.warning(
                "the rows of task %s on disk do not count for its placement: %s",
                task,
                error,
                extra=as_event("rows_unreadable", task=task),
            )
            return {}

    def _measure(self) -> None:
        """Compare the positions with the ends of the changelogs, all in one request."""
        parts: dict[TaskId, list[tuple[TopicPartition, Position]]] = {}
        for task, positions in self._positions.items():
            if positions:
                parts[task] = [
                    (
                        TopicPartition(spec.changelog_of(self._state_dir.app), task.partition),
                        positions.get(spec.name, NO_POSITION),
                    )
                    for spec in self._stores_of(task.group)
                    if spec.logging
                ]
        try:
            bounds = self._reader.bounds({at for one in parts.values() for at, _ in one})
        except UnknownStore:
            self._lags = {}  # a changelog is gone: its rows are worth nothing, and the opening of the task says why
            return
        self._lags = {}
        for task, one in parts.items():
            lag = 0
            for at, position in one:
                begin, end = bounds[at]
                # A position beyond the end is of another history: such rows are restored from the begin.
                start = position.offset if position.offset <= end else begin
                lag += end - max(start, begin)
            self._lags[task] = lag
