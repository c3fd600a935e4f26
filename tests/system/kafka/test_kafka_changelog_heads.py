"""Changelogs of window and session stores on a real broker: event times of 2013, compaction and retention at work.

    trim     the owner's round of every minute, called at once
    retain   waits until the broker has looked for records past their retention, which it does every half second

Rules of this file: the application's name is the test's own, so that one broker serves all tests.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import standfast as sf
from standfast.ops.command.command_line import main
from standfast.ops.demo.flights import read_flights
from standfast.replication.kafka.log import KafkaLog
from standfast.replication.log import TopicPolicy
from standfast.replication.offsets import Bounds, TopicPartition
from standfast.replication.topics.changelog import TIME_MAX_MS, changelog_policy
from standfast.stream.session import changelog_heads
from support.sessions import DAY_MS, HOUR_MS, START_MS

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

MONTHS, EVERY = 36, 20  # three years of January 2013, one flight of twenty

TEXT = sf.serde.string
WAIT_S = 40.0
RETENTION_ROUNDS_S = 3.0
# Segments that roll soon, so that the broker frees and compacts records.
SEGMENTS = {"segment.ms": "500", "min.cleanable.dirty.ratio": "0.01"}
STORES: list[Any] = [
    sf.WindowStore("win", TEXT, TEXT, window_size_ms=HOUR_MS, retention_ms=DAY_MS, changelog=SEGMENTS),
    sf.SessionStore("ses", TEXT, TEXT, retention_ms=DAY_MS, changelog=SEGMENTS),
    sf.WindowStore(
        "dup", TEXT, TEXT, window_size_ms=HOUR_MS, retention_ms=DAY_MS, retain_duplicates=True, changelog=SEGMENTS
    ),
]
KEPT_HOURS = 24 + 24 + 12 + 12 + 12


class Replays:
    """Sessions of one application over the shared broker, which write rows of 2013."""

    def __init__(self, root: Path, address: str) -> None:
        self.root = root
        self.address = f"kafka://{address}"
        self.app = f"app-{uuid.uuid4().hex[:8]}"
        self.opened: list[sf.Session] = []
        self.log = KafkaLog(self.address)
        self.log.admin.create_topic(f"{self.app}-src", 1, TopicPolicy())
        self.changelogs = {spec.name: TopicPartition(spec.changelog_of(self.app), 0) for spec in STORES}

    def open(self, directory: str = "a", **settings: Any) -> sf.Session:
        given: dict[str, Any] = {"stores": STORES, "partitions": 1, "background": False, "take_over": False} | settings
        session = sf.Session(self.app, log=self.address, state_dir=self.root / directory, **given)
        self.opened.append(session)
        return session

    def active(self, directory: str = "a", **settings: Any) -> sf.Session:
        session = self.open(directory, **settings)
        session.assign(active=[0])
        session.wait_ready(WAIT_S)
        return session

    def write(self, session: sf.Session, first: int, count: int) -> None:
        """A row an hour in each store, 20 keys, and a commit for every six hours of event time."""
        task = session.task(0)
        for hour in range(first, first + count):
            at_ms = START_MS // HOUR_MS * HOUR_MS + hour * HOUR_MS
            for key in range(20):
                task.store("win").put(f"k{key}", f"w{hour}", at_ms, at_ms)
                task.store("ses").put(f"k{key}", at_ms, at_ms + 1, f"s{hour}", at_ms)
            task.store("dup").put("k", f"d{hour}", at_ms, at_ms)
            if hour % 6 == 5:
                task.commit({(f"{self.app}-src", 0): hour + 1})

    def trim(self, session: sf.Session) -> None:
        session._heads.trim(session.clock.monotonic_ms())

    def bounds(self) -> dict[str, Bounds]:
        reader = self.log.reader()
        found = reader.bounds(self.changelogs.values())
        reader.close()
        return {name: found[at] for name, at in self.changelogs.items()}

    def close(self) -> None:
        for session in self.opened:
            session.close()
        self.log.close()


@pytest.fixture
def replays(tmp_path: Path, kafka_address: str) -> Iterator[Replays]:
    made = Replays(tmp_path, kafka_address)
    yield made
    made.close()


def contents(session: sf.Session) -> dict[str, list[Any]]:
    return {spec.name: list(session.read(spec.name, 0, allow_stale=True).store.all()) for spec in STORES}


def follow(standby: sf.Session, owner: sf.Session) -> None:
    deadline = time.monotonic() + WAIT_S
    while contents(standby) != contents(owner):
        assert time.monotonic() < deadline
        standby.poll_once()


@pytest.mark.long
@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_replay_of_old_events_restores_every_row_and_keeps_the_topics_small(
    replays: Replays, guarantee: str, caplog: pytest.LogCaptureFixture
) -> None:
    owner, standby = replays.active(guarantee=guarantee), replays.open("b")
    standby.assign(standby=[0])
    for day in range(12):
        replays.write(owner, 24 * day, 24)
        standby.poll_once()
        standby._heads.poll()
        replays.trim(owner)
    before = contents(owner)
    assert {name: len(rows) for name, rows in before.items()} == {"win": 480, "ses": 480, "dup": 24}
    assert replays.bounds()["win"].begin > 0
    assert replays.bounds()["dup"].begin > 0
    follow(standby, owner)
    standby._heads._noted.clear()  # as a minute later
    standby._heads.poll()
    replays.trim(owner)
    ends = replays.bounds()
    assert ends["dup"].end - ends["dup"].begin <= 2 * KEPT_HOURS  # markers count
    assert ends["win"].end - ends["win"].begin <= 20 * KEPT_HOURS + KEPT_HOURS
    time.sleep(RETENTION_ROUNDS_S)  # the broker's cleaner and its look for old records run meanwhile
    owner.close()
    assert contents(replays.active("cold", guarantee=guarantee)) == before
    assert "state lost" not in caplog.text


def test_rows_of_a_topic_with_the_settings_of_an_earlier_version_are_lost_and_the_owner_warns(
    replays: Replays, caplog: pytest.LogCaptureFixture
) -> None:
    """The reason of the new settings: the broker goes by its clock."""
    for spec in STORES:
        replays.log.admin.create_topic(spec.changelog_of(replays.app), 1, changelog_policy(spec))
    owner = replays.active()
    replays.write(owner, 0, 24)
    replays.trim(owner)
    assert "loses records of store 'win' by the log's clock" in caplog.text
    deadline = time.monotonic() + WAIT_S
    while replays.bounds()["win"].begin == 0:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert owner.task(0).stores.cut.heads["win"].first == 0  # not by the owner


@pytest.mark.long
def test_owner_that_was_fenced_and_owner_of_a_topic_made_again_remove_nothing(replays: Replays) -> None:
    old = replays.active()
    replays.write(old, 0, 240)
    new = replays.active("b")
    replays.trim(old)
    assert {begin for begin, _ in replays.bounds().values()} == {0}
    replays.write(new, 240, 240)
    where = replays.changelogs["win"]
    replays.log.admin.delete_topic(where.topic)
    replays.log.admin.create_topic(where.topic, 1, changelog_policy(STORES[0]))
    replays.log.admin.change_topic(where.topic, {"retention.ms": str(TIME_MAX_MS)})
    producer = replays.log.producer()
    now_ms = int(time.time() * 1_000)
    producer.append({where: [sf.Outgoing(b"k%d" % number, b"v", now_ms) for number in range(9_000)]})
    producer.close()
    replays.trim(new)
    assert replays.bounds()["win"] == Bounds(0, 9_000)
    assert replays.bounds()["ses"].begin > 0


def records(replays: Replays, at: TopicPartition) -> int:
    """The records that a reader gets, without markers and gaps of compaction."""
    reader = replays.log.reader()
    begin, end = reader.bounds([at])[at]
    reader.assign({at: begin})
    found = 0
    while reader.assignment()[at] < end:
        found += sum(len(batch.records) for batch in reader.fetch(10_000, 1_000))
    reader.close()
    return found


@pytest.mark.long
@pytest.mark.timeout(400)
def test_three_years_of_flights_beside_a_standby(
    replays: Replays, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capsys: Any
) -> None:
    """The threads of both sessions run, and a minute is half a second. Departures of each hour, by airport and late."""
    monkeypatch.setattr(changelog_heads, "INTERVAL_MS", 500)
    monkeypatch.setattr(changelog_heads, "LOOK_MS", 100)
    number = sf.serde.int64
    stores: list[Any] = [
        sf.WindowStore("win", TEXT, number, window_size_ms=HOUR_MS, retention_ms=DAY_MS, changelog=SEGMENTS),
        sf.SessionStore("ses", TEXT, TEXT, retention_ms=DAY_MS, changelog=SEGMENTS),
        sf.WindowStore(
            "dup", TEXT, TEXT, window_size_ms=HOUR_MS, retention_ms=DAY_MS, retain_duplicates=True, changelog=SEGMENTS
        ),
    ]
    owner = replays.active(stores=stores, background=True)
    standby = replays.open("b", stores=stores, background=True)
    standby.assign(standby=[0])
    flights = read_flights("sample").flights[::EVERY]
    task, count = owner.task(0), 0
    win, ses, dup = (task.store(name) for name in ("win", "ses", "dup"))
    live = dict.fromkeys(("win", "ses", "dup"), 0)  # records of the last two days of event time
    for month in range(MONTHS):
        for flight in flights:
            at_ms = flight.departed + month * 31 * DAY_MS
            hour_ms = at_ms // HOUR_MS * HOUR_MS
            win.put(flight.origin, (win.fetch(flight.origin, hour_ms) or 0) + 1, hour_ms, at_ms)
            ses.put(flight.tail, at_ms, at_ms + flight.delay % 60, flight.carrier, at_ms)
            if flight.delay > 60:
                dup.put(flight.origin, flight.carrier, hour_ms, at_ms)
            count += 1
            if count % 50 == 0:
                task.commit({(f"{replays.app}-src", 0): count})
    task.commit({(f"{replays.app}-src", 0): count})
    last_ms = flights[-1].departed
    recent = [flight for flight in flights if flight.departed > last_ms - 2 * DAY_MS]
    live = {"win": len({(one.origin, one.departed // HOUR_MS) for one in recent}), "ses": len(recent)}
    live["dup"] = sum(one.delay > 60 for one in recent)
    before = contents(owner)
    assert all(len(rows) > 10 for rows in before.values())
    deadline = time.monotonic() + WAIT_S
    while contents(standby) != before:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    time.sleep(RETENTION_ROUNDS_S)  # further rounds of the owner, and of the broker's cleaner
    left = {name: records(replays, at) for name, at in replays.changelogs.items()}
    assert all(left[name] <= 2 * most + 100 for name, most in live.items()), (left, live)
    standby.close()
    owner.close()
    assert "state lost" not in caplog.text
    assert contents(replays.active("cold", stores=stores)) == before
    replays.opened[-1].close()
    for directory in ("a", "b", "cold"):
        assert main(["verify", "--state-dir", str(replays.root / directory), "--log", replays.address, "--json"]) == 0
    assert '"inconclusive"' not in capsys.readouterr().out
