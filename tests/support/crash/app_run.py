"""A whole application to be crashed: its input, its lives, and the comparison of its results with the oracle.

    AppCrash.feed         a part of the input, so that the process to be killed always has records
    AppCrash.life         start a process (support/crash/app_child.py) on one state directory; it is dead afterwards
    AppCrash.kill_once    let it end at a strike, a failpoint or a random time
    AppCrash.finish       the rest of the input, until all of it is processed and committed; then a clean end
    AppCrash.check        outputs, every directory at rest, every directory and an empty one restored

Rules of this file: choices follow from the seed of the run; problems are sentences that name the seed.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from standfast.replication.listeners import Listener
from standfast.replication.log import Log, Record, TopicPolicy
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.replication.tail.open_log import open_log
from standfast.restore.digest import digest_rows
from standfast.store.clock import SystemClock
from standfast.store.errors import Unavailable
from standfast.store.failpoint import VARIABLE
from standfast.store.names import changelog_topic
from standfast.store.rocks.opening import RocksShared
from standfast.store.task.task_stores import TaskStores
from standfast.stream.runtime import event_time
from standfast.stream.task.states import TaskState
from standfast.stream.task.task import Task
from standfast.stream.topology.assembly import Assembled, assemble
from support.crash.app_child import APP, INPUTS, INTERNAL, MEMORY_BYTES, NOTES, TASKS, TOPICS, make_app
from support.crash.app_oracle import Expected, Inputs, Outputs, Stores, compare, expect, make_inputs, outgoing, read_row
from support.crash.damage import Damage, flip
from support.crash.oracle import differences
from support.crash.run import Life

CHILD = Path(__file__).with_name("app_child.py")
RECORDS = 500  # of each input partition
PATIENCE_S = 40.0
STRIKE_S = 6.0
FEED_S = 0.03
REPEAT_S = event_time.REPEAT_MS / 1_000 + 2
MAX_STALL_MS = 1_000  # a stalled process loses its lease so much later
LEASE_MS = 1_000  # over a second: a busy machine would give leases away; each take-over waits for one
NO_STRIKE = ("", 0, "kill")

Strike = tuple[str, int, str]  # place in the application, number of times, kill or raise


@dataclass(frozen=True)
class AppDamage:
    """A flipped byte of one task. `may_refuse`: it may have cost rows that no log has, and an operator accepts that.

    It is also unknown whether an unreadable directory had rows of a store whose changelog is empty.
    """

    directory: str
    task: TaskId
    byte: Damage
    may_refuse: bool


class Losses(Listener):
    """Notes lost state; no run has a reason to lose any."""

    def __init__(self) -> None:
        self.lost: list[str] = []

    def on_state_lost(self, task: TaskId, reason: str) -> None:
        self.lost.append(f"{task} was lost: {reason}")


@dataclass
class AppCrash:
    """One application with its log, its state directories and its processes."""

    root: Path
    seed: int
    guarantee: str
    records: int = RECORDS
    cached: bool | None = None
    lives: int = 0
    kills: int = 0
    met: int = 0
    rows: int = 0
    outputs: int = 0
    directories: set[str] = field(default_factory=set)
    standbys: int = 1
    damages: list[AppDamage] = field(default_factory=list)
    lost: int = 0  # stores or directories lost to a damage
    notes: dict[tuple[str, int], set[int]] = field(default_factory=lambda: defaultdict(set))

    def __post_init__(self) -> None:
        self.random = random = Random(self.seed)
        self.address = f"sqlite:///{self.root}/log?synchronous=normal"  # a kill takes nothing from the page cache
        self.volatile = random.random() < 0.3
        self.cached = random.random() < 0.7 if self.cached is None else self.cached
        self.commit_interval_ms = random.choice((15, 60, 250))
        self.unlogged = random.random() < 0.5
        self.grace_ms = random.choice((0, 500))  # the next life may have another directory
        self.inputs: Inputs = make_inputs(self.seed, self.records)
        self.expected: Expected = expect(self.inputs)
        self.fed = 0
        with closing(open_log(self.address)) as log:
            for topic, partitions in TOPICS.items():
                log.admin.create_topic(topic, partitions, TopicPolicy())

    def settings(self, directory: str, **more: Any) -> dict[str, Any]:
        place, times, how = more.get("strike", NO_STRIKE)
        return {
            "log": self.address,
            "state_dir": str(self.root / directory),
            "guarantee": self.guarantee,
            "volatile": self.volatile,
            "unlogged": self.unlogged,
            "standbys": self.standbys,
            "accept": any(one.directory == directory and one.may_refuse for one in self.damages),
            "lease_ms": LEASE_MS,
            "grace_ms": self.grace_ms,
            "max_stall_ms": MAX_STALL_MS,
            "cache_max_bytes": (1 << 20) if self.cached else 0,
            "commit_interval_ms": self.commit_interval_ms,
            "turn_records": self.random.choice((7, 50, 500)),
            "purge_interval_ms": self.random.choice((50, 30_000)),
            "restore_records": self.random.choice((40, 5_000)),
            "strike": {"place": place, "times": times, "how": how},
        }

    # -- input ---------------------------------------------------------------------------------------------------------

    def feed(self, share: float) -> None:
        """Append the next part of every input partition, up to this share of all of it."""
        upto = min(int(self.records * share), self.records)
        if upto <= self.fed:
            return
        with closing(open_log(self.address)) as log, closing(log.producer()) as producer:
            for (topic, partition), rows in self.inputs.items():
                producer.append({TopicPartition(topic, partition): outgoing(rows[self.fed : upto])})
        self.fed = upto

    def trickle(self, share: float) -> None:
        """A little more of the input, while a process runs; `share` is where it must stop."""
        time.sleep(FEED_S)
        self.feed(min(share, self.fed / self.records + 0.02))

    # -- lives ---------------------------------------------------------------------------------------------------------

    @contextmanager
    def life(self, directory: str, failpoint: str = "", strike: Strike = NO_STRIKE) -> Iterator[Life]:
        """Start a process; it is dead afterwards, and its output is checked."""
        self.lives += 1
        self.directories.add(directory)
        out, err = self.root / f"out.{self.lives}", self.root / f"err.{self.lives}"
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(
                [sys.executable, str(CHILD), json.dumps(self.settings(directory, strike=strike))],
                stdout=stdout,
                stderr=stderr,
                env=os.environ | {VARIABLE: failpoint},
            )
        life = Life(process, out, err, self.root / directory)
        try:
            yield life
        finally:
            process.kill()
            process.wait()
        for line in life.lines():
            if line.startswith("lost "):
                damaged = [str(one.task) for one in self.damages if one.directory == directory]
                assert line.split()[1] in damaged, f"seed {self.seed}, {directory}: {line}"
                self.lost += 1
            elif line.startswith("kept "):
                _, partition, offsets = line.split()
                self.notes[directory, int(partition)].update(map(int, offsets.split(",")))

    def kill_once(self, directory: str, share: float, failpoint: str = "", strike: Strike = NO_STRIKE) -> None:
        """A process that ends at the strike or failpoint, or after a random while."""
        with self.life(directory, failpoint, strike) as life:
            self.end(life, share, struck=bool(failpoint or strike[0]))

    @staticmethod
    def wait_until_ready(life: Life) -> None:
        """As Life does; a process that already ended at its place is ready too."""
        while "ready" not in life.lines() and life.process.poll() != -signal.SIGKILL:
            assert life.process.poll() is None, f"the child ended by itself: {life.err.read_text()}"
            time.sleep(0.005)

    def end(self, life: Life, share: float, *, struck: bool) -> None:
        """Wait for the strike, or for a random while without one, and kill; `share` of the input is fed meanwhile."""
        if struck:
            deadline = time.monotonic() + STRIKE_S
            while life.process.poll() is None and time.monotonic() < deadline:
                self.trickle(share)
            self.met += life.process.poll() == -signal.SIGKILL
        else:
            if self.random.random() < 0.8:
                self.wait_until_ready(life)
            deadline = time.monotonic() + self.random.uniform(0, 0.6)
            while time.monotonic() < deadline:
                self.trickle(share)
        life.kill()
        self.kills += 1

    def freeze(self, life: Life) -> None:
        """Stop a process until SIGCONT, but not during a write to the log: its lock would stop all other processes."""
        with (self.root / "log.lock").open("rb") as lock:
            while True:
                life.process.send_signal(signal.SIGSTOP)
                while not stands_still(life.process.pid):
                    time.sleep(0.001)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    life.process.send_signal(signal.SIGCONT)
                    time.sleep(0.005)
                else:
                    fcntl.flock(lock, fcntl.LOCK_UN)
                    return

    def fail_once(self, directory: str, share: float, place: str, times: int) -> None:
        """A process in which one task fails and is reopened while the others go on; killed later on."""
        with self.life(directory, strike=(place, times, "raise")) as life:
            deadline = time.monotonic() + STRIKE_S
            while "failed" not in life.lines() and time.monotonic() < deadline:
                self.trickle(share)
            self.met += "failed" in life.lines()
            self.end(life, share, struck=False)

    def finish(self, *directories: str) -> None:
        """Processes on these directories until everything is processed and committed; they end cleanly."""
        with ExitStack() as stack:
            lives = [stack.enter_context(self.life(directory)) for directory in directories]
            self.finish_with(lives)

    def finish_with(self, lives: list[Life]) -> None:
        """As `finish`, with running processes."""
        deadline = time.monotonic() + PATIENCE_S
        with closing(open_log(self.address)) as log:
            while self.fed < self.records or not self.done(log):
                self.trickle(1)
                for life in lives:
                    assert life.process.poll() is None, f"seed {self.seed}: it ended by itself: {life.err.read_text()}"
                assert time.monotonic() < deadline, f"seed {self.seed}: not done: {self.open_offsets(log)}"
        self.await_boards()
        self.await_copies(lives)
        for life in reversed(lives):
            life.process.terminate()
            assert life.process.wait(PATIENCE_S) == 0, f"seed {self.seed}: {life.err.read_text()}"

    def await_boards(self) -> None:
        """Wait for the boards: a task that reopened alone gets an upstream watermark only when it is repeated."""
        deadline = time.monotonic() + REPEAT_S
        wanted = sum(len(rows) for (topic, _), rows in self.expected.outputs.items() if topic == "boards")
        while sum(map(len, self.read_topics({"boards": 2}).values())) < wanted and time.monotonic() < deadline:
            time.sleep(FEED_S)

    def await_copies(self, lives: list[Life]) -> None:
        """Wait until set-aside state is removed, once the rows are whole again, be it by the last standby."""
        deadline = time.monotonic() + PATIENCE_S
        while copies := [path for life in lives for path in (life.state / APP / ".aside").glob("*")]:
            assert time.monotonic() < deadline, f"seed {self.seed}: set aside for ever: {copies}"
            time.sleep(FEED_S)

    def done(self, log: Log) -> bool:
        """Whether everything is processed and committed: first the external input, then the topics between tasks."""
        try:
            return not self.open_offsets(log, INPUTS) and not self.open_offsets(log, tuple(INTERNAL))
        except Unavailable:  # a process that gets no processor time may hold the log's lock for over a second
            return False

    def open_offsets(self, log: Log, topics: tuple[str, ...] = (*INPUTS, *INTERNAL)) -> dict[str, str]:
        """Source partitions whose committed offset is not their end."""
        counts = TOPICS | INTERNAL
        if any(log.admin.describe_topic(topic) is None for topic in topics):
            return {"": "a topic is not there yet"}
        wanted = [TopicPartition(topic, number) for topic in topics for number in range(counts[topic])]
        with closing(log.reader()) as reader, closing(log.group(APP)) as group:
            ends, committed = reader.bounds(wanted), group.committed(wanted)
        found = {at: committed[at].offset if at in committed else None for at in wanted}
        return {str(at): f"{found[at]} of {ends[at].end}" for at in wanted if found[at] != ends[at].end}

    def damage(self, directory: str) -> None:
        """Flip a byte of one task of a directory that no process has open."""
        state = self.root / directory / APP
        groups = self.assembled().groups
        tasks = [TaskId(number, partition) for number, group in groups.items() for partition in range(group.partitions)]
        task = self.random.choice([one for one in tasks if (state / str(one)).exists()])
        stores = [spec.name for spec in groups[task.group].specs]
        byte = flip(self.random, directory, state / str(task), task.partition, stores)
        if byte is None:
            return
        may_refuse = byte.store in (NOTES, "")
        self.damages.append(AppDamage(directory, task, byte, may_refuse))

    # -- checks --------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Compare everything that the run left."""
        outputs = self.read_outputs()
        self.outputs += sum(map(len, outputs.values()))
        for one in self.damages:
            one.byte.turn_back()  # if no read has met it up to now
        names = [*sorted(self.directories), "cold"]
        self.random.shuffle(names)
        answers = []
        problems = [problem for name in sorted(self.directories) for problem in self.problems_at_rest(name)]
        for name in names:
            stores, answer, found = self.restore(name)
            problems += [f"{name}: {one}" for one in found + self.problems(outputs, stores)]
            answers.append(answer)
        problems += [
            f"{name} differs from {names[0]}: {answer} for {answers[0]}"
            for name, answer in zip(names, answers, strict=True)
            if self.guarantee == "exactly_once" and answer != answers[0]
        ]
        assert not problems, f"seed {self.seed}, {self.guarantee}: " + "; ".join(problems[:8])

    def problems(self, outputs: Outputs, stores: Stores) -> list[str]:
        """Differences of outputs and stores from the oracle."""
        return compare(self.expected, outputs, stores, self.guarantee, cached=bool(self.cached))

    def read_outputs(self) -> Outputs:
        """Every record of every output topic, in the oracle's terms."""
        topics = {topic: count for topic, count in TOPICS.items() if topic not in INPUTS}
        outputs: Outputs = defaultdict(list)
        for (topic, partition), records in self.read_topics(topics).items():
            for _, stamp, key, value, headers in records:
                assert key is not None
                outputs[topic, partition].append(read_row(topic, key, value, stamp, headers))
        return outputs

    def read_topics(self, topics: dict[str, int]) -> dict[tuple[str, int], list[Record]]:
        wanted = [TopicPartition(topic, number) for topic, count in topics.items() for number in range(count)]
        found: dict[tuple[str, int], list[Record]] = {(at.topic, at.partition): [] for at in wanted}
        with closing(open_log(self.address)) as log, closing(log.reader()) as reader:
            ends = reader.bounds(wanted)
            reader.assign({at: ends[at].begin for at in wanted})
            while any(position < ends[at].end for at, position in reader.assignment().items()):
                for batch in reader.fetch(10_000):
                    found[batch.source.topic, batch.source.partition] += batch.records
        return found

    def assembled(self) -> Assembled:
        app = make_app(self.settings("nowhere"))
        with closing(open_log(self.address)) as log:
            return assemble(app.builder, log.admin, self.address)

    def read_changelogs(self, assembled: Assembled) -> dict[tuple[str, int], list[Record]]:
        """Records of every changelog by store and partition."""
        topics = changelogs_of(assembled)
        found = self.read_topics({topic: partitions for topic, (_, partitions) in topics.items()})
        return {(topics[topic][0], partition): records for (topic, partition), records in found.items()}

    def changelog_ends(self, assembled: Assembled) -> dict[tuple[str, int], int]:
        """End offset of every changelog by store and partition: the number of records if care removed none."""
        wanted = {
            TopicPartition(topic, number): (store, number)
            for topic, (store, partitions) in changelogs_of(assembled).items()
            for number in range(partitions)
        }
        with closing(open_log(self.address)) as log, closing(log.reader()) as reader:
            return {wanted[at]: found.end for at, found in reader.bounds(list(wanted)).items()}

    def problems_at_rest(self, directory: str) -> list[str]:
        """Every store of a directory that no process has open against its changelog, up to the store's own position.

        A changelog that log care compacted meanwhile (in runs of 30 s and more) no longer has the rows of an earlier
        offset: such a store is compared where it is restored, which is to the end.
        """
        assembled, shared = self.assembled(), RocksShared(MEMORY_BYTES)
        changelogs, ends = self.read_changelogs(assembled), self.changelog_ends(assembled)
        state, copies = self.root / directory / APP, self.root / f"copy.{directory}"
        problems = [f"{directory}: {path} was set aside" for path in (state / ".aside").glob("*")]
        for number, group in assembled.groups.items():
            for partition in range(group.partitions):
                name = str(TaskId(number, partition))
                if not (state / name).exists() or not group.specs:
                    continue
                shutil.copytree(state / name, copies / name)
                specs = [spec for spec in group.specs if spec.engine != "memory"]
                with closing(TaskStores(copies / name, APP, name, specs, shared, now_ms=lambda: 0)) as stores:
                    for spec in specs:
                        if not spec.logging:
                            problems += self.notes_problems(stores.stores[spec.name], directory, partition)
                            continue
                        at = stores.cut.positions.get(spec.name)
                        log = changelogs[spec.name, partition]
                        if len(log) < ends[spec.name, partition]:
                            continue
                        where = f"{directory}, {spec.name}-{partition} at {at} of {len(log)}"
                        kept = log[: at.offset if at is not None else 0]
                        problems += differences(stores.stores[spec.name], kept, where)
        return problems

    def notes_problems(self, store: Any, directory: str, partition: int) -> list[str]:
        """Differences of a store without a changelog from the commits of this directory: a row for each click.

        A commit that the kill met may be there or not. Rows that an operator gave up may be gone.
        """
        rows, inputs = read_store(store), self.inputs["clicks", partition]
        wrong = {key: value for key, value in rows.items() if inputs[int(key)].value["n"] != value}
        given_up = any(
            one.may_refuse and (one.directory, one.task) == (directory, TaskId(0, partition)) for one in self.damages
        )
        missing = {str(offset) for offset in self.notes[directory, partition]} - rows.keys()
        self.rows += len(rows)
        where = f"{directory}, unlogged {store.spec.name}-{partition}"
        found = [f"{where}: {len(wrong)} rows are wrong: {sorted(wrong.items())[:2]}"] if wrong else []
        if missing and not given_up:
            found.append(
                f"{where}: {len(missing)} rows of {len(rows) + len(missing)} are missing: {sorted(missing)[:2]}"
            )
        return found

    def restore(self, directory: str) -> tuple[Stores, list[Any], list[str]]:
        """Open at once and restore; rows as the oracle names them, the portable rows, and problems."""
        losses = Losses()
        assembled = self.assembled()
        changelogs = self.read_changelogs(assembled)
        settings = self.settings(directory)
        app = make_app(settings, listener=losses)
        clock = SystemClock()
        with app.open_session(
            assembled, self.address, settings["state_dir"], clock, background=False, alone=True
        ) as session:
            deadline = time.monotonic() + PATIENCE_S
            while True:
                session.poll_once()
                tasks = session.all_tasks()
                if len(tasks) == TASKS and all(task.state is TaskState.RUNNING for task in tasks.values()):
                    break
                assert time.monotonic() < deadline, f"seed {self.seed}, {directory}: {session.missing()}"
            problems, stores = list(losses.lost), Stores()
            for task_id, task in sorted(tasks.items()):
                for name, store in task.stores.stores.items():
                    if not store.spec.logging:
                        problems += self.notes_problems(store, directory, task_id.partition)
                        continue
                    log = changelogs[name, task_id.partition]
                    problems += differences(store, log, f"restored {name}-{task_id.partition}")
                    stores[name, task_id.partition] = read_store(store)
                    self.rows += len(stores[name, task_id.partition])
            return stores, [portable(task) for _, task in sorted(tasks.items())], problems


def read_store(store: Any) -> dict[Any, Any]:
    with store.all() as rows:
        return {tuple(key) if isinstance(key, tuple) else key: value for key, value in rows}


def portable(task: Task) -> dict[str, Any]:
    """The rows that are equal wherever a task is restored, exactly once."""
    stores = {name: store for name, store in task.stores.stores.items() if store.spec.logging}
    return {
        "task": str(task.id),
        "digests": {name: digest_rows(store.logical_rows()).hex() for name, store in stores.items()},
        "observed": {name: store.rows.observed_ms for name, store in stores.items()},
        "sources": task.source_offsets(),
        "stream_times": dict(task.stream_times),
        "progress": dict(task.progress),
    }


def stands_still(pid: int) -> bool:
    """Whether every thread of a process has stopped: a thread not yet stopped may still get a lock."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        try:
            state = (thread / "stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        if state not in ("T", "t"):
            return False
    return True


def changelogs_of(assembled: Assembled) -> dict[str, tuple[str, int]]:
    """(store, partitions) by changelog topic."""
    return {
        changelog_topic(APP, spec.name): (spec.name, group.partitions)
        for group in assembled.groups.values()
        for spec in group.specs
        if spec.logging
    }
