"""A stand-in for the Kafka client's consumer, over the simulated log: what an external consumer of the product uses.

    consume, poll ──> late itself?  ──> joins, asks for its share, sends a heartbeat ──> callbacks ──> records

Like the client: callbacks run within a poll alone; a callback that assigns nothing, or fails, is followed by an
assignment at the committed offsets; a member hears of a rebalance with a heartbeat, and returns records of partitions
that it has lost until then; a partition stays paused when it is given back; no seek before the first fetch; errors of
the log are kept from the application.

Rules of this file: messages, partitions and errors are the client's own classes. Each question to the log is an effect
of `Calls.run`; a client has no thread of its own, so `beats` says whether its heartbeats would come.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, OFFSET_INVALID, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition

from simulator.calls import Calls
from simulator.log.access import Access
from simulator.log.cluster import SimLog
from simulator.log.coordinator import NoMember, Reading, Share
from standfast.replication.log import Committed, ConsumerMember
from standfast.replication.offsets import TopicPartition
from standfast.store.clock import Clock
from standfast.store.errors import Fenced, Unavailable

Callback = Callable[[Any, list[Any]], object]
CREATED = 1  # the type of timestamps that producers set


class NoAnswer(Exception):
    """The group's coordinator does not answer: asked again with the next poll."""


class _Slot:
    """An assigned partition. `position` is None until its committed offset is known; `given`: see `position` below."""

    def __init__(self, offset: int) -> None:
        self.begun = False
        self.move(offset)

    def move(self, offset: int) -> None:
        """Go on at an offset, or at a place that the client has a number for."""
        self.given = OFFSET_INVALID
        self.place, self.position = offset, offset if offset >= 0 else None


