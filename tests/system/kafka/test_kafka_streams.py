"""Beside a real Kafka Streams application: each side reads the other's changelogs, and has the same content.

    the application writes, a replica follows ──> a session restores, and writes on ──> the application restores, cold

Rules of this file: one application of each guarantee, two starts of it; `Story` keeps the rows read on the way, and the
tests compare them. A replica is a process of its own, killed once on the way.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import standfast as sf
from standfast.ops.client.client import Client, store_path
from standfast.ops.command.command_line import main
from standfast.ops.observe.offline import open_tasks
from standfast.ops.tools.java import ensure_java
from standfast.replication.kafka.log import KafkaLog
from standfast.replication.log import Headers, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.restore.verify.at_rest import find_tasks
from support.java import WAIT_S, JavaApp, compiled
from support.streams import (
    NOW_MS,
    PARTITIONS,
    STORE_ARGUMENTS,
    VERSIONED_KEYS,
    Change,
    Row,
    answered_rows,
    changes,
    digest,
    java_rows,
    our_rows,
    stores,
    with_retention,
    without_window_times,
    write,
)

# The first test runs the whole story.
pytestmark = [pytest.mark.kafka(2), pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(300)]

KINDS = [spec.name for spec in stores()]
GUARANTEES = {"exactly_once": "exactly_once_v2", "at_least_once": "at_least_once"}
TIMES_MS = tuple(NOW_MS + 1_000 * number for number in range(-2, 70))
KEY = VERSIONED_KEYS[0]


class Peers:
    """One application id on both sides, its input topic, and the replica that follows it."""

    def __init__(self, root: Path, address: str, classes: Path, guarantee: str) -> None:
        self.root = root
        self.servers = address
        self.app = f"peer-{uuid.uuid4().hex[:8]}"
        self.input = f"{self.app}-input"
        self.guarantee = guarantee
        self.log = KafkaLog(f"kafka://{address}")
        self.log.admin.create_topic(self.input, PARTITIONS, TopicPolicy())
        self._classes = classes
        self._producer = self.log.producer()
        self._group = self.log.group(self.app)
        self._reader = self.log.reader()
        self._running: list[JavaApp] = []
        self._replica: subprocess.Popen[str] | None = None

    # -- the application ----------------------------------------------------------------------------------------------

    def start_java(self, directory: str) -> JavaApp:
        arguments = (self.app, self.servers, self.root / directory, self.input, PARTITIONS, GUARANTEES[self.guarantee])
        java = JavaApp(self._classes, *arguments, errors=self.root / "java.err")
        self._running.append(java)
        return java

    def feed(self, some: Iterable[Change]) -> int:
        batches: dict[TopicPartition, list[Any]] = {}
        for one in some:
            batches.setdefault(TopicPartition(self.input, one.partition), []).append(one.outgoing)
        self._producer.append(batches)
        return sum(map(len, batches.values()))

    def wait_processed(self, java: JavaApp, count: int) -> None:
        """Wait until it has processed so many records, and committed all input and results."""
        java.wait_processed(count)
        ends = {at: bounds.end for at, bounds in self.bounds([self.input]).items()}
        until(lambda: {at: one.offset for at, one in self._group.committed(ends).items()} == ends, "it has committed")

    def bounds(self, topics: Iterable[str]) -> dict[TopicPartition, Any]:
        return self._reader.bounds([TopicPartition(topic, part) for topic in topics for part in range(PARTITIONS)])

    @property
    def changelogs(self) -> list[str]:
        return [spec.changelog_of(self.app) for spec in stores()]

    # -- our side -----------------------------------------------------------------------------------------------------

    def session(self, directory: str) -> sf.Session:
        session = sf.Session(
            self.app,
            log=self.log.address,
            state_dir=self.root / directory,
            stores=stores(),
            partitions=PARTITIONS,
            guarantee=self.guarantee,  # type: ignore[arg-type]
            background=False,
        )
        session.assign(active=range(PARTITIONS))
        session.wait_ready(WAIT_S)
        return session

    def start_replica(self) -> None:
        """Start the command, and wait until it has caught up once."""
        command = [sys.executable, "-P", "-m", "standfast.ops.cli", "replica", "--json"]
        command += ["--app", self.app, "--log", self.log.address, "--state-dir", str(self.root / "replica")]
        # At least once a session made the changelogs.
        stores = STORE_ARGUMENTS if self.guarantee == "exactly_once" else map(with_retention, STORE_ARGUMENTS)
        with (self.root / "replica.err").open("ab") as errors:
            self._replica = subprocess.Popen(
                [*command, *(f"--store={text}" for text in stores)],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        assert self._replica.stdout is not None
        ready = self._replica.stdout.readline()
        assert ready, (self.root / "replica.err").read_text(encoding="utf-8")
        assert json.loads(ready)["ready"] is True

    def end_replica(self, number: int) -> int:
        """Send the replica a signal; returns its exit code."""
        replica = self._replica
        assert replica is not None
        replica.send_signal(number)
        code = replica.wait(WAIT_S)
        assert replica.stdout is not None
        replica.stdout.close()
        self._replica = None
        return code

    def replica_records(self) -> int:
        """The records that the running replica has applied."""
        return sum(one["records"] for one in self.ask_replica("/v1/status")["counters"]["standby"])

    def log_as_it_is(self) -> dict[str, Any]:
        """All parts of the log that a replica could have changed."""
        topics = [name for name in self.log._cluster.names() if name.startswith(self.app)]  # members topics too
        return {
            "topics": topics,
            "ends": self.bounds([*self.changelogs, self.input]),
            "consumers": len(self.log.admin.consumers(self.app)),
            "committed": {at: one.offset for at, one in self._group.committed().items()},
        }

    def ask_replica(self, path: str, **parameters: Any) -> dict[str, Any]:
        return Client.of_state_path(self.root / "replica" / self.app).get(path, parameters)

    def replica_lag(self) -> int:
        return sum(store["lag"] for task in self.ask_replica("/v1/status")["tasks"] for store in task["stores"])

    def close(self) -> None:
        for java in self._running:
            java.end()
        if self._replica is not None:
            self.end_replica(signal.SIGKILL)
        self.log.close()


@dataclass(slots=True)
class Story:
    """Rows read by each side, in the order of events."""

    peers: Peers
    ours_first: list[Row] = field(default_factory=list)  # of a session that came before the application
    java_first: list[Row] = field(default_factory=list)
    java: list[Row] = field(default_factory=list)
    java_as_of: list[str | None] = field(default_factory=list)
    headers: set[Headers] = field(default_factory=set)  # in the changelog of kvhd
    lags: list[int] = field(default_factory=list)  # of the replica, as it reported them
    killed_at: int = 0  # sum of the replica's positions when it was killed
    end: int = 0  # sum of the ends
    resumed_records: int = 0  # applied by its next start
    answers: list[Row] = field(default_factory=list)
    replica: list[Row] = field(default_factory=list)
    exit_codes: dict[str, int] = field(default_factory=dict)
    log_before: Any = None  # ends of all changelogs, topics, groups and offsets without the replica, and with it
    log_after: Any = None
    restored: list[Row] = field(default_factory=list)
    restored_as_of: list[str | None] = field(default_factory=list)
    sources: dict[TopicPartition, int] = field(default_factory=dict)
    ours: list[Row] = field(default_factory=list)
    ours_as_of: list[str | None] = field(default_factory=list)
    java_restored: list[Row] = field(default_factory=list)
    java_restored_as_of: list[str | None] = field(default_factory=list)
    java_went_on: list[Row] = field(default_factory=list)
    java_processed: int = 0


def a_session_comes_first(story: Story) -> None:
    """First a session makes the changelogs."""
    with story.peers.session("first") as session:
        for change in changes(-10, 10):
            write(session.task(change.partition).store(change.store), change)
        for partition in range(PARTITIONS):
            session.task(partition).commit()
        story.ours_first = our_rows(lambda name, partition: session.task(partition).store(name))


def the_application_writes(story: Story) -> None:
    """The application writes while a replica follows; the replica is killed on the way, and its next start resumes."""
    peers = story.peers
    java = peers.start_java("java-1")
    story.java_first = java_rows(java.dump(*VERSIONED_KEYS))
    peers.start_replica()
    count = 0
    for number in range(0, 30, 5):
        count += peers.feed(changes(number, 5))
        story.lags.append(peers.replica_lag())
    java.wait_processed(count)
    until(lambda: peers.replica_lag() == 0, "the replica has followed")
    count += peers.feed(changes(30, 10))
    story.exit_codes["killed"] = peers.end_replica(signal.SIGKILL)
    story.killed_at = stored_positions(peers)
    peers.wait_processed(java, count)
    story.java, story.java_as_of = java_rows(java.dump(*VERSIONED_KEYS)), java_as_of(java)
    story.headers = headers_of(peers, "kvhd")
    story.log_before = peers.log_as_it_is()
    peers.start_replica()
    until(lambda: peers.replica_lag() == 0, "the replica has caught up")
    story.end = sum(bounds.end for bounds in peers.bounds(peers.changelogs).values())
    story.resumed_records = peers.replica_records()
    story.answers = replica_answers(peers)
    story.exit_codes["stopped"] = peers.end_replica(signal.SIGTERM)
    story.log_after = peers.log_as_it_is()
    state_dir = str(peers.root / "replica")
    story.exit_codes["verified"] = main(["verify", "--json", "--state-dir", state_dir, "--log", peers.log.address])
    with sf.Replica(peers.app, log=peers.log.address, state_dir=peers.root / "cold", stores=stores()) as replica:
        replica.wait_ready(WAIT_S)
        story.replica = our_rows(lambda name, partition: replica.read(name, partition).store)
    java.stop()


def a_session_restores_and_writes(story: Story) -> None:
    """A session has the application's id and stores, and commits the source offsets for the application's group."""
    peers = story.peers
    with peers.session("ours") as session:

        def store_of(name: str, partition: int) -> Any:
            return session.task(partition).store(name)

        story.restored, story.restored_as_of = our_rows(store_of), our_as_of(store_of("ver", 0))
        for partition in range(PARTITIONS):
            story.sources.update(session.task(partition).source_offsets())
        written = list(changes(40, 20))
        for change in written:
            write(store_of(change.store, change.partition), change)
        for partition in range(PARTITIONS):
            for key, count in Counter(one.key for one in written if one.partition == partition).items():
                counts = store_of("counts", partition)
                counts.put(key, (counts.get(key) or 0) + count, NOW_MS + 60_000)
            at = TopicPartition(peers.input, partition)
            session.task(partition).commit({at: story.sources[at]})
        story.ours, story.ours_as_of = our_rows(store_of), our_as_of(store_of("ver", 0))


def the_application_restores(story: Story) -> None:
    """The application restores into an empty state directory, and goes on."""
    peers = story.peers
    java = peers.start_java("java-2")
    story.java_restored, story.java_restored_as_of = java_rows(java.dump(*VERSIONED_KEYS)), java_as_of(java)
    peers.wait_processed(java, peers.feed(changes(60, 1)))
    story.java_processed = java.processed()
    story.java_went_on = [row for row in java_rows(java.dump()) if row[0] == "counts"]
    java.stop()


def until(reached: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not reached():
        assert time.monotonic() < deadline, f"not within {WAIT_S} s: {what}"
        time.sleep(0.02)


def headers_of(peers: Peers, store: str) -> set[Headers]:
    reader, found = peers.log.reader(), set[Headers]()
    bounds = peers.bounds([f"{peers.app}-{store}-changelog"])
    reader.assign({at: begin for at, (begin, _) in bounds.items()})
    while {at: reader.assignment()[at] for at in bounds} != {at: end for at, (_, end) in bounds.items()}:
        found |= {record.headers for batch in reader.fetch(1_000, 100) for record in batch.records}
    reader.close()
    return found


def java_as_of(java: JavaApp) -> list[str | None]:
    found = {row["asof"]: row["value"] for row in java.as_of(KEY, *TIMES_MS)}
    return [found.get(time_ms) for time_ms in TIMES_MS]


def our_as_of(store: Any) -> list[str | None]:
    found = (store.get(KEY, as_of=time_ms) for time_ms in TIMES_MS)
    return [None if one is None else one.value for one in found]


def stored_positions(peers: Peers) -> int:
    """Sum of the positions that a killed replica left in its files."""
    with open_tasks(find_tasks(peers.root / "replica", peers.app)) as opened:
        return sum(position.offset for one in opened for position in one.cut.positions.values())


def replica_answers(peers: Peers) -> list[Row]:
    """Every row from the replica's HTTP server."""
    rows = []
    for spec in stores():
        if spec.name == "ver":
            for key in VERSIONED_KEYS:
                rows += answered_rows("ver", peers.ask_replica(store_path("ver", "fetch"), key=key))
        else:
            rows += answered_rows(spec.name, peers.ask_replica(store_path(spec.name, "scan"), limit=10_000))
    return sorted(rows)


