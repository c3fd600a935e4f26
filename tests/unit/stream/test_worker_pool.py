"""The pool of worker processes: orders, reports, ends and restarts, with real processes that speak the protocol.

Rules of this file: a test drives the pool by hand. `support/pool_child.py` is the program.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import standfast as sf
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.replication.pauses import FAILOVER, PLANNED
from standfast.replication.placement.checkpoint import Order, PartReport
from standfast.replication.takeover import Free
from standfast.store.clock import SystemClock
from standfast.store.errors import InvalidRequest, WorkerFailed
from standfast.stream.restart import RestartStrategy
from standfast.stream.task.statistics import SessionCounters
from standfast.stream.workers.command import Program
from standfast.stream.workers.pool import Pool, PoolSettings
from standfast.stream.workers.watch import FAILURES_MAX, WELL_MS
from support import pool_child
from support.places import ROOT
from support.serve import wait_for

pytestmark = pytest.mark.slow
WAIT_S = 60.0
TASKS = frozenset(TaskId(0, partition) for partition in range(4))
OPENED = {"app": "pool", "log": "", "state_root": "", "guarantee": "exactly_once", "program": "", "instance": "a"}
Start = Callable[..., Pool]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    monkeypatch.setattr("standfast.stream.workers.pool.CALM_MS", 200)  # the time before each spare, of the machine
    pools: list[Pool] = []
    lock = os.open(tmp_path / "lock", os.O_CREAT | os.O_RDWR)

    def start(
        how: str,
        workers: int = 2,
        restart: RestartStrategy | None = None,
        lease_ms: int = 3_000,
        max_stall_ms: int = 30_000,
    ) -> Pool:
        program = Program((sys.executable, pool_child.__file__, how), str(ROOT))
        strategy = restart or sf.FixedDelay(2, 10)
        settings = PoolSettings(program, workers, lease_ms, max_stall_ms, strategy, OPENED, lock)
        pools.append(Pool(settings, SystemClock(), SessionCounters()))
        return pools[-1]

    yield start
    for pool in pools:
        pool.kill()
    os.close(lock)


def until(
    pool: Pool, found: Callable[[], Any], active: frozenset[TaskId] = TASKS, standby: frozenset[TaskId] = frozenset()
) -> None:
    """Drive the pool as a supervisor does."""

    def driven() -> bool:
        pool.wait(20)
        pool.poll()
        if pool.error is None:
            pool.follow(active, standby, lambda _: Free.GIVEN)
        return bool(found())

    wait_for(driven, WAIT_S)


def run(pool: Pool, **part: Any) -> None:
    until(pool, lambda: pool.facts().running == part.get("active", TASKS), **part)


def test_tasks_are_spread_over_the_workers_and_their_reports_are_the_facts_of_the_instance(start: Start) -> None:
    pool = start("obey")
    standby = frozenset({TaskId(1, 0)})
    until(pool, lambda: len(pool.facts().lags) == 1 and pool.facts().running == TASKS, standby=standby)
    assert [len(pool.orders.may_hold(number) & TASKS) for number in (0, 1)] == [2, 2]
    assert pool.facts()[:3] == (TASKS, frozenset(), {TaskId(1, 0): 3})
    assert pool.facts().workers == tuple(pool.orders.may_hold(number) for number in (0, 1))
    assert pool.held() == TASKS | standby


def test_killed_worker_is_replaced_and_its_tasks_are_opened_there_under_new_numbers(start: Start) -> None:
    pool = start("obey")
    run(pool)
    before, pids = {**pool.orders.tasks(0), **pool.orders.tasks(1)}, pool.pids
    hit = pool.orders.may_hold(0)
    assert pids[0] is not None
    os.kill(pids[0], signal.SIGKILL)
    until(pool, lambda: pool.facts().running == TASKS - hit)
    run(pool)
    after = {**pool.orders.tasks(0), **pool.orders.tasks(1)}
    assert pool.orders.may_hold(0) == hit
    assert {task for task in TASKS if after[task].opening != before[task].opening} == hit
    assert pool.pids[1] == pids[1]
    assert pool.pids[0] not in (None, pids[0])


def test_spare_that_waits_takes_the_place_of_a_killed_worker_and_is_followed_by_another(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    pool = start("obey")
    run(pool)
    until(pool, lambda: pool.spare_pid)
    spare, workers = pool.spare_pid, pool.pids
    assert spare not in workers
    assert workers[0] is not None
    os.kill(workers[0], signal.SIGKILL)
    with caplog.at_level(logging.INFO, "standfast"):
        until(pool, lambda: pool.pids[0] not in (None, workers[0]))
        run(pool)
    assert pool.pids == [spare, workers[1]]
    assert f"worker 1 of 2 starts as process {spare}" in caplog.text
    until(pool, lambda: pool.spare_pid not in (None, spare))


def test_spare_that_ends_costs_no_worker_and_comes_again(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    pool = start("obey")
    run(pool)
    until(pool, lambda: pool.spare_pid)
    spare, workers = pool.spare_pid, pool.pids
    assert spare is not None
    os.kill(spare, signal.SIGKILL)
    until(pool, lambda: pool.spare_pid not in (None, spare))
    assert "the spare worker ended (signal 9), it starts again in 200 ms" in caplog.text
    assert (pool.pids, pool.error, pool.facts().running) == (workers, None, TASKS)


def test_spare_that_has_died_takes_no_place(start: Start) -> None:
    pool = start("obey")
    run(pool)
    until(pool, lambda: pool.spare_pid)
    spare, worker = pool.spare_pid, pool.pids[0]
    assert spare is not None and worker is not None
    os.kill(spare, signal.SIGKILL)
    os.waitid(os.P_PID, spare, os.WEXITED | os.WNOWAIT)  # the pool still finds it: a signal takes a moment
    os.kill(worker, signal.SIGKILL)
    until(pool, lambda: pool.pids[0] not in (None, worker))
    assert pool.pids[0] != spare
    run(pool)


def has_replaced(pool: Pool, pid: int) -> bool:
    return pool.error is not None or pool.pids[0] not in (None, pid)


def test_worker_that_was_a_spare_for_long_is_given_up_after_as_many_ends_as_any_other(start: Start) -> None:
    """The time that it waited is no time that it worked well."""
    pool = start("obey", workers=1, restart=sf.FixedDelay(100, 10))
    for _ in range(FAILURES_MAX):
        run(pool)
        until(pool, lambda: pool.spare_pid)
        assert pool._spare._process is not None
        pool._spare._process.child.started_ms -= 2 * WELL_MS  # as if it had waited for so long
        (pid,) = pool.pids
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        until(pool, partial(has_replaced, pool, pid))
    assert isinstance(pool.error, WorkerFailed)
    assert f"it ended {FAILURES_MAX} times in a row" in str(pool.error)


def test_spare_ends_with_the_pool(start: Start) -> None:
    pool = start("obey")
    run(pool)
    until(pool, lambda: pool.spare_pid)
    spare = pool.spare_pid
    pool.stop(lambda: None)
    assert pool.spare_pid is None
    assert not Path(f"/proc/{spare}").exists()


def counted(pool: Pool) -> dict[str, int]:
    return {kind: sum(found.counts) for (kind,), found in pool._counters.pause_seconds.items()}


def test_task_that_moves_to_another_worker_has_a_planned_pause(start: Start) -> None:
    pool = start("obey")
    run(pool)
    assert counted(pool) == {}, "a task that begins comes from no other worker"
    task = min(pool.orders.tasks(0))
    pool.move(task, 1)
    until(pool, lambda: task in pool.orders.tasks(1) and not pool.orders.may_hold(0) & {task})
    run(pool)
    assert counted(pool) == {PLANNED: 1}
    assert pool.facts().left == {}, "it runs in this instance"
    left = TASKS - {task}
    until(pool, lambda: pool.facts().running == left, active=left)
    until(pool, lambda: task in pool.facts().left, active=left)
    assert counted(pool) == {PLANNED: 1}, "the next owner counts the pause of a task that left the instance"


def test_tasks_of_a_killed_worker_have_a_failover_pause_each(start: Start) -> None:
    pool = start("obey")
    run(pool)
    pid = pool.pids[0]
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    until(pool, lambda: counted(pool) == {FAILOVER: 2})


def parts_of(pool: Pool, number: int, step: int = 1) -> frozenset[TaskId]:
    """Tasks whose part of this order is cut, as far as the workers have reported."""
    found = pool.parts.report()
    return found.stopped if found is not None and (found.number, found.step) == (number, step) else frozenset()


def test_order_of_a_checkpoint_reaches_every_worker_and_their_parts_are_one_report(start: Start) -> None:
    pool = start("obey")
    run(pool)
    assert pool.parts.report() is None
    pool.parts.follow(Order(7, 1, stop=frozenset({0}), limits={TopicPartition("inner", 3): 12}))
    until(pool, lambda: parts_of(pool, 7) == TASKS)
    assert pool.parts.report() == PartReport(7, 1, TASKS, TASKS)
    until(pool, lambda: pool.snapshot_counts().made == {"made": 2})
    assert pool.snapshot_counts().pauses_ms == [20, 20]


def test_parts_of_a_killed_worker_fail_and_its_replacement_has_the_order_before_it_opens_a_task(start: Start) -> None:
    pool = start("obey")
    run(pool)
    pool.parts.follow(Order(7, 1, stop=frozenset({0})))
    until(pool, lambda: parts_of(pool, 7) == TASKS)
    until(pool, lambda: pool.snapshot_counts().made == {"made": 2})
    hit, pid = pool.orders.may_hold(0), pool.pids[0]
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    until(pool, lambda: has_replaced(pool, pid))
    found = pool.parts.report()
    assert found is not None
    assert set(found.failed) == hit
    assert set(found.failed.values()) == {"worker 1, which ran it, ended in the middle of the checkpoint"}
    # The stand-in reports its tasks with the parts of the order that it got before.
    until(pool, lambda: parts_of(pool, 7) == TASKS)
    until(pool, lambda: pool.snapshot_counts().made == {"made": 3})  # the dead process's count stays
    # The next checkpoint knows nothing of that end.
    pool.parts.follow(Order(8, 1, stop=frozenset({0})))
    until(pool, lambda: parts_of(pool, 8) == TASKS)
    assert pool.parts.report() == PartReport(8, 1, TASKS, TASKS)


def test_files_of_a_process_that_has_ended_are_forgotten_once_it_is_gone(start: Start) -> None:
    pool = start("obey")
    forgotten: list[int] = []
    pool._settings.forget = forgotten.append
    run(pool)
    pid = pool.pids[0]
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    until(pool, lambda: has_replaced(pool, pid))
    assert forgotten == [pid]


@pytest.mark.parametrize(("task", "worker"), [(TaskId(7, 7), 1), (TaskId(0, 0), 2), (TaskId(0, 0), -1)])
def test_move_of_an_unknown_task_or_worker_is_refused(start: Start, task: TaskId, worker: int) -> None:
    pool = start("obey")
    run(pool)
    with pytest.raises(InvalidRequest, match=f"task {task} cannot go to worker {worker}: this instance has 4 tasks"):
        pool.move(task, worker)


def test_task_that_a_worker_does_not_give_back_goes_to_no_other_worker(start: Start) -> None:
    pool = start("holds")
    run(pool)
    mine = pool.orders.may_hold(0)
    for _ in range(20):
        pool.wait(20)
        pool.poll()
        pool.follow(mine, frozenset(), lambda _: Free.GIVEN)  # one of them is to move
    assert pool.orders.may_hold(0) == mine
    assert not pool.orders.may_hold(1) & mine


def test_worker_that_is_stopped_is_killed_and_given_up_as_the_strategy_says(start: Start) -> None:
    pool = start("mute", workers=1, lease_ms=600)
    until(pool, lambda: pool.error)
    assert isinstance(pool.error, WorkerFailed)
    assert str(pool.error).startswith("worker 1 ended (signal 9: it is stopped, ")
    assert "3 failures are more than FixedDelay(attempts=2, delay_ms=10) allows" in str(pool.error)


def test_worker_that_ends_before_run_is_given_up_with_its_exit_code_and_last_lines(start: Start) -> None:
    pool = start("exit", workers=1, restart=sf.NoRestart())
    until(pool, lambda: pool.error)
    assert isinstance(pool.error, WorkerFailed)
    assert str(pool.error).startswith("worker 1 ended (exit code 1), ")
    assert str(pool.error).endswith("its last lines:\nthis machine has no licence")


def test_error_of_the_program_ends_the_run_at_once_whatever_the_strategy_is(start: Start) -> None:
    pool = start("wrong", workers=1)
    until(pool, lambda: pool.error)
    assert isinstance(pool.error, WorkerFailed)
    assert str(pool.error) == "worker 1: KeyError: as the test wants it"
    assert pool.error.__notes__ == ["a note", "raised in worker 1"]


def test_worker_for_which_the_log_is_away_starts_again_without_counting_as_failed(start: Start) -> None:
    pool = start("outage", workers=1, restart=sf.NoRestart())
    pids: set[int] = set()
    until(pool, lambda: pids.update(one for one in pool.pids if one is not None) or len(pids) == 3)
    assert pool.error is None


def test_worker_that_sends_rubbish_is_ended_and_the_error_shows_it(start: Start) -> None:
    pool = start("rubbish", workers=1, restart=sf.NoRestart())
    until(pool, lambda: pool.error)
    assert "which is not a report" in str(pool.error)


def test_pause_reaches_running_workers_and_later_ones(start: Start, capfd: pytest.CaptureFixture[str]) -> None:
    pool = start("obey", workers=1)
    run(pool)
    pool.pause(True)
    pool.pause(True)
    said = ""

    def paused(count: int) -> bool:
        nonlocal said
        said += capfd.readouterr().out
        return said.count("worker paused: True") == count

    until(pool, lambda: paused(1))
    assert pool.pids[0] is not None
    os.kill(pool.pids[0], signal.SIGKILL)
    until(pool, lambda: paused(2))
    pool.pause(False)
    until(pool, lambda: "worker paused: False" in (said + capfd.readouterr().out))


def test_worker_that_paused_itself_gets_the_order_of_its_supervisor_in_any_case(
    start: Start, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its own call, and an order that was on its way, may have crossed."""
    pool = start("asks", workers=1)
    said, wishes = "", []

    def heard(line: str) -> bool:
        nonlocal said
        said += capfd.readouterr().out
        return line in said

    until(pool, lambda: wishes.extend(pool.wishes()) or wishes)
    assert (wishes, pool.wishes()) == (["pause"], [])
    pool.pause(False)  # as it was, by the supervisor
    until(pool, lambda: heard("worker paused: False"))
    pool.pause(True)
    until(pool, lambda: heard("worker paused: True"))


