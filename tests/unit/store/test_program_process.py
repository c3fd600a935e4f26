"""A program as a child process: its channel, its standard streams, and its end with its parent.

Rules of this file: real processes, really killed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from standfast.store.clock import SystemClock
from standfast.store.process.child import json_line, json_object
from standfast.store.process.program import ProgramProcess
from support.serve import wait_for

pytestmark = pytest.mark.slow
WAIT_S = 60.0
Program = ProgramProcess[dict[str, Any]]

CHILD = """
import json, os, subprocess, sys
from standfast.store.process.parent import CHANNEL_VARIABLE, Parent, lent_channel
print("a line before the channel is called for")
asks = "from standfast.store.process.parent import lent_channel; print(lent_channel())"
inherited = subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True).stdout.strip()
channel = lent_channel()
parent = Parent(50, channel)
again, variable = lent_channel(), CHANNEL_VARIABLE in os.environ
handles = [os.get_inheritable(one) for one in channel if one >= 0]
parent.tell(json.dumps({"inherited": inherited, "again": str(again), "variable": variable, "handles": handles,
                        "stdin": sys.stdin.read(), "cwd": os.getcwd(), "args": sys.argv[1:]}).encode() + b"\\n")
while True:
    for line in parent.orders(None):
        order = json.loads(line)
        if order["do"] == "echo":
            parent.tell(line + b"\\n")
        elif order["do"] == "fail":
            raise RuntimeError("the program cannot go on")
        elif order["do"] == "exit":
            sys.exit(order["code"])
"""
HANGS = "import time; time.sleep(120)"


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[Program]]:
    made: list[Program] = []
    yield made
    for one in made:
        one.kill()


def start(made: list[Program], folder: Path, text: str = CHILD, *arguments: str) -> Program:
    command = (sys.executable, "-c", text, *arguments)
    made.append(ProgramProcess(command, str(folder), parse=json_object, clock=SystemClock()))
    return made[-1]


def hear(program: Program, count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    def heard() -> bool:
        found.extend(program.poll(100))
        return len(found) >= count or program.ended is not None

    wait_for(heard, WAIT_S)
    return found


def test_program_gets_its_channel_once_and_neither_its_children_nor_its_streams_have_it(
    started: list[Program], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = start(started, tmp_path, CHILD, "--day", "3")
    (said,) = hear(program, 1)
    assert said["inherited"] == "None", "a process that the program started is no worker"
    assert (said["again"], said["variable"]) == ("None", False)
    assert not any(said["handles"])
    assert said["stdin"] == ""
    assert said["cwd"] == str(tmp_path)
    assert said["args"] == ["--day", "3"]
    program.order(json_line({"do": "echo", "number": 7}))
    assert hear(program, 1) == [{"do": "echo", "number": 7}]
    program.order(json_line({"do": "exit", "code": 3}))
    hear(program, 1)
    assert str(program.ended) == "exit code 3"
    assert "a line before the channel is called for" in capfd.readouterr().out


def test_standard_error_is_passed_on_and_its_end_stands_in_the_error(
    started: list[Program], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = start(started, tmp_path)
    hear(program, 1)
    program.order(json_line({"do": "fail"}))
    hear(program, 1)
    assert program.ended is not None
    assert program.ended.code == 1
    assert program.ended.words.endswith("RuntimeError: the program cannot go on")
    # Kafka clients of earlier tests may write lines of their own to the standard error of this process.
    assert "RuntimeError: the program cannot go on" in capfd.readouterr().err.splitlines()


def test_program_that_floods_its_standard_error_neither_hangs_nor_fills_memory(
    started: list[Program], tmp_path: Path
) -> None:
    program = start(started, tmp_path, "import sys\nfor at in range(50_000): print('line', at, file=sys.stderr)")
    hear(program, 1)
    assert program.ended is not None
    assert program.ended.code == 0
    assert program.ended.words.splitlines()[-1] == "line 49999"
    assert len(program.ended.words) <= 4_000


def test_reason_of_a_parent_that_gives_a_program_up_stands_in_its_end(started: list[Program], tmp_path: Path) -> None:
    program = start(started, tmp_path, HANGS)
    program.give_up("it was silent")
    hear(program, 1)
    assert str(program.ended) == "signal 9: it was silent"


def test_program_that_does_not_exist_is_an_error_that_names_it(started: list[Program], tmp_path: Path) -> None:
    started.append(ProgramProcess(("/absent/python", "x"), str(tmp_path), parse=json_object, clock=SystemClock()))
    hear(started[-1], 1)
    assert started[-1].ended is not None
    assert started[-1].ended.code == 1
    assert started[-1].ended.words == "/absent/python cannot be started: No such file or directory"


def test_program_that_hangs_before_it_calls_for_its_channel_ends_with_its_parent(tmp_path: Path) -> None:
    parent = f"""
import sys
from standfast.store.clock import SystemClock
from standfast.store.process.child import json_object
from standfast.store.process.program import ProgramProcess
one = ProgramProcess((sys.executable, "-c", {HANGS!r}), {str(tmp_path)!r}, parse=json_object, clock=SystemClock())
print(one.pid, flush=True)
sys.stdin.read()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]
    )
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    wait_for(lambda: b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes(), WAIT_S)  # past the launcher
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        pipe.close()
    wait_for(lambda: not Path(f"/proc/{pid}").exists(), WAIT_S)


def test_signal_number_of_a_killed_program_is_its_end(started: list[Program], tmp_path: Path) -> None:
    program = start(started, tmp_path)
    hear(program, 1)
    os.kill(program.pid, signal.SIGKILL)
    hear(program, 1)
    assert str(program.ended) == "signal 9"
    assert json.loads(json.dumps(program.poll())) == []