class SimConsumer:
    """See the header. `settings` are those of the client."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        log: SimLog,
        *,
        clock: Clock | None = None,
        calls: Calls | None = None,
        beats: Callable[[], bool] = lambda: True,
    ) -> None:
        if settings.get("enable.auto.commit", True) is not False:
            raise ValueError("this consumer commits nothing by itself: enable.auto.commit must be False")
        self._access, self._log = Access(log, clock, calls), log
        self._group: str = settings["group.id"]
        self._coordinator = log.coordinator(self._group)
        by_broker = settings.get("group.protocol") == "consumer"
        strategy = str(settings.get("partition.assignment.strategy", "range,roundrobin"))
        self._eager = not (by_broker or strategy.startswith("cooperative"))
        self._early = settings.get("auto.offset.reset", "largest") in ("earliest", "smallest", "beginning")
        self._session_ms = int(settings.get("session.timeout.ms", 45_000))
        self._poll_ms = int(settings.get("max.poll.interval.ms", 300_000))
        self._beat_ms = int(settings.get("heartbeat.interval.ms", 3_000))
        self._beats = beats
        self._slots: dict[TopicPartition, _Slot] = {}
        self._paused: dict[TopicPartition, None] = {}
        self._events: list[Message] = []
        self._callbacks: dict[str, Callback | None] = {}
        self._topics: tuple[str, ...] = ()
        self._member: Reading | None = None
        self.name, self._generation, self._next_beat_ms = "", -1, 0
        self._rejoins = self._waits = False  # for the coming generation, for its share
        self._handled = False  # by the callback that runs
        self._turn = 0
        self._closed = False

    # -- the group ----------------------------------------------------------------------------------------------------

    def subscribe(
        self,
        topics: list[str],
        on_assign: Callback | None = None,
        on_revoke: Callback | None = None,
        on_lost: Callback | None = None,
    ) -> None:
        """Read these topics as a member of the group, from the next poll on."""
        self._check_open()
        self._topics = tuple(topics)
        self._callbacks = {"assign": on_assign, "revoke": on_revoke, "lost": on_lost or on_revoke}

    def unsubscribe(self) -> None:
        """Give everything back, and leave the group."""
        self._topics, member = (), self._member
        self._give_back(frozenset(self._slots))
        self._member = None
        if member is not None:
            with suppress(NoAnswer):
                self._ask("leave", lambda: self._coordinator.leave(self.name, self._now_ms()))

    def close(self) -> None:
        """Leave the group; twice is fine."""
        if not self._closed:
            try:
                self.unsubscribe()
            finally:
                self._closed = True

    def consumer_group_metadata(self) -> bytes:
        """Group, generation and member, in the client's own layout."""
        joined = self._generation if self._member is not None else -1
        name = self.name if joined >= 0 else ""
        return b"CGMDv2:" + struct.pack("=i", joined) + f"{self._group}\0{name}\0\x01".encode()

    # -- records ------------------------------------------------------------------------------------------------------

    def consume(self, num_messages: int = 1, timeout: float = 0) -> list[Message]:
        """So many messages at most, of all that have come when the time is over."""
        return self._consume(num_messages, timeout, None)

    def poll(self, timeout: float = 0) -> Message | None:
        """The next message; None if none has come within the time."""
        return next(iter(self._consume(1, timeout, self._has_news)), None)

    def assignment(self) -> list[KafkaPartition]:
        """The partitions that are assigned now."""
        return _of_client(self._slots)

    def assign(self, partitions: list[KafkaPartition]) -> None:
        """Read these partitions alone."""
        self._check_protocol(eager=True)
        self._slots = {_place(one): _Slot(one.offset) for one in partitions}

    def incremental_assign(self, partitions: list[KafkaPartition]) -> None:
        """Read these partitions, too."""
        self._check_protocol(eager=False)
        if any(_place(one) in self._slots for one in partitions):
            raise KafkaException(KafkaError(KafkaError._CONFLICT, "a partition is assigned already"))
        self._slots |= {_place(one): _Slot(one.offset) for one in partitions}

    def pause(self, partitions: list[KafkaPartition]) -> None:
        """Return no messages of these partitions."""
        self._paused |= dict.fromkeys(map(_place, partitions))

    def resume(self, partitions: list[KafkaPartition]) -> None:
        """Return messages of these partitions again."""
        for one in partitions:
            self._paused.pop(_place(one), None)

    def seek(self, partition: KafkaPartition) -> None:
        """Go on at an offset."""
        slot = self._slots.get(_place(partition))
        if slot is None or not slot.begun:
            raise KafkaException(KafkaError(KafkaError._STATE, "the partition is not fetched yet"))
        slot.move(partition.offset)

    def position(self, partitions: list[KafkaPartition]) -> list[KafkaPartition]:
        """The offsets after the last messages; OFFSET_INVALID where none came since an assignment or a seek."""
        found = ((_place(one), self._slots.get(_place(one))) for one in partitions)
        return [KafkaPartition(*at, OFFSET_INVALID if slot is None else slot.given) for at, slot in found]

    def committed(self, partitions: list[KafkaPartition], timeout: float = 0) -> list[KafkaPartition]:
        """The group's offsets; OFFSET_INVALID where there is none."""
        found = self._access.call("log.committed", lambda: dict(self._log.group(self._group).committed))
        known = {at: one.offset for at, one in found.items()}
        return [KafkaPartition(*_place(one), known.get(_place(one), OFFSET_INVALID)) for one in partitions]

    def commit(self, *, offsets: list[KafkaPartition], asynchronous: bool = False) -> None:
        """Commit offsets, as an application of ours must not."""
        found = {_place(one): Committed(one.offset, "") for one in offsets}

        def effect() -> None:
            self._log.check_member(self._group, ConsumerMember(self._generation, self.name))
            self._log.commit(self._group, found)

        try:
            self._access.write("log.commit", effect, found)
        except Fenced as error:
            raise KafkaException(KafkaError(KafkaError.ILLEGAL_GENERATION, str(error))) from error

    # -- a poll -------------------------------------------------------------------------------------------------------

    def _consume(self, most: int, timeout_s: float, ready: Callable[[], bool] | None) -> list[Message]:
        self._check_open()
        self._serve()
        if timeout_s > 0:
            self._access.calls.wait(timeout_s * 1_000, ready)
            self._serve()
        events, self._events = self._events[:most], self._events[most:]
        return events + self._fetch(most - len(events))

    def _serve(self) -> None:
        member, now_ms = self._member, self._now_ms()
        if member is not None and now_ms > member.late:
            error = KafkaError(KafkaError._MAX_POLL_EXCEEDED, "the application polled too late")
            self._events.append(Message(error=error))
            self._lose()
        elif member is not None:
            member.polled_ms = now_ms
        with suppress(NoAnswer):  # and not what a callback raises
            while self._topics and self._step():
                pass

    def _step(self) -> bool:
        """Do what the group needs next; False: nothing, for now."""
        now_ms = self._now_ms()
        try:
            if self._member is None:
                about = (self._topics, self._eager, self._session_ms, self._poll_ms, self._beats)
                self._member, self.name = Reading(*about, now_ms, now_ms), f"reader-{self._log.next_number():06}"
                self._join(self._member)
            elif self._rejoins:
                self._join(self._member)
            elif self._waits:
                found = self._ask("sync", lambda: self._coordinator.sync(self.name, self._now_ms()))
                if found is None:
                    return False
                self._generation, self._waits, self._next_beat_ms = found[0], False, now_ms + self._beat_ms
                self._take(found[1])
            elif now_ms < self._next_beat_ms:
                return False
            elif self._ask("heartbeat", lambda: self._coordinator.heartbeat(self.name, self._now_ms())):
                self._rejoins = True
                if self._eager:
                    self._give_back(frozenset(self._slots))
            else:
                self._next_beat_ms = now_ms + self._beat_ms
                return False
        except NoMember:
            self._lose()
        return True

    def _join(self, member: Reading) -> None:
        """Ask to be a member of the coming generation; without an answer, the question for the share asks again."""
        self._rejoins, self._waits = False, True
        member.has = frozenset() if self._eager else frozenset(self._slots)
        self._ask("join", lambda: self._coordinator.join(self.name, member, self._now_ms()))

    def _take(self, share: Share) -> None:
        """Give back the partitions that others get, and read the new ones."""
        if self._eager:
            self._call("assign", share)
            return
        has = frozenset(self._slots)
        self._rejoins = bool(has - share)
        self._give_back(has - share)
        self._call("assign", share - has)

    def _give_back(self, gone: Share, kind: str = "revoke") -> None:
        try:
            if gone:
                self._call(kind, gone)
        finally:
            for at in gone:
                self._slots.pop(at, None)

    def _lose(self) -> None:
        """Another member may have the partitions already."""
        self._member, self._rejoins, self._waits = None, False, False
        self._give_back(frozenset(self._slots), "lost")

    def _call(self, kind: str, partitions: Share) -> None:
        """Call back; the client assigns what a callback has not."""
        callback, given = self._callbacks[kind], _of_client(partitions)
        self._handled = False
        try:
            if callback is not None:
                callback(self, given)
        finally:
            if kind == "assign" and not self._handled:
                (self.assign if self._eager else self.incremental_assign)(given)

    def _check_protocol(self, *, eager: bool) -> None:
        self._check_open()
        if self._topics and eager is not self._eager:
            raise KafkaException(KafkaError(KafkaError._STATE, "the group's protocol takes the other kind of assign()"))
        self._handled = True

    def _ask(self, what: str, effect: Callable[[], Any]) -> Any:
        try:
            return self._access.write(f"group.consumer_{what}", effect)
        except Unavailable as error:
            raise NoAnswer from error

    def _now_ms(self) -> int:
        return self._log.clock.monotonic_ms()

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("Consumer closed")

    # -- a fetch ------------------------------------------------------------------------------------------------------

    def _fetch(self, most: int) -> list[Message]:
        turn = [at for at in self._slots if at not in self._paused]
        for slot in self._slots.values():
            slot.begun = True
        if not turn or most < 1:
            return []
        self._turn += 1
        first = self._turn % len(turn)
        try:
            return self._access.calls.run("log.fetch", lambda: self._look(turn[first:] + turn[:first], most))
        except Unavailable:
            return []

    def _look(self, turn: list[TopicPartition], most: int) -> list[Message]:
        self._log.settle()
        unknown, found = self._log.unknown_offsets(self._group), list[Message]()
        for at in turn:
            partition, slot = self._log.find(at), self._slots[at]
            if partition is None or (self._log.outages and self._log.outage([at]) is not None):
                continue
            if slot.position is None and slot.place not in (OFFSET_BEGINNING, OFFSET_END):
                if at in unknown:
                    continue  # the client waits until they are settled
                known = self._log.group(self._group).committed.get(at)
                slot.position = None if known is None else known.offset
            end = partition.visible(self._now_ms())
            if slot.position is None or not partition.begin <= slot.position <= partition.end:
                early = slot.place == OFFSET_BEGINNING or (self._early and slot.place != OFFSET_END)
                slot.position = partition.begin if early else end
            first = partition.index(slot.position)
            for one in range(first, min(partition.index(end), first + most - len(found))):
                offset, stamp = partition.offsets[one], (CREATED, partition.times[one])
                key, value, headers = partition.keys[one], partition.values[one], list(partition.headers[one]) or None
                about: dict[str, Any] = {"key": key, "value": value, "headers": headers, "timestamp": stamp}
                found.append(Message(topic=at.topic, partition=at.partition, offset=offset, **about))
                slot.position = slot.given = offset + 1
        return found

    def _has_news(self) -> bool:
        self._log.settle()
        read = ((at, slot) for at, slot in self._slots.items() if at not in self._paused)
        return any(
            slot.position is None or slot.position < partition.visible(self._now_ms())
            for at, slot in read
            if (partition := self._log.find(at)) is not None
        )


def _place(one: KafkaPartition) -> TopicPartition:
    return TopicPartition(one.topic, one.partition)


def _of_client(partitions: Iterable[TopicPartition]) -> list[KafkaPartition]:
    return [KafkaPartition(*at) for at in sorted(partitions)]
