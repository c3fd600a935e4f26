"""The base of all aggregations: combining values, encoding and decoding rows, skipping records.

    record ──> key bytes ──> row of the store ──> aggregate ──> add(key, value, aggregate) ─> row ──> result
                                                                                                 ├──> at once
                                                                                                 └──> held back (cached)

A result is a Record whose `old_value` is the key's previous value. Aggregates are decoded for each record, because the
user's function may change its argument.

Rules of this file: the processor without windows is `standfast.stream.dsl.aggregate`; those with windows add to this.
They work in bytes of the store, so that a key is encoded once per record.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from standfast.replication.log import Headers
from standfast.store.errors import Corruption, StandfastError
from standfast.store.serde import Direction, Part, quick, serde_error
from standfast.stream.dsl.suppression import Suppression, Unheard
from standfast.stream.record import Record
from standfast.stream.topology.processor import Context, Processor

# Immutable types, so that one decoded object may be handed out twice.
_UNCHANGEABLE = frozenset({int, float, str, bytes, bool})

Init = Callable[[], Any]
Add = Callable[[Any, Any, Any], Any]
Merge = Callable[[Any, Any, Any], Any]


@dataclass(frozen=True, slots=True)
class Aggregator:
    """How values become an aggregate: `init()`, `add(key, value, aggregate)`, and for sessions `merge(key, a, b)`.

    `takes_null`: whether `add` receives values that are None; otherwise such records are skipped and counted.
    """

    init: Init
    add: Add
    merge: Merge | None = None
    takes_null: bool = False


def counter(*, takes_null: bool) -> Aggregator:
    """An aggregator that counts records."""
    return Aggregator(lambda: 0, _add_one, _sum, takes_null)


def reducer(function: Callable[[Any, Any], Any]) -> Aggregator:
    """`function(aggregate, value)` from the second value on; the first is the aggregate itself."""

    def add(_key: Any, value: Any, aggregate: Any) -> Any:
        return value if aggregate is None else function(aggregate, value)

    return Aggregator(_nothing, add, add_merged(function))


def add_merged(function: Callable[[Any, Any], Any]) -> Merge:
    """The reducer as a merge of two aggregates, either of which may be missing."""

    def merge(_key: Any, one: Any, other: Any) -> Any:
        return other if one is None else function(one, other)

    return merge


class Aggregation(Processor):
    """A processor that keeps an aggregate per row of one store."""

    def __init__(self, store: str, aggregator: Aggregator) -> None:
        self.store_name = store
        self.initial, self.add, self.merge = aggregator.init, aggregator.add, aggregator.merge
        self.takes_null = aggregator.takes_null

    def init(self, context: Context) -> None:
        self.context = context
        self.forward = context.downstream  # for results of the record in hand: they belong to that record
        self.give = context.give  # for suppressed or final results: each is processed by itself
        self.state = context.store(self.store_name)
        self.rows = self.state.rows
        self.buffer = self.rows.buffer
        self.key_serde, self.value_serde = self.state.key_serde, self.state.value_serde
        # A call of an attribute that is no method is slow: hot paths take these, and `add`, into variables first.
        self.quick_key = quick(self.key_serde.serialize)  # `encode_key` raises its errors
        self.write_value: Callable[[Any], bytes] = self.value_serde.serialize
        self.read_value: Callable[[bytes], Any] = self.value_serde.deserialize
        self.held: Suppression | None = None
        self.heard_of = context.has_children  # else results would go nowhere
        # With emission on close the cache does not delay anything: a result is final and is given once.
        if self.gives_updates() and not self.heard_of:
            self.held = Unheard(self.buffer, self._emit)
        elif self.rows.caching and self.gives_updates():
            self.held = Suppression(self.buffer, self._emit)
            context.on_flush(self.held.flush)
            context.before_watermark(self.held.flush)

    def gives_updates(self) -> bool:
        """Whether each change of a row is a result."""
        return True

    @abstractmethod
    def read_held(self, row_key: bytes, old_row: bytes | None, headers: Headers, timestamp: int) -> Record | None:
        """The result for a suppressed row; None if it was created and removed in between."""

    def _emit(self, row_key: bytes, old_row: bytes | None, headers: Headers, timestamp: int) -> None:
        try:
            result = self.read_held(row_key, old_row, headers, timestamp)
        except Corruption:  # read again where on_error decides about it: most rows can be read
            result = self.context.read_result(self.read_held, row_key, old_row, headers, timestamp)
        if result is not None:
            self.give(result)

    def skipped(self, record: Record) -> bool:
        """Whether the record has no key, or no value where one is needed; such a record is only counted."""
        if record.key is None:
            self.context.drop("null_key", f"a record at {record.timestamp} has no key, which {self.store_name!r} needs")
            return True
        if record.value is None and not self.takes_null:
            self.context.drop("null_value", f"a record of {record.key!r} has no value for {self.store_name!r}")
            return True
        return False

    def encode_key(self, key: Any) -> bytes:
        """Encode a key; InvalidRequest names store and serde on failure. So do the other three; reads: Corruption."""
        try:
            return self.key_serde.serialize(key)  # type: ignore[no-any-return]
        except Exception as error:
            raise self.refused("key", "serialize", error) from error

    def encode_value(self, value: Any) -> bytes | None:
        try:
            return None if value is None else self.write_value(value)
        except Exception as error:
            raise self.refused("value", "serialize", error) from error

    def decode_key(self, raw: bytes) -> Any:
        try:
            return self.key_serde.deserialize(raw)
        except Exception as error:
            raise self.refused("key", "deserialize", error) from error

    def decode_value(self, raw: bytes) -> Any:
        try:
            return self.read_value(raw)
        except Exception as error:
            raise self.refused("value", "deserialize", error) from error

    def refused(self, part: Part, direction: Direction, error: Exception) -> StandfastError:
        """The error of a serde, with its name and that of the store."""
        serde = self.key_serde if part == "key" else self.value_serde
        return serde_error(serde, self.store_name, part, direction, error)

    def decode_again(self, value: Any, row: bytes, skip: int) -> Any:
        """A separate object for a value that was decoded from this row already."""
        return value if type(value) in _UNCHANGEABLE else self.decode_value(row[skip:])


def _add_one(_key: Any, _value: Any, aggregate: int) -> int:
    return aggregate + 1


def _sum(_key: Any, one: int, other: int) -> int:
    return one + other


def _nothing() -> None:
    return None
