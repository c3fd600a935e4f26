"""Output records as the log takes them, checked where they are sent and not when the commit writes them.

Rules of this file: pure. What only the log knows (whether topic and partition exist, whether the topic is compacted)
shows at the commit.
"""

from __future__ import annotations

from standfast.replication.log import Headers
from standfast.store.errors import InvalidRequest
from standfast.store.timestamps import timestamp_problem

BYTES_TYPES = frozenset({bytes, bytearray, memoryview, type(None)})
PARTITION_MAX = 2**31 - 1


def check_output(
    topic: str, key: object, value: object, timestamp: object, partition: object, headers: object, least_ms: int
) -> None:
    """Raise InvalidRequest for a record that no log takes. `least_ms`: the least timestamp of this one."""
    problem = _bytes_problem("key", key) or _bytes_problem("value", value)
    problem = problem or timestamp_problem(timestamp, least_ms) or _headers_problem(headers)
    if isinstance(partition, bool) or not isinstance(partition, int) or not 0 <= partition <= PARTITION_MAX:
        problem = f"partition {partition!r:.100} is none: give a whole number from 0 to 2**31-1"
    if problem is not None:
        raise InvalidRequest(f"record for topic {topic!r}: {problem}")


def headers_bytes(headers: Headers) -> int:
    """What checked headers count for."""
    return sum(len(name.encode()) + len(content or b"") for name, content in headers)


def _bytes_problem(part: str, given: object) -> str | None:
    if type(given) in BYTES_TYPES or isinstance(given, bytes):
        return None
    return f"its {part} is of type {type(given).__name__}: give bytes or None (serialise it first)"


def _headers_problem(headers: object) -> str | None:
    if not isinstance(headers, tuple | list):
        return f"its headers are of type {type(headers).__name__}: give a tuple of (name, bytes or None)"
    for header in headers:
        if not isinstance(header, tuple | list) or len(header) != 2:
            return f"header {header!r:.100} is none: give (name, bytes or None)"
        name, content = header
        if not isinstance(name, str) or _bytes_problem("value", content) is not None:
            return (
                f"header {name!r:.100} is of type {type(name).__name__} with {type(content).__name__}, not text, bytes"
            )
        try:
            name.encode()
        except UnicodeEncodeError:
            return f"header {name!r:.100} is no text that UTF-8 can hold"
    return None
