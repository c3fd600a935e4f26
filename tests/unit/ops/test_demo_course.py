"""The course of the demo where a process is held up or ends: it goes on, or says which one ended.

Rules of this file: real processes on the embedded log over few flights; the whole run is in `test_demo_run.py`.
"""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from standfast.ops.demo.board import PARTITIONS, TOPIC
from standfast.ops.demo.course import Course
from standfast.ops.demo.feeder import Feeder
from standfast.ops.demo.flights import read_flights
from standfast.ops.demo.run import lead_for, settings_for
from standfast.ops.demo.view import LogView
from standfast.replication.tail.open_log import open_log
from standfast.store.clock import SystemClock
from standfast.store.errors import Unavailable

pytestmark = pytest.mark.slow


@pytest.fixture
def course(tmp_path: Path) -> Iterator[Course]:
    data, clock = read_flights("sample", 400), SystemClock()
    settings = settings_for(data)
    with (
        closing(open_log(f"sqlite:///{tmp_path}/log.db")) as log,
        closing(LogView(log, settings, clock)) as view,
        closing(Feeder(log, TOPIC, PARTITIONS, data.flights, lead_for(len(data.flights)), view.settled)) as feeder,
    ):
        yield Course(tmp_path, log.address, settings, feeder, view, lambda _: None, lambda _: None, clock)


def process_of(course: Course, name: str) -> Sequence[int]:
    """A process of the demo, and that which renews its lease."""
    pid = course._live[name].pid
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return [pid, *(int(one) for children in lists for one in children.read_text().split())]


def test_process_that_is_held_up_for_longer_than_its_lease_gets_its_tasks_back(course: Course) -> None:
    stopped: list[int] = []

    def say(text: str) -> None:
        if text.startswith("B joined"):  # until B has taken all of its tasks over
            stopped.extend(process_of(course, "a"))
            with (course.folder / "log.db.lock").open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # so that A does not hold the log's lock meanwhile
                for pid in stopped:
                    os.kill(pid, signal.SIGSTOP)
            course._until("B to take over", lambda: len(course._tasks("b")) == 2 * PARTITIONS)
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)

    course.say = say
    found = course.run()
    assert len(stopped) == 2
    assert found["takeover"]["tasks"] == PARTITIONS and found["board"]["flights"] == 400


def test_process_that_ends_on_its_own_ends_the_demo_with_its_name(course: Course) -> None:
    def say(text: str) -> None:
        if text.startswith("A runs"):
            os.kill(course._live["a"].pid, signal.SIGKILL)

    course.say = say
    with pytest.raises(Unavailable, match=r"process A ended with signal 9"):
        course.run()
