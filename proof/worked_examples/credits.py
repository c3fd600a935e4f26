"""The player of `standfast.replication.credits`: a batch is named after its partition, `a1`.

    new floating_batches=2        a new machine; bounds that are not named are the defaults
    add a credits=1               an applier takes partition `a`
    fetched a1 b1:50              one fetch: a batch of `a`, 1 byte, and one of `b`, 50 bytes
    applied a1                    the applier is done with that batch
    remove a                      the partition goes
    backlogs                      number of batches that wait in each queue

Rules of this file: it names batches and nothing else; `a1~` was sent on a floating credit.
"""

from __future__ import annotations

from typing import Any

from standfast.replication.credits import Arrived, CreditLimits, Credits, Decision, Sent
from standfast.replication.offsets import TopicPartition
from worked_examples.script import Player


class Pipeline(Player):
    """A machine whose batches have names."""

    def __init__(self) -> None:
        self.new()

    def new(self, **limits: int) -> str:
        """Begin with a new machine."""
        self.credits: Credits[str] = Credits(CreditLimits(**limits))
        self.sent: dict[str, Sent[str]] = {}
        return "empty"

    def add(self, name: str, **credits: int) -> Decision[str]:
        """Let an applier take a partition."""
        return self._keep(self.credits.add(_at(name), **credits))

    def fetched(self, *batches: str) -> Decision[str]:
        """Give these batches in one fetch."""
        named = [one.partition(":") for one in batches]
        return self._keep(self.credits.fetched([Arrived(_at(name), name, int(size or 1)) for name, _, size in named]))

    def applied(self, batch: str) -> Decision[str]:
        """Report a batch as applied."""
        return self._keep(self.credits.applied(self.sent[batch]))

    def remove(self, name: str) -> Decision[str]:
        """Take a partition away."""
        return self._keep(self.credits.remove(_at(name)))

    def backlogs(self) -> dict[str, int]:
        """Number of batches that wait in each queue."""
        return {name.topic: one.backlog for name, one in self.credits.statistics().partitions.items()}

    def value(self, answer: Any) -> Any:
        """A decision without its empty parts, but for the sent batches."""
        if not isinstance(answer, Decision):
            return super().value(answer)
        said = {
            "pause": [name.topic for name in answer.pause],
            "resume": [name.topic for name in answer.resume],
            "dropped": list(answer.dropped),
        }
        sent = [f"{one.batch}{'~' if one.floating else ''}" for one in answer.send]
        return {"sent": sent, **{word: names for word, names in said.items() if names}}

    def _keep(self, decision: Decision[str]) -> Decision[str]:
        self.sent |= {one.batch: one for one in decision.send}
        return decision


def _at(name: str) -> TopicPartition:
    return TopicPartition(name[0], 0)
