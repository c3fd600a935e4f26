"""The runs of the comparison: preparation of each system's own log and state, and the measures on them.

    ground      a system's own application over a source of its own: it processed every record, so that its own runtime
                wrote the changelog; `clean` and `killed` are copies of its state directory
                  kv-1, kv-4, window-1   at least once         kv-1-eos   exactly once
                  snapshot-1             at least once, with a snapshot in each storage at 99 % of its records
    restore     start on an empty directory, with or without a snapshot, or on a copy of one of those; each source
                partition has one record left
    standby     two instances, one a standby without lag; the active is killed
    lost        a window store is killed after its segment rolled; the rows that it has afterwards

Rules of this file: a run leaves nothing behind that another one reads, except the records of its probes.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from compare_data import NEW_ROWS, OLD_ROWS, Expected, Row, Shape, feed, lost_rows
from compare_process import POLL_S, WAIT_S, Side, Usage
from compare_sides import SHARED, Sides
from compare_snapshots import (
    LINKS,
    SNAPSHOT,
    SNAPSHOT_SHARE,
    STATES,
    Storages,
    check_begun,
    link_state,
    store_snapshots,
)

from standfast.replication.log import Log, TopicPolicy
from standfast.replication.offsets import TopicPartition

CLEAN, KILLED = "clean", "killed"
CLEAN_SHARE = 0.9  # of the records; the rest is the tail after a clean stop
AFTER_DEATH_S = SHARED["detect_ms"] / 1_000 + 2  # the group counts a killed process as alive for detect_ms
SETTLE_S = 2 * SHARED["commit_ms"] / 1_000  # a kill after that comes behind the last commit, on every system


@dataclass
class Ground:
    """An application of a family of systems, its source, and its changelog and state directories."""

    family: str
    name: str
    shape: Shape
    guarantee: str = "at_least_once"
    keep: frozenset[str] = frozenset()  # the copies of its directory that scenarios need
    probes: int = 0
    expected: Expected = field(init=False)
    changelog: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.expected = Expected(self.shape)

    @property
    def app(self) -> str:
        """Name of the application."""
        return f"{self.family}-{self.name}"

    @property
    def source(self) -> str:
        """Name of its source topic."""
        return f"{self.app}-source"

    @property
    def partitions(self) -> list[TopicPartition]:
        """Partitions of its source."""
        return [TopicPartition(self.source, number) for number in range(self.shape.partitions)]


@dataclass(frozen=True)
class Place:
    """The place of the runs: the broker's address and log, a folder, storages of snapshots, and the sides' programs."""

    address: str
    log: Log
    folder: Path
    storages: Storages
    sides: Sides
    say: Callable[[str], None]

    def start(self, system: str, ground: Ground, state: Path, **plan: Any) -> Side:
        """Start a side of a ground with the system's settings, on a state directory."""
        shape = ground.shape
        fields = {
            "app": ground.app,
            "bootstrap": self.address,
            "state_dir": str(state),
            "source": ground.source,
            "partitions": shape.partitions,
            "kind": shape.kind,
            "window_ms": shape.window_ms,
            "retention_ms": shape.retention_ms,
            "guarantee": ground.guarantee,
        }
        return Side(self.sides.command(system, fields | plan), self.folder / f"{ground.app}.errors")

    def saved(self, ground: Ground, state: str) -> Path:
        """Path of a kept state directory of a ground."""
        return self.folder / "grounds" / ground.app / state

    def wait_committed(self, ground: Ground) -> None:
        """Wait until the group has committed the end of every source partition."""
        group, reader = self.log.group(ground.app), self.log.reader()
        ends = {source: bounds.end for source, bounds in reader.bounds(ground.partitions).items()}
        deadline = time.monotonic() + WAIT_S
        while True:
            found = group.committed(ground.partitions)
            if all(source in found and found[source].offset >= end for source, end in ends.items()):
                break
            if time.monotonic() > deadline:
                raise RuntimeError(f"{ground.app} committed {found}, of {ends}")
            time.sleep(POLL_S)
        group.close()
        reader.close()

    def probe(self, ground: Ground) -> None:
        """Write one more record to every partition of the source."""
        ground.probes += 1
        rows = [ground.shape.probe(number, ground.probes) for number in range(ground.shape.partitions)]
        feed(self.log, ground.source, rows)
        for row in rows:
            ground.expected.add(row)


