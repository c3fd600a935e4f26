"""The bounds of a record's timestamp, the same for stores, outputs and logs; and durations as people read them.

    the log's least .. 2**62-1     milliseconds since the epoch; the least is 0 on the embedded log, 1 on Kafka, whose
                                   client writes the present time in place of 0

A log refuses a timestamp beyond them, and with it the whole commit. So the check is made where the timestamp is given:
at the put of a store that logs its changes, and at the send of an output.

Rules of this file: pure. A duration has two digits or so; a setting or an argument is repeated in its own unit.
"""

from __future__ import annotations

TIMESTAMP_MAX_MS = 2**62 - 1


def timestamp_problem(timestamp: object, least_ms: int) -> str | None:
    """Why a log refuses this timestamp; None if it takes it."""
    if isinstance(timestamp, int) and not isinstance(timestamp, bool) and least_ms <= timestamp <= TIMESTAMP_MAX_MS:
        return None
    why = ""
    if timestamp == 0 and least_ms == 1:
        why = ", because the Kafka client would write the present time in place of 0"
    return (
        f"timestamp {timestamp!r:.100} cannot be written to the log: give whole milliseconds since the epoch, from "
        f"{least_ms} to 2**62-1{why}"
    )


def writable(timestamp: int, least_ms: int) -> int:
    """The nearest timestamp that a log takes, for the copy of a record that must not fail for its timestamp."""
    return min(max(timestamp, least_ms), TIMESTAMP_MAX_MS)


def seconds_text(seconds: float) -> str:
    """`9.5 s`, `38 s`, `4 min`, `2.0 h`, `7 d`."""
    if seconds < 90:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < 172_800:
        return f"{seconds / 60:.0f} min" if seconds < 5_400 else f"{seconds / 3_600:.1f} h"
    return f"{seconds / 86_400:.1f}".removesuffix(".0") + " d"


def duration_text(ms: float) -> str:
    """`950 ms`, and from one second on as `seconds_text`."""
    return f"{ms:.0f} ms" if ms < 1_000 else seconds_text(ms / 1_000)
