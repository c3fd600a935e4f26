"""What the log tells of the application's progress, to the process that watches it from outside.

    committed()    flights, by partition            backlog()    records in the repartition topic that wait
    finals()       final results written so far     settled()    nothing is on its way any more in either group
    board()        the live board

Rules of this file: it reads committed offsets and topics, as any other program could; it asks no process.
"""

from __future__ import annotations

from standfast.ops.demo_board import APP, BY_AIRPORT, LIVE, PARTITIONS, RESULTS, TOPIC
from standfast.ops.demo_live import LiveBoard, LiveReader
from standfast.replication.log import Log, TopicPolicy
from standfast.replication.offsets import TopicPartition


class LogView:
    """One reader's view of the log; makes the application's output topics."""

    def __init__(self, log: Log) -> None:
        log.admin.create_topic(LIVE, 1, TopicPolicy())
        log.admin.create_topic(RESULTS, PARTITIONS, TopicPolicy())
        self._group = log.group(APP)
        self._reader = log.reader()
        self._live = LiveReader(log)

    @property
    def published(self) -> int:
        """Records of the live board read so far."""
        return self._live.published

    def committed(self) -> dict[int, int]:
        """Next flight to process, by partition; absent before the first commit."""
        return {at.partition: one.offset for at, one in self._group.committed().items() if at.topic == TOPIC}

    def backlog(self) -> int:
        """Records of the repartition topic that are not processed, or not committed."""
        bounds = self._reader.bounds(TopicPartition(BY_AIRPORT, part) for part in range(PARTITIONS))
        done = self._group.committed(bounds)
        return sum(end - (done[at].offset if at in done else 0) for at, (_, end) in bounds.items())

    def settled(self, total: int) -> bool:
        """Whether `total` flights and all that followed from them behind the repartition topic are committed."""
        # Flights and the records made of them are committed together: no more can come once all flights are.
        return sum(self.committed().values()) >= total and self.backlog() == 0

    def finals(self) -> int:
        """Final results in the log."""
        bounds = self._reader.bounds(TopicPartition(RESULTS, part) for part in range(PARTITIONS))
        return sum(end for _, end in bounds.values())

    def board(self) -> LiveBoard:
        """The live board now."""
        return self._live.poll()

    def close(self) -> None:
        """Release the log."""
        self._live.close()
        self._reader.close()
        self._group.close()
