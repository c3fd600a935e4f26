"""Sessions on a real Kafka log: commits, cold restore, take-over, standby, fencing; and processes that are killed.

Rules of this file: the application's name is the test's own, so that one broker serves all tests. Timestamps are of the
present, because Kafka deletes from a windowed changelog by the records' own time.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

import standfast as sf
from standfast.replication.kafka.cluster import Cluster
from standfast.replication.kafka.log import KafkaLog
from standfast.replication.kafka.writer import KafkaWriter
from standfast.replication.log import TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.replication.permissions import Need
from support.sessions import HOUR_MS, four_stores

pytestmark = [pytest.mark.kafka(2), pytest.mark.slow]

WAIT_S = 40.0
NAMES = ("kv", "win", "ses", "ver")


class Sessions:
    """Sessions of one application over the shared broker; a topic `<app>-src` is its source."""

    def __init__(self, root: Path, address: str) -> None:
        self.root = root
        self.address = f"kafka://{address}"
        self.app = f"app-{uuid.uuid4().hex[:8]}"
        self.source = f"{self.app}-src"
        self.opened: list[sf.Session] = []
        self.log = KafkaLog(self.address)
        self.log.admin.create_topic(self.source, 2, TopicPolicy())

    def open(self, directory: str = "a", **settings: Any) -> sf.Session:
        arguments: dict[str, Any] = {
            "log": self.address,
            "state_dir": self.root / directory,
            "stores": four_stores(),
            "partitions": 2,
            "background": False,
        }
        session = sf.Session(self.app, **{**arguments, **settings})
        self.opened.append(session)
        return session

    def active(self, directory: str = "a", partitions: tuple[int, ...] = (0,), **settings: Any) -> sf.Session:
        session = self.open(directory, **settings)
        session.assign(active=partitions)
        session.wait_ready(WAIT_S)
        return session

    def fill(self, session: sf.Session, offset: int, count: int = 20, partition: int = 0) -> None:
        task = session.task(partition)
        now_ms = int(time.time() * 1_000)
        hour_ms = now_ms - now_ms % HOUR_MS
        for number in range(offset, offset + count):
            task.store("kv").put(f"k{number % 7}", f"v{number}", timestamp=now_ms + number)
            task.store("win").put(f"k{number % 5}", f"w{number}", hour_ms + number)
            task.store("ses").put(f"k{number % 3}", hour_ms + number, hour_ms + number + 5, f"s{number}")
            task.store("ver").put("k", f"h{number}", hour_ms + number)
            task.observe(self.source, partition, now_ms + number)
        task.commit({(self.source, partition): offset + count})

    def at(self, partition: int = 0) -> TopicPartition:
        return TopicPartition(self.source, partition)

    def close(self) -> None:
        for session in self.opened:
            session.close()
        self.log.close()


@pytest.fixture
def sessions(tmp_path: Path, kafka_address: str) -> Iterator[Sessions]:
    made = Sessions(tmp_path, kafka_address)
    yield made
    made.close()


def contents(session: sf.Session, partition: int = 0) -> dict[str, list[object]]:
    """Every committed row of every store, as a user reads them."""
    views = {name: session.read(name, partition, allow_stale=True).store for name in NAMES}
    return {
        "kv": list(views["kv"].all()),
        "win": list(views["win"].all()),
        "ses": list(views["ses"].all()),
        "ver": list(views["ver"].range("k", 0, 10**15)),
    }


def until(reached: Callable[[], bool], what: str, *sessions: sf.Session) -> None:
    """Drive these sessions' background work until a condition holds."""
    deadline = time.monotonic() + WAIT_S
    while not reached():
        assert time.monotonic() < deadline, f"not within {WAIT_S} s: {what}"
        for session in sessions:
            session.poll_once()
        time.sleep(0.01)


