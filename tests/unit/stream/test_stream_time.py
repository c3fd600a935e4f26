"""The clock that records move: at every boundary, then against their definition over the whole history.

Rules of this file: the model keeps no clock; it reads every prefix of the history again and takes the largest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from standfast.store.errors import InvalidRequest
from standfast.stream.stream_time import CLOCK_KEY, Policy, TaskStreamTime

A, B, C = "flights/0", "flights/1", "weather/0"


def clock_of(*seen: tuple[str, int], policy: Policy = "min") -> TaskStreamTime:
    clock = TaskStreamTime([A, B], policy)
    for partition, timestamp_ms in seen:
        clock.observe(partition, timestamp_ms)
    return clock


# --- policy "min" ---


def test_clock_is_unknown_until_every_partition_has_had_a_record() -> None:
    clock = TaskStreamTime([A, B])
    assert clock.now_ms is None
    clock.observe(A, 10)
    assert clock.now_ms is None
    clock.observe(B, 4)
    assert clock.now_ms == 4


def test_clock_is_the_smallest_over_partitions_of_the_largest_seen() -> None:
    clock = clock_of((A, 10), (B, 4))
    for partition, timestamp_ms, now_ms in [
        (A, 20, 4),
        (B, 12, 12),
        (B, 19, 19),
        (B, 20, 20),
        (B, 21, 20),
        (A, 21, 21),
    ]:
        clock.observe(partition, timestamp_ms)
        assert clock.now_ms == now_ms


def test_record_at_time_0_makes_the_clock_known() -> None:
    assert clock_of((A, 0), (B, 0)).now_ms == 0


def test_out_of_order_record_moves_nothing() -> None:
    clock = clock_of((A, 10), (B, 10))
    for timestamp_ms in (9, 10, 0):
        clock.observe(A, timestamp_ms)
        assert (clock.now_ms, clock.partition_ms(A)) == (10, 10)


def test_one_partition_alone_is_the_clock() -> None:
    clock = TaskStreamTime([A])
    clock.observe(A, 7)
    assert clock.now_ms == 7


def test_task_without_partitions_has_no_time() -> None:
    clock = TaskStreamTime()
    assert (clock.now_ms, clock.holding_back(), clock.to_state()) == (None, None, {})


# --- policy "max" ---


def test_policy_max_is_the_largest_seen_on_any_partition() -> None:
    clock = TaskStreamTime([A, B], "max")
    for partition, timestamp_ms, now_ms in [(A, 10, 10), (B, 4, 10), (B, 11, 11), (A, 5, 11), (A, 12, 12)]:
        clock.observe(partition, timestamp_ms)
        assert clock.now_ms == now_ms
    assert clock.holding_back() is None


def test_policy_max_is_known_from_the_first_record_and_takes_no_account_of_idleness() -> None:
    clock = TaskStreamTime([A, B], "max")
    clock.set_idle(B, True)
    assert clock.now_ms is None
    clock.observe(B, 5)
    assert clock.now_ms == 5
    clock.set_idle(B, True)
    clock.observe(B, 3)
    assert clock.now_ms == 5


def test_policy_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="stream time 'mean' does not exist: choose one of min, max"):
        TaskStreamTime([A], "mean")  # type: ignore[arg-type]


# --- idle partitions ---


def test_idle_partition_is_left_out() -> None:
    clock = clock_of((A, 10), (B, 4))
    clock.set_idle(B, True)
    assert clock.now_ms == 10


def test_partition_without_a_record_does_not_hold_the_clock_while_it_is_idle() -> None:
    clock = clock_of((A, 10))
    clock.set_idle(B, True)
    assert clock.now_ms == 10
    clock.observe(A, 11)
    assert clock.now_ms == 11


def test_record_ends_idleness_and_a_partition_that_is_behind_holds_the_clock_where_it_is() -> None:
    clock = clock_of((A, 10), (B, 4))
    clock.set_idle(B, True)
    clock.observe(B, 5)
    assert (clock.now_ms, clock.holding_back()) == (10, B)
    clock.observe(A, 20)
    assert clock.now_ms == 10
    clock.observe(B, 11)
    assert clock.now_ms == 11


def test_clock_stands_still_while_all_partitions_are_idle() -> None:
    clock = clock_of((A, 20), (B, 4))
    clock.set_idle(A, True)
    clock.set_idle(B, True)
    assert (clock.now_ms, clock.holding_back()) == (4, None)


@pytest.mark.parametrize(("timestamp_ms", "now_ms"), [(25, 25), (20, 20), (3, 20)])
def test_only_partition_that_comes_back_moves_the_clock_though_it_was_ahead(timestamp_ms: int, now_ms: int) -> None:
    clock = clock_of((A, 20), (B, 4))
    clock.set_idle(A, True)
    clock.set_idle(B, True)
    clock.observe(A, timestamp_ms)
    assert clock.now_ms == now_ms


def test_partition_declared_active_again_counts_at_once() -> None:
    clock = clock_of((A, 20), (B, 4))
    clock.set_idle(A, True)
    clock.set_idle(B, True)
    clock.set_idle(A, False)
    assert clock.now_ms == 20
    clock.set_idle(B, False)
    assert (clock.now_ms, clock.holding_back()) == (20, B)


# --- adding partitions ---


def test_added_partition_holds_a_known_clock_until_it_has_caught_up() -> None:
    clock = clock_of((A, 10), (B, 10))
    clock.add(C)
    assert (clock.now_ms, clock.holding_back(), clock.partitions) == (10, C, (A, B, C))
    clock.observe(A, 20)
    clock.observe(B, 20)
    assert clock.now_ms == 10
    for timestamp_ms, now_ms in [(3, 10), (10, 10), (11, 11), (30, 20)]:
        clock.observe(C, timestamp_ms)
        assert clock.now_ms == now_ms


def test_partition_that_is_there_is_left_as_it_is() -> None:
    clock = clock_of((A, 10), (B, 4))
    clock.add(A)
    assert (clock.partitions, clock.partition_ms(A), clock.now_ms) == ((A, B), 10, 4)


def test_holding_back_names_the_first_without_a_record_then_the_one_furthest_behind() -> None:
    clock = TaskStreamTime([A, B, C])
    assert clock.holding_back() == A
    clock.observe(A, 1)
    assert clock.holding_back() == B
    clock.observe(B, 2)
    assert clock.holding_back() == C
    clock.observe(C, 0)
    assert clock.holding_back() == C
    clock.observe(C, 5)
    assert clock.holding_back() == A


# --- refusals ---


@pytest.mark.parametrize("bad", [-1, True, 1.0, "1", None])
def test_timestamp_that_is_no_time_is_refused_and_changes_nothing(bad: int) -> None:
    clock = clock_of((A, 5), (B, 5))
    clock.set_idle(B, True)
    with pytest.raises(InvalidRequest, match=r"stream time of flights/1: .* is not a timestamp"):
        clock.observe(B, bad)
    with pytest.raises(InvalidRequest, match="stream time of flights/1"):
        clock.restore({A: 90, B: bad, CLOCK_KEY: 90})
    assert (clock.to_state(), clock.holding_back()) == ({A: 5, B: 5, CLOCK_KEY: 5}, A)


def test_unknown_partition_is_refused() -> None:
    clock = TaskStreamTime([A])
    asks: list[Callable[[], object]] = [
        lambda: clock.observe(B, 1),
        lambda: clock.set_idle(B, True),
        lambda: clock.partition_ms(B),
    ]
    for ask in asks:
        with pytest.raises(InvalidRequest, match=r"'flights/1' is not an input partition of this task \(flights/0\)"):
            ask()
    assert clock.to_state() == {}


def test_key_that_is_no_partition_is_refused_so_that_none_is_called_as_the_clock_is() -> None:
    with pytest.raises(InvalidRequest, match="write it as topic/partition"):
        TaskStreamTime([CLOCK_KEY])


# --- state ---


@pytest.mark.parametrize("policy", ["min", "max"])
def test_clock_goes_on_from_its_state(policy: Policy) -> None:
    before = clock_of((A, 20), (B, 4), (B, 3), policy=policy)
    after = TaskStreamTime([A, B], policy)
    after.restore(before.to_state())
    for partition, timestamp_ms in [(A, 19), (B, 19), (B, 21), (A, 40)]:
        assert (after.now_ms, after.to_state()) == (before.now_ms, before.to_state())
        before.observe(partition, timestamp_ms)
        after.observe(partition, timestamp_ms)
    assert after.now_ms == before.now_ms


def test_state_keeps_a_clock_that_is_ahead_of_its_partitions() -> None:
    before = clock_of((A, 20), (B, 4))
    before.set_idle(B, True)
    state = before.to_state()
    assert state == {A: 20, B: 4, CLOCK_KEY: 20}
    after = TaskStreamTime([A, B])
    after.restore(state)
    assert (after.now_ms, after.holding_back()) == (20, B)  # active again until it is found idle


def test_unknown_clock_has_no_entry_in_its_state() -> None:
    assert clock_of((A, 20)).to_state() == {A: 20}
    after = TaskStreamTime([A, B])
    after.restore({A: 20})
    assert after.now_ms is None
    after.observe(B, 7)
    assert after.now_ms == 7


def test_of_several_states_what_is_later_wins_in_any_order() -> None:
    local, in_the_log = {A: 20, B: 4, CLOCK_KEY: 4}, {A: 12, B: 9, CLOCK_KEY: 9}
    for states in ((local, in_the_log), (in_the_log, local), (local, in_the_log, local)):
        clock = TaskStreamTime([A, B])
        for state in states:
            clock.restore(state)
        assert clock.to_state() == {A: 20, B: 9, CLOCK_KEY: 9}


def test_two_states_together_may_know_more_than_each() -> None:
    clock = TaskStreamTime([A, B])
    clock.restore({A: 20})
    clock.restore({B: 5})
    assert clock.now_ms == 5


def test_partition_that_is_no_input_any_more_is_left_out_and_the_clock_stays() -> None:
    for policy in ("min", "max"):
        clock = TaskStreamTime([A], policy)
        clock.restore({A: 10, B: 90, CLOCK_KEY: 50})
        assert (clock.now_ms, clock.partitions) == (50, (A,))


def test_partition_that_the_state_does_not_know_holds_the_clock() -> None:
    clock = TaskStreamTime([A, B, C])
    clock.restore({A: 20, B: 10, CLOCK_KEY: 10})
    clock.observe(B, 20)
    assert (clock.now_ms, clock.holding_back()) == (10, C)
    clock.observe(C, 15)
    assert clock.now_ms == 15


def test_restoring_an_older_state_takes_nothing_back() -> None:
    clock = clock_of((A, 20), (B, 20))
    clock.restore({A: 3, B: 3, CLOCK_KEY: 3})
    clock.restore({})
    assert clock.to_state() == {A: 20, B: 20, CLOCK_KEY: 20}


# --- against the definition ---


class Seen(NamedTuple):
    partition: str
    timestamp_ms: int


class Silent(NamedTuple):
    partition: str
    idle: bool


class Added(NamedTuple):
    partition: str


Event = Seen | Silent | Added
FIRST, LATER = (A, B, C), "weather/1"
PARTITIONS = st.sampled_from([*FIRST, LATER])
EVENTS = st.lists(
    st.one_of(
        st.builds(Seen, PARTITIONS, st.integers(0, 30)),
        st.builds(Seen, PARTITIONS, st.integers(0, 30)),
        st.builds(Silent, PARTITIONS, st.booleans()),
        st.just(Added(LATER)),
    ),
    max_size=25,
)


def defined_at(history: Sequence[Event], policy: Policy) -> int | None:
    """The time of the partitions after the history, without any earlier result."""
    inputs = [*FIRST, *({LATER} if Added(LATER) in history else ())]
    largest = {
        one: max((e.timestamp_ms for e in history if isinstance(e, Seen) and e.partition == one), default=None)
        for one in inputs
    }
    if policy == "max":
        return max((at for at in largest.values() if at is not None), default=None)
    last = {e.partition: e for e in history if not isinstance(e, Added)}
    idle = {one for one, e in last.items() if isinstance(e, Silent) and e.idle}
    active = [largest[one] for one in inputs if one not in idle]
    known = [at for at in active if at is not None]
    return min(known) if known and len(known) == len(active) else None


def defined(history: Sequence[Event], policy: Policy) -> int | None:
    """The largest of all results so far: the clock never goes back."""
    said = [defined_at(history[:end], policy) for end in range(len(history) + 1)]
    return max((at for at in said if at is not None), default=None)


def apply(clock: TaskStreamTime, event: Event) -> None:
    if isinstance(event, Added):
        clock.add(event.partition)
    elif isinstance(event, Seen):
        clock.observe(event.partition, event.timestamp_ms)
    else:
        clock.set_idle(event.partition, event.idle)


def known_only(events: Sequence[Event]) -> list[Event]:
    """Without the times of a partition before it was added."""
    at = events.index(Added(LATER)) if Added(LATER) in events else len(events)
    return [event for place, event in enumerate(events) if place >= at or event.partition != LATER]


@given(events=EVENTS.map(known_only), policy=st.sampled_from(["min", "max"]))
@example(events=[Seen(A, 20), Seen(B, 4), *(Silent(one, True) for one in FIRST), Seen(A, 25)], policy="min")
def test_task_stream_time_is_the_definition_over_all_prefixes(events: list[Event], policy: Policy) -> None:
    clock = TaskStreamTime(FIRST, policy)
    for end, event in enumerate(events, start=1):
        apply(clock, event)
        assert clock.now_ms == defined(events[:end], policy)


@given(events=EVENTS.map(known_only), cut=st.integers(0, 25), policy=st.sampled_from(["min", "max"]))
def test_task_stream_time_after_a_restart_is_as_if_there_had_been_none(
    events: list[Event], cut: int, policy: Policy
) -> None:
    """Idle partitions are active after a restart, so they are reported idle again, in the same order."""
    before, after = TaskStreamTime(FIRST, policy), TaskStreamTime(FIRST, policy)
    for event in events[:cut]:
        apply(before, event)
    for one in before.partitions:
        after.add(one)
    after.restore(before.to_state())
    assert after.now_ms == before.now_ms
    said_last = {e.partition: place for place, e in enumerate(events[:cut]) if not isinstance(e, Added)}
    for place in sorted(said_last.values()):
        if isinstance(events[place], Silent):
            apply(after, events[place])
    for event in events[cut:]:
        apply(before, event)
        apply(after, event)
        assert after.now_ms == before.now_ms
        assert after.holding_back() == before.holding_back()


@given(
    states=st.lists(
        st.dictionaries(st.sampled_from([A, B, "gone/0", CLOCK_KEY]), st.integers(0, 9), max_size=4), max_size=4
    ),
    events=EVENTS.map(known_only),
)
def test_task_stream_time_never_goes_back_whatever_is_restored(
    states: list[dict[str, int]], events: list[Event]
) -> None:
    clock = TaskStreamTime(FIRST)
    largest = -1
    for place in range(max(len(states), len(events))):
        for event in events[place : place + 1]:
            apply(clock, event)
        for state in states[place : place + 1]:
            clock.restore(state)
        now_ms = -1 if clock.now_ms is None else clock.now_ms
        assert now_ms >= largest
        largest = now_ms
