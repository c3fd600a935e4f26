"""One application to be crashed: its log, its state directories, its children, and the looks at the state they leave.

    Crash.life          start a child (support/crash/child.py); it is dead afterwards
    Crash.kill_once     let it end at a failpoint or at a random time, then look
    Crash.look_at       open copies of the task databases and compare each store with the log up to its own position
    Crash.restore       a session on the directory: rows, clocks, offsets and the counter against the whole log

Rules of this file: choices follow from the seed of the run; problems are sentences that name the seed.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from standfast.replication.listeners import Listener
from standfast.replication.log import Record, TopicPolicy
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.replication.tail.open_log import open_log
from standfast.restore.digest import digest_rows
from standfast.store.failpoint import VARIABLE
from standfast.store.names import changelog_topic
from standfast.store.rocks.opening import RocksShared
from standfast.store.specs import StoreSpec, VersionedStore
from standfast.store.task.task_stores import AnyStore, TaskStores
from standfast.stream.session.session import Session
from support.crash.child import (
    APP,
    COUNTER,
    EXIT_FENCED,
    MEMORY_BYTES,
    PARTITIONS,
    START_MS,
    open_session,
    source_of,
)
from support.crash.damage import Damage, flip
from support.crash.oracle import (
    differences,
    late_rows,
    plain_fold,
    read_differences,
    recent_differences,
    row_differences,
    wrong_rows,
)
from support.crash.stores import Unlogged, draw, of_names

CHILD = Path(__file__).with_name("child.py")
PATIENCE_S = 55.0  # below LIFE_MAX_S of the child; a machine may be busy with many others
FAILPOINT_S = 5.0

VISIBLE_S = 10.0

Logged = Mapping[tuple[str, int], tuple[list[Record], int]]  # records and end of a changelog by store and partition


@dataclass
class Life:
    """One child and its output."""

    process: subprocess.Popen[bytes]
    out: Path
    err: Path
    state: Path

    def lines(self) -> list[str]:
        return self.out.read_text().split("\n")[:-1]

    def wait_until_ready(self, *, racing: bool = False) -> None:
        """Wait until all of its tasks run. `racing`: or until it lost one to the other process of a race, which on a
        busy machine may take them again before they run here, for as long as both live."""
        deadline = time.monotonic() + PATIENCE_S
        while "ready" not in self.lines() and not (racing and "lost-race" in self.lines()):
            assert self.process.poll() is None, f"the child ended by itself: {self.err.read_text()}"
            assert time.monotonic() < deadline, "the child did not become ready"
            time.sleep(0.005)

    def wait_for_failpoint(self, within_s: float = FAILPOINT_S) -> bool:
        """Whether the child met it, that long after it was ready; a child that does not is killed like any other."""
        started = deadline = time.monotonic() + PATIENCE_S
        while self.process.poll() is None and time.monotonic() < deadline:
            if deadline == started and "ready" in self.lines():
                deadline = time.monotonic() + within_s
            time.sleep(0.005)
        return self.process.poll() == -signal.SIGKILL

    def kill(self, *, may_be_fenced: bool = False) -> None:
        self.process.kill()
        allowed = {-signal.SIGKILL} | ({EXIT_FENCED} if may_be_fenced else set())
        code = self.process.wait()
        assert code in allowed, f"the child ended by itself with {code}: {self.err.read_text()}"


@dataclass
class Looked:
    """The content of a state directory at rest."""

    directory: str
    problems: list[str] = field(default_factory=list)
    positions: dict[tuple[str, int], int] = field(default_factory=dict)  # by store and partition
    rows: int = 0
    behind: int = 0  # changelogs whose position is below their end
    expired: int = 0  # families past retention that the kill left on disk


class Reasons(Listener):
    """Why each changelog was restored, and the state that was given up."""

    def __init__(self) -> None:
        self.reasons: dict[tuple[str, int], str] = {}
        self.lost: list[tuple[TaskId, str]] = []

    def on_restore_start(
        self, task: TaskId, store: str, changelog: TopicPartition, start: int, end: int, reason: str
    ) -> None:
        self.reasons[store, task.partition] = reason

    def on_state_lost(self, task: TaskId, reason: str) -> None:
        self.lost.append((task, reason))


@dataclass
class Crash:
    """One application with its log, its state directories and its children. Its choices follow from the seed."""

    root: Path
    seed: int
    guarantee: str
    address: str = ""  # of its log; empty: an embedded one of its own
    app: str = APP
    start_ms: int = START_MS
    mixed: bool = False  # whether the stores are drawn at random, unlogged ones among them
    stores: list[str] = field(default_factory=list)  # their names; empty: drawn
    acknowledged: dict[int, int] = field(default_factory=dict)
    tried: dict[int, int] = field(default_factory=dict)  # source offsets, by partition
    lives: int = 0
    kills: int = 0
    met: int = 0
    looks: dict[str, Looked] = field(default_factory=dict)
    total: Looked = field(default_factory=lambda: Looked(""))
    batches: dict[str, Unlogged] = field(default_factory=dict)  # by directory
    damages: list[Damage] = field(default_factory=list)
    harmless: int = 0
    refused: int = 0
    races: int = 0  # tasks lost to another process
    living: list[Life] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        # A kill takes nothing from the page cache, so most runs need not wait for the disk.
        embedded = f"sqlite:///{self.root}/log?synchronous={self.random.choice(('normal', 'normal', 'full'))}"
        self.address = self.address or embedded
        self.source = source_of(self.app)
        self.stores = self.stores or draw(self.random, mixed=self.mixed)
        self.specs = of_names(self.stores)
        with closing(open_log(self.address)) as log:
            log.admin.create_topic(self.source, PARTITIONS, TopicPolicy())

    def settings(self, directory: str) -> dict[str, Any]:
        return {
            "app": self.app,
            "log": self.address,
            "start_ms": self.start_ms,
            "state_dir": str(self.root / directory),
            "guarantee": self.guarantee,
            "stores": self.stores,
            "accept": {},
        }

    def unlogged(self, directory: str) -> Unlogged:
        """The expected content of the stores without a changelog in this directory."""
        return self.batches.setdefault(directory, Unlogged(self.seed, self.start_ms, self.stores))

    @contextmanager
    def life(self, role: str, directory: str, failpoint: str = "", **more: Any) -> Iterator[Life]:
        """Start a child; it is dead afterwards, and its output is kept."""
        self.lives += 1
        given = self.settings(directory) | {"role": role, "seed": self.seed, "life": f"{self.seed}/{self.lives}"} | more
        out, err = self.root / f"out.{self.lives}", self.root / f"err.{self.lives}"
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(
                [sys.executable, str(CHILD), json.dumps(given)],
                stdout=stdout,
                stderr=stderr,
                env=os.environ | {VARIABLE: failpoint},
            )
        life = Life(process, out, err, self.root / directory)
        self.living.append(life)
        try:
            yield life
        finally:
            process.kill()
            process.wait()
            self.living.remove(life)
        self.unlogged(directory).listen(life.lines())
        for line in life.lines():
            if line.startswith("lost "):
                damaged = [str(TaskId(0, one.partition)) for one in self.damages if one.directory == directory]
                assert line.split()[1] in damaged, f"seed {self.seed}, {role} in {directory}: {line}"
            self.races += line == "lost-race"
        self.hear(life)

    def hear(self, life: Life) -> None:
        """Note the offsets that a child has tried to commit, and those that it has committed, so far."""
        for line in life.lines():
            if line.startswith("try "):
                partition, _, offset = map(int, line.split()[1:])
                self.tried[partition] = max(self.tried.get(partition, 0), offset)
            if line.startswith("ack "):
                partition, offset = map(int, line.split()[1:])
                self.acknowledged[partition] = max(self.acknowledged.get(partition, 0), offset)

    def kill_once(
        self, role: str, directory: str, failpoint: str = "", *, within_s: float = FAILPOINT_S, **more: Any
    ) -> None:
        """A child that ends at the failpoint, or without one after a random while; then a look at the state it left."""
        with self.life(role, directory, failpoint, **more) as life:
            if failpoint:
                self.met += life.wait_for_failpoint(within_s)
            elif self.random.random() < 0.25:
                time.sleep(self.random.uniform(0.1, 0.5))  # anywhere, from the first import on
            else:
                life.wait_until_ready()
                time.sleep(self.random.uniform(0, 0.25))
            life.kill()
        self.kills += 1
        self.check_left(directory)

    def tasks_in(self, directory: str) -> list[int]:
        """Tasks that have files in the directory."""
        state = self.root / directory / self.app
        return [number for number in range(PARTITIONS) if (state / str(TaskId(0, number))).exists()]

    def damage(self, directory: str) -> Damage:
        """Flip a byte of one task of a directory at rest."""
        state = self.root / directory / self.app
        number = self.random.choice(self.tasks_in(directory))
        damage = flip(self.random, directory, state / str(TaskId(0, number)), number, self.stores)
        assert damage is not None
        self.damages.append(damage)
        return damage

    def mend(self, directory: str, accept: Mapping[str, bool] | None = None) -> list[str]:
        """A process that reads every row of every task, until all of them are whole or refused; returns its output."""
        with self.life("healer", directory, accept=accept or {}) as life:
            assert life.process.wait(PATIENCE_S) == 0, f"seed {self.seed}, {self.damages}: {life.err.read_text()}"
        return life.lines()

    def check_left(self, directory: str) -> Looked:
        """Compare every task directory, as the kill left it, with the log."""
        for (
            life
        ) in self.living:  # a task that was taken over from it has its clocks, and perhaps no commit of its own yet
            self.hear(life)
        looked = self.look_at(directory)
        assert not looked.problems, f"seed {self.seed}, {directory}, {self.guarantee}: " + "; ".join(looked.problems)
        self.looks[directory] = looked
        self.total.rows += looked.rows
        self.total.behind += looked.behind
        self.total.expired += looked.expired
        return looked

    def look_at(self, directory: str) -> Looked:
        """Opens a copy of each task's database, without any session, and reads the log afterwards."""
        state = self.root / directory / self.app
        looked = Looked(directory, [f"{path} was set aside" for path in (state / ".aside").glob("*")])
        copies = self.root / f"copy.{directory}"
        shutil.rmtree(copies, ignore_errors=True)
        tasks = self.tasks_in(directory)
        for number in tasks:
            shutil.copytree(state / str(TaskId(0, number)), copies / str(number))
        with ExitStack() as opened:
            stores = {
                number: opened.enter_context(closing(self.open_stores(copies / str(number), number)))
                for number in tasks
            }
            logged = self.read_log(
                {(name, number): at.offset for number, one in stores.items() for name, at in one.cut.positions.items()}
            )
            for number, one in stores.items():
                self.look_at_task(one, number, logged, looked)
        return looked

    def open_stores(self, directory: Path, number: int) -> TaskStores:
        shared = RocksShared(MEMORY_BYTES)
        return TaskStores(directory, self.app, str(TaskId(0, number)), self.specs, shared, now_ms=lambda: 0)

    def look_at_task(self, stores: TaskStores, number: int, logged: Logged, looked: Looked) -> None:
        for spec in self.specs:
            if not spec.logging:
                continue
            at = stores.cut.positions.get(spec.name)
            position = at.offset if at is not None else 0
            if at is not None:
                looked.positions[spec.name, number] = position
            log, end = logged.get((spec.name, number), ([], 0))
            below = [record for record in log if record.offset < position]
            where = f"{spec.name}-{number} at {position} of {end}"
            if position > end:
                looked.problems.append(f"{where}: it is ahead of the log")
            looked.problems += differences(stores.stores[spec.name], below, where)
            looked.rows += len(plain_fold(spec, below).rows)
            looked.behind += len(below) < len(log)
            looked.expired += len(stores.stores[spec.name].expired_families())
        offset = stores.cut.sources.get(f"{self.source}/{number}", 0)
        counted = counter_of(stores)
        if counted < offset:
            looked.problems.append(f"partition {number}: source offset {offset}, but {counted} records counted")
        unlogged = self.unlogged(looked.directory)
        unlogged.settle(number, offset)
        for spec in unlogged.stores:
            looked.rows += len(plain_fold(spec, unlogged.expected(spec.name, number)).rows)
            looked.problems += self.unlogged_problems(unlogged, stores.stores[spec.name], number)

    def read_log(self, least: Mapping[tuple[str, int], int] | None = None) -> Logged:
        """Every record of every changelog that exists, and its end.

        A record acknowledged a moment ago may be on its way to readers: ends below `least` are waited for, for a while.
        """
        with closing(open_log(self.address)) as log:
            found = {
                TopicPartition(topic, number): (spec.name, number)
                for spec in self.specs
                if spec.logging
                if log.admin.describe_topic(topic := changelog_topic(self.app, spec.name)) is not None
                for number in range(PARTITIONS)
            }
            records: dict[tuple[str, int], list[Record]] = {changelog: [] for changelog in found.values()}
            reader = log.reader()
            deadline = time.monotonic() + VISIBLE_S
            while True:
                ends = {at: bounds.end for at, bounds in reader.bounds(found).items()}
                late = [at for at, name in found.items() if ends[at] < (least or {}).get(name, 0)]
                if not late or time.monotonic() > deadline:
                    break
                time.sleep(0.01)
            reader.assign(dict.fromkeys(found, 0))
            while any(position < ends[at] for at, position in reader.assignment().items()):
                for batch in reader.fetch(10_000, 100):
                    records[found[batch.source]] += batch.records
            return {name: (records[name], ends[at]) for at, name in found.items()}

    def check_restored(self, directories: list[str]) -> None:
        """Restore the directories, all at rest, one after the other: equal to the whole log, and to each other."""
        answers = [self.restore(directory) for directory in directories]
        for directory, answer in zip(directories, answers, strict=True):
            assert answer == answers[0], f"seed {self.seed}: {directory} differs from {directories[0]}"

    def restore(self, directory: str) -> list[Any]:
        """Open at once, restore, compare; returns per partition the rows that must be equal wherever it is restored."""
        listener = Reasons()
        known = self.looks.get(directory, Looked(directory)).positions
        with open_session(self.settings(directory), listener, background=False) as session:
            session.assign(active=range(PARTITIONS))  # the leases of the killed are still running
            session.wait_ready(PATIENCE_S)
            logged = self.read_log()  # at rest: earlier writers are fenced
            problems = [f"{task} was lost: {reason}" for task, reason in listener.lost]
            for changelog, reason in listener.reasons.items():
                if (reason == "no-local-state") == (changelog in known):
                    problems.append(f"{changelog} was restored as {reason}")
            for number in range(PARTITIONS):
                problems += self.restored_problems(session, directory, number, logged)
            assert not problems, f"seed {self.seed}, {directory}, {self.guarantee}: " + "; ".join(problems)
            return [self.portable(session, number) for number in range(PARTITIONS)]

    def restored_problems(self, session: Session, directory: str, number: int, logged: Logged) -> list[str]:
        task = session.task(number)
        problems = []
        unlogged = self.unlogged(directory)
        for spec in self.specs:
            store, where = task.store(spec.name), f"{spec.name}-{number}"
            if spec.logging:
                log = logged[spec.name, number][0]
                problems += differences(store, log, where) + read_differences(store, log, where)
            else:
                problems += self.unlogged_problems(unlogged, store, number)
                if (spec.name, number) not in unlogged.given_up and not self.may_be_late(spec):
                    log = unlogged.expected(spec.name, number, store.rows.observed_ms)
                    problems += read_differences(store, log, where)
        at = TopicPartition(self.source, number)
        with closing(session.log.group(self.app)) as group:
            committed = group.committed([at])[at].offset if group.committed([at]) else 0
        ours, counted = task.source_offsets().get(at, 0), counter_of(task.stores)
        acknowledged = self.acknowledged.get(number, 0)
        if self.guarantee == "exactly_once":
            fits = counted == committed == ours >= acknowledged
        else:
            fits = counted >= ours >= committed and counted >= acknowledged
        if not fits:
            problems.append(f"{at}: counted {counted}, ours {ours}, group {committed}, acknowledged {acknowledged}")
        return problems

    def may_be_late(self, spec: StoreSpec) -> bool:
        """Whether rows without a changelog may have come too late for the store, by the clock of another instance.

        At least once an instance that is killed between its local batch and its source offsets is ahead of these. Its
        clock reaches the others with its next commit, and makes a record that they process late.
        """
        return self.guarantee == "at_least_once" and isinstance(spec, VersionedStore) and not spec.logging

    def unlogged_problems(self, unlogged: Unlogged, store: AnyStore, number: int) -> list[str]:
        """How a store without a changelog differs from the local batches of its directory.

        Where an operator accepted that rows are gone, some may be missing; the others are as they were.
        """
        name, observed_ms = store.spec.name, store.rows.observed_ms
        where = f"unlogged {name}-{number}"
        records = unlogged.expected(name, number, observed_ms)
        largest_ms = unlogged.times(name, number, self.tried.get(number, 0))
        problems = (
            [] if observed_ms <= largest_ms else [f"{where}: observed {observed_ms}, but {largest_ms} is the largest"]
        )
        if (name, number) in unlogged.given_up:
            return problems + wrong_rows(store, records, f"{where}, accepted")
        if number in unlogged.clockless and observed_ms < largest_ms:
            return problems + late_rows(store, records, where)
        if self.may_be_late(store.spec):
            return problems + recent_differences(store, records, where)
        return problems + row_differences(store, records, where)

    def portable(self, session: Session, number: int) -> dict[str, Any]:
        task = session.task(number)
        stores = {name: store for name, store in task.stores.stores.items() if store.spec.logging}
        answer: dict[str, Any] = {
            "digests": {name: digest_rows(store.logical_rows()).hex() for name, store in stores.items()},
            "observed": {name: store.rows.observed_ms for name, store in stores.items()},
            "sequences": {name: store.rows.sequence for name, store in stores.items()},
        }
        if self.guarantee == "exactly_once":
            # At least once, the local offsets may be ahead of the group's by the commit that was cut short.
            answer |= {"sources": task.source_offsets(), "stream_times": dict(task.stream_times)}
        return answer


def counter_of(stores: TaskStores) -> int:
    counts: Any = stores.store("counts")
    return counts.get(COUNTER) or 0
