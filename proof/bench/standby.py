"""The steps of `make bench BENCHES=standby`: changelogs of several tasks that are there already.

    standby    stand by for every task, from an empty directory to the end of its changelog; then take all of them over
    cold       take all of them over with an empty directory

Rules of this file: only the public path (Session) is timed. The time until the loss of an instance is noticed is no
part of it.
"""

from __future__ import annotations

from collections.abc import Callable

from bench.step import Step
from standfast.ops.bench.step import READY_S, STORE, Measured, key_of, session_of, timed
from standfast.store.task.commit_record import Position
from standfast.stream.session.session import Session

LOOK_MS = 2


def standby(step: Step) -> Measured:
    """Tail all changelogs to their ends, then be assigned all tasks, until the gate is open."""
    with _session(step) as session:

        def tail() -> None:
            session.assign(standby=range(step.tasks))
            tasks = session.all_tasks().values()
            while sum(task.stores.cut.positions.get(STORE, Position(0)).offset for task in tasks) < step.records:
                session.clock.sleep_ms(LOOK_MS)

        return {"tail": timed(tail, step.records), "take_over": _take_over(session, step)}


def cold(step: Step) -> Measured:
    """Be assigned all tasks with an empty directory, until the gate is open."""
    with _session(step) as session:
        return {"take_over": _take_over(session, step)}


STANDBY_STEPS: dict[str, Callable[[Step], Measured]] = {"standby": standby, "cold": cold}


def _session(step: Step) -> Session:
    return session_of(step, f"{step.step}-{step.run}", take_over=False)


def _take_over(session: Session, step: Step) -> Measured:
    def run() -> None:
        session.assign(active=range(step.tasks))
        session.wait_ready(READY_S)

    measured = timed(run, step.tasks)
    # A gate that opened without rows would look fast.
    for number in range(min(step.tasks, step.records)):
        found = session.task(number).store(STORE).get(key_of(number, step.key_bytes))
        assert found is not None, f"a key of task {number} is missing"
    return measured
