"""The table of active tasks that the servers may use: the control thread replaces it, the event loop reads it.

Rules of this file: the engine's `TaskSource`. One attribute is replaced as a whole, so that the loop takes no lock and
never sees half a change. The servers' error codes say why a task cannot be used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from standfast.ops.shared.error_codes import FENCED, NOT_ACTIVE, NOT_ASSIGNED, RESTORING, Refused
from standfast.store.errors import StandfastError
from standfast.store.names import few
from standfast.stream.task.task import Task


@dataclass(frozen=True, slots=True)
class TableMoment:
    """One moment. `open`: tasks behind an open gate; `states`: every assigned partition, in a word or two.

    `failed`: active tasks that cannot be used, and why; `fenced`: tasks that a newer owner took, and why; `idle`: why
    no task is held any more, if the application did not say so.
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
        """`trouble`: the log's trouble, if it has any now; tasks that are not open wait for the log then."""
        self.now = TableMoment()
        self.trouble = trouble

    def running(self, partition: int) -> Task:
        """The active task of a partition, restored and behind an open gate.

        Raises Refused, the error that the task failed with, or the trouble of the log that it waits for.
        """
        # Read once: the control thread may replace the table between two lines.
        table = self.now
        task = table.open.get(partition)
        if task is not None:
            return task
        if partition in table.failed:
            # An exception that is raised again and again would keep the frames of each time.
            raise table.failed[partition].with_traceback(None)
        if partition in table.fenced:
            raise Refused(FENCED, f"partition {partition}: {table.fenced[partition]}")
        state = table.states.get(partition)
        if state is None:
            held = few(sorted(table.states)) or "none"
            why = f": {table.idle}, assign it under a larger one" if table.idle else ""
            raise Refused(
                NOT_ASSIGNED, f"partition {partition} is not assigned to this instance (it holds: {held}){why}"
            )
        if state == "standby":
            raise Refused(NOT_ACTIVE, f"partition {partition} is a standby here: write and read at the active instance")
        # The log's trouble before RESTORING: reads answered LOADING for as long as the log was locked, which waiting
        # alone does not end.
        trouble = self.trouble()
        if trouble is not None:
            raise trouble
        raise Refused(RESTORING, f"partition {partition} is {state}: wait until it is ready")

    def partitions(self) -> Mapping[int, str]:
        """State of each assigned partition."""
        return self.now.states

    def missing(self) -> Sequence[str]:
        """The tasks that keep the restore gate shut."""
        return self.now.missing