@pytest.mark.parametrize("guarantee", ["exactly_once", pytest.param("at_least_once", marks=pytest.mark.long)])
def test_commit_survives_a_reopen_and_uncommitted_writes_do_not(sessions: Sessions, guarantee: str) -> None:
    first = sessions.active(guarantee=guarantee)
    sessions.fill(first, 0)
    sessions.fill(first, 20)
    before = contents(first)
    assert len(before["kv"]) == 7
    first.task(0).store("kv").put("k0", "uncommitted")
    first.close()
    again = sessions.active(guarantee=guarantee)
    assert contents(again) == before
    assert again.task(0).source_offsets() == {sessions.at(): 40}
    assert again.statistics() is not None


@pytest.mark.parametrize("guarantee", ["exactly_once", pytest.param("at_least_once", marks=pytest.mark.long)])
def test_cold_restore_has_equal_rows_stream_time_and_source_offsets(sessions: Sessions, guarantee: str) -> None:
    first = sessions.active(guarantee=guarantee)
    sessions.fill(first, 0, 60)
    before = contents(first)
    observed = {name: store.rows.observed_ms for name, store in first.task(0).stores.stores.items()}
    times = dict(first.task(0).stream_times)
    first.close()
    cold = sessions.active("elsewhere", guarantee=guarantee)
    assert contents(cold) == before
    assert cold.task(0).source_offsets() == {sessions.at(): 60}
    assert cold.task(0).stream_times == times
    assert {name: store.rows.observed_ms for name, store in cold.task(0).stores.stores.items()} == observed


def test_committed_offsets_are_those_of_the_kafka_group(sessions: Sessions) -> None:
    session = sessions.active()
    sessions.fill(session, 0)
    assert {at: found.offset for at, found in sessions.log.group(sessions.app).committed().items()} == {
        sessions.at(): 20
    }


def test_newer_owner_fences_the_older_which_gives_the_task_up(sessions: Sessions) -> None:
    first = sessions.active("a")
    sessions.fill(first, 0)
    before = contents(first)
    second = sessions.active("b")
    assert contents(second) == before
    first.task(0).store("kv").put("k0", "lost")
    with pytest.raises(sf.Fenced):
        first.task(0).commit({(sessions.source, 0): 21})
    sessions.fill(second, 20)
    after = contents(second)
    cold = sessions.active("c")
    assert contents(cold) == after
    assert cold.task(0).source_offsets() == {sessions.at(): 40}


@pytest.mark.parametrize("guarantee", ["exactly_once", pytest.param("at_least_once", marks=pytest.mark.long)])
def test_standby_follows_and_takes_over_when_the_owner_leaves(sessions: Sessions, guarantee: str) -> None:
    first = sessions.active("a", guarantee=guarantee)
    standby = sessions.open("b", guarantee=guarantee)
    standby.assign(active=[], standby=[0])
    sessions.fill(first, 0)
    sessions.fill(first, 20)
    before = contents(first)
    until(lambda: contents(standby) == before, "the standby has everything", first, standby)
    first.close()
    until(lambda: active(standby) == [0], "the standby took over", standby)
    until(lambda: standby.ready, "the promoted task is whole", standby)
    assert contents(standby) == before
    assert standby.task(0).source_offsets() == {sessions.at(): 40}
    sessions.fill(standby, 40)
    assert standby.task(0).source_offsets() == {sessions.at(): 60}


def active(session: sf.Session) -> list[int]:
    return [partition for partition, task in session.tasks().items() if task.role == "active"]


