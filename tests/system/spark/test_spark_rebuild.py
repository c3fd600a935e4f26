"""Rebuild on a real Spark: files from a changelog, tasks from the files, and an instance that tails on from them.

Rules of this file: real sessions on the embedded log write the changelogs; digests of rows are compared.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from standfast.ops.command.command_line import main
from standfast.replication.log import Outgoing
from standfast.replication.offsets import TopicPartition
from standfast.restore.digest import Digest, digest_rows, key_hash, row_hash
from standfast.restore.files.manifest import FILE_NAME
from standfast.restore.files.manifest_files import read_manifest
from standfast.restore.spark.folder import Folder
from standfast.restore.spark.places import TaskPlace
from standfast.restore.spark.rebuild import Rebuilt, orphans, rebuild
from standfast.restore.spark.verify import plan_verify, stored_stores, verify_store
from standfast.restore.spark_table.source import StandfastSource
from standfast.restore.verify.at_rest import find_tasks
from standfast.restore.verify.import_tasks import import_tasks
from standfast.restore.verify.preflight import preflight
from standfast.store.errors import Corruption, InvalidRequest, StateLost, Unavailable, UnknownStore
from standfast.stream.task.task import Task
from support.sessions import KINDS, START_MS, Bench, four_stores, operate
from support.spark import killed_driver

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]


def live_digests(task: Task) -> dict[str, Digest]:
    return {name: digest_rows(task.stores.committed_view(name).logical_rows()) for name in KINDS}


def rebuilt(spark: Any, bench: Bench, name: str, folder: Path, **options: Any) -> Rebuilt:
    spec = next(one for one in four_stores() if one.name == name)
    what = preflight(bench.log, "app", spec)
    return rebuild(spark, bench.log, what, Folder(str(folder)), now_ms=bench.clock.wall_ms, **options)


@pytest.mark.long
def test_digest_of_rebuilt_restored_and_live_rows_is_one(spark: Any, bench: Bench, tmp_path: Path) -> None:
    session = bench.active(partitions=(0,))
    operate(session.task(0), random.Random(1), 400)
    live = live_digests(session.task(0))
    session.close()
    for name in KINDS:
        done = rebuilt(spark, bench, name, tmp_path / name, file_bytes=1)
        assert done.manifest.partition(0).digest == live[name].hex()
        assert done.manifest.partition(1).files == ()
        assert done.digest == live[name]
        assert read_manifest(tmp_path / name) == done.manifest
    assert (
        main(["restore", "--from", str(tmp_path / "kv"), "--state-dir", str(tmp_path / "b"), "--log", bench.address])
        == 0
    )
    taken = import_tasks(tmp_path / "taken", [tmp_path / name for name in KINDS], log=bench.log)
    assert {one.store: one.digest for one in taken if one.task.partition == 0} == live
    restored = bench.active("taken")
    assert live_digests(restored.task(0)) == live


@pytest.mark.long
def test_instance_tails_on_from_taken_in_files(spark: Any, bench: Bench, tmp_path: Path) -> None:
    session = bench.active(partitions=(0,))
    operate(session.task(0), random.Random(2), 200)
    for name in KINDS:
        rebuilt(spark, bench, name, tmp_path / name)
    operate(session.task(0), random.Random(3), 200)
    live = live_digests(session.task(0))
    session.close()
    import_tasks(tmp_path / "taken", [tmp_path / name for name in KINDS], log=bench.log)
    tailing = bench.active("taken")
    assert live_digests(tailing.task(0)) == live
    reasons = {reason for _, _, reason in tailing.statistics().counters.restored_records}
    assert reasons == {"resume"}


def test_hash_equals_sparks_own(spark: Any) -> None:
    rng = random.Random(4)
    rows = [
        (rng.randbytes(rng.randrange(40)), rng.randrange(-1, 2**62), rng.randbytes(rng.randrange(90)))
        for _ in range(300)
    ]
    frame = spark.createDataFrame(rows, "key binary, timestamp bigint, value binary")
    found = frame.select(F.xxhash64("key", "timestamp", "value").alias("row"), F.xxhash64("key").alias("key")).collect()
    assert [one.row % 2**64 for one in found] == [row_hash(*row) for row in rows]
    assert [one.key % 2**64 for one in found] == [key_hash(row[0]) for row in rows]


def test_folder_by_address_goes_through_a_file_system(spark: Any, bench: Bench, tmp_path: Path) -> None:
    session = bench.active(partitions=(0,))
    operate(session.task(0), random.Random(5), 50)
    session.close()
    spec = four_stores()[0]
    done = rebuild(
        spark,
        bench.log,
        preflight(bench.log, "app", spec),
        Folder(f"file://{tmp_path}/out"),
        now_ms=bench.clock.wall_ms,
    )
    assert read_manifest(tmp_path / "out") == done.manifest


def test_until_ends_before_the_log_and_converges_at_its_end(spark: Any, bench: Bench, tmp_path: Path) -> None:
    session = bench.active(partitions=(0,))
    task = session.task(0)
    for number in range(10):
        task.store("kv").put(f"k{number}", "v", START_MS)
    task.commit()
    session.close()
    spec = four_stores()[0]
    what = preflight(bench.log, "app", spec, partitions=[0], until={0: 4})
    done = rebuild(spark, bench.log, what, Folder(str(tmp_path / "out")), now_ms=bench.clock.wall_ms)
    part = done.manifest.partition(0)
    assert (part.start, part.end, part.converge_offset, part.entries) == (0, 4, 10, 4)


def test_record_that_no_store_writes_fails_the_job_with_its_offset(spark: Any, bench: Bench, tmp_path: Path) -> None:
    bench.active(partitions=(0,)).close()
    writer = bench.log.producer()
    writer.append({TopicPartition("app-win-changelog", 0): [Outgoing(b"short", b"v", 1)]})
    with pytest.raises(Corruption, match="offset 0 has the key 73686f7274, which no window store writes"):
        rebuilt(spark, bench, "win", tmp_path / "out")
    assert not (tmp_path / "out" / FILE_NAME).exists()


@pytest.mark.long
def test_records_without_a_key_are_left_out_and_counted_by_rebuild_verify_and_tables(
    spark: Any, bench: Bench, tmp_path: Path
) -> None:
    stores = four_stores(changelog={"cleanup.policy": "delete"})
    session = bench.active(partitions=(0,), stores=stores)
    stray = [Outgoing(None, b"v", 10**15)] * 3
    operate(session.task(0), random.Random(1), 100)
    bench.log.producer().append({TopicPartition(f"app-{name}-changelog", 0): stray for name in KINDS})
    operate(session.task(0), random.Random(2), 100)
    live = live_digests(session.task(0))
    session.close()
    for name in KINDS:
        done = rebuilt(spark, bench, name, tmp_path / name)
        assert (done.digest, done.skipped) == (live[name], 3)
        assert read_manifest(tmp_path / name) == done.manifest
        stored = stored_stores(
            [TaskPlace("app", one.task, str(one.path)) for one in find_tasks(tmp_path / "a", "app")], name
        )
        plan = plan_verify(bench.log, "app", name, stored[name])
        (verdict,) = verify_store(spark, bench.log, plan, now_ms=bench.clock.wall_ms()).verdicts
        assert (verdict.verdict, verdict.skipped) == ("equal", 3)
    for kind in ("changelog", "changes"):
        given = {"kind": kind, "log": bench.address, "app": "app", "storeName": "kv", "partitions": "0"}
        source = StandfastSource(given)
        schema: Any = StructType.fromDDL(str(source.schema()))
        reader: Any = source.reader(schema)
        keys = [batch.column("key") for part in reader.partitions() for batch in reader.read(part)]
        assert sum(map(len, keys)) > 50
        assert not any(column.null_count for column in keys)


def spark_workers() -> list[int]:
    """Worker processes of this run's Spark: forks of the Python process that its Java process started."""
    parents, names = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            head, _, rest = path.read_text().rpartition(")")
        except OSError:
            continue
        pid, _, name = head.partition(" (")
        parents[int(pid)], names[int(pid)] = int(rest.split()[1]), name

    def above(pid: int, count: int) -> int:
        return above(parents.get(pid, 0), count - 1) if count else pid

    ours = os.getpid()
    return [pid for pid in parents if above(pid, 3) == ours and names.get(above(pid, 2)) == "java"]


