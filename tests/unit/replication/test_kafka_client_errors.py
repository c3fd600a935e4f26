"""Errors that the Kafka client raises beside its own exception become that exception, and the port's in the end.

Rules of this file: real clients without a broker.
"""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from standfast.replication.kafka.consumer import ConsumerSteps, drive
from standfast.replication.kafka.errors import client_errors, error_of, translated
from standfast.replication.offsets import TopicPartition
from standfast.store.errors import InvalidRequest, Unavailable

SETTINGS = {"bootstrap.servers": "127.0.0.1:1", "log_level": "0"}


@pytest.fixture
def closed() -> Consumer:
    consumer = Consumer({**SETTINGS, "group.id": "g"})
    consumer.close()
    return consumer


def test_call_of_a_client_that_was_closed_meanwhile_may_be_tried_again(closed: Consumer) -> None:
    with pytest.raises(KafkaException) as found, client_errors():
        closed.consume(1, 0)
    assert error_of(found.value).code() == KafkaError._FAIL
    assert isinstance(found.value.__cause__, RuntimeError)
    error = translated(found.value, "reading t-0")
    assert isinstance(error, Unavailable)
    assert str(error).startswith("reading t-0: RuntimeError in the client: Consumer closed")


@pytest.mark.parametrize("topic", ["\udcff", "a\0b"])
def test_argument_that_the_client_cannot_take_is_to_be_corrected(topic: str) -> None:
    producer = Producer(SETTINGS)
    with pytest.raises(KafkaException) as found, client_errors():
        producer.produce(topic, b"v")
    assert isinstance(translated(found.value, "writing"), InvalidRequest)


def test_errors_of_the_client_itself_and_those_of_others_pass_the_block() -> None:
    own = KafkaException(KafkaError(KafkaError._TIMED_OUT))
    for error in (own, Unavailable("away"), KeyboardInterrupt(), KeyError("k")):
        with pytest.raises(type(error)) as found, client_errors():
            raise error
        assert found.value is error


def test_error_of_the_client_around_which_a_callback_ran_is_that_error() -> None:
    own = KafkaException(KafkaError(KafkaError._FATAL))
    with pytest.raises(KafkaException) as found, client_errors():
        raise SystemError("returned a result with an exception set") from own
    assert found.value is own


def test_call_of_an_own_consumer_that_was_closed_is_an_error_of_ours(closed: Consumer) -> None:
    with pytest.raises(Unavailable, match="the application's own consumer: RuntimeError in the client"):
        drive(closed, ConsumerSteps(closed).pause([TopicPartition("t", 0)]))
