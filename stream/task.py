"""One task: the stores of one partition, their changelogs, and the commit that keeps everything one cut.

         assign              restored            revoke
    CREATED ──> RESTORING ──────────> RUNNING ──────────> CLOSED
       │            ^                    │ error
       └─> STANDBY ─┘ promote            └──> FAILED ───> CLOSED

    commit, exactly once     log transaction (changelogs, outputs, source offsets) -> one local batch
    commit, at least once    log append (changelogs, outputs) -> one local batch -> source offsets

    position of a store      the next offset of its changelog, as the log acknowledged it; where a source topic serves
                             as changelog, the source offset that this very commit makes durable

Rules of this file: the order above is the order of durability; a crash between two steps leaves the log ahead of
the local state, never behind. A commit that fails leaves the task FAILED until it is opened again.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import Any, TypeAlias

from standfast.replication.applier import ChangelogApplier
from standfast.replication.commit_metadata import CommitMetadata
from standfast.replication.listeners import Listener
from standfast.replication.log import (
    Batches,
    Committed,
    ConsumerMember,
    Group,
    GroupCommit,
    Headers,
    LogWriter,
    Outgoing,
)
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.store.buffer import changes_bytes
from standfast.store.clock import Clock, measured_ns
from standfast.store.cut import parse_source_key, source_key
from standfast.store.errors import Closed, Fenced, InternalError, InvalidRequest, NotReady, StandfastError, StateLost
from standfast.store.failpoint import reach
from standfast.store.histogram import SECONDS_PER_NS
from standfast.store.names import check_topic
from standfast.store.task_stores import TaskStores
from standfast.stream.settings import Guarantee
from standfast.stream.statistics import SessionCounters, log_error

Outputs = Mapping[TopicPartition, Sequence[Outgoing]]

Times: TypeAlias = tuple[dict[str, int], dict[str, int]]  # stream times and progress


class TaskState(Enum):
    """Where a task is in its life."""

    CREATED = "created"
    RESTORING = "restoring"
    RUNNING = "running"
    STANDBY = "standby"
    FAILED = "failed"
    CLOSED = "closed"


ALLOWED = {
    TaskState.CREATED: {TaskState.RESTORING, TaskState.STANDBY, TaskState.FAILED, TaskState.CLOSED},
    TaskState.RESTORING: {TaskState.RUNNING, TaskState.FAILED, TaskState.CLOSED},
    TaskState.RUNNING: {TaskState.FAILED, TaskState.CLOSED},
    TaskState.STANDBY: {TaskState.RESTORING, TaskState.FAILED, TaskState.CLOSED},
    TaskState.FAILED: {TaskState.CLOSED},
    TaskState.CLOSED: set(),
}


class Task:
    """Stores and commit of one partition. An active task is used by one thread at a time: the application's."""

    def __init__(
        self,
        task: TaskId,
        stores: TaskStores,
        applier: ChangelogApplier,
        group: Group,
        *,
        app: str,
        guarantee: Guarantee,
        clock: Clock,
        listener: Listener,
        topics: frozenset[str] | None = None,
    ) -> None:
        self.id = task
        self.app = app
        self.guarantee = guarantee
        self.stores = stores
        self.applier = applier
        self.state = TaskState.CREATED
        self.role = "active"  # or "standby"
        self.error: BaseException | None = None
        self.writer: LogWriter | None = None
        self.record_timestamp: int | None = None
        self.stream_times: dict[str, int] = {}
        self.progress: dict[str, int] = {}
        self.commit_requested = False
        self.counters = SessionCounters()  # the session's, once it has the task
        self.inflight = (0, 0)  # records and bytes that the log was given and has not acknowledged
        self.on_outputs: Callable[[Outputs, Mapping[TopicPartition, int]], None] | None = None  # after a commit
        self._group = group
        self._clock = clock
        self._listener = listener
        self._topics = topics  # source topics of the task's group; None: any
        self._sources: dict[TopicPartition, int] = {}
        self._committed_times: Times = ({}, {})
        self._outputs: dict[TopicPartition, list[Outgoing]] = {}
        self._output_bytes = 0
        self._outputs_since_ms = -1
        self._mark: tuple[dict[TopicPartition, int], Times, int, bool] = ({}, ({}, {}), 0, False)

    def count_in(self, counters: SessionCounters) -> None:
        """Add to the session's numbers from here on."""
        self.counters = counters
        for name, store in self.stores.stores.items():
            store.rows.get_seconds = counters.store_read_seconds[name, "get"]
            store.rows.scan_seconds = counters.store_read_seconds[name, "scan"]

    @property
    def epoch(self) -> int:
        """Epoch of the task's writer; 0 for a standby."""
        return self.writer.epoch if self.writer is not None else 0

    def move(self, state: TaskState) -> None:
        """Enter a state; one that does not follow from the present one is our bug and changes nothing."""
        if state not in ALLOWED[self.state]:
            raise InternalError(f"task {self.id} cannot go from {self.state.value} to {state.value}")
        self.state = state
        if state in (TaskState.STANDBY, TaskState.RESTORING):
            self.role = "standby" if state is TaskState.STANDBY else "active"
        self._listener.on_state_changed(self.id, self.role, state.value)

    def now_ms(self) -> int:
        """Timestamp of the record in hand, or the wall clock outside a record."""
        return self.record_timestamp if self.record_timestamp is not None else self._clock.wall_ms()

    def store(self, name: str) -> Any:
        """A store of this task, of the class of its kind (KeyValueState, WindowState, ...); NotReady until it runs."""
        self._check_running()
        return self.stores.store(name)

    def source_offsets(self) -> dict[TopicPartition, int]:
        """Where the application must read on: next offset per source partition; absent where nothing was committed."""
        self._check_running()
        return dict(self._sources)

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp: int | None = None,
        *,
        partition: int | None = None,
        partitions: int = 1,
        headers: Headers = (),
    ) -> None:
        """Add a record to an output topic; it is written with the next commit, in the same transaction if there is one.

        Without `partition` the key's CRC-32 over `partitions` chooses it (librdkafka's `consistent` partitioner).
        InvalidRequest for a key, a value or headers over the session's value_max_bytes; nothing changes then.
        """
        self._check_running()
        check_topic(topic)
        if partition is None:
            partition = zlib.crc32(key) % partitions if key else 0
        size = len(key or b"") + len(value or b"")
        if headers or size > self.stores.limits.value_bytes:
            size = self._checked_size(topic, key, value, headers)
        self.stores.buffer.check_room(size)
        stamp = self.now_ms() if timestamp is None else timestamp
        self._outputs.setdefault(TopicPartition(topic, partition), []).append(
            Outgoing(key, value, stamp, tuple(headers))
        )
        self.stores.buffer.size_bytes += size
        if not self._output_bytes:
            self._outputs_since_ms = self._clock.monotonic_ms()
        self._output_bytes += size

    def observe(self, topic: str, partition: int, timestamp_ms: int) -> None:
        """Note the timestamp of a record read; a partition's stream time never goes back."""
        key = source_key(topic, partition)
        if timestamp_ms > self.stream_times.get(key, -1):
            self.stream_times[key] = timestamp_ms

    def commit(
        self, source_offsets: Mapping[tuple[str, int], int] | None = None, *, member: ConsumerMember | None = None
    ) -> None:
        """Make everything since the last commit durable, in the log and locally, as one cut.

        `source_offsets` maps (topic, partition) to the next offset to process. When this returns, the state survives
        the kill of any process; when it raises, the task takes no more writes until it is opened again. Stream times
        and progress that moved without a new offset are committed with the known offsets, so that the log has them.
        `member` is the consumer that read the records: if it is that no more, the commit is Fenced. At least once its
        changes are in the log by then, and the offsets are not.
        """
        self._check_running()
        offsets = self._checked_offsets(source_offsets or {})
        moved = self.times_moved
        if moved and not offsets:
            offsets = dict(self._sources)
        # Text that is too long is refused here, while the changes are still in the buffer.
        metadata = CommitMetadata(
            epoch=self.epoch, stream_times=self.stream_times, observed=self._observed(), progress=self.progress
        ).to_text()
        changes = self.stores.buffer.take_changes()
        batches: dict[TopicPartition, Sequence[Outgoing]] = dict(self._outputs)
        for name, store_changes in changes.items():
            batches[self.applier.changelogs[name]] = store_changes  # type: ignore[assignment]
        if not batches and not offsets and not moved and not self.stores.buffer.rows:
            self.commit_requested = False
            return
        commit = GroupCommit(self.app, {at: Committed(offset, metadata) for at, offset in offsets.items()}, member)
        started_ms = self._clock.monotonic_ms()
        try:
            acknowledged = self._make_durable(batches, commit)
        except BaseException as error:
            self.counters.commits["failed"] += 1
            self.fail(error)
            raise
        self.counters.commits["committed"] += 1
        self.counters.commit_seconds.observe((self._clock.monotonic_ms() - started_ms) / 1_000)
        self._sources.update(offsets)
        written, self._outputs, self._output_bytes = self._outputs, {}, 0
        self._keep_times()
        self.commit_requested = False
        self._count(changes)
        self._listener.on_commit(self.id, offsets)
        if written and self.on_outputs is not None:
            self.on_outputs(written, acknowledged)

    @property
    def times_moved(self) -> bool:
        """Whether stream times or progress are not those of the last commit."""
        return (self.stream_times, self.progress) != self._committed_times

    @property
    def outputs(self) -> Outputs:
        """Records for output topics that the next commit writes."""
        return self._outputs

    def savepoint(self) -> None:
        """Mark the present point: `rollback` comes back to it, `release` forgets it. One at a time."""
        self.stores.savepoint()
        lengths = {at: len(batch) for at, batch in self._outputs.items()}
        self._mark = (lengths, self._times(), self._output_bytes, self.commit_requested)

    def rollback(self) -> None:
        """Undo every write, output, stream time and progress since the savepoint."""
        self.stores.rollback()
        lengths, times, self._output_bytes, self.commit_requested = self._mark
        self._outputs = {at: batch[: lengths[at]] for at, batch in self._outputs.items() if at in lengths}
        self._put_back(times)

    def release(self) -> None:
        """Keep what was done since the savepoint."""
        self.stores.release()

    def write_outputs(self, *, batch_bytes: int, linger_ms: int) -> None:
        """At least once: write output records before the commit, once they are many or old enough.

        Exactly once they belong to the commit's transaction, and nothing is done here.
        """
        if self.guarantee == "exactly_once" or not self._outputs or self.writer is None:
            return
        if self._output_bytes < batch_bytes and self._clock.monotonic_ms() - self._outputs_since_ms < linger_ms:
            return
        written, self._outputs = self._outputs, {}
        try:
            acknowledged = self.writer.append(written)
        except BaseException as error:
            self.fail(error)
            raise
        self.stores.buffer.size_bytes -= self._output_bytes
        self._output_bytes = 0
        if self.on_outputs is not None:
            self.on_outputs(written, acknowledged)

    def discard(self) -> None:
        """Forget everything since the last commit: rows, outputs, stream times and progress."""
        self.stores.discard()
        self._outputs, self._output_bytes = {}, 0
        self._put_back(self._committed_times)

    def _times(self) -> Times:
        return dict(self.stream_times), dict(self.progress)

    def _put_back(self, times: Times) -> None:
        for now, before in zip((self.stream_times, self.progress), times, strict=True):
            now.clear()  # the dictionaries stay: processors may hold them
            now.update(before)

    def fail(self, error: BaseException) -> None:
        """The task cannot go on; it takes no reads or writes until it is opened again."""
        self.error = error
        if self.state not in (TaskState.FAILED, TaskState.CLOSED):
            self.move(TaskState.FAILED)

    def open_writer(self, writer: LogWriter) -> None:
        """Own the task in the log from now on."""
        self.writer = writer

    def resume_from_log(self, offsets: Mapping[TopicPartition, Committed], *, local_counts: bool) -> None:
        """Decide where sources and clocks go on by the group's `offsets`; called once, when every store is whole.

        The group's commit is atomic with the log under exactly once, so it wins. At least once, the local offsets may
        be ahead of it, and count only if every changelog stood at its end when the task was opened (`local_counts`).
        Only offsets of this task's own partition and topics count: another group may have a task of the same partition.
        """
        committed = {
            at: found for at, found in offsets.items() if at.partition == self.id.partition and self._owns(at.topic)
        }
        cut = self.stores.cut
        local = {
            at: offset
            for at, offset in ((TopicPartition(*parse_source_key(key)), value) for key, value in cut.sources.items())
            if self._owns(at.topic)
        }
        self._sources = {at: found.offset for at, found in committed.items()}
        for at, offset in local.items():
            if local_counts and (at not in committed or self.guarantee == "at_least_once"):
                self._sources[at] = max(offset, self._sources.get(at, 0))
        self.stream_times = dict(cut.stream_times)
        self.progress = dict(cut.progress)
        for found in committed.values():
            metadata = CommitMetadata.from_text(found.metadata)
            if metadata is not None:
                self._take_over_times(metadata)
        self._keep_times()

    def close(self) -> None:
        """Flush nothing, forget what is uncommitted, release log and directory. Closing twice is fine."""
        if self.state is not TaskState.CLOSED:
            self.move(TaskState.CLOSED)
        if self.writer is not None:
            self.writer.close()
        self.stores.close()

    def _keep_times(self) -> None:
        self._committed_times = self._times()

    def _owns(self, topic: str) -> bool:
        return self._topics is None or topic in self._topics

    def _take_over_times(self, metadata: CommitMetadata) -> None:
        for key, stamp in metadata.stream_times.items():
            self.stream_times[key] = max(stamp, self.stream_times.get(key, -1))
        for key, value in metadata.progress.items():
            self.progress[key] = max(value, self.progress.get(key, value))
        for name, stamp in metadata.observed.items():
            self.stores.observe(name, stamp)

    def _make_durable(self, batches: Batches, commit: GroupCommit) -> Mapping[TopicPartition, int]:
        writer = self.writer
        if writer is None:
            raise InternalError(f"task {self.id} runs without a writer")
        acknowledged = self._write_log(writer, batches, commit)
        reach("commit.logged")
        self._check_log(batches, acknowledged)
        sources = dict(self.stores.cut.sources)
        sources.update({source_key(*at): committed.offset for at, committed in commit.offsets.items()})
        cut = replace(
            self.stores.cut,
            positions=self.applier.advanced(
                acknowledged,
                {at: committed.offset for at, committed in commit.offsets.items()},
                marked=self.guarantee == "exactly_once" and writer.marks_transactions,
            ),
            sources=sources,
            stream_times=dict(self.stream_times),
            progress=dict(self.progress),
            epoch=writer.epoch,
        )
        self.stores.commit(cut)
        reach("commit.local")
        if self.guarantee == "at_least_once" and commit.offsets:
            self._group.commit(commit.offsets, commit.member)
        return acknowledged

    def _write_log(self, writer: LogWriter, batches: Batches, commit: GroupCommit) -> Mapping[TopicPartition, int]:
        """Hand the records to the log and wait for its acknowledgement; counts how long that took, and failures."""
        exactly_once = self.guarantee == "exactly_once"
        if not batches and not (exactly_once and commit.offsets):
            return {}
        self.inflight = (sum(map(len, batches.values())), self.stores.buffer.size_bytes)
        started_ns = measured_ns()
        try:
            if exactly_once:
                acknowledged = writer.transact(batches, commit if commit.offsets else None)
            else:
                acknowledged = writer.append(batches)
        except BaseException as error:
            self.counters.changelog_errors[log_error(error)] += 1
            raise
        finally:
            self.inflight = (0, 0)
        self.counters.ack_seconds.observe((measured_ns() - started_ns) * SECONDS_PER_NS)
        return acknowledged

    def _check_log(self, batches: Batches, acknowledged: Mapping[TopicPartition, int]) -> None:
        """Raise StateLost if the log gave out offsets anew: it has lost what it had acknowledged before."""
        for name, stored in self.stores.cut.positions.items():
            changelog = self.applier.changelogs.get(name)
            if changelog is not None and changelog in acknowledged and changelog not in self.applier.limited:
                first = acknowledged[changelog] - len(batches[changelog])
                if first < stored.offset:
                    raise StateLost(
                        f"task {self.id}: {changelog} put these records at offset {first}, though this store has what "
                        f"it held below {stored.offset}: the log lost records, and the state is read from it anew",
                        reason="diverged",
                    )

    def _observed(self) -> dict[str, int]:
        return {
            name: store.rows.observed_ms for name, store in self.stores.stores.items() if store.rows.observed_ms >= 0
        }

    def _count(self, changes: Mapping[str, Sequence[Any]]) -> None:
        for name, store_changes in changes.items():
            counters = self.stores.stores[name].rows.counters
            counters.logged_records += len(store_changes)
            counters.logged_bytes += changes_bytes(store_changes)

    def _checked_offsets(self, given: Mapping[tuple[str, int], int]) -> dict[TopicPartition, int]:
        offsets = {}
        for (topic, partition), offset in given.items():
            check_topic(topic)
            if not isinstance(offset, int) or isinstance(offset, bool) or offset < 0:
                raise InvalidRequest(
                    f"task {self.id}: source offset of {topic}-{partition} is {offset!r}: give the next offset to "
                    "process, a whole number from 0"
                )
            if not self._owns(topic):
                own = ", ".join(sorted(self._topics or ())) or "none"
                raise InvalidRequest(
                    f"task {self.id}: topic {topic!r} is no source of its group (which has: {own}): commit the offset "
                    "with a task of the group that reads it"
                )
            offsets[TopicPartition(topic, partition)] = offset
        return offsets

    def _checked_size(self, topic: str, key: bytes | None, value: bytes | None, headers: Headers) -> int:
        """Bytes of an output record, each part within the limit for values."""
        sizes = {"key": len(key or b""), "value": len(value or b"")}
        if headers:
            sizes["headers"] = sum(len(name.encode()) + len(content or b"") for name, content in headers)
        limit = self.stores.limits.value_bytes
        for part, size in sizes.items():
            if size > limit:
                raise InvalidRequest(
                    f"task {self.id}: {part} of {size} bytes for topic {topic!r} is over the limit of {limit} bytes: "
                    "split it, or raise value_max_bytes together with the log's own message limit"
                )
        return sum(sizes.values())

    def _check_running(self) -> None:
        if self.state is TaskState.RUNNING:
            return
        if self.state is TaskState.FAILED:
            if isinstance(self.error, Fenced):
                raise Fenced(f"task {self.id} was taken over by a newer owner: {self.error}")
            kind = type(self.error).__name__ if isinstance(self.error, StandfastError) else repr(type(self.error))
            raise Closed(f"task {self.id} failed ({kind}: {self.error}): it must be opened again")
        if self.state is TaskState.CLOSED:
            why = f" and could not be opened again: {self.error}" if self.error is not None else ""
            raise Closed(f"task {self.id} is closed{why}")
        if self.state is TaskState.STANDBY:
            raise NotReady(f"task {self.id} is a standby here: only the active task is read and written this way")
        raise NotReady(f"task {self.id} is {self.state.value}: wait_ready() tells when the restore gate opens")
