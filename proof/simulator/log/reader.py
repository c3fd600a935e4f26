"""The reader of the simulated log.

Rules of this file: it holds positions and nothing else; it fetches nothing ahead. A fetch is one look, and after a wait
one more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from simulator.log.access import Access
from simulator.log.partition import Partition
from standfast.replication.log import Fetched
from standfast.replication.offsets import Bounds, TopicPartition
from standfast.store.errors import Closed, InvalidRequest, StandfastError, StateLost, Unavailable
from standfast.store.names import few

T = TypeVar("T")
CHUNK_RECORDS = 2_000  # of one read of the embedded log
STUCK_MS = 10_000  # how long a reader of a log like Kafka is silent before it says that a partition does not answer


class _Slot:
    """An assigned partition. `told_end`: the caller was given `position` as the end.

    `data` are those of the topic now, while the reader has not noticed yet that it is another one than `partition`.
    """

    __slots__ = ("data", "partition", "paused", "position", "refused", "source", "told_end")

    def __init__(self, source: TopicPartition, partition: Partition, position: int) -> None:
        self.source = source
        self.partition = self.data = partition
        self.paused = self.told_end = False
        self.start(position)

    def start(self, position: int) -> None:
        """Go on at a position; a client of Kafka asks the broker for it at once, and hears later if that refused it."""
        self.position, self.told_end = position, False
        self.refused = not self.data.begin <= position <= self.data.end


class _Taken:
    """Indexes of the records that a fetch takes of one partition, and the end that it saw."""

    __slots__ = ("at_end", "end", "first", "last", "stop")

    def __init__(self, slot: _Slot, now_ms: int) -> None:
        self.end = slot.data.visible(now_ms)
        self.first = self.stop = slot.data.index(slot.position)
        self.last = slot.data.index(self.end)
        self.at_end = False

    def take(self, most: int) -> int:
        """Take up to so many more records; returns their number."""
        before = self.stop
        self.stop = max(min(before + most, self.last), before)
        self.at_end = self.stop >= self.last
        return self.stop - before


class SimReader:
    """LogReader of the simulated log."""

    def __init__(self, access: Access, closed: Callable[[SimReader], None]) -> None:
        self._access = access
        self._forget = closed
        self._log = access.log
        self._slots: dict[TopicPartition, _Slot] = {}
        self._turn = 0
        self._idle_version = -1  # the log's version at which a look found nothing
        self._checked_ms = 0
        self._closed = False

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Replace the assignment; every partition begins at its position, not paused. Raises UnknownStore."""
        self._slots = self._resolve(positions)
        self._idle_version = -1

    def assignment(self) -> Mapping[TopicPartition, int]:
        """Assigned partitions with their positions now."""
        return {source: slot.position for source, slot in self._slots.items()}

    def add(self, positions: Mapping[TopicPartition, int]) -> None:
        """Assign further partitions. One that is assigned already is InvalidRequest: use seek."""
        twice = [str(TopicPartition(*source)) for source in positions if source in self._slots]
        if twice:
            raise InvalidRequest(f"{few(twice)} already assigned to this reader: move it with seek")
        self._slots.update(self._resolve(positions))
        self._idle_version = -1

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """Unassign these partitions; no error for one that is not assigned."""
        for source in partitions:
            self._slots.pop(source, None)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Move the position of an assigned partition."""
        slot = self._slot(partition)
        slot.start(_checked(partition, offset))
        self._idle_version = -1

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetch no records of these partitions until they are resumed; positions stay."""
        for slot in [self._slot(source) for source in partitions]:
            slot.paused = True

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetch these partitions again."""
        for slot in [self._slot(source) for source in partitions]:
            slot.paused = False
        self._idle_version = -1

    def fetch(self, max_records: int, timeout_ms: int = 0) -> list[Fetched]:
        """See LogReader. Raises StateLost, also with reason "topic-recreated"; UnknownStore if the topic is gone."""
        self._check_open()
        if max_records < 1:
            raise InvalidRequest(f"fetch needs max_records of 1 or more, got {max_records}")
        found = self._access.calls.run("log.fetch", lambda: self._look(max_records))
        if found or timeout_ms <= 0:
            return found
        self._access.calls.wait(timeout_ms, self._has_news)
        self._check_open()
        return self._access.calls.run("log.fetch", lambda: self._look(max_records))

    def fetch_ready(self, max_records: int) -> list[Fetched]:
        """See LogReader: errors are left to `fetch` in a log like Kafka."""
        try:
            return self.fetch(max_records)
        except StandfastError:
            if self._log.kafka and not self._closed:
                return []
            raise

    def bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Bounds]:
        """Begin and end offsets for readers."""
        self._check_open()
        clock = self._log.clock
        return self._found("log.bounds", partitions, lambda one: Bounds(one.begin, one.visible(clock.monotonic_ms())))

    def written_ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """See LogReader."""
        self._check_open()
        return self._found("log.written_ends", partitions, lambda one: one.end)

    def epoch_tags(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, str]:
        """See LogReader."""
        if self._log.kafka:
            return {}

        def effect() -> dict[TopicPartition, str]:
            tags = {}
            for source, position in positions.items():
                epochs = one.epochs if (one := self._log.find(source)) is not None else []
                tags[source] = next((tag for begin, tag in reversed(epochs) if begin < position), "")
            return {source: tag for source, tag in tags.items() if tag}

        return self._access.call("log.epoch_tags", effect)

    def epoch_ends(self, tags: Mapping[TopicPartition, str]) -> dict[TopicPartition, int]:
        """See LogReader."""
        if self._log.kafka:
            return {}

        def effect() -> dict[TopicPartition, int]:
            ends = {}
            for source, tag in tags.items():
                one = self._log.find(source)
                if one is not None and tag:
                    at = max((at for at, epoch in enumerate(one.epochs) if epoch[1] == tag), default=-1)
                    later = one.epochs[at + 1][0] if at + 1 < len(one.epochs) else one.end
                    ends[source] = 0 if at < 0 else later
            return ends

        return self._access.call("log.epoch_ends", effect)

    def close(self) -> None:
        """Close the reader. Twice is fine."""
        self._closed = True
        self._forget(self)

    # -- one look -----------------------------------------------------------------------------------------------------

    def _look(self, max_records: int) -> list[Fetched]:
        self._log.settle()
        version, now_ms = self._log.version, self._log.clock.monotonic_ms()
        turn = [slot for slot in self._slots.values() if not slot.paused]
        if self._log.kafka:
            self._check_topics(now_ms)
            turn = self._answering(turn, now_ms)
            for slot in turn:
                self._check_range(slot)
        elif version == self._idle_version:
            return []
        if turn:  # begin with another partition each time, or the first ones would get every small fetch
            first = self._turn % len(turn)
            turn = turn[first:] + turn[:first]
            self._turn += 1
        taken = self._take(turn, max_records, now_ms)
        found = [one for slot, piece in taken.items() if (one := _settled(slot, piece)) is not None]
        if not found:
            self._idle_version = version
        return found

    def _take(self, turn: list[_Slot], max_records: int, now_ms: int) -> dict[_Slot, _Taken]:
        """A fair share of each partition. A log like the embedded one looks no further than it needs."""
        taken: dict[_Slot, _Taken] = {}
        if self._log.kafka:
            taken = {slot: _Taken(slot, now_ms) for slot in turn}
            for piece in taken.values():
                piece.take(0)
            turn = [slot for slot in turn if not taken[slot].at_end]
        left = max_records
        while turn and left > 0:
            share, more = max(1, left // len(turn)), []
            for slot in turn:
                if left <= 0:
                    break
                if slot not in taken:
                    self._check_gone(slot)
                    self._check_range(slot)
                    taken[slot] = _Taken(slot, now_ms)
                left -= taken[slot].take(min(share, left, CHUNK_RECORDS))
                if not taken[slot].at_end:
                    more.append(slot)
            turn = more
        return taken

    def _check_topics(self, now_ms: int) -> None:
        """Of a log like Kafka: look for recreated topics from time to time; until then they look like the old ones."""
        looks = now_ms - self._checked_ms >= self._log.id_check_ms
        if looks:
            self._checked_ms = now_ms
        for slot in self._slots.values():
            found = self._log.find(slot.source)
            if found is None or (looks and not slot.paused):
                self._check_gone(slot)
            slot.data = found or slot.data

    def _answering(self, slots: list[_Slot], now_ms: int) -> list[_Slot]:
        """The partitions whose leader answers. Raises Unavailable for one that has not for long."""
        answering = []
        for slot in slots:
            outage = self._log.outage([slot.source]) if self._log.outages else None
            if outage is None:
                answering.append(slot)
            elif now_ms - outage.since_ms >= STUCK_MS:
                error = Unavailable(f"{self._log.where} sent no record of {slot.source}: try again")
                error.sources = (slot.source,)
                raise error
        return answering

    def _check_gone(self, slot: _Slot) -> None:
        now = self._log.find(slot.source)
        if now is slot.partition:
            return
        error: StandfastError = self._log.unknown(*slot.source)
        if now is not None:
            error = StateLost(
                f"{slot.source}: topic {slot.source.topic!r} was deleted and recreated since this reader was assigned: "
                "reinitialise from its beginning",
                reason="topic-recreated",
            )
        error.sources = (slot.source,)
        raise error

    def _check_range(self, slot: _Slot) -> None:
        partition = slot.data
        in_range = partition.begin <= slot.position <= partition.end
        if in_range and not (slot.refused and self._log.kafka):
            return
        self._check_gone(slot)
        lost = StateLost(
            f"{slot.source}: position {slot.position} is outside of the log, begin {partition.begin} to end "
            f"{partition.end}: reinitialise from the beginning",
            reason="diverged" if in_range else "offset-out-of-range",
        )
        lost.sources = (slot.source,)
        raise lost

    def _has_news(self) -> bool:
        self._log.settle()
        if not self._log.kafka and self._log.version == self._idle_version:
            return False
        now_ms = self._log.clock.monotonic_ms()
        for slot in self._slots.values():
            if self._log.find(slot.source) is not slot.partition:
                return True
            moved = not slot.paused and slot.partition.visible(now_ms) != slot.position
            if moved and (not self._log.outages or self._log.outage([slot.source]) is None):
                return True
        return False

    def _found(
        self, name: str, partitions: Iterable[TopicPartition], of: Callable[[Partition], T]
    ) -> dict[TopicPartition, T]:
        wanted = [TopicPartition(*source) for source in partitions]

        def effect() -> dict[TopicPartition, T]:
            self._log.settle()
            found = {source: self._log.partition(source) for source in wanted}
            return {source: of(one) for source, one in found.items()}

        return self._access.call(name, effect, wanted)

    def _resolve(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, _Slot]:
        self._check_open()
        found = self._found("log.assign", positions, lambda one: one)
        return {at: _Slot(at, one, _checked(at, positions[at])) for at, one in found.items()}

    def _slot(self, source: TopicPartition) -> _Slot:
        self._check_open()
        slot = self._slots.get(source)
        if slot is None:
            held = few(self._slots) or "nothing"
            raise InvalidRequest(f"{TopicPartition(*source)} is not assigned to this reader, it has {held}")
        return slot

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"reader of {self._log.where} was closed: open a new one")


def _settled(slot: _Slot, piece: _Taken) -> Fetched | None:
    """Move the position; None if there are no records and the caller knows the end already."""
    count, position = piece.stop - piece.first, slot.position
    if piece.at_end:
        position = max(position, piece.end)  # a position above an open transaction stays
    elif count:
        position = slot.data.offsets[piece.stop - 1] + 1
    if position == slot.position and (slot.told_end or not piece.at_end):
        return None
    slot.position, slot.told_end = position, piece.at_end
    records = slot.data.records(piece.first, piece.stop) if count else []
    return Fetched(slot.source, records, position, piece.at_end)


def _checked(source: TopicPartition, position: int) -> int:
    if not isinstance(position, int) or position < 0:
        raise InvalidRequest(f"{TopicPartition(*source)}: position {position!r} is not an offset, use 0 or more")
    return position
