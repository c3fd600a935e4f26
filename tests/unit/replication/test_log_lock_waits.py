"""Waits for the embedded log's lock beside holders that are slow and well, stopped, killed, or have left a stale text.

Rules of this file: the holder is a process of its own, which takes the lock at each line that it reads.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from standfast.replication.embedded.holder import LONGEST_MS, LockLook, holder_of, stuck
from standfast.replication.embedded.lock import AGAIN, PATIENT, SOON, LogLock
from standfast.replication.embedded.log import EmbeddedLog
from standfast.replication.log import LockHolder, Outgoing, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.store.errors import InvalidRequest, StandfastError, Unavailable
from support.embedded import T0, contents
from support.serve import wait_for

pytestmark = pytest.mark.slow

WAIT_S = 30.0
HOLDER = """
import fcntl, os, sys, time
from standfast.replication.embedded.lock import LogLock
lock = LogLock(sys.argv[1])
for line in sys.stdin:
    what, seconds = line.split()
    if what == "bare":                       # between taking the lock and writing its text
        fd = os.open(sys.argv[1] + ".lock", os.O_RDWR)
        fcntl.flock(fd, fcntl.LOCK_EX)
        print("has it", flush=True)
        time.sleep(float(seconds))
        os.close(fd)
        continue
    end = time.monotonic() + (60 if what == "turns" else 0)
    while True:
        with lock.take():
            print("has it", flush=True)
            time.sleep(float(seconds))
            lock.leave()
        if time.monotonic() >= end:
            break
"""
WRITER = """
import sys
from standfast.replication.embedded.log import EmbeddedLog
from standfast.replication.log import Outgoing
from standfast.replication.offsets import TopicPartition
producer = EmbeddedLog(sys.argv[1]).producer()
print("open", flush=True)
for line in sys.stdin:
    producer.append({TopicPartition("board", 0): [Outgoing(b"child", b"1", 1)]})
    print("written", flush=True)
