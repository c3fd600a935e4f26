"""The word of the lease process, which ends the lease of its owner once that has ended, and of no other process.

Rules of this file: real processes and real signals. Leases are so long that no test passes by one that runs out.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from standfast.replication.placement.topic import PlacementTopic
from standfast.store.clock import SystemClock
from support.lease import Leases, Member
from support.processes import has_ended
from support.waits import until

LONG_MS = 120_000
LEASES = pytest.mark.parametrize("leases", ["sqlite", pytest.param("kafka", marks=pytest.mark.kafka)], indirect=True)
GUARANTEES = pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
pytestmark = pytest.mark.slow


def killed(member: Member) -> None:
    member.process.kill()
    member.process.wait()


@LEASES
@GUARANTEES
def test_standby_takes_over_from_a_killed_owner_long_before_its_lease_runs_out(leases: Leases, guarantee: str) -> None:
    first, second = leases.pair(lease_ms=LONG_MS, guarantee=guarantee)
    keeper = first.status["keeper"]
    killed(first)
    until(lambda: second.is_("active running"), "the standby has the task", 20)
    until(lambda: has_ended(keeper), "its lease process has ended", 5)
    leases.feed(50)
    until(leases.whole, "all is processed")
    if guarantee == "exactly_once":
        assert set(leases.out().values()) == {1}
    assert (second.status["promotions"], second.status["lost"], second.status["wipes"]) == (1, {}, {})


@LEASES
def test_word_that_comes_after_the_next_start_of_the_instance_does_it_no_harm(leases: Leases) -> None:
    first = leases.start("a", lease_ms=LONG_MS)
    until(lambda: first.is_("active running"), "it has the task")
    keeper = first.status["keeper"]
    leases.freeze(keeper)
    killed(first)
    again = leases.start("a", lease_ms=LONG_MS)
    until(lambda: again.is_("active running"), "the next process has the task")
    before = leases.log.group(leases.app).view().generation
    os.kill(keeper, signal.SIGCONT)
    until(lambda: has_ended(keeper), "the late one has ended", 10)
    view = leases.log.group(leases.app).view()
    assert (len(view.members), view.generation) == (1, before)
    leases.feed(10)
    until(leases.whole, "all is processed")
    assert again.status["lost"] == {}


def test_child_that_an_owner_forked_holds_nothing_back(leases: Leases) -> None:
    first, second = leases.pair(lease_ms=LONG_MS)
    first.order(fork_s=30)
    time.sleep(0.5)
    killed(first)
    until(lambda: second.is_("active running"), "the standby has the task", 20)


@LEASES
def test_owner_that_becomes_another_program_ends_its_lease_or_lets_it_run_out(leases: Leases) -> None:
    """Its threads end, and its process lives on: a hint, which counts where the log fences each write."""
    first, second = leases.pair(lease_ms=2_000, guarantee="at_least_once")
    keeper = first.status["keeper"]
    first.order(exec_s=60)
    until(lambda: second.is_("active running"), "the standby has the task", 30)
    until(lambda: has_ended(keeper), "the lease process has ended", 5)
    leases.feed(10)
    until(leases.whole, "all is processed")


@LEASES
def test_lease_runs_out_where_the_lease_process_was_killed_before_its_owner(leases: Leases) -> None:
    first, second = leases.pair(lease_ms=2_000)
    os.kill(first.status["keeper"], signal.SIGKILL)
    killed(first)
    until(lambda: second.is_("active running"), "the standby has the task", 30)
    leases.feed(10)
    until(leases.whole, "all is processed")


def test_lease_process_that_hangs_ends_within_a_second_of_its_owner(leases: Leases) -> None:
    first, _ = leases.pair(lease_ms=LONG_MS)
    keeper = first.status["keeper"]
    with (leases.root / "log.sqlite.lock").open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # as of another process that is stopped: each call to the log waits
        time.sleep(0.5)
        first.process.kill()
        began_s = time.monotonic()
        until(lambda: has_ended(keeper), "it has ended", 5)
        assert time.monotonic() - began_s < 3


NAMESPACE = ("unshare", "--fork", "--pid", "--mount-proc", "--kill-child")


def test_owner_that_is_the_first_of_its_pid_namespace_says_so_and_its_lease_runs_out(leases: Leases) -> None:
    """The kernel ends its lease process with it."""
    first = leases.start("a", NAMESPACE, lease_ms=2_000)
    until(lambda: first.is_("active running"), "it has the task")
    second = leases.start("b", lease_ms=2_000)
    until(lambda: second.is_("standby standby"), "the second stands by")
    assert "the first of its PID namespace" in first.err.read_text()
    killed(first)
    until(lambda: second.is_("active running"), "the standby has the task", 30)
    assert "PID namespace" not in second.err.read_text()


PROGRAM = """
import standfast as sf

counts = sf.KeyValueStore("counts", sf.serde.string, sf.serde.int64)
app = sf.App("{app}", log="{log}", state_dir="unset", lease_ms=120_000, standby_replicas=1, stores=[counts])
stream = app.stream("{app}-in", key=sf.serde.string, value=sf.serde.string)
stream.group_by_key().count("counts").to_stream().to("{app}-out", key=sf.serde.string, value=sf.serde.int64)
"""


def child_of(pid: int) -> int:
    """The one child of a process, once there is one."""
    path = Path(f"/proc/{pid}/task/{pid}/children")
    until(path.read_text, "the process has a child")
    return int(path.read_text().split()[0])


def test_command_that_is_the_first_of_its_pid_namespace_is_the_init_of_its_application(leases: Leases) -> None:
    (leases.root / "program.py").write_text(PROGRAM.format(app=leases.app, log=leases.address))
    topic = PlacementTopic(leases.log, leases.app, "-", SystemClock(), acceptable_lag=10_000)

    def start(name: str, *below: str) -> subprocess.Popen[bytes]:
        command = [*below, sys.executable, "-m", "standfast.ops.cli", "run", "program:app", "--set"]
        with (leases.root / f"{name}.log").open("wb") as stderr:
            state = f"app.state_dir={leases.root / name}"
            return subprocess.Popen([*command, state], cwd=leases.root, stderr=stderr)

    def said(name: str) -> str:
        return (leases.root / f"{name}.log").read_text()

    def stands_by() -> bool:
        found = topic.look_whole()
        reports = [] if found is None else [found.report(name) for name in found.reporters()]
        return any(one is not None and one.lags for one in reports)

    first = start("a", *NAMESPACE)
    until(lambda: "task 0_0 runs here" in said("a"), "the first has the task", 30)
    leases.feed(20)
    second = start("b")
    until(stands_by, "the second stands by")
    os.kill(child_of(child_of(first.pid)), signal.SIGKILL)
    until(lambda: "task 0_0 runs here" in said("b"), "the standby has the task", 20)
    assert first.wait(10) == 128 + signal.SIGKILL
    assert "PID namespace" not in said("a")
    third = start("c", *NAMESPACE)
    until(lambda: "runs as instance" in said("c"), "the third is open")
    os.kill(child_of(third.pid), signal.SIGTERM)
    assert third.wait(30) == 0
    second.terminate()
    assert second.wait(30) == 0
    topic.close()
