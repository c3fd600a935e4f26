"""Workers that are killed while they answer: answers are right or errors with a reason, and counters never go back.

    test ── scrapes, scans ──> supervisor ── line ──> worker, killed

Rules of this file: real processes on an embedded log. Each kill is by the id that the status names.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from standfast.restore.snapshot.checkpoints import CheckpointState, checkpoints
from standfast.restore.snapshot.opening import open_storage
from support.crash.managed_cluster import seeded
from support.serve import wait_for
from support.workers import APP, Served

pytestmark = [pytest.mark.slow, pytest.mark.crash, pytest.mark.timeout(300)]
KILLS = 3
PATIENCE_S = 120


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with closing(Served(tmp_path, tasks=4)) as made:
        made.start()
        made.feed(240)
        made.await_rows()
        yield made
        made.end()


@contextmanager
def beside(job: Any) -> Iterator[list[BaseException]]:
    """Run a job again and again in two threads; an exception of the job fails the test."""
    stop, problems = threading.Event(), list[BaseException]()

    def run() -> None:
        while not stop.is_set():
            try:
                job()
            except BaseException as error:
                problems.append(error)
                return
            time.sleep(0.02)  # processes that start need the machine, too

    threads = [threading.Thread(target=run) for _ in range(2)]
    for one in threads:
        one.start()
    try:
        yield problems
    finally:
        stop.set()
        for one in threads:
            one.join(PATIENCE_S)
    assert not problems, problems


def kill_one(served: Served, random: Random) -> int:
    """Kill a worker, and wait until another process has its tasks and all run."""
    pid = random.choice(served.pids())
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: pid not in served.pids(), PATIENCE_S, served.said)
    wait_for(served.is_ready, PATIENCE_S, served.said)
    return pid


def counters(text: str) -> dict[str, float]:
    return {
        f"{one.name}{sorted(one.labels.items())}": one.value
        for family in text_string_to_metric_families(text)
        if family.type in ("counter", "histogram")
        for one in family.samples
        if not one.name.endswith("_created")
    }


def test_counters_never_go_back_while_workers_are_killed_in_the_middle_of_scrapes(served: Served) -> None:
    random, lock, most = Random(seeded(0)), threading.Lock(), dict[str, float]()

    def scrape() -> None:
        with lock:  # else an older text could be compared with a newer one
            with urllib.request.urlopen(f"{served.address}/metrics", timeout=20) as answer:
                found = counters(answer.read().decode())
            fallen = [f"{name}: {most[name]} {value}" for name, value in found.items() if value < most.get(name, 0)]
            assert not fallen, fallen
            most.update(found)

    with beside(scrape):
        for _ in range(KILLS):
            served.feed(120)
            kill_one(served, random)
    served.await_rows()
    # No count of before the kills is lost but those of the last second of a killed process.
    starts = {name: value for name, value in most.items() if name.startswith("standfast_worker_starts_total")}
    assert sum(starts.values()) == 2 + KILLS


def test_scan_is_whole_or_an_error_while_workers_are_killed(served: Served) -> None:
    random, client = Random(seeded(1)), served.client()
    seen = {"whole": 0, "errors": 0}
    expected = dict(served.fed)

    def scan() -> None:
        found: dict[str, int] = {}
        after = None
        while True:
            status, answer = client.ask("/v1/stores/counts/scan", {"limit": 9, "after": after})
            if status != 200:
                assert status == 503 and answer["message"], answer
                seen["errors"] += 1
                return
            found |= {row["key"]: row["value"] for row in answer["rows"]}
            after = answer["after"]
            if not answer["truncated"]:
                break
        assert found == expected
        seen["whole"] += 1

    with beside(scan):
        for _ in range(KILLS):
            whole = seen["whole"]
            wait_for(lambda whole=whole: seen["whole"] > whole + 5, PATIENCE_S)
            kill_one(served, random)
        whole = seen["whole"]
        wait_for(lambda: seen["whole"] > whole, PATIENCE_S)
    assert seen["errors"], "no scan met a kill"


@pytest.mark.long
def test_livez_never_fails_while_workers_are_killed_or_hold_their_interpreter(served: Served) -> None:
    random = Random(seeded(2))

    def live() -> None:
        assert served.client(timeout_s=2).ask("/livez")[0] == 200

    with beside(live):
        served.hold(0, 2_500)
        kill_one(served, random)
        served.await_rows()


@pytest.mark.long
def test_checkpoint_beside_scrapes_completes_or_has_a_reason_and_the_next_one_completes(tmp_path: Path) -> None:
    random, to = Random(seeded(3)), str(tmp_path / "snaps")
    settings: dict[str, Any] = {"policy": {"to": to, "checkpoint_every_ms": 1_500}}
    with closing(Served(tmp_path, tasks=4, **settings)) as served:
        served.start()
        served.feed(240)
        served.await_rows()
        storage = open_storage(to, APP)

        def complete() -> int:
            return sum(one.state is CheckpointState.COMPLETE for one in checkpoints(storage))

        def ask() -> None:
            assert served.client().ask("/v1/status")[0] == 200
            assert served.client().ask("/livez")[0] == 200

        wait_for(lambda: complete() > 0, PATIENCE_S, served.said)
        with beside(ask):
            for _ in range(KILLS):
                os.kill(random.choice(served.pids()), signal.SIGKILL)
                before = complete()
                served.feed(40)
                wait_for(lambda before=before: complete() > before, PATIENCE_S, served.said)
        for one in checkpoints(storage):
            assert one.state is not CheckpointState.ABANDONED or one.why, one
        served.await_rows()
        served.end()
