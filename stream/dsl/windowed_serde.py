"""Serdes for the keys of windowed results.

    windowed           key | start 8              "A", 60000            ->  41 000000000000ea60
    session_windowed   key | end 8 | start 8      "A", start 10, end 20 ->  41 0000000000000014 000000000000000a

Big-endian. The end of a time window is not written: a reader must know the window size.

Rules of this file: bytes only; equal to Kafka Streams' TimeWindowedSerde and SessionWindowedSerde, byte for byte.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import Any

from standfast.store.results import Windowed
from standfast.store.serde import Serde
from standfast.store.window_key import end_of

_START = struct.Struct(">q")
_END_START = struct.Struct(">qq")


@cache  # the same object each time: streams compare their serdes, and those with equal keys must compare equal
def windowed(key: Serde[Any], size_ms: int) -> Serde[Windowed[Any]]:
    """For `Windowed(key, start, start + size_ms)`: keys of tumbling, hopping, sliding and unlimited windows."""

    write = key.of_part("key").serialize

    def serialize(given: Windowed[Any]) -> bytes:
        plain, start, end = _checked(given)
        if end != end_of(start, size_ms):
            raise ValueError(f"window {start}..{end} is not {size_ms} ms long")
        return write(plain) + _START.pack(start)

    def deserialize(raw: bytes) -> Windowed[Any]:
        start = _START.unpack_from(raw, len(raw) - _START.size)[0]
        return Windowed(key.deserialize(raw[: -_START.size]), start, end_of(start, size_ms))

    bind = None if key.bind is None else lambda topic, part: windowed(key.of_topic(topic, part), size_ms)
    return Serde(f"windowed({key.name},{size_ms})", serialize, deserialize, bind)


@cache
def session_windowed(key: Serde[Any]) -> Serde[Windowed[Any]]:
    """For `Windowed(key, start, end)` of a session, both times included."""

    write = key.of_part("key").serialize

    def serialize(given: Windowed[Any]) -> bytes:
        plain, start, end = _checked(given)
        return write(plain) + _END_START.pack(end, start)

    def deserialize(raw: bytes) -> Windowed[Any]:
        end, start = _END_START.unpack_from(raw, len(raw) - _END_START.size)
        return Windowed(key.deserialize(raw[: -_END_START.size]), start, end)

    bind = None if key.bind is None else lambda topic, part: session_windowed(key.of_topic(topic, part))
    return Serde(f"session_windowed({key.name})", serialize, deserialize, bind)


def _checked(given: Windowed[Any]) -> Windowed[Any]:
    if type(given) is not Windowed:
        raise TypeError(f"it takes Windowed(key, start, end), not {type(given).__name__}")
    if not 0 <= given.start <= given.end:
        raise ValueError(f"a window {given.start}..{given.end} is negative or ends before it starts")
    return given
