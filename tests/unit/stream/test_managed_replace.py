"""Instances of one application with different programs: waiting, the difference in words, and `replace`."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import standfast as sf
from support.apps import Running, create
from support.placement import COUNT, INT, JSON, TASKS, TEXT, Cluster, counts, placement_of
from support.sessions import Bench

OTHER = sf.KeyValueStore("other", TEXT, INT)
CHANGED = "store 'other' of group 0 is only in this program"
GRACE_MS = 5_000


def changed(app: sf.App) -> None:
    """As `counts`, with one more store."""
    stream = app.stream("in", key=TEXT, value=JSON)
    stream.group_by_key().count("count").to("out")
    stream.group_by_key().count("other")


def old_and(bench: Bench, **settings: Any) -> Cluster:
    """Two instances of a program, with records processed."""
    cluster = Cluster(bench, cache_max_bytes=0, restart_grace_ms=GRACE_MS, **settings)
    for name in ("old-1", "old-2"):
        cluster.start(name)
        cluster.rounds()
    cluster.fill(10)
    cluster.rounds()
    return cluster


def begin(cluster: Cluster, name: str, *, replace: bool) -> Running:
    """Start an instance of the changed program."""
    cluster._make = changed
    made = cluster.start(name, stores=[COUNT, OTHER], replace=replace)
    cluster._make = counts
    return made


def ids(cluster: Cluster, *names: str) -> list[str]:
    return [cluster.live[name].session.instance_id for name in names]


def held(cluster: Cluster) -> dict[str, int]:
    return {name: len(tasks) for name, tasks in cluster.active().items()}


def check_results(cluster: Cluster, rounds: int) -> None:
    """Each of so many records of each key was counted once, on whichever program."""
    found = cluster.results()
    assert set(found.values()) == {1}
    assert len(found) == rounds * 10 * TASKS


def test_waiting_instance_names_the_difference_in_its_log_its_answers_and_its_report(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = old_and(bench)
    with caplog.at_level(logging.WARNING):
        new = begin(cluster, "new", replace=False)
        cluster.rounds()
    words = f"{', '.join(sorted(ids(cluster, 'old-1', 'old-2')))} run another program ({CHANGED})"
    assert [words in one.getMessage() for one in caplog.records].count(True) == 1
    assert not new.session.ready and any(words in line and "--replace" in line for line in new.session.missing())
    assert held(cluster) == {"old-1": 3, "old-2": 3, "new": 0}
    assert cluster.standby()["new"] == []
    seen = placement_of(cluster.live["old-1"]).snapshot(0).seen("app")
    assert [(one.state, words in one.waits) for one in seen.instances if one.id == new.session.instance_id] == [
        ("waits", True)
    ]


def test_replacing_instance_gets_all_tasks_and_no_record_is_lost_or_counted_twice(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = old_and(bench, commit_interval_ms=1_000_000)
    cluster.fill(10)
    cluster.rounds(3)  # processed by the old instances, which have not committed it
    with caplog.at_level(logging.WARNING):
        begin(cluster, "new", replace=True)
        cluster.rounds()
    assert held(cluster) == {"old-1": 0, "old-2": 0, "new": TASKS}
    assert cluster.leader() == ["new"]
    cluster.fill(10)
    cluster.rounds()
    cluster.live["new"].loop.commit_all()
    check_results(cluster, 3)
    (new,) = ids(cluster, "new")
    for name in ("old-1", "old-2"):
        (line,) = cluster.live[name].session.missing()
        assert f"was replaced by {new}, of another program" in line
        assert "store 'other' of group 0 is only in the running program" in line
    assert any(
        f"this instance ({new}) replaces another program: {CHANGED}" in one.getMessage() for one in caplog.records
    )


def test_leader_that_comes_back_with_another_program_leads_no_more_though_its_claim_stands(bench: Bench) -> None:
    cluster = old_and(bench)
    (leader,) = cluster.leader()
    (other,) = {"old-1", "old-2"} - {leader}
    cluster.stop(leader)
    begin(cluster, leader, replace=False)  # at once, and under the same id: its lease goes on
    cluster.rounds(3)
    cluster.fill(10)
    cluster.rounds()
    assert held(cluster) == {leader: 0, other: TASKS}
    assert cluster.leader() == [other]
    assert "run another program" in cluster.live[leader].session.missing()[0]
    cluster.live[other].loop.commit_all()
    check_results(cluster, 2)


def test_no_task_opens_before_every_old_instance_has_given_its_tasks_up_or_lost_its_lease(bench: Bench) -> None:
    cluster = old_and(bench)
    begin(cluster, "new", replace=True)
    stalled = cluster.freeze("old-1")
    cluster.rounds(10)  # within the lease of the stalled one
    assert held(cluster) == {"old-2": 0, "new": 0}
    cluster.rounds(40)
    assert held(cluster) == {"old-2": 0, "new": TASKS}
    cluster.fill(10)
    cluster.rounds()
    cluster.live["old-1"] = stalled
    cluster.rounds()
    assert held(cluster) == {"old-1": 0, "old-2": 0, "new": TASKS}
    check_results(cluster, 2)


def test_stalled_owner_of_a_task_that_the_new_program_does_not_have_is_fenced(bench: Bench) -> None:
    create(bench, TASKS, "in2")

    def two_groups(app: sf.App) -> None:
        counts(app)
        app.stream("in2", key=TEXT, value=JSON).group_by_key().count("other").to("out")

    cluster = Cluster(bench, two_groups, stores=[COUNT, OTHER], restart_grace_ms=0)
    cluster.start("old")
    cluster.rounds()
    gone = {at: task for at, task in cluster.live["old"].session.all_tasks().items() if at.group == 1}
    assert len(gone) == TASKS
    cluster.freeze("old")
    cluster._make = counts
    cluster.start("new", stores=[COUNT], replace=True)
    cluster.rounds(60)
    assert held(cluster) == {"new": TASKS}
    for task in gone.values():
        assert task.writer is not None
        with pytest.raises(sf.Fenced):
            task.writer.transact({})


def test_instances_that_both_replace_do_not_take_the_application_from_each_other_again(bench: Bench) -> None:
    cluster = old_and(bench)
    begin(cluster, "new", replace=True)
    cluster.rounds()
    cluster.stop("old-1")
    cluster.start("old-1", replace=True)
    cluster.rounds()
    assert held(cluster) == {"old-1": 3, "old-2": 3, "new": 0}, "it was started with --replace after the other one"
    epoch = placement_of(cluster.live["old-2"]).valid.epoch
    cluster.rounds(100)
    assert placement_of(cluster.live["new"]).valid.epoch == epoch
    assert held(cluster) == {"old-1": 3, "old-2": 3, "new": 0}


def test_two_that_replace_at_the_same_time_end_with_one_program(bench: Bench) -> None:
    cluster = Cluster(bench)
    cluster.start("old")
    cluster.rounds()
    begin(cluster, "new", replace=True)
    cluster.stop("old")
    cluster.start("old", replace=True)
    cluster.rounds(100)
    epoch = placement_of(cluster.live["new"]).valid.epoch
    assert sorted(held(cluster).values()) == [0, TASKS]
    cluster.rounds(100)
    assert placement_of(cluster.live["new"]).valid.epoch == epoch


def test_old_instance_that_restarts_waits_and_also_while_the_new_one_restarts(bench: Bench) -> None:
    cluster = old_and(bench)
    begin(cluster, "new", replace=True)
    cluster.rounds()
    cluster.stop("old-1")
    cluster.start("old-1")
    cluster.rounds()
    assert held(cluster) == {"old-1": 0, "old-2": 0, "new": TASKS}
    cluster.stop("new")
    cluster.rounds(GRACE_MS // 100 - 5)
    assert held(cluster) == {"old-1": 0, "old-2": 0}
    begin(cluster, "new", replace=False)
    cluster.rounds()
    assert held(cluster) == {"old-1": 0, "old-2": 0, "new": TASKS}, "it is its program that runs"


def test_old_instances_go_on_once_the_new_one_has_been_gone_for_the_grace(bench: Bench) -> None:
    cluster = old_and(bench)
    begin(cluster, "new", replace=True)
    cluster.rounds()
    cluster.stop("new")
    cluster.rounds(GRACE_MS // 100 + 20)
    assert held(cluster) == {"old-1": 3, "old-2": 3}
    cluster.fill(10)
    cluster.rounds()
    check_results(cluster, 2)


def test_instances_of_the_new_program_share_its_tasks_whichever_of_them_replaced_the_old_one(bench: Bench) -> None:
    cluster = old_and(bench)
    begin(cluster, "new-1", replace=False)
    cluster.rounds()
    begin(cluster, "new-2", replace=True)
    cluster.rounds(40)
    assert held(cluster) == {"old-1": 0, "old-2": 0, "new-1": 3, "new-2": 3}


def test_replace_without_another_program_changes_nothing(bench: Bench) -> None:
    cluster = old_and(bench)
    leader, generation = cluster.leader(), placement_of(cluster.live["old-1"]).valid.epoch
    cluster.start("same", replace=True)
    cluster.rounds()
    assert cluster.leader() == leader
    assert placement_of(cluster.live["same"]).valid.epoch == generation
    assert held(cluster) == {"old-1": 2, "old-2": 2, "same": 2}


def test_replace_is_refused_where_no_leader_places_tasks(bench: Bench) -> None:
    with pytest.raises(sf.BadConfig, match="replace=True is for an App"):
        bench.session(replace=True)
    with pytest.raises(sf.BadConfig, match="replace must be"):
        sf.App("app", replace="yes")  # type: ignore[arg-type]
