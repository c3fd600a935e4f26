"""Asynchronous steps: a processor whose `process` is `async def`, its settings, and the context that its calls have.

    task's thread      record ──> Call ............................> results, in the order of the records ──> children
                                   │ begun, at most `parallel` at once     ▲
    event loop         `async def process(record)` ──> context.forward ────┘ kept in the call until its turn comes

A call has its record, the place of that record in its topic, and the records that it forwarded. It has no stores: those
belong to the task's thread, and to the steps before and after. So every store sees the records in their order, however
long each answer takes. Order and bounds are those of Flink's `orderedWait` (AsyncDataStream).

Rules of this file: no thread and no event loop; `standfast.stream.runtime.call_loop` runs the calls,
`standfast.stream.runtime.task_calls` passes their results on. One side at a time owns a call: the event loop from its
begin until `ended` is set, the task's thread before and after.
"""

from __future__ import annotations

import inspect
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Never, NoReturn, Protocol, TypedDict

from standfast.replication.log import Headers
from standfast.store.arguments import checked, is_whole, no_option, refuse
from standfast.store.errors import BadConfig, InvalidRequest
from standfast.store.names import few
from standfast.store.specs import StoreSpec
from standfast.stream.record import Record
from standfast.stream.topology.policy import OnError, StepOptions
from standfast.stream.topology.processor import Context, Forward, Processor, Services, has_timers, processor_problem
from standfast.stream.topology.stateless import no_pair

PARALLEL_MAX = 10_000
RETRIES_MAX = 1_000_000
WAIT_MAX_MS = 86_400_000  # a day: a longer wait for one answer is a mistake of units
Errors = type[Exception] | tuple[type[Exception], ...]


@checked(BadConfig)
@dataclass(frozen=True, slots=True)
class Calls:
    """Settings of an asynchronous step; a processor class has them as `calls = Calls(parallel=32)`.

    parallel        calls of the step that run at once, per task; as many more results may wait for an earlier one
    timeout_ms      milliseconds that one attempt may take; then it is cancelled, and counts as failed
    retries         attempts after the first one, if that fails with one of `retry_on` or takes too long
    backoff_ms      milliseconds before the first retry, doubled before each further one; half of it is random
    backoff_max_ms  the longest of these waits, in milliseconds
    retry_on        class of errors, or tuple of classes, that are tried again; any other error is final
    """

    parallel: int = 16
    timeout_ms: int = 10_000
    retries: int = 0
    backoff_ms: int = 100
    backoff_max_ms: int = 10_000
    retry_on: Errors = Exception

    def __post_init__(self) -> None:
        bounds = {
            "parallel": (1, PARALLEL_MAX),
            "timeout_ms": (1, WAIT_MAX_MS),
            "retries": (0, RETRIES_MAX),
            "backoff_ms": (0, WAIT_MAX_MS),
            "backoff_max_ms": (0, WAIT_MAX_MS),
        }
        problems = [
            f"calls: {name} must be a whole number from {least:,} to {most:,}, not {getattr(self, name)!r:.100}"
            for name, (least, most) in bounds.items()
            if not is_whole(getattr(self, name), least, most)
        ]
        kinds = self.retry_on if isinstance(self.retry_on, tuple) else (self.retry_on,)
        problems += [
            f"calls: retry_on must be a class of errors, such as OSError, or a tuple of classes, not {kind!r:.100}"
            for kind in kinds
            if not (isinstance(kind, type) and issubclass(kind, Exception))
        ]
        refuse(problems)

    def pause_ms(self, attempts: int, part: float) -> float:
        """The wait after so many failed attempts; `part`, from 0 to 1, chooses within its random half."""
        # The exponent is bounded: far along a row the power would be a huge number only to be cut off.
        whole = float(min(self.backoff_ms << min(attempts - 1, 40), self.backoff_max_ms))
        return whole * (0.5 + part / 2)


class CallOptions(TypedDict, total=False):
    """The keyword arguments of an asynchronous step; see Calls."""

    parallel: int
    timeout_ms: int
    retries: int
    backoff_ms: int
    backoff_max_ms: int
    retry_on: Errors


class AsyncOptions(CallOptions, total=False):
    """Keyword arguments of an asynchronous step:

    parallel        calls of the step that run at once, per task; as many more results may wait for an earlier one
    timeout_ms      milliseconds that one attempt may take; then it is cancelled, and counts as failed
    retries         attempts after the first one, if that fails with one of `retry_on` or takes too long
    backoff_ms      milliseconds before the first retry, doubled before each further one; half of it is random
    backoff_max_ms  the longest of these waits, in milliseconds
    retry_on        class of errors, or tuple of classes, that are tried again; any other error is final
    name            of the step; its calls and skipped records are counted under it. None: numbered by kind
    on_error        for a call that failed for good: "fail", "skip" (counted) or "dead_letter"; None: as the step before
    dead_letter     topic for records whose call failed, as they were read, with headers that say why
    """

    name: str | None
    on_error: OnError | None
    dead_letter: str | None


