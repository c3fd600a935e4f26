"""Source partitions of the application's own consumer: which may be read, and from where.

                assigned          its task opened: seek to the task's source offset     shut: another task restores
    (absent) ------------> PAUSED ----------------------------------------------> READ ------------------> PAUSED
                                  <------------------------------------------------     opened: no seek, go on

    revoked, lost: back to (absent) from anywhere

A partition is sought once for each opening of its task, since only the log says where that opening begins: the
consumer may have asked for the committed offset before a former owner's last transaction was settled. While a task
that runs is held back for another one, what it processed and did not commit yet stays, so the consumer goes on where
it stands.

Rules of this file: pure; it says what the consumer must do and is told when that is done. A task that was opened anew
is another `opening` (any object; compared by identity).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from standfast.replication.offsets import TaskId, TopicPartition


@dataclass(frozen=True, slots=True)
class OpenTask:
    """A task that may process: its opening, and where its source partitions go on."""

    opening: object
    positions: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Moves:
    """What the consumer must do, in this order. A partition in `seek` is also in `resume`.

    An offset of None is where the group stands: nothing was committed yet, and what was given before comes again.
    """

    pause: tuple[TopicPartition, ...] = ()
    seek: tuple[tuple[TopicPartition, int | None], ...] = ()
    resume: tuple[TopicPartition, ...] = ()

    @property
    def none(self) -> bool:
        """Whether there is nothing to do."""
        return not self.pause and not self.resume


@dataclass(slots=True)
class _Source:
    """One assigned partition: its task, the opening that it was sought for, whether it is read."""

    task: TaskId
    opening: object = None
    read: bool = False


class SourceGate:
    """All source partitions of one consumer."""

    def __init__(self) -> None:
        self._sources: dict[TopicPartition, _Source] = {}

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """What is assigned."""
        return frozenset(self._sources)

    @property
    def tasks(self) -> frozenset[TaskId]:
        """Tasks of the assigned partitions."""
        return frozenset(source.task for source in self._sources.values())

    def assigned(self, partitions: Mapping[TopicPartition, TaskId]) -> None:
        """These are the consumer's now, paused; one that was there already begins anew."""
        self._sources.update({at: _Source(task) for at, task in partitions.items()})

    def revoked(self, partitions: Iterable[TopicPartition]) -> frozenset[TaskId]:
        """These left, absent ones are fine; the tasks that lost a partition."""
        gone = [self._sources.pop(at, None) for at in partitions]
        return frozenset(source.task for source in gone if source is not None)

    def moves(self, tasks: Mapping[TaskId, OpenTask]) -> Moves:
        """What to do, given the tasks whose restore gate is open."""
        pause, seek, resume = [], [], []
        for at, source in sorted(self._sources.items()):
            task = tasks.get(source.task)
            if task is None:
                if source.read:
                    pause.append(at)
            elif not source.read or source.opening is not task.opening:
                resume.append(at)
                again = source.opening is not None and source.opening is not task.opening
                if source.opening is not task.opening and (at in task.positions or again):
                    seek.append((at, task.positions.get(at)))
        return Moves(tuple(pause), tuple(seek), tuple(resume))

    def is_read(self, opening: object) -> bool:
        """Whether some partition is, or was since its last seek, read for this opening."""
        return any(source.opening is opening for source in self._sources.values())

    def goes_back(self, task: TaskId, opening: object) -> bool:
        """Whether a partition of the task was read for an earlier opening, and is not yet for this one."""
        openings = [source.opening for source in self._sources.values() if source.task == task]
        return any(one is not None and one is not opening for one in openings)

    def given_for(self, partition: TopicPartition, opening: object) -> bool:
        """Whether what the consumer gave of a partition was given for this opening of its task."""
        source = self._sources.get(partition)
        return source is not None and source.opening is opening

    def paused(self, partitions: Iterable[TopicPartition]) -> None:
        """The consumer was told."""
        for at in partitions:
            if at in self._sources:
                self._sources[at].read = False

    def resumed(self, partitions: Iterable[TopicPartition], tasks: Mapping[TaskId, OpenTask]) -> None:
        """The consumer reads these from where `moves` said, for the same `tasks`."""
        for at in partitions:
            source = self._sources.get(at)
            if source is not None:
                source.read, source.opening = True, tasks[source.task].opening
