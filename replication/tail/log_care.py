"""Care of the log beside a session: one member of the application does it, at intervals.

Rules of this file: one round. Compacting a long log takes long, so a session does it in a thread of its own: it must
delay neither lease nor restore.
"""

from __future__ import annotations

from collections.abc import Callable

from standfast.replication.log import Log
from standfast.store.clock import Clock
from standfast.store.errors import Corruption, Unavailable
from standfast.store.log import as_event, logger

CARE_INTERVAL_MS = 30_000


def care(log: Log, clock: Clock, is_mine: Callable[[], bool]) -> None:
    """Care for the log once, where `is_mine`. After Unavailable it is tried at the next interval."""
    if not is_mine():
        return
    try:
        log.care(clock.wall_ms())
    except Unavailable as error:
        logger.warning("log care failed, trying again: %s", error, extra=as_event("log_care_failed"))
    except Corruption as error:  # of the compacted part, not of the session's input: its readers report that
        logger.error("log care skipped a damaged part: %s", error, extra=as_event("log_care_skipped"))
