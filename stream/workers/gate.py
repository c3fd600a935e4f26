"""The restore gate of an instance with worker processes: the supervisor opens it once for an assignment.

    active tasks of the part ── one is not restored yet ──> shut: no worker processes, no standby of any worker begins
                             ── all run ──────────────────> open: a task that comes later, or again, waits by itself
    no active task is left ───────────────────────────────> the next assignment shuts it again; standbys go on

A task that cannot be opened keeps the gate shut, as with one process, and standbys begin all the same.

Rules of this file: pure. With `gate="task"` the workers take from it only when standbys begin.
"""

from __future__ import annotations

from collections.abc import Callable

from standfast.replication.offsets import TaskId
from standfast.replication.takeover import Free
from standfast.stream.workers.orders import GONE, Orders
from standfast.stream.workers.protocol import GateOrder

NAMED_MAX = 20  # missing tasks that a message names
_SAID = {"": "is not open yet", "failed": "failed", "closed": "failed"}


class InstanceGate:
    """See the head of this file. `state` is the message that the workers have, or get next."""

    def __init__(self) -> None:
        self.state = GateOrder(open=False, standbys=False)
        self._opened = False  # for the present assignment

    def look(self, active: frozenset[TaskId], orders: Orders, is_free: Callable[[TaskId], Free]) -> bool:
        """Take in the workers' reports; whether the state is another one now."""
        before = self.state
        if not active:
            # Not shut yet: the tasks that leave must still commit.
            self._opened, self.state = False, GateOrder(before.open, standbys=True)
        elif not self._opened:
            missing = orders.missing(is_free)
            coming = any(state not in GONE for state in missing.values())
            named = [f"task {task} {_SAID.get(state, f'is {state}')}" for task, state in missing.items()]
            if len(named) > NAMED_MAX:
                named[NAMED_MAX:] = [f"and {len(named) - NAMED_MAX:,} more tasks"]
            self._opened = not missing
            self.state = GateOrder(self._opened, not coming, tuple(named))
        return self.state != before
