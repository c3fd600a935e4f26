"""The fluent layer: streams and tables, written as a chain of steps.

    app.stream("clicks").filter(f).group_by_key().window(sf.SessionWindows(60_000)).count("visits").to("out")

Each step adds a node to the application's topology. Functions take (key, value) as in Kafka Streams. A step that may
change the key marks the stream; a later step that needs equal keys together puts a repartition topic before itself.

Every step takes `name=`, and `on_error=` with `dead_letter=` for failures in it and further downstream: see
`standfast.stream.topology.policy`.

Rules of this file: it declares, and processes nothing. Semantics and names are those of Kafka Streams' KStream and
KTable.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, Unpack

from standfast.store.arguments import check_functions, checked, refuse
from standfast.store.errors import BadConfig
from standfast.store.names import check_name, few
from standfast.store.serde import Serde, serde_problems
from standfast.stream.dsl.ways import STREAM, TABLE, no_step
from standfast.stream.signatures import spelled_out
from standfast.stream.topology.calls import (
    AsyncOptions,
    Calls,
    MapAsync,
    MapValuesAsync,
    async_problem,
    split_options,
)
from standfast.stream.topology.nodes import Partitioner, Serdes
from standfast.stream.topology.policy import ErrorPolicy, OnErrorOptions, StepOptions, step_policy
from standfast.stream.topology.processor import Processor, has_timers, processor_problem
from standfast.stream.topology.stateless import (
    Filter,
    FlatMap,
    Map,
    MapTableValues,
    MapValues,
    PassOn,
    Peek,
    SelectKey,
    TableJoin,
)
from standfast.stream.topology.topology import TopologyBuilder

if TYPE_CHECKING:
    from standfast.stream.dsl.grouped import GroupedStream

SerdeOrNone = Serde[Any] | None

# Steps of streams that are wrong for a table, and why.
_LOST = "a key whose value no longer passes would stay downstream"
_CHANGED = "the old value of a changed key would stay downstream"
_ALONE = "the old value of an update does not go through a topic"
_ASKED = "the old value of an update was asked for at another time, and may have had another answer"
_ADDED = "each update would be added without taking its old value away"
TABLE_REFUSES = {
    **dict.fromkeys(("filter", "filter_not"), _LOST),
    **dict.fromkeys(("map", "flat_map", "select_key"), _CHANGED),
    **dict.fromkeys(("map_async", "map_values_async"), _ASKED),
    **dict.fromkeys(("repartition", "broadcast"), _ALONE),
    **dict.fromkeys(("group_by_key", "group_by"), _ADDED),
    "merge": "the keys of two tables would overwrite each other",
}


@dataclass(frozen=True, slots=True)
class Defaults:
    """Serdes for streams whose own are unknown, such as after a map."""

    key: Serde[Any]
    value: Serde[Any]


@checked(BadConfig, "__init__", exact=("join", "left_join"))
@spelled_out({AsyncOptions: Calls})
@dataclass(frozen=True, slots=True)
class Stream:
    """A stream of records. `key` and `value` are its serdes; None after a step that may have changed the type."""

    builder: TopologyBuilder
    node: str
    defaults: Defaults
    key: SerdeOrNone = None
    value: SerdeOrNone = None
    rekeyed: bool = False

    if not TYPE_CHECKING:  # type checkers know every name, and would take any with this

        def __getattr__(self, name: str) -> NoReturn:
            raise no_step(type(self), name, (STREAM, TABLE)[isinstance(self, Table)])

    def filter(self, predicate: Callable[[Any, Any], bool], **step: Unpack[StepOptions]) -> Stream:
        """Records for which `predicate(key, value)` is true."""
        self._check("filter", predicate=predicate)
        return self._step("filter", partial(Filter, predicate), step)

    def filter_not(self, predicate: Callable[[Any, Any], bool], **step: Unpack[StepOptions]) -> Stream:
        """Records for which `predicate(key, value)` is false."""
        self._check("filter_not", predicate=predicate)
        return self._step("filter-not", partial(Filter, predicate, False), step)

    def map(
        self,
        mapper: Callable[[Any, Any], tuple[Any, Any]],
        *,
        key: SerdeOrNone = None,
        value: SerdeOrNone = None,
        **step: Unpack[StepOptions],
    ) -> Stream:
        """`mapper(key, value)` returns the new (key, value)."""
        self._check("map", key, value, mapper=mapper)
        return replace(self._step("map", partial(Map, mapper), step), key=key, value=value, rekeyed=True)

    def map_values(
        self, mapper: Callable[[Any], Any], *, value: SerdeOrNone = None, **step: Unpack[StepOptions]
    ) -> Stream:
        """`mapper(value)` returns the new value; the key stays."""
        self._check("map_values", value, mapper=mapper)
        return replace(self._step("map-values", partial(MapValues, mapper), step), value=value)

    def map_async(
        self,
        mapper: Callable[[Any, Any], Awaitable[tuple[Any, Any]]],
        *,
        key: SerdeOrNone = None,
        value: SerdeOrNone = None,
        **options: Unpack[AsyncOptions],
    ) -> Stream:
        """`await mapper(key, value)` returns the new (key, value): for calls to other services.

        Up to `parallel` calls run at once, on an event loop beside the task; results go on in the order of the records.
        A commit waits for the results of all records that it covers.
        """
        return replace(
            self._asking("map-async", MapAsync, mapper, options, (key, value)), key=key, value=value, rekeyed=True
        )

    def map_values_async(
        self, mapper: Callable[[Any], Awaitable[Any]], *, value: SerdeOrNone = None, **options: Unpack[AsyncOptions]
    ) -> Stream:
        """`await mapper(value)` returns the new value, as in `map_async`; the key stays."""
        made = self._asking("map-values-async", MapValuesAsync, mapper, options, (self.key, value))
        return replace(made, value=value)

    def flat_map(
        self,
        mapper: Callable[[Any, Any], Iterable[tuple[Any, Any]]],
        *,
        key: SerdeOrNone = None,
        value: SerdeOrNone = None,
        **step: Unpack[StepOptions],
    ) -> Stream:
        """`mapper(key, value)` returns any number of (key, value)."""
        self._check("flat_map", key, value, mapper=mapper)
        return replace(self._step("flat-map", partial(FlatMap, mapper), step), key=key, value=value, rekeyed=True)

    def select_key(
        self, mapper: Callable[[Any, Any], Any], *, key: SerdeOrNone = None, **step: Unpack[StepOptions]
    ) -> Stream:
        """`mapper(key, value)` returns the new key."""
        self._check("select_key", key, mapper=mapper)
        return replace(self._step("select-key", partial(SelectKey, mapper), step), key=key, rekeyed=True)

    def peek(self, action: Callable[[Any, Any], Any], **step: Unpack[StepOptions]) -> Stream:
        """Call `action(key, value)` for each record, which is forwarded unchanged."""
        self._check("peek", action=action)
        return self._step("peek", partial(Peek, action), step)

    def merge(self, other: Stream, **step: Unpack[StepOptions]) -> Stream:
        """Records of both streams, in the order in which the task reads them."""
        self._check("merge")
        if not isinstance(other, Stream):
            raise BadConfig([f"merge: it takes another stream, not {other!r:.100}"])
        if isinstance(other, Table):
            raise other._refused("merge", "its deletes would remove keys of the stream")
        both = Stream(
            self.builder,
            self.node,
            self.defaults,
            key=self.key if self.key == other.key else None,
            value=self.value if self.value == other.value else None,
            rekeyed=self.rekeyed or other.rekeyed,
        )
        return both._step("merge", PassOn, step, other.node)

    def process(
        self,
        processor: type[Processor],
        *stores: str,
        key: SerdeOrNone = None,
        value: SerdeOrNone = None,
        **step: Unpack[StepOptions],
    ) -> Stream:
        """A processor of your own, connected to `stores`; its forwarded records are the returned stream.

        Timers are kept under the step's name: `name`, or the class's, which only one unnamed step of an
        application that runs may have. An `on_error` here covers its timers and punctuations too; their failures are
        only counted, since there is no record for a dead letter.
        """
        problem = processor_problem(processor, "give")
        if problem:
            functions = "for a function of key and value there are map, map_values, flat_map, filter and peek"
            raise BadConfig([f"process: {problem}; {functions}"])
        self._check("process", key, value)
        unnamed = [one for one in stores if not isinstance(one, str)]
        if unnamed:
            raise BadConfig([f"process: stores are named by text, not by {unnamed[0]!r:.100}: give its name"])
        named = stores or (() if processor.stores is None else processor.stores)
        problem = async_problem(processor, named, "process")
        if problem:
            raise BadConfig([problem])
        kind = processor.__name__
        timer_key = (processor.timer_key or self._key()) if has_timers(processor) else None
        if timer_key is not None and step.get("name") is None:
            # The policy is checked before the lasting name is taken, so that a refused step takes no name.
            named_step(self.builder, kind, step)
            step = {**step, "name": self.builder.lasting_name(kind, f"process({kind}), which has timers")}
        name, policy = named_step(self.builder, kind, step)
        node = self.builder.add_processor(
            name,
            processor,
            [self.node],
            named,
            timer_key,
            policy=policy,
            given=self.serdes(),
            results=(key or self.defaults.key, value or self.defaults.value),
        )
        # A processor may change keys, which its type does not show.
        return Stream(self.builder, node, self.defaults, key, value, rekeyed=True)

    def to(
        self,
        topic: str,
        *,
        key: SerdeOrNone = None,
        value: SerdeOrNone = None,
        partitioner: Partitioner | None = None,
        **step: Unpack[StepOptions],
    ) -> None:
        """Write to a topic; `partitioner(key, value, partitions)` chooses the partition, by default the key's hash."""
        self._check("to", key, value)
        if partitioner is not None:
            self._check("to", partitioner=partitioner)
        name, policy = named_step(self.builder, f"{topic}-sink", step)
        self.builder.add_sink(
            name, topic, [self.node], key or self._key(), value or self._value(), partitioner, policy=policy
        )

    def repartition(
        self,
        name: str,
        *,
        partitions: int = 0,
        key: SerdeOrNone = None,
        value: SerdeOrNone = None,
        **on_error: Unpack[OnErrorOptions],
    ) -> Stream:
        """Through `<app>-<name>-repartition`: records of equal keys come together again, in a task of their own."""
        self._check("repartition")
        policy = step_policy(name, **on_error)
        return self._through(name, "repartition", partitions, key or self._key(), value or self._value(), policy)

    def broadcast(
        self,
        name: str,
        *,
        partitions: int = 0,
        key: SerdeOrNone = None,
        value: SerdeOrNone = None,
        **on_error: Unpack[OnErrorOptions],
    ) -> Stream:
        """Through `<app>-<name>-broadcast`: every record goes to every downstream task."""
        self._check("broadcast")
        policy = step_policy(name, **on_error)
        return self._through(name, "broadcast", partitions, key or self._key(), value or self._value(), policy)

    def group_by_key(self, *, key: SerdeOrNone = None, value: SerdeOrNone = None) -> GroupedStream:
        """Group records by key, for count, reduce and aggregate."""
        from standfast.stream.dsl.grouped import GroupedStream  # here, because the two modules name each other

        # Any, because the import cycle gives type checkers two paths to this class.
        self._check("group_by_key", key, value)
        own: Any = replace(self, key=key or self.key, value=value or self.value)
        return GroupedStream(own)

    def group_by(
        self,
        mapper: Callable[[Any, Any], Any],
        *,
        key: SerdeOrNone = None,
        value: SerdeOrNone = None,
        **step: Unpack[StepOptions],
    ) -> GroupedStream:
        """Group records by `mapper(key, value)`, through a repartition topic."""
        self._check("group_by", key, value, mapper=mapper)
        return self.select_key(mapper, key=key, **step).group_by_key(value=value)

    def join(
        self,
        table: Table,
        joiner: Callable[[Any, Any], Any],
        *,
        value: SerdeOrNone = None,
        **step: Unpack[StepOptions],
    ) -> Stream:
        """`joiner(value, table value)` for each record whose key is in the table.

        A stream whose key may have changed goes through `<app>-<name>-repartition` first; `name` is `<table>-join`
        by default, which only one unnamed join of an application that runs may have.
        """
        return self._join(table, joiner, False, value, step)

    def left_join(
        self,
        table: Table,
        joiner: Callable[[Any, Any], Any],
        *,
        value: SerdeOrNone = None,
        **step: Unpack[StepOptions],
    ) -> Stream:
        """As `join`, with None where the key is not in the table."""
        return self._join(table, joiner, True, value, step)

    def _join(
        self, table: Table, joiner: Callable[[Any, Any], Any], left: bool, value: SerdeOrNone, step: StepOptions
    ) -> Stream:
        if not isinstance(table, Table) or table.store is None:
            why = "this table has none, or was filtered or mapped"
            if not isinstance(table, Table):
                why = (
                    f"this is a {type(table).__name__}. Of two streams write one to a topic, and read that by app.table"
                )
            raise BadConfig(
                [f"a stream is joined with a table that has a store, such as app.table(topic) or .count(store): {why}"]
            )
        self._check("left_join" if left else "join", value, joiner=joiner)
        name = step.get("name")
        # Failures are counted under the table's name: a numbered one would change with the steps before it.
        policy = named_step(self.builder, "join", {**step, "name": name or f"{table.store}-join"})[1]
        own = self.keyed(self._join_topic(table.store, name), policy)
        node = self.builder.add_processor(
            name or self.builder.new_name("join"),
            partial(TableJoin, table.store, joiner, left),
            [own.node],
            [table.store],
            # KIP-962: a left join processes records without a key, an inner join drops them.
            null_keys=left,
            policy=policy,
            given=own.serdes(),
        )
        return Stream(self.builder, node, self.defaults, own.key, value, own.rekeyed)

    def _join_topic(self, store: str, name: str | None) -> str:
        """Name of the repartition topic before a join, if one is needed; two joins never share one."""
        what = f"join with table {store!r}, of a stream whose key may have changed"
        if name is None:
            return self.builder.lasting_name(f"{store}-join", what) if self.rekeyed else ""
        if self.rekeyed and f"{self.builder.app}-{name}-repartition" in self.builder.internal:
            raise BadConfig([f"{what}: a repartition topic has the name {name!r} already: give it another name"])
        return name

    def keyed(self, name: str, policy: ErrorPolicy | None = None, key: SerdeOrNone = None) -> Stream:
        """This stream with equal keys together: itself, or through `<app>-<name>-repartition` if its key changed.

        `policy` is that of the step that needs equal keys together; it covers the repartition too.
        """
        if not self.rekeyed:
            return self
        return self._through(name, "repartition", 0, key or self._key(), self._value(), policy)

    def serdes(self) -> Serdes:
        """The serdes of its keys and values, or the defaults."""
        return self._key(), self._value()

    def _check(self, step: str, *serdes: SerdeOrNone, **functions: object) -> None:
        """Refuse wrong arguments of a step before it is declared: serdes that are none, functions that are none."""
        refuse([f"{step}: {problem}" for one in serdes if one is not None for problem in serde_problems(serde=one)])
        check_functions(step, **functions)

    def _step(self, kind: str, make: Callable[[], Processor], step: StepOptions, *others: str) -> Stream:
        name, policy = named_step(self.builder, kind, step)
        node = self.builder.add_processor(name, make, [self.node, *others], policy=policy, given=self.serdes())
        return Stream(self.builder, node, self.defaults, self.key, self.value, self.rekeyed)

    def _asking(
        self,
        kind: str,
        step: type[MapAsync],
        mapper: Callable[..., Any],
        options: AsyncOptions,
        results: tuple[SerdeOrNone, SerdeOrNone],
    ) -> Stream:
        """An asynchronous step."""
        self._check(kind.replace("-", "_"), *results)
        if not callable(mapper):
            raise BadConfig([f"{kind.replace('-', '_')}: mapper must be an async function, not {mapper!r:.100}"])
        calls, common = split_options(options)
        name, policy = named_step(self.builder, kind, common)
        node = self.builder.add_processor(
            name,
            partial(step, mapper, calls),
            [self.node],
            policy=policy,
            given=self.serdes(),
            results=(results[0] or self.defaults.key, results[1] or self.defaults.value),
        )
        return Stream(self.builder, node, self.defaults, self.key, self.value, self.rekeyed)

    def _through(
        self,
        name: str,
        kind: Any,
        partitions: int,
        key: Serde[Any],
        value: Serde[Any],
        policy: ErrorPolicy | None,
    ) -> Stream:
        if not isinstance(partitions, int) or isinstance(partitions, bool) or partitions < 0:
            raise BadConfig([f"{kind} {name!r}: partitions must be a whole number from 1, or 0 for as many as before"])
        node = self.builder.add_exchange(name, kind, [self.node], key, value, partitions, policy)
        return Stream(self.builder, node, self.defaults, key, value)

    def _key(self) -> Serde[Any]:
        return self.key or self.defaults.key

    def _value(self) -> Serde[Any]:
        return self.value or self.defaults.value


