"""Where a Kafka writer gives its records: one client, behind one small interface.

    NativeProducer    native_producer.py: our own compiled client; columns go to librdkafka without the interpreter
    PythonProducer    the client of confluent_kafka, everywhere and for every setting

    init_transactions ──> begin ──> offsets ──> produce, ... ──> flush ──> delivered ──> commit | abort

Both take the same records and give the same offsets and errors; the contract of the log, and the suites of crashes and
of fencing, run on both. `Cluster.producer` chooses, and native_library.py has the reasons against the compiled one.

Rules of this file: it passes calls on and decides nothing about them; the rules of writing are those of writer.py.
Errors are the client's own exceptions, which `Cluster.run` translates.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice, repeat
from typing import Any, NamedTuple, Protocol

from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka import Producer as KafkaProducer

from standfast.replication.kafka.errors import client_errors
from standfast.replication.kafka.records import Columns, kafka_offsets
from standfast.replication.log import Committed
from standfast.replication.offsets import TopicPartition
from standfast.store.clock import SystemClock

TURN_S = 0.05  # a wait for room in the queue looks at its end so often


class Delivered(NamedTuple):
    """The answers for one partition's records since the last look."""

    next_offset: int | None  # after the last acknowledged record; None if there is none
    error: KafkaError | None  # of the first refused record, by a broker if there is one
    size: int  # bytes of that record's key and value


class ProducerClient(Protocol):
    """A client that writes. One thread at a time may use it; `len` is for any thread."""

    def __len__(self) -> int:
        """The number of records without an answer."""
        ...

    def learn(self, topic: str, timeout_s: float) -> None:
        """Ask for a topic's leaders."""
        ...

    def end(self, source: TopicPartition, timeout_s: float) -> int | None:
        """The offset after a partition's last committed record, asked of its leader; None if this client cannot ask."""
        ...

    def init_transactions(self, timeout_s: float) -> None:
        """Fence every older producer of the transactional id."""
        ...

    def begin(self) -> None:
        """Begin a transaction."""
        ...

    def offsets(self, offsets: Mapping[TopicPartition, Committed], group: bytes, timeout_s: float) -> None:
        """Offsets of a group into the transaction; `group`: its metadata, see `member_metadata` of group.py."""
        ...

    def produce(self, source: TopicPartition, columns: Columns, start: int, wait_ms: int) -> int:
        """Take the records from `start` on; returns the index of the first one that was not taken.

        A full queue is waited for up to `wait_ms`. A refused record ends the call; it raises KafkaException if that is
        the record at `start`.
        """
        ...

    def flush(self, timeout_s: float) -> None:
        """Wait for the answers to all records. Raises KafkaException with the reason if the client gave up for good."""
        ...

    def poll(self) -> None:
        """Serve callbacks. Raises as `flush`."""
        ...

    def delivered(self) -> Mapping[TopicPartition, Delivered]:
        """The answers for each partition to which records were given since the last look."""
        ...

    def commit(self, timeout_s: float) -> None:
        """Commit the transaction."""
        ...

    def abort(self, timeout_s: float) -> None:
        """Abort the transaction."""
        ...


class PythonProducer:
    """The client of confluent_kafka."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        """Raises KafkaException for a setting that librdkafka refuses."""
        self.client = KafkaProducer(dict(options))  # destroyed by clients.py, once no caller refers to it
        self._clock = SystemClock()
        # `dict.__setitem__` as delivery callback stays in C: a partition's last message is under None, errors are keys.
        self._outcomes: dict[TopicPartition, dict[Any, Message]] = {}

    def __len__(self) -> int:
        return len(self.client)

    def __bool__(self) -> bool:
        return True

    def learn(self, topic: str, timeout_s: float) -> None:
        """See Producer."""
        with client_errors():
            self.client.list_topics(topic, timeout_s)

    def end(self, source: TopicPartition, timeout_s: float) -> int | None:
        """None: the producer of confluent_kafka asks for no offsets."""
        return None

    def init_transactions(self, timeout_s: float) -> None:
        """See Producer."""
        with client_errors():
            self.client.init_transactions(timeout_s)

    def begin(self) -> None:
        """See Producer."""
        with client_errors():
            self.client.begin_transaction()

    def offsets(self, offsets: Mapping[TopicPartition, Committed], group: bytes, timeout_s: float) -> None:
        """See Producer."""
        with client_errors():
            self.client.send_offsets_to_transaction(kafka_offsets(offsets), group, timeout_s)

    def produce(self, source: TopicPartition, columns: Columns, start: int, wait_ms: int) -> int:
        """See Producer."""
        topic, number = source
        told = self._outcomes.setdefault(source, {}).__setitem__
        deadline_ms = self._clock.monotonic_ms() + wait_ms
        at = start
        rows = zip(columns.keys, *columns.plain(), columns.headers or repeat(None), strict=False)
        with client_errors():
            # Arguments by position (callback, its other name, timestamp, headers): keywords cost a third of the call.
            produce: Any = self.client.produce
            for key, value, timestamp, headers in islice(rows, start, None):
                while True:
                    try:
                        if headers:
                            produce(topic, value, key, number, told, None, timestamp, headers)
                        else:
                            produce(topic, value, key, number, told, None, timestamp)
                        break
                    except BufferError:
                        # The client's queue is full until the broker has acknowledged its oldest records.
                        if self._clock.monotonic_ms() >= deadline_ms:
                            return at
                        self.client.poll(TURN_S)
                    except KafkaException:
                        if at > start:
                            return at
                        raise
                at += 1
        return at

    def flush(self, timeout_s: float) -> None:
        """See Producer."""
        with client_errors():
            self.client.flush(timeout_s)

    def poll(self) -> None:
        """See Producer."""
        with client_errors():
            self.client.poll(0)

    def delivered(self) -> Mapping[TopicPartition, Delivered]:
        """See Producer."""
        outcomes, self._outcomes = self._outcomes, {}
        return {source: _answer(outcome) for source, outcome in outcomes.items()}

    def commit(self, timeout_s: float) -> None:
        """See Producer."""
        with client_errors():
            self.client.commit_transaction(timeout_s)

    def abort(self, timeout_s: float) -> None:
        """See Producer."""
        with client_errors():
            self.client.abort_transaction(timeout_s)


def _answer(outcome: Mapping[Any, Message]) -> Delivered:
    # A broker's reason (above 0) counts more than the client's own, which purges records behind a refused one.
    error = max((one for one in outcome if one is not None), key=lambda one: one.code() > 0, default=None)
    size = 0 if error is None else len(outcome[error].key() or b"") + len(outcome[error])
    return Delivered((outcome[None].offset() or 0) + 1 if None in outcome else None, error, size)