@pytest.fixture(scope="module", params=["exactly_once", "at_least_once"])
def story(
    request: pytest.FixtureRequest, kafka_address: str, streams_classes: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Story]:
    """The whole story, once for each guarantee."""
    peers = Peers(tmp_path_factory.mktemp("peers"), kafka_address, streams_classes, request.param)
    try:
        story = Story(peers)
        if request.param == "at_least_once":
            a_session_comes_first(story)
        the_application_writes(story)
        a_session_restores_and_writes(story)
        the_application_restores(story)
        yield story
    finally:
        peers.close()


def of(kind: str, rows: list[Row]) -> list[Row]:
    return [row for row in rows if row[0] == kind]


def test_kafka_streams_restores_changelogs_that_a_session_made(story: Story) -> None:
    assert story.java_first == story.ours_first
    ours = story.peers.guarantee == "at_least_once"
    assert bool(story.ours_first) == ours
    # Kafka Streams starts on changelogs whose records the owner removes, and leaves that setting.
    infos = [story.peers.log.admin.describe_topic(f"{story.peers.app}-{name}-changelog") for name in ("win", "ses")]
    assert {info.policy.retention_ms == 2**63 - 1 for info in infos if info is not None} == {ours}


@pytest.mark.parametrize("kind", KINDS)
def test_a_session_restores_what_kafka_streams_wrote(story: Story, kind: str) -> None:
    assert of(kind, story.restored) == of(kind, story.java) != []


