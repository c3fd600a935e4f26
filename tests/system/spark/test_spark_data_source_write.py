"""A DataFrame written as a store on a real Spark: files that an instance imports, and refusals.

Rules of this file: the command imports the written files and a real session opens them; digests of rows decide. A
refused write leaves its target unchanged.
"""

from __future__ import annotations

import random
import runpy
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType
from system.spark.test_spark_data_source import direct as rows_of
from system.spark.test_spark_data_source import register, table
from system.spark.test_spark_rebuild import live_digests

import standfast as sf
from standfast.ops.command.command_line import main
from standfast.restore.digest import Digest, digest_rows
from standfast.restore.files.manifest_files import read_manifest
from standfast.restore.spark.folder import Folder
from standfast.restore.spark.rebuild import orphans
from standfast.restore.spark_table.encode import Encoded
from standfast.restore.spark_table.runs import VersionsBuilder, builder_of, merged
from standfast.restore.spark_table.source import StandfastSource
from standfast.restore.verify.import_tasks import import_tasks
from standfast.store.errors import InvalidRequest, StandfastError
from standfast.stream.topology.sinks import partition_of
from support.pages import blocks
from support.sessions import DAY_MS, HOUR_MS, Bench, four_stores, operate

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

KINDS = ("kv", "win", "ses", "ver")
TOTALS: dict[str, Any] = {
    "app": "app",
    "storeName": "totals",
    "keySerde": "string",
    "valueSerde": "int64",
    "partitionCount": 4,
}


def write(spark: Any, frame: Any, path: Path, **options: Any) -> None:
    register(spark)
    frame.write.format("standfast").mode("append").options(**options).save(str(path))


@pytest.mark.long
def test_rows_of_every_kind_go_to_a_table_and_back_into_an_instance(spark: Any, bench: Bench, tmp_path: Path) -> None:
    session = bench.active(partitions=(0, 1))
    live: dict[str, Digest] = dict.fromkeys(KINDS, Digest())
    for number in (0, 1):
        operate(session.task(number), random.Random(number), 300)
        live = {name: live[name] + digest for name, digest in live_digests(session.task(number)).items()}
    session.close()
    state = str(bench.root / "a")
    definitions = {row.store: row.definition for row in rows_of(spark, path=state, kind="metadata")}
    for name in KINDS:
        frame = table(spark, state, storeName=name, decode=name != "kv")
        # Spread over tasks, so that several of them hold rows of one partition; versions stay with their key.
        frame = frame.repartition(3, "key") if name == "ver" else frame.repartition(3)
        options = {"app": "app", "storeName": name, "partitionCount": 2, "log": bench.address}
        write(spark, frame, tmp_path / name, definition=definitions[name], **options)
        manifest = read_manifest(tmp_path / name)
        assert sum((Digest.from_hex(one.digest or "") for one in manifest.partitions), Digest()) == live[name]
        assert manifest.made.how == "table"
    folders = [argument for name in KINDS for argument in ("--from", str(tmp_path / name))]
    assert main(["restore", *folders, "--state-dir", str(bench.root / "b"), "--log", bench.address]) == 0
    opened = bench.active("b", partitions=(0, 1))
    digests = [live_digests(opened.task(number)) for number in (0, 1)]
    assert {name: digests[0][name] + digests[1][name] for name in KINDS} == live
    assert {reason for _, _, reason in opened.statistics().counters.restored_records} <= {"resume"}


@pytest.mark.long
def test_table_of_totals_becomes_a_store_that_goes_on(spark: Any, bench: Bench, tmp_path: Path) -> None:
    counts = spark.range(1_000).select(F.concat(F.lit("k"), F.col("id")).alias("key"), F.col("id").alias("value"))
    frame = counts.withColumn("timestamp", F.lit(7).cast("bigint"))
    write(spark, frame, tmp_path / "totals", **TOTALS)
    manifest = read_manifest(tmp_path / "totals")
    assert sum(one.entries for one in manifest.partitions) == 1_000
    import_tasks(bench.root / "b", [tmp_path / "totals"])
    spec = sf.KeyValueStore("totals", sf.serde.string, sf.serde.int64)
    session = bench.session("b", stores=[spec], partitions=4)
    session.assign(active=range(4))
    session.wait_ready(30)
    for number in (0, 17, 999):
        key = f"k{number}"
        at = zlib.crc32(key.encode()) % 4
        assert at == partition_of(key.encode(), 4)  # a sink of an application puts it there
        found = session.task(at).store("totals").get_with_timestamp(key)
        assert (found.value, found.timestamp) == (number, 7)
    session.task(0).store("totals").put("more", 1, 8)
    session.task(0).commit()


