"""Partitions in parts on a real Spark, and one pass over a changelog for rebuild and verify.

Rules of this file: real sessions on the embedded log and RocksDB; the results are compared with the same job on whole
partitions. Spark's own scans count the rows read from the log.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace
from system.spark.test_spark_pipeline import Quiet
from system.spark.test_spark_verify import damage, places_of, plant_everywhere
from unit.restore.test_spark_split_fold import content

from standfast.replication.log import Outgoing
from standfast.replication.offsets import TopicPartition
from standfast.replication.shapes import plain
from standfast.restore.spark.batches import StoreShape
from standfast.restore.spark.folder import Folder
from standfast.restore.spark.frames import Reading, run_partitions
from standfast.restore.spark.pipeline import PipelineDone, PipelineReader, jobs_of_log, jobs_of_state, run_pipeline
from standfast.restore.spark.rebuild import Rebuilt, rebuild
from standfast.restore.spark.session import BATCH_BYTES
from standfast.restore.spark.verify import Verified, plan_verify, stored_stores, verify_store
from standfast.restore.verify.preflight import preflight
from standfast.store.errors import InvalidRequest
from support.sessions import KINDS, START_MS, Bench, four_stores, operate

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

PARTITIONS = 3


def skewed(bench: Bench) -> None:
    """Tasks of four stores, closed: the first one has more than half of all records."""
    session = bench.session(partitions=PARTITIONS)
    session.assign(active=range(PARTITIONS))
    session.wait_ready(30)
    for number, count in enumerate((400, 100, 80)):
        operate(session.task(number), random.Random(number), count, keys=60)
    session.close()


def bound_of(bench: Bench, spec: Any) -> int:
    """A third of the longest partition: the others stay whole."""
    what = preflight(bench.log, "app", spec)
    longest = max(span.end - span.begin for span in what.ranges.values())
    return int(what.average_bytes * longest / 3) + 1


def rows_of(folder: Path, spec: Any, done: Rebuilt) -> list[Any]:
    """Rows of the files of every partition, by family."""
    return [content(folder, spec, {"files": plain(part.files)}) for part in done.manifest.partitions]


@pytest.mark.long
@pytest.mark.parametrize("name", KINDS)
def test_partition_with_half_of_all_records_is_worked_on_by_several_tasks_with_the_same_result(
    spark: Any, bench: Bench, tmp_path: Path, name: str
) -> None:
    skewed(bench)
    damage(bench, lambda engine: plant_everywhere(engine, random.Random(9)))
    spec = next(one for one in four_stores() if one.name == name)
    what, bound = preflight(bench.log, "app", spec), bound_of(bench, spec)

    def made(folder: Path, split_bytes: int | None) -> Rebuilt:
        target = Folder(str(folder))
        return rebuild(spark, bench.log, what, target, now_ms=bench.clock.wall_ms, split_bytes=split_bytes)

    whole, parts = made(tmp_path / "whole", None), made(tmp_path / "parts", bound)
    assert rows_of(tmp_path / "parts", spec, parts) == rows_of(tmp_path / "whole", spec, whole)
    for one, other in zip(whole.manifest.partitions, parts.manifest.partitions, strict=True):
        assert replace(one, files=()) == replace(other, files=())
    # Tasks of the longest partition, by the attempt in a file's name, and the rows of each.
    sizes = Counter[str]()
    for file in parts.manifest.partition(0).files:
        sizes[file.name.split("-")[2]] += file.entries
    rows = parts.manifest.partition(0).entries
    assert len(sizes) == 3
    assert max(sizes.values()) <= 0.6 * rows
    assert len({file.name.split("-")[2] for file in parts.manifest.partition(1).files}) == 1

    def verified(split_bytes: int | None, **more: Any) -> Verified:
        plan = plan_verify(bench.log, "app", name, stored_stores(places_of(bench), name)[name])
        now_ms = bench.clock.wall_ms()
        return verify_store(spark, bench.log, plan, now_ms=now_ms, split_bytes=split_bytes, **more)

    alone, together = verified(None, include_values=True), verified(bound, include_values=True)
    assert together == alone
    assert [one.verdict for one in together.verdicts] == ["different", "equal", "equal"]
    if name in ("win", "ver"):
        assert verified(bound, digest_only=True) == verified(None, digest_only=True)


def scanned(spark: Any) -> dict[int, int]:
    """Rows that Python sources returned, by Spark's number of the query."""
    store = spark._jsparkSession.sharedState().statusStore()
    found: dict[int, int] = {}
    queries = store.executionsList().iterator()
    while queries.hasNext():
        number = queries.next().executionId()
        values, metrics = {}, store.executionMetrics(number).iterator()
        while metrics.hasNext():
            pair = metrics.next()
            values[int(str(pair._1()))] = str(pair._2())
        nodes = store.planGraph(number).allNodes().iterator()
        while nodes.hasNext():
            node = nodes.next()
            if not str(node.name()).startswith("BatchScan"):
                continue
            own = node.metrics().iterator()
            while own.hasNext():
                metric = own.next()
                if metric.name() == "number of output rows":
                    rows = values.get(int(metric.accumulatorId()), "0")
                    found[number] = found.get(number, 0) + int(rows.replace(",", ""))
    return found


