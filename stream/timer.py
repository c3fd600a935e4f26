"""A timer of a processor, as it is set and as it fires.

Rules of this file: plain data.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple


class TimerKind(Enum):
    """The time that a timer waits for: the watermark, or the wall clock."""

    EVENT_TIME = "event_time"
    PROCESSING_TIME = "processing_time"


EVENT_TIME = TimerKind.EVENT_TIME
PROCESSING_TIME = TimerKind.PROCESSING_TIME


class Timer(NamedTuple):
    """A due timer: `time` in milliseconds."""

    key: Any
    time: int
    kind: TimerKind
