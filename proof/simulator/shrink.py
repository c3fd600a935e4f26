"""Makes the plan of a failure smaller while the same checker alarms, and tells what is left as a story.

    plan ──> fewer faults ──> fewer instances ──> fewer records ──> ... until nothing can be left out ──> story

Rules of this file: a plan is changed by leaving out alone, so that all other choices of its seed stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from simulator.plan import OWN_CONSUMER, Plan
from simulator.run import Outcome

STEPS_MAX = 20
RUNS_MAX = 80


def shrink(failed: Outcome, run: Callable[[Plan], Outcome]) -> Outcome:
    """The smallest failure found within RUNS_MAX runs."""
    checker, runs = failed.alarms[0].checker, 0
    while runs < RUNS_MAX:
        for plan in _smaller(failed.plan):
            runs += 1
            tried = run(plan)
            if any(alarm.checker == checker for alarm in tried.alarms):
                failed = tried
                break
            if runs >= RUNS_MAX:
                return failed
        else:
            return failed
    return failed


def _smaller(plan: Plan) -> Iterator[Plan]:
    """Plans with less, the much smaller ones first."""
    faults = plan.faults
    half = len(faults) // 2
    if half > 1:
        yield replace(plan, faults=faults[:half])
        yield replace(plan, faults=faults[half:])
    for index in range(len(faults)):
        yield replace(plan, faults=faults[:index] + faults[index + 1 :])
    if plan.machines > 1:
        machines = plan.machines - 1
        yield replace(plan, machines=machines, faults=tuple(one for one in faults if one.machine < machines))
    if plan.records > 20:
        yield replace(plan, records=plan.records // 2)
    if plan.standbys:
        yield replace(plan, standbys=0)


def story(outcome: Outcome) -> str:
    """The failure in at most STEPS_MAX steps of plain words, and the command that repeats it."""
    plan = outcome.plan
    host = " under consumers of their own" if plan.hosting == OWN_CONSUMER else ""
    begin = (
        f"{plan.machines} instances run program {plan.program!r}{host} over {plan.partitions} partitions on a log like "
        f"{plan.style}, {plan.guarantee}, {plan.standbys} standbys, lease {plan.lease_ms} ms: {plan.records} records"
    )
    alarms = [f"{alarm}" for alarm in outcome.alarms[:3]]
    room = STEPS_MAX - 1 - len(alarms)
    events = outcome.events
    if len(events) > room:
        events = [
            *events[: room // 2],
            f"... {len(events) - room + 1} further events ...",
            *events[len(events) - (room - room // 2 - 1) :],
        ]
    steps = [begin, *events, *alarms]
    told = "\n".join(f"{number:3}. {step}" for number, step in enumerate(steps, 1))
    return f"{told}\nrepeat: python -m simulator --seed {plan.seed}{_options(plan)}"


def _options(plan: Plan) -> str:
    """What differs from the plan of the seed."""
    from simulator.plan import draw_plan

    whole = draw_plan(plan.seed)
    options = [
        f" --{name} {getattr(plan, name)}"
        for name in ("machines", "records", "standbys")
        if getattr(plan, name) != getattr(whole, name)
    ]
    if plan.faults != whole.faults:
        kept = ",".join(str(number) for number, fault in enumerate(whole.faults) if fault in plan.faults) or "none"
        options.append(f" --faults {kept}")
    return "".join(options)
