"""Faults: what the environment does to a world. Each is one plain value, so that a story can leave any of them out.

    at_ms       simulated time from which the fault waits for its place
    call, skip  the place: the call of that name after `skip` others of that name; "" is any call of the process
    state       a task of the process must be in that role and state, "" for any
    after       whether the effect of that call happens first
    for_ms      how long it lasts: a pause, a cut; until a process that ended starts again
    stays_ms    how long it waits for its place: one that has not met it by then has none

Rules of this file: it draws faults and knows what they are; `world.py` carries them out. docs/internals/simulator.md
lists what an environment may do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from simulator.draws import Draws


class Kind(Enum):
    """What happens."""

    # to a process
    KILL = "kill"  # it ends between two calls, as by SIGKILL
    POWER = "power"  # so does its machine: unsynced writes are lost
    PAUSE = "pause"  # it stands still, as by SIGSTOP, often for longer than its lease
    STOP = "stop"  # the application ends cleanly, as by SIGTERM
    JOIN = "join"  # a further instance starts late
    RAISE = "raise"  # the application's code raises an exception once
    LISTENER = "listener"  # a listener of it raises an exception once
    WORD = "word"  # its lease process takes it for dead; after a kill it is right
    REBALANCE = "rebalance"  # the group of its own consumer begins a new generation, perhaps without it
    # to its machine
    DAMAGE = "damage"  # a byte of a file changes while the process is down
    WIPE = "wipe"  # the state directory is gone when the process starts again
    CLOCK = "clock"  # the wall clock jumps
    FULL = "full"  # the disk takes no new bytes
    READ_ONLY = "read-only"  # the disk takes no change
    CRAWL = "crawl"  # each change of the disk takes long
    # to its line to the log
    CUT = "cut"  # the log does not answer; a call under way may have had its effect
    LOST = "lost"  # one answer is lost: its effect happened
    SLOW = "slow"  # each call takes long
    # to the log
    AWAY = "away"  # one partition has no leader, or another process holds the lock of an embedded log
    LATE = "late"  # readers of one partition see acknowledged records later
    COMPACT = "compact"  # its care runs: compaction, and the end of old tombstones
    # to the storage of snapshots
    VANISH = "vanish"  # an object is gone
    STORAGE = "storage"  # it does not answer
    BLIND = "blind"  # it does not answer, and the state directory is gone when the process starts again
    # by the people who run the application and its log, and by other clients of the log
    ROLL = "roll"  # all instances end cleanly and start again, one after the other
    CHANGE = "change"  # so do one or all, and start with another program
    TRUNCATE = "truncate"  # the head of a topic is removed
    RECREATE = "recreate"  # a changelog is deleted and created while no instance runs
    HANG = "hang"  # the ends of transactions come late in one partition; a client keeps the lock of an embedded log
    AGE = "age"  # the process is away for days, and the others stand still meanwhile: old tombstones are gone


PROCESS_ENDS = (Kind.KILL, Kind.POWER, Kind.DAMAGE, Kind.WIPE, Kind.BLIND, Kind.AGE)
OPENING = "log.open_writer"  # a task opens
CALLS = ("log.append", "log.transact", "log.fetch", OPENING, "log.other", "group", "admin", "engine", "file")
RESTORING = "active restoring"
STATES = ("not open", "no task", RESTORING, "active running", "standby standby")
ENDS = (*PROCESS_ENDS, Kind.STOP)
# In half of the worlds.
FURTHER = (Kind.BLIND, Kind.ROLL, Kind.CHANGE, Kind.TRUNCATE, Kind.RECREATE, Kind.HANG, Kind.AGE)
USUAL = tuple(kind for kind in Kind if kind not in (*FURTHER, Kind.REBALANCE))
PLACES = (*CALLS, *STATES)
AT_ONCE = (OPENING, "not open", "file")  # the first instance of each world opens its folder and its first tasks
STRIDE = 127  # no factor of a number of cells, so that consecutive seeds have different kinds and all places
STAYS_MS = 4_000
SKIP_MAX = 4  # calls that a fault in turn lets pass
LONGEST_MS = 8_000
FURTHER_LONGEST_MS = 15_000


@dataclass(frozen=True, slots=True)
class Fault:
    """See the head of this file. `machine` is the number of an instance."""

    kind: Kind
    machine: int
    at_ms: int
    call: str = ""
    skip: int = 0
    state: str = ""
    after: bool = False
    for_ms: int = 0
    stays_ms: int = STAYS_MS

    def __str__(self) -> str:
        state = f" with {self.state}" if self.state else ""
        where = f"{state} at {self.call or 'a call'} {self.skip + 1}{', after its effect' if self.after else ''}"
        lasts = f", for {self.for_ms} ms" if self.for_ms else ""
        return f"{self.at_ms} ms: {self.kind.value} of instance {self.machine}{where}{lasts}"


def draw_faults(draws: Draws, machines: int, from_ms: int, until_ms: int) -> Iterator[Fault]:
    """The faults of one world: three at least. The first ones of consecutive seeds take each kind and place in turn."""
    yield from _in_turn(draws, draws.seed, USUAL, machines, from_ms, until_ms)
    for number in range(1, 3 + draws.below(8, "faults")):
        yield draw_fault(draws, ("fault", number), USUAL, machines, from_ms, until_ms)
    if draws.seed % 2:
        # Two cells that are half of the table apart: few worlds have these kinds, and some cells are seldom met.
        for turn in (draws.seed // 2, (draws.seed + len(FURTHER) * len(PLACES)) // 2):
            yield from _in_turn(draws, turn, FURTHER, machines, from_ms, until_ms)


def _in_turn(
    draws: Draws, turn: int, kinds: Sequence[Kind], machines: int, from_ms: int, until_ms: int
) -> Iterator[Fault]:
    """A fault whose kind and place its turn decides, and what brings a seldom place about."""
    cells = [(kind, place) for kind in kinds for place in PLACES]
    kind, place = cells[turn * STRIDE % len(cells)]
    fault = draw_fault(draws, ("turn", len(kinds), turn), (kind,), machines, from_ms, until_ms, (place,))
    if kind is Kind.TRUNCATE:  # a copy that stands still meanwhile is behind the log's new head
        yield Fault(Kind.PAUSE, (fault.machine + 1) % machines, max(fault.at_ms - 500, from_ms), for_ms=LONGEST_MS)
    if place in AT_ONCE:
        yield replace(fault, machine=0, at_ms=0, skip=0, stays_ms=until_ms + FURTHER_LONGEST_MS)  # another may be first
    elif place == RESTORING:
        yield replace(fault, machine=1, at_ms=from_ms, stays_ms=until_ms)
        yield Fault(Kind.KILL, machine=0, at_ms=(from_ms + until_ms) // 2, for_ms=LONGEST_MS)  # it has tasks by then
    else:
        yield replace(fault, skip=fault.skip % SKIP_MAX)


def draw_fault(
    draws: Draws,
    about: tuple[str | int, ...],
    kinds: Sequence[Kind],
    machines: int,
    from_ms: int,
    until_ms: int,
    places: Sequence[str] = PLACES,
) -> Fault:
    """One fault; `about` is the question by which it is drawn."""
    kind, place = draws.choice(kinds, *about, "kind"), draws.choice(places, *about, "place")
    longest_ms = FURTHER_LONGEST_MS if kind in FURTHER else LONGEST_MS
    return Fault(
        kind,
        machine=draws.below(machines, *about, "machine"),
        at_ms=from_ms + draws.below(until_ms - from_ms, *about, "at"),
        call=place if place in CALLS else "",
        skip=draws.below(draws.choice((1, 5, 40), *about, "far"), *about, "skip") if place in CALLS else 0,
        state=place if place in STATES else "",
        after=bool(draws.below(2, *about, "after")),
        for_ms=100 + draws.below(draws.choice((400, 3_000, longest_ms), *about, "long"), *about, "lasts"),
    )


def draw_rebalances(draws: Draws, machines: int, from_ms: int, until_ms: int) -> Iterator[Fault]:
    """Rebalances of the group of an application's own consumers; with `after` it takes the instance for dead."""
    yield from _in_turn(draws, draws.seed // 2, (Kind.REBALANCE,), machines, from_ms, until_ms)
    for number in range(draws.below(4, "rebalances")):
        yield draw_fault(draws, ("rebalance", number), (Kind.REBALANCE,), machines, from_ms, until_ms)


def family_of(name: str) -> str:
    """The one of CALLS that a call's name belongs to."""
    part = name.partition(".")[0]
    return name if name in CALLS else "log.other" if part == "log" else part
