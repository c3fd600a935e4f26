"""Lines that an application and its child processes write to stderr while it runs: one JSON object each, by setting.

Rules of this file: real processes; the child is killed by the id that the kernel names for the process started here.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from support.away import stopped
from support.serve import Sidecars, wait_for

pytestmark = pytest.mark.slow

PROGRAM = """
import logging, sys
import standfast as sf

folder, form, own = sys.argv[1:]
if own == "own":
    logging.basicConfig(level="INFO", format="MINE %(name)s %(message)s")
app = sf.App(
    "lines", log=f"sqlite:///{folder}/log", state_dir=f"{folder}/state", create_topics=True,
    log_format=form or None, restart=sf.FixedDelay(1, 10),
)

@app.source("in")
class Board(sf.Processor):
    def process(self, record):
        raise KeyError("wrong value")

if own == "fails":
    with app.producer() as producer:
        producer.send("in", "ada", 1)
try:
    app.run()
except KeyError:
    pass
"""


def start(folder: Path, form: str = "", own: str = "", **environment: str) -> subprocess.Popen[str]:
    with (folder / "lines").open("w") as lines:
        command = [sys.executable, "-P", "-c", PROGRAM, str(folder), form, own]
        return subprocess.Popen(command, stderr=lines, text=True, env=os.environ | environment)


def lines_of(folder: Path) -> list[str]:
    return (folder / "lines").read_text().splitlines()


def children(pid: int) -> list[int]:
    """Processes that any thread of a process has started."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for one in threads for child in (one / "children").read_text().split()]


@pytest.mark.parametrize(("form", "environment"), [("json", {}), ("", {"STANDFAST_LOGGING__FORMAT": "json"})])
def test_each_line_of_a_run_is_an_event_for_programs(tmp_path: Path, form: str, environment: dict[str, str]) -> None:
    assert start(tmp_path, form, "fails", **environment).wait(60) == 0
    found: list[dict[str, Any]] = [json.loads(line) for line in lines_of(tmp_path)]
    events = [one["event"] for one in found]
    # The session's thread claims the lead, and the program's thread tells the start: either may come first.
    assert sorted(events[:2]) == ["app_started", "lead_claimed"]
    assert events[2:] == [*["task_started"] * 4, "task_failed", "task_started", "task_given_up", "app_failed"]
    failed = found[events.index("task_failed")]
    assert failed["level"] == "error" and failed["logger"] == "standfast" and failed["failures"] == 1
    assert failed["task"].startswith("0_") and failed["source"].startswith("in-") and failed["restart_ms"] == 10
    assert failed["error"] == "KeyError" and "wrong value" in failed["traceback"]
    started = found[events.index("app_started")]
    assert started["app"] == "lines" and started["instance"] in started["message"]


def test_end_of_a_child_and_of_the_run_are_events_for_programs(tmp_path: Path) -> None:
    process = start(tmp_path, "json")
    try:
        wait_for(lambda: any("task_started" in line for line in lines_of(tmp_path)), 60)
        (lease,) = children(process.pid)
        os.kill(lease, signal.SIGKILL)
        wait_for(lambda: any("lease_process_ended" in line for line in lines_of(tmp_path)), 60)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
    assert json.loads(lines_of(tmp_path)[-1])["event"] == "app_ended"
    assert all(json.loads(line)["event"] for line in lines_of(tmp_path))


def test_logging_of_the_program_stays_as_the_program_has_set_it_up(tmp_path: Path) -> None:
    process = start(tmp_path, "json", "own", STANDFAST_LOGGING__FORMAT="json")
    try:
        wait_for(lambda: any("runs here" in line for line in lines_of(tmp_path)), 60)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
    assert all(line.startswith("MINE standfast ") for line in lines_of(tmp_path))


@pytest.mark.parametrize("given", ["flag", "environment"])
def test_each_line_of_a_sidecar_and_of_its_worker_is_an_event_for_programs(sidecars: Sidecars, given: str) -> None:
    sidecar = sidecars.make()
    if given == "flag":
        sidecar.command += ["--log-format", "json"]
    sidecar.start({} if given == "flag" else {"STANDFAST_LOGGING__FORMAT": "json"})
    sidecar.declare(partitions=2)
    sidecar.assign(1, (0,), (1,), lease_ms=600_000)
    sidecar.wait_ready()

    def lines() -> list[dict[str, Any]]:
        *whole, _ = sidecar.log_path.read_text().split("\n")
        return [json.loads(line) for line in whole]

    with stopped(sidecars.root / "log", "ours"):
        wait_for(lambda: {sidecar.pid} < {one["pid"] for one in lines() if one["level"] == "warning"}, 60)

    def killed_and_told() -> bool:
        for worker in sidecar.worker_pids():
            # The outage may have ended it already, and the server may not have started the next one yet.
            with suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
        return "standby_worker_ended" in {one["event"] for one in lines()}

    wait_for(killed_and_told, 60)
    assert sidecar.stop() == 0
    assert {"serving", "/v1/assignment", "stop_requested"} <= {one["event"] for one in lines()}


@pytest.mark.parametrize(
    "module",
    ["replication.lease.worker", "ops.sidecar.worker.worker"],
)
def test_error_that_ends_a_child_process_is_an_event_for_programs(module: str) -> None:
    command = [sys.executable, "-P", "-m", f"standfast.{module}"]
    environment = os.environ | {"STANDFAST_PARENT_LINES": "json 20"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment
    ) as process:
        try:
            assert process.stdin is not None and process.stderr is not None
            process.stdin.write(b"rubbish\n")
            process.stdin.flush()
            line = json.loads(process.stderr.readline())
            assert process.wait(60) == 1
        finally:
            process.kill()
    assert (line["event"], line["level"], line["pid"]) == ("process_failed", "error", process.pid)
    assert line["error"] in line["traceback"]
