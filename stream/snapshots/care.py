"""Looks after the storage of an instance's snapshots: its probe, the listing for status and page, the prunes.

    every LIST_MS, and after each change ──> names in the storage, and new manifests ──> the listing for status and page
    new snapshots of this instance ──> at most every PRUNE_MS ──> prune

Rules of this file: one process of an instance does this, however many of them make snapshots. A storage that is away
costs a warning and a later attempt.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod

from standfast.restore.snapshot.catalogue import read_all
from standfast.restore.snapshot.names import TASKS, SnapshotName, name_of_key
from standfast.restore.snapshot.opening import open_storage
from standfast.restore.snapshot.planning import ListedSnapshot, Retention
from standfast.restore.snapshot.policy import SnapshotPolicy
from standfast.store.clock import Clock
from standfast.store.errors import Corruption, StandfastError, Unavailable
from standfast.store.log import as_event, logger
from standfast.store.process.interrupts import Flag
from standfast.store.process.threads import THREADS, Running, Threads
from standfast.stream.snapshot_counts import FAILED, LISTING, MADE, UNCHANGED, SnapshotCounts, StoredSnapshot

THREAD = "standfast-snapshots"
TICK_MS = 1_000
PRUNE_MS = 600_000
LIST_MS = 300_000
STOP_WAIT_S = 5.0
START_PATIENCE_S = 5


class StorageCare(ABC):
    """The storage of one instance. `round` is the work of a subclass."""

    def __init__(
        self,
        app: str,
        policy: SnapshotPolicy,
        *,
        clock: Clock,
        counts: SnapshotCounts,
        cares: bool = True,
        threads: Threads = THREADS,
    ) -> None:
        """`cares` False: another process of this instance lists and prunes, and has probed at the start.

        Raises BadConfig for a storage without put-if-absent; one that does not answer is asked again later."""
        self.app = app
        self.policy = policy
        self._clock = clock
        self._counts = counts
        self._cares = cares
        self._pruned_ms: int | None = None
        self._list_ms = 0  # when the storage is listed again
        self._listed: dict[SnapshotName, StoredSnapshot] = {}
        self._listed_tasks: frozenset[str] = frozenset()
        self.threads = threads
        self._stop = Flag()
        self._thread: Running | None = None
        self.storage = open_storage(policy.to, app, threads=threads)
        counts.made.update(dict.fromkeys((MADE, UNCHANGED, FAILED), 0))  # series that exist from the start
        counts.storage = self.storage.where
        if not cares:
            return
        try:
            open_storage(policy.to, app, patience_s=START_PATIENCE_S, threads=threads).prove()
        except Unavailable as error:
            logger.warning("%s", error, extra=as_event("snapshots_unavailable", to=self.storage.where))
            self._note_error(LISTING, error)

    def start(self) -> None:
        """Begin the rounds, in a thread."""
        self._thread = self.threads.start(THREAD, self._run)

    def stop(self) -> None:
        """End the rounds; an upload under way ends after its file, or is left alone: it disturbs no next owner."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(STOP_WAIT_S)

    def wall_ms(self) -> int:
        """The session's wall clock, in milliseconds."""
        return self._clock.wall_ms()

    def monotonic_ms(self) -> int:
        """The session's monotonic clock, in milliseconds."""
        return self._clock.monotonic_ms()

    def wait(self, wait_ms: int) -> None:
        """Wait for so many milliseconds, or until the session stops."""
        self.threads.wait(self._stop, wait_ms)

    def prune(self) -> None:
        """Remove snapshots and checkpoints that the policy keeps no more; an error of the storage is only logged."""
        self._prune(self._clock.monotonic_ms())

    @abstractmethod
    def round(self) -> None:
        """The work of one round."""

    def care(self, now_ms: int, tasks: frozenset[str], *, grew: bool) -> None:
        """Prune if the storage grew, then list the snapshots of these tasks, which run here, if that is due."""
        if not self._cares:
            return
        if grew and (self._pruned_ms is None or now_ms - self._pruned_ms >= self._prune_interval_ms()):
            self._prune(now_ms)
        if grew or now_ms >= self._list_ms or tasks != self._listed_tasks:
            self._list(now_ms, tasks)

    def _list(self, now_ms: int, tasks: frozenset[str]) -> None:
        """List the snapshots of the tasks that run here; a manifest never changes, so each is read once."""
        self._list_ms = now_ms + LIST_MS
        self._listed_tasks = tasks
        if not tasks:
            self._counts.stored = ()
            return
        try:
            self.storage.prove()  # at once if it was proved; of one that damages reads the listing says nothing
            found = {name: one for one in self.storage.list(TASKS) if (name := name_of_key(one.key)) is not None}
            # Of other tasks their own instances show the snapshots.
            wanted = {name: one for name, one in found.items() if name.task in tasks}
            new = read_all(self.storage, (one for name, one in wanted.items() if name not in self._listed))
            if any(isinstance(fault, str) for fault in new.values()):
                self.storage.check_reads()
        except StandfastError as error:
            if LISTING not in self._counts.errors:  # the page shows it from now on: one line is enough
                logger.warning("snapshots cannot be listed: %s", error, extra=as_event("snapshots_unlisted"))
            self._note_error(LISTING, error)
            return
        self._listed = {name: one for name, one in self._listed.items() if name in wanted}
        self._listed |= {name: _stored(one) for name, one in new.items() if isinstance(one, ListedSnapshot)}
        self._counts.stored = tuple(one for _, one in sorted(self._listed.items(), reverse=True))
        self._counts.listed_ms = self._clock.wall_ms()
        # A manifest that cannot be read is tried again with the next listing.
        broken = [f"{name}: {fault}" for name, fault in sorted(new.items()) if isinstance(fault, str)]
        if broken:
            self._note_error(LISTING, Corruption("; ".join(broken[:3])))
        else:
            self._counts.errors.pop(LISTING, None)

    def _note_error(self, what: str, error: StandfastError) -> None:
        self._counts.note_error(what, error, self._clock.wall_ms())

    def tick(self) -> None:
        """One round, whatever it raises."""
        try:
            self.round()
        except Exception:  # noqa: BLE001 - the schedule must never end the session, whose data the log has
            self._counts.made[FAILED] += 1
            logger.exception("snapshots are tried again", extra=as_event("snapshot_failed", to=self.storage.where))

    def _run(self) -> None:
        while not self._stop.wait(TICK_MS / 1_000):
            self.tick()

    def _prune_interval_ms(self) -> int:
        return min(PRUNE_MS, self.policy.every_ms or PRUNE_MS)

    def _prune(self, now_ms: int) -> None:
        from standfast.restore.snapshot.prune import prune

        self._pruned_ms = now_ms
        retention = Retention(self.policy.keep, self.policy.keep_ms)
        try:
            done = prune(self.storage, retention, clock=self._clock, grace_ms=self.policy.grace_ms)
        except StandfastError as error:
            logger.warning("old snapshots stay for now: %s", error, extra=as_event("snapshots_unpruned"))
            return
        for why in done.stays:
            logger.warning("%s: %s", self.storage.where, why, extra=as_event("snapshots_unpruned"))


def _stored(kept: ListedSnapshot) -> StoredSnapshot:
    one = kept.snapshot
    return StoredSnapshot(str(one.name), one.task, one.epoch, one.position, one.bytes, len(one.files), kept.modified_ms)
