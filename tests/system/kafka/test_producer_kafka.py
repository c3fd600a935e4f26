"""Records that `app.producer()` and `topic write` write to a real broker."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Message, Producer

import standfast as sf
from standfast.ops.command.command_line import main
from standfast.store.errors import InvalidRequest

pytestmark = [pytest.mark.kafka(2), pytest.mark.slow]
WAIT_S = 30.0
PARTITIONS = 4


@pytest.fixture
def topic(kafka_address: str) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    log = sf.open_log(f"kafka://{kafka_address}")
    log.admin.create_topic(name, PARTITIONS, sf.TopicPolicy(extra={"max.message.bytes": "2000"}))
    log.close()
    return name


def read(kafka_address: str, topic: str, count: int) -> list[Message]:
    """The first records of a topic, as any client gets them."""
    settings = {"bootstrap.servers": kafka_address, "group.id": uuid.uuid4().hex, "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    found: list[Message] = []
    while len(found) < count:
        got = consumer.consume(count, WAIT_S)
        assert got, f"{topic} has {len(found)} records, not {count}"
        found += got
    consumer.close()
    return found


def test_records_stand_where_a_client_of_kafka_puts_them(kafka_address: str, topic: str, tmp_path: Path) -> None:
    app = sf.App("app", log=f"kafka://{kafka_address}", state_dir=tmp_path)
    keys = [f"key-{number}" for number in range(20)]
    with app.producer() as producer:
        for key in keys:
            producer.send(topic, key, {"by": "app"}, 5, (("trace", b"1"), ("none", None)))
    plain = Producer({"bootstrap.servers": kafka_address, "partitioner": "consistent"})
    for key in keys:
        plain.produce(topic, b"{}", key)
    plain.flush(WAIT_S)
    places: dict[bytes, set[int]] = {}
    for message in read(kafka_address, topic, 2 * len(keys)):
        key, value = message.key(), message.value()
        assert isinstance(key, bytes)
        places.setdefault(key, set()).add(message.partition() or 0)
        if value != b"{}":
            assert value == b'{"by":"app"}' and message.timestamp()[1] == 5
            assert message.headers() == [("trace", b"1"), ("none", None)]
    assert len(places) == len(keys) and all(len(found) == 1 for found in places.values())


def test_record_that_the_broker_refuses_is_named_and_later_ones_are_written(
    kafka_address: str, topic: str, tmp_path: Path
) -> None:
    app = sf.App("app", log=f"kafka://{kafka_address}", state_dir=tmp_path)
    with app.producer() as producer:
        producer.send(topic, "k", "x" * 3_000)
        with pytest.raises(InvalidRequest, match="the batch of 1 records is given up"):
            producer.flush()
        producer.send(topic, "k", "later")
    assert [message.value() for message in read(kafka_address, topic, 1)] == [b'"later"']


def test_command_writes_lines_to_a_broker(
    kafka_address: str, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "lines"
    rows = [{"key": str(number), "value": number, "headers": {"n": str(number)}} for number in range(50)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    assert main(["topic", "write", topic, str(file), "--log", f"kafka://{kafka_address}"]) == 0
    assert capsys.readouterr().out == f"50 records written to {topic}\n"
    found = {message.key(): message.value() for message in read(kafka_address, topic, 50)}
    assert found == {str(number).encode(): str(number).encode() for number in range(50)}


def test_refusal_of_the_broker_is_not_blamed_on_the_line_that_was_being_read(
    kafka_address: str, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "lines"
    rows = [{"value": "x" * 3_000}, *({"value": "y" * 1_000} for _ in range(1_200))]  # more than a batch
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    assert main(["topic", "write", topic, str(file), "--log", f"kafka://{kafka_address}"]) == 2
    told = capsys.readouterr().err
    assert "records is given up" in told and ", line" not in told
