"""Compares the stores that the demo left behind with the plain computation, row by row.

    state directory ──> rows by (partition, key ...) ──┐
    flights ──> plain_board ───────────────────────────┴─> missing, extra, different, examples

Rules of this file: it reads stores as an application would and changes nothing; no other process may have the state
directory meanwhile. The expected rows come from `standfast.ops.demo.plain` alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

from standfast.ops.demo.board import BoardSettings, task_groups
from standfast.ops.demo.plain import PlainBoard
from standfast.replication.offsets import TaskId
from standfast.restore.compare import merged
from standfast.restore.digest import Digest, digest_rows
from standfast.store.clock import Clock
from standfast.store.results import Windowed
from standfast.store.rocks.engine import RocksShared
from standfast.store.task.state_dir import StateDir
from standfast.store.task.task_stores import TaskStores
from standfast.stream.session.groups import all_task_ids

EXAMPLES_MAX = 5
READ_MEMORY_BYTES = 64 << 20

Rows = Mapping[Any, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class StoreComparison:
    """One store, all partitions. `examples` are the first differences in words, `digest` is that of all rows.

    `again` are rows that count flights again, which is no difference where the guarantee is at least once.
    """

    store: str
    rows: int
    expected: int
    missing: int
    extra: int
    different: int
    examples: tuple[str, ...]
    digest: str = ""
    again: int = 0

    @property
    def differences(self) -> int:
        """Rows that differ in any way."""
        return self.missing + self.extra + self.different


@dataclass(frozen=True, slots=True)
class BoardComparison:
    """All stores, and the flights that were counted against those of the file.

    `flights_counted` is by the tasks themselves, in the numbers kept with their commits; `windowed_flights_counted` by
    the rows of the hours within retention. `aircraft_retired` counts retirements, several of some aircraft. Where it is
    not `exact`, as at least once, flights may be counted again; none may be missing.
    """

    stores: tuple[StoreComparison, ...]
    flights_counted: int
    flights_expected: int
    windowed_flights_counted: int
    windowed_flights_expected: int
    aircraft_retired: int = 0
    exact: bool = True

    @property
    def differences(self) -> int:
        """Rows that differ in any way, plus one for each sum that is not right."""
        windowed = self.windowed_flights_counted - self.windowed_flights_expected
        more = (self.flights_counted - self.flights_expected, windowed)
        sums = sum(one < 0 or (self.exact and one > 0) for one in more)
        return sum(one.differences for one in self.stores) + sums

    @property
    def again(self) -> int:
        """Flights that were counted more than once, by the rows of the hours within retention."""
        return max(self.windowed_flights_counted - self.windowed_flights_expected, 0)


def compare_state(root: Path, settings: BoardSettings, plain: PlainBoard, clock: Clock) -> BoardComparison:
    """Compare every row of the state directory `root` with the plain board."""
    exact = settings.guarantee == "exactly_once"
    expected: dict[str, Rows] = {
        "aircraft": plain.aircraft,
        "delays": plain.delays,
        "three-hours": plain.three_hours,
        "final-delays": plain.delays,  # results are given once, but the rows stay as long as any others
    }
    with open_state(root, settings, clock) as tasks:
        actual = {name: _rows(tasks, name) for name in expected}
        digests = state_digests(tasks)
        progress = [task.cut.progress for task in tasks.values()]
    return BoardComparison(
        stores=tuple(
            compare_store(name, actual[name], rows, digests[name], exact=exact) for name, rows in expected.items()
        ),
        flights_counted=sum(one.get("flights", 0) for one in progress),
        flights_expected=sum(plain.records.values()),
        windowed_flights_counted=sum(row["flights"] for row in actual["delays"].values()),
        windowed_flights_expected=sum(plain.records.values()) - plain.expired,
        aircraft_retired=sum(one.get("retired", 0) for one in progress),
        exact=exact,
    )


def _rows(tasks: Mapping[TaskId, TaskStores], name: str) -> dict[Any, dict[str, Any]]:
    """(partition, key) or (partition, key, window start) -> value, over all tasks that have the store."""
    rows: dict[Any, dict[str, Any]] = {}
    for task_id, task in tasks.items():
        if name in task.stores:
            store: Any = task.store(name)
            with store.all() as found:
                for key, value in found:
                    plain = (key.key, key.start) if isinstance(key, Windowed) else (key,)
                    rows[(task_id.partition, *plain)] = value
    return rows


def compare_store(store: str, actual: Rows, expected: Rows, digest: str = "", *, exact: bool = True) -> StoreComparison:
    """Compare two sets of rows. Where it is not `exact`, a row may count flights again, and is then correct."""
    counts: Counter[str] = Counter()
    told: list[str] = []
    for at, must, row in merged(_named(expected), _named(actual)):
        kind = "missing" if row is None else "extra" if must is None else "equal" if row == must else "different"
        if row is not None and must is not None and not exact and _counted_again(row, must):
            kind = "again"
        counts[kind] += 1
        if kind not in ("equal", "again") and len(told) < EXAMPLES_MAX:
            told.append(f"{store} {at.decode()}: {kind}, is {row}, must be {must}")
    return StoreComparison(
        store=store,
        rows=len(actual),
        expected=len(expected),
        missing=counts["missing"],
        extra=counts["extra"],
        different=counts["different"],
        examples=tuple(told),
        digest=digest,
        again=counts["again"],
    )


def _counted_again(actual: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    if "flights" not in expected:
        return False
    # Sums grow with each repeat, and the worst delay of an hour does not.
    return bool(actual["flights"] > expected["flights"] and actual["worst"] == expected["worst"])


def _named(rows: Rows) -> list[tuple[bytes, Mapping[str, Any]]]:
    # `merged` refuses names that are not in strictly ascending order.
    return sorted(((str(at).encode(), row) for at, row in rows.items()), key=itemgetter(0))


def state_digests(tasks: Mapping[TaskId, TaskStores]) -> dict[str, str]:
    """Digest by store, over all partitions: key, timestamp and raw value of every visible row."""
    digests: dict[str, Digest] = {}
    for task in tasks.values():
        for name, store in task.stores.items():
            digests[name] = digests.get(name, Digest()) + digest_rows(store.logical_rows())
    return {name: digest.hex() for name, digest in digests.items()}


@contextmanager
def open_state(root: Path, settings: BoardSettings, clock: Clock) -> Iterator[dict[TaskId, TaskStores]]:
    """The stores of every task in a state directory, held against other processes meanwhile."""
    groups = task_groups(settings)
    with ExitStack() as opened:
        folder = StateDir(root, settings.app)
        opened.callback(folder.close)
        shared = RocksShared(READ_MEMORY_BYTES)
        tasks = {}
        for task_id in sorted(all_task_ids(groups)):
            name, specs = str(task_id), groups[task_id.group].specs
            path = folder.task_path(name)
            tasks[task_id] = TaskStores(path, settings.app, name, specs, shared, now_ms=clock.wall_ms)
            opened.callback(tasks[task_id].close)
        yield tasks
