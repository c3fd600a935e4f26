"""Partition discovery: when it describes topics, new partitions, the tasks they make, and errors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.replication.discovery import Discovered, Discovery
from standfast.replication.log import TopicInfo, TopicPolicy
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.store.errors import InternalError, InvalidRequest, StateLost, UnknownStore


def info(name: str, partitions: int, topic_id: str = "id-1") -> TopicInfo:
    return TopicInfo(name, topic_id, partitions, TopicPolicy())


def topics(**counts: int) -> dict[str, TopicInfo | None]:
    return {name: info(name, count) for name, count in counts.items()}


def discovery(interval_ms: int | None = 100) -> Discovery:
    """Group 0 reads flights (4) and weather (4), group 1 the topic between them (2); made at 1,000 ms."""
    groups = {0: [info("flights", 4), info("weather", 4)], 1: [info("between", 2)]}
    return Discovery(groups, interval_ms, now_ms=1_000)


def test_it_asks_one_interval_after_it_was_made_and_then_every_interval() -> None:
    found = discovery()
    asked = [now_ms for now_ms in range(1_000, 1_400, 10) if found.poll(now_ms)]
    assert asked == [1_100, 1_200, 1_300]


def test_a_missed_interval_is_not_made_up_for() -> None:
    found = discovery()
    assert found.next_due_ms == 1_100
    assert found.poll(1_555) == ("flights", "weather", "between")
    assert found.next_due_ms == 1_655
    assert found.poll(1_654) == ()


def test_it_can_be_off() -> None:
    found = discovery(interval_ms=None)
    assert found.next_due_ms is None
    assert found.poll(10**15) == ()
    found.hurry()  # another instance has found partitions
    assert found.poll(10**15) == ("flights", "weather", "between")
    assert found.next_due_ms is None
    assert found.poll(10**15 + 1) == ()


def test_log_that_does_not_answer_is_asked_again_one_interval_later() -> None:
    found = discovery()
    assert found.poll(1_100)  # and no topic is described
    assert found.poll(1_101) == ()
    assert found.poll(1_200)
    assert found.described(topics(flights=5, weather=4, between=2)).partitions == (TopicPartition("flights", 4),)


def test_nothing_new_is_nothing_to_do() -> None:
    found = discovery()
    found.poll(1_100)
    nothing = found.described(topics(flights=4, weather=4, between=2))
    assert nothing == Discovered()
    assert not nothing


def test_new_partitions_get_tasks_of_their_group_once() -> None:
    found = discovery()
    found.poll(1_100)
    assert found.described(topics(flights=6, weather=5, between=3)) == Discovered(
        (
            TopicPartition("flights", 4),
            TopicPartition("flights", 5),
            TopicPartition("weather", 4),
            TopicPartition("between", 2),
        ),
        (TaskId(0, 4), TaskId(1, 2)),  # flights-5 waits for weather-5: a task reads one partition of each
    )
    assert found.partitions == {"flights": 6, "weather": 5, "between": 3}
    found.poll(1_200)
    assert not found.described(topics(flights=6, weather=5, between=3))


def test_task_comes_once_every_topic_of_its_group_has_its_partition() -> None:
    found = discovery()
    found.poll(1_100)
    first = found.described(topics(flights=6, weather=4, between=2))
    assert first == Discovered((TopicPartition("flights", 4), TopicPartition("flights", 5)))
    found.poll(1_200)
    later = found.described(topics(flights=6, weather=6, between=2))
    assert later.partitions == (TopicPartition("weather", 4), TopicPartition("weather", 5))
    assert later.tasks == (TaskId(0, 4), TaskId(0, 5))


def test_vanished_topic_is_an_error_that_names_it_and_nothing_is_learned() -> None:
    found = discovery()
    found.poll(1_100)
    with pytest.raises(UnknownStore, match="'weather' with 4 partitions is gone"):
        found.described(topics(flights=6, between=2) | {"weather": None})
    assert found.partitions == {"flights": 4, "weather": 4, "between": 2}
    found.poll(1_200)
    assert len(found.described(topics(flights=6, weather=4, between=2)).partitions) == 2


@pytest.mark.parametrize(
    ("described", "reason", "told"),
    [
        (info("weather", 3), "partitions-removed", "'weather' had 4 partitions and has 3"),
        (info("weather", 4, "id-2"), "topic-recreated", "'weather' was deleted and recreated"),
        (info("weather", 8, "id-2"), "topic-recreated", "'weather' was deleted and recreated"),
        (info("weather", 1, "id-2"), "topic-recreated", "'weather' was deleted and recreated"),
    ],
    ids=["shrank", "made anew", "made anew larger", "made anew smaller"],
)
def test_topic_that_lost_its_partitions_is_an_error_that_names_it(described: TopicInfo, reason: str, told: str) -> None:
    found = discovery()
    found.poll(1_100)
    with pytest.raises(StateLost, match=told) as raised:
        found.described(topics(flights=6, between=2) | {"weather": described})
    assert raised.value.reason == reason
    assert found.partitions == {"flights": 4, "weather": 4, "between": 2}


def test_answer_without_a_question_or_without_a_topic_is_refused() -> None:
    found = discovery()
    with pytest.raises(InternalError, match="without a poll"):
        found.described(topics(flights=4, weather=4, between=2))
    found.poll(1_100)
    with pytest.raises(InternalError, match="got no weather, which poll"):
        found.described(topics(flights=5, between=2))
    assert found.described(topics(flights=5, weather=5, between=2, other=9)).tasks == (TaskId(0, 4),)
    with pytest.raises(InternalError, match="without a poll"):
        found.described(topics(flights=5, weather=5, between=2))


@pytest.mark.parametrize("interval_ms", [0, -1])
def test_interval_below_a_millisecond_is_refused(interval_ms: int) -> None:
    with pytest.raises(InvalidRequest, match="below 1 ms"):
        discovery(interval_ms)


def test_topic_of_two_groups_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="'flights' is given for groups 0 and 1"):
        Discovery({0: [info("flights", 4)], 1: [info("flights", 4)]}, 100, 0)


def test_application_without_source_topics_asks_for_nothing() -> None:
    assert Discovery({}, 100, 0).poll(100) == ()


GROWTH = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)), max_size=10)


@given(GROWTH)
def test_however_topics_grow_each_partition_and_task_is_told_once(growth: list[tuple[int, int, int]]) -> None:
    found = discovery()
    counts = {"flights": 4, "weather": 4, "between": 2}
    partitions = [TopicPartition(name, number) for name, count in counts.items() for number in range(count)]
    tasks = [TaskId(0, number) for number in range(4)] + [TaskId(1, number) for number in range(2)]
    for number, more in enumerate(growth, 1):
        counts = {name: count + extra for (name, count), extra in zip(counts.items(), more, strict=True)}
        assert found.poll(1_000 + 100 * number)
        new = found.described(topics(**counts))
        partitions += new.partitions
        tasks += new.tasks
    assert sorted(partitions) == sorted(TopicPartition(name, n) for name, count in counts.items() for n in range(count))
    fewest = min(counts["flights"], counts["weather"])
    assert sorted(tasks) == [TaskId(0, n) for n in range(fewest)] + [TaskId(1, n) for n in range(counts["between"])]
