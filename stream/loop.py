"""The loop of an application: poll, initialise, process, commit.

    tasks that run here ──> reader positions ──> fetch ──> processor.process ──> commit (interval, request, full)

Rules of this file: one thread, driven by `poll_once`. It stands on the session: restore, standbys and take-over are
the session's; while the gate is shut nothing is fetched, and every position stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from standfast.replication.log import Fetched, Record
from standfast.replication.offsets import TopicPartition
from standfast.store.clock import Clock
from standfast.store.errors import Corruption, Fenced, NotReady, StandfastError, StateLost
from standfast.store.log import logger
from standfast.stream.processor import Context, Processor, Source, SourceRecord
from standfast.stream.session import Session
from standfast.stream.task import Task, TaskState

FETCH_RECORDS_MAX = 500
SHUT_WAIT_MS = 5


@dataclass(slots=True)
class RunningTask:
    """A task that processes here."""

    task: Task
    inputs: dict[str, tuple[Source, Processor, Context]]
    processors: list[Processor]
    next_commit_ms: int
    pending: dict[tuple[str, int], int] = field(default_factory=dict)


class Loop:
    """Processes the sources of every task that runs on this instance."""

    def __init__(
        self,
        session: Session,
        sources: Sequence[tuple[Source, type[Processor]]],
        *,
        commit_interval_ms: int,
        clock: Clock,
    ) -> None:
        self.records_total = 0
        self._session = session
        self._sources = tuple(sources)
        self._commit_interval_ms = commit_interval_ms
        self._clock = clock
        self._reader = session.log.reader()
        self._running: dict[int, RunningTask] = {}
        self._stores = frozenset(spec.name for spec in session.specs)

    def poll_once(self, timeout_ms: int = 0) -> int:
        """One round; returns how many records were processed."""
        self._follow_tasks()
        if not self._session.ready:
            # The gate is shut: what was processed before stays uncommitted for at most its interval.
            self._commit_due()
            self._clock.sleep_ms(SHUT_WAIT_MS)
            return 0
        if not self._running:
            self._clock.sleep_ms(timeout_ms)
            return 0
        processed = 0
        for batch in self._reader.fetch(FETCH_RECORDS_MAX, timeout_ms):
            running = self._running.get(batch.source.partition)
            if running is not None:
                processed += self._process(batch, running)
        self._commit_due()
        self.records_total += processed
        return processed

    def commit_all(self) -> None:
        """Commit every task now."""
        for partition in list(self._running):
            self._commit(partition)

    def close(self) -> None:
        """Close the processors and the reader; what is uncommitted is forgotten."""
        for partition in list(self._running):
            self._end(partition)
        self._reader.close()

    def _follow_tasks(self) -> None:
        tasks = self._session.tasks()
        for partition, running in list(self._running.items()):
            if tasks.get(partition) is not running.task or running.task.state is not TaskState.RUNNING:
                self._end(partition)
        for partition, task in tasks.items():
            if task.state is TaskState.RUNNING and partition not in self._running and self._session.ready:
                self._begin(partition, task)

    def _begin(self, partition: int, task: Task) -> None:
        positions = self._positions(partition, task)
        by_class: dict[type[Processor], tuple[Processor, Context]] = {}
        inputs = {}
        for source, processor_class in self._sources:
            if processor_class not in by_class:
                by_class[processor_class] = (processor_class(), Context(task, self._stores))
            inputs[source.topic] = (source, *by_class[processor_class])
        for processor, context in by_class.values():
            processor.init(context)
        self._reader.add(positions)
        self._running[partition] = RunningTask(
            task,
            inputs,
            [processor for processor, _ in by_class.values()],
            self._clock.monotonic_ms() + self._commit_interval_ms,
        )

    def _positions(self, partition: int, task: Task) -> dict[TopicPartition, int]:
        committed = task.source_offsets()
        partitions = [TopicPartition(source.topic, partition) for source, _ in self._sources]
        bounds = self._reader.bounds(partitions)
        return {at: committed.get(at, bounds[at].begin) for at in partitions}

    def _end(self, partition: int) -> None:
        running = self._running.pop(partition)
        self._reader.remove([TopicPartition(source.topic, partition) for source, _ in self._sources])
        for processor in running.processors:
            processor.close()

    def _process(self, batch: Fetched, running: RunningTask) -> int:
        topic, partition = batch.source
        source, processor, context = running.inputs[topic]
        task = running.task
        context.topic, context.partition = topic, partition
        count = 0
        try:
            for record in batch.records:
                self._process_one(record, source, processor, context, task)
                count += 1
                running.pending[topic, partition] = record.offset + 1
                if (task.commit_requested or task.stores.buffer.full) and not self._commit(partition):
                    return count
        except StandfastError as error:
            # A task that was taken over or lost meanwhile is the session's to deal with; the others go on.
            if isinstance(error, (Corruption, Fenced, StateLost)):
                task.fail(error)
            elif task.state is TaskState.RUNNING:
                raise
            logger.warning("task %s stops: %s", task.id, error)
            return count
        finally:
            task.record_timestamp = None
        running.pending[topic, partition] = batch.next_offset
        return count

    def _process_one(self, record: Record, source: Source, processor: Processor, context: Context, task: Task) -> None:
        decoded = SourceRecord(
            None if record.key is None else source.key.deserialize(record.key),
            None if record.value is None else source.value.deserialize(record.value),
            record.timestamp,
            record.headers,
        )
        if source.timestamp is not None:
            decoded = decoded._replace(timestamp=source.timestamp(decoded))
        context.offset, context.headers = record.offset, record.headers
        task.record_timestamp = decoded.timestamp
        task.observe(source.topic, context.partition, decoded.timestamp)
        processor.process(decoded)

    def _commit_due(self) -> None:
        now_ms = self._clock.monotonic_ms()
        for partition, running in list(self._running.items()):
            if now_ms >= running.next_commit_ms or running.task.commit_requested:
                self._commit(partition)

    def _commit(self, partition: int) -> bool:
        """Whether the task goes on: a fenced or lost one is the session's to deal with."""
        running = self._running[partition]
        running.next_commit_ms = self._clock.monotonic_ms() + self._commit_interval_ms
        try:
            running.task.commit(running.pending)
        except (Fenced, StateLost, Corruption, NotReady) as error:
            logger.warning("task %s stops: %s", running.task.id, error)
            return False
        running.pending = {}
        return True
