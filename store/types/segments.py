"""Time segments: their lengths, which of them live, and the names of their families.

    time      0        interval     2*interval      observed
    segments  [ 0      )[ 1         )[ 2       ...  ]
    live      segment id >= id of (observed - retention); a dead segment is dropped as a whole
    visible   time >= observed - retention + 1, even where the segment still lives

Rules of this file: integers in, integers out. Equal to Kafka Streams' AbstractSegments, Stores and getActualFrom.
"""

from __future__ import annotations

import re

from standfast.store.errors import InvalidRequest

SEGMENT_INTERVAL_MS_MIN = 60_000
_SECOND_MS, _MINUTE_MS, _HOUR_MS = 1_000, 60_000, 3_600_000
# History up to (ms) -> (number of parts, least length of a part in ms); the steps are those of Kafka Streams
_VERSIONED_STEPS = (
    (_MINUTE_MS, 3, 2 * _SECOND_MS),
    (5 * _MINUTE_MS, 5, 20 * _SECOND_MS),
    (_HOUR_MS, 12, _MINUTE_MS),
)
_VERSIONED_LONG = (24, 5 * _MINUTE_MS)
_FAMILY = re.compile(r"([A-Za-z0-9_][A-Za-z0-9._-]*)@(0|[1-9][0-9]{0,18})")


def segment_interval_ms(retention_ms: int) -> int:
    """Length of a segment of a window or session store: max(retention / 2, one minute)."""
    _check_positive("retention", retention_ms)
    return max(retention_ms // 2, SEGMENT_INTERVAL_MS_MIN)


def versioned_segment_interval_ms(history_retention_ms: int) -> int:
    """Length of a segment of a versioned store: finer parts for longer histories; a history of 0 is allowed."""
    if history_retention_ms < 0:
        raise InvalidRequest(f"a history retention of {history_retention_ms} ms is not usable: give 0 ms or more")
    for limit_ms, parts, least_ms in _VERSIONED_STEPS:
        if history_retention_ms <= limit_ms:
            return max(history_retention_ms // parts, least_ms)
    parts, least_ms = _VERSIONED_LONG
    return max(history_retention_ms // parts, least_ms)


def segment_id(time_ms: int, interval_ms: int) -> int:
    """Number of the segment that holds this time."""
    return time_ms // interval_ms


def segment_start_ms(number: int, interval_ms: int) -> int:
    """First time that belongs to a segment."""
    return number * interval_ms


def is_live(number: int, observed_ms: int, retention_ms: int, interval_ms: int) -> bool:
    """Whether a segment may still hold rows within retention of the observed stream time (-1: none observed)."""
    return number >= (observed_ms - retention_ms) // interval_ms


def earliest_visible_ms(observed_ms: int, retention_ms: int) -> int:
    """Earliest time of rows that a read may return."""
    return observed_ms - retention_ms + 1


def family_name(store: str, start_ms: int) -> str:
    """`<store>@<segment start in ms>`."""
    return f"{store}@{start_ms}"


def parse_family(family: str) -> tuple[str, int] | None:
    """(store, segment start in ms), or None for a family that is no segment."""
    # Store names have no "@", so a family name has one meaning only.
    found = _FAMILY.fullmatch(family)
    return None if found is None else (found[1], int(found[2]))


def store_of_family(family: str) -> str:
    """The store that a family belongs to; the default family, which holds the task's record, is its own."""
    parsed = parse_family(family)
    return family if parsed is None else parsed[0]


def _check_positive(what: str, value_ms: int) -> None:
    if value_ms <= 0:
        raise InvalidRequest(f"a {what} of {value_ms} ms is not usable: give at least 1 ms")
