"""Columns of rows for Spark, by kind of store, and cells from raw bytes by serde and type.

    keyvalue    partition  key  value  timestamp
    window      partition  key  window_start  window_end  [sequence]  value  timestamp
    session     partition  key  session_start  session_end  value
    versioned   partition  key  valid_from  valid_to (null: the latest)  value
    changelog   partition  offset, the columns of the kind, timestamp          value null: a delete
    changes     the same, with `change` and on demand `old_value`, `old_timestamp`

The type of `key` and `value` decides their reading: binary takes the stored bytes, every other type goes through the
serde. json and msgpack become any type that fits (a struct takes its fields by name, absent ones are null), or, as
string, JSON text.

Rules of this file: values to columns and back; no store and no log. A cell that does not fit is an error that names
the key, never a null. Times are whole milliseconds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow.compute import SliceOptions
from pyarrow.compute import call_function as _call
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
)

from standfast.restore.spark_table.options import CheckedOptions
from standfast.store.errors import BadConfig, Corruption, InvalidRequest
from standfast.store.serde import Serde, sorted_keys
from standfast.store.specs import StoreSpec

Cells = Mapping[str, Any]  # sequences or arrays

PARTITION = "int"
TIME = "bigint"
TIME_BYTES = 8
SLICE_END = 1 << 30  # without an end the library counts wrong
WHOLE = (LongType, IntegerType, ShortType, ByteType)
_SIMPLE = re.compile(r"(struct|array|map)\s*<.*>|\w+(\(.*\))?", re.IGNORECASE | re.DOTALL)


def key_columns(spec: StoreSpec) -> dict[str, str]:
    """Columns that identify a row beside its key, with their types."""
    times = spec.traits.times
    found = {} if times is None else {f"{times.unit}_start": TIME, f"{times.unit}_end": TIME}
    return found | ({"sequence": "int"} if spec.numbered else {})


def store_columns(spec: StoreSpec, given: CheckedOptions) -> dict[str, str]:
    """Columns of a store's rows by name, with their types."""
    key, value = (column_type(part, spec, given) for part in ("key", "value"))
    found = {"partition": PARTITION, "key": key, **key_columns(spec)}
    if spec.traits.versions:
        return found | {"valid_from": TIME, "valid_to": TIME, "value": value}
    return found | {"value": value} | ({"timestamp": TIME} if spec.timestamped else {})


def log_columns(spec: StoreSpec, given: CheckedOptions) -> dict[str, str]:
    """Columns of a changelog's records, or of changes."""
    key, value = (column_type(part, spec, given) for part in ("key", "value"))
    found = {"partition": PARTITION, "offset": "bigint", "timestamp": TIME}
    found |= {"key": key, **key_columns(spec)}
    if given.kind == "changelog":
        return found | {"value": value}
    found |= {"change": "string", "value": value}
    return found | ({"old_value": value, "old_timestamp": TIME} if given.flag("oldValues") else {})


def column_type(part: str, spec: StoreSpec, given: CheckedOptions) -> str:
    """Type of the key or value column, from the options: binary unless a serde is named or `decode` is true."""
    schema = given.text(f"{part}Schema")
    serde: Serde[Any] = getattr(spec, part)
    if schema is not None:
        if serde.name not in ("json", "json_sorted", "msgpack"):
            raise BadConfig([f"{part}Schema goes with json or msgpack, and the {part} is {serde.name}: leave it out"])
        return schema if _SIMPLE.fullmatch(schema.strip()) else f"struct<{schema}>"
    if given.text(f"{part}Serde") is None and not given.flag("decode"):
        return "binary"
    return {"bytes": "binary", "int64": "bigint", "float64": "double"}.get(serde.name, "string")


def ddl(columns: Mapping[str, str]) -> str:
    """Columns in Spark's notation of a schema."""
    return ", ".join(f"`{name}` {kind}" for name, kind in columns.items())


