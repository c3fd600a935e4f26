"""`spark.read.format("standfast")` on a real Spark: a table has the rows of the store, or of the log.

Rules of this file: real sessions on the embedded log write stores and changelogs; rows are compared with those of the
live store, or with a model in a few lines.
"""

from __future__ import annotations

import math
import random
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructType

import standfast as sf
from standfast.replication.log import Outgoing
from standfast.replication.offsets import TopicPartition
from standfast.restore.digest import Digest, digest_rows
from standfast.restore.spark.folder import Folder
from standfast.restore.spark.rebuild import rebuild
from standfast.restore.spark_table.options import parse
from standfast.restore.spark_table.source import StandfastSource
from standfast.restore.verify.preflight import preflight
from standfast.store.clock import ManualClock
from standfast.store.errors import BadConfig, Corruption, StandfastError
from support.pages import blocks
from support.sessions import DAY_MS, HOUR_MS, Bench, four_stores, operate

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

KINDS = ("kv", "win", "ses", "ver")
KEYS = {
    "kv": ("key", "timestamp", "value"),
    "win": ("key", "window_start", "window_end", "value"),
    "ses": ("key", "session_start", "session_end", "value"),
    "ver": ("key", "valid_from", "value"),
}


class Filled:
    """Four stores of two partitions, and their rows from before they were closed."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.path = str(bench.root / "a")
        session = bench.active(partitions=(0, 1))
        self.rows: dict[str, set[tuple[Any, ...]]] = {name: set() for name in KINDS}
        self.digests: dict[str, Digest] = dict.fromkeys(KINDS, Digest())
        for number in (0, 1):
            task = session.task(number)
            operate(task, random.Random(number), 300)
            for name in KINDS:
                self.digests[name] += digest_rows(task.stores.committed_view(name).logical_rows())
            kv, win, ses, ver = (task.store(name) for name in KINDS)
            self.rows["kv"] |= {(number, key, kv.get_with_timestamp(key).timestamp, value) for key, value in kv.all()}
            self.rows["win"] |= {(number, at.key, at.start, at.end, value) for at, value in win.all()}
            self.rows["ses"] |= {(number, at.key, at.start, at.end, value) for at, value in ses.all()}
            versions = task.stores.committed_view("ver").logical_rows()
            self.rows["ver"] |= {(number, key.decode(), at, value.decode()) for key, at, value in versions}
            self.as_of_ms = ver.rows.observed_ms - HOUR_MS
            self.as_of = {
                (key, found.value) for key in map("k{}".format, range(30)) if (found := ver.get(key, self.as_of_ms))
            }
        session.close()

    def spec(self, name: str) -> Any:
        return next(one for one in four_stores() if one.name == name)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    bench = Bench(tmp_path_factory.mktemp("filled"), ManualClock(1_356_998_400_000))
    yield Filled(bench)
    bench.close()


def register(spark: Any) -> None:
    """In a checkout Spark finds the module only from its folder."""
    try:
        spark.dataSource.register(StandfastSource)
    except PySparkException as error:
        assert "DATA_SOURCE_ALREADY_EXISTS" in str(error)


def table(spark: Any, path: str | None = None, schema: str | None = None, **options: Any) -> Any:
    register(spark)
    reader = spark.read.format("standfast").options(**options)
    if schema is not None:
        reader = reader.schema(schema)
    return reader.load(path) if path is not None else reader.load()


def direct(spark: Any, **options: Any) -> list[Row]:
    """The work of Spark's tasks in this process: it spares a test the start of three processes for each table."""
    source = StandfastSource({name: str(value) for name, value in options.items()})
    schema: Any = StructType.fromDDL(source.schema())
    reader = source.reader(schema)
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]  # type: ignore[union-attr]
    return [Row(**row) for batch in batches for row in batch.to_pylist()]  # type: ignore[union-attr]


def tuples(frame: Any, *columns: Any) -> set[tuple[Any, ...]]:
    rows = [tuple(row) for row in frame.select(*columns).collect()]
    assert len(set(rows)) == len(rows)
    return set(rows)


