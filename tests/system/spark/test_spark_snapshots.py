"""Snapshots of a storage on a real Spark: read as tables (docs/operate/snapshots.md), verified against the log, and the
base of a pipeline."""

from __future__ import annotations

import json
import random
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

import standfast as sf
from standfast.ops.cli.spark.pipeline import run_pipeline_command
from standfast.ops.cli.spark.verify_spark import run_verify_spark
from standfast.ops.command.command_line import build_parser
from standfast.ops.shared.guard import guard
from standfast.ops.shared.output import Output
from standfast.restore.snapshot.catalogue import listed
from standfast.restore.snapshot.names import file_key
from standfast.restore.snapshot.opening import open_storage
from standfast.restore.spark_table.source import StandfastSource
from support.sessions import KINDS, Bench, operate

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]


def stored(bench: Bench) -> tuple[str, dict[str, set[tuple[Any, ...]]], str]:
    """Two tasks with a snapshot each, and more records after it: the storage, rows of then, the name of task 0's."""
    to = str(bench.root / "snaps")
    session = bench.active(partitions=(0, 1), snapshots=sf.SnapshotPolicy(to=to))
    rows: dict[str, set[tuple[Any, ...]]] = {"kv": set(), "win": set()}
    names = []
    for number in (0, 1):
        task = session.task(number)
        operate(task, random.Random(number), 200)
        names.append(session.snapshot(number))
        rows["kv"] |= {(number, key, value) for key, value in task.store("kv").all()}
        rows["win"] |= {(number, at.key, at.start, value) for at, value in task.store("win").all()}
        operate(task, random.Random(number + 5), 60)
    session.close()
    return to, rows, names[0]


def table(spark: Any, to: str, **options: Any) -> Any:
    try:
        spark.dataSource.register(StandfastSource)
    except PySparkException as error:
        assert "DATA_SOURCE_ALREADY_EXISTS" in str(error)
    return spark.read.format("standfast").options(app="app", decode="true", **options).load(to)


def run(command: Any, spark: Any, words: list[str]) -> int:
    """The command's exit code, on the tests' own session."""

    @contextmanager
    def own(*_: Any) -> Iterator[Any]:
        yield spark

    args: Namespace = build_parser().parse_args(words)
    return guard(lambda: command(args, Output(as_json=True), own), lambda _error: None)


@pytest.mark.long
def test_a_table_has_the_rows_of_the_snapshot_and_not_those_of_later(spark: Any, bench: Bench) -> None:
    to, rows, name = stored(bench)
    latest = table(spark, to, snapshot="latest", storeName="kv")
    assert {tuple(row) for row in latest.select("partition", "key", "value").collect()} == rows["kv"]
    one = table(spark, to, snapshot=name, storeName="win").select("partition", "key", "window_start", "value")
    # Spark's times are of the driver's zone; keys and values identify a row.
    assert {(row[0], row[1], row[3]) for row in one.collect()} == {
        (number, key, value) for number, key, _, value in rows["win"] if number == 0
    }
    kinds = table_metadata(spark, to)
    assert {(row["task"], row["store"]) for row in kinds} == {
        (f"0_{number}", kind) for number in (0, 1) for kind in KINDS
    }


def table_metadata(spark: Any, to: str) -> list[Any]:
    frame = spark.read.format("standfast").options(app="app", kind="metadata", snapshot="latest").load(to)
    found: list[Any] = frame.collect()
    return found


def test_a_snapshot_equals_its_changelogs_folded_to_its_position(
    spark: Any, bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    to, _, name = stored(bench)
    for address, tasks in ((f"{to}/{name}", 1), (f"{to}/latest", 2)):
        words = ["verify", "--spark", "--snapshot", address, "--app", "app", "--log", bench.address]
        assert run(run_verify_spark, spark, words) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["verdict"], found["state_dir"]) == ("equal", address)
        assert len(found["stores"]) == tasks * len(KINDS)
        kept = {one.snapshot.task: one.snapshot for one in listed(open_storage(to, "app")).whole}
        for one in found["stores"]:
            assert one["position"] == kept[one["task"]].cut.positions[one["store"]].offset <= one["end"]


@pytest.mark.long
def test_a_damaged_file_of_a_snapshot_is_an_error_and_no_verdict(
    spark: Any, bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    to, _, name = stored(bench)
    for kept in listed(open_storage(to, "app")).whole:
        for file in kept.snapshot.files:
            if file.name.endswith(".sst"):
                path = Path(to) / "app" / file_key(file.sha256)
                path.write_bytes(b"x" * file.bytes)
    words = ["verify", "--spark", "--snapshot", f"{to}/{name}", "--app", "app", "--log", bench.address]
    assert run(run_verify_spark, spark, words) == 65
    assert "damaged" in capsys.readouterr().err


@pytest.mark.long
def test_a_snapshot_is_the_base_of_a_pipeline(spark: Any, bench: Bench, tmp_path: Path) -> None:
    to, _, _ = stored(bench)
    out = tmp_path / "out"
    words = ["pipeline", "--log", bench.address, "--snapshot", f"{to}/latest", "--app", "app", "--out", str(out)]
    assert run(run_pipeline_command, spark, words) == 0
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["looked_at"], summary["verdict"]) == ("snapshot", "equal")
    assert {one["store"]: one["verdict"] for one in summary["stores"]} == dict.fromkeys(KINDS, "equal")
