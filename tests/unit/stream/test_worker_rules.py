"""Worker processes, the pure rules: their number, the command that runs the program again, when one is killed."""

from __future__ import annotations

from typing import Any

import pytest

import standfast as sf
from standfast.store.errors import BadConfig
from standfast.stream.task.groups import TaskGroup
from standfast.stream.task.settings import SessionSettings
from standfast.stream.workers.command import program_command
from standfast.stream.workers.counts import worker_count, worker_options
from standfast.stream.workers.watch import (
    FAILURES_MAX,
    START_MS,
    WELL_MS,
    ProcessFacts,
    Watch,
    WorkerLook,
    WorkerRestarts,
    beat_ms,
)

MANAGED: Any = {"placement": "managed"}
LEASE_MS, STALL_MS = 1_500, 30_000


# -- number and shares ---------------------------------------------------------------------------------------------


def test_one_worker_is_this_process_whatever_the_settings_are() -> None:
    assert worker_count(1, 8, {"placement": "static", "http_port": 0}) == 1
    assert worker_count("auto", 1, {}) == 1


def test_auto_is_one_worker_for_each_core() -> None:
    assert worker_count("auto", 6, MANAGED) == 6


@pytest.mark.parametrize("given", [0, -1, 1.5, True, "2", "AUTO", None])
def test_number_that_is_no_whole_number_from_one_is_refused(given: Any) -> None:
    with pytest.raises(BadConfig, match="workers must be a whole number from 1, or"):
        worker_count(given, 8, MANAGED)
    with pytest.raises(BadConfig, match="workers must be a whole number from 1, or"):
        sf.App("one", workers=given)


def test_more_workers_than_cores_are_refused_with_both_numbers() -> None:
    with pytest.raises(BadConfig, match="workers=3, but this process may use 2 cores: give 2 or fewer"):
        worker_count(3, 2, MANAGED)


def test_every_problem_of_several_workers_is_named_at_once() -> None:
    with pytest.raises(BadConfig) as refused:
        worker_count(4, 2, {"placement": "static", "memory_bytes": 2 << 20})
    assert [problem.split(" ", 1)[0] for problem in refused.value.problems] == [
        "workers=4,",
        'placement="static"',
        "memory_bytes=2097152",
    ]


def test_schedules_of_snapshots_and_of_coordinated_checkpoints_go_with_workers() -> None:
    every: Any = {**MANAGED, "snapshots": sf.SnapshotPolicy(to="snaps", every_ms=60_000, checkpoint_every_ms=60_000)}
    assert worker_count(2, 2, every) == 2


def share_of(workers: int, **options: Any) -> dict[str, Any]:
    given: Any = {**MANAGED, **options}
    return dict(worker_options(given, workers))


def test_sum_of_the_shares_is_never_more_than_the_setting_of_the_instance() -> None:
    given = {"memory_bytes": 100 << 20, "cache_max_bytes": 10 << 20, "restore_memory_bytes": 64 << 20}
    share = share_of(3, **given)
    assert all(3 * share[name] <= whole for name, whole in given.items())


def test_uploads_of_all_workers_together_send_no_more_than_the_limit_of_the_instance() -> None:
    policy = sf.SnapshotPolicy(to="snaps", every_ms=60_000, bytes_per_s=100)
    assert share_of(3, snapshots=policy)["snapshots"] == sf.SnapshotPolicy(to="snaps", every_ms=60_000, bytes_per_s=33)
    unlimited = sf.SnapshotPolicy(to="snaps")
    assert share_of(3, snapshots=unlimited)["snapshots"] == unlimited


def test_decisions_of_the_leader_are_no_settings_of_a_worker() -> None:
    share = share_of(
        2, max_tasks=5, snapshots=sf.SnapshotPolicy(to="snaps", every_ms=60_000, checkpoint_every_ms=90_000)
    )
    assert "max_tasks" not in share
    assert share["snapshots"] == sf.SnapshotPolicy(to="snaps", every_ms=60_000)
    assert SessionSettings.of(share).check("app", (), {0: TaskGroup(1, ())})


