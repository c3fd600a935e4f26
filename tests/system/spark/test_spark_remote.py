"""State in object storage on a real Spark: the files read, and how often.

Rules of this file: a bucket served over HTTP on loopback that counts its bytes; real sessions made the state.
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import standfast as sf
from standfast.ops.cli.spark.verify_spark import run_verify_spark
from standfast.ops.command.command_line import main
from standfast.ops.shared.output import Output
from standfast.restore.spark.pipeline import jobs_of_state
from standfast.restore.spark.places import remote_places
from standfast.restore.spark.settle import settled_jobs
from standfast.restore.spark.verify import stored_stores
from standfast.store.errors import InvalidRequest
from standfast.store.task.definitions_file import dump, parse
from support.s3 import Bucket, serving
from support.sessions import START_MS, Bench

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(600)]

STORES = 8


def stores() -> list[Any]:
    return [sf.KeyValueStore(f"s{number}", sf.serde.string, sf.serde.bytes) for number in range(STORES)]


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    with serving(tmp_path / "served") as bucket:
        yield bucket


@pytest.fixture
def remote(bench: Bench, bucket: Bucket) -> str:
    """Two tasks of eight stores, of a megabyte each, in object storage."""
    session = bench.active(stores=stores(), partitions=(0, 1))
    for partition in range(2):
        task = session.task(partition)
        rng = random.Random(partition)
        for store in stores():
            for number in range(64):
                task.store(store.name).put(f"k{number:03}", rng.randbytes(1_024), START_MS)
        task.commit()
        task.stores.flush()
    session.close()
    shutil.copytree(bench.root / "a", bucket.folder / "state", ignore=shutil.ignore_patterns("LOCK", "LOG*"))
    return bucket.address("state")


def test_plan_of_remote_state_reads_kilobytes(
    bench: Bench, bucket: Bucket, remote: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["verify", "--spark", "--state-dir", remote, "--log", bench.address, "--plan"]
    assert main(words) == 0
    told = capsys.readouterr().out
    assert "unknown until run" in told
    assert not [name for name in bucket.given if name.endswith((".sst", ".log"))]
    assert bucket.bytes < 64 << 10
    assert main([*words, "--json"]) == 0
    tasks = json.loads(capsys.readouterr().out)["tasks"]
    assert {one["position"] for one in tasks} == {None}
    assert {one["position_known"] for one in tasks} == {False}
    assert len(tasks) == 2 * STORES


def verified(spark: Any, bench: Bench, address: str, **given: Any) -> int:
    """The exit code of verify on this session."""

    @contextmanager
    def own(*_args: Any) -> Iterator[Any]:
        yield spark

    args = Namespace(
        state_dir=address, app="app", store=None, partition=None, log=bench.address, config=None, plan=False,
        snapshot=None, report=None, include_values=False, sample=1.0, digest_only=False,
        split_mb=None, stores_at_once=None, source="native", limit=20,
    )  # fmt: skip
    vars(args).update(given)
    return run_verify_spark(args, Output(as_json=True), own)


def test_verify_fetches_a_task_once_for_all_its_stores(spark: Any, bench: Bench, bucket: Bucket, remote: str) -> None:
    assert verified(spark, bench, remote) == 0
    read = {
        name: count for name, count in bucket.reads.items() if name.endswith((".sst", ".log")) or "MANIFEST" in name
    }
    assert set(read.values()) == {1}
    assert bucket.bytes < 1.2 * sum(one.stat().st_size for one in bucket.folder.rglob("*") if one.is_file())


def test_verify_of_one_store_fetches_only_its_files(spark: Any, bench: Bench, bucket: Bucket, remote: str) -> None:
    assert verified(spark, bench, remote, store="s3") == 0
    whole = sum(one.stat().st_size for one in bucket.folder.rglob("*.sst"))
    assert sum(size for name, size in bucket.given.items() if name.endswith(".sst")) < 1.5 * whole / STORES


def test_positions_of_a_pipeline_s_plans_come_from_the_databases(
    spark: Any, bench: Bench, bucket: Bucket, remote: str
) -> None:
    jobs = jobs_of_state(bench.log, remote_places(remote, "app"))
    assert not any(at.known or at.position for job in jobs for at in job.stored.values())
    local = stored_stores(remote_places(f"file://{bench.root / 'a'}", "app"))
    with settled_jobs(spark, bench.log, jobs) as found:
        assert {job.name: {number: at.position for number, at in job.stored.items()} for job in found} == {
            name: {number: at.position for number, at in places.items()} for name, places in local.items()
        }
        assert all(job.plan is not None and job.plan.stored == job.stored for job in found)
    assert max(count for name, count in bucket.reads.items() if not name.endswith("/STORES")) == 1
    run = next(iter(found[0].stored.values())).place.run
    assert run
    assert not list(Path(tempfile.gettempdir()).glob(f"standfast-files-*/{run}"))


def test_file_that_contradicts_its_database_ends_the_run(spark: Any, bench: Bench, bucket: Bucket, remote: str) -> None:
    for task in ("0_0", "0_1"):
        file = bucket.folder / "state/app" / task / "STORES"
        stores = parse(file.read_bytes()).stores
        assert stores is not None
        file.write_text(dump({name: one for name, one in stores.items() if name != "s5"}))
    with pytest.raises(InvalidRequest, match=r"its file STORES and its database have different definitions of s5"):
        verified(spark, bench, remote)


def test_table_of_one_store_fetches_its_files_alone(spark: Any, bucket: Bucket, remote: str) -> None:
    rows = spark.read.format("standfast").option("storeName", "s2").load(remote)
    assert rows.count() == 128
    whole = sum(one.stat().st_size for one in bucket.folder.rglob("*.sst"))
    assert sum(size for name, size in bucket.given.items() if name.endswith(".sst")) < 1.5 * whole / STORES
