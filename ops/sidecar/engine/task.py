"""A task as the engine holds it: its session, its running commit, and its bound connections.

Rules of this file: called by the engine in its one thread, but for `Commit.run`, which touches only the task. While a
commit runs, no other thread writes or scans the task, so `run` has it alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from standfast.ops.shared.error_codes import (
    BAD_BATCH,
    COMMIT_UNKNOWN,
    DISK_FULL,
    FENCED,
    UNAVAILABLE,
    Refused,
    message_of,
    reason_of,
)
from standfast.ops.sidecar.engine.commit import ALONE, CommitAnswer, CommitRepeats, CommitRequest
from standfast.store.clock import Clock
from standfast.store.errors import Fenced, InternalError, InvalidRequest, StandfastError
from standfast.store.log import as_event, logger
from standfast.stream.task.states import TaskState
from standfast.stream.task.task import Task

READ_ON = "read the source offsets (SF.OFFSETS) and go on from there"
DISCARDED = f"uncommitted writes were discarded when the connection that made them ended: {READ_ON}"
TAKEN_UP = "another connection began again at the source offsets (SF.OFFSETS), and uncommitted writes are discarded"
_UNKNOWN = "the outcome of the commit is unknown"
_NOTHING = "nothing was committed"
REOPENED = "the task was reopened, and its uncommitted writes are gone: read the source offsets (SF.OFFSETS)"


class Waited(Protocol):
    """An object that becomes free: each of these calls is made once it is."""

    waiting: list[Callable[[], None]]


class MustWait(Exception):
    """The task is committing, or too many scans run. Not an error: call again when `held` is free."""

    def __init__(self, held: Waited) -> None:
        self.held = held
        super().__init__("it is not free")


class Binding:
    """Binding of a connection to a task. `wrote`: the number of commits when it wrote last; -1: it did not.

    `read`: the number of discards when it read the source offsets last in this session, which shows how much of the
    state it knows; -1: it did not. `lost`, if not empty, gives the reason why writes of this connection are gone: it
    is fenced. `timestamp_ms` is that of the record in hand (SF.TIME), for writes that name none; None: the wall clock.
    """

    __slots__ = ("held", "lost", "partition", "read", "session", "store", "timestamp_ms", "wrote")

    def __init__(self) -> None:
        self.partition = 0
        self.store: str | None = None
        self.timestamp_ms: int | None = None
        self.held: EngineTask | None = None
        self.session = 0
        self.wrote = -1
        self.read = -1
        self.lost = ""

    def bind(self, held: EngineTask) -> None:
        """Bind to the task in its present session."""
        self.held, self.session = held, held.session
        held.bound.add(self)

    def unbind(self) -> None:
        """Forget the task; the next call binds again."""
        if self.held is not None:
            self.held.bound.discard(self)
        self.held, self.wrote, self.read, self.lost = None, -1, -1, ""

    @property
    def fenced(self) -> str:
        """The reason why the connection is refused until it binds again; empty if it is not."""
        held = self.held
        if held is None or (not self.lost and self.session == held.session):
            return ""
        return self.lost or held.ended

    @property
    def took_part(self) -> bool:
        """Whether it wrote, or read the source offsets, in the present session."""
        held = self.held
        return held is not None and self.session == held.session and (self.read >= 0 or self.wrote >= 0)

    @property
    def dirty(self) -> bool:
        """Whether writes of this connection wait for a commit."""
        held = self.held
        return held is not None and self.session == held.session and self.wrote == held.commits


class EngineTask:
    """One active task. `session` grows when all bound connections are fenced; `ended` is the reason of the last time.

    `discards` grows with each discard of uncommitted writes, and `lost` is the reason of the last one, until an
    assignment returns the offsets. Offsets may stand for discarded writes, whichever connection sends them: they count
    only from a connection that has read the source offsets since (`Binding.read`).
    """

    __slots__ = ("bound", "commit", "commits", "discards", "ended", "lost", "repeats", "session", "task", "waiting")

    def __init__(self, task: Task) -> None:
        self.task = task
        task.dropped = ""  # `lost` and the bindings keep the reason here
        self.bound: set[Binding] = set()
        self.session = 0
        self.ended = ""
        self.discards = 0
        self.lost = ""
        self.commits = 0
        self.commit: Commit | None = None
        self.repeats = CommitRepeats()
        self.waiting: list[Callable[[], None]] = []

    @property
    def uncommitted(self) -> bool:
        """Whether any write waits for a commit."""
        return self.task.uncommitted

    def discard(self, why: str) -> None:
        """Discard uncommitted writes, if there are any. Connections that made any of them are fenced; the others go on.

        Not while a commit runs: all uncommitted writes are the commit's then.
        """
        if self.uncommitted:
            self.task.discard()
        elif self.task.state is TaskState.RUNNING:
            return  # nothing to discard; the buffer of a task that failed or closed may be gone already
        self._lose(why)
        for binding in self.bound:
            if binding.dirty:
                binding.lost, binding.wrote = why, -1

    def end_session(self, why: str, *, told: bool = False) -> None:
        """Discard uncommitted writes, and fence all connections that are bound now. A running commit goes on.

        The flag says that the application gets the source offsets with the answer to the call that ends the session.
        """
        if self.commit is not None:
            # It has begun and may be durable at any moment: discarding under it would part state and offsets.
            self.commit.orphaned = True
        elif self.uncommitted:
            self.task.discard()
            self._lose(why)
        # Also without uncommitted writes: a connection could otherwise write and commit between this call and the
        # close.
        self.session += 1
        self.ended = why
        if told:
            self.lost = ""

    def replace(self, task: Task) -> None:
        """Take the reopened task: another object, and maybe another epoch."""
        # Their writes were in the buffer of the old object.
        if any(binding.dirty for binding in self.bound):
            self._lose(REOPENED)
        self.task = task
        task.dropped = ""
        self.session += 1
        self.ended = REOPENED

    def _lose(self, why: str) -> None:
        self.lost = why
        self.discards += 1

    def unread(self, binding: Binding) -> str:
        """The reason of the discards since the connection read the source offsets; empty if there were none."""
        return self.lost if binding.read != self.discards else ""

    def check_read(self, binding: Binding, request: CommitRequest) -> None:
        """Raise Refused FENCED for offsets from a connection that read no source offsets since the last discard.

        An epoch is no way round: a discard does not change it.
        """
        lost = self.unread(binding)
        # In a pool one connection's offsets may stand for rows that another, now lost, had written.
        if request.offsets and lost:
            raise Refused(
                FENCED,
                f"partition {binding.partition}: the offsets may stand for writes that are gone, and this connection "
                f"has not read the source offsets since ({lost}): {READ_ON}",
            )

    def check(self, request: CommitRequest, source_group: str) -> CommitAnswer | None:
        """See Engine.check_commit."""
        if request.group is not None and request.group != source_group:
            raise Refused(
                BAD_BATCH,
                f"offsets of group {request.group!r} cannot be committed here: this application commits for group "
                f"{source_group!r}; let its consumer use that as its group.id",
            )
        repeated = self.repeats.answer(request, self.task.epoch)
        if repeated is None:
            try:
                self.task.checked_offsets(request.offsets)
            except InvalidRequest as error:
                raise Refused(
                    BAD_BATCH, f"{error} (SELECT binds to a partition, SF.OFFSETS gives its source offsets)"
                ) from error
        return repeated

    def check_knows(self, binding: Binding, request: CommitRequest) -> None:
        """Raise Refused FENCED for offsets from a connection that may have missed a discard."""
        # After a kill no connection knows of the discard, so the epoch or a part in the session has to prove it.
        if request.offsets and request.epoch is None and not binding.took_part:
            raise Refused(
                FENCED,
                f"partition {binding.partition}: this connection has neither read the source offsets nor written since "
                "the task was opened and assigned, so its offsets may stand for writes that are not in the state: "
                f"{READ_ON}, or commit with EPOCH",
            )

    def begin_commit(self, request: CommitRequest, clock: Clock) -> Commit:
        """See Engine.begin_commit."""
        self.commits += 1
        self.commit = Commit(self, request, clock)
        return self.commit

    def end_commit(self, commit: Commit) -> CommitAnswer:
        """See Engine.end_commit."""
        if self.commit is not commit:
            raise InternalError(f"task {self.task.id} ends a commit that it has not begun")
        self.commit = None
        if commit.error is not None and self.task.state is TaskState.RUNNING:
            # Refused before any write: the changes are all still there, and belong to the connections that made them.
            self.commits -= 1
            if commit.orphaned:
                self.discard(DISCARDED)
        try:
            if commit.error is not None:
                if self.task.state is not TaskState.RUNNING:  # it failed, and may be closed for that by now
                    self._lose(f"a commit failed, and {_UNKNOWN if commit.in_doubt else _NOTHING}: {READ_ON}")
                raise self._told(commit.error, in_doubt=commit.in_doubt)
            answer = CommitAnswer(self.task.epoch, commit.request.seq, commit.changes, commit.kept)
            self.repeats.keep(commit.request, answer)
            return answer
        finally:
            # Replaced before the calls: each may begin a commit and queue others again.
            waiting, self.waiting = self.waiting, []
            for call in waiting:
                call()

    def _told(self, error: BaseException, *, in_doubt: bool) -> BaseException:
        """The error for the client of a failed commit: whether it may have happened, and how to go on."""
        if self.task.state is TaskState.RUNNING or isinstance(error, Fenced):
            return error
        if in_doubt:
            cause = error.__cause__ or error
            logger.error(
                "task %s: %s: %s: %s",
                self.task.id,
                _UNKNOWN,
                type(cause).__name__,
                cause,
                extra=as_event("commit_unknown", task=self.task.id),
            )
            why = message_of(error) if isinstance(error, StandfastError) else type(error).__name__
            told = Refused(
                COMMIT_UNKNOWN,
                f"task {self.task.id}: this commit may have happened or not: ask SF.OFFSETS before you send anything "
                f"again, and go on from its answer ({why})",
            )
        elif isinstance(error, StandfastError):
            # DISK_FULL promises that uncommitted writes stay, and here they are discarded.
            reason = reason_of(error)
            told = Refused(
                UNAVAILABLE if reason is DISK_FULL else reason,
                f"task {self.task.id}: {_NOTHING}, and the uncommitted writes are discarded: {READ_ON} "
                f"({message_of(error)})",
            )
        else:
            return error
        told.__cause__ = error
        return told


class Commit:
    """One running commit. `in_doubt`, with an error: it may have happened all the same."""

    __slots__ = ("_clock", "changes", "error", "held", "in_doubt", "kept", "orphaned", "request", "seconds")

    def __init__(self, held: EngineTask, request: CommitRequest, clock: Clock) -> None:
        self.held = held
        self.request = request
        self.orphaned = False  # a connection whose writes are in it is gone, or its session ended
        self.error: BaseException | None = None
        self.in_doubt = False
        self.changes = 0
        self.kept = ALONE  # of the batch that ends with this commit
        self.seconds = 0.0
        self._clock = clock

    def run(self) -> None:
        """Write to the log and the disk; raises nothing: `Engine.end_commit` raises the error of it."""
        started_ms = self._clock.monotonic_ms()
        task = self.held.task
        try:
            before = _logged_records(task)
            task.commit(self.request.offsets, member=self.request.consumer)
            self.changes = _logged_records(task) - before
        except BaseException as error:  # noqa: BLE001  raised again by end_commit, in the engine's thread
            self.error, self.in_doubt = error, task.in_doubt
        if self.request.checkpoint and self.error is None:
            self._checkpoint()
        self.seconds = (self._clock.monotonic_ms() - started_ms) / 1_000

    def _checkpoint(self) -> None:
        """Flush the memtables. The commit is durable by then, so a failure costs a longer restore, and no more."""
        try:
            self.held.task.stores.flush()
        except Exception as error:  # noqa: BLE001  an answer that the commit failed would be wrong
            logger.error(
                "task %s: checkpoint after a commit failed: %s",
                self.held.task.id,
                error,
                extra=as_event("checkpoint_failed", task=self.held.task.id),
            )


def _logged_records(task: Task) -> int:
    return sum(store.rows.counters.logged_records for store in task.stores.stores.values())