class Shaper:
    """Makes batches of the schema's columns; `columns` are the available ones.

    Raises InvalidRequest if the schema has an unknown column, or an impossible type for one.
    """

    def __init__(self, schema: StructType, columns: Mapping[str, str], spec: StoreSpec, what: str) -> None:
        self._what = what
        self._spec = spec
        # A batch must have exactly the declared schema: int32 instead of int64 fails in Java.
        self._arrow = to_arrow_schema(schema)
        self.names = tuple(schema.fieldNames())
        self._decoders: dict[str, Callable[[Sequence[Any]], pa.Array]] = {}
        problems = []
        for field in schema.fields:
            if field.name not in columns:
                problems.append(f"there is no column {field.name!r}, only {', '.join(columns)}")
                continue
            part = "value" if field.name == "old_value" else field.name
            if part in ("key", "value"):
                serde: Serde[Any] = getattr(spec, part)
                if not fits(serde, field.dataType):
                    problems.append(
                        f"the {part} is {serde.name} and cannot be read as {field.dataType.simpleString()}: "
                        f"take binary, or {wanted(serde)}"
                    )
            elif field.dataType.simpleString() != columns[field.name]:
                problems.append(
                    f"{field.name} is {columns[field.name]}, not {field.dataType.simpleString()}; "
                    "times are milliseconds: timestamp_millis() makes timestamps of them"
                )
        if problems:
            raise InvalidRequest(f"{what}: the schema does not fit: {'; '.join(problems)}")
        self._binary = {field.name for field in schema.fields if isinstance(field.dataType, BinaryType)}
        self._text = {field.name for field in schema.fields if isinstance(field.dataType, StringType)}

    def batch(self, cells: Cells, count: int) -> pa.RecordBatch:
        """A batch of raw cells; `key`, `value` and `old_value` are bytes or None."""
        arrays = [self._array(name, cells) for name in self.names]
        assert all(len(one) == count for one in arrays)
        return pa.RecordBatch.from_arrays(arrays, schema=self._arrow)

    def _array(self, name: str, cells: Cells) -> pa.Array:
        kind = self._arrow.field(name).type
        part = "value" if name == "old_value" else name
        raws = cells[name]
        if part not in ("key", "value") or name in self._binary:
            return raws if isinstance(raws, pa.Array) else pa.array(raws, kind)
        serde: Serde[Any] = getattr(self._spec, part)
        try:
            return decoded(raws, serde, kind, as_text=name in self._text)
        except Exception as error:
            raise self._damaged(part, name, kind, cells, error) from error

    def _damaged(self, part: str, name: str, kind: Any, cells: Cells, error: Exception) -> Corruption:
        """The error with its row's key, found by decoding the batch again, cell by cell."""
        serde: Serde[Any] = getattr(self._spec, part)
        # Only after a failure: trying each cell by itself would slow every batch.
        keys, raws = (listed(cells[one]) for one in ("key", name))
        for key, raw in zip(keys, raws, strict=True):
            try:
                decoded([raw], serde, kind, as_text=name in self._text)
            except Exception as found:  # noqa: BLE001  whatever the serde or the library raises
                form = sorted_keys(serde, False).name
                return Corruption(
                    f"{self._what}: the {part} of key {shown(key)} is no {form} that reads as "
                    f"{kind} ({type(found).__name__}: {found}): read it as binary, or correct serde or schema"
                )
        return Corruption(f"{self._what}: {error}")


def listed(cells: Any) -> list[Any]:
    """Cells, a sequence or an array, as Python values."""
    return cells.to_pylist() if isinstance(cells, pa.Array) else list(cells)