def test_background_sessions_share_tasks_out_and_survive_a_silent_death(sessions: Sessions) -> None:
    first = sessions.active("a", (0, 1), background=True, lease_ms=3_000, max_stall_ms=3_000)
    second = sessions.open("b", background=True, lease_ms=1_500)
    second.assign(active=[], standby=[0, 1])
    for partition in (0, 1):
        sessions.fill(first, 0, partition=partition)
    before = [contents(first, partition) for partition in (0, 1)]
    until(lambda: [contents(second, partition) for partition in (0, 1)] == before, "the standby has everything")
    # Its threads end; its lease is not renewed once they make no progress; it does not leave.
    first._background.stop.set()
    until(lambda: active(second) == [0, 1], "take-over after the lease")
    second.wait_ready(WAIT_S)
    assert [contents(second, partition) for partition in (0, 1)] == before
    with pytest.raises(sf.Fenced):
        sessions.fill(first, 20)
    sessions.fill(second, 20)


class LostRace:
    """Between the first claim of a task and the broker's answer, another owner claims it."""

    def __init__(self, sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
        self.happened = False
        self._id = f"{sessions.app}-0-0"
        self._rival = KafkaLog(sessions.address)
        self._group = self._rival.group(sessions.app)
        open_writer = KafkaWriter.open

        def late(writer: KafkaWriter) -> None:
            if not self.happened:
                self.happened = True
                self._group.join("rival", lease_ms=60_000)
                self._rival.writer(self._id, group=sessions.app, owner="rival")
            open_writer(writer)

        monkeypatch.setattr(KafkaWriter, "open", late)

    def leave(self) -> None:
        """The winner ends."""
        self._group.leave("rival")
        self._rival.close()


def test_standby_that_loses_the_race_for_its_task_goes_on_standing_by(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = sessions.active("a", lease_ms=60_000)  # not driven while the other one opens
    standby = sessions.open("b", background=True)
    standby.assign(standby=[0])
    sessions.fill(first, 0)
    before = contents(first)
    until(lambda: contents(standby) == before, "the standby has everything", first)
    race = LostRace(sessions, monkeypatch)
    first.close()
    until(lambda: race.happened, "the standby tries to take the task")
    time.sleep(0.5)  # some more rounds of its background work
    assert (standby.tasks()[0].role, standby.ready) == ("standby", True)
    race.leave()
    until(lambda: active(standby) == [0], "the winner is gone: the standby takes over")
    standby.wait_ready(WAIT_S)
    assert contents(standby) == before
    sessions.fill(standby, 20)


def test_instance_that_loses_the_race_for_a_free_task_stands_by_for_it(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    race = LostRace(sessions, monkeypatch)
    loser = sessions.open("a", background=True, placement="shared", standby_replicas=1)
    until(lambda: active(loser) == [1] and 0 in loser.tasks(), "the task of the rival has a standby here")
    assert race.happened
    race.leave()
    until(lambda: sorted(active(loser)) == [0, 1], "the winner is gone: its standby takes over")
    loser.wait_ready(WAIT_S)
    sessions.fill(loser, 0)


def test_group_that_gives_a_task_in_the_middle_of_a_race_has_it_opened_later(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    race = LostRace(sessions, monkeypatch)
    member = sessions.open("a", background=True, placement="group")
    member.on_assign(None, [sessions.at(0)])
    assert race.happened
    race.leave()
    until(lambda: active(member) == [0], "what the group gave is opened")
    member.wait_ready(WAIT_S)
    sessions.fill(member, 0)


def test_claim_that_a_late_producer_of_an_older_one_fences_may_be_tried_again(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = KafkaLog(sessions.address)
    log.writer("id", group=sessions.app, owner="me").close()
    fenced = KafkaException(KafkaError(KafkaError.PRODUCER_FENCED))

    run: Callable[..., object] = Cluster.run

    def refused(cluster: Cluster, what: str, call: Callable[[], object], *needs: Need) -> object:
        if what.startswith("opening the writer"):
            raise cluster.translate(fenced, what)
        return run(cluster, what, call, *needs)

    with monkeypatch.context() as patched, pytest.raises(sf.Unavailable, match="another producer of this id"):
        patched.setattr(Cluster, "run", refused)
        log.writer("id", group=sessions.app, owner="me")
    log.writer("id", group=sessions.app, owner="me")
    log.close()
