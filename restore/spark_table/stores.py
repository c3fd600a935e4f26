"""A store at rest as rows for Spark: one task for each partition, batch by batch, with key and time bounds.

    engine scan ── rows within bounds ── cells ── Shaper ── batches

Key bounds become the bounds of the scan, time bounds choose segments; rows past retention, which a read of the store
would not show, are skipped.

Rules of this file: reads only, in bounded memory; the task that reads a store opens it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from standfast.restore.spark.places import StorePlaces, TaskPlace, chosen, find_store, open_place
from standfast.restore.spark_table.columns import Cells, Shaper, filter_key, split_times, store_columns, turned
from standfast.restore.spark_table.options import CheckedOptions, Filters
from standfast.restore.verify.at_rest import StoreAtRest
from standfast.store import serde as serdes
from standfast.store.engine import DEFAULT_FAMILY, Row
from standfast.store.errors import BadConfig, InternalError, InvalidRequest, NotReady
from standfast.store.specs import StoreSpec
from standfast.store.task.commit_record import INGESTING_KEY, decode_ingesting
from standfast.store.traits import KeyTimes
from standfast.store.types.key_ranges import EVERY_KEY, key_spans
from standfast.store.types.keyvalue import after_prefix
from standfast.store.types.kinds import definition_spec
from standfast.store.types.versioned_row import LATEST_PREFIX, SegmentRow, unpack_latest
from standfast.store.value_timestamp import TIMESTAMP

# A batch ends at either bound, since values may be of any size.
CHUNK_ROWS = 8_192
CHUNK_BYTES = 16 << 20
STEP_ROWS = 128
TIME_MAX = 2**63 - 1
Found: TypeAlias = Iterator[tuple[int, Cells]]
Range: TypeAlias = tuple[bytes | None, bytes | None, bool]  # low <= row key < high, and whether to read backwards


class StorePlace(InputPartition):
    """One task's store."""

    def __init__(self, place: TaskPlace) -> None:
        super().__init__(place.address)
        self.place = place


def located(given: CheckedOptions) -> tuple[StorePlaces, StoreSpec]:
    """The store that options name, with the options' serdes."""
    stored = find_store(given.place, given.text("app"), given.text("storeName"))
    kept = dict(stored.definition)
    for part in ("key", "value"):
        serde = given.serde(part)
        if serde is not None and serdes.by_name(kept[part]) is not serdes.sorted_keys(serde, True):
            kept[part] = serde.name
    return stored, definition_spec(stored.name, kept)


def store_schema(given: CheckedOptions) -> dict[str, str]:
    """Columns of the store that options name."""
    return store_columns(located(given)[1], given)


