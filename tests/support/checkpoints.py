"""An application of two groups whose state shows whether a cut is consistent, and the state of a checkpoint's parts.

    in ──> group 0: count by user in "seen" ──> by-color repartition ──> group 1: count by color in "totals" ──> out

In every consistent cut the source offsets of group 0, the sum of "seen" and the sum of "totals" are the same number.

Rules of this file: parts are restored from the storage alone, with the product's own code.
"""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import standfast as sf
from standfast.restore.snapshot.checkpoints import CheckpointOutcome, CheckpointState, checkpoints, read_checkpoint
from standfast.restore.snapshot.fetch import restore_task
from standfast.restore.snapshot.planning import Judged
from standfast.restore.snapshot.storage import Storage
from standfast.store.rocks.engine import RocksEngine
from standfast.store.rocks.opening import RocksShared

TEXT, INT = sf.serde.string, sf.serde.int64
COLORS = ("red", "green", "blue", "black", "white")


def stores() -> list[sf.KeyValueStore[str, int]]:
    return [sf.KeyValueStore("seen", TEXT, INT), sf.KeyValueStore("totals", TEXT, INT)]


def two_groups(app: sf.App, source: str = "in", out: str = "out") -> None:
    """Values are colors; keys are users."""
    stream = app.stream(source, key=TEXT, value=TEXT)
    stream.group_by_key().count("seen")
    stream.group_by(lambda user, color: color, key=TEXT, value=TEXT, name="by-color").count("totals").to(out)


class Sums(NamedTuple):
    """A checkpoint in numbers: source offsets of group 0, and the sums of both stores."""

    offsets: int
    seen: int
    totals: int


def complete(storage: Storage) -> list[int]:
    """Numbers of the complete checkpoints."""
    return [one.number for one in checkpoints(storage) if one.state is CheckpointState.COMPLETE]


def sums(storage: Storage, number: int, folder: Path, source: str) -> Sums:
    """The state of a complete checkpoint, restored part by part below a new folder."""
    outcome, shared = read_checkpoint(storage, number), RocksShared(8 << 20)
    found = {"seen": 0, "totals": 0}
    for part in outcome.parts:
        if part.name is None:
            assert not part.cut.positions
            continue
        target = folder / part.task
        done = restore_task(
            storage, part.task, target, folder / "scratch", shared, judge=lambda _: Judged(), wanted=part.name
        )
        assert done.snapshot is not None
        assert done.snapshot.cut == part.cut
        store = "seen" if part.task.startswith("0_") else "totals"
        with closing(RocksEngine(target, shared=shared, read_only=True)) as engine:
            if store in engine.families():
                with engine.scan(store) as rows:
                    found[store] += sum(int.from_bytes(value[8:], "big", signed=True) for _, value in rows)
    shutil.rmtree(folder, ignore_errors=True)
    return Sums(_offsets(outcome, source), found["seen"], found["totals"])


def _offsets(outcome: CheckpointOutcome, source: str) -> int:
    return sum(
        offset for part in outcome.parts for key, offset in part.cut.sources.items() if key.rpartition("/")[0] == source
    )
