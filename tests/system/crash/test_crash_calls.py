"""Kill -9 of applications with calls in flight: outputs, dead letters and state equal the plain computation.

    input ──> child (support/crash/calls_child.py) ──SIGKILL──> the same directory, another, or the standby ... ──> end
              out and dead, per source partition in order; offsets; the sums   ==   `calls_child.plain`

Rules of this file: it prints the seed of each run. `STANDFAST_CRASH_SEED=<seed> make crash CALLS_RUNS=8
ARGS="-k calls_in_flight[7]"` repeats every choice of run 7, but not the moment of a kill after a delay.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

import standfast as sf
from standfast.replication.log import Outgoing, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.replication.tail.open_log import open_log
from standfast.store.failpoint import VARIABLE
from support.crash.calls_child import APP, INT, PARTITIONS, TEXT, Row, plain
from support.crash.seeds import seed_of_run
from support.serve import wait_for

RUNS = int(os.environ.get("STANDFAST_CRASH_CALLS_RUNS", "1"))
CHILD = Path(__file__).resolve().parents[2] / "support/crash/calls_child.py"
RECORDS = 250  # of each partition
PATIENCE_S = 100.0  # below LIFE_MAX_S of the child; a machine may be busy with many others
# Where a life ends: a failpoint of a commit, or "" for within a call or after a delay.
FAILPOINTS = ("", "commit.flushed", "", "commit.logged", "commit.local")


class CallsCrash:
    """One application with its log and its processes."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root = root
        self.random = rng = random.Random(seed)
        self.address = f"sqlite:///{root}/log?synchronous=normal"
        self.inputs: list[list[Row]] = [
            [(f"{partition}-{rng.randrange(6)}", rng.randrange(1_000)) for _ in range(RECORDS)]
            for partition in range(PARTITIONS)
        ]
        self.commit_interval_ms = rng.choice((10, 30, 100))
        self.kills = 0
        with closing(open_log(self.address)) as log:
            for topic in ("in", "out", "dead"):
                log.admin.create_topic(topic, PARTITIONS, TopicPolicy())
            producer = log.producer()
            for partition, rows in enumerate(self.inputs):
                batch = [Outgoing(TEXT.serialize(key), INT.serialize(value), n) for n, (key, value) in enumerate(rows)]
                producer.append({TopicPartition("in", partition): batch})

    @contextmanager
    def life(self, directory: str, failpoint: str = "", kill_at: int = 0) -> Iterator[subprocess.Popen[str]]:
        """A process, dead afterwards."""
        settings = {
            "log": self.address,
            "state_dir": str(self.root / directory),
            "seed": self.random.randrange(1_000_000),
            "kill_at": kill_at,
            "commit_interval_ms": self.commit_interval_ms,
        }
        environment = {**os.environ, VARIABLE: failpoint}
        with (self.root / "err").open("a") as err:
            child = subprocess.Popen(
                [sys.executable, str(CHILD), json.dumps(settings)],
                stdout=subprocess.PIPE, stderr=err, text=True, env={**environment, "PYTHONPATH": str(CHILD.parents[2])},
            )  # fmt: skip
        try:
            yield child
        finally:
            child.kill()
            child.wait()
            assert child.stdout is not None
            child.stdout.close()

    def kill_once(self, directory: str, failpoint: str) -> None:
        """One life that ends at a failpoint, within a call, or after a delay; or that ends its work before."""
        if self.is_done():
            return
        times = self.random.randrange(1, 6)
        within = not failpoint and self.random.random() < 0.5
        strike = f"{failpoint}=kill:{times}" if failpoint else ""
        with self.life(directory, strike, self.random.randrange(1, 300) if within else 0) as child:
            assert child.stdout is not None
            child.stdout.readline()  # its first call has begun
            delay_s = 3.0 if within or failpoint else self.random.uniform(0, 0.4)
            until = time.monotonic() + delay_s
            while child.poll() is None and time.monotonic() < until and not self.is_done():
                time.sleep(0.005)
            self.kills += child.poll() is None or child.returncode == -signal.SIGKILL

    def is_done(self) -> bool:
        with closing(open_log(self.address)) as log:
            ats = [TopicPartition("in", partition) for partition in range(PARTITIONS)]
            found = log.group(APP).committed(ats)
            return all(at in found and found[at].offset == RECORDS for at in ats)

    def finish(self, *children: subprocess.Popen[str]) -> None:
        """Wait until all is committed; then a clean end."""
        deadline = time.monotonic() + PATIENCE_S
        while not self.is_done():
            assert time.monotonic() < deadline, (self.root / "err").read_text()[-4_000:]
            assert any(child.poll() is None for child in children), (self.root / "err").read_text()[-4_000:]
            time.sleep(0.02)
        for child in children:
            # All may have been committed before it had come to run(), where the signal ends it cleanly.
            wait_for(lambda child=child: catches(child, signal.SIGTERM) or child.poll() is not None, PATIENCE_S)
            child.send_signal(signal.SIGTERM)
            assert child.wait(PATIENCE_S) == 0, (self.root / "err").read_text()[-4_000:]

    def rows(self, topic: str) -> list[list[Row]]:
        """The records of a topic by their source partition, which their keys begin with, in the topic's order."""
        found: list[list[Row]] = [[] for _ in self.inputs]
        with closing(open_log(self.address)) as log:
            ats = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
            reader = log.reader()
            reader.assign({at: bounds.begin for at, bounds in reader.bounds(ats).items()})
            while batches := [batch for batch in reader.fetch(10_000) if batch.records]:
                for record in (record for batch in batches for record in batch.records):
                    assert record.key is not None and record.value is not None
                    key = TEXT.deserialize(record.key)
                    found[int(key.partition("-")[0])].append((key, INT.deserialize(record.value)))
            reader.close()
        return found

    def check(self) -> None:
        for partition, rows in enumerate(self.inputs):
            out, dead = plain(rows)
            for topic, expected in (("out", out), ("dead", dead)):
                found = self.rows(topic)[partition]
                assert by_key(found) == by_key(expected), f"{topic} of partition {partition}"
        with sf.Session(
            app=APP, log=self.address, state_dir=self.root / "cold", stores=[sf.KeyValueStore("sums", TEXT, INT)]
        ) as session:
            session.assign(active=list(range(PARTITIONS)))
            session.wait_ready(timeout_s=PATIENCE_S)
            for partition, rows in enumerate(self.inputs):
                last = {key: value - 1 for key, value in plain(rows)[0]}
                assert dict(session.task(partition).store("sums").all()) == last


