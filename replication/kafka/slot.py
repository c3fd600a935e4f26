"""One assigned partition of a Kafka reader: what was taken from the client and not handed out yet.

Rules of this file: state and its smallest moves; the reader decides. It knows neither client nor broker.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from standfast.replication.columns import RecordColumns, joined
from standfast.replication.offsets import TopicPartition
from standfast.store.errors import StandfastError


class ReaderSlot:
    """An assigned partition. `frontier` is the next offset expected of the client, `end` where it saw the end."""

    __slots__ = (
        *("answered", "count", "end", "error", "event", "frontier", "heard_ms", "held", "kicked", "late", "paused"),
        *("pieces", "position", "source", "told_end", "topic_id"),
    )

    def __init__(self, source: TopicPartition, topic_id: str, position: int, now_ms: int) -> None:
        self.source = source
        self.topic_id = topic_id
        self.paused = False
        self.error: StandfastError | None = None
        self.event: tuple[Any, int | None] | None = None  # the client's error and its offset, not looked into yet
        self.start(position, now_ms)

    def start(self, position: int, now_ms: int) -> None:
        """Stand at a position of which nothing is known."""
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
        """Something may come: it is read, nothing is here, and its end is not known."""
        return not self.paused and not self.count and self.end != self.frontier

    def take(self, count: int) -> RecordColumns:
        """The first records; there are at least so many, and one at least is asked for."""
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
