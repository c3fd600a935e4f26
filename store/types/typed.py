"""The common base of the four store types: serdes with good errors, and the replication side of a store.

    user      put / get / fetch ...      through the serdes, into StoreRows
    log       restore(records)           records of the changelog as rows to write
    verify    logical_rows()             (log key, timestamp, raw value), equal to the fold of the changelog

Rules of this file: it knows no concrete type. A type converts its log records to rows and back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from functools import partial
from operator import itemgetter
from typing import Any, Generic, Never, Protocol, Self, TypeAlias, TypeVar, runtime_checkable

from standfast.store.buffer.rows import StoreRows
from standfast.store.engine import KeyRange
from standfast.store.errors import InvalidRequest
from standfast.store.serde import Part, Serde, is_plain, serde_error
from standfast.store.specs import K, StoreSpec, V
from standfast.store.types.key_ranges import number_order
from standfast.store.value_timestamp import TIMESTAMP

S = TypeVar("S", bound=StoreSpec)

# (offset, timestamp, key, value, headers), the shape of a record of the log port
LoggedRecord: TypeAlias = tuple[int, int, bytes | None, bytes | None, Any]


@runtime_checkable
class LoggedColumns(Protocol):
    """Records of the log port column by column."""

    timestamps: Sequence[int]
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]


FamilyRows: TypeAlias = dict[str, dict[bytes, bytes | None]]
LogicalRow: TypeAlias = tuple[bytes, int, bytes]

# Timestamp of a logical row whose store keeps none (plain stores, sessions).
NO_TIMESTAMP = -1
TIME_MAX_MS = 2**63 - 1
# Methods of stores that only the library calls, some for every record: their arguments are not checked.
OF_THE_LIBRARY = (
    "bind", "expired_families", "expired_ranges", "forget_families", "get_row", "logical_rows", "put_raw",
    "put_raw_all", "put_row", "restore", "rows_from", "rows_of", "takes_family",
)  # fmt: skip


class TypedStore(ABC, Generic[S, K, V]):
    """One store of one task."""

    def __init__(self, spec: S, rows: StoreRows) -> None:
        self.spec = spec
        self.rows = rows
        self._skip = 8 if spec.timestamped else 0  # bytes of the timestamp before the value
        self.name = spec.name
        self.bind(None)

    def bind(self, topic: str | None) -> None:
        """Use the serdes for the bytes of this topic, the store's changelog; None: serdes that need no topic."""
        key, value = self.spec.key, self.spec.value
        self.topic = topic
        self.key_serde = key.of_part("key") if topic is None else key.of_topic(topic, "key")
        self.value_serde = value if topic is None else value.of_topic(topic, "value")
        self.numbers = number_order(self.key_serde)  # None: ranges of keys are in byte order
        self._read_key, self._read_value = self.key_serde.deserialize, self.value_serde.deserialize
        self._encode_key: Callable[[K], bytes] = self._encoder("key", key, self.key_serde)
        self._encode_value: Callable[[V], bytes] = self._encoder("value", value, self.value_serde)

    def ranged_by(self, key: Serde[Any]) -> Self:
        """The same store, whose ranges of keys go by the numbers of this serde, if it is one of numbers."""
        made = copy(self)
        made.numbers = number_order(key)
        return made

    @abstractmethod
    def restore(self, records: Sequence[LoggedRecord], into: FamilyRows | None = None) -> FamilyRows:
        """Rows of these changelog records (in offset order); moves the observed stream time.

        Puts them over the rows of earlier records in `into` and returns it. After an error `into` is unusable.
        Records without a key, which no store writes, are skipped and counted (Kafka Streams: StoreChangelogReader).
        """

    @abstractmethod
    def logical_rows(self) -> Iterator[LogicalRow]:
        """Committed rows within retention, in the changelog's form."""

    @abstractmethod
    def families(self) -> list[str]:
        """Column families of this store."""

    def takes_family(self, family: str) -> bool:
        """Whether a family is this store's and within retention; if so, the store knows it from now on."""
        return family == self.name

    def expired_families(self, observed_ms: int | None = None) -> list[str]:
        """Families whose every row is past retention at this observed stream time, by default the store's own."""
        return []

    def forget_families(self, families: Sequence[str]) -> None:
        """Forget expired families that the caller has dropped."""

    def expired_ranges(self, observed_ms: int) -> list[KeyRange]:
        """Key ranges whose every row is past retention at this time, in stores that expire within one family."""
        return []

    def _with_key(self, records: Sequence[LoggedRecord]) -> Sequence[LoggedRecord]:
        """The records with a key; the others are skipped and counted."""
        kept = [record for record in records if record[2] is not None]
        self.rows.counters.skipped += len(records) - len(kept)
        return kept

    def _encoder(self, part: Part, declared: Serde[Any], bound: Serde[Any]) -> Callable[[Any], bytes]:
        refuse = partial(_refuse, part, declared, self.name)
        return self.rows.buffer.encoder(bound.serialize, refuse, is_plain(bound.serialize))

    def _decode_key(self, raw: bytes) -> K:
        try:
            return self._read_key(raw)  # type: ignore[no-any-return]
        except Exception as error:
            raise serde_error(self.spec.key, self.name, "key", "deserialize", error) from error

    def _decode_value(self, raw: bytes) -> V:
        try:
            return self._read_value(raw)  # type: ignore[no-any-return]
        except Exception as error:
            raise serde_error(self.spec.value, self.name, "value", "deserialize", error) from error

    def _timestamp(self, timestamp: int | None) -> int:
        """The given timestamp, else that of the record in hand (wall clock outside a record)."""
        if type(timestamp) is int and 0 <= timestamp <= TIME_MAX_MS:  # the usual case, without a second call
            return timestamp
        return self.rows.now_ms() if timestamp is None else self._time("timestamp", timestamp)

    def _time(self, what: str, value: int) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= TIME_MAX_MS:
            raise InvalidRequest(
                f"store {self.name!r}: {what} must be whole milliseconds since the epoch, from 0 to 2**63-1, "
                f"not {value!r}"
            )
        return value

    def _bound(self, what: str, value: int) -> int:
        """One end of a range of times; a time below 0 counts as 0."""
        if type(value) is not int or value > TIME_MAX_MS:
            raise InvalidRequest(
                f"store {self.name!r}: {what} must be whole milliseconds since the epoch, at most 2**63-1 (for an open "
                f"end give 0 or 2**63-1), not {value!r}"
            )
        return value

    def _pack(self, timestamp: int, raw: bytes) -> bytes:
        return TIMESTAMP.pack(timestamp) + raw if self._skip else raw


def _refuse(part: Part, serde: Serde[Any], store: str, error: Exception | None) -> Never:
    if error is not None:  # a user's serde may raise any error
        raise serde_error(serde, store, part, "serialize", error) from error
    raise InvalidRequest(f"store {store!r}: the {part} is None; a row needs a {part}, drop or re-key the record")


def columns_of(
    records: Sequence[LoggedRecord],
) -> tuple[Sequence[int], Sequence[bytes | None], Sequence[bytes | None]]:
    """Timestamps, keys and values of changelog records; those of a log that reads by column are returned unchanged."""
    if isinstance(records, LoggedColumns):
        return records.timestamps, records.keys, records.values
    stamps, keys, values = (list(map(itemgetter(at), records)) for at in (1, 2, 3))
    return stamps, keys, values
