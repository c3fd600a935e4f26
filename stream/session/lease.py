"""Keeps a session's lease: by a lease process where other members may take its tasks over, else by a thread.

    open the session ── start ──> lease process connects          thread: looks every fifth of the lease
    joined ── begin ──────────> it renews                         it does not renew (starts, died): the thread does
    it ran out ───────────────> the thread joins again; tasks taken over meanwhile are fenced at the log

Measured on two cores (docs/internals/restore.md, Take-over): a thread cannot renew while RocksDB replays a WAL or user
code stays in a C call, since both hold the interpreter, for as long as they last.

A session without threads has neither: `poll_once` renews, after each interval.

Rules of this file: one thread, which starts the process and outlives it. Nothing is renewed for a process without
progress (`replication/lease/renewal.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Protocol

from standfast.replication.kafka.address import KafkaAddress
from standfast.replication.kafka.callbacks import needs_this_process
from standfast.replication.lease.process import LeaseEnd, LeaseProcess
from standfast.replication.lease.renewal import StallWatch, Word
from standfast.replication.leases import Busy, BusyWatch, renewal_interval_ms
from standfast.replication.log import Group
from standfast.replication.progress import ALLOWED, GAP, LOOKED, STALLED, STALLS, LeaseProgress
from standfast.replication.tail.open_log import SqliteAddress, parse_address
from standfast.store.clock import Clock, SystemClock
from standfast.store.errors import Corruption, Unavailable
from standfast.store.log import as_event, logger
from standfast.store.outside import process_id
from standfast.store.process.interrupts import Flag
from standfast.store.timestamps import duration_text
from standfast.stream.task.settings import Guarantee
from standfast.stream.task.statistics import SessionCounters


def renewed_here(app: str, kafka: Mapping[str, Any] | None) -> bool:
    """Whether no other process can ask the log, so that a thread of this one renews the lease; logs that."""
    if not needs_this_process(kafka):
        return False
    logger.info(
        "application %s: no other process has its oauth_cb: a thread renews the lease",
        app,
        extra=as_event("one_process", app=app),
    )
    return True


class LeaseHolder(Protocol):
    """An instance, as its keeper needs it."""

    @property
    def member(self) -> str: ...
    @property
    def token(self) -> str: ...
    @property
    def lease_ms(self) -> int: ...
    def heartbeat(self, group: Group, busy: Busy) -> None: ...


class LeaseKeeper:
    """Renews the lease of one session; see the module header. `workers`: the processes of a supervisor."""

    def __init__(
        self, lease_ms: int, max_stall_ms: int, clock: Clock, counters: SessionCounters, *, workers: int = 0
    ) -> None:
        self._lease_ms = lease_ms
        self._max_stall_ms = max_stall_ms
        self._clock = clock
        self._counters = counters
        self._watch = StallWatch(max_stall_ms)
        self._busy = BusyWatch()
        self._workers = workers
        self._stop = Flag()
        self._began = Flag()
        self._started = Flag()
        self._process: LeaseProcess | None = None
        self._word: Word | None = None
        self._holder: tuple[LeaseHolder, Group] | None = None
        self._renewed_ms = -1
        self._stalled: tuple[str, ...] = ()
        self._withheld = False
        self._stalls = 0  # of the process: its count at the last call of `was_stalled`
        self.progress = LeaseProgress(workers=workers)

    def use_process(self, address: str, guarantee: Guarantee) -> None:
        """Renew by a process; called before the thread runs. A clock that is not the machine's needs the thread."""
        self._word = self._word_of(address, guarantee)
        # A frozen program is its own interpreter, so starting it would run the application again.
        startable = bool(sys.executable) and not getattr(sys, "frozen", False)
        if startable and isinstance(self._clock, SystemClock):
            self.progress = LeaseProgress(shared=True, workers=self._workers)
            self._process = LeaseProcess(address, self.progress, self._max_stall_ms, self._clock)
            if process_id() == 1:
                logger.warning(
                    "this process is the first of its PID namespace, and the kernel ends its lease process with it: if "
                    "it is killed, its lease has to run out; start it by `standfast run`, or below an init (docker "
                    "run --init, shareProcessNamespace of a pod)", extra=as_event("first_of_namespace"),
                )  # fmt: skip

    def _word_of(self, address: str, guarantee: Guarantee) -> Word | None:
        """The word that ends the lease with its process; None: it runs out."""
        where = parse_address(address)
        fenced = isinstance(where, KafkaAddress) and guarantee == "exactly_once"
        if fenced or isinstance(where, SqliteAddress):
            return Word.GOING  # the log refuses writes of a process that lives on after all
        # Of a supervisor the workers write, and their own ends are not watched.
        return Word.GONE if isinstance(where, KafkaAddress) and not self._workers else None

    @property
    def pid(self) -> int | None:
        """The id of the running lease process."""
        return None if self._process is None else self._process.pid

    def was_stalled(self) -> bool:
        """Whether renewals were withheld for want of progress since the last renewal or the last call."""
        before, self._stalls = self._stalls, self.progress.words[STALLS]
        withheld, self._withheld = self._withheld, bool(self._stalled)
        return withheld or before != self._stalls

    def looked(self) -> None:
        """Note that this process has looked at the placement, and decided if it leads."""
        self.progress.words[LOOKED] = self._clock.monotonic_ms()

    def busy(self, now_ms: int) -> Busy:
        """How busy this process is; the lease process measures the same by a watch of its own."""
        return self._busy.look(self.progress.loops(), self.progress.words[LOOKED], self._holder_lease_ms, now_ms)

    def begin(self, holder: LeaseHolder, group_name: str, group: Group) -> None:
        """Start renewing: the session has joined. `group` is the thread's own."""
        self._holder = (holder, group)
        if self._process is not None:
            self._started.wait()
            end = LeaseEnd(holder.token, "" if self._word is None else self._word.value)
            self._process.renew(group_name, holder.member, self._lease_ms, end)
        self._began.set()

    def run(self) -> None:
        """Renew until `stop`; the body of the thread."""
        try:
            if self._process is not None:
                # The process starts while the session opens, so that it adds nothing to that time.
                self._process.start()
            self._started.set()
            self._began.wait()
            while not self._stop.wait(self.interval_ms() / 1_000):
                self.renew()
        finally:
            self._started.set()
            if self._process is not None:
                self._process.close()
            self.progress.close()

    def stop(self) -> None:
        """End the thread soon."""
        self._stop.set()
        self._began.set()

    @property
    def _holder_lease_ms(self) -> int:
        return self._lease_ms if self._holder is None else self._holder[0].lease_ms

    def interval_ms(self) -> int:
        """The time between two rounds."""
        return renewal_interval_ms(self._holder_lease_ms)

    def renew(self) -> None:
        """One round, of the thread or of a session without threads: renew, unless the process does, or work stands."""
        now_ms, words = self._clock.monotonic_ms(), self.progress.words
        # Looked at in each round, also while the process renews: the stall is logged in this process.
        still = self._watch.look(self.progress.counts(), words[ALLOWED], now_ms)
        busy = self.busy(now_ms)
        if still and not self._stalled:
            logger.error(
                "no progress for %s (%s): the lease is not renewed, so that a standby takes the tasks over; give "
                "max_stall_ms more than one record or one commit may take",
                duration_text(self._max_stall_ms + words[ALLOWED]),
                " and ".join(still),
                extra=as_event("lease_withheld", silent_ms=self._max_stall_ms + words[ALLOWED]),
            )
            self.progress.on_stall(f"no progress for {duration_text(self._max_stall_ms + words[ALLOWED])}")
        self._stalled = still
        self._withheld |= bool(still)
        process = self._process
        if process is not None:
            by_process, lost = process.poll(self._holder_lease_ms // 2), process.lost()
            self._counters.lease_gap_ms = max(self._counters.lease_gap_ms, words[GAP])
            if by_process:
                self._renewed_ms = -1  # the process measures the gaps between its renewals itself
            if by_process and not lost:
                if not words[STALLED]:
                    self.was_stalled()  # a stall that did not cost the lease is forgotten
                return
        # Without progress nothing is renewed, so that a standby takes the tasks over.
        if still:
            return
        assert self._holder is not None
        holder, group = self._holder
        try:
            holder.heartbeat(group, busy)
        except (Unavailable, Corruption) as error:
            if isinstance(error, Corruption) and not error.of_log:
                raise
            # Readers of a damaged part report it.
            logger.warning("heartbeat failed, trying again: %s", error, extra=as_event("heartbeat_failed"))
            return
        after_ms = self._clock.monotonic_ms()
        if self._renewed_ms >= 0:
            self._counters.lease_gap_ms = max(self._counters.lease_gap_ms, after_ms - self._renewed_ms)
        self._renewed_ms = after_ms
        self.was_stalled()
