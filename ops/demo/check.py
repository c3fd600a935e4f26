"""The checks after the demo's processes have stopped: the plain computation, the changelogs, a cold restore.

    state of B ──┬─ rows      against the plain computation from the file
                 ├─ rows      against its changelogs, folded
                 ├─ digest    against the state of A, which was killed and came back as standby
                 └─ digest    against a restore into an empty directory, timed
    hour-results ── records   against the plain computation: each closed hour once
    group       ─── offsets   against the number of records

Rules of this file: no process of the demo runs any more; the checks change nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from standfast.ops.demo.board import PARTITIONS, BoardSettings, task_groups
from standfast.ops.demo.compare import BoardComparison, compare_state, open_state, state_digests
from standfast.ops.demo.display import Display
from standfast.ops.demo.finals import FinalsComparison, compare_finals, read_finals
from standfast.ops.demo.flights import FlightData
from standfast.ops.demo.plain import plain_board
from standfast.ops.demo.result import ColdRestore, Offsets, Verified
from standfast.ops.demo.worker import state_dir
from standfast.replication.listeners import Listener
from standfast.replication.log import Log
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.restore.verify.verify import StoreVerdict, committed_views, verify_task
from standfast.store.clock import Clock
from standfast.stream.session.groups import all_task_ids
from standfast.stream.session.session import Session

COLD_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Checked:
    """Results of the checks. `a_equal` is whether the stores of A, back as a standby, equal those of B."""

    comparison: BoardComparison
    finals: FinalsComparison
    offsets: Offsets
    verified: Verified
    cold: ColdRestore
    a_equal: bool


class _Counter(Listener):
    """Counter of the records that a restore replays."""

    def __init__(self) -> None:
        self.records = 0

    def on_batch_restored(
        self, task: TaskId, store: str, changelog: TopicPartition, position: int, records: int
    ) -> None:
        self.records += records


def check(folder: Path, log: Log, data: FlightData, settings: BoardSettings, clock: Clock, display: Display) -> Checked:
    """Run every check over the state that the demo left in `folder`."""
    plain = plain_board(data.flights, PARTITIONS, settings.grace_ms, settings.retention_ms)
    comparison = compare_state(state_dir(folder, "b"), settings, plain, clock)
    rows = sum(one.expected for one in comparison.stores)
    display.event(f"{rows:,} rows compared with the plain computation: {comparison.differences} differences")
    # At least once, rows may count flights again and results may be given again; none may be missing.
    exact = settings.guarantee == "exactly_once"
    finals = compare_finals(read_finals(log, settings.results), plain.finals, exact=exact)
    display.event(f"{finals.records:,} final results, one for each hour that closed: {finals.differences} differences")
    live = {one.store: one.digest for one in comparison.stores}
    verified = verify_state(folder, log, settings, clock)
    display.event(f"{verified.rows:,} rows verified against the changelogs: {verified.mismatches} differences")
    cold, digests = restore_cold(folder, log.address, settings, clock)
    cold_equal = digests == live
    display.event(f"cold restore of the same state: {cold.records:,} changes in {cold.duration_ms / 1_000:.2f} s")
    return Checked(
        comparison=comparison,
        finals=finals,
        offsets=committed_offsets(log, settings, plain.records),
        verified=verified,
        cold=ColdRestore(cold.records, cold.duration_ms, cold_equal),
        a_equal=_digests(state_dir(folder, "a"), settings, clock) == live,
    )


def committed_offsets(log: Log, settings: BoardSettings, expected: Mapping[int, int]) -> Offsets:
    """Committed offsets of the flights, by partition; a partition without a flight has no commit."""
    with closing(log.group(settings.app)) as group:
        # By name: asked for all partitions of a group, Kafka omits one whose first offset is still being written.
        wanted = [TopicPartition(settings.topic, part) for part in expected]
        found = {at.partition: one.offset for at, one in group.committed(wanted).items()}
    return Offsets({number: found.get(number, 0) for number in expected}, dict(expected))


def verify_state(folder: Path, log: Log, settings: BoardSettings, clock: Clock) -> Verified:
    """Compare the stores of B with their changelogs, folded to the positions of the stores."""
    found: list[StoreVerdict] = []
    with open_state(state_dir(folder, "b"), settings, clock) as tasks:
        for task_id, task in tasks.items():
            views, positions = committed_views(task), task.cut.positions
            found += verify_task(task_id, views, positions, log, settings.app, now_ms=clock.wall_ms())
    return Verified(
        stores=len(found),
        rows=sum(one.store_digest.count for one in found),
        mismatches=sum(one.missing + one.extra + one.different + one.stale for one in found),
        unequal=sum(one.verdict != "equal" or one.store_digest != one.log_digest for one in found),
    )


def restore_cold(folder: Path, log: str, settings: BoardSettings, clock: Clock) -> tuple[ColdRestore, dict[str, str]]:
    """Restore every task into an empty directory; the time counts from nothing to an open gate."""
    counter = _Counter()
    root, groups = state_dir(folder, "cold"), task_groups(settings)
    started_ms = clock.monotonic_ms()
    session = Session(
        settings.app,
        log=log,
        state_dir=root,
        groups=groups,
        clock=clock,
        listeners=[counter],
    )
    with session:
        session.assign(active=all_task_ids(groups))
        session.wait_ready(COLD_TIMEOUT_S)
        # Before the session closes: flushing is no part of a restore.
        duration_ms = clock.monotonic_ms() - started_ms
    return ColdRestore(counter.records, duration_ms, equal=False), _digests(root, settings, clock)


def _digests(root: Path, settings: BoardSettings, clock: Clock) -> dict[str, str]:
    with open_state(root, settings, clock) as tasks:
        return state_digests(tasks)
