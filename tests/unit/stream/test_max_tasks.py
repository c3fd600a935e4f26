"""Bounds of instances: `max_tasks=` of an application, with real stores and a real log."""

from __future__ import annotations

import json

import pytest

import standfast as sf
from standfast.ops.cli.process.run import settings_of
from standfast.ops.config.config import load_config
from standfast.ops.observe.metrics import SessionMetrics
from standfast.ops.observe.status import status_document
from standfast.ops.observe.verdict import verdict
from standfast.ops.sidecar.serve import check
from standfast.replication.takeover import MemberPlan, MemberTraits
from support.placement import TASKS, Cluster, placement_of, spread
from support.sessions import Bench


def three(bench: Bench) -> Cluster:
    cluster = Cluster(bench, standby_replicas=1, max_tasks=2)
    for name in ("a", "b", "c"):
        cluster.start(name)
    cluster.rounds()
    return cluster


def test_no_task_starts_before_the_instances_have_places_for_all(bench: Bench) -> None:
    cluster = Cluster(bench, standby_replicas=1, max_tasks=2)
    a, b = cluster.start("a"), cluster.start("b")
    cluster.rounds()
    assert cluster.active() == {"a": [], "b": []} == cluster.standby()
    for one in (a, b):
        assert one.session.missing()[0].startswith("WAITING_FOR_SLOTS: 2 more needed: start an instance, or raise the")
        assert "standfast_slots_missing 2.0" in SessionMetrics(one.session).exposition().decode()
    cluster.start("c")
    cluster.rounds()
    assert spread(cluster.active()) == [2, 2, 2]
    assert not a.session.missing() and placement_of(a).slots_missing == 0


def test_lost_tasks_take_the_places_that_are_left_and_all_run_once_the_instance_is_back(bench: Bench) -> None:
    cluster = Cluster(bench, standby_replicas=1, max_tasks=3, restart_grace_ms=0)
    for name in ("a", "b", "c"):
        cluster.start(name, **({"max_tasks": 2} if name == "a" else {}))
    cluster.fill(10)
    cluster.rounds()
    before = cluster.active()
    assert spread(before) == [2, 2, 2]
    dead = cluster.freeze("b")
    cluster.rounds(60)
    now = cluster.active()
    assert set(before["a"]) <= set(now["a"]) and set(before["c"]) <= set(now["c"])
    assert (len(now["a"]), len(now["c"])) == (2, 3)
    (waiting,) = set(range(TASKS)) - {*now["a"], *now["c"]}
    status = status_document(cluster.live["c"].session.statistics())
    (task,) = [one for one in status["placement"]["tasks"] if one["active"] is None]
    assert (task["task"], task["state"], task["code"]) == (f"0_{waiting}", "waiting", "WAITING_FOR_SLOTS")
    assert verdict(json.loads(json.dumps(status))).text == "WAITING_FOR_SLOTS: 1 more are needed"
    cluster.live["b"] = dead
    cluster.fill(10)
    cluster.rounds(60)
    assert spread(cluster.active()) == [2, 2, 2] and placement_of(dead).slots_missing == 0
    assert set(cluster.results().values()) == {1}


def test_bounds_are_shown_beside_the_slots(bench: Bench) -> None:
    cluster = three(bench)
    session = cluster.live["a"].session
    found = status_document(session.statistics())["placement"]["instances"]
    assert [(one["slots"], one["max_tasks"]) for one in found] == [(1, 2)] * 3
    assert "standfast_max_tasks 2.0" in SessionMetrics(session).exposition().decode()


def test_an_instance_that_restarts_with_a_lower_bound_opens_no_more_tasks(bench: Bench) -> None:
    cluster = Cluster(bench)
    cluster.start("a")
    cluster.fill(10)
    cluster.rounds()
    cluster.stop("a")
    cluster.start("a", max_tasks=2)
    most = 0
    for _ in range(30):
        cluster.rounds(1)
        most = max(most, len(cluster.active()["a"]))
    assert (cluster.active(), most) == ({"a": [0, 1]}, 2)
    cluster.start("b")
    cluster.rounds(60)
    assert cluster.active() == {"a": [0, 1], "b": [2, 3, 4, 5]}


def test_a_bound_is_read_of_members_and_left_out_by_those_without_one() -> None:
    plain = MemberPlan(managed=MemberTraits(2, {"zone": "a"}, "p"))
    assert "max_tasks" not in plain.to_json() and MemberPlan.from_json(plain.to_json()) == plain
    bounded = MemberPlan(managed=MemberTraits(2, {"zone": "a"}, "p", 5))
    assert MemberPlan.from_json(bounded.to_json()) == bounded


@pytest.mark.parametrize("wrong", [0, -1, True, "5"])
def test_a_bound_that_is_no_number_of_tasks_is_refused(wrong: object, bench: Bench) -> None:
    with pytest.raises(sf.BadConfig, match="max_tasks must be a whole number of at least 1"):
        Cluster(bench).start("a", max_tasks=wrong)


def test_a_bound_without_a_leader_that_places_tasks_is_refused(bench: Bench) -> None:
    with pytest.raises(sf.BadConfig, match="max_tasks is for an App whose tasks a leader places"):
        sf.Session("app", log=bench.address, state_dir=bench.root / "s", stores=[], partitions=2, max_tasks=2)


def test_a_bound_in_the_settings_is_of_an_application_and_refused_for_a_sidecar() -> None:
    loaded = load_config(None, {"STANDFAST_GROUP__MAX_TASKS": "5"})
    assert settings_of(loaded) == {"max_tasks": 5}
    with pytest.raises(sf.BadConfig, match=r"group\.max_tasks is for `standfast run`, whose tasks a leader places"):
        check(loaded.config)
