"""Every rule of the standby and its boundaries, then random histories against a brute-force reader.

Rules of this file: records of one byte; `records(3, 5)` are those at offsets 3, 4 and 5 only if they are named.
"""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.replication.log import Record
from standfast.replication.standby import (
    TABLE,
    Applied,
    Kept,
    LimitSet,
    Reinitialise,
    Standby,
    StandbyState,
    StandbyStep,
    record_bytes,
)
from standfast.store.errors import Closed, InternalError, InvalidRequest


def records(*offsets: int) -> list[Record]:
    return [Record(offset, 1_000 + offset, b"k", b"v") for offset in offsets]


def offsets_of(step: StandbyStep) -> list[int]:
    return [record.offset for record in step.apply]


def test_standby_without_limit_applies_everything() -> None:
    standby = Standby(0)
    step = standby.update(records(0, 1, 5))
    assert isinstance(step, Applied)
    assert step == Applied(apply=tuple(records(0, 1, 5)), kept=0, position=6)
    assert standby.state is StandbyState.RUNNING


@pytest.mark.parametrize(
    ("limit", "applied", "kept", "position"),
    [
        (0, [], 3, 4),  # no committed offset: nothing to apply
        (4, [], 3, 4),
        (5, [4], 2, 5),
        (6, [4, 5], 1, 6),
        (7, [4, 5, 6], 0, 7),
        (8, [4, 5, 6], 0, 7),
        (None, [4, 5, 6], 0, 7),
    ],
)
def test_standby_stops_at_limit_offset(limit: int | None, applied: list[int], kept: int, position: int) -> None:
    standby = Standby(4, limit)
    step = standby.update(records(4, 5, 6))
    assert (offsets_of(step), step.kept, step.position) == (applied, kept, position)
    assert isinstance(step, Applied if applied else Kept)
    assert step.pause is (kept > 0)
    assert not step.resume
    assert step.seek is None
    assert standby.position == position


def test_batch_wholly_beyond_limit_leaves_the_position() -> None:
    standby = Standby(3, 5)
    assert standby.update(records(7, 8), next_offset=20) == Kept(apply=(), kept=2, position=3, pause=True)


def test_partly_applied_batch_moves_the_position_behind_the_last_applied_record() -> None:
    standby = Standby(0, 6)
    assert standby.update(records(2, 9)).position == 3


@pytest.mark.parametrize(("limit", "position"), [(None, 9), (10, 9), (9, 9), (8, 8), (4, 4)])
def test_next_offset_moves_the_position_over_a_gap_but_not_over_the_limit(limit: int | None, position: int) -> None:
    standby = Standby(0, limit)
    step = standby.update(records(0, 3), next_offset=9)
    assert (offsets_of(step), step.position, step.pause) == ([0, 3], position, False)


def test_empty_batch_with_next_offset_is_applied_as_a_move() -> None:
    standby = Standby(2)
    assert standby.update([], next_offset=7) == Applied(apply=(), kept=0, position=7)
    assert standby.update([], next_offset=7) == Kept(apply=(), kept=0, position=7)
    assert standby.update([], next_offset=3) == Kept(apply=(), kept=0, position=7)


def test_gap_beyond_the_limit_is_passed_when_the_limit_rises() -> None:
    standby = Standby(0, 4)
    standby.update(records(0, 1), next_offset=10)
    assert standby.position == 4
    standby.set_limit(8)
    assert standby.on_commit_tick() == Applied(apply=(), kept=0, position=8)
    standby.set_limit(20)
    assert standby.on_commit_tick() == Applied(apply=(), kept=0, position=10)


def test_position_above_the_limit_stays_and_nothing_is_applied() -> None:
    standby = Standby(10, 5)
    assert standby.update(records(10, 11)) == Kept(apply=(), kept=2, position=10, pause=True)
    standby.set_limit(11)
    assert offsets_of(standby.on_commit_tick()) == [10]


def test_position_above_the_limit_does_not_go_back_to_it() -> None:
    standby = Standby(10, 5)
    assert standby.on_commit_tick() == Kept(apply=(), kept=0, position=10)
    assert standby.update([], next_offset=12) == Kept(apply=(), kept=0, position=10)


