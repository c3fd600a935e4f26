"""The fluent layer's aggregations: the results of `group_by_key()` and `.window(...)`.

    stream.group_by_key().count("seen")
    stream.group_by_key().window(sf.TumblingWindows(60_000)).aggregate(init, add, "delays", emit=sf.ON_WINDOW_CLOSE)

The named store is declared with the application and must fit: its kind, the size of its windows, a retention that keeps
every open window. A stream whose key may have changed goes through `<app>-<store>-repartition` first.
A store of `UnlimitedWindows(s)` has window_size_ms = 2^63 - 1 - s and retention_ms = 2^63 - 1: its rows never expire.

Rules of this file: it declares, and processes nothing; a misfit is BadConfig with every problem and its fix.
Semantics and names are those of Kafka Streams' KGroupedStream, TimeWindowedKStream and SessionWindowedKStream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, Unpack, cast

from standfast.store.arguments import check_functions, checked
from standfast.store.errors import BadConfig
from standfast.store.specs import KeyValueStore, SessionStore, StoreSpec, WindowStore
from standfast.stream.dsl.aggregate import Aggregate
from standfast.stream.dsl.aggregation import Add, Aggregation, Aggregator, Init, Merge, counter, reducer
from standfast.stream.dsl.closing import WindowClosing, WindowOptions
from standfast.stream.dsl.fluent import Stream, Table, named_step, store_of_kind
from standfast.stream.dsl.session_aggregate import SessionAggregate
from standfast.stream.dsl.sliding_aggregate import SlidingAggregate
from standfast.stream.dsl.ways import GROUPED, WINDOWED, no_step
from standfast.stream.dsl.windowed_aggregate import ClosingAggregation, WindowedAggregate, numbers_of
from standfast.stream.dsl.windowed_serde import session_windowed, windowed
from standfast.stream.emit import ON_WINDOW_UPDATE, EmitStrategy
from standfast.stream.signatures import spelled_out
from standfast.stream.topology.nodes import ProcessorNode, Serdes
from standfast.stream.topology.policy import StepOptions
from standfast.stream.topology.stateless import ToTable
from standfast.stream.windows import AnyWindows, SessionWindows, SlidingWindows

Reduce = Callable[[Any, Any], Any]


@checked(BadConfig, "__init__", exact=("count", "reduce", "aggregate", "window"))
@spelled_out({})
@dataclass(frozen=True, slots=True)
class GroupedStream:
    """A stream grouped by key."""

    stream: Stream

    if not TYPE_CHECKING:  # type checkers know every name, and would take any with this

        def __getattr__(self, name: str) -> NoReturn:
            raise no_step(GroupedStream, name, GROUPED)

    def count(self, store: str, *, emit: EmitStrategy = ON_WINDOW_UPDATE, **step: Unpack[StepOptions]) -> Table:
        """Number of records per key; those without a value are skipped and counted as dropped."""
        return self._into(store, counter(takes_null=False), "count", emit, step)

    def reduce(
        self, function: Reduce, store: str, *, emit: EmitStrategy = ON_WINDOW_UPDATE, **step: Unpack[StepOptions]
    ) -> Table:
        """`function(aggregate, value)`; the first value of a key is its aggregate."""
        check_functions("reduce", function=function)
        return self._into(store, reducer(function), "reduce", emit, step)

    def aggregate(
        self, init: Init, add: Add, store: str, *, emit: EmitStrategy = ON_WINDOW_UPDATE, **step: Unpack[StepOptions]
    ) -> Table:
        """`add(key, value, aggregate)` returns the new aggregate, starting from `init()`; None removes the key."""
        check_functions("aggregate", init=init, add=add)
        return self._into(store, Aggregator(init, add), "aggregate", emit, step)

    def window(self, windows: AnyWindows) -> WindowedStream:
        """Group by key and window."""
        if not isinstance(windows, AnyWindows):
            raise BadConfig([f"window: {windows!r} are not windows: give TumblingWindows(size_ms) or another kind"])
        return WindowedStream(self.stream, windows)

    def _into(self, store: str, aggregator: Aggregator, what: str, emit: EmitStrategy, step: StepOptions) -> Table:
        spec = store_of_kind(self.stream.builder, store, (KeyValueStore,), what)
        problems = _common_problems(self.stream, spec)
        if emit is not ON_WINDOW_UPDATE:
            problems.append(f"emit={emit!r} needs windows: put .window(...) before it, or leave emit out")
        # Puts into such a store are not logged: a restore applies the topic and would lose the aggregates.
        if spec.from_source:
            problems.append("it holds a source topic as a table: give the aggregation a store of its own")
        _refuse(what, store, problems)
        make = partial(Aggregate, store, aggregator)
        stream, node = _add(self.stream, spec, make, what, (spec.key, spec.value), step)
        return Table(stream.builder, node, stream.defaults, spec.key, spec.value, False, store)


@checked(BadConfig, "__init__", exact=("count", "reduce", "aggregate"))
@spelled_out({WindowOptions: WindowClosing})
@dataclass(frozen=True, slots=True)
class WindowedStream:
    """A stream grouped by key and window. Keys of results are `Windowed(key, start, end)`."""

    stream: Stream
    windows: AnyWindows

    if not TYPE_CHECKING:  # as for a grouped stream

        def __getattr__(self, name: str) -> NoReturn:
            raise no_step(WindowedStream, name, WINDOWED)

    def count(self, store: str, **options: Unpack[WindowOptions]) -> Table:
        """Number of records per key and window; those without a value count too, except by sliding windows."""
        return self._into(store, counter(takes_null=self._takes_null()), "count", options)

    def reduce(self, function: Reduce, store: str, **options: Unpack[WindowOptions]) -> Table:
        """`function(aggregate, value)`; the first value is the aggregate. Records without a value are skipped."""
        check_functions("reduce", function=function)
        return self._into(store, reducer(function), "reduce", options)

    def aggregate(
        self,
        init: Init,
        add: Add,
        store: str,
        *,
        merge: Merge | None = None,
        **options: Unpack[WindowOptions],
    ) -> Table:
        """`add(key, value, aggregate)` from `init()` on. Sessions also need `merge(key, one, other)`.

        `add` receives values that are None, too; sliding windows skip and count records without a value.
        `merge` receives `init()` first, and then the aggregate of each session that the record joins.
        """
        check_functions("aggregate", init=init, add=add)
        sessions = isinstance(self.windows, SessionWindows)
        if sessions and not callable(merge):
            raise BadConfig([f"aggregate: sessions need merge=..., a function of (key, one, other), not {merge!r}"])
        if merge is not None and not sessions:
            raise BadConfig(["aggregate: only sessions are merged: leave merge out"])
        return self._into(store, Aggregator(init, add, merge, self._takes_null()), "aggregate", options)

    def _takes_null(self) -> bool:
        # Kafka Streams' sliding windows drop records without a value, its other windows do not.
        return not isinstance(self.windows, SlidingWindows)

    def _into(self, store: str, aggregator: Aggregator, what: str, options: WindowOptions) -> Table:
        closing, step = _split(options)
        windows, builder = self.windows, self.stream.builder
        kind = SessionStore if isinstance(windows, SessionWindows) else WindowStore
        spec = store_of_kind(builder, store, (kind,), f"{what} by {type(windows).__name__}")
        problems = _common_problems(self.stream, spec) + _window_problems(spec, windows)
        problems += closing.problems(windows)
        _refuse(what, store, problems)
        make = partial(_processor_for(windows), store, aggregator, windows, closing)
        key = session_windowed(spec.key) if kind is SessionStore else windowed(spec.key, spec.window_size_ms)
        numbers = numbers_of(store, closing)
        stream, node = _add(self.stream, spec, make, what, (key, spec.value), step, closing.late, numbers)
        # No store name: rows of a window store cannot be joined by a record's plain key.
        return Table(builder, node, stream.defaults, key, spec.value)


def _processor_for(windows: AnyWindows) -> type[ClosingAggregation[Any]]:
    if isinstance(windows, SessionWindows):
        return SessionAggregate
    return SlidingAggregate if isinstance(windows, SlidingWindows) else WindowedAggregate


def _split(options: WindowOptions) -> tuple[WindowClosing, StepOptions]:
    """The settings of the windows, and those of any step."""
    closing = WindowClosing(
        emit=options.get("emit", ON_WINDOW_UPDATE),
        close_after_ms=options.get("close_after_ms"),
        late=options.get("late"),
    )
    step = {name: given for name, given in options.items() if name in StepOptions.__annotations__}
    return closing, cast("StepOptions", step)


def _add(
    stream: Stream,
    spec: StoreSpec,
    make: Callable[[], Aggregation],
    what: str,
    results: Serdes,
    step: StepOptions,
    late: str | None = None,
    numbers: Sequence[str] = (),
) -> tuple[Stream, str]:
    named: StepOptions = {**step, "name": step.get("name") or f"{spec.name}-{what}"}
    name, policy = named_step(stream.builder, what, named)
    stream = stream.keyed(spec.name, policy, key=spec.key)
    node = stream.builder.add_processor(
        name,
        make,
        [stream.node],
        [spec.name],
        policy=policy,
        given=stream.serdes(),
        results=results,
        late=late,
        numbers=numbers,
    )
    return replace(stream, node=node), node


def _common_problems(stream: Stream, spec: StoreSpec) -> list[str]:
    problems = []
    # A store as a whole belongs to one writer, or two aggregations would add to each other's rows.
    for node in stream.builder.nodes.values():
        if isinstance(node, ProcessorNode) and spec.name in (node.stores or ()) and _writes(node):
            problems.append(f"node {node.name!r} writes it already: give each aggregation and table a store of its own")
    if not isinstance(spec, SessionStore) and not spec.timestamped:
        problems.append("it keeps no timestamps, which an aggregate has: leave timestamped=False out")
    return problems


def _writes(node: ProcessorNode) -> bool:
    made = node.make.func if isinstance(node.make, partial) else node.make
    return isinstance(made, type) and issubclass(made, Aggregation | ToTable)


def _window_problems(spec: WindowStore | SessionStore, windows: AnyWindows) -> list[str]:
    problems = []
    if isinstance(spec, WindowStore) and not isinstance(windows, SessionWindows):
        if spec.window_size_ms != windows.size_ms:
            problems.append(
                f"window_size_ms is {spec.window_size_ms} but the windows are {windows.size_ms} ms long: declare "
                f"window_size_ms={windows.size_ms}"
            )
        if spec.retain_duplicates:
            problems.append("retain_duplicates keeps every put, but an aggregate replaces the one before: leave it out")
    if spec.retention_ms < windows.retention_safe_ms:
        problems.append(
            f"retention_ms {spec.retention_ms} would hide windows that are still open: declare "
            f"retention_ms={windows.retention_safe_ms} or more"
        )
    return problems


def _refuse(what: str, store: str, problems: list[str]) -> None:
    if problems:
        raise BadConfig([f"{what}: store {store!r}: {problem}" for problem in problems])
