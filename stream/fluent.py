"""The fluent layer: streams and tables, written as a chain of steps.

    app.stream("clicks").filter(f).group_by_key().window(sf.SessionWindows(60_000)).count("visits").to("out")

Each step adds a node to the application's topology. Functions take (key, value) as in Kafka Streams. A step that may
change the key marks the stream; what needs equal keys together then puts a repartition topic before itself.

Rules of this file: it declares, nothing runs here. Semantics and names are those of Kafka Streams' KStream and KTable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from standfast.store.errors import BadConfig
from standfast.store.serde import Serde
from standfast.stream.nodes import Partitioner
from standfast.stream.processor import Processor, has_timers
from standfast.stream.stateless import (
    Filter,
    FlatMap,
    Map,
    MapValues,
    PassOn,
    Peek,
    SelectKey,
    TableJoin,
)
from standfast.stream.topology import TopologyBuilder

if TYPE_CHECKING:
    from standfast.stream.grouped import GroupedStream

SerdeOrNone = Serde[Any] | None


@dataclass(frozen=True, slots=True)
class Defaults:
    """Serdes for streams whose own are unknown, as after a map."""

    key: Serde[Any]
    value: Serde[Any]


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream of records. `key` and `value` are its serdes; None after a step that may have changed the type."""

    builder: TopologyBuilder
    node: str
    defaults: Defaults
    key: SerdeOrNone = None
    value: SerdeOrNone = None
    rekeyed: bool = False

    def filter(self, predicate: Callable[[Any, Any], bool], *, name: str | None = None) -> Stream:
        """Records for which `predicate(key, value)` is true."""
        return self._step("filter", partial(Filter, predicate), name)

    def filter_not(self, predicate: Callable[[Any, Any], bool], *, name: str | None = None) -> Stream:
        """Records for which `predicate(key, value)` is false."""
        return self._step("filter-not", partial(Filter, predicate, False), name)

    def map(
        self,
        mapper: Callable[[Any, Any], tuple[Any, Any]],
        *,
        key: SerdeOrNone = None,
        value: SerdeOrNone = None,
        name: str | None = None,
    ) -> Stream:
        """`mapper(key, value)` gives the new (key, value)."""
        return replace(self._step("map", partial(Map, mapper), name), key=key, value=value, rekeyed=True)

    def map_values(self, mapper: Callable[[Any], Any], *, value: SerdeOrNone = None, name: str | None = None) -> Stream:
        """`mapper(value)` gives the new value; the key stays."""
        return replace(self._step("map-values", partial(MapValues, mapper), name), value=value)

    def flat_map(
        self,
        mapper: Callable[[Any, Any], Iterable[tuple[Any, Any]]],
        *,
        key: SerdeOrNone = None,
        value: SerdeOrNone = None,
        name: str | None = None,
    ) -> Stream:
        """`mapper(key, value)` gives any number of (key, value)."""
        return replace(self._step("flat-map", partial(FlatMap, mapper), name), key=key, value=value, rekeyed=True)

    def select_key(
        self, mapper: Callable[[Any, Any], Any], *, key: SerdeOrNone = None, name: str | None = None
    ) -> Stream:
        """`mapper(key, value)` gives the new key."""
        return replace(self._step("select-key", partial(SelectKey, mapper), name), key=key, rekeyed=True)

    def peek(self, action: Callable[[Any, Any], Any], *, name: str | None = None) -> Stream:
        """Call `action(key, value)` for each record, which goes on as it is."""
        return self._step("peek", partial(Peek, action), name)

    def merge(self, other: Stream, *, name: str | None = None) -> Stream:
        """Records of both, in the order in which the task meets them."""
        node = self.builder.add_processor(name or self.builder.new_name("merge"), PassOn, [self.node, other.node])
        return Stream(
            self.builder,
            node,
            self.defaults,
            key=self.key if self.key == other.key else None,
            value=self.value if self.value == other.value else None,
            rekeyed=self.rekeyed or other.rekeyed,
        )

    def process(
        self,
        processor: type[Processor],
        *stores: str,
        key: SerdeOrNone = None,
        value: SerdeOrNone = None,
        name: str | None = None,
    ) -> Stream:
        """A processor of your own, connected to `stores`; what it forwards is the stream that this returns."""
        named = stores or (() if processor.stores is None else processor.stores)
        timer_key = (processor.timer_key or self._key()) if has_timers(processor) else None
        node = self.builder.add_processor(
            name or self.builder.new_name(processor.__name__), processor, [self.node], named, timer_key
        )
        return Stream(self.builder, node, self.defaults, key, value, rekeyed=True)

    def to(
        self,
        topic: str,
        *,
        key: SerdeOrNone = None,
        value: SerdeOrNone = None,
        partitioner: Partitioner | None = None,
        name: str | None = None,
    ) -> None:
        """Write to a topic; `partitioner(key, value, partitions)` chooses, by default the hash of the key."""
        self.builder.add_sink(
            name or self.builder.new_name(f"{topic}-sink"),
            topic,
            [self.node],
            key or self._key(),
            value or self._value(),
            partitioner,
        )

    def repartition(
        self, name: str, *, partitions: int = 0, key: SerdeOrNone = None, value: SerdeOrNone = None
    ) -> Stream:
        """Through `<app>-<name>-repartition`: records of one key come together again, in a task of their own."""
        return self._through(name, "repartition", partitions, key or self._key(), value or self._value())

    def broadcast(
        self, name: str, *, partitions: int = 0, key: SerdeOrNone = None, value: SerdeOrNone = None
    ) -> Stream:
        """Through `<app>-<name>-broadcast`: every record to every task behind it."""
        return self._through(name, "broadcast", partitions, key or self._key(), value or self._value())

    def group_by_key(self, *, key: SerdeOrNone = None, value: SerdeOrNone = None) -> GroupedStream:
        """Records of one key together, for count, reduce and aggregate."""
        from standfast.stream.grouped import GroupedStream  # here, because the two name each other

        # Any, because type checkers know this class by two paths once the other file names it.
        own: Any = replace(self, key=key or self.key, value=value or self.value)
        return GroupedStream(own)

    def group_by(
        self,
        mapper: Callable[[Any, Any], Any],
        *,
        key: SerdeOrNone = None,
        value: SerdeOrNone = None,
    ) -> GroupedStream:
        """Records together by `mapper(key, value)`, which goes through a repartition topic."""
        return self.select_key(mapper, key=key).group_by_key(value=value)

    def join(self, table: Table, joiner: Callable[[Any, Any], Any], *, value: SerdeOrNone = None) -> Stream:
        """`joiner(value, table value)` for each record whose key is in the table."""
        return self._join(table, joiner, False, value)

    def left_join(self, table: Table, joiner: Callable[[Any, Any], Any], *, value: SerdeOrNone = None) -> Stream:
        """As `join`, with None where the key is not in the table."""
        return self._join(table, joiner, True, value)

    def _join(self, table: Table, joiner: Callable[[Any, Any], Any], left: bool, value: SerdeOrNone) -> Stream:
        if not isinstance(table, Table) or table.store is None:
            raise BadConfig(
                [
                    "a stream is joined with a table that has a store, such as app.table(topic) or .count(store): this "
                    "one has none, or was filtered or mapped"
                ]
            )
        own = self.keyed(f"{table.store}-join-{len(self.builder.nodes)}")
        node = self.builder.add_processor(
            self.builder.new_name("join"), partial(TableJoin, table.store, joiner, left), [own.node], [table.store]
        )
        return Stream(self.builder, node, self.defaults, own.key, value, own.rekeyed)

    def keyed(self, name: str) -> Stream:
        """This stream with equal keys together: itself, or through `<app>-<name>-repartition` if its key changed."""
        return self.repartition(name) if self.rekeyed else self

    def _step(self, kind: str, make: Callable[[], Processor], name: str | None) -> Stream:
        node = self.builder.add_processor(name or self.builder.new_name(kind), make, [self.node])
        return Stream(self.builder, node, self.defaults, self.key, self.value, self.rekeyed)

    def _through(self, name: str, kind: Any, partitions: int, key: Serde[Any], value: Serde[Any]) -> Stream:
        if not isinstance(partitions, int) or isinstance(partitions, bool) or partitions < 0:
            raise BadConfig([f"{kind} {name!r}: partitions must be a whole number from 1, or 0 for as many as before"])
        node = self.builder.add_exchange(name, kind, [self.node], key, value, partitions)
        return Stream(self.builder, node, self.defaults, key, value)

    def _key(self) -> Serde[Any]:
        return self.key or self.defaults.key

    def _value(self) -> Serde[Any]:
        return self.value or self.defaults.value


@dataclass(frozen=True, slots=True)
class Table(Stream):
    """A stream of updates: the latest value of each key; `record.old_value` is the one before.

    `store` is the name of the store that holds it, if one does.
    """

    store: str | None = None

    def to_stream(self) -> Stream:
        """The updates as a plain stream."""
        return Stream(self.builder, self.node, self.defaults, self.key, self.value, self.rekeyed)


def store_of_kind(builder: TopologyBuilder, name: str, kinds: Sequence[type], what: str) -> Any:
    """The declared store that a step names; BadConfig if there is none, or one of another kind."""
    spec = builder.specs.get(name)
    if spec is None:
        declared = ", ".join(builder.specs) or "none"
        raise BadConfig([f"{what}: store {name!r} is not declared (declared: {declared}): add it to stores=[...]"])
    if not isinstance(spec, tuple(kinds)):
        wanted = " or ".join(kind.__name__ for kind in kinds)
        raise BadConfig([f"{what}: store {name!r} is a {type(spec).__name__}, it needs a {wanted}"])
    return spec
