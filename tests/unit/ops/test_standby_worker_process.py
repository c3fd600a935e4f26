"""The server's side of its worker process: its allowed silence, before and after its first line.

Rules of this file: real processes; the clock that judges silence is the test's.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from standfast.ops.observe.health import HEARTBEAT_MS_MAX
from standfast.ops.sidecar.worker.process import SILENT_MS, START_MS, StandbyWorker
from standfast.ops.sidecar.worker.protocol import OpenTails
from standfast.replication.tail.open_log import open_log
from standfast.store.clock import ManualClock
from standfast.store.process.child import RESTART_MS
from standfast.store.task.state_dir import StateDir
from support.serve import KEYVALUE, wait_for

pytestmark = pytest.mark.slow
START_S = 60.0


@pytest.fixture
def worker(tmp_path: Path, clock: ManualClock) -> Iterator[StandbyWorker]:
    state = StateDir(tmp_path, "app")
    # The server creates the log before it starts its worker: a worker creates none where the file is gone.
    open_log(f"sqlite:///{tmp_path}/log").close()
    settings = {"guarantee": "at_least_once", "gate": "all", "partitions": 1}
    order = OpenTails(
        app="app",
        log=f"sqlite:///{tmp_path}/log",
        state_root=str(tmp_path),
        lock=state.lock,
        member="me-tail0",
        cares_for="",
        stores=(KEYVALUE,),
        settings=settings,
    )
    made = StandbyWorker(order, clock)
    yield made
    if made.pid is not None:
        os.kill(made.pid, signal.SIGCONT)
    made.close()
    state.close()


def spoke(worker: StandbyWorker) -> bool:
    worker.poll()
    return worker.settled


def ended(worker: StandbyWorker) -> bool:
    worker.poll()
    return worker.pid is None


def test_worker_that_gets_little_processor_time_is_not_killed_before_its_first_word(
    worker: StandbyWorker, clock: ManualClock
) -> None:
    """A worker whose start took longer than the allowed silence was killed each time, and no restore ever began."""
    worker.poll()
    pid = worker.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    for _ in range(START_MS // HEARTBEAT_MS_MAX):
        clock.advance(HEARTBEAT_MS_MAX)
        worker.poll()
        assert clock.monotonic_ms() == worker.heard_ms, "livez would have the sidecar started again"
    assert (worker.pid, worker.restarts) == (pid, 0)
    os.kill(pid, signal.SIGCONT)
    wait_for(lambda: spoke(worker), START_S)


def test_worker_that_does_not_start_at_all_is_started_again(worker: StandbyWorker, clock: ManualClock) -> None:
    worker.poll()
    pid = worker.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    clock.advance(START_MS + 1)
    wait_for(lambda: ended(worker), START_S)
    clock.advance(RESTART_MS)
    wait_for(lambda: spoke(worker), START_S)
    assert worker.restarts == 1


def test_worker_that_falls_silent_is_started_again(worker: StandbyWorker, clock: ManualClock) -> None:
    wait_for(lambda: spoke(worker), START_S)
    pid = worker.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    worker.poll()  # its output by then
    clock.advance(SILENT_MS + 1)
    wait_for(lambda: ended(worker), START_S)
    assert worker.restarts == 1


def test_worker_that_is_killed_again_and_again_is_started_within_two_seconds(
    worker: StandbyWorker, clock: ManualClock
) -> None:
    """A task that it is to restore opens within five seconds, however often it was killed before."""
    for kills in range(7):
        worker.poll()
        assert worker.pid is not None, f"two seconds after kill {kills} it is not started"
        os.kill(worker.pid, signal.SIGKILL)
        wait_for(lambda: ended(worker), START_S)
        clock.advance(2_000)
