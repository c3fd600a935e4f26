"""Changelogs on a real Kafka broker as tables of Spark, read by our own readers: no connector, no jar.

Rules of this file: the broker is the one that all tests share; each test has topics of its own.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.errors import PySparkException
from system.spark.test_spark_data_source import table, tuples
from system.spark.test_spark_data_source_write import write

import standfast as sf
from standfast.replication.kafka.log import KafkaLog
from standfast.replication.log import Outgoing, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.restore.files.manifest_files import read_manifest
from standfast.restore.verify.import_tasks import import_tasks
from standfast.store.specs import KeyValueStore
from support.java import WAIT_S

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

SPEC = KeyValueStore("kv", sf.serde.string, sf.serde.int64)
TEXT = {"keySerde": "string", "valueSerde": "int64"}


@pytest.fixture
def log(kafka_log: KafkaLog) -> KafkaLog:
    return kafka_log


@pytest.fixture
def app(log: KafkaLog) -> str:
    """An application with a changelog of three partitions; the last stays empty."""
    name = f"table-{uuid.uuid4().hex[:8]}"
    topic = SPEC.changelog_of(name)
    log.admin.create_topic(topic, 3, TopicPolicy(frozenset({"compact"})))
    return name


def raw(number: int | None) -> bytes | None:
    return None if number is None else sf.serde.int64.serialize(number)


@pytest.mark.long
def test_changelog_and_changes_hold_what_was_committed(spark: Any, log: KafkaLog, app: str) -> None:
    topic = SPEC.changelog_of(app)
    at = TopicPartition(topic, 0)
    writer = log.writer(f"{app}-0", group=app, owner="test")
    writer.transact({at: [Outgoing(b"a", raw(1), 1), Outgoing(b"b", raw(2), 2)]})
    aborted = Producer({"bootstrap.servers": log.address.removeprefix("kafka://"), "transactional.id": f"{app}-x"})
    aborted.init_transactions(WAIT_S)
    aborted.begin_transaction()
    aborted.produce(topic, raw(99), b"a", partition=0)
    aborted.flush()
    aborted.abort_transaction(WAIT_S)
    middle = writer.transact({at: [Outgoing(b"a", raw(3), 3)], TopicPartition(topic, 1): [Outgoing(b"z", raw(9), 9)]})
    writer.transact({at: [Outgoing(b"b", None, 4), Outgoing(b"c", raw(5), 5)]})
    writer.close()
    where: dict[str, Any] = {"log": log.address, "app": app, "storeName": "kv", **TEXT}
    frame = table(spark, kind="changelog", **where)
    assert frame.rdd.getNumPartitions() == 2  # the third is empty
    records = {("a", 1, 1), ("b", 2, 2), ("a", 3, 3), ("z", 9, 9), ("b", None, 4), ("c", 5, 5)}
    assert tuples(frame, "key", "value", "timestamp") == records
    changes = table(
        spark, kind="changes", **where, startOffsets=f'{{"0": {middle[at]}}}', partitions="0", oldValues=True
    )
    # Markers of transactions leave gaps as a removed record does, so it is unknown whether c is new.
    assert tuples(changes, "key", "change", "value", "old_value", "old_timestamp") == {
        ("b", "deleted", None, 2, 2),
        ("c", "written", 5, None, None),
    }
    with pytest.raises(PySparkException, match=r"has no topic absent"):
        table(spark, kind="changelog", log=log.address, topic="absent").collect()
    with pytest.raises(PySparkException, match=r"cannot be read, the log holds 0 to"):
        table(spark, kind="changelog", **where, endOffsets='{"1": 1000}').collect()


@pytest.mark.long
def test_table_written_at_the_end_of_a_changelog_is_tailed_on_from(
    spark: Any, log: KafkaLog, app: str, tmp_path: Path
) -> None:
    at = TopicPartition(SPEC.changelog_of(app), 0)
    log.producer().append({at: [Outgoing(b"old", raw(1), 1)]})
    frame = spark.sql("SELECT 'k' || id AS key, id AS value, 5L AS timestamp, 0 AS partition FROM range(100)")
    options: dict[str, Any] = {"app": app, "storeName": "kv", "partitionCount": 3, "log": log.address, **TEXT}
    write(spark, frame, tmp_path / "out", **options)
    assert [one.end for one in read_manifest(tmp_path / "out").partitions] == [1, 0, 0]
    import_tasks(tmp_path / "state", [tmp_path / "out"], log=log)
    log.producer().append({at: [Outgoing(b"k7", raw(700), 9)]})
    with sf.Session(
        app, log=log.address, state_dir=tmp_path / "state", stores=[SPEC], partitions=3, background=False
    ) as session:
        session.assign(active=range(3))
        session.wait_ready(WAIT_S)
        store = session.task(0).store("kv")
        assert (store.get("k7"), store.get("k8"), store.get("old")) == (700, 8, None)
