"""Points in time and restores under another name beside a real broker: transactions, markers and its own cleaner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer

import standfast as sf
from standfast.replication.kafka.log import KafkaLog
from standfast.replication.log import Outgoing, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.replication.topics.restoring import POLICY, is_written, mark_of, read_mark
from standfast.restore.snapshot.at_point import ONLY, WantedPoint, choose_task, restore_folder
from standfast.restore.snapshot.catalogue import listed
from standfast.restore.snapshot.clone import clone_app
from standfast.restore.snapshot.opening import open_storage
from standfast.restore.snapshot.tails import Tails
from standfast.restore.verify.at_rest import open_task, store_of
from standfast.store.clock import SystemClock
from standfast.store.errors import InvalidRequest

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
CLEANED = {
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.001",
    "max.compaction.lag.ms": "100",
    "file.delete.delay.ms": "100",
}


@contextmanager
def running(app: str, log: str, root: Path, directory: str) -> Iterator[sf.Session]:
    stores = [sf.KeyValueStore("kv", sf.serde.string, sf.serde.string)]
    policy = sf.SnapshotPolicy(to=str(root / "snaps"), restore=False)
    with sf.Session(
        app,
        log=log,
        state_dir=root / directory,
        stores=stores,
        partitions=1,
        take_over=False,
        guarantee="exactly_once",
        snapshots=policy,
    ) as session:
        session.assign(active=[0])
        session.wait_ready(60)
        yield session


def rows(session: sf.Session) -> dict[str, str]:
    with session.task(0).store("kv").all() as found:
        return dict(found)


def test_points_behind_transactions_are_proved_or_refused_before_and_after_the_cleaner(
    kafka_address: str, kafka_log: KafkaLog, tmp_path: Path
) -> None:
    app = f"points-{uuid.uuid4().hex[:8]}"
    where = TopicPartition(f"{app}-kv-changelog", 0)
    written: list[tuple[int, str, str | None]] = []  # offset, key, value
    with running(app, f"kafka://{kafka_address}", tmp_path, "a") as session:
        task, at = session.task(0), 0
        for number in range(60):
            for key in (f"k{number % 7}", f"once{number}"):
                value = None if number % 5 == 4 and key[0] == "k" else f"{number}"
                task.store("kv").put(key, value)
            task.commit()
            end = task.stores.cut.positions["kv"].offset
            with closing(kafka_log.reader()) as reader:
                reader.assign({where: at})
                while at < end:
                    for batch in reader.fetch(100, 1_000):
                        for one in batch.records:
                            value = None if one.value is None else one.value.decode()
                            written.append((one.offset, (one.key or b"").decode(), value))
                        at = batch.next_offset
            if number == 20:
                session.snapshot(0)
        assert at >= task.stores.cut.positions["kv"].offset
    storage = open_storage(str(tmp_path / "snaps"), app)
    base = listed(storage).whole[0].snapshot.cut.positions["kv"].offset
    before = check_points(storage, kafka_log, tmp_path / "before", written, range(base, at + 1, 3))
    assert before > 20  # transactions repeat keys, so most points are proved beside their markers
    kafka_log.admin.change_topic(where.topic, CLEANED)
    wait_for_cleaner(kafka_log, where, len(written))
    assert 0 < check_points(storage, kafka_log, tmp_path / "after", written, range(base, at + 1, 3)) < before


def check_points(storage, log, root: Path, written, offsets: range) -> int:  # type: ignore[no-untyped-def]
    """Every point that is chosen is the log as it was written, folded to it; returns the number of those."""
    chosen = 0
    with closing(Tails(log, SystemClock())) as tails:
        for offset in offsets:
            try:
                one = choose_task(storage, "0_0", WantedPoint({ONLY: offset}), tails)
            except InvalidRequest as error:
                assert "nearest point below is kv=" in str(error)
                continue
            restore_folder(storage, [one], root / str(offset), tails)
            with open_task(root / str(offset) / one.snapshot.app / "0_0") as engine:
                found = {
                    key.decode(): value.decode() for key, _, value in store_of(engine, "kv", "x").store.logical_rows()
                }
            expected = {}
            for at, key, value in written:
                if at < offset:
                    expected[key] = value
            assert found == {key: value for key, value in expected.items() if value is not None}, offset
            chosen += 1
    return chosen


def wait_for_cleaner(log: KafkaLog, where: TopicPartition, records: int) -> None:
    """Write until the broker's cleaner has removed records of this partition."""
    ends_at = time.monotonic() + 60
    with closing(log.reader()) as reader, closing(log.producer()) as producer:
        while time.monotonic() < ends_at:
            # The time of now: a segment ends by the times of its records, and the cleaner takes no open one.
            producer.append({where: [Outgoing(b"filler", b"x", SystemClock().wall_ms())]})
            end = reader.bounds([where])[where].end
            seen, at = 0, 0
            reader.assign({where: 0})
            while at < end:
                for batch in reader.fetch(1_000, 1_000):
                    seen, at = seen + len(batch.records), batch.next_offset
            if seen < records:
                return
            time.sleep(1)
    pytest.fail("the cleaner removed nothing for a minute")


