"""The members topic of a group: every member writes to it and reads it to its end, instead of a group coordinator.

    join, beat, leave, claim ──> <group>-standfast-members (1 partition, compacted) ──> Members (pure)

The order of claims in the topic decides which member may take over a writer: a claim carries the next epoch, and of two
with the same epoch only the first counts, so `if_free` has one winner. A member claims before it asks the broker to
fence. It may stall in between and fence late, after another member has claimed a later epoch and runs already. The late
member then sees the later claim, gives up and writes nothing. The fenced member, whose open transaction was aborted
whole, finds itself the owner of a task that it does not run, and opens it again. A race costs an opening, never a
record.

`notes_of` reads the notes of other groups once, from begin to end: a board would go on reading the topic of a group of
which this process is no member. A topic that this login may not read is no error there: READ of others is optional.

Rules of this file: one topic, one lock; every call reads to the end of the topic first, since unread records may have
changed everything. It must not know of the group's offsets.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TypeAlias

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition

from standfast.replication.kafka.admin import KafkaAdmin
from standfast.replication.kafka.bounds import bounds_of, written_end
from standfast.replication.kafka.cluster import Cluster
from standfast.replication.kafka.errors import PERMISSION, UNKNOWN_TOPIC, error_of
from standfast.replication.kafka.members import (
    MEMBERS_SUFFIX,
    Members,
    Owner,
    claim,
    member_key,
    member_value,
    note_key,
    removal_headers,
)
from standfast.replication.kafka.producer import ProducerClient
from standfast.replication.kafka.records import Columns, to_columns
from standfast.replication.leases import IDLE, Busy
from standfast.replication.log import EnteredView, GroupView, Notes, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.replication.permissions import TOPIC, Need, write_needs
from standfast.store.clock import Clock, SystemClock
from standfast.store.errors import BadConfig, Fenced, Held, InvalidRequest, StandfastError, Unavailable, UnknownStore
from standfast.store.names import is_topic
from standfast.store.outside import new_id
from standfast.store.timestamps import duration_text

BEAT_KNOWN_MS = 10_000  # KNOWN_MS for a beat, which detects a new topic by the offset of its own record
MessageHeaders: TypeAlias = Sequence[tuple[str, str | bytes | None]]
CHUNK = 1_000
NOW = 0  # a timestamp for the client: the time of writing
WAIT_MS = 100
LONG_POLL_MS = "500"  # a record ends the wait at once; at 10 ms there would be a hundred empty fetches a second
SLOW_MS = 200  # a read that took longer proves no silence of members
KNOWN_MS = 1_000  # how long the topic id counts as unchanged
# An answer takes less than a millisecond; without one by then, the admin client asks, which repeats and translates.
QUICK_S = 0.25
# LogAppendTime: members age old leases by one clock, the brokers', and not by the wall clocks of other members.
POLICY = TopicPolicy(
    cleanup=frozenset({"compact"}),
    delete_retention_ms=3_600_000,
    extra={
        "message.timestamp.type": "LogAppendTime",
        "segment.ms": "600000",
        "min.cleanable.dirty.ratio": "0.1",
    },
)


class Board:
    """One group's members topic. Several threads may use it."""

    def __init__(self, cluster: Cluster, admin: KafkaAdmin, group: str, clock: Clock) -> None:
        self.group = group
        self._cluster = cluster
        self._admin = admin
        self._clock = clock  # for leases
        self._wall = SystemClock()  # for waits for the broker, which take real time under any clock
        self._source = TopicPartition(group + MEMBERS_SUFFIX, 0)
        self._lock = threading.Lock()
        self._members = Members()
        self._sessions: dict[str, str] = {}  # of members that joined through this log
        self._consumer: Consumer | None = None
        self._producer: ProducerClient | None = None
        self._topic_id = ""
        self._described_ms = 0
        self._position = 0
        self._old_end = 0  # records below were written before this reader began
        self._blind = False  # the last call reached no broker
        self._closed = False

    # -- members ------------------------------------------------------------------------------------------------------

    def join(self, member_id: str, metadata: str, lease_ms: int) -> GroupView:
        """Become a member, or stay a member with new metadata."""
        with self._lock:
            self._refresh(create=True)
            self._remove_run_out()
            lease = self._members.leases.get(member_id)
            session = self._sessions.get(member_id)
            if session is None or lease is None or lease.session != session:
                session = self._sessions[member_id] = new_id("member", 12)
            elif lease.lease_ms > lease_ms:
                lease_ms = lease.lease_ms  # the process that renews it may not know of a shorter one yet
            plan = lease.plan + 1 if lease is not None else 1
            value = member_value("join", session, lease_ms, self._members.generation, metadata, plan)
            self._write(member_key(member_id), value)
            view = self._members.view()
            return EnteredView(*view) if lease is None else view

    def beat(self, member_id: str, lease_ms: int | None, busy: Busy = IDLE) -> GroupView:
        """Renew a lease, for `lease_ms` from now on. Raises Fenced if the member was removed."""
        with self._lock:
            if not self._can_beat(member_id):
                self._refresh()
            lease = self._members.leases.get(member_id)
            session = self._sessions.get(member_id, lease.session if lease is not None else None)
            if lease is not None and lease.session == session:
                generation, plan = self._members.generation, lease.plan
                lease_ms = lease.lease_ms if lease_ms is None else lease_ms
                value = member_value("beat", lease.session, lease_ms, generation, lease.metadata, plan, busy)
                self._write(member_key(member_id), value)
                lease = self._members.leases.get(member_id)
            self._remove_run_out()
            if lease is None or lease.session != session or member_id not in self._members.leases:
                self._sessions.pop(member_id, None)
                raise Fenced(
                    f"{member_id!r} is not a member of group {self.group!r} (its lease ran out, it joined again "
                    "elsewhere, or it never joined): give up its tasks and join again"
                )
            return self._members.view()

    def view(self) -> GroupView:
        """Live members now."""
        with self._lock:
            self._refresh()
            self._remove_run_out()
            return self._members.view()

    def leave(self, member_id: str, only: Callable[[str], bool] | None = None) -> None:
        """Stop being a member; no error for an id that is not a member. See `Group.leave`."""
        with self._lock:
            self._refresh()
            self._remove_run_out()
            session = self._sessions.pop(member_id, None)
            lease = self._members.leases.get(member_id)
            if lease is None or session not in (None, lease.session):
                return
            if only is None:
                self._write(member_key(member_id), None)
            elif only(lease.metadata):
                # With the offset that was read: the removal is void for a member that has joined or renewed since.
                self._write(member_key(member_id), None, removal_headers(lease))

    # -- owners of writers --------------------------------------------------------------------------------------------

    def owners(self) -> dict[str, str]:
        """Transactional id -> id of the member that last claimed it."""
        with self._lock:
            self._refresh()
            return {name: owner.member_id for name, owner in sorted(self._members.owners.items())}

    def owner(self, transactional_id: str) -> Owner | None:
        """The owner of a transactional id now; None if no member has claimed it."""
        with self._lock:
            self._refresh()
            return self._members.owners.get(transactional_id)

    def claim(self, transactional_id: str, owner: str, *, if_free: bool) -> int:
        """Claim a transactional id; returns the epoch. Raises Held if `if_free` and another live member owns it."""
        with self._lock:
            self._refresh(create=True)
            while True:
                self._remove_run_out()
                held = self._members.owners.get(transactional_id)
                if if_free and held is not None and held.member_id != owner:
                    lease = self._members.leases.get(held.member_id)
                    if lease is not None:
                        left_ms = lease.deadline_ms - self._clock.monotonic_ms()
                        raise Held(
                            f"{transactional_id!r} belongs to {held.member_id!r}, a live member of group "
                            f"{self.group!r} with {duration_text(left_ms)} of lease left: "
                            "claim it when that member has left or its lease has run out"
                        )
                wanted = Owner(owner, (held.epoch if held is not None else 0) + 1)
                self._write(*claim(transactional_id, *wanted))
                if self._members.owners.get(transactional_id) == wanted:
                    return wanted.epoch

    # -- notes --------------------------------------------------------------------------------------------------------

    def notes(self) -> Notes:
        """The notes of the group now."""
        with self._lock:
            self._refresh()
            return dict(self._members.notes)

    def note(self, notes: Mapping[tuple[str, str], str | None]) -> None:
        """Write these notes, in their order; None removes one. None at all creates no topic."""
        if not notes:
            return
        with self._lock:
            self._refresh(create=True)
            texts = [None if text is None else text.encode() for text in notes.values()]
            self._write_all([note_key(*key) for key in notes], texts)

    @property
    def connected(self) -> bool:
        """Whether a claim needs no new connection."""
        return self._producer is not None

    def connect(self) -> None:
        """Connect for the next claim, if a broker answers; else the claim says why not."""
        with self._lock, suppress(StandfastError):
            if not self._closed:
                self._connected()

    def close(self) -> None:
        """Close the clients without leaving the group."""
        with self._lock:
            self._closed = True
            self._cluster.release(self._consumer, self._producer)
            self._consumer, self._producer = None, None

    # -- the topic ----------------------------------------------------------------------------------------------------

    def _can_beat(self, member_id: str) -> bool:
        """Whether a beat may be written before the topic is read: unread records can at most make it void.

        Reading to the beat itself shows that. On a crowded machine, saving one question to the broker halves the delay.
        """
        known = self._wall.monotonic_ms() - self._described_ms < BEAT_KNOWN_MS
        return known and not self._blind and self._consumer is not None and member_id in self._members.leases

    def _remove_run_out(self) -> None:
        for member_id in self._members.run_out(self._clock.monotonic_ms()):
            lease = self._members.leases.get(member_id)  # `_write` reads up to its record, and may so remove several
            if lease is not None:
                self._write(member_key(member_id), None, removal_headers(lease))

    def _refresh(self, *, create: bool = False) -> None:
        """Read to the end of the topic; a topic that does not exist counts as empty."""
        started_ms = self._wall.monotonic_ms()
        try:
            with self._there():
                end = self._known_end()
                if end < self._position:
                    if not self._open(create):
                        return
                    end = written_end(self._cluster, self._source)
                if self._old_end < 0:
                    self._old_end = end
                self._read_to(end)
        except Unavailable:
            self._blind = True
            raise
        waited_ms = self._wall.monotonic_ms() - started_ms
        if waited_ms > SLOW_MS:  # a broker that stalls for a moment delays the beats of other members as well
            self._members.hold(waited_ms, self._clock.monotonic_ms())
        if self._blind:
            # While no broker answered, missing beats prove nothing about their members.
            self._blind = False
            self._members.extend(self._clock.monotonic_ms())

    def _known_end(self) -> int:
        """The end of the topic in one request, if its id was checked lately; else, or if it is gone, -1."""
        if self._consumer is None or self._wall.monotonic_ms() - self._described_ms >= KNOWN_MS:
            return -1
        end = self._quick_end()
        if end >= 0:
            return end
        try:
            return written_end(self._cluster, self._source)
        except UnknownStore:
            return -1

    def _quick_end(self) -> int:
        """The end of the topic, asked by the client that writes to it; -1 if it gets no answer at once.

        Each write at least once asks twice (see `Fence.check`). Measured: the answers of the admin client come through
        two other threads and a future, which took 0.3 ms of processor time each. The reading client cannot ask: its
        connection waits for records, up to half a second. No transaction writes here, so every record is committed.
        """
        if self._producer is None or self._blind:
            return -1
        try:
            end = self._producer.end(self._source, QUICK_S)
        except KafkaException:
            return -1
        return -1 if end is None else end

    def _open(self, create: bool) -> bool:
        described = self._cluster.describe([self._source.topic])[self._source.topic]
        if described is None and create:
            self._admin.create_topic(self._source.topic, 1, POLICY)
            described = self._cluster.describe([self._source.topic])[self._source.topic]
        self._described_ms = self._wall.monotonic_ms()
        topic_id = "" if described is None else str(described.topic_id)
        if topic_id != self._topic_id:  # the first look, or the topic was deleted or recreated
            self._members, self._position, self._old_end = Members(), 0, -1
            self._topic_id = topic_id
            self._cluster.release(self._consumer)
            self._consumer = None
        if topic_id and self._consumer is None:
            self._position = bounds_of(self._cluster, [self._source], committed=False)[self._source].begin
            self._listen()
        return bool(topic_id)

    def _listen(self) -> Consumer:
        """Go on reading with a new consumer."""
        self._cluster.release(self._consumer)
        self._consumer = None
        self._consumer = self._cluster.consumer(isolation_level="read_uncommitted", fetch_wait_max_ms=LONG_POLL_MS)
        with self._cluster.translating(f"reading {self._source}"):
            self._consumer.assign([KafkaPartition(*self._source, self._position)])
        return self._consumer

    def _read_to(self, end: int) -> None:
        now_ms = self._wall.monotonic_ms()
        deadline_ms, anew_ms = now_ms + self._cluster.timeout_ms, now_ms + self._cluster.timeout_ms // 2
        consumer = self._consumer
        while consumer is not None and self._position < end:
            with self._cluster.translating(f"reading {self._source}"):
                found: list[Message] = consumer.consume(1, WAIT_MS / 1_000)
                found += consumer.consume(CHUNK, 0)
            position = self._position
            good: list[Message] = []
            for message in found:
                error = message.error()
                if error is None:
                    good.append(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    self._position = max(self._position, message.offset() or 0)
                elif message.topic() is not None:
                    need = Need(TOPIC, self._source.topic, "READ")
                    raise self._cluster.translate(error, f"reading {self._source}", need)
            records = [record for record in to_columns(good) if record.offset >= position]
            now_ms = self._clock.monotonic_ms()
            self._members.apply([one for one in records if one.offset < self._old_end], now_ms, old=True)
            self._members.apply([one for one in records if one.offset >= self._old_end], now_ms, old=False)
            if records:
                self._position = max(self._position, records[-1].offset + 1)
            elif (now_ms := self._wall.monotonic_ms()) > deadline_ms:
                silence = duration_text(self._cluster.timeout_ms)
                raise Unavailable(
                    f"{self._cluster.where} sent no record of {self._source} for {silence} at position "
                    f"{self._position}, its end is {end}: try again"
                )
            elif now_ms > anew_ms:
                # Measured: after a broker stalled for long, a consumer may never read from it again; a new one does.
                consumer, anew_ms = self._listen(), deadline_ms

    def _connected(self) -> ProducerClient:
        if self._producer is None:
            self._producer = self._cluster.connected(self._cluster.producer())
        return self._producer

    def _write(self, key: bytes, value: bytes | None, headers: MessageHeaders = ()) -> None:
        """Write one record and read up to it."""
        self._write_all([key], [value], headers)

    def _write_all(self, keys: Sequence[bytes], values: Sequence[bytes | None], headers: MessageHeaders = ()) -> None:
        """Write these records and read up to the last one; `headers` are those of each."""
        count = len(keys)
        producer = self._connected()
        columns = Columns(tuple(keys), tuple(values), (NOW,) * count, (headers,) * count if headers else None)
        try:
            taken = producer.produce(self._source, columns, 0, self._cluster.timeout_ms)
            producer.flush(self._cluster.timeout_s + 1)
            found = producer.delivered().get(self._source)
            if found is None or found.next_offset is None or found.error is not None or taken < count:
                refused = None if found is None else found.error
                raise KafkaException(refused or KafkaError(KafkaError._TIMED_OUT))
        except KafkaException as error:
            self._blind = True
            self._producer = None
            why = self._cluster.reason(producer, error, transactional=False)
            self._cluster.release(producer)
            with self._there():
                what = f"writing to {self._source}"
                raise self._cluster.translate(why, what, *write_needs([self._source])) from error
        at = found.next_offset - 1
        if at < self._position:  # the topic was deleted and recreated: the next call describes it first
            self._described_ms = -BEAT_KNOWN_MS
        with self._there():
            self._read_to(at + 1)

    @contextmanager
    def _there(self) -> Iterator[None]:
        """Turn UnknownStore into Unavailable: the group's own topic existed, so the caller did nothing wrong."""
        try:
            yield
        except UnknownStore as error:
            self._described_ms = -BEAT_KNOWN_MS
            raise Unavailable(f"{error}: the topic was deleted, or the broker has just started: try again") from error


def notes_of(cluster: Cluster, groups: Iterable[str]) -> dict[str, Notes | None]:
    """The notes of each group; None if this login may not read its members topic."""
    topics = {group: group + MEMBERS_SUFFIX for group in groups}
    there = _readable(cluster, [topic for topic in topics.values() if is_topic(topic)])
    return {
        group: _notes_in(cluster, topic) if there.get(topic) else None if there.get(topic, False) is None else {}
        for group, topic in topics.items()
    }


def _readable(cluster: Cluster, topics: list[str]) -> dict[str, bool | None]:
    """Whether each topic exists; None if this login may not know."""
    found: dict[str, bool | None] = {}
    if not topics:
        return found
    answers = cluster.answers("describing members topics", lambda left_s: cluster.describe_later(topics, left_s))
    for topic, answer in answers.items():
        if not isinstance(answer, KafkaException):
            found[topic] = True
        elif error_of(answer).code() in PERMISSION:
            found[topic] = None
        elif error_of(answer).code() in UNKNOWN_TOPIC:
            found[topic] = False
        else:
            raise cluster.translate(answer, f"describing topic {topic!r}", Need(TOPIC, topic, "READ")) from answer
    return found


def _notes_in(cluster: Cluster, topic: str) -> Notes | None:
    source = TopicPartition(topic, 0)
    try:
        position, end = bounds_of(cluster, [source], committed=False)[source]
        return _notes_up_to(cluster, source, position, end)
    except UnknownStore:
        return {}  # deleted meanwhile
    except BadConfig:
        return None  # a permission was taken away meanwhile
    except InvalidRequest:
        return {}  # another program writes to it: its group has no claims that could be understood


def _notes_up_to(cluster: Cluster, source: TopicPartition, position: int, end: int) -> Notes | None:
    members, clock = Members(), SystemClock()
    deadline_ms = clock.monotonic_ms() + cluster.timeout_ms
    consumer = cluster.consumer(isolation_level="read_uncommitted")
    try:
        with cluster.translating(f"reading {source}"):
            consumer.assign([KafkaPartition(*source, position)])
        while position < end:
            with cluster.translating(f"reading {source}"):
                found: list[Message] = consumer.consume(1, WAIT_MS / 1_000)
                found += consumer.consume(CHUNK, 0)
            good: list[Message] = []
            for message in found:
                error = message.error()
                if error is None:
                    good.append(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    position = max(position, message.offset() or 0)
                elif error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    return None
                elif message.topic() is not None:  # others are about the consumer's group, which it never joins
                    raise cluster.translate(error, f"reading {source}", Need(TOPIC, source.topic, "READ"))
            members.apply(to_columns(good), clock.monotonic_ms(), old=True)
            if good:
                position = max(position, (good[-1].offset() or 0) + 1)
            elif clock.monotonic_ms() > deadline_ms:
                raise Unavailable(
                    f"{cluster.where} sent no record of {source} for {duration_text(cluster.timeout_ms)}: try again"
                )
    finally:
        cluster.release(consumer)
    return members.notes
