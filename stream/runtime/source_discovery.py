"""New partitions of an application's source topics: found at an interval, passed to session and runners.

Another instance may find them first and lead the application: tasks that it places here are looked for at once, also
where the interval is off, since no other instance would process them.

    describe source topics ──> Discovery (pure) ──> session: changelogs grow, then tasks are shared out
                                                └─> runners: further upstream tasks to wait for

A group has as many tasks as its smallest source topic has partitions, and never more than an internal topic that it
reads together with them. Topics between tasks keep their partitions: another number would send keys to tasks that do
not have their state.

Rules of this file: one thread, the loop's. A log that does not answer, or a topic that is gone or recreated, is logged
and checked again an interval later; the reading of records decides about it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from standfast.replication.discovery import Discovery
from standfast.replication.log import Log
from standfast.replication.offsets import TaskId
from standfast.store.clock import Clock
from standfast.store.errors import BadConfig, InvalidRequest, StateLost, Unavailable
from standfast.store.log import as_event, logger
from standfast.stream.runtime.runner import RunnerSettings
from standfast.stream.topology.nodes import SubTopology
from standfast.stream.topology.topology import Topology

SEARCH_MS = 1_000  # between checks for partitions that another instance has found and this one has not


class Growing(Protocol):
    """The session, or the supervisor of worker processes, whose tasks grow."""

    log: Log

    @property
    def misses_partitions(self) -> bool: ...
    def grow(self, partitions: Mapping[int, int]) -> None: ...


class SourceDiscovery:
    """Checks every `interval_ms` (None: not by time). Raises BadConfig for a source topic that was deleted."""

    def __init__(
        self, session: Growing, topology: Topology, runners: RunnerSettings, interval_ms: int | None, clock: Clock
    ) -> None:
        self._session = session
        self._admin = session.log.admin
        self._topology = topology
        self._runners = runners
        self._clock = clock
        self._tasks = {group.group: group.partitions for group in topology.groups}
        self._external = {
            group.group: sorted(one.topic for one in group.sources if not one.internal and one.own is None)
            for group in topology.groups
        }
        names = [name for names in self._external.values() for name in names]
        found = {name: self._admin.describe_topic(name) for name in names}
        gone = [name for name, info in found.items() if info is None]
        if gone:
            raise BadConfig([f"source topic {name!r} was deleted just now: create it again" for name in gone])
        # As many partitions as there are tasks: the first check finds partitions that were added since.
        infos = {
            name: replace(info, partitions=min(info.partitions, runners.partitions_of[name]))
            for name, info in found.items()
            if info is not None
        }
        groups = {number: [infos[name] for name in names if name in infos] for number, names in self._external.items()}
        self._discovery = Discovery(groups, interval_ms, clock.monotonic_ms())
        self._next_search_ms = 0

    def poll(self) -> bool:
        """Check if the interval has passed; return whether there are more tasks now."""
        now_ms = self._clock.monotonic_ms()
        if self._session.misses_partitions and now_ms >= self._next_search_ms:
            self._next_search_ms = now_ms + SEARCH_MS
            self._discovery.hurry()
        names = self._discovery.poll(now_ms)
        if not names:
            return False
        try:
            self._discovery.described({name: self._admin.describe_topic(name) for name in names})
            return self._follow()
        except Unavailable as error:
            logger.warning(
                "partition discovery: the log does not answer, trying again: %s", error, extra=as_event("log_away")
            )
        except (InvalidRequest, StateLost) as error:
            logger.error("partition discovery: %s", error, extra=as_event("partition_discovery_failed"))
        return False

    def _follow(self) -> bool:
        wanted = {group.group: self._wanted(group) for group in self._topology.groups}
        grown = {number: count for number, count in wanted.items() if count > self._tasks[number]}
        if not grown:
            return False
        self._session.grow(grown)
        for number, count in grown.items():
            tasks = [str(TaskId(number, partition)) for partition in range(self._tasks[number], count)]
            logger.warning(
                "%s: %d partitions now, so there are new tasks %s. A key that its writers now send to another "
                "partition has no earlier state there",
                ", ".join(self._external[number]), count, ", ".join(tasks),
                extra=as_event("partitions_found", topics=list(self._external[number]), partitions=count, tasks=tasks),
            )  # fmt: skip
            self._tasks[number] = count
            self._tell_downstream(self._topology.groups[number], tasks)
        return True

    def _wanted(self, group: SubTopology) -> int:
        external = self._external[group.group]
        if not external:
            return 0
        known = self._discovery.partitions
        counts = {name: known.get(name, 0) for name in external}
        counts |= {topic: self._runners.partitions_of[topic] for topic in group.topics - set(external)}
        fewest, most = min(counts.values()), max(counts.values())
        if most > fewest and most > self._tasks[group.group]:
            behind = ", ".join(f"{name} has {count}" for name, count in counts.items() if count < most)
            logger.warning(
                "topics that are processed together have up to %d partitions, but %s: their further tasks begin once "
                "all topics have as many", most, behind, extra=as_event("partitions_unequal", partitions=most),
            )  # fmt: skip
        return fewest

    def _tell_downstream(self, group: SubTopology, tasks: list[str]) -> None:
        """Add the new tasks to those whose watermarks downstream tasks wait for."""
        if group.group not in self._runners.event_time:
            return
        internal = {one.name for one in self._topology.internal}
        written = {sink.topic for sink in group.sinks if sink.topic in internal}
        self._runners.upstream = {
            topic: (*known, *(tasks if topic in written else ())) for topic, known in self._runners.upstream.items()
        }
