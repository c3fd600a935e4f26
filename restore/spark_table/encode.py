"""Rows of a DataFrame as records of a store: the inverse of `columns.py`.

    binary            bytes unchanged, but the serde must be able to read them
    anything else     through the serde; a string column of a json or msgpack store is JSON text

Rules of this file: values in, records out, in the order of the rows. It refuses rows that a store could not hold: a
null key or value, a time below 0, bytes over the limits, types that do not fit the serde.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import pyarrow as pa
from pyspark.sql.types import BinaryType, DataType, IntegerType, LongType, StringType, StructType

from standfast.restore.spark_table.columns import WHOLE, fits, key_columns, listed, shown, wanted
from standfast.store.buffer.rows import KEY_MAX_BYTES, VALUE_MAX_BYTES
from standfast.store.errors import InvalidRequest
from standfast.store.serde import Serde, sorted_keys
from standfast.store.specs import StoreSpec
from standfast.store.types.typed import NO_TIMESTAMP

DERIVED = ("window_end",)  # a read gives it, and it follows from other columns


class Encoded(NamedTuple):
    """A row. `row_key`: its key in the changelog; `ends`: the end of a version (None: the latest, or no version)."""

    partition: int
    row_key: bytes
    timestamp: int
    value: bytes
    ends: int | None = None


# Encoded(*row) costs a Python-level call per row; this does not.
_make = cast("Callable[[tuple[Any, ...]], Encoded]", partial(tuple.__new__, Encoded))


class Encoder:
    """Encodes batches of one schema. Raises InvalidRequest if the schema does not fit the store."""

    def __init__(self, schema: StructType, spec: StoreSpec, partitions: int) -> None:
        self._spec = spec
        self._partitions = partitions
        self._types = {field.name: field.dataType for field in schema.fields}
        problems = list(_problems(self._types, spec))
        if problems:
            raise InvalidRequest(f"store {spec.name!r} cannot be written from this table: {'; '.join(problems)}")
        self._key = _writer(spec.key.of_part("key"), self._types["key"])
        self._value = _writer(spec.value, self._types["value"])

    def rows(self, batch: pa.RecordBatch) -> list[Encoded]:
        """The encoded rows of a batch."""
        if not batch.num_rows:
            return []
        cells = {name: listed(batch.column(name)) for name in batch.schema.names}
        for name, column in cells.items():
            if name != "valid_to" and None in column:
                raise InvalidRequest(
                    f"store {self._spec.name!r}: a row has no {name}, and a store holds no nulls: filter it out first"
                )
        keys = self._encoded("key", self._key, cells["key"], cells["key"])
        values = self._encoded("value", self._value, cells["value"], keys)
        partitions = cells.get("partition") or [zlib.crc32(key) % self._partitions for key in keys]
        if not all(0 <= number < self._partitions for number in partitions):
            bad = next(number for number in partitions if not 0 <= number < self._partitions)
            raise InvalidRequest(
                f"a row has partition {bad}, and partitionCount {self._partitions} allows 0 to {self._partitions - 1}: "
                "correct one of them"
            )
        return self._joined(cells, keys, values, partitions)

    def _joined(
        self, cells: dict[str, list[Any]], keys: list[bytes], values: list[bytes], partitions: Sequence[int]
    ) -> list[Encoded]:
        spec, count = self._spec, len(keys)
        stamps = cells["timestamp"] if spec.timestamped and "timestamp" in cells else [NO_TIMESTAMP] * count
        row_keys = keys
        ends: Sequence[int | None] = [None] * count
        times = spec.traits.times
        if times is not None:
            start, second = times.needed
            row_keys = list(map(times.pack, keys, cells[start], cells.get(second, [0] * count)))
        elif spec.traits.versions:
            stamps, ends = cells["valid_from"], cells.get("valid_to", ends)
        if spec.timestamped and min(stamps) < 0:
            raise InvalidRequest(f"store {spec.name!r}: a row has the time {min(stamps)}: times are from 0 on")
        return list(map(_make, zip(partitions, row_keys, stamps, values, ends, strict=True)))

    def _encoded(
        self, part: str, write: Callable[[Any], bytes], cells: Sequence[Any], keys: Sequence[Any]
    ) -> list[bytes]:
        name = self._spec.name
        try:
            raws = list(map(write, cells))
        except Exception as error:
            # The row is looked for only now: trying each cell by itself would slow every batch.
            raise self._refused(part, write, cells, keys) from error
        largest = max(map(len, raws))
        limit = KEY_MAX_BYTES if part == "key" else VALUE_MAX_BYTES
        if largest > limit:
            raise InvalidRequest(f"store {name!r}: a {part} has {largest} bytes, over the limit of {limit}")
        return raws

    def _refused(
        self, part: str, write: Callable[[Any], bytes], cells: Sequence[Any], keys: Sequence[Any]
    ) -> InvalidRequest:
        """The error with its row's key, found by encoding the cells again."""
        serde: Serde[Any] = getattr(self._spec, part)
        for cell, key in zip(cells, keys, strict=True):
            try:
                write(cell)
            except Exception as error:  # noqa: BLE001  whatever the serde raises
                at = shown(key) if isinstance(key, bytes) else repr(key)
                return InvalidRequest(
                    f"store {self._spec.name!r}: the {part} of key {at} is no {sorted_keys(serde, False).name} "
                    f"({type(error).__name__}: {error}): correct it, or the {part}Serde"
                )
        return InvalidRequest(f"store {self._spec.name!r}: a {part} is no {sorted_keys(serde, False).name}")


