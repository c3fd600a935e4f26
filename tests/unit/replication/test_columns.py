"""Records column by column equal the records they stand for, wherever read as a sequence; stores restore alike.

Rules of this file: each property is checked against plain lists of Record.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from standfast.replication.columns import LazyColumns, RecordColumns, Span, gapless, joined, payload_bytes
from standfast.replication.kafka.native_library import native
from standfast.replication.log import Record
from standfast.store import serde
from standfast.store.rocks.opening import RocksShared
from standfast.store.specs import KeyValueStore
from standfast.store.task.commit_record import CommitRecord
from standfast.store.task.task_stores import TaskStores

KEYS = st.sampled_from([b"a", b"b", b"c", b"d"])
VALUES = st.one_of(st.none(), st.binary(max_size=4))
HEADERS = st.sampled_from([(), (("h", b"1"),)])


@st.composite
def record_lists(draw: st.DrawFn) -> list[Record]:
    """Records with growing offsets, gaps now and then."""
    rows = draw(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 9), KEYS, VALUES, HEADERS), max_size=30))
    found, offset = [], 0
    for step, stamp, key, value, headers in rows:
        offset += step
        found.append(Record(offset, stamp, key, value, headers))
    return found


def columns_of(records: list[Record]) -> RecordColumns:
    headers = [record.headers for record in records]
    return RecordColumns(
        gapless([record.offset for record in records]),
        [record.timestamp for record in records],
        [record.key for record in records],
        [record.value for record in records],
        headers if any(headers) else None,
    )


def lazy_of(records: list[Record], cut: int) -> LazyColumns:
    """Records without headers in the memory of a compiled reader, in two parts."""
    found = []
    for some in (records[:cut], records[cut:]):
        columns = [[record[at] for record in some] for at in range(4)]
        if some:
            found.append(Span(native().module.part_of("t", 0, *columns), 0, len(some)))
    return LazyColumns(found)


@given(record_lists(), st.integers(0, 30), st.integers(0, 31), st.integers(0, 31), st.integers(0, 100))
def test_lazy_columns_read_as_the_records_they_stand_for(
    records: list[Record], cut: int, start: int, stop: int, offset: int
) -> None:
    plain = [record._replace(headers=()) for record in records]
    columns = lazy_of(plain, cut)
    piece = columns[start:stop]
    assert isinstance(piece, LazyColumns) and piece.spans is not None
    assert (len(columns), len(piece)) == (len(plain), len(plain[start:stop]))
    assert columns.payload_bytes == payload_bytes(plain) and piece.payload_bytes == payload_bytes(plain[start:stop])
    assert columns.index_of(offset) == columns_of(plain).index_of(offset)
    assert not plain or (columns.first_offset, columns.last_offset) == (plain[0].offset, plain[-1].offset)
    both = joined([columns[:start], columns[start:]])
    assert isinstance(both, LazyColumns)
    assert columns.spans is not None, "none of these reads a column"
    assert piece == plain[start:stop] and columns == plain and both == plain
    assert columns.spans is None and columns.index_of(offset) == columns_of(plain).index_of(offset)
    assert columns[start:stop] == plain[start:stop] and list(columns.rows()) == list(columns_of(plain).rows())
    with pytest.raises(AttributeError, match="no_such"):
        _ = columns.no_such


@given(record_lists(), st.integers(-31, 31), st.integers(-31, 31))
def test_columns_read_as_the_records_they_stand_for(records: list[Record], start: int, stop: int) -> None:
    columns = columns_of(records)
    assert len(columns) == len(records) and list(columns) == records and columns == records and records == columns
    assert all(isinstance(record, Record) for record in columns)
    assert columns[start:stop] == records[start:stop]
    assert [columns[at] for at in range(len(records))] == records
    assert list(columns.rows()) == records
    assert payload_bytes(columns) == payload_bytes(records)
    assert (columns == records[:-1]) is (not records)


@given(record_lists(), st.integers(0, 30), st.integers(0, 30))
def test_pieces_joined_are_the_whole(records: list[Record], first: int, second: int) -> None:
    cuts = sorted((min(first, len(records)), min(second, len(records))))
    pieces = [records[: cuts[0]], records[cuts[0] : cuts[1]], records[cuts[1] :]]
    whole = joined([columns_of(piece) for piece in pieces])
    assert whole == records
    assert whole.payload_bytes == payload_bytes(records)


def test_offsets_without_a_gap_are_a_range() -> None:
    assert gapless([4, 5, 6]) == range(4, 7)
    assert gapless([4, 6, 7]) == [4, 6, 7]
    assert gapless([]) == []


@pytest.mark.parametrize("timestamped", [True, False])
@settings(max_examples=settings().max_examples // 3)
@given(batches=st.lists(record_lists(), max_size=4))
def test_store_restores_the_same_rows_from_columns(timestamped: bool, batches: list[list[Record]]) -> None:
    spec = KeyValueStore("rows", serde.bytes, serde.bytes, timestamped=timestamped, engine="memory")

    def restored(given: list[list[Record]] | list[RecordColumns]) -> list[object]:
        stores = TaskStores(Path("unused"), "app", "0_0", [spec], RocksShared(1 << 20), now_ms=lambda: 0)
        counts = [stores.apply({"rows": batch}, CommitRecord()) for batch in given]
        rows: list[object] = [*counts, *stores.stores["rows"].logical_rows()]
        stores.close()
        return rows

    assert restored([columns_of(batch) for batch in batches]) == restored(batches)


def test_record_without_key_among_columns_is_left_out() -> None:
    spec = KeyValueStore("rows", serde.bytes, serde.bytes, engine="memory")
    stores = TaskStores(Path("unused"), "app", "0_0", [spec], RocksShared(1 << 20), now_ms=lambda: 0)
    batch = RecordColumns(range(7, 9), [1, 1], [b"a", None], [b"x", b"y"])
    assert stores.apply({"rows": batch}, CommitRecord()) == 1
    assert list(stores.stores["rows"].logical_rows()) == [(b"a", 1, b"x")]
    stores.close()
