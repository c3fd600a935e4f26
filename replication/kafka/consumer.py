"""The external consumer: settings of the application's own Kafka consumer, and the calls that a session makes on it.

    steps (a generator)  ── yields Call(method, arguments) ──>  drive: the consumer, in the thread that polls it
                         <── result, or error ────────────────

The steps are the same for the blocking client and for the asyncio one, whose methods have the same names; only the
driver differs. The polling thread alone carries them out: the client lets one caller in at a time, and measured with
confluent-kafka 2.16, another thread waits for ever beside a loop that polls all the time.

Rules of this file: settings of a consumer, and its calls; source_gate.py decides which offsets are read, and when. A
consumer does not return its settings, so they are checked where they are made, and the group by its metadata.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from standfast.replication.kafka.address import options_of, parse_kafka_address
from standfast.replication.kafka.callbacks import of_consumer
from standfast.replication.kafka.errors import PERMISSION, client_errors, denied, error_of, translated
from standfast.replication.offsets import TopicPartition
from standfast.replication.permissions import TOPIC, Need
from standfast.store.errors import BadConfig, StandfastError

Result = TypeVar("Result")
OWN_CONSUMER = "a call of the application's own consumer"
NOT_ASSIGNED_YET = frozenset({KafkaError._STATE, KafkaError._UNKNOWN_PARTITION, KafkaError._PREV_IN_PROGRESS})
_METADATA_MAGIC = b"CGMDv2:"
_METADATA_GENERATION_BYTES = 4
_FIXED = {
    "enable.auto.commit": (False, "offsets are committed together with the state, by session.commit()"),
    "isolation.level": ("read_committed", "records of aborted transactions must not be processed"),
}


class Call(NamedTuple):
    """A method of the consumer and its arguments."""

    method: str
    arguments: tuple[Any, ...] = ()


Steps = Generator[Call, Any, Result]


def consumer_settings(
    address: str, group: str, given: Mapping[str, Any], kafka: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Settings of a consumer of `group` on the log at `address`, with the functions of `kafka`, and `given` over them.

    Contains the address's secrets, read from their files: do not print it. Raises BadConfig with every problem.
    """
    where = parse_kafka_address(address)
    problems = []
    for name, (value, why) in _FIXED.items():
        if name in given and str(given[name]).lower() != str(value).lower():
            problems.append(f"consumer setting {name} is {given[name]!r} and must be {value!r}: {why}")
    if given.get("group.id", group) != group:
        problems.append(f"consumer setting group.id is {given['group.id']!r} and must be the application's, {group!r}")
    if problems:
        raise BadConfig(problems)
    settings: dict[str, Any] = {"auto.offset.reset": "earliest"}
    if "group.protocol" not in given:
        # Eager strategies give back all partitions at each rebalance, also those of tasks that stay here.
        settings["partition.assignment.strategy"] = "cooperative-sticky"
    settings |= options_of(where.options, consumer=True)
    settings |= {"bootstrap.servers": where.servers, **where.read_secrets(), **of_consumer(kafka), **given}
    return settings | {"group.id": group, **{name: value for name, (value, _) in _FIXED.items()}}


def is_eager(settings: Mapping[str, Any]) -> bool:
    """Whether a consumer with these settings gives back all its partitions at each rebalance."""
    if str(settings.get("group.protocol", "classic")).lower() == "consumer":
        return False
    strategies = str(settings.get("partition.assignment.strategy", "range,roundrobin")).split(",")
    return not all(one.strip().startswith("cooperative") for one in strategies)


def error_given(message: Any, address: str) -> StandfastError:
    """The port's error for a message that carries an error."""
    found, where = error_of(message.error()), parse_kafka_address(address)
    topic = message.topic()
    what = f"kafka://{where.servers}: reading" + (
        f" {TopicPartition(topic, message.partition() or 0)}" if topic else ""
    )
    if found.code() in PERMISSION and topic:
        return denied(found, what, [Need(TOPIC, topic, "READ")], where)
    return translated(found, what)


def begins_early(settings: Mapping[str, Any]) -> bool:
    """Whether a consumer with these settings reads a partition without committed offset from its beginning."""
    return str(settings.get("auto.offset.reset", "largest")).lower() in ("earliest", "smallest", "beginning")


