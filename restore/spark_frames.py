"""DataFrames that rebuild and verify share, and running a job with errors that say what to do.

Rules of this file: only functions of DataFrames and Arrow. An error that a task raised on purpose leaves as the error
that it is, not as a Java stack.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from standfast.restore.preflight import Preflight
from standfast.restore.spark_batches import StoreShape
from standfast.restore.spark_merge import SAMPLE_BITS
from standfast.restore.spark_rows import HASH
from standfast.restore.spark_session import batch_rows, executor_error, first_line
from standfast.restore.spark_source import LogRanges, SourceName, empty_frame, native_frame
from standfast.store import errors
from standfast.store.errors import BadConfig, StandfastError, StateLost, Unavailable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Mapper: TypeAlias = Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]
OnTasks: TypeAlias = Callable[[int, int], None]

PROGRESS_S = 0.5
_OURS = re.compile(r"standfast\.store\.errors\.(\w+): (.*)")
# What Java says where a worker of Python went without a word: which one depends on what the socket was doing.
_WORKER_GONE = ("Python worker exited unexpectedly", "Connection reset", "Broken pipe", "java.io.EOFException")
_JAVA_LOST = ("Could not read records in offset", "Some data may have been lost", "OffsetOutOfRange")


@dataclass(frozen=True, slots=True)
class Reading:
    """What a job reads and how: the ranges, the store, the source with its options; `sample` of 65,536 parts."""

    what: Preflight
    shape: StoreShape
    source: SourceName = "native"
    options: Mapping[str, str] = field(default_factory=dict)
    sample: int = SAMPLE_BITS + 1


def run_partitions(
    spark: SparkSession, reading: Reading, mapper: Mapper, result: str, on_tasks: OnTasks | None = None
) -> list[Any]:
    """Rows that `mapper` gives of every partition, each sorted by (key, offset) and begun by its facts.

    `result` is their schema; its first column is the partition. Every partition of the ranges is among them.
    """
    with translated():
        return _run_partitions(spark, reading, mapper, result, on_tasks)


def _run_partitions(
    spark: SparkSession, reading: Reading, mapper: Mapper, result: str, on_tasks: OnTasks | None
) -> list[Any]:
    what, shape = reading.what, reading.shape
    batch = batch_rows(what.average_bytes)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(batch))
    ranges = LogRanges(what.address, what.topic, what.ranges)
    if reading.source == "native":
        return run_job(_finished(native_frame(spark, ranges, shape, rows=batch), reading, mapper, result), on_tasks)
    from standfast.restore.spark_connector import connector_frame

    rows: list[Any] = []
    if any(span.begin < span.end for span in what.ranges.values()):
        rows = run_job(
            _finished(connector_frame(spark, ranges, shape, reading.options), reading, mapper, result), on_tasks
        )
    # The connector has no task where no record is, and a store may hold rows there all the same.
    silent = sorted(set(what.ranges) - {row[0] for row in rows})
    if silent:
        rows += run_job(_finished(empty_frame(spark, silent, shape), reading, mapper, result))
    return rows


def _finished(frame: DataFrame, reading: Reading, mapper: Mapper, result: str) -> DataFrame:
    if reading.sample <= SAMPLE_BITS:
        frame = sampled(frame, reading.sample)
    definition = reading.shape.definition
    versioned = definition["kind"] == "versioned"
    # The key first: see `spark_rows.partitions_of`.
    order = [F.col("key"), F.col("offset") if versioned else F.col("offset").desc()]
    return hashed(frame.sortWithinPartitions(*order), bool(definition["timestamped"])).mapInArrow(mapper, result)


def hashed(frame: DataFrame, timestamped: bool) -> DataFrame:
    """With the hash of each record as a row: Spark's xxhash64, which `standfast.restore.digest` equals."""
    stamp = F.col("timestamp") if timestamped else F.lit(-1).cast("bigint")
    return frame.withColumn(HASH, F.xxhash64("key", stamp, "value"))


def sampled(frame: DataFrame, parts: int) -> DataFrame:
    """Only keys of the sample (of 65,536 parts), and the facts."""
    return frame.where(F.col("key").isNull() | (F.xxhash64("key").bitwiseAND(SAMPLE_BITS) < parts))


def run_job(frame: DataFrame, on_tasks: OnTasks | None = None) -> list[Any]:
    """The rows of a small result. `on_tasks(done, total)` is called now and then while it runs, in another thread."""
    ended = threading.Event()
    watch = None
    if on_tasks is not None:
        watch = threading.Thread(target=_watch, args=(frame.sparkSession, on_tasks, ended), daemon=True)
        watch.start()
    try:
        with translated():
            return frame.collect()
    finally:
        ended.set()
        if watch is not None:
            watch.join()


@contextmanager
def translated() -> Iterator[None]:
    """Errors of Spark leave as ours."""
    try:
        yield
    except PySparkException as error:
        raise job_error(error) from error
    except Exception as error:
        # py4j's own, when the Java process is gone or Java failed outside of Python.
        if type(error).__module__.partition(".")[0] != "py4j":
            raise
        raise job_error(error) from error


def _watch(spark: SparkSession, on_tasks: OnTasks, ended: threading.Event) -> None:
    tracker = spark.sparkContext.statusTracker()
    while not ended.wait(PROGRESS_S):
        try:
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        except Exception:  # noqa: BLE001  the Java process may be gone; the job itself says so
            return
        known = [stage for stage in stages if stage is not None]
        if known:
            on_tasks(sum(stage.numCompletedTasks for stage in known), sum(stage.numTasks for stage in known))


def job_error(error: Exception) -> StandfastError:
    """What a job failed with: the error that a task raised, or what Spark says."""
    text = str(error)
    found = _OURS.search(text)
    if found is not None:
        kind = getattr(errors, found[1], None)
        if isinstance(kind, type) and issubclass(kind, StandfastError):
            return StateLost(found[2]) if kind is StateLost else _made(kind, found[2])
    if any(sign in text for sign in _JAVA_LOST):
        return StateLost(f"the log does not hold what was to be read any more: {first_line(error)}", reason="truncated")
    if "DATA_SOURCE_NOT_FOUND" in text or "Failed to find data source" in text:
        return BadConfig(
            [
                "Spark has no connector for Kafka: name its jars (--kafka-jars a.jar,b.jar) or its coordinate "
                "(STANDFAST_SPARK_PACKAGES), or read with --source native, which needs no jar"
            ]
        )
    if "No module named" in text or "PYTHON_VERSION_MISMATCH" in text:
        return executor_error(error)
    if type(error).__name__ == "Py4JNetworkError":
        return Unavailable(
            "the Spark job failed: Spark's Java process has ended (killed, or out of memory): run it again; if it ends "
            "again, give it more memory (--conf spark.driver.memory=4g)"
        )
    if any(sign in text for sign in _WORKER_GONE):
        return Unavailable(
            "the Spark job failed: a Python worker of Spark was killed, or crashed (out of memory?): run it again; if "
            "it fails again, run fewer tasks at once (--master local[1]) or give executors more memory "
            "(--conf spark.executor.memoryOverhead=2g)"
        )
    return Unavailable(f"the Spark job failed: {first_line(error)}; run it again")


def _made(kind: type[StandfastError], message: str) -> StandfastError:
    return kind([message]) if kind is errors.BadConfig else kind(message)
