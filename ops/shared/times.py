"""Points in time as people read and type them: ISO 8601 in local time, in UTC, or milliseconds since the epoch.

Rules of this file: nothing but the two directions. Programs (`--json`) always get milliseconds.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Literal

TimeStyle = Literal["local", "utc", "ms"]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MS = timedelta(milliseconds=1)
# Field names of rows and records that hold a point in time.
TIME_FIELDS = frozenset(
    {"timestamp", "window_start", "window_end", "session_start", "session_end", "valid_from", "valid_to"}
)


def time_text(ms: int, style: TimeStyle = "local") -> str:
    """`2013-01-01T08:00:00Z`, with milliseconds unless they are 0. A time outside of the calendar stays a number."""
    if style == "ms":
        return str(ms)
    try:
        at = EPOCH + ms * MS
        if style == "local":
            at = at.astimezone()
    except (OverflowError, ValueError, OSError):  # outside of the years 1 to 9999: windows may end at 2^63 - 1
        return str(ms)
    text = at.isoformat(timespec="milliseconds" if ms % 1_000 else "seconds")
    return text.removesuffix("+00:00") + "Z" if text.endswith("+00:00") else text


def parse_time(text: str) -> int:
    """Milliseconds since the epoch; ISO 8601 without an offset is local time. Raises ValueError."""
    if text.removeprefix("-").isdecimal() and text.isascii():
        return int(text)
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        at = at.astimezone()
    return (at - EPOCH) // MS
