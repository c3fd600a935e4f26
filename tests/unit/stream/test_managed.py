"""Managed placement: instances that a leader gives their tasks, driven by hand on one embedded log and one clock."""

from __future__ import annotations

import logging
import re
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import standfast as sf
from standfast.ops.observe.status import not_ready_reasons
from standfast.replication.leases import Busy
from standfast.replication.offsets import TaskId
from standfast.replication.placement.model import Copy, CopyState
from standfast.replication.placement.records import Report, placed_member
from standfast.replication.takeover import Free, MemberTraits
from standfast.stream.session.local_part import LEAVE_EVERY_MS, LocalPart, leaving_at_once
from standfast.stream.task.states import TaskState
from support.apps import Running
from support.loops import Seen
from support.placement import INT, JSON, TASKS, TEXT, Cluster, placement_of, spread
from support.sessions import Bench


def test_a_single_instance_runs_every_task_after_its_first_round(bench: Bench) -> None:
    cluster = Cluster(bench)
    cluster.start("a")
    cluster.rounds(3)
    assert cluster.active() == {"a": list(range(TASKS))}
    assert cluster.leader() == ["a"]


def test_two_instances_share_the_tasks_evenly_and_stand_by_for_each_other(bench: Bench) -> None:
    cluster = Cluster(bench, standby_replicas=1)
    cluster.start("a")
    cluster.rounds()
    cluster.start("b")
    cluster.rounds()
    assert spread(cluster.active()) == [3, 3]
    assert cluster.standby() == {"a": cluster.active()["b"], "b": cluster.active()["a"]}


def test_instances_that_join_and_leave_never_take_the_lead_from_a_live_leader(bench: Bench) -> None:
    cluster = Cluster(bench)
    cluster.start("a")
    cluster.rounds()
    for name in ("b", "c", "d"):
        cluster.start(name)
        cluster.rounds()
        assert cluster.leader() == ["a"]
    assert spread(cluster.active()) == [1, 1, 2, 2]
    cluster.stop("c")
    cluster.rounds()
    assert cluster.leader() == ["a"]


def test_records_are_processed_once_while_tasks_move_between_instances(bench: Bench) -> None:
    cluster = Cluster(bench, standby_replicas=1, cache_max_bytes=0)  # so that each record has a result
    cluster.start("a")
    cluster.fill(20)
    cluster.rounds(3)
    cluster.start("b")
    cluster.fill(20)  # the same keys once more
    cluster.rounds(40)
    cluster.start("c")
    cluster.fill(20)
    cluster.rounds(40)
    cluster.stop("a")
    cluster.fill(20)
    cluster.rounds(40)
    wanted = [(f"p{partition}-{number}", 20) for partition in range(TASKS) for number in range(20)]
    found = cluster.results()
    assert set(found.values()) == {1}
    assert len(found) == 4 * len(wanted)
    assert sum(len(one.rows("count", at)) for one in cluster.live.values() for at in tasks_of(one)) == len(wanted)


def tasks_of(one: Running) -> list[int]:
    return [at.partition for at, task in one.session.all_tasks().items() if task.role == "active"]


def test_a_task_is_committed_before_it_leaves_so_that_no_record_is_processed_twice(bench: Bench) -> None:
    seen = {"a": Seen(), "b": Seen()}

    def make(app: sf.App, name: str) -> None:
        app.stream("in", key=TEXT, value=JSON).process(seen[name].processor(), name="see", key=TEXT, value=JSON)

    cluster = Cluster(bench, commit_interval_ms=1_000_000)
    cluster._make = lambda app: make(app, "a")
    cluster.start("a")
    cluster.fill(10)
    cluster.rounds(5)
    assert len(seen["a"].keys) == 10 * TASKS
    cluster._make = lambda app: make(app, "b")
    cluster.start("b")
    cluster.rounds()
    cluster.fill(10, first=10)
    cluster.rounds(5)
    assert len(seen["b"].keys) == 10 * 3
    assert set(Counter(seen["a"].keys + seen["b"].keys).values()) == {1}


def test_tasks_leave_one_after_the_other_and_are_served_until_their_turn(bench: Bench) -> None:
    cluster = Cluster(bench)
    one = cluster.start("a")
    cluster.rounds(3)
    part = LocalPart(one.session._instance, bench.clock)
    wanted = frozenset(TaskId(0, number) for number in range(3, TASKS))
    left = []
    for _ in range(3):
        part.follow(wanted, frozenset(), lambda _: Free.GIVEN)
        part.follow(wanted, frozenset(), lambda _: Free.GIVEN)  # a second round at the same time lets no further one go
        one.loop.poll_once()
        left.append(TASKS - len(one.loop._running))
        bench.clock.advance(LEAVE_EVERY_MS)
    assert left == [1, 2, 3]


