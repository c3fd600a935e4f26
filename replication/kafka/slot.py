"""One assigned partition of a Kafka reader: its buffer of records between client and caller.

Rules of this file: state and its smallest moves; the reader decides. It knows neither client nor broker.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from standfast.replication.columns import RecordColumns, joined
from standfast.replication.offsets import TopicPartition
from standfast.store.errors import StandfastError


class ReaderSlot:
    """An assigned partition. `frontier` is the next offset expected from the client, `end` the end that it reported."""

    __slots__ = (
        *("answered", "count", "end", "error", "event", "frontier", "heard_ms", "held", "kicked", "late", "paused"),
        *("pieces", "position", "source", "told_end", "topic_id"),
    )

    def __init__(self, source: TopicPartition, topic_id: str, position: int, now_ms: int) -> None:
        self.source = source
        self.topic_id = topic_id
        self.paused = False
        self.error: StandfastError | None = None
        self.event: tuple[Any, int | None] | None = None  # the client's error and its offset, not judged yet
        self.start(position, now_ms)

    def start(self, position: int, now_ms: int) -> None:
        """Start at a position, without any answer for it yet."""
        self.position = self.frontier = position
        self.pieces: deque[RecordColumns] = deque()
        self.count = 0  # records in all pieces
        self.end = -1
        self.told_end = False
        self.answered = False
        self.late = False
        self.held = False
        self.kicked = False
        self.heard_ms = now_ms

    @property
    def hungry(self) -> bool:
        """Whether records may be on their way: not paused, the buffer is empty, and the end is not known."""
        return not self.paused and not self.count and self.end != self.frontier

    def take(self, count: int) -> RecordColumns:
        """The first `count` records; `count` is 1 to the number of buffered records."""
        self.count -= count
        taken: list[RecordColumns] = []
        while count:
            piece = self.pieces.popleft()
            if len(piece) > count:
                self.pieces.appendleft(piece[count:])
                piece = piece[:count]
            taken.append(piece)
            count -= len(piece)
        return joined(taken)
