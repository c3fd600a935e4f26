"""Quotas: the number of tasks of each group on each member, even in every direction, with as few moves as possible.

    share(group, member) = tasks of the group x slots of the member / all slots

    a quota is its share rounded down or up; so is each member's sum over all groups; each group's sum is its tasks

Such a rounding of rows, columns and total always exists (controlled rounding, Bacharach 1966): it is a flow from
groups to members. Among all of them the one is taken that moves the fewest tasks. That is a minimum-cost flow, where
giving up a task that is there costs 1. It starts from the present counts, clamped to their bounds, which is optimal but
for the sums, and corrects these by successive shortest paths (Ahuja, Magnanti, Orlin: Network Flows, 9.7). After a
small change few paths are needed.

A member with a bound gets no larger share of all tasks than that; the others share the rest by their slots
(`bounded_shares`).

Tasks go home first: an instance that comes back from a restart gets its former tasks, and no other task moves for it.

    a restarts ── its tasks go to their standbys on b and c, home a
    a is back  ── room of a: kept for its own tasks, each of which moves once the copy there has caught up
               ── tasks of b and c that have copies on a: they stay, also if such a copy is ready sooner

Rules of this file: pure numbers. Members and groups come in order, and ties go to the first.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

from standfast.replication.offsets import TaskId

Matrix = list[list[int]]


def quotas(slots: Sequence[int], totals: Sequence[int], present: Sequence[Sequence[int]]) -> Matrix:
    """Quotas by group and member. `present[group][member]` counts the tasks that are there; `slots` are at least 1."""
    if not slots:
        return [[] for _ in totals]
    network = _Network(slots, totals, present)
    network.fill()
    while network.excess:
        network.raise_potentials()
        network.push()
    return network.flow


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


def is_balanced(slots: Mapping[str, int], counts: Mapping[str, int]) -> bool:
    """Whether each member has its share of all tasks, rounded down or up."""
    total, everything = sum(counts.values()), sum(slots.values())
    return all(
        total * one // everything <= counts.get(name, 0) <= -(-total * one // everything) for name, one in slots.items()
    )


class _Network:
    """The flow, its bounds and its imbalances. Nodes: groups, then members, then the hub that sums the members up."""

    def __init__(self, slots: Sequence[int], totals: Sequence[int], present: Sequence[Sequence[int]]) -> None:
        everything, whole = sum(slots), sum(totals)
        self.groups, self.members = range(len(totals)), range(len(slots))
        self.hub = len(totals) + len(slots)
        self.slots, self.present = slots, present
        self.low = [[total * one // everything for one in slots] for total in totals]
        self.high = [[-(-total * one // everything) for one in slots] for total in totals]
        self.sum_low = [whole * one // everything for one in slots]
        self.sum_high = [-(-whole * one // everything) for one in slots]
        self.flow = [
            [min(max(count, low), high) for count, low, high in zip(*rows, strict=True)]
            for rows in zip(present, self.low, self.high, strict=True)
        ]
        sums = [sum(row[at] for row in self.flow) for at in self.members]
        self.sums = [min(max(one, low), high) for one, low, high in zip(sums, self.sum_low, self.sum_high, strict=True)]
        # Above 0: the node has flow that must go on; below 0: it lacks flow.
        self.imbalance = [total - sum(row) for total, row in zip(totals, self.flow, strict=True)]
        self.imbalance += [one - kept for one, kept in zip(sums, self.sums, strict=True)]
        self.imbalance.append(sum(self.sums) - whole)
        self.potential = [0] * (self.hub + 1)

    @property
    def excess(self) -> list[int]:
        """Nodes whose flow must go on."""
        return [node for node, one in enumerate(self.imbalance) if one > 0]

    def fill(self) -> None:
        """Place tasks without an owner where room is, the emptiest member first: arcs that cost nothing."""
        first = len(self.groups)
        for group in self.groups:
            if self.imbalance[group] <= 0:
                continue
            flow, high = self.flow[group], self.high[group]
            heap = [
                (self._kept(at) / self.slots[at], at)
                for at in self.members
                if flow[at] < high[at] and self._kept(at) < self.sum_high[at]
            ]
            heapq.heapify(heap)
            while heap and self.imbalance[group] > 0:
                _, at = heapq.heappop(heap)  # high is low or low + 1: a member takes one more at most
                flow[at] += 1
                self.imbalance[group] -= 1
                if self.imbalance[first + at] < 0:
                    self.imbalance[first + at] += 1
                else:
                    self.sums[at] += 1
                    self.imbalance[self.hub] += 1

    def raise_potentials(self) -> None:
        """Make the arcs of shortest paths from every excess free of cost (Dijkstra over reduced costs)."""
        distance: dict[int, int] = dict.fromkeys(self.excess, 0)
        heap = [(0, node) for node in distance]
        done: set[int] = set()
        while heap:
            far, node = heapq.heappop(heap)
            if node in done:
                continue
            done.add(node)
            here = self.potential[node]
            for other, cost in self._arcs(node):
                to = far + cost + here - self.potential[other]
                if other not in done and to < distance.get(other, to + 1):
                    distance[other] = to
                    heapq.heappush(heap, (to, other))
        farthest = max(distance.values())
        for node in range(self.hub + 1):
            self.potential[node] += distance.get(node, farthest)

    def push(self) -> None:
        """Send flow along free arcs until no excess reaches a node that lacks flow (Dinic's blocking flows)."""
        while ways := self._levels():
            for start in self.excess:
                while self.imbalance[start] > 0 and (path := self._descend(start, ways)):
                    self.imbalance[start] -= 1
                    self.imbalance[path[-1]] += 1
                    for node, other in pairwise(path):
                        self._send(node, other)

    def _levels(self) -> dict[int, list[int]]:
        """The free arcs that lead one step further from the excess, last first; empty if they reach no lack."""
        level = dict.fromkeys(self.excess, 0)
        todo = list(level)
        reached = False
        ways: dict[int, list[int]] = {}
        for node in todo:
            here = self.potential[node]
            ways[node] = [other for other, cost in self._arcs(node) if cost + here == self.potential[other]]
            for other in ways[node]:
                if other not in level:
                    level[other] = level[node] + 1
                    todo.append(other)
                    reached |= self.imbalance[other] < 0
        if not reached:
            return {}
        return {
            node: [one for one in reversed(others) if level[one] == level[node] + 1] for node, others in ways.items()
        }

    def _descend(self, start: int, ways: dict[int, list[int]]) -> list[int]:
        """A path to a node that lacks flow; empty if there is none. Arcs that lead nowhere are removed from `ways`."""
        path = [start]
        while path:
            node = path[-1]
            if self.imbalance[node] < 0:
                return path
            while ways[node] and not self._has_room(node, ways[node][-1]):
                ways[node].pop()
            if ways[node]:
                path.append(ways[node][-1])
            else:
                path.pop()
                if path:
                    ways[path[-1]].pop()
        return path

    def _has_room(self, node: int, other: int) -> bool:
        first = len(self.groups)
        if node < first:
            return self.flow[node][other - first] < self.high[node][other - first]
        if other < first:
            return self.flow[other][node - first] > self.low[other][node - first]
        if other == self.hub:
            return self.sums[node - first] < self.sum_high[node - first]
        return self.sums[other - first] > self.sum_low[other - first]

    def _arcs(self, node: int) -> list[tuple[int, int]]:
        """(node, cost) of the arcs with room for one more task."""
        first = len(self.groups)
        if node < first:
            flow, high, present = self.flow[node], self.high[node], self.present[node]
            return [(first + at, 0 if flow[at] >= present[at] else -1) for at in self.members if flow[at] < high[at]]
        if node == self.hub:
            return [(first + at, 0) for at in self.members if self.sums[at] > self.sum_low[at]]
        at = node - first
        arcs = [
            (group, 1 if self.flow[group][at] <= self.present[group][at] else 0)
            for group in self.groups
            if self.flow[group][at] > self.low[group][at]
        ]
        return [*arcs, (self.hub, 0)] if self.sums[at] < self.sum_high[at] else arcs

    def _send(self, node: int, other: int) -> None:
        first = len(self.groups)
        if node < first:
            self.flow[node][other - first] += 1
        elif other < first:
            self.flow[other][node - first] -= 1
        else:
            at, more = (node - first, 1) if other == self.hub else (other - first, -1)
            self.sums[at] += more

    def _kept(self, at: int) -> int:
        """The member's sum as it stands, whether within its bounds or below them."""
        return self.sums[at] + self.imbalance[len(self.groups) + at]