def test_kept_records_wait_for_the_commit_tick_and_then_resume() -> None:
    standby = Standby(0, 2)
    assert standby.update(records(0, 1, 2, 3, 4)).pause
    assert standby.state is StandbyState.PAUSED
    assert standby.on_commit_tick() == Kept(apply=(), kept=3, position=2)
    standby.set_limit(4)
    assert standby.statistics().kept_records == 3  # a new limit alone moves nothing
    assert standby.on_commit_tick() == Applied(apply=tuple(records(2, 3)), kept=1, position=4)
    standby.set_limit(5)
    assert standby.on_commit_tick() == Applied(apply=tuple(records(4)), kept=0, position=5, resume=True)
    assert standby.state is StandbyState.RUNNING


def test_batch_that_arrives_while_paused_goes_behind_what_was_kept() -> None:
    standby = Standby(0, 1)
    standby.update(records(0, 1, 2))
    assert standby.update(records(3, 4)) == Kept(apply=(), kept=4, position=1)
    standby.set_limit(9)
    step = standby.update(records(5, 6))
    assert offsets_of(step) == [1, 2, 3, 4, 5, 6]
    assert step.resume
    assert not step.pause


def test_draining_and_keeping_again_in_one_step_stays_paused() -> None:
    standby = Standby(0, 1)
    standby.update(records(1))
    standby.set_limit(3)
    step = standby.update(records(2, 3))
    assert (offsets_of(step), step.kept, step.pause, step.resume) == ([1, 2], 1, False, False)


@pytest.mark.parametrize(("limit", "regressed", "in_force"), [(4, True, 5), (5, False, 5), (6, False, 6)])
def test_limit_never_moves_back(limit: int, regressed: bool, in_force: int) -> None:
    standby = Standby(0, 5)
    assert standby.set_limit(limit) == LimitSet(in_force, regressed)
    assert standby.limit == in_force
    assert standby.statistics().limit_regressions == int(regressed)


def test_unlimited_standby_cannot_be_limited_later() -> None:
    standby = Standby(0)
    assert standby.set_limit(3) == LimitSet(None, regressed=True)
    assert offsets_of(standby.update(records(0, 7))) == [0, 7]


@pytest.mark.parametrize("limit", [-1, -1001, None, 2.5])
def test_limit_that_is_no_offset_is_refused_and_changes_nothing(limit: int) -> None:
    standby = Standby(0, 5)
    before = standby.statistics()
    with pytest.raises(InvalidRequest, match="limit"):
        standby.set_limit(limit)
    assert standby.statistics() == before


@pytest.mark.parametrize(
    ("position", "settings"),
    [(-1, {}), (0, {"limit": -1}), (0, {"keep_max_records": 0}), (0, {"keep_max_bytes": 0})],
)
def test_settings_that_cannot_be_used_are_refused(position: int, settings: dict[str, int]) -> None:
    with pytest.raises(InvalidRequest):
        Standby(position, **settings)


def test_records_below_the_position_are_ignored() -> None:
    standby = Standby(5)
    step = standby.update(records(2, 4, 5))
    assert offsets_of(step) == [5]
    assert standby.update(records(4, 5)) == Kept(apply=(), kept=0, position=6)
    assert standby.statistics().duplicate_records == 4


def test_records_kept_already_are_not_kept_twice() -> None:
    standby = Standby(0, 0)
    standby.update(records(0, 1))
    assert standby.update(records(0, 1, 2)).kept == 3


@pytest.mark.parametrize("count", [2, 3, 4])
def test_keep_is_bounded_by_records(count: int) -> None:
    standby = Standby(0, 0, keep_max_records=3)
    step = standby.update(records(*range(count)))
    assert step.kept == min(count, 3)
    standby.set_limit(100)
    step = standby.on_commit_tick()
    assert offsets_of(step) == list(range(min(count, 3)))
    assert step.seek == (3 if count > 3 else None)
    assert step.resume


@pytest.mark.parametrize(("max_bytes", "kept"), [(5, 2), (6, 3), (7, 3)])
def test_keep_is_bounded_by_bytes(max_bytes: int, kept: int) -> None:
    standby = Standby(0, 0, keep_max_bytes=max_bytes)
    assert standby.update(records(0, 1, 2)).kept == kept
    assert standby.statistics().kept_bytes == 2 * kept <= max_bytes


def test_draining_makes_room_again() -> None:
    standby = Standby(0, 0, keep_max_bytes=4)
    standby.update(records(0, 1))
    standby.set_limit(1)
    standby.on_commit_tick()
    assert standby.statistics().kept_bytes == 2
    assert standby.update(records(2)).kept == 2
    assert standby.statistics().dropped_records == 0


