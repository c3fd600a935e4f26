"""Topics of a Kafka log: create, describe, delete, delete records. A policy is the topic's own settings.

    cleanup                 cleanup.policy            min_compaction_lag_ms   min.compaction.lag.ms
    retention_ms (-1)       retention.ms (-1)         extra                   whatever else was set on the topic
    delete_retention_ms     delete.retention.ms       replication             -1 to create: the broker's default
    (-1: for ever)          (the largest number)

Rules of this file: what is created or deleted is waited for, because brokers learn of it one after the other. Kafka's
own topics and the members topics of groups are not listed. May be used by several threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka import admin as _admin

from standfast.replication.kafka_cluster import Cluster
from standfast.replication.kafka_errors import UNKNOWN_TOPIC, error_of
from standfast.replication.kafka_members import MEMBERS_SUFFIX
from standfast.replication.log import TopicInfo, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.store.clock import SystemClock
from standfast.store.errors import InvalidRequest, Unavailable
from standfast.store.names import check_topic

_api: Any = _admin  # its names are public by its manual, but not to type checkers
PARTITIONS_MAX = 10_000
POLL_MS = 20
FOR_EVER_MS = (1 << 63) - 1
_CLEANUPS = frozenset({"compact", "delete"})
_CLEANUP = "cleanup.policy"
_RETENTION = "retention.ms"
_DELETE_RETENTION = "delete.retention.ms"
_MIN_LAG = "min.compaction.lag.ms"
_MAPPED = frozenset({_CLEANUP, _RETENTION, _DELETE_RETENTION, _MIN_LAG})


class KafkaAdmin:
    """LogAdmin of a Kafka log."""

    def __init__(self, cluster: Cluster, check_open: Callable[[], None]) -> None:
        self._cluster = cluster
        self._check_open = check_open
        self._clock = SystemClock()

    def create_topic(self, name: str, partitions: int, policy: TopicPolicy) -> TopicInfo:
        """Create a topic; one that exists is described, unchanged. Raises InvalidRequest for a bad name or policy."""
        self._check_open()
        check_topic(name)
        settings = _settings(name, partitions, policy)
        existing = self.describe_topic(name)
        if existing is not None:
            return existing
        new = _api.NewTopic(name, num_partitions=partitions, replication_factor=-1, config=settings)
        what = f"creating topic {name!r}"
        answer: dict[str, Future[None]] = self._cluster.run(
            what, lambda: self._cluster.admin.create_topics([new], request_timeout=self._cluster.timeout_s)
        )
        try:
            answer[name].result(self._cluster.timeout_s + 5)
        except KafkaException as error:
            if error_of(error).code() != KafkaError.TOPIC_ALREADY_EXISTS:  # somebody else was first
                raise self._cluster.translate(error, what) from error
        self._until(lambda: self._ready(name, partitions), f"topic {name!r} was created, but not all brokers know it")
        made = self.describe_topic(name)
        if made is None:
            raise Unavailable(f"{self._cluster.where}: topic {name!r} was deleted as soon as it was made: try again")
        return made

    def describe_topic(self, name: str) -> TopicInfo | None:
        """None if there is no such topic."""
        self._check_open()
        return next(iter(self._infos([name])), None)

    def topics(self) -> list[TopicInfo]:
        """All topics by name."""
        self._check_open()
        return self._infos(name for name in self._cluster.names() if not name.endswith(MEMBERS_SUFFIX))

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its records; the broker removes the offsets that groups committed for it."""
        self._check_open()
        check_topic(name)
        if self._cluster.describe([name])[name] is None:
            raise self._cluster.unknown(name)
        what = f"deleting topic {name!r}"
        answer: dict[str, Future[None]] = self._cluster.admin.delete_topics(
            [name], request_timeout=self._cluster.timeout_s
        )
        try:
            answer[name].result(self._cluster.timeout_s + 5)
        except KafkaException as error:
            if error_of(error).code() not in UNKNOWN_TOPIC:
                raise self._cluster.translate(error, what) from error
        self._until(
            lambda: self._cluster.describe([name])[name] is None, f"topic {name!r} was deleted, but is still there"
        )

    def delete_records(self, before: Mapping[TopicPartition, int]) -> None:
        """Remove what lies below these offsets. Raises InvalidRequest for one past the end, or a compacted topic."""
        self._check_open()
        wanted = {TopicPartition(*source): offset for source, offset in before.items()}
        self._cluster.check(wanted)
        if not wanted:
            return
        bounds = self._cluster.bounds(wanted, committed=False)
        for source, offset in wanted.items():
            if not isinstance(offset, int) or not 0 <= offset <= bounds[source].end:
                raise InvalidRequest(
                    f"{source} cannot be truncated before {offset!r}: it holds {bounds[source].begin} to "
                    f"{bounds[source].end}"
                )
        asked = [KafkaPartition(*source, offset) for source, offset in wanted.items()]
        answer: dict[Any, Future[Any]] = self._cluster.run(
            "deleting records",
            lambda: self._cluster.admin.delete_records(asked, request_timeout=self._cluster.timeout_s),
        )
        for at, future in answer.items():
            self._cluster.wait(f"deleting records of {at.topic}-{at.partition} before {at.offset}", future)

    def _ready(self, name: str, partitions: int) -> bool:
        description = self._cluster.describe([name])[name]
        if description is None:
            return False
        led = [one for one in description.partitions if one.leader is not None and one.leader.id >= 0]
        return len(led) == len(description.partitions) >= min(partitions, 1)

    def _until(self, reached: Callable[[], bool], otherwise: str) -> None:
        deadline_ms = self._clock.monotonic_ms() + self._cluster.timeout_ms
        while not reached():
            if self._clock.monotonic_ms() >= deadline_ms:
                raise Unavailable(f"{self._cluster.where}: {otherwise} after {self._cluster.timeout_ms} ms: try again")
            self._clock.sleep_ms(POLL_MS)

    def _infos(self, names: Iterable[str]) -> list[TopicInfo]:
        described = {name: found for name, found in self._cluster.describe(names).items() if found is not None}
        if not described:
            return []
        asked = [_api.ConfigResource(_api.ResourceType.TOPIC, name) for name in described]
        answer: dict[Any, Future[Any]] = self._cluster.run(
            "describing topics",
            lambda: self._cluster.admin.describe_configs(asked, request_timeout=self._cluster.timeout_s),
        )
        infos = []
        for resource, future in answer.items():
            try:
                settings = future.result(self._cluster.timeout_s + 5)
            except KafkaException as error:
                if error_of(error).code() in UNKNOWN_TOPIC:
                    continue  # deleted meanwhile
                raise self._cluster.translate(error, f"describing topic {resource.name!r}") from error
            infos.append(_info(described[resource.name], settings))
        return sorted(infos, key=lambda info: info.name)


