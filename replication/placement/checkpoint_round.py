"""One coordinated checkpoint as its leader decides it: orders out, reports of parts in.

    stage 0 stops ──> all of its tasks have their part ──> ends of the internal topics that it writes are read
        ──> the ends are in force at every reader, and stage 1 stops at them ──> stage 0 goes on
        ──> stage 1 has its parts ──> ... ──> the last stage goes on ──> every part is stored ──> sealed: complete

The cut is consistent: a part of stage 1 has consumed its internal inputs up to the ends, which were read while all
tasks that write to them stood still with their part. Stage 0 goes on only when each reader keeps to the ends, since
its next records lie beyond them.

A checkpoint is abandoned, never mended: a part that cannot come any more (`PartHolders`), a task without a part, an
instance that forgot a part that it had not stored, or a pause that gets too long.

Rules of this file: pure, times in milliseconds of the leader's monotonic clock. The caller does what `look` returns,
and calls it again. Reports are those of the instance that has each task's part, or is to have it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from enum import Enum, auto

from standfast.replication.checkpoint_flow import Flow
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.replication.placement.checkpoint import Order, OrderState, PartReport
from standfast.store.timestamps import duration_text

NAMED_MOST = 5  # tasks that a reason names


class Do(Enum):
    """The caller's next step."""

    WAIT = auto()
    PUBLISH = auto()  # `order` is new
    READ_ENDS = auto()  # of `to_read`, then `ends`
    SEAL = auto()  # every part is stored: make it complete, then `sealed`


class _Phase(Enum):
    STOPPING = auto()
    READING = auto()
    ARMING = auto()
    STORING = auto()
    SEALING = auto()
    OVER = auto()


class PartHolders:
    """Where the parts of a checkpoint are while tasks move: with the instance that cut each, wherever the task is now.

    A task without a part gets it from its new owner, which has read the order before the generation. So instances that
    come cost a checkpoint nothing, and one that goes only the parts that it had not stored.
    """

    def __init__(self, tasks: Collection[TaskId]) -> None:
        self._tasks = frozenset(tasks)
        self._at: dict[TaskId, str] = {}

    def where(self, owners: Mapping[TaskId, str]) -> dict[TaskId, str]:
        """The instance whose report has each task's part: the one that cut it, else its present owner."""
        return {**owners, **self._at}

    def broken(self, tasks: Collection[TaskId], members: Collection[str], stored: Collection[TaskId]) -> str:
        """Why no part of a task can come any more; empty if all can. `tasks` are those of the application now."""
        if self._tasks != frozenset(tasks):
            return "tasks were added, of new partitions"
        for task, name in sorted(self._at.items()):
            if name not in members and task not in stored:
                return f"instance {name} has gone, which had not stored the part of task {task}"
        return ""

    def note(self, cut: Collection[TaskId], owners: Mapping[TaskId, str]) -> None:
        """Each of these has its part, from its present owner unless another instance had it before."""
        for task in cut:
            if task in owners:
                self._at.setdefault(task, owners[task])


