"""The interface of an application's processors, and the context they run in.

Rules of this file: no threads, no log; a context serves one processor of one task, and only while it runs. The task's
runner carries out the calls of a context (`Services`).
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar, Never, Protocol, cast

from standfast.replication.log import Headers
from standfast.store.arguments import checked, no_option
from standfast.store.errors import InvalidRequest
from standfast.store.names import few
from standfast.store.specs import StoreSpec, store_name
from standfast.store.types.kinds import gives_stores
from standfast.stream.punctuation import Callback, Cancellable, PunctuationType
from standfast.stream.record import Record
from standfast.stream.task.task import Task
from standfast.stream.timer import EVENT_TIME, Timer, TimerKind
from standfast.stream.trace import Inject

Forward = Callable[[Record], None]


class CurrentRecord:
    """The record that a task processes, shared by all its processors; empty in a punctuation or a timer."""

    __slots__ = ("headers", "offset", "partition", "topic")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """No record: topic None, partition -1, offset -1, no headers."""
        self.topic: str | None = None
        self.partition = -1
        self.offset = -1
        self.headers: Headers = ()


class Services(Protocol):
    """The runner's services for the contexts of its processors, and around them."""

    task: Task
    in_hand: CurrentRecord
    inject: Inject | None

    def schedule(
        self, context: Context, interval_ms: int, kind: PunctuationType, callback: Callback, start_ms: int | None
    ) -> Cancellable: ...

    def set_timer(self, context: Context, key: Any, time_ms: int, kind: TimerKind) -> None: ...

    def cancel_timer(self, context: Context, key: Any, time_ms: int, kind: TimerKind) -> None: ...

    def stream_time_ms(self) -> int | None: ...

    def watermark_ms(self) -> int | None: ...

    def wall_ms(self) -> int: ...

    def drop(self, node: str, reason: str, detail: str) -> None: ...

    def on_flush(self, flush: Callable[[], None]) -> None: ...

    def on_watermark(self, node: str, advance: Callable[[int], None]) -> None: ...

    def before_watermark(self, node: str, flush: Callable[[], None]) -> None: ...

    def on_silence(self, after_ms: int, close: Callable[[], None]) -> Callable[[], None]: ...

    def late(self, node: str, record: Record) -> bool: ...

    def giver(self, node: str, forward: Forward) -> Forward: ...

    def read_result(self, node: str, read: Callable[..., Record | None], given: tuple[Any, ...]) -> Record | None: ...


