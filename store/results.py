"""Values that reads return.

Rules of this file: plain immutable tuples without behaviour.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K")
V = TypeVar("V")

# The end of the latest version (Kafka Streams: VersionedKeyValueStore.PUT_RETURN_CODE_VALID_TO_UNDEFINED).
VALID_TO_UNDEFINED = -1
# The put was older than the history retention and was refused (Kafka Streams: PUT_RETURN_CODE_NOT_PUT).
PUT_NOT_VALID = -(2**63)


class ValueAndTimestamp(NamedTuple, Generic[V]):
    """A value with the timestamp of its newest input, in milliseconds."""

    value: V
    timestamp: int


class VersionedRecord(NamedTuple, Generic[V]):
    """A value valid for valid_from <= t < valid_to; valid_to is VALID_TO_UNDEFINED (-1) for the latest."""

    value: V
    valid_from: int
    valid_to: int


class Windowed(NamedTuple, Generic[K]):
    """A key within a window: start <= t < end for time windows, start <= t <= end for sessions."""

    key: K
    start: int
    end: int
