"""The scenario `credits`: one fetcher, several appliers, and who may send when.

    a credit a batch; a slow partition and its neighbours; the largest backlog first; pause and resume; bytes; removal

Rules of this file: it plays `standfast.replication.credits`; a batch is named after its partition, `a1`. What is sent
on a floating credit is marked `~`; the numbers expected stand in the calls of `stage.step`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from standfast.ops.scenarios.stage import Stage
from standfast.replication.credits import Arrived, CreditLimits, Credits, Decision, Sent
from standfast.replication.offsets import TopicPartition


def play(stage: Stage) -> None:
    """Every part in turn."""
    _own(stage)
    _slow(stage)
    _largest(stage)
    _hysteresis(stage)
    _bytes(stage)
    _removal(stage)


class Pipeline:
    """The machine with batches by name."""

    def __init__(self, stage: Stage, partitions: dict[str, int], **limits: int) -> None:
        self._stage = stage
        self._credits: Credits[str] = Credits(CreditLimits(**limits))
        self._sent: dict[str, Sent[str]] = {}
        for name, credits in partitions.items():
            self._credits.add(_at(name), credits)

    def fetch(self, batches: Sequence[str], why: str = "", **expected: Any) -> None:
        """One fetch gives these; `b1:50` counts for 50 bytes, the others for one."""
        named = [one.partition(":") for one in batches]
        decision = self._credits.fetched([Arrived(_at(name), name, int(size or 1)) for name, _, size in named])
        self._tell(f"fetched {' '.join(batches)}", decision, expected, why)

    def apply(self, batch: str, why: str = "", **expected: Any) -> None:
        """The applier is done with a batch."""
        self._tell(f"applied {batch}", self._credits.applied(self._sent[batch]), expected, why)

    def remove(self, name: str, why: str = "", **expected: Any) -> None:
        """A partition goes."""
        self._tell(f"remove {name}", self._credits.remove(_at(name)), expected, why)

    def backlogs(self, why: str = "", **expected: int) -> None:
        """How many batches wait in each queue."""
        seen = {name.topic: one.backlog for name, one in self._credits.statistics().partitions.items()}
        self._stage.step("backlogs", seen, expected, why)

    def _tell(self, given: str, decision: Decision[str], expected: dict[str, Any], why: str) -> None:
        self._sent |= {one.batch: one for one in decision.send}
        seen: dict[str, Any] = {"sent": [f"{one.batch}~" if one.floating else one.batch for one in decision.send]}
        for word, names in (("pause", decision.pause), ("resume", decision.resume)):
            if names:
                seen[word] = [name.topic for name in names]
        if decision.dropped:
            seen["dropped"] = list(decision.dropped)
        self._stage.step(given, seen, {"sent": [], **expected}, why)


def _at(name: str) -> TopicPartition:
    return TopicPartition(name[0], 0)


def _own(stage: Stage) -> None:
    stage.part("A credit a batch: partition a has two of its own")
    line = Pipeline(stage, {"a": 2}, floating_batches=0)
    line.fetch(["a1"], "one credit spent", sent=["a1"])
    line.fetch(["a2"], "both spent", sent=["a2"])
    line.fetch(["a3"], "no credit: it stays in the fetcher's queue")
    line.fetch(["a4"])
    line.apply("a1", "its credit is back and takes the oldest", sent=["a3"])
    line.apply("a2", sent=["a4"])
    line.apply("a3", "nothing waits")
    line.backlogs(a=0)


def _slow(stage: Stage) -> None:
    stage.part("Nobody applies a: one credit each, a pool of two, one of it a partition, queues of three")
    limits = {"floating_batches": 2, "floating_per_partition_max": 1, "queue_batches_high": 3, "queue_batches_low": 1}
    line = Pipeline(stage, {"a": 1, "b": 1}, **limits)
    line.fetch(["a1", "b1"], "own credits", sent=["a1", "b1"])
    line.fetch(["a2", "b2"], "one of the pool each; a may have no more", sent=["a2~", "b2~"])
    line.fetch(["a3", "b3"], "both wait")
    line.apply("b1", sent=["b3"])
    line.apply("b2", "back to the pool; a has its part of it already")
    line.fetch(["a4", "b4"], sent=["b4~"])
    line.apply("b3")
    line.fetch(["a5", "b5"], "three of a wait: only a is paused", sent=["b5"], pause=["a"])
    line.apply("b4")
    line.fetch(["b6"], "b goes on as if it were alone", sent=["b6~"])
    line.backlogs(a=3, b=0)
    line.apply("a1", "in order", sent=["a3"])
    line.apply("a2", "one waits: fetched again", sent=["a4~"], resume=["a"])


def _largest(stage: Stage) -> None:
    stage.part("The pool is one credit and a holds it; one waits for b, three for c")
    line = Pipeline(stage, {"a": 1, "b": 1, "c": 1}, floating_batches=1)
    line.fetch(["a1", "b1", "c1"], "own credits", sent=["a1", "b1", "c1"])
    line.fetch(["a2"], "from the pool", sent=["a2~"])
    line.fetch(["b2", "c2"])
    line.fetch(["c3"])
    line.fetch(["c4"])
    line.backlogs(a=0, b=1, c=3)
    line.apply("a2", "the largest backlog is 3", sent=["c2~"])
    line.apply("c2", "2 against 1", sent=["c3~"])
    line.apply("c3", "1 against 1: b was favoured longest ago, never", sent=["b2~"])
    line.apply("b2", sent=["c4~"])


def _hysteresis(stage: Stage) -> None:
    stage.part("Pause at four, resume at one: pausing throws a prefetch away")
    limits = {"floating_batches": 0, "queue_batches_high": 4, "queue_batches_low": 1}
    line = Pipeline(stage, {"a": 1}, **limits)
    line.fetch(["a1"], sent=["a1"])
    for number in (2, 3, 4):
        line.fetch([f"a{number}"], f"{number - 1} of 4")
    line.fetch(["a5"], "4 of 4", pause=["a"])
    line.apply("a1", "3 wait: still paused", sent=["a2"])
    line.apply("a2", "2 wait: still paused", sent=["a3"])
    line.apply("a3", "1 waits", sent=["a4"], resume=["a"])


def _bytes(stage: Stage) -> None:
    stage.part("Bytes: 100 for the queues of two partitions, 50 each")
    line = Pipeline(stage, {"a": 1, "b": 1}, floating_batches=0, queue_bytes_max=100)
    line.fetch(["a1", "b1"], sent=["a1", "b1"])
    line.fetch(["a2:49", "b2:10"], "one byte below the share")
    line.fetch(["a3:1"], "exactly the share", pause=["a"])
    line.fetch(["b3:10"], "b has its own 50")
    line.apply("a1", "1 byte waits", sent=["a2"], resume=["a"])


def _removal(stage: Stage) -> None:
    stage.part("A partition goes: its queue is let go, what is in hand counts until it is told")
    line = Pipeline(stage, {"a": 1, "b": 1}, floating_batches=1)
    line.fetch(["a1", "b1"], sent=["a1", "b1"])
    line.fetch(["a2"], sent=["a2~"])
    line.fetch(["a3", "b2"], "the pool is empty")
    line.remove("a", "the log still has a3", dropped=["a3"])
    line.apply("a2", "its floating credit serves b now", sent=["b2~"])
    line.apply("a1", "its own credit went with it")
