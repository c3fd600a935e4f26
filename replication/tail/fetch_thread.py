"""The thread around a log's reader: it fetches ahead by one batch, hands over, and does what is asked in between.

    applying thread                              fetch thread, to which the reader belongs
    assign, add, remove, seek, pause, resume ──> requests ──┐ wakes a hand-over that waits
    call(action) <───────────────── answer ─────────────────┤
                                                            v
                         ┌──────────> carry out requests, in order <──── WakeUp: the batch is kept, and offered again
                         │                   v                                                     │
                         │            fetch, unless something is not handed over yet               │
                         │                   v                                                     │
    poll_next() <── Handover <────────── produce ──────────────────────────────────────────────────┘

An applier that has run dry may borrow the reader, while the fetch thread has nothing to do, and fetch what is at hand
on its own thread (`fetch_here`). Measured on Kafka: records that go from one thread to another cost a restore a tenth
of its time, as the processors take them from each other's caches, and the threads the interpreter.

`poll_next` is for one applier. Where several share the fetch thread, `standfast.replication.tail.fetch_pipeline` drains
it with `take` and sorts by partition; requests give numbers, by which it knows what is out of date without waiting.

What holds:
  * A batch is fetched once and comes out of poll_next once, in order per partition.
  * Once assign, add, remove or seek was asked for, nothing comes out that was fetched before it was carried out. A
    request that fails changes nothing, and what was fetched stays good. After pause, what is under way still comes.
  * Errors travel once. A fetch that fails with StateLost, InvalidRequest or Corruption of the log (damage in one
    partition must not end the reading of the others) is raised by one poll_next, and fetching waits until a request
    (other than `call`) was carried out, say a remove of the partition it names; Unavailable is raised likewise, and
    fetching goes on. A request that fails is raised by one poll_next, the failure of `call` by
    call. Any other error ends the thread: raised by one poll_next after all that was fetched, from then on Closed.
  * close() ends every wait of both sides, joins the thread, and the reader is closed.

Rules of this file: a shell around any LogReader; it decides nothing about offsets and has no clock. A fetch cannot be
woken, so requests and close() wait for at most one fetch, `fetch_timeout_ms` where there is nothing to read.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from standfast.replication.fetch_limits import LIMITS
from standfast.replication.handover import Handover, WakeUp
from standfast.replication.log import Fetched, LogReader
from standfast.replication.offsets import TopicPartition
from standfast.store.closing import Closing
from standfast.store.errors import Closed, Corruption, InvalidRequest, StandfastError, StateLost, Unavailable

CALL_TIMEOUT_S = 30.0
CLOSE_TIMEOUT_S = 10.0

R = TypeVar("R")

EVERY_PARTITION = None  # what an assign moves
NO_PARTITION: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True, slots=True)
class Batch:
    """What one fetch gave; `carried` is the number of the last request carried out before it."""

    fetched: list[Fetched]
    carried: int


@dataclass(frozen=True, slots=True)
class Failure:
    """An error on its way to poll_next. One of a fetch is out of date once a later request was carried out.

    `carried` is the last request before a fetch, or the request itself that failed.
    """

    error: Exception
    carried: int
    of_fetch: bool


@dataclass(frozen=True, slots=True)
class _Request:
    """Something to do on the fetch thread. `moves`: partitions whose position it sets; `answer`: for `call` only."""

    number: int
    action: Callable[[LogReader], Any]
    moves: frozenset[TopicPartition] | None = NO_PARTITION
    answer: Future[Any] | None = None


@dataclass(frozen=True, slots=True)
class FetchThreadStatistics:
    """Counters since the thread was started. `fetches` are all, `borrowed` those on the thread of an applier."""

    fetches: int
    borrowed: int
    batches: int
    wake_ups: int
    requests: int
    outdated: int
    alive: bool


class FetchThread(Closing):
    """Runs from its construction to close(). It takes the reader over and closes it in the end.

    One thread may call poll_next; the other methods may be called by any thread but the fetch thread itself.
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
        """`ready` is called on the fetch thread whenever something was handed over; it must return at once.

        With `on_demand` it fetches nothing ahead: it begins when `want` was called, and goes on until it has
        something to hand over.
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
        self._changed = threading.Condition()  # guards what follows
        self._requests: deque[_Request] = deque()
        self._asked = self._carried = self._last_effect = 0
        self._moved: dict[TopicPartition, int] = {}
        self._moved_all = 0
        self._parked = False
        self._idle = False  # the thread waits for something to do, and has nothing to hand over
        self._borrowed = False  # somebody else uses the reader
        self._broken: Exception | None = None  # what went wrong then, and ends the thread
        self._wanted = not on_demand
        self._on_demand = on_demand
        self._closing = self._ended = False
        self._fatal: BaseException | None = None
        self._told = False
        self._fetches = self._lent = self._outdated = 0
        # Used by the fetch thread only.
        self._unsent: deque[Batch | Failure] = deque()
        self._assigned = bool(reader.assignment())
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    # -- the applying thread; requests give their numbers --------------------------------------------------------------

    def assign(self, positions: Mapping[TopicPartition, int]) -> int:
        """Replace the assignment, see LogReader. What was fetched for the old one does not come any more."""
        wanted = dict(positions)
        return self._ask(lambda reader: reader.assign(wanted), EVERY_PARTITION)

    def add(self, positions: Mapping[TopicPartition, int]) -> int:
        """Assign further partitions."""
        wanted = dict(positions)
        return self._ask(lambda reader: reader.add(wanted), frozenset(wanted))

    def remove(self, partitions: Iterable[TopicPartition]) -> int:
        """Unassign; absent ones are fine."""
        wanted = frozenset(partitions)
        return self._ask(lambda reader: reader.remove(wanted), wanted)

    def seek(self, partition: TopicPartition, offset: int) -> int:
        """Move the position of an assigned partition."""
        return self._ask(lambda reader: reader.seek(partition, offset), frozenset({partition}))

    def pause(self, partitions: Iterable[TopicPartition]) -> int:
        """Fetch no more of these until resumed. What was fetched before still comes: at most two batches."""
        wanted = tuple(partitions)
        return self._ask(lambda reader: reader.pause(wanted))

    def resume(self, partitions: Iterable[TopicPartition]) -> int:
        """Fetch them again. With none it only lets fetching go on after an error of a fetch."""
        wanted = tuple(partitions)
        return self._ask(lambda reader: reader.resume(wanted))

    def want(self, records: int) -> None:
        """Somebody has nothing left to apply: fetch the next batch, of up to so many records."""
        with self._changed:
            self._records = max(self._records, records) if self._wanted else records
            self._wanted = True
            self._changed.notify_all()

    def fetch_here(self, records: int) -> Batch | Failure | None:
        """Fetch what is at hand on the calling thread, as the fetch thread would have; it takes no part meanwhile.

        None if that thread is at work or has something to do or to hand over, and if nothing is at hand. What comes
        follows all that was handed over before.
        """
        with self._changed:
            able = self._idle and not (self._borrowed or self._parked or self._has_work(False))
            if not able or not self._assigned or self._handover.statistics().full:
                return None
            self._borrowed = True
            self._fetches += 1
            self._lent += 1
            carried = self._carried
        parked = False
        try:
            fetched = self._reader.fetch_ready(records)
        except Exception as error:  # noqa: BLE001 - travels, or ends the thread, which says so
            if _travels(error):
                parked = not isinstance(error, Unavailable)
                return Failure(error, carried, of_fetch=True)
            self._broken = error
            return None
        finally:
            with self._changed:
                self._borrowed = False
                self._parked = parked
                self._changed.notify_all()
        return Batch(fetched, carried) if fetched else None

    def call(self, action: Callable[[LogReader], R], timeout_s: float = CALL_TIMEOUT_S) -> R:
        """Run `action` on the fetch thread after all requests so far, and wait for its answer.

        For questions (bounds, assignment); it must not move positions. Its error is raised here; Unavailable if it
        is not done within `timeout_s` seconds (not begun: it never will be), Closed if the thread has ended.
        """
        answer: Future[R] = Future()
        self._ask(action, answer=answer)
        try:
            return answer.result(timeout_s)
        except TimeoutError:
            if answer.done():
                return answer.result()  # it came just now, or the time-out is the action's own error
            begun = not answer.cancel()
            raise Unavailable(
                f"fetch thread {self._thread.name!r}: a call was not {'finished' if begun else 'begun'} within "
                f"{timeout_s} s: the log does not answer, try again"
            ) from None

    def poll_next(self, timeout_s: float | None = None) -> list[Fetched]:
        """What one fetch gave, without what requests made out of date meanwhile.

        Waits without end if `timeout_s` (seconds) is None; else it may be empty, also early. Raises as the header
        says.
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

        Raises Unavailable if the log holds the thread for longer (it ends by itself once the log lets it go), and,
        once all is released, an error that ended the thread and that no poll_next has raised.
        """
        if threading.current_thread() is self._thread:
            raise InvalidRequest(f"fetch thread {self._thread.name!r}: close() was called on the thread itself")
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._handover.close()
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
        answer: Future[Any] | None = None,
    ) -> int:
        with self._changed:
            if self._closing or self._ended:
                raise Closed(f"fetch thread {self._thread.name!r} has ended: start another one") from self._fatal
            self._asked += 1
            number = self._asked
            self._requests.append(_Request(number, action, moves, answer))
            self._changed.notify_all()
        self._handover.wake_up_producer()
        return number

    def take(self, timeout_s: float | None) -> Batch | Failure | None:
        """The next batch or failure as it comes, also where a request has made it out of date; None after the time.

        Raises what ended the thread, then Closed. One thread at a time, and not beside `poll_next`.
        """
        if self._told:
            raise Closed(f"fetch thread {self._thread.name!r} has ended with an error") from self._fatal
        try:
            return self._handover.poll_next(timeout_s)
        except BaseException as error:
            self._told = self._told or error is self._fatal
            raise

    def _fresh(self, item: Batch) -> list[Fetched]:
        """What of a batch no request has made out of date; one that could and is still to be done is waited for."""
        sources = frozenset(one.source for one in item.fetched)
        with self._changed:
            self._changed.wait_for(lambda: self._ended or not self._moving(sources))
            fresh = [
                one for one in item.fetched if max(self._moved_all, self._moved.get(one.source, 0)) <= item.carried
            ]
            self._outdated += len(item.fetched) - len(fresh)
            return fresh

    def _moving(self, sources: frozenset[TopicPartition]) -> bool:
        return any(one.moves is None or one.moves & sources for one in self._requests)

    def _still_true(self, item: Failure) -> bool:
        with self._changed:
            if not item.of_fetch:
                return True
            self._changed.wait_for(lambda: self._ended or all(one.answer is not None for one in self._requests))
            # What was asked for since may have mended it; if not, the next fetch fails again.
            return self._last_effect <= item.carried

    # -- the fetch thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            try:
                self._loop()
            finally:
                self._reader.close()
        except BaseException as error:  # noqa: BLE001 - raised by poll_next, or by close()
            # Whoever closes us may have closed the log before; that is the end that was asked for.
            self._fatal = None if self._closing and isinstance(error, Closed) else error
        with self._changed:
            self._ended = True
            left = [one.answer for one in self._requests if one.answer is not None]
            self._requests.clear()
            self._changed.notify_all()
        for answer in left:
            if answer.set_running_or_notify_cancel():
                answer.set_exception(Closed(f"fetch thread {self._thread.name!r} has ended"))
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
        """Do what was asked for, in order. A request stays in the queue until it is done: poll_next looks there."""
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
        """Whether there is anything to see to; `able`: a fetch would have partitions to read."""
        return bool(self._requests) or self._closing or self._broken is not None or (able and self._wanted)

    def _offer(self) -> bool:
        """Hand over the oldest; if woken it stays the oldest. False if the hand-over was closed."""
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
    """Whether an error is raised by one poll_next, and leaves the thread going."""
    if isinstance(error, Corruption):
        return bool(error.sources) or error.of_log
    return isinstance(error, InvalidRequest | StateLost | Unavailable)


def _answer(request: _Request, reader: LogReader) -> bool:
    """Carry out a call; its result or its error goes to the caller and nowhere else."""
    answer = request.answer
    assert answer is not None
    if answer.set_running_or_notify_cancel():
        try:
            answer.set_result(request.action(reader))
        except BaseException as error:  # noqa: BLE001 - raised by call()
            answer.set_exception(error)
    return False