def test_rows_of_1970_move_from_an_embedded_log_to_kafka_with_the_least_timestamp_and_not_the_present_one(
    kafka_address: str, kafka_log: KafkaLog, tmp_path: Path
) -> None:
    app = f"clone-{uuid.uuid4().hex[:8]}"
    copy = f"{app}2"
    with running(app, f"sqlite:///{tmp_path}/log", tmp_path, "a") as session:
        session.task(0).store("kv").put("low", "v", 0)
        session.task(0).store("kv").put("next", "v", 1)
        session.task(0).commit()
        session.snapshot(0)
    storage = open_storage(str(tmp_path / "snaps"), app)
    parts = [one.snapshot for one in listed(storage).whole]
    done = clone_app(storage, parts, name=copy, log=kafka_log, state_dir=tmp_path / "b", clock=SystemClock())
    assert done.tasks[0].rows == 2
    for directory in ("b", "cold", "b"):
        with running(copy, f"kafka://{kafka_address}", tmp_path, directory) as session:
            found = list(session.task(0).store("kv").logical_rows())
            assert found == [(b"low", 1, b"v"), (b"next", 1, b"v")], directory


def test_an_application_goes_on_under_another_name_from_the_offsets_of_its_cut(
    kafka_address: str, kafka_log: KafkaLog, tmp_path: Path
) -> None:
    app = f"clone-{uuid.uuid4().hex[:8]}"
    source, copy = TopicPartition(f"{app}-flights", 0), f"{app}2"
    kafka_log.admin.create_topic(source.topic, 1, TopicPolicy())
    with closing(kafka_log.producer()) as producer:
        producer.append({source: [Outgoing(b"k", b"v", 1)] * 10})
    with running(app, f"kafka://{kafka_address}", tmp_path, "a") as session:
        for number in range(50):
            session.task(0).store("kv").put(f"k{number}", "old")
        session.task(0).commit({source: 4})
        session.snapshot(0)
        expected = rows(session)
        session.task(0).store("kv").put("k1", "new")
        session.task(0).commit({source: 9})
    storage = open_storage(str(tmp_path / "snaps"), app)
    parts = [one.snapshot for one in listed(storage).whole]
    looked = clone_app(
        storage, parts, name=copy, log=kafka_log, state_dir=tmp_path / "b", clock=SystemClock(), dry_run=True
    )
    assert looked.dry_run
    assert kafka_log.admin.describe_topic(f"{copy}-kv-changelog") is None
    done = clone_app(storage, parts, name=copy, log=kafka_log, state_dir=tmp_path / "b", clock=SystemClock())
    assert (done.tasks[0].rows, done.resumed) == (50, False)
    assert kafka_log.group(copy).committed()[source].offset == 4
    for directory, restored in (("b", 0), ("cold", 50)):
        with running(copy, f"kafka://{kafka_address}", tmp_path, directory) as session:
            assert rows(session) == expected
            assert session.task(0).source_offsets() == {source: 4}
            assert sum(session.counters.restored_records.values()) == restored
    with pytest.raises(InvalidRequest, match="exists already"):
        clone_app(storage, parts, name=copy, log=kafka_log, state_dir=tmp_path / "c", clock=SystemClock())
    assert kafka_log.group(app).committed()[source].offset == 9


def command(app: str, log: str, root: Path, *options: str, failpoint: str = "") -> subprocess.Popen[str]:
    flags = ["--from", str(root / "snaps"), "--app", app, "--log", log, *options]
    return subprocess.Popen(
        [sys.executable, "-m", "standfast", "snapshot", "restore", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "STANDFAST_FAILPOINT": failpoint},
    )


def stored(app: str, log: str, root: Path) -> dict[str, str]:
    """Rows of an application with a snapshot of them; later rows have none."""
    with running(app, log, root, "a") as session:
        for number in range(50):
            session.task(0).store("kv").put(f"k{number}", "old")
        session.task(0).commit()
        session.snapshot(0)
        expected = rows(session)
        session.task(0).store("kv").put("later", "new")
        session.task(0).commit()
    return expected


