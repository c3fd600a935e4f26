"""The plan of a world: everything that its seed decides before it begins, as one plain value.

Rules of this file: a smaller plan (fewer instances, faults or records) keeps all other choices, so that a failure can
be shrunk.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import get_args

from simulator.draws import Draws
from simulator.faults import RESTORING, STAYS_MS, USUAL, Fault, Kind, draw_fault, draw_faults, draw_rebalances
from standfast.restore.gate import Policy
from standfast.stream.task.settings import Guarantee

FEED_MS = 8_000
PROGRAMS = ("count", "windows", "rekeyed")
TABLE = "table"  # a fourth of the worlds, by a question of its own
DELETES = "deletes"  # an eighth of them, likewise
GUARANTEES: tuple[Guarantee, ...] = ("exactly_once", "exactly_once", "at_least_once")
BY_CALL: dict[str, Guarantee] = {"log.append": "at_least_once", "log.transact": "exactly_once"}
LOG_STYLES = ("embedded", "kafka")
OWN_CONSUMER = "consumer"  # some of the worlds, by a question of its own: they are all of one program and log


@dataclass(frozen=True, slots=True)
class Plan:
    """See the head of this file. Times in milliseconds; `records` is their number in all."""

    seed: int
    program: str
    style: str
    guarantee: Guarantee
    machines: int
    partitions: int
    keys: int
    records: int
    feed_ms: int  # in which they come
    idle_ms: int  # of an instance that had nothing to do
    standbys: int
    lease_ms: int
    commit_interval_ms: int
    gate: Policy
    snapshots: bool
    faults: tuple[Fault, ...]
    client: bool = False  # a second client writes to the source, in transactions
    checkpoints: bool = False  # the snapshots are parts of coordinated checkpoints
    hosting: str = "app"


def draw_plan(seed: int) -> Plan:
    """The plan of a seed."""
    draws = Draws(seed)
    machines = draws.choice((2, 2, 3, 3, 4), "machines")
    lease_ms = draws.choice((600, 1_500, 3_000), "lease")
    program = TABLE if draws.below(4, "table") == 0 else draws.choice(PROGRAMS, "program")
    program = DELETES if draws.below(8, "deletes") == 0 else program
    faults = list(draw_faults(draws, machines, 1_000, FEED_MS))
    snapshots = draws.below(3, "snapshots") == 0
    # An application writes to the log by one of two calls: where a fault is at one of them, it decides.
    called: list[Guarantee] = [BY_CALL[fault.call] for fault in (faults[-1], faults[0]) if fault.call in BY_CALL]
    guarantee = called[0] if called else draws.choice(GUARANTEES, "guarantee")
    if program == DELETES:
        faults.append(draw_fault(draws, ("age",), (Kind.AGE,), machines, 1_000, FEED_MS))
    # A standby takes over at once: a fault that waits for a restore for long needs worlds without them.
    cold = any(fault.state == RESTORING and fault.stays_ms > STAYS_MS for fault in faults)
    plan = Plan(
        seed=seed,
        program=program,
        style=draws.choice(LOG_STYLES, "style"),
        guarantee=guarantee,
        machines=machines,
        partitions=1 + draws.below(4, "partitions"),
        keys=3 + draws.below(20, "keys"),
        records=300 + draws.below(60, "records"),
        feed_ms=FEED_MS,
        idle_ms=min(draws.choice((100, 250, 400), "idle"), lease_ms // 4),
        standbys=0 if cold else draws.below(min(machines, 3), "standbys"),
        lease_ms=lease_ms,
        commit_interval_ms=draws.choice((50, 200, 1_000), "commit"),
        gate=draws.choice(get_args(Policy), "gate"),
        snapshots=snapshots,
        faults=tuple(faults),
        client=draws.below(4, "client") == 0,
        checkpoints=snapshots and draws.below(2, "checkpoints") == 0,
    )
    if draws.seed % 2 or draws.below(4, "under a consumer"):
        return plan
    rebalances = list(draw_rebalances(draws, machines, 1_000, FEED_MS))
    return replace(
        plan,
        hosting=OWN_CONSUMER,
        program="count",
        style="kafka",
        guarantee=BY_CALL.get(rebalances[0].call, plan.guarantee),
        client=False,
        faults=(*(one for one in plan.faults if one.kind in USUAL), *rebalances),
    )
