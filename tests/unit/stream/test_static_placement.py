"""Placement `static` of an application: the program names the tasks of each instance, and no leader moves them.

Rules of this file: real instances on one embedded log, driven by hand; run() itself only where it is refused.
"""

from __future__ import annotations

from typing import Any

import pytest

import standfast as sf
from standfast.replication.log import TopicPolicy
from support.placement import COUNT, TASKS, Cluster, counts
from support.sessions import Bench

FIRST, REST = ["0_0", "0_1"], list(range(2, TASKS))


@pytest.fixture
def cluster(bench: Bench) -> Cluster:
    made = Cluster(bench, placement="static", cache_max_bytes=0)  # so that each record has a result
    made.start("a").session.assign(active=FIRST, standby=REST)
    made.start("b").session.assign(active=REST, standby=FIRST)
    made.fill(10)
    made.rounds()
    return made


def test_each_instance_runs_the_tasks_that_it_was_given_and_no_others(cluster: Cluster) -> None:
    assert cluster.active() == {"a": [0, 1], "b": [2, 3, 4, 5]}
    assert cluster.standby() == {"a": [2, 3, 4, 5], "b": [0, 1]}
    assert all(one.session._instance.managed is None for one in cluster.live.values())
    assert list(cluster.results().values()) == [1] * 10 * TASKS


def test_standby_that_was_named_takes_over_from_an_instance_that_is_gone(cluster: Cluster) -> None:
    cluster.freeze("a")
    cluster.rounds(60)
    cluster.fill(10)
    cluster.rounds()
    assert cluster.active() == {"b": list(range(TASKS))}
    assert list(cluster.results().values()) == [1] * 20 * TASKS


def test_run_without_a_task_is_refused_and_leaves_the_directory_free(bench: Bench) -> None:
    def made(**given: Any) -> sf.App:
        app = sf.App("app", log=bench.address, state_dir=bench.root / "a", stores=[COUNT], **given)
        counts(app)
        return app

    for topic in ("in", "out"):
        bench.log.admin.create_topic(topic, 1, TopicPolicy())
    with pytest.raises(sf.InvalidRequest, match=r'no task to run: with placement="static" name .* app.open\(\).assign'):
        made(placement="static").run()
    made().open().close()


@pytest.mark.parametrize("task", ["0", "a_b", "", "0_-1", "0_1_2", "9_0"])
def test_text_that_names_no_task_is_refused_and_changes_nothing(cluster: Cluster, task: str) -> None:
    with pytest.raises(sf.InvalidRequest, match="does not exist"):
        cluster.live["a"].session.assign(active=[0, task])
    assert cluster.active() == {"a": [0, 1], "b": [2, 3, 4, 5]}


def test_test_driver_of_an_application_with_static_placement_has_every_task() -> None:
    app = sf.App("app", stores=[COUNT], placement="static")
    counts(app)
    with sf.testing.Driver(app, partitions=2) as driver:
        for key in "abcdef":
            driver.pipe("in", key, 1, 1)
        rows = [dict(driver.store("count", partition).all()) for partition in range(2)]
        assert all(rows)
        assert rows[0] | rows[1] == dict.fromkeys("abcdef", 1)
