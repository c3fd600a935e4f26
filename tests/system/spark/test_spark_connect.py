"""Every command that runs on Spark, and the data source, through a server of Spark Connect.

Rules of this file: one real server for all tests, and a process of its own for each client: PySpark cannot have both
kinds of session in one process.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from standfast.restore.files.manifest_files import read_manifest
from standfast.restore.spark.session import remote_address
from standfast.store.errors import BadConfig
from support.connect import connect_server
from support.sessions import START_MS, Bench, four_stores

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

ROWS = 40
SCRIPT = """
import json, sys
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark_standfast import DefaultSource
spark = SparkSession.builder.getOrCreate()
spark.dataSource.register(DefaultSource)  # an installed wheel is found without it; a checkout is not
state, log, out = sys.argv[1:]
found = {}
rows = spark.read.format("standfast").option("storeName", "kv").option("decode", "true").load(state)
found["rows"] = rows.count()
metadata = spark.read.format("standfast").option("kind", "metadata").load(state)
found["kinds"] = sorted({row.kind for row in metadata.collect()})
found["records"] = (spark.read.format("standfast").option("kind", "changelog").option("log", log)
    .option("topic", "app-kv-changelog").load().count())
keys = spark.range(0, 30, 1, 2).select(
    F.concat(F.lit("w"), F.lpad(F.col("id").cast("string"), 3, "0")).alias("key"), F.lit("v").alias("value"),
    F.lit(7).cast("bigint").alias("timestamp"))
write = keys.write.format("standfast").mode("append")
for name, value in json.loads(sys.stdin.read()).items():
    write = write.option(name, value)
write.save(out)
found["written"] = spark.read.format("standfast").option("decode", "true").load(out).count()
found["type"] = type(spark).__module__
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with connect_server(tmp_path_factory.mktemp("connect")) as address:
        yield address


@pytest.fixture
def state(bench: Bench) -> Path:
    """Two tasks of two stores, closed."""
    session = bench.active(stores=[four_stores()[0], four_stores()[3]], partitions=(0, 1))
    for partition in range(2):
        task = session.task(partition)
        for number in range(ROWS):
            task.store("kv").put(f"k{number:03}", f"v{number}", START_MS)
            task.store("ver").put(f"k{number % 5}", f"v{number}", START_MS + number)
        task.commit()
    session.close()
    return bench.root / "a"


def run(server: str, *words: str, **given: Any) -> subprocess.CompletedProcess[str]:
    """A process of ours with SPARK_REMOTE, and without a Java."""
    environment = {**os.environ, "SPARK_REMOTE": server, "JAVA_HOME": "/nowhere"}
    return subprocess.run(
        [sys.executable, *words], env=environment, capture_output=True, text=True, check=False, timeout=600, **given
    )


def standfast(server: str, *words: str) -> subprocess.CompletedProcess[str]:
    return run(server, "-m", "standfast", *words)


@pytest.mark.long
def test_verify_rebuild_and_pipeline_run_on_a_server(server: str, bench: Bench, state: Path, tmp_path: Path) -> None:
    log = ["--log", bench.address]
    verified = standfast(server, "verify", "--spark", "--state-dir", str(state), *log, "--json")
    assert verified.returncode == 0, verified.stderr
    assert {one["verdict"] for one in json.loads(verified.stdout)["stores"]} == {"equal"}

    out = tmp_path / "rebuilt"
    rebuilt = standfast(server, "rebuild", "--app", "app", "--store", "kv:keyvalue", *log, "--out", str(out))
    assert rebuilt.returncode == 0, rebuilt.stderr
    assert sum(part.entries for part in read_manifest(out).partitions) == 2 * ROWS

    done = standfast(server, "pipeline", "--state-dir", str(state), *log, "--out", str(tmp_path / "all"), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["verdict"] == "equal"


@pytest.mark.long
def test_planted_difference_is_found_and_a_damaged_store_is_our_error(server: str, bench: Bench, state: Path) -> None:
    from standfast.store.rocks.engine import RocksEngine
    from standfast.store.rocks.opening import RocksShared

    engine = RocksEngine(state / "app/0_0", shared=RocksShared(8 << 20))
    engine.write({"kv": {b"extra": b"\0" * 8 + b"row"}})
    engine.close()
    words = ["verify", "--spark", "--state-dir", str(state), "--log", bench.address, "--store", "kv"]
    found = standfast(server, *words, "--json")
    assert found.returncode == 1, found.stderr
    assert sum(one["extra"] for one in json.loads(found.stdout)["stores"]) == 1
    tables = list((state / "app/0_1").glob("*.sst"))
    assert tables
    for table in tables:
        table.write_bytes(b"\xa5" * table.stat().st_size)
    failed = standfast(server, *words)
    assert failed.returncode not in (0, 1)
    assert "Traceback" not in failed.stderr


@pytest.mark.long
def test_tables_are_read_and_written_on_a_server(server: str, bench: Bench, state: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    out = tmp_path / "written"
    options = {"app": "app", "storeName": "w", "partitionCount": "2", "keySerde": "string", "valueSerde": "string"}
    done = run(server, str(script), str(state), bench.address, str(out), input=json.dumps(options))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert found["rows"] == 2 * ROWS
    assert found["kinds"] == ["keyvalue", "versioned"]
    assert found["records"] == 2 * ROWS
    assert found["written"] == 30
    assert found["type"].startswith("pyspark.sql.connect")


@pytest.mark.long
def test_server_that_does_not_answer_is_told_at_once(bench: Bench, state: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    failed = standfast(
        f"sc://127.0.0.1:{port}/;token=secret", "verify", "--spark", "--state-dir", str(state), "--log", bench.address
    )
    assert failed.returncode == 69
    assert f"no server of Spark Connect answers at sc://127.0.0.1:{port}/" in failed.stderr
    assert "secret" not in failed.stderr


def test_two_places_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert remote_address("sc://host:1") == "sc://host:1"
    assert remote_address("local[2]") is None
    monkeypatch.setenv("SPARK_REMOTE", "sc://other")
    assert remote_address() == "sc://other"
    with pytest.raises(BadConfig, match="leave one of them out"):
        remote_address("local[2]")