@pytest.mark.crash
@pytest.mark.parametrize(
    "place",
    [
        "clone.whole",
        *(pytest.param(f"clone.{one}", marks=pytest.mark.long) for one in ("rows", "marked", "topics", "written")),
    ],
)
def test_a_killed_restore_under_another_name_is_completed_by_the_same_command_beside_newer_snapshots(
    kafka_address: str, kafka_log: KafkaLog, tmp_path: Path, place: str
) -> None:
    app, log = f"clone-{uuid.uuid4().hex[:8]}", f"kafka://{kafka_address}"
    copy = f"{app}2"
    expected = stored(app, log, tmp_path)
    options = ("--as", copy, "--state-dir", str(tmp_path / "b"))
    killed = command(app, log, tmp_path, *options, failpoint=f"{place}=kill:1")
    killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL
    for directory in ("b", "elsewhere"):
        with (
            pytest.raises(InvalidRequest, match="is being restored under this name"),
            running(copy, log, tmp_path, directory),
        ):
            pass
    with running(app, log, tmp_path, "a") as session:  # its schedule goes on
        session.snapshot(0)
    again = command(app, log, tmp_path, *options)
    _, told = again.communicate(timeout=60)
    assert again.returncode == 0, told
    assert "an earlier run had begun it, and is completed" in told
    for directory in ("b", "cold"):
        with running(copy, log, tmp_path, directory) as session:
            assert rows(session) == expected
    assert f"{copy}-standfast-restoring" not in kafka_log.admin.topic_names()


@pytest.mark.long
@pytest.mark.parametrize("kind", ["kafka", "embedded"])
def test_of_two_commands_at_once_one_completes_the_restore_and_the_other_says_why_not(
    kafka_address: str, tmp_path: Path, kind: str
) -> None:
    log = f"kafka://{kafka_address}" if kind == "kafka" else f"sqlite:///{tmp_path / 'log.db'}"
    app = f"clone-{uuid.uuid4().hex[:8]}"
    copy = f"{app}2"
    expected = stored(app, log, tmp_path)
    both = [command(app, log, tmp_path, "--as", copy, "--state-dir", str(tmp_path / where)) for where in ("b", "c")]
    told = [one.communicate(timeout=120)[1] for one in both]
    codes = [one.returncode for one in both]
    assert codes.count(0) == 1, told
    refused = told[1 - codes.index(0)]
    assert any(word in refused for word in ("fenced", "exists already", "has completed the restore")), refused
    assert "there is no topic" not in refused
    for directory in (("b", "c")[codes.index(0)], "cold"):
        with running(copy, log, tmp_path, directory) as session:
            assert rows(session) == expected


@pytest.mark.long
def test_points_behind_a_removed_head_and_of_a_recreated_topic_are_refused_and_the_whole_state_is_restored(
    kafka_address: str, kafka_log: KafkaLog, tmp_path: Path
) -> None:
    app, log = f"clone-{uuid.uuid4().hex[:8]}", f"kafka://{kafka_address}"
    expected = stored(app, log, tmp_path)
    where = TopicPartition(f"{app}-kv-changelog", 0)
    with closing(kafka_log.reader()) as reader:
        end = reader.bounds([where])[where].end
    kafka_log.admin.change_topic(where.topic, {"cleanup.policy": "compact,delete"})
    remove(kafka_log, where, end - 1)
    kafka_log.admin.change_topic(where.topic, {"cleanup.policy": "compact"})
    storage = open_storage(str(tmp_path / "snaps"), app)
    with (
        closing(Tails(kafka_log, SystemClock())) as tails,
        pytest.raises(InvalidRequest, match="does not fit the log \\(history-missing\\)"),
    ):
        choose_task(storage, "0_0", WantedPoint({ONLY: end}), tails)
    kafka_log.admin.delete_topic(where.topic)
    kafka_log.admin.create_topic(where.topic, 1, TopicPolicy(frozenset({"compact"})))
    with (
        closing(Tails(kafka_log, SystemClock())) as tails,
        pytest.raises(InvalidRequest, match="does not fit the log \\(log-empty\\)"),
    ):
        choose_task(storage, "0_0", WantedPoint({ONLY: 1}), tails)
    # The way back: the snapshot's own point, under a name whose changelog is whole.
    done = command(app, log, tmp_path, "--as", f"{app}2", "--state-dir", str(tmp_path / "b"))
    assert (done.communicate(timeout=60)[1], done.returncode) == ("", 0)
    for directory in ("b", "cold"):
        with running(f"{app}2", log, tmp_path, directory) as session:
            assert rows(session) == expected


def remove(log: KafkaLog, where: TopicPartition, before: int) -> None:
    """Remove records at the head, once the broker knows the policy."""
    ends_at = time.monotonic() + 30
    while True:
        try:
            return log.admin.delete_records({where: before})
        except sf.StandfastError:
            assert time.monotonic() < ends_at
            time.sleep(0.2)


def test_mark_of_another_run_whose_transaction_is_open_counts_as_written(kafka_address: str) -> None:
    app = f"clone-{uuid.uuid4().hex[:8]}"
    where = mark_of(app)
    with closing(KafkaLog(f"kafka://{kafka_address}")) as log:
        log.admin.create_topic(where.topic, 1, POLICY)
        assert not is_written(log, app)
        producer = Producer(
            {"bootstrap.servers": kafka_address, "transactional.id": f"mark-{app}", "transaction.timeout.ms": 60_000}
        )
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce(where.topic, b"{}", b"mark", partition=0)
        assert producer.flush(30) == 0
        assert read_mark(log, app) is None
        assert is_written(log, app)
        producer.abort_transaction(30)
