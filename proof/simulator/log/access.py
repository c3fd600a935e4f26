"""What all parts of one process's simulated log share: its clock, its calls, and the waits for an outage.

Rules of this file: the one way from a process to the world's log: every step of it is an effect of `Calls.run`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from simulator.calls import Calls
from simulator.log.cluster import Outage, SimLog
from simulator.log.partition import Began
from standfast.replication.offsets import TopicPartition
from standfast.replication.record_limits import TopicLimits
from standfast.store.clock import Clock
from standfast.store.errors import Closed, CommitUnknown, Unavailable

T = TypeVar("T")
SHORT_MS = 1_500  # how long a call about leases waits for the lock of a log like the embedded one


class Access:
    """One process's access to the log. `clock` is the process's own, `calls` its calls; None: those of the log."""

    def __init__(self, log: SimLog, clock: Clock | None, calls: Calls | None) -> None:
        self.log = log
        self.clock = clock if clock is not None else log.clock
        self.calls = calls if calls is not None else log.calls
        self.session = log.next_number()
        self.sessions: dict[tuple[str, str], int] = {}  # group, member -> session of a join through this access
        self.limits = TopicLimits()
        self.produced = Began(f"{log.next_number():016x}")
        self.closed = False
        self._last_ms: int | None = None  # when the time of all calls ends, once the log is about to be closed

    def check_open(self) -> None:
        """Raise Closed after `close` of the log."""
        if self.closed:
            raise Closed(f"log {self.log.where} was closed: open a new one")

    def hasten(self) -> None:
        """From now on all calls together wait no longer than one of them may."""
        if self.log.kafka and self._last_ms is None:
            self._last_ms = self.log.clock.monotonic_ms() + self.log.timeout_ms

    def call(self, name: str, effect: Callable[[], T], sources: Iterable[TopicPartition] = ()) -> T:
        """A call that writes nothing: of a log like the embedded one, no lock delays it."""
        if self.log.outages and self.log.kafka:
            self._await(name, sources, self.log.timeout_ms)
        return self.calls.run(name, effect)

    def write(
        self, name: str, effect: Callable[[], T], sources: Iterable[TopicPartition] = (), *, patient: bool = True
    ) -> T:
        """A call that writes; unless `patient`, it waits for a lock for a moment only."""
        if self.log.outages:
            self._await(name, sources, self.log.timeout_ms if patient or self.log.kafka else SHORT_MS)
        return self.calls.run(name, effect)

    def write_once(self, name: str, effect: Callable[[], T], sources: Iterable[TopicPartition] = ()) -> T:
        """A call that writes, but not twice: without an answer, once it began, it is CommitUnknown."""
        began: list[bool] = []

        def marked() -> T:
            began.append(True)
            return effect()

        try:
            return self.write(name, marked, sources)
        except Unavailable as error:
            if began:
                raise CommitUnknown(f"{self.log.where}: {name}: no answer, so it may or may not be written") from error
            raise

    def wait_until(self, ready: Callable[[], bool], wait_ms: int) -> bool:
        """Wait for something to become true, so long at most; returns whether it did."""
        if not ready():
            left_ms = wait_ms if self._last_ms is None else self._last_ms - self.log.clock.monotonic_ms()
            self.calls.wait(max(min(wait_ms, left_ms), 0), ready)
        return ready()

    def _await(self, name: str, sources: Iterable[TopicPartition], wait_ms: int) -> None:
        wanted = list(sources)
        last: list[Outage] = []

        def over() -> bool:
            last[:] = [found] if (found := self.log.outage(wanted)) is not None else []
            return not last

        if not self.wait_until(over, wait_ms):
            what = last[0].source or ("the brokers" if self.log.kafka else "a process that holds the log's lock")
            raise Unavailable(f"{self.log.where}: {name}: no answer within {wait_ms} ms, because of {what}: try again")
