"""Watermarks at the source, at every boundary: assigners, and the signals of one partition.

Rules of this file: by hand, one rule of the field per test. The task's clock is in `test_watermarks_valve.py`,
histories at random in `test_watermarks_model.py`.
"""

from __future__ import annotations

from typing import Any

import pytest

from standfast.store.errors import InvalidRequest
from standfast.stream.watermarks import (
    Active,
    BoundedDisorder,
    Channel,
    Idle,
    Punctuated,
    SourceWatermarks,
    Watermark,
    WatermarkAssigner,
    WatermarkValve,
)

A = Channel("flights/0")


# --- assigners ---


def test_bounded_disorder_is_one_below_the_largest_timestamp_less_the_bound() -> None:
    assigner = BoundedDisorder(10)
    assert assigner.on_periodic() is None
    for timestamp_ms, mark in [(100, 89), (99, 89), (100, 89), (101, 90), (0, 90)]:
        assert assigner.on_record("v", timestamp_ms) is None
        assert assigner.on_periodic() == mark


def test_record_exactly_at_the_bound_of_disorder_is_not_late() -> None:
    assigner, valve = BoundedDisorder(10), WatermarkValve([A])
    assigner.on_record("v", 100)
    mark = assigner.on_periodic()
    assert mark is not None
    valve.on_watermark(A, mark)
    assert [valve.is_late(at) for at in (88, 89, 90)] == [True, True, False]


def test_records_in_order_need_no_bound() -> None:
    assigner = BoundedDisorder(0)
    assigner.on_record("v", 0)
    assert assigner.on_periodic() == -1
    assigner.on_record("v", 7)
    assert assigner.on_periodic() == 6


@pytest.mark.parametrize("bad", [-1, True, 1.0, "1", None])
def test_bound_that_is_not_a_whole_number_from_0_is_refused(bad: int) -> None:
    with pytest.raises(InvalidRequest, match=r"max_disorder_ms is .*give a whole number of milliseconds from 0"):
        BoundedDisorder(bad)


def test_punctuated_takes_the_watermark_from_the_records_that_carry_one() -> None:
    source = SourceWatermarks(Punctuated(lambda value, timestamp_ms: timestamp_ms if value == "end" else None))
    assert source.on_record("data", 5, 0) == ()
    assert source.on_record("end", 6, 0) == (Watermark(6),)
    assert source.on_record("end", 4, 0) == ()  # lower than the last: ignored
    assert source.on_record("end", 6, 0) == ()
    assert source.on_periodic(0) == ()
    assert source.watermark_ms == 6


class EveryThird:
    """An assigner as a user writes one: a watermark with every third record, and 1,000 at the interval."""

    def __init__(self) -> None:
        self.seen = 0

    def on_record(self, value: Any, timestamp_ms: int) -> int | None:
        self.seen += 1
        return timestamp_ms if self.seen % 3 == 0 else None

    def on_periodic(self) -> int | None:
        return 1_000


def test_assigner_of_ones_own_needs_two_methods() -> None:
    source = SourceWatermarks(EveryThird())
    assert [source.on_record("v", at, 0) for at in (5, 6, 7, 8)] == [(), (), (Watermark(7),), ()]
    assert source.on_periodic(0) == (Watermark(1_000),)
    assert source.on_periodic(0) == ()


@pytest.mark.parametrize("bad", [1.5, "7", True])
def test_assigner_that_gives_no_whole_number_is_named_and_nothing_changes(bad: Any) -> None:
    source = SourceWatermarks(Punctuated(lambda value, timestamp_ms: bad), now_ms=0, idle_after_ms=10)
    source.declare_idle()
    with pytest.raises(InvalidRequest, match="a watermark of Punctuated is"):
        source.on_record("v", 1, 5)
    assert (source.watermark_ms, source.is_idle) == (None, True)


# --- one source partition ---