def test_task_that_was_opened_beside_a_record_in_hand_does_not_run_in_the_report_before_the_loop_begins_it(
    bench: Bench,
) -> None:
    cluster = Cluster(bench)
    one = cluster.start("a")
    cluster.rounds(3)
    part = LocalPart(one.session._instance, bench.clock)
    came = TaskId(0, 0)
    one.session.all_tasks()[came].looped = False
    assert came in part.facts().running, "the loop may begin it in its next round"
    bench.clock.advance(one.session._instance.membership.lease_ms)
    found = part.facts()
    assert found.restoring == {came}
    assert len(found.running) == TASKS - 1
    one.loop.poll_once()
    assert came in part.facts().running


def test_report_of_a_restore_says_how_many_records_it_lacks(bench: Bench) -> None:
    cluster = Cluster(bench)
    cluster.start("a")
    cluster.rounds(3)
    cluster.fill(20)
    cluster.rounds(5)
    cluster.stop("a")
    session = cluster.start("b").session
    part = LocalPart(session._instance, bench.clock)
    session._instance.manager.take(TaskId(0, 0), if_free=False)
    assert part.facts().lags == {TaskId(0, 0): 20}


def test_leader_reads_from_a_report_how_far_a_restore_is_and_that_its_instance_is_busy() -> None:
    restoring, standby, running = (TaskId(0, number) for number in range(3))
    lags = {restoring: 70_000, standby: 3}
    report = Report(
        frozenset({running}), frozenset({restoring}), lags=lags, workers=(frozenset({running}), frozenset(lags))
    )
    found = placed_member("a", MemberTraits(1), report, {}, None, Busy(0, (0, 800))).copies
    assert found == {
        running: Copy(CopyState.RUNNING, 0),
        restoring: Copy(CopyState.RESTORING, 70_000, 800),
        standby: Copy(CopyState.STANDBY, 3, 800),
    }