class CheckpointRound:
    """One checkpoint. `pause_ms` bounds the time for which a group stands still, `store_ms` the whole of it."""

    def __init__(
        self,
        number: int,
        flow: Flow,
        tasks: Collection[TaskId],
        stamp: tuple[int, int],
        *,
        pause_ms: int,
        store_ms: int,
        now_ms: int,
        request: str = "",
    ) -> None:
        """Raises InvalidRequest for an application whose groups have no order."""
        self.to_read: list[TopicPartition] = []
        self._flow = flow
        self._tasks = frozenset(tasks)
        self._stages = flow.stages()
        self._stage = 0
        self._pause_ms = pause_ms
        self._store_ms = store_ms
        self._phase = _Phase.STOPPING
        # Since when tasks of a stage may stand still: never later than they do, or a pause would be too long.
        self._stop_ms = {0: now_ms}
        self._begun_ms = self._looked_ms = now_ms
        self._stopped: set[TaskId] = set()
        self._stored: set[TaskId] = set()
        self.order = Order(number, 1, stop=self._stages[0], stopped_at=stamp, request=request)

    @property
    def is_over(self) -> bool:
        """Whether it is complete or abandoned."""
        return self._phase is _Phase.OVER

    @property
    def stopped(self) -> frozenset[TaskId]:
        """Tasks whose part was cut, as far as `look` has seen."""
        return frozenset(self._stopped)

    @property
    def stored(self) -> frozenset[TaskId]:
        """Tasks whose part is in the storage, as far as `look` has seen."""
        return frozenset(self._stored)

    def look(self, reports: Mapping[TaskId, PartReport | None], now_ms: int) -> Do:
        """The next step, by the newest reports."""
        if self._phase in (_Phase.SEALING, _Phase.OVER):
            return Do.WAIT  # every part is stored: moves of tasks do not matter any more
        # A report about another number is of an instance that has not seen this order yet.
        mine = {task: one for task, one in reports.items() if one is not None and one.number == self.order.number}
        why = self._broken(mine)
        if why:
            return self.abandon(why)
        # Remembered, so that a report without them shows that the instance has lost its parts.
        self._stopped |= {task for task, one in mine.items() if task in one.stopped}
        self._stored |= {task for task, one in mine.items() if task in one.stored}
        self._note_stops()
        self._looked_ms = now_ms
        why = self._overdue(now_ms)
        if why:
            return self.abandon(why)
        if self._phase is _Phase.STOPPING:
            return self._look_stopping(now_ms)
        if self._phase is _Phase.READING:
            return Do.READ_ENDS
        if self._phase is _Phase.ARMING:
            return self._look_arming(mine, now_ms)
        if not self._tasks <= self._stored:
            return Do.WAIT
        self._phase = _Phase.SEALING
        return Do.SEAL

    def ends(self, found: Mapping[TopicPartition, int], now_ms: int) -> Do:
        """The ends of `to_read`, all read after `look` asked for them."""
        missing = [at for at in self.to_read if at not in found]
        if missing:
            return self.abandon(f"the log gave no end of {missing[0]}")
        self._phase = _Phase.ARMING
        following = self._stage + 1
        stop = self.order.stop
        if following < len(self._stages):
            # It may stop at once: its limits are in the same order.
            stop |= self._stages[following]
        return self._publish(stop=stop, limits={**self.order.limits, **{at: found[at] for at in self.to_read}})

    def sealed(self, why_not: str = "") -> Do:
        """The outcome of SEAL: complete, or why it is not."""
        if why_not:
            return self.abandon(why_not)
        self._phase = _Phase.OVER
        return self._publish(state=OrderState.COMPLETE, stop=frozenset(), limits={})

    def abandon(self, why: str) -> Do:
        """End it: every task goes on, and its parts are never used."""
        if self._phase is _Phase.OVER:
            return Do.WAIT
        self._phase = _Phase.OVER
        return self._publish(state=OrderState.ABANDONED, stop=frozenset(), limits={}, why=why)

    # --- inside ---

    def _look_stopping(self, now_ms: int) -> Do:
        if not self._of_stage() <= self._stopped:
            return Do.WAIT
        # Topics without a reader among the groups need no limit: no part depends on them.
        topics = self._flow.written(self._stages[self._stage])
        self.to_read = self._flow.inputs(topics) if self._flow.readers(topics) else []
        if not self.to_read:
            return self._release(now_ms)
        self._phase = _Phase.READING
        return Do.READ_ENDS

    def _look_arming(self, mine: Mapping[TaskId, PartReport], now_ms: int) -> Do:
        readers = self._flow.readers(self._flow.written(self._stages[self._stage]))
        # Readers of every later stage, too: they must not run beyond the ends before their own turn comes.
        wanted = {task for task in self._tasks if task.group in readers}
        in_force = {
            task for task, one in mine.items() if one.step == self.order.step and task in (one.applied | one.stopped)
        }
        return self._release(now_ms) if wanted <= in_force else Do.WAIT

    def _release(self, now_ms: int) -> Do:
        """Free the present stage; the next one, which may stand still already, follows."""
        pause_ms = max(self.order.pause_ms, now_ms - self._stop_ms.pop(self._stage, now_ms))
        done = self.order.done | self._stages[self._stage]
        self._stage += 1
        if self._stage == len(self._stages):
            self._phase = _Phase.STORING
            return self._publish(stop=frozenset(), done=done, pause_ms=pause_ms)
        self._phase = _Phase.STOPPING
        return self._publish(stop=self._stages[self._stage], done=done, pause_ms=pause_ms)

    def _publish(self, **changes: object) -> Do:
        self.order = replace(self.order, step=self.order.step + 1, **changes)  # type: ignore[arg-type]
        return Do.PUBLISH

    def _of_stage(self) -> set[TaskId]:
        return {task for task in self._tasks if task.group in self._stages[self._stage]}

    def _broken(self, mine: Mapping[TaskId, PartReport]) -> str:
        """Why the checkpoint cannot become complete any more; empty if it can."""
        for task, one in sorted(mine.items()):
            if task in one.failed:
                return f"task {task} has no part: {one.failed[task]}"
        kept = {task for task, one in mine.items() if task in one.stopped}
        lost = sorted(self._stopped - self._stored - kept)
        if lost:
            # A process that was killed and started again has no part of its former life.
            return f"the owner of task {lost[0]} does not know its part any more: it was started again"
        return ""

    def _note_stops(self) -> None:
        """Tasks of a later stage first process what lies before their limits, and that is no pause."""
        for stage in range(self._stage, len(self._stages)):
            if stage not in self._stop_ms and any(task.group in self._stages[stage] for task in self._stopped):
                self._stop_ms[stage] = self._looked_ms

    def _overdue(self, now_ms: int) -> str:
        unstored = sorted(self._tasks - self._stored)
        if unstored and now_ms - self._begun_ms > self._store_ms:
            return f"{_named(unstored)} had not stored their parts after {duration_text(self._store_ms)}"
        # The stage that stopped first is also the first that goes on.
        since_ms = min(self._stop_ms.values(), default=now_ms)
        if now_ms - since_ms <= self._pause_ms:
            return ""
        left = sorted(task for task in self._tasks - self._stopped if any(task.group in one for one in self._held()))
        what = f"{_named(left)} had not stopped" if left else "the order of the next groups was not in force"
        return f"{what} within {duration_text(self._pause_ms)}, so that all tasks go on"

    def _held(self) -> list[frozenset[int]]:
        return [self._stages[stage] for stage in self._stop_ms]


def _named(tasks: list[TaskId]) -> str:
    more = f" and {len(tasks) - NAMED_MOST} more" if len(tasks) > NAMED_MOST else ""
    return f"tasks {', '.join(map(str, tasks[:NAMED_MOST]))}{more}"