def test_one_record_larger_than_the_bound_is_kept_so_that_draining_makes_progress() -> None:
    standby = Standby(0, 0, keep_max_bytes=10)
    assert standby.update([Record(0, 1, b"k", b"v" * 100), *records(1)]).kept == 1
    standby.set_limit(2)
    step = standby.on_commit_tick()
    assert (offsets_of(step), step.seek, step.resume) == ([0], 1, True)


def test_size_of_a_record_counts_key_value_and_headers() -> None:
    assert record_bytes(Record(0, 1, b"abc", b"de", (("h", b"xy"), ("i", None)))) == 3 + 2 + 1 + 2 + 1
    assert record_bytes(Record(0, 1, b"abc", None)) == 3
    assert record_bytes(Record(0, 1, None, None)) == 0


def test_dropped_records_are_fetched_again_and_never_skipped() -> None:
    standby = Standby(0, 1, keep_max_records=2)
    standby.update(records(0, 1, 2, 3, 4))
    # Records that the reader had in flight lie behind the hole and must not be applied.
    assert standby.update(records(5, 6), next_offset=9) == Kept(apply=(), kept=2, position=1)
    standby.set_limit(9)
    step = standby.on_commit_tick()
    assert step == Applied(apply=tuple(records(1, 2)), kept=0, position=3, resume=True, seek=3)
    assert offsets_of(standby.update(records(3, 4, 5, 6), next_offset=9)) == [3, 4, 5, 6]
    assert standby.statistics().dropped_records == 4


def test_position_after_an_overflow_does_not_pass_what_was_dropped() -> None:
    standby = Standby(0, 0, keep_max_records=1)
    standby.update(records(0, 8))
    standby.set_limit(4)
    step = standby.on_commit_tick()
    assert (step.position, step.seek, step.resume) == (4, 8, True)


@pytest.mark.parametrize(
    ("batch", "next_offset"),
    [((1, 1), None), ((2, 1), None), ((0, 1, 5, 4), 9), ((3, 4), 4), ((3, 4), 3)],
)
def test_batch_with_impossible_offsets_is_our_bug_and_changes_nothing(batch: tuple[int, ...], next_offset: int) -> None:
    standby = Standby(1, 2)
    standby.update(records(1, 2))
    before = standby.statistics()
    with pytest.raises(InternalError, match="offset"):
        standby.update(records(*batch), next_offset)
    assert standby.statistics() == before


def test_batch_may_end_right_below_next_offset() -> None:
    assert Standby(0).update(records(3, 4), next_offset=5).position == 5


def test_reinitialise_lets_go_and_begins_again() -> None:
    standby = Standby(5, 6)
    standby.update(records(5, 6, 7))
    assert standby.reinitialise("truncated") == Reinitialise("truncated", position=6, dropped=2)
    assert standby.state is StandbyState.REINITIALISING
    assert standby.on_commit_tick() == Kept(apply=(), kept=0, position=6)
    standby.set_limit(8)
    assert standby.begin_again(2) == Kept(apply=(), kept=0, position=2, resume=True, seek=2)
    assert offsets_of(standby.update(records(2, 7, 8))) == [2, 7]
    assert standby.limit == 8


def test_reinitialise_forgets_that_records_were_dropped() -> None:
    standby = Standby(0, 0, keep_max_records=1)
    standby.update(records(0, 1, 2))
    standby.reinitialise("diverged")
    standby.set_limit(10)
    standby.begin_again(0)
    assert offsets_of(standby.update(records(0, 1, 2))) == [0, 1, 2]


def test_begin_again_of_a_running_standby_does_not_resume() -> None:
    standby = Standby(5)
    standby.reinitialise("diverged")
    assert standby.begin_again(0) == Kept(apply=(), kept=0, position=0, seek=0)


def test_begin_again_refuses_a_negative_position() -> None:
    standby = Standby(5)
    standby.reinitialise("diverged")
    with pytest.raises(InvalidRequest):
        standby.begin_again(-1)
    assert standby.state is StandbyState.REINITIALISING


CALLS = {
    "update": lambda standby: standby.update(records(50)),
    "set_limit": lambda standby: standby.set_limit(60),
    "on_commit_tick": lambda standby: standby.on_commit_tick(),
    "reinitialise": lambda standby: standby.reinitialise("truncated"),
    "begin_again": lambda standby: standby.begin_again(0),
    "close": lambda standby: standby.close(),
}


