"""The engine of the sidecar: the calls of both servers, over the active tasks of one process.

    connection ── Binding (partition, default store, session) ──┐
    MULTI ... EXEC ── apply ── all or nothing ──────────────────┼──> task's write buffer ── commit ──> log, RocksDB
    SF.COMMIT ── begin_commit, run (any thread), end_commit ────┘         └── discard: session lost, new generation

    session of a task   holds all writes since the last commit. It ends when a connection that wrote is lost or a new
                        generation begins: uncommitted writes are discarded, and connections that wrote any of them
                        are FENCED; with a new generation, all bound before. The others go on at once, but offsets are
                        refused from every connection that has not read the source offsets since the discard.

Rules of this file: one thread, that of the event loop, calls everything but `Commit.run`. No socket, no loop, no clock
of its own; time comes from the clock given. A task that commits takes neither writes nor scans: MustWait, and the
server calls again when it is free.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from standfast.ops.shared.error_codes import BAD_BATCH, DRAINING, FENCED, Refused
from standfast.ops.sidecar.engine.commit import CommitAnswer, CommitRequest
from standfast.ops.sidecar.engine.statistics import RespStatistics, ServerCounters
from standfast.ops.sidecar.engine.task import DISCARDED, TAKEN_UP, Binding, Commit, EngineTask, MustWait
from standfast.store.clock import Clock
from standfast.store.errors import StandfastError
from standfast.store.types.keyvalue import KeyValueState
from standfast.stream.task.states import TaskState
from standfast.stream.task.task import Task

T = TypeVar("T")

GENERATION = "a newer generation was assigned: bind again (SELECT, or a new connection)"


class TaskSource(Protocol):
    """The engine's source of tasks. It neither blocks nor takes a lock that restore work holds."""

    def running(self, partition: int) -> Task:
        """The active task of a partition, restored and behind an open gate.

        Raises Refused (RESTORING, NOT_ASSIGNED, NOT_ACTIVE), or the error that the task failed with.
        """
        ...

    def partitions(self) -> Mapping[int, str]:
        """State of each assigned partition: "running", "restoring: 41 %", "standby", "failed: ..."."""
        ...

    def missing(self) -> Sequence[str]:
        """The tasks that keep the restore gate shut, each with its progress; empty when all assigned ones are ready."""
        ...


