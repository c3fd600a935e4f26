"""`make bench BENCHES=handover`, its rolling restart: three instances with standbys stop and start in turn.

    restart      stop an instance cleanly, start it again, wait until its tasks are back and then a little
    pause        as standfast reports it, of each move away and back
    moved        longest time without a processed record of each task, as a user sees it
    moves        changes of the instance that processes a task, over the whole rolling restart: 2 for each is the least
    standbys     from the last of these changes until every task has its standby near the end again

Rules of this file: as handover.py, whose bed it uses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing

from bench.handover import SETTLE_MS, Bed, Figures, part_of
from bench.step import Step
from standfast.replication.offsets import TaskId
from standfast.replication.placement.topic import PlacementTopic
from standfast.store.clock import SystemClock
from standfast.stream.task.settings import WARM_LAG_RECORDS

INSTANCES = 3
PARTS = {
    "pause": "as reported: of each move away from an instance that restarts, and back",
    "moved": "longest time without a processed record of each task during a rolling restart of three instances",
    "moves": "changes of the instance that processes a task during the rolling restart; 2 is the least",
    "standbys": "from the last change until every task has its standby near the end",
    "quiet": "longest time without a processed record of any task while nothing moves",
}


def rolling(step: Step, tick: Callable[[int], None]) -> Figures:
    """One rolling restart. `tick` is called after each instance."""
    step = part_of(step, "restarts")
    with ExitStack() as held:
        bed = Bed(step, held)
        topic = PlacementTopic(bed.log, step.app, "", SystemClock(), acceptable_lag=WARM_LAG_RECORDS)
        copies = held.enter_context(closing(Copies(topic, step.tasks)))
        runs = {run: bed.start(run) for run in range(INSTANCES)}
        bed.works()
        share = step.tasks // INSTANCES
        bed.until("the tasks are spread", lambda: len(spread(bed)) == INSTANCES and spread(bed)[0] >= share)
        bed.until("every task has its standby", copies.complete)
        bed.wait(SETTLE_MS)
        quiet = bed.quiet()
        begin_ms, before, first = bed.now_ms(), instances(bed), len(bed.seen.changes)
        at = dict(before)
        reported = len(bed.pauses)
        for run, child in runs.items():
            old = {task: name for task, name in bed.seen.owner.items() if before[task] == str(run)}
            bed.end(child)
            bed.start(run)
            bed.until("its tasks are back", lambda: instances(bed) == before and not _shares(old, bed.seen.owner))  # noqa: B023
            bed.wait(SETTLE_MS)
            tick(1)
        last_ms = max(at_ms for at_ms, _, _ in bed.seen.changes)
        whole_ms = bed.until("every task has its standby", copies.complete)
        moves = Counter(dict.fromkeys(bed.tasks, 0))
        for _, task, name in bed.seen.changes[first:]:
            moves[task] += at[task] != instance_of(name)  # a task that waited for its instance has not moved
            at[task] = instance_of(name)
        found = {
            "pause": [one["pause_ms"] for one in bed.pauses[reported:]],
            "moved": [bed.seen.gap([task], begin_ms, whole_ms) for task in bed.tasks],
            "moves": list(moves.values()),
            "standbys": [whole_ms - last_ms],
            "quiet": [quiet],
        }
        for child in list(bed.processes):
            bed.end(child)
        return found


def spread(bed: Bed) -> list[int]:
    """How many tasks each instance has."""
    return sorted(Counter(instances(bed).values()).values())


def instances(bed: Bed) -> dict[int, str]:
    """The instance that processed the last record of each task."""
    return {task: instance_of(name) for task, name in bed.seen.owner.items()}


def instance_of(name: str) -> str:
    """The instance of a file of processed records; a process of it that started again has another file."""
    return name.split("-")[1]


def _shares(old: Mapping[int, str], now: Mapping[int, str]) -> bool:
    return any(now[task] == name for task, name in old.items())


class Copies:
    """The standbys of an application, by its placement topic."""

    def __init__(self, topic: PlacementTopic, tasks: int) -> None:
        self._topic = topic
        self._tasks = [TaskId(0, number) for number in range(tasks)]

    def complete(self) -> bool:
        """Whether each task has a standby that is near the end, as its instance reported it."""
        state = self._topic.look()
        if state.valid is None:
            return False
        standbys = state.valid.assignment.standbys
        return all(self._near(task, standbys.get(task, ())) for task in self._tasks)

    def close(self) -> None:
        """Stop to read."""
        self._topic.close()

    def _near(self, task: TaskId, names: tuple[str, ...]) -> bool:
        reports = [self._topic.state.report(name) for name in names]
        return any(one is not None and one.lags.get(task, WARM_LAG_RECORDS + 1) <= WARM_LAG_RECORDS for one in reports)
