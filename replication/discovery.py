"""Partition discovery: finds new partitions and the tasks that they need.

                 interval over                   described(topics)
    WAITING ─────────────────────> ASKED ─────────────────────────────> WAITING     Discovered(partitions, tasks)
       ^        poll(now) names the     │
       └──────── topics to describe     └── a topic vanished, shrank or was recreated: raises, nothing is learned

    group 0   flights 4 -> 6, weather 4 -> 5      new partitions flights-4 flights-5 weather-4, new task 0_4
    group 0   flights 6,      weather 5 -> 6      new partition weather-5, new task 0_5, which reads flights-5 too

A group has as many tasks as its topic with the fewest partitions has partitions: a task reads one of each topic. A new
partition is read from its beginning, so that records written before its discovery are read, too.

Rules of this file: pure; no log, no clock. Time is `now_ms`, of any clock that does not go back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from standfast.replication.log import TopicInfo
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.store.errors import InternalError, InvalidRequest, StateLost, UnknownStore
from standfast.store.names import few


@dataclass(frozen=True, slots=True)
class Discovered:
    """New partitions and tasks, in order. Start `partitions` at their begin offset; `tasks` read some of them."""

    partitions: tuple[TopicPartition, ...] = ()
    tasks: tuple[TaskId, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.partitions)


class Discovery:
    """The known source topics of each group, described again every `interval_ms` (None: only after `hurry`).

    Raises InvalidRequest for an interval below 1 ms and for a topic of two groups.
    """

    def __init__(self, groups: Mapping[int, Iterable[TopicInfo]], interval_ms: int | None, now_ms: int) -> None:
        if interval_ms is not None and interval_ms < 1:
            raise InvalidRequest(f"discovery: an interval of {interval_ms} ms is below 1 ms; None turns it off")
        self._interval_ms = interval_ms
        # Not at once: the caller has just described the topics.
        self._next_due_ms = None if interval_ms is None else now_ms + interval_ms
        self._asked = False
        self._known: dict[str, TopicInfo] = {}
        self._group_of: dict[str, int] = {}
        for group, topics in sorted(groups.items()):
            for info in topics:
                if info.name in self._known:
                    raise InvalidRequest(
                        f"discovery: topic {info.name!r} is given for groups {self._group_of[info.name]} and {group}: "
                        "one group reads a topic"
                    )
                self._known[info.name], self._group_of[info.name] = info, group

    @property
    def next_due_ms(self) -> int | None:
        """Time of the next description of the topics; None if discovery is off and nothing asked for one."""
        return self._next_due_ms

    @property
    def partitions(self) -> dict[str, int]:
        """Known partition count of each topic."""
        return {name: info.partitions for name, info in self._known.items()}

    def hurry(self) -> None:
        """Make the next `poll` name the topics, also if discovery is off: they are known to have grown."""
        self._next_due_ms = 0

    def poll(self, now_ms: int) -> tuple[str, ...]:
        """Topics to describe now and give to `described`; empty before the time, or if discovery is off.

        The next time is one interval from now, also if this attempt fails: a log that does not answer must not be
        asked in a loop.
        """
        if self._next_due_ms is None or now_ms < self._next_due_ms:
            return ()
        self._next_due_ms = None if self._interval_ms is None else now_ms + self._interval_ms
        self._asked = bool(self._known)
        return tuple(self._known)

    def described(self, topics: Mapping[str, TopicInfo | None]) -> Discovered:
        """Compare the topics with the known ones, and adopt them. `topics` has every name from poll; None = no topic.

        Raises UnknownStore for a vanished topic, StateLost for one that shrank (reason "partitions-removed") or was
        recreated (reason "topic-recreated"), each naming the topic; InternalError without a poll before. After an
        error the known topics are unchanged: the next poll, or a corrected answer, tries again.
        """
        if not self._asked:
            raise InternalError("discovery: described() without a poll() that named topics")
        missing = sorted(set(self._known) - set(topics))
        if missing:
            raise InternalError(f"discovery: described() got no {few(missing)}, which poll() named")
        found = {name: _checked(known, topics[name]) for name, known in self._known.items()}
        partitions = tuple(
            TopicPartition(name, partition)
            for name, info in found.items()
            for partition in range(self._known[name].partitions, info.partitions)
        )
        before, after = self._tasks(self._known), self._tasks(found)
        tasks = tuple(
            TaskId(group, partition) for group, count in after.items() for partition in range(before[group], count)
        )
        self._known, self._asked = found, False
        return Discovered(partitions, tasks)

    def _tasks(self, known: Mapping[str, TopicInfo]) -> dict[int, int]:
        counts: dict[int, int] = {}
        for name, info in known.items():
            group = self._group_of[name]
            counts[group] = min(counts.get(group, info.partitions), info.partitions)
        return counts


def _checked(known: TopicInfo, found: TopicInfo | None) -> TopicInfo:
    if found is None:
        raise UnknownStore(
            f"topic {known.name!r} with {known.partitions} partitions is gone from the log: create it again, "
            "or take it out of the application"
        )
    # Before the count: a recreated topic may have as many partitions, or more.
    if found.topic_id != known.topic_id:
        raise StateLost(
            f"topic {known.name!r} was deleted and recreated (id {known.topic_id} is now {found.topic_id}): "
            "old offsets do not apply to it, reinitialise all state that was read from it",
            reason="topic-recreated",
        )
    if found.partitions < known.partitions:
        raise StateLost(
            f"topic {known.name!r} had {known.partitions} partitions and has {found.partitions}: the log never "
            "removes partitions, so reset the application or bring the topic back",
            reason="partitions-removed",
        )
    return found
