"""Real Kafka brokers for tests: one shared by a session, and one that a test may kill.

    kafka_address       "127.0.0.1:port" of the shared one: take topic and group names of your own
    kafka_log           a log on it, for one test
    restartable_broker  a Broker of this test alone, started: kill() it, start() it again, same port and topics
    light_broker(...)   a Broker for a fixture of one's own

Rules of this file: Java and Kafka are fetched before the first test on a broker, once a machine, so that no test's time
limit runs meanwhile (`support.needs`). If they cannot be fetched, tests are skipped with the reason; with CI set they
fail. Twenty starts of a broker are much of these tests' cost: each maps an archive of classes in and begins with a copy
of a formatted data folder, both made by the first on a machine.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest

from standfast.ops.tools import broker
from standfast.ops.tools.broker import JAR_SET, Broker, running_broker
from standfast.ops.tools.cache import Say, cache_dir, fetching, put_in_place
from standfast.ops.tools.jars import ensure_jars, load_jar_set
from standfast.ops.tools.java import Java, ensure_java
from standfast.replication.kafka.log import KafkaLog
from standfast.replication.log import Outgoing
from standfast.store.errors import Corruption, Unavailable
from support import opens_child
from support.groups import costly, group_of
from support.missing import missing
from support.needs import needed_as

ARCHIVE = "classes.jsa"
FORMATTED = "formatted"  # in the archive's folder
FORMATTED_FILES = ("meta.properties", "bootstrap.checkpoint")  # all that formatting writes; neither names a port
# KAFKA-20734: while a partition has no leader, this version's coordinator takes it for deleted and ends a transaction
# without it. Its records and offsets stay in an open transaction then, for ever, whatever a client does.
LOST_END = "likely deleted already and hence can be skipped"
_formatted: list[Path] = []  # the folder with the files of a formatted data folder, once this process knows it
SHARED = pytest.StashKey[Broker]()  # the shared broker, in a process that has started it
MISSING = pytest.StashKey[str]()  # why there is no Kafka; "" if there is


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Add the fetch to a test that requests the broker only when it runs (by one of its parameters)."""
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("kafka") is not None:
            item.fixturenames[:] = dict.fromkeys([*item.fixturenames, "kafka_files"])


@needed_as("kafka_files")
def fetch_kafka(config: pytest.Config, say: Say) -> None:
    """Fetch Java and Kafka."""
    config.stash[MISSING] = ""
    try:
        java = ensure_java(say)
        map_classes_in(java, ensure_jars(load_jar_set(JAR_SET), java, say), say)
    except (Unavailable, Corruption) as error:
        config.stash[MISSING] = str(error)


def lost_ends(broker: Broker, transactional_id: str) -> list[str]:
    """Lines of the broker's log by which it ended transactions of an id without some of their partitions."""
    lines = broker.log_path.read_text(errors="replace").splitlines()
    return [line for line in lines if LOST_END in line and f" {transactional_id}," in line]


def map_classes_in(java: Java, jars: Path, say: Say) -> None:
    """From here on light brokers of this process start with half the processor time, if this Java can map classes."""
    cache, plain = cache_dir(), broker.JVM_LIGHT
    about = f"{FORMATTED} {jars} {java.path.resolve()} {java.path.stat().st_mtime_ns}"
    target = cache / "java-archives" / f"{jars.name}-{hashlib.sha256(about.encode()).hexdigest()[:16]}"
    if not target.is_dir():
        with fetching(cache, say) as folder:
            if not target.is_dir():  # another process was quicker
                say(f"an archive of the broker's classes, in {target}, once")
                (made := folder / "made").mkdir()
                broker.JVM_LIGHT = (*plain, f"-XX:ArchiveClassesAtExit={made / ARCHIVE}", "-Xlog:disable")
                example = Broker(folder / "broker", light=True)
                try:
                    example.start()
                    (made / FORMATTED).mkdir()
                    for name in FORMATTED_FILES:
                        shutil.copy(example.directory / "data" / name, made / FORMATTED)
                    example.stop()  # which writes the archive
                    put_in_place(made, target)
                except Unavailable as error:  # the archive saves time only; the next process tries again
                    say(f"this process has none: {error}")
                finally:
                    example.stop()
                    broker.JVM_LIGHT = plain
    if (target / ARCHIVE).exists():
        broker.JVM_LIGHT = (*plain, f"-XX:SharedArchiveFile={target / ARCHIVE}")
    if (target / FORMATTED).exists():
        _formatted[:] = [target / FORMATTED]


