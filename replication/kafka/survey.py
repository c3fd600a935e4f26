"""The description of a Kafka cluster: topics with all their settings, brokers, groups and their live consumers.

    settings in force for a topic    its own, else the brokers', else Kafka's defaults
    settings of the brokers          taken from the live broker with the lowest id: they should all be alike

Rules of this file: it asks and changes nothing. It skips broker settings that this user may not read, so that the rest
can still be reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka import admin as _admin

from standfast.replication.kafka.cluster import Cluster
from standfast.replication.kafka.errors import PERMISSION, UNKNOWN_TOPIC, error_of
from standfast.replication.log import LogSurvey, TopicInfo, TopicPolicy, TopicSurvey
from standfast.replication.permissions import GROUP, TOPIC, Need
from standfast.replication.topics.settings import CLEANUP, DELETE_RETENTION, MIN_LAG, RETENTION, ahead_max_ms

_api: Any = _admin  # its manual makes these names public, but type checkers do not see them
FOR_EVER_MS = (1 << 63) - 1
_MAPPED = frozenset({CLEANUP, RETENTION, DELETE_RETENTION, MIN_LAG})


def survey(cluster: Cluster, names: Iterable[str]) -> LogSurvey:
    """Brokers and topics; None for a topic that does not exist."""
    wanted = list(dict.fromkeys(names))
    what = "describing the cluster"
    answer: Future[Any] = cluster.run(what, lambda: cluster.admin.describe_cluster(request_timeout=cluster.timeout_s))
    brokers = tuple(sorted(node.id for node in cluster.wait(what, answer).nodes))
    found = surveyed(cluster, wanted)
    return LogSurvey(brokers, _broker_settings(cluster, brokers), {name: found.get(name) for name in wanted})


def surveyed(cluster: Cluster, names: Iterable[str]) -> dict[str, TopicSurvey]:
    """The existing ones of these topics, by name."""
    described = {name: one for name, one in cluster.describe(names).items() if one is not None}
    if not described:
        return {}
    asked = [_api.ConfigResource(_api.ResourceType.TOPIC, name) for name in described]
    found = {}
    for resource, future in _configs(cluster, asked, "describing topics").items():
        try:
            settings = cluster.answer(future)
        except KafkaException as error:
            if error_of(error).code() in UNKNOWN_TOPIC:
                continue  # deleted between the two requests
            need = Need(TOPIC, resource.name, "DESCRIBE_CONFIGS")
            raise cluster.translate(error, f"describing topic {resource.name!r}", need) from error
        found[resource.name] = _topic(described[resource.name], settings)
    return dict(sorted(found.items()))


def consumer_groups(cluster: Cluster) -> list[str]:
    """Names of the groups that the brokers know."""
    what = "listing groups"
    answer: Future[Any] = cluster.run(
        what, lambda: cluster.admin.list_consumer_groups(request_timeout=cluster.timeout_s)
    )
    return sorted(group.group_id for group in cluster.wait(what, answer).valid)


def consumers(cluster: Cluster, group: str) -> tuple[str, ...]:
    """`client id at host` of the live consumers of a group."""
    if group not in consumer_groups(cluster):
        return ()
    what = f"describing group {group!r}"
    answer: dict[str, Future[Any]] = cluster.run(
        what, lambda: cluster.admin.describe_consumer_groups([group], request_timeout=cluster.timeout_s)
    )
    members = cluster.wait(what, answer[group], Need(GROUP, group, "DESCRIBE")).members
    return tuple(sorted(f"{one.client_id} at {one.host.lstrip('/')}" for one in members))


def _configs(cluster: Cluster, asked: list[Any], what: str) -> dict[Any, Future[Any]]:
    answer: dict[Any, Future[Any]] = cluster.run(
        what, lambda: cluster.admin.describe_configs(asked, request_timeout=cluster.timeout_s)
    )
    return answer


def _broker_settings(cluster: Cluster, brokers: tuple[int, ...]) -> dict[str, str]:
    asked = [_api.ConfigResource(_api.ResourceType.BROKER, str(number)) for number in brokers[:1]]
    settings: dict[str, str] = {}
    for future in _configs(cluster, asked, "describing brokers").values() if asked else ():
        try:
            settings |= _values(cluster.answer(future))
        except KafkaException as error:
            if error_of(error).code() not in PERMISSION:
                raise cluster.translate(error, "describing brokers") from error
    return settings


def _topic(description: Any, entries: Mapping[str, Any]) -> TopicSurvey:
    values = _values(entries)
    kept_ms = int(values[DELETE_RETENTION])
    own = _api.ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    policy = TopicPolicy(
        cleanup=frozenset(part.strip() for part in values[CLEANUP].split(",")),
        retention_ms=int(values[RETENTION]),
        delete_retention_ms=-1 if kept_ms == FOR_EVER_MS else kept_ms,
        min_compaction_lag_ms=int(values[MIN_LAG]),
        extra={name: entry.value for name, entry in entries.items() if entry.source == own and name not in _MAPPED},
    )
    replicas = tuple(tuple(node.id for node in one.replicas) for one in description.partitions)
    fewest = min(map(len, replicas), default=0)
    ahead_ms = ahead_max_ms(values)
    info = TopicInfo(description.name, str(description.topic_id), len(replicas), policy, fewest, ahead_ms)
    return TopicSurvey(info, replicas, tuple(len(one.isr) for one in description.partitions), values)


def _values(entries: Mapping[str, Any]) -> dict[str, str]:
    return {name: entry.value for name, entry in entries.items() if entry.value is not None}
