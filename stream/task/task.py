"""One task: the stores of one partition, their changelogs, and the commit that makes everything one cut.

    commit                   takes the whole cut in one step: rows, changes, outputs, stream times, progress, times of
                             the stores; writes and records that come meanwhile belong to the next commit; then it
                             writes the cut to the log, and here (commit_write.py)
    start                    of sources and clocks, once every store is whole (start.py)

    position of a store      the next offset of its changelog, as the log acknowledged it; where a source topic serves
                             as changelog, the source offset that this very commit makes durable

Rules of this file: a crash between two steps leaves the log ahead of the local state, never behind. A commit that fails
leaves the task FAILED until it is opened again. Its stores and positions are as Kafka Streams' ProcessorStateManager.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Never

from standfast.replication.commit_metadata import CommitMetadata
from standfast.replication.listeners import Listener
from standfast.replication.log import (
    Committed,
    ConsumerMember,
    Group,
    GroupCommit,
    Headers,
    LogWriter,
    Outgoing,
    TopicInfo,
)
from standfast.replication.metadata_parts import is_part, texts_of
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.replication.record_limits import TopicLimits
from standfast.replication.tail.applier import ChangelogApplier
from standfast.restore.foreign_offsets import (
    ForeignOffsets,
)
from standfast.restore.lost_commits import LostCommits
from standfast.store.arguments import checked, is_whole, no_option
from standfast.store.clock import Clock
from standfast.store.errors import (
    Corruption,
    Fenced,
    InternalError,
    InvalidRequest,
    ListenerFailed,
    StandfastError,
    StateLost,
    Unavailable,
)
from standfast.store.names import check_topic
from standfast.store.process import forks
from standfast.store.process.interrupts import Flag
from standfast.store.process.tracebacks import clear_frames
from standfast.store.specs import StoreSpec
from standfast.store.task.commit_record import source_key
from standfast.store.task.task_stores import TaskStores
from standfast.store.timestamps import TIMESTAMP_MAX_MS
from standfast.store.types.kinds import gives_stores
from standfast.store.types.typed import TIME_MAX_MS
from standfast.store.value_timestamp import changes_bytes
from standfast.stream.cut import Committer, Cut, Times, pieces_at, told_of
from standfast.stream.outgoing import BYTES_TYPES, PARTITION_MAX, check_output, check_taken, checked_size, latest_ms
from standfast.stream.source_offsets import checked_source_offsets
from standfast.stream.steps import Steps, run_steps
from standfast.stream.task.commit_write import CommitWrite, WrittenTask
from standfast.stream.task.settings import Guarantee
from standfast.stream.task.start import Judges, Restore, start_of
from standfast.stream.task.states import ALLOWED, GONE, TaskState, not_running
from standfast.stream.task.statistics import Clocks, SessionCounters

Outputs = Mapping[TopicPartition, Sequence[Outgoing]]


COMMIT_WAIT_S = 1.0  # the wait of a close for a commit of another thread
COMMIT_LOOK_S = 0.05  # between looks whether a commit of another thread has ended, beside being woken by it


@checked(InvalidRequest, exact=("__init__", "observe"))
class Task:
    """Stores and commit of one partition. Several threads may use an active task; see `exclusive`."""

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
        foreign_offsets: ForeignOffsets,
        lost_commits: LostCommits,
        topics: frozenset[str] | None = None,
        spare: Sequence[str] = (),
        keys_sorted: Callable[[str], bool] = lambda topic: False,
    ) -> None:
        """`spare` are changelogs with room for metadata that is too large for one text.

        `keys_sorted` says of a topic between tasks whether its keys are in their sorted form.
        """
        self.keys_sorted = keys_sorted
        self.id = task
        self.app = app
        self.guarantee: Guarantee = guarantee
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
        self.clocks: Callable[[], Clocks] | None = None  # of its processing, where there is one; any thread may ask
        self.runs_since_ms = -1  # monotonic
        self.last_commit_ms = -1  # monotonic; when the loop's last commit of it began
        self.restore: Restore | None = None  # while it restores
        self.has_copy = False  # a standby's directory was set aside before it opened
        self.leaving = False  # it is another instance's now: the loop commits it and ends its run
        self.keeps_refused = False  # a commit that the log refused before its first byte leaves the task usable
        self.counters = SessionCounters()  # the session's, after `count_in`
        self.on_outputs: Callable[[Outputs, Mapping[TopicPartition, int]], None] | None = None  # after a commit
        self.output_topics: Mapping[str, TopicInfo] = {}  # the known ones, to refuse records that they would refuse
        self.limits = TopicLimits()  # the writer's
        self._group = group
        self._clock = clock
        self._listener = listener
        self._judges = Judges(foreign_offsets, lost_commits)
        self._spare = spare
        self._topics = topics  # source topics of the task's group; None: any
        self._sources: dict[TopicPartition, int] = {}
        self._committed_times: Times = ({}, {})
        self._taken_times: Times = ({}, {})  # of the commit under way, otherwise the committed ones
        self._restates = False
        self._commit_ended = Flag()
        self._commit_ended.set()
        forks.dies_in_child(self)
        self._committer: Committer | None = None  # of the commit under way; entered under the buffer's latch
        self._write: CommitWrite | None = None  # of the commit under way, or of the last one
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
        """Enter a state; a wrong transition is a bug of ours, and changes nothing. Raises ListenerFailed once in it."""
        if state not in ALLOWED[self.state]:
            raise InternalError(f"task {self.id} cannot go from {self.state.value} to {state.value}")
        self.state = state
        if state in (TaskState.STANDBY, TaskState.RESTORING):
            self.role = "standby" if state is TaskState.STANDBY else "active"
        self._listener.on_state_changed(self.id, self.role, state.value)

    def tell_lost(self, reasons: Iterable[str]) -> None:
        """Report to listeners why stores of it start empty. Raises ListenerFailed."""
        for reason in dict.fromkeys(reasons):
            self._listener.on_state_lost(self.id, reason)

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
        self._restates |= any(known.get(source_key(*at)) != offset for at, offset in self._sources.items())

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
        **unknown: Never,
    ) -> None:
        """Add a record to an output topic; it is written with the next commit, in the same transaction if there is one.

        Without `partition` the key's CRC-32 over `partitions` chooses it (librdkafka's `consistent` partitioner).
        InvalidRequest for a record that no log accepts (types, timestamp, partition) and for a key, a value or headers
        over the session's value_max_bytes, or all of them together over the log's limit; nothing changes then.
        """
        if unknown:
            raise no_option(Task.send, unknown)
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
        if headers or size > self.stores.limits.value_bytes or size > self.limits.least:
            size = checked_size(self.id, topic, key, value, headers, self.limits, **self.stores.limits.of_output())
        buffer = self.stores.buffer
        buffer.check_room(size)
        made = Outgoing(key, value, stamp, tuple(headers))
        with buffer.latch:
            buffer.outputs.setdefault(TopicPartition(topic, partition), []).append(made)
            buffer.size_bytes += size
            if not buffer.output_bytes:
                self._outputs_since_ms = self._clock.monotonic_ms()
            buffer.output_bytes += size

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
        with self.stores.buffer.latch:
            if timestamp_ms > self.stream_times.get(key, -1):
                self.stream_times[key] = timestamp_ms

    def exclusive(self) -> AbstractContextManager[object]:
        """Keep commits, and other threads' `exclusive` blocks, out of a `with` block: its writes go with one commit.

        For threads that read a row and write it back, or write a record with its offset: each of them in a block. A
        commit within the block, from its own thread, commits the writes so far.
        """
        return self.stores.buffer.latch

    @property
    def is_exclusive(self) -> bool:
        """Whether this thread is within an `exclusive` block."""
        return bool(self.stores.buffer.latch._is_owned())  # type: ignore[attr-defined]

    def commit(
        self, source_offsets: Mapping[tuple[str, int], int] | None = None, *, member: ConsumerMember | None = None
    ) -> None:
        """Make everything since the last commit durable, in the log and locally, as one cut.

        It takes all of that in one step: writes of other threads that come meanwhile belong to the next commit. Give
        an offset only once all writes of the records below it have returned. Waits for a commit and an `exclusive`
        block of another thread.
        `source_offsets` maps (topic, partition) to the next offset to process; InvalidRequest for one that is not this
        task's or goes back, DiskFull where there is too little space: nothing is written then, and the task goes on.
        When this returns, the state survives the kill of any process; when it raises anything else, the task takes no
        more writes until it is opened again. CommitUnknown, or another error that is `in_doubt`: the log may have
        the commit; `source_offsets` of the task that is opened again shows whether it has. Stream times
        and progress that moved without a new offset are committed with the known offsets, so that the log has them.
        `member` is the consumer that read the records: if it has left its group, the commit is Fenced. So it is once
        another instance has taken the task over. At least once its changes may be in the log by then, and the offsets
        are not. ListenerFailed of an `on_commit`: the commit is done, and the task is to be opened again.
        StateLost, with nothing written, if the task was opened again by itself and lost uncommitted changes: until
        `source_offsets` is called, which returns where to continue.
        """
        run_steps(self.commit_steps(source_offsets, member=member))

    def commit_steps(
        self,
        source_offsets: Mapping[tuple[str, int], int] | None = None,
        *,
        member: ConsumerMember | None = None,
        begin: AbstractContextManager[object] | None = None,
    ) -> Steps[bool]:
        """`commit`, as a generator of its calls to the log; writes that come before its end are the next commit's.

        Its caller makes each call, in any thread, and sends the result, or throws the error, in the task's own thread.
        Returns whether there was anything to commit. It waits for the commit of another thread. `begin` is entered
        while the commit takes its changes, which waits for nothing; it may raise NotBegun.
        """
        mine = Committer(threading.get_ident())
        try:
            cut = self._take({} if source_offsets is None else source_offsets, mine, begin or nullcontext())
            if cut is None:
                return False
            started_ms = self._clock.monotonic_ms()
            acknowledged = yield from self._committed(cut, member)
        except BaseException as error:
            # Of a signal handler, after the taking and before the commit: no other one may have this part.
            taken = self.stores.buffer.taken
            if self._committer is mine and self.state not in GONE and taken is not None and not taken.refused:
                self._failed(error)
            raise
        finally:
            if self._committer is mine:
                self._committer = None
                self._commit_ended.set()
        self.counters.commit_seconds.observe((self._clock.monotonic_ms() - started_ms) / 1_000)
        try:
            self._listener.on_commit(self.id, cut.offsets)
        except ListenerFailed as error:  # the commit counts: another opening of the task goes on from it
            self.fail(error)
            clear_frames(error)
            raise
        if cut.part.outputs and self.on_outputs is not None:
            self.on_outputs(cut.part.outputs, acknowledged)
        return True

    def _take(
        self, source_offsets: Mapping[tuple[str, int], int], mine: Committer, begin: AbstractContextManager[object]
    ) -> Cut | None:
        """Take the cut of a commit, in one step against every write; None if there is nothing to commit.

        An error leaves all in the buffer. Waits for the end of another thread's commit, and of its `exclusive` blocks
        and savepoints.
        """
        buffer = self.stores.buffer
        with buffer.latch:
            # With the latch, so that a thread that commits without a pause does not always come first. The commit under
            # way needs it no more.
            while (running := self._committer) is not None:
                if running.thread == mine.thread:
                    raise InvalidRequest(f"task {self.id}: this thread is in the middle of a commit: let that end")
                self._commit_ended.wait(COMMIT_LOOK_S)
            self._commit_ended.clear()
            # Before the look at the state: background work that closes a task fails it before it looks here.
            self._committer = mine
            with begin:
                return self._taken(source_offsets)

    def _taken(self, source_offsets: Mapping[tuple[str, int], int]) -> Cut | None:
        self._check_running()
        self._refuse_dropped()
        buffer = self.stores.buffer
        offsets = self.checked_offsets(source_offsets)
        moved = self.times_moved
        # Metadata goes with offsets only: without any, a cold restore would not have the moved times.
        if (moved and not offsets) or self._restates:
            offsets = {**self._sources, **offsets}
        if buffer.empty and not offsets and not moved:
            self.commit_requested = False
            return None
        buffer.check_commit()
        # Metadata over its limit is refused here, while the changes are still in the buffer.
        number, shown = self._judges.lost_commits.number(self.stores.cut)
        observed = self._observed()
        metadata = CommitMetadata(self.epoch, self.stream_times, observed, self.progress, shown)
        text, pieces = texts_of(metadata, self._spare)
        self._write = None
        try:
            beside = pieces_at(self.applier, pieces) if offsets else {}
            cut = Cut(self.stores.take(), offsets, text, self._times(), number, beside)
            self._taken_times = cut.times
            self.commit_requested = False
            return cut
        except BaseException as error:  # between its first step and its last: a cut that is half taken must not go on
            self._failed(error)
            raise

    def _committed(self, cut: Cut, member: ConsumerMember | None) -> Steps[Mapping[TopicPartition, int]]:
        """Commit the cut, and record the committed state.

        From here to the last assignment an exception fails the task, also one that a signal handler raises anywhere
        between: a task that is half committed must not go on.
        """
        try:
            changes = cut.part.logged()
            batches: dict[TopicPartition, Sequence[Outgoing]] = dict(cut.part.outputs)
            for name, store_changes in changes.items():
                batches[self.applier.changelogs[name]] = store_changes  # type: ignore[assignment]
            commit = GroupCommit(self.app, cut.committed, member)
            if self.writer is None:
                raise InternalError(f"task {self.id} runs without a writer")
            written = WrittenTask(self.id, self.stores, self.applier, self._group, self.guarantee, self._owns)
            self._write = CommitWrite(written, self.writer, self.counters)
            acknowledged = yield from self._write.steps(batches, commit, cut)
            self.counters.commits["committed"] += 1
            self._sources.update(cut.offsets)
            self._restates = False
            self._committed_times = cut.times
            self._count(changes)
        except BaseException as error:
            refused = isinstance(error, Unavailable | Corruption) and error.unwritten and not self._may_be_logged
            if refused and self.keeps_refused:
                self.stores.buffer.put_back()
                self._taken_times = self._committed_times
                self.commit_requested = True
                self.counters.commits["failed"] += 1
                clear_frames(error)
                raise
            # The task fails with the very error that its caller gets: a caller that meets another one assumes that
            # another thread closed the task, and never opens it again.
            told, self.in_doubt = told_of(self.id, error, self.changelog_topics(), in_log=self._may_be_logged)
            self._failed(told)
            if told is not error:
                raise told from error
            raise
        return acknowledged

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
    def _may_be_logged(self) -> bool:
        """Whether the log may have some or all of the running commit."""
        return self._write is not None and self._write.in_log

    @property
    def inflight(self) -> tuple[int, int]:
        """Records and bytes that were given to the log and are not acknowledged."""
        return (0, 0) if self._write is None else self._write.inflight

    @property
    def committing(self) -> bool:
        """Whether it is in the middle of a commit: background work closes it after that."""
        return self._committer is not None

    @property
    def commits_here(self) -> bool:
        """Whether this very thread is in the middle of a commit of it: a signal handler that closes it asks."""
        running = self._committer
        return running is not None and running.thread == threading.get_ident()

    @property
    def uncommitted(self) -> bool:
        """Whether rows, changes, outputs or a stream time wait for a commit."""
        return bool(not self.stores.buffer.empty or self.times_moved)

    @property
    def times_moved(self) -> bool:
        """Whether stream times or progress differ from the last commit's."""
        return (self.stream_times, self.progress) != self._committed_times

    @property
    def outputs(self) -> Outputs:
        """Records for output topics that the next commit writes, without those that one under way has taken."""
        return self.stores.buffer.outputs

    def savepoint(self) -> None:
        """Mark the present point: `rollback` returns to the last mark, `release` forgets it. They nest."""
        self.stores.savepoint()
        # Lengths are enough, because outputs are only ever appended.
        buffer = self.stores.buffer
        lengths = {at: len(batch) for at, batch in buffer.outputs.items()}
        self._marks.append((lengths, self._times(), buffer.output_bytes, self.commit_requested))

    def rollback(self) -> None:
        """Undo every write, output, stream time and progress since the savepoint."""
        buffer = self.stores.buffer
        lengths, times, output_bytes, self.commit_requested = self._marks.pop()
        buffer.outputs = {at: batch[: lengths[at]] for at, batch in buffer.outputs.items() if at in lengths}
        buffer.output_bytes = output_bytes
        self._put_back(times)
        self.stores.rollback()  # last: it lets other threads' writes in

    def release(self) -> None:
        """Keep the changes since the savepoint."""
        self._marks.pop()
        self.stores.release()  # last: it lets other threads' writes in

    def write_outputs(self, *, batch_bytes: int, linger_ms: int) -> None:
        """At least once: write output records before the commit, once they are many or old enough.

        Exactly once they belong to the commit's transaction, and this does nothing.
        """
        buffer = self.stores.buffer
        # Not before those of a commit, which are older.
        if self.guarantee == "exactly_once" or not buffer.outputs or buffer.taken is not None or self.writer is None:
            return
        if buffer.output_bytes < batch_bytes and self._clock.monotonic_ms() - self._outputs_since_ms < linger_ms:
            return
        try:
            with buffer.latch:
                written, buffer.outputs = buffer.outputs, {}
                buffer.size_bytes -= buffer.output_bytes
                buffer.output_bytes = 0
            acknowledged = self.writer.append(written)
        except BaseException as error:
            self.fail(error)
            clear_frames(error)
            if isinstance(error, StandfastError):
                self._raise_fenced(error)
            raise
        if self.on_outputs is not None:
            self.on_outputs(written, acknowledged)

    def discard(self) -> None:
        """Discard everything that no commit has taken: rows, outputs, stream times and progress."""
        with self.stores.buffer.latch:
            self.stores.discard()
            self._marks.clear()
            self._put_back(self._taken_times)

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
        if self._write is not None:
            self._write.prepared = None
        if isinstance(error, Fenced):
            self.stores.fence(str(error))
        if self.state not in GONE:
            self.move(TaskState.FAILED)

    def open_writer(self, writer: LogWriter) -> None:
        """Own the task in the log from now on."""
        self.writer, self.limits = writer, writer.limits

    def know_outputs(self, topics: Mapping[str, TopicInfo]) -> None:
        """Refuse records that these output topics would refuse."""
        self.output_topics = topics
        self.limits.begin({name: info.record_max_bytes for name, info in topics.items()})

    def resume_from_log(self, offsets: Mapping[TopicPartition, Committed], *, local_counts: bool) -> None:
        """Choose the start of sources and clocks by the group's `offsets`; called once, when every store is whole.

        The group's commit is atomic with the log under exactly once, so it wins. At least once, the local offsets may
        be ahead of it, and count only if every changelog stood at its end when the task was opened (`local_counts`).
        Only offsets of this task's own partition and topics count: other groups have tasks of that partition, too.
        Raises StateLost, and changes nothing, for offsets of another client and lost commits of rows without a log;
        Unavailable, Corruption.
        """
        committed = {at: one for at, one in offsets.items() if self.is_source(at) and not is_part(one.metadata)}
        found = start_of(
            self.id,
            self.stores,
            self.applier,
            offsets,
            committed,
            self._judges,
            owns=self._owns,
            guarantee=self.guarantee,
            local_counts=local_counts,
        )
        # Before the group's clocks, which an owner that took over just now may have moved past our rows: the log
        # refuses the first commit then, and the directory keeps the times of its rows.
        self._judges.lost_commits.begin(self.stores, self.epoch)
        self._sources, (self.stream_times, self.progress) = found.sources, found.times
        if found.restates:
            self._restates = self.commit_requested = True
        if found.foreign:  # so that the consent is needed once
            self.restate_sources()
        for name, stamp in found.observed.items():
            self.stores.observe(name, stamp)
        self._committed_times = self._taken_times = self._times()

    def close(self, later: Callable[[Callable[[], None]], None] = lambda close: close()) -> None:
        """Release log and directory; no flush, and uncommitted changes are discarded. Closing twice is fine.

        `later` is given the last step, which closes the files; by default it is taken at once.
        """
        try:
            if self.state is not TaskState.CLOSED:
                self.move(TaskState.CLOSED)
        finally:
            self._release(later)

    def forked(self) -> None:
        """As in `forks.Owned`."""
        self.state, self._committer = TaskState.CLOSED, None
        self.stores.forked()

    def _release(self, later: Callable[[Callable[[], None]], None]) -> None:
        try:
            if self.writer is not None:
                self.writer.close()
        finally:
            # The log may take a commit of another thread just now, and then its rows are to be written here, too. Not
            # for long, because that thread may wait for this one.
            running = self._committer
            if running is not None and running.thread != threading.get_ident():
                self._commit_ended.wait(COMMIT_WAIT_S)
            # Whatever the writer's close raises: an open store keeps the lock of the directory.
            later(self.stores.close)

    @property
    def sources(self) -> list[TopicPartition] | None:
        """The partitions that it reads; None if only the caller knows them."""
        topics = self._topics
        return None if topics is None else [TopicPartition(one, self.id.partition) for one in sorted(topics)]

    def is_source(self, at: TopicPartition) -> bool:
        """Whether offsets of this partition are this task's."""
        return at.partition == self.id.partition and self._owns(at.topic)

    def _owns(self, topic: str) -> bool:
        return self._topics is None or topic in self._topics

    def _observed(self) -> dict[str, int]:
        return {
            name: store.rows.observed_ms for name, store in self.stores.stores.items() if store.rows.observed_ms >= 0
        }

    def _count(self, changes: Mapping[str, Sequence[Any]]) -> None:
        for name, store_changes in changes.items():
            counters = self.stores.stores[name].rows.counters
            counters.logged_records += len(store_changes)
            counters.logged_bytes += changes_bytes(store_changes)

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
        if self.state is not TaskState.RUNNING:
            raise not_running(self.id, self.state, self.error)
