"""The rounds of an application in this process: its loop, the look-out for other consumers, its session's own rounds.

    poll_once ──> session, where it has no threads ──> loop: records, clocks, commits ──> look-out, once a minute
    close     ──> last commit of all tasks, unless a round failed ──> processors, sources and reader closed

Rules of this file: `App` drives it, by run() or by calls of its poll_once(); the session stays the application's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from standfast.store.clock import Clock
from standfast.store.errors import Unavailable
from standfast.store.log import as_event, logger
from standfast.stream.deaths.death_notes import note_former_deaths
from standfast.stream.runtime.group_consumers import GroupConsumers
from standfast.stream.runtime.loop import Loop
from standfast.stream.session.session import Session

AGAIN_MS = 50  # within the shortest lease, since a session's rounds renew it


class RoundsHost(Protocol):
    """An application, as its rounds need it."""

    name: str
    clock: Clock
    paused: bool


class Rounds:
    """See the head of this file."""

    def __init__(self, app: RoundsHost, session: Session, make_loop: Callable[[], Loop]) -> None:
        self._app = app
        self._session = session
        note_former_deaths(session)  # before the loop's own words take their place
        self._loop = make_loop()
        self._failed = False
        self._again_ms = 0  # when the session has its next round
        self._consumers = GroupConsumers(session.log.admin, app.name, app.clock)

    def poll_once(self, timeout_ms: int) -> int:
        """One round; returns the number of processed records."""
        try:
            if self._session.threads.stepped and self._step_session():
                timeout_ms = 0  # its next round has work
            self._loop.paused = self._app.paused
            processed = self._loop.poll_once(timeout_ms)
            self._consumers.poll()
        except BaseException:
            self._failed = True
            raise
        return processed

    def _step_session(self) -> int:
        """One round of the session, which is tried again later while the log does not answer, as in a thread of it."""
        if self._app.clock.monotonic_ms() < self._again_ms:
            return 0
        try:
            return self._session.poll_once()
        except Unavailable as error:
            logger.warning("background work will be tried again: %s", error, extra=as_event("background_retried"))
            self._again_ms = self._app.clock.monotonic_ms() + AGAIN_MS
            return 0

    def close(self, *, commit: bool) -> None:
        """Close the loop, after a commit of all tasks."""
        with closing_after(f"tasks of application {self._app.name}", self._loop.close):
            # Not after an error: for a task that is given up, the loop has committed the others already.
            if commit and not self._failed:
                self._loop.commit_all()


@contextmanager
def closing_after(what: str, close: Callable[[], None]) -> Iterator[None]:
    """Close at the end. After an error, an error of closing is only logged: the first one stays the reason."""
    try:
        yield
    except BaseException:
        try:
            close()
        except Exception:  # noqa: BLE001 - see above
            logger.exception("%s: closing failed, after the error that ends it", what, extra=as_event("close_failed"))
        raise
    close()