@pytest.mark.long
def test_killed_worker_leaves_no_manifest_and_a_second_run_succeeds(spark: Any, bench: Bench, tmp_path: Path) -> None:
    bench.active(partitions=(0,)).close()
    writer, source = bench.log.producer(), TopicPartition("app-kv-changelog", 0)
    for start in range(0, 100_000, 5_000):
        writer.append({source: [Outgoing(b"k%d" % n, b"v" * 50, START_MS) for n in range(start, start + 5_000)]})
    out, killed = tmp_path / "out", threading.Event()

    def kill() -> None:
        while not list(out.glob("*.sst")):  # a task is writing
            time.sleep(0.002)
        for pid in spark_workers():
            os.kill(pid, signal.SIGKILL)
            killed.set()

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(Unavailable, match="Spark job failed"):
        rebuilt(spark, bench, "kv", out, file_bytes=100_000)
    killer.join()
    assert killed.is_set()
    assert not (out / FILE_NAME).exists()
    left = {one.name for one in orphans(Folder(str(out)))}
    assert left
    done = rebuilt(spark, bench, "kv", out, file_bytes=100_000)
    assert done.manifest.partition(0).entries == 100_000
    assert {one.name for one in orphans(Folder(str(out)))} == left


@pytest.mark.long
def test_killed_driver_leaves_no_manifest_and_a_second_run_succeeds(spark: Any, bench: Bench, tmp_path: Path) -> None:
    bench.active(partitions=(0,)).close()
    writer = bench.log.producer()
    source = TopicPartition("app-kv-changelog", 0)
    for start in range(0, 100_000, 5_000):
        writer.append({source: [Outgoing(b"k%d" % n, b"v" * 50, START_MS) for n in range(start, start + 5_000)]})
    out = tmp_path / "out"
    arguments = ["rebuild", "--log", bench.address, "--app", "app", "--store", "kv:keyvalue:key=string,value=string"]
    killed_driver("rebuild.written", [*arguments, "--out", str(out), "--partition", "0"], tmp_path)
    assert list(out.glob("*.sst"))
    assert not (out / FILE_NAME).exists()
    done = rebuilt(spark, bench, "kv", out)
    manifest = read_manifest(out)
    assert done.records == manifest.partition(0).entries == 100_000
    assert {one.name for one in orphans(Folder(str(out)))} == {
        one.name for one in out.glob("*.sst")
    } - manifest.file_names()