def test_stop_ends_all_workers_and_those_that_are_starting_too(start: Start) -> None:
    pool = start("obey")
    run(pool)
    calls: list[int] = []
    pool.stop(lambda: calls.append(1))
    assert pool.pids == [None, None]
    assert calls, "the lease is looked after meanwhile"
    starting = start("obey")
    starting.poll()
    assert None not in starting.pids
    starting.stop(lambda: None)
    assert starting.pids == [None, None]


def test_worker_that_has_closed_all_is_no_failure_however_long_its_interpreter_takes_to_end(start: Start) -> None:
    pool = start("lingers", workers=1, lease_ms=600)
    run(pool)
    pool.stop(lambda: None)
    assert (pool.pids, pool.error) == ([None], None)


def test_worker_that_has_closed_all_and_never_ends_is_killed_in_the_end_and_no_failure_either(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    pool = start("lingers", workers=1, lease_ms=600, max_stall_ms=1_000)
    run(pool)
    pool.stop(lambda: None)
    assert "is killed: it closed all, and did not end within" in caplog.text
    assert (pool.pids, pool.error) == ([None], None)


def test_worker_that_dies_while_it_stops_is_an_error_of_the_stop(start: Start) -> None:
    pool = start("obey")
    run(pool)
    assert pool.pids[0] is not None
    os.kill(pool.pids[0], signal.SIGKILL)
    with pytest.raises(WorkerFailed, match=r"worker 1 ended \(signal 9\), while the application stopped"):
        pool.stop(lambda: None)
    assert pool.pids == [None, None]
