"""Compares the stores that the demo left behind with the plain computation, row by row.

    state directory ──> rows by (partition, key ...) ──┐
    flights ──> plain_board ───────────────────────────┴─> missing, extra, different, examples

Rules of this file: it reads stores as an application would and changes nothing; nobody else may have the state
directory meanwhile. What the rows must be comes from `standfast.ops.demo_plain` alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from standfast.ops.demo_board import APP, PARTITIONS, stores
from standfast.ops.demo_plain import PlainBoard
from standfast.restore.digest import Digest, digest_rows
from standfast.store.clock import Clock
from standfast.store.rocks import RocksShared
from standfast.store.state_dir import StateDir
from standfast.store.task_stores import TaskStores

EXAMPLES_MAX = 5
READ_MEMORY_BYTES = 64 << 20

Rows = Mapping[Any, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class StoreComparison:
    """One store, all partitions. `examples` are the first differences in words."""

    store: str
    rows: int
    expected: int
    missing: int
    extra: int
    different: int
    examples: tuple[str, ...]
    digest: Digest

    @property
    def differences(self) -> int:
        """Rows that differ in any way."""
        return self.missing + self.extra + self.different


@dataclass(frozen=True, slots=True)
class BoardComparison:
    """Both stores, and the flights that their rows count up to against those of the file."""

    stores: tuple[StoreComparison, ...]
    flights_counted: int
    flights_expected: int
    windowed_counted: int
    windowed_expected: int

    @property
    def differences(self) -> int:
        """Rows that differ, plus one for each sum that does."""
        sums = (self.flights_counted != self.flights_expected) + (self.windowed_counted != self.windowed_expected)
        return sum(one.differences for one in self.stores) + sums


def compare_state(root: Path, retention_ms: int, plain: PlainBoard, clock: Clock) -> BoardComparison:
    """Compare every row of the state directory `root` with the plain board."""
    aircraft: dict[Any, dict[str, Any]] = {}
    delays: dict[Any, dict[str, Any]] = {}
    with open_state(root, retention_ms, clock) as tasks:
        for partition, task in tasks.items():
            known: Any = task.store("aircraft")
            windows: Any = task.store("delays")
            aircraft.update({(partition, tail): value for tail, value in known.all()})
            delays.update({(partition, at.key, at.start): value for at, value in windows.all()})
        digests = state_digests(tasks)
    return BoardComparison(
        stores=(
            compare_store("aircraft", aircraft, plain.aircraft, digests["aircraft"]),
            compare_store("delays", delays, plain.delays, digests["delays"]),
        ),
        flights_counted=sum(row["flights"] for row in aircraft.values()),
        flights_expected=sum(plain.records.values()),
        windowed_counted=sum(row["flights"] for row in delays.values()),
        windowed_expected=sum(plain.records.values()) - plain.expired,
    )


def compare_store(store: str, actual: Rows, expected: Rows, digest: Digest) -> StoreComparison:
    """Compare two sets of rows."""
    missing = sorted(expected.keys() - actual.keys())
    extra = sorted(actual.keys() - expected.keys())
    different = sorted(row for row in expected.keys() & actual.keys() if expected[row] != actual[row])
    told = [f"{store} {row}: missing, must be {expected[row]}" for row in missing[:EXAMPLES_MAX]]
    told += [f"{store} {row}: extra, is {actual[row]}" for row in extra[:EXAMPLES_MAX]]
    told += [f"{store} {row}: is {actual[row]}, must be {expected[row]}" for row in different[:EXAMPLES_MAX]]
    return StoreComparison(
        store, len(actual), len(expected), len(missing), len(extra), len(different), tuple(told[:EXAMPLES_MAX]), digest
    )


def state_digests(tasks: Mapping[int, TaskStores]) -> dict[str, Digest]:
    """Digest by store, over all partitions: key, timestamp and raw value of every visible row."""
    digests: dict[str, Digest] = {}
    for task in tasks.values():
        for name, store in task.stores.items():
            digests[name] = digests.get(name, Digest()) + digest_rows(store.logical_rows())
    return digests


@contextmanager
def open_state(root: Path, retention_ms: int, clock: Clock) -> Iterator[dict[int, TaskStores]]:
    """The stores of every partition in a state directory, held against other processes meanwhile."""
    with ExitStack() as opened:
        folder = StateDir(root, APP)
        opened.callback(folder.close)
        shared = RocksShared(READ_MEMORY_BYTES)
        tasks = {}
        for partition in range(PARTITIONS):
            name = f"0_{partition}"
            path = folder.task_path(name)
            tasks[partition] = TaskStores(path, APP, name, stores(retention_ms), shared, now_ms=clock.wall_ms)
            opened.callback(tasks[partition].close)
        yield tasks
