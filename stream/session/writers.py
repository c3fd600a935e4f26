"""Writers and fencing: which instance may write a task.

    open ──> the log fences the former owner ──> owned here ──> another instance opens one ──> fenced: lost here
                                                     └── a newer owner is seen in the group ──> give_way ──┘

A task has one transactional id, so the log itself lets only its last owner write; its life keeps a loss until the
caller names the task again.

Rules of this file: it opens writers and compares owners; the instance closes lost tasks. It knows no store.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager

from standfast.replication.log import Group, Log, LogWriter
from standfast.replication.offsets import TaskId
from standfast.store.errors import Fenced
from standfast.store.process.threads import THREADS, Threads
from standfast.stream.task.states import GONE
from standfast.stream.task.task import Task

OPENED_TOGETHER = 8


class Writers:
    """The writers of an application's tasks, as one member opens them."""

    def __init__(self, log: Log, group: Group, app: str, member: str, threads: Threads = THREADS) -> None:
        self._threads = threads
        self._log = log
        self._group = group
        self._app = app
        self._member = member
        self._opened: dict[TaskId, Future[LogWriter]] = {}

    def connect(self, tasks: Iterable[TaskId]) -> None:
        """Connect, at the same time, the writers of tasks that will be opened one after the other."""
        self._log.prepare([self._id(task_id) for task_id in tasks])

    @contextmanager
    def opened(self, tasks: Mapping[TaskId, bool]) -> Iterator[None]:
        """Open the writers of tasks at the same time, for the calls of `open` in this block; the values are `if_free`.

        Each claim and fence takes several round trips to a broker; of twelve tasks in a row the first stood still until
        the last was there.
        """
        if self._log.remote and len(tasks) > 1:
            with self._threads.pool(OPENED_TOGETHER, "standfast-open") as pool:
                self._opened = {one: pool.submit(self._open, one, if_free=free) for one, free in tasks.items()}
        try:
            yield
        finally:
            unused, self._opened = self._opened, {}
            for one in unused.values():
                if one.exception() is None:
                    one.result().close()

    def open(self, task_id: TaskId, *, if_free: bool) -> LogWriter:
        """Become a task's owner. With `if_free` Held while a live member owns it; Fenced if one takes it meanwhile."""
        found = self._opened.pop(task_id, None)
        return self._open(task_id, if_free=if_free) if found is None else found.result()

    def _open(self, task_id: TaskId, *, if_free: bool) -> LogWriter:
        return self._log.writer(self._id(task_id), group=self._app, owner=self._member, if_free=if_free)

    def owners(self, candidates: Iterable[TaskId]) -> dict[TaskId, str]:
        """The members that last opened a writer for these."""
        names = {self._id(task_id): task_id for task_id in candidates}
        return {names[name]: owner for name, owner in self._group.owners().items() if name in names}

    def owners_and_leader(self, candidates: Iterable[TaskId], leader_id: str) -> tuple[dict[TaskId, str], str | None]:
        """As `owners`, and the member that last claimed the lead, in one look."""
        names = {self._id(task_id): task_id for task_id in candidates}
        owners = self._group.owners()
        return {names[name]: owner for name, owner in owners.items() if name in names}, owners.get(leader_id)

    def give_way(self, tasks: Mapping[TaskId, Task], owners: Mapping[TaskId, str]) -> None:
        """Fail the active tasks that run here and have a newer owner."""
        for task_id, owner in owners.items():
            task = tasks.get(task_id)
            # By role and not by state alone: a standby's owner is another member by its nature.
            runs = task is not None and task.role == "active" and task.state not in GONE
            if task is not None and runs and task.error is None and owner != self._member:
                task.fail(Fenced(f"{owner} owns task {task_id} now"))

    def fence_others(self, members: Collection[str], most: int) -> bool:
        """Fence the writers of this application's tasks whose last owner is none of `members`: at most so many.

        Returns whether none is left. Also those of tasks that this program does not have: their stalled owner could
        else still commit offsets of topics that tasks of this program read.
        """
        task = re.compile(rf"{re.escape(self._app)}-\d+-\d+")
        found = [name for name, owner in sorted(self._group.owners().items())
                 if owner not in members and task.fullmatch(name)]  # fmt: skip
        self._log.prepare(found[:most])
        for name in found[:most]:
            self._log.writer(name, group=self._app, owner=self._member).close()
        return len(found) <= most

    def _id(self, task_id: TaskId) -> str:
        # On Kafka the transactional id, by which the broker fences.
        return f"{self._app}-{task_id.group}-{task_id.partition}"
