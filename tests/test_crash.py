"""Kill -9 at random moments: what is left equals the log, folded to where it stands.

    child (crash_child.py) ──SIGKILL──> look at its directories ──> next life ... ──> restore warm and cold

After each kill every task directory is opened (a copy, so that the next life finds it as the kill left it) and
compared with the log: rows and observed stream time of each store at the stored position of its own changelog. After
the last one a session on the same directory (warm) and one on a fresh directory (cold) must restore the same rows,
stream times and source offsets, and the counter that was committed with the offsets must agree with them.

Rules of this file: the expected rows come from the plain loops below, which share nothing with the library; that its
own fold and digest agree is checked beside it. Each run prints its seed: STANDFAST_CRASH_SEED=seed repeats its
choices (a kill after a delay hits where it hits), STANDFAST_CRASH_RUNS is the number of runs.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
from crash_child import APP, COUNTER, EXIT_FENCED, PARTITIONS, SOURCE, SPECS, open_session
from crash_oracle import differences, read_differences

from standfast.replication.listeners import Listener
from standfast.replication.log import Record, TopicPolicy
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.replication.open_log import open_log
from standfast.restore.digest import digest_rows
from standfast.restore.fold import fold_for
from standfast.store.failpoint import NAMES, VARIABLE, parse
from standfast.store.cut import Cut, Position
from standfast.store.errors import BadConfig
from standfast.store.names import changelog_topic
from standfast.store.rocks import RocksShared
from standfast.store.specs import SessionStore, StoreSpec, VersionedStore, WindowStore
from standfast.store.task_stores import TaskStores
from standfast.stream.session import Session

pytestmark = [pytest.mark.slow]

RUNS = int(os.environ.get("STANDFAST_CRASH_RUNS", "20"))
CHILD = Path(__file__).with_name("crash_child.py")
READY_S = 30.0
FAILPOINT_S = 5.0
MEMORY_BYTES = 8 << 20
GUARANTEES = ("exactly_once", "at_least_once")
# Role of the process to be killed, and where the first of its kills strikes; two guarantees for each.
STRIKES = (
    ("writer", "commit.logged"),
    ("writer", "commit.local"),
    ("writer", "stores.families"),
    ("writer", "stores.written"),
    ("writer", "stores.dropped"),
    ("restorer", "restore.apply"),
    ("restorer", "stores.written"),
    ("restorer", "stores.dropped"),
    ("standby", "standby.apply"),
    ("standby", "stores.dropped"),
)

Row = tuple[bytes, int, bytes]


# -- one application with its log, its directories and its children ----------------------------------------------------


@dataclass
class Life:
    """One child: how it is started and what it said."""

    process: subprocess.Popen[bytes]
    out: Path
    err: Path

    def lines(self) -> list[str]:
        return [line for line in self.out.read_text().split("\n")[:-1] if line]

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + READY_S
        while "ready" not in self.lines():
            assert self.process.poll() is None, f"the child ended by itself: {self.err.read_text()}"
            assert time.monotonic() < deadline, "the child did not become ready"
            time.sleep(0.005)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def check_end(self, *, may_be_fenced: bool) -> None:
        allowed = {-signal.SIGKILL} | ({EXIT_FENCED} if may_be_fenced else set())
        code = self.process.wait()
        assert code in allowed, f"the child ended by itself with {code}: {self.err.read_text()}"


@dataclass
class Crash:
    """One run: everything about it follows from its seed and guarantee, but for what the clock decides."""

    root: Path
    seed: int
    guarantee: str
    random: Random = field(init=False)
    acknowledged: dict[int, int] = field(default_factory=dict)
    lives: int = 0
    kills: int = 0

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.address = f"sqlite:///{self.root}/log?synchronous={self.random.choice(('normal', 'normal', 'full'))}"
        log = open_log(self.address)
        log.admin.create_topic(SOURCE, PARTITIONS, TopicPolicy())
        log.close()

    @contextmanager
    def life(self, role: str, directory: str, failpoint: str = "", **settings: Any) -> Iterator[Life]:
        """Start a child; whatever happens it is dead afterwards, and what it acknowledged is kept."""
        self.lives += 1
        given = {"role": role, "guarantee": self.guarantee, "seed": self.seed, "life": f"{self.seed}/{self.lives}"}
        out, err = self.root / f"out.{self.lives}", self.root / f"err.{self.lives}"
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(
                [sys.executable, str(CHILD), json.dumps(given | self.where(directory) | settings)],
                stdout=stdout,
                stderr=stderr,
                env=os.environ | {VARIABLE: failpoint},
            )
        life = Life(process, out, err)
        try:
            yield life
        finally:
            life.kill()
            for line in life.lines():
                if line.startswith("ack "):
                    _, partition, offset = line.split()
                    number = int(partition)
                    self.acknowledged[number] = max(self.acknowledged.get(number, 0), int(offset))

    def where(self, directory: str) -> dict[str, str]:
        return {"log": self.address, "state_dir": str(self.root / directory), "guarantee": self.guarantee}

    def kill_once(self, role: str, directory: str, failpoint: str = "", **settings: Any) -> None:
        """One life of a child that ends at the failpoint, or else after a random while; then look what it left."""
        with self.life(role, directory, failpoint, **settings) as life:
            if failpoint:
                self.wait_for_failpoint(life)
            elif self.random.random() < 0.4:
                time.sleep(self.random.uniform(0.05, 0.6))  # anywhere, from the first import on
            else:
                life.wait_until_ready()
                time.sleep(self.random.uniform(0, 0.3))
            life.kill()
            life.check_end(may_be_fenced=False)
        self.kills += 1
        self.check_left(directory)

    def wait_for_failpoint(self, life: Life) -> None:
        try:
            life.process.wait(FAILPOINT_S)
        except subprocess.TimeoutExpired:
            life.kill()  # not met in this life: then it is a kill like any other

    # -- checks --------------------------------------------------------------------------------------------------------

    def read_log(self) -> dict[tuple[str, int], list[Record]]:
        """Every record of every changelog there is, by store and partition."""
        log = open_log(self.address)
        try:
            there = [spec.name for spec in SPECS if log.admin.describe_topic(changelog_topic(APP, spec.name))]
            found = {
                TopicPartition(changelog_topic(APP, name), number): (name, number)
                for name in there
                for number in range(PARTITIONS)
            }
            records: dict[tuple[str, int], list[Record]] = {changelog: [] for changelog in found.values()}
            reader = log.reader()
            ends = reader.bounds(found)
            reader.assign(dict.fromkeys(found, 0))
            while any(position < ends[at].end for at, position in reader.assignment().items()):
                for batch in reader.fetch(10_000):
                    records[found[batch.source]] += batch.records
            return records
        finally:
            log.close()

    def check_left(self, directory: str) -> int:
        """Compare every task directory, as the kill left it, with the log; returns how many rows were compared."""
        problems, compared = self.look_at(directory)
        assert not problems, f"seed {self.seed}, directory {directory}, {self.guarantee}: " + "; ".join(problems)
        return compared

    def look_at(self, directory: str) -> tuple[list[str], int]:
        """What is wrong with a state directory at rest, and how many rows were compared."""
        state = self.root / directory / APP
        problems = [f"{path} was set aside" for path in (state / ".aside").glob("*")]
        compared = 0
        copies = []
        for number in range(PARTITIONS):
            task = str(TaskId(0, number))
            if (state / task).exists():
                copy = self.root / f"copy.{directory}" / task
                shutil.rmtree(copy, ignore_errors=True)
                shutil.copytree(state / task, copy)
                copies.append((number, task, copy))
        records = self.read_log()  # after the copies, so that it reaches as far as they do
        for number, task, copy in copies:
            stores = open_stores(copy, task)
            try:
                problems += one_cut(stores, number)
                for spec in SPECS:
                    position = stores.cut.positions.get(spec.name, Position(0)).offset
                    log = records.get((spec.name, number), [])
                    problems += differences(spec, stores, log[:position], f"{spec.name} of {task} at {position}")
                    if position > len(log):
                        problems.append(f"{spec.name} of {task} is at {position}, the log ends at {len(log)}")
                    compared += len(plain_fold(spec, log[:position]).rows)
            finally:
                stores.close()
        return problems, compared

    def check_restored(self, *directories: str) -> None:
        """Restore the directories one after the other: equal to the whole log, and to each other."""
        records = self.read_log()
        answers = {directory: self.restore(directory, records) for directory in directories}
        first = answers[directories[0]]
        for directory, answer in answers.items():
            assert answer == first, f"seed {self.seed}: {directory} differs from {directories[0]}"

    def restore(self, directory: str, records: Mapping[tuple[str, int], list[Record]]) -> dict[int, Any]:
        """Open, restore, compare with the whole log; returns what must be equal wherever it is restored."""
        listener = Reasons()
        held = (self.root / directory / APP / "INSTANCE").exists()
        positions = self.stored_positions(directory) if held else {}
        session = open_session(self.where(directory) | {"background": False})
        session.listeners.add(listener)
        try:
            session.assign(active=range(PARTITIONS))
            session.wait_ready(READY_S)
            assert not listener.lost, f"seed {self.seed}: {directory} was wiped: {listener.lost}"
            for (store, number), reason in listener.reasons.items():
                known = (store, number) in positions
                assert (reason == "no-local-state") != known, f"seed {self.seed}: {store}-{number} restored: {reason}"
            answer = {}
            for number in range(PARTITIONS):
                task = session.task(number)
                problems = []
                for spec in SPECS:
                    log = records.get((spec.name, number), [])
                    problems += differences(spec, task.stores, log, f"restored {spec.name}-{number}")
                    problems += library_differences(spec, task.stores, log, f"restored {spec.name}-{number}")
                problems += self.counter_problems(session, number)
                assert not problems, f"seed {self.seed}, directory {directory}: " + "; ".join(problems)
                answer[number] = self.portable(session, number)
            return answer
        finally:
            session.close()

    def stored_positions(self, directory: str) -> dict[tuple[str, int], int]:
        found = {}
        for number in range(PARTITIONS):
            path = self.root / directory / APP / str(TaskId(0, number))
            copy = self.root / "copy.positions"
            if path.exists():
                shutil.rmtree(copy, ignore_errors=True)
                shutil.copytree(path, copy)
                stores = open_stores(copy, str(TaskId(0, number)))
                found.update({(name, number): at.offset for name, at in stores.cut.positions.items()})
                stores.close()
        return found

    def portable(self, session: Session, number: int) -> Any:
        """Rows, clocks and offsets, which do not depend on where they were restored."""
        task = session.task(number)
        stores = task.stores.stores
        return {
            "digests": {name: digest_rows(store.logical_rows()) for name, store in stores.items()},
            "observed": {name: store.rows.observed_ms for name, store in stores.items()},
            "sequences": {name: store.rows.sequence for name, store in stores.items()},
            # At least once, the local offsets may be ahead of the group's by the commit that was cut short.
            "sources": task.source_offsets() if self.guarantee == "exactly_once" else None,
            "stream_times": dict(task.stream_times) if self.guarantee == "exactly_once" else None,
        }

    def counter_problems(self, session: Session, number: int) -> list[str]:
        task = session.task(number)
        at = TopicPartition(SOURCE, number)
        committed = session.log.group(APP).committed([at]).get(at, (0, ""))[0]
        ours = task.source_offsets().get(at, 0)
        counted = task.store("counts").get(COUNTER) or 0
        acknowledged = self.acknowledged.get(number, 0)
        numbers = f"partition {number}: counter {counted}, group {committed}, ours {ours}, acknowledged {acknowledged}"
        if self.guarantee == "exactly_once":
            return [numbers] if not counted == committed == ours >= acknowledged else []
        return [numbers] if not counted >= ours >= committed or counted < acknowledged else []


class Reasons(Listener):
    """Why each changelog was restored, and what was given up."""

    def __init__(self) -> None:
        self.reasons: dict[tuple[str, int], str] = {}
        self.lost: list[tuple[TaskId, str]] = []

    def on_restore_start(
        self, task: TaskId, store: str, changelog: TopicPartition, position: int, end: int, reason: str
    ) -> None:
        self.reasons[store, task.partition] = reason

    def on_state_lost(self, task: TaskId, reason: str) -> None:
        self.lost.append((task, reason))


def open_stores(directory: Path, task: str) -> TaskStores:
    return TaskStores(directory, APP, task, SPECS, RocksShared(MEMORY_BYTES), now_ms=lambda: 0)


def one_cut(stores: TaskStores, number: int) -> list[str]:
    """The local source offset never stands for rows that are not here."""
    offset = stores.cut.sources.get(f"{SOURCE}/{number}", 0)
    counted = stores.store("counts").get(COUNTER) or 0
    return [f"partition {number}: local source offset {offset}, but {counted} records counted"] if counted < offset else []


# -- the runs ----------------------------------------------------------------------------------------------------------


def kill_writer(crash: Crash, failpoint: str) -> tuple[str, ...]:
    crash.kill_once("writer", "a", failpoint)
    for _ in range(2):
        crash.kill_once("writer", "a")
    return ("a",)


def kill_restorer(crash: Crash, failpoint: str) -> tuple[str, ...]:
    with crash.life("writer", "a", stop_after=crash.random.randrange(100, 250)) as writer:
        assert writer.process.wait(READY_S) == 0, writer.err.read_text()
    crash.kill_once("restorer", "b", failpoint)
    for _ in range(2):
        crash.kill_once("restorer", "b")
    return ("b", "a")


def kill_standby(crash: Crash, failpoint: str) -> tuple[str, ...]:
    """The standby is killed while it follows a live writer, then while it takes over; the writer is killed last."""
    with crash.life("writer", "a") as writer:
        writer.wait_until_ready()
        crash.kill_once("standby", "b", failpoint)
        crash.kill_once("standby", "b")
        writer_dies_first = crash.random.random() < 0.5
        if writer_dies_first:
            writer.kill()
            crash.check_left("a")
        crash.kill_once("standby", "b", promote_ms=crash.random.randrange(200))
        writer.kill()
        writer.check_end(may_be_fenced=True)
    crash.kills += 1
    crash.check_left("a")
    return ("b", "a")


KILLS = {"writer": kill_writer, "restorer": kill_restorer, "standby": kill_standby}


@pytest.mark.crash
@pytest.mark.parametrize("number", range(RUNS))
def test_state_equals_the_log_after_kills(tmp_path: Path, number: int) -> None:
    seed = int(os.environ.get("STANDFAST_CRASH_SEED", "0")) or secrets.randbits(32)
    random = Random(seed)
    guarantee = GUARANTEES[number % 2]
    role, name = STRIKES[number // 2 % len(STRIKES)]
    times = random.randint(1, 4) if name == "stores.dropped" else random.randint(1, 25)
    crash = Crash(tmp_path, seed, guarantee)
    started = time.monotonic()
    print(f"run {number}: seed {seed}, {guarantee}, {role} at {name} #{times}", end="", flush=True)
    directories = [*KILLS[role](crash, f"{name}=kill:{times}"), "cold"]
    random.shuffle(directories)
    crash.check_restored(*directories)
    print(f": {crash.kills} kills, {time.monotonic() - started:.1f} s, 0 differences")
