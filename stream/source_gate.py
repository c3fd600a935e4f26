"""Source partitions of an external consumer: which may be read, and from which offset.

                assigned          its task opened: seek to the task's source offset     shut: another task restores
    (absent) ------------> PAUSED ----------------------------------------------> READ ------------------> PAUSED
                                  <------------------------------------------------     opened: no seek, go on

    revoked, lost: back to (absent) from anywhere

A partition is sought once for each opening of its task, since only the log says where that opening begins: the
consumer may have fetched the committed offset before a former owner's last transaction was settled. While a running
task is held back for another one, its processed and uncommitted records stay, so the consumer continues at its
position.

Rules of this file: pure; it says which calls the consumer needs, and the caller reports when they are done. A task
that was opened again is another `opening` (any object; compared by identity).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from standfast.replication.offsets import TaskId, TopicPartition


@dataclass(frozen=True, slots=True)
class OpenTask:
    """A task that may process: its opening, and the next offsets of its source partitions."""

    opening: object
    positions: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Moves:
    """The calls that the consumer needs, in this order. A partition in `seek` is also in `resume`.

    An offset of None is the group's own: nothing was committed yet, and the records given before are delivered again.
    """

    pause: tuple[TopicPartition, ...] = ()
    seek: tuple[tuple[TopicPartition, int | None], ...] = ()
    resume: tuple[TopicPartition, ...] = ()

    @property
    def none(self) -> bool:
        """Whether no call is needed."""
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
        """The assigned partitions."""
        return frozenset(self._sources)

    @property
    def tasks(self) -> frozenset[TaskId]:
        """Tasks of the assigned partitions."""
        return frozenset(source.task for source in self._sources.values())

    def assigned(self, partitions: Mapping[TopicPartition, TaskId]) -> None:
        """Add partitions, paused; one that was assigned already starts over."""
        self._sources.update({at: _Source(task) for at, task in partitions.items()})

    def revoked(self, partitions: Iterable[TopicPartition]) -> frozenset[TaskId]:
        """Remove partitions, absent ones are fine; returns the tasks that lost one."""
        gone = [self._sources.pop(at, None) for at in partitions]
        return frozenset(source.task for source in gone if source is not None)

    def moves(self, tasks: Mapping[TaskId, OpenTask]) -> Moves:
        """The calls needed now, given the tasks whose restore gate is open."""
        pause, seek, resume = [], [], []
        for at, source in sorted(self._sources.items()):
            task = tasks.get(source.task)
            if task is None:
                if source.read:
                    pause.append(at)
            elif not source.read or source.opening is not task.opening:
                resume.append(at)
                again = source.opening is not None and source.opening is not task.opening
                # Without a committed offset the client's own start is right, but only for the first opening.
                if source.opening is not task.opening and (at in task.positions or again):
                    seek.append((at, task.positions.get(at)))
        return Moves(tuple(pause), tuple(seek), tuple(resume))

    def is_read(self, opening: object) -> bool:
        """Whether a partition is read for this opening, or was since its last seek."""
        return any(source.opening is opening for source in self._sources.values())

    def goes_back(self, task: TaskId, opening: object) -> bool:
        """Whether a partition of the task was read for an earlier opening, and is not yet read for this one."""
        openings = [source.opening for source in self._sources.values() if source.task == task]
        return any(one is not None and one is not opening for one in openings)

    def given_for(self, partition: TopicPartition, opening: object) -> bool:
        """Whether the consumer delivered a partition's records for this opening of its task."""
        source = self._sources.get(partition)
        return source is not None and source.opening is opening

    def paused(self, partitions: Iterable[TopicPartition]) -> None:
        """Note that the consumer has paused these."""
        for at in partitions:
            if at in self._sources:
                self._sources[at].read = False

    def resumed(self, partitions: Iterable[TopicPartition], tasks: Mapping[TaskId, OpenTask]) -> None:
        """Note that the consumer reads these from the offsets of `moves`, for the same `tasks`."""
        for at in partitions:
            source = self._sources.get(at)
            if source is not None:
                source.read, source.opening = True, tasks[source.task].opening
