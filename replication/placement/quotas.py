"""Quotas: the number of tasks of each group on each member, even in every direction, with few moves.

    share(group, member) = tasks of the group x slots of the member / all slots

    a quota is its share rounded down or up; so is each member's sum over all groups; each group's sum is its tasks

Each share is rounded down, and the tasks that are left go to members whose share is no whole number, one each: first to
those that have one more than the rounded share already, so that it stays, then to the emptiest. Members that are then
below or above their share of all tasks change a task of one group with another member. That finds such a rounding with
nearly the fewest moves. Where only a chain over several members would lead to the share of all tasks, a member stays
one task off.

A member with a bound gets no larger share of all tasks than that; the others share the rest by their slots
(`bounded_shares`).

Tasks go home first: an instance that comes back from a restart gets its former tasks, and no other task moves for it.

    a restarts ── its tasks go to their standbys on b and c, home a
    a is back  ── room of a: kept for its own tasks, each of which moves once the copy there has caught up
               ── tasks of b and c that have copies on a: they stay, also if such a copy is ready sooner

Rules of this file: pure numbers. Members and groups come in order, and ties go to the first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product

from standfast.replication.offsets import TaskId

Matrix = list[list[int]]


def quotas(slots: Sequence[int], totals: Sequence[int], present: Sequence[Sequence[int]]) -> Matrix:
    """Quotas by group and member. `present[group][member]` counts the tasks that are there; `slots` are at least 1."""
    if not slots:
        return [[] for _ in totals]
    table = _Table(slots, totals, present)
    table.round_up()
    table.even_out()
    return [[low + (at in more) for at, low in enumerate(row)] for row, more in zip(table.low, table.more, strict=True)]


def bounded_shares(slots: Sequence[int], bounds: Sequence[int | None], tasks: int) -> list[int]:
    """Numbers in proportion to which members share so many tasks, as `slots` of `quotas`.

    Those of the slots, unless the share of a member is above its bound. If there are more tasks than places within all
    bounds, tasks that run go on above them, and the bounds are the shares.
    """
    bounded: dict[int, int] = {}
    while True:
        free, left = sum(slots) - sum(slots[at] for at in bounded), tasks - sum(bounded.values())
        more = {
            at: bound
            for at, bound in enumerate(bounds)
            if bound is not None and at not in bounded and slots[at] * left > bound * free
        }
        if not more:
            break
        bounded |= more
    if not bounded:
        return list(slots)
    if len(bounded) == len(slots):
        return [bounded[at] for at in range(len(slots))]
    return [bounded[at] * free if at in bounded else one * left for at, one in enumerate(slots)]


def returning_tasks(
    away: Mapping[TaskId, str], active: Mapping[TaskId, str], goal: Matrix, groups: list[int], names: list[str]
) -> dict[TaskId, str]:
    """The tasks of `away` (task -> home) for which the goal has room at home, beside those that stay there."""
    staying = counts_of(groups, names, {task: name for task, name in active.items() if task not in away})
    room = above(groups, names, goal, staying)
    found = {}
    for task, home in away.items():
        if room[task.group, home] > 0:
            room[task.group, home] -= 1
            found[task] = home
    return found


def counts_of(groups: list[int], names: list[str], active: Mapping[TaskId, str]) -> Matrix:
    """How many tasks of each group are on each member."""
    counts = [[0] * len(names) for _ in groups]
    at = {name: place for place, name in enumerate(names)}
    row = {group: place for place, group in enumerate(groups)}
    for task, name in active.items():
        if name in at:  # not of a member that may get no task, such as one without room on its disk
            counts[row[task.group]][at[name]] += 1
    return counts


def above(groups: list[int], names: list[str], one: Matrix, other: Matrix) -> Counter[tuple[int, str]]:
    """By how much counts of `one` are above those of `other`, where they are."""
    return Counter(
        {
            (group, name): more - less
            for group, row, others in zip(groups, one, other, strict=True)
            for name, more, less in zip(names, row, others, strict=True)
            if more > less
        }
    )


class _Table:
    """The shares rounded down, and by group the members that have one more."""

    def __init__(self, slots: Sequence[int], totals: Sequence[int], present: Sequence[Sequence[int]]) -> None:
        everything, whole = sum(slots), sum(totals)
        self.slots, self.totals = slots, totals
        self.low = [[total * one // everything for one in slots] for total in totals]
        self.more: list[set[int]] = [set() for _ in totals]
        self.open = [{at for at, one in enumerate(slots) if total * one % everything} for total in totals]
        self.kept = [
            {at for at in open_ if count[at] > low[at]}
            for open_, count, low in zip(self.open, present, self.low, strict=True)
        ]
        self.sums = [sum(row[at] for row in self.low) for at in range(len(slots))]
        self.least = [whole * one // everything for one in slots]
        self.most = [-(-whole * one // everything) for one in slots]

    def round_up(self) -> None:
        """Give each group its whole number of tasks: first where one stays by it, then anywhere."""
        left = [total - sum(row) for total, row in zip(self.totals, self.low, strict=True)]
        stays = Counter(at for kept in self.kept for at in kept)
        sums, most, slots = self.sums, self.most, self.slots
        # Groups with few such members come first, and in a group the members whose room other groups need least.
        groups = sorted(range(len(left)), key=lambda group: len(self.kept[group]) - left[group])
        for keeping in (True, False):
            for group in groups:
                more, kept = self.more[group], self.kept[group]
                free = self.open[group] - more
                if keeping:
                    free = {at for at in free & kept if sums[at] < most[at]}
                ranked = sorted(
                    (sums[at] >= most[at], at not in kept, stays[at] + sums[at] - most[at], sums[at] / slots[at], at)
                    for at in free
                )
                for *_, at in ranked[: left[group] - len(more)]:
                    more.add(at)
                    sums[at] += 1

    def even_out(self) -> None:
        """Shift tasks of one group between two members while that brings one of them to its share of all tasks."""
        for at in range(len(self.slots)):
            while shifts := self._shifts(at):
                _, group, giver, taker = min(shifts)
                self.more[group].remove(giver)
                self.more[group].add(taker)
                self.sums[giver] -= 1
                self.sums[taker] += 1

    def _shifts(self, at: int) -> list[tuple[int, int, int, int]]:
        """(moves that it costs, group, giver, taker) of the shifts to a member below its share, or from one above."""
        sums, least, most = self.sums, self.least, self.most
        if least[at] <= sums[at] <= most[at]:
            return []
        found = []
        for group, (open_, more, kept) in enumerate(zip(self.open, self.more, self.kept, strict=True)):
            givers, takers = (more, (open_ - more) & {at}) if sums[at] < least[at] else (more & {at}, open_ - more)
            found += [
                ((giver in kept) - (taker in kept), group, giver, taker)
                for giver, taker in product(givers, takers)
                if sums[giver] > least[giver] and sums[taker] < most[taker]
            ]
        return found
