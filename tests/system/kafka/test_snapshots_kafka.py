"""Snapshots beside a real broker: offsets with transaction markers, topic ids and epochs of Kafka."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

import standfast as sf
from standfast.ops.command.command_line import main
from support.crash.damage import store_of

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
KV = [sf.KeyValueStore("kv", sf.serde.string, sf.serde.string)]


@contextmanager
def running(
    app: str, address: str, root: Path, directory: str, stores: Sequence[sf.KeyValueStore[str, str]] = KV
) -> Iterator[sf.Session]:
    policy = sf.SnapshotPolicy(to=str(root / "snaps"))
    with sf.Session(
        app,
        log=f"kafka://{address}",
        state_dir=root / directory,
        stores=stores,
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


def test_the_plan_of_a_restore_is_what_the_start_then_does(
    kafka_address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    app = f"snap-{uuid.uuid4().hex[:8]}"
    with running(app, kafka_address, tmp_path, "a") as first:
        put(first, *(f"k{number}" for number in range(50)))
        name = first.snapshot(0)
        put(first, "rest")
    where = ["--state-dir", str(tmp_path / "b"), "--app", app, "--log", f"kafka://{kafka_address}"]
    assert main(["restore", "-n", *where, "--snapshots", str(tmp_path / "snaps"), "--json"]) == 0
    (task,) = json.loads(capsys.readouterr().out)["tasks"]
    # Offsets hold the markers of two transactions, which are no records: the plan gives an upper bound.
    assert (task["snapshot"], 1 <= task["records"] <= 3) == (name, True)
    assert not (tmp_path / "b").exists()
    with running(app, kafka_address, tmp_path, "b") as second:
        assert sum(second.counters.restored_records.values()) == 1


def test_one_damaged_store_begins_with_a_snapshot_beside_its_neighbour(kafka_address: str, tmp_path: Path) -> None:
    app = f"snap-{uuid.uuid4().hex[:8]}"
    stores = [*KV, sf.KeyValueStore("other", sf.serde.string, sf.serde.string)]
    with running(app, kafka_address, tmp_path, "a", stores) as first:
        task = first.task(0)
        for number in range(500):
            task.store("other").put(f"k{number}", "1")
        put(first, *(f"k{number}" for number in range(500)))
        first.snapshot(0)
        put(first, "rest")
        task.stores.flush()
        task.stores.engine.compact("kv")
    files = [
        path
        for path in (tmp_path / f"a/{app}/0_0").glob("*.sst")
        if store_of(path.read_bytes(), ["kv", "other"]) == "kv"
    ]
    for path in files:
        data = bytearray(path.read_bytes())
        data[0] ^= 0xFF
        path.write_bytes(data)
    assert files
    with running(app, kafka_address, tmp_path, "a", stores) as again:
        for name in ("kv", "other"):
            with again.task(0).store(name).all() as rows:
                assert dict(rows) == dict.fromkeys(
                    [f"k{number}" for number in range(500)] + ["rest"] * (name == "kv"), "1"
                )
        assert again.counters.snapshots.restores["store"] == 1
        assert {at: count for at, count in again.counters.restored_records.items() if count} == {
            ("kv", 0, "corrupt"): 1
        }
