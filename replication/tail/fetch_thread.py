"""The thread around a log's reader: it fetches ahead by one batch, hands over, and carries requests out in between.

    applying thread                              fetch thread, to which the reader belongs
    assign, add, remove, seek, pause, resume ──> requests ──┐ wakes a hand-over that waits
    call(action) <───────────────── answer ─────────────────┤
                                                            v
                         ┌──────────> carry out requests, in order <──── WakeUp: the batch is kept, and offered again
                         │                   v                                                     │
                         │            fetch, unless a batch is not handed over yet                 │
                         │                   v                                                     │
    poll_next() <── Handover <────────── produce ──────────────────────────────────────────────────┘

An applier that has run dry may borrow the reader, while the fetch thread is idle, and fetch records at hand on its own
thread (`fetch_here`). Measured on Kafka: records that go from one thread to another cost a restore a tenth of its time,
as the processors take them from each other's caches, and the threads the interpreter.

`poll_next` is for one applier. If several share the fetch thread, `standfast.replication.tail.fetch_pipeline` drains it
with `take` and sorts by partition; requests give numbers, by which it recognises outdated batches without waiting.

Invariants:
  * A batch is fetched once and comes out of poll_next once, in order per partition.
  * After a call of assign, add, remove or seek, no batch comes out that was fetched before the request was carried out.
    A failed request changes nothing, and fetched batches stay valid. After pause, batches under way still come.
  * Each error is raised once. StateLost, InvalidRequest or Corruption of the log from a fetch (damage in one partition
    must not end the reading of the others) is raised by one poll_next, and fetching waits until a request (other than
    `call`) was carried out, such as a remove of the named partition; Unavailable is raised likewise, and fetching goes
    on. One poll_next raises the error of a request, `call` raises its own. Any other error ends the thread: one
    poll_next raises it after all fetched batches, and later ones raise Closed.
  * close() ends every wait of both sides, joins the thread, and closes the reader.

Rules of this file: a shell around any LogReader; it decides nothing about offsets and has no clock. A running fetch
cannot be woken, so requests and close() wait for at most one fetch, `fetch_timeout_ms` without records.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from standfast.replication.fetch_limits import LIMITS
from standfast.replication.handover import Handover, WakeUp
from standfast.replication.log import Fetched, LogReader
from standfast.replication.offsets import TopicPartition
from standfast.store.closing import Closing
from standfast.store.errors import Closed, Corruption, InvalidRequest, StandfastError, StateLost, Unavailable
from standfast.store.process.interrupts import CallResult, Monitor, is_main
from standfast.store.process.tracebacks import is_foreign

CALL_TIMEOUT_S = 30.0
CLOSE_TIMEOUT_S = 10.0

R = TypeVar("R")

EVERY_PARTITION = None  # the partitions that an assign moves
NO_PARTITION: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True, slots=True)
class Batch:
    """The records of one fetch; `carried` is the number of the last request carried out before it."""

    fetched: list[Fetched]
    carried: int


@dataclass(frozen=True, slots=True)
class Failure:
    """An error on its way to poll_next. An error of a fetch is outdated once a later request was carried out.

    `carried` is the number of the last request before the fetch, or of the failed request itself.
    """

    error: Exception
    carried: int
    of_fetch: bool


@dataclass(frozen=True, slots=True)
class _Request:
    """Work for the fetch thread. `moves`: partitions whose position it sets; `answer`: for `call` only."""

    number: int
    action: Callable[[LogReader], Any]
    moves: frozenset[TopicPartition] | None = NO_PARTITION
    answer: CallResult[Any] | None = None

    def outdates(self, sources: frozenset[TopicPartition]) -> bool:
        """Whether it may move one of these partitions."""
        return self.moves is None or bool(self.moves & sources)


@dataclass(frozen=True, slots=True)
class FetchThreadStatistics:
    """Counters since the thread's start. `fetches` counts all, `borrowed` those on an applier's thread."""

    fetches: int
    borrowed: int
    batches: int
    wake_ups: int
    requests: int
    outdated: int
    alive: bool


class FetchThread(Closing):
    """Runs from its construction to close(). It owns the reader and closes it in the end.

    One thread may call poll_next; any thread but the fetch thread itself may call the other methods.
    """

    def __init__(
        self,
        reader: LogReader,
        *,
        name: str = "standfast-fetch",
        fetch_records_max: int = LIMITS.fetch_records_max,
        fetch_timeout_ms: int = LIMITS.fetch_timeout_ms,
        ready: Callable[[], None] | None = None,
        on_demand: bool = False,
    ) -> None:
        """`ready` is called on the fetch thread after each hand-over; it must return at once.

        With `on_demand` the thread fetches nothing ahead: it begins after a call of `want`, and goes on until it has a
        batch to hand over.
        """
        if fetch_records_max < 1 or fetch_timeout_ms < 0:
            raise InvalidRequest(
                f"fetch thread {name!r}: fetch_records_max {fetch_records_max} must be at least 1 and "
                f"fetch_timeout_ms {fetch_timeout_ms} at least 0"
            )
        self._reader = reader
        self._records = fetch_records_max
        self._fetch_timeout_ms = fetch_timeout_ms
        self._ready = ready
        self._handover: Handover[Batch | Failure] = Handover()
        self._changed = Monitor()  # guards the attributes that follow
        self._requests: deque[_Request] = deque()
        self._asked = self._carried = self._last_effect = 0
        self._moved: dict[TopicPartition, int] = {}
        self._moved_all = 0
        self._parked = False
        self._idle = False  # the thread waits for work, and has no batch to hand over
        self._borrowed = False  # an applier uses the reader on its own thread
        self._broken: Exception | None = None  # an error of a borrowed fetch that ends the thread
        self._wanted = not on_demand
        self._on_demand = on_demand
        self._closing = self._ended = False
        self._fatal: BaseException | None = None
        self._told = False
        self._fetches = self._lent = self._outdated = 0
        # Only the fetch thread uses the following.
        self._unsent: deque[Batch | Failure] = deque()
        self._assigned = bool(reader.assignment())
        # A daemon: a call into the log that never returns must not keep the process alive.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    # -- the applying thread; requests give their numbers --------------------------------------------------------------

    def assign(self, positions: Mapping[TopicPartition, int]) -> int:
        """Replace the assignment, see LogReader. Batches fetched for the old one are dropped."""
        wanted = dict(positions)
        return self._ask(lambda reader: reader.assign(wanted), EVERY_PARTITION)

    def add(self, positions: Mapping[TopicPartition, int]) -> int:
        """Assign further partitions."""
        wanted = dict(positions)
        return self._ask(lambda reader: reader.add(wanted), frozenset(wanted))

    def remove(self, partitions: Iterable[TopicPartition]) -> int:
        """Unassign; absent partitions are no error."""
        wanted = frozenset(partitions)
        return self._ask(lambda reader: reader.remove(wanted), wanted)

    def seek(self, partition: TopicPartition, offset: int) -> int:
        """Move the position of an assigned partition."""
        return self._ask(lambda reader: reader.seek(partition, offset), frozenset({partition}))

    def pause(self, partitions: Iterable[TopicPartition]) -> int:
        """Fetch no more of these until resumed. Batches fetched before still come: at most two."""
        wanted = tuple(partitions)
        return self._ask(lambda reader: reader.pause(wanted))

    def resume(self, partitions: Iterable[TopicPartition]) -> int:
        """Fetch them again. Without partitions it only lets fetching go on after an error of a fetch."""
        wanted = tuple(partitions)
        return self._ask(lambda reader: reader.resume(wanted))

    def want(self, records: int) -> None:
        """Fetch the next batch, of up to `records`, for an applier that has none left."""
        with self._changed:
            self._records = max(self._records, records) if self._wanted else records
            self._wanted = True
            self._changed.notify_all()

    def fetch_here(self, records: int) -> Batch | Failure | None:
        """Fetch records at hand on the calling thread, in place of the fetch thread, which waits meanwhile.

        None if that thread is at work, has a request or a batch to hand over, or if no record is at hand. The batch
        follows all batches that were handed over before.
        """
        borrowed, parked, carried = False, False, 0
        try:
            with self._changed:
                # A batch in the hand-over is older: records fetched here would overtake it.
                able = self._idle and not (self._borrowed or self._parked or self._has_work(False))
                if not able or not self._assigned or self._handover.statistics().full:
                    return None
                # Before the attribute: only this thread borrows, and an exception may come right after either.
                borrowed = self._borrowed = True
                self._fetches += 1
                self._lent += 1
                carried = self._carried
            fetched = self._reader.fetch_ready(records)
        except Exception as error:
            if _travels(error):
                parked = not isinstance(error, Unavailable)
                return Failure(error, carried, of_fetch=True)
            if is_main() and is_foreign(error):
                raise  # of a signal handler, and none of the log's
            self._broken = error
            return None
        finally:
            if borrowed:
                try:
                    self._return_reader(parked)
                finally:  # an exception of a signal handler may have broken the first one off
                    self._return_reader(parked)
        return Batch(fetched, carried) if fetched else None

    def _return_reader(self, parked: bool) -> None:
        with self._changed:
            self._borrowed = False
            self._parked = parked
            self._changed.notify_all()

    def call(self, action: Callable[[LogReader], R], timeout_s: float = CALL_TIMEOUT_S) -> R:
        """Run `action` on the fetch thread after all requests so far, and wait for its answer.

        For questions (bounds, assignment); it must not move positions. Raises the action's error, Unavailable if it
        takes longer than `timeout_s` seconds (an action not begun by then never runs), Closed if the thread has ended.
        """
        answer: CallResult[R] = CallResult()
        self._ask(action, answer=answer)
        try:
            return answer.result(timeout_s)
        except TimeoutError:
            # Of the wait, or raised by the action itself: only the answer shows which.
            if answer.done():
                return answer.result()  # the answer came just now, or the time-out is the action's own error
            begun = not answer.claim()
            raise Unavailable(
                f"fetch thread {self._thread.name!r}: a call was not {'finished' if begun else 'begun'} within "
                f"{timeout_s} s: the log does not answer, try again"
            ) from None

    def poll_next(self, timeout_s: float | None = None) -> list[Fetched]:
        """The records of one fetch, without those that requests have outdated meanwhile.

        Waits without bound if `timeout_s` (seconds) is None; otherwise the list may be empty, also early. Raises as the
        header says.
        """
        while True:
            item = self.take(timeout_s)
            if isinstance(item, Batch):
                fresh = self._fresh(item)
                if fresh:
                    return fresh
            elif isinstance(item, Failure) and self._still_true(item):
                raise item.error
            if timeout_s is not None:
                return []

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Stop and join within `timeout_s` seconds; twice is fine.

        Raises Unavailable if the log holds the thread for longer (the thread ends by itself when the log returns), and,
        after releasing all, an error that ended the thread and that no poll_next has raised.
        """
        if threading.current_thread() is self._thread:  # it would wait for its own end
            raise InvalidRequest(f"fetch thread {self._thread.name!r}: close() was called on the thread itself")
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._handover.close()  # before the join: the thread may wait for a free slot
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise Unavailable(
                f"fetch thread {self._thread.name!r} did not end within {timeout_s} s: "
                "a call to the log does not return"
            )
        if self._fatal is not None and not self._told:
            self._told = True
            raise self._fatal

    def statistics(self) -> FetchThreadStatistics:
        """An immutable snapshot."""
        handed = self._handover.statistics()
        with self._changed:
            return FetchThreadStatistics(
                self._fetches,
                self._lent,
                handed.produced,
                handed.wake_ups,
                self._carried,
                self._outdated,
                not self._ended,
            )

    def _ask(
        self,
        action: Callable[[LogReader], Any],
        moves: frozenset[TopicPartition] | None = NO_PARTITION,
        answer: CallResult[Any] | None = None,
    ) -> int:
        with self._changed:
            if self._closing or self._ended:
                raise Closed(f"fetch thread {self._thread.name!r} has ended: start another one") from self._fatal
            self._asked += 1
            number = self._asked
            self._requests.append(_Request(number, action, moves, answer))
            self._changed.notify_all()
        self._handover.wake_up_producer()  # a thread that waits for a free slot does not see `_changed`
        return number

    def ended_by(self, error: BaseException) -> bool:
        """Whether this error of `take` is the end of the thread, and not an exception of a signal handler."""
        return error is self._fatal or isinstance(error, StandfastError)

    def take(self, timeout_s: float | None) -> Batch | Failure | None:
        """The next batch or failure unchecked, even if a request has outdated it; None after `timeout_s` seconds.

        Raises the error that ended the thread, then Closed. One thread at a time, and not beside `poll_next`.
        """
        if self._told:
            raise Closed(f"fetch thread {self._thread.name!r} has ended with an error") from self._fatal
        try:
            return self._handover.poll_next(timeout_s)
        except BaseException as error:
            self._told = self._told or error is self._fatal
            raise

    def _fresh(self, item: Batch) -> list[Fetched]:
        """The part of a batch that no request has outdated; waits for pending requests that could outdate it."""
        sources = frozenset(one.source for one in item.fetched)
        with self._changed:
            self._changed.wait_for(lambda: self._ended or not any(one.outdates(sources) for one in self._requests))
            fresh = [
                one for one in item.fetched if max(self._moved_all, self._moved.get(one.source, 0)) <= item.carried
            ]
            self._outdated += len(item.fetched) - len(fresh)
            return fresh

    def _still_true(self, item: Failure) -> bool:
        with self._changed:
            if not item.of_fetch:
                return True
            self._changed.wait_for(lambda: self._ended or all(one.answer is not None for one in self._requests))
            # A request since then may have removed the cause; if not, the next fetch fails again.
            return self._last_effect <= item.carried

    # -- the fetch thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            try:
                self._loop()
            finally:
                self._reader.close()
        except BaseException as error:  # noqa: BLE001 - raised by poll_next, or by close()
            # The caller of close() may have closed the log before; that end is the wanted one.
            self._fatal = None if self._closing and isinstance(error, Closed) else error
        with self._changed:
            self._ended = True
            left = [one.answer for one in self._requests if one.answer is not None]
            self._requests.clear()
            self._changed.notify_all()
        for answer in left:  # else their callers would wait for the whole time-out
            if answer.claim():
                answer.fail(Closed(f"fetch thread {self._thread.name!r} has ended"))
        if self._fatal is not None:
            self._handover.report_error(self._fatal)
            if self._ready is not None:
                self._ready()

    def _loop(self) -> None:
        while not self._closing:
            self._carry_out()
            if not self._unsent:
                self._fetch()
            if self._unsent and not self._offer():
                return

    def _carry_out(self) -> None:
        """Carry requests out, in order. A request stays in the queue until it is done: poll_next looks there."""
        while not self._closing:
            with self._changed:
                if not self._requests:
                    return
                request = self._requests[0]
            done = _answer(request, self._reader) if request.answer is not None else self._effect(request)
            with self._changed:
                self._requests.popleft()
                self._carried = request.number
                if request.answer is None:
                    self._last_effect = request.number
                    self._parked = False
                if done and request.moves is EVERY_PARTITION:
                    self._moved.clear()
                    self._moved_all = request.number
                elif done and request.moves:
                    self._moved.update(dict.fromkeys(request.moves, request.number))
                self._changed.notify_all()

    def _effect(self, request: _Request) -> bool:
        try:
            request.action(self._reader)
        except StandfastError as error:
            if not _travels(error):
                raise
            self._unsent.append(Failure(error, request.number, of_fetch=False))
            return False
        self._assigned = bool(self._reader.assignment())
        return True

    def _fetch(self) -> None:
        with self._changed:
            if self._parked or not self._assigned or not self._wanted:
                able = not self._parked and self._assigned
                self._idle = True
                self._changed.wait_for(lambda: not self._borrowed and self._has_work(able))
                self._idle = False
                if self._broken is not None:
                    raise self._broken
                return
            carried, records = self._carried, self._records
            self._fetches += 1
        try:
            fetched = self._reader.fetch(records, self._fetch_timeout_ms)
        except StandfastError as error:
            if not _travels(error):
                raise
            self._unsent.append(Failure(error, carried, of_fetch=True))
            self._parked = not isinstance(error, Unavailable)
        else:
            if not fetched:
                return
            self._unsent.append(Batch(fetched, carried))
        with self._changed:
            self._wanted = not self._on_demand

    def _has_work(self, able: bool) -> bool:
        """Whether the thread has work; `able`: a fetch would have partitions to read."""
        return bool(self._requests) or self._closing or self._broken is not None or (able and self._wanted)

    def _offer(self) -> bool:
        """Hand over the oldest item; after a wake-up it stays the oldest. False if the hand-over was closed."""
        try:
            self._handover.produce(self._unsent[0])
        except WakeUp:
            return True
        except Closed:
            return False
        self._unsent.popleft()
        if self._ready is not None:
            self._ready()
        return True


def _travels(error: Exception) -> bool:
    """Whether one poll_next raises the error and the thread goes on."""
    if isinstance(error, Corruption):
        return bool(error.sources) or error.of_log
    return isinstance(error, InvalidRequest | StateLost | Unavailable)


def _answer(request: _Request, reader: LogReader) -> bool:
    """Carry out a call; its result or its error goes to the caller and nowhere else."""
    answer = request.answer
    assert answer is not None
    if answer.claim():
        answer.run(lambda: request.action(reader))
    return False
