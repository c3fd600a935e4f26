"""Carries out the moves of tasks between the server's session and its workers, round by round.

    round()    look at what both hold ──> moves (pure, `tail_moves`) ──> close here, open here, tell the workers

Rules of this file: used by the control thread. Partition p belongs to worker p modulo their number, so that a task
never changes from worker to worker. Whatever the log does not answer is tried again with the next round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from standfast.ops.tail_moves import Holding, Moves, moves
from standfast.ops.tail_worker_process import TailWorker
from standfast.store.errors import StandfastError, Unavailable
from standfast.stream.session import Session
from standfast.stream.task import TaskState

Partitions = frozenset[int]
GONE = (TaskState.FAILED, TaskState.CLOSED)


class TailMover:
    """`closing` is called before the server closes tasks, and returns once nobody uses them."""

    def __init__(self, session: Session, workers: Sequence[TailWorker], closing: Callable[[Partitions], None]) -> None:
        self._session = session
        self.workers = list(workers)
        self._closing = closing
        self._last: list[Moves] = [Moves() for _ in workers]
        self._active: Partitions = frozenset()
        self._standby: Partitions = frozenset()
        self._given: tuple[Partitions, Partitions] = (frozenset(), frozenset())
        self.error = ""

    def want(self, active: Partitions, standby: Partitions) -> None:
        """From now on these are to be held."""
        self._active, self._standby = active, standby

    def round(self) -> bool:
        """One round; whether everything is where it belongs."""
        here = held_by(self._session, restoring(self._session))
        active: set[int] = set()
        standby: set[int] = set()
        settled = True
        for number, part in enumerate(self._shards()):
            worker = self.workers[number] if self.workers else None
            there = None if worker is None else worker.poll()
            if worker is not None and there is None:
                # It is carrying an order out; what is here stays, as far as it is still wanted.
                active |= {one for one in here if here[one].role == "active" and one in part and one in self._active}
                settled = False
                continue
            found = moves(
                self._active & part,
                self._standby & part,
                {one: holding for one, holding in here.items() if one in part},
                there,
                self._last[number] if self._last else None,
            )
            if worker is not None:
                self._last[number] = found
            active |= found.server_active
            standby |= found.server_standby
        self._open_here(frozenset(active), frozenset(standby))
        return self._tell_workers() and settled and self._given == (self._active, frozenset(standby))

    def worker_status(self) -> list[Mapping[str, object]]:
        """The last status document of each worker."""
        return [worker.status for worker in self.workers if worker.status is not None]

    def close(self) -> None:
        """End the workers."""
        for worker in self.workers:
            worker.close()

    def _shards(self) -> list[Partitions]:
        everything = self._active | self._standby | {one.partition for one in self._session.all_tasks()}
        number = len(self.workers) or 1
        return [frozenset(one for one in everything if one % number == shard) for shard in range(number)]

    def _open_here(self, active: Partitions, standby: Partitions) -> None:
        held = {one.partition: task for one, task in self._session.all_tasks().items()}
        if (active, standby) == self._given and held.keys() == active | standby:
            return
        gone = frozenset(one for one in held if one not in active)
        if gone:
            self._closing(gone)
        try:
            self._session.assign(active=sorted(active), standby=sorted(standby))
        except StandfastError as error:
            self.error = str(error)
            if not isinstance(error, Unavailable):
                raise
            return
        self.error = ""
        self._given = (active, standby)

    def _tell_workers(self) -> bool:
        here = {one.partition for one in self._session.all_tasks()}
        settled = True
        for worker, found in zip(self.workers, self._last, strict=True):
            # Nobody opens there what is not closed here yet.
            worker.want(found.worker_active - here, found.worker_standby - here)
            settled = settled and worker.settled and not found.worker_active
        return settled


def restoring(session: Session) -> dict[int, int]:
    """Records that active tasks of a session still have to replay, by partition."""
    found: dict[int, int] = {}
    for restore in session.restores():
        found[restore.partition] = found.get(restore.partition, 0) + restore.remaining
    return found


def held_by(session: Session, remaining: Mapping[int, int]) -> dict[int, Holding]:
    """What a session holds."""
    return {
        task_id.partition: Holding(task.role, task.state.value, remaining.get(task_id.partition, 0))
        for task_id, task in session.all_tasks().items()
    }
