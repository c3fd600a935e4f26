"""Worlds in which the simulator found a bug of the product: each is a script, and stays right."""

from __future__ import annotations

import pytest

from simulator.faults import Fault, Kind
from simulator.plan import Plan
from simulator.run import run

FORMER_OWNER_APPENDS_LATE = Plan(
    seed=63,
    program="windows",
    style="kafka",
    guarantee="at_least_once",
    machines=2,
    partitions=4,
    keys=18,
    records=336,
    feed_ms=16_000,
    idle_ms=40,
    standbys=0,
    lease_ms=1_500,
    commit_interval_ms=200,
    gate="all",
    snapshots=True,
    faults=(
        # It stands still before an append, for longer than its lease: the other instance has the task meanwhile.
        Fault(Kind.PAUSE, machine=0, at_ms=7_093, state="active running", for_ms=2_734),
        Fault(Kind.JOIN, machine=1, at_ms=8_156),
        Fault(Kind.CRAWL, machine=0, at_ms=3_725, call="engine", skip=3, after=True, for_ms=256),
    ),
)

# The log does not answer a standby that has just left its pause, and asks for its limit.
LIMIT_WITHOUT_AN_ANSWER = Plan(
    seed=252,
    program="table",
    style="kafka",
    guarantee="exactly_once",
    machines=2,
    partitions=4,
    keys=10,
    records=219,
    feed_ms=12_000,
    idle_ms=80,
    standbys=1,
    lease_ms=600,
    commit_interval_ms=50,
    gate="all",
    snapshots=False,
    faults=(Fault(Kind.CUT, machine=1, at_ms=2_013, call="log.other", skip=3, for_ms=261),),
)

# A standby stands still while days pass, and deletes behind its position are compacted away.
STANDBY_STOOD_STILL_FOR_DAYS = Plan(
    seed=72,
    program="deletes",
    style="kafka",
    guarantee="exactly_once",
    machines=3,
    partitions=4,
    keys=11,
    records=391,
    feed_ms=12_000,
    idle_ms=60,
    standbys=1,
    lease_ms=1_500,
    commit_interval_ms=200,
    gate="all",
    snapshots=False,
    client=True,
    faults=(
        Fault(Kind.PAUSE, machine=0, at_ms=4_254, after=True, for_ms=3_145, state="active running"),
        Fault(Kind.AGE, machine=1, at_ms=6_940, for_ms=2_642),
    ),
)

# A task fails, and waits to be opened again: meanwhile the second instance joins and gets it.
FAILED_TASK_GOES_ELSEWHERE = Plan(
    seed=135,
    program="rekeyed",
    style="kafka",
    guarantee="exactly_once",
    machines=2,
    partitions=4,
    keys=9,
    records=150,
    feed_ms=8_000,
    idle_ms=400,
    standbys=0,
    lease_ms=3_000,
    commit_interval_ms=200,
    gate="task",
    snapshots=False,
    faults=(Fault(Kind.LISTENER, machine=0, at_ms=0, state="not open", after=True),),
)

# The answer to a generation of the placement is lost, and its only other instance comes back without its directory.
GENERATION_WITHOUT_AN_ANSWER = Plan(
    seed=1157,
    program="table",
    style="embedded",
    guarantee="exactly_once",
    machines=2,
    partitions=2,
    keys=20,
    records=76,
    feed_ms=8_000,
    idle_ms=100,
    standbys=0,
    lease_ms=1_500,
    commit_interval_ms=1_000,
    gate="all",
    snapshots=False,
    faults=(
        Fault(Kind.AWAY, machine=0, at_ms=0, state="not open", for_ms=2_586),
        Fault(Kind.LOST, machine=1, at_ms=2_786, call="log.transact", after=True, for_ms=249),
        Fault(Kind.BLIND, machine=0, at_ms=2_984, call="log.other", for_ms=391),
    ),
)

# A standby's write finds no answer at the log, and the next write of the same task comes before it is opened again.
STANDBY_WRITES_WITHOUT_AN_ANSWER = Plan(
    seed=2048,
    program="table",
    style="embedded",
    guarantee="exactly_once",
    machines=2,
    partitions=2,
    keys=20,
    records=353,
    feed_ms=8_000,
    idle_ms=250,
    standbys=0,
    lease_ms=1_500,
    commit_interval_ms=1_000,
    gate="all",
    snapshots=False,
    client=True,
    faults=(Fault(Kind.LOST, machine=1, at_ms=1_044, call="log.other", for_ms=1_993),),
)

# A task is to go to an instance that ends at once: the move is taken back after the last commit.
MOVE_TAKEN_BACK = Plan(
    seed=9504,
    program="windows",
    style="kafka",
    guarantee="exactly_once",
    machines=2,
    partitions=2,
    keys=3,
    records=318,
    feed_ms=8_000,
    idle_ms=150,
    standbys=1,
    lease_ms=600,
    commit_interval_ms=200,
    gate="task",
    snapshots=False,
    faults=(
        Fault(Kind.DAMAGE, machine=0, at_ms=1_785, call="engine", skip=2, after=True, for_ms=3_696),
        Fault(Kind.STOP, machine=0, at_ms=2_601, call="file", skip=11, for_ms=420),
    ),
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "plan",
    [
        FORMER_OWNER_APPENDS_LATE,
        LIMIT_WITHOUT_AN_ANSWER,
        STANDBY_STOOD_STILL_FOR_DAYS,
        FAILED_TASK_GOES_ELSEWHERE,
        GENERATION_WITHOUT_AN_ANSWER,
        STANDBY_WRITES_WITHOUT_AN_ANSWER,
        MOVE_TAKEN_BACK,
    ],
)
def test_a_world_that_broke_a_promise_keeps_it(plan: Plan):
    outcome = run(plan)
    assert outcome.alarms == []
    met = {kind for kind, _ in outcome.met}
    assert met == {fault.kind.value for fault in plan.faults if fault.kind is not Kind.JOIN}
