"""Checks of output records, made when a record is sent and not when the commit writes it.

Rules of this file: pure. Errors that only the log can find (an absent topic or partition) appear at the commit.
"""

from __future__ import annotations

from standfast.replication.log import Headers, TopicInfo
from standfast.replication.offsets import TaskId
from standfast.replication.record_limits import TopicLimits, fix_of
from standfast.replication.topics.settings import TIMESTAMP_AHEAD, time_text
from standfast.store.errors import InvalidRequest, TooLarge
from standfast.store.timestamps import TIMESTAMP_MAX_MS, timestamp_problem

BYTES_TYPES = frozenset({bytes, bytearray, memoryview, type(None)})
PARTITION_MAX = 2**31 - 1
CLOCKS_DIFFER_MS = 60_000  # by which a broker's clock may be behind ours


def check_output(
    topic: str, key: object, value: object, timestamp: object, partition: object, headers: object, least_ms: int
) -> None:
    """Raise InvalidRequest for a record that no log accepts. `least_ms`: the smallest timestamp of this log."""
    problem = _bytes_problem("key", key) or _bytes_problem("value", value)
    problem = problem or timestamp_problem(timestamp, least_ms) or headers_problem(headers)
    if isinstance(partition, bool) or not isinstance(partition, int) or not 0 <= partition <= PARTITION_MAX:
        problem = f"partition {partition!r:.100} is not valid: give a whole number from 0 to 2**31-1"
    if problem is not None:
        raise InvalidRequest(f"record for topic {topic!r}: {problem}")


def latest_ms(info: TopicInfo, now_ms: int) -> int:
    """The latest timestamp that a topic accepts at this time of the wall clock."""
    limit_ms = info.ahead_max_ms
    if limit_ms is None:
        return TIMESTAMP_MAX_MS
    # A little early: a broker whose clock is behind ours would refuse the whole commit.
    return now_ms + limit_ms - min(CLOCKS_DIFFER_MS, limit_ms // 2)


def check_taken(info: TopicInfo, key: bytes | None, timestamp: int, now_ms: int) -> None:
    """Raise InvalidRequest for a record that this topic refuses by its settings."""
    if key is None and "compact" in info.policy.cleanup:
        raise InvalidRequest(f"a record without a key cannot go into {info.name}, which is compacted: give it a key")
    if timestamp > latest_ms(info, now_ms):
        raise InvalidRequest(
            f"timestamp {timestamp} cannot go into {info.name}, which takes {time_text(info.ahead_max_ms or 0)} ahead "
            f"of the clock at most: correct it, or set {TIMESTAMP_AHEAD} on the topic"
        )


def headers_bytes(headers: Headers) -> int:
    """The size of checked headers in bytes."""
    return sum(len(name.encode()) + len(content or b"") for name, content in headers)


def _bytes_problem(part: str, given: object) -> str | None:
    if type(given) in BYTES_TYPES or isinstance(given, bytes):
        return None
    return f"its {part} is of type {type(given).__name__}: give bytes or None (serialise it first)"


def headers_problem(headers: object) -> str | None:
    """Why a log does not accept these headers; None if it does."""
    if not isinstance(headers, tuple | list):
        return f"its headers are of type {type(headers).__name__}: give a tuple of (name, bytes or None)"
    for header in headers:
        if not isinstance(header, tuple | list) or len(header) != 2:
            return f"{header!r:.100} is not a header: give (name, bytes or None)"
        name, content = header
        if not isinstance(name, str) or _bytes_problem("value", content) is not None:
            return (
                f"header {name!r:.100} is of type {type(name).__name__} with {type(content).__name__}, not text, bytes"
            )
        # A lone surrogate is a str, too, and the log would refuse it only in the middle of a commit.
        try:
            name.encode()
        except UnicodeEncodeError:
            return f"header {name!r:.100} cannot be encoded as UTF-8"
    return None


def checked_size(
    task: TaskId,
    topic: str,
    key: bytes | None,
    value: bytes | None,
    headers: Headers,
    topics: TopicLimits,
    *,
    part_bytes: int,
    record_bytes: int,
) -> int:
    """The size of an output record in bytes. TooLarge for one of which a part or the whole is over a limit."""
    sizes = {"key": len(key or b""), "value": len(value or b"")}
    if headers:
        sizes["headers"] = headers_bytes(headers)
    for part, size in sizes.items():
        if size > part_bytes:
            raise TooLarge(
                f"task {task}: {part} of {size} bytes for topic {topic!r} is over the limit of {part_bytes} bytes: "
                "split it, or raise value_max_bytes together with the log's own message limit"
            )
    size = sum(sizes.values())
    if size > record_bytes:
        raise TooLarge(
            f"task {task}: a record of {size} bytes for topic {topic!r} is over the limit of {record_bytes} bytes for "
            "key, value and headers together: split it, or raise value_max_bytes together with the log's own "
            "message limit"
        )
    if (problem := topics.problem(topic, key, value, headers)) is not None:
        raise TooLarge(f"task {task}: record with key {key!r:.200} for topic {topic!r}: {problem}: {fix_of(topic)}")
    return size


def value_room(
    topic: str, key: bytes | None, headers: Headers, topics: TopicLimits, *, part_bytes: int, record_bytes: int
) -> int:
    """The most bytes of a value beside this key and these headers; below 0 if they are too large by themselves."""
    parts = len(key or b""), headers_bytes(headers)
    if max(parts) > part_bytes:
        return -1
    return min(part_bytes, record_bytes - sum(parts), topics.room(topic, key, headers))