def test_page_on_tables_writes_a_store(spark: Any, bench: Bench, repo_root: Path, tmp_path: Path) -> None:
    page = repo_root / "docs/guide/spark-tables.md"
    (text,) = [one.text for one in blocks(repo_root) if repo_root / one.page == page and "totals.write" in one.text]
    stores = [sf.KeyValueStore("totals", sf.serde.string, sf.serde.int64)]
    with sf.Session("delays", log=bench.address, state_dir=tmp_path / "a", partitions=4, stores=stores) as session:
        session.assign(active=range(4))  # makes the changelog
        session.wait_ready(30)
    register(spark)
    totals = spark.sql("SELECT 'JFK' AS key, 3L AS value, 5L AS timestamp")
    text = text.replace("kafka://host:9092", bench.address).replace("/data/totals", str(tmp_path / "totals"))
    program = tmp_path / "write.py"
    program.write_text(text, encoding="utf-8")
    runpy.run_path(str(program), {"totals": totals})
    assert sum(one.entries for one in read_manifest(tmp_path / "totals").partitions) == 1


@pytest.mark.long
def test_structs_become_json_and_read_back(spark: Any, tmp_path: Path) -> None:
    frame = spark.sql("SELECT 'JFK' AS key, struct(3 AS flights, array(1.5D) AS delays) AS value, 5L AS timestamp")
    options = TOTALS | {"valueSerde": "json", "partitionCount": 1}
    write(spark, frame, tmp_path / "out", **options)
    (back,) = rows_of(spark, path=tmp_path / "out", decode=True)
    assert back.value == '{"flights":3,"delays":[1.5]}'
    direct(spark, tmp_path / "text", "key string, value string, timestamp bigint", [("JFK", back.value, 5)], **options)
    digests = [read_manifest(tmp_path / name).partition(0).digest for name in ("out", "text")]
    assert digests[0] == digests[1]


@pytest.mark.long
def test_windows_past_retention_are_left_out_as_a_restore_leaves_them_out(spark: Any, tmp_path: Path) -> None:
    frame = spark.range(0, 100, 1, 4).select(
        F.lit("k").alias("key"),
        (F.col("id") * HOUR_MS).alias("window_start"),
        F.col("id").alias("value"),
        F.lit(0).alias("partition"),
        F.lit(1).cast("bigint").alias("timestamp"),
    )
    options = TOTALS | {"storeKind": "window", "windowSizeMs": HOUR_MS, "retentionMs": DAY_MS, "partitionCount": 1}
    write(spark, frame, tmp_path / "out", **options)
    part = read_manifest(tmp_path / "out").partition(0)
    assert (part.records, part.entries + part.expired, part.observed_ms) == (100, 100, 99 * HOUR_MS)
    assert part.expired > 50
    assert {one.name for one in (tmp_path / "out").glob("*.sst")} == {file.name for file in part.files}
    rows = rows_of(spark, path=tmp_path / "out", decode=True)
    assert sorted(row.value for row in rows) == list(range(76, 100))
    (taken,) = import_tasks(tmp_path / "state", [tmp_path / "out"])
    assert taken.digest.hex() == part.digest


PLAIN = "key string, value bigint, timestamp bigint"
WINDOW = {"storeKind": "window", "windowSizeMs": HOUR_MS, "retentionMs": DAY_MS}
VERSIONED = {"storeKind": "versioned", "historyRetentionMs": DAY_MS}


def direct(spark: Any, path: Path, schema: str, rows: list[tuple[Any, ...]], **options: Any) -> None:
    """The work of Spark with a table of one task, in this process."""
    given = {name: str(value) for name, value in options.items()}
    columns: Any = StructType.fromDDL(schema)
    writer = StandfastSource({"path": str(path), **given}).writer(columns, overwrite=False)
    cells = dict(zip(columns.fieldNames(), zip(*rows, strict=True), strict=True))
    writer.commit([writer.write(iter([pa.RecordBatch.from_pydict(cells, schema=to_arrow_schema(columns))]))])


