"""Tasks that failed while a loop processed their records: when each is opened again, or that the application ends.

    the log, a service or a full disk    no fault of the task: opened again as soon as that answers
    a record too large for the log       opened again at once: as it is sent again, its source's on_error decides
    a wrong setting                      the application ends: a person corrects it
    anything else                        the restart strategy: opened again after a delay, or the application ends

Rules of this file: the loop's thread alone. It notes in the life of a task; the session opens the task.
"""

from __future__ import annotations

from standfast.replication.offsets import TaskId
from standfast.replication.record_limits import RecordRefused
from standfast.store.clock import Clock
from standfast.store.errors import BadConfig, DiskFull, StandfastError, Unavailable
from standfast.store.file_errors import NoRoom
from standfast.store.log import as_event, logger
from standfast.stream.restart import RestartHistory, RestartStrategy
from standfast.stream.runtime.guard import can_skip
from standfast.stream.runtime.running import offsets_text
from standfast.stream.session.session import Session
from standfast.stream.task.task import Task
from standfast.stream.tasks.attempts import LATER_MS, tell_refused, tell_waits

RETRY_WAIT_MS = 200
SERVICE_WAIT_MS = 2_000  # between two openings of a task that waits for a service of its serdes
HINT = '; to go on without such records give the source, or the step, on_error="skip" or "dead_letter"'


class Failures:
    """The failures of a loop's tasks under one restart strategy. `fatal`: the error with which the application ends."""

    def __init__(self, session: Session, strategy: RestartStrategy, clock: Clock) -> None:
        RestartHistory(strategy)  # refuses anything else
        self.fatal: Exception | None = None
        self._session = session
        self._strategy = strategy
        self._clock = clock

    def note(self, task: Task, error: Exception, *, at: str | None = None, behind: bool = False) -> None:
        """Count a failure. `at`: the source offset of the failed record; `behind`: a step behind its source failed."""
        self._session.counters.task_failures += 1
        delay_ms = self._delay_ms(task, error, at, HINT if (at or behind) and can_skip(error) else "")
        if delay_ms is not None:
            self._session.open_later(task, str(error), delay_ms)

    def committed(self, task_id: TaskId) -> None:
        """Note a commit of a task."""
        history = self._session.lives[task_id].failures
        if history is not None:
            history.committed()

    def interrupted(self) -> None:
        """Note that the log does not answer: an outage must not use up a strategy's time without a commit."""
        for _, life in self._session.lives.items():
            if life.failures is not None:
                life.failures.interrupted()

    def _delay_ms(self, task: Task, error: Exception, at: str | None, hint: str) -> int | None:
        life = self._session.lives[task.id]
        if isinstance(error, (Unavailable, DiskFull)):
            if life.failures is not None:
                life.failures.interrupted()
            return self._wait_ms(task.id, error)
        if isinstance(error, RecordRefused) and error.of_output:
            tell_refused(task.id, error)
            return 0
        if isinstance(error, BadConfig):
            self.fatal = self.fatal or error
            return None
        if life.failures is None:
            life.failures = RestartHistory(self._strategy)
        return self._restart_ms(task, error, life.failures, at, hint)

    def _wait_ms(self, task_id: TaskId, error: StandfastError) -> int:
        if self._session.disk.room.text:  # the instance says so once a minute, for all of its tasks
            return LATER_MS
        tell_waits(task_id, error)
        # To open a task again costs more than to ask a service once, which no part of the session watches.
        of_service = isinstance(error, Unavailable) and error.service not in (Unavailable.service, NoRoom.service)
        return SERVICE_WAIT_MS if of_service else RETRY_WAIT_MS

    def _restart_ms(
        self, task: Task, error: Exception, history: RestartHistory, at: str | None, hint: str
    ) -> int | None:
        committed = offsets_text(task)
        delay_ms = history.failed(self._clock.monotonic_ms(), at or committed)
        if delay_ms is None:
            error.add_note(f"task {task.id} is given up: {history.reason}{hint}")
            about = as_event("task_given_up", task=task.id, failures=history.failures, source=at)
            logger.error("task %s is given up: %s%s", task.id, history.reason, hint, exc_info=error, extra=about)
            self.fatal = self.fatal or error
            return None
        where = f"at {at}" if at else f"(committed: {committed})"
        about = as_event("task_failed", task=task.id, failures=history.failures, source=at, restart_ms=delay_ms)
        logger.error("task %s failed (%d so far) %s, opened again in %d ms%s", task.id, history.failures, where,
                     delay_ms, hint, exc_info=error, extra=about)  # fmt: skip
        return delay_ms
