"""DataFrames that rebuild and verify share, and the run of a job with errors that say what to do.

Rules of this file: only functions of DataFrames and Arrow, since Spark Connect has no RDDs and no Java objects. An
error of ours that a task raised reaches the caller as that error, not as a Java stack.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from standfast.replication.offsets import Bounds
from standfast.restore.spark.batches import TICKET, StoreShape
from standfast.restore.spark.rows import HASH
from standfast.restore.spark.session import batch_rows, executor_error, first_line, is_connect
from standfast.restore.spark.source import LogRanges, SourceName, empty_frame, native_frame
from standfast.restore.verify.preflight import Preflight
from standfast.restore.verify.store_rows import SAMPLE_BITS
from standfast.store import errors
from standfast.store.errors import BadConfig, StandfastError, StateLost, Unavailable
from standfast.store.specs import TRAITS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Mapper: TypeAlias = Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]
OnTasks: TypeAlias = Callable[[int, int], None]

PROGRESS_S = 0.5
_OURS = re.compile(r"standfast\.store\.errors\.(\w+): (.*)")
# Java's messages after a Python worker was killed: which of them depends on the state of the socket.
_WORKER_GONE = ("Python worker exited unexpectedly", "Connection reset", "Broken pipe", "java.io.EOFException")
_JAVA_LOST = ("Could not read records in offset", "Some data may have been lost", "OffsetOutOfRange")


@dataclass(frozen=True, slots=True)
class Reading:
    """The input of a job: the ranges, the store, the source with its options; `sample` of 65,536 parts.

    The shape's `splits` are the partitions that are read in pieces and folded in buckets; the others stay whole.
    """

    what: Preflight
    shape: StoreShape
    source: SourceName = "native"
    options: Mapping[str, str] = field(default_factory=dict)
    sample: int = SAMPLE_BITS + 1


def run_partitions(
    spark: SparkSession, reading: Reading, mapper: Mapper, result: str, on_tasks: OnTasks | None = None
) -> list[Any]:
    """Rows that `mapper` makes of every partition or bucket, each sorted by (key, offset) and begun by its facts.

    `result` is their schema; its first column is the partition. Every partition of the ranges has rows; the buckets of
    a split one give them in no order.
    """
    with translated():
        return _run_partitions(spark, reading, mapper, result, on_tasks)


def _run_partitions(
    spark: SparkSession, reading: Reading, mapper: Mapper, result: str, on_tasks: OnTasks | None
) -> list[Any]:
    what, shape = reading.what, reading.shape
    # Spark counts rows, not bytes: its default of 10,000 would make a batch of 10 GB from values of 1 MB.
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(batch_rows(what.average_bytes)))
    whole = {number: span for number, span in what.ranges.items() if number not in shape.splits}
    split = {number: span for number, span in what.ranges.items() if number in shape.splits}
    frames = []
    # Whole partitions have a frame of their own, which is not shuffled.
    for ranges, own in ((whole, replace(shape, splits={})), (split, shape)):
        frame = _source(spark, reading, ranges, own) if ranges else None
        if frame is not None:
            frames.append(_finished(frame, reading, own, mapper, result))
    rows = run_job(reduce(lambda one, other: one.unionAll(other), frames), on_tasks) if frames else []
    if reading.source == "native":
        return rows
    # The connector has no task for a partition without records, and a store may hold rows of it all the same.
    silent = sorted(set(what.ranges) - {row[0] for row in rows})
    if silent:
        own = replace(shape, splits={})
        rows += run_job(_finished(empty_frame(spark, silent, own), reading, own, mapper, result))
    return rows


def _source(spark: SparkSession, reading: Reading, ranges: Mapping[int, Bounds], shape: StoreShape) -> DataFrame | None:
    """Prepared records of these ranges; None if the connector would have no task."""
    what = reading.what
    asked = LogRanges(what.address, what.topic, ranges)
    if reading.source == "native":
        return native_frame(spark, asked, shape, rows=batch_rows(what.average_bytes))
    from standfast.restore.spark.connector import connector_frame

    if all(span.begin >= span.end for span in ranges.values()):
        return None
    return connector_frame(spark, asked, shape, reading.options)


def _finished(frame: DataFrame, reading: Reading, shape: StoreShape, mapper: Mapper, result: str) -> DataFrame:
    if reading.sample <= SAMPLE_BITS:
        frame = sampled(frame, reading.sample)
    if shape.splits:
        # An explicit number of tasks keeps Spark's adaptive execution from merging them.
        buckets = sum(split.buckets for split in shape.splits.values())
        frame = frame.repartition(buckets, TICKET).drop(TICKET)
    definition = shape.definition
    versioned = TRAITS[definition["kind"]].versions
    # The key first, since Spark compares by the first 8 bytes as long as these differ: with the partition in front they
    # never did, and a rebuild made 264,000 records/s instead of 366,000. See also `rows.partitions_of`.
    order = [F.col("key"), F.col("offset") if versioned else F.col("offset").desc()]
    return hashed(frame.sortWithinPartitions(*order), bool(definition["timestamped"])).mapInArrow(mapper, result)


@contextmanager
def own_session(spark: SparkSession, group: str) -> Iterator[SparkSession]:
    """A session for one thread, with its own settings, over the same executors; its jobs belong to a group.

    The size of batches is a setting of the session, and stores side by side need different ones. On Spark Connect it is
    the session itself, for one thread at a time, and its jobs carry the group as a tag.
    """
    if is_connect(spark):
        spark.addTag(group)
        try:
            yield spark
        finally:
            spark.removeTag(group)
        return
    session = spark.newSession()
    # A new session starts with the settings of the context, without those of this session.
    for name, value in spark.conf.getAll.items():
        if name.startswith("spark.sql.") and session.conf.isModifiable(name):
            session.conf.set(name, value)
    session.sparkContext.setJobGroup(group, group)
    try:
        yield session
    finally:
        # Properties are the thread's, and a pool uses its threads again: the next jobs must not be in this group.
        for name in ("spark.jobGroup.id", "spark.job.description"):
            session.sparkContext.setLocalProperty(name, None)  # type: ignore[arg-type]  # None takes it away


def cancel_group(spark: SparkSession, group: str) -> None:
    """Cancel the jobs of a group; other jobs of the same Spark go on."""
    if is_connect(spark):
        spark.interruptTag(group)
        return
    spark.sparkContext.cancelJobGroup(group)


def attempt_of() -> int:
    """Attempt number of the calling task, unique among all tasks of Spark; 0 outside of a task."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return context.taskAttemptId() if context is not None else 0