def test_what_cannot_be_a_store_is_refused_and_leaves_nothing(spark: Any, bench: Bench, tmp_path: Path) -> None:
    bench.active(partitions=(0,)).close()
    good = [("a", 1, 1)]
    spans, windows = "key string, value bigint, valid_from bigint, valid_to bigint", f"{PLAIN}, window_start bigint"
    cases: list[tuple[str, list[tuple[Any, ...]], dict[str, Any], str]] = [
        (PLAIN, [("a", 1, 1), ("b", 2, 1), ("a", 3, 1)], {}, "two rows have the key 'a'"),
        (PLAIN, [("a", None, 1)], {}, "a row has no value"),
        (PLAIN, [("a", 1, -5)], {}, "a row has the time -5"),
        (PLAIN, good, {"valueSerde": "string"}, "its value is bigint, and the store's is string: cast it to string"),
        (f"{PLAIN}, more int", [("a", 1, 1, 1)], {}, "no place for the column 'more'"),
        ("key string, value bigint", [("a", 1)], {}, "lacks the column 'timestamp'"),
        ("key string, value bigint, timestamp string", [("a", 1, "x")], {}, "timestamp is string, not bigint"),
        (f"{PLAIN}, partition int", [("a", 1, 1, 4)], {}, "a row has partition 4, and partitionCount 4 allows 0 to 3"),
        (PLAIN, good, WINDOW, "lacks the column 'window_start'"),
        (windows, [("a", 1, 1, -1)], WINDOW, "window start -1"),
        (windows, [("a", 1, 1, 0)] * 2, WINDOW, "two rows have the key 'a', window start 0"),
        (PLAIN, good, {"storeKind": "window"}, "a window store needs windowSizeMs"),
        (PLAIN, good, {"retentionMs": 5}, "a keyvalue store has no retentionMs"),
        (PLAIN, good, {"partitionCount": 0}, "partitionCount is needed"),
        (PLAIN, good, {"app": "no/name"}, "no/name"),
        (PLAIN, good, {"valueSerd": "json"}, "did you mean 'valueSerde'"),
        (PLAIN, good, {"kind": "store"}, "writing takes no kind"),
        (PLAIN, good, {"log": bench.address}, "has no topic app-totals-changelog"),
        (PLAIN, good, {"log": bench.address, "storeName": "kv"}, "has 2 partitions, partitionCount is 4"),
        ("key string, value binary, timestamp bigint", [("a", b"x", 1)], {}, "the value of key 'a' is no int64"),
        ("key string, value binary, timestamp bigint", [("a", b"x" * 2_000_000, 1)], {"valueSerde": "bytes"}, "limit"),
        (spans, [("a", 1, 5, 9), ("a", 2, 7, None)], VERSIONED, "overlaps the next (7)"),
        (spans, [("a", 1, 5, 5)], VERSIONED, "which is no time"),
        (spans, [("a", 1, 5, 9), ("a", 2, 5, None)], VERSIONED, "two rows have the key 'a', valid from 5"),
    ]
    for schema, rows, options, said in cases:
        with pytest.raises(StandfastError) as caught:
            direct(spark, tmp_path / "out", schema, rows, **(TOTALS | options))
        assert said in str(caught.value), said
        assert not (tmp_path / "out").exists(), said


@pytest.mark.long
def test_spark_says_what_was_refused_and_removes_what_tasks_wrote(spark: Any, tmp_path: Path) -> None:
    register(spark)
    same = spark.range(0, 4, 1, 4).selectExpr("'same' key", "id value", "1L timestamp")
    with pytest.raises(PySparkException, match="two rows have the key 'same'"):
        write(spark, same, tmp_path / "out", **TOTALS)  # each of four tasks wrote one
    assert not (tmp_path / "out").exists()
    good = spark.sql("SELECT 'a' key, 1L value, 1L timestamp")
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "precious").write_text("mine")
    with pytest.raises(PySparkException, match=r"is not empty \(it holds precious\)"):
        write(spark, good, taken, **TOTALS)
    with pytest.raises(PySparkException, match="overwrites no folder"):
        good.write.format("standfast").mode("overwrite").options(**TOTALS).save(str(tmp_path / "out"))
    write(spark, good, tmp_path / "out", **TOTALS)
    before = {one: one.stat().st_mtime_ns for one in (tmp_path / "out").iterdir()}
    with pytest.raises(PySparkException, match="holds a manifest already"):
        write(spark, good, tmp_path / "out", **TOTALS)
    assert {one: one.stat().st_mtime_ns for one in (tmp_path / "out").iterdir()} == before
    assert [one.name for one in taken.iterdir()] == ["precious"]