def prepare(place: Place, ground: Ground) -> None:
    """Let the system process every record; keep its directory as it is after a clean stop and after a SIGKILL.

    The group counts the killed process as alive for AFTER_DEATH_S from then on.
    """
    shape = ground.shape
    place.say(f"{ground.app}: processing {shape.records:,} records")
    started = time.monotonic()
    place.log.admin.create_topic(ground.source, shape.partitions, TopicPolicy())
    state = place.saved(ground, "live")
    stops = {CLEAN: CLEAN_SHARE, SNAPSHOT: SNAPSHOT_SHARE}
    ends = [(int(shape.records * share), name) for name, share in stops.items() if name in ground.keep]
    first = 0
    for upto, ending in [*ends, (shape.records, KILLED)]:
        feed(place.log, ground.source, shape.rows(first, upto))
        side = place.start(ground.family, ground, state)
        try:
            side.wait_processed(upto - first)
            place.wait_committed(ground)
            if ending == KILLED and KILLED in ground.keep:
                time.sleep(SETTLE_S)
                side.kill()
            else:
                side.stop()
        finally:
            side.end()
        if ending == SNAPSHOT:
            store_snapshots(place, ground, state)
        if ending in ground.keep:
            shutil.copytree(state, place.saved(ground, ending))
        first = upto
    shutil.rmtree(state)
    ground.changelog = changelog_of(place.log, ground) | {"prepared_s": round(time.monotonic() - started, 1)}


def changelog_of(log: Log, ground: Ground) -> dict[str, Any]:
    """The changelog that the system's runtime wrote, and its number of offsets."""
    (info,) = [one for one in log.admin.topics() if ground.app in one.name and "changelog" in one.name]
    reader = log.reader()
    found = reader.bounds([TopicPartition(info.name, number) for number in range(info.partitions)])
    reader.close()
    return {"topic": info.name, "offsets": sum(one.end - one.begin for one in found.values())}


def restore(place: Place, system: str, ground: Ground, state: str | None) -> dict[str, Any]:
    """One restore: from a copy of a kept directory, from a snapshot, or from nothing."""
    place.probe(ground)
    run, plan = place.folder / "run", {}
    if state in STATES:
        plan["snapshots"] = place.storages.of(state)
    if state == LINKS:
        link_state(place.saved(ground, SNAPSHOT), run)
    elif state is not None and state not in STATES:  # a copy, so that all rounds begin alike
        shutil.copytree(place.saved(ground, state), run)
    os.sync()  # else the kernel would write pages of earlier runs during this one
    side = place.start(system, ground, run, **plan)
    try:
        side.wait_mark("drained")
        measured = figures(side)
        if state in STATES:
            check_begun(ground, state, side.marks["drained"])
        place.wait_committed(ground)  # a read returns committed rows only
        measured |= checked(side, ground)
        side.stop()
    finally:
        side.end()
        shutil.rmtree(run, ignore_errors=True)
    return measured


def figures(side: Side) -> dict[str, Any]:
    """Times and usage of a side, from the start of its restore: `processed_ms`, and until nothing was left to do."""
    # Each side reports its own times, in the one clock that Java and Python share.
    at = {name: mark["at_ns"] for name, mark in side.marks.items()}
    used, before = side.usage["drained"], side.usage.get("restore", Usage())
    return {
        "elapsed_ms": (at["drained"] - at["restore"]) / 1e6,
        "processed_ms": (at["processed"] - at["restore"]) / 1e6,
        "from_start_ms": (at["drained"] - side.started_ns) / 1e6,
        "restored": side.marks["drained"]["restored"],
        "cpu_s": used.cpu_s - before.cpu_s,
        "cpu_from_start_s": used.cpu_s,
        "written_bytes": used.written_bytes - before.written_bytes,
        "peak_bytes": max(side.peak_bytes, used.resident_bytes),
    }