def test_setting_that_is_off_stays_off_in_each_worker_and_one_that_is_on_stays_on() -> None:
    off = share_of(4, cache_max_bytes=0, restore_workers=0)
    assert (off["cache_max_bytes"], off["restore_workers"]) == (0, 0)
    on = share_of(4, cache_max_bytes=3, restore_workers=2)
    assert (on["cache_max_bytes"], on["restore_workers"]) == (1, 1)


def test_worker_takes_no_task_of_its_own_accord() -> None:
    share = share_of(2, standby_replicas=1)
    assert (share["placement"], share["take_over"]) == ("shared", False)
    assert share["standby_replicas"] == 1


# -- command -------------------------------------------------------------------------------------------------------

EXE = "/usr/bin/python3"
CASES = {
    "path": (["python", "shop.py", "--day", "3"], None, "/srv/shop.py", [EXE, "/srv/shop.py", "--day", "3"]),
    "options": (
        ["python", "-X", "dev", "-W", "error", "-O", "shop.py"],
        None,
        "/srv/shop.py",
        [EXE, "-X", "dev", "-W", "error", "-O", "/srv/shop.py"],
    ),
    "module": (
        ["python", "-m", "shop.app", "-c", "x"],
        "shop.app",
        "/srv/shop/app.py",
        [EXE, "-m", "shop.app", "-c", "x"],
    ),
    "module in one word": (["python", "-mshop"], "shop", "/srv/shop.py", [EXE, "-m", "shop"]),
    "module with letters": (["python", "-Im", "shop"], "shop", "/srv/shop.py", [EXE, "-I", "-m", "shop"]),
    "package": (["python", "-m", "shop"], "shop.__main__", "/srv/shop/__main__.py", [EXE, "-m", "shop"]),
    "script": (
        ["python", "/venv/bin/standfast", "run", "shop:app"],
        None,
        "/venv/bin/standfast",
        [EXE, "/venv/bin/standfast", "run", "shop:app"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_program_is_run_again_by_the_command_that_started_it(case: str) -> None:
    given, module, file, wanted = CASES[case]
    assert list(program_command(EXE, given, module, file, ["ignored"])) == wanted


@pytest.mark.parametrize(
    "given", [["python", "/venv/bin/coverage", "run", "shop.py", "7"], ["python", "-m", "pdb", "shop.py", "7"]]
)
def test_program_that_another_one_runs_is_run_again_by_itself(given: list[str]) -> None:
    assert list(program_command(EXE, given, None, "/srv/shop.py", ["shop.py", "7"])) == [EXE, "/srv/shop.py", "7"]


@pytest.mark.parametrize(
    "given", [["python"], ["python", "-"], ["python", "-c", "x"], ["python", "-i"], ["python", "-ic", "x"]]
)
def test_program_without_a_file_or_module_is_refused_and_the_error_names_the_command_to_use(given: list[str]) -> None:
    with pytest.raises(BadConfig, match="standfast run MODULE:APP --workers N"):
        program_command(EXE, given, None, None, [""])


# -- watch ---------------------------------------------------------------------------------------------------------


IDLE = ProcessFacts(works=False)


def look(heard_ms: int, found: ProcessFacts = IDLE, **changed: Any) -> WorkerLook:
    given: dict[str, Any] = {"ready": True, "counts": {}, "allowance_ms": 0, "facts": lambda: found, **changed}
    return WorkerLook(heard_ms, **given)


def test_worker_is_killed_once_it_has_been_silent_for_a_third_of_the_lease_without_working() -> None:
    watch = Watch(LEASE_MS, STALL_MS, 0)
    idle = ProcessFacts(cpu_ms=400, works=False)
    assert [watch.look(look(100, idle), now_ms) for now_ms in (100, 400, 600)] == ["", "", ""]
    assert watch.look(look(100, idle), 601) == "it was silent for 501 ms, and none of its threads works"


def test_stopped_worker_is_killed_whatever_it_did_before() -> None:
    watch = Watch(LEASE_MS, STALL_MS, 0)
    assert watch.look(look(100, ProcessFacts(300, works=True)), 400) == ""
    assert watch.look(look(100, ProcessFacts(900, stopped=True)), 601) == "it is stopped, and was silent for 501 ms"


@pytest.mark.parametrize("facts", [ProcessFacts(0, works=True), ProcessFacts(20_000, works=False)])
def test_worker_that_works_in_one_native_call_or_is_starved_has_as_long_as_a_stall_may_last(
    facts: ProcessFacts,
) -> None:
    watch = Watch(LEASE_MS, STALL_MS, 0)
    assert watch.look(look(100), 400) == ""  # its processor time so far
    assert watch.look(look(100, facts), 100 + STALL_MS) == ""
    assert "one call that holds the interpreter" in watch.look(look(100, facts), 101 + STALL_MS)


def test_announced_replay_may_be_silent_without_work_for_its_allowance_beyond_a_stall() -> None:
    watch = Watch(LEASE_MS, STALL_MS, 0)
    waits = look(100, allowance_ms=9_000)
    assert watch.look(waits, 100 + STALL_MS + 9_000) == ""
    assert watch.look(waits, 101 + STALL_MS + 9_000) != ""


def test_worker_that_is_heard_in_time_is_not_looked_into() -> None:
    def never() -> ProcessFacts:
        raise AssertionError("its process was looked into")

    watch = Watch(LEASE_MS, STALL_MS, 0)
    assert watch.look(look(100, facts=never), 350) == ""


def test_worker_that_is_heard_and_makes_no_progress_is_killed_after_a_stall() -> None:
    watch = Watch(LEASE_MS, STALL_MS, 0)
    for now_ms in (0, STALL_MS):
        assert watch.look(look(now_ms, counts={"the application's loop": 7}), now_ms) == ""
    now_ms = STALL_MS + 1
    assert "no progress for 30 s (the application's loop)" in watch.look(
        look(now_ms, counts={"the application's loop": 7}), now_ms
    )


def test_program_has_its_time_to_come_to_run_and_is_killed_after_it() -> None:
    watch = Watch(LEASE_MS, STALL_MS, 0)
    assert watch.look(look(0, ready=False), START_MS) == ""
    assert "did not come to run()" in watch.look(look(0, ready=False), START_MS + 1)


def test_program_that_is_stopped_before_it_comes_to_run_is_killed_after_a_third_of_the_lease() -> None:
    watch = Watch(LEASE_MS, STALL_MS, 0)
    stopped = look(0, ProcessFacts(stopped=True), ready=False)
    assert watch.look(look(0, ready=False), 5_000) == ""
    assert watch.look(stopped, 5_500) == ""
    assert watch.look(stopped, 5_501) == "it is stopped, for 501 ms now"


def test_worker_beats_several_times_within_the_silence_that_it_may_keep() -> None:
    assert all(beat_ms(lease_ms) * 2 <= lease_ms // 3 for lease_ms in (100, 1_500, 60_000))


# -- restarts ------------------------------------------------------------------------------------------------------


def test_first_end_in_a_row_is_followed_by_a_start_at_once_and_later_ones_wait_as_the_strategy_says() -> None:
    restarts = WorkerRestarts(sf.ExponentialDelay(initial_ms=1_000))
    assert [restarts.ended(now_ms, 50) for now_ms in (0, 100, 200)] == [0, 2_000, 4_000]


def test_worker_is_given_up_after_its_row_of_ends_even_if_the_strategy_has_no_bound() -> None:
    restarts = WorkerRestarts(sf.ExponentialDelay())
    found = [restarts.ended(now_ms, 50) for now_ms in range(FAILURES_MAX)]
    assert found[-1] is None and None not in found[:-1]
    assert restarts.reason == "it ended 5 times in a row, each time within 10 minutes"


def test_worker_that_lives_well_in_between_is_started_again_without_end() -> None:
    restarts = WorkerRestarts(sf.ExponentialDelay())
    assert [restarts.ended(now_ms, WELL_MS) for now_ms in range(50)] == [0] * 50


def test_strategy_that_allows_no_restart_gives_a_worker_up_at_its_first_end() -> None:
    restarts = WorkerRestarts(sf.NoRestart())
    assert restarts.ended(0, WELL_MS) is None
    assert restarts.reason


def test_log_that_is_away_costs_no_restart_of_the_strategy() -> None:
    restarts = WorkerRestarts(sf.NoRestart())
    pauses = [restarts.log_away() for _ in range(10)]
    assert pauses == sorted(pauses) and pauses[0] == 500 and pauses[-1] == 10_000
    restarts.opened()
    assert restarts.log_away() == 500