@pytest.mark.parametrize("name", [*KINDS[:2], *(pytest.param(kind, marks=pytest.mark.long) for kind in KINDS[2:])])
def test_table_of_each_kind_holds_the_rows_of_the_store(spark: Any, filled: Filled, name: str) -> None:
    frame = table(spark, filled.path, storeName=name, decode=True)
    assert frame.rdd.getNumPartitions() == 2
    assert tuples(frame, "partition", *KEYS[name]) == filled.rows[name]


@pytest.mark.long
def test_raw_bytes_are_the_default_and_hash_to_the_digest_of_the_store(spark: Any, filled: Filled) -> None:
    frame = table(spark, filled.path, storeName="kv")
    assert dict(frame.dtypes) == {"partition": "int", "key": "binary", "value": "binary", "timestamp": "bigint"}
    low, count = frame.select(
        F.sum(F.xxhash64("key", "timestamp", "value").bitwiseAND(0xFFFF_FFFF)), F.count(F.lit(1))
    ).first()
    assert (low, count) == (filled.digests["kv"].low_sum, filled.digests["kv"].count)


@pytest.mark.long
def test_rebuilt_folder_is_the_same_table(spark: Any, filled: Filled, tmp_path: Path) -> None:
    for name in ("kv", "win"):
        what = preflight(filled.bench.log, "app", filled.spec(name))
        rebuild(spark, filled.bench.log, what, Folder(str(tmp_path / name)), now_ms=filled.bench.clock.wall_ms)
        rows = direct(spark, path=tmp_path / name, decode=True)
        columns = ("partition", *KEYS[name])
        assert {tuple(row[one] for one in columns) for row in rows} == filled.rows[name]
    rows = direct(spark, path=tmp_path / "kv", kind="metadata")
    assert [(row.partition, row.store, row.made) for row in rows] == [(0, "kv", "rebuild"), (1, "kv", "rebuild")]
    assert sum((Digest.from_hex(row.digest) for row in rows), Digest()) == filled.digests["kv"]


