"""Topics of a Kafka log: create, describe, change, grow, delete, delete records. A policy is the topic's own settings.

    cleanup                 cleanup.policy            min_compaction_lag_ms   min.compaction.lag.ms
    retention_ms (-1)       retention.ms (-1)         extra                   every other setting of the topic itself
    delete_retention_ms     delete.retention.ms       replication             -1 to create: the broker's default
    (-1: for ever)          (the largest number)

Rules of this file: calls wait until a creation or deletion is visible, because brokers learn of it one after the
other. Lists leave out Kafka's own topics and the members topics of groups. Several threads may use it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka import admin as _admin
from confluent_kafka.admin import AdminClient

from standfast.replication.checks import check_partitions, check_policy
from standfast.replication.kafka.bounds import bounds_of, first_offsets
from standfast.replication.kafka.cluster import Cluster
from standfast.replication.kafka.errors import BROKEN, UNKNOWN_TOPIC, error_of
from standfast.replication.kafka.members import MEMBERS_SUFFIX
from standfast.replication.kafka.survey import FOR_EVER_MS, consumer_groups, consumers, survey, surveyed
from standfast.replication.log import LogSurvey, TopicInfo, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.replication.permissions import GROUP, TOPIC, Need
from standfast.replication.topics.settings import (
    CLEANUP,
    DELETE_RETENTION,
    MIN_LAG,
    RETENTION,
    TIMESTAMP_AHEAD,
    changed,
    listed,
)
from standfast.store.clock import SystemClock
from standfast.store.errors import InvalidRequest, Unavailable
from standfast.store.names import check_topic, few
from standfast.store.timestamps import duration_text

_api: Any = _admin  # its manual makes these names public, but type checkers do not see them
POLL_MS = 20


class KafkaAdmin:
    """LogAdmin of a Kafka log."""

    def __init__(self, cluster: Cluster, check_open: Callable[[], None]) -> None:
        self._cluster = cluster
        self._check_open = check_open
        self._clock = SystemClock()

    def create_topic(self, name: str, partitions: int, policy: TopicPolicy) -> TopicInfo:
        """Create a topic; returns an existing one unchanged. Raises InvalidRequest for a bad name or policy."""
        self._check_open()
        check_topic(name)
        settings = _settings(name, partitions, policy)
        existing = self.describe_topic(name)
        if existing is not None:
            return existing
        what = f"creating topic {name!r}"
        try:
            try:
                self._create(name, partitions, settings, what)
            except KafkaException as error:
                if not _is_unknown(TIMESTAMP_AHEAD, error) or TIMESTAMP_AHEAD not in settings:
                    raise
                del settings[TIMESTAMP_AHEAD]  # a broker before Kafka 3.6 has no such limit and takes any timestamp
                self._create(name, partitions, settings, what)
        except KafkaException as error:
            if error_of(error).code() != KafkaError.TOPIC_ALREADY_EXISTS:  # else another client was first
                raise self._cluster.translate(error, what, Need(TOPIC, name, "CREATE")) from error
        self._until(lambda: self._ready(name, 1), f"topic {name!r} was created, but not all brokers know it")
        made = self.describe_topic(name)
        if made is None:
            raise Unavailable(f"{self._cluster.where}: topic {name!r} was deleted as soon as it was made: try again")
        return made

    def _create(self, name: str, partitions: int, settings: dict[str, str], what: str) -> None:
        deadline_ms = self._clock.monotonic_ms() + self._cluster.timeout_ms
        while True:
            try:
                self._create_once(name, partitions, settings, what)
            except KafkaException as error:
                if error_of(error).code() not in BROKEN or self._clock.monotonic_ms() >= deadline_ms:
                    raise
            else:
                return
            # The connection broke, so the brokers may have made it: look first. A second request harms nothing: it
            # makes the same topic, or finds it there. Other changes are not repeated: since the first request another
            # client may have made a topic of this name, changed the same setting, or joined the group.
            self._clock.sleep_ms(POLL_MS)
            if self.describe_topic(name) is not None:
                return

    def _create_once(self, name: str, partitions: int, settings: dict[str, str], what: str) -> None:
        new = _api.NewTopic(name, num_partitions=partitions, replication_factor=-1, config=settings)
        answer: dict[str, Future[None]] = self._cluster.run(
            what, lambda: self._cluster.admin.create_topics([new], request_timeout=self._cluster.timeout_s)
        )
        self._cluster.answer(answer[name])

    def describe_topic(self, name: str) -> TopicInfo | None:
        """The topic of this name, None if there is none."""
        self._check_open()
        return next(iter(self._infos([name])), None)

    def topics(self) -> list[TopicInfo]:
        """All topics by name."""
        self._check_open()
        return self._infos(self.topic_names())

    def topic_names(self) -> list[str]:
        """Names of all topics except Kafka's own and the members topics of our groups, in order."""
        self._check_open()
        return [name for name in self._cluster.names() if not name.endswith(MEMBERS_SUFFIX)]

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its records; the broker removes the offsets that groups committed for it."""
        self._check_open()
        check_topic(name)
        if self._cluster.describe([name])[name] is None:
            raise self._cluster.unknown(name)
        self._cluster.forget(name)
        what = f"deleting topic {name!r}"
        answer: dict[str, Future[None]] = self._cluster.run(
            what, lambda: self._cluster.admin.delete_topics([name], request_timeout=self._cluster.timeout_s)
        )
        try:
            self._cluster.answer(answer[name])
        except KafkaException as error:
            if error_of(error).code() not in UNKNOWN_TOPIC:
                raise self._cluster.translate(error, what, Need(TOPIC, name, "DELETE")) from error
        self._until(
            lambda: self._cluster.describe([name])[name] is None, f"topic {name!r} was deleted, but is still there"
        )

    def add_partitions(self, name: str, partitions: int) -> TopicInfo:
        """Grow a topic to that many partitions, and wait until each has a leader.

        Raises UnknownStore, InvalidRequest for fewer than it has.
        """
        self._check_open()
        check_topic(name)
        check_partitions(name, partitions)
        found = self._existing(name)
        if partitions < found.partitions:
            raise InvalidRequest(
                f"topic {name!r} has {found.partitions} partitions and cannot have {partitions}: "
                "Kafka never removes partitions"
            )
        if partitions > found.partitions:
            what = f"adding partitions to topic {name!r}"
            asked = [_api.NewPartitions(name, partitions)]
            answer: dict[str, Future[None]] = self._cluster.run(
                what, lambda: self._cluster.admin.create_partitions(asked, request_timeout=self._cluster.timeout_s)
            )
            try:
                self._cluster.answer(answer[name])
            except KafkaException as error:
                if self._existing(name).partitions < partitions:  # else another client was first
                    raise self._cluster.translate(error, what, Need(TOPIC, name, "ALTER")) from error
        self._until(lambda: self._ready(name, partitions), f"topic {name!r} got partitions, but not all have a leader")
        return self._existing(name)

    def change_topic(self, name: str, settings: Mapping[str, str]) -> TopicInfo:
        """Change settings by name, and wait until the brokers describe them so; the others stay.

        Raises UnknownStore, InvalidRequest for a value that the broker refuses.
        """
        self._check_open()
        check_topic(name)
        before = self._existing(name).policy
        wanted = changed(before, settings)
        operations = [
            _api.ConfigEntry(setting, value, incremental_operation=_api.AlterConfigOpType.SET)
            for setting, value in settings.items()
        ]
        if operations:
            resource = _api.ConfigResource(_api.ResourceType.TOPIC, name, incremental_configs=operations)
            what = f"changing topic {name!r}"
            answer: dict[Any, Future[None]] = self._cluster.run(
                what,
                lambda: self._cluster.admin.incremental_alter_configs(
                    [resource], request_timeout=self._cluster.timeout_s
                ),
            )
            for future in answer.values():
                self._cluster.wait(what, future, Need(TOPIC, name, "ALTER_CONFIGS"))
            # The controller has answered; the broker that answers the next question learns of it a moment later.
            self._until(lambda: wanted == before or self._existing(name).policy != before, f"{what} shows no effect")
        return self._existing(name)

    def survey(self, names: Iterable[str]) -> LogSurvey:
        """Brokers, their settings, and topics with all settings in force for them."""
        self._check_open()
        return survey(self._cluster, names)

    def groups(self) -> list[str]:
        """Names of the groups that committed offsets or have members."""
        self._check_open()
        # A group that has not committed yet has no offsets at the brokers, only its members topic.
        named = [name.removesuffix(MEMBERS_SUFFIX) for name in self._cluster.names() if name.endswith(MEMBERS_SUFFIX)]
        return sorted({*consumer_groups(self._cluster), *named})

    def consumers(self, group: str) -> tuple[str, ...]:
        """Live consumers of the group: members by Kafka's own protocol."""
        self._check_open()
        return consumers(self._cluster, group)

    def delete_group(self, name: str) -> None:
        """Delete a group with its offsets; no error for an absent one. Raises InvalidRequest while it has consumers."""
        self._check_open()
        what = f"deleting group {name!r}"
        answer: dict[str, Future[None]] = self._cluster.run(
            what, lambda: self._cluster.admin.delete_consumer_groups([name], request_timeout=self._cluster.timeout_s)
        )
        try:
            self._cluster.answer(answer[name])
        except KafkaException as error:
            code = error_of(error).code()
            if code == KafkaError.NON_EMPTY_GROUP:
                raise InvalidRequest(
                    f"{self._cluster.where}: group {name!r} has live consumers: stop them first"
                ) from error
            if code != KafkaError.GROUP_ID_NOT_FOUND:
                raise self._cluster.translate(error, what, Need(GROUP, name, "DELETE")) from error

    def first_offsets(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """First offset at or after a timestamp, the end if there is none. Raises UnknownStore."""
        self._check_open()
        return first_offsets(self._cluster, times_ms)

    def delete_records(self, before: Mapping[TopicPartition, int]) -> None:
        """Remove records below these offsets. Raises InvalidRequest for one past the end, or a compacted topic."""
        self._check_open()
        wanted = {TopicPartition(*source): offset for source, offset in before.items()}
        if not wanted:
            return
        bounds = bounds_of(self._cluster, wanted, committed=False, operation="DELETE")
        for source, offset in wanted.items():
            if not isinstance(offset, int) or not 0 <= offset <= bounds[source].end:
                raise InvalidRequest(
                    f"{source} cannot be truncated before {offset!r}: it holds {bounds[source].begin} to "
                    f"{bounds[source].end}"
                )
        client = self._knowing_leaders(wanted)
        asked = [KafkaPartition(*source, offset) for source, offset in wanted.items()]
        answer: dict[Any, Future[Any]] = self._cluster.run(
            "deleting records", lambda: client.delete_records(asked, request_timeout=self._cluster.timeout_s)
        )
        for at, future in answer.items():
            source = TopicPartition(at.topic, at.partition)
            what = f"deleting records of {source} before {wanted[source]}"
            self._cluster.wait(what, future, Need(TOPIC, at.topic, "DELETE"))

    def _knowing_leaders(self, wanted: Collection[TopicPartition]) -> AdminClient:
        """The admin client, just after it has learned the leader of each of these partitions.

        For `delete_records`, which nothing else may call. Read in librdkafka 2.15, met with 2.16: with a leader that is
        not in its cache, the client looks for leaders in the calling thread, but as soon as any metadata arrive also in
        its own thread, which then frees the memory of both, and the process ends (SIGSEGV). With all leaders in the
        cache that code does not run.
        """
        deadline_ms = self._clock.monotonic_ms() + self._cluster.timeout_ms
        while True:
            client = self._cluster.admin
            described = self._cluster.check(wanted, "DELETE")
            lacking = [source for source in wanted if source.partition not in _led(described[source.topic])]
            if not lacking and client is self._cluster.admin:  # else renewed meanwhile: the new one knows no leader
                return client
            if self._clock.monotonic_ms() >= deadline_ms:
                unled = few(lacking) or "the partitions"
                raise Unavailable(f"{self._cluster.where}: deleting records: {unled} have no leader now: try again")
            self._clock.sleep_ms(POLL_MS)

    def lacking(self, needs: Iterable[Need]) -> list[str]:
        """See LogAdmin."""
        self._check_open()
        return self._cluster.lacking(needs)

    def _existing(self, name: str) -> TopicInfo:
        found = self.describe_topic(name)
        if found is None:
            raise self._cluster.unknown(name)
        return found

    def _ready(self, name: str, partitions: int) -> bool:
        description = self._cluster.describe([name])[name]
        if description is None:
            return False
        return len(_led(description)) == len(description.partitions) >= partitions

    def _until(self, reached: Callable[[], bool], otherwise: str) -> None:
        deadline_ms = self._clock.monotonic_ms() + self._cluster.timeout_ms
        while not reached():
            if self._clock.monotonic_ms() >= deadline_ms:
                raise Unavailable(
                    f"{self._cluster.where}: {otherwise} after {duration_text(self._cluster.timeout_ms)}: try again"
                )
            self._clock.sleep_ms(POLL_MS)

    def _infos(self, names: Iterable[str]) -> list[TopicInfo]:
        return [one.info for one in surveyed(self._cluster, names).values()]


def _led(description: Any) -> set[int]:
    """Numbers of the partitions with a leader."""
    return {one.id for one in description.partitions if one.leader is not None and one.leader.id >= 0}


def _is_unknown(setting: str, error: KafkaException) -> bool:
    """Whether the broker's error says that it does not know this topic setting."""
    said = error_of(error)
    return bool(said.code() == KafkaError.INVALID_CONFIG and f"Unknown topic config name: {setting}" in str(said.str()))


def _settings(name: str, partitions: int, policy: TopicPolicy) -> dict[str, str]:
    """The topic's settings for a policy. Raises InvalidRequest for a bad one."""
    check_partitions(name, partitions)
    check_policy(name, policy)
    kept_ms = policy.delete_retention_ms if policy.delete_retention_ms >= 0 else FOR_EVER_MS
    return {
        **policy.extra,
        CLEANUP: listed(policy.cleanup),
        RETENTION: str(policy.retention_ms),
        DELETE_RETENTION: str(kept_ms),
        MIN_LAG: str(policy.min_compaction_lag_ms),
    }
