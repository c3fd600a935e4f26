"""The write buffer: overlay of buffered rows, sizes, and the hard bound, to the byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.store.buffer.buffer import HEADED, merge_pending
from standfast.store.buffer.part import CHANGE_OVERHEAD_BYTES, ROW_OVERHEAD_BYTES
from standfast.store.buffer.write_buffer import WriteBuffer
from standfast.store.errors import Backpressure
from standfast.store.value_timestamp import TIMESTAMP
from support.buffers import log, put, write_headed, writer

keys = st.binary(max_size=2)
stored_rows = st.dictionaries(keys, st.binary(max_size=2), max_size=12)
buffered_rows = st.dictionaries(keys, st.none() | st.binary(max_size=2), max_size=12)
writes = st.lists(st.tuples(st.sampled_from(["a", "b@0"]), keys, st.none() | st.binary(max_size=4)), max_size=30)


@given(stored_rows, buffered_rows, st.booleans())
def test_buffered_rows_overlay_the_stored_ones(
    stored: dict[bytes, bytes], buffered: dict[bytes, bytes | None], reverse: bool
) -> None:
    both = {**stored, **buffered}
    expected = [(key, both[key]) for key in sorted(both, reverse=reverse) if both[key] is not None]
    merged = merge_pending(
        iter(sorted(stored.items(), reverse=reverse)), sorted(buffered.items(), reverse=reverse), reverse=reverse
    )
    assert list(merged) == expected


@given(writes, keys | st.none(), keys | st.none(), st.booleans(), st.integers(0, 30))
def test_pending_rows_are_a_sorted_range_also_after_more_puts(
    puts: list[tuple[str, bytes, bytes | None]], low: bytes | None, high: bytes | None, reverse: bool, scanned_at: int
) -> None:
    buffer = WriteBuffer()
    rows: dict[bytes, bytes | None] = {}
    for number, (family, key, row) in enumerate(puts):
        if number == scanned_at:  # sorts the present keys; later keys must be sorted in
            buffer.pending("a", None, None, reverse=False)
        put(buffer, family, key, row)
        if family == "a":
            rows[key] = row
    expected = [
        (key, rows[key])
        for key in sorted(rows, reverse=reverse)
        if (low is None or key >= low) and (high is None or key < high)
    ]
    assert buffer.pending("a", low, high, reverse=reverse) == expected


@given(writes, st.booleans())
def test_size_is_the_sum_over_what_is_buffered(puts: list[tuple[str, bytes, bytes | None]], latest_only: bool) -> None:
    buffer = WriteBuffer()
    for family, key, value in puts:
        put(buffer, family, key, value)
        log(buffer, family, key, value, 5, latest_only=latest_only)
    expected = sum(
        ROW_OVERHEAD_BYTES + len(key) + len(row or b"") for rows in buffer.rows.values() for key, row in rows.items()
    )
    expected += sum(
        CHANGE_OVERHEAD_BYTES + len(change[0]) + len(change[1] or b"")
        for changes in buffer.take_changes().values()
        for change in changes
    )
    assert buffer.size_bytes == expected
    buffer.clear()
    assert (buffer.size_bytes, buffer.rows, buffer.take_changes()) == (0, {}, {})


@given(writes)
def test_changes_keep_every_put_or_the_last_of_each_key(puts: list[tuple[str, bytes, bytes | None]]) -> None:
    every, latest = WriteBuffer(), WriteBuffer()
    for number, (store, key, value) in enumerate(puts):
        log(every, store, key, value, number, latest_only=False)
        log(latest, store, key, value, number, latest_only=True)
    for store, changes in every.take_changes().items():
        expected = [(key, value, number, ()) for number, (name, key, value) in enumerate(puts) if name == store]
        assert changes == expected
        assert latest.take_changes()[store] == list({change[0]: change for change in expected}.values())


def test_one_hot_key_does_not_fill_a_cached_buffer() -> None:
    buffer = WriteBuffer(1_000)
    for number in range(100):
        put(buffer, "a", b"k", b"v" * 50)
        log(buffer, "a", b"k", b"v" * 50, number, latest_only=True)
    assert not buffer.full


def test_every_change_of_an_uncached_store_counts_even_without_a_value() -> None:
    buffer = WriteBuffer(1_000)
    for number in range(100):
        put(buffer, "a", b"k", None)
        log(buffer, "a", b"k", None, number, latest_only=False)
    assert buffer.full


def test_buffer_is_full_at_its_bound() -> None:
    buffer = WriteBuffer(ROW_OVERHEAD_BYTES + 1 + 9)
    put(buffer, "a", b"k", b"v" * 8)
    assert not buffer.full
    put(buffer, "a", b"k", b"v" * 9)
    assert buffer.full


def test_room_ends_at_exactly_twice_the_bound() -> None:
    buffer = WriteBuffer(500)
    put(buffer, "a", b"k", b"v" * 99)
    buffer.check_room(1_000 - buffer.size_bytes)
    with pytest.raises(Backpressure, match=r"1000 bytes .* commit"):
        buffer.check_room(1_001 - buffer.size_bytes)


def test_an_empty_buffer_takes_any_one_write() -> None:
    WriteBuffer(10).check_room(1_000_000)


def test_a_dropped_family_is_forgotten_and_its_changes_stay() -> None:
    buffer = WriteBuffer()
    put(buffer, "a@0", b"k", b"v")
    log(buffer, "a", b"k", b"v", 1, latest_only=True)
    buffer.pending("a@0", None, None, reverse=False)
    buffer.drop_family("a@0")
    assert buffer.pending("a@0", None, None, reverse=False) == []
    assert buffer.take_changes() == {"a": [(b"k", b"v", 1, ())]}


@given(
    before=st.lists(
        st.tuples(st.sampled_from([b"", b"a", b"b", b"ab"]), st.one_of(st.none(), st.binary(max_size=5))), max_size=5
    ),
    pairs=st.lists(st.tuples(st.sampled_from([b"", b"a", b"b", b"ab"]), st.binary(max_size=5)), max_size=8),
    savepoint=st.booleans(),
)
def test_writing_all_is_writing_each(
    before: list[tuple[bytes, bytes | None]], pairs: list[tuple[bytes, bytes]], savepoint: bool
) -> None:
    one, other = WriteBuffer(), WriteBuffer()
    prefix = TIMESTAMP.pack(2)
    for buffer in (one, other):
        for key, value in before:
            write_headed(buffer, "s", key, None if value is None else TIMESTAMP.pack(1) + value, "s", value, 1)
        if savepoint:
            buffer.begin()
    writer(one, "s", HEADED, stamped=True).put_all("s", pairs, 2)
    for key, value in pairs:
        write_headed(other, "s", key, prefix + value, "s", value, 2)
    for buffer in (one, other):
        assert (buffer.rows, buffer.changes, buffer.size_bytes) == (other.rows, other.changes, other.size_bytes)
        assert list(buffer.changes.get("s", {})) == list(other.changes.get("s", {}))
        if savepoint:
            buffer.rollback()
    assert (one.rows, one.changes, one.size_bytes) == (other.rows, other.changes, other.size_bytes)
    assert one.take_changes() == other.take_changes()


def test_a_headed_store_that_loses_its_rows_to_a_rollback_begins_again() -> None:
    buffer = WriteBuffer()
    buffer.begin()
    write_headed(buffer, "s", b"k", None, "s", None, 3)
    buffer.rollback()
    assert (buffer.rows, buffer.changes, buffer.delete_times, buffer.size_bytes) == ({}, {}, {}, 0)
    write_headed(buffer, "s", b"k", TIMESTAMP.pack(4) + b"v", "s", b"v", 4)
    assert buffer.take_changes() == {"s": [(b"k", b"v", 4, ())]}


def test_a_rollback_restores_the_time_of_an_earlier_delete() -> None:
    buffer = WriteBuffer()
    write_headed(buffer, "s", b"k", None, "s", None, 3)
    buffer.begin()
    write_headed(buffer, "s", b"k", TIMESTAMP.pack(4) + b"v", "s", b"v", 4)
    write_headed(buffer, "s", b"k", None, "s", None, 5)
    assert buffer.take_changes() == {"s": [(b"k", None, 5, ())]}
    buffer.rollback()
    assert buffer.take_changes() == {"s": [(b"k", None, 3, ())]}


def test_changes_that_were_taken_stay_as_they_were() -> None:
    buffer = WriteBuffer()
    buffer.keep_bytes = 1_000
    buffer.read_families.add("s")
    write_headed(buffer, "s", b"k", TIMESTAMP.pack(1) + b"a", "s", b"a", 1)
    taken = buffer.take().logged()
    buffer.settle()
    write_headed(buffer, "s", b"k", None, "s", None, 2)
    write_headed(buffer, "s", b"l", TIMESTAMP.pack(2) + b"b", "s", b"b", 2)
    assert taken == {"s": [(b"k", b"a", 1, ())]}
    assert buffer.recent == {"s": {b"k": TIMESTAMP.pack(1) + b"a"}}
    assert buffer.take_changes() == {"s": [(b"k", None, 2, ()), (b"l", b"b", 2, ())]}


headed_writes = st.lists(
    st.tuples(
        st.sampled_from(["s@0", "s@1"]),
        st.sampled_from([b"a", b"b", b"c"]),
        st.one_of(st.none(), st.binary(max_size=3)),
    ),
    max_size=6,
)


@given(parts=st.lists(headed_writes, min_size=2, max_size=3))
def test_parts_of_refused_commits_are_taken_as_if_written_without_a_commit(
    parts: list[list[tuple[str, bytes, bytes | None]]],
) -> None:
    # The changes of a store stand in a list once its rows lie in two families: in an older part, a newer one, or both.
    taken, plain, clock = WriteBuffer(), WriteBuffer(), 0
    for part in parts:
        for family, name, value in part:
            clock += 1
            row = None if value is None else TIMESTAMP.pack(clock) + value
            for buffer in (taken, plain):
                write_headed(buffer, family, name + family.encode(), row, "s", value, clock)
        taken.take()
        taken.put_back()
    merged, whole = taken.take(), plain.take()
    assert merged.rows == whole.rows
    assert {name: list(changes) for name, changes in merged.logged().items()} == {
        name: list(changes) for name, changes in whole.logged().items()
    }
    assert merged.size_bytes == whole.size_bytes
