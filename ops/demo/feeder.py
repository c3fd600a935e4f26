"""Writes the flights to the topic of the demo, slice by slice, in order of actual departure.

    flight ──> partition crc32(tail) % partitions ──> key tail, value JSON, timestamp = scheduled departure
    flights   0 ........ horizon ................. fed          never more than `lead_max` from horizon to fed
              committed  │ the earliest flight     │ the next
              by all     │ not yet committed       │ to write

The lead makes sure that no window gets a late flight: tasks behind the repartition topic see the flights of four tasks
interleaved, in an order that differs from run to run, but a flight is written only when every flight `lead_max` before
it has passed. So the necessary grace of the windows follows from the data (`grace_for`).

Rules of this file: it writes and counts; the caller decides when.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence

from standfast.ops.demo.flights import Flight, out_of_order
from standfast.replication.log import Log, Outgoing, TopicPolicy
from standfast.replication.offsets import TopicPartition


class Feeder:
    """Feeds one topic, which it makes. `fed` is the number of flights in the log."""

    def __init__(self, log: Log, topic: str, partitions: int, flights: Sequence[Flight], lead_max: int) -> None:
        log.admin.create_topic(topic, partitions, TopicPolicy())
        self.fed = 0
        self.total = len(flights)
        self.lead_max = lead_max
        self._topic = topic
        self._partitions = partitions
        self._flights = flights
        self._producer = log.producer()
        self._numbers: dict[int, list[int]] = {part: [] for part in range(partitions)}  # by offset in the partition
        for number, flight in enumerate(flights):
            self._numbers[partition_of(flight.tail.encode(), partitions)].append(number)

    @property
    def done(self) -> bool:
        """Whether every flight is in the log."""
        return self.fed >= self.total

    def horizon(self, committed: Mapping[int, int]) -> int:
        """Number of the earliest flight that is not committed, given the next offset of each partition."""
        earliest = self.total
        for part, numbers in self._numbers.items():
            offset = committed.get(part, 0)
            if offset < len(numbers):
                earliest = min(earliest, numbers[offset])
        return earliest

    def room(self, committed: Mapping[int, int]) -> int:
        """Number of flights that may be written now."""
        return min(self.horizon(committed) + self.lead_max, self.total) - self.fed

    def feed(self, count: int) -> int:
        """Write up to `count` further flights, acknowledged when this returns; returns their number."""
        # The caller's room is negative while the repartition topic is further behind than the lead.
        piece = self._flights[self.fed : self.fed + max(count, 0)]
        batches: dict[TopicPartition, list[Outgoing]] = {}
        for flight in piece:
            key = flight.tail.encode()
            batches.setdefault(TopicPartition(self._topic, partition_of(key, self._partitions)), []).append(
                Outgoing(key, flight_json(flight), flight.scheduled)
            )
        if batches:
            self._producer.append(batches)
        self.fed += len(piece)
        return len(piece)

    def out_of_order(self) -> int:
        """Flights of the whole input whose event time is before one fed earlier to the same partition."""
        flights = self._flights
        return sum(sum(out_of_order(flights[number].scheduled for number in one)) for one in self._numbers.values())

    def close(self) -> None:
        """Release the log."""
        self._producer.close()


def partition_of(key: bytes, partitions: int) -> int:
    """CRC-32 of the key, as librdkafka's `consistent` partitioner."""
    return zlib.crc32(key) % partitions


def grace_for(flights: Sequence[Flight], lead_max: int, unit_ms: int) -> int:
    """Least grace, in whole units, with which no window of `unit_ms` is closed before its last flight comes.

    When a flight comes, nothing further than `lead_max` behind it can have been seen.
    """
    needed, newest, ahead = 0, 0, 0
    for number, flight in enumerate(flights):
        # Each flight is looked at once: going through the lead of each would be quadratic.
        while ahead < min(number + lead_max, len(flights)):
            newest = max(newest, flights[ahead].scheduled)
            ahead += 1
        end = flight.scheduled // unit_ms * unit_ms + unit_ms
        needed = max(needed, newest - end + 1)  # it is still updated while end > newest - grace
    return -(-needed // unit_ms) * unit_ms


def flight_json(flight: Flight) -> bytes:
    """A flight as the value of its record."""
    value = {
        "flight": f"{flight.carrier}{flight.number}",
        "origin": flight.origin,
        "dest": flight.dest,
        "scheduled": flight.scheduled,
        "departed": flight.departed,
        "delay": flight.delay,
    }
    return json.dumps(value, separators=(",", ":")).encode()
