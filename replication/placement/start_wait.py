"""The wait of an instance that starts and gets no task, since all are held for instances that are expected back.

    look ──> tasks are held, none is active here ──> `text`: which tasks, for which instance, until when, which setting
         ──> a task is here, or none is held any more ──> the start is over, and `text` stays empty

Such a wait is long where each start has a new state directory: the instance that stopped never comes back.

Rules of this file: it decides nothing and keeps no clock. The leader knows since when an instance has been gone; the
others count from when they first see the tasks held, so that the end in their text is the latest one.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from standfast.replication.offsets import TaskId
from standfast.replication.placement.task_ranges import task_ranges
from standfast.store.log import as_event, logger
from standfast.store.names import few


class StartWait:
    """Of one instance of application `app`."""

    def __init__(self, app: str, grace_ms: int) -> None:
        self.text = ""  # empty: the instance waits for no other one
        self._app = app
        self._grace_ms = grace_ms
        self._over = False
        self._held: Mapping[TaskId, str] = {}
        self._since: dict[str, int] = {}  # by instance

    def look(
        self,
        held: Mapping[TaskId, str],
        active: frozenset[TaskId],
        gone_since: Mapping[str, int],
        *,
        now_ms: int,
        wall_ms: int,
    ) -> None:
        """Note the tasks that are `held`, each for an instance; `active` are those of this one.

        `gone_since` has times on the clock of `now_ms`, as far as they are known here.
        """
        if self._over:
            return
        if active or not held:
            self._over, self.text = True, ""
            return
        names = self._since.keys()
        since = {name: gone_since.get(name, self._since.get(name, now_ms)) for name in held.values()}
        if (held, since) == (self._held, self._since):
            return
        self._held, self._since = held, since
        left_ms = max(since.values()) + self._grace_ms - now_ms
        end = datetime.fromtimestamp((wall_ms + left_ms) / 1_000, UTC).isoformat(timespec="seconds")
        self.text = (
            f"no task is here yet: {task_ranges(held)} wait for {few(sorted(since))}, which stopped, to come "
            f"back until {end.replace('+00:00', 'Z')} (restart_grace_ms={self._grace_ms}): start in the state "
            "directory of that instance, or set restart_grace_ms=0 where each start has a new one"
        )
        if since.keys() != names:
            about = as_event("tasks_held", app=self._app, instances=sorted(since), grace_ms=self._grace_ms)
            logger.info("application %s: %s", self._app, self.text, extra=about)
