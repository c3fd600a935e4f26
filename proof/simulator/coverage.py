"""How often each kind of fault met each kind of call, and each state of a task, over many worlds.

Rules of this file: a cell that can be reached and was not is named; UNREACHABLE says of the others why.
"""

from __future__ import annotations

from collections import Counter

from simulator.faults import CALLS, STATES, Kind, family_of
from simulator.run import Outcome

UNREACHABLE = {
    Kind.JOIN: "it is a start, and no call",
}


class Coverage:
    """Counts of all worlds."""

    def __init__(self) -> None:
        self._calls: Counter[tuple[str, str]] = Counter()
        self._states: Counter[tuple[str, str]] = Counter()

    def add(self, outcome: Outcome) -> None:
        """Count what one world met."""
        for (kind, name), count in outcome.met.items():
            self._calls[kind, family_of(name)] += count
        self._states.update(outcome.states)

    def missing(self) -> list[str]:
        """Cells that can be reached and were not."""
        kinds = [kind for kind in Kind if kind not in UNREACHABLE]
        cells = [(kind.value, name, self._calls) for kind in kinds for name in CALLS]
        cells += [(kind.value, name, self._states) for kind in kinds for name in STATES]
        return [f"{kind} x {name}" for kind, name, counts in cells if not counts[kind, name]]

    def table(self) -> str:
        """The counts as text."""
        columns = (*CALLS, *STATES)
        lines = [" " * 10 + "".join(f"{name.split('.')[-1].replace(' ', '-')[-10:]:>11}" for name in columns)]
        for kind in Kind:
            if kind not in UNREACHABLE:
                row = [
                    *(self._calls[kind.value, one] for one in CALLS),
                    *(self._states[kind.value, one] for one in STATES),
                ]
                lines.append(f"{kind.value:10}" + "".join(f"{count:11}" for count in row))
        return "\n".join(lines)
