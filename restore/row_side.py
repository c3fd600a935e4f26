"""One side of a row that is wrong, as a verify keeps it: its time, the size of its value, a hash; the value if asked.

A verify may find millions of rows, and their values may be nobody's business: what leaves a task is bounded and says
nothing of a value but its size and a hash, unless the caller asks for values.

Rules of this file: pure.
"""

from __future__ import annotations

from typing import NamedTuple

from standfast.restore.digest import LogicalRow, row_hash

VALUE_MAX_BYTES = 4_096  # of a value that is kept for a report


class RowSide(NamedTuple):
    """A row of the log or of the store. `value`: its first bytes, None if values were not asked for.

    `value_bytes` is the size of the whole value, `hash` that of the row (`standfast.restore.digest.row_hash`).
    """

    timestamp: int
    value: bytes | None
    value_bytes: int
    hash: int

    @property
    def hash_hex(self) -> str:
        """As reports write it."""
        return f"{self.hash:016x}"


def row_side(row: LogicalRow | None, value_max: int | None) -> RowSide | None:
    """A row as it is kept: `value_max` bytes of the value, 0 for none of it, None for all."""
    if row is None:
        return None
    key, timestamp, value = row
    kept = value if value_max is None else value[:value_max] if value_max else None
    return RowSide(timestamp, kept, len(value), row_hash(key, timestamp, value))
