"""Figures of an instance with workers, by real lines whose workers the test plays."""

from __future__ import annotations

import json
import socket
from collections import Counter
from collections.abc import Callable
from typing import Any

from standfast.ops.http.supervisor import WorkerFigures
from standfast.ops.http.worker_frames import STATUS, send_frame
from standfast.ops.observe.status import status_document
from standfast.ops.observe.status_merge import WorkerNumbers
from standfast.restore.replay.bulk import BulkStatistics
from standfast.store.clock import SystemClock
from standfast.stream.task.statistics import SessionCounters, SessionStatistics
from standfast.stream.workers.seen import InstanceSeen
from support.serve import wait_for


class EndingClock(SystemClock):
    """At its next look a worker ends."""

    ends: Callable[[], None] | None = None

    def monotonic_ms(self) -> int:
        ends, self.ends = self.ends, None
        if ends is not None:
            ends()
        return super().monotonic_ms()


class Instance:
    """A supervisor without processes."""

    def __init__(self) -> None:
        self.clock = EndingClock()
        self.seen = InstanceSeen()

    def statistics(self) -> SessionStatistics:
        return of(SessionCounters())


def of(counters: SessionCounters) -> SessionStatistics:
    return SessionStatistics("app", "a", True, (), (), 0, (), (), counters, BulkStatistics())


def test_counters_of_a_worker_that_ends_during_a_scrape_count_once() -> None:
    instance: Any = Instance()
    figures = WorkerFigures(instance)
    ours, theirs = socket.socketpair()
    figures.lines.began(7, ours)
    (line,) = figures.lines.all()
    status = status_document(of(SessionCounters(processed_records=Counter({"0_0": 5}))))
    send_frame(theirs, STATUS, 0, json.dumps(status).encode())
    wait_for(lambda: line.status is not None, 10)

    def ends() -> None:
        theirs.close()
        line.wait_closed()

    instance.clock.ends = ends
    for _ in range(2):
        assert figures.statistics().counters.processed_records == {"0_0": 5}
    assert figures.lines.all() == []
    figures.lines.close()


def test_error_of_a_snapshot_is_shown_until_its_worker_ends() -> None:
    counters = SessionCounters()
    counters.snapshots.made.update({"failed": 1})
    counters.snapshots.errors["0_0"] = ("the storage refused it", 5)
    numbers = WorkerNumbers()
    numbers.take("7", status_document(of(counters)))
    assert numbers.merged(of(SessionCounters())).counters.snapshots.errors == counters.snapshots.errors
    numbers.gone("7")
    left = numbers.merged(of(SessionCounters())).counters.snapshots
    assert left.made == {"failed": 1} and left.errors == {}
