"""The coordinator of a group of consumers, as brokers have one: members, generations, the partitions of each member.

    a member comes, leaves, is silent ──> the others hear of it with a heartbeat, and join again
    all have joined, or are too late  ──> next generation: partitions are shared out, each member asks for its share

    eager         a member gives everything back before it joins; shares are neighbours, in the order of the ids
    cooperative   a member keeps its partitions, up to a fair share; a moved one is free once its holder gave it back

Rules of this file: plain data of the world, without calls. Nothing happens by itself: one that asks finds another one
silent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from standfast.replication.offsets import TopicPartition

Share = frozenset[TopicPartition]


class NoMember(Exception):
    """The group has no such member (any more)."""


@dataclass(slots=True, eq=False)
class Reading:
    """A member. `beats`: whether its heartbeats come now; `polled_ms`: the last poll, which its client knows."""

    topics: tuple[str, ...]
    eager: bool
    session_ms: int
    poll_ms: int
    beats: Callable[[], bool]
    polled_ms: int
    heard_ms: int
    has: Share = field(default_factory=frozenset)  # as it said when it joined
    share: Share = field(default_factory=frozenset)
    joined: bool = False

    @property
    def late(self) -> int:
        """When its client leaves the group by itself, unless the application polls before."""
        return self.polled_ms + self.poll_ms


class Coordinator:
    """See the header. `live` gets the members with their generations; `count` says how many partitions a topic has."""

    def __init__(self, live: dict[str, int], count: Callable[[str], int]) -> None:
        self.members: dict[str, Reading] = {}
        self.generation = 0
        self._live = live
        self._count = count
        self._since_ms: int | None = None  # of a rebalance
        self._counts: Mapping[str, int] = {}  # partitions by topic, as they were shared out

    def join(self, name: str, member: Reading, now_ms: int) -> None:
        """Become a member, or join the coming generation; twice is fine."""
        self.rebalance(now_ms)
        self.members[name] = member
        self._live.setdefault(name, -1)
        member.joined, member.heard_ms = True, now_ms
        self._look(now_ms)

    def sync(self, name: str, now_ms: int) -> tuple[int, Share] | None:
        """Generation and share of a member that joins; None: others have not joined. Raises NoMember."""
        member = self._member(name, now_ms)
        if not member.joined:  # its question got no answer, or another rebalance has begun
            self.join(name, member, now_ms)
        return None if self._since_ms is not None else (self.generation, member.share)

    def heartbeat(self, name: str, now_ms: int) -> bool:
        """Whether a member must join again. Raises NoMember."""
        return not self._member(name, now_ms).joined

    def leave(self, name: str, now_ms: int) -> None:
        """Stop being a member: by itself, or as the coordinator takes it for dead."""
        self._live.pop(name, None)
        if self.members.pop(name, None) is not None:
            self.rebalance(now_ms)
        self._look(now_ms)

    def rebalance(self, now_ms: int) -> None:
        """Begin the next generation."""
        if self._since_ms is None:
            self._since_ms = now_ms
            for member in self.members.values():
                member.joined = False

    def _member(self, name: str, now_ms: int) -> Reading:
        self._look(now_ms)
        if name not in self.members:
            raise NoMember(name)
        return self.members[name]

    def _look(self, now_ms: int) -> None:
        """Remove members that are silent or late, and complete a rebalance that all others wait for."""
        for name, member in list(self.members.items()):
            beats = member.beats()
            if beats:
                member.heard_ms = now_ms
            if now_ms > member.late if beats else now_ms - member.heard_ms >= member.session_ms:
                self._live.pop(name, None)
                del self.members[name]
                self.rebalance(now_ms)
        counts = {topic: self._count(topic) for member in self.members.values() for topic in member.topics}
        if counts != self._counts:
            self.rebalance(now_ms)
        if self._since_ms is None:
            return
        over_ms = self._since_ms + max((one.poll_ms for one in self.members.values()), default=0)
        if all(one.joined for one in self.members.values()) or now_ms >= over_ms:
            self._counts, self._since_ms = counts, None
            self._share_out()

    def _share_out(self) -> None:
        for name in [name for name, one in self.members.items() if not one.joined]:
            del self.members[name]
        self.generation += 1
        self._live.clear()
        self._live.update(dict.fromkeys(self.members, self.generation))
        names = sorted(self.members)
        if not names:
            return
        partitions = [TopicPartition(topic, at) for topic in sorted(self._counts) for at in range(self._counts[topic])]
        holder = {at: name for name in names for at in sorted(self.members[name].has)}
        if self.members[names[0]].eager:
            owner = {at: names[at.partition * len(names) // self._counts[at.topic]] for at in partitions}
        else:
            owner = _sticky(partitions, names, holder)
        for name in names:
            own = (at for at in partitions if owner[at] == name and holder.get(at, name) == name)
            self.members[name].share = frozenset(own)


def _sticky(
    partitions: list[TopicPartition], names: list[str], holder: Mapping[TopicPartition, str]
) -> dict[TopicPartition, str]:
    """Each member keeps its partitions, up to a fair share; the emptiest members get the others."""
    owner = {at: holder[at] for at in partitions if at in holder}
    counts = {name: sum(one == name for one in owner.values()) for name in names}

    def give(at: TopicPartition) -> None:
        owner[at] = min(names, key=lambda name: (counts[name], name))
        counts[owner[at]] += 1

    for at in partitions:
        if at not in owner:
            give(at)
    while max(counts.values()) - min(counts.values()) > 1:
        fullest = max(names, key=lambda name: (counts[name], name))
        counts[fullest] -= 1
        give(next(at for at in partitions if owner[at] == fullest))
    return owner
