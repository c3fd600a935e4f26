"""Moves of tasks between processes: restores and standbys belong in the worker, running tasks in the server.

    cold, far behind     server opens, gives back ──> worker restores ──> worker closes ──> server opens
    bare                 worker downloads a snapshot, restores the rest ──> worker closes ──> server opens
    warm standby         worker closes ──> server opens
    little to replay     server opens

The server opens every active task last: that fences the old owner, reads the end again, replays the few remaining
records and opens the gate. Only the process that has a task open knows its remaining records; so a server that finds
more than `NEAR_RECORDS` to replay gives the task back at once, because a long replay would slow its clients down.

Rules of this file: pure. One look at the wanted tasks and at the tasks of each process gives the moves of this round;
the shell carries them out and looks again. A task never has two owners: the next one waits for the other's close.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from standfast.replication.shapes import Shape

NEAR_RECORDS = 2_000
FENCED = "fenced"


class Holding(Shape, frozen=True):
    """A task as a process holds it. `state` as in stream/task/states.py, or FENCED; `remaining`: records to replay."""

    role: str
    state: str
    remaining: int = 0


@dataclass(frozen=True, slots=True)
class ProcessMoves:
    """The tasks that each process is to hold from now on.

    `far`     tasks that the server opened and gave back: the worker is to bring them to the end
    `tried`   tasks that the worker has finished, whole or failed: the server keeps them, however far they are
    `fenced`  tasks that another instance took while the worker restored them: neither process takes them back
    """

    server_active: frozenset[int] = frozenset()
    server_standby: frozenset[int] = frozenset()
    worker_active: frozenset[int] = frozenset()
    worker_standby: frozenset[int] = frozenset()
    far: frozenset[int] = frozenset()
    tried: frozenset[int] = frozenset()
    fenced: frozenset[int] = frozenset()


def moves(
    active: frozenset[int],
    standby: frozenset[int],
    server: Mapping[int, Holding],
    worker: Mapping[int, Holding] | None,
    last: ProcessMoves | None = None,
    near_records: int = NEAR_RECORDS,
    bare: frozenset[int] = frozenset(),
) -> ProcessMoves:
    """The next round after `last`. `worker` is None where there is none: then the server holds every task.

    `bare` are tasks without a database on disk, which are to begin with a snapshot, if the storage has one.
    """
    if worker is None:
        return ProcessMoves(server_active=active, server_standby=standby)
    far, tried = (set(last.far & active), set(last.tried & active)) if last is not None else (set(), set())
    # Of wanted tasks only: one that is assigned again later may go to the worker again.
    here: set[int] = set()
    there: set[int] = set()
    fenced: set[int] = set()
    for partition in active:
        ours, theirs = server.get(partition), worker.get(partition)
        if theirs is not None and theirs.state == FENCED:
            fenced.add(partition)
        # A task goes to the worker once only: a writer that never rests would send it to and fro.
        elif theirs is not None and theirs.state in ("running", "failed", "closed"):
            far.discard(partition)  # the worker closes it; the round after that opens it here
            tried.add(partition)
        elif theirs is not None and theirs.role == "standby" and theirs.remaining <= near_records:
            # Near enough: the server replays a short rest itself. With the embedded log a standby without lag gave its
            # first read 75 to 119 ms after the assignment.
            far.discard(partition)
        elif theirs is not None:
            there.add(partition)
        elif ours is None:
            # Once the server has opened a task its directory is not bare any more, and a download takes long.
            downloads = partition in bare and partition not in tried
            (there if partition in far or downloads else here).add(partition)
        elif ours.state == "restoring" and ours.remaining > near_records and partition not in tried:
            far.add(partition)  # given back; the worker gets it once it is closed here
        else:
            here.add(partition)
    return ProcessMoves(
        frozenset(here),
        frozenset(),
        frozenset(there),
        # A standby that is open here is closed first: a task never has two owners.
        standby - server.keys(),
        frozenset(far),
        frozenset(tried),
        frozenset(fenced),
    )
