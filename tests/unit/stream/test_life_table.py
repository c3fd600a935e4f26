"""The table of a task's life: complete, as the page prints it, and without a trap for two instances and a log.

The model has one task, and a log that knows its last owner. It tries all events in all states that two instances reach
together, however long it takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from standfast.stream.tasks.life_table import TABLE, Effect, LifeEvent, LifeState

PAGE = "docs/internals/processing.md"
Table = Mapping[LifeEvent, Mapping[LifeState, tuple[Effect, ...]]]
ACTIVE = (LifeState.RESTORING, LifeState.RUNNING, LifeState.LEAVING)
SETTLED = (LifeState.ABSENT, LifeState.STANDBY, LifeState.RUNNING, LifeState.LOST)


def test_every_event_has_its_effects_in_every_state() -> None:
    assert list(TABLE) == list(LifeEvent)
    assert all(list(row) == list(LifeState) for row in TABLE.values())
    assert {effect for row in TABLE.values() for effects in row.values() for effect in effects} == set(Effect)


def printed() -> Iterator[str]:
    """The table, as the page has it."""
    yield "| event | " + " | ".join(state.value for state in LifeState) + " |"
    yield "|---" * (len(LifeState) + 1) + "|"
    for event, row in TABLE.items():
        cells = (", ".join(effect.value for effect in effects) for effects in row.values())
        yield f"| {event.value} | {' | '.join(cells)} |"


def test_page_prints_the_table(repo_root: Path) -> None:
    text = (repo_root / PAGE).read_text(encoding="utf-8")
    assert "\n".join(printed()) in text, "\n".join(printed())


class One(NamedTuple):
    """The task in one instance. `owns`: its claim is the last one in the log. `due`: an attempt is noted."""

    state: LifeState = LifeState.ABSENT
    owns: bool = False
    wanted: bool = False
    due: bool = False
    by_hand: bool = False  # it failed by an error: its host opens it again


Pair = tuple[One, One]


def after(pair: Pair, me: int, event: LifeEvent, table: Table, *, waits: bool = False) -> Pair:
    """The pair after the effects of an event at one of its instances. `waits`: an opening has to wait, as for a
    directory that is held: the task stays as it is, with an attempt."""
    one, other = pair[me], pair[1 - me]
    if event in (LifeEvent.NAMED, LifeEvent.NAMED_STANDBY, LifeEvent.DROPPED):
        one = one._replace(wanted=event is LifeEvent.NAMED)
    for effect in table[event][one.state]:
        standby = one.state in (LifeState.STANDBY, LifeState.FAILED_STANDBY)
        if effect is Effect.START_OVER:
            free = one.owns or other.state not in ACTIVE
            effect = Effect.STAND_BY if standby and not one.wanted else Effect.OPEN if free else Effect.LOSE
        if waits and effect in (Effect.OPEN, Effect.PROMOTE, Effect.STAND_BY):
            one = one._replace(due=True)
        elif effect in (Effect.OPEN, Effect.PROMOTE):
            one, other = One(LifeState.RESTORING, True, one.wanted), other._replace(owns=False)
        elif effect is Effect.STAND_BY:
            one = One(LifeState.STANDBY, False, one.wanted)
        elif effect is Effect.CLOSE:
            one = One(LifeState.ABSENT, False, one.wanted)
        elif effect is Effect.LOSE:
            one = One(LifeState.LOST, False, one.wanted)
        elif effect is Effect.FAIL:
            one = one._replace(state=LifeState.FAILED_STANDBY if standby else LifeState.FAILED, by_hand=True)
        elif effect is Effect.WAIT:
            one = one._replace(due=True, by_hand=False)
        elif effect is Effect.FORGET:
            one = one._replace(due=False)
    return (one, other) if me == 0 else (other, one)


def due(one: One) -> LifeEvent:
    return LifeEvent.DUE if one.wanted else LifeEvent.DUE_UNNAMED


def events_of(pair: Pair, me: int) -> Iterator[LifeEvent]:
    """The events that this instance can meet now."""
    one, other = pair[me], pair[1 - me]
    yield from (LifeEvent.NAMED, LifeEvent.NAMED_STANDBY, LifeEvent.DROPPED)
    if not one.wanted:
        yield LifeEvent.OFFERED_STANDBY
    if other.state not in ACTIVE:
        yield LifeEvent.OFFERED
    if one.due or one.by_hand:
        yield due(one)
    if one.state in ACTIVE and not one.owns:
        yield LifeEvent.OWNER_SEEN  # its commit is refused
    if one.state not in (LifeState.ABSENT, LifeState.LOST):
        yield from (LifeEvent.NO_ANSWER, LifeEvent.ERROR, LifeEvent.ROWS_LOST, LifeEvent.INTERRUPTED)
        stands_by = one.state in (LifeState.STANDBY, LifeState.FAILED_STANDBY) and not one.wanted
        yield LifeEvent.REOPENED_STANDBY if stands_by else LifeEvent.REOPENED


def moved(pair: Pair, me: int) -> Iterator[Pair]:
    """Moves that need no event: a restore ends, and a task that runs begins to leave."""
    one = pair[me]
    for before, next_ in ((LifeState.RESTORING, LifeState.RUNNING), (LifeState.RUNNING, LifeState.LEAVING)):
        if one.state is before:
            changed = one._replace(state=next_)
            yield (changed, pair[1]) if me == 0 else (pair[0], changed)


def rested(pair: Pair, table: Table) -> Pair:
    """The pair once no further cause comes: attempts are made, restores end, a newer owner is seen, tasks leave."""
    for _ in range(12):
        for me in (0, 1):
            one = pair[me]
            if one.state in ACTIVE and not one.owns:
                pair = after(pair, me, LifeEvent.OWNER_SEEN, table)
            elif one.state is LifeState.LEAVING:
                pair = after(pair, me, LifeEvent.DROPPED, table)
            elif one.due or one.by_hand:
                pair = after(pair, me, due(one), table)
            elif one.state is LifeState.RESTORING:
                pair = next(moved(pair, me))
    return pair


def traps(table: Table) -> set[str]:
    """The faults of all states that the two instances reach."""
    begin = (One(), One())
    seen, todo, found = {begin}, [begin], set()
    while todo:
        pair = todo.pop()
        writers = [one for one in pair if one.state in ACTIVE and one.owns]
        if len(writers) > 1:
            found.add("two writers")
        for one in rested(pair, table):
            if one.state not in SETTLED:
                found.add(f"stays {one.state.value}")
            if one.state in ACTIVE and not one.owns:
                found.add("runs beside a newer owner")
            if one.wanted and one.state in (LifeState.ABSENT, LifeState.STANDBY):
                found.add("wanted, and not opened")
        each = ((me, event, waits) for me in (0, 1) for event in events_of(pair, me) for waits in (False, True))
        ways = [after(pair, me, event, table, waits=waits) for me, event, waits in each]
        for next_ in [*ways, *moved(pair, 0), *moved(pair, 1)]:
            if next_ not in seen:
                seen.add(next_)
                todo.append(next_)
    assert len(seen) > 100
    return found


def test_no_order_of_events_leaves_a_task_of_two_instances_in_a_trap() -> None:
    assert traps(TABLE) == set()


@pytest.mark.parametrize(
    ("event", "state", "effects", "trap"),
    [
        (LifeEvent.DUE, LifeState.FAILED, (), "stays failed"),
        (LifeEvent.DUE_UNNAMED, LifeState.FAILED_STANDBY, (Effect.FORGET,), "stays failed standby"),
        (LifeEvent.NAMED, LifeState.STANDBY, (), "wanted, and not opened"),
        (LifeEvent.NAMED, LifeState.FAILED_STANDBY, (Effect.CLOSE,), "wanted, and not opened"),
        (LifeEvent.DUE, LifeState.FAILED, (Effect.CLOSE,), "wanted, and not opened"),
        (LifeEvent.OWNER_SEEN, LifeState.RUNNING, (Effect.WAIT,), "runs beside a newer owner"),
        (LifeEvent.NO_ANSWER, LifeState.RUNNING, (Effect.CLOSE,), "wanted, and not opened"),
    ],
)
def test_a_wrong_cell_is_a_trap(event: LifeEvent, state: LifeState, effects: tuple[Effect, ...], trap: str) -> None:
    wrong = {**TABLE, event: {**TABLE[event], state: effects}}
    assert trap in traps(wrong)
