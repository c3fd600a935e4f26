"""The placement topic of an application: its leader claims and publishes, all instances report and follow.

    claim    ── writer of `<app>-leader`, an epoch of the log: it fences the leader before
    publish  ── one transaction: the tasks of every instance, reasons, and the last record, which makes it valid
    explain  ── the reasons of a round that published nothing, if they changed; at most once a second
    report   ── this instance's tasks and lags; at most once a second unless its tasks changed
    order    ── the leader's order of a checkpoint; `ask` wishes for one
    look     ── the records since the last look, folded by `records.py`

Rules of this file: one thread at a time. It decides nothing about tasks; `placement` does. The topic is compacted, so
it keeps one record per instance; it is created by the first claim or report.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from standfast.replication.log import Log, LogReader, LogWriter, Outgoing, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.replication.placement.checkpoint import Order, Pointer, Request, order_records, request_record
from standfast.replication.placement.explained import Codes, codes_of, moves_record, reasons_record
from standfast.replication.placement.model import Assignment, Round
from standfast.replication.placement.records import (
    Generation,
    PlacementState,
    Report,
    assignment_records,
    instances_of,
    report_record,
)
from standfast.replication.programs import Shapes, bounded
from standfast.replication.topics.app_topics import PLACEMENT
from standfast.store.clock import Clock, real_clock
from standfast.store.errors import Fenced, Held, InvalidRequest, StateLost, Unavailable, UnknownStore
from standfast.store.failpoint import reach
from standfast.store.timestamps import duration_text

LEADER_SUFFIX = "-leader"
REPORT_INTERVAL_MS = 1_000
LOOK_RECORDS = 1_000
LOOK_WAIT_MS = 100
READ_WHOLE_MS = 10_000
POLICY = TopicPolicy(
    cleanup=frozenset({"compact"}),
    # Small segments, because every instance reads all of the topic at its start.
    extra={"segment.ms": "600000", "segment.bytes": "16777216", "min.cleanable.dirty.ratio": "0.1"},
)


class PlacementTopic:
    """One instance's part in the placement topic of application `app`; `instance` is its member id."""

    def __init__(self, log: Log, app: str, instance: str, clock: Clock, *, acceptable_lag: int) -> None:
        self._real_clock = real_clock()  # a read waits in real time, whatever the clock of the session is
        self._instance = instance
        self.source = TopicPartition(app + PLACEMENT, 0)
        self.state = PlacementState(self.source.topic, self._instance)
        self.leader_id = app + LEADER_SUFFIX  # the transactional id that the leader owns
        self._log = log
        self._app = app
        self._clock = clock
        self._near = acceptable_lag  # lags up to it count as equal: a standby that follows does not report each record
        self._reader: LogReader | None = None
        self._leader: LogWriter | None = None
        self._producer: LogWriter | None = None
        self._generation = 0
        self._published: set[str] = set()  # instances of the last own generation, which may not have been read yet
        self._reported: Report | None = None
        self._next_report_ms = 0
        self._explained: Round | None = None  # the round whose reasons are published, or were equal to those
        self._codes: Codes | None = None
        self._next_reasons_ms = 0

    @property
    def leads(self) -> bool:
        """Whether this instance claimed the lead, as far as it knows: the next `publish` finds out."""
        return self._leader is not None

    @property
    def has_reported(self) -> bool:
        """Whether this instance has written a report."""
        return self._reported is not None

    def look(self) -> PlacementState:
        """Apply the records at hand. A topic that does not exist counts as empty, one that was recreated begins again.

        Raises Unavailable, Corruption.
        """
        try:
            reader = self._reader or self._open()
            while reader is not None:
                found = [one for fetched in reader.fetch(LOOK_RECORDS) for one in fetched.records]
                self.state.apply(found)
                if len(found) < LOOK_RECORDS:
                    break
        except (StateLost, UnknownStore):
            self._forget()
        return self.state

    def look_whole(self) -> PlacementState | None:
        """The content up to the present end; None if there is no such topic, which this call never creates.

        Raises Unavailable, Corruption.
        """
        try:
            if self._reader is None and self._open() is None:
                return None
            self._read_whole()
        except (StateLost, UnknownStore):  # deleted meanwhile
            self._forget()
            return None
        return self.state

    @property
    def claimed(self) -> bool:
        """Whether this instance claimed the lead after the leader of the valid generation did."""
        return self._leader is not None and (self.state.valid is None or self._leader.epoch > self.state.valid.epoch)

    def claim(self, *, if_free: bool = True) -> bool:
        """Become the leader unless a live member is; then read the whole topic, to go on from its last generation.

        Without `if_free` a live leader is fenced. Returns whether this instance leads. Raises Fenced if another one
        claims at the same time.
        """
        if self._leader is not None:
            return True
        self._create()
        try:
            writer = self._log.writer(self.leader_id, group=self._app, owner=self._instance, if_free=if_free)
        except Held:
            return False
        try:
            self._read_whole()
        except BaseException:
            writer.close()
            raise
        self._leader = writer
        self._explained = self._codes = None
        self._generation = 0 if self.state.valid is None else self.state.valid.assignment.generation
        return True

    def publish(
        self,
        assignment: Assignment,
        members: Collection[str] = (),
        program: str = "",
        *,
        why: Round | None = None,
        shapes: Shapes | None = None,
        replaced: str = "",
        drains: bool = False,
    ) -> Generation:
        """Make this the assignment, under the next number, in one transaction; `why` is the round that led to it.

        `shapes`, `replaced` and `drains` as in Generation. Reports of instances that are neither `members` nor named by
        the assignment are deleted. Raises Fenced once another instance leads: this one does not any more;
        InvalidRequest if it never did, and for tasks that do not fit into records; nothing was published then.
        """
        if self._leader is None:
            raise InvalidRequest(f"instance {self._instance!r} does not lead application {self._app!r}: claim first")
        numbered = replace(assignment, generation=self._generation + 1)
        published = Generation(self._leader.epoch, numbered, program, bounded(shapes or {}), replaced, drains)
        named, now_ms = instances_of(assignment), self._clock.wall_ms()
        explained: list[Outgoing] = []
        if why is not None:
            moves = moves_record(why, published.stamp, self._instance, now_ms)
            explained = [reasons_record(why, now_ms), *([] if moves is None else [moves])]
        records = assignment_records(
            published,
            self.state.written | self._published,
            now_ms,
            forgotten=set(self.state.reporters()) - named - set(members),
            explained=explained,
        )
        reach("placement.decided")
        # Also if its answer is lost: a second generation under this number would be old news to those who have read it.
        self._generation, self._published = numbered.generation, self._published | named
        self._transact(records)
        self._published = named
        self.state.valid, self.state.valid_ms = published, now_ms  # its records come with a later look
        if why is not None:
            self._explained, self._codes = why, codes_of(why)
        return published

    def explain(self, why: Round) -> bool:
        """Publish the reasons of a round without a generation of its own, if they are others than before.

        Returns whether they were written; within REPORT_INTERVAL_MS they wait for a later call. Raises Fenced as
        `publish`.
        """
        if self._leader is None or why is self._explained:
            return False
        codes, now_ms = codes_of(why), self._clock.monotonic_ms()
        news = codes != self._codes
        if news and now_ms < self._next_reasons_ms:
            return False
        if news:
            self._transact([reasons_record(why, self._clock.wall_ms())])
            self._codes, self._next_reasons_ms = codes, now_ms + REPORT_INTERVAL_MS
        self._explained = why
        return news

    def order(self, order: Order, pointer: Pointer | None = None) -> None:
        """Publish the order of a checkpoint, and the pointer that it completes. Raises as `publish`."""
        if self._leader is None:
            raise InvalidRequest(f"instance {self._instance!r} does not lead application {self._app!r}: claim first")
        self._transact(order_records(order, self._clock.wall_ms(), pointer))
        reach("checkpoint.order")
        self.state.order = order  # its record comes with a later look
        self.state.complete = pointer or self.state.complete

    def wall_ms(self) -> int:
        """The wall clock of its records, in milliseconds."""
        return self._clock.wall_ms()

    def ask(self, request: Request) -> None:
        """Ask the leader for a checkpoint. Raises Unavailable."""
        if self._producer is None:
            self._producer = self._log.producer()
        self._producer.append({self.source: [request_record(request)]})

    def written_ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Ends of all written records of other topics, now. Raises Unavailable."""
        if self._reader is None:
            raise Unavailable(f"{self.source} is not read now: try again")
        return self._reader.written_ends(partitions)

    def resign(self) -> None:
        """Stop to lead; the claim stays with this member until another one takes it, or this one leaves the group."""
        if self._leader is not None:
            leader, self._leader = self._leader, None
            leader.close()

    def _transact(self, records: list[Outgoing]) -> None:
        assert self._leader is not None
        try:
            self._leader.transact({self.source: records})
        except Fenced:
            self.resign()
            raise

    def report(self, report: Report) -> bool:
        """Publish this instance's report if it says news; one with new lags only waits for its interval.

        A leader that did not see this instance yet may have deleted its report: it is written again then.

        Returns whether it was written. Raises Unavailable.
        """
        now_ms = self._clock.monotonic_ms()
        before = self._reported
        early = now_ms < self._next_report_ms
        if (
            before is not None
            and _tasks(before) == _tasks(report)
            and (early or not (self._has_news(before, report) or self.state.forgotten))
        ):
            return False
        self._create()
        self._write(report)
        self._reported, self._next_report_ms = report, now_ms + REPORT_INTERVAL_MS
        return True

    def close(self, last: Report | None = None) -> None:
        """Report that this instance has stopped, and close all; the claim ends as the member leaves the group."""
        try:
            if self._reported is not None:
                self._write(replace(last or Report(), stopped=True))
        finally:
            self.resign()
            self._forget()
            if self._producer is not None:
                self._producer.close()
                self._producer = None

    def _has_news(self, before: Report, now: Report) -> bool:
        """Whether lags are news: whether a copy has caught up, and else about how far it is from that.

        Of copies that have caught up only a change to about a sixteenth, which people see and the leader does not use,
        or to none: a copy that is at its end says so. From there a few records are no news, or a standby that follows
        would report in each interval.
        """
        old, new = {**before.stored, **before.lags}, {**now.stored, **now.lags}
        return old.keys() != new.keys() or any(
            self._step(old[task]) != self._step(lag) or (old[task] > 0 and lag == 0) for task, lag in new.items()
        )

    def _step(self, lag: int) -> tuple[int, int]:
        near = self._near
        return (0, lag.bit_length() // 4) if lag <= near else ((lag // max(near, 1)).bit_length(), 0)

    def _write(self, report: Report) -> None:
        if self._producer is None:
            self._producer = self._log.producer()
        record = report_record(self._instance, report, self._clock.wall_ms())
        try:
            self._producer.append({self.source: [record]})
        except UnknownStore as error:
            self._forget()
            raise Unavailable(f"{error}: the topic was deleted, it is created again: try again") from error

    def _create(self) -> None:
        if self._reader is None:
            self._log.admin.create_topic(self.source.topic, 1, POLICY)
            self._open()

    def _open(self) -> LogReader | None:
        """A reader at the begin of the topic; None while there is none."""
        if self._log.admin.describe_topic(self.source.topic) is None:
            return None
        self._forget()
        reader = self._log.reader()
        try:
            reader.assign({self.source: reader.bounds([self.source])[self.source].begin})
        except BaseException:
            reader.close()
            raise
        self._reader = reader
        return reader

    def _read_whole(self) -> None:
        """Read up to the present end: a leader must not decide by half of the records."""
        assert self._reader is not None
        end = self._reader.bounds([self.source])[self.source].end
        deadline_ms = self._real_clock.monotonic_ms() + READ_WHOLE_MS
        while self._reader.assignment()[self.source] < end:
            for fetched in self._reader.fetch(LOOK_RECORDS, LOOK_WAIT_MS):
                self.state.apply(fetched.records)
            if self._real_clock.monotonic_ms() > deadline_ms:
                raise Unavailable(
                    f"{self.source} could not be read to its end {end} within {duration_text(READ_WHOLE_MS)}"
                )

    def _forget(self) -> None:
        """Begin again with the next look: the topic is gone, or another one of the same name."""
        self.state = PlacementState(self.source.topic, self._instance)
        if self._reader is not None:
            reader, self._reader = self._reader, None
            reader.close()


def _tasks(report: Report) -> tuple[object, ...]:
    parts = report.running, report.restoring, report.lags.keys()
    return *parts, report.generation, report.workers, report.waits, report.checkpoint, report.no_room
