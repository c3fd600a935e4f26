"""External consumer: the application's own Kafka consumer decides the actives here; the session gates and places it.

    on_assign   open the tasks -> wait a moment for the gate -> assign: ready ones at their offset, the others paused
    commit      open tasks for which the log did not answer -> those restored meanwhile: seek, resume -> check the
                offsets -> commit
    on_revoke   close the tasks, discard uncommitted changes; the consumer releases the partitions itself

Polling goes on while partitions are paused, so a long restore costs no membership. Only the thread that polls the
consumer calls it, in a callback or in `commit` (replication/kafka/consumer.py says why), which is why the loop calls
`commit` after every poll, also with nothing to commit.

Rules of this file: the shell around `source_gate` (pure). The calls of a consumer are a generator, so that blocking and
asyncio clients share it; no lock is held while a call is carried out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

from standfast.replication.log import Committed, Group
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.replication.tail.open_log import consumers_at
from standfast.store.clock import Clock
from standfast.store.errors import BadConfig, InvalidRequest, NotReady, Unavailable
from standfast.store.log import as_event, logger
from standfast.stream.source_gate import OpenTask, SourceGate
from standfast.stream.source_offsets import checked_shape
from standfast.stream.task.task import Task

OPEN_WAIT_S = 0.5  # how long an assignment waits for the gate: a warm standby opens within it
LOOK_MS = 250
OVERDUE_MS = 5_000
WATCH_MS = 1_000

Offsets = Mapping[tuple[str, int], int]


@dataclass(frozen=True, slots=True)
class ConsumerHost:
    """The parts of the session that the external consumer needs.

    task_of      the task that reads a source partition
    adopt        make these tasks (their topics) active here, beside those that are
    give_up      make these inactive here
    opened       tasks that run and whose gate is open
    wait_ready   raises NotReady after so many seconds
    """

    app: str
    address: str
    clock: Clock
    group: Group
    task_of: Callable[[Any], TaskId]
    adopt: Callable[[frozenset[TaskId], frozenset[str]], None]
    give_up: Callable[[frozenset[TaskId]], None]
    opened: Callable[[], dict[TaskId, OpenTask]]
    wait_ready: Callable[[float], None]


class ClientMessage(Protocol):
    """A message of the Kafka client: a record, or an error."""

    def error(self) -> Any: ...
    def topic(self) -> str | None: ...
    def partition(self) -> int | None: ...


class ExternalConsumer:
    """One external consumer beside one session."""

    def __init__(self, host: ConsumerHost) -> None:
        self._host = host
        self._gate = SourceGate()
        self._mutex = threading.Lock()  # of the gate; never held during a call to the consumer or the session
        self._steps: Any = None  # ConsumerSteps of the consumer
        self.of_asyncio = False  # the consumer's methods are coroutines: the awaiting caller drives the steps
        self._ready_since_ms = -1
        self._next_look_ms = 0
        self._next_watch_ms = 0
        self._first_seen: dict[TopicPartition, Committed | None] = {}
        self._unopened: dict[TopicPartition, TaskId] = {}  # assigned while the log did not answer
        self._settings_given = False  # the consumer's settings probably come from `settings`
        self._eager: bool | None = None  # by those settings
        self._from_begin = False

    @property
    def consumer(self) -> Any:
        """The consumer of the last assignment; None before the first."""
        return None if self._steps is None else self._steps.consumer

    @property
    def in_use(self) -> bool:
        """Whether a consumer has partitions here."""
        return bool(self._gate.partitions)

    def is_read(self, task: object) -> bool:
        """Whether the consumer reads for this opening of a task, so that its records may be processed."""
        with self._mutex:
            return self._gate.is_read(task)

    def partition_of(self, named: int | TaskId | ClientMessage) -> TaskId:
        """A task by its partition, its id, or a message of a partition that it reads. Raises the error of a message."""
        if not callable(getattr(named, "error", None)):
            return named if isinstance(named, TaskId) else TaskId(0, cast(int, named))
        message = cast(ClientMessage, named)
        if message.error() is not None:
            # Here, so that a session on the embedded log never loads the Kafka client.
            from standfast.replication.kafka.consumer import error_given

            raise error_given(message, consumers_at(self._host.address) or self._host.address)
        return self._host.task_of(TopicPartition(message.topic() or "", message.partition() or 0))

    def check_read(self, task: Task, *, reopens: bool) -> None:
        """Raise Unavailable for a task whose records from the consumer still belong to an earlier opening."""
        with self._mutex:
            waits = self._gate.goes_back(task.id, task)
        failed = reopens and isinstance(task.error, Unavailable)
        if failed or (waits and task.error is None):
            why = f" ({task.error})" if failed else ""
            raise Unavailable(
                f"task {task.id} is opened again{why}: go on polling, and call commit after each poll; its uncommitted "
                "records are delivered again"
            )

    def settings(
        self, address: str, given: Mapping[str, Any], kafka: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Settings of a consumer for this application, with the functions of `kafka`. Raises BadConfig."""
        brokers = consumers_at(address)
        if brokers is None:
            raise BadConfig([f"log {address} has no consumers of Kafka: use a log at kafka://host:9092"])
        from standfast.replication.kafka.consumer import begins_early, consumer_settings, is_eager

        settings = consumer_settings(brokers, self._host.app, given, kafka)
        self._settings_given, self._eager = True, is_eager(settings)
        self._from_begin = begins_early(settings)
        return settings

    def on_assign(self, consumer: Any, partitions: list[Any]) -> None:
        """The callback of a blocking consumer; with None for the consumer only the tasks are opened."""
        if consumer is not None:
            self._drive(consumer, self.assigned(consumer, partitions))
            return
        tasks = frozenset(map(self._host.task_of, partitions))
        self._host.adopt(tasks, frozenset(one.topic for one in partitions))

    def on_revoke(self, partitions: Iterable[Any]) -> None:
        """Give up these partitions; after the session's end this does nothing."""
        gone = [TopicPartition(one.topic, one.partition) for one in partitions]
        with self._mutex:
            tasks = self._gate.revoked(gone)
            self._unopened = {at: task_id for at, task_id in self._unopened.items() if at not in gone}
        try:
            self._host.give_up(tasks | frozenset(map(self._host.task_of, gone)))
        except Unavailable as error:  # the tasks are closed; the group learns it with the next round
            logger.warning(
                "%d partitions were revoked, and the group cannot be notified: %s",
                len(gone),
                error,
                extra=as_event("group_not_notified", partitions=len(gone)),
            )

    def before_commit(self, offsets: Offsets) -> Offsets:
        """With a blocking consumer: resume restored partitions, and check the offsets."""
        if self.consumer is None or self.of_asyncio:
            return offsets
        given: Offsets = self._drive(self.consumer, self.committing(offsets))
        return given

    def assigned(self, consumer: Any, partitions: Iterable[Any]) -> Any:
        """The steps of an assignment."""
        from standfast.replication.kafka.consumer import ConsumerSteps

        if self.consumer is not consumer:
            self._steps = ConsumerSteps(consumer, eager=self._eager)
            if not self._settings_given:
                logger.warning(
                    "application %s: make sure that its consumer has enable.auto.commit=false, which is not the "
                    "default; session.consumer_settings() gives settings that fit",
                    self._host.app,
                    extra=as_event("consumer_settings_unfit", app=self._host.app),
                )
        yield from self._steps.check_group(self._host.app)
        sources = {TopicPartition(one.topic, one.partition): self._host.task_of(one) for one in partitions}
        with self._mutex:
            self._unopened |= sources
        try:
            self._adopt()
        except Unavailable as error:
            logger.warning(
                "the tasks that the group assigned are opened as soon as the log answers: %s",
                error,
                extra=as_event("log_away"),
            )
        with self._mutex:
            self._gate.assigned(sources)
            # Seen afresh below: another member may have committed these since.
            self._first_seen = {at: seen for at, seen in self._first_seen.items() if at not in sources}
        tasks = self._opened_soon() if sources else {}
        ready = [at for at, task_id in sources.items() if task_id in tasks]
        positions = {at: tasks[sources[at]].positions.get(at) if at in ready else None for at in sources}
        yield from self._steps.assign(positions)
        shut = [at for at in sources if at not in ready]
        if shut:
            yield from self._steps.pause(shut)
        if ready:  # a partition that was paused when it was revoked may still be
            yield from self._steps.resume(ready)
        with self._mutex:
            self._gate.resumed(ready, tasks)
        yield from self.moves()

    def moves(self) -> Any:
        """Steps that bring the consumer in line with the restore gate; returns the partitions that go back."""
        tasks = self._host.opened()
        with self._mutex:
            moves = self._gate.moves(tasks)
        self._ready_since_ms = -1
        if moves.none:
            return frozenset()
        if moves.pause:
            yield from self._steps.pause(moves.pause)
            with self._mutex:
                self._gate.paused(moves.pause)
        ready = set(moves.resume)
        for at, offset in moves.seek:
            if offset is None and not self._from_begin:
                # The client cannot seek to its starting point, which no other part knows.
                logger.error(
                    "%s has no committed offset, and its task was opened again: records that were delivered "
                    "before are not delivered again; set auto.offset.reset=earliest, which "
                    "session.consumer_settings() gives",
                    at,
                    extra=as_event("records_not_redelivered", source=at),
                )
                continue
            if not (yield from self._steps.seek(at, offset)):
                ready.remove(at)  # the consumer has not begun to fetch it yet: the next call tries again
        if ready:
            yield from self._steps.resume(sorted(ready))
            with self._mutex:
                self._gate.resumed(ready, tasks)
        return frozenset(at for at, _ in moves.seek)

    def committing(self, offsets: Offsets) -> Any:
        """Steps before a commit; returns the offsets that are new.

        Raises InvalidRequest for an offset beyond the consumer's position: it is left from before the partition was
        revoked and came back, and committing it would skip records.
        """
        if self._unopened:
            self._adopt()
        back = yield from self.moves()
        given = checked_shape(offsets)
        for at in back & given.keys():  # processed in an earlier opening, and delivered again from here on
            logger.info(
                "offset %d of %s is not committed, its records are delivered again",
                given.pop(at),
                at,
                extra=as_event("offset_not_committed", source=at),
            )
        tasks = self._host.opened()
        with self._mutex:
            owners = {at: tasks.get(self._host.task_of(at)) for at in self._gate.partitions & given.keys()}
            stale = {at for at, task in owners.items() if task and not self._gate.given_for(at, task.opening)}
        for at, task in owners.items():
            # An offset that is committed already needs no second commit: a loop may keep its offsets while it runs.
            if task is not None and given[at] <= task.positions.get(at, -1):
                del given[at]
        asked = [at for at, task in owners.items() if task is not None and at in given]
        # Only now is the client called, because a commit without news must cost no call.
        if asked:
            positions = yield from self._steps.positions(asked)
            for at in asked:
                # An offset from an earlier opening would skip records whose changes were discarded with it.
                if given[at] > positions[at] or at in stale:
                    raise InvalidRequest(
                        f"source offset {given[at]} of {at} is not of a record that the consumer delivered since the "
                        f"task was opened (the task stands at {positions[at]}): forget the offsets of a partition when "
                        "it is revoked or a commit fails, or commit after each poll"
                    )
        return given

    # -- background checks, without a call to the consumer ------------------------------------------------------------

    def monitor(self) -> None:
        """Warn of a loop that leaves restored partitions paused; raise BadConfig if another process commits."""
        now_ms = self._host.clock.monotonic_ms()
        if not self.in_use or now_ms < self._next_look_ms:
            return
        self._next_look_ms = now_ms + LOOK_MS
        tasks = self._host.opened()
        with self._mutex:
            waiting = self._gate.moves(tasks).resume
        if not waiting:
            self._ready_since_ms = -1
        elif self._ready_since_ms < 0:
            self._ready_since_ms = now_ms
        elif now_ms - self._ready_since_ms > OVERDUE_MS:
            self._ready_since_ms = now_ms
            logger.warning(
                "%s of application %s are restored but still paused: the loop must call session.commit() after every "
                "poll, also with nothing to commit, and poll for a second at most",
                ", ".join(map(str, waiting)),
                self._host.app,
                extra=as_event("consumer_does_not_commit", app=self._host.app, sources=[str(at) for at in waiting]),
            )
        if now_ms >= self._next_watch_ms:
            self._next_watch_ms = now_ms + WATCH_MS
            self._watch_commits(tasks)

    def _watch_commits(self, tasks: Mapping[TaskId, OpenTask]) -> None:
        """Our commits carry metadata: an offset without it that was not there at first is another client's commit."""
        with self._mutex:
            mine = [at for at in self._gate.partitions if self._host.task_of(at) in tasks]
        found = self._host.group.committed(mine)
        for at in mine:
            seen = found.get(at)
            first = self._first_seen.setdefault(at, seen)
            if seen is None or seen.metadata or seen == first:
                continue
            ours = tasks[self._host.task_of(at)].positions.get(at)
            raise BadConfig(
                [
                    f"offsets of group {self._host.app!r} are committed outside of this session: {at} was set to "
                    f"{seen.offset}, the state stands at {ours}: set enable.auto.commit=false and leave "
                    f"consumer.commit() out; before the next start set the group's offset of {at} back to {ours}"
                ]
            )

    def _adopt(self) -> None:
        opening = dict(self._unopened)
        self._host.adopt(frozenset(opening.values()), frozenset(at.topic for at in opening))
        with self._mutex:
            self._unopened = {at: task_id for at, task_id in self._unopened.items() if at not in opening}

    def _drive(self, consumer: Any, steps: Any) -> Any:
        from standfast.replication.kafka.consumer import drive

        return drive(consumer, steps)

    def _opened_soon(self) -> dict[TaskId, OpenTask]:
        try:
            self._host.wait_ready(OPEN_WAIT_S)
        except (NotReady, Unavailable):
            pass  # polling goes on meanwhile; commit() resumes the restored partitions
        return self._host.opened()