@pytest.mark.parametrize(
    "name", [*(pytest.param(kind, marks=pytest.mark.long) for kind in KINDS if kind != "win"), "win"]
)
def test_bounds_give_the_rows_that_a_filter_gives(spark: Any, filled: Filled, name: str) -> None:
    whole = direct(spark, path=filled.path, storeName=name, decode=True)
    time = {"kv": "timestamp", "win": "window_start", "ses": "session_end", "ver": "valid_from"}[name]
    middle = sorted(row[time] for row in whole)[len(whole) // 2]

    def ends(row: Any) -> int:
        return (row.valid_to or 2**63) - 1 if name == "ver" else int(row[time])

    def begins(row: Any) -> int:
        return int(row.session_start if name == "ses" else row[time])

    cases: list[tuple[dict[str, Any], Any]] = [
        ({"keyFrom": "k10", "keyTo": "k2"}, lambda row: "k10" <= row.key <= "k2"),
        ({"keyPrefix": "k2"}, lambda row: row.key.startswith("k2")),
        ({"timeFrom": middle}, lambda row: ends(row) >= middle),
        ({"timeTo": middle, "partitions": "1"}, lambda row: begins(row) <= middle and row.partition == 1),
    ]
    for options, keep in cases:
        found = direct(spark, path=filled.path, storeName=name, decode=True, **options)
        expected = [row for row in whole if keep(row)]
        assert sorted(map(str, found)) == sorted(map(str, expected)), options
        assert 0 < len(expected) < len(whole)
    assert len(direct(spark, path=filled.path, storeName=name, limit=3)) == 6


def test_versions_as_of_a_time_are_what_the_store_gives(spark: Any, filled: Filled) -> None:
    rows = direct(spark, path=filled.path, storeName="ver", decode=True, asOf=filled.as_of_ms, partitions="1")
    assert {(row.key, row.value) for row in rows} == filled.as_of


def test_changelog_holds_every_record_with_its_offset(spark: Any, filled: Filled) -> None:
    log: dict[str, Any] = {"kind": "changelog", "log": filled.bench.address, "app": "app", "storeName": "win"}
    store: dict[str, Any] = {
        "storeKind": "window",
        "windowSizeMs": HOUR_MS,
        "keySerde": "string",
        "valueSerde": "string",
    }
    rows = table(spark, **log, **store).collect()
    last: dict[tuple[Any, ...], Any] = {}
    for row in sorted(rows, key=lambda one: one.offset):
        last[row.partition, row.key, row.window_start, row.window_end] = row.value
    live = {(*at, value) for at, value in last.items() if value is not None}
    assert filled.rows["win"] <= live  # the log holds expired rows, too
    part = direct(spark, **log, startOffsets='{"0": 10}', endOffsets='{"0": 25}', partitions="0")
    assert [row.offset for row in part] == list(range(10, 25))
    assert part[0].asDict().keys() == {"partition", "offset", "timestamp", "key", "value"}


def test_changes_between_offsets_are_what_a_model_says(spark: Any, filled: Filled) -> None:
    log: dict[str, Any] = {
        "log": filled.bench.address,
        "app": "app",
        "storeName": "kv",
        "keySerde": "string",
        "valueSerde": "string",
    }
    records = direct(spark, kind="changelog", partitions="0", **log)
    held: dict[str, Any] = {}
    expected = []
    for row in records:
        before = held.get(row.key)
        held[row.key] = None if row.value is None else (row.timestamp, row.value)
        if row.value is None and before is None:
            continue
        change = "deleted" if row.value is None else "inserted" if before is None else "updated"
        expected.append((row.offset, row.key, change, row.value, *reversed(before or (None, None))))
    wanted = ("offset", "key", "change", "value", "old_value", "old_timestamp")
    for start, end in ((0, len(records)), (100, 180)):
        options: dict[str, Any] = {"startOffsets": start, "endOffsets": end, "partitions": "0", "oldValues": True}
        rows = direct(spark, kind="changes", **log, **options)
        assert [tuple(row[one] for one in wanted) for row in rows] == [row for row in expected if start <= row[0] < end]
    plain = table(spark, kind="changes", **log, startOffsets=100, endOffsets=180, partitions="0")
    assert tuples(plain, "offset", "change") == {(row[0], row[2]) for row in expected if 100 <= row[0] < 180}
    assert {row[2] for row in expected} == {"inserted", "updated", "deleted"}


def test_change_whose_past_was_removed_from_the_log_is_called_written(spark: Any, bench: Bench) -> None:
    bench.active(partitions=(0,)).close()
    at = TopicPartition("app-kv-changelog", 0)
    writer = bench.log.producer()
    writer.append({at: [Outgoing(b"%d" % (number % 5), b"v%d" % number, number) for number in range(20)]})
    writer.append({at: [Outgoing(b"new", b"v", 20), Outgoing(b"0", None, 21)]})
    bench.log.admin.delete_records({at: 10})
    options: dict[str, Any] = {
        "kind": "changes",
        "log": bench.address,
        "topic": at.topic,
        "keySerde": "string",
        "oldValues": True,
    }
    rows = direct(spark, **options, startOffsets='{"0": 18}')
    assert {(row.offset, row.key, row.change, row.old_timestamp) for row in rows} == {
        (18, "3", "updated", 13),
        (19, "4", "updated", 14),
        (20, "new", "written", None),
        (21, "0", "deleted", 15),
    }


def test_metadata_says_position_definition_and_sizes_of_every_task(spark: Any, filled: Filled) -> None:
    rows = table(spark, filled.path, kind="metadata").collect()
    assert {(row.app, row.task, row.store) for row in rows} == {("app", f"0_{p}", n) for p in (0, 1) for n in KINDS}
    bounds = filled.bench.log.reader().bounds([TopicPartition("app-kv-changelog", number) for number in (0, 1)])
    assert {row.partition: row.position for row in rows if row.store == "kv"} == {
        at.partition: span.end for at, span in bounds.items()
    }
    assert all(row.rows > 0 and row.bytes > 0 and row.made is None for row in rows)
    # The options that a changelog's reader needs are in a store's metadata.
    win = next(row for row in rows if row.store == "win")
    log: dict[str, Any] = {
        "kind": "changelog",
        "log": filled.bench.address,
        "app": "app",
        "storeName": "win",
        "decode": True,
    }
    assert "window_end" in direct(spark, **log, definition=win.definition)[0]


def test_values_take_the_shape_of_the_schema(spark: Any, bench: Bench) -> None:
    stores = [
        sf.KeyValueStore("js", sf.serde.int64, sf.serde.json),
        sf.WindowStore("mp", sf.serde.json, sf.serde.msgpack, window_size_ms=HOUR_MS, retention_ms=DAY_MS),
        sf.KeyValueStore("fl", sf.serde.float64, sf.serde.string, timestamped=False),
    ]
    session = bench.active(stores=stores)
    task = session.task(0)
    task.store("js").put(-7, {"airport": "JFK", "delays": [1, 2], "more": {"x": 1.5}}, 5)
    task.store("js").put(8, {"airport": None}, 6)
    task.store("mp").put(["a", 1], {"flights": 3, "delay": 40}, 0, 1)
    task.store("fl").put(2.5, "x")
    task.store("fl").put(math.nan, "no number")
    task.commit()
    session.close()
    path = str(bench.root / "a")
    shape = "airport string, delays array<int>, more map<string, double>"
    frame = table(spark, path, storeName="js", decode=True, valueSchema=shape)
    assert tuples(frame, "key", "value.airport", F.element_at("value.delays", 2), "value.more.x") == {
        (-7, "JFK", 2, 1.5),
        (8, None, None, None),
    }
    (text,) = direct(spark, path=path, storeName="js", decode=True, keyFrom="8", keyTo="8")
    assert (text.key, text.value, text.timestamp) == (8, '{"airport":null}', 6)
    # A schema of Spark's own describes the same, and selects the wanted columns.
    own = table(spark, path, "value struct<delay: bigint, flights: int>, window_start bigint", storeName="mp")
    assert [row.asDict(recursive=True) for row in own.collect()] == [
        {"value": {"delay": 40, "flights": 3}, "window_start": 0}
    ]
    assert direct(spark, path=path, storeName="mp", decode=True)[0].key == '["a",1]'
    (row,) = direct(spark, path=path, storeName="fl", decode=True, keyFrom="-0.0")
    assert row.asDict() == {"partition": 0, "key": 2.5, "value": "x"}
    # A read of all rows has those whose key is NaN, which no range takes.
    assert [row.value for row in direct(spark, path=path, storeName="fl", decode=True)] == ["x", "no number"]
    with pytest.raises(Corruption, match=r"the key of key .* is no json that reads as list"):
        direct(spark, path=path, storeName="mp", decode=True, keySchema="array<string>")  # 1 is no string
    with pytest.raises(PySparkException, match=r"the value of key 0{15}8 is no int64"):
        table(spark, path, storeName="js", valueSerde="int64").collect()


@pytest.mark.long
def test_page_on_tables_counts_late_flights_straight_from_a_store(
    spark: Any, bench: Bench, repo_root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The program of the page on tables, on a store like the demo's: its hours by airport, in msgpack."""
    program = bench.root / "late.py"
    page = "docs/guide/spark-tables.md"
    text = next(one.text for one in blocks(repo_root) if one.page == page and "late.groupBy" in one.text)
    # Tasks run in Spark's start directory, which is not this test's.
    program.write_text(text.replace("board/state-b", str(bench.root / "board/state-b")), encoding="utf-8")
    serdes = (sf.serde.string, sf.serde.msgpack)
    delays = sf.WindowStore("delays", *serdes, window_size_ms=HOUR_MS, retention_ms=40 * DAY_MS)
    session = bench.active("board/state-b", stores=[delays])
    hours = [("JFK", 10, 200, 90), ("JFK", 5, 10, 9), ("JFK", 4, 60, 30), ("LGA", 7, 700, 400), ("EWR", 9, 0, 1)]
    for number, (airport, flights, delay, worst) in enumerate(hours):
        row = {"flights": flights, "delay": delay, "worst": worst}
        session.task(0).store("delays").put(airport, row, number * HOUR_MS, 1)
    session.task(0).commit()
    session.close()
    register(spark)
    runpy.run_path(str(program))
    shown = [line.strip("|").split("|") for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert [[cell.strip() for cell in line] for line in shown] == [
        ["airport", "flights", "worst"],
        ["JFK", "14", "90"],
        ["LGA", "7", "400"],
    ]


@pytest.mark.long
def test_sql_reads_it_as_a_view(spark: Any, filled: Filled) -> None:
    register(spark)
    options = f"path '{filled.path}', storeName 'kv', decode 'true'"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW kv USING standfast OPTIONS ({options})")
    (row,) = spark.sql("SELECT count(*) AS n, max(timestamp) AS t FROM kv WHERE key LIKE 'k%'").collect()
    assert (row.n, row.t) == (len(filled.rows["kv"]), max(one[2] for one in filled.rows["kv"]))


def test_bad_options_are_refused_by_name(spark: Any, filled: Filled, bench: Bench, tmp_path: Path) -> None:
    log: dict[str, Any] = {"kind": "changelog", "log": filled.bench.address}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"path": filled.path, "storname": "kv"}, "did you mean 'storeName'"),
        ({"path": filled.path}, "has several stores, name one of storeName: kv, ses, ver, win"),
        ({"path": filled.path, "storeName": "none"}, "has no store 'none': it has kv, ses, ver, win"),
        ({"path": str(tmp_path / "absent"), "storeName": "kv"}, "does not exist"),
        ({"path": filled.path, "app": "other", "storeName": "kv"}, "application 'other' has no state in"),
        ({"path": filled.path, "storeName": "kv", "partitions": "5"}, "there are partitions 0, 1, not 5"),
        ({"path": filled.path, "storeName": "kv", "asOf": "5"}, "asOf goes with a versioned store"),
        ({"path": filled.path, "storeName": "kv", "valueSchema": "a int"}, "goes with json or msgpack"),
        ({"path": filled.path, "kind": "stores"}, "there are store, changelog, changes, metadata to read"),
        ({}, "which folder"),
        ({"path": filled.path, "log": "x"}, "'log' is not an option of kind 'store', it is one of changelog, changes"),
        ({"kind": "changelog"}, 'option("log", ...) is needed'),
        (log, "which changelog? name it with topic"),
        ({**log, "topic": "absent"}, "has no topic absent"),
        ({**log, "topic": "app-kv-changelog", "endOffsets": "99999"}, "the log holds 0 to"),
        ({**log, "topic": "app-kv-changelog", "startOffsets": '{"7": 0}'}, "has partitions 0 to 1, not 7"),
        ({**log, "topic": "app-kv-changelog", "startOffsets": "soon"}, "earliest or latest"),
        ({**log, "topic": "app-kv-changelog", "storeKind": "window"}, "the topic is not a window store's"),
    ]
    for options, said in cases:
        with pytest.raises(StandfastError) as caught:
            direct(spark, **options)
        assert said in str(caught.value), options
    with pytest.raises(PySparkException, match=r"there is no column 'nothing', only partition, key, value"):
        table(spark, filled.path, "nothing int", storeName="kv").collect()
    with pytest.raises(PySparkException, match="did you mean 'storeName'"):
        table(spark, filled.path, storname="kv")
    with pytest.raises(StandfastError, match="cannot be read as bigint"):
        StandfastSource({"path": filled.path, "storeName": "kv"}).reader(StructType().add("value", LongType()))
    live = bench.active(partitions=(0,))
    with pytest.raises(StandfastError, match="is owned by pid"):
        direct(spark, path=bench.root / "a", storeName="kv")
    live.close()


def test_every_problem_of_options_is_said_at_once() -> None:
    with pytest.raises(BadConfig) as caught:
        parse(None, {"kind": "store", "limit": "-1", "decode": "yes", "keySerde": "avro", "nonsense": "1"})
    assert len(caught.value.problems) == 4
