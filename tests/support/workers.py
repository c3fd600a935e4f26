"""An application with worker processes on an embedded log, or a broker: fed, asked by HTTP, and steered by a test.

Rules of this file: real processes (`workers_child.py`), each ended by its own process id.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

from standfast.ops.client.client import Client
from standfast.ops.shared.run_file import read_run_file
from standfast.replication.log import Outgoing, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.replication.tail.open_log import open_log
from standfast.store.errors import StandfastError
from support import workers_child
from support.serve import wait_for

START_S = 120.0
APP = "served"


class Served:
    """One instance. `settings` are those of App."""

    def __init__(self, root: Path, log: str = "", *, tasks: int = 4, app: str = APP, **settings: Any) -> None:
        self.root = root
        self.app = app
        self.log = log or f"sqlite:///{root}/log?synchronous=normal"
        self.tasks = tasks
        # A worker that is silent, and does not work, for a third of the lease is killed: HOLD is to last longer.
        common = {"workers": 2, "http_port": 0, "lease_ms": 30_000, "commit_interval_ms": 50}
        self.settings = {**common, **settings}
        self.fed: Counter[str] = Counter()
        self.process: subprocess.Popen[str] | None = None
        with closing(open_log(self.log)) as opened:
            if opened.admin.describe_topic(f"{app}-in") is None:
                opened.admin.create_topic(f"{app}-in", tasks, TopicPolicy())

    @property
    def state_dir(self) -> Path:
        return self.root / "state"

    def start(self) -> Served:
        """Start it, and wait until it is ready."""
        self.begin()
        wait_for(self.is_ready, START_S, self.said)
        return self

    def begin(self) -> None:
        """Start it."""
        given = {"app": self.app, "log": self.log, "state_dir": str(self.state_dir), **self.settings}
        with (self.root / "said").open("ab") as said:
            self.process = subprocess.Popen(
                [sys.executable, workers_child.__file__, json.dumps(given)],
                stdin=subprocess.PIPE,
                stderr=said,
                text=True,
            )

    def reasons(self) -> list[str]:
        """The reasons for which it is not ready."""
        try:
            return list(self.client().ask("/readyz")[1].get("reasons", ()))
        except StandfastError:
            return []

    def said(self) -> str:
        """The lines of the supervisor and its workers."""
        return (self.root / "said").read_text()

    @property
    def address(self) -> str:
        """`http://host:port`."""
        return read_run_file(self.state_dir / self.app).address

    def client(self, **given: Any) -> Client:
        """A client, found by the state directory."""
        return Client.of_state_path(self.state_dir / self.app, **given)

    def is_ready(self) -> bool:
        """Whether the instance is ready."""
        assert self.process is None or self.process.poll() is None, self.said()
        try:
            return self.client().ask("/readyz")[0] == 200
        except StandfastError:
            return False

    def status(self) -> dict[str, Any]:
        """The status document."""
        return self.client().get("/v1/status")

    def pids(self) -> list[int]:
        """The worker processes."""
        return [one["pid"] for one in self.status()["worker_processes"] if one["pid"] is not None]

    def feed(self, records: int, keys: int = 60) -> None:
        """Write records of keys k0, k1, ...; key number n goes to partition n modulo the number of tasks."""
        batches: dict[TopicPartition, list[Outgoing]] = {}
        for number in range(records):
            key = f"k{number % keys}"
            self.fed[key] += 1
            at = TopicPartition(f"{self.app}-in", number % keys % self.tasks)
            batches.setdefault(at, []).append(Outgoing(key.encode(), b"x", 1_000 + number))
        self._write(batches)

    def hold(self, partition: int, ms: int) -> None:
        """Write a record that keeps the interpreter of its worker for so long."""
        at = TopicPartition(f"{self.app}-in", partition)
        self._write({at: [Outgoing(workers_child.HOLD.encode(), str(ms).encode(), 1_000)]})

    def await_rows(self) -> None:
        """Wait until all records are counted and committed."""
        wait_for(lambda: self.rows() == dict(self.fed), START_S, self.said)

    def rows(self) -> dict[str, int] | None:
        """All rows, by one scan; None where it fails."""
        try:
            found = self.client().get("/v1/stores/counts/scan", {"limit": 10_000})
        except StandfastError:
            return None
        return {row["key"]: row["value"] for row in found["rows"]}

    def steer(self, line: str) -> None:
        """Have the supervisor carry out a line."""
        assert self.process is not None and self.process.stdin is not None
        before = self.said().count(f"carried out: {line}")
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        wait_for(lambda: self.said().count(f"carried out: {line}") > before, START_S, self.said)

    def end(self) -> None:
        """End it as a service manager does."""
        process, self.process = self.process, None
        if process is not None:
            process.terminate()
            code = process.wait(START_S)
            if process.stdin is not None:
                process.stdin.close()
            assert code == 0, self.said()

    def close(self) -> None:
        """Kill it, if it runs."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate()

    def _write(self, batches: dict[TopicPartition, list[Outgoing]]) -> None:
        with closing(open_log(self.log)) as log, closing(log.producer()) as producer:
            producer.append(batches)
