"""Closes the stores of tasks that left, in a thread of its own, where that takes long.

On a full disk RocksDB lets a second pass after each flush that failed, for one database after the other, and its close
waits for that. Meanwhile the tasks are to begin elsewhere: their owner must report that it runs them no more.

Rules of this file: the tasks are in no list any more. One thread, which ends when none is left; `join` waits for it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from standfast.replication.offsets import TaskId
from standfast.store.log import as_event, logger
from standfast.store.process.threads import THREADS, Running, Threads


class Closings:
    """The stores that are being closed."""

    def __init__(self, threads: Threads = THREADS) -> None:
        self._threads = threads
        self._due: deque[tuple[TaskId, Callable[[], None]]] = deque()
        self._lock = threading.RLock()  # without threads it runs within `add`
        self._thread: Running | None = None
        self._runs = False

    def add(self, task_id: TaskId, close: Callable[[], None]) -> None:
        """Call this soon."""
        with self._lock:
            self._due.append((task_id, close))
            if not self._runs:
                self._runs = True
                self._thread = self._threads.start("standfast-closing", self._run)

    def join(self) -> None:
        """Wait until all are closed."""
        thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._due:
                    self._runs = False
                    return
                task_id, close = self._due.popleft()
            try:
                close()
            except Exception as error:  # noqa: BLE001 - the others are to be closed, too
                about = as_event("task_unclosed", task=task_id)
                logger.error("task %s: closing its stores failed: %s", task_id, error, extra=about)
