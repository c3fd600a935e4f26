"""How the tasks of a loop follow the order of a coordinated checkpoint.

    order with limits     records at and beyond a limit are kept for later; the limit is the end of that input for now
    order to stop         inputs processed up to their limits ──> no more turns ──> commit ──> the part is cut
    freed                 the kept records come in, and the task goes on

Rules of this file: the loop's thread alone. A task that stands still takes no record, fires no timer and commits
nothing, so that its state, its outputs and its offsets stay those of its part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from standfast.replication.log import Record
from standfast.replication.offsets import TopicPartition
from standfast.replication.placement.checkpoint import Order, OrderState
from standfast.store.clock import Clock
from standfast.stream.runtime.runner import TaskRunner
from standfast.stream.snapshots.parts import CheckpointParts
from standfast.stream.task.task import Task

Taken = tuple[Sequence[Record], int, bool]  # records, next offset, whether that is the end


@dataclass(slots=True)
class Hold:
    """A task's part in the order in force. `stands`: it takes no turns; `quiet`: its last commit is done, too."""

    limits: Mapping[TopicPartition, int] = field(default_factory=dict)
    stands: bool = False
    committed: bool = False  # the last commit has begun
    quiet: bool = False
    since_ms: int = 0
    number: int = 0  # the checkpoint for which it stands
    order: Order | None = None

    def splits(self, at: TopicPartition, taken: Taken) -> tuple[Taken, Taken | None]:
        """The part of fetched records that may come in, and the one that is kept for later."""
        limit = self.limits.get(at)
        records, next_offset, _ = taken
        if limit is None or next_offset <= limit:
            return (taken[0], next_offset, taken[2] or next_offset == limit), None
        count = sum(record.offset < limit for record in records)
        # The end of the input for now, or records of other inputs would wait for its next ones.
        return (records[:count], limit, True), (records[count:], next_offset, taken[2])


class Holds:
    """The holds of a loop's tasks. `parts` None: the session takes no part in checkpoints."""

    def __init__(self, parts: CheckpointParts | None, clock: Clock) -> None:
        self._parts = parts
        self._clock = clock

    @property
    def under_way(self) -> bool:
        """Whether tasks are to stand still, so that the loop must look often."""
        return self._parts is not None and self._parts.under_way

    def follow(self, hold: Hold, task: Task, runner: TaskRunner) -> bool:
        """Put the newest order in force for a task; returns whether it was freed, so that kept records may come in."""
        order = None if self._parts is None else self._parts.order
        if order is hold.order or order is None or self._parts is None:
            return False
        # Each order counts again for a task that was opened again: its hold is new, and knows none.
        before, hold.order = hold.limits, order
        hold.limits = order.limits_of(task.id, runner.partitions)
        # At its limit an input is at its end: else records of the other inputs would wait for its next ones.
        for at, limit in hold.limits.items():
            one = runner.inputs[at.topic]
            one.at_end = one.at_end or one.fetched >= limit
        beyond = [at for at, limit in hold.limits.items() if runner.inputs[at.topic].fetched > limit]
        # Never in order: a reader keeps to the ends before any writer goes on. The leader abandons it for time.
        if order.state is OrderState.RUNNING and not beyond:
            self._parts.applied(task.id, order)
        # A loop that was busy may see the next checkpoint first, which needs another part and has other limits.
        freed = hold.stands and (order.number != hold.number or not order.stops(task.id))
        if freed:
            hold.stands = hold.committed = hold.quiet = False
            self._parts.goes_on(self._clock.monotonic_ms() - hold.since_ms)
            # The sources were not silent: nothing was read of them.
            runner.restart_silence()
        return freed or (bool(before) and not hold.limits)

    def may_stop(self, hold: Hold, task: Task, runner: TaskRunner) -> bool:
        """Whether a task has to commit, since it is to stop, and has processed its inputs up to their limits.

        It stands still from then on.
        """
        if hold.quiet or hold.order is None or not hold.order.stops(task.id):
            return False
        if not hold.stands and all(_is_consumed(runner, at, limit) for at, limit in hold.limits.items()):
            hold.stands, hold.number, hold.since_ms = True, hold.order.number, self._clock.monotonic_ms()
            task.restate_sources()
        return hold.stands

    def stand(self, hold: Hold, task: Task) -> None:
        """The last commit of a task that stands still is done."""
        assert hold.order is not None and self._parts is not None
        hold.quiet = True
        self._parts.stand(task.id, task, hold.order)


def _is_consumed(runner: TaskRunner, at: TopicPartition, limit: int) -> bool:
    one = runner.inputs[at.topic]
    return not one.waiting and one.consumed == one.fetched == limit
