"""Real Kafka brokers for tests: one shared by a session, and one that a test may kill.

    kafka_address       "127.0.0.1:port" of the shared one: take topic and group names of your own
    kafka_log           a log on it, for one test
    restartable_broker  a Broker of this test alone, started: kill() it, start() it again, same port and topics

Rules of this file: Java and Kafka are fetched before the first test, once a machine, so that no test's time limit runs
meanwhile. If they cannot be fetched, tests are skipped with the reason; with CI set they fail. Twenty starts of a
broker are much of these tests' cost: each maps an archive of classes in, made by the first on a machine.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from standfast.ops.tools import broker
from standfast.ops.tools.broker import JAR_SET, Broker
from standfast.ops.tools.cache import Say, cache_dir, fetching, put_in_place
from standfast.ops.tools.jars import ensure_jars, load_jar_set
from standfast.ops.tools.java import Java, ensure_java
from standfast.replication.kafka.log import KafkaLog
from standfast.replication.log import Outgoing
from standfast.store.errors import Corruption, Unavailable
from support import opens_child
from support.groups import costly
from support.missing import missing

ARCHIVE = "classes.jsa"
MISSING = pytest.StashKey[str]()  # why there is no Kafka; "" if there is


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Add the fetch to a test that requests the broker only when it runs (by one of its parameters)."""
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("kafka") is not None:
            item.fixturenames[:] = dict.fromkeys([*item.fixturenames, "kafka_files"])


def pytest_collection_finish(session: pytest.Session) -> None:
    """Fetch the programs of the chosen tests."""
    items = [item for item in session.items if isinstance(item, pytest.Function)]
    if session.config.option.collectonly or not any("kafka_files" in item.fixturenames for item in items):
        return
    capture: Any = session.config.pluginmanager.getplugin("capturemanager")

    def say(text: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\n==> setup: {text}", flush=True)

    session.config.stash[MISSING] = ""
    try:
        java = ensure_java(say)
        map_classes_in(java, ensure_jars(load_jar_set(JAR_SET), java, say), say)
    except (Unavailable, Corruption) as error:
        session.config.stash[MISSING] = str(error)


def map_classes_in(java: Java, jars: Path, say: Say) -> None:
    """From here on light brokers of this process start with half the processor time, if this Java can map classes."""
    cache, plain = cache_dir(), broker.JVM_LIGHT
    about = f"{jars} {java.path.resolve()} {java.path.stat().st_mtime_ns}"
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
                except Unavailable as error:  # the archive saves time only
                    say(f"there will be none: {error}")
                finally:
                    example.stop()
                    broker.JVM_LIGHT = plain
                put_in_place(made, target)
    if (target / ARCHIVE).exists():
        broker.JVM_LIGHT = (*plain, f"-XX:SharedArchiveFile={target / ARCHIVE}")


@pytest.fixture(scope="session")
def kafka_files(request: pytest.FixtureRequest) -> None:
    """Java and Kafka are there."""
    if why := request.config.stash[MISSING]:
        missing(f"no Kafka to test with: {why}")


@pytest.fixture(scope="session")
@costly("kafka")
def kafka_broker(kafka_files: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """The broker that all tests of the session share; it ends with pytest, however that ends."""
    with Broker(tmp_path_factory.mktemp("kafka"), light=True) as broker:
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
    with Broker(tmp_path / "kafka", light=True) as broker:
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
