"""An application with worker processes over HTTP, on a real broker: status, rows and standbys of a second instance."""

from __future__ import annotations

import uuid
from contextlib import closing
from pathlib import Path

import pytest

from support.serve import wait_for
from support.workers import Served

pytestmark = [pytest.mark.kafka(2), pytest.mark.slow, pytest.mark.timeout(240)]


def test_two_instances_with_workers_show_their_tasks_and_copies_and_a_bound_of_tasks(
    kafka_address: str, tmp_path: Path
) -> None:
    app, log = f"served-{uuid.uuid4().hex[:8]}", f"kafka://{kafka_address}"
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with (
        closing(Served(tmp_path / "a", log, app=app, standby_replicas=1, max_tasks=3)) as first,
        closing(Served(tmp_path / "b", log, app=app, standby_replicas=1, max_tasks=3)) as second,
    ):
        first.begin()  # three places for four tasks: no task starts, and the instance says why
        wait_for(lambda: "WAITING_FOR_SLOTS" in " ".join(first.reasons()), 60, first.said)
        second.start()
        wait_for(first.is_ready, 60, first.said)
        first.feed(120)

        def settled() -> bool:
            found = [served.status() for served in (first, second)]
            roles = [one["role"] for status in found for one in status["tasks"]]
            return roles.count("active") == 4 and roles.count("standby") == 4

        wait_for(settled, 90, first.said)
        shown = [one for served in (first, second) for one in served.status()["worker_processes"]]
        assert all(one["error"] == "" for one in shown)
        assert sorted(task for one in shown for task in one["active"]) == ["0_0", "0_1", "0_2", "0_3"]
        assert sorted(task for one in shown for task in one["standby"]) == ["0_0", "0_1", "0_2", "0_3"]

        def rows() -> dict[str, int]:
            return {**(first.rows() or {}), **(second.rows() or {})}

        wait_for(lambda: rows() == dict(first.fed), 60, first.said)
        assert first.client().get("/v1/stores/counts/scan")["not_read"], "copies are not read, and named"
        second.end()
        first.end()
