"""What all parts of a Kafka log share: clients made of the log's settings, topics as they are now, bounds.

    KafkaAddress ── consumer()   read committed, from explicit positions, never joins a group
                 ── producer()   acks from all replicas, idempotent
                 ── admin        one for the log; used by several threads

Rules of this file: every wait has a bound (`timeout.ms` of the address) and ends as Unavailable that names the
address and the client's last complaint; a refused login is BadConfig. Clients complain through callbacks that are
kept here, so that nothing is printed. It must not know of records.
"""

from __future__ import annotations

import difflib
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
)
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka import admin as _admin
from confluent_kafka.admin import AdminClient

from standfast.replication.kafka_address import KafkaAddress, options_of
from standfast.replication.kafka_errors import AUTHENTICATION, PASSING, UNKNOWN_TOPIC, bad_setting, error_of, translated
from standfast.replication.offsets import Bounds, TopicPartition
from standfast.store.clock import SystemClock
from standfast.store.errors import Unavailable, UnknownStore
from standfast.store.log import logger

Result = TypeVar("Result")
_api: Any = _admin  # its names are public by its manual, but not to type checkers

RETRY_MS = 20
INTERNAL = "__"  # Kafka's own topics
_NAMED_MAX = 8
_NO_ANSWER = frozenset({KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN})

# Measured: the default back-off of a full queue stalls a fast reader for a second at a time.
_CONSUMER = {
    "isolation.level": "read_committed",
    "auto.offset.reset": "error",
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    "enable.partition.eof": "true",
    "allow.auto.create.topics": "false",
    "fetch.queue.backoff.ms": "1",
    "fetch.wait.max.ms": "10",
    "fetch.error.backoff.ms": "100",
    "queued.max.messages.kbytes": "262144",
    "queued.min.messages": "2000000",
    "fetch.max.bytes": "52428800",
    "max.partition.fetch.bytes": "8388608",
}
_PRODUCER = {
    "enable.idempotence": "true",
    "acks": "all",
    "linger.ms": "0",
    "queue.buffering.max.messages": "1000000",
    "message.max.bytes": str(64 << 20),  # the topic's own limit decides
}
# A committed transaction ends in the background; until then the next one is put off by `retry.backoff.ms`.
_COMMON = {
    "retry.backoff.ms": "2",
    "reconnect.backoff.max.ms": "1000",  # a broker that is back is found again within a second
    "enable.metrics.push": "false",
    "client.id": "standfast",
}


