"""One Spark session for all tests that need it.

    spark           a session on local[2], started once
    killed_driver   run a command on a Spark of its own that dies at a failpoint

Rules of this file: a real Spark from the development requirements; Java is the machine's or fetched. Only the session's
fixtures import Spark, so that other tests do not pay for it.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from standfast.ops.tools.cache import Say
from standfast.store.errors import Corruption, Unavailable
from support.groups import costly
from support.needs import needed_as

WAIT_S = 240
SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    # Many jobs of a second each: Java's second compiler costs more time than it saves.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


@needed_as("spark_session")
def fetch_connector(config: pytest.Config, say: Say) -> None:
    """Fetch the session's Java and jars; the session itself fails where they cannot be had."""
    from standfast.ops.tools.jars import ensure_jars, load_jar_set
    from standfast.ops.tools.java import ensure_java

    with suppress(Unavailable, Corruption):
        ensure_jars(load_jar_set("spark-kafka"), ensure_java(say), say)


@pytest.fixture
def spark(spark_session: Any) -> Iterator[Any]:
    """The session; its client's leftovers are collected here, and not in a test that watches its sockets."""
    yield spark_session
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(scope="session")
@costly("spark")
def spark_session() -> Iterator[Any]:
    """A session on local[2], with the Kafka connector."""
    from standfast.ops.tools.jars import ensure_jars, load_jar_set
    from standfast.ops.tools.java import ensure_java
    from standfast.restore.spark.session import SparkPlace, close_session, open_session

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of libraries that Spark imports
        java, pinned = ensure_java(print), load_jar_set("spark-kafka")
        folder = ensure_jars(pinned, java, print)
        jars = [str(folder / jar.file_name) for jar in pinned.jars]
        session = open_session("tests", SparkPlace("local[2]", java.home, java.major, jars, settings=SETTINGS))
    yield session
    close_session(session)


def killed_driver(failpoint: str, words: Sequence[str], cwd: Path) -> None:
    """Run `standfast WORDS` until its driver is killed at this failpoint; its Java ends with it."""
    command = [sys.executable, "-P", "-m", "standfast", *words, "--json", "--master", "local[2]"]
    command += ["--conf", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1"]
    env = {**os.environ, "STANDFAST_FAILPOINT": f"{failpoint}=kill:1"}
    log = cwd / "driver.log"
    with log.open("wb") as out:
        driver = subprocess.Popen(command, start_new_session=True, cwd=cwd, env=env, stdout=out, stderr=out)
        try:
            code = driver.wait(WAIT_S)
        finally:
            with suppress(ProcessLookupError):  # Java may have ended already: its input has
                os.killpg(driver.pid, signal.SIGKILL)
    assert code == -signal.SIGKILL, f"ended with {code} before {failpoint}: {log.read_text(errors='replace')[-2000:]}"
