"""Duties of an example with a consumer of its own: on a real broker and in a simulated world, with the same steps.

Rules of this file: an `Application` hides where its processes run; checked are the records of the changelog.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Protocol

from standfast.replication.takeover import MemberPlan

PARTITIONS = 3


class Process(Protocol):
    """A process that runs an example."""

    def kill(self) -> object: ...
    def wait(self) -> object: ...


class Application(Protocol):
    """One application: its topic, its input records, and its processes."""

    fed: Counter[str]

    def feed(self, count: int) -> None:
        """Write so many records, 30 keys in turn."""

    def start(self, name: str, directory: str) -> Process:
        """Start the example of that name, in a state directory of its own."""
        ...

    def committed(self) -> int:
        """The sum of the committed source offsets."""
        ...

    def plans(self) -> list[MemberPlan]:
        """The values that the members of the group have published."""
        ...

    def until(self, reached: Callable[[], bool], what: str) -> None:
        """Let the processes run until something is so."""

    def counted(self) -> Counter[str]:
        """Counts in the changelog."""
        ...


def counts_each_record_once_when_killed(application: Application, name: str) -> None:
    """Killed in the middle, twice, and started again."""
    application.feed(3_000)
    for _ in range(2):
        process = application.start(name, "a")
        before = application.committed()
        application.until(lambda before=before: application.committed() > before, "it counts")  # type: ignore[misc]
        process.kill()
        process.wait()
        application.feed(900)
    application.start(name, "a")
    application.until(lambda: application.committed() >= application.fed.total(), "all are counted")
    assert application.counted() == application.fed


def takes_over_from_a_killed_one(application: Application) -> None:
    """The second process has caught-up standbys before the first one is killed."""
    application.feed(300)
    first = application.start("external_consumer", "a")
    application.until(lambda: application.committed() >= 300, "the first counts all")
    application.start("external_consumer", "b")

    def shared() -> bool:
        """Wait until each task runs in one process and has a caught-up standby in the other."""
        plans = application.plans()
        return (
            len(plans) == 2
            and all(plan.active for plan in plans)
            and all(plan.standby == plan.warm == other.active for plan, other in (plans, plans[::-1]))
        )

    application.until(shared, "the group shares tasks out, standbys follow")
    application.feed(300)
    application.until(lambda: application.committed() >= 600, "both count")
    first.kill()
    first.wait()
    application.feed(300)
    application.until(lambda: application.committed() >= 900, "the standby took over")
    assert application.counted() == application.fed
    assert any(len(plan.active) == PARTITIONS for plan in application.plans())
