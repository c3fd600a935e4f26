"""Which members stand by for each task: sticky, spread over racks and tags, and even.

    those of the previous assignment stay      an instance that is expected back keeps its places
    the instance that ran the task fills a gap first: it has all rows; so does one that the task was taken over from
    gaps                                       fewest shared racks and tags ── a copy near the end ── fewest standbys
    replaced, within the budget of warm-ups    a standby that another member could spare a shared rack or tag
                                               a standby of a member that has at least two more than another

A standby that is replaced stays until its successor has caught up, so that no choice leaves a task without one.

Two members *clash* for each of rack and tags of which they have the same value. A rack or tag that all members share
cannot be spread over, and one that no two members share cannot clash: neither counts.

Rules of this file: pure; ties by id. Never the active's member, never that of a warm-up.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from standfast.replication.offsets import TaskId
from standfast.replication.placement.actives import Actives
from standfast.replication.placement.look import NO_COPIES, Look
from standfast.replication.placement.model import Fact, Move, MoveKind, Reason

Place: TypeAlias = tuple[str | None, ...]  # a member's rack and tags, of those that count; few values first
AREAS_MAX = 32
LOOKS_MAX = 500  # pairs of members whose tasks one round looks at to even standbys out


class Standbys:
    """Standbys of one round; the constructor decides them, after the actives."""

    def __init__(self, look: Look, actives: Actives) -> None:
        self.look, self.actives = look, actives
        self.standbys: dict[TaskId, tuple[str, ...]] = {}
        self.replacing: dict[TaskId, tuple[str, str]] = {}
        self.why: dict[tuple[TaskId, str], Reason] = {}
        self.moves: list[Move] = []
        self.missing = 0
        self._load = Counter(dict.fromkeys(look.members, 0))
        self._places = _Places(look)
        self._tiers: dict[tuple[Place, ...], list[tuple[int, Place]]] = {}
        self._kept: dict[str, Reason] = {}
        self._heaps: dict[Place, list[tuple[float, str]]] = {}
        tasks = [task for task in look.tasks if task.group not in look.view.stateless]
        held: dict[TaskId, list[str]] = {task: self._present(task) for task in tasks}
        for names in held.values():
            self._load.update(name for name in names if name in look.members)
        for _, old in self.replacing.values():
            self._load[old] -= 1  # it leaves
        for name in look.members:
            self._heaps.setdefault(self._places.area(name), []).append((self._weight(name), name))
        for heap in self._heaps.values():
            heapq.heapify(heap)
        for task in () if actives.none_starts else tasks:
            self._bring_to_number(task, held[task])
        # Actives come first: until each runs where it is to stay, standby counts do not show how even they will be.
        if not (look.expected or actives.slots_missing or actives.unsettled or actives.warmups):
            self._spread(held)
            self._even_out(held)
        self.standbys = {task: tuple(names) for task, names in held.items() if names}

    @property
    def _budget(self) -> int:
        return self.look.settings.warmups_max - len(self.actives.warmups) - len(self.replacing)

    # --- the standbys that stay -------------------------------------------------------------------------------------

    def _present(self, task: TaskId) -> list[str]:
        """Standbys of the previous assignment that may stay."""
        look, active = self.look, self.actives.active.get(task)
        previous = look.previous
        out = {active, self.actives.warmups.get(task)}
        names = [
            name
            for name in previous.standbys.get(task, ())
            if name not in out and (name in look.members or name in look.expected)
        ]
        for name in names:
            self.why[task, name] = self._stays(name)
        former = previous.active.get(task)
        wanted = self._wanted(task)
        # The instance that ran the task has all of its rows; one that is expected back brings them with it.
        for candidate in (former, self.actives.homes.get(task)):
            if candidate is None or candidate in out or candidate in names or len(names) >= wanted:
                continue
            if candidate in look.members or (candidate in look.expected and active is not None):
                names.append(candidate)
                code = "RAN_IT" if candidate in look.members else "EXPECTED_BACK"
                self._add(task, candidate, Reason(code, {"instance": candidate}))
        self._continue_replacing(task, names)
        return names

    def _stays(self, name: str) -> Reason:
        if name not in self._kept:
            code = "STAYS" if name in self.look.members else "EXPECTED_BACK"
            self._kept[name] = Reason(code, {"instance": name})
        return self._kept[name]

    def _wanted(self, task: TaskId) -> int:
        """How many standbys the task can have; instances that are expected back count."""
        members, active = self.look.members, self.actives.active.get(task)
        # The active of a member without room takes no place of those that may stand by.
        able = len(members) + len(self.look.expected) - (active in members)
        return min(self.look.settings.standby_replicas, max(able, 0))

    def _continue_replacing(self, task: TaskId, names: list[str]) -> None:
        new, old = self.look.previous.replacing.get(task, ("", ""))
        if new not in names or old not in names:
            return
        if self.look.is_caught_up(task, new) or self._budget <= 0:
            # Over the budget (the setting was lowered) the new copy goes, for it is not ready.
            self._drop(task, names, old if self.look.is_caught_up(task, new) else new, "SUCCEEDED")
        else:
            self.replacing[task] = (new, old)

    def _drop(self, task: TaskId, names: list[str], name: str, code: str) -> None:
        names.remove(name)
        self.why.pop((task, name), None)
        self.moves.append(Move(MoveKind.DROP_COPY, task, name, None, Reason(code, {"instance": name})))

    def _add(self, task: TaskId, name: str, reason: Reason) -> None:
        self.why[task, name] = reason
        self.moves.append(Move(MoveKind.ADD_STANDBY, task, None, name, reason))

    # --- the right number -------------------------------------------------------------------------------------------

    def _bring_to_number(self, task: TaskId, names: list[str]) -> None:
        wanted = self._wanted(task)
        surplus = len(names) - wanted - (task in self.replacing)
        for _ in range(surplus):  # fewer replicas than before: the fullest member gives its copy up
            fullest = max(
                (name for name in names if name not in self.replacing.get(task, ())),
                key=lambda name: (name in self.look.expected, self._weight(name), name),
            )
            self._drop(task, names, fullest, "TOO_MANY")
            self._change(fullest, -1)
        if task not in self.actives.active:
            return  # no member runs it: its standbys stay, none is added
        self.missing += self.look.settings.standby_replicas - wanted
        while len(names) - (task in self.replacing) < wanted:
            name = self._pick(task, names)
            if name is None:
                self.missing += wanted - len(names) + (task in self.replacing)
                return
            names.append(name)
            self._change(name, 1)
            self._add(task, name, self._reason(task, names, "ADDED"))

    def _reason(self, task: TaskId, names: Sequence[str], code: str) -> Reason:
        """Why the last of `names` stands by: how often it clashes with the others, and how full it is."""
        *others, name = names
        clash = self._places.clash(self._places.of[name], self._key(task, others))
        facts: dict[str, Fact] = {"instance": name, "clash": clash, "load": self._load[name]}
        return Reason(code if any(self._places.of[name]) else f"{code}_ANYWHERE", facts)

    def _pick(self, task: TaskId, names: Sequence[str]) -> str | None:
        """The member that clashes least; of those one with a copy near the end, else the one with fewest standbys."""
        look = self.look
        out = {*names, self.actives.active.get(task), self.actives.warmups.get(task)}
        others = self._key(task, names)
        near = [
            (self._places.clash(self._places.of[name], others), copy.lag or 0, name)
            for name, copy in look.copies.get(task, NO_COPIES).items()
            if name in look.members and name not in out and look.is_near(copy)
        ]
        best: tuple[int, float, str] | None = None
        for clash, area in self._areas(others):
            if best is not None and clash > best[0]:
                break
            found = self._emptiest(area, clash, others, out)
            if found is not None and (best is None or found < best):
                best = found
        if near and (best is None or min(near)[0] <= best[0]):
            return min(near)[2]
        return None if best is None else best[2]

    def _areas(self, others: tuple[Place, ...]) -> list[tuple[int, Place]]:
        """(clash, area) of all areas, those that clash least with `others` first."""
        if others not in self._tiers:
            areas = ((self._places.clash(area, others), area) for area in self._heaps)
            self._tiers[others] = sorted(areas, key=lambda one: (one[0], _texts(one[1])))
        return self._tiers[others]

    def _emptiest(
        self, area: Place, least: int, others: tuple[Place, ...], out: set[str | None]
    ) -> tuple[int, float, str] | None:
        """(clash, weight, member) of the best of an area: the first by weight that clashes no more than its area."""
        heap = self._heaps[area]
        passed: list[tuple[float, str]] = []
        found: tuple[int, float, str] | None = None
        while heap and (found is None or found[0] > least):
            weight, name = heapq.heappop(heap)
            if weight != self._weight(name):
                continue  # an entry from before the weight changed
            passed.append((weight, name))
            if name not in out:
                one = (self._places.clash(self._places.of[name], others), weight, name)
                found = one if found is None else min(found, one)
        for entry in passed:
            heapq.heappush(heap, entry)
        return found

    def _change(self, name: str, by: int) -> None:
        if name in self.look.members:
            self._load[name] += by
            heapq.heappush(self._heaps[self._places.area(name)], (self._weight(name), name))

    def _weight(self, name: str) -> float:
        member = self.look.members.get(name)
        return 0.0 if member is None else self._load[name] / member.slots

    # --- better standbys, within the budget -------------------------------------------------------------------------

    def _spread(self, held: dict[TaskId, list[str]]) -> None:
        """Replace standbys that share a rack or tag which another member would not share."""
        if not any(any(place) for place in self._places.of.values()):
            return
        settled: set[tuple[Place, ...]] = set()
        for task, names in held.items():
            if self._budget <= 0:
                return
            active = self.actives.active.get(task)
            if active is None or active not in self._places.of or task in self.replacing or not names:
                continue
            key = (self._places.of[active], *(self._places.of[name] for name in names))
            if key in settled or not all(self.look.is_caught_up(task, name) for name in names):
                continue
            found = self._less_clash(task, names)
            if found is None:
                if task not in self.actives.warmups:  # a warm-up's member cannot stand by: others may find one
                    settled.add(key)
            else:
                self._replace(task, names, *found, "SPREAD")

    def _less_clash(self, task: TaskId, names: Sequence[str]) -> tuple[str, str] | None:
        """(new, old) standby that lowers the clashes; the worst standby first."""
        worst = sorted(names, key=lambda name: (-self._clash_of(task, name, names), name))
        for old in worst:
            others = [name for name in names if name != old]
            now = self._clash_of(task, old, names)
            new = self._pick(task, [*others, old]) if now else None
            if new is not None and self._places.clash(self._places.of[new], self._key(task, others)) < now:
                return new, old
        return None

    def _clash_of(self, task: TaskId, name: str, names: Sequence[str]) -> int:
        return self._places.clash(self._places.of[name], self._key(task, [one for one in names if one != name]))

    def _even_out(self, held: dict[TaskId, list[str]]) -> None:
        """Move standbys from the fullest members to the emptiest, where that clashes no more than before."""
        if self._budget <= 0:
            return
        by_member: dict[str, list[TaskId]] = {name: [] for name in self.look.members}
        for task, names in held.items():
            if task in self.actives.active and task not in self.replacing:
                for name in names:
                    if name in by_member:
                        by_member[name].append(task)
        looks = 0
        able: dict[tuple[str, Place], bool] = {}
        for full, empty in self._uneven():
            area = self._places.area(empty)
            if (full, area) not in able:
                able[full, area] = any(self._may_go(task, held[task], full, area) for task in by_member[full])
            if not able[full, area]:
                continue
            looks += 1
            if self._budget <= 0 or looks > LOOKS_MAX:
                return
            for task in self._movable(by_member[full], full, empty, held):
                if self._budget <= 0 or not self._helps(full, empty):
                    break
                self._replace(task, held[task], empty, full, "EVENED")

    def _uneven(self) -> Iterator[tuple[str, str]]:
        """Pairs of a fuller and an emptier member, the most uneven first."""
        fullest = sorted(self.look.members, key=lambda name: (-self._weight(name), name))
        emptiest = sorted(self.look.members, key=lambda name: (self._weight_with_one_more(name), name))
        for full in fullest:
            if not self._helps(full, emptiest[0]):
                return
            for empty in emptiest:
                if not self._helps(full, empty):
                    break
                yield full, empty

    def _helps(self, full: str, empty: str) -> bool:
        """Whether one standby fewer there and one more here is more even."""
        return self._weight(full) > self._weight_with_one_more(empty)

    def _weight_with_one_more(self, name: str) -> float:
        return (self._load[name] + 1) / self.look.members[name].slots

    def _movable(
        self, tasks: Sequence[TaskId], full: str, empty: str, held: dict[TaskId, list[str]]
    ) -> Iterator[TaskId]:
        """Tasks whose standby may move between two members, those that need the shortest restore first."""
        for task in sorted(tasks, key=lambda task: (self.look.lag(task, empty), task)):
            names = held[task]
            taken = (self.actives.active[task], self.actives.warmups.get(task), *names)
            if task in self.replacing or empty in taken or full not in names:
                continue
            if self._may_go(task, names, full, self._places.of[empty]):
                yield task

    def _may_go(self, task: TaskId, names: Sequence[str], full: str, to: Place) -> bool:
        """Whether a standby in another place, or at best anywhere in an area, clashes no more than here."""
        others = self._key(task, [name for name in names if name != full])
        return self._places.clash(to, others) <= self._places.clash(self._places.of[full], others)

    def _replace(self, task: TaskId, names: list[str], new: str, old: str, code: str) -> None:
        names.append(new)
        self.replacing[task] = (new, old)
        self._change(new, 1)
        self._change(old, -1)  # it leaves: the next choice of this round counts it as gone
        facts: dict[str, Fact] = {"instance": new, "source": old, **self.look.lag_fact(task, new)}
        self._add(task, new, Reason(code, facts))

    def _key(self, task: TaskId, names: Sequence[str]) -> tuple[Place, ...]:
        """Places of the active and of standbys, in an order of their own so that equal sets are looked up once."""
        # Without that of a member without room, which the task leaves.
        every = (*names, self.actives.active.get(task))
        return tuple(sorted((self._places.of[name] for name in every if name in self._places.of), key=_texts))


class _Places:
    """The place of each member, and how often places clash."""

    def __init__(self, look: Look) -> None:
        members = look.members.values()
        tags = sorted({tag for member in members for tag in member.tags})
        rows = {member.id: (member.rack, *(member.tags.get(tag) for tag in tags)) for member in members}
        kinds = [(len(set(column)), at) for at, column in enumerate(zip(*rows.values(), strict=True))]
        counting = sorted((values, at) for values, at in kinds if 1 < values < len(rows))
        self.of: dict[str | None, Place] = {name: tuple(row[at] for _, at in counting) for name, row in rows.items()}
        self._clashes: dict[tuple[Place, tuple[Place, ...]], int] = {}
        self._wide, areas = 0, 1  # parts that make up the area
        for values, _ in counting:
            areas *= values
            self._wide += areas <= AREAS_MAX

    def area(self, name: str) -> Place:
        """The part of a member's place that has few values, such as its zone. Members of an area share a heap."""
        return self.of[name][: self._wide]

    def clash(self, place: Place, others: tuple[Place, ...]) -> int:
        """For how many parts of the others the place has the same value."""
        key = (place, others)
        if key not in self._clashes:
            self._clashes[key] = sum(
                one is not None and one == two for other in others for one, two in zip(place, other, strict=False)
            )
        return self._clashes[key]


def _texts(place: Place) -> list[str]:
    return [one or "" for one in place]