def split_options(options: AsyncOptions) -> tuple[Calls, StepOptions]:
    """The settings of the calls, and the options that every step has. BadConfig for an invalid setting."""
    given: dict[str, Any] = dict(options)
    calls = {name: given.pop(name) for name in CallOptions.__annotations__ if name in given}
    step: Any = given
    return Calls(**calls), step


class Origin(NamedTuple):
    """The record that the task had in hand when a call was made, as `InHand`, and the context's timestamp."""

    topic: str | None
    partition: int
    offset: int
    headers: Headers
    timestamp: int | None


class AsyncCall:
    """One call of an asynchronous step, for one record."""

    __slots__ = (
        "attempts", "began_ns", "begun", "cancelled", "ended", "ended_ns", "error", "hand", "ignored", "number",
        "record", "results", "retries", "running", "step", "timeouts",
    )  # fmt: skip

    def __init__(self, number: int, step: CallStep, record: Record, hand: Origin) -> None:
        self.number = number
        self.step = step
        self.record = record
        self.hand = hand
        self.begun = False
        self.ended = False  # set last by the event loop
        self.running: Any = None  # the asyncio task
        self.results: list[tuple[Record, str | None]] = []
        self.error: BaseException | None = None
        self.cancelled = False
        self.ignored = False  # its function ignored a cancellation, and still runs
        self.attempts = 0
        self.retries = 0
        self.timeouts = 0
        self.began_ns = 0
        self.ended_ns = 0

    def __str__(self) -> str:
        hand = self.hand
        of = "a timer or a punctuation" if hand.topic is None else f"{hand.topic}-{hand.partition} at {hand.offset}"
        return f"step {self.step.name!r} of task {self.step.task}, for key {self.record.key!r:.100} ({of})"


@dataclass(slots=True, eq=False)
class CallStep:
    """An asynchronous step of one task. `ended` is called on the event loop's thread, once for each of its calls.

    `pending` and `running` belong to that thread: calls that wait for their turn to run, and the number that runs.
    """

    name: str
    task: str
    processor: Processor
    settings: Calls
    ended: Callable[[AsyncCall], None]
    pending: deque[AsyncCall] = field(default_factory=deque)
    running: int = 0


CALL: ContextVar[AsyncCall | None] = ContextVar("standfast_call", default=None)


@checked(InvalidRequest, "pass_on")
class AsyncContext(Context):
    """The context of a processor whose `process` is `async def`.

    Within a call `forward` keeps the records until the call's turn comes; `topic`, `partition`, `offset`, `headers` and
    `timestamp` are those of the call's own record, also after an await. Punctuations run on the task's thread and
    have all of a context but stores. Any other use raises InvalidRequest.
    """

    def __init__(self, name: str, services: Services, children: Mapping[str, Forward]) -> None:
        super().__init__(name, services, (), children)
        self._thread = threading.get_ident()

    @property
    def topic(self) -> str | None:
        """Topic of the call's record."""
        call = CALL.get()
        return super().topic if call is None else call.hand.topic

    @property
    def partition(self) -> int:
        """Partition of the call's record."""
        call = CALL.get()
        return super().partition if call is None else call.hand.partition

    @property
    def offset(self) -> int:
        """Offset of the call's record."""
        call = CALL.get()
        return super().offset if call is None else call.hand.offset

    @property
    def headers(self) -> Headers:
        """Headers of the call's record."""
        call = CALL.get()
        return super().headers if call is None else call.hand.headers

    @property
    def timestamp(self) -> int:
        """Timestamp of the call's record; in a punctuation its now. Milliseconds."""
        call = CALL.get()
        return super().timestamp if call is None or call.hand.timestamp is None else call.hand.timestamp

    def store(self, store: str | StoreSpec) -> Any:
        """InvalidRequest: an asynchronous processor has no stores."""
        raise InvalidRequest(
            f"processor {self.name!r} is asynchronous and has no stores, which belong to the task's thread: read them "
            "in a step before it and write them in a step after it, which see the records in the same order"
        )

    def forward(self, record: Record, to: str | None = None, **unknown: Never) -> None:
        """Send a record to every child, or to the named one, once all earlier records have been sent."""
        if unknown:
            raise no_option(AsyncContext.forward, unknown)
        call = CALL.get()
        if call is None:
            self._check_thread("forward a record")
            super().forward(record, to)
            return
        if call.ended or call.step.name != self.name:
            raise InvalidRequest(f"{call}: a record was forwarded after its process had ended: await all of its work")
        self.check(record)
        if to is not None:
            self.child(to)
        call.results.append((record, to))

    def pass_on(self, record: Record, to: str | None) -> None:
        """A result of a call, to the children; on the task's thread."""
        give = self.give if to is None else self._services.giver(self.name, self.child(to))
        give(record)

    def send(self, *given: Any, **named: Any) -> None:
        """As Context.send, in a punctuation only."""
        self._check_thread("send bytes to a topic")
        super().send(*given, **named)

    def commit(self) -> None:
        """As Context.commit, in a punctuation only."""
        self._check_thread("ask for a commit")
        super().commit()

    def drop(self, reason: str, detail: str) -> None:
        """As Context.drop, in a punctuation only."""
        self._check_thread("count a skipped record")
        super().drop(reason, detail)

    @property
    def progress(self) -> dict[str, int]:
        """As Context.progress, in a punctuation only."""
        self._check_thread("use its progress")
        return super().progress

    def _check_inside(self, what: str) -> None:
        self._check_thread(what)
        super()._check_inside(what)

    def _check_thread(self, what: str) -> None:
        if CALL.get() is not None or threading.get_ident() != self._thread:
            self._refuse(what)

    def _refuse(self, what: str) -> NoReturn:
        raise InvalidRequest(
            f"processor {self.name!r} cannot {what} here: its process is asynchronous and runs beside the task, where "
            "a call may only forward records; do it in a step before or after, in init, or in a punctuation"
        )