class StoreReader(DataSourceReader):
    """Rows of one store."""

    def __init__(self, given: CheckedOptions, schema: StructType) -> None:
        self._stored, self._spec = located(given)
        self._schema = schema
        self._given = given
        self._filters = filters_of(given, self._spec)
        self._partitions = given.partitions()
        self._shaper()  # an unfit schema is refused in the driver, before a task starts

    def partitions(self) -> list[InputPartition]:
        """One for each task."""
        return [StorePlace(place) for place in chosen(self._stored.places, self._partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Batches of one task's rows."""
        if not isinstance(partition, StorePlace):
            raise InternalError(f"the source was given {partition!r}, which is not one of its partitions")
        place, shaper, left = partition.place, self._shaper(), self._filters.limit
        with open_place(place, self._stored.name, self._stored.definition) as at_rest:
            _refuse_ingesting(at_rest, place, self._stored.name)
            for count, cells in read_rows(at_rest, self._spec, self._filters):
                batch = shaper.batch({"partition": np.full(count, place.task.partition, np.int32), **cells}, count)
                if left is not None:
                    batch = batch.slice(0, left)
                    left -= batch.num_rows
                yield batch
                if left == 0:
                    return

    def _shaper(self) -> Shaper:
        return Shaper(self._schema, store_columns(self._spec, self._given), self._spec, f"store {self._spec.name!r}")


def filters_of(given: CheckedOptions, spec: StoreSpec) -> Filters:
    """Bounds of a read. Raises BadConfig for bounds that do not fit the kind of store."""
    problems = []
    if given.number("asOf") is not None and not spec.traits.versions:
        problems.append(f"asOf goes with a versioned store, and {spec.name!r} is {spec.kind}")
    times = [name for name in ("timeFrom", "timeTo") if given.number(name) is not None]
    if times and spec.traits.by_key and not spec.timestamped:
        problems.append(f"{' and '.join(times)}: store {spec.name!r} keeps no timestamps")
    if given.text("keyPrefix") is not None and (given.text("keyFrom") or given.text("keyTo")):
        problems.append("keyPrefix does not go with keyFrom or keyTo")
    if problems:
        raise BadConfig(problems)
    low, high, prefix = (
        None if (text := given.text(name)) is None else filter_key(text, spec.key, name)
        for name in ("keyFrom", "keyTo", "keyPrefix")
    )
    try:
        # Without an end it is a read of all keys, in which NaN is one of them.
        keys = [EVERY_KEY] if low is None and high is None else key_spans(spec.key, low, high, store=spec.name)
    except InvalidRequest as error:
        raise BadConfig([str(error)]) from error
    return Filters(
        tuple(keys),
        prefix,
        given.number("timeFrom"),
        given.number("timeTo"),
        given.number("asOf"),
        given.number("limit"),
    )


def read_rows(at_rest: StoreAtRest, spec: StoreSpec, filters: Filters) -> Found:
    """(rows, cells by column) of a store, within bounds."""
    store = at_rest.store
    present = store.rows.engine.families()
    if not any(family in present for family in store.families()) or filters.limit == 0:
        return
    if spec.traits.times is not None:
        yield from _timed(at_rest, spec, spec.traits.times, filters)
    elif spec.traits.versions:
        yield from _versions(at_rest, spec, filters)
    else:
        yield from _plain(at_rest, spec, filters)


def _plain(at_rest: StoreAtRest, spec: StoreSpec, filters: Filters) -> Found:
    skip = 8 if spec.timestamped else 0
    timed = filters.time_from is not None or filters.time_to is not None
    first, last = _times(filters)
    ranges = _of_prefix(filters) or [(*span.bounds(), span.reverse) for span in filters.keys]
    for rows in _scan(at_rest, [spec.name], ranges):
        if timed:
            rows = [row for row in rows if first <= TIMESTAMP.unpack_from(row[1])[0] <= last]
        if not rows:
            continue
        keys, raws = turned(rows)
        cells: dict[str, Sequence[Any]] = {"key": pa.array(keys, pa.binary()), "value": pa.array(raws, pa.binary())}
        if skip:
            cells["timestamp"], cells["value"] = split_times(cells["value"], spec.name)
        yield len(keys), cells


def _timed(at_rest: StoreAtRest, spec: StoreSpec, times: KeyTimes, filters: Filters) -> Found:
    first, last = _times(filters)
    segments = at_rest.store.segments  # type: ignore[attr-defined]
    first = max(first, segments.visible_from(), 0)  # rows past retention are hidden, as in a read of the store
    ranges = _of_prefix(filters) or [
        (*times.range_bounds(span.low, span.high, 0, TIME_MAX), span.reverse) for span in filters.keys
    ]
    ends = times.second == "end"  # a session's row is in the segment of its end, which may lie after the last start
    for rows in _scan(at_rest, segments.families(first, None if ends else last), ranges):
        found = [
            (taken, row)
            for taken, row in ((times.unpack(row_key), row) for row_key, row in rows)
            if (taken[2] if ends else taken[1]) >= first and taken[1] <= last and filters.takes(taken[0])
        ]
        if not found:
            continue
        taken_keys, raws = turned(found)
        cells: dict[str, Sequence[Any]] = {**times.columns(spec, taken_keys), "value": raws}
        if spec.timestamped:
            cells["timestamp"], cells["value"] = split_times(pa.array(raws, pa.binary()), spec.name)
        yield len(raws), cells


def _versions(at_rest: StoreAtRest, spec: StoreSpec, filters: Filters) -> Found:
    kept_after = at_rest.times.observed_ms - spec.kept_ms
    first, last = _times(filters)
    if filters.as_of is not None:
        first = last = filters.as_of
    ended_from = max(first, kept_after)
    # Like the store, which at a time before its history has only the latest version, if that is as old.
    ended_too = filters.as_of is None or filters.as_of >= kept_after
    # Row keys begin with their segment, so that bounds of keys cannot bound the scan.
    for rows in _scan(at_rest, [spec.name], [(None, None, False)]):
        found = [
            (row_key[8:], valid_from, valid_to, value)
            for row_key, row in rows
            if filters.takes(row_key[8:])
            for value, valid_from, valid_to in _versions_of(row_key, row)
            if value is not None and valid_from <= last and (valid_to is None or (ended_too and valid_to > ended_from))
        ]
        if found:
            keys, froms, tos, values = turned(found)
            yield len(keys), {"key": keys, "valid_from": froms, "valid_to": tos, "value": values}


def _versions_of(row_key: bytes, row: bytes) -> Iterator[tuple[bytes | None, int, int | None]]:
    if row_key.startswith(LATEST_PREFIX):
        value, valid_from = unpack_latest(row)
        yield value, valid_from, None
        return
    yield from SegmentRow.parse(row).versions()


def _scan(at_rest: StoreAtRest, families: Sequence[str], ranges: Sequence[Range]) -> Iterator[list[Row]]:
    engine = at_rest.store.rows.engine
    present = engine.families()
    for family in families:
        if family in present:
            for low, high, reverse in ranges:
                with engine.scan(family, low, high, reverse=reverse) as scan:
                    yield from _chunks(scan)


def _chunks(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Rows as lists bounded by number and bytes: a column of an Arrow batch holds 2 GiB at most."""
    source, found, size = iter(rows), list[Row](), 0
    while step := list(islice(source, STEP_ROWS)):
        found += step
        size += sum(map(len, map(itemgetter(1), step)))
        if len(found) >= CHUNK_ROWS or size >= CHUNK_BYTES:
            yield found
            found, size = [], 0
    if found:
        yield found


def _of_prefix(filters: Filters) -> list[Range]:
    prefix = filters.key_prefix
    return [] if prefix is None else [(prefix, after_prefix(prefix), False)]


def _times(filters: Filters) -> tuple[int, int]:
    return (
        0 if filters.time_from is None else filters.time_from,
        TIME_MAX if filters.time_to is None else filters.time_to,
    )


def _refuse_ingesting(at_rest: StoreAtRest, place: TaskPlace, name: str) -> None:
    engine = at_rest.store.rows.engine
    # Under this mark it is unknown which files are in, so that the position stands for nothing.
    if place.kind == "task" and name in decode_ingesting(engine.get(DEFAULT_FAMILY, INGESTING_KEY), str(place)):
        raise NotReady(
            f"store {name!r} in {place} has an unfinished import: its position does not fit its rows; start "
            "the application again, which restores it"
        )
