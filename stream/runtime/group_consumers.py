"""Live consumers in the group of an application, which has none there: its offsets are committed by its tasks.

    start     refused (Held), with the consumers' names
    running   a warning each minute, while there are any

Rules of this file: one request for the group, in the thread of the caller. Without an answer, or the permission to
describe the group, it is unknown whether there are any, and nothing is refused: the offsets that such a consumer
commits are judged when a task is opened (`foreign_offsets.py`).
"""

from __future__ import annotations

from standfast.replication.log import LogAdmin
from standfast.store.clock import Clock
from standfast.store.errors import BadConfig, Held, Unavailable
from standfast.store.log import as_event, logger
from standfast.store.names import few

LOOK_MS = 60_000


class GroupConsumers:
    """The look-out of one instance."""

    def __init__(self, admin: LogAdmin, app: str, clock: Clock) -> None:
        self._admin = admin
        self._app = app
        self._clock = clock
        self._next_ms = clock.monotonic_ms() + LOOK_MS

    def refuse(self) -> None:
        """Raise Held if there are any."""
        found = self._look()
        if found:
            raise Held(
                f"{found}: end it, or give it a group.id of its own, then start again. One that was killed is "
                "forgotten after its session time-out (45 s unless set)"
            )

    def poll(self) -> None:
        """Warn of any, once a minute."""
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._next_ms:
            return
        self._next_ms = now_ms + LOOK_MS
        found = self._look()
        if found:
            logger.warning(
                "%s: give it a group.id of its own. Where it commits an offset that differs from a task's own record, "
                "the next opening of that task is refused",
                found,
                extra=as_event("foreign_consumer", app=self._app),
            )

    def _look(self) -> str:
        """A sentence about the live consumers; empty if there are none, or it is unknown."""
        try:
            found = self._admin.consumers(self._app)
        except (BadConfig, Unavailable) as error:
            logger.info(
                "application %s: it is unknown whether its group has other consumers: %s",
                self._app,
                error,
                extra=as_event("consumers_unknown", app=self._app),
            )
            return ""
        if not found:
            return ""
        return (
            f"group {self._app!r} is that of this application, and has a live consumer of another program "
            f"({few(found)}), which takes no records from it but commits its offsets"
        )
