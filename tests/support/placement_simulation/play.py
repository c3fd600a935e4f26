"""Plays one seeded simulation of placement: random changes, then rest; the checks look at each round.

    seed ──> a shape (instances, groups, racks, slots, replicas, ...) ──> changes ──> quiet ticks ──> Outcome

    PYTHONPATH=tests .venv/bin/python -m support.placement_simulation.play SEED      prints the course of a seed

Rules of this file: equal plans give equal outcomes. A broken promise ends the simulation and stands in the outcome.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, field
from random import Random

from standfast.replication.offsets import TaskId
from standfast.replication.placement.model import MoveKind, PlacementSettings, Round
from support.placement_simulation.checks import rest_problems, round_problems
from support.placement_simulation.cluster import LEASE_TICKS, Cluster, Instance, new_instances

REST_TICKS = 2 * LEASE_TICKS  # rounds without a change that count as rest
QUIET_TICKS_MAX = 2_000
SPEED_LEAST = 20_000
GAP_TICKS = 3  # at most, between two changes


@dataclass(frozen=True, slots=True)
class Plan:
    """A simulation; None: the seed chooses."""

    seed: int = 1
    instances: int | None = None
    tasks: int | None = None
    changes: int | None = None


@dataclass(slots=True)
class Outcome:
    """The course of a simulation. `events` are (tick, words); `moves` count by kind."""

    seed: int
    tasks: int
    settings: PlacementSettings
    ticks: int = 0
    events: list[tuple[int, str]] = field(default_factory=list)
    moves: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


def play(options: Plan) -> Outcome:
    """Play one simulation to its rest, or to its first broken promise."""
    chance = Random(options.seed)
    game = _Game(options, chance)
    changes = chance.randint(3, 8) if options.changes is None else options.changes
    for _ in range(changes):
        game.change()
        for _ in range(chance.randint(1, GAP_TICKS)):
            if not game.tick():
                return game.outcome
    if not game.cluster.is_up():
        game.join()
    game.rest()
    return game.outcome


class _Game:
    """A cluster, and the course so far."""

    def __init__(self, options: Plan, chance: Random) -> None:
        self.chance = chance
        count = options.instances or chance.randint(1, 8)
        tasks = options.tasks or chance.randint(1, 40)
        groups = min(tasks, chance.choice((1, 1, 2, 3)))
        ids = [TaskId(number % groups, number // groups) for number in range(tasks)]
        stateless = frozenset(group for group in range(1, groups) if chance.random() < 0.3)
        settings = PlacementSettings(
            standby_replicas=chance.choice((0, 1, 1, 2)),
            warmups_max=chance.randint(1, 3),
            acceptable_lag=1_000,
            restart_grace_ms=chance.choice((0, 5_000, 10_000)),
            probe_interval_ms=1_000,
        )
        self.max_tasks = chance.choice((None, None, None, -(-tasks // count) + 1))
        self.shape = {
            "racks": chance.choice((0, 0, 2, 3)),
            "hosts": chance.random() < 0.2,
            "slots_max": chance.choice((1, 1, 3)),
        }
        sizes = {task: 0 if task.group in stateless else chance.choice((0, 500, 20_000)) for task in sorted(ids)}
        writes = {task: 0 if task.group in stateless else chance.choice((0, 10, 300)) for task in sorted(ids)}
        self.cluster = Cluster(chance, settings, sizes, writes, stateless)
        self.outcome = Outcome(options.seed, tasks, settings)
        self._number = 0
        self._gone: list[Instance] = []
        for _ in range(count):
            self.join()
        self._unchanged = 0
        self._older = None

    def join(self) -> None:
        """A new instance."""
        self._number += 1
        (one,) = new_instances(self.chance, [f"i{self._number:03}"], **self.shape)  # type: ignore[arg-type]
        one.max_tasks = self.max_tasks
        if self.shape["hosts"]:
            one.tags["host"] = f"h{self._number // 2}"
        self.cluster.start(one)
        self._say(f"{one.id} joins")

    def change(self) -> None:
        """One random event."""
        up = self.cluster.is_up()
        kinds = ["join", "leader", *(["stop", "stop", "kill", "kill", "slow"] if up else [])]
        kinds += ["return", "return", "return"] if self._gone else []
        kind = self.chance.choice(kinds)
        name = self.chance.choice(up) if up else ""
        if kind == "join":
            self.join()
        elif kind == "leader":  # the new leader reads the assignment, or none that is whole
            lost = self.chance.random() < 0.5
            self.cluster.previous = None if lost else self.cluster.previous
            self._say("a new leader, without the assignment" if lost else "a new leader")
        elif kind == "slow":
            self.cluster.instances[name].speed = 1_000
            self._say(f"{name} restores slowly")
        elif kind == "return":
            one = self._gone.pop(self.chance.randrange(len(self._gone)))
            empty = self.chance.random() < 0.2
            if empty:
                one.rows.clear()
            self.cluster.start(one)
            self._say(f"{one.id} comes back{' with an empty disk' if empty else ''}")
        else:
            self._gone.append(self.cluster.instances[name])
            (self.cluster.stop if kind == "stop" else self.cluster.kill)(name)
            self._say(f"{name} {'stops' if kind == 'stop' else 'is killed'}")

    def tick(self) -> bool:
        """One round and its carrying out. False once a promise is broken."""
        view = self.cluster.view()
        result = self.cluster.round(view)
        self.outcome.problems += [f"tick {self.cluster.tick}: {one}" for one in round_problems(view, result)]
        if self.outcome.problems:
            return False
        self.cluster.carry_out()
        self._count(result)
        return True

    def rest(self) -> None:
        """Quiet ticks until nothing changes; then the promises of rest."""
        self._say("quiet from here on")
        self._unchanged = 0  # an instance that was killed just now is a member for the rest of its lease
        for one in self.cluster.instances.values():
            one.speed = max(one.speed, SPEED_LEAST)  # a slower one never reaches the end of tasks that are written
        for _ in range(QUIET_TICKS_MAX):
            view = self.cluster.view()
            if not self.tick():
                return
            if self._unchanged > REST_TICKS:
                last = self.cluster.round(view)
                self.outcome.problems += [f"at rest: {one}" for one in rest_problems(self.cluster, view, last)]
                return
        self.outcome.problems.append(f"no rest after {QUIET_TICKS_MAX} quiet ticks")

    def _count(self, result: Round) -> None:
        self.outcome.ticks = self.cluster.tick
        self.outcome.moves.update(move.kind.value for move in result.moves)
        settled = result.again_ms is None and not result.moves
        self._unchanged = self._unchanged + 1 if settled else 0
        started = [move for move in result.moves if move.kind in (MoveKind.TAKE_OVER, MoveKind.HAND_OVER)]
        for kind, many in sorted(Counter(move.kind.value for move in started).items()):
            self._say(f"{many} tasks: {kind}" if many > 1 else f"1 task: {kind}")

    def _say(self, text: str) -> None:
        self.outcome.events.append((self.cluster.tick, text))


if __name__ == "__main__":
    for tick, event in (course := play(Plan(int(sys.argv[1])))).events:
        print(f"{tick:5}  {event}")
    print(f"moves: {dict(course.moves)}", *course.problems or ["every promise held"], sep="\n")
