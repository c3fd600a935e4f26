"""Processes of an application whose leases are under test, and the log between them.

Rules of this file: real processes (`support/lease_child.py`), a real log of either kind, real signals; times are the
machine's.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from standfast.replication.log import Outgoing, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.replication.tail.open_log import open_log
from support.waits import until

CHILD = Path(__file__).with_name("lease_child.py")
LEASE_MS = 1_000
KEYS = 7


class Member:
    """One process of the application."""

    def __init__(self, root: Path, name: str, given: dict[str, Any], below: Sequence[str] = ()) -> None:
        self.out, self.err = root / f"{name}.out", root / f"{name}.err"
        with self.out.open("wb") as stdout, self.err.open("wb") as stderr:
            self.process = subprocess.Popen(
                [*below, sys.executable, str(CHILD), json.dumps({**given, "state_dir": str(root / name)})],
                stdin=subprocess.PIPE,
                stdout=stdout,
                stderr=stderr,
            )

    @property
    def status(self) -> dict[str, Any]:
        """The process's newest status; {} so far."""
        assert self.process.poll() in (None, -signal.SIGKILL), self.err.read_text()
        lines = self.out.read_bytes().rpartition(b"\n")[0].splitlines()
        found: dict[str, Any] = json.loads(lines[-1]) if lines else {}
        return found

    def is_(self, role: str) -> bool:
        """Whether the process has the task in this role and state."""
        return list(self.status.get("roles", {}).values()) == [role]

    def order(self, **order: float) -> None:
        """Send an order of support/lease_child.py."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order).encode() + b"\n")
        self.process.stdin.flush()

    def end(self) -> None:
        """Kill it."""
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()


class Leases:
    """One application of one partition, its log and its members."""

    def __init__(self, root: Path, address: str) -> None:
        self.root, self.address = root, address
        self.app = f"lease-{uuid.uuid4().hex[:8]}"
        self.source, self.sink = TopicPartition(f"{self.app}-in", 0), TopicPartition(f"{self.app}-out", 0)
        self.members: list[Member] = []
        self.fed = 0
        self.log = open_log(address)
        for at in (self.source, self.sink):
            self.log.admin.create_topic(at.topic, 1, TopicPolicy())

    def start(self, name: str, below: Sequence[str] = (), **given: Any) -> Member:
        """Start a member, `below` another command; `given` are settings."""
        settings = {"app": self.app, "log": self.address, "lease_ms": LEASE_MS, **given}
        self.members.append(Member(self.root, name, settings, below))
        return self.members[-1]

    def pair(self, **given: Any) -> tuple[Member, Member]:
        """An owner and its warm standby."""
        first = self.start("a", **given)
        until(lambda: first.is_("active running"), "the first has the task")
        self.feed(20)
        second = self.start("b", **given)
        until(lambda: second.is_("standby standby") and self.position(second) > 0, "the second stands by")
        return first, second

    def position(self, member: Member) -> int:
        """The number of records it processed, or applied as a standby."""
        return int(member.status["processed"]) or 1

    def feed(self, count: int) -> None:
        """Append records r0, r1, ... with keys in turn."""
        records = [
            Outgoing(f"k{number % KEYS}".encode(), f"r{number}".encode(), number + 1)
            for number in range(self.fed, self.fed + count)
        ]
        with closing(self.log.producer()) as producer:
            producer.append({self.source: records})
        self.fed += count

    def out(self) -> Counter[str]:
        """How often each record was forwarded."""
        with closing(self.log.reader()) as reader:
            reader.assign({self.sink: reader.bounds([self.sink])[self.sink].begin})
            found: Counter[str] = Counter()
            end = reader.bounds([self.sink])[self.sink].end
            while reader.assignment()[self.sink] < end:
                for batch in reader.fetch(1_000, 100):
                    found.update((one.value or b"").decode() for one in batch.records)
        return found

    def whole(self) -> bool:
        """Whether every fed record was forwarded."""
        return len(self.out()) == self.fed

    def freeze(self, *pids: int) -> None:
        """Stop processes until SIGCONT; on the embedded log not while they hold its lock."""
        lock = self.root / "log.sqlite.lock"
        while True:
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            until(lambda: all(stopped(pid) for pid in pids), "they stand still")
            if not lock.exists():
                return
            with lock.open("rb") as handle:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return
                except BlockingIOError:
                    for pid in pids:
                        os.kill(pid, signal.SIGCONT)
            time.sleep(0.005)

    def close(self) -> None:
        for member in self.members:
            member.end()
        self.log.close()


def stopped(pid: int) -> bool:
    """Whether every thread of a process has stopped."""
    states = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        try:
            states.append((thread / "stat").read_text(encoding="ascii").rpartition(")")[2].split()[0])
        except (FileNotFoundError, ProcessLookupError):
            continue
    return set(states) <= {"T", "t"}


@pytest.fixture
def leases(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Leases]:
    """Leases on the embedded log, or with the parameter "kafka" on the shared broker."""
    kafka = getattr(request, "param", "sqlite") == "kafka"
    address = f"kafka://{request.getfixturevalue('kafka_address')}" if kafka else f"sqlite:///{tmp_path}/log.sqlite"
    made = Leases(tmp_path, address)
    yield made
    made.close()
