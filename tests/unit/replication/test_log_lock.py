"""The lock of the embedded log while its holder is stopped: waiting processes name the holder, and read on.

Rules of this file: a real process that stops itself (SIGSTOP) inside the lock, by a failpoint; the test continues or
kills it by its id.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import standfast as sf
from standfast.ops.observe.metrics_values import session_samples
from standfast.ops.observe.status import status_document
from standfast.ops.observe.status_merge import statistics_of
from standfast.ops.observe.verdict import verdict
from standfast.replication.embedded import holder as holder_module
from standfast.replication.embedded.holder import LockProgress, own_text
from standfast.replication.embedded.lock import SOON, LogLock
from standfast.replication.embedded.log import EmbeddedLog
from standfast.replication.embedded.watch import KernelLocks, kernel_locks
from standfast.replication.log import LockHolder, Outgoing, TopicPolicy
from standfast.store.errors import Unavailable
from standfast.store.failpoint import VARIABLE
from support.away import stopped
from support.embedded import T0, contents, put
from support.processes import is_stopped
from support.serve import wait_for

pytestmark = pytest.mark.slow

STORES = [sf.KeyValueStore("kv", sf.serde.string, sf.serde.string)]
WAIT_S = 30.0
EVENTS = 60  # of the profiler, of a wait until it stands in the queue
CHILD = """
import sys
from standfast.replication.embedded.log import EmbeddedLog
from standfast.replication.log import Outgoing
from standfast.replication.offsets import TopicPartition

