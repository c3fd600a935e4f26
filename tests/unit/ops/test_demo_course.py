"""How the demo sees its processes share tasks: from statuses made by hand, and with processes that are held up.

Rules of this file: no whole run (see `test_demo_run.py`).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import closing
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from standfast.ops.demo.board import PARTITIONS, TASKS, TOPIC, Tally
from standfast.ops.demo.course import Course
from standfast.ops.demo.display import Display
from standfast.ops.demo.feeder import Feeder
from standfast.ops.demo.flights import read_flights
from standfast.ops.demo.log import LogView
from standfast.ops.demo.process import Status
from standfast.ops.demo.run import lead_for, settings_for
from standfast.ops.demo.shares import SETTLE_MS, has_all, is_shared, is_whole, pauses, times
from standfast.ops.demo.worker import log_address
from standfast.replication.offsets import TaskId
from standfast.replication.tail.open_log import open_log
from standfast.store.clock import ManualClock, SystemClock
from standfast.store.errors import Unavailable

ALL = [f"{group}_{part}" for group in range(2) for part in range(TASKS // 2)]


def status(
    active: list[str],
    standby: list[str],
    *,
    at_ms: int = 1_000,
    lag: int = 0,
    times: Mapping[str, Mapping[str, int]] | None = None,
    moves: tuple[str, ...] = (),
) -> Status:
    tasks: list[dict[str, Any]] = [
        {"task": task, "role": "active", "state": "running", "stores": []} for task in active
    ]
    tasks += [{"task": task, "role": "standby", "state": "standby", "stores": [{"lag": lag}]} for task in standby]
    document: dict[str, Any] = {
        "tasks": tasks,
        "placement": {
            "moves": [{"move": one, "task": "0_1", "generation": number} for number, one in enumerate(moves)]
        },
    }
    return Status(at_ms=at_ms, times=times or {}, status=document)


def test_tasks_are_shared_once_each_runs_and_has_its_standby() -> None:
    a, b = status(ALL[:4], ALL[4:]), status(ALL[4:], ALL[:4])
    assert is_shared([a, b])
    assert is_shared([status(ALL[:3], ALL[5:]), status(ALL[3:6], ALL[:3]), status(ALL[6:], ALL[3:5])])
    assert not is_shared([Status(), Status()])
    assert not is_shared([status(ALL, []), status([], ALL)]), "B has nothing yet"
    assert not is_shared([status(ALL[:5], ALL[5:]), status(ALL[5:], ALL[:5])]), "A has two more"
    assert not is_shared([a, status(ALL[4:], ALL[:3])]), "one standby is missing"
    assert not is_shared([a, status(ALL[3:], ALL[:4])]), "a task is reported by both"


def test_task_that_restores_does_not_count_as_shared() -> None:
    a, b = status(ALL[:4], ALL[4:]), status(ALL[4:], ALL[:4])
    b.status["tasks"][0]["state"] = "restoring"
    assert not is_shared([a, b])


def test_copies_are_whole_by_statuses_from_after_the_last_change() -> None:
    a, b = status(ALL[:4], ALL[4:]), status(ALL[4:], ALL[:4])
    assert is_whole([a, b], 1_000 - SETTLE_MS - 1)
    assert not is_whole([a, b], 1_000 - SETTLE_MS)
    assert not is_whole([a, status(ALL[4:], ALL[:4], lag=1)], 0)


def test_pause_of_a_task_is_from_its_last_close_elsewhere_to_its_start() -> None:
    c = status(["0_1", "1_2"], [], times={"0_1": {"running": 500}, "1_2": {"running": 700}})
    a = status([], [], times={"0_1": {"closed": 100}, "1_2": {"closed": 640}})
    b = status([], [], times={"0_1": {"closed": 460}})
    assert sorted(pauses(c, [a, b])) == [40, 60]
    assert pauses(c, [b]) == [40], "of the other one the close is not known yet"


def test_process_that_runs_all_tasks_has_their_counts_once_it_has_committed_them() -> None:
    committed = {task: {"running": 1, "committed": 2} for task in ALL[: TASKS // 2]}
    assert has_all(status(ALL, [], times=committed))
    assert not has_all(status(ALL[1:], ALL[:1], times=committed))
    assert not has_all(status(ALL, [], times=committed | {ALL[1]: {"running": 1}}))


def test_times_are_those_after_the_kill() -> None:
    b = status([], [], times={"0_1": {"running": 50}, "0_2": {"running": 900}})
    c = status([], [], times={"0_1": {"running": 800}, "0_3": {"restoring": 850}})
    assert times("running", ["0_1", "0_2", "0_3"], [b, c], 100) == [800, 900]
    assert times("first", ["0_1"], [b, c], 100) == []


def test_task_taken_over_is_seen_and_a_hand_over_is_none() -> None:
    assert status([], [], moves=("start", "warm-up", "hand-over")).taken_over(0) == ""
    assert status([], [], moves=("start", "take-over")).taken_over(0) == "0_1"
    assert status([], [], moves=("start", "take-over")).taken_over(1) == "", "it was before"
    unread = Status(status={"placement": {"error": "damaged"}})
    assert (Status().taken_over(0), unread.taken_over(0), unread.generation) == ("", "", 0)


def test_tally_has_the_times_of_a_tasks_last_life_as_active() -> None:
    clock = ManualClock(0)
    tally = Tally(clock=clock)
    for role, state in (("standby", "standby"), ("active", "restoring"), ("active", "running"), ("active", "closed")):
        clock.advance(10)
        tally.on_state_changed(TaskId(0, 1), role, state)
    assert tally.times == {"0_1": {"restoring": 20, "running": 30, "closed": 40}}
    clock.advance(10)
    tally.on_state_changed(TaskId(0, 1), "active", "restoring")
    assert tally.times == {"0_1": {"restoring": 50}}
    for _ in range(2):
        clock.advance(10)
        tally.count("0_1")
        tally.on_commit(TaskId(0, 1), {})
    assert (tally.times, tally.processed) == ({"0_1": {"restoring": 50, "first": 60, "committed": 70}}, 2)


class Stopping(Display):
    """Stops the process of A, and that which renews its lease, as soon as B has joined."""

    stopped: Sequence[int] = ()

    def event(self, text: str, *, loud: bool = False) -> None:
        """See Display."""
        super().event(text, loud=loud)
        if text.startswith("A (pid "):
            self.pid = int(text.split()[2].rstrip(")"))
        elif text.startswith("B (pid "):
            lists = Path(f"/proc/{self.pid}/task").glob("*/children")
            self.stopped = [self.pid, *(int(pid) for one in lists for pid in one.read_text().split())]
            for pid in self.stopped:
                os.kill(pid, signal.SIGSTOP)


@pytest.mark.slow
def test_process_that_is_held_up_before_the_kill_ends_the_demo_with_the_reason(tmp_path: Path) -> None:
    data = read_flights("sample", 400)
    settings, display = settings_for(data), Stopping(Console(file=StringIO()))
    with (
        closing(open_log(log_address(tmp_path))) as log,
        closing(Feeder(log, TOPIC, PARTITIONS, data.flights, lead_for(len(data.flights)))) as feeder,
        closing(LogView(log, settings)) as view,
    ):
        course = Course(tmp_path, log.address, settings, feeder, view, display, SystemClock(), 0)
        try:
            with pytest.raises(Unavailable, match=r"taken over before A was killed: .* than its lease of 1200 ms"):
                course.run()
            assert course.killed is None
        finally:
            for pid in display.stopped:
                os.kill(pid, signal.SIGCONT)
            course.abandon()
    assert len(display.stopped) == 2
