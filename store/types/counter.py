"""The counter store.

row     key -> 8 bytes, big-endian, signed          one family, named as the store
log     the same key -> the same value              compacted

Rules of this file: the codec of a key-value store; only `add` and `total` are its own.
"""

from __future__ import annotations

import struct
from typing import Any

from standfast.store.errors import InvalidRequest
from standfast.store.specs import K
from standfast.store.types.keyvalue import KeyValueState

_TOTAL = struct.Struct(">q")


class CounterState(KeyValueState[K, Any]):
    """A task's counter store."""

    def total(self, key: K) -> int:
        """The sum of a key; 0 before its first `add`."""
        row = self.rows.get(self.name, self._encode_key(key))
        total: int = 0 if row is None else _TOTAL.unpack(row)[0]
        return total

    def add(self, key: K, number: int, timestamp: int | None = None) -> int:
        """Add to the sum of a key and return it; InvalidRequest beyond 64 bits, and nothing changes."""
        total = self.total(key) + number
        try:
            raw = _TOTAL.pack(total)
        except struct.error as error:
            raise InvalidRequest(f"store {self.name!r}: the sum {total} does not fit into 64 bits") from error
        self.put_raw(self._encode_key(key), raw, self._timestamp(timestamp))
        return total
