"""The members topic of a group: written, and read to its end, by every member.

    join, beat, leave, claim ──> <group>-standfast-members (1 partition, compacted) ──> Members (pure)

Who may take a writer over is decided by the order of claims in the topic: a claim carries the next epoch, and of two
with the same epoch only the first counts, so `if_free` has one winner. The claim comes before the broker is asked to
fence. Its holder may stall in between and fence late, after somebody claimed a later epoch and runs already: it then
sees the later claim, gives up and writes nothing, and the one it fenced, whose open transaction was aborted whole,
finds itself the owner of a task that it does not run and opens it again. A race costs an opening, never a record.

Rules of this file: one topic, one lock; every call reads to the end of the topic first, since what was not read may
have changed everything. It must not know of the group's offsets.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from standfast.replication.kafka.admin import KafkaAdmin
from standfast.replication.kafka.cluster import Cluster
from standfast.replication.kafka.members import (
    MEMBERS_SUFFIX,
    Members,
    Owner,
    claim,
    member_key,
    member_value,
    removal_headers,
)
from standfast.replication.kafka.records import to_columns
from standfast.replication.log import EnteredView, GroupView, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.replication.permissions import TOPIC, Need, write_needs
from standfast.store.clock import Clock, SystemClock
from standfast.store.errors import Fenced, Held, Unavailable, UnknownStore

BEAT_KNOWN_MS = 10_000  # the same for a beat, which finds a new topic by its offset
MessageHeaders: TypeAlias = Sequence[tuple[str, str | bytes | None]]
CHUNK = 1_000
WAIT_MS = 100
LONG_POLL_MS = "500"  # a record ends the wait at once; a hundred empty fetches a second do nothing else
SLOW_MS = 200  # a look that took longer proves no silence of members
KNOWN_MS = 1_000  # how long a topic is believed to be the one it was
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
    """One group's members topic. May be used by several threads."""

    def __init__(self, cluster: Cluster, admin: KafkaAdmin, group: str, clock: Clock) -> None:
        self.group = group
        self._cluster = cluster
        self._admin = admin
        self._clock = clock  # leases
        self._wall = SystemClock()  # waiting for the broker
        self._source = TopicPartition(group + MEMBERS_SUFFIX, 0)
        self._lock = threading.Lock()
        self._members = Members()
        self._sessions: dict[str, str] = {}  # of members that joined through this log
        self._consumer: Consumer | None = None
        self._producer: Producer | None = None
        self._topic_id = ""
        self._described_ms = 0
        self._position = 0
        self._old_end = 0  # what lies below was written before this reader began
        self._blind = False  # the last call found no broker
        self._closed = False

    # -- members ------------------------------------------------------------------------------------------------------

    def join(self, member_id: str, metadata: str, lease_ms: int) -> GroupView:
        """Become a member, or stay one with new metadata."""
        with self._lock:
            self._refresh(create=True)
            self._remove_run_out()
            lease = self._members.leases.get(member_id)
            session = self._sessions.get(member_id)
            if session is None or lease is None or lease.session != session:
                session = self._sessions[member_id] = uuid.uuid4().hex[:12]
            plan = lease.plan + 1 if lease is not None else 1
            value = member_value("join", session, lease_ms, self._members.generation, metadata, plan)
            self._write(member_key(member_id), value)
            view = self._members.view()
            return EnteredView(*view) if lease is None else view

    def beat(self, member_id: str) -> GroupView:
        """Renew a lease. Raises Fenced if the member was removed."""
        with self._lock:
            if not self._can_beat(member_id):
                self._refresh()
            lease = self._members.leases.get(member_id)
            session = self._sessions.get(member_id, lease.session if lease is not None else None)
            if lease is not None and lease.session == session:
                generation, plan = self._members.generation, lease.plan
                value = member_value("beat", lease.session, lease.lease_ms, generation, lease.metadata, plan)
                self._write(member_key(member_id), value)
                lease = self._members.leases.get(member_id)
            self._remove_run_out()
            if lease is None or lease.session != session or member_id not in self._members.leases:
                self._sessions.pop(member_id, None)
                raise Fenced(
                    f"{member_id!r} is not a member of group {self.group!r} (its lease ran out, it joined anew "
                    "elsewhere, or it never joined): give up its tasks and join again"
                )
            return self._members.view()

    def view(self) -> GroupView:
        """Live members now."""
        with self._lock:
            self._refresh()
            self._remove_run_out()
            return self._members.view()

    def leave(self, member_id: str) -> None:
        """Stop being a member; one that is none is fine."""
        with self._lock:
            self._refresh()
            self._remove_run_out()
            session = self._sessions.pop(member_id, None)
            lease = self._members.leases.get(member_id)
            if lease is not None and session in (None, lease.session):
                self._write(member_key(member_id), None)

    # -- owners of writers --------------------------------------------------------------------------------------------

    def owners(self) -> dict[str, str]:
        """Transactional id -> member that last claimed it."""
        with self._lock:
            self._refresh()
            return {name: owner.member_id for name, owner in sorted(self._members.owners.items())}

    def owner(self, transactional_id: str) -> Owner | None:
        """Who holds a transactional id now."""
        with self._lock:
            self._refresh()
            return self._members.owners.get(transactional_id)

    def claim(self, transactional_id: str, owner: str, *, if_free: bool) -> int:
        """Take a transactional id; returns the epoch. Raises Held if `if_free` and its owner is another live member."""
        with self._lock:
            self._refresh(create=True)
            while True:
                self._remove_run_out()
                held = self._members.owners.get(transactional_id)
                if if_free and held is not None and held.member_id != owner:
                    lease = self._members.leases.get(held.member_id)
                    if lease is not None:
                        raise Held(
                            f"{transactional_id!r} belongs to {held.member_id!r}, a live member of group "
                            f"{self.group!r} with {lease.deadline_ms - self._clock.monotonic_ms()} ms of lease left: "
                            "ask again when it has left or run out"
                        )
                wanted = Owner(owner, (held.epoch if held is not None else 0) + 1)
                self._write(*claim(transactional_id, *wanted))
                if self._members.owners.get(transactional_id) == wanted:
                    return wanted.epoch

    def close(self) -> None:
        """Release the clients. It does not leave the group."""
        with self._lock:
            self._closed = True
            if self._consumer is not None:
                self._consumer.close()
            self._consumer, self._producer = None, None

    # -- the topic ----------------------------------------------------------------------------------------------------

    def _can_beat(self, member_id: str) -> bool:
        """Whether a beat may be written before anything is read: what was not read may only make it void.

        Reading to the beat itself shows that. On a crowded machine each question to the broker less halves the delay.
        """
        known = self._wall.monotonic_ms() - self._described_ms < BEAT_KNOWN_MS
        return known and not self._blind and self._consumer is not None and member_id in self._members.leases

    def _remove_run_out(self) -> None:
        for member_id in self._members.run_out(self._clock.monotonic_ms()):
            lease = self._members.leases.get(member_id)  # what is written is read, and may remove several
            if lease is not None:
                self._write(member_key(member_id), None, removal_headers(lease))

    def _refresh(self, *, create: bool = False) -> None:
        """Read to the end of the topic; a topic that does not exist is empty."""
        started_ms = self._wall.monotonic_ms()
        try:
            with self._there():
                end = self._known_end()
                if end < self._position:
                    if not self._open(create):
                        return
                    end = self._cluster.written_end(self._source)
                if self._old_end < 0:
                    self._old_end = end
                self._read_to(end)
        except Unavailable:
            self._blind = True
            raise
        waited_ms = self._wall.monotonic_ms() - started_ms
        if waited_ms > SLOW_MS:  # a broker that stands still for a moment keeps beats back as well
            self._members.hold(waited_ms, self._clock.monotonic_ms())
        if self._blind:
            # Silence proves nothing while nobody could be heard.
            self._blind = False
            self._members.extend(self._clock.monotonic_ms())

    def _known_end(self) -> int:
        """The end of a topic that was there lately, in one question; -1 if it has to be looked for."""
        if self._consumer is None or self._wall.monotonic_ms() - self._described_ms >= KNOWN_MS:
            return -1
        try:
            return self._cluster.written_end(self._source)
        except UnknownStore:
            return -1

    def _open(self, create: bool) -> bool:
        described = self._cluster.describe([self._source.topic])[self._source.topic]
        if described is None and create:
            self._admin.create_topic(self._source.topic, 1, POLICY)
            described = self._cluster.describe([self._source.topic])[self._source.topic]
        self._described_ms = self._wall.monotonic_ms()
        topic_id = "" if described is None else str(described.topic_id)
        if topic_id != self._topic_id:  # new to us, deleted, or made anew
            self._members, self._position, self._old_end = Members(), 0, -1
            self._topic_id = topic_id
            if self._consumer is not None:
                self._consumer.close()
                self._consumer = None
        if topic_id and self._consumer is None:
            self._position = self._cluster.bounds([self._source], committed=False)[self._source].begin
            self._listen()
        return bool(topic_id)

    def _listen(self) -> Consumer:
        """Read on with a new consumer."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None
        self._consumer = self._cluster.consumer(isolation_level="read_uncommitted", fetch_wait_max_ms=LONG_POLL_MS)
        self._consumer.assign([KafkaPartition(*self._source, self._position)])
        return self._consumer

    def _read_to(self, end: int) -> None:
        now_ms = self._wall.monotonic_ms()
        deadline_ms, anew_ms = now_ms + self._cluster.timeout_ms, now_ms + self._cluster.timeout_ms // 2
        consumer = self._consumer
        while consumer is not None and self._position < end:
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
                raise Unavailable(
                    f"{self._cluster.where}: {self._source} gave nothing for {self._cluster.timeout_ms} ms at position "
                    f"{self._position}, its end is {end}: try again"
                )
            elif now_ms > anew_ms:
                # Measured: a consumer may never again read from a broker that stood still for long; a new one does.
                consumer, anew_ms = self._listen(), deadline_ms

    def _write(self, key: bytes, value: bytes | None, headers: MessageHeaders = ()) -> None:
        """Write one record and read to it."""
        if self._producer is None:
            self._producer = self._cluster.connected(self._cluster.producer())
        producer, outcome = self._producer, dict[Any, Message]()
        try:
            producer.produce(self._source.topic, value, key, 0, outcome.__setitem__, headers=list(headers))
            self._cluster.flush(producer, self._cluster.timeout_s + 1)
            if None not in outcome:
                raise KafkaException(next(iter(outcome), KafkaError(KafkaError._TIMED_OUT)))
        except KafkaException as error:
            self._blind = True
            self._producer = None
            why = self._cluster.reason(producer, error, transactional=False)
            with self._there():
                what = f"writing to {self._source}"
                raise self._cluster.translate(why, what, *write_needs([self._source])) from error
        at = outcome[None].offset() or 0
        if at < self._position:  # the topic was deleted and made again: look for it before anything else
            self._described_ms = -BEAT_KNOWN_MS
        with self._there():
            self._read_to(at + 1)

    @contextmanager
    def _there(self) -> Iterator[None]:
        """The topic is the group's own, and was there: one that a broker does not know is no fault of the caller."""
        try:
            yield
        except UnknownStore as error:
            self._described_ms = -BEAT_KNOWN_MS
            raise Unavailable(f"{error}: it was deleted, or the broker has just started: try again") from error
