"""Snapshots beside a real broker: offsets with transaction markers, topic ids and epochs of Kafka."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import standfast as sf

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
KV = [sf.KeyValueStore("kv", sf.serde.string, sf.serde.string)]


@contextmanager
def running(app: str, address: str, root: Path, directory: str) -> Iterator[sf.Session]:
    policy = sf.SnapshotPolicy(to=str(root / "snaps"))
    with sf.Session(
        app,
        log=f"kafka://{address}",
        state_dir=root / directory,
        stores=KV,
        partitions=1,
        take_over=False,
        snapshots=policy,
    ) as session:
        session.assign(active=[0])
        session.wait_ready(60)
        yield session


def put(session: sf.Session, *keys: str) -> None:
    for key in keys:
        session.task(0).store("kv").put(key, "1")
    session.task(0).commit()


def test_a_task_begins_with_a_snapshot_and_reads_the_rest_of_a_transactional_changelog(
    kafka_address: str, tmp_path: Path
) -> None:
    app = f"snap-{uuid.uuid4().hex[:8]}"
    with running(app, kafka_address, tmp_path, "a") as first:
        put(first, *(f"k{number}" for number in range(50)))
        put(first, "more")
        first.snapshot(0)
        put(first, "rest")
    with running(app, kafka_address, tmp_path, "b") as second:
        with second.task(0).store("kv").all() as rows:
            assert dict(rows) == dict.fromkeys([*(f"k{number}" for number in range(50)), "more", "rest"], "1")
        assert second.counters.snapshots.restores["restored"] == 1
        assert sum(second.counters.restored_records.values()) == 1
        second.snapshot(0)
    with running(app, kafka_address, tmp_path, "c") as third:
        assert third.task(0).store("kv").get("rest") == "1"
        assert sum(third.counters.restored_records.values()) == 0