def in_state(state: StandbyState) -> Standby:
    standby = Standby(0, 1)
    if state is StandbyState.PAUSED:
        standby.update(records(1))
    if state is StandbyState.REINITIALISING:
        standby.reinitialise("truncated")
    if state is StandbyState.CLOSED:
        standby.close()
    assert standby.state is state
    return standby


@pytest.mark.parametrize(("state", "event"), list(itertools.product(StandbyState, CALLS)))
def test_every_event_in_every_state_follows_the_table(state: StandbyState, event: str) -> None:
    standby = in_state(state)
    before = standby.statistics()
    if event in TABLE[state]:
        CALLS[event](standby)
        assert standby.state in TABLE[state][event]
    else:
        with pytest.raises(Closed if state is StandbyState.CLOSED else InternalError):
            CALLS[event](standby)
        assert standby.statistics() == before


def test_close_frees_what_was_kept() -> None:
    standby = Standby(0, 0)
    standby.update(records(0, 1))
    standby.close()
    standby.close()
    assert (standby.statistics().kept_records, standby.statistics().kept_bytes) == (0, 0)


def test_memory_stays_bounded_far_below_the_end() -> None:
    standby = Standby(0, 1, keep_max_records=100)
    for start in range(0, 100_000, 1_000):
        standby.update(records(*range(start, start + 1_000)))
        assert standby.statistics().kept_records <= 100
    assert standby.position == 1


class Reader:
    """A plain log reader: a position, a pause, and batches of random size; the last next_offset is the end."""

    def __init__(self, log: list[Record], end: int) -> None:
        self.log = log
        self.end = end
        self.position = 0
        self.paused = False
        self.turns: list[str] = []

    def fetch(self, count: int) -> tuple[list[Record], int]:
        if self.paused:
            return [], self.position
        batch = [record for record in self.log if record.offset >= self.position][:count]
        rest = [record for record in self.log if record.offset > batch[-1].offset] if batch else []
        self.position = max(self.position, batch[-1].offset + 1 if rest else self.end)
        return batch, self.position

    def carry_out(self, step: StandbyStep) -> None:
        if step.pause:
            self.turns.append("pause")
            self.paused = True
        if step.seek is not None:
            self.position = step.seek
        if step.resume:
            self.turns.append("resume")
            self.paused = False


@given(
    gaps=st.lists(st.integers(1, 4), max_size=40),
    tail=st.integers(0, 5),
    first_limit=st.integers(0, 20) | st.none(),
    moves=st.lists(st.tuples(st.sampled_from(["fetch", "tick", "limit", "rewind"]), st.integers(1, 60)), max_size=60),
    last_limit=st.integers(0, 120),
    keep_max_records=st.integers(1, 8),
    keep_max_bytes=st.integers(1, 40),
)
def test_every_record_below_the_final_limit_is_applied_once_and_in_order(
    gaps: list[int],
    tail: int,
    first_limit: int | None,
    moves: list[tuple[str, int]],
    last_limit: int,
    keep_max_records: int,
    keep_max_bytes: int,
) -> None:
    log = records(*(total - 1 for total in itertools.accumulate(gaps)))
    reader = Reader(log, sum(gaps) + tail)
    standby = Standby(0, first_limit, keep_max_records=keep_max_records, keep_max_bytes=keep_max_bytes)
    applied: list[Record] = []

    def follow(step: StandbyStep) -> None:
        reader.carry_out(step)
        applied.extend(step.apply)
        assert step.position == standby.position
        assert step.kept <= keep_max_records
        assert all(standby.limit is None or record.offset < standby.limit for record in step.apply)
        assert applied == [record for record in log if record.offset < standby.position]
        assert standby.limit is None or standby.position <= standby.limit
        assert reader.paused is (step.kept > 0)

    for move, number in [*moves, ("limit", last_limit)]:
        if move == "fetch":
            follow(standby.update(*reader.fetch(number)))
        elif move == "tick":
            follow(standby.on_commit_tick())
        elif move == "limit":
            standby.set_limit(number)
        elif not reader.paused:
            reader.position = max(0, min(reader.position, standby.position) - number)  # a seek back: duplicates
    for _ in range(2 * len(log) + 4):
        follow(standby.on_commit_tick())
        follow(standby.update(*reader.fetch(7)))

    limit = standby.limit
    assert applied == [record for record in log if limit is None or record.offset < limit]
    assert standby.position == reader.end if limit is None else standby.position <= limit
    assert reader.turns == [("pause", "resume")[turn % 2] for turn in range(len(reader.turns))]
