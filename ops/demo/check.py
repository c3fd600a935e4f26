"""The checks after the demo's processes have stopped: the plain computation, the changelogs, a cold restore.

    state of B ──┬─ rows      against the plain computation from the file
                 ├─ rows      against its changelogs, folded
                 └─ digest    against a restore into an empty directory, timed
    hour-results ── records   against the plain computation: each closed hour once
    group       ─── offsets   against the number of records

Rules of this file: no process of the demo runs any more; the checks change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from standfast.ops.demo.board import PARTITIONS, BoardSettings, task_groups
from standfast.ops.demo.compare import compare_finals, compare_state, state_digests
from standfast.ops.demo.flights import FlightData
from standfast.ops.demo.plain import plain_board
from standfast.ops.demo.result import Json
from standfast.ops.demo.view import LogView
from standfast.ops.demo.worker import state_dir
from standfast.ops.observe.offline import OfflineStores, open_tasks
from standfast.replication.log import Log
from standfast.restore.verify.at_rest import find_tasks
from standfast.restore.verify.verify import verify_task
from standfast.store.clock import Clock
from standfast.stream.session.session import Session
from standfast.stream.task.groups import all_task_ids

COLD_TIMEOUT_S = 120.0


def check(
    folder: Path,
    log: Log,
    view: LogView,
    data: FlightData,
    settings: BoardSettings,
    clock: Clock,
    say: Callable[[str], None],
) -> Json:
    """Run every check over the state that the demo left in `folder`: parts of the document."""
    plain = plain_board(data.flights, PARTITIONS, settings.grace_ms, settings.retention_ms)
    # At least once, rows may count flights again and results may be given again; none may be missing.
    exact = settings.guarantee == "exactly_once"
    with open_state(folder, "b", settings) as tasks:
        stores = compare_state(tasks, plain, exact=exact)
        say(f"{sum(one['expected'] for one in stores.values()):,} rows compared with the plain computation")
        verify = verify_state(tasks, log, clock)
        say(f"{verify['rows']:,} rows verified against the changelogs")
    finals = compare_finals(view.finals(), plain.finals, exact=exact)
    cold = restore_cold(folder, log.address, settings, clock)
    cold["equal"] = cold["digests"] == {name: one["digest"] for name, one in stores.items()}
    say(f"cold restore of the same state: {cold['records']:,} changes in {cold['duration_ms'] / 1_000:.2f} s")
    # A partition without a flight has no commit.
    committed = dict.fromkeys(plain.records, 0) | view.committed()
    return {
        "stores": stores,
        "finals": finals,
        "offsets": {"committed": committed, "expected": plain.records},
        "verify": verify,
        "cold_restore": cold,
    }


@contextmanager
def open_state(folder: Path, name: str, settings: BoardSettings) -> Iterator[Sequence[OfflineStores]]:
    """The stores that a process of the demo left, read-only."""
    with open_tasks(find_tasks(state_dir(folder, name), settings.app)) as tasks:
        yield tasks


def verify_state(tasks: Sequence[OfflineStores], log: Log, clock: Clock) -> Json:
    """Compare stores with their changelogs, folded to the positions of the stores."""
    found = [
        verdict
        for one in tasks
        for verdict in verify_task(
            one.task.task,
            {name: one.store(name) for name in one.definitions},
            one.cut.positions,
            log,
            one.task.app,
            now_ms=clock.wall_ms(),
        )
    ]
    return {
        "stores": len(found),
        "rows": sum(one.store_digest.count for one in found),
        "unequal": sum(one.verdict != "equal" or one.store_digest != one.log_digest for one in found),
    }


def restore_cold(folder: Path, log: str, settings: BoardSettings, clock: Clock) -> Json:
    """Restore every task into an empty directory; the time counts from nothing to an open gate."""
    groups = task_groups(settings)
    started_ms = clock.monotonic_ms()
    with Session(settings.app, log=log, state_dir=state_dir(folder, "cold"), groups=groups, clock=clock) as session:
        session.assign(active=all_task_ids(groups))
        session.wait_ready(COLD_TIMEOUT_S)
        # Before the session closes: flushing is no part of a restore.
        duration_ms = max(clock.monotonic_ms() - started_ms, 1)
        records = session.statistics().counters.restored_records.total()
    with open_state(folder, "cold", settings) as tasks:
        return {"records": records, "duration_ms": duration_ms, "digests": state_digests(tasks)}
