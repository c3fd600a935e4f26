"""A child process and its parent: the view of each when the other hangs, floods it or dies.

Rules of this file: real processes, really killed. Silence is judged by the test's own clock.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from standfast.store.clock import Clock, ManualClock, SystemClock
from standfast.store.errors import InternalError
from standfast.store.process.child import (
    ORDERS_BYTES_MAX,
    RESTART_MS,
    WELL_MS,
    WORDS_BYTES,
    ChildProcess,
    ChildSilence,
    Ended,
    Restarts,
    json_line,
    json_object,
    memory_kills,
)
from support.child_program import FLOOD_LINES, MODULE
from support.places import TESTS
from support.processes import has_ended
from support.serve import wait_for

pytestmark = pytest.mark.slow
WAIT_S = 60.0
Child = ChildProcess[dict[str, Any]]
Start = Callable[..., Child]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    children: list[Child] = []

    def start(*arguments: str, clock: Clock | None = None, **settings: Any) -> Child:
        words = arguments or ("child",)
        children.append(ChildProcess(MODULE, words, parse=json_object, clock=clock or SystemClock(), **settings))
        return children[-1]

    yield start
    for child in children:
        child.kill()


def told(child: Child, wanted: str) -> list[dict[str, Any]]:
    """Answers up to one with this name."""
    found: list[dict[str, Any]] = []
    wait_for(lambda: any(wanted in one for one in hear(child, found)), WAIT_S)
    return found


def hear(child: Child, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found += child.poll(100)
    return found


def ended(child: Child, found: list[dict[str, Any]] | None = None) -> str:
    """The exit, once the child has ended."""
    wait_for(lambda: hear(child, [] if found is None else found) is not None and child.ended is not None, WAIT_S)
    return str(child.ended)


def order(child: Child, do: str, **fields: Any) -> None:
    child.order(json_line({"do": do} | fields))


@pytest.fixture
def words(tmp_path: Path) -> BinaryIO:
    return (tmp_path / "words").open("w+b")


def test_orders_from_several_threads_arrive_whole_each_once(start: Start) -> None:
    child = start()

    def give(name: int) -> None:
        for number in range(50):
            order(child, "echo", name=name, number=number, pad="x" * 3_000)

    threads = [threading.Thread(target=give, args=(name,)) for name in range(2)]
    for thread in threads:
        thread.start()
    found: list[dict[str, Any]] = []
    wait_for(lambda: len(hear(child, found)) == 100, WAIT_S)
    for thread in threads:
        thread.join()
    for name in range(2):
        assert [one["number"] for one in found if one["name"] == name] == list(range(50))
    assert all(len(one["pad"]) == 3_000 for one in found)


def test_what_else_a_child_prints_does_not_come_between_its_answers(start: Start, words: BinaryIO) -> None:
    child = start(stderr=words)
    order(child, "print")
    assert told(child, "printed") == [{"printed": True}]
    order(child, "fail")
    assert ended(child) == "exit code 1"
    assert child.ended is not None
    assert child.ended.words.splitlines()[:2] == ["a library prints", "and a C extension, too"]
    assert child.ended.words.endswith("RuntimeError: the child cannot go on")
    assert words.closed


def test_child_that_stops_is_heard_to_its_last_answer(start: Start) -> None:
    """Its answers are more than a pipe holds: without a reader it would wait for ever."""
    child = start()
    found = child.stop(json_line({"do": "stop", "answers": 500, "code": 3}), round(WAIT_S * 1_000))
    assert [one["last"] for one in found] == list(range(500))
    assert str(child.ended) == "exit code 3"
    assert child.stop(b"\n", 1) == child.poll() == child.kill() == []


def test_child_that_does_not_stop_in_time_is_killed_and_its_end_says_so(start: Start, clock: ManualClock) -> None:
    child = start(clock=clock)
    order(child, "work", seconds=WAIT_S)
    told(child, "began")
    child.stop(json_line({"do": "stop", "answers": 0, "code": 0}), 300)
    assert str(child.ended) == "signal 9: it did not stop within 300 ms"


def test_killed_child_is_an_end_after_what_it_had_said(start: Start) -> None:
    child, found = start(), []  # type: ignore[var-annotated]
    order(child, "echo", number=1)
    order(child, "kill")
    assert ended(child, found) == "signal 9"
    assert [one["number"] for one in found] == [1]
    order(child, "echo")  # has no receiver, and is no error


def test_kill_returns_what_the_child_had_said(start: Start) -> None:
    child = start()
    order(child, "echo", number=1)
    wait_for(lambda: child._process.poll() is None and _readable(child), WAIT_S)
    assert child.kill() == [{"do": "echo", "number": 1}]
    assert str(child.ended) == "signal 9"
    assert not Path(f"/proc/{child.pid}").exists(), "it is waited for"


def test_heartbeats_go_on_while_the_child_works(start: Start, clock: ManualClock) -> None:
    child = start("child", "20", clock=clock, silence=ChildSilence(60_000, 1_000))
    order(child, "work", seconds=1)
    told(child, "began")
    for _ in range(20):  # ten times as long as it may be silent
        clock.advance(500)
        wait_for(lambda: not child.poll(100) and child.heard_ms == clock.monotonic_ms(), WAIT_S)
    assert child.ended is None
    assert told(child, "worked") == [{"worked": True}]


def test_child_that_hangs_is_killed_after_its_silence(start: Start, clock: ManualClock) -> None:
    child = start("child", "20", clock=clock, silence=ChildSilence(60_000, 1_000))
    order(child, "echo")
    told(child, "do")
    os.kill(child.pid, signal.SIGSTOP)
    wait_for(lambda: not child.poll() and not _readable(child), WAIT_S)
    clock.advance(1_000)
    child.poll()
    assert child.ended is None
    clock.advance(1)
    child.poll()
    assert str(child.ended) == "signal 9: it sent nothing for too long"


def test_child_may_take_longer_to_its_first_word(start: Start, clock: ManualClock) -> None:
    child = start(clock=clock, silence=ChildSilence(60_000, 1_000))
    os.kill(child.pid, signal.SIGSTOP)
    clock.advance(60_000)
    child.poll()
    assert child.heard_ms == clock.monotonic_ms() and child.ended is None
    clock.advance(1_001)
    child.poll()
    assert str(child.ended) == "signal 9: it sent nothing for too long"


def test_child_that_says_rubbish_is_killed_after_what_it_said_before(start: Start) -> None:
    child, found = start(), []  # type: ignore[var-annotated]
    order(child, "rubbish")
    assert ended(child, found).startswith(r"signal 9: it sent b'\x00\xffrubbish', which is not JSON")
    assert found == [{"good": True}]


def test_answer_must_be_a_json_object(start: Start) -> None:
    with pytest.raises(InternalError, match=r"it sent b'\[1\]', which is not a JSON object"):
        json_object(b"[1]")


def test_child_that_says_one_endless_line_is_killed(start: Start) -> None:
    child = start()
    order(child, "long")
    assert ended(child).startswith("signal 9: it sent a line of more than 33554432 bytes: b'xxx")


def test_child_that_takes_no_orders_does_not_make_this_process_wait(start: Start) -> None:
    child = start()
    os.kill(child.pid, signal.SIGSTOP)
    line = json_line({"do": "echo", "pad": "x" * 100_000})
    for _ in range(ORDERS_BYTES_MAX // len(line)):
        child.order(line)
    assert child.poll() == [] and child.ended is None
    for _ in range(2):
        child.order(line)
    child.poll()
    assert str(child.ended) == "signal 9: it does not read its orders"


def test_flood_of_last_words_stops_neither_process_and_its_end_is_kept(start: Start, words: BinaryIO) -> None:
    child = start(stderr=words)
    order(child, "flood")
    assert told(child, "flooded") == [{"flooded": True}]
    order(child, "fail")
    ended(child)
    assert child.ended is not None
    lines = child.ended.words.splitlines()
    assert len(child.ended.words) <= WORDS_BYTES and lines[0].startswith("line "), "whole lines"
    assert f"line {FLOOD_LINES - 1} of a flood" in lines
    assert lines[-1] == "RuntimeError: the child cannot go on"


def test_child_that_ends_without_a_word_is_an_end(start: Start) -> None:
    assert ended(start("stranger")) == "exit code 0"


def test_module_that_is_not_there_is_an_end_with_its_words(start: Start, words: BinaryIO) -> None:
    child: Child = ChildProcess("standfast.absent", parse=json_object, clock=SystemClock(), stderr=words)
    assert ended(child) == "exit code 1"
    assert child.ended is not None and "No module named standfast.absent" in child.ended.words


def test_program_that_cannot_be_started_is_an_oserror(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/no/such/python")
    before = set(Path("/proc/self/fd").iterdir())
    with pytest.raises(OSError, match="/no/such/python"):
        start()
    assert len(set(Path("/proc/self/fd").iterdir())) == len(before), "no handle is left open"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_child_ends_with_its_parent_and_lets_go_of_the_lent_lock(
    start: Start, tmp_path: Path, number: signal.Signals
) -> None:
    """It is at work, and a forked process keeps the ends of its pipes: only the parent's own end shows it."""
    command = [sys.executable, "-P", "-m", MODULE, "parent", str(tmp_path / "lock")]
    forked = None
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        try:
            assert parent.stdout is not None
            found = json.loads(parent.stdout.readline())
            child, forked = found["child"], found["forked"]
            assert not _free(tmp_path / "lock")
            os.kill(child, 0)
            parent.send_signal(number)
            parent.wait(WAIT_S)
            wait_for(lambda: has_ended(child), 5)
            wait_for(lambda: _free(tmp_path / "lock"), 5)  # its other threads may end a moment after its first one
        finally:
            parent.kill()
            if forked is not None:
                os.kill(forked, signal.SIGKILL)


