"""The format of records of a placement topic, checked before anything else of a record.

Rules of this file: pure.
"""

from __future__ import annotations

from typing import TypeVar

from standfast.replication.shapes import Shape, read

FORMAT = 1
T = TypeVar("T")


class _Head(Shape, frozen=True, forbid_unknown_fields=False):
    standfast: int


def read_known(raw: bytes, kind: type[T]) -> T:
    """The value of a record. Raises ValueError; for a newer format it names that, whatever else is in the record."""
    head = read(raw, _Head)
    if head.standfast != FORMAT:
        raise ValueError(f"it has format {head.standfast}, this version reads {FORMAT}")
    return read(raw, kind)
