"""The fetch pipeline of a process: one fetch thread over all restoring, standby and source partitions.

    log ──> FetchThread ──Handover──> the next fetching lane sorts ──> Credits ──> inboxes of the lanes ──> appliers
            (one reader)  (one batch)   (one at a time)            (a queue and    restore │ standby │ source
                 ^                                                  credits for each partition)
                 └── add, remove, seek; pause and resume as the credits decide

Invariants:
  * One lane waits for no other: batches for a slow, paused or shut lane lie in its own queues, and only its partitions
    are paused once these are full. The credits' limits and the batch in the hand-over bound the memory.
  * No fetch begins until a lane has run dry: fetching ahead only competes with the appliers for the interpreter's lock,
    and librdkafka fetches ahead without it. A lane first fetches records at hand on its own thread (`fetch_here`), for
    any lane, and asks the fetch thread (`want`) only for records that it would have to wait for.
  * An error goes to the lanes whose partitions it names (`StandfastError.sources`), and those partitions are not read
    until their lane has handled it; reading of the others goes on. An error that names none, as when the log does not
    answer, goes to every lane once.
  * A partition is read for one lane at a time; a second one waits until the first gives it up.
  * close() ends every wait, joins the fetch thread within its deadline, and closes the reader.

No lane waits for its requests: each has a number, and a batch fetched before the number of its partition's last move
is dropped.

Rules of this file: one condition guards all of it; no thread of its own besides the FetchThread. No thread holds the
condition while it waits for the hand-over, and the fetch thread never holds it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

from standfast.replication.columns import RecordColumns
from standfast.replication.credits import Arrived, CreditLimits, Credits, CreditStatistics, Decision, Sent
from standfast.replication.fetch_limits import LIMITS
from standfast.replication.log import Fetched, Log, Record
from standfast.replication.offsets import TopicPartition
from standfast.replication.tail.fetch_lane import Lane, Slot
from standfast.replication.tail.fetch_thread import CLOSE_TIMEOUT_S, Batch, Failure, FetchThread, FetchThreadStatistics
from standfast.store.errors import Closed, Unavailable
from standfast.store.process.interrupts import Monitor

RECORD_OVERHEAD_BYTES = 250  # Python objects beside key and value
KEY_SAMPLE = 16


@dataclass(frozen=True, slots=True)
class PipelineStatistics:
    """Counters of the fetch thread and of the credits, and the number of partitions that wait for another lane."""

    thread: FetchThreadStatistics
    credits: CreditStatistics
    waiting: int


class FetchPipeline:
    """Runs from its construction to close().

    `wake` is called (by any thread) when records may be there for a lane while no lane waits for the hand-over.
    """

    def __init__(
        self,
        log: Log,
        *,
        wake: Callable[[], None] | None = None,
        limits: CreditLimits = LIMITS.credits,
        fetch_records_max: int = LIMITS.fetch_records_max,
        fetch_timeout_ms: int = LIMITS.fetch_timeout_ms,
        close_timeout_s: float = CLOSE_TIMEOUT_S,
        name: str = "standfast-fetch",
    ) -> None:
        self.changed = Monitor()  # guards all of this and the lanes
        self.ended: Exception | None = None
        self._log = log
        self._wake = wake
        self._close_timeout_s = close_timeout_s
        self._fetch_records_max = fetch_records_max
        self._limits = limits
        self._credits: Credits[Fetched] = Credits(limits)
        self._lanes: list[Lane] = []
        self._owners: dict[TopicPartition, Lane] = {}
        self._waiting: dict[TopicPartition, deque[Lane]] = {}
        self._moves: dict[int, tuple[TopicPartition, ...]] = {}  # requests that may still fail, by number
        self._pumping = 0  # the thread that gets an item, with the condition released
        reader = log.reader()
        reader.assign({})  # so that its client connects before the first partition comes
        self._thread = FetchThread(
            reader,
            name=name,
            fetch_records_max=fetch_records_max,
            fetch_timeout_ms=fetch_timeout_ms,
            ready=self._ready,
            on_demand=True,
        )

    def lane(self, name: str, arrived: Callable[[], None] | None = None, look_ms: int = 0) -> Lane:
        """A reader for one applier; `arrived` is called when another applier's fetch has brought it records.

        A fetch that does not wait, by an applier with other work at hand, makes the fetch thread look into the log at
        most every `look_ms`.
        """
        asker = self._log.reader()
        with self.changed:
            lane = Lane(self, name, asker, arrived or _nothing, look_ms)
            self._lanes.append(lane)
            return lane

    def close(self) -> None:
        """End every wait, stop and join the fetch thread; twice is fine.

        Raises Unavailable if the log holds the thread for longer than `close_timeout_s` seconds, and an error that
        ended the thread and that no lane has raised.
        """
        with self.changed:
            self._end(Closed("the fetch thread was closed with its session: open a new one"))
            lanes = list(self._lanes)
        try:
            self._thread.close(self._close_timeout_s)
        finally:
            for lane in lanes:
                lane.close()

    @property
    def running(self) -> bool:
        """Whether the fetch thread is alive."""
        return self._thread.statistics().alive

    def statistics(self) -> PipelineStatistics:
        """An immutable snapshot."""
        with self.changed:
            waiting = sum(map(len, self._waiting.values()))
            return PipelineStatistics(self._thread.statistics(), self._credits.statistics(), waiting)

    # -- for the lanes, which hold the condition -----------------------------------------------------------------------

    def enter(self, lane: Lane, slots: Mapping[TopicPartition, Slot]) -> None:
        """Give these partitions to the lane, as soon as no other lane has them."""
        lane.slots.update(slots)
        mine = {}
        for source, slot in slots.items():
            if source in self._owners:
                self._waiting.setdefault(source, deque()).append(lane)
            else:
                self._owners[source] = lane
                slot.owned = True
                mine[source] = slot
        if mine:
            self._read(mine, self._thread.add)

    def leave(self, lane: Lane, sources: Iterable[TopicPartition]) -> None:
        """Take these partitions from the lane; a lane that waits for one gets it."""
        gone = []
        for source in sources:
            slot = lane.slots.pop(source)
            if not slot.owned:
                if lane in self._waiting.get(source, ()):
                    self._waiting[source].remove(lane)
                continue
            del self._owners[source]
            self._empty(source, slot)
            gone.append(source)
        if gone:
            _ask(lambda: self._thread.remove(gone))
        for source in gone:
            if self._waiting.get(source):
                following = self._waiting[source].popleft()
                self.enter(following, {source: following.slots[source]})

    def move(self, source: TopicPartition, slot: Slot) -> None:
        """Read from the slot's position, and forget earlier batches and errors."""
        if not slot.owned:
            return
        was_reading, position = slot.reading, slot.position
        paused = self._credits.paused(source)  # before `_empty`, which makes the credits forget the partition
        self._empty(source, slot)
        if not was_reading:
            self._read({source: slot}, self._thread.add)
            return
        self._follow(self._credits.add(source))
        slot.begin(self._asked((source,), lambda: self._thread.seek(source, position)))
        if paused:
            _ask(lambda: self._thread.resume([source]))

    def give_back(self, sent: list[Sent[Fetched]]) -> None:
        """Return the credits of batches that are applied, or given up."""
        if sent:
            self._follow(self._credits.applied(*sent))

    def pump(self, timeout_s: float) -> None:
        """Take one item off the hand-over, or wait until another lane has; releases the condition meanwhile."""
        if self._pumping:
            if timeout_s > 0 and self.ended is None:
                self.changed.wait(timeout_s)
            return
        if self.ended is not None:
            return
        try:
            item = self._apart(lambda: self._thread.take(timeout_s))
        except Exception as error:
            if not self._thread.ended_by(error):
                raise  # of a signal handler
            self._end(error)
        else:
            self._take_in(item)

    def fetch_here(self, records: int) -> bool:
        """Fetch records at hand on this thread, with the condition released; True if any lane got something."""
        if self._pumping or self.ended is not None:
            return False
        item = self._apart(lambda: self._thread.fetch_here(min(records, self._fetch_records_max)))
        self._take_in(item)
        return item is not None

    def want(self, records: int) -> None:
        """Ask the fetch thread for up to `records`, for a lane that has none left."""
        self._thread.want(min(max(records, LIMITS.fetch_records), self._fetch_records_max))

    def forget(self, lane: Lane) -> None:
        """Forget a closed lane."""
        if lane in self._lanes:
            self._lanes.remove(lane)

    def read_again(self) -> None:
        """Read every partition from its lane's position on, and give up all batches on their way.

        After an exception of a signal handler: a batch may be lost, and the credits may be half counted.
        """
        if self._pumping == threading.get_ident():  # broken off right before its end
            self._pumping = 0
        before, self._owners, self._waiting, self._moves = self._owners, {}, {}, {}
        self._credits = Credits(self._limits)
        for lane in self._lanes:
            for source, slot in lane.slots.items():
                slot.begin(0)
                slot.owned = before.get(source, lane) is lane and source not in self._owners
                if slot.owned:
                    self._owners[source] = lane
                else:
                    self._waiting.setdefault(source, deque()).append(lane)
            lane.forget_given()
        for source in [one for one in self._waiting if one not in self._owners]:
            first = self._waiting[source].popleft()
            self._owners[source] = first
            first.slots[source].owned = True
        self._read({source: lane.slots[source] for source, lane in self._owners.items()}, self._thread.assign)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _apart(self, get: Callable[[], Batch | Failure | None]) -> Batch | Failure | None:
        """Get an item with the condition released; no other lane gets one meanwhile, so that they keep their order."""
        self._pumping = threading.get_ident()
        try:
            self.changed.release()
            return get()
        finally:
            try:
                self.changed.retake()
            finally:  # an exception of a signal handler may have broken the first one off
                self.changed.retake()
                self._pumping = 0
                self.changed.notify_all()

    def _take_in(self, item: Batch | Failure | None) -> None:
        if isinstance(item, Batch):
            self._sort(item)
        elif item is not None:
            self._tell(item)

    def _ready(self) -> None:
        """Called on the fetch thread: wake a lane unless one is already draining the hand-over."""
        if not self._pumping and self._wake is not None:
            self._wake()

    def _read(self, slots: Mapping[TopicPartition, Slot], give: Callable[[Mapping[TopicPartition, int]], int]) -> None:
        """Give partitions to the reader, from their positions."""
        for source in slots:
            self._follow(self._credits.add(source))
        positions = {source: slot.position for source, slot in slots.items()}
        number = self._asked(tuple(slots), lambda: give(positions))
        for slot in slots.values():
            slot.begin(number)

    def _empty(self, source: TopicPartition, slot: Slot) -> None:
        """Drop all batches of a partition."""
        decision = self._credits.remove(source)
        inbox = list(slot.inbox)
        slot.begin(0)
        self._follow(decision)
        self.give_back(inbox)

    def _asked(self, sources: tuple[TopicPartition, ...], request: Callable[[], int]) -> int:
        number = _ask(request)
        self._moves[number] = sources
        return number

    def _follow(self, decision: Decision[Fetched]) -> None:
        """Carry a decision out: put batches into the inboxes, pause and resume partitions at the reader."""
        lanes = dict.fromkeys(self._owners[sent.partition] for sent in decision.send)
        for sent in decision.send:
            self._owners[sent.partition].slots[sent.partition].inbox.append(sent)
        for lane in lanes:
            lane.arrived()
        pause, resume = self._being_read(decision.pause), self._being_read(decision.resume)
        if pause:
            _ask(lambda: self._thread.pause(pause))
        if resume:
            _ask(lambda: self._thread.resume(resume))

    def _being_read(self, sources: Iterable[TopicPartition]) -> list[TopicPartition]:
        return [source for source in sources if (slot := self._slot(source)) is not None and slot.reading]

    def _slot(self, source: TopicPartition) -> Slot | None:
        lane = self._owners.get(source)
        return None if lane is None else lane.slots[source]

    def _sort(self, batch: Batch) -> None:
        """Put the batches of one fetch into their partitions' queues, and drop those that a move made out of date."""
        self._carried(batch.carried)
        arrived = []
        for one in batch.fetched:
            slot = self._slot(one.source)
            if slot is not None and slot.reading and slot.since <= batch.carried:
                arrived.append(Arrived(one.source, one, held_bytes(one.records)))
        for lane in self._lanes:
            if isinstance(lane.trouble, Unavailable):
                lane.trouble = None  # the log answers again
        if arrived:
            self._follow(self._credits.fetched(arrived))

    def _tell(self, failure: Failure) -> None:
        """Give an error to the lanes of its partitions, which are not read until the lanes have handled it."""
        error = failure.error
        if failure.of_fetch:
            self._carried(failure.carried)
            named = tuple(TopicPartition(*source) for source in getattr(error, "sources", ()))
        else:
            named = self._moves.pop(failure.carried, ())
            if not named:
                return  # a pause or resume failed; the partition's own error is on its way
        hit = {at: slot for at in named if (slot := self._slot(at)) is not None and slot.reading}
        hit = {at: slot for at, slot in hit.items() if slot.since <= failure.carried}
        if isinstance(error, Unavailable) or not named:
            _tell_all([self._owners[at] for at in hit] if named else self._lanes, error)
            if not failure.of_fetch:
                for slot in hit.values():
                    slot.reading, slot.told = False, True  # the lane's next fetch reads it again
                _ask(lambda: self._thread.remove(hit))
            elif not isinstance(error, Unavailable):
                _ask(lambda: self._thread.resume(()))  # the thread waits for a request before it fetches on
            return
        # A request for several partitions fails because of one of them: repeat it for each alone.
        single = failure.of_fetch or len(hit) == 1
        for at, slot in hit.items():
            slot.reading = False
            slot.error = error if single else None
            self._owners[at].arrived()
        _ask(lambda: self._thread.remove(hit))  # any request also lets fetching go on
        if not single:
            for at, slot in hit.items():
                self.move(at, slot)

    def _carried(self, number: int) -> None:
        for done in [one for one in self._moves if one <= number]:
            del self._moves[done]

    def _end(self, error: Exception) -> None:
        if self.ended is None:
            self.ended = error
        self.changed.notify_all()


def _ask(request: Callable[[], int]) -> int:
    """The number of a request; 0 if the fetch thread has ended."""
    try:
        return request()
    except Closed:
        return 0  # `fetch` raises the end


def _tell_all(lanes: Iterable[Lane], error: Exception) -> None:
    for lane in dict.fromkeys(lanes):
        lane.trouble = error
        lane.arrived()


def held_bytes(records: Sequence[Record]) -> int:
    """Approximate memory of records, in bytes. Every record pays for this, so it samples keys instead of adding all."""
    if isinstance(records, RecordColumns):
        return records.payload_bytes + RECORD_OVERHEAD_BYTES * len(records)
    values = sum(map(len, filter(None, map(itemgetter(3), records))))
    keys = KEY_SAMPLE * sum(len(record.key or b"") for record in records[::KEY_SAMPLE])
    return values + keys + RECORD_OVERHEAD_BYTES * len(records)


def _nothing() -> None:
    pass