log = EmbeddedLog(sys.argv[1])
log.producer().append({TopicPartition("board", 0): [Outgoing(b"child", b"1", 1)]})
print("written", flush=True)
"""


class Stopped:
    """A process that stopped in the middle of its append."""

    def __init__(self, path: str) -> None:
        # Opening takes the lock without reaching that place; the first write is the append.
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD, path],
            env=os.environ | {VARIABLE: "log.locked=stop:1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self.process.pid
        wait_for(lambda: is_stopped(self.pid), WAIT_S, told=lambda: "the child is stopped")

    def go_on(self) -> str:
        os.kill(self.pid, signal.SIGCONT)
        return self.process.communicate(timeout=WAIT_S)[0]

    def end(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=WAIT_S)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    with closing(EmbeddedLog(tmp_path / "log.sqlite")) as log:
        log.admin.create_topic("board", 1, TopicPolicy())
        put(log, ("a", "1"))
        yield log


@pytest.fixture
def holder(log: EmbeddedLog) -> Iterator[Stopped]:
    holder = Stopped(log.path)
    yield holder
    holder.end()


def test_commit_waits_says_for_whom_within_two_seconds_and_comes_through(
    log: EmbeddedLog, caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
) -> None:
    producer, reader = log.producer(), log.reader()
    reader.assign({T0: 0})
    holder: Stopped = request.getfixturevalue("holder")
    ends: list[object] = []
    began_s = time.monotonic()
    with caplog.at_level(logging.WARNING, "standfast"):
        writer = threading.Thread(target=lambda: ends.append(producer.append({T0: [Outgoing(b"b", b"2", 1)]})))
        writer.start()
        wait_for(
            lambda: f"process {holder.pid} for" in caplog.text,
            WAIT_S,
            told=lambda: "the log line that names the process",
        )
    assert time.monotonic() - began_s < 2 + 3  # a busy machine's share beside the two seconds
    assert "kill -CONT" in caplog.text
    (found,) = reader.fetch(10)  # meanwhile reads go on
    assert [record.key for record in found.records] == [b"a"]
    assert not ends
    assert "written" in holder.go_on()
    writer.join(WAIT_S)
    assert ends == [{T0: 3}]
    assert [record.key for record in contents(log)] == [b"a", b"child", b"b"]


def test_what_is_tried_again_anyway_is_unavailable_and_at_once_the_second_time(
    log: EmbeddedLog, request: pytest.FixtureRequest
) -> None:
    group = log.group("app")
    group.join("me", lease_ms=600_000)  # longer than a busy machine may take
    holder: Stopped = request.getfixturevalue("holder")
    with pytest.raises(Unavailable, match=f"held by process {holder.pid} for"):
        group.heartbeat("me")
    began_s = time.monotonic()
    with pytest.raises(Unavailable, match=f"process {holder.pid}"):
        group.heartbeat("me")
    assert time.monotonic() - began_s < 1.5  # at once, where the first call waited two seconds
    assert [member.member_id for member in group.view().members] == ["me"]
    with pytest.raises(Unavailable, match=f"process {holder.pid}"):
        EmbeddedLog(log.path)
    wait_for(lambda: log.lock_holder() is not None, WAIT_S, told=lambda: "it is told")
    assert (told := log.lock_holder()) is not None
    assert told.pid == holder.pid
    assert told.held_ms >= 1_000
    holder.end()  # which releases the lock
    group.join("me")
    assert log.lock_holder() is None
    assert [record.key for record in contents(log)] == [b"a"]  # the stopped write was rolled back
    assert log.integrity_check() == []


@pytest.mark.long
def test_session_reads_and_stands_by_and_names_the_process(
    log: EmbeddedLog, tmp_path: Path, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    address = log.address
    settings: dict[str, Any] = {"log": address, "stores": STORES, "partitions": 2, "lease_ms": 60_000}
    with (
        sf.Session("app", state_dir=tmp_path / "a", **settings) as active,
        sf.Session("app", state_dir=tmp_path / "b", **settings) as standby,
    ):
        active.assign(active=[0])
        active.wait_ready(WAIT_S)
        active.task(0).store("kv").put("k", "1")
        active.task(0).commit()
        standby.assign(standby=[0])
        read = lambda: standby.read("kv", 0, allow_stale=True).store.get("k")  # noqa: E731
        wait_for(lambda: read() == "1", WAIT_S, told=lambda: "the standby has it")
        holder: Stopped = request.getfixturevalue("holder")
        wait_for(lambda: standby.statistics().log_lock is not None, WAIT_S, told=lambda: "status names the process")
        statistics = standby.statistics()
        assert statistics.log_lock is not None
        assert statistics.log_lock.pid == holder.pid
        samples: dict[str, Any] = {name: value for name, _, value in session_samples(statistics)}
        assert samples["log_lock_holder_pid"] == holder.pid
        assert samples["log_lock_held_seconds"] >= 1
        document = status_document(statistics)
        assert statistics_of(document).log_lock == statistics.log_lock
        assert f"process {holder.pid} has kept all others from writing" in verdict(document).text
        began_s = time.monotonic()
        assert read() == "1"
        assert active.task(0).store("kv").get("k") == "1"
        assert time.monotonic() - began_s < 5
        wait_for(lambda: f"process {holder.pid} for" in caplog.text, WAIT_S, told=lambda: "a log line names it")
        holder.go_on()
        active.task(0).store("kv").put("k", "2")
        active.task(0).commit()
        wait_for(lambda: read() == "2", WAIT_S, told=lambda: "the standby follows again")
        wait_for(
            lambda: standby.statistics().log_lock is None, WAIT_S, told=lambda: "no process keeps the lock any more"
        )
        samples: dict[str, Any] = {name: value for name, _, value in session_samples(standby.statistics())}
        assert samples["log_lock_holder_pid"] == 0


def test_threads_of_one_connection_take_turns(log: EmbeddedLog) -> None:
    producer = log.producer()

    def work() -> None:
        for _ in range(50):
            producer.append({T0: [Outgoing(b"k", b"v", 1)]})

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(contents(log)) == 201
    assert log.integrity_check() == []


class Alarm(Exception):
    """The exception of a signal handler."""


def test_a_wait_for_the_lock_raises_what_a_signal_handler_raised_wherever_it_came(tmp_path: Path) -> None:
    """Places where Python lets handlers run: as a function of Python begins, and after a call of one of C."""
    path = str(tmp_path / "log")
    holder, waiter = LogLock(path), LogLock(path)
    places = set()
    for moment in range(EVENTS):
        count = 0

        def ring(frame: FrameType, event: str, arg: object, moment: int = moment) -> None:
            nonlocal count
            if event not in ("call", "c_return"):
                return
            if (count := count + 1) == moment + 1:
                sys.setprofile(None)
                places.add((frame.f_code.co_name, event))
                raise Alarm

        with holder.take(), pytest.raises(Alarm):
            sys.setprofile(ring)
            try:
                with waiter.take():
                    pytest.fail("two have the lock")
            finally:
                sys.setprofile(None)
        with waiter.take(SOON):
            pass  # the interrupted wait has released it
    assert ("start", "c_return") in places, "no wait was broken off as its thread began"
    assert ("done", "call") in places, "no wait was broken off after its thread had begun"


def test_program_stays_named_while_our_lock_goes_round_among_processes_that_wait_for_it(
    log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = Path(f"{log.path}.lock")

    def looked_at(where: str) -> KernelLocks | None:
        lock.write_bytes(own_text()[:-1] + bytes([ord("a") + next(turns)]))  # another process has it by now
        return kernel_locks(where)

    turns = iter(range(20))
    with stopped(Path(log.path), "program") as program:
        progress = LockProgress(str(log.path))
        assert progress.look().program == program.pid
        monkeypatch.setattr(holder_module, "kernel_locks", looked_at)
        assert [progress.look().program for _ in range(5)] == [program.pid] * 5
        assert next(turns) == 5
    monkeypatch.undo()
    assert progress.look().program == 0


def test_holder_is_shown_for_people() -> None:
    assert str(LockHolder(7, 0, 1_500)) == "process 7 for 1.5 s"
    assert str(LockHolder(0, 0, 0)).startswith("a process of unknown id")