class ConsumerSteps:
    """Steps for one consumer. `eager`: by its settings, None if they are not known."""

    def __init__(self, consumer: Any, *, eager: bool | None = None) -> None:
        self.consumer = consumer
        self._eager = bool(eager)  # corrected by the first assignment

    def check_group(self, group: str) -> Steps[None]:
        """Raise BadConfig if the consumer is in another group than `group`, for which offsets are committed."""
        metadata = yield Call("consumer_group_metadata")
        if isinstance(metadata, bytes) and metadata.startswith(_METADATA_MAGIC):
            found = metadata[len(_METADATA_MAGIC) + _METADATA_GENERATION_BYTES :].partition(b"\0")[0].decode()
            if found != group:
                raise BadConfig(
                    [
                        f"the consumer is in group {found!r}, but offsets are committed for the application, "
                        f"{group!r}: set group.id to {group!r}, or take session.consumer_settings()"
                    ]
                )

    def assign(self, positions: Mapping[TopicPartition, int | None]) -> Steps[None]:
        """Assign within a rebalance, whole or incremental; None: from the group's committed offset.

        The client does not say which of the two it takes, and logs a warning for the wrong one.
        """
        partitions = [
            KafkaPartition(*at) if offset is None else KafkaPartition(*at, offset) for at, offset in positions.items()
        ]
        first, second = ("assign", "incremental_assign") if self._eager else ("incremental_assign", "assign")
        try:
            yield Call(first, (partitions,))
        except KafkaException as error:
            if error_of(error).code() != KafkaError._STATE:
                raise
            yield Call(second, (partitions,))
            self._eager = not self._eager

    def pause(self, partitions: Iterable[TopicPartition]) -> Steps[None]:
        """Fetch no records of these partitions."""
        yield Call("pause", ([KafkaPartition(*at) for at in partitions],))

    def resume(self, partitions: Iterable[TopicPartition]) -> Steps[None]:
        """Fetch these partitions again."""
        yield Call("resume", ([KafkaPartition(*at) for at in partitions],))

    def seek(self, partition: TopicPartition, offset: int | None) -> Steps[bool]:
        """Go on from `offset`, None: from the beginning, where a consumer of a group without offsets begins.

        Returns False while the consumer has not begun with the partition: call again.
        """
        # librdkafka 2.16 refuses to seek to the group's committed offset, so None is the beginning.
        try:
            yield Call("seek", (KafkaPartition(*partition, OFFSET_BEGINNING if offset is None else offset),))
        except KafkaException as error:
            if error_of(error).code() not in NOT_ASSIGNED_YET:
                raise
            return False
        return True

    def positions(self, partitions: Iterable[TopicPartition]) -> Steps[dict[TopicPartition, int]]:
        """Next offset of each partition; -1 if the consumer returned no record of it since an assignment or seek."""
        found = yield Call("position", ([KafkaPartition(*at) for at in partitions],))
        return {TopicPartition(one.topic, one.partition): max(one.offset, -1) for one in found}


def drive(consumer: Any, steps: Steps[Result]) -> Result:
    """Carry out steps on a blocking consumer."""
    try:
        call = next(steps)
        while True:
            try:
                with client_errors():
                    answer = getattr(consumer, call.method)(*call.arguments)
            except KafkaException as error:
                call = steps.throw(error)
            else:
                call = steps.send(answer)
    except StopIteration as end:
        result: Result = end.value
        return result
    except KafkaException as error:
        raise translated(error, OWN_CONSUMER) from error


Advanced = tuple[bool, Any]


async def drive_async(
    consumer: Any, steps: Steps[Result], in_thread: Callable[[Callable[[], Advanced]], Awaitable[Advanced]]
) -> Result:
    """Carry out steps on an asyncio consumer; code between two calls may block, so it runs `in_thread`."""
    going, found = await in_thread(partial(_advance, partial(next, steps)))
    while going:
        try:
            with client_errors():
                answer = await getattr(consumer, found.method)(*found.arguments)
        except KafkaException as error:
            advance = partial(steps.throw, error)
        else:
            advance = partial(steps.send, answer)
        going, found = await in_thread(partial(_advance, advance))
    result: Result = found
    return result


def _advance(step: Callable[[], Call]) -> Advanced:
    """(True, next call) or (False, result): StopIteration cannot be raised out of a worker thread's future."""
    try:
        return True, step()
    except StopIteration as end:
        return False, end.value
    except KafkaException as error:
        raise translated(error, OWN_CONSUMER) from error
