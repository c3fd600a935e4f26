"""Begins a task without local state with its newest usable snapshot, before its stores are opened.

    directory without a database ──> snapshots, the newest first: fits the log? ──> files ──> opened as local state
                                                      none, or no answer ──> the changelogs, from their beginnings

Rules of this file: it fails an opening only where a changelog lost its head, so that the snapshots are needed, and the
storage does not answer. The restore plan judges the snapshot's positions before the download, and the opened stores
again, as any local state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import wait
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from standfast.replication.log import LogReader
from standfast.replication.offsets import TaskId
from standfast.replication.progress import WORK, LeaseProgress
from standfast.restore.log_states import diverged
from standfast.restore.plan import LogState
from standfast.restore.snapshot.manifest import Snapshot
from standfast.restore.snapshot.opening import open_storage
from standfast.restore.snapshot.planning import Judged, judge, judge_store
from standfast.restore.snapshot.policy import SnapshotPolicy
from standfast.store.clock import Clock
from standfast.store.errors import StandfastError, Unavailable
from standfast.store.log import as_event, logger
from standfast.store.process.threads import THREADS, Threads
from standfast.store.rocks.opening import RocksShared
from standfast.store.specs import StoreSpec
from standfast.store.task.state_dir import StateDir
from standfast.store.task.task_stores import TaskStores
from standfast.stream.snapshot_counts import NONE, RESTORED, STORE, UNANSWERED, Downloads, SnapshotCounts

if TYPE_CHECKING:
    from standfast.restore.snapshot.fetch import Restored  # imported when it is used, as its functions are

T = TypeVar("T")
STEP_S = 0.25
PATIENCE_S = 20  # the changelogs have the same rows, so a storage that is away must not delay a task for long
# A storage that took longer than this to fail is not asked again for so long: all tasks would wait for it, one after
# the other. Tasks that need a snapshot have nothing else to begin with, so they ask sooner.
AWAY_AFTER_MS, AWAY_MS, AWAY_NEEDED_MS = 5_000, 30_000, 5_000


class SnapshotsAway(Unavailable):
    """A task must begin with a snapshot, and the storage does not answer. Other tasks need not wait for it."""

    service = "the storage of its snapshots"
    event = "task_waits_for_snapshots"


class FromSnapshot:
    """The snapshots of an application, for the openings of one session."""

    def __init__(
        self,
        app: str,
        policy: SnapshotPolicy,
        state_dir: StateDir,
        shared: RocksShared,
        reader: LogReader,
        *,
        clock: Clock,
        counts: SnapshotCounts,
        downloads: Downloads,
        progress: LeaseProgress,
        threads: Threads = THREADS,
    ) -> None:
        self.app = app
        self._threads = threads
        self._state_dir = state_dir
        self._shared = shared
        self._reader = reader
        self._clock = clock
        self._counts = counts
        self._downloads = downloads
        self._progress = progress
        self._storage = open_storage(policy.to, app, patience_s=PATIENCE_S, threads=threads)
        self._away: tuple[int, str] | None = None  # when the storage failed to answer, and its error
        self._closing = self._interrupted = False  # end a download, which the session's lock waits for
        counts.restores.update(dict.fromkeys((RESTORED, NONE, UNANSWERED, STORE), 0))

    def hasten(self) -> None:
        """The session closes: a download under way ends with its next part. Any thread may call it."""
        self._closing = True

    def begin(
        self,
        task: TaskId,
        specs: Sequence[StoreSpec],
        logs: Callable[[], Mapping[str, LogState]],
        *,
        headless: bool = False,
    ) -> Snapshot | None:
        """Put a snapshot in the place of a missing directory; `logs` reads the state of the task's changelogs by store.

        Returns it, or None. `headless`: a changelog without its head may be read from its beginning; otherwise
        SnapshotsAway is raised if the storage does not say whether a snapshot has the removed records.
        """
        from standfast.restore.snapshot.fetch import holds_database, restore_task

        target = self._state_dir.task_path(str(task))
        if holds_database(target) or all(spec.engine == "memory" for spec in specs):
            return None
        # Read before the storage: of an empty log no snapshot can be judged, and none is needed.
        states = logs()
        whole = sum(state.stop - state.begin for state in states.values())
        removed = any(state.head_removed and state.limit is None for state in states.values())
        # A snapshot may have the rows that an open transaction hides.
        hidden = any(state.last > state.end and state.limit is None for state in states.values())
        if not whole and not removed and not hidden:
            return None  # nothing was ever logged, or nothing is left that a snapshot could be checked against
        definitions, needed = {spec.name: spec.placed_definition() for spec in specs}, removed and not headless
        try:
            done = self._waited(
                partial(
                    restore_task,
                    self._storage,
                    str(task),
                    target,
                    self._state_dir.copying_path(str(task)),
                    self._shared,
                    judge=lambda snapshot: self._judge(snapshot, task, definitions, states),
                    step=partial(self._step, str(task)),
                ),
                needed=needed,
            )
        except StandfastError as error:
            if self._closing:
                raise
            self._unanswered(task, error)
            if needed:
                raise _away(task, error) from error
            logger.warning(
                "task %s is restored from its changelogs alone, its snapshots could not be read: %s",
                task,
                error,
                extra=as_event("snapshots_unread", task=task),
            )
            return None
        finally:
            self._downloads.end(str(task))
        self._counts.restores[NONE if done.snapshot is None else RESTORED] += 1
        if done.snapshot is not None:
            self._note(task, done.snapshot, done, whole)
        return done.snapshot

    def _unanswered(self, task: TaskId, error: StandfastError) -> None:
        """Count a restore without an answer; the reason is shown until a snapshot of the task is made."""
        self._counts.restores[UNANSWERED] += 1
        self._counts.note_error(str(task), error, self._clock.wall_ms())

    def _note(self, task: TaskId, snapshot: Snapshot, done: Restored, whole: int) -> None:
        """Count and log the snapshot that a task begins with; `whole` are the records of its changelogs."""
        self._counts.downloaded_bytes += snapshot.bytes
        logger.info(
            "task %s begins with snapshot %s: %d bytes, at most %d of %d records left to read",
            task,
            snapshot.name,
            snapshot.bytes,
            done.tail,
            whole,
            extra=as_event("snapshot_restored", task=task, snapshot=str(snapshot.name), tail=done.tail),
        )

    def usable(self, task: TaskId, specs: Sequence[StoreSpec], logs: Callable[[], Mapping[str, LogState]]) -> bool:
        """Whether a snapshot could be the base of the task, by manifests and sizes of files alone; `logs` as above.

        Raises SnapshotsAway.
        """
        from standfast.restore.snapshot.fetch import find_usable

        states, definitions = logs(), {spec.name: spec.placed_definition() for spec in specs}
        if all(spec.engine == "memory" for spec in specs):
            return False

        def look() -> bool:
            found = find_usable(
                self._storage, str(task), judge=lambda snapshot: self._judge(snapshot, task, definitions, states)
            )
            if found.snapshot is None and found.passed_over:
                self._storage.check_reads()
            return found.snapshot is not None

        try:
            return self._waited(look, needed=True)
        except StandfastError as error:
            self._unanswered(task, error)
            raise _away(task, error) from error

    def refill(
        self, task: TaskId, stores: TaskStores, lost: Collection[str], logs: Callable[[], Mapping[str, LogState]]
    ) -> None:
        """Fill stores that begin again beside good neighbours with their rows of a snapshot; `logs` as for `begin`.

        `lost` are stores that were just taken out. Raises the errors of an ingest: the task must be opened again then.
        """
        wanted = _begin_again(stores, lost)
        states = logs() if wanted else {}
        # Of an empty log no snapshot can be judged, unless its records were removed by hand.
        wanted = {name for name in wanted if states[name].stop > states[name].begin or states[name].head_removed}
        if not wanted:
            return
        from standfast.restore.snapshot.one_store import refill

        try:
            done = self._waited(
                partial(
                    refill,
                    self._storage,
                    stores,
                    wanted,
                    self._state_dir.copying_path(str(task)),
                    self._shared,
                    judge=lambda snapshot, name: self._judge_store(snapshot, name, task, stores, states[name]),
                    step=partial(self._step, str(task)),
                )
            )
        except StandfastError as error:
            if self._closing or stores.poisoned is not None:
                raise
            self._unanswered(task, error)
            logger.warning(
                "task %s: %s restored from the changelog alone, its snapshots could not be read: %s",
                task,
                ", ".join(sorted(wanted)),
                error,
                extra=as_event("snapshots_unread", task=task),
            )
            return
        finally:
            self._downloads.end(str(task))
        self._counts.restores[STORE] += len(done.stores)
        self._counts.downloaded_bytes += done.bytes
        for name, snapshot in done.stores.items():
            logger.info(
                "task %s: store %s begins with its rows of snapshot %s; its neighbours stay",
                task,
                name,
                snapshot,
                extra=as_event("store_refilled", task=task, store=name, snapshot=str(snapshot)),
            )

    def _judge_store(self, snapshot: Snapshot, name: str, task: TaskId, stores: TaskStores, log: LogState) -> Judged:
        stored = snapshot.cut.positions.get(name)
        return judge_store(
            snapshot,
            name,
            app=self.app,
            task=str(task),
            definition=stores.specs[name].placed_definition(),
            log=diverged({name: log}, {name: "" if stored is None else stored.tag}, self._reader)[name],
            now_ms=self._clock.wall_ms(),
        )

    def _step(self, task: str, snapshot: Snapshot, count: int) -> None:
        if self._closing or self._interrupted:
            raise Unavailable(f"task {task}: the session closes, and the download of snapshot {snapshot.name} ends")
        self._downloads.add(task, str(snapshot.name), snapshot.bytes, count, self._clock.monotonic_ms())

    def _waited(self, call: Callable[[], T], *, needed: bool = False) -> T:
        """Call in another thread; meanwhile the opening counts as progress for the lease.

        A download may last longer than `max_stall_ms`, and each of its requests has a time-out of its own.
        """
        began_ms = self._clock.monotonic_ms()
        rest_ms = AWAY_NEEDED_MS if needed else AWAY_MS
        if self._away is not None and began_ms - self._away[0] < rest_ms:
            raise Unavailable(f"{self._away[1]} ({(began_ms - self._away[0]) // 1_000} s ago, so it is not asked now)")
        self._interrupted = False
        with self._threads.pool(1, "standfast-snapshot") as pool:
            running = pool.submit(call)
            try:
                while not wait([running], STEP_S).done:
                    self._progress.step(WORK)
            except BaseException:  # a signal handler's: the pool is waited for
                self._interrupted = True
                raise
        self._progress.step(WORK)
        self._away = None
        try:
            return running.result()
        except Unavailable as error:
            now_ms = self._clock.monotonic_ms()
            if now_ms - began_ms >= AWAY_AFTER_MS:
                self._away = now_ms, str(error)
            raise

    def _judge(
        self,
        snapshot: Snapshot,
        task: TaskId,
        definitions: Mapping[str, Mapping[str, object]],
        states: Mapping[str, LogState],
    ) -> Judged:
        tags = {name: at.tag for name, at in snapshot.cut.positions.items()}
        return judge(
            snapshot,
            app=self.app,
            task=str(task),
            definitions=definitions,
            logs=diverged(states, tags, self._reader),
            now_ms=self._clock.wall_ms(),
        )


def _away(task: TaskId, error: StandfastError) -> SnapshotsAway:
    return SnapshotsAway(
        f"task {task}: a changelog lost records at its head, so the task must begin with a snapshot, and its snapshots "
        f"could not be read: {error}"
    )


def _begin_again(stores: TaskStores, lost: Collection[str]) -> set[str]:
    """Stores on disk with a changelog that were taken out just now, or that a crash left within an import.

    Not each store without a position: an operator may have wiped the task, since its rows, and snapshots of them, are
    wrong.
    """
    return {
        name
        for name in {*lost, *stores.interrupted} - stores.cut.positions.keys()
        if name in stores.specs and stores.specs[name].logging and stores.specs[name].engine != "memory"
    }
