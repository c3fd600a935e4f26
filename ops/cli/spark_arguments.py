"""Flags, Java, jars and progress of the commands that run on Spark.

    --master M            local[2], spark://host:7077, yarn, k8s://...   (default: local[*], or spark-submit's master),
                          sc://host:15002, or SPARK_REMOTE: a server of Spark Connect
    --source S            native: our own readers, no jars; connector: Spark's Kafka connector
    --kafka-jars A,B      jars of the connector; else STANDFAST_SPARK_PACKAGES (Maven coordinates), else the pinned jars
                          for the Spark that we test with, else the connector of the installed Spark

Rules of this file: flags, and finding Java and jars; it never imports Spark itself.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from standfast.store.errors import InvalidRequest
from standfast.store.names import few

if TYPE_CHECKING:
    from standfast.ops.shared.output import Output
    from standfast.restore.spark.session import SparkPlace

PACKAGES = "STANDFAST_SPARK_PACKAGES"
FILE_MB_DEFAULT = 64


def add_spark(parser: argparse.ArgumentParser) -> None:
    """Flags of every command that runs on Spark."""
    where = parser.add_argument_group("Spark")
    where.add_argument("--master", metavar="M", help="Spark's master (default: local[*], or the one of spark-submit)")
    # native is the default because it is the faster one (620,000 to 790,000 rows/s warm) and needs no download.
    where.add_argument(
        "--source",
        choices=("native", "connector"),
        default="native",
        help="how Spark reads the log: native needs no jars; connector is Spark's own for Kafka",
    )
    where.add_argument("--kafka-jars", metavar="JARS", help="jar files of the connector, separated by commas")
    where.add_argument(
        "--conf",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of Spark; repeatable",
    )


def add_rebuilding(parser: argparse.ArgumentParser) -> None:
    """Flags of every command that makes files from a changelog."""
    parser.add_argument(
        "--allow-truncated", action="store_true", help="also where the log has lost records at its head"
    )
    parser.add_argument("--file-mb", type=int, default=FILE_MB_DEFAULT, metavar="MB", help="size of a file (64)")
    parser.add_argument("--plan", action="store_true", help="show the plan of the run, and stop")


def add_splitting(parser: argparse.ArgumentParser) -> None:
    """The flag of every command whose tasks are partitions, or parts of them."""
    # A split shuffles, which writes and reads everything once more: partitions of one size fill the cores without it.
    parser.add_argument(
        "--split-mb",
        type=int,
        metavar="MB",
        help="split partitions with more keys and values than this over several tasks (default: 1024, or one core's "
        "share of all if that is more)",
    )


def add_at_once(parser: argparse.ArgumentParser) -> None:
    """The flag of every command that works on several stores."""
    # Spark's order is first in, first out: the tasks of the next store fill the cores that the first one leaves free.
    parser.add_argument(
        "--stores-at-once",
        type=int,
        metavar="N",
        help="stores side by side (default: as many as have two tasks for each core)",
    )


def split_bytes(args: argparse.Namespace) -> int | None:
    """Size in bytes above which partitions are split; None: the job decides. Raises InvalidRequest."""
    megabytes: int | None = args.split_mb
    if megabytes is not None and megabytes < 1:
        raise InvalidRequest(f"--split-mb is {megabytes}: give 1 or more, or leave it out")
    return None if megabytes is None else megabytes << 20


def stores_at_once(args: argparse.Namespace) -> int | None:
    """Number of stores side by side; None: as many as fill the cores. Raises InvalidRequest."""
    count: int | None = args.stores_at_once
    if count is not None and count < 1:
        raise InvalidRequest(f"--stores-at-once is {count}: give 1 or more, or leave it out")
    return count


def file_bytes(args: argparse.Namespace) -> int:
    """Size of a file in bytes. Raises InvalidRequest."""
    megabytes: int = args.file_mb
    if megabytes < 1:
        raise InvalidRequest(f"--file-mb is {megabytes}: give 1 or more")
    return megabytes << 20


def place_of(args: argparse.Namespace, out: Output) -> SparkPlace:
    """The place to run Spark: master, a Java (found or fetched), jars. Raises InvalidRequest, Unavailable."""
    from standfast.ops.tools.spark_java import spark_java
    from standfast.restore.spark.session import SparkPlace, remote_address, submitted

    remote = remote_address(args.master) is not None
    # spark-submit and the server of Spark Connect have started their own Java.
    java = None if submitted() or remote else spark_java(out.note)
    settings = dict(_setting(text) for text in args.conf)
    jars: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    if remote and args.kafka_jars:
        raise InvalidRequest("--kafka-jars does not go with Spark Connect: start the server with the connector")
    if args.source == "connector" and not remote:
        from standfast.ops.tools.jars import ensure_jars, load_jar_set
        from standfast.restore.spark.connector import EXCLUDES, default_package

        pinned = load_jar_set("spark-kafka")
        if args.kafka_jars:
            jars = tuple(filter(None, args.kafka_jars.split(",")))
            _check_jars(jars)
        # The connector must be of Spark's own version; the pinned jars are fetched by digest, without resolving.
        elif PACKAGES not in os.environ and pinned.version == version("pyspark"):
            folder = ensure_jars(pinned, java or spark_java(out.note), out.note)
            jars = tuple(str(folder / jar.file_name) for jar in pinned.jars)
        else:
            packages = tuple(filter(None, os.environ.get(PACKAGES, default_package()).split(",")))
            excludes = EXCLUDES  # the connector would bring 50 MB of Hadoop that pyspark has already
    elif args.kafka_jars and args.source != "connector":
        raise InvalidRequest("--kafka-jars goes with --source connector: the native source needs no jars")
    home, major = (None, 0) if java is None else (java.home, java.major)
    return SparkPlace(args.master, home, major, jars, packages, excludes, settings)


def connector_options(address: str) -> dict[str, str]:
    """Settings of the connector for a log's address. Raises InvalidRequest for a log that is not Kafka."""
    from standfast.replication.kafka.address import KafkaAddress
    from standfast.replication.tail.open_log import parse_address
    from standfast.restore.spark.connector import java_settings

    where = parse_address(address)
    if not isinstance(where, KafkaAddress):
        raise InvalidRequest(f"--source connector reads Kafka, and {address} is an embedded log: leave it out")
    return java_settings(where)