@checked(InvalidRequest, exact=("schedule", "timer", "cancel_timer"))
class Context:
    """A processor's access to its task. `topic`, `partition`, `offset`, `headers` are those of the record in hand.

    In a punctuation or a timer there is no record: topic None, partition -1, offset -1, no headers.
    """

    def __init__(self, name: str, services: Services, stores: tuple[str, ...], children: Mapping[str, Forward]) -> None:
        self.name = name
        self.closed = False
        self.downstream: Forward = to_all(tuple(children.values()))
        # For results: if one fails downstream, only its effects there are rolled back, as on_error says.
        self.give: Forward = services.giver(name, self.downstream)
        self._giving = False  # in a flush there is no record in hand: each forwarded record is a result
        self._services = services
        self._task = services.task
        self._in_hand = services.in_hand
        self._stores = stores
        self._children = dict(children)

    @property
    def has_children(self) -> bool:
        """Whether forwarded records go anywhere."""
        return bool(self._children)

    @property
    def topic(self) -> str | None:
        """Topic of the record in hand."""
        return self._in_hand.topic

    @property
    def partition(self) -> int:
        """Partition of the record in hand."""
        return self._in_hand.partition

    @property
    def offset(self) -> int:
        """Offset of the record in hand."""
        return self._in_hand.offset

    @property
    def headers(self) -> Headers:
        """Headers of the record in hand."""
        return self._in_hand.headers

    @property
    def timestamp(self) -> int:
        """Timestamp of the record in hand; in a punctuation its now, in a timer its time. Milliseconds."""
        return self._task.now_ms()

    @property
    def task_id(self) -> str:
        """The task, as `0_3`."""
        return str(self._task.id)

    @property
    def app(self) -> str:
        """The application."""
        return self._task.app

    @property
    def stream_time_ms(self) -> int | None:
        """The task's stream time; None while it is unknown."""
        return self._services.stream_time_ms()

    @property
    def watermark_ms(self) -> int | None:
        """The task's event-time clock; None while it is unknown or no source generates watermarks."""
        return self._services.watermark_ms()

    @property
    def wall_clock_ms(self) -> int:
        """The wall clock."""
        return self._services.wall_ms()

    @gives_stores
    def store(self, store: str | StoreSpec) -> Any:
        """A store that this processor is connected to, for this task's partition.

        By its definition the result has its types (KeyValueState[K, V], ...), by its name it is Any. Raises
        InvalidRequest for a store that is not connected, or whose definition differs from the declared one.
        """
        name = store_name(store)
        if name not in self._stores:
            known = few(sorted(self._stores)) or "none"
            raise InvalidRequest(
                f"store {name!r} is not connected to processor {self.name!r} (connected: {known}): declare it in the "
                "application's stores, and name it in the processor's `stores` or where the processor is added"
            )
        return self._task.store(cast("str", store))

    def forward(self, record: Record, to: str | None = None, **unknown: Never) -> None:
        """Send a record to every child, or to the named one. InvalidRequest for anything but a valid Record."""
        if unknown:
            raise no_option(Context.forward, unknown)
        if type(record) is not Record or type(record.timestamp) is not int or record.timestamp < 0:
            self.check(record)
        if to is None:
            (self.give if self._giving else self.downstream)(record)
            return
        child = self.child(to)
        (self._services.giver(self.name, child) if self._giving else child)(record)

    def check(self, record: object) -> None:
        """Raise InvalidRequest for anything but a record that can be forwarded."""
        # Checked here, where the processor at fault is known: a child or a store would fail later and elsewhere.
        if type(record) is not Record:
            raise InvalidRequest(
                f"processor {self.name!r} forwards {type(record).__name__}: give a standfast.Record(key, value, time)"
            )
        stamp = record.timestamp
        if type(stamp) is not int or stamp < 0:
            raise InvalidRequest(
                f"processor {self.name!r} forwards a record with timestamp {stamp!r}: give whole milliseconds from 0"
            )

    def child(self, to: str) -> Forward:
        """The call of the named child. InvalidRequest for an unknown one."""
        child = self._children.get(to)
        if child is None:
            known = few(self._children) or "none"
            raise InvalidRequest(f"processor {self.name!r} has no child {to!r} (it has: {known})")
        return child

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp: int | None = None,
        *,
        partition: int,
        headers: Headers = (),
    ) -> None:
        """Write bytes to a topic with the next commit, in the same transaction under exactly once."""
        if self._services.inject is not None:
            headers = self._services.inject(headers)
        self._task.send(topic, key, value, timestamp, partition=partition, headers=headers)

    def schedule(
        self,
        interval_ms: int,
        kind: PunctuationType,
        callback: Callback,
        start_ms: int | None = None,
    ) -> Cancellable:
        """Call `callback(now_ms)` repeatedly: STREAM_TIME as records advance it, WALL_CLOCK_TIME without records too.

        First due: stream time 0, or `start_ms`; wall clock one interval from now, or anchored at `start_ms`. Semantics
        of Kafka Streams' ProcessorContext.schedule. InvalidRequest for an interval below 1, on a standby, and outside
        a running processor. Schedules are not kept: `init` makes them again.
        """
        self._check_inside("schedule a punctuation")
        return self._services.schedule(self, interval_ms, kind, callback, start_ms)

    def timer(self, key: Any, time_ms: int, kind: TimerKind = EVENT_TIME) -> None:
        """Call `on_timer` once when the time is reached; the same key, time and kind is one timer.

        EVENT_TIME waits for the watermark, PROCESSING_TIME for the wall clock. Timers are kept in a logged store and
        survive a failover. Semantics of Flink's TimerService.
        """
        self._check_inside("set a timer")
        self._services.set_timer(self, key, time_ms, kind)

    def cancel_timer(self, key: Any, time_ms: int, kind: TimerKind = EVENT_TIME) -> None:
        """Cancel a timer; an absent one is fine."""
        self._check_inside("cancel a timer")
        self._services.cancel_timer(self, key, time_ms, kind)

    def commit(self) -> None:
        """Request a commit after the current record."""
        self._task.commit_requested = True

    def drop(self, reason: str, detail: str) -> None:
        """Count a skipped record, and log it at a limited rate."""
        self._services.drop(self.name, reason, detail)

    def on_flush(self, flush: Callable[[], None]) -> None:
        """Have `flush` called at every commit, before anything is written: it forwards suppressed results.

        A record that it forwards is skipped by itself if it fails downstream, where `on_error` says so. An error of
        `flush` itself fails the task: only the processor knows its remaining results.
        """

        def give_all() -> None:
            self._giving = True
            try:
                flush()
            finally:
                self._giving = False

        self._services.on_flush(give_all)

    def on_watermark(self, advance: Callable[[int], None]) -> None:
        """Have `advance(watermark_ms)` called when the task's watermark advances, and once when the task starts.

        The processors are called in the order of the topology, each with its timers, so that records which one forwards
        reach the next one before that is called. Never called in a task without watermarks.
        """
        self._services.on_watermark(self.name, advance)

    def before_watermark(self, flush: Callable[[], None]) -> None:
        """Have `flush` called before a watermark goes on to a processor below that asked for it, or to another task.

        It forwards suppressed results, which the watermark would otherwise make late there.
        """
        self._services.before_watermark(self.name, flush)

    def on_silence(self, after_ms: int, close: Callable[[], None]) -> Callable[[], None]:
        """Have `close` called once no record came for `after_ms` of monotonic time; call the result at each record.

        Only once everything that the task's inputs hold by then was processed, and again only after a further record.
        """
        return self._services.on_silence(after_ms, close)

    def late(self, record: Record) -> bool:
        """Write a record to this step's `late` topic; False if it has none."""
        return self._services.late(self.name, record)

    def read_result(self, read: Callable[..., Record | None], *given: Any) -> Record | None:
        """`read(*given)`, the result of a stored row; None, and counted, if the row's serde cannot read it and
        `on_error` skips that."""
        return self._services.read_result(self.name, read, given)

    @property
    def progress(self) -> dict[str, int]:
        """Numbers that are kept with every commit, locally and in the log; the processor chooses their names.

        They must only grow: where an opening finds several, locally and in the log, the largest counts.
        """
        return self._task.progress

    def close(self) -> None:
        """End the context: nothing can be scheduled any more."""
        self.closed = True

    def _check_inside(self, what: str) -> None:
        if self._task.role == "standby":
            raise InvalidRequest(f"processor {self.name!r} cannot {what}: task {self._task.id} is a standby here")
        if self.closed:
            raise InvalidRequest(
                f"cannot {what} outside a processor: {self.name!r} of task {self._task.id} does not run any more; do "
                "it in init, process, a punctuation or a timer"
            )