@pytest.mark.parametrize("kind", KINDS)
def test_kafka_streams_restores_what_a_session_wrote(story: Story, kind: str) -> None:
    assert of(kind, story.java_restored) == of(kind, story.ours) != []
    assert kind in ("hourly", "visits") or of(kind, story.ours) != of(kind, story.restored)


@pytest.mark.parametrize("kind", KINDS)
def test_a_replica_reads_what_kafka_streams_wrote(story: Story, kind: str) -> None:
    assert of(kind, story.replica) == of(kind, story.java) != []
    assert of(kind, story.answers) == without_window_times(of(kind, story.java))


def test_headers_of_a_changelog_are_not_in_the_way(story: Story) -> None:
    assert (("trace", b"\0\xff"), ("none", None)) in story.headers
    assert of("kvhd", story.restored) == of("kvhd", story.java)


def test_eclipses_compiler_makes_the_same_application(streams_classes: Path) -> None:
    made = compiled(ensure_java(print), print, javac=None)
    assert {path.name for path in made.iterdir()} == {path.name for path in streams_classes.iterdir()}


def test_versions_are_found_as_of_any_time_on_both_sides(story: Story) -> None:
    assert story.restored_as_of == story.java_as_of
    assert story.java_restored_as_of == story.ours_as_of
    assert len(set(story.ours_as_of)) > 10
    assert None in story.ours_as_of[3:], "a tombstone ended a version"