def decoded(cells: Any, serde: Serde[Any], kind: Any, *, as_text: bool) -> pa.Array:
    """Raw cells, a sequence or an array, as one column; None stays null. Raises the errors of serde and library."""
    name = serde.name
    if name == "string" or (name in ("json", "json_sorted") and as_text):
        raw = cells if isinstance(cells, pa.Array) else pa.array(cells, pa.binary())
        return raw.cast(pa.string()).cast(kind)  # JSON text is UTF-8 already: no parsing
    raws = listed(cells)
    # Whole columns of 8-byte numbers at once; a null or a damaged cell takes the slow way, which finds it.
    if name == "int64" and all(raw is not None and len(raw) == 8 for raw in raws):
        return pa.array(np.frombuffer(b"".join(raws), ">i8").astype(np.int64))
    if name == "float64" and all(raw is not None and len(raw) == 8 for raw in raws):
        return pa.array(np.frombuffer(b"".join(raws), ">f8").astype(np.float64))
    read = serde.deserialize
    values = [None if raw is None else read(raw) for raw in raws]
    if as_text:
        texts = (json.dumps(value, ensure_ascii=False, separators=(",", ":")) for value in values)
        values = [None if raw is None else text for raw, text in zip(raws, texts, strict=True)]
    return pa.array(values, kind)


def split_times(rows: pa.Array, store: str) -> tuple[pa.Array, pa.Array]:
    """Timestamps and values of rows, which begin with 8 bytes of timestamp. Raises Corruption for a shorter row."""
    # On the buffers of the column, without a call for each row.
    _, places, raw = rows.buffers()
    ends = np.frombuffer(places, np.int32, len(rows) + 1, rows.offset * 4)
    if len(rows) and int(np.diff(ends).min()) < TIME_BYTES:
        raise Corruption(f"store {store!r}: a row is too short to begin with a timestamp: restore the store")
    data = np.frombuffer(raw, np.uint8)
    times = data[ends[:-1].astype(np.int64)[:, None] + np.arange(TIME_BYTES)]
    stamps = np.ascontiguousarray(times).view(">i8").reshape(-1).astype(np.int64)
    return pa.array(stamps), _call("binary_slice", [rows], SliceOptions(TIME_BYTES, SLICE_END))


def fits(serde: Serde[Any], kind: DataType) -> bool:
    """Whether a serde's values may be a column of this type."""
    if isinstance(kind, BinaryType):
        return True
    if serde.name in ("json", "json_sorted", "msgpack"):
        return plain(kind)
    return isinstance(kind, {"string": StringType, "int64": LongType, "float64": DoubleType}.get(serde.name, ()))


def wanted(serde: Serde[Any]) -> str:
    """The types that fit a serde, beside binary, for error messages."""
    shapes = "string (JSON text), boolean, numbers, array, map of string, struct"
    return {"string": "string", "int64": "bigint", "float64": "double", "bytes": "name its serde"}.get(
        serde.name, shapes
    )


def plain(kind: DataType) -> bool:
    """Whether JSON can hold values of this type."""
    if isinstance(kind, StructType):
        return all(plain(field.dataType) for field in kind.fields)
    if isinstance(kind, ArrayType):
        return plain(kind.elementType)
    if isinstance(kind, MapType):
        return isinstance(kind.keyType, StringType) and plain(kind.valueType)  # JSON's keys are strings
    return isinstance(kind, (StringType, BooleanType, DoubleType, FloatType, *WHOLE))


def shown(key: bytes | None) -> str:
    """A key for an error message: as text if it is text, else in hex."""
    if key is None:
        return "null"
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return key[:64].hex()
    return repr(text[:64]) if text.isprintable() else key[:64].hex()


def filter_key(text: str, serde: Serde[Any], option: str) -> bytes:
    """A key bound from text, by the key's serde; hex for bytes. Raises BadConfig."""
    try:
        if serde.name == "bytes":
            return bytes.fromhex(text)
        if serde.name == "string":
            return text.encode()
        value = json.loads(text)
        if serde.name == "float64":
            value = float(value)  # JSON reads 1 as an int
        raw: bytes = serde.serialize(value)
        return raw
    except Exception as error:
        form = "hex" if serde.name == "bytes" else "JSON"
        raise BadConfig([f"{option} is {text!r}: keys are {serde.name}, give one as {form} ({error})"]) from error


def turned(rows: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """Rows, at least one, as columns. zip(*rows) would have thousands of arguments and take ten times as long."""
    return [[row[at] for row in rows] for at in range(len(rows[0]))]