@pytest.mark.parametrize(("tasks", "seconds"), [(1, 0.1), (50, 5), (200, 12), (1_000, 20), (20_000, 36)])
def test_many_tasks_leave_within_seconds_and_few_of_them_one_by_one(tasks: int, seconds: float) -> None:
    steps, left = 0, tasks
    while left:
        now = leaving_at_once(left)
        assert 0 < now <= max(1, -(-left // 50))
        steps, left = steps + 1, left - now
    assert steps * LEAVE_EVERY_MS <= seconds * 1_000


def test_task_whose_move_is_taken_back_is_processed_on(bench: Bench) -> None:
    cluster = Cluster(bench)
    one = cluster.start("a")
    cluster.rounds(3)
    for at, task in one.session.all_tasks().items():
        task.leaving = at.partition < 3  # as a generation asks for it that the next one takes back
    one.loop.poll_once()
    assert len(one.loop._running) == 3
    cluster.fill(10)
    cluster.rounds(5)
    assert len(one.loop._running) == TASKS
    assert sum(len(one.rows("count", at)) for at in range(TASKS)) == 10 * TASKS


def test_failed_task_whose_move_is_taken_back_is_opened_again(bench: Bench) -> None:
    """Its next opening was forgotten with the move, and the task stayed closed."""
    cluster = Cluster(bench)
    one = cluster.start("a")
    cluster.fill(1)
    cluster.rounds(3)
    one.loop.commit_all()  # a task without a commit of its loop would be closed at once
    every = frozenset(TaskId(0, number) for number in range(TASKS))
    gone = TaskId(0, 0)
    failed = one.session.all_tasks()[gone]
    failed.fail(sf.Unavailable("the log does not answer"))
    one.loop.poll_once()
    one.session.open_later(failed, "the log does not answer", 200)
    part = LocalPart(one.session._instance, bench.clock)
    part.follow(every - {gone}, frozenset(), lambda _: Free.GIVEN)
    part.follow(every, frozenset(), lambda _: Free.GIVEN)
    assert one.session.all_tasks()[gone] is failed
    bench.clock.advance(200)
    cluster.rounds(3)
    assert cluster.active() == {"a": list(range(TASKS))}
    assert one.session.task(0).state is TaskState.RUNNING


def test_leader_that_stalled_is_replaced_and_follows_when_it_is_back(bench: Bench) -> None:
    cluster = Cluster(bench, standby_replicas=1, restart_grace_ms=0)
    cluster.start("a")
    cluster.rounds()
    cluster.start("b")
    cluster.rounds()
    cluster.fill(10)
    cluster.rounds()
    stalled = cluster.freeze("a")
    cluster.fill(10)
    cluster.rounds(60)
    assert cluster.leader() == ["b"]
    assert cluster.active() == {"b": list(range(TASKS))}
    cluster.live["a"] = stalled
    cluster.fill(10)
    cluster.rounds(60)
    assert cluster.leader() == ["b"]
    assert spread(cluster.active()) == [3, 3]
    found = cluster.results()
    assert set(found.values()) == {1}
    assert len(found) == 3 * 10 * TASKS


def test_instance_that_restarts_within_the_grace_keeps_its_tasks(bench: Bench) -> None:
    cluster = Cluster(bench)
    cluster.start("a")
    cluster.rounds()
    cluster.start("b")
    cluster.rounds()
    before = cluster.active()
    cluster.stop("b")
    cluster.rounds(20)
    assert cluster.active() == {"a": before["a"]}
    cluster.start("b")
    cluster.rounds(20)
    assert cluster.active() == before


def test_nothing_moves_by_choice_while_an_instance_with_standbys_is_expected_back(bench: Bench) -> None:
    cluster = Cluster(bench, standby_replicas=1)
    for name in ("a", "b", "c"):
        cluster.start(name)
        cluster.rounds()
    cluster.fill(10)
    cluster.rounds()
    before = cluster.active()
    gone = cluster.live["b"].session.instance_id
    cluster.stop("b")
    cluster.rounds(60)
    after = cluster.active()
    assert all(set(before[name]) <= set(after[name]) for name in ("a", "c")), "only tasks of b have moved"
    valid = placement_of(cluster.live[cluster.leader()[0]]).valid.assignment
    assert gone in {name for names in valid.standbys.values() for name in names}, "its standby places stay"
    cluster.start("b")
    cluster.rounds(60)
    assert cluster.active() == before, "it gets its own tasks back"


def test_tasks_of_an_instance_that_stays_away_go_to_the_others(bench: Bench) -> None:
    cluster = Cluster(bench, restart_grace_ms=5_000)
    cluster.start("a")
    cluster.rounds()
    cluster.start("b")
    cluster.rounds()
    cluster.stop("b")
    cluster.rounds(120)
    assert cluster.active() == {"a": list(range(TASKS))}


def test_cold_instance_gets_a_task_only_when_its_copy_has_caught_up(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("standfast.replication.tail.tailer.BATCH_RECORDS_MAX", 20, raising=False)
    cluster = Cluster(bench, acceptable_lag=0, warmups_max=1)
    cluster.start("a")
    cluster.fill(200)
    cluster.rounds()
    cluster.start("b")
    held: list[int] = []
    for _ in range(400):
        cluster.rounds(1)
        assert len(placement_of(cluster.live["a"]).valid.assignment.warmups) <= 1
        held.append(len(cluster.active()["b"]))
        for at, task in cluster.live["b"].session.all_tasks().items():
            if task.state is TaskState.RUNNING:
                assert len(cluster.live["b"].rows("count", at.partition)) == 200
    assert held[0] == 0
    assert held == sorted(held)
    assert spread(cluster.active()) == [3, 3]


def test_newer_instance_waits_while_an_older_one_shares_the_tasks_out_by_itself(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Cluster(bench)
    cluster.start("old", alone=True)
    bench.clock.advance(100)
    cluster.live["old"].session.poll_once()
    with caplog.at_level(logging.WARNING):
        cluster.start("new")
        cluster.rounds()
    assert cluster.active() == {"old": list(range(TASKS)), "new": []}
    old = cluster.live["old"].session.instance_id
    waits = f"{old} run a version without managed placement"
    assert [waits in one.getMessage() for one in caplog.records].count(True) == 1
    cluster.stop("old")
    cluster.rounds()
    assert cluster.active() == {"new": list(range(TASKS))}


def test_instance_with_other_stores_waits_until_the_others_have_stopped(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Cluster(bench)
    cluster.start("old")
    cluster.rounds()

    def changed(app: sf.App) -> None:
        stream = app.stream("in", key=TEXT, value=JSON)
        stream.group_by_key().count("other").to("out")

    cluster._make = changed
    with caplog.at_level(logging.WARNING):
        new = cluster.start("new", stores=[sf.KeyValueStore("other", TEXT, INT)])
        cluster.rounds()
    old = cluster.live["old"].session.instance_id
    assert [f"{old} run another program" in one.getMessage() for one in caplog.records].count(True) == 1
    assert cluster.active() == {"old": list(range(TASKS)), "new": []}
    assert cluster.leader() == ["old"]
    cluster.stop("old")
    cluster.rounds()
    assert cluster.active() == {"new": list(range(TASKS))}
    assert placement_of(new).valid.program != ""


def test_instance_with_a_read_only_state_directory_is_refused_and_takes_nothing_from_the_others(
    bench: Bench, read_only: Path
) -> None:
    cluster = Cluster(bench)
    one = cluster.start("a")
    cluster.rounds()
    view = one.session._group.view()
    with pytest.raises(sf.InvalidRequest, match=rf"{read_only}.*(mounted read-only: mount it for writing|chown)"):
        cluster.start(str(read_only / "b"))
    cluster.fill(10)
    cluster.rounds()
    assert one.session._group.view() == view
    assert cluster.active() == {"a": list(range(TASKS))}
    assert sum(len(one.rows("count", at)) for at in range(TASKS)) == 10 * TASKS


def test_grown_source_gets_its_tasks_spread(bench: Bench) -> None:
    cluster = Cluster(bench)
    cluster.start("a")
    cluster.start("b")
    cluster.rounds()
    bench.log.admin.add_partitions("in", TASKS + 4)
    for one in cluster.live.values():
        one.session.grow({0: TASKS + 4})
    cluster.rounds()
    assert spread(cluster.active()) == [5, 5]
    assert TaskId(0, TASKS) in {at for one in cluster.live.values() for at in one.session.all_tasks()}


@pytest.mark.parametrize("placement", ["group", "dynamic"])
def test_application_takes_no_other_placement(placement: Any) -> None:
    with pytest.raises(sf.BadConfig, match="placement"):
        sf.App("app", placement=placement)


def test_session_without_a_loop_refuses_managed_placement(bench: Bench) -> None:
    with pytest.raises(sf.BadConfig, match='placement="managed" is for App'):
        bench.session(placement="managed")


@pytest.mark.parametrize("tags", [["a"], {"rack": 1}, {1: "a"}, {"rack": "x" * 3_000}])
def test_tags_that_cannot_be_published_are_refused(tags: Any) -> None:
    with pytest.raises(sf.BadConfig, match="tags"):
        sf.App("app", tags=tags)


def test_start_in_a_new_directory_says_for_whom_its_tasks_wait_until_when_and_by_which_setting(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "standfast")
    cluster = Cluster(bench)
    former = cluster.start("a").session.instance_id
    cluster.rounds()
    assert cluster.live["a"].session.missing() == ()
    cluster.stop("a")
    caplog.clear()
    cluster.start("b")
    cluster.rounds(3)
    began_ms = bench.clock.wall_ms()
    cluster.rounds(100)
    session = cluster.live["b"].session
    (line,) = session.missing()
    pattern = rf"0_0-5 wait for {former}, which stopped, to come back until (\S+) \(restart_grace_ms=30000\)"
    (until,) = re.findall(pattern, line)
    left_ms = datetime.fromisoformat(until).timestamp() * 1_000 - began_ms
    assert 28_000 <= left_ms <= 30_000
    assert not session.ready and not_ready_reasons(session.missing(), ()) == [line]
    assert line in session.statistics().missing
    said = [one.getMessage() for one in caplog.records if "restart_grace_ms" in one.getMessage()]
    assert said == [f"application app: {line}"]
    cluster.rounds(220)
    assert cluster.active() == {"b": list(range(TASKS))} and session.missing() == () and session.ready


def test_instance_that_follows_says_at_its_start_that_all_tasks_wait_for_another_one(bench: Bench) -> None:
    cluster = Cluster(bench)
    former = cluster.start("a").session.instance_id
    cluster.rounds()
    cluster.stop("a")
    cluster.start("b")
    cluster.rounds(3)
    cluster.start("c")
    cluster.rounds(3)
    assert cluster.leader() == ["b"]
    for name in ("b", "c"):
        assert any(former in line for line in cluster.live[name].session.missing()), name
    cluster.start("a")
    cluster.rounds(20)
    assert cluster.active()["a"]
    assert [cluster.live[name].session.missing() for name in ("a", "b", "c")] == [(), (), ()]


def test_instance_that_had_tasks_does_not_wait_for_another_one_that_restarts(bench: Bench) -> None:
    cluster = Cluster(bench)
    cluster.start("a")
    cluster.rounds()
    cluster.start("b")
    cluster.rounds()
    cluster.stop("b")
    cluster.rounds(10)
    assert cluster.live["a"].session.missing() == () and cluster.live["a"].session.ready
