"""A task's stream time, the clock of its punctuations that records advance.

    policy "min"    unknown until every input partition that is not idle has had a record, then the smallest over those
                    partitions of the largest timestamp seen
    policy "max"    the largest timestamp seen on any partition, as Kafka Streams has it

            observe      flights/0: 10   flights/1: 4   flights/0: 20   flights/1: 12   flights/1 idle
            min          unknown         4              4               12              20
            max          10              10             20              20              20

Windows, grace and retention go by the observed stream time of their store instead (`StoreRows.observed_ms`).

Rules of this file: pure; no store, thread or wall clock. Stream time never goes back: not by an older record, an added
partition, one that was idle, nor a restored state. Times are milliseconds since the epoch; unknown is None, never a
number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, get_args

from standfast.store.errors import InvalidRequest
from standfast.store.names import few

Policy = Literal["min", "max"]

# The key under which a state keeps the clock itself: partition keys hold a slash (store/task/commit_record.py), so none
# equals it. The partitions' times do not determine the clock: an idle or new partition may be far behind it.
CLOCK_KEY = "task"


class TaskStreamTime:
    """Stream time of one task over its input partitions, named by keys such as `flights/0`."""

    def __init__(self, partitions: Iterable[str] = (), policy: Policy = "min") -> None:
        if policy not in get_args(Policy):
            raise InvalidRequest(f"stream time {policy!r} does not exist: choose one of {', '.join(get_args(Policy))}")
        self.policy: Policy = policy
        self._largest: dict[str, int | None] = {}
        self._idle: set[str] = set()
        self.now_ms: int | None = None  # the task's stream time; None while it is unknown
        for partition in partitions:
            self.add(partition)

    @property
    def partitions(self) -> tuple[str, ...]:
        """The input partitions, in the order in which they were added."""
        return tuple(self._largest)

    def add(self, partition: str) -> None:
        """Add an input partition, such as a discovered one. A known clock stays and waits for its records.

        A partition that is an input already stays as it is. Raises InvalidRequest for a key that is not
        `topic/partition`.
        """
        if "/" not in partition:
            raise InvalidRequest(f"stream time: {partition!r} is not a partition key: write it as topic/partition")
        self._largest.setdefault(partition, None)

    def observe(self, partition: str, timestamp_ms: int) -> None:
        """Note the timestamp of a record. A record makes its partition active again.

        Raises InvalidRequest for an unknown partition or a timestamp that is no whole number from 0.
        """
        _check_timestamp(timestamp_ms, partition)
        before = self._time_of(partition)
        newer = before is None or timestamp_ms > before
        back = partition in self._idle
        if newer:
            self._largest[partition] = timestamp_ms
        if back:
            self._idle.discard(partition)
        if self.policy == "max" or (newer and len(self._largest) == 1):
            self._advance(timestamp_ms)
        elif back or (newer and (before is None or self.now_ms is None or before <= self.now_ms)):
            # Otherwise this partition was ahead of the clock already, so that another one holds it.
            self._advance(self._smallest())

    def set_idle(self, partition: str, idle: bool) -> None:
        """Exclude a partition, or include it again. While all are idle the clock stands still."""
        self._time_of(partition)
        if idle:
            self._idle.add(partition)
        else:
            self._idle.discard(partition)
        if self.policy == "min":
            self._advance(self._smallest())

    def partition_ms(self, partition: str) -> int | None:
        """The largest timestamp seen on a partition; None without a record. InvalidRequest for an unknown partition."""
        return self._time_of(partition)

    def holding_back(self) -> str | None:
        """The partition that the clock waits for: the first without a record, else the one furthest behind.

        None with policy "max", and while every partition is idle.
        """
        if self.policy == "max":
            return None
        largest = self._largest.copy()  # another thread's status may ask while `add` adds one
        active = [partition for partition in largest if partition not in self._idle]
        return min(active, key=lambda partition: _or_before_all(largest[partition]), default=None)

    def to_state(self) -> dict[str, int]:
        """The state to keep: partition key -> largest timestamp, and under CLOCK_KEY the clock once it is known.

        Idleness is not kept: after a restart a partition counts until it is found idle again.
        """
        state = {partition: largest for partition, largest in self._largest.items() if largest is not None}
        if self.now_ms is not None:
            state[CLOCK_KEY] = self.now_ms
        return state

    def restore(self, state: Mapping[str, int]) -> None:
        """Continue from a state, or from several: the later time wins. Other partitions are ignored.

        Raises InvalidRequest, and changes nothing, for a time that is no whole number from 0.
        """
        # All are checked before the first is set, so that a refused state changes nothing.
        for key, timestamp_ms in state.items():
            _check_timestamp(timestamp_ms, key)
        for partition, largest in self._largest.items():
            if partition in state:
                self._largest[partition] = max(state[partition], _or_before_all(largest))
        if CLOCK_KEY in state:
            self._advance(state[CLOCK_KEY])
        if self.policy == "min":
            self._advance(self._smallest())
        else:
            self._advance(max((largest for largest in self._largest.values() if largest is not None), default=None))

    def _smallest(self) -> int | None:
        smallest: int | None = None
        for partition, largest in self._largest.items():
            if partition in self._idle:
                continue
            if largest is None:
                return None
            if smallest is None or largest < smallest:
                smallest = largest
        return smallest

    def _advance(self, to_ms: int | None) -> None:
        if to_ms is not None and (self.now_ms is None or to_ms > self.now_ms):
            self.now_ms = to_ms

    def _time_of(self, partition: str) -> int | None:
        try:
            return self._largest[partition]
        except KeyError:
            raise InvalidRequest(
                f"stream time: {partition!r} is not an input partition of this task ({few(self._largest)}): "
                "add it first"
            ) from None


def _or_before_all(timestamp_ms: int | None) -> int:
    return -1 if timestamp_ms is None else timestamp_ms


def _check_timestamp(timestamp_ms: int, where: str) -> None:
    if type(timestamp_ms) is not int or timestamp_ms < 0:
        raise InvalidRequest(
            f"stream time of {where}: {timestamp_ms!r} is not a timestamp: give whole milliseconds from 0, and let the "
            "source's timestamp extractor decide about records without one"
        )