# Refused before Spark is started, with no change made.


def test_bad_input_is_refused_before_spark_starts(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = bench.active(partitions=(0,))
    operate(session.task(0), random.Random(7), 50)
    session.close()
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "precious").write_text("mine")
    common = ["rebuild", "--log", bench.address, "--app", "app"]
    kv = ["--store", "kv:keyvalue"]
    cases: list[tuple[list[str], int, str]] = [
        ([*common, *kv], 2, "name an empty folder with --out"),
        ([*common, "--store", "none:keyvalue", "--out", str(tmp_path / "o")], 2, "has no topic app-none-changelog"),
        ([*common, *kv, "--out", str(taken)], 2, "is not empty (it holds precious)"),
        ([*common, *kv, "--out", str(tmp_path / "a")], 2, "is not empty"),
        ([*common, *kv, "--out", str(tmp_path / "o"), "--until", "0=999999"], 2, "is outside of what can be read"),
        ([*common, *kv, "--out", str(tmp_path / "o"), "--until", "7=1"], 2, "names partition 7"),
        ([*common, *kv, "--out", str(tmp_path / "o"), "--until", "x"], 2, "is not PARTITION=OFFSET"),
        ([*common, *kv, "--out", str(tmp_path / "o"), "--partition", "9"], 2, "has partitions 0 to 1, not 9"),
        ([*common, *kv, "--out", "no-such-scheme://x/y"], 78, "cannot be used"),
        (["gc", str(tmp_path / "nothing")], 2, "is not a folder"),
    ]
    before = sorted(path for path in tmp_path.rglob("*") if path.suffix not in (".lock",))
    for arguments, code, text in cases:
        assert main(arguments) == code, arguments
        assert text in capsys.readouterr().err
    assert sorted(path for path in tmp_path.rglob("*") if path.suffix not in (".lock",)) == before


def test_truncated_log_is_refused_unless_it_is_accepted(bench: Bench) -> None:
    spec = four_stores()[0]
    bench.active(partitions=(0,)).close()
    bench.log.admin.change_topic("app-kv-changelog", {"cleanup.policy": "delete"})
    source = TopicPartition("app-kv-changelog", 0)
    bench.log.producer().append({source: [Outgoing(b"k%d" % n, b"v", 1) for n in range(10)]})
    bench.log.admin.delete_records({source: 5})
    with pytest.raises(StateLost, match="--allow-truncated"):
        preflight(bench.log, "app", spec)
    what = preflight(bench.log, "app", spec, allow_truncated=True)
    assert (what.truncated, what.ranges[0]) == ((0,), (5, 10))


def test_taking_in_refuses_what_it_must_not_touch(spark: Any, bench: Bench, tmp_path: Path) -> None:
    session = bench.active(partitions=(0,))
    operate(session.task(0), random.Random(8), 50)
    rebuilt(spark, bench, "kv", tmp_path / "kv")
    with pytest.raises(InvalidRequest, match="exists already"):
        import_tasks(tmp_path / "a", [tmp_path / "kv"])  # a live task
    session.close()
    newer = json.loads((tmp_path / "kv" / FILE_NAME).read_text())
    (tmp_path / "newer").mkdir()
    (tmp_path / "newer" / FILE_NAME).write_text(json.dumps(newer | {"format": "standfast.manifest/9"}))
    with pytest.raises(InvalidRequest, match="run the newer version"):
        import_tasks(tmp_path / "t1", [tmp_path / "newer"])
    with pytest.raises(InvalidRequest, match=r"no manifest\.json"):
        import_tasks(tmp_path / "t2", [tmp_path])
    file = next((tmp_path / "kv").glob("*.sst"))
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(bytes(raw))
    with pytest.raises(Corruption, match="sha256"):
        import_tasks(tmp_path / "t3", [tmp_path / "kv"])
    bench.log.admin.delete_topic("app-kv-changelog")
    with pytest.raises((StateLost, UnknownStore), match="topic-missing"):
        import_tasks(tmp_path / "t4", [tmp_path / "kv"], log=bench.log)
    assert not any((tmp_path / name).exists() for name in ("t1", "t2", "t3", "t4"))