def rows_read(spark: Any, before: dict[int, int]) -> int:
    """Rows of queries since then."""
    spark._jsparkSession.sparkContext().listenerBus().waitUntilEmpty()
    return sum(rows for number, rows in scanned(spark).items() if number not in before)


def ran(spark: Any, bench: Bench, jobs: Any, out: Path, **reader: Any) -> PipelineDone:
    target = Folder(str(out))
    return run_pipeline(
        spark, bench.log, jobs, target, Quiet(), now_ms=bench.clock.wall_ms, reader=PipelineReader(**reader)
    )


@pytest.mark.long
def test_pipeline_reads_every_record_once_from_state_and_from_the_log_alone(
    spark: Any, bench: Bench, tmp_path: Path
) -> None:
    skewed(bench)
    jobs = jobs_of_state(bench.log, places_of(bench))
    records = sum(job.what.records_max for job in jobs if job.what is not None)
    facts = PARTITIONS * len(KINDS)  # one row of each partition has its facts
    specs = four_stores()
    alone = jobs_of_log(bench.log, "app", specs)
    found = []
    for folder, chosen, reader in (
        ("state", jobs, {}),
        ("split", jobs, {"split_bytes": max(bound_of(bench, spec) for spec in specs), "at_once": 4}),
        ("log", alone, {}),
    ):
        before = scanned(spark)
        done = ran(spark, bench, chosen, tmp_path / f"of-{folder}", **reader)
        assert done.verdict == "equal"
        read = rows_read(spark, before)
        # Versions too late for their history are read, and go no further than the source.
        refused = sum(part.gaps for one in done.stores for part in one.inspected)
        extra = read - (records - refused)
        assert extra == facts if folder != "split" else facts < extra < 25 * facts
        found.append([(one.job.name, one.inspected, one.compared, one.rebuilt.digest) for one in done.stores])  # type: ignore[union-attr]
    assert found[0] == found[1] == found[2]


@pytest.mark.long
def test_planted_rows_are_told_by_the_one_pass_as_by_a_verify_alone(spark: Any, bench: Bench, tmp_path: Path) -> None:
    skewed(bench)
    damage(bench, lambda engine: plant_everywhere(engine, random.Random(5)))
    jobs = jobs_of_state(bench.log, places_of(bench))
    done = ran(spark, bench, jobs, tmp_path / "out", include_values=True)
    for one in done.stores:
        plan = plan_verify(bench.log, "app", one.job.name, stored_stores(places_of(bench))[one.job.name])
        alone = verify_store(spark, bench.log, plan, now_ms=bench.clock.wall_ms(), include_values=True)
        assert (one.verdicts, one.found) == (alone.verdicts, alone.found)
        assert one.compared.unequal == (0,)


@pytest.mark.long
def test_store_that_fails_lets_the_others_end_and_they_are_kept(spark: Any, bench: Bench, tmp_path: Path) -> None:
    skewed(bench)
    precious = tmp_path / "out/rebuilt/ses/precious"
    jobs = jobs_of_state(bench.log, places_of(bench))
    out = Folder(str(tmp_path / "out"))

    class Spoils(Quiet):
        """Another process writes into the folder of a store, once all of them have been checked."""

        def step(self, number: int, total: int, what: str) -> None:
            if number == 1:
                precious.parent.mkdir(parents=True)
                precious.write_text("mine")

    reader = PipelineReader(at_once=4)
    with pytest.raises(InvalidRequest, match="is not empty"):
        run_pipeline(spark, bench.log, jobs, out, Spoils(), now_ms=bench.clock.wall_ms, reader=reader)
    assert precious.read_text() == "mine"
    precious.unlink()
    again = run_pipeline(spark, bench.log, jobs, out, Quiet(), now_ms=bench.clock.wall_ms, reader=reader)
    assert again.verdict == "equal"
    assert {one.job.name: one.kept for one in again.stores} == {"kv": True, "win": True, "ver": True, "ses": False}


def test_batches_on_their_way_are_bounded_by_bytes_where_records_that_were_looked_at_are_small(
    spark: Any, bench: Bench
) -> None:
    """A changelog whose large values lie between the places that a plan samples, and in another partition."""
    small = [Outgoing(b"s%05d" % number, b"v", START_MS) for number in range(9_000)]
    large = [Outgoing(b"l%05d" % number, random.randbytes(1 << 20), START_MS) for number in range(24)]
    spec = four_stores()[0]
    bench.active(partitions=(0, 1)).close()
    writer = bench.log.producer()
    for partition, records in ((0, small[:2_000]), (0, large), (0, small[2_000:]), (1, large)):
        writer.append({TopicPartition("app-kv-changelog", partition): records})
    what = preflight(bench.log, "app", spec)
    assert what.average_bytes < 100
    shape = StoreShape(spec.name, spec.definition(), {number: span.end for number, span in what.ranges.items()})

    def largest(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            columns = [pa.array([0], pa.int32()), pa.array([batch.nbytes], pa.int64())]
            yield pa.RecordBatch.from_arrays(columns, ["partition", "bytes"])

    rows = run_partitions(spark, Reading(what, shape), largest, "partition int, bytes long")
    sizes = [row["bytes"] for row in rows]
    assert sum(sizes) > 48 << 20
    assert max(sizes) <= BATCH_BYTES + (2 << 20), f"{max(sizes) >> 20} MiB in one batch"
