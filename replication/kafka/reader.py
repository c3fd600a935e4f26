"""The reader of a Kafka log: our own small buffer for each assigned partition, filled from the client's one queue.

    feed (feed.py) ──> pull: pieces, by partition ──> slots: pieces, end ──> serve: a fair share of each

    at end      the client reported the end at this offset, or the last record stands just before the broker's end
    lost        the broker has no such offset: its bounds decide between StateLost and going on
    recreated   the reader asks for the topic's id about every second, because the client would read a deleted and
                recreated topic of the same name as if it were the old one

`fetch` waits a moment even with no timeout while a partition that is not at its end has not answered yet (it was just
assigned, or its next batch is under way), so that a loop which ends at an empty fetch does not end early. A partition
that made it wait `PATIENCE_MS` causes no further wait before it answers.

Rules of this file: a position moves only by records that fetch returned. The client's own pause drops its prefetched
records, so a paused partition keeps its buffer, and the reader pauses the client only when more records arrive. A seek
is a new assignment, because the client's seek fails on a partition that was just assigned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from standfast.replication.fetch_limits import LIMITS
from standfast.replication.kafka.bounds import bounds_of
from standfast.replication.kafka.cluster import Cluster
from standfast.replication.kafka.errors import AUTHENTICATION, BROKEN, PERMISSION, UNKNOWN_TOPIC, error_of, translated
from standfast.replication.kafka.feed import Feed, FeedEvent, News, Piece
from standfast.replication.kafka.native_feed import open_feed
from standfast.replication.kafka.slot import ReaderSlot
from standfast.replication.log import Fetched, Record
from standfast.replication.offsets import Bounds, TopicPartition
from standfast.replication.permissions import TOPIC, Need
from standfast.store.clock import SystemClock
from standfast.store.errors import Closed, InvalidRequest, StandfastError, StateLost, Unavailable
from standfast.store.names import few
from standfast.store.timestamps import duration_text

PATIENCE_MS = 1_000
WAIT_MS = 50
TOPIC_CHECK_MS = 1_000
STUCK_MS = 5_000


class KafkaReader:
    """LogReader of a Kafka log."""

    def __init__(self, cluster: Cluster, closed: Callable[[KafkaReader], None], *, narrow: bool = False) -> None:
        self._cluster = cluster
        self._narrow = narrow
        self._forget = closed
        self._clock = SystemClock()
        self._slots: dict[TopicPartition, ReaderSlot] = {}
        self._feed: Feed | None = None  # made with the first assignment: many readers only ask for bounds
        self._asked: set[str] = set()  # topics whose leaders the client knows
        self._closed = False
        self._turn = 0
        self._checks: dict[str, Future[Any]] = {}
        self._checked_ms = 0

    # -- assignment ---------------------------------------------------------------------------------------------------

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Replace the assignment; every partition begins at its position, not paused. Raises UnknownStore.

        An empty assignment creates the client, which can connect meanwhile.
        """
        slots = self._resolve(positions)
        self.remove(list(self._slots))
        self._client()
        self._begin(slots)

    def assignment(self) -> Mapping[TopicPartition, int]:
        """Assigned partitions with their positions now."""
        return {source: slot.position for source, slot in self._slots.items()}

    def add(self, positions: Mapping[TopicPartition, int]) -> None:
        """Assign further partitions. One that is assigned already is InvalidRequest: use seek."""
        twice = [str(TopicPartition(*source)) for source in positions if source in self._slots]
        if twice:
            raise InvalidRequest(f"{few(twice)} already assigned to this reader: move it with seek")
        self._begin(self._resolve(positions))

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """Unassign these partitions; no error for one that is not assigned."""
        gone = [self._slots.pop(source) for source in dict.fromkeys(partitions) if source in self._slots]
        if gone:
            self._release(gone)
            sources = [slot.source for slot in gone]
            self._cluster.run("unassigning", lambda: self._client().unassign(sources))

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Move the position of an assigned partition."""
        slot = self._slot(partition)
        self._restart(slot, _checked(partition, offset))

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetch no records of these partitions until they are resumed; positions stay."""
        for slot in [self._slot(source) for source in partitions]:
            slot.paused = True

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetch these partitions again."""
        for slot in [self._slot(source) for source in partitions]:
            slot.paused = False
            slot.late = False
            slot.heard_ms = self._clock.monotonic_ms()  # the silence of a pause must not count as stuck
            self._release([slot])

    def bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Bounds]:
        """Begin and last stable offset of each partition now."""
        self._check_open()
        return bounds_of(self._cluster, partitions, operation="READ")

    def written_ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """See LogReader: the high watermark."""
        self._check_open()
        found = bounds_of(self._cluster, partitions, committed=False, operation="READ")
        return {source: bounds.end for source, bounds in found.items()}

    def epoch_tags(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, str]:
        """Empty: Kafka has leader epochs, which its client compares while it reads."""
        return {}

    def epoch_ends(self, tags: Mapping[TopicPartition, str]) -> dict[TopicPartition, int]:
        """Empty, as in `epoch_tags`."""
        return {}

    def close(self) -> None:
        """Close the client. Twice is fine."""
        if not self._closed:
            self._closed = True
            if self._feed is not None:
                self._cluster.run("closing", self._feed.close)
            self._feed = None
            self._forget(self)

    def forked(self) -> None:
        """As in `forks.Owned`; called by its log."""
        self._closed = True

    # -- fetching -----------------------------------------------------------------------------------------------------

    def fetch(self, max_records: int, timeout_ms: int = 0) -> list[Fetched]:
        """See LogReader. Raises StateLost, also with reason "topic-recreated"; UnknownStore if the topic is gone."""
        self._check_open()
        if max_records < 1:
            raise InvalidRequest(f"fetch needs max_records of 1 or more, got {max_records}")
        began_ms = self._clock.monotonic_ms()
        more = False
        while True:
            self._pull(max_records, more=more)
            now_ms = self._clock.monotonic_ms()
            self._monitor(now_ms)
            waited_ms = now_ms - began_ms
            silent = [slot for slot in self._slots.values() if not (slot.answered or slot.paused or slot.late)]
            if not silent or waited_ms >= PATIENCE_MS:
                _wait_no_more(silent)
                found = self._serve(max_records)
                if found:
                    return found
                silent = [slot for slot in self._slots.values() if slot.hungry and not slot.late]
                if waited_ms >= PATIENCE_MS:
                    _wait_no_more(silent)
                    silent = []
            limit_ms = max(timeout_ms, PATIENCE_MS) if silent else timeout_ms
            if waited_ms >= limit_ms:
                return []
            # One message ends this wait; the next turn pulls the others, which the client has by then.
            news = self._consume(1, min(limit_ms - waited_ms, WAIT_MS))
            self._ingest(news)
            more = bool(news)

    def fetch_ready(self, max_records: int) -> list[Fetched]:
        """See LogReader. It waits for no answer of a broker, but sends the requests for topics' ids."""
        self._check_open()
        self._pull(max_records, buffered=0)
        self._check_topics(self._clock.monotonic_ms())
        if any(slot.event is not None or (slot.error is not None and not slot.paused) for slot in self._slots.values()):
            return []
        return self._serve(max_records)

    def _pull(self, wanted: int, buffered: int = LIMITS.slot_records, *, more: bool = False) -> None:
        """Take messages from the client until `wanted` or `buffered` records are here, or `LIMITS.slot_bytes`.

        With `more` at least once: the first record of a partition has just come, with others behind it.
        """
        if not self._slots:
            return
        held = sum(slot.count for slot in self._slots.values() if not slot.paused)
        hungry = any(slot.hungry for slot in self._slots.values())
        size = 0
        while more or (held < max(wanted, buffered) and size < LIMITS.slot_bytes and (hungry or held < wanted)):
            more = False
            news = self._consume(self._client().chunk, 0)
            if not news:
                return
            size += self._ingest(news)
            held = sum(slot.count for slot in self._slots.values() if not slot.paused)
            hungry = any(slot.hungry for slot in self._slots.values())

    def _consume(self, count: int, timeout_ms: int) -> Sequence[News]:
        if not self._slots:
            self._clock.sleep_ms(timeout_ms)
            return ()
        feed = self._client()
        return self._cluster.run("fetching", lambda: feed.consume(count, timeout_ms))

    def _ingest(self, news: Sequence[News]) -> int:
        """Take pieces into their slots, note events; returns the bytes of keys and values.

        It keeps records behind a failing event, since they come only once.
        """
        if not news:
            return 0
        now_ms = self._clock.monotonic_ms()
        size = 0
        trouble: StandfastError | None = None
        for one in news:
            if isinstance(one, Piece):
                size += self._keep(one, now_ms)
                continue
            try:
                self._note(one, now_ms)
            except StandfastError as found:
                trouble = trouble or found
        if trouble is not None:
            raise trouble
        return size

    def _keep(self, piece: Piece, now_ms: int) -> int:
        source, records = piece
        slot = self._slots.get(source)
        if slot is None:
            return 0  # unassigned meanwhile
        if records.first_offset < slot.frontier:  # fetched before a seek
            records = records[records.index_of(slot.frontier) :]
            if not len(records):
                return 0
        slot.pieces.append(records)
        slot.count += len(records)
        slot.frontier = records.last_offset + 1
        slot.end = -1
        slot.answered = True
        slot.late = slot.kicked = False
        slot.heard_ms = now_ms
        if slot.paused and not slot.held:
            slot.held = True
            self._cluster.run("pausing", lambda: self._client().pause(slot.source))
        return records.payload_bytes

    def _note(self, event: FeedEvent, now_ms: int) -> None:
        source, error, offset = event
        code = error.code()
        slot = self._slots.get(source)
        if slot is not None and code == KafkaError._PARTITION_EOF:
            end = offset or 0
            if end >= slot.frontier:
                slot.frontier = slot.end = end
                slot.answered = True
                slot.late = slot.kicked = False
                slot.heard_ms = now_ms
        elif slot is not None and code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            slot.event = (error, offset)
        elif code in UNKNOWN_TOPIC:
            self._checked_ms = 0  # deleted or recreated: ask for its id now
        elif slot is not None and code in PERMISSION:
            # Kept, because the client reports it once, and the partition returns no records from here on.
            slot.error = self._cluster.translate(error, f"reading {source}", Need(TOPIC, source.topic, "READ"))
        elif slot is not None or (code in AUTHENTICATION and code not in PERMISSION):
            what = f"reading {source}" if slot is not None else "reading"
            if code in AUTHENTICATION:
                raise self._cluster.translate(error, what)
            raise translated(error, f"{self._cluster.where}: {what}")

    # -- handing out --------------------------------------------------------------------------------------------------

    def _serve(self, max_records: int) -> list[Fetched]:
        """A fair share of every buffer, without partitions that have nothing new for the caller."""
        turn = [slot for slot in self._slots.values() if not slot.paused]
        if turn:
            first = self._turn % len(turn)
            turn = turn[first:] + turn[:first]
            self._turn += 1
        taken: dict[TopicPartition, int] = dict.fromkeys((slot.source for slot in turn), 0)
        left, more = max_records, [slot for slot in turn if slot.count]
        while more and left > 0:
            share = max(1, left // len(more))
            for slot in more:
                count = min(share, left, slot.count - taken[slot.source])
                taken[slot.source] += count
                left -= count
            more = [slot for slot in more if taken[slot.source] < slot.count]
        found = (self._settle(slot, taken[slot.source]) for slot in turn)
        return [one for one in found if one is not None]

    def _settle(self, slot: ReaderSlot, count: int) -> Fetched | None:
        """Hand out the first records of a slot; None if there are none and the caller knows its end already."""
        records: Sequence[Record] = []
        position = slot.position
        if count:
            records = taken = slot.take(count)
            position = taken.last_offset + 1
        if not slot.count:
            if slot.end != slot.frontier and records and self._stands_at_end(slot):
                slot.end = slot.frontier
            position = slot.frontier
        at_end = not slot.count and slot.end == slot.frontier
        if position == slot.position and (slot.told_end or not at_end):
            return None
        slot.position = position
        slot.told_end = at_end
        return Fetched(slot.source, records, position, at_end)

    def _stands_at_end(self, slot: ReaderSlot) -> bool:
        """Whether the last record stands just before the end that the last fetch reported: no marker follows it."""
        end = self._cluster.run("fetching", lambda: self._client().fetched_end(slot.source))
        return end == slot.frontier

    # -- looking after ------------------------------------------------------------------------------------------------

    def _monitor(self, now_ms: int) -> None:
        """Raise a partition's error; ask for topics' ids, and for the bounds of partitions that stay silent."""
        self._check_topics(now_ms)
        for slot in self._slots.values():
            if slot.event is not None:
                self._judge(slot, *slot.event)
            if slot.hungry and now_ms - slot.heard_ms >= STUCK_MS and slot.error is None:
                self._unstick(slot, now_ms)
            if slot.error is not None and not slot.paused:
                slot.error.sources = (slot.source,)
                raise slot.error

    def _check_topics(self, now_ms: int) -> None:
        if self._checks:
            if not all(future.done() for future in self._checks.values()):
                return
            checks, self._checks = self._checks, {}
            for topic, future in checks.items():
                self._check_topic(topic, future)
        elif now_ms - self._checked_ms >= TOPIC_CHECK_MS and self._slots:
            self._checked_ms = now_ms
            with self._cluster.translating("describing topics"):
                self._checks = self._cluster.describe_later({slot.source.topic for slot in self._slots.values()})

    def _check_topic(self, topic: str, future: Future[Any]) -> None:
        slots = [slot for slot in self._slots.values() if slot.source.topic == topic]
        try:
            topic_id = str(self._cluster.answer(future).topic_id)
        except KafkaException as error:
            if not slots:
                return
            if error_of(error).code() in BROKEN:
                return  # the next check asks again, and waits for brokers that are away
            if error_of(error).code() in UNKNOWN_TOPIC:
                gone = self._cluster.unknown(topic)
                gone.sources = tuple(slot.source for slot in slots)
                raise gone from error
            need = Need(TOPIC, topic, "READ")
            raise self._cluster.translate(error, f"describing topic {topic!r}", need) from error
        for slot in slots:
            if slot.topic_id != topic_id:
                slot.error = _recreated(slot.source)

    def _unstick(self, slot: ReaderSlot, now_ms: int) -> None:
        """Ask the broker for the bounds of a partition that has sent nothing for long, not even its end."""
        slot.heard_ms = now_ms
        slot.error = self._lost(slot)
        if slot.error is not None:
            return
        bounds = bounds_of(self._cluster, [slot.source], operation="READ")[slot.source]
        if slot.frontier >= bounds.end:  # at the end, or a transaction below this position is still open
            slot.end = slot.frontier
            slot.answered = True
        elif not slot.kicked:
            self._restart(slot, slot.frontier, keep=True)
            slot.kicked = True
        else:
            stuck = Unavailable(
                f"{self._cluster.where} sent no record of {slot.source} for {duration_text(2 * STUCK_MS)} at position "
                f"{slot.frontier}, though the partition holds {bounds.begin} to {bounds.end}: try again"
            )
            stuck.sources = (slot.source,)
            raise stuck

    def _judge(self, slot: ReaderSlot, error: KafkaError, offset: int | None) -> None:
        """Judge an offset that the broker refused: its records are lost, have changed, or are there after all."""
        slot.event = None
        slot.error = self._lost(slot)
        # The client compares leader epochs, and says so only in its text. Or the log was cut below us and grew again.
        if slot.error is None and (offset == slot.frontier or "truncation detected" in error.str()):
            slot.error = _diverged(slot, error)
        elif slot.error is None:
            self._restart(slot, slot.frontier, keep=True)

    def _lost(self, slot: ReaderSlot) -> StateLost | None:
        """The error for a position that the broker cannot have, or None; it may lie above an open transaction."""
        source = slot.source
        if str(self._cluster.check([source], "READ")[source.topic].topic_id) != slot.topic_id:
            return _recreated(source)
        bounds = bounds_of(self._cluster, [source], operation="READ")[source]
        written = bounds_of(self._cluster, [source], committed=False, operation="READ")[source]
        if bounds.begin <= slot.frontier <= written.end:
            return None
        return StateLost(
            f"{source}: position {slot.frontier} is outside of the log, begin {bounds.begin} to end "
            f"{bounds.end}: reinitialise from the beginning",
            reason="offset-out-of-range",
        )

    # -- helpers ------------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"reader of {self._cluster.where} was closed: open a new one")

    def _client(self) -> Feed:
        self._check_open()
        if self._feed is None:
            self._feed = open_feed(self._cluster, narrow=self._narrow)
        return self._feed

    def _resolve(self, positions: Mapping[TopicPartition, int]) -> list[ReaderSlot]:
        self._check_open()
        topics = self._cluster.check(positions, "READ")
        now_ms = self._clock.monotonic_ms()
        return [
            ReaderSlot(TopicPartition(*source), str(topics[source[0]].topic_id), _checked(source, position), now_ms)
            for source, position in positions.items()
        ]

    def _begin(self, slots: list[ReaderSlot]) -> None:
        if slots:
            feed = self._client()
            for topic in {slot.source.topic for slot in slots} - self._asked:
                self._cluster.reading(f"describing topic {topic!r}", partial(feed.learn, topic))
                self._asked.add(topic)
            positions = {slot.source: slot.position for slot in slots}
            self._cluster.run("assigning", lambda: feed.assign(positions))
            self._slots.update({slot.source: slot for slot in slots})

    def _restart(self, slot: ReaderSlot, offset: int, *, keep: bool = False) -> None:
        """Go on reading at an offset; `keep` the records buffered before it."""
        feed = self._client()
        self._release([slot])
        self._cluster.run("unassigning", lambda: feed.unassign([slot.source]))
        self._cluster.run("assigning", lambda: feed.assign({slot.source: offset}))
        now_ms = self._clock.monotonic_ms()
        if keep:
            slot.heard_ms = now_ms
            return
        slot.error = slot.event = None
        slot.start(offset, now_ms)

    def _release(self, slots: Iterable[ReaderSlot]) -> None:
        """Undo the client's pause, which would last beyond the next assignment."""
        held = [slot for slot in slots if slot.held]
        for slot in held:
            slot.held = False
            with self._cluster.translating("resuming"):
                self._client().resume(slot.source)

    def _slot(self, source: TopicPartition) -> ReaderSlot:
        self._check_open()
        slot = self._slots.get(source)
        if slot is None:
            held = few(self._slots) or "nothing"
            raise InvalidRequest(f"{TopicPartition(*source)} is not assigned to this reader, it has {held}")
        return slot


def _recreated(source: TopicPartition) -> StateLost:
    return StateLost(
        f"{source}: topic {source.topic!r} was deleted and recreated since this reader was assigned: "
        "reinitialise from its beginning",
        reason="topic-recreated",
    )


def _diverged(slot: ReaderSlot, error: KafkaError) -> StateLost:
    return StateLost(
        f"{slot.source}: the log has other records below {slot.frontier} now ({error.str()})", reason="diverged"
    )


def _wait_no_more(silent: Iterable[ReaderSlot]) -> None:
    for slot in silent:
        slot.late = True


def _checked(source: TopicPartition, position: int) -> int:
    if not isinstance(position, int) or position < 0:
        raise InvalidRequest(f"{TopicPartition(*source)}: position {position!r} is not an offset, use 0 or more")
    return position
