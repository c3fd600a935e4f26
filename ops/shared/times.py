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
    """Milliseconds since the epoch; ISO 8601 without an offset is local time.

    Raises ValueError, also for a text with two readings: digits that are a date as well, and a local time that the
    clocks repeat or skip. The error names both.
    """
    if text.removeprefix("-").isdecimal() and text.isascii():
        if (date := _date_of_digits(text)) is not None:
            moment = time_text(int(text), "utc")
            raise ValueError(f"{text!r} may be the date {date} or {moment} (milliseconds since the epoch): write one")
        return int(text)
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is not a time: give milliseconds since the epoch, or 2013-01-01T08:00:00Z"
        ) from None
    if at.tzinfo is None:
        first, second = (at.replace(fold=fold).astimezone() for fold in (0, 1))
        if first != second:
            twice = first.replace(tzinfo=None) == at
            when = "twice" if twice else "never, because the clocks skip it"
            raise ValueError(f"local time {text!r} comes {when}: write {first.isoformat()} or {second.isoformat()}")
        at = first
    return (at - EPOCH) // MS


def _date_of_digits(text: str) -> str | None:
    """The date, or date and time, that a number reads as: 20130101, 201301010800, 20130101080000."""
    form = {8: "%Y%m%d", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}.get(len(text))
    if form is None or not 1900 <= int(text[:4]) < 2100:
        return None
    try:
        at = datetime.strptime(text, form)  # noqa: DTZ007  shown in the form of its digits
    except ValueError:
        return None
    return at.date().isoformat() if len(text) == 8 else at.isoformat()
