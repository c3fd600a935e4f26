"""Compares the stores that the demo left behind with the plain computation, row by row.

    state directory ──> rows by (partition, key ...) ──┐
    flights ──> plain_board ───────────────────────────┴─> missing, extra, different, examples

Rules of this file: it reads stores as an application would and changes nothing; nobody else may have the state
directory meanwhile. What the rows must be comes from `standfast.ops.demo.plain` alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from standfast.ops.demo.board import BoardSettings, task_groups
from standfast.ops.demo.plain import PlainBoard
from standfast.replication.offsets import TaskId
from standfast.restore.digest import Digest, digest_rows
from standfast.store.clock import Clock
from standfast.store.results import Windowed
from standfast.store.rocks.engine import RocksShared
from standfast.store.task.state_dir import StateDir
from standfast.store.task.task_stores import TaskStores
from standfast.stream.session.groups import all_task_ids

EXAMPLES_MAX = 5
READ_MEMORY_BYTES = 64 << 20

Rows = Mapping[Any, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class StoreComparison:
    """One store, all partitions. `examples` are the first differences in words.

    `again` are rows that count flights again, which is no difference where the guarantee is at least once.
    """

    store: str
    rows: int
    expected: int
    missing: int
    extra: int
    different: int
    examples: tuple[str, ...]
    digest: Digest
    again: int = 0

    @property
    def differences(self) -> int:
        """Rows that differ in any way."""
        return self.missing + self.extra + self.different


@dataclass(frozen=True, slots=True)
class BoardComparison:
    """All stores, and the flights that were counted against those of the file.

    `flights_counted` is by the tasks themselves, in the numbers kept with their commits; `windowed_counted` by the rows
    of the hours within retention. `retired` is how many aircraft were retired, some of them more than once. Where it
    is not `exact`, as at least once, flights may be counted again; none may be missing.
    """

    stores: tuple[StoreComparison, ...]
    flights_counted: int
    flights_expected: int
    windowed_counted: int
    windowed_expected: int
    retired: int = 0
    exact: bool = True

    @property
    def differences(self) -> int:
        """Rows that differ in any way, plus one for each sum that is not right."""
        more = (self.flights_counted - self.flights_expected, self.windowed_counted - self.windowed_expected)
        sums = sum(one < 0 or (self.exact and one > 0) for one in more)
        return sum(one.differences for one in self.stores) + sums

    @property
    def again(self) -> int:
        """Flights that were counted more than once, by the rows of the hours within retention."""
        return max(self.windowed_counted - self.windowed_expected, 0)


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
        windowed_counted=sum(row["flights"] for row in actual["delays"].values()),
        windowed_expected=sum(plain.records.values()) - plain.expired,
        retired=sum(one.get("retired", 0) for one in progress),
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


def agrees(actual: Mapping[str, Any], expected: Mapping[str, Any], *, exact: bool) -> bool:
    """Whether a row is what it must be; where it is not `exact`, it may count flights again."""
    if exact or "flights" not in expected:
        return actual == expected
    return bool(actual["flights"] > expected["flights"] and actual["worst"] == expected["worst"]) or actual == expected


def compare_store(store: str, actual: Rows, expected: Rows, digest: Digest, *, exact: bool = True) -> StoreComparison:
    """Compare two sets of rows."""
    missing = sorted(expected.keys() - actual.keys())
    extra = sorted(actual.keys() - expected.keys())
    unequal = sorted(row for row in expected.keys() & actual.keys() if expected[row] != actual[row])
    different = [row for row in unequal if not agrees(actual[row], expected[row], exact=exact)]
    told = [f"{store} {row}: missing, must be {expected[row]}" for row in missing[:EXAMPLES_MAX]]
    told += [f"{store} {row}: extra, is {actual[row]}" for row in extra[:EXAMPLES_MAX]]
    told += [f"{store} {row}: is {actual[row]}, must be {expected[row]}" for row in different[:EXAMPLES_MAX]]
    return StoreComparison(
        store,
        len(actual),
        len(expected),
        len(missing),
        len(extra),
        len(different),
        tuple(told[:EXAMPLES_MAX]),
        digest,
        len(unequal) - len(different),
    )


def state_digests(tasks: Mapping[TaskId, TaskStores]) -> dict[str, Digest]:
    """Digest by store, over all partitions: key, timestamp and raw value of every visible row."""
    digests: dict[str, Digest] = {}
    for task in tasks.values():
        for name, store in task.stores.items():
            digests[name] = digests.get(name, Digest()) + digest_rows(store.logical_rows())
    return digests


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
