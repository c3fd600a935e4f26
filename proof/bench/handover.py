"""`make bench BENCHES=handover`: tasks move while they work, between two workers and between instances.

    feeder ── a record for each of 24 tasks every 20 ms ──> source ──> application: seen-RUN-PID files

    workers      one instance of two workers; one task after the other is moved to the other worker
    instances    two instances with standbys: one leaves (its tasks are taken over by standbys), and joins again (its
                 tasks return by warm hand-overs, two at a time); until enough tasks have returned
    restarts     three instances with standbys are restarted, one after the other (restarts.py)

    pause        as standfast reports it for the moved task: from the former owner's last commit until the task runs
    moved        longest time without a processed record of the moved task, as a user sees it
    others       the same of the tasks that did not move meanwhile, the longest of them all
    quiet        the same of all tasks, over a second in which nothing moves: the machine and the feeder

Rules of this file: whole processes, by the public path (App.run), with default settings; the same machine's monotonic
clock in all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

from bench.feed import fed
from bench.handover_program import SEEN
from bench.step import Step
from standfast.ops.bench.step import FILL_RECORDS, VALUES, address_of, key_of, start, values_of
from standfast.replication.log import Outgoing, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.replication.tail.open_log import open_log
from standfast.store.clock import SystemClock
from standfast.store.errors import Unavailable
from standfast.store.process.child import ChildProcess

Json: TypeAlias = dict[str, Any]
PROGRAM = "bench.handover_program"
QUIET_MS, SETTLE_MS = 1_000, 1_500  # SETTLE_MS: until an instance that came has its tasks and standbys for good
LOOK_MS = 20
WAIT_MS = 120_000
STOP_MS = 60_000
PARTS = {
    "pause": "as reported: from the former owner's last commit until the task runs at the new one",
    "moved": "longest time without a processed record of the moved task",
    "others": "longest time without a processed record of any task that did not move",
    "quiet": "longest time without a processed record of any task while nothing moves",
}
Figures: TypeAlias = dict[str, list[int]]


class Seen:
    """The processed records: times of each task, and the process that has it."""

    def __init__(self, folder: Path, tasks: int) -> None:
        self.times: dict[int, list[int]] = {task: [] for task in range(tasks)}
        self.owner: dict[int, str] = {}
        self.changes: list[tuple[int, int, str]] = []  # time, task and its new owner
        self._folder = folder
        self._read: dict[Path, int] = {}

    def look(self) -> None:
        """Read the lines that are new."""
        found = []
        for path in self._folder.glob(f"{SEEN}*"):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                whole = file.read().rpartition(b"\n")[0]
            if whole:
                self._read[path] = self._read.get(path, 0) + len(whole) + 1
                found += [(int(at), int(task), path.name) for task, at in map(bytes.split, whole.split(b"\n"))]
        for at_ms, task, name in sorted(found):
            self.times[task].append(at_ms)
            if self.owner.get(task) != name:
                self.changes.append((at_ms, task, name))
            self.owner[task] = name

    def gap(self, tasks: Iterable[int], begin_ms: int, end_ms: int) -> int:
        """The longest time between two records of one of these tasks, of those that overlap a stretch of time."""
        longest = 0
        for task in tasks:
            times = self.times[task]
            pairs = pairwise(times)
            longest = max([longest, *(two - one for one, two in pairs if two >= begin_ms and one <= end_ms)])
        return longest


class Bed:
    """An application under way: its processes, its feeder, its processed records, the reported pauses."""

    def __init__(self, step: Step, held: ExitStack) -> None:
        self.step = step
        self.tasks = range(step.tasks)
        self.seen = Seen(Path(step.folder), step.tasks)
        self.pauses: list[Json] = []
        self.processes: list[ChildProcess[Json]] = []
        self._held = held
        self._clock = SystemClock()
        sources = [TopicPartition(step.source, number) for number in self.tasks]
        Path(step.folder).mkdir(parents=True)
        self.log = log = held.enter_context(closing(open_log(address_of(step))))
        log.admin.create_topic(step.source, step.tasks, TopicPolicy())
        fill(log.producer(), sources, step)
        held.enter_context(fed(step, sources, max(step.records, 1)))

    def start(self, run: int) -> ChildProcess[Json]:
        """Start an instance; `run` names its state directory."""
        child = self._held.enter_context(start(PROGRAM, replace(self.step, run=run)))
        self.processes.append(child)
        return child

    def end(self, child: ChildProcess[Json]) -> None:
        """Stop an instance cleanly, and forget it."""
        self.pauses += child.stop(b"stop\n", STOP_MS)
        self.processes.remove(child)
        if child.ended is not None and child.ended.code != 0:
            raise Unavailable(f"a process of the benchmark ended with {child.ended}")

    def until(self, what: str, true: Callable[[], bool]) -> int:
        """Wait until it is true, and return the time. Raises Unavailable if it does not become true."""
        until_ms = self._clock.monotonic_ms() + WAIT_MS
        while True:
            for child in self.processes:
                self.pauses += child.poll(LOOK_MS)
                if child.ended is not None:
                    raise Unavailable(f"a process of the benchmark ended with {child.ended}:\n{child.ended.words}")
            self.seen.look()
            now_ms = self._clock.monotonic_ms()
            if true():
                return now_ms
            if now_ms >= until_ms:
                raise Unavailable(f"the application of the benchmark did not come to this: {what}")

    def works(self) -> None:
        """Wait until all tasks are past the rows that were there before, and then a little."""
        least = self.step.records // len(self.tasks)
        self.until("all tasks have processed their rows", lambda: min(map(len, self.seen.times.values())) > least)
        self.wait(SETTLE_MS)

    def wait(self, for_ms: int) -> None:
        """Wait, and read the records meanwhile."""
        end_ms = self._clock.monotonic_ms() + for_ms
        self.until("time passes", lambda: self._clock.monotonic_ms() >= end_ms)

    def now_ms(self) -> int:
        """The machine's monotonic clock."""
        return self._clock.monotonic_ms()

    def quiet(self) -> int:
        """The longest gap of any task over a second without a move."""
        begin_ms = self._clock.monotonic_ms()
        self.wait(QUIET_MS)
        return self.seen.gap(self.tasks, begin_ms, self._clock.monotonic_ms())

    def moved(self, what: str, act: Callable[[], object], count: int) -> tuple[set[int], Figures]:
        """Do what moves `count` tasks, wait until each has processed a record and reported; figures of this time."""
        before, begin_ms, reported = dict(self.seen.owner), self._clock.monotonic_ms(), len(self.pauses)
        act()

        def went() -> set[int]:
            return {task for task, name in self.seen.owner.items() if before[task] != name}

        done = lambda: len(went()) >= count and len(self.pauses) - reported >= count  # noqa: E731
        end_ms = self.until(f"{what}: {count} tasks have moved", done)
        tasks = went()
        return tasks, {
            "pause": [one["pause_ms"] for one in self.pauses[reported:]],
            "moved": [self.seen.gap([task], begin_ms, end_ms) for task in sorted(tasks)],
            "others": [self.seen.gap(set(self.tasks) - tasks, begin_ms, end_ms)],
        }


