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

from standfast.replication.log import Outgoing, Record, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.replication.placement.checkpoint import CHECKPOINT_KEY, Order, OrderState, read_order
from standfast.replication.tail.open_log import open_log
from standfast.replication.topics.app_topics import PLACEMENT
from standfast.restore.snapshot.checkpoints import CheckpointState, checkpoints
from standfast.restore.snapshot.opening import open_storage
from standfast.restore.snapshot.storage import Storage
from standfast.store.errors import Unavailable
from support.checkpoints import COLORS, Sums, sums
from support.crash import checkpoint_child
from support.crash.managed_cluster import STARTED
from support.processes import is_stopped
from support.serve import wait_for

TASKS = 3
PATIENCE_S = 90


class CheckpointCluster:
    """The processes by name, and the number of records fed."""

    def __init__(self, root: Path, log: str, app: str, to: str | None = None, **settings: object) -> None:
        """`to` is the storage, else a folder below `root`."""
        self.root, self.address, self.app, self.settings = root, log, app, settings
        self.to = str(root / "snaps") if to is None else to
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.fed = 0
        self.colors: Counter[str] = Counter()  # records fed, by color
        self.random = Random(1)
        with closing(open_log(log)) as opened:
            for topic in ("in", "out"):
                opened.admin.create_topic(f"{app}-{topic}", TASKS, TopicPolicy())

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
        colors = [self.random.choice(COLORS) for _ in range(records)]
        for number, color in enumerate(colors, self.fed):
            at = TopicPartition(f"{self.app}-in", number % 50 % TASKS)
            key = f"user {number % 50}".encode()
            batches[at].append(Outgoing(key, color.encode(), int(time.time() * 1_000)))
        with closing(open_log(self.address)) as log, closing(log.producer()) as producer:
            producer.append(batches)
        # After the write, which a stopped process may keep from happening.
        self.colors.update(colors)
        self.fed += records

    def feed_until_killed(self, name: str) -> None:
        """Feed until a process meets its failpoint."""
        process, until = self.processes.pop(name), time.monotonic() + PATIENCE_S
        while process.poll() is None:
            assert time.monotonic() < until, self.said()
            self.feed(20)
            time.sleep(0.1)
        assert process.returncode == -signal.SIGKILL, f"{name} ended with {process.returncode}: {self.said()}"

    def feed_until_stopped(self, name: str) -> bool:
        """Feed until a process has stopped at its failpoint; returns whether it let the log go before."""
        process, until = self.processes[name], time.monotonic() + PATIENCE_S
        while not is_stopped(process.pid):
            assert process.poll() is None and time.monotonic() < until, self.said()
            if not self._could_feed():
                assert is_stopped(process.pid), self.said()
            time.sleep(0.05)
        return self._could_feed()

    def _could_feed(self) -> bool:
        """Feed; returns whether the log could be written."""
        try:
            self.feed(20)
        except Unavailable:
            return False
        return True

    def endings(self) -> dict[int, set[str]]:
        """How each checkpoint ended, by every order that the log still has."""
        at = TopicPartition(self.app + PLACEMENT, 0)
        found: dict[int, set[str]] = defaultdict(set)
        for record in self._records([at]):
            if record.key == CHECKPOINT_KEY and record.value is not None:
                order = read_order(record.value)
                if order.state in (OrderState.COMPLETE, OrderState.ABANDONED):
                    found[order.number].add(order.state.value)
        return dict(found)

    def states(self) -> dict[int, CheckpointState]:
        return {one.number: one.state for one in checkpoints(self.storage)}

    def begun_by(self, name: str) -> int:
        """The newest checkpoint that this instance began."""
        instance = (self.root / name / self.app / "INSTANCE").read_text().strip()
        notes = {one: self.storage.read(f"checkpoints/{one:010}/begun.json") for one in self.states()}
        return max(one for one, note in notes.items() if note is not None and json.loads(note)["leader"] == instance)

    def begun_ms(self, number: int) -> int:
        return next(one.begun_ms for one in checkpoints(self.storage) if one.number == number)

    def complete(self) -> list[int]:
        return [number for number, state in self.states().items() if state is CheckpointState.COMPLETE]

    def await_complete(self, after: int) -> int:
        """Feed until a checkpoint with a number above this one is complete; returns its number."""
        until = time.monotonic() + PATIENCE_S
        while max(self.complete(), default=0) <= after:
            assert time.monotonic() < until, f"{self.states()} {self.said()}"
            self.feed(20)
            time.sleep(0.1)
        return max(self.complete())

    def await_begun(self) -> int:
        """Feed until a checkpoint begins that had not begun before; returns its number."""
        before, until = self._last_order(), time.monotonic() + PATIENCE_S
        while True:
            assert time.monotonic() < until, self.said()
            self.feed(5)
            now = self._last_order()
            if now.number > before.number and now.state is OrderState.RUNNING:
                return now.number
            time.sleep(0.01)

    def _last_order(self) -> Order:
        """The newest order of the leader."""
        records = self._records([TopicPartition(self.app + PLACEMENT, 0)])
        values = [one.value for one in records if one.key == CHECKPOINT_KEY and one.value is not None]
        return read_order(values[-1]) if values else Order(0, state=OrderState.COMPLETE)

    def kill_worker(self, name: str, number: int) -> int:
        """SIGKILL the present process of a worker, by its number from 1; returns its id."""
        pid = self.worker_pid(name, number)
        os.kill(pid, signal.SIGKILL)
        return pid

    def worker_pid(self, name: str, number: int) -> int:
        """The last process of a worker."""
        said = (self.root / f"{name}.err").read_bytes()
        return {int(one): int(pid) for one, pid in STARTED.findall(said)}[number]

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

    def await_processed(self) -> None:
        """Wait until every record fed has its result."""
        wait_for(lambda: sum(map(len, self.outputs(self.app).values())) >= self.fed, PATIENCE_S, self.said)

    def outputs(self, app: str) -> dict[str, list[int]]:
        """The counts that an application wrote for each color, in order."""
        found: dict[str, list[int]] = defaultdict(list)
        for record in self._records([TopicPartition(f"{app}-out", number) for number in range(TASKS)]):
            found[(record.key or b"").decode()].append(int.from_bytes(record.value or b"", "big"))
        return found

    def _records(self, sources: list[TopicPartition]) -> list[Record]:
        found: list[Record] = []
        with closing(open_log(self.address)) as log, closing(log.reader()) as reader:
            ends = reader.bounds(sources)
            reader.assign({at: ends[at].begin for at in sources})
            until = time.monotonic() + PATIENCE_S
            while any(position < ends[at].end for at, position in reader.assignment().items()):
                assert time.monotonic() < until, f"{sources[0].topic} could not be read"
                for batch in reader.fetch(10_000, 100):
                    found += batch.records
        return found

    def said(self) -> str:
        return "\n".join(f"{one}: {one.read_text()[-3_000:]}" for one in sorted(self.root.glob("*.err")))

    def kill(self) -> None:
        """End every process by SIGKILL."""
        for process in self.processes.values():
            process.kill()
            process.wait()
        self.processes.clear()

    def close(self) -> None:
        self.kill()