def test_what_a_killed_write_left_is_an_orphan_and_in_nobodys_way(spark: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    columns: Any = StructType.fromDDL(PLAIN)
    options = {name: str(value) for name, value in TOTALS.items()} | {"path": str(out)}
    killed = StandfastSource(options).writer(columns, overwrite=False)
    killed.write(iter([pa.RecordBatch.from_pydict({"key": ["a"], "value": [1], "timestamp": [1]})]))
    (left,) = orphans(Folder(str(out)))  # the driver did not get to write a manifest
    direct(spark, out, PLAIN, [("b", 2, 2)], **TOTALS)
    assert sum(one.entries for one in read_manifest(out).partitions) == 1
    assert orphans(Folder(str(out))) == [left]


def test_runs_within_a_small_budget_are_one_store(tmp_path: Path) -> None:
    spec = sf.KeyValueStore("kv", sf.serde.bytes, sf.serde.bytes)
    rng = random.Random(5)
    rows = [Encoded(0, b"%08d" % number, number, rng.randbytes(90)) for number in range(12_000)]
    rng.shuffle(rows)
    builder = builder_of(spec, tmp_path, 0, 1 << 20)
    for at in range(0, len(rows), 500):
        builder.add(rows[at : at + 500])
    part = builder.finish()
    assert len(part.files) > 2
    assert part.digest == digest_rows((row.row_key, row.timestamp, row.value) for row in rows)
    builder = builder_of(spec, tmp_path / "again", 0, 1 << 20)
    (tmp_path / "again").mkdir()
    for at in range(0, len(rows), 500):
        builder.add(rows[at : at + 500])
    builder.add(rows[:1])  # its first run is written and forgotten
    with pytest.raises(InvalidRequest, match=f"two rows have the key '{rows[0].row_key.decode()}'"):
        builder.finish()


VERSIONS = st.dictionaries(
    st.sampled_from([b"a", b"b", b"bb"]),
    st.dictionaries(st.integers(0, 3 * DAY_MS), st.integers(1, DAY_MS) | st.none(), min_size=1, max_size=6),
    max_size=3,
)


@given(VERSIONS)
@settings(max_examples=15)
def test_versions_written_are_versions_read(tmp_path_factory: pytest.TempPathFactory, given_: dict[bytes, Any]) -> None:
    """Histories with gaps and open ends come back the same, but for versions past the history."""
    folder = tmp_path_factory.mktemp("versions")
    spec = sf.VersionedStore("ver", sf.serde.bytes, sf.serde.bytes, history_retention_ms=DAY_MS)
    rows = []
    for key, starts in given_.items():
        times = sorted(starts)
        for at, following in zip(times, [*times[1:], None], strict=True):
            length = starts[at]
            ends = None if length is None else at + length
            if following is not None and (ends is None or ends > following):
                ends = following
            rows.append(Encoded(0, key, at, b"v%d" % at, ends))
    random.Random(1).shuffle(rows)
    builder = VersionsBuilder(spec, folder, 0, 1 << 20)
    builder.add(rows)
    part = builder.finish()
    kept_after = part.times.observed_ms - DAY_MS
    visible = [row for row in rows if row.ends is None or row.ends > kept_after]
    assert part.digest == digest_rows((row.row_key, row.timestamp, row.value) for row in visible)
    assert not part.files or merged(spec, folder, [part]).digest == part.digest


def test_definitions_of_all_kinds_are_those_of_the_stores(spark: Any, tmp_path: Path) -> None:
    """Options describe the same definition as an application declares, so that it opens the files."""
    described: dict[str, tuple[dict[str, Any], str, tuple[int, ...]]] = {
        "kv": ({}, "timestamp bigint", (1,)),
        "win": (WINDOW, "window_start bigint, timestamp bigint", (0, 1)),
        "ses": ({"storeKind": "session", "retentionMs": DAY_MS}, "session_start bigint, session_end bigint", (0, 5)),
        "ver": (VERSIONED, "valid_from bigint", (1,)),
    }
    for spec in four_stores():
        given_, columns, times = described[spec.name]
        options = TOTALS | given_ | {"storeName": spec.name, "valueSerde": "string", "partitionCount": 1}
        schema = f"key string, value string, {columns}"
        direct(spark, tmp_path / spec.name, schema, [("k", "v", *times)], **options)
        assert read_manifest(tmp_path / spec.name).definition == spec.definition()
