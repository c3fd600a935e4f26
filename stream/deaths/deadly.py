"""Records at which processes died: left out as their source or step says, or their task alone is given up.

    a task begins ──> notes of its deaths ──> none: nothing to do
                          ├── fewer than DEATHS_MAX at each record: they are decoded one by one, so that each is named
                          ├── DEATHS_MAX of its own doing, on_error skips: the record is left out, with a dead letter
                          └── DEATHS_MAX otherwise: the task is given up, the others go on; looked at every LOOK_MS
    a commit is past such a record ──> its notes are removed

Rules of this file: the loop's thread alone. Without the log it tries again later; a task never begins without a look.
"""

from __future__ import annotations

from collections.abc import Mapping

from standfast.replication.log import Group, Notes
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.store.clock import Clock
from standfast.store.errors import InvalidRequest, StandfastError, WorkerFailed
from standfast.store.log import as_event, logger
from standfast.store.process.in_hand import DESERIALIZE
from standfast.stream.deaths.deaths import DEATHS_MAX, Death, RecordPlace, find_deaths, forget_deaths, told_deaths
from standfast.stream.session.session import Session
from standfast.stream.task.task import Task
from standfast.stream.topology.nodes import SubTopology
from standfast.stream.topology.policy import ErrorPolicy

LOOK_MS = 5_000


class RecordDeadly(InvalidRequest):
    """Processes died with a record in hand; `policy` leaves it out."""

    def __init__(self, message: str, policy: ErrorPolicy) -> None:
        self.policy = policy
        super().__init__(message)


class Deadly:
    """The deaths of the tasks of one loop."""

    def __init__(self, session: Session, clock: Clock) -> None:
        self._session = session
        self._clock = clock
        self._group: Group | None = None
        self._known: dict[TaskId, int] = {}  # tasks with deaths, and when to look at them again
        self._given_up: set[TaskId] = set()
        self._notes: Notes | None = None  # as of this round, in which they were read after all of its tasks were opened

    def look(
        self, task: Task, topology: SubTopology, positions: Mapping[TopicPartition, int]
    ) -> Mapping[str, Mapping[int, Exception]] | None:
        """The records to leave out, by topic and offset, before a task begins; None: no process died at this task.

        Raises WorkerFailed for a task that is given up, and Unavailable.
        """
        if self._notes is None:
            self._notes = self._log_group().notes()
        found = find_deaths(self._notes, str(task.id), positions)
        if found.over:
            forget_deaths(self._log_group(), found.over)
        self._given_up.discard(task.id)
        if not found.places:
            self._known.pop(task.id, None)
            return None
        self._known[task.id] = self._clock.monotonic_ms() + LOOK_MS
        left_out: dict[str, dict[int, Exception]] = {}
        for place, deaths in found.at_limit().items():
            policy = _policy(topology, place, deaths)
            if policy is None:
                self._given_up.add(task.id)
                raise WorkerFailed(self._told(task, place, deaths))
            left_out.setdefault(place.topic, {})[place.offset] = RecordDeadly(
                f"record of {place}: {told_deaths(deaths)}", policy
            )
        return left_out

    def due(self, tasks: Mapping[TaskId, Task]) -> list[Task]:
        """Given-up tasks to open again, since their notes are gone; looks also whether commits are past others.

        Called at the begin of each round.
        """
        self._notes = None
        if not self._known:
            return []
        now_ms = self._clock.monotonic_ms()
        again = []
        for task_id in [one for one, at_ms in self._known.items() if now_ms >= at_ms]:
            self._known[task_id] = now_ms + LOOK_MS
            task = tasks.get(task_id)
            if task is None:
                del self._known[task_id]
                self._given_up.discard(task_id)
            elif self._is_over(task) and task_id in self._given_up:
                again.append(task)
        return again

    def close(self) -> None:
        """Close the group."""
        if self._group is not None:
            self._group.close()
            self._group = None

    def _is_over(self, task: Task) -> bool:
        """Whether no record of the task is at its limit now; removes the notes of records that are committed."""
        try:
            positions = {} if task.id in self._given_up else task.source_offsets()
            found = find_deaths(self._log_group().notes(), str(task.id), positions)
            if found.over:
                forget_deaths(self._log_group(), found.over)
        except StandfastError:  # the log is away, or the task was lost just now: looked at again
            return False
        if not found.places:
            del self._known[task.id]
        return not found.at_limit()

    def _log_group(self) -> Group:
        if self._group is None:
            self._group = self._session.log.group(self._session.app)
        return self._group

    def _told(self, task: Task, place: RecordPlace, deaths: list[Death]) -> str:
        stack = next((one.stack for one in reversed(deaths) if one.stack), "")
        last = f"; stack of the last one:\n{stack}" if stack else ""
        return (
            f"task {task.id} is given up, the others go on: record of {place}: {told_deaths(deaths)}. Mend the "
            f'program, or give the source or the step on_error="skip" or "dead_letter", which leaves the record out '
            f"after {DEATHS_MAX} deaths of its own doing; then let it go on: standfast deaths --app {task.app} --log "
            f"ADDRESS --forget {task.id}{last}"
        )

    def warn(self, task_id: TaskId, error: WorkerFailed) -> None:
        """Say that a task is given up."""
        logger.error("%s", error, extra=as_event("task_given_up_for_deaths", task=task_id))


def _policy(topology: SubTopology, place: RecordPlace, deaths: list[Death]) -> ErrorPolicy | None:
    """The policy that leaves the record out; None: it must not be."""
    own = [one for one in deaths if one.own]
    if len(own) < DEATHS_MAX:
        return None
    step = own[-1].step
    names = [source.name for source in topology.sources if source.topic == place.topic]
    policy = topology.policy_at(names[0] if step in ("", DESERIALIZE) else step)
    return policy if policy.protects else None
