"""Tasks that the application wants here: a full set under a generation, and the lease that it holds them by.

    PUT generation 7 {0: active, 2: standby}     larger than the known one: tasks not named are revoked
    PUT generation 7 again, the same set         nothing changes, the answer is the same
    PUT generation 7, another set                refused: two members speak under one generation
    PUT generation 6                             refused: stale
    lease over                                   every active task is closed; only a larger generation opens them again

Rules of this file: pure; times come in as monotonic milliseconds. The shell carries a decision out and keeps the wanted
set only after that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from standfast.ops.sidecar.control.schema import Assignment, given
from standfast.store.errors import Fenced, InvalidRequest

Source = tuple[str, int]


class StaleGeneration(Fenced):
    """The request speaks under a generation that is over."""


@dataclass(frozen=True, slots=True)
class WantedTasks:
    """The application's assignment: partitions by role, and the source partitions that each active task reads."""

    generation: int = -1
    active: frozenset[int] = frozenset()
    standby: frozenset[int] = frozenset()
    sources: Mapping[int, tuple[Source, ...]] = field(default_factory=dict)

    @property
    def tasks(self) -> frozenset[int]:
        """Every partition."""
        return self.active | self.standby


@dataclass(frozen=True, slots=True)
class ApplicationLease:
    """The time that the application may be silent; `until_ms` on the monotonic clock, None: it asked for no lease."""

    lease_ms: int | None = None
    until_ms: int | None = None
    ended: bool = False

    def renewed(self, now_ms: int) -> ApplicationLease:
        """The lease after a heartbeat."""
        return self if self.lease_ms is None else replace(self, until_ms=now_ms + self.lease_ms)

    def heard(self, at_ms: int) -> ApplicationLease:
        """The lease after a heartbeat of that time; unchanged while it does not run, or if a later one came."""
        renewed = self.renewed(at_ms)
        # Heartbeats count when they come, on the event loop; the control thread may read an older one after a renewal.
        later = self.until_ms is not None and renewed.until_ms is not None and renewed.until_ms > self.until_ms
        return renewed if later else self

    def is_over(self, now_ms: int) -> bool:
        """Whether the application was silent for too long."""
        return not self.ended and self.until_ms is not None and now_ms >= self.until_ms


def wanted_of(body: Assignment) -> WantedTasks:
    """The assignment that a request asks for. Raises InvalidRequest for a partition that is named twice, and for a
    source of another partition."""
    roles: dict[int, str] = {}
    sources: dict[int, tuple[Source, ...]] = {}
    for one in body.tasks:
        if one.partition in roles:
            raise InvalidRequest(f"partition {one.partition} is assigned twice: name it once, as active or standby")
        roles[one.partition] = one.role
        read = given(one.sources, ())
        for at in read:
            if at.partition != one.partition:
                raise InvalidRequest(
                    f"task {one.partition} cannot have partition {at.partition} of {at.topic!r} as a source: a task "
                    "reads only partitions of its own number, else another task would continue from offsets that do "
                    "not match its state"
                )
        if one.role == "active":
            sources[one.partition] = tuple((at.topic, at.partition) for at in read)
    return WantedTasks(
        body.generation,
        frozenset(partition for partition, role in roles.items() if role == "active"),
        frozenset(partition for partition, role in roles.items() if role == "standby"),
        sources,
    )


def decide(present: WantedTasks, lease: ApplicationLease, asked: WantedTasks) -> bool:
    """Whether the assignment changes anything. Raises StaleGeneration, or InvalidRequest for two under one number."""
    if asked.generation < present.generation:
        raise StaleGeneration(
            f"generation {asked.generation} is over: generation {present.generation} is assigned here, rejoin"
        )
    if asked.generation > present.generation:
        return True
    # The end of the lease discarded uncommitted writes, so a repeat of the old assignment must not reopen its tasks.
    if lease.ended:
        raise StaleGeneration(
            f"the lease of generation {asked.generation} is over and its tasks are closed: assign under a larger one"
        )
    if (asked.active, asked.standby) != (present.active, present.standby):
        raise InvalidRequest(
            f"generation {asked.generation} is assigned with other tasks here: a changed assignment needs a larger "
            "generation"
        )
    return False


def without(present: WantedTasks, partitions: Iterable[int]) -> WantedTasks:
    """The assignment without these partitions, after a revoke, under the same generation."""
    gone = frozenset(partitions)
    return WantedTasks(
        present.generation,
        present.active - gone,
        present.standby - gone,
        {partition: sources for partition, sources in present.sources.items() if partition not in gone},
    )


def check_generation(present: WantedTasks, lease: ApplicationLease, generation: int) -> None:
    """Raise StaleGeneration if a request speaks under another generation than the present one, or its lease is over."""
    if lease.ended:
        raise StaleGeneration("the lease is over and the tasks are closed: assign under a larger generation")
    if generation != present.generation:
        raise StaleGeneration(
            f"generation {generation} is not the one assigned here ({present.generation}): rejoin and assign again"
        )
