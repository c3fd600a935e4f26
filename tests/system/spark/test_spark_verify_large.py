"""`verify` on a real Spark with much data: one row of a million, and an executor's Python that is killed on the way.

Rules of this file: one store of a million rows, written to the log in large batches and restored once.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from system.spark.test_spark_rebuild import spark_workers
from system.spark.test_spark_verify import row, verify

from standfast.ops.cli.spark.verify_spark import run_verify_spark
from standfast.ops.command.command_line import build_parser
from standfast.ops.shared.guard import guard
from standfast.ops.shared.output import Output
from standfast.replication.log import Outgoing
from standfast.replication.offsets import TopicPartition
from standfast.restore.spark.verify import Verified
from standfast.store.clock import ManualClock
from standfast.store.rocks.engine import RocksEngine
from standfast.store.rocks.opening import RocksShared
from support.sessions import START_MS, Bench

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

ROWS = 1_000_000
BATCH = 50_000


@pytest.fixture(scope="module")
def million(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A closed task of a million rows."""
    bench = Bench(tmp_path_factory.mktemp("million"), ManualClock(START_MS))
    bench.active(partitions=(0,)).close()
    writer, source = bench.log.producer(), TopicPartition("app-kv-changelog", 0)
    for start in range(0, ROWS, BATCH):
        writer.append({source: [Outgoing(b"k%07d" % n, b"v%d" % n, START_MS) for n in range(start, start + BATCH)]})
    session = bench.session()
    session.assign(active=(0,))
    session.wait_ready(300)
    session.close()
    yield bench
    bench.close()


@pytest.mark.long
def test_one_row_of_a_million_is_found(spark: Any, million: Bench) -> None:
    def change(key: bytes, value: bytes) -> None:
        engine = RocksEngine(million.root / "a/app/0_0", shared=RocksShared(8 << 20))
        engine.write({"kv": {key: row(value)}})
        engine.close()

    change(b"k0654321", b"other")
    done: Verified = verify(spark, million, "kv")
    verdict = next(one for one in done.verdicts if one.task.partition == 0)
    assert [(one.kind, one.key) for _, _, one in done.found] == [("different", b"k0654321")]
    assert (verdict.verdict, verdict.matched, verdict.records) == ("different", ROWS - 1, ROWS)
    change(b"k0654321", b"v654321")


@pytest.mark.long
def test_killed_worker_leaves_no_report_and_a_second_run_is_whole(
    spark: Any, million: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["verify", "--spark", "--state-dir", str(million.root / "a"), "--log", million.address, "--store", "kv"]
    args = build_parser().parse_args([*words, "--report", str(tmp_path / "report")])

    @contextmanager
    def own(*_: Any) -> Iterator[Any]:
        yield spark

    def run() -> int:
        return guard(lambda: run_verify_spark(args, Output(), own), lambda _error: None)

    killed, ended = threading.Event(), threading.Event()

    def kill() -> None:
        while not killed.is_set() and not ended.is_set():
            # A worker that has a file of the store open is in the middle of its partition.
            for pid in spark_workers():
                if any("/app/0_0/" in name for name in opened(pid)):
                    os.kill(pid, signal.SIGKILL)
                    killed.set()
            time.sleep(0.002)

    killer = threading.Thread(target=kill)
    killer.start()
    code = run()
    ended.set()
    killer.join()
    assert killed.is_set()
    assert code == 69
    assert "Spark job failed" in capsys.readouterr().err
    assert not (tmp_path / "report").exists()
    assert run() == 0
    assert sorted(path.name for path in (tmp_path / "report").iterdir()) == [
        "differences.parquet",
        "report.html",
        "summary.json",
    ]


def opened(pid: int) -> Iterator[str]:
    """Files that a process has open."""
    try:
        for path in Path(f"/proc/{pid}/fd").iterdir():
            yield str(path.readlink())
    except OSError:
        return
