"""How long a member of a group has been busy: published with each renewal of its lease, by its lease process.

    [2900, 3100]             2.9 s since its last look at the placement; the record in hand of its loop runs for 3.1 s
    [0, 0, 4000]             an instance of two worker processes: the second one has had a record in hand for 4 s
    nothing                  idle, and every member of a version that does not publish it

A renewal of an idle member has no such numbers, so that its records stay equal, byte by byte.

Rules of this file: a value alone. Durations by the member's own clock, as of the renewal.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Busy(NamedTuple):
    """`look_ms`: since the last look at the placement; `loops_ms`: since each loop last made a step, by worker.

    An instance of one process has one loop. 0 stands for any time that is too short to matter.
    """

    look_ms: int = 0
    loops_ms: tuple[int, ...] = ()

    @classmethod
    def of(cls, numbers: Iterable[int]) -> Busy:
        """Inverse of `numbers`."""
        look_ms, *loops_ms = tuple(numbers) or (0,)
        return cls(look_ms, tuple(loops_ms))

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers to publish; none of an idle member."""
        return (self.look_ms, *self.loops_ms) if self.look_ms or any(self.loops_ms) else ()

    def of_worker(self, number: int | None) -> int:
        """How long a worker process, by its number from 1, has been busy; None: any of them, or the only process."""
        if number is not None and number <= len(self.loops_ms):
            return max(self.look_ms, self.loops_ms[number - 1])
        return max(self.look_ms, *self.loops_ms, 0)


IDLE = Busy()
