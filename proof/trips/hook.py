"""Counts calls of the product's functions, and the files that they stand in, in every thread of this process.

    install() ──> with counted() as trip: ... ──> trip.calls, trip.files

Rules of this file: the interpreter's profile hook; it counts Python functions alone, no calls of compiled code.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import standfast

ROOT = Path(standfast.__file__).resolve().parents[1]
ROOMS = tuple(f"{ROOT / room}/" for room in ("store", "replication", "restore", "stream", "ops"))


@dataclass(slots=True)
class Trip:
    """Calls by product file."""

    by_file: dict[str, int] = field(default_factory=dict)

    @property
    def calls(self) -> int:
        """The number of calls."""
        return sum(self.by_file.values())

    @property
    def files(self) -> int:
        """The number of files."""
        return len(self.by_file)

    def add(self, other: Trip) -> None:
        """Count the calls of another trip, too."""
        for name, calls in other.by_file.items():
            self.by_file[name] = self.by_file.get(name, 0) + calls


_current: Trip | None = None


def _count(frame: FrameType, event: str, arg: object) -> None:
    trip = _current
    name = frame.f_code.co_filename
    if event == "call" and trip is not None and name.startswith(ROOMS):
        trip.by_file[name] = trip.by_file.get(name, 0) + 1


def install() -> None:
    """Let this thread and all later ones count."""
    threading.setprofile(_count)
    sys.setprofile(_count)


def begin() -> Trip:
    """Count from now on."""
    global _current
    _current = Trip()
    return _current


def end() -> None:
    """Count no more."""
    global _current
    _current = None


@contextmanager
def counted() -> Iterator[Trip]:
    """Count the calls of the block."""
    trip = begin()
    try:
        yield trip
    finally:
        end()
