"""The checks after the demo's processes have stopped: the plain computation, the changelogs, a cold restore.

    state of B ──┬─ rows      against the plain computation from the file
                 ├─ rows      against its changelogs, folded
                 └─ digest    against a restore into an empty directory, timed
    hour-results ── records   against the plain computation: each closed hour once
    group       ─── offsets   against the number of records

    again       rows that count flights again, which is no difference where the guarantee is at least once
    repeated    results beyond the first of an hour

Rules of this file: no process of the demo runs any more; the checks read as any reader would and change nothing. The
expected rows come from `standfast.ops.demo.plain` alone. It returns parts of the demo's document.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from standfast.ops.demo.board import PARTITIONS, RESULTS, BoardSettings, task_groups
from standfast.ops.demo.flights import Flight
from standfast.ops.demo.plain import PlainBoard, plain_board
from standfast.ops.demo.result import Json
from standfast.ops.demo.view import At, LogView
from standfast.ops.demo.worker import state_dir
from standfast.ops.observe.offline import OfflineStores, open_tasks
from standfast.replication.log import Log
from standfast.restore.digest import Digest, digest_rows
from standfast.restore.verify.at_rest import find_tasks
from standfast.restore.verify.verify import verify_task
from standfast.store.clock import Clock
from standfast.store.results import Windowed
from standfast.stream.session.session import Session
from standfast.stream.task.groups import all_task_ids

COLD_TIMEOUT_S = 120.0
EXAMPLES_MAX = 5

Rows = Mapping[Any, Mapping[str, Any]]


def check(
    folder: Path, log: Log, view: LogView, flights: Iterable[Flight], settings: BoardSettings, clock: Clock
) -> Json:
    """Run every check over the state that the demo left in `folder`: parts of the document."""
    plain = plain_board(flights, PARTITIONS, settings.grace_ms, settings.retention_ms)
    # At least once, rows may count flights again and results may be given again; none may be missing.
    exact = settings.guarantee == "exactly_once"
    with open_state(folder, "b", settings) as tasks:
        stores = compare_state(tasks, plain, exact=exact)
        verify = verify_state(tasks, log, clock)
    finals = compare_finals(view.finals(), plain.finals, exact=exact)
    cold = restore_cold(folder, log.address, settings, clock)
    cold["equal"] = cold["digests"] == {name: one["digest"] for name, one in stores.items()}
    return {
        "stores": stores,
        "finals": finals,
        "committed": sum(view.committed().values()),
        "verify": verify,
        "cold_restore": cold,
    }


def open_state(folder: Path, name: str, settings: BoardSettings) -> AbstractContextManager[Sequence[OfflineStores]]:
    """The stores that a process of the demo left, read-only."""
    return open_tasks(find_tasks(state_dir(folder, name), settings.app))


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
        "rows": sum(one.store_digest.count for one in found),
        "unequal": sum(one.verdict != "equal" or one.store_digest != one.log_digest for one in found),
    }


def restore_cold(folder: Path, log: str, settings: BoardSettings, clock: Clock) -> Json:
    """Restore every task into an empty directory; the time counts from nothing to an open gate."""
    groups, state = task_groups(settings), state_dir(folder, "cold")
    started_ms = clock.monotonic_ms()
    with Session(settings.app, log=log, state_dir=state, groups=groups, clock=clock) as session:
        session.assign(active=all_task_ids(groups))
        session.wait_ready(COLD_TIMEOUT_S)
        # Before the session closes: flushing is no part of a restore.
        duration_ms = max(clock.monotonic_ms() - started_ms, 1)
        records = session.statistics().counters.restored_records.total()
    with open_state(folder, "cold", settings) as tasks:
        return {"records": records, "duration_ms": duration_ms, "digests": state_digests(tasks)}


def compare_state(tasks: Sequence[OfflineStores], plain: PlainBoard, *, exact: bool = True) -> dict[str, Json]:
    """Compare every row of the tasks' stores with the plain board; `exact` unless the guarantee is at least once."""
    expected: dict[str, Rows] = {
        "aircraft": plain.aircraft,
        "delays": plain.delays,
        "three-hours": plain.three_hours,
        "final-delays": plain.delays,  # results are given once, but the rows stay as long as any others
    }
    digests = state_digests(tasks)
    return {
        name: compare_rows(name, rows_of(tasks, name), rows, exact=exact) | {"digest": digests[name]}
        for name, rows in expected.items()
    }


def rows_of(tasks: Sequence[OfflineStores], name: str) -> dict[Any, Json]:
    """(partition, key) or (partition, key, window start) -> value, over all tasks that have the store."""
    rows: dict[Any, Json] = {}
    for task in tasks:
        if name in task.definitions:
            store: Any = task.store(name)
            with store.all() as found:
                for key, value in found:
                    plain = (key.key, key.start) if isinstance(key, Windowed) else (key,)
                    rows[(task.task.task.partition, *plain)] = value
    return rows


def compare_rows(name: str, actual: Rows, expected: Rows, *, exact: bool = True) -> Json:
    """Compare two sets of rows. Where it is not `exact`, a row may count flights again, and is then correct."""
    counts = dict.fromkeys(("missing", "extra", "different", "again"), 0)
    examples: list[str] = []
    for at in sorted(actual.keys() | expected.keys()):
        row, must = actual.get(at), expected.get(at)
        if row == must:
            continue
        if row is None or must is None:
            kind = "missing" if row is None else "extra"
        else:
            # Sums grow with each repeat, and the worst delay of an hour does not.
            more = row.get("flights", 0) > must.get("flights", 0) and row["worst"] == must["worst"]
            kind = "again" if more and not exact else "different"
        if kind != "again" and len(examples) < EXAMPLES_MAX:
            examples.append(f"{name} {at}: {kind}, is {row}, must be {must}")
        counts[kind] += 1
    return {"rows": len(actual), "expected": len(expected), **counts, "examples": examples}


def compare_finals(finals: Iterable[tuple[At, Json]], expected: Rows, *, exact: bool = True) -> Json:
    """Compare the final results with the hours that closed: each once, unless it is not `exact`."""
    first: dict[At, Json] = {}
    repeated = []
    for at, row in finals:
        if at in first:
            repeated.append(f"{RESULTS} {at}: given again, as {row}")
        first.setdefault(at, row)
    found = compare_rows(RESULTS, first, expected, exact=exact)
    examples = found["examples"] + repeated[:EXAMPLES_MAX] * exact
    return found | {"records": len(first) + len(repeated), "repeated": len(repeated), "examples": examples}


def state_digests(tasks: Sequence[OfflineStores]) -> dict[str, str]:
    """Digest by store, over all partitions: key, timestamp and raw value of every visible row."""
    digests: dict[str, Digest] = {}
    for task in tasks:
        for name in task.definitions:
            digests[name] = digests.get(name, Digest()) + digest_rows(task.store(name).logical_rows())
    return {name: digest.hex() for name, digest in digests.items()}
