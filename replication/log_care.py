"""Care of the log beside a session: one member of the application does it, at intervals.

Rules of this file: the loop of one thread. Compacting a long log takes long, so it has a thread of its own: it must
delay neither lease nor restore.
"""

from __future__ import annotations

from collections.abc import Callable

from standfast.replication.log import Log
from standfast.store.clock import Clock
from standfast.store.errors import Corruption, Unavailable
from standfast.store.log import as_event, logger
from standfast.store.process.interrupts import Flag

CARE_INTERVAL_S = 30.0


def run_care(log: Log, clock: Clock, stop: Flag, is_mine: Callable[[], bool]) -> None:
    """Run every CARE_INTERVAL_S until `stop`, where `is_mine`. After Unavailable it is tried at the next interval."""
    while not stop.wait(CARE_INTERVAL_S):
        if not is_mine():
            continue
        try:
            log.care(clock.wall_ms())
        except Unavailable as error:
            logger.warning("log care failed, trying again: %s", error, extra=as_event("log_care_failed"))
        except Corruption as error:  # of the compacted part, not of the session's input: its readers report that
            logger.error("log care skipped a damaged part: %s", error, extra=as_event("log_care_skipped"))