"""


class Other:
    """Another process that uses the log."""

    def __init__(self, program: str, path: str) -> None:
        command = [sys.executable, "-c", program, path]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self.process.pid

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        print(line, file=self.process.stdin, flush=True)

    def hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def hold(self, what: str, seconds: float) -> None:
        """Take the lock: `once`, by `turns`, or `bare`, without a text."""
        self.say(f"{what} {seconds}")
        assert self.hear() == "has it"

    def rests(self) -> bool:
        """Whether each of its threads is stopped, or has ended."""
        states = [
            path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{self.pid}/task").glob("*/stat")
        ]
        return set(states) <= {"T", "Z"}

    def end(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=WAIT_S)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    with closing(EmbeddedLog(tmp_path / "log.sqlite")) as log:
        log.admin.create_topic("board", 1, TopicPolicy())
        yield log


@pytest.fixture
def holder(log: EmbeddedLog) -> Iterator[Other]:
    holder = Other(HOLDER, log.path)
    yield holder
    holder.end()


CALLS: dict[str, Callable[[EmbeddedLog], object]] = {
    "open": lambda log: EmbeddedLog(log.path).close(),
    "reader": lambda log: log.reader().close(),
    "writer": lambda log: log.writer("app-0", group="app", owner="me").close(),
    "join": lambda log: log.group("app").join("me", lease_ms=600_000),
    "append": lambda log: log.producer().append({T0: [Outgoing(b"k", b"v", 1)]}),
    "create topic": lambda log: log.admin.create_topic("other", 1, TopicPolicy()),
}


@pytest.mark.parametrize("call", CALLS)
def test_calls_wait_for_a_holder_that_has_the_lock_for_long_and_is_well(
    log: EmbeddedLog, holder: Other, call: str
) -> None:
    holder.hold("once", 3)
    CALLS[call](log)


def test_calls_wait_while_slow_holders_take_turns(log: EmbeddedLog, holder: Other) -> None:
    with closing(log.group("app")) as group:
        holder.hold("turns", 1.3)
        for _ in range(3):
            group.join("me", lease_ms=600_000)


def test_error_beside_a_slow_holder_names_it_and_its_time_and_does_not_advise_to_kill_it(
    log: EmbeddedLog, holder: Other
) -> None:
    holder.hold("once", 20)
    with pytest.raises(Unavailable, match=rf"held by process {holder.pid} for [12]\.\d s") as caught:
        LogLock(log.path).take(SOON)
    assert caught.value.unwritten
    assert "kill" not in str(caught.value)


def test_advice_to_kill_is_for_a_stopped_holder_and_for_one_without_progress_for_a_minute() -> None:
    held = LockHolder(7, 0, LONGEST_MS)
    assert "kill -CONT" in str(stuck("log", LockLook(b"", held, 2_000, stopped=True)))
    assert "kill -KILL" in str(stuck("log", LockLook(b"", held, LONGEST_MS)))
    round_told = str(stuck("log", LockLook(b"", held, 2_000), waited_ms=LONGEST_MS))
    assert "kill" not in round_told and "60 s" in round_told
    assert (
        PATIENT.left_ms(LockLook(b"", held, 2_000)) == AGAIN.left_ms(LockLook(b"", held, 2_000)) == LONGEST_MS - 2_000
    )
    assert AGAIN.left_ms(LockLook(b"", held, 2_000, stopped=True)) < 0


def test_text_of_a_killed_process_says_nothing_about_the_next_holder(log: EmbeddedLog, holder: Other) -> None:
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    Path(f"{log.path}.lock").write_bytes(b"%d 1 1" % int(gone.stdout))  # it had the lock since the machine's start
    holder.hold("bare", 3)
    found = holder_of(log.path)
    assert found is not None
    assert (found.pid, found.held_ms) == (holder.pid, 0)
    with LogLock(log.path).take(AGAIN):
        pass


def test_wait_in_vain_shortens_no_later_wait(log: EmbeddedLog, holder: Other) -> None:
    holder.hold("once", 2)
    os.kill(holder.pid, signal.SIGSTOP)
    for _ in range(2):
        with pytest.raises(Unavailable, match=f"held by process {holder.pid} for .* is stopped"):
            LogLock(log.path).take(AGAIN)
    os.kill(holder.pid, signal.SIGCONT)
    with LogLock(log.path).take(PATIENT):
        pass
    holder.hold("bare", 2)  # without a text, as when the waits above ended
    with LogLock(log.path).take(AGAIN):
        pass


@pytest.mark.parametrize("ended_by", [signal.SIGSTOP, signal.SIGKILL])
def test_waiter_that_is_stopped_or_killed_keeps_no_other_from_the_lock(
    log: EmbeddedLog, ended_by: signal.Signals
) -> None:
    waiter, producer = Other(WRITER, log.path), log.producer()
    try:
        assert waiter.hear() == "open"
        with LogLock(log.path).take():
            waiter.say("write")
            wait_for(
                lambda: b" %d " % waiter.pid in Path(f"{log.path}.lock").read_bytes(), WAIT_S, told=lambda: "it waits"
            )
            os.kill(waiter.pid, ended_by)
            wait_for(lambda: waiter.rests(), WAIT_S, told=lambda: "no thread of it runs")
        began_s = time.monotonic()
        for _ in range(50):
            producer.append({T0: [Outgoing(b"k", b"v", 1)]})
        assert time.monotonic() - began_s < 10
        if ended_by == signal.SIGSTOP:
            os.kill(waiter.pid, signal.SIGCONT)
            assert waiter.hear() == "written"
            assert len(contents(log)) == 51
    finally:
        waiter.end()


def test_process_that_had_the_lock_gives_way_to_one_that_waits(log: EmbeddedLog) -> None:
    """A thread that takes the lock again and again beside another process: that one's writes come through in turn."""
    waiter, stop = Other(WRITER, log.path), threading.Event()

    def write() -> None:
        with closing(log.producer()) as producer:
            while not stop.is_set():
                producer.append({TopicPartition("board", 0): [Outgoing(b"k", b"v", 1)]})

    thread = threading.Thread(target=write)
    try:
        assert waiter.hear() == "open"
        thread.start()
        began_s = time.monotonic()
        for _ in range(20):
            waiter.say("write")
            assert waiter.hear() == "written"
        assert time.monotonic() - began_s < 10
    finally:
        stop.set()
        thread.join()
        waiter.end()


def test_lock_that_is_a_link_is_refused_and_its_target_stays(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("mine")
    Path(f"{tmp_path}/log.lock").symlink_to(target)
    with pytest.raises(InvalidRequest, match=r"log\.lock"):
        EmbeddedLog(tmp_path / "log")
    assert target.read_text() == "mine"


def test_lock_that_is_replaced_by_a_link_while_the_log_is_open_is_refused(log: EmbeddedLog, tmp_path: Path) -> None:
    producer = log.producer()
    lock, target = Path(f"{log.path}.lock"), tmp_path / "target"
    target.write_text("mine")
    lock.unlink()
    lock.symlink_to(target)
    with pytest.raises(StandfastError) as caught:
        producer.append({T0: [Outgoing(b"k", b"v", 1)]})
    assert caught.value.unwritten
    assert target.read_text() == "mine"
    with contextlib.suppress(StandfastError):
        log.close()