class AsyncServices(Services, Protocol):
    """The runner's services, those for asynchronous steps included."""

    def caller(self, node: str, processor: Processor, context: AsyncContext) -> Forward:
        """The function that takes the records of an asynchronous step."""
        ...


def is_async(processor: object) -> bool:
    """Whether a processor, or its class, has an asynchronous `process`."""
    return inspect.iscoroutinefunction(getattr(processor, "process", None))


def async_problem(given: type[Processor], stores: Collection[str], step: str) -> str:
    """Why a processor class cannot be used with its asynchronous methods, "" if it can; `step` names the place."""
    name = given.__name__
    others = ("on_timer",) if is_async(given) else ("init", "on_timer", "close")
    for method in others:
        if inspect.iscoroutinefunction(getattr(given, method)):
            return f"{step}: {name}.{method} is async def, and would never be awaited: define it with def" + (
                ", or process with async def, too" if method != "on_timer" else ""
            )
    if not is_async(given):
        return ""
    calls = getattr(given, "calls", None)
    if calls is not None and not isinstance(calls, Calls):
        return f"{step}: {name}.calls must be settings such as standfast.Calls(parallel=32), not {calls!r:.100}"
    if stores:
        listed = few(stores)
        return (
            f"{step}: the process of {name} is async def, so that it has no stores ({listed}): read them in a step "
            "before it and write them in a step after it, which see the records in the same order"
        )
    if has_timers(given):
        return f"{step}: the process of {name} is async def, so that it has no timers: set them in a step after it"
    return ""


def check_processor(given: Any, where: str) -> None:
    """Raise InvalidRequest, or BadConfig, for an object that is decorated and cannot be a processor."""
    problem = processor_problem(given, "decorate")
    if problem:
        raise InvalidRequest(f"{where}: {problem}")
    refuse([problem] if (problem := async_problem(given, given.stores or (), where)) else [])


class MapAsync(Processor):
    """`await function(key, value)` is the new (key, value): a tuple of two."""

    stores = ()

    def __init__(self, function: Callable[..., Any], calls: Calls) -> None:
        self.function = function
        self.calls = calls

    def init(self, context: Context) -> None:
        self.context = context

    async def process(self, record: Record) -> None:
        pair = await self._asked(record.key, record.value)
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise no_pair(self.context.name, pair)
        self.context.forward(Record(pair[0], pair[1], record.timestamp, record.headers))

    def _asked(self, *given: Any) -> Any:
        answer = self.function(*given)
        if not inspect.isawaitable(answer):
            raise InvalidRequest(
                f"step {self.context.name!r}: the function returned {answer!r:.100}, which cannot be awaited: define "
                "it with async def, or use map or map_values for a function that waits for nothing"
            )
        return answer


class MapValuesAsync(MapAsync):
    """`await function(value)` is the new value."""

    async def process(self, record: Record) -> None:
        value = await self._asked(record.value)
        self.context.forward(Record(record.key, value, record.timestamp, record.headers))
