"""Records that end their process, on both logs: named, counted, and left out, or their task given up.

Rules of this file: real signals, in one process and in workers. Moments come from the log and from lines of processes.
"""

from __future__ import annotations

import os
import re
import signal
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from standfast.stream.deaths.deaths import DEATHS_MAX
from support.crash.deadly import MET, Deadly
from support.serve import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.crash, pytest.mark.timeout(600)]
PATIENCE_S = 120
SKIP = {"source": {"on_error": "skip"}}
STALLS = {"stall_ms": 6_000}  # of records that hang; longer than the clean end of a process takes
GIVEN_UP = "task 0_0 is given up, the others go on"
Make = Callable[..., Deadly]


@pytest.fixture(params=["embedded", pytest.param("kafka", marks=[pytest.mark.kafka, pytest.mark.long])])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    made: list[Deadly] = []

    def make(**settings: Any) -> Deadly:
        embedded = f"sqlite:///{tmp_path}/log?synchronous=normal"
        address = embedded if request.param == "embedded" else f"kafka://{request.getfixturevalue('kafka_address')}"
        made.append(Deadly(tmp_path, address, f"deadly-{uuid.uuid4().hex[:6]}", **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


def kept(deadly: Deadly, found: Callable[[], object]) -> None:
    """Wait, and start processes again that have ended."""

    def look() -> object:
        deadly.keep()
        return found()

    wait_for(look, PATIENCE_S)


def stalls(how: str) -> dict[str, int]:
    return STALLS if how == "hang" else {}


def settled(deadly: Deadly) -> None:
    """The notes go once a commit is past the record; then all ends well."""
    kept(deadly, lambda: not deadly.deaths())
    deadly.end()


@pytest.mark.long
def test_record_that_ends_its_worker_is_left_out_after_five_deaths_and_the_others_go_on(make: Make) -> None:
    deadly = make(workers=2, **SKIP)
    deadly.feed(0, "a", "b", "segv", "c")
    deadly.feed(1, "x")
    deadly.start("a")
    kept(deadly, lambda: deadly.written() == ["a", "b", "c", "x"])
    said = deadly.said()
    held = f"record {deadly.app}-in-0 at offset 2 (task 0_0) was in hand, death 5 of {DEATHS_MAX} there"
    assert f"worker 1 ended (signal 11; {held})" in said or f"worker 2 ended (signal 11; {held})" in said
    assert said.count(MET) == DEATHS_MAX
    assert "5 processes died with it in hand (5 by signal 11, SIGSEGV on instance" in said
    settled(deadly)


@pytest.mark.long
def test_two_instances_count_together_although_one_lost_its_state_directory(make: Make) -> None:
    deadly = make(source={"on_error": "dead_letter", "dead_letter": "unused"})
    deadly.settings["source"]["dead_letter"] = f"{deadly.app}-dead"
    deadly.feed(0, "a", "abort", "c")
    for name in ("a", "b"):
        deadly.start(name)
    kept(deadly, lambda: len(deadly.deaths()) >= 2)
    deadly.lose("a")
    deadly.start("a")
    kept(deadly, lambda: deadly.written() == ["a", "c"])
    assert deadly.written("dead") == ["abort"]
    settled(deadly)


@pytest.mark.long
def test_task_whose_record_ends_processes_is_given_up_alone_and_goes_on_by_the_command(make: Make) -> None:
    deadly = make()
    deadly.feed(0, "a", "segv", "c")
    deadly.feed(1, "x")
    deadly.start("a")
    kept(deadly, lambda: GIVEN_UP in deadly.said())
    assert "in string_at" in deadly.said().rpartition("task 0_0 is given up")[2], "the stack of the thread"
    deadly.feed(1, "y")
    kept(deadly, lambda: deadly.written() in (["x", "y"], ["a", "x", "y"]))
    deadly.settings |= SKIP
    process = deadly.processes["a"]
    process.terminate()
    assert process.wait(PATIENCE_S) == 0
    assert deadly.go_on("0_0") == 0
    kept(deadly, lambda: deadly.written() == ["a", "c", "x", "y"])
    settled(deadly)


@pytest.mark.long
@pytest.mark.parametrize("how", ["exit", "hang"])
def test_exit_and_stall_are_the_record_s_own_doing(how: str, make: Make) -> None:
    deadly = make(workers=2, step={"on_error": "skip", "name": "work"}, **stalls(how))
    deadly.feed(0, "a", how, "c")
    deadly.start("a")
    kept(deadly, lambda: deadly.written() == ["a", "c"])
    assert "(task 0_0, step 'work') was in hand" in deadly.said()
    settled(deadly)


@pytest.mark.long
def test_stall_of_a_single_process_is_noted_by_itself_and_its_kill_counts_no_second_time(make: Make) -> None:
    deadly = make(**SKIP, **STALLS)
    deadly.feed(0, "a", "hang", "c")
    deadly.start("a")
    for stalls in range(1, DEATHS_MAX + 1):
        kept(deadly, partial(noted, deadly, stalls))
        deadly.processes["a"].kill()
        deadly.processes["a"].wait()
    kept(deadly, lambda: deadly.written() == ["a", "c"])
    assert deadly.said().count(MET) == DEATHS_MAX
    settled(deadly)


def noted(deadly: Deadly, number: int) -> bool:
    found = deadly.deaths()
    assert all(one.own for one in found)
    return len(found) == number


@pytest.mark.long
def test_record_that_ends_its_process_in_a_serde_is_found_among_those_decoded_with_it(make: Make) -> None:
    deadly = make(**SKIP)
    deadly.feed(0, "a", "b", "serde", "c")
    deadly.start("a")
    kept(deadly, lambda: deadly.written() == ["a", "b", "c"])
    assert deadly.said().count(MET) == DEATHS_MAX + 1, "the first one could be of any of them"
    settled(deadly)


@pytest.mark.long
@pytest.mark.parametrize("how", ["exit", "hang", "segv", "serde"])
def test_two_instances_with_workers_leave_the_record_out(how: str, make: Make) -> None:
    deadly = make(workers=2, **SKIP, **stalls(how))
    deadly.feed(0, "a", how, "c")
    deadly.feed(1, "x")
    for name in ("a", "b"):
        deadly.start(name)
    kept(deadly, lambda: deadly.written() == ["a", "c", "x"])
    # In a serde the first one could be of any of the records that are decoded at once.
    assert deadly.said("a", "b").count(MET) == DEATHS_MAX + (how == "serde")
    settled(deadly)


@pytest.mark.long
@pytest.mark.parametrize("names", ["a", "ab"])
def test_kills_from_outside_at_a_slow_record_leave_no_record_out(names: str, make: Make) -> None:
    deadly = make(workers=2, **SKIP)
    deadly.feed(0, "a", "slow", "c")
    for name in names:
        deadly.start(name)

    def count(words: str) -> int:
        return deadly.said(*names).count(words)

    killed: set[int] = set()
    for kills in range(1, 21):
        given_up = count(GIVEN_UP)  # each instance says so that opens the task
        kept(deadly, lambda kills=kills: count(MET) == kills)
        [pid] = {int(one) for one in re.findall(rf"{MET} (\d+)", deadly.said(*names))} - killed
        killed.add(pid)
        os.kill(pid, signal.SIGKILL)
        if kills % DEATHS_MAX == 0:
            kept(deadly, lambda given_up=given_up: count(GIVEN_UP) > given_up)
            assert deadly.go_on("0_0") == 0
    kept(deadly, lambda: deadly.written() == ["a", "c", "slow"])
    settled(deadly)