def test_digests_of_all_rows_are_equal_at_equal_positions(story: Story) -> None:
    assert digest(story.java) == digest(story.replica) == digest(story.restored)
    assert digest(story.java_restored) == digest(story.ours)


def test_source_offsets_go_on_from_each_other(story: Story) -> None:
    inputs = story.peers.bounds([story.peers.input])
    assert {at: bounds.end - 8 for at, bounds in inputs.items()} == story.sources
    assert story.java_processed == 8 * PARTITIONS, "only what came after the commit of the session"
    before = {row[:3]: row[5] for row in of("counts", story.ours)}
    assert {row[:3]: row[5] for row in story.java_went_on} == before | {
        at: before[at] + count
        for at, count in Counter(("counts", one.partition, one.key) for one in changes(60, 1)).items()
    }


def test_a_replica_tells_how_far_it_is_and_goes_on_where_it_was_killed(story: Story) -> None:
    assert len(story.lags) == 6 and all(lag >= 0 for lag in story.lags)
    assert 0 < story.killed_at < story.end
    assert 0 < story.resumed_records <= story.end - story.killed_at
    assert story.exit_codes == {"killed": -signal.SIGKILL, "stopped": 0, "verified": 0}


def test_a_replica_changes_nothing_in_the_log(story: Story) -> None:
    assert story.log_after == story.log_before
    if not story.ours_first:  # a session takes part, and makes a topic of its own; no other process does
        assert not any("standfast" in topic for topic in story.log_before["topics"])
