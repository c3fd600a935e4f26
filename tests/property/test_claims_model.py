"""Every order of a death that may be none, two copies that claim, and a leader that decides: one owner in the end.

    word       the lease process of the owner `o` removes it from the group          back    it joins again, alive
    look, act  of a copy: its reads of group, log and placement; then its claim, or the end of its run
    look, act  of the leader: its reads; then the generation that it publishes

The log decides about a claim at its time, by the members of that time. The rules are the product's own (`takeover.py`,
`place`). Looks and acts of one instance keep their order; between them anything may happen.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from standfast.replication.offsets import TaskId
from standfast.replication.placement.model import (
    Assignment,
    Away,
    Copy,
    CopyState,
    PlacedMember,
    PlacementSettings,
    View,
)
from standfast.replication.placement.place import is_changed, place
from standfast.replication.takeover import TURN_MS, claimed, orphans, to_claim

T = TaskId(0, 0)
OWNER, FIRST, SECOND, LEADER = "o", "f", "s", "z"
COPIES = (FIRST, SECOND)
EVENTS = (
    ("word", ""),
    ("back", ""),
    *(("look", name) for name in (*COPIES, LEADER)),
    *(("act", name) for name in (*COPIES, LEADER)),
)
AFTER = {("back", ""): ("word", ""), **{("act", name): ("look", name) for name in (*COPIES, LEADER)}}


@dataclass
class World:
    members: frozenset[str] = frozenset((OWNER, *COPIES, LEADER))
    owner: str = OWNER  # by the log
    runs: frozenset[str] = frozenset((OWNER,))  # instances that have the task open as active
    valid: Assignment = field(default_factory=lambda: Assignment(1, active={T: OWNER}, standbys={T: COPIES}))
    seen: dict[str, Any] = field(default_factory=dict)
    owners: list[str] = field(default_factory=list)  # one after the other

    def do(self, event: str, name: str) -> None:
        getattr(self, event)(*([name] if name else []))

    def word(self) -> None:
        self.members -= {OWNER}

    def back(self) -> None:
        self.members |= {OWNER}

    def look(self, name: str) -> None:
        self.seen[name] = (self.members, self.owner, self.runs, self.valid)

    def act(self, name: str) -> None:
        if name == LEADER:
            self.decide()
            return
        members, owner, runs, valid = self.seen.pop(name)
        if owner != name and name in self.runs:
            self.runs -= {name}  # it has seen a newer owner
        lost = orphans(valid.active, members)
        claims = to_claim(
            lost, valid.standbys, name, members, {T: owner}, ready=(T,), places=None, gone_ms={OWNER: TURN_MS}
        )
        wanted = valid.active.get(T) == name or T in claims
        if not wanted:
            self.runs -= {name}
        elif name not in self.runs and (owner not in members or owner == name or owner not in runs):
            unowned = owner not in members
            if unowned and self.owner in self.members and self.owner != name:
                return  # Held
            assert self.owner == name or self.owner not in self.members or self.owner not in self.runs, "a live owner"
            self.owner = name
            self.owners.append(name)
            self.runs |= {name}

    def decide(self) -> None:
        members, owner, runs, valid = self.seen.pop(LEADER)
        if valid is not self.valid:
            return  # only a leader publishes, and there is one
        found = place(
            View(
                members=tuple(PlacedMember(name, 1, None, {}, copies(name, runs)) for name in sorted(members)),
                tasks=(T,),
                settings=PlacementSettings(standby_replicas=2),
                previous=valid,
                away={name: Away(0) for name in {OWNER} - members},
                claimed=claimed(orphans(valid.active, members), valid.standbys, {T: owner}),
            )
        ).assignment
        if is_changed(valid, found):
            self.valid = found

    def returned(self) -> None:
        """The former owner looks and acts, once it is back: it gives way to a newer owner."""
        if OWNER in self.members:
            self.look(OWNER)
            self.act(OWNER)


def copies(name: str, runs: frozenset[str]) -> dict[TaskId, Copy]:
    return {} if name == LEADER else {T: Copy(CopyState.RUNNING if name in runs else CopyState.STANDBY, 0)}


def orders(done: tuple[tuple[str, str], ...] = ()) -> Iterator[tuple[tuple[str, str], ...]]:
    """All orders of the events that keep a look before its act, and the word before the return."""
    if len(done) == len(EVENTS):
        yield done
    for event in EVENTS:
        if event not in done and AFTER.get(event) in (None, *done):
            yield from orders((*done, event))


def test_each_order_ends_with_one_owner_that_runs_the_task_and_the_generation_names_it() -> None:
    count = 0
    for order in orders():
        world = World()
        for event, name in order:
            world.do(event, name)
        for _ in range(6):
            world.returned()
            for name in (LEADER, *COPIES):
                world.look(name)
                world.act(name)
        assert world.runs == {world.owner}, order
        assert world.valid.active == {T: world.owner}, order
        assert len(world.owners) <= 2, order  # the take-over, and once more in order
        count += 1
    assert count == 2_520
