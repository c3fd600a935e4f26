"""One task: the stores of one partition, their changelogs, and the commit that makes everything one cut.

         assign              restored            revoke
    CREATED ──> RESTORING ──────────> RUNNING ──────────> CLOSED
       │            ^                    │ error
       └─> STANDBY ─┘ promote            └──> FAILED ───> CLOSED

    commit, exactly once     log transaction (changelogs, outputs, source offsets) -> one local batch
    commit, at least once    log append (changelogs, outputs) -> one local batch -> source offsets

    meanwhile                the local batch is filled while the log has the records, and written when that has answered

    position of a store      the next offset of its changelog, as the log acknowledged it; where a source topic serves
                             as changelog, the source offset that this very commit makes durable

Rules of this file: the order above is the order of durability; a crash between two steps leaves the log ahead of
the local state, never behind. A commit that fails leaves the task FAILED until it is opened again. Its stores and
positions are as Kafka Streams' ProcessorStateManager.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import Any, TypeAlias

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
    TopicInfo,
)
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.replication.tail.applier import ChangelogApplier
from standfast.store.arguments import is_whole
from standfast.store.clock import Clock, measured_ns
from standfast.store.engine import Prepared
from standfast.store.errors import (
    Closed,
    CommitUnknown,
    Corruption,
    Fenced,
    InternalError,
    InvalidRequest,
    NotReady,
    StandfastError,
    StateLost,
    TooLarge,
    Unavailable,
)
from standfast.store.failpoint import reach
from standfast.store.histogram import SECONDS_PER_NS
from standfast.store.log import as_event, logger
from standfast.store.names import check_topic
from standfast.store.process.interrupts import Flag
from standfast.store.specs import StoreSpec
from standfast.store.task.commit_record import parse_source_key, source_key
from standfast.store.task.task_stores import TaskStores
from standfast.store.timestamps import TIMESTAMP_MAX_MS
from standfast.store.tracebacks import clear_frames
from standfast.store.types.kinds import gives_stores
from standfast.store.types.typed import TIME_MAX_MS
from standfast.store.value_timestamp import changes_bytes
from standfast.stream.outgoing import BYTES_TYPES, PARTITION_MAX, check_output, check_taken, headers_bytes, latest_ms
from standfast.stream.session.settings import Guarantee
from standfast.stream.session.statistics import SessionCounters, log_error
from standfast.stream.source_offsets import checked_source_offsets
from standfast.stream.steps import LogCall, Steps, run_steps
from standfast.stream.watermarks import CLOCK_KEY, PROGRESS_PREFIX

Outputs = Mapping[TopicPartition, Sequence[Outgoing]]

Times: TypeAlias = tuple[dict[str, int], dict[str, int]]  # stream times and progress


class TaskState(Enum):
    """The state of a task's life cycle."""

    CREATED = "created"
    RESTORING = "restoring"
    RUNNING = "running"
    STANDBY = "standby"
    FAILED = "failed"
    CLOSED = "closed"


