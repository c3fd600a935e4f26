"""Deaths of processes at records, as notes of a group on the embedded log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from standfast.replication.log import Committed, Group
from standfast.replication.offsets import TopicPartition
from standfast.replication.tail.open_log import open_log
from standfast.store.process.in_hand import DESERIALIZE, HeldRecord
from standfast.stream.deaths.deaths import (
    DEATHS_MAX,
    KIND,
    RecordPlace,
    all_deaths,
    death_of,
    find_deaths,
    forget_deaths,
    note_death,
)

AT = TopicPartition("lines", 3)
PLACE = RecordPlace("lines", 3, 17)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    with closing(open_log(f"sqlite:///{tmp_path}/log")) as log, closing(log.group("app")) as group:
        yield group


def held(step: str = "", *, sure: bool = True, task: str = "0_3") -> HeldRecord:
    return HeldRecord(task, "lines", 3, 17, 18, step, sure)


def test_deaths_at_one_record_are_counted_over_instances_and_only_for_their_task(group: Group) -> None:
    counts = [note_death(group, death_of(held(), "signal 11", member, own=True)) for member in ("a", "b", "a")]
    assert counts == [1, 2, 3]
    assert find_deaths(group.notes(), "0_31", {}).places == {}
    (deaths,) = find_deaths(group.notes(), "0_3", {}).places.values()
    assert sorted(one.member for one in deaths) == ["a", "a", "b"]
    assert find_deaths(group.notes(), "0_3", {}).at_limit() == {}


def test_five_deaths_are_the_limit_and_a_commit_past_the_record_ends_them(group: Group) -> None:
    for _ in range(DEATHS_MAX):
        note_death(group, death_of(held(), "signal 9", "a", own=False))
    assert find_deaths(group.notes(), "0_3", {AT: 17}).at_limit().keys() == {PLACE}
    found = find_deaths(group.notes(), "0_3", {AT: 18})
    assert found.places == {} and len(found.over) == DEATHS_MAX
    forget_deaths(group, found.over)
    assert all_deaths(group) == {}


def test_death_at_a_record_that_is_committed_meanwhile_is_not_noted(group: Group) -> None:
    group.commit({AT: Committed(18, "")})
    assert note_death(group, death_of(held(), "signal 11", "a", own=True)) == 0
    assert all_deaths(group) == {}


def test_deaths_that_may_be_of_another_record_are_not_its_own_doing(group: Group) -> None:
    for _ in range(DEATHS_MAX):
        note_death(group, death_of(held(DESERIALIZE, sure=False), "signal 11", "a", own=True))
    found = find_deaths(group.notes(), "0_3", {})
    assert not any(one.own for one in found.places[PLACE])
    assert found.at_limit() == {}, "the next process decodes them one by one, and finds it"


def test_note_of_a_later_version_is_passed_over(group: Group) -> None:
    group.note({(KIND, "0_3 x"): '{"shape": 2}'})
    assert find_deaths(group.notes(), "0_3", {}).places == {}
    assert all_deaths(group) == {}
