"""Managed placement in the status of an instance, in the commands that print it, and on the ops page."""

from __future__ import annotations

import json
from typing import Any

import pytest

from standfast.ops.cli.state.tasks import show_status, show_tasks
from standfast.ops.observe.placement import move_events
from standfast.ops.observe.status import status_document, tasks_document
from standfast.ops.observe.status_merge import statistics_of
from standfast.ops.observe.verdict import verdict
from standfast.ops.page.history import PageHistory
from standfast.ops.page.html import document, render
from standfast.ops.shared.output import Output
from standfast.replication.log import Outgoing
from standfast.replication.offsets import TopicPartition
from support.placement import Cluster
from support.sessions import Bench

SOURCE = TopicPartition("app-standfast-placement", 0)


def status_of(cluster: Cluster, name: str) -> dict[str, Any]:
    found = status_document(cluster.live[name].session.statistics())
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


def two(bench: Bench, **settings: Any) -> Cluster:
    cluster = Cluster(bench, standby_replicas=1, **settings)
    cluster.start("a", tags={"rack": "east"})
    cluster.fill(10)
    cluster.rounds()
    cluster.start("b")
    cluster.rounds()
    return cluster


def test_status_of_each_instance_has_the_placement_of_the_whole_application(bench: Bench) -> None:
    cluster = two(bench)
    ids = {name: one.session.instance_id for name, one in cluster.live.items()}
    for name in ("a", "b"):
        placement = status_of(cluster, name)["placement"]
        assert (placement["error"], placement["leader"]) == ("", ids["a"])
        found = {one["id"]: one for one in placement["instances"]}
        assert found[ids["a"]]["tags"] == {"rack": "east"}
        assert {one["state"] for one in found.values()} == {"live"}
        assert {(one["actives"], one["standbys"]) for one in found.values()} == {(3, 3)}
        assert {one["generation"] for one in found.values()} == {placement["generation"]}
        active = {ids[one]: {f"0_{number}" for number in held} for one, held in cluster.active().items()}
        for task in placement["tasks"]:
            assert task["state"] == "running"
            assert task["task"] in active[task["active"]]
            (copy,) = task["copies"]
            assert (copy["role"], copy["lag"]) == ("standby", 0)
            assert copy["instance"] != task["active"]


def test_task_says_which_move_brought_it_and_when(bench: Bench) -> None:
    cluster = two(bench)
    placement = status_of(cluster, "b")["placement"]
    moved = [one for one in placement["tasks"] if one["active"] == cluster.live["b"].session.instance_id]
    assert {one["code"] for one in moved} == {"HANDED_OVER"}
    assert all("has more than its share" in one["why"] and one["since_ms"] > 0 for one in moved)
    handed = [one for one in placement["moves"] if one["move"] == "hand-over"]
    assert {one["task"] for one in handed} == {one["task"] for one in moved}
    assert {one["from"] for one in handed} == {cluster.live["a"].session.instance_id}


def test_take_over_is_seen_by_the_instance_that_is_left(bench: Bench) -> None:
    cluster = two(bench, restart_grace_ms=0)
    gone = cluster.live["a"].session.instance_id
    cluster.freeze("a")
    cluster.rounds(60)
    placement = status_of(cluster, "b")["placement"]
    left = cluster.live["b"].session.instance_id
    assert placement["leader"] == left
    assert [one["id"] for one in placement["instances"]] == [left], "no task and no report is left of the other one"
    taken = [one for one in placement["moves"] if one["move"] == "take-over"]
    assert {(one["from"], one["to"], one["leader"]) for one in taken} == {(gone, left, left)}
    assert "is its most caught-up standby" in taken[0]["why"]


def test_a_new_leader_keeps_the_moves_of_the_one_before(bench: Bench) -> None:
    cluster = two(bench)
    before = status_of(cluster, "b")["placement"]["moves"]
    cluster.stop("a")
    cluster.rounds(60)
    assert status_of(cluster, "b")["placement"]["moves"][: len(before)] == before


def test_instances_without_managed_placement_have_none(bench: Bench) -> None:
    session = bench.active("a", partitions=(0,))
    found = status_document(session.statistics())
    assert found["placement"] is None
    assert move_events(found["placement"]) == []
    assert statistics_of(json.loads(json.dumps(found))).placement is None
    page = render(found, PageHistory(), 0)
    assert (list(page.tables["instances"]), list(page.tables["placement"])) == ([], [])
    assert 'id="placement"' not in document(found, page, 0)