def checked(side: Side, ground: Ground) -> dict[str, Any]:
    """Rows and digest of a side, and whether they are the expected ones."""
    found = side.ask("digest")
    rows, total = ground.expected.digest()
    correct = (found["rows"], found["sum"]) == (rows, total)
    return {"rows": found["rows"], "digest": f"{found['rows']}-{found['sum']:x}", "correct": correct} | (
        {} if correct else {"expected": f"{rows}-{total:x}"}
    )


def standby(place: Place, system: str, ground: Ground) -> dict[str, Any]:
    """Kill the active; the standby takes over. The time is from the kill to the first record that it processed."""
    one, two = place.folder / "run", place.folder / "run-standby"
    shutil.copytree(place.saved(ground, CLEAN), one)
    place.probe(ground)
    sides = [place.start(system, ground, one, standbys=1)]
    try:
        sides[0].wait_mark("drained")
        sides.append(place.start(system, ground, two, standbys=1))
        sides[1].wait_lag("standby")
        place.wait_committed(ground)
        time.sleep(SETTLE_S)
        killed_ns = time.monotonic_ns()
        sides[0].kill()
        place.probe(ground)
        sides[1].wait_mark("drained")
        measured = figures(sides[1])
        measured["processed_ms"] = (sides[1].marks["processed"]["at_ns"] - killed_ns) / 1e6
        measured["elapsed_ms"] = (sides[1].marks["drained"]["at_ns"] - killed_ns) / 1e6
        measured["noticed_ms"] = (sides[1].marks["restore"]["at_ns"] - killed_ns) / 1e6
        place.wait_committed(ground)
        measured |= checked(sides[1], ground)
        sides[1].stop()
    finally:
        for side in sides:
            side.end()
        for state in (one, two):
            shutil.rmtree(state, ignore_errors=True)
    time.sleep(AFTER_DEATH_S)  # else the next run's group would still have the killed member
    return measured


def lost(place: Place, system: str, shape: Shape, number: int) -> dict[str, Any]:
    """Write rows to one segment, many more to the next, commit, SIGKILL, start again; count the lost rows."""
    shape = replace(shape, kind="window", partitions=1, window_ms=1_000, retention_ms=600_000)
    ground = Ground(system, f"lost-{number}", shape)
    place.log.admin.create_topic(ground.source, 1, TopicPolicy())
    run = place.folder / "run"
    fed: list[Row] = []
    side = place.start(system, ground, run)
    try:
        for old in (True, False):
            rows = list(lost_rows(shape.seed, shape.now_ms, old=old))
            fed += rows
            feed(place.log, ground.source, rows)
            side.wait_processed(len(fed))
            place.wait_committed(ground)
            time.sleep(SETTLE_S)
        side.kill()
        time.sleep(AFTER_DEATH_S)
        # The last row again: it gives the side a record to process, and changes no row.
        feed(place.log, ground.source, [fed[-1]])
        side = place.start(system, ground, run)
        side.wait_mark("drained")
        place.wait_committed(ground)
        split_ms = fed[OLD_ROWS].timestamp
        older, every = side.ask("digest", 0, split_ms), side.ask("digest")
        measured = figures(side) | {
            "rows": every["rows"],
            "lost_older": OLD_ROWS - older["rows"],
            "lost": OLD_ROWS + NEW_ROWS - every["rows"],
            "correct": every["rows"] == OLD_ROWS + NEW_ROWS,
        }
        side.stop()
    finally:
        side.end()
        shutil.rmtree(run, ignore_errors=True)
    return measured | {"changelog": changelog_of(place.log, ground)}