def _problems(types: dict[str, DataType], spec: StoreSpec) -> list[str]:
    times = [name for name, kind in key_columns(spec).items() if kind == "bigint" and name not in DERIVED]
    if spec.traits.versions:
        times = ["valid_from"]
    elif spec.timestamped:
        times.append("timestamp")
    optional = {"partition", *DERIVED, *(("valid_to",) if spec.traits.versions else ())}
    needed = ["key", "value", *times, *(["sequence"] if "sequence" in key_columns(spec) else [])]
    problems = [f"it lacks the column {name!r}" for name in needed if name not in types]
    allowed = {*needed, *optional}
    problems += [
        f"there is no place for the column {name!r} (it has {', '.join(needed)}, and may have partition): drop it"
        for name in types
        if name not in allowed
    ]
    for part in ("key", "value"):
        serde: Serde[Any] = getattr(spec, part)
        kind = types.get(part)
        if kind is not None and not _takes(serde, kind):
            problems.append(
                f"its {part} is {kind.simpleString()}, and the store's is {serde.name}: cast it to {wanted(serde)}, "
                f"or name the {part}Serde"
            )
    for name in [*times, "valid_to"]:
        kind = types.get(name)
        if kind is not None and not isinstance(kind, LongType):
            problems.append(f"{name} is {kind.simpleString()}, not bigint: milliseconds, as unix_millis() gives them")
    for name in ("partition", "sequence"):
        kind = types.get(name)
        if kind is not None and not isinstance(kind, IntegerType | LongType):
            problems.append(f"{name} is {kind.simpleString()}, not int")
    return problems


def _takes(serde: Serde[Any], kind: DataType) -> bool:
    """Whether a type can be written by a serde: those of a read, and whole numbers of any width."""
    return fits(serde, kind) or (serde.name == "int64" and isinstance(kind, WHOLE))


def _writer(serde: Serde[Any], kind: DataType) -> Callable[[Any], bytes]:
    write, read = serde.serialize, serde.deserialize
    if isinstance(kind, BinaryType):
        if serde.name == "bytes":
            return bytes

        def checked(raw: bytes) -> bytes:
            read(raw)  # bytes that the serde cannot read are refused here, not by a reader of the store
            return raw

        return checked
    if isinstance(kind, StringType) and serde.name in ("json", "json_sorted", "msgpack"):
        return lambda text: write(json.loads(text))
    return write
