"""The description of a Kafka cluster: topics with all their settings, brokers, groups and their live consumers.

    settings in force for a topic    its own, else the brokers', else Kafka's defaults
    settings of the brokers          taken from the live broker with the lowest id: they should all be alike

Rules of this file: it asks and changes nothing. It skips broker settings that this user may not read, so that the rest
can still be reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka import admin as _admin

from standfast.replication.kafka.cluster import LIVE_S, TROUBLED_MS, Cluster
from standfast.replication.kafka.errors import PERMISSION, UNKNOWN_TOPIC, client_errors, error_of
from standfast.replication.log import LogSurvey, TopicInfo, TopicPolicy, TopicSurvey
from standfast.replication.permissions import GROUP, TOPIC, Need
from standfast.replication.record_limits import MESSAGE_BYTES
from standfast.replication.topics.settings import CLEANUP, DELETE_RETENTION, MIN_LAG, RETENTION, ahead_max_ms
from standfast.store.errors import Unavailable

_api: Any = _admin  # its manual makes these names public, but type checkers do not see them
FOR_EVER_MS = (1 << 63) - 1
_MAPPED = frozenset({CLEANUP, RETENTION, DELETE_RETENTION, MIN_LAG})


def survey(cluster: Cluster, names: Iterable[str]) -> LogSurvey:
    """Brokers and topics; None for a topic that does not exist."""
    wanted = list(dict.fromkeys(names))
    # Not `describe_cluster`, which ends the process where brokers answer without a live one (`Cluster._describing`).
    brokers = tuple(sorted(cluster.reading("describing the cluster", cluster.live_brokers, renews=True)))
    found = surveyed(cluster, wanted)
    return LogSurvey(brokers, _broker_settings(cluster, brokers), {name: found.get(name) for name in wanted})


def surveyed(cluster: Cluster, names: Iterable[str]) -> dict[str, TopicSurvey]:
    """The existing ones of these topics, by name."""
    described = {name: one for name, one in cluster.describe(names).items() if one is not None}
    if not described:
        return {}
    asked = [_api.ConfigResource(_api.ResourceType.TOPIC, name) for name in described]
    found = {}
    for resource, answer in _configs(cluster, asked, "describing topics").items():
        if not isinstance(answer, KafkaException):
            found[resource.name] = _topic(described[resource.name], answer)
            cluster.limits.note(resource.name, found[resource.name].info.record_max_bytes)
        elif error_of(answer).code() not in UNKNOWN_TOPIC:  # else deleted between the two requests
            need = Need(TOPIC, resource.name, "DESCRIBE_CONFIGS")
            raise cluster.translate(answer, f"describing topic {resource.name!r}", need) from answer
    return dict(sorted(found.items()))


def learn_limits(cluster: Cluster, topics: Iterable[str]) -> None:
    """Look up the largest record of existing topics; it stays unknown where this user may not describe settings."""
    asked = [_api.ConfigResource(_api.ResourceType.TOPIC, name) for name in topics]
    for resource, answer in _configs(cluster, asked, "describing topics").items():
        cluster.limits.note(resource.name, None if isinstance(answer, KafkaException) else _limit(answer))


def consumer_groups(cluster: Cluster) -> list[str]:
    """Names of the groups that the brokers know."""
    what = "listing groups"

    def ask(left_s: float) -> Any:
        with client_errors():
            listing = cluster.admin.list_consumer_groups(request_timeout=left_s)
        listed = cluster.answer(listing)
        for error in listed.errors:  # the groups of a broker that did not answer are missing
            raise error if isinstance(error, KafkaException) else KafkaException(error)
        return listed.valid

    return sorted(group.group_id for group in cluster.reading(what, ask, renews=True))


def consumers(cluster: Cluster, group: str) -> tuple[str, ...]:
    """`client id at host` of the live consumers of a group; none of one that this user may not describe."""
    what = f"describing group {group!r}"

    def ask(left_s: float) -> Any:
        # librdkafka 2.16 ends the process with an assertion where this request waits for a coordinator whose broker
        # goes away or has just come back (its issue 4605): so nothing is asked for a while after any trouble.
        if cluster.is_troubled:
            raise Unavailable(f"{what}: the brokers did not answer within the last {TROUBLED_MS // 1_000} s: try again")
        cluster.live_brokers(LIVE_S)
        with client_errors():
            return cluster.admin.describe_consumer_groups([group], request_timeout=left_s)

    # The group's coordinator alone answers this; a list of all groups would need every broker.
    answer = cluster.answers(what, ask)[group]
    if isinstance(answer, KafkaException):
        if group not in consumer_groups(cluster):  # the brokers' codes for that differ
            return ()
        raise cluster.translate(answer, what, Need(GROUP, group, "DESCRIBE")) from answer
    return tuple(sorted(f"{one.client_id} at {one.host.lstrip('/')}" for one in answer.members))


def _configs(cluster: Cluster, asked: list[Any], what: str) -> dict[Any, Any]:
    """The settings by resource, or the error of the brokers."""
    return cluster.answers(what, lambda left_s: cluster.admin.describe_configs(asked, request_timeout=left_s))


def _broker_settings(cluster: Cluster, brokers: tuple[int, ...]) -> dict[str, str]:
    asked = [_api.ConfigResource(_api.ResourceType.BROKER, str(number)) for number in brokers[:1]]
    settings: dict[str, str] = {}
    for answer in _configs(cluster, asked, "describing brokers").values() if asked else ():
        if not isinstance(answer, KafkaException):
            settings |= _values(answer)
        elif error_of(answer).code() not in PERMISSION:
            raise cluster.translate(answer, "describing brokers") from answer
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
    info = TopicInfo(
        description.name, str(description.topic_id), len(replicas), policy, fewest, ahead_ms, _limit(entries)
    )
    return TopicSurvey(info, replicas, tuple(len(one.isr) for one in description.partitions), values)


def _limit(entries: Mapping[str, Any]) -> int | None:
    text = _values(entries).get(MESSAGE_BYTES)
    return None if text is None else int(text)


def _values(entries: Mapping[str, Any]) -> dict[str, str]:
    return {name: entry.value for name, entry in entries.items() if entry.value is not None}
