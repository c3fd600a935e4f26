"""Instances of a managed application as real processes: fed, killed, stopped and started by a test.

Rules of this file: the test feeds keys and reads the counts that the instances wrote for them, so that a record that
was processed twice, or never, shows in the output.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

from standfast.replication.log import Outgoing, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.replication.tail.open_log import open_log
from support.crash import managed_child
from support.crash.managed_child import LEASE_MS
from support.crash.seeds import seed_of_run

TASKS = 12
KEYS = 60
NAMES = ("a", "b", "c")
PATIENCE_S = 120
START_S = 5.0  # restores, moves back and the records that waited
STARTED = re.compile(rb"worker (\d+) of \d+ starts as process (\d+)")


class Cluster:
    """Three state directories, the processes on them, and the number of records fed by key."""

    def __init__(self, root: Path, log: str, app: str, seed: int, **settings: Any) -> None:
        self.root = root
        self.address = log
        self.app = app
        self.random = Random(seed)
        self.settings = settings
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.begun: dict[str, int] = {}  # where the lines of the present process begin
        self.struck: set[int] = set()  # process ids of workers that were killed or stopped
        self.fed: dict[str, int] = defaultdict(int)
        self.events: list[str] = []
        with closing(open_log(log)) as opened:
            for topic in ("in", "out"):
                opened.admin.create_topic(f"{app}-{topic}", TASKS, TopicPolicy())

    def start(self, name: str) -> None:
        settings = {
            "log": self.address,
            "state_dir": str(self.root / name),
            "app": self.app,
            "guarantee": "exactly_once",
            **self.settings,
        }
        with (self.root / f"{name}.err").open("ab") as err:
            self.begun[name] = err.tell()
            self.processes[name] = subprocess.Popen(
                [sys.executable, managed_child.__file__, json.dumps(settings)], stderr=err
            )

    def runs(self, name: str) -> bool:
        """Whether SIGTERM ends the instance cleanly: it is past its imports, and has replaced each struck worker."""
        said = (self.root / f"{name}.err").read_bytes()[self.begun[name] :]
        return b"runs as instance" in said and self.struck.isdisjoint(self.workers(name).values())

    def workers(self, name: str) -> dict[int, int]:
        """The last process of each worker of an instance, by the worker's number."""
        said = (self.root / f"{name}.err").read_bytes()[self.begun[name] :]
        return {int(number): int(pid) for number, pid in STARTED.findall(said)}

    def end(self, name: str, number: signal.Signals) -> None:
        process = self.processes.pop(name)
        process.send_signal(number)
        if number is not signal.SIGSTOP:
            process.wait(60)
        else:
            time.sleep((LEASE_MS + self.random.randrange(1_500)) / 1_000)
            process.send_signal(signal.SIGCONT)
            self.processes[name] = process

    def strike(self) -> None:
        """End, stop or start a process at random; with worker processes mostly one of those."""
        name = self.random.choice(NAMES)
        workers = self.workers(name) if name in self.processes else {}
        if workers and self.random.random() < 0.7:
            number, pid = self.random.choice(sorted(workers.items()))
            how = self.random.choice((signal.SIGKILL, signal.SIGSTOP))
            self.events.append(f"{how.name} worker {number} of {name}")
            self.struck.add(pid)
            with contextlib.suppress(ProcessLookupError):  # it has ended, and its replacement is not said yet
                os.kill(pid, how)
            return
        if name not in self.processes:
            self.start(name)
            self.events.append(f"start {name}")
            return
        how = self.random.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP))
        self.events.append(f"{how.name} {name}")
        self.end(name, how)

    def feed(self, records: int, partitions: Sequence[int] = range(TASKS)) -> None:
        """Write records of random keys of these partitions."""
        keys = [number for number in range(KEYS) if number % TASKS in partitions]
        batches: dict[TopicPartition, list[Outgoing]] = defaultdict(list)
        for _ in range(records):
            number = self.random.choice(keys)
            key = f"k{number}"
            self.fed[key] += 1
            stamp = int(time.time() * 1_000)
            batches[TopicPartition(f"{self.app}-in", number % TASKS)].append(Outgoing(key.encode(), b"x", stamp))
        with closing(open_log(self.address)) as log, closing(log.producer()) as producer:
            producer.append(batches)

    def results(self) -> dict[str, list[int]]:
        """The counts that were written for each key, in order."""
        found: dict[str, list[int]] = defaultdict(list)
        sources = [TopicPartition(f"{self.app}-out", number) for number in range(TASKS)]
        with closing(open_log(self.address)) as log, closing(log.reader()) as reader:
            ends = reader.bounds(sources)
            reader.assign({at: ends[at].begin for at in sources})
            deadline = time.monotonic() + 30
            while any(position < ends[at].end for at, position in reader.assignment().items()):
                assert time.monotonic() < deadline, "the output could not be read"
                for batch in reader.fetch(10_000, 100):
                    for record in batch.records:
                        found[(record.key or b"").decode()].append(int.from_bytes(record.value or b"", "big"))
        return found

    def expected(self) -> dict[str, list[int]]:
        """The counts of each key, each once and in order."""
        return {key: list(range(1, count + 1)) for key, count in self.fed.items()}

    def await_results(self) -> dict[str, list[int]]:
        deadline = time.monotonic() + PATIENCE_S
        while sum(map(len, (found := self.results()).values())) < sum(self.fed.values()):
            for name, process in self.processes.items():
                assert process.poll() is None, f"{name} ended by itself: {self.said(name)}"
            assert time.monotonic() < deadline, f"not done after {self.events}: {self.said(*NAMES)}"
            time.sleep(0.2)
        return found

    def await_tasks(self) -> dict[str, list[int]]:
        """All instances are back after the storm: each task gives its results within the lease and START_S."""
        began = time.monotonic()
        self.feed(20 * TASKS)  # so that none of the tasks is without a record
        found = self.await_results()
        took_s = time.monotonic() - began
        self.events.append(f"all tasks run {took_s:.1f} s after the storm")
        assert took_s <= LEASE_MS / 1_000 + START_S, f"{self.events}: {self.said(*NAMES)}"
        return found

    def said(self, *names: str) -> str:
        return "\n".join(f"{one}: {(self.root / f'{one}.err').read_text()[-3_000:]}" for one in names)

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()


def seeded(number: int) -> int:
    """The seed of a run, which is printed."""
    seed = seed_of_run()
    print(f"run {number}: seed {seed}", end="", flush=True)
    return seed


def held_by(pid: int) -> set[int]:
    """The partitions of the tasks whose database a process has open, active or standby."""
    found = set()
    for handle in Path(f"/proc/{pid}/fd").iterdir():
        try:
            path = handle.readlink()
        except OSError:  # it was closed meanwhile
            continue
        if path.name == "LOCK" and path.parent.name.startswith("0_"):
            found.add(int(path.parent.name[2:]))
    return found