@checked(BadConfig, "__init__")
@spelled_out({})
@dataclass(frozen=True, slots=True)
class Table(Stream):
    """A stream of updates: the latest value of each key; `record.old_value` is the one before, None value a delete.

    `store` is the name of the store that holds it, if one does. A table supports `map_values`, `peek`, `process`,
    `to` and `to_stream`. A step of streams that would treat updates as plain records, such as a filter that loses the
    delete of a value that it let through before, is BadConfig.
    """

    store: str | None = None

    def to_stream(self) -> Stream:
        """The updates as a plain stream: a delete is a record whose value is None, and functions receive that None."""
        return Stream(self.builder, self.node, self.defaults, self.key, self.value, self.rekeyed)

    def map_values(
        self, mapper: Callable[[Any], Any], *, value: SerdeOrNone = None, **step: Unpack[StepOptions]
    ) -> Table:
        """`mapper(value)` returns the new value, and is applied to the old value too; a delete stays a delete."""
        self._check("map_values", value, mapper=mapper)
        return self._updates("map-values", partial(MapTableValues, mapper), step, value)

    def peek(self, action: Callable[[Any, Any], Any], **step: Unpack[StepOptions]) -> Table:
        """Call `action(key, value)` for each update, with value None for a delete; the update goes on unchanged."""
        self._check("peek", action=action)
        return self._updates("peek", partial(Peek, action), step, self.value)

    def _check(self, step: str, *serdes: SerdeOrNone, **functions: object) -> None:
        if step in TABLE_REFUSES:
            raise self._refused(step, TABLE_REFUSES[step])
        Stream._check(self, step, *serdes, **functions)

    def _join(
        self, table: Table, joiner: Callable[[Any, Any], Any], left: bool, value: SerdeOrNone, step: StepOptions
    ) -> Stream:
        raise self._refused(
            "left_join" if left else "join", "updates of the other table, and deletes, would change nothing"
        )

    def _updates(self, kind: str, make: Callable[[], Processor], step: StepOptions, value: SerdeOrNone) -> Table:
        node = self._step(kind, make, step).node
        return Table(self.builder, node, self.defaults, self.key, value, self.rekeyed)

    def _refused(self, step: str, why: str) -> BadConfig:
        what = f"table {self.store!r}" if self.store is not None else f"the table at node {self.node!r}"
        return BadConfig(
            [
                f"{step}: {what} cannot go through this step: {why}. For its updates as plain records (a delete has "
                f"the value None) write .to_stream().{step}(...); for the table itself keep your own "
                "state in .process(...)"
            ]
        )


def named_step(builder: TopologyBuilder, kind: str, step: StepOptions) -> tuple[str, ErrorPolicy | None]:
    """Name and policy of a step. BadConfig for an invalid option."""
    given = step.get("name")
    name = builder.new_name(kind) if given is None else check_name("step", given)
    return name, step_policy(name, step.get("on_error"), step.get("dead_letter"))


def store_of_kind(builder: TopologyBuilder, name: str, kinds: Sequence[type], what: str) -> Any:
    """The declared store that a step names; BadConfig if it is absent or of another kind."""
    spec = builder.specs.get(name) if isinstance(name, str) else None
    if spec is None:
        declared = few(builder.specs) or "none"
        raise BadConfig([f"{what}: store {name!r:.100} is not declared (declared: {declared}): add it to stores=[...]"])
    if not isinstance(spec, tuple(kinds)):
        wanted = " or ".join(kind.__name__ for kind in kinds)
        raise BadConfig([f"{what}: store {name!r} is a {type(spec).__name__}, it needs a {wanted}"])
    return spec