def hashed(frame: DataFrame, timestamped: bool) -> DataFrame:
    """The frame with the hash of each record's row: Spark's xxhash64, which equals `standfast.restore.digest`."""
    stamp = F.col("timestamp") if timestamped else F.lit(-1).cast("bigint")
    return frame.withColumn(HASH, F.xxhash64("key", stamp, "value"))


def sampled(frame: DataFrame, parts: int) -> DataFrame:
    """Only keys of the sample (of 65,536 parts), and the facts."""
    return frame.where(F.col("key").isNull() | (F.xxhash64("key").bitwiseAND(SAMPLE_BITS) < parts))


def run_job(frame: DataFrame, on_tasks: OnTasks | None = None) -> list[Any]:
    """The rows of a small result. Another thread calls `on_tasks(done, total)` from time to time while it runs."""
    with _watched(frame.sparkSession, on_tasks), translated():
        return frame.collect()


@contextmanager
def _watched(spark: SparkSession, on_tasks: OnTasks | None) -> Iterator[None]:
    """Call `on_tasks` while the block runs."""
    if on_tasks is None:
        yield
        return
    if is_connect(spark):
        told = _Told(on_tasks)
        spark.registerProgressHandler(told)
        try:
            yield
        finally:
            spark.removeProgressHandler(told)
        return
    ended = threading.Event()
    watch = threading.Thread(target=_watch, args=(spark, on_tasks, ended), daemon=True)
    watch.start()
    try:
        yield
    finally:
        ended.set()
        watch.join()


class _Told:
    """Progress handler for Spark Connect."""

    def __init__(self, on_tasks: OnTasks) -> None:
        self._on_tasks = on_tasks

    def __call__(self, stages: Iterable[Any] | None, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        known = list(stages or ())
        if known:
            self._on_tasks(sum(one.num_completed_tasks for one in known), sum(one.num_tasks for one in known))


@contextmanager
def translated() -> Iterator[None]:
    """Turn errors of Spark into ours."""
    try:
        yield
    except PySparkException as error:
        raise job_error(error) from error
    except Exception as error:
        # Errors of py4j itself: the Java process is gone, or Java failed outside of Python.
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
    """The cause of a failed job: our error that a task raised, or else an error with Spark's message."""
    text = str(error)
    found = _OURS.search(text)
    if found is not None:
        kind = getattr(errors, found[1], None)
        if isinstance(kind, type) and issubclass(kind, StandfastError):
            return StateLost(found[2]) if kind is StateLost else _made(kind, found[2])
    if any(sign in text for sign in _JAVA_LOST):
        return StateLost(f"the log no longer holds the records to read: {first_line(error)}", reason="truncated")
    if "DATA_SOURCE_NOT_FOUND" in text or "Failed to find data source" in text:
        return BadConfig(
            [
                "Spark has no connector for Kafka: name its jars (--kafka-jars a.jar,b.jar) or its coordinate "
                "(STANDFAST_SPARK_PACKAGES), or read with --source native, which needs no jar"
            ]
        )
    if "No module named" in text or "PYTHON_VERSION_MISMATCH" in text:
        return executor_error(error)
    if type(error).__name__ == "RetriesExceeded" or "StatusCode.UNAVAILABLE" in text:
        return Unavailable(
            "the Spark job failed: the server of Spark Connect no longer answers: start it, and run this again"
        )
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