def _settings(name: str, partitions: int, policy: TopicPolicy) -> dict[str, str]:
    """The topic's settings; raises InvalidRequest for a policy that means nothing."""
    if not isinstance(partitions, int) or not 1 <= partitions <= PARTITIONS_MAX:
        raise InvalidRequest(f"topic {name!r} cannot have {partitions!r} partitions: use 1 to {PARTITIONS_MAX}")
    if not policy.cleanup or not policy.cleanup <= _CLEANUPS:
        raise InvalidRequest(f"topic {name!r}: cleanup is {sorted(policy.cleanup)}, use compact, delete or both")
    times = {
        "retention_ms": policy.retention_ms,
        "delete_retention_ms": policy.delete_retention_ms,
        "min_compaction_lag_ms": policy.min_compaction_lag_ms,
    }
    for setting, value in times.items():
        least = 0 if setting == "min_compaction_lag_ms" else -1
        if not isinstance(value, int) or value < least:
            raise InvalidRequest(f"topic {name!r}: {setting} is {value!r}, use milliseconds, {least} or more")
    kept_ms = policy.delete_retention_ms if policy.delete_retention_ms >= 0 else FOR_EVER_MS
    return {
        **policy.extra,
        _CLEANUP: ",".join(sorted(policy.cleanup)),
        _RETENTION: str(policy.retention_ms),
        _DELETE_RETENTION: str(kept_ms),
        _MIN_LAG: str(policy.min_compaction_lag_ms),
    }


def _info(description: Any, settings: Mapping[str, Any]) -> TopicInfo:
    values = {name: entry.value for name, entry in settings.items()}
    kept_ms = int(values[_DELETE_RETENTION])
    own = _api.ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    policy = TopicPolicy(
        cleanup=frozenset(part.strip() for part in values[_CLEANUP].split(",")),
        retention_ms=int(values[_RETENTION]),
        delete_retention_ms=-1 if kept_ms == FOR_EVER_MS else kept_ms,
        min_compaction_lag_ms=int(values[_MIN_LAG]),
        extra={name: entry.value for name, entry in settings.items() if entry.source == own and name not in _MAPPED},
    )
    replicas = min((len(one.replicas) for one in description.partitions), default=0)
    return TopicInfo(description.name, str(description.topic_id), len(description.partitions), policy, replicas)