def test_partition_is_idle_only_more_than_its_time_after_the_last_record() -> None:
    source = SourceWatermarks(BoundedDisorder(0), now_ms=0, idle_after_ms=100)
    source.on_record("v", 7, now_ms=50)
    assert source.on_periodic(149) == (Watermark(6),)
    assert source.on_periodic(150) == ()
    assert source.on_periodic(151) == (Idle(),)
    assert source.on_periodic(152) == ()
    assert source.is_idle


def test_partition_without_any_record_is_idle_its_time_after_the_beginning() -> None:
    source = SourceWatermarks(BoundedDisorder(0), now_ms=1_000, idle_after_ms=100)
    assert source.on_periodic(1_100) == ()
    assert source.on_periodic(1_101) == (Idle(),)


def test_record_ends_idleness_before_its_watermark_is_told() -> None:
    source = SourceWatermarks(Punctuated(lambda value, timestamp_ms: timestamp_ms), now_ms=0, idle_after_ms=100)
    assert source.on_periodic(101) == (Idle(),)
    assert source.on_record("v", 7, 500) == (Active(), Watermark(7))
    assert source.on_periodic(600) == ()  # its time restarted
    assert source.on_periodic(601) == (Idle(),)


def test_what_the_assigner_still_had_to_say_goes_before_idle() -> None:
    source = SourceWatermarks(BoundedDisorder(0), now_ms=0, idle_after_ms=100)
    source.on_record("v", 7, 0)
    assert source.on_periodic(101) == (Watermark(6), Idle())


def test_silence_of_our_own_making_is_not_idleness() -> None:
    source = SourceWatermarks(BoundedDisorder(0), now_ms=0, idle_after_ms=100)
    assert source.on_periodic(1_000, blocked=True) == ()
    assert source.on_periodic(1_100) == ()
    assert source.on_periodic(1_101) == (Idle(),)
    assert source.on_periodic(1_102, blocked=True) == ()
    assert source.is_idle


def test_source_may_declare_itself_idle_and_is_without_a_time_never_idle_otherwise() -> None:
    source = SourceWatermarks(BoundedDisorder(0))
    assert source.on_periodic(10**12) == ()
    assert source.declare_idle() == (Idle(),)
    assert source.declare_idle() == ()
    assert source.on_record("v", 5, 0) == (Active(),)
    assert source.on_periodic(0) == (Watermark(4),)


@pytest.mark.parametrize("bad", [0, -1, True, 1.0])
def test_idle_time_that_is_no_time_is_refused(bad: int) -> None:
    with pytest.raises(InvalidRequest, match="idle_after_ms is"):
        SourceWatermarks(BoundedDisorder(0), idle_after_ms=bad)


def test_restored_source_says_its_watermark_once_more_and_nothing_lower() -> None:
    source = SourceWatermarks(BoundedDisorder(0))
    source.restore(50)
    source.on_record("v", 30, 0)
    assert source.on_periodic(0) == (Watermark(50),)
    assert source.on_periodic(0) == ()
    source.on_record("v", 51, 0)
    assert source.on_periodic(0) == ()  # 50 again: not higher
    source.on_record("v", 52, 0)
    assert source.on_periodic(0) == (Watermark(51),)
    assert source.to_state() == 51


def test_restored_source_that_is_ahead_already_says_the_new_one_only() -> None:
    source = SourceWatermarks(Punctuated(lambda value, timestamp_ms: timestamp_ms))
    source.restore(50)
    assert source.on_record("v", 60, 0) == (Watermark(60),)
    assert source.on_periodic(0) == ()
    source.restore(40)
    source.restore(None)
    assert (source.on_periodic(0), source.to_state()) == ((), 60)


@pytest.mark.parametrize("assigner", [BoundedDisorder(5), Punctuated(lambda value, at: at), EveryThird()])
def test_watermarks_of_a_source_are_monotone(assigner: WatermarkAssigner) -> None:
    source = SourceWatermarks(assigner)
    marks = []
    for at in (50, 40, 60, 10, 70, 70, 5):
        for signal in (*source.on_record("v", at, 0), *source.on_periodic(0)):
            assert isinstance(signal, Watermark)
            marks.append(signal.watermark_ms)
    assert marks and marks == sorted(set(marks))