@contextmanager
def session_for(args: argparse.Namespace, out: Output, name: str) -> Iterator[Any]:
    """A Spark session; on a cluster, checks that the executors have the libraries."""
    from standfast.restore.spark.session import check_executors, check_libraries, session

    check_libraries()
    place = place_of(args, out)
    with session(name, place) as spark:
        if not place.local:  # a library that executors lack would else be an error deep within a task
            check_executors(spark)
        yield spark


@contextmanager
def task_progress(out: Output, what: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar over Spark's tasks, if stderr is a terminal."""
    state = {"done": 0}
    with out.progress(what, 100) as bar:

        def on_tasks(done: int, total: int) -> None:
            # Spark learns of further tasks as stages begin, so the share may fall; the bar does not.
            percent = 100 * done // max(total, 1)
            bar.advance(max(0, percent - state["done"]))
            state["done"] = max(percent, state["done"])

        yield on_tasks


class PartBar:
    """A progress bar over several named parts."""

    PARTS = 1_000

    def __init__(self, bar: Any) -> None:
        self._bar = bar
        self._shown = 0

    def describe(self, what: str) -> None:
        """Show the name of the current part."""
        self._bar.describe(what, self.PARTS)

    def at(self, part: float) -> None:
        """Set the progress of the whole, 0.0 to 1.0, never less than before."""
        parts = int(self.PARTS * part)
        self._bar.advance(parts - self._shown)
        self._shown = parts


@contextmanager
def part_progress(out: Output, what: str) -> Iterator[PartBar]:
    """A progress bar over several stores, if stderr is a terminal."""
    with out.progress(what, PartBar.PARTS) as bar:
        yield PartBar(bar)


def _check_jars(jars: Sequence[str]) -> None:
    """Refuse absent jars: Spark goes on without them, and fails much later."""
    # Spark itself fetches jars by address.
    absent = [jar for jar in jars if "://" not in jar and not Path(jar).is_file()]
    if absent:
        raise InvalidRequest(f"--kafka-jars: {few(absent)} does not exist: check the path")


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise InvalidRequest(f"--conf {text!r} is not KEY=VALUE")
    return key, value
