"""Which member runs each task: owners stay, lost tasks are taken over, and surplus moves by warm hand-overs.

    previous owner is a member ── runs or opens the task ─────────────────────────────────> it keeps the task
        ├── restores, far from ready, while another copy is near the end ─────────────────> that member takes it
        └── has a record of another task in hand, while an idle member's copy is near ────> that member takes it
    its disk takes no writes ── see `no_room.py` ─────────────────────────────────────────> another member, or it stays
    it is gone ── a copy has claimed the task since (`takeover.py`) ──────────────────────> that member keeps it
        ├── stopped cleanly, within the grace, no standby is near the end ────────────────> held until it is back
        ├── standbys ────────────────────────────────────> the most caught-up; of those near the end an idle one
        └── none ─────────────────────────────────────────────────────────────────────────> a member below its quota
    it comes back ── its tasks on other members, each once the copy at home is caught up ─> hand-over home (quotas.py)
    a member is above its quota ── a receiver is caught up (or the task has no stores) ───> hand-over now
        ├── the receiver is a standby that catches up ────────────────────────────────────> later; the owner serves
        └── else ── a warm-up, at most `warmups_max` at a time ───────────────────────────> later; the owner serves

A task that restores moves for no balance. While an instance is expected back, or slots are missing, nothing moves by
choice.

    places = max_tasks of all members    first start, fewer places than tasks ──> no task starts
                                         later ── tasks that run go on; of the others those with a caught-up copy take
                                                  the places that are left, then the rest by id; the others wait

A task that another member still has open takes a place there until it is closed.

Rules of this file: pure. Tasks, members and candidates are sorted and ties go to the smallest id: the same view
gives the same result.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from standfast.replication.offsets import TaskId
from standfast.replication.placement.look import NO_COPIES, UNKNOWN_LAG, Look, MemberRoom
from standfast.replication.placement.model import TAILING, CopyState, Fact, Move, MoveKind, Reason
from standfast.replication.placement.no_room import STAYS, taker
from standfast.replication.placement.quotas import above, bounded_shares, counts_of, quotas, returning_tasks

FAR = 2  # a restore this many times the acceptable lag behind is given to a copy that is near the end


class Actives:
    """Actives and warm-ups of one round; the constructor decides them."""

    def __init__(self, look: Look, budget: int) -> None:
        self.look = look
        self.active: dict[TaskId, str] = {}
        self.held: dict[TaskId, str] = {}
        self.warmups: dict[TaskId, str] = {}
        self.homes: dict[TaskId, str] = {}
        self.why: dict[TaskId, Reason] = {}
        self.why_copies: dict[tuple[TaskId, str], Reason] = {}
        self.moves: list[Move] = []
        self.slots_missing = 0
        self.none_starts = False  # a first start with too few places
        self.unsettled = False  # a copy catches up, or a task opens: worth another look soon
        self._budget = budget
        self._kept: dict[str, Reason] = {}
        self._room = MemberRoom(look)
        lost = [task for task in look.tasks if not self._keep(task)]
        if self._room.is_bounded:
            lost = sorted([*lost, *self._above_bounds()])
            self._room.count_closing(look, self.active)
        self._overtake()
        self._leave_full_disks()
        if look.short and not look.members:
            self.why |= dict.fromkeys(lost, Reason("WAITS_FOR_ROOM", {}))
            return
        self._balance([task for task in self._with_places(lost) if not self._takes_over(task)])

    def after(self) -> dict[TaskId, str]:
        """The instance that must close each task before its active opens it."""
        found = {}
        for task, name in self.active.items():
            holder = self.look.holder(task, name)
            if holder is not None:
                found[task] = holder
                if self.why[task].code in ("RUNS", "OPENS"):
                    self.why[task] = Reason("WAITS_FOR_CLOSE", {"instance": name, "source": holder})
        return found

    # --- owners ---------------------------------------------------------------------------------------------------

    def _keep(self, task: TaskId) -> bool:
        """Whether the task has an owner, or is held for one that is expected back."""
        look = self.look
        owner = look.previous.active.get(task)
        former = owner or look.previous.held.get(task)
        if former is not None and former in look.short:
            self._own(task, former, Reason(STAYS, {"instance": former}))
            return True
        if owner is None or owner not in look.members:
            running = look.view.claimed.get(task) or look.holder(task, None)
            if former is not None and former in look.members:  # it was held for this instance
                self._own(task, former, Reason("BACK", {"instance": former}))
                self.moves.append(Move(MoveKind.START, task, None, former, self.why[task]))
                return True
            if running is not None and running in look.members:
                if task in look.view.claimed:
                    self._takes_over(task, running)
                else:
                    self._own(task, running, self._kept_reason(running))
                return True
            return self._hold(task, former)
        copy = look.copies.get(task, NO_COPIES).get(owner)
        if copy is not None and copy.state is CopyState.RUNNING:
            self._own(task, owner, self._kept_reason(owner))
            return True
        if copy is not None and copy.state is CopyState.RESTORING and copy.lag is not None:
            self._own(task, owner, Reason("RESTORES", {"instance": owner, "lag": copy.lag}))
        else:
            self._own(task, owner, Reason("OPENS", {"instance": owner}))
        self.unsettled = True
        return True

    def _overtake(self) -> None:
        """Give tasks that do not run yet to members that can run them sooner; after all owners are counted."""
        look = self.look
        for task, owner in list(self.active.items()):
            code = self.why[task].code
            if code not in ("RESTORES", "OPENS") or look.holder(task, owner) is not None:
                continue
            found = (self._better(task, owner) if code == "RESTORES" else None) or self._idler(task, owner)
            if found is None:
                continue
            better, reason = found
            if look.is_open(task, owner):
                self._room.leave(owner)
            else:
                self._room.load[owner] -= 1
            self._own(task, better, reason)
            self.moves.append(Move(MoveKind.TAKE_OVER, task, owner, better, reason))

    def _leave_full_disks(self) -> None:
        """Give tasks of members without room to others; after all owners are counted."""
        look = self.look
        for task, owner in [(task, owner) for task, owner in self.active.items() if owner in look.short]:
            found = taker(look, task, owner, self._room)
            if found is None:
                continue
            target, reason = found
            self._room.leave(owner)
            self._own(task, target, reason)
            kind = MoveKind.TAKE_OVER if look.holder(task, target) is None else MoveKind.HAND_OVER
            self.moves.append(Move(kind, task, owner, target, reason))
            self.unsettled = True

    def _better(self, task: TaskId, owner: str) -> tuple[str, Reason] | None:
        """A member whose copy is near the end while the owner's restore is far from it."""
        look = self.look
        lag, near = look.lag(task, owner), self._near(task, owner)
        if not near or lag <= FAR * max(look.settings.acceptable_lag, 1):
            return None
        facts: dict[str, Fact] = {
            "instance": near[0],
            "source": owner,
            "lag": look.lag(task, near[0]),
            "source_lag": lag,
        }
        return near[0], Reason("MORE_CAUGHT_UP", facts)

    def _idler(self, task: TaskId, owner: str) -> tuple[str, Reason] | None:
        """An idle member whose copy is near the end while the owner's loop has a record of another task in hand."""
        copies = self.look.copies.get(task, NO_COPIES)
        busy_ms = copies[owner].busy_ms if owner in copies else 0
        if not busy_ms:
            return None
        idle = [name for name in self._near(task, owner) if copies[name].state in TAILING and not copies[name].busy_ms]
        if not idle:
            return None
        facts: dict[str, Fact] = {
            "instance": idle[0],
            "source": owner,
            "busy_ms": busy_ms,
            "lag": self.look.lag(task, idle[0]),
        }
        return idle[0], Reason("BUSY_OWNER", facts)

    def _near(self, task: TaskId, owner: str) -> list[str]:
        """Other members with a place and a copy that is near the end, the one that can serve soonest first."""
        look = self.look
        near = [
            (*look.rank(copy), name)
            for name, copy in look.copies.get(task, NO_COPIES).items()
            if name != owner and name in look.members and look.is_near(copy) and self._room.left(name) > 0
        ]
        return [name for *_, name in sorted(near)]

    def _hold(self, task: TaskId, former: str | None) -> bool:
        look = self.look
        away = look.view.away.get(former) if former is not None else None
        if former is None or away is None or former not in look.expected or not away.stopped:
            return False
        if task.group in look.view.stateless or any(look.is_caught_up(task, name) for name in look.tailing(task)):
            return False
        grace = look.settings.restart_grace_ms
        self.held[task] = former
        self.why[task] = Reason("HELD", {"source": former, "for_ms": away.for_ms, "grace_ms": grace})
        if task not in look.previous.held:
            self.moves.append(Move(MoveKind.HOLD, task, former, None, self.why[task]))
        return True

    def _home(self, task: TaskId) -> str | None:
        """The instance that the task was taken over from, while that one lives or is expected back."""
        home = self.homes.get(task) or self.look.previous.homes.get(task)
        return home if home in self.look.members or home in self.look.expected else None

    def _away(self) -> dict[TaskId, str]:
        """The home of each task that is elsewhere though that instance lives."""
        homes = ((task, name, self._home(task)) for task, name in sorted(self.active.items()))
        return {task: home for task, name, home in homes if home is not None and name != home in self.look.members}

    def _own(self, task: TaskId, name: str, reason: Reason) -> None:
        self.active[task] = name
        self.why[task] = reason
        self._room.load[name] += 1

    def _kept_reason(self, name: str) -> Reason:
        """One value for all tasks of a member, since a round has ten thousands of them."""
        if name not in self._kept:
            self._kept[name] = Reason("RUNS", {"instance": name})
        return self._kept[name]

    # --- lost and new tasks -----------------------------------------------------------------------------------------

    def _above_bounds(self) -> list[TaskId]:
        """Take tasks away that a member has not opened, and has no place for: it came back with a lower bound."""
        found: list[TaskId] = []
        for name, room in self._room.most.items():
            over = self._room.load[name] - room
            if over > 0:
                closed = [
                    task for task, owner in self.active.items() if owner == name and not self.look.is_open(task, name)
                ]
                found += sorted(closed)[-over:]
        for task in found:
            self._room.load[self.active.pop(task)] -= 1
        gone = frozenset(found)
        self.moves = [move for move in self.moves if move.task not in gone]
        return found

    def _with_places(self, lost: list[TaskId]) -> list[TaskId]:
        """Those of the lost tasks that get a place, tasks with a caught-up copy first; the others wait."""
        look = self.look
        places = sum(max(self._room.left(name), 0) for name in look.members)
        self.slots_missing = max(len(lost) - places, 0)
        if not look.members:
            self.slots_missing = min(self.slots_missing, 1)  # one instance without a bound is enough
        if not self.slots_missing:
            return lost
        facts: dict[str, Fact] = {"missing": self.slots_missing}
        if look.has_run and look.members:
            warm = {task for task in lost if any(look.is_caught_up(task, name) for name in look.tailing(task))}
            lost = sorted(lost, key=lambda task: (task not in warm, task))
            facts["places"] = sum(self._room.most.values())
        else:
            places = 0
            self.none_starts = True
        self.why.update(dict.fromkeys(lost[places:], Reason("WAITING_FOR_SLOTS", facts)))
        return lost[:places]

    def _takes_over(self, task: TaskId, taker: str | None = None) -> bool:
        """Give a lost task to its standby, the one that has claimed it (`taker`) or the best; False if it has none."""
        look = self.look
        taker = taker or next((name for name in look.tailing(task) if self._room.left(name) > 0), None)
        if taker is None or task.group in look.view.stateless:
            return False
        former = look.former(task)
        facts: dict[str, Fact] = {"instance": taker, **look.lag_fact(task, taker)}
        if former is not None:
            facts["source"] = former
        home = self._home(task) or former
        if home is not None and home != taker:
            self.homes[task] = home
        self._own(task, taker, _taken(look, task, taker, facts))
        self.moves.append(Move(MoveKind.TAKE_OVER, task, former, taker, self.why[task]))
        return True

    # --- balance ----------------------------------------------------------------------------------------------------

    def _balance(self, free: list[TaskId]) -> None:
        look = self.look
        names = list(look.members)
        groups = sorted({task.group for task in self.active} | {task.group for task in free})
        present = {group: Counter[str]() for group in groups}
        for task, name in self.active.items():
            present[task.group][name] += 1
        new = Counter(task.group for task in free)
        counts = [[present[group][name] for name in names] for group in groups]
        totals = [sum(row) + new[group] for group, row in zip(groups, counts, strict=True)]
        # A task without an owner counts where most of its rows are on disk, so that the quotas favour that member.
        for task in free:
            near = [(look.lag(task, name), name) for name in look.copies.get(task, NO_COPIES) if name in look.members]
            if near and min(near)[0] != UNKNOWN_LAG:
                present[task.group][min(near)[1]] += 1
        likely = [[present[group][name] for name in names] for group in groups]
        slots = [look.members[name].slots for name in names]
        bounds = [look.members[name].max_tasks for name in names]
        shares = bounded_shares(slots, bounds, sum(totals))
        goal = quotas(shares, totals, likely)
        uneven = any(above(groups, names, counts, goal).values())
        settled = not look.expected and not self.slots_missing
        returning: dict[TaskId, str] = {}
        if settled and uneven:
            away = self._away()
            # A task that was taken over counts where it came from, so that the quotas let all of them go back.
            for task, home in away.items():
                present[task.group][self.active[task]] -= 1
                present[task.group][home] += 1
            likely = [[present[group][name] for name in names] for group in groups]
            goal = quotas(shares, totals, likely) if away else goal
            returning = returning_tasks(away, self.active, goal, groups, names)
        self._fill(free, above(groups, names, goal, counts_of(groups, names, {**self.active, **returning})))
        if settled and uneven:
            self._return(returning)
            # Free tasks have filled some of the room, and those that return have theirs; the rest is for others.
            counts = counts_of(groups, names, {**self.active, **returning})
            surplus, room = above(groups, names, counts, goal), above(groups, names, goal, counts)
            self._even_out(surplus, room, besides=returning)
        elif not settled and not self.slots_missing:  # all places are taken: no warm-up would end with a hand-over
            for task, target in look.previous.warmups.items():
                if target in look.members and self.active.get(task) not in (None, target):
                    self._warm_up(task, self.active[task], target)
        # A task goes home as long as the balance wants a move at all, or another instance is expected back.
        for task in look.previous.homes:
            former, at = self._home(task), self.active.get(task)
            stays = task in self.held or at == look.previous.active.get(task, at)
            if former is not None and stays and at != former and (uneven or not settled):
                self.homes.setdefault(task, former)

    def _fill(self, free: list[TaskId], room: Counter[tuple[int, str]]) -> None:
        """Start tasks without owner and standby: where rows of them are on disk, else on the emptiest member."""
        look = self.look
        near = sorted(
            (look.lag(task, name), task, name)
            for task in free
            for name in look.copies.get(task, NO_COPIES)
            if room[task.group, name] > 0
        )
        for lag, task, name in near:
            open_ = room[task.group, name] > 0 and self._room.left(name) > 0
            if lag != UNKNOWN_LAG and task not in self.active and open_:
                room[task.group, name] -= 1
                self._start(task, name, "ROWS_ON_DISK", {"instance": name, "lag": lag})
        heaps: dict[int, list[tuple[float, str]]] = {}
        for (group, name), count in room.items():
            if count > 0:
                heaps.setdefault(group, []).append((self._room.fullness(name), name))
        for heap in heaps.values():
            heapq.heapify(heap)
        for task in free:
            if task in self.active:
                continue
            heap = heaps.get(task.group, [])
            # A member below its share of a group may have no free slot: tasks of other groups are to leave it.
            while heap and self._room.left(heap[0][1]) <= 0:
                heapq.heappop(heap)
            if not heap:
                roomy = (one for one in look.members if self._room.left(one) > 0)
                _, name = min((self._room.fullness(one), one) for one in roomy)
                self._start(task, name, "EMPTIEST", {"instance": name, "load": self._room.load[name]})
                continue
            _, name = heap[0]
            room[task.group, name] -= 1
            self._start(task, name, "EMPTIEST", {"instance": name, "load": self._room.load[name]})
            if room[task.group, name] > 0:
                heapq.heapreplace(heap, (self._room.fullness(name), name))
            else:
                heapq.heappop(heap)

    def _start(self, task: TaskId, name: str, code: str, facts: dict[str, Fact]) -> None:
        former = self.look.former(task)
        if former is not None:
            facts["source"] = former
        self._own(task, name, Reason(code, facts))
        kind = MoveKind.START if former is None else MoveKind.TAKE_OVER
        self.moves.append(Move(kind, task, former, name, self.why[task]))

    def _return(self, returning: Mapping[TaskId, str]) -> None:
        """Move tasks back to where they were taken over from, each once the copy there has caught up.

        Their room is theirs until then: another task, whose copy there is ready sooner, would take it for good, and
        this one would never come back.
        """
        for task, home in sorted(returning.items()):
            if self._is_movable(task) and self._room.left(home) > 0:
                self._move(task, self.active[task], home)

    def _even_out(
        self, surplus: Counter[tuple[int, str]], room: Counter[tuple[int, str]], *, besides: Collection[TaskId]
    ) -> None:
        """Move tasks from members above their quota to members below it, the best prepared ones first."""
        for task, target in self._pairs(surplus, room, besides):
            source = self.active[task]
            wanted = surplus[task.group, source] > 0 and room[task.group, target] > 0
            if wanted and self._is_at_rest(task) and self._room.left(target) > 0:
                surplus[task.group, source] -= 1
                room[task.group, target] -= 1
                self._move(task, source, target)

    def _pairs(
        self, surplus: Counter[tuple[int, str]], room: Counter[tuple[int, str]], besides: Collection[TaskId]
    ) -> Iterable[tuple[TaskId, str]]:
        """(task, target) in the order of preference: targets with copies, then tasks by id to the emptiest target."""
        look = self.look
        movable = [
            task
            for task in sorted(self.active)
            if task not in besides and surplus[task.group, self.active[task]] > 0 and self._is_movable(task)
        ]
        prepared = []
        for task in movable:
            copies = look.copies.get(task, NO_COPIES)
            warming = look.previous.warmups.get(task)
            home = self._home(task)
            for name in {*copies, *((warming,) if warming else ())}:
                if room[task.group, name] > 0:
                    standing = name in look.previous.standbys.get(task, ())
                    stage = 0 if look.is_caught_up(task, name) else 1 if name == warming else 2 if standing else 3
                    prepared.append((stage, name != home, look.lag(task, name), task, name))
        yield from ((task, name) for *_, task, name in sorted(prepared))
        open_: dict[int, list[str]] = {}
        for group, name in room:
            open_.setdefault(group, []).append(name)
        for task in movable:
            if self._is_at_rest(task) and surplus[task.group, self.active[task]] > 0:
                targets = [name for name in open_.get(task.group, ()) if room[task.group, name] > 0]
                if targets:
                    yield task, min(targets, key=lambda name: (self._room.fullness(name), name))

    def _is_movable(self, task: TaskId) -> bool:
        copy = self.look.copies.get(task, NO_COPIES).get(self.active[task])
        return copy is not None and copy.state is CopyState.RUNNING and self._is_at_rest(task)

    def _is_at_rest(self, task: TaskId) -> bool:
        """Whether the task runs, and this round has left it where it was."""
        return self.why[task].code == "RUNS" and task not in self.look.view.moved_for_room

    def _move(self, task: TaskId, source: str, target: str) -> None:
        look = self.look
        if task.group in look.view.stateless or look.is_caught_up(task, target):
            facts: dict[str, Fact] = {"instance": target, "source": source, **look.lag_fact(task, target)}
            code = "HANDED_OVER" if "lag" in facts else "HANDED_OVER_STATELESS"
            self.active[task] = target
            self.why[task] = Reason(code, facts)
            self._room.leave(source)
            self._room.load[target] += 1
            self.moves.append(Move(MoveKind.HAND_OVER, task, source, target, self.why[task]))
            self.unsettled = True
        elif target in look.previous.standbys.get(task, ()):
            facts = {"instance": source, "target": target, "limit": look.settings.acceptable_lag}
            self.why[task] = Reason("STANDBY_CATCHES_UP", facts)
            self.unsettled = True
        else:
            self._warm_up(task, source, target)

    def _warm_up(self, task: TaskId, source: str, target: str) -> None:
        self.unsettled = True
        facts: dict[str, Fact] = {"instance": source, "target": target}
        if len(self.warmups) >= self._budget:
            facts["max"] = self.look.settings.warmups_max
            self.why[task] = Reason("WAITS_FOR_WARM_UP", facts)
            return
        self.warmups[task] = target
        facts |= {"limit": self.look.settings.acceptable_lag, **self.look.lag_fact(task, target)}
        self.why[task] = Reason("WARMS_UP", facts)
        self.why_copies[task, target] = Reason("WARMS_UP", facts)
        if self.look.previous.warmups.get(task) != target:
            self.moves.append(Move(MoveKind.WARM_UP, task, source, target, self.why[task]))


def _taken(look: Look, task: TaskId, taker: str, facts: dict[str, Fact]) -> Reason:
    """Why a standby takes the task over: the most caught-up one, or an idle one beside that."""
    copies = look.copies.get(task, NO_COPIES)
    takers_ms = copies[taker].busy_ms if taker in copies else 0
    busy = [(look.lag(task, name), name) for name in look.tailing(task) if copies[name].busy_ms > takers_ms]
    if not busy or min(busy)[0] > look.lag(task, taker):
        return Reason("STANDBY_TAKES", facts)
    other = min(busy)[1]
    return Reason("IDLE_STANDBY_TAKES", {**facts, "other": other, "busy_ms": copies[other].busy_ms})