COMMIT_WAIT_S = 1.0  # the wait of a close for a commit of another thread
GONE = (TaskState.FAILED, TaskState.CLOSED)

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
        self.in_doubt = False  # the commit that failed it may be in the log
        self.dropped = ""  # why the caller's uncommitted changes are gone; reset when it calls `source_offsets`
        self.writer: LogWriter | None = None
        self.record_timestamp: int | None = None
        self.stream_times: dict[str, int] = {}
        self.progress: dict[str, int] = {}
        self.commit_requested = False
        self.looped = False  # an application's loop processes it
        self.runs_since_ms = -1  # monotonic
        self.last_commit_ms = -1  # monotonic; when the loop's last commit of it began
        self.leaving = False  # it is another instance's now: the loop commits it and ends its run
        self.keeps_refused = False  # a commit that the log refused before its first byte leaves the task usable
        self.counters = SessionCounters()  # the session's, after `count_in`
        self.inflight = (0, 0)  # records and bytes given to the log and not acknowledged
        self.on_outputs: Callable[[Outputs, Mapping[TopicPartition, int]], None] | None = None  # after a commit
        self.output_topics: Mapping[str, TopicInfo] = {}  # the known ones, to refuse records that they would refuse
        self._group = group
        self._clock = clock
        self._listener = listener
        self._topics = topics  # source topics of the task's group; None: any
        self._sources: dict[TopicPartition, int] = {}
        self._committed_times: Times = ({}, {})
        self._restates = False
        self._commit_ended = Flag()
        self._commit_ended.set()
        self._committer = 0  # the thread of the last commit
        self._log_may_have_it = False  # some or all of the running commit
        self._prepared: Prepared | None = None  # of the running commit's local write, while the log has its records
        self._outputs: dict[TopicPartition, list[Outgoing]] = {}
        self._output_bytes = 0
        self._outputs_since_ms = -1
        self._marks: list[tuple[dict[TopicPartition, int], Times, int, bool]] = []  # one for each open savepoint

    def count_in(self, counters: SessionCounters) -> None:
        """Count in the session's counters from here on."""
        self.counters = counters
        for name, store in self.stores.stores.items():
            store.rows.get_seconds = counters.store_read_seconds[name, "get"]
            store.rows.scan_seconds = counters.store_read_seconds[name, "scan"]

    @property
    def epoch(self) -> int:
        """Epoch of the task's writer; 0 for a standby."""
        return self.writer.epoch if self.writer is not None else 0

    def move(self, state: TaskState) -> None:
        """Enter a state; a wrong transition is a bug of ours and changes nothing."""
        if state not in ALLOWED[self.state]:
            raise InternalError(f"task {self.id} cannot go from {self.state.value} to {state.value}")
        self.state = state
        if state in (TaskState.STANDBY, TaskState.RESTORING):
            self.role = "standby" if state is TaskState.STANDBY else "active"
        self._listener.on_state_changed(self.id, self.role, state.value)

    def now_ms(self) -> int:
        """Timestamp of the record in hand, or the wall clock outside a record."""
        return self.record_timestamp if self.record_timestamp is not None else self._clock.wall_ms()

    @gives_stores
    def store(self, store: str | StoreSpec) -> Any:
        """A store of this task, by its definition (with its types) or by its name (of type Any).

        It is a KeyValueState, WindowState, SessionState or VersionedState. Raises UnknownStore, InvalidRequest for a
        definition that differs from the declared one, NotReady until the task runs. Costs a look-up by name.
        """
        self._check_running()
        return self.stores.store(store)

    def source_offsets(self) -> dict[TopicPartition, int]:
        """The next offset to read per source partition; absent where nothing was committed.

        After a loss of uncommitted changes (see `commit`) it discards later writes too: their records come again.
        """
        self._check_running()
        if self.dropped:
            self.discard()
            self.dropped = ""
        return dict(self._sources)

    def restate_sources(self) -> None:
        """Let the next commit write every source offset, if the cut on disk lacks any.

        A restore from the log alone finds them in the group, and a snapshot must have them in the cut.
        """
        # One that is behind counts, too: at least once, the group's offset may be ahead of the local one.
        known = self.stores.cut.sources
        self._restates = any(known.get(source_key(*at)) != offset for at, offset in self._sources.items())

    def cut_sources(self) -> dict[str, int]:
        """The committed source offsets, as keys of a cut."""
        return {source_key(*at): offset for at, offset in sorted(self._sources.items())}

    def changelog_topics(self) -> dict[str, str]:
        """The changelog topics of its stores, by name."""
        return {name: at.topic for name, at in self.applier.changelogs.items()}

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
        InvalidRequest for a record that no log accepts (types, timestamp, partition) and for a key, a value or headers
        over the session's value_max_bytes, or all of them together over the log's limit; nothing changes then.
        """
        self._check_running()
        check_topic(topic)
        stamp = self.now_ms() if timestamp is None else timestamp
        least_ms = self.stores.limits.least_timestamp_ms
        # Looked at in one expression for most records; only one that fails here is checked part by part.
        if (
            headers != ()
            or type(stamp) is not int
            or not least_ms <= stamp <= TIMESTAMP_MAX_MS
            or type(key) not in BYTES_TYPES
            or type(value) not in BYTES_TYPES
            or (partition is not None and (type(partition) is not int or not 0 <= partition <= PARTITION_MAX))
        ):
            check_output(topic, key, value, stamp, 0 if partition is None else partition, headers, least_ms)
        info = self.output_topics.get(topic)
        if info is not None and (key is None or info.ahead_max_ms is not None):
            check_taken(info, key, stamp, self._clock.wall_ms())
        if partition is None:
            if not is_whole(partitions, 1, PARTITION_MAX):
                raise InvalidRequest(f"topic {topic!r} cannot have {partitions!r:.100} partitions: give 1 or more")
            partition = zlib.crc32(key) % partitions if key else 0
        size = len(key or b"") + len(value or b"")
        if headers or size > self.stores.limits.value_bytes:
            size = self._checked_size(topic, key, value, headers)
        self.stores.buffer.check_room(size)
        self._outputs.setdefault(TopicPartition(topic, partition), []).append(
            Outgoing(key, value, stamp, tuple(headers))
        )
        self.stores.buffer.size_bytes += size
        if not self._output_bytes:
            self._outputs_since_ms = self._clock.monotonic_ms()
        self._output_bytes += size

    def latest_ms(self, topic: str) -> int:
        """The latest timestamp that a topic accepts now, as far as its limit is known."""
        info = self.output_topics.get(topic)
        return TIMESTAMP_MAX_MS if info is None else latest_ms(info, self._clock.wall_ms())

    def observe(self, topic: str, partition: int, timestamp_ms: int) -> None:
        """Note the timestamp of a record read; a partition's stream time never goes back."""
        key = source_key(topic, partition)
        if not isinstance(timestamp_ms, int) or timestamp_ms > TIME_MAX_MS:
            raise InvalidRequest(
                f"task {self.id}: timestamp {timestamp_ms!r:.100} of {topic}-{partition} is not a time: give whole "
                "milliseconds since the epoch, up to 2**63-1"
            )
        if timestamp_ms > self.stream_times.get(key, -1):
            self.stream_times[key] = timestamp_ms

    def commit(
        self, source_offsets: Mapping[tuple[str, int], int] | None = None, *, member: ConsumerMember | None = None
    ) -> None:
        """Make everything since the last commit durable, in the log and locally, as one cut.

        `source_offsets` maps (topic, partition) to the next offset to process; InvalidRequest for one that is not this
        task's or goes back, DiskFull where there is too little space: nothing is written then, and the task goes on.
        When this returns, the state survives the kill of any process; when it raises anything else, the task takes no
        more writes until it is opened again. CommitUnknown, or another error that is `in_doubt`: the log may have
        the commit; `source_offsets` of the task that is opened again shows whether it has. Stream times
        and progress that moved without a new offset are committed with the known offsets, so that the log has them.
        `member` is the consumer that read the records: if it has left its group, the commit is Fenced. So it is once
        another instance has taken the task over. At least once its changes may be in the log by then, and the offsets
        are not.
        StateLost, with nothing written, if the task was opened again by itself and lost uncommitted changes: until
        `source_offsets` is called, which returns where to continue.
        """
        run_steps(self.commit_steps(source_offsets, member=member))

    def commit_steps(
        self, source_offsets: Mapping[tuple[str, int], int] | None = None, *, member: ConsumerMember | None = None
    ) -> Steps[bool]:
        """`commit`, as a generator of its calls to the log. Until it ends, the task must be left alone.

        Its caller makes each call, in any thread, and sends the result, or throws the error, in the task's own thread.
        Returns whether there was anything to commit.
        """
        # Before the look at the state: background work that closes a task fails it before it looks here.
        self._committer = threading.get_ident()
        self._commit_ended.clear()
        try:
            self._check_running()
            self._refuse_dropped()
            offsets = self.checked_offsets({} if source_offsets is None else source_offsets)
            moved = self.times_moved
            # Metadata goes with offsets only: without any, a cold restore would not have the moved times.
            if (moved and not offsets) or self._restates:
                offsets = {**self._sources, **offsets}
            if offsets or self.uncommitted:
                self.stores.buffer.check_commit()
            # Metadata over its limit is refused here, while the changes are still in the buffer.
            metadata = CommitMetadata(
                epoch=self.epoch, stream_times=self.stream_times, observed=self._observed(), progress=self.progress
            ).to_text()
            started_ms = self._clock.monotonic_ms()
            written, acknowledged = yield from self._committed(offsets, metadata, member, moved)
        finally:
            self._commit_ended.set()
        if acknowledged is None:
            return False
        self.counters.commit_seconds.observe((self._clock.monotonic_ms() - started_ms) / 1_000)
        self._listener.on_commit(self.id, offsets)
        if written and self.on_outputs is not None:
            self.on_outputs(written, acknowledged)
        return True

    def _committed(
        self, offsets: dict[TopicPartition, int], metadata: str, member: ConsumerMember | None, moved: bool
    ) -> Steps[tuple[Outputs, Mapping[TopicPartition, int] | None]]:
        """Commit, and record the committed state; None if there was nothing to commit.

        From the first look at the changes to the last assignment an exception fails the task, also one that a
        signal handler raises anywhere between: a task that is half committed must not go on.
        """
        self._log_may_have_it = False
        try:
            changes = self.stores.buffer.take_changes()
            batches: dict[TopicPartition, Sequence[Outgoing]] = dict(self._outputs)
            for name, store_changes in changes.items():
                batches[self.applier.changelogs[name]] = store_changes  # type: ignore[assignment]
            if not batches and not offsets and not moved and not self.stores.buffer.rows:
                self.commit_requested = False
                return {}, None
            commit = GroupCommit(self.app, {at: Committed(offset, metadata) for at, offset in offsets.items()}, member)
            acknowledged = yield from self._make_durable(batches, commit)
            self.counters.commits["committed"] += 1
            self._sources.update(offsets)
            self._restates = False
            written, self._outputs, self._output_bytes = self._outputs, {}, 0
            self._keep_times()
            self.commit_requested = False
            self._count(changes)
        except BaseException as error:
            refused = isinstance(error, Unavailable | Corruption) and error.unwritten and not self._log_may_have_it
            if refused and self.keeps_refused:
                self.counters.commits["failed"] += 1
                clear_frames(error)
                raise
            # The task fails with the very error that its caller gets: a caller that meets another one assumes that
            # another thread closed the task, and never opens it again.
            told = self._told_of(error)
            self._failed(told)
            if told is not error:
                raise told from error
            raise
        return written, acknowledged

    def _told_of(self, error: BaseException) -> BaseException:
        """The error of a failed commit, as CommitUnknown or marked if the log may have the commit.

        Fenced stays as it is: a fenced caller gives the task up, and the new owner reads the offsets.
        """
        if not self._log_may_have_it or isinstance(error, Fenced):
            return error
        self.in_doubt = True
        if isinstance(error, Unavailable) and not isinstance(error, CommitUnknown):
            told = CommitUnknown(
                f"task {self.id}: the log may have the commit, but a step after it failed "
                f"({type(error).__name__}): open the task again and go on from its source offsets"
            )
            told.__cause__ = error  # so that `clear_frames` clears its frames, too
            return told
        if isinstance(error, StandfastError):
            error.in_doubt = True
        return error

    def _failed(self, error: BaseException) -> None:
        """Fail the task after a write that may be half done."""
        self.counters.commits["failed"] += 1
        self.fail(error)
        clear_frames(error)  # a caller that keeps the error must not keep locks with it
        if isinstance(error, StandfastError):
            self._raise_fenced(error)  # a take-over closed the task in the middle of the commit

    def checked_offsets(self, source_offsets: Mapping[tuple[str, int], int]) -> dict[TopicPartition, int]:
        """The source offsets as `commit` would take them. Raises InvalidRequest; changes nothing."""
        return checked_source_offsets(source_offsets, self.id, self._topics, self._sources)

    def ahead(self, offsets: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], int]:
        """Those of the offsets that are above the committed ones."""
        return {at: offset for at, offset in offsets.items() if offset > self._sources.get(TopicPartition(*at), -1)}

    @property
    def committing(self) -> bool:
        """Whether it is in the middle of a commit: background work closes it after that."""
        return not self._commit_ended.is_set()

    @property
    def commits_here(self) -> bool:
        """Whether this very thread is in the middle of a commit of it: a signal handler that closes it asks."""
        return self.committing and self._committer == threading.get_ident()

    @property
    def uncommitted(self) -> bool:
        """Whether rows, changes, outputs or a stream time wait for a commit."""
        buffer = self.stores.buffer
        return bool(buffer.rows or buffer.changes or self._outputs or self.times_moved)

    @property
    def times_moved(self) -> bool:
        """Whether stream times or progress differ from the last commit's."""
        return (self.stream_times, self.progress) != self._committed_times

    @property
    def outputs(self) -> Outputs:
        """Records for output topics that the next commit writes."""
        return self._outputs

    def savepoint(self) -> None:
        """Mark the present point: `rollback` returns to the last mark, `release` forgets it. They nest."""
        self.stores.savepoint()
        # Lengths are enough, because outputs are only ever appended.
        lengths = {at: len(batch) for at, batch in self._outputs.items()}
        self._marks.append((lengths, self._times(), self._output_bytes, self.commit_requested))

    def rollback(self) -> None:
        """Undo every write, output, stream time and progress since the savepoint."""
        self.stores.rollback()
        lengths, times, self._output_bytes, self.commit_requested = self._marks.pop()
        self._outputs = {at: batch[: lengths[at]] for at, batch in self._outputs.items() if at in lengths}
        self._put_back(times)

    def release(self) -> None:
        """Keep the changes since the savepoint."""
        self.stores.release()
        self._marks.pop()

    def write_outputs(self, *, batch_bytes: int, linger_ms: int) -> None:
        """At least once: write output records before the commit, once they are many or old enough.

        Exactly once they belong to the commit's transaction, and this does nothing.
        """
        if self.guarantee == "exactly_once" or not self._outputs or self.writer is None:
            return
        if self._output_bytes < batch_bytes and self._clock.monotonic_ms() - self._outputs_since_ms < linger_ms:
            return
        try:
            written, self._outputs = self._outputs, {}
            acknowledged = self.writer.append(written)
            self.stores.buffer.size_bytes -= self._output_bytes
            self._output_bytes = 0
        except BaseException as error:
            self.fail(error)
            clear_frames(error)
            if isinstance(error, StandfastError):
                self._raise_fenced(error)
            raise
        if self.on_outputs is not None:
            self.on_outputs(written, acknowledged)

    def discard(self) -> None:
        """Discard everything since the last commit: rows, outputs, stream times and progress."""
        self.stores.discard()
        self._marks.clear()
        self._outputs, self._output_bytes = {}, 0
        self._put_back(self._committed_times)

    def _times(self) -> Times:
        return dict(self.stream_times), dict(self.progress)

    def _put_back(self, times: Times) -> None:
        for now, before in zip((self.stream_times, self.progress), times, strict=True):
            now.clear()  # the dictionaries stay: processors may hold them
            now.update(before)

    def fail(self, error: BaseException) -> None:
        """Stop the task: it takes no reads or writes until it is opened again.

        A task that was taken over stays fenced, whatever error follows.
        """
        if isinstance(self.error, Fenced):
            return
        self.error = error
        self._prepared = None
        if isinstance(error, Fenced):
            self.stores.fence(str(error))
        if self.state not in GONE:
            self.move(TaskState.FAILED)

    def open_writer(self, writer: LogWriter) -> None:
        """Own the task in the log from now on."""
        self.writer = writer

    def resume_from_log(self, offsets: Mapping[TopicPartition, Committed], *, local_counts: bool) -> None:
        """Choose the start of sources and clocks by the group's `offsets`; called once, when every store is whole.

        The group's commit is atomic with the log under exactly once, so it wins. At least once, the local offsets may
        be ahead of it, and count only if every changelog stood at its end when the task was opened (`local_counts`).
        Only offsets of this task's own partition and topics count: another group may have a task of the same partition.
        """
        committed = {at: found for at, found in offsets.items() if self.is_source(at)}
        cut = self.stores.cut
        local = {
            at: offset
            for at, offset in ((TopicPartition(*parse_source_key(key)), value) for key, value in cut.sources.items())
            if self._owns(at.topic)
        }
        tags = {TopicPartition(*parse_source_key(key)): tag for key, tag in cut.source_tags.items()}
        for at in self.applier.diverged(local, tags):
            logger.warning(
                "task %s: %s was put back to an earlier state and written on: offset %d, up to which it was read here, "
                "no longer counts, and reading goes on from the offset that the group committed",
                self.id,
                at,
                local.pop(at),
                extra=as_event("offset_diverged", task=self.id, source=at),
            )
        self._sources = {at: found.offset for at, found in committed.items()}
        # Local offsets of a partition without a committed one count under either guarantee: nothing contradicts them.
        for at, offset in local.items():
            if local_counts and (at not in committed or self.guarantee == "at_least_once"):
                self._sources[at] = max(offset, self._sources.get(at, 0))
        self.stream_times = dict(cut.stream_times)
        self.progress = dict(cut.progress)
        # Sources, but none of this task's topics: the directory is that of another sub-topology.
        if cut.sources and not local:
            self._leave_clock(cut.sources)
        for found in committed.values():
            metadata = CommitMetadata.from_text(found.metadata)
            if metadata is not None:
                self._take_over_times(metadata)
        self._keep_times()

    def close(self) -> None:
        """Release log and directory; no flush, and uncommitted changes are discarded. Closing twice is fine."""
        if self.state is not TaskState.CLOSED:
            self.move(TaskState.CLOSED)
        try:
            if self.writer is not None:
                self.writer.close()
        finally:
            # The log may take a commit of another thread just now, and then its rows are to be written here, too. Not
            # for long, because that thread may wait for this one.
            if self._committer != threading.get_ident():
                self._commit_ended.wait(COMMIT_WAIT_S)
            # Whatever the writer's close raises: an open store keeps the lock of the directory.
            self.stores.close()

    def _keep_times(self) -> None:
        self._committed_times = self._times()

    @property
    def sources(self) -> list[TopicPartition] | None:
        """The partitions that it reads; None if only the caller knows them."""
        return (
            None if self._topics is None else [TopicPartition(one, self.id.partition) for one in sorted(self._topics)]
        )

    def is_source(self, at: TopicPartition) -> bool:
        """Whether offsets of this partition are this task's."""
        return at.partition == self.id.partition and self._owns(at.topic)

    def _owns(self, topic: str) -> bool:
        return self._topics is None or topic in self._topics

    def _leave_clock(self, sources: Iterable[str]) -> None:
        """Drop the event-time clock of a directory that another sub-topology of this number has left."""
        before = ", ".join(sorted({parse_source_key(key)[0] for key in sources}))
        logger.warning(
            "task %s: this directory was left by a sub-topology that read %s, which these tasks do not read: "
            "sub-topologies are numbered as the program adds them, so the stores of one whose number changed are "
            "restored from their changelogs; add new sources after the others to keep the numbers",
            self.id,
            before,
            extra=as_event("directory_of_other_topology", task=self.id),
        )
        self.progress.pop(PROGRESS_PREFIX + CLOCK_KEY, None)

    def _take_over_times(self, metadata: CommitMetadata) -> None:
        # The larger of both: no clock goes back, whichever of directory and log is older.
        for key, stamp in metadata.stream_times.items():
            self.stream_times[key] = max(stamp, self.stream_times.get(key, -1))
        for key, value in metadata.progress.items():
            self.progress[key] = max(value, self.progress.get(key, value))
        for name, stamp in metadata.observed.items():
            self.stores.observe(name, stamp)

    def _make_durable(self, batches: Batches, commit: GroupCommit) -> Steps[Mapping[TopicPartition, int]]:
        writer = self.writer
        if writer is None:
            raise InternalError(f"task {self.id} runs without a writer")
        self._prepared = None
        rows = self.stores.buffer.rows
        acknowledged = yield from self._write_log(writer, batches, commit)
        self._log_may_have_it = True
        try:
            reach("commit.logged")
            self._write_local(batches, commit, acknowledged, writer)
        except BaseException:
            # Acknowledged and not local: under exactly once the next opening writes these rows.
            self.stores.keep_unwritten(rows)
            raise
        reach("commit.local")
        if self.guarantee == "at_least_once" and commit.offsets:
            # Refused once another instance has the task: it reads on from the offsets committed before it opened.
            yield partial(self._group.commit, commit.offsets, commit.member, writer.claim)
        return acknowledged

    def _write_local(
        self, batches: Batches, commit: GroupCommit, acknowledged: Mapping[TopicPartition, int], writer: LogWriter
    ) -> None:
        """Write the acknowledged commit locally, in one batch."""
        self._check_log(batches, acknowledged)
        # Sources of a sub-topology that had this number before go: by them the next one would take this for its own.
        known = self.stores.cut.sources
        sources = {key: offset for key, offset in known.items() if self._owns(parse_source_key(key)[0])}
        moved = {at: committed.offset for at, committed in commit.offsets.items()}
        sources.update({source_key(*at): offset for at, offset in moved.items()})
        tags = self.applier.epoch_tags({**acknowledged, **moved})
        source_tags = {key: tag for key, tag in self.stores.cut.source_tags.items() if key in sources}
        source_tags.update({source_key(*at): tags.get(at, "") for at in moved})
        cut = replace(
            self.stores.cut,
            positions=self.applier.advanced(
                acknowledged,
                moved,
                tags,
                marked=self.guarantee == "exactly_once" and writer.marks_transactions,
            ),
            sources=sources,
            source_tags={key: tag for key, tag in source_tags.items() if tag},
            stream_times=dict(self.stream_times),
            progress=dict(self.progress),
            epoch=writer.epoch,
        )
        prepared, self._prepared = self._prepared, None
        self.stores.commit(cut, prepared)

    def _prepare(self) -> None:
        self._prepared = self.stores.prepare()

    def _write_log(
        self, writer: LogWriter, batches: Batches, commit: GroupCommit
    ) -> Steps[Mapping[TopicPartition, int]]:
        """Pass the records to the log and wait for its acknowledgement; counts the time, and failures."""
        exactly_once = self.guarantee == "exactly_once"
        if not batches and not (exactly_once and commit.offsets):
            if commit.offsets:
                # Writes nothing, and is refused if a newer owner has the task.
                yield partial(writer.append, {})
            return {}
        self.inflight = (sum(map(len, batches.values())), self.stores.buffer.size_bytes)
        started_ns = measured_ns()
        try:
            if exactly_once:
                given = commit if commit.offsets else None
                call: LogCall = partial(writer.transact, batches, given, meanwhile=self._prepare)
            else:
                call = partial(writer.append, batches, meanwhile=self._prepare)
            acknowledged: Mapping[TopicPartition, int] = yield call
        except BaseException as error:
            self.counters.changelog_errors[log_error(error)] += 1
            # A writer marks its errors; any other exception may have come after the log took the commit.
            self._log_may_have_it = error.in_doubt if isinstance(error, StandfastError) else True
            raise
        finally:
            self.inflight = (0, 0)
        self.counters.ack_seconds.observe((measured_ns() - started_ns) * SECONDS_PER_NS)
        return acknowledged

    def _check_log(self, batches: Batches, acknowledged: Mapping[TopicPartition, int]) -> None:
        """Raise StateLost if the log assigned these offsets before: it has lost records that it had acknowledged."""
        for name, stored in self.stores.cut.positions.items():
            changelog = self.applier.changelogs.get(name)
            if changelog is not None and changelog in acknowledged and changelog not in self.applier.limited:
                first = acknowledged[changelog] - len(batches[changelog])
                if first < stored.offset:
                    lost = StateLost(
                        f"task {self.id}: {changelog} put these records at offset {first}, though this store has its "
                        f"records below {stored.offset}: the log lost records, and the state is read from it again",
                        reason="diverged",
                    )
                    lost.sources = (changelog,)
                    raise lost

    def _observed(self) -> dict[str, int]:
        return {
            name: store.rows.observed_ms for name, store in self.stores.stores.items() if store.rows.observed_ms >= 0
        }

    def _count(self, changes: Mapping[str, Sequence[Any]]) -> None:
        for name, store_changes in changes.items():
            counters = self.stores.stores[name].rows.counters
            counters.logged_records += len(store_changes)
            counters.logged_bytes += changes_bytes(store_changes)

    def _checked_size(self, topic: str, key: bytes | None, value: bytes | None, headers: Headers) -> int:
        """The size of an output record in bytes, each part within the limit for values."""
        sizes = {"key": len(key or b""), "value": len(value or b"")}
        if headers:
            sizes["headers"] = headers_bytes(headers)
        limit = self.stores.limits.value_bytes
        for part, size in sizes.items():
            if size > limit:
                raise InvalidRequest(
                    f"task {self.id}: {part} of {size} bytes for topic {topic!r} is over the limit of {limit} bytes: "
                    "split it, or raise value_max_bytes together with the log's own message limit"
                )
        size = sum(sizes.values())
        most = self.stores.limits.record_bytes
        if size > most:
            raise TooLarge(
                f"task {self.id}: a record of {size} bytes for topic {topic!r} is over the limit of {most} bytes for "
                "key, value and headers together: split it, or raise value_max_bytes together with the log's own "
                "message limit"
            )
        return size

    def _raise_fenced(self, cause: StandfastError) -> None:
        """Raise Fenced if that is why an operation failed."""
        if isinstance(self.error, Fenced) and self.error is not cause:
            raise Fenced(f"task {self.id} was taken over by a newer owner: {self.error}") from cause

    def _refuse_dropped(self) -> None:
        if self.dropped:
            raise StateLost(
                f"task {self.id} was opened again ({self.dropped}), and changes that were not committed are gone, so "
                "offsets of their records cannot be committed: go on from task.source_offsets()",
                reason="uncommitted-dropped",
            )

    def _check_running(self) -> None:
        if self.state is TaskState.RUNNING:
            return
        if isinstance(self.error, Fenced):
            raise Fenced(f"task {self.id} was taken over by a newer owner: {self.error}")
        if self.state is TaskState.FAILED:
            kind = type(self.error).__name__ if isinstance(self.error, StandfastError) else repr(type(self.error))
            raise Closed(f"task {self.id} failed ({kind}: {self.error}): it must be opened again")
        if self.state is TaskState.CLOSED:
            why = f" and could not be opened again: {self.error}" if self.error is not None else ""
            raise Closed(f"task {self.id} is closed{why}")
        if self.state is TaskState.STANDBY:
            raise NotReady(f"task {self.id} is a standby here: only the active task is read and written this way")
        raise NotReady(f"task {self.id} is {self.state.value}: wait for the restore gate with wait_ready()")
