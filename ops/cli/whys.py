"""Reasons of a placement below the tables that refer to them: a leader gives one reason to many tasks and moves.

    task  active  why           why 1: no instance has its rows; of those below their share a has the fewest tasks (1)
    0_2   a         1           why 2: it runs on a, which keeps it
    0_3   a         2

Rules of this file: numbers and printing alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from standfast.ops.shared.output import Output


class Whys:
    """The reasons of the tables of one command."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, why: str) -> int | None:
        """The number that stands for a reason; None for none."""
        return self._numbers.setdefault(why, len(self._numbers) + 1) if why else None

    def show(self, out: Output) -> None:
        """Print each reason once, by its number."""
        if self._numbers:
            out.line()
        for why, number in self._numbers.items():
            label = f"why {number}: "
            out.text(label + why, len(label))