@pytest.mark.parametrize(
    ("end", "says"),
    [
        (
            Ended(-9, memory_kills=2),
            "signal 9, when the kernel killed processes of this machine for want of memory",
        ),
        (Ended(-9), "signal 9"),
        (Ended(-15, memory_kills=1), "signal 15"),
        (Ended(1, memory_kills=1), "exit code 1"),
        (Ended(-9, "it is stopped", memory_kills=1), "signal 9: it is stopped"),
    ],
)
def test_end_names_the_want_of_memory_only_where_the_kernel_may_have_killed_the_child(end: Ended, says: str) -> None:
    assert (str(end), end.for_memory) == (says, "memory" in says)


def test_kills_for_want_of_memory_are_the_kernels_count(tmp_path: Path) -> None:
    (tmp_path / "vmstat").write_text("nr_free_pages 5\noom_kill 17\nballoon_inflate 0\n")
    (tmp_path / "old").write_text("nr_free_pages 5\n")
    assert [memory_kills(tmp_path / name) for name in ("vmstat", "old", "absent")] == [17, 0, 0]


def test_pause_before_a_restart_doubles_until_a_child_lives_long() -> None:
    restarts = Restarts(1_000)
    lived = [0, 0, 0, 0, WELL_MS - 1, WELL_MS, 0]
    assert [restarts.pause_ms(one) for one in lived] == [RESTART_MS, 400, 800, 1_000, 1_000, RESTART_MS, 400]


def _readable(child: Child) -> bool:
    return bool(select.select([child._stdout], [], [], 0)[0])


def _free(path: Path) -> bool:
    """Whether no process has the lock of the file."""
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True
