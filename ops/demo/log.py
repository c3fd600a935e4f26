"""The application's progress as the log shows it, for the process that watches it from outside.

    committed()    flights, by partition            backlog()    offsets of the repartition topic that wait
    finals()       final results written so far     settled()    nothing is on its way any more in either group
    board()        the live board

Rules of this file: it reads committed offsets and topics, as any other program could; it asks no process. Not every
offset is a record: on Kafka the end of a transaction takes one, too. Exact numbers are read, not subtracted.
"""

from __future__ import annotations

from standfast.ops.demo.board import PARTITIONS, BoardSettings
from standfast.ops.demo.finals import read_finals
from standfast.ops.demo.live import LiveBoard, LiveReader
from standfast.replication.log import Log, TopicPolicy
from standfast.replication.offsets import TopicPartition

WAIT_MS = 100


class LogView:
    """One reader's view of the log; makes the application's output topics."""

    def __init__(self, log: Log, settings: BoardSettings) -> None:
        log.admin.create_topic(settings.live, 1, TopicPolicy())
        log.admin.create_topic(settings.results, PARTITIONS, TopicPolicy())
        self._log = log
        self._settings = settings
        self._group = log.group(settings.app)
        self._reader = log.reader()
        self._live = LiveReader(log, settings.live)

    @property
    def published(self) -> int:
        """Records of the live board read so far."""
        return self._live.published

    def committed(self) -> dict[int, int]:
        """Next flight to process, by partition; absent before the first commit."""
        flights = [TopicPartition(self._settings.topic, part) for part in range(PARTITIONS)]
        return {at.partition: one.offset for at, one in self._group.committed(flights).items()}

    def backlog(self) -> int:
        """Offsets of the repartition topic that are not committed: its waiting records, or somewhat more."""
        return sum(end - offset for offset, end in self._behind().values())

    def settled(self, total: int) -> bool:
        """Whether `total` flights and all records behind the repartition topic that came of them are committed."""
        # Flights and the records made of them are committed together: no more can come once all flights are.
        return sum(self.committed().values()) >= total and not self._waiting()

    def finals(self) -> int:
        """Final results in the log."""
        return len(read_finals(self._log, self._settings.results))

    def board(self) -> LiveBoard:
        """The live board now."""
        return self._live.poll()

    def close(self) -> None:
        """Release the log."""
        self._live.close()
        self._reader.close()
        self._group.close()

    def _behind(self) -> dict[TopicPartition, tuple[int, int]]:
        """Next offset to process and end, of each partition of the repartition topic."""
        bounds = self._reader.bounds(TopicPartition(self._settings.by_airport, part) for part in range(PARTITIONS))
        done = self._group.committed(bounds)
        return {at: (done[at].offset if at in done else begin, end) for at, (begin, end) in bounds.items()}

    def _waiting(self) -> bool:
        """Whether a record of the repartition topic is not committed."""
        left = {at: offset for at, (offset, end) in self._behind().items() if offset < end}
        self._reader.assign(left)
        while left:
            for batch in self._reader.fetch(1, WAIT_MS):
                if batch.records:
                    return True
                # At the end without a record: only ends of transactions lie there.
                if batch.at_end:
                    left.pop(batch.source, None)
        return False
