"""The processors of the fluent steps without state: filter, map, flat_map, map_values, peek, join.

Rules of this file: each takes the user's function and calls its children directly; a record keeps every field that the
step does not change. The new key and value of a record are a tuple of two: anything else that has two parts, such as a
dict of two names or a text of two letters, is a mistake of the function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from standfast.store.errors import InvalidRequest
from standfast.stream.record import Record
from standfast.stream.topology.processor import Context, Processor

KeyValue = tuple[Any, Any]
NO_LIST = (dict, str, bytes, Mapping)  # their parts are no records


class Step(Processor):
    """A processor around one function of the user."""

    stores = ()

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def init(self, context: Context) -> None:
        self.context = context
        self.forward = context.downstream


class Filter(Step):
    """Forwards a record where `function(key, value)` is true; `keep` False: where it is false."""

    def __init__(self, function: Callable[[Any, Any], bool], keep: bool = True) -> None:
        super().__init__(function)
        self.keep = keep

    def process(self, record: Record) -> None:
        if bool(self.function(record.key, record.value)) is self.keep:
            self.forward(record)


class Map(Step):
    """`function(key, value)` returns the new (key, value)."""

    def process(self, record: Record) -> None:
        pair = self.function(record.key, record.value)
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise no_pair(self.context.name, pair)
        self.forward(Record(pair[0], pair[1], record.timestamp, record.headers))


class MapValues(Step):
    """`function(value)` returns the new value."""

    def process(self, record: Record) -> None:
        self.forward(Record(record.key, self.function(record.value), record.timestamp, record.headers))


class MapTableValues(Step):
    """`function(value)` returns the new value of a table's update, and of its old value; a delete stays a delete.

    Semantics of Kafka Streams' KTableMapValues: the function never receives None.
    """

    def process(self, record: Record) -> None:
        function, value, old = self.function, record.value, record.old_value
        value = None if value is None else function(value)
        old = None if old is None else function(old)
        self.forward(Record(record.key, value, record.timestamp, record.headers, old))


class FlatMap(Step):
    """`function(key, value)` returns any number of (key, value)."""

    function: Callable[[Any, Any], Iterable[KeyValue]]

    def process(self, record: Record) -> None:
        forward, stamp, headers = self.forward, record.timestamp, record.headers
        pairs = self.function(record.key, record.value)
        if type(pairs) is not list and (isinstance(pairs, NO_LIST) or not isinstance(pairs, Iterable)):
            raise no_pairs(self.context.name, pairs)
        for pair in pairs:
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise no_pair(self.context.name, pair, pairs)
            forward(Record(pair[0], pair[1], stamp, headers))


def no_pair(step: str, given: object, among: object = None) -> InvalidRequest:
    """The error of a mapper's result that is no tuple of two; `among`: the results of a flat_map that it is one of."""
    if among is None:
        fix = "or use map_values, whose function returns the value alone"
        where = "returned"
    else:
        fix = "in a list, also if it is the only one" if isinstance(among, tuple) else "for each record"
        where = "gave, among its results,"
    parts = f" of {len(given)}" if isinstance(given, tuple | list) else ""
    how = "return tuple(...) of it" if isinstance(given, list) and len(given) == 2 else "return the tuple (key, value)"
    return InvalidRequest(
        f"step {step!r}: its function {where} a {type(given).__name__}{parts}, {given!r:.100}, where key and value are "
        f"a tuple of exactly two: {how}, {fix}"
    )


def no_pairs(step: str, given: object) -> InvalidRequest:
    """The error of a flat_map's result in which no (key, value) can be found."""
    fix = "for a dict, list(it.items())" if isinstance(given, Mapping) else "[] for no record"
    return InvalidRequest(
        f"step {step!r}: its function returned a {type(given).__name__}, {given!r:.100}, where flat_map needs a list, "
        f"or another iterable, of tuples (key, value): return [(key, value)]; {fix}"
    )


class SelectKey(Step):
    """`function(key, value)` returns the new key."""

    def process(self, record: Record) -> None:
        key = self.function(record.key, record.value)
        self.forward(Record(key, record.value, record.timestamp, record.headers))


class Peek(Step):
    """Calls `function(key, value)` and forwards the record."""

    def process(self, record: Record) -> None:
        self.function(record.key, record.value)
        self.forward(record)


class PassOn(Processor):
    """The node where several streams merge."""

    stores = ()

    def init(self, context: Context) -> None:
        self.forward = context.downstream

    def process(self, record: Record) -> None:
        self.forward(record)


class ToTable(Processor):
    """Keeps the latest value of each key and forwards the change. A record without a key is skipped and counted.

    The row stays if the change fails downstream and is skipped: the topic, which may be the store's changelog, has it
    too. Semantics of Kafka Streams' KTableSource: a delete of an absent key is forwarded without a cache only.
    """

    def __init__(self, store: str) -> None:
        self.store_name = store

    def init(self, context: Context) -> None:
        self.context = context
        self.store = context.store(self.store_name)

    def process(self, record: Record) -> None:
        if record.key is None:
            self.context.drop("null_key", f"table {self.store_name!r}: a record without a key changes nothing")
            return
        old = self.store.get(record.key)
        if record.value is None and old is None and self.store.rows.caching:
            return
        self.store.put(record.key, record.value, record.timestamp)
        # `give` and not `downstream`: a failure downstream must not take the row back, which the topic has, too.
        self.context.give(record._replace(old_value=old))


class TableJoin(Processor):
    """Joins each record of a stream with the table's present value of its key.

    Semantics of Kafka Streams' KStream-KTable join: the table alone produces no result; without a table value an
    inner join forwards no record, a left join passes None; a record without a key or value is skipped and counted.
    """

    def __init__(self, store: str, joiner: Callable[[Any, Any], Any], left: bool) -> None:
        self.store_name = store
        self.joiner = joiner
        self.left = left

    def init(self, context: Context) -> None:
        self.context = context
        self.store = context.store(self.store_name)

    def process(self, record: Record) -> None:
        key, value = record.key, record.value
        if value is None or (key is None and not self.left):
            what = "null_key" if key is None else "null_value"
            self.context.drop(what, f"join with table {self.store_name!r}: a record needs a key and a value")
            return
        # KIP-962: a left join takes a record without a key, for which the table has no value.
        found = None if key is None else self.store.get(key)
        if found is not None or self.left:
            joined = self.joiner(value, found)
            self.context.downstream(Record(key, joined, record.timestamp, record.headers))
