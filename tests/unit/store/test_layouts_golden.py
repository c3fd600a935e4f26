"""Byte layouts: golden bytes of Kafka Streams, round trips, order, and damaged bytes that never pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.store import session_key, value_timestamp, window_key
from standfast.store.errors import Corruption, InternalError, InvalidRequest
from standfast.store.types import versioned_row
from standfast.store.types.versioned_row import SegmentRow

TIME_MAX = 2**63 - 1
times = st.integers(0, TIME_MAX)
keys = st.binary(max_size=6)
# Bytes near both ends of the order, and times whose bytes collide with them.
close_keys = st.lists(st.sampled_from([0, 1, 2, 0x7F, 0xFF]), max_size=4).map(bytes)
close_times = st.sampled_from([0, 1, 255, 256, 2**32, 2**40, 2**56, 2**56 + 1, 2**62, TIME_MAX])


def golden(text: str) -> bytes:
    return bytes.fromhex(text.replace(" ", ""))


# Window keys.


def test_window_key_has_its_golden_bytes() -> None:
    assert window_key.pack(b"A", 60_000) == golden("41 000000000000ea60 00000000")
    assert window_key.pack(b"A", 60_000, 1) == golden("41 000000000000ea60 00000001")
    assert window_key.unpack(golden("41 000000000000ea60 00000001")) == (b"A", 60_000, 1)
    assert window_key.unpack(golden("000000000000ea60 00000000")) == (b"", 60_000, 0)


@given(keys, times, st.integers(0, window_key.SEQUENCE_MAX))
def test_window_key_comes_back(key: bytes, start: int, sequence: int) -> None:
    row_key = window_key.pack(key, start, sequence)
    assert window_key.unpack(row_key) == (key, start, sequence)
    assert window_key.start_of(row_key) == start
    assert window_key.sequence_of(row_key) == sequence


@pytest.mark.parametrize(("start", "sequence"), [(-1, 0), (TIME_MAX + 1, 0), (0, -1), (0, 2**31)])
def test_window_key_refuses_what_does_not_fit(start: int, sequence: int) -> None:
    with pytest.raises(InvalidRequest, match="window start"):
        window_key.pack(b"A", start, sequence)


@pytest.mark.parametrize("read", [window_key.unpack, window_key.start_of, window_key.sequence_of])
@pytest.mark.parametrize("row_key", [*(bytes(length) for length in range(12)), b"A" + b"\xff" * 8 + bytes(4)])
def test_a_damaged_window_key_is_corruption(read: Callable[[bytes], object], row_key: bytes) -> None:
    with pytest.raises(Corruption, match="window store"):
        read(row_key)


def test_a_damaged_sequence_is_corruption() -> None:
    with pytest.raises(Corruption):
        window_key.unpack(bytes(8) + b"\xff" * 4)


@given(close_keys, close_times, close_times, close_times, st.integers(0, window_key.SEQUENCE_MAX))
def test_window_key_bounds_hold_exactly_the_times_of_a_key(
    key: bytes, low: int, high: int, time: int, seq: int
) -> None:
    first, after = window_key.key_bounds(key, low, high)
    assert (first <= window_key.pack(key, time, seq) < after) == (low <= time <= high)


@given(close_keys, close_keys, close_keys, close_times, close_times)
def test_window_range_bounds_hold_every_row_of_the_range(
    key: bytes, key_from: bytes, key_to: bytes, time: int, time_to: int
) -> None:
    for low_key in (None, key_from):
        for high_key in (None, key_to):
            low, high = window_key.range_bounds(low_key, high_key, 0, time_to)
            inside = (low_key is None or low_key <= key) and (high_key is None or key <= high_key) and time <= time_to
            for sequence in (0, window_key.SEQUENCE_MAX):
                row_key = window_key.pack(key, time, sequence)
                assert not inside or (low <= row_key and (high is None or row_key < high))


def test_window_bounds_refuse_negative_times() -> None:
    with pytest.raises(InvalidRequest):
        window_key.key_bounds(b"A", -1, 5)
    with pytest.raises(InvalidRequest):
        window_key.range_bounds(b"A", b"B", -1, 5)


# Session keys.


def test_session_key_has_its_golden_bytes() -> None:
    assert session_key.pack(b"A", 10, 20) == golden("41 0000000000000014 000000000000000a")
    assert session_key.unpack(golden("41 0000000000000014 000000000000000a")) == (b"A", 10, 20)


@given(keys, times, times)
def test_session_key_comes_back(key: bytes, one: int, other: int) -> None:
    start, end = sorted((one, other))
    row_key = session_key.pack(key, start, end)
    assert session_key.unpack(row_key) == (key, start, end)
    assert session_key.end_of(row_key) == end


@pytest.mark.parametrize(("start", "end"), [(-1, 5), (5, 4), (0, TIME_MAX + 1), (-5, -1)])
def test_session_key_refuses_what_is_no_session(start: int, end: int) -> None:
    with pytest.raises(InvalidRequest, match="session"):
        session_key.pack(b"A", start, end)


@pytest.mark.parametrize("row_key", [*(bytes(length) for length in range(16)), b"\xff" * 16])
def test_a_damaged_session_key_is_corruption(row_key: bytes) -> None:
    for read in (session_key.unpack, session_key.end_of):
        with pytest.raises(Corruption, match="session store"):
            read(row_key)


def test_a_session_that_ends_before_it_starts_is_corruption() -> None:
    with pytest.raises(Corruption):
        session_key.unpack(golden("41 000000000000000a 0000000000000014"))


@given(close_keys, close_times, close_times, close_times, close_times)
def test_session_key_bounds_hold_exactly_the_ends_of_a_key(
    key: bytes, low: int, high: int, one: int, other: int
) -> None:
    start, end = sorted((one, other))
    first, after = session_key.key_bounds(key, low, high)
    assert (first <= session_key.pack(key, start, end) < after) == (low <= end <= high)


@given(close_keys, close_keys, close_keys, close_times, close_times, close_times)
def test_session_range_bounds_hold_every_row_of_the_range(
    key: bytes, key_from: bytes, key_to: bytes, one: int, other: int, end_to: int
) -> None:
    start, end = sorted((one, other))
    row_key = session_key.pack(key, start, end)
    for low_key in (None, key_from):
        for high_key in (None, key_to):
            low, high = session_key.range_bounds(low_key, high_key, 0, end_to)
            inside = (low_key is None or low_key <= key) and (high_key is None or key <= high_key) and end <= end_to
            assert not inside or (low <= row_key and (high is None or row_key < high))


# Values with a timestamp.


def test_a_value_with_timestamp_has_its_golden_bytes() -> None:
    assert value_timestamp.pack(1, b"v") == golden("0000000000000001 76")
    assert value_timestamp.pack(value_timestamp.UNKNOWN, b"") == b"\xff" * 8


@given(st.integers(-1, TIME_MAX), st.binary())
def test_a_value_with_timestamp_comes_back(timestamp: int, value: bytes) -> None:
    row = value_timestamp.pack(timestamp, value)
    assert value_timestamp.unpack(row) == (timestamp, value)
    assert value_timestamp.TIMESTAMP.unpack_from(row)[0] == timestamp


def test_a_timestamp_before_the_epoch_is_refused_and_a_short_row_is_corruption() -> None:
    with pytest.raises(InvalidRequest):
        value_timestamp.pack(-2, b"v")
    for length in range(8):
        with pytest.raises(Corruption):
            value_timestamp.unpack(bytes(length))


# Versioned rows.

GOLDEN_ROW = golden(
    "000000000000000a 0000000000000000"
    "0000000000000008 00000003 0000000000000003 00000003 0000000000000000 00000003"
    "62617a 626172 666f6f"
)
GOLDEN_TOMBSTONE = golden("000000000000000a 000000000000000a 000000000000000a ffffffff")


def versions_of(row: SegmentRow) -> list[tuple[bytes | None, int, int]]:
    """All versions, after a round trip through bytes."""
    again = SegmentRow.parse(row.serialize())
    assert again.serialize() == row.serialize()
    assert (again.next_ts, again.min_ts, again.degenerate) == (row.next_ts, row.min_ts, row.degenerate)
    return list(again.versions())


def test_a_segment_row_has_its_golden_bytes() -> None:
    row = SegmentRow.new(b"baz", 0, 3)
    row.insert_as_latest(3, 8, b"bar")
    row.insert_as_latest(8, 10, b"foo")
    assert row.serialize() == GOLDEN_ROW
    assert len(GOLDEN_ROW) == 61
    assert versions_of(row) == [(b"foo", 8, 10), (b"bar", 3, 8), (b"baz", 0, 3)]
    assert len(row) == 3


def test_a_degenerate_row_has_its_golden_bytes() -> None:
    row = SegmentRow.new(None, 10, 10)
    assert row.serialize() == GOLDEN_TOMBSTONE
    assert len(GOLDEN_TOMBSTONE) == 28
    assert row.degenerate
    assert versions_of(row) == [(None, 10, 10)]


def test_versioned_row_keys_and_latest_values_have_their_golden_bytes() -> None:
    assert versioned_row.segment_key(5, b"A") == golden("0000000000000005 41")
    assert versioned_row.segment_key(5, b"A").startswith(versioned_row.segment_prefix(5))
    assert versioned_row.latest_key(b"A") == golden("ffffffffffffffff 41")
    assert versioned_row.unpack_key(golden("ffffffffffffffff 41")) == (-1, b"A")
    assert versioned_row.unpack_key(golden("0000000000000005 41")) == (5, b"A")
    assert versioned_row.pack_latest(b"v", 1) == golden("0000000000000001 76")
    assert versioned_row.unpack_latest(golden("0000000000000001 76")) == (b"v", 1)
    with pytest.raises(Corruption):
        versioned_row.unpack_key(bytes(7))


def test_find_gives_the_version_valid_at_a_time() -> None:
    row = SegmentRow.parse(GOLDEN_ROW)
    assert row.find(0) == (2, b"baz", 0, 3)
    assert row.find(2) == (2, b"baz", 0, 3)
    assert row.find(3) == (1, b"bar", 3, 8)
    assert row.find(9) == (0, b"foo", 8, 10)
    for outside in (-1, 10, 11):
        with pytest.raises(InternalError):
            row.find(outside)
    with pytest.raises(InternalError):
        SegmentRow.parse(GOLDEN_TOMBSTONE).find(10)


def test_a_gap_before_the_latest_version_becomes_a_tombstone() -> None:
    row = SegmentRow.new(b"old", 5, 10)
    row.insert_as_latest(20, 30, b"new")
    assert versions_of(row) == [(b"new", 20, 30), (None, 10, 20), (b"old", 5, 10)]


def test_a_version_that_overlaps_the_row_cuts_it_off() -> None:
    row = SegmentRow.parse(GOLDEN_ROW)
    row.insert_as_latest(5, 20, b"new")
    assert versions_of(row) == [(b"new", 5, 20), (b"bar", 3, 5), (b"baz", 0, 3)]
    row.insert_as_latest(3, 9, b"newer")
    assert versions_of(row) == [(b"newer", 3, 9), (b"baz", 0, 3)]
    row.insert_as_latest(0, 4, b"only")
    assert versions_of(row) == [(b"only", 0, 4)]


def test_a_version_right_after_a_degenerate_row_takes_its_place() -> None:
    row = SegmentRow.new(None, 10, 10)
    row.insert_as_latest(10, 15, b"v")
    assert versions_of(row) == [(b"v", 10, 15)]
    assert not row.degenerate


def test_a_version_later_than_a_degenerate_row_keeps_its_tombstone() -> None:
    row = SegmentRow.new(None, 10, 10)
    row.insert_as_latest(12, 15, b"v")
    assert versions_of(row) == [(b"v", 12, 15), (None, 10, 12)]


def test_a_tombstone_after_a_degenerate_row_reaches_on_from_it() -> None:
    row = SegmentRow.new(None, 10, 10)
    row.insert_as_latest(10, 14, None)
    assert versions_of(row) == [(None, 10, 14)]


def test_a_version_earlier_than_a_degenerate_row_ends_where_that_began() -> None:
    row = SegmentRow.new(None, 10, 10)
    row.insert_as_earliest(4, b"v")
    assert versions_of(row) == [(b"v", 4, 10)]
    row.insert_as_earliest(2, None)
    assert versions_of(row) == [(b"v", 4, 10), (None, 2, 4)]
    assert row.min_ts == 2


def test_insert_and_update_at_an_index_that_was_found() -> None:
    row = SegmentRow.parse(GOLDEN_ROW)
    row.insert(5, b"new", row.find(5)[0])
    assert versions_of(row) == [(b"foo", 8, 10), (b"new", 5, 8), (b"bar", 3, 5), (b"baz", 0, 3)]
    row.update(5, None, 1)
    row.update(1, b"", 3)
    assert versions_of(row) == [(b"foo", 8, 10), (None, 5, 8), (b"bar", 3, 5), (b"", 1, 3)]
    assert row.min_ts == 1
    for index in (-1, 4):
        with pytest.raises(InternalError):
            row.insert(6, b"x", index)
        with pytest.raises(InternalError):
            row.update(6, b"x", index)
    with pytest.raises(InternalError):
        SegmentRow.new(None, 10, 10).insert(5, b"x", 0)


rows = st.builds(
    lambda stamps, values: (sorted(stamps, reverse=True), values),
    st.lists(st.integers(0, 1_000), min_size=2, max_size=8, unique=True),
    st.lists(st.none() | st.binary(max_size=5), min_size=8, max_size=8),
)


@given(rows)
def test_a_segment_row_comes_back(drawn: tuple[list[int], list[bytes | None]]) -> None:
    stamps, values = drawn
    oldest_first = list(zip(stamps[::-1], stamps[-2::-1], values, strict=False))
    row = SegmentRow.new(values[0], *oldest_first[0][:2])
    for valid_from, valid_to, value in oldest_first[1:]:
        row.insert_as_latest(valid_from, valid_to, value)
    expected = [(value, valid_from, valid_to) for valid_from, valid_to, value in oldest_first[::-1]]
    assert versions_of(row) == expected
    for timestamp in range(row.min_ts, row.next_ts, 7):
        index, value, valid_from, valid_to = row.find(timestamp)
        assert valid_from <= timestamp < valid_to
        assert expected[index] == (value, valid_from, valid_to)


@given(st.binary(max_size=120))
def test_any_bytes_either_are_a_segment_row_or_corruption(raw: bytes) -> None:
    try:
        row = SegmentRow.parse(raw)
    except Corruption:
        return
    assert list(row.versions()) == list(SegmentRow.parse(row.serialize()).versions())


@given(st.integers(0, 60), st.integers(1, 255))
def test_a_changed_byte_never_passes_with_bytes_left_over(position: int, change: int) -> None:
    raw = bytearray(GOLDEN_ROW)
    raw[position] ^= change
    try:
        row = SegmentRow.parse(bytes(raw))
    except Corruption:
        return
    assert row.serialize() == bytes(raw)


@pytest.mark.parametrize("length", range(61))
def test_a_row_that_ends_early_is_corruption(length: int) -> None:
    with pytest.raises(Corruption):
        SegmentRow.parse(GOLDEN_ROW[:length])


def test_a_row_with_more_bytes_than_versions_is_corruption() -> None:
    with pytest.raises(Corruption, match="belong to no version"):
        SegmentRow.parse(GOLDEN_ROW + b"x")
