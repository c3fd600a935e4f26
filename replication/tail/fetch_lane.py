"""A lane: one applier's share of the fetch pipeline, which acts as its own reader and waits for no other applier.

    FetchPipeline ──Sent(batch)──> inbox of each partition ──fair shares──> fetch()      restore, standby, source
                  <──credits back, with the next fetch: earlier batches are applied then──

A lane is a `LogReader`, with these differences, all of which come from fetching ahead:
  * `fetch` gives records that have arrived; with no timeout it may be empty although the log has more.
  * An error of one partition is raised once, after the records fetched before it; the others go on meanwhile. If the
    partition is still assigned at the next fetch, the lane reads it again from its position.
  * `pause` and `resume` cost nothing: arriving batches wait in the inbox, and the credits stop the reader in the end.
  * A lane reads a partition of another lane once that lane has given it up.

Rules of this file: one thread at a time uses a lane; the pipeline's condition guards its state, since other threads
fill the inboxes. It decides nothing about credits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from standfast.replication.columns import RecordColumns, joined, payload_bytes
from standfast.replication.credits import Sent
from standfast.replication.fetch_limits import LIMITS
from standfast.replication.log import Fetched, LogReader, Record
from standfast.replication.offsets import Bounds, TopicPartition
from standfast.store.clock import real_clock
from standfast.store.errors import Closed, InvalidRequest, StandfastError
from standfast.store.names import few
from standfast.store.process.interrupts import Monitor, is_main


class Slot:
    """An assigned partition of a lane.

    `position` is the next offset after the records that `fetch` gave, `since` the request from which on batches count,
    `owned` whether no other lane has the partition, `reading` whether the reader has it.
    """

    __slots__ = ("cut", "error", "inbox", "owned", "paused", "position", "reading", "since", "told")

    def __init__(self, position: int) -> None:
        self.position = position
        self.paused = self.owned = False
        self.begin(0)

    def begin(self, since: int) -> None:
        """Reset the slot: empty inbox, no error."""
        self.since = since
        self.reading = since > 0
        self.inbox: deque[Sent[Fetched]] = deque()
        self.cut = 0  # records of the first batch that `fetch` has given already
        self.error: Exception | None = None
        self.told = False

    @property
    def waiting(self) -> int:
        """Records in the inbox."""
        return sum(len(sent.batch.records) for sent in self.inbox) - self.cut

    def take(self, source: TopicPartition, count: int, done: list[Sent[Fetched]]) -> Fetched | None:
        """Up to `count` records as one batch; None without news. Used-up batches go to `done`."""
        parts: list[Sequence[Record]] = []
        at_end, before = False, len(done)
        while self.inbox:
            records, next_offset, ends = self.inbox[0].batch[1:]
            left = len(records) - self.cut
            if left > count:
                if count:
                    parts.append(records[self.cut : self.cut + count])
                    self.cut += count
                    self.position = parts[-1][-1].offset + 1
                    at_end = False  # the rest of this batch comes first
                break
            if left:
                parts.append(records[self.cut :] if self.cut else records)
            count -= left
            self.cut = 0
            self.position, at_end = next_offset, ends
            done.append(self.inbox.popleft())
        # A used-up batch without records is news, too: it moves the position, or has reached the end.
        if not parts and len(done) == before:
            return None
        return Fetched(source, _joined(parts), self.position, at_end)


class Pipeline(Protocol):
    """The part of `FetchPipeline` that a lane calls, holding its condition."""

    changed: Monitor
    ended: Exception | None

    def enter(self, lane: Lane, slots: Mapping[TopicPartition, Slot], /) -> None: ...
    def leave(self, lane: Lane, sources: Iterable[TopicPartition], /) -> None: ...
    def move(self, source: TopicPartition, slot: Slot, /) -> None: ...
    def give_back(self, sent: list[Sent[Fetched]], /) -> None: ...
    def pump(self, timeout_s: float, /) -> None: ...
    def fetch_here(self, records: int, /) -> bool: ...
    def want(self, records: int, /) -> None: ...
    def forget(self, lane: Lane, /) -> None: ...
    def read_again(self) -> None: ...


P = ParamSpec("P")
T = TypeVar("T")


def _read_again(method: Callable[Concatenate[Lane, P], T]) -> Callable[Concatenate[Lane, P], T]:
    """After an exception of a signal handler in a lane's call, have all partitions read from their positions again."""

    @wraps(method)
    def call(self: Lane, /, *given: P.args, **named: P.kwargs) -> T:
        if not is_main():
            return method(self, *given, **named)
        positions = {source: slot.position for source, slot in self.slots.items()}
        try:
            return method(self, *given, **named)
        except StandfastError:
            raise
        except BaseException:
            with self._pipeline.changed:
                for source, slot in self.slots.items():
                    slot.position = positions.get(source, slot.position)
                self._pipeline.read_again()
            raise

    return call


