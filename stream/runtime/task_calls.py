"""The calls of one task's asynchronous steps: which wait, which run, and whose result goes on next.

    record ──> step's queue: ended, running, ended, running | not begun        in the order of the records
                 │ front                                 2 * `parallel` begun at most, of which `parallel` run;
                 │                                       the task takes no further record while there are so many
                 └── once it has ended: results ──> children
    failed  ──> on_error of the step: fail, skip and count, or dead letter

One record or callback may make more calls than a queue has room for (a flat_map before the step, a cache that is
flushed): they wait in it, not begun.

Rules of this file: it runs on the task's thread, but for `_ended`. Results are passed on between records, never within
one, so that no savepoint is open then. Calls begin when their record is done; so a record that is rolled back takes
along calls that have not begun.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from standfast.store.errors import InternalError, InvalidRequest
from standfast.store.histogram import SECONDS_PER_NS
from standfast.store.timestamps import duration_text
from standfast.stream.record import Record
from standfast.stream.runtime.call_loop import CANCEL_MS, CallLoop
from standfast.stream.task.task import Task
from standfast.stream.topology.calls import AsyncCall, AsyncContext, Calls, CallStep, Origin
from standfast.stream.topology.processor import CurrentRecord, Forward, Processor

WAIT_MS = 50  # between two steps of the loop's progress, while a task waits for its calls
SPARE_MS = 1_000  # beyond CANCEL_MS, for an event loop that is busy


@dataclass(frozen=True, slots=True)
class CallStatus:
    """An asynchronous step of a task: calls without a result, and results that wait for an earlier one."""

    step: str
    calling: int
    waiting: int


class _Queue:
    """The calls of one step, in the order of their records."""

    __slots__ = ("begun", "calls", "context", "room", "step")

    def __init__(self, step: CallStep, context: AsyncContext) -> None:
        self.step = step
        self.context = context
        self.calls: deque[AsyncCall] = deque()
        self.begun = 0  # of the calls that are in it
        self.room = 2 * step.settings.parallel


class TaskCalls:
    """The calls of one task. `failed` handles a call that failed for good, or raises its error."""

    def __init__(self, task: Task, hand: CurrentRecord, loop: CallLoop, failed: Callable[[AsyncCall], None]) -> None:
        self.in_flight = 0  # calls whose results have not been passed on, those not begun included
        self.made = 0  # ever, to find those of a record that is rolled back
        self.passing: AsyncCall | None = None  # the call whose results are being passed on, or that has just failed
        self._task = task
        self._hand = hand
        self._loop = loop
        self._failed = failed
        self._queues: list[_Queue] = []  # children first, as they are wired
        self._back: deque[AsyncCall] = deque()  # ended calls, from the event loop's thread
        self._closed = False

    def add_step(self, name: str, processor: Processor, context: AsyncContext) -> Forward:
        """Add a step; returns the function that takes its records."""
        given: Any = getattr(processor, "calls", None)
        step = CallStep(name, str(self._task.id), processor, Calls() if given is None else given, self._ended)
        queue = _Queue(step, context)
        self._queues.append(queue)
        return partial(self._make, queue)

    @property
    def full(self) -> bool:
        """Whether the task must not take a further record now."""
        return any(len(queue.calls) >= queue.room for queue in self._queues)

    def undo(self, made: int) -> None:
        """Forget the calls made since `made` calls: their record was rolled back. None of them has begun."""
        if self.made == made:
            return
        for queue in self._queues:
            while queue.calls and queue.calls[-1].number >= made:
                if queue.calls.pop().begun:
                    raise InternalError(f"{queue.step.name}: a call began within its record")
                self.in_flight -= 1
        self.made = made

    def begin(self) -> None:
        """Begin calls, up to each step's bound."""
        ready: list[AsyncCall] = []
        for queue in self._queues:
            if queue.begun < min(queue.room, len(queue.calls)):
                first, queue.begun = queue.begun, min(queue.room, len(queue.calls))
                for call in islice(queue.calls, first, queue.begun):
                    call.begun = True
                    ready.append(call)
                self._task.counters.calls_begun[queue.step.name] += queue.begun - first
        if ready:
            self._loop.begin(ready)

    def pass_on(self) -> int:
        """Pass the results of ended calls on, in the order of their records; returns of how many calls.

        The first error of a call or of a step behind it is raised, unless `on_error` skips the record.
        """
        self._count_ended()
        count = 0
        # Parents first, so that their results reach the next asynchronous step in this same turn.
        for queue in reversed(self._queues):
            while queue.calls and queue.calls[0].ended:
                # Left in front until its results are on their way: an error must not make the task look idle.
                self._pass(queue, queue.calls[0])
                queue.calls.popleft()
                queue.begun -= 1
                self.in_flight -= 1
                count += 1
        if self.in_flight:
            self._loop.check(self._waiting_text)
        return count

    def wait(self, wait_ms: float) -> None:
        """Wait until a call ends, for at most so many milliseconds."""
        if not self._back:
            self._loop.wait(wait_ms)

    def close(self, step: Callable[[], None]) -> None:
        """Cancel all calls and wait for their ends; raises the error of one that ignores its cancellation.

        `step` is called while it waits.
        """
        self._closed = True
        running = [call for queue in self._queues for call in queue.calls if call.begun and not call.ended]
        if running:
            self._loop.cancel(running)
        clock = self._loop.clock
        until_ms = clock.monotonic_ms() + CANCEL_MS + SPARE_MS
        while any(not call.ended for call in running) and clock.monotonic_ms() < until_ms:
            self._loop.wait(WAIT_MS)
            step()
        self._count_ended()
        for queue in self._queues:
            queue.calls.clear()
            queue.begun = 0
        self.in_flight = 0
        for call in running:
            if not call.ended:
                raise InvalidRequest(
                    f"{call}: not ended {duration_text(CANCEL_MS + SPARE_MS)} after it was cancelled, because a "
                    "function blocks the event loop: await there, or call the function by asyncio.to_thread"
                )
            if call.ignored and call.error is not None:
                raise call.error

    def status(self) -> tuple[CallStatus, ...]:
        """The calls of every step."""
        return tuple(
            CallStatus(
                queue.step.name, sum(not call.ended for call in queue.calls), sum(call.ended for call in queue.calls)
            )
            for queue in reversed(self._queues)
        )

    def _make(self, queue: _Queue, record: Record) -> None:
        hand = self._hand
        origin = Origin(hand.topic, hand.partition, hand.offset, hand.headers, self._task.record_timestamp)
        queue.calls.append(AsyncCall(self.made, queue.step, record, origin))
        self.made += 1
        self.in_flight += 1

    def _ended(self, call: AsyncCall) -> None:
        """On the event loop's thread: a deque takes this without a lock."""
        self._back.append(call)

    def _count_ended(self) -> None:
        counters = self._task.counters
        while self._back:
            call = self._back.popleft()
            name = call.step.name
            outcome = "cancelled" if call.cancelled else "succeeded" if call.error is None else "failed"
            counters.calls_ended[name, outcome] += 1
            counters.call_retries[name] += call.retries
            counters.call_timeouts[name] += call.timeouts
            counters.call_seconds[(name,)].observe((call.ended_ns - call.began_ns) * SECONDS_PER_NS)

    def _pass(self, queue: _Queue, call: AsyncCall) -> None:
        hand, origin, task = self._hand, call.hand, self._task
        self.passing = call
        hand.topic, hand.partition, hand.offset, hand.headers = origin[:4]
        task.record_timestamp = origin.timestamp
        try:
            if call.error is not None or call.cancelled:
                self._failed(call)
            else:
                for record, to in call.results:
                    queue.context.pass_on(record, to)
        finally:
            hand.clear()
            task.record_timestamp = None
        self.passing = None

    def _waiting_text(self) -> str:
        return ", ".join(f"step {one.step!r} of task {self._task.id} has {one.calling} calls" for one in self.status())
