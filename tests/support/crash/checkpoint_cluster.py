"""Processes of an application that makes coordinated checkpoints: started, fed, killed at a place, looked at.

Rules of this file: the test feeds records; the storage and the log say what became of them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from contextlib import closing
from pathlib import Path
from random import Random

from standfast.replication.log import Outgoing, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.replication.tail.open_log import open_log
from standfast.restore.snapshot.checkpoints import State, checkpoints
from standfast.restore.snapshot.opening import open_storage
from standfast.restore.snapshot.storage import Storage
from support.checkpoints import COLORS, Sums, sums
from support.crash import checkpoint_child
from support.serve import wait_for

TASKS = 3
PATIENCE_S = 90


class CheckpointCluster:
    """The processes by name, and the number of records fed."""

    def __init__(self, root: Path, log: str, app: str, **settings: object) -> None:
        self.root, self.address, self.app, self.settings = root, log, app, settings
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.fed = 0
        self.colors: Counter[str] = Counter()  # records fed, by color
        self.random = Random(1)
        with closing(open_log(log)) as opened:
            for topic in ("in", "out"):
                opened.admin.create_topic(f"{app}-{topic}", TASKS, TopicPolicy())

    @property
    def to(self) -> str:
        return str(self.root / "snaps")

    @property
    def storage(self) -> Storage:
        return open_storage(self.to, self.app)

    def start(self, name: str, failpoint: str = "", **settings: object) -> subprocess.Popen[bytes]:
        given = {
            "log": self.address,
            "state_dir": str(self.root / name),
            "app": self.app,
            "source": f"{self.app}-in",
            "to": self.to,
            **self.settings,
            **settings,
        }
        with (self.root / f"{name}.err").open("ab") as err:
            self.processes[name] = subprocess.Popen(
                [sys.executable, checkpoint_child.__file__, json.dumps(given)],
                stderr=err,
                env={**os.environ, "STANDFAST_FAILPOINT": failpoint},
            )
        return self.processes[name]

    def feed(self, records: int) -> None:
        batches: dict[TopicPartition, list[Outgoing]] = defaultdict(list)
        for _ in range(records):
            key, color = f"user {self.fed % 50}".encode(), self.random.choice(COLORS).encode()
            self.colors[color.decode()] += 1
            at = TopicPartition(f"{self.app}-in", self.fed % 50 % TASKS)
            batches[at].append(Outgoing(key, color, int(time.time() * 1_000)))
            self.fed += 1
        with closing(open_log(self.address)) as log, closing(log.producer()) as producer:
            producer.append(batches)

    def feed_until_killed(self, name: str) -> None:
        """Feed until a process meets its failpoint."""
        process, until = self.processes.pop(name), time.monotonic() + PATIENCE_S
        while process.poll() is None:
            assert time.monotonic() < until, self.said()
            self.feed(20)
            time.sleep(0.05)
        assert process.returncode == -signal.SIGKILL, self.said()

    def states(self) -> dict[int, State]:
        return {one.number: one.state for one in checkpoints(self.storage)}

    def complete(self) -> list[int]:
        return [number for number, state in self.states().items() if state is State.COMPLETE]

    def await_complete(self, after: int) -> int:
        """Feed until a checkpoint with a number above this one is complete; returns its number."""
        until = time.monotonic() + PATIENCE_S
        while max(self.complete(), default=0) <= after:
            assert time.monotonic() < until, f"{self.states()} {self.said()}"
            self.feed(20)
            time.sleep(0.05)
        return max(self.complete())

    def sums(self, number: int) -> Sums:
        return sums(self.storage, number, self.root / "looked-at", f"{self.app}-in")

    def end(self) -> None:
        """Stop every process cleanly."""
        for process in self.processes.values():
            process.terminate()
        for name, process in self.processes.items():
            assert process.wait(60) == 0, f"{name}: {self.said()}"
        self.processes.clear()

    def await_all(self) -> int:
        """Wait for a checkpoint that has every record; returns its number."""
        found: list[int] = []

        def whole() -> bool:
            numbers = self.complete()
            if numbers and (not found or numbers[-1] > found[-1]):
                found.append(numbers[-1])
                return self.sums(numbers[-1]).offsets == self.fed
            return False

        wait_for(whole, PATIENCE_S, self.said)
        return found[-1]

    def outputs(self, app: str) -> dict[str, list[int]]:
        """The counts that an application wrote for each color, in order."""
        found: dict[str, list[int]] = defaultdict(list)
        sources = [TopicPartition(f"{app}-out", number) for number in range(TASKS)]
        with closing(open_log(self.address)) as log, closing(log.reader()) as reader:
            ends = reader.bounds(sources)
            reader.assign({at: ends[at].begin for at in sources})
            until = time.monotonic() + PATIENCE_S
            while any(position < ends[at].end for at, position in reader.assignment().items()):
                assert time.monotonic() < until, "the output could not be read"
                for batch in reader.fetch(10_000, 100):
                    for record in batch.records:
                        found[(record.key or b"").decode()].append(int.from_bytes(record.value or b"", "big"))
        return found

    def said(self) -> str:
        return "\n".join(f"{one}: {one.read_text()[-3_000:]}" for one in sorted(self.root.glob("*.err")))

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
