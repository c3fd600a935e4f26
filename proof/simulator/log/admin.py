"""The admin of the simulated log.

Rules of this file: checks of arguments are those of the real logs; each step is one effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from simulator.log.access import Access
from simulator.log.cluster import Topic
from standfast.replication.checks import check_partitions
from standfast.replication.embedded.topics import check_new_topic
from standfast.replication.log import LogSurvey, TopicInfo, TopicPolicy, TopicSurvey
from standfast.replication.offsets import TopicPartition
from standfast.replication.permissions import Need
from standfast.replication.topics.settings import changed
from standfast.store.errors import InvalidRequest
from standfast.store.names import few

T = TypeVar("T")


class SimAdmin:
    """LogAdmin of the simulated log."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._log = access.log

    def create_topic(self, name: str, partitions: int, policy: TopicPolicy) -> TopicInfo:
        """Create a topic, or describe an existing one unchanged. Raises InvalidRequest."""
        check_new_topic(name, partitions, policy)
        return self._write("create_topic", lambda: self._log.info(self._log.create_topic(name, partitions, policy)))

    def describe_topic(self, name: str) -> TopicInfo | None:
        """The topic, or None if it does not exist."""
        return self._read("describe_topic", lambda: self._info(name))

    def topics(self) -> list[TopicInfo]:
        """All topics by name."""
        return self._read("topics", lambda: [self._log.info(topic) for _, topic in sorted(self._log.topics.items())])

    def topic_names(self) -> list[str]:
        """Names of all topics, in order."""
        return self._read("topic_names", lambda: sorted(self._log.topics))

    def delete_topic(self, name: str) -> None:
        """Delete a topic. Raises UnknownStore."""
        self._write("delete_topic", lambda: self._log.delete_topic(name))

    def add_partitions(self, name: str, partitions: int) -> TopicInfo:
        """Grow a topic to that many partitions. Raises UnknownStore, InvalidRequest for fewer than it has."""
        check_partitions(name, partitions)

        def effect() -> TopicInfo:
            topic = self._log.topic(name)
            if partitions < len(topic.partitions):
                raise InvalidRequest(
                    f"topic {name!r} has {len(topic.partitions)} partitions and cannot have {partitions}: "
                    "the log never removes partitions"
                )
            self._log.grow(name, partitions)
            return self._log.info(topic)

        return self._write("add_partitions", effect)

    def change_topic(self, name: str, settings: Mapping[str, str]) -> TopicInfo:
        """Change settings by name; the others stay. Raises UnknownStore, InvalidRequest for an invalid value."""

        def effect() -> TopicInfo:
            topic: Topic = self._log.topic(name)
            policy = changed(topic.policy, settings)
            check_new_topic(name, 1, policy)
            self._log.set_policy(name, policy)
            return self._log.info(topic)

        return self._write("change_topic", effect)

    def survey(self, names: Iterable[str]) -> LogSurvey:
        """The topics; of a log like Kafka also its one broker, and settings."""
        return self._read("survey", lambda: self._survey(list(names)))

    def groups(self) -> list[str]:
        """Names of the groups that have committed offsets or have members."""
        kafka = self._log.kafka

        def effect() -> list[str]:
            found = self._log.groups.items()
            return sorted(name for name, one in found if one.committed or (one.board if kafka else one.leases))

        return self._read("groups", effect)

    def consumers(self, group: str) -> tuple[str, ...]:
        """Live consumers of Kafka's own protocol."""
        return self._read("consumers", lambda: tuple(sorted(self._log.group(group).consumers)))

    def delete_group(self, name: str) -> None:
        """Delete a group's committed offsets. Raises InvalidRequest while it has consumers."""

        def effect() -> None:
            if self._log.group(name).consumers:
                raise InvalidRequest(f"{self._log.where}: group {name!r} has live consumers: stop them first")
            self._log.group(name).committed.clear()
            self._log.version += 1

        self._write("delete_group", effect)

    def first_offsets(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """First offset at or after a timestamp, the end if there is none. Raises UnknownStore."""

        def effect() -> dict[TopicPartition, int]:
            self._log.settle()
            now_ms = self._log.clock.monotonic_ms()
            found = {TopicPartition(*source): self._log.partition(source) for source in times_ms}
            return {at: one.first_at(times_ms[at], one.visible(now_ms)) for at, one in found.items()}

        return self._read("first_offsets", effect, times_ms)

    def delete_records(self, before: Mapping[TopicPartition, int]) -> None:
        """Remove records below these offsets. Raises InvalidRequest for one past the end.

        A log like the embedded one goes from partition to partition, so that an error leaves the first ones shortened.
        One like Kafka refuses compacted topics, and shortens the others.
        """
        wanted = {TopicPartition(*source): offset for source, offset in before.items()}

        def check(some: Iterable[TopicPartition]) -> None:
            found = {at: self._log.partition(at) for at in some}
            for at, one in found.items():
                if not 0 <= wanted[at] <= one.end:
                    raise InvalidRequest(
                        f"{at} cannot be truncated before {wanted[at]}: it holds {one.begin} to {one.end}"
                    )

        def effect() -> None:
            if self._log.kafka:
                check(wanted)
            compacted = []
            for at, offset in wanted.items():
                check([at])
                if self._log.kafka and "delete" not in self._log.partition(at).policy.cleanup:
                    compacted.append(at)
                    continue
                self._log.partition(at).move_begin(offset)
                self._log.version += 1
            if compacted:
                raise InvalidRequest(f"deleting records of {few(compacted)}: the topic is compacted, without delete")

        self._write("delete_records", effect, wanted)

    def lacking(self, needs: Iterable[Need]) -> list[str]:
        """Empty: this log has no permissions."""
        return []

    def _info(self, name: str) -> TopicInfo | None:
        topic = self._log.topics.get(name)
        return None if topic is None else self._log.info(topic)

    def _survey(self, names: list[str]) -> LogSurvey:
        kafka, topics = self._log.kafka, self._log.topics
        found: dict[str, TopicSurvey | None] = dict.fromkeys(names)
        for name in names:
            if name in topics:
                each = len(topics[name].partitions) if kafka else 0
                settings = self._log.settings(topics[name].policy) if kafka else {}
                found[name] = TopicSurvey(self._log.info(topics[name]), ((1,),) * each, (1,) * each, settings)
        if not kafka:
            return LogSurvey((), {}, found)
        of_broker = {"transaction.state.log.min.isr": "1", "transaction.max.timeout.ms": "900000"}
        return LogSurvey((1,), of_broker, found)

    def _read(self, name: str, effect: Callable[[], T], sources: Iterable[TopicPartition] = ()) -> T:
        self._access.check_open()
        return self._access.call(f"admin.{name}", effect, sources)

    def _write(self, name: str, effect: Callable[[], T], sources: Iterable[TopicPartition] = ()) -> T:
        self._access.check_open()
        return self._access.write(f"admin.{name}", effect, sources)
