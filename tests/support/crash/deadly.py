"""An application that meets a record which ends its process, run again by the test as a service manager does.

    python deadly.py JSON     log, state_dir, app, workers, stall_ms, and the options of source and step; runs the app

    a record's value says how the process ends: segv, abort, exit, hang, slow (for a kill from outside); others go on

Rules of this file: the output topic has each value that was processed; the test reads what is there, and kills.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # started by path

import standfast as sf
from standfast.ops.command.command_line import main as command
from standfast.replication.log import Outgoing, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.replication.tail.open_log import open_log
from standfast.stream.deaths.deaths import Death, all_deaths
from support.serve import wait_for

LIFE_MAX_S = 600  # an orphan ends by itself
LEASE_MS = 1_000
PATIENT_MS = 30_000  # so that a process which gets no processor is no stall at its record
SLOW_S = 1.0
MET = "met in process"


def end_as(how: str) -> None:
    print(MET, os.getpid(), how, file=sys.stderr, flush=True)
    if how == "segv":
        ctypes.string_at(0)
    elif how == "abort":
        os.abort()
    elif how == "exit":
        os._exit(4)
    elif how == "hang":
        time.sleep(LIFE_MAX_S)
    elif how == "slow":
        time.sleep(SLOW_S)


class Deadly:
    """The topics of the application, its processes by name, and the records that they have written."""

    def __init__(self, root: Path, log: str, app: str, **settings: Any) -> None:
        self.root, self.address, self.app, self.settings = root, log, app, settings
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.begun: dict[str, int] = {}  # bytes that former processes of an instance had said
        with closing(open_log(log)) as opened:
            for topic in ("in", "out", "dead"):
                opened.admin.create_topic(f"{app}-{topic}", 2, TopicPolicy())

    def feed(self, partition: int, *values: str) -> None:
        at, now_ms = TopicPartition(f"{self.app}-in", partition), int(time.time() * 1_000)
        with closing(open_log(self.address)) as log, closing(log.producer()) as producer:
            producer.append({at: [Outgoing(value.encode(), value.encode(), now_ms) for value in values]})

    def written(self, topic: str = "out") -> list[str]:
        found: list[str] = []
        sources = [TopicPartition(f"{self.app}-{topic}", partition) for partition in (0, 1)]
        with closing(open_log(self.address)) as log, closing(log.reader()) as reader:
            bounds = reader.bounds(sources)
            positions = {at: one.begin for at, one in bounds.items()}
            reader.assign(positions)
            while any(positions[at] < one.end for at, one in bounds.items()):
                for batch in reader.fetch(1_000, 200):
                    positions[batch.source] = batch.next_offset
                    found += [bytes(record.value or b"").decode() for record in batch.records]
        return sorted(found)

    def deaths(self) -> list[Death]:
        with closing(open_log(self.address)) as log, closing(log.group(self.app)) as group:
            return list(all_deaths(group).values())

    def start(self, name: str) -> None:
        given = {"log": self.address, "state_dir": str(self.root / name), "app": self.app, **self.settings}
        with (self.root / f"{name}.said").open("ab") as said:
            self.begun[name] = said.tell()
            self.processes[name] = subprocess.Popen([sys.executable, __file__, json.dumps(given)], stderr=said)

    def keep(self) -> None:
        """Start the instances that have ended again."""
        for name, process in list(self.processes.items()):
            if process.poll() is not None:
                self.start(name)

    def lose(self, name: str) -> None:
        """End an instance, and lose its state directory."""
        process = self.processes.pop(name)
        process.kill()
        process.wait()
        shutil.rmtree(self.root / name)

    def said(self, *names: str) -> str:
        return "".join((self.root / f"{name}.said").read_text() for name in names or "a")

    def go_on(self, task: str) -> int:
        """The command that an error names."""
        return command(["deaths", "--app", self.app, "--log", self.address, "--forget", task])

    def end(self) -> None:
        """End all instances in order, once they take notice of signals."""
        wait_for(lambda: all(b"runs as instance" in self._last_said(name) for name in self.processes), LIFE_MAX_S)
        for process in self.processes.values():
            process.terminate()
        for name, process in self.processes.items():
            assert process.wait(60) == 0, self.said(name)[-4_000:]

    def _last_said(self, name: str) -> bytes:
        return (self.root / f"{name}.said").read_bytes()[self.begun[name] :]

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()


def run() -> None:
    given = json.loads(sys.argv[1])
    signal.alarm(LIFE_MAX_S)
    app = sf.App(
        given["app"],
        log=given["log"],
        state_dir=given["state_dir"],
        lease_ms=LEASE_MS,
        max_stall_ms=given.get("stall_ms", PATIENT_MS),
        commit_interval_ms=20,
    )
    text = sf.serde.string

    def work(key: str | None, value: Any) -> bool:
        if value in ("segv", "abort", "exit", "hang", "slow"):
            end_as(value)
        return True

    def read(raw: bytes) -> str:
        if raw == b"serde":
            end_as("segv")
        return raw.decode()

    own = sf.serde.pair("own", str.encode, read)
    stream = app.stream(f"{given['app']}-in", key=text, value=own, **given.get("source", {}))
    stream.filter(work, **given.get("step", {})).to(f"{given['app']}-out", value=text)
    app.run(workers=given.get("workers", 1))


if __name__ == "__main__":
    run()
