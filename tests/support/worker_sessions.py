"""Sessions of worker processes, driven by a test in place of their supervisor.

Rules of this file: the test owns the state directory and the rounds.
"""

from __future__ import annotations

from typing import Any

from standfast.replication.progress import LeaseProgress
from standfast.store.task.state_dir import StateDir
from standfast.stream.task.groups import TaskGroup
from standfast.stream.workers.counts import worker_options
from standfast.stream.workers.session import WorkerSession
from support.sessions import Bench, four_stores


def worker_session(bench: Bench, state: StateDir, partitions: int, **settings: Any) -> WorkerSession:
    """One of two workers to which `state` is lent, with so many tasks of four stores."""
    options: Any = {"placement": "managed", **settings}
    session = WorkerSession(
        "app",
        state_dir=state.lend(state.instance_id),
        progress=LeaseProgress(),
        log=bench.address,
        groups={0: TaskGroup(partitions, tuple(four_stores()), frozenset({"in"}))},
        background=False,
        clock=bench.clock,
        **worker_options(options, 2),
    )
    bench.opened.append(session)
    return session