def between_workers(step: Step, moves: int, tick: Callable[[int], None]) -> Figures:
    """Move a task at a time between the two workers of one instance. `tick` is called after each."""
    step = part_of(step, "workers", workers=2)
    found: Figures = {name: [] for name in PARTS}
    with ExitStack() as held:
        bed = Bed(step, held)
        program = bed.start(0)
        bed.works()
        # Workers are numbered from 0 by the supervisor; the first moves show which process is which.
        places: dict[int, int] = {}
        for number in range(moves):
            found["quiet"].append(bed.quiet())
            task = number % step.tasks
            places[task] = 1 - places.get(task, task % 2)
            order = f"move 0_{task} {places[task]}\n".encode()
            _add(found, bed.moved(f"task {task} goes to the other worker", lambda: program.order(order), 1)[1])  # noqa: B023
            tick(1)
        bed.end(program)
    return found


def between_instances(step: Step, moves: int, tick: Callable[[int], None]) -> tuple[Figures, Figures]:
    """Let an instance leave and join again until `moves` tasks returned: figures of its leaving, and of its joining."""
    step = part_of(step, "instances")
    left: Figures = {name: [] for name in PARTS}
    joined: Figures = {name: [] for name in PARTS}
    half = step.tasks // 2
    with ExitStack() as held:
        bed = Bed(step, held)
        stays = bed.start(0)
        bed.works()
        bed.moved("an instance joins", lambda: bed.start(1), half)
        while len(joined["moved"]) < moves:
            bed.wait(SETTLE_MS)
            left["quiet"].append(bed.quiet())
            joined["quiet"].append(left["quiet"][-1])
            _add(left, bed.moved("an instance leaves", lambda: bed.end(bed.processes[-1]), half)[1])
            bed.wait(SETTLE_MS)
            _add(joined, bed.moved("an instance joins", lambda: bed.start(1), half)[1])
            tick(half)
        for child in (bed.processes[-1], stays):
            bed.end(child)
    return left, joined


def part_of(step: Step, name: str, workers: int | None = None) -> Step:
    """The step of one kind of move: a folder and topics of its own."""
    return replace(step, folder=f"{step.folder}/{name}", app=f"{step.app}-{name}", workers=workers)


def fill(producer: Any, sources: list[TopicPartition], step: Step) -> None:
    """Write the rows that the tasks have before anything moves."""
    values = values_of(step.value_bytes)
    for first in range(0, step.records, FILL_RECORDS):
        batch: dict[TopicPartition, list[Outgoing]] = {}
        for number in range(first, min(first + FILL_RECORDS, step.records)):
            record = Outgoing(key_of(number, step.key_bytes), values[number % VALUES], 1 + number)
            batch.setdefault(sources[number % len(sources)], []).append(record)
        producer.append(batch)


def _add(found: Figures, more: Figures) -> None:
    for name, figures in more.items():
        found[name] += figures