class TaskEngine:
    """The active tasks as the servers see them. `source_group` is the consumer group that source offsets belong to."""

    def __init__(self, source: TaskSource, clock: Clock, *, source_group: str) -> None:
        self.source = source
        self.clock = clock
        self.source_group = source_group
        self.generation = 0
        self.draining = False
        self.trouble: Callable[[], StandfastError | None] = lambda: None  # why the log takes no commit now
        self.counters = ServerCounters()
        self._held: dict[int, EngineTask] = {}
        self._bindings: set[Binding] = set()

    # -- the control side ---------------------------------------------------------------------------------------------

    def begin_generation(self, generation: int) -> None:
        """Begin a new assignment: discard the uncommitted writes of every task and fence every connection.

        A repeated generation changes nothing; an older one is FENCED. Call it before tasks are closed or opened.
        """
        if generation < self.generation:
            raise Refused(FENCED, f"generation {generation} is older than the assigned {self.generation}: join again")
        if generation == self.generation:
            return
        self.generation = generation
        for held in self._held.values():
            # The answer to the assignment carries the source offsets, so no connection has to read them again.
            held.end_session(GENERATION, told=True)

    def restart(self, binding: Binding) -> dict[tuple[str, int], int]:
        """Source offsets to read on from, by (topic, partition), for a connection that begins there and is bound again.

        Uncommitted writes are discarded, because their records come again from there on. Raises Refused as
        `TaskSource.running`, MustWait while the task commits.
        """
        held = self._find(binding.partition)
        if held.commit is not None:
            raise MustWait(held)
        # The connection of a killed application may not have been missed yet; its half-done batch would count twice.
        held.discard(TAKEN_UP)
        self.select(binding, binding.partition)
        self._bind(binding)
        binding.read = held.discards
        return {(at.topic, at.partition): offset for at, offset in held.task.source_offsets().items()}

    def discard(self, partition: int, why: str) -> None:
        """Discard a partition's uncommitted writes and fence its connections: its lease ran out, or the task closes."""
        held = self._held.get(partition)
        if held is not None:
            held.end_session(why)

    def when_free(self, partition: int, call: Callable[[], None]) -> None:
        """Call once the partition's task is not committing; at once if it is not. Required before a task is closed.

        The call comes before waiting connections, of which one may begin the next commit.
        """
        held = self._held.get(partition)
        if held is None or held.commit is None:
            call()
        else:
            held.waiting.insert(0, lambda: self.when_free(partition, call))

    def settling(self, partition: int) -> bool:
        """Whether a commit runs whose connection is gone or fenced: its outcome decides the offsets to read on from."""
        held = self._held.get(partition)
        return held is not None and held.commit is not None and held.commit.orphaned

    def drain(self) -> None:
        """Refuse new writes from now on; reads and commits go on."""
        self.draining = True

    def epoch(self, partition: int) -> int:
        """The epoch of the running task. Raises as `TaskSource.running`."""
        return self._find(partition).task.epoch

    def statistics(self) -> RespStatistics:
        """Connections, commits and commands by method, as they are now."""
        return self.counters.snapshot(
            sessions=len(self._bindings),
            bound=sum(binding.held is not None for binding in self._bindings),
            committing=sum(held.commit is not None for held in self._held.values()),
        )

    def estimates(self, store: str) -> dict[int, int]:
        """Approximate number of rows of a key-value store in each partition that runs here.

        While a task commits, its write buffer belongs to the commit: then rows of the buffer are not counted.
        """
        found: dict[int, int] = {}
        for partition in sorted(self.source.partitions()):
            try:
                task = self.source.running(partition)
                state = task.stores.stores.get(store)
                if isinstance(state, KeyValueState):
                    held = self._held.get(partition)
                    free = held is None or held.commit is None
                    estimate = state.approximate_num_entries if free else state.rows_in_files
                    found[partition] = estimate()
            except StandfastError:  # the task does not run: a request for its rows gets the reason
                continue
        return found

    # -- the servers' side --------------------------------------------------------------------------------------------

    def connect(self) -> Binding:
        """A new connection: partition 0, no default store, bound by its first call."""
        # Clients send no SELECT for database 0, so a connection has a partition without one.
        binding = Binding()
        self._bindings.add(binding)
        return binding

    def disconnect(self, binding: Binding) -> None:
        """End a connection: if it wrote since the last commit, the session of its task ends. Twice is fine."""
        self._bindings.discard(binding)
        self._release(binding)

    def select(self, binding: Binding, partition: int) -> None:
        """Bind to another partition (or to the same one again) with the next call. Uncommitted writes of this
        connection are discarded, unless it stays with the same session."""
        if partition != binding.partition:
            self._release(binding)
            binding.partition = partition
        elif binding.fenced:
            binding.unbind()

    def reset(self, binding: Binding) -> None:
        """Return to the state of a new connection: bound to no task, without a default store."""
        self._release(binding)
        binding.partition, binding.store, binding.timestamp_ms = 0, None, None

    def task(self, binding: Binding) -> EngineTask:
        """The task that a connection is bound to, for reading.

        Raises Refused: NOT_ASSIGNED, NOT_ACTIVE, RESTORING; FENCED if writes of the connection were discarded, or it
        was bound in an older session or generation, whatever the task's state since then: only a connection that binds
        again learns that.
        """
        held = binding.held
        if held is None or (held.task.state is not TaskState.RUNNING and not binding.fenced):
            held = self._bind(binding)
        if binding.lost or binding.session != held.session:
            raise Refused(FENCED, f"partition {binding.partition}: {binding.fenced}")
        return held

    def write(self, binding: Binding, *, adds: bool = True) -> EngineTask:
        """The task that a connection is bound to, for writing; the next `commit` takes these writes.

        `adds`: it takes space, as deletes hardly do. Raises as `task`; MustWait while it commits; DRAINING; DiskFull.
        """
        held = self.task(binding)
        # A frozen layer of the buffer, so that writes go on while a commit runs, was tried: on one core it brought
        # nothing (98,300 and 98,900 sets/s over four turns each).
        if held.commit is not None:
            raise MustWait(held)
        if self.draining:
            raise Refused(DRAINING, "the sidecar is draining and takes no more writes: connect again later")
        if adds:
            # Before the connection counts as a writer: its end would discard the writes of the others.
            held.task.stores.buffer.check_open()
        binding.wrote = held.commits
        return held

    def scan(self, binding: Binding) -> EngineTask:
        """As `task`, for reads that must not meet a commit: MustWait while the task commits."""
        held = self.task(binding)
        if held.commit is not None:
            raise MustWait(held)
        return held

    def apply(self, binding: Binding, steps: Sequence[Callable[[], T]]) -> list[T]:
        """Run steps on the bound task as one: all of them, or none if one raises. Returns their results.

        Raises as `write`, and any error of a step.
        """
        wrote = binding.wrote
        held = self.write(binding, adds=False)  # each step says itself whether it adds
        task = held.task
        task.savepoint()
        try:
            answers = [step() for step in steps]
        except BaseException:
            task.rollback()
            # A refused put within a MULTI does not make its connection a writer, whose end would discard the others'
            # writes.
            if binding.held is held:
                binding.wrote = wrote
            raise
        task.release()
        return answers

    def check_commit(self, binding: Binding, request: CommitRequest) -> CommitAnswer | None:
        """The answer of the first, if this request repeats it; None for one that can begin. Changes nothing.

        Raises Refused as `task`; FENCED for offsets from a connection that has not read the source offsets since the
        last discard; STALE_EPOCH; BAD_BATCH for a sequence number that went back, or was used for other offsets or
        before writes of this connection, for an offset of another partition or below the committed one, and for
        another group; the log's trouble, if it has any now. MustWait.
        """
        held = self.scan(binding)
        held.check_read(binding, request)
        repeated = held.check(request, self.source_group)
        # A number that was committed before acknowledges no write that came after it.
        if repeated is not None and binding.dirty and held.uncommitted:
            raise Refused(
                BAD_BATCH,
                f"SEQ {request.seq} is committed already, and this connection has written since: give the next commit "
                "a new number, or begin again (SF.OFFSETS)",
            )
        # A repeat needs no log. A new commit is refused before it begins, so the same connection can send it again.
        trouble = self.trouble() if repeated is None else None
        if trouble is not None:
            raise trouble
        return repeated

    def begin_commit(self, binding: Binding, request: CommitRequest) -> Commit | CommitAnswer:
        """Begin to make all uncommitted writes of the bound task durable, together with source offsets.

        A repeat gets the answer of the first at once. Otherwise: call `run` of the returned commit, in any thread, then
        `end_commit`; until then the task takes no writes. Raises as `check_commit`; FENCED for offsets without an epoch
        from a connection that took no part in the session (`Binding.took_part`).
        """
        repeated = self.check_commit(binding, request)
        if repeated is not None:
            return repeated
        held = self.task(binding)
        held.check_knows(binding, request)
        return held.begin_commit(request, self.clock)

    def end_commit(self, commit: Commit) -> CommitAnswer:
        """Take a commit's outcome in, and wake waiting calls. Raises the error of `run`."""
        self.counters.observe_commit(commit)
        return commit.held.end_commit(commit)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _find(self, partition: int) -> EngineTask:
        held = self._held.get(partition)
        if held is not None and held.task.state is TaskState.RUNNING and self.source.running(partition) is held.task:
            return held
        # A replaced task's commit still belongs to the old object: it ends first, then the new one is bound.
        if held is not None and held.commit is not None:
            raise MustWait(held)
        task = self.source.running(partition)
        if held is None:
            held = self._held[partition] = EngineTask(task)
        elif held.task is not task:
            held.replace(task)
        return held

    def _bind(self, binding: Binding) -> EngineTask:
        held = self._find(binding.partition)
        if binding.held is None:
            binding.bind(held)
        return held

    def _release(self, binding: Binding) -> None:
        held = binding.held
        if binding.dirty:
            assert held is not None
            # A client library reconnects by itself: kept, the half-done batch of a restarted application would count
            # twice.
            held.discard(DISCARDED)
        # This commit holds writes of the connection that leaves: how it ends is reported to no connection.
        elif held is not None and held.commit is not None and binding.session == held.session:
            held.commit.orphaned = held.commit.orphaned or binding.wrote == held.commits - 1
        binding.unbind()