class Processor:
    """Base of an application's processors; one instance per task.

    `stores` names the stores it is connected to; None: every declared store that no other processor names.
    A class that defines `on_timer` has timers; `timer_key` is the serde of their keys (default: the source's).
    `process` may be `async def`, and `init` and `close` then too: for calls to other services, on an event loop beside
    the task. Its forwarded records go on in the order of the records, and it has neither stores nor timers; `calls`
    has its settings, such as `standfast.Calls(parallel=32)`.
    """

    stores: ClassVar[tuple[str, ...] | None] = None
    timer_key: ClassVar[Any] = None

    def init(self, context: Context) -> Awaitable[None] | None:
        """Called once before the first record, when every store is restored."""

    def process(self, record: Record) -> Awaitable[None] | None:
        """Called for each record of the sources, in offset order per partition."""

    def on_timer(self, timer: Timer) -> None:
        """Called when a timer is due; event-time timers by time and then by key."""

    def close(self) -> Awaitable[None] | None:
        """Called when the task leaves this instance."""


def has_timers(processor: type[Processor]) -> bool:
    """Whether a class handles timers, so that its tasks need a store for them."""
    return processor.on_timer is not Processor.on_timer


def processor_problem(given: object, step: str) -> str:
    """Why an object cannot be a processor of an application, "" if it can; `step` says how it was passed."""
    if not (isinstance(given, type) and issubclass(given, Processor)):
        return f"{step} a subclass of standfast.Processor, not {given!r:.100}"
    # Tried now, because the runner creates processors much later, in the middle of opening a task.
    try:
        inspect.signature(given).bind()
    except TypeError as error:
        return (
            f"{given.__name__} is made without arguments, once for each task, and its __init__ needs some ({error}): "
            "set them on the class, or in init(context)"
        )
    except ValueError:  # a class without a signature cannot be checked
        return ""
    return ""


def to_all(children: tuple[Forward, ...]) -> Forward:
    """One call for all children of a node."""
    # A single child is called directly: one call less for each record.
    if len(children) == 1:
        return children[0]

    def forward(record: Record) -> None:
        for child in children:
            child(record)

    return forward
