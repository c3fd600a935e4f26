"""The table of placements in docs/operate/instances.md: what each does with the tasks of an instance that is gone."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

import standfast as sf
from support.placement import TASKS, Cluster
from support.sessions import Bench

TABLE = Path(__file__).parents[3] / "docs" / "operate" / "instances.md"
STORES = [sf.KeyValueStore("kv", sf.serde.string, sf.serde.string)]
LEASE_MS = 1_000


class Source(NamedTuple):
    """A partition as a consumer gives it."""

    topic: str
    partition: int


def told() -> dict[str, tuple[str, str]]:
    """What the table says of a task with and of one without a standby, by placement."""
    section = TABLE.read_text(encoding="utf-8").partition("## Placements\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| `")]
    return {cells[0].strip(" `"): (cells[4].strip(), cells[5].strip()) for cells in rows}


def sessions(bench: Bench, **settings: Any) -> tuple[sf.Session, sf.Session]:
    """Two instances, of which the first runs both tasks, and the second is a standby of task 0 at least."""
    settings |= {"stores": STORES, "lease_ms": LEASE_MS, "partitions": 2}
    first = bench.session("a", **settings)
    bench.settle(first)
    if settings.get("placement") == "group":
        first.on_assign(None, [Source("in", 0), Source("in", 1)])
    elif settings.get("placement") != "shared":
        first.assign(active=[0, 1])
    second = bench.session("b", **settings)
    if "placement" not in settings:
        second.assign(standby=[0])
    for _ in range(10):
        bench.settle(first, second)
        bench.clock.advance(100)
    assert {at for at, task in first.tasks().items() if task.role == "active"} == {0, 1}
    return first, second


def after_a_death(bench: Bench, second: sf.Session) -> dict[int, str]:
    """The tasks of the second instance, once the lease of the first has run out."""
    for _ in range(40):
        bench.clock.advance(100)
        bench.settle(second)
    return {at: task.state.value for at, task in second.tasks().items()}


def test_table_has_every_placement() -> None:
    assert told().keys() == {"managed", "static", "shared", "group"}


def test_static_task_runs_on_its_standby_and_waits_for_the_program_without_one(bench: Bench) -> None:
    _, second = sessions(bench)
    assert after_a_death(bench, second) == {0: "running"}
    assert told()["static"] == (
        "runs on its standby, but in a sidecar, which waits for the program",
        "waits for the program",
    )


def test_task_of_a_sidecar_waits_for_the_program(bench: Bench) -> None:
    _, second = sessions(bench, take_over=False)
    assert after_a_death(bench, second) == {0: "standby"}


@pytest.mark.parametrize("replicas", [1, 0])
def test_shared_task_runs_on_its_standby_or_on_another_instance(bench: Bench, replicas: int) -> None:
    _, second = sessions(bench, placement="shared", standby_replicas=replicas)
    assert set(second.tasks()) == ({0, 1} if replicas else set())
    assert after_a_death(bench, second) == {0: "running", 1: "running"}
    assert told()["shared"] == ("runs on its standby", "runs on another instance")


@pytest.mark.parametrize("replicas", [1, 0])
def test_task_of_a_consumer_group_waits_for_the_group(bench: Bench, replicas: int) -> None:
    _, second = sessions(bench, placement="group", standby_replicas=replicas)
    assert after_a_death(bench, second) == (dict.fromkeys((0, 1), "standby") if replicas else {})
    second.on_assign(None, [Source("in", 0)])
    bench.settle(second)
    assert second.tasks()[0].state.value == "running"
    assert told()["group"] == ("stays a standby until the group assigns it", "waits for the group")


@pytest.mark.parametrize("replicas", [1, 0])
def test_managed_task_runs_on_its_standby_or_on_another_instance(bench: Bench, replicas: int) -> None:
    cluster = Cluster(bench, standby_replicas=replicas, restart_grace_ms=0)
    cluster.start("a")
    cluster.rounds()
    cluster.start("b")
    cluster.rounds()
    assert set(cluster.active()) == {"a", "b"}
    assert bool(cluster.standby()["b"]) == bool(replicas)
    cluster.freeze("a")
    cluster.rounds(60)
    assert cluster.active() == {"b": list(range(TASKS))}
    assert told()["managed"] == ("runs on its standby", "runs on another instance")
