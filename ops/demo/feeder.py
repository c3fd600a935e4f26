"""Writes the flights to the topic of the demo, slice by slice, in order of actual departure.

    flight ──> partition crc32(tail) % partitions ──> key tail, value JSON, timestamp = scheduled departure
    flights   0 ............. settled ............. fed          never more than `lead` from settled to fed
              all that came of │ flights that      │ the next
              them is committed│ may be under way  │ to write

The lead makes sure that no window gets a late flight: tasks behind the repartition topic see the flights of four tasks
interleaved, in an order that differs from run to run, but a flight is written only when every flight `lead` before it
has passed. So the necessary grace of the windows follows from the data (`grace_for`).

Rules of this file: it writes and counts; the caller decides when.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Sequence

from standfast.ops.demo.flights import Flight
from standfast.replication.log import Log, Outgoing, TopicPolicy
from standfast.replication.offsets import TopicPartition


class Feeder:
    """Feeds one topic, which it makes. `fed` is the number of flights in the log.

    `is_settled` says whether so many flights, and all records that come of them, are committed.
    """

    def __init__(
        self,
        log: Log,
        topic: str,
        partitions: int,
        flights: Sequence[Flight],
        lead: int,
        is_settled: Callable[[int], bool],
    ) -> None:
        log.admin.create_topic(topic, partitions, TopicPolicy())
        self.fed = 0
        self.total = len(flights)
        self.lead = lead
        self._settled = 0
        self._is_settled = is_settled
        self._topic = topic
        self._partitions = partitions
        self._flights = flights
        self._producer = log.producer()

    def feed(self, count: int, until: int) -> None:
        """Write up to `count` further flights as far as the lead allows, and no more than `until` in all."""
        # Asked only when the lead is used up: an answer takes several calls to the log.
        if self.fed - self._settled >= self.lead and self._is_settled(self.fed):
            self._settled = self.fed
        piece = self._flights[self.fed : min(self.fed + count, until, self._settled + self.lead)]
        batches: dict[TopicPartition, list[Outgoing]] = {}
        for flight in piece:
            key = flight.tail.encode()
            batches.setdefault(TopicPartition(self._topic, partition_of(key, self._partitions)), []).append(
                Outgoing(key, flight_json(flight), flight.scheduled)
            )
        if batches:
            self._producer.append(batches)
        self.fed += len(piece)

    def close(self) -> None:
        """Release the log."""
        self._producer.close()


def partition_of(key: bytes, partitions: int) -> int:
    """CRC-32 of the key, as librdkafka's `consistent` partitioner."""
    return zlib.crc32(key) % partitions


def grace_for(flights: Sequence[Flight], lead: int, unit_ms: int) -> int:
    """Least grace, in whole units, with which no window of `unit_ms` is closed before its last flight comes.

    When a flight comes, nothing further than `lead` behind it can have been seen.
    """
    needed, newest, ahead = 0, 0, 0
    for number, flight in enumerate(flights):
        # Each flight is looked at once: going through the lead of each would be quadratic.
        while ahead < min(number + lead, len(flights)):
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
        "departed": flight.departed,
        "delay": flight.delay,
    }
    return json.dumps(value, separators=(",", ":")).encode()
