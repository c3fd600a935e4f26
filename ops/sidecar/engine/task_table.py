"""Which active tasks the doors may use now: a table that the control thread replaces and the event loop reads.

Rules of this file: the engine's `TaskSource`. One attribute is replaced as a whole, so that the loop takes no lock and
never sees half a change. Why a task cannot be used is said by the reasons of the doors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from standfast.ops.shared.reasons import FENCED, NOT_ACTIVE, NOT_ASSIGNED, RESTORING, Refused
from standfast.store.errors import StandfastError
from standfast.stream.session.task import Task


@dataclass(frozen=True, slots=True)
class Table:
    """One moment. `open`: tasks behind an open gate; `states`: every assigned partition, in a word or two.

    `failed`: active tasks that cannot be used, and why; `fenced`: what a newer owner took, and why; `idle`: why nothing
    is held any more, if the application did not say so.
    """

    open: Mapping[int, Task] = field(default_factory=dict)
    failed: Mapping[int, BaseException] = field(default_factory=dict)
    states: Mapping[int, str] = field(default_factory=dict)
    missing: Sequence[str] = ()
    fenced: Mapping[int, str] = field(default_factory=dict)
    idle: str = ""


class TaskTable:
    """See Table."""

    def __init__(self, trouble: Callable[[], StandfastError | None] = lambda: None) -> None:
        """`trouble`: why the log cannot be used now, if so; what is not open waits for it then."""
        self.now = Table()
        self.trouble = trouble

    def running(self, partition: int) -> Task:
        """The active task of a partition, restored and behind an open gate.

        Raises Refused, what the task failed with, or what is wrong with the log that it waits for.
        """
        table = self.now
        task = table.open.get(partition)
        if task is not None:
            return task
        if partition in table.failed:
            # Raised again and again, it would keep the frames of each time.
            raise table.failed[partition].with_traceback(None)
        if partition in table.fenced:
            raise Refused(FENCED, f"partition {partition}: {table.fenced[partition]}")
        state = table.states.get(partition)
        if state is None:
            held = ", ".join(map(str, sorted(table.states))) or "none"
            why = f": {table.idle}, assign it under a larger one" if table.idle else ""
            raise Refused(
                NOT_ASSIGNED, f"partition {partition} is not assigned to this instance (it holds: {held}){why}"
            )
        if state == "standby":
            raise Refused(NOT_ACTIVE, f"partition {partition} is a standby here: write and read at the active instance")
        trouble = self.trouble()
        if trouble is not None:
            raise trouble
        raise Refused(RESTORING, f"partition {partition} is {state}: wait until it is ready")

    def partitions(self) -> Mapping[int, str]:
        """What is assigned here."""
        return self.now.states

    def missing(self) -> Sequence[str]:
        """Who keeps the restore gate shut."""
        return self.now.missing