class Cluster:
    """Makes clients, and answers what exists. May be used by several threads."""

    def __init__(self, address: KafkaAddress) -> None:
        """Connect. Raises BadConfig for settings or a login that are refused, Unavailable if nothing answers."""
        self.where = str(KafkaAddress(address.servers))
        self.timeout_s = address.timeout_ms / 1_000
        self.timeout_ms = address.timeout_ms
        self._options = {**_COMMON, **address.options}
        self._options |= {"bootstrap.servers": address.servers, **address.read_secrets()}
        self._options.setdefault("socket.timeout.ms", str(max(address.timeout_ms, 1_000)))
        self._options.setdefault("socket.connection.setup.timeout.ms", str(max(address.timeout_ms, 1_000)))
        self._clock = SystemClock()  # for waiting
        self._mutex = threading.Lock()
        self._complaint: KafkaError | None = None
        self.admin: AdminClient = self._make(AdminClient, options_of(self._options))
        self._check_settings()
        self.run("connecting", lambda: self.admin.list_topics(topic=INTERNAL, timeout=self.timeout_s))

    # -- clients ------------------------------------------------------------------------------------------------------

    def consumer(self, group: str | None = None, **settings: str) -> Consumer:
        """A consumer that never joins; `settings` are given with _ for the dots."""
        options = _CONSUMER | options_of(self._options, consumer=True)
        if group is not None:
            options["group.id"] = group
        options.setdefault("group.id", "standfast")
        return self._make(Consumer, options | _dotted(settings))

    def producer(self, **settings: str) -> Producer:
        """A producer; `settings` are given with _ for the dots."""
        options = _PRODUCER | options_of(self._options, producer=True)
        if "delivery.timeout.ms" not in options:
            options.setdefault("message.timeout.ms", str(self.timeout_ms))
        return self._make(Producer, options | _dotted(settings))

    def _make(self, kind: Callable[..., Result], options: Mapping[str, str]) -> Result:
        try:
            return kind({**options, "error_cb": self._note, "logger": logger})
        except (KafkaException, TypeError, ValueError) as error:
            raise bad_setting(error, self.where) from error

    def _check_settings(self) -> None:
        # A setting that only one kind of client knows would else be refused in the middle of the work.
        consumer = self.consumer()
        consumer.close()
        producer = self.producer(transactional_id="standfast", transaction_timeout_ms=str(self.transaction_ms))
        del producer

    @property
    def transaction_ms(self) -> int:
        """How long the broker lets a transaction of a killed writer hold readers back."""
        return int(self._options.get("transaction.timeout.ms", "10000"))

    def _note(self, error: KafkaError) -> None:
        with self._mutex:
            if self._complaint is None or self._complaint.code() not in AUTHENTICATION:
                self._complaint = error

    # -- waiting and errors -------------------------------------------------------------------------------------------

    def run(self, what: str, call: Callable[[], Result]) -> Result:
        """Call the client and turn its errors into the port's; `what` says what was tried."""
        try:
            return call()
        except KafkaException as error:
            raise self.translate(error, what) from error

    def patiently(self, what: str, call: Callable[[], Result]) -> Result:
        """The same for a call that a broker which is taking over refuses for a moment."""
        deadline_ms = self._clock.monotonic_ms() + self.timeout_ms
        while True:
            try:
                return call()
            except KafkaException as error:
                if error_of(error).code() not in PASSING or self._clock.monotonic_ms() > deadline_ms:
                    raise self.translate(error, what) from error
            self._clock.sleep_ms(RETRY_MS)

    def wait(self, what: str, future: Future[Result]) -> Result:
        """The result of an answer that is under way."""
        return self.run(what, lambda: future.result(self.timeout_s + 5))

    def translate(self, error: KafkaException | KafkaError, what: str) -> Exception:
        """The port's error, with the client's last complaint where nothing answered."""
        found = error_of(error)
        if found.code() not in _NO_ANSWER:
            return translated(error, f"{self.where}: {what}")
        self.admin.poll(0)  # complaints come by callback
        with self._mutex:
            complaint, self._complaint = self._complaint, None
        if complaint is not None and complaint.code() in AUTHENTICATION:
            return translated(complaint, f"{self.where}: {what}")
        said = f" ({complaint.str()})" if complaint is not None else ""
        return Unavailable(f"{self.where}: {what}: no answer within {self.timeout_ms} ms{said}: try again")

    # -- topics -------------------------------------------------------------------------------------------------------

    def describe(self, names: Iterable[str]) -> dict[str, Any | None]:
        """Topics by name; None for one that does not exist."""
        wanted = sorted(set(names))
        found: dict[str, Any | None] = {}
        for name, future in self.describe_later(wanted).items():
            try:
                found[name] = future.result(self.timeout_s + 5)
            except KafkaException as error:
                if error_of(error).code() not in UNKNOWN_TOPIC:
                    raise self.translate(error, f"describing topic {name!r}") from error
                found[name] = None
        return found

    def describe_later(self, names: Iterable[str]) -> dict[str, Future[Any]]:
        """The same without waiting: futures by name."""
        wanted = sorted(set(names))
        if not wanted:
            return {}
        answer: dict[str, Future[Any]] = self.admin.describe_topics(
            TopicCollection(wanted), request_timeout=self.timeout_s
        )
        return answer

    def names(self) -> list[str]:
        """All topics but Kafka's own."""
        found = self.run("listing topics", lambda: self.admin.list_topics(timeout=self.timeout_s))
        return sorted(name for name in found.topics if not name.startswith(INTERNAL))

    def check(self, partitions: Iterable[TopicPartition]) -> dict[str, Any]:
        """The topics of these partitions. Raises UnknownStore naming what exists."""
        wanted = [TopicPartition(*source) for source in partitions]
        described = self.describe({source.topic for source in wanted})
        found: dict[str, Any] = {}
        for topic, number in wanted:
            description = described[topic]
            if description is None:
                raise self.unknown(topic)
            if not 0 <= number < len(description.partitions):
                raise UnknownStore(
                    f"topic {topic!r} has no partition {number}, only 0 to {len(description.partitions) - 1}"
                )
            found[topic] = description
        return found

    def unknown(self, topic: str) -> UnknownStore:
        """The error for a topic that does not exist."""
        names = self.names()
        if not names:
            return UnknownStore(f"there is no topic {topic!r}, {self.where} has no topics yet: create it first")
        near = difflib.get_close_matches(str(topic), names, 1)
        shown = ", ".join(names[:_NAMED_MAX]) + (f" and {len(names) - _NAMED_MAX} more" if names[_NAMED_MAX:] else "")
        hint = f", did you mean {near[0]!r}?" if near else "."
        return UnknownStore(f"there is no topic {topic!r}{hint} {self.where} has: {shown}")

    def bounds(self, partitions: Iterable[TopicPartition], *, committed: bool = True) -> dict[TopicPartition, Bounds]:
        """Begin, and the last stable offset (`committed`) or the end of all that was written."""
        wanted = [TopicPartition(*source) for source in partitions]
        if not wanted:
            return {}
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        self.check(wanted)
        # Begin first: it may only grow.
        begins = self._offsets(wanted, _api.OffsetSpec.earliest(), level)
        ends = self._offsets(wanted, _api.OffsetSpec.latest(), level)
        return {source: Bounds(begins[source], max(ends[source], begins[source])) for source in wanted}

    def _offsets(self, wanted: Iterable[TopicPartition], spec: Any, level: IsolationLevel) -> dict[TopicPartition, int]:
        asked = {KafkaPartition(*source): spec for source in wanted}
        found: dict[TopicPartition, int] = {}
        deadline_ms = self._clock.monotonic_ms() + self.timeout_ms
        while asked:
            answer: dict[KafkaPartition, Future[Any]] = self.admin.list_offsets(
                asked, isolation_level=level, request_timeout=self.timeout_s
            )
            asked = {}
            for at, future in answer.items():
                source = TopicPartition(at.topic, at.partition)
                try:
                    found[source] = future.result(self.timeout_s + 5).offset
                except KafkaException as error:
                    if error_of(error).code() not in PASSING or self._clock.monotonic_ms() > deadline_ms:
                        raise self.translate(error, f"offsets of {source}") from error
                    asked[KafkaPartition(*source)] = spec
            if asked:
                self._clock.sleep_ms(RETRY_MS)
        return found


def _dotted(settings: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "."): value for name, value in settings.items()}
