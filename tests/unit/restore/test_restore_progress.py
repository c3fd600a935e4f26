"""Restore progress: rate over the window, time left, fraction, and stuck restores.

Rules of this file: the meter starts at offset 100, ends at 1,100, and its clock at 0, unless a test says otherwise.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.replication.offsets import TaskId, TopicPartition
from standfast.restore.progress import SAMPLES_MAX, ProgressMeter, RestoreProgress
from standfast.store.errors import InternalError

TASK, CHANGELOG = TaskId(0, 1), TopicPartition("app-store-changelog", 1)


def meter(start: int = 100, end: int = 1_100, **settings: int) -> ProgressMeter:
    return ProgressMeter(TASK, CHANGELOG, start, end, now_ms=0, **settings)


def test_fresh_restore_knows_no_rate() -> None:
    now = meter().snapshot(0)
    assert now == RestoreProgress(
        task=TASK,
        changelog=CHANGELOG,
        start=100,
        position=100,
        end=1_100,
        records=0,
        bytes=0,
        elapsed_ms=0,
        records_per_second=0.0,
        seconds_left=None,
        stuck=False,
    )
    assert (now.remaining, now.fraction, now.done) == (1_000, 0.0, False)


def test_rate_and_time_left_follow_what_was_read() -> None:
    one = meter()
    one.advance(300, records=100, bytes_=5_000, now_ms=1_000)  # half of the offsets were gaps
    now = one.snapshot(2_000)
    assert (now.records, now.bytes, now.elapsed_ms, now.remaining) == (100, 5_000, 2_000, 800)
    assert now.records_per_second == 50.0
    assert now.seconds_left == 8.0  # 100 offsets a second
    assert now.fraction == 0.2


def test_rate_covers_only_the_window() -> None:
    one = meter(window_ms=1_000)
    one.advance(600, records=500, bytes_=0, now_ms=1_000)
    one.advance(610, records=10, bytes_=0, now_ms=2_000)
    assert one.snapshot(2_000).records_per_second == 10.0
    assert one.snapshot(12_000).records_per_second < 1.0


def test_time_left_is_unknown_once_nothing_moved_for_a_window() -> None:
    one = meter(window_ms=1_000)
    one.advance(600, records=500, bytes_=0, now_ms=500)
    assert one.snapshot(1_499).seconds_left is not None
    assert one.snapshot(1_500).seconds_left is None


@pytest.mark.parametrize(("end", "done"), [(99, True), (100, True), (101, False)])
def test_restore_is_done_when_the_position_reaches_the_end(end: int, done: bool) -> None:
    now = meter(end=end).snapshot(0)
    assert now.done is done
    assert now.fraction == (1.0 if done else 0.0)
    assert now.seconds_left == (0.0 if done else None)
    assert now.remaining == (0 if done else 1)


@pytest.mark.parametrize(("now_ms", "stuck"), [(10_999, False), (11_000, True), (11_001, True)])
def test_restore_without_movement_below_the_end_is_stuck(now_ms: int, stuck: bool) -> None:
    one = meter(stuck_ms=10_000)
    one.advance(200, records=1, bytes_=0, now_ms=1_000)
    one.advance(200, records=0, bytes_=0, now_ms=5_000)  # a poll without records is no movement
    assert one.snapshot(now_ms).stuck is stuck


def test_restore_over_a_gap_without_records_is_not_stuck() -> None:
    one = meter(stuck_ms=10_000)
    one.advance(500, records=0, bytes_=0, now_ms=9_000)
    assert not one.snapshot(18_999).stuck


def test_finished_restore_is_never_stuck() -> None:
    one = meter()
    one.advance(1_100, records=1, bytes_=0, now_ms=1)
    assert not one.snapshot(10**9).stuck


@pytest.mark.parametrize(("position", "records", "size"), [(199, 0, 0), (300, -1, 0), (300, 0, -1)])
def test_progress_that_goes_back_is_our_bug_and_changes_nothing(position: int, records: int, size: int) -> None:
    one = meter()
    one.advance(200, records=1, bytes_=1, now_ms=10)
    before = one.snapshot(20)
    with pytest.raises(InternalError, match="cannot go back"):
        one.advance(position, records=records, bytes_=size, now_ms=20)
    assert one.snapshot(20) == before


def test_reading_of_a_clock_that_goes_back_is_ignored() -> None:
    one = meter()
    one.advance(200, records=100, bytes_=0, now_ms=1_000)
    assert one.snapshot(10) == one.snapshot(1_000)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 3_000)), max_size=300))
def test_samples_are_bounded_and_the_rate_stays_between_the_extremes(steps: list[tuple[int, int]]) -> None:
    one = meter(start=0, end=10**6, window_ms=5_000)
    now_ms = position = 0
    for moved, waited_ms in steps:
        now_ms += waited_ms
        position += moved
        one.advance(position, records=moved, bytes_=moved, now_ms=now_ms)
        now = one.snapshot(now_ms)
        assert (now.position, now.records, now.elapsed_ms) == (position, position, now_ms)
        assert 0.0 <= now.records_per_second <= 1_000 * position
        assert len(one._samples) <= SAMPLES_MAX + 2
