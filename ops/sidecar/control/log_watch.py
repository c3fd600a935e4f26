"""The log watch: whether the sidecar's log can be written and read now, so that no request finds out by waiting for it.

    every LOOK_S ── log.trouble() ──> now: None, Unavailable (holder of the lock, since when), Corruption
                                        └──> servers, readyz, status; one line when it begins, one when it is over

Rules of this file: one thread, which alone may have to wait. Its finding is one attribute that is replaced; readers
take no lock. It knows no task and no server.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from standfast.replication.log import Log
from standfast.store.clock import Clock
from standfast.store.errors import Closed, Corruption, StandfastError, Unavailable
from standfast.store.log import OVER, as_event, logger

# With the log locked, `/v1/status` took 9 s and `/readyz` stayed 200 for 17 s before this thread looked.
LOOK_S = 0.25


class SidecarLogWatch:
    """Watches the log that `log` returns, None while there is none."""

    def __init__(self, log: Callable[[], Log | None], clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._stop = threading.Event()
        self._since_ms = 0
        self._found: StandfastError | None = None
        self._thread = threading.Thread(target=self._run, name="standfast-log-watch", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread soon; a look that hangs is not waited for."""
        self._stop.set()

    def now(self) -> StandfastError | None:
        """The log's trouble as of the last look, to be raised as it is; None if it can be used."""
        found = self._found
        # An exception that is raised again and again would keep the frames of each time.
        return None if found is None else found.with_traceback(None)

    def _run(self) -> None:
        while not self._stop.wait(LOOK_S):
            try:
                self._take(self._look())
            except Exception:  # noqa: BLE001  a look that fails must not end the watch
                logger.exception("the log cannot be checked", extra=as_event("log_check_failed"))

    def _look(self) -> StandfastError | None:
        log = self._log()
        try:
            return None if log is None else log.trouble()
        except Closed:
            return None  # another is opened in its place, or none
        except (Unavailable, Corruption) as error:
            return error

    def _take(self, found: StandfastError | None) -> None:
        before, self._found = self._found, found
        now_ms = self._clock.monotonic_ms()
        if found is not None and before is None:
            self._since_ms = now_ms
        if found is not None:
            logger.error("%s", found, extra=as_event("log_away"))  # of the same text, one in ten seconds is written
        elif before is not None:
            logger.warning(
                "the log can be used again, after %.1f s: %s", (now_ms - self._since_ms) / 1_000, before, extra=OVER
            )
