"""Error policies of sources and steps: how a failure is handled, and which policy holds where.

    on_error="fail"          the task fails with the error
    on_error="skip"          the record is rolled back as a whole, and counted
    on_error="dead_letter"   the same, and written to the topic `dead_letter`, with headers that say why

A source's policy covers each of its records; a step's covers each record that reaches the step, instead of the
source's. Both cover everything that these cause further downstream, also work without a record in hand: results that a
cache held back or that a window gave as it closed, timers, and everything behind a repartition or broadcast topic.
Where branches merge, the strictest holds for that work: "fail" before "dead_letter" before "skip", and the first
declared of equals.

Rules of this file: plain frozen data, checked on construction; carried out in `standfast.stream.runtime.guard`,
assigned to each node in `standfast.stream.topology.inherited`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypedDict, get_args

from standfast.store.errors import BadConfig, InvalidRequest
from standfast.store.names import check_topic
from standfast.stream.topology.drops import REASONS

OnError = Literal["fail", "skip", "dead_letter"]
_STRICTNESS = ("fail", "dead_letter", "skip")


class OnErrorOptions(TypedDict, total=False):
    """Keyword arguments for the handling of failures in a step:

    on_error     "fail", "skip" (counted) or "dead_letter"; None: as the step before
    dead_letter  topic for failed records, as they were read, with headers that say why
    """

    on_error: OnError | None
    dead_letter: str | None


class StepOptions(OnErrorOptions, total=False):
    """Keyword arguments of every step:

    name         of the step; its skipped records are counted under it. None: numbered by kind
    on_error     "fail", "skip" (counted) or "dead_letter"; None: as the step before
    dead_letter  topic for failed records, as they were read, with headers that say why
    """

    name: str | None


@dataclass(frozen=True, slots=True)
class ErrorPolicy:
    """`step` owns the policy, and skipped records are counted by it; None: a source's, counted by the reason."""

    on_error: OnError = "fail"
    dead_letter: str | None = None
    step: str | None = None

    @property
    def protects(self) -> bool:
        """Whether failures are skipped."""
        return self.on_error != "fail"

    def counted_as(self, reason: str) -> str:
        """The name under which a skipped record is counted."""
        return self.step or reason


FAIL = ErrorPolicy()


def strictest(policies: Iterable[ErrorPolicy]) -> ErrorPolicy:
    """The policy where several meet; "fail" if there is none."""
    return min(policies, key=lambda one: _STRICTNESS.index(one.on_error), default=FAIL)


def on_error_problems(on_error: object, dead_letter: str | None) -> list[str]:
    """The problems of the two settings, each with its fix."""
    problems = []
    if on_error not in get_args(OnError):
        problems.append(f"on_error must be one of {', '.join(get_args(OnError))}, not {on_error!r}")
    if dead_letter is not None:
        try:
            check_topic(dead_letter)
        except InvalidRequest as error:
            problems.append(f"dead_letter: {error}")
    if (on_error == "dead_letter") != (dead_letter is not None):
        problems.append('on_error="dead_letter" and dead_letter="<topic>" belong together: give both or neither')
    return problems


def step_policy(step: str, on_error: OnError | None = None, dead_letter: str | None = None) -> ErrorPolicy | None:
    """A step's own policy; None if it has none. BadConfig for invalid settings."""
    if on_error is None and dead_letter is None:
        return None
    problems = on_error_problems(on_error, dead_letter)
    # Counts by step and by reason share one table, so a step named "timer" would add to the timers' count.
    if step in REASONS:
        problems.append(f"the name is that of another count ({', '.join(REASONS)}): give it another name=")
    if problems:
        raise BadConfig([f"step {step!r}: {problem}" for problem in problems])
    assert on_error is not None  # or there was a problem
    return ErrorPolicy(on_error, dead_letter, step)
