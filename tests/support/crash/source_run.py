"""An application with a source of its own to be crashed: its files, its lives, and the comparison with plain loops.

    SourceCrash.feed       append lines to both files
    SourceCrash.kill_once  a process that ends at a strike, a failpoint or a random time, while lines are appended
    SourceCrash.finish     the rest of the lines, until all of them are processed and committed; then a clean end
    SourceCrash.check      outputs, positions, and rows restored into an empty directory

Rules of this file: choices follow from the seed of the run; assertions name the seed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from standfast.replication.log import TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.replication.tail.open_log import open_log
from standfast.store.failpoint import VARIABLE
from support.crash.run import Life
from support.crash.source_child import PARTITIONS, Strike, make_app

CHILD = Path(__file__).with_name("source_child.py")
PATIENCE_S = 40.0
STRIKE_S = 6.0
FEED_S = 0.01
KEYS = 6

Row = tuple[list[int], int]  # count and sum, and the timestamp


@dataclass
class SourceCrash:
    """One application with its log, files, state directories and processes. `lines` are those of each file."""

    root: Path
    seed: int
    address: str = ""
    app: str = "sourcecrash"
    lines: int = 400
    logged: bool = True
    guarantee: str = "exactly_once"
    standbys: int = 0
    lives: int = 0
    kills: int = 0
    met: int = 0
    outputs: int = 0
    fed: int = 0
    rows: list[list[tuple[str, int, int]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random = Random(self.seed)
        self.address = self.address or f"sqlite:///{self.root}/log?synchronous=normal"
        self.commit_interval_ms = random.choice((15, 60, 250))
        self.out = f"{self.app}-out"
        self.rows = [
            [
                (f"p{partition}-k{random.randrange(KEYS)}", random.randrange(100), 1_000_000 + number)
                for number in range(self.lines)
            ]
            for partition in range(PARTITIONS)
        ]
        for partition in range(PARTITIONS):
            self.file(partition).touch()
        with closing(open_log(self.address)) as log:
            log.admin.create_topic(self.out, PARTITIONS, TopicPolicy())

    def file(self, partition: int) -> Path:
        return self.root / f"input-{partition}"

    def settings(self, directory: str, strike: tuple[str, int] = ("", 0)) -> dict[str, Any]:
        return {
            "app": self.app,
            "log": self.address,
            "state_dir": str(self.root / directory),
            "folder": str(self.root),
            "out": self.out,
            "guarantee": self.guarantee,
            "logged": self.logged,
            "standbys": self.standbys,
            "commit_interval_ms": self.commit_interval_ms,
            "strike": strike,
        }

    def feed(self, count: int, upto: float = 1.0) -> None:
        """Append the next lines, at most up to this share of all; one of them in two writes, as a slow writer does."""
        end = min(self.fed + count, int(self.lines * upto))
        if end <= self.fed:
            return
        for partition, rows in enumerate(self.rows):
            text = "".join(f"{key} {number} {stamp}\n" for key, number, stamp in rows[self.fed : end])
            cut = self.random.randrange(len(text))
            with self.file(partition).open("a") as file:
                file.write(text[:cut])
                file.flush()
                file.write(text[cut:])
        self.fed = end

    @contextmanager
    def life(self, directory: str, failpoint: str = "", strike: tuple[str, int] = ("", 0)) -> Iterator[Life]:
        """Start a process; it is dead afterwards."""
        self.lives += 1
        out, err = self.root / f"out.{self.lives}", self.root / f"err.{self.lives}"
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(
                [sys.executable, str(CHILD), json.dumps(self.settings(directory, strike))],
                stdout=stdout,
                stderr=stderr,
                env=os.environ | {VARIABLE: failpoint},
            )
        try:
            yield Life(process, out, err, self.root / directory)
        finally:
            process.kill()
            process.wait()

    def kill_once(self, directory: str, upto: float, failpoint: str = "", strike: tuple[str, int] = ("", 0)) -> None:
        """A process that ends at its place, or after a random while; lines up to this share are appended meanwhile."""
        with self.life(directory, failpoint, strike) as life:
            self.end(life, upto, struck=bool(failpoint or strike[0]))

    def end(self, life: Life, upto: float, *, struck: bool) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while "ready" not in life.lines() and life.process.poll() is None:
            assert time.monotonic() < deadline, f"seed {self.seed}: not ready: {life.err.read_text()}"
            time.sleep(0.005)
        deadline = time.monotonic() + (STRIKE_S if struck else self.random.uniform(0, 0.8))
        while life.process.poll() is None and time.monotonic() < deadline:
            time.sleep(FEED_S)
            self.feed(self.random.randrange(1, 5), upto)
        self.met += struck and life.process.poll() == -signal.SIGKILL
        life.kill()
        self.kills += 1

    def finish(self, *directories: str) -> None:
        """All remaining lines, until they are processed and committed; then SIGTERM, after which each ends with 0."""
        self.feed(self.lines)
        with self.life(directories[0]) as life:
            self.finish_with(life)

    def finish_with(self, life: Life) -> None:
        self.feed(self.lines)
        ends = {partition: self.file(partition).stat().st_size for partition in range(PARTITIONS)}
        deadline = time.monotonic() + PATIENCE_S
        while self.positions() != ends:
            assert life.process.poll() is None, f"seed {self.seed}: it ended by itself: {life.err.read_text()}"
            assert time.monotonic() < deadline, f"seed {self.seed}: {self.positions()}, not {ends}"
            time.sleep(0.02)
        life.process.terminate()
        assert life.process.wait() == 0, f"seed {self.seed}: {life.err.read_text()}"

    def positions(self) -> dict[int, int]:
        """The committed position of each partition."""
        with closing(open_log(self.address)) as log, closing(log.group(self.app)) as group:
            topic = f"{self.app}-lines-source-offsets"
            asked = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
            return {at.partition: one.offset for at, one in group.committed(asked).items()}

    # --- the comparison ---

    def expected(self) -> tuple[dict[str, list[Row]], dict[str, list[int]]]:
        """Outputs by key, and rows, of plain loops over the files."""
        outputs: dict[str, list[Row]] = defaultdict(list)
        rows: dict[str, list[int]] = {}
        for lines in self.rows:
            for key, number, stamp in lines:
                count, total = rows.get(key, [0, 0])
                rows[key] = [count + 1, total + number]
                outputs[key].append((rows[key], stamp))
        return dict(outputs), rows

    def written(self) -> dict[str, list[Row]]:
        """The output records by key, in order."""
        found: dict[str, list[Row]] = defaultdict(list)
        asked = [TopicPartition(self.out, partition) for partition in range(PARTITIONS)]
        with closing(open_log(self.address)) as log, closing(log.reader()) as reader:
            bounds = reader.bounds(asked)
            reader.assign({at: bounds[at].begin for at in asked})
            deadline = time.monotonic() + PATIENCE_S
            while any(reader.assignment()[at] < bounds[at].end for at in asked):
                assert time.monotonic() < deadline, f"seed {self.seed}: the outputs cannot be read"
                for batch in reader.fetch(10_000, 100):
                    for record in batch.records:
                        assert record.key is not None
                        assert record.value is not None
                        found[record.key.decode()].append((json.loads(record.value), record.timestamp))
        return dict(found)

    def check(self, directory: str) -> None:
        """Compare outputs and restored rows with those of plain loops."""
        outputs, rows = self.expected()
        written = self.written()
        assert written == outputs, f"seed {self.seed}: outputs differ"
        self.outputs = sum(map(len, written.values()))
        app = make_app(self.settings(directory), Strike("", 0))
        with closing(app.open()) as session:
            session.wait_ready(timeout_s=PATIENCE_S)
            found: dict[str, list[int]] = {}
            for partition in range(PARTITIONS):
                found |= dict(session.read("totals", partition).store.all())
        assert found == rows, f"seed {self.seed}: rows of {directory} differ"