def test_reasons_that_cannot_be_read_leave_the_rest_of_the_status(bench: Bench) -> None:
    cluster = two(bench)
    bench.log.producer().append({SOURCE: [Outgoing(b"reasons", b'{"standfast":2}', 0)]})
    cluster.rounds(2)
    found = status_of(cluster, "b")
    assert "app-standfast-placement-0" in found["placement"]["error"]
    assert "format 2, this version reads 1" in found["placement"]["error"]
    assert len(found["tasks"]) == 6
    assert verdict(found).level == "warn" and "placement: " in verdict(found).text
    render(found, PageHistory(), 0)


def test_commands_print_instances_owners_reasons_and_moves(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = two(bench)
    status = status_of(cluster, "a")
    show_status(status, Output())
    out = capsys.readouterr().out
    a, b = (cluster.live[name].session.instance_id for name in ("a", "b"))
    rows = [line.split() for line in out.splitlines()]
    assert any(row[:4] == [a, "live,", "leader", "1"] for row in rows)
    assert any(row[:3] == [b, "live", "1"] for row in rows)
    assert f"{a} has more than its share" in out
    shown = (*status["placement"]["tasks"], *status["placement"]["moves"][-10:])
    assert {why: out.count(f": {why}\n") for why in {one["why"] for one in shown}} == {one["why"]: 1 for one in shown}
    assert any(row[1:5] == ["hand-over", "0_0", a, b] for row in rows if len(row) > 5)
    show_tasks(tasks_document(status), Output())
    tasks = capsys.readouterr().out
    assert f"{b} (0)" in tasks and "no instance has its rows" in tasks


def test_page_shows_instances_tasks_and_moves_as_events(bench: Bench) -> None:
    cluster = two(bench)
    status = status_of(cluster, "a")
    status["events"] = move_events(status["placement"])
    page = render(status, PageHistory(), bench.clock.wall_ms())
    a, b = (cluster.live[name].session.instance_id for name in ("a", "b"))
    assert "★ leader" in page.tables["instances"][a] and "rack=east" in page.tables["instances"][a]
    assert "★" not in page.tables["instances"][b]
    rows = page.tables["placement"]
    assert list(rows) == [f"0_{number}" for number in range(6)]
    on_b = next(one["task"] for one in status["placement"]["tasks"] if one["active"] == b)
    assert f"{a} (0)" in rows[on_b] and "has more than its share" in rows[on_b] and "● </span>" not in rows[on_b]
    events = [html for html in page.tables["events"].values() if "hand-over" in html]
    assert len(events) == 3
    assert f"from {a}, to {b}, why {a} has more than its share" in events[0]
    numbers = [one["number"] for one in status["events"]]
    assert len(set(numbers)) == len(numbers) and numbers == sorted(numbers)
    assert "Every task of the application" in document(status, page, 0)


def test_names_of_instances_and_reasons_stay_text_on_the_page() -> None:
    evil = "<img src=x>"
    task = {"task": evil, "active": evil, "after": evil, "state": "moving", "since_ms": None, "why": evil}
    instance = {"id": evil, "leads": True, "state": evil, "slots": None, "tags": {evil: evil}, "report_ms": None}
    numbers = dict.fromkeys(("actives", "standbys", "warmups", "stored", "generation"), 0)
    copies = [{"instance": evil, "role": role, "lag": None} for role in ("standby", "warm-up", "leaving")]
    status = {
        "app": "app",
        "instance": "i",
        "ready": True,
        "missing": [],
        "members": [],
        "tasks": [],
        "restores": [],
        "standbys_missing": 0,
        "placement": {
            "error": "",
            "slots_missing": 0,
            "moves": [],
            "instances": [{**instance, **numbers}],
            "tasks": [{**task, "copies": copies}],
        },
    }
    page = render(status, PageHistory(), 0)
    html = "".join(page.tables["instances"].values()) + "".join(page.tables["placement"].values())
    assert "<img" not in html and html.count("&lt;img") > 8


def test_missing_slots_are_the_verdict(bench: Bench) -> None:
    status = status_of(two(bench), "a")
    status["placement"]["slots_missing"] = 2
    assert verdict(status).text == "WAITING_FOR_SLOTS: 2 more are needed"


def test_page_shows_the_worker_process_of_tasks_and_copies(bench: Bench) -> None:
    cluster = two(bench)
    status = status_of(cluster, "a")
    status["placement"]["instances"][0]["workers"] = [2, 1]
    task = status["placement"]["tasks"][0]
    task["worker"] = task["copies"][0]["worker"] = 2
    page = render(status, PageHistory(), bench.clock.wall_ms())
    assert "1: 2, 2: 1" in page.tables["instances"][status["placement"]["instances"][0]["id"]]
    row, other = (page.tables["placement"][f"0_{number}"] for number in (0, 1))
    assert f"{task['active']}:2" in row and f"{task['copies'][0]['instance']}:2 (0)" in row
    assert ":2" not in other
