"""How often each kind of fault met each kind of call, and each state of a task, over many worlds.

Rules of this file: a cell that can be reached and was not is named; UNREACHABLE says of the others why.
"""

from __future__ import annotations

from collections import Counter

from simulator.faults import PLACES, Kind, family_of
from simulator.run import Outcome

UNREACHABLE = {
    Kind.JOIN: "it is a start, and no call",
}


class Coverage:
    """Counts of all worlds."""

    def __init__(self) -> None:
        self._met: Counter[tuple[str, str]] = Counter()  # by kind, and family of calls or state

    def add(self, outcome: Outcome) -> None:
        """Count what one world met."""
        for (kind, name), count in outcome.met.items():
            self._met[kind, family_of(name)] += count
        self._met.update(outcome.states)

    def missing(self) -> list[str]:
        """Cells that can be reached and were not."""
        kinds = [kind.value for kind in Kind if kind not in UNREACHABLE]
        return [f"{kind} x {name}" for kind in kinds for name in PLACES if not self._met[kind, name]]

    def table(self) -> str:
        """The counts as text."""
        lines = [" " * 10 + "".join(f"{name.split('.')[-1].replace(' ', '-')[-10:]:>11}" for name in PLACES)]
        for kind in Kind:
            if kind not in UNREACHABLE:
                lines.append(f"{kind.value:10}" + "".join(f"{self._met[kind.value, one]:11}" for one in PLACES))
        return "\n".join(lines)
