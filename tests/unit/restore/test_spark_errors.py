"""Error messages where Spark fails or cannot be used: without Spark.

Rules of this file: errors as Java words them; no Spark is started.
"""

from __future__ import annotations

import pytest

from standfast.restore.spark.frames import job_error
from standfast.restore.spark.session import library_problems
from standfast.store.errors import Unavailable

STACK = """org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times
\tat org.apache.spark.scheduler.DAGScheduler.failJobAndIndependentStages(DAGScheduler.scala:2856)
Caused by: {cause}
\tat java.base/java.lang.Thread.run(Thread.java:840)
"""


@pytest.mark.parametrize(
    "cause",
    [
        "java.net.SocketException: Connection reset by peer",
        "java.net.SocketException: Broken pipe",
        "java.io.EOFException",
        "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)",
    ],
)
def test_worker_that_was_killed_is_named_with_what_to_do(cause: str) -> None:
    told = job_error(RuntimeError(STACK.format(cause=cause)))
    assert isinstance(told, Unavailable)
    assert "a Python worker of Spark was killed" in str(told) and "memoryOverhead" in str(told)
    assert "reset" not in str(told)


def test_java_process_that_ended_is_named() -> None:
    kind = type("Py4JNetworkError", (Exception,), {})
    told = job_error(kind("Error while sending or receiving: Connection reset by peer"))
    assert isinstance(told, Unavailable) and "Spark's Java process has ended" in str(told)


def test_error_that_a_task_raised_wins_over_how_its_worker_ended() -> None:
    text = "standfast.store.errors.Corruption: a row is damaged\n" + STACK.format(cause="java.io.EOFException")
    assert str(job_error(RuntimeError(text))) == "a row is damaged"


def test_release_of_spark_that_nothing_was_tested_with_is_refused() -> None:
    others = {"pandas": "2.3.3", "pyarrow": "26.0.1"}
    assert library_problems({"pyspark": "4.0.2"} | others) == []
    for release in ("4.1.0", "5.0.0"):
        assert library_problems({"pyspark": release} | others) == [
            f"pyspark {release} is not supported: pip install 'pyspark>=4.0,<4.1'"
        ]
