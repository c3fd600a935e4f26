"""An instance that starts beside eight busy processes, while leaders stand still: it has its tasks in bounded time.

Rules of this file: the busy processes have the usual priority, and end with the test. Each start takes processor time,
of which little is left: bounds are of a crowded machine.
"""

from __future__ import annotations

import itertools
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from support.crash.managed_cluster import PATIENCE_S, Cluster
from support.serve import wait_for

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(300)]
BUSY = 8
GRACE_MS = 15_000
PLACED_S = 60.0  # from the clean stop of one instance to the first task of another, which waits for it once
LOOP = "import signal\nsignal.alarm(300)\nwhile True: pass"


@contextmanager
def busy_processes() -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", LOOP]) for _ in range(BUSY)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


@pytest.fixture(params=["embedded", pytest.param("kafka", marks=[pytest.mark.kafka(2), pytest.mark.long])])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    embedded = f"sqlite:///{tmp_path}/log?synchronous=normal"
    address = embedded if request.param == "embedded" else f"kafka://{request.getfixturevalue('kafka_address')}"
    with closing(Cluster(tmp_path, address, f"busy-{secrets.token_hex(3)}", seed=1, grace_ms=GRACE_MS)) as made:
        yield made


def test_instance_that_starts_has_tasks_in_time_although_the_leader_changes_again_and_again(cluster: Cluster) -> None:
    for name in "abc":
        cluster.start(name)
        wait_for(lambda name=name: cluster.runs(name), PATIENCE_S)
    cluster.feed(200)
    cluster.await_results()
    with busy_processes():
        cluster.end("c", signal.SIGTERM)
        began = time.monotonic()
        cluster.start("d")
        for name in itertools.cycle("ab"):
            if "runs here" in cluster.said("d"):
                break
            assert time.monotonic() - began <= PLACED_S, cluster.said("a", "b", "d")
            if (time.monotonic() - began) * 1_000 < GRACE_MS:
                cluster.end(name, signal.SIGSTOP)  # for longer than its lease
            time.sleep(0.5)
        print(f": placed after {time.monotonic() - began:.1f} s")
    cluster.feed(100)
    assert cluster.await_results() == cluster.expected()
