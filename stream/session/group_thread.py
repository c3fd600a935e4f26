"""The thread that hears of members that come, leave or end, so that a take-over does not wait for the next look.

Rules of this file: it decides nothing; `heard` has the group looked at, by whichever thread does that.
"""

from __future__ import annotations

from collections.abc import Callable

from standfast.replication.log import GroupWatch
from standfast.stream.session.background import Background

GROUP_THREAD = "standfast-group"
WAIT_MS = 10_000


class GroupThread:
    """Runs until the background work stops; `wake` ends its wait then."""

    def __init__(self, background: Background, watch: GroupWatch, heard: Callable[[], None]) -> None:
        self._stop = background.stop
        self._watch = watch
        self._heard = heard
        background.start(GROUP_THREAD, self._run)

    def wake(self) -> None:
        """End the wait, once the background work is to stop."""
        self._watch.wake()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                if self._watch.wait(WAIT_MS):
                    self._heard()
        finally:
            self._watch.close()
