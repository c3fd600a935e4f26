"""An application whose compacted changelog lost its head, with an instance or a snapshot that has read it."""

from __future__ import annotations

from typing import Any

import standfast as sf
from standfast.replication.offsets import TopicPartition
from support.sessions import Bench

KV = TopicPartition("app-kv-changelog", 0)
STORES = [sf.KeyValueStore("kv", sf.serde.string, sf.serde.string)]
ROWS = 500


def write(session: sf.Session, first: int, last: int) -> None:
    """Put and commit rows with these numbers."""
    task = session.task(0)
    for number in range(first, last):
        task.store("kv").put(f"{number:05}", "v")
    task.commit()


def behind_with_snapshot(bench: Bench, stores: list[Any] = STORES) -> dict[str, Any]:
    """The rows of instance "b" end before the removed head, and a snapshot has read it; the settings of "b"."""
    policy = sf.SnapshotPolicy(to=str(bench.root / "snaps"))
    first = bench.active(stores=stores, snapshots=policy)
    second = bench.session("b", stores=stores, take_over=False)
    second.assign(standby=[0])
    write(first, 0, ROWS)
    bench.settle(second)
    second.close()
    write(first, ROWS, ROWS + 10)
    first.snapshot(0)
    write(first, ROWS + 10, ROWS + 20)
    first.close()
    bench.embedded.truncate(KV, ROWS + 5)
    return {"stores": stores, "snapshots": policy}


def all_removed_with_snapshot(bench: Bench) -> dict[str, Any]:
    """Every record of the changelog was removed, and a snapshot has read all; the settings of an instance."""
    policy = sf.SnapshotPolicy(to=str(bench.root / "snaps"))
    first = bench.active(stores=STORES, snapshots=policy)
    write(first, 0, ROWS)
    first.snapshot(0)
    first.close()
    bench.embedded.truncate(KV, ROWS)
    return {"stores": STORES, "snapshots": policy}
