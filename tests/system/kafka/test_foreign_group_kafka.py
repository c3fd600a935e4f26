"""Other clients in an application's group on a real broker: consumers, migrations, and Kafka's own tools.

Rules of this file: `Shop` counts the keys of one topic. Its other client is a plain consumer with enable.auto.commit,
or Kafka's admin client, as kafka-consumer-groups.sh --reset-offsets uses it: neither writes metadata of ours.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient

import standfast as sf
from standfast.ops.command.command_line import main
from standfast.replication.kafka.log import KafkaLog
from standfast.replication.log import Committed, Outgoing, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.replication.permissions import GROUP, Need
from standfast.restore.accepted import read_accepted
from standfast.store.clock import ManualClock
from standfast.store.errors import Held
from standfast.stream.runtime.group_consumers import LOOK_MS, GroupConsumers
from support.secured import secured_broker
from support.serve import wait_for

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(180)]

WAIT_S = 40.0
TEXT, INT = sf.serde.string, sf.serde.int64
BOTH = pytest.mark.parametrize("guarantee", ["exactly_once", pytest.param("at_least_once", marks=pytest.mark.long)])


class Shop:
    """An application that counts the keys of its topic, and the other clients of its group."""

    def __init__(self, root: Path, address: str) -> None:
        self.root = root
        self.broker = address
        self.address = f"kafka://{address}"
        self.name = f"shop-{uuid.uuid4().hex[:8]}"
        self.log = KafkaLog(self.address)
        self.source = TopicPartition(f"{self.name}-in", 0)
        self.log.admin.create_topic(self.source.topic, 1, TopicPolicy())

    def feed(self, count: int) -> None:
        with closing(self.log.producer()) as producer:
            producer.append({self.source: [Outgoing(b"k", b"v", 1)] * count})

    def app(self, directory: str = "state", **given: Any) -> sf.App:
        stores = [sf.KeyValueStore("counts", TEXT, INT)]
        app = sf.App(self.name, log=self.address, state_dir=self.root / directory, stores=stores, **given)
        app.stream(self.source.topic, key=TEXT, value=TEXT).group_by_key().count("counts")
        return app

    def count(self, wanted: int, directory: str = "state", **given: Any) -> None:
        """Run the application until it has counted so many, and no more a moment later."""
        app = self.app(directory, **given)
        session = app.open()
        ended: list[BaseException] = []
        thread = threading.Thread(target=self._run, args=(app, ended))
        thread.start()
        deadline = time.monotonic() + WAIT_S
        try:
            while not ended and self._counted(session) != wanted:
                assert time.monotonic() < deadline, f"{self._counted(session)} and not {wanted}"
                time.sleep(0.02)
        finally:
            app.stop()
            thread.join()
        if ended:
            raise ended[0]
        with closing(self.log.reader()) as reader:  # everything is processed, so that nothing more would come
            assert self.committed().offset == reader.bounds([self.source])[self.source].end

    @staticmethod
    def _run(app: sf.App, ended: list[BaseException]) -> None:
        try:
            app.run()
        except BaseException as error:
            ended.append(error)

    @staticmethod
    def _counted(session: sf.Session) -> int:
        try:
            found: Any = session.read("counts", 0).store
            return found.get("k") or 0
        except sf.StandfastError:
            return 0

    def committed(self) -> Committed:
        with closing(self.log.group(self.name)) as group:
            return group.committed([self.source])[self.source]

    @contextmanager
    def consumer(self) -> Iterator[Consumer]:
        """A live consumer in the group, as a program has it that was given this group.id by mistake."""
        settings = {"bootstrap.servers": self.broker, "group.id": self.name, "client.id": "strange"}
        consumer = Consumer({**settings, "auto.offset.reset": "earliest"})
        consumer.subscribe([self.source.topic])
        deadline = time.monotonic() + WAIT_S
        while not consumer.assignment():
            assert time.monotonic() < deadline
            consumer.poll(0.1)
        try:
            yield consumer
        finally:
            consumer.close()

    def set_offset(self, offset: int) -> None:
        """As kafka-consumer-groups.sh --group NAME --topic TOPIC:0 --reset-offsets --to-offset N --execute."""
        admin = AdminClient({"bootstrap.servers": self.broker})
        wanted = ConsumerGroupTopicPartitions(self.name, [KafkaPartition(self.source.topic, 0, offset)])
        admin.alter_consumer_group_offsets([wanted])[self.name].result(WAIT_S)

    def reset(self, *flags: str) -> int:
        return main(["reset", "--app", self.name, "--log", self.address, *flags, "--yes"])

    @property
    def state(self) -> str:
        return str(self.root / "state")


@pytest.fixture
def shop(tmp_path: Path, kafka_address: str) -> Iterator[Shop]:
    made = Shop(tmp_path, kafka_address)
    yield made
    made.log.close()


def skipped_by_a_consumer(shop: Shop) -> None:
    """Ten records processed; ten more that another consumer of the group has read and committed."""
    shop.feed(10)
    shop.count(10)
    shop.feed(10)
    with shop.consumer() as consumer:
        deadline = time.monotonic() + WAIT_S
        while consumer.position([KafkaPartition(*shop.source)])[0].offset < 20:
            assert time.monotonic() < deadline
            consumer.poll(0.2)
    assert shop.committed() == (20, "")


# -- another consumer has committed -----------------------------------------------------------------------------------


def test_records_that_another_consumer_of_the_group_has_read_are_not_skipped_in_silence(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    skipped_by_a_consumer(shop)
    with pytest.raises(sf.StateLost) as refused:
        shop.app().run()
    told = str(refused.value)
    assert f"{shop.source}: 20, own record 10" in told
    assert f"offsets 10 to 19 of {shop.source} are never processed" in told
    (command,) = [part for part in told.split("`") if part.startswith("standfast reset")]
    assert main([*command.split()[1:], "--yes"]) == 0
    assert "beyond this record" not in capsys.readouterr().err
    shop.count(20)


@pytest.mark.long
@BOTH
def test_consent_goes_on_from_the_other_consumers_offset(shop: Shop, guarantee: Any) -> None:
    skipped_by_a_consumer(shop)
    shop.feed(1)
    shop.count(11, guarantee=guarantee, accept_foreign_offsets=True)
    (one,) = read_accepted(shop.root / "state" / shop.name)
    assert (one.changelog, one.begin, one.end) == (str(shop.source), 10, 20)
    shop.feed(1)
    shop.count(12, guarantee=guarantee)  # without consent: the commit is ours again


@pytest.mark.long
def test_worker_processes_end_with_the_refusal_and_go_on_with_consent(shop: Shop, tmp_path: Path) -> None:
    skipped_by_a_consumer(shop)
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\nimport standfast as sf\n"
        f"app = sf.App({shop.name!r}, log={shop.address!r}, state_dir={shop.state!r}, lease_ms=1_000,\n"
        "             stores=[sf.KeyValueStore('counts', sf.serde.string, sf.serde.int64)],\n"
        "             accept_foreign_offsets=sys.argv[1] == 'accept')\n"
        f"stream = app.stream({shop.source.topic!r}, key=sf.serde.string, value=sf.serde.string)\n"
        "stream.group_by_key().count('counts')\n"
        "app.run(workers=2)\n"
    )
    ran = subprocess.run(
        [sys.executable, program, "refuse"], cwd=tmp_path, capture_output=True, text=True, timeout=90, check=False
    )
    assert ran.returncode == 1
    assert "StateLost" in ran.stderr
    assert f"{shop.source}: 20, own record 10" in ran.stderr
    accepting = subprocess.Popen([sys.executable, program, "accept"], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: shop.committed().metadata or accepting.poll() is not None, 90)
    finally:
        accepting.terminate()
        _, complaints = accepting.communicate(timeout=60)
    assert accepting.returncode == 0, complaints
    assert shop.committed().metadata != ""
    assert shop.committed().offset == 20


# -- live consumers ---------------------------------------------------------------------------------------------------


def test_live_consumer_in_the_group_of_an_application_is_refused_at_the_start(shop: Shop) -> None:
    shop.feed(3)
    with shop.consumer():
        with pytest.raises(Held, match=rf"group '{shop.name}'.*strange at 127\.0\.0\.1.*group\.id of its own"):
            shop.app().run()
        assert not (shop.root / "state" / shop.name).exists()
        with sf.Session(  # whose consumer it may be
            shop.name, log=shop.address, state_dir=shop.root / "s", partitions=1,
            stores=[sf.KeyValueStore("counts", TEXT, INT)],
        ) as session:  # fmt: skip
            session.assign(active=[0])
    shop.count(3, "other", accept_foreign_offsets=True)


def test_live_consumer_is_warned_of_once_a_minute(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    watch = GroupConsumers(shop.log.admin, shop.name, clock)
    watch.refuse()
    with shop.consumer():
        for _ in range(5):
            clock.advance(LOOK_MS // 2)
            watch.poll()
        warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
        assert len(warnings) == 2
        assert "strange at 127.0.0.1" in warnings[0].getMessage()
    clock.advance(LOOK_MS)
    watch.poll()
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 2


def test_running_application_warns_of_a_live_consumer(
    shop: Shop, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("standfast.stream.runtime.group_consumers.LOOK_MS", 200)
    shop.feed(3)
    app = shop.app()
    app.open()
    thread = threading.Thread(target=app.run)
    thread.start()
    try:
        with shop.consumer():
            deadline = time.monotonic() + WAIT_S
            while "has a live consumer of another program" not in caplog.text:
                assert time.monotonic() < deadline
                assert thread.is_alive()
                time.sleep(0.05)
    finally:
        app.stop()
        thread.join()


@pytest.mark.long
def test_group_that_the_user_may_not_describe_counts_as_unknown(kafka_files: None, tmp_path: Path) -> None:
    with secured_broker(tmp_path) as secured:
        user = secured.new_user()
        secured.root.admin.create_topic("in", 1, TopicPolicy())
        open_address = secured.root.address.removeprefix("kafka://")
        consumer = Consumer({"bootstrap.servers": open_address, "group.id": "app", "client.id": "strange"})
        consumer.subscribe(["in"])
        deadline = time.monotonic() + WAIT_S
        while not consumer.assignment():
            assert time.monotonic() < deadline
            consumer.poll(0.1)
        with closing(KafkaLog(secured.login(user))) as log:
            GroupConsumers(log.admin, "app", ManualClock()).refuse()
            secured.allow(user, [Need(GROUP, "app", "READ")])  # as every application has it: DESCRIBE comes with it
            with pytest.raises(Held, match="strange"):
                GroupConsumers(log.admin, "app", ManualClock()).refuse()
        consumer.close()


# -- migrations, and Kafka's tools ------------------------------------------------------------------------------------


def streams_text() -> str:
    """Text as Kafka Streams commits it: base64 of a version and the partition time."""
    return "AgAAAYGXr0UbAAAAAA=="


def written_by_kafka_streams(shop: Shop, rows: int, offset: int, *, create: bool = True) -> None:
    """A changelog and a commit as Kafka Streams leaves them: a timestamped store of counts."""
    changelog = TopicPartition(f"{shop.name}-counts-changelog", 0)
    if create:
        shop.log.admin.create_topic(changelog.topic, 1, TopicPolicy(frozenset({"compact"})))
    with closing(shop.log.producer()) as producer:
        producer.append({changelog: [Outgoing(b"k", rows.to_bytes(8, "big"), 1)]})
    consumer = Consumer({"bootstrap.servers": shop.broker, "group.id": shop.name, "enable.auto.commit": False})
    at = KafkaPartition(shop.source.topic, 0, offset, metadata=streams_text())
    consumer.commit(offsets=[at], asynchronous=False)
    consumer.close()


@BOTH
def test_page_moves_from_kafka_streams_with_its_offsets_into_an_empty_directory(
    shop: Shop, guarantee: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    shop.feed(10)
    written_by_kafka_streams(shop, 7, 7)
    shop.count(10, guarantee=guarantee)
    assert f"begins {shop.source} at offset 7, which another client of group {shop.name!r} committed" in caplog.text
    shop.feed(1)
    shop.count(11, guarantee=guarantee)


@pytest.mark.long
def test_page_moves_back_and_forth_with_an_empty_directory_each_time(shop: Shop) -> None:
    shop.feed(10)
    shop.count(10)
    shop.feed(5)
    written_by_kafka_streams(shop, 15, 15, create=False)  # it has gone on, from the group's offsets
    shop.feed(2)
    with pytest.raises(sf.StateLost, match=f"{shop.source}: 15, own record 10"):
        shop.app().run()
    shop.count(17, "empty")


def test_offsets_set_by_kafkas_tools_before_the_first_start_are_followed(shop: Shop) -> None:
    shop.feed(10)
    shop.set_offset(6)
    shop.count(4)


@pytest.mark.long
def test_offsets_set_by_kafkas_tools_later_need_consent_or_our_own_command(shop: Shop) -> None:
    shop.feed(10)
    shop.count(10)
    shop.set_offset(8)
    with pytest.raises(sf.StateLost, match="own record 10"):
        shop.app().run()
    shop.count(12, accept_foreign_offsets=True)
    shop.set_offset(10)  # where it stands: no question
    shop.count(12)
    assert shop.reset("--state-dir", shop.state) == 0
    assert shop.committed().metadata.startswith('{"standfast":1')
    shop.count(10)


@pytest.mark.long
@pytest.mark.parametrize("page", ["faust", "quix"])
def test_page_imports_rows_with_the_old_groups_offsets_and_the_application_goes_on(shop: Shop, page: str) -> None:
    """As the program of docs/migrate/faust.md, which that of Quix names: a session commits rows and offsets."""
    shop.feed(10)
    old = f"{page}-{shop.name}"
    with closing(shop.log.group(old)) as group:
        group.commit({shop.source: Committed(6)})
    stores = [sf.KeyValueStore("counts", TEXT, INT)]
    with sf.Session(
        shop.name, log=shop.address, state_dir=shop.root / "import", stores=stores, partitions=1
    ) as session:
        session.assign(active=[0])
        session.wait_ready(60)
        task = session.task(0)
        task.store("counts").put(json.loads('"k"'), 6)
        task.commit()
        task.commit(source_offsets={(shop.source.topic, 0): 6})
    shop.count(10, "fresh")
    shop.feed(1)
    shop.count(11, "import")


def test_page_imports_again_after_offsets_were_set_in_the_new_group_by_kafkas_tools(shop: Shop) -> None:
    shop.feed(10)
    shop.set_offset(6)
    stores = [sf.KeyValueStore("counts", TEXT, INT)]
    for _ in range(2):  # a run that was cut short is repeated
        with sf.Session(
            shop.name, log=shop.address, state_dir=shop.root / "import", stores=stores, partitions=1
        ) as session:
            session.assign(active=[0])
            session.wait_ready(60)
            session.task(0).store("counts").put("k", 6)
            session.task(0).commit(source_offsets={(shop.source.topic, 0): 6})
    shop.count(10, "import")