def catches(child: subprocess.Popen[str], number: signal.Signals) -> bool:
    """Whether a process has a handler for a signal."""
    found = re.search(r"^SigCgt:\s*([0-9a-f]+)$", Path(f"/proc/{child.pid}/status").read_text(), re.MULTILINE)
    return found is not None and bool(int(found[1], 16) >> (number - 1) & 1)


def by_key(rows: list[Row]) -> dict[str, list[int]]:
    """Values by key, in order: two partitions of out may be read in any order."""
    found: dict[str, list[int]] = {}
    for key, value in rows:
        found.setdefault(key, []).append(value)
    return found


@pytest.mark.long
@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("number", range(RUNS))
def test_outputs_equal_the_plain_computation_after_kills_with_calls_in_flight(tmp_path: Path, number: int) -> None:
    seed = seed_of_run()
    crash = CallsCrash(tmp_path, seed)
    print(f"run {number}: seed {seed}", end="", flush=True)
    started = time.monotonic()
    for life in range(crash.random.randrange(2, 5)):
        crash.kill_once(crash.random.choice("ab"), FAILPOINTS[(number + life) % len(FAILPOINTS)])
    with ExitStack() as lives:
        children = [lives.enter_context(crash.life("a"))]
        if number % 2:  # the standby of the one that is killed goes on
            children.append(lives.enter_context(crash.life("b")))
            assert children[0].stdout is not None
            time.sleep(crash.random.uniform(0, 0.5))
            children.pop(0).kill()
            crash.kills += 1
        crash.finish(*children)
    crash.check()
    print(f": {crash.kills} kills, {PARTITIONS * RECORDS} records, 0 differences, {time.monotonic() - started:.1f} s")


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_doubled_lost_or_swapped_result_is_found(tmp_path: Path) -> None:
    crash = CallsCrash(tmp_path, 7)
    with crash.life("a") as child:
        crash.finish(child)
    crash.check()
    found = crash.rows("out")
    for change in (lambda rows: rows.append(rows[-1]), lambda rows: rows.pop(), lambda rows: rows.reverse()):
        changed = [list(rows) for rows in found]
        change(changed[0])
        assert by_key(changed[0]) != by_key(plain(crash.inputs[0])[0])
