"""The task mover: carries out moves of tasks between the server's session and its workers, round by round.

    round(held)    holdings of both ──> moves (pure, `moves.py`) ──> close here, open here, order the workers

Rules of this file: used by the control thread, which gives the session's snapshot; it is taken again only after tasks
were closed or opened. Partition p belongs to worker p modulo their number, so that a task never changes from worker to
worker. A step that the log does not answer is tried again with the next round.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import Future
from typing import Any, NamedTuple

from standfast.ops.sidecar.worker.moves import FENCED, Holding, ProcessMoves, moves
from standfast.ops.sidecar.worker.process import StandbyWorker
from standfast.ops.sidecar.worker.protocol import RowsPage
from standfast.ops.sidecar.worker.session import HeldTasks, SidecarSession
from standfast.store.errors import StandfastError, Unavailable, is_of_log

Partitions = frozenset[int]


class MoveRound(NamedTuple):
    """Outcome of a round. `fenced`: active tasks that another instance has taken; `held`: the session after it."""

    fenced: Partitions
    held: HeldTasks


class TaskMover:
    """The task mover. `closing` is called before the server closes tasks, and returns once no connection uses them."""

    def __init__(
        self,
        session: SidecarSession,
        workers: Sequence[StandbyWorker],
        closing: Callable[[Partitions], None],
        bare: Callable[[Partitions], Partitions] = lambda partitions: frozenset(),
    ) -> None:
        """`bare` says which of these tasks have no database on disk and are to begin with a snapshot."""
        self._session = session
        self._bare = bare
        self.workers = list(workers)
        self._closing = closing
        self._last: list[ProcessMoves] = [ProcessMoves() for _ in workers]
        self._active: Partitions = frozenset()
        self._standby: Partitions = frozenset()
        self._take_back: Partitions = frozenset()  # named by the application and not opened here since
        self._given: tuple[Partitions, Partitions] = (frozenset(), frozenset())
        self.error = ""

    def want(self, active: Partitions, standby: Partitions, *, named: bool = False) -> None:
        """Set the tasks to hold. `named`: the application asks for them, also for those that another instance took."""
        self._active, self._standby = active, standby
        self._take_back = active if named else self._take_back & active

    def round(self, held: HeldTasks) -> MoveRound:
        """One round, from a snapshot of the session; tasks that another instance has taken are no longer wanted."""
        here = holdings(held)
        active: set[int] = set()
        standby: set[int] = set()
        fenced = set(held.lost & self._active)
        for number, part in enumerate(self._shards(held.tasks.keys())):
            worker = self.workers[number] if self.workers else None
            there = None if worker is None else worker.poll()
            if worker is not None and there is None:
                # The worker is carrying out an order; wanted tasks that are open here stay.
                active |= {one for one in here if here[one].role == "active" and one in part and one in self._active}
                continue
            found = moves(
                self._active & part,
                self._standby & part,
                {one: holding for one, holding in here.items() if one in part},
                there,
                self._last[number] if self._last else None,
                bare=self._bare(self._active & part - here.keys() - (there or {}).keys()),
            )
            if worker is not None:
                self._last[number] = found
                # A loss from here on is a new one.
                self._take_back -= {one for one, holding in (there or {}).items() if holding.state != FENCED}
            active |= found.server_active
            standby |= found.server_standby
            fenced |= found.fenced
        fenced -= self._take_back
        if self._open_here(frozenset(active - fenced), frozenset(standby), held.tasks.keys()):
            held = self._session.held()
        for worker, found in zip(self.workers, self._last, strict=True):
            # A worker opens no task that is not closed here yet.
            worker.want(found.worker_active - held.tasks.keys(), found.worker_standby - held.tasks.keys())
        return MoveRound(frozenset(fenced), held)

    def read(self, partition: int, path: str, query: str) -> Future[RowsPage]:
        """A page of rows of a task that a worker holds. Raises Unavailable, Refused."""
        if not self.workers:
            raise Unavailable(f"partition {partition} is not open here at the moment: ask again")
        return self.workers[partition % len(self.workers)].read(path, query)

    def worker_status(self) -> list[Mapping[str, Any]]:
        """The last status document of each worker."""
        return [worker.status for worker in self.workers if worker.status is not None]

    def close(self) -> None:
        """End the workers."""
        for worker in self.workers:
            worker.close()

    def _shards(self, held: Set[int]) -> list[Partitions]:
        # Also tasks that are no longer wanted: they have to be closed.
        everything = self._active | self._standby | held
        number = len(self.workers) or 1
        return [frozenset(one for one in everything if one % number == shard) for shard in range(number)]

    def _open_here(self, active: Partitions, standby: Partitions, held: Set[int]) -> bool:
        """Assign these to the session; returns whether it had to be called."""
        # A repeated order would take the session's lock for nothing in each tick of 20 ms.
        if (active, standby) == self._given and held == active | standby and not active & self._take_back:
            return False
        gone = frozenset(held - active)
        if gone:
            # Commits end before their task closes: an assignment answers with offsets, and a commit under way moves
            # them.
            self._closing(gone)
        try:
            self._session.hold(active, standby, self._take_back)
        except StandfastError as error:
            if not is_of_log(error):
                raise
            self.error = str(error)
            return True
        self._take_back -= active
        self.error = ""
        self._given = (active, standby)
        return True


def holdings(held: HeldTasks) -> dict[int, Holding]:
    """Tasks of a session, with the number of records that each active one still has to replay."""
    remaining: Counter[int] = Counter()
    for restore in held.restores:
        remaining[restore.partition] += restore.remaining
    return {
        partition: Holding(one.role, one.state.value, remaining[partition]) for partition, one in held.tasks.items()
    }