def light_broker(directory: Path, settings: Mapping[str, str] | None = None) -> Broker:
    """A broker in an absent or empty directory, to be started by the caller; `settings` are Kafka's own."""
    format_data(directory)
    return Broker(directory, light=True, settings=settings)


def format_data(directory: Path) -> None:
    """Give a broker's absent or empty directory a formatted data folder, if this process knows one."""
    for folder in _formatted:  # else each first start would run a second Java that formats
        shutil.copytree(folder, directory / "data")


@pytest.fixture(scope="session")
def kafka_files(request: pytest.FixtureRequest) -> None:
    """Java and Kafka are there."""
    if why := request.config.stash[MISSING]:
        missing(f"no Kafka to test with: {why}")


@pytest.hookimpl(wrapper=True, tryfirst=True)  # outside the test's time limit
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """Let the shared broker run only while a group of tests on it runs: an idle one takes processor time to the end."""
    shared = item.config.stash.get(SHARED, None)
    on_broker = "kafka_files" in getattr(item, "fixturenames", ())
    if shared is not None and on_broker and running_broker(shared.directory) is None:
        shared.start()
    found = yield
    shared = item.config.stash.get(SHARED, None)
    # Not by the fixtures of the next test: those of a group that has tests on it and others are mixed.
    if shared is not None and nextitem is not None and group_of(nextitem) != group_of(item):
        shared.stop()
    return found


@pytest.fixture(scope="session")
@costly("kafka")
def kafka_broker(
    kafka_files: None, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Broker]:
    """The broker that all tests of the session share; it ends with pytest, however that ends."""
    with light_broker(tmp_path_factory.mktemp("kafka")) as broker:
        if hasattr(request.config, "workerinput"):  # else tests are not in groups, and it would start for each file
            request.config.stash[SHARED] = broker
        yield broker


@pytest.fixture(scope="session")
def kafka_address(kafka_broker: Broker) -> str:
    """The address of the shared broker."""
    return kafka_broker.address


@pytest.fixture
def kafka_log(kafka_address: str) -> Iterator[KafkaLog]:
    """A log on the shared broker, closed with the test."""
    with closing(KafkaLog(f"kafka://{kafka_address}")) as opened:
        yield opened


@pytest.fixture
def restartable_broker(kafka_files: None, tmp_path: Path) -> Iterator[Broker]:
    """A started broker of this test alone."""
    with light_broker(tmp_path / "kafka") as broker:
        yield broker


def left_by_opens(kind: str, settings: Mapping[str, str], topic: str) -> tuple[int, int, int]:
    """Bytes of memory, open files and threads that a hundred opened and closed clients left: see opens_child.py."""
    command = [sys.executable, opens_child.__file__, kind, json.dumps(settings), topic]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    grown, files, threads = json.loads(done.stdout)
    return grown, files, threads


def every_shape() -> list[Outgoing]:
    """Records that a client must neither change nor lose, and that must not end it."""
    headers = (("a", b"1"), ("a", None), ("\u00e4", b""), ("", b"x" * 1_000), ("zero", b"\0\0"))
    return [
        Outgoing(b"k", b"v", 1),
        Outgoing(b"", b"", 2),
        Outgoing(None, b"no key", 3),
        Outgoing(b"deleted", None, 4),
        Outgoing(None, None, 5),
        Outgoing(b"h", b"v", 6, headers),
        Outgoing(b"large", os.urandom(1 << 20), 7),
        Outgoing(b"\0\xff" * 100, b"\0", 8),
    ]
