"""Writes the flights to the topic of the demo, slice by slice, in order of actual departure.

    flight ──> partition crc32(tail) % partitions ──> key tail, value JSON, timestamp = scheduled departure

Rules of this file: it writes and counts; when to write how much is decided by the caller.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence

from standfast.ops.demo_flights import Flight, out_of_order
from standfast.replication.log import Log, Outgoing, TopicPolicy
from standfast.replication.offsets import TopicPartition


class Feeder:
    """Feeds one topic, which it makes. `fed` is how many flights are in the log."""

    def __init__(self, log: Log, topic: str, partitions: int, flights: Sequence[Flight]) -> None:
        log.admin.create_topic(topic, partitions, TopicPolicy())
        self.fed = 0
        self.total = len(flights)
        self._topic = topic
        self._partitions = partitions
        self._flights = flights
        self._producer = log.producer()

    @property
    def done(self) -> bool:
        """Whether every flight is in the log."""
        return self.fed >= self.total

    def feed(self, count: int) -> int:
        """Write up to `count` further flights, acknowledged when this returns; returns how many."""
        piece = self._flights[self.fed : self.fed + count]
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
        times: dict[int, list[int]] = {}
        for flight in self._flights:
            times.setdefault(partition_of(flight.tail.encode(), self._partitions), []).append(flight.scheduled)
        return sum(sum(out_of_order(one)) for one in times.values())

    def close(self) -> None:
        """Release the log."""
        self._producer.close()


def partition_of(key: bytes, partitions: int) -> int:
    """CRC-32 of the key, as librdkafka's `consistent` partitioner."""
    return zlib.crc32(key) % partitions


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
