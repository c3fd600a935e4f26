"""Segments of time: lengths and liveness as in Kafka Streams, and family names."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.store import serde, window_key
from standfast.store.buffer.rows import StoreRows
from standfast.store.buffer.write_buffer import WriteBuffer
from standfast.store.errors import InvalidRequest
from standfast.store.memory import MemoryEngine
from standfast.store.specs import WindowStore
from standfast.store.types import segments
from standfast.store.types.segmented import Segments
from standfast.store.types.window import WindowState
from standfast.store.value_timestamp import TIMESTAMP
from support.interruption import Point, traced

MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000


@pytest.mark.parametrize(
    ("retention_ms", "interval_ms"),
    [(1, MINUTE_MS), (2 * MINUTE_MS, MINUTE_MS), (120_002, 60_001), (120_003, 60_001), (DAY_MS, DAY_MS // 2)],
)
def test_a_segment_is_half_the_retention_and_at_least_a_minute(retention_ms: int, interval_ms: int) -> None:
    assert segments.segment_interval_ms(retention_ms) == interval_ms


@pytest.mark.parametrize(
    ("history_ms", "interval_ms"),
    [
        (1, 2_000),
        (6_000, 2_000),
        (6_003, 2_001),
        (60_000, 20_000),
        (60_001, 20_000),
        (100_005, 20_001),
        (300_000, 60_000),
        (300_001, 60_000),
        (720_012, 60_001),
        (HOUR_MS, 300_000),
        (HOUR_MS + 1, 300_000),
        (2 * HOUR_MS, 300_000),
        (7_200_024, 300_001),
        (DAY_MS, HOUR_MS),
    ],
)
def test_versioned_segments_grow_with_the_history(history_ms: int, interval_ms: int) -> None:
    assert segments.versioned_segment_interval_ms(history_ms) == interval_ms


@pytest.mark.parametrize("value_ms", [0, -1])
def test_an_empty_retention_is_refused(value_ms: int) -> None:
    with pytest.raises(InvalidRequest):
        segments.segment_interval_ms(value_ms)


def test_a_negative_history_is_refused_and_one_of_0_is_not() -> None:
    with pytest.raises(InvalidRequest):
        segments.versioned_segment_interval_ms(-1)
    assert segments.versioned_segment_interval_ms(0) == 2_000


def test_a_segment_dies_when_all_its_times_are_past_retention() -> None:
    interval_ms, retention_ms = 100, 200
    assert segments.is_live(0, -1, retention_ms, interval_ms)
    assert segments.is_live(0, 299, retention_ms, interval_ms)  # 299 - 200 = 99 is still in segment 0
    assert not segments.is_live(0, 300, retention_ms, interval_ms)
    assert segments.is_live(1, 300, retention_ms, interval_ms)


def test_rows_hide_before_their_segment_dies() -> None:
    assert segments.earliest_visible_ms(250, 200) == 51
    assert segments.earliest_visible_ms(-1, 200) == -200


@given(st.integers(0, 2**50), st.integers(-1, 2**50), st.integers(1, 2**40))
def test_every_visible_time_lies_in_a_live_segment(time_ms: int, observed_ms: int, retention_ms: int) -> None:
    interval_ms = segments.segment_interval_ms(retention_ms)
    number = segments.segment_id(time_ms, interval_ms)
    start_ms = segments.segment_start_ms(number, interval_ms)
    assert start_ms <= time_ms < start_ms + interval_ms
    if time_ms >= segments.earliest_visible_ms(observed_ms, retention_ms):
        assert segments.is_live(number, observed_ms, retention_ms, interval_ms)


@given(st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,20}", fullmatch=True), st.integers(0, 2**62))
def test_family_names_come_back(store: str, start_ms: int) -> None:
    assert segments.parse_family(segments.family_name(store, start_ms)) == (store, start_ms)


@pytest.mark.parametrize(
    "family", ["delays", "default", "delays@", "@5", "delays@-5", "delays@05", "delays@5x", "a@b@5", ""]
)
def test_other_families_are_no_segments(family: str) -> None:
    assert segments.parse_family(family) is None


@given(st.integers(0, 1 << 40), st.integers(1, 1 << 40), st.integers(-3, 3))
def test_a_family_is_dead_from_the_very_time_that_is_given(time_ms: int, retention_ms: int, beside: int) -> None:
    rows = StoreRows("s", MemoryEngine(), WriteBuffer(), now_ms=lambda: 0)
    found = Segments(rows, retention_ms, segments.segment_interval_ms(retention_ms))
    from_ms = found.dead_from(time_ms)
    rows.observed_ms = from_ms + beside
    assert (found.family_for(time_ms) is None) == (rows.observed_ms >= from_ms)


def test_segment_that_is_added_at_any_moment_of_a_look_is_in_the_next_one() -> None:
    moment, passed = 0, True
    while passed:
        moment, passed = moment + 1, False
        found = Segments(StoreRows("w", MemoryEngine(), WriteBuffer(), now_ms=lambda: 0), DAY_MS, HOUR_MS)
        found.family_for(0)
        met = 0

        def trace(frame: FrameType, event: str, _: object) -> Any:
            nonlocal met, passed
            if frame.f_code is not Segments.families.__code__:
                return None
            frame.f_trace_opcodes = True
            met += event == "opcode"
            if met == moment and not passed:  # noqa: B023 - within this turn
                passed = True
                found.family_for(HOUR_MS)  # noqa: B023 - another thread's put
            return trace

        before = sys.gettrace()  # that of a measurement of coverage goes on afterwards
        sys.settrace(trace)
        try:
            found.families()
        finally:
            sys.settrace(before)
        if passed:
            assert found.families() == ["w@0", f"w@{HOUR_MS}"], moment


@pytest.mark.parametrize("ranges", [False, True])
def test_read_of_a_segment_that_a_commit_drops_at_any_moment_raises_nothing(ranges: bool) -> None:
    spec = WindowStore("w", serde.bytes, serde.bytes, window_size_ms=1, retention_ms=DAY_MS)
    moment, passed = 0, True
    while passed:
        moment, passed = moment + 1, False
        engine, met = MemoryEngine(), 0
        engine.create_family("w@0")
        engine.write({"w@0": {window_key.pack(b"k", 5): TIMESTAMP.pack(5) + b"v"}})
        store = WindowState(spec, StoreRows("w", engine, WriteBuffer(), now_ms=lambda: 0))

        def drop(_: Point) -> None:
            nonlocal met, passed
            met += 1
            if met == moment:  # noqa: B023 - within this turn
                passed = True
                engine.drop_family("w@0")  # noqa: B023

        found: list[Any] = []

        def read() -> None:
            if ranges:
                found.extend(value for _, value in store.fetch_range(b"k", 0, 9))  # noqa: B023
            else:
                found.append(store.fetch(b"k", 5))  # noqa: B023

        traced(read, drop)
        assert found in ([b"v"], [None], []), moment