class Lane:
    """A LogReader over the shared fetch thread; `FetchPipeline.lane` makes it."""

    def __init__(
        self, pipeline: Pipeline, name: str, asker: LogReader, arrived: Callable[[], None], look_ms: int
    ) -> None:
        self.name = name
        self._look_ms = look_ms
        self._looked_ms = 0
        self.arrived = arrived
        self.slots: dict[TopicPartition, Slot] = {}
        self.trouble: Exception | None = None  # an error of the log as a whole
        self._pipeline = pipeline
        self._asker = asker  # a second reader for bounds, which must not wait for a fetch
        self._clock = real_clock()
        self._given: list[Sent[Fetched]] = []
        self._turn = 0
        self._fitting = LIMITS.lane_first_records  # records of about LIMITS.lane_fetch_bytes, by those that came last
        self._end_told = self._closed = False

    @_read_again
    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Replace the assignment. After UnknownStore it is unchanged."""
        slots = self._made(positions)
        with self._pipeline.changed:
            self._pipeline.leave(self, list(self.slots))
            self._pipeline.enter(self, slots)

    def assignment(self) -> Mapping[TopicPartition, int]:
        """Assigned partitions with the positions that `fetch` has reached."""
        with self._pipeline.changed:
            return {source: slot.position for source, slot in self.slots.items()}

    @_read_again
    def add(self, positions: Mapping[TopicPartition, int]) -> None:
        """Assign further partitions. Raises InvalidRequest for an assigned one: use seek."""
        twice = [str(TopicPartition(*source)) for source in positions if source in self.slots]
        if twice:
            raise InvalidRequest(f"{few(twice)} already assigned to this reader: move it with seek")
        slots = self._made(positions)
        with self._pipeline.changed:
            self._pipeline.enter(self, slots)

    @_read_again
    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """Unassign; absent partitions are no error."""
        with self._pipeline.changed:
            self._pipeline.leave(self, [source for source in dict.fromkeys(partitions) if source in self.slots])

    @_read_again
    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Move the position of an assigned partition: batches fetched before are dropped."""
        with self._pipeline.changed:
            slot = self._slot(partition)
            slot.position = _checked(partition, offset)
            self._pipeline.move(partition, slot)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Give no more of these until resumed; the position stays."""
        with self._pipeline.changed:
            for slot in [self._slot(source) for source in partitions]:
                slot.paused = True

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Give them again."""
        with self._pipeline.changed:
            for slot in [self._slot(source) for source in partitions]:
                slot.paused = False

    @_read_again
    def fetch(self, max_records: int, timeout_ms: int = 0) -> list[Fetched]:
        """See LogReader, and above. The batches of the last fetch count as applied now.

        Raises the error that ended the fetch thread, then Closed.
        """
        if max_records < 1:
            raise InvalidRequest(f"fetch needs max_records of 1 or more, got {max_records}")
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        pipeline = self._pipeline
        with pipeline.changed:
            pipeline.give_back(self._given)
            self._given = []
            self._read_again()
            while True:
                pipeline.pump(0)
                found = self._found(max_records)
                if found:
                    return found
                now_ms = self._clock.monotonic_ms()
                # An applier with other work, which cannot wait, must not look into the log at each of its turns.
                left_ms = deadline_ms - now_ms
                if left_ms > 0 or now_ms - self._looked_ms >= self._look_ms:
                    self._looked_ms = now_ms
                    found = self._look(max_records)
                    if found:
                        return found
                if left_ms <= 0:
                    return []
                pipeline.pump(left_ms / 1_000)

    def fetch_ready(self, max_records: int) -> list[Fetched]:
        """See LogReader."""
        return self.fetch(max_records)

    def bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Bounds]:
        """Begin and end offsets now."""
        return self._asker.bounds(partitions)

    def written_ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """See LogReader."""
        return self._asker.written_ends(partitions)

    def epoch_tags(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, str]:
        """See LogReader."""
        return self._asker.epoch_tags(positions)

    def epoch_ends(self, tags: Mapping[TopicPartition, str]) -> dict[TopicPartition, int]:
        """See LogReader."""
        return self._asker.epoch_ends(tags)

    @_read_again
    def close(self) -> None:
        """Give up every partition. Twice is fine."""
        if not self._closed:
            with self._pipeline.changed:
                self._pipeline.leave(self, list(self.slots))
                self._pipeline.give_back(self._given)
                self._given = []
                self._pipeline.forget(self)
            self._asker.close()
            self._closed = True  # last: a second call completes one that a signal handler broke off

    def forget_given(self) -> None:
        """Forget the batches whose credits the next fetch would give back."""
        self._given = []

    # -- under the pipeline's condition -------------------------------------------------------------------------------

    def _made(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, Slot]:
        self._check_open()
        wanted = {TopicPartition(*source): _checked(source, position) for source, position in positions.items()}
        self._asker.bounds(wanted)  # for its UnknownStore: the fetch thread could report it only later
        return {source: Slot(position) for source, position in wanted.items()}

    def _slot(self, source: TopicPartition) -> Slot:
        slot = self.slots.get(source)
        if slot is None:
            held = few(self.slots) or "nothing"
            raise InvalidRequest(f"{TopicPartition(*source)} is not assigned to this reader, it has {held}")
        return slot

    def _look(self, records: int) -> list[Fetched]:
        """Records that the reader has at hand; without any for this lane, ask the fetch thread for them."""
        if all(slot.paused for slot in self.slots.values()):
            return []
        found = self._found(records) if self._pipeline.fetch_here(min(records, self._fitting)) else []
        if not found:
            self._pipeline.want(records)
        return found

    def _read_again(self) -> None:
        """Read partitions again whose error was raised and which the caller has kept."""
        for source, slot in self.slots.items():
            if slot.told:
                self._pipeline.move(source, slot)

    def _raise_of_partition(self) -> None:
        for slot in self.slots.values():
            error = slot.error
            # After the inbox: records fetched before the error are good.
            if error is not None and not (slot.told or slot.paused or slot.inbox):
                for other in self.slots.values():  # partitions of a topic share its error: one raise is enough
                    other.told = other.told or other.error is error
                raise error

    def _raise_of_log(self) -> None:
        if self.trouble is not None:
            error, self.trouble = self.trouble, None
            raise error
        ended = self._pipeline.ended
        if ended is not None and not self._end_told:
            self._end_told = True
            raise ended
        self._check_open()

    def _check_open(self) -> None:
        if self._closed or self._pipeline.ended is not None:
            raise Closed(f"reader {self.name!r} was closed with its fetch thread: open a new one")

    def _found(self, max_records: int) -> list[Fetched]:
        """Records from the inboxes, or the error that follows them."""
        self._raise_of_partition()
        found = self._serve(max_records)
        # Last, since an error of the log says nothing against records that have arrived.
        if not found:
            self._raise_of_log()
        return found

    def _serve(self, max_records: int) -> list[Fetched]:
        """Records of every inbox, in fair shares."""
        turn = [source for source, slot in self.slots.items() if slot.inbox and not slot.paused]
        if not turn:
            return []
        # Another partition begins each time, or a small `max_records` would starve the last ones.
        first = self._turn % len(turn)
        turn = turn[first:] + turn[:first]
        self._turn += 1
        waiting = {source: self.slots[source].waiting for source in turn}
        wanted = dict.fromkeys(turn, 0)
        self._measure(turn)
        left, more = min(max_records, self._fitting), [source for source in turn if waiting[source]]
        while more and left > 0:
            share = max(1, left // len(more))
            for source in more:
                count = min(share, left, waiting[source] - wanted[source])
                wanted[source] += count
                left -= count
            more = [source for source in more if wanted[source] < waiting[source]]
        found = (self.slots[source].take(source, count, self._given) for source, count in wanted.items())
        return [one for one in found if one is not None]

    def _measure(self, turn: Iterable[TopicPartition]) -> None:
        """Note how many records of these inboxes make about LIMITS.lane_fetch_bytes, by their average size."""
        batches = [sent.batch.records for source in turn for sent in self.slots[source].inbox]
        count, size = sum(map(len, batches)), sum(map(payload_bytes, batches))
        if count:
            self._fitting = max(LIMITS.lane_fetch_bytes * count // max(size, 1), 1)


def _joined(parts: list[Sequence[Record]]) -> Sequence[Record]:
    if len(parts) == 1:
        return parts[0]
    columns = [part for part in parts if isinstance(part, RecordColumns)]
    if parts and len(columns) == len(parts):
        return joined(columns)
    return [record for part in parts for record in part]


def _checked(source: TopicPartition, position: int) -> int:
    if not isinstance(position, int) or position < 0:
        raise InvalidRequest(f"{TopicPartition(*source)}: position {position!r} is not an offset, use 0 or more")
    return position
