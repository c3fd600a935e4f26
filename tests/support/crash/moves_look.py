"""The last look at moved partitions: every row and offset over the RESP server, and from the log alone.

Rules of this file: called once no other thread writes. A difference is an AssertionError that names some rows of it.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, NamedTuple

import standfast as sf
from standfast.ops.shared.control_stores import spec_of
from standfast.replication.offsets import TopicPartition
from support.crash.moves_load import SOURCE, Known, Wire, batch, offset_in
from support.crash.moves_model import KEYS, NAMES, STORES, Row, differences
from support.crash.moves_node import PARTITIONS, STUCK_S, CrashedNode

MORE = 10  # operations behind all that were tried


class Left(NamedTuple):
    """The content of a partition at the end."""

    offset: int
    rows: dict[str, set[Row]]


def look(node: CrashedNode, partition: int) -> Left:
    """Check that the offset is one that was tried, not below the acknowledged one, and all rows are its; then process
    the tried operations to their end, so that those repeated at least once are also known to the row."""
    known = node.known
    acknowledged, attempted = known.acknowledged[partition], known.attempted[partition]
    end = attempted + MORE
    with contextlib.closing(Wire(known, "look", node, partition)) as wire:
        offset = offset_in(wire("SF.OFFSETS"), partition)
        said = f"offset {offset} of partition {partition}, acknowledged {acknowledged}, tried {attempted}"
        assert acknowledged <= offset <= attempted, said
        if known.exactly_once:
            _check(known, partition, offset, _all_rows(wire))
        known.attempt(partition, end)
        wire.whole(batch(partition, offset, end, multi=False))
        known.acknowledge(node, partition, end, None)
        rows = _all_rows(wire)
    _check(known, partition, end, rows)
    return Left(end, rows)


def restored(log: str, state_dir: Path, guarantee: str, left: dict[int, Left]) -> None:
    """A session on an empty directory has the same rows and offsets."""
    stores: Any = [spec_of(store) for store in STORES]
    options: Any = {"partitions": PARTITIONS, "guarantee": guarantee}
    with sf.Session("app", log=log, state_dir=state_dir, stores=stores, **options) as session:
        session.assign(active=range(PARTITIONS))
        session.wait_ready(STUCK_S)
        for partition, (offset, rows) in left.items():
            task = session.task(partition)
            found = task.source_offsets()[TopicPartition(SOURCE, partition)]
            assert found == offset, f"restored: offset {found} of partition {partition}, not {offset}"
            for store, some in _session_rows(task).items():
                assert some == rows[store], f"restored: {store} of {partition}: {differences(some, rows[store])}"


def _check(known: Known, partition: int, offset: int, rows: dict[str, set[Row]]) -> None:
    for store, found in rows.items():
        wanted = known.folds[partition].rows(store, offset)
        assert found == wanted, f"{store} of partition {partition} at {offset}: {differences(found, wanted)}"


def _all_rows(wire: Wire) -> dict[str, set[Row]]:
    found = {store: set(next(wire.rows(store))) for store in ("kv", "win", "ses")}
    return found | {"ver": set(wire.versions([b"k%04d" % number for number in range(KEYS)]))}


def _session_rows(task: Any) -> dict[str, set[Row]]:
    kv, win, ses, ver = (task.store(name) for name in NAMES)
    return {
        "kv": set(kv.all()),
        "win": {(at.key, at.start, value) for at, value in win.all()},
        "ses": {(at.key, at.start, at.end, value) for at, value in ses.fetch_key_range(None, None)},
        "ver": {
            (key, version.valid_from, version.value)
            for key in (b"k%04d" % number for number in range(KEYS))
            for version in ver.range(key, 0, 2**62)
        },
    }
